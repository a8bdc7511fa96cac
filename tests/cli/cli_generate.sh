#!/bin/bash
# cli_generate.sh - `ralo generate` and `ralo eval` on models that were just trained: what goes to stdout, what is refused, and
# that records are asked as they were trained. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
# refused TEXT ARGUMENTS
refused() { check 2 "$1" -- "${@:2}"; }

run 0 train --preset test-llama --set model.vocab=260 --set data.seq_len=24 --set train.micro_batch=4 --set train.steps=30 \
    --set train.warmup=0 --set train.eval_rows=2 --set train.problems=0 --set run.dir=run
run 0 export run model

# ---- one prompt: the text alone on stdout, from run, checkpoint and export alike
run 0 generate --model run --prompt "12+34=" --max-new 12
cp out first
[ "$(wc -c <first)" -gt 0 ] || fail "no text on stdout"
grep -q "tokens after 6 prompt tokens" err || fail "no summary: $(cat err)"
run 0 generate --model run/checkpoints/step-00000030 --prompt "12+34=" --max-new=12
cmp -s out first || fail "the checkpoint says something else than its run"
printf '12+34=' >prompt.txt
run 0 generate --model model --max-new 12 - <prompt.txt
cmp -s out first || fail "the export, asked through stdin, says something else"

# ---- many: JSON, files, batches
printf '12+34=\n\n5+6=\n77+1=\n' >prompts.txt
printf '{"prompt": "12+34="}\n{"prompt": "5+6="}\n{"prompt": "77+1="}\n' >prompts.jsonl
run 0 generate --model run --prompt-file prompts.txt --max-new 8 --json --ignore-eos --batch 2
cp out batched
holds '[c["prompt"] for c in r["completions"]] == ["12+34=", "5+6=", "77+1="]'
holds 'all(len(c["tokens"]) == 8 and c["stop"] == "length" for c in r["completions"])'
holds 'r["completions"][1]["prompt_tokens"] == list(b"5+6=")'
holds 'r["tokens_per_second"] > 0 and r["memory"]["device"]["planned"] == r["memory"]["device"]["peak"]'
holds 'r["memory"]["by_role"]["cache"] > 0 and r["memory"]["allocations_in_steps"] == 0'
run 0 generate --model run --prompt-file prompts.jsonl --max-new 8 --json --ignore-eos --batch 1 --page-size 3
python3 -c "
import json
a, b = (json.loads(open(f, 'rb').read().splitlines()[-1])['completions'] for f in ('batched', 'out'))
assert a == b, (a, b)" || fail "one by one and in a batch differ"
run 0 generate --model run --prompt "1+" -n 3 --temperature 1 --seed 5 --max-new 6 --json
cp out sampled
run 0 generate --model run --prompt "1+" -n 3 --temperature 1 --seed 5 --max-new 6 --json --batch 1
python3 -c "
import json
a, b = (json.loads(open(f, 'rb').read().splitlines()[-1])['completions'] for f in ('sampled', 'out'))
assert a == b and len(a) == 3, (a, b)" || fail "the same seed gives other samples"
run 0 generate --model run --prompt "12+34=" --max-new 5000 --ignore-eos # more than the context holds
grep -q "warning: 1 of 1 completions stop at the context limit of [0-9]* tokens, before --max-new 5000" err || fail "generate: the context's end is not told"
# A prompt that is too long: more context is advised only where the model has the positions.
long=$(printf 'a%.0s' $(seq 5000))
positions=$(python3 -c 'import json; print(json.load(open("model/config.json"))["max_position_embeddings"])')
printf '{"prompt": "%s"}\n' "$long" >long-prompt.jsonl
printf "%s\n" "$long" >long-prompt.txt
refused "prompt 1 has 40 tokens, the context holds 16 with at least one new token; shorten it, or raise the context (--context) to at most $positions" \
    generate --model run --context 16 --prompt "${long:0:40}"
refused "tokens, the context holds $positions with at least one new token; shorten it: the model has no more positions" generate --model run --prompt-file long-prompt.txt
refused "long-prompt.jsonl:1: the prompt has 5000 tokens, the context holds $positions with at least one new token; shorten it: the model has no more positions" \
    generate --model run --prompt-file long-prompt.jsonl
printf '\n' >blank.txt
refused "blank.txt: found no prompt, expected one per line" generate --model run --prompt-file blank.txt
run 0 generate --model run --prompt a --prompt b --max-new 3
[ "$(grep -c '^--- prompt' out)" = 2 ] || fail "two prompts are not told apart: $(cat out)"

# An answer is printed once all before it are, also where later ones end first, and a stopped program has printed those that had ended.
for i in 1 2 3 4 5 6 7 8 9; do echo "{\"prompt\": \"$i+\"}"; done >nine.jsonl
echo '{"messages": [{"role": "user", "content": "no template"}]}' | cat - nine.jsonl >ten.jsonl
sampled=(--prompt-file ten.jsonl --on-error skip -n 2 --temperature 1.5 --seed 3 --max-new 9 --batch 4)
run 0 generate --model run "${sampled[@]}" --json
cp out as.json
run 0 generate --model run "${sampled[@]}"
python3 -c '
import json
all = json.loads(open("as.json", "rb").read().splitlines()[-1])["completions"]
assert len(all) == 18 and len({len(c["tokens"]) for c in all}) > 1
text = b"".join(b"--- prompt %d, completion %d (%s after %d tokens)\n%s\n" % (i // 2 + 1, i % 2 + 1, c["stop"].encode(), len(c["tokens"]),
                bytes(t for t in c["tokens"] if t < 256)) for i, c in enumerate(all))
assert open("out", "rb").read() == text, (open("out", "rb").read(), text)' || fail "texts are not the completions of --json in their order"
seq 100000 >numbers.txt
"$RALO" generate --model run --prompt-file numbers.txt --max-new 4 --batch 1 >early 2>early.log &
pid=$!
for _ in $(seq 600); do
    ! grep -q '^--- prompt 3 ' early || break
    sleep 0.1
done
kill -TERM $pid && wait $pid 2>>early.log # a shell's background job ignores SIGINT
pid=
grep -q '^--- prompt 3 ' early || fail "nothing is printed before all prompts are done"
! grep -q '^--- prompt 100000 ' early || fail "the last prompt came too early to prove anything"

# ---- a plan, and what does not fit
run 0 generate --model run --plan --batch 64 --json
holds 'r["strategy"]["sequences"] == 64 and r["memory"]["by_role"]["cache"] > 0'
grep -q "^cache " err || fail "the plan does not show the cache"
run 3 generate --model run --plan --batch 64 --device-memory 4M
grep -q -- "--batch" err || fail "no change that fits is named: $(tail -n 1 err)"

# ---- eval
for i in $(seq 60); do echo "$i+$i=$((i + i))"; done >text.txt
run 0 eval --model run --data text.txt --last 0.5 --seq-len 16 --json
holds 'r["tokens"] == r["bytes"] and r["seq_len"] == 16 and 0 < r["loss"] < 20 and r["perplexity"] > 1'
holds 'r["memory"]["device"]["planned"] == r["memory"]["device"]["peak"]'
{ printf '\xef\xbb\xbf' && cat text.txt; } >marked.txt # as editors write it
run 0 eval --model run --data marked.txt --seq-len 16 --json
holds "r['bytes'] == $(wc -c <text.txt)"
printf '{"question": "3+4=", "answer": "is 7"}\n{"prompt": "1+1=", "completion": "2"}\n' >q.jsonl
cp q.jsonl q.ndjson
run 0 eval --model run --data q.ndjson --max-new 4 --json
holds 'r["problems"] == 2 and r["chat"] == "none" and r["skipped"] == 0'
run 0 eval --model run --data q.jsonl --answer-regex '\d+' --max-new 4 --json
holds 'r["problems"] == 2 and 0 <= r["exact_match"] <= 1'
run 0 eval --model run --data q.jsonl --samples 4 --k 2 --temperature 1 --max-new 4 --json
holds 'r["samples"] == 4 and r["exact_match"] <= r["pass_at_k"] <= 1'

# Without --max-new the right answers say how long a completion may be: 140 bytes of one and the end of the text.
printf '{"question": "3+4=", "answer": "%0140d"}\n' 7 >long-answer.jsonl
check 0 "cut by --max-new 141," -- eval --model run --data long-answer.jsonl
check 0 "cut by --max-new 128," -- eval --model run --data q.jsonl
check 0 "cut by --max-new 5," -- eval --model run --data long-answer.jsonl --max-new-tokens 5

# Right answers that mark their end result are compared by it alone, unless one of them has no mark.
printf '{"question": "3+4=", "answer": "3 and 4 is 7\\n#### 7"}\n{"prompt": "1+1=", "completion": "so \\\\boxed{2}"}\n' >marked.jsonl
run 0 eval --model run --data marked.jsonl --max-new 4 --json --samples-out marked-answers.jsonl
holds 'r["compared"] == "marked"'
[ "$(grep -o '"expected":"[^"]*"' marked-answers.jsonl | sort | tr '\n' ' ')" = '"expected":"2" "expected":"7" ' ] || fail "marks: $(cat marked-answers.jsonl)"
# A file that cannot take them all costs neither the result nor the completions that it has.
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "{\"question\": \"$i+1=\", \"answer\": \"$((i + 1))\"}"; done >twelve.jsonl
(ulimit -f 1 && "$RALO" eval --model run --data twelve.jsonl --max-new 2 --samples-out cut.jsonl 2>&1; echo "exit code $?") | cat >out
kept=$(sed -n 's/^error: --samples-out: write cut.jsonl: File too large; \([0-9]*\) of 12 completions are in it$/\1/p' out)
[ -n "$kept" ] && [ "$kept" -gt 1 ] && [ "$kept" = "$(grep -c '^{.*}$' cut.jsonl)" ] && grep -q '^right ' out && grep -q 'exit code 1$' out ||
    fail "--samples-out beyond the size limit: $(cat out), $(wc -l <cut.jsonl) lines"
check 0 "of the marked answers (####" -- eval --model run --data marked.jsonl --max-new 4
cat marked.jsonl q.jsonl >some-marked.jsonl
check 0 "of the whole answers; --answer-regex compares a part" -- eval --model run --data some-marked.jsonl --max-new 4

# ---- every shape that trains is asked as it was trained: a model that knows its answers gives them back
mkdir tokenizer
cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json # has the control tokens of chatml
cat >chat.jsonl <<'END'
{"question": "dog", "answer": "wow"}
{"prompt": "cat", "completion": "mew"}
{"instruction": "say", "input": "two", "output": "2 2"}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}
{"prompt": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "e"}, {"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "f"}]}
{"messages": [{"role": "system", "content": "loud"}, {"role": "user", "content": "cat"}, {"role": "assistant", "content": "MEW"}]}
END
for i in $(seq 40); do cat chat.jsonl; done >train.jsonl
export XDG_CACHE_HOME=$work/home
learn() {
    run 0 train --preset test-llama --set model.vocab=352 --set data.tokenizer=tokenizer --set data.seq_len=48 \
        --set train.micro_batch=8 --set train.steps=120 --set train.lr=0.01 --set train.warmup=0 --set train.eval_rows=2 \
        --set train.problems=0 "$@"
}
learn --set data.source=train.jsonl --set run.dir=talk
grep -q "in the loss; chat chatml" err || fail "not trained as chatml: $(grep '^data' err)"
run 0 export talk talk-model
for model in talk talk-model; do
    chat=chatml && [ $model = talk ] || chat=template # the export has the format as a template
    run 0 eval --model $model --data chat.jsonl --max-new 8 --json
    holds 'r["problems"] == 6 and r["chat"] == "'$chat'" and r["exact_match"] == 1'
    grep -q "chat.jsonl: 6, chat $chat, 1 sample each" err || fail "the counts are not told: $(cat err)"
done
# A bare text is continued as it is: a model of conversations says how it would be asked, one without them says nothing.
check 0 "--chat auto writes it as a user's turn (chatml)" -- generate --model talk --prompt dog --max-new 4
check 0 "!--chat auto writes" -- generate --model talk --prompt dog --max-new 4 --chat none
check 0 "!--chat auto writes" -- generate --model talk --prompt dog --max-new 4 --chat auto
check 0 "!--chat auto writes" -- generate --model run --prompt 12+34= --max-new 4
run 0 eval --model talk --data chat.jsonl --max-new 8 --json --limit 2
holds 'r["problems"] == 2 and r["exact_match"] == 1'
# What stands behind the last answer is not asked.
printf '%s\n' '{"messages": [{"role": "user", "content": "dog"}, {"role": "assistant", "content": "wow"}, {"role": "user", "content": "?"}]}' >more.jsonl
run 0 eval --model talk --data more.jsonl --max-new 8 --json
holds 'r["problems"] == 1 and r["exact_match"] == 1'
printf '{"q": "dog", "a": "wow", "text": "x"}\n' >columns.jsonl
run 0 eval --model talk --data columns.jsonl --prompt-column q --response-column a --max-new 8 --json
holds 'r["problems"] == 1 and r["exact_match"] == 1'
run 0 eval --model talk --data chat.jsonl --chat llama3 --limit 1 --max-new 8 --json
holds 'r["chat"] == "llama3"'

# ---- a tokenizer that puts BOS before a text: eval reads what generate and training read
mkdir pieces
cp "$TEST_FIXTURES/chat/pieces.json" pieces/tokenizer.json
printf 'the answer is five and the answer is four and the question is one\n%.0s' {1..40} >bos.txt
learn --set data.source=bos.txt --set data.tokenizer=pieces --set data.format=text --set run.dir=bos --set model.vocab=512 --set train.steps=2
run 0 generate --model bos --prompt 'the answer is five' --max-new 1 --json
holds 'r["completions"][0]["prompt_tokens"][0] == 1'
n=$(python3 -c 'import json; print(len(json.load(open("out"))["completions"][0]["prompt_tokens"]))')
printf 'the answer is five' >one.txt
run 0 eval --model bos --data one.txt --seq-len 16 --json
holds 'r["tokens"] == '$n

# ---- prompts: records in turns, plain texts as they are unless --chat says so; the end of a turn ends a completion
im_start=342 im_end=343
printf '{"question": "dog"}\n{"instruction": "say", "input": "two"}\n{"messages": [{"role": "user", "content": "cat"}]}\n' >ask.jsonl
run 0 generate --model talk --prompt-file ask.jsonl --max-new 8 --json
holds '[c["text"] for c in r["completions"]] == ["wow", "2 2", "mew"] and r["chat"] == "chatml"'
holds 'all(c["stop"] == "eos" and c["tokens"][-1] == '$im_end' for c in r["completions"])'
holds 'all(c["prompt_tokens"][0] == '$im_start' for c in r["completions"])'
holds '[c["prompt"] for c in r["completions"]] == ["dog", "say\ntwo", "cat"]'
printf '{"prompt": [{"role": "user", "content": "cat"}]}\n' >turns.jsonl
run 0 generate --model talk --prompt-file turns.jsonl --max-new 8
[ "$(cat out)" = mew ] || fail "a prompt of turns: $(cat out)"
run 0 generate --model talk --prompt-file turns.jsonl --system loud --max-new 8
[ "$(cat out)" = MEW ] || fail "a prompt of turns with --system: $(cat out)"
run 0 generate --model talk --prompt dog --chat auto --max-new 8
[ "$(cat out)" = wow ] || fail "a plain prompt with --chat auto: $(cat out)"
run 0 generate --model talk --prompt dog --max-new 2 --json
holds 'r["completions"][0]["prompt_tokens"][0] != '$im_start' and "chat" not in r'
run 0 generate --model talk --prompt dog --prompt-file ask.jsonl --max-new 2 --json
holds '[c["prompt_tokens"][0] == '$im_start' for c in r["completions"]] == [False, True, True, True]'
run 0 generate --model talk --prompt dog --chat auto --max-new 8 --ignore-eos --json
holds 'len(r["completions"][0]["tokens"]) == 8 and '$im_end' in r["completions"][0]["tokens"]'
printf '{"key": "dog"}\n' >key.jsonl
run 0 generate --model talk --prompt-file key.jsonl --prompt-column key --max-new 8
[ "$(cat out)" = wow ] || fail "--prompt-column: $(cat out)"
printf '{"text": "<|im_start|>user\\ndog<|im_end|>\\n<|im_start|>assistant\\n"}\n' >text.jsonl
run 0 generate --model talk --prompt-file text.jsonl --max-new 8
[ "$(cat out)" = wow ] || fail "a text with a template in it: $(cat out)"

# ---- a system turn, for conversations that have none
run 0 generate --model talk --prompt cat --chat chatml --system loud --max-new 8 --json
holds 'r["completions"][0]["text"] == "MEW" and r["completions"][0]["prompt"] == "cat"'
printf '{"prompt": "cat", "completion": "MEW"}\n' >cat.jsonl
run 0 eval --model talk --data cat.jsonl --system loud --max-new 8 --json
holds 'r["exact_match"] == 1'
run 0 eval --model talk --data cat.jsonl --max-new 8 --json
holds 'r["exact_match"] == 0'
tail -n 1 chat.jsonl >own.jsonl
run 0 eval --model talk --data own.jsonl --system other --max-new 8 --json
holds 'r["exact_match"] == 1'

# ---- the tokenizer's own template: tools and roles of any name, variables, and what it writes ends a completion
cat >tokenizer/chat_template.jinja <<'JINJA'
{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' + (opening | default('')) }}{% endif %}
JINJA
printf '%s\n' '{"prompt": "dog"}' '{"messages": [{"role": "tool", "content": "dog"}], "tools": [{}]}' \
    '{"prompt": "dog", "chat_template_kwargs": {"opening": "w"}}' >rendered.jsonl
run 0 generate --model talk --tokenizer tokenizer --prompt-file rendered.jsonl --chat template --max-new 8 --json
holds 'r["chat"] == "template" and r["completions"][0]["text"] == "wow" and r["completions"][0]["tokens"][-1] == '$im_end
holds 'len(r["completions"][2]["prompt_tokens"]) == len(r["completions"][0]["prompt_tokens"]) + 1'
run 0 generate --model talk --tokenizer tokenizer --prompt dog --chat template --chat-kwargs '{"opening": "w"}' --max-new 8
[ "$(cat out)" = ow ] || fail "--chat-kwargs: $(cat out)"
run 0 generate --model talk --tokenizer tokenizer --prompt cat --chat template --system loud --max-new 8
[ "$(cat out)" = MEW ] || fail "--system with a template: $(cat out)"
refused "rendered.jsonl:2: turn 1: found role tool" generate --model talk --tokenizer tokenizer --prompt-file rendered.jsonl --chat chatml
refused "--chat-kwargs" generate --model talk --prompt dog --chat chatml --chat-kwargs '{"opening": "w"}'
refused "--chat-kwargs: found text that is continued as it is, expected turns for a chat template; add --chat auto" \
    generate --model talk --tokenizer tokenizer --prompt dog --chat-kwargs '{"opening": "w"}'
echo '{"prompt": "dog", "tools": [{"name": "bark"}]}' >bark.jsonl
refused "bark.jsonl:1: found tools[0], which the chat template tokenizer/chat_template.jinja does not write" \
    generate --model talk --tokenizer tokenizer --prompt-file bark.jsonl --chat template
rm tokenizer/chat_template.jinja

# ---- a run remembers how it was trained, whatever its tokenizer says
grep -v role train.jsonl | head -n 72 >plain.jsonl
learn --set data.source=plain.jsonl --set data.chat=none --set run.dir=plain
run 0 generate --model plain --prompt-file ask.jsonl --on-error skip --max-new 8 --json
holds 'r["chat"] == "none" and r["skipped"] == 1 and [c["text"] for c in r["completions"]] == ["wow", "2 2"]'
holds 'all('$im_start' not in c["prompt_tokens"] and c["stop"] == "eos" for c in r["completions"])'
run 0 generate --model plain --prompt-file ask.jsonl --chat chatml --max-new 2 --json
holds 'r["chat"] == "chatml" and all(c["prompt_tokens"][0] == '$im_start' for c in r["completions"])'
refused "ask.jsonl:3" generate --model plain --prompt-file ask.jsonl
refused "without a chat format" eval --model plain --data cat.jsonl --system loud

# ---- what cannot be asked: named, or left out and counted
{ echo '{"question": "half'; head -n 1 chat.jsonl; echo '{"text": "no question"}'; echo '{"question": "dog"}'
  echo '{"messages": [{"role": "assistant", "content": "alone"}]}'; sed -n 2p chat.jsonl; } >mixed.jsonl
refused "mixed.jsonl:1:" eval --model talk --data mixed.jsonl
run 0 eval --model talk --data mixed.jsonl --on-error skip --max-new 8 --json
holds 'r["problems"] == 2 and r["skipped"] == 4 and r["exact_match"] == 1'
[ "$(grep -c '^warning: mixed.jsonl:[134]: .*; left out' err)" = 3 ] || fail "the first lines left out are not named: $(cat err)"
sed -n 3p mixed.jsonl >text-only.jsonl
refused "text-only.jsonl:1: found plain text" eval --model talk --data text-only.jsonl
refused "jq -r .text text-only.jsonl" eval --model talk --data text-only.jsonl
refused "found no question (1 line was skipped)" eval --model talk --data text-only.jsonl --on-error skip
python3 -c "print('{\"prompt\": \"' + 'x' * 300 + '\", \"completion\": \"y\"}')" >long.jsonl
cat chat.jsonl >>long.jsonl
refused "long.jsonl:1: the prompt has" eval --model talk --data long.jsonl --context 64
run 0 eval --model talk --data long.jsonl --context 64 --on-error skip --max-new 8 --json
holds 'r["problems"] == 6 and r["skipped"] == 1 and r["exact_match"] == 1'

# ---- what has no effect is named: a narrower draw where nothing is drawn, a GPU's flags without one
check 0 "--gpu has no effect: --device is cpu" "--tf32 has no effect: --device is cpu" -- generate --model run --prompt x --max-new 2 --device cpu --gpu 3 --tf32
RALO_CUDA_PLUGIN=none check 0 "--gpu has no effect: no GPU was found" "!--tf32" -- eval --model run --data text.txt --gpu 0
run 0 generate --model run --prompt x --max-new 2 --top-p 0.5
grep -q "warning: --top-p has no effect: without --temperature" err || fail "greedy --top-p: $(cat err)"
run 0 generate --model run --prompt x --max-new 2 --top-p 0.5 --temperature 1
! grep -q "no effect" err || fail "--top-p of a draw: $(cat err)"

# ---- refusals
refused "--system" generate --model talk --prompt x --system loud
refused "text.jsonl:1: found plain text" generate --model talk --prompt-file text.jsonl --system loud
refused "no token '<|im_start|>'" generate --model run --prompt x --chat chatml
refused "is not UTF-8" generate --model talk --prompt $'a\xff' --chat chatml
refused "--prompt:1: byte 2 is not UTF-8" generate --model talk --prompt $'a\xff'
printf 'fine\nb\xe4d\n' >latin1.txt
refused "latin1.txt:2: byte 2 is not UTF-8" generate --model talk --prompt-file latin1.txt
refused "latin1.txt: byte 7 is not UTF-8" eval --model talk --data latin1.txt
run 0 eval --model run --data latin1.txt # bytes are bytes
run 0 generate --model run --prompt $'a\xff' --max-new 2
refused "is not UTF-8" generate --model talk --prompt a --chat chatml --system $'a\xff'
refused "--chat: found 'jinja'" generate --model talk --prompt x --chat jinja
refused "--on-error is for" generate --model talk --prompt x --on-error skip
refused "--prompt-column is for" generate --model run --prompt-file prompts.txt --prompt-column x
refused "--chat is for questions" eval --model run --data text.txt --chat none
refused "--response-column" eval --model talk --data chat.jsonl --prompt-column question
refused "--model is missing" generate --prompt x
refused "found no prompt" generate --model run
refused "config.json" generate --model . --prompt x
refused "unknown option '--top-q'" generate --model run --prompt x --top-q 3
refused "--max-new: found '0'" generate --model run --prompt x --max-new 0
refused "--top-p: found '1.5'" generate --model run --prompt x --top-p 1.5
refused "--top-p: found '0'" generate --model run --prompt x --top-p 0
refused "would all be the same" generate --model run --prompt x -n 2
refused "needs a value" generate --model run --prompt
refused "positions" generate --model run --prompt x --context 100000
refused "prompt 1 is empty" generate --model run --prompt ""
printf '{"prompt": "a"}\n{"prompt": 3}\n' >bad.jsonl
refused "bad.jsonl:2" generate --model run --prompt-file bad.jsonl
printf '{"prompt": "a"}\nnot json\n' >bad.jsonl
refused "bad.jsonl:2" generate --model run --prompt-file bad.jsonl
refused "missing.txt" eval --model run --data missing.txt
refused "--last is for text" eval --model run --data q.jsonl --last 0.5
refused "--samples is for questions" eval --model run --data text.txt --samples 2
refused "--max-new-tokens is for questions" eval --model run --data text.txt --max-new-tokens 2
refused "--speculative is for questions" eval --model run --data text.txt --speculative
refused "--k 3 with --samples 2" eval --model run --data q.jsonl --samples 2 --k 3 --temperature 1
refused "--answer-regex" eval --model run --data q.jsonl --answer-regex '('
refused "q.jsonl:1" eval --model run --data q.jsonl --answer-regex 'x(\d)'
finish "all right"
