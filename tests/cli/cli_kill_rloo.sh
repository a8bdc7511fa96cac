#!/bin/bash
# cli_kill_rloo.sh - kill -9 of reinforcement learning in the rollout, in the reward call and in the update: no copy of the reward program is
# left, and the resumed run has the curve, the completions and the parameters of one that was never killed. RALO names the program.
#
# The test knows where a run is by what it has written: the line of a step in metrics.jsonl ends its update, the first call of the reward
# program ends a rollout, and the completions of a step are written between the last reward and the update.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
need pgrep "install procps"
marker=reward-of-$$-$RANDOM
items=32 # of a rollout

# The score is of the item alone. calls has a line per call; kill_at: the call in which the program kills ralo, whose child it is.
cat >score.sh <<'END'
while read -r line; do
    echo >>calls
    if [ -e kill_at ] && [ "$(wc -l <calls)" -ge "$(cat kill_at)" ]; then
        rm -f kill_at
        kill -9 $PPID
        sleep 100
    fi
    case $line in *'"completion":"'[a-mA-M0-4]*) echo 1 ;; *) echo 0.25 ;; esac
done
END
# In a file, so that nothing but the copies of the program has the marker in its arguments.
cat >run.yaml <<END
model: {preset: test-llama}
train: {task: rloo, steps: 6, lr: 0.003, warmup: 0, micro_batch: 1, save_every: 2, eval_every: 3, eval_rows: 4, log_every: 1}
data: {difficulty: 1, seq_len: 96}
rl: {max_completion: 48, prompts: 8, k: 4, log_prompts: 8, sequences: 1}
reward: {list: program, program: "exec sh score.sh $marker", workers: 2}
run: {threads: 1, device: cpu}
END

# same DIRECTORY: its curve and completions are those of `whole`.
same() {
    cmp -s whole/completions.jsonl "$1/completions.jsonl" || fail "$1: completions.jsonl differs: $(cmp whole/completions.jsonl "$1/completions.jsonl" 2>&1)"
    python3 - whole "$1" <<'END' || fail "$1: metrics.jsonl differs"
import json, sys
def curve(d):
    return [{k: v for k, v in json.loads(l).items() if not k.startswith(("perf/", "time/", "memory/"))} for l in open(d + "/metrics.jsonl")]
one, two = map(curve, sys.argv[1:])
for a, b in zip(one, two):
    for k in a.keys() | b.keys():
        if a.get(k) != b.get(k): sys.exit(f"step {a['step']}: {k} is {b.get(k)}, expected {a.get(k)}")
sys.exit(len(one) != len(two) and f"{len(two)} lines, expected {len(one)}")
END
}
hash_of() { python3 -c 'import json, sys; print(json.loads(sys.stdin.read().splitlines()[-1])["param_hash"])' <"$1"; }
has_step() { grep -q "^{\"step\": $2,.*$3" "$1" 2>/dev/null; }
n_calls() { wc -l <calls 2>/dev/null || echo 0; }
no_orphans() { # WHAT
    for ((i = 0; i < 500; i++)); do
        pgrep -f -- "$marker" >/dev/null || return
        sleep 0.02
    done
    fail "$1: left behind: $(pgrep -af -- "$marker" | head -n 3)"
}
start() { # DIRECTORY SETTINGS: in the background, as $pid
    : >calls
    "$RALO" train run.yaml --set run.dir="$1" --resume auto "${@:2}" >out 2>log &
    pid=$!
}
killed() { # WHAT: the run was killed, by us or by its reward program
    { wait $pid; } 2>/dev/null
    local rc=$?
    pid=
    [ $rc = 137 ] || die "$1: exit code $rc: $(tail -n 3 log)"
    no_orphans "$1"
}
# kill_where WHAT CONDITION SETTINGS: a run is killed where CONDITION is true of it while it stands still, within ten attempts.
kill_where() {
    local what=$1 condition=$2 attempt
    for ((attempt = 1; attempt <= 10; attempt++)); do
        start "${@:3}"
        until $condition "$3" near; do
            kill -0 $pid 2>/dev/null || break
        done
        kill -STOP $pid 2>/dev/null || die "$what: it ended too early: $(tail -n 3 log)"
        if $condition "$3" exactly; then
            kill -9 $pid
            killed "$what"
            return
        fi
        kill -9 $pid
        killed "$what"
        rm -rf "$3" && cp -r "before-$3" "$3"
    done
    die "$what: not once in ten attempts"
}
# After the last update of the first rollout, and before the first call for the next.
in_rollout() { has_step "$1/metrics.jsonl" "$step" train/loss && { [ "$2" = near ] || [ "$(n_calls)" = $items ]; }; }
# After the last reward of a step and before its update is done; the checkpoint before it is whole.
in_update() {
    has_step "$1/completions.jsonl" "$step" prompt || return
    [ "$2" = near ] || { ! has_step "$1/metrics.jsonl" "$step" train/loss && [ -n "$(ls "$1/checkpoints" 2>/dev/null)" ]; }
}

for way in "rloo 0.05 1 2" "grpo 0 2 4"; do
    set -- $way
    sets=(--set rl.loss="$1" --set rl.beta="$2" --set rl.updates="$3" --set train.save_every="$4" --set train.steps=$((4 * $3)))
    updates=$3 # of a rollout
    rm -rf whole run before-run
    : >calls
    run 0 train run.yaml --set run.dir=whole "${sets[@]}" --json
    expected=$(hash_of out)
    no_orphans "$1: a run that ends"

    # In the second rollout: nothing is saved yet.
    mkdir before-run
    step=$updates
    kill_where "$1: in a rollout" in_rollout run "${sets[@]}"
    [ ! -e run/checkpoints ] || [ -z "$(ls run/checkpoints)" ] || fail "$1: a checkpoint before the first save"

    # In the rewards of the second rollout, from the beginning again.
    echo $((items + 7)) >kill_at
    start run "${sets[@]}"
    killed "$1: in a reward call"
    [ ! -e kill_at ] || fail "$1: the reward program was not asked $((items + 7)) times"
    # What a writer that is killed may leave: half a line.
    printf '{"step": 2, "prompt": "1+' >>run/completions.jsonl
    printf '{"step": 1, "tok' >>run/metrics.jsonl

    # In the first update of the third rollout: the checkpoint is that of the second.
    rm -rf before-run && cp -r run before-run
    step=$((2 * updates + 1))
    kill_where "$1: in an update" in_update run "${sets[@]}"

    run 0 train run.yaml --set run.dir=run "${sets[@]}" --resume auto --json
    grep -q 'resumed from' err || fail "$1: the last part did not resume: $(head -n 5 err)"
    [ "$(hash_of out)" = "$expected" ] || fail "$1: param_hash $(hash_of out) after three kills, $expected without"
    same run
    no_orphans "$1: after the end"
done
finish "killed in the rollout, the reward call and the update: the same curve, completions and parameters; no program is left"
