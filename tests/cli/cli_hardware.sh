#!/bin/bash
# cli_hardware.sh - predictions from the command line: the machine is chosen, measured, named in the plan, or refused.
# RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
export XDG_CACHE_HOME="$work/cache"
tiny=(--preset test-llama --set data.seq_len=24 --set train.micro_batch=2)

# The tables that the guides quote are those that bench/tables makes now.
RALO=$RALO python3 "$project/bench/tables" 7b-4 --plan >table || fail "bench/tables: $(tail -n 2 table)"
python3 - "$project" <<'P' || fail "docs/guide/choose.md or README.md quotes other numbers than bench/tables 7b-4: $(cat table)"
import re, sys
rows = [l.split() for l in open("table") if re.match("DDP|ZeRO", l)]
held, total = (", ".join("%.0f" % float(r[k]) for r in rows) for k in (8, 11))
for page in "docs/guide/choose.md", "docs/guide/ko/choose.md", "README.md", "README_KO.md":
    text = open(f"{sys.argv[1]}/{page}").read()
    assert held in text, (page, held)
    assert "README" not in page or total in text, (page, total)
P

check 2 "'h300'" "h200, h100" -- plan "${tiny[@]}" --hardware h300
check 2 missing.yaml -- plan "${tiny[@]}" --hardware missing.yaml
printf 'base: h200\ndevice.memroy: 1G\n' >wrong.yaml
check 2 wrong.yaml:2 "did you mean 'device.memory'" -- plan "${tiny[@]}" --hardware wrong.yaml
check 2 --world "'1'" -- plan "${tiny[@]}" --world 1
check 2 --world "'many'" -- plan "${tiny[@]}" --world many
check 2 --world "'4x'" -- plan "${tiny[@]}" --world 4x
check 2 "takes no value" -- plan "${tiny[@]}" --program=yes
check 2 no-such-dir --path -- devices --measure here.yaml --path no-such-dir
[ ! -e here.yaml ] || fail "a refused measurement left a file"
check 2 --host-only --measure -- devices --host-only
check 2 "here.yaml" "No such file" "without --host-only" -- devices --measure here.yaml --host-only --set run.device=cpu
check 2 --path "needs --measure" -- devices --path .
# What cannot be written is refused before half a minute of measuring.
check 2 "no-such-dir/here.yaml" "No such file" "!measuring" -- devices --measure no-such-dir/here.yaml
check 2 "'$work' is a directory" "!measuring" -- devices --measure "$work"

# A description that lacks a number predicts no time: everything that would say one says which, and how to add it.
lacks="the description of rtx-4090 has no link.network_gb_per_s; plan with --hardware FILE.yaml"
check 0 "No time is predicted: $lacks" "no time is predicted, so the first of them" "predicted nothing: $lacks" "!the fastest of them" "!nan" -- \
    plan "${tiny[@]}" --hardware rtx-4090 --set parallel.data=16
check 0 "no time, where none is given: $lacks" -- plan "${tiny[@]}" --hardware rtx-4090 --world 16
"$RALO" plan "${tiny[@]}" --hardware rtx-4090 --world 16 --json >out 2>err || fail "plan --world: $(tail -n 1 err)"
holds 'r["world"]["missing"] == "link.network_gb_per_s" and "link.network_gb_per_s" in r["chosen"]["answer"]'
printf 'base: rtx-4090\nlink.network_gb_per_s: 10\n' >network.yaml
check 0 "the fastest of them" "tokens/s" "!no time" "!No time" -- plan "${tiny[@]}" --hardware network.yaml --set parallel.data=16
sed 's/^name:.*/name: mine/; /^base/d; /network_gb/d' <("$RALO" devices --hardware rtx-4090) >mine.yaml
check 0 "the description of mine has no link.network_gb_per_s; add it to the file" -- plan "${tiny[@]}" --hardware ./mine.yaml --set parallel.data=16

# The estimate, then a description of another machine: its memory is the limit.
"$RALO" plan "${tiny[@]}" --json >out 2>err || fail "plan: $(tail -n 1 err)"
holds 'r["step_ms"] > 0 and "estimated" in r["prediction"]["source"]'
grep -q '^predicted ' err || fail "plan does not print its prediction"
"$RALO" plan "${tiny[@]}" --hardware h200 --json >out 2>err || fail "plan --hardware h200: $(tail -n 1 err)"
holds 'r["prediction"]["hardware"] == "h200" and abs(sum(r["prediction"]["op_ms"].values()) - r["step_ms"]) < 1e-6'
"$RALO" devices --hardware h200 >mine.yaml || fail "devices --hardware"
sed -i 's/^device.memory: .*/device.memory: 1M/; s/^name: .*/name: mine/' mine.yaml
"$RALO" plan "${tiny[@]}" --hardware mine.yaml --json >out 2>err
[ $? = 3 ] || fail "a device of 1 MiB is large enough: $(tail -n 1 err)"
holds 'r["prediction"]["hardware"] == "mine" and not r["fits"]'

# A measurement in the cache is used when it is of this machine and this number of threads, and only then.
"$RALO" devices --json >out 2>err || fail "devices: $(tail -n 1 err)"
name=$(python3 -c 'import json; print(json.loads(open("out").read().splitlines()[-1])["name"])')
mkdir -p cache/ralo
{ printf 'base: cpu-2\nsource: from a test\n'; python3 -c 'import json, sys; print("name:", json.dumps(sys.argv[1][:40] + ", 3 threads"))' "$name"; } >cache/ralo/hardware.yaml
"$RALO" plan "${tiny[@]}" --set run.threads=3 --json >out 2>err || fail "plan with a measurement: $(tail -n 1 err)"
holds 'r["prediction"]["source"] == "from a test"'
"$RALO" plan "${tiny[@]}" --set run.threads=2 --json >out 2>err || fail "plan with other threads: $(tail -n 1 err)"
holds '"estimated" in r["prediction"]["source"]'
echo 'nonsense: 1' >cache/ralo/hardware.yaml
"$RALO" plan "${tiny[@]}" --json >out 2>err || fail "an unreadable measurement stopped plan"
grep -q 'not used.*nonsense' err || fail "an unreadable measurement is not named: $(tail -n 1 err)"
holds '"estimated" in r["prediction"]["source"]'

# Tables for many ranks, and the prediction beside the measured time of a run.
"$RALO" plan --preset llama2-7b --world 8 --hardware h100 --set data.seq_len=512 --set train.micro_batch=1 --json >out 2>err ||
    fail "plan --world: $(tail -n 1 err)"
holds '[l["name"] for l in r["world"]["layouts"]] == ["DP8", "TP4 PP2", "TP2 PP4", "TP2 PP2 SP2"] and r["precision"] == "bf16"'
grep -q 'does not fit' err && grep -q ' fits' err || fail "the tables do not say what fits"
"$RALO" train "${tiny[@]}" --set train.steps=2 --set train.problems=0 --set train.eval_rows=0 --set run.dir=run --hardware cpu-2 --json >out 2>err ||
    fail "train: $(tail -n 1 err)"
holds 'r["predicted_step_ms"] > 0 and r["step_ms"] > 0'
grep -q '^time      a step took .* predicted (.* ms) for cpu-2' err || fail "train does not compare: $(tail -n 3 err)"

# The first line is the answer: what it says stands in the plan, and a change that it names is at least as fast as it says.
python3 -c '
import json
for i in range(710):
    print(json.dumps({"prompt": "a" * (i % 50 + 3), "completion": "b" * (i * 7 % 150 + 3)}))' >records.jsonl
big=(--preset llama3-8b --hardware rtx-4090 --set data.source=records.jsonl --set data.tokenizer=byte --set train.micro_batch=16)
"$RALO" plan "${big[@]}" --set precision=bf16 --set train.epochs=3 --json >out 2>err || fail "answer: $(tail -n 1 err)"
grep -q "^$(python3 -c 'import json; print(json.load(open("out"))["answer"])')\$" <(sed -n '/^Fits/p' err) || fail "the answer as JSON is another"
head -n 1 err | grep -q 'Fits: [0-9.]* of 23.0 GiB on the GPU, [0-9.]* of 128.0 GiB of host RAM (assumed), with bf16, rows of [0-9]* tokens and micro-batches of 16 rows. Predicted [0-9,]* tokens/s; 3 epochs of [0-9]* records in ' ||
    fail "answer: $(head -n 1 err)"
holds 'r["limits"] == {"device": 23 << 30, "host": 128 << 30, "together": None, "host_assumed": True}'
holds 'abs(r["run"]["epochs"] - 3) < 0.1 and r["run"]["per_epoch"] <= r["data"]["n"] == 710 and r["run"]["unit"] == "records"'
holds 'abs(r["run"]["seconds"] - r["run"]["steps"] * r["step_ms"] / 1e3) < 1e-6 and r["fits"]'
holds 'r["faster"]["settings"] == "precision=bf16_sr" and r["faster"]["at_most"] and r["faster"]["step_ms"] < 0.95 * r["step_ms"]'
bound=$(python3 -c 'import json; print(json.load(open("out"))["faster"]["step_ms"])')
"$RALO" plan "${big[@]}" --set precision=bf16_sr --json >out 2>err || fail "the faster one: $(tail -n 1 err)"
holds "r['fits'] and r['step_ms'] <= 1.0001 * $bound"
small=(--preset gpt2 --hardware rtx-4090 --set memory.strategy=manual --set precision=bf16_sr --set data.seq_len=1024 --set model.layers=4)
"$RALO" plan "${small[@]}" --set train.micro_batch=1 --set train.accumulation=16 --json >out 2>err
holds 'r["faster"]["settings"] == "train.micro_batch=2, train.accumulation=8" and not r["faster"]["at_most"]'
bound=$(python3 -c 'import json; print(json.load(open("out"))["faster"]["step_ms"])')
"$RALO" plan "${small[@]}" --set train.micro_batch=2 --set train.accumulation=8 --json >out 2>err
holds "abs(r['step_ms'] - $bound) < 1e-9"
check 3 -- plan --preset gpt2 --hardware rtx-4090 --set memory.device=2G --set memory.strategy=manual
head -n 1 out | grep -q '^Does not fit with fp32, rows of 1,024 tokens and micro-batches of 1 row: it needs .* GiB, memory.device is 2.0 GiB. Fits with: --set ' || fail "answer: $(head -n 1 out)"
check 3 '!(null)' "error: arithmetic-tiny does not fit: the host has 1.0 MiB of memory, and " -- plan "${tiny[@]}" --preset arithmetic-tiny \
    --hardware rtx-4090 --set memory.offload.states=host --set memory.strategy=manual --set memory.host=1M
head -n 1 out | grep -q '^Does not fit with fp32, rows of 24 tokens and micro-batches of 2 rows: the host has 1.0 MiB of memory, and .* would be enough. ' || fail "answer: $(head -n 1 out)"

# A count of devices is that many ranks; the commands that start them repeat what was given.
echo 'train: {steps: 3}' >"my run.yaml"
check 0 "world     8 ranks" "launch    ralo train --ranks 8 --preset test-llama --set data.seq_len=24 --set train.micro_batch=2 --set precision=fp32" \
    "          srun --mpi=pmix --nodes=1 --ntasks-per-node=8 --gpus-per-node=8 ralo train --preset test-llama" \
    -- plan "${tiny[@]}" --hardware 8xH100-80GB
check 0 "launch    mpirun -n 16 --hostfile hosts --map-by ppr:4:node --bind-to none ralo train 'my run.yaml' --preset test-llama" "srun --mpi=pmix --nodes=4 --ntasks-per-node=4" \
    -- plan "my run.yaml" "${tiny[@]}" --hardware=h100x4 --world 16 --json
check 0 "!world  " "!launch" -- plan "${tiny[@]}" --hardware h100
check 0 "!world  " "launch    ralo train --ranks 2 --preset" -- plan "${tiny[@]}" --hardware h100x8 --set parallel.data=2
check 0 "!world  " "planned for one of the 8 devices of h100x8" -- plan "${tiny[@]}" --hardware h100x8 --timeline t.svg
check 0 "not measured" -- plan "${tiny[@]}" --hardware l40s
check 2 "did you mean 'h200'?" -- plan "${tiny[@]}" --hardware h20

# 8 bits are emulated on a processor: said once by the plan and once by the run.
fp8=(--preset test-qwen3 --set run.device=cpu --set precision=fp8)
check 0 -- plan "${fp8[@]}" --json
[ "$(grep -c '^warning: precision fp8 on a CPU is emulated' err)" = 1 ] || fail "plan: no note of fp8 in $(tail -n 3 err)"
grep -q '"notes": \["precision fp8 on a CPU is emulated' out || fail "plan --json: no note of fp8"
check 0 -- train "${fp8[@]}" --set data.source=builtin:grammar --set train.steps=1 --set train.warmup=0 --set train.eval_rows=0 \
    --set train.problems=0 --set run.dir=fp8
[ "$(grep -c 'precision fp8 on a CPU is emulated' err)" = 1 ] || fail "train: not one note of fp8"
check 0 '!emulated' -- plan --preset test-qwen3 --set precision=fp8 --hardware h100
check 0 '!emulated' -- plan --preset test-qwen3 --set precision=bf16
finish "all is as it should be"
