#!/bin/bash
# cli_errors.sh - a wrong request is refused with exit code 2 (3 when it does not fit), says which key, which line and
# what to do, and changes no file. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
file() { printf -- "$2" >"$1"; }
tiny=(--preset test-llama --set data.seq_len=24 --set train.micro_batch=2 --set train.steps=3 --set train.warmup=0
    --set train.eval_rows=2 --set train.problems=0)

# ---- settings, in files and on the command line
file unknown.yaml 'model:\n  preset: test-llama\ntrain:\n  stepz: 3\n'
check 2 unknown.yaml:4 train.stepz "did you mean 'train.steps'" -- plan unknown.yaml
file group.yaml 'trian:\n  lr: 1\n'
check 2 group.yaml:2 trian.lr "did you mean 'train.lr'" -- plan group.yaml
check 2 --set train.stepz "did you mean 'train.steps'" -- plan --set train.stepz=3
check 2 "did you mean 'train.lr'" -- plan --set lr=0.1
file type.yaml '\ntrain:\n  steps: many\n'
check 2 type.yaml:3 train.steps "'many'" "whole number" -- plan type.yaml
file half.yaml 'train: {steps: 2.5}\n'
check 2 half.yaml:1 train.steps "'2.5'" -- plan half.yaml
file list.yaml 'train:\n  lr: [1, 2]\n'
check 2 list.yaml:2 train.lr "a list" -- plan list.yaml
file flag.yaml 'data:\n  pack: maybe\n'
check 2 flag.yaml:2 data.pack "true or false" -- plan flag.yaml
file range.yaml 'train:\n  betas: [0.9, 1.5]\n'
check 2 range.yaml:2 train.betas "[0, 1), such as [0.9, 0.95]" -- plan range.yaml
check 2 "memory.place: found 'cpu'" "such as embed=cpu:0" -- plan "${tiny[@]}" --set memory.place=cpu
check 2 "memory.place: found 'mps'" "no Metal backend" -- plan "${tiny[@]}" --set memory.place=layers.0=mps
check 2 "memory.place: found 'cuda:7', expected cuda:0" "one rank each" -- plan "${tiny[@]}" --set memory.place=layers.0=cuda:7
check 2 "memory.place: found the device 'cpu:9'" "cpu:0 to cpu:3" -- plan "${tiny[@]}" --set memory.place=layers.0=cpu:9
check 2 "memory.place: found cuda with device cpu" "run.device=cuda" -- plan "${tiny[@]}" --set run.device=cpu --set memory.place=head=cuda
check 2 train.lr "'-1'" "(0, 10]" -- plan --set train.lr=-1
check 2 train.lr "'nan'" -- plan --set train.lr=nan
check 2 train.micro_batch "'0'" -- plan --set train.micro_batch=0
check 2 train.steps "'1e99'" -- plan --set train.steps=1e99
check 2 precision "one of: fp32, bf16, bf16_sr, fp16, fp8, fp8_sr" -- plan --set precision=int4
check 2 memory.device -- plan --device-memory lots
file form.yaml 'memory:\n  recompute: {ratio: 2}\n'
check 2 form.yaml:2 memory.recompute "'ratio:2'" "{ratio: number in [0, 1]}" -- plan form.yaml
check 2 memory.recompute "'{ratio: 2}'" "none or false, norms" -- plan --set 'memory.recompute={ratio: 2}'
check 2 memory.recompute "'mlp'" "norm1, norm1.rstd, attn.qkv" mlp.gate_up -- plan --set memory.recompute=keep:mlp
file list.yaml 'memory:\n  recompute: {nested: [1]}\n'
check 2 list.yaml:2 memory.recompute "'nested:[1]'" "{nested: whole number in [1, 1024]}" -- plan list.yaml
check 2 memory.recompute "'{nested: [1]}'" "{nested: whole number in [1, 1024]}" -- plan --set 'memory.recompute={nested: [1]}'
file mix.yaml 'memory:\n  recompute: {mix: [full, 3]}\n'
check 2 mix.yaml:2 memory.recompute "'mix:[full, 3]'" "{mix: [level, layers, lighter level]}" -- plan mix.yaml
check 2 "memory.recompute: found 'mix:norms,3,full'" mix:full,12,selective -- plan --set memory.recompute=mix:norms,3,full
file nested.yaml 'memory:\n  recompute:\n    nested: 0\n'
check 2 nested.yaml:2 memory.recompute "'nested:0'" "{nested: whole number in [1, 1024]}" -- plan nested.yaml
file chunk.yaml 'memory:\n  host: 8G\n  chunk_tokens: 1.5\n'
check 2 chunk.yaml:3 memory.chunk_tokens "'1.5'" "[0, 268435456], or auto" -- plan chunk.yaml
file layers.yaml 'memory:\n  offload:\n    keep_layers: many\n'
check 2 layers.yaml:3 memory.offload.keep_layers "'many'" "[0, 1024], or auto" -- plan layers.yaml
check 2 memory.bucket "found 256.0 KiB" "or auto" -- plan --preset llama3-8b --hardware h200 --set memory.bucket=256K
check 2 memory.chunk_tokens "found 64, expected at least 65536" "16777216 tokens" -- plan --preset test-llama \
    --set memory.chunk_tokens=1 --set model.max_positions=1048576 --set data.seq_len=1048576
check 2 memory.host "'64K'" "[1M, 1P]" -- plan --set memory.host=64K
check 2 "seq_len 128" "the 64 positions" data.seq_len -- plan --set model.max_positions=64
check 2 parallel.attention "'both'" "heads, ring, auto" -- plan --set parallel.attention=both
check 2 parallel.sequence "128 tokens" "3 ranks" "multiple of 6" -- plan --set parallel.sequence=3
check 2 comm.transport "found nccl" "expected auto or mpi" -- plan --set comm.transport=nccl --set run.device=cpu
# Adapters.
check 2 model.lora.rank "'0'" "[1, 512], or none" -- plan --set model.lora.rank=0
check 2 model.lora.rank "'513'" "[1, 512], or none" -- plan --set model.lora.rank=513
check 2 model.lora.alpha "'0'" "(0, 1e6], or auto" -- plan --set model.lora.rank=4 --set model.lora.alpha=0
check 2 model.lora.dropout "'1'" "[0, 1)" -- plan --set model.lora.rank=4 --set model.lora.dropout=1
check 2 "model.lora.targets: found 'w'" "all-linear or some of" self_attn.q_proj -- plan --preset test-llama \
    --set model.lora.rank=4 --set model.lora.targets=q,w
check 2 "model.lora.targets: found 'gate'" mlp.c_fc -- plan --preset test-gpt2 --set model.lora.rank=4 --set model.lora.targets=gate
check 2 model.lora.targets "'[q, {v: 1}]'" -- plan --set model.lora.rank=4 --set 'model.lora.targets=[q, {v: 1}]'
check 0 "on q_proj, v_proj" -- plan --preset test-llama --set model.lora.rank=4 --set 'model.lora.targets=[q, v]'
# Sizes that overflow together, also before a DeepSpeed file is translated.
large=(--set parallel.tensor=65536 --set parallel.sequence=65536)
file ds.json '{"train_batch_size": 64}'
check 2 "parallel.*" "tensor 65536" "at most 65536 ranks" -- plan "${large[@]}"
check 2 "at most 65536 ranks" -- plan "${large[@]}" --world 8
check 2 "at most 65536 ranks" -- plan "${large[@]}" --deepspeed ds.json
check 2 "at most 65536 ranks" -- train "${tiny[@]}" "${large[@]}" --set run.dir=never
check 0 "64 = 64 x 1 x 1 rank" -- plan --deepspeed ds.json --set parallel.sequence=2
check 2 train.warmup train.steps -- plan --set train.steps=10 --set train.warmup=20
check 0 -- plan --set train.schedule_steps=10 # warmup that was not given is a tenth of that
check 2 model.kv_heads model.heads -- plan --set model.heads=4 --set model.kv_heads=3
# GPT-2's config.json has no head_dim and no kv_heads: with others a run could not be generated with, exported or loaded.
check 2 "4 heads of 16" "model.hidden 32" "set model.head_dim=8" -- plan --preset test-gpt2 --set model.hidden=32
check 2 "4 heads of 16" "2 of keys and values" "model.kv_heads=4" -- plan --preset test-gpt2 --set model.kv_heads=2
check 2 "12 heads of 64" "model.hidden 100" "a model.heads that divides model.hidden" -- plan --preset gpt2 --set model.hidden=100
check 2 "6 heads of 64" "12 of keys and values" "model.kv_heads=6" -- plan --preset gpt2 --set model.hidden=384 --set model.heads=6
check 0 "Fits" -- plan --preset test-gpt2 --set model.hidden=32 --set model.head_dim=8
check 2 "model.preset 'qwen3-0.6'" "did you mean 'qwen3-0.6b'" -- plan --preset qwen3-0.6
check 2 "model.preset 'something-else' is not known; 'ralo help presets' lists them, and any other size is read from a config.json (--model DIR)" "!did you mean" -- plan --preset something-else
check 2 "did you mean 'llama3.1-405b'?" -- plan --preset llama3-405b
check 2 "did you mean 'qwen3-32b'?" -- plan --preset qwen3-33b
check 2 run.resume run.dir -- train --resume auto
check 2 "builtin:arithmetic" "builtin:poetry" -- train "${tiny[@]}" --set data.source=builtin:poetry --set run.dir=never
check 2 "data.source: found no file missing.txt" "download" -- train "${tiny[@]}" --set data.source=missing.txt --set run.dir=never
mkdir no-data
check 2 "data.source: found no file of data in the directory no-data" -- train "${tiny[@]}" --set data.source=no-data --set run.dir=never
check 2 vocab 260 100 -- train "${tiny[@]}" --set model.vocab=100 --set run.dir=never
check 2 /nowhere "a run or a checkpoint directory" -- train "${tiny[@]}" --resume /nowhere --set run.dir=never
check 0 "rows of 128 tokens" -- plan --set train.batch=3 # nobody has set a micro-batch that it could contradict
check 2 "found 3" "multiple of train.micro_batch (2)" -- plan --set train.batch=3 --set train.micro_batch=2
check 2 "multiple of train.micro_batch (3, given as train.batch_size)" -- plan --set train.batch=5 --set train.batch_size=3
check 2 "found 6" "train.accumulation = 4 x 2" -- plan --set train.batch=6 --set train.micro_batch=4 --set train.accumulation=2
check 2 "tensor 2" "--ranks 2" -- train "${tiny[@]}" --set parallel.tensor=2 --set run.dir=never

# ---- settings that say nothing beside the others are named, and only those
idle() { # KEY=VALUE SETTING...: KEY says nothing beside the others
    local more=() x
    for x in "${@:2}"; do more+=(--set "$x"); done
    check 0 "warning: ${1%%=*} has no effect" -- plan "${tiny[@]}" --set "$1" ${more[@]+"${more[@]}"}
}
idle train.nonfinite=skip precision=fp16
idle train.problems=5 data.source=builtin:grammar
idle run.keep=3 run.save_last=false
# of a file that is not here, so that plan looks at the settings alone
idle data.chat=chatml data.source=absent.txt
idle data.train_on=all data.source=absent.txt
idle data.prompt_column=x data.source=absent.txt
RALO_CUDA_PLUGIN=none idle run.tf32=true
RALO_CUDA_PLUGIN=none idle run.gpu=1
check 0 "!has no effect" -- plan "${tiny[@]}" --set run.tf32=true --hardware h100
idle train.eval_every=2 train.eval_rows=0
idle memory.offload.keep_layers=1 memory.offload.activations=none
idle memory.prefetch=2 memory.strategy=manual
idle memory.bucket=1M memory.strategy=manual
idle memory.nvme_path=. memory.strategy=manual memory.offload.states=host
idle parallel.attention=ring parallel.sequence=1
idle run.gpu=0 run.device=cpu
idle run.tf32=true run.device=cpu
check 0 "!no effect" -- plan "${tiny[@]}" --set train.nonfinite=skip --set train.eval_every=2 --set memory.offload.states=host \
    --set memory.strategy=manual --set memory.prefetch=2 --set memory.bucket=1M --set parallel.sequence=1 --set run.device=cpu
check 0 "!no effect" -- plan "${tiny[@]}" --set memory.nvme_path=. --set memory.prefetch=2 --set memory.offload.keep_layers=1

# ---- Hugging Face directories
hf=(--set data.seq_len=24 --set train.micro_batch=2 --set train.steps=2 --set train.warmup=0 --set train.eval_rows=0
    --set train.problems=0)
check 0 -- train "${tiny[@]}" --set run.dir=source --set run.export=exported
check 0 "in bf16" -- export source exported-bf16 --dtype bf16
python3 -c 'import json; c = json.load(open("exported-bf16/config.json")); assert c["dtype"] == "bfloat16", c' ||
    fail "the exported config.json does not say bf16"
check 0 "weights of exported" "!yields bytes" -- train "${hf[@]}" --set model.path=exported --set run.dir=second
check 0 -- train second/config.yaml --resume auto --set train.steps=4
check 0 "resumed from second/checkpoints/step-00000004" "nothing is left to train" "step 4 of 4 was reached; raise train.steps" -- train second/config.yaml --resume second --set run.dir=third
# The default rate is for random values.
for init in auto random; do
    run 0 train --show-config --set model.path=exported --set model.init=$init
    grep -o '^  lr: .*' out
done >rates
printf '  lr: %s\n' 5e-05 0.003 | cmp -s - rates || fail "train.lr with and without weights: $(cat rates)"
check 2 "model.path (exported)" "model.preset (gpt2)" -- plan --preset gpt2 --set model.path=exported
check 2 model.layers exported/config.json -- plan --set model.path=exported --set model.layers=3
check 2 model.init model.path -- plan --set model.init=pretrained
check 2 "model.path: found no directory /nowhere" "config.json" "download" -- plan --set model.path=/nowhere
sed -i 's/"hidden_act": "silu"/"hidden_act": "relu"/' exported-bf16/config.json
check 2 exported-bf16/config.json "'hidden_act'" '"relu"' '"silu"' -- plan --set model.path=exported-bf16
cp -r exported other && sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' other/config.json
check 2 model.layers.2.input_layernorm.weight "is missing" -- train "${hf[@]}" --set model.path=other --set run.dir=never
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n' >other/pointer
mv other/pointer other/model.safetensors
check 2 other/model.safetensors "a Git LFS pointer" "git lfs pull" -- train "${hf[@]}" --set model.path=other --set run.dir=never
rm other/model.safetensors
check 2 other "no model.safetensors" model.init=random -- train "${hf[@]}" --set model.path=other --set run.dir=never
check 2 "run.export: exported holds files already (" "set run.export=none" -- train "${tiny[@]}" --set run.export=exported --set run.dir=never
check 2 "run.dir source already holds a checkpoint" -- train "${tiny[@]}" --set run.export=exported --set run.dir=source
check 2 exported "holds files already" -- export source exported
check 2 "export to /proc/a/b" -- train "${tiny[@]}" --set run.export=/proc/a/b --set run.dir=never
# Weights that know the tokens of a tokenizer are not trained on bytes unasked, nor on the built-in data in silence.
check 0 -- train "${tiny[@]}" --set model.vocab=300 --set run.dir=wide --set run.export=wide-hf
seq 1000 >numbers.txt
check 2 "wide-hf has no tokenizer.json" "300 entries" "data.tokenizer=byte" -- train "${hf[@]}" --set model.path=wide-hf \
    --set data.source=numbers.txt --set run.dir=never
check 2 "found nothing to train the pretrained wide-hf on" "--data FILE" -- train "${hf[@]}" --set model.path=wide-hf --set run.dir=never
check 0 "warning: data.source builtin:arithmetic yields bytes" "set data.source" -- train "${hf[@]}" \
    --set model.path=wide-hf --set data.source=builtin:arithmetic --set run.dir=builtin
check 0 -- train "${hf[@]}" --set model.path=wide-hf --set data.source=numbers.txt --set data.tokenizer=byte \
    --set run.dir=as-bytes
check 0 -- train "${hf[@]}" --set model.path=exported --set data.source=numbers.txt --set run.dir=of-bytes
# A file of --show-config is the run of the line that it was made from; what a plan tries sizes for has the precision of the run.
mine=(--model exported --data numbers.txt --set run.threads=1)
for batch in auto 8; do
    run 0 plan "${mine[@]}" --set train.batch=$batch && grep '^step\|epochs' out >of-line
    run 0 train "${mine[@]}" --set train.batch=$batch --show-config && cp out shown.yaml
    run 0 plan shown.yaml
    grep '^step\|epochs' out | sed 's/of [0-9.]* GiB of memory/of memory/' | diff <(sed 's/of [0-9.]* GiB of memory/of memory/' of-line) - ||
        fail "train.batch=$batch: a file of --show-config is another run"
    grep -q '^step.*, bf16, ' out || fail "train.batch=$batch: a fine-tune is not in bf16: $(grep '^step' out)"
done
check 0 ", bf16, " -- plan "${mine[@]}" --profile
check 0 ", bf16, " -- plan "${mine[@]}" --longest --device-memory 100M
run 0 train "${mine[@]}" --ranks 2 --show-config && grep -qx '  micro_batch: auto' out || fail "--ranks 2 --show-config: $(grep batch: out)"
check 2 "no DIR" -- export source
check 2 "'fp8'" "fp32, bf16, fp16" -- export source new --dtype fp8
check 2 directory -- export /nowhere new
check 2 "unknown option '--type'" -- export source new --type fp32
[ ! -e new ] || fail "a refused export made its directory"
[ ! -e never ] || fail "a refused run made its directory"

# ---- files that are not settings
file empty.yaml ''
check 0 -- plan empty.yaml "${tiny[@]}"
file comment.yaml '# nothing\n---\n'
check 0 -- plan comment.yaml "${tiny[@]}"
check 2 "CONFIG missing.yaml: no such file" -- plan missing.yaml
check 2 "found 'gpt2', expected a file of settings" "--preset gpt2" -- plan gpt2
mkdir directory
check 2 "found the directory 'directory', expected a file of settings" -- plan directory
touch directory/config.yaml
check 0 -- plan directory # as that of a run
touch directory/config.json
check 2 "--set model.path=directory" -- plan directory
check 2 "a model from missing.yaml: No such file" "hf download" -- generate --model missing.yaml --prompt x
check 2 "a model from empty.yaml: found a file, expected a directory" -- generate --model empty.yaml --prompt x
file truncated.yaml 'train: {steps: 3,\n  lr: '
check 2 truncated.yaml: -- plan truncated.yaml
file quote.yaml 'model:\n  preset: "gpt2\n'
check 2 quote.yaml: -- plan quote.yaml
file twice.yaml 'train:\n  lr: 1\n  lr: 2\n'
check 2 twice.yaml:3 lr -- plan twice.yaml
file alias.yaml 'train:\n  learning_rate: 1\n  lr: 2\n'
check 2 alias.yaml:3 train.lr "line 2" -- plan alias.yaml
file scalar.yaml 'hello\n'
check 2 scalar.yaml:1 "expected a map" -- plan scalar.yaml
file sequence.yaml '- a\n- b\n'
check 2 sequence.yaml:1 "expected a map" -- plan sequence.yaml
file tabs.yaml 'train:\n\tlr: 1\n'
check 2 tabs.yaml:2 -- plan tabs.yaml
file nul.yaml 'train:\n  lr: 1\000\n'
check 2 nul.yaml -- plan nul.yaml
file latin.yaml 'run:\n  dir: caf\351\n'
check 2 latin.yaml -- plan latin.yaml
head -c 4096 /dev/urandom >random.yaml
check 2 random.yaml -- plan random.yaml
python3 -c 'print("train: " + "[" * 20000)' >deep.yaml
check 2 deep.yaml -- plan deep.yaml
python3 -c 'print("a: &a [x,x,x,x,x,x,x,x,x]")
for c, d in zip("bcdefghij", "abcdefghi"): print(f"{c}: &{c} [" + ",".join(["*" + d] * 9) + "]")' >laughs.yaml
check 2 laughs.yaml -- plan laughs.yaml
python3 -c 'print("k" * 100000 + ": 1")' >long.yaml
check 2 long.yaml:1 -- plan long.yaml
head -c 3000000 /dev/zero | tr '\0' '#' >comment-of-3-megabytes.yaml
timeout 30 "$RALO" plan comment-of-3-megabytes.yaml "${tiny[@]}" >out 2>err
case $? in 0 | 2) ;; *) fail "3 MB of comment: exit code not 0 or 2: $(tail -n 1 err)" ;; esac
check 2 /dev/zero -- plan /dev/zero

# ---- the command line
check 2 "unknown command 'trian'" "did you mean 'train'" -- trian
check 2 "unknown command 'finetune'" "ralo --help" "!did you mean" -- finetune
check 2 "unknown option '--jsn'" -- plan --jsn
check 2 "unknown option '--program'" -- train --program
check 2 "'--train.lr=1'" "--set train.lr=VALUE" -- plan --train.lr=1
check 2 "'--precision'" "--set precision=VALUE" -- train --precision bf16
check 2 "unknown option '--learning_rate'" "--set train.lr=VALUE" -- train --learning_rate 1e-4
check 2 "'train.lr=1'" "expected a file" "--set train.lr=1" -- plan train.lr=1
check 2 "--set needs a value" -- plan --set
check 2 "key=value" -- plan --set train.lr
check 2 "takes no value" -- plan --json=yes
check 2 "one argument too many" empty.yaml comment.yaml -- plan empty.yaml comment.yaml
check 0 -- --help
check 0 -- help settings

# ---- plans: every preset is answered, and what does not fit says what would. (The last resort, which takes longest to search,
# is in test_chunk and cli_longest.)
last_object='import json, sys
text = sys.stdin.read()
assert text.endswith("}\n"), "the object is not the last thing on stdout"
value = json.loads(text[text.rfind("\n", 0, -1) + 1:])
assert isinstance(value, dict)'
answered() { # PRESET ARGUMENTS
    preset=$1
    timeout 120 "$RALO" plan --preset "$@" --set memory.chunk_tokens=0 --set memory.offload.keep_layers=0 --json >out 2>err
    case $? in
    0) fits=True ;;
    3) fits=False ;;
    *) fail "plan $preset: exit code not 0 or 3: $(tail -n 1 err)" && return ;;
    esac
    python3 -c "$last_object
assert value['fits'] is $fits and value['model'] == '$preset' and value['memory']['device']['planned'] > 0" <out ||
        fail "plan $preset --json: $(head -c 300 out)"
    [ "$(wc -l <out)" = 1 ] || fail "plan $preset --json: more than the object on stdout"
}
one=(--set train.micro_batch=1) # whose search is a fifth of that of every micro-batch
for preset in $("$RALO" help presets | awk '/ parameters,/ { print $1 }'); do
    case $preset in
    olmo-2-*) answered "$preset" "${one[@]}" --set memory.strategy=manual ;; # on CPUs alone
    # Deep models take seconds to search and to advise on; the smaller or earlier ones of each family show both.
    *-[1-9][0-9]b | *-405b | llama3.1-8b | mistral-7b-v0.3 | phi-4 | gemma-2-9b | qwen2.5-7b | qwen3-8b)
        answered "$preset" "${one[@]}" --hardware h100 --set memory.strategy=manual --set memory.device=16T ;;
    *) answered "$preset" "${one[@]}" --hardware h100 ;;
    esac
done
answered gpt2-xl --hardware h100
for preset in gpt2-xl gemma-2-2b qwen3-4b; do answered "$preset" "${one[@]}" --set memory.device=8G; done # searched far and wide
check 2 --show-config --json -- train --show-config --json
check 2 --hardware --json -- devices --hardware h200 --json
# what was asked for is on stdout, alone; beside an object or the ops it is on stderr
run 0 plan "${tiny[@]}"
grep -q '^device ' out && [ ! -s err ] || fail "plan: not all of it is on stdout, or more is on stderr: $(head -n 1 err)"
run 0 plan "${tiny[@]}" --world 4
grep -q '^world ' out || fail "plan --world is not on stdout"
check 0 "No limit of the device is known: give --hardware NAME" -- plan --preset test-qwen3 --world 4
run 3 plan "${tiny[@]}" --device-memory 4K
grep -q '^device ' out && [ "$(grep -c . err)" -le 3 ] || fail "a plan that does not fit is not on stdout"
run 0 plan "${tiny[@]}" --json
[ "$(wc -l <out)" = 1 ] && grep -q '^device ' err || fail "plan --json: stdout is not the object's alone"
run 0 plan "${tiny[@]}" --program
grep -q '^section ' out && ! grep -q '^device ' out && grep -q '^device ' err || fail "plan --program: stdout is not the ops' alone"
run 0 devices --set run.threads=1
grep -q '^cpu:0 ' out || fail "devices are not on stdout"
"$RALO" plan --preset test-llama --program --json 2>/dev/null | python3 -c 'import json, sys; json.load(sys.stdin)' ||
    fail "plan --program --json: more than the object on stdout"

# fits PRESET LIMIT MORE...: refused with the largest contributors; the named change really fits.
fits() {
    local preset=$1 limit=$2 change
    shift 2
    check 3 "memory.device is" "largest at the peak: " " MiB, " "by role: inputs" "Fits with: " -- \
        plan --preset "$preset" --device-memory "$limit" "$@"
    change=$(sed -n 's/^error: .*Fits with: \(--set [^(]*\) (.*/\1/p' err)
    [ -n "$change" ] || fail "plan $preset $limit: no change in: $(tail -n 1 err)"
    # shellcheck disable=SC2086 # the change is several words
    check 0 -- plan --preset "$preset" --device-memory "$limit" "$@" $change
    check 3 "Fits with: " -- train --preset "$preset" --device-memory "$limit" --set run.dir=never "$@"
}
fits gpt2 2500M --set memory.strategy=manual
resident=(--set memory.offload.params=none --set memory.offload.grads=none --set memory.offload.states=none
    --set memory.offload.activations=none)
check 0 "recompute " "(auto)" "<- this plan" -- plan --preset gpt2 --device-memory 2500M "${resident[@]}" --json
python3 -c "$last_object
used = [row for row in value['recompute'] if row['used']]
assert len(used) == 1 and used[0]['fits'] and used[0]['rung'] == value['strategy']['recompute'] != 'none', value
assert used[0]['device'] == value['memory']['device']['planned'] and value['flops_again'] > 0, value
assert [row['fits'] for row in value['recompute']][0] is False, value" <out || fail "plan --json does not name the rung"
fits gpt2 1900M --set memory.strategy=manual
fits gpt2 1200M --set train.micro_batch=4 --set memory.strategy=manual
fits test-llama 4M --set data.seq_len=512 --set memory.strategy=manual
fits test-qwen3 1800K --set data.seq_len=1024 --set run.threads=2 --set memory.strategy=manual # scratch grows with threads
check 3 "the least that fits with any of them is" -- plan --preset test-llama --device-memory 100K --set memory.strategy=manual
# Adapters that do not fit: a base in fewer bits is among the changes. All parameters that do not fit: adapters over such a base are
# named as another kind of training.
lora=(--preset gpt2 --lora 16 --set precision=bf16_sr --set data.seq_len=64 --set train.micro_batch=1 --set memory.logits_chunk=4M)
for limit in 240M:int8 180M:nf4; do
    check 3 "Fits with: --set model.base=${limit#*:} (" -- plan "${lora[@]}" "${resident[@]}" --device-memory "${limit%:*}"
    check 0 -- plan "${lora[@]}" "${resident[@]}" --device-memory "${limit%:*}" --set model.base="${limit#*:}"
done
full=(--preset gpt2 --set precision=bf16 --set data.seq_len=64 --set train.micro_batch=1 --set model.layers=2
    --set memory.device=200M --set memory.host=16M)
check 3 ". Another kind of training fits, QLoRA, which trains adapters beside a frozen base of 4 bits: --set model.lora.rank=16 --set model.base=nf4 (" \
    -- plan "${full[@]}"
check 0 -- plan "${full[@]}" --set model.lora.rank=16 --set model.base=nf4
check 3 "!QLoRA" -- plan "${full[@]}" --set memory.device=1M --set memory.host=1M
check 3 "!QLoRA" -- plan "${lora[@]}" "${resident[@]}" --device-memory 1M
# No change helps where parameters, gradients and states alone exceed all memory; with moments of 8 bits they are fewer bytes.
crowded=(--preset gpt2 --set data.seq_len=64 --set train.micro_batch=1 --set memory.strategy=manual --set memory.host=64M)
check 3 "at least 949.4 MiB, device and host together have 914.0 MiB" "Use more or larger machines" -- plan "${crowded[@]}" --set memory.device=850M
check 3 "Fits with: --set precision=bf16_sr" -- \
    plan "${crowded[@]}" --set memory.device=850M --set memory.states=int8
check 3 "at least 712.1 MiB, device and host together have 664.0 MiB" -- \
    plan "${crowded[@]}" --set memory.device=600M --set memory.states=int8
check 3 "None of recompute, batch, precision and length is enough" "cut most records" -- plan --preset test-llama --device-memory 64K
raised=$(sed -n 's/.*raise the limit to \([0-9.]*[KMG]\) for these settings.*/\1/p' err)
check 0 -- plan --preset test-llama --device-memory "${raised:-64K}"
# Which memory is short is said, with the candidate that needs least of it; the copy for checkpoints is named before other bytes.
check 3 "0 of " "the host is too small; this one needs least of it" "host too small" "the host has 64.0 GiB of memory, and 113.5 GiB would be enough" \
    "host      113.5 GiB planned of 64.0 GiB: " -- plan --preset qwen2.5-7b --hardware rtx-4090 --set precision=bf16 \
    --set data.seq_len=2048 --set train.micro_batch=1 --set memory.host=64G
check 0 " GiB planned of 128.0 GiB (assumed for rtx-4090; set yours with memory.host)" "; 600 steps take about " -- plan \
    --preset qwen2.5-7b --hardware rtx-4090 --set precision=bf16 --set data.seq_len=2048 --set train.micro_batch=1
check 3 " MiB of it is the copy for background checkpoints" "--set train.save_every=0" "!memory.states=int8" -- \
    plan --set train.save_every=10 --set memory.device=1G --set memory.host=5M
check 0 -- plan --set train.save_every=0 --set memory.device=1G --set memory.host=5M
# What is left open is chosen: where the plain step does not fit, something moves, and it is said in words and numbers.
check 0 "candidates fit; " "1. recompute " " on host" "device " -- \
    plan --preset gpt2 --device-memory 600M --set memory.host=8G --set data.seq_len=128 --set train.micro_batch=16 --json # whatever is free here
python3 -c "$last_object
best, others = value['candidates'][0], value['candidates'][1:]
assert best['fits'] and best['memory']['device'] <= 600 << 20 and len(others) > 20, value
assert all(c['step_ms'] >= best['step_ms'] for c in others if c['fits']), value
assert value['strategy']['offload'] == best['offload'], value" <out || fail "plan --json: candidates"
# What changes the numbers of a run is chosen only where it was asked for, and the rows of a step stay.
check 0 "micro-batch " -- plan --preset test-llama --set train.batch=24 --set train.micro_batch=auto --set precision=auto --json
python3 -c "$last_object
assert len({c['precision'] for c in value['candidates']}) == 2, value
assert {c['micro_batch'] * c['accumulation'] for c in value['candidates']} == {24}, value" <out || fail "plan --json: what is open"
check 0 -- plan --preset test-llama --set train.batch=65521 --set train.micro_batch=auto # a prime: all at once, or one by one
[ ! -e never ] || fail "a run that does not fit made its directory"

# ---- runs: nothing is written over
listing() { find "$1" -type f -exec cksum {} + | sort -k 3; }
check 0 -- train "${tiny[@]}" --set run.dir=run --json
python3 -c "$last_object
assert value['run'] == 'run' and value['steps'] == 3 and len(value['param_hash']) == 16
assert value['memory']['device']['planned'] == value['memory']['device']['peak']
assert value['memory']['host']['planned'] == value['memory']['host']['peak']
assert value['memory']['allocations_in_steps'] == 0" <out || fail "train --json: $(head -c 300 out)"
[ "$(wc -l <out)" = 1 ] || fail "train --json: more than the object on stdout"
# Runs without a name that begin in the same second have directories of their own.
"$RALO" train "${tiny[@]}" >/dev/null 2>first.err &
"$RALO" train "${tiny[@]}" >/dev/null 2>second.err || fail "a second run at the same time: $(tail -n 1 second.err)"
wait $! || fail "a first run at the same time: $(tail -n 1 first.err)"
[ "$(ls -d runs/*/checkpoints | wc -l)" = 2 ] || fail "two runs at once: $(ls runs)"
rm -r runs
# Two of batch, micro-batch and accumulation give the third, also in a run that goes on by its name: config.yaml does not contradict itself.
check 0 "step      2 x 24 tokens x accumulation 4" -- train "${tiny[@]}" --set train.batch=8 --set train.micro_batch=2 --set run.dir=third-open
check 0 "step      2 x 24 tokens x accumulation 4" "resumed from third-open" -- train third-open --set train.steps=4
check 0 "step      2 x 24 tokens x accumulation 4" -- plan "${tiny[@]}" --set train.batch=8 --set train.micro_batch=auto --set train.accumulation=4
check 2 "train.batch: found 8, expected a multiple of train.accumulation (3)" -- plan "${tiny[@]}" --set train.batch=8 --set train.micro_batch=auto --set train.accumulation=3
check 2 "train.batch: found 8, expected train.micro_batch x train.accumulation = 2 x 3; leave one of them at auto" -- \
    plan "${tiny[@]}" --set train.batch=8 --set train.micro_batch=2 --set train.accumulation=3
# train.micro_batch auto: a resumed run keeps the split that it began with, whatever memory is free now.
split=("${tiny[@]}" --set train.micro_batch=auto --set train.batch=8 --set run.threads=2)
check 0 "step      8 x 24 tokens x accumulation 1" -- plan "${split[@]}"
check 0 "step      4 x 24 tokens x accumulation 2" -- train "${split[@]}" --device-memory 1300K --set run.dir=split
check 0 "step      4 x 24 tokens x accumulation 2" "!warning: the checkpoint" -- train "${split[@]}" --set run.dir=split --resume auto --set train.steps=5
check 0 "warning: the checkpoint was trained with micro-batch 4, accumulation 2, and continues with micro-batch 2, accumulation 4" \
    "--set train.micro_batch=4 keeps it" -- train "${split[@]}" --set train.micro_batch=2 --set run.dir=split --resume auto --set train.steps=7
listing run >before
check 2 "run.dir run already holds a checkpoint" step-00000003 "--resume auto" -- train "${tiny[@]}" --set run.dir=run
listing run | cmp -s before - || fail "a refused run changed run.dir"
check 2 llama gpt2 -- train "${tiny[@]}" --set run.dir=run --preset test-gpt2 --resume auto
listing run | cmp -s before - || fail "a refused resume of another model changed run.dir"
check 2 train.seed=1 -- train "${tiny[@]}" --set run.dir=run --set train.seed=2 --resume auto
listing run | cmp -s before - || fail "a refused resume with another seed changed run.dir"
check 0 -- train run/config.yaml --set run.dir=again # the saved settings are settings
cp -r run/checkpoints/step-00000003 damaged
python3 -c 'f = open("damaged/tensors-00001-of-00001.safetensors", "r+b"); f.seek(-1, 2); b = f.read(1)[0]; f.seek(-1, 2); f.write(bytes([b ^ 1]))'
check 2 "damaged/tensors-00001-of-00001.safetensors is damaged" "take another checkpoint of the run" -- train run/config.yaml --resume damaged \
    --set run.dir=again-2
# A checkpoint that had stepped aside when a crash came is put back before the newest is looked for.
mv run/checkpoints/step-00000003 run/checkpoints/.old-step-00000003
check 0 "is restored" "resumed from run/checkpoints/step-00000003" -- train run/config.yaml --resume auto
# A disk that is full in the middle, or a limit on files, is a run that failed; what was printed and did not arrive is no success.
(
    ulimit -f 64
    run 1 train "${tiny[@]}" --set run.dir=filled
    finish ""
) >log || fail "$(head -n 1 log)"
grep -q "checkpoint of step 3 was not written" err || fail "a full disk: $(tail -n 1 err)"
for words in "plan --json" "train --show-config" "help settings" "devices --hardware h200"; do
    "$RALO" $words >/dev/full 2>err
    [ $? = 1 ] && grep -q "^error: write to stdout: " err || fail "ralo $words >/dev/full: $(tail -n 1 err)"
done
# Files that are opened do not get the numbers of standard ones that the caller closed: no progress line among the metrics.
for closed in '2>&-' '<&- 2>&-' '<&- >&- 2>&-'; do
    eval '"$RALO" train "${tiny[@]}" --set run.dir=closed >out '"$closed" || fail "train $closed: exit code $?"
    python3 -c 'import json
for line in open("closed/metrics.jsonl"): json.loads(line)' 2>err || fail "train $closed: metrics.jsonl: $(tail -n 1 err)"
    rm -r closed
done
"$RALO" train "${tiny[@]}" --set run.dir=closed --json >&- 2>err
[ $? = 1 ] && grep -q "^error: write to stdout: " err || fail "train --json >&-: $(tail -n 1 err)"
# Whatever little memory there is (a loader or sanitizer may refuse it first), the end is an end: OpenBLAS' threads get no
# buffer and do not stop.
for kib in 50000 60000 70000; do
    (ulimit -v $kib && timeout 20 "$RALO" plan "${tiny[@]}") >out 2>err
    [ $? != 124 ] || fail "plan in $kib KiB does not end: $(tail -n 1 err)"
done
(ulimit -v 400000 && "$RALO" train --preset gpt2 --set data.seq_len=64 --set train.steps=1 --set run.dir=never) >out 2>err
! grep -q "arena needs" err || grep -q "ulimit -v.*set memory.device" err || fail "a limit of the process: $(tail -n 1 err)"
# What has a name and is no file keeps it: renamed over /dev/null, a file would take it from the whole machine.
mkfifo pipe && exec 3<>pipe
check 2 "trace: pipe is" "expected a file or a new name" -- train "${tiny[@]}" --set run.dir=never --trace pipe
[ -p pipe ] || fail "--trace took the place of a pipe"
mkfifo plan.svg && exec 4<>plan.svg
check 0 -- plan "${tiny[@]}" --timeline plan.svg
[ -p plan.svg ] && read -r -t 5 -u 4 line && [ "${line:0:4}" = "<svg" ] || fail "--timeline took the place of a pipe"
exec 3>&- 4>&-
rm -rf never
touch plain
check 2 plain -- train "${tiny[@]}" --set run.dir=plain/run

finish "all refused as they should be"
