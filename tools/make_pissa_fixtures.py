#!/usr/bin/env python3
"""Makes tests/fixtures/lora/pissa_qwen3.safetensors with numpy: what PiSSA takes out of the weights of train_qwen3, rank 4.

    python3 tools/make_pissa_fixtures.py            numpy and safetensors; written with numpy 2.4.6 and safetensors 0.8.0

For each linear layer W of the blocks, U S V of numpy.linalg.svd in double: the sum of the first four u s v, as fp32. That is
scale B A of PEFT's init_lora_weights="pissa", whatever the scale and the signs are."""
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "lora"
RANK = 4
out = {}
for name, w in load_file(HERE / "train_qwen3" / "model.safetensors").items():
    if not name.endswith("_proj.weight"):
        continue
    u, s, v = np.linalg.svd(w.astype(np.float64), full_matrices=False)
    out[name] = ((u[:, :RANK] * s[:RANK]) @ v[:RANK]).astype(np.float32)
save_file(out, HERE / "pissa_qwen3.safetensors")
