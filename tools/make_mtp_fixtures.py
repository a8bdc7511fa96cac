#!/usr/bin/env python3
"""Makes the PyTorch reference numbers of multi-token prediction: tests/fixtures/mtp/<name>.safetensors.

    pip install torch transformers safetensors     # made with torch 2.15.0, transformers 5.22.2, safetensors 0.8.0
    python tools/make_mtp_fixtures.py tests/fixtures/mtp

Only needed to make the files anew; the tests read the committed ones. Models and rows are those of make_family_fixtures.py, every
number is computed in fp64 and rounded once. A model has TRUNK + HEADS layers. Head k is the model of transformers whose layers
are the trunk and layer TRUNK + k - 1, so nothing is computed by a second implementation: autograd adds what the heads share.
The last document of the last row has two tokens, so that head 3 has no target in it. A file holds, beside `config` in its
metadata (`layers` counts the heads, `mtp_heads`):
    w/<name>            parameters under their Hugging Face names, heads as layers TRUNK, TRUNK + 1, ...
    tokens, targets, doc  (B, T) int32, as in the families
    weights             (B, T) 0, 0.3 or 2: of the target of head 1 at each position, and so of that token for every head
    targets_<k>         (B, T) int32: what head k predicts, -1 where nothing is
    losses_<k>          (B, T) its cross entropy, 0 where the target is -1
    loss, g/<name>      mean over heads of the sum of losses over the targets of the head; its gradient
    weighted, gw/<name>   the same with weights; divided by the same counts
"""
import json
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file

import make_family_fixtures as families

TRUNK, HEADS = 2, 3
families.DOCUMENTS = [[5, 1, 10, 8], [9, 15], [22, 2]]
NAMES = ["gpt2_tied", "llama_untied_gqa", "qwen3_tied_gqa"]


def targets_of(tokens, trained, k):
    """Token t + k, in the same document, where it is trained on: where head 1 is, one position before it."""
    out = torch.full_like(tokens, -1)
    for row, lengths in enumerate(families.DOCUMENTS):
        start = 0
        for n in lengths:
            for t in range(start, start + n - k):
                if trained[row, t + k]:
                    out[row, t] = tokens[row, t + k]
            start += n
    return out


def head_losses(model, tokens, doc, targets, k):
    decoder, name = (model.transformer, "h") if hasattr(model, "transformer") else (model.model, "layers")
    layers = getattr(decoder, name)
    setattr(decoder, name, torch.nn.ModuleList([*layers[:TRUNK], layers[TRUNK + k - 1]]))
    model.config.num_hidden_layers = TRUNK + 1
    losses = families.losses_of(families.forward(model, tokens, doc), targets)
    setattr(decoder, name, layers)
    model.config.num_hidden_layers = TRUNK + HEADS
    return losses


def gradients(model, loss, prefix):
    model.zero_grad()
    loss.backward(retain_graph=True)
    return {prefix + n: p.grad.detach().clone() for n, p in model.named_parameters()}


def main(folder):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    Path(folder).mkdir(exist_ok=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__}
    for index, name in enumerate(NAMES):
        torch.manual_seed(3000 + index)
        c = {**families.MODELS[name], "layers": TRUNK + HEADS}
        model = families.build(c)
        tokens, targets, doc = families.batch(c)
        trained = torch.zeros_like(tokens, dtype=torch.bool)
        trained[:, 1:] = targets[:, :-1] >= 0
        weights = torch.tensor([0.0, 0.3, 2.0])[torch.randint(0, 3, targets.shape)]
        content = {"w/" + n: p.detach().clone() for n, p in model.named_parameters()}
        content.update(tokens=tokens, targets=targets, doc=doc, weights=weights)
        model = families.cast(model, torch.float64)
        loss, weighted = 0.0, 0.0
        for k in range(1, HEADS + 1):
            ahead = targets_of(tokens, trained, k)
            assert k > 1 or (ahead == targets).all()
            losses = head_losses(model, tokens, doc, ahead, k)
            by_target = torch.zeros_like(weights)
            by_target[:, :families.T - k + 1] = weights[:, k - 1:]
            count = (ahead >= 0).sum()
            loss = loss + losses.sum() / count / HEADS
            weighted = weighted + (by_target.double() * losses).sum() / count / HEADS
            content.update({f"targets_{k}": ahead, f"losses_{k}": losses.detach()})
        content.update(gradients(model, loss, "g/"))
        content.update(gradients(model, weighted, "gw/"))
        content.update(loss=loss.detach()[None], weighted=weighted.detach()[None])
        content = {n: (x.float() if x.is_floating_point() else x.int()).contiguous() for n, x in content.items()}
        rope = {} if c["family"] == "gpt2" else dict(rope_theta=c["rope_theta"], rope_scaling=dict(type="default"))
        path = Path(folder) / f"{name}.safetensors"
        save_file(content, path, metadata={"config": json.dumps({**c, **rope, "mtp_heads": HEADS, "versions": versions})})
        path.chmod(0o644)
        print(f"{path}: {path.stat().st_size} bytes, loss {loss:.4f}, weighted {weighted:.4f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
