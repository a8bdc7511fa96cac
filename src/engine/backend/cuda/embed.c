/* embed.c - the C side of embed.cu and scatter.cu. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_embed.h"

static launch_ids ids_of(const op_attr *a, int64_t V) {
    if (a->vocab == 0) return (launch_ids){.vocab = V, .n_ids = V};
    ASSERT(a->n_ids <= V);
    return (launch_ids){.vocab = a->vocab, .first_id = a->first_id, .n_ids = a->n_ids};
}

SAME_PLACE(EMBED_TOKENS, EMBED_INT8_TOKENS);
SAME_PLACE(EMBED_TABLE, EMBED_INT8_CODES);
SAME_PLACE(EMBED_DOC_START, EMBED_INT8_DOC_START);
SAME_PLACE(EMBED_POSITIONS, EMBED_INT8_POSITIONS);
SAME_PLACE(EMBED_X, EMBED_INT8_X);

static void embed_run(backend_context *c, const kernel_call *k, const float *code_scale) {
    const value *table = call_in(k, EMBED_TABLE), *x = call_out(k, EMBED_X);
    const op_attr *o = &k->op->attr;
    launch_embed_args a = {.x = k->out[EMBED_X],
                           .code_scale = code_scale,
                           .tokens = k->in[EMBED_TOKENS],
                           .table = k->in[EMBED_TABLE],
                           .doc_start = k->in[EMBED_DOC_START],
                           .positions = k->in[EMBED_POSITIONS],
                           .rows = k->rows,
                           .n = shape_count(&call_in(k, EMBED_TOKENS)->shape),
                           .C = table->shape.dim[1],
                           .seq_len = o->seq_len,
                           .scale = o->scale,
                           .ids = ids_of(o, table->shape.dim[0])};
    a.first_token = o->n_tokens > 0 ? o->first_token : 0;
    a.n_tokens = o->n_tokens > 0 ? o->n_tokens : a.n;
    ASSERT((code_scale || x->type == table->type) && shape_count(&x->shape) == a.n * a.C);
    if (a.positions) {
        ASSERT(call_in(k, EMBED_POSITIONS)->type == x->type && a.seq_len > 0);
        a.n_positions = call_in(k, EMBED_POSITIONS)->shape.dim[0];
    }
    launch_embed(c->stream, launch_type_of(x->type), &a);
}

void cuda_kernel_EMBED(backend_context *c, const kernel_call *k) { embed_run(c, k, NULL); }
void cuda_kernel_EMBED_INT8(backend_context *c, const kernel_call *k) { embed_run(c, k, k->in[EMBED_INT8_SCALE]); }

SAME_PLACE(EMBED_BWD_TOKENS, EMBED_BWD_ADD_TOKENS, POSITION_BWD_DOC_START);
SAME_PLACE(EMBED_BWD_DY, EMBED_BWD_ADD_DY, POSITION_BWD_DY);
SAME_PLACE(EMBED_BWD_DTABLE, EMBED_BWD_ADD_DTABLE, POSITION_BWD_DTABLE);

static void scatter_run(backend_context *c, const kernel_call *k, bool add, int64_t seq_len) {
    const value *dy = call_in(k, EMBED_BWD_DY), *dtable = call_out(k, EMBED_BWD_DTABLE);
    launch_scatter_args a = {.dtable = k->out[EMBED_BWD_DTABLE],
                             .work = k->work,
                             .dy = k->in[EMBED_BWD_DY],
                             .ids = k->in[EMBED_BWD_TOKENS],
                             .n = shape_count(&call_in(k, EMBED_BWD_TOKENS)->shape),
                             .V = dtable->shape.dim[0],
                             .C = dtable->shape.dim[1],
                             .seq_len = seq_len,
                             .first_token = k->op->attr.first_token,
                             .held = ids_of(&k->op->attr, dtable->shape.dim[0]),
                             .type = launch_type_of(dy->type),
                             .table_type = launch_type_of(dtable->type),
                             .add = add,
                             .scale = seq_len ? 0 : k->op->attr.scale};
    ASSERT(dtable->type == DTYPE_F32 || dtable->type == DTYPE_BF16);
    ASSERT(shape_count(&dy->shape) == a.n * a.C && a.n <= INT32_MAX && a.V < INT32_MAX);
    launch_scatter(c->stream, &a);
}

void cuda_kernel_EMBED_BWD(backend_context *c, const kernel_call *k) { scatter_run(c, k, false, 0); }
void cuda_kernel_EMBED_BWD_ADD(backend_context *c, const kernel_call *k) { scatter_run(c, k, true, 0); }
void cuda_kernel_POSITION_BWD(backend_context *c, const kernel_call *k) {
    ASSERT(k->op->attr.seq_len > 0);
    scatter_run(c, k, false, k->op->attr.seq_len);
}
