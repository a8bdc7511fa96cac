#!/bin/bash
# cli_watch.sh - a run directory says what its run is and where its memory was: run.json, plan.json as `ralo plan` prints it, memory.json equal
# to the plan and to what the run reports, events of a loss that diverges, lines of epochs; --show-example prints what is trained on.
# (cli_signals and cli_ranks look at run.json of runs that are stopped, resumed, fail, or have ranks.)
. "$(dirname "$0")/../harness/check.sh"
need python3
tiny=(--preset test-llama --set data.seq_len=32 --set train.micro_batch=4 --set train.warmup=0 --set train.problems=0 --set run.threads=1)

# in_run DIR EXPRESSION: true of run.json (r), plan.json (p), memory.json (m) and the lines of monitor/ (s).
in_run() {
    python3 - "$1" "$2" <<'PY' || fail "$1: not true: $2 in $(cat "$1/run.json")"
import json, sys
load = lambda name: json.load(open(f"{sys.argv[1]}/{name}"))
r, p, m = load("run.json"), load("plan.json"), load("memory.json")
s = [json.loads(x) for x in open(f"{sys.argv[1]}/monitor/rank-00000.jsonl")]
highest = lambda t: max(map(sum, zip(*t["points"]["bytes"])))
sys.exit(not eval(sys.argv[2]))
PY
}

# ---- a run whose states are on the host, on preferences
for i in 1 2 3 4 5 6 7 8; do echo '{"prompt": "Say hi. ", "chosen": "hi", "rejected": "no"}'; done >pairs.jsonl
settings=("${tiny[@]}" --set data.source=pairs.jsonl --set train.task=preference --set train.steps=5 --set memory.offload.states=host
    --set memory.strategy=manual)
check 0 "example   chosen: 11 tokens, 3 trained on, between >>> and <<<" "Say hi. >>>hi<<<" "example   rejected: " "Say hi. >>>no<<<" -- \
    train "${settings[@]}" --set run.dir=pairs --show-example --json
in_run pairs "r['state'] == 'finished' and r['step'] == r['steps'] == 5 and r['error'] is None and r['ended'] >= r['started']"
in_run pairs "all(0 <= r['cores'][k] <= 1 for k in ('others', 'stolen'))"
in_run pairs "r['task'] == 'preference' and r['model'] == 'test-llama' and r['data'] == 'pairs.jsonl' and r['records'] == 8 - 1 and r['epochs'] > 0"
in_run pairs "[t['tier'] for t in m['tiers']] == ['device', 'host'] and all(highest(t) == t['planned_peak'] == t['measured_peak'] for t in m['tiers'])"
in_run pairs "m['tiers'][0]['planned_peak'] == p['memory']['device']['planned'] and s[-1]['step'] == 5 and s[0]['rss_bytes'] > 0"
measured=$(python3 -c 'import json; print(json.load(open("pairs/memory.json"))["tiers"][0]["measured_peak"])')
holds "r['memory']['device']['planned'] == r['memory']['device']['peak'] == $measured"
[ ! -e pairs/events.jsonl ] || fail "events where nothing happened"
run 0 plan "${settings[@]}" --json
python3 - <<'PY' || fail "plan.json is not what ralo plan --json prints"
import json
a, b = json.load(open("pairs/plan.json")), json.loads(open("out").read().splitlines()[-1])
for x in (a, b): # predictions and room differ from one moment of this machine to the next
    for key in ("step_ms", "prediction", "candidates", "answer", "limits", "faster"): x.pop(key, None)
    del x["run"]["seconds"]
    del x["memory"]["host"] # of a file that is not read yet, plan has an upper bound
assert a == b, [k for k in b if a.get(k) != b[k]]
PY

# ---- what a task has no number for, such as the accuracy of single answers, is null in metrics.jsonl and not on the terminal
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"Say $i. \", \"completion\": \"hi\", \"label\": true}"; done >single.jsonl
check 0 "step 2/2" "eval at step 2" "!nan" -- train "${tiny[@]}" --set data.source=single.jsonl --set data.eval_fraction=0.25 \
    --set train.task=preference --set preference.loss=kto --set train.steps=2 --set run.dir=single
grep -q '"rewards/accuracies": null' single/metrics.jsonl || fail "metrics of single answers: $(tail -n 2 single/metrics.jsonl)"

# ---- a loss that diverges, and epochs of ten steps
for i in 1 2 3 4 5 6 7 8 9 10 11; do echo '{"question": "What is 1?", "answer": "One \u001b[2J."}'; done >qa.jsonl
check 0 "trained on, between >>> and <<<" 'What is 1?>>>One \x1b[2J.' "warning: step 4" "the loss diverges" "a lower train.lr than 10" \
    "train.clip=1" "epoch 1 done at step 10 of 50: mean loss" "epoch 5 done at step 50 of 50" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set data.eval_fraction=0.05 --set train.micro_batch=1 --set train.eval_rows=0 \
    --set train.steps=50 --set train.lr=10 --set train.schedule=constant --set train.clip=none --set run.dir=wild --show-example
[ "$(grep -c '"event": "divergence"' wild/events.jsonl)" = 1 ] || fail "events: $(cat wild/events.jsonl)"

# ---- prompts; without the monitor there is no memory
check 0 "example   prompt of 6 tokens" -- train "${tiny[@]}" --set data.source=builtin:arithmetic --set train.task=rloo --set train.steps=1 \
    --set run.save_last=false --set track.monitor=false --set track.spikes=none --set run.dir=bare --show-example
[ -e bare/run.json ] && [ -e bare/plan.json ] && [ ! -e bare/memory.json ] && [ ! -e bare/monitor ] || fail "track.monitor=false: $(ls bare)"

# ---- a run that is given the directory of one that trains is refused, and leaves what that one has written there
"$RALO" train "${tiny[@]}" --set data.source=builtin:arithmetic --set train.steps=1000000 --set run.dir=held >out 2>held.log &
pid=$!
await_step held.log "a run to be held"
cp held/plan.json plan.before && cp held/config.yaml config.before && bytes=$(stat -c %s held/monitor/rank-00000.jsonl)
for resume in none auto; do
    check 2 "held/checkpoints is in use by another running ralo" "its own directory" -- train "${tiny[@]}" \
        --set data.source=builtin:arithmetic --set train.steps=2 --set run.dir=held --set run.resume=$resume
    cmp -s held/plan.json plan.before && cmp -s held/config.yaml config.before || fail "resume $resume: plan.json or config.yaml is of the run that was refused"
    in_run held "r['state'] == 'running' and r['pid'] == $pid and r['error'] is None and r['steps'] == 1000000"
    [ "$(stat -c %s held/monitor/rank-00000.jsonl)" -ge "$bytes" ] || fail "resume $resume: the samples of memory were cut"
done
kill -9 $pid
wait $pid 2>>held.log
run 0 runs held --json
holds "r['runs'][0]['state'] == 'died' and r['runs'][0]['steps'] == 1000000"
finish "run.json, plan.json, memory.json, events, epochs and examples are as promised"
