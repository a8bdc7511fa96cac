#!/usr/bin/env python3
"""fuzz.py - many executions over all fuzz targets together; `make soak` calls it behind `FUZZ_SECONDS=0 tests/fuzz/run BUILD`.

    tests/soak/fuzz.py --build build-fuzz --executions 100000000 --dir soak-fuzz

The targets take turns of some minutes, in processes beside each other (--jobs). Turns have inputs of up to 256 bytes mostly, and
some of up to 1, 4 and 64 KB; what a turn learned is there for the next one. Fast targets get more turns, also several at a time:
they share what they learn. All of it runs under AddressSanitizer and UndefinedBehaviorSanitizer; leaks are looked for when a
turn ends.

The programs are copied to --dir first, so that a new build does not disturb them. The counts are kept in --dir/state.json: the
same command again goes on where it was stopped. A finding is kept in --dir/findings, and the exit status is 1.
"""
import argparse, json, os, re, shutil, signal, subprocess, sys, threading, time

LENGTHS = [256, 256, 1024, 256, 256, 4096, 256, 65536]
TURNS = ((8000, 10), (2000, 4))  # from so many executions per second of processor time on, so many turns for each of a slow one
FINDINGS_MOST = 3    # of one target, which is then left alone
STOP_S = 15          # a signal while it looks for leaks may leave a process that never ends


class Target:
    def __init__(self, name, state):
        self.name, self.n_running = name, 0
        self.executions = state.get("executions", 0)
        self.seconds = state.get("seconds", 0.0)     # of processor time
        self.turns = state.get("turns", 0)
        self.edges = state.get("edges", 0)
        self.findings = state.get("findings", [])

    def kept(self):
        return {k: getattr(self, k) for k in ("executions", "seconds", "turns", "edges", "findings")}

    def rate(self):
        return self.executions / self.seconds if self.seconds else 0

    def due(self):
        """The least comes next. Fast ones count a part of their turns."""
        return (self.turns + self.n_running) / next((n for rate, n in TURNS if self.rate() >= rate), 1)


class Soak:
    def __init__(self, o, here):
        self.o, self.here = o, here
        self.dir = os.path.realpath(o.dir)
        for name in ("bin", "corpus", "findings", "tmp", "logs"):
            os.makedirs(f"{self.dir}/{name}", exist_ok=True)
        self.state_path = f"{self.dir}/state.json"
        state = {}
        if os.path.exists(self.state_path):
            with open(self.state_path) as f:
                state = json.load(f)
        self.targets = [Target(n, state.get(n, {})) for n in self.copy_programs()]
        self.lock, self.stop, self.children = threading.Lock(), False, set()
        self.start = time.monotonic()

    def copy_programs(self):
        built = f"{os.path.realpath(self.o.build)}/tests/fuzz"
        names = sorted(n for n in os.listdir(built) if re.fullmatch(r"fuzz_[a-z0-9_]+", n) and os.access(f"{built}/{n}", os.X_OK)
                       and os.path.isfile(f"{built}/{n}"))
        for name in names:
            shutil.copy2(f"{built}/{name}", f"{self.dir}/bin/{name}.new")
            os.replace(f"{self.dir}/bin/{name}.new", f"{self.dir}/bin/{name}")
            shutil.copy(f"{self.o.build}/{name}.dict", f"{self.dir}/bin/{name}.dict")
            os.makedirs(f"{self.dir}/corpus/{name}", exist_ok=True)
        if not names:
            sys.exit(f"no fuzz targets in {built}: run FUZZ_SECONDS=0 tests/fuzz/run {self.o.build} first")
        return names

    def total(self):
        return sum(t.executions for t in self.targets)

    def pick(self):
        with self.lock:
            wanted = [t for t in self.targets if len(t.findings) < FINDINGS_MOST]
            if self.stop or not wanted or self.total() >= self.o.executions:
                return None, 0
            t = min(wanted, key=Target.due)
            turn = t.turns + t.n_running
            t.n_running += 1
            return t, turn

    def command(self, t, turn, seconds, runs):
        corpora = [f"{self.dir}/corpus/{t.name}"] + [d for d in (f"{self.here}/corpus/{t.name}",
                                                                 f"{self.o.build}/corpus/{t.name}") if os.path.isdir(d)]
        return [f"{self.dir}/bin/{t.name}", *corpora, f"-dict={self.dir}/bin/{t.name}.dict",
                f"-artifact_prefix={self.dir}/findings/{t.name}-", f"-max_total_time={seconds}", f"-runs={runs}",
                f"-max_len={LENGTHS[turn % len(LENGTHS)]}", "-timeout=120", "-malloc_limit_mb=256", "-rss_limit_mb=2048",
                "-mutate_depth=3", "-detect_leaks=0", "-print_final_stats=1", "-verbosity=1"]

    def turn(self, t, turn, log):
        # The first turn is short: it tells how fast the target is.
        seconds = min(self.o.slice, 20) if turn == 0 else self.o.slice
        env = dict(os.environ, TMPDIR=f"{self.dir}/tmp",
                   ASAN_OPTIONS="strict_string_checks=1:malloc_context_size=4:quarantine_size_mb=8:detect_leaks=1")
        with open(log, "wb") as out:
            child = subprocess.Popen(self.command(t, turn, seconds, max(1, self.o.executions - self.total())), stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=subprocess.STDOUT, env=env)
            self.children.add(child)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.children.discard(child)
        with open(log, errors="replace") as f:
            text = f.read()
        with self.lock:
            t.n_running -= 1
            self.account(t, child.returncode, used.ru_utime + used.ru_stime, text, log)

    def account(self, t, code, seconds, text, log):
        n = re.findall(r"^stat::number_of_executed_units:\s*(\d+)", text, re.M) or re.findall(r"^#(\d+)", text, re.M)
        edges = re.findall(r" cov: (\d+)", text)
        t.executions += int(n[-1]) if n else 0
        t.seconds += seconds
        t.turns += 1
        t.edges = max(t.edges, int(edges[-1]) if edges else 0)
        if code and not self.stop:
            why = re.findall(r"(?:runtime error|ERROR: |broken invariant|SUMMARY).*", text)
            where = re.findall(r"Test unit written to (.*)", text)
            t.findings.append(where[-1] if where else log)
            shutil.copy(log, f"{self.dir}/findings/{t.name}-{len(t.findings)}.log")
            print(f"FAILED {t.name}: {why[0] if why else f'exit status {code}'}\n  again: {self.dir}/bin/{t.name} {t.findings[-1]}",
                  flush=True)
        with open(self.state_path + ".new", "w") as f:
            json.dump({x.name: x.kept() for x in self.targets}, f, indent=1)
        os.replace(self.state_path + ".new", self.state_path)
        print(f"{time.monotonic() - self.start:7.0f} s  {self.total():11d} executions  {t.name}: {t.executions} in {t.turns} turns, "
              f"{t.rate():.0f}/s, {t.edges} edges", flush=True)

    def worker(self, number):
        while True:
            t, turn = self.pick()
            if not t:
                return
            self.turn(t, turn, f"{self.dir}/logs/{t.name}-{number}")

    def interrupted(self, number, frame):
        if not self.stop:
            self.stop, self.stop_time = True, time.monotonic()
            self.signal_children(signal.SIGINT)

    def signal_children(self, number):
        for child in list(self.children):
            try:
                os.kill(child.pid, number)  # not send_signal, which would wait for a child that its thread waits for
            except ProcessLookupError:
                pass

    def run(self):
        signal.signal(signal.SIGTERM, self.interrupted)
        signal.signal(signal.SIGINT, self.interrupted)
        print(f"fuzz: {self.o.executions} executions over {len(self.targets)} targets, {self.total()} done before, in {self.dir}",
              flush=True)
        threads = [threading.Thread(target=self.worker, args=(i,)) for i in range(self.o.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(1)  # so that a signal is seen
                if self.stop and time.monotonic() - self.stop_time > STOP_S:
                    self.signal_children(signal.SIGKILL)
        print(f"{'target':22s} {'executions':>12s} {'cpu s':>8s} {'per cpu s':>10s} {'edges':>6s}  findings")
        for t in self.targets:
            print(f"{t.name:22s} {t.executions:12d} {t.seconds:8.0f} {t.rate():10.0f} {t.edges:6d}  {len(t.findings) or 'none'}")
        n_findings = sum(len(t.findings) for t in self.targets)
        print(f"fuzz: {self.total()} executions over {len(self.targets)} targets, {n_findings or 'no'} findings"
              + ("; stopped, the same command goes on" if self.stop else ""))
        return 1 if n_findings else 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build-fuzz")
    p.add_argument("--executions", type=int, default=10**8)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--slice", type=int, default=120, help="seconds of a turn")
    p.add_argument("--dir", default="soak-fuzz")
    here = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fuzz")
    sys.exit(Soak(p.parse_args(), here).run())


main()
