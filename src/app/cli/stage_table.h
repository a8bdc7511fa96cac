#pragma once
/* stage_table.h - private to cli: the metrics of several runs, side by side. */
#include "cli/cli.h"

typedef struct stage_column {
    const char *name; /* "rho1 policy" */
    json_t *metrics;  /* the last value of every metric of the run; owned */
} stage_column;

/* The last value of every metric in DIR/metrics.jsonl; an object, empty where there is no such file. A line that is no object is left
 * out: a run that was killed may have ended in the middle of one. */
status stage_metrics_read(const char *run_dir, json_t **out);
void stage_table_print(const stage_column *columns, size_t n, FILE *out);
