#!/bin/bash
# cli_longest.sh - `ralo plan --longest` names a length that fits and one a little longer that does not, and the plan of each
# by itself says the same. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"

base=(--preset test-llama --set model.layers=16 --set train.micro_batch=1 --set data.source=builtin:random
    --set train.eval_rows=0 --set train.problems=0)

# longest NAME MORE...: leaves the two lengths in $fits and $too_long
longest() {
    local name=$1
    shift
    run 0 plan --longest --json "${base[@]}" "$@"
    read -r fits too_long positions planned <<<"$(python3 -c '
import json, sys
r = json.load(open("out"))
assert r["fits"] and r["strategy"]["seq_len"] == r["longest"]["seq_len"]
print(r["longest"]["seq_len"], r["longest"]["too_long"], r["longest"]["positions"], r["memory"]["device"]["planned"])')"
    [ -n "${planned:-}" ] || die "$name: no answer: $(tail -n 2 err)"
    grep -q "^longest   data.seq_len=$fits fits" err || fail "$name: $(head -n 1 err)"
    [ $((too_long - fits)) -le $((fits / 32 + 1024)) ] || fail "$name: $fits fits, $too_long does not: that is not near"
    run 0 plan "${base[@]}" "$@" --set model.max_positions="$too_long" --set data.seq_len="$fits"
    run 3 plan "${base[@]}" "$@" --set model.max_positions="$too_long" --set data.seq_len="$too_long"
    echo "$name: $fits tokens in $planned bytes, not $too_long; made for $positions"
}

longest manual --set memory.strategy=manual --set memory.device=160M
plain=$fits
longest auto --set memory.device=160M --set memory.host=96M
[ "$fits" -gt $((2 * plain)) ] || fail "auto: $fits tokens, by hand $plain: it was not searched"
chosen=$fits
longest small-host --set memory.device=160M --set memory.host=4M
[ "$fits" -lt "$chosen" ] || fail "a host of 4 MiB holds as much as one of 96"

# Also where that is shorter than the steps of a thousand that long rows are looked for in.
longest short --set memory.strategy=manual --set memory.device=24M
[ "$fits" -lt 1024 ] && [ $((too_long - fits)) -le $((fits / 32 + 2)) ] || fail "short: $fits fits, $too_long does not"

# Learned positions end with their table, whatever fits.
run 0 plan --longest --json --preset test-gpt2 --set train.micro_batch=1
python3 -c '
import json
r = json.load(open("out"))["longest"]
assert r["seq_len"] == r["positions"] and r["too_long"] is None, r' || fail "learned positions: $(cat err | head -n 1)"
check 0 "data.seq_len=1024 fits" "; the model has no more positions" -- plan --longest --preset gpt2 --set train.micro_batch=1 --hardware rtx-3090
check 3 "longest   none" -- plan --longest "${base[@]}" --set memory.strategy=manual --set memory.device=4M
check 3 "longest   none: 2 tokens do not fit" -- plan --longest "${base[@]}" --set memory.device=4K --set memory.host=1M
check 2 "model.max_positions: found 1, expected at least 2" -- \
    plan --longest --preset test-gpt2 --set model.max_positions=1 --set train.micro_batch=1
check 2 "--longest needs a single plan" -- plan --longest --world 8 "${base[@]}"
# Chunks of a size bound the row: there are only so many.
check 0 "longest   data.seq_len=16384 fits, with micro-batches of 1 row; " -- plan --longest "${base[@]}" --set model.layers=1 --set memory.chunk_tokens=64
check 2 "memory.chunk_tokens: found 64" -- plan --longest "${base[@]}" --set memory.chunk_tokens=64 --set train.micro_batch=65536
for mesh in data=2 sequence=3 pipeline=2; do
    check 2 "--longest works for one rank, found parallel.* for ${mesh#*=}" -- plan --longest --set parallel.$mesh "${base[@]}"
done
# A micro-batch that is not given is one row, and a step keeps its rows.
for given in "--set train.micro_batch=auto" "--set train.micro_batch=auto --set train.batch=6"; do
    # shellcheck disable=SC2086 # several words
    check 0 "with micro-batches of 1 row, as train.micro_batch is not given" -- \
        plan --longest --json "${base[@]}" $given --set memory.strategy=manual --set memory.device=160M
    grep -q '"micro_batch": 1, "accumulation": \(16\|6\)' out || fail "plan --longest $given: $(grep -o '"micro_batch.\{40\}' out)"
done
check 2 "train.batch: found 1000000000, expected at most 65536 micro-batches" -- \
    plan --longest "${base[@]}" --set train.micro_batch=auto --set train.batch=1000000000
check 2 "precision: found auto" "with --longest" -- plan --longest "${base[@]}" --set precision=auto
# --profile: the same for micro-batches; the rows of a step stay.
manual=("${base[@]}" --set memory.strategy=manual --set data.seq_len=128 --set train.accumulation=30)
run 0 plan --profile --json --limit 100M "${manual[@]}"
read -r largest too_large micro accumulation <<<"$(python3 -c '
import json
r = json.load(open("out"))
p, rows = r["profile"], r["profile"]["rows"]
assert p["limit"] == 100 << 20 and p["step_rows"] == 30 == p["micro_batch"] * p["accumulation"], p
assert p["too_large"] == p["largest"] + 1 and rows[0]["micro_batch"] == 1 and rows[-1]["micro_batch"] == p["largest"], p
assert all(x["fits"] and x["memory"]["device"]["planned"] <= p["limit"] for x in rows)
assert all(sum(x["memory"]["by_role"].values()) == x["memory"]["device"]["planned"] for x in rows)
assert (r["strategy"]["micro_batch"], r["strategy"]["accumulation"]) == (p["micro_batch"], p["accumulation"])
assert not [m for m in range(p["micro_batch"] + 1, p["largest"] + 1) if 30 % m == 0]
print(p["largest"], p["too_large"], p["micro_batch"], p["accumulation"])')"
[ -n "${accumulation:-}" ] || die "profile: $(tail -n 2 err) $(grep -o '"profile".*' out | head -c 600)"
grep -q "^keep      train.micro_batch=$micro and train.accumulation=$accumulation" err || fail "profile: $(head -n 6 err)"
run 0 plan --device-memory 100M "${manual[@]}" --set train.micro_batch="$largest"
run 3 plan --device-memory 100M "${manual[@]}" --set train.micro_batch="$too_large"
run 0 plan --profile --json --limit 100M "${manual[@]}" --set parallel.data=2 --set train.micro_batch=auto --set train.batch=14 \
    --set train.accumulation=1 --set parallel.zero=0
python3 -c '
import json
p = json.load(open("out"))["profile"]
assert p["step_rows"] == 7 and p["micro_batch"] * p["accumulation"] == 7, p' || fail "profile of two ranks: $(tail -n 2 err)"
check 3 "largest   none" -- plan --profile "${manual[@]}" --limit 4M
check 2 "leave one out" -- plan --profile --longest "${manual[@]}"
check 2 "--profile needs a single plan" -- plan --profile --world 8 "${manual[@]}"
check 2 "--profile counts the rows" -- plan --profile --set train.task=rloo
finish "the longest row fits and the next does not, and so does the largest micro-batch"
