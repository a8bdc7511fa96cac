/* unembed.cu - what happens to a row of logits between the products: loss, argmax, gradient.
 *
 * One block per row, two passes over it. The first finds maximum and sum of exponentials together: each thread keeps its
 * own pair and rescales the sum when its maximum grows; the pairs are merged in a tree of one shape. The second turns
 * logits into gradient. It walks from the end of the row to its beginning: the end was read last and is still in the L2
 * cache, as far as that holds the rows of all blocks. Where it does not, and the GPU has clusters of blocks,
 * unembed_cluster.cu takes losses with their gradient.
 *
 * Walking down is also what lets a 16-bit gradient lie on the logits it comes from, in the second half of the row: element
 * i is written at bytes 2 ld + 2 i, which is logit (ld + i) / 2 >= i, one that was read before or is read in this very step;
 * a barrier between the loads and the stores of a step settles the latter. So a chunk costs 4 bytes per logit in all.
 *
 * A row that is not trained on is not read. NaN: the maximum steps over it, the sum does not, and the loss is NaN.
 *
 * Where ranks share the vocabulary the first pass ends with a few numbers per token, which travel; what all ranks found is
 * joined in double, a thread per token, and the second pass begins with that. */
#include "backend/cuda/unembed_row.cuh"

enum { THREADS_MOST = 512, VECTORS = 4 /* of 4 logits that a thread has in flight */ };

/* This thread's part of a row of n logits. It meets them in rising order, so the first of equals stays. */
template <bool ARGMAX> static __device__ row_part scan_row(const float *x, int32_t n) {
    row_part p = {-CUDART_INF_F, 0, 0};
    int32_t step = blockDim.x * 4, stride = step * VECTORS, first = 0;
    float4 v[VECTORS];
    for (; first <= n - stride; first += stride) {
        int32_t i = first + threadIdx.x * 4;
#pragma unroll
        for (int u = 0; u < VECTORS; u++) v[u] = *(const float4 *)(x + i + u * step);
        part_add<ARGMAX>(&p, v, i, step);
    }
    if (first < n) {
        int32_t i = first + threadIdx.x * 4;
#pragma unroll
        for (int u = 0; u < VECTORS; u++) v[u] = load_tail(x, i + u * step, n);
        part_add<ARGMAX>(&p, v, i, step);
    }
    return p;
}

/* ---- soft cap ----------------------------------------------------------------------------------------------------- */

template <typename T>
static __global__ void __launch_bounds__(256) cap_kernel(T *logits, int64_t n_columns, int64_t ld, float softcap) {
    T *x = logits + blockIdx.y * ld;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_columns;
         i += (int64_t)gridDim.x * blockDim.x)
        x[i] = softcap * tanhf((float)x[i] / softcap);
}

template <typename T>
static void cap_rows(cudaStream_t stream, T *logits, int64_t n_rows, int64_t n_columns, int64_t ld, float softcap) {
    enum { ROWS_MOST = 65535, BLOCK = 256, EACH = 4 };
    int64_t across = (n_columns + BLOCK * EACH - 1) / (BLOCK * EACH);
    for (int64_t first = 0; first < n_rows; first += ROWS_MOST) {
        int64_t rows = n_rows - first < ROWS_MOST ? n_rows - first : (int64_t)ROWS_MOST;
        cap_kernel<<<dim3((unsigned)across, (unsigned)rows), BLOCK, 0, stream>>>(logits + first * ld, n_columns, ld,
                                                                                 softcap);
    }
}

void launch_cap_logits(cudaStream_t stream, launch_type type, void *logits, int64_t n_rows, int64_t n_columns,
                       int64_t ld, float softcap) {
    if (type == LAUNCH_F16) cap_rows(stream, (__half *)logits, n_rows, n_columns, ld, softcap);
    else cap_rows(stream, (float *)logits, n_rows, n_columns, ld, softcap);
}

/* ---- gradient --------------------------------------------------------------------------------------------------- */

/* out = factor * exp(x - max), less onehot at the target. Every thread of the block comes along to every barrier. */
template <typename T>
static __device__ void gradient_row(T *out, const float *x, int32_t n, int32_t target, unembed_state s, float onehot,
                                    float softcap) {
    int32_t step = blockDim.x * 4, stride = step * VECTORS;
    for (int32_t first = (n - 1) / stride * stride; first >= 0; first -= stride) {
        int32_t i = first + threadIdx.x * 4;
        float4 v[VECTORS];
#pragma unroll
        for (int u = 0; u < VECTORS; u++)
            if (i + u * step < n) v[u] = __ldcs((const float4 *)(x + i + u * step));
        if (sizeof(T) < sizeof(float)) __syncthreads();
#pragma unroll
        for (int u = 0; u < VECTORS; u++) {
            int32_t at = i + u * step;
            if (at < n) store4(out + at, gradient4(v[u], at, target, s, onehot, softcap));
        }
    }
}

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

template <bool ARGMAX>
static __global__ void __launch_bounds__(THREADS_MOST, ARGMAX ? 2 : 3) loss_kernel(unembed_rows r) {
    int64_t row = blockIdx.x;
    int32_t target;
    bool train = trained(r, row, &target);
    if (!train && threadIdx.x == 0) {
        r.losses[row] = 0;
        if (r.states) r.states[row] = {0, 0};
    }
    if (!train && !ARGMAX) return;
    const float *x = r.logits + row * r.ld;
    row_part p = block_merge<ARGMAX>(scan_row<ARGMAX>(x, r.n_columns));
    if (threadIdx.x != 0) return;
    if (ARGMAX) r.argmax[row] = p.argmax;
    if (train) r.losses[row] = loss_of(p, x[target]);
    if (train && r.states) r.states[row] = {p.max, onehot_of(r, row) / p.sum};
}

/* Two blocks per multiprocessor and not three: what both passes keep would not fit in 40 registers. */
template <typename T> static __global__ void __launch_bounds__(THREADS_MOST, 2) loss_grad_kernel(unembed_rows r) {
    int64_t row = blockIdx.x;
    int32_t target;
    bool train = trained(r, row, &target);
    T *out = (T *)r.gradient + row * r.gradient_ld;
    if (!train) {
        if (threadIdx.x == 0) {
            r.losses[row] = 0;
            if (r.states) r.states[row] = {0, 0};
        }
        zero_row(out, r.n_columns, blockDim.x);
        return;
    }
    const float *x = r.logits + row * r.ld;
    float logit = x[target]; /* before the barrier in block_merge, after which it may be gradient */
    row_part p = block_merge<false>(scan_row<false>(x, r.n_columns));
    float onehot = onehot_of(r, row);
    unembed_state s = {p.max, onehot / p.sum};
    if (s.factor == 0) zero_row(out, r.n_columns, blockDim.x);
    else gradient_row(out, x, r.n_columns, target, s, onehot, r.softcap);
    if (threadIdx.x != 0) return;
    r.losses[row] = loss_of(p, logit);
    if (r.states) r.states[row] = s;
}

template <typename T> static __global__ void __launch_bounds__(THREADS_MOST, 3) grad_kernel(unembed_rows r) {
    int64_t row = blockIdx.x;
    int32_t target;
    bool train = trained(r, row, &target);
    unembed_state s = r.states[row];
    T *out = (T *)r.gradient + row * r.gradient_ld;
    if (!train || s.factor == 0) {
        zero_row(out, r.n_columns, blockDim.x);
        return;
    }
    float onehot = onehot_of(r, row);
    gradient_row(out, r.logits + row * r.ld, r.n_columns, target - r.first_id - r.first_column, s, onehot, r.softcap);
}

/* ---- ranks that share the vocabulary ------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS_MOST, 2) stats_kernel(unembed_rows r, double *stats, int n_stats) {
    int64_t row = blockIdx.x;
    int32_t target;
    bool train = trained(r, row, &target), argmax = n_stats > LAUNCH_STAT_ARGMAX;
    double *out = stats + row * n_stats;
    if (!train && !argmax) {
        if (threadIdx.x < n_stats) out[threadIdx.x] = 0;
        return;
    }
    const float *x = r.logits + row * r.ld;
    row_part p = block_merge<true>(scan_row<true>(x, r.n_columns));
    if (threadIdx.x != 0) return;
    target -= r.first_id;
    out[LAUNCH_STAT_MAX] = p.max;
    out[LAUNCH_STAT_SUM] = p.sum;
    out[LAUNCH_STAT_TARGET] = target >= 0 && target < r.n_columns ? x[target] : 0;
    if (argmax) out[LAUNCH_STAT_ARGMAX] = r.first_id + p.argmax;
}

typedef struct joined_stats {
    double max, sum, target, argmax;
} joined_stats;

/* Of one token over all ranks, in their order; the first of equal maxima has the lowest id. */
static __device__ joined_stats stats_join(const double *stats, int n_ranks, int64_t n_tokens, int n_stats,
                                          int64_t token) {
    joined_stats all = {-CUDART_INF, 0, 0, 0};
    for (int i = 0; i < n_ranks; i++) {
        const double *s = stats + (i * n_tokens + token) * n_stats;
        all.target += s[LAUNCH_STAT_TARGET]; /* one of them has it, the others 0 */
        if (i > 0 && !(s[LAUNCH_STAT_MAX] > all.max)) continue;
        all.max = s[LAUNCH_STAT_MAX];
        if (n_stats > LAUNCH_STAT_ARGMAX) all.argmax = s[LAUNCH_STAT_ARGMAX];
    }
    for (int i = 0; i < n_ranks; i++) {
        const double *s = stats + (i * n_tokens + token) * n_stats;
        all.sum += s[LAUNCH_STAT_SUM] * (s[LAUNCH_STAT_MAX] == all.max ? 1 : exp(s[LAUNCH_STAT_MAX] - all.max));
    }
    return all;
}

enum { JOIN_THREADS = 128 };

static __global__ void __launch_bounds__(JOIN_THREADS)
    join_kernel(unembed_rows r, const double *stats, int n_ranks, int n_stats) {
    int64_t token = (int64_t)blockIdx.x * JOIN_THREADS + threadIdx.x;
    int32_t target;
    if (token >= r.n_rows) return;
    joined_stats all = stats_join(stats, n_ranks, r.n_rows, n_stats, token);
    r.losses[token] = trained(r, token, &target) ? (float)(all.max + log(all.sum) - all.target) : 0.0f;
    if (r.argmax) r.argmax[token] = (int32_t)all.argmax;
}

static __global__ void __launch_bounds__(JOIN_THREADS)
    states_kernel(unembed_rows r, const double *stats, int n_ranks, int n_stats) {
    int64_t token = (int64_t)blockIdx.x * JOIN_THREADS + threadIdx.x;
    int32_t target;
    if (token >= r.n_rows) return;
    unembed_state s = {0, 0};
    if (trained(r, token, &target)) {
        joined_stats all = stats_join(stats, n_ranks, r.n_rows, n_stats, token);
        double weight = r.weights ? r.weights[token] : 1;
        s = {(float)all.max, (float)(weight * *r.seed / all.sum)};
    }
    r.states[token] = s;
}

/* ---- picked rows -------------------------------------------------------------------------------------------------- */

/* 16 bytes or, where rows are not aligned to that, 2 at a time: rows are of 16-bit or longer elements. */
template <typename T>
static __global__ void gather_kernel(T *dst, const T *src, const int32_t *pick, int64_t n_src, int64_t row_length) {
    int32_t from = pick[blockIdx.x];
    bool inside = from >= 0 && from < n_src;
    for (int64_t i = threadIdx.x; i < row_length; i += blockDim.x)
        dst[blockIdx.x * row_length + i] = inside ? src[from * row_length + i] : T{};
}

/* ---- launchers -------------------------------------------------------------------------------------------------- */

/* Threads for a row: all of them have something to load in the first step, as far as the row goes. */
static int threads_for(int64_t n_columns) {
    int n = THREADS_MOST;
    while (n > 64 && n * 2 * VECTORS >= n_columns) n /= 2;
    return n;
}

extern "C" void launch_unembed_loss(cudaStream_t stream, const unembed_rows *r) {
    if (r->n_rows == 0) return;
    unsigned n_blocks = (unsigned)r->n_rows;
    if (r->argmax) loss_kernel<true><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r);
    else loss_kernel<false><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r);
}

extern "C" void launch_unembed_loss_grad(cudaStream_t stream, const unembed_rows *r) {
    if (r->n_rows == 0 || unembed_loss_grad_cluster(stream, r)) return;
    unsigned n_blocks = (unsigned)r->n_rows;
    switch (r->type) {
    case LAUNCH_BF16: loss_grad_kernel<__nv_bfloat16><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r); break;
    case LAUNCH_F16: loss_grad_kernel<__half><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r); break;
    default: loss_grad_kernel<float><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r);
    }
}

extern "C" void launch_unembed_grad(cudaStream_t stream, const unembed_rows *r) {
    if (r->n_rows == 0) return;
    unsigned n_blocks = (unsigned)r->n_rows;
    switch (r->type) {
    case LAUNCH_BF16: grad_kernel<__nv_bfloat16><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r); break;
    case LAUNCH_F16: grad_kernel<__half><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r); break;
    default: grad_kernel<float><<<n_blocks, threads_for(r->n_columns), 0, stream>>>(*r);
    }
}

extern "C" void launch_unembed_stats(cudaStream_t stream, const unembed_rows *r, double *stats, int n_stats) {
    if (r->n_rows == 0) return;
    stats_kernel<<<(unsigned)r->n_rows, threads_for(r->n_columns), 0, stream>>>(*r, stats, n_stats);
}

static unsigned join_blocks(const unembed_rows *r) { return (unsigned)((r->n_rows + JOIN_THREADS - 1) / JOIN_THREADS); }

extern "C" void launch_unembed_join(cudaStream_t stream, const unembed_rows *r, const double *stats, int n_ranks,
                                    int n_stats) {
    if (r->n_rows == 0) return;
    join_kernel<<<join_blocks(r), JOIN_THREADS, 0, stream>>>(*r, stats, n_ranks, n_stats);
}

extern "C" void launch_unembed_states(cudaStream_t stream, const unembed_rows *r, const double *stats, int n_ranks,
                                      int n_stats) {
    if (r->n_rows == 0) return;
    states_kernel<<<join_blocks(r), JOIN_THREADS, 0, stream>>>(*r, stats, n_ranks, n_stats);
}

extern "C" void launch_gather_rows(cudaStream_t stream, void *dst, const void *src, const int32_t *pick, int64_t n_rows,
                                   int64_t n_src, int64_t row_bytes) {
    if (n_rows == 0) return;
    if (row_bytes % 16 == 0)
        gather_kernel<<<(unsigned)n_rows, 256, 0, stream>>>((uint4 *)dst, (const uint4 *)src, pick, n_src,
                                                            row_bytes / 16);
    else
        gather_kernel<<<(unsigned)n_rows, 256, 0, stream>>>((uint16_t *)dst, (const uint16_t *)src, pick, n_src,
                                                            row_bytes / 2);
}
