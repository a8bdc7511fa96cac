#!/bin/bash
# cli_advice.sh - advice can be followed: the settings that "does not fit" and "not possible" name are set, and the plan is then
# accepted, or fits. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"

cat >follow.py <<'END'
import functools, json, re, subprocess, sys
ralo = sys.argv[1]
OK, REFUSED, NO_FIT = 0, 2, 3

@functools.cache  # what an error names is planned once, not again when the next advice is looked for
def run(line):
    done = subprocess.run(line, capture_output=True, text=True)
    error = [l for l in done.stderr.splitlines() if l.startswith("error:")]
    return done.returncode, done.stdout, error[-1] if error else "", " ".join(line[1:])

def plan(settings, flags):
    line = [ralo, "plan", "--json", *flags]
    for key, value in settings.items(): line += ["--set", f"{key}={value}"]
    return run(tuple(line))

def advice(error, key):
    if "memory.nvme_path" in error and key == "fit" and "smallest change" not in error and "--set" not in error:
        return [("memory.nvme_path", ".")] + ([("memory.strategy", "auto")] if "memory.strategy=auto" in error else [])
    if key == "fit": return re.findall(r"--set ([a-z_.0-9]+)=([^\s.)]+)", error)
    return re.findall(r"((?:parallel|train|data)\.[a-z_]+)=([a-z0-9]+)", error)

def follow(settings, flags):
    """Sets what the error says until it is content; how often it had something to say."""
    for n in range(6):
        rc, out, error, line = plan(settings, flags)
        if rc == OK: return n
        found = advice(error, "fit" if rc == NO_FIT else "possible")
        if not found:
            assert rc == NO_FIT and re.search(r"more or larger machines|raise the limit|raise them", error), (line, error)
            return n
        before = dict(settings)
        settings.update(found[:1] if rc == REFUSED else found)
        assert settings != before, (line, error)
        assert rc == REFUSED or plan(settings, flags)[0] == OK, (line, error, found)
    raise AssertionError(("still not accepted", line, error))

followed = 0
for preset, hardware, device, host in [
    ("gpt2", None, "300M", "1G"), ("gpt2", None, "2G", "200M"), ("qwen3-0.6b", "h200", "4G", "8G"),
    ("llama2-7b", "h200", "20G", "30G"), ("test-llama", None, "2M", "1M"), ("qwen2.5-0.5b", None, "6G", "5G")]:
    for more in [{}, {"memory.strategy": "manual"}]:
        flags = ["--preset", preset, "--device-memory", device] + (["--hardware", hardware] if hardware else [])
        # two rows a step: two splits into micro-batches are searched, not five
        followed += follow({"memory.host": host, "train.batch": 2, **more}, flags)

for preset, hardware, world in [("gpt2", "h200", 64), ("qwen2.5-0.5b", "h200", 16), ("test-llama", None, 16), ("llama2-7b", "h200", 128)]:
    flags = ["--preset", preset] + (["--hardware", hardware] if hardware else [])
    rc, out, error, line = plan({}, flags + ["--world", str(world)])
    assert rc == OK, (line, error)
    for layout in json.loads(out)["world"]["layouts"]:
        if "not_possible" not in layout: continue
        sizes = {f"parallel.{axis}": layout[axis] for axis in ("data", "tensor", "pipeline", "sequence")}
        n = follow({"memory.strategy": "manual", **sizes}, flags)
        assert n > 0, (line, layout)
        followed += n
print(followed, "pieces of advice followed")
assert followed >= 12, followed
END
python3 follow.py "$RALO" || die "advice that does not help"

# What CUDA cannot run is refused when it is planned, in the words of the rule.
"$RALO" plan --preset gpt2 --hardware h200 --set memory.place=layers.0-5=cpu:1 >out 2>err && fail "a second device of a GPU's process"
grep -q "memory.place: found cpu:1 with device cuda" err || fail "memory.place: $(tail -n 1 err)"
for where in "" "--set memory.place=layers.0-22=cpu"; do
    "$RALO" plan --preset qwen2.5-0.5b --hardware h200 --set model.head_dim=300 $where >out 2>err && fail "a head that no kernel of a GPU takes $where"
    grep -q "model.head_dim: found 300, expected at most 256 on device cuda" err || fail "model.head_dim: $(tail -n 1 err)"
done
"$RALO" plan --preset qwen2.5-0.5b --hardware h200 --set model.head_dim=300 --set memory.place=layers.0-23=cpu >out 2>err ||
    fail "wide heads on the cpu: $(tail -n 1 err)"
# Layers of a GPU that is not here and of its host: planned and predicted for both.
"$RALO" plan --preset gpt2 --hardware h200 --set memory.place=layers.6-11=cpu >out 2>err || fail "layers on the cpu: $(tail -n 1 err)"
grep -q "^place     device (cuda): embed, layers 0-5, head; host (cpu): layers 6-11$" out || fail "no line of parts: $(cat out)"
[ "$(sed -n '/^host /,/^predicted/p' out | grep -c '^    \(params\|grads\|states\|activations\|work\|gaps\) ')" = 6 ] || fail "roles of the host: $(cat out)"
grep -q "host  *busy .* ms, 9[0-9] % of the step" out || fail "the host's cores are not what takes the time: $(grep busy out)"
# memory.place=auto: few tokens are faster on the cores than parameters and states on the bus, many are not; unasked it is never tried.
short=(plan --preset gpt2-medium --hardware h200 --set precision=bf16 --set train.micro_batch=1 --set memory.device=3600M --json)
"$RALO" "${short[@]}" --set data.seq_len=16 --set memory.place=auto >out 2>err || fail "memory.place=auto: $(tail -n 1 err)"
holds "0 < r['strategy']['cpu_layers'] < 24 and r['memory']['device']['planned'] <= 3600 << 20 and r['strategy']['offload']['states'] == 'device'"
holds "r['step_ms'] < min(c['step_ms'] for c in r['candidates'] if c['fits'] and not c['cpu_layers'])"
"$RALO" "${short[@]}" --set data.seq_len=256 --set memory.place=auto >out 2>err || fail "memory.place=auto: $(tail -n 1 err)"
holds "r['strategy']['cpu_layers'] == 0 and r['strategy']['offload']['states'] == 'host' and any(c['cpu_layers'] and c['fits'] for c in r['candidates'])"
"$RALO" "${short[@]}" --set data.seq_len=16 >out 2>err || fail "GPT-2 medium: $(tail -n 1 err)"
holds "not any(c['cpu_layers'] for c in r['candidates'])"
# Room that offload leaves is filled with the parameters of some layers; 124 GiB of host memory are planned no slower than 118.
lora=(plan --preset qwen2.5-7b --lora 16 --hardware h200 --set precision=bf16 --set data.seq_len=1024 --set train.micro_batch=4 --set memory.device=14G)
check 0 "except params of " "of 14.0 GiB on the GPU" -- "${lora[@]}"
check 0 "!except params" -- "${lora[@]}" --set memory.offload.keep_params=0
check 0 "memory.offload.keep_params has no effect: memory.offload.params is none" -- plan --set memory.offload.params=none --set memory.offload.keep_params=2
check 0 "memory.offload.reference has no effect: the run has no frozen copy of the model" -- plan --set memory.offload.reference=host
step_ms() { "$RALO" "$@" --json 2>/dev/null | tail -n 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["step_ms"])'; }
few=$(step_ms "${lora[@]}" --set memory.offload.keep_params=0) filled=$(step_ms "${lora[@]}")
python3 -c "assert $filled < 0.8 * $few" || fail "14 GiB filled: $filled ms, not filled: $few"
large=(plan --preset qwen2.5-32b --hardware h200 --set precision=bf16_sr --set train.micro_batch=8 --set train.accumulation=2 --set memory.device=137G)
little=$(step_ms "${large[@]}" --set memory.host=118G) more=$(step_ms "${large[@]}" --set memory.host=124G)
python3 -c "assert $more <= $little" || fail "124 GiB of host memory: $more ms, 118: $little"
check 2 "memory.place: found auto in a run of 2 ranks" -- plan --world 2 --preset gpt2 --hardware h200 --set memory.place=auto
# Heads that the ranks cannot share go round in a ring, on a GPU too.
"$RALO" plan --preset gpt2 --hardware h200 --set parallel.sequence=8 >out 2>err || fail "12 heads for 8 ranks: $(tail -n 1 err)"
grep -q "attention by a ring of keys and values, the ranks cannot share the heads" out err || fail "12 heads for 8 ranks: $(grep rows out err)"

# Device and host are one memory on a CPU: both together stay below what the machine has.
"$RALO" plan --preset qwen2.5-7b --set run.device=cpu --device-memory 900T --json >out 2>err
[ $? = 3 ] || [ "$(awk '/MemTotal/ {print int($2 / 2^20)}' /proc/meminfo)" -gt 90 ] || fail "114 GiB of host memory: $(tail -n 1 err)"
grep -q "memory.device is 900.0 TiB, and this machine has" err || fail "no word of the limit: $(cat err)"
# ---- the memory of a rank is a share of the machine's, and is called so
check 3 "memory.device is 1.0 MiB for each of 4 ranks" -- plan --preset test-llama --device-memory 1M --set parallel.data=4 --set data.seq_len=512
check 3 "memory.device is 1.0 MiB. " -- plan --preset test-llama --device-memory 1M --set data.seq_len=512 --set memory.strategy=manual

finish "advice can be followed"
