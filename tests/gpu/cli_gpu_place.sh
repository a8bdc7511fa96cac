#!/bin/bash
# cli_gpu_place.sh - layers of the GPU and of the host's cores in one model and one process (memory.place): every device uses the
# bytes that were planned for it, losses follow those of the GPU alone, no technique of memory changes a bit, runs resume, and
# what cannot be is refused. Label gpu: skipped where there is none. RALO names the program.
#
# The bounds: both round every number once and in the same places, but sums have another order and exp another last bit. Over 20
# steps from a loss of 5.5 to 2.7 that was below 1e-4 between two orders of bf16 sums on a CPU, and 7e-3 between fp32 and bf16.
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads the JSON output"
need_gpu
bound_fp32=1e-3 bound_bf16=1e-2
common=(--preset test-llama --set precision=fp32 --set model.layers=8 --set run.device=cuda --set data.seq_len=64 --set train.micro_batch=4
    --set train.accumulation=2 --set train.steps=20 --set train.warmup=0 --set train.schedule=constant --set train.problems=0
    --set train.eval_rows=4 --set run.threads=4 --set run.bind=false --json)
half=(--set memory.place=embed=cuda:0,layers.0-3=cuda:0,layers.4-7=cpu,head=cuda:0)
train() { # NAME ARGUMENTS: a run in the directory NAME; its object in NAME.json
    local name=$1
    shift
    timeout 300 "$RALO" train "${common[@]}" --set run.dir="$name" "$@" >out 2>err </dev/null || {
        fail "$name ($*): exit code $?: $(tail -n 6 err)"
        return 1
    }
    tail -n 1 out >"$name.json"
    python3 - "$name" <<'P'
import json, sys
r = json.load(open(sys.argv[1] + '.json'))
m = r['memory']
print(sys.argv[1] + ':', 'loss', r['loss']['first'], '->', r['loss']['last'], 'hash', r['param_hash'], 'step', r['step_ms'], 'ms, predicted',
      r['predicted_step_ms'], 'ms;', ', '.join(f"{t} {m[t]['planned']} planned {m[t]['peak']} used" for t in ('device', 'host', 'nvme')))
P
    as_planned "$name"
}
as_planned() { # NAME: every device used what was planned, and no step allocated
    python3 - "$1" <<'P' || fail "$1: not as planned"
import json, sys
m = json.load(open(sys.argv[1] + '.json'))['memory']
wrong = [t for t in ('device', 'host', 'nvme') if m[t]['planned'] != m[t]['peak']]
if wrong or m['allocations_in_steps']: sys.exit(f"{sys.argv[1]}: {wrong} {m}")
P
}
get() { python3 -c "import json, sys; r = json.load(open('$1.json')); print($2)"; }
same() { # A B: the bits of two runs
    [ "$(get "$1" "r['param_hash']")" = "$(get "$2" "r['param_hash']")" ] ||
        fail "$2 has other bits than $1: $(get "$2" "r['param_hash'], r['loss']"), $(get "$1" "r['param_hash'], r['loss']")"
}
follows() { # RUN PLAIN BOUND: the losses of every step
    python3 - "$@" <<'P' || fail "the losses of $1 do not follow those of $2"
import json, sys
run, plain, bound = sys.argv[1], sys.argv[2], float(sys.argv[3])
def losses(d): return [x['train/loss'] for x in map(json.loads, open(d + '/metrics.jsonl')) if 'train/loss' in x]
a, b = losses(run), losses(plain)
differ = [abs(x - y) for x, y in zip(a, b)]
print(f"{run}: {len(a)} losses, at most {max(differ):.3g} from those of {plain} (step {differ.index(max(differ)) + 1}), bound {bound:g}")
if len(a) != len(b) or not max(differ) <= bound:
    for i, (x, y) in enumerate(zip(a, b)): print(f"  step {i + 1}: {x} and {y}")
    sys.exit(1)
P
}

# ---- 4 of 8 layers on the cores
for precision in fp32 bf16 bf16_sr; do
    bound=bound_bf16
    [ $precision != fp32 ] || bound=bound_fp32
    p=(--set precision=$precision)
    train gpu-$precision "${p[@]}" --set memory.strategy=manual || continue
    train half-$precision "${p[@]}" --set memory.strategy=manual "${half[@]}" || continue
    follows half-$precision gpu-$precision "${!bound}"
    python3 -c "import sys; sys.exit(not ($(get half-$precision "r['memory']['device']['planned']") < $(get gpu-$precision "r['memory']['device']['planned']")))" ||
        fail "$precision: half of the layers take no less of the GPU"
    grep -q '^ *host .* planned, .* used' err || fail "the summary has no line of the host: $(tail -n 8 err)"
done
# The same run again, and with techniques of memory on top: the same bits.
train again-fp32 --set memory.strategy=manual "${half[@]}" && same half-fp32 again-fp32
train more-fp32 --set memory.strategy=manual "${half[@]}" --set memory.recompute=full --set memory.offload.params=host --set memory.offload.grads=host \
    --set memory.offload.states=host --set memory.offload.activations=host && same half-fp32 more-fp32
train apart-fp32 --set memory.strategy=manual "${half[@]}" --set memory.overlap_update=false && same half-fp32 apart-fp32
train more-bf16_sr --set memory.strategy=manual --set precision=bf16_sr "${half[@]}" --set memory.recompute=full --set memory.offload.states=host \
    --set memory.prefetch=2 && same half-bf16_sr more-bf16_sr
# Other parts: embedding and head on the cores, everything on the cores, layers in turn.
train ends --set memory.strategy=manual --set memory.place=embed=cpu,head=cpu,layers.0-7=cuda && follows ends gpu-fp32 $bound_fp32
train turns --set memory.strategy=manual --set memory.place=layers.1=cpu,layers.3=cpu,layers.6=cpu && follows turns gpu-fp32 $bound_fp32
train all --set memory.strategy=manual --set memory.place=embed=cpu,layers.0-7=cpu,head=cpu && follows all gpu-fp32 $bound_fp32

# As the plan chooses: whatever it takes, it fits and follows.
train chosen --set memory.place=auto --set memory.device="$(get half-fp32 "r['memory']['device']['planned']")" && follows chosen gpu-fp32 $bound_fp32
echo "chosen: $(get chosen "r['strategy']")"

# ---- what training also does: evaluation and samples, adapters over a quantised base, products of 8 bits, time of every op
train samples --set precision=bf16 "${half[@]}" --set train.steps=6 --set train.sample_every=3 --set train.eval_every=3
train adapters --set precision=bf16 "${half[@]}" --set train.steps=6 --set model.lora.rank=8 --set model.base=nf4
train eight-bits --set precision=fp8 "${half[@]}" --set train.steps=6
train timed --set precision=bf16 "${half[@]}" --set train.steps=3 --set run.breakdown=true

# ---- 24 layers: embedding, 12 layers and head on the GPU, 12 on the cores
cat >halves.yaml <<'Y'
memory:
  place: {embed: "cuda:0", layers.0-11: "cuda:0", layers.12-23: "cpu", head: "cuda:0"}
Y
deep=(--set model.layers=24 --set precision=bf16 --set train.steps=10)
train deep-gpu "${deep[@]}" && timeout 300 "$RALO" train halves.yaml "${common[@]}" "${deep[@]}" --set run.dir=deep-half >out 2>err </dev/null ||
    fail "halves.yaml: $(tail -n 6 err)"
tail -n 1 out >deep-half.json
as_planned deep-half
follows deep-half deep-gpu $bound_bf16
grep -q 'place .*device (cuda): embed, layers 0-11, head; host (cpu): layers 12-23' err || "$RALO" plan halves.yaml "${common[@]:0:${#common[@]}-1}" "${deep[@]}" >out 2>err
grep -qh 'device (cuda): embed, layers 0-11, head; host (cpu): layers 12-23' out err || fail "the plan does not name its parts: $(head -n 5 out err)"

# ---- stopped and resumed; and from one placement to another
train part --set memory.strategy=manual "${half[@]}" --set train.steps=8
rm -f part.json
train part --set memory.strategy=manual "${half[@]}" --set run.resume=auto && same half-fp32 part
train other --set memory.strategy=manual "${half[@]}" --set train.steps=8
train other --set memory.strategy=manual --set run.resume=auto && follows other gpu-fp32 $bound_fp32

# ---- refused
few=(--preset test-llama --set run.device=cuda)
check 2 "found 'cuda:99', expected cuda:0" 'one rank each' -- plan "${few[@]}" --set memory.place=layers.0=cuda:99
check 2 'found cpu:1 with device cuda' 'all cores of the host are one device' -- plan "${few[@]}" --set memory.place=layers.0=cpu:1
check 2 'found cuda with device cpu' 'run.device=cuda' -- plan "${few[@]}" --set run.device=cpu --set memory.place=layers.0=cuda:0
check 2 "found 'mps'" 'no Metal backend' -- plan "${few[@]}" --set memory.place=layers.0=mps
check 2 'found several devices in a run of 2 ranks' -- plan --world 2 "${few[@]}" --set memory.place=layers.0=cpu
finish "layers of the GPU and of the cores in one model: planned == used on both, losses follow the GPU's"
