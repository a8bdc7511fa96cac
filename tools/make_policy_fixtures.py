#!/usr/bin/env python3
"""Makes the numbers that TRL gives for losses of completions with advantages: tests/fixtures/policy/<name>.safetensors.

    pip install torch transformers safetensors trl     # made with torch 2.15.0, transformers 5.22.2, trl 1.16.0
    python tools/make_policy_fixtures.py tests/fixtures/two_models tests/fixtures/policy

Only needed to make the files anew; the tests read the committed ones. Models, rows and documents are those of
make_two_model_fixtures.py: a document is a completion. The loss is computed by RLOOTrainer._compute_loss and
GRPOTrainer._compute_loss themselves, over log-probabilities that are given to them, in fp64. A file holds
    segments, advantages  (B, T): number of the completion in its row, -1 elsewhere; of each token
    rollout               (B, T) minus log-probabilities of the generator
    <case>/old            (B, T) minus log-probabilities of the policy that wrote the completions, at the case's temperature
    <case>/loss           (1)
    <case>/g/<name>       its gradient by the policy's parameters
Cases and their options are in CASES, which the test repeats."""
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import safetensors
import torch
import transformers
import trl
from safetensors.torch import load_file, save_file
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

import make_family_fixtures as families

families.DOCUMENTS = [[6, 9, 4, 5], [11, 13], [10, 14]]
NAME = "llama_untied_gqa"
CAP, LENGTH = 1.1, 16
#        temperature, beta, low, high, importance
CASES = {"rloo": (0.7, 0, 0.2, 0.28, False), "grpo": (1.0, 0.1, 0.2, 0.2, True), "dr_grpo": (1.0, 0, 0.2, 0.2, False),
         "dapo": (1.3, 0.05, 0.2, 0.28, False), "gspo": (1.0, 0, 0.05, 0.1, False)}


class One:
    """An accelerator of one process."""
    num_processes = 1
    gather = gather_for_metrics = staticmethod(lambda x: x)

    @staticmethod
    def reduce(x, reduction):
        return x


def completions(segments):
    return [(row, segments[row] == i) for row in range(len(segments)) for i in range(int(segments[row].max()) + 1)]


def padded(x, of):
    width = max(int(mine.sum()) for _, mine in of)
    out = torch.zeros(len(of), width, dtype=x.dtype)
    for i, (row, mine) in enumerate(of):
        out[i, :int(mine.sum())] = x[row][mine]
    return out


def loss_of(case, losses, old, losses_r, rollout, advantages, segments):
    temperature, beta, low, high, importance = CASES[case]
    of = completions(segments)
    mask = padded(torch.ones_like(losses), of).detach()
    logps = -padded(losses, of)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logps, torch.zeros_like(logps), None), beta=beta,
        epsilon_low=low, epsilon_high=high, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level="sequence" if case == "gspo" else "token", loss_type="grpo" if case == "gspo" else case,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1), aux_loss_enabled=False,
        use_vllm=importance, vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH, _entropy_bonus_enabled=False, accelerator=One(), model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)})
    ids = torch.zeros(len(of), logps.shape[1], dtype=torch.long)
    before = -padded(old, of)
    inputs = dict(prompt_ids=ids[:, :1], prompt_mask=ids[:, :1], completion_ids=ids, completion_mask=mask,
                  advantages=torch.stack([advantages[row][mine][0] for row, mine in of]), old_per_token_logps=before,
                  old_logps=(before * mask).sum(1), ref_per_token_logps=-padded(losses_r, of),
                  num_items_in_batch=mask.sum(),
                  importance_sampling_ratio=torch.exp(before + padded(rollout, of)).clamp(max=CAP))
    kind = RLOOTrainer if case == "rloo" else GRPOTrainer
    return kind._compute_loss(trainer, None, inputs), trainer._metrics["train"]


def main(models, folder):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    Path(folder).mkdir(exist_ok=True)
    file, c = load_file(f"{models}/{NAME}.safetensors"), families.MODELS[NAME]
    policy, reference = families.build(c), families.build(c)
    policy.load_state_dict({n[2:]: x for n, x in file.items() if n.startswith("w/")})
    reference.load_state_dict({n[2:]: x for n, x in file.items() if n.startswith("r/")})
    policy, reference = families.cast(policy, torch.float64), families.cast(reference, torch.float64)
    tokens, targets, doc = file["tokens"].long(), file["targets"].long(), file["doc"].long()
    segments = torch.full_like(targets, -1)
    for row, lengths in enumerate(families.DOCUMENTS):
        for i, n in enumerate(lengths):
            segments[row, sum(lengths[:i]):sum(lengths[:i]) + n] = i
    segments[targets < 0] = -1
    advantages = torch.zeros(targets.shape)
    for i, (row, mine) in enumerate(completions(segments)):
        advantages[row][mine] = [1.5, -0.75, 0.5, -1.25, 2.0, -0.5, 0.25, -1.0][i]
    content = {"segments": segments.int(), "advantages": advantages}
    for case, (temperature, beta, low, high, importance) in CASES.items():
        with torch.no_grad():
            losses_r = families.losses_of(families.forward(reference, tokens, doc) / temperature, targets)
        losses = families.losses_of(families.forward(policy, tokens, doc) / temperature, targets)
        spread = 0.1 if case == "rloo" else 0.3
        old = (losses.detach() + spread * torch.randn(losses.shape)).float()
        if "rollout" not in content:
            content["rollout"] = (losses.detach() + 0.2 * torch.randn(losses.shape)).float()
        loss, metrics = loss_of(case, losses, old.double(), losses_r, content["rollout"].double(), advantages.double(), segments)
        policy.zero_grad()
        loss.backward()
        content.update({f"{case}/g/{n}": p.grad.float() for n, p in policy.named_parameters()})
        content[f"{case}/old"], content[f"{case}/loss"] = old, loss.detach().float()[None]
        numbers = [metrics[k][0] for k in ("clip_ratio/low_mean", "clip_ratio/high_mean")] + metrics.get("kl", [0.0])
        content[f"{case}/clip"] = torch.tensor(numbers).float()
        print(f"{case}: loss {loss.item():.6f}, clipped {numbers}")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__,
                "safetensors": safetensors.__version__}
    path = Path(folder) / f"{NAME}.safetensors"
    save_file({n: x.contiguous() for n, x in content.items()}, path, metadata={"versions": json.dumps(versions)})
    path.chmod(0o644)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
