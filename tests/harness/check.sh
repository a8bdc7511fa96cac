# check.sh - what the tests of the program share. Each sources it first: `. "$(dirname "$0")/../harness/check.sh"`.
#
# The test then stands in an empty directory, $work, which goes when it ends. RALO names the program, TEST_FIXTURES the
# fixtures; by hand: RALO=build/ralo bash tests/cli/cli_help.sh
set -u
# Leaks are looked for in the C tests; here they would cost seconds per process.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
RALO=$(realpath -- "${RALO:?path of the ralo program}") || exit 1
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
TEST_FIXTURES=${TEST_FIXTURES:-$project/tests/fixtures}
work=$(mktemp -d) && cd "$work" || exit 1
pid= # of a program in the background, which must not outlive the test
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$work"' EXIT

# need TOOL [WHY]: without it the test is skipped.
need() { command -v "$1" >/dev/null || { echo "$1 not found${2:+: $2}"; exit 77; }; }
# need_program PATH: a program of the tests; where it was not built the test is skipped.
need_program() {
    [ -x "$1" ] && return
    echo "$(basename "$1") was not built: build the target \`tests\` (make test); it needs cmocka (make deps)"
    exit 77
}

failures=0
fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}
die() {
    echo "FAILED: $*"
    exit 1
}
# finish TEXT: the end of a test that may have failed on the way.
finish() {
    [ $failures = 0 ] || { echo "$failures failures"; exit 1; }
    echo "$*"
}

# await_step LOG WHAT: until the program in the background shows a step in LOG.
await_step() {
    until grep -q 'step [0-9]*/' "$1" 2>/dev/null; do
        kill -0 "$pid" 2>/dev/null || die "$2: it ended before its first step: $(tail -n 3 "$1")"
        sleep 0.02
    done
}

# run CODE ARGUMENTS: exit code; stdout in out, stderr in err.
run() {
    local code=$1 rc
    shift
    timeout 120 "$RALO" "$@" >out 2>err
    rc=$?
    [ $rc = "$code" ] || fail "ralo $*: exit code $rc, expected $code: $(tail -n 2 err)"
}

# check CODE TEXT... -- ARGUMENTS: exit code, and every TEXT on stderr or stdout (!TEXT: on neither). A refused request (2)
# says one error and nothing on stdout.
check() {
    local code=$1 text texts=()
    shift
    while [ "$1" != -- ]; do texts+=("$1") && shift; done
    shift
    run "$code" "$@" </dev/null
    cat out err >said
    for text in ${texts[@]+"${texts[@]}"}; do
        if [ "${text:0:1}" = ! ]; then
            ! grep -qF -- "${text:1}" said || fail "ralo $*: '${text:1}' is in: $(grep -F -- "${text:1}" said | head -n 1)"
        else
            grep -qF -- "$text" said || fail "ralo $*: '$text' is not in: $(tail -n 3 err)"
        fi
    done
    [ "$code" != 2 ] || [ "$(grep -c '^error: ' err)" = 1 ] || fail "ralo $*: not exactly one error line"
    [ "$code" != 2 ] || [ ! -s out ] || fail "ralo $*: a refused request wrote to stdout"
}

# run_until FILE ARGUMENT...: runs ralo until FILE has something in it, then stops it as Ctrl-C does. It has to end as stopped.
run_until() {
    local file=$1 code
    shift
    "$RALO" "$@" </dev/null >out 2>err &
    for _ in $(seq 600); do
        [ ! -s "$file" ] && kill -0 $! 2>/dev/null && sleep 0.1 || break
    done
    kill -INT $! 2>/dev/null
    wait $! && code=0 || code=$?
    [ "$code" = 130 ] || fail "ralo $*: exit code $code, expected 130: $(tail -n 3 err)"
}

# holds EXPRESSION: true of the last line of out, read as JSON, as `r`.
holds() {
    python3 -c "import json, sys; r = json.loads(open('out', 'rb').read().splitlines()[-1]); sys.exit(not ($1))" ||
        fail "not true: $1 in $(tail -c 600 out)"
}

# need_ranks: without mpirun, or in a build without MPI, the test is skipped. Sets mpirun as ralo --ranks would start it.
need_ranks() {
    need mpirun "install openmpi-bin"
    mpirun=(mpirun --quiet --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none)
    [ "$(id -u)" != 0 ] || mpirun+=(--allow-run-as-root)
    # MPI was not built for the thread sanitizer, which sees races in it where there are none. libpmix is unloaded at the end,
    # and the sanitizer ends a process that unloads a library of called_from_lib.
    printf '%s:%s\n' called_from_lib libmpi.so called_from_lib libopen-pal called_from_lib libopen-rte \
        race libpmix deadlock mca_ >"$work/tsan.supp"
    export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}suppressions=$work/tsan.supp:ignore_noninstrumented_modules=1"
    timeout 120 "$RALO" train --ranks 2 --preset test-gpt2 --set train.steps=1 --set run.dir=need_ranks \
        --set train.eval_rows=0 --set train.problems=0 >/dev/null 2>log </dev/null && rm -r need_ranks && return
    ! grep -q 'built without' log || { echo "this ralo was built without MPI"; exit 77; }
    die "two ranks do not run: $(tail -n 3 log)"
}
# under_mpirun N PROGRAM ARGUMENTS: output in log.
under_mpirun() {
    local n=$1
    shift
    timeout 200 "${mpirun[@]}" -n "$n" "$@" >log 2>&1 </dev/null
}

# need_gpu: without a GPU that works the test is skipped.
need_gpu() {
    timeout 120 "$RALO" train --set run.device=cuda --preset test-gpt2 --set train.steps=1 --set train.eval_rows=0 \
        --set train.problems=0 --set run.dir=need_gpu >/dev/null 2>log </dev/null && rm -r need_gpu && return
    ! grep -q 'CUDA backend\|RALO_CUDA_PLUGIN\|no NVIDIA driver\|shows no GPU' log || { echo "skipped: $(grep '^error' log)"; exit 77; }
    die "the GPU does not work: $(tail -n 3 log)"
}
