/* critic.c - the C side of critic.cu. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_critic.h"

void cuda_kernel_VALUE(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, VALUE_X);
    launch_value p = {.type = launch_type_of(x->type),
                      .x = k->in[VALUE_X],
                      .w = k->in[VALUE_W],
                      .b = k->in[VALUE_B],
                      .values = k->out[VALUE_VALUES],
                      .n_rows = x->shape.dim[0],
                      .width = x->shape.dim[1],
                      .sigmoid = k->op->attr.sigmoid};
    launch_value_run(c->stream, &p);
}

void cuda_kernel_VALUE_BWD(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, VALUE_BWD_X);
    int of_grad = k->out[VALUE_BWD_DW] ? VALUE_BWD_DW : VALUE_BWD_DB;
    launch_value p = {.type = launch_type_of(x->type),
                      .dw_type = launch_type_of(k->out[of_grad] ? call_out(k, of_grad)->type : x->type),
                      .x = k->in[VALUE_BWD_X],
                      .w = k->in[VALUE_BWD_W],
                      .values = (float *)(uintptr_t)k->in[VALUE_BWD_VALUES],
                      .dvalues = k->in[VALUE_BWD_DVALUES],
                      .dx = k->out[VALUE_BWD_DX],
                      .dw = k->out[VALUE_BWD_DW],
                      .db = k->out[VALUE_BWD_DB],
                      .lines = k->work,
                      .n_rows = x->shape.dim[0],
                      .width = x->shape.dim[1],
                      .sigmoid = k->op->attr.sigmoid};
    launch_value_bwd(c->stream, &p);
}

void cuda_kernel_CRITIC(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    const char *scalars = k->in[CRITIC_SCALARS];
    launch_critic p = {.options = a->critic,
                       .values = k->in[CRITIC_VALUES],
                       .segments = k->in[CRITIC_SEGMENTS],
                       .micro = (const uint32_t *)(scalars + offsetof(step_scalars, micro)),
                       .seed = (const float *)(scalars + offsetof(step_scalars, seed)),
                       .dvalues = k->out[CRITIC_DVALUES],
                       .sums = k->out[CRITIC_SUMS],
                       .rows = {a->batch, a->seq_len * MAX(a->group_size, 1), MAX(a->group_size, 1)},
                       .rank = a->index,
                       .work = k->work};
    launch_critic_run(c->stream, &p);
}
