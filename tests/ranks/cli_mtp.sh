#!/bin/bash
# cli_mtp.sh - multi-token prediction on many ranks: the bits of one rank with as many micro-batches, in every stage of ZeRO, with
# recompute, offload and pipelines; tensor and sequence parallelism within a bound. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
common=(--preset test-qwen3 --set train.task=mtp --set model.layers=5 --set model.mtp.heads=3 --set data.source=builtin:grammar
    --set data.seq_len=32 --set train.micro_batch=2 --set train.steps=3 --set train.lr=0.01 --set train.warmup=0
    --set train.eval_rows=4 --set train.problems=0 --set run.threads=1 --set run.bind=false --set run.device=cpu --json)
train() { # RANKS ARGUMENTS: hash, loss, the loss of every head in the last step, and what rho1 has selected
    local n=$1
    shift
    rm -rf run
    run 0 train --ranks "$n" "${common[@]}" --set run.dir=run --set run.save_last=false "$@"
    python3 - <<'P'
import json
r = json.loads(open('out').read().splitlines()[-1])
m = [json.loads(line) for line in open('run/metrics.jsonl')]
last = [x for x in m if 'train/head1_ce_loss' in x][-1]
print(r['param_hash'], r['loss']['last'], *(last[f'train/head{k}_ce_loss'] for k in (1, 2, 3)), r['eval']['loss'],
      *(x[k] for x in m for k in ('train/head1_selected', 'train/head2_selected', 'train/head3_selected', 'train/threshold') if k in x))
P
}
same() { # EXPECTED RANKS ARGUMENTS
    local expected=$1 n=$2 got
    shift 2
    got=$(train "$n" "$@")
    [ "$got" = "$expected" ] || fail "$n ranks, $*: $got, one rank: $expected"
}
host=(--set memory.offload.params=host --set memory.offload.grads=host --set memory.offload.states=host
    --set memory.offload.activations=host)

# Three ranks, ZeRO 3 and full recompute against one rank with three micro-batches and no recompute; then the other stages.
for precision in fp32 bf16; do
    sets=(--set precision=$precision)
    one=$(train 1 "${sets[@]}" --set train.accumulation=3 --set memory.recompute=none)
    same "$one" 3 "${sets[@]}" --set parallel.zero=3 --set memory.recompute=full
    same "$one" 1 "${sets[@]}" --set train.accumulation=3 --set memory.recompute=full "${host[@]}"
done
for zero in 0 1 2; do same "$one" 3 "${sets[@]}" --set parallel.zero=$zero; done
same "$one" 3 "${sets[@]}" --set parallel.zero=3 --set memory.recompute=selective "${host[@]}"
same "$one" 3 "${sets[@]}" --set train.accumulation=3 --set parallel.pipeline=3
same "$one" 2 "${sets[@]}" --set train.accumulation=3 --set parallel.pipeline=2 --set memory.recompute=full
sets=(--set precision=bf16 --set model.lora.rank=4)
one=$(train 1 "${sets[@]}" --set train.accumulation=2)
same "$one" 2 "${sets[@]}" --set parallel.zero=3 --set memory.recompute=full

# Selected tokens: the threshold is that of a micro-batch, wherever it is. All of them: the run without a selection.
sets=(--set precision=bf16 --set train.weighting=rho1)
one=$(train 1 "${sets[@]}" --set train.accumulation=3)
same "$one" 3 "${sets[@]}" --set parallel.zero=3 --set memory.recompute=full
same "$one" 1 "${sets[@]}" --set train.accumulation=3 --set memory.recompute=selective "${host[@]}"
all=$(train 1 "${sets[@]}" --set rho1.k_percent=1)
[[ $all == "$(train 1 --set precision=bf16) "* ]] || fail "all tokens selected are another run than none: $all"
run 0 train "${common[@]}" --set run.dir=tuned --set run.export=reference
sets=(--set precision=bf16 --set train.weighting=rho1 --set rho1.reference=reference)
one=$(train 1 "${sets[@]}" --set train.accumulation=3)
same "$one" 1 "${sets[@]}" --set train.accumulation=3 --set rho1.reference_on=disk
same "$one" 3 "${sets[@]}" --set parallel.zero=3 --set memory.recompute=full --set rho1.reference_on=disk
same "$one" 2 "${sets[@]}" --set train.accumulation=3 --set parallel.pipeline=2 --set memory.recompute=full --set rho1.reference_on=disk
same "$one" 2 "${sets[@]}" --set train.accumulation=3 --set parallel.pipeline=2 --set memory.recompute=full

# Weights from the values of a critic: their moving averages are those of all ranks, also where an update overlaps the next step.
run 0 train --preset test-gpt2 --set train.task=critic --set data.source=builtin:solutions --set data.difficulty=1 --set data.seq_len=96 \
    --set train.micro_batch=4 --set train.steps=4 --set run.device=cpu --set run.threads=1 --set run.dir=critic
for weighting in verifiable shuffled; do
    sets=(--set precision=bf16 --set train.weighting=$weighting --set verifiable.critic=critic)
    one=$(train 1 "${sets[@]}" --set train.accumulation=3 --set memory.overlap_update=false)
    same "$one" 3 "${sets[@]}" --set parallel.zero=3 --set memory.recompute=full
done
same "$one" 1 "${sets[@]}" --set train.accumulation=3 --set memory.offload.states=host --set memory.overlap_update=true
same "$one" 2 "${sets[@]}" --set train.accumulation=3 --set parallel.pipeline=2

sets=(--set train.weighting=random)
one=$(train 1 "${sets[@]}" --set train.accumulation=3)
same "$one" 3 "${sets[@]}" --set parallel.zero=2
same "$one" 2 "${sets[@]}" --set train.accumulation=3 --set parallel.pipeline=2

# Sums over ranks in another order: fp32 to rounding.
near() { # EXPECTED RANKS ARGUMENTS
    local expected=$1 n=$2 got
    shift 2
    got=$(train "$n" "$@")
    python3 -c "
import sys
a, b = ([float(x) for x in s.split()[1:]] for s in ('$expected', '$got'))
sys.exit(not (len(a) == len(b) and all(abs(x - y) < 2e-5 for x, y in zip(a, b))))" || fail "$n ranks, $*: $got, one rank: $expected"
}
sets=(--set precision=fp32)
one=$(train 1 "${sets[@]}")
for way in "tensor=2 attention=heads" "sequence=2 attention=heads" "sequence=2 attention=ring"; do
    set -- $way
    near "$one" 2 "${sets[@]}" --set "parallel.$1" --set "parallel.$2"
done

# Tokens are selected from all sequence ranks: as many of every head in every step as on one rank, at the same threshold.
sets+=(--set train.weighting=rho1 --set rho1.reference=reference)
one=$(train 1 "${sets[@]}")
[ "$(wc -w <<<"$one")" = 18 ] || fail "no selection in: $one"
near "$one" 2 "${sets[@]}" --set parallel.sequence=2 --set parallel.attention=heads --set memory.recompute=full "${host[@]}"
near "$one" 4 "${sets[@]}" --set parallel.sequence=4 --set parallel.attention=ring
near "$one" 4 "${sets[@]}" --set parallel.sequence=2 --set parallel.pipeline=2 --set rho1.reference_on=disk
finish "multi-token prediction on 2 to 4 ranks: as on one"
