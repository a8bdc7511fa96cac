/* test_tasks.c - the table of tasks; weights of tokens from a batch to the gradient; a run of a task that is not in the
 * table: its inputs, its numbers, its state in a checkpoint. */
#include "track/track.h"
#include "train/batch.h"
#include "train/task.h"
#include "training.h"
#include "weights/params.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

static void assert_message_has(const char *const *parts) {
    for (; *parts; parts++)
        if (!strstr(error_message(), *parts)) fail_msg("'%s' is not in: %s", *parts, error_message());
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

/* Names that metrics.jsonl and checkpoints rely on, and the functions that no task can be without. */
static void every_task_of_the_table_is_whole(void **state) {
    assert_string_equal(task_name(task_of(0)), CHECKPOINT_DEFAULT_TASK);
    assert_null(task_of(TASK_COUNT));
    for (task_kind k = 0; k < TASK_COUNT; k++) {
        const task *t = task_of(k);
        char listed[80];
        const metric *fixed;
        snprintf(listed, sizeof listed, "|%s", task_name(t));
        assert_non_null(strstr(train_task_names, listed));
        assert_true(strlen(task_name(t)) <= CHECKPOINT_TASK_NAME && t->n_metrics <= METRICS_MOST);
        assert_true(t->shape && t->open && t->close && t->identity && t->begin && t->evaluate && t->host_bytes);
        assert_true(t->step.next && t->step.again && t->step.position);
        assert_true(!t->save == !t->load);
        for (size_t i = 0; i < t->n_metrics; i++)
            for (size_t m = 0; (fixed = metric_at(m)); m++) assert_string_not_equal(fixed->name, t->metrics[i].name);
    }
}

/* ---- weights of tokens ----------------------------------------------------------------------------------------- */

enum { ROWS = 2, LENGTH = 9, N = ROWS * LENGTH };
typedef struct rows {
    int32_t tokens[N], targets[N], doc_start[N];
    float weights[N];
} rows;

/* Two documents per row; tokens 4 and 13 are not trained on. Weights 0, 0.3, 2 and -1 in turn. */
static void make_rows(rows *r) {
    static const float weights[] = {0.3f, 2, 0, -1, 1};
    for (int i = 0; i < N; i++) {
        r->tokens[i] = (i * 37 + 11) % 256;
        r->targets[i] = i % LENGTH == 4 ? -1 : (i * 53 + 7) % 256;
        r->doc_start[i] = i % LENGTH < 5 ? 0 : 5;
        r->weights[i] = weights[i % 5];
    }
}

typedef struct machine {
    config c;
    plan p;
    exec *e;
} machine;

static void machine_open(machine *m, const char *preset, bool weights) {
    training t = {.preset = preset, .seq_len = LENGTH, .micro_batch = ROWS};
    train_request r;
    training_must(training_request(&t, &m->c, &r));
    r.plan.token_weights = weights;
    training_must(plan_choose(&m->p, &r.plan));
    assert_true(!m->p.step.inputs[0].weights == !weights);
    training_must(exec_open(&m->e, &m->p.program, &(exec_options){.backend = r.backend, .n_threads = r.n_threads}));
    params_initialize(m->e, &m->p, 3);
}

static void machine_close(machine *m) {
    exec_close(m->e);
    plan_close(&m->p);
    config_fini(&m->c);
}

/* Forward, backward and the sums of one micro-batch. */
static void machine_micro(machine *m, const batch_rows *r, double sums[SUM_COUNT]) {
    const micro_inputs *to = &m->p.step.inputs[0];
    step_scalars s = step_scalars_of(1, 0);
    training_must(batch_write(m->e, &m->p, to, r));
    exec_write(m->e, to->scalars, 0, &s, sizeof s);
    training_must(exec_run(m->e, SECTION_MICRO));
    exec_read(m->e, m->p.step.loss_sums, 0, sums, SUM_COUNT * sizeof *sums);
}

/* All gradients, one behind the other. */
static double *machine_gradient(machine *m, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < m->p.net.n_params; i++) *n += (size_t)shape_count(&m->p.net.params[i].shape);
    double *out = mem_alloc(*n * sizeof *out);
    size_t at = 0;
    for (size_t i = 0; i < m->p.net.n_params; i++) {
        size_t count = (size_t)shape_count(&m->p.net.params[i].shape);
        float *narrow = mem_alloc(count * sizeof *narrow);
        exec_read(m->e, m->p.step.grads[i], 0, narrow, count * sizeof *narrow);
        for (size_t k = 0; k < count; k++) out[at++] = narrow[k];
        free(narrow);
    }
    return out;
}

static batch_rows rows_of(const rows *r, const float *weights) {
    return (batch_rows){r->tokens, r->targets, r->doc_start, weights, .first_row = 40};
}

/* The gradient of a weighted loss is the weighted sum of the gradients of single tokens, which a program without weights gives
 * when only that token has a target. Summed by hand in double; the program's own sums are fp32 of up to 18 terms, one of them up
 * to twice as large: a few times 2^-24. */
static void weights_make_the_weighted_sum_of_tokens(void **state) {
    for (size_t p = 0; p < ARRAY_LENGTH(training_presets); p++) {
        rows r, one;
        machine with, without;
        double sums[SUM_COUNT], single[SUM_COUNT], loss = 0, weight = 0, distance = 0, norm = 0;
        size_t n, n_valid = 0;
        make_rows(&r);
        machine_open(&with, training_presets[p], true);
        machine_open(&without, training_presets[p], false);
        batch_rows weighted = rows_of(&r, r.weights);
        machine_micro(&with, &weighted, sums);
        double *found = machine_gradient(&with, &n), *expected = mem_alloc(n * sizeof *expected);
        for (int i = 0; i < N; i++) {
            if (r.targets[i] < 0) continue;
            one = r;
            for (int k = 0; k < N; k++) one.targets[k] = k == i ? r.targets[i] : -1;
            batch_rows alone = rows_of(&one, NULL);
            machine_micro(&without, &alone, single);
            double *gradient = machine_gradient(&without, &n);
            for (size_t k = 0; k < n; k++) expected[k] += (double)r.weights[i] * gradient[k];
            loss += (double)r.weights[i] * single[SUM_LOSS];
            weight += (double)r.weights[i];
            n_valid++;
            free(gradient);
        }
        for (size_t k = 0; k < n; k++) {
            distance += (found[k] - expected[k]) * (found[k] - expected[k]);
            norm += expected[k] * expected[k];
        }
        print_message("%-10s weighted gradient within %.1e, loss within %.1e\n", training_presets[p],
                      sqrt(distance / norm), fabs(sums[SUM_WEIGHTED_LOSS] / loss - 1));
        assert_true(norm > 0 && sqrt(distance / norm) < 2e-6);
        assert_true(fabs(sums[SUM_WEIGHTED_LOSS] / loss - 1) < 1e-6);
        assert_true(fabs(sums[SUM_WEIGHTS] - weight) < 1e-12 && sums[SUM_VALID] == (double)n_valid);
        free(found);
        free(expected);
        machine_close(&with);
        machine_close(&without);
    }
}

/* A batch without weights: every token counts once, with the bits of a program that has none. All weights 0: nothing. */
static void no_weights_are_ones(void **state) {
    rows r;
    machine with, without;
    double sums[3][SUM_COUNT];
    size_t n;
    make_rows(&r);
    machine_open(&with, "test-qwen3", true);
    machine_open(&without, "test-qwen3", false);
    batch_rows plain = rows_of(&r, NULL);
    machine_micro(&with, &plain, sums[0]);
    machine_micro(&without, &plain, sums[1]);
    assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
    double *a = machine_gradient(&with, &n), *b = machine_gradient(&without, &n);
    assert_memory_equal(a, b, n * sizeof *a);
    for (int i = 0; i < N; i++) r.weights[i] = 0;
    batch_rows zeros = rows_of(&r, r.weights);
    machine_micro(&with, &zeros, sums[2]);
    assert_true(sums[2][SUM_WEIGHTED_LOSS] == 0 && sums[2][SUM_WEIGHTS] == 0 && sums[2][SUM_LOSS] == sums[1][SUM_LOSS]);
    double *c = machine_gradient(&with, &n);
    for (size_t k = 0; k < n; k++) assert_true(c[k] == 0);
    free(a);
    free(b);
    free(c);
    machine_close(&with);
    machine_close(&without);
}

static void weights_that_are_not_finite_are_refused(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    rows r;
    machine with, without;
    machine_open(&with, "test-llama", true);
    machine_open(&without, "test-llama", false);
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        make_rows(&r);
        r.weights[LENGTH + 4] = bad[i]; /* also where no target is */
        batch_rows from = rows_of(&r, r.weights);
        assert_int_equal(batch_write(with.e, &with.p, &with.p.step.inputs[0], &from), ERR_INPUT);
        assert_message_has(SETTINGS("row 41, position 4", i == 0 ? "nan" : "inf"));
    }
    make_rows(&r);
    batch_rows from = rows_of(&r, r.weights);
    assert_int_equal(batch_write(without.e, &without.p, &without.p.step.inputs[0], &from), ERR_BUG);
    machine_close(&with);
    machine_close(&without);
}

/* ---- a task that is not in the table --------------------------------------------------------------------------- */

/* Supervised training with weights, which looks at each micro-batch before the step and after it, and counts tokens. */
static struct {
    float weight;     /* of every token ... */
    int64_t bad_step; /* ... but of one in this step, which is NaN; 0: none */
    bool overlapped;  /* shape leaves the update overlapped, which a task of this kind must not */
    int64_t n_before, n_ran, n_next, loaded;
    bool out_of_order;
} seen;

typedef struct counting {
    const task *base;
    void *rows; /* the supervised task */
    task_host host;
    float *weights;
    loader *loader;
    int64_t step;
    int64_t count; /* micro-batches, of this run and those before it */
} counting;

static const task_metric counting_metrics[] = {{"counting/micros", "micros", "micro-batches seen"},
                                               {"val/counting", NULL, "the same, in an evaluation"}};

static status counting_shape(train_request *r) {
    TRY(task_of(TASK_SFT)->shape(r));
    r->plan.token_weights = true;
    if (!seen.overlapped) r->plan.choice.overlap_update = OVERLAP_FALSE;
    return OK;
}

static status counting_open(void **out, const task_host *h) {
    counting *t = mem_alloc(sizeof *t);
    *t = (counting){.base = task_of(TASK_SFT), .host = *h};
    TRY(t->base->open(&t->rows, h));
    t->weights = mem_alloc((size_t)(h->plan->request.choice.micro_batch * h->plan->request.seq_len) * sizeof(float));
    *out = t;
    return OK;
}

static void counting_close(void *self) {
    counting *t = self;
    t->base->close(t->rows);
    loader_close(t->loader);
    free(t->weights);
    free(t);
}

static const char *counting_identity(void *self, arena *memory) {
    counting *t = self;
    return t->base->identity(t->rows, memory);
}

static json_t *counting_save(void *self) { return json_pack("{s:I}", "count", (json_int_t)((counting *)self)->count); }

static status counting_load(void *self, const json_t *state, const char *where) {
    counting *t = self;
    TRY(json_get_int(state, "count", 0, 1 << 20, where, &t->count));
    seen.loaded = t->count;
    return OK;
}

static status counting_begin(void *self, uint64_t position) {
    counting *t = self;
    const plan_request *q = &t->host.plan->request;
    return loader_open(&t->loader, t->host.data, SPLIT_TRAIN, q->choice.micro_batch, position, 0, 1);
}

static status counting_before(void *self, int64_t step) {
    counting *t = self;
    t->step = step;
    seen.n_before++;
    seen.out_of_order |= seen.n_next != seen.n_ran || seen.n_next % t->host.plan->request.choice.accumulation != 0;
    return OK;
}

static status counting_next(void *self, const micro_inputs *to) {
    counting *t = self;
    const batch *b = loader_next(t->loader);
    int64_t n = t->host.plan->request.choice.micro_batch * t->host.plan->request.seq_len;
    for (int64_t i = 0; i < n; i++) t->weights[i] = seen.weight;
    if (t->step == seen.bad_step) t->weights[3] = NAN;
    seen.n_next++;
    return batch_write(t->host.exec, t->host.plan, to,
                       &(batch_rows){b->tokens, b->targets, b->doc_start, t->weights, .first_row = b->first_row});
}

static status counting_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    counting *t = self;
    return t->base->step.again(t->rows, position, micro, to);
}

static status counting_ran(void *self, int64_t first, int64_t n) {
    counting *t = self;
    seen.out_of_order |= n != 1 || first != seen.n_ran % t->host.plan->request.choice.accumulation;
    seen.n_ran += n;
    t->count += n;
    return OK;
}

static uint64_t counting_position(const void *self) { return loader_position(((const counting *)self)->loader); }

static status counting_after(void *self, train_step_report *report) {
    train_metrics_add(&report->metrics, &counting_metrics[0], (double)((counting *)self)->count);
    return OK;
}

static status counting_evaluate(void *self, train_eval_report *out) {
    counting *t = self;
    TRY(t->base->evaluate(t->rows, out));
    train_metrics_add(&out->metrics, &counting_metrics[1], (double)t->count);
    return OK;
}

static uint64_t counting_host_bytes(const void *self) {
    const counting *t = self;
    return t->base->host_bytes(t->rows);
}

static const task counting_task = {
    .name = "counting",
    .metrics = counting_metrics,
    .n_metrics = ARRAY_LENGTH(counting_metrics),
    .shape = counting_shape,
    .open = counting_open,
    .close = counting_close,
    .identity = counting_identity,
    .save = counting_save,
    .load = counting_load,
    .begin = counting_begin,
    .step = {.before = counting_before,
             .next = counting_next,
             .again = counting_again,
             .ran = counting_ran,
             .position = counting_position},
    .after = counting_after,
    .evaluate = counting_evaluate,
    .host_bytes = counting_host_bytes,
};

static struct {
    double micros[16], eval;
    int n;
} told;
static void note_step(void *context, const train_step_report *r) {
    assert_int_equal(r->metrics.n, 1);
    assert_string_equal(r->metrics.list[0].row->name, "counting/micros");
    assert_true(told.n < (int)ARRAY_LENGTH(told.micros));
    told.micros[told.n++] = r->metrics.list[0].value;
}
static void note_eval(void *context, const train_eval_report *r) {
    assert_int_equal(r->metrics.n, 1);
    told.eval = r->metrics.list[0].value;
}
static const train_observer notes = {.on_step = note_step, .on_eval = note_eval};

static void begin_notes(float weight) {
    memset(&seen, 0, sizeof seen);
    memset(&told, 0, sizeof told);
    seen.weight = weight;
}

/* Every weight 1 is the supervised run, bit for bit; the order of calls, and the task's numbers after each step. */
static void a_task_is_asked_in_order_and_reports_by_name(void **state) {
    train_result plain, r;
    const char *const *more = SETTINGS("train.eval_rows=2", "train.eval_every=2");
    training t = {.accumulation = 3, .steps = 4, .more = more};
    training_must(training_run(&t, &plain));
    begin_notes(1);
    t.task = &counting_task;
    t.observer = &notes;
    training_must(training_run(&t, &r));
    assert_true(r.param_hash == plain.param_hash && r.last_loss == plain.last_loss);
    training_as_planned(&r, "counting");
    assert_false(seen.out_of_order);
    assert_int_equal(seen.n_before, 4);
    assert_int_equal(seen.n_ran, 12);
    assert_int_equal(told.n, 4);
    for (int i = 0; i < 4; i++) assert_true(told.micros[i] == 3 * (i + 1));
    assert_true(told.eval == 12 && r.eval.metrics.n == 1 && r.eval.loss == plain.eval.loss);
    begin_notes(0.3f);
    training_must(training_run(&t, &r)); /* the loss is a weighted sum over valid tokens: 0.3 of it */
    assert_true(fabs(r.first_loss / plain.first_loss - 0.3) < 1e-6);
}

static void a_weight_that_is_nan_ends_the_run_by_its_row(void **state) {
    train_result r;
    begin_notes(1);
    seen.bad_step = 3;
    training t = {.task = &counting_task, .micro_batch = 2, .accumulation = 2, .steps = 4};
    assert_int_equal(training_run(&t, &r), ERR_INPUT);
    assert_message_has(SETTINGS("row 8, position 3", "nan")); /* two steps of 2 x 2 rows came before */
    assert_int_equal(r.steps, 2);
}

static void a_task_that_reads_between_steps_needs_its_shape(void **state) {
    train_result r;
    begin_notes(1);
    seen.overlapped = true;
    training t = {.task = &counting_task, .more = SETTINGS("memory.overlap_update=true")};
    assert_int_equal(training_run(&t, &r), ERR_BUG);
    assert_message_has(SETTINGS("overlap_update"));
}

/* Stopped and resumed, with saves in the background: the count goes on, and the bits are those of the whole run. */
static void the_state_of_a_task_is_resumed(void **state) {
    train_result whole, r;
    char *dir = training_dir();
    training t = {.task = &counting_task, .accumulation = 2, .steps = 6};
    begin_notes(2);
    training_must(training_run(&t, &whole));
    t.dir = dir;
    t.more = SETTINGS("train.save_every=1", "train.schedule_steps=6");
    t.steps = 4;
    begin_notes(2);
    training_must(training_run(&t, &r));
    t.steps = 6;
    t.resume = "auto";
    t.observer = &notes;
    begin_notes(2);
    training_must(training_run(&t, &r));
    assert_int_equal(seen.loaded, 8);
    assert_true(told.n == 2 && told.micros[0] == 10 && told.micros[1] == 12);
    assert_true(r.param_hash == whole.param_hash);
    t.observer = NULL;
    t.task = NULL;
    t.steps = 8;
    assert_int_equal(training_run(&t, &r), ERR_INPUT);
    assert_message_has(SETTINGS("train.task=counting", "this run has sft", dir));
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_of_the_table_is_whole),
        cmocka_unit_test(weights_make_the_weighted_sum_of_tokens),
        cmocka_unit_test(no_weights_are_ones),
        cmocka_unit_test(weights_that_are_not_finite_are_refused),
        cmocka_unit_test(a_task_is_asked_in_order_and_reports_by_name),
        cmocka_unit_test(a_weight_that_is_nan_ends_the_run_by_its_row),
        cmocka_unit_test(a_task_that_reads_between_steps_needs_its_shape),
        cmocka_unit_test(the_state_of_a_task_is_resumed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
