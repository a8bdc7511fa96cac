/* engine_only.c - a program of two layers without a model, a text or a setting: base and engine alone.
 *
 *     next token of a ring: 0 1 2 ... 63 0 1 ...   token -> embedding -> x + W2 gelu(W1 x), twice -> unembedding
 *
 * It is planned for a number of bytes that keeping all activations would exceed, trained on the CPU, and prints what
 * was planned and what was used. The tests build it with libralo-engine.a and libralo-base.a and run it. */
#include "exec/exec.h"
#include "plan/plan.h"

#include <stdlib.h>

enum { LAYERS = 2, VOCAB = 64, WIDTH = 64, INNER = 256, ROW = 256, STEPS = 200, BUDGET = 2200 << 10 };

static value_id param(net *n, program *p, const char *name, int unit, shape s) {
    net_param *q = &n->params[n->n_params];
    *q = (net_param){.name = name,
                     .shape = s,
                     .cut = {.here = s, .whole = s, .dim = -1},
                     .shared_from = shape_count(&s),
                     .n_holders = 1,
                     .unit = unit,
                     .number = n->n_params++,
                     .decay = true};
    return q->value = program_persistent(p, name, DTYPE_F32, s, ROLE_PARAM);
}

static value_id emit(program *p, op_kind kind, int layer, const char *name, shape s, value_id a, value_id b) {
    value_id y = program_value(p, name, DTYPE_F32, s, ROLE_ACTIVATION, SECTION_MICRO);
    op *o = program_emit(p, kind, SECTION_MICRO);
    o->layer = p->values[y].layer = layer;
    o->attr.batch = 1, o->attr.seq_len = ROW;
    op_in(o, 0, a), op_out(o, 0, y);
    if (b) op_in(o, 1, b);
    return y;
}

/* What a model does for the engine: write its program. The engine adds the backward, the optimizer and the movement of
 * bytes. */
static status write(net *n, program *p, const net_source *s, const net_options *o) {
    static const char *const names[LAYERS][2] = {{"layers.0.up", "layers.0.down"}, {"layers.1.up", "layers.1.down"}};
    *n = (net){.source = *s, .n_chunks = 1, .n_losses = 1};
    arena_init(&n->memory);
    n->params = mem_alloc((2 + 2 * LAYERS) * sizeof *n->params);
    n->tokens = program_persistent(p, "tokens", DTYPE_I32, SHAPE(ROW), ROLE_INPUT);
    n->targets = program_persistent(p, "targets", DTYPE_I32, SHAPE(ROW), ROLE_INPUT);
    n->scalars = program_persistent(p, "scalars", DTYPE_U8, SHAPE(sizeof(step_scalars)), ROLE_INPUT);
    n->loss[0].targets = n->targets;
    value_id x = emit(p, OP_EMBED, -1, "x", SHAPE(ROW, WIDTH), n->tokens, param(n, p, "embed", 0, SHAPE(VOCAB, WIDTH)));
    for (int l = 0; l < s->n_layers; l++) {
        value_id up = param(n, p, names[l][0], 1 + l, SHAPE(INNER, WIDTH));
        value_id down = param(n, p, names[l][1], 1 + l, SHAPE(WIDTH, INNER));
        value_id h = emit(p, OP_LINEAR, l, "inner", SHAPE(ROW, INNER), x, up);
        h = emit(p, OP_GELU, l, "act", SHAPE(ROW, INNER), h, NO_VALUE);
        h = emit(p, OP_LINEAR, l, "outer", SHAPE(ROW, WIDTH), h, down);
        x = emit(p, OP_ADD, l, "sum", SHAPE(ROW, WIDTH), x, h);
    }
    value_id table = param(n, p, "unembed", 1 + LAYERS, SHAPE(VOCAB, WIDTH));
    n->losses = program_value(p, "losses", DTYPE_F32, SHAPE(ROW), ROLE_ACTIVATION, SECTION_MICRO);
    op *loss = program_emit(p, OP_UNEMBED_LOSS, SECTION_MICRO);
    loss->attr.chunk_bytes = o->logits_chunk_bytes;
    op_in(loss, UNEMBED_LOSS_H, x), op_in(loss, UNEMBED_LOSS_W, table), op_in(loss, UNEMBED_LOSS_TARGETS, n->targets);
    op_out(loss, UNEMBED_LOSS_LOSSES, n->losses);
    n->n_all_params = n->n_params;
    return OK;
}
static uint64_t count_params(const net_source *s) {
    return 2 * VOCAB * WIDTH + (uint64_t)s->n_layers * 2 * WIDTH * INNER;
}

static status run(void) {
    static const net_writer writer = {.write = write, .count_params = count_params};
    const backend *cpu = backend_cpu();
    plan_request r = {.source = {.by = &writer,
                                 .name = "ring",
                                 .n_layers = LAYERS,
                                 .vocab = VOCAB,
                                 .hidden = WIDTH,
                                 .n_heads = 1,
                                 .n_kv_heads = 1,
                                 .head_dim = WIDTH},
                      .seq_len = ROW,
                      .choice = {.micro_batch = 1, .accumulation = 1, .recompute.kind = RECOMPUTE_AUTO, .prefetch = 1},
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .target = backend_target(backend_kind(cpu), 1),
                      .device_limit = BUDGET};
    plan p;
    exec *e;
    ledger used;
    float weights[INNER * WIDTH];
    int32_t tokens[ROW], targets[ROW];
    double sums[2];
    TRY(plan_choose(&p, &r));
    TRY(plan_check_fit(&p));
    TRY(exec_open(&e, &p.program, &(exec_options){.backend = cpu, .n_threads = 1}));
    for (size_t i = 0; i < p.net.n_params; i++) {
        int64_t n = shape_count(&p.net.params[i].shape);
        rng_normal_fill(rng_key(1, p.net.params[i].name), 0, weights, (size_t)n, 0, 0.05f);
        exec_write(e, p.net.params[i].value, 0, weights, (size_t)n * sizeof *weights);
    }
    for (int i = 0; i < ROW; i++) tokens[i] = i % VOCAB, targets[i] = (i + 1) % VOCAB;
    for (uint32_t step = 1; step <= STEPS; step++) {
        step_scalars s = step_scalars_of(step, 0);
        s.lr = 0.01f;
        exec_write(e, p.step.inputs[0].tokens, 0, tokens, sizeof tokens);
        exec_write(e, p.step.inputs[0].targets, 0, targets, sizeof targets);
        exec_write(e, p.step.inputs[0].scalars, 0, &s, sizeof s);
        TRY(exec_run(e, SECTION_MICRO));
        TRY(exec_run(e, SECTION_UPDATE));
        exec_read(e, p.step.loss_sums, 0, sums, sizeof sums);
        if (step == 1 || step == STEPS) printf("step %3u  loss %.4f\n", step, sums[0] / sums[1]);
    }
    exec_ledger(e, &used);
    printf("recompute %s; planned %llu bytes, used %llu, of %d\n", recompute_name(p.request.choice.recompute.kind),
           (unsigned long long)used.planned[TIER_DEVICE], (unsigned long long)used.peak[TIER_DEVICE], BUDGET);
    exec_close(e);
    plan_close(&p);
    return OK;
}

int main(void) {
    if (run() == OK) return 0;
    fprintf(stderr, "error: %s\n", error_message());
    return 1;
}
