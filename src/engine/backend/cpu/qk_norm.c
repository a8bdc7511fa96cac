/* qk_norm.c - RMSNorm of every q and k head of packed rows, alone or with the rotation behind it, and the backward.
 *
 * With the rotation a head is read twice, the second time from L1, and written once: what lies between norm and rotation
 * stays in registers and is not rounded. The backward keeps one head of what it has turned back, in fp32, between its two
 * passes. The sums for the gains are norm.c's: a line per block of rows, heads of a row in order. */
#include "backend/cpu/norm.h"

#include "backend/cpu/rope.h"

VEC_INLINE vec_pair pair_times(vec_pair a, vec_pair b) { return (vec_pair){a.low * b.low, a.high * b.high}; }
VEC_INLINE vec_pair pair_scale(vec_pair a, float b) { return (vec_pair){a.low * b, a.high * b}; }
VEC_INLINE vec_pair pair_plus(vec_pair a, float b) { return (vec_pair){a.low + b, a.high + b}; }
VEC_INLINE vec_pair pair_fma(vec_pair a, vec_pair b, vec_pair c) {
    return (vec_pair){vec_fma(a.low, b.low, c.low), vec_fma(a.high, b.high, c.high)};
}

/* y may be x: both elements of a pair are read before one is written. */
VEC_INLINE void norm_turn_head(dtype t, void *y, const void *x, const void *gamma, float offset, const float *turn,
                               size_t half, float eps, float *rstd) {
    float r = 1.0f / sqrtf(row_moment(t, x, 2 * half, 0, true) / (float)(2 * half) + eps);
    EACH_VEC(i, lanes, half, {
        vec_pair xh = pair_scale(pair_load(x, t, half, i, lanes), r);
        vec_pair normed = pair_times(xh, pair_plus(pair_load(gamma, t, half, i, lanes), offset));
        pair_store(y, t, half, i, lanes, pair_turn(normed, pair_load(turn, DTYPE_F32, half, i, lanes), 1));
    });
    *rstd = r;
}

/* dx =, dgamma += unless it is NULL. dx may be dy. a (D) takes dy, turned back, times gamma. Lanes past the end hold dy = 0 and add
 * nothing. */
VEC_INLINE void norm_turn_bwd_head(dtype t, void *dx, float *dgamma, float *a, const void *x, const void *gamma,
                                   float offset, const void *dy, const float *turn, size_t half, float rstd) {
    vec_pair sum = {0};
    EACH_VEC(i, lanes, half, {
        vec_pair by = pair_load(turn, DTYPE_F32, half, i, lanes);
        vec_pair d = pair_turn(pair_load(dy, t, half, i, lanes), by, -1);
        vec_pair xh = pair_scale(pair_load(x, t, half, i, lanes), rstd);
        vec_pair d_gamma = pair_times(d, pair_plus(pair_load(gamma, t, half, i, lanes), offset));
        sum = pair_fma(d_gamma, xh, sum);
        pair_store(a, DTYPE_F32, half, i, lanes, d_gamma);
        if (dgamma)
            pair_store(dgamma, DTYPE_F32, half, i, lanes,
                       pair_fma(d, xh, pair_load(dgamma, DTYPE_F32, half, i, lanes)));
    });
    vec minus_mean = vec_set(-(vec_sum(sum.low + sum.high) / (float)(2 * half)));
    EACH_VEC(i, lanes, 2 * half, {
        vec xh = typed_load(x, t, i, lanes) * rstd;
        typed_store(dx, t, i, lanes, rstd * vec_fma(xh, minus_mean, typed_load(a, DTYPE_F32, i, lanes)));
    });
}

typedef struct heads_job {
    dtype type;
    const op_attr *attr;
    const void *qkv, *gq, *gk, *dy;
    void *out; /* y, or dqkv */
    float *rstd;
    float *lines; /* (blocks, line): the sums for gq, then those for gk, where they are asked for */
    bool dgq, dgk;
    float *turned_back; /* (blocks, D): of the head at work */
    const float *table; /* (n_positions, D), or NULL: nothing is turned */
    const int32_t *doc_start;
    int64_t n_positions, n_rows, width, line, rows_per_task;
    int64_t n_normed, q_width, k_width; /* norms of a row; how wide they are */
} heads_job;

/* A run of a row that has a norm of its own: a head, or all of them. */
typedef struct normed_head {
    int64_t first, width;
    bool is_key;
} normed_head;

static normed_head head_at(const heads_job *j, int64_t h) {
    int64_t n_q = j->attr->wide ? 1 : j->attr->n_heads;
    if (h < n_q) return (normed_head){h * j->q_width, j->q_width, false};
    return (normed_head){n_q * j->q_width + (h - n_q) * j->k_width, j->k_width, true};
}

SAME_PLACE(QK_NORM_QKV, QK_NORM_ROPE_QKV, QK_NORM_BWD_QKV, QK_NORM_ROPE_BWD_QKV);
SAME_PLACE(QK_NORM_GQ, QK_NORM_ROPE_GQ, QK_NORM_BWD_GQ, QK_NORM_ROPE_BWD_GQ);
SAME_PLACE(QK_NORM_GK, QK_NORM_ROPE_GK, QK_NORM_BWD_GK, QK_NORM_ROPE_BWD_GK);
SAME_PLACE(QK_NORM_Y, QK_NORM_ROPE_Y, QK_NORM_BWD_DQKV, QK_NORM_ROPE_BWD_DQKV);
SAME_PLACE(QK_NORM_RSTD, QK_NORM_ROPE_RSTD);
SAME_PLACE(QK_NORM_ROPE_TABLE, QK_NORM_ROPE_BWD_TABLE);
SAME_PLACE(QK_NORM_ROPE_DOC_START, QK_NORM_ROPE_BWD_DOC_START);
SAME_PLACE(QK_NORM_BWD_DGQ, QK_NORM_ROPE_BWD_DGQ);
SAME_PLACE(QK_NORM_BWD_DGK, QK_NORM_ROPE_BWD_DGK);

static heads_job heads_make(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    const value *qkv = call_in(k, QK_NORM_QKV);
    heads_job j = {.type = qkv->type,
                   .attr = a,
                   .qkv = k->in[QK_NORM_QKV],
                   .gq = k->in[QK_NORM_GQ],
                   .gk = k->in[QK_NORM_GK],
                   .out = k->out[QK_NORM_Y],
                   .width = (a->n_heads + 2 * a->n_kv_heads) * (int64_t)a->head_dim};
    j.n_rows = shape_count(&qkv->shape) / j.width;
    j.n_normed = a->wide ? 2 : a->n_heads + a->n_kv_heads;
    j.q_width = a->head_dim * (int64_t)(a->wide ? a->n_heads : 1);
    j.k_width = a->head_dim * (int64_t)(a->wide ? a->n_kv_heads : 1);
    ASSERT(call_in(k, QK_NORM_GQ)->type == j.type && call_in(k, QK_NORM_GK)->type == j.type &&
           call_out(k, QK_NORM_Y)->type == j.type);
    return j;
}

/* As heads_make, with the table and doc_start of the ops that turn. */
static heads_job turned_heads_make(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    heads_job j = heads_make(k);
    j.table = k->in[QK_NORM_ROPE_TABLE];
    j.doc_start = k->in[QK_NORM_ROPE_DOC_START];
    j.n_positions = call_in(k, QK_NORM_ROPE_TABLE)->shape.dim[0];
    ASSERT(j.n_rows == a->batch * a->seq_len && a->head_dim % 2 == 0 && j.n_positions >= a->seq_len);
    return j;
}

static const float *row_turn(const heads_job *j, int64_t row) {
    if (!j->table) return NULL;
    int64_t position = row % j->attr->seq_len - j->doc_start[row];
    ASSERT(position >= 0 && position < j->n_positions);
    return j->table + position * j->attr->head_dim;
}

static void copy_v(const heads_job *j, const void *from, int64_t row) {
    const op_attr *a = j->attr;
    int64_t v = row * j->width + (a->n_heads + a->n_kv_heads) * (int64_t)a->head_dim;
    if (from != j->out)
        memcpy(element_at(j->out, j->type, v), element_at(from, j->type, v),
               (size_t)a->n_kv_heads * (size_t)a->head_dim * dtype_bytes(j->type));
}

static void heads_task(void *context, int64_t task, int thread) {
    const heads_job *j = context;
    const op_attr *a = j->attr;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows);
    for (int64_t row = first; row < end; row++) {
        const float *turn = row_turn(j, row);
        for (int64_t h = 0; h < j->n_normed; h++) {
            normed_head head = head_at(j, h);
            int64_t e = row * j->width + head.first;
            size_t D = (size_t)head.width;
            void *y = element_at(j->out, j->type, e);
            const void *x = element_at(j->qkv, j->type, e), *gamma = head.is_key ? j->gk : j->gq;
            float *rstd = &j->rstd[row * j->n_normed + h], offset = a->gain_offset;
            if (turn) BY_TYPE(j->type, norm_turn_head, y, x, gamma, offset, turn, D / 2, a->eps, rstd);
            else BY_TYPE(j->type, rmsnorm_row, y, x, gamma, offset, D, a->eps, rstd);
        }
        copy_v(j, j->qkv, row);
    }
}

static void heads_run(backend_context *c, const kernel_call *k, heads_job j) {
    j.rstd = k->out[QK_NORM_RSTD];
    j.n_rows = cpu_rows(k, j.n_rows);
    j.rows_per_task = MAX((int64_t)1, NORM_TASK_ELEMENTS / j.width);
    pool_run(c->threads, heads_task, &j, divide_up(j.n_rows, j.rows_per_task));
}

void cpu_kernel_QK_NORM(backend_context *c, const kernel_call *k) { heads_run(c, k, heads_make(k)); }
void cpu_kernel_QK_NORM_ROPE(backend_context *c, const kernel_call *k) { heads_run(c, k, turned_heads_make(k)); }

static void heads_bwd_task(void *context, int64_t block, int thread) {
    const heads_job *j = context;
    const op_attr *a = j->attr;
    int64_t first = block * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows);
    float *line = j->line ? j->lines + block * j->line : NULL;
    float *dgq = j->dgq ? line : NULL, *dgk = j->dgk ? line + j->line - j->k_width : NULL;
    if (line) memset(line, 0, (size_t)j->line * sizeof(float));
    for (int64_t row = first; row < end; row++) {
        const float *turn = row_turn(j, row);
        for (int64_t h = 0; h < j->n_normed; h++) {
            normed_head head = head_at(j, h);
            int64_t e = row * j->width + head.first, D = head.width;
            void *dx = element_at(j->out, j->type, e);
            const void *x = element_at(j->qkv, j->type, e), *dy = element_at(j->dy, j->type, e);
            const void *gamma = head.is_key ? j->gk : j->gq;
            float *dgamma = head.is_key ? dgk : dgq, rstd = j->rstd[row * j->n_normed + h];
            if (turn) {
                BY_TYPE(j->type, norm_turn_bwd_head, dx, dgamma, j->turned_back + block * D, x, gamma, a->gain_offset,
                        dy, turn, (size_t)(D / 2), rstd);
            } else {
                row_stats s = {.rstd = rstd, .offset = a->gain_offset};
                BY_TYPE(j->type, norm_bwd_row, dx, dgamma, NULL, x, gamma, dy, NULL, (size_t)D, s);
            }
        }
        copy_v(j, j->dy, row);
    }
}

static void heads_bwd_run(backend_context *c, const kernel_call *k, heads_job j) {
    int64_t n_blocks = cpu_sum_block_count(j.n_rows);
    j.lines = k->work;
    j.dgq = k->out[QK_NORM_BWD_DGQ];
    j.dgk = k->out[QK_NORM_BWD_DGK];
    j.line = j.dgq * j.q_width + j.dgk * j.k_width;
    if (j.table) j.turned_back = j.lines + n_blocks * j.line;
    j.rows_per_task = cpu_sum_block_rows(j.n_rows);
    pool_run(c->threads, heads_bwd_task, &j, n_blocks);
    cpu_finish_sums(c, k, QK_NORM_BWD_DGQ, n_blocks, j.line, 0);
    cpu_finish_sums(c, k, QK_NORM_BWD_DGK, n_blocks, j.line, j.line - j.k_width);
}

void cpu_kernel_QK_NORM_BWD(backend_context *c, const kernel_call *k) {
    heads_job j = heads_make(k);
    j.rstd = k->in[QK_NORM_BWD_RSTD];
    j.dy = k->in[QK_NORM_BWD_DY];
    heads_bwd_run(c, k, j);
}

void cpu_kernel_QK_NORM_ROPE_BWD(backend_context *c, const kernel_call *k) {
    heads_job j = turned_heads_make(k);
    j.rstd = k->in[QK_NORM_ROPE_BWD_RSTD];
    j.dy = k->in[QK_NORM_ROPE_BWD_DY];
    heads_bwd_run(c, k, j);
}

static size_t turned_work_bytes(const program *p, const op *o, int n_threads) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    line += o->attr.head_dim; /* one head beside each line */
    return (size_t)(cpu_sum_block_count(n_rows) * line) * sizeof(float);
}

const cpu_work_fn cpu_work_QK_NORM_BWD = cpu_sums_work_bytes;
const cpu_work_fn cpu_work_QK_NORM_ROPE_BWD = turned_work_bytes;
