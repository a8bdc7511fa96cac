#pragma once
/* trace.h - private to exec: a timeline of ops in Chrome's trace format (chrome://tracing, ui.perfetto.dev). */
#include "program/program.h"

#include <stdatomic.h>

typedef struct trace_event {
    size_t op_index;
    uint64_t start_ns, end_ns;
} trace_event;
typedef struct trace {
    const program *program;  /* borrowed */
    trace_event *events;     /* taken before the first step and never grown */
    _Atomic size_t n_events; /* streams add side by side */
    size_t capacity;
    uint64_t origin_ns, flushed_ns;
    char *path, *partial_path;
    int fd;               /* -1 after a failure: the trace ends there, the run continues */
    uint64_t tail, limit; /* events end here; blanks from there up to the footer */
} trace;

/* longest_section: ops of the longest section; between two flushes at least that many events must fit. */
status trace_open(trace **out, const char *path, const program *p, size_t longest_section);
void trace_close(trace *t);                    /* flushes; NULL is allowed */
void trace_reserve(trace *t, size_t n_events); /* before a section: makes room for its events */
void trace_flush_if_due(trace *t);             /* after a section: not every time, text costs some 1.5 us per op */
static inline void trace_add(trace *t, size_t op_index, uint64_t start_ns, uint64_t end_ns) {
    size_t at = atomic_fetch_add_explicit(&t->n_events, 1, memory_order_relaxed);
    ASSERT(at < t->capacity);
    t->events[at] = (trace_event){op_index, start_ns, end_ns};
}
