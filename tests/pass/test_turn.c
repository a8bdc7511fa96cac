/* test_turn.c - the update beside the next step's first micro-batch: a section that repeats others and needs no memory, in
 * which a layer waits for its own parameters only, and runs that end with the same bits whatever interrupts them. */
#include "model/model.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

static void compile(compiled *k, const training *t, overlap_wish wish) {
    compiled_request(k, t);
    k->r.plan.open = (plan_open){0};
    k->r.plan.choice.overlap_update = wish;
    compiled_plan(k);
}

static size_t section_ops(const program *p, section s, const op **ops) {
    size_t first, end;
    program_section(p, s, &first, &end);
    if (ops) *ops = p->ops + first;
    return end - first;
}

static const char *const *const homes[] = {
    NULL,
    SETTINGS("memory.offload.states=host"),
    SETTINGS("memory.offload.states=host", "memory.bucket=256K", "memory.prefetch=3", "memory.recompute=full"),
    SETTINGS("memory.offload.states=host", "memory.offload.grads=host"),
    SETTINGS("memory.offload.states=host", "memory.offload.keep_states=1"),
    SETTINGS("memory.offload.states=host", "memory.offload.params=host", "memory.offload.activations=host"),
    SETTINGS("memory.offload.states=host", "memory.offload.params=host", "memory.offload.grads=host",
             "memory.offload.keep_embed=true"),
    SETTINGS("memory.offload.states=nvme", "memory.offload.grads=nvme", "memory.offload.params=nvme",
             "memory.offload.activations=nvme", "memory.nvme_path=."),
};

/* ---- the section ---------------------------------------------------------------------------------------------------- */

/* Accumulators that stay in the host's memory have the first gradients already. */
static bool is_added_already(const program *p, const op *o) {
    return o->kind == OP_ACCUMULATE && o->section == SECTION_MICRO &&
           program_tier(p, o->out[ACCUMULATE_ACC]) == TIER_HOST &&
           program_get(p, program_root(p, o->out[ACCUMULATE_ACC], NULL))->persistent;
}

/* Who adds what a copy brings, or NULL. */
static const op *who_adds(const program *p, const op *copy) {
    const op *o;
    for (size_t n = section_ops(p, SECTION_MICRO, &o); n > 0 && copy->kind == OP_COPY; n--, o++)
        if (is_added_already(p, o) && o->in[ACCUMULATE_X] == copy->out[COPY_Y]) return o;
    return NULL;
}

/* The same op over the same values, but for the scalars; and a gradient is copied where it would be added. */
static void check_repeated(const program *p, const op *o, const op *of, value_id scalars, value_id by) {
    value_id in[OP_MAX_IN], out[OP_MAX_OUT];
    const op *adds = of->section == SECTION_MICRO ? who_adds(p, of) : NULL;
    for (int k = 0; k < OP_MAX_IN; k++) in[k] = of->in[k] && of->in[k] == scalars ? by : of->in[k];
    memcpy(out, of->out, sizeof out);
    if (adds) out[COPY_Y] = adds->out[ACCUMULATE_ACC];
    bool same = o->kind == of->kind && o->stream == of->stream && o->at == of->at && o->work == of->work &&
                memcmp(o->in, in, sizeof in) == 0 && memcmp(o->out, out, sizeof out) == 0 &&
                memcmp(&o->attr, &of->attr, sizeof of->attr) == 0;
    if (!same) fail_msg("op %zu of the turn is not op %zu", (size_t)(o - p->ops), (size_t)(of - p->ops));
}

static void a_turn_repeats_update_prepare_and_micro(void **state) {
    (void)state;
    static const section parts[] = {SECTION_UPDATE, SECTION_PREPARE, SECTION_MICRO};
    for (size_t i = 0; i < ARRAY_LENGTH(homes); i++)
        for (int64_t accumulation = 1; accumulation <= 3; accumulation += 2) {
            compiled k;
            compile(&k,
                    &(training){.preset = "test-qwen3",
                                .precision = i % 2 ? PRECISION_FP8 : PRECISION_BF16_SR,
                                .accumulation = accumulation,
                                .more = homes[i]},
                    OVERLAP_TRUE);
            const program *p = &k.p.program;
            const op *turn, *of;
            value_id scalars = k.p.net.scalars, own = k.p.step.turn_scalars;
            size_t n_turn = section_ops(p, SECTION_TURN, &turn), at = 0, n_left_out = 0;
            for (size_t s = 0; s < ARRAY_LENGTH(parts); s++)
                for (size_t n = section_ops(p, parts[s], &of); n > 0; n--, of++) {
                    if (is_added_already(p, of)) {
                        n_left_out++;
                        continue;
                    }
                    assert_true(at < n_turn);
                    check_repeated(p, &turn[at++], of, scalars, parts[s] == SECTION_UPDATE ? scalars : own);
                }
            assert_int_equal(at, n_turn);
            assert_true((n_left_out > 0) == (accumulation > 1 && k.r.plan.choice.offload.grads == TIER_HOST));
            assert_true(own != NO_VALUE && section_ops(p, SECTION_UPDATE, NULL) > 0);
            compiled_close(&k);
        }
}

/* What lives where is what the sections themselves need; one more line of scalars. */
static void a_turn_takes_no_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(homes); i++) {
        compiled with, without;
        training t = {.preset = "test-llama", .precision = PRECISION_BF16, .accumulation = 2, .more = homes[i]};
        compile(&with, &t, OVERLAP_TRUE);
        compile(&without, &t, OVERLAP_FALSE);
        size_t line = with.r.plan.target.alignment; /* of the target: a step's scalars are no longer */
        assert_true(line >= sizeof(step_scalars));
        for (tier at = 0; at < TIER_COUNT; at++)
            assert_int_equal(with.p.planned[at], without.p.planned[at] + (at == TIER_DEVICE ? line : 0));
        assert_int_equal(with.p.peak_op, without.p.peak_op);
        assert_true(with.p.flops_per_step == without.p.flops_per_step);
        assert_true(with.p.flops_again == without.p.flops_again);
        assert_true(with.p.bytes_per_step == without.p.bytes_per_step);
        compiled_close(&with);
        compiled_close(&without);
    }
}

/* ---- who waits for whom ---------------------------------------------------------------------------------------------- */

typedef struct needs {
    uint32_t n[STREAM_COUNT]; /* ops of each stream that must be done, counted in the section */
} needs;

/* What each op needs, of all that it waits for and all that these wait for; and of its own stream itself. */
static needs *find_needs(const op *ops, size_t n_ops) {
    needs *all = mem_alloc((n_ops + 1) * sizeof *all);
    size_t *at[STREAM_COUNT], n[STREAM_COUNT] = {0};
    for (stream s = 0; s < STREAM_COUNT; s++) at[s] = mem_alloc((n_ops + 1) * sizeof *at[s]);
    for (size_t i = 0; i < n_ops; i++) {
        stream own = ops[i].stream;
        if (n[own]) all[i] = all[at[own][n[own] - 1]];
        for (stream s = 0; s < STREAM_COUNT; s++) {
            if (!ops[i].wait[s]) continue;
            const needs *of = &all[at[s][ops[i].wait[s] - 1]];
            for (stream k = 0; k < STREAM_COUNT; k++) all[i].n[k] = MAX(all[i].n[k], of->n[k]);
        }
        at[own][n[own]++] = i;
        all[i].n[own] = (uint32_t)n[own];
    }
    for (stream s = 0; s < STREAM_COUNT; s++) free(at[s]);
    return all;
}

/* States on the host: forward of layer l needs the updates of the embedding and of layers 0 to l, and no other. */
static void a_layer_waits_for_its_own_parameters(void **state) {
    (void)state;
    static const char *const params[] = {"memory.offload.params=none", "memory.offload.params=host"};
    for (size_t i = 0; i < ARRAY_LENGTH(params); i++) {
        compiled k;
        compile(&k,
                &(training){.preset = "test-qwen3",
                            .precision = PRECISION_BF16_SR,
                            .more = SETTINGS("memory.offload.states=host", "memory.bucket=256K", "model.layers=6",
                                             "memory.recompute=none", params[i])},
                OVERLAP_TRUE);
        const op *turn;
        size_t n_turn = section_ops(&k.p.program, SECTION_TURN, &turn), first = 0;
        needs *need = find_needs(turn, n_turn);
        uint32_t updates[8] = {0}, all = 0; /* that layer l needs */
        for (; turn[first].kind != OP_EMBED; first++) {
            if (turn[first].kind != OP_ADAMW) continue;
            all++;
            if (turn[first].layer >= 0) updates[turn[first].layer] = all;
            assert_true(turn[first].stream == STREAM_HOST);
        }
        int layers = 0;
        for (size_t o = first; o < n_turn && !op_is_loss_gradient(turn[o].kind); o++) {
            if (turn[o].kind == OP_ADAMW) fail_msg("an update behind the forward");
            if (turn[o].stream != STREAM_COMPUTE || turn[o].layer < 0) continue;
            int l = turn[o].layer;
            if (need[o].n[STREAM_HOST] > updates[l])
                fail_msg("%s of layer %d waits for %u of %u updates, %u are for it", op_name(turn[o].kind), l,
                         need[o].n[STREAM_HOST], all, updates[l]);
            if (turn[o].kind == OP_LINEAR) assert_true(l == 0 || need[o].n[STREAM_HOST] > updates[l - 1]);
            layers = MAX(layers, l + 1);
        }
        assert_int_equal(layers, 6);
        assert_true(updates[0] < all / 2 && updates[5] < all); /* behind the layers comes the last norm at least */
        free(need);
        compiled_close(&k);
    }
}

/* ---- where it acts ---------------------------------------------------------------------------------------------------- */

static bool has_turn(const training *t, bool discrete, overlap_wish wish, int stages) {
    config c;
    train_request r;
    plan p;
    training_must(training_request(t, &c, &r));
    r.plan.open = (plan_open){0};
    r.plan.choice.overlap_update = wish;
    r.plan.target.discrete = discrete;
    r.plan.mesh.size[AXIS_PIPELINE] = stages;
    training_must(plan_choose(&p, &r.plan));
    bool has = section_ops(&p.program, SECTION_TURN, NULL) > 0;
    assert_true(has == (p.step.turn_scalars != NO_VALUE));
    plan_close(&p);
    config_fini(&c);
    return has;
}

static void auto_acts_where_the_host_updates_for_a_device(void **state) {
    (void)state;
    training device = {.precision = PRECISION_BF16, .accumulation = 2}, host = device, nvme = device, half = device;
    host.more = SETTINGS("memory.offload.states=host");
    nvme.more = SETTINGS("memory.offload.states=nvme", "memory.nvme_path=.");
    half.more = host.more;
    half.precision = PRECISION_FP16;
    assert_true(has_turn(&host, true, OVERLAP_AUTO, 1));
    assert_true(has_turn(&nvme, true, OVERLAP_AUTO, 1));
    assert_false(has_turn(&device, true, OVERLAP_AUTO, 1));
    assert_false(has_turn(&host, false, OVERLAP_AUTO, 1)); /* the same cores */
    assert_false(has_turn(&half, true, OVERLAP_AUTO, 1));
    assert_false(has_turn(&host, true, OVERLAP_AUTO, 2));
    assert_false(has_turn(&host, true, OVERLAP_FALSE, 1));
    assert_true(has_turn(&host, false, OVERLAP_TRUE, 1));
    assert_true(has_turn(&device, false, OVERLAP_TRUE, 1));
}

static void refused(const training *t, int stages, const char *word) {
    config c;
    train_request r;
    plan p;
    training_must(training_request(t, &c, &r));
    r.plan.mesh.size[AXIS_PIPELINE] = stages;
    assert_int_equal(plan_choose(&p, &r.plan), ERR_INPUT);
    assert_non_null(strstr(error_message(), "memory.overlap_update: found true"));
    assert_non_null(strstr(error_message(), word));
    config_fini(&c);
}

static void what_cannot_overlap_is_refused(void **state) {
    (void)state;
    training t = {.accumulation = 2, .more = SETTINGS("memory.overlap_update=true", "memory.strategy=manual")};
    refused(&t, 2, "parallel.pipeline 2");
    t.precision = PRECISION_FP16;
    refused(&t, 1, "fp16");
}

/* ---- the time it takes ------------------------------------------------------------------------------------------------ */

/* Of three micro-batches of `rows` rows on an H200 with states on the host: the update apart, and beside the next forward. */
static void compile_apart_and_beside(const char *preset, int64_t rows, tier grads, hardware *h, plan *apart,
                                     plan *beside) {
    assert_int_equal(hardware_load(h, "h200"), OK);
    plan_request r = {.source = net_source_of(model_preset_find(preset)),
                      .choice.micro_batch = rows,
                      .choice.accumulation = 3,
                      .seq_len = 1024,
                      .choice.precision = PRECISION_BF16_SR,
                      .choice.offload = {.states = TIER_HOST, .grads = grads},
                      .choice.prefetch = 1,
                      .target = {.name = "test", .n_threads = 1, .alignment = 64, .discrete = true},
                      .hardware = h};
    assert_int_equal(plan_build(apart, &r), OK);
    r.choice.overlap_update = OVERLAP_AUTO;
    assert_int_equal(plan_build(beside, &r), OK);
}

static void the_forward_is_hidden_behind_the_update(void **state) {
    (void)state;
    hardware h;
    plan apart, beside;
    compile_apart_and_beside("qwen2.5-1.5b", 8, TIER_DEVICE, &h, &apart, &beside);
    const char *missing = NULL;
    double busy[STREAM_COUNT] = {0};
    double turn_s = cost_section(&beside.program, SECTION_TURN, &h, NULL, busy, &missing);
    assert_float_equal(beside.cost.step_s, 2 * beside.cost.micro_s + turn_s, 1e-9);
    assert_float_equal(beside.cost.micro_s, apart.cost.micro_s, 1e-9);
    double hidden = apart.cost.step_s - beside.cost.step_s;
    print_message("micro-batch %.1f ms, update %.1f ms, hidden %.1f ms\n", 1e3 * apart.cost.micro_s,
                  1e3 * apart.cost.update_s, 1e3 * hidden);
    /* The forward is a third of a micro-batch, and here shorter than the update; its last part waits for all of that. */
    assert_true(hidden > 0.2 * apart.cost.micro_s && hidden < 0.34 * apart.cost.micro_s);
    for (op_kind k = 0; k < OP_COUNT; k++) {
        assert_true(beside.cost.kinds[k].n == apart.cost.kinds[k].n);
        assert_float_equal(beside.cost.kinds[k].seconds, apart.cost.kinds[k].seconds, 1e-9);
    }
    assert_float_equal(beside.cost.busy_s[STREAM_COMPUTE], apart.cost.busy_s[STREAM_COMPUTE], 1e-9);
    assert_float_equal(beside.cost.busy_s[STREAM_HOST], apart.cost.busy_s[STREAM_HOST], 1e-9);
    plan_close(&apart);
    plan_close(&beside);
}

/* Of three micro-batches the first one's gradients are not added on the host, and not predicted to be. */
static void the_first_gradients_cost_the_host_nothing(void **state) {
    (void)state;
    hardware h;
    plan apart, beside;
    /* Untied: every gradient is finished when it leaves. */
    compile_apart_and_beside("qwen2.5-7b", 1, TIER_HOST, &h, &apart, &beside);
    assert_true(apart.cost.kinds[OP_ACCUMULATE].n > 0);
    for (op_kind k = 0; k < OP_COUNT; k++) {
        double share = k == OP_ACCUMULATE ? 2.0 / 3 : 1;
        assert_float_equal(beside.cost.kinds[k].n, share * apart.cost.kinds[k].n, 1e-6);
        assert_float_equal(beside.cost.kinds[k].seconds, share * apart.cost.kinds[k].seconds, 1e-9);
    }
    plan_close(&apart);
    plan_close(&beside);
}

/* A model so small that its launches are all it takes looks faster with its update elsewhere. What fits stays all the same,
 * compared or not. */
static void nothing_moves_for_its_sake(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h200"), OK);
    for (int compare = 0; compare < 2; compare++) {
        config c;
        train_request r;
        plan p;
        training_must(training_request(&(training){.preset = "test-llama", .seq_len = 32}, &c, &r));
        r.plan.choice.overlap_update = OVERLAP_AUTO;
        r.plan.target.discrete = true;
        r.plan.hardware = &h;
        r.plan.compare = compare;
        training_must(plan_choose(&p, &r.plan));
        assert_false(offload_any(&p.request.choice.offload));
        assert_true(p.step.turn_scalars == NO_VALUE);
        bool any = false; /* that looks faster: else this proves nothing */
        for (size_t i = 1; i < p.n_candidates; i++) any |= p.candidates[i].step_s < 0.99 * p.cost.step_s;
        assert_true(any == (compare == 1));
        plan_close(&p);
        config_fini(&c);
    }
}

/* ---- runs ------------------------------------------------------------------------------------------------------------- */

enum { STEPS = 9 };

typedef struct notes {
    int64_t stop_after;
    double loss[STEPS + 1], eval_loss[STEPS + 1];
} notes;
static void note_step(void *context, const train_step_report *r) {
    notes *n = context;
    n->loss[r->step] = r->loss;
    if (r->step == n->stop_after) train_interrupt();
}
static void note_eval(void *context, const train_eval_report *r) { ((notes *)context)->eval_loss[r->step] = r->loss; }

static status run(const training *like, const char *overlap, const char *const *more, notes *n, train_result *out) {
    const char *settings[SETTINGS_MOST];
    settings_join(settings, SETTINGS(overlap), more);
    train_observer o = {.context = n, .on_step = note_step, .on_eval = note_eval};
    training t = *like;
    t.more = settings;
    t.observer = &o;
    return training_run(&t, out);
}

#define APART "memory.overlap_update=false"
#define BESIDE "memory.overlap_update=true"

/* Every loss too: each is read from its own step, not from the micro-batch that ran beside it. */
static void check_same(const notes *a, const notes *b, const train_result *x, const train_result *y) {
    assert_true(memcmp(a->loss, b->loss, sizeof a->loss) == 0);
    assert_true(memcmp(a->eval_loss, b->eval_loss, sizeof a->eval_loss) == 0);
    assert_true(x->param_hash == y->param_hash && x->tokens == y->tokens && x->last_loss == y->last_loss);
}

/* What looks at a run between two steps finds it as ever: evaluations, checkpoints, both, neither. */
static void pauses_change_nothing(void **state) {
    (void)state;
    const char *const *const pauses[] = {
        SETTINGS("memory.offload.states=host"),
        SETTINGS("memory.offload.states=host", "train.eval_rows=4", "train.eval_every=2"),
        SETTINGS("memory.offload.states=host", "train.save_every=3"),
        SETTINGS("memory.offload.grads=host", "train.eval_rows=4", "train.eval_every=4", "train.save_every=1"),
    };
    static const int64_t evaluations[] = {0, 4, 0, 2};
    for (size_t i = 0; i < ARRAY_LENGTH(pauses); i++)
        for (int64_t accumulation = 1; accumulation <= 3; accumulation += 2) {
            notes apart = {0}, beside = {0};
            train_result x, y;
            char *dir = training_dir();
            training t = {.preset = "test-qwen3",
                          .precision = i % 2 ? PRECISION_FP8_SR : PRECISION_BF16_SR,
                          .accumulation = accumulation,
                          .steps = STEPS};
            training_must(run(&t, APART, pauses[i], &apart, &x));
            t.dir = dir;
            training_must(run(&t, BESIDE, pauses[i], &beside, &y));
            check_same(&apart, &beside, &x, &y);
            int64_t n_evaluations = 0;
            for (int s = 1; s < STEPS; s++) n_evaluations += beside.eval_loss[s] != 0;
            assert_int_equal(n_evaluations, evaluations[i]);
            training_dir_remove(dir);
        }
}

/* Each turn is one run of a section in the place of two; the first step begins by itself, the last has none behind it. */
static void every_step_but_the_last_turns(void **state) {
    (void)state;
    for (int64_t accumulation = 1; accumulation <= 3; accumulation++) {
        notes n = {0};
        train_result apart, beside;
        training t = {.accumulation = accumulation, .steps = STEPS};
        const char *const *more = SETTINGS("memory.offload.states=host");
        training_must(run(&t, APART, more, &n, &apart));
        training_must(run(&t, BESIDE, more, &n, &beside));
        assert_int_equal(apart.memory.n_runs - beside.memory.n_runs, STEPS - 1);
        assert_true(apart.param_hash == beside.param_hash);
    }
}

/* A stop comes when the next micro-batch has run already: it is left out, and the resumed run computes it again. */
static void a_stop_behind_a_turn_loses_nothing(void **state) {
    (void)state;
    const char *const *more = SETTINGS("memory.offload.states=host", "memory.recompute=full");
    for (int64_t accumulation = 1; accumulation <= 2; accumulation++) {
        notes whole = {0}, parts = {0};
        train_result x, y;
        char *dir = training_dir();
        training t = {
            .preset = "test-llama", .precision = PRECISION_BF16, .accumulation = accumulation, .steps = STEPS};
        training_must(run(&t, APART, more, &whole, &x));
        t.dir = dir;
        t.resume = "auto";
        for (parts.stop_after = 2; parts.stop_after < STEPS; parts.stop_after += 3)
            assert_int_equal(run(&t, BESIDE, more, &parts, &y), ERR_INTERRUPTED);
        training_must(run(&t, BESIDE, more, &parts, &y));
        check_same(&whole, &parts, &x, &y);
        training_dir_remove(dir);
    }
}

/* The caller of a trainer may do what it likes between two steps, whatever the plan has. */
static void a_trainer_in_other_hands_does_not_turn(void **state) {
    (void)state;
    notes n = {0};
    train_result apart;
    const char *const settings[] = {"memory.offload.states=host", "train.eval_rows=4", BESIDE, NULL};
    training t = {.precision = PRECISION_BF16_SR, .steps = STEPS, .more = settings};
    training_must(run(&t, APART, SETTINGS("memory.offload.states=host", "train.eval_rows=4"), &n, &apart));
    compiled k;
    compile(&k, &t, OVERLAP_TRUE);
    dataset *d;
    trainer *own;
    training_must(dataset_open(&d, &k.r.data));
    training_must(trainer_open(&own, &k.r, &k.p, d, NULL));
    for (int64_t s = 1; s <= STEPS; s++) {
        train_step_report report;
        train_eval_report eval;
        training_must(trainer_step(own, &report));
        assert_true(report.loss == n.loss[s]);
        training_must(trainer_evaluate(own, &eval)); /* writes over the tokens of whatever ran before */
    }
    uint64_t hash;
    training_must(trainer_param_hash(own, &hash));
    assert_true(hash == apart.param_hash);
    trainer_close(own);
    dataset_close(d);
    compiled_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_repeats_update_prepare_and_micro),
        cmocka_unit_test(a_turn_takes_no_memory),
        cmocka_unit_test(a_layer_waits_for_its_own_parameters),
        cmocka_unit_test(auto_acts_where_the_host_updates_for_a_device),
        cmocka_unit_test(what_cannot_overlap_is_refused),
        cmocka_unit_test(the_forward_is_hidden_behind_the_update),
        cmocka_unit_test(the_first_gradients_cost_the_host_nothing),
        cmocka_unit_test(nothing_moves_for_its_sake),
        cmocka_unit_test(pauses_change_nothing),
        cmocka_unit_test(every_step_but_the_last_turns),
        cmocka_unit_test(a_stop_behind_a_turn_loses_nothing),
        cmocka_unit_test(a_trainer_in_other_hands_does_not_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
