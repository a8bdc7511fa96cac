/* paged.c - keys and values into pages, and attention of single tokens through a page table: calls taken apart. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_attention.h"

static launch_paged paged_of(const kernel_call *k, const value *cache, int first_input) {
    const op_attr *a = &k->op->attr;
    const value *table = call_in(k, first_input + 1);
    ASSERT(a->head_dim <= ATTENTION_HEAD_DIM_MOST);
    return (launch_paged){.type = launch_type_of(call_in(k, 0)->type),
                          .N = call_in(k, 0)->shape.dim[0],
                          .n_slots = table->shape.dim[0],
                          .n_pages = cache->shape.dim[0],
                          .page_size = cache->shape.dim[2],
                          .pages_per_slot = table->shape.dim[1],
                          .H = a->n_heads,
                          .G = a->n_kv_heads,
                          .D = a->head_dim,
                          .scale = a->scale,
                          .rows = k->rows,
                          .qkv = k->in[0],
                          .slots = k->in[first_input],
                          .table = k->in[first_input + 1],
                          .doc = k->in[first_input + 2]};
}

void cuda_kernel_KV_STORE(backend_context *c, const kernel_call *k) {
    launch_paged a = paged_of(k, call_out(k, 0), 1);
    a.cache = k->out[0];
    launch_kv_store(&a, c->stream);
}

void cuda_kernel_ATTENTION_PAGED(backend_context *c, const kernel_call *k) {
    launch_paged a = paged_of(k, call_in(k, 1), 2);
    a.cache = k->in[1];
    a.y = k->out[0];
    a.partials = k->work;
    bool on_tensor_cores = a.type != LAUNCH_F32 && (a.D == 64 || a.D == 80 || a.D == 96 || a.D == 128);
    (on_tensor_cores ? launch_paged_mma : launch_paged_plain)(&a, c->stream);
}
