/* test_equality.c - a technique moves, repeats or splits work and never changes arithmetic: the parameters after some
 * steps have the same bits as those of the plain run, whatever was offloaded where, and every tier uses exactly the bytes
 * that were planned for it.
 *
 * `make test` runs a part of the matrix that meets every pair of choices; RALO_MATRIX=large (`make matrix`) runs thousands
 * of cells and more steps of each. */
#include "training.h"
#include "backend_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 10, SHORT_STEPS = 3 };

static const char *const models[] = {"test-gpt2", "test-qwen3", "test-gemma2"}; /* the last: windows, soft caps */
static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR};
static const char *const homes[] = {"none", "host", "nvme"};
static const char *const rungs[] = {"none", "norms", "selective", "full", "every:2", "nested:2", "mix:full,1,norms"};
/* The third as beside a GPU: the parts on cpu are the host's, in its memory. */
static const char *const places[] = {"none", "embed=cpu:0, layers.0=cpu:1, layers.1=cpu:0, head=cpu:2",
                                     "embed=cpu, layers.0=cuda:0, layers.1=cpu, head=cuda"};

typedef struct cell {
    size_t model, precision;
    int accumulation;
    size_t params, grads, states, activations; /* index into homes */
    int prefetch;
    bool small_bucket;
    size_t rung, place;
    bool overlap; /* the update beside the next step's first micro-batch */
    int keep;     /* layers of which states stay; all models have two */
    int resident; /* ... and parameters */
    bool embed;   /* the embedding stays */
} cell;

typedef struct matrix {
    char *dir;
    int steps;
    bool known[3][3][2];
    train_result plain[3][3][2];
    int n;
} matrix;

static void run_cell(const matrix *m, const cell *c, train_result *out) {
    char params[64], grads[64], states[64], activations[64], prefetch[64], rung[64], place[128], path[600], keep[64],
        resident[64];
    snprintf(params, sizeof params, "memory.offload.params=%s", homes[c->params]);
    snprintf(grads, sizeof grads, "memory.offload.grads=%s", homes[c->grads]);
    snprintf(states, sizeof states, "memory.offload.states=%s", homes[c->states]);
    snprintf(activations, sizeof activations, "memory.offload.activations=%s", homes[c->activations]);
    snprintf(prefetch, sizeof prefetch, "memory.prefetch=%d", c->prefetch);
    snprintf(rung, sizeof rung, "memory.recompute=%s", rungs[c->rung]);
    bool one_device = backend_under_test()->discrete; /* a process drives one GPU */
    snprintf(place, sizeof place, "memory.place=%s", places[one_device ? 0 : c->place]);
    snprintf(path, sizeof path, "memory.nvme_path=%s", m->dir);
    snprintf(keep, sizeof keep, "memory.offload.keep_states=%d", c->states ? c->keep : 0);
    snprintf(resident, sizeof resident, "memory.offload.keep_params=%d", c->params ? c->resident : 0);
    training t = {.preset = models[c->model],
                  .precision = precisions[c->precision],
                  .accumulation = c->accumulation,
                  .steps = m->steps,
                  .more = SETTINGS(params, grads, states, activations, prefetch, rung, place, path, keep, resident,
                                   c->overlap ? "memory.overlap_update=true" : "memory.overlap_update=false",
                                   c->embed ? "memory.offload.keep_embed=true" : "memory.offload.keep_embed=false",
                                   c->small_bucket ? "memory.bucket=256K" : "memory.bucket=16M")};
    training_must(training_run(&t, out));
}

static void check_cell(matrix *m, const cell *c) {
    int many = c->accumulation > 1;
    train_result *plain = &m->plain[c->model][c->precision][many], r;
    if (!m->known[c->model][c->precision][many]) {
        cell none = {.model = c->model, .precision = c->precision, .accumulation = c->accumulation};
        run_cell(m, &none, plain);
        m->known[c->model][c->precision][many] = true;
    }
    run_cell(m, c, &r);
    char name[400];
    snprintf(name, sizeof name,
             "%s %s accumulation %d params %s grads %s states %s activations %s prefetch %d%s recompute %s place %s%s "
             "keep %d and %d%s",
             models[c->model], precision_name(precisions[c->precision]), c->accumulation, homes[c->params],
             homes[c->grads], homes[c->states], homes[c->activations], c->prefetch,
             c->small_bucket ? " small slices" : "", rungs[c->rung], places[c->place], c->overlap ? " overlap" : "",
             c->keep, c->resident, c->embed ? " and the embedding" : "");
    if (r.param_hash != plain->param_hash || r.last_loss != plain->last_loss)
        fail_msg("%s: param_hash %016llx, plain %016llx", name, (unsigned long long)r.param_hash,
                 (unsigned long long)plain->param_hash);
    training_as_planned(&r, name);
    bool nvme = c->params == 2 || c->grads == 2 || c->states == 2;
    if (nvme && !r.memory.planned[TIER_NVME]) fail_msg("%s: nothing on nvme", name);
    m->n++;
}

static cell cell_at(uint64_t index) {
    cell c = {0};
    c.model = index % 3, index /= 3;
    c.precision = index % 3, index /= 3;
    c.accumulation = index % 2 ? 4 : 1, index /= 2;
    c.params = index % 3, index /= 3;
    c.grads = index % 3, index /= 3;
    c.states = index % 3, index /= 3;
    c.activations = index % 3, index /= 3;
    c.prefetch = (int)(index % 4), index /= 4;
    c.small_bucket = index % 2, index /= 2;
    c.rung = index % ARRAY_LENGTH(rungs), index /= ARRAY_LENGTH(rungs);
    c.place = index % ARRAY_LENGTH(places), index /= ARRAY_LENGTH(places);
    c.overlap = index % 2, index /= 2;
    c.keep = (int)(index % 3), index /= 3;
    c.embed = index % 2, index /= 2;
    c.resident = (int)(index % 3);
    return c;
}
#define CELLS (3 * 3 * 2 * 3 * 3 * 3 * 3 * 4 * 2 * (int)ARRAY_LENGTH(rungs) * (int)ARRAY_LENGTH(places) * 2 * 3 * 2 * 3)

static void every_cell_ends_with_the_same_bits(void **state) {
    (void)state;
    bool large = matrix_is_large();
    matrix m = {.dir = training_dir(), .steps = large ? STEPS : SHORT_STEPS};
    /* A stride prime to every factor of the matrix walks through all combinations of any two choices. */
    uint64_t stride = large ? 541 : SANITIZED ? 178223 : 24953;
    for (uint64_t i = 0; i < CELLS; i += stride) {
        cell c = cell_at(i);
        check_cell(&m, &c);
        if (large && m.n % 500 == 0) print_message("%d cells so far\n", m.n);
    }
    print_message("%d cells of %d: equal bits, planned == used in every tier\n", m.n, CELLS);
    training_dir_remove(m.dir); /* fails if something was left in it that is not ours to remove */
}

/* What the plan chooses by itself keeps the bits too: a model that needs many times the device trains inside it. */
static void a_model_many_times_the_device_trains_the_same_bits(void **state) {
    (void)state;
    /* Scratch of a GPU's products does not shrink with the model. */
    uint64_t scratch = backend_under_test()->discrete ? 6000ull << 10 : 0, some = (5700ull << 10) + scratch,
             least = (1300ull << 10) + scratch;
    char limits[3][64] = {"memory.device=1G"};
    snprintf(limits[1], sizeof limits[1], "memory.device=%llu", (unsigned long long)some);
    snprintf(limits[2], sizeof limits[2], "memory.device=%llu", (unsigned long long)least);
    train_result r[ARRAY_LENGTH(limits)];
    for (size_t i = 0; i < ARRAY_LENGTH(limits); i++) {
        training t = {
            .preset = "test-llama", .seq_len = 32, .steps = STEPS, .more = SETTINGS("model.layers=24", limits[i])};
        training_must(training_run(&t, &r[i]));
        assert_int_equal(r[i].memory.planned[TIER_DEVICE], r[i].memory.peak[TIER_DEVICE]);
        assert_int_equal(r[i].memory.planned[TIER_HOST], r[i].memory.peak[TIER_HOST]);
        print_message("%s: %llu bytes on the device, %llu on the host\n", limits[i],
                      (unsigned long long)r[i].memory.peak[TIER_DEVICE],
                      (unsigned long long)r[i].memory.peak[TIER_HOST]);
    }
    assert_true(r[0].memory.peak[TIER_DEVICE] > 4 * (some - scratch)); /* everything resident needs that much more */
    assert_true(r[1].memory.peak[TIER_DEVICE] <= some && r[2].memory.peak[TIER_DEVICE] <= least);
    assert_true(r[1].param_hash == r[0].param_hash && r[2].param_hash == r[0].param_hash);
}

/* Nothing of the nvme tier has a name in its directory, also while it is used. */
static void nvme_leaves_nothing_behind(void **state) {
    (void)state;
    matrix m = {.dir = training_dir(), .steps = SHORT_STEPS};
    cell c = {.accumulation = 1, .states = 2, .prefetch = 1};
    train_result r;
    run_cell(&m, &c, &r);
    assert_true(r.memory.peak[TIER_NVME] > 0);
    assert_int_equal(rmdir(m.dir), 0); /* empty */
    free(m.dir);
}

/* 8-bit states have a scale per block: slices of them begin at a sector too, whatever memory.bucket says. */
static void slices_of_8_bit_states_on_nvme_keep_the_bits(void **state) {
    (void)state;
    char *dir = training_dir(), path[600];
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    static const char *const cells[][2] = {{"memory.offload.states=none", "memory.bucket=16M"},
                                           {"memory.offload.states=nvme", "memory.bucket=256K"},
                                           {"memory.offload.states=nvme", "memory.bucket=1280K"},
                                           {"memory.offload.states=nvme", "memory.bucket=2M"}};
    train_result r[ARRAY_LENGTH(cells)];
    for (size_t i = 0; i < ARRAY_LENGTH(cells); i++) {
        training t = {.preset = "test-gpt2", /* its positions are 640K elements then */
                      .steps = SHORT_STEPS,
                      .more =
                          SETTINGS("model.max_positions=10240", "memory.states=int8", cells[i][0], cells[i][1], path)};
        training_must(training_run(&t, &r[i]));
        assert_true(r[i].param_hash == r[0].param_hash);
        training_as_planned(&r[i], cells[i][0]);
    }
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cell_ends_with_the_same_bits),
        cmocka_unit_test(a_model_many_times_the_device_trains_the_same_bits),
        cmocka_unit_test(nvme_leaves_nothing_behind),
        cmocka_unit_test(slices_of_8_bit_states_on_nvme_keep_the_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
