#pragma once
/* bench.h - published experiments repeated here: planned, really run, measured, and compared with what was published.
 *
 *     json_t *result;
 *     TRY(bench_find("rloo")->run(&(bench_options){.scale = BENCH_SMALL, .device = DEVICE_CPU, .report = stdout}, &result));
 *     json_decref(result);
 *
 * A case that does not fit the machine is reported with its planned bytes, never left out. */
#include "settings/settings.h"

typedef enum bench_scale { BENCH_FULL, BENCH_SMALL, BENCH_SCALE_COUNT } bench_scale; /* as published; a quick look */

typedef struct bench_options {
    bench_scale scale;
    device_kind device;
    int gpu, n_threads;    /* n_threads 0: one per core */
    uint64_t device_limit; /* bytes; 0: what the machine has */
    const char *out;       /* directory for result and charts, made where it is missing; NULL: none are written */
    FILE *report;          /* tables and explanation; NULL: nothing is printed */
    FILE *progress;        /* a line per case; NULL: nothing is printed */
} bench_options;

typedef struct bench {
    const char *name, *what;
    status (*run)(const bench_options *o, json_t **out); /* the caller calls json_decref */
} bench;
const bench *bench_at(size_t i); /* NULL past the end */
const bench *bench_find(const char *name);
void bench_interrupt(void); /* for a signal handler: ends after the present step with ERR_INTERRUPTED */
