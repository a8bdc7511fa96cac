/* lora_product.c - the C side of lora_product.cu: which products it takes, and their tensors as the TMA unit is told of them. */
#include "backend/cuda/lora_product.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_lora_product.h"
#include "backend/cuda/tensor_map.h"

enum { CAPABILITY = 90, BOX_COLUMNS = 64, PACK = 8 };

SAME_PLACE(LINEAR_X, LINEAR_DX_DY);
SAME_PLACE(LINEAR_W, LINEAR_DX_W);
SAME_PLACE(LINEAR_XA, LINEAR_DX_DXA);
SAME_PLACE(LINEAR_UP, LINEAR_DX_DOWN);
SAME_PLACE(LINEAR_Y, LINEAR_DX_DX);

static bool is_aligned(const void *data) { return (uintptr_t)data % 16 == 0; }

/* A tile has columns of one part. */
static bool parts_fit(const op *o) {
    for (int i = 0; i < o->attr.n_parts; i++)
        if (o->attr.part_first[i] % LORA_PRODUCT_PART || o->attr.part_columns[i] % LORA_PRODUCT_PART) return false;
    return true;
}

static bool takes(const backend_context *c, const kernel_call *k, const product *q, int64_t r) {
#ifdef HAVE_SM90A
    bool here = c->capability == CAPABILITY;
#else
    bool here = false;
#endif
    return here && q->type == DTYPE_BF16 && q->c_type == q->type && !q->add && !k->rows && q->n % PACK == 0 &&
           q->k % PACK == 0 && r % PACK == 0 && (!q->b_turned || parts_fit(k->op)) && is_aligned(k->in[LINEAR_X]) &&
           is_aligned(k->in[LINEAR_W]) && is_aligned(k->in[LINEAR_XA]) && is_aligned(k->in[LINEAR_UP]) &&
           is_aligned(k->out[LINEAR_Y]);
}

static CUtensorMap map_of(const void *data, const value *v, int box_rows) {
    return tensor_map_make(&(tensor_box){.data = data,
                                         .columns = v->shape.dim[1],
                                         .rows = v->shape.dim[0],
                                         .sequences = 1,
                                         .box_columns = BOX_COLUMNS,
                                         .box_rows = box_rows,
                                         .type = launch_type_of(v->type)});
}

bool lora_product_takes(const backend_context *c, const kernel_call *k) {
    const product q = linear_product(k->program, k->op);
    return takes(c, k, &q, call_in(k, LINEAR_UP)->shape.dim[q.b_turned ? 1 : 0]);
}

void lora_product_run(backend_context *c, const kernel_call *k) {
    const product q = linear_product(k->program, k->op);
    const value *up = call_in(k, LINEAR_UP);
    lora_product w = {.m = q.m,
                      .n = q.n,
                      .k = q.k,
                      .r = up->shape.dim[q.b_turned ? 1 : 0],
                      .b_turned = q.b_turned,
                      .scale = k->op->attr.scale,
                      .n_multiprocessors = c->n_multiprocessors};
    if (q.bias) w.bias = k->in[LINEAR_B];
    if (q.b_turned) w.parts = lora_parts_of(k->op);
    int b_rows = q.b_turned ? LORA_PRODUCT_TURNED_ROWS : LORA_PRODUCT_B_ROWS;
    lora_product_maps maps = {.a = map_of(k->in[LINEAR_X], call_in(k, LINEAR_X), LORA_PRODUCT_A_ROWS),
                              .b = map_of(k->in[LINEAR_W], call_in(k, LINEAR_W), b_rows),
                              .c = map_of(k->out[LINEAR_Y], call_out(k, LINEAR_Y), LORA_PRODUCT_C_ROWS),
                              .xa = map_of(k->in[LINEAR_XA], call_in(k, LINEAR_XA), LORA_PRODUCT_A_ROWS),
                              .up = map_of(k->in[LINEAR_UP], up, b_rows)};
    launch_lora_product(c->stream, &w, &maps);
}
