#!/bin/bash
# cli_kill_export.sh - what a killed writer left beside an export or a config.yaml goes with the next one that writes there; what
# another one is writing stays, and so do other people's files. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need flock "install util-linux"
settings=(--preset test-gpt2 --set data.seq_len=16 --set train.micro_batch=1 --set train.steps=1 --set train.eval_rows=0
    --set train.problems=0 --set run.dir=run)
run 0 train "${settings[@]}"

# Four exports, each killed as soon as its directory shows.
for i in 1 2 3 4; do
    "$RALO" export run model >/dev/null 2>log &
    pid=$!
    while kill -0 $pid 2>/dev/null && ! compgen -G 'model.tmp.*' >/dev/null; do :; done
    kill -9 $pid 2>/dev/null
    { wait $pid; } 2>/dev/null
    pid=
    rm -rf model # where it was faster
done

mkdir -p model.tmp.999999999.0 model.tmp.1.7 model.tmp.mine model.tmp.12 other.tmp.999999999.0
echo half >model.tmp.999999999.0/model.safetensors
exec 9<model.tmp.1.7 # as the writer of it would
flock -n 9 || die "no lock on a directory here"
run 0 export run model
[ -f model/model.safetensors ] || fail "no export"
[ ! -e model.tmp.999999999.0 ] || fail "what a killed export left is still there"
[ -d model.tmp.1.7 ] || fail "what another export is writing was removed"
[ -d model.tmp.mine ] && [ -d model.tmp.12 ] && [ -d other.tmp.999999999.0 ] || fail "somebody else's directory was removed"
rmdir model.tmp.1.7 model.tmp.mine model.tmp.12 || fail "not as they were: $(ls -d model.tmp.*)"
[ -z "$(compgen -G 'model.tmp.*')" ] || fail "left by killed exports: $(ls -d model.tmp.*)"

echo half >run/config.yaml.tmp.999999999.3
echo mine >run/config.yaml.tmp.old
run 0 train "${settings[@]}" --resume auto
[ ! -e run/config.yaml.tmp.999999999.3 ] || fail "what a killed writer of config.yaml left is still there"
[ "$(cat run/config.yaml.tmp.old)" = mine ] || fail "somebody else's file was removed"

finish "leftovers of killed writers go, nothing else does"
