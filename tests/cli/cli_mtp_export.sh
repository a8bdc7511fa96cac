#!/usr/bin/env bash
# cli_mtp_export.sh - models with prediction heads as files: the ordinary model, all heads beside it, and Meta's layout; each is read
# back to the same bits, and generates and evaluates as the run does. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

text=$TEST_FIXTURES/lora/text.txt
common=(--set data.source="$text" --set data.seq_len=32 --set data.eval_fraction=0 --set run.device=cpu --set run.threads=2
        --set train.task=mtp --set model.mtp.heads=3 --set data.tokenizer=byte --set precision=fp32)
trained=(--set train.steps=2 --set train.lr=0.01)
untrained=(--set train.steps=1 --set train.lr=1e-30)
generate() { # MODEL
    run 0 generate --model "$1" --tokenizer byte --prompt "the cat" --max-new 8 --device cpu --ignore-eos
    cat out
}
same() { cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

# Every family, with all heads in one directory: it goes on as it was, and its first head is the ordinary model.
for preset in test-gpt2 test-llama test-qwen2 test-qwen3; do
    run 0 train "${common[@]}" "${trained[@]}" --preset $preset --set model.layers=5 --set model.vocab=260 --set run.dir=run_$preset
    check 0 "exported" -- export run_$preset first_$preset
    check 0 "exported" -- export run_$preset all_$preset --heads all
    run 0 train "${common[@]}" "${untrained[@]}" --set model.path=all_$preset --set run.dir=again_$preset
    run 0 export again_$preset all2_$preset --heads all
    same all_$preset/model.safetensors all2_$preset/model.safetensors
    run 0 train "${common[@]}" "${untrained[@]}" --set model.path=all_$preset --set model.mtp.heads=none --set train.task=sft \
        --set run.dir=plain_$preset
    run 0 export plain_$preset first2_$preset
    same first_$preset/model.safetensors first2_$preset/model.safetensors
    [ "$(generate run_$preset)" = "$(generate first_$preset)" ] || fail "$preset: the run and its first head differ"
    [ "$(generate all_$preset)" = "$(generate first_$preset)" ] || fail "$preset: all heads and the first generate differently"
done

# Meta's layout: other names, another order of rows, the same model. An MLP of any width.
for ffn in auto 100; do
    width=(--set model.ffn=$ffn) && [ $ffn != auto ] || width=()
    run 0 train "${common[@]}" "${trained[@]}" --preset test-llama --set model.layers=5 --set model.tied=false "${width[@]}" \
        --set run.dir=llama_$ffn
    check 0 "exported" -- export llama_$ffn meta_$ffn --heads meta
    run 0 export llama_$ffn hf_$ffn --heads all
    run 0 train "${common[@]}" "${untrained[@]}" --set model.path=meta_$ffn --set run.dir=from_meta_$ffn
    run 0 export from_meta_$ffn hf2_$ffn --heads all
    run 0 export from_meta_$ffn meta2_$ffn --heads meta
    same hf_$ffn/model.safetensors hf2_$ffn/model.safetensors
    same meta_$ffn/consolidated.safetensors meta2_$ffn/consolidated.safetensors
    same meta_$ffn/params.json meta2_$ffn/params.json
    [ "$(generate meta_$ffn)" = "$(generate hf_$ffn)" ] || fail "Meta's layout generates differently"
done
python3 - <<'P' || fail "names, order of rows or sizes are not Meta's"
import json, struct, sys
def read(path):
    with open(path, 'rb') as f:
        n = struct.unpack('<Q', f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    return {k: (v['shape'], data[slice(*v['data_offsets'])]) for k, v in header.items() if k != '__metadata__'}
hf, meta = read('hf_auto/model.safetensors'), read('meta_auto/consolidated.safetensors')
config, params = json.load(open('hf_auto/config.json')), json.load(open('meta_auto/params.json'))
assert config['num_hidden_layers'] == 3 and config['n_future_tokens'] == 3
assert params['n_layers'] == 5 and params['n_future_tokens'] == 3
dim, mult = params['dim'], params.get('ffn_dim_multiplier')
hidden = int(2 * 4 * dim / 3)
hidden = int(mult * hidden) if mult else hidden
hidden = params['multiple_of'] * ((hidden + params['multiple_of'] - 1) // params['multiple_of'])
assert hidden == config['intermediate_size'], (hidden, config['intermediate_size'])
assert {k.split('.')[0] for k in meta} == {'tok_embeddings', 'layers', 'extra_heads', 'norm', 'output'}
assert {k.split('.')[1] for k in meta if k.startswith('layers')} == {'0', '1', '2'}
assert {k.split('.')[1] for k in meta if k.startswith('extra_heads')} == {'0', '1'}
D = config['head_dim']
def rows(t): return [t[1][i * len(t[1]) // t[0][0]:(i + 1) * len(t[1]) // t[0][0]] for i in range(t[0][0])]
for theirs, ours in (('layers.2', 'model.layers.2'), ('extra_heads.1', 'model.extra_heads.1')):
    for a, b in (('wq', 'q_proj'), ('wk', 'k_proj')):
        h, m = rows(hf[f'{ours}.self_attn.{b}.weight']), rows(meta[f'{theirs}.attention.{a}.weight'])
        for head in range(len(h) // D):  # (D/2, 2) there, (2, D/2) here
            for i in range(D // 2):
                assert m[head * D + 2 * i] == h[head * D + i] and m[head * D + 2 * i + 1] == h[head * D + D // 2 + i]
    assert hf[f'{ours}.mlp.gate_proj.weight'] == meta[f'{theirs}.feed_forward.w1.weight']
    assert hf[f'{ours}.mlp.up_proj.weight'] == meta[f'{theirs}.feed_forward.w3.weight']
P

# Adapters over Meta's layout merge into it.
lora=(--set model.lora.rank=4 --set model.lora.targets=wq,wv,w1)
run 0 train "${common[@]}" --set train.steps=2 --set train.lr=0.01 "${lora[@]}" --set model.path=meta_auto --set run.dir=lora
run 0 export lora merged --merge
[ "$(generate lora)" = "$(generate merged)" ] || fail "adapters and merged adapters generate differently"

# Over an ordinary model, whose last layer every head begins as: all heads merged, in either layout, are those of the run.
base=$TEST_FIXTURES/lora/train_llama
run 0 train "${common[@]}" --set train.steps=2 --set train.lr=0.01 --set model.lora.rank=4 --set model.path="$base" --set run.dir=heads_lora
check 2 "add --merge" -- export heads_lora never --heads all
run 0 export heads_lora heads_merged --merge --heads all
speculate() { # MODEL
    run 0 generate --model "$1" --tokenizer byte --prompt "the cat" --max-new 12 --device cpu --ignore-eos --speculative --json
    python3 -c "
import json; r = json.loads(open('out').read().splitlines()[-1])
print(r['completions'][0]['tokens'], r['speculative']['accepted'], r['speculative']['drafted'])"
}
[ "$(speculate heads_lora)" = "$(speculate heads_merged)" ] || fail "merged heads draft otherwise than those of the run"
run 0 export lora meta_merged --merge --heads meta
run 0 export lora hf_merged --merge --heads all
[ "$(speculate lora)" = "$(speculate meta_merged)" ] || fail "heads merged into Meta's layout draft otherwise than those of the run"
[ "$(speculate lora)" = "$(speculate hf_merged)" ] || fail "heads merged out of Meta's layout draft otherwise than those of the run"

# Refused.
check 2 "holds 3 prediction heads" -- train "${common[@]}" --set model.path=all_test-llama --set model.mtp.heads=2 --set run.dir=never
check 2 "PEFT knows those of the first head" -- export lora never --heads all
check 2 "ordinary model" -- export plain_test-llama never --heads all
check 2 "--heads meta: the model cannot be written in Meta's layout: the family is not llama" -- export run_test-gpt2 never --heads meta
mkdir pickle && echo '{"dim": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 260, "n_future_tokens": 2}' >pickle/params.json
: >pickle/consolidated.pth
check 2 "is a pickle" "save_file" -- train "${common[@]}" --set model.path=pickle --set model.mtp.heads=2 --set run.dir=never
for bad in '"dim": 63' '"n_heads": 0' '"vocab_size": -1' '"experts": 8' '"use_scaled_rope": true' '"n_future_tokens": 99' \
    '"ffn_dim_multiplier": 1e300' '"norm_eps": "x"'; do
    echo "{\"dim\": 64, \"n_layers\": 4, \"n_heads\": 4, \"vocab_size\": 260, $bad}" | sed 's/"dim": 64, \(.*"dim"\)/\1/;s/"n_heads": 4, \(.*"n_heads"\)/\1/;s/"vocab_size": 260, \(.*"vocab_size"\)/\1/' >pickle/params.json
    check 2 "params.json" -- train "${common[@]}" --set model.path=pickle --set model.mtp.heads=2 --set run.dir=never
done
[ ! -e never ] || fail "what was refused has left a directory"
finish "heads are exported and read back, as Hugging Face and as Meta lay them out"
