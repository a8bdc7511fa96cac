#!/bin/bash
# cli_preference.sh - preferences on many ranks: the same bits as one rank with as many micro-batches, in every stage of ZeRO and in
# pipelines, with a copy, the base and a file as the reference; tensor and sequence parallelism within a bound; what cannot be shared is
# refused by name. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
common=(--preset test-qwen3 --set train.task=preference --set data.source=builtin:preferences --set data.difficulty=1
    --set data.seq_len=64 --set train.micro_batch=2 --set train.steps=4 --set train.lr=0.01 --set train.warmup=0
    --set train.eval_rows=4 --set run.threads=1 --set run.bind=false --set run.device=cpu --json)
train() { # RANKS ARGUMENTS: hash and last loss
    local n=$1
    shift
    rm -rf run
    run 0 train --ranks "$n" "${common[@]}" --set run.dir=run "$@"
    python3 -c "import json; r = json.loads(open('out').read().splitlines()[-1]); print(r['param_hash'], r['loss']['last'])"
}
loss() { python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['loss']['last'])"; }

same() { # EXPECTED ARGUMENTS
    local expected=$1 got
    shift
    got=$(train 2 "$@")
    [ "$got" = "$expected" ] || fail "2 ranks, $*: $got, one rank: $expected"
}
full=(--set preference.reference=copy --set precision=bf16)
expected=$(train 1 "${full[@]}" --set train.accumulation=2) of_copy=$expected
for zero in 0 1 2 3; do same "$expected" "${full[@]}" --set parallel.zero=$zero; done
disk=("${full[@]}" --set preference.reference=disk)
for zero in 0 3; do same "$expected" "${disk[@]}" --set parallel.zero=$zero; done
same "$expected" "${full[@]}" --set parallel.zero=3 --set memory.recompute=full --set memory.offload.params=host \
    --set memory.offload.states=host
same "$expected" "${full[@]}" --set parallel.zero=3 --set memory.offload.reference=host
lora=(--set preference.reference=base --set model.lora.rank=4)
expected=$(train 1 "${lora[@]}" --set train.accumulation=2)
for zero in 0 3; do same "$expected" "${lora[@]}" --set parallel.zero=$zero; done

# kto: its z is over the examples of all ranks and micro-batches.
kto=(--set preference.loss=kto --set preference.reference=copy)
expected=$(train 1 "${kto[@]}" --set train.accumulation=2)
for zero in 0 3; do same "$expected" "${kto[@]}" --set parallel.zero=$zero; done
expected=$(train 1 "${kto[@]}" --set train.accumulation=4)
same "$expected" "${kto[@]}" --set train.accumulation=2

# Stages of a pipeline: the reference passes them beside the model, and every loss has the bits of one rank.
two=(--set parallel.pipeline=2 --set train.accumulation=2)
same "$of_copy" "${full[@]}" "${two[@]}" --set memory.recompute=full --set memory.offload.params=host --set memory.offload.states=host
same "$of_copy" "${disk[@]}" "${two[@]}"
same "$of_copy" "${full[@]}" "${two[@]}" --set memory.offload.reference=host
deep=(--set preference.loss=kto "${lora[@]}" --set model.lora.dropout=0.1 --set model.layers=4)
same "$(train 1 "${deep[@]}" --set train.accumulation=2)" "${deep[@]}" "${two[@]}" --set parallel.virtual_stages=2

# Gradients summed over ranks in another order: fp32 to rounding.
for way in "tensor heads dpo copy none" "tensor heads kto base 4" "sequence heads dpo disk none" "sequence ring simpo auto none" "sequence ring kto base 4"; do
    read -r axis attention name reference rank <<<"$way"
    sets=(--set preference.loss="$name" --set preference.reference="$reference" --set model.lora.rank="$rank" --set precision=fp32 --set train.steps=3)
    [ "$name" = kto ] && sets+=(--set train.accumulation=2)
    train 1 "${sets[@]}" >/dev/null
    one=$(loss)
    train 2 "${sets[@]}" --set parallel.attention="$attention" --set parallel.$axis=2 >/dev/null
    two=$(loss)
    python3 -c "import sys; sys.exit(not abs($one - $two) < 1e-5 * max(1, abs($one)))" || fail "$way: $two on 2 ranks, $one on one"
done

refused() { # WORDS ARGUMENTS
    local words=$1
    shift
    run 2 train --ranks 2 "${common[@]}" --set run.dir=no "$@"
    grep -q "$words" err || fail "refused without '$words': $(tail -n 2 err)"
}
# A prompt that stands in a row once: losses and gradients of every step and the evaluation as with two, to rounding, with fewer tokens.
python3 - <<'P'
import json, random
r = random.Random(1)
with open('pairs.jsonl', 'w') as pairs, open('labelled.jsonl', 'w') as labelled:
    for i in range(40):
        prompt = ''.join(r.choice('abcdefgh ') for _ in range(r.randint(10, 40)))
        good, bad = prompt[:4].upper() + str(i % 7), prompt[4:7] + str(i % 5) + 'x'
        pairs.write(json.dumps({'prompt': prompt, 'chosen': good, 'rejected': bad}) + '\n')
        labelled.write(json.dumps({'prompt': prompt, 'completion': good, 'label': i % 3 > 0}) + '\n')
P
sharing=(--set data.source=pairs.jsonl --set data.seq_len=100 --set data.pack=false --set data.eval_fraction=0.2 --set data.cache=none
    --set preference.share_prompt=on --set preference.reference=copy)
# Loss and norm of the gradient of every step of the last run, and the loss of its evaluation. The first step is equal but for rounding; AdamW
# divides by a gradient's size, so one that is rounding alone moves its parameter at the full rate, and later steps differ by more.
numbers() {
    python3 -c "
import json
r = json.loads(open('out').read().splitlines()[-1])
print(*(json.loads(l)[k] for l in open('run/metrics.jsonl') for k in ('train/loss', 'train/grad_norm') if k in l), r['eval']['loss'])"
}
for loss in dpo kto; do
    sets=("${sharing[@]}" --set preference.loss=$loss --set precision=fp32)
    [ $loss = kto ] && sets+=(--set data.source=labelled.jsonl)
    train 1 "${sets[@]}" --set preference.share_prompt=off >/dev/null
    two=$(numbers)
    expected=$(train 1 "${sets[@]}")
    grep -q "of prompts not repeated" err || fail "$loss: nothing is shared: $(grep '^data' err)"
    python3 -c "
import sys
a, b = ([float(x) for x in s.split()] for s in ('$two', '$(numbers)'))
bound = [1e-5] * 2 + [1e-4] * 7
sys.exit(not (len(a) == len(b) == 9 and all(abs(x - y) < e * max(1, abs(x)) for x, y, e in zip(a, b, bound))))" || fail "$loss: shared $(numbers), repeated $two"
done
[ "$(train 1 "${sets[@]}" --set memory.recompute=full --set memory.offload.activations=host --set memory.offload.params=host)" = "$expected" ] ||
    fail "shared prompts: recompute and offload change the result"
sets=("${sharing[@]}" --set precision=bf16)
expected=$(train 1 "${sets[@]}" --set train.accumulation=2)
same "$expected" "${sets[@]}" --set parallel.zero=3 --set memory.recompute=selective --set preference.reference=disk
same "$expected" "${sets[@]}" --set parallel.pipeline=2 --set train.accumulation=2

# Rows that hold all examples are shorter, and so the memory of a step is smaller.
planned=()
for share in off on; do
    run 0 plan --preset test-qwen3 --set train.task=preference --set data.source=pairs.jsonl --set train.micro_batch=2 --set run.device=cpu \
        --set data.cache=none --set preference.share_prompt=$share --set memory.strategy=manual --set data.pack=false --json
    planned+=("$(python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['memory']['device']['planned'])")")
done
[ "${planned[1]}" -lt "${planned[0]}" ] || fail "planned bytes with shared prompts: ${planned[1]}, without: ${planned[0]}"
refused "preference.share_prompt: found on with a built-in source" --set preference.share_prompt=on
refused "preference.share_prompt: found prompts that stand in a row once with parallel.sequence 2" "${sharing[@]}" --set parallel.sequence=2
refused "preference.share_prompt: found on with a model whose layers attend to a window" "${sharing[@]}" --set model.preset=test-gemma2
finish "preferences on 2 ranks: as on one"
