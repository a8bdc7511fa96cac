#!/bin/bash
# cli_wrong_inputs.sh - what people give by mistake, or as other programs have it: each is refused, or warned about, with what was found and what to
# do; none is taken for something else, and no run directory is left behind. One start each, none trains but one step. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
export XDG_CACHE_HOME=$work/home HF_HOME=$work/hub
unset TMPDIR

# ---- the inputs
cp -r "$TEST_FIXTURES/lora/train_llama" model
cp "$TEST_FIXTURES/lora/text.txt" text.txt
for i in 1 2 3 4 5 6; do cat text.txt; done >long.txt
mkdir empty hidden parquet gguf weights torch bert
printf 'What is 2+2?,4\nand 3+3?,6\n' >no-header.csv
printf 'a;b\n1;2\n' >semicolons.csv
printf 'prompt,completion\nx,"y\n' >open.csv
printf 'prompt,completion\nx,y,z\n' >wide.csv
printf '{"prompt": "a", "completion": "b"}\n{"text": "c"}\n' >two-kinds.jsonl
printf '{"prompt": 1, "completion": 2}\n' >numbers.jsonl
printf '[{"text": "a"},\n {"text": "b"}\n' >list.json
printf '<html>404</html>\n' >page.jsonl
printf 'GGUF\3\0\0\0model' >m.gguf && cp m.gguf gguf/ && cp m.gguf renamed.txt
printf '%%PDF-1.7\n' >paper.pdf
printf 'PK\3\4archive' >data.zip && cp data.zip torch/pytorch_model.bin && cp model/config.json torch/ && cp data.zip weights.bin
printf '\200\2\212\12l\374' >old.bin
printf 'PAR1\25...' >t.parquet && cp t.parquet parquet/ && cp t.parquet renamed.jsonl
printf 'ARROW1\0\0' >t.arrow
printf 'a\0b\0c\0' >binary.txt
printf '\377\376a\0b\0' >utf16.txt
printf '\1\0\2\0\360\360' >ids.bin
: >empty.txt && : >empty.jsonl && : >hidden/.x.txt
cp model/model.safetensors weights/
echo '{"model_type": "bert"}' >bert/config.json
printf 'train:\n\tlr: 0.1\n' >tabs.yaml
printf 'train: {lr: 0.1\n' >open.yaml
printf 'save_best: true\n' >word.yaml
printf 'train: {lr: fast}\n' >value.yaml
"$RALO" train --model model --data text.txt --set data.seq_len=32 --set train.steps=1 --set run.threads=1 --out run >out 2>err || die "$(tail -1 err)"

# alike TEXT... -- ARGUMENTS: plan refuses what train refuses, in the same words, and neither shows a plan first.
alike() {
    local command texts=()
    while [ "$1" != -- ]; do texts+=("$1") && shift; done
    shift
    for command in train plan; do check 2 "${texts[@]}" "!Fits" "!program  " -- $command "$@"; done
}

# ---- data
data() { local file=$1 && shift && alike "$@" -- --model model --data "$file" --out never; }
absent() { local file=$1 && shift && check 2 "$@" -- train --model model --data "$file" --out never; } # plan goes on without it
data no-header.csv "no-header.csv:2: found the keys 'What is 2+2?', '4'" "the first row of a table names its columns"
data semicolons.csv "semicolons.csv:1: found columns separated by ';', expected ','" "csv.writer"
data open.csv "open.csv:2: column 2 ('completion'): found no end of the quote" "data.on_error=skip"
data wide.csv "wide.csv:2: found 3 values, expected 2" "in quotes"
data two-kinds.jsonl "two-kinds.jsonl:2: found a record without prompt in a file of records with a prompt" "two files"
data numbers.jsonl "numbers.jsonl:1: key 'prompt': found a number, expected a string"
data list.json "list.json:3: found the end of the file, expected ']' behind the last record"
data page.jsonl "page.jsonl:1: found text that is not JSON"
data m.gguf "m.gguf: found a file of GGUF" "--model DIR"
data renamed.txt "renamed.txt: found a file of GGUF" "--model DIR"
data gguf "found no file of data in the directory gguf" "a model is no data"
data paper.pdf "paper.pdf: found a file of PDF" "pdftotext paper.pdf"
data data.zip "data.zip: found a file of zip" "unzip data.zip"
data weights.bin "weights.bin: found a file of zip" "checkpoint of PyTorch" "data.format=tokens"
data old.bin "old.bin: found a file of pickle" "a model is no data"
data ids.bin "ids.bin: token 2: found the id 61680, expected one below" "name the tokenizer"
data t.parquet "t.parquet: found a file of Parquet" "read_parquet" 'sys.argv[1:]]" t.parquet'
data renamed.jsonl "renamed.jsonl: found a file of Parquet" "read_parquet"
data parquet "no file of data in the directory parquet" "read_parquet" "parquet/*.parquet"
data t.arrow "t.arrow: found a file of Arrow" "read_feather"
data binary.txt "binary.txt: found zero bytes" "data.format=text"
data utf16.txt "utf16.txt: found a file of UTF-16 text" "iconv -f UTF-16"
data model/model.safetensors "model.safetensors: found a file of safetensors" "a model is no data"
data empty.txt "empty.txt: found an empty file, expected text"
data empty.jsonl "empty.jsonl: found no record, expected JSON objects, one on each line"
data empty "found no file of data in the directory empty" "by a pattern: empty/*"
data hidden "found no file of data in the directory hidden"
mkdir -p below/part mixed && cp two-kinds.jsonl below/part/ && cp text.txt below/ && cp two-kinds.jsonl mixed/a.jsonl && cp text.txt mixed/README.md
data below "found data in directories below below (below/part/two-kinds.jsonl)" "below/*/*.jsonl"
data mixed "found records (mixed/a.jsonl) and text (mixed/README.md) in the directory mixed" "mixed/*.jsonl"
data run "found a run in the directory run" "--data FILE"
data run/checkpoints/step-00000001 "found a checkpoint in the directory"
data model "found a model in the directory model" "--model DIR"
absent nope.jsonl "data.source: found no file nope.jsonl (No such file or directory), expected builtin:... or existing files" ", looked for from $work; "
absent org/name "found no file org/name" "load_dataset('org/name', split='train').to_json('name.jsonl')"
absent 'no-*.jsonl' "found no file that matches no-*.jsonl"

# ---- models
model() { local dir=$1 && shift && alike "$@" -- --model "$dir" --data text.txt --out never; }
model Some-Org/Model-1 "no model of that name in the cache of the Hugging Face hub (HF_HOME)" "hf download Some-Org/Model-1"
model nowhere "model.path: found no directory nowhere" "hf download NAME --local-dir DIR"
model m.gguf "m.gguf: found a GGUF file, expected a Hugging Face model directory" "training reads safetensors"
model gguf "gguf: found GGUF files, expected" "training reads safetensors"
model weights.bin "a file of PyTorch" "save_pretrained"
model torch "pytorch_model.bin is not read" "writes safetensors"
model weights "found weights alone, expected" "put the config.json"
model bert "key 'model_type': found \"bert\", expected a family that" "lists: ralo trains decoders" "an encoder is not one" "!one of:"
for missing in "mixtral:mixture of experts is not supported yet" "qwen3_next:delta-rule layers (linear attention) and mixture of experts" \
    "mamba2:state-space layers" "deepseek_v3:latent attention (MLA)" "gemma3:models of images" "falcon:side by side"; do
    echo "{\"model_type\": \"${missing%%:*}\"}" >bert/config.json
    model bert "found \"${missing%%:*}\"" "${missing#*:}"
done
echo '{"model_type": "brand_new", "num_experts": 8}' >bert/config.json
model bert "mixture of experts is not supported yet"
echo '{"model_type": "brand_new"}' >bert/config.json
model bert "found \"brand_new\", expected one of"
model run "found a run or a checkpoint, expected" "ralo train RUN" "ralo export RUN DIR"
check 2 "found a GGUF file, which ralo writes and does not read, expected a directory with config.json, a run or a checkpoint" -- generate m.gguf --prompt x
check 2 "context: found 128 tokens, expected at most 64, the positions of model; lower it (--context)" -- generate model --prompt x --context 128
check 2 "m.gguf: found a file of GGUF" -- eval model --data m.gguf
check 2 "m.gguf: found a file of GGUF" -- generate model --prompt-file m.gguf
check 2 "no complete checkpoint there, expected a run or a checkpoint" -- export model never

# ---- downloads that stopped, or a clone without Git LFS
cp -r "$TEST_FIXTURES/hf/llama_sharded" part && cp part/model-00002-of-00004.safetensors second
pointer='version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n'
part() { alike "$@" -- --model part --data builtin:random --set data.seq_len=16 --set train.steps=1 --set run.threads=1 --out never; }
rm part/model-00002-of-00004.safetensors
part "index.json: found no file model-00002-of-00004.safetensors in part" "finish the download: hf download NAME --local-dir part"
head -c 1000 second >part/model-00002-of-00004.safetensors
part "model-00002-of-00004.safetensors: tensor" "the file seems to be cut short"
mv second part/model-00002-of-00004.safetensors && mv part/model.safetensors.index.json index
part "part: found no model.safetensors and no model.safetensors.index.json" "there are shards"
mv index part/model.safetensors.index.json && printf "$pointer" >part/tokenizer.json
model part "part/tokenizer.json: found a Git LFS pointer" "git lfs pull"

# ---- settings
setting() { local fragments=() && while [ "$1" != -- ]; do fragments+=("$1") && shift; done; shift
    alike "${fragments[@]}" -- --model model --data text.txt --out never "$@"; }
setting "train.epochs: found '-1', expected a number in (0," -- --epochs -1
setting "model.lora.rank: found '0', expected a whole number in [1, 512], or none" -- --lora 0
setting "model.lora.rank: found '-3'" -- --lora -3
setting "model.lora.targets: found 'query', which is no linear layer of model" "self_attn.q_proj" -- --lora 4 --set model.lora.targets=query
setting "seq_len 128 is longer than the 64 positions it has" "lower data.seq_len" -- --data long.txt --set data.seq_len=128
setting "train.lr: found '-1', expected a number in (0, 10]" -- --lr -1
setting "unknown setting 'save_best'" "train.save_best=loss" -- --set save_best=true
setting "unknown setting 'load_in_4bit'" "model.base=nf4, with model.lora.rank" -- --set load_in_4bit=true
setting "found wandb, which ralo does not send to" "trackio" -- --set report_to=wandb
setting "train.task: found 'dpo', expected one of" "train.task=preference with preference.loss=dpo" -- --set train.task=dpo
check 2 "data.eval_source: found no file nope.jsonl" -- train --model model --data text.txt --out never --set data.eval_source=nope.jsonl
setting "tokenizer: found 'gpt2'" "hf download NAME tokenizer.json" -- --set data.tokenizer=gpt2
setting "are both given; keep one of them" -- --preset llama2-7b
setting "resume from latest: No such file or directory; expected a run or a checkpoint directory" -- --set run.resume=latest
setting "unknown option '--batch-size'" "train.batch" -- --batch-size 8
taken() { alike "$2" "choose another run.dir" -- --preset test-gpt2 --set train.steps=1 --set run.threads=1 --out "$1"; }
taken text.txt "run.dir: found the file text.txt, expected a directory"
taken text.txt/run "run.dir: found 'text.txt/run' (Not a directory)"
taken "$(printf 'a%.0s' {1..300})" "(File name too long)"
alike "train.sample_prompts: found no file nope.txt" -- --preset test-llama --set train.sample_every=1 --set train.sample_prompts=nope.txt
check 2 "--trace nowhere/t.json: found no directory nowhere to write into" "!Fits" -- train --preset test-llama --trace nowhere/t.json
taken /proc/foo "run.dir /proc/foo: cannot create the directory in /proc: No such file or directory"
check 2 "memory.nvme_path nowhere: No such file or directory" "!Fits" -- train --preset test-llama --set memory.offload.states=nvme --set memory.nvme_path=nowhere
check 2 "memory.nvme_path text.txt: Not a directory" "!Fits" -- train --preset test-llama --set memory.offload.states=nvme --set memory.nvme_path=text.txt
check 0 "on NVMe" -- plan --preset test-llama --set memory.offload.states=nvme --set memory.nvme_path=nowhere # it may be on another machine
check 2 "found no run and no file runs/nope, expected the directory of a run to continue" "ralo runs runs" -- train runs/nope
check 2 "CONFIG nope.yaml: no such file" -- train nope.yaml
check 2 "memory.device: found '24'" "24 is a number of bytes: is it 24G?" -- plan --device-memory 24
check 2 "unknown setting 'batchsize'" "train.batch" "!train.micro_batch'" -- train --set batchsize=8
check 2 "unknown option '--batchsize'" "train.batch" -- train --batchsize 8
printf 'trian: {lr: 1}\ntrain: {lr: fast, steps: -1}\nmodel: {layers: many}\nbatch_size: 4\n' >several.yaml
check 2 "several.yaml: 5 errors:" "several.yaml:1: unknown setting 'trian.lr'" "several.yaml:2: train.lr: found 'fast'" \
    "several.yaml:2: train.steps: found '-1'" "several.yaml:3: model.layers: found 'many'" "several.yaml:4: unknown setting 'batch_size'" -- plan several.yaml
for i in $(seq 40); do echo "wrong$i: 1"; done >many.yaml
check 2 "many.yaml: 16 errors, and what follows was not read" "many.yaml:16:" "!many.yaml:17:" -- plan many.yaml
check 2 "tabs.yaml:2:1: found a tab, expected spaces" -- train tabs.yaml
check 2 "open.yaml:2:1: did not find expected ',' or '}'" -- train open.yaml
check 2 "word.yaml:1: unknown setting 'save_best'" "train.save_best" -- train word.yaml
check 2 "value.yaml:1: train.lr: found 'fast', expected a number" -- train value.yaml
check 2 "found 'two-kinds.jsonl', expected a file of settings" "--data two-kinds.jsonl" -- train two-kinds.jsonl
check 2 "found 'm.gguf', expected a file of settings" "--model DIR" -- train m.gguf
check 2 "found the directory 'model', expected a file of settings" "model.path=model" -- train model
cp -r run lost && rm lost/config.yaml && mkdir begun && cp run/run.json begun/
check 2 "found the directory 'lost'" "a run without its config.yaml" "--resume lost" -- train lost
check 2 "found the directory 'begun'" "ended before its first step" "the command that began it" -- train begun
[ ! -e never ] || fail "a refused start left its directory: $(find never | head -5)"

# ---- what is done, but not without a word
echo '{"train_micro_batch_size_per_gpu": 2}' >ds.json
check 0 "No model is named (--model DIR, --preset NAME), so this is about the built-in arithmetic-tiny of 624.2K. Fits" -- plan ds.json
check 0 "!No model is named" -- plan ds.json --preset test-llama
check 0 "train.problems has no effect: this train.task asks no problems" "!preference and rloo" -- plan --preset test-llama \
    --data builtin:solutions --set train.task=critic --set train.problems=4
check 2 "found --chat none, expected a format" "leave it out" -- chat model --chat none
printf '{"prompt": "a", "completion": "b"}\n%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 >glued.jsonl
check 0 "without a separator; put a chat_template.jinja" "!chatml" -- train --model model --data glued.jsonl --set data.chat=none --set train.steps=1 --set run.threads=1 --out glued
printf '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' >turns.jsonl
alike "turns need a chat template" "!chatml" "!(null)" -- --model model --data turns.jsonl --out never
check 0 "warning: train.lr is 10, far above what is usual (1e-5 to 1e-4 for a pretrained model)" "diverge" -- plan --model model --data text.txt --lr 10
check 0 "!far above" -- plan --model model --data text.txt --lr 1e-4
printf '{"prompt": "a b", "completion": "c"}\n' >single.jsonl
check 0 "a single step is 8.0 of them" "a smaller train.batch" "!are 3 epochs" -- train --model model --data single.jsonl \
    --set data.eval_fraction=0 --set train.batch=8 --set train.steps=2 --set run.threads=1 --out single
check 2 "single.jsonl: found 0 tokens for evaluation (data.eval_fraction 0.05 of" "a larger data.eval_fraction" -- train --model model \
    --data single.jsonl --out never
check 0 "weights   random: a preset has the sizes of a model and no weights" -- train --preset test-llama --data text.txt --set data.seq_len=32 --set train.steps=1 --set run.threads=1 --out random

finish "every wrong input is answered"
