/* test_training.c - a training run means what train.h says: any thread count, any split of the batch, any bad number.
 *
 * Runs go through the whole house. Bad numbers are put in by a backend whose kernel tables are the CPU's but for one
 * kernel, so the trainer itself runs unchanged. */
#include "weights/params.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

/* ---- threads --------------------------------------------------------------------------------------------------- */

static void any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    static const precision kinds[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR};
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++)
        for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
            train_result r[3];
            for (int n = 1; n <= 3; n++) {
                training t = {.preset = training_presets[m],
                              .precision = kinds[k],
                              .threads = n,
                              .seq_len = 40,
                              .micro_batch = 3,
                              .accumulation = 2,
                              .steps = 4};
                training_must(training_run(&t, &r[n - 1]));
                assert_int_equal(r[n - 1].steps, 4);
            }
            assert_true(r[0].last_loss != r[0].first_loss); /* parameters moved */
            for (int n = 1; n < 3; n++)
                if (r[n].param_hash != r[0].param_hash || r[n].last_loss != r[0].last_loss)
                    fail_msg("%s %s: %d threads end with other parameters than 1", training_presets[m],
                             precision_name(kinds[k]), n + 1);
        }
}

static void another_seed_gives_other_bits(void **state) {
    (void)state;
    train_result a, b;
    training_must(training_run(&(training){.steps = 2}, &a));
    training_must(training_run(&(training){.steps = 2, .more = SETTINGS("train.seed=2")}, &b));
    assert_true(a.param_hash != b.param_hash);
}

/* ---- accumulation ---------------------------------------------------------------------------------------------- */

enum { ROWS = 8, LENGTH = 40 };
typedef struct rows {
    int32_t tokens[ROWS * LENGTH], targets[ROWS * LENGTH], doc_start[ROWS * LENGTH];
    double n_valid;
} rows;

/* Documents of 1 to 17 tokens, and in each row another share of targets: none in row 0, nearly all in the last one. A
 * mean of means would weigh the rows wrongly. */
static void make_rows(rows *r) {
    uint64_t key = rng_key(7, "test.rows"), n = 0;
    r->n_valid = 0;
    for (int b = 0; b < ROWS; b++) {
        int start = 0, end = 0;
        for (int t = 0; t < LENGTH; t++) {
            int i = b * LENGTH + t;
            if (t == end) {
                start = t;
                end = t + 1 + (int)rng_below(key, n++, 17);
            }
            r->doc_start[i] = start;
            r->tokens[i] = (int32_t)rng_below(key, n++, 256);
            r->targets[i] = rng_uniform(key, n++) < b / 7.5 ? (int32_t)rng_below(key, n++, 256) : -1;
            r->n_valid += r->targets[i] >= 0;
        }
    }
}

typedef struct machine {
    config c;
    plan p;
    exec *e;
} machine;

static void machine_open(machine *m, const char *preset, precision q, int64_t micro_batch, int64_t accumulation) {
    training t = {
        .preset = preset, .precision = q, .seq_len = LENGTH, .micro_batch = micro_batch, .accumulation = accumulation};
    train_request r;
    training_must(training_request(&t, &m->c, &r));
    training_must(plan_choose(&m->p, &r.plan));
    training_must(exec_open(&m->e, &m->p.program, &(exec_options){.backend = r.backend, .n_threads = r.n_threads}));
    params_initialize(m->e, &m->p, 3);
}

static void machine_close(machine *m) {
    exec_close(m->e);
    plan_close(&m->p);
    config_fini(&m->c);
}

/* All micro-batches of one step and its update. */
static void machine_step(machine *m, const rows *r) {
    const net *a = &m->p.net;
    size_t n = (size_t)(m->p.request.choice.micro_batch * LENGTH);
    for (int64_t micro = 0; micro < m->p.request.choice.accumulation; micro++) {
        step_scalars s = step_scalars_of(1, (uint32_t)micro);
        s.lr = 1e-3f, s.bias1 = 0.1f, s.bias2 = 0.05f;
        exec_write(m->e, a->tokens, 0, r->tokens + (size_t)micro * n, n * 4);
        exec_write(m->e, a->targets, 0, r->targets + (size_t)micro * n, n * 4);
        exec_write(m->e, a->doc_start, 0, r->doc_start + (size_t)micro * n, n * 4);
        exec_write(m->e, a->scalars, 0, &s, sizeof s);
        exec_run(m->e, SECTION_MICRO);
    }
    exec_run(m->e, SECTION_UPDATE);
}

static float *read_f32(machine *m, value_id v, size_t *n) {
    const value *a = program_get(&m->p.program, v);
    assert_int_equal(a->type, DTYPE_F32);
    *n = (size_t)shape_count(&a->shape);
    float *out = mem_alloc(*n * sizeof *out);
    exec_read(m->e, v, 0, out, *n * sizeof *out);
    return out;
}

/* ||a - b|| / ||a|| of the worst parameter's gradient sums. */
static double gradient_distance(machine *a, machine *b, const char **worst_name) {
    double worst = 0;
    for (size_t i = 0; i < a->p.net.n_params; i++) {
        size_t n, n_b;
        float *x = read_f32(a, a->p.step.grads[i], &n), *y = read_f32(b, b->p.step.grads[i], &n_b);
        double distance = 0, norm = 0;
        assert_int_equal(n, n_b);
        for (size_t k = 0; k < n; k++) {
            double d = (double)x[k] - y[k];
            distance += d * d;
            norm += (double)x[k] * x[k];
        }
        assert_true(norm > 0);
        if (sqrt(distance / norm) > worst) {
            worst = sqrt(distance / norm);
            *worst_name = a->p.net.params[i].name;
        }
        free(x);
        free(y);
    }
    return worst;
}

/* Both hold the same products, added in another order. One fp32 addition is wrong by at most u = 2^-24 = 6e-8 of its
 * result; a gradient entry is a sum of up to 320 token terms, whose errors add like a random walk: sqrt(320) u = 1e-6 of
 * the terms' size. Forward differs too where a matrix kernel cuts 320 rows in other tiles than 40. Twice that is the
 * bound. A mean of means, the mistake this is about, would be wrong by about 1. */
static void eight_micro_batches_equal_one_of_eight(void **state) {
    (void)state;
    rows r;
    make_rows(&r);
    for (size_t i = 0; i < ARRAY_LENGTH(training_presets); i++) {
        static const int64_t batches[] = {8, 2, 1};
        machine m[3];
        float clip[3][CLIP_COUNT];
        double sums[3][SUM_COUNT];
        for (int k = 0; k < 3; k++) {
            machine_open(&m[k], training_presets[i], PRECISION_FP32, batches[k], ROWS / batches[k]);
            machine_step(&m[k], &r);
            exec_read(m[k].e, m[k].p.step.clip, 0, clip[k], sizeof clip[k]);
            exec_read(m[k].e, m[k].p.step.loss_sums, 0, sums[k], sizeof sums[k]);
            assert_true(sums[k][SUM_VALID] == r.n_valid);
        }
        for (int k = 1; k < 3; k++) {
            const char *worst = "";
            double distance = gradient_distance(&m[0], &m[k], &worst);
            double loss = fabs(sums[k][SUM_LOSS] / sums[0][SUM_LOSS] - 1),
                   norm = fabs((double)clip[k][CLIP_NORM] / clip[0][CLIP_NORM] - 1);
            print_message("%-10s %lld x %lld: gradients within %.1e (%s), loss within %.1e, norm within %.1e\n",
                          training_presets[i], (long long)(ROWS / batches[k]), (long long)batches[k], distance, worst,
                          loss, norm);
            assert_true(distance < 2e-6);
            assert_true(loss < 1e-7); /* per-token losses in fp32, summed in double */
            assert_true(fabs((double)clip[k][CLIP_LOSS] / clip[0][CLIP_LOSS] - 1) <
                        1.2e-7); /* the same, rounded to fp32 */
            assert_true(norm < 1e-6);
        }
        for (int k = 0; k < 3; k++) machine_close(&m[k]);
    }
}

/* Also through the trainer, where the loader cuts the rows: the same first loss and nearly the same run. */
static void a_run_does_not_depend_on_the_split_of_its_batch(void **state) {
    (void)state;
    train_result whole, split;
    training t = {.source = "builtin:arithmetic",
                  .seq_len = 32,
                  .micro_batch = 8,
                  .accumulation = 1,
                  .steps = 6,
                  .more = SETTINGS("data.pack=false")};
    training_must(training_run(&t, &whole));
    t.micro_batch = 1;
    t.accumulation = 8;
    training_must(training_run(&t, &split));
    assert_true(whole.tokens == split.tokens);
    assert_true(fabs(whole.first_loss / split.first_loss - 1) < 2e-7);
    assert_true(fabs(whole.last_loss / split.last_loss - 1) < 1e-4); /* AdamW divides small gradients by themselves */
}

/* ---- numbers that are not finite ------------------------------------------------------------------------------- */

#define POISONED_PARAM "layers.1.mlp.down.w"
#define POISONED_GRAD \
    "fresh.d." POISONED_PARAM /* of one micro-batch, before it is accumulated; fp32 in every precision here */
enum { POISONED_ELEMENT = 77 };

static struct {
    op_kind kind;
    const char *output;
    int64_t calls, from, until; /* poison calls from..until, counted from 1 */
} poison;
static kernel_fn poisoned_kernels[OP_COUNT];

SAME_PLACE(LINEAR_DW_DW, ADAMW_P, SWIGLU_Y); /* the kinds that are poisoned */

static void poisoned_kernel(backend_context *c, const kernel_call *k) {
    backend_cpu()->kernels[poison.kind](c, k);
    if (strcmp(call_out(k, LINEAR_DW_DW)->name, poison.output) != 0) return;
    poison.calls++;
    if (poison.calls >= poison.from && poison.calls <= poison.until)
        ((float *)k->out[LINEAR_DW_DW])[POISONED_ELEMENT] = -NAN; /* with the sign that x86 gives it */
}

static const backend *poisoned_backend(op_kind kind, const char *output, int64_t from, int64_t until) {
    static backend b;
    b = *backend_cpu();
    memcpy(poisoned_kernels, b.kernels, sizeof poisoned_kernels);
    poisoned_kernels[kind] = poisoned_kernel;
    b.kernels = poisoned_kernels;
    poison.kind = kind;
    poison.output = output;
    poison.calls = 0;
    poison.from = from;
    poison.until = until;
    return &b;
}

static void assert_message_has(const char *const *parts) {
    for (; *parts; parts++)
        if (!strstr(error_message(), *parts)) fail_msg("'%s' is not in the message: %s", *parts, error_message());
}

/* Each of these also with the next micro-batch run beside the update that goes wrong. */
static const char *const overlaps[] = {"memory.overlap_update=false", "memory.overlap_update=true"};

/* The second update leaves a NaN in a parameter: the third step cannot be finite. */
static void a_broken_parameter_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(overlaps); i++) {
        train_result r;
        training t = {
            .steps = 6, .backend = poisoned_backend(OP_ADAMW, POISONED_PARAM, 2, 2), .more = SETTINGS(overlaps[i])};
        assert_int_equal(training_run(&t, &r), ERR_RUN);
        assert_message_has(
            SETTINGS("step 3:", "layer 1", "'" POISONED_PARAM "'", "element 77 = nan", "train.nonfinite=skip"));
        assert_null(strstr(error_message(), "-nan"));
        assert_int_equal(r.steps, 2);
    }
}

/* A kernel that goes wrong in the second micro-batch of step 4: its output is named, not who stumbled over it. */
static void the_first_wrong_output_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(overlaps); i++) {
        train_result r;
        training t = {.steps = 6,
                      .accumulation = 2,
                      .backend = poisoned_backend(OP_SWIGLU, "layers.1.mlp.act", 8, INT64_MAX),
                      .more = SETTINGS(overlaps[i])};
        assert_int_equal(training_run(&t, &r), ERR_RUN);
        assert_message_has(SETTINGS("step 4:", "layer 1", "'layers.1.mlp.act'", "element 77", "swiglu"));
        assert_int_equal(r.steps, 3);
    }
}

typedef struct diary {
    train_step_report steps[256];
    int n, n_messages;
    char last_message[256];
} diary;
static void diary_step(void *context, const train_step_report *r) {
    diary *d = context;
    assert_true(d->n < (int)ARRAY_LENGTH(d->steps));
    d->steps[d->n++] = *r;
}
static void diary_message(void *context, const char *text) { ((diary *)context)->n_messages++; }
static void diary_last_message(void *context, const char *text) {
    diary *d = context;
    snprintf(d->last_message, sizeof d->last_message, "%s", text);
}
static train_observer diary_observer(diary *d) {
    *d = (diary){0};
    return (train_observer){.context = d, .on_step = diary_step, .on_message = diary_message};
}

/* With skip, a step that is not finite changes nothing: parameters after it are those of a run that ended before, and
 * later steps have the same bits wherever states and parameters live. */
static void a_skipped_step_leaves_the_parameters_alone(void **state) {
    (void)state;
    static const precision kinds[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR};
    static const char *const homes[][2] = {{"memory.offload.states=none", "memory.offload.params=none"},
                                           {"memory.offload.states=host", "memory.offload.params=none"},
                                           {"memory.offload.states=none", "memory.offload.params=host"}};
    uint64_t plain = 0;
    for (size_t k = 0; k < ARRAY_LENGTH(kinds) * ARRAY_LENGTH(homes) * ARRAY_LENGTH(overlaps); k++) {
        const char *const *home = homes[k / 2 % ARRAY_LENGTH(homes)];
        diary d;
        train_observer o = diary_observer(&d);
        train_result before, at, after;
        training t = {
            .precision = kinds[k / 2 / ARRAY_LENGTH(homes)],
            .accumulation = 2,
            .steps = 3,
            .more = SETTINGS("train.nonfinite=skip", "train.schedule=constant", overlaps[k % 2], home[0], home[1]),
            .observer = &o};
        training_must(training_run(&t, &before));
        assert_int_equal(d.n_messages, 0);

        o = diary_observer(&d);
        t.steps = 4; /* the first of two micro-batches of step 4 */
        t.backend = poisoned_backend(OP_LINEAR_DW, POISONED_GRAD, 7, 7);
        training_must(training_run(&t, &at));
        if (poison.calls == 0) fail_msg("no op wrote %s", poison.output);
        assert_true(d.steps[3].skipped && !d.steps[2].skipped);
        assert_int_equal(d.n_messages, 2);
        assert_true(at.param_hash == before.param_hash);
        assert_int_equal(at.steps, 4);

        o = diary_observer(&d);
        t.steps = 8;
        poison.calls = 0;
        training_must(training_run(&t, &after));
        assert_true(after.param_hash != before.param_hash && isfinite(after.last_loss));
        for (int i = 0; i < 8; i++) assert_true(d.steps[i].skipped == (i == 3));
        if (k % (2 * ARRAY_LENGTH(homes)) == 0) plain = after.param_hash;
        assert_true(after.param_hash == plain);
    }
}

/* What the kernels were told in each update, of the first parameter, and at the end of each forward. */
static struct {
    step_scalars updates[16], micros[16];
    int n_updates, n_micros;
} probe;
static void probing_adamw(backend_context *c, const kernel_call *k) {
    if (strcmp(call_out(k, ADAMW_P)->name, "embed.w") == 0 && probe.n_updates < (int)ARRAY_LENGTH(probe.updates))
        probe.updates[probe.n_updates++] = *(const step_scalars *)k->in[ADAMW_SCALARS];
    backend_cpu()->kernels[OP_ADAMW](c, k);
}
static void probing_loss(backend_context *c, const kernel_call *k) {
    if (probe.n_micros < (int)ARRAY_LENGTH(probe.micros))
        probe.micros[probe.n_micros++] = *(const step_scalars *)k->in[LOSS_REDUCE_SCALARS];
    backend_cpu()->kernels[OP_LOSS_REDUCE](c, k);
}

/* AdamW's bias correction counts updates, so a skipped step does not age it; the rounding noise is fresh every step. A
 * micro-batch beside an update is told of its own step. */
static void kernels_are_told_where_the_run_is(void **state) {
    (void)state;
    for (size_t overlap = 0; overlap < ARRAY_LENGTH(overlaps); overlap++) {
        train_result r;
        training t = {.steps = 6,
                      .accumulation = 2,
                      .backend = poisoned_backend(OP_LINEAR_DW, POISONED_GRAD, 5, 5), /* step 3 */
                      .more = SETTINGS("train.nonfinite=skip", "train.beta1=0.8", "train.beta2=0.9", "train.seed=5",
                                       overlaps[overlap])};
        poisoned_kernels[OP_ADAMW] = probing_adamw;
        poisoned_kernels[OP_LOSS_REDUCE] = probing_loss;
        probe.n_updates = probe.n_micros = 0;
        training_must(training_run(&t, &r));
        assert_int_equal(probe.n_updates, 6);
        assert_int_equal(probe.n_micros, 12);
        static const int updates[] = {1, 2, 3, 3, 4, 5};
        uint64_t noise = rng_key(5, "stochastic rounding");
        for (int i = 0; i < 6; i++) {
            const step_scalars *s = &probe.updates[i];
            assert_int_equal(s->step, i + 1);
            assert_int_equal(s->micro, 1); /* the last of two */
            assert_true(s->bias1 == (float)(1 - pow(0.8, updates[i])) && s->bias2 == (float)(1 - pow(0.9, updates[i])));
            assert_true(s->seed == 1 && s->grad_unscale == 1);
            assert_true(((uint64_t)s->noise_hi << 32 | s->noise_lo) == noise);
        }
        for (int i = 0; i < 12; i++) {
            const step_scalars *s = &probe.micros[i];
            assert_int_equal(s->step, i / 2 + 1);
            assert_int_equal(s->micro, i % 2);
            assert_int_equal(s->micro_of_all, i % 2); /* one data rank */
            assert_true(s->seed == 1 && ((uint64_t)s->noise_hi << 32 | s->noise_lo) == noise);
        }
    }
}

/* ---- fp16 ------------------------------------------------------------------------------------------------------ */

/* Replays the rule on what the run reported: the scale of every step must follow from the overflows before it. */
static void check_scales(const diary *d, double first, int64_t window, int64_t hysteresis) {
    double scale = first;
    int64_t left = hysteresis, clean = 0;
    for (int i = 0; i < d->n; i++) {
        if (d->steps[i].loss_scale != scale)
            fail_msg("step %d ran with loss scale %g, expected %g", i + 1, d->steps[i].loss_scale, scale);
        if (d->steps[i].skipped) {
            clean = 0;
            if (left == 1) scale /= 2;
            else left--;
        } else if (++clean == window) {
            clean = 0;
            scale *= 2;
            left = hysteresis;
        }
    }
}

static void fp16_finds_its_loss_scale_and_learns(void **state) {
    (void)state;
    diary d;
    train_observer o = diary_observer(&d);
    train_result r;
    training t = {.precision = PRECISION_FP16,
                  .micro_batch = 8,
                  .steps = 60,
                  .observer = &o,
                  .more = SETTINGS("train.fp16.initial_scale_power=30", "train.lr=0.01")};
    training_must(training_run(&t, &r));
    int skipped = 0, in_all = 0;
    while (skipped < d.n && d.steps[skipped].skipped) skipped++;
    for (int i = 0; i < d.n; i++) in_all += d.steps[i].skipped;
    print_message("fp16 from scale 2^30: %d steps left out, then scale 2^%g, loss %.3f -> %.3f\n", skipped,
                  log2(d.steps[skipped].loss_scale), d.steps[skipped].loss, r.last_loss);
    assert_in_range(skipped, 3, 25);            /* two for the hysteresis, then one per halving */
    assert_in_range(in_all - skipped, 0, 5);    /* just below the edge a later step may still cross it */
    assert_int_equal(d.n_messages, in_all + 1); /* each, and where the schedule ended */
    check_scales(&d, 0x1p30, 1000, 2);
    assert_true(fabs(d.steps[0].loss - log(260)) < 0.5); /* the reported loss is never scaled */
    assert_true(r.last_loss < 0.6 * d.steps[skipped].loss);
}

/* The rates of a run in which nothing is skipped, each used again until its step makes an update. */
static void skipped_steps_do_not_advance_the_schedule(void **state) {
    (void)state;
    const char *const *const ways[] = {
        SETTINGS("train.warmup=6", "train.schedule=linear", "train.fp16.initial_scale_power=30"),
        SETTINGS("train.warmup=3", "train.schedule_style=deepspeed", "train.fp16.initial_scale_power=30")};
    for (size_t w = 0; w < ARRAY_LENGTH(ways); w++) {
        diary plain, d;
        train_observer o = diary_observer(&plain), p = diary_observer(&d);
        train_result r;
        p.on_message = diary_last_message;
        training t = {.steps = 40, .observer = &o, .more = ways[w]}, skips = t;
        skips.precision = PRECISION_FP16, skips.observer = &p;
        training_must(training_run(&t, &r));
        training_must(training_run(&skips, &r));
        int n_updates = 0;
        char ended[64];
        for (int i = 0; i < d.n; i++) {
            assert_true(d.steps[i].lr == plain.steps[n_updates].lr);
            n_updates += !d.steps[i].skipped;
        }
        assert_int_equal(d.n, 40);
        assert_in_range(n_updates, 15, 38);
        snprintf(ended, sizeof ended, "%d of 40 steps were skipped", 40 - n_updates);
        assert_non_null(strstr(d.last_message, ended));
        snprintf(ended, sizeof ended, "after update %d, at learning rate %g", n_updates, plain.steps[n_updates - 1].lr);
        assert_non_null(strstr(d.last_message, ended));
    }
}

/* A short window makes the scale climb until it overflows again, over and over. */
static void fp16_scale_climbs_and_falls_by_the_rule(void **state) {
    (void)state;
    diary d;
    train_observer o = diary_observer(&d);
    train_result r;
    training t = {.precision = PRECISION_FP16,
                  .steps = 100,
                  .observer = &o,
                  .more = SETTINGS("train.fp16.initial_scale_power=20", "train.fp16.loss_scale_window=3",
                                   "train.fp16.hysteresis=3")};
    training_must(training_run(&t, &r));
    check_scales(&d, 0x1p20, 3, 3);
    int doubled = 0, halved = 0;
    for (int i = 1; i < d.n; i++) {
        doubled += d.steps[i].loss_scale > d.steps[i - 1].loss_scale;
        halved += d.steps[i].loss_scale < d.steps[i - 1].loss_scale;
    }
    print_message("fp16 window 3, hysteresis 3: doubled %d times, halved %d times in 100 steps\n", doubled, halved);
    assert_true(doubled >= 3 && halved >= 2);
}

static void fp16_stops_when_the_smallest_scale_overflows(void **state) {
    (void)state;
    train_result r;
    training t = {.precision = PRECISION_FP16,
                  .steps = 10,
                  .more = SETTINGS("train.fp16.initial_scale_power=30", "train.fp16.min_loss_scale=536870912")};
    assert_int_equal(training_run(&t, &r), ERR_RUN); /* 2^30 twice, 2^29, then no way down */
    assert_message_has(SETTINGS("smallest loss scale", "precision=bf16"));
    assert_int_equal(r.steps, 2);
}

/* ---- scaler and schedule alone --------------------------------------------------------------------------------- */

static void the_scaler_follows_the_rule(void **state) {
    (void)state;
    train_options o = {.initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = 2, .min_loss_scale = 4};
    loss_scaler s;
    scaler_init(&s, &o);
    /* o: overflow, c: clean; the scale after each. */
    static const struct {
        char what;
        double scale;
    } steps[] = {
        {'o', 16},                                 /* hysteresis 2 -> 1 */
        {'o', 8},  {'c', 8},  {'c', 8},  {'o', 4}, /* hysteresis stays 1 until it is refilled; clean steps start anew */
        {'c', 4},  {'c', 4},  {'c', 8},            /* a whole window: doubled and refilled */
        {'o', 8},  {'c', 8},  {'c', 8},  {'c', 16},
        {'c', 16}, {'c', 16}, {'c', 32}, /* the next window counts from the doubling */
        {'o', 32}, {'o', 16}, {'o', 8},  {'o', 4},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(steps); i++) {
        assert_int_equal(scaler_update(&s, &o, steps[i].what == 'o'), OK);
        if (s.scale != steps[i].scale) fail_msg("after event %zu: scale %g, expected %g", i, s.scale, steps[i].scale);
    }
    assert_int_equal(scaler_update(&s, &o, true), ERR_RUN); /* at the smallest */
    assert_non_null(strstr(error_message(), "4"));

    train_options defaults = {
        .initial_scale_power = 16, .loss_scale_window = 1000, .hysteresis = 2, .min_loss_scale = 1};
    scaler_init(&s, &defaults);
    assert_true(s.scale == 65536);
    for (int i = 0; i < 999; i++) assert_int_equal(scaler_update(&s, &defaults, false), OK);
    assert_true(s.scale == 65536);
    assert_int_equal(scaler_update(&s, &defaults, false), OK);
    assert_true(s.scale == 131072);

    train_options fixed = {
        .loss_scale = 128, .initial_scale_power = 16, .loss_scale_window = 1, .hysteresis = 1, .min_loss_scale = 128};
    scaler_init(&s, &fixed);
    for (int i = 0; i < 4; i++) {
        assert_true(s.scale == 128);
        assert_int_equal(scaler_update(&s, &fixed, i % 2 == 0), OK); /* a fixed scale is never at fault */
    }
}

static void assert_lr(const train_options *o, int64_t step, double expected) {
    double lr = schedule_lr(o, step);
    if (fabs(lr - expected) > 1e-15 + 1e-12 * fabs(expected))
        fail_msg("schedule %d, step %lld of %lld: %.17g, expected %.17g", (int)o->schedule, (long long)step,
                 (long long)o->steps, lr, expected);
}

static void schedules_have_the_written_values(void **state) {
    (void)state;
    train_options o = {.steps = 100, .lr = 2.0, .min_lr_ratio = 0.1, .warmup = 20, .decay_share = 0.25};
    for (schedule_kind k = 0; k < SCHEDULE_COUNT; k++) {
        o.schedule = k;
        assert_lr(&o, 1, 2.0 / 20); /* linear from lr / warmup */
        assert_lr(&o, 7, 2.0 * 7 / 20);
        assert_lr(&o, 20, 2.0);
        assert_lr(&o, 100, k == SCHEDULE_CONSTANT ? 2.0 : 0.2);
        for (int64_t step = 21; step <= 100; step++)
            assert_true(schedule_lr(&o, step) <= schedule_lr(&o, step - 1) && schedule_lr(&o, step) > 0.2 - 1e-12);
    }
    o.schedule = SCHEDULE_COSINE; /* halfway between 20 and 100 */
    assert_lr(&o, 60, 2.0 * 0.55);
    assert_lr(&o, 40, 2.0 * (0.1 + 0.9 * 0.5 * (1 + sqrt(0.5))));
    o.schedule = SCHEDULE_LINEAR;
    assert_lr(&o, 60, 2.0 * 0.55);
    assert_lr(&o, 40, 2.0 * 0.775);
    o.schedule = SCHEDULE_CONSTANT;
    assert_lr(&o, 60, 2.0);
    o.schedule = SCHEDULE_WSD; /* holds until 75 */
    assert_lr(&o, 60, 2.0);
    assert_lr(&o, 75, 2.0);
    assert_lr(&o, 80, 2.0 * (1 - 0.9 * 0.2));

    o.warmup = 0; /* no warmup: the first step is on the curve already */
    o.schedule = SCHEDULE_LINEAR;
    assert_lr(&o, 1, 2.0 * (1 - 0.9 * 0.01));
    o.min_lr_ratio = 0;
    for (schedule_kind k = 0; k < SCHEDULE_COUNT; k++) {
        o.schedule = k;
        assert_lr(&o, 100, k == SCHEDULE_CONSTANT ? 2.0 : 0);
    }
    o = (train_options){.steps = 1, .lr = 2.0, .min_lr_ratio = 0.5, .schedule = SCHEDULE_COSINE};
    assert_lr(&o, 1, 1.0); /* the only step is the last step */
    o = (train_options){.steps = 3, .lr = 2.0, .min_lr_ratio = 0.5, .schedule = SCHEDULE_WSD, .decay_share = 0.1};
    assert_lr(&o, 2, 2.0);
    assert_lr(&o, 3, 1.0); /* a share of less than one step still ends at the floor */
}

static void steps_report_the_schedule(void **state) {
    (void)state;
    diary d;
    train_observer o = diary_observer(&d);
    train_result r;
    training t = {.steps = 10,
                  .observer = &o,
                  .more =
                      SETTINGS("train.warmup=4", "train.schedule=linear", "train.lr=0.008", "train.min_lr_ratio=0.25")};
    training_must(training_run(&t, &r));
    assert_int_equal(d.n, 10);
    assert_true(fabs(d.steps[0].lr - 0.002) < 1e-12 && fabs(d.steps[3].lr - 0.008) < 1e-12);
    assert_true(fabs(d.steps[6].lr - 0.005) < 1e-12 && fabs(d.steps[9].lr - 0.002) < 1e-12);
    assert_true(d.steps[9].tokens == 10 * 2 * 24);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scaler_follows_the_rule),
        cmocka_unit_test(schedules_have_the_written_values),
        cmocka_unit_test(steps_report_the_schedule),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(another_seed_gives_other_bits),
        cmocka_unit_test(eight_micro_batches_equal_one_of_eight),
        cmocka_unit_test(a_run_does_not_depend_on_the_split_of_its_batch),
        cmocka_unit_test(a_broken_parameter_is_named),
        cmocka_unit_test(the_first_wrong_output_is_named),
        cmocka_unit_test(a_skipped_step_leaves_the_parameters_alone),
        cmocka_unit_test(kernels_are_told_where_the_run_is),
        cmocka_unit_test(fp16_finds_its_loss_scale_and_learns),
        cmocka_unit_test(fp16_scale_climbs_and_falls_by_the_rule),
        cmocka_unit_test(skipped_steps_do_not_advance_the_schedule),
        cmocka_unit_test(fp16_stops_when_the_smallest_scale_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
