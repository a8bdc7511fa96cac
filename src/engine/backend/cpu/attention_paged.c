/* attention_paged.c - keys and values into pages, and attention of single tokens through a page table.
 *
 * A token's result is a function of its own q and of the keys and values at positions 0 .. its own, or those of its window:
 * blocks are BLOCK_K positions counted from 0 whatever the size of a page, and a query sees exactly its part of each.
 * So neither the other tokens of the step nor the pages show in the bits, and a prompt gives the same bits in one piece,
 * in chunks and token by token.
 *
 * A task is one kv head and a run: up to RUN_MOST neighbours of one slot, for which a block of keys and values is fetched
 * (widened to fp32) once. A decode step has one token per slot, so there a run is one token and the heads of its group.
 * Scratch: per thread one block of k and v and the run's q and sums; never a row of scores longer than a block.
 * Refuses, by assertion, a slot, position or page outside its table. */
#include "backend/cpu/typed.h"

#include "backend/cpu/cpu.h"
#include <math.h>

enum { BLOCK_K = 64, RUN_MOST = 16, PAD = 16, KEYS_AT_ONCE = 4, STORE_TOKENS = 16 };

typedef struct run {
    int32_t first, n; /* tokens of the step, one slot */
} run;

typedef struct paged_job {
    dtype type;
    int64_t N, H, G, D, d_pad, page_size, pages_per_slot, n_pages, n_slots;
    float scale, softcap;
    int64_t window; /* positions that a token sees at most, its own the last */
    const void *qkv;
    void *cache; /* (pages, 2 G, S, D) */
    const int32_t *slots, *table, *doc_start;
    void *y;
    const run *runs;
    char *scratch;
    size_t thread_bytes;
} paged_job;

/* The places of what both ops read. */
typedef struct paged_inputs {
    int qkv, slots, table, doc_start;
} paged_inputs;

static paged_job job_make(const kernel_call *k, void *cache, const value *v, paged_inputs at) {
    const op_attr *a = &k->op->attr;
    const value *qkv = call_in(k, at.qkv), *table = call_in(k, at.table);
    paged_job j = {.type = qkv->type,
                   .N = cpu_rows(k, qkv->shape.dim[0]),
                   .H = a->n_heads,
                   .G = a->n_kv_heads,
                   .D = a->head_dim,
                   .d_pad = round_up(a->head_dim, PAD),
                   .scale = a->scale,
                   .softcap = a->softcap,
                   .window = a->window ? a->window : INT64_MAX,
                   .qkv = k->in[at.qkv],
                   .cache = cache,
                   .slots = k->in[at.slots],
                   .table = k->in[at.table],
                   .doc_start = k->in[at.doc_start],
                   .n_pages = v->shape.dim[0],
                   .page_size = v->shape.dim[2],
                   .n_slots = table->shape.dim[0],
                   .pages_per_slot = table->shape.dim[1]};
    return j;
}

/* Element 0 of head `head` (k heads, then v heads) at a position of a slot. */
static int64_t cache_at(const paged_job *j, int64_t slot, int64_t position, int64_t head) {
    int64_t page = j->table[slot * j->pages_per_slot + position / j->page_size];
    ASSERT(page >= 0 && page < j->n_pages);
    return ((page * 2 * j->G + head) * j->page_size + position % j->page_size) * j->D;
}

static int64_t position_of(const paged_job *j, int64_t token) {
    int64_t position = -(int64_t)j->doc_start[token];
    ASSERT(position >= 0 && position < j->pages_per_slot * j->page_size && j->slots[token] < j->n_slots);
    return position;
}

/* ---- store ------------------------------------------------------------------------------------------------------ */

static void store_task(void *context, int64_t task, int thread) {
    const paged_job *j = context;
    int64_t end = MIN((task + 1) * STORE_TOKENS, j->N), width = (j->H + 2 * j->G) * j->D;
    for (int64_t token = task * STORE_TOKENS; token < end; token++) {
        if (j->slots[token] < 0) continue;
        int64_t position = position_of(j, token);
        for (int64_t head = 0; head < 2 * j->G; head++)
            memcpy(element_at(j->cache, j->type, cache_at(j, j->slots[token], position, head)),
                   element_at(j->qkv, j->type, token * width + (j->H + head) * j->D),
                   (size_t)j->D * dtype_bytes(j->type));
    }
}

void cpu_kernel_KV_STORE(backend_context *c, const kernel_call *k) {
    paged_inputs at = {
        .qkv = KV_STORE_QKV, .slots = KV_STORE_SLOTS, .table = KV_STORE_TABLE, .doc_start = KV_STORE_DOC_START};
    paged_job j = job_make(k, k->out[KV_STORE_CACHE], call_out(k, KV_STORE_CACHE), at);
    pool_run(c->threads, store_task, &j, divide_up(j.N, STORE_TOKENS));
}

/* ---- attend ----------------------------------------------------------------------------------------------------- */

/* scores[0 .. n) = q . k for n keys, under their cap; -inf up to the next whole vector. */
static void scores_of(float *scores, const float *q, const float *keys, int64_t n, int64_t d_pad, float softcap) {
    for (int64_t key = 0; key < n; key += KEYS_AT_ONCE) { /* past n: old scratch, overwritten below */
        vec sum[KEYS_AT_ONCE];
        for (int i = 0; i < KEYS_AT_ONCE; i++) sum[i] = vec_set(0);
        for (int64_t d = 0; d < d_pad; d += VEC_WIDTH) {
            vec a = vec_load(q + d);
            for (int i = 0; i < KEYS_AT_ONCE; i++) sum[i] = vec_fma(a, vec_load(keys + (key + i) * d_pad + d), sum[i]);
        }
        for (int i = 0; i < KEYS_AT_ONCE; i++) scores[key + i] = vec_sum(sum[i]);
    }
    for (int64_t i = 0; i < n && softcap > 0; i += VEC_WIDTH)
        vec_store(scores + i, softcap * vec_tanh(vec_load(scores + i) / softcap));
    for (int64_t key = n; key < round_up(n, VEC_WIDTH); key++) scores[key] = -INFINITY;
}

/* columns of out = out * decay + p values, in the order of the keys. */
VEC_INLINE void weigh(const int vectors, float *out, float decay, const float *p, const float *values, int64_t n,
                      int64_t d_pad) {
    vec sum[8];
    for (int i = 0; i < vectors; i++) sum[i] = vec_load(out + i * VEC_WIDTH) * decay;
    for (int64_t key = 0; key < n; key++, values += d_pad) {
        vec weight = vec_set(p[key]);
        for (int i = 0; i < vectors; i++) sum[i] = vec_fma(weight, vec_load(values + i * VEC_WIDTH), sum[i]);
    }
    for (int i = 0; i < vectors; i++) vec_store(out + i * VEC_WIDTH, sum[i]);
}

typedef struct softmax_state {
    float max, sum;
} softmax_state;

/* One query and n keys: running maximum, running sum, running weighted sum of values. */
static void attend_block(float *out, softmax_state *s, const float *q, const float *keys, const float *values,
                         int64_t n, int64_t d_pad, float softcap) {
    float p[BLOCK_K + VEC_WIDTH];
    scores_of(p, q, keys, n, d_pad, softcap);
    vec top = vec_set(s->max), sum = vec_set(0);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) top = vec_max(vec_load(p + i), top);
    float max = vec_max_lane(top), decay = vec_exp_down(vec_set(s->max - max))[0];
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        vec e = vec_exp_down(vec_load(p + i) - max);
        vec_store(p + i, e);
        sum = sum + e;
    }
    s->sum = s->sum * decay + vec_sum(sum);
    s->max = max;
    int64_t d = 0;
    for (; d + 8 * VEC_WIDTH <= d_pad; d += 8 * VEC_WIDTH) weigh(8, out + d, decay, p, values + d, n, d_pad);
    for (; d + 2 * VEC_WIDTH <= d_pad; d += 2 * VEC_WIDTH) weigh(2, out + d, decay, p, values + d, n, d_pad);
}

/* Positions [first, first + n) of a head, widened; columns up to d_pad are 0. Rows of one page lie behind each other. */
static void fetch(const paged_job *j, float *out, int64_t slot, int64_t first, int64_t n, int64_t head) {
    for (int64_t i = 0; i < n;) {
        int64_t rows = MIN(n - i, j->page_size - (first + i) % j->page_size);
        const char *from = element_at(j->cache, j->type, cache_at(j, slot, first + i, head));
        if (j->d_pad == j->D) {
            typed_row_load(out + i * j->d_pad, from, j->type, (size_t)(rows * j->D));
        } else {
            for (int64_t r = 0; r < rows; r++) {
                float *row = out + (i + r) * j->d_pad;
                typed_row_load(row, element_at(from, j->type, r * j->D), j->type, (size_t)j->D);
                memset(row + j->D, 0, (size_t)(j->d_pad - j->D) * sizeof *row);
            }
        }
        i += rows;
    }
}

static int64_t first_seen(const paged_job *j, int64_t position) { return position + 1 - MIN(j->window, position + 1); }

static int64_t group_of(const paged_job *j) { return j->H / j->G; }

static size_t thread_bytes(const paged_job *j) { /* k and v of a block; q and sums of a run, and their softmax */
    int64_t rows = RUN_MOST * group_of(j);
    int64_t n = 2 * (BLOCK_K + KEYS_AT_ONCE) * j->d_pad + 2 * rows * j->d_pad + 2 * rows;
    return (size_t)round_up(n * (int64_t)sizeof(float), 64);
}

static void attend_task(void *context, int64_t task, int thread) {
    const paged_job *j = context;
    run r = j->runs[task / j->G];
    int64_t g = task % j->G, group = group_of(j), rows = r.n * group, width = (j->H + 2 * j->G) * j->D;
    int64_t slot = j->slots[r.first], last = 0, first = INT64_MAX; /* positions that any of them sees */
    float *keys = (float *)(j->scratch + j->thread_bytes * (size_t)thread);
    float *values = keys + (BLOCK_K + KEYS_AT_ONCE) * j->d_pad, *q = values + (BLOCK_K + KEYS_AT_ONCE) * j->d_pad;
    float *out = q + RUN_MOST * group * j->d_pad;
    softmax_state *state = (softmax_state *)(out + RUN_MOST * group * j->d_pad);
    memset(q, 0, (size_t)(rows * j->d_pad) * sizeof *q);
    memset(out, 0, (size_t)(rows * j->d_pad) * sizeof *out);
    for (int64_t row = 0; row < rows; row++) {
        int64_t token = r.first + row / group, head = g * group + row % group;
        float *a = q + row * j->d_pad;
        typed_row_load(a, element_at(j->qkv, j->type, token * width + head * j->D), j->type, (size_t)j->D);
        for (int64_t d = 0; d < j->d_pad; d += VEC_WIDTH) vec_store(a + d, vec_load(a + d) * j->scale);
        state[row] = (softmax_state){-INFINITY, 0};
        last = MAX(last, position_of(j, token));
        first = MIN(first, first_seen(j, position_of(j, token)));
    }
    for (int64_t k0 = first / BLOCK_K * BLOCK_K; k0 <= last; k0 += BLOCK_K) {
        int64_t n = MIN((int64_t)BLOCK_K, last + 1 - k0);
        fetch(j, keys, slot, k0, n, g);
        fetch(j, values, slot, k0, n, j->G + g);
        for (int64_t row = 0; row < rows; row++) {
            int64_t position = position_of(j, r.first + row / group), end = MIN(n, position + 1 - k0);
            int64_t begin = MAX(first_seen(j, position) - k0, 0);
            if (begin < end)
                attend_block(out + row * j->d_pad, &state[row], q + row * j->d_pad, keys + begin * j->d_pad,
                             values + begin * j->d_pad, end - begin, j->d_pad, j->softcap);
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t token = r.first + row / group, head = g * group + row % group;
        float *a = out + row * j->d_pad;
        for (int64_t d = 0; d < j->d_pad; d += VEC_WIDTH) vec_store(a + d, vec_load(a + d) / state[row].sum);
        typed_row_store(element_at(j->y, j->type, (token * j->H + head) * j->D), a, j->type, (size_t)j->D);
    }
}

/* Neighbours of one slot, cut at RUN_MOST; tokens of no slot get zeros here and are in no run. */
static int64_t find_runs(const paged_job *j, run *runs) {
    int64_t n = 0;
    for (int64_t i = 0; i < j->N; i++) {
        if (j->slots[i] < 0) {
            memset(element_at(j->y, j->type, i * j->H * j->D), 0, (size_t)(j->H * j->D) * dtype_bytes(j->type));
            continue;
        }
        run *open = n ? &runs[n - 1] : NULL;
        if (open && open->first + open->n == i && open->n < RUN_MOST && j->slots[open->first] == j->slots[i]) open->n++;
        else runs[n++] = (run){(int32_t)i, 1};
    }
    return n;
}

static size_t runs_bytes(int64_t n) { return (size_t)round_up(n * (int64_t)sizeof(run), 64); }

static size_t paged_work_bytes(const program *p, const op *o, int n_threads) {
    paged_job j = {.H = o->attr.n_heads, .G = o->attr.n_kv_heads, .d_pad = round_up(o->attr.head_dim, PAD)};
    return runs_bytes(program_get(p, o->in[ATTENTION_PAGED_QKV])->shape.dim[0]) + thread_bytes(&j) * (size_t)n_threads;
}

const cpu_work_fn cpu_work_ATTENTION_PAGED = paged_work_bytes;

void cpu_kernel_ATTENTION_PAGED(backend_context *c, const kernel_call *k) {
    paged_inputs at = {.qkv = ATTENTION_PAGED_QKV,
                       .slots = ATTENTION_PAGED_SLOTS,
                       .table = ATTENTION_PAGED_TABLE,
                       .doc_start = ATTENTION_PAGED_DOC_START};
    paged_job j = job_make(k, k->in[ATTENTION_PAGED_CACHE], call_in(k, ATTENTION_PAGED_CACHE), at);
    j.y = k->out[ATTENTION_PAGED_Y];
    j.runs = k->work;
    j.scratch = (char *)k->work + runs_bytes(call_in(k, ATTENTION_PAGED_QKV)->shape.dim[0]);
    j.thread_bytes = thread_bytes(&j);
    pool_run(c->threads, attend_task, &j, find_runs(&j, k->work) * j.G);
}
