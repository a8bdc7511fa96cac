#!/usr/bin/env python3
"""Makes the PyTorch reference numbers of the family tests: tests/fixtures/<name>.safetensors, one file per model.

    pip install torch transformers safetensors     # made with torch 2.15.0, transformers 5.22.2, safetensors 0.8.0
    python tools/make_family_fixtures.py tests/fixtures [NAME...]     # all models, or those named

Only needed to make the files anew; the tests read the committed ones. Every number comes from the model classes of
transformers with eager attention on the CPU, nothing is computed by a second implementation of the models.

A file holds, with (B, T) = rows and positions:
    w/<name>          parameters under their Hugging Face names and in their file layout (GPT-2's Conv1D is
                      (in, out)); a tied model has no lm_head.weight
    tokens            (B, T) int32
    targets           (B, T) int32, -1 where the token is not trained on
    doc               (B, T) int32, position in the row at which the token's document starts; positions count from
                      there and attention is causal inside the document. Row 0: four documents, one of them a single
                      token; row 1: two; row 2: one
    logits            (B, T, V) fp32
    losses            (B, T) fp32 cross-entropy, 0 where the target is -1
    losses_bf16       the same, of the model with parameters and activations in bf16
    g/<name>          gradient of the mean of `losses` over the targets that are not -1
    loss_steps        (20) the loss before each of 20 AdamW steps on this batch: lr 1e-3, betas (0.9, 0.95), eps 1e-8,
                      weight decay 0.1 on tensors of two dimensions and none on the others, gradient scaled by
                      min(1, 1 / (norm + 1e-6))
    norm_steps        (20) the gradient's global norm before that scaling
    w20/<name>        parameters after the 20 steps, without the tensors of which fp32 says nothing: a bias of
                      attention keys adds the same number to all scores of a query (exactly so in GPT-2, nearly so
                      where rotary frequencies are slow), its gradient is rounding noise, and AdamW makes full-sized
                      steps of noise. Left out where fp32 and fp64 differ by more than 1e-5

__metadata__ has one entry, "config": a JSON object with the sizes of the model, rope_scaling (type default or llama3),
"versions", and "error": the largest absolute difference between these fp32 numbers and the same model in fp64, for
logits, losses, gradients (relative to the largest element of their tensor), loss_steps and w20; and of losses_bf16
from losses, largest and mean. A test's tolerance is a multiple of these. The families of CONFIGS have their config.json
under "hf" instead of the sizes, and neither losses_bf16 nor w20.
"""
import copy
import json
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config,
                          Olmo2ForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

B, T, STEPS = 3, 24, 20
DOCUMENTS = [[5, 1, 10, 8], [9, 15], [24]]  # lengths in each row
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

LLAMA3 = dict(type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=64)
# head_dim 16 and theta 10000 give wavelengths 6, 20, 63, 199 ...: kept, blended, blended, stretched.
MODELS = {
    "gpt2_tied": dict(family="gpt2", vocab=96, hidden=32, layers=2, heads=4, kv_heads=4, head_dim=8, ffn=96,
                      max_positions=32, norm_eps=1e-5, tied=True),
    "gpt2_untied": dict(family="gpt2", vocab=97, hidden=32, layers=2, heads=2, kv_heads=2, head_dim=16, ffn=80,
                        max_positions=24, norm_eps=1e-5, tied=False),
    "llama_untied_gqa": dict(family="llama", vocab=96, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=64,
                             max_positions=128, norm_eps=1e-5, tied=False, rope_theta=10000.0),
    "llama_tied_rope3": dict(family="llama", vocab=100, hidden=32, layers=3, heads=2, kv_heads=1, head_dim=16, ffn=56,
                             max_positions=512, norm_eps=1e-5, tied=True, rope_theta=10000.0, rope_scaling=LLAMA3),
    "qwen2_tied_gqa": dict(family="qwen2", vocab=104, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, ffn=48,
                           max_positions=128, norm_eps=1e-6, tied=True, rope_theta=1000000.0),
    "qwen2_untied": dict(family="qwen2", vocab=96, hidden=32, layers=2, heads=4, kv_heads=1, head_dim=8, ffn=72,
                         max_positions=128, norm_eps=1e-6, tied=False, rope_theta=10000.0),
    "qwen3_tied_gqa": dict(family="qwen3", vocab=96, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=48,
                           max_positions=128, norm_eps=1e-6, tied=True, rope_theta=1000000.0),
    "qwen3_untied": dict(family="qwen3", vocab=100, hidden=40, layers=2, heads=4, kv_heads=4, head_dim=8, ffn=44,
                         max_positions=128, norm_eps=1e-6, tied=False, rope_theta=10000.0),
}
SMALL = dict(vocab_size=50, hidden_size=24, intermediate_size=36, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, pad_token_id=None)  # a pad token would get no gradient
# Families with a config.json in their fixture: class of the configuration, of the model, and what differs from SMALL.
# Windows of 6 and 7 are shorter than the rows and most documents.
CONFIGS = {
    "mistral_window": (MistralConfig, MistralForCausalLM, dict(head_dim=10, sliding_window=6)),
    "qwen2_window": (Qwen2Config, Qwen2ForCausalLM, dict(use_sliding_window=True, sliding_window=7, max_window_layers=1)),
    "phi3": (Phi3Config, Phi3ForCausalLM, dict(sliding_window=7)),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, dict(rope_parameters=dict(rope_type="default", rope_theta=500000.0))),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, dict(head_dim=10, sliding_window=6, query_pre_attn_scalar=7,
                                                     attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, dict(head_dim=10, sliding_window=5, query_pre_attn_scalar=12,
                                                         num_hidden_layers=4, sliding_window_pattern=3,
                                                         tie_word_embeddings=True)),
    "llama_yarn": (LlamaConfig, LlamaForCausalLM, dict(tie_word_embeddings=True, num_hidden_layers=2, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32, beta_fast=4.0))),
    # Rows of 24 are longer than the original positions: the long factors. Then shorter ones, and 4 of 6 dimensions turn.
    "phi3_long": (Phi3Config, Phi3ForCausalLM, dict(num_hidden_layers=2, original_max_position_embeddings=16, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.25, 1.5], long_factor=[1.1, 2.3, 5.7]))),
    "phi4_mini": (Phi3Config, Phi3ForCausalLM, dict(
        num_hidden_layers=2, tie_word_embeddings=True, original_max_position_embeddings=64, rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, short_factor=[1.1, 1.7],
            long_factor=[1.3, 9.0]))),
    "llama_longrope": (LlamaConfig, LlamaForCausalLM, dict(tie_word_embeddings=True, num_hidden_layers=2, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, factor=2.5, original_max_position_embeddings=17,
        short_factor=[1.0, 1.25, 1.5], long_factor=[1.1, 2.3, 5.7]))),
}
ROW_SEED = {name: 1000 + i for i, name in enumerate(MODELS)} | {name: 1100 + i for i, name in enumerate(CONFIGS)}


def randomize(model):
    for name, p in model.named_parameters():
        with torch.no_grad():
            if p.dim() >= 2:
                p.normal_(0.0, 0.2)
            elif name.endswith("bias"):
                p.normal_(0.0, 0.1)
            else:  # Gemma adds 1 to its gains
                p.normal_(0.0 if model.config.model_type.startswith("gemma") else 1.0, 0.2)


def build_from_config(name):
    kind, make, differs = CONFIGS[name]
    config = kind(**{**SMALL, **differs})
    config._attn_implementation = "eager"
    model = make(config).float().train()
    randomize(model)
    return model


def build(c):
    """The transformers model of one row, in fp32, with every parameter random: norms and biases too."""
    if c["family"] == "gpt2":
        config = GPT2Config(vocab_size=c["vocab"], n_positions=c["max_positions"], n_embd=c["hidden"],
                            n_layer=c["layers"], n_head=c["heads"], n_inner=c["ffn"], resid_pdrop=0.0, embd_pdrop=0.0,
                            attn_pdrop=0.0, layer_norm_epsilon=c["norm_eps"], tie_word_embeddings=c["tied"],
                            bos_token_id=0, eos_token_id=0)
        make = GPT2LMHeadModel
    else:
        scaling = c.get("rope_scaling")
        rope = dict(rope_type="default", rope_theta=c["rope_theta"])
        if scaling:
            rope = dict(rope_type=scaling["type"], rope_theta=c["rope_theta"], factor=scaling["factor"],
                        low_freq_factor=scaling["low_freq_factor"], high_freq_factor=scaling["high_freq_factor"],
                        original_max_position_embeddings=scaling["original_max_positions"])
        kind, make = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
                      "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[c["family"]]
        extra = {} if c["family"] == "qwen2" else dict(head_dim=c["head_dim"], attention_bias=False)
        config = kind(vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["ffn"],
                      num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
                      num_key_value_heads=c["kv_heads"], max_position_embeddings=c["max_positions"],
                      rms_norm_eps=c["norm_eps"], tie_word_embeddings=c["tied"], rope_parameters=rope,
                      attention_dropout=0.0, **extra)
    config._attn_implementation = "eager"
    model = make(config).float().train()
    randomize(model)
    names = [n for n, _ in model.named_parameters()]
    assert ("lm_head.weight" in names) == (not c["tied"])
    return model


def batch(c):
    tokens = torch.randint(0, c["vocab"], (B, T))
    targets = torch.full((B, T), -1)
    doc = torch.empty((B, T), dtype=torch.long)
    for row, lengths in enumerate(DOCUMENTS):
        start = 0
        for n in lengths:
            doc[row, start:start + n] = start
            targets[row, start:start + n - 1] = tokens[row, start + 1:start + n]
            start += n
        assert start == T
    targets[torch.rand(B, T) < 0.2] = -1
    return tokens, targets, doc


def forward(model, tokens, doc):
    """Logits of packed rows: positions count from each document's start, the mask is causal inside documents."""
    dtype = next(model.parameters()).dtype
    at = torch.arange(T)
    seen = (at[None, None, :] <= at[None, :, None]) & (doc[:, :, None] == doc[:, None, :])  # (B, query, key)
    near = seen & (at[None, None, :] > at[None, :, None] - (getattr(model.config, "sliding_window", None) or T))
    mask, near = (torch.zeros((B, 1, T, T), dtype=dtype).masked_fill(~m[:, None], torch.finfo(dtype).min)
                  for m in (seen, near))
    if getattr(model.config, "layer_types", None):
        mask = {"full_attention": mask, "sliding_attention": near}
    elif getattr(model.config, "sliding_window", None):
        mask = near
    return model(input_ids=tokens, position_ids=at[None] - doc, attention_mask=mask, use_cache=False).logits


def check_packing(model, tokens, doc, logits):
    """The packed logits are those of every document alone: the mask and the positions really did what they should. Alone, a
    document of up to the original positions has the short factors of longrope, where longer rows have the long ones."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings", T) if rope.get("rope_type") == "longrope" else T
    for row, lengths in enumerate(DOCUMENTS):
        start = 0
        for n in lengths:
            if original < T and n <= original:
                start += n
                continue
            alone = model(input_ids=tokens[row:row + 1, start:start + n], use_cache=False).logits[0]
            assert torch.allclose(alone, logits[row, start:start + n], rtol=1e-4, atol=1e-4)
            start += n


def losses_of(logits, targets):
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(wide.reshape(B * T, -1), targets.reshape(-1), ignore_index=-1,
                                             reduction="none").reshape(B, T)


def train(model, tokens, targets, doc):
    n_valid = (targets >= 0).sum()
    groups = [dict(params=[p for p in model.parameters() if p.dim() >= 2], weight_decay=DECAY),
              dict(params=[p for p in model.parameters() if p.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = losses_of(forward(model, tokens, doc), targets).sum() / n_valid
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad.mul_(min(1.0, CLIP / (norm.item() + 1e-6)))
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)


def reference(model, tokens, targets, doc):
    """Everything a file holds besides inputs and bf16, in the precision of the model, which is trained on the way."""
    out = {}
    model.zero_grad()
    logits = forward(model, tokens, doc)
    losses = losses_of(logits, targets)
    (losses.sum() / (targets >= 0).sum()).backward()
    check_packing(model, tokens, doc, logits)
    out["logits"], out["losses"] = logits.detach(), losses.detach()
    for name, p in model.named_parameters():
        out["g/" + name] = p.grad.detach().clone()
    out["loss_steps"], out["norm_steps"] = train(model, tokens, targets, doc)
    for name, p in model.named_parameters():
        out["w20/" + name] = p.detach().clone()
    return out


def cast(model, dtype):
    """A copy in another precision. The rotary frequencies are numbers of the formula, not weights: rounding them, as
    Module.to does with buffers, would measure an accident of the cast."""
    other = copy.deepcopy(model).to(dtype)
    for mine, theirs in zip(model.modules(), other.modules()):
        for name, buffer in mine.named_buffers(recurse=False):
            if buffer.is_floating_point() and dtype != torch.float64:
                setattr(theirs, name, buffer.clone())
    return other


def errors(single, double):
    def largest(prefix, relative=False):
        worst = 0.0
        for name, x in single.items():
            if not name.startswith(prefix):
                continue
            difference = (x.double() - double[name]).abs().max().item()
            worst = max(worst, difference / double[name].abs().max().item() if relative else difference)
        return worst

    return {"logits": largest("logits"), "losses": largest("losses"), "grads_relative": largest("g/", True),
            "loss_steps": largest("loss_steps"), "w20": largest("w20/")}


def main(folder, wanted):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__}
    for name in wanted or ROW_SEED:
        torch.manual_seed(ROW_SEED[name])
        model = build_from_config(name) if name in CONFIGS else build(MODELS[name])
        c = MODELS.get(name) or dict(vocab=SMALL["vocab_size"], hf=model.config.to_dict())
        tokens, targets, doc = batch(c)
        content = {"w/" + n: p.detach().clone() for n, p in model.named_parameters()}
        content["tokens"], content["targets"], content["doc"] = tokens.int(), targets.int(), doc.int()
        with torch.no_grad():
            content["losses_bf16"] = losses_of(forward(cast(model, torch.bfloat16), tokens, doc), targets)
        double = reference(cast(model, torch.float64), tokens, targets, doc)
        single = reference(model, tokens, targets, doc)
        noise = [n for n, x in single.items() if n.startswith("w20/") and (x - double[n]).abs().max() > 1e-5]
        for n in noise:
            del single[n]
        if name in CONFIGS:
            single = {n: x for n, x in single.items() if not n.startswith("w20/")}
            del content["losses_bf16"]
        error = errors(single, double)
        if "losses_bf16" in content:
            bf16 = (content["losses_bf16"] - single["losses"]).abs()[targets >= 0]
            error["losses_bf16"], error["losses_bf16_mean"] = bf16.max().item(), bf16.mean().item()
        content.update({n: x.float() if x.is_floating_point() else x for n, x in single.items()})
        rope = dict(rope_theta=c.get("rope_theta", 0.0), rope_scaling=c.get("rope_scaling", dict(type="default")))
        config = {**c, **rope, "versions": versions, "error": error}
        path = Path(folder) / f"{name}.safetensors"
        # One entry only: safetensors writes several in a random order, and the same run should give the same file.
        save_file({n: x.contiguous() for n, x in content.items()}, path, metadata={"config": json.dumps(config, default=str)})
        path.chmod(0o644)
        loss, norm = single["loss_steps"], single["norm_steps"]
        print(f"{path}: {path.stat().st_size} bytes, loss {loss[0]:.4f} -> {loss[-1]:.4f}, norm {norm[0]:.3f} -> "
              f"{norm[-1]:.3f}\n    errors: " + ", ".join(f"{k} {v:.2g}" for k, v in error.items()) +
              f"\n    w20 without: {noise}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
