#!/bin/bash
# cli_cluster_files.sh - the files for clusters do what they say, as far as a machine without a cluster can tell: the Slurm script with stand-ins for
# srun and scontrol goes on after deaths, ends where that makes no sense, and asks for more time where it was stopped; the container file names
# what is there. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
script=$project/packaging/slurm/train.sbatch
bash -n "$script" || die "it is no shell script"
mkdir bin
cat >bin/srun <<'END'
#!/bin/bash
# A stand-in: ends with the next code of the file `codes`, and with code "run" really runs the command as one rank.
echo "srun $*" >>calls
read -r code <codes
sed -i 1d codes
[ "$code" = run ] || exit "$code"
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
END
cat >bin/scontrol <<'END'
#!/bin/bash
echo "scontrol $*" >>calls
END
chmod +x bin/srun bin/scontrol
# slurm CODES EXPECTED ARGUMENTS
slurm() {
    local codes=$1 expected=$2 rc
    shift 2
    : >calls
    tr ' ' '\n' <<<"$codes" >codes
    PATH=$work/bin:$PATH SLURM_JOB_ID=77 RALO_RESTARTS=3 bash "$script" "$@" >out 2>err
    rc=$?
    [ $rc = "$expected" ] || fail "codes $codes: exit code $rc, expected $expected: $(tail -n 3 err)"
}
slurm "137 1 0" 0 run.yaml runs/a --set train.steps=3
[ "$(grep -c '^srun --mpi=pmix --kill-on-bad-exit=1 .* train run.yaml --set run.dir=runs/a --resume auto --set train.steps=3$' calls)" = 3 ] || fail "three starts: $(cat calls)"
grep -q '^restart 2 of 3: the last start ended with exit code 1$' err || fail "a restart is not said: $(cat err)"
slurm "1 1 1 1 1" 1 run.yaml runs/a
[ "$(grep -c ^srun calls)" = 4 ] || fail "more starts than restarts allow: $(cat calls)"
slurm "2" 2 run.yaml runs/a
slurm "3" 3 run.yaml runs/a
[ "$(grep -c ^srun calls)" = 1 ] || fail "what does not fit was tried again: $(cat calls)"
slurm "130" 0 run.yaml runs/a
grep -qx 'scontrol requeue 77' calls || fail "not requeued: $(cat calls)"
slurm "" 2 run.yaml
# What it starts is what ralo understands: one rank, from nothing and again from its checkpoint.
"$RALO" train --preset test-gpt2 --show-config >run.yaml || fail "show-config"
export RALO
slurm "run" 0 run.yaml real --set train.steps=1 --set train.eval_rows=0 --set train.problems=0 --set data.seq_len=16 --set run.threads=1
[ -e real/checkpoints/step-00000001 ] || fail "the run of the script left no checkpoint: $(tail -n 2 err)"

# The container file: its base can be chosen, and what it calls is there.
file=$project/packaging/container/Containerfile
grep -q '^FROM \${BASE}$' "$file" && grep -q '^ENTRYPOINT \["ralo"\]$' "$file" || fail "the container file has no base or no program"
sed -n 's/^RUN //p' "$file" | bash -n || fail "its commands are no shell"
[ -x "$project/tools/install-packages" ] && grep -q '^install:' "$project/Makefile" || fail "what the container file calls is not there"
finish "the files for clusters are as they say"
