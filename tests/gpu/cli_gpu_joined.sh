#!/usr/bin/env bash
# cli_gpu_joined.sh - on a GPU, norms and AdamW of many small tensors in one launch, and gradients of weights that their products add, give
# the bits of one launch for each, in every precision and format of states. A breakdown times ops one by one and so joins none. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
need_gpu

hash_of() { # ARGUMENTS: the hash of the parameters after the run
    run 0 train --preset test-llama --set model.layers=12 --set run.device=cuda --set train.steps=4 --set train.accumulation=3 --set train.problems=0 --json "$@"
    tail -n 1 out | python3 -c "import json, sys; print(json.loads(sys.stdin.read())['param_hash'])"
}
for way in fp32/fp32 bf16/int8 bf16_sr/bf16 fp16/fp32 bf16/fp32/model.lora.rank=4 bf16_sr/int8/model.lora.rank=4 \
    fp8/fp32/train.fp8.scales=power fp8/fp32/train.fp8.scales=exact; do
    IFS=/ read -r precision states model <<<"$way"
    flags=(--set precision="$precision" --set memory.states="$states" ${model:+--set "$model"})
    joined=$(hash_of "${flags[@]}") alone=$(hash_of "${flags[@]}" --set run.breakdown=true)
    [ -n "$joined" ] && [ "$joined" = "$alone" ] || fail "$way: $joined in few launches, $alone in many"
done
finish "ops joined in one launch: the bits of one launch for each"
