/* lora.c - adapters of low rank beside a linear layer: y = base + scale xa b^T, and the gradients of xa and b.
 *
 * A weight that is several matrices on top of each other (q|k|v, gate|up) has an adapter for some of them: parts, each with
 * its own columns of y, its own r columns of xa and its own rows of b. A part is one GEMM with strides; columns that no part
 * has are copied where y does not lie on base already.
 * An op that says how many rows hold something is generation's, and goes to gemm_rows.c as LINEAR does. */
#include "backend/cpu/gemm.h"

enum { COPY_ROWS = 64 };

typedef enum lora_product { PRODUCT_UP, PRODUCT_DXA, PRODUCT_DB } lora_product;

/* m, n, k of part i, operands without their data. y: (N, out), the wide rows; r: of b (R, r). */
static gemm_call part_call(const op *o, lora_product which, const value *y, int64_t r, int i) {
    int64_t N = y->shape.dim[0], out = y->shape.dim[1], columns = o->attr.part_columns[i], wide = o->attr.n_parts * r;
    gemm_call g = {.a = {.type = y->type}, .b = {.type = y->type}, .scale = &o->attr.scale};
    switch (which) {
    case PRODUCT_UP: /* xa (N, r), b (columns, r) */
        g.m = N, g.n = columns, g.k = r;
        g.a.row_stride = wide, g.a.col_stride = 1;
        g.b.row_stride = 1, g.b.col_stride = r;
        g.ldc = g.ld_add = out;
        break;
    case PRODUCT_DXA: /* dy (N, columns), b (columns, r) */
        g.m = N, g.n = r, g.k = columns;
        g.a.row_stride = out, g.a.col_stride = 1;
        g.b.row_stride = r, g.b.col_stride = 1;
        g.ldc = wide;
        break;
    case PRODUCT_DB: /* dy (N, columns), xa (N, r) */
        g.m = columns, g.n = r, g.k = N;
        g.a.row_stride = 1, g.a.col_stride = out;
        g.b.row_stride = wide, g.b.col_stride = 1;
        g.ldc = r;
    }
    return g;
}

static size_t product_work_bytes(const op *o, lora_product which, const value *y, const value *b, int n_threads) {
    size_t most = 0;
    for (int i = 0; i < o->attr.n_parts; i++) {
        gemm_call g = part_call(o, which, y, b->shape.dim[1], i);
        most = MAX(most, o->rows ? gemm_rows_work_bytes(g.m, g.n, g.k, y->type, false, n_threads)
                                 : gemm_work_bytes(g.m, g.n, g.k, y->type, y->type, n_threads));
    }
    return most;
}

static size_t up_work_bytes(const program *p, const op *o, int n_threads) {
    return product_work_bytes(o, PRODUCT_UP, program_get(p, o->in[LORA_UP_BASE]), program_get(p, o->in[LORA_UP_B]),
                              n_threads);
}
static size_t bwd_work_bytes(const program *p, const op *o, int n_threads) {
    const value *dy = program_get(p, o->in[LORA_BWD_DY]), *b = program_get(p, o->in[LORA_BWD_B]);
    return MAX(product_work_bytes(o, PRODUCT_DXA, dy, b, n_threads),
               product_work_bytes(o, PRODUCT_DB, dy, b, n_threads));
}

const cpu_work_fn cpu_work_LORA_UP = up_work_bytes;
const cpu_work_fn cpu_work_LORA_BWD = bwd_work_bytes;

typedef struct copy_job {
    const op_attr *attr;
    size_t element_bytes;
    const char *base;
    char *y;
    int64_t n_rows, out;
} copy_job;

static void copy_columns(const copy_job *j, int64_t row, int64_t first, int64_t end) {
    size_t at = (size_t)(row * j->out + first) * j->element_bytes;
    if (end > first) memcpy(j->y + at, j->base + at, (size_t)(end - first) * j->element_bytes);
}

/* The columns before, between and behind the parts. */
static void copy_task(void *context, int64_t task, int thread) {
    const copy_job *j = context;
    int64_t end = MIN((task + 1) * COPY_ROWS, j->n_rows);
    for (int64_t row = task * COPY_ROWS; row < end; row++) {
        int64_t done = 0;
        for (int i = 0; i < j->attr->n_parts; i++) {
            copy_columns(j, row, done, j->attr->part_first[i]);
            done = j->attr->part_first[i] + j->attr->part_columns[i];
        }
        copy_columns(j, row, done, j->out);
    }
}

void cpu_kernel_LORA_UP(backend_context *c, const kernel_call *k) { /* y = */
    const value *y = call_out(k, LORA_UP_Y);
    int64_t r = call_in(k, LORA_UP_B)->shape.dim[1], n_rows = cpu_rows(k, y->shape.dim[0]);
    if (n_rows == 0) return;
    if (k->out[LORA_UP_Y] != k->in[LORA_UP_BASE]) {
        copy_job j = {.attr = &k->op->attr,
                      .element_bytes = dtype_bytes(y->type),
                      .base = k->in[LORA_UP_BASE],
                      .y = k->out[LORA_UP_Y],
                      .n_rows = n_rows,
                      .out = y->shape.dim[1]};
        pool_run(c->threads, copy_task, &j, divide_up(n_rows, COPY_ROWS));
    }
    for (int i = 0; i < k->op->attr.n_parts; i++) {
        gemm_call g = part_call(k->op, PRODUCT_UP, y, r, i);
        lora_part p = op_lora_part(k->op, r, i);
        g.m = n_rows;
        g.a.data = element_at(k->in[LORA_UP_XA], y->type, p.small);
        g.b.data = element_at(k->in[LORA_UP_B], y->type, p.row * r);
        g.add = element_at(k->in[LORA_UP_BASE], y->type, p.first);
        g.c = element_at(k->out[LORA_UP_Y], y->type, p.first);
        g.c_type = y->type;
        if (k->rows) gemm_rows_run(c, &g, k->work);
        else gemm_run(c, &g, k->work);
    }
}

void cpu_kernel_LORA_BWD(backend_context *c, const kernel_call *k) { /* dxa =, db = */
    const value *dy = call_in(k, LORA_BWD_DY), *db = call_out(k, LORA_BWD_DB);
    int64_t r = db->shape.dim[1];
    for (int i = 0; i < k->op->attr.n_parts; i++) {
        lora_part p = op_lora_part(k->op, r, i);
        gemm_call to_xa = part_call(k->op, PRODUCT_DXA, dy, r, i), to_b = part_call(k->op, PRODUCT_DB, dy, r, i);
        to_xa.a.data = to_b.a.data = element_at(k->in[LORA_BWD_DY], dy->type, p.first);
        to_xa.b.data = element_at(k->in[LORA_BWD_B], dy->type, p.row * r);
        to_xa.c = element_at(k->out[LORA_BWD_DXA], dy->type, p.small);
        to_xa.c_type = dy->type;
        to_b.b.data = element_at(k->in[LORA_BWD_XA], dy->type, p.small);
        to_b.c = element_at(k->out[LORA_BWD_DB], db->type, p.row * r);
        to_b.c_type = db->type;
        gemm_run(c, &to_xa, k->work);
        gemm_run(c, &to_b, k->work);
    }
}
