/* test_optimizer_states.c - m and v in fp32, bf16 and 8 bits, beside every precision.
 *
 * The kernels are held, bit for bit, against scalar loops that follow the text of adamw.c, noise.h and state8.h; 8-bit
 * rounding is right on average and never stands still; the plan counts the bytes that the formats promise; and training
 * ends within a stated distance of fp32 states. */
#include "adamw_formats.h"
#include "op_check.h"
#include "training.h"
#include <float.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* ---- a parameter with its states, in any format ---------------------------------------------------------------- */

typedef struct parameter {
    const adamw_format *f;
    size_t n;
    char *p, *g, *m, *v; /* of their dtypes */
    float *master, *m_scale, *v_scale;
    op_attr attr;
    step_scalars scalars;
    float factor;
} parameter;

static size_t blocks_of(size_t n) { return (n + STATE_BLOCK - 1) / STATE_BLOCK; }

static void parameter_open(parameter *a, const adamw_format *f, size_t n) {
    *a = (parameter){.f = f,
                     .n = n,
                     .factor = 0.37f,
                     .attr = {.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .noise_key = 99},
                     .scalars = {.lr = 1e-3f,
                                 .bias1 = 0.19f,
                                 .bias2 = 0.0975f,
                                 .step = 2,
                                 .noise_lo = 0x12345678u,
                                 .noise_hi = 0x9abcdef0u}};
    a->p = mem_alloc(n * dtype_bytes(f->p));
    a->g = mem_alloc(n * dtype_bytes(f->g));
    a->m = mem_alloc(n * dtype_bytes(f->states));
    a->v = mem_alloc(n * dtype_bytes(f->states));
    if (f->master) a->master = mem_alloc(n * sizeof(float));
    if (f->states != DTYPE_I8) return;
    a->m_scale = mem_alloc(blocks_of(n) * sizeof(float));
    a->v_scale = mem_alloc(blocks_of(n) * sizeof(float));
}

static void parameter_close(parameter *a) {
    void *all[] = {a->p, a->g, a->m, a->v, a->master, a->m_scale, a->v_scale};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) free(all[i]);
}

/* Zeros, tiny and huge numbers among ordinary ones; 8-bit states of any code, with blocks of scale 0 among others. */
static void parameter_fill(parameter *a) {
    float r[4];
    for (size_t i = 0; i < a->n; i++) {
        rng_normal_fill(17, 4 * i, r, 4, 0, 1);
        float g = i % 7 == 2 ? 0 : i % 31 == 9 ? 1e-20f : i % 997 == 11 ? -1e12f : 0.1f * r[3];
        float p = i % 13 == 5 ? 0 : i % 101 == 50 ? 30000.0f : r[0];
        tensor_set_f32(a->p, a->f->p, i, p);
        tensor_set_f32(a->g, a->f->g, i, g);
        if (a->master) a->master[i] = p;
        if (a->f->states == DTYPE_I8) {
            a->m[i] = (char)rng_u64(18, i), a->v[i] = (char)rng_u64(19, i);
            continue;
        }
        tensor_set_f32(a->m, a->f->states, i, i % 11 == 3 ? 0 : 0.01f * r[1]);
        tensor_set_f32(a->v, a->f->states, i, i % 11 == 3 ? 0 : i % 29 == 7 ? 1e-30f : 1e-4f * r[2] * r[2]);
    }
    for (size_t b = 0; a->m_scale && b < blocks_of(a->n); b++) {
        a->m_scale[b] = b % 5 == 1 ? 0 : 1e-7f * (float)(b + 1);
        a->v_scale[b] = b % 5 == 1 ? 0 : 1e-6f * (float)(b + 1);
    }
}

static void parameter_copy(parameter *to, const parameter *from) {
    parameter_open(to, from->f, from->n);
    to->attr = from->attr, to->scalars = from->scalars, to->factor = from->factor;
    memcpy(to->p, from->p, from->n * dtype_bytes(from->f->p));
    memcpy(to->g, from->g, from->n * dtype_bytes(from->f->g));
    memcpy(to->m, from->m, from->n * dtype_bytes(from->f->states));
    memcpy(to->v, from->v, from->n * dtype_bytes(from->f->states));
    if (from->master) memcpy(to->master, from->master, from->n * sizeof(float));
    if (!from->m_scale) return;
    memcpy(to->m_scale, from->m_scale, blocks_of(from->n) * sizeof(float));
    memcpy(to->v_scale, from->v_scale, blocks_of(from->n) * sizeof(float));
}

static void kernel_step(backend_context *c, parameter *a) {
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = a->factor};
    shape flat = SHAPE((int64_t)a->n), blocks = SHAPE((int64_t)blocks_of(a->n));
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_ADAMW, SECTION_UPDATE);
    o->attr = a->attr;
    op_in(o, ADAMW_G, program_persistent(&p, "g", a->f->g, flat, ROLE_WORK));
    op_in(o, ADAMW_CLIP, program_persistent(&p, "clip", DTYPE_F32, SHAPE(CLIP_COUNT), ROLE_WORK));
    op_in(o, ADAMW_SCALARS, program_persistent(&p, "scalars", DTYPE_U8, SHAPE(sizeof(step_scalars)), ROLE_INPUT));
    op_out(o, ADAMW_P, program_persistent(&p, "p", a->f->p, flat, ROLE_WORK));
    if (a->master) op_out(o, ADAMW_MASTER, program_persistent(&p, "master", DTYPE_F32, flat, ROLE_STATE));
    bool int8 = a->f->states == DTYPE_I8;
    op_out(o, ADAMW_M, program_persistent(&p, "m", a->f->states, flat, ROLE_STATE));
    op_out(o, ADAMW_V, program_persistent(&p, "v", int8 ? DTYPE_U8 : a->f->states, flat, ROLE_STATE));
    if (int8) op_out(o, ADAMW_M_SCALE, program_persistent(&p, "m_scale", DTYPE_F32, blocks, ROLE_STATE));
    if (int8) op_out(o, ADAMW_V_SCALE, program_persistent(&p, "v_scale", DTYPE_F32, blocks, ROLE_STATE));
    training_must(program_verify(&p));
    kernel_call call = {.program = &p,
                        .op = o,
                        .in = {[ADAMW_G] = a->g, [ADAMW_CLIP] = clip, [ADAMW_SCALARS] = &a->scalars},
                        .out = {[ADAMW_P] = a->p,
                                [ADAMW_MASTER] = a->master,
                                [ADAMW_M] = a->m,
                                [ADAMW_V] = a->v,
                                [ADAMW_M_SCALE] = a->m_scale,
                                [ADAMW_V_SCALE] = a->v_scale}};
    backend_cpu()->kernels[OP_ADAMW](c, &call);
    program_fini(&p);
}

static backend_context *cpu_open(void) {
    backend_context *c;
    training_must(backend_cpu()->open(&c, &(backend_options){.n_threads = 2}));
    return c;
}

/* ---- the same in scalar loops ------------------------------------------------------------------------------------ */

static rng_noise block_noise(const parameter *a, uint32_t what, size_t e) {
    uint64_t key = a->attr.noise_key ^ ((uint64_t)a->scalars.noise_hi << 32 | a->scalars.noise_lo);
    return rng_noise_block(key, (uint64_t)what << 32 | a->scalars.step, e / RNG_NOISE_BLOCK);
}
static uint16_t value_noise(const parameter *a, size_t e) {
    size_t r = e % RNG_NOISE_BLOCK;
    return (uint16_t)(rng_noise_word(block_noise(a, 1, e), (uint32_t)(r / 32 * 16 + r % 16)) >> (r % 32 < 16 ? 0 : 16));
}
static uint32_t state_noise(const parameter *a, size_t e) {
    return rng_noise_word(block_noise(a, 2, e), (uint32_t)(e % RNG_NOISE_BLOCK));
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static double m_value(uint8_t code) { /* in units of the scale */
    int k = code & 127;
    return k == 0 ? 0 : (code & 128 ? -1 : 1) * ldexp(1 + k % 8 / 8.0, k / 8);
}
static double root_value(uint8_t code) { return ldexp(1 + code % 16 / 16.0, code / 16); }

static uint32_t round_bits(float x, uint32_t noise, int drop, uint32_t largest) {
    uint32_t code = ((bits_of(x) + (noise << (drop - 16))) >> drop) - (0x3f800000u >> drop);
    return MIN(code, largest);
}

static uint8_t m_code(float m, float inverse, uint32_t noise) {
    float x = fabsf(m) * inverse;
    uint32_t k = x < 1.125f ? (float)noise < x * (65536 / 1.125f) : round_bits(x, noise, 20, 127);
    return (uint8_t)(k | (bits_of(m) >> 31 << 7));
}
static uint8_t root_code(float root, float inverse, uint32_t noise) {
    return (uint8_t)round_bits(fmaxf(root * inverse, 1), noise, 19, 255);
}

static float scale_of(float largest, float code_largest, float *inverse) {
    largest = fminf(largest, FLT_MAX);
    *inverse = largest < 0x1p-100f ? 0 : code_largest / largest;
    return largest < 0x1p-100f ? 0 : largest / code_largest;
}

static void scalar_step(parameter *a) {
    const op_attr *t = &a->attr;
    const step_scalars *s = &a->scalars;
    float s2 = sqrtf(s->bias2), rate = s->lr * s2 / s->bias1, eps2 = t->eps * s2,
          decay = t->weight_decay * s->bias1 / s2;
    float gm = (1.0f - t->beta1) * a->factor, gv = sqrtf(1.0f - t->beta2) * a->factor;
    for (size_t begin = 0; begin < a->n; begin += STATE_BLOCK) {
        float ms[STATE_BLOCK], roots[STATE_BLOCK], m_most = 0, root_most = 0, m_inverse, root_inverse;
        size_t end = MIN(begin + STATE_BLOCK, a->n);
        for (size_t i = begin; i < end; i++) {
            float g = tensor_get_f32(a->g, a->f->g, i), x = a->master ? a->master[i] : tensor_get_f32(a->p, a->f->p, i);
            float m, v;
            if (a->f->states == DTYPE_I8) {
                float root = (float)root_value((uint8_t)a->v[i]) * a->v_scale[begin / STATE_BLOCK];
                m = (float)m_value((uint8_t)a->m[i]) * a->m_scale[begin / STATE_BLOCK], v = root * root;
            } else {
                m = tensor_get_f32(a->m, a->f->states, i), v = tensor_get_f32(a->v, a->f->states, i);
            }
            float gradient = gv * g;
            m = fmaf(t->beta1, m, gm * g), v = fmaf(gradient, gradient, t->beta2 * v);
            x = fmaf(-rate, fmaf(decay, x, m / (sqrtf(v) + eps2)), x);
            if (a->master) a->master[i] = x;
            if (!a->master && a->f->p == DTYPE_BF16)
                ((uint16_t *)a->p)[i] = f32_to_bf16_stochastic(x, value_noise(a, i));
            else tensor_set_f32(a->p, a->f->p, i, x);
            ms[i - begin] = m, roots[i - begin] = sqrtf(v);
            m_most = fmaxf(m_most, fabsf(m)), root_most = fmaxf(root_most, sqrtf(v));
            uint32_t noise = state_noise(a, i);
            if (a->f->states == DTYPE_F32) {
                ((float *)a->m)[i] = m, ((float *)a->v)[i] = v;
            } else if (a->f->states == DTYPE_BF16) {
                ((uint16_t *)a->m)[i] = f32_to_bf16_stochastic(m, (uint16_t)noise);
                ((uint16_t *)a->v)[i] = f32_to_bf16_stochastic(v, (uint16_t)(noise >> 16));
            }
        }
        if (a->f->states != DTYPE_I8) continue;
        a->m_scale[begin / STATE_BLOCK] = scale_of(m_most, 61440, &m_inverse);
        a->v_scale[begin / STATE_BLOCK] = scale_of(root_most, 63488, &root_inverse);
        for (size_t i = begin; i < end; i++) {
            uint32_t noise = state_noise(a, i);
            a->m[i] = (char)m_code(ms[i - begin], m_inverse, noise & 0xffff);
            a->v[i] = (char)root_code(roots[i - begin], root_inverse, noise >> 16);
        }
    }
}

static void same_bytes(const void *a, const void *b, size_t n, size_t width, const char *what, const parameter *p) {
    for (size_t i = 0; i < n; i++)
        if (memcmp((const char *)a + i * width, (const char *)b + i * width, width) != 0)
            fail_msg("%s, %zu elements: %s[%zu] differs from the scalar loop", p->f->name, p->n, what, i);
}

static void test_every_format_gives_the_bits_of_the_scalar_loop(void **state) {
    static const size_t sizes[] = {1, 3, 17, 255, 256, 257, 1031, 65537, 70001};
    backend_context *c = cpu_open();
    for (size_t k = 0; k < ARRAY_LENGTH(adamw_formats); k++)
        for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++) {
            if (SANITIZED && s + 1 == ARRAY_LENGTH(sizes)) continue;
            parameter a, b;
            parameter_open(&a, &adamw_formats[k], sizes[s]);
            parameter_fill(&a);
            parameter_copy(&b, &a);
            for (uint32_t step = 1; step <= 3; step++) { /* the second reads what the first wrote */
                a.scalars.step = b.scalars.step = step;
                kernel_step(c, &a);
                scalar_step(&b);
                size_t width = dtype_bytes(a.f->states);
                same_bytes(a.p, b.p, a.n, dtype_bytes(a.f->p), "p", &a);
                if (a.master) same_bytes(a.master, b.master, a.n, sizeof(float), "master", &a);
                same_bytes(a.m, b.m, a.n, width, "m", &a);
                same_bytes(a.v, b.v, a.n, width, "v", &a);
                if (!a.m_scale) continue;
                same_bytes(a.m_scale, b.m_scale, blocks_of(a.n), sizeof(float), "m_scale", &a);
                same_bytes(a.v_scale, b.v_scale, blocks_of(a.n), sizeof(float), "v_scale", &a);
            }
            parameter_close(&a);
            parameter_close(&b);
        }
    backend_cpu()->close(c);
}

/* ---- what 8 bits do to numbers ----------------------------------------------------------------------------------- */

/* Gradients of one block spread over nine powers of ten, one step from zero states, many noises: the mean of what is
 * stored is the number. Rounding between neighbours at distance d strays by at most d / 2: six standard deviations of the
 * mean, plus the 2^-16 that noise of 16 bits cannot see. Under the smallest code a root is kept too large, by intent. */
static void test_int8_rounding_is_right_on_average(void **state) {
    enum { ROUNDS = 4000 };
    backend_context *c = cpu_open();
    parameter a;
    double m_sum[STATE_BLOCK] = {0}, root_sum[STATE_BLOCK] = {0}, m_scale = 0, v_scale = 0;
    parameter_open(&a, &adamw_formats[2], STATE_BLOCK);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (size_t i = 0; i < STATE_BLOCK; i++)
            ((float *)a.g)[i] = (float)((i % 2 ? -1 : 1) * pow(10, -9.0 * (double)i / STATE_BLOCK));
        memset(a.m, 0, a.n), memset(a.v, 0, a.n);
        a.m_scale[0] = a.v_scale[0] = 0;
        a.scalars.step = round;
        kernel_step(c, &a);
        m_scale = a.m_scale[0], v_scale = a.v_scale[0];
        for (size_t i = 0; i < STATE_BLOCK; i++)
            m_sum[i] += m_value((uint8_t)a.m[i]), root_sum[i] += root_value((uint8_t)a.v[i]);
    }
    assert_true(m_scale > 0 && v_scale > 0);
    for (size_t i = 0; i < STATE_BLOCK; i++) {
        double g = ((float *)a.g)[i] * (double)a.factor, m = (1.0f - 0.9f) * g / m_scale,
               root = sqrt(1.0f - 0.95f) * fabs(g) / v_scale;
        double m_width = MAX(fabs(m) / 8, 1.125), root_width = root / 16, spread = 6 * 0.5 / sqrt(ROUNDS);
        double m_error = fabs(m_sum[i] / ROUNDS - m), root_error = root_sum[i] / ROUNDS - root;
        if (fabs(m) < 1.125) /* 0 or the smallest: chance m / 1.125 */
            spread = 6 * sqrt(MAX(fabs(m) / 1.125, 1.0 / ROUNDS) / ROUNDS);
        if (!(m_error <= m_width * (spread + 0x1p-15))) fail_msg("m[%zu] = %g: mean is off by %g", i, m, m_error);
        if (root < 1) assert_true(root_sum[i] == ROUNDS); /* the smallest code, every time */
        else if (!(fabs(root_error) <= root_width * (6 * 0.5 / sqrt(ROUNDS) + 0x1p-15)))
            fail_msg("root[%zu] = %g: mean is off by %g", i, root, root_error);
    }
    parameter_close(&a);
    backend_cpu()->close(c);
}

/* Without gradients v must fall by 0.95 per step although a code is wider than that. All elements but the first have
 * the same root; the first keeps the scale in place. 255 elements average the noise: std 0.2 / sqrt(255) of a root. */
static void test_int8_states_do_not_stand_still(void **state) {
    enum { STEPS = 60 };
    backend_context *c = cpu_open();
    parameter a;
    parameter_open(&a, &adamw_formats[2], STATE_BLOCK);
    a.factor = 1;
    for (uint32_t step = 1; step <= STEPS + 1; step++) {
        for (size_t i = 0; i < STATE_BLOCK; i++) ((float *)a.g)[i] = i == 0 ? 1 : step == 1 ? 0.5f : 0;
        a.scalars.step = step;
        kernel_step(c, &a);
    }
    double roots = 0, m = 0, start = sqrt(0.05) * 0.5;
    for (size_t i = 1; i < STATE_BLOCK; i++) {
        roots += root_value((uint8_t)a.v[i]) * (double)a.v_scale[0] / (STATE_BLOCK - 1);
        m += m_value((uint8_t)a.m[i]) * (double)a.m_scale[0] / (STATE_BLOCK - 1);
    }
    double want = start * pow(0.95, STEPS / 2.0);
    print_message("root after %d steps without gradient: %.4f of the start, exact %.4f\n", STEPS, roots / start,
                  want / start);
    assert_true(fabs(roots / want - 1) < 0.15);
    assert_true(fabs(m) < 0.1 * 0.5 * 0.05); /* 0.9^60 = 0.002 of what it was */
    parameter_close(&a);
    backend_cpu()->close(c);
}

/* An infinite variance (a gradient of 1e25 that nobody clipped) stays in its element: neighbours keep their states. */
static void test_int8_infinity_stays_in_its_element(void **state) {
    backend_context *c = cpu_open();
    parameter a;
    parameter_open(&a, &adamw_formats[2], STATE_BLOCK);
    a.factor = 1;
    for (size_t i = 0; i < STATE_BLOCK; i++) ((float *)a.g)[i] = i == 7 ? 1e25f : 1e18f;
    kernel_step(c, &a);
    assert_true(isfinite(a.v_scale[0]) && isfinite(a.m_scale[0]));
    assert_int_equal((uint8_t)a.v[7], 255);
    for (size_t i = 0; i < STATE_BLOCK; i++) assert_true(isfinite(((float *)a.p)[i]));
    parameter_close(&a);
    backend_cpu()->close(c);
}

/* ---- in the house ---------------------------------------------------------------------------------------------- */

/* Bytes of params + grads + states of the plan, and what they should be. */
static void test_the_plan_counts_the_bytes_of_every_format(void **state) {
    static const double expected[PRECISION_COUNT][STATES_COUNT] =
        {
            [PRECISION_FP32] = {16, 16, 12, 10}, [PRECISION_BF16] = {18, 18, 14, 12},
            [PRECISION_BF16_SR] = {8, 12, 8, 6}, [PRECISION_FP16] = {18, 18, 14, 12},
            [PRECISION_FP8] = {18, 18, 14, 12}, /* and what is kept of the weights in 8 bits */
            [PRECISION_FP8_SR] = {8, 12, 8, 6},
        };
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++)
        for (precision q = 0; q < PRECISION_COUNT; q++)
            for (state_format f = 0; f < STATES_COUNT; f++) {
                char setting[64];
                snprintf(setting, sizeof setting, "memory.states=%s", state_format_name(f));
                training t = {.preset = training_presets[m], .precision = q, .more = SETTINGS(setting)};
                config c;
                train_request r;
                plan p;
                training_must(training_request(&t, &c, &r));
                training_must(plan_choose(&p, &r.plan));
                uint64_t want = 0;
                for (size_t i = 0; i < p.net.n_params; i++) {
                    uint64_t n = (uint64_t)shape_count(&program_get(&p.program, p.net.params[i].value)->shape);
                    if (f != STATES_INT8) want += n * (uint64_t)expected[q][f];
                    else if (n < 4096) want += n * (uint64_t)(expected[q][STATES_FP32]); /* norms and biases */
                    else want += n * (uint64_t)expected[q][f] + 2 * 4 * blocks_of(n);
                }
                for (value_id v = 1; v < p.program.n_values; v++) {
                    const value *a = &p.program.values[v];
                    bool is_copy = a->persistent && !a->view_of && a->role == ROLE_PARAM && precision_fp8(q);
                    for (size_t i = 0; i < p.net.n_params; i++) is_copy &= p.net.params[i].value != v;
                    if (is_copy) want += value_bytes(a);
                }
                assert_int_equal(p.by_role[ROLE_PARAM] + p.by_role[ROLE_GRAD] + p.by_role[ROLE_STATE], want);
                plan_close(&p);
                config_fini(&c);
            }
}

/* Loss after 100 steps of the grammar, with every format of the states against fp32 of the same precision, everything
 * else equal. Over four seeds the difference was at most 0.010 with bf16 states and 0.036 with 8-bit ones, while fp32
 * itself strays by 0.08 from seed to seed: a step that is rounded otherwise is another path through the same valley. */
static void test_training_ends_where_fp32_states_end(void **state) {
    if (SANITIZED) skip();
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR};
    static const double bound[STATES_COUNT] = {[STATES_FP32] = 0, [STATES_BF16] = 0.02, [STATES_INT8] = 0.05};
    for (size_t k = 0; k < ARRAY_LENGTH(precisions); k++) {
        double fp32 = 0;
        for (state_format f = STATES_FP32; f < STATES_COUNT; f++) {
            char setting[64];
            snprintf(setting, sizeof setting, "memory.states=%s", state_format_name(f));
            training t = {.preset = "test-llama",
                          .precision = precisions[k],
                          .seq_len = 64,
                          .micro_batch = 8,
                          .steps = 100,
                          .more = SETTINGS(setting, "train.lr=0.003", "train.warmup=10", "train.eval_rows=128")};
            train_result r;
            training_must(training_run(&t, &r));
            if (f == STATES_FP32) fp32 = r.eval.loss;
            print_message("%s, %s states: %.4f -> %.4f held out\n", precision_name(precisions[k]), state_format_name(f),
                          r.first_loss, r.eval.loss);
            assert_true(fabs(r.eval.loss - fp32) <= bound[f]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format_gives_the_bits_of_the_scalar_loop),
        cmocka_unit_test(test_int8_rounding_is_right_on_average),
        cmocka_unit_test(test_int8_states_do_not_stand_still),
        cmocka_unit_test(test_int8_infinity_stays_in_its_element),
        cmocka_unit_test(test_the_plan_counts_the_bytes_of_every_format),
        cmocka_unit_test(test_training_ends_where_fp32_states_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
