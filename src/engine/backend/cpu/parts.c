/* parts.c - rows put in order for ALL_TO_ALL: by heads, by tokens, and back.
 *
 * Nothing is computed; a task moves some rows, each in runs of whole heads or as a whole. */
#include "backend/cpu/cpu.h"

enum { TASK_BYTES = 1 << 18 };

typedef struct parts_job {
    const op_attr *attr;
    const char *x;
    char *y;
    int64_t n_rows, rows_per_task;
    size_t row_bytes, head_bytes; /* of the side in one piece: x, or y where attr.inverse */
} parts_job;

static void copy(const parts_job *j, size_t in_one_piece, size_t in_parts, size_t n_bytes) {
    if (j->attr->inverse) memcpy(j->y + in_one_piece, j->x + in_parts, n_bytes);
    else memcpy(j->y + in_parts, j->x + in_one_piece, n_bytes);
}

static void head_task(void *context, int64_t task, int thread) {
    const parts_job *j = context;
    const op_attr *a = j->attr;
    size_t P = (size_t)a->n_parts, part_bytes = j->row_bytes / P;
    const size_t heads[3] = {(size_t)a->n_heads, (size_t)a->n_kv_heads, (size_t)a->n_kv_heads};
    int64_t end = MIN((task + 1) * j->rows_per_task, j->n_rows);
    for (int64_t row = task * j->rows_per_task; row < end; row++)
        for (size_t part = 0; part < P; part++) {
            size_t group = (size_t)row * j->row_bytes, to = (part * (size_t)j->n_rows + (size_t)row) * part_bytes;
            for (int k = 0; k < 3; k++) { /* q, k, v */
                size_t n = heads[k] / P * j->head_bytes;
                copy(j, group + part * n, to, n);
                group += heads[k] * j->head_bytes;
                to += n;
            }
        }
}

static void token_task(void *context, int64_t task, int thread) {
    const parts_job *j = context;
    const op_attr *a = j->attr;
    int64_t T = a->seq_len, own = T / a->n_parts, end = MIN((task + 1) * j->rows_per_task, j->n_rows);
    for (int64_t row = task * j->rows_per_task; row < end; row++) { /* in the order of the parts */
        int64_t part = row / (a->batch * own), b = row / own % a->batch;
        int64_t whole = b * T + sequence_token(row % own, (int)part, a->n_parts, T);
        copy(j, (size_t)whole * j->row_bytes, (size_t)row * j->row_bytes, j->row_bytes);
    }
}

SAME_PLACE(HEAD_PARTS_X, TOKEN_PARTS_X);
SAME_PLACE(HEAD_PARTS_Y, TOKEN_PARTS_Y);

static void run(backend_context *c, const kernel_call *k, pool_fn task) {
    const op_attr *a = &k->op->attr;
    const value *whole = a->inverse ? call_out(k, HEAD_PARTS_Y) : call_in(k, HEAD_PARTS_X);
    size_t width = dtype_bytes(whole->type);
    parts_job j = {.attr = a,
                   .x = k->in[HEAD_PARTS_X],
                   .y = k->out[HEAD_PARTS_Y],
                   .n_rows = whole->shape.dim[0],
                   .row_bytes = (size_t)whole->shape.dim[1] * width,
                   .head_bytes = (size_t)a->head_dim * width};
    j.rows_per_task = MAX((int64_t)1, (int64_t)(TASK_BYTES / j.row_bytes));
    pool_run(c->threads, task, &j, divide_up(j.n_rows, j.rows_per_task));
}

void cpu_kernel_HEAD_PARTS(backend_context *c, const kernel_call *k) { run(c, k, head_task); }
void cpu_kernel_TOKEN_PARTS(backend_context *c, const kernel_call *k) { run(c, k, token_task); }
