/* trace.c - how copies and communication overlap with compute in one step, from a trace of ralo train --trace.
 *
 * A trace has one event per line and may be longer than memory: of a long one the last part is read, which holds whole steps.
 * A step is what lies between two ends of the last op of the update. */
#include "report/build.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRACE_BYTES ((off_t)64 << 20)
enum { EVENTS_MOST = 1 << 20, LANE_STEPS = 1500 };

typedef struct event {
    int stream;
    bool last; /* of a section that ends a step */
    long long op;
    double begin, end; /* ms */
} event;
typedef struct event_list {
    event *items;
    size_t n, capacity;
    long long last_op; /* the largest of the sections that end a step; -1 */
    char names[STREAMS_MOST][32];
} event_list;

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

static void take_name(event_list *list, const json_t *e) {
    json_int_t stream = json_integer_value(json_object_get(e, "tid"));
    const char *kind = json_string_value(json_object_get(e, "name"));
    const char *name = json_string_value(json_object_get(json_object_get(e, "args"), "name"));
    if (!kind || strcmp(kind, "thread_name") != 0 || !name || stream < 0 || stream >= STREAMS_MOST) return;
    snprintf(list->names[stream], sizeof list->names[0], "%.31s", name);
}

static void take_event(event_list *list, const json_t *e) {
    const json_t *ts = json_object_get(e, "ts"), *length = json_object_get(e, "dur"), *tid = json_object_get(e, "tid");
    const json_t *op = json_object_get(json_object_get(e, "args"), "op");
    const char *section = json_string_value(json_object_get(e, "cat"));
    if (!json_is_number(ts) || !json_is_number(length) || !json_is_integer(tid) || !section) {
        take_name(list, e);
        return;
    }
    event v = {.stream = (int)MIN(MAX(json_integer_value(tid), 0), STREAMS_MOST - 1),
               .last = strcmp(section, "update") == 0 || strcmp(section, "turn") == 0,
               .op = json_is_integer(op) ? json_integer_value(op) : -1,
               .begin = 1e-3 * json_number_value(ts)};
    v.end = v.begin + 1e-3 * json_number_value(length);
    if (strcmp(section, "start") == 0 || list->n == EVENTS_MOST || !(v.end >= v.begin) || !(fabs(v.end) < 1e15)) return;
    if (v.last) list->last_op = MAX(list->last_op, v.op);
    list->items = array_grow(list->items, &list->capacity, list->n + 1, sizeof *list->items);
    list->items[list->n++] = v;
}

static status read_events(event_list *list, const char *path) {
    struct stat info;
    int fd;
    TRY(file_open(path, &fd));
    off_t size = fstat(fd, &info) == 0 ? info.st_size : 0;
    if (size > TRACE_BYTES) lseek(fd, size - TRACE_BYTES, SEEK_SET);
    char *text;
    size_t n;
    status rc = file_read_fd(fd, path, (size_t)TRACE_BYTES + (1 << 20), &text, &n);
    close(fd);
    TRY(rc);
    for (char *line = text, *end; line < text + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        if (!end) break;
        while (line < end && *line == ' ') line++; /* a trace has blanks before an event that begins a page */
        size_t length = (size_t)(end - line);
        while (length > 0 && (line[length - 1] == ',' || line[length - 1] == ' ' || line[length - 1] == '\r')) length--;
        if (length < 2 || *line != '{' || line[length - 1] != '}') continue;
        json_t *e = json_loadb(line, length, 0, NULL);
        if (json_is_object(e)) take_event(list, e);
        json_decref(e);
    }
    free(text);
    return list->n ? OK : ERR(ERR_INPUT, "%s: found no op, expected a file of ralo train --trace", path);
}

/* ---- one step --------------------------------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    const event *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* From one end of the last op of the update to the next; of all such steps the one of median length, because some hold an
 * evaluation or a save. All of the trace where there are not two ends. */
static void find_step(const event_list *list, double *begin, double *end) {
    sort_row *steps = mem_alloc(list->n * sizeof *steps);
    double *ends = mem_alloc(list->n * sizeof *ends);
    size_t n = 0;
    *begin = list->items[0].begin;
    *end = *begin;
    for (size_t i = 0; i < list->n; i++) {
        const event *v = &list->items[i];
        *end = fmax(*end, v->end);
        if (v->last && v->op == list->last_op) ends[n++] = v->end;
    }
    for (size_t i = 0; i + 1 < n; i++) steps[i] = (sort_row){(uint64_t)(1e6 * fmax(ends[i + 1] - ends[i], 0)), i};
    if (n >= 2) {
        sort_rows(steps, n - 1);
        size_t at = steps[(n - 1) / 2].item;
        *begin = ends[at], *end = ends[at + 1];
    }
    free(steps);
    free(ends);
}

static void fill_lane(stream_lane *lane, const event_list *list, int stream, double begin, double end, arena *memory) {
    double closed = (end - begin) / LANE_STEPS;
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) n += list->items[i].stream == stream;
    lane->begin = arena_array(memory, double, MAX(n, (size_t)1));
    lane->end = arena_array(memory, double, MAX(n, (size_t)1));
    for (size_t i = 0; i < list->n; i++) {
        const event *v = &list->items[i];
        double from = fmax(v->begin, begin) - begin, to = fmin(v->end, end) - begin;
        if (v->stream != stream || !(to > from)) continue;
        lane->busy += to - from;
        if (lane->n > 0 && from - lane->end[lane->n - 1] < closed) {
            lane->end[lane->n - 1] = fmax(lane->end[lane->n - 1], to);
            continue;
        }
        lane->begin[lane->n] = from;
        lane->end[lane->n++] = to;
    }
}

/* How long both streams have an interval. */
static double both(const stream_lane *a, const stream_lane *b) {
    double sum = 0;
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        sum += fmax(0, fmin(a->end[i], b->end[k]) - fmax(a->begin[i], b->begin[k]));
        if (a->end[i] < b->end[k]) i++;
        else k++;
    }
    return sum;
}

static void take_ops(step_trace *t, const event_list *list, double begin, double end) {
    t->op_begin = arena_array(&t->memory, double, list->n);
    t->op = arena_array(&t->memory, double, list->n);
    for (size_t i = 0; i < list->n; i++) {
        const event *v = &list->items[i];
        if (v->begin < begin || v->begin >= end || v->op < 0) continue;
        t->op_begin[t->n_ops] = v->begin - begin;
        t->op[t->n_ops++] = (double)v->op;
    }
}

status step_trace_read(step_trace *t, const char *path) {
    event_list list = {.last_op = -1};
    double begin, end;
    *t = (step_trace){0};
    arena_init(&t->memory);
    status rc = read_events(&list, path);
    if (rc == OK) {
        qsort(list.items, list.n, sizeof *list.items, by_begin);
        find_step(&list, &begin, &end);
        t->length = end - begin;
        take_ops(t, &list, begin, end);
        for (int s = 0; s < STREAMS_MOST; s++) {
            stream_lane lane = {.name =
                                    arena_format(&t->memory, *list.names[s] ? "%s" : "stream %s%d", list.names[s], s)};
            fill_lane(&lane, &list, s, begin, end, &t->memory);
            if (lane.n) t->lanes[t->n_lanes++] = lane;
        }
        for (size_t i = 1; i < t->n_lanes; i++)
            t->lanes[i].covered = fmin(both(&t->lanes[i], &t->lanes[0]), t->lanes[i].busy);
    }
    free(list.items);
    return rc;
}

void step_trace_fini(step_trace *t) { arena_fini(&t->memory); }
