/* qkv.c - packed rows of q, k and v taken apart and put together, for keys and values that travel without their queries. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/vector.h"

enum { TASK_ELEMENTS = 1 << 16 };

/* Columns of rows, from one place to another, perhaps narrower there. */
typedef struct column_copy {
    const char *from;
    char *to;
    dtype from_type, to_type;
    int64_t n_rows, n, from_stride, to_stride; /* elements */
    int64_t rows_per_task;
} column_copy;

static void copy_task(void *context, int64_t task, int thread) {
    const column_copy *j = context;
    float piece[256];
    int64_t end = MIN((task + 1) * j->rows_per_task, j->n_rows), width = (int64_t)ARRAY_LENGTH(piece);
    size_t from_bytes = dtype_bytes(j->from_type), to_bytes = dtype_bytes(j->to_type);
    for (int64_t row = task * j->rows_per_task; row < end; row++) {
        const char *from = j->from + (size_t)(row * j->from_stride) * from_bytes;
        char *to = j->to + (size_t)(row * j->to_stride) * to_bytes;
        if (j->from_type == j->to_type) {
            memcpy(to, from, (size_t)j->n * to_bytes);
            continue;
        }
        for (int64_t i = 0; i < j->n; i += width) {
            size_t n = (size_t)MIN(width, j->n - i);
            row_load(piece, from + (size_t)i * from_bytes, j->from_type, n);
            row_store(to + (size_t)i * to_bytes, piece, j->to_type, n);
        }
    }
}

static void copy_columns(backend_context *c, column_copy j) {
    j.rows_per_task = MAX((int64_t)1, TASK_ELEMENTS / j.n);
    pool_run(c->threads, copy_task, &j, divide_up(j.n_rows, j.rows_per_task));
}

void cpu_kernel_KV_PART(backend_context *c, const kernel_call *k) {
    const value *qkv = call_in(k, KV_PART_QKV), *kv = call_out(k, KV_PART_KV);
    int64_t q = (int64_t)k->op->attr.n_heads * k->op->attr.head_dim;
    copy_columns(c, (column_copy){.from = (const char *)k->in[KV_PART_QKV] + (size_t)q * dtype_bytes(qkv->type),
                                  .to = k->out[KV_PART_KV],
                                  .from_type = qkv->type,
                                  .to_type = kv->type,
                                  .n_rows = kv->shape.dim[0],
                                  .n = kv->shape.dim[1],
                                  .from_stride = qkv->shape.dim[1],
                                  .to_stride = kv->shape.dim[1]});
}

void cpu_kernel_QKV_JOIN(backend_context *c, const kernel_call *k) {
    const value *qkv = call_out(k, QKV_JOIN_QKV);
    size_t column = 0;
    for (int i = QKV_JOIN_Q; i <= QKV_JOIN_KV; i++) {
        const value *part = call_in(k, i);
        copy_columns(c, (column_copy){.from = k->in[i],
                                      .to = (char *)k->out[QKV_JOIN_QKV] + column * dtype_bytes(qkv->type),
                                      .from_type = part->type,
                                      .to_type = qkv->type,
                                      .n_rows = part->shape.dim[0],
                                      .n = part->shape.dim[1],
                                      .from_stride = part->shape.dim[1],
                                      .to_stride = qkv->shape.dim[1]});
        column += (size_t)part->shape.dim[1];
    }
}
