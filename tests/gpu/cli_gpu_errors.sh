#!/bin/bash
# cli_gpu_errors.sh - what a GPU host may lack or have wrong: a plug-in that is not one, of another version, or missing; a GPU
# that is not there; memory that another process holds. Each is refused with what to do. (Drivers and GPUs that are too old:
# test_gpu_checks.c.) The first part needs no GPU. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
small=(--preset test-gpt2 --set train.steps=2 --set train.eval_rows=0 --set train.problems=0 --set run.device=cuda)
given=${RALO_CUDA_PLUGIN:-none}

# ---- the plug-in
plugin() { # NAME CODE: a library that is not ours
    printf '%s\n' "$2" >"$1.c"
    ${CC:-cc} -shared -fPIC -o "$1.so" "$1.c" || die "$1 does not compile"
    export RALO_CUDA_PLUGIN=$work/$1.so
}
plugin other 'typedef struct { char stamp[128]; } plugin; static plugin p = {"7 ops 0123456789abcdef, sizes 1 2 3"};
const plugin *ralo_backend_plugin(void); const plugin *ralo_backend_plugin(void) { return &p; }'
check 2 "found build '7 ops 0123456789abcdef" expected 'build and install ralo and its plug-in together' -- train "${small[@]}"
plugin foreign 'int something(void); int something(void) { return 1; }'
check 2 'has no symbol ralo_backend_plugin' 'not a plug-in of ralo' -- train "${small[@]}"
export RALO_CUDA_PLUGIN=$work/missing.so
check 2 RALO_CUDA_PLUGIN missing.so -- train "${small[@]}"
export RALO_CUDA_PLUGIN=none
check 2 'no CUDA backend is wanted' -- train "${small[@]}"
# Nobody asked for a GPU: then a plug-in that does not fit is no error.
RALO_CUDA_PLUGIN=$work/other.so run 0 train "${small[@]}" --set run.device=auto --set run.dir=a
export RALO_CUDA_PLUGIN=$given
[ $failures = 0 ] || finish

# ---- the GPU
need_gpu
CUDA_VISIBLE_DEVICES= check 2 'shows no GPU' CUDA_VISIBLE_DEVICES 'run.device to cpu' -- train "${small[@]}"
check 2 'run.gpu: found 999, expected 0 to' -- train "${small[@]}" --set run.gpu=999
RALO_CUDA_PRODUCTS=fast check 2 'RALO_CUDA_PRODUCTS: found fast, expected cublaslt, own or plain' -- train "${small[@]}"
# A plan for more than is free, as when another process came after it was made.
check 3 'of GPU memory and' 'are free' nvidia-smi 'memory.device' -- train "${small[@]}" --preset test-llama --set run.dir=b \
    --set memory.device=9000G --set train.micro_batch=65536 --set data.seq_len=64 --set memory.recompute=none \
    --set model.layers=64 --set model.hidden=1024 --set model.heads=16 --set model.kv_heads=16
# A limit below what the model needs is refused before anything is taken.
check 3 memory.device -- train "${small[@]}" --set memory.device=1M --set memory.recompute=none
# Weights in fewer bits: 16-bit activations and rows of 64 weights each.
tiny=(generate --model "$TEST_FIXTURES/lora/train_llama" --prompt "the cat" --device cuda)
for format in int8 fp8 nf4; do
    check 2 "--weights: found $format with --precision fp32" "add --precision bf16" -- "${tiny[@]}" --weights $format
    check 2 "--weights: found $format for" "expected multiples of 64 on a GPU" -- "${tiny[@]}" --weights $format --precision bf16
done
finish "plug-ins of other builds, GPUs that are not there and memory that is taken are named"
