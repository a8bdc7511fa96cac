#!/bin/bash
# cli_timeline.sh - plan --timeline and generate --plan --timeline: the picture, its name in --json, and what is refused.
# RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
# picture CODE FILE TEXT... -- ARGUMENTS: exit code, is FILE there afterwards (-: none), and texts in stderr or stdout
picture() {
    local code=$1 file=$2 texts=()
    shift 2
    while [ "$1" != -- ]; do texts+=("$1") && shift; done
    shift
    rm -f ./*.svg
    "$RALO" "$@" >out 2>err
    local got=$?
    [ $got = "$code" ] || fail "ralo $*: exit code $got, expected $code: $(tail -n 1 err)"
    [ "$(ls | grep svg | paste -sd ' ')" = "${file#-}" ] || fail "ralo $*: left $(ls | grep svg), expected '$file'"
    for text in "${texts[@]}"; do cat out err | grep -qF -- "$text" || fail "ralo $*: '$text' is not in: $(tail -n 1 err)"; done
}
whole() { [ "$(head -c 5 "$1")" = "<svg " ] && [ "$(tail -n 1 "$1")" = "</svg>" ] || fail "$1 is not one SVG"; }

tiny=(--preset test-llama --set data.seq_len=32 --set train.micro_batch=2)
picture 0 a.svg '"timeline": "a.svg"' -- plan "${tiny[@]}" --timeline a.svg --json && whole a.svg
grep -q "recompute none; nothing offloaded" a.svg || fail "a.svg does not name the strategy"
picture 0 a.svg -- plan "${tiny[@]}" --timeline a.svg --set memory.strategy=manual --set memory.recompute=full \
    --set memory.offload.states=host && whole a.svg
grep -q "recompute full; states on host" a.svg || fail "a.svg does not name what was set"
picture 3 a.svg "does not fit" -- plan "${tiny[@]}" --timeline a.svg --device-memory 8K && whole a.svg
picture 2 - "'a.png'" ".svg" -- plan "${tiny[@]}" --timeline a.png
picture 2 - "none/a.svg" "No such file" -- plan "${tiny[@]}" --timeline none/a.svg
picture 2 - "--timeline" "found ''" -- plan "${tiny[@]}" --timeline=
picture 2 - "--timeline" "--world 4" -- plan "${tiny[@]}" --timeline a.svg --world 4
picture 2 - "add --plan" -- generate --model run --prompt x --timeline a.svg

"$RALO" train "${tiny[@]}" --set train.steps=1 --set train.eval_rows=0 --set train.problems=0 --set run.dir=run \
    >out 2>err || fail "train: $(tail -n 1 err)"
picture 0 a.svg '"timeline": "a.svg"' -- generate --model run --plan --batch 4 --context 64 --timeline a.svg --json && whole a.svg
for part in prefill decode cache; do grep -q "$part" a.svg || fail "the picture of a generation has no $part"; done
picture 2 - "none/a.svg" "No such file" -- generate --model run --plan --timeline none/a.svg --json
[ -s out ] && fail "a picture that was not written is named in --json: $(cat out)"

finish "drawn, named and refused as it should be"
