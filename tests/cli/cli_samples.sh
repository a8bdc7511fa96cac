#!/bin/bash
# cli_samples.sh - train.sample_every: completions in samples.jsonl while a run trains. They are those of `ralo generate` on the saved
# run, training keeps its bits, a resumed run writes each step once, and what has no effect or cannot be is said.
. "$(dirname "$0")/../harness/check.sh"
need python3
tiny="--set model.preset=test-llama --set data.source=builtin:grammar --set data.seq_len=32 --set train.micro_batch=4 \
--set train.steps=8 --set train.warmup=0 --set train.lr=0.02 --set train.problems=0"
samples="--set train.sample_every=3 --set train.samples=3 --set train.sample_tokens=20 --set train.sample_prompts=p.txt"
printf 'the cat\nA\n12+34=\nnever asked\n' >p.txt
head -n 3 p.txt >asked.txt

# json FILE EXPRESSION: prints it, of the lines of FILE as a list `r` of objects.
json() { python3 -c "import json; r = [json.loads(x) for x in open('$1', encoding='utf-8') if x.startswith('{')]; print($2)"; }
hash_of() { json "$1" "r[-1]['param_hash']"; }

for more in "" "--set precision=bf16" "--set model.lora.rank=4"; do
    rm -rf plain with
    run 0 train $tiny $more --set run.dir=plain --json && mv out plain.json
    run 0 train $tiny $more $samples --set run.dir=with --json && mv out with.json
    [ "$(hash_of plain.json)" = "$(hash_of with.json)" ] || fail "$more: sampling changed the parameters"
    [ -e plain/samples.jsonl ] && fail "$more: samples.jsonl without samples"
    [ "$(json with/samples.jsonl "[x['step'] for x in r]")" = "[3, 3, 3, 6, 6, 6, 8, 8, 8]" ] ||
        fail "$more: steps of samples: $(cat with/samples.jsonl)"
    precision=fp32
    [ "$more" = "--set precision=bf16" ] && precision=bf16
    run 0 generate --model with --prompt-file asked.txt --max-new 20 --precision $precision --json
    json out "*[[x['prompt'], x['text'], x['stop']] for x in r[-1]['completions']], sep='\n'" >outside
    json with/samples.jsonl "*[[x['prompt'], x['completion'], x['stop']] for x in r if x['step'] == 8], sep='\n'" >inside
    [ "$(wc -l <inside)" = 3 ] || fail "$more: $(cat inside)"
    cmp -s inside outside || fail "$more: $(diff inside outside)"
    cp with.json out
    holds "r['memory']['device']['planned'] == r['memory']['device']['peak'] and r['memory']['allocations_in_steps'] == 0"
done

# A run that is resumed before its last samples writes them again, once.
cp with/samples.jsonl before.jsonl
rm -rf again
run 0 train $tiny $samples --set model.lora.rank=4 --set run.dir=again --set train.save_every=4 --set run.keep=9
cmp -s again/samples.jsonl before.jsonl || fail "the run itself: $(diff again/samples.jsonl before.jsonl)"
rm -rf again/checkpoints/*8
run 0 train $tiny $samples --set model.lora.rank=4 --set run.dir=again --set train.save_every=4 --set run.keep=9 --resume auto
cmp -s again/samples.jsonl before.jsonl || fail "resumed: $(diff again/samples.jsonl before.jsonl)"

# The plan names them.
run 0 plan $tiny $samples --json
holds "[r['strategy'][k] for k in ('sequences', 'context', 'pages', 'peak_section')] == [3, 52, 6, 'micro']"
check 0 'samples   3 at once, at most 52 tokens each; cache' 'section micro' -- plan $tiny $samples
check 0 'train.samples has no effect' -- plan $tiny --set train.samples=2

# What cannot be is refused.
check 2 'train.sample_every: found 2 ranks that share the model' -- plan $tiny $samples --set parallel.tensor=2
check 2 'nothing.txt' -- train $tiny $samples --set train.sample_prompts=nothing.txt --set run.dir=no
printf 'a text of two rows, none of which is held out\n%032d\n' 0 >text.txt
check 2 'train.sample_prompts: found none with data.eval_fraction 0' -- \
    plan $tiny --set data.source=text.txt --set data.eval_fraction=0 --set train.sample_every=2
finish "samples of a run are the completions of the saved run"
