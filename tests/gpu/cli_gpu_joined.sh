#!/usr/bin/env bash
# cli_gpu_joined.sh - on a GPU, norms and AdamW of many small tensors in one launch give the bits of one launch for each, in every
# precision and format of states. A breakdown times ops one by one and so joins none. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
need_gpu

hash_of() { # ARGUMENTS: the hash of the parameters after the run
    run 0 train --preset test-llama --set model.layers=12 --set run.device=cuda --set train.steps=4 --set train.problems=0 --json "$@"
    tail -n 1 out | python3 -c "import json, sys; print(json.loads(sys.stdin.read())['param_hash'])"
}
for model in "" "model.lora.rank=4"; do
    for way in fp32/fp32 bf16/fp32 bf16/bf16 bf16/int8 bf16_sr/bf16 bf16_sr/int8 fp16/fp32; do
        flags=(--set precision="${way%/*}" --set memory.states="${way#*/}" ${model:+--set "$model"})
        joined=$(hash_of "${flags[@]}") alone=$(hash_of "${flags[@]}" --set run.breakdown=true)
        [ -n "$joined" ] && [ "$joined" = "$alone" ] || fail "$way $model: $joined in few launches, $alone in many"
    done
done
finish "many small tensors in one launch: the bits of one launch for each"
