#!/bin/bash
# cli_ranks.sh - many ranks under mpirun: collectives on 1, 2, 3, 4 and 8 of them, ranks that are killed, crash or stop, and
# the face of `ralo train --ranks`. RALO names the program, RALO_BUILD the build directory.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
ranks_comm=${RALO_BUILD:?the build directory}/tests/ranks_comm
need_program "$ranks_comm"

for n in 1 2 3 4 8; do
    under_mpirun $n "$ranks_comm" || fail "$n ranks: $(tail -n 5 log)"
    grep -qx "$n ranks: all collectives" log || fail "$n ranks did not end: $(tail -n 3 log)"
done

# The first cause, on every rank that lived, soon. mpirun itself needs a second to end a rank that is stopped.
for how in kill crash busy stop; do
    start=$(date +%s)
    under_mpirun 4 "$ranks_comm" $how && fail "$how: mpirun says all is well"
    took=$(($(date +%s) - start))
    [ $took -le 12 ] || fail "$how: ended after $took s" # stop: a timeout of 2 s and a grace of 5
    for rank in 0 2 3; do
        grep -q "rank $rank \(ends\|hears\): .*rank 1 (pid [0-9]* on .*), step 3, computing linear of layer 4 (micro)" log ||
            fail "$how: rank $rank does not name rank 1: $(cat log)"
    done
done
grep -q 'waited 2 s (comm.timeout) in all_reduce of '"'y'" log || fail "stop: the watchdog does not say for what: $(cat log)"
under_mpirun 4 "$ranks_comm" end && fail "end: mpirun says all is well"
for rank in 0 2 3; do
    grep -q "rank $rank misses rank 1: rank 1 (pid [0-9]* on .*) was stopped .*; the others have waited 2 s (comm.timeout) for all ranks to end" log ||
        fail "end: rank $rank does not name rank 1: $(cat log)"
done

# The clock counts from the beginning: ranks that were stopped or hang before they join are named by those that wait in MPI's start.
joins=("$RALO" train --preset test-gpt2 --set train.steps=1 --set comm.timeout=1 --set run.dir=never)
under_mpirun 1 "${joins[@]}" : -n 1 bash -c 'kill -STOP $$; exec "$@"' - "${joins[@]}" : -n 1 bash -c 'sleep 1000; exec "$@"' - "${joins[@]}" &&
    fail "ranks that do not join: mpirun says all is well"
grep -q '^error: rank 0 ends: rank 1 (pid [0-9]* on .*) was stopped (kill -CONT continues it), rank 2 (pid [0-9]* on .*) hangs or computes, and has not come to this point; the others have waited 1 s (comm.timeout) for all ranks to join$' log ||
    fail "ranks that do not join: $(cat log)"
[ ! -e never ] || fail "ranks that do not join: a run was begun"

# The face: one JSON object, what was typed wrong is said once, and the launcher's count is the count.
small=(--preset test-gpt2 --set train.steps=2 --set train.eval_rows=0 --set train.problems=0)
run 0 train --ranks 2 "${small[@]}" --set run.dir=a --json
[ "$(wc -l <out)" = 1 ] || fail "not one line of JSON: $(cat out)"
holds 'r["world"] == 2 and r["steps"] == 2'
grep -q '"world": 2,.*"state": "finished",.*"step": 2' a/run.json || fail "the state of two ranks: $(cat a/run.json)"
for rank in 0 1; do
    tail -n 1 a/monitor/rank-0000$rank.jsonl | grep -q '"step": 2, "rss_bytes": [0-9]*, "device_bytes": [1-9]' ||
        fail "rank $rank is not monitored: $(tail -n 1 a/monitor/*)"
done
# What is planned for ranks on these cores is what they run: the same bytes, the same prediction.
cp out trained
run 0 plan "${small[@]}" --set parallel.data=2 --json
python3 - trained out <<'END' || fail "the plan of two ranks is not the one they run: $(cat out)"
import json, sys
trained, planned = (json.load(open(f)) for f in sys.argv[1:])
assert trained["memory"]["device"]["planned"] == planned["memory"]["device"]["planned"]
assert abs(trained["predicted_step_ms"] - planned["step_ms"]) < 1e-6 * planned["step_ms"]
END
check 0 'launch    ralo train --ranks 2 --preset' -- plan "${small[@]}" --set parallel.data=2
check 2 'expected' -- train --ranks 2 "${small[@]}" --set train.lr=fast
# A warning about a setting comes once, not from every process.
run 0 train --ranks 2 "${small[@]}" --set run.dir=once --set memory.strategy=manual --set memory.bucket=1M --set run.tf32=true
[ "$(grep -c 'memory.bucket has no effect' err) $(grep -c 'run.tf32 has no effect' err)" = "1 1" ] || fail "warned: $(grep warning err)"
# A second run in the directory of one that goes on is refused before any of its ranks writes there.
"$RALO" train --ranks 2 "${small[@]}" --set train.steps=1000000 --set run.dir=mine >lone 2>log &
pid=$!
await_step log "ranks"
head -n 1 mine/monitor/rank-00001.jsonl >before
for _ in 1 2 3; do check 2 'is in use by another running ralo' -- train --ranks 2 "${small[@]}" --set run.dir=mine; done
head -n 1 mine/monitor/rank-00001.jsonl | cmp -s - before || fail "a refused run emptied a file of rank 1"
kill -TERM $pid
wait $pid
pid=
check 2 'ranks do not make a mesh' -- train --ranks 2 "${small[@]}" --set run.dir=b --set parallel.data=3
under_mpirun 2 "$RALO" train --ranks 3 "${small[@]}" --set run.dir=c && fail "--ranks 3 under mpirun -n 2"
grep -q -e '--ranks: found 3, expected 2' log || fail "--ranks 3 under mpirun -n 2: $(cat log)"

# A step that ends the run on all ranks does not take the checkpoint along that was being written.
check 1 'step 3: fp16: gradients overflow at the smallest loss scale 1' -- train --ranks 2 "${small[@]}" --set train.steps=5 \
    --set precision=fp16 --set train.fp16.initial_scale_power=0 --set train.warmup=0 --set train.lr=10 --set train.save_every=1 \
    --set run.dir=overflows
[ -d overflows/checkpoints/step-00000002 ] && [ -z "$(ls -d overflows/checkpoints/.tmp-* 2>/dev/null)" ] ||
    fail "a checkpoint was left behind: $(ls -A overflows/checkpoints)"

grep -q '"state": "failed", "error": ".*fp16: gradients overflow.*"step": 2' overflows/run.json || fail "its state: $(cat overflows/run.json)"

finish "collectives on 1 to 8 ranks; killed, crashed, busy and stopped ranks are named"
