#!/bin/bash
# cli_tensor.sh - one model and its rows shared by 2, 3, 4 and 8 ranks (ranks_tensor.c), and what cannot be shared is refused. RALO names the
# program, RALO_BUILD the build directory.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
ranks_tensor=${RALO_BUILD:?the build directory}/tests/ranks_tensor
need_program "$ranks_tensor"
for n in 2 3 4 8; do
    under_mpirun $n "$ranks_tensor" || fail "$n ranks: $(tail -n 5 log)"
    grep -qx "$n ranks share model and rows: as one rank\|3 ranks share rows: as one rank" log || fail "$n ranks did not end: $(tail -n 3 log)"
done

# What cannot be cut, with the reason. test-llama: 4 heads, 2 of k and v, 160 columns.
refused() { # N WORDS ARGUMENTS
    local n=$1 words=$2
    shift 2
    run 2 train --ranks "$n" --preset test-llama --set parallel.tensor="$n" --set train.steps=1 --set run.dir=refused "$@"
    grep -q "$words" err || fail "refused without '$words': $(tail -n 2 err)"
}
refused 3 'has 4 heads, which 3 ranks cannot share'
refused 4 '162 feed-forward columns, which 4 ranks' --set model.ffn=162
refused 2 '3 kv heads, which 2 ranks cannot share' --set model.heads=6 --set model.kv_heads=3 --set model.head_dim=16
refused 2 'micro-batch of 1 x 25 tokens cannot be shared by 2' --set train.micro_batch=1 --set data.seq_len=25
refused 2 'rows of 30 tokens cannot be shared by 2' --set parallel.tensor=1 --set parallel.sequence=2 --set data.seq_len=30
refused 4 '4 heads and 2 kv heads cannot be shared by 4' --set parallel.tensor=1 --set parallel.sequence=4 \
    --set data.seq_len=32 --set parallel.attention=heads
refused 2 'memory.states: found int8 with parallel.tensor 2' --set memory.states=int8
# 16K tokens on 4 ranks: what the forward leaves behind is that of 4K on one.
mkdir long
cat >long/config.json <<'END'
{"model_type": "llama", "vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
 "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu"}
END
activations() { # RANKS TOKENS WAY
    run 0 train --ranks "$1" --set parallel.sequence="$1" --set parallel.attention="$3" --set data.seq_len="$2" --set model.path=long \
        --set model.init=random --set data.tokenizer=byte --set data.source=builtin:grammar --set train.micro_batch=1 \
        --set train.steps=1 --set train.eval_rows=0 --set train.problems=0 --set run.threads=1 --set run.dir="long-$2-$3" --json
    grep -o '"activations": [0-9][0-9]*' out | sort -u
}
one=$(activations 1 4096 auto)
four=$(activations 4 16384 heads)
[ -n "$one" ] && [ "$one" = "$four" ] || fail "4096 tokens on one rank: $one; 16384 on four: $four"
loss=$(grep -o '"last": [0-9.]*' out)
# By a ring as well: with twice the ranks a row can be twice as long. Which way it was and why stands in the plan.
two=$(activations 2 8192 ring)
four=$(activations 4 16384 ring)
[ -n "$two" ] && [ "$two" = "$four" ] || fail "by a ring 8192 tokens on two ranks: $two; 16384 on four: $four"
python3 -c "import sys; a, b = [float(x.split()[1]) for x in sys.argv[1:]]; sys.exit(abs(a - b) > 1e-4)" "$loss" \
    "$(grep -o '"last": [0-9.]*' out)" || fail "by heads: $loss; by a ring: $(grep -o '"last": [0-9.]*' out)"
run 0 plan --preset test-llama --set parallel.sequence=4 --set parallel.attention=ring --set data.seq_len=64 --set train.micro_batch=1
grep -q 'attention by a ring of keys and values, as set' out || fail "the plan does not say how rows are shared: $(grep rows out)"
finish "one model on 2, 4 and 8 ranks; what cannot be cut is refused"
