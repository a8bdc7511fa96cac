#!/bin/bash
# cli_reward.sh - ralo reward: scores of a file by every kind of reward, what failed, and lines that cannot be scored. RALO names the
# program.
. "$(dirname "$0")/../harness/check.sh"

# The example of docs/guide/rewards.md is what the program prints.
cat >answers.jsonl <<'LINES'
{"question": "1+1", "answer": "so\n#### 2", "completion": "The answer is 2"}
{"question": "1+2", "answer": 3, "completion": "four"}
LINES
run 0 reward --data answers.jsonl --list "numeric, regex:0.5" --set "reward.pattern=[0-9]"
[ ! -s err ] || fail "a warning: $(cat err)"
sed -n '/^    answers.jsonl:1: /,/^    2 completions/s/^    //p' "$project/docs/guide/rewards.md" | cmp -s - out || fail "not as in the guide: $(cat out)"

# A config of a run, with the program's own key for completions; columns reach the program; a line without a score is counted.
cat >run.yaml <<'CONFIG'
train: {task: sft, steps: 5}
data: {source: other.jsonl, response_column: said}
reward: {list: [program, "length:-0.5"], length: 2, workers: 2, program: 'while read -r line; do case $line in *''"x":7''*) echo 0.25;; *) echo null;; esac; done'}
CONFIG
cat >said.jsonl <<'LINES'
{"prompt": [{"role": "user", "content": "hm"}], "said": "", "x": 7, "n_tokens": 3}
{"prompt": "b", "said": "text", "n_tokens": 9, "truncated": true}
LINES
check 0 "said.jsonl:1: 0.5 (program 0.25, length -0.5)" "said.jsonl:2: none (program none, length -1)" \
    "2 completions, mean reward 0.5: program 0.25 (weight 1), length -0.75 (weight -0.5)" "1 completions have no reward; 0 answers failed" -- \
    reward run.yaml --data said.jsonl
run 0 reward run.yaml --data said.jsonl --json
[ "$(wc -l <out)" = 1 ] && grep -qF '"scores": [0.5, null]' out && grep -qF '"unscorable": 1, "failed": 0' out || fail "--json: $(cat out)"

# ---- what is refused
check 2 "--data" -- reward
check 2 "reward.list: found 'best'" -- reward --data answers.jsonl --list best
check 2 "answers.jsonl:1" "'n_tokens'" "reward length" -- reward --data answers.jsonl --list length --set reward.length=5
check 2 "no column 'right'" "'answer'" -- reward --data answers.jsonl --answer right
check 2 "answers.jsonl:1" "key 'said'" "data.response_column" -- reward --data answers.jsonl --set data.response_column=said
check 2 "reward.url" -- reward --data answers.jsonl --list http
check 2 "nowhere" -- reward --data nowhere.jsonl
echo '{"prompt": "p", "completion": "c", "answer": "none"}' >bad.jsonl
check 1 "reward numeric: the column 'answer' holds 'none', expected a number" "reward.on_error=stop" -- \
    reward --data bad.jsonl --list numeric --set reward.on_error=stop
check 0 "bad.jsonl:1: none" "1 completions have no reward; 1 answers failed, the first: numeric: the column" -- reward --data bad.jsonl --list numeric
finish "rewards of files are as they should be"
