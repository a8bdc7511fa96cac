/* op_cost.c - what an op costs: its arithmetic, the bytes that it moves, the bytes that it sends to other ranks, from what
 * stands beside the op's rules (rules.h). */
#include "program/rules.h"

typedef struct price {
    const op_cost *cost;
    op_product (*product)(const program *p, const op *o);
    const op_logits *logits;
    double (*sent)(const program *p, const op *o);
} price;

/* A class without a line here does not compile, and neither does an op without what its class has to give. */
#define PRICE_PRODUCT(id) \
    { .cost = &cost_##id, .product = product_##id }
#define PRICE_LOGITS(id) \
    { .cost = &cost_##id, .logits = &logits_##id }
#define PRICE_ATTENTION(id) \
    { .cost = &cost_##id }
#define PRICE_ACTIVATION(id) \
    { .cost = &cost_##id }
#define PRICE_NORM(id) \
    { .cost = &cost_##id }
#define PRICE_EMBEDDING(id) \
    { .cost = &cost_##id }
#define PRICE_ROUNDING(id) \
    { .cost = &cost_##id }
#define PRICE_UPDATE(id) \
    { .cost = &cost_##id }
#define PRICE_ELEMENTWISE(id) \
    { .cost = &cost_##id }
#define PRICE_COPYING(id) \
    { .cost = &cost_##id }
#define PRICE_MESSAGE(id) \
    { .cost = &(const op_cost){NO_ARITHMETIC}, .sent = sent_##id }

static const price prices[OP_COUNT] = {
#define OP(id, in, out, inplace, scratch, class, ...) [OP_##id] = PRICE_##class(id),
#include "program/ops.def"
#undef OP
};

double op_noise(const program *p, const op *o) {
    double n = 0;
    if (op_class_of(o->kind) != OP_CLASS_UPDATE) return 0;
    if (o->kind == OP_ADAMW && o->out[ADAMW_MASTER]) return 0; /* with a master everything is rounded to nearest */
    for (int i = 0; i < op_output_count(o->kind); i++)
        if (o->out[i] && program_get(p, o->out[i])->type == DTYPE_BF16) n += count_of(p, o->out[i]);
    return n;
}

double op_flops(const program *p, const op *o) {
    const op_cost *r = prices[o->kind].cost;
    if (r->flops) return r->flops(p, o);
    return r->per_element * count_of(p, r->is_output ? o->out[r->operand] : o->in[r->operand]);
}

double op_flops_again(const program *p, const op *o) {
    const op_cost *r = prices[o->kind].cost;
    return o->again ? op_flops(p, o) : r->again ? r->again(p, o) : 0;
}

double op_bytes(const program *p, const op *o) {
    double n = 0;
    for (int i = 0; i < op_input_count(o->kind); i++) n += bytes_of(p, o->in[i]);
    for (int i = 0; i < op_output_count(o->kind); i++)
        n += bytes_of(p, o->out[i]) * (op_output_updates(o->kind, i) ? 2 : 1);
    const op_cost *r = prices[o->kind].cost;
    return r->saved ? n - r->saved(p, o) : n;
}

double op_bytes_twice(const program *p, const op *o) {
    const op_cost *r = prices[o->kind].cost;
    return r->twice ? r->twice(p, o) : 0;
}

double op_sent(const program *p, const op *o) { return prices[o->kind].sent ? prices[o->kind].sent(p, o) : 0; }

op_product op_product_of(const program *p, const op *o) { return prices[o->kind].product(p, o); }

value_id op_logits_gradient(const op *o) {
    int dw = prices[o->kind].logits->dw;
    return dw >= 0 ? o->out[dw] : NO_VALUE;
}

bool op_logits_again(const op *o) { return prices[o->kind].logits->again; }
