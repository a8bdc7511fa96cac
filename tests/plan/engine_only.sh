#!/bin/bash
# engine_only.sh - examples/engine_only.c, linked with engine and base alone: a program of two layers learns, in a
# budget that needs recompute, and uses the bytes that were planned. RALO_BUILD names the build.
fail() { echo "FAILED: $*"; cat out; exit 1; }
"$RALO_BUILD/engine_only" >out 2>&1 || fail "exit status $?"
read -r first last < <(awk '/^step/ {print $4}' out | tr '\n' ' ')
awk "BEGIN {exit !($first > 4 && $first < 4.3 && $last < 0.1)}" || fail "the loss went from $first to $last"
grep -q '^recompute \(norms\|selective\|full\|mix\)' out || fail "the budget needs no recompute"
read -r planned used budget < <(sed -n 's/.*planned \([0-9]*\) bytes, used \([0-9]*\), of \([0-9]*\)$/\1 \2 \3/p' out)
[ "$planned" = "$used" ] && [ "$used" -le "$budget" ] || fail "planned $planned, used $used, of $budget"
echo "two layers in $used of $budget bytes, planned == used"
