/* test_world.c - the tables for ranks that are not here: counted from shapes, against numbers counted another way. */
#include "plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#define P7B 6738415616ull /* parameters of llama2-7b */

/* Blocks of the norm in a layer of llama2-7b, in its embedding and in its head, filled up for n ranks; in elements. */
static uint64_t filled(uint64_t blocks, uint64_t n) { return (blocks + n - 1) / n * n * NORM_BLOCK; }
#define LAYER (4ull * 4096 * 4096 / NORM_BLOCK + 3ull * 4096 * 11008 / NORM_BLOCK + 2 * 4096 / NORM_BLOCK)
#define EMBEDDING (32000ull * 4096 / NORM_BLOCK)
#define HEAD (EMBEDDING + 4096 / NORM_BLOCK)
static uint64_t filled_7b(uint64_t n) { return 32 * filled(LAYER, n) + filled(EMBEDDING, n) + filled(HEAD, n); }

static plan_request request(const char *preset, precision precision, int64_t batch, int64_t accumulation,
                            int64_t seq_len) {
    return (plan_request){.model = *model_preset_find(preset),
                          .micro_batch = batch,
                          .accumulation = accumulation,
                          .seq_len = seq_len,
                          .precision = precision,
                          .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                          .shard = {.overlap = true, .prefetch = 1},
                          .target = {.name = "test", .n_threads = 1, .alignment = 64}};
}

static plan_world compiled(plan_request r, int n_ranks) {
    plan_world w;
    assert_int_equal(plan_world_compile(&w, &r, n_ranks), OK);
    return w;
}

/* 18 bytes per parameter: 2 of bf16, 4 of gradient, 12 of master, m and v. What is sent in buckets is filled up. */
static void sharding_of_7b_on_4_ranks(void **state) {
    (void)state;
    plan_world w = compiled(request("llama2-7b", PRECISION_BF16, 1, 1, 1024), 4);
    uint64_t F = filled_7b(4);
    const uint64_t params[] = {2 * P7B, 2 * F, 2 * F, 2 * F / 4}, grads[] = {4 * F, 4 * F, F, F};
    static const double textbook_7e9[] = {98, 56, 35, 24.5}; /* GB for 7e9 parameters, as papers print it */
    assert_true(F > P7B && F - P7B < P7B / 100000);
    for (int i = 0; i < WORLD_STAGES; i++) {
        const plan_world_stage *s = &w.stages[i];
        assert_int_equal(s->bytes.params, params[i]);
        assert_int_equal(s->bytes.grads, grads[i]);
        if (i == 0) assert_int_equal(s->bytes.states, 12 * P7B);
        else assert_true(s->bytes.states <= 3 * F && s->bytes.states >= 3 * P7B); /* the fullest rank */
        assert_int_equal(s->bytes.total,
                         params[i] + grads[i] + s->bytes.states + s->bytes.window + s->bytes.activations);
        assert_float_equal((double)s->textbook * 7e9 / (double)P7B * 1e-9, textbook_7e9[i], 1e-9);
        assert_true(isnan(s->comm_s)); /* no machine, no time */
    }
    /* ZeRO-3 at the loss: the embedding and the last layer or the head, and gradients on their way. */
    assert_true(w.stages[3].bytes.window > 2 * filled(LAYER, 4));
    /* Gradients go in fp32, parameters in bf16; a rank sends three quarters of each, and little more for the norm. The
     * embedding and the head are gathered once, for they are not tied. */
    double once = (double)F, again = 32 * (double)filled(LAYER, 4), norm = 8 * once / NORM_BLOCK;
    const double bytes[] = {8 * once, 6 * once + norm, 6 * once + norm, 6 * once + 2 * again + norm};
    const double volume[] = {2 * once, 2 * once, 2 * once, 2 * once + again};
    for (int i = 0; i < WORLD_STAGES; i++) {
        assert_float_equal(w.stages[i].volume_bytes, 0.75 * bytes[i], 1e3);
        assert_float_equal(w.stages[i].volume, volume[i] / (double)P7B, 1e-9);
    }
}

static void shards_round_up(void **state) {
    (void)state;
    plan_request r = request("test-llama", PRECISION_BF16, 1, 1, 16);
    uint64_t n = model_param_count(&r.model);
    plan_world w = compiled(r, 7);
    assert_int_equal(w.stages[3].bytes.params % (2 * NORM_BLOCK), 0);
    assert_true(w.stages[3].bytes.params * 7 > 2 * n);
}

/* What is cut has to be sent for every micro-batch; what is whole, once per step. */
static void accumulation_multiplies_what_is_sharded(void **state) {
    (void)state;
    plan_world one = compiled(request("test-llama", PRECISION_BF16, 1, 1, 16), 4);
    plan_world five = compiled(request("test-llama", PRECISION_BF16, 1, 5, 16), 4);
    double P = one.stages[0].volume / 2; /* in a small model the filling is not small */
    const double volume[] = {2 * P, 2 * P, (5 + 1) * P, 5 * one.stages[3].volume};
    for (int i = 0; i < WORLD_STAGES; i++) assert_float_equal(five.stages[i].volume, volume[i], 1e-9);
}

static void other_precisions_have_their_own_bytes(void **state) {
    (void)state;
    plan_request r = request("test-qwen3", PRECISION_BF16_SR, 1, 1, 16);
    uint64_t n = model_param_count(&r.model);
    plan_world w = compiled(r, 2);
    assert_int_equal(w.stages[0].bytes.params + w.stages[0].bytes.states, 6 * n);
    assert_int_equal(w.stages[0].textbook, 0); /* no master to forget */
    r.precision = PRECISION_FP32;
    w = compiled(r, 2);
    assert_int_equal(w.stages[0].bytes.params + w.stages[0].bytes.states, 12 * n);
}

/* The formula knows linears, norms' inputs and attention; a plan also keeps rstd of two norms and lse of every head. */
static void kept_activations_are_the_known_formula(void **state) {
    (void)state;
    plan_world w = compiled(request("llama2-7b", PRECISION_BF16, 1, 1, 512), 4);
    assert_float_equal(w.formula_per_layer_token, 12 * 4096 + 4 * 4096 + 6 * 11008, 0);
    assert_float_equal(w.kept_per_layer_token, w.formula_per_layer_token + 2 * 4 + 32 * 4, 0);
    w = compiled(request("gpt2", PRECISION_BF16, 1, 1, 64), 4);
    assert_float_equal(w.formula_per_layer_token, 0, 0); /* another kind of block */
}

static const plan_world_layout *find_layout(const plan_world *w, const char *name) {
    for (int i = 0; i < w->n_layouts; i++)
        if (strcmp(w->layouts[i].name, name) == 0) return &w->layouts[i];
    fail_msg("there is no layout %s", name);
    return NULL;
}

/* Matrices are cut, norms are not; a stage has 32 / PP layers and the larger end of the model. */
static uint64_t rank_params(uint64_t tp, uint64_t pp) {
    uint64_t C = 4096, F = 11008, V = 32000;
    return 32 / pp * ((4 * C * C + 3 * C * F) / tp + 2 * C) + V / tp * C + C;
}

static void layouts_of_7b_on_8_ranks(void **state) {
    (void)state;
    plan_world w = compiled(request("llama2-7b", PRECISION_BF16, 1, 8, 1024), 8);
    assert_int_equal(w.n_layouts, 4);
    assert_int_equal(find_layout(&w, "DP8")->bytes.params, 2 * P7B);
    assert_int_equal(find_layout(&w, "DP8")->bytes.total, w.stages[0].bytes.total);
    assert_int_equal(find_layout(&w, "TP4 PP2")->bytes.params, 2 * rank_params(4, 2));
    assert_int_equal(find_layout(&w, "TP2 PP4")->bytes.params, 2 * rank_params(2, 4));
    assert_int_equal(find_layout(&w, "TP2 PP2 SP2")->bytes.params, 2 * rank_params(2, 2));
    for (int i = 1; i < w.n_layouts; i++) {
        const plan_world_layout *l = &w.layouts[i];
        assert_int_equal(l->data * l->tensor * l->pipeline * l->sequence, 8);
        assert_int_equal(l->bytes.grads, 2 * l->bytes.params);
        assert_int_equal(l->bytes.states, 6 * l->bytes.params);
        assert_true(l->bytes.activations < w.layouts[0].bytes.activations);
        assert_float_equal(l->bubble, (l->pipeline - 1) / (8.0 + l->pipeline - 1), 1e-12);
    }
    /* The first stage holds as many micro-batches as there are stages, but not more than there are. */
    plan_world single = compiled(request("llama2-7b", PRECISION_BF16, 1, 1, 1024), 8);
    assert_true(find_layout(&single, "TP2 PP4")->bytes.activations < find_layout(&w, "TP2 PP4")->bytes.activations);
}

static void tied_ends_are_counted_once_per_stage(void **state) {
    (void)state;
    plan_request r = request("gpt2", PRECISION_BF16, 1, 2, 64);
    const model_config *c = &r.model;
    plan_world w = compiled(r, 4);
    uint64_t C = (uint64_t)c->hidden, F = (uint64_t)c->ffn, V = (uint64_t)(c->vocab + 1) / 2;
    /* Columns' biases are cut with them; those of rows, norms and positions are whole. */
    uint64_t block = (4 * C * C + 2 * C * F + 3 * C + F) / 2 + 2 * C + 4 * C;
    assert_int_equal(find_layout(&w, "TP2 PP2")->bytes.params,
                     2 * (6 * block + V * C + (uint64_t)c->max_positions * C));
}

static void what_cannot_be_cut_says_why(void **state) {
    (void)state;
    plan_world w = compiled(request("gpt2-xl", PRECISION_BF16, 1, 1, 64), 8); /* 25 heads */
    assert_non_null(strstr(find_layout(&w, "TP4 PP2")->why_not, "25 heads"));
    w = compiled(request("test-llama", PRECISION_BF16, 1, 1, 64), 8); /* 2 layers, 2 kv heads */
    assert_non_null(strstr(find_layout(&w, "TP4 PP2")->why_not, "2 kv heads"));
    assert_non_null(strstr(find_layout(&w, "TP2 PP4")->why_not, "2 layers"));
    w = compiled(request("test-llama", PRECISION_BF16, 1, 1, 63), 8);
    assert_non_null(strstr(find_layout(&w, "TP2 PP2 SP2")->why_not, "63 tokens"));
    for (int n = 2; n <= 20; n++) { /* every number of ranks has a table */
        w = compiled(request("test-llama", PRECISION_BF16, 1, 1, 64), n);
        assert_true(w.n_layouts >= 1 && w.layouts[0].data == n);
    }
}

static void the_ladder_of_gpt2_large_goes_down(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h200"), OK);
    plan_request r = request("gpt2-large", PRECISION_BF16, 4, 1, 1024);
    r.hardware = &h;
    plan_world w = compiled(r, 8);
    plan p;
    plan_request base = r;
    base.precision = PRECISION_FP32;
    assert_int_equal(plan_compile(&p, &base), OK);
    assert_int_equal(w.rungs[0].bytes, p.planned[TIER_DEVICE]);
    plan_close(&p);
    for (int i = 1; i < WORLD_RUNGS; i++) assert_true(w.rungs[i].bytes < w.rungs[i - 1].bytes);
    r.micro_batch = 1, r.accumulation = 4;
    r.recompute = (recompute_policy){.kind = RECOMPUTE_FULL};
    assert_int_equal(plan_compile(&p, &r), OK);
    assert_int_equal(w.rungs[3].bytes, p.planned[TIER_DEVICE]);
    plan_close(&p);
    assert_true(w.rungs[1].step_s < w.rungs[0].step_s / 5); /* matrix units */
    /* A third more arithmetic, less what small sums and the update take of a step of rows of 1. */
    assert_true(w.rungs[3].step_s > 1.08 * w.rungs[2].step_s && w.rungs[3].step_s < 1.4 * w.rungs[2].step_s);
    assert_true(w.stages[1].comm_s > 0); /* 8 ranks on one node: over its links */
    double inside = w.stages[1].comm_s;
    w = compiled(r, 16);
    assert_true(w.stages[1].comm_s > 5 * inside); /* over the network */
}

static void text_and_json_have_every_row(void **state) {
    (void)state;
    plan_world w = compiled(request("llama2-7b", PRECISION_BF16, 1, 2, 128), 8);
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    plan_world_print(&w, f);
    fclose(f);
    static const char *const rows[] = {
        "DDP",         "ZeRO-1", "ZeRO-2",          "ZeRO-3",         "DP8",         "TP4 PP2",    "TP2 PP4",
        "TP2 PP2 SP2", "base",   "mixed precision", "+ accumulation", "+ recompute", "+ sharding", "textbook"};
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) assert_non_null(strstr(text, rows[i]));
    free(text);
    json_t *j = plan_world_json(&w);
    assert_int_equal(json_array_size(json_object_get(j, "sharding")), WORLD_STAGES);
    assert_int_equal(json_array_size(json_object_get(j, "layouts")), 4);
    assert_int_equal(json_array_size(json_object_get(j, "ladder")), WORLD_RUNGS);
    const json_t *zero3 = json_array_get(json_object_get(j, "sharding"), 3);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(zero3, "bytes"), "params")),
                     2 * filled_7b(8) / 8);
    assert_true(json_is_null(json_object_get(zero3, "comm_ms")));
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharding_of_7b_on_4_ranks),
        cmocka_unit_test(shards_round_up),
        cmocka_unit_test(accumulation_multiplies_what_is_sharded),
        cmocka_unit_test(other_precisions_have_their_own_bytes),
        cmocka_unit_test(kept_activations_are_the_known_formula),
        cmocka_unit_test(layouts_of_7b_on_8_ranks),
        cmocka_unit_test(tied_ends_are_counted_once_per_stage),
        cmocka_unit_test(what_cannot_be_cut_says_why),
        cmocka_unit_test(the_ladder_of_gpt2_large_goes_down),
        cmocka_unit_test(text_and_json_have_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
