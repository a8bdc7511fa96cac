#pragma once
/* parts.h - private to show: parts of the report that other files write. */
#include "show/show.h"

json_t *plan_candidates_json(const plan *p);                               /* "candidates": [...] */
json_t *plan_rungs_json(const plan *p, const plan_rung rungs[PLAN_RUNGS]); /* "recompute": [...] */
void plan_print_attention(const plan *p, FILE *out);                       /* a line */
void plan_print_pipeline(const plan *p, FILE *out);                        /* a line */
