/* memory_line.c - the time of every op from the trace of a run, and the bytes alive at it from the plan that ran.
 *
 * Both are exact: the trace has every op that ran, and the plan is what ran. Between two ops, while the host samples or scores, the
 * bytes of the last op count on. */
#include "bench/memory_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRACE_MOST = 1 << 30 };

typedef struct column {
    uint64_t most, last; /* bytes; 0: no op ran here */
} column;

typedef struct run_time {
    double begin, seconds;
} run_time;

/* An op of the run itself: its time in seconds and its index. */
static bool read_event(const json_t *e, size_t n_ops, double *begin, double *end, size_t *op) {
    const json_t *ts = json_object_get(e, "ts"), *length = json_object_get(e, "dur");
    const json_t *index = json_object_get(json_object_get(e, "args"), "op");
    const char *section = json_string_value(json_object_get(e, "cat"));
    if (!json_is_number(ts) || !json_is_number(length) || !json_is_integer(index) || !section) return false;
    if (strcmp(section, section_name(SECTION_START)) == 0) return false;
    *begin = 1e-6 * json_number_value(ts);
    *end = *begin + 1e-6 * json_number_value(length);
    *op = (size_t)json_integer_value(index);
    return *op < n_ops;
}

static run_time find_time(const json_t *events, size_t n_ops) {
    double first = INFINITY, last = -INFINITY, begin, end;
    size_t i, op;
    const json_t *e;
    json_array_foreach(events, i, e) {
        if (!read_event(e, n_ops, &begin, &end, &op)) continue;
        first = fmin(first, begin);
        last = fmax(last, end);
    }
    return (run_time){first, last - first};
}

static size_t column_of(const run_time *t, double at) {
    double c = t->seconds > 0 ? (at - t->begin) / t->seconds * MEMORY_LINE_COLUMNS : 0;
    return c < 0 ? 0 : MIN((size_t)c, (size_t)MEMORY_LINE_COLUMNS - 1);
}

static void fill(column *columns, const json_t *events, const run_time *t, const uint64_t *bytes, size_t n_ops) {
    size_t i, op;
    double begin, end;
    const json_t *e;
    json_array_foreach(events, i, e) {
        if (!read_event(e, n_ops, &begin, &end, &op)) continue;
        for (size_t c = column_of(t, begin), last = column_of(t, end); c <= last; c++) {
            columns[c].most = MAX(columns[c].most, bytes[op]);
            columns[c].last = bytes[op];
        }
    }
}

/* A point wherever the bytes change. */
static void draw(memory_line *m, const column *columns, double seconds) {
    uint64_t before = 0;
    m->seconds = mem_alloc((MEMORY_LINE_COLUMNS + 1) * sizeof *m->seconds);
    m->bytes = mem_alloc((MEMORY_LINE_COLUMNS + 1) * sizeof *m->bytes);
    for (size_t c = 0; c < MEMORY_LINE_COLUMNS; c++) {
        double bytes = (double)(columns[c].most ? columns[c].most : before);
        if (columns[c].last) before = columns[c].last;
        m->peak = MAX(m->peak, columns[c].most);
        if (m->n > 0 && m->bytes[m->n - 1] == bytes) continue;
        m->seconds[m->n] = seconds * (double)c / MEMORY_LINE_COLUMNS;
        m->bytes[m->n++] = bytes;
    }
    m->seconds[m->n] = seconds;
    m->bytes[m->n] = m->bytes[m->n - 1];
    m->n++;
}

status memory_line_read(memory_line *m, const plan *p, const char *trace_path) {
    json_t *trace;
    TRY(json_read_file(trace_path, TRACE_MOST, &trace));
    const json_t *events = json_object_get(trace, "traceEvents");
    size_t n_ops = p->program.n_ops;
    run_time t = find_time(events, n_ops);
    status rc = isfinite(t.seconds) ? OK : ERR(ERR_IO, "%s: found no op, expected those of a run", trace_path);
    if (rc == OK) {
        column *columns = mem_alloc(MEMORY_LINE_COLUMNS * sizeof *columns);
        uint64_t *bytes = plan_bytes_at_ops(p);
        fill(columns, events, &t, bytes, n_ops);
        draw(m, columns, t.seconds);
        free(bytes);
        free(columns);
    }
    json_decref(trace);
    return rc;
}

void memory_line_fini(memory_line *m) {
    free(m->seconds);
    free(m->bytes);
    *m = (memory_line){0};
}

json_t *memory_line_json(const memory_line *m) {
    json_t *seconds = json_array(), *bytes = json_array();
    for (size_t i = 0; i < m->n; i++) {
        json_array_append_new(seconds, json_real(m->seconds[i]));
        json_array_append_new(bytes, json_integer((json_int_t)m->bytes[i]));
    }
    return json_pack("{s:o, s:o}", "seconds", seconds, "bytes", bytes);
}
