/* bench_unembed.c - loss and loss with gradient, at several chunk budgets, against the fp32 GEMM of the same run.
 *
 * Counted are the products alone: 2 N V C for the loss, 6 N V C with gradient. The second walk that a bf16 weight
 * gradient takes when the tokens do not fit one chunk (2 N V C more) is our loss, as are the exponentials. 16-bit
 * types may exceed 100 % where the machine multiplies them faster than fp32. */
#include "roofline.h"

typedef struct unembed_case {
    int64_t N, C, V, chunk_mib;
    dtype type, dw_type;
} unembed_case;

SAME_PLACE(UNEMBED_LOSS_H, UNEMBED_LOSS_GRAD_H);
SAME_PLACE(UNEMBED_LOSS_W, UNEMBED_LOSS_GRAD_W);
SAME_PLACE(UNEMBED_LOSS_TARGETS, UNEMBED_LOSS_GRAD_TARGETS);
SAME_PLACE(UNEMBED_LOSS_LOSSES, UNEMBED_LOSS_GRAD_LOSSES);

static void measure(roofline *r, const unembed_case *u, bool gradient) {
    roofline_op o;
    roofline_op_open(&o, gradient ? OP_UNEMBED_LOSS_GRAD : OP_UNEMBED_LOSS,
                     &(op_attr){.chunk_bytes = u->chunk_mib << 20});
    roofline_op_random(&o, UNEMBED_LOSS_H, u->type, SHAPE(u->N, u->C), 1, 1);
    roofline_op_random(&o, UNEMBED_LOSS_W, u->type, SHAPE(u->V, u->C), 0.05f, 2);
    int32_t *targets = roofline_op_value(&o, false, UNEMBED_LOSS_TARGETS, DTYPE_I32, SHAPE(u->N));
    for (int64_t i = 0; i < u->N; i++) targets[i] = (int32_t)rng_below(3, (uint64_t)i, (uint64_t)u->V);
    roofline_op_value(&o, true, UNEMBED_LOSS_LOSSES, DTYPE_F32, SHAPE(u->N));
    if (gradient) {
        step_scalars *s = roofline_op_value(&o, false, UNEMBED_LOSS_GRAD_SCALARS, DTYPE_U8, SHAPE((int64_t)sizeof *s));
        s->seed = 1;
        roofline_op_value(&o, true, UNEMBED_LOSS_GRAD_DH, u->type, SHAPE(u->N, u->C));
        roofline_op_value(&o, true, UNEMBED_LOSS_GRAD_DW, u->dw_type, SHAPE(u->V, u->C));
    }
    char what[128];
    snprintf(what, sizeof what, "%s %s%s N=%d C=%d V=%d %d MiB", gradient ? "grad" : "loss", dtype_name(u->type),
             gradient && u->dw_type == DTYPE_BF16 ? " dw bf16" : "", (int)u->N, (int)u->C, (int)u->V,
             (int)u->chunk_mib);
    roofline_op_measure(r, &o, what, (gradient ? 6.0 : 2.0) * (double)u->N * (double)u->V * (double)u->C);
    roofline_op_close(&o);
}

int main(int argc, char **argv) {
    static const unembed_case CASES[] = {
        {256, 512, 32000, 64, DTYPE_F32, DTYPE_F32},  {256, 512, 32000, 8, DTYPE_F32, DTYPE_F32},
        {256, 512, 32000, 64, DTYPE_BF16, DTYPE_F32}, {256, 512, 32000, 8, DTYPE_BF16, DTYPE_F32},
        {256, 512, 32000, 8, DTYPE_BF16, DTYPE_BF16}, {256, 512, 32000, 64, DTYPE_F16, DTYPE_F32},
        {128, 8, 151669, 16, DTYPE_BF16, DTYPE_F32},
    };
    roofline r;
    if (!roofline_open(&r, argc, argv)) return 2;
    printf("unembed: gemm fp32 %s, bf16 %s, fp16 %s, %d threads\n", gemm_kernel_name(DTYPE_F32),
           gemm_kernel_name(DTYPE_BF16), gemm_kernel_name(DTYPE_F16), r.n_threads);
    for (size_t i = 0; i < ARRAY_LENGTH(CASES); i++)
        for (int gradient = CASES[i].dw_type != DTYPE_F32; gradient < 2; gradient++) /* the loss alone has no dw */
            measure(&r, &CASES[i], gradient);
    roofline_close(&r);
    return 0;
}
