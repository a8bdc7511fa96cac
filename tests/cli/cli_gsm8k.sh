#!/bin/bash
# cli_gsm8k.sh - reinforcement learning on gsm8k with the reward numeric, from end to end: a small model that has learned to write a number
# earns rewards, learns from them and is evaluated on held-out problems. RALO_GSM8K: a directory with train.jsonl of gsm8k. RALO names the
# program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it writes answers and reads metrics.jsonl"
[ -n "${RALO_GSM8K:-}" ] || { echo "RALO_GSM8K names no directory with train.jsonl of gsm8k"; exit 77; }

# Questions that fit a row, each with the number alone as its answer: what a model of this size learns of the form in seconds.
python3 - "$RALO_GSM8K" <<'END' || die "the data could not be read"
import json, sys
with open("form.jsonl", "w") as out:
    for line in open(sys.argv[1] + "/train.jsonl"):
        r = json.loads(line)
        if len(r["question"].encode()) <= 120:
            print(json.dumps({"prompt": r["question"], "completion": r["answer"].split("####")[1].strip()}), file=out)
END
run 0 train --preset test-llama --data form.jsonl --set data.tokenizer=byte --set data.seq_len=160 --set data.pack=false --set train.micro_batch=8 \
    --set train.steps=60 --set train.lr=0.01 --set train.eval_rows=0 --set run.dir=form --set run.export=model --set run.device=cpu
# A number counts that is off by less than nine tenths of the right one: without this, a model that cannot reason earns nothing.
for loss in rloo grpo; do
    run 0 train --set model.path=model --set train.task=rloo --set rl.loss=$loss --set data.source="$RALO_GSM8K/train.jsonl" --set data.tokenizer=byte \
        --set data.seq_len=160 --set rl.max_completion=8 --set rl.skip_long=true --set rl.prompts=8 --set rl.k=8 --set reward.list=numeric \
        --set reward.tolerance=0.9 --set train.steps=4 --set train.lr=0.001 --set train.eval_rows=8 --set rl.eval_k=4 --set run.dir=$loss --set run.device=cpu
    cat out err | grep -q 'prompts leave no room .* are left out' || fail "$loss: prompts that are too long are not counted"
    python3 - $loss <<'END' || fail "$loss: not as expected"
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1] + "/metrics.jsonl")]
texts = [json.loads(l) for l in open(sys.argv[1] + "/completions.jsonl")]
steps, evals = [l for l in lines if "train/loss" in l], [l for l in lines if "val/reward" in l]
if len(steps) != 4 or any(l["reward_unscorable"] or l["reward_failed"] for l in steps): sys.exit("a problem has no answer")
if not any(0 < l["reward"] < 1 and l["train/grad_norm"] > 0 for l in steps): sys.exit(f"nothing to learn: {[l['reward'] for l in steps]}")
if not evals or not 0 <= evals[-1]["val/pass_rate"] <= evals[-1]["val/pass_at_k"] <= 1: sys.exit(f"evaluation: {evals}")
if len(texts) != 4 * 8 or {l["reward"] for l in texts} - {0, 1}: sys.exit(f"{len(texts)} completions")
END
done
finish "gsm8k: prompts, rewards, updates and evaluation from end to end"
