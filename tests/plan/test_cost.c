/* test_cost.c - the walk over streams: order, overlap, waits; and what single ops cost. Machines here have round numbers,
 * so times are known without a calculator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "change_model.h"
#include "plan/plan.h"

#include <math.h>
#include <stdlib.h>

enum { N = 250000 }; /* fp32 elements of a value: 1 MB */
#define MB (4.0 * N) /* bytes */

/* 1 GB/s everywhere: a copy of one value takes 1 ms, ADD moves three values: 3 ms. Arithmetic is free. */
static hardware machine(void) {
    hardware h = {.name = "round",
                  .devices_per_node = 1,
                  .overlap = true,
                  .device_bytes = 1 << 30,
                  .host_bytes = 1 << 30,
                  .device_bandwidth = 1e9,
                  .host_bandwidth = 1e9,
                  .copy_to_device = 1e9,
                  .copy_to_host = 1e9,
                  .copy_both = 2e9,
                  .disk_read = 0.5e9};
    for (int t = 0; t < HARDWARE_DTYPES; t++) h.matrix[t] = h.attention[t] = h.vector[t] = 1e18;
    return h;
}

static value_id add_value(program *p, const char *name, tier t) {
    value_id v = program_value(p, name, DTYPE_F32, SHAPE(N), ROLE_ACTIVATION, SECTION_MICRO);
    p->values[v].tier = t;
    return v;
}

static void emit_add(program *p, value_id a, value_id b, value_id y) {
    op *o = program_emit(p, OP_ADD, SECTION_MICRO);
    op_in(o, ADD_A, a), op_in(o, ADD_B, b), op_out(o, ADD_Y, y);
}

static void emit_copy(program *p, value_id x, value_id y, stream s) {
    op *o = program_emit(p, OP_COPY, SECTION_MICRO);
    op_in(o, COPY_X, x), op_out(o, COPY_Y, y);
    o->stream = s;
}

/* As layout does it, but for bytes that a test has shared out itself: every value has its own. */
static void give_addresses(program *p) {
    for (value_id v = 1; v < p->n_values; v++) {
        value *a = &p->values[v];
        if (a->offset != VALUE_NOT_PLACED) continue;
        a->offset = p->arena_bytes[a->tier];
        p->arena_bytes[a->tier] += (value_bytes(a) + 4095) / 4096 * 4096;
    }
}

static double ms_of(program *p, const hardware *h, double *busy) {
    double none[STREAM_COUNT] = {0};
    const char *missing = NULL;
    give_addresses(p);
    assert_int_equal(pass_waits(p, NULL, NULL), OK);
    double s = cost_section(p, SECTION_MICRO, h, NULL, busy ? busy : none, &missing);
    assert_null(missing);
    return s * 1e3;
}

static void one_stream_is_a_sum(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id a = add_value(&p, "a", TIER_DEVICE), b = add_value(&p, "b", TIER_DEVICE),
             c = add_value(&p, "c", TIER_DEVICE);
    emit_add(&p, a, b, c);
    emit_add(&p, b, c, a);
    assert_float_equal(ms_of(&p, &h, NULL), 6, 1e-9);
    h.launch_s = 1e-3;
    assert_float_equal(ms_of(&p, &h, NULL), 8, 1e-9);
    program_fini(&p);
}

static void independent_streams_overlap(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id a = add_value(&p, "a", TIER_DEVICE), b = add_value(&p, "b", TIER_DEVICE),
             c = add_value(&p, "c", TIER_DEVICE);
    value_id far = add_value(&p, "far", TIER_HOST), near = add_value(&p, "near", TIER_DEVICE);
    emit_copy(&p, far, near, STREAM_H2D);
    emit_add(&p, a, b, c);
    double busy[STREAM_COUNT] = {0};
    assert_float_equal(ms_of(&p, &h, busy), 3, 1e-9);
    assert_float_equal(busy[STREAM_H2D], 1e-3, 1e-12);
    assert_float_equal(busy[STREAM_COMPUTE], 3e-3, 1e-12);
    h.overlap = false; /* the same program where one thing happens at a time */
    double alone[STREAM_COUNT] = {0};
    assert_float_equal(ms_of(&p, &h, alone), 4, 1e-9);
    for (stream s = 0; s < STREAM_COUNT; s++) assert_float_equal(alone[s], busy[s], 1e-12);
    program_fini(&p);
}

static void a_chain_across_streams_waits(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id far = add_value(&p, "far", TIER_HOST), x = add_value(&p, "x", TIER_DEVICE),
             y = add_value(&p, "y", TIER_DEVICE);
    value_id back = add_value(&p, "back", TIER_HOST);
    emit_copy(&p, far, x, STREAM_H2D);
    emit_add(&p, x, x, y);
    emit_copy(&p, y, back, STREAM_D2H);
    assert_float_equal(ms_of(&p, &h, NULL), 5, 1e-9);
    program_fini(&p);
}

/* near1 and near2 share bytes: the second copy must wait until the ADD has read the first. */
static void overwriting_waits_for_the_last_reader(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id far1 = add_value(&p, "far1", TIER_HOST), far2 = add_value(&p, "far2", TIER_HOST);
    value_id near1 = add_value(&p, "near1", TIER_DEVICE), near2 = add_value(&p, "near2", TIER_DEVICE);
    value_id y = add_value(&p, "y", TIER_DEVICE);
    emit_copy(&p, far1, near1, STREAM_H2D);
    emit_add(&p, near1, near1, y);
    emit_copy(&p, far2, near2, STREAM_H2D);
    assert_float_equal(ms_of(&p, &h, NULL), 4, 1e-9); /* bytes of their own: the second copy hides behind the ADD */
    p.values[near1].offset = p.values[near2].offset = 0;
    p.values[y].offset = (size_t)MB;
    assert_float_equal(ms_of(&p, &h, NULL), 5, 1e-9);
    p.values[near2].offset = (size_t)MB / 2; /* half of it is enough */
    assert_float_equal(ms_of(&p, &h, NULL), 5, 1e-9);
    program_fini(&p);
}

static void copies_both_ways_share_the_wire(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id a = add_value(&p, "a", TIER_HOST), b = add_value(&p, "b", TIER_DEVICE);
    value_id c = add_value(&p, "c", TIER_DEVICE), d = add_value(&p, "d", TIER_HOST);
    emit_copy(&p, a, b, STREAM_H2D);
    emit_copy(&p, c, d, STREAM_D2H);
    assert_float_equal(ms_of(&p, &h, NULL), 1, 1e-9);
    h.copy_both = 1e9; /* half speed for either while both run */
    assert_float_equal(ms_of(&p, &h, NULL), 2, 1e-9);
    value_id e = add_value(&p, "e", TIER_HOST), f = add_value(&p, "f", TIER_DEVICE);
    emit_copy(&p, e, f, STREAM_H2D); /* alone at the end, full speed again */
    assert_float_equal(ms_of(&p, &h, NULL), 3, 1e-9);
    program_fini(&p);
}

/* Copies take their share of the host's memory before its cores do. */
static void the_host_is_slower_beside_copies(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    h.host_bandwidth = 4e9;
    value_id a = add_value(&p, "a", TIER_HOST), b = add_value(&p, "b", TIER_HOST);
    emit_copy(&p, a, b, STREAM_HOST);
    double busy[STREAM_COUNT] = {0};
    assert_float_equal(ms_of(&p, &h, busy), 0.5, 1e-9);
    value_id far = add_value(&p, "far", TIER_HOST), near = add_value(&p, "near", TIER_DEVICE);
    emit_copy(&p, far, near, STREAM_H2D);
    busy[STREAM_HOST] = 0;
    assert_float_equal(ms_of(&p, &h, busy), 1, 1e-9);
    assert_float_equal(busy[STREAM_HOST], 0.5e-3 / 0.75, 1e-12); /* one of its four GB/s is taken */
    value_id out = add_value(&p, "out", TIER_DEVICE), back = add_value(&p, "back", TIER_HOST);
    emit_copy(&p, out, back, STREAM_D2H);
    busy[STREAM_HOST] = 0;
    assert_float_equal(ms_of(&p, &h, busy), 1, 1e-9);
    assert_float_equal(busy[STREAM_HOST], 0.5e-3 / 0.5, 1e-12);
    h.host_total = 5e9; /* a memory that has more than the cores take alone */
    busy[STREAM_HOST] = 0;
    ms_of(&p, &h, busy);
    assert_float_equal(busy[STREAM_HOST], 0.5e-3 / 0.75, 1e-12);
    h.host_total = 0;
    h.launch_s = 0.5e-3; /* half of the time it needs no memory: two of four are enough then */
    busy[STREAM_HOST] = 0;
    ms_of(&p, &h, busy);
    assert_float_equal(busy[STREAM_HOST], 1e-3, 1e-12);
    program_fini(&p);
}

/* Further devices are devices: their copies cross the same wire, and one device reaches another by the link. */
static void further_devices_are_devices(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id far = add_value(&p, "far", TIER_HOST), a = add_value(&p, "a", TIER_DEVICE),
             b = add_value(&p, "b", TIER_DEVICE_1), c = add_value(&p, "c", TIER_DEVICE_1);
    h.copy_to_device = 0.5e9;
    emit_copy(&p, far, b, STREAM_H2D);
    assert_float_equal(ms_of(&p, &h, NULL), 2, 1e-9);
    emit_copy(&p, a, c, STREAM_H2D); /* no link: through the host, as slow as the slower half */
    assert_float_equal(ms_of(&p, &h, NULL), 4, 1e-9);
    h.link_bandwidth = 4e9;
    assert_float_equal(ms_of(&p, &h, NULL), 2.25, 1e-9);
    emit_copy(&p, b, c, STREAM_COMPUTE); /* inside one: read and written there */
    h.device_bandwidth = 8e9;
    assert_float_equal(ms_of(&p, &h, NULL), 2.5, 1e-9);
    program_fini(&p);
}

static void adamw_runs_where_its_op_says(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id v[4], clip = program_value(&p, "clip", DTYPE_F32, SHAPE(CLIP_COUNT), ROLE_WORK, SECTION_MICRO);
    value_id scalars = program_value(&p, "scalars", DTYPE_U8, SHAPE(64), ROLE_INPUT, SECTION_MICRO);
    static const char *const names[] = {"g", "p", "m", "v"};
    for (int i = 0; i < 4; i++) v[i] = add_value(&p, names[i], TIER_HOST);
    op *o = program_emit(&p, OP_ADAMW, SECTION_MICRO);
    op_in(o, ADAMW_G, v[0]), op_in(o, ADAMW_CLIP, clip), op_in(o, ADAMW_SCALARS, scalars);
    op_out(o, ADAMW_P, v[1]), op_out(o, ADAMW_M, v[2]), op_out(o, ADAMW_V, v[3]);
    o->at = TIER_HOST;
    o->stream = STREAM_HOST;
    h.device_bandwidth = 0.1e9;                               /* it has nothing to do with the device */
    double small = (4.0 * CLIP_COUNT + 64) / 1e6;             /* ms */
    assert_float_equal(ms_of(&p, &h, NULL), 7 + small, 1e-9); /* reads g p m v, writes p m v */
    h.host_adamw = 100e9;                                     /* parameters/s */
    assert_float_equal(ms_of(&p, &h, NULL), 7 + small, 1e-9); /* memory is slower */
    h.host_adamw = 0.1e9, h.host_bandwidth = 10e9;
    assert_float_equal(ms_of(&p, &h, NULL), 1e3 * N / 0.1e9, 1e-9); /* fewer bytes, but as much arithmetic */
    value_id x = add_value(&p, "x", TIER_DEVICE), y = add_value(&p, "y", TIER_DEVICE);
    emit_add(&p, x, x, y); /* beside it on the device */
    double busy[STREAM_COUNT] = {0};
    assert_float_equal(ms_of(&p, &h, busy), 30, 1e-9);
    assert_float_equal(busy[STREAM_HOST], N / 0.1e9, 1e-12);
    p.ops[0].at = TIER_DEVICE; /* by its own memory ... */
    p.ops[0].stream = STREAM_COMPUTE;
    assert_float_equal(ms_of(&p, &h, NULL), 30 + 10 * (7 + small), 1e-9);
    h.overlap = false; /* ... unless its cores are the host's */
    assert_float_equal(ms_of(&p, &h, NULL), 30 + 1e3 * N / 0.1e9, 1e-9);
    program_fini(&p);
}

/* A drive needs no cores: it reads beside kernels even where copies cannot run beside them. */
static void a_drive_works_beside_busy_cores(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    h.overlap = false;
    value_id disk = add_value(&p, "disk", TIER_NVME), near = add_value(&p, "near", TIER_HOST);
    value_id x = add_value(&p, "x", TIER_DEVICE), y = add_value(&p, "y", TIER_DEVICE);
    emit_copy(&p, disk, near, STREAM_READ); /* 2 ms */
    emit_add(&p, y, y, y);                  /* 3 ms */
    double busy[STREAM_COUNT] = {0};
    assert_float_equal(ms_of(&p, &h, busy), 3, 1e-9);
    assert_float_equal(busy[STREAM_READ], 2e-3, 1e-12);
    emit_copy(&p, near, x, STREAM_H2D); /* from 2 ms on it and the kernel share the cores */
    assert_float_equal(ms_of(&p, &h, NULL), 4, 1e-9);
    h.disk_read = 0.25e9; /* a slow one is waited for */
    assert_float_equal(ms_of(&p, &h, NULL), 5, 1e-9);
    value_id other = add_value(&p, "other", TIER_HOST), home = add_value(&p, "home", TIER_NVME);
    h.disk_write = 1e9;
    emit_copy(&p, other, home, STREAM_WRITE); /* and one that reads and writes at once does half of each */
    double both[STREAM_COUNT] = {0};
    assert_float_equal(ms_of(&p, &h, both), 6, 1e-9);
    assert_float_equal(both[STREAM_WRITE], 2e-3, 1e-12);
    program_fini(&p);
}

static void a_rate_that_is_not_there_is_named(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id disk = add_value(&p, "disk", TIER_NVME), near = add_value(&p, "near", TIER_HOST);
    emit_copy(&p, disk, near, STREAM_READ);
    assert_float_equal(ms_of(&p, &h, NULL), 2, 1e-9); /* 0.5 GB/s */
    emit_copy(&p, near, disk, STREAM_WRITE);
    assert_int_equal(pass_waits(&p, NULL, NULL), OK);
    cost c;
    cost_program(&c, &p, &h, NULL, 1);
    assert_true(isinf(c.step_s));
    assert_string_equal(c.missing, "disk.write_gb_per_s");
    program_fini(&p);
}

/* ---- the walk against a slower one that compares every pair of ops ------------------------------------------------- */

typedef struct access {
    tier t;
    uint64_t begin, end;
    bool writes;
} access;

static bool conflict(const access *a, const access *b) {
    return a->t == b->t && a->begin < b->end && b->begin < a->end && (a->writes || b->writes);
}

static size_t accesses(const program *p, const op *o, access *out) {
    size_t n = 0;
    for (int i = 0; i < op_input_count(o->kind); i++) {
        const value *v = program_get(p, o->in[i]);
        out[n++] = (access){v->tier, v->offset, v->offset + value_bytes(v), false};
    }
    for (int i = 0; i < op_output_count(o->kind); i++) {
        const value *v = program_get(p, o->out[i]);
        out[n++] = (access){v->tier, v->offset, v->offset + value_bytes(v), true};
    }
    return n;
}

/* An op starts when its stream is free and every earlier op that it conflicts with has ended. */
static double slow_walk(const program *p, const hardware *h) {
    double *end = calloc(p->n_ops, sizeof *end), free_at[STREAM_COUNT] = {0}, last = 0;
    for (size_t i = 0; i < p->n_ops; i++) {
        access a[OP_MAX_IN + 1], b[OP_MAX_IN + 1];
        const char *missing = NULL;
        size_t na = accesses(p, &p->ops[i], a);
        stream mine = p->ops[i].stream;
        double start = free_at[mine];
        for (size_t j = 0; j < i; j++) {
            size_t nb = accesses(p, &p->ops[j], b);
            for (size_t x = 0; x < na; x++)
                for (size_t y = 0; y < nb; y++)
                    if (conflict(&a[x], &b[y])) start = fmax(start, end[j]);
        }
        end[i] = free_at[mine] = start + cost_op_seconds(p, &p->ops[i], h, NULL, &missing);
        last = fmax(last, end[i]);
    }
    free(end);
    return last;
}

static void random_programs_end_when_the_slow_walk_ends(void **state) {
    (void)state;
    hardware h = machine();
    h.host_bandwidth = 1e15; /* nothing is slower beside anything: the host takes as long as a launch */
    h.launch_s = 1e-3;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        program p;
        program_init(&p);
        uint64_t key = rng_key(seed, "cost"), k = 0;
        char name[16];
        for (int i = 0; i < 14; i++) {
            snprintf(name, sizeof name, "v%d", i);
            value_id v = add_value(&p, name, i < 9 ? TIER_DEVICE : TIER_HOST);
            p.values[v].offset = rng_below(key, k++, 24) * ((size_t)MB / 4); /* they overlap as they like */
        }
        for (int i = 0; i < 40; i++) {
            value_id device[3] = {1 + (value_id)rng_below(key, k, 9), 1 + (value_id)rng_below(key, k + 1, 9),
                                  1 + (value_id)rng_below(key, k + 2, 9)};
            value_id host = 10 + (value_id)rng_below(key, k + 3, 5);
            uint64_t which = rng_below(key, k + 4, 5);
            k += 5;
            if (which == 0) emit_copy(&p, host, device[0], STREAM_H2D);
            else if (which == 1) emit_copy(&p, device[0], host, STREAM_D2H);
            else if (which == 2) emit_copy(&p, device[0], device[1], STREAM_COMM);
            else if (which == 3) emit_copy(&p, host, 10 + device[1] % 5, STREAM_HOST);
            else emit_add(&p, device[0], device[1], device[2]);
        }
        assert_float_equal(ms_of(&p, &h, NULL), 1e3 * slow_walk(&p, &h), 1e-6);
        hardware cores = h; /* the same on cores that do everything: however it overlaps, the sum */
        cores.overlap = false;
        double sum = 0, busy[STREAM_COUNT] = {0}, all_busy = 0;
        for (size_t i = 0; i < p.n_ops; i++) sum += cost_op_seconds(&p, &p.ops[i], &cores, NULL, &(const char *){NULL});
        assert_float_equal(ms_of(&p, &cores, busy), 1e3 * sum, 1e-6);
        for (stream s = 0; s < STREAM_COUNT; s++) all_busy += busy[s];
        assert_float_equal(all_busy, sum, 1e-9);
        program_fini(&p);
    }
}

/* ---- single ops ---------------------------------------------------------------------------------------------------- */

static void small_products_are_slower(void **state) {
    (void)state;
    hardware h = machine();
    h.matrix[DTYPE_BF16] = 1e12;
    h.half[0] = 100, h.half[1] = 200, h.half[2] = 50;
    assert_float_equal(hardware_product_rate(&h, DTYPE_BF16, 1e12, 1e12, 1e12), 1e12, 1e3);
    assert_float_equal(hardware_product_rate(&h, DTYPE_BF16, 100, 1e12, 1e12), 0.5e12, 1e3);
    assert_float_equal(hardware_product_rate(&h, DTYPE_BF16, 100, 200, 50), 0.125e12, 1e3);
}

/* Of layers that are placed on the host's cores; a machine that does not say how fast these are has no prediction. */
static void products_of_the_host_have_a_rate_of_their_own(void **state) {
    hardware h = machine();
    h.host_bandwidth = 1e15;
    program p;
    program_init(&p);
    value_id x = program_value(&p, "x", DTYPE_F32, SHAPE(1000, 1000), ROLE_ACTIVATION, SECTION_MICRO);
    value_id w = program_value(&p, "w", DTYPE_F32, SHAPE(1000, 1000), ROLE_PARAM, SECTION_MICRO);
    value_id y = program_value(&p, "y", DTYPE_F32, SHAPE(1000, 1000), ROLE_ACTIVATION, SECTION_MICRO);
    op *o = program_emit(&p, OP_LINEAR, SECTION_MICRO);
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w), op_out(o, LINEAR_Y, y);
    o->at = TIER_HOST;
    const char *missing = NULL;
    assert_true(isinf(cost_op_seconds(&p, o, &h, NULL, &missing)));
    assert_string_equal(missing, "host.fp32.gflops");
    h.host_matrix[DTYPE_F32] = 1e12; /* 2 GFLOP: 2 ms */
    missing = NULL;
    assert_true(fabs(cost_op_seconds(&p, o, &h, NULL, &missing) - 2e-3) < 1e-9 && !missing);
    o->at = TIER_DEVICE; /* which computes for nothing: memory, 12 MB */
    assert_true(fabs(cost_op_seconds(&p, o, &h, NULL, &missing) - 12e-3) < 1e-9);
    program_fini(&p);
    for (size_t i = 0; hardware_at(i); i++)
        for (int t = 0; t < HARDWARE_DTYPES; t++)
            assert_true(hardware_at(i)->unified || hardware_at(i)->host_matrix[t] > 0);
}

/* Elementwise ops too: a faster device changes nothing for what the host computes, whatever its class. */
static void what_the_host_computes_does_not_depend_on_the_device(void **state) {
    hardware h = machine();
    h.host_bandwidth = 1e9;
    program p;
    program_init(&p);
    value_id a = program_value(&p, "a", DTYPE_BF16, SHAPE(1024, 1024), ROLE_ACTIVATION, SECTION_MICRO);
    value_id gamma = program_value(&p, "gamma", DTYPE_BF16, SHAPE(1024), ROLE_PARAM, SECTION_MICRO);
    value_id rstd = program_value(&p, "rstd", DTYPE_F32, SHAPE(1024), ROLE_ACTIVATION, SECTION_MICRO);
    value_id q = program_value(&p, "q", DTYPE_F8E4M3, SHAPE(1024, 1024), ROLE_ACTIVATION, SECTION_MICRO);
    op *o = program_emit(&p, OP_RMSNORM8, SECTION_MICRO);
    op_in(o, RMSNORM8_A, a), op_in(o, RMSNORM8_GAMMA, gamma), op_out(o, RMSNORM8_RSTD, rstd), op_out(o, RMSNORM8_Q, q);
    o->at = TIER_HOST;
    const char *missing = NULL;
    double before = cost_op_seconds(&p, o, &h, NULL, &missing);
    h.device_bandwidth *= 10;
    h.vector[DTYPE_BF16] *= 10, h.vector[DTYPE_F32] *= 10;
    assert_true(cost_op_seconds(&p, o, &h, NULL, &missing) == before && !missing);
    assert_true(before >= 3.0 * 1024 * 1024 / 1e9); /* reads 16 bits, writes 8 */
    program_fini(&p);
}

static void short_rows_attend_slower(void **state) {
    (void)state;
    hardware h = machine();
    h.attention[DTYPE_BF16] = 1e12;
    assert_float_equal(hardware_attention_rate(&h, DTYPE_BF16, 1), 1e12, 1e3); /* nobody said so */
    h.attention_half = 500;
    assert_float_equal(hardware_attention_rate(&h, DTYPE_BF16, 500), 0.5e12, 1e3);
    assert_float_equal(hardware_attention_rate(&h, DTYPE_BF16, 1500), 0.75e12, 1e3);
}

static double op_seconds(const program *p, const hardware *h, size_t i) {
    const char *missing = NULL;
    double s = cost_op_seconds(p, &p->ops[i], h, NULL, &missing);
    assert_null(missing);
    return s;
}

static void an_op_takes_the_longer_of_arithmetic_and_memory(void **state) {
    (void)state;
    program p;
    program_init(&p);
    hardware h = machine();
    value_id x = program_value(&p, "x", DTYPE_BF16, SHAPE(100, 200), ROLE_ACTIVATION, SECTION_MICRO);
    value_id w = program_value(&p, "w", DTYPE_BF16, SHAPE(300, 200), ROLE_PARAM, SECTION_MICRO);
    value_id y = program_value(&p, "y", DTYPE_BF16, SHAPE(100, 300), ROLE_ACTIVATION, SECTION_MICRO);
    op *o = program_emit(&p, OP_LINEAR, SECTION_MICRO);
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w), op_out(o, LINEAR_Y, y);
    assert_float_equal(op_seconds(&p, &h, 0), 2 * (20000 + 60000 + 30000) / 1e9, 1e-12);
    h.matrix[DTYPE_BF16] = 1e9;
    assert_float_equal(op_seconds(&p, &h, 0), 2.0 * 100 * 200 * 300 / 1e9, 1e-12);
    h.matrix[DTYPE_F32] = 1; /* another dtype's rate changes nothing */
    assert_float_equal(op_seconds(&p, &h, 0), 2.0 * 100 * 200 * 300 / 1e9, 1e-12);
    program_fini(&p);
}

static void bytes_are_those_that_move(void **state) {
    (void)state;
    program p;
    program_init(&p);
    enum { V = 1000, C = 8, T = 10, F = 4 };
    value_id tokens = program_value(&p, "tokens", DTYPE_I32, SHAPE(T), ROLE_INPUT, SECTION_MICRO);
    value_id table = program_value(&p, "table", DTYPE_F32, SHAPE(V, C), ROLE_PARAM, SECTION_MICRO);
    value_id x = program_value(&p, "x", DTYPE_F32, SHAPE(T, C), ROLE_ACTIVATION, SECTION_MICRO);
    op *o = program_emit(&p, OP_EMBED, SECTION_MICRO);
    op_in(o, EMBED_TOKENS, tokens), op_in(o, EMBED_TABLE, table), op_out(o, EMBED_X, x);
    assert_float_equal(op_bytes(&p, &p.ops[0]), T * 4 + 2 * T * C * F, 0); /* rows of the tokens, not the table */
    o = program_emit(&p, OP_EMBED_BWD_ADD, SECTION_MICRO);
    op_in(o, EMBED_BWD_ADD_TOKENS, tokens), op_in(o, EMBED_BWD_ADD_DY, x), op_out(o, EMBED_BWD_ADD_DTABLE, table);
    assert_float_equal(op_bytes(&p, &p.ops[1]), T * 4 + 3 * T * C * F, 0);
    value_id g = program_value(&p, "g", DTYPE_F32, SHAPE(V), ROLE_GRAD, SECTION_UPDATE);
    value_id w = program_value(&p, "w", DTYPE_BF16, SHAPE(V), ROLE_PARAM, SECTION_UPDATE);
    value_id s[3];
    for (int i = 0; i < 3; i++)
        s[i] =
            program_value(&p, (const char *[]){"master", "m", "v"}[i], DTYPE_F32, SHAPE(V), ROLE_STATE, SECTION_UPDATE);
    o = program_emit(&p, OP_ADAMW, SECTION_UPDATE);
    op_in(o, ADAMW_G, g), op_out(o, ADAMW_P, w), op_out(o, ADAMW_MASTER, s[0]), op_out(o, ADAMW_M, s[1]),
        op_out(o, ADAMW_V, s[2]);
    assert_float_equal(op_bytes(&p, &p.ops[2]), 30.0 * V, 0);
    double rounded_to_nearest = op_flops(&p, &p.ops[2]);
    assert_float_equal(rounded_to_nearest, HARDWARE_ADAMW_FLOPS * V, 0);
    p.ops[2].out[ADAMW_MASTER] =
        NO_VALUE; /* without a master the bf16 parameter is rounded with noise, which is work */
    assert_true(op_flops(&p, &p.ops[2]) > rounded_to_nearest);
    program_fini(&p);
}

/* Memory, arithmetic, noise: the slowest of them, and of what was not measured none. */
static void noise_on_the_host_takes_time(void **state) {
    (void)state;
    hardware h = machine();
    enum { COUNT = 1 << 20 };
    h.host_bandwidth = 100e9;
    program p;
    program_init(&p);
    value_id g = program_value(&p, "g", DTYPE_BF16, SHAPE(COUNT), ROLE_GRAD, SECTION_MICRO);
    value_id wide = program_value(&p, "wide", DTYPE_F32, SHAPE(COUNT), ROLE_GRAD, SECTION_MICRO);
    value_id state_of[3];
    for (int i = 0; i < 3; i++)
        state_of[i] =
            program_value(&p, (const char *[]){"p", "m", "v"}[i], DTYPE_BF16, SHAPE(COUNT), ROLE_STATE, SECTION_MICRO);
    op *o = program_emit(&p, OP_ACCUMULATE, SECTION_MICRO);
    op_in(o, ACCUMULATE_X, g), op_out(o, ACCUMULATE_ACC, g);
    o->at = TIER_HOST;
    o = program_emit(&p, OP_ACCUMULATE, SECTION_MICRO);
    op_in(o, ACCUMULATE_X, wide), op_out(o, ACCUMULATE_ACC, wide);
    o->at = TIER_HOST;
    o = program_emit(&p, OP_ADAMW, SECTION_MICRO);
    op_in(o, ADAMW_G, g), op_out(o, ADAMW_P, state_of[0]), op_out(o, ADAMW_M, state_of[1]),
        op_out(o, ADAMW_V, state_of[2]);
    o->at = TIER_HOST;
    double ns = 1e9 / COUNT;
    const double small = 1e-4;                                   /* ns: factors and scalars of the step */
    assert_float_equal(ns * op_seconds(&p, &h, 0), 0.06, small); /* reads both, writes one, 2 bytes each */
    assert_float_equal(ns * op_seconds(&p, &h, 1), 0.12, small);
    assert_float_equal(ns * op_seconds(&p, &h, 2), 0.14, small); /* reads four, writes three */
    h.host_noise = 10e9;
    assert_float_equal(ns * op_seconds(&p, &h, 0), 0.1, small);
    assert_float_equal(ns * op_seconds(&p, &h, 1), 0.12, small); /* fp32 has none */
    assert_float_equal(ns * op_seconds(&p, &h, 2), 0.3, small);  /* three numbers each */
    h.host_adamw = 2e9;
    assert_float_equal(ns * op_seconds(&p, &h, 2), 0.5, small);
    program_fini(&p);
}

/* 8-bit states are widened and rounded around AdamW's step: a rate of its own, and noise on top of it. */
static void states_of_8_bits_take_the_host_longer(void **state) {
    (void)state;
    hardware h = machine();
    enum { COUNT = 1 << 20 };
    h.host_bandwidth = 100e9, h.host_adamw = 3e9, h.host_noise = 10e9;
    program p;
    program_init(&p);
    value_id g = program_value(&p, "g", DTYPE_BF16, SHAPE(COUNT), ROLE_GRAD, SECTION_MICRO);
    value_id param = program_value(&p, "p", DTYPE_BF16, SHAPE(COUNT), ROLE_PARAM, SECTION_MICRO);
    value_id m = program_value(&p, "m", DTYPE_I8, SHAPE(COUNT), ROLE_STATE, SECTION_MICRO);
    value_id v = program_value(&p, "v", DTYPE_U8, SHAPE(COUNT), ROLE_STATE, SECTION_MICRO);
    op *o = program_emit(&p, OP_ADAMW, SECTION_MICRO);
    op_in(o, ADAMW_G, g), op_out(o, ADAMW_P, param), op_out(o, ADAMW_M, m), op_out(o, ADAMW_V, v);
    o->at = TIER_HOST;
    double ns = 1e9 / COUNT;
    const double small = 1e-4;                                      /* ns: factors and scalars of the step */
    assert_float_equal(ns * op_seconds(&p, &h, 0), 1 + 0.1, small); /* not measured: a third of the rate */
    h.host_adamw8 = 4e9;
    assert_float_equal(ns * op_seconds(&p, &h, 0), 0.25 + 0.1, small);
    h.host_bandwidth = 10e9;
    assert_float_equal(ns * op_seconds(&p, &h, 0), 1.0, small); /* 10 bytes a parameter */
    h.host_adamw = h.host_adamw8 = h.host_noise = 0;
    assert_float_equal(ns * op_seconds(&p, &h, 0), 1.0, small); /* memory alone */
    program_fini(&p);
}

/* ---- a whole plan -------------------------------------------------------------------------------------------------- */

static cost plan_cost(plan_request r, const hardware *h) {
    plan p;
    r.hardware = h;
    assert_int_equal(plan_choose(&p, &r), OK);
    cost c = p.cost;
    plan_close(&p);
    return c;
}

static void a_plan_knows_its_time(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h200"), OK);
    plan_request r = {.source = net_source_of(model_preset_find("qwen2.5-1.5b")),
                      .choice.micro_batch = 8,
                      .choice.accumulation = 2,
                      .seq_len = 1024,
                      .choice.precision = PRECISION_BF16,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .target = {.name = "test", .n_threads = 1, .alignment = 64}};
    cost base = plan_cost(r, &h);
    assert_float_equal(base.step_s, 2 * base.micro_s + base.update_s, 1e-12);
    assert_float_equal(base.busy_s[STREAM_COMPUTE], base.step_s, 1e-9 * base.step_s); /* one stream, never idle */
    double sum = 0;
    for (int k = 0; k < OP_COUNT; k++) sum += base.kinds[k].seconds;
    assert_float_equal(sum, base.step_s, 1e-9 * base.step_s);
    assert_true(base.kinds[OP_LINEAR].n == 2 * 28 * 4); /* qkv, o, gate|up, down */
    /* No faster than the matrix rate allows, no slower than a quarter of it: what peers reach there is more than half. */
    double flops = 6.0 * (double)model_param_count(model_of(&r.source)) * 8 * 2 * 1024;
    assert_true(base.step_s > flops / 790e12 && base.step_s < 4 * flops / 790e12);
    plan_request more = r;
    more.choice.accumulation = 4;
    assert_true(plan_cost(more, &h).step_s > 1.7 * base.step_s);
    plan_request fp32 = r;
    fp32.choice.precision = PRECISION_FP32;
    assert_true(plan_cost(fp32, &h).step_s > 5 * base.step_s);
    hardware slow;
    assert_int_equal(hardware_load(&slow, "rtx-3090"), OK);
    assert_true(plan_cost(r, &slow).step_s > 4 * base.step_s);
    r.hardware = NULL;
    plan p;
    assert_int_equal(plan_choose(&p, &r), OK);
    assert_true(p.cost.step_s == 0);
    plan_close(&p);
}

/* Fewer logits at once: every chunk passes over the weight and its gradient again. */
static void smaller_chunks_of_logits_cost_time(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "a100-80"), OK);
    plan_request r = {.source = net_source_of(model_preset_find("gpt2")),
                      .choice.micro_batch = 4,
                      .choice.accumulation = 1,
                      .seq_len = 512,
                      .choice.precision = PRECISION_BF16,
                      .target = {.name = "test", .n_threads = 1, .alignment = 64}};
    double last = 0;
    for (int64_t mib = 1024; mib >= 1; mib /= 8) {
        r.logits_chunk_bytes = mib << 20;
        double s = plan_cost(r, &h).kinds[OP_UNEMBED_LOSS_GRAD].seconds;
        assert_true(s > last);
        last = s;
    }
    r.choice.precision = PRECISION_BF16_SR; /* its 16-bit gradient needs a second walk */
    r.logits_chunk_bytes = 64 << 20;
    double twice = plan_cost(r, &h).kinds[OP_UNEMBED_LOSS_GRAD].seconds;
    r.logits_chunk_bytes = 1 << 30;
    assert_true(twice > plan_cost(r, &h).kinds[OP_UNEMBED_LOSS_GRAD].seconds);
}

/* A message of 8 MB between the ranks of one axis. */
static double message_ms(op_kind kind, axis a, int group, const hardware *h, const mesh *m) {
    program p;
    program_init(&p);
    value_id x = program_value(&p, "x", DTYPE_F32, SHAPE(8 * N), ROLE_COMM, SECTION_MICRO);
    value_id y = program_value(&p, "y", DTYPE_F32, SHAPE(8 * N), ROLE_COMM, SECTION_MICRO);
    op *o = program_emit(&p, kind, SECTION_MICRO);
    op_in(o, ALL_GATHER_X, x), op_out(o, ALL_GATHER_Y, y); /* as in every collective */
    o->attr.axis = a, o->attr.group_size = group;
    const char *missing = NULL;
    double s = cost_op_seconds(&p, &p.ops[0], h, m, &missing);
    assert_null(missing);
    program_fini(&p);
    return s * 1e3;
}

/* Nodes of 8 with links of 4 GB/s inside and 1 GB/s out for each device. A ring leaves a node by all ways that its ranks
 * there have, up to what links carry; who speaks in pairs has one. */
static void messages_leave_a_node_by_all_ways_of_a_group(void **state) {
    (void)state;
    hardware h = machine();
    h.devices_per_node = 8;
    h.link_bandwidth = 4e9;
    h.network_bandwidth = 1e9;
    const double sent16 = 8 * 15.0 / 16, sent8 = 8 * 7.0 / 8, sent2 = 8 * 1.0 / 2; /* MB of 8 */
    mesh flat = {.size = {[AXIS_DATA] = 16}}, small = {.size = {[AXIS_DATA] = 8}};
    assert_float_equal(message_ms(OP_REDUCE_SCATTER, AXIS_DATA, 8, &h, &small), sent8 / 4, 1e-9);
    assert_float_equal(message_ms(OP_REDUCE_SCATTER, AXIS_DATA, 16, &h, &flat), sent16 / 4, 1e-9); /* 8 ways, 4 GB/s */
    assert_float_equal(message_ms(OP_REDUCE_SCATTER, AXIS_DATA, 16, &h, NULL), sent16 / 4, 1e-9);
    assert_float_equal(message_ms(OP_ALL_TO_ALL, AXIS_DATA, 16, &h, &flat), sent16, 1e-9);
    mesh pairs = {.size = {[AXIS_DATA] = 8, [AXIS_TENSOR] = 4}}; /* 2 data ranks of a group on each node */
    assert_float_equal(message_ms(OP_REDUCE_SCATTER, AXIS_DATA, 8, &h, &pairs), sent8 / 2, 1e-9);
    assert_float_equal(message_ms(OP_REDUCE_SCATTER, AXIS_TENSOR, 4, &h, &pairs), 6.0 / 4, 1e-9);
    mesh far = {.size = {[AXIS_DATA] = 2, [AXIS_TENSOR] = 8}}; /* two ranks, and each on its own node */
    assert_float_equal(message_ms(OP_REDUCE_SCATTER, AXIS_DATA, 2, &h, &far), sent2, 1e-9);
    h.devices_per_node = 16;
    assert_float_equal(message_ms(OP_REDUCE_SCATTER, AXIS_DATA, 2, &h, &far), sent2 / 4, 1e-9);
}

/* A vocabulary shared by ranks: each has its share of the products and of the walks over the logits, and makes its logits
 * once more for the gradient, which is a third of the products, and reads them once more. */
static void a_shared_loss_costs_its_share_and_its_logits_again(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h100"), OK);
    for (size_t i = 0; i < ARRAY_LENGTH(h.half); i++) h.half[i] = 0; /* products of any size at the same rate */
    plan_request r = {.source = net_source_of(model_preset_find("llama3-8b")),
                      .choice.micro_batch = 1,
                      .choice.accumulation = 4,
                      .seq_len = 4096,
                      .choice.precision = PRECISION_BF16,
                      .logits_chunk_bytes = 1 << 30,
                      .target = {.name = "test", .n_threads = 1, .alignment = 64}};
    CHANGE_MODEL(r.source, c.n_layers = 4);
    cost alone = plan_cost(r, &h);
    double products = 4 * 6.0 * 4096 * (double)(r.source.vocab * r.source.hidden) / h.matrix[DTYPE_BF16];
    double read = 4 * 4096.0 * (double)r.source.vocab * sizeof(float) / h.device_bandwidth;
    double whole = alone.kinds[OP_UNEMBED_LOSS_GRAD].seconds;
    assert_true(whole > products && whole < 1.25 * products);
    for (int tensor = 2; tensor <= 8; tensor *= 2) {
        r.mesh = (mesh){.size = {[AXIS_TENSOR] = tensor, [AXIS_PIPELINE] = 2}, .index = {[AXIS_PIPELINE] = 1}};
        r.logits_chunk_bytes = (1 << 30) / tensor; /* as many rows at once */
        cost c = plan_cost(r, &h);
        double shared = c.kinds[OP_UNEMBED_STATS].seconds + c.kinds[OP_UNEMBED_GRAD].seconds;
        assert_int_equal(c.kinds[OP_UNEMBED_GRAD].n, 4);
        assert_float_equal(shared, (whole + products / 3 + read) / tensor, 0.02 * shared);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stream_is_a_sum),
        cmocka_unit_test(independent_streams_overlap),
        cmocka_unit_test(a_chain_across_streams_waits),
        cmocka_unit_test(overwriting_waits_for_the_last_reader),
        cmocka_unit_test(copies_both_ways_share_the_wire),
        cmocka_unit_test(the_host_is_slower_beside_copies),
        cmocka_unit_test(further_devices_are_devices),
        cmocka_unit_test(adamw_runs_where_its_op_says),
        cmocka_unit_test(a_drive_works_beside_busy_cores),
        cmocka_unit_test(a_rate_that_is_not_there_is_named),
        cmocka_unit_test(random_programs_end_when_the_slow_walk_ends),
        cmocka_unit_test(small_products_are_slower),
        cmocka_unit_test(products_of_the_host_have_a_rate_of_their_own),
        cmocka_unit_test(what_the_host_computes_does_not_depend_on_the_device),
        cmocka_unit_test(short_rows_attend_slower),
        cmocka_unit_test(an_op_takes_the_longer_of_arithmetic_and_memory),
        cmocka_unit_test(bytes_are_those_that_move),
        cmocka_unit_test(noise_on_the_host_takes_time),
        cmocka_unit_test(states_of_8_bits_take_the_host_longer),
        cmocka_unit_test(a_plan_knows_its_time),
        cmocka_unit_test(smaller_chunks_of_logits_cost_time),
        cmocka_unit_test(messages_leave_a_node_by_all_ways_of_a_group),
        cmocka_unit_test(a_shared_loss_costs_its_share_and_its_logits_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
