/* bench_attention.c - forward and backward attention against the fp32 GEMM of the same machine and run.
 *
 * Counted are the multiply-adds of the visible half only: 2 D flops per visible pair and product, two products forward
 * and five backward. Scores above the diagonal that are computed because blocks are square are our loss, as are the
 * exponentials and the widening of 16-bit rows. */
#include "backend/cpu/attention.h"
#include "roofline.h"

typedef struct attention_case {
    int64_t B, T;
    int H, G, D;
    dtype type;
    int64_t document; /* tokens per document */
} attention_case;

static double visible_pairs(const attention_case *a) {
    double pairs = 0;
    for (int64_t i = 0; i < a->T; i++) pairs += (double)(i % a->document + 1);
    return pairs * (double)a->B * a->H;
}

SAME_PLACE(ATTENTION_QKV, ATTENTION_BWD_QKV);
SAME_PLACE(ATTENTION_DOC_START, ATTENTION_BWD_DOC_START);

static void measure(roofline *r, const attention_case *a, bool backward) {
    int64_t N = a->B * a->T, Q = (int64_t)(a->H + 2 * a->G) * a->D, Y = (int64_t)a->H * a->D;
    roofline_op o;
    roofline_op_open(
        &o, backward ? OP_ATTENTION_BWD : OP_ATTENTION,
        &(op_attr){
            .batch = a->B, .seq_len = a->T, .n_heads = a->H, .n_kv_heads = a->G, .head_dim = a->D, .scale = 0.125f});
    roofline_op_random(&o, ATTENTION_QKV, a->type, SHAPE(N, Q), 1, 1);
    int32_t *doc_start = roofline_op_value(&o, false, ATTENTION_DOC_START, DTYPE_I32, SHAPE(N));
    for (int64_t i = 0; i < N; i++) doc_start[i] = (int32_t)(i % a->T / a->document * a->document);
    if (backward) {
        roofline_op_random(&o, ATTENTION_BWD_Y, a->type, SHAPE(N, Y), 1, 2);
        float *lse = roofline_op_value(&o, false, ATTENTION_BWD_LSE, DTYPE_F32, SHAPE(a->B, a->H, a->T));
        for (int64_t i = 0; i < a->B * a->H * a->T; i++) lse[i] = 10; /* any number: time does not depend on it */
        roofline_op_random(&o, ATTENTION_BWD_DY, a->type, SHAPE(N, Y), 1, 3);
        roofline_op_value(&o, true, ATTENTION_BWD_DQKV, a->type, SHAPE(N, Q));
    } else {
        roofline_op_value(&o, true, ATTENTION_Y, a->type, SHAPE(N, Y));
        roofline_op_value(&o, true, ATTENTION_LSE, DTYPE_F32, SHAPE(a->B, a->H, a->T));
    }
    char what[128];
    snprintf(what, sizeof what, "%s %s B=%d T=%d H=%d G=%d D=%d doc_start=%d", backward ? "bwd" : "fwd",
             dtype_name(a->type), (int)a->B, (int)a->T, a->H, a->G, a->D, (int)a->document);
    roofline_op_measure(r, &o, what, (backward ? 10.0 : 4.0) * a->D * visible_pairs(a));
    roofline_op_close(&o);
}

int main(int argc, char **argv) {
    static const attention_case CASES[] = {
        {1, 1024, 12, 12, 64, DTYPE_F32, 1024}, {1, 1024, 12, 12, 64, DTYPE_BF16, 1024},
        {1, 1024, 12, 12, 64, DTYPE_F16, 1024}, {1, 1024, 8, 2, 128, DTYPE_BF16, 1024},
        {1, 4096, 4, 4, 64, DTYPE_BF16, 4096},  {1, 4096, 8, 8, 64, DTYPE_BF16, 300},
        {16, 128, 8, 8, 32, DTYPE_F32, 128},    {4, 512, 6, 6, 80, DTYPE_F32, 512},
    };
    roofline r;
    if (!roofline_open(&r, argc, argv)) return 2;
    printf("attention: %s, in bf16 %s, %d threads\n", attention_functions_name(DTYPE_F32, 64),
           attention_functions_name(DTYPE_BF16, 64), r.n_threads);
    for (size_t i = 0; i < ARRAY_LENGTH(CASES); i++)
        for (int backward = 0; backward < 2; backward++) measure(&r, &CASES[i], backward);
    roofline_close(&r);
    return 0;
}
