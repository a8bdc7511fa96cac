/* lora_up.cu - y = base + scale xa b^T for a small r: memory is read and written once, tensor cores have little to do.
 *
 * A warp has 32 columns of a part and goes over rows, 16 at a time, of which it asks for BLOCK_ROWS at once. Up to a rank of 64 a warp keeps its rows of b in registers; xa is shared by the
 * warps of a block, which have neighbouring columns. A row's sum knows no other row, in order of r. */
#include "backend/cuda/lora_up.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, COLUMNS = WARPS * 32, STEPS = 4, BLOCK_ROWS = STEPS * 16, PAD = 8 };

/* KEPT: steps along r whose b is kept in registers; 0: none are, r may be anything. */
template <typename E, int KEPT>
static __global__ void __launch_bounds__(THREADS, KEPT == 1 || KEPT == 2 ? 3 : 2) up_kernel(launch_lora_up_args a, int64_t rows_per_block) {
    extern __shared__ uint4 shared[];
    E *xs = (E *)shared; /* (BLOCK_ROWS, r rounded up to 16, + PAD) */
    int r = (int)a.r, n_steps = KEPT > 0 ? KEPT : (r + 15) / 16, ld = n_steps * 16 + PAD;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, part = 0;
    int64_t tile = blockIdx.x, b_row = 0, columns = a.parts.columns[0], first = a.parts.first[0];
#pragma unroll
    for (int i = 1; i < LAUNCH_LORA_PARTS; i++) { /* constant places: others would put the arguments on the stack */
        int64_t tiles = (columns + COLUMNS - 1) / COLUMNS;
        if (part < i - 1 || i >= a.parts.n || tile < tiles) continue;
        part = i, tile -= tiles, b_row += columns;
        columns = a.parts.columns[i], first = a.parts.first[i];
    }
    int64_t column = tile * COLUMNS + threadIdx.x / 32 * 32, wide = a.parts.n * a.r;
    const E *b = (const E *)a.b + b_row * a.r, *xa = (const E *)a.xa + part * a.r;
    const E *base = (const E *)a.base + first + column + 8 * t;
    E *y = (E *)a.y + first + column + 8 * t;
    bool there = column + 8 * t < columns;
    b_step<E> kept[KEPT > 0 ? KEPT : 1];
#pragma unroll
    for (int k = 0; k < KEPT; k++) kept[k] = b_load(b, column, columns, k * 16, r);
    int64_t held = a.rows && *a.rows < a.N ? *a.rows : a.N;
    int64_t end = min((blockIdx.y + 1) * rows_per_block, held);
    for (int64_t row0 = blockIdx.y * rows_per_block; row0 < end; row0 += BLOCK_ROWS) {
        uint4 from[STEPS][2];
#pragma unroll
        for (int i = 0; i < STEPS * 2; i++) {
            int64_t row = row0 + i * 8 + g;
            from[i / 2][i % 2] = there && row < end ? *(const uint4 *)(base + row * a.out) : make_uint4(0, 0, 0, 0);
        }
        __syncthreads(); /* the rows before are used up */
        for (int w = threadIdx.x; w < BLOCK_ROWS * n_steps * 8; w += THREADS) {
            int row = w / (n_steps * 8), k = w % (n_steps * 8) * 2;
            *(uint32_t *)(xs + row * ld + k) = pair_load(xa + (row0 + row) * wide, k, r, row0 + row < end);
        }
        __syncthreads();
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            float acc[TILES][4] = {};
            uint32_t at = shared_address(xs + (step * 16 + lane % 16) * ld + lane / 16 * 8);
#pragma unroll
            for (int k = 0; k < (KEPT > 0 ? KEPT : n_steps); k++) {
                uint32_t rows[4];
                load_matrices(rows, at + k * 32);
                b_step<E> now = KEPT > 0 ? kept[KEPT > 0 ? k : 0] : b_load(b, column, columns, k * 16, r);
#pragma unroll
                for (int j = 0; j < TILES; j++) mma<E>(acc[j], rows, now.b[j][0], now.b[j][1]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int64_t row = row0 + step * 16 + half * 8 + g;
                if (there && row < end) *(uint4 *)(y + row * a.out) = add_pack<E>(from[step][half], a.scale, acc, half);
            }
        }
    }
}

template <typename E> static void launch_for(cudaStream_t s, const launch_lora_up_args *a) {
    int64_t tiles = 0, n_steps = (a->r + 15) / 16;
    for (int i = 0; i < a->parts.n; i++) tiles += (a->parts.columns[i] + COLUMNS - 1) / COLUMNS;
    /* Long blocks read b less often; short ones are there for every multiprocessor, many times. */
    int64_t rows = tiles * ((a->N + 4 * BLOCK_ROWS - 1) / (4 * BLOCK_ROWS)) >= 4096 ? 4 * BLOCK_ROWS : BLOCK_ROWS;
    while ((a->N + rows - 1) / rows > 65535) rows *= 2;
    dim3 grid((unsigned)tiles, (unsigned)((a->N + rows - 1) / rows));
    void (*kernel)(launch_lora_up_args, int64_t) = up_kernel<E, 0>;
    if (n_steps == 1) kernel = up_kernel<E, 1>;
    else if (n_steps == 2) kernel = up_kernel<E, 2>;
    else if (n_steps == 3) kernel = up_kernel<E, 3>;
    else if (n_steps == 4) kernel = up_kernel<E, 4>;
    size_t shared_bytes = (size_t)(BLOCK_ROWS * (n_steps * 16 + PAD)) * sizeof(E);
    if (tiles == 0 || a->N == 0) return;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    kernel<<<grid, THREADS, shared_bytes, s>>>(*a, rows);
}

void launch_lora_up(cudaStream_t s, launch_type t, const launch_lora_up_args *a) {
    if (t == LAUNCH_BF16) launch_for<__nv_bfloat16>(s, a);
    else launch_for<__half>(s, a);
}
