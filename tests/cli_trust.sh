#!/bin/bash
# cli_trust.sh - files, names and directories of others: nothing of them reaches the terminal raw, hangs the program, or is
# copied or written to where it leads. RALO: the program.
. "$(dirname "$0")/check.sh"
need python3

tiny=(train --preset test-llama --set data.seq_len=32 --set train.micro_batch=2 --set train.warmup=0 --set train.eval_rows=0
    --set train.problems=0 --set run.threads=1)

# ---- a checkpoint that is not whole: warned of once, and not counted
check 0 -- "${tiny[@]}" --set train.steps=3 --set train.save_every=1 --set run.keep=all --set run.dir=broken
truncate -s -10 broken/checkpoints/step-00000003/checkpoint.json
check 0 'resumed from broken/checkpoints/step-00000002' -- "${tiny[@]}" --set train.steps=4 --set train.save_every=2 \
    --set run.keep=2 --set run.dir=broken --resume auto
[ "$(grep -c 'is not whole' err)" = 1 ] || fail "a checkpoint that is not whole: $(grep -c 'is not whole' err) warnings"
[ "$(ls broken/checkpoints)" = "$(printf 'step-0000000%d\n' 2 3 4)" ] || fail "keep 2 of 1 2 x3 4: $(ls broken/checkpoints)"
check 0 -- "${tiny[@]}" --set train.steps=2 --set train.save_every=0 --set run.dir=fresh
truncate -s -10 fresh/checkpoints/step-00000002/checkpoint.json
check 0 -- "${tiny[@]}" --set train.steps=1 --set run.dir=fresh
[ "$(grep -c 'is not whole' err)" = 1 ] || fail "a fresh run beside one that is not whole: $(grep -c 'is not whole' err) warnings"
check 0 -- "${tiny[@]}" --set train.steps=2 --resume broken --set run.dir=other
cp -r fresh nothing && truncate -s -10 nothing/checkpoints/step-00000001/checkpoint.json
check 2 'found no whole checkpoint' 'is not whole' -- "${tiny[@]}" --set train.steps=2 --set run.dir=none \
    --resume nothing

# ---- train.problems=2 shows two examples
check 0 -- train --preset test-llama --set data.source=builtin:arithmetic --set data.seq_len=32 --set train.micro_batch=2 \
    --set train.steps=1 --set train.warmup=0 --set train.eval_rows=0 --set train.problems=2 --set run.dir=examples --set run.threads=1
[ "$(grep -ac '  [0-9+]*=' err)" = 2 ] || fail "train.problems=2: $(grep -ac '  [0-9+]*=' err) examples"

finish "nothing of others is trusted"
