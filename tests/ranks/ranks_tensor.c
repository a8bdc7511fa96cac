/* ranks_tensor.c - one model shared by tensor ranks, rows shared by sequence ranks: cli_tensor.sh runs it under mpirun on 2, 4
 * and 8.
 *
 * Every rank also plans and runs the model alone, on the same rows. Its slices of every gradient must be those of the whole;
 * the losses of a training run must follow those of one rank; every rank uses exactly the bytes that were planned for it, and
 * those are the share that the cut says. Sums over ranks are other orders of the same sums, so numbers agree to rounding. */
#include "model/model.h"
#include "rank_runs.h"
#include "weights/params.h"

#include <math.h>
#include <stdlib.h>

#define EVAL "train.eval_rows=5" /* of micro-batches of 2: the last one is not full */

/* ---- bytes ---------------------------------------------------------------------------------------------------------- */

/* Parameters of a rank, by hand: tables, products and their biases are cut; norms, biases behind a sum and positions are
 * not; of kv heads a rank has at least one. */
static int64_t params_of_rank(const model_config *c, int64_t n) {
    const model_traits *t = model_family_traits(c->family);
    int64_t C = c->hidden, D = c->head_dim, F = c->ffn / n, ups = t->gelu ? 1 : 2;
    int64_t qkv = c->n_heads / n * D + 2 * MAX(c->n_kv_heads / n, (int64_t)1) * D;
    int64_t norm = t->layernorm ? 2 * C : C, table = (c->vocab + n - 1) / n * C;
    int64_t layer = 2 * norm + qkv * C + c->n_heads / n * D * C + ups * F * C + F * C;
    if (t->qkv_bias) layer += qkv;
    if (t->other_bias) layer += C + ups * F + C;
    if (t->qk_norm) layer += 2 * D;
    return table * (c->tied ? 1 : 2) + (t->learned_positions ? c->max_positions * C : 0) + c->n_layers * layer + norm;
}

static void check_bytes(const char *preset, const char *tensor) {
    training t = {.preset = preset, .threads = 1, .more = SETTINGS(tensor), .comm = ranks};
    config c;
    train_request r;
    plan p;
    uint64_t by_role[ROLE_COUNT] = {0};
    must(training_request(&t, &c, &r));
    must(plan_choose(&p, &r.plan));
    for (value_id v = 1; v < p.program.n_values; v++)
        if (p.program.values[v].persistent && !p.program.values[v].view_of)
            by_role[p.program.values[v].role] += value_bytes(&p.program.values[v]);
    int64_t n = params_of_rank(model_of(&r.plan.source), mesh_size(&r.plan.mesh, AXIS_TENSOR));
    uint64_t expected[ROLE_COUNT] = {
        [ROLE_PARAM] = 4 * (uint64_t)n, [ROLE_GRAD] = 4 * (uint64_t)n, [ROLE_STATE] = 8 * (uint64_t)n};
    for (role k = ROLE_PARAM; k <= ROLE_STATE; k++)
        if (by_role[k] != expected[k])
            FAIL("%s: %llu bytes of %s, expected %llu", preset, (unsigned long long)by_role[k], role_name(k),
                 (unsigned long long)expected[k]);
    plan_close(&p);
    config_fini(&c);
}

/* ---- whole runs ------------------------------------------------------------------------------------------------------ */

static int64_t row; /* tokens: two chunks for each rank that may share it */

static training run_of(const char *preset, precision p, int accumulation) {
    static const char *const more[] = {EVAL, NULL};
    return (training){
        .preset = preset, .precision = p, .seq_len = row, .accumulation = accumulation, .threads = 1, .more = more};
}

/* Micro-batches of the data ranks, one after the other, on one. */
static void curve_of_one(const char *preset, precision p, int accumulation, curve *out) {
    training t = run_of(preset, p, accumulation);
    curve_alone(&t, out);
}

static void run_shared(const char *preset, precision p, int accumulation, const char *const *more, const curve *alone,
                       double bound) {
    training t = run_of(preset, p, accumulation);
    curve_shared(&t, more, alone, bound);
}

static void check_gradients(const char *preset, const char *const *more) {
    training t = {.preset = preset, .seq_len = row, .threads = 1};
    gradients_shared(&t, more);
}

/* ---- out of the program and back ------------------------------------------------------------------------------------ */

static uint64_t run_in(const char *preset, const char *dir, int steps, const char *const *more, bool alone) {
    training t = {.preset = preset,
                  .precision = PRECISION_BF16,
                  .seq_len = row,
                  .steps = steps,
                  .threads = 1,
                  .dir = dir,
                  .resume = "auto",
                  .more = more};
    return run_in_turn(t, alone);
}

/* Saved by all and loaded by one: the same bits; trained on by one and loaded by all: likewise; and what one exports from
 * either are the same weights, which all ranks start from as one does. */
static void check_files(const char *preset, const char *setting, int zero) {
    char *dir = shared_dir(), *exported = shared_dir(), stage[32], path[600], set_path[640];
    snprintf(stage, sizeof stage, "parallel.zero=%d", zero);
    const char *const more[] = {setting, stage, NULL}, *const none[] = {NULL};
    uint64_t saved = run_in(preset, dir, 3, more, false), loaded = run_in(preset, dir, 3, none, true);
    if (saved != loaded)
        FAIL("%s: saved by %d ranks with hash %016llx, loaded by one with %016llx", preset, comm_size(ranks),
             (unsigned long long)saved, (unsigned long long)loaded);
    saved = run_in(preset, dir, 5, none, true), loaded = run_in(preset, dir, 5, more, false);
    if (saved != loaded)
        FAIL("%s: saved by one rank with hash %016llx, loaded by %d with %016llx", preset, (unsigned long long)saved,
             comm_size(ranks), (unsigned long long)loaded);
    snprintf(path, sizeof path, "%s/model", exported);
    if (comm_rank(ranks) == 0) { /* the last to save were all ranks */
        export_report report;
        must(export_checkpoint(dir, &(export_options){.dir = path, .type = DTYPE_F32}, &report));
    }
    snprintf(set_path, sizeof set_path, "model.path=%s", path);
    const char *const started[] = {
        set_path, setting, stage, "model.preset=auto", "train.lr=1e-30", "data.tokenizer=byte", NULL};
    const char *const started_alone[] = {set_path, "model.preset=auto", "train.lr=1e-30", "data.tokenizer=byte", NULL};
    loaded = run_in(preset, NULL, 1, started, false);
    uint64_t alone = run_in(preset, NULL, 1, started_alone, true);
    if (loaded != saved || alone != saved)
        FAIL("%s: weights with hash %016llx were loaded by all ranks as %016llx, by one as %016llx", preset,
             (unsigned long long)saved, (unsigned long long)loaded, (unsigned long long)alone);
    shared_dir_remove(exported);
    shared_dir_remove(dir);
}

static void open_mesh(int tensor, int sequence) {
    comm_options o = {.timeout_s = 30, .size = {[AXIS_TENSOR] = tensor, [AXIS_SEQUENCE] = sequence}};
    if (comm_open(&ranks, &o) == OK) return;
    fprintf(stderr, "%s\n", error_message());
    exit(1);
}

/* Losses and gradients of every family. 1e-4 is the bound that fp32 runs must keep over 20 steps; fp32 sums of a few
 * thousand products differ by some 1e-6 of them. */
static void check_families(int tensor) {
    char setting[32];
    snprintf(setting, sizeof setting, "parallel.tensor=%d", tensor);
    for (size_t i = 0; i < ARRAY_LENGTH(training_presets); i++) {
        curve alone;
        check_gradients(training_presets[i], SETTINGS(setting));
        check_bytes(training_presets[i], setting);
        curve_of_one(training_presets[i], PRECISION_FP32, 1, &alone);
        run_shared(training_presets[i], PRECISION_FP32, 1, SETTINGS(setting), &alone, 1e-4);
    }
}

/* ---- adapters -------------------------------------------------------------------------------------------------------- */

/* Adapters of ranks that share a model (`more`), with the bound that full training has: gradients, and 20 steps. On 4 tensor
 * ranks two of them have the same kv head: adapters of q alone, of k alone and of both are summed by other ranks each.
 * Dropout is drawn as on one rank. */
static void check_adapters(const char *const *more, bool all) {
    static const struct {
        const char *preset, *targets, *dropout;
    } cells[] = {{"test-qwen3", "all-linear", "0.2"}, {"test-qwen2", "k", "0"},
                 {"test-llama", "q", "0.2"},          {"test-qwen2", "q,v", "0"},
                 {"test-gpt2", "all-linear", "0.2"},  {"test-llama", "gate,down", "0.2"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cells); i++) {
        char targets[64], dropout[64];
        curve alone;
        if (!all && strcmp(cells[i].preset, "test-gpt2") && strcmp(cells[i].preset, "test-qwen3")) continue;
        snprintf(targets, sizeof targets, "model.lora.targets=%s", cells[i].targets);
        snprintf(dropout, sizeof dropout, "model.lora.dropout=%s", cells[i].dropout);
        training t = {.preset = cells[i].preset,
                      .seq_len = row,
                      .threads = 1,
                      .more = SETTINGS("model.lora.rank=4", "train.lr=0.01", targets, dropout, EVAL)};
        gradients_shared(&t, more);
        curve_alone(&t, &alone);
        curve_shared(&t, more, &alone, 1e-4);
    }
}

/* Stops of a run that trains adapters: what all ranks saved is what one loads and the other way round, bit for bit; stopped
 * twice, with other ranks each time, it follows the run of one rank that never stopped within the bound of 20 steps. */
static void check_adapter_files(const char *setting, const char *attention) {
    const char *const model[] = {"model.lora.rank=4", "model.lora.dropout=0.1", "train.lr=0.01",
                                 "train.schedule=constant", NULL};
    const char *more[SETTINGS_MOST];
    char *dir = shared_dir();
    train_result whole = {0}, part = {0};
    settings_join(more, model, SETTINGS(setting, attention));
    training alone = {.preset = "test-qwen3", .seq_len = row, .steps = 6, .threads = 1, .more = model};
    run_alone(alone, &whole);
    alone.dir = dir, alone.resume = "auto";
    training all = alone;
    all.more = more;
    all.comm = ranks;
    for (int steps = 2; steps <= 4; steps += 2) { /* to where the others are, and two steps further */
        train_result loaded;
        all.steps = alone.steps = steps;
        if (steps == 2) must(training_run(&all, &part));
        else run_alone(alone, &part);
        must(comm_barrier(ranks));
        if (steps == 2) run_alone(alone, &loaded);
        else must(training_run(&all, &loaded));
        if (part.param_hash != loaded.param_hash)
            FAIL("adapters, %s: saved after step %d with hash %016llx, loaded with %016llx", setting, steps,
                 (unsigned long long)part.param_hash, (unsigned long long)loaded.param_hash);
        must(comm_barrier(ranks));
    }
    all.steps = 6;
    must(training_run(&all, &part));
    if (!(fabs(part.last_loss - whole.last_loss) <= 1e-4))
        FAIL("adapters, %s: loss %.9g after stops, %.9g without", setting, part.last_loss, whole.last_loss);
    shared_dir_remove(dir);
}

/* With what else moves, repeats or splits work; several data ranks take the micro-batches that one would take in turn. */
static void check_techniques(int tensor, int data) {
    static const char *const extra[][2] = {{"memory.recompute=full", "memory.logits_chunk=4K"},
                                           {"memory.recompute=selective", NULL},
                                           {"memory.offload.activations=host", "memory.offload.states=host"},
                                           {"memory.offload.params=host", "memory.offload.grads=host"}};
    char setting[32], zero[32];
    snprintf(setting, sizeof setting, "parallel.tensor=%d", tensor);
    curve alone;
    curve_of_one("test-qwen3", PRECISION_FP32, 2 * data, &alone);
    for (int stage = 0; stage <= (data > 1 ? 3 : 0); stage++) {
        snprintf(zero, sizeof zero, "parallel.zero=%d", stage);
        run_shared("test-qwen3", PRECISION_FP32, 2, SETTINGS(setting, zero), &alone, 1e-4);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(extra); i++)
        run_shared("test-qwen3", PRECISION_FP32, 2, SETTINGS(setting, zero, extra[i][0], extra[i][1]), &alone, 1e-4);
    /* 16-bit parts of a sum are rounded before they are added: 2^-8 of a logit, averaged over the tokens. */
    curve_of_one("test-gpt2", PRECISION_BF16, data, &alone);
    run_shared("test-gpt2", PRECISION_BF16, 1, SETTINGS(setting, zero), &alone, 2e-2);
    check_files("test-gpt2", setting, data > 1 ? 3 : 0);
    check_files("test-qwen2", setting, data > 1 ? 2 : 0);
}

#define HEADS "parallel.attention=heads"
#define RING "parallel.attention=ring"

/* Rows shared by all ranks: GPT-2 has as many kv heads as heads. */
static void check_sequence(int sequence) {
    char setting[32];
    curve alone;
    snprintf(setting, sizeof setting, "parallel.sequence=%d", sequence);
    check_gradients("test-gpt2", SETTINGS(setting, HEADS));
    curve_of_one("test-gpt2", PRECISION_FP32, 1, &alone);
    run_shared("test-gpt2", PRECISION_FP32, 1, SETTINGS(setting, HEADS), &alone, 1e-4);
    run_shared("test-gpt2", PRECISION_FP32, 1, SETTINGS(setting, HEADS, "memory.recompute=full"), &alone, 1e-4);
    run_shared("test-gpt2", PRECISION_FP32, 1, SETTINGS(setting, HEADS, "memory.offload.activations=host"), &alone,
               1e-4);
    check_files("test-gpt2", setting, 0);
    if (sequence > 2) return;
    check_gradients("test-qwen3", SETTINGS(setting, HEADS));
    curve_of_one("test-qwen3", PRECISION_FP32, 1, &alone);
    run_shared("test-qwen3", PRECISION_FP32, 1, SETTINGS(setting, HEADS), &alone, 1e-4);
}

/* Keys and values go round: any number of heads, 4 and 2 of them on 3 and 8 ranks. 16-bit numbers differ as those of one rank
 * do that are added in another order. */
static void check_ring(int sequence) {
    static const char *const presets[] = {"test-gpt2", "test-qwen3"};
    static const char *const extra[][2] = {{"memory.recompute=full", NULL},
                                           {"memory.recompute=selective", "memory.offload.activations=host"},
                                           {"memory.offload.params=host", "memory.offload.states=host"}};
    char setting[32];
    curve alone;
    snprintf(setting, sizeof setting, "parallel.sequence=%d", sequence);
    for (size_t i = 0; i < ARRAY_LENGTH(presets); i++) {
        check_gradients(presets[i], SETTINGS(setting, RING));
        curve_of_one(presets[i], PRECISION_FP32, 1, &alone);
        run_shared(presets[i], PRECISION_FP32, 1, SETTINGS(setting, RING), &alone, 1e-4);
        for (size_t k = 0; k < ARRAY_LENGTH(extra) && i > 0; k++)
            run_shared(presets[i], PRECISION_FP32, 1, SETTINGS(setting, RING, extra[k][0], extra[k][1]), &alone, 1e-4);
    }
    curve_of_one("test-qwen3", PRECISION_BF16, 1, &alone);
    run_shared("test-qwen3", PRECISION_BF16, 1, SETTINGS(setting, RING), &alone, 2e-2);
    check_files("test-llama", setting, 0); /* 2 kv heads: by itself only 2 ranks can share them */
}

/* A ring with a model that is shared as well, and with data ranks. */
static void check_ring_with(int tensor, int data) {
    curve alone;
    char setting[32], zero[32];
    snprintf(setting, sizeof setting, "parallel.tensor=%d", tensor);
    snprintf(zero, sizeof zero, "parallel.zero=%d", data > 1 ? 3 : 0);
    curve_of_one("test-qwen3", PRECISION_FP32, 2 * data, &alone);
    run_shared("test-qwen3", PRECISION_FP32, 2, SETTINGS("parallel.sequence=2", RING, setting, zero), &alone, 1e-4);
}

/* With a model that is shared as well, and with data ranks in every stage of ZeRO. */
static void check_sequence_with(int tensor, int data) {
    curve alone;
    char setting[32], zero[32];
    snprintf(setting, sizeof setting, "parallel.tensor=%d", tensor);
    curve_of_one("test-gpt2", PRECISION_FP32, 2 * data, &alone);
    for (int stage = 0; stage <= (data > 1 ? 3 : 0); stage++) {
        snprintf(zero, sizeof zero, "parallel.zero=%d", stage);
        run_shared("test-gpt2", PRECISION_FP32, 2, SETTINGS("parallel.sequence=2", HEADS, setting, zero), &alone, 1e-4);
    }
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    int world = 1, rank = 0;
    if (!comm_launched(&rank, &world) || world < 2) {
        fprintf(stderr, "start this with mpirun -n 2, 3, 4 or 8\n");
        return 1;
    }
    row = world == 8 ? 48 : 24;
    open_mesh(1, world);
    check_ring(world);
    if (world == 2) check_adapters(SETTINGS("parallel.sequence=2", RING), false);
    if (world == 2) check_adapters(SETTINGS("parallel.sequence=2", HEADS), false);
    if (world == 2) check_adapter_files("parallel.sequence=2", RING);
    mesh_end();
    if (world == 3) {
        if (rank == 0) printf("%d ranks share rows: %s\n", world, n_failed ? "not as one rank" : "as one rank");
        return n_failed > 0;
    }
    int most = MIN(world, 4); /* heads of the test models */
    open_mesh(most, 1);
    if (world <= 4) check_families(most);
    if (world <= 4) check_adapters(SETTINGS(most == 2 ? "parallel.tensor=2" : "parallel.tensor=4"), true);
    if (world <= 4) check_adapter_files(most == 2 ? "parallel.tensor=2" : "parallel.tensor=4", NULL);
    else check_techniques(most, world / most);
    mesh_end();
    if (world <= 4) {
        open_mesh(2, 1);
        check_techniques(2, world / 2);
        mesh_end();
        open_mesh(1, most);
        check_sequence(most);
        mesh_end();
    }
    for (int tensor = 1; tensor <= 2 && 2 * tensor < world; tensor++) {
        open_mesh(tensor, 2);
        check_sequence_with(tensor, world / (2 * tensor));
        check_ring_with(tensor, world / (2 * tensor));
        mesh_end();
    }
    if (rank == 0) printf("%d ranks share model and rows: %s\n", world, n_failed ? "not as one rank" : "as one rank");
    return n_failed > 0;
}
