/* lora_up_tiles.cu - y = base + scale xa b^T as a stream of tiles that the TMA unit fetches and stores: compute capability 9.0.
 *
 * A tile is 32 rows of 256 columns of a part. One warp asks for the tiles of its block, in a ring of stages; eight warps, each with
 * 32 columns, add to them where they lie; another warp sends them on and hands the stage back. So loads, sums and stores of
 * different tiles overlap, and nobody waits for a whole block. A block takes a run of tiles down the columns, so that it seldom
 * loads its rows of b. Sums are those of lora_up.cu, bit by bit: the same products in the same order, one rounding. */
#include "backend/cuda/lora_tiles.cuh"
#include "backend/cuda/lora_up.cuh"

enum { ADDING_WARPS = 8, THREADS = (ADDING_WARPS + 2) * 32, COLUMNS = ADDING_WARPS * 32, ROWS = LORA_UP_ROWS, STAGES = 5 };
enum { BLOCKS_PER_MULTIPROCESSOR = 2, ALIGNMENT = 1024, BOX_BYTES = ROWS * LORA_BOX_ROW, WIDE_BYTES = ROWS * COLUMNS * 2 };

/* WIDTH: columns of xa, 16 for every step along r. */
template <int WIDTH> struct shared_state {
    enum { XA_BYTES = ROWS * WIDTH * 2 };
    struct stage {
        uint8_t wide[WIDE_BYTES], xa[XA_BYTES]; /* both multiples of ALIGNMENT */
    } stages[STAGES];
    uint64_t full[STAGES], done[STAGES], empty[STAGES];
};

/* 256 columns of a part, or its last ones. */
struct stripe {
    int part, n_boxes;
    int64_t first, b_row; /* in wide rows; in b */
};
static __device__ stripe stripe_at(const launch_lora_up_args &a, int64_t number) {
    int64_t b_row = 0;
    for (int part = 0;; part++) {
        int64_t columns = a.parts.columns[part], n = (columns + COLUMNS - 1) / COLUMNS, at = number * COLUMNS;
        if (number < n || part + 1 == a.parts.n)
            return {part, (int)min((int64_t)COLUMNS, columns - at) / LORA_BOX_COLUMNS, a.parts.first[part] + at, b_row + at};
        number -= n, b_row += columns;
    }
}

#if WGMMA_HERE

/* Where a warp is among the tiles of its block; every role walks the same way. */
struct walk {
    const launch_lora_up_args &a;
    int64_t tile, end, tiles_per_stripe, held, number = -1; /* held: rows that there are */
    stripe at;
    int row;
    bool is_new_stripe;
    __device__ walk(const launch_lora_up_args &args, int64_t n_tiles, int64_t per_stripe)
        : a(args), tile(blockIdx.x * n_tiles / gridDim.x - 1), end((blockIdx.x + 1) * n_tiles / gridDim.x),
          tiles_per_stripe(per_stripe) {
        held = a.rows && *a.rows < a.N ? *a.rows : a.N;
    }
    /* The next tile that has rows; false: there is none. */
    __device__ bool next() {
        while (++tile < end) {
            row = (int)(tile % tiles_per_stripe) * ROWS;
            if (row >= held) continue;
            is_new_stripe = tile / tiles_per_stripe != number;
            if (is_new_stripe) at = stripe_at(a, number = tile / tiles_per_stripe);
            return true;
        }
        return false;
    }
};

template <int WIDTH>
static __device__ void load_tiles(walk w, shared_state<WIDTH> &s, const launch_lora_up_maps &m) {
    for (ring_place<STAGES> to; w.next(); to.advance()) {
        uint32_t wide = shared_address(s.stages[to.stage].wide), full = shared_address(&s.full[to.stage]);
        barrier_wait(shared_address(&s.empty[to.stage]), to.parity ^ 1);
        barrier_arrive_expecting(full, w.at.n_boxes * BOX_BYTES + shared_state<WIDTH>::XA_BYTES);
        for (int box = 0; box < w.at.n_boxes; box++)
            fetch_box(wide + box * BOX_BYTES, &m.base, (int)w.at.first + box * LORA_BOX_COLUMNS, w.row, 0, full);
        fetch_box(shared_address(s.stages[to.stage].xa), &m.xa, w.at.part * (int)w.a.r, w.row, 0, full);
    }
}

template <int WIDTH>
static __device__ void store_tiles(walk w, shared_state<WIDTH> &s, const launch_lora_up_maps &m) {
    int before = -1; /* the stage that is still being read */
    for (ring_place<STAGES> from; w.next(); from.advance()) {
        uint32_t wide = shared_address(s.stages[from.stage].wide);
        barrier_wait(shared_address(&s.done[from.stage]), from.parity);
        for (int box = 0; box < w.at.n_boxes; box++)
            store_box(&m.y, (int)w.at.first + box * LORA_BOX_COLUMNS, w.row, 0, wide + box * BOX_BYTES);
        copy_bulk_commit();
        copy_bulk_wait_read<1>();
        if (before >= 0) barrier_arrive(shared_address(&s.empty[before]));
        before = (int)from.stage;
    }
    copy_bulk_wait_read<0>();
}

template <typename E, int WIDTH> static __device__ void add_to_tiles(walk w, shared_state<WIDTH> &s) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    b_step<E> b[WIDTH / 16];
    for (ring_place<STAGES> now; w.next(); now.advance()) {
        if (w.is_new_stripe)
#pragma unroll
            for (int k = 0; k < WIDTH / 16; k++)
                b[k] = b_load((const E *)w.a.b + w.at.b_row * w.a.r, warp * 32, w.at.n_boxes * LORA_BOX_COLUMNS, k * 16,
                              (int)w.a.r);
        uint32_t wide = shared_address(s.stages[now.stage].wide), xa = shared_address(s.stages[now.stage].xa);
        barrier_wait(shared_address(&s.full[now.stage]), now.parity);
#pragma unroll
        for (int step = 0; step < ROWS; step += 16) {
            float acc[TILES][4] = {};
#pragma unroll
            for (int k = 0; k < WIDTH / 16; k++) {
                uint32_t rows[4];
                load_matrices(rows, xa + narrow_place<WIDTH>(step + lane % 16, k * 16 + lane / 16 * 8));
#pragma unroll
                for (int j = 0; j < TILES; j++) mma<E>(acc[j], rows, b[k].b[j][0], b[k].b[j][1]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t place = wide + wide_place<ROWS>(step + half * 8 + g, warp * 32 + t * 8);
                store_shared_16(place, add_pack<E>(load_shared_16(place), w.a.scale, acc, half));
            }
        }
        fence_bulk(); /* the TMA unit sees what was stored */
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&s.done[now.stage]));
    }
}

#endif

/* Grid: as many blocks as run at once. */
template <typename E, int WIDTH>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR)
    tiles_kernel(const __grid_constant__ launch_lora_up_args a, const __grid_constant__ launch_lora_up_maps m,
                 int64_t n_tiles, int64_t tiles_per_stripe) {
#if WGMMA_HERE
    extern __shared__ uint8_t shared[];
    auto &s = *(shared_state<WIDTH> *)(((uintptr_t)shared + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), 1);
        barrier_init(shared_address(&s.done[threadIdx.x]), ADDING_WARPS);
        barrier_init(shared_address(&s.empty[threadIdx.x]), 1);
        barriers_publish();
    }
    __syncthreads();
    walk w(a, n_tiles, tiles_per_stripe);
    if (warp < ADDING_WARPS) add_to_tiles<E, WIDTH>(w, s);
    else if (lane == 0 && warp == ADDING_WARPS) load_tiles<WIDTH>(w, s, m);
    else if (lane == 0) store_tiles<WIDTH>(w, s, m);
#endif
}

template <typename E, int WIDTH>
static void launch_width(cudaStream_t s, const launch_lora_up_args *a, const launch_lora_up_maps *m) {
    int device, n_multiprocessors;
    int64_t n_stripes = 0, tiles_per_stripe = (a->N + ROWS - 1) / ROWS;
    for (int i = 0; i < a->parts.n; i++) n_stripes += (a->parts.columns[i] + COLUMNS - 1) / COLUMNS;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    int64_t n_tiles = n_stripes * tiles_per_stripe, n_blocks = n_multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    launch_kernel(tiles_kernel<E, WIDTH>, n_blocks < n_tiles ? n_blocks : n_tiles, THREADS,
                  sizeof(shared_state<WIDTH>) + ALIGNMENT, s, *a, *m, n_tiles, tiles_per_stripe);
}

template <typename E>
static void launch_for(cudaStream_t s, const launch_lora_up_args *a, const launch_lora_up_maps *m) {
    if (lora_rank_width(a->r) == 16) launch_width<E, 16>(s, a, m);
    else if (lora_rank_width(a->r) == 32) launch_width<E, 32>(s, a, m);
    else launch_width<E, 64>(s, a, m);
}

void launch_lora_up_tiles(cudaStream_t s, launch_type t, const launch_lora_up_args *a, const launch_lora_up_maps *m) {
    if (t == LAUNCH_BF16) launch_for<__nv_bfloat16>(s, a, m);
    else launch_for<__half>(s, a, m);
}
