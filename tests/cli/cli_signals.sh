#!/bin/bash
# cli_signals.sh - SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 stop a run after a checkpoint with exit code 130, and the resumed run ends with the
# parameters of the run that was left alone; in an evaluation too, which says how far it is. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
steps=150
settings=(--preset test-qwen3 --set data.seq_len=48 --set train.micro_batch=6 --set train.steps=$steps --set train.warmup=10
    --set train.log_every=1 --set train.eval_rows=2 --set train.problems=0 --json)
hash_of() { python3 -c 'import json, sys; print(json.load(sys.stdin)["param_hash"])'; }

"$RALO" train "${settings[@]}" --set run.dir=whole >whole.json 2>whole.log || die "the whole run: $(tail -n 1 whole.log)"
whole=$(hash_of <whole.json)

# stop SIGNALS DIRECTORY LINES MORE...: signals, all at once, when LINES progress lines are there
stop() {
    local signal=$1 dir=$2 lines=$3 rc
    shift 3
    : >"$dir.log" # the shell empties it only when the run starts, a moment after the next lines
    "$RALO" train "${settings[@]}" --set run.dir="$dir" "$@" >"$dir.json" 2>"$dir.log" &
    pid=$!
    while [ "$(grep -c 'step [0-9]*/' "$dir.log")" -lt "$lines" ]; do
        kill -0 $pid 2>/dev/null || die "$signal: the run ended by itself: $(tail -n 1 "$dir.log")"
        sleep 0.02
    done
    kill -STOP $pid
    for one in $signal; do kill -"$one" $pid; done
    kill -CONT $pid
    wait $pid
    rc=$?
    pid=
    [ $rc = 130 ] || die "$signal: exit code $rc, expected 130: $(tail -n 1 "$dir.log")"
    [[ $signal == USR* ]] || grep -q '^stopping after this step' "$dir.log" || die "$signal: nothing said that it was heard"
    [ ! -s "$dir.json" ] || die "$signal: an interrupted run printed a result"
    step=$(sed -n 's/^stopped: interrupted after step \([0-9]*\) of.*/\1/p' "$dir.log")
    [ -n "$step" ] || die "$signal: no word on how to go on: $(tail -n 1 "$dir.log")"
    grep -q "\"state\": \"stopped\", \"error\": null, \"step\": $step," "$dir/run.json" || die "$signal: its state: $(cat "$dir/run.json")"
    [ "$step" -lt $steps ] || die "$signal: came too late to prove anything"
    [ -f "$dir/checkpoints/step-$(printf %08d "$step")/checkpoint.json" ] || die "$signal: no checkpoint of step $step"
    echo "$signal: stopped after step $step"
}
resume() {
    "$RALO" train "${settings[@]}" --set run.dir="$1" --resume auto >"$1.json" 2>"$1.log" || die "resume: $(tail -n 1 "$1.log")"
    grep -q "resumed from .*: step $step," "$1.log" || die "$1 did not resume from step $step"
    grep -q "\"state\": \"finished\", \"error\": null, \"step\": $steps," "$1/run.json" || die "$1: its state: $(cat "$1/run.json")"
    [ "$(hash_of <"$1.json")" = "$whole" ] || die "$1 ends with other parameters than the whole run"
}

stop INT "the first" 12
grep -qxF "stopped: interrupted after step $step of $steps; the state is saved, continue with: $RALO train 'the first'" "the first.log" ||
    fail "what to go on with cannot be pasted: $(tail -n 1 "the first.log")"
resume "the first"
stop TERM second 25 --set train.save_every=10 # now with a writer in the background
before=$step
# A terminal that closes; where the tests run under nohup, it cannot be told from one that does not.
hangup=HUP
(($((16#$(awk '/^SigIgn/ { print $2 }' /proc/self/status))) & 1)) && hangup=INT
stop $hangup second 8 --resume auto --set train.save_every=10 # stopped again
[ "$step" -gt "$before" ] || die "the second part made no step"
resume second
# What stops a run may send two signals of one cause, such as `timeout` to its child and to the group of it: nothing is lost.
stop "TERM INT" fifth 8
resume fifth
# Job schedulers and mpirun send these; what sends them says so.
stop USR1 fourth 8
stop USR2 fourth 8 --resume auto
resume fourth

# Under nohup the terminal may close: the run goes on to its end.
(
    trap '' HUP
    exec "$RALO" train "${settings[@]}" --set run.dir=third >third.json 2>third.log
) &
pid=$!
await_step third.log "nohup"
kill -HUP $pid
wait $pid || die "nohup: a hangup that is ignored ended the run: $(tail -n 1 third.log)"
pid=
[ "$(hash_of <third.json)" = "$whole" ] || die "nohup: other parameters than the whole run"

# halt DIR TEXT MORE...: a signal once TEXT is there ends an evaluation of many minutes
halt() {
    local dir=$1 text=$2 rc
    shift 2
    : >"$dir.log"
    "$RALO" train "${settings[@]}" --set train.steps=4 --set train.warmup=0 --set run.dir="$dir" --set train.eval_rows=100000000 "$@" \
        >"$dir.json" 2>"$dir.log" &
    pid=$!
    for i in $(seq 1500); do
        ! grep -q "$text" "$dir.log" || break
        kill -0 $pid 2>/dev/null || die "$dir: the run ended by itself: $(tail -n 1 "$dir.log")"
        sleep 0.02
    done
    grep -q "$text" "$dir.log" || die "$dir: never said '$text'"
    kill -INT $pid
    for i in $(seq 1500); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.02
    done
    ! kill -0 $pid 2>/dev/null || die "$dir: the evaluation goes on after a signal"
    wait $pid
    rc=$?
    pid=
    [ $rc = 130 ] || die "$dir: exit code $rc, expected 130: $(tail -n 1 "$dir.log")"
    [ ! -s "$dir.json" ] || die "$dir: an interrupted run printed a result"
}
halt last 'eval at step 4  row [0-9]*/100000000'
grep -q "^stopped: interrupted in the evaluation after step 4 of 4; the state is saved" last.log || die "last: $(tail -n 1 last.log)"
run 0 train "${settings[@]}" --set train.steps=4 --set train.warmup=0 --set run.dir=last --resume auto
grep -q '^eval at step 4  loss' err || die "the last evaluation is not made up for: $(tail -n 3 err)"
halt between 'step 2/4' --set train.eval_every=2
grep -q "^stopped: interrupted after step 2 of 4; the state is saved" between.log || die "between: $(tail -n 1 between.log)"
[ -f between/checkpoints/step-00000002/checkpoint.json ] || die "between: no checkpoint of step 2"
halt unsaved 'step 4/4' --set run.save_last=false
grep -q "^stopped: interrupted in the evaluation after step 4 of 4, which is not saved: run.save_last is false" unsaved.log ||
    die "unsaved: $(tail -n 1 unsaved.log)"
[ $failures = 0 ] || exit 1
echo "resumed runs end with $whole, as the whole run does"
