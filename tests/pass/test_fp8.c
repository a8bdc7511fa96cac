/* test_fp8.c - the fp8 pass: what it writes, that it trains like bf16, and that no technique of memory changes a bit of it. */
#include "backend_choice.h"
#include "show/show.h"
#include "training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

/* ---- programs ------------------------------------------------------------------------------------------------------- */

static void compile(compiled *k, const training *t) {
    compiled_request(k, t);
    k->r.plan.open = (plan_open){0}; /* nothing is to be moved */
    compiled_plan(k);
}

static size_t count(const program *p, section s, op_kind k) {
    size_t n = 0, first, end;
    for (program_section(p, s, &first, &end); first < end; first++) n += p->ops[first].kind == k;
    return n;
}

/* The layers multiply in 8 bits, weights are rounded once per step, each tensor once, and most largest numbers come from
 * the op that wrote the tensor. */
static void the_pass_rewrites_the_products_of_the_layers(void **state) {
    (void)state;
    enum { LAYERS = 2, LINEARS = 4 };
    compiled k;
    compile(&k, &(training){.preset = "test-qwen3",
                            .precision = PRECISION_FP8,
                            .accumulation = 2,
                            .more = SETTINGS("train.eval_rows=4")});
    const program *p = &k.p.program;
    assert_int_equal(count(p, SECTION_MICRO, OP_LINEAR8), 3 * LINEARS * LAYERS);
    assert_int_equal(count(p, SECTION_MICRO, OP_LINEAR), 0);
    assert_int_equal(count(p, SECTION_MICRO, OP_LINEAR_DX), 0);
    assert_int_equal(count(p, SECTION_MICRO, OP_LINEAR_DW), 0);
    assert_int_equal(count(p, SECTION_MICRO, OP_QUANTIZE), 2 * LINEARS * LAYERS); /* x and dy of each */
    /* Attention's output and, behind rope and the norm of heads, dqkv. */
    assert_int_equal(count(p, SECTION_MICRO, OP_ABSMAX), 2 * LAYERS);
    assert_int_equal(count(p, SECTION_PREPARE, OP_QUANTIZE), LINEARS * LAYERS);
    assert_int_equal(count(p, SECTION_EVAL, OP_LINEAR), LINEARS * LAYERS);
    assert_int_equal(count(p, SECTION_EVAL, OP_LINEAR8), 0);
    for (size_t i = 0; i < p->n_ops; i++) { /* gradients of weights, and nothing else, are sums over tokens */
        const op *o = &p->ops[i];
        if (o->kind != OP_LINEAR8) continue;
        assert_true(o->attr.over_tokens == (program_get(p, o->out[LINEAR8_Y])->role == ROLE_WORK));
    }
    compiled_close(&k);
}

/* With train.fp8.logits the loss is one op over 8-bit numbers, the output layer is rounded once per step too, and evaluation
 * stays as it is. */
static void logits_are_rewritten_where_they_are_asked_for(void **state) {
    (void)state;
    enum { LAYERS = 2, LINEARS = 4 };
    compiled k;
    compile(&k, &(training){.preset = "test-qwen3",
                            .precision = PRECISION_FP8,
                            .more = SETTINGS("train.eval_rows=4", "model.vocab=272", "train.fp8.logits=true")});
    const program *p = &k.p.program;
    assert_int_equal(count(p, SECTION_MICRO, OP_UNEMBED8_LOSS_GRAD), 1);
    assert_int_equal(count(p, SECTION_MICRO, OP_UNEMBED_LOSS_GRAD), 0);
    assert_int_equal(count(p, SECTION_EVAL, OP_UNEMBED_LOSS), 1);
    assert_int_equal(count(p, SECTION_MICRO, OP_QUANTIZE), 2 * LINEARS * LAYERS + 1);
    assert_int_equal(count(p, SECTION_MICRO, OP_ABSMAX), 2 * LAYERS); /* the last norm hands its largest number out */
    assert_int_equal(count(p, SECTION_PREPARE, OP_QUANTIZE), LINEARS * LAYERS + 1);
    compiled_close(&k);
}

/* The ops of attention in MICRO that have 8-bit products, or have not. */
static size_t attends(const program *p, section s, op_kind k, bool fp8) {
    size_t n = 0, first, end;
    for (program_section(p, s, &first, &end); first < end; first++)
        n += p->ops[first].kind == k && p->ops[first].attr.fp8 == fp8;
    return n;
}

/* With train.fp8.attention the forward of attention is of 8-bit numbers, also where it is computed again; its backward and evaluation
 * stay as they are. */
static void attention_is_rounded_where_it_is_asked_for(void **state) {
    (void)state;
    enum { LAYERS = 2 };
    for (int again = 0; again < 2; again++) {
        compiled k;
        compile(&k, &(training){.preset = "test-qwen3",
                                .precision = PRECISION_FP8,
                                .more = SETTINGS("train.eval_rows=4", "train.fp8.attention=true", "model.head_dim=64",
                                                 again ? "memory.recompute=full" : "memory.recompute=none")});
        const program *p = &k.p.program;
        assert_int_equal(attends(p, SECTION_MICRO, OP_ATTENTION, true), LAYERS * (1 + again));
        assert_int_equal(attends(p, SECTION_MICRO, OP_ATTENTION, false), 0);
        assert_int_equal(attends(p, SECTION_MICRO, OP_ATTENTION_BWD, false), LAYERS);
        assert_int_equal(attends(p, SECTION_EVAL, OP_ATTENTION, false), LAYERS);
        compiled_close(&k);
    }
}

/* Scales of powers of two: SwiGLU, its backward and norms round by themselves, and their 16-bit numbers are in no plan. */
static void ops_round_where_scales_are_powers_of_two(void **state) {
    (void)state;
    enum { LAYERS = 2, LINEARS = 4 };
    compiled k;
    compile(&k, &(training){.preset = "test-qwen3",
                            .precision = PRECISION_FP8,
                            .more = SETTINGS("train.fp8.scales=power", "memory.recompute=none")});
    const program *p = &k.p.program;
    assert_int_equal(count(p, SECTION_MICRO, OP_SWIGLU8), 2 * LAYERS);
    assert_int_equal(count(p, SECTION_MICRO, OP_SWIGLU) + count(p, SECTION_MICRO, OP_SWIGLU_BWD), 0);
    assert_int_equal(count(p, SECTION_MICRO, OP_RMSNORM8), 2 * LAYERS);
    assert_int_equal(count(p, SECTION_MICRO, OP_RMSNORM) + count(p, SECTION_MICRO, OP_ADD_RMSNORM), 1); /* the last */
    assert_int_equal(count(p, SECTION_MICRO, OP_QUANTIZE), (2 * LINEARS - 4) * LAYERS);
    assert_int_equal(count(p, SECTION_MICRO, OP_ABSMAX), 0); /* QUANTIZE looks for the largest number itself */
    compiled_close(&k);
}

/* Scales of blocks: every tensor of a layer is rounded in one op, no pass looks for largest numbers; logits keep one scale each. */
static void blocks_need_no_largest_number(void **state) {
    (void)state;
    enum { LAYERS = 2, LINEARS = 4 };
    compiled k;
    compile(&k, &(training){.preset = "test-qwen3",
                            .precision = PRECISION_FP8,
                            .seq_len = 64,
                            .micro_batch = 2,
                            .more = SETTINGS("train.fp8.scales=block", "train.fp8.logits=true", "model.vocab=272",
                                             "model.hidden=128", "model.heads=4", "model.kv_heads=2",
                                             "model.head_dim=32", "model.ffn=256")});
    const program *p = &k.p.program;
    assert_int_equal(count(p, SECTION_MICRO, OP_LINEAR8), 3 * LINEARS * LAYERS);
    assert_int_equal(count(p, SECTION_MICRO, OP_QUANTIZE_BLOCKS), 2 * LINEARS * LAYERS);
    assert_int_equal(count(p, SECTION_PREPARE, OP_QUANTIZE_BLOCKS), LINEARS * LAYERS);
    assert_int_equal(count(p, SECTION_MICRO, OP_QUANTIZE), 1);
    assert_int_equal(count(p, SECTION_PREPARE, OP_QUANTIZE), 1);
    assert_int_equal(count(p, SECTION_MICRO, OP_ABSMAX), 0);
    compiled_close(&k);
}

/* The base of adapters never changes: a step rounds none of it, and its 8-bit numbers take two bytes a weight as
 * trained ones do, but for the first product, whose transpose would give a gradient to the frozen embedding. */
static void frozen_weights_are_rounded_once(void **state) {
    (void)state;
    enum { LAYERS = 2, LINEARS = 4 };
    for (int logits = 0; logits < 2; logits++) {
        compiled k;
        compile(&k, &(training){.preset = "test-qwen3",
                                .precision = PRECISION_FP8,
                                .accumulation = 2,
                                .more = SETTINGS("model.lora.rank=4", "model.vocab=272", "train.eval_rows=4",
                                                 logits ? "train.fp8.logits=true" : "train.fp8.logits=false")});
        const program *p = &k.p.program;
        assert_int_equal(count(p, SECTION_LOADED, OP_QUANTIZE), LINEARS * LAYERS + logits);
        assert_int_equal(count(p, SECTION_LOADED, OP_ABSMAX), LINEARS * LAYERS + logits);
        assert_int_equal(count(p, SECTION_PREPARE, OP_QUANTIZE) + count(p, SECTION_PREPARE, OP_ABSMAX), 0);
        /* No gradients of weights, and none for the embedding, which is frozen too. */
        assert_int_equal(count(p, SECTION_MICRO, OP_LINEAR8), 2 * LINEARS * LAYERS - 1);
        uint64_t rounded = 0, weights = 0;
        int n_without = 0;
        for (value_id v = 1; v < p->n_values; v++) {
            const value *w = &p->values[v];
            if (w->persistent && w->type == DTYPE_F8E4M3) rounded += value_bytes(w);
        }
        for (size_t i = 0; i < p->n_ops; i++) {
            const op *o = &p->ops[i];
            if (o->section != SECTION_LOADED || o->kind != OP_QUANTIZE) continue;
            uint64_t n = (uint64_t)shape_count(&program_get(p, o->in[QUANTIZE_X])->shape);
            weights += o->out[QUANTIZE_T] ? 2 * n : n;
            n_without += !o->out[QUANTIZE_T];
        }
        assert_int_equal(n_without, 1);
        assert_int_equal(rounded, weights);
        compiled_close(&k);
    }
}

/* What was asked for by name and cannot be done is an error that names the numbers. */
static void what_was_asked_for_and_does_not_fit_is_refused(void **state) {
    (void)state;
    const struct {
        precision precision;
        const char *setting, *words;
    } cases[] = {{PRECISION_FP8, "model.vocab=280", "a vocabulary of 280"},
                 {PRECISION_FP8, "train.micro_batch=1", "found 24 tokens"},
                 {PRECISION_FP8, "train.task=critic", "train.task critic"},
                 {PRECISION_FP8, "train.task=preference", "found true with train.task preference"},
                 {PRECISION_FP8, "train.task=rloo", "found true with train.task rloo"},
                 {PRECISION_FP8, "train.weighting=rho1", "found true with train.weighting rho1"},
                 {PRECISION_FP8, "train.fp8.scales=block", "train.fp8.scales is block: found 48 tokens"},
                 {PRECISION_BF16, "model.vocab=272", "precision is bf16"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        compiled k = {0};
        training t = {.preset = "test-llama",
                      .precision = cases[i].precision,
                      .more = SETTINGS("train.fp8.logits=true", "model.vocab=272", cases[i].setting)};
        status rc = training_request(&t, &k.c, &k.r);
        if (rc == OK) {
            k.r.plan.open = (plan_open){0};
            rc = plan_choose(&k.p, &k.r.plan);
        }
        assert_int_equal(rc, ERR_INPUT);
        if (!strstr(error_message(), cases[i].words)) fail_msg("%s: %s", cases[i].setting, error_message());
        config_fini(&k.c);
    }
}

/* So is attention, on a GPU by the length of heads. */
static void attention_that_has_no_8_bit_kernel_is_refused(void **state) {
    (void)state;
    const struct {
        const char *preset;
        precision precision;
        bool gpu;
        const char *setting, *words;
    } cases[] = {
        {"test-llama", PRECISION_BF16, false, "train.micro_batch=2",
         "train.fp8.attention is true and precision is bf16"},
        {"test-gemma2", PRECISION_FP8, false, "train.micro_batch=2", "caps its attention scores"},
        {"test-llama", PRECISION_FP8, true, "train.micro_batch=2", "found true with heads of 16 dimensions"},
        {"test-llama", PRECISION_FP8, true, "model.head_dim=64", NULL},
        {"test-llama", PRECISION_FP8, false, "train.micro_batch=2", NULL},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        compiled k = {0};
        training t = {.preset = cases[i].preset,
                      .precision = cases[i].precision,
                      .more = SETTINGS("train.fp8.attention=true", cases[i].setting)};
        status rc = training_request(&t, &k.c, &k.r);
        if (rc == OK) {
            k.r.plan.open = (plan_open){0};
            k.r.plan.target = backend_target(cases[i].gpu ? DEVICE_CUDA : DEVICE_CPU, 2);
            rc = plan_choose(&k.p, &k.r.plan);
        }
        if (!cases[i].words) {
            training_must(rc);
            compiled_close(&k);
            continue;
        }
        assert_int_equal(rc, ERR_INPUT);
        if (!strstr(error_message(), cases[i].words)) fail_msg("%s: %s", cases[i].setting, error_message());
        config_fini(&k.c);
    }
}

/* 16 bits where a side is no multiple of 16, whichever it is; the program is that of bf16 then. */
static void what_does_not_fit_stays_in_16_bits(void **state) {
    (void)state;
    const struct {
        int64_t seq_len;
        const char *more;
        size_t n8; /* forward products in 8 bits */
    } cases[] = {{24, "model.ffn=160", 8}, {17, "model.ffn=160", 0}, {24, "model.ffn=100", 4}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        compiled a, b;
        training t = {.preset = "test-llama",
                      .precision = PRECISION_FP8,
                      .seq_len = cases[i].seq_len,
                      .more = SETTINGS(cases[i].more)};
        compile(&a, &t);
        t.precision = PRECISION_BF16;
        compile(&b, &t);
        size_t all = count(&b.p.program, SECTION_MICRO, OP_LINEAR);
        assert_int_equal(all - count(&a.p.program, SECTION_MICRO, OP_LINEAR), cases[i].n8);
        assert_int_equal(count(&a.p.program, SECTION_MICRO, OP_LINEAR8), 3 * cases[i].n8);
        if (cases[i].n8 == 0) assert_true(program_hash(&a.p.program) == program_hash(&b.p.program));
        compiled_close(&a);
        compiled_close(&b);
    }
}

/* Two bytes more per parameter of the layers' products, whatever else a precision keeps. */
static void weights_take_two_bytes_more(void **state) {
    (void)state;
    const precision pairs[][2] = {{PRECISION_FP8, PRECISION_BF16}, {PRECISION_FP8_SR, PRECISION_BF16_SR}};
    for (size_t i = 0; i < ARRAY_LENGTH(pairs); i++) {
        uint64_t bytes[2], weights = 0, n_scales = 0;
        for (int k = 0; k < 2; k++) {
            compiled a;
            compile(&a, &(training){.preset = "test-qwen3", .precision = pairs[i][k]});
            const program *p = &a.p.program;
            bytes[k] = 0;
            for (value_id v = 1; v < p->n_values; v++) {
                const value *w = &p->values[v];
                if (!w->persistent || w->role != ROLE_PARAM) continue;
                bytes[k] += value_bytes(w);
                if (k == 0 && w->type == DTYPE_F32) n_scales++;
                if (k == 1 && w->layer >= 0 && w->shape.rank == 2) weights += (uint64_t)shape_count(&w->shape);
            }
            compiled_close(&a);
        }
        assert_int_equal(n_scales, 8);
        assert_int_equal(bytes[0] - bytes[1], 2 * weights + 4 * n_scales);
    }
}

static uint64_t kept(precision q, const char *rung) {
    compiled k;
    compile(&k, &(training){
                    .preset = "test-qwen3", .precision = q, .seq_len = 64, .micro_batch = 4, .more = SETTINGS(rung)});
    uint64_t n = k.p.by_role[ROLE_ACTIVATION];
    compiled_close(&k);
    return n;
}

/* What the backward keeps of a product's input is 8 bits of it, and each rung keeps less than the one before. */
static void less_is_kept_for_the_backward(void **state) {
    (void)state;
    uint64_t none = kept(PRECISION_FP8, "memory.recompute=none"), norms = kept(PRECISION_FP8, "memory.recompute=norms");
    uint64_t selective = kept(PRECISION_FP8, "memory.recompute=selective");
    assert_true(none < kept(PRECISION_BF16, "memory.recompute=none"));
    assert_true(norms < none && selective < norms);
}

/* A processor has no units for it: who asks is told, once for people and once for programs. On a GPU there is nothing to say. */
static void a_processor_says_that_it_emulates(void **state) {
    (void)state;
    for (precision q = PRECISION_FP32; q < PRECISION_COUNT; q++)
        for (int gpu = 0; gpu < 2; gpu++) {
            compiled k = {0};
            training_must(training_request(&(training){.precision = q}, &k.c, &k.r));
            k.r.plan.open = (plan_open){0};
            k.r.plan.target = backend_target(gpu ? DEVICE_CUDA : DEVICE_CPU, 2);
            training_must(plan_choose(&k.p, &k.r.plan));
            strbuf note;
            strbuf_init(&note);
            plan_note(&k.p, &note);
            json_t *root = plan_json(&k.p, NULL);
            const json_t *notes = json_object_get(root, "notes");
            bool emulated = precision_fp8(q) && !gpu;
            assert_int_equal(note.length > 0, emulated);
            assert_int_equal(json_array_size(notes), emulated);
            if (emulated) {
                assert_non_null(strstr(note.text, precision_name(q)));
                assert_non_null(strstr(note.text, "emulated"));
                assert_string_equal(json_string_value(json_array_get(notes, 0)), note.text);
            }
            json_decref(root);
            strbuf_fini(&note);
            compiled_close(&k);
        }
}

/* ---- training ------------------------------------------------------------------------------------------------------- */

static void check_bits(const train_result *plain, training t, const char *const *more) {
    train_result r;
    char name[256];
    snprintf(name, sizeof name, "%s", precision_name(t.precision));
    for (const char *const *s = more; *s; s++) snprintf(name + strlen(name), sizeof name - strlen(name), " %s", *s);
    t.more = more;
    training_must(training_run(&t, &r));
    if (r.param_hash != plain->param_hash || r.last_loss != plain->last_loss)
        fail_msg("%s: param_hash %016llx, plain %016llx", name, (unsigned long long)r.param_hash,
                 (unsigned long long)plain->param_hash);
    training_as_planned(&r, name);
}

static void no_technique_changes_a_bit(void **state) {
    (void)state;
    char *dir = training_dir(), path[600];
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    const char *const *const cells[] = {
        SETTINGS("memory.recompute=norms"),
        SETTINGS("memory.recompute=selective"),
        SETTINGS("memory.recompute=full"),
        SETTINGS("memory.recompute=every:2"),
        SETTINGS("memory.recompute=keep:attn.y"),
        SETTINGS("memory.offload.params=host", "memory.prefetch=0"),
        SETTINGS("memory.offload.params=nvme", "memory.offload.activations=host", "memory.prefetch=2", path),
        SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=nvme",
                 "memory.offload.activations=nvme", "memory.recompute=norms", "memory.bucket=256K", path),
        SETTINGS("memory.place=embed=cpu:0, layers.0=cpu:1, layers.1=cpu:0, head=cpu:2", "memory.recompute=full"),
    };
    const precision kinds[] = {PRECISION_FP8, PRECISION_FP8_SR};
    for (size_t m = 0; m < 2; m++)
        for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
            training t = {.preset = m ? "test-gpt2" : "test-qwen3",
                          .precision = kinds[k],
                          .accumulation = 1 + 2 * (int64_t)((m + k) % 2),
                          .steps = 3};
            train_result plain;
            training_must(training_run(&t, &plain));
            for (size_t i = 0; i < ARRAY_LENGTH(cells); i++) {
                bool places = i + 1 == ARRAY_LENGTH(cells);
                if (places && backend_under_test()->discrete) continue; /* a process drives one GPU */
                if ((i + m + k) % 2 || !SANITIZED || i == 7) check_bits(&plain, t, cells[i]);
            }
        }
    training_dir_remove(dir);
}

/* The same with logits in 8 bits, tied and not, and with scales of powers of two; chunks of logits that sum dw in fp32 are part
 * of the arithmetic. */
static void no_technique_changes_a_bit_of_8_bit_logits(void **state) {
    (void)state;
    static const char *const usual[] = {"train.fp8.logits=true", "train.fp8.scales=power", "model.vocab=272",
                                        "memory.logits_chunk=24K", NULL};
    const char *const *const cells[] = {
        SETTINGS("memory.recompute=full"),
        SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host",
                 "memory.offload.activations=host", "memory.recompute=norms"),
        SETTINGS("memory.place=embed=cpu:0, layers.0=cpu:1, layers.1=cpu:0, head=cpu:2"),
    };
    for (int tied = 0; tied < 2; tied++) {
        training t = {.preset = tied ? "test-qwen3" : "test-llama",
                      .precision = tied ? PRECISION_FP8 : PRECISION_FP8_SR,
                      .accumulation = 2,
                      .steps = 3,
                      .more = usual};
        train_result plain;
        training_must(training_run(&t, &plain));
        training_as_planned(&plain, "8-bit logits");
        for (size_t i = 0; i < ARRAY_LENGTH(cells); i++) {
            bool places = i + 1 == ARRAY_LENGTH(cells);
            if (places && backend_under_test()->discrete) continue; /* a process drives one GPU */
            const char *more[SETTINGS_MOST];
            settings_join(more, usual, cells[i]);
            check_bits(&plain, t, more);
        }
    }
}

/* The bits of the plain run, whose settings t has, with techniques that compute again or move. */
static void check_techniques(const train_result *plain, training t) {
    const char *const *const cells[] = {
        SETTINGS("memory.recompute=full"),
        SETTINGS("memory.recompute=selective"),
        SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host",
                 "memory.offload.activations=host", "memory.recompute=norms"),
    };
    const char *const *usual = t.more;
    for (size_t i = 0; i < ARRAY_LENGTH(cells); i++) {
        const char *more[SETTINGS_MOST];
        settings_join(more, usual, cells[i]);
        check_bits(plain, t, more);
    }
}

/* With attention in 8 bits: what is computed again, or from rows that were away, rounds the same numbers. Rows end inside of a block. */
static void no_technique_changes_a_bit_of_8_bit_attention(void **state) {
    (void)state;
    static const char *const usual[] = {"train.fp8.attention=true", "train.fp8.scales=power", "model.head_dim=64",
                                        NULL};
    training t = {.preset = "test-qwen3",
                  .precision = PRECISION_FP8_SR,
                  .seq_len = 144,
                  .micro_batch = 2,
                  .accumulation = 2,
                  .steps = 3,
                  .more = usual};
    train_result plain, without;
    training_must(training_run(&t, &plain));
    training_as_planned(&plain, "8-bit attention");
    check_techniques(&plain, t);
    t.more = SETTINGS("train.fp8.scales=power", "model.head_dim=64");
    training_must(training_run(&t, &without));
    assert_true(without.param_hash != plain.param_hash);
}

/* Scales of blocks travel with their numbers and are made again with them. */
static void no_technique_changes_a_bit_of_blocks(void **state) {
    (void)state;
    static const char *const usual[] = {"train.fp8.scales=block",
                                        "model.hidden=128",
                                        "model.heads=4",
                                        "model.kv_heads=2",
                                        "model.head_dim=32",
                                        "model.ffn=256",
                                        NULL};
    training t = {.preset = "test-qwen3",
                  .precision = PRECISION_FP8_SR,
                  .seq_len = 64,
                  .micro_batch = 2,
                  .accumulation = 2,
                  .steps = 3,
                  .more = usual};
    train_result plain;
    training_must(training_run(&t, &plain));
    training_as_planned(&plain, "blocks");
    check_techniques(&plain, t);
}

/* Adapters over a base whose 8-bit numbers are made once, also where they are made on the device and kept elsewhere, and where an
 * update and the next micro-batch are one section. */
static void no_technique_changes_a_bit_of_adapters(void **state) {
    (void)state;
    static const char *const usual[] = {"model.lora.rank=4", NULL};
    char *dir = training_dir(), path[600];
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    const char *const *const cells[] = {
        SETTINGS("memory.recompute=full"),
        SETTINGS("memory.offload.params=host", "memory.offload.states=host", "memory.overlap_update=true"),
        SETTINGS("memory.offload.params=nvme", "memory.offload.activations=host", "memory.recompute=norms", path),
    };
    training t = {.preset = "test-qwen3", .precision = PRECISION_FP8, .accumulation = 2, .steps = 4, .more = usual};
    train_result plain;
    training_must(training_run(&t, &plain));
    training_as_planned(&plain, "adapters");
    for (size_t i = 0; i < ARRAY_LENGTH(cells); i++) {
        const char *more[SETTINGS_MOST];
        settings_join(more, usual, cells[i]);
        check_bits(&plain, t, more);
    }
    training_dir_remove(dir);
}

static void check_resumed(training t) {
    train_result whole, part, rest;
    char *dir = training_dir();
    t.steps = 6;
    training_must(training_run(&t, &whole));
    t.dir = dir;
    t.steps = 3;
    training_must(training_run(&t, &part));
    t.steps = 6;
    t.resume = "auto";
    training_must(training_run(&t, &rest));
    assert_int_equal(rest.steps, 6);
    assert_true(rest.param_hash == whole.param_hash && part.param_hash != whole.param_hash);
    training_dir_remove(dir);
}

static void a_run_that_stops_goes_on_with_the_same_bits(void **state) {
    (void)state;
    training t = {.preset = "test-qwen3", .precision = PRECISION_FP8_SR, .accumulation = 2};
    t.more = SETTINGS("train.schedule=constant");
    check_resumed(t);
    t.more = SETTINGS("train.schedule=constant", "model.lora.rank=4");
    check_resumed(t);
    t.more = SETTINGS("train.schedule=constant", "train.fp8.attention=true", "model.head_dim=64");
    check_resumed(t);
}

/* Rounding every operand to 3 bits of fraction is noise that averages out: the loss goes where that of bf16 goes. The bound
 * is a tenth of the way that training has gone; a product with a wrong scale does not learn, or diverges. */
static void it_learns_as_bf16_does(void **state) {
    (void)state;
    const precision kinds[] = {PRECISION_BF16, PRECISION_FP8, PRECISION_FP8_SR, PRECISION_FP8, PRECISION_FP8};
    train_result r[ARRAY_LENGTH(kinds)];
    int64_t steps = SANITIZED ? 10 : 60;
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
        const char *logits = k == 3 ? "train.fp8.logits=true" : "train.fp8.logits=false",
                   *scales = k == 3 ? "train.fp8.scales=power" : "train.fp8.scales=exact",
                   *attention = k == 4 ? "train.fp8.attention=true" : "train.fp8.attention=false";
        training t = {.preset = "test-qwen3",
                      .precision = kinds[k],
                      .seq_len = 64,
                      .micro_batch = 4,
                      .steps = steps,
                      .more = SETTINGS("train.lr=3e-3", "train.warmup=5", "model.vocab=272", "model.head_dim=64",
                                       logits, scales, attention)};
        training_must(training_run(&t, &r[k]));
        print_message("%s, %s, %s: loss %.4f to %.4f in %lld steps\n", precision_name(kinds[k]), logits, attention,
                      r[k].first_loss, r[k].last_loss, (long long)steps);
    }
    double way = r[0].first_loss - r[0].last_loss;
    assert_true(way > (SANITIZED ? 0.2 : 1));
    for (size_t k = 1; k < ARRAY_LENGTH(kinds); k++) {
        assert_true(fabs(r[k].last_loss - r[0].last_loss) < way / 10);
        assert_true(r[k].param_hash != r[0].param_hash);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pass_rewrites_the_products_of_the_layers),
        cmocka_unit_test(logits_are_rewritten_where_they_are_asked_for),
        cmocka_unit_test(what_was_asked_for_and_does_not_fit_is_refused),
        cmocka_unit_test(blocks_need_no_largest_number),
        cmocka_unit_test(frozen_weights_are_rounded_once),
        cmocka_unit_test(attention_is_rounded_where_it_is_asked_for),
        cmocka_unit_test(attention_that_has_no_8_bit_kernel_is_refused),
        cmocka_unit_test(ops_round_where_scales_are_powers_of_two),
        cmocka_unit_test(what_does_not_fit_stays_in_16_bits),
        cmocka_unit_test(weights_take_two_bytes_more),
        cmocka_unit_test(a_processor_says_that_it_emulates),
        cmocka_unit_test(less_is_kept_for_the_backward),
        cmocka_unit_test(no_technique_changes_a_bit),
        cmocka_unit_test(no_technique_changes_a_bit_of_8_bit_logits),
        cmocka_unit_test(no_technique_changes_a_bit_of_8_bit_attention),
        cmocka_unit_test(no_technique_changes_a_bit_of_blocks),
        cmocka_unit_test(no_technique_changes_a_bit_of_adapters),
        cmocka_unit_test(a_run_that_stops_goes_on_with_the_same_bits),
        cmocka_unit_test(it_learns_as_bf16_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
