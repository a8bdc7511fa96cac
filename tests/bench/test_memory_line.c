/* test_memory_line.c - memory over time: what the plan has alive at every op, at the time that a trace gives it, with every peak. */
#include "bench/memory_line.h"
#include "files.h"
#include "must.h"
#include "training.h"

#include <stdlib.h>

typedef struct event {
    size_t op;
    double begin_us, length_us;
} event;

static const char *write_trace(const program *p, const event *list, size_t n) {
    json_t *events = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(events, json_pack("{s:s, s:s, s:s, s:f, s:f, s:{s:I}}", "name", "x", "ph", "X", "cat",
                                                section_name(p->ops[list[i].op].section), "ts", list[i].begin_us, "dur",
                                                list[i].length_us, "args", "op", (json_int_t)list[i].op));
    json_array_append_new(events, json_pack("{s:s, s:s}", "name", "process_name", "ph", "M"));
    json_t *root = json_pack("{s:o}", "traceEvents", events);
    must(json_write_file(path_of("trace.json"), root));
    json_decref(root);
    return path_of("trace.json");
}

static double bytes_at(const memory_line *m, double seconds) {
    size_t i = 0;
    while (i + 1 < m->n && m->seconds[i + 1] <= seconds) i++;
    return m->bytes[i];
}

/* Every op once, one after the other, each ten milliseconds: the line shows each at its time. */
static void every_op_has_its_bytes_at_its_time(void **state) {
    compiled k;
    memory_line m = {0};
    compiled_open(&k, &(training){0});
    size_t n = k.p.program.n_ops, first = 0;
    uint64_t *bytes = plan_bytes_at_ops(&k.p), most = 0;
    event *list = calloc(n, sizeof *list);
    for (size_t i = 0; i < n; i++) {
        list[i] = (event){i, 1e6 + 1e4 * (double)i, 1e4};
        if (k.p.program.ops[i].section == SECTION_START) first = i + 1; /* is not part of a step */
        else most = MAX(most, bytes[i]);
    }
    assert_true(first > 0 && n < MEMORY_LINE_COLUMNS / 2);
    must(memory_line_read(&m, &k.p, write_trace(&k.p.program, list, n)));
    assert_true(m.n <= MEMORY_LINE_COLUMNS + 1 && m.seconds[0] == 0);
    assert_true(m.peak == most && most == k.p.planned[TIER_DEVICE] - k.p.gap_bytes);
    for (size_t i = first; i < n; i++)
        assert_true(bytes_at(&m, 0.01 * (double)(i - first) + 0.005) == (double)bytes[i]);
    assert_true(m.seconds[m.n - 1] > 0.0099 * (double)(n - first));
    memory_line_fini(&m);
    free(list);
    free(bytes);
    compiled_close(&k);
}

/* Of ten thousand ops one is at the peak, for no time at all; and a second in which nothing runs keeps the bytes before it. */
static void no_peak_is_lost(void **state) {
    enum { N = 10000 };
    compiled k;
    memory_line m = {0};
    compiled_open(&k, &(training){0});
    uint64_t *bytes = plan_bytes_at_ops(&k.p);
    size_t low = k.p.peak_op;
    for (size_t i = 0; i < k.p.program.n_ops; i++)
        if (k.p.program.ops[i].section == SECTION_MICRO && bytes[i] < bytes[low]) low = i;
    event *list = calloc(N, sizeof *list);
    for (size_t i = 0; i < N; i++) list[i] = (event){low, 100 * (double)i + (i > N / 2 ? 1e6 : 0), 100};
    list[1234] = (event){k.p.peak_op, 123400, 0};
    must(memory_line_read(&m, &k.p, write_trace(&k.p.program, list, N)));
    assert_true(m.peak == bytes[k.p.peak_op]);
    double highest = 0;
    for (size_t i = 0; i < m.n; i++) highest = MAX(highest, m.bytes[i]);
    assert_true(highest == (double)m.peak && m.n == 4);
    assert_true(bytes_at(&m, 1.0) == (double)bytes[low]);
    memory_line_fini(&m);
    must_refuse(memory_line_read(&m, &k.p, write_trace(&k.p.program, list, 0)), WORDS("trace.json", "no op"));
    free(list);
    free(bytes);
    compiled_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_its_bytes_at_its_time),
        cmocka_unit_test(no_peak_is_lost),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
