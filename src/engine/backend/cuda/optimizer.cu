/* optimizer.cu - what happens to gradients before AdamW: accumulation, global norm, clip factor; and the step's loss.
 *
 * Orders of operations are those written at the top of the host's optimizer.c. Squares of fp32 are exact in fp64, so an
 * fma there gives the bits of a product and a sum. */
#include "backend/cuda/noise.cuh"

/* ---- accumulate -------------------------------------------------------------------------------------------------- */

/* A bf16 accumulator takes noise, an fp32 one does not. WHOLE: no element of the chunk lies outside. */
template <typename A, typename X, bool VECTOR, bool WHOLE>
DEVICE void accumulate_chunk(A *acc, const X *x, bool restart, const noise_key &key, const chunk_place &chunk,
                             int64_t n) {
    constexpr bool ROUNDED = std::is_same_v<A, bf16>;
    for (int turn = 0; turn < CHUNK_TURNS; turn++) {
        tile_place at = tile_at(chunk, turn);
        if (!WHOLE && (at.begin < 0 || at.begin >= n)) continue;
        quad<X> added[2];
        quad<A> before[2] = {}, after[2];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int64_t i = at.first + 16 * q;
            added[q] = quad_load<VECTOR, WHOLE>(x + i, n - i);
            if (!restart) before[q] = quad_load<VECTOR, WHOLE>(acc + i, n - i);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t word = ROUNDED ? noise_value_word(key, at.r + e) : 0;
#pragma unroll
            for (int q = 0; q < 2; q++) {
                float sum = widen_exact(added[q].e[e]);
                if (!restart) sum += widen(before[q].e[e]);
                if constexpr (ROUNDED) after[q].e[e] = round_stochastic(sum, q ? word >> 16 : word & 0xffffu);
                else after[q].e[e] = sum;
            }
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int64_t i = at.first + 16 * q;
            quad_store<VECTOR, WHOLE>(acc + i, after[q], n - i);
        }
    }
}

template <typename A, typename X, bool VECTOR>
static __global__ void __launch_bounds__(CHUNK_THREADS, 8)
    accumulate_kernel(A *acc, const X *x, const launch_scalars *scalars, launch_noise noise, int64_t n) {
    __shared__ noise_key key;
    chunk_place chunk = chunk_open(noise);
    bool restart = scalars->micro == 0;
    if (std::is_same_v<A, bf16>) {
        if (threadIdx.x == 0)
            key = noise_open(noise, *scalars, NOISE_ACCUMULATE | scalars->micro << 8, chunk.noise_block);
        __syncthreads();
    }
    if constexpr (VECTOR)
        if (chunk_is_whole(chunk, n)) return accumulate_chunk<A, X, true, true>(acc, x, restart, key, chunk, n);
    accumulate_chunk<A, X, VECTOR, false>(acc, x, restart, key, chunk, n);
}

void launch_accumulate(cudaStream_t s, launch_type acc_type, launch_type x_type, void *acc, const void *x,
                       const launch_scalars *scalars, launch_noise noise, int64_t n) {
    by_type(x_type, [&](auto zero) {
        using X = decltype(zero);
        by_flag(aligned(acc, 16) && aligned(x, 16), [&](auto vector) {
            dim3 grid(chunk_count(noise, n)), block(CHUNK_THREADS);
            if (acc_type == LAUNCH_F32)
                launch(accumulate_kernel<float, X, decltype(vector)::value>, grid, block, s, (float *)acc, (const X *)x,
                       scalars, noise, n);
            else
                launch(accumulate_kernel<bf16, X, decltype(vector)::value>, grid, block, s, (bf16 *)acc, (const X *)x,
                       scalars, noise, n);
        });
    });
}

/* ---- global norm ------------------------------------------------------------------------------------------------- */

/* The host adds the squares of a block in 16 lanes, lane j those of elements j, j + 16, ... in order, and folds the lanes
 * in halves. Here eight neighbouring threads have two of these lanes each: a parameter has few blocks, so it takes many
 * threads with much on the way to keep memory busy. */
enum { SUMSQ_THREADS = 128, SUMSQ_AHEAD = 16 };

/* Two elements from p on, the second in the upper half; those from n on are zero. */
template <bool VECTOR> DEVICE uint2 pair_load(const float *p, int64_t n) {
    if (VECTOR && n >= 2) return *(const uint2 *)p;
    return make_uint2(n >= 1 ? __float_as_uint(p[0]) : 0, n >= 2 ? __float_as_uint(p[1]) : 0);
}
template <bool VECTOR, typename T> DEVICE uint32_t pair_load(const T *p, int64_t n) {
    if (VECTOR && n >= 2) return *(const uint32_t *)p;
    return (n >= 1 ? p[0].bits : 0u) | (n >= 2 ? (uint32_t)p[1].bits << 16 : 0u);
}
DEVICE float2 pair_widen(uint2 raw, float) { return make_float2(__uint_as_float(raw.x), __uint_as_float(raw.y)); }
template <typename T> DEVICE float2 pair_widen(uint32_t raw, T) {
    return make_float2(widen(T{(uint16_t)raw}), widen(T{(uint16_t)(raw >> 16)}));
}

/* What one launch takes: as many tensors as 4 KiB of arguments hold. */
enum { SUMSQ_TENSORS = 64 };
struct sumsq_tensors {
    struct {
        double *partials;
        const void *g;
        int64_t n_counted, n_blocks;
        unsigned end; /* the block of threads behind the last one of this tensor */
    } of[SUMSQ_TENSORS];
    int64_t block;
};

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(SUMSQ_THREADS) sumsq_kernel(const __grid_constant__ sumsq_tensors a) {
    int i_tensor = 0;
    while (blockIdx.x >= a.of[i_tensor].end) i_tensor++;
    unsigned first = i_tensor ? a.of[i_tensor - 1].end : 0;
    const T *g = (const T *)a.of[i_tensor].g;
    int64_t b = ((int64_t)(blockIdx.x - first) * SUMSQ_THREADS + threadIdx.x) / 8;
    int part = threadIdx.x % 8;
    int64_t begin = b * a.block, /* a thread without a block has nothing, and stays */
        end = min(begin + a.block, a.of[i_tensor].n_counted);
    double lane[2] = {};
    for (int64_t i = begin + 2 * part; i < end; i += 16 * SUMSQ_AHEAD) {
        decltype(pair_load<VECTOR>(g, 0)) in[SUMSQ_AHEAD];
#pragma unroll
        for (int k = 0; k < SUMSQ_AHEAD; k++) in[k] = pair_load<VECTOR>(g + i + 16 * k, end - i - 16 * k);
#pragma unroll
        for (int k = 0; k < SUMSQ_AHEAD; k++) { /* past the end zero squares, which change nothing */
            float2 x = pair_widen(in[k], T{});
            lane[0] = fma((double)x.x, (double)x.x, lane[0]);
            lane[1] = fma((double)x.y, (double)x.y, lane[1]);
        }
    }
    /* lanes 8 .. 15 onto 0 .. 7 are threads 4 .. 7 onto 0 .. 3, and so on down to one */
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
#pragma unroll
        for (int e = 0; e < 2; e++) lane[e] += __shfl_down_sync(0xffffffffu, lane[e], step, 8);
    if (part == 0 && b < a.of[i_tensor].n_blocks) a.of[i_tensor].partials[b] = lane[0] + lane[1];
}

static bool sumsq_in_pairs(const launch_sumsq_args *a) { return aligned(a->g, a->type == LAUNCH_F32 ? 8 : 4); }

/* Those from a on that one launch can take; returns how many. */
static int sumsq_launch(cudaStream_t s, const launch_sumsq_args *a, int n_args, int64_t block) {
    sumsq_tensors t;
    unsigned end = 0;
    int n = 0;
    bool pairs = sumsq_in_pairs(a);
    t.block = block;
    for (; n < n_args && n < SUMSQ_TENSORS; n++) {
        if (a[n].type != a->type || sumsq_in_pairs(&a[n]) != pairs) break;
        int64_t n_blocks = divide_up(a[n].n, block);
        end += (unsigned)divide_up(n_blocks * 8, SUMSQ_THREADS);
        t.of[n] = {a[n].partials, a[n].g, a[n].n_counted, n_blocks, end};
    }
    by_type(a->type, [&](auto zero) {
        by_flag(pairs, [&](auto vector) {
            launch(sumsq_kernel<decltype(zero), decltype(vector)::value>, dim3(end), dim3(SUMSQ_THREADS), s, t);
        });
    });
    return n;
}

void launch_grad_sumsq(cudaStream_t s, const launch_sumsq_args *a, int n_args, int64_t block) {
    for (int at = 0; at < n_args;) at += sumsq_launch(s, a + at, n_args - at, block);
}

/* All threads fetch, one adds: the order is the host's, and fetching is what would take the time. */
enum { NORM_SUM_THREADS = 1024 };

static __global__ void __launch_bounds__(NORM_SUM_THREADS) norm_sum_kernel(double *out, const double *x, int64_t n) {
    __shared__ double held[NORM_SUM_THREADS];
    double sum = 0;
    for (int64_t first = 0; first < n; first += NORM_SUM_THREADS) {
        int count = (int)min((int64_t)NORM_SUM_THREADS, n - first);
        if (threadIdx.x < count) held[threadIdx.x] = x[first + threadIdx.x];
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < count; i++) sum += held[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = sum;
}

void launch_norm_sum(cudaStream_t s, double *sum, const double *partials, int64_t n) {
    launch(norm_sum_kernel, dim3(1), dim3(NORM_SUM_THREADS), s, sum, partials, n);
}

/* ---- parts of several ranks -------------------------------------------------------------------------------------- */

enum { PARTS_THREADS = 256 };

template <typename T>
static __global__ void __launch_bounds__(PARTS_THREADS)
    sum_parts_kernel(T *y, const T *x, const T *parts, int64_t n, int64_t n_end, int n_parts) {
    int64_t i = (int64_t)blockIdx.x * PARTS_THREADS + threadIdx.x, head = n - n_end;
    if (i >= n) return;
    if (i < head) {
        y[i] = x[i];
        return;
    }
    float sum = widen_exact(parts[i - head]);
    for (int p = 1; p < n_parts; p++) sum += widen_exact(parts[p * n_end + i - head]);
    narrow_exact(&y[i], sum);
}

void launch_sum_parts(cudaStream_t s, launch_type t, void *y, const void *x, const void *parts, int64_t n,
                      int64_t n_end, int n_parts) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        launch(sum_parts_kernel<T>, dim3((unsigned)divide_up(n, PARTS_THREADS)), dim3(PARTS_THREADS), s, (T *)y,
               (const T *)x, (const T *)parts, n, n_end, n_parts);
    });
}

/* ---- clip -------------------------------------------------------------------------------------------------------- */

/* One block, a thread for each of the host's lanes. In double to the end: the factor multiplies every gradient. */
static __global__ void __launch_bounds__(CLIP_THREADS) clip_kernel(launch_clip_args a) {
    __shared__ double lane[CLIP_THREADS];
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < a.n_partials; i += CLIP_THREADS) sum += a.partials[i];
    lane[threadIdx.x] = sum;
    for (int half = CLIP_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) lane[threadIdx.x] += lane[threadIdx.x + half];
    }
    if (threadIdx.x > 0) return;
    double divisor = a.sums[a.by_weights ? LAUNCH_SUM_WEIGHTS : LAUNCH_SUM_VALID];
    if (divisor == 0) divisor = 1; /* no token was valid: the gradient is zero, and stays zero */
    double factor = a.scalars->grad_unscale / divisor, norm = sqrt(lane[0]) * factor;
    double loss = a.sums[LAUNCH_SUM_WEIGHTED_LOSS];
    for (int i = 1; i < a.n_losses; i++) loss += a.sums[i * LAUNCH_SUM_COUNT + LAUNCH_SUM_WEIGHTED_LOSS];
    if (a.limit > 0) factor *= fmin(1.0, a.limit / (norm + 1e-6));
    bool skip = !isfinite(norm) || !isfinite(loss);
    for (int i = 0; i < a.n_clip; i++) a.clip[i] = 0;
    a.clip[LAUNCH_CLIP_NORM] = (float)norm;
    a.clip[LAUNCH_CLIP_FACTOR] = skip ? 0.0f : (float)factor;
    a.clip[LAUNCH_CLIP_SKIP] = skip;
    a.clip[LAUNCH_CLIP_LOSS] = (float)(loss / divisor);
    for (int i = 0; i < a.n_sums; i++) a.clip[a.n_clip + i] = (float)a.sums[i];
}

void launch_clip(cudaStream_t s, const launch_clip_args *a) { launch(clip_kernel, dim3(1), dim3(CLIP_THREADS), s, *a); }

/* ---- loss of the step -------------------------------------------------------------------------------------------- */

enum { LOSS_THREADS = 1024 };

/* One block, thread t adds tokens t, t + LOSS_THREADS, ... in double. The sums of a micro-batch are finished before they
 * are added to those before: then adding over micro-batches and over ranks is the same sum. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_kernel(double *sums, const float *losses, const int32_t *targets, const float *weights,
                const launch_scalars *scalars, int64_t n) {
    __shared__ double shared[LAUNCH_SUM_COUNT][WARP];
    double part[LAUNCH_SUM_COUNT] = {};
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += LOSS_THREADS) {
        if (targets[i] < 0) continue;
        double weight = weights ? weights[i] : 1, loss = losses[i];
        part[LAUNCH_SUM_WEIGHTED_LOSS] += weight * loss;
        part[LAUNCH_SUM_VALID] += 1;
        part[LAUNCH_SUM_WEIGHTS] += weight;
        part[LAUNCH_SUM_LOSS] += loss;
    }
    for (int k = 0; k < LAUNCH_SUM_COUNT; k++) {
        double sum = block_sum(part[k], shared[k]);
        if (threadIdx.x == 0) sums[k] = scalars->micro == 0 ? sum : sums[k] + sum;
    }
}

void launch_loss_reduce(cudaStream_t s, double *sums, const float *losses, const int32_t *targets, const float *weights,
                        const launch_scalars *scalars, int64_t n) {
    launch(loss_kernel, dim3(1), dim3(LOSS_THREADS), s, sums, losses, targets, weights, scalars, n);
}
