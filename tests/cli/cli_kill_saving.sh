#!/bin/bash
# cli_kill_saving.sh - kill -9 at random moments of a run that saves after every step: the newest whole checkpoint always
# loads, no step that was on disk is lost, and the run ends with the parameters of one that was never killed.
# RALO names the program, RALO_KILLS the number of kills (10).
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
kills=${RALO_KILLS:-10}
# A constant learning rate: the parameters after n steps do not depend on how many were planned.
settings=(--preset test-gpt2 --set precision=bf16 --set data.seq_len=16 --set train.micro_batch=1 --set train.warmup=0
    --set train.schedule=constant --set train.eval_rows=0 --set train.problems=0 --set train.log_every=1)
hash_of() { python3 -c 'import json, sys; print(json.load(sys.stdin)["param_hash"])'; }
newest() { ls run/checkpoints 2>/dev/null | sed -n 's/^step-0*\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }

done_kills=0 hits=0 last=0
# A kill proves most in the middle of a write, which leaves a temporary directory behind: go on until one did.
while [ $done_kills -lt "$kills" ] || { [ $hits = 0 ] && [ $done_kills -lt $((3 * kills)) ]; }; do
    : >log # the shell empties it only when the run starts, a moment after the next lines
    "$RALO" train "${settings[@]}" --set train.steps=1000000 --set train.save_every=1 --set run.dir=run --resume auto \
        >/dev/null 2>log &
    pid=$!
    await_step log "kill $done_kills"
    sleep "0.$(printf %03d $((RANDOM % 300)))"
    kill -9 $pid
    { wait $pid; } 2>/dev/null
    pid=
    done_kills=$((done_kills + 1))
    if [ "$last" -gt 0 ]; then
        from=$(sed -n 's/^.*resumed from .*: step \([0-9]*\),.*/\1/p' log)
        [ "$from" = "$last" ] || die "kill $done_kills: step $last was on disk, the run went on from step '$from'"
    fi
    [ -z "$(find run/checkpoints -maxdepth 1 -name '.tmp-step-*')" ] || hits=$((hits + 1))
    now=$(newest)
    [ "${now:-0}" -ge "$last" ] || die "kill $done_kills: step $last was on disk and is gone, newest is '${now:-none}'"
    last=${now:-0}
done
[ $hits -gt 0 ] || die "none of $done_kills kills came in the middle of a write"

end=$((last + 3))
"$RALO" train "${settings[@]}" --set train.steps=$end --set run.dir=run --resume auto --json >run.json 2>log ||
    die "the last part: $(tail -n 1 log)"
"$RALO" train "${settings[@]}" --set train.steps=$end --set run.dir=whole --json >whole.json 2>log ||
    die "the run without kills: $(tail -n 1 log)"
[ "$(hash_of <run.json)" = "$(hash_of <whole.json)" ] || die "after $done_kills kills and $end steps the parameters differ"
[ -z "$(find run/checkpoints -maxdepth 1 -name '.tmp-*')" ] || die "what the killed writers left is still there"
echo "$done_kills kills, $hits in the middle of a write, $end steps: same parameters as without"
