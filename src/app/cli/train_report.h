#pragma once
/* train_report.h - what `ralo train` prints about a run; all but the JSON goes to stderr. */
#include "cli/cli.h"

status train_sinks_check(const config *c); /* can its numbers be sent where track.* says? Asks no server */
/* The first line: whether it fits, how long it takes, what would be faster. */
void train_report_answer(job *j);
void train_report_summary(const plan *p, const dataset *d, const train_result *t, const char *run_dir);
void train_report_breakdown(const plan *p, const train_result *t);

/* What every rank planned and used, for the report of the first. */
typedef struct rank_memory {
    uint64_t planned[TIER_COUNT], peak[TIER_COUNT], by_role[ROLE_COUNT], n_allocations;
    uint64_t gpu_context, gpu_in_use; /* as train_result has them */
    double idle;
} rank_memory;
/* Arena sizes of every rank, for the report of the first; a list of one for a single process (ranks NULL). The
 * caller frees. */
status train_report_gather(comm *ranks, const plan *p, const train_result *t, rank_memory **all);

/* One object on stdout. */
void train_report_json(const command_line *l, const plan *p, const train_request *r, const train_result *t,
                       const char *run_dir, const rank_memory *all);
