#!/usr/bin/env bash
# cli_base.sh - a base in fewer bits from the command line: plan, train, resume, generate, eval, export, preferences, refusals.
. "$(dirname "$0")/../harness/check.sh"

base=$TEST_FIXTURES/lora/train_llama
text=$TEST_FIXTURES/lora/text.txt
sets=(--set model.path="$base" --set data.source="$text" --set data.seq_len=32 --set data.eval_fraction=0 --set run.device=cpu
      --set run.threads=2 --set train.lr=0.01 --set model.lora.rank=4)
number() { python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])$1)"; }

check 0 "stored as nf4" -- plan --preset qwen2.5-7b --set precision=bf16 --set model.lora.rank=16 --set model.base=nf4 --hardware rtx-4090 --json
holds 'r["trained_parameters"] == 40370176'
# params at the peak: codes, tables in bf16, adapters, and nothing of a second copy (test_base has the arithmetic)
holds '5.2 < r["memory"]["by_role"]["params"] / 2**30 < 5.3'

run 0 train "${sets[@]}" --set model.base=nf4 --set train.steps=4 --set run.dir=whole --json
whole=$(number '["param_hash"]')
run 0 train "${sets[@]}" --set model.base=nf4 --set train.steps=2 --set train.schedule_steps=4 --set run.dir=parts --json
run 0 train "${sets[@]}" --set model.base=nf4 --set train.steps=4 --set run.dir=parts --resume auto --json
[ "$(number '["param_hash"]')" = "$whole" ] || fail "resumed $(number '["param_hash"]'), expected $whole"
run 0 eval --model whole --data "$text" --json --device cpu
loss=$(number '["loss"]')
run 0 eval --model "$base" --adapter whole --data "$text" --json --device cpu
holds "r['loss'] == $loss"
check 0 -- generate --model whole --prompt "the cat" --max-new 4 --device cpu
check 2 "--weights: found int8" "over weights in nf4" "expected nf4" -- generate --model whole --prompt "the cat" --weights int8 --device cpu
check 0 -- generate --model whole --prompt "the cat" --max-new 4 --weights nf4 --device cpu
for format in fp8 nf4; do
    check 0 -- generate --model "$base" --prompt "the cat" --max-new 4 --weights $format --precision bf16 --device cpu
    check 0 "bf16, weights $format, prompts by" "embed.w.codes" -- generate --model "$base" --weights $format --precision bf16 --device cpu --plan
done
check 0 -- generate --model "$base" --prompt "the cat" --max-new 4 --weights int8 --precision bf16 --device cpu --json
holds 'r["weights"] == "int8"'
one=(generate --model "$base" --prompt "the cat" --max-new 4 --device cpu --batch 1 --context 32)
check 0 -- "${one[@]}" --precision bf16 --plan --json
holds 'r["weights"] == "precision"'
room=$(($(number '["memory"]["device"]["planned"]') - 1))
check 3 "Fits with: --precision bf16 --weights int8 (" -- "${one[@]}" --device-memory $room
check 0 -- "${one[@]}" --device-memory $room --precision bf16 --weights int8
check 0 "bf16, weights int8, prompts by" "embed.w.codes" -- generate --model "$base" --prompt "the cat" --weights int8 --precision bf16 --device cpu --plan
check 0 "an adapter with" -- export whole peft
check 0 "in bf16" -- export whole merged --merge --dtype bf16
check 0 -- export "$base" again --adapter peft --merge --dtype bf16
cmp -s merged/model.safetensors again/model.safetensors || fail "merged from run and adapter differ"

# An adapter goes on over codes; the setting is enough beside model.adapter.
check 0 "stored as int8" -- train "${sets[@]:0:14}" --set model.adapter=peft --set model.base=int8 --set train.steps=2 --set run.dir=further
check 0 -- generate --model further --prompt "the cat" --max-new 4 --weights int8 --device cpu
check 0 "stored as int8, dequantised before each use" -- generate --model further --device cpu --plan
check 0 "stored as int8, multiplied as codes" -- generate --model further --weights int8 --device cpu --plan

# What PiSSA takes out of the base is taken out of numbers: with codes this was a broken invariant.
run 0 train "${sets[@]}" --set model.lora.init=pissa --set train.steps=2 --set run.dir=pissa
for format in int8 fp8 nf4; do
    check 2 "--weights: found $format" "began by pissa" "export" -- generate --model pissa --prompt "the cat" --weights $format --device cpu
done

# The reference of a preference, the base without adapters or a copy of it, is stored as the base is: both are the same numbers.
for reference in base copy; do
    run 0 train --preset arithmetic-tiny --set model.layers=2 --set train.task=preference --set data.source=builtin:preferences \
        --set model.lora.rank=4 --set model.base=nf4 --set preference.reference=$reference --set train.steps=3 --set train.problems=0 \
        --set train.lr=0.01 --set run.device=cpu --set run.dir=preference-$reference --json
    number '["loss"]["last"]' >loss-$reference
done
check 0 -- export preference-copy copied --merge # the copy is no part of the base that adapters belong to
check 0 -- generate --model preference-copy --prompt "1+1=" --max-new 2 --device cpu
cmp -s loss-base loss-copy || fail "reference base $(cat loss-base), copy $(cat loss-copy)"

# Refused.
check 2 "model.base" "model.lora.rank" -- train --set model.base=nf4
check 2 "model.base" "parallel.tensor 2" -- plan --set model.base=nf4 --set model.lora.rank=4 --set parallel.tensor=2
check 2 "over nf4" "another model" -- train "${sets[@]}" --set model.base=int8 --set train.steps=6 --set run.dir=whole --resume auto
check 2 "over nf4" "another model" -- train "${sets[@]}" --set train.steps=6 --set run.dir=whole --resume auto

finish "bases in fp8, int8 and nf4: plan, train, resume, generate, eval, export; refusals"
