/* fp8.c - the C side of fp8.cu, fp8_blocks.cu and swiglu8.cu, RMSNORM8 of those and norm.cu, and LINEAR8: tensor cores multiply e4m3 as they multiply bf16, with scales that lie in
 * device memory, so that a recorded step reads those of its run. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_fp8.h"
#include "backend/cuda/launch_norm.h"

void cuda_kernel_ABSMAX(backend_context *c, const kernel_call *k) { /* amax = */
    ASSERT(call_in(k, ABSMAX_X)->type == DTYPE_BF16);
    launch_absmax(c->stream, k->out[ABSMAX_AMAX], k->in[ABSMAX_X], shape_count(&call_in(k, ABSMAX_X)->shape));
}

void cuda_kernel_QUANTIZE(backend_context *c, const kernel_call *k) { /* q, t, scale, largest, guess = */
    const value *x = call_in(k, QUANTIZE_X);
    ASSERT(x->type == DTYPE_BF16 && x->shape.rank == 2 && (k->out[QUANTIZE_Q] || k->out[QUANTIZE_T]));
    launch_quantize_args a = {.x = k->in[QUANTIZE_X],
                              .q = k->out[QUANTIZE_Q],
                              .t = k->out[QUANTIZE_T],
                              .scale = {.amax = k->in[QUANTIZE_AMAX],
                                        .scale = k->out[QUANTIZE_SCALE],
                                        .largest = k->out[QUANTIZE_LARGEST],
                                        .guess = k->out[QUANTIZE_GUESS],
                                        .power = k->op->attr.power},
                              .n_rows = x->shape.dim[0],
                              .n_columns = x->shape.dim[1]};
    launch_quantize(c->stream, &a);
}

void cuda_kernel_QUANTIZE_BLOCKS(backend_context *c, const kernel_call *k) { /* q, scale, t, t_scale = */
    const shape *x = &call_in(k, QUANTIZE_BLOCKS_X)->shape;
    launch_quantize_blocks_args a = {.x = k->in[QUANTIZE_BLOCKS_X],
                                     .q = k->out[QUANTIZE_BLOCKS_Q],
                                     .t = k->out[QUANTIZE_BLOCKS_T],
                                     .scale = k->out[QUANTIZE_BLOCKS_SCALE],
                                     .t_scale = k->out[QUANTIZE_BLOCKS_T_SCALE],
                                     .n_rows = x->dim[0],
                                     .n_columns = x->dim[1],
                                     .square = k->op->attr.square};
    launch_quantize_blocks(c->stream, &a);
}

void cuda_kernel_SWIGLU8(backend_context *c, const kernel_call *k) { /* q, t, scale, largest, guess = */
    const shape *gu = &call_in(k, SWIGLU8_GU)->shape;
    launch_swiglu8_args a = {.gu = k->in[SWIGLU8_GU],
                             .dy = k->in[SWIGLU8_DY],
                             .q = k->out[SWIGLU8_Q],
                             .t = k->out[SWIGLU8_T],
                             .scale = {.amax = k->in[SWIGLU8_AMAX],
                                       .scale = k->out[SWIGLU8_SCALE],
                                       .largest = k->out[SWIGLU8_LARGEST],
                                       .guess = k->out[SWIGLU8_GUESS],
                                       .power = k->op->attr.power},
                             .n_rows = gu->dim[0],
                             .F = gu->dim[1] / 2,
                             .is_gelu = k->op->attr.gelu_gate};
    launch_swiglu8(c->stream, &a);
}

/* The norm finds rstd and the largest number, and writes no more than the sum; rounding norms the rows again. */
void cuda_kernel_RMSNORM8(backend_context *c, const kernel_call *k) { /* s, rstd, q, t, scale, largest = */
    const shape *x = &call_in(k, RMSNORM8_A)->shape;
    launch_norm_args n = {.a = k->in[RMSNORM8_A],
                          .b = k->in[RMSNORM8_B],
                          .gamma = k->in[RMSNORM8_GAMMA],
                          .s = k->out[RMSNORM8_S],
                          .rstd = k->out[RMSNORM8_RSTD],
                          .amax = k->out[RMSNORM8_LARGEST],
                          .n_rows = x->dim[0],
                          .C = x->dim[1],
                          .stride = x->dim[1],
                          .rstd_step = 1,
                          .eps = k->op->attr.eps,
                          .offset = k->op->attr.gain_offset};
    launch_quantize_args q = {.x = n.b ? n.s : n.a,
                              .q = k->out[RMSNORM8_Q],
                              .t = k->out[RMSNORM8_T],
                              .scale = {.amax = n.amax ? n.amax : k->in[RMSNORM8_AMAX],
                                        .scale = k->out[RMSNORM8_SCALE],
                                        .power = k->op->attr.power},
                              .n_rows = n.n_rows,
                              .n_columns = n.C,
                              .rstd = n.rstd,
                              .gamma = n.gamma,
                              .offset = n.offset};
    launch_norm(c->stream, LAUNCH_BF16, &n);
    launch_quantize(c->stream, &q);
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
