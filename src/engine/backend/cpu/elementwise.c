/* elementwise.c - ops that look at one element, or one pair of elements, at a time.
 *
 * All of them are bound by memory, so they are cut into long pieces and go over them once. An element's result depends
 * on its inputs only, never on its place, so any cut gives the same bits. Outputs may take the bytes of an input where
 * ops.def says so: everything an element needs is read before it is written.
 * GELU and SiLU both end in x / (1 + e^-a): 1 + tanh(z) = 2 / (1 + e^-2z), and this form has no cancellation, while
 * 1 + tanh(z) loses all digits for z < -9. */
#include "backend/cpu/typed.h"

#include "backend/cpu/fp8.h"
#include "backend/cpu/rope.h"
#include <math.h>

enum { TASK_ELEMENTS = 32768 };

/* ---- maps: y[i] from a[i] and b[i] ---------------------------------------------------------------------------- */

typedef enum map_kind { MAP_ADD, MAP_GELU, MAP_GELU_BWD } map_kind;
typedef struct map_job {
    map_kind kind;
    dtype type;
    void *y;
    const void *a, *b;
    int64_t n;
} map_job;

VEC_INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + vec_exp1(-x)); }

#define GELU_SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

VEC_INLINE vec gelu(vec x) {
    vec a = x * GELU_SLOPE * vec_fma(x * x, vec_set(GELU_CUBIC), vec_set(1.0f));
    return x / (1.0f + vec_exp1(-a));
}

/* d/dx x s(a(x)) = s + x s (1 - s) a'. Beyond |x| = 30 the answer is 0 or 1; the clamp keeps inf * 0 out. */
VEC_INLINE vec gelu_slope(vec x) {
    vec limit = vec_set(30.0f);
    x = vec_select(x > limit, limit, x);
    x = vec_select(x < -limit, -limit, x);
    vec square = x * x, s = sigmoid(x * GELU_SLOPE * vec_fma(square, vec_set(GELU_CUBIC), vec_set(1.0f)));
    vec slope = GELU_SLOPE * vec_fma(square, vec_set(3 * GELU_CUBIC), vec_set(1.0f));
    return vec_fma(x * s * (1.0f - s), slope, s);
}

VEC_INLINE vec map_vec(dtype t, map_kind kind, const void *a, const void *b, size_t i, size_t lanes) {
    vec x = typed_load(a, t, i, lanes);
    return kind == MAP_ADD    ? x + typed_load(b, t, i, lanes)
           : kind == MAP_GELU ? gelu(x)
                              : typed_load(b, t, i, lanes) * gelu_slope(x);
}

/* Four vectors side by side: an exponential is a chain of twenty dependent operations, and a core sees only two or
 * three of them ahead. */
enum { UNROLL = 4 };

VEC_INLINE void map_row(dtype t, map_kind kind, void *y, const void *a, const void *b, size_t n) {
    size_t whole = n - n % (UNROLL * VEC_WIDTH);
    for (size_t i = 0; i < whole; i += UNROLL * VEC_WIDTH) {
        vec r[UNROLL];
        for (size_t u = 0; u < UNROLL; u++) r[u] = map_vec(t, kind, a, b, i + u * VEC_WIDTH, VEC_WIDTH);
        for (size_t u = 0; u < UNROLL; u++) typed_store(y, t, i + u * VEC_WIDTH, VEC_WIDTH, r[u]);
    }
    EACH_VEC(i, lanes, n - whole, { typed_store(y, t, whole + i, lanes, map_vec(t, kind, a, b, whole + i, lanes)); });
}

static void map_task(void *context, int64_t task, int thread) {
    const map_job *j = context;
    int64_t begin = task * TASK_ELEMENTS;
    size_t n = (size_t)MIN((int64_t)TASK_ELEMENTS, j->n - begin);
    void *y = element_at(j->y, j->type, begin);
    const void *a = element_at(j->a, j->type, begin), *b = j->b ? element_at(j->b, j->type, begin) : NULL;
    switch (j->kind) {
    case MAP_ADD: BY_TYPE(j->type, map_row, MAP_ADD, y, a, b, n); break;
    case MAP_GELU: BY_TYPE(j->type, map_row, MAP_GELU, y, a, b, n); break;
    case MAP_GELU_BWD: BY_TYPE(j->type, map_row, MAP_GELU_BWD, y, a, b, n); break;
    }
}

/* The job has its kind and pointers; y is the value that it writes. */
static void map_run(backend_context *c, const kernel_call *k, map_job j, const value *y) {
    j.type = y->type;
    j.n = shape_count(&y->shape);
    if (k->rows) j.n = cpu_rows(k, y->shape.dim[0]) * (j.n / y->shape.dim[0]);
    pool_run(c->threads, map_task, &j, divide_up(j.n, TASK_ELEMENTS));
}

void cpu_kernel_ADD(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, ADD_Y);
    ASSERT(call_in(k, ADD_A)->type == y->type && call_in(k, ADD_B)->type == y->type);
    map_run(c, k, (map_job){.kind = MAP_ADD, .y = k->out[ADD_Y], .a = k->in[ADD_A], .b = k->in[ADD_B]}, y);
}

void cpu_kernel_GELU(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, GELU_Y);
    ASSERT(call_in(k, GELU_X)->type == y->type);
    map_run(c, k, (map_job){.kind = MAP_GELU, .y = k->out[GELU_Y], .a = k->in[GELU_X]}, y);
}

void cpu_kernel_GELU_BWD(backend_context *c, const kernel_call *k) {
    const value *dx = call_out(k, GELU_BWD_DX), *x = call_in(k, GELU_BWD_X), *dy = call_in(k, GELU_BWD_DY);
    ASSERT(x->type == dx->type && dy->type == dx->type);
    map_job j = {.kind = MAP_GELU_BWD, .y = k->out[GELU_BWD_DX], .a = k->in[GELU_BWD_X], .b = k->in[GELU_BWD_DY]};
    map_run(c, k, j, dx);
}

/* ---- rows: bias, swiglu, rope --------------------------------------------------------------------------------- */

typedef struct rows_job {
    const op *op;
    dtype type;
    void *y;
    const void *x, *other; /* other: bias, dy */
    const float *table;
    const int32_t *doc_start;
    int64_t n_positions, rotary; /* of table: rotary dimensions of a head are turned */
    int64_t n_rows, width;       /* width: elements of a row of y, or F */
    int64_t rows_per_task;
    bool is_gelu; /* the gate of swiglu */
    void *again;  /* its result, once more beside the backward; NULL: not asked for */
} rows_job;

static void rows_run(backend_context *c, rows_job *j, pool_fn fn) {
    j->rows_per_task = MAX((int64_t)1, TASK_ELEMENTS / MAX((int64_t)1, j->width));
    pool_run(c->threads, fn, j, divide_up(j->n_rows, j->rows_per_task));
}

VEC_INLINE void add_bias_row(dtype t, void *y, const void *x, const void *b, size_t n) {
    EACH_VEC(i, lanes, n, { typed_store(y, t, i, lanes, typed_load(x, t, i, lanes) + typed_load(b, t, i, lanes)); });
}

static void add_bias_task(void *context, int64_t task, int thread) {
    const rows_job *j = context;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows);
    for (int64_t row = first; row < end; row++)
        BY_TYPE(j->type, add_bias_row, element_at(j->y, j->type, row * j->width),
                element_at(j->x, j->type, row * j->width), j->other, (size_t)j->width);
}

void cpu_kernel_ADD_BIAS(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, ADD_BIAS_Y), *b = call_in(k, ADD_BIAS_B);
    ASSERT(call_in(k, ADD_BIAS_X)->type == y->type && b->type == y->type);
    rows_job j = {.type = y->type,
                  .y = k->out[ADD_BIAS_Y],
                  .x = k->in[ADD_BIAS_X],
                  .other = k->in[ADD_BIAS_B],
                  .width = shape_count(&b->shape)};
    j.n_rows = shape_count(&y->shape) / j.width;
    rows_run(c, &j, add_bias_task);
}

VEC_INLINE vec swiglu_vec(dtype t, bool is_gelu, const void *gate, const void *up, size_t i, size_t lanes) {
    vec g = typed_load(gate, t, i, lanes);
    return (is_gelu ? gelu(g) : g / (1.0f + vec_exp1(-g))) * typed_load(up, t, i, lanes);
}

VEC_INLINE void gated_row(dtype t, bool is_gelu, void *y, const void *gate, const void *up, size_t n) {
    size_t whole = n - n % (UNROLL * VEC_WIDTH);
    for (size_t i = 0; i < whole; i += UNROLL * VEC_WIDTH) {
        vec r[UNROLL];
        for (size_t u = 0; u < UNROLL; u++) r[u] = swiglu_vec(t, is_gelu, gate, up, i + u * VEC_WIDTH, VEC_WIDTH);
        for (size_t u = 0; u < UNROLL; u++) typed_store(y, t, i + u * VEC_WIDTH, VEC_WIDTH, r[u]);
    }
    EACH_VEC(i, lanes, n - whole,
             { typed_store(y, t, whole + i, lanes, swiglu_vec(t, is_gelu, gate, up, whole + i, lanes)); });
}
VEC_INLINE void swiglu_row(dtype t, void *y, const void *gate, const void *up, size_t n) {
    gated_row(t, false, y, gate, up, n);
}
VEC_INLINE void geglu_row(dtype t, void *y, const void *gate, const void *up, size_t n) {
    gated_row(t, true, y, gate, up, n);
}

static void gated_part(const rows_job *j, void *y, const void *gate, const void *up, size_t n) {
    if (j->is_gelu) BY_TYPE(j->type, geglu_row, y, gate, up, n);
    else BY_TYPE(j->type, swiglu_row, y, gate, up, n);
}

static void swiglu_task(void *context, int64_t task, int thread) {
    const rows_job *j = context;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows), F = j->width;
    for (int64_t row = first; row < end; row++) {
        void *y = element_at(j->y, j->type, row * F);
        const void *gate = element_at(j->x, j->type, row * 2 * F), *up = element_at(j->x, j->type, row * 2 * F + F);
        gated_part(j, y, gate, up, (size_t)F);
    }
}

void cpu_kernel_SWIGLU(backend_context *c, const kernel_call *k) {
    const value *gu = call_in(k, SWIGLU_GU), *y = call_out(k, SWIGLU_Y);
    ASSERT(gu->type == y->type && shape_count(&gu->shape) == 2 * shape_count(&y->shape));
    rows_job j = {.type = y->type,
                  .is_gelu = k->op->attr.gelu_gate,
                  .y = k->out[SWIGLU_Y],
                  .x = k->in[SWIGLU_GU],
                  .width = shape_row_length(&y->shape)};
    j.n_rows = cpu_rows(k, shape_count(&y->shape) / j.width);
    rows_run(c, &j, swiglu_task);
    cpu_absmax(c, k, SWIGLU_AMAX, SWIGLU_Y);
}

typedef struct gate_up {
    vec gate, up;
} gate_up;

/* silu(g) = g s: d gate = dy up s (1 + g (1 - s)), d up = dy g s. */
VEC_INLINE gate_up swiglu_bwd_vec(dtype t, bool is_gelu, const void *gate, const void *up, const void *dy, size_t i,
                                  size_t lanes) {
    vec g = typed_load(gate, t, i, lanes), u = typed_load(up, t, i, lanes), d = typed_load(dy, t, i, lanes);
    if (is_gelu) return (gate_up){.gate = d * u * gelu_slope(g), .up = d * gelu(g)};
    vec s = sigmoid(g);
    return (gate_up){.gate = d * u * s * vec_fma(g, 1.0f - s, vec_set(1.0f)), .up = d * (g * s)};
}

VEC_INLINE void gated_bwd_row(dtype t, bool is_gelu, void *dgate, void *dup, const void *gate, const void *up,
                              const void *dy, size_t n) {
    size_t whole = n - n % (UNROLL * VEC_WIDTH);
    for (size_t i = 0; i < whole; i += UNROLL * VEC_WIDTH) {
        gate_up r[UNROLL];
        for (size_t u = 0; u < UNROLL; u++)
            r[u] = swiglu_bwd_vec(t, is_gelu, gate, up, dy, i + u * VEC_WIDTH, VEC_WIDTH);
        for (size_t u = 0; u < UNROLL; u++) {
            typed_store(dgate, t, i + u * VEC_WIDTH, VEC_WIDTH, r[u].gate);
            typed_store(dup, t, i + u * VEC_WIDTH, VEC_WIDTH, r[u].up);
        }
    }
    EACH_VEC(i, lanes, n - whole, {
        gate_up r = swiglu_bwd_vec(t, is_gelu, gate, up, dy, whole + i, lanes);
        typed_store(dgate, t, whole + i, lanes, r.gate);
        typed_store(dup, t, whole + i, lanes, r.up);
    });
}
VEC_INLINE void swiglu_bwd_row(dtype t, void *dgate, void *dup, const void *gate, const void *up, const void *dy,
                               size_t n) {
    gated_bwd_row(t, false, dgate, dup, gate, up, dy, n);
}
VEC_INLINE void geglu_bwd_row(dtype t, void *dgate, void *dup, const void *gate, const void *up, const void *dy,
                              size_t n) {
    gated_bwd_row(t, true, dgate, dup, gate, up, dy, n);
}

/* Elements [first, first + n) of a row. dgu may lie on gu and the result of the forward on dy: neither is written before the other
 * has been read, and it is the forward's own code that computes it, so that its bits are the same. */
enum { BWD_PART = 1024 };
static void gated_bwd_part(const rows_job *j, int64_t row, int64_t first, int64_t n) {
    float held[BWD_PART]; /* of any type */
    int64_t F = j->width, at_gate = row * 2 * F + first, at_up = at_gate + F, at = row * F + first;
    const void *gate = element_at(j->x, j->type, at_gate), *up = element_at(j->x, j->type, at_up);
    void *dgate = element_at(j->y, j->type, at_gate), *dup = element_at(j->y, j->type, at_up);
    const void *dy = element_at(j->other, j->type, at);
    if (j->again) gated_part(j, held, gate, up, (size_t)n);
    if (j->is_gelu) BY_TYPE(j->type, geglu_bwd_row, dgate, dup, gate, up, dy, (size_t)n);
    else BY_TYPE(j->type, swiglu_bwd_row, dgate, dup, gate, up, dy, (size_t)n);
    if (j->again) memcpy(element_at(j->again, j->type, at), held, (size_t)n * dtype_bytes(j->type));
}

static void swiglu_bwd_task(void *context, int64_t task, int thread) {
    const rows_job *j = context;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows), F = j->width;
    int64_t part = j->again ? BWD_PART : F;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0; i < F; i += part) gated_bwd_part(j, row, i, MIN(part, F - i));
}

void cpu_kernel_SWIGLU_BWD(backend_context *c, const kernel_call *k) {
    const value *gu = call_in(k, SWIGLU_BWD_GU), *dy = call_in(k, SWIGLU_BWD_DY);
    ASSERT(gu->type == dy->type && call_out(k, SWIGLU_BWD_DGU)->type == gu->type);
    rows_job j = {.type = gu->type,
                  .is_gelu = k->op->attr.gelu_gate,
                  .y = k->out[SWIGLU_BWD_DGU],
                  .x = k->in[SWIGLU_BWD_GU],
                  .other = k->in[SWIGLU_BWD_DY],
                  .again = k->out[SWIGLU_BWD_Y],
                  .width = shape_row_length(&dy->shape)};
    j.n_rows = shape_count(&dy->shape) / j.width;
    rows_run(c, &j, swiglu_bwd_task);
    cpu_absmax(c, k, SWIGLU_BWD_AMAX, SWIGLU_BWD_DGU);
}

/* Scratch: the 16-bit numbers, which a GPU never writes. */
static size_t swiglu8_work_bytes(const program *p, const op *o, int n_threads) {
    return (size_t)shape_count(&program_get(p, o->in[SWIGLU8_GU])->shape) * sizeof(uint16_t) /
           (o->in[SWIGLU8_DY] ? 1 : 2);
}
const cpu_work_fn cpu_work_SWIGLU8 = swiglu8_work_bytes;

void cpu_kernel_SWIGLU8(backend_context *c, const kernel_call *k) { /* q, t, scale, largest, guess = */
    const value *gu = call_in(k, SWIGLU8_GU);
    bool backward = k->in[SWIGLU8_DY] != NULL;
    rows_job j = {.type = gu->type,
                  .is_gelu = k->op->attr.gelu_gate,
                  .y = k->work,
                  .x = k->in[SWIGLU8_GU],
                  .other = k->in[SWIGLU8_DY],
                  .n_rows = gu->shape.dim[0],
                  .width = gu->shape.dim[1] / 2};
    rows_run(c, &j, backward ? swiglu_bwd_task : swiglu_task);
    cpu_round(c, &(cpu_round_call){.x = k->work,
                                   .amax = k->in[SWIGLU8_AMAX],
                                   .power = k->op->attr.power,
                                   .q = k->out[SWIGLU8_Q],
                                   .t = k->out[SWIGLU8_T],
                                   .scale = k->out[SWIGLU8_SCALE],
                                   .largest = k->out[SWIGLU8_LARGEST],
                                   .guess = k->out[SWIGLU8_GUESS],
                                   .n_rows = j.n_rows,
                                   .n_columns = backward ? 2 * j.width : j.width});
}

/* ---- rope ----------------------------------------------------------------------------------------------------- */

VEC_INLINE void rope_head(dtype t, void *y, const void *x, const float *turn, float sign, size_t half) {
    EACH_VEC(i, lanes, half, {
        vec_pair by = pair_load(turn, DTYPE_F32, half, i, lanes);
        pair_store(y, t, half, i, lanes, pair_turn(pair_load(x, t, half, i, lanes), by, sign));
    });
}

/* What is not turned passes. */
static void keep_elements(const rows_job *j, int64_t at, int64_t n) {
    if (j->y != j->x && n > 0)
        memcpy(element_at(j->y, j->type, at), element_at(j->x, j->type, at), (size_t)n * dtype_bytes(j->type));
}

static void rope_task(void *context, int64_t task, int thread) {
    const rows_job *j = context;
    const op_attr *a = &j->op->attr;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows), D = a->head_dim;
    int64_t n_turned = a->n_heads + a->n_kv_heads;
    size_t half = (size_t)(j->rotary / 2);
    for (int64_t row = first; row < end; row++) {
        int64_t position = row % a->seq_len - j->doc_start[row];
        ASSERT(position >= 0 && position < j->n_positions);
        const float *turn = j->table + position * j->rotary;
        for (int64_t h = 0; h < n_turned; h++) {
            int64_t at = row * j->width + h * D;
            BY_TYPE(j->type, rope_head, element_at(j->y, j->type, at), element_at(j->x, j->type, at), turn,
                    a->inverse ? -1.0f : 1.0f, half);
            keep_elements(j, at + j->rotary, D - j->rotary);
        }
        keep_elements(j, row * j->width + n_turned * D, a->n_kv_heads * D);
    }
}

void cpu_kernel_ROPE(backend_context *c, const kernel_call *k) {
    const value *qkv = call_in(k, ROPE_QKV);
    const op_attr *a = &k->op->attr;
    rows_job j = {.op = k->op,
                  .type = qkv->type,
                  .y = k->out[ROPE_Y],
                  .x = k->in[ROPE_QKV],
                  .table = k->in[ROPE_TABLE],
                  .doc_start = k->in[ROPE_DOC_START],
                  .n_positions = call_in(k, ROPE_TABLE)->shape.dim[0],
                  .rotary = call_in(k, ROPE_TABLE)->shape.dim[1],
                  .n_rows = a->batch * a->seq_len,
                  .width = (a->n_heads + 2 * a->n_kv_heads) * (int64_t)a->head_dim};
    ASSERT(call_out(k, ROPE_Y)->type == qkv->type && shape_count(&qkv->shape) == j.n_rows * j.width);
    ASSERT(j.rotary % 2 == 0 && j.rotary <= a->head_dim && j.n_positions >= a->seq_len);
    j.n_rows = cpu_rows(k, j.n_rows);
    rows_run(c, &j, rope_task);
    cpu_absmax(c, k, ROPE_AMAX, ROPE_Y);
}

typedef struct rope_table_job {
    const op_attr *attr;
    float *table;
    int64_t n_positions, rotary;
} rope_table_job;

/* In double to the end: at position 100,000 a float angle is off by 0.004. */
static void rope_table_task(void *context, int64_t position, int thread) {
    const rope_table_job *j = context;
    float *row = j->table + position * j->rotary;
    int64_t half = j->rotary / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle =
            (double)position * rope_inverse_frequency(&j->attr->rope, (int)j->rotary, j->n_positions, (int)i);
        row[i] = (float)(cos(angle) * rope_amplitude(&j->attr->rope));
        row[half + i] = (float)(sin(angle) * rope_amplitude(&j->attr->rope));
    }
}

void cpu_kernel_ROPE_TABLE(backend_context *c, const kernel_call *k) {
    const shape *s = &call_out(k, ROPE_TABLE_TABLE)->shape;
    rope_table_job j = {
        .attr = &k->op->attr, .table = k->out[ROPE_TABLE_TABLE], .n_positions = s->dim[0], .rotary = s->dim[1]};
    pool_run(c->threads, rope_table_task, &j, j.n_positions);
}

/* ---- data movement -------------------------------------------------------------------------------------------- */

typedef struct move_job {
    void *y;
    const void *x;
    dtype y_type, x_type;
    int64_t n; /* elements; bytes for a copy */
} move_job;

enum { COPY_BYTES = 1 << 18 };

static void cast_task(void *context, int64_t task, int thread) {
    const move_job *j = context;
    float buffer[1024];
    int64_t end = MIN((task + 1) * TASK_ELEMENTS, j->n);
    for (int64_t i = task * TASK_ELEMENTS; i < end; i += (int64_t)ARRAY_LENGTH(buffer)) {
        size_t n = (size_t)MIN((int64_t)ARRAY_LENGTH(buffer), end - i);
        void *y = element_at(j->y, j->y_type, i);
        const void *x = element_at(j->x, j->x_type, i);
        if (j->y_type == DTYPE_F32) {
            typed_row_load(y, x, j->x_type, n);
        } else if (j->x_type == DTYPE_F32) {
            typed_row_store(y, x, j->y_type, n);
        } else {
            typed_row_load(buffer, x, j->x_type, n);
            typed_row_store(y, buffer, j->y_type, n);
        }
    }
}

static void copy_task(void *context, int64_t task, int thread) {
    const move_job *j = context;
    int64_t begin = task * COPY_BYTES;
    memcpy((char *)j->y + begin, (const char *)j->x + begin, (size_t)MIN((int64_t)COPY_BYTES, j->n - begin));
}

void cpu_kernel_CAST(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, CAST_X), *y = call_out(k, CAST_Y);
    move_job j = {
        .y = k->out[CAST_Y], .x = k->in[CAST_X], .y_type = y->type, .x_type = x->type, .n = shape_count(&y->shape)};
    ASSERT(shape_count(&x->shape) == j.n);
    pool_run(c->threads, cast_task, &j, divide_up(j.n, TASK_ELEMENTS));
}

void cpu_kernel_COPY(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, COPY_Y);
    move_job j = {.y = k->out[COPY_Y], .x = k->in[COPY_X], .n = (int64_t)value_bytes(y)};
    ASSERT(value_bytes(call_in(k, COPY_X)) == (size_t)j.n);
    pool_run(c->threads, copy_task, &j, divide_up(j.n, COPY_BYTES));
}
