#!/usr/bin/env python3
"""Makes the adapters of tests/weights/test_adapter.c and tests/train/test_lora_run.c with PEFT itself: tests/fixtures/lora/.

    pip install torch transformers peft     # made with torch 2.15.0, transformers 5.22.2, peft 0.21.2
    python tools/make_lora_fixtures.py tests/fixtures build/tests/test_lora_run

Only needed to make the files anew; the tests read the committed ones.

lora/<name>/ is an adapter over tests/fixtures/hf/<name>, with B different from zero, as PEFT saves it, and
reference.safetensors: tokens (B, T) int32, logits (B, T, V) fp32 of base and adapter as PEFT loads them from disk.

lora/train_<family>/ is a base, an adapter to begin with (adapter/), and reference.safetensors: what 20 steps of torch's
AdamW over PEFT make of it: losses (20) and the adapter after them. The rows of the steps are ralo's own, of
lora/text.txt: the test program prints them (test_lora_run rows DIR OUT).
"""
import random
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

B, T, STEPS = 2, 14, 20
ADAPTERS = {
    "qwen3_tied_with_head": (dict(r=4, lora_alpha=8, target_modules="all-linear"), torch.float32),
    "llama_sharded": (dict(r=3, lora_alpha=6, target_modules=["v_proj", "q_proj", "down_proj"], use_rslora=True),
                      torch.bfloat16),
    "gpt2_tied": (dict(r=2, lora_alpha=5, target_modules=["c_attn", "mlp.c_proj"], lora_dropout=0.1, fan_in_fan_out=True),
                  torch.float32),
}
SMALL = dict(vocab_size=260, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
             rope_parameters=dict(rope_theta=10000.0, rope_type="default"), bos_token_id=256, eos_token_id=257)
TRAINED = {
    "train_qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=8), dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "train_llama": (LlamaForCausalLM, LlamaConfig(**SMALL), dict(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj"],
                                                                use_rslora=True)),
}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def random_adapter(base, options):
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options))
    for name, p in model.named_parameters():
        if "lora_" in name:
            with torch.no_grad():
                p.normal_(0.0, 0.3)
    return model


def save_adapter(model, folder, base, dtype=torch.float32):
    shutil.rmtree(folder, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_model.safetensors"
    save_file({k: v.to(dtype) for k, v in load_file(path).items()}, path, metadata={"format": "pt"})


def make_adapter(root, name, options, dtype):
    base, folder = root / "hf" / name, root / "lora" / name
    save_adapter(random_adapter(load(base), options), folder, f"tests/fixtures/hf/{name}", dtype)
    model = PeftModel.from_pretrained(load(base), folder).eval()
    tokens = torch.randint(0, model.config.vocab_size, (B, T))
    with torch.no_grad():
        logits = model(tokens).logits
    save_file({"tokens": tokens.to(torch.int32), "logits": logits.float().contiguous()}, folder / "reference.safetensors")
    print(f"{name}: {sum(p.numel() for n, p in model.named_parameters() if 'lora_' in n)} parameters of adapters")


def make_trained(root, name, kind, config, options, program):
    folder = root / "lora" / name
    shutil.rmtree(folder, ignore_errors=True)
    model = kind(config)
    for n, p in model.named_parameters():
        with torch.no_grad():
            p.normal_(1.0, 0.2) if p.dim() == 1 else p.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    model = get_peft_model(load(folder), LoraConfig(task_type="CAUSAL_LM", **options))
    save_adapter(model, folder / "adapter", f"tests/fixtures/lora/{name}")
    rows = folder / "rows.safetensors"
    subprocess.run([program, "rows", folder, rows], check=True)
    data = load_file(rows)
    rows.unlink()
    assert (data["doc_start"] == 0).all() and (data["targets"] >= 0).all()
    trained = [p for n, p in model.named_parameters() if "lora_" in n]
    adam = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    losses = []
    for tokens, targets in zip(data["tokens"].long(), data["targets"].long()):
        logits = model(tokens).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adam.step()
        losses.append(loss.item())
    end = {n.replace(".default", ""): p.detach().contiguous() for n, p in model.named_parameters() if "lora_" in n}
    save_file({"losses": torch.tensor(losses), "tokens": data["tokens"], **end}, folder / "reference.safetensors")
    print(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}")


def make_text(path):
    rng = random.Random(1)
    words = "the cat sat on a mat and saw two birds that sang of rain in may".split()
    path.write_text(" ".join(rng.choice(words) for _ in range(700)) + "\n")


def main():
    root, program = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    (root / "lora").mkdir(exist_ok=True)
    torch.manual_seed(1)
    make_text(root / "lora" / "text.txt")
    for name, (options, dtype) in ADAPTERS.items():
        make_adapter(root, name, options, dtype)
    for name, (kind, config, options) in TRAINED.items():
        make_trained(root, name, kind, config, options, program)


main()
