#!/bin/bash
# cli_critic.sh - a critic on many ranks: the bits of one rank with as many micro-batches, in every stage of ZeRO, with recompute and
# offload, and in pipelines; tensor and sequence parallelism within a bound; what a critic cannot do is refused by name. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
common=(--preset test-qwen3 --set train.task=critic --set data.source=builtin:solutions --set data.difficulty=1
    --set data.seq_len=72 --set train.micro_batch=2 --set train.steps=4 --set train.lr=0.01 --set train.warmup=0
    --set train.eval_rows=4 --set run.threads=1 --set run.bind=false --set run.device=cpu --json)
train() { # RANKS ARGUMENTS: hash, last loss, and what the last step and the evaluation say of pairs
    local n=$1
    shift
    rm -rf run
    run 0 train --ranks "$n" "${common[@]}" --set run.dir=run "$@"
    python3 - <<'P'
import json
r = json.loads(open('out').read().splitlines()[-1])
m = [json.loads(line) for line in open('run/metrics.jsonl')]
step = [x for x in m if 'value/margin' in x][-1]
held_out = [x for x in m if 'val/value/margin' in x][-1]
print(r['param_hash'], r['loss']['last'], step['value/margin'], step['train/pairwise_accuracy'], held_out['val/pairwise_accuracy'])
P
}
same() { # EXPECTED ARGUMENTS
    local expected=$1 got
    shift
    got=$(train 2 "$@")
    [ "$got" = "$expected" ] || fail "2 ranks, $*: $got, one rank: $expected"
}
sets=(--set precision=bf16 --set critic.dropout=0.2)
expected=$(train 1 "${sets[@]}" --set train.accumulation=2)
for zero in 0 3; do same "$expected" "${sets[@]}" --set parallel.zero=$zero; done
sets=(--set critic.loss=lambda --set critic.head=sigmoid)
expected=$(train 1 "${sets[@]}" --set train.accumulation=2)
for zero in 1 2; do same "$expected" "${sets[@]}" --set parallel.zero=$zero; done
same "$expected" "${sets[@]}" --set parallel.zero=3 --set memory.recompute=full --set memory.offload.params=host \
    --set memory.offload.states=host

# Stages of a pipeline: the table of a tied model is on the first alone, and values and sums have the bits of one rank.
two=(--set parallel.pipeline=2 --set train.accumulation=2)
same "$expected" "${sets[@]}" "${two[@]}" --set memory.recompute=full --set memory.offload.params=host --set memory.offload.states=host
sets=(--set precision=bf16 --set critic.dropout=0.2)
same "$(train 1 "${sets[@]}" --set train.accumulation=2)" "${sets[@]}" "${two[@]}"
sets+=(--set model.lora.rank=4 --set model.lora.dropout=0.1 --set model.layers=4)
same "$(train 1 "${sets[@]}" --set train.accumulation=2)" "${sets[@]}" "${two[@]}" --set parallel.virtual_stages=2

# Sums over ranks in another order: fp32 to rounding.
for way in "tensor heads mlp pairwise" "sequence heads mlp pairwise" "sequence ring mlp lambda" "sequence ring sigmoid lambda"; do
    read -r axis attention head name <<<"$way"
    sets=(--set precision=fp32 --set critic.head="$head" --set critic.loss="$name" --set train.steps=3)
    [ "$head" = mlp ] && sets+=(--set critic.dropout=0.2)
    one=$(train 1 "${sets[@]}")
    two=$(train 2 "${sets[@]}" --set parallel.attention="$attention" --set parallel.$axis=2)
    python3 -c "
import sys
one, two = ([float(x) for x in s.split()[1:]] for s in ('$one', '$two'))
sys.exit(not (one[0] > 0 and all(abs(a - b) < 1e-5 * max(1, abs(a)) for a, b in zip(one, two))))" ||
        fail "$way: $two on 2 ranks, $one on one"
done

run 2 generate --model run --prompt 1+1=
grep -q "is a critic" err || fail "generate with a critic: $(tail -n 2 err)"
echo text >text.txt
run 2 eval --model run --data text.txt
grep -q "is a critic" err || fail "eval of a critic: $(tail -n 2 err)"
run 2 train "${common[@]}" --set data.source=builtin:grammar --set run.dir=no
grep -q "builtin:solutions" err || fail "data without solutions: $(tail -n 2 err)"
finish "a critic on 2 ranks: as on one"
