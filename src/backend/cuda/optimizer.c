/* optimizer.c - the C side of optimizer.cu and adamw.cu, and the proof that both sides mean the same numbers. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_optimizer.h"

#define SAME_FIELD(f)                                                                \
    _Static_assert(offsetof(launch_scalars, f) == offsetof(step_scalars, f) &&       \
                       sizeof((launch_scalars){0}.f) == sizeof((step_scalars){0}.f), \
                   "launch_scalars is step_scalars")
SAME_FIELD(lr);
SAME_FIELD(seed);
SAME_FIELD(grad_unscale);
SAME_FIELD(bias1);
SAME_FIELD(bias2);
SAME_FIELD(step);
SAME_FIELD(micro);
SAME_FIELD(noise_lo);
SAME_FIELD(noise_hi);
_Static_assert(sizeof(launch_scalars) == sizeof(step_scalars), "launch_scalars is step_scalars");

_Static_assert((int)LAUNCH_SUM_WEIGHTED_LOSS == SUM_WEIGHTED_LOSS && (int)LAUNCH_SUM_VALID == SUM_VALID &&
                   (int)LAUNCH_SUM_WEIGHTS == SUM_WEIGHTS && (int)LAUNCH_SUM_LOSS == SUM_LOSS &&
                   (int)LAUNCH_SUM_COUNT == SUM_COUNT,
               "the sums of the loss");
_Static_assert((int)LAUNCH_CLIP_NORM == CLIP_NORM && (int)LAUNCH_CLIP_FACTOR == CLIP_FACTOR &&
                   (int)LAUNCH_CLIP_SKIP == CLIP_SKIP && (int)LAUNCH_CLIP_LOSS == CLIP_LOSS,
               "the clip value");
_Static_assert(CLIP_THREADS == CLIP_LANES, "a thread per lane of the sum");
_Static_assert(NORM_BLOCK % PART_ALIGNMENT == 0 && RNG_NOISE_BLOCK % NOISE_BLOCK_MULTIPLE == 0,
               "parts are whole tiles");
_Static_assert(STATES_8_BLOCK == STATE_BLOCK, "one scale per tile");
_Static_assert(NORM_BLOCK % 16 == 0, "a block of the norm is whole lanes");

static launch_noise noise_of(const op *o) {
    ASSERT(o->attr.first_element >= 0 && o->attr.first_element % PART_ALIGNMENT == 0);
    return (launch_noise){.key = o->attr.noise_key, .first_element = o->attr.first_element, .block = RNG_NOISE_BLOCK};
}

void cuda_kernel_ACCUMULATE(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, 0), *acc = call_out(k, 0);
    ASSERT(acc->type == DTYPE_F32 || acc->type == DTYPE_BF16);
    launch_accumulate(c->stream, launch_type_of(acc->type), launch_type_of(x->type), k->out[0], k->in[0], k->in[1],
                      noise_of(k->op), shape_count(&acc->shape));
}

void cuda_kernel_GRAD_SUMSQ(backend_context *c, const kernel_call *k) {
    const value *g = call_in(k, 0);
    int64_t n = shape_count(&g->shape);
    const op_attr *a = &k->op->attr;
    int64_t counted = a->counts_part ? MIN(MAX(a->counted - a->first_element, 0), n) : n;
    ASSERT(shape_count(&call_out(k, 0)->shape) == divide_up(n, NORM_BLOCK));
    launch_grad_sumsq(c->stream, launch_type_of(g->type), k->out[0], k->in[0], n, counted, NORM_BLOCK);
}

void cuda_kernel_NORM_SUM(backend_context *c, const kernel_call *k) {
    launch_norm_sum(c->stream, k->out[0], k->in[0], shape_count(&call_in(k, 0)->shape));
}

void cuda_kernel_SUM_PARTS(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, 0), *parts = call_in(k, 1);
    const op_attr *a = &k->op->attr;
    int64_t n = shape_count(&x->shape), n_end = parts->shape.dim[1];
    size_t skipped = (size_t)(a->first_part * n_end) * dtype_bytes(x->type);
    ASSERT(parts->type == x->type && n_end <= n && a->n_parts > 0 && a->first_part + a->n_parts <= parts->shape.dim[0]);
    launch_sum_parts(c->stream, launch_type_of(x->type), k->out[0], k->in[0], (const char *)k->in[1] + skipped, n,
                     n_end, a->n_parts);
}

void cuda_kernel_CLIP(backend_context *c, const kernel_call *k) {
    launch_clip_args a = {.partials = k->in[0],
                          .sums = k->in[1],
                          .scalars = k->in[2],
                          .clip = k->out[0],
                          .n_partials = shape_count(&call_in(k, 0)->shape),
                          .n_clip = CLIP_COUNT,
                          .limit = k->op->attr.clip,
                          .by_weights = k->op->attr.normalize_by_weights};
    launch_clip(c->stream, &a);
}

void cuda_kernel_LOSS_REDUCE(backend_context *c, const kernel_call *k) {
    launch_loss_reduce(c->stream, k->out[0], k->in[0], k->in[1], k->in[2], k->in[3],
                       shape_count(&call_in(k, 0)->shape));
}

void cuda_kernel_ADAMW(backend_context *c, const kernel_call *k) {
    const op_attr *o = &k->op->attr;
    const value *g = call_in(k, 0), *p = call_out(k, 0);
    dtype states = call_out(k, 2)->type;
    launch_adamw_args a = {.p = k->out[0],
                           .master = k->out[1],
                           .m = k->out[2],
                           .v = k->out[3],
                           .m_scale = k->out[4],
                           .v_scale = k->out[5],
                           .g = k->in[0],
                           .clip = k->in[1],
                           .scalars = k->in[2],
                           .noise = noise_of(k->op),
                           .n = shape_count(&p->shape),
                           .beta1 = o->beta1,
                           .beta2 = o->beta2,
                           .eps = o->eps,
                           .weight_decay = o->weight_decay,
                           .p_type = launch_type_of(p->type),
                           .states = states == DTYPE_F32    ? LAUNCH_STATES_F32
                                     : states == DTYPE_BF16 ? LAUNCH_STATES_BF16
                                                            : LAUNCH_STATES_8};
    ASSERT(a.master ? p->type != DTYPE_F32 && g->type == DTYPE_F32 : p->type != DTYPE_F16 && g->type == p->type);
    ASSERT(states == DTYPE_F32 || states == DTYPE_BF16 || (states == DTYPE_I8 && a.m_scale && a.v_scale));
    launch_adamw(c->stream, &a);
}
