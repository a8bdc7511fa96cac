#!/bin/bash
# cli_ranks_kill.sh - kill -9 of a random rank at a random moment of a run that saves after every step: the run ends within
# ten seconds and names the rank, no step that was on disk is lost, and the run ends with the parameters of one that was
# never killed. A rank that is stopped, one that cannot write, one with other settings, SIGTERM and Ctrl-C, likewise.
# RALO names the program, RALO_KILLS the number of kills (6), RALO_KILL_RANKS the number of ranks (3).
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3 "it reads the JSON output"
need prlimit "install util-linux"
kills=${RALO_KILLS:-6} n=${RALO_KILL_RANKS:-3}
# A constant learning rate: the parameters after some steps do not depend on how many were planned.
settings=(--preset test-gpt2 --set data.seq_len=16 --set train.micro_batch=1 --set train.warmup=0
    --set train.schedule=constant --set train.eval_rows=0 --set train.problems=0 --set train.log_every=1
    --set parallel.zero=2)
hash_of() { python3 -c 'import json, sys; print(json.load(sys.stdin)["param_hash"])'; }
newest() { ls run/checkpoints 2>/dev/null | sed -n 's/^step-0*\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }
# The ranks of the run whose guardian is $pid, in the order they were started.
ranks_of_run() { pgrep -P "$(pgrep -P $pid -x mpirun)" | sort -n; }
start_run() { # SETTINGS: in the background as $pid, stderr in log; returns when it steps
    : >log # the shell empties it only when the run starts, a moment after the next lines
    "$RALO" train "${settings[@]}" --ranks $n --set train.steps=1000000 --set run.dir=run --resume auto "$@" >/dev/null 2>log &
    pid=$!
    await_step log "a run of $n ranks"
}
# ends CODE SECONDS WHAT: the run ends by itself in time.
ends() {
    local start=$SECONDS rc
    while kill -0 $pid 2>/dev/null && [ $((SECONDS - start)) -le "$2" ]; do sleep 0.02; done
    kill -0 $pid 2>/dev/null && die "$3: still there after $2 s: $(tail -n 5 log)"
    { wait $pid; } 2>/dev/null
    rc=$?
    pid=
    [ $rc = "$1" ] || die "$3: exit code $rc, expected $1: $(tail -n 5 log)"
}

last=0
for ((i = 1; i <= kills; i++)); do
    start_run --set train.save_every=1
    [ "$last" = 0 ] || grep -q "resumed from .*: step $last," log ||
        die "kill $i: step $last was on disk: $(grep resumed log || tail -n 3 log)"
    sleep "0.$(printf %03d $((RANDOM % 400)))"
    victims=($(ranks_of_run))
    [ ${#victims[@]} = $n ] || die "kill $i: found ${#victims[@]} of $n ranks"
    victim=${victims[$((RANDOM % n))]}
    kill -9 "$victim"
    ends 1 10 "kill $i"
    grep -q "error: .*rank [0-9]* (pid $victim on .*), step [0-9]*.* died" log || die "kill $i: nobody names pid $victim: $(tail -n 5 log)"
    now=$(newest)
    [ "${now:-0}" -ge "$last" ] || die "kill $i: step $last was on disk and is gone, newest is '${now:-none}'"
    last=${now:-0}
done

start_run --set comm.timeout=10
victims=($(ranks_of_run))
kill -STOP "${victims[1]}"
ends 1 25 "a rank that stands still" # the timeout, a grace of 5 s, and mpirun's second
grep -q "ends: rank 1 (pid ${victims[1]} on .* does not respond.* waited 10 s (comm.timeout) in .* for rank 1" log || fail "stopped: nobody names it: $(tail -n 5 log)"

start_run --restarts 3 # which are for deaths
kill -INT $pid
ends 130 10 "Ctrl-C"
grep -q 'the state is saved' log && ! grep -q '^restart' log || fail "Ctrl-C: $(tail -n 3 log)"

# SIGTERM or SIGHUP to mpirun is a request to stop like Ctrl-C: in a step, in the last evaluation, and before there is a run directory.
start_run --restarts 3
kill -TERM "$(pgrep -P $pid -x mpirun)"
ends 130 10 "SIGTERM to mpirun"
grep -q '^stopped: .*interrupted after step [0-9]* of .*; the state is saved' log && ! grep -q '^restart' log || fail "SIGTERM to mpirun: $(tail -n 3 log)"
: >log
"$RALO" train "${settings[@]}" --ranks 2 --set train.steps=1 --set train.eval_rows=100000000 --set run.dir=evaluated >/dev/null 2>log &
pid=$!
until grep -q 'eval at step 1  row' log; do kill -0 $pid 2>/dev/null || die "no last evaluation: $(tail -n 3 log)"; sleep 0.02; done
kill -HUP "$(pgrep -P $pid -x mpirun)"
ends 130 10 "SIGHUP to mpirun in the last evaluation"
grep -q '^stopped: .*interrupted in the evaluation after step 1 of 1; the state is saved' log || fail "SIGHUP to mpirun in the last evaluation: $(tail -n 3 log)"
for delay in 0 0.1; do
    : >log
    "$RALO" train "${settings[@]}" --ranks $n --set train.steps=1000000 --set run.dir=sooner --resume auto >/dev/null 2>log &
    pid=$!
    until pgrep -P $pid -x mpirun >/dev/null; do sleep 0.01; done
    sleep $delay
    kill -TERM "$(pgrep -P $pid -x mpirun)"
    ends 130 15 "SIGTERM to mpirun $delay s after it has started"
    grep -q '^stopped: ' log || fail "SIGTERM to mpirun $delay s after it has started: $(tail -n 3 log)"
done

# SIGINT it answers itself: it hands on no more of what the ranks print and kills them a second later. They have saved or say that they
# would have, and the guardian says why the run ended: no rank has died.
start_run --restarts 3
rm -f run/errors.txt
kill -INT "$(pgrep -P $pid -x mpirun)"
ends 130 10 "SIGINT to mpirun"
grep -q 'interrupted after step .* the state is saved\|the run received SIGTERM' run/errors.txt || fail "SIGINT to mpirun: $(cat run/errors.txt)"
grep -q "^stopped: mpirun (pid [0-9]*) was asked to end by a signal; the newest complete checkpoint is of step [0-9]*, continue with: [^ ]* train --ranks $n run; what the ranks have said is in run/errors.txt$" log &&
    ! grep -q '^restart' log || fail "SIGINT to mpirun: $(tail -n 3 log)"

# An mpirun that is stopped: before its ranks have joined, or while they run, which then go on from their checkpoint.
: >log
"$RALO" train "${settings[@]}" --ranks $n --set train.steps=1000000 --set run.dir=never --set comm.timeout=1 >/dev/null 2>log &
pid=$!
until pgrep -P $pid -x mpirun >/dev/null; do sleep 0.005; done
kill -STOP "$(pgrep -P $pid -x mpirun)"
ends 1 20 "mpirun is stopped at once"
grep -q '^error: mpirun (pid [0-9]*) was stopped for 1 s (comm.timeout) and was killed' log || fail "mpirun is stopped at once: $(tail -n 3 log)"
start_run --set comm.timeout=5 --restarts 1 --set train.log_every=100
kill -STOP "$(pgrep -P $pid -x mpirun)"
until grep -q '^restart 1 of 1: mpirun was killed' log; do kill -0 $pid 2>/dev/null || die "mpirun is stopped: $(tail -n 3 log)"; sleep 0.05; done
until pgrep -P "$(pgrep -P $pid -x mpirun)" >/dev/null 2>&1; do sleep 0.05; done
kill -INT $pid
ends 130 20 "a run whose mpirun was stopped"

# Before there is anything to save: while mpirun starts, while its ranks do, while they plan. No signal gets lost on the way, and
# none is told as a crash.
for delay in 0 0.03 0.06 0.1 0.2 0.3; do
    : >log
    "$RALO" train "${settings[@]}" --ranks $n --set train.steps=1000000 --set run.dir=early --resume auto >/dev/null 2>log &
    pid=$!
    until pgrep -P $pid -x mpirun >/dev/null; do sleep 0.01; done
    sleep $delay
    kill -INT $pid
    ends 130 15 "Ctrl-C $delay s after mpirun has started"
    ! grep -q died log || fail "Ctrl-C $delay s after mpirun has started: $(tail -n 3 log)"
done

start_run --set run.save_last=false # all save, also those that the signal did not reach
victims=($(ranks_of_run))
kill -INT "${victims[1]}"
ends 130 10 "a signal to one rank"
last=$(newest)
grep -q "interrupted after step $last of .* the state is saved, continue with: [^ ]* train --ranks [0-9]* " log || fail "a signal to one rank, newest is $last: $(tail -n 3 log)"

# A rank that cannot write its share fails alone, while the others wait for it: they hear why, and nothing else is said.
: >log
"${mpirun[@]}" -n $n "$RALO" train "${settings[@]}" --set train.steps=1000000 --set run.dir=full \
    >/dev/null 2>log &
pid=$!
await_step log "a share that cannot be written"
victims=($(pgrep -P $pid | sort -n))
[ ${#victims[@]} = $n ] || die "a share that cannot be written: found ${#victims[@]} of $n ranks"
prlimit --pid "${victims[1]}" --fsize=4096:4096
kill -INT "${victims[0]}"
ends 1 10 "a share that cannot be written"
grep -q "^error: rank 1 (pid ${victims[1]} on .*was not written, earlier ones are untouched" log || fail "a share that cannot be written: $(tail -n 4 log)"
[ "$(grep -c '^error: rank [0-9]* ends: rank 1 (pid .*was not written' log)" = $((n - 1)) ] ||
    fail "a share that cannot be written: not all hear why: $(tail -n 4 log)"
! grep -q 'NBC\|MPI_ERR\|exchange' log || fail "a share that cannot be written: ranks met in different exchanges: $(grep 'NBC\|MPI_ERR\|exchange' log)"

one=("$RALO" train "${settings[@]}" --set run.dir=other --set train.steps=2)
under_mpirun 2 "${one[@]}" : -n 1 "${one[@]}" --set train.lr=0.5
rc=$?
[ $rc = 2 ] || fail "different settings: exit code $rc: $(tail -n 3 log)"
grep -q "ranks differ in their settings: rank 2 (.*) has 'lr: 0.5', rank 0 (.*) has 'lr: " log || fail "different settings: $(cat log)"
[ "$(grep -c '^error' log)" = 1 ] || fail "different settings: said more than once: $(cat log)"
[ ! -e other ] || fail "different settings: a run was begun"

end=$((last + 3))
"$RALO" train "${settings[@]}" --ranks $n --set train.steps=$end --set run.dir=run --resume auto --json >run.json 2>log ||
    die "the last part: $(tail -n 1 log)"
"$RALO" train "${settings[@]}" --ranks $n --set train.steps=$end --set run.dir=whole --json >whole.json 2>log ||
    die "the run without kills: $(tail -n 1 log)"
[ "$(hash_of <run.json)" = "$(hash_of <whole.json)" ] || die "after $kills kills and $end steps the parameters differ"
finish "$kills kills of one of $n ranks, $end steps: every death named, same parameters as without"
