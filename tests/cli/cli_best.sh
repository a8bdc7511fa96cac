#!/bin/bash
# cli_best.sh - train.save_best: RUN/best holds the checkpoint whose evaluation was best, also after a resume; generate, eval and export take it
# like a run; what no evaluation reports is refused. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
# A constant learning rate: the parameters after n steps do not depend on how many were planned.
common=(--preset test-llama --set data.difficulty=1 --set data.seq_len=32 --set train.warmup=0 --set train.schedule=constant
    --set train.eval_every=2 --set train.micro_batch=2 --set run.threads=1 --set run.device=cpu --json)
rloo=("${common[@]}" --set train.task=rloo --set rl.max_completion=8 --set rl.prompts=4 --set rl.k=4 --set rl.beta=0 --set train.lr=0.003
    --set reward.list=regex --set 'reward.pattern=[a-z]' --set train.seed=2 --set train.save_best=reward)
# expected_best RUN METRIC max|min: the first step of metrics.jsonl with the best value, as "step value".
expected_best() {
    python3 -c "import json; r = [json.loads(l) for l in open('$1/metrics.jsonl')]; r = [x for x in r if '$2' in x]
b = $3(r, key=lambda x: x['$2']); print(b['step'], b['$2'])"
}
best_of_out() { python3 -c "import json; b = json.loads(open('out').read().splitlines()[-1])['best']; print(b['step'], '%.9g' % b['value'], b['metric'], b['run'])"; }
# same_model A B: the exports of two runs or checkpoints are equal.
same_model() {
    rm -rf export-a export-b
    run 0 export "$1" export-a
    run 0 export "$2" export-b
    cmp -s export-a/model.safetensors export-b/model.safetensors || fail "$1 and $2 hold other parameters"
}

run 0 train "${rloo[@]}" --set train.steps=12 --set run.dir=whole
read -r step value metric dir <<<"$(best_of_out)"
[ "$step $value" = "$(expected_best whole val/reward max)" ] && [ "$metric $dir" = "val/reward whole/best" ] || fail "best of the run: $step $value, expected $(expected_best whole val/reward max)"
[ "$step" -lt 12 ] || die "the last step is the best: the test shows nothing; change its settings"
grep -q "^best  *whole/best  (step $step, val/reward 0\.[0-9]*)" err || fail "the last lines do not name it: $(tail -n 4 err)"
[ "$(ls whole/best/checkpoints)" = "step-$(printf %08d "$step")" ] || fail "in best: $(ls whole/best/checkpoints)"
[ "$(ls whole/checkpoints)" = step-00000012 ] || fail "the last checkpoint: $(ls whole/checkpoints)"
run 0 train "${rloo[@]}" --set train.steps="$step" --set run.dir=short
same_model whole/best short
check 0 "text" -- generate --model whole/best --prompt '1+1=' --max-new 4 --json

# Stopped after the best step and resumed: what is worse does not replace it.
run 0 train "${rloo[@]}" --set train.steps=6 --set run.dir=parts
run 0 train "${rloo[@]}" --set train.steps=12 --set run.dir=parts --resume auto
grep -q "best so far: val/reward .* at step $step, in parts/best" err || fail "resumed: $(grep best err)"
[ "$(best_of_out)" = "$step $value val/reward parts/best" ] || fail "resumed: best is $(best_of_out), expected $step $value"
same_model whole/best parts/best
# By another number the old one says nothing; whatever is there is replaced, although its step is later than the next best.
run 0 train "${rloo[@]}" --set train.steps=14 --set run.dir=parts --resume auto --set train.save_best=val/pass_rate
[ "$(best_of_out | cut -d' ' -f1,3)" = "14 val/pass_rate" ] && [ "$(ls parts/best/checkpoints)" = step-00000014 ] || fail "by another number: $(best_of_out)"
# A run that goes on in another directory has a best of its own.
run 0 train "${rloo[@]}" --set train.steps=8 --set run.dir=other --resume whole/best
[ "$(best_of_out | cut -d' ' -f4)" = other/best ] || fail "in another directory: $(best_of_out)"
run 0 train "${rloo[@]}" --set train.steps=10 --set run.dir=other --resume whole/best
[ "$(ls other/best/checkpoints | wc -l)" = 1 ] || fail "in another directory: $(ls other/best/checkpoints)"

# Of other tasks: a loss falls.
sft=("${common[@]}" --set data.source=builtin:grammar --set train.lr=1 --set train.steps=8 --set train.eval_rows=4)
run 0 train "${sft[@]}" --set run.dir=sft --set train.save_best=loss
[ "$(grep -c '"val/loss"' sft/metrics.jsonl)" = 4 ] || fail "8 steps with an evaluation after every second: $(grep -c '"val/loss"' sft/metrics.jsonl)"
[ "$(best_of_out | cut -d' ' -f1,2)" = "$(expected_best sft val/loss min)" ] || fail "sft: best is $(best_of_out), expected $(expected_best sft val/loss min)"

check 2 "train.save_best: found 'accuracy', expected none or a number that evaluations report: val/reward, val/pass_rate" -- train "${rloo[@]}" --set run.dir=no --set train.save_best=accuracy
check 2 "train.save_best: found 'loss', expected none or a number that evaluations report: val/reward" -- train "${rloo[@]}" --set run.dir=no --set train.save_best=loss
check 2 "train.save_best: found reward with train.eval_every none" -- train "${rloo[@]}" --set run.dir=no --set train.eval_every=none
check 2 "train.save_best: found reward in a run without evaluations" -- train "${rloo[@]}" --set run.dir=no --set train.eval_rows=0
check 2 "train.eval_every: found 3 with train.save_best, expected a multiple of rl.updates (2)" -- \
    train "${rloo[@]}" --set run.dir=no --set train.eval_every=3 --set rl.updates=2 --set train.steps=4
check 2 "train.save_best: found 'reward', expected none or a number that evaluations report: val/loss" -- train "${sft[@]}" --set run.dir=no --set train.save_best=reward
[ ! -e no ] || fail "a refused run made its directory"
finish "the best checkpoint is kept, resumed and used"
