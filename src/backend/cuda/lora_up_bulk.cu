/* lora_up_bulk.cu - y = base + scale xa b^T as a stream: on capability 9.0 rows travel in bulk, past the registers.
 *
 * A tile is 32 rows of 256 columns of a part. One warp asks for the tiles of its block, in a ring of stages; eight warps, each with
 * 32 columns, add to them where they lie; another warp sends them on and hands the stage back. So loads, sums and stores of
 * different tiles overlap, and nobody waits for a whole block. A block takes a run of tiles down the columns, so that it seldom
 * loads its rows of b. Sums are those of lora_up.cu, bit by bit: the same products in the same order, one rounding. */
#include "backend/cuda/barriers.cuh"
#include "backend/cuda/lora_up.cuh"

enum { COMPUTE_WARPS = 8, THREADS = (COMPUTE_WARPS + 2) * 32, COLUMNS = COMPUTE_WARPS * 32, ROWS = 32, STAGES = 5 };
/* Bytes from one row to the next: eight lanes that read two rows at once meet no bank twice. */
enum { PITCH = COLUMNS * 2 + 64, BLOCKS_PER_MULTIPROCESSOR = 2 };

template <int KEPT> struct stage_layout {
    enum { XA_PITCH = KEPT * 32 + 16, XA = ROWS * PITCH, BYTES = XA + ROWS * XA_PITCH };
};

template <int KEPT> struct shared_state {
    uint8_t stages[STAGES][stage_layout<KEPT>::BYTES];
    uint64_t full[STAGES], done[STAGES], empty[STAGES];
};

/* 256 columns of a part, or its last ones, and the part's share of the other operands. */
template <typename E> struct stripe {
    const E *base, *xa, *b;
    E *y;
    int64_t column, columns; /* of the part: where the stripe begins, and how many there are */
};
template <typename E> static __device__ stripe<E> stripe_at(const launch_lora_up_args &a, int64_t number) {
    int part = 0;
    int64_t b_row = 0, columns = a.parts.columns[0], first = a.parts.first[0];
#pragma unroll
    for (int i = 1; i < LAUNCH_LORA_PARTS; i++) { /* constant places: others would put the arguments on the stack */
        int64_t n = (columns + COLUMNS - 1) / COLUMNS;
        if (part < i - 1 || i >= a.parts.n || number < n) continue;
        part = i, number -= n, b_row += columns;
        columns = a.parts.columns[i], first = a.parts.first[i];
    }
    int64_t column = number * COLUMNS;
    return {(const E *)a.base + first + column,
            (const E *)a.xa + part * a.r,
            (const E *)a.b + b_row * a.r,
            (E *)a.y + first + column,
            column,
            columns};
}

#if BARRIERS_HERE

/* Where a warp is among the tiles of its block; every role walks the same way. */
template <typename E> struct walk {
    const launch_lora_up_args &a;
    int64_t tile, end, tiles_per_stripe, held; /* held: rows that there are */
    stripe<E> at;
    int64_t row0;
    int rows, row_bytes;
    bool new_stripe;
    int64_t number = -1;
    __device__ walk(const launch_lora_up_args &args, int64_t n_tiles, int64_t per_stripe)
        : a(args), tile(blockIdx.x * n_tiles / gridDim.x - 1), end((blockIdx.x + 1) * n_tiles / gridDim.x),
          tiles_per_stripe(per_stripe) {
        held = a.rows && *a.rows < a.N ? *a.rows : a.N;
    }
    /* The next tile that has rows; false: there is none. */
    __device__ bool next() {
        while (++tile < end) {
            row0 = tile % tiles_per_stripe * ROWS;
            if (row0 >= held) continue;
            rows = (int)min((int64_t)ROWS, held - row0);
            new_stripe = tile / tiles_per_stripe != number;
            if (new_stripe) {
                number = tile / tiles_per_stripe;
                at = stripe_at<E>(a, number);
                row_bytes = (int)min((int64_t)COLUMNS, at.columns - at.column) * (int)sizeof(E);
            }
            return true;
        }
        return false;
    }
};

template <typename E, int KEPT> static __device__ void load_tiles(walk<E> w, shared_state<KEPT> &s) {
    using layout = stage_layout<KEPT>;
    int lane = threadIdx.x % 32, xa_bytes = (int)w.a.r * (int)sizeof(E);
    int64_t wide = w.a.parts.n * w.a.r;
    for (ring_place<STAGES> to; w.next(); to.advance()) {
        uint32_t stage = shared_address(s.stages[to.stage]), full = shared_address(&s.full[to.stage]);
        barrier_wait(shared_address(&s.empty[to.stage]), to.parity ^ 1);
        if (lane == 0) barrier_arrive_expecting(full, (uint32_t)(w.rows * (w.row_bytes + xa_bytes)));
        __syncwarp();
        if (lane >= w.rows) continue;
        int64_t row = w.row0 + lane;
        copy_bulk(stage + lane * PITCH, w.at.base + row * w.a.out, w.row_bytes, full);
        copy_bulk(stage + layout::XA + lane * layout::XA_PITCH, w.at.xa + row * wide, xa_bytes, full);
    }
}

template <typename E, int KEPT> static __device__ void store_tiles(walk<E> w, shared_state<KEPT> &s) {
    int lane = threadIdx.x % 32, before = -1; /* the stage that is still being read */
    for (ring_place<STAGES> from; w.next(); from.advance()) {
        barrier_wait(shared_address(&s.done[from.stage]), from.parity);
        if (lane < w.rows)
            copy_bulk_out(w.at.y + (w.row0 + lane) * w.a.out, shared_address(s.stages[from.stage]) + lane * PITCH,
                          w.row_bytes);
        copy_bulk_commit();
        if (before >= 0) {
            copy_bulk_wait_read<1>();
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&s.empty[before]));
        }
        before = (int)from.stage;
    }
    copy_bulk_wait_read<0>();
}

template <typename E, int KEPT> static __device__ void add_to_tiles(walk<E> w, shared_state<KEPT> &s) {
    using layout = stage_layout<KEPT>;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    b_step<E> b[KEPT];
    for (ring_place<STAGES> now; w.next(); now.advance()) {
        if (w.new_stripe)
#pragma unroll
            for (int k = 0; k < KEPT; k++)
                b[k] = b_load(w.at.b, w.at.column + warp * 32, w.at.columns, k * 16, (int)w.a.r);
        uint32_t stage = shared_address(s.stages[now.stage]), xa = stage + layout::XA;
        barrier_wait(shared_address(&s.full[now.stage]), now.parity);
#pragma unroll
        for (int step = 0; step < ROWS / 16; step++) {
            float acc[TILES][4] = {};
#pragma unroll
            for (int k = 0; k < KEPT; k++) {
                uint32_t rows[4];
                load_matrices(rows, xa + (step * 16 + lane % 16) * layout::XA_PITCH + lane / 16 * 16 + k * 32);
#pragma unroll
                for (int j = 0; j < TILES; j++) mma<E>(acc[j], rows, b[k].b[j][0], b[k].b[j][1]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t place = stage + (step * 16 + half * 8 + g) * PITCH + warp * 64 + t * 16;
                store_shared_16(place, add_pack<E>(load_shared_16(place), w.a.scale, acc, half));
            }
        }
        fence_bulk(); /* the copy out sees what was stored */
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&s.done[now.stage]));
    }
}

#endif

/* KEPT: steps of 16 along r, whose b is kept in registers. Grid: as many blocks as run at once. */
template <typename E, int KEPT>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR)
    bulk_kernel(launch_lora_up_args a, int64_t n_tiles, int64_t tiles_per_stripe) {
#if BARRIERS_HERE
    extern __shared__ __align__(128) uint8_t shared[];
    shared_state<KEPT> &s = *(shared_state<KEPT> *)shared;
    int warp = threadIdx.x / 32;
    /* Behind a rank that is no multiple of 16, and in rows that are not there: no copy writes here, and NaN times 0 is NaN. */
    for (int i = threadIdx.x; i < (int)sizeof s.stages / 16; i += THREADS)
        ((uint4 *)s.stages)[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), 1);
        barrier_init(shared_address(&s.done[threadIdx.x]), COMPUTE_WARPS);
        barrier_init(shared_address(&s.empty[threadIdx.x]), 1);
        barriers_publish();
    }
    fence_bulk();
    __syncthreads();
    walk<E> w(a, n_tiles, tiles_per_stripe);
    if (warp < COMPUTE_WARPS) add_to_tiles<E, KEPT>(w, s);
    else if (warp == COMPUTE_WARPS) load_tiles<E, KEPT>(w, s);
    else store_tiles<E, KEPT>(w, s);
#endif
}

template <typename E, int KEPT>
static void launch_tiles(cudaStream_t s, const launch_lora_up_args *a, int64_t n_tiles, int64_t tiles_per_stripe) {
    int device, n_multiprocessors;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    int64_t n_blocks = n_multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    launch_kernel(bulk_kernel<E, KEPT>, n_blocks < n_tiles ? n_blocks : n_tiles, THREADS, sizeof(shared_state<KEPT>), s,
                  *a, n_tiles, tiles_per_stripe);
}

template <typename E> static void launch_for(cudaStream_t s, const launch_lora_up_args *a) {
    int64_t n_stripes = 0, rows = (a->N + ROWS - 1) / ROWS, n_steps = (a->r + 15) / 16;
    for (int i = 0; i < a->parts.n; i++) n_stripes += (a->parts.columns[i] + COLUMNS - 1) / COLUMNS;
    if (n_steps == 1) launch_tiles<E, 1>(s, a, n_stripes * rows, rows);
    else if (n_steps == 2) launch_tiles<E, 2>(s, a, n_stripes * rows, rows);
    else if (n_steps == 3) launch_tiles<E, 3>(s, a, n_stripes * rows, rows);
    else launch_tiles<E, 4>(s, a, n_stripes * rows, rows);
}

void launch_lora_up_bulk(cudaStream_t s, launch_type t, const launch_lora_up_args *a) {
    if (t == LAUNCH_BF16) launch_for<__nv_bfloat16>(s, a);
    else launch_for<__half>(s, a);
}
