/* fuse.c - join neighbouring ops into one kernel: bias into linear, residual add into the norm that reads it, the norm of q
 * and k heads with the rotation after it, and the backward of both.
 *
 * An op may be joined to the next only when the value between them has no other reader; the sum of an add keeps its name and
 * its readers, because the fused kernel still writes it. The sum is rounded before the norm reads it, as in the separate ops;
 * the value between a product and its bias, or a norm of heads and its rotation, is not. */
#include "pass/pass.h"

#include <stdlib.h>

static void count_readers(const program *p, const op *ops, size_t n_ops, unsigned *readers) {
    memset(readers, 0, p->n_values * sizeof *readers);
    for (size_t i = 0; i < n_ops; i++)
        for (int k = 0; k < op_input_count(ops[i].kind); k++) readers[ops[i].in[k]]++;
}

/* linear, add_bias -> linear with bias. The bias joins the fp32 sum before the one rounding. */
static bool fuse_bias(const op *a, const op *b, const unsigned *readers, op *out) {
    if (a->kind != OP_LINEAR || b->kind != OP_ADD_BIAS || a->in[LINEAR_B]) return false;
    if (b->in[ADD_BIAS_X] != a->out[LINEAR_Y] || readers[a->out[LINEAR_Y]] != 1 || a->section != b->section)
        return false;
    *out = *a;
    out->in[LINEAR_B] = b->in[ADD_BIAS_B];
    out->out[LINEAR_Y] = b->out[ADD_BIAS_Y];
    return true;
}

SAME_PLACE(RMSNORM_X, LAYERNORM_X);
SAME_PLACE(RMSNORM_GAMMA, LAYERNORM_GAMMA);
SAME_PLACE(RMSNORM_Y, LAYERNORM_Y);
SAME_PLACE(ADD_RMSNORM_A, ADD_LAYERNORM_A);
SAME_PLACE(ADD_RMSNORM_B, ADD_LAYERNORM_B);
SAME_PLACE(ADD_RMSNORM_GAMMA, ADD_LAYERNORM_GAMMA);
SAME_PLACE(ADD_RMSNORM_S, ADD_LAYERNORM_S);
SAME_PLACE(ADD_RMSNORM_Y, ADD_LAYERNORM_Y);

/* add, norm -> add_norm with both outputs. */
static bool fuse_norm(const op *a, const op *b, op *out) {
    bool layernorm = b->kind == OP_LAYERNORM;
    if (a->kind != OP_ADD || (b->kind != OP_RMSNORM && !layernorm)) return false;
    if (b->in[RMSNORM_X] != a->out[ADD_Y] || a->section != b->section) return false;
    *out = *b;
    out->kind = layernorm ? OP_ADD_LAYERNORM : OP_ADD_RMSNORM;
    out->in[ADD_RMSNORM_A] = a->in[ADD_A], out->in[ADD_RMSNORM_B] = a->in[ADD_B];
    out->in[ADD_RMSNORM_GAMMA] = b->in[RMSNORM_GAMMA];
    out->out[ADD_RMSNORM_S] = a->out[ADD_Y], out->out[ADD_RMSNORM_Y] = b->out[RMSNORM_Y];
    if (layernorm) {
        out->in[ADD_LAYERNORM_BETA] = b->in[LAYERNORM_BETA];
        out->out[ADD_LAYERNORM_MEAN] = b->out[LAYERNORM_MEAN], out->out[ADD_LAYERNORM_RSTD] = b->out[LAYERNORM_RSTD];
    } else {
        out->out[ADD_RMSNORM_RSTD] = b->out[RMSNORM_RSTD];
    }
    return true;
}

/* Operands that both have keep their index: only the others are moved. */
SAME_PLACE(QK_NORM_QKV, QK_NORM_ROPE_QKV);
SAME_PLACE(QK_NORM_GQ, QK_NORM_ROPE_GQ);
SAME_PLACE(QK_NORM_GK, QK_NORM_ROPE_GK);
SAME_PLACE(QK_NORM_RSTD, QK_NORM_ROPE_RSTD);
SAME_PLACE(QK_NORM_BWD_QKV, QK_NORM_ROPE_BWD_QKV);
SAME_PLACE(QK_NORM_BWD_GQ, QK_NORM_ROPE_BWD_GQ);
SAME_PLACE(QK_NORM_BWD_GK, QK_NORM_ROPE_BWD_GK);
SAME_PLACE(QK_NORM_BWD_DQKV, QK_NORM_ROPE_BWD_DQKV);
SAME_PLACE(QK_NORM_BWD_DGQ, QK_NORM_ROPE_BWD_DGQ);
SAME_PLACE(QK_NORM_BWD_DGK, QK_NORM_ROPE_BWD_DGK);

static bool turns_whole_heads(const program *p, const op *rope) {
    return program_get(p, rope->in[ROPE_TABLE])->shape.dim[1] == rope->attr.head_dim;
}

/* qk_norm, rope -> qk_norm_rope. The backward of the norm reads its input, so nothing else needs the value between them. */
static bool fuse_rotation(const program *p, const op *a, const op *b, const unsigned *readers, op *out) {
    if (a->kind != OP_QK_NORM || a->attr.wide || b->kind != OP_ROPE || b->attr.inverse) return false;
    if (b->in[ROPE_QKV] != a->out[QK_NORM_Y] || readers[a->out[QK_NORM_Y]] != 1 || a->section != b->section)
        return false;
    if (!turns_whole_heads(p, b)) return false;
    *out = *a;
    out->kind = OP_QK_NORM_ROPE;
    out->in[QK_NORM_ROPE_TABLE] = b->in[ROPE_TABLE], out->in[QK_NORM_ROPE_DOC_START] = b->in[ROPE_DOC_START];
    out->out[QK_NORM_ROPE_Y] = b->out[ROPE_Y];
    return true;
}

/* rope back, qk_norm_bwd -> qk_norm_rope_bwd. */
static bool fuse_rotation_back(const program *p, const op *a, const op *b, const unsigned *readers, op *out) {
    if (a->kind != OP_ROPE || !a->attr.inverse || b->kind != OP_QK_NORM_BWD || b->attr.wide ||
        b->in[QK_NORM_BWD_DY] != a->out[ROPE_Y])
        return false;
    if (readers[a->out[ROPE_Y]] != 1 || a->section != b->section || !turns_whole_heads(p, a)) return false;
    *out = *b;
    out->kind = OP_QK_NORM_ROPE_BWD;
    out->in[QK_NORM_ROPE_BWD_TABLE] = a->in[ROPE_TABLE], out->in[QK_NORM_ROPE_BWD_DOC_START] = a->in[ROPE_DOC_START];
    out->in[QK_NORM_ROPE_BWD_RSTD] = b->in[QK_NORM_BWD_RSTD], out->in[QK_NORM_ROPE_BWD_DY] = a->in[ROPE_QKV];
    return true;
}

static bool fuse_pair(const program *p, const op *a, const op *b, const unsigned *readers, op *out) {
    return fuse_bias(a, b, readers, out) || fuse_norm(a, b, out) || fuse_rotation(p, a, b, readers, out) ||
           fuse_rotation_back(p, a, b, readers, out);
}

status pass_fuse(program *p, const pass_options *options, step_interface *step) {
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops), joined;
    unsigned *readers = mem_alloc(p->n_values * sizeof *readers);
    count_readers(p, ops, n_ops, readers);
    for (size_t i = 0; i < n_ops; i++) {
        const op *next = i + 1 < n_ops ? &ops[i + 1] : NULL;
        if (next && fuse_pair(p, &ops[i], next, readers, &joined)) {
            program_append(p, &joined);
            i++;
        } else {
            program_append(p, &ops[i]);
        }
    }
    free(readers);
    free(ops);
    return OK;
}
