#!/bin/bash
# A test program runs each of its files in a process of its own: a file that crashes is named, and the files after it
# still run.
set -u
harness=$(cd "$(dirname "$0")/../harness" && pwd) || exit 1
work=$(mktemp -d) && cd "$work" || exit 1
trap 'rm -rf "$work"' EXIT
failures=0
# expect CODE PATTERN... -- COMMAND: the exit status, and a line that matches each pattern.
expect() {
    local code=$1 rc pattern patterns=()
    shift
    while [ "$1" != -- ]; do patterns+=("$1") && shift; done
    shift
    "$@" >log 2>&1
    rc=$?
    [ $rc = "$code" ] || { echo "FAILED: $*: exit status $rc, expected $code: $(cat log)" && failures=$((failures + 1)); }
    for pattern in "${patterns[@]}"; do
        grep -q -- "$pattern" log || { echo "FAILED: $*: no line '$pattern' in: $(cat log)" && failures=$((failures + 1)); }
    done
}

printf 'int test_passes_main(void) { return 0; }\n' >passes.c
printf '#include <stdlib.h>\nint test_crashes_main(void) { abort(); }\n' >crashes.c
printf 'int test_takes_main(int argc, char **argv) { return argc == 1 ? 77 : argv[1][0] - 48; }\n' >takes.c
printf 'int test_fails_main(void) { return 3; }\n' >fails.c
printf 'TEST(test_crashes)\nTEST(test_passes)\nTEST_WITH_ARGUMENTS(test_takes)\nTEST(test_fails)\n' >table.inc
"${CC:-cc}" -D_GNU_SOURCE "-DROOM_TABLE=\"$work/table.inc\"" -o room "$harness/room_main.c" passes.c crashes.c takes.c fails.c || exit 1
ln -s room test_passes
ln -s room test_takes

expect 1 'FAILED   test_crashes: crashed with signal 6' '^passed   test_passes' '^skipped  test_takes' \
    'FAILED   test_fails: exit status 3' -- ./room
expect 0 '^passed   test_passes' '^skipped  test_takes' -- ./room test_passes test_takes
expect 2 "no test file 'test_absent'; it has: test_crashes test_passes" -- ./room test_passes test_absent
expect 0 -- ./test_passes
expect 5 -- ./test_takes 5 # a link passes the arguments on
[ $failures = 0 ] || exit 1
echo "a crash is reported with the name of its file, and the other files run"
