/* fp8.c - ABSMAX, QUANTIZE and LINEAR8: products of 8-bit numbers on a processor that has none.
 *
 * This is what an 8-bit product means, not a fast one. Every e4m3 number is a bf16 number too and a product of two of them
 * is exact in fp32, so LINEAR8 widens both operands into scratch and runs the bf16 product, whose sums are scaled before the
 * one rounding. A largest number is the same in whatever order it is looked for. */
#include "backend/cpu/fp8.h"
#include "backend/cpu/gemm.h"

#include <stdatomic.h>

enum { TASK_ELEMENTS = 1 << 15, TILE = 64, ALIGNMENT = 64 };

/* ---- the largest number -------------------------------------------------------------------------------------------- */

typedef struct absmax_run {
    const uint16_t *x;
    int64_t n;
    _Atomic uint32_t most;
} absmax_run;

/* As bits: of numbers without a sign the larger one has the larger bits, infinity and NaN above all. */
static void absmax_task(void *context, int64_t task, int thread) {
    absmax_run *r = context;
    int64_t first = task * TASK_ELEMENTS, end = MIN(first + TASK_ELEMENTS, r->n);
    uint32_t most = 0, seen = atomic_load(&r->most);
    for (int64_t i = first; i < end; i++) most = MAX(most, (uint32_t)(r->x[i] & 0x7fffu));
    while (most > seen && !atomic_compare_exchange_weak(&r->most, &seen, most)) {}
}

void cpu_absmax_of(backend_context *c, float *amax, const uint16_t *x, int64_t n) {
    absmax_run r = {.x = x, .n = n};
    pool_run(c->threads, absmax_task, &r, divide_up(n, TASK_ELEMENTS));
    *amax = bf16_to_f32((uint16_t)atomic_load(&r.most));
}

void cpu_absmax(backend_context *c, const kernel_call *k, int amax, int of) {
    if (k->out[amax]) cpu_absmax_of(c, k->out[amax], k->out[of], shape_count(&call_out(k, of)->shape));
}

void cpu_kernel_ABSMAX(backend_context *c, const kernel_call *k) { /* amax = */
    cpu_absmax_of(c, k->out[ABSMAX_AMAX], k->in[ABSMAX_X], shape_count(&call_in(k, ABSMAX_X)->shape));
}

/* ---- rounding ------------------------------------------------------------------------------------------------------ */

typedef struct quantize_run {
    const uint16_t *x;
    float factor;
    uint8_t *q, *t; /* NULL: not asked for */
    int64_t n_rows, n_columns, tiles_across;
} quantize_run;

/* A square tile, so that both results are written in runs. */
static void quantize_task(void *context, int64_t task, int thread) {
    const quantize_run *r = context;
    int64_t row = task / r->tiles_across * TILE, col = task % r->tiles_across * TILE;
    int64_t n = MIN((int64_t)TILE, r->n_rows - row), m = MIN((int64_t)TILE, r->n_columns - col);
    uint8_t tile[TILE][TILE];
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)((row + i) * r->n_columns + col);
        for (int64_t j = 0; j < m; j++) tile[i][j] = f32_to_e4m3(bf16_to_f32(r->x[at + (size_t)j]) * r->factor);
        if (r->q) memcpy(r->q + at, tile[i], (size_t)m);
    }
    for (int64_t j = 0; j < m && r->t; j++) {
        uint8_t *out = r->t + (col + j) * r->n_rows + row;
        for (int64_t i = 0; i < n; i++) out[i] = tile[i][j];
    }
}

void cpu_quantize(backend_context *c, const cpu_quantize_call *k) {
    fp8_scale s = fp8_scale_of(k->amax, k->power);
    quantize_run r = {
        .x = k->x, .factor = s.factor, .q = k->q, .t = k->t, .n_rows = k->n_rows, .n_columns = k->n_columns};
    r.tiles_across = divide_up(r.n_columns, TILE);
    pool_run(c->threads, quantize_task, &r, r.tiles_across * divide_up(r.n_rows, TILE));
    if (k->scale) *k->scale = s.scale;
}

void cpu_kernel_QUANTIZE(backend_context *c, const kernel_call *k) { /* q, t, scale = */
    const value *x = call_in(k, QUANTIZE_X);
    cpu_quantize(c, &(cpu_quantize_call){.x = k->in[QUANTIZE_X],
                                         .amax = *(const float *)k->in[QUANTIZE_AMAX],
                                         .power = k->op->attr.power,
                                         .q = k->out[QUANTIZE_Q],
                                         .t = k->out[QUANTIZE_T],
                                         .scale = k->out[QUANTIZE_SCALE],
                                         .n_rows = x->shape.dim[0],
                                         .n_columns = x->shape.dim[1]});
}

/* ---- the product --------------------------------------------------------------------------------------------------- */

static int64_t aligned(int64_t n_bytes) { return round_up(n_bytes, ALIGNMENT); }

static gemm_call linear8_call(const value *x, const value *w, const value *y) {
    int64_t k = x->shape.dim[1];
    return (gemm_call){.m = x->shape.dim[0],
                       .n = w->shape.dim[0],
                       .k = k,
                       .a = {.type = DTYPE_BF16, .row_stride = k, .col_stride = 1},
                       .b = {.type = DTYPE_BF16, .row_stride = 1, .col_stride = k},
                       .c_type = y->type,
                       .ldc = w->shape.dim[0]};
}

/* Scratch: that of the product, x widened, w widened. */
static size_t linear8_work_bytes(const program *p, const op *o, int n_threads) {
    gemm_call g =
        linear8_call(&p->values[o->in[LINEAR8_X]], &p->values[o->in[LINEAR8_W]], &p->values[o->out[LINEAR8_Y]]);
    size_t product = gemm_work_bytes(g.m, g.n, g.k, DTYPE_BF16, g.c_type, n_threads);
    return (size_t)(aligned((int64_t)product) + aligned(g.m * g.k * 2) + aligned(g.n * g.k * 2));
}

const cpu_work_fn cpu_work_LINEAR8 = linear8_work_bytes;

typedef struct widen_run {
    const uint8_t *from;
    uint16_t *to;
    int64_t n;
} widen_run;

static void widen_task(void *context, int64_t task, int thread) {
    const widen_run *r = context;
    int64_t first = task * TASK_ELEMENTS, end = MIN(first + TASK_ELEMENTS, r->n);
    uint16_t codes[256];
    for (int e = 0; e < 256; e++) codes[e] = f32_to_bf16(e4m3_to_f32((uint8_t)e));
    for (int64_t i = first; i < end; i++) r->to[i] = codes[r->from[i]];
}

void cpu_widen_e4m3(backend_context *c, uint16_t *to, const uint8_t *from, int64_t n) {
    widen_run r = {.from = from, .to = to, .n = n};
    pool_run(c->threads, widen_task, &r, divide_up(n, TASK_ELEMENTS));
}

void cpu_kernel_LINEAR8(backend_context *c, const kernel_call *k) { /* y = */
    gemm_call g = linear8_call(call_in(k, LINEAR8_X), call_in(k, LINEAR8_W), call_out(k, LINEAR8_Y));
    size_t product = gemm_work_bytes(g.m, g.n, g.k, DTYPE_BF16, g.c_type, c->n_threads);
    uint8_t *x = (uint8_t *)k->work + aligned((int64_t)product), *w = x + aligned(g.m * g.k * 2);
    float scale = *(const float *)k->in[LINEAR8_X_SCALE] * *(const float *)k->in[LINEAR8_W_SCALE];
    cpu_widen_e4m3(c, (uint16_t *)(void *)x, k->in[LINEAR8_X], g.m * g.k);
    cpu_widen_e4m3(c, (uint16_t *)(void *)w, k->in[LINEAR8_W], g.n * g.k);
    g.a.data = x;
    g.b.data = w;
    g.c = k->out[LINEAR8_Y];
    g.scale = &scale;
    if (k->in[LINEAR8_B]) g.bias = k->in[LINEAR8_B], g.bias_type = call_in(k, LINEAR8_B)->type;
    gemm_run(c, &g, k->work);
}
