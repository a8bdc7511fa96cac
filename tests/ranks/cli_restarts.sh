#!/bin/bash
# cli_restarts.sh - ralo train --ranks N --restarts K goes on by itself after kill -9 of a rank: on as many ranks with the bits of a run
# that never died, on fewer with the same rows in every step; says so, and keeps it in run.json and events.jsonl. What would fail
# again, what was stopped by hand and ranks that somebody else started are not restarted. RALO names the program.
# (bench/restarts: twenty runs with random deaths.)
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3 "it reads the JSON output"
# One rank and its 6 micro-batches are the reference of 2 ranks with 3 each and of 3 with 2: stage 2 of ZeRO adds in the order of one rank.
settings=(--preset test-gpt2 --set data.seq_len=16 --set train.micro_batch=1 --set train.warmup=0 --set train.schedule=constant
    --set train.eval_rows=0 --set train.problems=0 --set train.log_every=1 --set run.threads=1)
shared=("${settings[@]}" --set parallel.zero=2 --set train.save_every=1)
hash_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["param_hash"])' "$1"; }
# starts FILE DIR ARGUMENTS: in the background as $pid, stderr in log, JSON in FILE; returns when it has saved
starts() {
    local file=$1 dir=$2
    shift 2
    : >log
    "$RALO" train "${shared[@]}" --set run.dir="$dir" --json "$@" >"$file" 2>log &
    pid=$!
    until [ -n "$(ls -d "$dir"/checkpoints/step-0000*[0-9] 2>/dev/null)" ]; do
        kill -0 $pid 2>/dev/null || die "$dir ended before a checkpoint: $(tail -n 3 log)"
        sleep 0.01
    done
}
# kills N: the Nth rank, in the order they were started
kills() {
    local rank
    until rank=$(pgrep -P "$(pgrep -P $pid -x mpirun)" 2>/dev/null | sort -n | sed -n "$1p") && [ -n "$rank" ]; do
        kill -0 $pid 2>/dev/null || die "the run ended before it could be killed: $(tail -n 3 log)"
        sleep 0.02
    done
    kill -9 "$rank"
}
ends() { # CODE
    local rc
    wait $pid
    rc=$?
    pid=
    [ $rc = "$1" ] || die "exit code $rc, expected $1: $(tail -n 3 log)"
}

"$RALO" train "${settings[@]}" --set train.accumulation=6 --set run.dir=whole --set train.steps=80 --json >whole.json 2>log || die "$(tail -n 3 log)"
export TMPDIR=$work
starts same.json same --ranks 2 --restarts 3 --set train.steps=80 --set train.accumulation=3
kills 2
ends 0
grep -q '^restart 1 of 3: rank 1 of 2 died (signal 9, Killed) in step [0-9]*; the run goes on from step [0-9]*, its newest complete checkpoint, [0-9]* finished steps\? \(is\|are\) lost; with 2 ranks as before$' log ||
    fail "as many ranks: $(grep ^restart log || tail -n 3 log)"
[ "$(hash_of same.json)" = "$(hash_of whole.json)" ] || fail "as many ranks: other parameters than without a death"
python3 - <<'PY' || fail "run.json or events.jsonl: $(cat same/run.json same/events.jsonl)"
import json, sys
r, e = json.load(open("same/run.json")), [json.loads(line) for line in open("same/events.jsonl")]
steps = [json.loads(line)["step"] for line in open("same/metrics.jsonl")]
sys.exit(not (r["restarts"] == 1 and r["state"] == "finished" and len(e) == 1 and e[0]["event"] == "restart" and e[0]["rank"] == 1
              and e[0]["ranks"] == 2 and e[0]["step"] >= 1 and e[0]["lost_steps"] >= 0 and steps == list(range(1, 81))))
PY

starts fewer.json fewer --ranks 3 --restarts 1 --min-ranks 2 --set train.steps=80 --set train.batch=6 --set train.accumulation=2
kills 1
ends 0
grep -q '^restart 1 of 1: rank 0 of 3 died .*; with 2 ranks instead of 3: each data rank takes 3 micro-batches of 1 row in a step, which keeps its 6 rows$' log ||
    fail "fewer ranks: $(grep ^restart log || tail -n 3 log)"
[ "$(hash_of fewer.json)" = "$(hash_of whole.json)" ] || fail "fewer ranks: other parameters than without a death"
grep -q '"world": 2,.*"restarts": 1' fewer/run.json || fail "fewer ranks: $(cat fewer/run.json)"

# One death more than restarts.
starts last.json last --ranks 2 --restarts 1 --set train.steps=1000000
kills 1
until grep -q '^restart 1 of 1' log; do kill -0 $pid 2>/dev/null || die "no restart: $(tail -n 3 log)"; sleep 0.02; done
kills 2
ends 1
grep -q '^error: .* died .*after 1 of 1 restarts; ralo train last goes on from step [0-9]*$' log || fail "no restart is left: $(tail -n 3 log)"

# A death while the ranks join can leave mpirun waiting for ever (Open MPI 4.1), and so can a host that can no longer be reached: one whose
# ranks have all ended is ended too. This one has started a rank and what reaches another host, hangs the first time and is the real one
# from then on.
mkdir bin
cat >bin/mpirun <<SH
#!/bin/bash
[ ! -e $work/hung ] || exec $(command -v mpirun) "\$@"
touch $work/hung
exec python3 -c 'import os, subprocess, select
del os.environ["RALO_RANKS_NOTES"] # a run of its own
rank = subprocess.Popen(["$RALO", "train", "--preset", "test-gpt2", "--set", "train.steps=300", "--set", "run.dir=$work/lone"])
host = subprocess.Popen(["sleep", "1000"])
select.poll().poll()'
SH
chmod +x bin/mpirun
PATH=$work/bin:$PATH timeout 600 "$RALO" train "${shared[@]}" --ranks 2 --restarts 1 --set run.dir=hangs --set train.steps=80 \
    --set train.accumulation=3 --json >hangs.json 2>log || fail "an mpirun that hangs: $(tail -n 3 log)"
grep -q '^error: mpirun (pid [0-9]*) did not end after its ranks and was killed' log || fail "an mpirun that hangs: $(head -n 3 log)"
grep -q '^restart 1 of 1: a rank of 2 died or does not respond; it has saved nothing yet: the run starts from the beginning; with 2 ranks as before$' log ||
    fail "an mpirun that hangs: $(grep ^restart log || tail -n 3 log)"
[ "$(hash_of hangs.json)" = "$(hash_of whole.json)" ] || fail "an mpirun that hangs: other parameters"

# One that waits for its reader is no death: here nobody reads for 13 s after the ranks have ended.
cat >held.py <<'PY'
import fcntl, os, subprocess, sys, time
read, write = os.pipe()
fcntl.fcntl(write, 1031, 4096)  # F_SETPIPE_SZ
run = subprocess.Popen(sys.argv[2:], stderr=write, stdout=subprocess.DEVNULL)
os.close(write)
while '"state": "finished"' not in (open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else ""): time.sleep(0.05)
time.sleep(13)
with os.fdopen(read) as text: sys.stderr.write(text.read())
sys.exit(run.wait())
PY
timeout 100 python3 held.py held/run.json "$RALO" train "${shared[@]}" --ranks 2 --restarts 1 --set run.dir=held --set train.steps=80 \
    --set train.accumulation=3 2>log || fail "an mpirun that waits for its reader: exit code $?: $(tail -n 3 log)"
! grep -q '^restart\|did not end' log && grep -q '^saved ' log || fail "an mpirun that waits for its reader: $(tail -n 3 log)"

# Not restarted: an error that comes again, and ranks of another launcher. (Ctrl-C: cli_ranks_kill.)
check 3 '!restart 1' -- train "${settings[@]}" --ranks 2 --restarts 5 --set run.dir=small --set memory.device=100K
check 2 'error: train: --restarts: found no --ranks, expected --ranks N with at least 2 ranks' -- train --restarts 2
check 2 'error: train: --min-ranks: found 3, expected at most the 2 of --ranks' -- train --ranks 2 --restarts 2 --min-ranks 3
check 2 'error: train: --min-ranks is about restarts' -- train --ranks 2 --min-ranks 1
export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2
check 2 'error: train: --restarts works with --ranks,' 'these were started by mpirun or srun' -- train --restarts 2
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
[ -z "$(ls ralo-ranks-* 2>/dev/null)" ] || fail "notes are left: $(ls ralo-ranks-*)"
finish "a death on 2 ranks and one on 3, then 2: the parameters of runs that never died; errors and stops end the run"
