/* test_generate.c - completions: the same whatever else is computed beside them, from every kind of source, with the memory
 * that was planned.
 *
 * Models are tiny and random, of all four families, with weights large enough that their logits are far apart. Bounds:
 * prefill and token by token have the same bits on the CPU, so the bound is none. Against the evaluation section, whose
 * attention sums in another order, 1e-4 of the largest logit in fp32. */
#include "backend_choice.h"
#include "generate/state.h"
#include "hf.h"
#include "model/model.h"
#include "show/show.h"
#include "training.h"
#include "weights/source.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { CONTEXT = 128, N_PROMPTS = 64 };

/* ---- models ------------------------------------------------------------------------------------------------------ */

static const model_config families[] = {
    {.name = "g", .family = FAMILY_GPT2, .n_kv_heads = 4, .head_dim = 12, .ffn = 96, .tied = true},
    {.name = "l", .family = FAMILY_LLAMA, .n_kv_heads = 2, .head_dim = 16, .ffn = 80, .tied = false},
    {.name = "q2", .family = FAMILY_QWEN2, .n_kv_heads = 1, .head_dim = 12, .ffn = 72, .tied = true},
    {.name = "q3", .family = FAMILY_QWEN3, .n_kv_heads = 2, .head_dim = 20, .ffn = 64, .tied = true},
};

static model_config config_of(size_t i) {
    model_config c = families[i];
    c.vocab = BYTE_VOCAB;
    c.hidden = 48;
    c.n_layers = 2;
    c.n_heads = 4;
    c.max_positions = CONTEXT;
    c.norm_eps = 1e-5;
    c.rope = (rope_options){.type = ROPE_DEFAULT, .theta = 10000};
    return c;
}

/* Weights of size 0.3, so that the most likely token depends on all that came before. */
static void large_weights(hf_model *m) {
    params_initialize(m->e, &m->plan, 1);
    for (size_t i = 0; i < m->plan.net.n_params; i++) {
        const net_param *q = &m->plan.net.params[i];
        size_t n = (size_t)shape_count(&program_get(&m->plan.program, q->value)->shape);
        if (q->init != INIT_NORMAL) continue;
        float *f = mem_alloc(n * sizeof *f);
        rng_normal_fill(rng_key(3, q->name), 0, f, n, 0, 0.3f);
        exec_write(m->e, q->value, 0, f, n * sizeof *f);
        free(f);
    }
}

static void ordinary_weights(hf_model *m) { params_initialize(m->e, &m->plan, 1); }

static void write_file(const char *dir, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/model/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* A Hugging Face directory without a tokenizer: its 260 tokens are bytes. eos: JSON for eos_token_id, or NULL. */
static void write_model(const char *dir, size_t family, const char *eos) {
    char path[600];
    model_config c = config_of(family);
    hf_write_model(dir, &c, large_weights);
    if (!eos) return;
    snprintf(path, sizeof path, "{\"eos_token_id\": %s}\n", eos);
    write_file(dir, "generation_config.json", path);
}

static uint64_t page_bytes(const model_config *c, int64_t page_size, dtype t) {
    return generation_page_bytes(c, &(generation_shape){.page_size = page_size}, t);
}

static generator *open_model(const char *dir, generator_options o) {
    char path[600];
    generator *g;
    snprintf(path, sizeof path, "%s/model", dir);
    o.source = path;
    o.backend = backend_under_test();
    if (!o.n_threads) o.n_threads = 2;
    training_must(generator_open(&g, &o));
    return g;
}

typedef struct prompt_set {
    prompt list[N_PROMPTS];
    int32_t tokens[N_PROMPTS][CONTEXT];
} prompt_set;

/* Lengths from 1 to most, every one different from its neighbours. */
static prompt_set *make_prompts(size_t most) {
    prompt_set *s = mem_alloc(sizeof *s);
    for (size_t i = 0; i < N_PROMPTS; i++) {
        size_t n = 1 + (size_t)(i * 37 % most);
        for (size_t k = 0; k < n; k++) s->tokens[i][k] = (int32_t)rng_below(5 + i, k, 256);
        s->list[i] = (prompt){s->tokens[i], n};
    }
    return s;
}

static sampling_options greedy(int64_t max_new) {
    sampling_options s = SAMPLING_DEFAULTS;
    s.max_new = max_new;
    s.ignore_eos = true;
    return s;
}

static void assert_same_completions(const completion *a, const completion *b, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (a[i].n_tokens != b[i].n_tokens || memcmp(a[i].tokens, b[i].tokens, a[i].n_tokens * sizeof(int32_t)) != 0)
            fail_msg("%s: completion %zu differs", what, i);
        assert_int_equal(a[i].text_bytes, b[i].text_bytes);
        assert_memory_equal(a[i].text, b[i].text, a[i].text_bytes);
        assert_int_equal(a[i].stop, b[i].stop);
        if (backend_under_test()->discrete) /* other shapes, other order of sums */
            assert_true(fabs(a[i].log_probability - b[i].log_probability) <= 1e-4 * (1 + fabs(a[i].log_probability)));
        else assert_true(a[i].log_probability == b[i].log_probability);
    }
}

static void check_memory(const generator *g, const generation_report *r) {
    assert_int_equal(r->memory.planned[TIER_DEVICE], generator_plan(g)->planned[TIER_DEVICE]);
    assert_int_equal(r->memory.peak[TIER_DEVICE], r->memory.planned[TIER_DEVICE]);
    assert_int_equal(r->memory.n_allocations, 0);
}

/* ---- batches ------------------------------------------------------------------------------------------------------ */

static void batched_completions_equal_those_one_by_one(void **state) {
    static const struct {
        int64_t slots, page_size, prefill, pages; /* pages 0: as many as there can be */
    } shapes[] = {{64, 32, 256, 0}, {64, 1, 64, 300}, {7, 5, 33, 40}, {64, 32, 16, 5}};
    enum { NEW = 10, MOST = 90 };
    prompt_set *prompts = make_prompts(MOST);
    sampling_options s = greedy(NEW);
    for (size_t f = 0; f < ARRAY_LENGTH(families); f++) {
        char *dir = training_dir();
        model_config c = config_of(f);
        write_model(dir, f, NULL);
        completion *alone = mem_alloc(N_PROMPTS * sizeof *alone), *one, *all;
        generation_report r;
        generator *g = open_model(dir, (generator_options){.max_sequences = 1, .n_threads = 1});
        for (size_t i = 0; i < N_PROMPTS; i++) {
            training_must(generator_run(g, &prompts->list[i], 1, &s, NULL, &one, &r));
            alone[i] = one[0];
            free(one);
        }
        check_memory(g, &r);
        generator_close(g);
        int distinct = 0;
        for (size_t i = 1; i < N_PROMPTS; i++) distinct += memcmp(alone[i].tokens, alone[0].tokens, 4 * NEW) != 0;
        assert_true(distinct > N_PROMPTS / 2); /* else the comparison would say little */
        for (size_t k = 0; k < ARRAY_LENGTH(shapes); k++) {
            uint64_t page = page_bytes(&c, shapes[k].page_size, DTYPE_F32);
            g = open_model(dir, (generator_options){.max_sequences = shapes[k].slots,
                                                    .page_size = shapes[k].page_size,
                                                    .prefill = shapes[k].prefill,
                                                    .cache_bytes = (uint64_t)shapes[k].pages * page});
            training_must(generator_run(g, prompts->list, N_PROMPTS, &s, NULL, &all, &r));
            char what[64];
            snprintf(what, sizeof what, "%s, shape %zu", c.name, k);
            assert_same_completions(all, alone, N_PROMPTS, what);
            assert_int_equal(r.new_tokens, N_PROMPTS * NEW);
            check_memory(g, &r);
            /* Sequences really were side by side, and with few pages really waited. */
            if (shapes[k].pages == 0) assert_true(r.decode_steps == NEW - 1);
            else assert_true(r.decode_steps > NEW - 1 && r.decode_steps < N_PROMPTS * (NEW - 1));
            completions_free(all, N_PROMPTS);
            generator_close(g);
        }
        completions_free(alone, N_PROMPTS);
        training_dir_remove(dir);
    }
    free(prompts);
}

static void samples_depend_on_seed_prompt_index_and_position_alone(void **state) {
    enum { EACH = 3, N = 9, NEW = 12 };
    char *dir = training_dir();
    write_model(dir, 3, NULL);
    prompt_set *prompts = make_prompts(40);
    sampling_options s = greedy(NEW);
    s.temperature = 1.2;
    s.top_k = 40;
    s.top_p = 0.9;
    s.repetition_penalty = 1.1;
    s.n_completions = EACH;
    s.seed = 11;
    completion *first = NULL, *c;
    static const struct {
        int64_t slots, page_size;
        int threads;
    } shapes[] = {{27, 32, 2}, {2, 4, 1}, {1, 1, 2}, {5, 7, 3}};
    for (size_t k = 0; k < ARRAY_LENGTH(shapes); k++) {
        generation_report r;
        generator *g = open_model(dir, (generator_options){.max_sequences = shapes[k].slots,
                                                           .page_size = shapes[k].page_size,
                                                           .n_threads = shapes[k].threads});
        training_must(generator_run(g, prompts->list, N, &s, NULL, &c, &r));
        uint64_t shared = 0, all = 0;
        for (size_t i = 0; i < N; i++) {
            size_t n = prompts->list[i].n_tokens, size = (size_t)shapes[k].page_size;
            shared += (EACH - 1) * ((n - 1) / size * size); /* full pages, never the last token */
            all += EACH * n;
        }
        assert_int_equal(r.shared_tokens, shared);
        assert_int_equal(r.prompt_tokens, all);
        check_memory(g, &r);
        if (first) assert_same_completions(c, first, N * EACH, "samples");
        else first = c;
        if (c != first) completions_free(c, N * EACH);
        if (k == 0) { /* completions of a prompt differ, and another seed gives others */
            assert_memory_not_equal(c[0].tokens, c[1].tokens, NEW * sizeof(int32_t));
            s.seed = 12;
            training_must(generator_run(g, prompts->list, N, &s, NULL, &c, &r));
            assert_memory_not_equal(c[0].tokens, first[0].tokens, NEW * sizeof(int32_t));
            completions_free(c, N * EACH);
            s.seed = 11;
        }
        generator_close(g);
    }
    completions_free(first, N * EACH);
    free(prompts);
    training_dir_remove(dir);
}

/* ---- logits ------------------------------------------------------------------------------------------------------- */

/* The same bits; from a device with other products for other shapes, within what the dtype of the activations gives. */
static void assert_same_logits(const float *a, const float *b, size_t n, precision q) {
    if (!backend_under_test()->discrete) {
        assert_memory_equal(a, b, n * sizeof *a);
        return;
    }
    float largest = 0, bound = q == PRECISION_FP32 ? 1e-5f : q == PRECISION_FP16 ? 1e-2f : 5e-2f;
    for (size_t i = 0; i < n; i++)
        if (fabsf(b[i]) > largest) largest = fabsf(b[i]);
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= bound * largest))
            fail_msg("logit %zu in %s: %g and %g, of at most %g", i, precision_name(q), a[i], b[i], largest);
}

static void prefill_and_token_by_token_give_the_same_bits_and_those_of_evaluation(void **state) {
    enum { N = 77 };
    int32_t tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)rng_below(9, (uint64_t)i, 256);
    for (size_t f = 0; f < ARRAY_LENGTH(families); f++)
        for (precision q = PRECISION_FP32; q <= PRECISION_FP16; q++) {
            if (q == PRECISION_BF16_SR) continue;
            char *dir = training_dir(), path[600];
            write_model(dir, f, NULL);
            float *logits[3];
            for (int k = 0; k < 3; k++) { /* whole, in small chunks, token by token */
                logits[k] = mem_alloc(N * BYTE_VOCAB * sizeof(float));
                generator *g = open_model(dir, (generator_options){.max_sequences = k == 1 ? 5 : 80,
                                                                   .page_size = k == 1 ? 3 : 32,
                                                                   .prefill = 128,
                                                                   .precision = q});
                training_must(generator_logits(g, tokens, N, k == 2, logits[k]));
                assert_same_logits(logits[k], logits[0], N * BYTE_VOCAB, q);
                generator_close(g);
            }
            if (q == PRECISION_FP32) {
                hf_model m;
                snprintf(path, sizeof path, "%s/model", dir);
                training_must(hf_open(&m, path, q, 1, N));
                training_must(weights_load_dir(m.e, &m.plan, path));
                hf_forward(&m, tokens, NULL);
                float *want = hf_logits(&m), largest = 0, error = 0;
                for (int i = 0; i < N * BYTE_VOCAB; i++) {
                    if (fabsf(want[i]) > largest) largest = fabsf(want[i]);
                    if (fabsf(want[i] - logits[0][i]) > error) error = fabsf(want[i] - logits[0][i]);
                }
                if (!(error <= 1e-4f * largest)) fail_msg("%s: error %g, largest %g", families[f].name, error, largest);
                free(want);
                hf_close(&m);
            }
            for (int k = 0; k < 3; k++) free(logits[k]);
            training_dir_remove(dir);
        }
}

/* Weights in 8 bits: sums are exact, so the same bits for every batch and chunk, one or many threads; near the logits of fp32, and
 * with a quarter of the bytes for what products read. */
static void weights_in_int8_give_the_same_bits_in_every_batch(void **state) {
    enum { N = 41 };
    int32_t tokens[N];
    if (backend_under_test()->discrete) skip();
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)rng_below(9, (uint64_t)i, 256);
    for (size_t f = 0; f < ARRAY_LENGTH(families); f++) {
        char *dir = training_dir();
        write_model(dir, f, NULL);
        float *logits[4];
        double size = 0, error = 0;
        uint64_t planned[4];
        for (int k = 0; k < 4; k++) { /* fp32; int8 whole, in small chunks, token by token */
            logits[k] = mem_alloc(N * BYTE_VOCAB * sizeof(float));
            generator *g = open_model(dir, (generator_options){.max_sequences = k == 2 ? 5 : 80,
                                                               .prefill = k == 2 ? 7 : 128,
                                                               .n_threads = k == 1 ? 1 : 3,
                                                               .weights = k > 0 ? BASE_INT8 : BASE_COMPUTE});
            training_must(generator_logits(g, tokens, N, k == 3, logits[k]));
            if (k > 1) assert_memory_equal(logits[k], logits[1], N * BYTE_VOCAB * sizeof(float));
            planned[k] = generator_plan(g)->by_role[ROLE_PARAM];
            generator_close(g);
        }
        for (int i = 0; i < N * BYTE_VOCAB; i++) {
            double d = logits[1][i] - logits[0][i];
            size += (double)logits[0][i] * logits[0][i], error += d * d;
        }
        if (!(sqrt(error / size) <= 0.08 && error > 0))
            fail_msg("%s: %g of the logits", families[f].name, sqrt(error / size));
        assert_true(planned[1] < planned[0] / 2);
        for (int k = 0; k < 4; k++) free(logits[k]);
        training_dir_remove(dir);
    }
}

/* The same in every format that a device multiplies or dequantises, with 16-bit activations: near the logits of whole weights, the
 * same bits token by token and all at once, and fewer bytes. Of more than 64 rows a GPU rounds otherwise (generate.h). */
static void weights_in_fewer_bits_are_near_whole_ones(void **state) {
    static const struct {
        base_format format;
        double error, bytes; /* of the logits, of the weights: at most */
    } cases[] = {{BASE_COMPUTE, 0, 1}, {BASE_INT8, 0.03, 0.6}, {BASE_FP8, 0.08, 0.7}, {BASE_NF4, 0.2, 0.45}};
    enum { N = 41 };
    int32_t tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)rng_below(9, (uint64_t)i, 256);
    char *dir = training_dir();
    model_config c = config_of(2); /* with biases of q, k and v */
    c.hidden = 128, c.head_dim = 32, c.n_kv_heads = 2, c.ffn = 192;
    hf_write_model(dir, &c, ordinary_weights);
    float *whole = mem_alloc(N * BYTE_VOCAB * sizeof(float)), *logits = mem_alloc(N * BYTE_VOCAB * sizeof(float)),
          *steps = mem_alloc(N * BYTE_VOCAB * sizeof(float));
    uint64_t bytes = 0;
    for (size_t k = 0; k < ARRAY_LENGTH(cases); k++) {
        double size = 0, error = 0;
        generator *g = open_model(
            dir, (generator_options){
                     .max_sequences = 64, .prefill = 64, .precision = PRECISION_BF16, .weights = cases[k].format});
        uint64_t planned = generator_plan(g)->by_role[ROLE_PARAM];
        float *to = k ? logits : whole;
        training_must(generator_logits(g, tokens, N, false, to));
        training_must(generator_logits(g, tokens, N, true, steps));
        for (int i = 0; i < N * BYTE_VOCAB; i++) {
            double d = to[i] - whole[i];
            size += (double)whole[i] * whole[i], error += d * d;
        }
        if (k == 0) bytes = planned;
        else if (!(sqrt(error / size) <= cases[k].error && error > 0))
            fail_msg("%s: %g of the logits", base_format_name(cases[k].format), sqrt(error / size));
        if (!((double)planned <= cases[k].bytes * (double)bytes))
            fail_msg("%s: %g of the bytes", base_format_name(cases[k].format), (double)planned / (double)bytes);
        if (k > 0) assert_memory_equal(steps, to, N * BYTE_VOCAB * sizeof(float));
        generator_close(g);
    }
    free(whole);
    free(logits);
    free(steps);
    training_dir_remove(dir);
}

/* ---- ends --------------------------------------------------------------------------------------------------------- */

typedef struct heard {
    strbuf text[4];
    int n_ended;
} heard;
static void on_text(void *context, size_t prompt, size_t index, const char *text, size_t n_bytes) {
    strbuf_add_bytes(&((heard *)context)->text[prompt], text, n_bytes);
}
static void on_completion(void *context, size_t prompt, size_t index, const completion *c) {
    ((heard *)context)->n_ended++;
}

static void completions_end_by_eos_stop_string_and_length(void **state) {
    enum { NEW = 30 };
    char *dir = training_dir(), eos[64];
    generation_report r;
    write_model(dir, 1, NULL);
    prompt_set *prompts = make_prompts(20);
    sampling_options s = greedy(NEW);
    s.temperature = 1; /* greedy texts of random models repeat themselves */
    completion *c, *full;
    generator *g = open_model(dir, (generator_options){.max_sequences = 3});
    training_must(generator_run(g, prompts->list, 4, &s, NULL, &full, &r));
    for (int i = 0; i < 4; i++) assert_int_equal(full[i].stop, STOP_LENGTH);
    /* Three bytes from the middle of the first text, where they stand for the first time. */
    char stop[4] = {0};
    size_t at = 0;
    for (size_t k = 5; k + 3 < full[0].text_bytes && !at; k++) {
        memcpy(stop, full[0].text + k, 3);
        bool usable = strlen(stop) == 3;
        for (size_t j = 0; j < k && usable; j++) usable = memcmp(full[0].text + j, stop, 3) != 0;
        if (usable) at = k;
    }
    assert_true(at > 0);
    heard h = {0};
    for (int i = 0; i < 4; i++) strbuf_init(&h.text[i]), strbuf_add(&h.text[i], "");
    s.stops = (const char *const[]){"never in it", stop};
    s.n_stops = 2;
    training_must(generator_run(g, prompts->list, 4, &s, &(generation_observer){&h, on_text, on_completion}, &c, &r));
    assert_int_equal(c[0].stop, STOP_STRING);
    assert_int_equal(c[0].text_bytes, at);
    assert_memory_equal(c[0].text, full[0].text, at);
    assert_memory_equal(c[0].tokens, full[0].tokens, c[0].n_tokens * sizeof(int32_t));
    assert_int_equal(h.n_ended, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(h.text[i].length, c[i].text_bytes);
        assert_memory_equal(h.text[i].text, c[i].text, c[i].text_bytes);
        strbuf_fini(&h.text[i]);
    }
    completions_free(c, 4);
    /* The sixth token ends a completion where the request says so, and does not where ends are to be passed over. */
    int32_t end = full[0].tokens[5];
    s.n_stops = 0;
    s.ends = &end;
    s.n_ends = 1;
    for (int ignored = 0; ignored < 2; ignored++) {
        s.ignore_eos = ignored;
        training_must(generator_run(g, prompts->list, 1, &s, NULL, &c, &r));
        assert_int_equal(c[0].stop, ignored ? STOP_LENGTH : STOP_EOS);
        assert_true(ignored ? c[0].n_tokens == NEW : c[0].n_tokens <= 6 && c[0].tokens[c[0].n_tokens - 1] == end);
        completions_free(c, 1);
    }
    s.n_ends = 0;
    generator_close(g);
    /* It becomes one of the model's two end tokens. */
    snprintf(eos, sizeof eos, "[258, %d]", full[0].tokens[5]);
    training_dir_remove(dir);
    dir = training_dir();
    write_model(dir, 1, eos);
    s.ignore_eos = false;
    g = open_model(dir, (generator_options){.max_sequences = 3});
    assert_int_equal(g->n_eos, 2);
    training_must(generator_run(g, prompts->list, 1, &s, NULL, &c, &r));
    assert_int_equal(c[0].stop, STOP_EOS);
    assert_true(c[0].n_tokens <= 6 && c[0].tokens[c[0].n_tokens - 1] == full[0].tokens[5]);
    assert_true(c[0].text_bytes < c[0].n_tokens);
    completions_free(c, 1);
    completions_free(full, 4);
    generator_close(g);
    free(prompts);
    training_dir_remove(dir);
}

static void a_completion_that_reaches_the_context_stops(void **state) {
    char *dir = training_dir();
    write_model(dir, 0, NULL);
    prompt_set *prompts = make_prompts(20);
    sampling_options s = greedy(1000);
    generation_report r;
    completion *c;
    generator *g = open_model(dir, (generator_options){.max_sequences = 2, .context = 24, .page_size = 7});
    training_must(generator_run(g, prompts->list, 3, &s, NULL, &c, &r));
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(c[i].n_tokens + prompts->list[i].n_tokens, 24);
        assert_int_equal(c[i].stop, STOP_LENGTH);
    }
    completions_free(c, 3);
    generator_close(g);
    free(prompts);
    training_dir_remove(dir);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------ */

static void refuse(generator *g, prompt p, const sampling_options *s, status code, const char *text) {
    completion *c;
    assert_int_equal(generator_run(g, &p, 1, s, NULL, &c, NULL), code);
    assert_null(c);
    if (!strstr(error_message(), text)) fail_msg("'%s' is not in: %s", text, error_message());
}

static void what_cannot_be_done_is_refused_and_changes_nothing(void **state) {
    char *dir = training_dir(), path[600];
    write_model(dir, 2, NULL);
    model_config c = config_of(2);
    int32_t many[CONTEXT] = {0}, bad[2] = {1, 260};
    sampling_options s = greedy(8), t;
    generator *g = open_model(
        dir, (generator_options){.max_sequences = 4, .page_size = 8, .cache_bytes = 6 * page_bytes(&c, 8, DTYPE_F32)});
    refuse(g, (prompt){many, 0}, &s, ERR_INPUT, "prompt 1 is empty");
    refuse(g, (prompt){many, CONTEXT}, &s, ERR_INPUT, "the context holds 128");
    refuse(g, (prompt){bad, 2}, &s, ERR_INPUT, "token 2 is 260");
    refuse(g, (prompt){many, 48}, &s, ERR_FIT, "need 7 pages of 8 tokens, the cache has 6");
    t = s, t.max_new = 0, refuse(g, (prompt){many, 2}, &t, ERR_INPUT, "max_new");
    t = s, t.temperature = NAN, refuse(g, (prompt){many, 2}, &t, ERR_INPUT, "temperature");
    t = s, t.top_p = 0, refuse(g, (prompt){many, 2}, &t, ERR_INPUT, "top_p");
    t = s, t.min_p = 2, refuse(g, (prompt){many, 2}, &t, ERR_INPUT, "min_p");
    t = s, t.stops = (const char *const[]){""}, t.n_stops = 1,
    refuse(g, (prompt){many, 2}, &t, ERR_INPUT, "stop string");
    /* Exactly as much as fits: 41 + 8 - 1 tokens in 6 pages. */
    completion *done;
    training_must(generator_run(g, &(prompt){many, 41}, 1, &s, NULL, &done, NULL));
    completions_free(done, 1);
    generator_close(g);
    snprintf(path, sizeof path, "%s/model", dir);
    generator_options o = {.source = path, .backend = backend_under_test(), .context = 4000};
    assert_int_equal(generator_open(&g, &o), ERR_INPUT);
    assert_non_null(strstr(error_message(), "at most 128, the positions of"));
    o.context = 0, o.device_limit = 100000;
    assert_int_equal(generator_open(&g, &o), ERR_FIT);
    assert_null(g);
    o.device_limit = 0, o.cache_bytes = 10;
    assert_int_equal(generator_open(&g, &o), ERR_FIT);
    o.cache_bytes = 0, o.source = dir;
    assert_int_equal(generator_open(&g, &o), ERR_INPUT);
    assert_non_null(strstr(error_message(), "config.json"));
    write_file(dir, "generation_config.json", "{\"eos_token_id\": [1, \"x\"]}");
    o.source = path;
    assert_int_equal(generator_open(&g, &o), ERR_INPUT);
    assert_non_null(strstr(error_message(), "eos_token_id"));
    training_dir_remove(dir);
}

/* As in transformers: where there is no generation_config.json, config.json says what ends a text. */
static void a_model_without_generation_config_ends_where_its_config_says(void **state) {
    static const struct {
        const char *eos;
        size_t n;
        int32_t first;
    } cases[] = {
        {"65", 1, 65}, {"[66, 67]", 2, 66}, {"[50256, 68]", 1, 68}, {"50256", 1, TOKEN_EOS}, {"null", 1, TOKEN_EOS}};
    char *dir = training_dir(), path[600];
    write_model(dir, 1, NULL);
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        model_config c = config_of(1);
        json_t *config = model_config_to_json(&c), *eos = json_loads(cases[i].eos, JSON_DECODE_ANY, NULL);
        json_object_set_new(config, "eos_token_id", eos);
        char *text = json_dumps(config, 0);
        write_file(dir, "config.json", text);
        snprintf(path, sizeof path, "%s/model/generation_config.json", dir);
        unlink(path);
        generator *g = open_model(dir, (generator_options){0});
        assert_int_equal(g->n_eos, cases[i].n);
        assert_int_equal(g->eos[0], cases[i].first);
        generator_close(g);
        /* One that is there has the last word, though it says nothing of it, or names what is no token. */
        write_file(dir, "generation_config.json", i % 2 ? "{\"eos_token_id\": 50256}" : "{\"bos_token_id\": 1}");
        g = open_model(dir, (generator_options){0});
        assert_int_equal(g->n_eos, 1);
        assert_int_equal(g->eos[0], TOKEN_EOS);
        generator_close(g);
        free(text);
        json_decref(config);
    }
    training_dir_remove(dir);
}

static void logits_that_are_not_finite_end_the_run_and_leave_the_generator_whole(void **state) {
    char *dir = training_dir();
    write_model(dir, 1, NULL);
    prompt_set *prompts = make_prompts(20);
    sampling_options s = greedy(4);
    completion *c;
    generator *g = open_model(dir, (generator_options){.max_sequences = 2});
    value_id w = program_find(&g->plan->program, "final_norm.g");
    float before, nan = NAN;
    exec_read(g->e, w, 0, &before, sizeof before);
    exec_write(g->e, w, 0, &nan, sizeof nan);
    assert_int_equal(generator_run(g, prompts->list, 5, &s, NULL, &c, NULL), ERR_RUN);
    assert_non_null(strstr(error_message(), "not finite"));
    assert_int_equal(g->pages.n_free, g->pages.n_pages);
    exec_write(g->e, w, 0, &before, sizeof before);
    training_must(generator_run(g, prompts->list, 5, &s, NULL, &c, NULL));
    completions_free(c, 5);
    generator_close(g);
    free(prompts);
    training_dir_remove(dir);
}

/* ---- sources ------------------------------------------------------------------------------------------------------- */

static void a_run_its_checkpoint_and_its_export_say_the_same(void **state) {
    for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++) {
        char *dir = training_dir(), run[600], exported[600], newest[4096];
        snprintf(run, sizeof run, "%s/run", dir);
        snprintf(exported, sizeof exported, "%s/model", dir);
        train_result result;
        training t = {.preset = "test-qwen3", .precision = q, .dir = run, .more = SETTINGS("model.vocab=260")};
        training_must(training_run(&t, &result));
        export_report report;
        training_must(export_checkpoint(run, &(export_options){.dir = exported, .type = DTYPE_F32}, &report));
        training_must(checkpoint_find_newest(run, newest, sizeof newest));
        const char *sources[] = {exported, run, newest};
        int32_t tokens[9] = {10, 40, 70, 80, 90, 100, 110, 120, 130};
        float *logits[3];
        for (size_t i = 0; i < ARRAY_LENGTH(sources); i++) {
            generator *g;
            logits[i] = mem_alloc(9 * BYTE_VOCAB * sizeof(float));
            training_must(generator_open(
                &g, &(generator_options){
                        .source = sources[i], .backend = backend_under_test(), .precision = q, .max_sequences = 9}));
            training_must(generator_logits(g, tokens, 9, false, logits[i]));
            assert_memory_equal(logits[i], logits[0], 9 * BYTE_VOCAB * sizeof(float));
            assert_int_equal(g->n_eos, 1);
            assert_int_equal(g->eos[0], TOKEN_EOS);
            generator_close(g);
        }
        for (size_t i = 0; i < 3; i++) free(logits[i]);
        training_dir_remove(dir);
    }
}

/* ---- plan ----------------------------------------------------------------------------------------------------------- */

static void plans_of_generation_verify_and_add_up(void **state) {
    const backend *b = backend_under_test();
    for (size_t f = 0; f < ARRAY_LENGTH(families); f++)
        for (precision q = 0; q < PRECISION_COUNT; q++) {
            plan p;
            model_config c = config_of(f);
            plan_request r = {
                .source = net_source_of(&c),
                .choice.accumulation = 1,
                .choice.precision = q,
                .verify = true,
                .target = backend_target(backend_kind(b), 2),
                .generation = {.slots = 6, .pages = 72, .page_size = 5, .context = 60, .prefill_tokens = 24}};
            training_must(plan_build(&p, &r));
            size_t first, end;
            program_section(&p.program, SECTION_MICRO, &first, &end);
            assert_int_equal(first, end);
            program_section(&p.program, SECTION_UPDATE, &first, &end);
            assert_int_equal(first, end);
            uint64_t sum = p.gap_bytes;
            for (role i = 0; i < ROLE_COUNT; i++) sum += p.by_role[i];
            assert_int_equal(sum, p.planned[TIER_DEVICE]);
            assert_int_equal(p.by_role[ROLE_CACHE], 72 * page_bytes(&c, 5, precision_compute(q)));
            assert_int_equal(p.by_role[ROLE_PARAM], model_param_count(&c) * dtype_bytes(precision_compute(q)));
            assert_int_equal(p.by_role[ROLE_GRAD] + p.by_role[ROLE_STATE], 0);
            assert_true(p.flops_per_step > 0);
            json_t *strategy = plan_strategy_json(&p);
            assert_int_equal(json_integer_value(json_object_get(strategy, "sequences")), 6);
            json_decref(strategy);
            /* Too little memory: the change that is named does fit. */
            p.request.device_limit = p.planned[TIER_DEVICE] - 1;
            assert_int_equal(plan_check_fit(&p), ERR_FIT);
            assert_non_null(strstr(error_message(), "--batch 3"));
            plan_close(&p);
        }
}

/* ---- perplexity ------------------------------------------------------------------------------------------------------ */

static void perplexity_is_that_of_the_logits(void **state) {
    enum { BYTES = 1000, T = 48 };
    char *dir = training_dir(), path[600], model[600];
    unsigned char text[BYTES];
    write_model(dir, 3, NULL);
    for (int i = 0; i < BYTES; i++) text[i] = (unsigned char)(32 + rng_below(1, (uint64_t)i, 90));
    text[BYTES - 200 - 1] = 0xc3, text[BYTES - 200] = 0xa4; /* the last fifth would begin inside a character */
    snprintf(path, sizeof path, "%s/text.txt", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, BYTES, f), BYTES);
    assert_int_equal(fclose(f), 0);
    snprintf(model, sizeof model, "%s/model", dir);
    perplexity_report r;
    perplexity_options o = {.source = model,
                            .path = path,
                            .last = 0.2,
                            .seq_len = T,
                            .batch = 3,
                            .n_threads = 2,
                            .backend = backend_under_test()};
    training_must(perplexity_measure(&o, NULL, &r));
    assert_int_equal(r.n_tokens, 199);
    assert_int_equal(r.n_predicted, 198);
    assert_int_equal(r.memory.peak[TIER_DEVICE], r.memory.planned[TIER_DEVICE]);
    assert_int_equal(r.memory.n_allocations, 0);
    generator *g = open_model(dir, (generator_options){.max_sequences = 16});
    float *logits = mem_alloc(T * BYTE_VOCAB * sizeof *logits);
    double sum = 0;
    for (int at = 0; at < 198; at += T) {
        int32_t tokens[T + 1];
        int n = MIN(T, 198 - at);
        for (int i = 0; i <= n; i++) tokens[i] = text[BYTES - 199 + at + i];
        training_must(generator_logits(g, tokens, (size_t)n, false, logits));
        for (int i = 0; i < n; i++) {
            double total = 0;
            for (int v = 0; v < BYTE_VOCAB; v++) total += exp((double)logits[i * BYTE_VOCAB + v]);
            sum += log(total) - logits[i * BYTE_VOCAB + tokens[i + 1]];
        }
    }
    assert_true(fabs(r.loss - sum / 198) < 1e-4);
    assert_true(fabs(r.perplexity - exp(r.loss)) < 1e-9 * r.perplexity);
    assert_true(fabs(r.bits_per_byte - r.loss * 198 / log(2) / 199) < 1e-9);
    o.last = 0.001; /* one byte: nothing to predict */
    assert_int_equal(perplexity_measure(&o, NULL, &r), ERR_INPUT);
    o.last = 1, o.seq_len = CONTEXT + 1;
    assert_int_equal(perplexity_measure(&o, NULL, &r), ERR_INPUT);
    free(logits);
    generator_close(g);
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batched_completions_equal_those_one_by_one),
        cmocka_unit_test(samples_depend_on_seed_prompt_index_and_position_alone),
        cmocka_unit_test(prefill_and_token_by_token_give_the_same_bits_and_those_of_evaluation),
        cmocka_unit_test(weights_in_int8_give_the_same_bits_in_every_batch),
        cmocka_unit_test(weights_in_fewer_bits_are_near_whole_ones),
        cmocka_unit_test(completions_end_by_eos_stop_string_and_length),
        cmocka_unit_test(a_model_without_generation_config_ends_where_its_config_says),
        cmocka_unit_test(a_completion_that_reaches_the_context_stops),
        cmocka_unit_test(what_cannot_be_done_is_refused_and_changes_nothing),
        cmocka_unit_test(logits_that_are_not_finite_end_the_run_and_leave_the_generator_whole),
        cmocka_unit_test(a_run_its_checkpoint_and_its_export_say_the_same),
        cmocka_unit_test(plans_of_generation_verify_and_add_up),
        cmocka_unit_test(perplexity_is_that_of_the_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
