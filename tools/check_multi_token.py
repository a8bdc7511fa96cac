#!/usr/bin/env python3
"""check_multi_token.py - does PyTorch see the same model in Meta's layout, and the same drafts?

    tools/check_multi_token.py [--ralo build/ralo]

Trains a small Llama with four prediction heads, exports it with --heads meta, and reads that with a decoder written here after
Meta's (complex rotary pairs, interleaved rows, `layers` and `extra_heads`). Greedy tokens of the first head must be those of `ralo
generate`; drafts made by the other heads here must be accepted as often, in as many passes, as --speculative says. Needs torch and
safetensors; not part of the tests."""
import argparse, json, os, subprocess, tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file


def rotate(x, angles):
    """(T, H, D) with rotary pairs side by side, as Meta's apply_rotary_emb."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[:, None, :]).flatten(2)


class Model:
    def __init__(self, folder):
        self.p = json.loads((folder / "params.json").read_text())
        self.w = {k: v.float() for k, v in load_file(folder / "consolidated.safetensors").items()}
        self.n = self.p["n_future_tokens"]

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.p["norm_eps"]) * self.w[name + ".weight"]

    def block(self, x, name, angles):
        w, T = lambda s: self.w[f"{name}.{s}.weight"], x.shape[0]
        H, G, D = self.p["n_heads"], self.p["n_kv_heads"], self.p["dim"] // self.p["n_heads"]
        a = self.norm(x, name + ".attention_norm")
        q, k, v = (a @ w("attention.wq").T).view(T, H, D), (a @ w("attention.wk").T).view(T, G, D), (a @ w("attention.wv").T).view(T, G, D)
        q, k = rotate(q, angles), rotate(k, angles)
        k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
        y = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), is_causal=True)
        x = x + y.transpose(0, 1).reshape(T, -1) @ w("attention.wo").T
        f = self.norm(x, name + ".ffn_norm")
        return x + (torch.nn.functional.silu(f @ w("feed_forward.w1").T) * (f @ w("feed_forward.w3").T)) @ w("feed_forward.w2").T

    def choices(self, tokens):
        """What every head chooses after the last token."""
        D, T = self.p["dim"] // self.p["n_heads"], len(tokens)
        speeds = 1 / self.p["rope_theta"] ** (torch.arange(0, D, 2).double() / D)
        angles = torch.polar(torch.ones(T, D // 2).double(), torch.outer(torch.arange(T).double(), speeds)).to(torch.complex64)
        x = self.w["tok_embeddings.weight"][tokens]
        trunk = self.p["n_layers"] - self.n
        for i in range(trunk):
            x = self.block(x, f"layers.{i}", angles)
        heads = [f"layers.{trunk}"] + [f"extra_heads.{k}" for k in range(self.n - 1)]
        return [int((self.norm(self.block(x, h, angles), "norm")[-1] @ self.w["output.weight"].T).argmax()) for h in heads]


def speculate(model, prompt, most):
    """As ralo does it, one token at a time: (tokens, drafted, accepted, passes)."""
    tokens, drafted, accepted, passes = list(prompt), 0, 0, 0
    end = len(prompt) + most
    first, *drafts = model.choices(tokens)
    tokens.append(first)
    while len(tokens) < end:
        n = min(model.n - 1, end - 1 - len(tokens))
        guesses, passes, drafted = drafts[:n], passes + 1, drafted + n
        for k in range(n + 1):
            first, *drafts = model.choices(tokens)
            tokens.append(first)
            right = k < n and guesses[k] == first
            accepted += right
            if not right:
                break
    return tokens[len(prompt):], drafted, accepted, passes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ralo", default=str(Path(__file__).resolve().parent.parent / "build" / "ralo"))
    ralo = parser.parse_args().ralo
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text.txt").write_text("one two three four five six seven eight nine ten, red green blue.\n" * 300)
        sets = ["data.source=text.txt", "data.seq_len=64", "data.tokenizer=byte", "model.preset=test-llama", "model.vocab=260", "model.layers=6",
                "model.tied=false", "model.mtp.heads=4", "train.task=mtp", "train.steps=60", "train.lr=0.01", "run.dir=run", "run.device=cpu"]
        subprocess.run([ralo, "train", *(x for s in sets for x in ("--set", s))], check=True, capture_output=True)
        subprocess.run([ralo, "export", "run", "meta", "--heads", "meta"], check=True, capture_output=True)
        model, worst = Model(Path("meta")), 0
        for text in ("one two", "x", "seven eight nine t", "zz top"):
            out = subprocess.run([ralo, "generate", "--model", "meta", "--tokenizer", "byte", "--prompt", text, "--max-new", "40", "--ignore-eos",
                                  "--device", "cpu", "--speculative", "--json"], check=True, capture_output=True, text=True)
            r = json.loads(out.stdout.splitlines()[-1])
            c, s = r["completions"][0], r["speculative"]
            here = speculate(model, c["prompt_tokens"], 40)
            there = (c["tokens"], s["drafted"], s["accepted"], s["passes"])
            print(f"{text!r}: {s['accepted']} of {s['drafted']} accepted in {s['passes']} passes: {'the same' if here == there else f'DIFFERENT here: {here[1:]}'}")
            worst |= here != there
    raise SystemExit(worst)


with torch.no_grad():
    main()
