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
SAME_FIELD(micro_of_all);
SAME_FIELD(one);
SAME_FIELD(keep);
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
    const value *x = call_in(k, ACCUMULATE_X), *acc = call_out(k, ACCUMULATE_ACC);
    ASSERT(acc->type == DTYPE_F32 || acc->type == DTYPE_BF16);
    launch_accumulate(c->stream, launch_type_of(acc->type), launch_type_of(x->type), k->out[ACCUMULATE_ACC],
                      k->in[ACCUMULATE_X], k->in[ACCUMULATE_SCALARS], noise_of(k->op), shape_count(&acc->shape));
}

static launch_sumsq_args sumsq_of(const kernel_call *k) {
    const value *g = call_in(k, GRAD_SUMSQ_G);
    int64_t n = shape_count(&g->shape);
    const op_attr *a = &k->op->attr;
    ASSERT(shape_count(&call_out(k, GRAD_SUMSQ_PARTIALS)->shape) == divide_up(n, NORM_BLOCK));
    return (launch_sumsq_args){.partials = k->out[GRAD_SUMSQ_PARTIALS],
                               .g = k->in[GRAD_SUMSQ_G],
                               .n = n,
                               .n_counted = a->counts_part ? MIN(MAX(a->counted - a->first_element, 0), n) : n,
                               .type = launch_type_of(g->type)};
}

void cuda_kernels_GRAD_SUMSQ(backend_context *c, const kernel_call *calls, size_t n) {
    launch_sumsq_args a[CALLS_MOST];
    ASSERT(n <= CALLS_MOST);
    for (size_t i = 0; i < n; i++) a[i] = sumsq_of(&calls[i]);
    launch_grad_sumsq(c->stream, a, (int)n, NORM_BLOCK);
}

void cuda_kernel_GRAD_SUMSQ(backend_context *c, const kernel_call *k) { cuda_kernels_GRAD_SUMSQ(c, k, 1); }

void cuda_kernel_NORM_SUM(backend_context *c, const kernel_call *k) {
    launch_norm_sum(c->stream, k->out[NORM_SUM_SUM], k->in[NORM_SUM_PARTIALS],
                    shape_count(&call_in(k, NORM_SUM_PARTIALS)->shape));
}

void cuda_kernel_SUM_PARTS(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, SUM_PARTS_X), *parts = call_in(k, SUM_PARTS_PARTS);
    const op_attr *a = &k->op->attr;
    int64_t n = shape_count(&x->shape), n_end = parts->shape.dim[1];
    size_t skipped = (size_t)(a->first_part * n_end) * dtype_bytes(x->type);
    ASSERT(parts->type == x->type && n_end <= n && a->n_parts > 0 && a->first_part + a->n_parts <= parts->shape.dim[0]);
    launch_sum_parts(c->stream, launch_type_of(x->type), k->out[SUM_PARTS_Y], k->in[SUM_PARTS_X],
                     (const char *)k->in[SUM_PARTS_PARTS] + skipped, n, n_end, a->n_parts);
}

void cuda_kernel_CLIP(backend_context *c, const kernel_call *k) {
    launch_clip_args a = {.partials = k->in[CLIP_PARTIALS],
                          .sums = k->in[CLIP_SUMS],
                          .scalars = k->in[CLIP_SCALARS],
                          .clip = k->out[CLIP_CLIP],
                          .n_partials = shape_count(&call_in(k, CLIP_PARTIALS)->shape),
                          .n_clip = CLIP_COUNT,
                          .limit = k->op->attr.clip,
                          .by_weights = k->op->attr.normalize_by_weights,
                          .n_losses = k->op->attr.n_losses,
                          .n_sums = (int)shape_count(&call_out(k, CLIP_CLIP)->shape) - CLIP_COUNT};
    launch_clip(c->stream, &a);
}

void cuda_kernel_LOSS_REDUCE(backend_context *c, const kernel_call *k) {
    launch_loss_reduce(c->stream, (double *)k->out[LOSS_REDUCE_SUMS] + k->op->attr.loss * SUM_COUNT,
                       k->in[LOSS_REDUCE_LOSSES], k->in[LOSS_REDUCE_TARGETS], k->in[LOSS_REDUCE_WEIGHTS],
                       k->in[LOSS_REDUCE_SCALARS], shape_count(&call_in(k, LOSS_REDUCE_LOSSES)->shape));
}

static launch_adamw_args adamw_of(const kernel_call *k) {
    const op_attr *o = &k->op->attr;
    const value *g = call_in(k, ADAMW_G), *p = call_out(k, ADAMW_P);
    dtype states = call_out(k, ADAMW_M)->type;
    launch_adamw_args a = {.p = k->out[ADAMW_P],
                           .master = k->out[ADAMW_MASTER],
                           .m = k->out[ADAMW_M],
                           .v = k->out[ADAMW_V],
                           .m_scale = k->out[ADAMW_M_SCALE],
                           .v_scale = k->out[ADAMW_V_SCALE],
                           .g = k->in[ADAMW_G],
                           .clip = k->in[ADAMW_CLIP],
                           .scalars = k->in[ADAMW_SCALARS],
                           .noise = noise_of(k->op),
                           .n = shape_count(&p->shape),
                           .beta1 = o->beta1,
                           .beta2 = o->beta2,
                           .eps = o->eps,
                           .weight_decay = o->weight_decay,
                           .lr_scale = o->lr_scale > 0 ? o->lr_scale : 1,
                           .p_type = launch_type_of(p->type),
                           .states = states == DTYPE_F32    ? LAUNCH_STATES_F32
                                     : states == DTYPE_BF16 ? LAUNCH_STATES_BF16
                                                            : LAUNCH_STATES_8};
    ASSERT(a.master ? p->type != DTYPE_F32 && g->type == DTYPE_F32 : p->type != DTYPE_F16 && g->type == p->type);
    ASSERT(states == DTYPE_F32 || states == DTYPE_BF16 || (states == DTYPE_I8 && a.m_scale && a.v_scale));
    return a;
}

void cuda_kernels_ADAMW(backend_context *c, const kernel_call *calls, size_t n) {
    launch_adamw_args a[CALLS_MOST];
    ASSERT(n <= CALLS_MOST);
    for (size_t i = 0; i < n; i++) a[i] = adamw_of(&calls[i]);
    launch_adamw(c->stream, a, (int)n);
}

void cuda_kernel_ADAMW(backend_context *c, const kernel_call *k) { cuda_kernels_ADAMW(c, k, 1); }
