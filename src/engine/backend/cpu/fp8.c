/* fp8.c - ABSMAX, QUANTIZE, QUANTIZE_BLOCKS and LINEAR8: products of 8-bit numbers on a processor that has none.
 *
 * This is what an 8-bit product means, not a fast one. Every e4m3 number is a bf16 number too and a product of two of them
 * is exact in fp32, so LINEAR8 widens both operands into scratch and runs the bf16 product, whose sums are scaled before the
 * one rounding. Scales of blocks are powers of two, and a bf16 number times one is exact: they go into the widened operands.
 * A largest number is the same in whatever order it is looked for. */
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

void cpu_round(backend_context *c, const cpu_round_call *k) {
    float found = 0, scale;
    if (!k->amax) cpu_absmax_of(c, &found, k->x, k->n_rows * k->n_columns);
    cpu_quantize(c, &(cpu_quantize_call){.x = k->x,
                                         .amax = k->amax ? *k->amax : found,
                                         .power = k->power,
                                         .q = k->q,
                                         .t = k->t,
                                         .scale = &scale,
                                         .n_rows = k->n_rows,
                                         .n_columns = k->n_columns});
    if (k->scale) *k->scale = scale;
    if (k->largest) *k->largest = found;
    if (k->guess) *k->guess = scale;
}

void cpu_kernel_QUANTIZE(backend_context *c, const kernel_call *k) { /* q, t, scale, largest, guess = */
    const value *x = call_in(k, QUANTIZE_X);
    cpu_round(c, &(cpu_round_call){.x = k->in[QUANTIZE_X],
                                   .amax = k->in[QUANTIZE_AMAX],
                                   .power = k->op->attr.power,
                                   .q = k->out[QUANTIZE_Q],
                                   .t = k->out[QUANTIZE_T],
                                   .scale = k->out[QUANTIZE_SCALE],
                                   .largest = k->out[QUANTIZE_LARGEST],
                                   .guess = k->out[QUANTIZE_GUESS],
                                   .n_rows = x->shape.dim[0],
                                   .n_columns = x->shape.dim[1]});
}

/* ---- rounding in blocks -------------------------------------------------------------------------------------------- */

typedef struct blocks_run {
    const uint16_t *x;
    uint8_t *q, *t; /* NULL: not asked for */
    float *scale, *t_scale;
    fp8_blocks blocks, t_blocks;
    int64_t n_rows, n_columns;
    bool square;
} blocks_run;

/* Scales of the rows of a tile, or of its columns, whose numbers lie `along` apart and which begin `across` apart. */
static void tile_scales(fp8_scale s[FP8_BLOCK], const uint16_t *x, int64_t across, int64_t along, bool square) {
    uint16_t most[FP8_BLOCK] = {0}, all = 0;
    for (int i = 0; i < FP8_BLOCK; i++) {
        for (int j = 0; j < FP8_BLOCK; j++) most[i] = MAX(most[i], (uint16_t)(x[i * across + j * along] & 0x7fffu));
        all = MAX(all, most[i]);
    }
    for (int i = 0; i < FP8_BLOCK; i++) s[i] = fp8_scale_of(bf16_to_f32(square ? all : most[i]), true);
}

/* Numbers of a tile that lie as x has them, or turned; `row` and `column` of the result are those of its tile. */
static void tile_round(uint8_t *out, float *scales, const fp8_blocks *b, const fp8_scale s[FP8_BLOCK],
                       const uint16_t *x, int64_t across, int64_t along, int64_t row, int64_t column, int64_t width) {
    for (int i = 0; i < FP8_BLOCK; i++) {
        uint8_t *to = out + (row + i) * width + column;
        for (int j = 0; j < FP8_BLOCK; j++) to[j] = f32_to_e4m3(bf16_to_f32(x[i * across + j * along]) * s[i].factor);
        scales[(row + i) / b->height * b->row_step + column / FP8_BLOCK * b->column_step] = s[i].scale;
    }
}

static void blocks_task(void *context, int64_t task, int thread) {
    const blocks_run *r = context;
    int64_t tiles = r->n_columns / FP8_BLOCK, row = task / tiles * FP8_BLOCK, column = task % tiles * FP8_BLOCK;
    const uint16_t *x = r->x + row * r->n_columns + column;
    fp8_scale s[FP8_BLOCK];
    if (r->q) {
        tile_scales(s, x, r->n_columns, 1, r->square);
        tile_round(r->q, r->scale, &r->blocks, s, x, r->n_columns, 1, row, column, r->n_columns);
    }
    if (r->t) {
        tile_scales(s, x, 1, r->n_columns, r->square);
        tile_round(r->t, r->t_scale, &r->t_blocks, s, x, 1, r->n_columns, column, row, r->n_rows);
    }
}

static void scales_clear(const kernel_call *k, int scale) {
    float *s = k->out[scale];
    if (!s || !k->op->attr.square) return;
    for (int64_t i = 0; i < shape_count(&call_out(k, scale)->shape); i++) s[i] = 1; /* what pads rows stays */
}

void cpu_kernel_QUANTIZE_BLOCKS(backend_context *c, const kernel_call *k) { /* q, scale, t, t_scale = */
    const value *x = call_in(k, QUANTIZE_BLOCKS_X);
    int64_t n = x->shape.dim[0], m = x->shape.dim[1];
    bool square = k->op->attr.square;
    blocks_run r = {.x = k->in[QUANTIZE_BLOCKS_X],
                    .q = k->out[QUANTIZE_BLOCKS_Q],
                    .t = k->out[QUANTIZE_BLOCKS_T],
                    .scale = k->out[QUANTIZE_BLOCKS_SCALE],
                    .t_scale = k->out[QUANTIZE_BLOCKS_T_SCALE],
                    .blocks = fp8_blocks_of(n, m, square),
                    .t_blocks = fp8_blocks_of(m, n, square),
                    .n_rows = n,
                    .n_columns = m,
                    .square = square};
    scales_clear(k, QUANTIZE_BLOCKS_SCALE);
    scales_clear(k, QUANTIZE_BLOCKS_T_SCALE);
    pool_run(c->threads, blocks_task, &r, n / FP8_BLOCK * (m / FP8_BLOCK));
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

typedef struct widen_blocks_run {
    const uint8_t *from;
    uint16_t *to;
    const float *scale;
    fp8_blocks blocks;
    int64_t width;
} widen_blocks_run;

static void widen_blocks_task(void *context, int64_t row, int thread) {
    const widen_blocks_run *r = context;
    const fp8_blocks *b = &r->blocks;
    for (int64_t k = 0; k < r->width; k++)
        r->to[row * r->width + k] =
            f32_to_bf16(e4m3_to_f32(r->from[row * r->width + k]) *
                        r->scale[row / b->height * b->row_step + k / FP8_BLOCK * b->column_step]);
}

/* An operand of LINEAR8 as bf16, times its scales where they are those of blocks. */
static void widen_operand(backend_context *c, const kernel_call *k, uint16_t *to, int of, int scale, bool square) {
    const shape *s = &call_in(k, of)->shape;
    widen_blocks_run r = {.from = k->in[of],
                          .to = to,
                          .scale = k->in[scale],
                          .blocks = fp8_blocks_of(s->dim[0], s->dim[1], square),
                          .width = s->dim[1]};
    if (shape_count(&call_in(k, scale)->shape) == 1) cpu_widen_e4m3(c, to, k->in[of], shape_count(s));
    else pool_run(c->threads, widen_blocks_task, &r, s->dim[0]);
}

void cpu_kernel_LINEAR8(backend_context *c, const kernel_call *k) { /* y = */
    gemm_call g = linear8_call(call_in(k, LINEAR8_X), call_in(k, LINEAR8_W), call_out(k, LINEAR8_Y));
    size_t product = gemm_work_bytes(g.m, g.n, g.k, DTYPE_BF16, g.c_type, c->n_threads);
    uint8_t *x = (uint8_t *)k->work + aligned((int64_t)product), *w = x + aligned(g.m * g.k * 2);
    float scale = *(const float *)k->in[LINEAR8_X_SCALE] * *(const float *)k->in[LINEAR8_W_SCALE];
    bool square = !k->op->attr.over_tokens;
    widen_operand(c, k, (uint16_t *)(void *)x, LINEAR8_X, LINEAR8_X_SCALE, false);
    widen_operand(c, k, (uint16_t *)(void *)w, LINEAR8_W, LINEAR8_W_SCALE, square);
    g.a.data = x;
    g.b.data = w;
    g.c = k->out[LINEAR8_Y];
    if (shape_count(&call_in(k, LINEAR8_X_SCALE)->shape) == 1) g.scale = &scale;
    if (k->in[LINEAR8_B]) g.bias = k->in[LINEAR8_B], g.bias_type = call_in(k, LINEAR8_B)->type;
    gemm_run(c, &g, k->work);
}
