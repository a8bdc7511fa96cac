#!/usr/bin/env python3
"""Compares `ralo generate` and `ralo eval` with transformers on one Hugging Face directory, in fp32.

    tools/check_generation.py MODEL TEXT [--ralo build/ralo] [--prompt TEXT] [--tokens 200] [--last 0.05] [--seq-len 256]

Greedy: the same token ids after the prompt, batched with other prompts or alone. Loss: the mean over the last share of
TEXT's bytes in windows that do not overlap, every token but the first predicted from its window; within 1e-5.
Needs torch and transformers. Exits 1 when something differs."""
import argparse
import json
import pathlib
import subprocess
import sys

import torch
import transformers


def ralo(args, *words):
    run = subprocess.run([args.ralo, *words, "--json"], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def check_greedy(args, model, tokenizer):
    others = ["The", "What say you to that?", "A"]
    words = ["generate", "--model", args.model, "--max-new", str(args.tokens), "--ignore-eos"]
    together = ralo(args, *words, "--prompt", args.prompt, *(x for o in others for x in ("--prompt", o)))["completions"]
    alone = ralo(args, *words, "--prompt", args.prompt)["completions"]
    right = True
    for text, ours in zip([args.prompt] + others, together):
        ids = tokenizer(text, return_tensors="pt").input_ids
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.tokens,
                                min_new_tokens=args.tokens, do_sample=False)[0, ids.shape[1]:].tolist()
        # min_new_tokens forbids the end token; where ours draws one, the comparison ends
        n = next((i for i, t in enumerate(ours["tokens"]) if t in args.eos), args.tokens)
        same = ours["prompt_tokens"] == ids[0].tolist() and ours["tokens"][:n] == theirs[:n]
        right &= same
        print(f"greedy after {text!r}: {n} tokens {'equal' if same else 'DIFFER'}")
    same = alone[0]["tokens"] == together[0]["tokens"]
    print(f"alone and in a batch of {len(together)}: {'equal' if same else 'DIFFER'}")
    return right and same


def check_loss(args, model, tokenizer):
    data = pathlib.Path(args.text).read_bytes()
    first = len(data) - int(len(data) * args.last)
    while first < len(data) and data[first] & 0xC0 == 0x80:
        first += 1
    ids = tokenizer(data[first:].decode(), add_special_tokens=False).input_ids
    total, count = 0.0, 0
    for at in range(0, len(ids) - 1, args.seq_len):
        window = torch.tensor([ids[at:at + args.seq_len]])
        target = torch.tensor(ids[at + 1:at + 1 + window.shape[1]])
        logits = model(window).logits[0, :len(target)].double()
        total += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
        count += len(target)
    ours = ralo(args, "eval", "--model", args.model, "--data", args.text, "--last", str(args.last),
                "--seq-len", str(args.seq_len))
    difference = abs(ours["loss"] - total / count)
    print(f"loss on {count} tokens: ralo {ours['loss']:.9f}, transformers {total / count:.9f}, difference {difference:.2e}")
    return ours["tokens"] == len(ids) and difference <= 1e-5


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("text")
    options.add_argument("--ralo", default=str(pathlib.Path(__file__).resolve().parent.parent / "build" / "ralo"))
    options.add_argument("--prompt", default="ROMEO:\n")
    options.add_argument("--tokens", type=int, default=200)
    options.add_argument("--last", type=float, default=0.05)
    options.add_argument("--seq-len", type=int, default=256)
    args = options.parse_args()
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    eos = model.generation_config.eos_token_id
    args.eos = eos if isinstance(eos, list) else [eos]
    with torch.no_grad():
        right = check_greedy(args, model, tokenizer)
        right &= check_loss(args, model, tokenizer)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
