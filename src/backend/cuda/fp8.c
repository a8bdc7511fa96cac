/* fp8.c - the C side of fp8.cu, and LINEAR8: tensor cores multiply e4m3 as they multiply bf16, with scales that lie in
 * device memory, so that a recorded step reads those of its run. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_fp8.h"

void cuda_kernel_ABSMAX(backend_context *c, const kernel_call *k) { /* amax = */
    ASSERT(call_in(k, ABSMAX_X)->type == DTYPE_BF16);
    launch_absmax(c->stream, k->out[ABSMAX_AMAX], k->in[ABSMAX_X], shape_count(&call_in(k, ABSMAX_X)->shape));
}

void cuda_kernel_QUANTIZE(backend_context *c, const kernel_call *k) { /* q, t, scale = */
    const value *x = call_in(k, QUANTIZE_X);
    ASSERT(x->type == DTYPE_BF16 && x->shape.rank == 2 && (k->out[QUANTIZE_Q] || k->out[QUANTIZE_T]));
    launch_quantize_args a = {.x = k->in[QUANTIZE_X],
                              .amax = k->in[QUANTIZE_AMAX],
                              .q = k->out[QUANTIZE_Q],
                              .t = k->out[QUANTIZE_T],
                              .scale = k->out[QUANTIZE_SCALE],
                              .n_rows = x->shape.dim[0],
                              .n_columns = x->shape.dim[1]};
    launch_quantize(c->stream, &a);
}

void cuda_kernel_LINEAR8(backend_context *c, const kernel_call *k) { /* y = */
    gemm_call g = {.q = linear8_product(k->program, k->op),
                   .a = k->in[LINEAR8_X],
                   .a_scale = k->in[LINEAR8_X_SCALE],
                   .b = k->in[LINEAR8_W],
                   .b_scale = k->in[LINEAR8_W_SCALE],
                   .bias = k->in[LINEAR8_B],
                   .c = k->out[LINEAR8_Y],
                   .work = k->work};
    gemm_launch(c, &g);
}
