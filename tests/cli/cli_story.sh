#!/bin/bash
# cli_story.sh - the recording of a first fine-tune (bench/story) with a small model: five commands from a Hugging Face directory and
# JSON Lines to a GGUF file, nothing set but what they name. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "bench/story is written in it"
export XDG_CACHE_HOME=$work/cache HOME=$work/home

mkdir tokenizer
cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json
for i in $(seq 10 73); do echo "{\"question\": \"What is $i plus 10?\", \"answer\": \"$i and 10\\n#### $((i + 10))\"}"; done >qa.jsonl
run 0 train --preset test-llama --set model.vocab=352 --set train.micro_batch=2 --set train.steps=1 --set data.tokenizer=tokenizer \
    --set data.source=qa.jsonl --set train.eval_rows=0 --set run.dir=run
run 0 export run small
before=$(cat small/config.json)
# One position more than the model has, to be given to it; the files are as a shared place has them: read only.
had=$(python3 -c 'import json; print(json.load(open("small/config.json"))["max_position_embeddings"])')
chmod -w small small/*
"$project/bench/story" --ralo "$RALO" --model small --train qa.jsonl --test qa.jsonl --first 40 --positions $((had + 1)) \
    --machine "a small machine" --out recording.txt 2>log || die "bench/story: $(cat log recording.txt)"
chmod -R +w small
[ "$(cat small/config.json)" = "$before" ] || fail "it changed the model that it was given"
grep -q "^# Recorded by bench/story on a small machine. The model: small; its config.json says $((had + 1)) positions" recording.txt ||
    fail "the first line: $(head -n 1 recording.txt)"
grep -q "40 and 40 records" recording.txt || fail "the records: $(head -n 3 recording.txt)"
[ "$(grep '^\$ ralo ' recording.txt | cut -d' ' -f3 | tr '\n' ' ')" = "plan train eval generate export " ] ||
    fail "other commands: $(grep '^\$ ' recording.txt)"
! grep -q -- '--set\|^error' recording.txt || fail "a setting or an error: $(grep -- '--set\|^error' recording.txt)"
for text in "^Fits: " "^done      " "of the marked answers" "^generated " "^saved     tuned.gguf"; do
    grep -q "$text" recording.txt || fail "no '$text' in the recording"
done
! grep -q $'\x1b' recording.txt || fail "control sequences are left in it"
"$project/bench/story" --ralo "$RALO" --model nowhere --out other.txt 2>log && fail "no model, and it went on"
grep -q "no file nowhere/config.json" log || fail "no model: $(cat log)"
finish "bench/story records five commands"
