/* optimizer.c - what happens to gradients after backward: accumulate, global norm, clip, AdamW.
 *
 * Every number here has one defined order of operations, so that host SIMD, a scalar loop and a CUDA kernel give the
 * same bits, and so that any cut of a tensor into tasks does. All of it is fp32 round to nearest, `fma` rounds once,
 * square root and division are IEEE.
 *
 * ADAMW, once per tensor:
 *     s2   = sqrt(bias2)            rate  = (lr * s2) / bias1        (bias = 1 - beta^t, in step_scalars)
 *     eps2 = eps * s2               decay = (weight_decay * bias1) / s2
 *     gm   = (1 - beta1) * factor   gv    = sqrt(1 - beta2) * factor  (factor = clip[CLIP_FACTOR])
 * and per element, x = the master where there is one, else the parameter:
 *     m = fma(beta1, m, gm * g)
 *     t = gv * g;  v = fma(t, t, beta2 * v)
 *     u = fma(decay, x, m / (sqrt(v) + eps2))
 *     x = fma(-rate, u, x)
 * That is the textbook step lr * (m^ / (sqrt(v^) + eps) + weight_decay * x) with the bias corrections moved into the
 * constants: one division and one square root per element instead of three and one. With bf16 states the update uses
 * m and v before they are rounded for storage.
 *
 * Stochastic rounding takes 16 bits per element: rng_philox(key, hi, element / 8) gives four words, element e uses half
 * e % 2 (0 = low) of word (e % 8) / 2. key = attr.noise_key ^ (noise_hi:noise_lo), hi = (what | micro << 8) << 32 | step
 * with `what` below; micro counts only for the accumulator. Elements count from the start of the whole parameter
 * (attr.first_element and on), so that any cut into parts at multiples of NORM_BLOCK gives the bits of the whole.
 *
 * GRAD_SUMSQ: per block of NORM_BLOCK elements 16 fp64 lanes, lane j adds the squares of elements j, j + 16, ... in
 * order, then lanes are folded in halves. Squares of fp32 are exact in fp64. */
#include "backend/cpu/typed.h"

#include "backend/cpu/cpu.h"
#include <math.h>

enum { NOISE_ACCUMULATE, NOISE_PARAM, NOISE_M, NOISE_V };
/* One task. Long, because the memory controller likes few long streams: 4 Ki elements reach three quarters of the
 * bandwidth that 64 Ki do. */
enum { TASK_ELEMENTS = 65536 };
/* Stochastic rounding works in pieces whose noise stays in L1. A multiple of 8 * PHILOX_BLOCKS. */
enum { NOISE_ELEMENTS = 1024 };

/* ---- exact vector operations that vector.h leaves to its users ----------------------------------------------- */

#if VEC_WIDTH > 4 || defined(__aarch64__)
VEC_INLINE vec fma_exact(vec a, vec b, vec c) { return vec_fma(a, b, c); }
#else /* vec_fma rounds twice here */
VEC_INLINE vec fma_exact(vec a, vec b, vec c) {
    for (int i = 0; i < VEC_WIDTH; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
#endif

VEC_INLINE vec sqrt_exact(vec x) {
#if VEC_WIDTH == 16
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif VEC_WIDTH == 8
    return (vec)_mm256_sqrt_ps((__m256)x);
#elif defined(__aarch64__)
    return (vec)vsqrtq_f32((float32x4_t)x);
#else
    for (int i = 0; i < VEC_WIDTH; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* ---- noise --------------------------------------------------------------------------------------------------- */

/* The low and high words of a * b in every lane. */
VEC_INLINE void multiply_wide(vec_u32 a, uint32_t b, vec_u32 *lo, vec_u32 *hi) {
#if defined(__aarch64__)
    uint32x4_t x = (uint32x4_t)a;
    uint32x4_t first = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(x), b));
    uint32x4_t second = vreinterpretq_u32_u64(vmull_high_n_u32(x, b));
    *lo = (vec_u32)vuzp1q_u32(first, second);
    *hi = (vec_u32)vuzp2q_u32(first, second);
#else
    for (int i = 0; i < VEC_WIDTH; i++) {
        uint64_t product = (uint64_t)a[i] * b;
        (*lo)[i] = (uint32_t)product;
        (*hi)[i] = (uint32_t)(product >> 32);
    }
#endif
}

/* rng_philox of PHILOX_BLOCKS consecutive counters, from a multiple of that, so the low word never carries. Two vectors
 * run side by side: ten rounds are one long chain, and one vector would mostly wait for its own multiplications. */
enum { PHILOX_VECS = 2, PHILOX_BLOCKS = PHILOX_VECS * VEC_WIDTH };
VEC_INLINE void philox_blocks(uint64_t key, uint64_t counter_hi, uint64_t block, uint32_t *out) {
    vec_u32 c0[PHILOX_VECS], c1[PHILOX_VECS], c2[PHILOX_VECS], c3[PHILOX_VECS];
    uint32_t low[PHILOX_BLOCKS];
    for (uint32_t i = 0; i < PHILOX_BLOCKS; i++) low[i] = (uint32_t)block + i;
    for (int v = 0; v < PHILOX_VECS; v++) {
        memcpy(&c0[v], low + v * VEC_WIDTH, sizeof c0[v]);
        c1[v] = (vec_u32){0} + (uint32_t)(block >> 32);
        c2[v] = (vec_u32){0} + (uint32_t)counter_hi;
        c3[v] = (vec_u32){0} + (uint32_t)(counter_hi >> 32);
    }
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int v = 0; v < PHILOX_VECS; v++) {
            vec_u32 a_lo, a_hi, b_lo, b_hi;
            multiply_wide(c0[v], 0xD2511F53u, &a_lo, &a_hi);
            multiply_wide(c2[v], 0xCD9E8D57u, &b_lo, &b_hi);
            c0[v] = b_hi ^ c1[v] ^ k0;
            c1[v] = b_lo;
            c2[v] = a_hi ^ c3[v] ^ k1;
            c3[v] = a_lo;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int v = 0; v < PHILOX_VECS; v++) {
#if defined(__aarch64__)
        uint32x4x4_t words = {{(uint32x4_t)c0[v], (uint32x4_t)c1[v], (uint32x4_t)c2[v], (uint32x4_t)c3[v]}};
        vst4q_u32(out + 4 * VEC_WIDTH * v, words);
#else
        for (int i = 0; i < VEC_WIDTH; i++) {
            uint32_t *words = out + 4 * (VEC_WIDTH * v + i);
            words[0] = c0[v][i];
            words[1] = c1[v][i];
            words[2] = c2[v][i];
            words[3] = c3[v][i];
        }
#endif
    }
}

typedef struct noise_source {
    uint64_t key, counter_hi;
    size_t first; /* element of the whole parameter that is element 0 here, a multiple of NORM_BLOCK */
} noise_source;

static noise_source noise_of(const op *o, const step_scalars *s, uint32_t what) {
    return (noise_source){.key = o->attr.noise_key ^ ((uint64_t)s->noise_hi << 32 | s->noise_lo),
                          .counter_hi = (uint64_t)what << 32 | s->step,
                          .first = (size_t)o->attr.first_element};
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the low half of a word is the first 16-bit number in memory");

/* NOISE_ELEMENTS numbers of 16 bits for the elements from `first`, which is a multiple of NOISE_ELEMENTS. */
static void noise_fill(uint16_t *noise, noise_source s, size_t first) {
    uint32_t words[4 * PHILOX_BLOCKS];
    for (size_t i = 0; i < NOISE_ELEMENTS; i += 8 * PHILOX_BLOCKS) {
        philox_blocks(s.key, s.counter_hi, (s.first + first + i) / 8, words);
        memcpy(noise + i, words, sizeof words);
    }
}

/* f32_to_bf16_stochastic in every lane: no noise for infinity and NaN, and a NaN is made quiet. */
VEC_INLINE void store_stochastic(uint16_t *dst, vec x, const uint16_t *noise) {
#if defined(__aarch64__)
    uint32x4_t u = (uint32x4_t)x, largest = vdupq_n_u32(0x7f800000);
    uint32x4_t finite = (uint32x4_t)vcaltq_f32((float32x4_t)x, (float32x4_t)largest);
    uint32x4_t number = vceqq_f32((float32x4_t)x, (float32x4_t)x);
    u = vorrq_u32(u, vbicq_u32(vdupq_n_u32(0x400000), number));
    vst1_u16(dst, vaddhn_u32(u, vandq_u32(vmovl_u16(vld1_u16(noise)), finite)));
#else
    vec_u16 bits;
    memcpy(&bits, noise, sizeof bits);
    vec_u32 u = (vec_u32)x, magnitude = u & 0x7fffffffu;
    vec_u32 finite = (vec_u32)(magnitude < 0x7f800000u), nan = (vec_u32)(magnitude > 0x7f800000u);
    u = (u | (nan & 0x400000u)) + (__builtin_convertvector(bits, vec_u32) & finite);
    vec_u16 h = __builtin_convertvector(u >> 16, vec_u16);
    memcpy(dst, &h, sizeof h);
#endif
}

/* ---- accumulate ---------------------------------------------------------------------------------------------- */

typedef struct accumulate_job {
    const op *op;
    const step_scalars *scalars;
    const void *x;
    dtype x_type, acc_type;
    void *acc;
    size_t n;
} accumulate_job;

static void add_row(float *acc, const float *x, size_t n) {
    size_t i = 0;
    for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_store(acc + i, vec_load(acc + i) + vec_load(x + i));
    for (; i < n; i++) acc[i] += x[i];
}

static void accumulate_task(void *context, int64_t task, int thread) {
    const accumulate_job *j = context;
    size_t begin = (size_t)task * TASK_ELEMENTS, end = MIN(begin + TASK_ELEMENTS, j->n);
    bool restart = j->scalars->micro == 0;
    noise_source source = noise_of(j->op, j->scalars, NOISE_ACCUMULATE | j->scalars->micro << 8);
    float sum[NOISE_ELEMENTS], x[NOISE_ELEMENTS];
    uint16_t noise[NOISE_ELEMENTS], rounded[NOISE_ELEMENTS];
    for (size_t i = begin; i < end; i += NOISE_ELEMENTS) {
        size_t n = MIN((size_t)NOISE_ELEMENTS, end - i);
        const char *x_data = (const char *)j->x + i * dtype_bytes(j->x_type);
        if (j->acc_type == DTYPE_F32) {
            float *acc = (float *)j->acc + i;
            if (restart) {
                typed_row_load(acc, x_data, j->x_type, n);
            } else if (j->x_type == DTYPE_F32) {
                add_row(acc, (const float *)x_data, n);
            } else {
                typed_row_load(x, x_data, j->x_type, n);
                add_row(acc, x, n);
            }
            continue;
        }
        uint16_t *acc = (uint16_t *)j->acc + i;
        memset(sum, 0, sizeof sum); /* the tail of the last piece is computed too, and thrown away */
        typed_row_load(sum, x_data, j->x_type, n);
        if (!restart) {
            typed_row_load(x, acc, DTYPE_BF16, n);
            add_row(sum, x, n);
        }
        noise_fill(noise, source, i);
        for (size_t e = 0; e < n; e += VEC_WIDTH) store_stochastic(rounded + e, vec_load(sum + e), noise + e);
        memcpy(acc, rounded, n * sizeof *acc);
    }
}

static int64_t task_count(size_t n) { return (int64_t)((n + TASK_ELEMENTS - 1) / TASK_ELEMENTS); }

void cpu_kernel_ACCUMULATE(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, 0), *acc = call_out(k, 0);
    accumulate_job j = {.op = k->op,
                        .scalars = k->in[1],
                        .x = k->in[0],
                        .x_type = x->type,
                        .acc_type = acc->type,
                        .acc = k->out[0],
                        .n = (size_t)shape_count(&acc->shape)};
    ASSERT(acc->type == DTYPE_F32 || acc->type == DTYPE_BF16);
    pool_run(c->threads, accumulate_task, &j, task_count(j.n));
}

/* ---- global norm --------------------------------------------------------------------------------------------- */

enum { NORM_LANES = 16 };
_Static_assert(NORM_BLOCK % NORM_LANES == 0, "only the end of a tensor has a short group of lanes");
typedef double double_vec __attribute__((vector_size(4 * VEC_WIDTH)));
enum { DOUBLES = VEC_WIDTH / 2, NORM_SUMS = NORM_LANES / DOUBLES };

typedef struct sumsq_job {
    const void *g;
    dtype type;
    double *partials;
    size_t n;
} sumsq_job;

VEC_INLINE double_vec widen_half(const float *x) {
#if defined(__aarch64__) /* gcc 12 would convert one lane at a time */
    return (double_vec)vcvt_f64_f32(vld1_f32(x));
#else
    typedef float half_vec __attribute__((vector_size(2 * VEC_WIDTH)));
    half_vec h;
    memcpy(&h, x, sizeof h);
    return __builtin_convertvector(h, double_vec);
#endif
}

VEC_INLINE void sumsq_group(double_vec sum[NORM_SUMS], const float *x) {
    for (int s = 0; s < NORM_SUMS; s++) {
        double_vec d = widen_half(x + s * DOUBLES);
#if defined(__aarch64__) /* d * d is exact, so one rounding or two is the same; one instruction is faster */
        sum[s] = (double_vec)vfmaq_f64((float64x2_t)sum[s], (float64x2_t)d, (float64x2_t)d);
#else
        sum[s] += d * d;
#endif
    }
}

static void sumsq_task(void *context, int64_t task, int thread) {
    const sumsq_job *j = context;
    size_t begin = (size_t)task * NORM_BLOCK, end = MIN(begin + NORM_BLOCK, j->n);
    double_vec sum[NORM_SUMS];
    memset(sum, 0, sizeof sum);
    float buffer[1024];
    for (size_t i = begin; i < end; i += ARRAY_LENGTH(buffer)) {
        size_t n = MIN(ARRAY_LENGTH(buffer), end - i), e = 0;
        const float *x = buffer;
        if (j->type == DTYPE_F32) x = (const float *)j->g + i;
        else typed_row_load(buffer, (const uint16_t *)j->g + i, j->type, n);
        for (; e + NORM_LANES <= n; e += NORM_LANES) sumsq_group(sum, x + e);
        if (e < n) { /* adding zero squares changes no lane */
            float tail[NORM_LANES] = {0};
            memcpy(tail, x + e, (n - e) * sizeof(float));
            sumsq_group(sum, tail);
        }
    }
    double lane[NORM_LANES];
    memcpy(lane, sum, sizeof lane);
    for (int half = NORM_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    j->partials[task] = lane[0];
}

void cpu_kernel_GRAD_SUMSQ(backend_context *c, const kernel_call *k) {
    const value *g = call_in(k, 0);
    sumsq_job j = {.g = k->in[0], .type = g->type, .partials = k->out[0], .n = (size_t)shape_count(&g->shape)};
    int64_t n_blocks = (int64_t)((j.n + NORM_BLOCK - 1) / NORM_BLOCK);
    ASSERT(shape_count(&call_out(k, 0)->shape) == n_blocks);
    pool_run(c->threads, sumsq_task, &j, n_blocks);
}

/* In double to the end: the factor multiplies every gradient of the step. */
void cpu_kernel_CLIP(backend_context *c, const kernel_call *k) {
    const double *partials = k->in[0], *sums = k->in[1];
    const step_scalars *s = k->in[2];
    float *clip = k->out[0];
    int64_t n = shape_count(&call_in(k, 0)->shape);
    double sum = 0, divisor = sums[k->op->attr.normalize_by_weights ? SUM_WEIGHTS : SUM_VALID];
    for (int64_t i = 0; i < n; i++) sum += partials[i];
    if (divisor == 0) divisor = 1; /* no token was valid: the gradient is zero, and stays zero */
    double factor = s->grad_unscale / divisor, norm = sqrt(sum) * factor;
    if (k->op->attr.clip > 0) factor *= fmin(1, k->op->attr.clip / (norm + 1e-6));
    bool skip = !isfinite(norm) || !isfinite(sums[SUM_WEIGHTED_LOSS]);
    memset(clip, 0, CLIP_COUNT * sizeof *clip);
    clip[CLIP_NORM] = (float)norm;
    clip[CLIP_FACTOR] = skip ? 0 : (float)factor;
    clip[CLIP_SKIP] = skip;
    clip[CLIP_LOSS] = (float)(sums[SUM_WEIGHTED_LOSS] / divisor);
}

/* ---- AdamW --------------------------------------------------------------------------------------------------- */

typedef struct adamw_constants {
    float beta1, gm, beta2, gv, eps2, decay, rate;
} adamw_constants;

typedef struct adamw_job {
    adamw_constants constants;
    dtype p_type;
    void *p, *m, *v;
    float *master; /* NULL without */
    const void *g;
    size_t n;
    noise_source noise_p, noise_m, noise_v;
} adamw_job;

/* The step of the file header on one vector of elements, in two parts: the square roots of two vectors are started
 * before the first division that waits for one. */
typedef struct adamw_moments {
    vec m, v, root;
} adamw_moments;

VEC_INLINE adamw_moments adamw_first(const adamw_constants *k, vec m, vec v, vec g) {
    vec t = vec_set(k->gv) * g;
    v = fma_exact(t, t, vec_set(k->beta2) * v);
    return (adamw_moments){.root = sqrt_exact(v), .v = v, .m = fma_exact(vec_set(k->beta1), m, vec_set(k->gm) * g)};
}

VEC_INLINE vec adamw_second(const adamw_constants *k, vec x, const adamw_moments *s) {
    vec u = fma_exact(vec_set(k->decay), x, s->m / (s->root + vec_set(k->eps2)));
    return fma_exact(vec_set(-k->rate), u, x);
}

/* How many elements ahead memory is asked for. The hardware prefetcher alone leaves 5 to 8 % on the table; 1024 and
 * 2048 are equally good, 512 is too near. */
enum { AHEAD = 1024 };

/* As an integer, because the place may lie past the array; a prefetch never faults. */
VEC_INLINE void ask_ahead(const float *p) { __builtin_prefetch((const void *)((uintptr_t)p + AHEAD * sizeof *p)); }

VEC_INLINE adamw_moments adamw_first_at(const adamw_constants *k, float *x, float *m, float *v, const float *g) {
    ask_ahead(x);
    ask_ahead(m);
    ask_ahead(v);
    ask_ahead(g);
    adamw_moments s = adamw_first(k, vec_load(m), vec_load(v), vec_load(g));
    vec_store(m, s.m);
    vec_store(v, s.v);
    return s;
}

VEC_INLINE vec adamw_second_at(const adamw_constants *k, float *x, const adamw_moments *s) {
    vec x_new = adamw_second(k, vec_load(x), s);
    vec_store(x, x_new);
    return x_new;
}

/* The last few elements go through the same vector code on copies. */
static void adamw_tail(const adamw_constants *k, float *x, float *m, float *v, const float *g, size_t n) {
    adamw_moments s =
        adamw_first(k, typed_load(m, DTYPE_F32, 0, n), typed_load(v, DTYPE_F32, 0, n), typed_load(g, DTYPE_F32, 0, n));
    typed_store(x, DTYPE_F32, 0, n, adamw_second(k, typed_load(x, DTYPE_F32, 0, n), &s));
    typed_store(m, DTYPE_F32, 0, n, s.m);
    typed_store(v, DTYPE_F32, 0, n, s.v);
}

static void adamw_f32(const adamw_constants *constants, float *restrict x, float *restrict m, float *restrict v,
                      const float *restrict g, size_t n) {
    const adamw_constants k = *constants;
    size_t i = 0;
    for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) {
        adamw_moments s = adamw_first_at(&k, x + i, m + i, v + i, g + i);
        adamw_second_at(&k, x + i, &s);
    }
    if (i < n) adamw_tail(&k, x + i, m + i, v + i, g + i, n - i);
}

#if defined(__aarch64__)
/* Eight rounded parameters, right for everything but NaN (a payload of ones would carry into the sign). The division
 * and the root keep one of the two vector units busy all the time, so each instruction on the other one counts: this
 * takes three per vector, typed_to_bf16 seven. */
VEC_INLINE void store_bf16_no_nan(uint16_t *dst, vec a, vec b) {
    uint32x4_t ua = (uint32x4_t)a, ub = (uint32x4_t)b, odd = vdupq_n_u32(0x10000), half = vdupq_n_u32(0x7fff);
    uint16x4_t low = vaddhn_u32(ua, vsubq_u32(half, vtstq_u32(ua, odd))); /* the test gives -1 where it holds */
    vst1q_u16(dst, vaddhn_high_u32(low, ub, vsubq_u32(half, vtstq_u32(ub, odd))));
}
#else
VEC_INLINE void store_bf16_no_nan(uint16_t *dst, vec a, vec b) {
    typed_to_bf16(dst, a);
    typed_to_bf16(dst + VEC_WIDTH, b);
}
#endif

/* fp32 master and a 16-bit parameter that is its rounded copy. NaN is looked for once per piece, while it is in L1. */
VEC_INLINE void adamw_rounded(const adamw_constants *constants, uint16_t *restrict p, dtype p_type, float *restrict x,
                              float *restrict m, float *restrict v, const float *restrict g, size_t n) {
    enum { PIECE = 1024 };
    const adamw_constants k = *constants;
    for (size_t begin = 0; begin < n; begin += PIECE) {
        size_t end = MIN(begin + PIECE, n), i = begin;
        vec watch = {0}; /* turns NaN, for good, at the first infinity or NaN */
        for (; i + 2 * VEC_WIDTH <= end; i += 2 * VEC_WIDTH) {
            size_t next = i + VEC_WIDTH;
            adamw_moments s = adamw_first_at(&k, x + i, m + i, v + i, g + i);
            adamw_moments s_next = adamw_first_at(&k, x + next, m + next, v + next, g + next);
            vec a = adamw_second_at(&k, x + i, &s), b = adamw_second_at(&k, x + next, &s_next);
            watch = vec_fma(a, (vec){0}, watch);
            watch = vec_fma(b, (vec){0}, watch);
            if (p_type == DTYPE_BF16) {
                store_bf16_no_nan(p + i, a, b);
            } else {
                vec_to_f16(p + i, a);
                vec_to_f16(p + next, b);
            }
        }
        size_t rest = i;
        if (i < end) {
            adamw_f32(&k, x + i, m + i, v + i, g + i, end - i);
            typed_row_store(p + rest, x + rest, p_type, end - rest);
        }
        if (vec_sum(watch) != 0) typed_row_store(p + begin, x + begin, p_type, rest - begin);
    }
}

/* Everything bf16, every store rounded stochastically: 8 bytes per parameter in all. */
static void adamw_stochastic(const adamw_job *j, size_t begin, size_t end) {
    const adamw_constants k = j->constants;
    uint16_t noise[3][NOISE_ELEMENTS], part[4][NOISE_ELEMENTS], *const values[3] = {j->p, j->m, j->v};
    for (size_t i = begin; i < end; i += NOISE_ELEMENTS) {
        size_t n = MIN((size_t)NOISE_ELEMENTS, end - i), n_bytes = n * sizeof(uint16_t);
        noise_fill(noise[0], j->noise_p, i);
        noise_fill(noise[1], j->noise_m, i);
        noise_fill(noise[2], j->noise_v, i);
        if (n < NOISE_ELEMENTS) memset(part, 0, sizeof part); /* computed too, and thrown away */
        for (int a = 0; a < 3; a++) memcpy(part[a], values[a] + i, n_bytes);
        memcpy(part[3], (const uint16_t *)j->g + i, n_bytes);
        for (size_t e = 0; e < n; e += VEC_WIDTH) {
            adamw_moments s = adamw_first(&k, typed_from_bf16(part[1] + e), typed_from_bf16(part[2] + e),
                                          typed_from_bf16(part[3] + e));
            vec x = adamw_second(&k, typed_from_bf16(part[0] + e), &s);
            store_stochastic(part[0] + e, x, noise[0] + e);
            store_stochastic(part[1] + e, s.m, noise[1] + e);
            store_stochastic(part[2] + e, s.v, noise[2] + e);
        }
        for (int a = 0; a < 3; a++) memcpy(values[a] + i, part[a], n_bytes);
    }
}

static void adamw_task(void *context, int64_t task, int thread) {
    const adamw_job *j = context;
    size_t begin = (size_t)task * TASK_ELEMENTS, end = MIN(begin + TASK_ELEMENTS, j->n), n = end - begin;
    if (!j->master && j->p_type == DTYPE_BF16) {
        adamw_stochastic(j, begin, end);
        return;
    }
    float *m = (float *)j->m + begin, *v = (float *)j->v + begin;
    const float *g = (const float *)j->g + begin;
    if (!j->master) adamw_f32(&j->constants, (float *)j->p + begin, m, v, g, n);
    else if (j->p_type == DTYPE_BF16)
        adamw_rounded(&j->constants, (uint16_t *)j->p + begin, DTYPE_BF16, j->master + begin, m, v, g, n);
    else adamw_rounded(&j->constants, (uint16_t *)j->p + begin, DTYPE_F16, j->master + begin, m, v, g, n);
}

void cpu_kernel_ADAMW(backend_context *c, const kernel_call *k) {
    const float *clip = k->in[1];
    const step_scalars *s = k->in[2];
    const op_attr *a = &k->op->attr;
    dtype p_type = call_out(k, 0)->type;
    if (clip[CLIP_SKIP] != 0) return;

    adamw_job j = {.p_type = p_type,
                   .p = k->out[0],
                   .master = k->out[1],
                   .m = k->out[2],
                   .v = k->out[3],
                   .g = k->in[0],
                   .n = (size_t)shape_count(&call_out(k, 0)->shape)};
    bool stochastic = !j.master && p_type == DTYPE_BF16;
    ASSERT(j.master ? p_type == DTYPE_BF16 || p_type == DTYPE_F16 : p_type == DTYPE_F32 || stochastic);
    ASSERT(!j.master || call_out(k, 1)->type == DTYPE_F32);
    dtype state_type = stochastic ? DTYPE_BF16 : DTYPE_F32;
    ASSERT(call_in(k, 0)->type == state_type && call_out(k, 2)->type == state_type &&
           call_out(k, 3)->type == state_type);

    float s2 = sqrtf(s->bias2), factor = clip[CLIP_FACTOR];
    j.constants = (adamw_constants){
        .beta1 = a->beta1,
        .gm = (1.0f - a->beta1) * factor,
        .beta2 = a->beta2,
        .gv = sqrtf(1.0f - a->beta2) * factor,
        .eps2 = a->eps * s2,
        .decay = a->weight_decay * s->bias1 / s2,
        .rate = s->lr * s2 / s->bias1,
    };
    j.noise_p = noise_of(k->op, s, NOISE_PARAM);
    j.noise_m = noise_of(k->op, s, NOISE_M);
    j.noise_v = noise_of(k->op, s, NOISE_V);
    pool_run(c->threads, adamw_task, &j, task_count(j.n));
}
