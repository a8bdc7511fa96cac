#!/bin/bash
# cli_gpu_nccl_memory.sh - 4 ranks that send to each other by NCCL and have too little memory. For rows of 16K tokens auto shares each row
# and puts states on the host, by plan and by run. A GPU whose memory another process holds ends all ranks, which name the rank, the
# bytes it asked for and those that are free. Label gpu. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
. "$(dirname "$0")/../harness/gpu_ranks.sh"
need_nccl

# ---- auto
long_rows
shares_rows="s['sequence'] == 4 and s['data_ranks'] == 1 and s['offload']['states'] == 'host'"
run 0 plan --world 4 --hardware h200 "${long[@]}" --device-memory 56M --set comm.transport=nccl
holds "[s for s in [r['chosen']['strategy']] if $shares_rows]"
timeout 300 "$RALO" train --ranks 4 "${long[@]}" --device-memory 56M --set comm.transport=nccl --set run.dir=long-run >out 2>err </dev/null ||
    fail "auto with long rows: $(tail -n 3 err)"
holds "[s for s in [r['strategy']] if $shares_rows] and r['tokens'] == 3 * 4 * 16384"
planned
shared=$(get "r['loss']['last']")
echo "rows of 16K tokens: $(get "r['strategy']"), loss $shared, $(get "r['step_ms']") ms"
timeout 300 "$RALO" train "${long[@]}" --set train.accumulation=4 --set run.dir=long-alone >out 2>err </dev/null || fail "long rows alone: $(tail -n 3 err)"
[ "$(get "abs(r['loss']['last'] - $shared) < 2e-3 * r['loss']['last']")" = True ] || fail "long rows: loss $shared, one rank $(get "r['loss']['last']")"

# ---- a full GPU
holder=
trap '[ -z "$holder" ] || kill $holder 2>/dev/null; [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$work"' EXIT
${CC:-cc} -Wall -Wextra -Werror -o hold_gpu "$project/tests/plugins/hold_gpu.c" -ldl || die "hold_gpu does not compile"
hold() { # MIB that stay free
    "$work/hold_gpu" $(($1 << 20)) >held 2>&1 &
    holder=$!
    until grep -q '^holds' held; do
        kill -0 $holder 2>/dev/null || die "hold_gpu: $(cat held)"
        sleep 0.05
    done
}
release() {
    kill $holder
    { wait $holder; } 2>/dev/null
    holder=
}
start_full() { # 4 ranks with a plan of 5.8 GiB each, in the background as $pid; returns when one of them says what is wrong
    : >log
    CUDA_VISIBLE_DEVICES=0 timeout 100 "$RALO" train --ranks 4 "${common[@]}" --set run.dir=full --set comm.transport=nccl --set parallel.zero=2 \
        --set train.micro_batch=16384 --set memory.strategy=manual --set memory.recompute=none --set memory.device=20G >/dev/null 2>log </dev/null &
    pid=$!
    while kill -0 $pid 2>/dev/null && ! grep -q error log; do sleep 0.02; done
}
# The plan fits memory.device, and the GPU has room for one of the four.
hold 10240
start_full
ends 3 10 "a GPU without room for all ranks"
release
grep -q 'rank [0-3].*the plan needs [0-9.]* GiB of GPU memory and [0-9.]* [GM]iB of [0-9.]* GiB are free.*nvidia-smi.*memory.device' log ||
    fail "no room: nobody says which rank, what it asked for and what is free: $(tail -n 5 log)"
# Not even for the driver's contexts: whoever comes too late says so.
hold 1200
start_full
ends 3 10 "a GPU without room for contexts"
release
grep -q 'GPU 0, .* has none of its .* free for one more process.*nvidia-smi' log || fail "no contexts: $(tail -n 5 log)"
finish "auto shares rows of 16K tokens and offloads; a full GPU ends all ranks with its cause"
