#!/usr/bin/env bash
# cli_mtp_model.sh - a model with prediction heads from the command line: begun from an ordinary one, stopped and resumed, evaluated,
# generated with and exported as an ordinary one; with adapters too. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

base=$TEST_FIXTURES/lora/train_llama
text=$TEST_FIXTURES/lora/text.txt
sets=(--set model.path="$base" --set data.source="$text" --set data.seq_len=32 --set data.eval_fraction=0 --set run.device=cpu
      --set run.threads=2 --set train.steps=4 --set train.lr=0.01 --set train.task=mtp --set model.mtp.heads=3 --set precision=fp32)
last() { python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['$1'])"; }
loss_of() { # MODEL ARGUMENTS
    run 0 eval --model "$@" --data "$text" --json --device cpu
    last loss
}

# Layers of the model and two heads more; the untrained run is the model that it began from.
check 0 "4 layers" "the last 3 layers predict 1 to 3 tokens ahead over a trunk of 1" -- plan "${sets[@]}"
run 0 train "${sets[@]}" --set train.lr=1e-30 --set train.steps=1 --set run.dir=begun --set run.export=same --json
[ "$(loss_of begun)" = "$(loss_of "$base")" ] || fail "the first head of a run that has learnt nothing is not its model"
python3 - "$base" <<'P' || fail "the exported tensors are not those of the model"
import json, struct, sys
def read(path):
    with open(path, 'rb') as f:
        n = struct.unpack('<Q', f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    return {k: data[slice(*v['data_offsets'])] for k, v in header.items() if k != '__metadata__'}
a, b = read('same/model.safetensors'), read(sys.argv[1] + '/model.safetensors')
layers = [json.load(open(d + '/config.json'))['num_hidden_layers'] for d in ('same', sys.argv[1])]
sys.exit(not (a.keys() == b.keys() and all(a[k] == b[k] for k in a) and layers[0] == layers[1]))
P

# The whole run, and one that stops in the middle.
run 0 train "${sets[@]}" --set run.dir=whole --set run.export=exported --json
hash=$(last param_hash)
run 0 train "${sets[@]}" --set run.dir=parts --set train.steps=2 --set train.schedule_steps=4 --set train.warmup=0 --json
run 0 train "${sets[@]}" --set run.dir=parts --set train.warmup=0 --resume auto --json
[ "$(last param_hash)" = "$hash" ] || fail "stopped and resumed: $(last param_hash), not stopped: $hash"

# One model, wherever it is read from.
check 0 -- export whole again
cmp -s exported/model.safetensors again/model.safetensors || fail "run.export and ralo export differ"
[ "$(loss_of whole)" = "$(loss_of exported)" ] || fail "the run and its export differ"
[ "$(loss_of whole)" != "$(loss_of "$base")" ] || fail "nothing was trained"
run 0 generate --model whole --prompt "the cat" --max-new 8 --device cpu
cp out first
run 0 generate --model exported --prompt "the cat" --max-new 8 --device cpu
cmp -s out first || fail "the run and its export generate different text"
echo "the cat" >prompts.txt
check 0 "sample" -- train "${sets[@]}" --set run.dir=sampled --set train.sample_every=2 --set train.sample_prompts=prompts.txt

# Adapters of every head; those of the first are exported, and merge into the base.
lora=(--set model.lora.rank=4)
run 0 train "${sets[@]}" "${lora[@]}" --set run.dir=lora --set run.export=peft --json
check 0 -- export lora merged --merge
a=$(loss_of lora) b=$(loss_of merged)
python3 -c "import sys; sys.exit(not abs($a - $b) < 1e-5)" || fail "adapters: $a, merged: $b"
[ "$(loss_of "$base" --adapter peft)" = "$a" ] || fail "the run and its adapters differ"
check 0 "weights of peft loaded" -- train "${sets[@]}" --set model.adapter=peft --set run.dir=further

# Rho-1: compared with another model, and resumed. One head and the first parameters have no excess: all tokens are trained on.
rho1=(--set train.weighting=rho1 --set train.warmup=0)
run 0 train "${sets[@]}" "${rho1[@]}" --set rho1.reference=exported --set run.dir=rho1 --json
hash=$(last param_hash)
python3 - <<'P' || fail "counts of selected tokens: $(head -n 1 rho1/metrics.jsonl)"
import json
for line in open('rho1/metrics.jsonl'):
    r = json.loads(line)
    counts = [n for k, n in r.items() if k.endswith('_selected')]
    if 'train/loss' not in r: continue
    positions = sum(counts) / r['train/avg_heads_per_position'] # of head 1
    assert len(counts) > 1 and min(counts) > 0 and max(counts) <= positions and abs(positions - round(positions)) < 1e-3, r
P
run 0 train "${sets[@]}" "${rho1[@]}" --set rho1.reference=exported --set run.dir=rho1_parts --set train.steps=2 \
    --set train.schedule_steps=4 --json
run 0 train "${sets[@]}" "${rho1[@]}" --set rho1.reference=exported --set run.dir=rho1_parts --resume auto --json
[ "$(last param_hash)" = "$hash" ] || fail "rho1, stopped and resumed: $(last param_hash), not stopped: $hash"
check 2 "compares with a reference" -- train "${sets[@]}" "${rho1[@]}" --set rho1.reference=same --set train.steps=6 \
    --set run.dir=rho1 --resume auto
run 0 train "${sets[@]}" "${rho1[@]}" --set model.mtp.heads=1 --set train.steps=1 --set run.dir=copy --json
python3 -c "
import json, sys
r = [json.loads(x) for x in open('copy/metrics.jsonl')]
sys.exit(not (r[0]['train/selection_ratio'] == 1 and r[0]['train/excess_loss'] == 0))" || fail "the copy is not the model: $(cat copy/metrics.jsonl)"
check 0 -- train "${sets[@]}" "${rho1[@]}" "${lora[@]}" --set run.dir=rho1_lora --set rho1.mode=absolute
check 2 "rho1.reference: found base" -- train "${sets[@]}" "${rho1[@]}" --set rho1.reference=base --set run.dir=never
check 2 "rho1.reference" vocabulary -- train "${sets[@]}" "${rho1[@]}" --set run.dir=never \
    --set rho1.reference="$TEST_FIXTURES/hf/gpt2_tied"
check 2 "rho1.reference: nowhere" "expected a Hugging Face model directory" -- train "${sets[@]}" "${rho1[@]}" --set run.dir=never \
    --set rho1.reference=nowhere
# A plan checks the directory as the run does, and names it.
for world in "" "--world 2"; do
    check 2 "rho1.reference" vocabulary -- plan $world "${sets[@]}" "${rho1[@]}" --set rho1.reference="$TEST_FIXTURES/hf/gpt2_tied"
    check 2 "rho1.reference: nowhere" "expected a Hugging Face model directory" -- plan $world "${sets[@]}" "${rho1[@]}" \
        --set rho1.reference=nowhere
done
check 0 "; reference: exported, " "of parameters and one more forward pass" "!frozen copy" -- plan "${sets[@]}" "${rho1[@]}" \
    --set rho1.reference=exported
check 0 "; reference: a frozen copy of the model, " -- plan "${sets[@]}" "${rho1[@]}"

# Refused.
check 2 "found sft with model.mtp.heads 3" -- train "${sets[@]}" --set train.task=sft --set run.dir=never
check 2 "prediction heads" -- train "${sets[@]}" --set model.mtp.heads=2 --set train.steps=8 --set run.dir=whole --resume auto
check 2 "model.mtp.heads" -- train "${sets[@]}" --set model.mtp.heads=9 --set run.dir=never
check 2 "fewer heads than layers" -- train --preset test-llama --set train.task=mtp --set model.mtp.heads=2 --set run.dir=never
[ ! -e never ] || fail "a run that was refused has left a directory"
finish "a model with prediction heads begins, resumes, generates and is exported as an ordinary one"
