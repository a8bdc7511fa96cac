/* test_optimizer_parts.c - an optimizer op on the parts of a parameter gives the bits of the op on the whole.
 *
 * Offloading and sharding update a parameter slice by slice. Cuts at multiples of NORM_BLOCK are tried, inside and
 * across blocks of noise, for ACCUMULATE, GRAD_SUMSQ and ADAMW in every combination of dtypes: each part is a program of
 * its own on buffers of its own, as it would be in a ring of staging buffers or on another rank. */
#include "adamw_formats.h"
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { PARTS = 4, N = RNG_NOISE_BLOCK + 9 * NORM_BLOCK + 777, MAX_OPERANDS = OP_MAX_IN + OP_MAX_OUT };
static const int64_t ends[PARTS] = {NORM_BLOCK, RNG_NOISE_BLOCK - 5 * NORM_BLOCK, RNG_NOISE_BLOCK + 3 * NORM_BLOCK, N};

/* One operand, as bytes of the whole parameter; elements_per = how many elements of the parameter one of it serves. */
typedef struct operand {
    const char *name;
    dtype type;
    int64_t elements_per; /* 0: not cut, every part sees all of it */
    void *bytes;
    bool output;
    int index;
} operand;

typedef struct whole {
    op_kind kind;
    op_attr attr;
    operand operands[MAX_OPERANDS];
    int n_operands;
    arena memory;
} whole;

static size_t operand_count(const operand *a, int64_t n, int64_t fixed) {
    return (size_t)(a->elements_per ? (n + a->elements_per - 1) / a->elements_per : fixed);
}

/* Elements first .. first + n of the whole, on copies; outputs are copied back. */
static void run_part(const backend *b, backend_context *c, const whole *w, int64_t first, int64_t n) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, w->kind, SECTION_UPDATE);
    o->attr = w->attr;
    o->attr.first_element = first;
    kernel_call call = {.program = &p, .op = o};
    void *copies[MAX_OPERANDS];
    for (int i = 0; i < w->n_operands; i++) {
        const operand *a = &w->operands[i];
        size_t count = operand_count(a, n, a->type == DTYPE_U8 && !a->elements_per ? sizeof(step_scalars) : CLIP_COUNT);
        size_t width = dtype_bytes(a->type), at = a->elements_per ? (size_t)(first / a->elements_per) * width : 0;
        value_id v = program_persistent(&p, a->name, a->type, SHAPE((int64_t)count), ROLE_STATE);
        copies[i] = mem_alloc(count * width);
        memcpy(copies[i], (char *)a->bytes + at, count * width);
        if (a->output) op_out(o, a->index, v), call.out[a->index] = copies[i];
        else op_in(o, a->index, v), call.in[a->index] = copies[i];
    }
    assert_int_equal(program_verify(&p), OK);
    b->kernels[w->kind](c, &call);
    for (int i = 0; i < w->n_operands; i++) {
        const operand *a = &w->operands[i];
        size_t width = dtype_bytes(a->type);
        if (a->output)
            memcpy((char *)a->bytes + (size_t)(first / a->elements_per) * width, copies[i],
                   operand_count(a, n, 0) * width);
        free(copies[i]);
    }
    program_fini(&p);
}

/* Cuts: bit i of the mask set = a part ends at ends[i]. The first one is the whole. */
static void check_all_cuts(const whole *w, const char *what) {
    const backend *b = backend_cpu();
    backend_context *c;
    assert_int_equal(b->open(&c, &(backend_options){.n_threads = 2}), OK);
    void *before[MAX_OPERANDS], *want[MAX_OPERANDS];
    size_t n_bytes[MAX_OPERANDS];
    for (int i = 0; i < w->n_operands; i++) {
        const operand *a = &w->operands[i];
        if (!a->output) continue;
        n_bytes[i] = operand_count(a, N, 0) * dtype_bytes(a->type);
        before[i] = mem_alloc(n_bytes[i]);
        want[i] = mem_alloc(n_bytes[i]);
        memcpy(before[i], a->bytes, n_bytes[i]);
    }
    for (unsigned cuts = 0; cuts < 1u << (PARTS - 1); cuts++) {
        for (int i = 0; i < w->n_operands; i++)
            if (w->operands[i].output) memcpy(w->operands[i].bytes, before[i], n_bytes[i]);
        for (int64_t first = 0, part = 0; part < PARTS; part++) {
            if (part < PARTS - 1 && !(cuts >> part & 1)) continue;
            run_part(b, c, w, first, ends[part] - first);
            first = ends[part];
        }
        for (int i = 0; i < w->n_operands; i++) {
            const operand *a = &w->operands[i];
            if (!a->output) continue;
            if (cuts == 0) {
                memcpy(want[i], a->bytes, n_bytes[i]);
                if (memcmp(want[i], before[i], n_bytes[i]) == 0) fail_msg("%s: %s did not change", what, a->name);
            } else if (memcmp(want[i], a->bytes, n_bytes[i]) != 0) {
                fail_msg("%s, cuts %u: %s differs from the whole", what, cuts, a->name);
            }
        }
    }
    for (int i = 0; i < w->n_operands; i++)
        if (w->operands[i].output) free(before[i]), free(want[i]);
    b->close(c);
}

static void *numbers(arena *a, dtype t, int64_t count, float scale, bool square, uint64_t seed) {
    size_t n = (size_t)count;
    float *f = mem_alloc(n * sizeof *f);
    rng_normal_fill(seed, 0, f, n, 0, 1);
    for (size_t i = 0; i < n; i++) f[i] = scale * (square ? f[i] * f[i] : f[i]);
    void *out = arena_alloc(a, n * dtype_bytes(t));
    tensor_convert(out, t, f, DTYPE_F32, n);
    free(f);
    return out;
}

static void *codes(arena *a, uint64_t seed) {
    uint8_t *out = arena_alloc(a, N);
    for (uint64_t i = 0; i < N; i++) out[i] = (uint8_t)rng_u64(seed, i);
    return out;
}

static void add(whole *w, bool output, int index, const char *name, dtype t, int64_t elements_per, void *bytes) {
    w->operands[w->n_operands++] = (operand){name, t, elements_per, bytes, output, index};
}

static step_scalars scalars = {.lr = 1e-3f,
                               .seed = 1,
                               .grad_unscale = 1,
                               .bias1 = 0.19f,
                               .bias2 = 0.0975f,
                               .step = 2,
                               .micro = 1,
                               .noise_lo = 5,
                               .noise_hi = 6};

static void test_accumulate_in_parts(void **state) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        dtype t = bf16 ? DTYPE_BF16 : DTYPE_F32;
        whole w = {.kind = OP_ACCUMULATE, .attr = {.noise_key = 3}};
        add(&w, false, ACCUMULATE_X, "x", t, 1, numbers(&w.memory, t, N, 1, false, 1));
        add(&w, false, ACCUMULATE_SCALARS, "scalars", DTYPE_U8, 0, &scalars);
        add(&w, true, ACCUMULATE_ACC, "acc", t, 1, numbers(&w.memory, t, N, 1, false, 2));
        check_all_cuts(&w, dtype_name(t));
        arena_fini(&w.memory);
    }
}

static void test_grad_sumsq_in_parts(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(check_types); i++) {
        whole w = {.kind = OP_GRAD_SUMSQ};
        add(&w, false, GRAD_SUMSQ_G, "g", check_types[i], 1, numbers(&w.memory, check_types[i], N, 1, false, 1));
        add(&w, true, GRAD_SUMSQ_PARTIALS, "partials", DTYPE_F64, NORM_BLOCK,
            arena_alloc(&w.memory, (N / NORM_BLOCK + 1) * sizeof(double)));
        check_all_cuts(&w, dtype_name(check_types[i]));
        arena_fini(&w.memory);
    }
}

static void test_adamw_in_parts(void **state) {
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 0.5f};
    for (size_t i = 0; i < ARRAY_LENGTH(adamw_formats); i++) {
        const adamw_format *f = &adamw_formats[i];
        whole w = {.kind = OP_ADAMW,
                   .attr = {.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .noise_key = 9}};
        add(&w, false, ADAMW_G, "g", f->g, 1, numbers(&w.memory, f->g, N, 0.1f, false, 1));
        add(&w, false, ADAMW_CLIP, "clip", DTYPE_F32, 0, clip);
        add(&w, false, ADAMW_SCALARS, "scalars", DTYPE_U8, 0, &scalars);
        add(&w, true, ADAMW_P, "p", f->p, 1, numbers(&w.memory, f->p, N, 1, false, 2));
        if (f->master)
            add(&w, true, ADAMW_MASTER, "master", DTYPE_F32, 1, numbers(&w.memory, DTYPE_F32, N, 1, false, 2));
        if (f->states == DTYPE_I8) {
            int64_t blocks = (N + STATE_BLOCK - 1) / STATE_BLOCK;
            add(&w, true, ADAMW_M, "m", DTYPE_I8, 1, codes(&w.memory, 3));
            add(&w, true, ADAMW_V, "v", DTYPE_U8, 1, codes(&w.memory, 4));
            add(&w, true, ADAMW_M_SCALE, "m_scale", DTYPE_F32, STATE_BLOCK,
                numbers(&w.memory, DTYPE_F32, blocks, 1e-6f, true, 5));
            add(&w, true, ADAMW_V_SCALE, "v_scale", DTYPE_F32, STATE_BLOCK,
                numbers(&w.memory, DTYPE_F32, blocks, 1e-6f, true, 6));
        } else {
            add(&w, true, ADAMW_M, "m", f->states, 1, numbers(&w.memory, f->states, N, 0.01f, false, 3));
            add(&w, true, ADAMW_V, "v", f->states, 1, numbers(&w.memory, f->states, N, 1e-4f, true, 4));
        }
        check_all_cuts(&w, f->name);
        arena_fini(&w.memory);
    }
}

/* A part that starts inside a block would have other noise and other partial sums. */
static void test_a_part_starts_at_a_block(void **state) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_GRAD_SUMSQ, SECTION_UPDATE);
    op_in(o, GRAD_SUMSQ_G, program_persistent(&p, "g", DTYPE_F32, SHAPE(100), ROLE_WORK));
    op_out(o, GRAD_SUMSQ_PARTIALS, program_persistent(&p, "partials", DTYPE_F64, SHAPE(1), ROLE_WORK));
    o->attr.first_element = 7 * (int64_t)NORM_BLOCK;
    assert_int_equal(program_verify(&p), OK);
    o->attr.first_element = 1000;
    assert_int_equal(program_verify(&p), ERR_BUG);
    assert_non_null(strstr(error_message(), "multiple of NORM_BLOCK"));
    o->attr.first_element = -(int64_t)NORM_BLOCK;
    assert_int_equal(program_verify(&p), ERR_BUG);
    program_fini(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accumulate_in_parts),
        cmocka_unit_test(test_grad_sumsq_in_parts),
        cmocka_unit_test(test_adamw_in_parts),
        cmocka_unit_test(test_a_part_starts_at_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
