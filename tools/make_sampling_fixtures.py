#!/usr/bin/env python3
"""Writes tests/fixtures/sampling.json: what transformers' logits processors leave of rows of logits.

    tools/make_sampling_fixtures.py        needs torch and transformers; the versions are written into the file

Every case runs the processors that generate() would put together, in its order, and keeps the ids that are left with
their probabilities. Logits are multiples of 1/64, so that ties at the border of top-k occur."""
import json
import pathlib

import torch
import transformers
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMixin

ROOT = pathlib.Path(__file__).resolve().parent.parent
VOCAB = 50


class Host(GenerationMixin):
    """Just enough of a model to ask for the list of processors."""

    def __init__(self):
        self.config = transformers.GPT2Config()


def processors(options):
    config = GenerationConfig(do_sample=True, temperature=options["temperature"], top_k=options["top_k"],
                              top_p=options["top_p"], min_p=options["min_p"] or None,
                              repetition_penalty=options["repetition_penalty"], max_new_tokens=1)
    return Host()._get_logits_processor(generation_config=config, input_ids_seq_length=1, device="cpu")


def main():
    torch.manual_seed(1)
    cases = []
    settings = [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_k": 1}, {"top_k": 200}, {"top_p": 0.9}, {"top_p": 0.1},
                {"top_p": 0.99, "temperature": 2.0}, {"min_p": 0.05}, {"min_p": 1.0}, {"repetition_penalty": 1.3},
                {"repetition_penalty": 0.7}, {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
                {"temperature": 1.5, "top_k": 30, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.1}]
    for given in settings:
        for _ in range(3):
            options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, **given}
            logits = (torch.randn(VOCAB) * 3 * 64).round() / 64
            logits[7] = logits[3]  # a tie
            history = torch.randint(0, VOCAB, (9,))
            left = processors(options)(history[None], logits[None].clone())[0]
            probabilities = left.double().softmax(-1)
            kept = [i for i in range(VOCAB) if left[i] != float("-inf")]
            cases.append({"logits": logits.tolist(), "history": history.tolist(), "options": options, "ids": kept,
                          "probabilities": [probabilities[i].item() for i in kept]})
    out = {"made_by": "tools/make_sampling_fixtures.py", "torch": torch.__version__,
           "transformers": transformers.__version__, "cases": cases}
    path = ROOT / "tests" / "fixtures" / "sampling.json"
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    main()
