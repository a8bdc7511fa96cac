#!/bin/bash
# cli_foreign.sh - files of others through the program: what they become is printed once and is in --json, the examples in
# configs/examples give what they say, a run from a DeepSpeed file is the run of the settings it became. RALO: the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
examples=$project/configs/examples

# became KEY=VALUE... -- ARGUMENTS: the resolved settings, as --show-config writes them.
became() {
    local pairs=()
    while [ "$1" != -- ]; do pairs+=("$1") && shift; done
    shift
    timeout 60 "$RALO" train "$@" --show-config >out 2>err || fail "train $* --show-config: $(tail -n 1 err)"
    python3 - "${pairs[@]}" <<'PY' || fail "train $* --show-config"
import sys
path, found = [], {}
for line in open("out"):
    text = line.split("#")[0].rstrip()
    if not text.strip(): continue
    depth = (len(text) - len(text.lstrip())) // 2
    key, _, value = text.strip().partition(":")
    path = path[:depth] + [key]
    if value.strip(): found[".".join(path)] = value.strip()
wrong = [f"{k} is {found.get(k)}, expected {v}" for k, v in (p.split("=", 1) for p in sys.argv[1:]) if found.get(k) != v]
print(*wrong, sep="\n")
sys.exit(bool(wrong))
PY
}

# ---- the examples
ds=$examples/deepspeed old=$examples/ralo
became train.micro_batch=4 train.accumulation=8 precision=fp16 memory.offload.states=host memory.offload.grads=host \
    memory.offload.activations=host memory.recompute=full memory.strategy=manual train.schedule=linear train.steps=200 \
    train.schedule_style=deepspeed run.breakdown=true -- --deepspeed "$ds/zero2-cpu-fp16.json"
became train.micro_batch=4 precision=fp16 -- "$ds/zero2-cpu-fp16.json" # the same file as CONFIG
became memory.offload.params=nvme memory.offload.states=nvme memory.nvme_path=/local_nvme memory.bucket=200000000 \
    memory.prefetch=1 'memory.recompute={every: 4}' precision=bf16 train.accumulation=16 -- \
    --deepspeed "$ds/zero3-nvme-bf16.json" --preset llama2-7b
became train.lr=0.003 train.steps=auto train.warmup=auto train.schedule=cosine precision=fp32 -- --deepspeed "$ds/auto.json"
became train.lr=0.5 precision=bf16 train.micro_batch=3 train.steps=30 train.warmup=auto -- --deepspeed "$ds/auto.json" \
    --set train.lr=0.5 --set precision=bf16 --set train.micro_batch=3 --set train.steps=30
became model.preset=qwen2.5-7b train.accumulation=2048 memory.offload.grads=host memory.offload.states=host \
    memory.recompute=selective precision=bf16 train.task=sft -- "$old/treepo-7b.yaml" --set train.task=sft
became memory.recompute=selective memory.strategy=auto memory.offload.grads=host train.accumulation=8 \
    train.task=rloo rl.loss=dapo -- "$old/memory-upgrade.yaml" --set train.task=rloo
for command in plan train; do
    check 2 "RALO trains on rollouts" "--set train.task=rloo" -- $command "$old/memory-upgrade.yaml" --preset test-llama --set run.dir=never
done
became 'memory.recompute={ratio: 0.5}' memory.strategy=manual memory.offload.grads=none -- "$old/half-recompute.yaml"
became model.preset=qwen2.5-0.5b train.task=preference preference.beta=0.1 train.steps=500 model.lora.rank=32 train.eval_every=50 data.eval_fraction=0.05 -- "$examples/trl/dpo-lora.yaml"
became model.base=nf4 model.lora.rank=32 memory.states=int8 data.pack=true train.accumulation=4 data.eval_fraction=0.05 -- "$examples/axolotl/qlora.yaml"
became train.task=sft model.lora.rank=8 data.seq_len_max=1024 train.warmup=30 -- "$examples/llamafactory/lora-sft.yaml"
check 2 "hf download Qwen/Qwen2.5-0.5B" "load_dataset('mhenrichsen/alpaca_2k_test', split='train')" 'then give --data "alpaca_2k_test.jsonl"' -- train "$examples/axolotl/qlora.yaml"
check 0 "alpaca_2k_test.jsonl; planned without it" -- plan "$examples/axolotl/qlora.yaml" --preset test-llama --set data.tokenizer=byte
echo '{"scheduler": {"type": "OneCycle"}, "optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 4}}' >three.json
check 2 "optimizer.type: found 'Lamb'" "scheduler.type: found 'OneCycle'" "zero_optimization.stage" -- plan three.json
check 2 "no directory 'Qwen/Qwen2.5-7B'" "--preset qwen2.5-7b" -- train "$old/treepo-7b.yaml" --set train.task=sft --set run.dir=never
[ ! -e never ] || fail "a refused run made its directory"

# ---- what is printed, once, and what --json has
cat >ds.json <<'JSON'
{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "gradient_clipping": 0.5,
  "wall_clock_breakdown": true,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.01}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "stage3_param_persistence_threshold": 2e8}
}
JSON
tiny=(--preset test-llama --set data.seq_len=24 --set train.steps=4 --set train.eval_rows=2 --set train.problems=0)
check 0 "from      ds.json (DeepSpeed)" "-> train.clip = 0.5" "-> parallel.overlap = true" "no effect here: parameters are whole in this stage" "ms of a step in ops" -- \
    train --deepspeed ds.json "${tiny[@]}" --set run.dir=a --json
[ "$(grep -c 'gradient_clipping' err)" = 1 ] || fail "gradient_clipping was not reported exactly once"
python3 - <<'PY' || fail "train --json: translated, breakdown"
import json
value = json.loads(open("out").read().splitlines()[-1])
rows = {r["key"]: r for r in value["translated"] if "key" in r}
assert rows["gradient_clipping"]["setting"] == "train.clip" and rows["gradient_clipping"]["value"] == "0.5"
assert rows["gradient_clipping"]["line"] == 4 and rows["gradient_clipping"]["file"] == "ds.json"
assert rows["zero_optimization.stage"]["setting"] == "parallel.zero" and rows["zero_optimization.stage"]["value"] == "2"
assert value["strategy"]["micro_batch"] == 2 and value["strategy"]["accumulation"] == 2
for kind in "linear", "adamw":
    assert value["breakdown"][kind]["ms"] > 0 and value["breakdown"][kind]["predicted_ms"] > 0, kind
json.dump(value["param_hash"], open("hash", "w"))
PY
check 0 -- plan --deepspeed ds.json "${tiny[@]}" --json
python3 -c 'import json; assert json.load(open("out"))["translated"]' || fail "plan --json has no translated"
check 0 -- plan "${tiny[@]}" --json
python3 -c 'import json; assert "translated" not in json.load(open("out"))' || fail "translated without a foreign file"

# ---- the same settings by hand are the same run
check 0 -- train "${tiny[@]}" --set run.dir=b --json --set train.micro_batch=2 --set train.accumulation=2 \
    --set train.clip=0.5 --set train.lr=1e-3 --set 'train.betas=[0.9, 0.99]' --set train.weight_decay=0.01 \
    --set train.schedule=constant --set train.schedule_style=deepspeed --set train.warmup=4
python3 -c 'import json; v = json.load(open("out")); assert v["param_hash"] == json.load(open("hash")), v["param_hash"]
assert "breakdown" not in v' || fail "the run of the file and the run of its settings differ"
check 0 -- train a/config.yaml --set run.dir=c --json # the saved settings need the file no more
python3 -c 'import json; assert json.load(open("out"))["param_hash"] == json.load(open("hash"))' ||
    fail "the saved settings give another run"

# ---- a file of Axolotl that names what is here is a run
check 0 -- export a model
for i in 1 2 3 4 5 6 7 8; do echo "{\"instruction\": \"What is $i+1?\", \"input\": \"\", \"output\": \"$((i + 1))\"}"; done >data.jsonl
cat >axolotl.yaml <<'YAML'
base_model: model
datasets: [{path: data.jsonl, type: alpaca}]
{adapter}
sequence_len: 24
micro_batch_size: 2
max_steps: 2
learning_rate: 1e-3
optimizer: adamw_bnb_8bit
bf16: auto
output_dir: axolotl
YAML
sed -i 's/^{adapter}$/adapter: qlora\nload_in_4bit: true\nlora_r: 4/' axolotl.yaml
check 0 "-> data.source = data.jsonl" "-> model.path = model" "-> model.base = nf4" "8 records to train" "step 2/2" "saved     axolotl" -- train axolotl.yaml

# ---- files to evaluate on: Axolotl's test_datasets and LLaMA-Factory's eval_dataset, of which a table is read as it is
head -3 data.jsonl >held.jsonl
became data.source=data.jsonl data.eval_source=held.jsonl -- <(sed '/^datasets/a test_datasets: [{path: held.jsonl, type: alpaca, split: train}]' axolotl.yaml)
became data.eval_fraction=0.25 -- <(sed '/^datasets/a val_set_size: 0.25' axolotl.yaml)
mkdir -p data
echo '{"mine": {"file_name": "mine.csv"}, "other": {"file_name": "other.json"}}' >data/dataset_info.json
printf 'instruction,input,output\nadd 1 and 2,,3\n"add 2, 3",,5\n' >data/mine.csv
printf 'stage: sft\nfinetuning_type: full\nmodel_name_or_path: model\ntemplate: llama3\ndataset: mine\neval_dataset: mine\nval_size: 0.1\n' >factory.yaml
became data.source=data/mine.csv data.eval_source=data/mine.csv -- factory.yaml
echo '[{"instruction": "add 1 and 2", "input": "", "output": "3"}]' >data/listed.json
echo '{"mine": {"file_name": "mine.csv"}, "other": {"file_name": "other.json"}, "listed": {"file_name": "listed.json"}}' >data/dataset_info.json
became data.source=data/listed.json -- <(sed 's/^dataset: mine/dataset: listed/' factory.yaml) # a JSON list is read as it is
check 0 "val_size" "data.eval_source names what is evaluated on" -- train factory.yaml --show-config
check 2 "eval_dataset: 'other' is no file of JSON Lines here" "jq -c '.[]' data/other.json" "--set data.eval_source=" -- train <(sed 's/^eval_dataset: mine/eval_dataset: other/' factory.yaml)

# ---- offload and recompute as the file says: other places, more work, the same bits
for device in cpu nvme; do
    place="{\"device\": \"$device\", \"nvme_path\": \"$work/nvme\"}"
    sed "s|\"stage\": 2|\"stage\": 3, \"offload_optimizer\": $place, \"offload_param\": $place|
        s|^  \"optimizer|  \"activation_checkpointing\": {\"cpu_checkpointing\": true},&|" ds.json >"$device.json"
    mkdir -p nvme
    check 0 "-> memory.offload.states = " "-> memory.recompute = full" "recompute full" -- train --deepspeed "$device.json" "${tiny[@]}" --set run.dir="offload-$device" --json
    python3 - "$device" <<'PY' || fail "offload to $device: $(head -c 300 out)"
import json, sys
value = json.loads(open("out").read().splitlines()[-1])
tier, roles = {"cpu": "host", "nvme": "nvme"}[sys.argv[1]], value["memory"]["by_role"]
assert roles["states"] == 0 and roles["grads"] == 0, roles
assert value["memory"][tier]["planned"] > 100_000, value["memory"]
assert value["param_hash"] == json.load(open("hash")), "other bits"
PY
done

# ---- a share of the states stays on the device, half of two layers
sed 's|"stage": 2|"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}|' ds.json >share.json
check 0 "offload_optimizer.ratio = 0.5" "-> memory.offload.keep_states = 1" "of 2 layers" -- \
    train --deepspeed share.json "${tiny[@]}" --set run.dir=share --json
python3 - <<'PY' || fail "half of the layers' states: $(head -c 300 out)"
import json
value = json.loads(open("out").read().splitlines()[-1])
assert value["strategy"]["keep_states"] == 1 and value["strategy"]["offload"]["states"] == "host", value["strategy"]
assert value["memory"]["by_role"]["states"] > 0, value["memory"]
assert value["param_hash"] == json.load(open("hash")), "other bits"
PY

# ---- precedence and refusal
printf 'train:\n  clip: 2\n' >mine.yaml
check 0 "train.clip = 2  (conflict: the config file says so, ds.json would give 0.5)" -- plan mine.yaml --deepspeed ds.json "${tiny[@]}"
check 0 "train.clip = 3  (conflict: the command line says so, ds.json would give 0.5)" -- \
    plan mine.yaml --deepspeed ds.json "${tiny[@]}" --set train.clip=3
sed 's/overlap_comm/overlap_com/' ds.json >typo.json
check 2 typo.json:8 "zero_optimization.overlap_com'" "did you mean 'zero_optimization.overlap_comm'" -- plan --deepspeed typo.json
sed 's/"stage": 2/"stage": 3/' ds.json >persist.json
check 0 "warning: persist.json:8" "defeats stage 3" "6.7B of 6.7B parameters (100 %" -- \
    plan --deepspeed persist.json --preset llama2-7b --device-memory 1P --set memory.host=1P
check 0 "from" -- plan --deepspeed persist.json "${tiny[@]}" --set data.seq_len=32
sed 's/"stage": 2,/"stage": 2, \/\/ two\n/; s/2e8}/2e8,}/' ds.json >comment.json
check 0 "-> parallel.zero = 2" -- plan --deepspeed comment.json "${tiny[@]}"
check 0 "-> parallel.zero = 2" -- plan comment.json "${tiny[@]}"
sed 's/"stage": 2/"stage": 2,,/; s/2e8}/2e8,}/' ds.json >commas.json
check 2 commas.json:8 -- plan --deepspeed commas.json
check 2 missing.json -- plan --deepspeed missing.json
check 2 "needs a value" -- plan --deepspeed
check 2 ds.json typo.json -- plan ds.json --deepspeed typo.json
check 2 "keep one" -- plan ds.json --deepspeed ds.json
check 2 "unknown option '--deepspeed'" -- devices --deepspeed ds.json
check 0 -- plan <(printf 'train: {micro_batch: 3}\n') "${tiny[@]}" # a pipe can be read once only
check 0 -- plan --preset test-llama <(cat ds.json)
grep -qF "train.clip = 0.5" err || fail "a DeepSpeed file from a pipe: $(tail -n 2 err)"

finish "all became what they should"
