#!/usr/bin/env bash
# cli_gpu_speculative.sh - on a GPU, speculative decoding gives the tokens of plain greedy decoding for a model that has learnt its
# text: its choices are far apart, so that a pass over several tokens, which may round otherwise, chooses the same. Random heads
# accept little and change nothing. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
need_gpu

python3 -c "
for i in range(400): print('one two three four five six seven eight nine ten,' if i % 2 else 'red green blue, red green blue.')" >text.txt
common=(--set data.source=text.txt --set data.seq_len=64 --set data.eval_fraction=0 --set run.device=cuda --set train.task=mtp
        --set model.mtp.heads=4 --set model.layers=6 --set model.vocab=260 --set data.tokenizer=byte --preset test-llama --set precision=fp32)
run 0 train "${common[@]}" --set train.steps=200 --set train.micro_batch=8 --set train.lr=0.01 --set run.dir=trained
printf 'one two three\nred\ngreen blue, red gr\nseven eight nine ten,\nsix sev\n' >prompts.txt
for more in "--batch 1" "--batch 5" "--batch 3 --page-size 3" "--precision bf16" "--stop five"; do
    flags=(--model trained --prompt-file prompts.txt --device cuda --tokenizer byte --max-new 40 --json $more)
    run 0 generate "${flags[@]}"
    cp out plain.json
    run 0 generate "${flags[@]}" --speculative
    python3 - <<'P' || fail "speculative decoding differs: $more"
import json
plain, spec = (json.loads(open(f).read().splitlines()[-1]) for f in ('plain.json', 'out'))
assert [c['tokens'] for c in plain['completions']] == [c['tokens'] for c in spec['completions']]
assert spec['speculative']['acceptance'] > 0.5, spec['speculative']
P
done
finish "speculative decoding on a GPU: the tokens of plain greedy decoding"
