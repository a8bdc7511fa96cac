#!/usr/bin/env python3
"""torch_lora.py - LoRA with PEFT and torch.compile on a GPU: tokens/s and peak memory, for a table beside ralo's.

    python3 bench/torch_lora.py --shape 7b --rows 4 --seq 2048

Random weights in the shape of Qwen2.5, bf16, rank 16 on all linear layers, AdamW (fused), clipping at 1: the step of
    ralo train --preset qwen2.5-7b --set model.lora.rank=16 --set precision=bf16 --set data.source=builtin:random
        --set data.seq_len=2048 --set train.micro_batch=4
Needs torch, transformers and peft."""
import argparse, time

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

SHAPES = {
    "7b": dict(hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944),
    "14b": dict(hidden_size=5120, num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8, intermediate_size=13824),
}
VOCAB = 152064


def build(o):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPES[o.shape], vocab_size=VOCAB, tie_word_embeddings=False,
                                             max_position_embeddings=32768, attn_implementation="sdpa"))
    torch.set_default_dtype(torch.float32)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    if o.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--shape", choices=SHAPES, default="7b")
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--seq", type=int, default=2048)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--compile", type=int, default=1)
    p.add_argument("--checkpoint", type=int, default=0, help="1: recompute every layer")
    o = p.parse_args()
    model = build(o)
    trained = [q for q in model.parameters() if q.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)
    forward = torch.compile(model) if o.compile else model
    x = torch.randint(0, VOCAB, (o.rows, o.seq), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(input_ids=x, labels=x, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.time()
    for _ in range(o.steps):
        step()
    torch.cuda.synchronize()
    seconds = (time.time() - begin) / o.steps
    print(f"peft {o.shape} {o.rows} x {o.seq}{', compiled' if o.compile else ''}{', recompute' if o.checkpoint else ''}: "
          f"{o.rows * o.seq / seconds:.0f} tokens/s, step {seconds * 1e3:.1f} ms, peak allocated "
          f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, reserved {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB")


main()
