/* test_recompute.c - activations computed again change no bit, need no byte more than planned, and are as few as the shapes
 * say.
 *
 * Runs go through the whole house against the plain run of the same settings; programs are looked at op by op. Bytes per
 * layer are held against formulas written from shapes alone. */
#include "model/model.h"
#include "plan/search.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

/* Every kind, and keep lists that ask for each half of a fused add and norm: the norm alone (residual1 is kept), the sum
 * alone (norm2 is kept), both (neither is), and nothing but what lies outside the layers' products. */
static const char *const policies[] = {"norms",
                                       "selective",
                                       "full",
                                       "{ratio: 0.5}",
                                       "{every: 2}",
                                       "{nested: 2}",
                                       "{mix: [full, 1, norms]}",
                                       "{mix: [full, 2, selective]}",
                                       "{mix: [selective, 1, none]}",
                                       "{keep: [residual1, attn.y]}",
                                       "{keep: [norm2]}",
                                       "{keep: [attn.out, attn.qkv, mlp.act]}",
                                       "{keep: [attn.lse, mlp.down]}"};

typedef struct setting_text {
    char text[96];
} setting_text;
static setting_text recompute(const char *policy) {
    setting_text s;
    snprintf(s.text, sizeof s.text, "memory.recompute=%s", policy);
    return s;
}

static void run(training t, const char *policy, const char *layers, train_result *r) {
    setting_text s = recompute(policy);
    t.more = SETTINGS(s.text, layers);
    training_must(training_run(&t, r));
    if (r->memory.planned[TIER_DEVICE] != r->memory.peak[TIER_DEVICE])
        fail_msg("%s %s: planned %llu, used %llu", t.preset, policy, (unsigned long long)r->memory.planned[TIER_DEVICE],
                 (unsigned long long)r->memory.peak[TIER_DEVICE]);
    assert_int_equal(r->memory.n_allocations, 0);
    assert_int_equal(r->steps, t.steps);
}

static void check_bits(training t, const char *layers) {
    train_result plain, r;
    run(t, "none", layers, &plain);
    assert_true(plain.last_loss != plain.first_loss);
    for (size_t i = 0; i < ARRAY_LENGTH(policies); i++) {
        run(t, policies[i], layers, &r);
        if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss)
            fail_msg("%s %s accumulation %lld: %s ends with other parameters than none", t.preset,
                     precision_name(t.precision), (long long)t.accumulation, policies[i]);
    }
}

static void every_rung_keeps_every_bit(void **state) {
    (void)state;
    static const char *const presets[] = {"test-gpt2", "test-qwen3"};
    static const precision kinds[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR};
    for (size_t m = 0; m < ARRAY_LENGTH(presets); m++)
        for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++)
            for (int64_t a = 1; a <= 4; a += 3) {
                if (SANITIZED && (m + k + (size_t)(a == 4)) % 2) continue;
                check_bits((training){.preset = presets[m],
                                      .precision = kinds[k],
                                      .seq_len = 24,
                                      .micro_batch = 2,
                                      .accumulation = a,
                                      .steps = SANITIZED ? 2 : 10},
                           "model.layers=3");
            }
}

/* The other two families, fp16 with its loss scale, an odd number of rows, and a whole model in one go. */
static void other_families_and_precisions_too(void **state) {
    (void)state;
    check_bits((training){.preset = "test-llama", .seq_len = 17, .micro_batch = 3, .accumulation = 2, .steps = 3},
               "model.layers=5");
    check_bits((training){.preset = "test-qwen2", .precision = PRECISION_FP16, .accumulation = 1, .steps = 3},
               "model.layers=1");
}

static void a_run_may_go_on_with_another_rung(void **state) {
    (void)state;
    train_result whole, part, rest;
    setting_text full = recompute("full"), norms = recompute("norms");
    char *dir = training_dir();
    training t = {.preset = "test-qwen3",
                  .precision = PRECISION_BF16,
                  .steps = 6,
                  .more = SETTINGS("train.schedule=constant", norms.text)};
    training_must(training_run(&t, &whole));
    t.dir = dir;
    t.steps = 3;
    training_must(training_run(&t, &part));
    t.more = SETTINGS("train.schedule=constant", full.text);
    t.steps = 6;
    t.resume = "auto";
    training_must(training_run(&t, &rest));
    assert_int_equal(rest.steps, 6);
    assert_true(rest.param_hash == whole.param_hash && part.param_hash != whole.param_hash);
    training_dir_remove(dir);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static status compile(compiled *k, const char *preset, const char *layers, const char *policy, precision q,
                      const char *more) {
    setting_text s = recompute(policy);
    training t = {.preset = preset,
                  .precision = q,
                  .seq_len = 32,
                  .micro_batch = 4,
                  .more = SETTINGS(s.text, layers, more ? more : "train.eval_rows=4")};
    k->p = (plan){0};
    TRY(training_request(&t, &k->c, &k->r));
    k->r.plan.open = (plan_open){0}; /* recompute alone: nothing is to be moved instead */
    return plan_choose(&k->p, &k->r.plan);
}

static uint64_t hash_of(const char *preset, const char *layers, const char *policy) {
    compiled k;
    training_must(compile(&k, preset, layers, policy, PRECISION_FP32, NULL));
    uint64_t h = program_hash(&k.p.program);
    compiled_close(&k);
    return h;
}

static void edges_of_ratio_and_every(void **state) {
    (void)state;
    const char *m = "test-gpt2", *six = "model.layers=6";
    uint64_t none = hash_of(m, six, "none"), full = hash_of(m, six, "full");
    assert_true(none != full);
    assert_true(hash_of(m, six, "ratio:0") == none);
    assert_true(hash_of(m, six, "ratio:0.166") == none); /* int(0.996) */
    assert_true(hash_of(m, six, "ratio:1") == full);
    assert_true(hash_of(m, six, "every:1") == full);
    assert_true(hash_of(m, six, "every:6") == hash_of(m, six, "every:1024")); /* longer than the model: one segment */
    assert_true(hash_of(m, six, "every:6") != hash_of(m, six, "every:5"));
    assert_true(hash_of(m, "model.layers=1", "every:2") == hash_of(m, "model.layers=1", "full"));
    assert_true(hash_of(m, six, "none") == hash_of(m, six, "auto")); /* it fits this machine */
    assert_true(hash_of(m, six, "false") == none && hash_of(m, six, "true") == full);
}

static int count_again(const program *p, op_kind k, int layer) {
    int n = 0;
    for (size_t i = 0; i < p->n_ops; i++)
        n += p->ops[i].again && (k == OP_COUNT || p->ops[i].kind == k) && (layer < 0 || p->ops[i].layer == layer);
    return n;
}

static void ratio_takes_the_last_layers_and_mix_the_first(void **state) {
    (void)state;
    static const struct {
        const char *policy;
        int first, end;              /* the layers whose attention is computed again */
    } rows[] = {{"ratio:0.5", 3, 5}, /* int(2.5) = 2 */
                {"mix:full,0,none", 0, 0},
                {"mix:full,1,none", 0, 1},
                {"mix:full,4,norms", 0, 4}};
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        compiled k;
        training_must(compile(&k, "test-llama", "model.layers=5", rows[i].policy, PRECISION_FP32, NULL));
        for (int l = 0; l < 5; l++)
            assert_int_equal(count_again(&k.p.program, OP_ATTENTION, l), l >= rows[i].first && l < rows[i].end);
        compiled_close(&k);
    }
}

static bool is_read_after(const program *p, value_id v, op_kind k) {
    bool seen = false;
    for (size_t i = 0; i < p->n_ops; i++) {
        for (int n = 0; n < op_input_count(p->ops[i].kind) && seen; n++)
            if (p->ops[i].in[n] == v) return true;
        seen |= p->ops[i].kind == k;
    }
    return false;
}

/* Layers 0-1, 2-3, 4: kept are the inputs of 0, 2 and 4, and what the final norm reads. */
static void every_second_input_is_kept(void **state) {
    (void)state;
    static const char *const names[] = {"embed",
                                        "layers.0.residual2",
                                        "layers.1.residual2",
                                        "layers.2.residual2",
                                        "layers.3.residual2",
                                        "layers.4.residual2"};
    static const bool kept[] = {true, false, true, false, true, true};
    compiled k;
    training_must(compile(&k, "test-qwen3", "model.layers=5", "every:2", PRECISION_BF16, NULL));
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        value_id v = program_find(&k.p.program, names[i]);
        assert_true(v != NO_VALUE);
        if (is_read_after(&k.p.program, v, OP_UNEMBED_LOSS_GRAD) != kept[i])
            fail_msg("%s is %s", names[i], kept[i] ? "not read in the backward" : "still read in the backward");
    }
    assert_int_equal(count_again(&k.p.program, OP_ATTENTION, -1), 5); /* each layer once, not once per reader */
    compiled_close(&k);
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The op of the plain program that op o is, the first that has not been met: of the same kind and layer, with the same outputs but for
 * what join has its backward write. Only what stands before that backward may come before its turn. */
static void meet_in_plain(const program *plain, bool *met, const op *o) {
    op alone = *o;
    if (o->kind == OP_SWIGLU_BWD) alone.out[SWIGLU_BWD_Y] = NO_VALUE;
    bool in_turn = true;
    size_t i = 0;
    for (; i < plain->n_ops; i++) {
        const op *a = &plain->ops[i];
        if (met[i]) continue;
        if (a->kind == o->kind && a->layer == o->layer && !memcmp(a->out, alone.out, sizeof a->out)) break;
        in_turn = false;
    }
    assert_true(i < plain->n_ops);
    assert_true(in_turn || o->kind == OP_LINEAR_DX || o->kind == OP_SWIGLU_BWD);
    met[i] = true;
}

/* Without the repeated ops the program is the plain one: the same ops in the same order, but for what join moves behind the backward of
 * an activation function, the same values but for "again.". What a
 * full layer does not need is not repeated: the down projection and the sum behind it. Evaluation repeats nothing. */
static void only_what_the_backward_needs_is_repeated(void **state) {
    (void)state;
    static const char *const all[] = {"norms", "selective", "full", "every:2", "ratio:0.5", "keep:attn.y"};
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++) {
        compiled plain, k;
        training_must(compile(&plain, training_presets[m], "model.layers=4", "none", PRECISION_FP32, NULL));
        assert_int_equal(count_again(&plain.p.program, OP_COUNT, -1), 0);
        assert_true(plain.p.flops_again == 0);
        for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
            training_must(compile(&k, training_presets[m], "model.layers=4", all[i], PRECISION_FP32, NULL));
            const program *a = &plain.p.program, *b = &k.p.program;
            size_t n_plain = 0, n_names = 0;
            double flops = 0;
            bool *met = mem_alloc(a->n_ops * sizeof *met);
            const char **names = mem_alloc(b->n_ops * OP_MAX_OUT * sizeof *names);
            for (size_t j = 0; j < b->n_ops; j++) {
                const op *o = &b->ops[j];
                flops += op_flops_again(b, o);
                if (!o->again) {
                    meet_in_plain(a, met, o);
                    n_plain++;
                    continue;
                }
                assert_int_equal(o->section, SECTION_MICRO);
                if (strncmp(all[i], "every", 5) != 0) assert_true(o->kind != OP_SWIGLU); /* its backward writes it */
                bool is_read = false;
                for (int n = 0; n < op_output_count(o->kind); n++) {
                    if (!o->out[n]) continue;
                    const value *v = program_get(b, o->out[n]);
                    assert_true(str_starts_with(v->name, "again.layers.") && v->role == ROLE_ACTIVATION);
                    assert_true(program_find(b, v->name + strlen("again.")) != NO_VALUE);
                    names[n_names++] = v->name;
                    for (size_t r = j + 1; r < b->n_ops; r++)
                        for (int x = 0; x < op_input_count(b->ops[r].kind); x++)
                            is_read |= b->ops[r].in[x] == o->out[n];
                }
                if (!is_read) fail_msg("%s: op %zu repeats '%s' for nobody", all[i], j, names[n_names - 1]);
            }
            assert_int_equal(n_plain, a->n_ops);
            free(met);
            qsort(names, n_names, sizeof *names, compare_names);
            for (size_t j = 1; j < n_names; j++) assert_true(strcmp(names[j - 1], names[j]) != 0); /* each once */
            assert_true(n_names > 0 && flops > 0);
            assert_true(k.p.flops_per_step == plain.p.flops_per_step);
            assert_true(fabs(k.p.flops_again - flops) <= 1e-12 * flops); /* accumulation 1; the same sum */
            if (strcmp(all[i], "full") == 0) {
                assert_int_equal(count_again(b, OP_LINEAR, -1), 4 * 3); /* qkv, out, up; not down */
                assert_int_equal(count_again(b, OP_ATTENTION, -1), 4);
            }
            if (strcmp(all[i], "norms") == 0)
                assert_int_equal(count_again(b, OP_LINEAR, -1) + count_again(b, OP_ATTENTION, -1), 0);
            if (strcmp(all[i], "selective") == 0) {
                assert_int_equal(count_again(b, OP_LINEAR, -1), 4);
                assert_int_equal(count_again(b, OP_ATTENTION, -1), 0);
            }
            free(names);
            compiled_close(&k);
        }
        compiled_close(&plain);
    }
}

/* A rotation whose input nobody reads (no norm of q and k) would hold that input instead: nothing won, so it is kept. */
static void a_rotation_is_repeated_only_where_that_saves(void **state) {
    (void)state;
    compiled k;
    training_must(compile(&k, "test-qwen3", "model.layers=2", "norms", PRECISION_FP32, NULL));
    assert_int_equal(count_again(&k.p.program, OP_QK_NORM_ROPE, -1), 2);
    compiled_close(&k);
    training_must(compile(&k, "test-llama", "model.layers=2", "norms", PRECISION_FP32, NULL));
    assert_int_equal(count_again(&k.p.program, OP_ROPE, -1), 0);
    compiled_close(&k);
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

static uint64_t activations(const char *preset, const char *layers, const char *policy, precision q) {
    compiled k;
    training_must(compile(&k, preset, layers, policy, q, NULL));
    uint64_t n = k.p.by_role[ROLE_ACTIVATION];
    compiled_close(&k);
    return n;
}

/* One layer more costs what one layer keeps. N tokens, b bytes, widths C, F, Q = (H + 2G) D, K = H D; statistics are fp32
 * rows. Llama: the textbook's 12h + 4h_kv + 6f, 8h + 4h_kv + 4f and 2h bytes per token in bf16, and the statistics. */
static void a_layer_keeps_what_the_shapes_say(void **state) {
    (void)state;
    const uint64_t N = 4 * 32, b = 2;
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++) {
        const model_config *c = model_preset_find(training_presets[m]);
        const model_traits *t = model_family_traits(c->family);
        uint64_t C = (uint64_t)c->hidden, F = (uint64_t)c->ffn, H = (uint64_t)c->n_heads, G = (uint64_t)c->n_kv_heads;
        uint64_t K = H * (uint64_t)c->head_dim, Q = K + 2 * G * (uint64_t)c->head_dim;
        uint64_t up = t->gelu ? F : 2 * F, norms = 2 * C + (t->qk_norm ? Q : 0), row_statistics = t->layernorm ? 4 : 2;
        uint64_t attention = N * b * (Q + K) + 4 * N * H, residuals = N * b * 2 * C;
        uint64_t selective = attention + residuals, cheap = selective + N * b * up;
        uint64_t none = cheap + N * b * (norms + F) + 4 * N * (row_statistics + (t->qk_norm ? H + G : 0));
        const struct {
            const char *policy;
            uint64_t expected;
        } rows[] = {{"none", none}, {"norms", cheap}, {"selective", selective}, {"full", N * b * C}};
        for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
            uint64_t more = activations(c->name, "model.layers=9", rows[i].policy, PRECISION_BF16) -
                            activations(c->name, "model.layers=8", rows[i].policy, PRECISION_BF16);
            if (more != rows[i].expected)
                fail_msg("%s %s: a layer keeps %llu bytes, expected %llu", c->name, rows[i].policy,
                         (unsigned long long)more, (unsigned long long)rows[i].expected);
        }
    }
    /* and once with the letters of the book */
    uint64_t h = 64, f = 160, h_kv = 32, lse = 4 * 4, rstd = 2 * 4;
    assert_true(activations("test-llama", "model.layers=9", "none", PRECISION_BF16) -
                    activations("test-llama", "model.layers=8", "none", PRECISION_BF16) ==
                N * (12 * h + 4 * h_kv + 6 * f + lse + rstd));
    assert_true(activations("test-llama", "model.layers=9", "norms", PRECISION_BF16) -
                    activations("test-llama", "model.layers=8", "norms", PRECISION_BF16) ==
                N * (8 * h + 4 * h_kv + 4 * f + lse));
}

/* full: at the peak the input of every layer, the inside of one, and the gradient that comes into it. Exactly. */
static void full_holds_the_inputs_and_one_layer(void **state) {
    (void)state;
    const uint64_t N = 4 * 32, L = 8;
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++) {
        const model_config *c = model_preset_find(training_presets[m]);
        const model_traits *t = model_family_traits(c->family);
        uint64_t C = (uint64_t)c->hidden, F = (uint64_t)c->ffn, H = (uint64_t)c->n_heads, G = (uint64_t)c->n_kv_heads;
        uint64_t K = H * (uint64_t)c->head_dim, Q = K + 2 * G * (uint64_t)c->head_dim;
        uint64_t inside = 3 * C + Q * (t->qk_norm ? 2 : 1) + K + (t->gelu ? F : 2 * F) + F; /* norms, residual1, ... */
        uint64_t statistics = (t->layernorm ? 4 : 2) + H + (t->qk_norm ? H + G : 0);
        uint64_t expected = 4 * N * (L * C + inside + C + statistics);
        uint64_t got = activations(c->name, "model.layers=8", "full", PRECISION_FP32);
        uint64_t plain = activations(c->name, "model.layers=8", "none", PRECISION_FP32);
        print_message("%-10s 8 layers: %llu -> %llu bytes of activations, %.0f %%\n", c->name,
                      (unsigned long long)plain, (unsigned long long)got, 100.0 * (double)got / (double)plain);
        assert_int_equal(got, expected);
        assert_true(got * 3 < plain);
    }
}

static void a_rung_that_costs_more_holds_less(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++) {
        compiled k;
        plan_rung rungs[PLAN_RUNGS];
        training_must(compile(&k, training_presets[m], "model.layers=8", "none", PRECISION_BF16, NULL));
        training_must(plan_rungs(&k.p, rungs));
        assert_int_equal(rungs[0].kind, RECOMPUTE_NONE);
        assert_true(rungs[0].more_flops == 0 && rungs[0].device == k.p.planned[TIER_DEVICE]);
        for (int i = 1; i < PLAN_RUNGS; i++) {
            assert_true(rungs[i].device < rungs[i - 1].device && rungs[i].activations < rungs[i - 1].activations);
            assert_true(rungs[i].more_flops > rungs[i - 1].more_flops);
        }
        assert_true(rungs[PLAN_RUNGS - 1].more_flops < 1.0 / 3); /* forward is a third of forward and backward */
        compiled_close(&k);
    }
}

/* ---- choice -------------------------------------------------------------------------------------------------------- */

static recompute_kind choice(const plan_request *r, uint64_t limit, bool *fits) {
    plan_request q = *r;
    plan p;
    q.choice.recompute = (recompute_policy){.kind = RECOMPUTE_AUTO};
    q.open.keep_layers = true; /* the last resort too */
    q.device_limit = limit;
    training_must(plan_choose(&p, &q));
    recompute_kind k = p.request.choice.recompute.kind;
    assert_int_equal(p.asked.recompute.kind, RECOMPUTE_AUTO);
    *fits = plan_check_fit(&p) == OK;
    plan_close(&p);
    return k;
}

static void auto_takes_the_cheapest_rung_that_fits(void **state) {
    (void)state;
    compiled k;
    plan_rung rungs[PLAN_RUNGS];
    bool fits;
    training_must(compile(&k, "test-gpt2", "model.layers=8", "none", PRECISION_FP32, NULL));
    training_must(plan_rungs(&k.p, rungs));
    assert_int_equal(choice(&k.r.plan, 0, &fits), RECOMPUTE_NONE); /* no limit */
    for (int i = 0; i < PLAN_RUNGS; i++) {
        assert_int_equal(choice(&k.r.plan, rungs[i].device, &fits), rungs[i].kind); /* exactly enough is enough */
        assert_true(fits);
        if (i + 1 == PLAN_RUNGS) break;
        assert_int_equal(choice(&k.r.plan, rungs[i].device - 1, &fits), rungs[i + 1].kind);
        assert_true(fits);
    }
    /* Below the rungs groups of layers are computed again, which is as small as it gets. */
    assert_int_equal(choice(&k.r.plan, rungs[PLAN_RUNGS - 1].device - 1, &fits), RECOMPUTE_NESTED);
    assert_true(fits);
    uint64_t least = UINT64_MAX;
    for (int64_t n = 2; n < 8; n *= 2) {
        plan_request q = k.r.plan;
        plan_candidate c;
        q.choice.recompute = (recompute_policy){.kind = RECOMPUTE_NESTED, .every = n};
        training_must(plan_evaluate(&q, &c));
        least = MIN(least, c.planned[TIER_DEVICE]);
    }
    assert_int_equal(choice(&k.r.plan, least, &fits), RECOMPUTE_NESTED);
    assert_true(fits);
    assert_int_equal(choice(&k.r.plan, least - 1, &fits), RECOMPUTE_NESTED); /* the smallest */
    assert_false(fits);
    assert_null(strstr(error_message(), "memory.recompute")); /* auto has tried that already */
    assert_non_null(strstr(error_message(), "train.micro_batch=2"));
    compiled_close(&k);
}

static void what_does_not_fit_names_the_rung_that_does(void **state) {
    (void)state;
    compiled k;
    plan_rung rungs[PLAN_RUNGS];
    static const char *const named[] = {"memory.recompute=norms (", "memory.recompute=selective (",
                                        "memory.recompute=full ("};
    training_must(compile(&k, "test-gpt2", "model.layers=8", "none", PRECISION_FP32, NULL));
    training_must(plan_rungs(&k.p, rungs));
    for (int i = 1; i < PLAN_RUNGS; i++) {
        k.p.request.device_limit = rungs[i].device;
        assert_int_equal(plan_check_fit(&k.p), ERR_FIT);
        if (!strstr(error_message(), named[i - 1])) fail_msg("'%s' is not in: %s", named[i - 1], error_message());
    }
    k.p.request.device_limit = rungs[PLAN_RUNGS - 1].device - 1;
    assert_int_equal(plan_check_fit(&k.p), ERR_FIT);
    assert_non_null(strstr(error_message(), "train.micro_batch="));
    compiled_close(&k);
}

/* ---- refusals -------------------------------------------------------------------------------------------------------- */

static void an_unknown_name_lists_the_known_ones(void **state) {
    (void)state;
    static const struct {
        const char *preset, *policy, *names;
    } rows[] = {
        {"test-gpt2", "keep:attn.y,mlp.gate_up",
         "'mlp.gate_up', which no layer has; its values are: norm1, norm1.rstd, norm1.mean, attn.qkv, attn.y, "
         "attn.lse, "
         "attn.out, residual1, norm2, norm2.rstd, norm2.mean, mlp.up, mlp.act, mlp.down, residual2"},
        {"test-qwen3", "keep:layers.0.attn.y", "attn.qkv, attn.qk_norm.rstd, attn.rope, attn.y"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        compiled k;
        assert_int_equal(compile(&k, rows[i].preset, "model.layers=3", rows[i].policy, PRECISION_FP32, NULL),
                         ERR_INPUT);
        if (!strstr(error_message(), rows[i].names)) fail_msg("'%s' is not in: %s", rows[i].names, error_message());
        compiled_close(&k);
    }
}

static void policies_read_back_and_wrong_ones_are_refused(void **state) {
    (void)state;
    static const char *const right[] = {"none",
                                        "norms",
                                        "selective",
                                        "full",
                                        "auto",
                                        "ratio:0.25",
                                        "ratio:0.1",
                                        "ratio:1",
                                        "every:1",
                                        "every:7",
                                        "keep:attn.y,mlp.up",
                                        "nested:4",
                                        "mix:full,12,selective",
                                        "mix:full,1024,norms",
                                        "mix:norms,0,none"};
    static const char *const wrong[] = {"",
                                        "some",
                                        "ratio",
                                        "ratio:",
                                        "ratio:1.1",
                                        "ratio:-0.1",
                                        "ratio:nan",
                                        "ratio:x",
                                        "every:0",
                                        "every:-1",
                                        "every:",
                                        "every:2x",
                                        "keep:",
                                        "keep",
                                        "full:1",
                                        "fullness",
                                        "none:none",
                                        ":",
                                        "nested",
                                        "nested:0",
                                        "mix",
                                        "mix:",
                                        "mix:full",
                                        "mix:full,3",
                                        "mix:full,3,",
                                        "mix:norms,3,full",
                                        "mix:full,3,full",
                                        "mix:full,-1,none",
                                        "mix:full,x,none",
                                        "mix:every,1,none",
                                        "mix:auto,1,none",
                                        "mix:full,1,none,1",
                                        "mix:full,1025,none",
                                        "mix:full,99999999999999999999,none",
                                        "mix:full, 1,none",
                                        "mix:full,+1,none",
                                        "mix:,1,none"};
    recompute_policy p;
    for (size_t i = 0; i < ARRAY_LENGTH(right); i++) {
        strbuf b;
        recompute_policy again;
        strbuf_init(&b);
        training_must(recompute_parse(&p, right[i]));
        recompute_write(&p, &b);
        training_must(recompute_parse(&again, b.text));
        assert_true(p.kind == again.kind && p.ratio == again.ratio && p.every == again.every);
        assert_true(p.heavy == again.heavy && p.light == again.light && p.n_heavy == again.n_heavy);
        if (p.keep) assert_string_equal(p.keep, again.keep);
        assert_true(str_starts_with(right[i], recompute_name(p.kind)));
        strbuf_fini(&b);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++)
        if (recompute_parse(&p, wrong[i]) != ERR_INPUT) fail_msg("'%s' was taken", wrong[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rung_keeps_every_bit),
        cmocka_unit_test(other_families_and_precisions_too),
        cmocka_unit_test(a_run_may_go_on_with_another_rung),
        cmocka_unit_test(edges_of_ratio_and_every),
        cmocka_unit_test(ratio_takes_the_last_layers_and_mix_the_first),
        cmocka_unit_test(every_second_input_is_kept),
        cmocka_unit_test(only_what_the_backward_needs_is_repeated),
        cmocka_unit_test(a_rotation_is_repeated_only_where_that_saves),
        cmocka_unit_test(a_layer_keeps_what_the_shapes_say),
        cmocka_unit_test(full_holds_the_inputs_and_one_layer),
        cmocka_unit_test(a_rung_that_costs_more_holds_less),
        cmocka_unit_test(auto_takes_the_cheapest_rung_that_fits),
        cmocka_unit_test(what_does_not_fit_names_the_rung_that_does),
        cmocka_unit_test(an_unknown_name_lists_the_known_ones),
        cmocka_unit_test(policies_read_back_and_wrong_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
