#!/usr/bin/env python3
"""Makes the fixtures of tests/train/test_critic.c with PyTorch: tests/fixtures/critic/.

    pip install torch transformers     # made with torch 2.15.0, transformers 5.22.2
    python tools/make_critic_fixtures.py tests/fixtures

Only needed to make the files anew; the test reads the committed ones. After make_preference_fixtures.py, whose models and rows it takes.

critic/<family>/ is a decoder with a value head as ralo exports it (llama: mlp, qwen3: sigmoid), and torch.safetensors:
    tokens, targets, doc_start, segments, values (2, T)   rows of pairs, and the value of every token
    <case>/loss, g/<name>                                 pairwise, lambda, lambda_smooth: the loss, and the gradients of all parameters
"""
import json, sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel

HEADS = {"llama": "mlp", "qwen3": "sigmoid"}
GAMMA, LAM, BETA = 0.9, 0.8, 0.5


class Head(nn.Module):
    def __init__(self, kind, c):
        super().__init__()
        self.kind = kind
        if kind == "mlp":
            self.value_head = nn.ModuleDict({"fc1": nn.Linear(c, c // 4), "fc2": nn.Linear(c // 4, c // 8), "out": nn.Linear(c // 8, 1)})
        else:
            self.score = nn.Linear(c, 1)
        for p in self.parameters():
            nn.init.normal_(p, std=0.5)

    def forward(self, h):
        if self.kind != "mlp":
            return torch.sigmoid(self.score(h)).squeeze(-1)
        for name in ("fc1", "fc2"):
            h = F.gelu(self.value_head[name](h), approximate="tanh")
        return self.value_head["out"](h).squeeze(-1)


def values_of(model, head, rows):
    out = []
    for tokens, starts in zip(rows["tokens"], rows["doc_start"]):
        parts = []  # each document by itself
        for start in sorted(set(starts.tolist())):
            part = tokens[starts == start].long()
            parts.append(head(model(input_ids=part[None]).last_hidden_state[0]))
        out.append(torch.cat(parts))
    return torch.stack(out)


def solutions(values, rows):
    """(is correct, values of its tokens) by row and example."""
    found = {}
    for r, segments in enumerate(rows["segments"]):
        for t, s in enumerate(segments.tolist()):
            if s >= 0:
                found.setdefault((r, s // 4, s % 4), []).append(values[r, t + 1])
    return {k: torch.stack(v) for k, v in found.items()}


def loss_of(case, values, rows):
    found = solutions(values, rows)
    if case == "pairwise":
        pairs = [(found[r, e, 0].mean(), found[r, e, 1].mean()) for r, e, part in found if part == 0]
        return torch.stack([-F.logsigmoid(c - w) for c, w in pairs]).mean()
    losses = []
    for (_, _, part), v in found.items():
        g, targets = float(part == 0), []
        for t in reversed(range(len(v))):
            if t < len(v) - 1:
                g = (1 - LAM) * GAMMA * v[t + 1].detach() + LAM * GAMMA * g
            targets.insert(0, torch.as_tensor(g))
        y = torch.stack(targets)
        losses.append(F.smooth_l1_loss(v, y, beta=BETA) if case == "lambda_smooth" else F.mse_loss(v, y))
    return torch.stack(losses).mean()


def make(fixtures, family):
    torch.manual_seed(7)
    source, folder = fixtures / "preference" / family, fixtures / "critic" / family
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    model = AutoModel.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").train()
    head = Head(HEADS[family], config["hidden_size"])
    config["architectures"] = [config["architectures"][0].replace("ForCausalLM", "ForTokenClassification")]
    config["value_head"] = HEADS[family]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    named = {**{f"model.{n}": p for n, p in model.named_parameters()}, **dict(head.named_parameters())}
    save_file({n: p.detach().contiguous() for n, p in named.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    kept = load_file(source / "trl.safetensors")
    rows = {n: kept[f"pairs/{n}"].contiguous() for n in ("tokens", "targets", "doc_start", "segments")}
    out = dict(rows)
    for case in ("pairwise", "lambda", "lambda_smooth"):
        for p in named.values():
            p.grad = None
        values = values_of(model, head, rows)
        loss = loss_of(case, values, rows)
        loss.backward()
        out["values"] = values.detach().contiguous()
        out[f"{case}/loss"] = loss.detach().reshape(1)
        for n, p in named.items():
            out[f"{case}/g/{n}"] = p.grad.contiguous()
        print(family, HEADS[family], case, loss.item())
    save_file(out, folder / "torch.safetensors")


for name in HEADS:
    make(Path(sys.argv[1]), name)
