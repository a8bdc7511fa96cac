#!/usr/bin/env bash
# cli_numbers.sh - the losses of a frozen model, computed once and kept in the run directory: the bits of the model in memory, a model of
# other sizes, every epoch, resumed and longer runs, and files that are not those of the run. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

base=$TEST_FIXTURES/lora/train_llama
head -c 700 "$TEST_FIXTURES/lora/text.txt" >text.txt # 22 rows: a run of 4 steps x 8 rows begins the second epoch
common=(--set data.source=text.txt --set data.seq_len=32 --set data.eval_fraction=0 --set run.device=cpu --set run.threads=2
        --set train.warmup=0 --set train.lr=0.01 --set train.micro_batch=2 --set train.accumulation=4 --json)
sets=(--set model.path="$base" "${common[@]}" --set train.steps=4)
disk=(--set train.weighting=rho1 --set rho1.reference_on=disk)
last() { python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['$1'])"; }
train() { # HASH ARGUMENTS: of a run in a fresh directory
    local expected=$1
    shift
    rm -rf run
    run 0 train "${sets[@]}" --set run.dir=run "$@"
    [ -z "$expected" ] || [ "$(last param_hash)" = "$expected" ] || fail "$*: $(last param_hash), expected $expected"
}

run 0 train "${sets[@]}" --set run.dir=tuned --set run.export=reference
run 0 train --preset test-gpt2 "${common[@]}" --set train.steps=2 --set run.dir=other --set run.export=other_sizes

# The same bits, with one head and with several, in both precisions, with adapters and without.
for way in "precision=fp32 model.lora.rank=4" "precision=bf16 train.task=mtp model.mtp.heads=3"; do
    more=(--set rho1.reference=reference)
    for s in $way; do more+=(--set "$s"); done
    train "" --set train.weighting=rho1 "${more[@]}"
    train "$(last param_hash)" "${disk[@]}" "${more[@]}"
    grep -q "losses of reference for 22 rows computed" err || fail "nothing was computed: $(cat err)"
done
train "" --set train.weighting=rho1                      # the model that the run begins with
train "$(last param_hash)" "${disk[@]}" --set memory.offload.params=host
check 0 "the larger of the two counts" "numbers of the frozen model take at most" '"frozen": {"path": "reference"' -- \
    plan "${sets[@]}" "${disk[@]}" --set rho1.reference=reference

# Another family and size; a run directory as the reference.
train "" "${disk[@]}" --set rho1.reference=other_sizes
hash=$(last param_hash)
train "$hash" "${disk[@]}" --set rho1.reference=other
check 2 "rho1.reference: other_sizes is gpt2" -- train "${sets[@]}" --set train.weighting=rho1 --set rho1.reference=other_sizes --set run.dir=never

# Stopped, resumed, and resumed from memory; the file is computed once, and again for rows that it lacks.
resumed() { run "${code:-0}" train "${sets[@]}" --set rho1.reference=other_sizes --set run.dir=parts --set train.steps="$1" --resume auto "${@:2}"; }
run 0 train "${sets[@]}" "${disk[@]}" --set rho1.reference=other_sizes --set run.dir=parts --set train.steps=1 --set train.schedule_steps=4
grep -q "for 8 rows computed" err || fail "not only the rows of the run: $(cat err)"
resumed 4 "${disk[@]}"
[ "$(last param_hash)" = "$hash" ] || fail "stopped and resumed: $(last param_hash), not stopped: $hash"
grep -q "for 22 rows computed" err || fail "the rows of a longer run were not computed: $(cat err)"
resumed 5 "${disk[@]}"
grep -q "rows computed" err && fail "computed again"
train "" "${disk[@]}" --set rho1.reference=reference --set train.schedule_steps=5
run 0 train "${sets[@]}" --set train.weighting=rho1 --set rho1.reference=reference --set run.dir=run --set train.steps=5 --resume auto

# Damaged: it is not used, and the run computes its own.
size=$(stat -c %s parts/reference.losses)
printf 'x' | dd of=parts/reference.losses bs=1 seek=$((size - 2)) conv=notrunc status=none
resumed 6 "${disk[@]}"
grep -q "for 22 rows computed" err || fail "a damaged file was used"
grep -q "found numbers that are damaged" err || fail "a damaged file was replaced without a word"
code=2 resumed 7 "${disk[@]}" --set rho1.reference=reference
grep -q "compares with a reference" err || fail "another reference was taken: $(tail -n 2 err)"

# Refused, by key.
check 2 "rho1.reference" vocabulary -- train "${sets[@]}" "${disk[@]}" --set rho1.reference="$TEST_FIXTURES/hf/gpt2_tied" --set run.dir=never
check 2 "rho1.reference_on: found disk" -- train --preset test-llama "${common[@]}" "${disk[@]}" --set run.dir=never
check 2 "no_such_model" -- train "${sets[@]}" "${disk[@]}" --set rho1.reference=no_such_model --set run.dir=never
run 0 train --preset test-llama --set model.hidden=256 --set model.ffn=1024 "${common[@]}" --set train.steps=1 --set run.dir=large
check 3 "rho1.reference" "a forward pass of large needs" -- train "${sets[@]}" "${disk[@]}" --set rho1.reference=large \
    --set memory.strategy=manual --set memory.device=1M --set run.dir=never
[ ! -e never ] || fail "a run that was refused has left a directory"
finish "losses of a frozen model on disk: the bits of the model in memory"
