#!/bin/bash
# cli_report_browser.sh - the page of ralo report in a real browser, as narrow as a phone: nothing is wider than the screen, nothing of a
# run is executed, the pointer reads the numbers that the run has. Skipped where no Chromium is installed. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
browser=$(command -v chromium-headless-shell || command -v chromium) || { echo "no Chromium: apt-get install chromium-headless-shell"; exit 77; }

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
# The page with its own rules, in a frame of 400 pixels; and once without them, so that a script of this test may move the pointer.
cat >look.py <<'LOOK'
import re
page = open("page.html", encoding="utf-8").read()
probe = '''<script>
const f = document.getElementById("chart-train-loss"), h = f.querySelector(".hit"), b = h.getBoundingClientRect();
h.dispatchEvent(new PointerEvent("pointermove", {clientX: b.left + b.width * 49 / 99, clientY: b.top + 5}));
document.body.dataset.seen = JSON.stringify({width: document.documentElement.scrollWidth, title: document.title,
    images: document.images.length, read: f.querySelector("output").textContent,
    charts: [...document.querySelectorAll("figure svg")].filter(s => !s.parentNode.closest("svg")).every(s => s.getBoundingClientRect().right <= innerWidth)});
</script></body>'''
page = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
open("probe.html", "w", encoding="utf-8").write(page.replace("</body>", probe))
LOOK
python3 look.py || die "look.py"
timeout 100 "$browser" --no-sandbox --disable-gpu --hide-scrollbars --window-size=400,900 --dump-dom "file://$work/probe.html" >dom 2>/dev/null ||
    die "the browser ended with an error"
python3 - <<'CHECK' >wrong || fail "$(cat wrong)"
import html, json, re, sys
seen = json.loads(html.unescape(re.search(r'data-seen="([^"]*)"', open("dom", encoding="utf-8").read())[1]))
wanted = {"width": 400, "title": "ralo: runs compared", "images": 0, "charts": True}
wrong = [f"{k}: found {seen[k]!r}, expected {v!r}" for k, v in wanted.items() if seen[k] != v]
if "one 3" not in seen["read"] or "at 50 " not in seen["read"]:
    wrong.append("read-out: " + seen["read"])
print("\n".join(wrong))
sys.exit(bool(wrong))
CHECK
finish "the page fits a phone, runs nothing of a run, and reads its numbers out"
