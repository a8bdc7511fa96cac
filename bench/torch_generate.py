#!/usr/bin/env python3
"""Greedy completions of a Qwen2.5 shape on one GPU with transformers: the figure to beat, and a model directory for both.

usage: torch_generate.py --shape qwen2.5-1.5b --dir DIR [--batches 1,16,64] [--prompt 512] [--new 128] [--static] [--write]
Random weights in bf16 are written to DIR with a tokenizer of bytes and DIR/prompts.txt; prints one JSON line per batch:
prompt tokens/s of the prefill, new tokens/s of the steps after it, and the new tokens of the first row.
--static: a cache of fixed size, whose steps transformers compiles. --write: no completions, only the directory. Needs torch with CUDA, transformers and tokenizers.
"""
import argparse
import json
import random
import string
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

QWEN = {"qwen2.5-0.5b": (896, 24, 14, 2, 4864), "qwen2.5-1.5b": (1536, 28, 12, 2, 8960), "qwen2.5-7b": (3584, 28, 28, 4, 18944)}

parser = argparse.ArgumentParser()
parser.add_argument("--shape", choices=QWEN, default="qwen2.5-1.5b")
parser.add_argument("--dir", required=True)
parser.add_argument("--batches", default="1,16,64")
parser.add_argument("--prompt", type=int, default=512)
parser.add_argument("--new", type=int, default=128)
parser.add_argument("--static", action="store_true")
parser.add_argument("--write", action="store_true")
args = parser.parse_args()

torch.manual_seed(1)
hidden, layers, heads, kv_heads, ffn = QWEN[args.shape]
config = Qwen2Config(vocab_size=151936, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                     num_key_value_heads=kv_heads, intermediate_size=ffn, tie_word_embeddings=args.shape != "qwen2.5-7b",
                     attn_implementation="sdpa", max_position_embeddings=32768, bos_token_id=None, eos_token_id=None)
model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16).cuda().eval()
model.save_pretrained(args.dir)
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.save(args.dir + "/tokenizer.json")
rng = random.Random(1)
batches = [int(b) for b in args.batches.split(",")]
texts = ["".join(rng.choice(string.ascii_letters) for _ in range(args.prompt)) for _ in range(max(batches))]
with open(args.dir + "/prompts.txt", "w") as f:
    f.write("\n".join(texts) + "\n")
ids = torch.tensor([tokenizer.encode(t).ids for t in texts], device="cuda")


def seconds(batch, n_new):
    more = {"cache_implementation": "static"} if args.static else {}
    torch.cuda.synchronize()
    begin = time.perf_counter()
    out = model.generate(ids[:batch], attention_mask=torch.ones_like(ids[:batch]), max_new_tokens=n_new, min_new_tokens=n_new,
                         do_sample=False, pad_token_id=0, **more)
    torch.cuda.synchronize()
    return time.perf_counter() - begin, out


for batch in [] if args.write else batches:
    seconds(batch, 4)
    first, _ = seconds(batch, 1)
    whole, out = seconds(batch, args.new)
    print(json.dumps({"batch": batch, "static": args.static, "prefill": batch * args.prompt / first,
                      "decode": batch * (args.new - 1) / (whole - first), "peak_bytes": torch.cuda.max_memory_allocated(),
                      "tokens": out[0, args.prompt:].tolist()}), flush=True)
