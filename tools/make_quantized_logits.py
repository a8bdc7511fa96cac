#!/usr/bin/env python3
"""Writes tests/fixtures/quantized_logits.safetensors: logits of tiny models whose linear layers bitsandbytes and torch store in 4 and
8 bits, for bases in fewer bits (model.base).

    pip install torch transformers bitsandbytes safetensors     # the versions are written into the file
    python tools/make_quantized_logits.py

The models, tokens and documents are those of tests/fixtures/NAME.safetensors (make_family_fixtures.py). All linear layers of the blocks
are replaced, embeddings and the head are not. In the file, for every NAME, (B, T, V) fp32:
    NAME.nf4        layers are bitsandbytes.nn.Linear4bit: nf4, blocks of 64, double quantisation, products in fp32
    NAME.int8       weights are the codes and scales of bitsandbytes' int8_vectorwise_quant, which Linear8bitLt stores; activations stay fp32.
                    That is what ralo computes
    NAME.llm_int8   layers are bitsandbytes.nn.Linear8bitLt, LLM.int8(): it rounds the activations of every token to 8 bits as well, so
                    its logits are others by definition
    NAME.fp8        weights are torch.float8_e4m3fn, scaled by 448 over the largest of the matrix; activations stay fp32
bitsandbytes' kernels are those in torch (bitsandbytes_in_torch.py)."""
import json
import pathlib

from bitsandbytes_in_torch import F, bitsandbytes

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import make_family_fixtures as families

ROOT = pathlib.Path(__file__).resolve().parent.parent

NAMES = ["llama_untied_gqa", "qwen3_untied"]


def nf4(layer):
    new = bitsandbytes.nn.Linear4bit(layer.in_features, layer.out_features, bias=False, compute_dtype=torch.float32,
                                     compress_statistics=True, quant_type="nf4")
    new.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, blocksize=64, compress_statistics=True,
                                            quant_type="nf4", module=new)
    return new.to("cpu")


def llm_int8(layer):
    new = bitsandbytes.nn.Linear8bitLt(layer.in_features, layer.out_features, bias=False, has_fp16_weights=False, threshold=6.0)
    new.weight = bitsandbytes.nn.Int8Params(layer.weight.data, requires_grad=False, has_fp16_weights=False)
    return new.to("cpu")


def with_weight(layer, w):
    new = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
    new.weight.data = w.float()
    return new


def int8(layer):
    codes, largest, _ = F.int8_vectorwise_quant(layer.weight.data)
    return with_weight(layer, codes.float() * (largest.reshape(-1, 1).float() / 127))


def fp8(layer):
    w = layer.weight.data
    scale = 448.0 / w.abs().max()
    return with_weight(layer, (w * scale).to(torch.float8_e4m3fn).float() / scale)


def replaced(name, tensors, make):
    torch.manual_seed(0)
    model = families.build(families.MODELS[name]).eval()
    model.load_state_dict({key[2:]: t for key, t in tensors.items() if key.startswith("w/")})
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for key, layer in list(part.named_children()):
                if make and isinstance(layer, torch.nn.Linear):
                    assert layer.bias is None
                    setattr(part, key, make(layer))
    return model


def main():
    out, report = {}, {}
    torch.set_num_threads(1)
    for name in NAMES:
        with safe_open(ROOT / f"tests/fixtures/{name}.safetensors", "pt") as f:
            tensors = {key: f.get_tensor(key) for key in f.keys()}
        tokens, doc = tensors["tokens"].long(), tensors["doc"].long()
        with torch.no_grad():
            whole = families.forward(replaced(name, tensors, None), tokens, doc)
            assert (whole - tensors["logits"]).abs().max() < 1e-4
            for kind in (nf4, int8, llm_int8, fp8):
                logits = families.forward(replaced(name, tensors, kind), tokens, doc).float()
                out[f"{name}.{kind.__name__}"] = logits.contiguous()
                report[f"{name}.{kind.__name__}"] = {
                    "from fp32, largest": (logits - whole).abs().max().item(), "mean": (logits - whole).abs().mean().item()}
        apart = (out[f"{name}.int8"] - out[f"{name}.llm_int8"]).abs()
        report[f"{name}.int8 from llm_int8"] = {"largest": apart.max().item(), "mean": apart.mean().item()}
        report[f"{name} logits"] = {"largest": whole.abs().max().item(), "deviation": whole.std().item()}
    print(json.dumps(report, indent=1))
    save_file(out, ROOT / "tests/fixtures/quantized_logits.safetensors",
              metadata={"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__, "transformers": transformers.__version__})


main()
