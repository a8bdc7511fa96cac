#!/usr/bin/env bash
# cli_lora.sh - adapters from the command line: train, export, merge, generate and eval with --adapter, and what is refused.
. "$(dirname "$0")/../harness/check.sh"

base=$TEST_FIXTURES/lora/train_llama
text=$TEST_FIXTURES/lora/text.txt
sets=(--set model.path="$base" --set data.source="$text" --set data.seq_len=32 --set data.eval_fraction=0 --set run.device=cpu
      --set run.threads=2 --set train.steps=3 --set train.lr=0.01)

check 0 "lora      rank 4" "exported to peft" -- train "${sets[@]}" --set model.lora.rank=4 --set run.dir=run --set run.export=peft
[ "$(ls peft | LC_ALL=C sort | tr '\n' ' ')" = "README.md adapter_config.json adapter_model.safetensors " ] || fail "run.export: $(ls peft)"
check 0 "run.export: peft is there, and the run was done before" "nothing is left to train" "!exported to peft" -- train run
check 2 "run.export: peft holds files already" -- train run --set train.steps=4
check 0 "an adapter with" -- export run again --json
holds 'r["adapter"] and r["dtype"] == "fp32" and r["step"] == 3'
cmp -s peft/adapter_model.safetensors again/adapter_model.safetensors || fail "run.export and ralo export differ"
check 0 -- export run merged --merge --json
holds 'not r["adapter"] and r["dtype"] == "fp32"'
check 0 -- export "$base" merged2 --adapter peft --merge
cmp -s merged/model.safetensors merged2/model.safetensors || fail "merged from the run and from the adapter differ"
check 0 "in bf16" -- export run small --merge --dtype bf16

# One model, wherever it is read from.
losses=()
for from in "run" "$base --adapter run" "$base --adapter peft" "peft" "$base --adapter run/checkpoints/step-00000003"; do
    run 0 eval --model $from --data "$text" --json --device cpu
    losses+=("$(python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['loss'])")")
done
[ "$(printf '%s\n' "${losses[@]}" | sort -u | wc -l)" = 1 ] || fail "losses differ: ${losses[*]}"
run 0 eval --model "$base" --data "$text" --json --device cpu
holds "abs(r['loss'] - ${losses[0]}) > 1e-3"
run 0 eval --model merged --data "$text" --json --device cpu
holds "abs(r['loss'] - ${losses[0]}) < 1e-5"
check 0 "!as its base" -- generate --model "$base" --adapter peft --prompt "the cat" --max-new 4 --device cpu

# Another base of the same sizes cannot be told by the tensors, only by the name.
mkdir -p hub/models--org--train_llama/snapshots && cp -r "$base" hub/models--org--train_llama/snapshots/0123 && cp -r "$base" train_llama-chat
ln -s "$base" elsewhere
for same in hub/models--org--train_llama/snapshots/0123 elsewhere; do
    check 0 "!as its base" -- generate --model $same --adapter peft --prompt "the cat" --max-new 4 --device cpu
done
check 0 "warning: peft names '" "as its base and is used on train_llama-chat" -- generate --model train_llama-chat --adapter peft --prompt "the cat" \
    --max-new 4 --device cpu
check 0 "as its base and is used on train_llama-chat" -- eval --model train_llama-chat --adapter peft --data "$text" --device cpu
check 0 "as its base and is used on train_llama-chat" -- export train_llama-chat merged3 --adapter peft --merge
check 0 "as its base and is used on train_llama-chat" -- train "${sets[@]}" --set model.path=train_llama-chat --set model.adapter=peft --set run.dir=over
check 0 "!as its base" -- train over --set train.steps=4

# Train an adapter further.
check 0 "weights of peft loaded" -- train "${sets[@]}" --set model.adapter=peft --set run.dir=further
for of_run in run run/checkpoints/step-00000003; do # which --adapter takes
    check 2 "model.adapter: found $of_run, which holds checkpoints of a run" "\`ralo export $of_run DIR\`" "!no checkpoint" -- \
        train "${sets[@]}" --set model.adapter=$of_run --set run.dir=never
done
check 2 "nowhere: found no adapter_config.json, expected PEFT's directory of an adapter; \`ralo export RUN DIR\`" "!or a run" -- \
    train "${sets[@]}" --set model.adapter=nowhere --set run.dir=never
check 2 "nowhere: found no adapter_config.json and no checkpoint" "or a run with model.lora" -- generate --model "$base" \
    --adapter nowhere --prompt x --device cpu

# PiSSA: the run computes over a base without its principal part, others over the original one with an adapter of twice the rank.
# fp32 rounds that base and what is merged: 1e-5 of the loss.
loss_of() { # MODEL [--adapter DIR]
    run 0 eval --model "$@" --data "$text" --tokenizer byte --json --device cpu
    python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['loss'])"
}
check 0 "by pissa" -- train "${sets[@]}" --set model.lora.rank=4 --set model.lora.init=pissa --set run.dir=pissa --set run.export=pissa-peft
check 0 -- export pissa pissa-again
cmp -s pissa-peft/adapter_model.safetensors pissa-again/adapter_model.safetensors || fail "pissa: run.export and ralo export differ"
grep -q '"r": 8' pissa-peft/adapter_config.json || fail "pissa: its export has another rank than 8"
check 0 -- export pissa pissa-merged --merge
check 0 -- train --preset test-gpt2 --set data.source="$text" --set data.seq_len=32 --set data.eval_fraction=0 --set run.device=cpu \
    --set train.steps=3 --set train.lr=0.01 --set model.lora.rank=4 --set model.lora.init=pissa --set run.dir=pissa-gpt2
check 0 -- export pissa-gpt2 pissa-gpt2-merged --merge
one=$(loss_of pissa) over=$(loss_of "$base" --adapter pissa)
[ "$one" = "$over" ] || fail "pissa: the run $one, base and run $over"
for other in "$(loss_of "$base" --adapter pissa-peft)" "$(loss_of pissa-merged)"; do
    python3 -c "import sys; sys.exit(not abs($one - $other) < 1e-5)" || fail "pissa: the run $one, exported $other"
done
one=$(loss_of pissa-gpt2) other=$(loss_of pissa-gpt2-merged)
python3 -c "import sys; sys.exit(not abs($one - $other) < 1e-5)" || fail "pissa of gpt2: the run $one, merged $other"
check 2 "model.lora.init" "model.adapter" -- train "${sets[@]}" --set model.adapter=peft --set model.lora.init=pissa --set run.dir=never
sed 's/"init_lora_weights": true/"init_lora_weights": "pissa"/' -i pissa-again/adapter_config.json
check 2 "init_lora_weights" "change the base" -- generate --model "$base" --adapter pissa-again --prompt x --device cpu

# Several adapters of one base in one process, one of a run and one of PEFT, chosen by each prompt: what each gives alone, to the bit.
check 0 -- train "${sets[@]}" --set model.lora.rank=4 --set train.lr=0.05 --set run.dir=other --set run.export=other-peft
cat >asks.jsonl <<'E'
{"prompt": "the cat", "adapter": "first"}
{"prompt": "a dog"}
{"prompt": "the cat", "adapter": "second"}
{"prompt": "the cat", "adapter": "base"}
{"prompt": "a dog", "adapter": "first"}
E
answers() { # FILE ARGUMENTS: what each prompt gives, sampled by its number in the list
    run 0 generate --model "$base" --tokenizer byte --prompt-file asks.jsonl --max-new 6 --temperature 1 --seed 3 --device cpu --json "${@:2}"
    python3 -c "
import json
for c in json.loads(open('out').read().splitlines()[-1])['completions']: print(c['tokens'], c['log_probability'])" >"$1"
}
answers several --adapter first=run --adapter second=other-peft --use second
holds '[c["adapter"] for c in r["completions"]] == ["first", "second", "second", "base", "first"]'
check 0 "adapter   second: 2 prompts" -- generate --model "$base" --tokenizer byte --prompt-file asks.jsonl --max-new 6 --device cpu \
    --adapter first=run --adapter second=other-peft --use second
[ "$(sed -n 's/^--- prompt \([0-9]*, adapter [a-z]*\) .*/\1/p' out | paste -sd ';')" = "1, adapter first;2, adapter second;3, adapter second;4, adapter base;5, adapter first" ] ||
    fail "answers of several adapters are not in the order of the prompts: $(cat out)"
answers first --adapter run
answers second --adapter other-peft
answers base
for line in 1:first 2:second 3:second 4:base 5:first; do
    [ "$(sed -n "${line%:*}p" several)" = "$(sed -n "${line%:*}p" "${line#*:}")" ] ||
        fail "prompt ${line%:*}: several adapters give $(sed -n "${line%:*}p" several), ${line#*:} alone $(sed -n "${line%:*}p" "${line#*:}")"
done
[ "$(sort -u first second base | wc -l)" -gt 5 ] || fail "the adapters do not differ: $(cat first second base)"
named=(generate --model "$base" --max-new 2 --device cpu --adapter one=run --adapter two=other)
check 0 "adapter   two: 1 prompt" -- "${named[@]}" --use two --prompt x
check 2 "names no adapter" "--use NAME" "one, two, base" -- "${named[@]}" --prompt x
check 2 "adapter 'three'" "one, two, base" -- "${named[@]}" --prompt x --use three
check 2 "adapter 'first'" "asks.jsonl:1" -- "${named[@]}" --prompt-file asks.jsonl
check 2 "name twice" run other -- generate --model "$base" --adapter one=run --adapter one=other --use one --prompt x --device cpu
check 2 "without adapters" -- generate --model "$base" --adapter base=run --use base --prompt x --device cpu
check 2 "--use" "with a name" -- generate --model "$base" --adapter run --use run --prompt x --device cpu
check 2 "rank 4" "rank 8" "processes of their own" -- generate --model "$base" --adapter one=run --adapter two=pissa-peft --use one --prompt x --device cpu
check 2 "pissa" "ralo export" -- generate --model "$base" --adapter one=run --adapter two=pissa --use one --prompt x --device cpu
check 2 "second --adapter" "expected one" -- eval --model "$base" --adapter run --adapter other --data "$text" --device cpu

# Refused.
mkdir -p many && cp -r peft many/code && cp -r peft many/poems
check 2 "2 adapters" code poems -- generate --model "$base" --adapter many --prompt x --device cpu
check 0 -- generate --model "$base" --adapter many/code --prompt x --max-new 2 --device cpu
check 2 "no name for" many/code "NAME=DIR" -- generate --model "$base" --adapter many/code --adapter many/poems --prompt x --device cpu
check 2 "another model" "a llama, found a qwen3" -- generate --model "$TEST_FIXTURES/lora/train_qwen3" --adapter run --prompt x --device cpu
check 2 "does not fit train_llama" "adapter of another model" train_qwen3 -- train "${sets[@]}" --set run.dir=never \
    --set model.adapter="$TEST_FIXTURES/lora/train_qwen3/adapter"
[ ! -e never ] || fail "a run that was refused has left a directory"
check 2 "adapters of its own" -- eval --model run --adapter peft --data "$text" --device cpu
check 2 "--merge" -- export "$base" x --adapter peft
check 2 "has no adapters" -- export merged x --merge
check 2 "lora rank 4" "lora rank 2" -- train "${sets[@]}" --set model.lora.rank=2 --set run.dir=run --set train.steps=5 --resume auto
head -c 200 peft/adapter_model.safetensors >many/code/adapter_model.safetensors
check 2 "adapter_model.safetensors" -- generate --model "$base" --adapter many/code --prompt x --device cpu

finish "adapters train, export, merge, generate and evaluate; wrong ones are refused"
