/* test_exec.c - the executor on a small backend: pointers, sections, ledger, refusals, guard, trace, faults. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "exec/exec.h"
#include "exec/guard.h"
#include "fake_backend.h"

#include <errno.h>
#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 100, TAIL = 40 };

/* s = a + b; t = log(s); out = copy of the last TAIL elements of t (a view of a view); start: table = 1. */
typedef struct fixture {
    program p;
    value_id table, a, b, s, t, half, tail, out, work, host;
} fixture;

static void fixture_init(fixture *f) {
    program_init(&f->p);
    program *p = &f->p;
    f->table = program_persistent(p, "table", DTYPE_F32, SHAPE(8), ROLE_PARAM);
    f->a = program_persistent(p, "a", DTYPE_F32, SHAPE(N), ROLE_PARAM);
    f->b = program_persistent(p, "b", DTYPE_F32, SHAPE(N), ROLE_INPUT);
    p->current_layer = 3;
    f->s = program_value(p, "layers.3.s", DTYPE_F32, SHAPE(N), ROLE_ACTIVATION, SECTION_MICRO);
    f->t = program_value(p, "layers.3.t", DTYPE_F32, SHAPE(N), ROLE_ACTIVATION, SECTION_MICRO);
    f->half = program_view(p, "layers.3.t.half", f->t, (N / 2) * 4, SHAPE(N / 2));
    f->tail = program_view(p, "layers.3.t.tail", f->half, (N / 2 - TAIL) * 4, SHAPE(TAIL));
    f->work = program_value(p, "work", DTYPE_U8, SHAPE(FAKE_WORK_BYTES), ROLE_WORK, SECTION_MICRO);
    f->out = program_persistent(p, "out \"quoted\"", DTYPE_F32, SHAPE(TAIL), ROLE_STATE);
    f->host = program_persistent(p, "host", DTYPE_F32, SHAPE(N), ROLE_STATE);
    p->values[f->host].tier = TIER_HOST;
    p->current_layer = -1;
    op *o = program_emit(p, OP_ROPE_TABLE, SECTION_START);
    op_out(o, ROPE_TABLE_TABLE, f->table);
    p->current_layer = 3;
    o = program_emit(p, OP_ADD, SECTION_MICRO);
    op_in(o, ADD_A, f->a), op_in(o, ADD_B, f->b), op_out(o, ADD_Y, f->s);
    o = program_emit(p, OP_GELU, SECTION_MICRO);
    op_in(o, GELU_X, f->s), op_out(o, GELU_Y, f->t);
    o->work = f->work;
    o = program_emit(p, OP_COPY, SECTION_MICRO);
    op_in(o, COPY_X, f->tail), op_out(o, COPY_Y, f->out);
    o->stream = STREAM_D2H;
    p->current_layer = -1;
    o = program_emit(p, OP_COPY, SECTION_UPDATE);
    op_in(o, COPY_X, f->s), op_out(o, COPY_Y, f->host);
    fake_layout(p);
}

static exec *open_or_die(const program *p, const char *trace_path) {
    exec *e;
    status rc = exec_open(&e, p, &(exec_options){.backend = fake_backend(), .n_threads = 2, .trace_path = trace_path});
    if (rc != OK) fail_msg("%s", error_message());
    return e;
}

static void write_ramp(exec *e, const fixture *f) {
    float a[N], b[N];
    for (int i = 0; i < N; i++) a[i] = (float)i, b[i] = 1;
    exec_write(e, f->a, 0, a, sizeof a);
    exec_write(e, f->b, 0, b, sizeof b);
}

static void sections_run_their_ops_on_resolved_views(void **state) {
    fixture f;
    fixture_init(&f);
    exec *e = open_or_die(&f.p, NULL);
    float table[8], out[TAIL], host[N];
    exec_read(e, f.table, 0, table, sizeof table); /* SECTION_START ran in exec_open */
    for (int i = 0; i < 8; i++) assert_true(table[i] == 1);
    write_ramp(e, &f);
    exec_run(e, SECTION_MICRO);
    exec_read(e, f.out, 0, out, sizeof out);
    for (int i = 0; i < TAIL; i++) assert_true(out[i] == logf((float)(N - TAIL + i + 1)));
    exec_read(e, f.host, 0, host, sizeof host);
    for (int i = 0; i < N; i++) assert_true(host[i] == 0); /* UPDATE did not run */
    exec_run(e, SECTION_UPDATE);
    exec_read(e, f.host, 8, host, 4);
    assert_true(host[0] == 3);
    exec_run(e, SECTION_EVAL); /* a section without ops is nothing */
    assert_int_equal(exec_threads(e), 2);
    assert_true(exec_busy_seconds(e, OP_GELU) > 0 && exec_busy_seconds(e, OP_LINEAR) == 0);
    exec_close(e);
    program_fini(&f.p);
}

static void ledger_counts_what_was_touched(void **state) {
    fixture f;
    fixture_init(&f);
    exec *e = open_or_die(&f.p, NULL);
    ledger l;
    exec_ledger(e, &l);
    assert_int_equal(l.planned[TIER_DEVICE], f.p.arena_bytes[TIER_DEVICE]);
    assert_int_equal(l.planned[TIER_HOST], N * 4);
    assert_int_equal(l.peak[TIER_DEVICE], 32); /* only the table so far */
    assert_int_equal(l.peak[TIER_HOST], 0);
    assert_int_equal(l.n_runs, 1);
    float x = 1;
    exec_write(e, f.b, 8, &x, 4); /* a copy counts by its own end */
    exec_ledger(e, &l);
    assert_int_equal(l.peak[TIER_DEVICE], f.p.values[f.b].offset + 12);
    write_ramp(e, &f);
    exec_run(e, SECTION_MICRO);
    exec_ledger(e, &l);
    assert_int_equal(l.peak[TIER_DEVICE], f.p.arena_bytes[TIER_DEVICE]);
    assert_int_equal(l.peak[TIER_HOST], 0);
    exec_run(e, SECTION_UPDATE);
    exec_ledger(e, &l);
    assert_int_equal(l.peak[TIER_HOST], l.planned[TIER_HOST]);
    assert_int_equal(l.n_runs, 3);
    assert_int_equal(l.n_allocations, 0);
    exec_close(e);

    /* Scratch at the very end of the arena is part of the peak. */
    size_t end = (f.p.arena_bytes[TIER_DEVICE] + 63) / 64 * 64;
    f.p.values[f.work].offset = end;
    f.p.arena_bytes[TIER_DEVICE] = end + FAKE_WORK_BYTES + 64;
    e = open_or_die(&f.p, NULL);
    write_ramp(e, &f);
    exec_run(e, SECTION_MICRO);
    exec_ledger(e, &l);
    assert_int_equal(l.peak[TIER_DEVICE], end + FAKE_WORK_BYTES); /* less than planned: measured, not copied */
    exec_close(e);
    program_fini(&f.p);
}

static void check_zeros(const backend *b, const char *nvme_path, tier t) {
    enum { BYTES = (1 << 20) + 5 };
    program p;
    program_init(&p);
    value_id v = program_persistent(&p, "v", DTYPE_U8, SHAPE(BYTES), ROLE_STATE);
    p.values[v].tier = t;
    fake_layout(&p);
    exec *e;
    if (exec_open(&e, &p, &(exec_options){.backend = b, .n_threads = 2, .nvme_path = nvme_path}) != OK)
        fail_msg("%s", error_message());
    uint8_t *bytes = mem_alloc(BYTES);
    memset(bytes, 0x5a, BYTES);
    exec_read(e, v, 0, bytes, BYTES);
    for (size_t k = 0; k < BYTES; k++)
        if (bytes[k] != 0) fail_msg("%s: byte %zu is %x", tier_name(t), k, bytes[k]);
    assert_int_equal(exec_check(e), OK);
    free(bytes);
    exec_close(e);
    program_fini(&p);
}

static status dirty_memory_open(backend_context *c, tier t, size_t n_bytes, void **out) {
    TRY(fake_backend()->memory_open(c, t, n_bytes, out));
    memset(*out, 0x40, n_bytes);
    return OK;
}
static status memory_clear(backend_context *c, void *device_dst, size_t n_bytes) {
    (void)c;
    memset(device_dst, 0, n_bytes);
    return OK;
}

/* A device gives out memory as somebody left it. */
static void what_is_persistent_begins_as_zeros(void **state) {
    (void)state;
    char dir[] = "/tmp/ralo-test-zeros-XXXXXX";
    assert_non_null(mkdtemp(dir));
    backend far = *fake_backend();
    far.discrete = true;
    far.memory_open = dirty_memory_open;
    far.clear = memory_clear;
    check_zeros(fake_backend(), NULL, TIER_HOST);
    check_zeros(fake_backend(), NULL, TIER_DEVICE);
    check_zeros(fake_backend(), dir, TIER_NVME);
    check_zeros(&far, NULL, TIER_DEVICE);
    assert_int_equal(rmdir(dir), 0);
}

static status memory_lost(backend_context *c, void *dst, const void *src, size_t n_bytes) {
    (void)c, (void)dst, (void)src;
    return ERR(ERR_RUN, "the device is gone with %zu bytes", n_bytes);
}

/* A device may fail between two runs: what was not read is zeros and not what lay there, and the cause is kept. */
static void bytes_that_a_device_does_not_give_are_an_error(void **state) {
    (void)state;
    program p;
    program_init(&p);
    value_id v = program_persistent(&p, "v", DTYPE_F32, SHAPE(4), ROLE_STATE);
    fake_layout(&p);
    backend far = *fake_backend();
    far.discrete = true;
    far.clear = memory_clear;
    far.read = far.write = memory_lost;
    exec *e;
    if (exec_open(&e, &p, &(exec_options){.backend = &far, .n_threads = 1}) != OK) fail_msg("%s", error_message());
    float numbers[4] = {1, 2, 3, 4}, zeros[4] = {0};
    exec_read(e, v, 0, numbers, sizeof numbers);
    assert_memory_equal(numbers, zeros, sizeof zeros);
    assert_int_equal(exec_check(e), ERR_RUN);
    assert_non_null(strstr(error_message(), "gone with 16 bytes"));
    assert_int_equal(exec_check(e), OK); /* it is told once */
    exec_write(e, v, 4, numbers, 8);
    assert_int_equal(exec_run(e, SECTION_MICRO), ERR_RUN);
    assert_non_null(strstr(error_message(), "gone with 8 bytes"));
    exec_close(e);
    program_fini(&p);
}

static void expect_refusal(const program *p, status code, const char *first, const char *second) {
    exec *e;
    assert_int_equal(exec_open(&e, p, &(exec_options){.backend = fake_backend(), .n_threads = 1}), code);
    assert_null(e);
    if (!strstr(error_message(), first) || !strstr(error_message(), second)) fail_msg("message: %s", error_message());
}

static void wrong_plans_are_refused_by_name(void **state) {
    fixture f;
    fixture_init(&f);
    size_t offset = f.p.values[f.t].offset, arena_bytes = f.p.arena_bytes[TIER_DEVICE];
    f.p.values[f.t].offset = VALUE_NOT_PLACED; /* reached by op 2 directly, by op 3 through two views */
    expect_refusal(&f.p, ERR_BUG, "op 2 (gelu, section micro, layer 3)", "'layers.3.t', has no place");
    f.p.values[f.t].offset = arena_bytes - 64;
    expect_refusal(&f.p, ERR_BUG, "op 2 (gelu", "takes bytes");
    f.p.values[f.t].offset = SIZE_MAX - 64; /* the sum would wrap around */
    expect_refusal(&f.p, ERR_BUG, "op 2 (gelu", "takes bytes");
    f.p.values[f.t].offset = offset;

    f.p.values[f.work].shape = SHAPE(FAKE_WORK_BYTES - 1);
    expect_refusal(&f.p, ERR_BUG, "op 2 (gelu", "127 bytes of scratch");
    f.p.values[f.work].shape = SHAPE(FAKE_WORK_BYTES);
    f.p.ops[2].work = NO_VALUE;
    expect_refusal(&f.p, ERR_BUG, "op 2 (gelu", "0 bytes of scratch");
    f.p.ops[2].work = f.work;
    f.p.values[f.work].offset += 32;
    expect_refusal(&f.p, ERR_BUG, "'work'", "not aligned");
    f.p.values[f.work].offset -= 32;

    f.p.ops[1].in[ADD_B] = NO_VALUE;
    expect_refusal(&f.p, ERR_BUG, "op 1 (add", "operand b is missing");
    f.p.ops[1].in[ADD_B] = f.b;
    f.p.ops[1].kind = OP_SWIGLU_BWD; /* two inputs, one output, no kernel here */
    expect_refusal(&f.p, ERR_INPUT, "op 1 (swiglu_bwd", "fake backend has no kernel");
    f.p.ops[1].kind = OP_ADD;

    f.p.arena_bytes[TIER_HOST] = 0;
    expect_refusal(&f.p, ERR_BUG, "op 4 (copy, section update", "host arena, which has 0");
    f.p.arena_bytes[TIER_HOST] = N * 4;
    f.p.arena_bytes[TIER_NVME] = 4096;
    expect_refusal(&f.p, ERR_INPUT, "4096", "nvme");
    f.p.arena_bytes[TIER_NVME] = 0;
    exec_close(open_or_die(&f.p, NULL));
    program_fini(&f.p);
}

/* ---- guard --------------------------------------------------------------------------------------------------- */

static void allocate_in_task(void *context, int64_t task, int thread) { fake_allocate(); }

static void allocations_inside_a_section_are_counted_on_every_thread(void **state) {
    assert_true(guard_present());
    program p;
    program_init(&p);
    value_id x = program_persistent(&p, "x", DTYPE_F32, SHAPE(4), ROLE_INPUT);
    value_id y = program_persistent(&p, "y", DTYPE_F32, SHAPE(4), ROLE_INPUT);
    fake_layout(&p);
    op *o = program_emit(&p, OP_CAST, SECTION_MICRO);
    op_in(o, CAST_X, x), op_out(o, CAST_Y, y);
    o = program_emit(&p, OP_SWIGLU, SECTION_UPDATE);
    op_in(o, SWIGLU_GU, x), op_out(o, SWIGLU_Y, y);
    exec *e = open_or_die(&p, NULL);
    ledger l;
    exec_run(e, SECTION_MICRO);
    exec_ledger(e, &l);
    assert_int_equal(l.n_allocations, 1);
    exec_run(e, SECTION_UPDATE); /* one in each task, whichever thread took it */
    exec_ledger(e, &l);
    assert_int_equal(l.n_allocations, 1 + FAKE_TASKS);
    fake_allocate(); /* between sections nobody counts, here or on the workers */
    exec_parallel(e, allocate_in_task, NULL, FAKE_TASKS);
    exec_run(e, SECTION_EVAL);
    exec_ledger(e, &l);
    assert_int_equal(l.n_allocations, 1 + FAKE_TASKS);
    exec_close(e);
    program_fini(&p);
}

static void every_way_to_allocate_is_counted(void **state) {
    void *volatile p[10] = {0};
    uint64_t before = guard_count();
    guard_arm();
    p[0] = malloc(10);
    p[1] = calloc(3, 5);
    p[2] = realloc(NULL, 10);
    p[3] = reallocarray(NULL, 3, 7);
    p[4] = memalign(64, 10);
    p[5] = aligned_alloc(64, 128);
    p[6] = valloc(10);
    void *q = NULL;
    int rc = posix_memalign(&q, 256, 10);
    p[7] = q;
    guard_arm(); /* arming nests */
    guard_disarm();
    p[8] = strdup("text");
    p[9] = realloc(p[0], 1000);
    p[0] = NULL;
    guard_disarm();
    uint64_t counted = guard_count() - before;
    fake_allocate();
    assert_int_equal(guard_count() - before, counted);
#if defined(__SANITIZE_THREAD__)
    assert_int_equal(counted, 6); /* its runtime calls no hook for the aligned ones */
#else
    assert_int_equal(counted, 10);
#endif
    assert_int_equal(rc, 0);
    assert_int_equal((uintptr_t)p[7] % 256, 0);
    assert_int_equal((uintptr_t)p[4] % 64, 0);
    for (size_t i = 0; i < ARRAY_LENGTH(p); i++) {
        assert_true(p[i] || i == 0);
        free(p[i]);
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* those stop the program instead */
    volatile size_t huge = SIZE_MAX / 2;
    assert_null(reallocarray(NULL, huge, 3));
    assert_int_equal(posix_memalign(&q, 24, 8), EINVAL);
#endif
}

/* ---- trace --------------------------------------------------------------------------------------------------- */

static char trace_path[64] = "/tmp/ralo-test-trace-XXXXXX";

static json_t *load_trace(void) {
    json_error_t where;
    json_t *root = json_load_file(trace_path, JSON_REJECT_DUPLICATES, &where);
    if (!root) fail_msg("trace line %d: %s", where.line, where.text);
    return root;
}

/* What makes a killed writer harmless: a kill splits a write only between two pages. */
static void assert_no_event_crosses_a_page(void) {
    char *text;
    size_t n_bytes, n_events = 0, n_pages_reached = 0;
    assert_int_equal(file_read_all(trace_path, 64 << 20, &text, &n_bytes), OK);
    for (char *event = strstr(text, "{\"name\""), *end; event; event = strstr(end, "{\"name\":\"")) {
        end = strchr(event, '\n');
        assert_non_null(end);
        if (!strstr(end, "{\"name\":\"")) break; /* the footer is there from the start and never written again */
        assert_int_equal((event - text) / 4096, (end - text) / 4096);
        n_pages_reached = (size_t)(end - text) / 4096;
        n_events++;
    }
    assert_true(n_events > 18000 && n_pages_reached > 100);
    free(text);
}

static void trace_has_one_event_per_op(void **state) {
    fixture f;
    fixture_init(&f);
    exec *e = open_or_die(&f.p, trace_path);
    json_decref(load_trace()); /* whole from the first moment */
    write_ramp(e, &f);
    enum { RUNS = 6000 }; /* 18000 events: more than the buffer holds */
    for (int i = 0; i < RUNS; i++) exec_run(e, SECTION_MICRO);
    json_decref(load_trace());
    exec_run(e, SECTION_UPDATE);
    ledger l;
    exec_ledger(e, &l);
    assert_int_equal(l.n_allocations, 0);
    double busy_us = exec_busy_seconds(e, OP_GELU) * 1e6;
    exec_close(e);

    json_t *root = load_trace(), *events = json_object_get(root, "traceEvents"), *event;
    size_t i, n_ops = 0, n_gelu = 0;
    double last_end = 0, traced_us = 0;
    json_array_foreach(events, i, event) {
        const char *name = json_string_value(json_object_get(event, "name"));
        const char *phase = json_string_value(json_object_get(event, "ph"));
        json_t *args = json_object_get(event, "args");
        if (strcmp(phase, "M") == 0) continue;
        assert_string_equal(phase, "X");
        n_ops++;
        double start = json_number_value(json_object_get(event, "ts"));
        double length = json_number_value(json_object_get(event, "dur"));
        assert_true(start >= last_end - 0.0011 && length >= 0); /* times are printed to 1 ns */
        last_end = start + length;
        if (strcmp(name, "gelu") == 0) {
            n_gelu++;
            traced_us += length;
            assert_string_equal(json_string_value(json_object_get(args, "section")), "micro");
            assert_string_equal(json_string_value(json_object_get(args, "value")), "layers.3.t");
            assert_int_equal(json_integer_value(json_object_get(args, "layer")), 3);
            assert_int_equal(json_integer_value(json_object_get(event, "tid")), STREAM_COMPUTE);
            assert_int_equal(json_integer_value(json_object_get(args, "bytes")), 2 * N * 4);
            assert_int_equal(json_integer_value(json_object_get(args, "flops")),
                             20 * N); /* as op_flops counts a tanh */
        } else if (strcmp(name, "copy") == 0 && n_ops < 5) {
            assert_int_equal(json_integer_value(json_object_get(event, "tid")), STREAM_D2H);
            assert_string_equal(json_string_value(json_object_get(args, "value")), "out _quoted_");
        }
    }
    assert_int_equal(n_ops, 1 + 3 * RUNS + 1);
    assert_int_equal(n_gelu, RUNS);
    assert_true(fabs(traced_us - busy_us) <= 1e-3 * RUNS); /* each printed to 1 ns */
    json_decref(root);
    assert_no_event_crosses_a_page();
    program_fini(&f.p);
}

static void trace_of_a_killed_run_is_whole(void **state) {
    for (int round = 0; round < 8; round++) {
        int opened[2];
        assert_int_equal(pipe(opened), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            fixture f;
            fixture_init(&f);
            exec *e;
            exec_options o = {.backend = fake_backend(), .n_threads = 1, .trace_path = trace_path};
            if (exec_open(&e, &f.p, &o) != OK) _exit(1);
            write_ramp(e, &f);
            if (write(opened[1], "", 1) != 1) _exit(1);
            for (;;) exec_run(e, SECTION_MICRO);
        }
        char byte;
        close(opened[1]);
        assert_int_equal(read(opened[0], &byte, 1), 1);
        close(opened[0]);
        usleep((useconds_t)rng_below(7, (uint64_t)round, 40000));
        kill(child, SIGKILL);
        int how;
        waitpid(child, &how, 0);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        json_decref(load_trace());
    }
}

static void full_disk_ends_the_trace_not_the_run(void **state) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fixture f;
        fixture_init(&f);
        log_set_level(LOG_ERROR);
        signal(SIGXFSZ, SIG_IGN); /* a size limit behaves as a full disk: short write, then an error */
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){300000, 300000});
        exec *e;
        exec_options o = {.backend = fake_backend(), .n_threads = 1, .trace_path = trace_path};
        if (exec_open(&e, &f.p, &o) != OK) _exit(1);
        write_ramp(e, &f);
        for (int i = 0; i < 10000; i++) exec_run(e, SECTION_MICRO);
        exec_close(e);
        _exit(0);
    }
    int how;
    waitpid(child, &how, 0);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    json_t *root = load_trace();
    struct stat st;
    assert_int_equal(stat(trace_path, &st), 0);
    assert_in_range(st.st_size, 1000, 300000);
    assert_true(json_array_size(json_object_get(root, "traceEvents")) > 500);
    json_decref(root);
}

static void trace_that_cannot_be_opened_is_an_error(void **state) {
    fixture f;
    fixture_init(&f);
    exec *e;
    exec_options o = {.backend = fake_backend(), .n_threads = 1, .trace_path = "/nowhere/at/all.json"};
    assert_int_equal(exec_open(&e, &f.p, &o), ERR_IO);
    assert_non_null(strstr(error_message(), "/nowhere/at/all.json"));
    program_fini(&f.p);
}

/* ---- faults -------------------------------------------------------------------------------------------------- */

static void fault_names_the_op_that_made_it(void **state) {
    fixture f;
    fixture_init(&f);
    exec *e = open_or_die(&f.p, NULL);
    exec_fault fault;
    write_ramp(e, &f);
    exec_run(e, SECTION_MICRO); /* leaves NaN in scratch */
    exec_find_fault(e, SECTION_MICRO, &fault);
    assert_false(fault.found);
    float minus = -100;
    exec_write(e, f.a, 70 * 4, &minus, 4);
    exec_write(e, f.a, 81 * 4, &minus, 4);
    exec_find_fault(e, SECTION_MICRO, &fault);
    assert_true(fault.found);
    assert_int_equal(fault.op_index, 2);
    assert_int_equal(fault.value, f.t);
    assert_int_equal(fault.element, 70);
    assert_true(isnan(fault.number));
    float huge = 3e38f;
    exec_write(e, f.a, 5 * 4, &huge, 4);
    exec_write(e, f.b, 5 * 4, &huge, 4);
    exec_find_fault(e, SECTION_MICRO, &fault);
    assert_int_equal(fault.op_index, 1);
    assert_int_equal(fault.value, f.s);
    assert_int_equal(fault.element, 5);
    assert_true(isinf(fault.number));
    exec_close(e);
    program_fini(&f.p);
}

static void broken_parameter_is_named_itself(void **state) {
    fixture f;
    fixture_init(&f);
    exec *e = open_or_die(&f.p, NULL);
    exec_fault fault;
    write_ramp(e, &f);
    float nan_value = NAN;
    exec_write(e, f.b, (N - 1) * 4, &nan_value, 4);
    exec_find_fault(e, SECTION_MICRO, &fault);
    assert_true(fault.found);
    assert_int_equal(fault.op_index, 1);
    assert_int_equal(fault.value, f.b);
    assert_int_equal(fault.element, N - 1);
    exec_close(e);
    program_fini(&f.p);
}

static void faults_are_found_in_every_float_dtype_and_far_inside(void **state) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    static const uint64_t bad[] = {0xff800000u, 0xff80u, 0xfc00u, 0xfff0000000000000u}; /* minus infinity */
    static const uint64_t largest[] = {0x7f7fffffu, 0x7f7fu, 0x7bffu, 0x7fefffffffffffffu};
    enum { COUNT = 300001 };
    for (size_t k = 0; k < ARRAY_LENGTH(types); k++) {
        program p;
        program_init(&p);
        value_id x = program_persistent(&p, "x", types[k], SHAPE(COUNT), ROLE_INPUT);
        value_id y = program_persistent(&p, "y", types[k], SHAPE(COUNT), ROLE_INPUT);
        fake_layout(&p);
        op *o = program_emit(&p, OP_COPY, SECTION_EVAL);
        op_in(o, COPY_X, x), op_out(o, COPY_Y, y);
        exec *e = open_or_die(&p, NULL);
        size_t width = dtype_bytes(types[k]);
        exec_write(e, x, 17 * width, &largest[k], width); /* finite */
        exec_fault fault;
        exec_find_fault(e, SECTION_EVAL, &fault);
        assert_false(fault.found);
        exec_write(e, x, (COUNT - 1) * width, &bad[k], width);
        exec_write(e, x, 150000 * width, &bad[k], width);
        exec_find_fault(e, SECTION_EVAL, &fault);
        assert_true(fault.found);
        assert_int_equal(fault.element, 150000);
        assert_true(isinf(fault.number) && fault.number < 0);
        exec_close(e);
        program_fini(&p);
    }
}

int main(void) {
    int fd = mkstemp(trace_path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_of_a_killed_run_is_whole), /* the two that fork come first, before any thread */
        cmocka_unit_test(full_disk_ends_the_trace_not_the_run),
        cmocka_unit_test(sections_run_their_ops_on_resolved_views),
        cmocka_unit_test(ledger_counts_what_was_touched),
        cmocka_unit_test(what_is_persistent_begins_as_zeros),
        cmocka_unit_test(bytes_that_a_device_does_not_give_are_an_error),
        cmocka_unit_test(wrong_plans_are_refused_by_name),
        cmocka_unit_test(allocations_inside_a_section_are_counted_on_every_thread),
        cmocka_unit_test(every_way_to_allocate_is_counted),
        cmocka_unit_test(trace_has_one_event_per_op),
        cmocka_unit_test(trace_that_cannot_be_opened_is_an_error),
        cmocka_unit_test(fault_names_the_op_that_made_it),
        cmocka_unit_test(broken_parameter_is_named_itself),
        cmocka_unit_test(faults_are_found_in_every_float_dtype_and_far_inside),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(trace_path);
    strcat(trace_path, ".partial"); /* of a killed writer */
    unlink(trace_path);
    return failed;
}
