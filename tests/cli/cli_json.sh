#!/bin/bash
# cli_json.sh - every key that --json prints is listed in docs/reference/json.md with its type, and every key that is listed
# there is printed by some command. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

# collect KIND ARGUMENTS: the object goes to objects, with its kind; a key that the program itself does not know is a failure
collect() {
    local kind=$1
    shift
    timeout 200 "$RALO" "$@" --json >out 2>err </dev/null
    case $? in 0 | 3) ;; *) fail "ralo $*: $(tail -n 2 err)" ;; esac
    ! grep -q 'json_keys.def' err || fail "ralo $*: $(grep json_keys.def err)"
    printf '%s\t%s\n' "$kind" "$(tail -n 1 out)" >>objects
}
few="--preset test-llama --set train.steps=2 --set train.micro_batch=2 --set data.seq_len=32 --set train.eval_rows=2 --set train.problems=2"
deepspeed=$project/configs/examples/deepspeed/zero2-cpu-fp16.json
collect train train $few --set run.dir=run --set run.export=exported --set run.breakdown=true --set train.save_best=loss --set train.eval_every=1
collect train train --deepspeed "$deepspeed" $few --set train.accumulation=1 --set train.schedule_steps=200 --set run.dir=translated
collect plan plan $few --timeline drawn.svg --set run.export=other
collect plan plan $few --set train.weighting=rho1 --set rho1.reference_on=disk --set rho1.reference=exported
collect plan plan --longest $few
collect plan plan --longest $few --set memory.device=8K
collect plan plan --profile $few --limit 64M
collect plan plan $few --set parallel.pipeline=2 --set parallel.sequence=2 --set train.accumulation=4
collect plan plan --preset gpt2 --hardware rtx-4090 --set memory.strategy=manual --set train.micro_batch=2 --set train.accumulation=8 # faster
collect plan plan $few --set train.sample_every=2
collect plan plan $few --set train.task=rloo
printf '{"prompt": "2+2=", "completion": "4"}\n{"prompt": "2+3=", "completion": "5"}\n' >sums.jsonl
collect plan plan $few --set data.source=sums.jsonl --set data.seq_len=auto
collect plan plan $few --set 'memory.place=embed=cpu:0, layers.0=cpu:1, layers.1=cpu:2, head=cpu:3'
"$RALO" devices --hardware cpu-2 | grep -v '^disk' >machine.yaml # without a disk nothing is predicted for nvme
collect plan plan $few --hardware machine.yaml --set memory.offload.states=nvme
collect plan plan --deepspeed "$deepspeed" $few --set train.accumulation=1
collect plan plan "$project/configs/examples/ralo/memory-upgrade.yaml" --set train.task=sft
collect world plan --world 8 --preset test-gpt2 --hardware h100x8 --set data.seq_len=64 --set train.micro_batch=1
collect world plan --world 1024 --preset llama3-8b --hardware h100x8 --set data.seq_len=64 --set train.micro_batch=1
collect world plan --world 16 --preset test-gpt2 --hardware rtx-4090 --set data.seq_len=64 --set train.micro_batch=1 # which has no network
echo 'one two three, one two three, one two three' >text.txt
echo '{"question": "1+1", "answer": "2"}' >questions.jsonl
collect show show --set data.source=questions.jsonl
echo '{"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "y"}]}' >refused.jsonl
collect show show --set data.source=refused.jsonl --set data.on_error=skip
echo '{"prompt": "1+1", "chosen": "2", "rejected": "3"}' >pairs.jsonl
collect show show --set data.source=pairs.jsonl --set train.task=preference
echo '{"prompt": "1+1", "completion": "2", "answer": 2}' >completions.jsonl
collect reward reward --data completions.jsonl --list numeric
collect generate generate --model run --prompt a --chat none --max-new 2
adapters=$TEST_FIXTURES/lora/train_llama
collect generate generate --model "$adapters" --adapter a="$adapters/adapter" --use a --prompt a --max-new 2 --tokenizer byte
collect train train $few --set train.task=mtp --set model.layers=3 --set model.mtp.heads=2 --set train.steps=1 --set run.dir=heads
collect generate generate --model heads --prompt a --chat none --max-new 4 --speculative
printf 'pipeline: {dir: stages}\nstages:\n  a: {}\n' >stages.yaml
collect "pipeline runs" pipeline stages.yaml ${few/--preset /--set model.preset=}
collect "generate plan" generate --model run --plan --timeline drawn.svg
collect "eval text" eval --model run --data text.txt
collect "eval questions" eval --model run --data questions.jsonl --max-new 2
collect "bench list" bench
collect "bench rloo" bench rloo --scale small --out bench
collect export export run exported-again
collect runs runs run stages
collect "runs compare" runs --compare run heads
collect report report run stages bench
collect devices devices
if command -v mpirun >/dev/null && "$RALO" train --ranks 2 $few --set run.dir=two --json >out 2>err </dev/null; then
    ! grep -q 'json_keys.def' err || fail "two ranks: $(grep json_keys.def err)"
    printf 'train\t%s\n' "$(tail -n 1 out)" >>objects
    ranks=yes
fi

cat >compare.py <<'COMPARE'
import json, re, sys
kinds, kind = {}, None
for line in open(sys.argv[1]):
    if line.startswith("## "):
        kind = kinds.setdefault(line[3:].strip(), {})
    row = re.match(r"\| `([^`]+)` \| ([^|]+) \| (.*) \|$", line)
    if row:
        kind[row[1]] = [row[2], row[3], False]
wrong = []

def value_walk(value, type_, where):
    if value is None:
        if type_ not in ("text", "real") and not type_.endswith(" or null"):
            wrong.append(f"{where} is null, listed as {type_}")
        return
    type_ = type_.removesuffix(" or null")
    if type_.startswith("list of "):
        if not isinstance(value, list):
            wrong.append(f"{where} is no list")
        else:
            for one in value:
                value_walk(one, type_[8:], where + "[]")
        return
    simple = {"text": (str,), "whole": (int,), "real": (int, float), "flag": (bool,)}
    if type_ in simple:
        if not isinstance(value, simple[type_]) or (type_ != "flag" and isinstance(value, bool)):
            wrong.append(f"{where} is {value!r}, listed as {type_}")
        return
    object_walk(value, re.match(r"\[(.*)\]\(", type_)[1], where)

def object_walk(value, kind, where):
    for key, inner in value.items():
        row = kinds[kind].get(key) or kinds[kind].get("*")
        if not row:
            wrong.append(f"{where}.{key} is not listed under {kind}")
            continue
        row[2] = True
        value_walk(inner, row[0], f"{where}.{key}")

for line in open("objects"):
    kind, text = line.rstrip("\n").split("\t", 1)
    object_walk(json.loads(text), kind, kind)
for kind, keys in kinds.items():
    for key, (_, help_, seen) in keys.items():
        alone = len(sys.argv) < 3 and (kind == "rank" or "several" in help_)
        if not seen and "GPU only" not in help_ and not alone:
            wrong.append(f"{key} of {kind} is listed and was never printed")
print("\n".join(wrong))
COMPARE
wrong=$(python3 compare.py "$project/docs/reference/json.md" ${ranks:-}) || fail "compare.py"
[ -z "$wrong" ] || fail "$wrong"
finish "docs/reference/json.md lists what --json prints"
