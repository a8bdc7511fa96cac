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
# ---- resumed from its own settings it ends with the same bits
rm -r whole/checkpoints/step-00000020
check 0 "step 14, " "step 20/20" -- train whole/config.yaml --resume auto
[ "$(hash_of)" = "$whole" ] || fail "resumed: $(hash_of), whole: $whole"
# ---- so does its directory alone, wherever it lies now, in the place of CONFIG or with --resume
mv whole moved
rm -r moved/checkpoints/step-00000020
check 0 "resumed from moved/checkpoints/step-00000014" -- train moved
[ "$(hash_of)" = "$whole" ] || fail "as a directory: $(hash_of), whole: $whole"
rm -r moved/checkpoints/step-00000020
check 0 "resumed from moved/checkpoints/step-00000014" -- train --resume moved
[ "$(hash_of)" = "$whole" ] || fail "with --resume: $(hash_of), whole: $whole"
[ ! -e whole ] && [ ! -e runs ] || fail "left behind: $(ls)"
# ---- a run that cannot begin leaves no directory
check 2 "nowhere/trace.json" -- train "${tiny[@]}" --set train.steps=1 --trace nowhere/trace.json
[ ! -e runs ] || fail "a run that did not begin left $(find runs)"
# ---- a model of a directory on a file: bf16, and the micro-batch is left to the plan
run 0 export moved model
check 0 "x 64 tokens x accumulation" ", bf16, " -- plan --set model.path=model --set data.source=qa.jsonl --set train.batch=12
check 0 ", fp32, " -- plan --set model.path=model --set data.source=qa.jsonl --set precision=fp32
# ---- a file to evaluate on: nothing of data.source is held out, and the loss is that of the other file
for i in $(seq 80 95); do echo "{\"question\": \"What is $i plus 10?\", \"answer\": \"The answer is $((i + 10)).\"}"; done >held.jsonl
own=("${tiny[@]}" --set data.eval_fraction=0.05 --set train.schedule=constant --set train.warmup=0 --set train.eval_rows=16 --set train.eval_every=2)
check 0 "64 records to train, 16 held out" "evaluated on held.jsonl" "64 rows of 64 tokens" "eval at step 2  loss" "best so far: val/loss" -- \
    train "${own[@]}" --set data.eval_source=held.jsonl --set train.steps=4 --set train.save_best=loss --set run.dir=held
asked=$(grep -o 'eval at step 4  loss [0-9.]*' err)
# trained on the same rows and evaluated on the last 16 of both files together: the same loss of the same 16 rows
cat qa.jsonl held.jsonl >both.jsonl
run 0 train "${own[@]}" --set data.source=both.jsonl --set data.eval_fraction=0.2 --set train.steps=4 --set run.dir=both
[ "$asked" = "$(grep -o 'eval at step 4  loss [0-9.]*' err)" ] || fail "on a file: $asked, held out: $(grep 'eval at' err)"
# ---- eval has the loss that training had, and keeps what the model wrote
check 0 "right     exact match 0.00 %" "of the right answers" -- eval --model held --data held.jsonl --max-new 2 --threads 1 --samples-out kept.jsonl
LC_ALL=C printf -v loss %.4f "$(grep -o '^loss  *[0-9.]*' out | grep -o '[0-9.]*$')"
[ "$loss" = "${asked##* }" ] || fail "loss of eval $loss, of training ${asked##* }"
[ "$(wc -l <kept.jsonl)" = 16 ] || fail "--samples-out: $(wc -l <kept.jsonl) lines"
grep -q '^{"file":"held.jsonl","line":1,"sample":0,"prompt":"What is 80 plus 10?","completion":".*","expected":"The answer is 90.","answer":.*,"right":false,"stop":"length"}$' kept.jsonl ||
    fail "--samples-out: $(head -n 1 kept.jsonl)"
check 2 "--samples-out: held.jsonl exists, expected a new file" -- eval --model held --data held.jsonl --samples-out held.jsonl
check 2 "data.eval_source 'held.jsonl:0.5': found a weight" -- train "${own[@]}" --set data.eval_source=held.jsonl:0.5
check 2 "data.source: found no file nix.jsonl" -- train "${own[@]}" --set data.eval_source=nix.jsonl
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
# ---- what cannot be
check 2 "train.epochs (2, given by the command line) and train.steps (3, given by" -- train "${tiny[@]}" --set train.epochs=2 --set train.steps=3
check 2 "train.warmup_ratio (0.1) and train.warmup (3) are both given" -- train "${tiny[@]}" --set train.warmup=3 --set train.warmup_ratio=0.1
check 2 "train.epochs: found 2 with the endless builtin:arithmetic" "set train.steps" -- train --set train.epochs=2
check 2 "train.epochs: found 2, and data.source nix.jsonl is not there" -- plan --set train.epochs=2 --set data.source=nix.jsonl
finish "epochs, warmup as a share, a file to evaluate on, early stopping, and runs that go on"
