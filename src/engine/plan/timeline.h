#pragma once
/* timeline.h - a second face of plan, for pictures: bytes alive over the ops. */
#include "plan/plan.h"

/* First and last op of each value, n_values of them. A value computed in place counts with the value whose bytes it took
 * over, and is itself unused (first > last). */
void plan_lifetimes(const program *g, lifetime *out);
typedef struct plan_alive {
    uint64_t by_role[ROLE_COUNT];
} plan_alive;
plan_alive *plan_alive_at_ops(const program *g, tier t); /* n_ops of them, at least one; the caller frees */
uint64_t plan_alive_sum(const plan_alive *a);
/* Values of a tier that are alive at an op, largest first; the caller frees. (plan.c) */
value_id *plan_values_alive(const program *g, tier t, size_t op_index, size_t *n);

/* One step from its first op to its last: forward and backward of a micro-batch, then the update; for generation prefill and
 * decode. Evaluation, start and the update that overlaps the next step are included only where the peak is in them. */
enum { TIMELINE_COLUMNS = 800, TIMELINE_PARTS = 8 };
typedef struct plan_column {
    size_t first_op, end_op;
    size_t op;                   /* the fullest of these ops on the device: the one shown */
    plan_alive alive;            /* at that op */
    uint64_t others[TIER_COUNT]; /* most bytes alive at one of these ops; 0 for the first device */
} plan_column;
typedef struct plan_timeline_part {
    const char *name;
    size_t first_op, end_op;
    size_t first_column, end_column;
} plan_timeline_part;
typedef struct plan_timeline {
    plan_column *columns; /* one per op where they are few enough */
    size_t n_columns;     /* at most TIMELINE_COLUMNS, or as many as were asked for */
    plan_timeline_part parts[TIMELINE_PARTS];
    size_t n_parts;
} plan_timeline;
void plan_timeline_init(plan_timeline *t, const plan *p);
/* The same of one tier, whose fullest ops are the ones shown, in at most `most` columns; `others` stays 0. */
void plan_timeline_init_tier(plan_timeline *t, const plan *p, tier at, size_t most);
void plan_timeline_fini(plan_timeline *t);
