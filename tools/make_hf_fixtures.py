#!/usr/bin/env python3
"""Makes the Hugging Face directories of tests/weights/test_hf.c: tests/fixtures/hf/<name>/, each with reference.safetensors.

    pip install torch transformers safetensors     # made with torch 2.15.0, transformers 5.22.2, safetensors 0.8.0
    python tools/make_hf_fixtures.py tests/fixtures/hf

Only needed to make the files anew; the tests read the committed ones. Models are tiny and random, norms and biases
too. Together the directories show every form in circulation that ralo reads: both spellings of config.json, one file
and shards, fp32, bf16 and fp16, tied and untied, a tied head that is stored all the same, and the published GPT-2 (no
"transformer." in the names, mask buffers, data at an odd offset).

reference.safetensors holds tokens (B, T) int32 and logits (B, T, V) fp32. The logits are those of the directory as
transformers loads it from disk, in fp32 with eager attention, so they also prove that transformers reads it alike.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

B, T = 2, 14
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
SMALL = dict(vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128)

# name: (model class, config, how it is stored)
MODELS = {
    "gpt2_tied": (GPT2LMHeadModel, GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=4,
                                              bos_token_id=0, eos_token_id=0), dict()),
    "gpt2_untied": (GPT2LMHeadModel, GPT2Config(vocab_size=61, n_positions=24, n_embd=12, n_layer=2, n_head=2, n_inner=40,
                                                activation_function="gelu_pytorch_tanh", tie_word_embeddings=False,
                                                bos_token_id=0, eos_token_id=0), dict()),
    "gpt2_published": (GPT2LMHeadModel, GPT2Config(vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2,
                                                   bos_token_id=0, eos_token_id=0), dict(published=True)),
    "llama_old_fp16": (LlamaForCausalLM, LlamaConfig(**SMALL, rms_norm_eps=1e-5, rope_parameters=dict(
        rope_theta=500000.0, **LLAMA3)), dict(old=True, dtype=torch.float16)),
    "llama_sharded": (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=True, rope_parameters=dict(
        rope_theta=10000.0, rope_type="linear", factor=4.0)), dict(shards="6KB")),
    "qwen2_old": (Qwen2ForCausalLM, Qwen2Config(**SMALL, tie_word_embeddings=True, rope_parameters=dict(
        rope_theta=1000000.0, rope_type="default")), dict(old=True)),
    "qwen2_bf16": (Qwen2ForCausalLM, Qwen2Config(**SMALL, rope_parameters=dict(
        rope_theta=10000.0, rope_type="default")), dict(dtype=torch.bfloat16)),
    "qwen3_tied_with_head": (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True,
                                                           rope_parameters=dict(rope_theta=10000.0, rope_type="default")),
                             dict(head=True)),
    "qwen3_bf16_sharded": (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=6, rope_parameters=dict(
        rope_theta=1000000.0, rope_type="default")), dict(dtype=torch.bfloat16, shards="4KB")),
}


def randomize(model):
    for name, p in model.named_parameters():
        with torch.no_grad():
            if p.dim() >= 2:
                p.normal_(0.0, 0.3)
            elif name.endswith("bias"):
                p.normal_(0.0, 0.1)
            else:
                p.normal_(1.0, 0.2)


def spell_old(folder):
    """config.json as transformers 4 wrote it."""
    path = folder / "config.json"
    c = json.loads(path.read_text())
    rope = c.pop("rope_parameters")
    c["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    c["rope_scaling"] = None if kind == "default" else {"type": kind, "rope_type": kind, **rope}
    c["torch_dtype"] = c.pop("dtype")
    for key in ("layer_types", "head_dim"):
        c.pop(key, None)
    c["transformers_version"] = "4.40.0"
    path.write_text(json.dumps(c, indent=2) + "\n")


def publish(folder, config):
    """The names, extra buffers and unaligned data of the published GPT-2."""
    path = folder / "model.safetensors"
    tensors = {n.removeprefix("transformer."): x for n, x in load_file(path).items()}
    for layer in range(config.n_layer):
        mask = torch.tril(torch.ones(config.n_positions, config.n_positions))
        tensors[f"h.{layer}.attn.bias"] = mask[None, None]
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in tensors.items():
        raw = x.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 2)  # an odd length, as theirs
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main(root):
    torch.set_num_threads(1)
    for index, (name, (kind, config, how)) in enumerate(MODELS.items()):
        torch.manual_seed(2000 + index)
        folder = Path(root) / name
        shutil.rmtree(folder, ignore_errors=True)
        model = kind(config)
        randomize(model)
        model.to(how.get("dtype", torch.float32)).save_pretrained(folder, max_shard_size=how.get("shards", "5GB"))
        if how.get("old"):
            spell_old(folder)
        if how.get("published"):
            publish(folder, config)
        if how.get("head"):
            path = folder / "model.safetensors"
            tensors = load_file(path)
            save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path, {"format": "pt"})
        read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokens = torch.randint(0, config.vocab_size, (B, T))
        with torch.no_grad():
            logits = read(input_ids=tokens, use_cache=False).logits
        save_file({"tokens": tokens.int(), "logits": logits.contiguous()}, folder / "reference.safetensors")
        for path in folder.iterdir():
            path.chmod(0o644)
        size = sum(p.stat().st_size for p in folder.iterdir())
        print(f"{folder}: {size} bytes, {len(list(folder.glob('*.safetensors')))} files, largest logit {logits.abs().max():.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
