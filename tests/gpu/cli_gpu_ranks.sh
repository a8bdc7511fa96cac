#!/bin/bash
# cli_gpu_ranks.sh - several ranks on the one GPU of a machine, through MPI and pinned memory: N ranks end with the bits of one
# rank that takes N micro-batches, and ranks that share a model or a row come near the losses of one. Label gpu: skipped
# where there is none. RALO names the program; RALO_MATRIX=large tries every precision in every stage.
. "$(dirname "$0")/../harness/check.sh"
. "$(dirname "$0")/../harness/gpu_ranks.sh"

same() { # PRECISION ZERO...: 2 and 4 ranks in these stages against one
    local precision=$1 n zero expected
    shift
    for n in 2 4; do
        train 1 --set precision=$precision --set train.accumulation=$n
        expected=$(result)
        for zero; do
            train $n --set precision=$precision --set train.accumulation=1 --set parallel.zero=$zero
            [ "$(result)" = "$expected" ] ||
                fail "$precision, $n ranks, ZeRO $zero: $(result), expected $expected"
            holds "r['world'] == $n and all(x[t]['planned'] == x[t]['peak'] for x in r['ranks'] for t in ('device', 'host', 'nvme'))"
            holds "all(0 < x['gpu_context'] < 4 << 30 for x in r['ranks'])" # each its part of what the driver counts
        done
    done
}
if [ "${RALO_MATRIX:-small}" = large ]; then
    for precision in fp32 bf16 bf16_sr fp16; do same $precision 0 1 2 3; done
else
    same fp32 0 3
    same bf16_sr 2
fi
train 4 --set parallel.zero=3 --set memory.offload.states=host --set memory.recompute=full --set precision=bf16
planned

# Other orders of the same sums: near, not equal. A pipeline alone has the bits of one rank.
train 1 --set train.accumulation=2
alone=$(get "r['loss']['last']") hash=$(get "r['param_hash']")
for axis in tensor sequence pipeline; do
    train 2 --set train.accumulation=2 --set parallel.$axis=2
    near=$(get "abs(r['loss']['last'] - $alone) < 1e-4")
    [ "$near" = True ] || fail "parallel.$axis=2: loss $(get "r['loss']['last']"), one rank $alone"
done
[ "$(get "r['param_hash']")" = "$hash" ] || fail "pipeline: $(get "r['param_hash']"), one rank $hash"
train 4 --set parallel.tensor=2 --set parallel.zero=2

# A critic whose rows are shared: its kernels sum values and pairs over the ranks of a row, in another order.
critic=(--set train.task=critic --set data.source=builtin:solutions --set data.difficulty=1 --set data.seq_len=72 --set precision=fp32)
for way in "heads mlp pairwise" "ring mlp lambda" "ring sigmoid lambda"; do
    read -r attention head name <<<"$way"
    sets=("${critic[@]}" --set critic.head=$head --set critic.loss=$name)
    train 1 "${sets[@]}"
    alone=$(get "r['loss']['last']")
    train 2 "${sets[@]}" --set parallel.sequence=2 --set parallel.attention=$attention
    near=$(get "abs(r['loss']['last'] - $alone) < 1e-4")
    [ "$near" = True ] || fail "a critic, $way: loss $(get "r['loss']['last']"), one rank $alone"
    planned
done

# auto with rows of 16K tokens and too little memory: ranks share rows, and states wait on the host. The mesh is opened again for that.
long_rows
timeout 300 "$RALO" train --ranks 4 "${long[@]}" --device-memory 56M --set run.dir=long-run >out 2>err </dev/null || fail "auto with long rows: $(tail -n 3 err)"
holds "r['strategy']['sequence'] == 4 and r['strategy']['offload']['states'] == 'host' and r['tokens'] == 3 * 4 * 16384"
planned
shared=$(get "r['loss']['last']")
timeout 300 "$RALO" train "${long[@]}" --set train.accumulation=4 --set run.dir=long-alone >out 2>err </dev/null || fail "long rows alone: $(tail -n 3 err)"
[ "$(get "abs(r['loss']['last'] - $shared) < 2e-3 * r['loss']['last']")" = True ] || fail "long rows: loss $shared, one rank $(get "r['loss']['last']")"
finish "2 and 4 ranks on one GPU have the bits of one rank; tensor, sequence and pipeline ranks its losses, a critic too"
