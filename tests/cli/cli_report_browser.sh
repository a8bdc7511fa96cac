#!/bin/bash
# cli_report_browser.sh - the page of ralo report in a real browser, as narrow as a phone: nothing is wider than the screen, nothing of a
# run is executed, the pointer reads the numbers that the run has. Skipped where no browser starts. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
export PYTHONPATH=$project/tests/browser PYTHONDONTWRITEBYTECODE=1
python3 -m devtools || exit $?

mkdir -p runs/one 'runs/a very long name of a run that goes on and on, <img src=x onerror=document.title=1> and on'
python3 - <<'MAKE'
import glob, json
for k, d in enumerate(sorted(glob.glob("runs/*"))):
    open(d + "/config.yaml", "w").write("train: {task: sft}\nlong: %s\nother: %d\n" % ("x" * 300, k))
    with open(d + "/metrics.jsonl", "w") as f:
        for s in range(1, 101):
            f.write(json.dumps({"step": s, "train/loss": 100 / s + k, "memory/device_bytes": 1000000 * (k + 1), "perf/tokens_per_sec": 5 + k}) + "\n")
    open(d + "/samples.jsonl", "w").write(json.dumps({"step": 3, "prompt": "y" * 500, "completion": "<script>document.title = 2</script>"}) + "\n")
MAKE
run 0 report runs --out page.html
cat >look.py <<'LOOK'
import os, sys
from devtools import Browser
SEEN = """(() => {
  const f = document.getElementById("chart-train-loss"), h = f.querySelector(".hit"), b = h.getBoundingClientRect();
  h.dispatchEvent(new PointerEvent("pointermove", {clientX: b.left + b.width * 49 / 99, clientY: b.top + 5}));
  return {width: document.documentElement.scrollWidth, title: document.title, images: document.images.length, read: f.querySelector("output").textContent,
    charts: [...document.querySelectorAll("figure svg")].filter(s => !s.parentNode.closest("svg")).every(s => s.getBoundingClientRect().right <= innerWidth)};
})()"""
with Browser() as browser:
    page = browser.page(400, 900)
    page.open("file://" + os.path.abspath("page.html"))
    page.wait("document.readyState === 'complete'")
    page.wait("document.getElementById('chart-train-loss') !== null")
    seen, complaints = page.eval(SEEN), page.complaints()
wanted = {"width": 400, "title": "ralo: runs compared", "images": 0, "charts": True}
wrong = [f"{k}: found {seen[k]!r}, expected {v!r}" for k, v in wanted.items() if seen[k] != v] + complaints
if "one 3" not in seen["read"] or "at 50 " not in seen["read"]:
    wrong.append("read-out: " + seen["read"])
print("\n".join(wrong))
sys.exit(bool(wrong))
LOOK
python3 look.py >wrong 2>&1 || fail "$(tail -n 5 wrong)"
finish "the page fits a phone, runs nothing of a run, and reads its numbers out"
