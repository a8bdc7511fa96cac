#!/bin/bash
# cli_memory.sh - the memory of the whole process is the plan plus little: what the operating system counted at the peak is
# within 5 % + 64 MiB of the planned device and host bytes. 64 MiB: program, libraries, stacks, OpenBLAS' buffers, and the
# arena's rounding to huge pages. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
if nm "$RALO" 2>/dev/null | grep -qE '__[at]san_init'; then
    echo "built with a sanitizer, which keeps memory of its own"
    exit 77
fi

check='import json, sys
memory = json.load(sys.stdin)["memory"]
planned = memory["device"]["planned"] + memory["host"]["planned"]
rss, bound = memory["rss_peak"], 0.05 * planned + (64 << 20)
mib = lambda n: f"{n / 2**20:.1f} MiB"
print(f"{sys.argv[1]}: planned {mib(planned)}, process at most {mib(rss)}, bound +- {mib(bound)}")
assert memory["device"]["planned"] == memory["device"]["peak"], "device"
assert memory["host"]["planned"] == memory["host"]["peak"], "host"
assert memory["allocations_in_steps"] == 0, "allocations"
assert planned > 300 << 20, "too small to prove anything"
assert abs(rss - planned) <= bound, "process"'

# cell NAME MORE...
cell() {
    local name=$1
    shift
    "$RALO" train --preset arithmetic-tiny --set model.hidden=512 --set model.ffn=2048 --set model.layers=6 \
        --set data.seq_len=128 --set train.micro_batch=3 --set train.steps=2 --set train.warmup=0 --set train.eval_rows=3 \
        --set data.source=builtin:grammar --set run.dir="$name" --json "$@" >out 2>err || { tail -n 1 err; exit 1; }
    python3 -c "$check" "$name" <out || exit 1
    rm -rf "$name"
}
cell fp32
cell bf16 --set precision=bf16
cell saving --set train.save_every=1 # and a copy of the state for the writer
