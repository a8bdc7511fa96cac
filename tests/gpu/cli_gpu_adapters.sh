#!/usr/bin/env bash
# cli_gpu_adapters.sh - on a GPU, adapters inside the sums of the products beside them give the same bits with every technique of memory, op
# by op, and to rounding the losses of cuBLASLt's products with adapters behind them. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
need_gpu

result_of() { # KEYS ARGUMENTS: of the result of the run
    local keys=$1
    shift
    run 0 train --preset test-llama --set model.hidden=512 --set model.heads=4 --set model.kv_heads=2 --set model.head_dim=128 --set model.ffn=768 \
        --set model.lora.rank=16 --set precision=bf16 --set data.seq_len=512 --set train.micro_batch=2 --set train.accumulation=2 --set train.steps=3 \
        --set train.problems=0 --set run.device=cuda --json "$@"
    tail -n 1 out | python3 -c "import json, sys; print(json.loads(sys.stdin.read())$keys)"
}
export RALO_CUDA_PRODUCTS=own # small products are cuBLASLt's otherwise, if it is faster
plain=$(result_of '["param_hash"]')
for way in memory.recompute=full memory.recompute=selective memory.offload.params=host memory.offload.activations=host run.breakdown=true; do
    other=$(result_of '["param_hash"]' --set "$way")
    [ -n "$plain" ] && [ "$other" = "$plain" ] || fail "$way: $other, plain $plain"
done
loss=$(result_of '["loss"]["last"]')
export RALO_CUDA_PRODUCTS=cublaslt
behind=$(result_of '["loss"]["last"]')
# Losses of about 5.5; bf16 rounds activations to 2^-8 of themselves, in another place here.
python3 -c "import sys; sys.exit(abs($loss - $behind) > 0.01)" || fail "loss $loss, by cuBLASLt $behind"
finish "adapters in the sums of products: the same bits with every technique, the losses of cuBLASLt's products"
