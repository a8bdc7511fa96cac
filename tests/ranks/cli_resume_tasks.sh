#!/bin/bash
# cli_resume_tasks.sh - runs of adapters and of preferences that are stopped and go on with another number of ranks and another
# strategy: with data ranks, every stage of ZeRO, offload, recompute and pipelines they end with the bits of the run that was never
# stopped, on one rank; with tensor and sequence parallelism within a bound. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
common=(--preset test-qwen3 --set data.seq_len=64 --set train.batch=8 --set train.micro_batch=2 --set train.lr=0.01
    --set train.warmup=0 --set train.schedule=constant --set train.eval_rows=4 --set run.threads=1 --set run.bind=false
    --set run.device=cpu --json)
train() { # RANKS STEPS ARGUMENTS
    local n=$1 steps=$2
    shift 2
    run 0 train --ranks "$n" "${common[@]}" --set train.steps="$steps" "$@"
}
result() { # KEY: "hash", everything that must be the same; "loss"
    python3 -c "
import json
r = json.loads(open('out').read().splitlines()[-1])
print(r['loss']['last'] if '$1' == 'loss' else (r['param_hash'], r['loss']['last'], r['eval']['loss']))"
}
arithmetic=(--set data.source=builtin:arithmetic --set data.difficulty=1 --set train.problems=0)
preferences=(--set train.task=preference --set data.source=builtin:preferences --set data.difficulty=1)

moved() { # NAME SETTINGS: one rank's bits after 2 ranks, 1 rank, 4 ranks and 2 again
    local name=$1 expected got
    shift
    rm -rf whole moved
    train 1 8 --set run.dir=whole "$@"
    expected=$(result hash)
    train 2 2 --set run.dir=moved --set parallel.zero=3 "$@"
    train 1 4 --set run.dir=moved --resume auto --set memory.recompute=full --set memory.offload.states=host "$@"
    train 4 6 --set run.dir=moved --resume auto --set parallel.zero=1 --set memory.offload.params=host "$@"
    train 2 8 --set run.dir=moved --resume auto --set parallel.zero=2 --set memory.recompute=selective "$@"
    got=$(result hash)
    [ "$got" = "$expected" ] || fail "$name, from rank to rank: $got, never stopped: $expected"
}
moved 'lora in bf16' "${arithmetic[@]}" --set model.lora.rank=4 --set precision=bf16
moved 'lora with dropout over nf4, the MLP in two chunks' "${arithmetic[@]}" --set model.lora.rank=4 --set model.lora.dropout=0.2 \
    --set model.base=nf4 --set memory.chunk_tokens=64
moved 'lora by pissa' "${arithmetic[@]}" --set model.lora.rank=4 --set model.lora.init=pissa
moved 'dpo with a copy' "${preferences[@]}" --set precision=bf16
moved 'kto with adapters' "${preferences[@]}" --set preference.loss=kto --set model.lora.rank=4
moved 'ipo with a reference on disk' "${preferences[@]}" --set preference.loss=ipo --set preference.reference=disk

# Stages of a pipeline have the layers of one rank, and its bits.
lora=("${arithmetic[@]}" --set model.lora.rank=4 --set model.lora.init=pissa)
for way in lora preference; do
    [ $way = lora ] && sets=("${lora[@]}") || sets=("${preferences[@]}" --set preference.reference=copy)
    rm -rf whole moved
    train 1 6 --set run.dir=whole "${sets[@]}"
    expected=$(result hash)
    train 2 2 --set run.dir=moved --set parallel.pipeline=2 "${sets[@]}"
    train 2 4 --set run.dir=moved --resume auto --set parallel.zero=3 "${sets[@]}"
    train 2 6 --set run.dir=moved --resume auto --set parallel.pipeline=2 "${sets[@]}"
    got=$(result hash)
    [ "$got" = "$expected" ] || fail "$way, from a pipeline to ZeRO and back: $got, never stopped: $expected"
done

# Tensor and sequence ranks add in another order: fp32 to rounding, as cli_preference has it without a stop.
for way in lora preference; do
    [ $way = lora ] && axis=tensor || axis=sequence
    [ $way = lora ] && sets=("${lora[@]}") || sets=("${preferences[@]}" --set preference.reference=disk)
    rm -rf whole moved
    train 1 6 --set run.dir=whole "${sets[@]}"
    one=$(result loss)
    train 1 2 --set run.dir=moved "${sets[@]}"
    train 2 4 --set run.dir=moved --resume auto --set parallel.$axis=2 "${sets[@]}"
    train 2 6 --set run.dir=moved --resume auto --set parallel.zero=2 "${sets[@]}"
    two=$(result loss)
    python3 -c "import sys; sys.exit(not abs($one - $two) < 1e-4)" || fail "$way over $axis ranks: $two, one rank: $one"
done
finish "adapters and preferences go from mesh to mesh"
