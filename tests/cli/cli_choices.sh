#!/bin/bash
# cli_choices.sh - what plan and train take where nothing was said: the precision of the model, rows of 4,096 tokens without data, a
# micro-batch that the plan chooses of the rows of a step and that the run keeps. The built-in default states its own. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"

# takes EXPRESSION ARGUMENTS...: of the strategy of a plan.
takes() {
    local expression=$1
    shift
    run 0 plan --json "$@"
    python3 -c '
import json, sys
r = json.load(open("out"))
s = r.get("chosen", r)["strategy"]
p, n, m, a = s["precision"], s["seq_len"], s["micro_batch"], s["accumulation"]
sys.exit(not eval(sys.argv[1]))' "$expression" || fail "plan $*: not $expression: $(head -n 1 err)"
}
sizes=(--set model.layers=2 --set model.hidden=64 --set model.heads=2 --set model.kv_heads=2 --set model.head_dim=32 --set model.ffn=128
    --set model.vocab=512)
half=(--preset smollm2-135m "${sizes[@]}")
whole=(--preset gpt2 "${sizes[@]}")
for machine in "" "--hardware h100" "--hardware h100x8" "--world 8" "--hardware rtx-4090 --world 2"; do
    # shellcheck disable=SC2086 # several words
    takes 'p == "bf16" and n == 4096 and m * a == 16' "${half[@]}" $machine
done
head -n 1 err | grep -q ' with bf16, rows of 4,096 tokens and micro-batches of [0-9]* rows\?\.' || fail "the first line: $(head -n 1 err)"
takes 'p == "fp32" and n == 1024 and m * a == 16' "${whole[@]}"
takes 'p == "fp32" and n == 1024' "${whole[@]}" --hardware h100x8
takes 'p == "bf16" and n == 128 and (m, a) == (16, 1)' --set model.path="$TEST_FIXTURES/hf/qwen2_bf16"
takes 'p == "fp32"' --set model.path="$TEST_FIXTURES/hf/qwen2_old"
takes 'p == "fp32" and n == 2000' "${half[@]}" --set precision=fp32 --set data.seq_len_max=2000
takes 'n == 128' "${half[@]}" --set data.source=builtin:random
takes 'p == "fp32" and n == 128 and (m, a) == (16, 1)'
takes 'p == "fp32" and n == 128 and (m, a) == (16, 1)' --device-memory 40M
run 3 plan "${half[@]}" --set memory.strategy=manual --device-memory 4M
head -n 1 out | grep -q '^Does not fit with bf16, rows of 4,096 tokens and micro-batches of ' || fail "the first line: $(head -n 1 out)"
check 0 "Faster with data.seq_len=4096: at least " " tokens/s instead of " -- plan --preset llama3.2-1b --set model.layers=4 \
    --hardware rtx-4090 --set data.seq_len=128

# The rows of a step do not depend on memory; a micro-batch that was given is not changed; agreeing numbers are taken on many ranks.
takes 'm * a == 8' "${half[@]}" --set train.batch=8 --set data.seq_len=64
takes 'm * a == 512' "${half[@]}" --set train.batch=512 --set data.seq_len=64 --device-memory 3M --set run.threads=2
takes '(m, a) == (16, 3)' "${half[@]}" --set train.accumulation=3 --set data.seq_len=64
takes '(m, a) == (4, 1)' "${half[@]}" --set train.micro_batch=4 --set data.seq_len=64
takes '(m, a) == (1, 16)' "${half[@]}" --set parallel.pipeline=2 --set data.seq_len=64
takes '(m, a) == (2, 2)' "${half[@]}" --set parallel.data=4 --set train.batch=16 --set train.micro_batch=2 --set train.accumulation=2 \
    --set data.seq_len=64
check 2 "train.batch: found 16, expected train.micro_batch x train.accumulation = 2 x 3 on each rank" -- \
    plan "${half[@]}" --set parallel.data=4 --set train.batch=16 --set train.micro_batch=2 --set train.accumulation=3

# What the plan chose for less memory is what runs, what config.yaml says, and what a run goes on with that has more memory.
quick=(--set train.eval_rows=0 --set train.problems=0 --set train.warmup=0 --set train.schedule=constant --set run.threads=2)
hash_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["param_hash"])' "$1"; }
says() { grep -q "^ *$2: $3\$" "$1/config.yaml" || fail "$1: $2 is not $3: $(grep "^ *$2:" "$1/config.yaml")"; }
train=("${half[@]}" "${quick[@]}" --set data.seq_len=256)
small=(--set memory.device=9M --set memory.host=2M)
takes 'm == 16' "${train[@]}"
takes '1 <= m < 16 and m * a == 16' "${train[@]}" "${small[@]}"
m=$(python3 -c 'import json; print(json.load(open("out"))["strategy"]["micro_batch"])')
run 0 train "${train[@]}" "${small[@]}" --set train.steps=2 --set run.dir=kept --json
says kept precision bf16
says kept micro_batch "$m"
says kept batch 16
[ "$(sed '/^plan  /q' err | wc -l)" -le 10 ] && grep -q '^plan  ' err || fail "train prints more than ten lines of its plan: $(cat err)"
run 0 train kept --set train.steps=4 --set memory.device=auto --set memory.host=auto --json
cp out again.json
says kept micro_batch "$m"
run 0 train "${train[@]}" --set train.micro_batch="$m" --set train.batch=16 --set train.steps=4 --set run.dir=given --json
[ "$(hash_of again.json)" = "$(hash_of out)" ] || fail "a chosen micro-batch of $m and a given one end with other parameters"

# The built-in default has the bits of its own values, whatever memory there is.
run 0 train "${quick[@]}" --set train.steps=2 --set run.dir=usual --json
cp out usual.json
run 0 train "${quick[@]}" --set train.steps=2 --set run.dir=stated --set precision=fp32 --set data.seq_len=128 --set train.micro_batch=16 \
    --device-memory 40M --json
[ "$(hash_of usual.json)" = "$(hash_of out)" ] || fail "the built-in default is not fp32, rows of 128 and a micro-batch of 16"
finish "precision of the model, rows of 4,096, one step whatever the memory; what was chosen is kept"
