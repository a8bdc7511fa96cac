#!/bin/bash
# cli_disk.sh - a run whose checkpoints or export no disk has room for is refused before it begins, and what it will write is
# in the plan. RALO names the program.
# A disk without room is a small tmpfs, which takes a mount namespace of its own.
if [ -z "${OWN_MOUNTS-}" ] && unshare -rm true 2>/dev/null; then
    OWN_MOUNTS=yes exec unshare -rm bash "$0"
fi
. "$(dirname "$0")/../harness/check.sh"

if [ -n "${OWN_MOUNTS-}" ] && mkdir tight && mount -t tmpfs -o size=256k none tight 2>/dev/null; then
    wide=(--preset test-llama --set data.seq_len=32 --set train.micro_batch=2 --set train.steps=1 --set train.warmup=0
        --set train.eval_rows=0 --set train.problems=0)
    check 2 "run.dir tight/run: " "are free there, a checkpoint takes" MiB run.save_last=false "disk      a checkpoint takes" -- \
        train "${wide[@]}" --set run.dir=tight/run
    check 2 "run.export tight/model: " "are free there, the export takes" "ralo export" "disk      the export takes" -- \
        train "${wide[@]}" --set run.save_last=false --set run.dir=tight/run --set run.export=tight/model
    if command -v mpirun >/dev/null; then # told once, and no rank makes a directory
        check 2 "run.dir tight/run: " "are free there, a checkpoint takes" -- train --ranks 2 "${wide[@]}" --set run.dir=tight/run
    fi
    [ -z "$(ls tight)" ] || fail "a refused run has made a directory"
    mkdir tight/made && mount -o remount,ro tight
    nothing=(--set run.save_last=false)
    check 2 "run.dir tight/made: it cannot be written to: Read-only file system; set run.dir (--out)" -- \
        train "${wide[@]}" "${nothing[@]}" --set run.dir=tight/made
    check 2 "run.dir tight/new/run: cannot create the directory" "Read-only file system; choose another run.dir (--out DIR)" -- train "${wide[@]}" --set run.dir=tight/new/run
    umount tight
    # A disk that becomes full while a run is under way: the run says how it ended.
    mkdir full && mount -t tmpfs -o size=2m none full
    "$RALO" train --preset test-llama --set data.source=builtin:grammar --set train.steps=1000000 --set train.warmup=0 --set train.eval_rows=0 \
        --set run.dir=full/run >out 2>err &
    for _ in $(seq 300); do [ -s full/run/metrics.jsonl ] && break || sleep 0.1; done
    dd if=/dev/zero of=full/rest bs=4k status=none 2>/dev/null
    kill -INT $! && wait $!
    grep -q '"state": "running"' full/run/run.json && fail "after a full disk run.json says that the run is running"
    grep -q '"state": "failed".*No space left on device' full/run/run.json || fail "run.json of a full disk: $(cat full/run/run.json)"
    [ ! -e full/run/.run.json.room ] || fail "the room for run.json is still taken"
    umount full
else
    echo "no mounts are permitted here: runs on a full disk are not tried"
fi

# Output that a disk has no room for says so.
"$RALO" plan --preset test-llama >/dev/full 2>err && fail "a plan written to a full disk is no error"
grep -q "write to stdout: No space left on device; the output is incomplete" err || fail "a full stdout: $(cat err)"

# One has room, as many as are asked for have not: a warning, and the run goes on until it is stopped.
small=(--preset test-llama --set data.source=builtin:grammar --set train.steps=1000000000 --set train.warmup=0 --set train.save_every=1)
run_until small/metrics.jsonl train "${small[@]}" --set run.keep=all --set run.dir=small
for said in "warning: run.dir small: " "at once: 1000000000 checkpoints of 1.4 MiB; make room, lower run.keep"; do
    grep -qF "$said" err || fail "'$said' is not in: $(cat err)"
done
run_until few/metrics.jsonl train "${small[@]}" --set run.keep=2 --set run.dir=few
grep -q "at most 3 in run.dir at once" err || fail "no number of checkpoints in: $(cat err)"
grep -q warning err && fail "three checkpoints have room: $(grep warning err)"
rm -r small few

# The plan says it as well: 119616 parameters with m and v in fp32.
check 0 "disk      a checkpoint takes 1.4 MiB, at most 1 in run.dir at once" -- plan --preset test-llama --json
grep -q '"disk": {"checkpoint": 1435392, "checkpoints_at_once": 1, "export": 0, "numbers": 0}' out || fail "no disk in $(tail -c 200 out)"
check 0 "at most 4 in run.dir at once; the export takes 467.2 KiB" -- plan --preset test-llama --set train.steps=100 \
    --set train.save_every=10 --set run.keep=3 --set run.export=models
check 0 '!disk      ' -- plan --preset test-llama --set run.save_last=false
check 0 "run       runs/none  (last step not saved; param_hash" '!saved     ' -- train --preset test-llama --set data.seq_len=32 \
    --set train.steps=2 --set train.eval_rows=0 --set train.problems=0 --set run.save_last=false --set run.dir=runs/none

finish "disks without room are told before a run begins"
