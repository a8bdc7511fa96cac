/* adamw.c - AdamW on a parameter or a part of it, with states in fp32, bf16 or 8 bits.
 *
 * One defined order of operations, so that host SIMD, a scalar loop and a CUDA kernel give the same bits, and so that
 * any cut into tasks or parts does. All of it is fp32 round to nearest, `fma` rounds once, square root and division are
 * IEEE. Once per tensor:
 *     s2   = sqrt(bias2)            rate  = (lr * s2) / bias1        (bias = 1 - beta^t, in step_scalars)
 *     eps2 = eps * s2               decay = (weight_decay * bias1) / s2
 *     gm   = (1 - beta1) * factor   gv    = sqrt(1 - beta2) * factor  (factor = clip[CLIP_FACTOR])
 * and per element, x = the master where there is one, else the parameter:
 *     m = fma(beta1, m, gm * g)
 *     t = gv * g;  v = fma(t, t, beta2 * v)
 *     u = fma(decay, x, m / (sqrt(v) + eps2))
 *     x = fma(-rate, u, x)
 * That is the textbook step lr * (m^ / (sqrt(v^) + eps) + weight_decay * x) with the bias corrections moved into the
 * constants: one division and one square root per element instead of three and one.
 *
 * What is stored: the parameter beside a master is its nearest rounding, a bf16 parameter without one is rounded
 * stochastically; bf16 states are rounded stochastically (noise.h), 8-bit ones as state8.h says. The update uses m and v
 * before they are rounded. */
#include "backend/cpu/adamw.h"
#include "backend/cpu/exact.h"
#include "backend/cpu/state8.h"
#include "backend/cpu/update.h"
#include <stdatomic.h>

/* ---- rounding that is looked over once per piece --------------------------------------------------------------- */

/* Beside the divider every instruction counts, so parameters are rounded by a rule that is right for nearly all of them,
 * and what may not be is looked for once per piece, while the piece is in L1: then it is rounded again with care.
 * NaN: a payload of ones would carry into the sign. On arm64 also numbers exactly between two of bf16: half is rounded
 * up there, not to even. That makes two instructions per vector where rounding to even takes three, and NaN beside it
 * seven (typed_to_bf16); by chance one piece of 1024 in 64 has such a number. */
typedef struct rounding {
    dtype type;
    const float *x;
    uint16_t *p;
    vec watch; /* turns NaN or infinite, for good, at the first of these */
#if defined(__aarch64__)
    int16x8_t lowest; /* of the halves that are cut off, signed: the least of all is exactly half */
#endif
} rounding;

/* Two vectors from r->x + i to r->p + i. */
VEC_INLINE void round_pair(rounding *r, int i) {
    vec a = vec_load(r->x + i), b = vec_load(r->x + i + VEC_WIDTH);
    uint16_t *dst = r->p + i;
    r->watch = vec_fma(a, b, r->watch);
    if (r->type != DTYPE_BF16) {
        vec_to_f16(dst, a);
        vec_to_f16(dst + VEC_WIDTH, b);
        return;
    }
#if defined(__aarch64__)
    uint32x4_t ua = (uint32x4_t)a, ub = (uint32x4_t)b, half = vdupq_n_u32(0x8000);
    vst1q_u16(dst, vaddhn_high_u32(vaddhn_u32(ua, half), ub, half));
    r->lowest = vminq_s16(r->lowest, vuzp1q_s16((int16x8_t)ua, (int16x8_t)ub));
#else
    typed_to_bf16(dst, a);
    typed_to_bf16(dst + VEC_WIDTH, b);
#endif
}

VEC_INLINE bool rounding_is_right(const rounding *r) {
#if defined(__aarch64__)
    if (vminvq_s16(r->lowest) == INT16_MIN) return false;
#endif
    return vec_sum(r->watch) * 0 == 0;
}

/* ---- the step on rows of fp32 ---------------------------------------------------------------------------------- */

/* Two variants with the same bits, for two kinds of cores. `prefetch` prefetches in software and, on arm64, computes every fourth square
 * root from products (exact.h): fastest on Neoverse-N1, and what x86-64 uses. `plain` does neither: V1 has better hardware prefetchers and
 * a faster divider; software prefetch costs 15 to 24 % there and such a root 6 to 8 %. Cores of arm64 are told apart by
 * bf16 instructions, which came with the newer kind. */
typedef enum adamw_variant { VARIANT_PREFETCH, VARIANT_PLAIN, VARIANT_COUNT } adamw_variant;
static const char *const variant_names[VARIANT_COUNT] = {"prefetch", "plain"};
static _Atomic(int) forced_variant = VARIANT_COUNT;

static adamw_variant variant_of_this_core(void) {
    int forced = atomic_load_explicit(&forced_variant, memory_order_relaxed);
    if (forced != VARIANT_COUNT) return (adamw_variant)forced;
#if defined(__aarch64__)
    if (cpu_has_bf16()) return VARIANT_PLAIN;
#endif
    return VARIANT_PREFETCH;
}

const char *adamw_variant_name(int i) { return i >= 0 && i < VARIANT_COUNT ? variant_names[i] : NULL; }

bool adamw_force_variant(const char *name) {
    int variant = name ? 0 : VARIANT_COUNT;
    while (name && variant < VARIANT_COUNT && strcmp(variant_names[variant], name) != 0) variant++;
    if (name && variant == VARIANT_COUNT) return false;
    atomic_store_explicit(&forced_variant, variant, memory_order_relaxed);
    return true;
}

typedef struct adamw_constants {
    float beta1, gm, beta2, gv, eps2, decay, rate;
    adamw_variant variant;
} adamw_constants;

/* The step of the file header on one vector of elements, in two parts with the square root between them. */
typedef struct adamw_moments {
    vec m, v, root;
} adamw_moments;

VEC_INLINE adamw_moments adamw_first(const adamw_constants *k, vec m, vec v, vec g) {
    vec t = vec_set(k->gv) * g;
    return (adamw_moments){.v = fma_exact(t, t, vec_set(k->beta2) * v),
                           .m = fma_exact(vec_set(k->beta1), m, vec_set(k->gm) * g)};
}

VEC_INLINE vec adamw_second(const adamw_constants *k, vec x, const adamw_moments *s) {
    vec u = fma_exact(vec_set(k->decay), x, s->m / (s->root + vec_set(k->eps2)));
    return fma_exact(vec_set(-k->rate), u, x);
}

/* How many elements ahead memory is asked for. The hardware prefetcher alone leaves 5 to 8 % on the table; 1024 and
 * 2048 are equally good, 512 is too near. */
enum { AHEAD = 1024, LINE = 64 / sizeof(float) };

/* As an integer, because the place may lie past the array; a prefetch never faults. */
VEC_INLINE void ask_ahead(const float *p) { __builtin_prefetch((const void *)((uintptr_t)p + AHEAD * sizeof *p)); }

VEC_INLINE adamw_moments adamw_first_at(const adamw_constants *k, float *m, float *v, const float *g, bool keep_root) {
    adamw_moments s = adamw_first(k, vec_load(m), vec_load(v), vec_load(g));
    vec_store(m, s.m);
    if (!keep_root) vec_store(v, s.v);
    return s;
}

VEC_INLINE void adamw_second_at(const adamw_constants *k, float *x, float *v, const adamw_moments *s, bool keep_root) {
    vec_store(x, adamw_second(k, vec_load(x), s));
    if (keep_root) vec_store(v, s->root);
}

/* Vectors that are computed together. On arm64 four: the root of the first may be made of products while the divider
 * has the other three and the quotients (exact.h). */
#if defined(__aarch64__)
enum { GROUP = 4 };
#else
enum { GROUP = 2 };
#endif
enum { GROUP_STEP = GROUP * VEC_WIDTH };

/* One group at x, m, v and g, and one group of older parameters rounded on the way: its instructions wait for nothing
 * and fill the time that roots and quotients take. Where they stand was measured: bf16 in two places, fp16 in one.
 * keep_root: v in, its square root out, which is what 8-bit states store. */
VEC_INLINE void adamw_group(const adamw_constants *k, float *x, float *m, float *v, const float *g, bool keep_root,
                            adamw_variant variant, rounding *older) {
    adamw_moments s[GROUP];
    const int early = !older ? 0 : older->type == DTYPE_BF16 ? 2 * VEC_WIDTH : GROUP_STEP;
    const int all = older ? GROUP_STEP : 0, by_products = variant == VARIANT_PREFETCH;
    if (variant == VARIANT_PREFETCH)
        for (int i = 0; i < GROUP_STEP; i += LINE)
            ask_ahead(x + i), ask_ahead(m + i), ask_ahead(v + i), ask_ahead(g + i);
    for (int i = 0; i < GROUP; i++) {
        s[i] = adamw_first_at(k, m + i * VEC_WIDTH, v + i * VEC_WIDTH, g + i * VEC_WIDTH, keep_root);
        if (i >= by_products) s[i].root = sqrt_exact(s[i].v);
    }
    if (by_products) s[0].root = sqrt_start(s[0].v);
    for (int i = 0; i < early; i += 2 * VEC_WIDTH) round_pair(older, i);
    for (int i = by_products; i < GROUP; i++)
        adamw_second_at(k, x + i * VEC_WIDTH, v + i * VEC_WIDTH, &s[i], keep_root);
    if (by_products) {
        s[0].root = sqrt_finish(s[0].v, s[0].root);
        adamw_second_at(k, x, v, &s[0], keep_root);
    }
    for (int i = early; i < all; i += 2 * VEC_WIDTH) round_pair(older, i);
}

/* The last few elements go through the same vector code on copies. */
VEC_INLINE void adamw_tail(const adamw_constants *k, float *x, float *m, float *v, const float *g, size_t n,
                           bool keep_root) {
    adamw_moments s =
        adamw_first(k, typed_load(m, DTYPE_F32, 0, n), typed_load(v, DTYPE_F32, 0, n), typed_load(g, DTYPE_F32, 0, n));
    s.root = sqrt_exact(s.v);
    typed_store(x, DTYPE_F32, 0, n, adamw_second(k, typed_load(x, DTYPE_F32, 0, n), &s));
    typed_store(m, DTYPE_F32, 0, n, s.m);
    typed_store(v, DTYPE_F32, 0, n, keep_root ? s.root : s.v);
}

VEC_INLINE void adamw_row(const adamw_constants *constants, float *restrict x, float *restrict m, float *restrict v,
                          const float *restrict g, size_t n, bool keep_root, adamw_variant variant) {
    const adamw_constants k = *constants;
    size_t i = 0;
    for (; i + GROUP_STEP <= n; i += GROUP_STEP) adamw_group(&k, x + i, m + i, v + i, g + i, keep_root, variant, NULL);
    for (; i < n; i += VEC_WIDTH) adamw_tail(&k, x + i, m + i, v + i, g + i, MIN((size_t)VEC_WIDTH, n - i), keep_root);
}
static void adamw_f32(const adamw_constants *k, float *x, float *m, float *v, const float *g, size_t n) {
    if (k->variant == VARIANT_PREFETCH) adamw_row(k, x, m, v, g, n, false, VARIANT_PREFETCH);
    else adamw_row(k, x, m, v, g, n, false, VARIANT_PLAIN);
}
static void adamw_f32_root(const adamw_constants *k, float *x, float *m, float *v, const float *g, size_t n) {
    if (k->variant == VARIANT_PREFETCH) adamw_row(k, x, m, v, g, n, true, VARIANT_PREFETCH);
    else adamw_row(k, x, m, v, g, n, true, VARIANT_PLAIN);
}

/* fp32 master and a 16-bit parameter that is its rounded copy. The copy is made LAG elements behind the step, long enough
 * for the division to have come out and the store to have reached the cache. */
VEC_INLINE void adamw_rounded(const adamw_constants *constants, uint16_t *restrict p, dtype p_type, float *restrict x,
                              float *restrict m, float *restrict v, const float *restrict g, size_t n,
                              adamw_variant variant) {
    enum { LAG = 32, PIECE = 1024 };
    const adamw_constants k = *constants;
    size_t lag = MIN((size_t)LAG, n), i = 0; /* rounded up to i, stepped up to i + lag */
    adamw_f32(&k, x, m, v, g, lag);
    while (i + lag + GROUP_STEP <= n) {
        size_t begin = i, end = MIN(begin + PIECE, n - lag);
        rounding r = {.type = p_type};
        for (; i + GROUP_STEP <= end; i += GROUP_STEP) {
            size_t at = i + lag;
            r.x = x + i, r.p = p + i;
            adamw_group(&k, x + at, m + at, v + at, g + at, false, variant, &r);
        }
        if (!rounding_is_right(&r)) typed_row_store(p + begin, x + begin, p_type, i - begin);
    }
    size_t at = i + lag;
    adamw_f32(&k, x + at, m + at, v + at, g + at, n - at);
    typed_row_store(p + i, x + i, p_type, n - i);
}
static void adamw_copied(const adamw_constants *k, uint16_t *p, dtype p_type, float *x, float *m, float *v,
                         const float *g, size_t n) {
    if (k->variant == VARIANT_PREFETCH && p_type == DTYPE_BF16)
        adamw_rounded(k, p, DTYPE_BF16, x, m, v, g, n, VARIANT_PREFETCH);
    else if (k->variant == VARIANT_PREFETCH) adamw_rounded(k, p, DTYPE_F16, x, m, v, g, n, VARIANT_PREFETCH);
    else if (p_type == DTYPE_BF16) adamw_rounded(k, p, DTYPE_BF16, x, m, v, g, n, VARIANT_PLAIN);
    else adamw_rounded(k, p, DTYPE_F16, x, m, v, g, n, VARIANT_PLAIN);
}

/* ---- formats that are widened ---------------------------------------------------------------------------------- */

/* They go through rows of so many elements, which stay in L1. */
enum { ROW = STATE_BLOCK };

typedef struct adamw_job {
    const op *op;
    const step_scalars *scalars;
    adamw_constants constants;
    dtype p_type, g_type, state_type;
    void *p, *m, *v;
    float *master, *m_scale, *v_scale; /* NULL without */
    const void *g;
    update_cut cut;
} adamw_job;

/* m and v of any format as rows: states_load fills them, the step changes them (8 bits: v into its root), states_store
 * puts them back. fp32 is used where it lies. */
typedef struct state_rows {
    float m[ROW], v[ROW];
    uint16_t m_rounded[ROW], v_rounded[ROW];
    uint8_t m_codes[ROW], v_codes[ROW];
} state_rows;

static void states_load(const adamw_job *j, state_rows *r, size_t i, size_t n) {
    if (j->state_type == DTYPE_BF16) {
        typed_row_load(r->m, (const uint16_t *)j->m + i, DTYPE_BF16, n);
        typed_row_load(r->v, (const uint16_t *)j->v + i, DTYPE_BF16, n);
    } else if (j->state_type == DTYPE_I8) {
        const uint8_t *m = (const uint8_t *)j->m + i, *v = (const uint8_t *)j->v + i;
        if (n < ROW) m = memcpy(r->m_codes, m, n), v = memcpy(r->v_codes, v, n);
        state8_load(r->m, r->v, m, v, j->m_scale[i / STATE_BLOCK], j->v_scale[i / STATE_BLOCK], n);
        if (n < ROW) { /* whole groups were widened; the scale must not see them */
            memset(r->m + n, 0, (ROW - n) * sizeof *r->m);
            memset(r->v + n, 0, (ROW - n) * sizeof *r->v);
        }
    }
}

static void states_store(const adamw_job *j, state_rows *r, size_t i, size_t n, rng_noise noise, size_t first) {
    bool whole = n == ROW; /* else the rest of the last group has no place there */
    if (j->state_type == DTYPE_BF16) {
        uint16_t *m = (uint16_t *)j->m + i, *v = (uint16_t *)j->v + i;
        noise_round_states(whole ? m : r->m_rounded, whole ? v : r->v_rounded, r->m, r->v, n, noise, first);
        if (!whole) memcpy(m, r->m_rounded, n * sizeof *m), memcpy(v, r->v_rounded, n * sizeof *v);
    } else if (j->state_type == DTYPE_I8) {
        uint8_t *m = (uint8_t *)j->m + i, *v = (uint8_t *)j->v + i;
        state8_store(whole ? m : r->m_codes, whole ? v : r->v_codes, &j->m_scale[i / STATE_BLOCK],
                     &j->v_scale[i / STATE_BLOCK], r->m, r->v, n, noise, first);
        if (!whole) memcpy(m, r->m_codes, n), memcpy(v, r->v_codes, n);
    }
}

/* Elements begin .. end, which lie in one block of noise; begin is a multiple of ROW. */
static void adamw_widened(const adamw_job *j, size_t begin, size_t end) {
    rng_noise noise_p = noise_open(j->op, j->scalars, NOISE_PARAM, begin);
    rng_noise noise_states = noise_open(j->op, j->scalars, NOISE_STATES, begin);
    state_rows r;
    float x_row[ROW], g_row[ROW];
    uint16_t rounded[ROW];
    bool stochastic = !j->master && j->p_type == DTYPE_BF16;
    for (size_t i = begin; i < end; i += ROW) {
        size_t n = MIN((size_t)ROW, end - i), first = noise_place(j->op, i);
        if (n < ROW) { /* the rest of a group is computed too, and thrown away */
            memset(&r, 0, sizeof r);
            memset(x_row, 0, sizeof x_row);
        }
        uint16_t *p = (uint16_t *)j->p + i;
        float *x = j->master ? j->master + i : stochastic ? x_row : (float *)j->p + i;
        float *m = j->state_type == DTYPE_F32 ? (float *)j->m + i : r.m;
        float *v = j->state_type == DTYPE_F32 ? (float *)j->v + i : r.v;
        const float *g = j->g_type == DTYPE_F32 ? (const float *)j->g + i : g_row;
        if (stochastic) typed_row_load(x_row, p, DTYPE_BF16, n);
        if (j->g_type != DTYPE_F32) typed_row_load(g_row, (const uint16_t *)j->g + i, j->g_type, n);
        states_load(j, &r, i, n);
        if (j->state_type == DTYPE_I8) adamw_f32_root(&j->constants, x, m, v, g, n);
        else adamw_f32(&j->constants, x, m, v, g, n);
        if (j->master) {
            typed_row_store(p, x, j->p_type, n);
        } else if (stochastic) {
            noise_round_row(n == ROW ? p : rounded, x, n, noise_p, first);
            if (n < ROW) memcpy(p, rounded, n * sizeof *p);
        }
        states_store(j, &r, i, n, noise_states, first);
    }
}

/* ---- everything bf16 ------------------------------------------------------------------------------------------- */

/* A row as it lies in memory, and where to put what it becomes. */
typedef struct bf16_row {
    const uint16_t *p, *m, *v, *g;
    uint16_t *p_new, *m_new, *v_new;
} bf16_row;

/* One pair of elements at i, with its noise for p, and the place and key of that for m and v: it is made in here, behind
 * the step, to fill the divider's time. Returns watch, which turns NaN or infinite, for good, at the first of these. */
VEC_INLINE vec adamw_pair(const adamw_constants *k, const bf16_row *r, size_t i, vec_u32 noise_a, vec_u32 noise_b,
                          vec_u32 at_states, uint32_t key_states, vec watch) {
    vec_pair p = pair_load(r->p + i), m = pair_load(r->m + i), v = pair_load(r->v + i), g = pair_load(r->g + i);
    adamw_moments a = adamw_first(k, m.a, v.a, g.a), b = adamw_first(k, m.b, v.b, g.b);
    a.root = sqrt_exact(a.v), b.root = sqrt_exact(b.v);
    vec_pair x = {adamw_second(k, p.a, &a), adamw_second(k, p.b, &b)};
    noise_pair states = pair_words(at_states, key_states);
    pair_store_no_nan(r->p_new + i, x, noise_a, noise_b);
    pair_store_no_nan(r->m_new + i, (vec_pair){a.m, b.m}, states.a.low, states.b.low);
    pair_store_no_nan(r->v_new + i, (vec_pair){a.v, b.v}, states.a.high, states.b.high);
    return vec_fma(x.a, x.b, watch); /* a NaN in m or v is one in x */
}

/* False: there is a NaN or an infinity, or two numbers multiply to one, and what came out is not to be used. */
static bool adamw_bf16_row(const adamw_constants *constants, const bf16_row *row, rng_noise noise_p,
                           rng_noise noise_states, size_t first) {
    enum { HALF = NOISE_GROUP / 2 };
    const adamw_constants k = *constants;
    const bf16_row r = *row;
    vec watch = {0};
    vec_u32 at_p = pair_at(noise_p, first / 2);
    for (size_t group = 0; group < ROW; group += NOISE_GROUP) {
        vec_u32 at = pair_at(noise_states, first + group);
        for (size_t i = group; i < group + HALF; i += PAIR, at += NOISE_WORDS(PAIR), at_p += NOISE_WORDS(PAIR)) {
            noise_pair n = pair_words(at_p, noise_p.key);
            watch = adamw_pair(&k, &r, i, n.a.low, n.b.low, at, noise_states.key, watch);
            watch = adamw_pair(&k, &r, i + HALF, n.a.high, n.b.high, at + NOISE_WORDS(HALF), noise_states.key, watch);
        }
    }
    return vec_sum(watch) * 0 == 0;
}

/* Every store is rounded stochastically: 8 bytes per parameter in all. The same as adamw_widened in one loop, so that
 * the noise is made while the division and the root keep another unit busy. NaN is looked for once per row, before
 * anything is stored; such a row, and a short one, is left to the careful version. */
static void adamw_all_bf16(const adamw_job *j, size_t begin, size_t end) {
    rng_noise noise_p = noise_open(j->op, j->scalars, NOISE_PARAM, begin);
    rng_noise noise_states = noise_open(j->op, j->scalars, NOISE_STATES, begin);
    uint16_t p_new[ROW], m_new[ROW], v_new[ROW];
    for (size_t i = begin; i < end; i += ROW) {
        uint16_t *p = (uint16_t *)j->p + i, *m = (uint16_t *)j->m + i, *v = (uint16_t *)j->v + i;
        bf16_row r = {p, m, v, (const uint16_t *)j->g + i, p_new, m_new, v_new};
        if (end - i < ROW || !adamw_bf16_row(&j->constants, &r, noise_p, noise_states, noise_place(j->op, i))) {
            adamw_widened(j, i, MIN(i + ROW, end));
            continue;
        }
        pair_copy(p, p_new, ROW);
        pair_copy(m, m_new, ROW);
        pair_copy(v, v_new, ROW);
    }
}

/* ---- the op ---------------------------------------------------------------------------------------------------- */

/* Elements that take their noise from one block. */
static void adamw_run(const adamw_job *j, size_t begin, size_t end) {
    size_t n = end - begin;
    if (j->g_type == DTYPE_BF16 && j->state_type == DTYPE_BF16) {
        adamw_all_bf16(j, begin, end);
        return;
    }
    if (j->state_type != DTYPE_F32 || j->g_type != DTYPE_F32) {
        adamw_widened(j, begin, end);
        return;
    }
    float *m = (float *)j->m + begin, *v = (float *)j->v + begin;
    const float *g = (const float *)j->g + begin;
    if (!j->master) adamw_f32(&j->constants, (float *)j->p + begin, m, v, g, n);
    else adamw_copied(&j->constants, (uint16_t *)j->p + begin, j->p_type, j->master + begin, m, v, g, n);
}

static void adamw_task(void *context, int64_t task, int thread) {
    const adamw_job *j = context;
    update_range r = update_task_range(&j->cut, task);
    for (size_t at = r.begin, stop; at < r.end; at = stop) adamw_run(j, at, stop = noise_end(j->op, at, r.end));
}

/* A step that is left out changes no number. A copy of the master is made all the same: where the parameter lives
 * elsewhere, what stands in its place here is not it yet (op_reads_output), and goes there next. */
static void skipped_task(void *context, int64_t task, int thread) {
    const adamw_job *j = context;
    update_range r = update_task_range(&j->cut, task);
    typed_row_store((uint16_t *)j->p + r.begin, j->master + r.begin, j->p_type, r.end - r.begin);
}

void cpu_kernel_ADAMW(backend_context *c, const kernel_call *k) {
    const float *clip = k->in[ADAMW_CLIP];
    const step_scalars *s = k->in[ADAMW_SCALARS];
    const op_attr *a = &k->op->attr;
    adamw_job j = {.op = k->op,
                   .scalars = s,
                   .p_type = call_out(k, ADAMW_P)->type,
                   .g_type = call_in(k, ADAMW_G)->type,
                   .state_type = call_out(k, ADAMW_M)->type,
                   .p = k->out[ADAMW_P],
                   .master = k->out[ADAMW_MASTER],
                   .m = k->out[ADAMW_M],
                   .v = k->out[ADAMW_V],
                   .m_scale = k->out[ADAMW_M_SCALE],
                   .v_scale = k->out[ADAMW_V_SCALE],
                   .g = k->in[ADAMW_G],
                   .cut = update_cut_for((size_t)shape_count(&call_out(k, ADAMW_P)->shape), pool_threads(c->threads))};
    ASSERT(j.master || j.p_type == j.g_type);
    ASSERT(j.state_type != DTYPE_I8 || (j.m_scale && j.v_scale));
    if (clip[CLIP_SKIP] != 0) {
        if (j.master) pool_run(c->threads, skipped_task, &j, j.cut.n_tasks);
        return;
    }

    float s2 = sqrtf(s->bias2), factor = clip[CLIP_FACTOR];
    j.constants = (adamw_constants){
        .beta1 = a->beta1,
        .gm = (1.0f - a->beta1) * factor,
        .beta2 = a->beta2,
        .gv = sqrtf(1.0f - a->beta2) * factor,
        .eps2 = a->eps * s2,
        .decay = a->weight_decay * s->bias1 / s2,
        .rate = s->lr * (a->lr_scale > 0 ? a->lr_scale : 1) * s2 / s->bias1,
        .variant = variant_of_this_core(),
    };
    pool_run(c->threads, adamw_task, &j, j.cut.n_tasks);
}
