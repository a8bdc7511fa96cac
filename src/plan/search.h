#pragma once
/* search.h - private to plan: the ways to run a step that are tried, and what each of them needs. */
#include "plan/plan.h"

/* ---- request.c ---------------------------------------------------------------------------------------------------- */

/* That have rows of their own, or share them: what one axis gives up the other has. */
int plan_row_ranks(const plan_request *r);
bool plan_ranks_open(const plan_request *r); /* what these ranks keep a part of, or how many share a row */
/* With what follows from the rest filled in: slices by the size of the whole model, so that a part of it is cut as the whole
 * is; and as many ranks that share a row as the choice says, or the choice as the mesh has them. */
plan_request plan_settled(const plan_request *r);
/* Where things live as asked, but for those that are open: these go where `wanted` has them. */
offload_homes plan_homes(const plan_request *r, const offload_homes *wanted);

/* ---- strategy.c ------------------------------------------------------------------------------------------------- */

plan_candidate plan_as_asked(const plan_request *r); /* the one way that a request names, without numbers */
/* A candidate compiled, and its numbers. */
status plan_measure(const plan_request *r, plan_candidate *c, plan *out);
/* Of the candidates that were compiled as they would run the best so far, known by its order: it need not be compiled again
 * when it is taken. */
typedef struct plan_kept {
    bool any;
    plan_candidate way;
    plan plan;
} plan_kept;
void plan_kept_offer(plan_kept *k, const plan_candidate *c, plan *p); /* p holds nothing then */
/* The numbers of one way with nothing open: compiled, or where the model is deep estimated from a few of its layers. */
void plan_numbers(plan_candidate *c, const plan *p); /* those of a plan that was compiled for c */
status plan_weigh(const plan_request *r, plan_candidate *out);
void plan_move(plan *to, plan *from); /* plan.c; from holds nothing then */

/* ---- mix.c: some layers as in one way, the others as in another ---------------------------------------------------- */

enum { PLAN_MIXES = 4 };
/* Of the weighed ways on the list, the fastest first: at most PLAN_MIXES more, each with one rung in some layers and a lighter
 * one in the others, the fastest first. How many there are; that they fit, and their time, is by a straight line only. */
size_t plan_mix(const plan_request *r, const plan_candidate *list, size_t n, plan_candidate best[PLAN_MIXES]);
/* Likewise, each with the states of some layers on the device and those of the others where the way has them. */
size_t plan_keep(const plan_request *r, const plan_candidate *list, size_t n, plan_candidate best[PLAN_MIXES]);

/* ---- tight.c: where nothing of the ladder fits ------------------------------------------------------------------- */

/* Ways that need less memory than any of the ladder, like `like` in all that is no matter of memory, in the order in which
 * they were tried, which *n_tried goes on counting; the caller frees. The last of them fit where any does. */
status plan_tighten(const plan_request *r, const plan_candidate *like, size_t *n_tried, plan_kept *kept,
                    plan_candidate **list, size_t *n);

/* ---- fit_generation.c ------------------------------------------------------------------------------------------- */

/* The smallest change for a plan of generation that fits, in options of `ralo generate`. */
bool plan_generation_change(const plan_request *r, strbuf *out, uint64_t *least);
