#!/usr/bin/env python3
"""Attention of PyTorch alone, causal, bf16, in TFLOP/s: scaled_dot_product_attention by way of flash and of cuDNN, deterministic on and off.

  torch_attention.py rows,tokens,heads,kv_heads,head_dim ...   shapes, as bench_attention_gpu takes them

One line of JSON per shape and way: milliseconds and TFLOP/s of the pairs that a causal mask leaves, 4 head_dim flops forward, 10 backward;
the best of some rounds of queued runs. A way that refuses a shape says why. Where the package flash_attn_interface (FlashAttention-3) or
flash_attn is installed it is measured too."""
import json
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUNDS, ROUND_FLOPS = 3, 3e12  # about 8 ms a round
warnings.filterwarnings("ignore")


def package(name, function):
    try:
        return getattr(__import__(name), function)
    except Exception:
        return None


def by_sdpa(backend):
    def run(q, k, v):
        with sdpa_kernel([backend]):
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                               enable_gqa=q.shape[2] != k.shape[2])
        return y.transpose(1, 2)
    return run


def by_flash_attn(function):
    def run(q, k, v):
        y = function(q, k, v, causal=True, deterministic=torch.are_deterministic_algorithms_enabled())
        return y[0] if isinstance(y, tuple) else y
    return run


WAYS = {"flash": by_sdpa(SDPBackend.FLASH_ATTENTION), "cudnn": by_sdpa(SDPBackend.CUDNN_ATTENTION)}
MISSING = []
for module in "flash_attn_interface", "flash_attn":
    if function := package(module, "flash_attn_func"):
        WAYS[module] = by_flash_attn(function)
    else:
        MISSING.append(module)


def measure(run, flops):
    n_runs = int(min(max(ROUND_FLOPS / flops, 1), 50))
    best = 1e9
    run()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(n_runs):
            run()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / n_runs)
    return best * 1e3


def main():
    print(json.dumps({"who": f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}", "ways": list(WAYS), "missing": MISSING}))
    for shape in sys.argv[1:]:
        B, T, H, G, D = map(int, shape.split(","))
        q, k, v = (torch.randn(B, T, n, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (H, G, G))
        dy = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16)
        flops = 2.0 * D * B * H * (T * (T + 1) / 2)
        for way, run in WAYS.items():
            forward_ms = None  # of both: the forward is the same
            for deterministic in False, True:
                r = {"rows": B, "tokens": T, "heads": H, "kv_heads": G, "head_dim": D, "way": way, "deterministic": deterministic}
                torch.use_deterministic_algorithms(deterministic)
                try:
                    y = run(q, k, v)
                    if forward_ms is None:
                        with torch.no_grad():
                            forward_ms = measure(lambda: run(q, k, v), 2 * flops)
                    r["forward_ms"] = forward_ms
                    r["backward_ms"] = measure(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), 5 * flops)
                    r["forward"], r["backward"] = 2e-9 * flops / r["forward_ms"], 5e-9 * flops / r["backward_ms"]
                    del y
                except RuntimeError as e:
                    r["error"] = str(e).splitlines()[0]
                print(json.dumps(r), flush=True)
        del q, k, v, dy


main()
