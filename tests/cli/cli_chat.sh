#!/bin/bash
# cli_chat.sh - `ralo chat`: every turn is answered from the whole conversation, as `ralo generate` answers the same messages; what cannot be
# asked leaves the conversation as it was. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
export XDG_CACHE_HOME=$work/home
mkdir tokenizer
cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json # has the control tokens of chatml
cat >records.jsonl <<'END'
{"prompt": "a", "completion": "b"}
{"prompt": "c", "completion": "x"}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}
{"messages": [{"role": "system", "content": "loud"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "B"}]}
END
for i in $(seq 60); do cat records.jsonl; done >train.jsonl
run 0 train --preset test-llama --set model.vocab=352 --set data.tokenizer=tokenizer --set data.seq_len=64 --set train.micro_batch=8 \
    --set train.steps=120 --set train.lr=0.01 --set train.warmup=0 --set train.eval_rows=2 --set train.problems=0 --set data.source=train.jsonl --set run.dir=talk

# says INPUT ANSWERS ARGUMENTS: what stands on stdout
says() {
    printf "$1" | timeout 60 "$RALO" chat "${@:3}" >out 2>err || fail "chat ${*:3}: exit code $?: $(tail -n 2 err)"
    [ "$(cat out)" = "$(printf "$2")" ] || fail "chat ${*:3}, asked '$1': '$(cat out)', expected '$2'"
}
says 'a\nc\n' 'b\nd' talk                  # the second answer follows from both turns,
says 'c\n' 'x' talk                        # not from its own line
says 'a\n/new\nc\n' 'b\nx' --model talk    # /new forgets
says 'a\n\n/exit\nc\n' 'b' talk            # an empty line is no turn; /exit ends
says 'a\n/new\na\n' 'B\nB' talk --system loud
grep -q '^> ' err && fail "a prompt for a terminal, without one"
says 'a\nc' 'b\nd' talk                    # the last line needs no line end
run 0 export talk model
says 'a\nc\n' 'b\nd' model --precision bf16 --weights int8

# ---- the tokens are those of generate
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}' >two.jsonl
run 0 generate --model talk --prompt-file two.jsonl --json
holds 'r["completions"][0]["text"] == "d"'

# ---- what cannot be asked is told, and the conversation goes on without it
says 'a\n\377\nc\n' 'b\nd' talk
grep -q 'not UTF-8' err || fail "bytes that are no text: $(cat err)"
long=$(printf 'z%.0s' $(seq 200))
says "a\n$long\nc\n" 'b\nd' talk --context 60
grep -q 'the conversation has [0-9]* tokens, the context holds 60 .*/new begins another one' err || fail "too long: $(cat err)"
says 'a\n' 'b' talk --max-new 1
grep -q '^cut  *the answer stopped after 1 token ' err || fail "a cut answer is not told: $(cat err)"
run 0 train --preset test-llama --set model.vocab=260 --set train.steps=1 --set train.warmup=0 --set train.eval_rows=0 --set train.problems=0 --set run.dir=plain
check 2 "--chat llama3: found no token '<|start_header_id|>'" "!data.chat=llama3" -- chat plain --chat llama3 </dev/null
check 2 "--chat llama3: found no token" -- generate plain --chat llama3 --prompt a
check 2 "plain has no chat format" "ralo generate" -- chat plain </dev/null
check 2 "chat: --model is missing" -- chat </dev/null
finish "a conversation is answered turn by turn"
