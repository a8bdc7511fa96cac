#!/bin/bash
# cli_report.sh - ralo report and ralo runs: numbers read back from the pictures equal those of the run directory; text of a run
# never becomes part of the page; the page needs nothing from elsewhere; runs that are broken are named. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

# ---- runs as another ralo, or anyone, may have left them
cat >make.py <<'MAKE'
import json, math, os, random, socket, sys, time
hostile = '</svg></script><script>alert(1)</script>"\'&<img src=x onerror=alert(2)>\x1b[31m\u202e'
random.seed(3)


def make(path, peak, recompute, steps, name, state="finished", pid=1):
    os.makedirs(path + "/monitor")
    roles = ["inputs", "params", "grads", "states", "activations", "work", hostile]
    points = [[random.randrange(1, 1000) for _ in range(900)] for _ in roles]
    points[4] = [int(peak * math.sin(i / 900 * math.pi)) for i in range(900)]
    points[4][613] = peak
    total = [sum(c) for c in zip(*points)]
    at = total.index(max(total))
    tier = {"tier": "device", "planned_peak": max(total), "measured_peak": max(total), "limit": max(total) + 500,
            "points": {"op": [hostile] * 900, "index": list(range(5, 905)), "section": ["micro"] * 900, "bytes": points},
            "peak": {"at": at, "values": [{"name": hostile, "role": "work", "bytes": 5}], "others_bytes": 7}}
    json.dump({"version": 1, "roles": roles, "tiers": [tier]}, open(path + "/memory.json", "w"))
    json.dump({"model": hostile, "strategy": {"recompute": recompute, "offload": {"states": "host"}},
               "memory": {"device": {"planned": max(total)}, "host": {"planned": 77}}}, open(path + "/plan.json", "w"))
    now = time.time()
    json.dump({"version": 1, "task": "sft", "model": hostile, "data": "d", "host": socket.gethostname(), "pid": pid, "world": 1,
               "started": now - 90, "ended": now, "state": state, "error": hostile if state == "failed" else None,
               "step": steps, "steps": 500, "cores": {"others": 0.66 if name == "x" else 0, "stolen": 0}}, open(path + "/run.json", "w"))
    open(path + "/config.yaml", "w").write("train:\n  task: sft\n  same: 1\nmemory:\n  recompute: %s\n  \"%s\": 3\n" % (recompute, name))
    with open(path + "/metrics.jsonl", "w") as f:
        for s in range(1, steps + 1):
            f.write(json.dumps({"step": s, "train/loss": 5 / s + random.random() if s != 60 else None, "perf/tokens_per_sec": 1000.5 + s,
                                "perf/step_ms": 3.25, "memory/device_bytes": max(total), "val/flat": 4, hostile: s * 1.5}) + "\n")
            if s % 50 == 0:
                f.write(json.dumps({"step": s, "val/loss": 1 / s}) + "\n")
        f.write('{"step": 9999, "train/lo')
    with open(path + "/monitor/rank-00000.jsonl", "w") as f:
        for s in range(90):
            f.write(json.dumps({"time": now - 90 + s, "step": s, "rss_bytes": 100000 + s, "device_bytes": s, "driver_bytes": None}) + "\n")
    with open(path + "/samples.jsonl", "w") as f:
        f.write(json.dumps({"step": 5, "prompt": hostile, "completion": "line one\nline two " + hostile, "stop": "eos"}) + "\n")


make("runs/plain", 900000, "none", 400, "x")
make("runs/</h1><script>small", 500000, "full", 400, "</td><script>", state="failed")
make("runs/gone", 700000, "norms", 100, "x", state="running", pid=(1 << 22) + 9)
os.makedirs("runs/broken")
open("runs/broken/run.json", "w").write("{")
open("runs/broken/metrics.jsonl", "w").write("\xff\n{}\n")
cells = [{"mode": m, "k": k, "fits": k < 8 or m != "base", "planned": 1000 * k + i, "peak": 1000 * k + i if k < 8 or m != "base" else None,
          "step_seconds": 1.5 + i, "grad_norm": 0.5,
          "timeline": {"seconds": [0, 1, 1.25, 3], "bytes": [10, 1000 * k + i, 20, 20]} if k < 8 or m != "base" else None}
         for i, m in enumerate(("base", "cut", "ours")) for k in (2, 4, 8)]
os.makedirs("bench")
json.dump({"bench": "rloo", "cells": cells, "explanation": [hostile]}, open("bench/rloo.json", "w"))
MAKE
python3 make.py || die "make.py"

# ---- the page and its charts
check 0 "used the least device memory" "44 % less than" "recompute is full instead of none" "failed at step" "died after step 100" \
    "others used 66 % of the CPU time while plain ran" "is not finite in 1 steps, first in step 60" "ours peaks at" "which does not fit" -- report runs bench --out page.html --charts charts
run 0 report runs bench --out page.html --charts charts --json
holds "r['file'] == 'page.html' and len(r['charts']) == len(set(r['charts'])) and len(r['runs']) == 4"
[ "$(ls charts | wc -l)" = "$(python3 -c "import json; print(len(json.loads(open('out').read())['charts']))")" ] || fail "a file for each chart"

cat >look.py <<'LOOK'
import base64, glob, hashlib, html.parser, json, os, re, sys
import xml.etree.ElementTree as tree
page = open("page.html", encoding="utf-8").read()
runs = ["runs/</h1><script>small", "runs/gone", "runs/plain"]
wrong = []


def must(what, said):
    if not what:
        wrong.append(said)


# nothing of a run became part of the page, and nothing comes from elsewhere
class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.stack, self.script = {}, [], ""

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        must(not any(k.startswith("on") for k, _ in attributes), "an attribute that runs code: %s" % attributes)
        must(not any(k in ("src", "href") and not (v or "").startswith("#") for k, v in attributes), "something from elsewhere")
        if tag not in ("meta", "rect", "path"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in ("meta", "rect", "path"):
            self.stack.pop()

    def handle_endtag(self, tag):
        must(self.stack and self.stack.pop() == tag, "</%s> ends something else" % tag)

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.script += data


reader = Reader()
reader.feed(page)
reader.close()
must(reader.tags.get("script") == 1 and "img" not in reader.tags and not reader.stack, "elements of a run: %s" % reader.tags)
must("alert" in page and "alert" not in reader.script, "the hostile text is shown, as text")
must("\u202e" not in page and "\\u202e" in page, "marks of writing direction are visible and have no effect")
must(set(re.findall(r"https?://[^\"' <]*", page)) == {"http://www.w3.org/2000/svg"}, "an address in the page")
must("\x1b" not in page and "prefers-color-scheme: dark" in page and "width=device-width" in page, "dark, phones, controls")
allowed = re.search(r"script-src 'sha256-([^']*)'", page)[1]
must(allowed == base64.b64encode(hashlib.sha256(reader.script.encode()).digest()).decode(), "the hash of the script in html.c is stale")

# numbers
NS = "{http://www.w3.org/2000/svg}"


def read(name):
    """name -> (xs, ys) of every series of a chart; (group, name) -> y of bars."""
    out = {}
    for e in tree.parse("charts/" + name).getroot().iter():
        if e.get("data-group") is not None:
            out[e.get("data-group"), e.get("data-name")] = float(e.get("data-y"))
        elif e.get("data-name") is not None:
            out[e.get("data-name")] = tuple([float(v) for v in e.get(k).split()] for k in ("data-x", "data-y"))
    return out


labels = {r: r.rsplit("/", 1)[1] for r in runs}
metrics = {r: [json.loads(l) for l in open(r + "/metrics.jsonl").read().split("\n")[:-1]] for r in runs}
for name, key in (("train-loss.svg", "train/loss"), ("val-loss.svg", "val/loss"), ("perf-tokens_per_sec.svg", "perf/tokens_per_sec")):
    drawn = read(name)
    for r in runs:
        wanted = {m["step"]: m[key] for m in metrics[r] if m.get(key) is not None}
        xs, ys = drawn[labels[r]]
        must(all(wanted.get(x) == y for x, y in zip(xs, ys)), "%s of %s is not what the file has" % (key, r))
        must(max(wanted.values()) == max(ys) and min(wanted.values()) == min(ys), "%s of %s lost an extreme" % (key, r))
        must(xs[0] == min(wanted) and xs[-1] == max(wanted), "%s of %s lost an end" % (key, r))
peaks = read("peak.svg")
exact, smooth = read("time-line.svg"), read("time-line-smoothed.svg")
for r in runs:
    tier = json.load(open(r + "/memory.json"))
    roles, tier = tier["roles"], tier["tiers"][0]
    total = [sum(c) for c in zip(*tier["points"]["bytes"])]
    file = glob.glob("charts/step-device-*%s.svg" % re.sub("[^A-Za-z0-9_]", "-", labels[r]))[0]
    drawn = read(file[7:])
    for role, bytes in zip(roles, tier["points"]["bytes"]):
        name = [n for n in drawn if n[:4] == role[:4]][0]
        xs, ys = drawn[name]
        must([bytes[int(x)] for x in xs] == ys, "%s over the step of %s" % (role, r))
    xs = next(iter(drawn.values()))[0]
    must(max(sum(d[1][i] for d in drawn.values()) for i in range(len(xs))) == tier["planned_peak"], "the peak of the areas of " + r)
    for lines in (exact, smooth):
        must(max(lines[labels[r]][1]) == tier["planned_peak"], "the peak of a time line of " + r)
    place = [l[labels[r]][0][l[labels[r]][1].index(max(total))] for l in (exact, smooth)]
    must(place[0] == place[1] == 100 * total.index(max(total)) / 900, "the smoothed peak moved: %s" % place)
    must(abs(sum(v for (g, _), v in peaks.items() if g == labels[r]) - max(total)) < 1e-6, "the bar of " + r)
bench = json.load(open("bench/rloo.json"))
bars = read("rloo-peak-1.svg")
for c in bench["cells"]:
    must(bars["k = %d" % c["k"], c["mode"]] == (c["peak"] or c["planned"]), "the bar of a bench")
    if c["timeline"]:
        must(read("rloo-time-k-%d-1.svg" % c["k"])[c["mode"]] == (c["timeline"]["seconds"], c["timeline"]["bytes"]), "a time line of a bench")
        xs, ys = read("rloo-smoothed-k-%d-1.svg" % c["k"])[c["mode"]]
        must(max(ys) == c["peak"] and xs[ys.index(max(ys))] == 1, "the smoothed peak of a bench")
print("\n".join(wrong))
sys.exit(bool(wrong))
LOOK
python3 look.py >wrong 2>&1 || fail "$(cat wrong)"

# ---- runs of several tasks, as a pipeline leaves them: each task by itself, under as few names as tell them apart
cat >stages.py <<'STAGES'
import json, os
for i, (path, task, weighting) in enumerate((("p/one/policy", "mtp", "baseline"), ("p/two/reference", "sft", "baseline"), ("p/two/policy", "mtp", "rho1"))):
    os.makedirs(path)
    json.dump({"task": task, "model": "m", "data": "d", "state": "finished", "step": 2, "steps": 2}, open(path + "/run.json", "w"))
    open(path + "/config.yaml", "w").write("train: {task: %s, weighting: %s}\n" % (task, weighting))
    json.dump({"strategy": {}, "step_ms": 100 + 25 * i}, open(path + "/plan.json", "w"))
    with open(path + "/metrics.jsonl", "w") as f:
        for s in 1, 2:
            f.write(json.dumps({"step": s, "train/loss": s, "val/loss": 3.5 + i, "memory/device_bytes": 1048576 * (1 if task == "sft" else 4 + i)}) + "\n")
STAGES
python3 stages.py && check 0 "Of 2 runs of mtp, one/policy used the least device memory: 4.0 MiB at its peak, 33 % less than two/policy (6.0 MiB)" \
    "Why: train.weighting is baseline instead of rho1." "predicted 100 ms instead of 150 ms per step, 33.3 % less" \
    "the held-out loss is 3.5000 instead of 5.5000" "!p/one" -- report p --out p.html

# ---- causes that can be causes, rewards before losses, axes and colours that mean what they say
cat >reasons.py <<'REASONS'
import json, os, random
random.seed(5)
for path, lr, threads, state, steps, noise in (("q/calm", 0.001, 1, "finished", 300, 0), ("q/noisy", 0.005, 2, "stopped", 200, 1)):
    os.makedirs(path)
    json.dump({"task": "rloo", "model": "m", "data": "d", "state": state, "step": steps, "steps": 300}, open(path + "/run.json", "w"))
    open(path + "/config.yaml", "w").write("train: {lr: %g}\nrl: {loss: grpo}\nrun: {threads: %d}\nelsewhere: {key: %d}\n" % (lr, threads, threads))
    with open(path + "/metrics.jsonl", "w") as f:
        for s in range(1, steps + 1):
            f.write(json.dumps({"step": s, "reward": 0.5 + noise * (random.random() - 0.5), "train/loss": -2e-9 * random.random(),
                                "epoch": s / 100, "tokens": 512 * s, "train/grad_norm": 1000 / s if s < 290 else 900,
                                "memory/device_bytes": (4 + noise) << 20, "perf/tokens_per_sec": 1000 * (1 + noise)}) + "\n")
os.makedirs("q3")
json.dump({"task": "sft", "state": "finished", "step": 3, "steps": 3}, open("q3/run.json", "w"))
with open("q3/metrics.jsonl", "w") as f:
    for s in 1, 2, 3:
        f.write(json.dumps({"step": s, "train/loss": 3 / s}) + "\n")
REASONS
python3 reasons.py || die "reasons.py"
check 0 "no setting that differs between them changes memory" "It cost speed" "noisy has not finished (stopped, step 200 of 300)" \
    "Settings that change speed alone differ too: run.threads is 1 instead of 2." "!train.lr" "!elsewhere" "the reward is" "!the loss" -- \
    report q --out q.html --charts q-charts
check 0 "(grpo)" "The reward went from 0.5000 to 0.5000" "!The loss" "!rloo" -- report q/calm --out q1.html
check 0 "grpo" "reward 0.5" "!rloo" "!-2e-09" -- runs q
check 0 -- report q3 --out q3.html --charts q3-charts
cat >axes.py <<'AXES'
import re
import xml.etree.ElementTree as tree
def classes(file):
    return [(e.get("class") or "", e.get("data-name")) for e in tree.parse(file).getroot().iter()]
def words(file):
    return [e.text for e in tree.parse(file).getroot().iter() if e.tag.endswith("text")]
across = [w for w in words("q3-charts/train-loss.svg") if re.fullmatch(r"[123](\.\d+)?", w or "")]
assert {"1", "2", "3"} <= set(across), across
assert not [e for e in tree.parse("q3-charts/train-loss.svg").getroot().iter() if e.get("text-anchor") == "middle" and "." in (e.text or "")], "steps are whole numbers"
for name in "epoch", "tokens":
    assert not any("logarithmic" in (w or "") for w in words("q-charts/%s.svg" % name)), name + " is counted, not spread"
assert any("logarithmic" in (w or "") for w in words("q-charts/train-grad_norm.svg"))
drawn = classes("q-charts/reward.svg")
faint = [n for c, n in drawn if "faint" in c.split() and n]
assert sorted(faint) == ["calm", "noisy"], "all runs of a chart are smoothed, or none: %s" % faint
page = open("q.html").read()
summary = page[:page.index("<h2")]
assert "reward" in summary and "train/loss</" not in summary.replace("<title>", ""), "rewards are on the first screen, the loss of a policy is not"
runs = {int(n) for c, _ in drawn for n in re.findall(r"\bl(\d+)\b", c)}
roles = {int(n) for c, _ in classes("charts/peak.svg") for n in re.findall(r"\bf(\d+)\b", c)}
colors = dict(re.findall(r"\.f(\d+)\{fill:(#\w+)\}", page[:page.index("prefers-color-scheme: dark) {")]))
assert runs and max(runs) < 12 <= min(roles), (runs, roles)
assert len(set(colors.values())) == len(colors) == 21, "no colour stands for two things"
css = open("%s/src/app/live/page/style.css" % __import__("os").environ["RALO_SOURCE"]).read()
for i, role in enumerate(("params", "grads", "states", "inputs", "cache", "comm", "activations", "work", "gaps")):
    assert colors[str(12 + i)] == re.search("--%s: (#\\w+)" % role, css)[1], "the live page shows %s in another colour" % role
AXES
python3 axes.py >wrong 2>&1 || fail "$(tail -n 1 wrong)"

# ---- PNG: each chart as pixels, with ink on them; where the library is not installed, a message says what to install
cat >pixels.py <<'PIXELS'
import glob, os, struct, sys, zlib
import xml.etree.ElementTree as tree
svg, png = ({os.path.basename(f)[:-4] for f in glob.glob(d)} for d in ("drawn/*.svg", "png/*.png"))
assert svg == png, "charts without a picture: %s" % sorted(svg ^ png)
for name in sorted(png):
    data, at, packed = open("png/%s.png" % name, "rb").read(), 8, b""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", name
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0], name
        if kind == b"IHDR":
            width, height, depth, colors = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + n
    assert (depth, colors) == (8, 2), name
    rows = zlib.decompress(packed)
    root = tree.parse("drawn/%s.svg" % name).getroot()
    assert (width, height) == tuple(2 * int(root.get(k)) for k in ("width", "height")), (name, width, height)
    assert len(rows) == height * (1 + 3 * width), name
    drawn = sum(len(set(rows[i + 1:i + 1 + 3 * width])) > 8 for i in range(0, len(rows), 1 + 3 * width))
    assert drawn > height // 10, "%s is nearly blank: ink in %d of %d rows" % (name, drawn, height)
    if name != "peak":
        continue
    # the bars of the activations are as large as in the SVG
    before, found, red = bytes(3 * width), 0, bytes.fromhex("b5374a")
    for i in range(0, len(rows), 1 + 3 * width):
        way, row = rows[i], bytearray(rows[i + 1:i + 1 + 3 * width])
        for k in range(3 * width if way != 0 and (way != 2 or any(row)) else 0):
            a, b, c = (row[k - 3] if k > 2 else 0), before[k], (before[k - 3] if k > 2 else 0)
            if way == 4:
                x, y, z = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                near = a if x <= y and x <= z else b if y <= z else c
            else:
                near = (0, a, b, (a + b) // 2)[way]
            row[k] = (row[k] + near) & 255
        if way == 2 and not any(row):
            row = before
        before = bytes(row)
        found += sum(before[k:k + 3] == red for k in range(0, 3 * width, 3)) if red in before else 0
    wanted = sum(4 * float(e.get("width")) * float(e.get("height")) for e in root.iter() if "f18" in (e.get("class") or "").split())
    assert wanted > 10000 and abs(found / wanted - 1) < 0.05, "activations: %d pixels, expected %d" % (found, wanted)
PIXELS
if "$RALO" report runs/plain --charts drawn --png png --out png.html >out 2>err; then
    python3 pixels.py >wrong 2>&1 || fail "$(tail -n 1 wrong)"
else
    grep -q 'apt-get install librsvg2-2' err || fail "--png without librsvg: $(cat err)"
    echo "PNG files are not looked at: $(cat err)"
fi
mkdir -p absent && echo "no library" >absent/librsvg-2.so.2
LD_LIBRARY_PATH=$work/absent${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} check 2 "librsvg-2.so.2 cannot be loaded" "apt-get install librsvg2-2" "--charts" -- \
    report runs/plain --png nothing --out nothing.html
[ ! -e nothing ] && [ ! -e nothing.html ] || fail "a report that was refused left files"
run 0 report runs/plain --out new/pages/plain.html
[ -s new/pages/plain.html ] || fail "a report made no directory for its page"

# ---- memory over the time of a traced step: every op at its time, the peak exact
cat >trace.py <<'TRACE'
import json, sys
import xml.etree.ElementTree as tree
tier = json.load(open("runs/plain/memory.json"))["tiers"][0]
total = dict(zip(tier["points"]["index"], (sum(c) for c in zip(*tier["points"]["bytes"]))))
if sys.argv[1] == "make":
    with open("plain.json", "w") as f:
        f.write('{"traceEvents":[\n')
        for n in range(3 * 900):
            op = 5 + n % 900
            f.write(" " * (n % 7 == 0) + json.dumps({"name": "x", "cat": "update" if op > 800 else "micro", "ph": "X", "pid": 0, "tid": 0,
                                                     "ts": 10 * n, "dur": 10, "args": {"op": op}}) + ",\n")
        f.write("{}\n]}\n")
else:
    for name in "time-line.svg", "time-line-smoothed.svg":
        line = [e for e in tree.parse("traced/" + name).getroot().iter() if e.get("data-name") == "plain"][0]
        xs, ys = ([float(v) for v in line.get(k).split()] for k in ("data-x", "data-y"))
        at = ys.index(max(ys))
        assert max(ys) == max(total.values()), (name, max(ys))
        assert abs(xs[at] - 0.01 * (max(total, key=total.get) - 5)) < 1e-6, (name, xs[at])
        assert name != "time-line.svg" or all(total[5 + round(x / 0.01)] == y for x, y in zip(xs, ys)), name
TRACE
python3 trace.py make && run 0 report runs/plain --trace plain.json --charts traced --out traced.html
python3 trace.py look >wrong 2>&1 || fail "$(tail -n 1 wrong)"

# ---- the list
cp -r runs/plain keep && mv keep runs/zz
check 0 "run " "state" "finished" "failed" "died" "400/500" "note: " "!$(printf '\033')" -- runs
[ "$("$RALO" runs --csv | python3 -c 'import csv, sys; rows = list(csv.DictReader(sys.stdin)); print(len(rows), rows[0]["state"] != "")')" = "5 True" ] ||
    fail "runs --csv"
"$RALO" runs --csv >list.csv
mkdir formulas # what a spreadsheet would run; numbers stay numbers
for name in '=1+1' '+1' '-1' '@a' $'\t=1' 'a=1'; do cp -r runs/plain "formulas/$name"; done
(cd formulas && "$RALO" runs --csv .) >formulas.csv
python3 - <<'CSV' || fail "runs --csv writes formulas: $(cut -c 1-60 formulas.csv)"
import csv
rows = list(csv.DictReader(open("formulas.csv")))
assert {r["name"].lstrip("'") for r in rows} == {"=1+1", "+1", "-1", "@a", "\t=1", "a=1"} and len(rows) == 6, [r["name"] for r in rows]
for r in rows:
    assert all(v[:1] not in tuple("=+@\t\r") for v in r.values()), r
    assert r["name"] == "a=1" or r["name"][0] == "'", r
    assert float(r["step"]) == 400 and float(r["loss"]) > 0, r
CSV
rm -r formulas
run 0 runs --json && holds "all(abs(float(c[k]) - j[k]) < 1e-4 for c, j in zip(__import__('csv').DictReader(open('list.csv')), r['runs']) for k in ('started', 'ended', 'changed') if j[k])"
run 0 runs --json && holds "len(r['runs']) == 5 and {x['state'] for x in r['runs']} == {'finished', 'failed', 'died', 'unfinished'}"
check 0 "memory.recompute" "norms" "none" "at step 100" "train/loss" -- runs --compare gone runs/plain
run 0 runs --compare gone plain --json && holds "r['settings']['memory.recompute'] == ['norms', 'none'] and r['step'] == 100"
LC_ALL=C COLUMNS=60 run 0 runs --plot loss plain && ! grep -q '[^ -~]' out && grep -q '\*' out || fail "plain ASCII where the locale is not UTF-8"
LC_ALL=C.UTF-8 COLUMNS=60 run 0 runs --plot train/loss plain && grep -q '⠀' out || fail "braille"
[ "$(python3 -c 'print(max(len(l.rstrip("\n")) for l in open("out", encoding="utf-8")))')" -le 60 ] || fail "wider than the terminal"
check 2 "no run has a metric 'losss'" "did you mean 'loss'" -- runs --plot losss
check 2 "expected two to compare" -- runs --compare plain
check 2 "expected one of them" -- runs --csv --plot loss
check 2 "found no run" -- report bench/../charts
check 2 "expected the directory of a run" -- report page.html
check 2 "expected its rloo.json" -- report runs/plain/plan.json
check 2 "no RUN" -- report
check 2 "--trace is about one run" -- report runs --trace x
mkdir many && for i in $(seq 13); do mkdir -p many/$i && : >many/$i/metrics.jsonl; done
check 2 "found 13 runs, at most 12" -- report many
check 0 "13" -- runs many

# ---- a real run of this program, with its trace
run 0 train --preset test-llama --set train.steps=3 --set run.dir=real --set train.eval_rows=0 --set train.problems=0 --set run.threads=1 --trace t.json
check 0 "trained test-llama on builtin:arithmetic (sft) for 3 of 3 steps" "Device memory peaked at" "tokens per second" -- \
    report real --trace t.json --out real.html
grep -q 'what runs at the same time' real.html || fail "no overlap of the real run"
check 0 "real" "finished" "3/3" -- runs real
finish "pictures hold the numbers of the runs, and text stays text"
