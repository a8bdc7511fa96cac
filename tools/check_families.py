#!/usr/bin/env python3
"""Compares generation and export of every family with transformers, on small random models of odd shapes, in fp32.

    pip install torch transformers safetensors     # made with torch 2.15.0, transformers 5.22.2
    python tools/check_families.py --ralo build/ralo [NAME...]

Each model of CONFIGS in make_family_fixtures.py, with a vocabulary of 260 for text as bytes, is written by transformers,
generates 40 greedy tokens in ralo and there, is trained one step at a learning rate of almost nothing and exported, and
the export is loaded by transformers: the same configuration, no tensor missing or left over, and logits within 1e-4.
Exits 1 when something differs."""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from make_family_fixtures import CONFIGS, SMALL, randomize

PROMPTS = ["To be, or not to be, that is the question", "A"]


def ralo(args, *words):
    run = subprocess.run([args.ralo, *words], capture_output=True, text=True)
    if run.returncode:
        sys.exit(" ".join(words) + ":\n" + run.stderr)
    return run.stdout


def load(folder):
    model, notes = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                        output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if notes[kind]:
            sys.exit(f"{folder}: {kind}: {sorted(notes[kind])}")
    return model.eval()


def greedy(model, ids, n):
    ids = torch.tensor([ids])
    for _ in range(n):  # without a cache: every token sees what the masks of a whole row let it see
        with torch.no_grad():
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return ids[0, -n:].tolist()


def lengths(config, n):
    """Prompts, context and new tokens: transformers changes the factors of longrope while a text grows beyond the original
    positions, ralo has those of its context from the beginning. So texts are longer from the start, or never get so long."""
    rope = config.rope_parameters
    original = rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else 0
    if original > len(PROMPTS[0]):
        return PROMPTS, ["--context", str(original)], min(n, original - len(PROMPTS[0]))
    return [p for p in PROMPTS if len(p) > original] if original else PROMPTS, [], n


def check(args, name, folder):
    kind, make, differs = CONFIGS[name]
    torch.manual_seed(7)
    config = kind(**{**SMALL, **differs, "vocab_size": 260, "bos_token_id": None, "eos_token_id": None})
    model = make(config).float()
    randomize(model)
    model.save_pretrained(folder / "in")
    model = load(folder / "in")
    prompts, context, n = lengths(config, args.tokens)
    out = ralo(args, "generate", "--model", str(folder / "in"), "--max-new", str(n), "--ignore-eos", "--json", *context,
               *(x for p in prompts for x in ("--prompt", p)))
    right = True
    for ours in json.loads(out.splitlines()[-1])["completions"]:
        theirs = greedy(model, ours["prompt_tokens"], n)
        right &= ours["tokens"] == theirs
    ralo(args, "train", "--set", f"model.path={folder}/in", "--set", "data.source=builtin:grammar", "--set",
         "data.seq_len=32", "--set", "train.steps=1", "--set", "train.lr=1e-20", "--set", "train.micro_batch=2",
         "--set", "precision=fp32", "--set", f"run.dir={folder}/run", "--set", f"run.export={folder}/out")
    exported = load(folder / "out")
    ids = torch.randint(0, 260, (2, 60))
    with torch.no_grad():
        difference = (exported(ids).logits - model(ids).logits).abs().max().item()
    print(f"{name:16} greedy {'equal' if right else 'DIFFERS'}, logits of the export within {difference:.1e}")
    return right and difference < 1e-4


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ralo", default="build/ralo")
    options.add_argument("--tokens", type=int, default=40)
    options.add_argument("names", nargs="*", default=[*CONFIGS])
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [check(args, name, Path(folder) / name) for name in args.names]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
