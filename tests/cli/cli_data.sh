#!/bin/bash
# cli_data.sh - ralo train on files of JSON Lines: counts on the data line, the token cache, mixtures, resume that
# notices other data, and bad input that is refused with file and line. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
export XDG_CACHE_HOME=$work/home
hash_of() { grep -o 'param_hash [0-9a-f]*' err; }

mkdir tokenizer
cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json
for i in $(seq 10 99); do
    echo "{\"question\": \"What is $i plus 10?\", \"answer\": \"The answer is $((i + 10)).\"}"
done >qa.jsonl
for i in $(seq 1 200); do echo "The quick brown fox jumps over the lazy dog number $i."; done >text.txt
tiny=(--preset test-llama --set model.vocab=352 --set data.seq_len=48 --set train.micro_batch=4 --set train.steps=6
    --set train.warmup=0 --set train.eval_rows=2 --set train.problems=0 --set train.lr=0.01
    --set data.tokenizer=tokenizer --set run.threads=1 --set run.bind=false)

# ---- counts, the cache, and the same bits with and without it
check 0 "qa.jsonl: 86 records to train, 4 held out; " " in the loss; chat chatml" " rows of 48 tokens per epoch = " "!lose their end" "!dropped" "!skipped" "!from the cache" "done      6 steps (" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=first
first=$(hash_of)
check 0 "86 records" "; from the cache" -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=second
[ "$(hash_of)" = "$first" ] || fail "from the cache: $(hash_of), before: $first"
check 0 "!from the cache" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.cache=none --set run.dir=third
[ "$(hash_of)" = "$first" ] || fail "without a cache: $(hash_of), before: $first"
ls home/ralo/*.tokens >/dev/null 2>&1 || fail "no cache below XDG_CACHE_HOME"
check 0 -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.train_on=all --set run.dir=fourth
[ "$(hash_of)" != "$first" ] || fail "data.train_on=all changed nothing"

# ---- the same questions as turns under prompt and completion are the same run
sed 's/{"question": \(.*\), "answer": \(.*\)}/{"prompt": [{"role": "user", "content": \1}], "completion": [{"role": "assistant", "content": \2}]}/' \
    qa.jsonl >turns.jsonl
check 0 "86 records" "in the loss; chat chatml" -- train "${tiny[@]}" --set data.source=turns.jsonl --set run.dir=turns
[ "$(hash_of)" = "$first" ] || fail "as turns: $(hash_of), before: $first"
sed '3s/"completion": .*/"completion": "The answer is 22."}/' turns.jsonl >half-turns.jsonl
check 2 "half-turns.jsonl:3:" "found a list and a string" "two texts or two lists" -- train "${tiny[@]}" \
    --set data.source=half-turns.jsonl --set run.dir=never
sed 's/"completion": \(.*\)}$/"chosen": \1, "rejected": []}/' turns.jsonl >preferences.jsonl
check 2 "preferences.jsonl:1:" "a preference" "data.response_column=chosen" -- train "${tiny[@]}" \
    --set data.source=preferences.jsonl --set run.dir=never
check 0 "86 records" -- train "${tiny[@]}" --set data.source=preferences.jsonl --set data.prompt_column=prompt \
    --set data.response_column=chosen --set run.dir=chosen
[ "$(hash_of)" = "$first" ] || fail "what was chosen: $(hash_of), before: $first"
mkdir -p locked && : >locked/file
XDG_CACHE_HOME=$work/locked/file check 0 "kept in memory only" "86 records" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=fifth
check 2 "data.cache locked/file/x" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.cache=locked/file/x \
    --set run.dir=never
check 2 "data.cache: " "/proc/" "name another directory, or none" -- train "${tiny[@]}" --set data.source=qa.jsonl \
    --set data.cache=/proc --set run.dir=never # there, and no file can be made in it
check 0 "host" -- plan "${tiny[@]}" --set data.source=qa.jsonl

# ---- rows too short for a good part of the records are said aloud, the odd one is not
check 0 "!longer than a row" -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=long-rows
check 2 "qa.jsonl: 90 of 90 records are longer than a row of 24 tokens" "data.seq_len=64 keeps all" "data.allow_cut=true" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set data.seq_len=24 --set run.dir=never
python3 -c 'print("{\"prompt\": \"a\", \"chosen\": \"" + "x" * 100000 + "\", \"rejected\": \"b\"}")' >long-pair.jsonl
check 2 "found 1 example of preferences for training, each longer than a row" "positions, and rows of 1000" "would hold all: " "give shorter ones" \
    "!data.seq_len=1000" -- train "${tiny[@]}" --set train.task=preference --set data.source=long-pair.jsonl --set run.dir=never
[ ! -e never ] || fail "a refused run left its directory"
check 0 "warning: 86 of 86 records are longer than a row of 24 tokens: " "a larger data.seq_len" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set data.seq_len=24 --set data.allow_cut=true --set run.dir=short-rows
check 0 "records of " "data.seq_len 64 (auto) holds all of them" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set data.seq_len=auto --set train.steps=1 --set run.dir=auto-rows
grep -q "seq_len: 64" auto-rows/config.yaml || fail "the length that was chosen is not in config.yaml"

# ---- keys of another name, and turns without a format
sed 's/question/input/; s/answer/output/' qa.jsonl >named.jsonl
check 2 "named.jsonl:1: found the keys 'input', 'output'" "data.prompt_column=input and data.response_column=output" "!on_error" \
    "!--on-error" -- train "${tiny[@]}" --set data.source=named.jsonl --set run.dir=never
check 2 "data.response_column: the record at named.jsonl:1 has no key 'outptu'; it has 'input', 'output'" -- train "${tiny[@]}" \
    --set data.source=named.jsonl --set data.prompt_column=input --set data.response_column=outptu --set run.dir=never
check 0 "warning: data.chat is none: prompt and response follow each other without a separator; set data.chat=auto" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set data.chat=none --set run.dir=glued
sed 's/?"/?\\n"/' qa.jsonl >lines.jsonl
check 0 "!without a separator" -- train "${tiny[@]}" --set data.source=lines.jsonl --set data.chat=none --set run.dir=apart
check 0 "warning: data.source: found no file nope.jsonl; planned without it" -- plan "${tiny[@]}" --set data.source=nope.jsonl

# ---- mixtures, and a name that looks like a weight
check 0 "70.0 %  qa.jsonl" "30.0 %  text.txt" -- train "${tiny[@]}" --set "data.source=qa.jsonl:0.7, text.txt:0.3" \
    --set run.dir=mixed
check 0 "qa.jsonl: 86 records" "text.txt: 1 document" -- train "${tiny[@]}" --set data.source=qa.jsonl,text.txt \
    --set run.dir=both
cp text.txt odd:0.5
check 2 "odd" -- train "${tiny[@]}" --set data.source=odd:0.5 --set run.dir=never
check 0 "1 document" -- train "${tiny[@]}" --set 'data.source=odd\:0.5' --set run.dir=odd
check 2 "weight for 'qa.jsonl' and none for 'text.txt'" -- train "${tiny[@]}" --set data.source=qa.jsonl:1,text.txt \
    --set run.dir=never

# ---- packed files and tables are the same run, whatever their name says of the packing
bytes=(--preset test-llama --set data.seq_len=24 --set train.micro_batch=2 --set train.steps=1 --set train.warmup=0
    --set train.eval_rows=0 --set train.problems=0 --set data.eval_fraction=0)
same() { # FILE [SETTING...]: trains to the same bits as qa.jsonl
    local file=$1 && shift
    check 0 "86 records" -- train "${tiny[@]}" --set data.source="$file" --set run.dir="run-$file" "$@"
    [ "$(hash_of)" = "$first" ] || fail "$file: $(hash_of), qa.jsonl: $first"
}
gzip -c qa.jsonl >qa.jsonl.gz && cp qa.jsonl.gz qa-gz.jsonl
{ head -50 qa.jsonl | gzip -c && tail -n +51 qa.jsonl | gzip -c && head -c 512 /dev/zero; } >members.jsonl.gz
sed 's/{"question": "\(.*\)", "answer": "\(.*\)"}/"\1",\2/; 1i question,answer' qa.jsonl >qa.csv
sed 's/^"//; s/",/\t/; s/,/\t/; s/$/\r/' qa.csv >qa.tsv
gzip -c qa.csv >qa.csv.gz
same qa.jsonl.gz
check 0 "; from the cache" -- train "${tiny[@]}" --set data.source=qa.jsonl.gz --set run.dir=packed-again
same qa-gz.jsonl
same members.jsonl.gz --set data.cache=none
same qa.csv
same qa.tsv
same qa.csv.gz
if command -v zstd >/dev/null; then
    zstd -q qa.jsonl && same qa.jsonl.zst
fi
check 0 "1 document" -- train "${bytes[@]}" --set data.source=qa.jsonl.gz --set data.format=text --set run.dir=as-bytes
head -c 300 qa.jsonl.gz >cut.jsonl.gz
check 2 "cut.jsonl.gz: the gzip data ends after 300 bytes in the middle" "download it again" -- train "${bytes[@]}" \
    --set data.source=cut.jsonl.gz --set data.on_error=skip --set run.dir=never
{ cat qa.jsonl.gz && echo more; } >garbage.jsonl.gz
check 2 "garbage.jsonl.gz: found damaged gzip data" -- train "${bytes[@]}" --set data.source=garbage.jsonl.gz --set run.dir=never
check 2 "qa.txt.gz: found no gzip data, as its name says" -- train "${bytes[@]}" --set data.source="$(cp qa.jsonl qa.txt.gz; echo qa.txt.gz)" --set run.dir=never
printf 'a,b\n1,"2\n' >open.csv
check 2 "open.csv:2: column 2 ('b'): found no end of the quote that begins on line 2" -- train "${bytes[@]}" --set data.source=open.csv --set run.dir=never
{ printf 'PAR1\025' && seq 1000; } >table.parquet && cp table.parquet table.jsonl && mkdir -p columnar && cp table.parquet columnar/
check 2 "table.parquet: found a file of Parquet" "JSON Lines" "for f in sys.argv[1:]]\" table.parquet" -- train "${bytes[@]}" --set data.source=table.parquet --set run.dir=never
check 2 "table.jsonl: found a file of Parquet" "JSON Lines" "!data.format=text" -- train "${bytes[@]}" --set data.source=table.jsonl --set run.dir=never
check 2 "no file of data in the directory columnar" "for f in sys.argv[1:]]\" columnar/*.parquet" -- train "${bytes[@]}" --set data.source=columnar --set run.dir=never
check 2 "columnar/table.parquet: found a file of Parquet" -- train "${bytes[@]}" --set 'data.source=columnar/*.parquet' --set run.dir=never

# ---- bytes that memory cannot hold are refused before they are read
truncate -s "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)K" large.txt && {
    check 3 "no memory for" data.cache -- train "${bytes[@]}" --set data.source=large.txt --set data.format=text --set run.dir=never
    rm large.txt
}

# ---- stopped and resumed is the same run; other data is refused
mix=("${tiny[@]}" --set "data.source=qa.jsonl:0.7, text.txt:0.3" --set run.dir=half --set train.schedule=constant)
check 0 -- train "${mix[@]}" --set run.dir=whole
whole=$(hash_of)
check 0 -- train "${mix[@]}" --set train.steps=3
check 0 "resumed from" -- train "${mix[@]}" --resume auto
[ "$(hash_of)" = "$whole" ] || fail "resumed: $(hash_of), whole: $whole"
check 0 -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=kept --set train.steps=3
check 2 "was made with other data" -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=kept --resume auto --set data.train_on=all
check 2 "was made with other data" -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=kept --resume auto --set data.chat=none
sed -i 's/plus/with/' qa.jsonl
check 2 "was made with other data" -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=kept --resume auto

# ---- bad input
cp qa.jsonl bad.jsonl
echo '{"question": "half' >>bad.jsonl
check 2 "bad.jsonl:91:" "one JSON object on each line" "data.on_error=skip" -- \
    train "${tiny[@]}" --set data.source=bad.jsonl --set run.dir=never
check 0 "warning: bad.jsonl:91:" "left out" "1 invalid line is skipped" -- \
    train "${tiny[@]}" --set data.source=bad.jsonl --set data.on_error=skip --set run.dir=skipped
check 2 "bad.jsonl:91:" -- train "${tiny[@]}" --set data.source=bad.jsonl --set run.dir=never
{ printf '{"text": "' && head -c 3000 /dev/zero | tr '\0' x && printf '"}\n'; } >long.jsonl
check 2 "long.jsonl:1:" "3012 bytes" "data.max_line" -- train "${tiny[@]}" --set data.source=long.jsonl \
    --set data.max_line=1K --set run.dir=never
{ echo '[' && sed '$!s/$/,/' qa.jsonl && echo ']'; } >list.json
hash_of() { grep -o 'param_hash [0-9a-f]*' err; } # a JSON list is the records of its lines, to the last bit
run 0 train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=of-lines && of_lines=$(hash_of)
run 0 train "${tiny[@]}" --set data.source=list.json --set run.dir=of-list
[ "$(hash_of)" = "$of_lines" ] || fail "a JSON list ends with $(hash_of), its lines with $of_lines"
: >empty.jsonl
check 2 "empty.jsonl" "no record" -- train "${tiny[@]}" --set data.source=empty.jsonl --set run.dir=never
check 2 "data.prompt_column" "data.response_column" -- train "${tiny[@]}" --set data.source=qa.jsonl \
    --set data.prompt_column=question --set run.dir=never
check 0 "86 records" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.prompt_column=answer \
    --set data.response_column=question --set run.dir=columns
check 0 "qa.jsonl: 1 document to train; " "rows of 48 tokens" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.format=text \
    --set run.dir=as-text

# ---- the tokenizer's own chat template is rendered; what it cannot be is named; other variables are other tokens
echo '{"chat_template": "{% include \"x\" %}"}' >tokenizer/tokenizer_config.json
check 2 "qa.jsonl:1: the tokenizer's chat template cannot be rendered" "tokenizer_config.json:1:" "include" "data.chat" -- \
    train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=never
check 0 "chat none" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.chat=none --set run.dir=broken
cat >tokenizer/chat_template.jinja <<'JINJA'
{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + (mark | default('')) + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
JINJA
check 0 "chat chatml" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.chat=chatml --set run.dir=by-name
first=$(hash_of)
check 0 "chat template" -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=rendered
[ "$(hash_of)" = "$first" ] || fail "a template that writes ChatML: $(hash_of), before: $first"
check 0 "; from the cache" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.chat=template --set run.dir=rendered-again
check 0 "!from the cache" -- train "${tiny[@]}" --set data.source=qa.jsonl --set 'data.chat_kwargs={"mark": "!"}' --set run.dir=marked
[ "$(hash_of)" != "$first" ] || fail "data.chat_kwargs changed nothing"
check 0 "!from the cache" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.train_on_newline=true --set run.dir=newline
[ "$(hash_of)" != "$first" ] || fail "data.train_on_newline changed nothing"
check 2 "data.chat_kwargs" "a JSON object" -- train "${tiny[@]}" --set data.source=qa.jsonl --set data.chat_kwargs=mark --set run.dir=never

# ---- content that a template does not take: which turn, and what to write
echo '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]}' >null.jsonl
check 2 "null.jsonl:1: " "turn 2 has, null content: write \"\"" -- show --set data.source=null.jsonl --set data.tokenizer=tokenizer
echo '{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": "y"}]}' >parts.jsonl
check 2 "parts.jsonl:1: " "turn 1 has, a list of parts as content: write their text as one string" -- show --set data.source=parts.jsonl --set data.tokenizer=tokenizer

# ---- ralo show: records as the model reads them
show=(show --set data.source=qa.jsonl --set data.tokenizer=tokenizer)
"$RALO" "${show[@]}" --records 1 >out 2>err || fail "ralo show: $(cat err)"
printf '%s\n' 'qa.jsonl:1: 33 tokens, 11 trained on' '<|im_start|>user' 'What is 10 with 10?<|im_end|>' '<|im_start|>assistant' \
    '>>>The answer is 20.<|im_end|><<<' '' '' | cmp -s - <(sed '1s/: [0-9]* tokens, [0-9]* /: 33 tokens, 11 /' out) || fail "ralo show: $(cat out)"
"$RALO" "${show[@]}" --prompts --records 2 --json >out 2>err || fail "ralo show --prompts: $(cat err)"
[ "$(wc -l <out)" = 2 ] && grep -qF '"text": "<|im_start|>user\nWhat is 11 with 10?<|im_end|>\n<|im_start|>assistant\n"' out || fail "ralo show --prompts: $(cat out)"
printf '{"question": "\\u001b[31m", "answer": "a"}\n' >escape.jsonl
"$RALO" show --set data.source=escape.jsonl --set data.tokenizer=tokenizer >out 2>err || fail "ralo show: $(cat err)"
grep -qF '\x1b[31m' out || fail "ralo show writes control characters: $(cat out)"
check 2 "text.txt" "JSON Lines" -- show --set data.source=text.txt
mkdir nothing && printf 'PAR1\025\004\025\000PAR1' >x.parquet # the reason that training gives
check 2 "found no file of data in the directory nothing" -- show --set data.source=nothing
check 2 "x.parquet: found a file of Parquet" "read_parquet" -- show --set data.source=x.parquet
check 2 "found no file tatsu-lab/alpaca" "load_dataset('tatsu-lab/alpaca'" -- show --set data.source=tatsu-lab/alpaca
echo '{% for m in messages %}{{ m.content }}{% endfor %}' >tokenizer/chat_template.jinja
check 0 "chat template" -- train "${tiny[@]}" --set data.source=qa.jsonl --set run.dir=endless
[ "$(grep -c 'writes no special token after an answer' err)" = 1 ] || fail "not one warning: $(grep warning err)"
rm tokenizer/tokenizer_config.json tokenizer/chat_template.jinja

# ---- what the template does not write: named, or counted, in every task
mkdir drops && cp tokenizer/tokenizer.json drops
echo "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}" >drops/chat_template.jinja
python3 - <<'END'
import json
user, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
lost = {"messages": [user, call, {"role": "tool", "content": "r"}, answer], "tools": [{"name": "f"}]}
with open("lost.jsonl", "w") as f:
    f.writelines(json.dumps(r) + "\n" for r in [{"messages": [user, answer]}] * 20 + [lost])
with open("lost-pairs.jsonl", "w") as f:
    f.write(json.dumps({"prompt": [user], "chosen": [call], "rejected": [answer]}) + "\n")
with open("lost-prompts.jsonl", "w") as f:
    f.write(json.dumps({"prompt": "x", "tools": [{"name": "f"}], "answer": "y"}) + "\n")
END
check 2 "lost.jsonl:21: found tools[0], which the chat template drops/chat_template.jinja does not write" "data.on_error=skip" -- \
    train "${tiny[@]}" --set data.tokenizer=drops --set data.source=lost.jsonl --set run.dir=never
tail -n 1 lost.jsonl >lost-one.jsonl
check 2 "lost-one.jsonl:1: found tools[0]" -- show --set data.tokenizer=drops --set data.source=lost-one.jsonl
check 0 "20 records to train" "1 invalid line is skipped" "lost.jsonl:21: found tools" -- train "${tiny[@]}" --set data.tokenizer=drops \
    --set data.eval_fraction=0 --set train.eval_rows=0 --set data.source=lost.jsonl --set data.on_error=skip --set train.steps=1 --set run.dir=without-lost
check 2 "lost-pairs.jsonl:1: turn 2: found tool_calls[0]" -- show --set train.task=preference --set data.tokenizer=drops --set data.source=lost-pairs.jsonl
check 2 "lost-prompts.jsonl:1: found tools[0]" -- train "${tiny[@]}" --set train.task=rloo --set reward.list=exact --set data.tokenizer=drops \
    --set data.source=lost-prompts.jsonl --set run.dir=never
echo '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}' >turns.jsonl
check 2 "turns need a chat template" "put a chat_template.jinja into the tokenizer's directory" -- show --set data.source=turns.jsonl \
    --set data.tokenizer=tokenizer --set data.chat=none
check 2 "351 tokens" "vocabulary of 300" "model.vocab=351" -- train "${tiny[@]}" --set model.vocab=300 \
    --set data.source=qa.jsonl --set run.dir=never
check 0 "the other entries are never trained" -- train "${tiny[@]}" --set model.vocab=2000 --set data.source=qa.jsonl \
    --set run.dir=many-rows
check 0 "data.chat has no effect" -- train "${tiny[@]}" --set data.source=builtin:grammar --set data.tokenizer=byte \
    --set data.chat=none --set run.dir=builtin
[ ! -e never ] || fail "a refused run made its directory"

# Nothing to evaluate, whatever is asked for in between; and problems alone.
check 0 "!eval at" "!held out" -- train "${tiny[@]}" --set data.source=builtin:grammar --set data.tokenizer=byte --set train.steps=2 \
    --set train.eval_rows=0 --set train.problems=5 --set train.eval_every=1 --set run.dir=no-eval
check 0 "!eval at" "!held out" "!nan" "train.eval_rows has no effect" "train.eval_every has no effect" -- train "${tiny[@]}" \
    --set model.vocab=2000 --set data.source=qa.jsonl --set train.steps=2 --set data.eval_fraction=0 --set train.eval_rows=2 \
    --set train.eval_every=1 --set run.dir=no-share
! grep -q val/ no-eval/metrics.jsonl no-share/metrics.jsonl || fail "metrics of an evaluation that nobody asked for"
check 0 "eval at step 1  exact match" "!held out  " "!nan" -- train "${tiny[@]}" --set data.source=builtin:arithmetic \
    --set data.tokenizer=byte --set train.steps=2 --set train.eval_rows=0 --set train.problems=4 --set train.eval_every=1 --set run.dir=problems

finish "all passed"
