#!/bin/bash
# cli_pipeline.sh - the layers of one model at 2, 4 and 8 ranks (ranks_pipeline.c); the same from the command line, with its plan,
# its trace and its export; and what makes no sense is refused. RALO names the program, RALO_BUILD the build directory.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
ranks_pipeline=${RALO_BUILD:?the build directory}/tests/ranks_pipeline
need_program "$ranks_pipeline"
for n in 2 4 8; do
    under_mpirun $n "$ranks_pipeline" || fail "$n ranks: $(tail -n 5 log)"
    grep -q "^[1-9][0-9]* cells of pipelines on $n ranks" log || fail "$n ranks did not end: $(tail -n 3 log)"
done

# From the command line: the bits, the held-out loss and the weights of one rank; a line for each stage; a trace of each rank.
common=(--preset test-gpt2 --set model.layers=4 --set train.micro_batch=1 --set train.accumulation=4 --set train.steps=3
    --set data.seq_len=16 --set train.problems=2 --set train.eval_rows=3 --set run.threads=1 --set run.bind=false --json)
result() { python3 -c "import json; r = json.loads(open('out').read().splitlines()[-1]); print(r['param_hash'], r['eval']['loss'])"; }
run 0 train "${common[@]}" --set run.dir=alone --set run.export=alone-model
expected=$(result)
run 0 train --ranks 2 "${common[@]}" --set run.dir=staged --set run.export=staged-model --set parallel.pipeline=2 \
    --set parallel.virtual_stages=2 --trace steps.json
[ "$(result)" = "$expected" ] || fail "two stages: $(result), expected $expected"
holds "r['strategy']['stages'] == 2 and r['strategy']['virtual_stages'] == 2 and abs(r['strategy']['bubble'] - 1 / 9) < 1e-6"
holds "all(x['device']['planned'] == x['device']['peak'] and 0 <= x['idle'] < 1 for x in r['ranks'])"
cmp -s alone-model/model.safetensors staged-model/model.safetensors || fail "the export of two stages is not that of one rank"
started=("${common[@]:4}" --set model.path=alone-model --set data.tokenizer=byte) # without preset and layers
run 0 train "${started[@]}" --set run.dir=again
expected=$(result)
run 0 train --ranks 2 "${started[@]}" --set run.dir=staged-again --set parallel.pipeline=2
[ "$(result)" = "$expected" ] || fail "two stages from weight files: $(result), expected $expected"
for f in steps.json steps.json.rank-1; do
    python3 -c "import json, sys; e = json.load(open('$f'))['traceEvents']; sys.exit(not any(x['name'] == 'recv' for x in e))" ||
        fail "$f shows no message"
done
run 0 plan "${common[@]}" --set parallel.pipeline=4
holds "abs(r['pipeline']['bubble'] - 3 / 7) < 1e-6 and len(r['pipeline']['stages']) == 4 and r['step_ms'] > 0"
grep -q 'stage 3   layers 3 ' err || fail "no line for the last stage: $(grep stage err)"
# The plan is the first stage's; what the last one has no room for does not fit either.
tight=(--preset test-llama --set model.tied=true --set data.seq_len=32 --set train.micro_batch=2 --set train.accumulation=2
    --set parallel.pipeline=2 --set run.threads=1 --set train.eval_rows=0 --set train.problems=0 --set memory.device=1600000 --json)
run 3 plan "${tight[@]}" --set memory.strategy=manual
holds "r['fits'] is False and [s['fits'] for s in r['pipeline']['stages']] == [True, False]"
grep -q 'stage 1 of 2 does not fit' err || fail "the stage without room is not named: $(tail -n 1 err)"
run 0 plan "${tight[@]}" # each stage chooses for itself
holds "r['fits'] is True"

# What makes no sense, with the reason.
refused() { # RANKS WORDS ARGUMENTS
    local n=$1 words=$2
    shift 2
    run 2 train --ranks "$n" --preset test-gpt2 --set train.steps=1 --set run.dir=refused "$@"
    grep -q "$words" err || fail "refused without '$words': $(tail -n 2 err)"
}
refused 4 'has 2 layers, too few for 4 stages of 1' --set parallel.pipeline=4
refused 2 '3 micro-batches per step, expected a multiple of the 2 stages' --set parallel.pipeline=2 \
    --set parallel.virtual_stages=2 --set model.layers=4 --set train.accumulation=3
refused 2 'parallel.virtual_stages: found 2 with parallel.pipeline 1' --set parallel.virtual_stages=2
refused 2 'precision: found auto with parallel.pipeline 2' --set parallel.pipeline=2 --set precision=auto
# A micro-batch that is left open is one row, which leaves the most micro-batches in flight.
run 0 train --ranks 2 --preset test-gpt2 --set train.steps=1 --set run.dir=open --set parallel.pipeline=2 --set train.batch=4 \
    --set train.micro_batch=auto --set run.threads=1
grep -qx '  micro_batch: 1' open/config.yaml || fail "a pipeline took $(grep micro_batch open/config.yaml)"
finish "pipelines on 2, 4 and 8 ranks: the bits of one; what makes no sense is refused"
