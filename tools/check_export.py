#!/usr/bin/env python3
"""Loads a Hugging Face directory with transformers and with ralo and compares what the two compute.

    pip install torch transformers safetensors     # tokenizers too, for --text
    python tools/check_export.py DIR --program build/tests/test_hf [--rows 4] [--length 64] [--text FILE]

Tokens are random, or those of FILE under DIR/tokenizer.json, cut into rows. Both sides compute in fp32 from the weights
as stored. Prints the largest difference of a logit and of a token's loss, both mean losses, and the smallest cosine
between gradients of the sum of all losses, over all parameters; exits 1 when a logit differs by more than 1e-4, the mean
losses by more than 1e-5, or a cosine is below 0.99999.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


def text_rows(folder, path, rows, length):
    from tokenizers import Tokenizer
    ids = Tokenizer.from_file(str(Path(folder) / "tokenizer.json")).encode(Path(path).read_text()).ids
    rows = min(rows, (len(ids) - 1) // length)
    x = torch.tensor(ids[:rows * length + 1])
    return x[:-1].reshape(rows, length), x[1:].reshape(rows, length)


def smallest_cosine(parameters, gradients):
    worst = 1.0
    for name, ours in gradients.items():
        theirs = parameters[name].grad.double()
        if theirs.shape != ours.shape:  # GPT-2 keeps (in, out)
            theirs = theirs.T
        elif ours.dim() == 2 and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            theirs = theirs.T
        ours = ours.double()
        length = ours.norm() * theirs.norm()
        worst = min(worst, ((ours * theirs).sum() / length).item() if length > 0 else float(torch.equal(ours, theirs)))
    return worst


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("dir")
    options.add_argument("--program", required=True, help="build/tests/test_hf, which runs a directory with ralo")
    options.add_argument("--rows", type=int, default=4)
    options.add_argument("--length", type=int, default=64)
    options.add_argument("--text")
    args = options.parse_args()

    torch.manual_seed(1)
    model, notes = AutoModelForCausalLM.from_pretrained(args.dir, dtype=torch.float32, attn_implementation="eager",
                                                        output_loading_info=True)
    model.eval()
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if notes[kind]:
            sys.exit(f"transformers: {kind}: {sorted(notes[kind])}")
    if args.text:
        tokens, targets = text_rows(args.dir, args.text, args.rows, args.length)
    else:
        tokens = torch.randint(0, model.config.vocab_size, (args.rows, args.length))
        targets = tokens.roll(-1, 1)
    with tempfile.TemporaryDirectory() as folder:
        given, computed, slopes = (Path(folder) / f"{name}.safetensors" for name in ("in", "out", "gradients"))
        save_file({"tokens": tokens.int().contiguous(), "targets": targets.int().contiguous()}, given)
        subprocess.run([args.program, args.dir, given, computed, slopes], check=True)
        ours, gradients = load_file(computed), load_file(slopes)
    with torch.no_grad():
        logits = torch.cat([model(input_ids=row[None], use_cache=False).logits for row in tokens])
    torch.nn.functional.cross_entropy(model(input_ids=tokens, use_cache=False).logits.flatten(0, 1), targets.flatten(),
                                      reduction="sum").backward()
    worst = smallest_cosine(dict(model.named_parameters()), gradients)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    logit, loss = (ours["logits"] - logits).abs().max().item(), (ours["losses"] - losses).abs().max().item()
    means = ours["losses"].double().mean().item(), losses.double().mean().item()
    print(f"{args.dir}: {model.config.model_type}, {tokens.numel()} tokens: logits within {logit:.2e} (largest "
          f"{logits.abs().max():.2f}), losses within {loss:.2e}, mean loss ralo {means[0]:.8f}, transformers {means[1]:.8f}, "
          f"difference {abs(means[0] - means[1]):.2e}; {len(gradients)} gradients, smallest cosine 1 - {1 - worst:.1e}")
    return 0 if logit <= 1e-4 and abs(means[0] - means[1]) <= 1e-5 and worst > 0.99999 else 1


if __name__ == "__main__":
    sys.exit(main())
