#!/bin/bash
# cli_preference.sh - preferences on many ranks: the same bits as one rank with as many micro-batches, in every stage of ZeRO, with
# a copy and with the base as the reference; tensor parallelism within a bound; what cannot be shared is refused by name. RALO names
# the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
common=(--preset test-qwen3 --set train.task=preference --set data.source=builtin:preferences --set data.difficulty=1
    --set data.seq_len=64 --set train.micro_batch=2 --set train.steps=4 --set train.lr=0.01 --set train.warmup=0
    --set train.eval_rows=4 --set run.threads=1 --set run.bind=false --set run.device=cpu --json)
train() { # RANKS ARGUMENTS: hash and last loss
    local n=$1
    shift
    rm -rf run
    run 0 train --ranks "$n" "${common[@]}" --set run.dir=run "$@"
    python3 -c "import json; r = json.loads(open('out').read().splitlines()[-1]); print(r['param_hash'], r['loss']['last'])"
}
loss() { python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['loss']['last'])"; }

same() { # EXPECTED ARGUMENTS
    local expected=$1 got
    shift
    got=$(train 2 "$@")
    [ "$got" = "$expected" ] || fail "2 ranks, $*: $got, one rank: $expected"
}
full=(--set preference.reference=copy --set precision=bf16)
expected=$(train 1 "${full[@]}" --set train.accumulation=2)
for zero in 0 1 2 3; do same "$expected" "${full[@]}" --set parallel.zero=$zero; done
disk=("${full[@]}" --set preference.reference=disk)
for zero in 0 3; do same "$expected" "${disk[@]}" --set parallel.zero=$zero; done
same "$expected" "${full[@]}" --set parallel.zero=3 --set memory.recompute=full --set memory.offload.params=host \
    --set memory.offload.states=host
lora=(--set preference.reference=base --set model.lora.rank=4)
expected=$(train 1 "${lora[@]}" --set train.accumulation=2)
for zero in 0 3; do same "$expected" "${lora[@]}" --set parallel.zero=$zero; done

# kto: its z is over the examples of all ranks and micro-batches.
kto=(--set preference.loss=kto --set preference.reference=copy)
expected=$(train 1 "${kto[@]}" --set train.accumulation=2)
for zero in 0 3; do same "$expected" "${kto[@]}" --set parallel.zero=$zero; done
expected=$(train 1 "${kto[@]}" --set train.accumulation=4)
same "$expected" "${kto[@]}" --set train.accumulation=2

# Sums over ranks in another order: fp32 to rounding.
for way in "loss=dpo reference=copy none" "loss=kto reference=base 4"; do
    set -- $way
    sets=(--set "preference.$1" --set "preference.$2" --set model.lora.rank="$3" --set precision=fp32)
    train 1 "${sets[@]}" >/dev/null
    one=$(loss)
    train 2 "${sets[@]}" --set parallel.tensor=2 >/dev/null
    two=$(loss)
    python3 -c "import sys; sys.exit(not abs($one - $two) < 1e-5)" || fail "$way on 2 tensor ranks: $two, one rank: $one"
done

refused() { # WORDS ARGUMENTS
    local words=$1
    shift
    run 2 train --ranks 2 "${common[@]}" --set run.dir=no "$@"
    grep -q "$words" err || fail "refused without '$words': $(tail -n 2 err)"
}
refused 'train.task: found preference with parallel.pipeline 2' --set parallel.pipeline=2
refused 'train.task: found preference with parallel.sequence 2' --set parallel.sequence=2
finish "preferences on 2 ranks: as on one"
