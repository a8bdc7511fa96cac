#!/usr/bin/env python3
"""GPT-2 (124M) training steps on the CPU with PyTorch, as a user would write them: the figure to beat.

usage: torch_gpt2.py --batch 4 --seq 256 --steps 5 --threads 2 --mode fp32|bf16|autocast [--compile] [--clock wall|cpu]
Random weights, random tokens, AdamW (fused where PyTorch has it), clipping at 1.0; prints one JSON line with the median
step time after a warm-up. Needs torch and transformers; `bench/run` says so when they are missing.
"""
import argparse
import json
import resource
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--mode", choices=["fp32", "bf16", "autocast"], default="fp32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: processor time, for a machine that others use")
args = parser.parse_args()
clock = time.process_time if args.clock == "cpu" else time.perf_counter

torch.manual_seed(1)
torch.set_num_threads(args.threads)
config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="sdpa")
model = GPT2LMHeadModel(config)
model.train()
if args.mode == "bf16":
    model = model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
forward = torch.compile(model) if args.compile else model
tokens = torch.randint(0, config.vocab_size, (args.batch, args.seq))


def step():
    with torch.autocast("cpu", torch.bfloat16, enabled=args.mode == "autocast"):
        loss = forward(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


for _ in range(2):  # compilation, allocation of the optimizer's state
    step()
times = []
for _ in range(args.steps):
    begin = clock()
    loss = step()
    times.append(clock() - begin)
median = statistics.median(times)
print(json.dumps({
    "who": "torch " + torch.__version__, "mode": args.mode, "compiled": args.compile, "batch": args.batch, "seq": args.seq,
    "step_ms": 1e3 * median, "tokens_per_second": args.batch * args.seq / median, "loss": loss,
    "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
