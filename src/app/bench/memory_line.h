#pragma once
/* memory_line.h - private to bench: device memory over the time of a run. */
#include "bench/bench.h"

/* bytes[i] are in use from seconds[i] to seconds[i + 1]; the last point repeats the bytes before it, at the end of the run. */
typedef struct memory_line {
    double *seconds, *bytes;
    size_t n;
    uint64_t peak;
} memory_line;

/* From the trace of a run of this plan, without its start; at most MEMORY_LINE_COLUMNS + 1 points. Each shows the most bytes of its
 * part of the time, so that no peak is lost or smoothed. */
enum { MEMORY_LINE_COLUMNS = 480 };
status memory_line_read(memory_line *m, const plan *p, const char *trace_path);
void memory_line_fini(memory_line *m);
json_t *memory_line_json(const memory_line *m);
