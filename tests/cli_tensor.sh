#!/bin/bash
# cli_tensor.sh - one model shared by 2, 4 and 8 ranks (ranks_tensor.c), and what cannot be shared is refused. RALO names the
# program, RALO_BUILD the build directory.
. "$(dirname "$0")/check.sh"
need_ranks
ranks_tensor=${RALO_BUILD:?the build directory}/tests/ranks_tensor
[ -x "$ranks_tensor" ] || { echo "ranks_tensor was not built: cmocka is missing"; exit 77; }
for n in 2 4 8; do
    under_mpirun $n "$ranks_tensor" || fail "$n ranks: $(tail -n 5 log)"
    grep -qx "tensor parallel on $n ranks: as one rank" log || fail "$n ranks did not end: $(tail -n 3 log)"
done

# What cannot be cut, with the reason. test-llama: 4 heads, 2 of k and v, 160 columns.
refused() { # N WORDS ARGUMENTS
    local n=$1 words=$2
    shift 2
    run 2 train --ranks "$n" --preset test-llama --set parallel.tensor="$n" --set train.steps=1 --set run.dir=refused "$@"
    grep -q "$words" err || fail "refused without '$words': $(tail -n 2 err)"
}
refused 3 'has 4 heads, which 3 ranks cannot share'
refused 4 '162 feed-forward columns, which 4 ranks' --set model.ffn=162
refused 2 '3 kv heads, which 2 ranks cannot share' --set model.heads=6 --set model.kv_heads=3 --set model.head_dim=16
refused 2 'micro-batch of 1 x 25 tokens cannot be shared by 2' --set train.micro_batch=1 --set data.seq_len=25
refused 2 'memory.states: found int8 with parallel.tensor 2' --set memory.states=int8
finish "one model on 2, 4 and 8 ranks; what cannot be cut is refused"
