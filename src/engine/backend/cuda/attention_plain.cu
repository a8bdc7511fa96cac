/* attention_plain.cu - causal attention inside documents in fp32 arithmetic: every dtype, every head_dim up to 256.
 *
 * A block of 256 threads stands as 16 x 16 over a tile of ROWS x COLUMNS scores: a thread owns ROWS / 16 rows of the tile
 * and, of what is summed over the tile, four columns of every 64. Rows of tensors are widened into shared memory, padded
 * with zeros to DP columns and by four floats, so that 16 rows read at once hit different banks. All that a step of the walk
 * needs is asked for before any of it is stored: one wait for memory and not many.
 * The 16 threads that own the same rows are half a warp. A tile of weights goes through shared memory from them to themselves,
 * so only the warp waits for it; that is why dk and dv are computed with keys as rows, and all else with queries.
 * Forward walks the key tiles of one query tile with a running maximum and sum. Backward runs twice: once per query tile
 * for dq, once per key tile for dk and dv, which adds up the query heads of its group and their tiles in order. So seven
 * products are computed instead of five, and no sum ever meets another block's. */
#include "backend/cuda/attention_device.cuh"

namespace {

enum { THREADS = 256, BLOCKS_AT_ONCE = 2, PAD = 4 };

/* Rows of a backward tile, which has as many columns, and of a forward one, which holds less in shared memory. */
template <int DP> constexpr int block_for() { return DP == 64 ? 64 : DP == 128 ? 32 : 16; }
template <int DP> constexpr int query_block_for() { return DP == 128 ? 64 : block_for<DP>(); }

/* Where in the tile this thread stands. */
template <int ROWS> struct place {
    int row, column; /* first of its ROWS / 16 rows; its columns are column + 16 j */
    __device__ place() : row((int)threadIdx.x / 16 * (ROWS / 16)), column((int)threadIdx.x % 16) {}
};

/* ---- rows of tensors ---------------------------------------------------------------------------------------------- */

__device__ float4 load_four(const float *p) { return *(const float4 *)p; }
template <typename E> __device__ float4 load_four(const E *p) {
    const uint2 bits = *(const uint2 *)p;
    const E *x = (const E *)&bits;
    return {widen(x[0]), widen(x[1]), widen(x[2]), widen(x[3])};
}

/* Of a head whose columns are no multiple of four. */
template <typename E> __device__ float4 load_some(const E *p, int n) {
    return {widen(p[0]), n > 1 ? widen(p[1]) : 0.0f, n > 2 ? widen(p[2]) : 0.0f, n > 3 ? widen(p[3]) : 0.0f};
}

/* This thread's share of ROWS rows of a tensor, four columns at a time. */
template <int DP, int ROWS> struct row_share {
    static constexpr int FOURS = DP / 4, N = ROWS * FOURS / THREADS;
    static_assert(N * THREADS == ROWS * FOURS, "threads share the rows evenly");
    float4 x[N];
    __device__ static int row(int n) { return ((int)threadIdx.x + n * THREADS) / FOURS; }
    __device__ static int column(int n) { return ((int)threadIdx.x + n * THREADS) % FOURS * 4; }
};

/* Zeros beyond n_rows and beyond D. */
template <int DP, int ROWS, bool WHOLE, typename E>
__device__ void fetch_fours(row_share<DP, ROWS> &s, const E *in, int64_t stride, int n_rows, int D) {
#pragma unroll
    for (int n = 0; n < s.N; n++) {
        const int row = s.row(n), d = s.column(n);
        const E *p = in + row * stride + d;
        s.x[n] = {0, 0, 0, 0};
        if (row < n_rows && d < D) s.x[n] = WHOLE ? load_four(p) : load_some(p, D - d);
    }
}

template <int DP, int ROWS, typename E>
__device__ row_share<DP, ROWS> fetch_rows(const E *in, int64_t stride, int n_rows, int D) {
    row_share<DP, ROWS> s;
    if (D % 4 == 0) fetch_fours<DP, ROWS, true>(s, in, stride, n_rows, D);
    else fetch_fours<DP, ROWS, false>(s, in, stride, n_rows, D);
    return s;
}

template <int DP, int ROWS> __device__ void put_rows(float *out, const row_share<DP, ROWS> &s, float factor) {
#pragma unroll
    for (int n = 0; n < s.N; n++) {
        const float4 x = s.x[n];
        *(float4 *)(out + s.row(n) * (DP + PAD) + s.column(n)) = {x.x * factor, x.y * factor, x.z * factor,
                                                                  x.w * factor};
    }
}

/* Rows of two tensors, the first times a factor: both are asked for before either is stored. */
template <int DP, int ROWS, typename E>
__device__ void load_two(float *a, const E *a_in, int64_t a_stride, float factor, float *b, const E *b_in,
                         int64_t b_stride, int n_rows, int D) {
    const auto a_share = fetch_rows<DP, ROWS>(a_in, a_stride, n_rows, D);
    const auto b_share = fetch_rows<DP, ROWS>(b_in, b_stride, n_rows, D);
    put_rows(a, a_share, factor);
    put_rows(b, b_share, 1);
}

template <typename E, int DP, int ROWS>
__device__ void store_rows(E *out, int64_t stride, int n_rows, int D, const float4 (&value)[ROWS / 16][DP / 64]) {
    place<ROWS> at;
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++)
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

/* ---- tiles of scores ---------------------------------------------------------------------------------------------- */

/* acc = A B^T for this thread's rows of A and columns, which are rows of B. */
template <int DP, int ROWS, int COLUMNS>
__device__ void dot_rows(float (&acc)[ROWS / 16][COLUMNS / 16], const float *a, const float *b) {
    constexpr int R = ROWS / 16, C = COLUMNS / 16;
    place<ROWS> at;
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) acc[i][j] = 0;
    for (int d = 0; d < DP; d += 4) {
        float4 x[R], y[C];
#pragma unroll
        for (int i = 0; i < R; i++) x[i] = *(const float4 *)(a + (at.row + i) * (DP + PAD) + d);
#pragma unroll
        for (int j = 0; j < C; j++) y[j] = *(const float4 *)(b + (at.column + 16 * j) * (DP + PAD) + d);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++) {
                acc[i][j] = fmaf(x[i].x, y[j].x, acc[i][j]);
                acc[i][j] = fmaf(x[i].y, y[j].y, acc[i][j]);
                acc[i][j] = fmaf(x[i].z, y[j].z, acc[i][j]);
                acc[i][j] = fmaf(x[i].w, y[j].w, acc[i][j]);
            }
    }
}

__device__ void add_times(float4 &sum, float weight, const float4 &y) {
    sum.x = fmaf(weight, y.x, sum.x);
    sum.y = fmaf(weight, y.y, sum.y);
    sum.z = fmaf(weight, y.z, sum.z);
    sum.w = fmaf(weight, y.w, sum.w);
}

/* sum (this thread's rows, its columns of DP) += W B, W the tile (ROWS, COLUMNS) that its half warp put there. */
template <int DP, int ROWS, int COLUMNS>
__device__ void weigh_rows(float4 (&sum)[ROWS / 16][DP / 64], const float *w, const float *b) {
    constexpr int R = ROWS / 16, STEP = 4;
    place<ROWS> at;
    for (int k = 0; k < COLUMNS; k += STEP) {
        float4 weight[R];
#pragma unroll
        for (int i = 0; i < R; i++) weight[i] = *(const float4 *)(w + (at.row + i) * (COLUMNS + PAD) + k);
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            float4 y[STEP];
#pragma unroll
            for (int e = 0; e < STEP; e++) y[e] = *(const float4 *)(b + (k + e) * (DP + PAD) + 4 * at.column + 64 * c);
#pragma unroll
            for (int i = 0; i < R; i++) {
                add_times(sum[i][c], weight[i].x, y[0]);
                add_times(sum[i][c], weight[i].y, y[1]);
                add_times(sum[i][c], weight[i].z, y[2]);
                add_times(sum[i][c], weight[i].w, y[3]);
            }
        }
    }
}

/* This thread's part of the tile into shared memory, for its half warp: whoever of them reads or writes there next is to wait
 * for the others. */
template <int ROWS, int COLUMNS> __device__ void put_tile(float *tile, const float (&value)[ROWS / 16][COLUMNS / 16]) {
    place<ROWS> at;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) tile[(at.row + i) * (COLUMNS + PAD) + at.column + 16 * j] = value[i][j];
    __syncwarp();
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

/* The keys that a query sees; none where there is no query. */
template <bool RING> __device__ key_span span_of(const launch_attention &a, const int32_t *doc_start, int query) {
    return query < a.T ? keys_seen<RING>(a, doc_start, query) : key_span{(int)a.T, 0};
}
__device__ bool sees(const key_span &seen, int key) { return key >= seen.first && key < seen.end; }

/* Is any of these keys seen? */
__device__ bool reaches(const key_span &seen, int k0, int n) { return seen.first < k0 + n && seen.end > k0; }

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* Of a ring: one row of this thread's columns, joined with what the keys before gave. */
template <typename E, int DP>
__device__ void ring_store(const launch_attention &a, const tile_task &task, int query, bool there, int column,
                           float4 (&out)[DP / 64], float max, float sum) {
    const int64_t at = (task.b * a.H + task.head) * a.T + query, row = ((task.b * a.T + query) * a.H + task.head) * a.D;
    const float own = sum > 0 ? max + logf(sum) : -INFINITY, old = a.before && there ? a.lse_before[at] : -INFINITY;
    const float most = fmaxf(own, old), from = anchor(most);
    const float lse = most == -INFINITY ? most : from + logf(expf(own - from) + expf(old - from));
    const float own_share = sum > 0 ? expf(own - anchor(lse)) / sum : 0, old_share = expf(old - anchor(lse));
    __syncwarp(); /* lse may lie on lse_before, which the others of this row read */
    if (!there) return;
    if (column == 0) a.lse[at] = lse;
#pragma unroll
    for (int c = 0; c < DP / 64; c++) {
        const float four[4] = {out[c].x, out[c].y, out[c].z, out[c].w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int d = 4 * column + 64 * c + e;
            if (d >= a.D) continue;
            float y = four[e] * own_share;
            if (a.before) y = fmaf(a.before[row + d], old_share, y);
            if (a.more) ((float *)a.y)[row + d] = y;
            else ((E *)a.y)[row + d] = narrow<E>(y);
        }
    }
}

template <typename E, int DP, bool RING>
__global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) attention_plain(const __grid_constant__ launch_attention a) {
    constexpr int ROWS = query_block_for<DP>(), COLUMNS = block_for<DP>(), R = ROWS / 16, C = COLUMNS / 16;
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *k = q + ROWS * (DP + PAD), *v = k + COLUMNS * (DP + PAD),
          *p = v + COLUMNS * (DP + PAD);
    const int T = (int)a.T, D = a.D, n_tiles = (T + ROWS - 1) / ROWS;
    const tile_task task = tile_task_of(blockIdx.x, n_tiles, a.B, a.H);
    const int q0 = task.tile * ROWS, g = task.head / (a.H / a.G), n_q = min(ROWS, T - q0);
    const int64_t stride = a.kv_stride, base = task.b * a.T;
    const E *queries = (const E *)a.q + (base + q0) * a.q_stride + task.head * D;
    const int32_t *doc_start = a.doc_start + base;
    place<ROWS> at;

    key_span seen[R];
    float max[R], sum[R];
    float4 out[R][DP / 64] = {};
    for (int i = 0; i < R; i++) {
        seen[i] = span_of<RING>(a, doc_start, q0 + at.row + i);
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    put_rows(q, fetch_rows<DP, ROWS>(queries, a.q_stride, n_q, D), a.scale);
    for (int k0 = 0; k0 < (RING ? T : q0 + n_q); k0 += COLUMNS) {
        bool any = false;
        for (int i = 0; i < R; i++) any |= reaches(seen[i], k0, COLUMNS);
        if (!__syncthreads_or(any)) continue; /* no query sees these; and the tile before is read by all */
        const int n_k = min(COLUMNS, T - k0);
        const E *keys = (const E *)a.kv + (base + k0) * stride + g * D;
        load_two<DP, COLUMNS>(k, keys, stride, 1, v, keys + (int64_t)a.G * D, stride, n_k, D);
        __syncthreads();
        float s[R][C];
        dot_rows<DP, ROWS, COLUMNS>(s, q, k);
        for (int i = 0; i < R; i++) {
            float top = -INFINITY, total = 0;
            for (int j = 0; j < C; j++) {
                if (a.softcap > 0) s[i][j] = a.softcap * tanhf(s[i][j] / a.softcap); /* q was scaled */
                if (!sees(seen[i], k0 + at.column + 16 * j)) s[i][j] = -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = fmaxf(max[i], row_max(top));
            float from = anchor(top), decay = expf(max[i] - from);
            for (int j = 0; j < C; j++) {
                s[i][j] = expf(s[i][j] - from);
                total += s[i][j];
            }
            sum[i] = fmaf(sum[i], decay, row_sum(total));
            max[i] = top;
            scale_row(out, i, decay);
        }
        put_tile<ROWS, COLUMNS>(p, s);
        weigh_rows<DP, ROWS, COLUMNS>(out, p, v);
    }
    if constexpr (RING) {
        for (int i = 0; i < R; i++)
            ring_store<E, DP>(a, task, q0 + at.row + i, at.row + i < n_q, at.column, out[i], max[i], sum[i]);
    } else {
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
        store_rows<E, DP, ROWS>((E *)a.y + (base + q0) * a.H * D + task.head * D, (int64_t)a.H * D, n_q, D, out);
    }
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* What a thread must know of a query. */
struct query_facts {
    key_span seen;
    float lse, delta;
};
template <bool RING> __device__ query_facts facts_of(const launch_attention &a, int64_t b, int head, int position) {
    const key_span seen = span_of<RING>(a, a.doc_start + b * a.T, position);
    if (position >= a.T) return {seen, 0.0f, 0.0f};
    int64_t at = (b * a.H + head) * a.T + position;
    return {seen, a.lse[at], a.delta[at]};
}

/* From the products of a query with a key, and of its dy with a value: p = exp(s - lse) and ds = p (dp - delta). */
__device__ void gradients_of(const launch_attention &a, float &p, float &ds, const query_facts &q, int key) {
    const bool seen = sees(q.seen, key);
    float slope = 1;
    if (a.softcap > 0) {
        const float t = tanhf(p / a.softcap);
        p = a.softcap * t, slope = 1 - t * t;
    }
    p = seen ? expf(p - q.lse) : 0.0f;
    ds = seen ? p * (ds - q.delta) * slope : 0.0f;
}

/* Rows of sums to or on to fp32. */
template <int DP, int ROWS>
__device__ void ring_rows(const launch_attention &a, float *out, int64_t stride, int n_rows,
                          const float4 (&value)[ROWS / 16][DP / 64]) {
    place<ROWS> at;
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++)
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            const float four[4] = {value[i][c].x, value[i][c].y, value[i][c].z, value[i][c].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int d = 4 * at.column + 64 * c + e;
                if (at.row + i >= n_rows || d >= a.D) continue;
                float *to = out + (at.row + i) * stride + d;
                *to = a.adds ? *to + four[e] : four[e];
            }
        }
}

/* dq = */
template <typename E, int DP, bool RING>
__global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    attention_plain_dq(const __grid_constant__ launch_attention a) {
    constexpr int BLOCK = block_for<DP>(), R = BLOCK / 16, TILE = BLOCK * (DP + PAD);
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *dy = q + TILE, *k = dy + TILE, *v = k + TILE, *w = v + TILE;
    const int T = (int)a.T, D = a.D, n_tiles = (T + BLOCK - 1) / BLOCK;
    const tile_task task = tile_task_of(blockIdx.x, n_tiles, a.B, a.H);
    const int q0 = task.tile * BLOCK, g = task.head / (a.H / a.G), n_q = min(BLOCK, T - q0);
    const int64_t stride = a.kv_stride, y_stride = (int64_t)a.H * D, base = task.b * a.T;
    const E *queries = (const E *)a.q + (base + q0) * a.q_stride + task.head * D;
    place<BLOCK> at;

    query_facts query[R]; /* of its rows */
    for (int i = 0; i < R; i++) query[i] = facts_of<RING>(a, task.b, task.head, q0 + at.row + i);
    float4 dq[R][DP / 64] = {};
    load_two<DP, BLOCK>(q, queries, a.q_stride, a.scale, dy, (const E *)a.dy + (base + q0) * y_stride + task.head * D,
                        y_stride, n_q, D);
    for (int k0 = 0; k0 < (RING ? T : q0 + n_q); k0 += BLOCK) {
        bool any = false;
        for (int i = 0; i < R; i++) any |= reaches(query[i].seen, k0, BLOCK);
        if (!__syncthreads_or(any)) continue;
        const int n_k = min(BLOCK, T - k0);
        const E *keys = (const E *)a.kv + (base + k0) * stride + g * D;
        load_two<DP, BLOCK>(k, keys, stride, 1, v, keys + (int64_t)a.G * D, stride, n_k, D);
        __syncthreads();
        float p[R][R], ds[R][R];
        dot_rows<DP, BLOCK, BLOCK>(p, q, k);
        dot_rows<DP, BLOCK, BLOCK>(ds, dy, v);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < R; j++) gradients_of(a, p[i][j], ds[i][j], query[i], k0 + at.column + 16 * j);
        put_tile<BLOCK, BLOCK>(w, ds);
        weigh_rows<DP, BLOCK, BLOCK>(dq, w, k);
    }
    for (int i = 0; i < R; i++) scale_row(dq, i, a.scale);
    if constexpr (RING)
        ring_rows<DP, BLOCK>(a, (float *)a.dq + (base + q0) * y_stride + task.head * D, y_stride, n_q, dq);
    else store_rows<E, DP, BLOCK>((E *)a.dq + (base + q0) * a.q_stride + task.head * D, a.q_stride, n_q, D, dq);
}

/* dk =, dv = */
template <typename E, int DP, bool RING>
__global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    attention_plain_dkv(const __grid_constant__ launch_attention a) {
    constexpr int BLOCK = block_for<DP>(), R = BLOCK / 16, TILE = BLOCK * (DP + PAD);
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *dy = q + TILE, *k = dy + TILE, *v = k + TILE, *w = v + TILE;
    const int T = (int)a.T, D = a.D, group = a.H / a.G;
    const int64_t pair = blockIdx.x % (a.B * a.G), b = pair / a.G,
                  base = b * a.T; /* the first key tiles walk longest */
    const int g = (int)(pair % a.G), k0 = (int)(blockIdx.x / (a.B * a.G)) * BLOCK, n_k = min(BLOCK, T - k0);
    const int64_t stride = a.q_stride, kv_stride = a.kv_stride, y_stride = (int64_t)a.H * D;
    const int64_t own = (base + k0) * kv_stride + g * D; /* of its keys */
    const E *queries = (const E *)a.q + base * stride, *keys = (const E *)a.kv + own;
    const int q_end = RING ? T : min(T, k0 + BLOCK - 1 + a.window);
    place<BLOCK> at;

    float4 dk[R][DP / 64] = {}, dv[R][DP / 64] = {};
    load_two<DP, BLOCK>(k, keys, kv_stride, 1, v, keys + (int64_t)a.G * D, kv_stride, n_k, D);
    for (int head = g * group; head < (g + 1) * group; head++)
        for (int q0 = RING ? 0 : k0; q0 < q_end; q0 += BLOCK) {
            query_facts query[R]; /* of its columns */
            bool any = false;
            for (int j = 0; j < R; j++) {
                query[j] = facts_of<RING>(a, b, head, q0 + at.column + 16 * j);
                any |= reaches(query[j].seen, k0, BLOCK);
            }
            if (!__syncthreads_or(any)) continue;
            const int n_q = min(BLOCK, T - q0);
            load_two<DP, BLOCK>(q, queries + q0 * stride + head * D, stride, a.scale, dy,
                                (const E *)a.dy + (base + q0) * y_stride + head * D, y_stride, n_q, D);
            __syncthreads();
            float p[R][R], ds[R][R];
            dot_rows<DP, BLOCK, BLOCK>(p, k, q);
            dot_rows<DP, BLOCK, BLOCK>(ds, v, dy);
            for (int i = 0; i < R; i++)
                for (int j = 0; j < R; j++) gradients_of(a, p[i][j], ds[i][j], query[j], k0 + at.row + i);
            put_tile<BLOCK, BLOCK>(w, p);
            weigh_rows<DP, BLOCK, BLOCK>(dv, w, dy);
            put_tile<BLOCK, BLOCK>(w, ds);
            weigh_rows<DP, BLOCK, BLOCK>(dk, w, q);
        }
    const int64_t value = own + (int64_t)a.G * D;
    if constexpr (RING) {
        ring_rows<DP, BLOCK>(a, (float *)a.dkv + own, kv_stride, n_k, dk);
        ring_rows<DP, BLOCK>(a, (float *)a.dkv + value, kv_stride, n_k, dv);
    } else {
        store_rows<E, DP, BLOCK>((E *)a.dkv + own, kv_stride, n_k, D, dk);
        store_rows<E, DP, BLOCK>((E *)a.dkv + value, kv_stride, n_k, D, dv);
    }
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
    if (a.turns && t < a.T && t % ATTENTION_DQ_ROWS == 0 && lane == 0) {
        const int64_t tiles = (a.T + ATTENTION_DQ_ROWS - 1) / ATTENTION_DQ_ROWS;
        a.turns[(b * a.H + head) * tiles + t / ATTENTION_DQ_ROWS] = 0;
    }
    if (a.dkv_turns && head < a.G && t < a.T && t % ATTENTION_KEY_ROWS == 0 && lane == 0) {
        const int64_t tiles = (a.T + ATTENTION_KEY_ROWS - 1) / ATTENTION_KEY_ROWS;
        int32_t *halves = a.dkv_turns + ((b * a.G + head) * tiles + t / ATTENTION_KEY_ROWS) * 2;
        halves[0] = halves[1] = 0;
    }
}

/* ---- launchers -------------------------------------------------------------------------------------------------- */

/* Of a tile of scores, and of so many rows of tensors. */
template <int DP> constexpr size_t shared_bytes(int rows, int columns, int n_rows) {
    return sizeof(float) * (rows * (columns + PAD) + n_rows * (DP + PAD));
}
template <int DP> constexpr size_t forward_bytes() {
    return shared_bytes<DP>(query_block_for<DP>(), block_for<DP>(), query_block_for<DP>() + 2 * block_for<DP>());
}
template <int DP> constexpr size_t backward_bytes() {
    return shared_bytes<DP>(block_for<DP>(), block_for<DP>(), 4 * block_for<DP>());
}
template <int DP> constexpr bool fits() { return forward_bytes<DP>() <= 99 << 10 && backward_bytes<DP>() <= 99 << 10; }
static_assert(fits<64>() && fits<128>() && fits<256>(), "more shared memory than a block of capability 8.9 may have");

template <typename E, int DP, bool RING> void forward(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + query_block_for<DP>() - 1) / query_block_for<DP>();
    launch_kernel(attention_plain<E, DP, RING>, a->B * a->H * n_tiles, THREADS, forward_bytes<DP>(), s, *a);
}

template <typename E, int DP, bool RING> void backward(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + block_for<DP>() - 1) / block_for<DP>();
    launch_kernel(attention_plain_dq<E, DP, RING>, a->B * a->H * n_tiles, THREADS, backward_bytes<DP>(), s, *a);
    launch_kernel(attention_plain_dkv<E, DP, RING>, a->B * a->G * n_tiles, THREADS, backward_bytes<DP>(), s, *a);
}

template <typename E, bool RING> void launch(const launch_attention *a, bool is_backward, cudaStream_t s) {
    auto run = a->D <= 64    ? (is_backward ? backward<E, 64, RING> : forward<E, 64, RING>)
               : a->D <= 128 ? (is_backward ? backward<E, 128, RING> : forward<E, 128, RING>)
                             : (is_backward ? backward<E, 256, RING> : forward<E, 256, RING>);
    run(a, s);
}

template <bool RING> void launch_any(const launch_attention *a, bool is_backward, cudaStream_t s) {
    if (a->type == LAUNCH_F32) launch<float, RING>(a, is_backward, s);
    else if (a->type == LAUNCH_BF16) launch<__nv_bfloat16, RING>(a, is_backward, s);
    else launch<__half, RING>(a, is_backward, s);
}

template <typename E> void delta(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + DELTA_ROWS - 1) / DELTA_ROWS;
    launch_kernel(attention_delta<E>, a->B * n_tiles * a->H, THREADS, 0, s, *a);
}

} // namespace

extern "C" void launch_attention_plain(const launch_attention *a, cudaStream_t s) { launch_any<false>(a, false, s); }
extern "C" void launch_attention_plain_backward(const launch_attention *a, cudaStream_t s) {
    launch_any<false>(a, true, s);
}
extern "C" void launch_ring_plain(const launch_attention *a, cudaStream_t s) { launch_any<true>(a, false, s); }
extern "C" void launch_ring_plain_backward(const launch_attention *a, cudaStream_t s) { launch_any<true>(a, true, s); }
extern "C" void launch_attention_delta(const launch_attention *a, cudaStream_t s) {
    if (a->type == LAUNCH_F32) delta<float>(a, s);
    else if (a->type == LAUNCH_BF16) delta<__nv_bfloat16>(a, s);
    else delta<__half>(a, s);
}
