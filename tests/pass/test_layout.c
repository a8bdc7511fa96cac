/* test_layout.c - addresses: no two values alive at once share bytes, the arena is as large as its highest byte, and the
 * known sizes of public models come out exactly. */
#include "model/model.h"
#include "plan/plan.h"
#include "programs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <limits.h>
#include <stdlib.h>

static plan_request request(const char *preset, precision precision, int64_t accumulation) {
    return (plan_request){.source = net_source_of(model_preset_find(preset)),
                          .choice.micro_batch = 2,
                          .choice.accumulation = accumulation,
                          .seq_len = 24,
                          .choice.precision = precision,
                          .with_eval = true,
                          .verify = true,
                          .logits_chunk_bytes = 1 << 16,
                          .target = {"ragged", 3, 64, ragged_work}};
}

/* May a and b share bytes at the one op where a dies and b is born? Only as an in-place pair. */
static bool is_in_place(const program *p, size_t i, value_id dying, value_id born) {
    const op *o = &p->ops[i];
    for (int out = 0; out < op_output_count(o->kind); out++)
        for (int in = 0; in < op_input_count(o->kind); in++)
            if (o->out[out] == born && o->in[in] == dying && op_in_place(o->kind, out, in)) return true;
    return false;
}

static void check_layout(const plan *p) {
    const program *g = &p->program;
    lifetime *life = calloc(g->n_values, sizeof *life);
    size_t highest = 0;
    layout_lifetimes(g, life);
    for (value_id a = 1; a < g->n_values; a++) {
        const value *x = &g->values[a];
        if (x->view_of || life[a].first > life[a].last) continue;
        assert_int_equal(x->offset % 64, 0);
        highest = MAX(highest, x->offset + value_bytes(x));
        for (value_id b = a + 1; b < g->n_values; b++) {
            const value *y = &g->values[b];
            if (y->view_of || y->tier != x->tier || life[b].first > life[b].last) continue;
            if (x->offset + value_bytes(x) <= y->offset || y->offset + value_bytes(y) <= x->offset) continue;
            if (life[a].last < life[b].first || life[b].last < life[a].first) continue; /* never together */
            bool shared = (life[a].last == life[b].first && is_in_place(g, life[a].last, a, b)) ||
                          (life[b].last == life[a].first && is_in_place(g, life[b].last, b, a));
            if (!shared) fail_msg("'%s' and '%s' overlap while both are alive", x->name, y->name);
        }
    }
    assert_int_equal(highest, p->planned[TIER_DEVICE]);
    free(life);
}

static void live_values_never_overlap(void **state) {
    (void)state;
    static const char *const names[] = {"test-gpt2", "test-llama", "test-qwen2", "test-qwen3"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        for (precision q = 0; q < PRECISION_COUNT; q++)
            for (int64_t a = 1; a <= 2; a++)
                for (recompute_kind k = RECOMPUTE_NONE; k <= RECOMPUTE_EVERY; k++) {
                    plan_request r = request(names[i], q, a);
                    r.choice.recompute = (recompute_policy){.kind = k, .ratio = 0.5, .every = 2};
                    plan p;
                    assert_int_equal(plan_build(&p, &r), OK);
                    check_layout(&p);
                    plan_close(&p);
                }
}

static void roles_and_gaps_add_up_to_the_plan(void **state) {
    (void)state;
    plan_request r = request("test-qwen3", PRECISION_BF16, 2);
    plan p;
    assert_int_equal(plan_build(&p, &r), OK);
    uint64_t sum = p.gap_bytes, n = model_param_count(model_of(&r.source));
    for (role i = 0; i < ROLE_COUNT; i++) sum += p.by_role[i];
    assert_int_equal(sum, p.planned[TIER_DEVICE]);
    assert_int_equal(p.by_role[ROLE_PARAM], 2 * n);  /* bf16 */
    assert_int_equal(p.by_role[ROLE_GRAD], 4 * n);   /* fp32 */
    assert_int_equal(p.by_role[ROLE_STATE], 12 * n); /* master, m, v */
    assert_true(p.gap_bytes < p.planned[TIER_DEVICE] / 20);
    plan_close(&p);
}

static void bf16_sr_needs_eight_bytes_per_parameter(void **state) {
    (void)state;
    plan_request r = request("test-llama", PRECISION_BF16_SR, 1);
    plan p;
    assert_int_equal(plan_build(&p, &r), OK);
    uint64_t n = model_param_count(model_of(&r.source));
    assert_int_equal(p.by_role[ROLE_PARAM] + p.by_role[ROLE_GRAD] + p.by_role[ROLE_STATE], 8 * n);
    plan_close(&p);
}

/* Published parameter counts. */
static void presets_have_their_public_sizes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t n;
    } known[] = {{"gpt2", 124439808},
                 {"gpt2-medium", 354823168},
                 {"gpt2-large", 774030080},
                 {"gpt2-xl", 1557611200},
                 {"llama2-7b", 6738415616},
                 {"llama2-13b", 13015864320},
                 {"llama3-8b", 8030261248},
                 {"llama3-70b", 70553706496},
                 {"qwen2.5-0.5b", 494032768},
                 {"qwen2.5-1.5b", 1543714304},
                 {"qwen2.5-3b", 3085938688},
                 {"qwen2.5-7b", 7615616512},
                 {"qwen2.5-14b", 14770033664},
                 {"qwen2.5-32b", 32763876352},
                 {"qwen3-0.6b", 596049920},
                 {"qwen3-1.7b", 1720574976},
                 {"qwen3-4b", 4022468096},
                 {"qwen3-8b", 8190735360},
                 {"qwen3-14b", 14768307200},
                 {"qwen3-32b", 32762123264},
                 {"qwen2.5-72b", 72706203648},
                 {"llama3.1-8b", 8030261248},
                 {"llama3.1-70b", 70553706496},
                 {"llama3.1-405b", 405853388800},
                 {"llama3.3-70b", 70553706496},
                 {"gemma-2-27b", 27227128320},
                 {"olmo-2-32b", 32234279936},
                 /* Gemma 3: 4,300,079,472 and so on, less the vision tower (416,866,032) and its projection (1152 x
                    width + 1152) */
                 {"gemma-3-4b", 3880263168},
                 {"gemma-3-12b", 11766034176},
                 {"gemma-3-27b", 27009346304}};
    for (size_t i = 0; i < ARRAY_LENGTH(known); i++) {
        const model_config *c = model_preset_find(known[i].name);
        assert_non_null(c);
        assert_int_equal(model_param_count(c), known[i].n);
    }
}

/* As people type them, and as the hub of Hugging Face has them. */
static void presets_are_found_in_any_spelling(void **state) {
    (void)state;
    static const char *const names[][2] = {{"Qwen3-8B", "qwen3-8b"},
                                           {"Qwen/Qwen3-8B", "qwen3-8b"},
                                           {"Qwen/Qwen3-14B-Base", "qwen3-14b"},
                                           {"Qwen/Qwen2.5-72B-Instruct", "qwen2.5-72b"},
                                           {"llama-3.1-8b", "llama3.1-8b"},
                                           {"Llama-2-7b-chat-hf", "llama2-7b"},
                                           {"llama_3.1_405b", "llama3.1-405b"},
                                           {"meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"},
                                           {"meta-llama/Llama-3.3-70B-Instruct", "llama3.3-70b"},
                                           {"google/gemma-2-27b-it", "gemma-2-27b"},
                                           {"google/gemma-3-4b-pt", "gemma-3-4b"},
                                           {"allenai/OLMo-2-0325-32B-Instruct", "olmo-2-32b"},
                                           {"mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"},
                                           {"mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"},
                                           {"microsoft/Phi-3-mini-4k-instruct", "phi-3-mini-4k"},
                                           {"openai-community/gpt2-xl", "gpt2-xl"}};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        const model_config *c = model_preset_find(names[i][0]);
        if (!c || strcmp(c->name, names[i][1]) != 0)
            fail_msg("%s is %s, not %s", names[i][0], c ? c->name : "unknown", names[i][1]);
    }
    static const char *const others[] = {"",
                                         "-",
                                         "Qwen3",
                                         "Qwen/Qwen3-8B-GGUF",
                                         "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
                                         "Qwen/Qwen3-30B-A3B",
                                         "Qwen/Qwen3-4B-Instruct-2507",
                                         "llama3.1-8b-v2"};
    for (size_t i = 0; i < ARRAY_LENGTH(others); i++)
        if (model_preset_find(others[i])) fail_msg("%s is taken for %s", others[i], model_preset_find(others[i])->name);
    for (size_t i = 0; model_preset_at(i); i++)
        assert_ptr_equal(model_preset_find(model_preset_at(i)->name), model_preset_at(i));
}

static void every_preset_compiles_and_its_params_are_counted(void **state) {
    (void)state;
    for (size_t i = 0; model_preset_at(i); i++) {
        plan_request r = request(model_preset_at(i)->name, PRECISION_BF16, 1);
        r.verify = true;
        plan p;
        assert_int_equal(plan_build(&p, &r), OK);
        assert_int_equal(p.by_role[ROLE_PARAM], 2 * model_param_count(model_of(&r.source)));
        plan_close(&p);
    }
}

static void what_does_not_fit_names_a_change_that_does(void **state) {
    (void)state;
    plan_request r = request("gpt2", PRECISION_FP32, 1);
    r.choice.micro_batch = 8;
    r.seq_len = 256;
    plan p;
    assert_int_equal(plan_build(&p, &r), OK);
    p.request.device_limit = p.planned[TIER_DEVICE];
    assert_int_equal(plan_check_fit(&p), OK); /* exactly enough is enough */
    p.request.device_limit = p.planned[TIER_DEVICE] - 1;
    assert_int_equal(plan_check_fit(&p), ERR_FIT);
    assert_non_null(strstr(error_message(), "memory.recompute=norms"));
    assert_non_null(strstr(error_message(), "embed.w"));
    p.request.device_limit = 1000;
    assert_int_equal(plan_check_fit(&p), ERR_FIT);
    assert_non_null(strstr(error_message(), "the least that fits with any of them is"));
    plan_close(&p);
}

static plan states_on_host(precision q, state_format states, int tensor) {
    plan p;
    plan_request r = request("test-llama", q, 1);
    r.choice.offload.states = TIER_HOST;
    r.choice.prefetch = 1;
    r.choice.states = states;
    r.mesh.size[AXIS_TENSOR] = tensor;
    assert_int_equal(plan_build(&p, &r), OK);
    return p;
}

/* Room for one change and not a byte more: it is named. Room for none: no change is. */
static void a_host_too_small_is_told_what_fits(void **state) {
    (void)state;
    static const char FEWER[] = "Fewer bytes per parameter fit: ";
    static const struct {
        precision precision, fitting;
        state_format states, fitting_states;
        int tensor;
        const char *expected; /* NULL: no fewer bytes are to be had */
    } cases[] = {
        {PRECISION_FP32, PRECISION_FP32, STATES_AUTO, STATES_INT8, 1, "--set memory.states=int8. "},
        {PRECISION_BF16, PRECISION_BF16_SR, STATES_INT8, STATES_INT8, 1, "--set precision=bf16_sr. "},
        {PRECISION_BF16_SR, PRECISION_BF16_SR, STATES_AUTO, STATES_INT8, 1, "--set memory.states=int8. "},
        {PRECISION_BF16, PRECISION_BF16_SR, STATES_AUTO, STATES_INT8, 1,
         "--set precision=bf16_sr --set memory.states=int8. "},
        {PRECISION_BF16_SR, PRECISION_BF16_SR, STATES_INT8, STATES_INT8, 1, NULL},
        {PRECISION_BF16_SR, PRECISION_BF16_SR, STATES_AUTO, STATES_AUTO, 2, NULL}, /* blocks of 8 bits are not cut */
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        plan p = states_on_host(cases[i].precision, cases[i].states, cases[i].tensor);
        plan fitting = states_on_host(cases[i].fitting, cases[i].fitting_states, cases[i].tensor);
        p.request.host_limit = fitting.planned[TIER_HOST] - !cases[i].expected;
        assert_int_equal(plan_check_fit(&p), ERR_FIT);
        const char *fewer = strstr(error_message(), FEWER);
        assert_int_equal(fewer != NULL, cases[i].expected != NULL);
        if (fewer) assert_memory_equal(fewer + strlen(FEWER), cases[i].expected, strlen(cases[i].expected));
        assert_non_null(strstr(error_message(), "se more or larger machines"));
        p.request.host_limit = 1;
        assert_int_equal(plan_check_fit(&p), ERR_FIT);
        assert_null(strstr(error_message(), FEWER));
        plan_close(&p);
        plan_close(&fitting);
    }
}

/* Device and host have room for one way to spread the homes and not a byte more: it is found, or another one that fits. */
static void what_fits_by_hand_is_found(void **state) {
    (void)state;
    static const tier homes[] = {TIER_DEVICE, TIER_HOST, TIER_NVME};
    plan_request r = request("test-llama", PRECISION_BF16, 2);
    plan p;
    r.verify = false;
    r.may_nvme = true;
    for (int i = 0; i < 27; i++) {
        plan_request open = r;
        r.choice.recompute.kind = RECOMPUTE_SELECTIVE;
        r.choice.offload = (offload_tiers){.params = homes[i % 3], .grads = homes[i / 3 % 3], .states = homes[i / 9]};
        r.choice.prefetch = 1;
        assert_int_equal(plan_build(&p, &r), OK);
        open.choice.recompute.kind = RECOMPUTE_AUTO;
        open.choice.prefetch = 1;
        open.open = (plan_open){.params = true, .grads = true, .states = true, .activations = true};
        open.device_limit = p.planned[TIER_DEVICE];
        open.host_limit = MAX(p.planned[TIER_HOST], (uint64_t)1);
        plan_close(&p);
        assert_int_equal(plan_choose(&p, &open), OK);
        if (!plan_fits(&p))
            fail_msg("homes %d: nothing found in %llu bytes of the device and %llu of the host", i,
                     (unsigned long long)open.device_limit, (unsigned long long)open.host_limit);
        plan_close(&p);
    }
}

/* What the host would have to have is what the way that needs least of it does, not the one that needs least of the device. */
static void a_host_too_small_is_told_the_least_it_needs(void **state) {
    (void)state;
    plan_request r = request("test-llama", PRECISION_BF16, 2);
    plan p;
    char least[32];
    r.verify = false;
    r.may_nvme = true;
    r.choice.recompute.kind = RECOMPUTE_AUTO;
    r.choice.prefetch = 1;
    r.open = (plan_open){.params = true, .grads = true, .states = true, .activations = true};
    r.host_limit = 1;
    r.device_limit = 1 << 20;
    assert_int_equal(plan_choose(&p, &r), OK);
    uint64_t host = UINT64_MAX;
    for (size_t i = 0; i < p.n_candidates; i++)
        if (p.candidates[i].planned[TIER_DEVICE] <= r.device_limit)
            host = MIN(host, p.candidates[i].planned[TIER_HOST]);
    assert_int_equal(p.planned[TIER_HOST], host); /* the plan that is shown is that one */
    assert_int_equal(plan_check_fit(&p), ERR_FIT);
    str_format_bytes(least, host);
    if (!strstr(error_message(), least)) fail_msg("'%s' is not in: %s", least, error_message());
    plan_close(&p);
}

/* How often the layer changes between two ops, as far as kernels go. */
static int layers_between(const program *p, size_t from, size_t to) {
    int n = 0, layer = INT_MIN;
    for (size_t i = from; i < to; i++) {
        const op *o = &p->ops[i];
        if (o->kind == OP_COPY || o->at == TIER_HOST) continue;
        n += layer != INT_MIN && o->layer != layer;
        layer = o->layer;
    }
    return n;
}

static bool overlap(const value *a, const value *b) {
    return a->tier == b->tier && a->offset < b->offset + value_bytes(b) && b->offset < a->offset + value_bytes(a);
}

/* A copy out that takes over the bytes of a copy in must wait for it: there should be some layers between the two. */
static void bytes_of_the_host_rest_before_they_serve_again(void **state) {
    (void)state;
    for (int prefetch = 1; prefetch <= 3; prefetch++) {
        plan_request r = request("gpt2", PRECISION_BF16_SR, 4);
        r.choice.recompute.kind = RECOMPUTE_FULL;
        r.choice.offload = (offload_tiers)OFFLOAD(TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST);
        r.choice.prefetch = prefetch;
        r.choice.bucket_bytes = 1 << 20;
        plan p;
        assert_int_equal(plan_build(&p, &r), OK);
        const program *g = &p.program;
        size_t first, end, n_out = 0, n_pairs = 0;
        program_section(g, SECTION_MICRO, &first, &end);
        for (size_t i = first; i < end; i++) {
            const op *out = &g->ops[i];
            if (out->stream != STREAM_D2H) continue;
            n_out++;
            for (size_t k = first; k < i; k++) {
                const op *in = &g->ops[k];
                if (in->stream != STREAM_H2D) continue;
                const value *read = &g->values[in->in[COPY_X]], *written = &g->values[out->out[COPY_Y]];
                if (!overlap(read, written)) continue;
                n_pairs++;
                if (layers_between(g, k, i) < prefetch)
                    fail_msg("prefetch %d: '%s' follows '%s' at once", prefetch, written->name, read->name);
            }
        }
        assert_true(n_out > 12);
        assert_true(n_pairs > 0); /* bytes are used again, later */
        plan_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_values_never_overlap),
        cmocka_unit_test(roles_and_gaps_add_up_to_the_plan),
        cmocka_unit_test(bf16_sr_needs_eight_bytes_per_parameter),
        cmocka_unit_test(presets_are_found_in_any_spelling),
        cmocka_unit_test(presets_have_their_public_sizes),
        cmocka_unit_test(every_preset_compiles_and_its_params_are_counted),
        cmocka_unit_test(what_does_not_fit_names_a_change_that_does),
        cmocka_unit_test(a_host_too_small_is_told_what_fits),
        cmocka_unit_test(what_fits_by_hand_is_found),
        cmocka_unit_test(a_host_too_small_is_told_the_least_it_needs),
        cmocka_unit_test(bytes_of_the_host_rest_before_they_serve_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
