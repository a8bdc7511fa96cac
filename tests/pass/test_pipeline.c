/* test_pipeline.c - a pipeline without running it: the order of all stages played through with messages that wait for both
 * sides, micro-batches in flight, the cut of the layers, and the program of every stage. */
#include "change_model.h"
#include "comm/comm.h"
#include "pass/pipeline.h"
#include "plan/plan.h"
#include "programs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

/* ---- the order ---------------------------------------------------------------------------------------------------------- */

/* Where a message of a job goes to, or comes from. */
static int other_stage(const pipeline_shape *s, const pipeline_entry *e) {
    int last = s->n_stages - 1, chunk = e->job.chunk;
    bool sends = e->act == ACT_SEND;
    switch (e->job.kind) {
    case JOB_FORWARD: return (sends ? chunk + 1 : chunk - 1 + s->n_stages) % s->n_stages;
    case JOB_LOSS: return (chunk - 1) % s->n_stages; /* comes from there, goes back there */
    case JOB_BACKWARD: return sends && chunk == 0 ? last : (sends ? chunk - 1 : chunk + 1) % s->n_stages;
    default: return 0;
    }
}

typedef struct stage_list {
    pipeline_entry *entries;
    size_t n, next;
} stage_list;

/* Does the message that one is about to send be the one that the other is about to take? */
static bool meet(const pipeline_shape *s, const stage_list *lists, int from) {
    const stage_list *a = &lists[from];
    if (a->next == a->n || a->entries[a->next].act != ACT_SEND) return false;
    const pipeline_entry *sent = &a->entries[a->next];
    int to = other_stage(s, sent);
    const stage_list *b = &lists[to];
    if (b->next == b->n || b->entries[b->next].act != ACT_RECV) return false;
    const pipeline_entry *taken = &b->entries[b->next];
    return other_stage(s, taken) == from && taken->id == sent->id && taken->micro == sent->micro;
}

/* The strictest reading: nothing overlaps, and a message takes both sides at once. */
static void play(const pipeline_shape *s) {
    stage_list *lists = mem_alloc((size_t)s->n_stages * sizeof *lists);
    for (int i = 0; i < s->n_stages; i++) lists[i].entries = pipeline_order(s, i, &lists[i].n);
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < s->n_stages; i++) {
            stage_list *l = &lists[i];
            for (; l->next < l->n && l->entries[l->next].act == ACT_RUN; l->next++) any = true;
            if (!meet(s, lists, i)) continue;
            lists[other_stage(s, &l->entries[l->next])].next++;
            l->next++;
            any = true;
        }
    }
    for (int i = 0; i < s->n_stages; i++) {
        if (lists[i].next < lists[i].n)
            fail_msg("%d stages, %d chunks, %lld micro-batches: stage %d stops at entry %zu of %zu", s->n_stages,
                     s->n_chunks, (long long)s->n_micros, i, lists[i].next, lists[i].n);
        free(lists[i].entries);
    }
    free(lists);
}

/* Each job once for every micro-batch, in their order, a backward behind its forward; at most as many in between as promised. */
static void check_list(const pipeline_shape *s, int stage) {
    size_t n, n_runs = 0;
    pipeline_job jobs[64];
    int n_jobs = pipeline_jobs(s, stage, jobs);
    pipeline_entry *list = pipeline_order(s, stage, &n);
    int64_t *next = mem_alloc(4 * (size_t)s->n_chunks * sizeof *next), in_flight = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        const pipeline_entry *e = &list[i];
        if (e->act != ACT_RUN) continue;
        n_runs++;
        assert_int_equal(next[(int)e->job.kind * s->n_chunks + e->job.chunk]++, e->micro);
        in_flight += e->job.kind == JOB_FORWARD;
        most = MAX(most, in_flight + (e->job.kind == JOB_LOSS));
        in_flight -= e->job.kind == JOB_BACKWARD;
        assert_true(in_flight >= 0);
        if (e->job.kind == JOB_BACKWARD) assert_true(next[JOB_FORWARD * s->n_chunks + e->job.chunk] > e->micro);
    }
    assert_int_equal(n_runs, (size_t)n_jobs * (size_t)s->n_micros);
    if (s->n_chunks == s->n_stages) assert_int_equal(most, MIN(s->n_micros, s->n_stages - stage));
    free(next);
    free(list);
}

static void no_order_stops(void **state) {
    (void)state;
    for (int stages = 2; stages <= 8; stages++)
        for (int v = 1; v <= 3; v++)
            for (int64_t micros = 1; micros <= 24; micros++)
                for (int tied = 0; tied <= 1; tied++) {
                    if (v > 1 && micros % stages) continue;
                    pipeline_shape s = {stages, stages * v, micros, tied};
                    play(&s);
                    for (int i = 0; i < stages; i++) check_list(&s, i);
                }
}

/* ---- the cut of the layers ------------------------------------------------------------------------------------------------ */

static void layers_are_cut_by_cost(void **state) {
    (void)state;
    int64_t first[9];
    model_config c = *model_preset_find("llama3-8b"); /* the head is 2.4 layers and 10 % of attention less */
    model_stages_cut(&c, 8192, 4, first);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[4], c.n_layers);
    int64_t last = first[4] - first[3];
    assert_in_range(last, 6, 7);
    for (int k = 0; k < 3; k++) assert_in_range(first[k + 1] - first[k], 8, 9);
    c.vocab = 256; /* and without it they are equal */
    model_stages_cut(&c, 8192, 8, first);
    for (int k = 0; k < 8; k++) assert_int_equal(first[k + 1] - first[k], 4);
    c.vocab = 1 << 24; /* a head that is worth more than all layers is all that the last stage has */
    model_stages_cut(&c, 16, 4, first);
    assert_int_equal(first[4] - first[3], 0);
    assert_true(model_stages_slowest(&c, 16, 4, 4, 3) == 1);
    assert_true(model_stages_slowest(&c, 16, 4, 4, 0) > 3);
    assert_int_equal(model_stages_check(&c, 33, 1), ERR_INPUT);
    assert_int_equal(model_stages_check(&c, 1, 2), ERR_INPUT);
    assert_int_equal(model_stages_check(&c, 16, 2), OK);
}

/* A layer that sees all keys of a long row costs as much as many with a window, and so does the stage that has it. */
static void stages_weigh_each_layer_by_its_kind(void **state) {
    (void)state;
    static const int64_t expected[] = {0, 3, 4, 7, 8};
    int64_t first[5];
    model_config c = *model_preset_find("gemma-3-1b");
    c.vocab = 256, c.n_layers = 8, c.full_every = 4; /* layers 3 and 7 see all */
    assert_int_equal(model_period(&c), 4);
    model_stages_cut(&c, 1 << 20, 4, first);
    assert_memory_equal(first, expected, sizeof first);
    assert_true(model_stages_slowest(&c, 1 << 20, 4, 4, 1) < 1.001);
    assert_true(model_stages_slowest(&c, 1 << 20, 4, 4, 0) > 5);
    c.window_from = 3, c.full_every = 0; /* the layers do not repeat */
    assert_int_equal(model_period(&c), 8);
    c.window = 0;
    assert_int_equal(model_period(&c), 1);
    model_stages_cut(&c, 1 << 20, 4, first);
    for (int k = 0; k < 4; k++) assert_int_equal(first[k], 2 * k);
}

/* ---- the programs of all stages --------------------------------------------------------------------------------------------- */

static plan_request request(const char *preset, int n_stages, int stage, int virtual_stages) {
    plan_request r = {.source = net_source_of(model_preset_find(preset)),
                      .choice.micro_batch = 2,
                      .choice.accumulation = 8,
                      .seq_len = 16,
                      .verify = true,
                      .with_eval = true,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .mesh = {.size[AXIS_PIPELINE] = n_stages, .index[AXIS_PIPELINE] = stage},
                      .virtual_stages = virtual_stages,
                      .choice.shard = {.overlap = true, .prefetch = 1},
                      .target = {.name = "test", .n_threads = 1, .alignment = 64, .comm_bytes = comm_work_bytes}};
    CHANGE_MODEL(r.source, c.n_layers = 8);
    return r;
}

/* Every parameter is trained at one stage, gets its bytes there, and a tied table is copied once. */
static void stages_make_up_the_model(void **state) {
    (void)state;
    static const char *const presets[] = {"test-gpt2", "test-llama", "test-qwen3"};
    for (size_t k = 0; k < ARRAY_LENGTH(presets); k++)
        for (int v = 1; v <= 2; v++) {
            uint64_t trained = 0, held = 0;
            plan_request r = request(presets[k], 4, 0, v);
            for (int i = 0; i < 4; i++) {
                plan p;
                r.mesh.index[AXIS_PIPELINE] = i;
                plan_must(&p, &r);
                assert_int_equal(plan_micro_runs(&p), 1);
                for (size_t j = 0; j < p.net.n_params; j++) {
                    held += (uint64_t)p.step.held[j].n;
                    trained += (uint64_t)p.step.updated[j].n;
                }
                plan_close(&p);
            }
            uint64_t n = model_param_count(model_of(&r.source)), table = (uint64_t)(r.source.vocab * r.source.hidden);
            assert_int_equal(trained, n);
            assert_int_equal(held, n + (r.source.tied ? table : 0));
        }
}

static uint64_t forward_values_at_peak(const plan_request *r, const char *name) {
    plan p;
    plan_must(&p, r);
    uint64_t n = 0;
    for (size_t i = 0; i < p.n_at_peak; i++) {
        const char *own = p.program.values[p.at_peak[i]].name;
        if (str_ends_with(own, name) && !strstr(own, "d.layers")) n++;
    }
    plan_close(&p);
    return n;
}

/* At the peak of stage s there are the activations of S - s micro-batches, however many a step has. */
static void micro_batches_in_flight(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        char name[64];
        plan_request r = request("test-llama", 4, i, 1);
        r.source.vocab = 256; /* a small head: the cut is even and the peak is in the layers */
        int64_t first[5];
        model_stages_cut(model_of(&r.source), r.seq_len, 4, first);
        snprintf(name, sizeof name, "layers.%lld.attn.y", (long long)first[i]);
        uint64_t n = forward_values_at_peak(&r, name);
        r.choice.accumulation = 16;
        assert_int_equal(forward_values_at_peak(&r, name), n);
        assert_int_equal(n, 4 - i);
    }
}

static void bubble_is_what_the_formula_says(void **state) {
    (void)state;
    plan_request r = request("test-llama", 4, 0, 1);
    assert_true(fabs(plan_bubble(&r) - 3.0 / 11) < 1e-12);
    r.virtual_stages = 2;
    assert_true(fabs(plan_bubble(&r) - 3.0 / 19) < 1e-12);
    r.mesh.size[AXIS_PIPELINE] = 1;
    r.virtual_stages = 1;
    assert_true(plan_bubble(&r) == 0);
}

/* Messages of one stage are the messages of its neighbours. */
static void what_is_sent_is_received(void **state) {
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        int64_t sent[2] = {0}, received[2] = {0};
        for (int i = 0; i < 2; i++) {
            plan p;
            plan_request r = request("test-gpt2", 2, i, 2);
            r.mesh.size[AXIS_DATA] = 2;
            r.choice.shard.zero = zero;
            r.choice.recompute.kind = RECOMPUTE_FULL;
            plan_must(&p, &r);
            for (size_t k = 0; k < p.program.n_ops; k++) {
                const op *o = &p.program.ops[k];
                if (o->kind == OP_SEND) sent[i] += (int64_t)value_bytes(program_get(&p.program, o->in[SEND_X]));
                if (o->kind == OP_RECV) received[i] += (int64_t)value_bytes(program_get(&p.program, o->out[RECV_Y]));
            }
            plan_close(&p);
        }
        assert_int_equal(sent[0], received[1]);
        assert_int_equal(sent[1], received[0]);
        assert_true(sent[0] > 0);
    }
}

static void what_makes_no_sense_is_refused(void **state) {
    (void)state;
    plan p;
    plan_request r = request("test-llama", 4, 0, 2);
    r.choice.accumulation = 6; /* no multiple of the stages */
    assert_int_equal(plan_build(&p, &r), ERR_INPUT);
    assert_non_null(strstr(error_message(), "multiple of the 4 stages"));
    error_clear();
    r = request("test-llama", 4, 0, 3); /* 12 chunks of 8 layers */
    assert_int_equal(plan_build(&p, &r), ERR_INPUT);
    assert_non_null(strstr(error_message(), "too few for 4 stages of 3"));
    error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_stops),
        cmocka_unit_test(layers_are_cut_by_cost),
        cmocka_unit_test(stages_weigh_each_layer_by_its_kind),
        cmocka_unit_test(stages_make_up_the_model),
        cmocka_unit_test(micro_batches_in_flight),
        cmocka_unit_test(bubble_is_what_the_formula_says),
        cmocka_unit_test(what_is_sent_is_received),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
