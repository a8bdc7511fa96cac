/* gemm_rows.c - C = A B for few rows of A, as decoding needs it: every weight is read once and used for all rows.
 *
 * The general GEMM packs the weight before it multiplies, which pays only when many rows use the panel, and it computes
 * whole tiles of rows. Here W weight rows (W: lanes of a vector) x 4 steps of k are turned in registers, and each turned
 * vector meets one element of every row of A: no panel is written, nothing is computed for rows that are not there.
 *
 * The arithmetic is that of our GEMM kernels: an element is a chain of fma over kc steps of k from 0 upwards, the chains
 * added in order, the bias, one rounding. So the bits are those of the GEMM, which takes over above FEW_MOST rows, and a
 * row's result does not depend on how many rows there are. Kernels that sum otherwise (AMX, AVX512-BF16, BFMMLA, the
 * portable one) serve every number of rows themselves.
 *
 * Where a weight is in the order of lanes (gemm.h) nothing is turned and it comes as one stream. */
#include "backend/cpu/typed.h"

#include "backend/cpu/gemm_kernels.h"

enum {
    FEW_MOST = GEMM_FEW_ROWS,
    MOST_GROUPS = 2, /* of W weight rows, at once: four are more streams than the sets of a cache may hold */
    MOST_SUMS = VEC_WIDTH == 8 ? 12 : 18, /* vectors, of lanes */
    TASK_WEIGHTS = 65536,                 /* elements of B per task, at least: long enough to hide the claiming */
    TASKS_OF_A_THREAD = 4,
};

typedef struct few_job {
    const gemm_call *g;
    const gemm_kernel *kernel;
    const float *x; /* rows of A as fp32 */
    int64_t ldx;
    int64_t kc, columns_per_task;
    int64_t panel,
        n_lanes; /* columns of a panel, and those in whole panels, where B is in the order of lanes; else 0 */
} few_job;

typedef float quad __attribute__((vector_size(16)));
VEC_INLINE quad load_quad(const void *w, dtype t, int64_t at) {
    quad q;
    if (t == DTYPE_F32) {
        memcpy(&q, (const float *)w + at, sizeof q);
        return q;
    }
    const uint16_t *h = (const uint16_t *)w + at;
#if defined(__aarch64__)
    if (t == DTYPE_BF16) return (quad)vshll_n_u16(vld1_u16(h), 16);
    return (quad)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
#elif defined(__AVX2__) && defined(__F16C__)
    __m128i bits = _mm_loadl_epi64((const __m128i *)h);
    if (t == DTYPE_BF16) return (quad)_mm_slli_epi32(_mm_cvtepu16_epi32(bits), 16);
    return (quad)_mm_cvtph_ps(bits);
#else
    for (int i = 0; i < 4; i++) q[i] = t == DTYPE_BF16 ? bf16_to_f32(h[i]) : f16_to_f32(h[i]);
    return q;
#endif
}

#if VEC_WIDTH == 8
typedef double vec_pairs __attribute__((vector_size(32)));
#define EVEN 0, 8, 2, 10, 4, 12, 6, 14
#define ODD 1, 9, 3, 11, 5, 13, 7, 15
#define LOW_PAIRS 0, 4, 2, 6
#define HIGH_PAIRS 1, 5, 3, 7
VEC_INLINE vec load_rows4(const void *const *w, dtype t, int64_t at, int i) { /* weight rows i and i + 4 */
    return __builtin_shufflevector(load_quad(w[i], t, at), load_quad(w[i + 4], t, at), 0, 1, 2, 3, 4, 5, 6, 7);
}
#else
typedef double vec_pairs __attribute__((vector_size(16)));
#define EVEN 0, 4, 2, 6
#define ODD 1, 5, 3, 7
#define LOW_PAIRS 0, 2
#define HIGH_PAIRS 1, 3
VEC_INLINE vec load_rows4(const void *const *w, dtype t, int64_t at, int i) { return (vec)load_quad(w[i], t, at); }
#endif

/* turned[s] lane j = w[j][at + s]: a transpose inside every group of four lanes. */
VEC_INLINE void load_turned4(vec turned[4], const void *const *w, dtype t, int64_t at) {
    vec r0 = load_rows4(w, t, at, 0), r1 = load_rows4(w, t, at, 1), r2 = load_rows4(w, t, at, 2);
    vec r3 = load_rows4(w, t, at, 3);
    vec_pairs a = (vec_pairs)__builtin_shufflevector(r0, r1, EVEN), b = (vec_pairs)__builtin_shufflevector(r0, r1, ODD);
    vec_pairs c = (vec_pairs)__builtin_shufflevector(r2, r3, EVEN), d = (vec_pairs)__builtin_shufflevector(r2, r3, ODD);
    turned[0] = (vec)__builtin_shufflevector(a, c, LOW_PAIRS);
    turned[1] = (vec)__builtin_shufflevector(b, d, LOW_PAIRS);
    turned[2] = (vec)__builtin_shufflevector(a, c, HIGH_PAIRS);
    turned[3] = (vec)__builtin_shufflevector(b, d, HIGH_PAIRS);
}

/* The same for 4 steps, or for 8 of 16-bit types, which are turned as pairs and then widened: half the shuffles per element. */
#if defined(__aarch64__)
#define STEPS(t) ((t) == DTYPE_F32 ? 4 : 8)
VEC_INLINE void widen_f16_pairs(vec turned[4], vec first, vec second) { /* steps 0 and 1, 2 and 3 */
    float16x8_t even = vreinterpretq_f16_u16(vuzp1q_u16((uint16x8_t)first, (uint16x8_t)second));
    float16x8_t odd = vreinterpretq_f16_u16(vuzp2q_u16((uint16x8_t)first, (uint16x8_t)second));
    turned[0] = (vec)vcvt_f32_f16(vget_low_f16(even)), turned[2] = (vec)vcvt_high_f32_f16(even);
    turned[1] = (vec)vcvt_f32_f16(vget_low_f16(odd)), turned[3] = (vec)vcvt_high_f32_f16(odd);
}
#else
#define STEPS(t) ((t) == DTYPE_BF16 ? 8 : 4)
#endif
enum { STEPS_MOST = 8 };

VEC_INLINE void load_turned(vec turned[STEPS_MOST], const void *const *w, dtype t, int64_t at) {
    if (STEPS(t) == 4) {
        load_turned4(turned, w, t, at);
        return;
    }
    vec pairs[4];
    load_turned4(pairs, w, DTYPE_F32, at / 2);
#if defined(__aarch64__)
    if (t == DTYPE_F16) {
        widen_f16_pairs(turned, pairs[0], pairs[1]);
        widen_f16_pairs(turned + 4, pairs[2], pairs[3]);
        return;
    }
#endif
    for (int i = 0; i < 4; i++) {
        turned[2 * i] = (vec)((vec_u32)pairs[i] << 16);
        turned[2 * i + 1] = (vec)((vec_u32)pairs[i] & 0xffff0000u);
    }
}

VEC_INLINE vec load_column(const void *const *w, dtype t, int64_t at) {
    vec v;
    for (int j = 0; j < VEC_WIDTH; j++) v[j] = tensor_get_f32(w[j], t, (size_t)at);
    return v;
}

/* sum += W weights x one element of every row of A, STEPS(t) steps of k from `k` on. */
VEC_INLINE void few_steps(dtype t, const int rows, const few_job *j, const void *const *w, int64_t k, vec *sum) {
    vec turned[STEPS_MOST];
    load_turned(turned, w, t, k);
    for (int r = 0; r < rows; r++) {
        const float *x = j->x + r * j->ldx + k;
#if defined(__aarch64__)
        float32x4_t s = (float32x4_t)sum[r];
        for (int i = 0; i < STEPS(t); i += 4) {
            float32x4_t a = vld1q_f32(x + i);
            s = vfmaq_laneq_f32(s, (float32x4_t)turned[i], a, 0);
            s = vfmaq_laneq_f32(s, (float32x4_t)turned[i + 1], a, 1);
            s = vfmaq_laneq_f32(s, (float32x4_t)turned[i + 2], a, 2);
            s = vfmaq_laneq_f32(s, (float32x4_t)turned[i + 3], a, 3);
        }
        sum[r] = (vec)s;
#else
        for (int i = 0; i < STEPS(t); i++) sum[r] = vec_fma(turned[i], vec_set(x[i]), sum[r]);
#endif
    }
}

/* Sums of `rows` rows of A with `groups` x W weight rows over the whole of k. While they are computed, as many bytes from
 * `next` on are asked for: the weight rows that come next, which begin where these end. A machine's own prefetching follows
 * neither so many streams at once nor ones that end after a few hundred bytes. */
VEC_INLINE void few_sums(dtype t, const int rows, const int groups, const few_job *j, const void *const *w,
                         const char *next, vec *total) {
    const int step_bytes = groups * VEC_WIDTH * STEPS(t) * (t == DTYPE_F32 ? 4 : 2);
    int64_t k_all = j->g->k, k0 = 0;
    do {
        int64_t end = MIN(k0 + j->kc, k_all), k = k0;
        vec sum[MOST_GROUPS * FEW_MOST];
        for (int i = 0; i < groups * rows; i++) sum[i] = vec_set(0);
        for (; k + STEPS(t) <= end; k += STEPS(t), next += step_bytes) {
            for (int line = 0; line < step_bytes; line += 64) __builtin_prefetch(next + line);
            for (int q = 0; q < groups; q++) few_steps(t, rows, j, w + q * VEC_WIDTH, k, sum + q * rows);
        }
        for (; k < end; k++)
            for (int q = 0; q < groups; q++) {
                vec column = load_column(w + q * VEC_WIDTH, t, k);
                for (int r = 0; r < rows; r++)
                    sum[q * rows + r] = vec_fma(column, vec_set(j->x[r * j->ldx + k]), sum[q * rows + r]);
            }
        for (int i = 0; i < groups * rows; i++) total[i] = k0 == 0 ? sum[i] : total[i] + sum[i];
        k0 += j->kc;
    } while (k0 < k_all);
}

/* Finished sums of row r and columns n on leave for C. */
VEC_INLINE void put_sums(const gemm_call *g, int r, int64_t n, size_t lanes, vec v) {
    if (g->scale) v = v * *g->scale;
    if (g->bias) v = v + typed_load(g->bias, g->bias_type, (size_t)n, lanes);
    if (g->add) v = v + typed_load(g->add, g->c_type, (size_t)(r * g->ld_add + n), lanes);
    typed_store(g->c, g->c_type, (size_t)(r * g->ldc + n), lanes, v);
}

/* All rows of A, weight rows [first, end). */
VEC_INLINE void few_strip(dtype t, const int rows, const int groups, const few_job *j, int64_t first, int64_t end) {
    const gemm_call *g = j->g;
    const int columns = groups * VEC_WIDTH;
    const int64_t strip_bytes = columns * g->b.col_stride * (int64_t)dtype_bytes(t);
    for (int64_t n = first; n < end; n += columns) {
        const void *w[MOST_GROUPS * VEC_WIDTH];
        vec total[MOST_GROUPS * FEW_MOST];
        size_t wanted = (size_t)MIN((int64_t)columns, end - n);
        for (int i = 0; i < columns; i++) /* past the end the last row again: computed, not stored */
            w[i] = (const char *)g->b.data + (size_t)(MIN(n + i, end - 1) * g->b.col_stride) * dtype_bytes(t);
        /* Past the last one: itself again, which is in the cache. */
        const char *next = n + 2 * columns <= g->n ? (const char *)w[0] + strip_bytes : w[0];
        few_sums(t, rows, groups, j, w, next, total);
        for (int r = 0; r < rows; r++)
            for (int q = 0; q < groups && (size_t)(q * VEC_WIDTH) < wanted; q++)
                put_sums(g, r, n + q * VEC_WIDTH, MIN((size_t)VEC_WIDTH, wanted - (size_t)(q * VEC_WIDTH)),
                         total[q * rows + r]);
    }
}

/* Sums of more than 4 rows with two groups are more than the 16 registers of AVX2. */
enum { GROUPS = MOST_GROUPS, GROUPS_MANY = VEC_WIDTH == 8 ? 1 : MOST_GROUPS };

VEC_INLINE void few_rows(dtype t, const few_job *j, int64_t first, int64_t end) {
    switch (j->g->m) {
    case 1: few_strip(t, 1, GROUPS, j, first, end); break;
    case 2: few_strip(t, 2, GROUPS, j, first, end); break;
    case 3: few_strip(t, 3, GROUPS, j, first, end); break;
    case 4: few_strip(t, 4, GROUPS, j, first, end); break;
    case 5: few_strip(t, 5, GROUPS_MANY, j, first, end); break;
    default: few_strip(t, FEW_MOST, GROUPS_MANY, j, first, end); break;
    }
}

/* ---- weights in the order of lanes ---------------------------------------------------------------------------------- */

/* `vecs` vectors of lanes times an element of every row of A, of four steps of k or one. The first `per` are of this panel, the
 * others of the next. */
VEC_INLINE vec lanes_load(dtype t, const int per, const few_job *j, const void *panel, int64_t k, int v) {
    int64_t at = v < per ? v * VEC_WIDTH : (v - per) * VEC_WIDTH + j->panel * j->g->k;
    return typed_load(panel, t, (size_t)(k * j->panel + at), VEC_WIDTH);
}

VEC_INLINE void lanes_steps(dtype t, const int rows, const int per, const int vecs, const int steps, const few_job *j,
                            const void *panel, int64_t k, vec *sum) {
    for (int i = 0; i < steps; i++) {
        vec x[FEW_MOST];
        for (int r = 0; r < rows; r++) x[r] = vec_set(j->x[r * j->ldx + k + i]);
        for (int v = 0; v < vecs; v++) {
            vec w = lanes_load(t, per, j, panel, k + i, v);
            for (int r = 0; r < rows; r++) sum[v * rows + r] = vec_fma(w, x[r], sum[v * rows + r]);
        }
    }
}

#if defined(__aarch64__)
/* The elements of a row of A as one vector, of which fma takes a lane. */
VEC_INLINE void lanes_four_steps(dtype t, const int rows, const int per, const int vecs, const few_job *j,
                                 const void *panel, int64_t k, vec *sum) {
    float32x4_t x[FEW_MOST];
    for (int r = 0; r < rows; r++) x[r] = vld1q_f32(j->x + r * j->ldx + k);
#define STEP(lane)                                                                                                \
    for (int v = 0; v < vecs; v++) {                                                                              \
        vec w = lanes_load(t, per, j, panel, k + lane, v);                                                        \
        for (int r = 0; r < rows; r++)                                                                            \
            sum[v * rows + r] = (vec)vfmaq_laneq_f32((float32x4_t)sum[v * rows + r], (float32x4_t)w, x[r], lane); \
    }
    STEP(0)
    STEP(1)
    STEP(2)
    STEP(3)
#undef STEP
}
#else
VEC_INLINE void lanes_four_steps(dtype t, const int rows, const int per, const int vecs, const few_job *j,
                                 const void *panel, int64_t k, vec *sum) {
    lanes_steps(t, rows, per, vecs, 4, j, panel, k, sum);
}
#endif

/* The same sums where a panel is one stream and its columns are lanes already. */
VEC_INLINE void lanes_sums(dtype t, const int rows, const int per, const int vecs, const few_job *j, const void *panel,
                           vec *total) {
    int64_t k0 = 0;
    do {
        int64_t end = MIN(k0 + j->kc, j->g->k), k = k0;
        vec sum[MAX(MOST_SUMS, 3 * FEW_MOST)];
        for (int i = 0; i < vecs * rows; i++) sum[i] = vec_set(0);
        for (; k + 4 <= end; k += 4) lanes_four_steps(t, rows, per, vecs, j, panel, k, sum);
        for (; k < end; k++) lanes_steps(t, rows, per, vecs, 1, j, panel, k, sum);
        for (int i = 0; i < vecs * rows; i++) total[i] = k0 == 0 ? sum[i] : total[i] + sum[i];
        k0 += j->kc;
    } while (k0 < j->g->k);
}

/* Columns [first, end), which are whole panels: `per` vectors of each at a time, of two panels where vecs is twice that. */
VEC_INLINE void lanes_strip(dtype t, const int rows, const int per, const int vecs, const few_job *j, int64_t first,
                            int64_t end) {
    ASSERT(j->panel % (per * VEC_WIDTH) == 0 && (end - first) % (vecs * VEC_WIDTH) == 0);
    for (int64_t n = first; n < end; n += vecs * VEC_WIDTH) {
        vec total[MAX(MOST_SUMS, 3 * FEW_MOST)] = {0};
        int64_t part = n % j->panel;
        lanes_sums(t, rows, per, vecs, j, element_at(j->g->b.data, t, (n - part) * j->g->k + part), total);
        for (int v = 0; v < vecs; v++)
            for (int r = 0; r < rows; r++) put_sums(j->g, r, n + v * VEC_WIDTH, VEC_WIDTH, total[v * rows + r]);
    }
}

/* As many vectors as there are registers for the sums: those of one row that do not wait for each other. */
VEC_INLINE void lanes_fit(dtype t, const int rows, const few_job *j, int64_t first, int64_t end) {
    int64_t vecs = j->panel / VEC_WIDTH, pairs_end = first + (end - first) / (2 * j->panel) * (2 * j->panel);
    if (t != DTYPE_F32 && vecs % 6 == 0 && 6 * rows <= MOST_SUMS) {
        lanes_strip(t, rows, 6, 6, j, first, end);
    } else if (t == DTYPE_F32 && vecs == 3 && 6 * rows <= MOST_SUMS) {
        lanes_strip(t, rows, 3, 6, j, first, pairs_end);
        lanes_strip(t, rows, 3, 3, j, pairs_end, end);
    } else if (VEC_WIDTH == 4 || vecs % 3 == 0) {
        lanes_strip(t, rows, 3, 3, j, first, end);
    } else if (4 * rows <= MOST_SUMS) {
        lanes_strip(t, rows, 4, 4, j, first, end);
    } else {
        lanes_strip(t, rows, 2, 2, j, first, end);
    }
}

/* ---- ... of fp16, by instructions that multiply it as it is ------------------------------------------------------------ */

/* FMLAL adds the product of two fp16 numbers to an fp32 sum and rounds once. Such a product is exact in fp32, so these are the bits of
 * widened numbers, without the widening, of which a core does one per cycle or two. */
#if defined(__aarch64__) && !defined(__clang__) /* whose header has no vfmlalq for a function with the attribute */
#define FML __attribute__((target("arch=armv8.2-a+fp16fml")))
enum { FML_VECS = 6, FML_ROWS = MOST_SUMS / FML_VECS };
static bool has_fml(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDFHM) != 0; }

FML static inline __attribute__((always_inline)) void fml_four_steps(const int rows, const few_job *j,
                                                                     const uint16_t *panel, int64_t k, vec *sum) {
    float16x4_t x[FML_ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = vreinterpret_f16_u16(vld1_u16((const uint16_t *)j->g->a.data + r * j->g->a.row_stride + k));
#define STEP(lane)                                                                                       \
    for (int v = 0; v < FML_VECS; v += 2) {                                                              \
        float16x8_t w = vreinterpretq_f16_u16(vld1q_u16(panel + (k + lane) * j->panel + v * VEC_WIDTH)); \
        for (int r = 0; r < rows; r++) {                                                                 \
            vec *low = &sum[v * rows + r], *high = low + rows;                                           \
            *low = (vec)vfmlalq_lane_low_f16((float32x4_t)*low, w, x[r], lane);                          \
            *high = (vec)vfmlalq_lane_high_f16((float32x4_t)*high, w, x[r], lane);                       \
        }                                                                                                \
    }
    STEP(0)
    STEP(1)
    STEP(2)
    STEP(3)
#undef STEP
}

FML static inline __attribute__((always_inline)) void fml_strip(const int rows, const few_job *j, int64_t first,
                                                                int64_t end) {
    ASSERT(j->panel == FML_VECS * VEC_WIDTH);
    for (int64_t n = first; n < end; n += j->panel) {
        const uint16_t *panel = (const uint16_t *)j->g->b.data + n * j->g->k;
        vec total[MOST_SUMS] = {0};
        for (int64_t k0 = 0; k0 < j->g->k; k0 += j->kc) {
            int64_t stop = MIN(k0 + j->kc, j->g->k), k = k0;
            vec sum[MOST_SUMS];
            for (int i = 0; i < FML_VECS * rows; i++) sum[i] = vec_set(0);
            for (; k + 4 <= stop; k += 4) fml_four_steps(rows, j, panel, k, sum);
            for (; k < stop; k++) lanes_steps(DTYPE_F16, rows, FML_VECS, FML_VECS, 1, j, panel, k, sum);
            for (int i = 0; i < FML_VECS * rows; i++) total[i] = k0 == 0 ? sum[i] : total[i] + sum[i];
        }
        for (int v = 0; v < FML_VECS; v++)
            for (int r = 0; r < rows; r++) put_sums(j->g, r, n + v * VEC_WIDTH, VEC_WIDTH, total[v * rows + r]);
    }
}

FML static bool fml_rows(const few_job *j, int64_t first, int64_t end) {
    if (j->g->a.type != DTYPE_F16 || !has_fml()) return false;
    switch (j->g->m) {
    case 1: fml_strip(1, j, first, end); return true;
    case 2: fml_strip(2, j, first, end); return true;
    case 3: fml_strip(3, j, first, end); return true;
    default: return false;
    }
}
#else
static bool fml_rows(const few_job *j, int64_t first, int64_t end) { return false; }
#endif

/* ---- ... by the kernel, where its vectors are wider ------------------------------------------------------------------- */

VEC_INLINE void put_panel(dtype t, const few_job *j, int64_t n, const float *sums) {
    for (int r = 0; r < j->g->m; r++)
        for (int64_t i = 0; i < j->panel; i += VEC_WIDTH)
            put_sums(j->g, r, n + i, VEC_WIDTH, vec_load(sums + r * j->panel + i));
}

static bool rows_by_kernel(const few_job *j, int64_t first, int64_t end) {
    float sums[FEW_MOST * GEMM_UNIT];
    if (!j->kernel->lanes_few) return false;
    for (int64_t n = first; n < end; n += j->panel) {
        const void *panel = element_at(j->g->b.data, j->g->a.type, n * j->g->k);
        j->kernel->lanes_few(j->g->a.type, (int)j->g->m, j->g->k, j->x, j->ldx, panel, sums);
        put_panel(j->g->a.type, j, n, sums);
    }
    return true;
}

/* Functions of their own: in one gcc gives up and keeps sums in memory. */
#define LANES_ROWS(rows)                                                                                    \
    __attribute__((noinline)) static void lanes_rows_##rows(const few_job *j, int64_t first, int64_t end) { \
        BY_TYPE(j->g->a.type, lanes_fit, rows, j, first, end);                                              \
    }
LANES_ROWS(1)
LANES_ROWS(2)
LANES_ROWS(3)
LANES_ROWS(4)
LANES_ROWS(5)
LANES_ROWS(6)
_Static_assert(FEW_MOST == 6, "written out above");
static void (*const by_lanes[FEW_MOST])(const few_job *, int64_t, int64_t) = {lanes_rows_1, lanes_rows_2, lanes_rows_3,
                                                                              lanes_rows_4, lanes_rows_5, lanes_rows_6};

/* ---- the call --------------------------------------------------------------------------------------------------------- */

__attribute__((noinline)) static void by_rows(const few_job *j, int64_t first, int64_t end) {
    BY_TYPE(j->g->a.type, few_rows, j, first, end);
}

static void few_task(void *context, int64_t task, int thread) {
    const few_job *j = context;
    int64_t first = task * j->columns_per_task, end = MIN(first + j->columns_per_task, j->g->n);
    int64_t in_lanes = MAX(MIN(end, j->n_lanes), first); /* rows behind the last panel lie as everywhere */
    if (first < in_lanes && !rows_by_kernel(j, first, in_lanes) && !fml_rows(j, first, in_lanes))
        by_lanes[j->g->m - 1](j, first, in_lanes);
    if (in_lanes < end) by_rows(j, in_lanes, end);
}

size_t gemm_rows_work_bytes(int64_t m_most, int64_t n, int64_t k, dtype type, bool lanes, int n_threads) {
    size_t most = type == DTYPE_F32 ? 0 : (size_t)(FEW_MOST * k) * sizeof(float); /* rows of A, widened */
    /* The GEMM's scratch follows its cut and need not grow with m: ask for every m that may come. */
    for (int64_t m = 1; m <= m_most; m++) {
        most = MAX(most,
                   gemm_cut_bytes(m, n, k, false, n_threads)); /* also of lanes, where the processor has none for k */
        if (lanes) most = MAX(most, gemm_cut_bytes(m, n, k, true, n_threads));
    }
    return most;
}

int64_t gemm_stream_rows(const backend_context *c, int64_t n, int64_t least) {
    return MAX(least, n / (TASKS_OF_A_THREAD * pool_threads(c->threads)));
}

void gemm_rows_run(backend_context *c, const gemm_call *g, void *work) {
    if (g->m == 0) return;
    const gemm_kernel *kernel = gemm_kernel_by_row(g->a.type);
    ASSERT(!g->accumulate && g->a.col_stride == 1 && g->b.row_stride == 1);
    if (!kernel->chain || g->m > FEW_MOST) {
        gemm_call by_row = *g;
        by_row.by_row = true;
        gemm_run(c, &by_row, work);
        return;
    }
    few_job j = {.g = g, .kernel = kernel, .x = g->a.data, .ldx = g->a.row_stride, .kc = kernel->kc};
    if (g->a.type != DTYPE_F32) {
        for (int64_t r = 0; r < g->m; r++)
            typed_row_load((float *)work + r * g->k, (const uint16_t *)g->a.data + r * g->a.row_stride, g->a.type,
                           (size_t)g->k);
        j.x = work;
        j.ldx = g->k;
    }
    int64_t unit = MOST_GROUPS * VEC_WIDTH;
    if (g->lanes) {
        j.panel = gemm_lanes_of(g->b.type, g->k).panel;
        j.n_lanes = g->n / j.panel * j.panel;
        unit = 2 * j.panel;
    }
    j.columns_per_task = MAX(unit, gemm_stream_rows(c, g->n, TASK_WEIGHTS / g->k) / unit * unit);
    pool_run(c->threads, few_task, &j, divide_up(g->n, j.columns_per_task));
}
