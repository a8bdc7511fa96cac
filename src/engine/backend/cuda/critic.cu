/* critic.cu - values of tokens: the last layer of a value head with its gradient, and the loss of a critic.
 *
 * A warp makes the value of a token. The gradient of the weights is a sum over all tokens, in double: a thread has a column of a
 * block of tokens, and a second launch adds the blocks in order, as the host does. A row's loss is made by one thread, back to front
 * and front to back over a few thousand numbers that stay in its cache: microseconds beside the decoder's milliseconds. */
#include "backend/cuda/launch_critic.h"

#include "backend/cuda/critic_sizes.h"
#include "backend/cuda/typed.cuh"

enum { WARPS = 4, COLUMNS = 128 };

template <typename T> static __global__ void __launch_bounds__(WARPS *WARP) make_values(launch_value p) {
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (row >= p.n_rows) return;
    const T *x = (const T *)p.x + row * p.width, *w = (const T *)p.w;
    double sum = 0;
    for (int64_t i = lane; i < p.width; i += WARP) sum += (double)widen(x[i]) * (double)widen(w[i]);
    for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (lane != 0) return;
    sum += (double)widen(*(const T *)p.b);
    p.values[row] = (float)(p.sigmoid ? preference_sigmoid(sum) : sum);
}

DEVICE double slope_of(const launch_value &p, int64_t row) {
    double d = (double)p.dvalues[row], v = (double)p.values[row];
    return p.sigmoid ? d * v * (1 - v) : d;
}

/* A column of a block of tokens; the one behind the last is the bias. */
template <typename T> static __global__ void __launch_bounds__(COLUMNS) value_backward(launch_value p) {
    int64_t column = (int64_t)blockIdx.y * COLUMNS + threadIdx.x, block = blockIdx.x;
    int64_t first = block * VALUE_BLOCK, end = min(first + VALUE_BLOCK, p.n_rows);
    if (column > p.width) return;
    bool is_bias = column == p.width;
    double sum = 0, w = is_bias ? 0 : (double)widen(((const T *)p.w)[column]);
    for (int64_t row = first; row < end; row++) {
        double d = slope_of(p, row);
        int64_t at = row * p.width + column;
        sum += is_bias ? d : d * (double)widen(((const T *)p.x)[at]);
        if (!is_bias) narrow((T *)p.dx + at, (float)(d * w));
    }
    if (p.dw || p.db) p.lines[block * (p.width + 1) + column] = sum;
}

template <typename T> static __global__ void __launch_bounds__(COLUMNS) add_blocks(launch_value p) {
    int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    bool is_bias = column == p.width;
    T *to = is_bias ? (T *)p.db : (T *)p.dw + column;
    if (column > p.width || !(is_bias ? p.db : p.dw)) return;
    double sum = 0;
    for (int64_t block = 0; block < value_blocks(p.n_rows); block++) sum += p.lines[block * (p.width + 1) + column];
    narrow(to, (float)sum);
}

void launch_value_run(cudaStream_t s, const launch_value *p) {
    unsigned blocks = (unsigned)((p->n_rows + WARPS - 1) / WARPS);
    if (!blocks) return;
    if (p->type == LAUNCH_F32) make_values<float><<<blocks, WARPS * WARP, 0, s>>>(*p);
    else if (p->type == LAUNCH_BF16) make_values<bf16><<<blocks, WARPS * WARP, 0, s>>>(*p);
    else make_values<f16><<<blocks, WARPS * WARP, 0, s>>>(*p);
}

void launch_value_bwd(cudaStream_t s, const launch_value *p) {
    unsigned columns = (unsigned)(p->width / COLUMNS + 1);
    dim3 grid((unsigned)value_blocks(p->n_rows), columns);
    if (!grid.x) return;
    if (p->type == LAUNCH_F32) value_backward<float><<<grid, COLUMNS, 0, s>>>(*p);
    else if (p->type == LAUNCH_BF16) value_backward<bf16><<<grid, COLUMNS, 0, s>>>(*p);
    else value_backward<f16><<<grid, COLUMNS, 0, s>>>(*p);
    if (!p->dw && !p->db) return;
    if (p->dw_type == LAUNCH_F32) add_blocks<float><<<columns, COLUMNS, 0, s>>>(*p);
    else if (p->dw_type == LAUNCH_BF16) add_blocks<bf16><<<columns, COLUMNS, 0, s>>>(*p);
    else add_blocks<f16><<<columns, COLUMNS, 0, s>>>(*p);
}

/* ---- the loss ------------------------------------------------------------------------------------------------------ */

static __global__ void judge_rows(launch_critic p) {
    int64_t row = blockIdx.x, T = p.rows.seq_len;
    critic_layout l = critic_layout_of(p.rows.batch, T);
    critic_part *parts = (critic_part *)p.work + row * T * PREFERENCE_PARTS;
    double *out = (double *)((char *)p.work + l.at_sums) + row * CRITIC_SUM_COUNT, sums[CRITIC_SUM_COUNT] = {};
    critic_row(&p.options, parts, &p.rows, row, p.segments, p.values, (double)*p.seed, p.dvalues, sums);
    for (int i = 0; i < CRITIC_SUM_COUNT; i++) out[i] = sums[i];
}

static __global__ void add_sums(launch_critic p) {
    int i = threadIdx.x;
    if (i >= CRITIC_SUM_COUNT) return;
    const double *rows = (const double *)((char *)p.work + critic_layout_of(p.rows.batch, p.rows.seq_len).at_sums);
    double sum = 0;
    for (int64_t b = 0; b < p.rows.batch && p.rank == 0; b++) sum += rows[b * CRITIC_SUM_COUNT + i];
    p.sums[i] = *p.micro == 0 ? sum : p.sums[i] + sum;
}

void launch_critic_run(cudaStream_t s, const launch_critic *p) {
    judge_rows<<<(unsigned)p->rows.batch, 1, 0, s>>>(*p);
    add_sums<<<1, WARP, 0, s>>>(*p);
}
