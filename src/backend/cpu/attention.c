/* attention.c - causal attention inside documents: how the work is cut, where its scratch lies, and which instruction
 * set runs it. The arithmetic is in attention_blocks.inc.
 *
 * A forward task is one block of queries of all heads that share a kv head. A backward task is one (sequence, kv head),
 * because dk and dv are sums over all its queries; where those pairs are few, the queries are cut into pieces fixed by
 * the shape, each with its own sums, added in order afterwards. So the bits never depend on the number of threads.
 * Scratch: a few blocks per thread, and backward 8 T D bytes per thread (or per piece) for the sums; never (T, T). Where the
 * sums of all pieces would be large, the pairs take turns, as many at once as give every thread two pieces: no sum goes over
 * two pairs, so no bit depends on it.
 * Refuses nothing at run time: head_dim up to 256 and heads that divide are proved when the program is verified. */
#include "backend/cpu/attention.h"
#include <math.h>

enum {
    TASKS_WANTED = 32, /* cut a sequence when there are fewer (sequence, kv head) pairs than this */
    CUT_QUERIES = 256, /* ... but never into pieces smaller than this, whose sums would cost as much as they save */
};

/* Sums of dk and dv beyond this are not held for all pieces at once: 32 pieces of 4096 tokens and 64 columns. */
#define SUMS_BYTES (64ll << 20)

static const attention_functions *forced;
static int64_t sums_most = SUMS_BYTES;

static bool functions_supported(const attention_functions *f) {
#if defined(__x86_64__)
    if (f == &attention_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (f == &attention_avx512)
        return functions_supported(&attention_avx2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#endif
    return f == &attention_base;
}

static const attention_functions *const FUNCTIONS[] = {
/* widest first */
#if defined(__x86_64__)
    &attention_avx512,
    &attention_avx2,
#endif
    &attention_base,
};

static const attention_functions *functions_get(void) {
    if (forced) return forced;
    size_t i = 0;
    while (!functions_supported(FUNCTIONS[i])) i++;
    return FUNCTIONS[i];
}

bool attention_force_functions(const char *name) {
    forced = NULL;
    for (size_t i = 0; name && i < ARRAY_LENGTH(FUNCTIONS); i++)
        if (!strcmp(name, FUNCTIONS[i]->name) && functions_supported(FUNCTIONS[i])) forced = FUNCTIONS[i];
    return !name || forced;
}

void attention_limit_sums(int64_t n_bytes) { sums_most = n_bytes ? n_bytes : SUMS_BYTES; }

const char *attention_functions_list(int i) {
    return i >= 0 && (size_t)i < ARRAY_LENGTH(FUNCTIONS) ? FUNCTIONS[i]->name : NULL;
}

const char *attention_functions_name(void) { return functions_get()->name; }

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

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
        .type = type,
        .d_pad = round_up(a->head_dim, ATTENTION_PAD),
        .t_pad = round_up(a->seq_len, ATTENTION_BLOCK_K),
    };
    /* A key block is transposed once for block_q queries of each head of the group: one head alone takes more. */
    j.block_q = j.group == 1 && j.T > 64 ? 128 : 64;
    j.n_q_blocks = (j.T + j.block_q - 1) / j.block_q;
    int64_t pairs = j.B * j.G, wanted = (TASKS_WANTED + pairs - 1) / pairs, most = MAX(j.T / CUT_QUERIES, 1);
    j.n_cuts = (int)MIN(wanted, most);
    return j;
}

int64_t attention_cut_block(const attention_job *j, int cut) {
    return (int64_t)((double)j->n_q_blocks * sqrt((double)cut / j->n_cuts) + 0.5);
}

static size_t thread_bytes(const attention_job *j, bool backward) {
    int64_t rows = (int64_t)j->group * j->block_q, key_block = ATTENTION_BLOCK_K * j->d_pad;
    int64_t scores = (int64_t)j->block_q * ATTENTION_BLOCK_K, n;
    if (backward) /* q dy dq, k v k^T v^T, p ds, lse delta, a row of y */
        n = 3 * rows * j->d_pad + 4 * key_block + 2 * scores + 2 * rows + j->d_pad;
    else /* q o, k k^T v, p, maxima and sums */ n = 2 * rows * j->d_pad + 3 * key_block + scores + 2 * rows;
    return (size_t)round_up(n * (int64_t)sizeof(float), 64);
}

/* (sequence, kv head) whose pieces are summed at once. */
static int64_t pairs_at_once(const attention_job *j, int n_threads) {
    int64_t all = j->B * j->G, pair_bytes = j->n_cuts * 2 * j->t_pad * j->d_pad * (int64_t)sizeof(float);
    if (j->n_cuts == 1) return all;
    return MIN(all, MAX(sums_most / pair_bytes, (2 * n_threads + j->n_cuts - 1) / j->n_cuts));
}

static size_t sums_count(const attention_job *j, int n_threads) { /* floats of dk and dv sums */
    int64_t owners = j->n_cuts == 1 ? n_threads : pairs_at_once(j, n_threads) * j->n_cuts;
    return (size_t)(owners * 2 * j->t_pad * j->d_pad);
}

size_t cpu_attention_work_bytes(const program *p, const op *o, int n_threads) {
    attention_job j = job_make(&o->attr, program_get(p, o->in[0])->type);
    if (o->kind == OP_ATTENTION) return thread_bytes(&j, false) * (size_t)n_threads;
    return thread_bytes(&j, true) * (size_t)n_threads + sums_count(&j, n_threads) * sizeof(float);
}

typedef struct attention_run {
    const attention_job *job;
    void (*fn)(const attention_job *j, int64_t task, int thread);
} attention_run;

static void run_task(void *context, int64_t task, int thread) {
    const attention_run *r = context;
    r->fn(r->job, task, thread);
}

void cpu_kernel_ATTENTION(backend_context *c, const kernel_call *k) {
    attention_job j = job_make(&k->op->attr, call_in(k, 0)->type);
    j.qkv = k->in[0];
    j.doc = k->in[1];
    j.y = k->out[0];
    j.lse = k->out[1];
    j.scratch = k->work;
    j.thread_bytes = thread_bytes(&j, false);
    attention_run r = {&j, functions_get()->forward};
    pool_run(c->threads, run_task, &r, j.B * j.G * j.n_q_blocks);
}

/* dqkv = (written in full) */
void cpu_kernel_ATTENTION_BWD(backend_context *c, const kernel_call *k) {
    attention_job j = job_make(&k->op->attr, call_in(k, 0)->type);
    j.qkv = k->in[0];
    j.doc = k->in[1];
    j.y = k->in[2];
    j.lse = k->in[3];
    j.dy = k->in[4];
    j.dqkv = k->out[0];
    j.scratch = k->work;
    j.thread_bytes = thread_bytes(&j, true);
    j.sums = (float *)(j.scratch + (size_t)c->n_threads * j.thread_bytes);
    const attention_functions *f = functions_get();
    int64_t all = j.B * j.G, at_once = pairs_at_once(&j, c->n_threads);
    for (j.first_pair = 0; j.first_pair < all; j.first_pair += at_once) {
        j.n_pairs = MIN(at_once, all - j.first_pair);
        pool_run(c->threads, run_task, &(attention_run){&j, f->backward}, j.n_pairs * j.n_cuts);
        if (j.n_cuts == 1) continue;
        int64_t n_blocks = (j.T + ATTENTION_BLOCK_K - 1) / ATTENTION_BLOCK_K;
        pool_run(c->threads, run_task, &(attention_run){&j, f->add_cuts}, j.n_pairs * n_blocks);
    }
}
