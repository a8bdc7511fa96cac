#!/usr/bin/env python3
"""PyTorch's fused AdamW on the CPU over as many elements as bench_adamw: the figure to beat.

usage: torch_adamw.py [--elements 33554432] [--threads 16] [--rounds 15]
One tensor of fp32 parameters, gradients and states; prints one JSON line with the best and the median G parameters/s.
"""
import argparse
import json
import os
import statistics
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--elements", type=int, default=1 << 25)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--rounds", type=int, default=15)
args = parser.parse_args()
torch.set_num_threads(args.threads)
p = torch.nn.Parameter(torch.randn(args.elements))
p.grad = torch.randn(args.elements)
optimizer = torch.optim.AdamW([p], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
optimizer.step()
times = []
for _ in range(args.rounds):
    begin = time.perf_counter()
    optimizer.step()
    times.append(time.perf_counter() - begin)
print(json.dumps({"who": "torch " + torch.__version__, "elements": args.elements, "threads": args.threads,
                  "best": args.elements / min(times) / 1e9, "median": args.elements / statistics.median(times) / 1e9}))
