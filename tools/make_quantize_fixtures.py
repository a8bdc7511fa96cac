#!/usr/bin/env python3
"""Writes tests/fixtures/quantize.safetensors: weights, and what bitsandbytes and torch make of them in 4 and 8 bits.

    tools/make_quantize_fixtures.py        needs torch, bitsandbytes and safetensors; the versions are written into the file

nf4 is quantize_4bit(blocksize=64, compress_statistics=True) and dequantize_4bit. They run on bitsandbytes' own kernels in torch
(bitsandbytes_in_torch.py).
The mean of the scales is a sum in fp32, whose last bit depends on the machine; ralo sums in double. So weights are drawn until
both are the same number, and everything after it can be compared bit for bit.
int8 is torch.round of the scaled rows, fp8 a cast to torch.float8_e4m3fn of the scaled weight.

For every weight NAME: NAME.w, and NAME.nf4.codes, .scale_codes, .scale, .offset, .back; NAME.int8.codes, .largest; NAME.fp8.codes.
"dynamic" and "nf4" are the tables; --tables prints the first as C."""
import pathlib
import sys

from bitsandbytes_in_torch import F, bitsandbytes

import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent


def middles():
    """Numbers at the middle between neighbours, and one step of fp32 on either side of it."""
    values = F.get_4bit_type("nf4", device="cpu")
    middle = (values[:-1] + values[1:]) / 2
    one, large = torch.ones(1), torch.tensor(2.0)
    x = torch.cat([one, middle, torch.nextafter(middle, -large), torch.nextafter(middle, large), values, -one, one * 0])
    return x.reshape(1, 64)


def draw(name, random):
    n = lambda *shape: torch.randn(*shape, generator=random)
    if name == "two_scale_blocks":  # 264 blocks of 64: 256 and 8
        return (n(48, 352) * 0.02).bfloat16().float()
    if name == "odd":  # blocks across rows, a last one of 39, half a byte left
        return n(7, 33)
    if name == "one_more":  # a last block of one element
        return n(13, 5)
    if name == "one":
        return n(1, 1)
    if name == "some_zeros":
        w = n(6, 64)
        w[1] = 0
        w[4] = 0
        return w
    if name == "all_zeros":
        return torch.zeros(3, 64)
    if name == "outliers":  # scales that differ by 10^6
        return n(40, 64) * 10 ** (3 * n(40, 1).clamp(-1, 1))
    if name == "tiny":  # the smallest are subnormal
        return n(4, 64) * 1e-38 * torch.tensor([1.0, 1e-1, 1e-3, 1e-6]).reshape(4, 1)
    if name == "huge":  # five scales that fp32 can still add
        return n(5, 64).clamp(-3, 3) * 2e37
    return middles()


NAMES = ["two_scale_blocks", "odd", "one_more", "one", "some_zeros", "all_zeros", "outliers", "tiny", "huge", "middles"]


def quantized(w):
    """codes and state, or None where the mean of the scales is not the rounded one."""
    codes, state = F.quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4")
    blocks = torch.nn.functional.pad(w.reshape(-1), (0, -w.numel() % 64)).reshape(-1, 64)
    mean = blocks.abs().max(dim=1)[0].double().mean().float()
    return (codes, state) if mean == state.offset else None


def case(name):
    for seed in range(1000):
        w = draw(name, torch.Generator().manual_seed(seed))
        found = quantized(w)
        if found:
            break
    if not found:
        sys.exit(f"{name}: no seed gives a mean that is the rounded one")
    codes, state = found
    out = {"w": w, "nf4.codes": codes.reshape(-1), "nf4.scale_codes": state.absmax, "nf4.scale": state.state2.absmax,
           "nf4.offset": state.offset.reshape(1), "nf4.back": F.dequantize_4bit(codes, state).reshape(w.shape)}
    largest = w.abs().max(dim=1)[0]
    if (largest > 1e-30).all():
        factor = torch.div(torch.full_like(largest, 127.0), largest)  # 127.0 / largest would be a product with 1 / largest
        out["int8.codes"], out["int8.largest"] = torch.round(w * factor.reshape(-1, 1)).to(torch.int8), largest
    if w.abs().max() > 1e-30:
        out["fp8.codes"] = (w * (448.0 / w.abs().max())).to(torch.float8_e4m3fn).view(torch.uint8)
    return {f"{name}.{key}": value.contiguous() for key, value in out.items()}


def print_table(values):
    line = "   "
    for x in values.numpy():
        text = str(x) if "." in str(x) or "e" in str(x) else f"{x}.0"
        if len(line) + len(text) + 3 > 118:
            print(line)
            line = "   "
        line += f" {text}f,"
    print(line)


def main():
    tables = {"dynamic": F.create_dynamic_map(signed=True), "nf4": F.get_4bit_type("nf4", device="cpu")}
    if "--tables" in sys.argv:
        return print_table(tables["dynamic"])
    tensors = dict(tables)
    for name in NAMES:
        tensors.update(case(name))
    save_file(tensors, ROOT / "tests/fixtures/quantize.safetensors",
              metadata={"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__})


main()
