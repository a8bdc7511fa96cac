#!/usr/bin/env bash
# cli_verifiable.sh - weights of tokens from the values of a critic: what a run reports follows from its critic_values by the formulas,
# the shuffled control has the same weights, a stopped run goes on to the same bits, and what is no critic is refused. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

common=(--preset test-llama --set data.seq_len=64 --set run.device=cpu --set run.threads=2 --set train.warmup=0 --set train.lr=0.01
        --set train.eval_rows=0 --set train.problems=0 --json)
last() { python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['$1'])"; }
run 0 train "${common[@]}" --set train.task=critic --set data.source=builtin:solutions --set data.difficulty=1 --set train.micro_batch=4 \
    --set train.steps=8 --set run.dir=critic

# Eight rows of one response each, all of them in every step: what a step reports is known from the file.
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"$i+$i=\", \"completion\": \"$((i + i));$((3 * i))\"}"; done >text.jsonl
sets=("${common[@]}" --set data.source=text.jsonl --set data.pack=false --set data.eval_fraction=0 --set train.micro_batch=4
      --set train.accumulation=2 --set train.steps=4 --set verifiable.critic=critic)
run 0 train "${sets[@]}" --set train.weighting=verifiable --set run.dir=whole
hash=$(last param_hash)
run 0 train "${sets[@]}" --set train.weighting=shuffled --set run.dir=shuffled
[ "$(last param_hash)" != "$hash" ] || fail "shuffled weights train the same model"
run 0 train "${sets[@]}" --set train.weighting=verifiable --set verifiable.terminal=true --set verifiable.beta=2 --set verifiable.lambda=0.5 \
    --set run.dir=terminal
cat >expect.py <<'P'
import json, math, struct, sys
def entries(path):
    raw = open(path, 'rb').read()
    n, = struct.unpack_from('<Q', raw, 24)
    begins = struct.unpack_from(f'<{n + 1}Q', raw, 64)
    numbers = struct.unpack_from(f'<{begins[-1]}f', raw, 64 + 8 * (n + 1))
    return [numbers[a:b] for a, b in zip(begins, begins[1:])]
def advantages(v, lam, terminal):
    out, after = [], 0
    for t in reversed(range(len(v))):
        delta = 1 - v[t] if terminal and t == len(v) - 1 else v[t] - (v[t - 1] if t else 0.5)
        after = delta + lam * after
        out.append(after)
    return out[::-1]
def deviation(x): return math.sqrt(max(sum(a * a for a in x) / len(x) - (sum(x) / len(x)) ** 2, 1e-8))
def check(run, lam, beta, terminal):
    values = entries(run + '/critic_values')
    assert len(values) == 8 and all(len(v) in (4, 5, 6) for v in values), values
    A = [a for v in values for a in advantages(v, lam, terminal)]
    mean, std, ema_mean, ema_std = sum(A) / len(A), deviation(A), 0, 1
    lines = [json.loads(x) for x in open(run + '/metrics.jsonl')]
    for step, line in enumerate(x for x in lines if 'td/mean' in x):
        w = [min(max(math.exp((a - ema_mean) / (ema_std + 1e-8) / beta), 0.1), 3) for a in A]
        want = {'td/mean': mean, 'td/std': std, 'td/ema_mean': ema_mean, 'td/ema_std': ema_std, 'weight/mean': sum(w) / len(w),
                'weight/std': deviation(w), 'weight/min': min(w), 'weight/max': max(w),
                'weight/entropy': -sum(x / sum(w) * math.log(x / sum(w)) for x in w)}
        for key, x in want.items():
            assert abs(line[key] - x) < 1e-5, (run, step + 1, key, line[key], x)
        ema_mean, ema_std = mean, std # every step has the same tokens: all averages are those of the first
    assert step == 3, step
check('whole', 0.95, 1, False)
check('shuffled', 0.95, 1, False)
check('terminal', 0.5, 2, True)
P
python3 expect.py || fail "what is reported does not follow from critic_values"

# Stopped and resumed: the moving averages go on.
run 0 train "${sets[@]}" --set train.weighting=verifiable --set run.dir=parts --set train.steps=2 --set train.schedule_steps=4
grep -q '"ema"' parts/checkpoints/*/checkpoint.json || fail "no moving averages in the checkpoint"
run 0 train "${sets[@]}" --set train.weighting=verifiable --set run.dir=parts --resume auto
[ "$(last param_hash)" = "$hash" ] || fail "stopped and resumed: $(last param_hash), not stopped: $hash"
grep -q "rows computed" err && fail "computed again"
check 2 "weighting verifiable" -- train "${sets[@]}" --set train.weighting=shuffled --set run.dir=parts --set train.steps=6 --resume auto

# One head is mtp with one head; several heads, and a critic of another family.
run 0 train "${sets[@]}" --set train.weighting=verifiable --set train.task=mtp --set model.mtp.heads=1 --set run.dir=one
[ "$(last param_hash)" = "$hash" ] || fail "mtp with one head: $(last param_hash), sft: $hash"
run 0 train "${common[@]:2}" --preset test-gpt2 --set train.task=critic --set data.source=builtin:solutions --set data.difficulty=1 \
    --set train.micro_batch=4 --set train.steps=1 --set run.dir=other
run 0 train "${sets[@]}" --set train.weighting=verifiable --set train.task=mtp --set model.layers=4 --set model.mtp.heads=3 \
    --set verifiable.critic=other --set run.dir=several

# Refused, by key.
check 2 "needs verifiable.critic" -- train "${common[@]}" --set train.weighting=verifiable --set run.dir=never
check 2 "verifiable.critic: whole is a model that predicts tokens" -- train "${sets[@]}" --set train.weighting=verifiable \
    --set verifiable.critic=whole --set run.dir=never
check 2 "rho1.reference: critic is a critic" -- train "${common[@]}" --set train.weighting=rho1 --set rho1.reference_on=disk \
    --set rho1.reference=critic --set run.dir=never
check 2 "verifiable.critic" vocabulary -- train "${sets[@]}" --set train.weighting=verifiable --set model.vocab=300 --set run.dir=never
[ ! -e never ] || fail "a run that was refused has left a directory"
finish "weights from the values of a critic follow from critic_values"
