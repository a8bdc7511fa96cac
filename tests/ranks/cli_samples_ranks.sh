#!/bin/bash
# cli_samples_ranks.sh - train.sample_every on data ranks: with every stage of ZeRO the samples and the parameters of one rank.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
tiny="--set model.preset=test-llama --set data.source=builtin:grammar --set data.seq_len=32 --set train.steps=4 --set train.warmup=0 \
--set train.lr=0.02 --set train.problems=0 --set train.batch=4 --set train.micro_batch=2 --set train.sample_every=2 --set train.sample_tokens=20"
hash_of() { grep -o 'param_hash [0-9a-f]*' err | tail -n 1; }
run 0 train $tiny --set run.dir=one
one=$(hash_of)
for zero in 0 1 2 3; do
    run 0 train --ranks 2 $tiny --set parallel.zero=$zero --set run.dir=two$zero
    [ "$(hash_of)" = "$one" ] || fail "zero $zero: $(hash_of), of one rank $one"
    cmp -s one/samples.jsonl two$zero/samples.jsonl || fail "zero $zero: $(diff one/samples.jsonl two$zero/samples.jsonl)"
done
finish "two ranks generate what one does"
