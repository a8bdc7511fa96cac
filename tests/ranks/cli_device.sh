#!/bin/bash
# cli_device.sh - ranks whose devices work on their own (ranks_device.c): sharing one device, with one each, and when a message
# between devices never ends. No GPU is needed. RALO names the program, RALO_BUILD the build directory.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
ranks_device=${RALO_BUILD:?the build directory}/tests/ranks_device
need_program "$ranks_device"
for n in 2 4; do
    under_mpirun $n "$ranks_device" || fail "$n ranks: $(tail -n 5 log)"
    grep -q "^[1-9][0-9]* cells on $n ranks" log || fail "$n ranks did not end: $(tail -n 3 log)"
    tail -n 1 log
done
under_mpirun 2 "$ranks_device" stall
[ $? = 3 ] || fail "stall: $(cat log)"
grep -q "rank [01] ends after .*: rank [01] (.*has waited 2 s (comm.timeout) in [a-z_]* of '" log || fail "stall: $(cat log)"
under_mpirun 2 "$ranks_device" die && fail "die: mpirun says all is well"
grep -q "rank 0 ends after [0-3] s: rank 1 (pid [0-9]* on .*, in all_gather of '.*died" log || fail "die: $(cat log)"

# What cannot be is refused.
check 2 'comm.transport: found nccl, expected auto or mpi' -- train --set run.device=cpu --set comm.transport=nccl
finish "ranks that share a device, and ranks with one each, end with the bits of one"
