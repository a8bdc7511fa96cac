/* test_keep.c - states of the first layers stay on the device while those of the others live on host or nvme: where AdamW
 * runs then, what that costs in bytes, that no bit changes, also across a resume, and that a plan keeps as many as fit. */
#include "model/model.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

enum { LAYERS = 4 };

typedef struct setting_text {
    char text[64];
} setting_text;

static setting_text keep(int64_t n) {
    setting_text s;
    snprintf(s.text, sizeof s.text, "memory.offload.keep_states=%lld", (long long)n);
    return s;
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Every AdamW, and all that it keeps, is where its layer says; how many run on the device. */
static int check_places(const plan *p, int64_t kept, tier home) {
    const program *g = &p->program;
    int n_device = 0;
    for (size_t i = 0; i < g->n_ops; i++) {
        const op *o = &g->ops[i];
        if (o->kind != OP_ADAMW) continue;
        bool stays = o->layer >= 0 && o->layer < kept;
        assert_int_equal(o->at, stays ? TIER_DEVICE : TIER_HOST);
        n_device += stays;
    }
    for (value_id v = 1; v < g->n_values; v++) {
        const value *a = &g->values[v];
        if (a->role != ROLE_STATE || !a->persistent || a->view_of) continue;
        assert_int_equal(a->tier, a->layer >= 0 && a->layer < kept ? TIER_DEVICE : home);
    }
    return n_device;
}

static void the_first_layers_are_updated_on_the_device(void **state) {
    (void)state;
    static const char *const homes[] = {"memory.offload.states=host", "memory.offload.states=nvme"};
    static const char *const formats[] = {"memory.states=fp32", "memory.states=int8"};
    for (size_t h = 0; h < ARRAY_LENGTH(homes); h++)
        for (size_t f = 0; f < ARRAY_LENGTH(formats); f++)
            for (int64_t n = 0; n <= LAYERS + 1; n++) {
                compiled k;
                setting_text kept = keep(n);
                compiled_open(&k, &(training){.preset = "test-qwen3",
                                              .precision = PRECISION_BF16,
                                              .more = SETTINGS("model.layers=4", "memory.strategy=manual", homes[h],
                                                               formats[f], kept.text, "memory.nvme_path=.")});
                int on_device = check_places(&k.p, n, h ? TIER_NVME : TIER_HOST);
                assert_true(on_device >= MIN(n, LAYERS) * 4 && (on_device == 0) == (n == 0));
                compiled_close(&k);
            }
}

/* A rank's part of a layer's states belongs to that layer. */
static void parts_of_ranks_follow_their_layer(void **state) {
    (void)state;
    for (int zero = 0; zero <= 3; zero++)
        for (int rank = 0; rank < 2; rank++) {
            compiled k;
            training t = {.preset = "test-llama",
                          .precision = PRECISION_BF16,
                          .more = SETTINGS("model.layers=4", "memory.strategy=manual", "memory.offload.states=host",
                                           "memory.offload.keep_states=2", "parallel.reduce_bucket=64K")};
            compiled_request(&k, &t);
            k.r.plan.choice.shard.zero = zero;
            k.r.plan.mesh.size[AXIS_DATA] = 2;
            mesh_set_rank(&k.r.plan.mesh, rank);
            compiled_plan(&k);
            assert_true(check_places(&k.p, 2, TIER_HOST) > 0);
            compiled_close(&k);
        }
}

/* What a layer keeps it keeps whole: m, v and the master in fp32, a line of the device for each. */
static void a_kept_layer_moves_its_bytes_to_the_device(void **state) {
    (void)state;
    uint64_t states[LAYERS + 2], host[LAYERS + 2], device[LAYERS + 2];
    for (int64_t n = 0; n <= LAYERS + 1; n++) {
        compiled k;
        setting_text kept = keep(n);
        compiled_open(&k, &(training){.precision = PRECISION_BF16,
                                      .more = SETTINGS("model.layers=4", "memory.strategy=manual",
                                                       "memory.offload.states=host", kept.text)});
        states[n] = k.p.by_role[ROLE_STATE];
        host[n] = k.p.planned[TIER_HOST];
        device[n] = k.p.planned[TIER_DEVICE];
        uint64_t layer = 0;
        for (size_t i = 0; i < k.p.net.n_params; i++)
            if (str_starts_with(k.p.net.params[i].name, "layers.0."))
                layer += 3 * sizeof(float) * (uint64_t)shape_count(&k.p.net.params[i].shape);
        assert_int_equal(states[n], (uint64_t)MIN(n, LAYERS) * layer);
        if (n >= 1 && n <= LAYERS) assert_true(host[n] < host[n - 1] && device[n] > device[n - 1]);
        compiled_close(&k);
    }
    assert_true(states[LAYERS + 1] == states[LAYERS] && host[LAYERS + 1] == host[LAYERS]);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* m, v and what they are next to, in places and in formats. */
static const char *const *const homes[] = {
    SETTINGS("memory.offload.states=host"),
    SETTINGS("memory.offload.states=nvme", "memory.bucket=256K"),
    SETTINGS("memory.offload.states=host", "memory.offload.grads=host", "memory.prefetch=2"),
    SETTINGS("memory.offload.states=host", "memory.offload.params=host", "memory.recompute=full"),
    SETTINGS("memory.offload.states=nvme", "memory.offload.params=nvme", "memory.offload.grads=host",
             "memory.offload.activations=host"),
    SETTINGS("memory.offload.states=host", "memory.overlap_update=true"),
    SETTINGS("memory.offload.states=host", "memory.offload.grads=host", "memory.offload.params=host",
             "memory.overlap_update=true"),
};
static const struct {
    precision precision;
    const char *states;
} numbers[] = {{PRECISION_FP32, "memory.states=fp32"},
               {PRECISION_BF16, "memory.states=bf16"},
               {PRECISION_BF16_SR, "memory.states=bf16"},
               {PRECISION_BF16, "memory.states=int8"}};

static void run(training t, const char *const *more, const char *format, int64_t kept, const char *path,
                train_result *out) {
    const char *settings[SETTINGS_MOST];
    setting_text k = keep(kept);
    settings_join(settings, SETTINGS("model.layers=4", "memory.strategy=manual", format, path, more ? k.text : NULL),
                  more);
    t.more = settings;
    training_must(training_run(&t, out));
    training_as_planned(out, k.text);
}

static void whatever_stays_the_bits_are_the_same(void **state) {
    (void)state;
    static const int64_t kept[] = {0, 1, LAYERS / 2, LAYERS};
    char *dir = training_dir(), path[600];
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    int n = 0;
    for (size_t q = 0; q < ARRAY_LENGTH(numbers); q++)
        for (int64_t accumulation = 1; accumulation <= 3; accumulation += 2) {
            training t = {.precision = numbers[q].precision, .accumulation = accumulation, .steps = 3};
            train_result plain, r;
            run(t, NULL, numbers[q].states, 0, path, &plain);
            for (size_t h = 0; h < ARRAY_LENGTH(homes); h++)
                for (size_t k = 0; k < ARRAY_LENGTH(kept); k++) {
                    if (SANITIZED && (q + h + k) % 3) continue;
                    run(t, homes[h], numbers[q].states, kept[k], path, &r);
                    n++;
                    if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss)
                        fail_msg("%s %s accumulation %lld homes %zu keep %lld: other bits", precision_name(t.precision),
                                 numbers[q].states, (long long)accumulation, h, (long long)kept[k]);
                }
        }
    print_message("%d ways: equal bits, planned == used in every tier\n", n);
    training_dir_remove(dir);
}

/* Checkpoints name states, not places. */
static void a_run_may_go_on_with_other_layers_kept(void **state) {
    (void)state;
    static const int64_t kept[] = {1, LAYERS, 0, 3};
    enum { PART = 2, STEPS = PART * ARRAY_LENGTH(kept) };
    for (size_t q = 0; q < ARRAY_LENGTH(numbers); q++) {
        char *dir = training_dir();
        train_result whole, r;
        training t = {.preset = "test-qwen3", .precision = numbers[q].precision, .steps = STEPS};
        const char *const *away = SETTINGS("memory.offload.states=host", "train.schedule=constant");
        run(t, away, numbers[q].states, 2, "memory.prefetch=1", &whole);
        t.dir = dir;
        t.resume = "auto";
        for (size_t i = 0; i < ARRAY_LENGTH(kept); i++) {
            t.steps = (int64_t)(i + 1) * PART;
            run(t, away, numbers[q].states, kept[i], "memory.prefetch=1", &r);
            assert_int_equal(r.steps, t.steps);
            assert_true((r.param_hash == whole.param_hash) == (i + 1 == ARRAY_LENGTH(kept)));
        }
        training_dir_remove(dir);
    }
}

/* ---- the plan's own choice ------------------------------------------------------------------------------------------ */

static plan_request of_a_gpu(const hardware *h) {
    return (plan_request){.source = net_source_of(model_preset_find("qwen2.5-1.5b")),
                          .choice.micro_batch = 4,
                          .choice.accumulation = 2,
                          .seq_len = 1024,
                          .choice.precision = PRECISION_BF16_SR,
                          .choice.prefetch = 1,
                          .choice.overlap_update = OVERLAP_AUTO,
                          .target = {.name = "test", .n_threads = 1, .alignment = 256, .discrete = true},
                          .hardware = h};
}

static plan_candidate numbers_of(const plan_request *r) {
    plan p;
    training_must(plan_choose(&p, r));
    plan_candidate c = plan_chosen(&p);
    memcpy(c.planned, p.planned, sizeof c.planned);
    c.step_s = p.cost.step_s;
    c.fits = plan_fits(&p);
    plan_close(&p);
    return c;
}

static plan_candidate by_hand(plan_request r, int64_t kept) {
    r.open = (plan_open){0};
    r.choice.offload.states = TIER_HOST;
    r.choice.keep_states = kept;
    return numbers_of(&r);
}

static void as_many_layers_are_kept_as_fit(void **state) {
    (void)state;
    hardware h;
    training_must(hardware_load(&h, "h200"));
    plan_request r = of_a_gpu(&h);
    uint64_t most = numbers_of(&r).planned[TIER_DEVICE];
    plan_candidate none = by_hand(r, 0);
    r.open = (plan_open){.states = true, .keep_states = true};
    for (int part = 1; part <= 3; part++) {
        uint64_t least = none.planned[TIER_DEVICE];
        r.device_limit = least + (uint64_t)part * (most - least) / 4;
        plan_candidate c = numbers_of(&r), more = by_hand(r, c.choice.keep_states + 1);
        int64_t kept = c.choice.keep_states;
        print_message("%d/4 of the room: %lld of %lld layers, %.0f ms; none %.0f ms\n", part, (long long)kept,
                      (long long)r.source.n_layers, 1e3 * c.step_s, 1e3 * none.step_s);
        assert_true(c.fits && c.choice.offload.states == TIER_HOST && kept > 0 && kept < r.source.n_layers);
        assert_false(more.fits);
        assert_true(c.step_s < none.step_s);
        plan_candidate same = by_hand(r, kept); /* as chosen, so by hand */
        assert_true(same.planned[TIER_DEVICE] == c.planned[TIER_DEVICE] && same.step_s == c.step_s);
    }
    /* A host that has no room for all of them: both memories are filled. */
    r.host_limit = none.planned[TIER_HOST] / 2;
    plan_candidate both = numbers_of(&r);
    assert_true(both.fits && both.choice.offload.states == TIER_HOST && both.choice.keep_states > 0);
    r.device_limit = most;
    plan_candidate c = numbers_of(&r);
    assert_true(c.fits && c.choice.offload.states == TIER_DEVICE && c.choice.keep_states == 0);
}

/* Where they are asked for elsewhere nothing is kept unasked; a number by hand wins. Where gradients live on the host
 * by hand, an update on the device brings them back: states stay only if that is still predicted to be faster. */
static void what_is_given_by_hand_wins(void **state) {
    (void)state;
    hardware h;
    training_must(hardware_load(&h, "h200"));
    plan_request r = of_a_gpu(&h);
    r.open = (plan_open){.states = true};
    r.choice.keep_states = 3;
    r.device_limit = numbers_of(&r).planned[TIER_DEVICE] - 1;
    plan_candidate c = numbers_of(&r);
    assert_true(c.choice.offload.states == TIER_HOST && c.choice.keep_states == 3);
    r.choice.keep_states = 0;
    r.choice.offload.grads = TIER_HOST;
    r.device_limit = 0;
    r.device_limit = numbers_of(&r).planned[TIER_DEVICE] - 1; /* room for all states but one */
    r.open.keep_states = true;
    c = numbers_of(&r);
    assert_true(c.fits && c.choice.offload.states == TIER_HOST && c.choice.offload.grads == TIER_HOST);
    assert_true(c.step_s <= by_hand(r, 0).step_s);
    static const char *const given[] = {"memory.offload.states=host", "memory.offload.keep_states=0", "train.seed=1"};
    for (size_t i = 0; i < ARRAY_LENGTH(given); i++) {
        config s;
        train_request q;
        training_must(training_request(&(training){.more = SETTINGS(given[i])}, &s, &q));
        assert_int_equal(q.plan.open.keep_states, i == 2); /* nothing is said of states */
        config_fini(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_layers_are_updated_on_the_device),
        cmocka_unit_test(parts_of_ranks_follow_their_layer),
        cmocka_unit_test(a_kept_layer_moves_its_bytes_to_the_device),
        cmocka_unit_test(whatever_stays_the_bits_are_the_same),
        cmocka_unit_test(a_run_may_go_on_with_other_layers_kept),
        cmocka_unit_test(as_many_layers_are_kept_as_fit),
        cmocka_unit_test(what_is_given_by_hand_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
