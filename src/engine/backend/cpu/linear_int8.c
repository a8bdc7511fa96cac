/* linear_int8.c - LINEAR_INT8: rows of activations times a weight in 8 bits, read once as it lies.
 *
 * A row of x is rounded to integers q of 16 bits, |q| <= 127 * 256, with one scale: x' = q * a / 32512, a the largest |x| of the
 * row, so |x' - x| <= a / 65024. Products and sums of integers are exact, so an element of y is the same number whatever the
 * order of the sum, the number of rows and threads, and the instructions: all rows are computed without a thought about the
 * bits. It is scaled in fp64, the bias added in fp32, and rounded once.
 *
 * What multiplies is chosen by processor: AMX or AVX512-VNNI (linear_int8_x86.c), SMMLA or SDOT (linear_int8_arm.c); else, here, pairs
 * of 16 bits (AVX2 VPMADDWD) or what the compiler makes of 16-bit integers. All that matters for one row is that the weight comes from
 * memory in one stream. For many rows a task's part of the weight stays in the cache while some rows at a time pass by.
 * A row with NaN or infinity gives NaN. */
#include "backend/cpu/typed.h"

#include "backend/cpu/linear_int8.h"
#include <math.h>
#include <stdatomic.h>

enum {
    HALF = 8,             /* codes of one of two rows side by side */
    TASK_CODES = 1 << 16, /* of a task: long enough to hide the claiming, short enough to stay in a cache */
};

/* ---- rows of x as integers ------------------------------------------------------------------------------------------ */

enum { BLOCK = 256 };
typedef int16_t half_vec __attribute__((vector_size(2 * VEC_WIDTH)));

static void split_block(const int8_job *j, int64_t row, int64_t k, const int16_t *block, size_t n) {
    char *q = j->q + 2 * j->k_padded * row + k, *low = q + j->k_padded;
    int32_t *sums = j->q_sums + 2 * row, high_sum = 0, low_sum = 0;
    for (size_t i = 0; i < n; i++) {
        int8_t h = (int8_t)((block[i] + INT8_HIGH / 2) >> 8), l = (int8_t)block[i];
        q[i] = (char)h, low[i] = (char)l;
        high_sum += h, low_sum += l;
    }
    sums[0] += high_sum, sums[1] += low_sum;
}

/* n is a multiple of HALF. */
static void split_paired(const int8_job *j, int64_t row, int64_t k, const int16_t *block, size_t n) {
    char *q = j->q + 2 * j->k_padded * (row - row % 2) + HALF * (row % 2) + 2 * k, *low = q + 2 * j->k_padded;
    for (size_t i = 0; i < n; i += HALF)
        for (size_t b = i; b < i + HALF; b++)
            q[i + b] = (char)((block[b] + INT8_HIGH / 2) >> 8), low[i + b] = (char)block[b];
}

VEC_INLINE void round_row(dtype t, const int8_job *j, const void *x, int64_t row) {
    vec most = vec_set(0), poison = vec_set(0);
    EACH_VEC(k, lanes, (size_t)j->k, {
        vec v = typed_load(x, t, k, lanes);
        most = vec_max(vec_max(v, -v), most);
        poison = poison + v * 0; /* NaN, where v is not finite */
    });
    const bool paired = row < j->n_paired; /* no bytes behind k there */
    char *q = j->q + 2 * j->k_padded * row;
    if (!paired) memset(q, 0, 2 * (size_t)j->k_padded);
    j->q_sums[2 * row] = j->q_sums[2 * row + 1] = 0;
    bool finite = !isnan(vec_sum(poison));
    float a = MAX(vec_max_lane(most), 0x1p-100f);
    j->q_scale[row] = finite ? a / INT8_MOST : NAN;
    if (!finite) return;
    const float by = INT8_MOST / a, to_even = 0x1.8p23f; /* adding it rounds to an integer */
    for (int64_t k = 0; k < j->k; k += BLOCK) {
        int16_t block[BLOCK];
        size_t n = (size_t)MIN((int64_t)BLOCK, j->k - k);
        EACH_VEC(i, lanes, n, {
            vec v = typed_load(x, t, (size_t)k + i, lanes) * by + to_even - to_even;
            half_vec h = __builtin_convertvector(__builtin_convertvector(v, vec_i32), half_vec);
            memcpy(block + i, &h, lanes * sizeof *block);
        });
        if (paired) split_paired(j, row, k, block, n);
        else if (j->kernel->split) split_block(j, row, k, block, n);
        else memcpy(q + 2 * k, block, n * sizeof *block);
    }
}

static void round_task(void *context, int64_t row, int thread) {
    (void)thread;
    const int8_job *j = context;
    const kernel_call *c = j->call;
    const int32_t *pick = c->in[LINEAR_INT8_PICK];
    int64_t from = pick ? pick[row] : row;
    ASSERT(from >= 0 && from < call_in(c, LINEAR_INT8_X)->shape.dim[0]);
    const void *x = element_at(c->in[LINEAR_INT8_X], j->x_type, from * j->k);
    BY_TYPE(j->x_type, round_row, j, x, row);
}

/* ---- pairs of 16 bits ------------------------------------------------------------------------------------------------ */

/* 16-bit integers. A lane of 32 bits takes 2^31 / (127 * 32512) = 520 products. */
VEC_INLINE int64_t pair_sum(const int8_t *w, const int16_t *q, int64_t n) {
    enum { CODES = 2048 };
    int64_t sum = 0, k = 0;
#if defined(__AVX2__)
    for (; k + INT8_UNIT <= n;) {
        __m256i lanes = _mm256_setzero_si256();
        for (int64_t end = MIN(n - n % INT8_UNIT, k + CODES); k < end; k += INT8_UNIT) {
            __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(w + k)));
            __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(q + k));
            lanes = _mm256_add_epi32(lanes, _mm256_madd_epi16(v, x));
        }
        int32_t each[8];
        memcpy(each, &lanes, sizeof each);
        for (int i = 0; i < 8; i++) sum += each[i];
    }
#endif
    for (; k < n; k++) sum += w[k] * q[k];
    return sum;
}

static void pair_tile(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows, int8_sums sums) {
    for (int i = 0; i < n_weights; i++)
        for (int r = 0; r < n_rows; r++)
            sums[r][i] = (double)pair_sum(j->codes + (first + i) * j->k,
                                          (const int16_t *)(const void *)(j->q + 2 * j->k_padded * (row + r)), j->k);
}

static bool always(void) { return true; }
static const int8_kernel int8_pairs = {
    .name = "pairs", .supported = always, .rows = 4, .weights = 4, .tile = pair_tile};

/* ---- choice of the kernel ------------------------------------------------------------------------------------------- */

/* Best first. */
/* clang-format off */
static const int8_kernel *const kernels[] = {
#if defined(__aarch64__)
    &int8_smmla, &int8_sdot,
#elif defined(__x86_64__)
    &int8_amx, &int8_vnni,
#endif
    &int8_pairs,
};
/* clang-format on */

static _Atomic(const int8_kernel *) chosen; /* every thread would write the same */

static const int8_kernel *kernel_here(void) {
    const int8_kernel *found = atomic_load_explicit(&chosen, memory_order_acquire);
    for (size_t i = 0; !found; i++)
        if (kernels[i]->supported()) found = kernels[i];
    atomic_store_explicit(&chosen, found, memory_order_release);
    return found;
}

const char *int8_kernel_list(int i) { return i >= 0 && i < (int)ARRAY_LENGTH(kernels) ? kernels[i]->name : NULL; }

bool int8_force_kernel(const char *name) {
    const int8_kernel *found = NULL;
    for (size_t i = 0; name && i < ARRAY_LENGTH(kernels); i++)
        if (strcmp(kernels[i]->name, name) == 0) found = kernels[i];
    if (name && !(found && found->supported())) return false;
    atomic_store_explicit(&chosen, found, memory_order_release);
    return true;
}

gemm_lanes int8_lanes_of(int64_t k) {
    const int8_kernel *kernel = kernel_here();
    return kernel->lanes.panel > 0 && k % kernel->lanes_k == 0 ? kernel->lanes : (gemm_lanes){.group = 1};
}

/* ---- the op ----------------------------------------------------------------------------------------------------------- */

VEC_INLINE void put_row(dtype t, const int8_job *j, int64_t row, int64_t n, int n_weights, const double *sums) {
    const void *bias = j->call->in[LINEAR_INT8_B];
    double by = j->q_scale[row];
    float y[INT8_WEIGHTS_MOST], offset[INT8_WEIGHTS_MOST];
    for (int i = 0; i < n_weights; i++) y[i] = (float)(sums[i] * (by * j->scale[n + i]));
    if (bias) {
        typed_widen(t, offset, element_at(bias, t, n), (size_t)n_weights);
        for (int i = 0; i < n_weights; i++) y[i] += offset[i];
    }
    typed_round(t, element_at(j->call->out[LINEAR_INT8_Y], t, row * j->n + n), y, (size_t)n_weights);
}

static void product_task(void *context, int64_t task, int thread) {
    (void)thread;
    const int8_job *j = context;
    const int8_kernel *kernel = j->kernel;
    int64_t begin = task * j->weights_per_task, end = MIN(begin + j->weights_per_task, j->n);
    if (kernel->begin) kernel->begin();
    for (int64_t row = 0, next; row < j->m; row = next) {
        next = row < j->n_paired ? row + kernel->paired_rows : MIN(row + kernel->rows, j->m);
        for (int64_t n = begin; n < end; n += kernel->weights) {
            int8_sums sums;
            int n_weights = (int)MIN((int64_t)kernel->weights, end - n), n_rows = (int)(next - row);
            kernel->tile(j, n, row, n_weights, n_rows, sums);
            for (int r = 0; r < n_rows; r++) BY_TYPE(j->y_type, put_row, j, row + r, n, n_weights, sums[r]);
        }
    }
    if (kernel->end) kernel->end();
}

static int64_t padded(int64_t k) { return round_up(k, (int64_t)INT8_UNIT); }

/* Scales and sums of rows, then the rows. */
static size_t row_bytes(int64_t m) { return align_up((size_t)m * (sizeof(float) + 2 * sizeof(int32_t)), 64); }

static size_t int8_work_bytes(const program *p, const op *o, int n_threads) {
    (void)n_threads;
    int64_t m = program_get(p, o->out[LINEAR_INT8_Y])->shape.dim[0];
    return row_bytes(m) + (size_t)(2 * m * padded(program_get(p, o->in[LINEAR_INT8_X])->shape.dim[1]));
}

const cpu_work_fn cpu_work_LINEAR_INT8 = int8_work_bytes;

void cpu_kernel_LINEAR_INT8(backend_context *c, const kernel_call *k) { /* y = */
    const value *x = call_in(k, LINEAR_INT8_X), *codes = call_in(k, LINEAR_INT8_CODES), *y = call_out(k, LINEAR_INT8_Y);
    int64_t m_most = y->shape.dim[0];
    int8_job j = {.call = k,
                  .kernel = kernel_here(),
                  .codes = k->in[LINEAR_INT8_CODES],
                  .scale = k->in[LINEAR_INT8_SCALE],
                  .m = cpu_rows(k, m_most),
                  .n = codes->shape.dim[0],
                  .k = codes->shape.dim[1],
                  .q_scale = k->work,
                  .x_type = x->type,
                  .y_type = y->type};
    ASSERT(j.k <= INT32_MAX / (INT8_HIGH / 2 * (INT8_HIGH / 2))); /* sums of bytes in 32 bits */
    j.k_padded = padded(j.k);
    if (k->op->attr.lanes && int8_lanes_of(j.k).panel > 0)
        j.n_lanes = j.n / j.kernel->lanes.panel * j.kernel->lanes.panel;
    if (j.n_lanes == j.n && j.kernel->paired_rows > 0) j.n_paired = j.m / j.kernel->paired_rows * j.kernel->paired_rows;
    j.q_sums = (int32_t *)(j.q_scale + m_most);
    j.q = (char *)k->work + row_bytes(m_most);
    int64_t weights = MAX(TASK_CODES / j.k, (int64_t)1);
    bool few = j.m <= j.kernel->rows; /* the weight is read once */
    j.weights_per_task = round_up(few ? gemm_stream_rows(c, j.n, weights) : weights, (int64_t)j.kernel->weights);
    pool_run(c->threads, round_task, &j, j.m);
    pool_run(c->threads, product_task, &j, divide_up(j.n, j.weights_per_task));
    float softcap = k->op->attr.logits_softcap;
    if (softcap > 0) cpu_cap_logits(c, k->out[LINEAR_INT8_Y], j.m * j.n, softcap);
}
