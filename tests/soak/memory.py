#!/usr/bin/env python3
"""memory.py - does a long run end with the memory that it had after its first hundred steps?

    tests/soak/memory.py --ralo build/ralo --steps 10000                  on the CPU
    tests/soak/memory.py --ralo build/ralo --steps 10000 --device cuda    and what nvidia-smi counts

A tiny model is trained with an evaluation, completions (train.problems) and a checkpoint every few steps. While it runs, the
resident memory, the open files and the threads of all its processes are read from /proc, and with --device cuda the memory in use
on the GPU from nvidia-smi (nothing else should run there). What is read behind step 100, when each of these has happened
several times, is compared with what is read at the end. Exit status 1: something grew.
"""
import argparse, os, re, statistics, subprocess, sys, tempfile, time

TINY = {"model.hidden": 32, "model.heads": 2, "model.kv_heads": 2, "model.ffn": 64, "model.max_positions": 32,
        "data.seq_len": 16, "train.micro_batch": 2, "train.eval_every": 20, "train.eval_rows": 4, "train.problems": 4,
        "train.save_every": 25, "train.log_every": 1, "run.threads": 1, "run.bind": "false"}
VARIANTS = {
    "plain": (1, {}),
    "nvme": (1, {"memory.offload.params": "nvme", "memory.offload.grads": "nvme", "memory.offload.states": "nvme",
                 "memory.offload.activations": "nvme", "precision": "bf16"}),
    "fp16": (1, {"precision": "fp16", "train.fp16.loss_scale_window": 50, "memory.recompute": "full"}),
    "ranks": (2, {"parallel.zero": 2}),
}
WARM = 100             # steps before the first reading
SLACK_KB = 1024        # per process: what malloc keeps differs by this much from moment to moment
GPU_SLACK_MB = 2       # the driver counts in such pieces
READINGS, TRIES = 3, 6 # at either end at least; runs until there are so many


def descendants(pid):
    found = [pid]
    for p in found:
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{task}/children") as f:
                    found += [int(c) for c in f.read().split()]
        except OSError:
            pass
    return found


def reading(pid):
    """(KB resident and not of a file, open files, threads, processes) of all that are ralo."""
    anonymous = files = threads = n = 0
    for p in descendants(pid):
        try:
            with open(f"/proc/{p}/status") as f:
                status = f.read()
            if not re.search(r"^Name:\s*ralo", status):
                continue
            anonymous += sum(int(x) for x in re.findall(r"^(?:RssAnon|RssShmem):\s*(\d+)", status, re.M))
            files += len(os.listdir(f"/proc/{p}/fd"))
            threads += int(re.search(r"^Threads:\s*(\d+)", status, re.M)[1])
            n += 1
        except (OSError, TypeError):
            pass
    return anonymous, files, threads, n


def gpu_mb():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"nvidia-smi failed: {out.stderr or out.stdout}")
    return int(out.stdout.split()[0])


def last_step(path, at):
    """(the last step in the log, where to read on); only what is new is read."""
    with open(path, "rb") as f:
        f.seek(at)
        text = f.read()
    steps = re.findall(rb"step (\d+)/", text)
    return (int(steps[-1]) if steps else None), at + len(text)


def command(o, run_dir, n_ranks, own):
    settings = {**TINY, **own, "train.steps": o.steps, "run.dir": run_dir, "run.device": o.device}
    out = [os.path.realpath(o.ralo), "train", "--preset", "test-gpt2"] + (["--ranks", str(n_ranks)] if n_ranks > 1 else [])
    for key, value in settings.items():
        out += ["--set", f"{key}={value}"]
    return out


def watch(o, process, log):
    """Readings as (step, reading, GPU MB or None)."""
    samples, step, at = [], 0, 0
    while process.poll() is None:
        new, at = last_step(log, at)
        step = new or step
        now = reading(process.pid)
        if step > WARM and now[3]:
            samples.append((step, now, gpu_mb() if o.device == "cuda" else None))
        time.sleep(o.interval)
    return samples


def windows(samples, steps):
    """The first and the last tenth of the readings behind step WARM; of short runs a third."""
    n = (steps - WARM) // (3 if steps < 2000 else 10)
    return [s for s in samples if s[0] <= WARM + n], [s for s in samples if s[0] > steps - n]


def judge(name, early, late, samples):
    """What grew, in words. Saving opens files and copies for a moment: the middle of the late readings against the most of the
    early ones. A short run has few readings, and most may meet a file that is open for a moment; one that is never closed is in all of
    them, so of files and threads the fewest count."""
    grew = []
    n = early[0][1][3]
    for i, what, slack, late_of in ((0, "KB of memory", SLACK_KB * n, statistics.median_low), (1, "open files", 0, min), (2, "threads", 0, min)):
        before, after = max(s[1][i] for s in early), late_of([s[1][i] for s in late])
        print(f"  {name:6s}  {what:13s} {before:8d} behind step {WARM}, {after:8d} at the end, most {max(s[1][i] for s in samples):8d}")
        if after > before + slack:
            grew.append(f"{what} grew from {before} to {after}")
    if early[0][2] is not None:
        before, after = max(s[2] for s in early), statistics.median_low(s[2] for s in late)
        print(f"  {name:6s}  MB of the GPU {before:8d} behind step {WARM}, {after:8d} at the end")
        if after > before + GPU_SLACK_MB:
            grew.append(f"the GPU's memory grew from {before} to {after} MB")
    return grew


def train(o, name):
    """(exit code, log, readings) of one run."""
    n_ranks, own = VARIANTS[name]
    with tempfile.TemporaryDirectory(prefix="ralo-memory-") as work:
        log = f"{work}/log"
        with open(log, "wb") as err:
            process = subprocess.Popen(command(o, f"{work}/run", n_ranks, own), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=err)
        samples = watch(o, process, log)
        with open(log, errors="replace") as f:
            return process.returncode, f.read(), samples


def run(o, name):
    begin = time.monotonic()
    for _ in range(TRIES):
        code, text, samples = train(o, name)
        if code:
            print(f"FAILED {name}: the run ended with {code}: {text[-800:]}")
            return False
        early, late = windows(samples, o.steps)
        if min(len(early), len(late)) >= READINGS:
            break
        print(f"{name}: {len(early)} readings behind step {WARM} and {len(late)} before the end are too few: the machine is busy, again")
    else:
        print(f"FAILED {name}: too few readings {TRIES} times; raise --steps")
        return False
    evaluations = len(re.findall(r"(?m)^eval at step \d+  loss .* problems", text))
    print(f"{name}: {o.steps} steps, {evaluations} evaluations with completions, {o.steps // TINY['train.save_every']} checkpoints, "
          f"{len(samples)} readings, {time.monotonic() - begin:.0f} s")
    for step, now, gpu in samples[::max(1, len(samples) // o.show)]:
        print(f"  step {step:6d}  memory {now[0]:7d} KB  files {now[1]:3d}  threads {now[2]:3d}" + (f"  GPU {gpu} MB" if gpu is not None else ""))
    grew = judge(name, early, late, samples)
    for what in grew:
        print(f"FAILED {name}: {what}")
    return not grew


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ralo", required=True)
    p.add_argument("--steps", type=int, default=10000)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--variants", default="plain,nvme,fp16,ranks")
    p.add_argument("--interval", type=float, default=0.01, help="seconds between readings")
    p.add_argument("--show", type=int, default=20, help="readings that are printed")
    o = p.parse_args()
    results = [run(o, name) for name in o.variants.split(",")]
    print("memory: " + ("nothing grew" if all(results) else "FAILED"))
    sys.exit(0 if all(results) else 1)


main()
