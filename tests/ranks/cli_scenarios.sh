#!/bin/bash
# cli_scenarios.sh - the strategy for one rank and many, short rows and long ones, as the cost model has it; what is given by
# hand wins; and a run of 16K tokens on four ranks that chose by themselves. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

plan() { run 0 plan --json "$@"; }
gpu=(--hardware h100 --set precision=bf16 --set train.micro_batch=1)

# One rank and a long row: what does not fit waits on the host.
plan "${gpu[@]}" --preset qwen2.5-7b --set data.seq_len=16384
holds 'r["fits"] and r["strategy"]["offload"]["states"] == "host" and "zero" not in r["strategy"]'

# A limit between two rungs of recompute: the heavier one in as few layers as it takes, faster than in all of them.
between=(--hardware h200 --preset qwen2.5-1.5b --set precision=bf16_sr --set data.seq_len=1024 --set train.micro_batch=16
    --device-memory 24G)
plan "${between[@]}" --set memory.offload.states=none --set memory.offload.grads=none --set memory.offload.params=none \
    --set memory.offload.activations=none
holds 'r["fits"] and r["strategy"]["recompute"].startswith("mix:") and r["memory"]["device"]["planned"] > 22 << 30'
mixed=$(python3 -c 'import json; r = json.load(open("out")); print(r["strategy"]["recompute"], r["memory"]["device"]["planned"], r["step_ms"])')
holds 'all(c["step_ms"] >= r["step_ms"] for c in r["candidates"] if c["fits"] and not c["recompute"].startswith("mix:"))'
set -- $mixed
plan "${between[@]}" --set memory.strategy=manual --set memory.recompute="$1" # as chosen, so by hand
holds "r['memory']['device']['planned'] == $2 and abs(r['step_ms'] / $3 - 1) < 1e-9"

# All fits on a GPU: what costs next to nothing is computed again, and said. By hand, or on cores, everything is kept.
fits=(--hardware h200 --preset qwen2.5-1.5b --set precision=bf16 --set data.seq_len=1024 --set train.micro_batch=32)
plan "${fits[@]}" --set memory.recompute=none
kept=$(python3 -c 'import json; r = json.load(open("out")); print(r["step_ms"], r["memory"]["device"]["planned"])')
holds 'r["strategy"]["recompute"] == "none"'
plan "${fits[@]}"
set -- $kept
holds "r['strategy']['recompute'].startswith('mix:norms,') and r['step_ms'] < 1.01 * $1 and r['memory']['device']['planned'] < 0.9 * $2"
grep -q "it fits without; this saves .* GiB for 0\.[0-9] % of the step's time" err || fail "the choice is not said in words: $(cat err)"
plan "${fits[@]}" --set memory.strategy=manual
holds "r['strategy']['recompute'] == 'none' and r['memory']['device']['planned'] == $2"
plan --preset test-llama --device-memory 1G
holds 'r["strategy"]["recompute"] == "none"'

# Everything on the host, the embedding where there is room for it: both ends of a micro-batch need it.
ends=(--hardware h200 --preset qwen2.5-14b --set precision=bf16_sr --set data.seq_len=1024 --set train.micro_batch=12
    --set train.accumulation=42 --device-memory 55G --set memory.host=118G)
plan "${ends[@]}"
holds 'r["fits"] and r["strategy"]["keep_embed"] and r["strategy"]["offload"]["params"] == "host"'
ms=$(python3 -c 'import json; print(json.load(open("out"))["step_ms"])')
plan "${ends[@]}" --set memory.offload.keep_embed=false
holds "not r['strategy']['keep_embed'] and r['step_ms'] > 1.01 * $ms"

# A limit at which some states do not fit: those of the first layers stay, as many as there is room for.
some=(--hardware h200 --preset qwen2.5-7b --set precision=bf16_sr --set data.seq_len=1024 --set train.micro_batch=4
    --set train.accumulation=2 --device-memory 50G)
plan "${some[@]}"
holds 'r["fits"] and r["strategy"]["offload"]["states"] == "host" and 0 < r["strategy"]["keep_states"] < 28'
holds 'r["candidates"][0]["keep_states"] == r["strategy"]["keep_states"]'
grep -q "states on host except states of the first [0-9]* layers" err || fail "the choice is not said in words: $(cat err)"
ms=$(python3 -c 'import json; print(json.load(open("out"))["step_ms"])')
plan "${some[@]}" --set memory.offload.keep_states=0
holds "r['strategy']['keep_states'] == 0 and r['step_ms'] > 1.2 * $ms"
# So chosen and run: within the limit, with the bits of the run that has room for all.
some=(--preset test-llama --set model.layers=24 --set data.seq_len=32 --set memory.recompute=none --set train.steps=3
    --set train.problems=0 --set train.eval_rows=2 --set memory.offload.params=none --set memory.offload.grads=none
    --set memory.offload.activations=none)
run 0 train "${some[@]}" --set memory.offload.states=host --set run.dir=no-states --json
least=$(python3 -c 'import json; print(json.load(open("out"))["memory"]["device"]["peak"])')
run 0 train "${some[@]}" --device-memory 1G --set run.dir=all-states --json
set -- $(python3 -c 'import json; r = json.load(open("out")); print(r["param_hash"], r["memory"]["device"]["peak"])')
run 0 train "${some[@]}" --device-memory $((($2 + least) / 2)) --set run.dir=some-states --json
holds "r['param_hash'] == '$1' and 0 < r['strategy']['keep_states'] < 24 and r['strategy']['offload']['states'] == 'host'"
holds "r['memory']['device']['peak'] == r['memory']['device']['planned'] <= ($2 + $least) / 2"

# Many ranks and short rows: gradients and states are cut, nothing waits on the host, nobody shares a row.
plan "${gpu[@]}" --preset llama2-7b --set data.seq_len=1024 --set parallel.data=8
holds 'r["fits"] and r["strategy"]["zero"] == 2 and r["strategy"]["sequence"] == 1'
holds 'set(r["strategy"]["offload"].values()) == {"device"} and "norms" in r["strategy"]["recompute"]'
# Less memory: each rank's part goes to the host, and that alone.
plan "${gpu[@]}" --preset llama2-7b --set data.seq_len=1024 --set parallel.data=8 --device-memory 12G
holds 'r["fits"] and r["strategy"]["zero"] >= 2 and r["strategy"]["offload"]["states"] == "host"'
holds 'r["memory"]["host"]["planned"] < 3 * 12 * 6.8e9 / 8'

# RALO's three strategies, by its own keys, on descriptions of GPUs. One GPU: states on the host. Many and short rows: gradients and states
# are sharded, nothing is moved. Many and rows of 16K tokens: below, where there is a model for it.
printf 'trainer: {params: {auto_memory_strategy: true, sequence_parallelism: false}}\n' >ralo.yaml
own=(ralo.yaml --set precision=bf16 --set train.micro_batch=1)
plan "${own[@]}" --preset qwen2.5-7b --hardware h100 --set data.seq_len=1024
holds 'r["fits"] and r["strategy"]["offload"]["states"] == "host"'
plan "${own[@]}" --preset qwen2.5-1.5b --hardware h100x8 --set parallel.data=8 --set data.seq_len=1024
holds 'r["fits"] and r["strategy"]["zero"] >= 1 and r["strategy"]["sequence"] == 1 and set(r["strategy"]["offload"].values()) == {"device"}'

# A small model whose rows fill the device: 16K tokens in the memory that 4K take on one rank.
mkdir long
cat >long/config.json <<'END'
{"model_type": "llama", "vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
 "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu"}
END
small=(--set model.path=long --set model.init=random --set data.tokenizer=byte --set data.source=builtin:grammar
    --set train.micro_batch=1 --set train.steps=1 --set train.eval_rows=0 --set train.problems=0
    --set run.threads=1 --set precision=fp32)
plan "${small[@]}" --set data.seq_len=4096
one=$(python3 -c 'import json; print(json.load(open("out"))["memory"]["by_role"]["activations"])')
small+=(--set data.seq_len=16384)
# RALO's third strategy: GPUs with too little memory for whole rows share them, and states wait on the host. (So do four of 6 GiB with a 7B, and
# four of 2 GiB with a 0.5B, which takes longer to plan.)
printf 'base: h100\nname: small\ndevices_per_node: 4\ndevice.memory: 24M\n' >small.yaml
check 0 "4 ranks share a row" "grads + states on host" "parallel.sequence = auto  (auto_memory_strategy chooses)" \
    -- plan ralo.yaml "${small[@]}" --set precision=bf16 --hardware small.yaml --world 4 --json
holds 'r["chosen"]["fits"] and r["chosen"]["strategy"]["sequence"] == 4 and r["chosen"]["strategy"]["offload"]["states"] == "host"'
plan "${small[@]}" --world 4 --device-memory 1G # enough: nobody shares
holds 'r["chosen"]["strategy"]["sequence"] == 1 and r["chosen"]["strategy"]["accumulation"] == 1'
shared=("${small[@]}" --set memory.recompute=none) # which of the two is faster depends on the machine
check 0 "4 ranks share a row, recompute none, nothing offloaded" -- plan --json "${shared[@]}" --world 4 --device-memory 130M
holds 'r["chosen"]["strategy"]["sequence"] == 4 and r["chosen"]["strategy"]["accumulation"] == 4'
holds 'r["chosen"]["tokens_per_step"] == 4 * 16384'
holds "r['chosen']['memory']['by_role']['activations'] <= 1.05 * $one" # and q, k, v on their way to other ranks
# By hand: rows stay whole, or a stage is asked for.
for given in parallel.sequence=1 parallel.data=4; do
    check 0 "!share a row" -- plan --json "${small[@]}" --world 4 --device-memory 130M --set $given
    holds 'r["chosen"]["fits"] and r["chosen"]["strategy"]["sequence"] == 1'
done
plan "${small[@]}" --set parallel.data=4 --device-memory 1G --set parallel.zero=3
holds 'r["strategy"]["zero"] == 3'
plan "${small[@]}" --set parallel.data=4 --set memory.strategy=manual
holds 'r["strategy"]["zero"] == 0 and r["strategy"]["sequence"] == 1 and "candidates" not in r'
# What is faster only by moving what fits is named so; who sends no parameters does not count them.
check 0 "%, not relied on: nothing has to be moved)" -- plan --hardware h100
check 0 "!times the parameters" -- plan --preset test-llama --set parallel.sequence=2
check 0 " times the parameters" -- plan --preset test-llama --set parallel.data=2 --set parallel.zero=1
check 2 "--world: found 5, expected a multiple of 2" -- plan --preset test-llama --world 5 --set parallel.tensor=2
check 2 "--world: found 8, expected 4" -- plan --preset test-llama --world 8 --set parallel.tensor=2 --set parallel.data=2
# Data ranks share train.batch as those that run do; stages may take turns, also beside tables of ranks that have none.
batch=(--preset test-llama --set model.layers=4 --set train.micro_batch=2)
plan "${batch[@]}" --world 4 --set train.batch=32
holds 'r["chosen"]["strategy"]["accumulation"] == 4 and r["chosen"]["tokens_per_step"] == 32 * 128'
holds '[l["idle"] for l in r["world"]["layouts"] if l["name"] == "TP2 PP2"] == [1 / 17]' # 16 micro-batches for two stages
plan "${batch[@]}" --world 4 --set train.batch=32 --set parallel.pipeline=2 --set parallel.virtual_stages=2
holds 'r["chosen"]["strategy"]["accumulation"] == 8 and r["chosen"]["strategy"]["virtual_stages"] == 2'
check 2 "train.batch: found 6, expected a multiple of the 4 ranks that share it" -- plan "${batch[@]}" --world 4 --set train.batch=6
# A last stage without layers has none of the values that are kept in them, and says nothing about their names.
large=(--preset test-llama --set model.vocab=4099 --set parallel.pipeline=2 --set train.accumulation=2)
check 0 "!error" -- plan "${large[@]}" --set memory.recompute=keep:attn.y
check 2 "keep names 'attn.z', which no layer has; its values are: norm1" -- plan "${large[@]}" --set memory.recompute=keep:attn.z

# RALO's own keys.
printf 'trainer: {params: {auto_memory_strategy: true, sequence_parallelism: true, zero2_gradient_sharding: true}}\n' >old.yaml
check 0 "-> parallel.sequence = 4" "-> parallel.zero = 2" -- plan old.yaml --preset test-gpt2 --world 4 --set data.seq_len=64 --set precision=bf16

need_ranks
run 0 train --ranks 4 "${shared[@]}" --device-memory 130M --set run.dir=long-run --json
holds 'r["strategy"]["sequence"] == 4 and r["strategy"]["accumulation"] == 4 and r["tokens"] == 4 * 16384'
holds 'all(k["device"]["planned"] == k["device"]["peak"] <= 130 << 20 for k in r["ranks"]) and len(r["ranks"]) == 4'
holds "max(k['by_role']['activations'] for k in r['ranks']) <= 1.05 * $one"
# Ranks that choose agree, also where it is their stage alone, and end with the bits of one rank.
run 0 train --ranks 4 --preset test-llama --set train.micro_batch=1 --set train.steps=2 --set train.eval_rows=0 \
    --set train.problems=0 --set run.dir=four --json
four=$(python3 -c 'import json; r = json.load(open("out")); print(r["param_hash"])')
run 0 train --preset test-llama --set train.micro_batch=1 --set train.accumulation=4 --set train.steps=2 --set train.eval_rows=0 \
    --set train.problems=0 --set run.dir=alone --json
holds "r['param_hash'] == '$four'"
# So they do where only the last resort fits: chunks of the MLP reach every rank.
run 0 train --ranks 2 --preset test-llama --set model.layers=4 --set model.max_positions=2048 --set model.ffn=1024 \
    --set data.seq_len=2048 --set train.micro_batch=1 --set memory.device=24M --set memory.host=1G --set parallel.sequence=1 \
    --set train.steps=1 --set train.eval_rows=0 --set train.problems=0 --set run.dir=tight --json
holds 'r["strategy"]["chunk_tokens"] == 1024'
holds 'all(k["device"]["planned"] == k["device"]["peak"] <= 24 << 20 for k in r["ranks"])'
finish "three scenarios, chosen and run"
