/* work_lora.c - scratch of the adapters' gradients: the parts of sums that are cut. LORA_UP needs none. */
#include "backend/cuda/lora_sizes.h"
#include "backend/cuda/lora_units.h"
#include "backend/cuda/work.h"

enum { PACK = 8, RUN_STEPS = 64, RANK_UNIT = 16 };

lora_shape lora_shape_make(const value *wide, const value *b, const op_attr *a) {
    lora_shape s = {.N = wide->shape.dim[0], .out = wide->shape.dim[1], .R = b->shape.dim[0], .r = b->shape.dim[1]};
    s.run = RUN_STEPS * round_up(s.r, RANK_UNIT);
    s.fast = dtype_bytes(wide->type) == 2 && s.out % PACK == 0;
    for (int i = 0; i < a->n_parts; i++)
        s.fast = s.fast && a->part_first[i] % PACK == 0 && a->part_columns[i] % PACK == 0;
    return s;
}

int64_t lora_runs(const lora_shape *s, const op_attr *a, bool over_tokens) {
    int64_t longest = over_tokens ? s->N : 0;
    for (int i = 0; !over_tokens && i < a->n_parts; i++) longest = MAX(longest, a->part_columns[i]);
    return divide_up(longest, s->run);
}

lora_units lora_units_make(const lora_shape *s, const op_attr *a) {
    lora_units u = {.units_per_stripe = divide_up(s->N, LORA_UNIT_TOKENS)};
    if (!s->fast || s->r % PACK || s->r > LORA_BWD_RANK) return (lora_units){0};
    for (int i = 0; i < a->n_parts; i++) u.n_stripes += lora_stripes(a->part_columns[i], divide_up(s->r, RANK_UNIT));
    u.n_units = u.n_stripes * u.units_per_stripe;
    u.n_blocks = MIN(u.n_units, LORA_BLOCKS);
    for (int64_t i = 0; i < u.n_stripes; i++) {
        int64_t first = lora_unit_block(i * u.units_per_stripe, u.n_units, u.n_blocks);
        int64_t last = lora_unit_block((i + 1) * u.units_per_stripe - 1, u.n_units, u.n_blocks);
        u.n_segments = MAX(u.n_segments, last - first + 1);
    }
    return u;
}

static size_t bwd_bytes(const program *p, const op *o) {
    const op_attr *a = &o->attr;
    lora_shape s = lora_shape_make(program_get(p, o->in[LORA_BWD_DY]), program_get(p, o->in[LORA_BWD_B]), a);
    lora_units u = lora_units_make(&s, a);
    int64_t n_dxa = s.N * a->n_parts * s.r, n_db = s.R * s.r, dxa = lora_runs(&s, a, false),
            db = lora_runs(&s, a, true);
    int64_t in_runs = MAX(dxa > 1 ? dxa * n_dxa : 0, db > 1 ? db * n_db : 0);
    int64_t in_units = u.n_stripes * s.N * s.r + u.n_segments * n_db;
    return s.fast ? (size_t)MAX(in_runs, in_units) * sizeof(float) : 0;
}

const cuda_work cuda_work_LORA_UP = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_LORA_BWD = {bwd_bytes, NO_PRODUCTS};
