#!/usr/bin/env python3
"""Training steps of Qwen2.5 or GPT-2 shapes on one GPU with PyTorch, as a user would write them: the figure to beat.

usage: torch_train.py --shape qwen2.5-1.5b --batch 16 --accumulation 32 --seq 1024 --steps 2 --mode bf16|fp32|amp
                      [--compile] [--checkpoint]
Random weights, random tokens, SDPA, fused AdamW, clipping at 1.0; prints one JSON line with the best step's tokens/s and the
most memory PyTorch held. Needs torch with CUDA and transformers.
"""
import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

QWEN = {  # hidden, layers, heads, kv heads, ffn, tied
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, True),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 8960, True),
    "qwen2.5-3b": (2048, 36, 16, 2, 11008, True),
    "qwen2.5-7b": (3584, 28, 28, 4, 18944, False),
}
GPT2 = {"gpt2": (768, 12, 12), "gpt2-large": (1280, 36, 20), "gpt2-xl": (1600, 48, 25)}

parser = argparse.ArgumentParser()
parser.add_argument("--shape", choices=[*QWEN, *GPT2], default="qwen2.5-1.5b")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--mode", choices=["bf16", "fp32", "amp"], default="bf16")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()

torch.manual_seed(1)
if args.shape in QWEN:
    hidden, layers, heads, kv_heads, ffn, tied = QWEN[args.shape]
    config = Qwen2Config(vocab_size=151936, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                         num_key_value_heads=kv_heads, intermediate_size=ffn, tie_word_embeddings=tied, use_cache=False,
                         attn_implementation="sdpa", max_position_embeddings=32768)
    kind = Qwen2ForCausalLM
else:
    hidden, layers, heads = GPT2[args.shape]
    config = GPT2Config(n_embd=hidden, n_layer=layers, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        use_cache=False, attn_implementation="sdpa")
    kind = GPT2LMHeadModel
with torch.device("cuda"):
    model = kind._from_config(config, dtype=torch.bfloat16 if args.mode == "bf16" else torch.float32)
model.train()
if args.checkpoint:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
forward = torch.compile(model) if args.compile else model
tokens = torch.randint(0, config.vocab_size, (args.accumulation, args.batch, args.seq), device="cuda")


def step():
    for micro in tokens:
        with torch.autocast("cuda", torch.bfloat16, enabled=args.mode == "amp"):
            loss = forward(input_ids=micro, labels=micro).loss / args.accumulation
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


warm = tokens
tokens = tokens[:2]
step()  # compilation, allocation of the optimizer's state
tokens = warm
torch.cuda.synchronize()
torch.cuda.reset_peak_memory_stats()
best = float("inf")
for _ in range(args.steps):
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    best = min(best, time.perf_counter() - begin)
n = args.accumulation * args.batch * args.seq
print(json.dumps({"who": "torch " + torch.__version__, "shape": args.shape, "mode": args.mode, "compiled": args.compile,
                  "checkpointed": args.checkpoint, "batch": args.batch, "accumulation": args.accumulation, "seq": args.seq,
                  "step_s": best, "tokens_per_second": n / best, "peak_bytes": torch.cuda.max_memory_allocated(),
                  "reserved_bytes": torch.cuda.max_memory_reserved()}))
