/* parts.cu - rows put in order for ALL_TO_ALL: by heads, by tokens, and back. Nothing is computed.
 *
 * A thread moves one unit: 16 bytes where heads or rows are made of whole ones and both sides start at one, else 2 bytes,
 * which every type is made of. Threads of a warp move neighbours, so one side of the move at least is in order. */
#include "backend/cuda/launch_parts.h"

#include "backend/cuda/typed.cuh"

enum { THREADS = 256 };

template <typename U> DEVICE void move(U *out, const U *in, int64_t in_one_piece, int64_t in_parts, bool inverse) {
    if (inverse) out[in_one_piece] = in[in_parts];
    else out[in_parts] = in[in_one_piece];
}

template <typename U>
static __global__ void __launch_bounds__(THREADS)
    head_kernel(launch_parts p, int64_t row_units, int64_t head_units, int n_heads, int n_kv_heads) {
    int q = n_heads / p.n_parts, g = n_kv_heads / p.n_parts; /* heads of one part */
    int64_t u = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (u >= row_units) return;
    int head = (int)(u / head_units), part, local;
    if (head < n_heads) {
        part = head / q;
        local = head % q;
    } else {
        int kv = head - n_heads, value = kv >= n_kv_heads; /* k, then v */
        kv -= value * n_kv_heads;
        part = kv / g;
        local = q + value * g + kv % g;
    }
    int64_t in_part = local * head_units + u % head_units, part_units = row_units / p.n_parts;
    for (int64_t row = blockIdx.y; row < p.n_rows; row += gridDim.y)
        move((U *)p.out, (const U *)p.in, row * row_units + u, (part * p.n_rows + row) * part_units + in_part,
             p.inverse);
}

template <typename U>
static __global__ void __launch_bounds__(THREADS)
    token_kernel(launch_parts p, int64_t row_units, int64_t batch, int64_t seq_len) {
    int64_t u = (int64_t)blockIdx.x * THREADS + threadIdx.x, own = seq_len / p.n_parts;
    int64_t chunk = seq_len / (2 * p.n_parts);
    if (u >= row_units) return;
    for (int64_t row = blockIdx.y; row < p.n_rows; row += gridDim.y) { /* in the order of the parts */
        int64_t part = row / (batch * own), b = row / own % batch, i = row % own;
        int64_t token = i < chunk ? part * chunk + i : (2 * p.n_parts - 2 - part) * chunk + i;
        move((U *)p.out, (const U *)p.in, (b * seq_len + token) * row_units + u, row * row_units + u, p.inverse);
    }
}

/* run(unit) with a value of the widest type that all runs of bytes are made of. */
template <typename F> static void by_unit(const launch_parts *p, int64_t run_bytes, F run) {
    if (run_bytes % 16 == 0 && aligned(p->in, 16) && aligned(p->out, 16)) run(uint4{});
    else run(uint16_t{});
}

void launch_head_parts(cudaStream_t s, const launch_parts *p, int n_heads, int n_kv_heads, int64_t head_bytes) {
    by_unit(p, head_bytes, [&](auto zero) {
        using U = decltype(zero);
        int64_t units = p->row_bytes / (int64_t)sizeof(U), head_units = head_bytes / (int64_t)sizeof(U);
        launch(head_kernel<U>, dim3((unsigned)divide_up(units, THREADS), grid_rows(p->n_rows)), dim3(THREADS), s, *p,
               units, head_units, n_heads, n_kv_heads);
    });
}

void launch_token_parts(cudaStream_t s, const launch_parts *p, int64_t batch, int64_t seq_len) {
    by_unit(p, p->row_bytes, [&](auto zero) {
        using U = decltype(zero);
        int64_t units = p->row_bytes / (int64_t)sizeof(U);
        launch(token_kernel<U>, dim3((unsigned)divide_up(units, THREADS), grid_rows(p->n_rows)), dim3(THREADS), s, *p,
               units, batch, seq_len);
    });
}
