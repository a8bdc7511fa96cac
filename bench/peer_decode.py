#!/usr/bin/env python3
"""Greedy decoding of one sequence on the CPU by PyTorch or llama.cpp, and the model for all: the other side of bench/cpu_peers.

    peer_decode.py make SHAPE DIR             random weights in bf16, a tokenizer of bytes, prompt.txt and prompt.json (needs torch)
    peer_decode.py torch DIR NEW THREADS DTYPE       transformers, sdpa, a dynamic cache (needs torch and transformers)
    peer_decode.py llama FILE NEW THREADS [plain]    a GGUF file, through llama-cpp-python; plain: its weights are not put into another order

torch and llama print one JSON line: prompt tokens/s, tokens/s of the steps behind the first token, and the tokens.
"""
import ctypes
import json
import random
import string
import sys
import time
from pathlib import Path

PROMPT = 32


def make(shape, where):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(1)
    none = {"bos_token_id": None, "eos_token_id": None}
    if shape == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**none)).to(torch.bfloat16)
    else:
        model = Qwen2ForCausalLM._from_config(
            Qwen2Config(vocab_size=151936, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                        intermediate_size=4864, tie_word_embeddings=True, max_position_embeddings=32768, **none), dtype=torch.bfloat16)
    model.save_pretrained(where)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(f"{where}/tokenizer.json")
    text = "".join(random.Random(1).choice(string.ascii_letters) for _ in range(PROMPT))
    Path(where, "prompt.txt").write_text(text + "\n")
    Path(where, "prompt.json").write_text(json.dumps(tokenizer.encode(text).ids))


def report(prompt, first, rest, tokens):
    print(json.dumps({"prefill": len(prompt) / first, "decode": (len(tokens) - 1) / rest, "tokens": tokens}))


def measure(prompt, n_new, forward):
    """forward(tokens) gives the most likely next token."""
    begin = time.perf_counter()
    tokens = [forward(prompt)]
    middle = time.perf_counter()
    while len(tokens) < n_new:
        tokens.append(forward(tokens[-1:]))
    report(prompt, middle - begin, time.perf_counter() - middle, tokens)


def by_torch(where, n_new, threads, dtype):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(where, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    prompt = json.loads(Path(where, "prompt.json").read_text())
    state = {"past": None}

    @torch.inference_mode()
    def forward(tokens):
        out = model(input_ids=torch.tensor([tokens]), past_key_values=state["past"], use_cache=True, logits_to_keep=1)
        state["past"] = out.past_key_values
        return int(out.logits[0, -1].argmax())

    forward(prompt[:2])
    state["past"] = None
    measure(prompt, n_new, forward)


def by_llama(file, n_new, threads, plain):
    import llama_cpp as L
    import numpy

    @L.llama_log_callback
    def quiet(level, text, data):
        pass

    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    kept = L.llama_model_default_params()
    kept.use_extra_bufts = kept.use_extra_bufts and not plain
    model = L.llama_model_load_from_file(file.encode(), kept)
    settings = L.llama_context_default_params()
    settings.n_ctx = settings.n_batch = 256
    settings.n_threads = settings.n_threads_batch = threads
    context = L.llama_init_from_model(model, settings)
    prompt = json.loads(Path(file).with_name("prompt.json").read_text())
    n_vocab = 50257 if "gpt2" in file else 151936  # the file has no tokenizer to ask

    def forward(tokens):
        array = (L.llama_token * len(tokens))(*tokens)  # the batch points into it
        if L.llama_decode(context, L.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama_decode failed")
        return int(numpy.ctypeslib.as_array(L.llama_get_logits_ith(context, -1), shape=(n_vocab,)).argmax())

    forward(prompt[:2])
    L.llama_memory_clear(L.llama_get_memory(context), True)
    measure(prompt, n_new, forward)


what, *rest = sys.argv[1:]
if what == "make":
    make(*rest)
elif what == "torch":
    by_torch(rest[0], int(rest[1]), int(rest[2]), rest[3])
elif what == "llama":
    by_llama(rest[0], int(rest[1]), int(rest[2]), "plain" in rest[3:])
else:
    sys.exit(__doc__)
