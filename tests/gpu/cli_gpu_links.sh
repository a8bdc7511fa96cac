#!/bin/bash
# cli_gpu_links.sh - sums of parts of several ranks on a GPU, with an NCCL of our own in which other ranks are laid ready
# (plugins/fake_nccl.c, test_nccl.c). Label gpu: skipped where there is none. RALO_BUILD names the build directory.
. "$(dirname "$0")/../harness/check.sh"
test_nccl=${RALO_BUILD:?the build directory}/tests/test_nccl
need_program "$test_nccl"
${CC:-cc} -shared -fPIC -Wall -Wextra -Werror -Wl,-soname,libnccl.so.2 -o libnccl.so.2 "$project/tests/plugins/fake_nccl.c" \
    -ldl || die "the fake NCCL does not compile"
LD_LIBRARY_PATH="$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$test_nccl" fake >log 2>&1
rc=$?
[ $rc != 77 ] || { cat log; exit 77; }
[ $rc = 0 ] || die "$(tail -n 20 log)"
echo "sums of three ranks' parts have the bits of the host"
