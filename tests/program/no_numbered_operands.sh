#!/bin/bash
# no_numbered_operands.sh - operands of an op go by the names that the build makes from src/engine/program/ops.def (LINEAR_X, ADAMW_M).
#
# A number would be wrong without a word as soon as an op gets one more operand. By hand: bash tests/program/no_numbered_operands.sh
set -u
cd "${RALO_SOURCE:-$(dirname "$0")/../..}" || exit 1

# Members of an op or of a call, and functions that take the place of an operand. Other arrays may be called in or out.
pattern='(->|\.)(in|out)\[[0-9]|\b(op|call)_(in|out)\([^,]*, *[0-9]|\b(IN|OUT)\([0-9]'

# The pattern itself: lines that it must find, and others that it must not.
for line in 'x = o->in[0];' 'o.out[1] = y;' 'op_in(&o, 0, x);' 'op_out(o, 12, y);' 'call_in(k, 0)' 'IN(3)'; do
    grep -qE "$pattern" <<<"$line" || { echo "FAILED: the search does not find '$line'"; exit 1; }
done
for line in 'out[0] = 0;' 'char out[64]' 'o->in[k]' 'op_in(o, LINEAR_X, x)' 'begin[0]' 'MIN(1, 2)'; do
    grep -qE "$pattern" <<<"$line" && { echo "FAILED: the search finds '$line'"; exit 1; }
done

found=$(grep -rnE "$pattern" --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.inc' src)
[ -z "$found" ] && { echo "no numbered operand in src"; exit 0; }
printf '%s\n' "$found"
echo "FAILED: operands by number; use the names in generated/program/operands.h of the build directory"
exit 1
