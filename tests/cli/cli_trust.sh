#!/bin/bash
# cli_trust.sh - files, names and directories of others: nothing of them reaches the terminal raw, hangs the program, or is
# copied or written to where it leads. RALO: the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

tiny=(train --preset test-llama --set data.seq_len=32 --set train.micro_batch=2 --set train.warmup=0 --set train.eval_rows=0
    --set train.problems=0 --set run.threads=1)

# ---- a checkpoint that is not whole: warned of once, and not counted
check 0 -- "${tiny[@]}" --set train.steps=3 --set train.save_every=1 --set run.keep=all --set run.dir=broken
truncate -s -10 broken/checkpoints/step-00000003/checkpoint.json
check 0 'resumed from broken/checkpoints/step-00000002' -- "${tiny[@]}" --set train.steps=4 --set train.save_every=2 \
    --set run.keep=2 --set run.dir=broken --resume auto
[ "$(grep -c 'cannot be used and is skipped' err)" = 1 ] || fail "a checkpoint that is not whole: $(grep -c 'cannot be used and is skipped' err) warnings"
[ "$(ls broken/checkpoints)" = "$(printf 'step-0000000%d\n' 2 3 4)" ] || fail "keep 2 of 1 2 x3 4: $(ls broken/checkpoints)"
check 0 -- "${tiny[@]}" --set train.steps=2 --set train.save_every=0 --set run.dir=fresh
truncate -s -10 fresh/checkpoints/step-00000002/checkpoint.json
check 0 -- "${tiny[@]}" --set train.steps=1 --set run.dir=fresh
[ "$(grep -c 'cannot be used and is skipped' err)" = 1 ] || fail "a fresh run beside one that is not whole: $(grep -c 'cannot be used and is skipped' err) warnings"
check 0 -- "${tiny[@]}" --set train.steps=2 --resume broken --set run.dir=other
mv fresh/checkpoints/step-00000001 fresh/checkpoints/step-00000006 # counts for five steps that nobody made
renamed='step-00000006 is named as step 6 and holds step 1: it was renamed; give it back the name step-00000001'
for command in 'export fresh/checkpoints/step-00000006 exported' 'generate --model fresh/checkpoints/step-00000006 --prompt 1+1=' \
    "train fresh --resume fresh/checkpoints/step-00000006 --set run.dir=begun"; do
    check 2 "$renamed" -- $command
done
[ ! -e exported ] && [ ! -e begun ] || fail "a renamed checkpoint: something was begun"
mv fresh/checkpoints/step-00000006 fresh/checkpoints/step-00000001
cp -r fresh nothing && truncate -s -10 nothing/checkpoints/step-00000001/checkpoint.json
check 2 'found no complete checkpoint' 'cannot be used and is skipped' -- "${tiny[@]}" --set train.steps=2 --set run.dir=none \
    --resume nothing
check 2 'found no complete checkpoint among 2' 'cannot be used and is skipped' 'to start from step 0' -- train nothing
truncate -s -10 nothing/checkpoints/step-0*1/tensors-*
check 2 'found no complete checkpoint among 2' -- "${tiny[@]}" --set train.steps=2 --set run.dir=nothing --resume auto
rm -r nothing/checkpoints
check 0 'no checkpoint in nothing yet: starting from step 0' -- train nothing

# ---- train.problems=2 shows two examples
check 0 -- train --preset test-llama --set data.source=builtin:arithmetic --set data.seq_len=32 --set train.micro_batch=2 \
    --set train.steps=1 --set train.warmup=0 --set train.eval_rows=0 --set train.problems=2 --set run.dir=examples --set run.threads=1
[ "$(grep -ac '  [0-9+]*=' err)" = 2 ] || fail "train.problems=2: $(grep -ac '  [0-9+]*=' err) examples"

# ---- what is no regular file: refused as any input, never waited for
mkfifo fifo fifo.jsonl fifo.json fifo.yaml
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
special() { # TEXT ARGUMENTS: refused at once, with TEXT in the message
    local text=$1
    shift
    timeout 20 "$RALO" "$@" >out 2>err </dev/null
    local rc=$?
    [ $rc = 2 ] && grep -aqF -- "$text" err || fail "ralo $*: exit code $rc, expected 2 and '$text': $(tail -n 1 err)"
}
model=$TEST_FIXTURES/hf/llama_sharded
for i in $(seq 60); do echo "line $i of a text that says line $i of a text"; done >text
mkdir tokenizer && cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json
echo '{"eos_token": "<|im_end|>"}' >tokenizer/tokenizer_config.json
check 0 -- "${tiny[@]}" --set model.vocab=352 --set data.tokenizer=tokenizer --set data.source=text --set train.steps=2 \
    --set run.dir=tokens --set run.export=tokens-hf
pipe='is a pipe, expected a regular file'
special "fifo $pipe" plan fifo
special "fifo.json $pipe" plan --preset test-llama fifo.json
special "fifo.json $pipe" plan --preset test-llama --deepspeed fifo.json
special "fifo.yaml $pipe" plan --preset test-llama --hardware ./fifo.yaml
special "fifo $pipe" "${tiny[@]}" --set data.source=fifo --set run.dir=never
special "fifo.jsonl $pipe" "${tiny[@]}" --set data.source=fifo.jsonl --set run.dir=never
special "/dev/zero is a device" "${tiny[@]}" --set data.source=/dev/zero --set run.dir=never
special "fifo $pipe" "${tiny[@]}" --set data.tokenizer=fifo --set run.dir=never
special "socket is a socket" "${tiny[@]}" --set data.source=socket --set run.dir=never
mkdir no-data
special "found no file of data in the directory no-data" "${tiny[@]}" --set data.source=no-data --set run.dir=never
[ ! -e never ] || fail "a refused run made its directory"
special "fifo $pipe" eval --model other --data fifo
special "fifo.jsonl $pipe" eval --model other --data fifo.jsonl
special "fifo $pipe" generate --model other --prompt-file fifo
special "fifo.jsonl $pipe" generate --model other --prompt-file fifo.jsonl
trap_in() { # DIR NAME: a copy of DIR as `model`, with a pipe called NAME
    rm -rf model && cp -r "$1" model && rm -f "model/$2" && mkfifo "model/$2"
}
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' >chat.jsonl
for name in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json chat_template.jinja; do
    trap_in tokens-hf $name
    special "model/$name $pipe" train --set model.path=model --set data.source=chat.jsonl --set data.seq_len=32 \
        --set train.steps=1 --set train.micro_batch=1 --set data.eval_fraction=0 --set train.eval_rows=0 \
        --set train.problems=0 --set run.dir=never
done
for name in model.safetensors.index.json model-00001-of-00004.safetensors; do
    trap_in "$model" $name
    special "model/$name $pipe" train --set model.path=model --set data.source=builtin:random --set data.seq_len=8 \
        --set train.steps=1 --set run.dir=never
done
cp -r tokens damaged && rm damaged/checkpoints/step-00000002/checkpoint.json &&
    mkfifo damaged/checkpoints/step-00000002/checkpoint.json
special "checkpoint.json $pipe" export damaged/checkpoints/step-00000002 exported
rm -r damaged && cp -r tokens damaged && rm damaged/checkpoints/step-00000002/tensors-*1-of* &&
    mkfifo "damaged/checkpoints/step-00000002/$(ls tokens/checkpoints/step-00000002 | grep '1-of')"
special '1-of-00001.safetensors' export damaged/checkpoints/step-00000002 exported
check 0 -- plan <(echo 'train: {micro_batch: 3}') --preset test-llama # what the caller opened himself is no trap
echo 'Once' | run 0 generate --model other --max-new 1 -

# ---- what a run writes in its directory goes through no link, and waits for no pipe
traps() { # NAME: as a link to a file and as a pipe
    rm -rf trap && mkdir -p trap/checkpoints && echo mine >mine && ln -s "$work/mine" "trap/$1"
    timeout 20 "$RALO" "${tiny[@]}" --set train.steps=1 --set run.dir=trap >out 2>err </dev/null
    local rc=$?
    [ "$(cat mine)" = mine ] || fail "$1: a run wrote through a link"
    [ $rc = 0 ] || { [ $rc = 2 ] && grep -qF "trap/$1" err; } || fail "$1 as a link: exit code $rc: $(tail -n 1 err)"
    rm -rf trap && mkdir -p trap/checkpoints && mkfifo "trap/$1"
    timeout 20 "$RALO" "${tiny[@]}" --set train.steps=1 --set run.dir=trap >out 2>err </dev/null
    rc=$?
    [ $rc = 0 ] || { [ $rc = 2 ] && grep -qF "trap/$1" err; } || fail "$1 as a pipe: exit code $rc: $(tail -n 1 err)"
}
traps metrics.jsonl
traps config.yaml
traps checkpoints/.lock
traps checkpoints/.tmp-step-00000001

# ---- the tokenizer lies in the run: export, generate and eval need nothing else, and no path of a checkpoint is copied from
rm -rf tokenizer && mkdir -p tokenizer/additional_chat_templates
cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json
echo '{"eos_token": "<|im_end|>"}' >tokenizer/tokenizer_config.json
echo '{{ messages }}' >tokenizer/additional_chat_templates/tool.jinja
echo unasked >tokenizer/README.md
trained=("${tiny[@]}" --set model.vocab=352 --set data.source=text --set train.steps=2)
check 0 -- "${trained[@]}" --set data.tokenizer=tokenizer --set run.dir=kept --set run.export=kept-hf
check 0 -- generate --model kept --prompt line --max-new 8 && cp out before
mkdir away && mv kept away/run && mv tokenizer away/original
check 0 -- generate --model away/run --prompt line --max-new 8
cmp -s out before || fail "a run that was moved generates something else"
check 0 -- eval --model away/run --data text
check 0 -- export away/run moved
for place in kept-hf moved; do
    (cd $place && find . -type f | LC_ALL=C sort) >files
    printf './%s\n' README.md additional_chat_templates/tool.jinja config.json generation_config.json model.safetensors tokenizer.json \
        tokenizer_config.json | cmp -s - files || fail "$place holds $(tr '\n' ' ' <files)"
    for file in tokenizer.json tokenizer_config.json additional_chat_templates/tool.jinja; do
        cmp -s $place/$file away/original/$file || fail "$place/$file is not the tokenizer's"
    done
done
mv away/run/checkpoints/step-00000002 alone # one checkpoint by itself
check 0 -- generate --model alone --prompt line --max-new 8
cmp -s out before || fail "a checkpoint by itself generates something else"
check 0 -- export alone alone-hf
cmp -s alone-hf/tokenizer.json moved/tokenizer.json || fail "a checkpoint by itself exports another tokenizer"
check 0 -- export alone bare --tokenizer none
[ ! -e bare/tokenizer.json ] || fail "--tokenizer none copied one"

# A link of a cache of Hugging Face is followed, one that leaves it is not.
mkdir -p hub/blobs hub/snapshots/1 && cp away/original/*.json hub/blobs/ && echo treasure >secret
for file in tokenizer.json tokenizer_config.json; do ln -s ../../blobs/$file hub/snapshots/1/$file; done
check 0 -- "${trained[@]}" --set data.tokenizer=hub/snapshots/1 --set run.dir=hub-run --set run.export=hub-hf
cmp -s hub-hf/tokenizer_config.json away/original/tokenizer_config.json || fail "files of a cache did not come along"
ln -s "$work/secret" hub/snapshots/1/merges.txt
special "merges.txt is a link to $work/secret" "${trained[@]}" --set data.tokenizer=hub/snapshots/1 --set run.dir=leak --set run.export=leak-hf
! grep -rqs treasure leak leak-hf || fail "what a link leads to was copied"
rm hub/snapshots/1/merges.txt && mkfifo hub/snapshots/1/merges.txt
special "merges.txt $pipe" "${trained[@]}" --set data.tokenizer=hub/snapshots/1 --set run.dir=leak --set run.export=leak-hf

# ---- bytes that do something to a terminal: escaped in every line, and in generated text where stdout is a terminal
raw() { LC_ALL=C grep -q -P '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xff' "$1"; } # what must not come out
esc=$(printf 'a\033]0;owned\007b\302\233c')
quiet() { # ARGUMENTS: neither output has a byte of a terminal's
    timeout 60 "$RALO" "$@" >out 2>err </dev/null
    ! raw out && ! raw err || fail "ralo $*: raw bytes: $(cat -v out err | grep -m 1 '\^\|M-')"
}
quiet "$esc"
quiet plan "$esc"
quiet plan --set "$esc=1"
quiet plan --set "model.preset=$esc"
quiet plan --set "model.path=$esc"
quiet plan --preset test-llama --hardware "$esc"
quiet eval --model "$esc" --data text
quiet generate --model alone --prompt-file "$(printf '\377\376')"
grep -qF '\xff\xfe' err || fail "a name that is not UTF-8: $(tail -n 1 err)"
printf 'train:\n  "%s": 1\n' '\e[31mkey\x9b' >keys.yaml
quiet plan keys.yaml
grep -qF '\x1b[31mkey' err || fail "a key with control characters: $(cat -v err)"
mkdir "$esc" && cp -r moved "$esc/$esc"
quiet plan --set model.path="$esc/$esc" --set data.source=text --set data.seq_len=16
grep -qF 'owned' out || fail "the plan does not name the model"
quiet plan --set model.path="$esc/$esc" --set data.source=text --set data.seq_len=16 --json
holds 'chr(0x9b) in r["model"]'
quiet "${tiny[@]}" --set train.steps=1 --set run.dir="$esc/run"
quiet export other "$(printf 'hf\377')" --json
holds 'r["export"] == "hf\ufffd"'
quiet train --preset test-llama --set data.source=builtin:arithmetic --set data.seq_len=32 --set train.micro_batch=2 \
    --set train.steps=1 --set train.warmup=0 --set train.eval_rows=0 --set train.problems=4 --set run.dir=raw-examples
printf '{"model_type": "\\u001b[2J", "vocab_size": 10}' >moved/config.json
quiet plan --set model.path=moved --set data.source=text

# A model of bytes that was trained for one step says anything: raw to a file, escaped to a terminal.
run 0 generate --model other --prompt 'ab' --max-new 200 --temperature 100 --seed 3 --ignore-eos
raw out || fail "the completion holds no control character: another seed is needed"
cat >terminal.py <<'PY'
import os, pty, subprocess, sys
master, slave = pty.openpty()
child = subprocess.Popen(sys.argv[2:], stdout=slave, stderr=slave)
os.close(slave)
shown = b""
try:
    while data := os.read(master, 4096): shown += data
except OSError: pass # how the end of a terminal is told
open(sys.argv[1], "wb").write(shown.replace(b"\r\n", b"\n"))
sys.exit(child.wait())
PY
python3 terminal.py shown "$RALO" generate --model other --prompt 'ab' --max-new 200 --temperature 100 --seed 3 --ignore-eos \
    </dev/null || fail "generate on a terminal"
! raw shown || fail "raw bytes on a terminal: $(cat -v shown | head -n 3)"
grep -qF '\x' shown || fail "nothing is escaped on a terminal"
# Lines that ralo draws anew are its own: they are not escaped.
python3 terminal.py shown "$RALO" plan --preset llama2-7b --hardware rtx4090 </dev/null || fail "plan on a terminal"
! grep -qF '\x' shown || fail "a sign of life is escaped: $(grep -aF '\x' shown | head -n 1)"

finish "nothing of others is trusted"
