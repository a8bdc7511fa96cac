#!/usr/bin/env python3
"""kills.py - kill training runs at random moments, resume them, and check that nothing was lost.

    tests/soak/kills.py --ralo build/ralo --kills 1000           `make soak` calls it so
    tests/soak/kills.py --ralo build/ralo --seed 7 --round 12    one round again

A round takes one row of SCENARIOS, kills it (SIGKILL) some times at moments of several kinds, resumes it every time and lets it
finish. Each scenario is run once without kills first; that run is the reference. After every kill:

  - every directory with the name of a checkpoint has the reference's bytes, file by file
  - the newest one is not older than the newest that stood there before the kill, and the resumed run says that it goes on from it
  - metrics.jsonl has every step once, in order, without a gap, up to the newest checkpoint at least
  - an export is not there, or has the reference's bytes
  - no process, no nvme file is left

and at the end: param_hash, metrics and evaluations equal the reference's, and no temporary file is left.

What a round does follows from --seed and its number; the exact moment of a kill is the machine's. A failed round keeps its
directory. Exit status 1: something was lost.
"""
import argparse, collections, filecmp, json, os, random, re, shutil, signal, subprocess, sys, threading, time

STEPS = 12
BASE = {"model.hidden": 32, "model.heads": 2, "model.kv_heads": 2, "model.ffn": 64, "model.max_positions": 32,
        "data.seq_len": 16, "train.micro_batch": 1, "train.steps": STEPS, "train.eval_rows": 0, "train.problems": 0,
        "train.log_every": 1, "train.save_every": 1, "run.threads": 1, "run.bind": "false", "run.keep": 2}
EVAL = {"train.eval_every": 3, "train.eval_rows": 8, "train.problems": 2}
NVME = {"memory.offload.params": "nvme", "memory.offload.grads": "nvme", "memory.offload.states": "nvme",
        "memory.offload.activations": "nvme"}
FP16 = {"precision": "fp16", "train.fp16.loss_scale_window": 2, "train.fp16.hysteresis": 1,
        "train.fp16.initial_scale_power": 24}

# name, ranks, settings over BASE. With a "run.export" the trained model is exported at the end of the run.
SCENARIOS = [
    ("plain", 1, {}),
    ("evaluations", 1, EVAL),
    ("keep 1, a save in 3 steps, evaluations", 1, {"train.save_every": 3, "run.keep": 1, **EVAL}),
    ("keep all", 1, {"run.keep": "all", "train.save_every": 2}),
    ("bf16_sr, states int8, evaluations", 1, {"precision": "bf16_sr", "memory.states": "int8", **EVAL}),
    ("bf16, 3 micro-batches", 1, {"precision": "bf16", "train.accumulation": 3}),
    ("fp16 loss scale", 1, FP16),
    ("nvme", 1, NVME),
    ("nvme, fp16, evaluations", 1, {**NVME, **FP16, **EVAL}),
    ("host offload, recompute", 1, {"memory.offload.states": "host", "memory.offload.activations": "host",
                                    "memory.recompute": "full", "precision": "bf16"}),
    ("text with a token cache", 1, {"data.source": "{top}/text.txt", "data.cache": "{work}/cache", "train.eval_rows": 4}),
    ("export at the end", 1, {"run.export": "{work}/exported", "train.save_every": 4}),
    ("data 2, zero 0", 2, {"parallel.zero": 0}),
    ("data 2, zero 1, evaluations", 2, {"parallel.zero": 1, **EVAL}),
    ("data 3, zero 2, evaluations", 3, {"parallel.zero": 2, **EVAL}),
    ("data 2, zero 3, nvme", 2, {"parallel.zero": 3, "memory.offload.states": "nvme", "train.save_every": 2}),
    ("data 4, zero 3, fp16", 4, {"parallel.zero": 3, **FP16}),
    ("tensor 2, evaluations", 2, {"parallel.tensor": 2, **EVAL}),
    ("pipeline 2, evaluations", 2, {"parallel.pipeline": 2, "train.accumulation": 2, **EVAL}),
    ("data 2, messages, evaluations", 2, {"parallel.zero": 2, "comm.shared_memory": "false", **EVAL}),
    ("data 2, export at the end", 2, {"parallel.zero": 1, "run.export": "{work}/exported", "train.save_every": 4}),
]
# When a kill comes, and with what weight among those that can be: less than half of the scenarios evaluate, and only a run that has
# saved something resumes.
MOMENTS = {"any": 15, "starting": 12, "training": 15, "saving": 20, "evaluating": 40, "resuming": 20}
# Whom it takes in a run of many ranks.
VICTIMS = {"one rank": 50, "all ranks": 35, "launcher": 15}
GONE_S = 120  # until the last process of a killed run has gone
RUN_S = 300   # until a run ends


class Lost(Exception):
    pass


def choose(rng, table):
    return rng.choices(list(table), list(table.values()))[0]


# ---- processes -------------------------------------------------------------------------------------------------------


def processes(mark):
    """Of a run: pid -> (name, rank or None), by the mark in its environment, which every child inherits."""
    found = {}
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                env = f.read()
            if mark not in env:
                continue
            with open(f"/proc/{pid}/stat") as f:
                name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
            if rest.split()[0] in "ZX":
                continue
        except (OSError, IndexError):
            continue
        rank = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)\0", b"\0" + env)
        found[int(pid)] = (name, int(rank[1]) if rank else None)
    return found


def send_kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Run:
    """One process of ralo, or a launcher with its ranks; stderr and stdout go to files."""

    def __init__(self, arguments, work, n_ranks=1):
        self.mark_value = f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
        self.mark = f"RALO_SOAK={self.mark_value}".encode()
        self.work, self.n_ranks = work, n_ranks
        self.err, self.out = f"{work}/err", f"{work}/out"
        env = dict(os.environ, RALO_SOAK=self.mark_value, TMPDIR=f"{work}/tmp")
        with open(self.err, "wb") as err, open(self.out, "wb") as out:
            self.start = time.monotonic()
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)
        self.ranks, self.looked = {}, 0.0

    def text(self):
        with open(self.err, errors="replace") as f:
            return f.read()

    def ended(self):
        return self.process.poll() is not None

    def look_for_ranks(self, now):
        """Found before the kill, so that it comes when it should. Looking takes milliseconds."""
        if self.n_ranks > 1 and len(self.ranks) < self.n_ranks and (now or time.monotonic() - self.looked > 0.05):
            self.ranks = {rank: pid for pid, (name, rank) in processes(self.mark).items() if rank is not None and name == "ralo"}
            self.looked = time.monotonic()

    def victims(self, whom, rng):
        if self.n_ranks == 1:
            return [self.process.pid]
        if whom == "one rank" and self.ranks:
            return [self.ranks[rng.choice(sorted(self.ranks))]]
        if whom == "launcher":
            launchers = [pid for pid, (name, rank) in processes(self.mark).items() if name == "mpirun"]
            return launchers or [self.process.pid]
        return sorted(self.ranks.values()) + [self.process.pid] + list(processes(self.mark))

    def wait_gone(self):
        """All of its processes, also those that lost their parent."""
        deadline = time.monotonic() + GONE_S
        while not self.ended() or (self.n_ranks > 1 and processes(self.mark)):
            if time.monotonic() > deadline:
                left = processes(self.mark)
                send_kill(left)
                raise Lost(f"{GONE_S} s after the kill these processes were still there: {left}")
            time.sleep(0.005)
        return self.process.returncode

    def finish(self):
        try:
            return self.process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            send_kill(list(processes(self.mark)) + [self.process.pid])
            raise Lost(f"the run did not end within {RUN_S} s") from None


# ---- what is on disk -------------------------------------------------------------------------------------------------


def same_tree(a, b):
    """The first difference of two directories, or None."""
    if not os.path.isdir(a):
        return f"{a} is no directory"
    if sorted(os.listdir(a)) != sorted(os.listdir(b)):
        return f"{a} has {sorted(os.listdir(a))}, expected {sorted(os.listdir(b))}"
    for name in os.listdir(a):
        if not filecmp.cmp(f"{a}/{name}", f"{b}/{name}", shallow=False):
            return f"{a}/{name} differs from {b}/{name}"
    return None


def checkpoints(run_dir):
    """step -> directory."""
    try:
        names = os.listdir(f"{run_dir}/checkpoints")
    except FileNotFoundError:
        return {}
    return {int(m[1]): f"{run_dir}/checkpoints/{m[0]}" for m in (re.fullmatch(r"step-(\d+)", n) for n in names) if m}


def temporary(top):
    found = []
    for where, dirs, files in os.walk(top):
        found += [f"{where}/{n}" for n in dirs + files if ".tmp" in n or n.startswith(".old-")]
    return found


def metrics(run_dir):
    """The whole lines, without what differs from run to run."""
    try:
        with open(f"{run_dir}/metrics.jsonl") as f:
            lines = f.read().split("\n")
    except FileNotFoundError:
        return []
    records = []
    for line in lines[:-1]:  # a torn last line is cut off by the next run
        try:
            record = json.loads(line)
        except ValueError:
            raise Lost(f"metrics.jsonl holds a line that is no JSON: {line[:200]!r}") from None
        records.append({k: v for k, v in record.items() if not k.startswith("perf/")})
    return records


def check_metrics(records, newest):
    steps = [r["step"] for r in records if "train/loss" in r]
    if steps != list(range(1, len(steps) + 1)):
        raise Lost(f"metrics.jsonl has the steps {steps}, expected each once")
    if len(steps) < newest:
        raise Lost(f"metrics.jsonl ends with step {len(steps)}, but there is a checkpoint of step {newest}")
    evaluated = [r["step"] for r in records if "train/loss" not in r]
    if len(set(evaluated)) != len(evaluated):
        raise Lost(f"metrics.jsonl has the evaluations {evaluated}, expected each once")


# ---- a scenario ------------------------------------------------------------------------------------------------------


class Scenario:
    """Settings, and the run without kills that the others are held against. It keeps all of its checkpoints."""

    def __init__(self, ralo, row, top):
        self.name, self.n_ranks, self.own = row
        self.ralo, self.top = ralo, top
        self.lock = threading.Lock()
        self.work = None

    def arguments(self, work, **changed):
        settings = {**BASE, **self.own, "run.dir": f"{work}/run", **changed}
        if "nvme" in self.own.values():
            settings["memory.nvme_path"] = f"{work}/nvme"
        out = [self.ralo, "train", "--preset", "test-gpt2", "--hardware", "cpu-2", "--json", "--resume", "auto"]
        if self.n_ranks > 1:
            out += ["--ranks", str(self.n_ranks)]
        for key, value in settings.items():
            if value is not None:
                out += ["--set", f"{key}={value}".replace("{work}", work).replace("{top}", self.top)]
        return out

    def prepare(self, work):
        for name in ("tmp", "nvme"):
            os.makedirs(f"{work}/{name}")

    def ensure_reference(self):
        with self.lock:
            if self.work is None:
                self.make_reference(f"{self.top}/reference-{SCENARIOS.index((self.name, self.n_ranks, self.own)):02d}")
        return self.work

    def make_reference(self, work):
        self.prepare(work)
        run = Run(self.arguments(work, **{"run.keep": "all"}), work, self.n_ranks)
        first_step = None
        while not run.ended():
            if first_step is None and "step 1/" in run.text():
                first_step = time.monotonic() - run.start
            time.sleep(0.002)
        self.seconds = time.monotonic() - run.start
        self.first_step_s = first_step or self.seconds
        if run.finish() != 0:
            raise Lost(f"the run without kills failed: {run.text()[-600:]}")
        self.param_hash = result(run)["param_hash"]
        self.metrics = metrics(f"{work}/run")
        check_metrics(self.metrics, STEPS)
        export = subprocess.run([self.ralo, "export", f"{work}/run", f"{work}/export"], capture_output=True, text=True)
        if export.returncode:
            raise Lost(f"the export without kills failed: {export.stderr[-600:]}")
        self.work = work


def result(run):
    with open(run.out) as f:
        return json.loads(f.read().splitlines()[-1])


# ---- a round ---------------------------------------------------------------------------------------------------------


class Round:
    def __init__(self, scenario, number, seed, counts):
        self.s, self.number, self.counts = scenario, number, counts
        self.rng = random.Random(f"{seed}/{number}")
        self.work = f"{scenario.top}/round-{number:05d}"
        self.run_dir = f"{self.work}/run"
        self.exported = f"{self.work}/exported"
        self.newest = 0     # the newest checkpoint that has stood there
        self.n_kills = 0
        self.notes = []

    def run_all(self):
        self.s.ensure_reference()
        self.s.prepare(self.work)
        for _ in range(self.rng.randint(3, 8)):
            if self.kill_once():
                break
        self.finish()
        for _ in range(self.rng.randint(0, 2)):
            self.kill_export()
        self.export_whole()
        if temporary(self.work):
            raise Lost(f"temporary files are left at the end: {temporary(self.work)[:8]}")
        shutil.rmtree(self.work)

    def start(self):
        # What is exported already is not exported again: a run refuses a directory that is not empty.
        changed = {"run.export": None} if os.path.exists(self.exported) else {}
        return Run(self.s.arguments(self.work, **changed), self.work, self.s.n_ranks)

    def moment(self):
        """(name, ready(run, text) -> bool, seconds to wait from then on)"""
        rng, has_eval = self.rng, bool(self.s.own.get("train.eval_every"))
        possible = {"evaluating": has_eval, "resuming": self.newest > 0}
        name = choose(rng, {m: weight for m, weight in MOMENTS.items() if possible.get(m, True)})
        if "run.export" in self.s.own and rng.random() < 0.3:
            writes = lambda run, text: any(n.startswith("exported.tmp.") for n in os.listdir(self.work))
            return "exporting at the end", writes, rng.uniform(0, 0.01) * rng.random()
        at_once = lambda run, text: True
        if name == "any":
            return name, at_once, rng.uniform(0, 1.1 * self.s.seconds)
        if name == "starting":
            return name, at_once, rng.uniform(0, self.s.first_step_s)
        if name == "resuming":
            return name, lambda run, text: "resumed from" in text, rng.choice([0, rng.uniform(0, 0.003)])
        if name == "saving":
            skip = [rng.randint(0, 4)]
            return name, lambda run, text: self.sees_saving(skip), rng.uniform(0, 0.004) * rng.random()
        # Relative to where this start goes on.
        step = min(STEPS, self.newest + rng.randint(1, 6))
        if name == "evaluating":
            every = self.s.own["train.eval_every"]
            step = min(STEPS, (self.newest // every + 1) * every)
        return name, lambda run, text: f"step {step}/" in text, rng.uniform(0, 0.02) * rng.random()

    def sees_saving(self, skip):
        """A writer is at work; after some that are let pass."""
        try:
            names = [n for n in os.listdir(f"{self.run_dir}/checkpoints") if n.startswith(".tmp-step-")]
        except FileNotFoundError:
            return False
        fresh = [n for n in names if n not in self.seen_tmp]
        self.seen_tmp.update(fresh)
        if fresh:
            skip[0] -= 1
        return bool(fresh) and skip[0] < 0

    def kill_once(self):
        """True when the run ended by itself before the moment came."""
        name, ready, delay = self.moment()
        whom = "the only process" if self.s.n_ranks == 1 else choose(self.rng, VICTIMS)
        self.seen_tmp = set(os.path.basename(t) for t in temporary(self.run_dir))
        run = self.start()
        while not run.ended():
            run.look_for_ranks(False)
            if ready(run, run.text()):
                break
            time.sleep(0.0005)
        until = time.monotonic() + delay
        while time.monotonic() < until and not run.ended():
            run.look_for_ranks(False)
            time.sleep(min(0.001, max(0, until - time.monotonic())))
        if run.ended():
            self.check_end(run)
            return True
        victims = run.victims(whom, self.rng)
        before = max(checkpoints(self.run_dir), default=0)
        send_kill(victims)
        code = run.wait_gone()
        self.n_kills += 1
        self.notes.append(f"{name}/{whom}")
        self.counts[name, whom] += 1
        if code == 0 and self.s.n_ranks == 1:
            self.notes[-1] += " (at its end)"
        if any(".tmp-step-" in t for t in temporary(self.run_dir)):
            self.counts["kills in the middle of a write", ""] += 1
        self.check_state(before, run)
        return False

    def check_state(self, before, run):
        steps = checkpoints(self.run_dir)
        newest = max(steps, default=0)
        if newest < max(before, self.newest):
            raise Lost(f"step {max(before, self.newest)} was on disk and is gone, the newest is {newest or 'none'}")
        for step, path in steps.items():
            different = same_tree(path, f"{self.s.work}/run/checkpoints/step-{step:08d}")
            if different:
                raise Lost(f"a checkpoint is not whole: {different}")
        keep = {**BASE, **self.s.own}["run.keep"]
        if keep != "all" and len(steps) > keep + 1:
            raise Lost(f"run.keep={keep}, but there are {len(steps)} checkpoints: {sorted(steps)}")
        check_metrics(metrics(self.run_dir), newest)
        self.check_resumed(run)
        self.check_export(self.exported)
        if os.listdir(f"{self.work}/nvme"):
            raise Lost(f"nvme files are left: {os.listdir(f'{self.work}/nvme')}")
        left = temporary(self.run_dir)
        if len(left) > 4:
            raise Lost(f"what killed runs left is not removed by the next: {left}")
        self.newest = newest

    def check_resumed(self, run):
        text = run.text()
        resumed = re.search(r"resumed from \S+: step (\d+),", text)
        if resumed and int(resumed[1]) != self.newest:
            raise Lost(f"step {self.newest} was on disk, the run went on from step {resumed[1]}")
        if self.newest and not resumed and re.search(r"step \d+/|starting from step 0", text):
            raise Lost(f"step {self.newest} was on disk, the run started afresh: {text[-400:]}")
        if resumed:
            self.counts["runs resumed", ""] += 1
        if "cannot be used and is skipped" in text:
            raise Lost(f"a checkpoint was left that is not whole: {text[-400:]}")

    def check_export(self, path):
        if os.path.exists(path):
            different = same_tree(path, f"{self.s.work}/export")
            if different:
                raise Lost(f"an export is not whole: {different}")

    def check_end(self, run):
        if run.finish() != 0:
            raise Lost(f"the run failed: {run.text()[-800:]}")
        self.check_state(STEPS, run)
        if result(run)["param_hash"] != self.s.param_hash:
            raise Lost(f"param_hash {result(run)['param_hash']}, expected {self.s.param_hash}")
        if metrics(self.run_dir) != self.s.metrics:
            pairs = zip(metrics(self.run_dir), self.s.metrics)
            raise Lost(f"metrics.jsonl differs: {next((p for p in pairs if p[0] != p[1]), 'one has more lines')}")
        if self.s.own.get("run.export") and not os.path.exists(self.exported):
            raise Lost("the run ended and there is no export")
        if temporary(self.run_dir):
            raise Lost(f"temporary files are left in the run: {temporary(self.run_dir)}")

    def finish(self):
        run = self.start()
        run.finish()
        self.check_end(run)

    def kill_export(self):
        target = f"{self.work}/by-hand"
        run = Run([self.s.ralo, "export", self.run_dir, target], self.work)
        known = set(temporary(self.work))
        late = self.rng.random() < 0.7
        while late and not run.ended() and not (set(temporary(self.work)) - known):
            time.sleep(0.0005)
        time.sleep(self.rng.uniform(0, 0.01) * self.rng.random())
        if run.ended():
            run.finish()
        else:
            run.process.kill()
            run.wait_gone()
            self.n_kills += 1
            self.notes.append("export")
            self.counts["exporting", "the only process"] += 1
        self.check_export(target)
        shutil.rmtree(target, ignore_errors=True)
        left = [n for n in os.listdir(self.work) if ".tmp" in n]
        if len(left) > 2:  # its directory, or the probe for a place
            raise Lost(f"what killed exports left is not removed by the next: {left}")

    def export_whole(self):
        target = f"{self.work}/by-hand"
        run = Run([self.s.ralo, "export", self.run_dir, target], self.work)
        if run.finish() != 0:
            raise Lost(f"the export failed: {run.text()[-600:]}")
        self.check_export(target)
        if not os.path.exists(target):
            raise Lost("ralo export ended and there is no export")


# ---- all of them -----------------------------------------------------------------------------------------------------


class Soak:
    def __init__(self, options):
        self.o = options
        self.top = os.path.realpath(options.dir)
        os.makedirs(self.top, exist_ok=True)
        with open(f"{self.top}/text.txt", "w") as f:
            f.write("".join(f"line {i}: the run goes on from where it was killed.\n" for i in range(400)))
        self.scenarios = [Scenario(os.path.realpath(options.ralo), row, self.top) for row in SCENARIOS]
        if options.no_ranks:
            self.scenarios = [s for s in self.scenarios if s.n_ranks == 1]
        self.scenarios = [s for s in self.scenarios if options.scenario in s.name]
        if not self.scenarios:
            sys.exit(f"no scenario has '{options.scenario}' in its name: {', '.join(row[0] for row in SCENARIOS)}")
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.n_kills = self.n_rounds = self.n_failed = self.next = 0
        self.start = time.monotonic()

    def one(self, number):
        # Every scenario once before any comes again, in an order of the seed's.
        turn, place = divmod(number, len(self.scenarios))
        order = random.Random(f"{self.o.seed}/order/{turn}").sample(self.scenarios, len(self.scenarios))
        counts = collections.Counter()
        round_ = Round(order[place], number, self.o.seed, counts)
        why = None
        try:
            round_.run_all()
        except Lost as lost:
            why = str(lost)
        except Exception as broken:  # of this program: it must not be taken for a round that passed
            why = f"{type(broken).__name__}: {broken}"
        with self.lock:
            self.counts += counts
            self.n_kills += round_.n_kills
            self.n_rounds += 1
            self.n_failed += why is not None
            print(f"{time.monotonic() - self.start:7.0f} s  {self.n_kills:5d} kills  round {number:4d}  "
                  f"{order[place].name}: {', '.join(round_.notes) or 'ended before the first kill'}", flush=True)
            if why:
                print(f"FAILED round {number} ({order[place].name}): {why}\n  kept: {round_.work}\n"
                      f"  again: tests/soak/kills.py --ralo {self.o.ralo} --seed {self.o.seed} --round {number}"
                      + (f" --scenario '{self.o.scenario}'" if self.o.scenario else "") + (" --no-ranks" if self.o.no_ranks else ""), flush=True)

    def worker(self):
        while True:
            with self.lock:
                if self.n_kills >= self.o.kills or self.n_failed >= 10:
                    return
                number = self.next
                self.next += 1
            self.one(number)

    def run(self):
        print(f"kills: seed {self.o.seed}, {self.o.kills} kills, {len(self.scenarios)} scenarios, in {self.top}", flush=True)
        if self.o.round is not None:
            self.one(self.o.round)
        else:
            threads = [threading.Thread(target=self.worker) for _ in range(self.o.jobs)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        for (moment, whom), n in sorted(self.counts.items()):
            print(f"  {n:6d}  {moment}{', ' + whom if whom else ''}")
        print(f"kills: {self.n_kills} kills in {self.n_rounds} rounds, {time.monotonic() - self.start:.0f} s, seed "
              f"{self.o.seed}: {self.n_failed or 'no'} failures")
        if not self.n_failed:
            shutil.rmtree(self.top)
        return 1 if self.n_failed else 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ralo", required=True)
    p.add_argument("--kills", type=int, default=1000)
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    p.add_argument("--round", type=int)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--dir", default=f"soak-{os.getpid()}")
    p.add_argument("--no-ranks", action="store_true", help="one-rank scenarios only")
    p.add_argument("--scenario", default="", help="only those with this in their name")
    sys.exit(Soak(p.parse_args()).run())


main()
