/* draw.cu - the next token of a row of logits: the largest, and one drawn at a temperature.
 *
 * Two kernels. In the first a block takes DRAW_PART logits of a row and leaves their maximum and their sums, so that a single row
 * keeps many multiprocessors busy. In the second a block joins the parts of its row in their order, in double, finds the part
 * in which the sum of the probabilities passes the uniform number, and walks through that part alone.
 *
 * The order of all sums is fixed, so a draw is the same in every run. Sums are rounded otherwise than on the CPU: a uniform number
 * within rounding of the border between two tokens may give the other one.
 * NaN: the maximum steps over it, the sum does not, and the log of the sum is not finite. */
#include "backend/cuda/chain.cuh"
#include "backend/cuda/launch_draw.h"

#include <math_constants.h>

enum { WARP = 32, N_WARPS = DRAW_THREADS / WARP };

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

static __device__ candidate larger(candidate a, candidate b) {
    if (a.logit != b.logit) return a.logit > b.logit ? a : b;
    return a.id < b.id ? a : b;
}

/* Of the whole block, known to every thread. All threads come here. */
static __device__ candidate block_largest(candidate c) {
    __shared__ candidate of_warp[N_WARPS];
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        candidate other = {__shfl_xor_sync(0xffffffffu, c.logit, distance),
                           __shfl_xor_sync(0xffffffffu, c.id, distance)};
        c = larger(c, other);
    }
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = c;
    __syncthreads();
    for (int i = 0; i < N_WARPS; i++) c = larger(c, of_warp[i]);
    __syncthreads();
    return c;
}

/* As block_largest. */
template <typename T> static __device__ T block_sum(T x) {
    __shared__ T of_warp[N_WARPS];
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < N_WARPS; i++) x += of_warp[i];
    __syncthreads();
    return x;
}

/* -inf - -inf would make a NaN of logits that only weigh nothing. */
static __device__ float base_of(float max) { return max == -CUDART_INF_F ? 0.0f : max; }

static __device__ float inverse_temperature(const draw_rows &r, int64_t row) {
    double t = r.draws[row * DRAW_COUNT + DRAW_TEMPERATURE];
    return t > 0 ? (float)(1 / t) : 0.0f;
}

static __device__ float weight_of(float logit, float base, float inverse) { return expf((logit - base) * inverse); }

static __global__ void __launch_bounds__(DRAW_THREADS) part_kernel(const draw_rows r, int32_t n_parts) {
    int64_t row = blockIdx.y;
    int32_t first = blockIdx.x * DRAW_PART + threadIdx.x;
    const float *x = r.logits + row * r.n_vocab;
    float v[DRAW_EACH], sum = 0, tempered = 0;
    candidate c = {-CUDART_INF_F, 0x7fffffff};
    chain_enter();
#pragma unroll
    for (int u = 0; u < DRAW_EACH; u++) {
        int32_t i = first + u * DRAW_THREADS;
        v[u] = i < r.n_vocab ? x[i] : -CUDART_INF_F;
    }
#pragma unroll
    for (int u = 0; u < DRAW_EACH; u++)
        if (first + u * DRAW_THREADS < r.n_vocab)
            c = larger(c, candidate{isnan(v[u]) ? -CUDART_INF_F : v[u], first + u * DRAW_THREADS});
    c = block_largest(c);
    float base = base_of(c.logit), inverse = inverse_temperature(r, row);
#pragma unroll
    for (int u = 0; u < DRAW_EACH; u++) sum += expf(v[u] - base);
    sum = block_sum(sum);
    if (inverse == 1) tempered = sum;
    else if (inverse > 0) {
#pragma unroll
        for (int u = 0; u < DRAW_EACH; u++) tempered += weight_of(v[u], base, inverse);
        tempered = block_sum(tempered);
    }
    if (threadIdx.x == 0) r.parts[row * n_parts + blockIdx.x] = draw_part{c.logit, c.id, sum, tempered};
}

/* Where a draw falls: into which part, and how much of that part's sum lies before it. */
typedef struct place {
    int32_t part;
    double rest; /* in units of the part's own sum */
    double log_total;
} place;

static __device__ place find_part(const draw_part *parts, int32_t n, float max, float inverse, double uniform) {
    double total = 0, before = 0;
    place p = {0, 0, 0};
    for (int32_t i = 0; i < n; i++)
        total += (double)parts[i].tempered * exp((double)(parts[i].max - max) * (double)inverse);
    for (int32_t i = 0; i < n; i++) {
        double scale = exp((double)(parts[i].max - max) * (double)inverse), own = (double)parts[i].tempered * scale;
        if (own == 0) continue;
        p.part = i, p.rest = (uniform * total - before) / scale;
        if ((before += own) > uniform * total) break;
    }
    p.log_total = log(total);
    return p;
}

/* The first of a part's logits at which the sum of the weights exceeds `rest`; the last that weighs anything where rounding
 * leaves the sum below. All threads come here; each takes DRAW_EACH logits that stand together. */
static __device__ int32_t find_token(const float *x, int32_t n, float base, float inverse, double rest) {
    __shared__ double through[DRAW_THREADS]; /* sums of all logits up to those of a thread */
    __shared__ int32_t chosen, last;
    int32_t first = threadIdx.x * DRAW_EACH;
    double own = 0;
    if (threadIdx.x == 0) chosen = 0x7fffffff, last = 0;
    for (int u = 0; u < DRAW_EACH; u++)
        if (first + u < n) own += (double)weight_of(x[first + u], base, inverse);
    through[threadIdx.x] = own;
    __syncthreads();
    for (int distance = 1; distance < DRAW_THREADS; distance *= 2) {
        double before = (int)threadIdx.x >= distance ? through[threadIdx.x - distance] : 0;
        __syncthreads();
        through[threadIdx.x] += before;
        __syncthreads();
    }
    if (own > 0) {
        atomicMax(&last, (int32_t)threadIdx.x);
        if (through[threadIdx.x] > rest) atomicMin(&chosen, (int32_t)threadIdx.x);
    }
    __syncthreads();
    int32_t thread = chosen < DRAW_THREADS ? chosen : last, found = thread * DRAW_EACH;
    double sum = thread > 0 ? through[thread - 1] : 0;
    for (int u = 0; u < DRAW_EACH && thread * DRAW_EACH + u < n; u++) {
        float w = weight_of(x[thread * DRAW_EACH + u], base, inverse);
        if (w == 0) continue;
        found = thread * DRAW_EACH + u;
        if ((sum += (double)w) > rest) break;
    }
    return found;
}

static __global__ void __launch_bounds__(DRAW_THREADS) join_kernel(const draw_rows r, int32_t n_parts) {
    __shared__ place shared;
    int64_t row = blockIdx.x;
    const draw_part *parts = r.parts + row * n_parts;
    const float *x = r.logits + row * r.n_vocab;
    candidate c = {-CUDART_INF_F, 0x7fffffff};
    double sum = 0;
    chain_enter();
    for (int32_t i = threadIdx.x; i < n_parts; i += DRAW_THREADS)
        c = larger(c, candidate{parts[i].max, parts[i].argmax});
    c = block_largest(c);
    float max = base_of(c.logit), inverse = inverse_temperature(r, row);
    for (int32_t i = threadIdx.x; i < n_parts; i += DRAW_THREADS)
        sum += (double)parts[i].sum * exp((double)(base_of(parts[i].max) - max));
    sum = block_sum(sum);
    double log_sum = (double)max + log(sum), *out = r.drawn + row * DRAWN_COUNT;
    int32_t id = c.id < r.n_vocab ? c.id : 0;
    double log_total = 0;
    if (inverse > 0 && isfinite(log_sum)) { /* the same for all threads */
        double uniform = r.draws[row * DRAW_COUNT + DRAW_UNIFORM];
        if (threadIdx.x == 0) shared = find_part(parts, n_parts, max, inverse, uniform);
        __syncthreads();
        int32_t first = shared.part * DRAW_PART;
        id = first + find_token(x + first, min(r.n_vocab - first, (int32_t)DRAW_PART), parts[shared.part].max, inverse,
                                shared.rest);
        log_total = shared.log_total;
    }
    if (threadIdx.x > 0) return;
    double t = r.draws[row * DRAW_COUNT + DRAW_TEMPERATURE], logit = (double)x[id];
    out[DRAWN_TOP] = (double)c.id, out[DRAWN_TOP_LOGIT] = (double)c.logit, out[DRAWN_LOG_SUM] = log_sum;
    out[DRAWN_TOKEN] = (double)id, out[DRAWN_LOGIT] = logit;
    out[DRAWN_TEMPERED] = t > 0 && t != 1 ? (logit - (double)max) / t - log_total : logit - log_sum;
}

extern "C" void launch_draw_tokens(cudaStream_t stream, const draw_rows *r) {
    int32_t n_parts = (int32_t)draw_part_count(r->n_vocab);
    launch_chained(part_kernel, dim3((unsigned)n_parts, (unsigned)r->n_rows), dim3(DRAW_THREADS), 0, 1, stream, *r,
                   n_parts);
    launch_chained(join_kernel, dim3((unsigned)r->n_rows), dim3(DRAW_THREADS), 0, 1, stream, *r, n_parts);
}
