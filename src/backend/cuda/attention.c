/* attention.c - attention over whole rows: which kernels serve a call, and where their scratch lies.
 *
 * The choice is by dtype, head_dim and GPU alone (launch_attention.h lists the kernels), so a shape has one arithmetic on a
 * machine wherever it stands in a program. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_attention.h"
#include "backend/cuda/tensor_map.h"

SAME_PLACE(ATTENTION_QKV, ATTENTION_BWD_QKV);
SAME_PLACE(ATTENTION_DOC_START, ATTENTION_BWD_DOC_START);

static launch_attention attention_of(const backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    ASSERT(a->head_dim <= ATTENTION_HEAD_DIM_MOST);
    return (launch_attention){.type = launch_type_of(call_in(k, ATTENTION_QKV)->type),
                              .B = a->batch,
                              .T = a->seq_len,
                              .H = a->n_heads,
                              .G = a->n_kv_heads,
                              .D = a->head_dim,
                              .scale = a->scale,
                              .n_multiprocessors = c->n_multiprocessors,
                              .qkv = k->in[ATTENTION_QKV],
                              .doc_start = k->in[ATTENTION_DOC_START]};
}

typedef enum attention_kernels { KERNELS_PLAIN, KERNELS_MMA, KERNELS_WGMMA } attention_kernels;

static attention_kernels kernels_for(const backend_context *c, const launch_attention *a) {
    if (a->type == LAUNCH_F32) return KERNELS_PLAIN;
#ifdef HAVE_SM90A
    if (c->capability == 90 && (a->D == 64 || a->D == 128)) return KERNELS_WGMMA;
#endif
    return a->D == 64 || a->D == 80 || a->D == 96 || a->D == 128 ? KERNELS_MMA : KERNELS_PLAIN;
}

/* The third dimension is the sequence: a tile that ends behind one is filled with zeros and not with the next one's tokens. */
static CUtensorMap map_of(const launch_attention *a, const void *rows, int64_t width) {
    return tensor_map_make(&(tensor_box){.data = rows,
                                         .columns = width,
                                         .rows = a->T,
                                         .sequences = a->B,
                                         .box_columns = ATTENTION_BOX_COLUMNS,
                                         .box_rows = ATTENTION_BOX_ROWS,
                                         .type = a->type});
}

void cuda_kernel_ATTENTION(backend_context *c, const kernel_call *k) {
    launch_attention a = attention_of(c, k);
    a.y = k->out[ATTENTION_Y];
    a.lse = k->out[ATTENTION_LSE];
    attention_kernels kernels = kernels_for(c, &a);
    if (kernels == KERNELS_PLAIN) launch_attention_plain(&a, c->stream);
    if (kernels == KERNELS_MMA) launch_attention_mma(&a, c->stream);
    if (kernels != KERNELS_WGMMA) return;
    CUtensorMap qkv = map_of(&a, a.qkv, (a.H + 2 * a.G) * a.D);
    launch_attention_wgmma(&a, &qkv, c->stream);
}

/* dqkv = (written in full) */
void cuda_kernel_ATTENTION_BWD(backend_context *c, const kernel_call *k) {
    launch_attention a = attention_of(c, k);
    a.y = k->in[ATTENTION_BWD_Y];
    a.lse = k->in[ATTENTION_BWD_LSE];
    a.dy = k->in[ATTENTION_BWD_DY];
    a.dqkv = k->out[ATTENTION_BWD_DQKV];
    a.delta = k->work;
    launch_attention_delta(&a, c->stream);
    attention_kernels kernels = kernels_for(c, &a);
    if (kernels == KERNELS_PLAIN) launch_attention_plain_backward(&a, c->stream);
    if (kernels == KERNELS_MMA) launch_attention_mma_backward(&a, c->stream);
    if (kernels != KERNELS_WGMMA) return;
    CUtensorMap qkv = map_of(&a, a.qkv, (a.H + 2 * a.G) * a.D), dy = map_of(&a, a.dy, a.H * a.D);
    launch_attention_wgmma_backward(&a, &qkv, &dy, c->stream);
}
