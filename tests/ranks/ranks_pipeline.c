/* ranks_pipeline.c - the layers of one model at several stages: cli_pipeline.sh runs it under mpirun on 2, 4 and 8 ranks.
 *
 * The first rank trains alone, with all micro-batches of a step in turn; then the stages train, with several schedules and
 * techniques of memory. A pipeline moves work and changes no arithmetic: parameters end with the same bits, and every rank
 * uses exactly the bytes that were planned for it. Where tensor ranks share the layers too, sums have other orders, and losses
 * follow those of one rank. */
#include "rank_runs.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 3 };

static int n_cells;

typedef struct cell {
    const char *preset, *layers; /* "model.layers=4" */
    precision precision;
    int accumulation; /* micro-batches of each data rank */
    const char *const *more;
} cell;

static void describe(const cell *c, char *out, size_t n) {
    size_t at = (size_t)snprintf(out, n, "%s %s %s accumulation %d", c->preset, c->layers, precision_name(c->precision),
                                 c->accumulation);
    for (const char *const *s = c->more; s && *s && at < n; s++) at += (size_t)snprintf(out + at, n - at, " %s", *s);
}

static int size_of(axis a) { return mesh_size(comm_mesh(ranks), a); }

/* What one rank gets that has all layers and takes every micro-batch itself. */
static void cell_alone(const cell *c, const char *const *more, train_result *out) {
    const char *settings[SETTINGS_MOST];
    settings_join(settings, SETTINGS(c->layers), more);
    training t = {.preset = c->preset,
                  .precision = c->precision,
                  .accumulation = c->accumulation * size_of(AXIS_DATA),
                  .steps = STEPS,
                  .threads = 1,
                  .more = settings};
    run_alone(t, out);
}

/* bound 0: the same bits. */
static void check_cell(const cell *c, const train_result *alone, double bound) {
    const char *more[SETTINGS_MOST];
    char name[512];
    settings_join(more, SETTINGS(c->layers), c->more);
    describe(c, name, sizeof name);
    training t = {.preset = c->preset,
                  .precision = c->precision,
                  .accumulation = c->accumulation,
                  .steps = STEPS,
                  .threads = 1,
                  .more = more,
                  .comm = ranks};
    train_result r;
    must(training_run(&t, &r));
    if (bound == 0 && r.param_hash != alone->param_hash)
        FAIL("%s: param_hash %016llx, alone %016llx, loss %.9g, alone %.9g", name, (unsigned long long)r.param_hash,
             (unsigned long long)alone->param_hash, r.last_loss, alone->last_loss);
    if (!(fabs(r.last_loss - alone->last_loss) <= bound) || !(fabs(r.first_loss - alone->first_loss) <= bound))
        FAIL("%s: loss %.9g, alone %.9g", name, r.last_loss, alone->last_loss);
    if (isfinite(alone->eval.loss) && !(fabs(r.eval.loss - alone->eval.loss) <= bound))
        FAIL("%s: held out %.9g, alone %.9g", name, r.eval.loss, alone->eval.loss);
    check_as_planned(&r, name);
    n_cells++;
}

static const char *const evaluated[] = {"train.eval_rows=5", NULL};

/* On top of a pipeline, one technique or several; the first is none. */
static const char *const *const extras[] = {
    evaluated,
    SETTINGS("memory.recompute=full"),
    SETTINGS("memory.recompute=selective", "memory.offload.activations=host"),
    SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host",
             "memory.offload.activations=host", "memory.bucket=256K"),
    SETTINGS("memory.offload.states=nvme", "memory.offload.activations=nvme", "memory.nvme_path=.",
             "memory.recompute=norms"),
};

/* Every extra with one model, precision and accumulation. */
static void check_extras(cell c, const char *const *schedule) {
    train_result alone;
    cell_alone(&c, evaluated, &alone);
    for (size_t i = 0; i < ARRAY_LENGTH(extras); i++) {
        const char *more[SETTINGS_MOST];
        settings_join(more, schedule, extras[i]);
        c.more = more;
        if (i > 0) alone.eval.loss = NAN; /* only the first looks */
        check_cell(&c, &alone, 0);
    }
}

static void check_one(cell c, double bound) {
    train_result alone;
    cell_alone(&c, NULL, &alone);
    check_cell(&c, &alone, bound);
}

/* A vocabulary whose unembedding is all that the last stage has. */
static void check_head(void) {
    train_result alone;
    cell c = {"test-qwen2", "model.layers=4", PRECISION_FP32, 2, SETTINGS("model.vocab=4096")};
    cell_alone(&c, c.more, &alone);
    check_cell(&c, &alone, 0);
}

/* Stages alone: the bits of one rank. Fewer micro-batches than stages, more, one; layers that cannot be cut evenly; several
 * chunks per stage. */
static void check_stages(void) {
    const char *const turns[] = {"parallel.virtual_stages=2", NULL}, *const three[] = {"parallel.virtual_stages=3",
                                                                                       NULL};
    int S = size_of(AXIS_PIPELINE);
    const char *layers = S == 2 ? "model.layers=3" : "model.layers=5",
               *many = S == 2 ? "model.layers=6" : "model.layers=9";
    check_extras((cell){"test-gpt2", layers, PRECISION_FP32, 4, NULL}, NULL);
    check_extras((cell){"test-qwen3", many, PRECISION_FP32, 4, NULL}, turns);
    check_one((cell){"test-qwen3", layers, PRECISION_FP32, 8, NULL}, 0);
    check_one((cell){"test-gpt2", many, PRECISION_BF16, 8, turns}, 0);
    check_one((cell){"test-qwen3", layers, PRECISION_FP8, 4, NULL}, 0);
    check_one((cell){"test-llama", layers, PRECISION_BF16, 3, NULL}, 0);
    check_one((cell){"test-gpt2", layers, PRECISION_BF16_SR, 4, NULL}, 0);
    check_one((cell){"test-qwen2", layers, PRECISION_FP32, 1, NULL}, 0);
    check_one((cell){"test-gemma2", layers, PRECISION_FP32, 2, NULL}, 0); /* a tied table whose rows are scaled */
    check_head();
    if (S == 2) check_one((cell){"test-llama", many, PRECISION_FP32, 4, three}, 0);
}

/* Adapters over frozen layers: the first stage ends its backward at its first adapter, a tied table has no gradient and goes
 * nowhere, and dropout is drawn as on one rank. */
static void check_adapters(void) {
    static const struct {
        const char *preset, *tied, *targets;
        precision precision;
        const char *more;
    } cells[] = {{"test-qwen3", "model.tied=true", "all-linear", PRECISION_FP32, "memory.recompute=none"},
                 {"test-qwen3", "model.tied=false", "q,v", PRECISION_BF16, "memory.recompute=full"},
                 {"test-gpt2", "model.tied=true", "c_attn", PRECISION_BF16_SR, "memory.offload.states=host"},
                 {"test-llama", "model.tied=false", "gate", PRECISION_FP32, "memory.offload.params=host"},
                 {"test-llama", "model.tied=true", "down", PRECISION_FP8, "parallel.virtual_stages=2"}};
    const char *layers = size_of(AXIS_PIPELINE) == 2 ? "model.layers=5" : "model.layers=8";
    for (size_t i = 0; i < ARRAY_LENGTH(cells); i++) {
        char targets[64];
        const char *more[SETTINGS_MOST];
        train_result alone;
        snprintf(targets, sizeof targets, "model.lora.targets=%s", cells[i].targets);
        const char *const model[] = {
            "model.lora.rank=4", "model.lora.dropout=0.2", "train.lr=0.01", cells[i].tied, targets, NULL};
        settings_join(more, model, SETTINGS(cells[i].more));
        cell c = {cells[i].preset, layers, cells[i].precision, 4, more};
        cell_alone(&c, model, &alone);
        check_cell(&c, &alone, 0);
    }
}

static void check_messages(void) {
    check_one((cell){"test-gpt2", "model.layers=8", PRECISION_BF16, 4, NULL}, 0);
    check_one((cell){"test-llama", "model.layers=8", PRECISION_FP32, 4, SETTINGS("parallel.virtual_stages=2")}, 0);
}

/* Two data ranks for each stage: ZeRO 2 and 3 add in the order of one rank, and with one micro-batch so do 0 and 1. */
static void check_data(void) {
    static const char *const presets[] = {"test-gpt2", "test-qwen3"};
    for (size_t k = 0; k < ARRAY_LENGTH(presets); k++)
        for (int zero = 0; zero <= 3; zero++) {
            char stage[32];
            snprintf(stage, sizeof stage, "parallel.zero=%d", zero);
            const char *const more[] = {stage, "parallel.prefetch=2", k ? "memory.recompute=full" : NULL, NULL};
            cell c = {presets[k], "model.layers=4", k ? PRECISION_BF16 : PRECISION_FP32, zero >= 2 ? 4 : 1, more};
            check_one(c, 0);
        }
    check_one((cell){"test-gpt2", "model.layers=4", PRECISION_FP32, 2,
                     SETTINGS("parallel.zero=3", "parallel.virtual_stages=2", "memory.offload.states=host")},
              0);
}

/* With ranks that share layers or rows, and with data ranks beside them: 20 steps, and every gradient. */
static void check_shared(void) {
    bool many = size_of(AXIS_TENSOR) * size_of(AXIS_SEQUENCE) > 2;
    training t = {.preset = many ? "test-gpt2" : "test-llama", /* which has 2 kv heads */
                  .accumulation = size_of(AXIS_PIPELINE) * size_of(AXIS_DATA),
                  .threads = 1,
                  .more = SETTINGS("model.layers=4", "train.eval_rows=3")};
    training micro = {.preset = t.preset, .threads = 1, .more = t.more};
    curve alone;
    gradients_shared(&micro, NULL);
    curve_alone(&t, &alone);
    t.accumulation /= size_of(AXIS_DATA);
    curve_shared(&t, SETTINGS("parallel.zero=2"), &alone, 1e-4);
    curve_shared(&t, SETTINGS("memory.recompute=full", "parallel.zero=3"), &alone, 1e-4);
    if (size_of(AXIS_PIPELINE) == 2) curve_shared(&t, SETTINGS("parallel.virtual_stages=2"), &alone, 1e-4);
    if (size_of(AXIS_SEQUENCE) > 1) curve_shared(&t, SETTINGS("parallel.attention=ring"), &alone, 1e-4);
    n_cells += 4;
}

/* ---- out of the program and back --------------------------------------------------------------------------------------- */

static uint64_t run_in(const char *dir, int steps, const char *const *model, bool alone) {
    const char *more[SETTINGS_MOST];
    settings_join(more, SETTINGS("model.layers=4", "parallel.zero=2", "train.schedule=constant"), model);
    training t = {.preset = "test-gpt2",
                  .precision = PRECISION_BF16,
                  .accumulation = alone ? 4 * size_of(AXIS_DATA) : 4,
                  .steps = steps,
                  .threads = 1,
                  .dir = dir,
                  .resume = dir ? "auto" : NULL,
                  .more = more};
    return run_in_turn(t, alone);
}

/* From stages to one rank and back: the bits of a run that was never stopped. */
static void check_files_of(const char *const *model) {
    char *dir = shared_dir();
    uint64_t whole = run_in(NULL, 6, model, true);
    run_in(dir, 2, model, false);
    run_in(dir, 4, model, true);
    uint64_t moved = run_in(dir, 6, model, false);
    if (moved != whole)
        FAIL("%sfrom %d ranks to one and back: param_hash %016llx, never stopped %016llx", model ? "adapters " : "",
             comm_size(ranks), (unsigned long long)moved, (unsigned long long)whole);
    shared_dir_remove(dir);
    n_cells++;
}

static void check_files(void) {
    check_files_of(NULL);
    check_files_of(SETTINGS("model.lora.rank=4", "model.lora.dropout=0.1"));
}

static bool messages_only; /* as between nodes */

static void on_mesh(int pipeline, int tensor, int sequence, void (*check)(void)) {
    comm_options o = {.timeout_s = 60,
                      .messages_only = messages_only,
                      .size[AXIS_PIPELINE] = pipeline,
                      .size[AXIS_TENSOR] = tensor,
                      .size[AXIS_SEQUENCE] = sequence};
    mesh_start(&o);
    check();
    mesh_end();
}

int main(void) {
    int world = 1, rank = 0;
    if (!comm_launched(&rank, &world) || (world != 2 && world != 4 && world != 8)) {
        fprintf(stderr, "start this with mpirun -n 2, 4 or 8\n");
        return 1;
    }
    if (world == 2) on_mesh(2, 1, 1, check_stages);
    if (world == 4) on_mesh(4, 1, 1, check_stages);
    if (world <= 4) on_mesh(world, 1, 1, check_adapters);
    if (world == 4) on_mesh(2, 1, 1, check_data);
    if (world <= 4) on_mesh(2, 1, 1, check_files);
    messages_only = true;
    if (world <= 4) on_mesh(world, 1, 1, check_messages);
    messages_only = false;
    if (world >= 4) on_mesh(2, 2, 1, check_shared); /* on 8 ranks two take rows of their own */
    if (world == 4) on_mesh(2, 1, 2, check_shared);
    if (world == 8) on_mesh(2, 4, 1, check_shared);
    if (world == 8) on_mesh(4, 2, 1, check_shared);
    if (world == 8) on_mesh(2, 2, 2, check_shared);
    if (rank == 0 && !n_failed) printf("%d cells of pipelines on %d ranks\n", n_cells, world);
    return n_failed > 0;
}
