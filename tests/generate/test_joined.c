/* test_joined.c - a GPU does several ops of a decode step in one kernel; where a run is traced it does not, and the completions have the
 * same bits.
 *
 * Heads as its kernels take them: of 64, 96 and 128 columns, with norm and bias, one query head and four to a kv head; positions of a few splits, of one
 * round of splits and of several; few rows, and more; prompts in chunks so small that several tokens of a
 * sequence are in a step; pages that are fetched whole and pages that are not. */
#include "backend_choice.h"
#include "generate/generate.h"
#include "hf.h"
#include "model/model.h"
#include "training.h"
#include "weights/source.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 40, NEW = 20, LONGEST = 900 };

static const model_config models[] = {
    {.name = "q2", .family = FAMILY_QWEN2, .hidden = 256, .n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .ffn = 200},
    {.name = "q3", .family = FAMILY_QWEN3, .hidden = 136, .n_heads = 4, .n_kv_heads = 4, .head_dim = 128, .ffn = 96},
    {.name = "l", .family = FAMILY_LLAMA, .hidden = 1032, .n_heads = 4, .n_kv_heads = 2, .head_dim = 96, .ffn = 72},
    {.name = "c", .family = FAMILY_QWEN2, .hidden = 256, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .ffn = 576},
    {.name = "g", .family = FAMILY_GPT2, .hidden = 320, .n_heads = 5, .n_kv_heads = 5, .head_dim = 64, .ffn = 640}};

/* Rows of weights as a GPU multiplies them in codes. */
static bool takes_codes(const model_config *c) {
    return c->hidden % 64 == 0 && c->ffn % 64 == 0 && c->n_heads * c->head_dim % 64 == 0;
}

static model_config kind_of_model(size_t i) {
    model_config c = models[i];
    c.vocab = BYTE_VOCAB, c.n_layers = 2, c.max_positions = 1024, c.norm_eps = 1e-5;
    if (c.family != FAMILY_GPT2) c.rope = (rope_options){.type = ROPE_DEFAULT, .theta = 10000};
    return c;
}

static void random_weights(hf_model *m) { params_initialize(m->e, &m->plan, 1); }

static bool are_apart(const value *a, const value *b) {
    return a->offset + value_bytes(a) <= b->offset || b->offset + value_bytes(b) <= a->offset;
}

static void assert_apart(const plan *p, value_id a, value_id b) {
    if (a && b) assert_true(are_apart(program_get(&p->program, a), program_get(&p->program, b)));
}

static int n_norms_before_codes, n_gates;

/* A product of a decode step, the op in front of it and the one behind it. */
static void check_neighbours(const plan *p, const op *product) {
    const op *norm = product - 1, *gate = product + 1;
    bool codes = product->kind == OP_LINEAR_CODES;
    if (codes && (norm->kind == OP_ADD_RMSNORM || norm->kind == OP_ADD_LAYERNORM)) {
        for (int i = 0; i < op_input_count(norm->kind); i++) assert_apart(p, norm->in[i], product->work);
        for (int i = 0; i < op_output_count(norm->kind); i++) assert_apart(p, norm->out[i], product->work);
        n_norms_before_codes++;
    }
    if (gate->kind == OP_SWIGLU) {
        assert_apart(p, gate->out[SWIGLU_Y], product->in[LINEAR_X]);
        if (codes) assert_apart(p, gate->out[SWIGLU_Y], product->work);
        n_gates++;
    }
}

/* A plan for a GPU, made anywhere: what a gate writes lies beside what the product in front of it reads. Of weights in codes a product has the
 * rounded x in its scratch: a norm in front of it may already write there, and the gate behind it does not. */
static void joined_ops_write_nothing_that_others_of_them_read(void **state) {
    static const base_format formats[] = {BASE_COMPUTE, BASE_INT8};
    const int n_layers = 2, n_gated = ARRAY_LENGTH(models) - 1; /* GPT-2 has no gate */
    n_norms_before_codes = n_gates = 0;
    for (size_t k = 0; k < ARRAY_LENGTH(formats) * ARRAY_LENGTH(models); k++) {
        plan p;
        model_config model = kind_of_model(k / ARRAY_LENGTH(formats));
        plan_request r = {.source = net_source_of(&model),
                          .choice = {.precision = PRECISION_BF16, .accumulation = 1},
                          .target = backend_target(DEVICE_CUDA, 2),
                          .generation = {.slots = 16,
                                         .pages = 32,
                                         .page_size = 32,
                                         .context = 64,
                                         .prefill_tokens = 64,
                                         .weights = formats[k % ARRAY_LENGTH(formats)]}};
        training_must(plan_build(&p, &r));
        size_t first, end;
        program_section(&p.program, SECTION_DECODE, &first, &end);
        for (size_t i = first + 1; i + 1 < end; i++) {
            const op *o = &p.program.ops[i];
            if (o->kind == OP_LINEAR || o->kind == OP_LINEAR_CODES) check_neighbours(&p, o);
        }
        plan_close(&p);
    }
    assert_int_equal(n_gates, n_layers * (int)ARRAY_LENGTH(formats) * n_gated);
    /* all but the first of a model, which adds nothing, and with the last, of logits */
    assert_int_equal(n_norms_before_codes, 2 * n_layers * (int)ARRAY_LENGTH(models));
}

static completion *complete(const char *dir, int64_t slots, precision q, base_format weights, const char *trace,
                            const prompt *prompts, size_t n) {
    char path[600];
    generator *g;
    completion *list;
    sampling_options s = SAMPLING_DEFAULTS;
    s.max_new = NEW, s.ignore_eos = true;
    snprintf(path, sizeof path, "%s/model", dir);
    generator_options o = {.source = path,
                           .backend = backend_under_test(),
                           .n_threads = 2,
                           .max_sequences = slots,
                           .prefill = slots > 6 ? 24 : 0,
                           .page_size = slots == 6 ? 5 : 0,
                           .precision = q,
                           .weights = weights,
                           .trace_path = trace};
    training_must(generator_open(&g, &o));
    training_must(generator_run(g, prompts, n, &s, NULL, &list, NULL));
    generator_close(g);
    return list;
}

static void joined_ops_give_the_bits_of_the_ops_alone(void **state) {
    static const int64_t slots[] = {1, 6, 30, N};
    if (!backend_under_test()->discrete) skip();
    int32_t *tokens = mem_alloc(N * LONGEST * sizeof *tokens);
    prompt prompts[N];
    for (int i = 0; i < N * LONGEST; i++) tokens[i] = (int32_t)rng_below(7, (uint64_t)i, 256);
    for (size_t i = 0; i < N; i++) prompts[i] = (prompt){tokens + i * LONGEST, LONGEST - i * 131 % 850};
    for (size_t f = 0; f < ARRAY_LENGTH(models); f++) {
        char *dir = training_dir(), trace[600];
        model_config c = kind_of_model(f);
        hf_write_model(dir, &c, random_weights);
        snprintf(trace, sizeof trace, "%s/trace.json", dir);
        size_t formats = takes_codes(&c) ? BASE_FORMAT_COUNT : 1;
        for (size_t k = 0; k < 2 * formats * ARRAY_LENGTH(slots); k++) {
            precision q = k % 2 ? PRECISION_FP16 : PRECISION_BF16;
            base_format weights = (base_format)(k / 2 % formats);
            int64_t s = slots[k / 2 / formats];
            size_t n = (size_t)s;
            completion *joined = complete(dir, s, q, weights, NULL, prompts, n);
            completion *alone = complete(dir, s, q, weights, trace, prompts, n);
            for (size_t i = 0; i < n; i++) {
                if (memcmp(joined[i].log_probabilities, alone[i].log_probabilities, NEW * sizeof(float)) != 0)
                    fail_msg("%s, %s, weights %s, %zu sequences: completion %zu differs", models[f].name,
                             precision_name(q), base_format_name(weights), n, i);
                assert_memory_equal(joined[i].tokens, alone[i].tokens, NEW * sizeof(int32_t));
            }
            completions_free(joined, n);
            completions_free(alone, n);
        }
        training_dir_remove(dir);
    }
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(joined_ops_write_nothing_that_others_of_them_read),
                                       cmocka_unit_test(joined_ops_give_the_bits_of_the_ops_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
