#!/usr/bin/env bash
# cli_base_ranks.sh - adapters over a base in fewer bits: the same bits on several ranks, in every stage of ZeRO, in a pipeline, and
# with techniques of memory on top.
. "$(dirname "$0")/../harness/check.sh"
need mpirun "install openmpi-bin"
need python3

common=(--preset test-qwen3 --set precision=bf16 --set train.micro_batch=1 --set train.batch=2 --set data.seq_len=16 --set train.steps=3
    --set train.warmup=0 --set train.schedule=constant --set train.problems=0 --set train.eval_rows=2 --set run.threads=1
    --set run.bind=false --set run.device=cpu --set model.lora.rank=4 --json)
hash() { python3 -c "import json; r = json.loads(open('out').read().splitlines()[-1]); print(r['param_hash'], r['loss']['last'])"; }
plain="memory.recompute=none"
moved="memory.recompute=full --set memory.offload.params=host --set parallel.prefetch=2"
for format in int8 nf4; do
    run 0 train "${common[@]}" --set model.base=$format --set run.dir=alone-$format
    expected=$(hash)
    cells=("parallel.zero=3 --set $moved" "parallel.pipeline=2 --set $moved")
    [ $format = int8 ] || cells+=("parallel.zero=0 --set $moved" "parallel.zero=1 --set $plain" "parallel.zero=2 --set $moved"
        "parallel.zero=3 --set $plain" "parallel.pipeline=2 --set $plain")
    for cell in "${cells[@]}"; do
        rm -rf shared
        run 0 train --ranks 2 "${common[@]}" --set model.base=$format --set run.dir=shared --set $cell
        [ "$(hash)" = "$expected" ] || fail "$format, $cell: $(hash), expected $expected"
        holds "all(x[t]['planned'] == x[t]['peak'] for x in r['ranks'] for t in ('device', 'host', 'nvme'))"
    done
done
run 0 train --ranks 2 "${common[@]}" --set model.base=nf4 --set run.dir=rows --set parallel.sequence=2
finish "adapters over int8 and nf4: the same bits alone, in ZeRO 0 to 3 and in a pipeline"
