#!/bin/bash
# cli_gpu_nccl.sh - 2 and 4 ranks that send to each other by NCCL. On a machine with fewer GPUs than ranks they share one, and NCCL
# connects them over sockets. N ranks have the bits of one rank that takes N micro-batches, in every stage of ZeRO; tensor, sequence
# and pipeline ranks and their mixtures have the bits that the same ranks have by MPI. A rank that is killed and
# one that is stopped end all ranks and are named. Label gpu. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
. "$(dirname "$0")/../harness/gpu_ranks.sh"
need_nccl

for n in 2 4; do
    train 1 --set train.accumulation=$n
    alone=$(result)
    for zero in 0 1 2 3; do
        train $n --set train.accumulation=1 --set parallel.zero=$zero --set comm.transport=nccl
        [ "$(result)" = "$alone" ] || fail "$n ranks, ZeRO $zero: $(result), one rank $alone"
        planned
    done
done
while read -r n settings; do
    arguments=(--set train.accumulation=2)
    for setting in $settings; do arguments+=(--set "$setting"); done
    train "$n" "${arguments[@]}" --set comm.transport=mpi
    by_mpi=$(result)
    train "$n" "${arguments[@]}" --set comm.transport=nccl
    [ "$(result)" = "$by_mpi" ] || fail "$n ranks, $settings: $(result), by MPI $by_mpi"
    planned
done <<'EOF'
2 parallel.tensor=2
2 parallel.sequence=2 parallel.attention=heads
2 parallel.sequence=2 parallel.attention=ring
4 parallel.sequence=4 parallel.attention=ring precision=bf16
2 parallel.pipeline=2
4 parallel.tensor=2 parallel.zero=2 precision=bf16_sr
4 parallel.tensor=2 parallel.pipeline=2
4 parallel.sequence=2 parallel.zero=3 precision=bf16 memory.recompute=full
4 parallel.zero=3 memory.offload.states=host precision=fp16
EOF

# Sections with messages are CUDA graphs; with their ops queued one by one they have the same bits.
for settings in "2 --set parallel.zero=3" "4 --set parallel.tensor=2 --set parallel.pipeline=2 --set train.accumulation=2"; do
    train $settings --set comm.transport=nccl
    as_graphs=$(result)
    RALO_NCCL_GRAPHS=off train $settings --set comm.transport=nccl
    [ "$(result)" = "$as_graphs" ] || fail "$settings: op by op $(result), as graphs $as_graphs"
done
RALO_NCCL_GRAPHS=maybe run 2 train --ranks 2 "${common[@]}" --set run.dir=maybe --set comm.transport=nccl
grep -q 'RALO_NCCL_GRAPHS: found maybe, expected on or off' err || fail "RALO_NCCL_GRAPHS=maybe: $(tail -n 2 err)"

# A ring of keys and values has the sums of one rank in another order.
train 1 --set train.accumulation=2
alone=$(get "r['loss']['last']")
for n in 2 4; do
    train $n --set train.accumulation=2 --set parallel.sequence=$n --set parallel.attention=ring --set comm.transport=nccl
    [ "$(get "abs(r['loss']['last'] - $alone) < 1e-4")" = True ] || fail "a ring of $n: loss $(get "r['loss']['last']"), one rank $alone"
done

# Faults. What a rank that is gone leaves waiting is a kernel of NCCL's on every other GPU.
start_run() { # SETTINGS: in the background as $pid, stderr in log; returns when it steps
    : >log
    "$RALO" train --ranks 4 "${common[@]}" --set train.steps=1000000 --set run.dir=faults --set comm.transport=nccl \
        --set parallel.zero=2 --set train.log_every=1 "$@" >/dev/null 2>log </dev/null &
    pid=$!
    await_step log "a run of 4 ranks"
}
ranks_of_run() { pgrep -P "$(pgrep -P $pid -x mpirun)" | sort -n; }
start_run
victims=($(ranks_of_run))
kill -9 "${victims[2]}"
ends 1 10 "a killed rank"
grep -q "rank [0-9]* (pid ${victims[2]} on .*died" log || fail "killed: nobody names it: $(tail -n 5 log)"
start_run --set comm.timeout=10
victims=($(ranks_of_run))
kill -STOP "${victims[1]}"
ends 1 25 "a stopped rank" # the timeout, a grace of 5 s, and mpirun's second
grep -q "pid ${victims[1]} on .* does not respond" log || fail "stopped: nobody names it: $(tail -n 5 log)"
finish "2 and 4 ranks by NCCL have the bits of one rank and of MPI; a killed and a stopped rank are named"
