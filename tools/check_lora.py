#!/usr/bin/env python3
"""Trains adapters with ralo and shows that PEFT and transformers load what it writes, with the same logits.

    pip install torch transformers peft
    python tools/check_lora.py build [DIR]

For each base of tests/fixtures/lora/train_*: `ralo train` with model.lora, `ralo export` to PEFT's directory, and
`ralo export --merge`, both from the run and from base and adapter. Logits of ralo are those of `test_lora_run logits`.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

BUILD = Path(sys.argv[1]).resolve()
FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "lora"
CASES = [("train_qwen3", ["model.lora.rank=4"]),
         ("train_qwen3", ["model.lora.rank=3", "model.lora.targets=q,v,gate", "model.lora.rslora=true", "precision=bf16"]),
         ("train_llama", ["model.lora.rank=2", "model.lora.alpha=3.5", "model.lora.targets=o_proj,down"])]


def ralo(*words):
    subprocess.run([BUILD / "ralo", *map(str, words)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def logits_of_ralo(work, tokens, *model):
    save_file({"tokens": tokens.to(torch.int32)}, work / "in.safetensors")
    subprocess.run([BUILD / "tests" / "test_lora_run", "logits", *map(str, model), work / "in.safetensors",
                    work / "out.safetensors"], check=True)
    return load_file(work / "out.safetensors")["logits"]


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def check(work, base, settings, number):
    run, adapter, merged, again = (work / f"{number}-{name}" for name in ("run", "adapter", "merged", "again"))
    sets = [f"model.path={base}", "precision=fp32", f"data.source={FIXTURES}/text.txt", "data.tokenizer=byte", "data.seq_len=32",
            "data.eval_fraction=0", "train.steps=10", "train.lr=0.01", "train.warmup=0", f"run.dir={run}",
            "run.device=cpu", *settings]
    ralo("train", *[word for s in sets for word in ("--set", s)])
    ralo("export", run, adapter)
    ralo("export", run, merged, "--merge", "--dtype", "fp32")
    ralo("export", base, again, "--adapter", adapter, "--merge", "--dtype", "fp32")
    tokens = torch.randint(0, 256, (24,))
    with torch.no_grad():
        plain = load(base)(tokens[None]).logits[0]
        peft = PeftModel.from_pretrained(load(base), adapter).eval()(tokens[None]).logits[0]
        whole = load(merged)(tokens[None]).logits[0]
    own = logits_of_ralo(work, tokens, run)
    print(f"{base.name} {' '.join(settings)}")
    print(f"  adapter moves logits by {(peft - plain).abs().max():.2e}")
    print(f"  run in ralo       - export in PEFT               {(own - peft).abs().max():.1e}")
    print(f"  base+export, ralo - export in PEFT               {(logits_of_ralo(work, tokens, base, adapter) - peft).abs().max():.1e}")
    print(f"  merged, transformers - export in PEFT            {(whole - peft).abs().max():.1e}")
    a, b = load_file(merged / "model.safetensors"), load_file(again / "model.safetensors")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a), "merged from run and from adapter differ"
    assert (peft - plain).abs().max() > 1e-3 and (own - peft).abs().max() < 1e-4 and (whole - peft).abs().max() < 1e-4


def main():
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder)
        for number, (name, settings) in enumerate(CASES):
            check(work, FIXTURES / name, settings, number)
    print("all within 1e-4")


main()
