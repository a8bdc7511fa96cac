#!/usr/bin/env python3
"""torch_lora.py - LoRA with PEFT and torch.compile on a GPU: tokens/s and peak memory, for a table beside ralo's.

    python3 bench/torch_lora.py --shape 7b --rows 4 --seq 2048

Random weights in the shape of Qwen2.5, bf16, rank 16 on all linear layers, AdamW (fused), clipping at 1: the step of
    ralo train --preset qwen2.5-7b --set model.lora.rank=16 --set precision=bf16 --set data.source=builtin:random
        --set data.seq_len=2048 --set train.micro_batch=4
--compile layers compiles the decoder layers, which share one compiled graph, and the loss; --compile model is one torch.compile of everything,
which takes 100 s to start and was slower (7B, 4 x 2048 on an H200: 468 ms a step by layers, 532 ms as a whole). The line says how long the first steps took and how many graphs there were. Needs torch, transformers and peft."""
import argparse, time

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

SHAPES = {
    "tiny": dict(hidden_size=64, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128),
    "7b": dict(hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944),
    "14b": dict(hidden_size=5120, num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8, intermediate_size=13824),
}


def build(o):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(o.device):
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPES[o.shape], vocab_size=o.vocab, tie_word_embeddings=False,
                                             max_position_embeddings=32768, attn_implementation="sdpa"))
    torch.set_default_dtype(torch.float32)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    if o.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train()


def compiled(model, how):
    """The model to call. Layers are compiled in place; more graphs than layers would mean that some run uncompiled."""
    if how == "model":
        return torch.compile(model)
    if how == "layers":
        torch._dynamo.config.recompile_limit = torch._dynamo.config.cache_size_limit = 64
        base = model.get_base_model()
        for layer in base.model.layers:
            layer.compile()
        base.loss_function = torch.compile(base.loss_function)
    return model


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--shape", choices=SHAPES, default="7b")
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--seq", type=int, default=2048)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--compile", choices=["none", "layers", "model"], default="layers")
    p.add_argument("--vocab", type=int, default=152064)
    p.add_argument("--device", default="cuda")
    p.add_argument("--checkpoint", type=int, default=0, help="1: recompute every layer")
    o = p.parse_args()
    model = build(o)
    trained = [q for q in model.parameters() if q.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)
    forward = compiled(model, o.compile)
    x = torch.randint(0, o.vocab, (o.rows, o.seq), device=o.device)
    on_gpu = o.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None

    def step():
        with torch.autocast(o.device, torch.bfloat16):
            loss = forward(input_ids=x, labels=x, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    begin = time.time()
    for _ in range(3):
        step()
    wait()
    starting = time.time() - begin
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begin = time.time()
    for _ in range(o.steps):
        step()
    wait()
    seconds = (time.time() - begin) / o.steps
    print(f"peft {o.shape} {o.rows} x {o.seq}, compiled: {o.compile}{', recompute' if o.checkpoint else ''}: "
          f"{o.rows * o.seq / seconds:.0f} tokens/s, step {seconds * 1e3:.1f} ms, peak allocated "
          f"{torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0:.1f} GiB, reserved "
          f"{torch.cuda.max_memory_reserved() / 2**30 if on_gpu else 0:.1f} GiB; first 3 steps {starting:.1f} s, "
          f"{torch._dynamo.utils.counters['stats']['unique_graphs']} graphs")


main()
