#!/usr/bin/env python3
"""Makes the fixtures of tests/train/test_preference.c with TRL's own losses: tests/fixtures/preference/.

    pip install torch transformers trl peft     # made with torch 2.15.0, transformers 5.22.2, trl 1.16.0, peft 0.21.2
    python tools/make_preference_fixtures.py tests/fixtures

Only needed to make the files anew; the test reads the committed ones.

preference/<family>/ is a tiny model of random numbers (the policy), an adapter over it with B different from zero (adapter/), and
trl.safetensors:
    reference/<name>                          another model, which the policy is compared with
    <rows>/tokens, targets, doc_start, segments (2, T)    the examples as ralo packs them; rows: pairs, single (kto)
    <case>/loss, rewards, logps, kl, g/<name>             what TRL says: [loss], [chosen, rejected], gradients of some parameters
Cases of lora_* compare the policy with its adapter to the policy without it.

Where TRL and ALGORITHMS differ, the case is built from those parts of TRL that are defined alike:
  - dpo with label smoothing: TRL 1.16 has it in `aot` only, which sorts a batch first; a batch of one pair cannot be sorted, so
    dpo_smooth is the mean over batches of one.
  - orpo: TRL's NLL counts prompts too and is a mean over the tokens of a batch. Here it is minus the mean over pairs of the mean
    log-probability of the chosen response, which TRL's forward gives as well.
"""
import sys
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer
from trl.trainer.utils import add_fused_lm_head

T, VOCAB, END = 64, 48, 47
SMALL = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, pad_token_id=0,
             rope_parameters=dict(rope_theta=10000.0, rope_type="default"), bos_token_id=46, eos_token_id=END)
FAMILIES = {"qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=8)), "llama": (LlamaForCausalLM, LlamaConfig(**SMALL))}
LENGTHS = [(4, 7, 5), (6, 3, 9), (5, 12, 8)]  # prompt, chosen, rejected; the first two share a row
COMPARED = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight",
            "model.layers.1.mlp.down_proj.weight", "model.norm.weight"]
BETA, SIMPO_BETA, SMOOTHING, GAMMA, DESIRABLE, UNDESIRABLE = 0.1, 2.0, 0.2, 1.0, 1.25, 0.75


class Accelerator:
    device = torch.device("cpu")
    gather = gather_for_metrics = staticmethod(lambda x: x)
    unwrap_model = staticmethod(lambda x: x)
    autocast = staticmethod(nullcontext)


def trainer(model, ref_model, **more):
    """What the trainers' methods read of themselves."""
    return SimpleNamespace(model=model, ref_model=ref_model, accelerator=Accelerator, aux_loss_enabled=False, ld_alpha=None,
                           args=SimpleNamespace(gradient_checkpointing_kwargs=None), precompute_ref_logps=False,
                           f_divergence_type="reverse_kl", use_weighting=False, is_encoder_decoder=False, padding_value=0, pad_token_id=0,
                           _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, _tp_size=1,
                           loss_weights=[1.0], **more)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()


def randomize(model, scale):
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(1.0, scale) if p.dim() == 1 else p.normal_(0.0, scale)


def make_examples():
    def words(n):
        return torch.randint(1, 46, (n,)).tolist()
    return [dict(prompt_ids=words(p), chosen_ids=words(c - 1) + [END], rejected_ids=words(r - 1) + [END]) for p, c, r in LENGTHS]


def make_single(examples):
    """Desirable, undesirable, desirable; with the response of the example before as the mismatched one, as TRL does it."""
    out = [dict(prompt_ids=e["prompt_ids"], label=i != 1, completion_ids=e["rejected_ids" if i == 1 else "chosen_ids"])
           for i, e in enumerate(examples)]
    for i, e in enumerate(out):
        e["KL_completion_ids"] = out[i - 1]["completion_ids"]
    return out


def pack(documents):
    """documents: (row, example of the row, part, prompt, response)."""
    rows = {k: torch.full((2, T), v, dtype=torch.int32) for k, v in
            dict(tokens=0, targets=-1, doc_start=0, segments=-1).items()}
    at = [0, 0]
    for row, example, part, prompt, response in documents:
        ids, start = prompt + response, at[row]
        end = start + len(ids)
        assert end <= T
        rows["tokens"][row, start:end] = torch.tensor(ids)
        rows["doc_start"][row, start:end] = start
        first = start + len(prompt) - 1
        rows["targets"][row, first:end - 1] = torch.tensor(response)
        rows["segments"][row, first:end - 1] = 4 * example + part
        at[row] = end
    for row in range(2):
        rows["doc_start"][row, at[row]:] = at[row]
    return rows


PLACES = [(0, 0), (0, 1), (1, 0)]  # row, example of the row


def pack_pairs(examples):
    return pack([(*PLACES[i], part, e["prompt_ids"], e[key]) for i, e in enumerate(examples)
                 for part, key in ((0, "chosen_ids"), (1, "rejected_ids"))])


def pack_single(examples):
    return pack([(*PLACES[i], part, e["prompt_ids"], e[key]) for i, e in enumerate(examples)
                 for part, key in ((0 if e["label"] else 1, "completion_ids"), (2, "KL_completion_ids"))])


def old_style(examples):
    """The batch that the trainers of trl.experimental take."""
    batch = {}
    for side in ("chosen", "rejected"):
        n = max(len(e["prompt_ids"]) + len(e[f"{side}_ids"]) for e in examples)
        ids, mask, labels = (torch.full((len(examples), n), v) for v in (0, 0, -100))
        for i, e in enumerate(examples):
            p, full = len(e["prompt_ids"]), e["prompt_ids"] + e[f"{side}_ids"]
            ids[i, :len(full)] = torch.tensor(full)
            mask[i, :len(full)] = 1
            labels[i, p:len(full)] = torch.tensor(full[p:])
        batch |= {f"{side}_input_ids": ids, f"{side}_attention_mask": mask, f"{side}_labels": labels}
    return batch


def dpo(examples, kind, **more):
    def run(model, ref_model):
        t = trainer(model, ref_model, beta=BETA, loss_types=[kind], **more)
        loss = DPOTrainer._compute_loss(t, model, DataCollatorForPreference(pad_token_id=0)(examples), False)
        return loss, t._metrics["train"]
    return run


def dpo_smooth(examples):
    def run(model, ref_model):
        parts = [dpo([e], "aot", label_smoothing=SMOOTHING)(model, ref_model) for e in examples]
        metrics = {k: [sum(m[k][0] for _, m in parts) / len(parts)] for k in parts[0][1]}
        return sum(loss for loss, _ in parts) / len(parts), metrics
    return run


def kto(examples):
    def run(model, ref_model):
        t = trainer(model, ref_model, beta=BETA, loss_type="kto", calculate_KL=True, desirable_weight=DESIRABLE,
                    undesirable_weight=UNDESIRABLE)
        t._compute_kl_logps = lambda model, batch: KTOTrainer._compute_kl_logps(t, model, batch)
        loss = KTOTrainer._compute_loss(t, model, DataCollatorForUnpairedPreference(pad_token_id=0)(examples), False)
        return loss, t._metrics["train"]
    return run


def old_trainer(kind, model, **more):
    t = trainer(model, None, **more)
    t.concatenated_inputs, t.get_batch_logps = kind.concatenated_inputs, kind.get_batch_logps
    t.concatenated_forward = lambda model, batch: kind.concatenated_forward(t, model, batch)
    return t


def orpo(examples):
    def run(model, _):
        t = old_trainer(ORPOTrainer, model, beta=BETA)
        t.odds_ratio_loss = lambda c, r: ORPOTrainer.odds_ratio_loss(t, c, r)
        whole, metrics = ORPOTrainer.get_batch_loss_metrics(t, model, old_style(examples))
        forward = t.concatenated_forward(model, old_style(examples))
        odds, nll = t.odds_ratio_loss(forward[0], forward[1])[0], forward[4]
        assert abs(whole.item() - (nll - odds.mean()).item()) < 1e-6
        return -odds.mean() - forward[0].mean(), {k: [v] for k, v in metrics.items()}
    return run


def simpo(examples):
    def run(model, _):
        t = old_trainer(CPOTrainer, model, beta=SIMPO_BETA, loss_type="simpo", simpo_gamma=GAMMA, label_smoothing=0.0, cpo_alpha=0.0,
                        alpha=0.0)
        t.cpo_loss = lambda c, r: CPOTrainer.cpo_loss(t, c, r)
        loss, metrics = CPOTrainer.get_batch_loss_metrics(t, model, old_style(examples))
        return loss, {k: [v] for k, v in metrics.items()}
    return run


def run_case(out, case, run, model, ref_model, names):
    model.zero_grad()
    loss, metrics = run(model, ref_model)
    loss.backward()
    out[f"{case}/loss"] = loss.detach().reshape(1)
    for key in ("rewards", "logps"):
        out[f"{case}/{key}"] = torch.tensor([metrics[f"{key}/{side}"][0] for side in ("chosen", "rejected")])
    if "kl" in metrics:
        out[f"{case}/kl"] = torch.tensor(metrics["kl"])
    for name, p in model.named_parameters():
        key = name.replace(".default", "")
        if (names and key in names) or (names is None and "lora_" in key):
            out[f"{case}/g/{key}"] = p.grad.clone()
    print(f"  {case}: loss {loss.item():.5f}, rewards {out[f'{case}/rewards'].tolist()}" + (f", kl {metrics['kl'][0]:.4f}" if "kl" in metrics else ""))


def make_family(folder, kind, config):
    folder.mkdir(parents=True, exist_ok=True)
    for name, scale in (("reference", 0.2), ("policy", 0.2)):
        model = kind(config)
        randomize(model, scale)
        model.save_pretrained(folder if name == "policy" else folder / "other")
    adapted = get_peft_model(load(folder), LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for n, p in adapted.named_parameters():
            if "lora_" in n:
                p.normal_(0.0, 0.2)
    adapted.peft_config["default"].base_model_name_or_path = f"tests/fixtures/preference/{folder.name}"
    adapted.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    (folder / "generation_config.json").unlink(missing_ok=True)

    policy, reference = load(folder), load(folder / "other")
    adapted = PeftModel.from_pretrained(load(folder), folder / "adapter", is_trainable=True).train()
    for m in (policy, reference, adapted.get_base_model()):
        add_fused_lm_head(m, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    pairs = make_examples()
    single = make_single(pairs)
    out = {f"reference/{k}": v for k, v in load_file(folder / "other" / "model.safetensors").items()}
    for f in (folder / "other").iterdir():
        f.unlink()
    (folder / "other").rmdir()
    out |= {f"pairs/{k}": v for k, v in pack_pairs(pairs).items()}
    out |= {f"single/{k}": v for k, v in pack_single(single).items()}
    cases = {"dpo": dpo(pairs, "sigmoid"), "dpo_smooth": dpo_smooth(pairs), "ipo": dpo(pairs, "ipo"), "orpo": orpo(pairs),
             "simpo": simpo(pairs), "kto": kto(single)}
    for case, run in cases.items():
        run_case(out, case, run, policy, reference, COMPARED)
    for case in ("dpo", "kto"):
        run_case(out, f"lora_{case}", cases[case], adapted, None, None)
    save_file(out, folder / "trl.safetensors")


def main():
    root = Path(sys.argv[1]) / "preference"
    torch.manual_seed(1)
    for name, (kind, config) in FAMILIES.items():
        print(name)
        make_family(root / name, kind, config)


main()
