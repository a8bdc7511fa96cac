#!/usr/bin/env python3
"""Makes the PyTorch reference numbers of two models in one program, and of weights of tokens:
tests/fixtures/two_models/<name>.safetensors.

    pip install torch transformers safetensors     # made with torch 2.15.0, transformers 5.22.2, safetensors 0.8.0
    python tools/make_two_model_fixtures.py tests/fixtures/two_models

Only needed to make the files anew; the tests read the committed ones. Models, rows and their losses are those of
make_family_fixtures.py, every number is computed in fp64 and rounded once. A file holds, beside `config` in its metadata:
    w/<name>, r/<name>    parameters of the policy, and of a reference with other numbers
    tokens, targets, doc  (B, T) int32, as in the families: documents are responses
    segments              (B, T) int32: 4 * pair + 0 for tokens of the chosen response, + 1 for the rejected one, -1 elsewhere;
                          pairs are counted in each row
    losses, losses_r      (B, T) cross-entropy of both models, 0 where the target is -1
    dpo                   (pairs) -log sigmoid(beta ((c - c_r) - (r - r_r))), beta 0.1, c and r sums of log-probabilities
    gd/<name>             gradient of the sum of `dpo` by the policy's parameters
    weights               (B, T) 0, 0.3 or 2
    weighted              the weighted cross-entropy, divided by the targets that are not -1
    gw/<name>             its gradient
"""
import json
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file

import make_family_fixtures as families

BETA = 0.1
families.DOCUMENTS = [[6, 9, 4, 5], [11, 13], [10, 14]]  # lengths of responses: two pairs, one, one
NAMES = ["llama_untied_gqa", "qwen3_tied_gqa"]


def segments_of(targets):
    out = torch.full_like(targets, -1)
    for row, lengths in enumerate(families.DOCUMENTS):
        start = 0
        for i, n in enumerate(lengths):
            out[row, start:start + n] = 4 * (i // 2) + i % 2
            start += n
    out[targets < 0] = -1
    return out


def dpo(losses, losses_r, segments):
    out = []
    for row, lengths in enumerate(families.DOCUMENTS):
        for pair in range(len(lengths) // 2):
            gain = []
            for part in range(2):
                mine = segments[row] == 4 * pair + part
                assert mine.any()
                gain.append((losses_r[row][mine] - losses[row][mine]).sum())
            out.append(-torch.nn.functional.logsigmoid(BETA * (gain[0] - gain[1])))
    return torch.stack(out)


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
        torch.manual_seed(2000 + index)
        c = families.MODELS[name]
        policy, reference = families.build(c), families.build(c)
        tokens, targets, doc = families.batch(c)
        segments, weights = segments_of(targets), torch.tensor([0.0, 0.3, 2.0])[torch.randint(0, 3, targets.shape)]
        content = {"w/" + n: p.detach().clone() for n, p in policy.named_parameters()}
        content.update({"r/" + n: p.detach().clone() for n, p in reference.named_parameters()})
        policy, reference = families.cast(policy, torch.float64), families.cast(reference, torch.float64)
        with torch.no_grad():
            losses_r = families.losses_of(families.forward(reference, tokens, doc), targets)
        losses = families.losses_of(families.forward(policy, tokens, doc), targets)
        pairs = dpo(losses, losses_r, segments)
        weighted = (weights.double() * losses).sum() / (targets >= 0).sum()
        content.update(gradients(policy, pairs.sum(), "gd/"))
        content.update(gradients(policy, weighted, "gw/"))
        content.update(losses=losses.detach(), losses_r=losses_r, dpo=pairs.detach(), weighted=weighted.detach()[None],
                       weights=weights, tokens=tokens, targets=targets, doc=doc, segments=segments)
        content = {n: (x.float() if x.is_floating_point() else x.int()).contiguous() for n, x in content.items()}
        rope = dict(rope_theta=c["rope_theta"], rope_scaling=c.get("rope_scaling", dict(type="default")))
        path = Path(folder) / f"{name}.safetensors"
        save_file(content, path, metadata={"config": json.dumps({**c, **rope, "versions": versions})})
        path.chmod(0o644)
        print(f"{path}: {path.stat().st_size} bytes, dpo {[round(x, 4) for x in pairs.tolist()]}, weighted {weighted:.4f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
