/* test_memory_matrix.c - what is planned is what is used, to the byte, and a step allocates nothing.
 *
 * Every cell is a real run with evaluation and background checkpoints. The device's peak is taken by the ledger from the
 * pointers that kernels and copies were really given; the host's from what loader, evaluation and checkpoint writer hold,
 * and once, for a pair of cells, from the heap itself. */
#include "exec/guard.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <malloc.h>
#include <stdlib.h>

static void check_cell(const training *t, train_result *r) {
    training_must(training_run(t, r));
    char cell[160];
    snprintf(cell, sizeof cell, "%s %s seq_len %lld micro_batch %lld accumulation %lld", t->preset,
             precision_name(t->precision), (long long)t->seq_len, (long long)t->micro_batch,
             (long long)t->accumulation);
    training_as_planned(r, cell);
    if (r->memory.planned[TIER_DEVICE] == 0) fail_msg("%s: nothing planned", cell);
    if (r->host_planned != r->host_peak || r->host_planned == 0)
        fail_msg("%s: host planned %llu, held %llu", cell, (unsigned long long)r->host_planned,
                 (unsigned long long)r->host_peak);
    assert_int_equal(r->steps, t->steps);
    assert_true(r->memory.n_runs > (uint64_t)(t->steps * (t->accumulation + 1))); /* start, steps, evaluation */
}

static void planned_bytes_are_used_bytes_in_every_cell(void **state) {
    (void)state;
    assert_true(guard_present());
    static const int64_t lengths[] = {16, 40}, batches[] = {1, 3}, accumulations[] = {1, 3};
    int n = 0;
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++)
        for (precision q = 0; q < PRECISION_COUNT; q++)
            for (int k = 0; k < 8; k++) {
                if (SANITIZED && (m + q + (size_t)k) % 8 != 0) continue; /* every model and precision once */
                char *cell_dir = NULL;
                bool saving = k == (int)q; /* one cell of each model and precision also holds a copy for checkpoints */
                training t = {.preset = training_presets[m],
                              .precision = q,
                              .source = "builtin:arithmetic",
                              .steps = 2,
                              .seq_len = lengths[k & 1],
                              .micro_batch = batches[k >> 1 & 1],
                              .accumulation = accumulations[k >> 2 & 1],
                              .more = SETTINGS("data.difficulty=2", "train.eval_rows=2", "train.problems=3",
                                               "run.keep=1", saving ? "train.save_every=1" : "train.save_every=none")};
                train_result r;
                if (saving) t.dir = cell_dir = training_dir();
                check_cell(&t, &r);
                if (saving) training_dir_remove(cell_dir);
                n++;
            }
    print_message("%d cells: device and host planned == used, 0 allocations in steps\n", n);
}

/* The plan of a cell does not depend on how long it runs, and a longer run uses no more. */
static void a_longer_run_uses_no_more(void **state) {
    (void)state;
    training t = {.preset = "test-qwen3",
                  .precision = PRECISION_BF16,
                  .seq_len = 40,
                  .micro_batch = 3,
                  .accumulation = 3,
                  .steps = 2};
    train_result two, twelve;
    check_cell(&t, &two);
    t.steps = 12;
    check_cell(&t, &twelve);
    assert_true(two.memory.peak[TIER_DEVICE] == twelve.memory.peak[TIER_DEVICE]);
}

/* Does an op read or write each of the values that have bytes? */
static void check_every_value_is_used(const program *p, const char *what) {
    bool *used = mem_alloc(p->n_values * sizeof *used);
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        for (int k = 0; k < op_input_count(o->kind); k++) used[program_root(p, o->in[k], NULL)] = true;
        for (int k = 0; k < op_output_count(o->kind); k++) used[program_root(p, o->out[k], NULL)] = true;
        used[program_root(p, o->work, NULL)] = used[program_root(p, o->rows, NULL)] = true;
    }
    for (value_id v = 1; v < p->n_values; v++)
        if (!p->values[v].view_of && p->values[v].offset != VALUE_NOT_PLACED && !used[v])
            fail_msg("%s: %s has %zu bytes of %s, and no op uses it", what, p->values[v].name,
                     value_bytes(&p->values[v]), tier_name(p->values[v].tier));
    free(used);
}

/* The transposes of frozen 8-bit weights serve gradients alone, which a reference does not have. */
static void frozen_weights_in_8_bits_have_the_bytes_that_are_read(void **state) {
    (void)state;
    static const char *const homes[] = {"memory.offload.reference=params", "memory.offload.reference=host"},
                             *const scales[] = {"train.fp8.scales=exact", "train.fp8.scales=power"};
    for (size_t i = 0; i < ARRAY_LENGTH(homes); i++)
        for (size_t k = 0; k < ARRAY_LENGTH(scales); k++) {
            training t = {.preset = "test-qwen3",
                          .precision = PRECISION_FP8,
                          .seq_len = 32,
                          .micro_batch = 2,
                          .steps = 2,
                          .more = SETTINGS("train.weighting=rho1", homes[i], scales[k], "memory.strategy=manual")};
            train_result r;
            compiled c;
            compiled_open(&c, &t);
            check_every_value_is_used(&c.p.program, homes[i]);
            compiled_close(&c);
            training_must(training_run(&t, &r));
            training_as_planned(&r, homes[i]);
        }
}

static size_t heap_in_use(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static size_t heap_at_last_step;
static void note_heap(void *context, const train_step_report *r) {
    (void)context;
    (void)r;
    heap_at_last_step = heap_in_use();
}

/* Two runs of the same model have the same tables; only what grows with the micro-batch differs, and that is what the
 * host plan counts. malloc rounds each block up to 16 bytes, or to a page where it maps it: 8 blocks. */
static void the_heap_grows_by_what_the_host_plan_grows(void **state) {
    (void)state;
    if (SANITIZED) skip(); /* their malloc keeps no such books */
    static const int64_t batches[] = {1, 200};
    size_t held[2];
    uint64_t planned[2];
    train_observer o = {.on_step = note_heap};
    for (int warm = 0; warm < 2; warm++) /* the first round fills caches that stay (stdio, locale, thread stacks) */
        for (int i = 0; i < 2; i++) {
            training t = {.seq_len = 256, .micro_batch = batches[i], .steps = 2, .observer = &o};
            train_result r;
            size_t before = heap_in_use();
            training_must(training_run(&t, &r));
            held[i] = heap_at_last_step - before;
            planned[i] = r.host_planned;
        }
    double grown = (double)held[1] - (double)held[0], expected = (double)(planned[1] - planned[0]);
    print_message("host: planned to grow by %.0f bytes, heap grew by %.0f\n", expected, grown);
    assert_true(grown - expected < 8 * 4096 && expected - grown < 8 * 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_bytes_are_used_bytes_in_every_cell),
        cmocka_unit_test(a_longer_run_uses_no_more),
        cmocka_unit_test(frozen_weights_in_8_bits_have_the_bytes_that_are_read),
        cmocka_unit_test(the_heap_grows_by_what_the_host_plan_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
