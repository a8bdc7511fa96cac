#!/usr/bin/env python3
"""Compares GGUF files that ralo writes with transformers, the gguf package and llama.cpp, on small random models of odd shapes.

    pip install torch transformers gguf llama-cpp-python     # made with torch 2.15.0, transformers 5.22.2, gguf 0.19.0,
    python tools/check_gguf.py --ralo build/ralo             #   llama-cpp-python 0.3.36
        [--tokenizers DIR] [--only NAME]

Models: every row of MODELS is written by transformers, exported in every format of its row, and
  - read back by gguf: every tensor expected and no other; f32, f16 and bf16 equal to the bit to what torch rounds to; q8_0 and
    q5_0 equal to the bit to gguf's own quantiser; of q4_k and q6_k the error of every block against that of ggml's own
    quantiser, as a ratio of root mean squares; of q8_0 and q4_k the types of all tensors equal to those that llama.cpp chooses
    when it quantises the file of f32 (Q8_0, Q4_K_M), and of q8_0 all bytes;
  - run by llama.cpp over one text of tokens: logits against those of transformers. Of quantised files transformers computes
    with the numbers that the file stands for, so that what is left is llama.cpp's rounding of activations to 8 bits.
BOUND has the bounds, relative to the largest logit. Exits 1 when something differs.

Tokenizers: with every DIR/NAME/tokenizer.json a small model is exported, and llama.cpp's ids of TEXTS are compared with those
of the tokenizers package."""
import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from tokenizers import Tokenizer
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GPT2Config, LlamaConfig, MistralConfig,
                          Olmo2Config, Phi3Config, Qwen2Config, Qwen3Config)

PLAIN = ["f32", "f16", "bf16"]
ALL = PLAIN + ["q8_0", "q4_k"]
# llama.cpp rounds activations to the type of the weights before it multiplies, with quantised weights to 8 bits: 16 times half a
# unit of that. Its GELU is a table of fp16 numbers. Attention is fp32 here, as its cache.
BOUND = dict(f32=2e-5, f16=16 / 2**11, bf16=16 / 2**8, q8_0=16 / 254, q4_k=16 / 254)
GELU_BOUND = 16 / 2**11
BLOCK_RMS = 1.05  # of our blocks of q4_k and q6_k over ggml's own

ODD = dict(vocab_size=101, hidden_size=40, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4,
           num_key_value_heads=2, max_position_embeddings=96)
WIDE = dict(vocab_size=203, hidden_size=256, intermediate_size=768, num_hidden_layers=9, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=96)
NARROW = {**WIDE, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}  # rows of 96 and 160: blocks of 32
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=48)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=24)
LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.2, 1.3, 1.4], long_factor=[1.1, 1.9, 3.3, 7.1, 9.9])
PARTLY = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75)
PHI4_MINI = dict({**ODD, "hidden_size": 32}, pad_token_id=None, tie_word_embeddings=True, max_position_embeddings=300,
                 rope_parameters={**PARTLY, "short_factor": [1.1, 1.7, 1.9], "long_factor": [1.3, 9.0, 11.5]})
LINEAR = dict(rope_type="linear", rope_theta=50000.0, factor=2.0)
GPT2_ODD = dict(vocab_size=97, n_embd=36, n_layer=3, n_head=3, n_inner=100, n_positions=64)
GPT2_WIDE = dict(vocab_size=97, n_embd=256, n_layer=3, n_head=4, n_inner=512, n_positions=64)
GEMMA = dict(head_dim=12, sliding_window=9, query_pre_attn_scalar=12, tie_word_embeddings=True)
MODELS = {
    "llama": (LlamaConfig, {**ODD, "head_dim": 6}, PLAIN),
    "llama_llama3": (LlamaConfig, {**ODD, "rope_parameters": LLAMA3, "tie_word_embeddings": True}, PLAIN),
    "llama_yarn": (LlamaConfig, {**ODD, "rope_parameters": YARN}, ["f32"]),
    "llama_linear": (LlamaConfig, {**ODD, "rope_parameters": LINEAR}, ["f32"]),
    "llama_wide": (LlamaConfig, WIDE, ALL),
    "llama_narrow": (LlamaConfig, {**NARROW, "tie_word_embeddings": True}, ALL),
    "mistral": (MistralConfig, {**ODD, "head_dim": 12, "sliding_window": 80}, PLAIN),
    "qwen2": (Qwen2Config, ODD, PLAIN),
    "qwen2_wide": (Qwen2Config, {**WIDE, "tie_word_embeddings": True}, ALL),
    "qwen3": (Qwen3Config, {**ODD, "head_dim": 14}, PLAIN),
    "qwen3_yarn": (Qwen3Config, {**ODD, "head_dim": 14, "rope_parameters": YARN}, ["f32"]),
    "qwen3_wide": (Qwen3Config, {**WIDE, "head_dim": 64}, ALL),
    "gpt2": (GPT2Config, GPT2_ODD, PLAIN),
    "gpt2_untied": (GPT2Config, {**GPT2_ODD, "tie_word_embeddings": False}, PLAIN),
    "gpt2_wide": (GPT2Config, GPT2_WIDE, ALL),
    "gpt2_narrow": (GPT2Config, {**GPT2_WIDE, "n_embd": 96, "n_inner": 160}, ALL),
    "phi3": (Phi3Config, {**ODD, "sliding_window": None, "pad_token_id": None}, PLAIN),
    "phi3_wide": (Phi3Config, {**WIDE, "sliding_window": None, "pad_token_id": None}, ALL),
    "phi3_long": (Phi3Config, {**ODD, "pad_token_id": None, "original_max_position_embeddings": 40, "rope_parameters": LONG}, PLAIN),
    "phi4_mini": (Phi3Config, {**PHI4_MINI, "original_max_position_embeddings": 280}, PLAIN),
    "phi4_mini_wide": (Phi3Config, {**PHI4_MINI, **WIDE, "original_max_position_embeddings": 48, "max_position_embeddings": 300,
                                    "rope_parameters": {**PARTLY, "short_factor": [1.1] * 24, "long_factor": [1.5, 3.5] * 12}}, ALL),
    "olmo2": (Olmo2Config, ODD, PLAIN),
    "olmo2_tied": (Olmo2Config, {**ODD, "tie_word_embeddings": True}, PLAIN),
    "olmo2_wide": (Olmo2Config, WIDE, ALL),
    "gemma2": (Gemma2Config, {**ODD, **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}, PLAIN),
    "gemma2_wide": (Gemma2Config, {**WIDE, **GEMMA, "head_dim": 64, "query_pre_attn_scalar": 64}, ALL),
    "gemma3": (Gemma3TextConfig, {**ODD, **GEMMA, "num_hidden_layers": 7, "sliding_window_pattern": 6}, PLAIN),
    "gemma3_wide": (Gemma3TextConfig, {**WIDE, **GEMMA, "head_dim": 64, "query_pre_attn_scalar": 64}, ALL),
}
TEXTS = ["Hello, world! It's 3 o'clock; we'll SEE (maybe).", "안녕하세요, 오늘은 2026년 11월 17일입니다. 가격은 12,345원이에요.",
         "1234567890 3.14159 0x1F 1e-9", "emoji 😀🎉👩‍👩‍👧 and ✅ done", "  two  spaces\n\n\nlines\tand\ttabs \n", "",
         "naïve façade — Zürich's “quotes”…", "日本語と中文混在 текст العربية", "def f(x):\n    return x**2  # code\n",
         "a<|endoftext|>b <s> c"]  # not </s>: llama.cpp takes it for an end in every vocabulary that holds such a token


def ralo(args, *words):
    run = subprocess.run([args.ralo, *words], capture_output=True, text=True)
    if run.returncode:
        sys.exit(" ".join(words) + ":\n" + run.stderr)
    return run.stderr


# ---- tensors: names and numbers by a second way, from the state dict of transformers

def interleave(w, heads):  # two halves of a head to pairs side by side
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)


NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "wte": "token_embd", "wpe": "position_embd",
         "ln_f": "output_norm", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "ln_1": "attn_norm", "ln_2": "ffn_norm",
         "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(kind, name):
    parts, suffix = name.rsplit(".", 1)
    parts = parts.removeprefix("model.").removeprefix("transformer.")
    if not parts.startswith(("layers.", "h.")):
        return f"{NAMES[parts]}.{suffix}"
    _, layer, rest = parts.split(".", 2)
    if rest == "post_attention_layernorm":
        rest = "post_attention_norm" if kind in ("olmo2", "gemma2", "gemma3_text") else "ffn_norm"
    return f"blk.{layer}.{NAMES.get(rest, rest)}.{suffix}"


def change(config, name, w, back=False):
    """A tensor of transformers as llama.cpp has it, or back."""
    kind = config.model_type
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return w.T.contiguous()
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return w - 1 if back else w + 1
    if kind in ("llama", "mistral") and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        if back:
            return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).transpose(1, 2).reshape(w.shape)
        return interleave(w, heads)
    return w


def expected(model):
    config, tensors = model.config, {}
    for name, w in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings and config.model_type != "olmo2":
            continue
        tensors[gguf_name(config.model_type, name)] = (name, change(config, name, w))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        dim = config.head_dim
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        tensors["rope_freqs.weight"] = (None, (plain / model.model.rotary_emb.inv_freq.double()).float())
    for kind in ("long", "short") if rope.get("rope_type") == "longrope" else ():
        tensors[f"rope_factors_{kind}.weight"] = (None, torch.tensor(rope[f"{kind}_factor"], dtype=torch.float32))
    return tensors


def ggml_rms(kind, w):
    lib = ctypes.CDLL("libggml-base.so")
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    w = np.ascontiguousarray(w, np.float32)
    out = np.zeros(gguf.quant_shape_to_byte_shape(w.shape, kind), np.uint8)
    lib.ggml_quantize_chunk(ctypes.c_int(int(kind)), w.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), out.ctypes.data_as(ctypes.c_void_p),
                            ctypes.c_int64(0), ctypes.c_int64(w.shape[0]), ctypes.c_int64(w.shape[1]), None)
    return np.sqrt(((gguf.dequantize(out, kind) - w) ** 2).mean())


def check_tensors(path, model, format, faults):
    found = {t.name: t for t in gguf.GGUFReader(path).tensors}
    want, ratios, types = expected(model), [], {}
    if sorted(found) != sorted(want):
        faults.append(f"tensors {sorted(set(found) ^ set(want))}")
        return {}, "", 0
    numbers = {}
    for name, (source, w) in want.items():
        t, w = found[name], w.float().numpy()
        types[t.tensor_type.name] = types.get(t.tensor_type.name, 0) + 1
        if list(t.shape) != list(w.shape[::-1]):
            faults.append(f"{name}: shape {list(t.shape)}, expected {list(w.shape[::-1])}")
            continue
        got = gguf.dequantize(t.data, t.tensor_type).reshape(w.shape)
        if source is None:  # made anew by both, from the same formula
            if np.abs(got / w - 1).max() > 1e-6:
                faults.append(f"{name}: other numbers")
            continue
        if t.tensor_type in (Q.Q4_K, Q.Q6_K):
            ratios.append(np.sqrt(((got - w) ** 2).mean()) / ggml_rms(t.tensor_type, w))
        else:
            right = gguf.quantize(w, t.tensor_type) if t.tensor_type != Q.BF16 else \
                torch.from_numpy(w).bfloat16().view(torch.int16).numpy()
            if np.ascontiguousarray(t.data).tobytes() != np.ascontiguousarray(right).tobytes():
                faults.append(f"{name}: {t.tensor_type.name} differs")
        if w.ndim == 1 and t.tensor_type != Q.F32:
            faults.append(f"{name}: a vector of {t.tensor_type.name}")
        numbers[source] = change(model.config, source, torch.from_numpy(np.array(got)), back=True)
    worst = max(ratios, default=0)
    if worst > BLOCK_RMS:
        faults.append(f"blocks have {worst:.3f} times the error of ggml's")
    return numbers, " ".join(f"{n} {k}" for k, n in sorted(types.items())), worst


def check_types(path, source, format, faults):
    """What llama.cpp makes of the file of f32."""
    theirs = path.with_suffix(".theirs")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = {"q8_0": 7, "q4_k": 15}[format], 1
    if llama_cpp.llama_model_quantize(str(source).encode(), str(theirs).encode(), ctypes.byref(options)):
        faults.append("llama.cpp cannot quantise the file of f32")
        return
    ours = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for t in gguf.GGUFReader(theirs).tensors:
        mine = ours[t.name]
        if mine.tensor_type != t.tensor_type:
            faults.append(f"{t.name}: {mine.tensor_type.name}, llama.cpp chooses {t.tensor_type.name}")
        elif t.tensor_type in (Q.F32, Q.Q8_0) and mine.data.tobytes() != t.data.tobytes():
            faults.append(f"{t.name}: other bytes than llama.cpp's")


# ---- logits

def llama(path, **options):
    return llama_cpp.Llama(model_path=str(path), verbose=False, n_threads=1, **options)


def check_logits(path, model, numbers, format, faults):
    tokens = torch.randint(0, model.config.vocab_size, (1, 60), generator=torch.Generator().manual_seed(5))
    llm = llama(path, logits_all=True, n_ctx=256, n_batch=64, type_k=0, type_v=0, flash_attn=False)
    llm.eval(tokens[0].tolist())
    ours = np.array(llm.scores[:60, :model.config.vocab_size])
    llm.close()
    with torch.no_grad():
        plain = model(tokens).logits[0].numpy()
        state = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict({**state, **numbers}, strict=True)
        stored = model(tokens).logits[0].numpy()
        model.load_state_dict(state)
    largest = np.abs(plain).max()
    left, lost = np.abs(ours - stored).max() / largest, np.abs(ours - plain).max() / largest
    gelu = model.config.model_type.startswith(("gpt2", "gemma"))
    if not left <= max(BOUND[format], GELU_BOUND if gelu else 0):
        faults.append(f"logits differ by {left:.1e} of the largest")
    same = (ours.argmax(1) == plain.argmax(1)).mean()
    return f"logits {left:.1e} from the file's numbers, {lost:.1e} from the model's, {same:4.0%} of argmax equal"


def check_model(args, name, folder):
    kind, settings, formats = MODELS[name]
    torch.manual_seed(7)
    config = kind(**settings, bos_token_id=None, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for k, p in model.named_parameters():
        with torch.no_grad():
            if p.dim() >= 2:
                p.normal_(0.0, 0.7 / p.shape[-1] ** 0.5 if "embed" not in k and "wte" not in k else 0.3)
            else:
                p.normal_(0.0 if k.endswith("bias") or config.model_type.startswith("gemma") else 1.0, 0.2)
    model.save_pretrained(folder / "hf")
    good = True
    for format in formats:
        faults, path = [], folder / f"{format}.gguf"
        ralo(args, "export", str(folder / "hf"), str(path), "--gguf", format, "--tokenizer", "none")
        numbers, types, worst = check_tensors(path, model, format, faults)
        if format in ("q8_0", "q4_k"):
            check_types(path, folder / "f32.gguf", format, faults)
        logits = check_logits(path, model, numbers, format, faults) if numbers else ""
        blocks = f", blocks {worst:.3f} of ggml's error" if worst else ""
        print(f"{name:13} {format:5} {'; '.join(faults) or 'equal'}: {types}{blocks}; {logits}", flush=True)
        good &= not faults
    return good


# ---- tokenizers

def check_tokenizer(args, source, folder):
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    kind = Qwen3Config if "qwen" in source.name else GPT2Config if "gpt2" in source.name else LlamaConfig
    vocab = tokenizer.get_vocab_size() + 3  # rows without a token
    small = {**ODD, "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": vocab, "tie_word_embeddings": True}
    if kind is GPT2Config:
        small = dict(vocab_size=vocab, n_embd=32, n_layer=1, n_head=2, n_positions=512)
    model = AutoModelForCausalLM.from_config(kind(**small, bos_token_id=None, eos_token_id=None))
    model.save_pretrained(folder / "hf")
    ralo(args, "export", str(folder / "hf"), str(folder / "t.gguf"), "--tokenizer", str(source))
    llm = llama(folder / "t.gguf", vocab_only=True)
    reader = gguf.GGUFReader(folder / "t.gguf")
    wrong = []
    for text in TEXTS:
        theirs = tokenizer.encode(text).ids
        ours = llm.tokenize(text.encode(), add_bos=True, special=True)
        if ours != theirs:
            wrong.append(f"{text!r}: llama.cpp {ours}, tokenizers {theirs}")
    field = lambda key: reader.fields[key].contents() if key in reader.fields else None
    print(f"{source.name:13} {len(TEXTS) - len(wrong)} of {len(TEXTS)} texts equal; model {field('tokenizer.ggml.model')}, pre "
          f"{field('tokenizer.ggml.pre')}, bos {field('tokenizer.ggml.bos_token_id')} (added: "
          f"{field('tokenizer.ggml.add_bos_token')}), eos {field('tokenizer.ggml.eos_token_id')}, template "
          f"{len(field('tokenizer.chat_template') or '')} characters, {len(field('tokenizer.ggml.tokens'))} tokens", flush=True)
    for line in wrong:
        print("   ", line)
    return not wrong


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ralo", default="build/ralo")
    options.add_argument("--tokenizers", type=Path)
    options.add_argument("--only")
    args = options.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    good = True
    for name in MODELS:
        if not args.only or args.only == name:
            with tempfile.TemporaryDirectory() as folder:
                good &= check_model(args, name, Path(folder))
    for source in sorted(args.tokenizers.iterdir()) if args.tokenizers else []:
        if not args.only or args.only == source.name:
            with tempfile.TemporaryDirectory() as folder:
                good &= check_tokenizer(args, source, Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
