/* fp8.c - the C side of fp8.cu, and LINEAR8: tensor cores multiply e4m3 as they multiply bf16, with scales that lie in
 * device memory, so that a recorded step reads those of its run. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_fp8.h"

void cuda_kernel_ABSMAX(backend_context *c, const kernel_call *k) { /* amax = */
    ASSERT(call_in(k, 0)->type == DTYPE_BF16);
    launch_absmax(c->stream, k->out[0], k->in[0], shape_count(&call_in(k, 0)->shape));
}

void cuda_kernel_QUANTIZE(backend_context *c, const kernel_call *k) { /* q, t, scale = */
    const value *x = call_in(k, 0);
    ASSERT(x->type == DTYPE_BF16 && x->shape.rank == 2 && (k->out[0] || k->out[1]));
    launch_quantize_args a = {.x = k->in[0],
                              .amax = k->in[1],
                              .q = k->out[0],
                              .t = k->out[1],
                              .scale = k->out[2],
                              .n_rows = x->shape.dim[0],
                              .n_columns = x->shape.dim[1]};
    launch_quantize(c->stream, &a);
}

void cuda_kernel_LINEAR8(backend_context *c, const kernel_call *k) { /* y = */
    gemm_call g = {.q = linear8_product(k->program, k->op),
                   .a = k->in[0],
                   .a_scale = k->in[1],
                   .b = k->in[2],
                   .b_scale = k->in[3],
                   .bias = k->in[4],
                   .c = k->out[0],
                   .work = k->work};
    gemm_launch(c, &g);
}
