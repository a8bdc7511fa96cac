#!/bin/bash
# cli_everyday.sh - a fine-tune as people ask for it: epochs, a share of warmup, a file to evaluate on (the loss of `ralo eval` on it is
# that of training), early stopping, and the same bits when it is stopped and goes on. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
export XDG_CACHE_HOME=$work/home
hash_of() { grep -o 'param_hash [0-9a-f]*' err; }

mkdir tokenizer
cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json
for i in $(seq 10 73); do echo "{\"question\": \"What is $i plus 10?\", \"answer\": \"The answer is $((i + 10)).\"}"; done >qa.jsonl
tiny=(--preset test-llama --set model.vocab=352 --set train.micro_batch=4 --set train.eval_rows=2 --set train.lr=0.01
    --set data.tokenizer=tokenizer --set run.threads=1 --set run.bind=false --set data.source=qa.jsonl --set data.pack=false
    --set data.eval_fraction=0)

# ---- 64 rows of one record each, four in a step: 1.2 epochs are 19.2 steps, and begin with 2 of warmup
check 0 "64 rows of 64 tokens per epoch = 16.0 steps" "step 20/20  epoch 1.25" "done      20 steps (1.2 epochs)" -- \
    train "${tiny[@]}" --set train.num_train_epochs=1.2 --set train.warmup_ratio=0.1 --set train.save_every=7 --set run.dir=whole
whole=$(hash_of)
grep -q '"step": 8, .*"train/epoch": 0.5, ' whole/metrics.jsonl || fail "no epoch in metrics.jsonl: $(sed -n 8p whole/metrics.jsonl)"
grep -q '"step": 1, .*"train/learning_rate": 0.005,' whole/metrics.jsonl || fail "warmup is not 2 steps"
check 0 "records of " "64 rows per epoch; 320000 steps are 2e+04 epochs" "320000 steps take about" -- \
    plan "${tiny[@]}" --set train.epochs=20000 --hardware rtx-4090
# ---- twice in an epoch of 16 steps is every 8, once every 16; the last step is evaluated and saved anyway
check 0 "eval at step 8 " "eval at step 16 " "eval at step 20 " "!eval at step 12 " -- train "${tiny[@]}" --set train.epochs=1.2 \
    --set data.eval_source=qa.jsonl --set train.evals_per_epoch=2 --set train.saves_per_epoch=1 --set run.keep=all --set run.dir=rhythm
[ "$(ls rhythm/checkpoints | tr '\n' ' ')" = "step-00000016 step-00000020 " ] || fail "saved: $(ls rhythm/checkpoints)"
rm -r rhythm
run 0 train "${tiny[@]}" --set train.epochs=1 --set train.saves_per_epoch=2 --set run.dir=rhythm --json
grep -Eq '"host": \{"planned": ([0-9]+), "peak": \1\}' out || fail "the copy for background checkpoints is not planned: $(grep -o '"host": {[^}]*}' out)"
rm -r rhythm
check 2 "train.evals_per_epoch (2, given by " ") and train.eval_every (5, given by " "are both given" -- \
    train "${tiny[@]}" --set train.evals_per_epoch=2 --set train.eval_every=5
check 2 "train.saves_per_epoch: found 1 with the endless builtin:random, expected none; set train.save_every" -- \
    train --set data.source=builtin:random --set train.saves_per_epoch=1
echo '{"train": {"eval_every": 4}}' >rhythm.json
check 0 "eval at step 8 " "!eval at step 4 " -- train rhythm.json "${tiny[@]}" --set train.steps=9 --set data.eval_source=qa.jsonl --set train.evals_per_epoch=2 --set run.dir=rhythm
rm -r rhythm
# ---- resumed by its directory alone, wherever that lies now, in the place of CONFIG or with --resume, it ends with the same bits
mv whole moved
rm -r moved/checkpoints/step-00000020
check 0 "resumed from moved/checkpoints/step-00000014" -- train moved
[ "$(hash_of)" = "$whole" ] || fail "as a directory: $(hash_of), whole: $whole"
rm -r moved/checkpoints/step-00000020
check 0 "resumed from moved/checkpoints/step-00000014" -- train --resume moved
check 0 "step 20 of 20 was reached; raise train.epochs to continue" -- train moved
check 0 "step 20 of 20 was reached; raise train.steps to continue" -- train moved --set train.steps=20
[ "$(hash_of)" = "$whole" ] || fail "with --resume: $(hash_of), whole: $whole"
[ ! -e whole ] && [ ! -e runs ] || fail "left behind: $(ls)"
# ---- a run that cannot begin leaves no directory
check 2 "nowhere/trace.json" -- train "${tiny[@]}" --set train.steps=1 --trace nowhere/trace.json
[ ! -e runs ] || fail "a run that did not begin left $(find runs)"
# ---- nor does a long one begin without a word that nothing is saved before its end
check 2 "warning: the run takes about " "is saved at its end only" "train.save_every=" -- train "${tiny[@]}" --set train.steps=100000000 --trace moved
check 2 "!at its end only" -- train "${tiny[@]}" --set train.steps=100000000 --set train.save_every=1000 --trace moved
check 2 "!at its end only" -- train "${tiny[@]}" --set train.steps=10 --trace moved
# ---- a model of a directory on a file: bf16, and the micro-batch is left to the plan
run 0 export moved model
check 0 "x 64 tokens x accumulation" ", bf16, " -- plan --set model.path=model --set data.source=qa.jsonl --set train.batch=12
# Without a length it is three epochs: 64 rows in steps of 16. What the command line says of the length replaces what a file says.
check 0 "64 rows per epoch; 12 steps are 3 epochs" -- plan --model model --data qa.jsonl --set data.pack=false --set data.eval_fraction=0
check 0 "600 steps are " -- plan --model model --data qa.jsonl --set model.init=random
check 0 "600 steps in" -- plan --model model --data not-there.jsonl
check 0 "600 steps are " -- plan --model model --data qa.jsonl --set train.epochs=none
printf 'train: {epochs: 3, warmup: 1}\n' >epochs.yaml
check 0 "12 steps are " -- plan epochs.yaml --model model --data qa.jsonl --set train.steps=12 --set train.warmup_ratio=0.1
check 2 "are both given" -- plan --model model --data qa.jsonl --set train.steps=12 --set train.epochs=3
# Learning rates: of weights that were learnt, of adapters on them, and of preferences
for rate in "5e-05" "0.0002 --set model.lora.rank=2" "1e-06 --set train.task=preference" \
    "1e-05 --set train.task=preference --set model.lora.rank=2" "1e-06 --set train.task=rloo" "0.003 --set model.init=random"; do
    # shellcheck disable=SC2086
    check 0 "  lr: ${rate%% *}" -- train --show-config --model model ${rate#"${rate%% *}"}
done
# ---- a model by its name in the cache of the hub
mkdir -p hub/models--Some-Org--A.model/refs hub/models--Some-Org--A.model/snapshots
printf 'c0ffee\n' >hub/models--Some-Org--A.model/refs/main
export HF_HUB_CACHE=$work/hub
check 2 "no model of that name in the cache" "hf download Some-Org/A.model" "!--preset" -- plan --set model.path=Some-Org/A.model
check 2 "hf download Qwen/Qwen3-0.6B; to plan without it: ralo plan --preset Qwen/Qwen3-0.6B" -- plan --model Qwen/Qwen3-0.6B
mv model hub/models--Some-Org--A.model/snapshots/c0ffee
check 0 "text" -- generate --model Some-Org/A.model --prompt 1 --max-new 1 --json
rm hub/models--Some-Org--A.model/refs/main # the only snapshot counts then
check 0 "model     c0ffee:" -- plan --set model.path=Some-Org/A.model --set data.source=qa.jsonl
printf '../../..' >hub/models--Some-Org--A.model/refs/main
mv hub/models--Some-Org--A.model/snapshots/c0ffee model
check 2 "hf download Some-Org/A.model" -- generate --model Some-Org/A.model --prompt 1
check 2 "hf download Some-Org/B" -- plan --set model.path=Some-Org/B
check 2 "qa.csv:2: found the keys 'a', 'b'" "the first row of a table names its columns" -- train "${tiny[@]}" --set data.source="$(printf 'a,b\n1,2\n' >qa.csv; echo qa.csv)"
# ---- the model that a run began from is gone, with its tokenizer: the run directory is enough for everything that it holds the weights of
from=("${tiny[@]:4}" --set model.path=model --set train.schedule=constant --set train.warmup=0 --set run.dir=on)
run 0 train "${from[@]}" --set train.steps=2
run 0 train "${from[@]}" --set train.steps=2 --set model.lora.rank=2 --set run.dir=adapted
mv model gone && mv tokenizer gone-too && mv on on2 && gzip -c qa.jsonl >qa2.jsonl.gz
check 2 "found no directory model, which the run adapted began from" "only with the same weights" -- train adapted
check 2 "holds adapters only; their base was " "give the base as the model and this run with --adapter" -- generate adapted --prompt 1
check 0 "an adapter with" -- export adapted adapter
check 0 -- generate on2 --prompt "What is 1 plus 10?" --max-new 4
check 0 "loss " -- eval on2 --data qa.jsonl --max-new 4
check 0 "saved     exported" -- export on2 exported
[ -f exported/tokenizer.json ] || fail "the export of a run whose base is gone has no tokenizer"
check 0 "found no directory model, which the run on2 began from; it goes on with what its checkpoint holds (on2/model)" \
    "resumed from on2/checkpoints/step-00000002" -- train on2 --set train.steps=3 --data qa2.jsonl.gz # and its data was packed
on=$(hash_of)
check 2 "found 'on2' and --model gone" -- generate on2 --model gone --prompt 1
mv gone model && mv gone-too tokenizer
run 0 train "${from[@]}" --set train.steps=3 --set run.dir=straight
[ "$(hash_of)" = "$on" ] || fail "without its base: $on, with it: $(hash_of)"
# ---- a directory and a pattern are their files, in the order of their names
mkdir shards
head -n 40 qa.jsonl >shards/b.jsonl
tail -n 24 qa.jsonl >shards/c.jsonl
echo no data >shards/notes.log
one=("${tiny[@]}" --set train.steps=1)
check 0 "weights   random: a preset has the sizes" "64 records to train" -- train "${one[@]}" --set data.source='shards/b.jsonl, shards/c.jsonl' --set run.dir=listed
listed=$(hash_of)
check 0 "64 records to train" -- train "${one[@]}" --set data.source=shards --set run.dir=directory
[ "$(hash_of)" = "$listed" ] || fail "of a directory: $(hash_of), of its files: $listed"
check 0 "64 records to train" -- train "${one[@]}" --set data.source='shards/*.jsonl' --set run.dir=pattern
[ "$(hash_of)" = "$listed" ] || fail "of a pattern: $(hash_of), of its files: $listed"
check 2 "found no file that matches shards/*.json, expected" -- train "${one[@]}" --set data.source='shards/*.json'
check 2 "found the weight 0.5 for the 2 files of shards" -- train "${one[@]}" --set data.source='shards:0.5, qa.jsonl:0.5'
check 2 "found no file of data in the directory tokenizer/none" -- train "${one[@]}" --set data.source="$(mkdir tokenizer/none; echo tokenizer/none)"
# ---- a file to evaluate on: nothing of data.source is held out, and the loss is that of the other file
for i in $(seq 80 95); do echo "{\"question\": \"What is $i plus 10?\", \"answer\": \"The answer is $((i + 10)).\"}"; done >held.jsonl
own=("${tiny[@]}" --set data.eval_fraction=0.05 --set train.schedule=constant --set train.warmup=0 --set train.eval_rows=16 --set train.eval_every=2)
check 0 "64 records to train, 16 held out" "evaluated on held.jsonl" "64 rows of 64 tokens" "eval at step 2  loss" "best so far: val/loss" -- \
    train "${own[@]}" --set data.eval_source=held.jsonl --set train.steps=4 --set train.save_best=loss --set run.dir=held
asked=$(grep -o 'eval at step 4  loss [0-9.]*' err)
# ---- eval has the loss that training had, and keeps what the model wrote
check 0 "right     exact match 0.00 %" "of the right answers" -- eval --model held --data held.jsonl --max-new 2 --threads 1 --samples-out kept.jsonl
LC_ALL=C printf -v loss %.4f "$(grep -o '^loss  *[0-9.]*' out | grep -o '[0-9.]*$')"
[ "$loss" = "${asked##* }" ] || fail "loss of eval $loss, of training ${asked##* }"
[ "$(wc -l <kept.jsonl)" = 16 ] || fail "--samples-out: $(wc -l <kept.jsonl) lines"
grep -q '^{"file":"held.jsonl","line":1,"sample":0,"prompt":"What is 80 plus 10?","completion":".*","expected":"90","answer":.*,"right":false,"stop":"length"}$' kept.jsonl ||
    fail "--samples-out: $(head -n 1 kept.jsonl)"
check 2 "--samples-out: held.jsonl exists, expected a new file" -- eval --model held --data held.jsonl --samples-out held.jsonl
check 2 "data.eval_source 'held.jsonl:0.5': found a weight" -- train "${own[@]}" --set data.eval_source=held.jsonl:0.5
check 2 "data.eval_source: found no file nix.jsonl" -- train "${own[@]}" --set data.eval_source=nix.jsonl
check 2 "data.eval_source: found held.jsonl beside builtin:arithmetic" -- train --set data.eval_source=held.jsonl
# ---- early stopping, also across a stop in between
worse=("${own[@]}" --set data.eval_source=held.jsonl --set train.lr=0.5 --set train.patience=2)
check 0 "stopped after step " "val/loss has not been better than " "(train.patience)" -- train "${worse[@]}" --set train.steps=60 --set run.dir=early
early=$(hash_of) step=$(grep -o 'done      [0-9]*' err | grep -o '[0-9]*$')
[ "$step" -lt 60 ] || fail "it was not stopped: $step"
check 0 "!stopped after" -- train "${worse[@]}" --set train.steps=$((step - 1)) --set run.dir=parts
check 0 "stopped after step $step of 60" -- train "${worse[@]}" --set train.steps=60 --set run.dir=parts --resume auto
[ "$(hash_of)" = "$early" ] || fail "stopped early in two parts: $(hash_of), in one: $early"
check 2 "train.patience: found 2 with train.eval_every none" -- train "${worse[@]}" --set train.eval_every=none
# ---- debug messages for those who ask
export RALO_CUDA_PLUGIN=none
check 0 "debug: no GPU is used: " -- plan --verbose
check 0 "!debug: " -- plan
unset RALO_CUDA_PLUGIN
check 2 "train: --quiet and --verbose contradict each other; leave one out" -- train --quiet --verbose
# ---- what cannot be
check 2 "train.epochs (2, given by the command line) and train.steps (3, given by" -- train "${tiny[@]}" --set train.epochs=2 --set train.steps=3
check 2 "train.warmup_ratio (0.1) and train.warmup (3) are both given" -- train "${tiny[@]}" --set train.warmup=3 --set train.warmup_ratio=0.1
check 2 "train.epochs: found 2 and no data; give --data FILE" "set train.steps" "endless builtin:arithmetic" -- train --set train.epochs=2
check 0 "train.epochs: found 2, which cannot be counted in steps, as data.source nix.jsonl is not there; planned 600 steps" \
    -- plan --set train.epochs=2 --set train.evals_per_epoch=3 --set data.source=nix.jsonl
finish "epochs, warmup as a share, a file to evaluate on, early stopping, and runs that go on"
