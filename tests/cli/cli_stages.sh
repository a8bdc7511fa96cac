#!/usr/bin/env bash
# cli_stages.sh - ralo pipeline runs the stages of a file in order, each a run of its own; killed or stopped in the middle it goes on to
# the same parameters; a stage alone is the same run; files that make no sense are refused. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

cat >rho1.yaml <<'P'
pipeline: {dir: made}
model: {preset: test-llama, vocab: 260}
data: {source: "builtin:random", seq_len: 32}
run: {device: cpu, threads: 1}
train: {micro_batch: 2, lr: 0.01, save_every: 5, eval_rows: 2, problems: 0, warmup: 0}
stages:
  reference:
    train: {task: sft, steps: 6}
    model: {lora: {rank: 2}, init: random}
  policy:
    model: {layers: 4, mtp: {heads: 3}}
    train: {task: mtp, weighting: rho1, steps: 2000}
    rho1: {reference: "{reference.model}"}
P
hash_of() { python3 -c "
import json, sys
for s in json.loads(open('out').read().splitlines()[-1])['stages']: print(s['stage'], s['finished_before'], s['param_hash'], s['metrics']['step'])"; }

# Whole, with a table of both.
sed 's/steps: 2000/steps: 12/' rho1.yaml >short.yaml
run 0 pipeline short.yaml --json --set train.schedule_steps=12
hash_of >first
grep -q "short reference" err && grep -q "train/selection_ratio" err || fail "no table: $(tail -n 20 err)"
[ -f made/reference-model/config.json ] && [ ! -e made/policy-model ] || fail "models that are asked for, and no others: $(ls made)"
# Again: nothing is run.
run 0 pipeline short.yaml --json --set train.schedule_steps=12
[ "$(hash_of | sed 's/True/False/')" = "$(cat first)" ] || fail "what had finished is not what it was: $(hash_of)"
! grep -q "step 1/" err || fail "a stage that had finished was run again"
# A stage by itself is the same run.
run 0 train short.yaml --stage reference --dir alone --json --set train.schedule_steps=12
python3 - <<'P' || fail "a stage alone differs"
import json
a = json.loads(open('out').read().splitlines()[-1])['param_hash']
assert a == open('first').read().split()[2], a
P

# A file with one stage is a CONFIG as any other: the run of its only stage.
sed '/^  policy:/,$d' short.yaml >one.yaml
run 0 train one.yaml --dir only --json --set train.schedule_steps=12
python3 - <<'P' || fail "the only stage differs from the same stage in a pipeline"
import json
a = json.loads(open('out').read().splitlines()[-1])['param_hash']
assert a == open('first').read().split()[2], a
P
[ -d only/reference/checkpoints ] || fail "the only stage went elsewhere: $(ls only)"
check 0 "warning: run.dir made/reference already holds a checkpoint" "Fits" -- plan one.yaml # a question about the next run
check 0 "task: mtp" "dir: runs/baseline/policy" "recompute: full" -- train "$project/configs/production/baseline.yaml" \
    --override distributed.fsdp.activation_checkpointing=true --show-config

# Killed in the second stage, and stopped by Ctrl-C: the same command goes on.
sed -i 's/steps: 2000/steps: 200/' rho1.yaml
run 0 pipeline rho1.yaml --dir whole --json
hash_of >whole.txt
for how in KILL INT; do
    "$RALO" pipeline rho1.yaml --dir "$work/$how" >out_$how 2>log_$how &
    pid=$!
    for i in $(seq 600); do
        grep -q "" "$how"/policy/metrics.jsonl 2>/dev/null && [ "$(wc -l <"$how"/policy/metrics.jsonl)" -gt 20 ] && break
        sleep 0.05
    done
    kill -$how $pid
    wait $pid
    code=$?
    [ $how = KILL ] || [ $code = 130 ] || fail "Ctrl-C: exit code $code: $(tail -n 2 log_$how)"
    [ $how = KILL ] || grep -q "the same command continues from there" log_$how || fail "Ctrl-C: $(tail -n 2 log_$how)"
    pid=
    [ ! -e $how/policy.json ] || fail "$how: the stage had ended already"
    for i in $(seq 100); do # the stage outlives a killed pipeline for a moment, in which it saves
        pgrep -f -- "--stage policy --dir $work/$how " >/dev/null || break
        sleep 0.05
    done
    run 0 pipeline rho1.yaml --dir "$work/$how" --json
    hash_of >again.txt
    [ "$(cut -d' ' -f1,3,4 again.txt)" = "$(cut -d' ' -f1,3,4 whole.txt)" ] || fail "$how: $(cat again.txt), not stopped: $(cat whole.txt)"
    [ "$(cut -d' ' -f2 again.txt | tr '\n' ' ')" = "True False " ] || fail "$how: $(cat again.txt)"
done

# The files of configs/ that need no download, and all of them as settings.
for name in baseline rho1; do
    run 0 plan "$project/configs/local/$name.yaml" --stage policy
    check 0 "zero: 3" "recompute: full" -- train "$project/configs/production/$name.yaml" --stage policy --show-config
done

# Refused.
check 2 "finished with other settings (now 'lr: 0.02')" -- pipeline short.yaml --set train.schedule_steps=12 --set train.lr=0.02
check 2 "has stages (reference, policy)" "--stage" -- train short.yaml
# A stage is planned before the model that it compares with is there; what is there is checked.
check 2 "rho1.reference" vocabulary -- plan "$project/configs/local/rho1.yaml" --stage policy \
    --set rho1.reference="$TEST_FIXTURES/hf/gpt2_tied"
check 2 "no such stage" "reference, policy" -- plan short.yaml --stage critic
check 2 "no stages" -- train "$project/configs/grammar.yaml" --stage policy
check 2 "no stages" -- pipeline "$project/configs/grammar.yaml"
check 2 "baseline, rho1, verifiable" -- pipeline nothing
check 2 "about a CONFIG with stages" -- train --stage policy
check 2 "--dir is for one pipeline" -- pipeline rho1.yaml short.yaml --dir x
refused() { # TEXT FILE
    printf '%b' "$2" >bad.yaml
    check 2 "$1" -- pipeline bad.yaml
}
refused "comes before" 'pipeline: {dir: x}\nstages:\n  a: {rho1: {reference: "{b.model}"}}\n  b: {}\n'
refused "comes before" 'pipeline: {dir: x}\nmodel: {path: "{a}"}\nstages:\n  a: {}\n'
refused "bad.yaml:4: reference: found {refrence.model}, expected a stage of this file: reference, policy" \
    'pipeline: {dir: x}\nstages:\n  reference: {}\n  policy: {rho1: {reference: "{refrence.model}"}}\n'
refused "found {reference.modell}" 'pipeline: {dir: x}\nstages:\n  reference: {}\n  policy: {rho1: {reference: "{reference.modell}"}}\n'
refused "pipeline.dir" 'stages:\n  a: {}\n'
refused "expected dir" 'pipeline: {folder: x}\nstages:\n  a: {}\n'
refused "is no name" 'pipeline: {dir: x}\nstages:\n  "../a": {}\n'
refused "a map from names" 'pipeline: {dir: x}\nstages: [a, b]\n'
refused "expected a map of settings" 'pipeline: {dir: x}\nstages:\n  a: 3\n'
refused "unknown setting" 'pipeline: {dir: x}\nstages:\n  a: {train: {stepz: 3}}\n'
refused "run.dir" 'pipeline: {dir: x}\nstages:\n  a: {run: {dir: y}}\n'
[ ! -e x ] || fail "a pipeline that was refused has left a directory"
finish "stages run in order, and go on where they were stopped"
