#!/bin/bash
# cli_tensor.sh - one model shared by 2, 4 and 8 ranks (ranks_tensor.c), and what cannot be shared is refused. RALO names the
# program, RALO_BUILD the build directory.
. "$(dirname "$0")/check.sh"
need_ranks ranks_tensor
for n in 2 4 8; do
    under_mpirun $n "$ranks_tensor" || fail "$n ranks: $(tail -n 5 log)"
    grep -qx "tensor parallel on $n ranks: as one rank" log || fail "$n ranks did not end: $(tail -n 3 log)"
done
