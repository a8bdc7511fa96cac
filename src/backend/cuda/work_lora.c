/* work_lora.c - scratch of the adapters' gradients: the parts of sums that are cut. LORA_UP needs none. */
#include "backend/cuda/lora_sizes.h"
#include "backend/cuda/work.h"

enum { PACK = 8, RUN_STEPS = 64, RANK_UNIT = 16 };

lora_shape lora_shape_make(const program *p, const op *o) {
    SAME_PLACE(LORA_UP_BASE, LORA_DXA_DY, LORA_DB_DY);
    value_id of = o->kind == OP_LORA_UP    ? o->in[LORA_UP_B]
                  : o->kind == OP_LORA_DXA ? o->in[LORA_DXA_B]
                                           : o->out[LORA_DB_DB];
    const value *wide = program_get(p, o->in[LORA_UP_BASE]), *b = program_get(p, of);
    lora_shape s = {.N = wide->shape.dim[0], .out = wide->shape.dim[1], .R = b->shape.dim[0], .r = b->shape.dim[1]};
    s.run = RUN_STEPS * round_up(s.r, RANK_UNIT);
    s.fast = dtype_bytes(wide->type) == 2 && s.out % PACK == 0;
    for (int i = 0; i < o->attr.n_parts; i++)
        s.fast = s.fast && o->attr.part_first[i] % PACK == 0 && o->attr.part_columns[i] % PACK == 0;
    return s;
}

int64_t lora_runs(const lora_shape *s, const op *o, int i) {
    return divide_up(o->kind == OP_LORA_DXA ? o->attr.part_columns[i] : s->N, s->run);
}

int64_t lora_runs_most(const lora_shape *s, const op *o) {
    int64_t most = 1;
    for (int i = 0; i < o->attr.n_parts; i++) most = MAX(most, lora_runs(s, o, i));
    return most;
}

/* Runs of numbers of the result, in fp32. */
static size_t runs_bytes(const program *p, const op *o) {
    lora_shape s = lora_shape_make(p, o);
    int64_t n_runs = lora_runs_most(&s, o), n = o->kind == OP_LORA_DXA ? s.N * o->attr.n_parts * s.r : s.R * s.r;
    return s.fast && n_runs > 1 ? (size_t)(n_runs * n) * sizeof(float) : 0;
}

const cuda_work cuda_work_LORA_UP = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_LORA_DXA = {runs_bytes, NO_PRODUCTS};
const cuda_work cuda_work_LORA_DB = {runs_bytes, NO_PRODUCTS};
