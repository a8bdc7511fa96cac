/* attention.c - causal attention inside documents: how the work is cut, where its scratch lies, and which instruction
 * set runs it. The arithmetic is in attention_blocks.inc and attention_matrix.c.
 *
 * A forward task is one block of queries of all heads that share a kv head. A backward task is one (sequence, kv head),
 * because dk and dv are sums over all its queries; where those pairs are few, the queries are cut into pieces fixed by
 * the shape, each with its own sums, added in order afterwards. So the bits never depend on the number of threads.
 * Of a ring one op has this rank's queries and one rank's keys: places in the row say who sees whom, and the forward
 * goes on where the op before it ended. Scratch: a few blocks per thread, and backward 8 T D bytes per thread for the
 * sums, or per piece, where a long row is then taken in segments of its keys, so that it is 8 SEGMENT_KEYS D and dq
 * beside it; never (T, T). Products of 8-bit numbers are emulated: q|k|v is rounded into scratch, and the rest is as
 * ever; probabilities are not rounded further. Refuses nothing at run time: any head_dim has a set that computes it,
 * and heads that divide are proved when the program is verified. */
#include "backend/cpu/attention.h"
#include <math.h>

enum {
    TASKS_WANTED = 32,   /* cut a sequence when there are fewer (sequence, kv head) pairs than this */
    CUT_QUERIES = 256,   /* ... but never into pieces smaller than this, whose sums would cost as much as they save */
    SEGMENT_KEYS = 2048, /* whose sums the pieces of a long row have at one time */
};

static const attention_functions *forced;

static const attention_functions *const FUNCTIONS[] = {
/* best first */
#if defined(__x86_64__)
    &attention_matrix,
    &attention_avx512,
    &attention_avx2,
#elif defined(__aarch64__)
    &attention_matrix,
#endif
    &attention_base,
};

static const attention_functions *functions_get(dtype type, int64_t head_dim) {
    if (forced && forced->supported(type, head_dim)) return forced;
    size_t i = 0;
    while (!FUNCTIONS[i]->supported(type, head_dim)) i++;
    return FUNCTIONS[i];
}

bool attention_force_functions(const char *name) {
    forced = NULL;
    for (size_t i = 0; name && i < ARRAY_LENGTH(FUNCTIONS); i++)
        if (!strcmp(name, FUNCTIONS[i]->name) && FUNCTIONS[i]->supported(DTYPE_BF16, 1)) forced = FUNCTIONS[i];
    return !name || forced;
}

const char *attention_functions_list(int i) {
    return i >= 0 && (size_t)i < ARRAY_LENGTH(FUNCTIONS) ? FUNCTIONS[i]->name : NULL;
}

const char *attention_functions_name(dtype type, int64_t head_dim) { return functions_get(type, head_dim)->name; }

void attention_vector_shape(attention_job *j) {
    j->d_pad = round_up(j->D, ATTENTION_PAD);
    j->block_k = ATTENTION_BLOCK_K;
    /* A key block is transposed once for block_q queries of each head of the group: one head alone takes more. */
    j->block_q = j->group == 1 && j->T > 64 ? 128 : 64;
}

size_t attention_vector_bytes(const attention_job *j, bool backward) {
    int64_t rows = (int64_t)j->group * j->block_q, key_block = ATTENTION_BLOCK_K * j->d_pad;
    int64_t scores = (int64_t)j->block_q * ATTENTION_BLOCK_K, n;
    if (backward) /* q dy dq, k v k^T v^T, p ds, lse delta, a row of y */
        n = 3 * rows * j->d_pad + 4 * key_block + 2 * scores + 2 * rows + j->d_pad;
    else /* q o, k k^T v, p, maxima and sums */ n = 2 * rows * j->d_pad + 3 * key_block + scores + 2 * rows;
    return (size_t)n * sizeof(float);
}

static attention_job job_make(const op_attr *a, dtype type) {
    ASSERT(a->head_dim > 0 && a->n_kv_heads > 0 && a->n_heads % a->n_kv_heads == 0);
    attention_job j = {
        .B = a->batch,
        .T = a->seq_len,
        .H = a->n_heads,
        .G = a->n_kv_heads,
        .D = a->head_dim,
        .group = a->n_heads / a->n_kv_heads,
        .scale = a->scale,
        .window = a->window,
        .softcap = a->softcap,
        .type = type,
        .n_ranks = 1,
        .q_stride = (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim,
        .y_type = type,
        .grad_type = type,
        .functions = functions_get(type, a->head_dim),
    };
    j.functions->shape(&j);
    j.segment = round_up(j.T, j.block_k);
    j.n_q_blocks = divide_up(j.T, j.block_q);
    int64_t pairs = j.B * j.G, wanted = divide_up(TASKS_WANTED, pairs), most = MAX(j.T / CUT_QUERIES, 1);
    j.n_cuts = (int)MIN(wanted, most);
    /* dq waits between segments: it must take less than it saves of sums of dk and dv. */
    if (j.n_cuts > 1 && j.T >= 2 * SEGMENT_KEYS && j.group < j.n_cuts) j.segment = round_up(SEGMENT_KEYS, j.block_k);
    j.kv_stride = j.q_stride;
    return j;
}

/* Keys of the other rank that stand before a place in the row: it has a run of them from the front and one from the back. */
static int64_t keys_before(const attention_job *j, int64_t place) {
    int64_t run = j->T / 2, n = 0;
    for (int64_t i = 0; i < j->T; i += run) {
        int64_t first = sequence_token(i, j->key_rank, j->n_ranks, j->T * j->n_ranks);
        n += MIN(MAX(place - first, 0), run);
    }
    return n;
}

/* doc_start is checked by the loader; where it says what cannot be, the nearest that can is taken, so that a query sees itself.
 * A window is counted in places of the row, so in a ring it reaches over the ranks. */
void attention_seen(const attention_job *j, int64_t b, int64_t query, int64_t *lo, int64_t *hi) {
    if (j->spans) {
        int64_t at = b * j->T + query;
        *lo = MIN(MAX((int64_t)j->spans[at], 0), j->T);
        *hi = MIN(MAX((int64_t)j->spans[j->B * j->T + at], *lo), j->T);
        return;
    }
    int64_t doc_start = j->doc_start[b * j->T + query], most = j->window ? j->window - 1 : INT64_MAX; /* before it */
    if (j->n_ranks == 1) {
        *lo = MAX(MIN(MAX(doc_start, 0), query), query - MIN(most, query));
        *hi = query + 1;
        return;
    }
    int64_t place = sequence_token(query, j->rank, j->n_ranks, j->T * j->n_ranks);
    *lo = keys_before(j, place - MIN(MIN(MAX(query - doc_start, 0), place), most));
    *hi = keys_before(j, place + 1);
}

int64_t attention_cut_block(const attention_job *j, int cut) {
    return (int64_t)((double)j->n_q_blocks * sqrt((double)cut / j->n_cuts) + 0.5);
}

int64_t attention_cut_keys(const attention_job *j, int cut) {
    return j->n_ranks > 1 ? j->T : MIN(attention_cut_block(j, cut + 1) * j->block_q, j->T);
}

int64_t attention_segment_blocks(const attention_job *j) { return divide_up(j->end_key - j->first_key, j->block_k); }

static size_t thread_bytes(const attention_job *j, bool backward) {
    return (size_t)round_up((int64_t)j->functions->thread_bytes(j, backward), 64);
}

static size_t sums_count(const attention_job *j, int n_threads) { /* floats of dk and dv sums */
    int64_t owners = j->n_cuts == 1 ? n_threads : j->B * j->G * j->n_cuts;
    return (size_t)(owners * 2 * j->segment * j->d_pad);
}

static size_t dq_sums_count(const attention_job *j) {
    return j->segment < j->T ? (size_t)(j->B * j->H * j->n_q_blocks * j->block_q * j->d_pad) : 0;
}

SAME_PLACE(ATTENTION_QKV, ATTENTION_BWD_QKV, ATTENTION_RING_QKV, ATTENTION_RING_BWD_QKV);
SAME_PLACE(ATTENTION_Y, ATTENTION_RING_Y);
SAME_PLACE(ATTENTION_LSE, ATTENTION_RING_LSE);
SAME_PLACE(ATTENTION_RING_KV, ATTENTION_RING_BWD_KV);
SAME_PLACE(ATTENTION_RING_DOC_START, ATTENTION_RING_BWD_DOC_START);

static size_t forward_work_bytes(const program *p, const op *o, int n_threads) {
    attention_job j = job_make(&o->attr, program_get(p, o->in[ATTENTION_QKV])->type);
    return thread_bytes(&j, false) * (size_t)n_threads;
}

static size_t backward_work_bytes(const program *p, const op *o, int n_threads) {
    attention_job j = job_make(&o->attr, program_get(p, o->in[ATTENTION_QKV])->type);
    size_t n_sums = sums_count(&j, n_threads) + dq_sums_count(&j);
    return thread_bytes(&j, true) * (size_t)n_threads + n_sums * sizeof(float);
}

/* With products of 8-bit numbers, behind the scratch of the threads: q|k|v as they were rounded. */
static size_t rounded_bytes(const op_attr *a) {
    int64_t width = (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    return a->fp8 ? (size_t)(a->batch * a->seq_len * width) * sizeof(uint16_t) : 0;
}
static size_t whole_rows_work_bytes(const program *p, const op *o, int n_threads) {
    return forward_work_bytes(p, o, n_threads) + rounded_bytes(&o->attr);
}

const cpu_work_fn cpu_work_ATTENTION = whole_rows_work_bytes;
const cpu_work_fn cpu_work_ATTENTION_RING = forward_work_bytes;
const cpu_work_fn cpu_work_ATTENTION_BWD = backward_work_bytes;
const cpu_work_fn cpu_work_ATTENTION_RING_BWD = backward_work_bytes;

typedef struct attention_run {
    const attention_job *job;
    void (*fn)(const attention_job *j, int64_t task, int thread);
} attention_run;

static void run_task(void *context, int64_t task, int thread) {
    const attention_run *r = context;
    r->fn(r->job, task, thread);
}

/* Columns of packed rows q|k|v that begin with k. */
static size_t kv_offset(const attention_job *j) { return (size_t)(j->H * j->D) * dtype_bytes(j->type); }

static void run_forward(backend_context *c, const kernel_call *k, attention_job *j) {
    j->y = k->out[ATTENTION_Y];
    j->lse = k->out[ATTENTION_LSE];
    j->scratch = k->work;
    j->thread_bytes = thread_bytes(j, false);
    attention_run r = {j, j->functions->forward};
    pool_run(c->threads, run_task, &r, j->B * j->G * j->n_q_blocks);
}

static void run_backward(backend_context *c, const kernel_call *k, attention_job *j) {
    j->scratch = k->work;
    j->thread_bytes = thread_bytes(j, true);
    j->sums = (float *)(j->scratch + (size_t)c->n_threads * j->thread_bytes);
    if (dq_sums_count(j)) j->dq_sums = j->sums + sums_count(j, c->n_threads);
    for (j->first_key = 0; j->first_key < j->T; j->first_key = j->end_key) {
        j->end_key = MIN(j->first_key + j->segment, j->T);
        attention_run r = {j, j->functions->backward};
        pool_run(c->threads, run_task, &r, j->B * j->G * j->n_cuts);
        if (j->n_cuts == 1) return;
        r.fn = j->functions->add_cuts;
        pool_run(c->threads, run_task, &r, j->B * j->G * attention_segment_blocks(j));
    }
}

/* ---- 8-bit numbers ------------------------------------------------------------------------------------------------- */

typedef struct rounding_run {
    const uint16_t *from; /* (B T, q_stride) bf16 */
    uint16_t *to;
    const attention_job *job;
    int64_t n_blocks; /* of a row */
    int slots;        /* heads of q, k and v */
} rounding_run;

/* One block of tokens of a head to e4m3 and back, which bf16 holds: what the products of a GPU read. */
static void rounding_task(void *context, int64_t task, int thread) {
    const rounding_run *r = context;
    const attention_job *j = r->job;
    int64_t slot = task % r->slots, block = task / r->slots % r->n_blocks, b = task / r->slots / r->n_blocks;
    int64_t first = block * FP8_BLOCK, n = MIN(j->T - first, (int64_t)FP8_BLOCK);
    int64_t at = (b * j->T + first) * j->q_stride + slot * j->D;
    uint16_t most = 0; /* as bits: of numbers without a sign the larger one has the larger bits */
    for (int64_t i = 0; i < n; i++)
        for (int e = 0; e < j->D; e++) most = MAX(most, (uint16_t)(r->from[at + i * j->q_stride + e] & 0x7fffu));
    fp8_scale s = fp8_attention_scale(bf16_to_f32(most));
    for (int64_t i = 0; i < n; i++)
        for (int e = 0; e < j->D; e++) {
            int64_t x = at + i * j->q_stride + e;
            r->to[x] = f32_to_bf16(e4m3_to_f32(f32_to_e4m3(bf16_to_f32(r->from[x]) * s.factor)) * s.scale);
        }
}

/* q|k|v as the products of attention are to read them. */
static const void *rounded(backend_context *c, const kernel_call *k, const attention_job *j) {
    rounding_run r = {.from = k->in[ATTENTION_QKV],
                      .to = (uint16_t *)((char *)k->work + thread_bytes(j, false) * (size_t)c->n_threads),
                      .job = j,
                      .n_blocks = divide_up(j->T, FP8_BLOCK),
                      .slots = j->H + 2 * j->G};
    pool_run(c->threads, rounding_task, &r, j->B * r.n_blocks * r.slots);
    return r.to;
}

void cpu_kernel_ATTENTION(backend_context *c, const kernel_call *k) {
    attention_job j = job_make(&k->op->attr, call_in(k, ATTENTION_QKV)->type);
    j.q = k->op->attr.fp8 ? rounded(c, k, &j) : k->in[ATTENTION_QKV];
    j.kv = (const char *)j.q + kv_offset(&j);
    j.doc_start = k->in[ATTENTION_DOC_START];
    run_forward(c, k, &j);
}

/* dqkv = (written in full) */
void cpu_kernel_ATTENTION_BWD(backend_context *c, const kernel_call *k) {
    attention_job j = job_make(&k->op->attr, call_in(k, ATTENTION_BWD_QKV)->type);
    j.q = k->in[ATTENTION_BWD_QKV];
    j.kv = (const char *)k->in[ATTENTION_BWD_QKV] + kv_offset(&j);
    j.doc_start = k->in[ATTENTION_BWD_DOC_START];
    j.y = k->in[ATTENTION_BWD_Y];
    j.lse = k->in[ATTENTION_BWD_LSE];
    j.dy = k->in[ATTENTION_BWD_DY];
    j.dq = k->out[ATTENTION_BWD_DQKV];
    j.dkv = (char *)k->out[ATTENTION_BWD_DQKV] + kv_offset(&j);
    j.dq_stride = j.dkv_stride = j.q_stride;
    run_backward(c, k, &j);
}

/* ---- a ring: keys and values of one rank at a time --------------------------------------------------------------- */

static attention_job ring_job(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    attention_job j = job_make(a, call_in(k, ATTENTION_RING_QKV)->type);
    j.q = k->in[ATTENTION_RING_QKV];
    j.kv = k->in[ATTENTION_RING_KV];
    j.kv_stride = 2 * (int64_t)j.G * j.D;
    j.doc_start = k->in[ATTENTION_RING_DOC_START];
    if (a->spans) j.spans = j.doc_start;
    j.n_ranks = a->group_size;
    j.rank = a->index;
    j.key_rank = a->peer;
    return j;
}

void cpu_kernel_ATTENTION_RING(backend_context *c, const kernel_call *k) {
    attention_job j = ring_job(k);
    j.before = k->in[ATTENTION_RING_BEFORE];
    j.lse_before = k->in[ATTENTION_RING_LSE_BEFORE];
    j.y_type = call_out(k, ATTENTION_RING_Y)->type;
    run_forward(c, k, &j);
}

/* dq, dkv = for its own keys, which come first, += for those of others */
void cpu_kernel_ATTENTION_RING_BWD(backend_context *c, const kernel_call *k) {
    attention_job j = ring_job(k);
    j.y = k->in[ATTENTION_RING_BWD_Y];
    j.lse = k->in[ATTENTION_RING_BWD_LSE];
    j.dy = k->in[ATTENTION_RING_BWD_DY];
    j.dq = k->out[ATTENTION_RING_BWD_DQ];
    j.dkv = k->out[ATTENTION_RING_BWD_DKV];
    j.dq_stride = (int64_t)j.H * j.D;
    j.dkv_stride = j.kv_stride;
    j.grad_type = DTYPE_F32;
    j.adds = j.key_rank != j.rank;
    run_backward(c, k, &j);
}
