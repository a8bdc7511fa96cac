/* test_base.c - what a base in fewer bits costs: planned bytes by hand arithmetic, and the numbers of one weight alive at a time. */
#include "must.h"
#include "training.h"

#include <stdlib.h>

/* Bytes of all parameters of the plan. */
static uint64_t param_bytes(const plan *p) {
    uint64_t n = 0;
    for (value_id v = 1; v < p->program.n_values; v++) {
        const value *a = &p->program.values[v];
        if (a->persistent && a->role == ROLE_PARAM && !a->view_of) n += value_bytes(a);
    }
    return n;
}

static void role_is_of_adapters(const plan *p, role r) {
    for (value_id v = 1; v < p->program.n_values; v++) {
        const value *a = &p->program.values[v];
        if (a->persistent && a->role == r) assert_true(strstr(a->name, "lora_a") || strstr(a->name, "lora_b"));
    }
}

/* Qwen2.5-7B, 28 layers of width C = 3584 with 28 heads and 4 kv heads of 128, ffn 18944:
 *
 *     q 3584 x 3584, k and v 512 x 3584, o 3584 x 3584, gate, up and down 18944 x 3584 = 233,046,016 weights in 7 matrices,
 *     6,525,288,448 in 28 layers
 *
 * nf4 has half a byte for each, a byte for 64 of them, 4 bytes for 64 x 256 = 16384, and an offset of 4 bytes per matrix. Every
 * matrix here is whole blocks of both kinds, so
 *
 *     3,262,644,224 + 101,957,632 + 1,593,088 + 28 * 7 * 4 = 3,366,195,728 bytes, 4.127 bits per weight
 *
 * The rest is bf16: embedding and unembedding 152064 x 3584 each, norms (2 x 28 + 1) x 3584, biases 28 x (3584 + 2 x 512); and the
 * adapters, rank 16 (in + out) of every matrix: 40,370,176. */
static void a_7b_has_the_bytes_of_hand_arithmetic(void **state) {
    const int64_t C = 3584, KV = 512, F = 18944, L = 28, V = 152064, r = 16;
    const int64_t linear = L * (2 * C * C + 2 * KV * C + 3 * F * C);
    const int64_t adapters = L * r * (2 * (C + C) + 2 * (C + KV) + 3 * (C + F));
    const int64_t rest = 2 * V * C + (2 * L + 1) * C + L * (C + 2 * KV);
    assert_int_equal(linear, 6525288448);
    assert_int_equal(adapters, 40370176);
    assert_int_equal(linear / 2 + linear / 64 + linear / 4096 + 784, 3366195728);
    const struct {
        const char *setting;
        uint64_t linear_bytes;
    } cases[] = {
        {"model.base=nf4", (uint64_t)(linear / 2 + linear / 64 + linear / 16384 * 4 + L * 7 * 4)},
        {"model.base=int8", (uint64_t)(linear + L * (2 * C + 2 * KV + 2 * F + C) * 4)}, /* a scale per row */
        {"model.base=fp8", (uint64_t)(linear + L * 7 * 4)},                             /* a scale per matrix */
        {"model.base=bf16", (uint64_t)(linear * 2)},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        compiled k;
        training t = {.preset = "qwen2.5-7b", .precision = PRECISION_BF16, .seq_len = 128, .micro_batch = 1};
        t.more = SETTINGS("model.lora.rank=16", cases[i].setting);
        compiled_open(&k, &t);
        assert_int_equal(param_bytes(&k.p), cases[i].linear_bytes + 2 * (uint64_t)(rest + adapters));
        role_is_of_adapters(&k.p, ROLE_GRAD);
        role_is_of_adapters(&k.p, ROLE_STATE);
        print_message("%s: %.3f bits per weight of a linear layer, parameters %.2f GiB\n", cases[i].setting,
                      8.0 * (double)cases[i].linear_bytes / (double)linear, (double)param_bytes(&k.p) / (1 << 30));
        compiled_close(&k);
    }
}

/* From its first DEQUANTIZE to the one op that reads it; in the forward, where it is repeated, in the backward and in evaluation. */
static void the_numbers_of_one_weight_are_alive_at_a_time(void **state) {
    static const char *const policies[] = {"memory.recompute=none", "memory.recompute=full",
                                           "memory.recompute=selective"};
    for (size_t i = 0; i < ARRAY_LENGTH(policies) * 2; i++) {
        compiled k;
        training t = {.preset = i % 2 ? "test-gpt2" : "test-qwen3", .precision = PRECISION_BF16};
        t.more = SETTINGS("model.lora.rank=4", "model.base=nf4", "train.eval_rows=2", policies[i / 2]);
        compiled_open(&k, &t);
        const program *g = &k.p.program;
        lifetime *alive = mem_alloc(g->n_values * sizeof *alive);
        int n[SECTION_COUNT] = {0}, n_again = 0;
        layout_lifetimes(g, alive);
        for (size_t o = 0; o < g->n_ops; o++) {
            if (g->ops[o].kind != OP_DEQUANTIZE) continue;
            value_id w = program_root(g, g->ops[o].out[DEQUANTIZE_W], NULL);
            const lifetime *l = &alive[w];
            n[g->ops[o].section]++;
            n_again += g->ops[o].again;
            assert_int_equal(g->values[w].role, ROLE_WORK);
            for (size_t at = l->first; at < l->last; at++) assert_int_equal(g->ops[at].kind, OP_DEQUANTIZE);
            assert_true(l->last - l->first <= 3); /* at most the three parts of q|k|v, then the reader */
            op_kind reader = g->ops[l->last].kind;
            assert_true(reader == OP_LINEAR || reader == OP_LINEAR_DX);
        }
        /* q, k, v, out, gate, up, down of the forward; GPT-2 has q|k|v and no gate. The backward needs no dx of the first q|k|v. */
        int layers = (int)k.r.plan.source.n_layers, parts = i % 2 ? 4 : 7, qkv = i % 2 ? 1 : 3;
        assert_int_equal(n[SECTION_EVAL], layers * parts);
        assert_int_equal(n[SECTION_MICRO] - n_again, 2 * layers * parts - qkv);
        assert_true((n_again > 0) == (i / 2 > 0));
        free(alive);
        compiled_close(&k);
    }
}

/* Products of 8 bits: a step dequantises nothing, and the plan has two bytes more per weight, a scale per packed
 * weight, for every format. The first product has one byte: its transpose would give a gradient to the frozen
 * embedding. */
static void fp8_products_dequantise_once(void **state) {
    static const char *const settings[] = {"model.base=bf16", "model.base=fp8", "model.base=int8", "model.base=nf4"};
    enum { LINEARS = 4, PARTS = 7 };
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++) {
        uint64_t bytes[2], weights = 0, transposed = 0;
        int layers = 0;
        for (int fp8 = 0; fp8 < 2; fp8++) {
            compiled k;
            training t = {.preset = "test-qwen3", .precision = fp8 ? PRECISION_FP8 : PRECISION_BF16};
            t.more = SETTINGS("model.lora.rank=4", "train.eval_rows=2", settings[i]);
            compiled_open(&k, &t);
            const program *g = &k.p.program;
            int n[SECTION_COUNT] = {0};
            layers = (int)k.r.plan.source.n_layers;
            bytes[fp8] = param_bytes(&k.p);
            for (size_t o = 0; o < g->n_ops; o++) n[g->ops[o].section] += g->ops[o].kind == OP_DEQUANTIZE;
            for (value_id v = 1; v < g->n_values; v++) {
                if (!g->values[v].persistent) continue;
                uint64_t count = (uint64_t)shape_count(&g->values[v].shape);
                if (str_ends_with(g->values[v].name, ".e4m3")) weights += count;
                if (str_ends_with(g->values[v].name, ".e4m3.t")) transposed += count;
            }
            assert_int_equal(n[SECTION_EVAL], i ? layers * PARTS : 0);
            if (fp8) assert_int_equal(n[SECTION_MICRO] + n[SECTION_PREPARE], 0);
            if (fp8) assert_int_equal(n[SECTION_LOADED], i ? 2 * layers * PARTS : 0); /* for ABSMAX and for QUANTIZE */
            compiled_close(&k);
        }
        assert_true(transposed > 0 && transposed < weights);
        assert_int_equal(bytes[1] - bytes[0], weights + transposed + 4 * (uint64_t)(LINEARS * layers));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_7b_has_the_bytes_of_hand_arithmetic),
        cmocka_unit_test(the_numbers_of_one_weight_are_alive_at_a_time),
        cmocka_unit_test(fp8_products_dequantise_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
