"""browser_live.py - the live page in a real browser, with the standard library alone.

While a run trains: values move, the curve grows, the bars of memory add up to the plan. Afterwards: the same with `ralo live`. At 400 and
1400 pixels, dark and light: nothing is wider than the page, text has contrast, everything has a label, no script or policy
error. Text of files stays text. A page of another origin reads nothing."""
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

from devtools import Browser

RALO = os.environ["RALO"]
PICTURES = os.environ.get("RALO_SCREENSHOTS")
SETTINGS = ["--preset", "test-gpt2", "--set", "run.threads=1", "--set", "train.sample_every=20", "--set", "train.eval_every=20",
            "--set", "train.problems=0", "--set", "run.save_last=false", "--set", "train.micro_batch=4"]


def check(true, what):
    if not true:
        raise SystemExit(f"FAILED: {what}")


def start(command, stream):
    """The process, and the address that it prints."""
    process = subprocess.Popen([RALO] + command, stdin=subprocess.DEVNULL, stdout=open("started.out", "wb"), stderr=open("started.err", "wb"))
    for _ in range(1000):
        found = re.search(rb"http://\S+", open(f"started.{stream}", "rb").read())
        if found:
            return process, found[0].decode()
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"FAILED: ralo {' '.join(command)}: {open('started.err').read()[-500:]}")


def write(path, value):
    with open(path + ".tmp", "w") as f:
        json.dump(value, f)
    os.rename(path + ".tmp", path)


def complete(run, pid):
    """Files of the run directory that this ralo does not write itself, in the form that it would."""
    if not os.path.exists(f"{run}/plan.json"):
        plan = subprocess.run([RALO, "plan", "--json"] + SETTINGS, capture_output=True, check=True).stdout
        write(f"{run}/plan.json", json.loads(plan.splitlines()[-1]))
    plan = json.load(open(f"{run}/plan.json"))
    roles, planned = plan["memory"]["by_role"], plan["memory"]["device"]["planned"]
    if not os.path.exists(f"{run}/memory.json"):
        n, peak = 90, 40
        moves = {"activations", "work", "grads", "gaps"}
        rows = [[b if i == peak or r not in moves else int(b * (1 - abs(i - peak) / n * 1.6) * 0.95) for i in range(n)] for r, b in roles.items()]
        write(f"{run}/memory.json", {"version": 1, "roles": list(roles), "tiers": [{
            "tier": "device", "planned_peak": planned, "measured_peak": planned, "limit": None,
            "points": {"op": ["linear", "attention", "gelu"] * (n // 3), "section": ["micro"] * 80 + ["update"] * 10, "bytes": rows},
            "peak": {"at": peak, "values": [], "others_bytes": 0}}]})
    if not os.path.exists(f"{run}/run.json"):
        write(f"{run}/run.json", {"version": 1, "ralo": "?", "task": "sft", "model": "test-gpt2", "data": "builtin:arithmetic", "host": os.uname().nodename,
                                  "pid": pid, "world": 1, "started": time.time() - 2, "ended": None, "state": "running", "error": None, "step": 0, "steps": 400,
                                  "epochs": None, "records": None})
    if not os.path.exists(f"{run}/monitor"):
        os.mkdir(f"{run}/monitor")
        with open(f"{run}/monitor/rank-00000.jsonl", "w") as f:
            for i in range(3):
                f.write(json.dumps({"time": time.time() - 3 + i, "step": i, "rss_bytes": 50e6 + i * 1e5, "device_bytes": planned, "driver_bytes": None, "host_bytes": 0}) + "\n")
    with open(f"{run}/samples.jsonl", "a") as f:
        f.write(json.dumps({"step": 1, "prompt": "<img src=x onerror=\"document.title='broken'\">", "completion": "<script>document.title='broken'</script>", "stop": "eos"}) + "\n")
    return planned


STEP = "Number((document.querySelector('[data-tile=step] dd') || {textContent: '0'}).textContent.split('/')[0].replaceAll(',', ''))"
POINTS = "Number(document.querySelector('[data-metric=loss] svg').dataset.points)"
DRAWN = "document.querySelectorAll('.memory-bar').length > 0 && document.querySelector('[data-metric=loss] svg path') !== null && document.querySelectorAll('#ranks tbody tr').length > 0"
# Contrast of text with what lies behind it, after WCAG 2: the lowest of all elements with text of their own.
CONTRAST = """(() => {
  const light = c => { const v = c.map(x => { x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const parse = s => { const m = s.match(/[\\d.]+/g).map(Number); return { c: m.slice(0, 3), a: m.length > 3 ? m[3] : 1 }; };
  let worst = 99, where = '';
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length || ['OPTION', 'SELECT', 'MARK'].includes(e.tagName)) continue;
    let back = e; while (back && parse(getComputedStyle(back).backgroundColor).a === 0) back = back.parentElement;
    const s = getComputedStyle(e), a = light(parse(e instanceof SVGElement ? s.fill : s.color).c), b = light(parse(back ? getComputedStyle(back).backgroundColor : 'rgb(255,255,255)').c);
    const r = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (r < worst) { worst = r; where = e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 40); }
  }
  return [worst, where];
})()"""
UNLABELLED = """[...document.querySelectorAll('svg[role=img], [role=progressbar], input, select, section')].filter(e => e.getClientRects().length &&
  !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || (e.labels && e.labels.length))).map(e => e.outerHTML.slice(0, 80))"""
BARS = "[...document.querySelectorAll('.memory-bar')].map(b => [Number(b.dataset.total), [...b.querySelectorAll('[data-bytes]')].reduce((n, p) => n + Number(p.dataset.bytes), 0)])"


def look(page, planned, name):
    """What holds at every width and in both colours."""
    page.wait(DRAWN)
    page.size(page.width, page.eval("document.documentElement.scrollHeight"))  # all of it is on the screen
    page.wait(f"({BARS}).length > 0 && ({BARS})[0][1] === {planned}")
    for total, parts in page.eval(BARS):
        check(total == parts, f"{name}: bars of {parts} bytes, planned {total}")
    check(page.eval("document.documentElement.scrollWidth") <= page.width, f"{name}: wider than {page.width}")
    worst, where = page.eval(CONTRAST)
    check(worst >= 4.5, f"{name}: contrast {worst:.2f} of {where}")
    check(page.eval(UNLABELLED) == [], f"{name}: without a label: {page.eval(UNLABELLED)}")
    check(page.eval("document.querySelectorAll('#samples img, #samples script').length") == 0, f"{name}: text of a file became HTML")
    check("broken" not in page.eval("document.title"), f"{name}: a script of a file ran")
    page.wait("[...document.querySelectorAll('.chart:not([hidden]) svg')].every(s => s.querySelector('path'))")
    check(page.eval("document.querySelector('[data-tier=device] svg path') !== null"), f"{name}: no memory over the step")
    check(page.complaints() == [], f"{name}: {page.complaints()}")
    if PICTURES:
        page.screenshot(f"{PICTURES}/{name}.png", whole=True)
    page.size(page.width, page.height)


def while_it_trains(browser, page_url, planned):
    wide = browser.page(1400, 900)
    wide.open(page_url)
    wide.wait(DRAWN)
    step, points = wide.eval(STEP), wide.eval(POINTS)
    wide.wait(f"{STEP} > {step} && {POINTS} > {points}")
    check(wide.eval("document.getElementById('state').textContent") == "running", "the state of a run that trains")
    look(wide, planned, "live-light")
    narrow = browser.page(400, 800, dark=True)
    narrow.open(page_url)
    look(narrow, planned, "live-narrow-dark")
    check(narrow.eval("getComputedStyle(document.body).backgroundColor") != wide.eval("getComputedStyle(document.body).backgroundColor"), "dark as light")
    # A pointer over the step shows the bytes of that op, the arrow keys read a curve.
    wide.eval("document.querySelector('[data-tier=device] svg').dispatchEvent(new PointerEvent('pointermove', {clientX: 200, bubbles: true}))")
    wide.wait("document.querySelector('.memory-bar h3').textContent.includes('by role at ') && !document.querySelector('.memory-bar h3').textContent.includes('at the peak')")
    wide.eval("document.querySelector('[data-metric=loss] svg').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))")
    wide.wait("document.querySelector('[data-metric=loss] .readout').textContent.startsWith('step ')")
    return wide


SETTING = "(document.querySelector('[data-setting=\"%s\"] dd') || {textContent: ''}).textContent"
METERS = "['GPUs busy, mean', 'GPU power, sum', 'hottest GPU'].map(k => (document.querySelector(`[data-tile=\"${k}\"] dd`) || {}).textContent)"


def what_is_trained(page, run):
    """The settings that matter come before the curves; meters of a GPU are shown where a rank has them, and only there."""
    for name, text in (("learning rate", "0.003, cosine, warmup 50 steps"), ("precision", "fp32"), ("LoRA", "no"), ("data", "builtin:arithmetic"),
                       ("epochs", "100,000 steps of endless data"), ("batch", "4 rows of 128 tokens, micro-batch 4")):
        check(page.eval(SETTING % name) == text, f"{name}: {page.eval(SETTING % name)!r}, expected {text!r}")
    check(page.eval("document.getElementById('settings').compareDocumentPosition(document.getElementById('plan')) & 4") == 4, "settings after the plan")
    check(page.eval("document.querySelectorAll('#ranks [data-meter]:not([hidden]), [data-tile^=GPU], #run-meters svg').length") == 0, "meters without a GPU")
    with open(f"{run}/monitor/rank-00001.jsonl", "w") as f:
        for i in range(3):
            f.write(json.dumps({"time": time.time() - 3 + i, "step": i, "rss_bytes": 5e7, "gpu_busy_percent": 95 + i, "gpu_watts": 640.25, "gpu_celsius": 61}) + "\n")
    page.wait(f"JSON.stringify({METERS}) === JSON.stringify(['97 %', '640 W', '61 °C'])")
    check(page.eval("document.querySelectorAll('#ranks th:not([hidden])').length") == 11, "columns of the meters")
    page.open(page.eval("location.href"))  # the rank is new: its curves come with the page
    page.wait("document.querySelectorAll('#rank-choice option').length === 2")
    page.eval("(() => { const c = document.getElementById('rank-choice'); c.value = '1'; c.dispatchEvent(new Event('change')); })()")
    page.size(page.width, page.eval("document.documentElement.scrollHeight"))
    page.wait("[...document.querySelectorAll('#run-meters svg path')].length === 3")
    page.size(page.width, page.height)
    os.unlink(f"{run}/monitor/rank-00001.jsonl")


ATTACK = """<!doctype html><title>other</title><body><script>
const target = %r, results = {};
const done = (k, v) => { results[k] = v; if (Object.keys(results).length === 5) document.title = JSON.stringify(results); };
fetch(target + 'api/run').then(r => r.text()).then(t => done('fetch', 'read ' + t), () => done('fetch', 'refused'));
fetch(target + 'api/run', {mode: 'no-cors'}).then(r => r.text()).then(t => done('opaque', t ? 'read' : 'refused'), () => done('opaque', 'refused'));
const s = document.createElement('script'); s.src = target + 'app.js'; s.onload = () => done('script', 'ran'); s.onerror = () => done('script', 'refused'); document.head.append(s);
const e = new EventSource(target + 'events'); e.onopen = () => done('events', 'read'); e.onerror = () => { e.close(); done('events', 'refused'); };
const f = document.createElement('iframe'); f.src = target; f.onload = () => { let v = 'refused'; try { if (f.contentDocument && f.contentDocument.getElementById('name')) v = 'read'; } catch (x) {} done('frame', v); }; document.body.append(f);
</script>"""


def another_origin(browser, page_url):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write((ATTACK % page_url.partition("?")[0]).encode())  # it knows the address, and the browser has the cookie

        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)  # a browser keeps connections that ask nothing
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.page(800, 600)
    page.open(f"http://127.0.0.1:{server.server_port}/")
    page.wait("document.title.startsWith('{')")
    results = json.loads(page.eval("document.title"))
    server.shutdown()
    check(set(results.values()) == {"refused"}, f"another origin: {results}")


def main():
    run = "run"
    process, url = start(["train", "--live", "--set", f"run.dir={run}", "--set", "train.steps=100000"] + SETTINGS, "err")
    try:
        while not os.path.exists(f"{run}/metrics.jsonl") or os.path.getsize(f"{run}/metrics.jsonl") == 0:
            check(process.poll() is None, "the run ended")
            time.sleep(0.05)
        planned = complete(run, process.pid)
        with Browser() as browser:
            page = while_it_trains(browser, url, planned)
            what_is_trained(page, run)
            another_origin(browser, url)
            process.send_signal(signal.SIGINT)
            check(process.wait(60) == 130, "the run did not stop as it should")
            page.wait("document.getElementById('connection').textContent.includes('has ended')")
            last = max(json.loads(x)["step"] for x in open(f"{run}/metrics.jsonl"))
            description = json.load(open(f"{run}/run.json"))
            if description["state"] == "running":  # this ralo does not say it itself
                write(f"{run}/run.json", {**description, "state": "stopped", "ended": time.time(), "step": last})
            process, url = start(["live", run], "out")
            for width, dark, name in ((1400, True, "after-dark"), (400, False, "after-narrow-light")):
                after = browser.page(width, 900, dark)
                after.open(url)
                look(after, planned, name)
                check(after.eval("document.getElementById('state').textContent") == "stopped", "the state of a run that was stopped")
                check(after.eval(STEP) == last, f"{after.eval(STEP)} of {last} steps")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    print("the live page in a real browser: while a run trains and afterwards, 400 and 1400 pixels, dark and light")


if __name__ == "__main__":
    sys.exit(main())
