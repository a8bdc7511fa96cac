#!/bin/bash
# cli_rloo_rewards.sh - reinforcement learning whose reward program crashes, hangs, prints garbage, answers NaN or writes a line too many: what failed is
# counted, said and left out, or ends the run, as reward.on_error says; no copy of the program is left. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads metrics.jsonl"
need pgrep "install procps"
marker=reward-of-$$-$RANDOM

# Its tenth call (and the eleventh, where it crashes) is bad in the way that the file `way` names.
cat >score.sh <<'END'
while read -r line; do
    echo >>calls
    n=$(wc -l <calls)
    case $(cat way)-$n in
    crash-10 | crash-11 | once-10) exit 3 ;;
    hang-10) sleep 100 ;;
    garbage-10) echo 'Traceback (most recent call last):' ;;
    nan-10) echo NaN ;;
    null-10) echo null ;;
    extra-10) echo 0.25 && sleep 0.3 && echo 1 ;;
    dead-*) [ "$n" -gt 20 ] && kill -9 $$ || echo 0.5 ;;
    eval-3[3-6]) echo NaN ;;
    *) case $line in *'"completion":"'[a-mA-M0-4]*) echo 1 ;; *) echo 0.25 ;; esac ;;
    esac
done
END
cat >run.yaml <<END
model: {preset: test-llama}
train: {task: rloo, steps: 2, lr: 0.003, warmup: 0, micro_batch: 2, eval_rows: 4}
data: {difficulty: 1, seq_len: 32}
rl: {max_completion: 8, prompts: 4, k: 4, log_prompts: 4, beta: 0}
reward: {list: program, program: "exec sh score.sh $marker", workers: 1, timeout: 1, retries: 3}
run: {threads: 1, device: cpu}
END
train() { # WAY CODE SETTINGS
    echo "$1" >way
    rm -rf calls "run-$1"
    run "$2" train run.yaml --set run.dir="run-$1" "${@:3}"
    ! pgrep -f -- "$marker" >/dev/null || fail "$1: left behind: $(pgrep -af -- "$marker" | head -n 3)"
}
# counted WAY FAILED RESTARTS WORDS: in the first step; the second has none.
counted() {
    train "$1" 0
    python3 - "run-$1" "$2" "$3" <<'END' || fail "$1: not counted as expected"
import json, sys
run, failed, restarts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
steps = [l for l in map(json.loads, open(run + "/metrics.jsonl")) if "train/loss" in l]
found = [(l["reward_failed"], l["reward_restarts"], l["reward_unscorable"]) for l in steps]
unscorable = max(failed, run.endswith("null")) / 16
if found != [(failed, restarts, unscorable), (0, 0, 0)]: sys.exit(f"{found}, expected {failed, restarts, unscorable}")
without = [l for l in map(json.loads, open(run + "/completions.jsonl")) if l["reward"] is None]
if any(l["advantage"] != 0 or l["step"] != 1 for l in without) or len(without) != 16 * unscorable: sys.exit(f"{without}")
END
    [ -z "$4" ] || grep -q "step 1: $2 rewards failed, $3 restarts: program: the program .*$4" err || fail "$1: not said: $(grep rewards err)"
    [ -n "$4" ] || ! grep -q 'rewards failed' err || fail "$1: said: $(grep rewards err)"
}
counted crash 1 2 'ended with status 3 2 times with one item'
counted once 0 1 'ended with status 3$'
counted hang 1 1 'gave no answer within 1 s'
counted garbage 1 1 "answered 'Traceback (most recent call last):'"
counted nan 1 0 "answered 'NaN', expected a finite number or null"
counted null 0 0 ''
counted extra 10 1 'wrote more than one line per item'

# In an evaluation.
train eval 0
grep -q 'evaluation after step 2: 4 rewards failed, 0 restarts' err || fail "eval: not said: $(tail -n 3 err)"

# A program that is broken for good ends the run, whatever reward.on_error says; with stop the first failure does.
train dead 1
grep -q "error: .*reward.program: 'exec sh score.sh .* was killed by signal 9 .* after 3 restarts in a row" err || fail "dead: $(tail -n 2 err)"
for way in nan extra; do
    train $way 1 --set reward.on_error=stop
    grep -q 'error: .*reward program: the program .*reward.on_error=stop' err || fail "$way, stop: $(tail -n 2 err)"
done
finish "rewards that fail in a run are counted, said and left out, or end it"
