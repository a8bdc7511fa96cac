/* codes.c - LINEAR_CODES on a GPU: the kernels for few rows over the codes as they are; of many rows the weight is made into numbers in
 * scratch, and cuBLASLt multiplies. */
#include "backend/cuda/codes.h"
#include "backend/cuda/dequantize.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_unembed.h"

_Static_assert((int)CODES_ROWS_MOST == (int)FEW_ROWS_MOST && CODES_WORK(64) == FEW_CODES_WORK(64) &&
                   CODES_WORK(192) == FEW_CODES_WORK(192),
               "as the kernel has them");
_Static_assert((int)NET_CODES_UNIT == (int)FEW_CODES_UNIT, "what generation refuses is what the kernels cannot do");

/* Where the codes, scales and so on of a part begin. */
typedef struct part_place {
    base_sizes before;
    int64_t first_row, n_rows;
} part_place;

static part_place next_part(const op_attr *a, int i, const part_place *last, int64_t n_in) {
    part_place p = {.first_row = a->part_first[i], .n_rows = a->part_columns[i]};
    if (i == 0) return p;
    base_sizes n = base_sizes_of(a->base_format, last->n_rows, n_in);
    p.before = (base_sizes){.codes = last->before.codes + n.codes,
                            .scales = last->before.scales + n.scales,
                            .scale_codes = last->before.scale_codes + n.scale_codes,
                            .offsets = last->before.offsets + n.offsets};
    return p;
}

few_codes_product codes_product(const kernel_call *k) {
    const value *x = call_in(k, LINEAR_CODES_X), *y = call_out(k, LINEAR_CODES_Y);
    const op_attr *a = &k->op->attr;
    few_codes_product q = {.m = y->shape.dim[0],
                           .n = y->shape.dim[1],
                           .k = x->shape.dim[1],
                           .x = k->in[LINEAR_CODES_X],
                           .codes = k->in[LINEAR_CODES_CODES],
                           .y = k->out[LINEAR_CODES_Y],
                           .ldy = y->shape.dim[1],
                           .bias = k->in[LINEAR_CODES_B],
                           .format = dequantize_codes(a->base_format),
                           .type = launch_type_of(x->type),
                           .y_type = launch_type_of(y->type),
                           .work = (char *)k->work + codes_picked_bytes(k->program, k->op),
                           .n_parts = a->n_parts};
    part_place p = {0};
    for (int i = 0; i < a->n_parts; i++) {
        p = next_part(a, i, &p, q.k);
        q.parts[i] =
            (few_codes_part){.first_row = p.first_row, .scale = (float *)k->in[LINEAR_CODES_SCALE] + p.before.scales};
        if (a->base_format != BASE_NF4) continue;
        q.parts[i].scale_codes = (uint8_t *)k->in[LINEAR_CODES_SCALE_CODES] + p.before.scale_codes;
        q.parts[i].offset = (float *)k->in[LINEAR_CODES_OFFSET] + p.before.offsets;
    }
    return q;
}

static const char *row_at(const void *rows, int64_t row, int64_t length, launch_type t) {
    return (const char *)rows + row * length * (t == LAUNCH_F32 ? 4 : 2);
}

/* The kernel of capability 9.0, where this build and this GPU have it, takes bytes. */
#ifdef HAVE_SM90A
bool codes_take_bytes(const backend_context *c) { return gemm_has_own(c); }

static void launch_some(const backend_context *c, const few_codes_product *q, const launch_nf4_tables *tables) {
    (gemm_has_own(c) ? launch_few_codes_wgmma : launch_few_codes)(c->stream, q, tables);
}
#else
bool codes_take_bytes(const backend_context *c) { return false; }

static void launch_some(const backend_context *c, const few_codes_product *q, const launch_nf4_tables *tables) {
    launch_few_codes(c->stream, q, tables);
}
#endif

void codes_launch(backend_context *c, few_codes_product q) {
    const launch_nf4_tables tables = dequantize_tables();
    few_codes_product some = q;
    ASSERT(!q.cut || (q.m <= FEW_ROWS_MOST && codes_take_bytes(c)));
    for (int64_t row = 0; row < q.m; row += FEW_ROWS_MOST) {
        some.m = MIN(q.m - row, (int64_t)FEW_ROWS_MOST);
        some.x = row_at(q.x, row, q.k, q.type);
        some.y = (char *)row_at(q.y, row, q.ldy, q.y_type);
        launch_some(c, &some, &tables);
    }
}

static void run_numbers(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    gemm_call g = {.q = codes_numbers_product(k->program, k->op),
                   .a = k->in[LINEAR_CODES_X],
                   .b = k->work,
                   .c = k->out[LINEAR_CODES_Y],
                   .bias = k->in[LINEAR_CODES_B]};
    const launch_nf4_tables tables = dequantize_tables();
    const few_codes_product q = codes_product(k);
    part_place p = {0};
    ASSERT(k->in[LINEAR_CODES_PICK] == NULL);
    g.work = (char *)k->work + codes_numbers_bytes(&g.q);
    for (int i = 0; i < a->n_parts; i++) {
        p = next_part(a, i, &p, g.q.k);
        launch_dequantize_args d = {.w = (char *)k->work + p.first_row * g.q.k * (int64_t)dtype_bytes(g.q.type),
                                    .codes = (const uint8_t *)q.codes + p.before.codes,
                                    .scale_codes = q.parts[i].scale_codes,
                                    .scale = q.parts[i].scale,
                                    .offset = q.parts[i].offset,
                                    .n_out = p.n_rows,
                                    .n_in = g.q.k};
        launch_dequantize(c->stream, launch_type_of(g.q.type), q.format, &d, &tables);
    }
    gemm_launch(c, &g);
}

/* y = ; rows that op.rows leaves out are computed too. */
void cuda_kernel_LINEAR_CODES(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, LINEAR_CODES_X), *y = call_out(k, LINEAR_CODES_Y);
    if (codes_are_numbers(k->program, k->op)) {
        run_numbers(c, k);
        return;
    }
    few_codes_product q = codes_product(k);
    if (k->in[LINEAR_CODES_PICK]) {
        launch_gather_rows(c->stream, k->work, q.x, k->in[LINEAR_CODES_PICK], q.m, x->shape.dim[0],
                           q.k * (int64_t)dtype_bytes(x->type));
        q.x = k->work;
    }
    codes_launch(c, q);
    float softcap = k->op->attr.logits_softcap;
    if (softcap > 0) launch_cap_logits(c->stream, q.y_type, k->out[LINEAR_CODES_Y], q.m, q.n, y->shape.dim[1], softcap);
}
