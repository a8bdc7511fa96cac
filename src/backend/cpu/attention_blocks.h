/* attention_blocks.h - the arithmetic of attention on blocks of queries and keys, for the instruction set of the file
 * that includes it.
 *
 * Forward, for one block of queries of all heads that share a kv head: walk the key blocks from the first one that any
 * of the documents reaches up to the diagonal; scores, running maximum and sum, and the weighted sum of v stay in
 * scratch, so no row of T scores ever exists. Backward walks the same blocks, takes probabilities from lse again, and
 * keeps dq of the block and the sums of dk and dv of the whole sequence in fp32.
 *
 * All five products go through two micro kernels that hold a tile of C in registers and read A one scalar at a time,
 * either along rows or along columns, so that only k and v have to be transposed (64 keys at a time, reused by every
 * query head of the group).
 *
 * Masked scores become -inf before the exponential and so exactly 0 after it. A non-finite v still reaches the queries
 * of its block that may not see it (0 * inf), as in a dense softmax; finite numbers never do. */
#include "backend/cpu/attention.h"
#include "backend/cpu/vector.h"
#include <math.h>

#define BK ATTENTION_BLOCK_K

/* ---- micro kernels: C (TILE_ROWS, vectors * VEC_WIDTH) = or += A B -------------------------------------------- */

#if defined(__aarch64__)
enum { TILE_ROWS = 8, TILE_VECTORS = 2 };

/* One scalar of A times a vector of B through the by-element multiply: a broadcast load would take a vector pipe. */
#define LANE_STEP(lane)                                                                                              \
    do {                                                                                                             \
        float32x4_t b_[TILE_VECTORS];                                                                                \
        for (int v_ = 0; v_ < vectors; v_++) b_[v_] = vld1q_f32(b + v_ * VEC_WIDTH);                                 \
        b += ldb;                                                                                                    \
        for (int r_ = 0; r_ < TILE_ROWS; r_++)                                                                       \
            for (int v_ = 0; v_ < vectors; v_++)                                                                     \
                acc[r_][v_] = vfmaq_laneq_f32(acc[r_][v_], b_[v_], a_[r_], lane);                                    \
    } while (0)

/* A element (r, i) at a[r * lda + i]; k is rounded up to whole fours, where A or B hold zeros. */
VEC_INLINE void tile_rows(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k,
                          const int vectors, bool add) {
    float32x4_t acc[TILE_ROWS][TILE_VECTORS];
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < vectors; v++)
            acc[r][v] = add ? vld1q_f32(c + r * ldc + v * VEC_WIDTH) : vdupq_n_f32(0);
    for (int64_t i = 0; i < k; i += 4) {
        float32x4_t a_[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; r++) a_[r] = vld1q_f32(a + r * lda + i);
        LANE_STEP(0);
        LANE_STEP(1);
        LANE_STEP(2);
        LANE_STEP(3);
    }
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < vectors; v++) vst1q_f32(c + r * ldc + v * VEC_WIDTH, acc[r][v]);
}

/* A element (r, i) at a[i * lda + r]: the product with A transposed. */
VEC_INLINE void tile_columns(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb,
                             int64_t k, const int vectors, bool add) {
    float32x4_t acc[TILE_ROWS][TILE_VECTORS];
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < vectors; v++)
            acc[r][v] = add ? vld1q_f32(c + r * ldc + v * VEC_WIDTH) : vdupq_n_f32(0);
    for (int64_t i = 0; i < k; i++) {
        float32x4_t a_[2] = {vld1q_f32(a), vld1q_f32(a + 4)}, b_[TILE_VECTORS];
        for (int v = 0; v < vectors; v++) b_[v] = vld1q_f32(b + v * VEC_WIDTH);
        for (int half = 0; half < 2; half++)
            for (int v = 0; v < vectors; v++) {
                acc[4 * half + 0][v] = vfmaq_laneq_f32(acc[4 * half + 0][v], b_[v], a_[half], 0);
                acc[4 * half + 1][v] = vfmaq_laneq_f32(acc[4 * half + 1][v], b_[v], a_[half], 1);
                acc[4 * half + 2][v] = vfmaq_laneq_f32(acc[4 * half + 2][v], b_[v], a_[half], 2);
                acc[4 * half + 3][v] = vfmaq_laneq_f32(acc[4 * half + 3][v], b_[v], a_[half], 3);
            }
        a += lda;
        b += ldb;
    }
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < vectors; v++) vst1q_f32(c + r * ldc + v * VEC_WIDTH, acc[r][v]);
}
#undef LANE_STEP

#else /* x86 and others: broadcasts from memory cost a load, which is free beside the multiplies */
#if VEC_WIDTH == 16
enum { TILE_ROWS = 8, TILE_VECTORS = 3 };
#elif VEC_WIDTH == 8
enum { TILE_ROWS = 4, TILE_VECTORS = 3 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif

VEC_INLINE void tile_any(float *c, int64_t ldc, const float *a, int64_t a_row, int64_t a_step, const float *b,
                         int64_t ldb, int64_t k, const int vectors, bool add) {
    vec acc[TILE_ROWS][TILE_VECTORS];
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < vectors; v++) acc[r][v] = add ? vec_load(c + r * ldc + v * VEC_WIDTH) : vec_set(0);
    for (int64_t i = 0; i < k; i++) {
        vec b_[TILE_VECTORS];
        for (int v = 0; v < vectors; v++) b_[v] = vec_load(b + v * VEC_WIDTH);
        for (int r = 0; r < TILE_ROWS; r++) {
            vec a_ = vec_set(a[r * a_row]);
            for (int v = 0; v < vectors; v++) acc[r][v] = vec_fma(a_, b_[v], acc[r][v]);
        }
        a += a_step;
        b += ldb;
    }
    for (int r = 0; r < TILE_ROWS; r++)
        for (int v = 0; v < vectors; v++) vec_store(c + r * ldc + v * VEC_WIDTH, acc[r][v]);
}
VEC_INLINE void tile_rows(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k,
                          const int vectors, bool add) {
    tile_any(c, ldc, a, lda, 1, b, ldb, k, vectors, add);
}
VEC_INLINE void tile_columns(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb,
                             int64_t k, const int vectors, bool add) {
    tile_any(c, ldc, a, 1, lda, b, ldb, k, vectors, add);
}
#endif

/* TILE_ROWS rows of C, n columns (a multiple of VEC_WIDTH). */
#define PANEL(name, tile, add)                                                                                       \
    static void name(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb, int64_t n,     \
                     int64_t k) {                                                                                    \
        int64_t i = 0;                                                                                               \
        for (; i + TILE_VECTORS * VEC_WIDTH <= n; i += TILE_VECTORS * VEC_WIDTH)                                     \
            tile(c + i, ldc, a, lda, b + i, ldb, k, TILE_VECTORS, add);                                              \
        if (TILE_VECTORS > 2 && n - i == 2 * VEC_WIDTH) tile(c + i, ldc, a, lda, b + i, ldb, k, 2, add);             \
        if (n - i == VEC_WIDTH) tile(c + i, ldc, a, lda, b + i, ldb, k, 1, add);                                     \
    }
PANEL(panel_set, tile_rows, false)             /* C  = A B   */
PANEL(panel_add, tile_rows, true)              /* C += A B   */
PANEL(panel_add_transposed, tile_columns, true) /* C += A^T B */
#undef PANEL

/* ---- loading ------------------------------------------------------------------------------------------------- */

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* rows x D elements of a tensor, widened, times factor; columns up to d_pad and rows up to rows_pad are zero. */
static void load_rows(float *dst, const attention_job *j, const void *base, int64_t first, int64_t stride, int64_t rows,
                      int64_t rows_pad, float factor) {
    const char *src = (const char *)base + (size_t)first * dtype_bytes(j->type);
    for (int64_t r = 0; r < rows; r++, dst += j->d_pad) {
        row_load(dst, src + (size_t)(r * stride) * dtype_bytes(j->type), j->type, (size_t)j->D);
        for (int64_t i = j->D; i < j->d_pad; i++) dst[i] = 0;
        if (factor != 1)
            for (int64_t i = 0; i < j->d_pad; i += VEC_WIDTH) vec_store(dst + i, vec_load(dst + i) * factor);
    }
    memset(dst, 0, (size_t)((rows_pad - rows) * j->d_pad) * sizeof(float));
}

/* Keys lie a packed row apart, so each one is a cache and a TLB miss of its own: ask for the next block while this one
 * is computed. */
static void prefetch_rows(const attention_job *j, int64_t first, int64_t stride, int64_t rows) {
    size_t width = dtype_bytes(j->type), n_bytes = (size_t)j->D * width;
    const char *src = (const char *)j->qkv + (size_t)first * width;
    for (int64_t r = 0; r < rows; r++, src += (size_t)stride * width)
        for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(src + i);
}

/* (rows, columns) of (BK, d_pad) -> (columns, BK); both multiples of 4. */
static void transpose(float *dst, const float *src, int64_t d_pad, int64_t rows, int64_t columns) {
    typedef float quad __attribute__((vector_size(16)));
    for (int64_t r = 0; r < rows; r += 4)
        for (int64_t i = 0; i < columns; i += 4) {
            quad row[4], out[4];
            for (int q = 0; q < 4; q++) memcpy(&row[q], src + (r + q) * d_pad + i, sizeof(quad));
            quad ab0 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
            quad ab1 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
            quad cd0 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
            quad cd1 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
            out[0] = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
            out[1] = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
            out[2] = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
            out[3] = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
            for (int q = 0; q < 4; q++) memcpy(dst + (i + q) * BK + r, &out[q], sizeof(quad));
        }
}

/* ---- which keys a query sees ---------------------------------------------------------------------------------- */

typedef struct window {
    int64_t q0, k0;       /* first query and first key of the block pair, in the sequence */
    int64_t n_q, n_k;     /* how many there are */
    const int32_t *doc;   /* of the sequence */
} window;

/* doc is checked by the loader; a value outside [0, i] is read as the nearest one, so every query sees itself. */
static inline int64_t document_start(const int32_t *doc, int64_t i) { return MIN(MAX((int64_t)doc[i], 0), i); }

/* Keys of this block that query row r sees: [lo, hi), empty when hi <= lo. */
static inline void window_row(const window *w, int64_t r, int64_t *lo, int64_t *hi) {
    int64_t q = w->q0 + r;
    *lo = MAX(document_start(w->doc, q) - w->k0, 0);
    *hi = MIN(q + 1 - w->k0, w->n_k);
}

/* The columns that any row of a panel sees, widened to whole vectors; false when there are none. */
static bool window_panel(const window *w, int64_t r, int64_t *from, int64_t *to) {
    int64_t first = BK, end = 0;
    for (int64_t i = r; i < MIN(r + TILE_ROWS, w->n_q); i++) {
        int64_t lo, hi;
        window_row(w, i, &lo, &hi);
        if (hi <= lo) continue;
        first = MIN(first, lo);
        end = MAX(end, hi);
    }
    *from = first / VEC_WIDTH * VEC_WIDTH;
    *to = round_up(end, VEC_WIDTH);
    return end > first;
}

static int64_t window_first_key(const int32_t *doc, int64_t q0, int64_t n_q) {
    int64_t first = q0;
    for (int64_t i = q0; i < q0 + n_q; i++) first = MIN(first, document_start(doc, i));
    return first;
}

/* Scores that row r must not see become -inf in [from, to); false when it sees none of them. */
static inline bool mask_row(float *s, const window *w, int64_t r, int64_t from, int64_t to) {
    int64_t lo, hi;
    window_row(w, r, &lo, &hi);
    if (hi <= lo) return false;
    for (int64_t i = from; i < lo; i++) s[i] = -INFINITY;
    for (int64_t i = hi; i < to; i++) s[i] = -INFINITY;
    return true;
}

/* k and v of the window's key block, and a hint for the block after it; returns the rows filled, padding included. */
static int64_t load_keys(const attention_job *j, const window *w, int64_t base, int64_t g, float *k, float *v) {
    int64_t stride = (int64_t)(j->H + 2 * j->G) * j->D, n_k_pad = round_up(w->n_k, ATTENTION_PAD);
    int64_t at_k = (base + w->k0) * stride + (j->H + g) * j->D, at_v = at_k + (int64_t)j->G * j->D;
    load_rows(k, j, j->qkv, at_k, stride, w->n_k, n_k_pad, 1);
    load_rows(v, j, j->qkv, at_v, stride, w->n_k, n_k_pad, 1);
    int64_t n_next = MIN(w->q0 + w->n_q - w->k0 - BK, (int64_t)BK);
    if (n_next > 0) {
        prefetch_rows(j, at_k + BK * stride, stride, n_next);
        prefetch_rows(j, at_v + BK * stride, stride, n_next);
    }
    return n_k_pad;
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

/* s -> exp(s - max) in place for the rows of one panel, with the maximum and sum so far; o is rescaled where the
 * maximum rose. */
static void softmax_panel(const attention_job *j, const window *w, int64_t r0, int64_t from, int64_t to, float *s,
                          float *o, float *max, float *sum) {
    for (int64_t r = r0; r < MIN(r0 + TILE_ROWS, w->n_q); r++) {
        float *row = s + r * BK;
        if (!mask_row(row, w, r, from, to)) {
            memset(row + from, 0, (size_t)(to - from) * sizeof(float));
            continue;
        }
        vec top = vec_set(max[r]);
        for (int64_t i = from; i < to; i += VEC_WIDTH) top = vec_max(vec_load(row + i), top);
        float m = vec_max_lane(top);
        if (m > max[r]) {
            float factor[1] = {max[r] - m};
            vec_exp(factor, factor, 1);
            sum[r] *= factor[0];
            for (int64_t i = 0; i < j->d_pad; i += VEC_WIDTH)
                vec_store(o + r * j->d_pad + i, vec_load(o + r * j->d_pad + i) * factor[0]);
            max[r] = m;
        }
        /* Four at a time: one exponential alone waits for itself. */
        vec total[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)}, p[4];
        int64_t i = from;
        for (; i + 4 * VEC_WIDTH <= to; i += 4 * VEC_WIDTH) {
            for (int u = 0; u < 4; u++) p[u] = vec_exp_down(vec_load(row + i + u * VEC_WIDTH) - m);
            for (int u = 0; u < 4; u++) vec_store(row + i + u * VEC_WIDTH, p[u]);
            for (int u = 0; u < 4; u++) total[u] += p[u];
        }
        for (; i < to; i += VEC_WIDTH) {
            p[0] = vec_exp_down(vec_load(row + i) - m);
            vec_store(row + i, p[0]);
            total[0] += p[0];
        }
        sum[r] += vec_sum((total[0] + total[1]) + (total[2] + total[3]));
    }
}

static void forward_block(const attention_job *j, int64_t task, int thread) {
    /* The longest walks first, so that no thread starts one when the others are done. */
    int64_t q_block = j->n_q_blocks - 1 - task / (j->B * j->G), pair = task % (j->B * j->G);
    int64_t b = pair / j->G, g = pair % j->G, T = j->T, d = j->d_pad, n = round_up(j->D, VEC_WIDTH);
    int64_t stride = (int64_t)(j->H + 2 * j->G) * j->D, k4 = round_up(j->D, 4), base = b * T;
    window w = {.q0 = q_block * j->block_q, .doc = j->doc + base};
    w.n_q = MIN((int64_t)j->block_q, T - w.q0);
    int64_t rows = (int64_t)j->group * j->block_q, n_q_pad = round_up(w.n_q, TILE_ROWS);

    float *q = (float *)(j->scratch + (size_t)thread * j->thread_bytes), *o = q + rows * d;
    float *k = o + rows * d, *kt = k + BK * d, *v = kt + BK * d, *s = v + BK * d;
    float *max = s + (int64_t)j->block_q * BK, *sum = max + rows;
    for (int h = 0; h < j->group; h++)
        load_rows(q + (int64_t)h * j->block_q * d, j, j->qkv, (base + w.q0) * stride + (g * j->group + h) * j->D,
                  stride, w.n_q, n_q_pad, j->scale);
    memset(o, 0, (size_t)(rows * d) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        max[r] = -INFINITY;
        sum[r] = 0;
    }

    int64_t first = window_first_key(w.doc, w.q0, w.n_q) / BK * BK;
    for (w.k0 = first; w.k0 < w.q0 + w.n_q; w.k0 += BK) {
        w.n_k = MIN((int64_t)BK, T - w.k0);
        int64_t n_k_pad = load_keys(j, &w, base, g, k, v);
        transpose(kt, k, d, n_k_pad, k4);
        for (int h = 0; h < j->group; h++) {
            int64_t at_row = (int64_t)h * j->block_q;
            float *qh = q + at_row * d, *oh = o + at_row * d;
            for (int64_t r = 0; r < w.n_q; r += TILE_ROWS) {
                int64_t from, to;
                if (!window_panel(&w, r, &from, &to)) continue;
                panel_set(s + r * BK + from, BK, qh + r * d, d, kt + from, BK, to - from, k4);
                softmax_panel(j, &w, r, from, to, s, oh, max + at_row, sum + at_row);
                panel_add(oh + r * d, d, s + r * BK + from, BK, v + from * d, d, n, to - from);
            }
        }
    }

    for (int h = 0; h < j->group; h++)
        for (int64_t r = 0; r < w.n_q; r++) {
            int64_t row = (int64_t)h * j->block_q + r, head = g * j->group + h;
            for (int64_t i = 0; i < d; i += VEC_WIDTH) vec_store(o + row * d + i, vec_load(o + row * d + i) / sum[row]);
            row_store((char *)j->y + (size_t)((base + w.q0 + r) * j->H + head) * j->D * dtype_bytes(j->type), o + row * d,
                      j->type, (size_t)j->D);
            j->lse[(b * j->H + head) * T + w.q0 + r] = max[row] + logf(sum[row]);
        }
}

/* ---- backward ------------------------------------------------------------------------------------------------ */

/* p = exp(s - lse), ds = p (dp - delta), for one panel; s becomes p and dp becomes ds, 0 in every column not seen. */
static void gradient_panel(const window *w, int64_t r0, int64_t from, int64_t to, int64_t n_k_pad, float *s, float *dp,
                           const float *lse, const float *delta) {
    for (int64_t r = r0; r < MIN(r0 + TILE_ROWS, w->n_q); r++) {
        float *p = s + r * BK, *ds = dp + r * BK;
        int64_t a = from, z = to;
        if (from >= to || !mask_row(p, w, r, from, to)) a = z = 0;
        int64_t i = a;
        for (; i + 4 * VEC_WIDTH <= z; i += 4 * VEC_WIDTH) {
            vec x[4];
            for (int u = 0; u < 4; u++) x[u] = vec_exp_down(vec_load(p + i + u * VEC_WIDTH) - lse[r]);
            for (int u = 0; u < 4; u++) vec_store(p + i + u * VEC_WIDTH, x[u]);
            for (int u = 0; u < 4; u++)
                vec_store(ds + i + u * VEC_WIDTH, x[u] * (vec_load(ds + i + u * VEC_WIDTH) - delta[r]));
        }
        for (; i < z; i += VEC_WIDTH) {
            vec x = vec_exp_down(vec_load(p + i) - lse[r]);
            vec_store(p + i, x);
            vec_store(ds + i, x * (vec_load(ds + i) - delta[r]));
        }
        for (int side = 0; side < 2; side++) {
            int64_t begin = side ? z : 0, end = side ? n_k_pad : a;
            if (begin >= end) continue;
            memset(p + begin, 0, (size_t)(end - begin) * sizeof(float));
            memset(ds + begin, 0, (size_t)(end - begin) * sizeof(float));
        }
    }
}

static void store_rows(const attention_job *j, float *src, int64_t at, int64_t stride, int64_t rows, float factor) {
    for (int64_t r = 0; r < rows; r++, src += j->d_pad) {
        if (factor != 1)
            for (int64_t i = 0; i < j->d_pad; i += VEC_WIDTH) vec_store(src + i, vec_load(src + i) * factor);
        row_store((char *)j->dqkv + (size_t)(at + r * stride) * dtype_bytes(j->type), src, j->type, (size_t)j->D);
    }
}

static void backward_cut(const attention_job *j, int64_t task, int thread) {
    int64_t pair = task % (j->B * j->G), b = pair / j->G, g = pair % j->G, T = j->T, d = j->d_pad;
    int cut = (int)(task / (j->B * j->G));
    int64_t n = round_up(j->D, VEC_WIDTH), k4 = round_up(j->D, 4), base = b * T;
    int64_t stride = (int64_t)(j->H + 2 * j->G) * j->D, y_stride = (int64_t)j->H * j->D, bq = j->block_q;
    int64_t rows = (int64_t)j->group * bq, tile = bq * BK;

    float *q = (float *)(j->scratch + (size_t)thread * j->thread_bytes), *dy = q + rows * d, *dq = dy + rows * d;
    float *k = dq + rows * d, *v = k + BK * d, *kt = v + BK * d, *vt = kt + BK * d, *s = vt + BK * d, *dp = s + tile;
    float *lse = dp + tile, *delta = lse + rows, *y = delta + rows;
    float *dk = j->sums + (j->n_cuts == 1 ? thread : (pair * j->n_cuts + cut)) * 2 * j->t_pad * d;
    float *dv = dk + j->t_pad * d;
    int64_t q_block = attention_cut_block(j, cut), q_end = attention_cut_block(j, cut + 1);
    int64_t n_keys = round_up(MIN(q_end * bq, T), ATTENTION_PAD);
    memset(dk, 0, (size_t)(n_keys * d) * sizeof(float));
    memset(dv, 0, (size_t)(n_keys * d) * sizeof(float));

    for (; q_block < q_end; q_block++) {
        window w = {.q0 = q_block * bq, .doc = j->doc + base};
        w.n_q = MIN(bq, T - w.q0);
        int64_t n_q_pad = round_up(w.n_q, TILE_ROWS);
        for (int h = 0; h < j->group; h++) {
            int64_t head = g * j->group + h, at = (base + w.q0) * y_stride + head * j->D;
            load_rows(q + h * bq * d, j, j->qkv, (base + w.q0) * stride + head * j->D, stride, w.n_q, n_q_pad, j->scale);
            load_rows(dy + h * bq * d, j, j->dy, at, y_stride, w.n_q, n_q_pad, 1);
            for (int64_t r = 0; r < w.n_q; r++) {
                load_rows(y, j, j->y, at + r * y_stride, y_stride, 1, 1, 1);
                vec dot = vec_set(0);
                for (int64_t i = 0; i < d; i += VEC_WIDTH)
                    dot = vec_fma(vec_load(y + i), vec_load(dy + (h * bq + r) * d + i), dot);
                delta[h * bq + r] = vec_sum(dot);
                lse[h * bq + r] = j->lse[(b * j->H + head) * T + w.q0 + r];
            }
        }
        memset(dq, 0, (size_t)(rows * d) * sizeof(float));

        for (w.k0 = window_first_key(w.doc, w.q0, w.n_q) / BK * BK; w.k0 < w.q0 + w.n_q; w.k0 += BK) {
            w.n_k = MIN((int64_t)BK, T - w.k0);
            int64_t n_k_pad = load_keys(j, &w, base, g, k, v);
            transpose(kt, k, d, n_k_pad, k4);
            transpose(vt, v, d, n_k_pad, k4);
            for (int h = 0; h < j->group; h++) {
                float *qh = q + h * bq * d, *dyh = dy + h * bq * d, *dqh = dq + h * bq * d;
                for (int64_t r = 0; r < w.n_q; r += TILE_ROWS) {
                    int64_t from = 0, to = 0;
                    bool seen = window_panel(&w, r, &from, &to);
                    if (seen) {
                        panel_set(s + r * BK + from, BK, qh + r * d, d, kt + from, BK, to - from, k4);
                        panel_set(dp + r * BK + from, BK, dyh + r * d, d, vt + from, BK, to - from, k4);
                    }
                    gradient_panel(&w, r, seen ? from : 0, seen ? to : 0, n_k_pad, s, dp, lse + h * bq, delta + h * bq);
                    if (seen) panel_add(dqh + r * d, d, dp + r * BK + from, BK, k + from * d, d, n, to - from);
                }
                for (int64_t i = 0; i < w.n_k; i += TILE_ROWS) { /* queries left of these keys see none of them */
                    int64_t r = MAX(w.k0 + i - w.q0, 0), n_r = w.n_q - r;
                    if (n_r <= 0) continue;
                    float *dki = dk + (w.k0 + i) * d, *dvi = dv + (w.k0 + i) * d;
                    panel_add_transposed(dvi, d, s + r * BK + i, BK, dyh + r * d, d, n, n_r);
                    panel_add_transposed(dki, d, dp + r * BK + i, BK, qh + r * d, d, n, n_r);
                }
            }
        }
        for (int h = 0; h < j->group; h++)
            store_rows(j, dq + h * bq * d, (base + w.q0) * stride + (g * j->group + h) * j->D, stride, w.n_q, j->scale);
    }
    if (j->n_cuts > 1) return;
    store_rows(j, dk, base * stride + (j->H + g) * j->D, stride, T, 1);
    store_rows(j, dv, base * stride + (j->H + j->G + g) * j->D, stride, T, 1);
}

/* dk and dv of one key block: the cuts that reach it, added in order into the last one, which reaches every key. */
static void add_cuts(const attention_job *j, int64_t task, int thread) {
    (void)thread;
    int64_t n_blocks = (j->T + BK - 1) / BK, pair = task / n_blocks, k0 = task % n_blocks * BK;
    int64_t b = pair / j->G, g = pair % j->G, d = j->d_pad, n_k = MIN((int64_t)BK, j->T - k0);
    int64_t stride = (int64_t)(j->H + 2 * j->G) * j->D, at = (b * j->T + k0) * stride;
    for (int which = 0; which < 2; which++) {
        float *first = j->sums + (pair * j->n_cuts * 2 + which) * j->t_pad * d + k0 * d;
        float *last = first + (int64_t)(j->n_cuts - 1) * 2 * j->t_pad * d;
        for (int cut = j->n_cuts - 2; cut >= 0; cut--) {
            if (attention_cut_block(j, cut + 1) * j->block_q <= k0) break;
            const float *part = first + (int64_t)cut * 2 * j->t_pad * d;
            for (int64_t i = 0; i < n_k * d; i += VEC_WIDTH) vec_store(last + i, vec_load(last + i) + vec_load(part + i));
        }
        store_rows(j, last, at + (j->H + which * j->G + g) * j->D, stride, n_k, 1);
    }
}

const attention_functions ATTENTION_FUNCTIONS = {ATTENTION_NAME, forward_block, backward_cut, add_cuts};
