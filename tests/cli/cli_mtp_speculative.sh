#!/usr/bin/env bash
# cli_mtp_speculative.sh - speculative decoding with prediction heads gives the tokens of plain greedy decoding, with trained and
# with random heads, in every batch, page and context, up to stop strings and ends of text; its drafts are counted right.
# RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

python3 -c "
for i in range(400): print('one two three four five six seven eight nine ten,' if i % 2 else 'red green blue, red green blue.')" >text.txt
common=(--set data.source=text.txt --set data.seq_len=64 --set data.eval_fraction=0 --set run.device=cpu --set run.threads=2
        --set train.task=mtp --set model.mtp.heads=4 --set model.layers=6 --set model.vocab=260 --set data.tokenizer=byte)
for preset in test-gpt2 test-qwen3; do
    run 0 train "${common[@]}" --preset $preset --set train.steps=1 --set train.lr=1e-30 --set run.dir=random_$preset
done
run 0 train "${common[@]}" --preset test-llama --set train.steps=150 --set train.micro_batch=8 --set train.lr=0.01 --set run.dir=trained
run 0 export trained all --heads all

cat >prompts.txt <<'P'
one two three
red
green blue, red gr
x
seven eight nine ten,
six sev
P
# compare MODEL ARGUMENTS: both ways, with the same flags.
drafts=()
compare() {
    run 0 generate --model "$1" --prompt-file prompts.txt --device cpu --threads 2 --tokenizer byte --json "${@:2}"
    cp out plain.json
    run 0 generate --model "$1" --prompt-file prompts.txt --device cpu --threads 2 --tokenizer byte --json --speculative "${drafts[@]}" "${@:2}"
    python3 - "$*" <<'P' || fail "speculative decoding differs: $*"
import json, sys
plain, spec = (json.loads(open(f).read().splitlines()[-1]) for f in ('plain.json', 'out'))
for a, b in zip(plain['completions'], spec['completions'], strict=True):
    assert a == b, (a, b)  # tokens, text, reason, log-probability
s, n = spec['speculative'], sum(len(c['tokens']) for c in spec['completions']) - len(spec['completions'])
assert 0 <= s['accepted'] <= s['drafted'], s
# Every pass over a sequence gives its own token and those accepted. An end of text may come between.
assert n == s['passes'] + s['accepted'] if '--ignore-eos' in sys.argv[1] else n <= s['passes'] + s['accepted'], (n, s)
assert 'speculative' not in plain
P
}
for model in random_test-gpt2 random_test-qwen3 trained; do
    compare $model --max-new 24 --ignore-eos
    compare $model --max-new 24 --ignore-eos --batch 1 --page-size 3
    compare $model --max-new 24 --ignore-eos --batch 4 --page-size 1 --context 30
done
compare all --max-new 17 --ignore-eos --precision bf16
drafts=(--draft-max 1)
compare all --max-new 24 --ignore-eos
drafts=()
compare all --max-new 3 --ignore-eos
compare all --max-new 1 --ignore-eos
compare all --max-new 24 --ignore-eos --cache 200K
compare trained --max-new 40
compare trained --max-new 40 --stop "five" --stop ", r"

# What was learnt is drafted right; random heads are not.
run 0 generate --model trained --prompt "one two three" --max-new 36 --device cpu --tokenizer byte --json --speculative --ignore-eos
python3 -c "
import json; s = json.loads(open('out').read().splitlines()[-1])['speculative']
assert s['acceptance'] > 0.8 and s['tokens_per_pass'] > 3, s" || fail "a learnt text is not drafted: $(grep -o '"speculative".*' out)"
check 0 "accepted" "tokens per pass instead of 1" -- generate --model trained --prompt "one" --max-new 8 --device cpu --tokenizer byte --speculative
check 0 "cache" -- generate --model trained --plan --speculative --tokenizer byte --device cpu
echo '{"question": "one two ", "answer": "three"}' >q.jsonl
check 0 "exact match" -- eval --model trained --data q.jsonl --tokenizer byte --device cpu --speculative --max-new 8 --chat none

# Refused.
run 0 export trained first
check 2 "has no prediction heads" "--heads all" -- generate --model first --prompt x --speculative --device cpu --tokenizer byte
check 2 "--speculative decodes greedily" -- generate --model trained --prompt x --speculative --temperature 0.5 --tokenizer byte
check 2 "--repetition-penalty" -- generate --model trained --prompt x --speculative --repetition-penalty 1.2 --tokenizer byte
check 2 "--draft-max is for --speculative" -- generate --model trained --prompt x --draft-max 2 --tokenizer byte
finish "speculative decoding: the tokens of plain greedy decoding, in fewer passes"
