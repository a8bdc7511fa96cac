/* work_norm.c - scratch of the gradients that are sums over rows: one line per block of rows. */
#include "backend/cuda/work.h"

#include "backend/cuda/sum_blocks.h"

size_t cuda_norm_work_bytes(const program *p, const op *o) {
    const value *rows = program_get(p, o->in[0]);
    int64_t width, line;
    switch (o->kind) {
    case OP_RMSNORM_BWD:
    case OP_LAYERNORM_BWD:
        width = shape_count(&program_get(p, o->in[1])->shape);
        line = o->kind == OP_LAYERNORM_BWD ? 2 * width : width;
        break;
    case OP_QK_NORM_BWD:
        width = (o->attr.n_heads + 2 * o->attr.n_kv_heads) * (int64_t)o->attr.head_dim;
        line = 2 * (int64_t)o->attr.head_dim;
        break;
    default:
        ASSERT(o->kind == OP_BIAS_GRAD);
        line = width = shape_count(&program_get(p, o->out[0])->shape);
    }
    return (size_t)(sum_block_count(shape_count(&rows->shape) / width) * line) * sizeof(float);
}
