#!/bin/bash
# cli_ranks.sh - many ranks under mpirun: collectives on 1, 2, 3, 4 and 8 of them, ranks that are killed, crash or stop, and
# `ralo train --ranks`. RALO names the program, RALO_BUILD the build directory.
. "$(dirname "$0")/check.sh"
need mpirun "install openmpi-bin"
ranks_comm=${RALO_BUILD:?the build directory}/tests/ranks_comm
[ -x "$ranks_comm" ] || { echo "ranks_comm was not built: cmocka is missing"; exit 77; }
"$RALO" train --ranks 2 --show-config >/dev/null || die "--show-config with --ranks"
export OMPI_MCA_btl_vader_single_copy_mechanism=none # as ralo sets it: refused in many containers, with a warning
under_mpirun() { # N PROGRAM ARGUMENTS: output in log
    local n=$1 root=
    shift
    [ "$(id -u)" != 0 ] || root=--allow-run-as-root
    timeout 120 mpirun --quiet --oversubscribe --bind-to none $root -n "$n" "$@" >log 2>&1 </dev/null
}
if ! under_mpirun 2 "$ranks_comm" probe; then
    grep -q 'built without' log && { echo "this ralo was built without MPI"; exit 77; }
    die "two ranks do not meet: $(tail -n 3 log)"
fi

for n in 1 2 3 4 8; do
    under_mpirun $n "$ranks_comm" || fail "$n ranks: $(tail -n 5 log)"
    grep -qx "$n ranks: all collectives" log || fail "$n ranks did not end: $(tail -n 3 log)"
done

# The first cause, on every rank that lived, soon. mpirun itself needs a second to end a rank that is stopped.
for how in kill crash busy stop; do
    start=$(date +%s)
    under_mpirun 4 "$ranks_comm" $how && fail "$how: mpirun says all is well"
    took=$(($(date +%s) - start))
    [ $took -le 12 ] || fail "$how: ended after $took s" # stop: a timeout of 2 s and a grace of 5
    for rank in 0 2 3; do
        grep -q "rank $rank \(ends\|hears\): .*rank 1 (pid [0-9]* on .*), step 3, computing linear of layer 4 (micro)" log ||
            fail "$how: rank $rank does not name rank 1: $(cat log)"
    done
done
grep -q 'waited 2 s (comm.timeout) in all_reduce of '"'y'" log || fail "stop: the watchdog does not say for what: $(cat log)"
finish "collectives on 1 to 8 ranks; killed, crashed, busy and stopped ranks are named"
