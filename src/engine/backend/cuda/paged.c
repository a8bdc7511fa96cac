/* paged.c - keys and values into pages, and attention of single tokens through a page table: calls taken apart. */
#include "backend/cuda/paged.h"

/* The places of what both ops read. */
typedef struct paged_inputs {
    int qkv, slots, table, doc_start;
} paged_inputs;

static launch_paged paged_of(const kernel_call *k, const value *cache, paged_inputs at) {
    const op_attr *a = &k->op->attr;
    const value *qkv = call_in(k, at.qkv), *table = call_in(k, at.table);
    ASSERT(a->head_dim <= ATTENTION_HEAD_DIM_MOST);
    return (launch_paged){.type = launch_type_of(qkv->type),
                          .N = qkv->shape.dim[0],
                          .n_slots = table->shape.dim[0],
                          .n_pages = cache->shape.dim[0],
                          .page_size = cache->shape.dim[2],
                          .pages_per_slot = table->shape.dim[1],
                          .H = a->n_heads,
                          .G = a->n_kv_heads,
                          .D = a->head_dim,
                          .scale = a->scale,
                          .window = a->window ? (int)MIN(a->window, ATTENTION_NO_WINDOW) : ATTENTION_NO_WINDOW,
                          .softcap = a->softcap,
                          .rows = k->rows,
                          .qkv = k->in[at.qkv],
                          .slots = k->in[at.slots],
                          .table = k->in[at.table],
                          .doc_start = k->in[at.doc_start]};
}

void cuda_kernel_KV_STORE(backend_context *c, const kernel_call *k) {
    paged_inputs at = {
        .qkv = KV_STORE_QKV, .slots = KV_STORE_SLOTS, .table = KV_STORE_TABLE, .doc_start = KV_STORE_DOC_START};
    launch_paged a = paged_of(k, call_out(k, KV_STORE_CACHE), at);
    a.cache = k->out[KV_STORE_CACHE];
    launch_kv_store(&a, c->stream);
}

launch_paged paged_attention_of(const kernel_call *k) {
    paged_inputs at = {.qkv = ATTENTION_PAGED_QKV,
                       .slots = ATTENTION_PAGED_SLOTS,
                       .table = ATTENTION_PAGED_TABLE,
                       .doc_start = ATTENTION_PAGED_DOC_START};
    launch_paged a = paged_of(k, call_in(k, ATTENTION_PAGED_CACHE), at);
    a.cache = k->in[ATTENTION_PAGED_CACHE];
    a.y = k->out[ATTENTION_PAGED_Y];
    a.partials = k->work;
    return a;
}

void cuda_kernel_ATTENTION_PAGED(backend_context *c, const kernel_call *k) {
    launch_paged a = paged_attention_of(k);
    bool on_tensor_cores = a.type != LAUNCH_F32 && (a.D == 64 || a.D == 80 || a.D == 96 || a.D == 128);
    (on_tensor_cores ? launch_paged_mma : launch_paged_plain)(&a, c->stream);
}
