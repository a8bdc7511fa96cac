#!/bin/bash
# cli_rloo_faults.sh - reinforcement learning on 2 ranks whose reward programs fail on one of them: the rank is named, its failures are counted, no copy of
# the program is left on any rank, and a run killed in a reward call resumes to the bits of one that was not. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
need pgrep "install procps"
marker=reward-of-$$-$RANDOM

# Bad on rank 1, in the way that the file `way` names; calls has a line per call there.
cat >score.sh <<'END'
while read -r line; do
    if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
        echo >>calls
        case $(cat way) in
        dies) exit 5 ;;
        nan) [ "$(wc -l <calls)" = 3 ] && echo NaN && continue ;;
        kill) [ "$(wc -l <calls)" = 27 ] && kill -9 $PPID && sleep 100 ;;
        esac
    fi
    case $line in *'"completion":"'[a-mA-M0-4]*) echo 1 ;; *) echo 0.25 ;; esac
done
END
cat >run.yaml <<END
model: {preset: test-llama}
train: {task: rloo, steps: 4, lr: 0.003, warmup: 0, micro_batch: 2, eval_rows: 4, save_every: 2}
data: {difficulty: 1, seq_len: 32}
rl: {max_completion: 8, prompts: 4, k: 4, log_prompts: 4, beta: 0.1}
reward: {list: program, program: "exec sh score.sh $marker", workers: 1}
run: {threads: 1, device: cpu, bind: false}
END
train() { # WAY CODE DIRECTORY ARGUMENTS
    echo "$1" >way
    rm -f calls
    run "$2" train run.yaml --ranks 2 --set run.dir="$3" --json "${@:4}"
    for ((i = 0; i < 500; i++)); do
        pgrep -f -- "$marker" >/dev/null || return
        sleep 0.02
    done
    fail "$1: left behind: $(pgrep -af -- "$marker" | head -n 3)"
}
hash_of() { python3 -c 'import json, sys; print(json.loads(sys.stdin.read().splitlines()[-1])["param_hash"])' <out; }

train dies 1 dies
grep -q "error: rank 1 (pid [0-9]* on .*), step 1: reward.program: 'exec sh score.sh .*' ended with status 5, after 3 restarts" err || fail "dies: $(tail -n 2 err)"
train nan 1 stops --set reward.on_error=stop
grep -q "error: rank 1 (pid [0-9]* on .*), step 1: reward program: the program answered 'NaN'" err || fail "nan, stop: $(tail -n 2 err)"
train nan 0 nan
grep -q "step 1, rank 1: 1 rewards failed, 0 restarts: program: the program answered 'NaN'" err || fail "nan: $(grep failed err)"
head -n 1 nan/metrics.jsonl | grep -q '"reward_unscorable": 0.0625, "reward_failed": 1, "reward_restarts": 0' || fail "nan: $(head -n 1 nan/metrics.jsonl)"

train good 0 whole
expected=$(hash_of)
train kill 1 parts
grep -q 'rank 1 (pid [0-9]* on .* died' err || fail "killed in a reward call: $(tail -n 2 err)"
train good 0 parts --resume auto
grep -q 'resumed from .*: step 2' err || fail "not resumed from step 2: $(grep resumed err)"
[ "$(hash_of)" = "$expected" ] || fail "killed in a reward call and resumed: $(hash_of), expected $expected"
cmp -s whole/completions.jsonl parts/completions.jsonl || fail "completions differ: $(cmp whole/completions.jsonl parts/completions.jsonl)"
finish "rewards that fail on one of 2 ranks are named, counted, and leave nothing behind"
