#!/usr/bin/env python3
"""The products of a layer alone, by PyTorch (cuBLAS), for as long as a step takes: what the GPU's power allows of its arithmetic.

usage: torch_products.py --shape qwen2.5-1.5b --tokens 16384 --seconds 3
Forward, both gradients, all four matrices of a layer in turn, bf16. Prints one JSON line: TFLOP/s of the first tenth of a second
and of the seconds behind it, on zeros and on noise, with the clock and the power that nvidia-smi reads at the end.
"""
import argparse
import json
import subprocess
import time

import torch

SHAPES = {  # (out, in) of qkv, attention's output, gate and up, down
    "qwen2.5-0.5b": [(1152, 896), (896, 896), (9728, 896), (896, 4864)],
    "qwen2.5-1.5b": [(2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960)],
    "qwen2.5-7b": [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)],
}
parser = argparse.ArgumentParser()
parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
parser.add_argument("--tokens", type=int, default=16384)
parser.add_argument("--seconds", type=float, default=3)
args = parser.parse_args()


def operands(noise):
    make = torch.randn if noise else torch.zeros
    return [(make(args.tokens, i, device="cuda", dtype=torch.bfloat16), make(o, i, device="cuda", dtype=torch.bfloat16) * 0.02,
             make(args.tokens, o, device="cuda", dtype=torch.bfloat16)) for o, i in SHAPES[args.shape]]


def layer(matrices):
    for x, w, dy in matrices:
        x @ w.T, dy @ w, dy.T @ x


def rate(matrices, seconds):
    flops = 6 * args.tokens * sum(o * i for o, i in SHAPES[args.shape])
    torch.cuda.synchronize()
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(8):
            layer(matrices)
        n += 8
        torch.cuda.synchronize()
    return flops * n / (time.perf_counter() - begin) / 1e12


result = {"who": "torch " + torch.__version__, "shape": args.shape, "tokens": args.tokens, "seconds": args.seconds}
for name in ("zeros", "noise"):
    matrices = operands(name == "noise")
    layer(matrices)
    torch.cuda.synchronize()
    time.sleep(2)  # the GPU cools and its clock comes back
    result[name] = {"first": rate(matrices, 0.1), "sustained": rate(matrices, args.seconds)}
    read = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,power.limit", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True).stdout.split(",")
    result[name] |= dict(zip(("mhz", "watts", "limit"), map(float, read)))
    del matrices
print(json.dumps(result))
