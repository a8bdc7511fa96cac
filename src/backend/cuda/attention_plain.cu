/* attention_plain.cu - causal attention inside documents in fp32 arithmetic: every dtype, every head_dim up to 256.
 *
 * A block of 256 threads stands as 16 x 16 over a tile of BLOCK queries and BLOCK keys: a thread owns BLOCK / 16 rows of
 * the tile and, of what is summed over the tile, four columns of every 64. Rows are widened into shared memory, padded
 * with zeros to DP columns and by four floats, so that 16 rows read at once hit different banks.
 * Forward walks the key tiles of one query tile with a running maximum and sum. Backward runs twice: once per query tile
 * for dq, once per key tile for dk and dv, which adds up the query heads of its group and their tiles in order. So seven
 * products are computed instead of five, and no sum ever meets another block's. */
#include "backend/cuda/attention_device.cuh"

namespace {

enum { THREADS = 256, PAD = 4 };

template <int DP> constexpr int block_for() { return DP == 64 ? 64 : DP == 128 ? 32 : 16; }

/* Where in the tile this thread stands. */
template <int BLOCK> struct place {
    static constexpr int R = BLOCK / 16;
    int row, column; /* first of its R rows; its columns are column + 16 j */
    __device__ place() : row((int)threadIdx.x / 16 * R), column((int)threadIdx.x % 16) {}
};

/* BLOCK rows of a tensor into shared memory, times factor; zeros beyond n_rows and beyond D. */
template <typename E, int DP, int BLOCK>
__device__ void load_rows(float *out, const E *in, int64_t stride, int n_rows, int D, float factor) {
    for (int i = (int)threadIdx.x; i < BLOCK * DP; i += THREADS) {
        int row = i / DP, d = i % DP;
        out[row * (DP + PAD) + d] = row < n_rows && d < D ? widen(in[row * stride + d]) * factor : 0.0f;
    }
}

/* acc = A B^T for this thread's rows of A and columns, which are rows of B. */
template <int DP, int BLOCK>
__device__ void dot_rows(float (&acc)[BLOCK / 16][BLOCK / 16], const float *a, const float *b) {
    constexpr int R = BLOCK / 16;
    place<BLOCK> at;
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) acc[i][j] = 0;
    for (int d = 0; d < DP; d += 4) {
        float4 x[R], y[R];
#pragma unroll
        for (int i = 0; i < R; i++) x[i] = *(const float4 *)(a + (at.row + i) * (DP + PAD) + d);
#pragma unroll
        for (int j = 0; j < R; j++) y[j] = *(const float4 *)(b + (at.column + 16 * j) * (DP + PAD) + d);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) {
                acc[i][j] = fmaf(x[i].x, y[j].x, acc[i][j]);
                acc[i][j] = fmaf(x[i].y, y[j].y, acc[i][j]);
                acc[i][j] = fmaf(x[i].z, y[j].z, acc[i][j]);
                acc[i][j] = fmaf(x[i].w, y[j].w, acc[i][j]);
            }
    }
}

/* sum (this thread's rows, its columns of DP) += W B, W (BLOCK, BLOCK): by rows, or by columns when transposed. */
template <int DP, int BLOCK, bool TRANSPOSED>
__device__ void weigh_rows(float4 (&sum)[BLOCK / 16][DP / 64], const float *w, const float *b) {
    constexpr int R = BLOCK / 16;
    place<BLOCK> at;
    for (int k = 0; k < BLOCK; k++) {
        float weight[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            weight[i] = TRANSPOSED ? w[k * (BLOCK + PAD) + at.row + i] : w[(at.row + i) * (BLOCK + PAD) + k];
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            float4 y = *(const float4 *)(b + k * (DP + PAD) + 4 * at.column + 64 * c);
#pragma unroll
            for (int i = 0; i < R; i++) {
                sum[i][c].x = fmaf(weight[i], y.x, sum[i][c].x);
                sum[i][c].y = fmaf(weight[i], y.y, sum[i][c].y);
                sum[i][c].z = fmaf(weight[i], y.z, sum[i][c].z);
                sum[i][c].w = fmaf(weight[i], y.w, sum[i][c].w);
            }
        }
    }
}

/* This thread's part of the tile into shared memory. */
template <int BLOCK> __device__ void put_tile(float *tile, const float (&value)[BLOCK / 16][BLOCK / 16]) {
    place<BLOCK> at;
#pragma unroll
    for (int i = 0; i < BLOCK / 16; i++)
#pragma unroll
        for (int j = 0; j < BLOCK / 16; j++) tile[(at.row + i) * (BLOCK + PAD) + at.column + 16 * j] = value[i][j];
}

template <typename E, int DP, int BLOCK>
__device__ void store_rows(E *out, int64_t stride, int n_rows, int D, const float4 (&value)[BLOCK / 16][DP / 64]) {
    place<BLOCK> at;
#pragma unroll
    for (int i = 0; i < BLOCK / 16; i++)
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            const float four[4] = {value[i][c].x, value[i][c].y, value[i][c].z, value[i][c].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int d = 4 * at.column + 64 * c + e;
                if (at.row + i < n_rows && d < D) out[(at.row + i) * stride + d] = narrow<E>(four[e]);
            }
        }
}

template <int R, int C> __device__ void scale_row(float4 (&sum)[R][C], int i, float factor) {
#pragma unroll
    for (int c = 0; c < C; c++) {
        sum[i][c].x *= factor;
        sum[i][c].y *= factor;
        sum[i][c].z *= factor;
        sum[i][c].w *= factor;
    }
}

/* Over the 16 threads that share rows. */
__device__ float row_max(float x) {
    for (int n = 8; n > 0; n /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, n));
    return x;
}
__device__ float row_sum(float x) {
    for (int n = 8; n > 0; n /= 2) x += __shfl_xor_sync(0xffffffff, x, n);
    return x;
}

/* Does query i (a row of this tile) see key j; positions are those of the sequence. */
__device__ bool sees(int query, int key, int start, int T) { return query < T && key <= query && key >= start; }

/* ---- forward ---------------------------------------------------------------------------------------------------- */

template <typename E, int DP>
__global__ void __launch_bounds__(THREADS, 1) attention_plain(const __grid_constant__ launch_attention a) {
    constexpr int BLOCK = block_for<DP>(), R = BLOCK / 16;
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *kv = q + BLOCK * (DP + PAD), *p = kv + BLOCK * (DP + PAD);
    const int T = (int)a.T, D = a.D, n_tiles = (T + BLOCK - 1) / BLOCK;
    const tile_task task = tile_task_of(blockIdx.x, n_tiles, a.B, a.H);
    const int q0 = task.tile * BLOCK, g = task.head / (a.H / a.G), n_q = min(BLOCK, T - q0);
    const int64_t stride = (int64_t)(a.H + 2 * a.G) * D, base = task.b * a.T;
    const E *qkv = (const E *)a.qkv + base * stride;
    const int32_t *doc = a.doc + base;
    place<BLOCK> at;

    int start[R];
    float max[R], sum[R];
    float4 out[R][DP / 64] = {};
    for (int i = 0; i < R; i++) {
        start[i] = q0 + at.row + i < T ? document_start(doc, q0 + at.row + i) : T;
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    load_rows<E, DP, BLOCK>(q, qkv + q0 * stride + task.head * D, stride, n_q, D, a.scale);
    for (int k0 = 0; k0 < q0 + n_q; k0 += BLOCK) {
        bool any = false;
        for (int i = 0; i < R; i++) any |= start[i] < k0 + BLOCK;
        if (!__syncthreads_or(any)) continue; /* left of every document; and the tile before is read by all */
        const int n_k = min(BLOCK, T - k0);
        load_rows<E, DP, BLOCK>(kv, qkv + k0 * stride + (a.H + g) * D, stride, n_k, D, 1);
        __syncthreads();
        float s[R][R];
        dot_rows<DP, BLOCK>(s, q, kv);
        for (int i = 0; i < R; i++) {
            float top = -INFINITY, total = 0;
            for (int j = 0; j < R; j++) {
                if (!sees(q0 + at.row + i, k0 + at.column + 16 * j, start[i], T)) s[i][j] = -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = fmaxf(max[i], row_max(top));
            float from = anchor(top), decay = expf(max[i] - from);
            for (int j = 0; j < R; j++) {
                s[i][j] = expf(s[i][j] - from);
                total += s[i][j];
            }
            sum[i] = fmaf(sum[i], decay, row_sum(total));
            max[i] = top;
            scale_row(out, i, decay);
        }
        put_tile<BLOCK>(p, s);
        __syncthreads(); /* keys are read */
        load_rows<E, DP, BLOCK>(kv, qkv + k0 * stride + (a.H + a.G + g) * D, stride, n_k, D, 1);
        __syncthreads();
        weigh_rows<DP, BLOCK, false>(out, p, kv);
    }
    for (int i = 0; i < R; i++) {
        if (at.row + i >= n_q) continue;
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            out[i][c].x /= sum[i];
            out[i][c].y /= sum[i];
            out[i][c].z /= sum[i];
            out[i][c].w /= sum[i];
        }
        if (at.column == 0) a.lse[(task.b * a.H + task.head) * a.T + q0 + at.row + i] = max[i] + logf(sum[i]);
    }
    store_rows<E, DP, BLOCK>((E *)a.y + (base + q0) * a.H * D + task.head * D, (int64_t)a.H * D, n_q, D, out);
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* p = exp(s - lse) and ds = p (dp - delta) of this thread's part of a tile; q in shared memory is scaled. */
template <int DP, int BLOCK>
__device__ void gradient_tile(float (&p)[BLOCK / 16][BLOCK / 16], float (&ds)[BLOCK / 16][BLOCK / 16], const float *q,
                              const float *k, const float *dy, const float *v, int q0, int k0, int T,
                              const int (&start)[BLOCK / 16], const float (&lse)[BLOCK / 16],
                              const float (&delta)[BLOCK / 16]) {
    place<BLOCK> at;
    dot_rows<DP, BLOCK>(p, q, k);
    dot_rows<DP, BLOCK>(ds, dy, v);
    for (int i = 0; i < BLOCK / 16; i++)
        for (int j = 0; j < BLOCK / 16; j++) {
            bool seen = sees(q0 + at.row + i, k0 + at.column + 16 * j, start[i], T);
            p[i][j] = seen ? expf(p[i][j] - lse[i]) : 0.0f;
            ds[i][j] = seen ? p[i][j] * (ds[i][j] - delta[i]) : 0.0f;
        }
}

/* What a thread must know of its rows of queries. */
template <int R>
__device__ void load_statistics(const launch_attention &a, int64_t b, int head, int first, int (&start)[R],
                                float (&lse)[R], float (&delta)[R]) {
    for (int i = 0; i < R; i++) {
        bool there = first + i < a.T;
        int64_t at = (b * a.H + head) * a.T + first + i;
        start[i] = there ? document_start(a.doc + b * a.T, first + i) : (int)a.T;
        lse[i] = there ? a.lse[at] : 0.0f;
        delta[i] = there ? a.delta[at] : 0.0f;
    }
}

/* dq = */
template <typename E, int DP>
__global__ void __launch_bounds__(THREADS, 1) attention_plain_dq(const __grid_constant__ launch_attention a) {
    constexpr int BLOCK = block_for<DP>(), R = BLOCK / 16, TILE = BLOCK * (DP + PAD);
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *dy = q + TILE, *k = dy + TILE, *v = k + TILE, *w = v + TILE;
    const int T = (int)a.T, D = a.D, n_tiles = (T + BLOCK - 1) / BLOCK;
    const tile_task task = tile_task_of(blockIdx.x, n_tiles, a.B, a.H);
    const int q0 = task.tile * BLOCK, g = task.head / (a.H / a.G), n_q = min(BLOCK, T - q0);
    const int64_t stride = (int64_t)(a.H + 2 * a.G) * D, y_stride = (int64_t)a.H * D, base = task.b * a.T;
    const E *qkv = (const E *)a.qkv + base * stride;
    place<BLOCK> at;

    int start[R];
    float lse[R], delta[R];
    load_statistics(a, task.b, task.head, q0 + at.row, start, lse, delta);
    float4 dq[R][DP / 64] = {};
    load_rows<E, DP, BLOCK>(q, qkv + q0 * stride + task.head * D, stride, n_q, D, a.scale);
    load_rows<E, DP, BLOCK>(dy, (const E *)a.dy + (base + q0) * y_stride + task.head * D, y_stride, n_q, D, 1);
    for (int k0 = 0; k0 < q0 + n_q; k0 += BLOCK) {
        bool any = false;
        for (int i = 0; i < R; i++) any |= start[i] < k0 + BLOCK;
        if (!__syncthreads_or(any)) continue;
        const int n_k = min(BLOCK, T - k0);
        load_rows<E, DP, BLOCK>(k, qkv + k0 * stride + (a.H + g) * D, stride, n_k, D, 1);
        load_rows<E, DP, BLOCK>(v, qkv + k0 * stride + (a.H + a.G + g) * D, stride, n_k, D, 1);
        __syncthreads();
        float p[R][R], ds[R][R];
        gradient_tile<DP, BLOCK>(p, ds, q, k, dy, v, q0, k0, T, start, lse, delta);
        put_tile<BLOCK>(w, ds);
        __syncthreads();
        weigh_rows<DP, BLOCK, false>(dq, w, k);
    }
    for (int i = 0; i < R; i++) scale_row(dq, i, a.scale);
    store_rows<E, DP, BLOCK>((E *)a.dqkv + (base + q0) * stride + task.head * D, stride, n_q, D, dq);
}

/* dk =, dv = */
template <typename E, int DP>
__global__ void __launch_bounds__(THREADS, 1) attention_plain_dkv(const __grid_constant__ launch_attention a) {
    constexpr int BLOCK = block_for<DP>(), R = BLOCK / 16, TILE = BLOCK * (DP + PAD);
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *dy = q + TILE, *k = dy + TILE, *v = k + TILE, *w = v + TILE;
    const int T = (int)a.T, D = a.D, group = a.H / a.G;
    const int64_t pair = blockIdx.x % (a.B * a.G), b = pair / a.G,
                  base = b * a.T; /* the first key tiles walk longest */
    const int g = (int)(pair % a.G), k0 = (int)(blockIdx.x / (a.B * a.G)) * BLOCK, n_k = min(BLOCK, T - k0);
    const int64_t stride = (int64_t)(a.H + 2 * a.G) * D, y_stride = (int64_t)a.H * D;
    const E *qkv = (const E *)a.qkv + base * stride;
    place<BLOCK> at;

    float4 dk[R][DP / 64] = {}, dv[R][DP / 64] = {};
    load_rows<E, DP, BLOCK>(k, qkv + k0 * stride + (a.H + g) * D, stride, n_k, D, 1);
    load_rows<E, DP, BLOCK>(v, qkv + k0 * stride + (a.H + a.G + g) * D, stride, n_k, D, 1);
    for (int head = g * group; head < (g + 1) * group; head++)
        for (int q0 = k0; q0 < T; q0 += BLOCK) {
            int start[R];
            float lse[R], delta[R];
            load_statistics(a, b, head, q0 + at.row, start, lse, delta);
            bool any = false;
            for (int i = 0; i < R; i++) any |= start[i] < k0 + BLOCK;
            if (!__syncthreads_or(any)) continue;
            const int n_q = min(BLOCK, T - q0);
            load_rows<E, DP, BLOCK>(q, qkv + q0 * stride + head * D, stride, n_q, D, a.scale);
            load_rows<E, DP, BLOCK>(dy, (const E *)a.dy + (base + q0) * y_stride + head * D, y_stride, n_q, D, 1);
            __syncthreads();
            float p[R][R], ds[R][R];
            gradient_tile<DP, BLOCK>(p, ds, q, k, dy, v, q0, k0, T, start, lse, delta);
            put_tile<BLOCK>(w, p);
            __syncthreads();
            weigh_rows<DP, BLOCK, true>(dv, w, dy);
            __syncthreads(); /* one tile for both, or 64 columns would not fit the smaller GPUs */
            put_tile<BLOCK>(w, ds);
            __syncthreads();
            weigh_rows<DP, BLOCK, true>(dk, w, q);
        }
    E *out = (E *)a.dqkv + (base + k0) * stride + (a.H + g) * D;
    store_rows<E, DP, BLOCK>(out, stride, n_k, D, dk);
    store_rows<E, DP, BLOCK>(out + (int64_t)a.G * D, stride, n_k, D, dv);
}

/* delta = sum of dy * y over a head's columns. Eight threads a row, so that a warp reads whole sectors and a block of 32
 * neighbours writes whole ones. */
enum { DELTA_LANES = 8, DELTA_ROWS = THREADS / DELTA_LANES };

template <typename E>
__global__ void __launch_bounds__(THREADS, 1) attention_delta(const __grid_constant__ launch_attention a) {
    constexpr int WIDTH = 16 / sizeof(E);
    const int64_t n_tiles = (a.T + DELTA_ROWS - 1) / DELTA_ROWS, tile = blockIdx.x / a.H;
    const int head = (int)(blockIdx.x % a.H), lane = (int)threadIdx.x % DELTA_LANES;
    const int64_t b = tile / n_tiles, t = tile % n_tiles * DELTA_ROWS + threadIdx.x / DELTA_LANES;
    const int64_t at = ((b * a.T + t) * a.H + head) * a.D;
    const E *y = (const E *)a.y + at, *dy = (const E *)a.dy + at;
    float sum = 0;
    if (t < a.T) {
        if (a.D % WIDTH == 0) {
            for (int d = lane * WIDTH; d < a.D; d += DELTA_LANES * WIDTH) {
                const uint4 x = *(const uint4 *)(y + d), dx = *(const uint4 *)(dy + d);
                const E *x_of = (const E *)&x, *dx_of = (const E *)&dx;
#pragma unroll
                for (int e = 0; e < WIDTH; e++) sum = fmaf(widen(x_of[e]), widen(dx_of[e]), sum);
            }
        } else {
            for (int d = lane; d < a.D; d += DELTA_LANES) sum = fmaf(widen(y[d]), widen(dy[d]), sum);
        }
    }
    for (int n = DELTA_LANES / 2; n > 0; n /= 2) sum += __shfl_xor_sync(0xffffffff, sum, n);
    if (t < a.T && lane == 0) a.delta[(b * a.H + head) * a.T + t] = sum;
}

/* ---- launchers -------------------------------------------------------------------------------------------------- */

template <int DP> constexpr size_t shared_bytes(int n_tiles) {
    constexpr int BLOCK = block_for<DP>();
    return sizeof(float) * (n_tiles * BLOCK * (DP + PAD) + BLOCK * (BLOCK + PAD));
}
static_assert(shared_bytes<64>(4) <= 99 << 10 && shared_bytes<128>(4) <= 99 << 10 && shared_bytes<256>(4) <= 99 << 10,
              "more shared memory than a block of capability 8.9 may have");

template <typename E, int DP> void forward(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + block_for<DP>() - 1) / block_for<DP>();
    launch_kernel(attention_plain<E, DP>, a->B * a->H * n_tiles, THREADS, shared_bytes<DP>(2), s, *a);
}

template <typename E, int DP> void backward(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + block_for<DP>() - 1) / block_for<DP>();
    launch_kernel(attention_plain_dq<E, DP>, a->B * a->H * n_tiles, THREADS, shared_bytes<DP>(4), s, *a);
    launch_kernel(attention_plain_dkv<E, DP>, a->B * a->G * n_tiles, THREADS, shared_bytes<DP>(4), s, *a);
}

template <typename E> void launch(const launch_attention *a, bool is_backward, cudaStream_t s) {
    auto run = a->D <= 64    ? (is_backward ? backward<E, 64> : forward<E, 64>)
               : a->D <= 128 ? (is_backward ? backward<E, 128> : forward<E, 128>)
                             : (is_backward ? backward<E, 256> : forward<E, 256>);
    run(a, s);
}

void launch_any(const launch_attention *a, bool is_backward, cudaStream_t s) {
    if (a->type == LAUNCH_F32) launch<float>(a, is_backward, s);
    else if (a->type == LAUNCH_BF16) launch<__nv_bfloat16>(a, is_backward, s);
    else launch<__half>(a, is_backward, s);
}

template <typename E> void delta(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + DELTA_ROWS - 1) / DELTA_ROWS;
    launch_kernel(attention_delta<E>, a->B * n_tiles * a->H, THREADS, 0, s, *a);
}

} // namespace

extern "C" void launch_attention_plain(const launch_attention *a, cudaStream_t s) { launch_any(a, false, s); }
extern "C" void launch_attention_plain_backward(const launch_attention *a, cudaStream_t s) { launch_any(a, true, s); }
extern "C" void launch_attention_delta(const launch_attention *a, cudaStream_t s) {
    if (a->type == LAUNCH_F32) delta<float>(a, s);
    else if (a->type == LAUNCH_BF16) delta<__nv_bfloat16>(a, s);
    else delta<__half>(a, s);
}
