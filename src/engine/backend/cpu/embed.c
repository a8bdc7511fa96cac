/* embed.c - token and position tables: rows out, and the gradient rows back in.
 *
 * The backward is a scatter with repeated rows. Tokens are sorted by id with a counting sort that keeps their order;
 * then each id that occurs sums its rows in that order in fp32, and the rest of the table is zeroed. Nothing is added
 * by two threads, so there are no atomics and one result. The sort is serial: it reads N + V integers, the table it
 * prepares is V x C. Work is cut by (16 ids that occur) x (512 columns), so neither a frequent token nor a
 * narrow vocabulary leaves threads idle.
 * Where ranks share the vocabulary, tokens of the others give zeros forward and nothing backward.
 * Refuses, by assertion, a token or position outside its table. */
#include "backend/cpu/typed.h"

#include "backend/cpu/gemm.h"

enum { TASK_ELEMENTS = 32768, IDS_PER_TASK = 16, COLUMNS_PER_TASK = 512, ZERO_BYTES = 1 << 19 };

/* The row of a token in this rank's part of the table; -1 where it is another rank's. */
static int64_t row_of(const op_attr *a, int32_t token) {
    if (a->vocab == 0) return token;
    ASSERT(token >= 0 && token < a->vocab);
    int64_t row = token - a->first_id;
    return row >= 0 && row < a->n_ids ? row : -1;
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

typedef struct embed_job {
    dtype type;
    const op_attr *attr;
    const int32_t *tokens, *doc_start; /* doc_start NULL: one document per row */
    const void *table, *positions;
    const float *scale; /* of the rows of a table of codes; NULL: the table has x's type */
    void *x;
    int64_t n, C, V, n_positions, seq_len, rows_per_task;
} embed_job;

VEC_INLINE void add_row(dtype t, void *y, const void *a, const void *b, size_t n) {
    EACH_VEC(i, lanes, n, { typed_store(y, t, i, lanes, typed_load(a, t, i, lanes) + typed_load(b, t, i, lanes)); });
}

VEC_INLINE void scale_row(dtype t, void *y, float factor, size_t n) {
    EACH_VEC(i, lanes, n, { typed_store(y, t, i, lanes, typed_load(y, t, i, lanes) * factor); });
}

enum { CODES_AT_A_TIME = 256 };
VEC_INLINE void decode_row(dtype t, const embed_job *j, void *y, int64_t id) {
    float scale = j->scale[id];
    for (int64_t first = 0; first < j->C; first += CODES_AT_A_TIME) {
        int64_t n = MIN(j->C - first, (int64_t)CODES_AT_A_TIME);
        int8_t some[CODES_AT_A_TIME];
        const int8_t *codes = (const int8_t *)j->table + id * j->C + first;
        if (j->attr->lanes) gemm_lanes_row(some, j->table, DTYPE_I8, j->V, j->C, id, first, n), codes = some;
        for (int64_t i = 0; i < n; i++) tensor_set_f32(y, t, (size_t)(first + i), (float)codes[i] * scale);
    }
}

static void fetch_row(const embed_job *j, void *x, int64_t id) {
    if (j->scale) BY_TYPE(j->type, decode_row, j, x, id);
    else if (j->attr->lanes) gemm_lanes_row(x, j->table, j->type, j->V, j->C, id, 0, j->C);
    else memcpy(x, element_at(j->table, j->type, id * j->C), (size_t)j->C * dtype_bytes(j->type));
}

static void embed_task(void *context, int64_t task, int thread) {
    const embed_job *j = context;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n), C = j->C;
    for (int64_t row = first; row < end; row++) {
        int64_t id = row_of(j->attr, j->tokens[row]);
        ASSERT(id < j->V && (id >= 0 || j->attr->vocab > 0));
        void *x = element_at(j->x, j->type, row * C);
        if (id < 0) memset(x, 0, (size_t)C * dtype_bytes(j->type));
        else fetch_row(j, x, id);
        if (id >= 0 && j->attr->scale > 0) BY_TYPE(j->type, scale_row, x, j->attr->scale, (size_t)C);
        int64_t mine = row - j->attr->first_token;
        if (!j->positions || (j->attr->n_tokens > 0 && (mine < 0 || mine >= j->attr->n_tokens))) continue;
        int64_t position = row % j->seq_len - (j->doc_start ? j->doc_start[row] : 0);
        ASSERT(position >= 0 && position < j->n_positions);
        BY_TYPE(j->type, add_row, x, x, element_at(j->positions, j->type, position * C), (size_t)C);
    }
}

SAME_PLACE(EMBED_TOKENS, EMBED_INT8_TOKENS);
SAME_PLACE(EMBED_TABLE, EMBED_INT8_CODES);
SAME_PLACE(EMBED_DOC_START, EMBED_INT8_DOC_START);
SAME_PLACE(EMBED_POSITIONS, EMBED_INT8_POSITIONS);
SAME_PLACE(EMBED_X, EMBED_INT8_X);

static void embed_run(backend_context *c, const kernel_call *k, const float *scale) {
    const value *table = call_in(k, EMBED_TABLE), *x = call_out(k, EMBED_X);
    embed_job j = {.type = x->type,
                   .scale = scale,
                   .attr = &k->op->attr,
                   .tokens = k->in[EMBED_TOKENS],
                   .table = k->in[EMBED_TABLE],
                   .doc_start = k->in[EMBED_DOC_START],
                   .positions = k->in[EMBED_POSITIONS],
                   .x = k->out[EMBED_X],
                   .n = shape_count(&call_in(k, EMBED_TOKENS)->shape),
                   .V = table->shape.dim[0],
                   .C = table->shape.dim[1],
                   .seq_len = k->op->attr.seq_len};
    ASSERT((scale || x->type == table->type) && shape_count(&x->shape) == j.n * j.C);
    if (j.positions) {
        ASSERT(call_in(k, EMBED_POSITIONS)->type == x->type && j.seq_len > 0);
        j.n_positions = call_in(k, EMBED_POSITIONS)->shape.dim[0];
    }
    j.n = cpu_rows(k, j.n);
    j.rows_per_task = MAX((int64_t)1, TASK_ELEMENTS / j.C);
    pool_run(c->threads, embed_task, &j, divide_up(j.n, j.rows_per_task));
}

void cpu_kernel_EMBED(backend_context *c, const kernel_call *k) { embed_run(c, k, NULL); }
void cpu_kernel_EMBED_INT8(backend_context *c, const kernel_call *k) { embed_run(c, k, k->in[EMBED_INT8_SCALE]); }

/* ---- backward ------------------------------------------------------------------------------------------------ */

typedef struct scatter_job {
    dtype type, table_type;
    const op_attr *attr;
    const int32_t *ids; /* (n): tokens, or doc_start where by_position */
    bool by_position;
    const void *dy;
    void *dtable;
    int64_t n, V, C;
    bool add;         /* dtable += instead of dtable = */
    int32_t *ends;    /* (V): where the tokens of an id end in `order` */
    int32_t *order;   /* (n): token indices, sorted by id */
    int32_t *present; /* (min(n, V)): the ids that occur, ascending */
    int64_t n_present, n_chunks, ids_per_task;
} scatter_job;

static size_t scatter_work_bytes(int64_t n, int64_t V) { return (size_t)(V + n + MIN(n, V)) * sizeof(int32_t); }

/* Row of the table that row i of dy belongs to; positions: t - doc_start. */
static int64_t id_of(const scatter_job *j, int64_t i) {
    const op_attr *a = j->attr;
    return j->by_position ? (a->first_token + i) % a->seq_len - j->ids[i] : row_of(a, j->ids[i]);
}

static void scatter_sort(scatter_job *j) {
    memset(j->ends, 0, (size_t)j->V * sizeof(int32_t));
    bool may_lack = !j->by_position && j->attr->vocab > 0;
    for (int64_t i = 0; i < j->n; i++) {
        int64_t id = id_of(j, i);
        ASSERT(id < j->V && (id >= 0 || may_lack));
        if (id >= 0) j->ends[id]++;
    }
    int32_t begin = 0;
    for (int64_t id = 0; id < j->V; id++) { /* counts become begins, which the next loop moves to ends */
        int32_t count = j->ends[id];
        if (count > 0) j->present[j->n_present++] = (int32_t)id;
        j->ends[id] = begin;
        begin += count;
    }
    for (int64_t i = 0; i < j->n; i++) {
        int64_t id = id_of(j, i);
        if (id >= 0) j->order[j->ends[id]++] = (int32_t)i;
    }
}

VEC_INLINE void sum_row(dtype t, float *sum, const void *dy, bool first, size_t n) {
    EACH_VEC(i, lanes, n, {
        vec d = typed_load(dy, t, i, lanes);
        typed_store(sum, DTYPE_F32, i, lanes, first ? d : typed_load(sum, DTYPE_F32, i, lanes) + d);
    });
}

static void scatter_task(void *context, int64_t task, int thread) {
    const scatter_job *j = context;
    int64_t column = task % j->n_chunks * COLUMNS_PER_TASK, first = task / j->n_chunks * IDS_PER_TASK;
    int64_t end = MIN(first + IDS_PER_TASK, j->n_present);
    size_t n = (size_t)MIN((int64_t)COLUMNS_PER_TASK, j->C - column);
    float sum[COLUMNS_PER_TASK], before[COLUMNS_PER_TASK];
    for (int64_t p = first; p < end; p++) {
        int64_t id = j->present[p], begin = id > 0 ? j->ends[id - 1] : 0;
        for (int64_t i = begin; i < j->ends[id]; i++)
            BY_TYPE(j->type, sum_row, sum, element_at(j->dy, j->type, j->order[i] * j->C + column), i == begin, n);
        if (j->attr->scale > 0 && !j->by_position) scale_row(DTYPE_F32, sum, j->attr->scale, n);
        void *row = element_at(j->dtable, j->table_type, id * j->C + column);
        if (j->add) {
            typed_row_load(before, row, j->table_type, n);
            add_row(DTYPE_F32, sum, before, sum, n);
        }
        typed_row_store(row, sum, j->table_type, n);
    }
}

static void zero_task(void *context, int64_t task, int thread) {
    const scatter_job *j = context;
    size_t row_bytes = (size_t)j->C * dtype_bytes(j->table_type);
    int64_t first = task * j->ids_per_task, end = MIN(first + j->ids_per_task, j->V);
    for (int64_t id = first; id < end;) { /* runs of absent ids at once: long streams of zeros are fastest */
        int64_t run = id;
        while (run < end && j->ends[run] == (run > 0 ? j->ends[run - 1] : 0)) run++;
        memset((char *)j->dtable + (size_t)id * row_bytes, 0, (size_t)(run - id) * row_bytes);
        id = run + 1;
    }
}

SAME_PLACE(EMBED_BWD_TOKENS, EMBED_BWD_ADD_TOKENS, POSITION_BWD_DOC_START);
SAME_PLACE(EMBED_BWD_DY, EMBED_BWD_ADD_DY, POSITION_BWD_DY);
SAME_PLACE(EMBED_BWD_DTABLE, EMBED_BWD_ADD_DTABLE, POSITION_BWD_DTABLE);

static void scatter_run(backend_context *c, const kernel_call *k, bool add, bool by_position) {
    const value *dy = call_in(k, EMBED_BWD_DY), *dtable = call_out(k, EMBED_BWD_DTABLE);
    scatter_job j = {.type = dy->type,
                     .table_type = dtable->type,
                     .attr = &k->op->attr,
                     .ids = k->in[EMBED_BWD_TOKENS],
                     .by_position = by_position,
                     .dy = k->in[EMBED_BWD_DY],
                     .dtable = k->out[EMBED_BWD_DTABLE],
                     .add = add,
                     .n = shape_count(&call_in(k, EMBED_BWD_TOKENS)->shape),
                     .V = dtable->shape.dim[0],
                     .C = dtable->shape.dim[1]};
    ASSERT(shape_count(&dy->shape) == j.n * j.C && j.n <= INT32_MAX);
    j.ends = k->work;
    j.order = j.ends + j.V;
    j.present = j.order + j.n;
    scatter_sort(&j);
    if (!add) {
        j.ids_per_task = MAX((int64_t)1, ZERO_BYTES / (j.C * (int64_t)dtype_bytes(j.table_type)));
        pool_run(c->threads, zero_task, &j, divide_up(j.V, j.ids_per_task));
    }
    j.n_chunks = divide_up(j.C, COLUMNS_PER_TASK);
    pool_run(c->threads, scatter_task, &j, divide_up(j.n_present, IDS_PER_TASK) * j.n_chunks);
}

void cpu_kernel_EMBED_BWD(backend_context *c, const kernel_call *k) { scatter_run(c, k, false, false); }
void cpu_kernel_EMBED_BWD_ADD(backend_context *c, const kernel_call *k) { scatter_run(c, k, true, false); }
void cpu_kernel_POSITION_BWD(backend_context *c, const kernel_call *k) {
    ASSERT(k->op->attr.seq_len > 0);
    scatter_run(c, k, false, true);
}

static size_t embed_work_bytes(const program *p, const op *o, int n_threads) {
    const value *ids = program_get(p, o->in[EMBED_BWD_TOKENS]), *dtable = program_get(p, o->out[EMBED_BWD_DTABLE]);
    return scatter_work_bytes(shape_count(&ids->shape), dtable->shape.dim[0]);
}

const cpu_work_fn cpu_work_EMBED_BWD = embed_work_bytes;
const cpu_work_fn cpu_work_EMBED_BWD_ADD = embed_work_bytes;
const cpu_work_fn cpu_work_POSITION_BWD = embed_work_bytes;
