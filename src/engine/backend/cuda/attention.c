/* attention.c - attention over whole rows and by a ring: which kernels serve a call, and where their scratch lies.
 *
 * The choice is by dtype, head_dim and GPU alone (launch_attention.h lists the kernels), so a shape has one arithmetic on a
 * machine wherever it stands in a program. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_attention.h"
#include "backend/cuda/tensor_map.h"

SAME_PLACE(ATTENTION_QKV, ATTENTION_BWD_QKV, ATTENTION_RING_QKV, ATTENTION_RING_BWD_QKV);
SAME_PLACE(ATTENTION_DOC_START, ATTENTION_BWD_DOC_START);
SAME_PLACE(ATTENTION_RING_KV, ATTENTION_RING_BWD_KV);
SAME_PLACE(ATTENTION_RING_DOC_START, ATTENTION_RING_BWD_DOC_START);

/* Without its operands but q, and kv where that is in the same rows. */
static launch_attention attention_of(const backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    size_t element = dtype_bytes(call_in(k, ATTENTION_QKV)->type);
    int64_t stride = (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    ASSERT(a->head_dim <= ATTENTION_HEAD_DIM_MOST);
    return (launch_attention){.type = launch_type_of(call_in(k, ATTENTION_QKV)->type),
                              .B = a->batch,
                              .T = a->seq_len,
                              .H = a->n_heads,
                              .G = a->n_kv_heads,
                              .D = a->head_dim,
                              .scale = a->scale,
                              .window = a->window ? (int)MIN(a->window, ATTENTION_NO_WINDOW) : ATTENTION_NO_WINDOW,
                              .softcap = a->softcap,
                              .n_multiprocessors = c->n_multiprocessors,
                              .q = k->in[ATTENTION_QKV],
                              .kv = (const char *)k->in[ATTENTION_QKV] + (size_t)(a->n_heads * a->head_dim) * element,
                              .q_stride = stride,
                              .kv_stride = stride,
                              .doc_start = k->in[ATTENTION_DOC_START]};
}

typedef enum attention_kernels { KERNELS_PLAIN, KERNELS_MMA, KERNELS_WGMMA } attention_kernels;

static attention_kernels kernels_for(const backend_context *c, const launch_attention *a) {
    if (a->type == LAUNCH_F32) return KERNELS_PLAIN;
#ifdef HAVE_SM90A
    if (c->capability == 90 && attention_head_dim_wgmma(a->D) && a->softcap == 0) return KERNELS_WGMMA;
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

static attention_maps maps_of(const launch_attention *a, bool backward) {
    attention_maps m = {.q = map_of(a, a->q, a->q_stride)};
    m.kv = a->n_ranks ? map_of(a, a->kv, a->kv_stride) : m.q;
    if (backward) m.dy = map_of(a, a->dy, (int64_t)a->H * a->D);
    return m;
}

/* qk: rows of q and k, a head or what follows it in a box of 128 columns. v: a row for each column of a head of v, boxes of a block of keys. */
static attention8_maps maps8_of(const launch_attention *a, const launch_attention8 *r) {
    tensor_box qk = {.data = r->qk,
                     .columns = (int64_t)(a->H + a->G) * a->D,
                     .rows = a->T,
                     .sequences = a->B,
                     .box_columns = FP8_BLOCK,
                     .box_rows = FP8_BLOCK,
                     .type = LAUNCH_E4M3};
    tensor_box v = qk;
    v.data = r->v, v.columns = r->padded, v.rows = (int64_t)a->G * a->D, v.box_rows = a->D;
    return (attention8_maps){tensor_map_make(&qk), tensor_map_make(&v)};
}

/* gemm_prepare has refused what there is no kernel for. */
static void forward8(backend_context *c, const launch_attention *a, char *work) {
    ASSERT(kernels_for(c, a) == KERNELS_WGMMA && a->type == LAUNCH_BF16);
    attention8_scratch s = attention8_scratch_of(a->B, a->T, a->H, a->G, a->D);
    launch_attention8 r = {.n_blocks = s.n_blocks,
                           .padded = s.padded,
                           .qk = (uint8_t *)work,
                           .v = (uint8_t *)work + s.v,
                           .q_scales = (float *)(work + s.q_scales),
                           .kv_scales = (attention8_scales *)(work + s.kv_scales)};
    attention8_maps m = maps8_of(a, &r);
    launch_attention_round8(a, &r, c->stream);
    launch_attention_wgmma8(a, &r, &m, c->stream);
}

void cuda_kernel_ATTENTION(backend_context *c, const kernel_call *k) {
    launch_attention a = attention_of(c, k);
    a.y = k->out[ATTENTION_Y];
    a.lse = k->out[ATTENTION_LSE];
    if (k->op->attr.fp8) {
        forward8(c, &a, k->work);
        return;
    }
    attention_kernels kernels = kernels_for(c, &a);
    if (kernels == KERNELS_PLAIN) launch_attention_plain(&a, c->stream);
    if (kernels == KERNELS_MMA) launch_attention_mma(&a, c->stream);
    if (kernels != KERNELS_WGMMA) return;
    attention_maps m = maps_of(&a, false);
    launch_attention_wgmma(&a, &m, c->stream);
}

static void place_scratch(launch_attention *a, void *work) {
    attention_scratch s =
        attention_scratch_of(a->B, a->T, a->H, a->G, a->D, a->type != LAUNCH_F32, a->softcap != 0, a->n_ranks > 0);
    a->delta = work;
    if (!s.sums_dq) return;
    a->turns = (int32_t *)((char *)work + s.turns);
    a->dq_sums = (float *)((char *)work + s.dq_sums);
    if (!s.sums_dkv) return;
    a->dkv_turns = (int32_t *)((char *)work + s.dkv_turns);
    a->dkv_sums = (float *)((char *)work + s.dkv_sums);
}

/* dqkv = (written in full) */
void cuda_kernel_ATTENTION_BWD(backend_context *c, const kernel_call *k) {
    launch_attention a = attention_of(c, k);
    a.y = k->in[ATTENTION_BWD_Y];
    a.lse = k->in[ATTENTION_BWD_LSE];
    a.dy = k->in[ATTENTION_BWD_DY];
    a.dq = k->out[ATTENTION_BWD_DQKV];
    a.dkv = (char *)a.dq + (size_t)(a.H * a.D) * dtype_bytes(call_out(k, ATTENTION_BWD_DQKV)->type);
    place_scratch(&a, k->work);
    launch_attention_delta(&a, c->stream);
    attention_kernels kernels = kernels_for(c, &a);
    if (kernels == KERNELS_PLAIN) launch_attention_plain_backward(&a, c->stream);
    if (kernels == KERNELS_MMA) launch_attention_mma_backward(&a, c->stream);
    if (kernels != KERNELS_WGMMA) return;
    attention_maps m = maps_of(&a, true);
    launch_attention_wgmma_backward(&a, &m, c->stream);
}

/* ---- a ring: keys and values of one rank at a time --------------------------------------------------------------- */

static launch_attention ring_of(const backend_context *c, const kernel_call *k) {
    const op_attr *o = &k->op->attr;
    launch_attention a = attention_of(c, k);
    a.kv = k->in[ATTENTION_RING_KV];
    a.kv_stride = 2 * (int64_t)a.G * a.D;
    a.doc_start = k->in[ATTENTION_RING_DOC_START];
    a.n_ranks = o->group_size;
    a.rank = o->index;
    a.key_rank = o->peer;
    a.spans = o->spans;
    return a;
}

void cuda_kernel_ATTENTION_RING(backend_context *c, const kernel_call *k) {
    launch_attention a = ring_of(c, k);
    a.before = k->in[ATTENTION_RING_BEFORE];
    a.lse_before = k->in[ATTENTION_RING_LSE_BEFORE];
    a.y = k->out[ATTENTION_RING_Y];
    a.lse = k->out[ATTENTION_RING_LSE];
    a.more = a.key_rank != (a.rank + 1) % a.n_ranks; /* that one's keys come last */
    attention_kernels kernels = kernels_for(c, &a);
    if (kernels == KERNELS_PLAIN) launch_ring_plain(&a, c->stream);
    if (kernels == KERNELS_MMA) launch_ring_mma(&a, c->stream);
    if (kernels != KERNELS_WGMMA) return;
    attention_maps m = maps_of(&a, false);
    launch_attention_wgmma(&a, &m, c->stream);
}

/* dq, dkv = for its own keys, which come first, += for those of others */
void cuda_kernel_ATTENTION_RING_BWD(backend_context *c, const kernel_call *k) {
    launch_attention a = ring_of(c, k);
    a.y = k->in[ATTENTION_RING_BWD_Y];
    a.lse = k->in[ATTENTION_RING_BWD_LSE];
    a.dy = k->in[ATTENTION_RING_BWD_DY];
    a.dq = k->out[ATTENTION_RING_BWD_DQ];
    a.dkv = k->out[ATTENTION_RING_BWD_DKV];
    a.adds = a.key_rank != a.rank;
    place_scratch(&a, k->work);
    launch_attention_delta(&a, c->stream);
    attention_kernels kernels = kernels_for(c, &a);
    if (kernels == KERNELS_PLAIN) launch_ring_plain_backward(&a, c->stream);
    if (kernels == KERNELS_MMA) launch_ring_mma_backward(&a, c->stream);
    if (kernels != KERNELS_WGMMA) return;
    attention_maps m = maps_of(&a, true);
    launch_attention_wgmma_backward(&a, &m, c->stream);
}

void cuda_kernel_KV_PART(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    int64_t head_bytes = a->head_dim * (int64_t)dtype_bytes(call_in(k, KV_PART_QKV)->type);
    launch_kv_part(k->in[KV_PART_QKV], k->out[KV_PART_KV], call_in(k, KV_PART_QKV)->shape.dim[0],
                   a->n_heads * head_bytes, 2 * a->n_kv_heads * head_bytes, c->stream);
}

void cuda_kernel_QKV_JOIN(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    const value *qkv = call_out(k, QKV_JOIN_QKV);
    launch_qkv_join(launch_type_of(qkv->type), k->in[QKV_JOIN_Q], k->in[QKV_JOIN_KV], k->out[QKV_JOIN_QKV],
                    qkv->shape.dim[0], (int64_t)a->n_heads * a->head_dim, 2 * (int64_t)a->n_kv_heads * a->head_dim,
                    c->stream);
}
