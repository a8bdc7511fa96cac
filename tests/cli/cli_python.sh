#!/bin/bash
# cli_python.sh - the Python module: its functions and structs are those of ralo.h, it does what the program does, it stops when it is
# told to, errors are exceptions, and the cells of its guide run. RALO names the program, beside which libralo.so was built.
. "$(dirname "$0")/../harness/check.sh"
need python3
library=$(dirname "$RALO")/public/libralo.so
[ -e "$library" ] || { echo "libralo.so was not built: build the target \`public\` (make)"; exit 77; }
! nm -D "$library" 2>/dev/null | grep -q '__[at]san_init' || { echo "a sanitizer's library must be loaded before Python"; exit 77; }
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { echo "python3 is older than 3.9"; exit 77; }
export PYTHONPATH=$project/bindings/python PYTHONDONTWRITEBYTECODE=1 RALO_LIBRARY=$library RALO

# python TEXT: a script on stdin; its last line says what is wrong
python() { timeout 120 python3 - >log 2>&1 || fail "$1: $(tail -n 3 log)"; }

# ---- what is declared: every function of the header, each with its arguments; every field of a struct where C has it
cat >compare.py <<'PY'
import ctypes, re, sys
from ralo import _library
header = re.sub(r"/\*.*?\*/", "", open(sys.argv[1]).read(), flags=re.S)
declared = {}
for name, arguments in re.findall(r"RALO_API[^;(]*?\b(ralo_\w+)\(([^)]*)\);", header):
    declared[name] = 0 if arguments.strip() == "void" else arguments.count(",") + 1
assert len(declared) > 40, declared
module = {name: len(arguments) for name, (_, arguments) in _library.FUNCTIONS.items()}
assert module == declared, {n: (module.get(n), declared.get(n)) for n in module.keys() | declared if module.get(n) != declared.get(n)}
if sys.argv[2:]:
    print('#include <ralo.h>\n#include <stdio.h>\nint main(void) {')
    for name, struct in _library.STRUCTS.items():
        print(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            print(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
    print('return 0; }')
PY
python3 compare.py "$project/include/ralo.h" >log 2>&1 || fail "ralo.h and the module differ: $(tail -n 1 log)"
if command -v "${CC:-cc}" >/dev/null; then
    python3 compare.py "$project/include/ralo.h" c >sizes.c
    "${CC:-cc}" -I"$project/include" sizes.c -o sizes && ./sizes >of_c || fail "the sizes do not compile"
    python "structs" <<'PY'
from ctypes import sizeof
from ralo import _library
mine = []
for name, struct in _library.STRUCTS.items():
    mine.append(f"{name} {sizeof(struct)}")
    mine += [f"{name}.{f} {getattr(struct, f).offset} {getattr(struct, f).size}" for f, *_ in struct._fields_]
theirs = open("of_c").read().splitlines()
assert mine == theirs, set(mine) ^ set(theirs)
PY
    # ---- another library is refused when it is imported
    echo 'const char *ralo_version(void) { return "1.0.0"; }' | "${CC:-cc}" -shared -fPIC -x c - -o other.so
    RALO_LIBRARY=$work/other.so python3 -c 'import ralo' 2>err && fail "a library of another version was taken"
    grep -q 'ImportError: ralo: .*other.so is version 1.0.0, this module needs 0.1.0' err || fail "other version: $(tail -n 1 err)"
    echo 'int nothing;' | "${CC:-cc}" -shared -fPIC -x c - -o foreign.so
    RALO_LIBRARY=$work/foreign.so python3 -c 'import ralo' 2>err && fail "a library of something else was taken"
    grep -q 'ImportError: ralo: .*foreign.so has no ralo_version: it is not libralo' err || fail "foreign: $(tail -n 1 err)"
    echo 'const char *ralo_version(void) { return "0.1.0"; }' | "${CC:-cc}" -shared -fPIC -x c - -o old.so
    RALO_LIBRARY=$work/old.so python3 -c 'import ralo' 2>err && fail "a library without functions was taken"
    grep -q 'ImportError: ralo: .*old.so has no ralo_.*older than this module' err || fail "old: $(tail -n 1 err)"
fi
RALO_LIBRARY=/nowhere.so python3 -c 'import ralo' 2>err && fail "a library that is not there was taken"
grep -q 'ImportError: ralo: libralo.so was not found; build it' err || fail "not there: $(tail -n 1 err)"

# ---- it does what the program does
settings=(--preset test-llama --set data.source=builtin:grammar --set data.seq_len=24 --set train.micro_batch=2 --set train.steps=6
    --set train.warmup=0 --set train.eval_rows=4 --set train.problems=0 --set train.eval_every=3 --set run.threads=1 --set train.sample_every=3
    --set train.samples=2 --set train.sample_tokens=4)
run 0 train "${settings[@]}" --set run.dir=program --json
python "the same run" <<'PY'
import json, math, ralo
config = {"model": {"preset": "test-llama"}, "data.source": "builtin:grammar", "data": {"seq_len": 24}, "run.threads": 1,
          "train": {"micro_batch": 2, "steps": 6, "warmup": 0, "eval_rows": 4, "problems": 0, "eval_every": 3, "sample_every": 3, "samples": 2,
                    "sample_tokens": 4}}
lines, told = [], []
r = ralo.train(config, on_log=lambda level, line: lines.append((level, line)), on_sample=told.append, out="module", run__export="exported")
theirs = json.loads(open("out").read().splitlines()[-1])
assert r["param_hash"] == theirs["param_hash"] and r["steps"] == 6 and r["stopped"] is None, (r["param_hash"], theirs["param_hash"])
rows = [json.loads(x) for x in open("program/metrics.jsonl")]
steps, evals = [x for x in rows if "train/loss" in x], [x for x in rows if "val/loss" in x]
assert [set(m) for m in r["metrics"]] == [set(x) - {"time"} for x in steps], (r["metrics"][0], steps[0])
near = lambda a, b: len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-8) for x, y in zip(a, b)) # the file has 9 digits
assert near([m["train/loss"] for m in r["metrics"]], [x["train/loss"] for x in steps])
assert near([e["val/loss"] for e in r["evaluations"]], [x["val/loss"] for x in evals]) and len(evals) == 2
samples = [json.loads(x) for x in open("program/samples.jsonl")]
assert [(s["step"], s["prompt"], s["completion"]) for s in r["samples"]] == [(s["step"], s["prompt"], s["completion"]) for s in samples]
assert told == r["samples"] and len(told) == 4
assert any(level == "info" and line.startswith("data      builtin:grammar") for level, line in lines), lines
assert r["data"]["seq_len"] == 24 and r["data"]["covered"] is None and r["plan"]["fits"] and r["plan"]["answer"].startswith("Fits: ")
whole, run = ralo.generate("exported", ["the ", "a"], max_new=5), ralo.generate("module", ["the ", "a"], max_new=5)
assert whole == run and len(whole[0]["tokens"]) == 5 and whole[1]["prompt"] == "a", (whole, run)
k = ralo.Tokenizer("byte")
assert k.decode(k.encode("h\u00e9")) == "h\u00e9" and k.vocab > 256 and k.eos is not None
PY
run 0 plan "${settings[@]}" --json
python "the same plan" <<'PY'
import json, ralo
s = ralo.Settings({"train": {"steps": 6, "warmup": 0}}, preset="test-llama", data="builtin:grammar", data__seq_len=24, train__micro_batch=2,
                  train__eval_rows=4, train__problems=0, train__eval_every=3, run__threads=1, train__sample_every=3, train__samples=2, train__sample_tokens=4)
mine, theirs = ralo.plan(s), json.loads(open("out").read().splitlines()[-1])
text = mine.pop("text")
assert text.splitlines()[0] == mine["answer"] and text.splitlines()[1].startswith("model     test-llama")
assert mine.keys() == theirs.keys() and mine["memory"] == theirs["memory"] and mine["strategy"] == theirs["strategy"], mine.keys() ^ theirs.keys()
PY

# ---- how often: in epochs, with patience, and between the updates of a rollout, as the program does
for i in $(seq 40); do echo "{\"prompt\": \"$i+1=\", \"completion\": \"$((i + 1))\"}"; done >sums.jsonl
rhythm=(--preset test-llama --data sums.jsonl --set train.micro_batch=2 --set data.seq_len=32 --set train.eval_rows=2 --set run.threads=1
    --set data.pack=false --set train.epochs=2 --set train.evals_per_epoch=2 --set train.saves_per_epoch=1 --set run.keep=all)
run 0 train "${rhythm[@]}" --set run.dir=rhythm
run 0 train "${rhythm[@]}" --set run.dir=patient --set train.lr=1e-30 --set train.patience=1
python "the same rhythm" <<'PY'
import json, os, ralo
config = dict(preset="test-llama", data="sums.jsonl", train__micro_batch=2, data__seq_len=32, train__eval_rows=2, run__threads=1, data__pack=False,
              train__epochs=2, train__evals_per_epoch=2, train__saves_per_epoch=1, run__keep="all")
def evaluated(run):
    return [row["step"] for row in map(json.loads, open(run + "/metrics.jsonl")) if "val/loss" in row]
r = ralo.train(out="rhythm-module", **config)
assert [e["step"] for e in r["evaluations"]] == evaluated("rhythm") and len(r["evaluations"]) == 4, r["evaluations"]
assert sorted(os.listdir("rhythm-module/checkpoints")) == sorted(os.listdir("rhythm/checkpoints")), os.listdir("rhythm-module/checkpoints")
r = ralo.train(out="patient-module", train__lr=1e-30, train__patience=1, run__export="patient-export", **config)
assert [e["step"] for e in r["evaluations"]] == evaluated("patient") and r["stopped"] == "patience", (r["stopped"], evaluated("patient"))
assert r["export"] == "patient-export" and os.path.exists("patient-export/config.json")
rollouts = dict(preset="test-llama", data="builtin:arithmetic", train__task="rloo", rl__prompts=2, rl__k=2, rl__updates=2, rl__max_completion=4,
                train__micro_batch=1, train__eval_rows=0, train__problems=0, run__threads=1)
r = ralo.train(train__steps=8, train__save_every=3, run__keep="all", out="rollouts", on_step=lambda m: m["step"] < 5, **rollouts)
assert r["stopped"] == "callback" and r["steps"] == 6, r["steps"] # the second update of its rollout, which a checkpoint needs
saved = sorted(name for name in os.listdir("rollouts/checkpoints") if name.startswith("step"))
assert saved == ["step-00000004", "step-00000006"], saved
with ralo.Trainer(train__steps=2, preset="test-llama", data="builtin:grammar", data__seq_len=24, train__micro_batch=2, train__eval_every=1) as t:
    assert t.due == set()
    t.step()
    assert t.due == {"evaluation"}
    t.step()
    assert t.due == {"end"}
PY

# ---- turns in the chat format of the training
mkdir tokenizer
cp "$TEST_FIXTURES/chat/bytes.json" tokenizer/tokenizer.json # has the control tokens of chatml
cat >turns.jsonl <<'END'
{"prompt": "a", "completion": "b"}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}
END
for i in $(seq 80); do cat turns.jsonl; done >talk.jsonl
XDG_CACHE_HOME=$work/home run 0 train --preset test-llama --set model.vocab=352 --set data.tokenizer=tokenizer --set data.seq_len=48 --set train.micro_batch=8 \
    --set train.steps=100 --set train.lr=0.01 --set train.warmup=0 --set train.eval_rows=2 --data talk.jsonl --out talk
python "turns" <<'PY'
import ralo
conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
with ralo.Generator("talk") as g:
    assert g.generate("a", chat=True)[0]["text"] == "b" and g.generate("a", chat=True)[0]["stop"] == "eos"
    assert g.generate(conversation, chat=True)[0]["text"] == "d", g.generate(conversation, chat=True)
    whole = g.plan()
    both = g.generate(["a", conversation], chat=True)
    assert [c["text"] for c in both] == ["b", "d"] and both[1]["prompt"] == conversation
    for wrong in ({"chat": False}, {"chat": True}):
        try:
            g.generate([[{"role": "user"}]], **wrong)
        except ralo.InputError as error:
            assert ("chat=True" if not wrong["chat"] else "content") in str(error), error
        else:
            raise AssertionError(wrong)
with ralo.Generator("talk", weights="int8") as g:
    assert g.generate("a", chat=True)[0]["text"] == "b" and "weights int8" in g.plan()["text"] and "weights int8" not in whole["text"], g.plan()["text"]
try:
    ralo.generate("module", "a", chat=True)
except ralo.InputError as error:
    assert "no chat format" in str(error), error
else:
    raise AssertionError("a model without a chat format")
PY

# ---- stopping, and errors
python "stops and errors" <<'PY'
import os, signal, threading, time, ralo
tiny = dict(preset="test-llama", data="builtin:grammar", data__seq_len=24, train__micro_batch=2, train__warmup=0, train__eval_rows=0, train__problems=0,
            run__threads=1)
r = ralo.train(train__steps=9, on_step=lambda m: m["step"] < 3, out="stopped", **tiny)
assert r["stopped"] == "callback" and r["steps"] == 3 and len(r["metrics"]) == 3 and r["evaluations"] == []
assert os.path.exists("stopped/checkpoints/step-00000003/checkpoint.json")
r = ralo.train(train__steps=9, out="stopped", run__resume="auto", **tiny)
whole = ralo.train(train__steps=9, **tiny)
assert r["steps"] == 9 and len(r["metrics"]) == 6 and r["param_hash"] == whole["param_hash"]
assert [m["train/loss"] for m in r["metrics"]] == [m["train/loss"] for m in whole["metrics"][3:]]

# a run that was done before is as `ralo train RUN` finds it: nothing is trained, saved or exported again
r = ralo.train(train__steps=2, out="done", run__export="done-model", **tiny)
before = os.stat("done/checkpoints/step-00000002/checkpoint.json")
lines = []
again = ralo.train(train__steps=2, out="done", run__export="done-model", run__resume="auto", on_log=lambda level, line: lines.append((level, line)), **tiny)
assert again["steps"] == 2 and again["metrics"] == [] and again["param_hash"] == r["param_hash"] and again["export"] == "done-model", again
assert os.stat("done/checkpoints/step-00000002/checkpoint.json").st_mtime_ns == before.st_mtime_ns
assert any(level == "warning" and "not exported again" in line for level, line in lines), lines

main = threading.main_thread().ident
trains = threading.Event()
def interrupt():
    trains.wait()
    time.sleep(0.05)  # anywhere in a step
    signal.pthread_kill(main, signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
r = ralo.train(train__steps=1000000, out="interrupted", on_step=lambda m: trains.set(), **tiny)
assert r["stopped"] == "interrupt" and 0 < r["steps"] < 1000000, r["steps"]
assert os.path.exists("interrupted/checkpoints/step-%08d/checkpoint.json" % r["steps"])
steps = [m["step"] for m in r["metrics"]]
assert steps == list(range(1, r["steps"] + 1)), (r["steps"], steps[-3:])  # the step in which it came has numbers too

# Ctrl-C while the step runs, for certain
step = ralo._lib.ralo_trainer_step
def interrupted_step(*arguments):
    signal.raise_signal(signal.SIGINT)
    return step(*arguments)
ralo._lib.ralo_trainer_step = interrupted_step
r = ralo.train(train__steps=9, **tiny)
ralo._lib.ralo_trainer_step = step
assert r["stopped"] == "interrupt" and r["steps"] == 1 and [m["step"] for m in r["metrics"]] == [1], r

opens = ralo._lib.ralo_trainer_open
def interrupted(handle, settings):
    status = opens(handle, settings)
    signal.raise_signal(signal.SIGINT)
    return status
ralo._lib.ralo_trainer_open = interrupted
try:
    ralo.train(train__steps=2, out="early", **tiny)
except KeyboardInterrupt as error:
    early = error  # with its frames, as a notebook keeps them
else:
    raise AssertionError("Ctrl-C while the trainer opened was lost")
ralo._lib.ralo_trainer_open = opens
assert ralo.train(train__steps=2, out="early", **tiny)["steps"] == 2  # refused if the first were still open

def refused(kind, text, function, *arguments, **more):
    try:
        function(*arguments, **more)
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"{text}: was taken")

def broken(_):
    raise KeyError("mine")
refused(KeyError, "mine", ralo.train, on_step=broken, train__steps=2, **tiny)
refused(KeyError, "mine", ralo.train, on_log=lambda level, line: broken(line), train__steps=2, **tiny)
refused(KeyError, "mine", ralo.train, on_sample=broken, train__sample_every=1, train__sample_tokens=2, train__steps=2, **tiny)
# an export that cannot be made is refused before the first step, as by ralo train: after the last one the numbers would be lost too
os.makedirs("taken/inner")
open("taken.gguf", "w").close()
for export, text in (("taken", "taken holds files already (inner)"), ("taken.gguf", "taken.gguf: the file exists"), ("new.gguf", "set run.dir"),
                     ("taken.gguf/model", "taken.gguf"), ("model.safetensors", "expected a directory")):
    begun = []
    where = {} if export == "new.gguf" else {"out": "not-begun"}
    refused(ralo.Error, text, ralo.train, train__steps=2, run__export=export, on_step=begun.append, **where, **tiny)
    assert begun == [], export
refused(ValueError, "did you mean 'train.steps'", ralo.plan, train__stepz=3)
refused(ralo.InputError, "did you mean 'gpt2'", ralo.plan, preset="gtp2")
refused(MemoryError, "Fits with: ", ralo.train, memory__device="1500K", memory__strategy="manual", train__steps=1, **tiny)
assert not ralo.plan(memory__device="1500K", memory__strategy="manual", **tiny)["fits"]
refused(ralo.Error, "/nowhere", ralo.generate, "/nowhere", "a")
refused(ralo.InputError, "no prompt", ralo.generate, "stopped", [])
t = ralo.Trainer(train__steps=1, **tiny)
assert t.evaluate() is None
refused(ralo.InputError, "train.sample_every is 0", t.sample)
refused(ralo.InputError, "run.dir is not given", t.save)
t.close()
t.close()
refused(ralo.Error, "closed", t.step)
assert refused(ralo.Error, "", ralo.Settings, "/nowhere.yaml").status == 3
PY

# ---- one handle, several threads: they take turns; a callback of a call may not use its trainer, which would be freed below it
python "threads" <<'PY'
import threading, ralo
tiny = dict(preset="test-llama", data="builtin:grammar", data__seq_len=24, train__micro_batch=2, train__warmup=0, train__eval_rows=0, train__problems=0,
            run__threads=2)
def together(work):
    out, threads = [], []
    for i in range(4):
        def one():
            try:
                for k in range(5):
                    out.append(work())
            except BaseException as error:
                out.append(error)
        threads.append(threading.Thread(target=one))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out

with ralo.Generator("stopped", threads=2) as g:
    want = g.generate(["a", "b"], max_new=8)
    assert together(lambda: g.generate(["a", "b"], max_new=8)) == [want] * 20
alone = ralo.train(train__steps=20, **tiny)
with ralo.Trainer(train__steps=20, **tiny) as t:
    steps = together(t.step)
    assert sorted(m["step"] for m in steps) == list(range(1, 21)), steps
    assert t.param_hash == alone["param_hash"]

for name in ("step", "save", "close"):
    t = ralo.Trainer(train__steps=4, train__sample_every=1, train__sample_tokens=2, on_sample=lambda s: getattr(t, name)(), **tiny)
    t.step()
    try:
        t.sample()
    except ralo.Error as error:
        assert "callback" in str(error), error
    else:
        raise AssertionError(f"{name} in a callback was taken")
    t.close()
PY

# ---- arguments of another type, or beyond their field in C: an error that names them, never a crash or another number
python "arguments" <<'PY'
import ralo

def refused(kind, texts, function, *arguments, **more):
    try:
        got = function(*arguments, **more)
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"{arguments} {more} was taken: {got}")

for name in ("precision", "weights", "adapter"):
    refused(TypeError, [name, "found 8", "expected a text"], ralo.Generator, "stopped", **{name: 8})
refused(TypeError, ["found 3", "expected a text"], ralo.Generator, 3)
refused(TypeError, ["found 3", "expected a text"], ralo.export, "stopped", 3)
for name in ("cache_bytes", "device_memory"):
    refused(ralo.InputError, [name, "found -1"], ralo.Generator, "stopped", **{name: -1})
refused(ralo.InputError, ["threads", "found 4294967297"], ralo.Generator, "stopped", threads=2**32 + 1)
with ralo.Generator("stopped") as g:
    for name, number in (("seed", -1), ("seed", 2**64), ("max_new", 2**64 + 1), ("top_k", 2**64 + 1), ("n", 2**64 + 1)):
        refused(ralo.InputError, [name, f"found {number}"], g.generate, "a", **{name: number})
    refused(TypeError, ["found 3", "expected a text"], g.generate, "a", stop=[3])
    turn = {"role": "user", "content": "a"}
    for prompts in (3, None, b"abc", [3], ["a", None], turn):
        refused(TypeError, ["prompt", "expected a text"], g.generate, prompts)
    refused(TypeError, ["found {'role': 'user'", "[{...}]"], g.generate, turn, chat=True)  # its keys are no prompts
    assert g.generate("a", max_new=1, seed=2**64 - 1, stop=("x",))[0]["tokens"]
for settings in (dict(lora=True), dict(config={"lora": True}), dict(config=ralo.Settings(), lora=True)):
    assert ralo.plan(preset="test-llama", **settings)["strategy"] == ralo.plan(preset="test-llama", lora=16)["strategy"]
assert ralo.plan(ralo.Settings(preset="test-llama"), lora=False)["trained_parameters"] == ralo.plan(preset="test-llama")["parameters"]
with ralo.Settings(data=b"a.txt") as s:
    assert s.get("data.source") == "a.txt"  # not "b'a.txt'"
import copy, pickle
for handle in (ralo.Settings(), ralo.Tokenizer("byte")):
    for way in (copy.copy, copy.deepcopy, pickle.dumps):  # two objects would free one handle
        refused(TypeError, [type(handle).__name__, "cannot be copied"], way, handle)
with ralo.Tokenizer("byte") as t:
    refused(TypeError, ["found 3", "expected a text"], t.encode, 3)
    assert t.encode(b"\xff") == [255] and t.encode(bytearray(b"a")) == [97]
    refused(ralo.InputError, ["token 2 is 4294967361"], t.decode, [65, 2**32 + 65])
    assert t.decode([65]) == "A"
PY

# ---- the cells of the guide, one after the other
python3 - "$project/docs/guide/python.md" >cells.py <<'PY'
import re, sys
print("\n".join(re.findall(r"(?ms)^```python\n(.*?)^```", open(sys.argv[1]).read())))
print('assert losses[-1] < losses[0] / 2 and result["steps"] == len(losses) and tuned["steps"] > 0, losses')
PY
timeout 120 python3 cells.py >log 2>&1 || fail "the guide: $(tail -n 3 log)"
[ -e sums-merged/model.safetensors ] && [ -e sums-adapter/adapter_config.json ] && [ -e sums-by-hand/config.json ] || fail "the guide left $(ls)"
finish "the module does what the program does"
