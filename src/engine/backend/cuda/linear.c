/* linear.c - y = x w^T (+ b), dx = dy w (+ add), dw = dy^T x: one product each, dw also added to what is there.
 *
 * dw is the finished sum over all tokens: adding it to an accumulator is another op, so that micro-batches and ranks are
 * summed in one order. Where op.rows says that fewer rows hold something, all are computed: the shape stays, and with it
 * the algorithm and every row's bits. What a dx is added to is copied to its place first where the plan has not put it
 * there: cuBLASLt's algorithms may round a sum with another matrix otherwise than one in place. An adapter is added inside the sums by
 * lora_product.cu, or behind the product where that has no kernel for it, or was measured slower. */
#include "backend/adapted.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/lora_product.h"

SAME_PLACE(LINEAR_X, LINEAR_DX_DY, LINEAR_DW_DY, LINEAR_DW_ADD_DY);
SAME_PLACE(LINEAR_W, LINEAR_DX_W, LINEAR_DW_X, LINEAR_DW_ADD_X);
SAME_PLACE(LINEAR_Y, LINEAR_DX_DX, LINEAR_DW_DW, LINEAR_DW_ADD_DW);

static void linear_run(backend_context *c, const kernel_call *k) {
    gemm_call g = {.q = linear_product(k->program, k->op),
                   .a = k->in[LINEAR_X],
                   .b = k->in[LINEAR_W],
                   .c = k->out[LINEAR_Y],
                   .work = k->work};
    if (g.q.bias) g.bias = k->in[LINEAR_B];
    if (g.q.add && k->in[LINEAR_DX_ADD] != k->out[LINEAR_DX_DX])
        cudaMemcpyAsync(g.c, k->in[LINEAR_DX_ADD], value_bytes(call_out(k, LINEAR_DX_DX)), cudaMemcpyDeviceToDevice,
                        c->stream);
    gemm_launch(c, &g);
}

static void run_behind(backend_context *c, const kernel_call *k) {
    adapted_calls two;
    adapted_split(k, &two);
    linear_run(c, &two.calls[0]);
    if (two.ops[1].kind == OP_LORA_UP) cuda_kernel_LORA_UP(c, &two.calls[1]);
    else linear_run(c, &two.calls[1]);
}

static void adapted_run(backend_context *c, const kernel_call *k) {
    SAME_PLACE(LINEAR_UP, LINEAR_DX_DOWN);
    char what[48];
    const shape *up = &call_in(k, LINEAR_UP)->shape;
    product q = linear_product(k->program, k->op);
    snprintf(what, sizeof what, "%d x %lld x %lld", k->op->attr.n_parts, (long long)up->dim[0], (long long)up->dim[1]);
    gemm_ways ways = {.what = what, .own = lora_product_run, .library = run_behind};
    gemm_run_faster(c, k, &q, &ways, lora_product_takes(c, k));
}

void cuda_kernel_LINEAR(backend_context *c, const kernel_call *k) { /* y = */
    (op_is_adapted(k->op) ? adapted_run : linear_run)(c, k);
}
void cuda_kernel_LINEAR_DX(backend_context *c, const kernel_call *k) { /* dx = */
    (op_is_adapted(k->op) ? adapted_run : linear_run)(c, k);
}
void cuda_kernel_LINEAR_DW(backend_context *c, const kernel_call *k) { linear_run(c, k); }     /* dw = */
void cuda_kernel_LINEAR_DW_ADD(backend_context *c, const kernel_call *k) { linear_run(c, k); } /* dw += */
