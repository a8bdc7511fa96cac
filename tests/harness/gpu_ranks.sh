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
