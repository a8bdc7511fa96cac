#!/bin/bash
# cli_rloo.sh - reinforcement learning on many ranks: the completions, rewards and update of one rank, the same bits in every stage of
# ZeRO, and after a stop; what cannot be shared is refused by name. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
common=(--preset test-llama --set train.task=rloo --set data.difficulty=1 --set data.seq_len=32 --set rl.max_completion=8
    --set rl.prompts=4 --set rl.k=4 --set rl.log_prompts=4 --set train.steps=3 --set train.lr=0.003 --set train.warmup=0
    --set train.micro_batch=2 --set train.eval_rows=4 --set reward.list=regex --set 'reward.pattern=[a-z]'
    --set run.threads=1 --set run.bind=false --set run.device=cpu --json)
train() { # DIRECTORY RANKS ARGUMENTS: hash
    local dir=$1 n=$2
    shift 2
    rm -rf "$dir"
    run 0 train --ranks "$n" "${common[@]}" --set run.dir="$dir" "$@"
    python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['param_hash'])"
}
# The first step begins with the same parameters: the same completions, and a gradient that only rounds differently.
compare() {
    python3 - "$1" "$2" <<'END' || fail "$1 and $2: $(cat differences)"
import json, sys
one, two = ([json.loads(l) for l in open(d + "/metrics.jsonl")][0] for d in sys.argv[1:])
with open("differences", "w") as out:
    exact = ["reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "completions/clipped_ratio"]
    wrong = [k for k in exact if one[k] != two[k]]
    close = {"train/loss": 1e-6, "train/grad_norm": 1e-5 * one["train/grad_norm"], "entropy": 1e-6}
    wrong += [k for k, bound in close.items() if not abs(one[k] - two[k]) <= bound]
    if "kl" in one and not abs(one["kl"] - two["kl"]) < 1e-6: wrong.append("kl")
    for k in wrong: print(k, one[k], two[k], file=out)
    texts = [[(x["prompt"], x["completion"]) for x in map(json.loads, open(d + "/completions.jsonl")) if x["step"] == 1]
             for d in sys.argv[1:]]
    if not set(texts[1]) <= set(texts[0]) or len(texts[0]) != 16: wrong.append("completions")
    print(wrong, file=out)
sys.exit(bool(wrong))
END
}
for way in "rloo 0.1 1" "grpo 0.1 2" "reinforce++ 0.1 1" "dapo 0 1"; do
    set -- $way
    sets=(--set rl.mask_truncated=false --set rl.loss="$1" --set rl.beta="$2" --set rl.updates="$3" --set train.steps=$((2 * $3)))
    train one 1 "${sets[@]}" >/dev/null
    # Stages 0 and 1 add micro-batches before ranks, 2 and 3 the other way round.
    for first in 0 2; do
        expected=$(train two 2 "${sets[@]}" --set parallel.zero=$first)
        compare one two
        got=$(train three 2 "${sets[@]}" --set parallel.zero=$((first + 1)))
        [ "$got" = "$expected" ] || fail "$way, ZeRO $((first + 1)) on 2 ranks: $got, $first: $expected"
    done
done
train four 4 --set rl.beta=0.1 >/dev/null
train one 1 --set rl.beta=0.1 >/dev/null
compare one four

# One update from the same completions. With train.eps 1 the first step of AdamW is lr g / (|g| + 1), so parameters differ as gradients
# do: by the order of fp32 sums over a step, here 1e-5 of the largest change, and the rounding of the parameter itself.
for way in "rloo 0.1" "reinforce++ 0.1"; do
    set -- $way
    for n in 1 2 4; do
        rm -rf "model-$n"
        train "update-$n" $n --set rl.loss="$1" --set rl.beta="$2" --set train.steps=1 --set train.eps=1 --set train.weight_decay=0 \
            --set train.lr=0.1 --set run.export="model-$n" >/dev/null
    done
    train before 1 --set rl.loss="$1" --set rl.beta="$2" --set train.steps=1 --set train.lr=1e-9 --set train.weight_decay=0 --set run.export=model-0 >/dev/null
    python3 - <<'END' || fail "$way: the update depends on the number of ranks"
import array, json, struct, sys
def model(n):
    data = open(f"model-{n}/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + size])
    head.pop("__metadata__", None)
    return {k: array.array("f", data[8 + size + v["data_offsets"][0] : 8 + size + v["data_offsets"][1]]) for k, v in head.items()}
before, one, two, four = map(model, (0, 1, 2, 4))
change = max(abs(a - b) for k in one for a, b in zip(one[k], before[k]))
if not change > 1e-5: sys.exit(f"the update changes parameters by {change} at most")
for n, other in (2, two), (4, four):
    for k in one:
        for a, b in zip(one[k], other[k]):
            if not abs(a - b) <= 1e-5 * change + 2.4e-7 * abs(a): sys.exit(f"{n} ranks, {k}: {b}, on one {a}; the largest change is {change}")
END
    rm -rf model-0
done

# A step from which nothing is learned is named, once.
run 0 train --ranks 2 "${common[@]}" --set run.dir=flat --set 'reward.pattern=no such words'
[ "$(cat out err | grep -c "teaches nothing")" = 1 ] || fail "equal rewards are named once: $(tail -n 3 err)"

# Resumed on the same ranks.
expected=$(train whole 2 --set rl.normalize_advantages=true --set train.steps=4)
train parts 2 --set rl.normalize_advantages=true --set train.steps=4 --set train.save_every=2 --set run.keep=9 >/dev/null
rm -rf parts/checkpoints/*4
run 0 train --ranks 2 "${common[@]}" --set run.dir=parts --set rl.normalize_advantages=true --set train.steps=4 --resume auto
got=$(python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['param_hash'])")
[ "$got" = "$expected" ] || fail "resumed on 2 ranks: $got, whole: $expected"

# The best of two ranks is written by both, and exported by one process.
train best 2 --set train.save_best=reward --set train.eval_every=1 --set parallel.zero=2 >/dev/null
grep -q "^best  *best/best  (step [1-3], val/reward " err || fail "the best of two ranks: $(tail -n 3 err)"
run 0 export best/best best-model

refused() { # WORDS ARGUMENTS
    local words=$1
    shift
    run 2 train --ranks 2 "${common[@]}" --set run.dir=no "$@"
    grep -q "$words" err || fail "refused without '$words': $(tail -n 2 err)"
}
refused 'train.task: found rloo with parallel.pipeline 2' --set parallel.pipeline=2
refused 'train.task: found rloo with parallel.sequence 2' --set parallel.sequence=2
refused 'train.task: found rloo with parallel.tensor 2' --set parallel.tensor=2
refused 'rl.prompts: found 3, expected a multiple of the 2 data ranks' --set rl.prompts=3
finish "reinforcement learning on 2 and 4 ranks: as on one"
