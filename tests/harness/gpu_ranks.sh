# gpu_ranks.sh - for scripts that train the same small model on a GPU with several ranks; read after check.sh.
need python3 "it reads the JSON output"
need_gpu
need_ranks
common=(--preset test-qwen3 --set run.device=cuda --set data.seq_len=32 --set train.micro_batch=2 --set train.steps=3
    --set train.warmup=0 --set train.problems=0 --set train.eval_rows=4 --set run.threads=1 --set run.bind=false --json)
number=0
train() { # RANKS ARGUMENTS: a run of its own
    local n=$1
    shift
    number=$((number + 1))
    timeout 300 "$RALO" train --ranks "$n" "${common[@]}" --set run.dir=run-$number "$@" >out 2>err </dev/null ||
        fail "$n ranks $*: $(tail -n 3 err)"
}
get() { python3 -c "import json; r = json.loads(open('out').read().splitlines()[-1]); print($1)"; }
result() { get "r['param_hash'], r['loss']['last']"; }
# planned: every rank used the bytes that were planned, in every memory.
planned() { holds "all(x[t]['planned'] == x[t]['peak'] for x in r['ranks'] for t in ('device', 'host', 'nvme'))"; }
# need_nccl: without libnccl.so.2 the test is skipped.
need_nccl() {
    "$RALO" train --ranks 2 "${common[@]}" --set run.dir=need_nccl --set comm.transport=nccl >out 2>err </dev/null && return
    ! grep -q 'libnccl.so.2.*does not load' err || { echo "NCCL not found: $(tail -n 1 err)"; exit 77; }
    die "two ranks do not run by NCCL: $(tail -n 3 err)"
}
# ends CODE SECONDS WHAT: the run in the background, $pid with its stderr in log, is over within that time.
ends() {
    local start=$SECONDS rc
    while kill -0 $pid 2>/dev/null && [ $((SECONDS - start)) -le "$2" ]; do sleep 0.05; done
    kill -0 $pid 2>/dev/null && die "$3: still there after $2 s: $(tail -n 5 log)"
    { wait $pid; } 2>/dev/null
    rc=$?
    pid=
    [ $rc = "$1" ] || fail "$3: exit code $rc, expected $1: $(tail -n 5 log)"
}
# long_rows: a model with rows of 16K tokens for which 56 MiB of device memory are too little; its arguments in `long`.
long_rows() {
    mkdir long
    cat >long/config.json <<'END'
{"model_type": "llama", "vocab_size": 260, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
 "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 512, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu"}
END
    long=(--set run.device=cuda --set model.path=long --set model.init=random --set data.tokenizer=byte --set data.source=builtin:grammar
        --set train.micro_batch=1 --set train.steps=3 --set train.warmup=0 --set train.eval_rows=0 --set train.problems=0
        --set precision=bf16 --set data.seq_len=16384 --set run.bind=false --json)
}
