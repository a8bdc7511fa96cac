/* ring.cu - what a ring of keys and values moves besides attention: k|v out of rows of q|k|v, and gradients back into them. */
#include "backend/cuda/attention_device.cuh"

namespace {

enum { THREADS = 256 };

template <typename E>
__global__ void __launch_bounds__(THREADS)
    qkv_join(const float *q, const float *kv, E *qkv, int64_t q_columns, int64_t kv_columns) {
    const int64_t row = blockIdx.x;
    E *out = qkv + row * (q_columns + kv_columns);
    for (int64_t i = threadIdx.x; i < q_columns; i += THREADS) out[i] = narrow<E>(q[row * q_columns + i]);
    for (int64_t i = threadIdx.x; i < kv_columns; i += THREADS)
        out[q_columns + i] = narrow<E>(kv[row * kv_columns + i]);
}

template <typename E>
void join(const float *q, const float *kv, void *qkv, int64_t n_rows, int64_t q_columns, int64_t kv_columns,
          cudaStream_t s) {
    launch_kernel(qkv_join<E>, n_rows, THREADS, 0, s, q, kv, (E *)qkv, q_columns, kv_columns);
}

} // namespace

extern "C" void launch_kv_part(const void *qkv, void *kv, int64_t n_rows, int64_t q_bytes, int64_t kv_bytes,
                               cudaStream_t s) {
    cudaMemcpy2DAsync(kv, (size_t)kv_bytes, (const char *)qkv + q_bytes, (size_t)(q_bytes + kv_bytes), (size_t)kv_bytes,
                      (size_t)n_rows, cudaMemcpyDeviceToDevice, s);
}

extern "C" void launch_qkv_join(launch_type type, const float *q, const float *kv, void *qkv, int64_t n_rows,
                                int64_t q_columns, int64_t kv_columns, cudaStream_t s) {
    if (type == LAUNCH_F32) join<float>(q, kv, qkv, n_rows, q_columns, kv_columns, s);
    else if (type == LAUNCH_BF16) join<__nv_bfloat16>(q, kv, qkv, n_rows, q_columns, kv_columns, s);
    else join<__half>(q, kv, qkv, n_rows, q_columns, kv_columns, s);
}
