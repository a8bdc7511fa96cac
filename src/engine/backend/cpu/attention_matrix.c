/* attention_matrix.c - attention in bf16 by the instructions that multiply matrices, through the kernels of the products
 * (gemm_kernels.h).
 *
 * Every block is computed transposed. Scores of a block are (keys, queries): maxima and sums of neighbouring queries run down
 * the rows side by side, in lanes, and no lane is ever added to another. Outputs and gradients are (head_dim, queries) and
 * (head_dim, keys): head_dim lies along the short side of a kernel's tile, the long side divides a block of BLOCK, so
 * that few columns are computed for nothing. Blocks are turned back when they are stored.
 *
 * Probabilities and the gradients of scores are rounded to bf16 between two products, as on a GPU: the instructions read
 * nothing else. Sums, maxima and outputs are fp32 until they are stored.
 *
 * As on vectors, masked scores are 0 after the exponential, and a v that is not finite reaches the queries of its block. */
#if defined(__aarch64__) || defined(__x86_64__)
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,prefer-vector-width=512")
#endif
#include "backend/cpu/attention_rows.inc"
#include "backend/cpu/gemm_kernels.h"
#include <math.h>

enum {
    BLOCK = GEMM_UNIT, /* keys and queries: whole tiles of every kernel */
    LANES = 16,        /* queries whose scores are in registers together */
    VECTORS = LANES / VEC_WIDTH,
};

/* ---- packed operands ------------------------------------------------------------------------------------------------ */

typedef struct packing {
    const gemm_kernel *kernel;
    int64_t dims;            /* head_dim, in whole rows of a tile */
    int64_t depth;           /* ... in whole steps of k */
    int64_t unit;            /* keys: whole rows of a tile and whole steps of k */
    size_t a_depth, b_depth; /* bytes of a panel of `depth` steps: rows of A, columns of B */
    size_t a_block, b_block; /* ... of BLOCK steps */
} packing;

static packing packing_make(int64_t D) {
    const gemm_kernel *m = gemm_kernel_by_row(DTYPE_BF16);
    packing p = {.kernel = m, .dims = round_up(D, m->mr), .depth = round_up(D, m->kr), .unit = m->mr};
    while (p.unit % m->kr) p.unit += m->mr;
    ASSERT(p.depth <= m->kc && BLOCK <= m->kc && BLOCK % p.unit == 0);
    p.a_depth = (size_t)(m->mr * p.depth * m->element_bytes);
    p.b_depth = (size_t)(m->nr * p.depth * m->element_bytes);
    p.a_block = (size_t)(m->mr * BLOCK * m->element_bytes);
    p.b_block = (size_t)(m->nr * BLOCK * m->element_bytes);
    return p;
}

typedef struct slice { /* of a bf16 tensor: element (row, step) at data[row * row_stride + step * step_stride] */
    const uint16_t *data;
    int64_t row_stride, step_stride;
    int64_t rows, steps;
} slice;

static void pack_rows(char *to, const slice *s, int panel_rows, size_t panel_bytes,
                      void (*pack)(void *panel, const gemm_slice *s)) {
    for (int64_t r = 0; r < s->rows; r += panel_rows, to += panel_bytes)
        pack(to, &(gemm_slice){.data = s->data + r * s->row_stride,
                               .type = DTYPE_BF16,
                               .row_stride = s->row_stride,
                               .k_stride = s->step_stride,
                               .rows = MIN((int64_t)panel_rows, s->rows - r),
                               .k = s->steps});
}
static void pack_a(const packing *p, char *to, slice s, size_t panel_bytes) {
    pack_rows(to, &s, p->kernel->mr, panel_bytes, p->kernel->pack_a);
}
static void pack_b(const packing *p, char *to, slice s, size_t panel_bytes) {
    pack_rows(to, &s, p->kernel->nr, panel_bytes, p->kernel->pack_b);
}

/* Rows of one head: queries, keys, values or gradients, as operands whose steps are head_dim or the rows themselves. */
static slice along_head(const void *tensor, int64_t at, int64_t stride, int64_t rows, int64_t D) {
    return (slice){(const uint16_t *)tensor + at, stride, 1, rows, D};
}
static slice along_rows(const void *tensor, int64_t at, int64_t stride, int64_t rows, int64_t D) {
    return (slice){(const uint16_t *)tensor + at, 1, stride, D, rows};
}

/* ---- which part of a block is seen ------------------------------------------------------------------------------- */

/* Queries [first, first + n) of the window: keys of its block that any of them sees; false: none. */
static bool keys_seen(const window *w, int64_t first, int64_t n, int64_t *from, int64_t *to) {
    *from = BLOCK;
    *to = 0;
    for (int64_t r = first; r < MIN(first + n, w->n_q); r++) {
        int64_t lo, hi;
        window_row(w, r, &lo, &hi);
        if (hi <= lo) continue;
        *from = MIN(*from, lo);
        *to = MAX(*to, hi);
    }
    return *to > *from;
}

/* Queries among [q0, end) of the window that see any of the block's keys [first, first + n); false: none. */
static bool queries_seeing(const window *w, int64_t q0, int64_t end, int64_t first, int64_t n, int64_t *from,
                           int64_t *to) {
    *from = end;
    *to = q0;
    for (int64_t r = q0; r < end; r++) {
        int64_t lo, hi;
        window_row(w, r, &lo, &hi);
        if (MIN(hi, first + n) <= MAX(lo, first)) continue;
        *from = MIN(*from, r);
        *to = r + 1;
    }
    return *to > *from;
}

typedef struct lanes { /* LANES queries of a window and a block of keys */
    int64_t from, to;  /* keys that any of them sees */
    bool whole;        /* all of them see all of these */
    int32_t lo[LANES], hi[LANES];
} lanes;

static bool lanes_open(lanes *l, const window *w, int64_t first) {
    bool any = keys_seen(w, first, LANES, &l->from, &l->to);
    l->whole = true;
    for (int64_t i = 0; i < LANES; i++) {
        int64_t lo = 0, hi = 0;
        if (first + i < w->n_q) window_row(w, first + i, &lo, &hi);
        l->lo[i] = (int32_t)lo;
        l->hi[i] = (int32_t)hi;
        l->whole = l->whole && lo <= l->from && hi >= l->to;
    }
    return any;
}

VEC_INLINE vec_i32 lanes_see(const lanes *l, int u, int32_t key) {
    vec_i32 lo, hi;
    memcpy(&lo, l->lo + u * VEC_WIDTH, sizeof lo);
    memcpy(&hi, l->hi + u * VEC_WIDTH, sizeof hi);
    return (lo <= key) & (hi > key);
}

/* Rows of LANES numbers that nobody sees, before and behind those that are seen. */
static void zero_unseen(uint16_t *p, const lanes *l, int64_t n_k) {
    for (int64_t key = 0; key < n_k; key++)
        if (key < l->from || key >= l->to) memset(p + key * BLOCK, 0, LANES * sizeof *p);
}

/* Rounded to nearest even; in a CPU_BF16_FUNCTION. */
VEC_INLINE void store_bf16(uint16_t *to, const vec x[VECTORS]) {
#if defined(__x86_64__)
    for (int u = 0; u < VECTORS; u++)
        _mm256_storeu_si256((__m256i *)(to + u * VEC_WIDTH), (__m256i)_mm512_cvtneps_pbh((__m512)x[u]));
#else
    for (int u = 0; u < VECTORS; u += 2) {
        uint16x8_t pair;
        __asm__(CPU_BF16_DIRECTIVE "bfcvtn %0.4h, %1.4s\n"
                                   "bfcvtn2 %0.8h, %2.4s\n"
                : "=&w"(pair)
                : "w"(x[u]), "w"(x[u + 1]));
        vst1q_u16(to + u * VEC_WIDTH, pair);
    }
#endif
}

/* ---- products of a block -------------------------------------------------------------------------------------------- */

/* s (keys, queries) = keys times queries, where any of a tile's queries sees any of its keys. first: of the window. */
static void scores(const packing *p, const window *w, int64_t first, int64_t n_q, float *s, const char *keys,
                   const char *queries) {
    const gemm_kernel *m = p->kernel;
    for (int64_t c = 0; c < n_q; c += m->nr, queries += p->b_depth) {
        int64_t from, to;
        if (!keys_seen(w, first + c, m->nr, &from, &to)) continue;
        for (int64_t r = from / m->mr * m->mr; r < to; r += m->mr)
            m->multiply(p->depth, keys + (size_t)(r / m->mr) * p->a_depth, queries, s + r * BLOCK + c, BLOCK, true);
    }
}

/* out (head_dim, queries) += values times weights: those have keys as their steps, these are (keys, queries). */
static void add_over_keys(const packing *p, const window *w, int64_t first, int64_t n_q, float *out, const char *values,
                          const uint16_t *weights, char *panel) {
    const gemm_kernel *m = p->kernel;
    for (int64_t c = 0; c < n_q; c += m->nr) {
        int64_t from, to;
        if (!keys_seen(w, first + c, m->nr, &from, &to)) continue;
        from = from / p->unit * p->unit;
        pack_b(p, panel, (slice){weights + from * BLOCK + c, 1, BLOCK, m->nr, to - from}, p->b_block);
        const char *a = values + from * m->mr * m->element_bytes;
        for (int64_t r = 0; r < p->dims; r += m->mr, a += p->a_block)
            m->multiply(round_up(to - from, m->kr), a, panel, out + r * BLOCK + c, BLOCK, false);
    }
}

/* out (head_dim, keys) += values times weights: those have queries as their steps, these are (keys, queries). */
static void add_over_queries(const packing *p, const window *w, int64_t first, int64_t n_q, float *out,
                             const char *values, const uint16_t *weights, char *panel) {
    const gemm_kernel *m = p->kernel;
    for (int64_t c = 0; c < w->n_k; c += m->nr) {
        int64_t from, to;
        if (!queries_seeing(w, first, first + n_q, c, m->nr, &from, &to)) continue;
        from = (from - first) / m->kr * m->kr;
        to -= first;
        pack_b(p, panel, (slice){weights + c * BLOCK + from, BLOCK, 1, MIN((int64_t)m->nr, w->n_k - c), to - from},
               p->b_block);
        const char *a = values + from * m->mr * m->element_bytes;
        for (int64_t r = 0; r < p->dims; r += m->mr, a += p->a_block)
            m->multiply(round_up(to - from, m->kr), a, panel, out + r * BLOCK + c, BLOCK, false);
    }
}

/* ---- scratch -------------------------------------------------------------------------------------------------------- */

typedef struct layout { /* of one thread's scratch: where each part begins, in bytes */
    packing p;
    size_t k, v;              /* rows of A are keys; forward, of v, head_dim with keys as steps */
    size_t k_steps;           /* backward: head_dim with keys as steps */
    size_t panel;             /* of B */
    size_t s, dp;             /* (keys, queries), fp32 */
    size_t w, ds;             /* the same in bf16: probabilities, and the gradient of scores */
    size_t rows;              /* ROWS of head_dim on their way between tensors and blocks */
    size_t parts, part_bytes; /* of every part what follows, which counts from its own begin */
    size_t q, dy;             /* columns of B are queries */
    size_t q_steps, dy_steps; /* backward: rows of A are head_dim, with queries as steps */
    size_t out;               /* (dims, queries), fp32: the output, or dq */
    size_t max, sum, factor;  /* forward, of each query */
    size_t lse, delta;        /* backward */
    size_t n_bytes;
} layout;

enum { ROWS = 4 };

static size_t take(size_t *at, size_t n_bytes) {
    size_t part = *at;
    *at += (size_t)round_up((int64_t)n_bytes, 64);
    return part;
}

static layout layout_make(const attention_job *j, bool backward) {
    layout l = {.p = packing_make(j->D)};
    const gemm_kernel *m = l.p.kernel;
    size_t a_depth = l.p.a_depth * (size_t)(BLOCK / m->mr), b_depth = l.p.b_depth * (size_t)(BLOCK / m->nr);
    size_t a_block = l.p.a_block * (size_t)(l.p.dims / m->mr), floats = BLOCK * sizeof(float);
    l.k = take(&l.n_bytes, a_depth);
    l.v = take(&l.n_bytes, backward ? a_depth : a_block);
    if (backward) l.k_steps = take(&l.n_bytes, a_block);
    l.panel = take(&l.n_bytes, l.p.b_block);
    l.s = take(&l.n_bytes, BLOCK * floats);
    l.w = take(&l.n_bytes, BLOCK * floats / 2);
    if (backward) l.dp = take(&l.n_bytes, BLOCK * floats);
    if (backward) l.ds = take(&l.n_bytes, BLOCK * floats / 2);
    l.rows = take(&l.n_bytes, ROWS * (size_t)j->d_pad * sizeof(float));

    l.q = take(&l.part_bytes, b_depth);
    l.out = take(&l.part_bytes, (size_t)l.p.dims * floats);
    if (backward) {
        l.dy = take(&l.part_bytes, b_depth);
        l.q_steps = take(&l.part_bytes, a_block);
        l.dy_steps = take(&l.part_bytes, a_block);
        l.lse = take(&l.part_bytes, floats);
        l.delta = take(&l.part_bytes, floats);
    } else {
        l.max = take(&l.part_bytes, floats);
        l.sum = take(&l.part_bytes, floats);
        l.factor = take(&l.part_bytes, floats);
    }
    l.parts = take(&l.n_bytes, l.part_bytes * (size_t)(j->group * j->block_q / BLOCK));
    return l;
}

static void blocks_shape(attention_job *j) {
    ASSERT(j->scale > 0); /* maxima are taken before it */
    j->d_pad = round_up(packing_make(j->D).dims, ATTENTION_PAD);
    j->block_k = BLOCK;
    /* Keys are packed once for block_q queries of each head of the group: one head alone takes more. */
    j->block_q = j->group == 1 && j->T > BLOCK ? 2 * BLOCK : BLOCK;
}

static size_t scratch_bytes(const attention_job *j, bool backward) { return layout_make(j, backward).n_bytes; }

/* Where a key stands in its tensor; g: of v, behind the kv heads of k. */
static int64_t at_key(const attention_job *j, int64_t b, int64_t key, int64_t g) {
    return (b * j->T + key) * j->kv_stride + g * j->D;
}

typedef struct part { /* BLOCK queries of one head, or as many as there are */
    int64_t b, head;
    int64_t first, query, n_q; /* in the window, in the row, how many */
    char *at;                  /* its scratch */
} part;

static int parts_count(const attention_job *j, const window *w) { return j->group * (int)divide_up(w->n_q, BLOCK); }

/* Of the query heads that share kv head g. */
static part part_at(const attention_job *j, const layout *l, const window *w, int64_t b, int64_t g, char *base, int i) {
    int of_head = (int)divide_up(w->n_q, BLOCK);
    int64_t first = i % of_head * BLOCK;
    return (part){.b = b,
                  .head = g * j->group + i / of_head,
                  .first = first,
                  .query = w->q0 + first,
                  .n_q = MIN((int64_t)BLOCK, w->n_q - first),
                  .at = base + l->parts + (size_t)i * l->part_bytes};
}

static int64_t at_query(const attention_job *j, const part *t) {
    return (t->b * j->T + t->query) * j->q_stride + t->head * j->D;
}

/* The window's next block of keys, [k0, k0 + n_k); the one behind it is asked for. */
static void keys_open(const attention_job *j, window *w, int64_t b, int64_t g, int64_t end) {
    w->n_k = MIN((int64_t)BLOCK, end - w->k0);
    int64_t n_next = MIN(end - w->k0 - BLOCK, (int64_t)BLOCK);
    if (n_next <= 0) return;
    prefetch_rows(j, at_key(j, b, w->k0 + BLOCK, g), n_next);
    prefetch_rows(j, at_key(j, b, w->k0 + BLOCK, j->G + g), n_next);
}

/* (dims, BLOCK) <-> rows of head_dim, ROWS at a time: from column c of the block. */
static void columns_to_rows(const attention_job *j, const layout *l, float *rows, const float *block, int64_t c) {
    transpose(rows, j->d_pad, block + c, BLOCK, l->p.dims, ROWS);
}
static void rows_to_columns(const attention_job *j, const layout *l, float *block, const float *rows, int64_t c) {
    transpose(block + c, BLOCK, rows, j->d_pad, ROWS, l->p.dims);
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* Scores of LANES queries with the keys that any of them sees get their scale and their cap; returns what is left to scale by. */
static float cap_lanes(const attention_job *j, const lanes *l, float *s) {
    if (j->softcap == 0) return j->scale;
    for (int64_t key = l->from; key < l->to; key++) {
        float *at = s + key * BLOCK;
        for (int u = 0; u < VECTORS; u++) vec_store(at + u * VEC_WIDTH, vec_load(at + u * VEC_WIDTH) * j->scale);
        cap_scores(at, LANES, j->softcap);
    }
    return 1;
}

/* Scores of LANES queries become weights relative to the largest so far; factor: what older weights have to be multiplied with. */
CPU_BF16_FUNCTION
static void softmax_lanes(const attention_job *j, const window *w, int64_t first, float *s, uint16_t *p, float *max,
                          float *sum, float *factor) {
    lanes l;
    bool any = lanes_open(&l, w, first);
    float scale = cap_lanes(j, &l, s);
    zero_unseen(p, &l, w->n_k);
    if (!any) {
        for (int u = 0; u < VECTORS; u++) vec_store(factor + u * VEC_WIDTH, vec_set(1));
        return;
    }
    const vec never = vec_set(-INFINITY);
    vec top[VECTORS], total[VECTORS], bias[VECTORS];
    for (int u = 0; u < VECTORS; u++) top[u] = never;
    for (int64_t key = l.from; key < l.to; key++)
        for (int u = 0; u < VECTORS; u++) {
            float *at = s + key * BLOCK + u * VEC_WIDTH;
            vec x = vec_load(at);
            if (!l.whole) {
                x = vec_select(lanes_see(&l, u, (int32_t)key), x, never);
                vec_store(at, x);
            }
            top[u] = vec_max(x, top[u]);
        }
    for (int u = 0; u < VECTORS; u++) {
        vec before = vec_load(max + u * VEC_WIDTH), m = vec_max(top[u] * scale, before);
        vec_store(max + u * VEC_WIDTH, m);
        /* Who has seen nothing yet gets weights of 0; -inf less -inf would be NaN. */
        bias[u] = vec_select(m == never, vec_set(0), -m);
        vec_store(factor + u * VEC_WIDTH, vec_exp_down(before + bias[u]));
        total[u] = vec_set(0);
    }
    for (int64_t key = l.from; key < l.to; key++) {
        vec x[VECTORS];
        for (int u = 0; u < VECTORS; u++)
            x[u] = vec_exp_down(vec_fma(vec_load(s + key * BLOCK + u * VEC_WIDTH), vec_set(scale), bias[u]));
        for (int u = 0; u < VECTORS; u++) total[u] += x[u];
        store_bf16(p + key * BLOCK, x);
    }
    for (int u = 0; u < VECTORS; u++) {
        float *at = sum + u * VEC_WIDTH;
        vec_store(at, vec_fma(vec_load(at), vec_load(factor + u * VEC_WIDTH), total[u]));
    }
}

/* Columns of a block times a factor each. */
static void scale_columns(float *block, int64_t dims, const float *factor, int64_t n) {
    bool all_1 = true;
    for (int64_t i = 0; i < n; i++) all_1 = all_1 && factor[i] == 1;
    if (all_1) return;
    for (int64_t r = 0; r < dims; r++)
        for (int64_t i = 0; i < n; i += VEC_WIDTH)
            vec_store(block + r * BLOCK + i, vec_load(block + r * BLOCK + i) * vec_load(factor + i));
}

/* What other keys have given before, or nothing. */
static void output_begin(const attention_job *j, const layout *l, const part *t, float *rows) {
    float *out = (float *)(t->at + l->out), *max = (float *)(t->at + l->max), *sum = (float *)(t->at + l->sum);
    memset(out, 0, (size_t)l->p.dims * BLOCK * sizeof *out);
    for (int64_t i = 0; i < BLOCK; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    if (!j->before) return;
    int64_t y_stride = (int64_t)j->H * j->D, at = (t->b * j->T + t->query) * y_stride + t->head * j->D;
    for (int64_t r = 0; r < t->n_q; r += ROWS) {
        load_rows(rows, j, j->before, DTYPE_F32, at + r * y_stride, y_stride, MIN((int64_t)ROWS, t->n_q - r), ROWS, 1);
        rows_to_columns(j, l, out, rows, r);
    }
    /* Weights of those keys sum to 1 relative to their lse: as if it had been the largest score so far. */
    for (int64_t r = 0; r < t->n_q; r++) {
        max[r] = j->lse_before[(t->b * j->H + t->head) * j->T + t->query + r];
        sum[r] = 1;
    }
}

static void output_end(const attention_job *j, const layout *l, const part *t, float *rows) {
    const float *out = (float *)(t->at + l->out), *max = (float *)(t->at + l->max), *sum = (float *)(t->at + l->sum);
    int64_t y_stride = (int64_t)j->H * j->D, at = (t->b * j->T + t->query) * y_stride + t->head * j->D;
    for (int64_t r0 = 0; r0 < t->n_q; r0 += ROWS) {
        columns_to_rows(j, l, rows, out, r0);
        for (int64_t r = r0; r < MIN(r0 + ROWS, t->n_q); r++) {
            float *row = rows + (r - r0) * j->d_pad;
            for (int64_t i = 0; i < j->d_pad; i += VEC_WIDTH) vec_store(row + i, vec_load(row + i) / sum[r]);
            row_store((char *)j->y + (size_t)(at + r * y_stride) * dtype_bytes(j->y_type), row, j->y_type,
                      (size_t)j->D);
            j->lse[(t->b * j->H + t->head) * j->T + t->query + r] = max[r] + logf(sum[r]);
        }
    }
}

static void forward_part(const attention_job *j, const layout *l, const window *w, const part *t, char *base) {
    float *s = (float *)(base + l->s), *factor = (float *)(t->at + l->factor), *out = (float *)(t->at + l->out);
    float *max = (float *)(t->at + l->max), *sum = (float *)(t->at + l->sum);
    uint16_t *p = (uint16_t *)(base + l->w);
    scores(&l->p, w, t->first, t->n_q, s, base + l->k, t->at + l->q);
    for (int64_t c = 0; c < t->n_q; c += LANES)
        softmax_lanes(j, w, t->first + c, s + c, p + c, max + c, sum + c, factor + c);
    scale_columns(out, l->p.dims, factor, round_up(t->n_q, LANES));
    add_over_keys(&l->p, w, t->first, t->n_q, out, base + l->v, p, base + l->panel);
}

static void forward_block(const attention_job *j, int64_t task, int thread) {
    /* The longest walks first, so that no thread starts one when the others are done. */
    int64_t q_block = j->n_q_blocks - 1 - task / (j->B * j->G), pair = task % (j->B * j->G);
    int64_t b = pair / j->G, g = pair % j->G;
    const layout l = layout_make(j, false);
    char *base = j->scratch + (size_t)thread * j->thread_bytes;
    float *rows = (float *)(base + l.rows);
    window w;
    window_open(&w, j, b, q_block);
    int n_parts = parts_count(j, &w);
    if (l.p.kernel->begin) l.p.kernel->begin();
    for (int i = 0; i < n_parts; i++) {
        part t = part_at(j, &l, &w, b, g, base, i);
        pack_b(&l.p, t.at + l.q, along_head(j->q, at_query(j, &t), j->q_stride, t.n_q, j->D), l.p.b_depth);
        output_begin(j, &l, &t, rows);
    }
    for (w.k0 = w.first / BLOCK * BLOCK; w.k0 < w.end; w.k0 += BLOCK) {
        keys_open(j, &w, b, g, j->T);
        int64_t at_k = at_key(j, b, w.k0, g), at_v = at_key(j, b, w.k0, j->G + g);
        pack_a(&l.p, base + l.k, along_head(j->kv, at_k, j->kv_stride, w.n_k, j->D), l.p.a_depth);
        pack_a(&l.p, base + l.v, along_rows(j->kv, at_v, j->kv_stride, w.n_k, j->D), l.p.a_block);
        for (int i = 0; i < n_parts; i++) {
            part t = part_at(j, &l, &w, b, g, base, i);
            forward_part(j, &l, &w, &t, base);
        }
    }
    if (l.p.kernel->end) l.p.kernel->end();
    for (int i = 0; i < n_parts; i++) {
        part t = part_at(j, &l, &w, b, g, base, i);
        output_end(j, &l, &t, rows);
    }
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* Of LANES queries: p = exp(s - lse) and ds = p (dp - delta), 0 where a query does not see. */
CPU_BF16_FUNCTION
static void gradient_lanes(const attention_job *j, const window *w, int64_t first, float *s, const float *dp,
                           uint16_t *p, uint16_t *ds, const float *lse, const float *delta) {
    lanes l;
    bool any = lanes_open(&l, w, first);
    float scale = cap_lanes(j, &l, s);
    zero_unseen(p, &l, w->n_k);
    zero_unseen(ds, &l, w->n_k);
    if (!any) return;
    vec bias[VECTORS], less[VECTORS];
    for (int u = 0; u < VECTORS; u++) {
        bias[u] = -vec_load(lse + u * VEC_WIDTH);
        less[u] = vec_load(delta + u * VEC_WIDTH);
    }
    for (int64_t key = l.from; key < l.to; key++) {
        vec x[VECTORS], y[VECTORS];
        for (int u = 0; u < VECTORS; u++) {
            int64_t at = key * BLOCK + u * VEC_WIDTH;
            x[u] = vec_exp_down(vec_fma(vec_load(s + at), vec_set(scale), bias[u]));
            y[u] = x[u] * (vec_load(dp + at) - less[u]);
            if (j->softcap > 0) y[u] *= cap_slope(vec_load(s + at), j->softcap);
            if (l.whole) continue;
            vec_i32 seen = lanes_see(&l, u, (int32_t)key);
            x[u] = vec_select(seen, x[u], vec_set(0));
            y[u] = vec_select(seen, y[u], vec_set(0));
        }
        store_bf16(p + key * BLOCK, x);
        store_bf16(ds + key * BLOCK, y);
    }
}

/* Queries of a part and what they bring along. */
static void queries_open(const attention_job *j, const layout *l, const part *t, float *rows) {
    int64_t y_stride = (int64_t)j->H * j->D, at_y = (t->b * j->T + t->query) * y_stride + t->head * j->D;
    int64_t at_q = at_query(j, t);
    float *lse = (float *)(t->at + l->lse), *delta = (float *)(t->at + l->delta);
    pack_b(&l->p, t->at + l->q, along_head(j->q, at_q, j->q_stride, t->n_q, j->D), l->p.b_depth);
    pack_b(&l->p, t->at + l->dy, along_head(j->dy, at_y, y_stride, t->n_q, j->D), l->p.b_depth);
    pack_a(&l->p, t->at + l->q_steps, along_rows(j->q, at_q, j->q_stride, t->n_q, j->D), l->p.a_block);
    pack_a(&l->p, t->at + l->dy_steps, along_rows(j->dy, at_y, y_stride, t->n_q, j->D), l->p.a_block);
    memset(lse, 0, BLOCK * sizeof *lse);
    memset(delta, 0, BLOCK * sizeof *delta);
    float *y = rows, *dy = rows + j->d_pad;
    for (int64_t r = 0; r < t->n_q; r++) {
        load_rows(y, j, j->y, j->y_type, at_y + r * y_stride, y_stride, 1, 1, 1);
        load_rows(dy, j, j->dy, j->type, at_y + r * y_stride, y_stride, 1, 1, 1);
        vec dot = vec_set(0);
        for (int64_t i = 0; i < j->d_pad; i += VEC_WIDTH) dot = vec_fma(vec_load(y + i), vec_load(dy + i), dot);
        delta[r] = vec_sum(dot);
        lse[r] = j->lse[(t->b * j->H + t->head) * j->T + t->query + r];
    }
}

static void backward_part(const attention_job *j, const layout *l, const window *w, const part *t, char *base,
                          float *dk, float *dv) {
    float *s = (float *)(base + l->s), *dp = (float *)(base + l->dp);
    const float *lse = (float *)(t->at + l->lse), *delta = (float *)(t->at + l->delta);
    uint16_t *p = (uint16_t *)(base + l->w), *ds = (uint16_t *)(base + l->ds);
    char *panel = base + l->panel;
    scores(&l->p, w, t->first, t->n_q, s, base + l->k, t->at + l->q);
    scores(&l->p, w, t->first, t->n_q, dp, base + l->v, t->at + l->dy);
    for (int64_t c = 0; c < t->n_q; c += LANES)
        gradient_lanes(j, w, t->first + c, s + c, dp + c, p + c, ds + c, lse + c, delta + c);
    add_over_keys(&l->p, w, t->first, t->n_q, (float *)(t->at + l->out), base + l->k_steps, ds, panel);
    add_over_queries(&l->p, w, t->first, t->n_q, dv, t->at + l->dy_steps, p, panel);
    add_over_queries(&l->p, w, t->first, t->n_q, dk, t->at + l->q_steps, ds, panel);
}

/* Columns of a block to rows of dq or dkv, from element `at` of the first. */
static void store_columns(const attention_job *j, const layout *l, float *rows, const float *block, void *to,
                          int64_t at, int64_t stride, int64_t n, float factor) {
    for (int64_t r = 0; r < n; r += ROWS) {
        columns_to_rows(j, l, rows, block, r);
        store_rows(j, to, rows, at + r * stride, stride, MIN((int64_t)ROWS, n - r), factor);
    }
}

/* dk or dv of one block of keys from k0 on; which: 0 or 1. */
static void store_keys(const attention_job *j, const layout *l, float *rows, const float *block, int64_t b, int64_t g,
                       int64_t k0, int which) {
    store_columns(j, l, rows, block, j->dkv, (b * j->T + k0) * j->dkv_stride + (which * j->G + g) * j->D, j->dkv_stride,
                  MIN((int64_t)BLOCK, j->T - k0), which == 0 ? j->scale : 1);
}

/* One block of queries against the keys of the segment at hand; dk and dv are its sums. */
static void backward_block(const attention_job *j, const layout *l, window *w, int64_t b, int64_t g, char *base,
                           float *dk, float *dv) {
    bool begun = j->first_key > 0, done = w->end <= j->end_key; /* in segments before; after this one */
    if (begun && (w->end <= j->first_key || w->first >= j->end_key)) return;
    int n_parts = parts_count(j, w);
    size_t dq_bytes = (size_t)l->p.dims * BLOCK * sizeof(float);
    float *rows = (float *)(base + l->rows);
    for (int i = 0; i < n_parts; i++) {
        part t = part_at(j, l, w, b, g, base, i);
        queries_open(j, l, &t, rows);
        if (begun) memcpy(t.at + l->out, dq_waiting(j, b, t.head, t.query), dq_bytes);
        else memset(t.at + l->out, 0, dq_bytes);
    }
    int64_t end = MIN(w->end, j->end_key);
    for (w->k0 = MAX(w->first / BLOCK * BLOCK, j->first_key); w->k0 < end; w->k0 += BLOCK) {
        keys_open(j, w, b, g, j->end_key);
        int64_t at_k = at_key(j, b, w->k0, g), at_v = at_key(j, b, w->k0, j->G + g);
        pack_a(&l->p, base + l->k, along_head(j->kv, at_k, j->kv_stride, w->n_k, j->D), l->p.a_depth);
        pack_a(&l->p, base + l->v, along_head(j->kv, at_v, j->kv_stride, w->n_k, j->D), l->p.a_depth);
        pack_a(&l->p, base + l->k_steps, along_rows(j->kv, at_k, j->kv_stride, w->n_k, j->D), l->p.a_block);
        int64_t sums = (w->k0 - j->first_key) * j->d_pad;
        for (int i = 0; i < n_parts; i++) {
            part t = part_at(j, l, w, b, g, base, i);
            backward_part(j, l, w, &t, base, dk + sums, dv + sums);
        }
    }
    for (int i = 0; i < n_parts; i++) {
        part t = part_at(j, l, w, b, g, base, i);
        const float *dq = (float *)(t.at + l->out);
        if (!done) memcpy(dq_waiting(j, b, t.head, t.query), dq, dq_bytes);
        else
            store_columns(j, l, rows, dq, j->dq, (b * j->T + t.query) * j->dq_stride + t.head * j->D, j->dq_stride,
                          t.n_q, j->scale);
    }
}

static void backward_cut(const attention_job *j, int64_t task, int thread) {
    int64_t pair = task % (j->B * j->G), b = pair / j->G, g = pair % j->G;
    int cut = (int)(task / (j->B * j->G));
    const layout l = layout_make(j, true);
    char *base = j->scratch + (size_t)thread * j->thread_bytes;
    float *dk = j->sums + (j->n_cuts == 1 ? thread : (pair * j->n_cuts + cut)) * 2 * j->segment * j->d_pad;
    float *dv = dk + j->segment * j->d_pad;
    int64_t n_keys = round_up(MAX(MIN(attention_cut_keys(j, cut), j->end_key) - j->first_key, 0), BLOCK);
    memset(dk, 0, (size_t)(n_keys * j->d_pad) * sizeof *dk);
    memset(dv, 0, (size_t)(n_keys * j->d_pad) * sizeof *dv);
    if (l.p.kernel->begin) l.p.kernel->begin();
    for (int64_t q_block = attention_cut_block(j, cut); q_block < attention_cut_block(j, cut + 1); q_block++) {
        window w;
        window_open(&w, j, b, q_block);
        backward_block(j, &l, &w, b, g, base, dk, dv);
    }
    if (l.p.kernel->end) l.p.kernel->end();
    if (j->n_cuts > 1) return;
    for (int64_t k0 = 0; k0 < j->T; k0 += BLOCK) {
        store_keys(j, &l, (float *)(base + l.rows), dk + k0 * j->d_pad, b, g, k0, 0);
        store_keys(j, &l, (float *)(base + l.rows), dv + k0 * j->d_pad, b, g, k0, 1);
    }
}

/* dk and dv of one key block: the cuts that reach it, added in order into the last one, which reaches every key. */
static void add_cuts(const attention_job *j, int64_t task, int thread) {
    int64_t n_blocks = attention_segment_blocks(j), pair = task / n_blocks, in_segment = task % n_blocks * BLOCK;
    int64_t k0 = j->first_key + in_segment;
    layout l = layout_make(j, true);
    float *rows = (float *)(j->scratch + (size_t)thread * j->thread_bytes + l.rows);
    for (int which = 0; which < 2; which++) {
        float *first = j->sums + (pair * j->n_cuts * 2 + which) * j->segment * j->d_pad + in_segment * j->d_pad;
        float *last = first + (int64_t)(j->n_cuts - 1) * 2 * j->segment * j->d_pad;
        for (int cut = j->n_cuts - 2; cut >= 0; cut--) {
            if (attention_cut_keys(j, cut) <= k0) break;
            const float *part = first + (int64_t)cut * 2 * j->segment * j->d_pad;
            for (int64_t i = 0; i < l.p.dims * BLOCK; i += VEC_WIDTH)
                vec_store(last + i, vec_load(last + i) + vec_load(part + i));
        }
        store_keys(j, &l, rows, last, pair / j->G, pair % j->G, k0, which);
    }
}

/* A head is one block of steps of k: a wider one is computed on vectors. */
static bool supported(dtype type, int64_t head_dim) {
    if (type != DTYPE_BF16) return false;
    const gemm_kernel *m = gemm_kernel_by_row(DTYPE_BF16);
    if (round_up(head_dim, m->kr) > m->kc) return false;
#if defined(__x86_64__)
    return m == &gemm_amx && cpu_has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
    return cpu_has_bf16();
#endif
}

const attention_functions attention_matrix = {
    .name = "matrix",
    .supported = supported,
    .shape = blocks_shape,
    .thread_bytes = scratch_bytes,
    .forward = forward_block,
    .backward = backward_cut,
    .add_cuts = add_cuts,
};
#else
typedef int attention_matrix_absent; /* ISO C wants a declaration in every file */
#endif
