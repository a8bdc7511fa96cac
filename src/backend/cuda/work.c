/* work.c - scratch of the CUDA kernels: pure, so that a plan for a GPU can be made where there is none. */
#include "backend/cuda/work.h"

size_t cuda_work_bytes(const program *p, const op *o, int n_threads) {
    (void)n_threads; /* of the host; a GPU's kernels have as many as they like */
    switch (o->kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
    case OP_LINEAR8:
    case OP_LINEAR_DW_ADD:
    case OP_UNEMBED_LOSS:
    case OP_UNEMBED_STATS:
    case OP_UNEMBED_GRAD:
    case OP_UNEMBED_LOSS_GRAD:
    case OP_UNEMBED_LOGITS: return cuda_gemm_work_bytes(p, o);
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
    case OP_ATTENTION_PAGED: return cuda_attention_work_bytes(p, o);
    case OP_BIAS_GRAD:
    case OP_RMSNORM_BWD:
    case OP_LAYERNORM_BWD:
    case OP_QK_NORM_BWD:
    case OP_QK_NORM_ROPE_BWD: return cuda_norm_work_bytes(p, o);
    case OP_EMBED_BWD:
    case OP_EMBED_BWD_ADD:
    case OP_POSITION_BWD: return cuda_embed_work_bytes(p, o);
    default: return 0;
    }
}
