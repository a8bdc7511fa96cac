#!/bin/bash
# cli_zero.sh - the same bits on 2, 3, 4 and 8 ranks in every stage of ZeRO (ranks_zero.c), and checkpoints that go from one
# number of ranks to another. RALO names the program, RALO_BUILD the build directory; RALO_MATRIX=large (`make matrix`) tries
# every technique of memory on top of every stage.
. "$(dirname "$0")/../harness/check.sh"
need mpirun "install openmpi-bin"
need python3
ranks_zero=${RALO_BUILD:?the build directory}/tests/ranks_zero
need_program "$ranks_zero"
export OMPI_MCA_btl_vader_single_copy_mechanism=none # as ralo sets it: refused in many containers, with a warning
under_mpirun() { # N PROGRAM ARGUMENTS: output in log
    local n=$1 root=
    shift
    [ "$(id -u)" != 0 ] || root=--allow-run-as-root
    timeout 1200 mpirun --quiet --oversubscribe --bind-to none $root -n "$n" "$@" >log 2>&1 </dev/null
}
if ! under_mpirun 2 "$ranks_zero" probe; then
    grep -q 'built without' log && { echo "this ralo was built without MPI"; exit 77; }
    die "two ranks do not meet: $(tail -n 3 log)"
fi
for n in 2 3 4 8; do
    under_mpirun $n "$ranks_zero" "${RALO_MATRIX:-small}" || fail "$n ranks: $(tail -n 5 log)"
    grep -q "^[1-9][0-9]* cells on $n ranks" log || fail "$n ranks did not end: $(tail -n 3 log)"
    tail -n 1 log
done

# 24 micro-batches per step, however many ranks share them: a run that is never stopped, and one that goes from 8 ranks to
# one, to 3, to 4 and back to 8, with other stages and homes on the way.
common=(--preset test-gpt2 --set precision=bf16 --set train.micro_batch=1 --set train.batch=24 --set data.seq_len=16
    --set train.warmup=0 --set train.schedule=constant --set train.problems=0 --set train.eval_rows=5 --set run.threads=1
    --set run.bind=false --json)
train() { # RANKS STEPS ARGUMENTS
    local n=$1 steps=$2
    shift 2
    run 0 train --ranks "$n" "${common[@]}" --set train.steps="$steps" "$@"
}
hash() { python3 -c "import json; r = json.loads(open('out').read().splitlines()[-1]); print(r['param_hash'], r['loss']['last'])"; }
train 1 10 --set run.dir=whole
expected=$(hash)
train 8 2 --set run.dir=moved --set parallel.zero=3 --set train.save_every=1
holds "r['world'] == 8 and all(x[t]['planned'] == x[t]['peak'] for x in r['ranks'] for t in ('device', 'host', 'nvme'))"
ls moved/checkpoints/step-00000002/tensors-rank-00007-* >/dev/null || fail "the last rank wrote nothing"
ls moved/checkpoints/step-00000002/part-* 2>/dev/null && fail "parts were left behind"
train 1 4 --set run.dir=moved --resume auto
train 3 6 --set run.dir=moved --resume auto --set parallel.zero=2 --set memory.offload.states=host
train 4 8 --set run.dir=moved --resume auto --set parallel.zero=3 --set memory.recompute=full --set parallel.persist_below=500
train 8 10 --set run.dir=moved --resume auto --set parallel.zero=2 --set run.export=exported
[ "$(hash)" = "$expected" ] || fail "moved between ranks: $(hash), expected $expected"
run 0 export whole alone
cmp -s exported/model.safetensors alone/model.safetensors || fail "the export of 8 ranks is not that of one"

# What cannot be is refused, with its reason.
run 2 train --ranks 5 "${common[@]}"
grep -q 'train.batch: found 24, expected a multiple of the 5 ranks that share it' err || fail "5 ranks: $(tail -n 2 err)"
finish "ZeRO 0 to 3 on 2 to 8 ranks; checkpoints from 8 to 1, 3, 4 and back"
