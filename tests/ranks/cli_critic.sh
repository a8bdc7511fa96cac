#!/bin/bash
# cli_critic.sh - a critic on many ranks: the bits of one rank with as many micro-batches, in every stage of ZeRO, with recompute and
# offload; tensor parallelism within a bound; what cannot be shared, and what a critic cannot do, is refused by name. RALO names the program.
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

# Sums over ranks in another order: fp32 to rounding.
sets=(--set precision=fp32 --set critic.dropout=0.2)
one=$(train 1 "${sets[@]}" | cut -d ' ' -f 2)
two=$(train 2 "${sets[@]}" --set parallel.tensor=2 | cut -d ' ' -f 2)
python3 -c "import sys; sys.exit(not 0 < abs($one - 0.69315) or not abs($one - $two) < 1e-5)" || fail "2 tensor ranks: $two, one rank: $one"

for axis in sequence pipeline; do
    run 2 train --ranks 2 "${common[@]}" --set run.dir=no --set parallel.$axis=2
    grep -q "train.task: found critic with parallel.$axis 2" err || fail "refused without its name: $(tail -n 2 err)"
done
run 2 generate --model run --prompt 1+1=
grep -q "is a critic" err || fail "generate with a critic: $(tail -n 2 err)"
echo text >text.txt
run 2 eval --model run --data text.txt
grep -q "is a critic" err || fail "eval of a critic: $(tail -n 2 err)"
run 2 train "${common[@]}" --set data.source=builtin:grammar --set run.dir=no
grep -q "builtin:solutions" err || fail "data without solutions: $(tail -n 2 err)"
finish "a critic on 2 ranks: as on one"
