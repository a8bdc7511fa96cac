#!/bin/bash
# cli_disk.sh - a run whose checkpoints or export no disk has room for is refused before it begins, and what it will write is
# in the plan. RALO names the program.
. "$(dirname "$0")/check.sh"

# Hundreds of TiB of checkpoint. Memory is said to be there, and is asked for only after the disk.
huge=(--preset llama3-70b --set model.hidden=262144 --set model.ffn=1048576 --set model.layers=30 --set data.seq_len=8
    --set data.source=builtin:random --set train.micro_batch=1 --set train.batch=1 --set train.steps=1 --set train.warmup=0
    --set train.eval_rows=0 --set train.problems=0 --set memory.strategy=manual --set memory.device=1P --set memory.host=1P)
room=$(df --output=avail -B1T . 2>/dev/null | tail -n 1)
if [ "${room:-0}" -gt 40 ]; then
    echo "this disk has room for anything"
    exit 77
fi
check 2 "run.dir runs/huge: " "are free there, a checkpoint takes" TiB run.save_last=false "disk      a checkpoint takes" -- \
    train "${huge[@]}" --set run.dir=runs/huge
check 2 "run.export models/huge: " "are free there, the export takes" "ralo export" "disk      the export takes" -- \
    train "${huge[@]}" --set run.save_last=false --set run.dir=runs/huge --set run.export=models/huge
[ ! -e runs ] && [ ! -e models ] || fail "a refused run has made a directory"

# One has room, as many as are asked for have not: a warning, and the run goes on, here to a trace that cannot be written.
small=(--preset test-llama --set data.source=builtin:grammar --set train.steps=1000000000 --set train.warmup=0 --set run.dir=small)
check 2 "warning: run.dir small: " "at once: 1000000000 checkpoints of 1.4 MiB; make room, lower run.keep" missing/trace.json -- \
    train "${small[@]}" --set train.save_every=1 --set run.keep=all --trace missing/trace.json
check 2 '!warning' "at most 3 in run.dir at once" -- \
    train "${small[@]}" --set train.save_every=1 --set run.keep=2 --trace missing/trace.json

# The plan says it as well: 119616 parameters with m and v in fp32.
check 0 "disk      a checkpoint takes 1.4 MiB, at most 1 in run.dir at once" -- plan --preset test-llama --json
grep -q '"disk": {"checkpoint": 1435392, "checkpoints_at_once": 1, "export": 0}' out || fail "no disk in $(tail -c 200 out)"
check 0 "at most 4 in run.dir at once; the export takes 467.2 KiB" -- plan --preset test-llama --set train.steps=100 \
    --set train.save_every=10 --set run.keep=3 --set run.export=models
check 0 '!disk      ' -- plan --preset test-llama --set run.save_last=false
check 0 "run       runs/none  (without its last step; param_hash" '!saved     ' -- train --preset test-llama --set data.seq_len=32 \
    --set train.steps=2 --set train.eval_rows=0 --set train.problems=0 --set run.save_last=false --set run.dir=runs/none

finish "disks without room are told before a run begins"
