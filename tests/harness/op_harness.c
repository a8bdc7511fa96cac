/* op_harness.c - one op, its buffers, and three runs that must agree.
 *
 * Owns the copies: what the test gives is kept untouched and every run gets fresh buffers, so an in-place op can be run
 * again. Around each buffer and around the scratch lie guard bytes whose number varies, so that a write past the end is
 * seen whatever the vector width. Outputs and scratch are filled with NaNs before a run, a different NaN pattern in
 * each run: an element that was never written, or a result that depends on scratch, shows up as a changed bit.
 * Refuses, by failing the test: a changed guard, a changed input that is not an alias, a bit that depends on the number
 * of threads, an op that the backend lacks. On a device with memory of its own every buffer, guards and all, goes there
 * and comes back; ops that may run on either side must give the host's bits there too. */
#include "op_harness.h"
#include "backend_choice.h"
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

enum { GUARD_BEFORE = 256, GUARD_AFTER = 256, N_RUNS = 3 };

typedef struct slot {
    bool present, has_contents;
    int alias; /* outputs: the input whose bytes it takes, or -1 */
    size_t n_bytes;
    uint8_t *given;   /* contents before the run */
    uint8_t *written; /* contents after the first run */
    uint8_t *block, *data;
    size_t n_block, tail;
    void *device; /* where the block is while the op runs, in the device's memory; NULL: it stays where it is */
} slot;

struct op_case {
    program program;
    op_kind kind;
    slot in[OP_MAX_IN], out[OP_MAX_OUT], work;
    arena memory;
    uint64_t tail_seed;
    int32_t rows; /* where the op's rows are given */
};

op_case *op_case_open(op_kind kind, const op_attr *attr) {
    op_case *t = mem_alloc(sizeof *t);
    program_init(&t->program);
    arena_init(&t->memory);
    t->kind = kind;
    t->tail_seed = (uint64_t)kind + 1;
    program_emit(&t->program, kind, SECTION_MICRO)->attr = *attr;
    for (int i = 0; i < OP_MAX_OUT; i++) t->out[i].alias = -1;
    return t;
}

void op_case_close(op_case *t) {
    program_fini(&t->program);
    arena_fini(&t->memory);
    free(t);
}

static slot *slot_declare(op_case *t, bool output, int i, dtype type, shape s) {
    assert_in_range(i, 0, output ? OP_MAX_OUT - 1 : OP_MAX_IN - 1);
    slot *b = output ? &t->out[i] : &t->in[i];
    assert_false(b->present);
    char name[16];
    snprintf(name, sizeof name, "%s%d", output ? "out" : "in", i);
    value_id id = program_persistent(&t->program, name, type, s, output ? ROLE_ACTIVATION : ROLE_INPUT);
    if (output) op_out(&t->program.ops[0], i, id);
    else op_in(&t->program.ops[0], i, id);
    b->present = true;
    b->n_bytes = shape_bytes(&s, type);
    b->given = arena_alloc(&t->memory, b->n_bytes);
    b->written = arena_alloc(&t->memory, b->n_bytes);
    return b;
}

static void slot_set_floats(slot *b, dtype type, const double *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (type == DTYPE_F64) ((double *)b->given)[i] = values[i];
        else tensor_set_f32(b->given, type, i, (float)values[i]);
    }
    b->has_contents = true;
}

void op_case_random(op_case *t, int input, dtype type, shape s, double scale, uint64_t seed) {
    size_t n = (size_t)shape_count(&s);
    float *normal = arena_array(&t->memory, float, n);
    rng_normal_fill(rng_key(seed, "op_case"), 0, normal, n, 0.0f, (float)scale);
    slot *b = slot_declare(t, false, input, type, s);
    for (size_t i = 0; i < n; i++) tensor_set_f32(b->given, type, i, normal[i]);
    b->has_contents = true;
}

void op_case_floats(op_case *t, int input, dtype type, shape s, const double *values) {
    slot_set_floats(slot_declare(t, false, input, type, s), type, values, (size_t)shape_count(&s));
}

void op_case_ints(op_case *t, int input, shape s, const int32_t *values) {
    slot *b = slot_declare(t, false, input, DTYPE_I32, s);
    memcpy(b->given, values, b->n_bytes);
    b->has_contents = true;
}

void op_case_bytes(op_case *t, int input, shape s, const void *bytes) {
    slot *b = slot_declare(t, false, input, DTYPE_U8, s);
    memcpy(b->given, bytes, b->n_bytes);
    b->has_contents = true;
}

void op_case_output(op_case *t, int output, dtype type, shape s) { slot_declare(t, true, output, type, s); }

void op_case_output_floats(op_case *t, int output, dtype type, shape s, const double *values) {
    slot_set_floats(slot_declare(t, true, output, type, s), type, values, (size_t)shape_count(&s));
}

/* The output may be declared before; otherwise it takes the type and shape of the input. */
void op_case_alias(op_case *t, int output, int input) {
    assert_true(t->in[input].present);
    const value *v = program_get(&t->program, t->program.ops[0].in[input]);
    if (!t->out[output].present) slot_declare(t, true, output, v->type, v->shape);
    assert_int_equal(t->out[output].n_bytes, t->in[input].n_bytes);
    t->out[output].alias = input;
}

void op_case_rows(op_case *t, int32_t n) {
    t->program.ops[0].rows = program_persistent(&t->program, "rows", DTYPE_I32, SHAPE(1), ROLE_INPUT);
    t->rows = n;
}

/* ---- one run ------------------------------------------------------------------------------------------------- */

static uint8_t guard_byte(size_t i) { return (uint8_t)(0xa5u ^ (i * 37u)); }

/* 16-bit words that are NaN in every float dtype, also when two or four of them are read as one number. */
static void poison(uint8_t *bytes, size_t n_bytes, int run) {
    static const uint16_t pattern[N_RUNS] = {0xffff, 0x7fff, 0xfff1};
    for (size_t i = 0; i < n_bytes; i++) bytes[i] = (uint8_t)(pattern[run] >> (i % 2 * 8));
}

static void slot_fill(op_case *t, slot *b, int run) {
    b->tail = GUARD_AFTER + (size_t)rng_below(t->tail_seed, t->tail_seed, 192);
    t->tail_seed++;
    size_t n = b->n_block = GUARD_BEFORE + b->n_bytes + b->tail;
    b->block = aligned_alloc(64, (n + 63) / 64 * 64);
    assert_non_null(b->block);
    b->data = b->block + GUARD_BEFORE;
    for (size_t i = 0; i < GUARD_BEFORE; i++) b->block[i] = guard_byte(i);
    for (size_t i = 0; i < b->tail; i++) b->data[b->n_bytes + i] = guard_byte(i);
    if (b->has_contents) memcpy(b->data, b->given, b->n_bytes);
    else poison(b->data, b->n_bytes, run);
}

static void slot_check_guards(const op_case *t, const slot *b, const char *what, int i) {
    for (size_t j = 0; j < GUARD_BEFORE; j++)
        if (b->block[j] != guard_byte(j))
            fail_msg("%s: wrote %zu bytes before %s %d", op_name(t->kind), GUARD_BEFORE - j, what, i);
    for (size_t j = 0; j < b->tail; j++)
        if (b->data[b->n_bytes + j] != guard_byte(j))
            fail_msg("%s: wrote %zu bytes past the end of %s %d (%zu bytes)", op_name(t->kind), j + 1, what, i,
                     b->n_bytes);
}

static bool input_is_aliased(const op_case *t, int input) {
    for (int o = 0; o < OP_MAX_OUT; o++)
        if (t->out[o].present && t->out[o].alias == input) return true;
    return false;
}

/* The address a kernel is given for a slot's data: its own, or that of its copy on the device. */
static void *slot_lend(const backend *b, backend_context *c, slot *s) {
    s->device = NULL;
    if (!b->discrete) return s->data;
    if (b->memory_open(c, TIER_DEVICE, s->n_block, &s->device) != OK) fail_msg("memory: %s", error_message());
    b->write(c, s->device, s->block, s->n_block);
    return (uint8_t *)s->device + GUARD_BEFORE;
}

static void slot_take_back(const backend *b, backend_context *c, slot *s) {
    if (!s->device) return;
    b->read(c, s->block, s->device, s->n_block);
    b->memory_close(c, TIER_DEVICE, s->device, s->n_block);
    s->device = NULL;
}

/* A NaN is a NaN; which of its bits are set is each device's own affair. */
static bool both_nan(dtype t, const uint8_t *x, const uint8_t *y, size_t byte) {
    if (t != DTYPE_F32 && t != DTYPE_BF16 && t != DTYPE_F16) return false;
    size_t element = byte / dtype_bytes(t);
    return isnan(tensor_get_f32(x, t, element)) && isnan(tensor_get_f32(y, t, element));
}

static void run_once(op_case *t, const backend *b, backend_context *c, int run, int n_threads) {
    if (!b->kernels[t->kind]) fail_msg("backend %s lacks %s", b->name, op_name(t->kind));

    kernel_call call = {.program = &t->program, .op = &t->program.ops[0]};
    slot rows = {.n_bytes = sizeof t->rows, .given = (uint8_t *)&t->rows, .has_contents = true};
    slot_fill(t, &rows, run);
    if (call.op->rows) call.rows = slot_lend(b, c, &rows);
    t->work = (slot){.present = true, .n_bytes = b->work_bytes(&t->program, call.op, n_threads)};
    slot_fill(t, &t->work, run);
    call.work = slot_lend(b, c, &t->work);
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!t->in[i].present) continue;
        slot_fill(t, &t->in[i], run);
        call.in[i] = slot_lend(b, c, &t->in[i]);
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        slot *o = &t->out[i];
        if (!o->present) continue;
        if (o->alias < 0) slot_fill(t, o, run);
        call.out[i] = o->alias < 0 ? slot_lend(b, c, o) : call.in[o->alias];
    }

    if (b->prepare && b->prepare(c, &call) != OK) fail_msg("prepare: %s", error_message());
    for (int i = 0; i < OP_MAX_OUT; i++) { /* preparing may have used them */
        slot *used = t->out[i].alias < 0 ? &t->out[i] : &t->in[t->out[i].alias];
        if (t->out[i].present && used->device) b->write(c, used->device, used->block, used->n_block);
    }
    b->kernels[t->kind](c, &call);
    if (b->synchronize(c) != OK) fail_msg("%s: %s", op_name(t->kind), error_message());
    slot_take_back(b, c, &rows);
    slot_take_back(b, c, &t->work);
    for (int i = 0; i < OP_MAX_IN; i++) slot_take_back(b, c, &t->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++) slot_take_back(b, c, &t->out[i]);

    slot_check_guards(t, &t->work, "work", 0);
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!t->in[i].present) continue;
        slot_check_guards(t, &t->in[i], "input", i);
        if (!input_is_aliased(t, i) && memcmp(t->in[i].data, t->in[i].given, t->in[i].n_bytes) != 0)
            fail_msg("%s: changed its input %d (%s)", op_name(t->kind), i, op_input_name(t->kind, i));
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        slot *o = &t->out[i];
        if (!o->present) continue;
        if (o->alias < 0) slot_check_guards(t, o, "output", i);
        const uint8_t *result = o->alias < 0 ? o->data : t->in[o->alias].data;
        if (run == 0) memcpy(o->written, result, o->n_bytes);
        for (size_t j = 0; j < o->n_bytes; j++)
            if (result[j] != o->written[j] &&
                !(b->discrete && both_nan(call_out(&call, i)->type, result, o->written, j)))
                fail_msg("%s: output %d (%s) differs at byte %zu of %zu in run %d with %d threads", op_name(t->kind), i,
                         op_output_name(t->kind, i), j, o->n_bytes, run, n_threads);
    }

    free(rows.block);
    free(t->work.block);
    for (int i = 0; i < OP_MAX_IN; i++) free(t->in[i].block);
    for (int i = 0; i < OP_MAX_OUT; i++) free(t->out[i].block);
    for (int i = 0; i < OP_MAX_IN; i++) t->in[i].block = NULL;
    for (int i = 0; i < OP_MAX_OUT; i++) t->out[i].block = NULL;
}

/* An update runs on the device or on the host, as the plan says, and the parameters must not show which. What only moves bytes
 * has no choice. */
static bool same_bits_everywhere(op_kind k) {
    return k == OP_ACCUMULATE || k == OP_GRAD_SUMSQ || k == OP_CLIP || k == OP_ADAMW || k == OP_CAST || k == OP_COPY ||
           k == OP_SUM_PARTS || k == OP_NORM_SUM || k == OP_HEAD_PARTS || k == OP_TOKEN_PARTS || k == OP_DROPOUT;
}

/* RALO_TEST_ONCE: a sanitizer of the device, under which a run takes long, has seen all it can see in one. */
void op_case_run(op_case *t, int n_threads) {
    const int threads[N_RUNS] = {n_threads, 1, 3};
    const backend *b = backend_under_test(), *host = backend_cpu();
    int n_runs = b->discrete && getenv("RALO_TEST_ONCE") ? 1 + same_bits_everywhere(t->kind) : N_RUNS;
    for (int run = 0; run < n_runs; run++) {
        bool reference = b->discrete && run == 0 && same_bits_everywhere(t->kind);
        backend_context *c;
        if (reference) {
            if (host->open(&c, &(backend_options){.n_threads = threads[run]}) != OK)
                fail_msg("open: %s", error_message());
            run_once(t, host, c, run, threads[run]);
            host->close(c);
            continue;
        }
        c = backend_under_test_context(threads[run]);
        run_once(t, b, c, run, threads[run]);
        backend_under_test_close(c);
    }
}

/* ---- results ------------------------------------------------------------------------------------------------- */

static double *bytes_to_doubles(op_case *t, const uint8_t *bytes, const value *v) {
    size_t n = (size_t)shape_count(&v->shape);
    double *d = arena_array(&t->memory, double, n);
    for (size_t i = 0; i < n; i++) {
        switch (v->type) {
        case DTYPE_F64: d[i] = ((const double *)bytes)[i]; break;
        case DTYPE_I32: d[i] = ((const int32_t *)bytes)[i]; break;
        case DTYPE_U8: d[i] = bytes[i]; break;
        default: d[i] = tensor_get_f32(bytes, v->type, i);
        }
    }
    return d;
}

double *op_case_input_values(op_case *t, int input) {
    assert_true(t->in[input].present);
    return bytes_to_doubles(t, t->in[input].given, program_get(&t->program, t->program.ops[0].in[input]));
}

double *op_case_values(op_case *t, int output) {
    assert_true(t->out[output].present);
    return bytes_to_doubles(t, t->out[output].written, program_get(&t->program, t->program.ops[0].out[output]));
}

int32_t *op_case_ints_out(op_case *t, int output) {
    assert_true(t->out[output].present);
    return (int32_t *)t->out[output].written;
}

double op_case_error(op_case *t, int output, const double *reference, double *largest) {
    const double *d = op_case_values(t, output);
    size_t n = (size_t)shape_count(&program_get(&t->program, t->program.ops[0].out[output])->shape);
    double difference = 0, size = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        double e = fabs(d[i] - reference[i]);
        difference += e * e;
        size += reference[i] * reference[i];
        /* A NaN must not hide behind comparisons that are false. */
        if (isnan(e)) worst = INFINITY;
        worst = fmax(worst, e / (1 + fabs(reference[i])));
    }
    if (largest) *largest = worst;
    if (isnan(difference)) return INFINITY;
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}
