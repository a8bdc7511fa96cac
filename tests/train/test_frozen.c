/* test_frozen.c - adapters over a frozen model: techniques of memory change no bit of what is trained, what is frozen never
 * changes, and every tier uses exactly the bytes that were planned for it.
 *
 * Families differ in what is frozen between the adapters: GPT-2 has layer norms, biases and one tensor for q, k and v, Qwen2
 * biases on q, k and v, Qwen3 norms of q and k and a tied table. `make test` runs a part of the matrix; RALO_MATRIX=large
 * (`make matrix`) hundreds of cells and more steps of each. */
#include "training.h"
#include "train/task.h"
#include "weights/params.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

enum { STEPS = 8, SHORT_STEPS = 3 };

static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR, PRECISION_FP16,
                                       PRECISION_FP8};
static const char *const homes[] = {"none", "host", "nvme"};
static const char *const rungs[] = {"none",    "norms",    "selective",        "full",
                                    "every:2", "nested:2", "mix:full,1,norms", "keep:attn.qkv,attn.y"};
/* A name that GPT-2 does not have stands for its own: it has q, k and v in one tensor, and no gate. */
static const char *const targets[][2] = {
    {"q,v", "c_attn"}, {"gate", "up"}, {"down", "down"}, {"all-linear", "all-linear"}};
enum { N_FAMILIES = 4, N_PRECISIONS = ARRAY_LENGTH(precisions), N_TARGETS = ARRAY_LENGTH(targets) };

/* ---- the hash of what is frozen ----------------------------------------------------------------------------------- */

/* Supervised training that looks at the frozen parameters before the first step and after every one. */
static struct {
    void *rows; /* the supervised task */
    task_host host;
    uint64_t before, all_before; /* of what is frozen; of all parameters */
    int n_looks;
    bool changed;
} watched;

static uint64_t hash_of_frozen(void) {
    return params_base_hash(watched.host.exec, watched.host.plan, NULL, &(base_hash){.as = DTYPE_F32});
}

static status watch_open(void **out, const task_host *h) {
    watched.host = *h;
    watched.n_looks = 0;
    watched.changed = false;
    TRY(task_of(TASK_SFT)->open(out, h));
    watched.rows = *out;
    return OK;
}
static status watch_begin(void *self, uint64_t position) {
    watched.before = hash_of_frozen();
    watched.all_before = params_hash(watched.host.exec, watched.host.plan, NULL);
    return task_of(TASK_SFT)->begin(self, position);
}
static status watch_after(void *self, train_step_report *report) {
    watched.changed |= hash_of_frozen() != watched.before;
    watched.n_looks++;
    return task_of(TASK_SFT)->after ? task_of(TASK_SFT)->after(self, report) : OK;
}

static task watching(void) {
    task t = *task_of(TASK_SFT);
    t.open = watch_open;
    t.begin = watch_begin;
    t.after = watch_after;
    return t;
}

/* ---- the matrix --------------------------------------------------------------------------------------------------- */

typedef struct cell {
    size_t model, precision, target;
    int accumulation;
    bool dropout;
    size_t params, grads, states, activations; /* index into homes */
    int prefetch;
    bool small_bucket, overlap;
    size_t rung;
    int keep; /* layers of which states stay; every model has two */
} cell;

typedef struct matrix {
    char *dir;
    int steps, n;
    bool known[N_FAMILIES][N_PRECISIONS][N_TARGETS][2][2];
    train_result plain[N_FAMILIES][N_PRECISIONS][N_TARGETS][2][2];
    uint64_t frozen[N_FAMILIES][N_PRECISIONS]; /* the same base whatever is trained beside it; 0: not known yet */
} matrix;

static const char *targets_of(const cell *c) {
    return targets[c->target][strcmp(training_presets[c->model], "test-gpt2") == 0];
}

static void cell_name(const cell *c, char *out, size_t n) {
    snprintf(
        out, n,
        "%s %s targets %s%s accumulation %d params %s grads %s states %s activations %s prefetch %d%s recompute %s%s "
        "keep %d",
        training_presets[c->model], precision_name(precisions[c->precision]), targets_of(c),
        c->dropout ? " dropout" : "", c->accumulation, homes[c->params], homes[c->grads], homes[c->states],
        homes[c->activations], c->prefetch, c->small_bucket ? " small slices" : "", rungs[c->rung],
        c->overlap ? " overlap" : "", c->keep);
}

static void run_cell(matrix *m, const cell *c, train_result *out) {
    char text[10][600], name[500];
    const char *const keys[] = {"memory.offload.params", "memory.offload.grads", "memory.offload.states",
                                "memory.offload.activations"};
    const size_t places[] = {c->params, c->grads, c->states, c->activations};
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
        snprintf(text[i], sizeof text[i], "%s=%s", keys[i], homes[places[i]]);
    snprintf(text[4], sizeof text[4], "memory.prefetch=%d", c->prefetch);
    snprintf(text[5], sizeof text[5], "memory.recompute=%s", rungs[c->rung]);
    snprintf(text[6], sizeof text[6], "memory.nvme_path=%s", m->dir);
    snprintf(text[7], sizeof text[7], "memory.offload.keep_states=%d", c->states ? c->keep : 0);
    snprintf(text[8], sizeof text[8], "model.lora.targets=%s", targets_of(c));
    task watch = watching();
    training t = {.preset = training_presets[c->model],
                  .precision = precisions[c->precision],
                  .accumulation = c->accumulation,
                  .steps = m->steps,
                  .task = c->overlap ? NULL : &watch, /* a task that looks between steps cannot have them overlap */
                  .more = SETTINGS(text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8],
                                   "model.lora.rank=4", "train.lr=0.01",
                                   c->dropout ? "model.lora.dropout=0.2" : "model.lora.dropout=0",
                                   c->overlap ? "memory.overlap_update=true" : "memory.overlap_update=false",
                                   c->small_bucket ? "memory.bucket=256K" : "memory.bucket=16M")};
    cell_name(c, name, sizeof name);
    watched.n_looks = 0;
    status rc = training_run(&t, out);
    if (rc != OK) fail_msg("%s: %s", name, error_message());
    if (c->overlap) return;
    uint64_t *frozen = &m->frozen[c->model][c->precision];
    if (!*frozen) *frozen = watched.before;
    if (watched.n_looks != m->steps || watched.changed || watched.before != *frozen)
        fail_msg("%s: frozen parameters changed; looked at after %d of %d steps", name, watched.n_looks, m->steps);
    if (out->param_hash == watched.all_before) fail_msg("%s: nothing was trained", name);
}

static void check_cell(matrix *m, const cell *c) {
    size_t many = c->accumulation > 1;
    train_result *plain = &m->plain[c->model][c->precision][c->target][many][c->dropout], r;
    bool *known = &m->known[c->model][c->precision][c->target][many][c->dropout];
    char name[500];
    if (!*known) {
        cell none = {.model = c->model,
                     .precision = c->precision,
                     .target = c->target,
                     .accumulation = c->accumulation,
                     .dropout = c->dropout};
        run_cell(m, &none, plain);
        *known = true;
    }
    run_cell(m, c, &r);
    cell_name(c, name, sizeof name);
    if (r.param_hash != plain->param_hash || r.last_loss != plain->last_loss)
        fail_msg("%s: param_hash %016llx, plain %016llx", name, (unsigned long long)r.param_hash,
                 (unsigned long long)plain->param_hash);
    training_as_planned(&r, name);
    m->n++;
}

static cell cell_at(uint64_t index) {
    cell c = {0};
    c.model = index % N_FAMILIES, index /= N_FAMILIES;
    c.precision = index % N_PRECISIONS, index /= N_PRECISIONS;
    c.target = index % N_TARGETS, index /= N_TARGETS;
    c.rung = index % ARRAY_LENGTH(rungs), index /= ARRAY_LENGTH(rungs);
    c.accumulation = index % 2 ? 3 : 1, index /= 2;
    c.dropout = index % 2, index /= 2;
    c.params = index % 3, index /= 3;
    c.grads = index % 3, index /= 3;
    c.states = index % 3, index /= 3;
    c.activations = index % 3, index /= 3;
    c.prefetch = (int)(index % 4), index /= 4;
    c.small_bucket = index % 2, index /= 2;
    c.overlap = index % 2, index /= 2;
    c.keep = (int)(index % 3);
    if (precisions[c.precision] == PRECISION_FP16)
        c.overlap = false; /* refused: the scale of the loss comes after the update */
    return c;
}
#define CELLS (N_FAMILIES * N_PRECISIONS * N_TARGETS * (int)ARRAY_LENGTH(rungs) * 2 * 2 * 3 * 3 * 3 * 3 * 4 * 2 * 2 * 3)

static void every_cell_ends_with_the_same_bits(void **state) {
    bool large = matrix_is_large();
    matrix *m = mem_alloc(sizeof *m);
    *m = (matrix){.dir = training_dir(), .steps = large ? STEPS : SHORT_STEPS};
    /* A stride prime to every factor of the matrix walks through all combinations of any two choices. */
    uint64_t stride = large ? 9973 : SANITIZED ? 1299709 : 48611;
    for (uint64_t i = 0; i < CELLS; i += stride) {
        cell c = cell_at(i);
        check_cell(m, &c);
        if (large && m->n % 100 == 0) print_message("%d cells so far\n", m->n);
    }
    print_message("%d cells of %d: equal bits, planned == used in every tier, frozen parameters as they were\n", m->n,
                  CELLS);
    training_dir_remove(m->dir);
    free(m);
}

/* One technique at a time, on every family: what the walk above may leave out for one of them. */
static void every_technique_on_every_family(void **state) {
    matrix *m = mem_alloc(sizeof *m);
    *m = (matrix){.dir = training_dir(), .steps = SHORT_STEPS};
    const cell some[] = {{.params = 1},      {.params = 2, .prefetch = 2}, {.states = 2, .overlap = true},
                         {.activations = 1}, {.grads = 1, .rung = 3},      {.rung = 7},
                         {.rung = 5},        {.activations = 2, .rung = 2}};
    for (size_t k = 0; k < N_FAMILIES; k++)
        for (size_t i = k % 2; i < ARRAY_LENGTH(some); i += matrix_is_large() ? 1 : 2) {
            cell c = some[i];
            c.model = k, c.target = (k + i) % N_TARGETS, c.accumulation = 2, c.dropout = i % 2;
            check_cell(m, &c);
        }
    training_dir_remove(m->dir);
    free(m);
}

/* Two steps each with another strategy: the bits of a run that never stopped. */
static void resumed_with_another_strategy_is_the_same_run(void **state) {
    static const char *const ways[][2] = {{"memory.offload.params=host", "memory.recompute=full"},
                                          {"memory.offload.states=nvme", "memory.offload.activations=host"},
                                          {"memory.recompute=nested:2", "memory.offload.grads=host"}};
    for (size_t k = 0; k < N_FAMILIES; k++) {
        char *dir = training_dir(), *disk = training_dir(), path[600];
        const char *const model[] = {"model.lora.rank=4", "model.lora.dropout=0.2", "train.lr=0.01",
                                     "train.schedule=constant", NULL};
        training t = {.preset = training_presets[k],
                      .precision = precisions[k],
                      .accumulation = 2,
                      .steps = 2 * ARRAY_LENGTH(ways),
                      .more = model};
        train_result whole, part;
        training_must(training_run(&t, &whole));
        snprintf(path, sizeof path, "memory.nvme_path=%s", disk);
        t.dir = dir, t.resume = "auto";
        for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
            const char *more[SETTINGS_MOST];
            settings_join(more, model, SETTINGS(ways[i][0], ways[i][1], path));
            t.more = more;
            t.steps = 2 * (int64_t)(i + 1);
            training_must(training_run(&t, &part));
            assert_int_equal(part.steps, t.steps);
        }
        assert_int_equal(part.param_hash, whole.param_hash);
        assert_true(part.last_loss == whole.last_loss);
        training_dir_remove(disk);
        training_dir_remove(dir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cell_ends_with_the_same_bits),
        cmocka_unit_test(every_technique_on_every_family),
        cmocka_unit_test(resumed_with_another_strategy_is_the_same_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
