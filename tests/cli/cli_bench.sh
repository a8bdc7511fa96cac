#!/bin/bash
# cli_bench.sh - ralo bench: the list; rloo in small, whose measured peaks are the planned ones, flat for ours and growing with k for base;
# a case that does not fit; charts; what is refused. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

check 0 "ralo bench rloo" -- bench
check 2 "'rlo' is not known" "did you mean 'rloo'" -- bench rlo
check 2 "--scale" "full, small" -- bench rloo --scale large
check 2 "--out" -- bench rloo --out ""
check 2 "/dev/null" -- bench rloo --scale small --out /dev/null/deeper

before=$(ls -d /tmp/ralo-bench-* 2>/dev/null | wc -l)
check 0 "11 of 11  base  k = 16" "base: rl.baseline_memory" "55.5 and 59.2 % less" "cuts nothing" "the same update" -- \
    bench rloo --scale small --out drawn/here --threads 2 --device cpu
[ "$(ls -d /tmp/ralo-bench-* 2>/dev/null | wc -l)" -le "$before" ] || fail "a folder of the bench is left"
[ "$(ls drawn/here | paste -sd ' ')" = "rloo-peak.svg rloo-time.svg rloo.json" ] || fail "--out left $(ls drawn/here)"
for picture in drawn/here/*.svg; do
    [ "$(head -c 5 "$picture")" = "<svg " ] && [ "$(tail -n 1 "$picture")" = "</svg>" ] || fail "$picture is not one SVG"
    python3 -c "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])" "$picture" || fail "$picture is no XML"
done
cat >look.py <<'LOOK'
import json
r = json.load(open("drawn/here/rloo.json"))
cells = {(c["mode"], c["k"]): c for c in r["cells"]}
assert set(cells) == {(m, k) for m in ("base", "cut", "ours") for k in (2, 4, 8, 16)} - {("cut", 16)}, cells.keys()
for (mode, k), c in cells.items():
    where = f"{mode}, k = {k}"
    assert c["fits"] and c["peak"] == c["planned"], where
    assert c["rss_peak"] >= c["planned"], where  # the process really had that much
    line = c["timeline"]["bytes"]
    assert 0 <= c["planned"] - max(line) < 8192, where  # but for the gaps between values
    assert max(line) == max(c["rollout_bytes"], c["update_bytes"]), where
    assert c["timeline"]["seconds"] == sorted(c["timeline"]["seconds"]), where
    assert c["mean_length"] == r["completion_tokens"], where
    assert c["waves"] == -(-k // c["sequences"]), where
    assert c["prompt_tokens"] == (r["cut_prompt_tokens"] if mode == "cut" else r["prompt_tokens"]), where
ours = [cells["ours", k] for k in (2, 4, 8, 16)]
everything = [c["peak"] + c["host_peak"] for c in ours]
assert len({c["peak"] for c in ours}) == 1 and r["spread"] == 0, "the peak of ours depends on k"
assert max(everything) < 1.01 * min(everything), everything
# The logits of a completion more, and its activations: the same for each.
base = {k: cells["base", k]["peak"] for k in (2, 4, 8, 16)}
each = (base[4] - base[2]) / 2
logits = (r["prompt_tokens"] + r["completion_tokens"]) * r["vocabulary"] * 4
assert each > logits and all(abs((base[k] - base[2]) / (k - 2) / each - 1) < 0.02 for k in (8, 16)), base
# One update: fp32 sums in another order.
for k in (2, 4, 8, 16):
    a, b = cells["base", k], cells["ours", k]
    assert a["reward"] == b["reward"] > 0 and abs(a["grad_norm"] / b["grad_norm"] - 1) < 1e-5, k
assert r["grad_norm_difference"] < 1e-5 and abs(r["published"]["cost_of_completion"] - r["published"]["tokens_of_row"]) < 0.01
LOOK
python3 look.py || fail "rloo.json"

# Little memory: what does not fit is said with its planned bytes, and the rest runs.
check 0 "base  k = 16  planned" "does not fit: there are 64.0 MiB" -- bench rloo --scale small --out little --device-memory 64M
python3 - <<'LOOK' || fail "with 64 MiB"
import json
for c in json.load(open("little/rloo.json"))["cells"]:
    assert c["fits"] == (c["planned"] <= 64 << 20) and (c["peak"] is None) == (c["timeline"] is None) == (not c["fits"]), c
    assert c["fits"] or c["mode"] == "base", c
LOOK
grep -q 'does not fit' little/rloo-peak.svg || fail "the chart does not say what does not fit"

# The plan of such a step: waves, what is shared, which part sets the peak, what the baseline costs, and how to do without it.
step="--preset test-llama --set train.task=rloo --set rl.prompts=1 --set rl.k=16 --set rl.max_completion=8 --set data.seq_len=64"
check 0 "16 completions: 2 waves of 8" "stored once for its completions" "the update sets the peak" "!baseline" -- plan $step --set rl.sequences=8
check 0 "16 completions: 1 wave of 16" "the rollout sets the peak" -- plan $step --set rl.sequences=4096
check 0 "16 completions in a micro-batch, each with its own copy of the prompt" "65.0 KiB for each, 1.0 MiB in all" "1 wave of 16" -- \
    plan $step --set rl.baseline_memory=true
check 3 "Fits with: --set rl.baseline_memory=false --set train.micro_batch=1" -- plan $step --set rl.baseline_memory=true --device-memory 8M
finish "the experiments of ralo bench run and say what they should"
