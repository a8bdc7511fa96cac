#pragma once
/* adapted.h - a LINEAR or LINEAR_DX with an adapter as two ops without one, for kernels that do not add it inside their sums:
 *
 *     y  = x w^T + b           dx = dxa down (+ add)
 *     y  = LORA_UP of y        dx = dy w + dx
 *
 * The second op works on what the first wrote, where it lies; scratch is that of either. */
#include "backend/backend.h"

enum { ADAPTED_CALLS = 2 };
typedef struct adapted_calls {
    op ops[ADAPTED_CALLS];
    kernel_call calls[ADAPTED_CALLS];
} adapted_calls;

static inline bool op_is_adapted(const op *o) {
    return (o->kind == OP_LINEAR && o->in[LINEAR_XA]) || (o->kind == OP_LINEAR_DX && o->in[LINEAR_DX_DXA]);
}

static inline void adapted_ops(const op *o, op out[ADAPTED_CALLS]) {
    ASSERT(op_is_adapted(o));
    out[0] = *o;
    if (o->kind == OP_LINEAR) {
        out[0].in[LINEAR_XA] = out[0].in[LINEAR_UP] = NO_VALUE;
        out[1] = op_instead(o, OP_LORA_UP);
        out[1].in[LORA_UP_BASE] = out[1].out[LORA_UP_Y] = o->out[LINEAR_Y];
        out[1].in[LORA_UP_XA] = o->in[LINEAR_XA], out[1].in[LORA_UP_B] = o->in[LINEAR_UP];
        return;
    }
    out[0].in[LINEAR_DX_DXA] = out[0].in[LINEAR_DX_DOWN] = NO_VALUE;
    out[1] = out[0];
    out[0].attr.adapter = true;
    out[0].in[LINEAR_DX_DY] = o->in[LINEAR_DX_DXA], out[0].in[LINEAR_DX_W] = o->in[LINEAR_DX_DOWN];
    out[1].in[LINEAR_DX_ADD] = o->out[LINEAR_DX_DX];
}

static inline void adapted_split(const kernel_call *k, adapted_calls *out) {
    adapted_ops(k->op, out->ops);
    kernel_call *first = &out->calls[0], *second = &out->calls[1];
    *first = *second = *k;
    first->op = &out->ops[0], second->op = &out->ops[1];
    memset(second->in, 0, sizeof second->in);
    if (k->op->kind == OP_LINEAR) {
        first->in[LINEAR_XA] = first->in[LINEAR_UP] = NULL;
        second->in[LORA_UP_BASE] = k->out[LINEAR_Y], second->out[LORA_UP_Y] = k->out[LINEAR_Y];
        second->in[LORA_UP_XA] = k->in[LINEAR_XA], second->in[LORA_UP_B] = k->in[LINEAR_UP];
        return;
    }
    first->in[LINEAR_DX_DY] = k->in[LINEAR_DX_DXA], first->in[LINEAR_DX_W] = k->in[LINEAR_DX_DOWN];
    first->in[LINEAR_DX_DXA] = first->in[LINEAR_DX_DOWN] = NULL;
    second->in[LINEAR_DX_DY] = k->in[LINEAR_DX_DY], second->in[LINEAR_DX_W] = k->in[LINEAR_DX_W];
    second->in[LINEAR_DX_ADD] = k->out[LINEAR_DX_DX];
}
