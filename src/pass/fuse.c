/* fuse.c - join neighbours that one kernel serves better: bias into linear, residual add into the norm that reads it, the
 * norm of q and k heads with the rotation behind it, and the backward of both.
 *
 * An op may be joined to the next only when the value between them has no other reader; the sum of an add keeps its
 * name and its readers, because the fused kernel still writes it. The sum is rounded before the norm sees it, as in the
 * separate ops; what lies between a product and its bias, or a norm of heads and its rotation, is not. */
#include "pass/pass.h"

#include <stdlib.h>

static void count_readers(const program *p, const op *ops, size_t n_ops, unsigned *readers) {
    memset(readers, 0, p->n_values * sizeof *readers);
    for (size_t i = 0; i < n_ops; i++)
        for (int k = 0; k < op_input_count(ops[i].kind); k++) readers[ops[i].in[k]]++;
}

/* linear, add_bias -> linear with bias. The bias joins the fp32 sum before the one rounding. */
static bool fuse_bias(const op *a, const op *b, const unsigned *readers, op *out) {
    if (a->kind != OP_LINEAR || b->kind != OP_ADD_BIAS || a->in[2] || b->in[0] != a->out[0]) return false;
    if (readers[a->out[0]] != 1 || a->section != b->section) return false;
    *out = *a;
    out->in[2] = b->in[1];
    out->out[0] = b->out[0];
    return true;
}

/* add, norm -> add_norm with both outputs. */
static bool fuse_norm(const op *a, const op *b, op *out) {
    bool layernorm = b->kind == OP_LAYERNORM;
    if (a->kind != OP_ADD || (b->kind != OP_RMSNORM && !layernorm)) return false;
    if (b->in[0] != a->out[0] || a->section != b->section) return false;
    *out = *b;
    out->kind = layernorm ? OP_ADD_LAYERNORM : OP_ADD_RMSNORM;
    out->in[0] = a->in[0], out->in[1] = a->in[1], out->in[2] = b->in[1], out->in[3] = layernorm ? b->in[2] : NO_VALUE;
    out->out[0] = a->out[0], out->out[1] = b->out[0], out->out[2] = b->out[1];
    out->out[3] = layernorm ? b->out[2] : NO_VALUE;
    return true;
}

/* qk_norm, rope -> qk_norm_rope. The backward of the norm reads the norm's input, so nothing else asks for the value
 * between them. */
static bool fuse_rotation(const op *a, const op *b, const unsigned *readers, op *out) {
    if (a->kind != OP_QK_NORM || b->kind != OP_ROPE || b->attr.inverse || b->in[0] != a->out[0]) return false;
    if (readers[a->out[0]] != 1 || a->section != b->section) return false;
    *out = *a;
    out->kind = OP_QK_NORM_ROPE;
    out->in[3] = b->in[1], out->in[4] = b->in[2];
    out->out[0] = b->out[0];
    return true;
}

/* rope back, qk_norm_bwd -> qk_norm_rope_bwd. */
static bool fuse_rotation_back(const op *a, const op *b, const unsigned *readers, op *out) {
    if (a->kind != OP_ROPE || !a->attr.inverse || b->kind != OP_QK_NORM_BWD || b->in[4] != a->out[0]) return false;
    if (readers[a->out[0]] != 1 || a->section != b->section) return false;
    *out = *b;
    out->kind = OP_QK_NORM_ROPE_BWD;
    out->in[3] = a->in[1], out->in[4] = a->in[2], out->in[5] = b->in[3], out->in[6] = a->in[0];
    return true;
}

static bool fuse_pair(const op *a, const op *b, const unsigned *readers, op *out) {
    return fuse_bias(a, b, readers, out) || fuse_norm(a, b, out) || fuse_rotation(a, b, readers, out) ||
           fuse_rotation_back(a, b, readers, out);
}

status pass_fuse(program *p, pass_context *c) {
    (void)c;
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops), joined;
    unsigned *readers = mem_alloc(p->n_values * sizeof *readers);
    count_readers(p, ops, n_ops, readers);
    for (size_t i = 0; i < n_ops; i++) {
        const op *next = i + 1 < n_ops ? &ops[i + 1] : NULL;
        if (next && fuse_pair(&ops[i], next, readers, &joined)) {
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
