#!/bin/bash
# cli_words.sh - what people type who know another program: understood where it means something here, else answered with what to write. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
tiny=(--preset test-llama --set data.seq_len=24 --set train.micro_batch=2 --set train.steps=2 --set train.eval_rows=2 --set train.problems=0)

# ---- settings of others, in files and with --set: by meaning, not by letters
check 2 "unknown setting 'save_best'; here it is train.save_best=loss" -- plan --set save_best=true
check 2 "here it is model.lora.rank=16" -- plan --set lora=8
check 2 "here it is model.base=nf4, with model.lora.rank" -- plan --set load_in_4bit=true
check 2 "here it is model.base=int8" -- plan --set model.load_in_8bit=true
check 2 "did you mean 'train.micro_batch'" -- plan --set per_device_train_batch_size=4
check 2 "here it is memory.recompute=full" -- plan --set gradient_checkpointing=true
check 2 "did you mean 'data.seq_len'" -- plan --set max_seq_length=512
check 2 "leave it out" -- plan --set flash_attention=true
check 2 "leave it out" -- plan --set torch_compile=true
check 2 "without worker processes; leave it out" -- plan --set dataloader_num_workers=4
check 2 "ralo has AdamW only" "memory.states" -- plan --set optim=adamw_torch
check 2 "here it is precision=bf16" -- plan --set bf16=true
check 2 "give the file as --deepspeed FILE" -- plan --set train.deepspeed=ds.json
check 2 "here it is memory.offload.states=host" -- plan --set cpu_offload=true
check 2 "did you mean 'parallel.tensor'" -- plan --set tensor_parallel_size=2
check 2 "start N ranks with --ranks N" -- plan --set num_processes=8
check 2 "here it is data.train_on, response or all" -- plan --set train_on_inputs=true
check 2 "here it is rl.k, with train.task=rloo" -- plan --set num_generations=8
check 2 "unknown setting 'beta'; did you mean 'verifiable.beta' or 'preference.beta' or 'rl.beta'?" -- plan --set beta=0.1
check 2 "here it is preference.loss with train.task=preference" "!critic" -- plan --set loss_type=sigmoid
check 2 "here it is rl.loss=dr_grpo, which leaves rewards undivided" -- plan --set scale_rewards=none
check 2 "here it is data.seq_len, a row holds the prompt and its answer" -- plan --set max_prompt_length=512
check 2 "found 'my.jinja'" "tokenizer's directory as chat_template.jinja" -- plan --set data.chat_template=my.jinja
check 2 "ralo does not have this; leave it out" -- plan --set neftune_noise_alpha=5
check 2 "found 'sigmoid'" "preference.loss=dpo" -- plan --set preference.loss=sigmoid
check 2 "here it is train.schedule, cosine, linear, constant or wsd" -- plan --set train.scheduler=cosine
check 2 "here it is data.source, files of JSON Lines or text" -- plan --set dataset=tatsu-lab/alpaca
printf 'model: {preset: test-llama}\nload_in_4bit: true\n' >mixed.yaml
check 2 mixed.yaml:2 "model.base=nf4" -- plan mixed.yaml

# ---- flags of others
check 2 "unknown option '--learning_rate'; give --set train.lr=VALUE" -- train --learning_rate 1e-4
check 2 "give --set train.micro_batch=VALUE" -- train --per_device_train_batch_size 4
check 2 "give --set memory.recompute=full" -- train --gradient-checkpointing
check 2 "give --set precision=bf16" -- plan --bf16
check 2 "'--load-in-4bit'; give --set model.base=nf4" -- train --load-in-4bit
check 2 "--ranks N" -- train --nproc_per_node 4
check 2 "did you mean '--preset'" -- train --presett gpt2
check 2 "expected one of them" -- plan mixed.yaml --config mixed.yaml
check 2 "model.lora.rank: found 'many'" "[1, 512]" -- plan --lora many
check 2 "train.lr: found '20'" "(0, 10]" -- plan --lr 20
check 2 "nothing-there" -- plan --model nothing-there

# ---- values of others
check 2 "precision: found 'bfloat17', expected one of: fp32, bf16" -- plan --set precision=bfloat17
check 0 "tokens, bf16" -- plan "${tiny[@]}" --set precision=bfloat16
check 0 "tokens, fp16" -- plan "${tiny[@]}" --set precision=torch.float16
check 0 "tokens, fp32" -- plan "${tiny[@]}" --set precision=float32
check 2 'rl.reward_clip: found [1, 0], expected the smallest reward and then a larger one' -- plan "${tiny[@]}" \
    --set train.task=rloo --set 'rl.reward_clip=[1, 0]'

# ---- flags that are understood
printf 'train: {lr: 0.25}\n' >mine.yaml
check 0 "rank 16" "tokens, fp32" -- plan "${tiny[@]}" --config mine.yaml --lora --out somewhere --data builtin:grammar
check 0 "rank 4" -- train "${tiny[@]}" --lora 4 --lr 1e-3 --dry-run --out never
[ ! -e never ] || fail "--dry-run made the run directory"
check 0 -- train "${tiny[@]}" --data builtin:grammar --lr 1e-3 --lora=8 --out run --quiet
[ ! -s err ] && [ ! -s out ] || fail "--quiet printed: $(head -n 2 err out)"
check 0 'warning: step ' 'the loss diverges' '!%  step' -- train "${tiny[@]}" --set train.steps=120 --set train.lr=10 --set train.clip=0 \
    --set train.warmup=0 --set run.dir=diverges --quiet
[ -s run/metrics.jsonl ] && grep -q 'lr: 0.001' run/config.yaml && grep -q 'rank: 8' run/config.yaml || fail "--quiet --lr --lora --out: the run has other settings"
check 2 "--max-new-tokens: found '0'" -- generate --model run --prompt x --max-new-tokens 0
check 2 "--top-p: found '2'" -- generate --model run --prompt x --top_p 2 # as Python spells it

finish "every word was understood or answered"
