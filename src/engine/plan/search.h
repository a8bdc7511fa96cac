#pragma once
/* search.h - private to plan: the search over candidates, and the numbers of each. */
#include "plan/plan.h"

/* ---- request.c ---------------------------------------------------------------------------------------------------- */

/* Data ranks times sequence ranks: a larger sequence axis makes the data axis smaller. */
int plan_row_ranks(const plan_request *r);
bool plan_ranks_open(const plan_request *r); /* may the ZeRO stage or the sequence axis be chosen? */
/* Fills in derived fields: bucket sizes from the size of the whole model, so that a part of it is sliced in the same way; the
 * mesh from choice.sequence, or choice.sequence from the mesh. */
plan_request plan_request_complete(const plan_request *r);
/* The offload targets as asked, with those of `wanted` where they are open. */
offload_tiers plan_offload_tiers(const plan_request *r, const offload_tiers *wanted);

/* ---- strategy.c ------------------------------------------------------------------------------------------------- */

plan_candidate plan_as_asked(const plan_request *r); /* the one candidate that a request names, without numbers */
/* Compiles a candidate and fills in its numbers. */
status plan_build_candidate(const plan_request *r, plan_candidate *c, plan *out);
bool plan_is_one_device(const plan_request *r); /* no pipeline, and no part of the model on another device */
/* The best candidate so far that was compiled as it would run, so that it need not be compiled again. */
typedef struct plan_best {
    bool any;
    plan_candidate candidate;
    plan plan;
} plan_best;
void plan_best_offer(plan_best *k, const plan_candidate *c, plan *p); /* takes over p */
/* The numbers of one candidate with nothing open: compiled, or for a deep model estimated from a few of its layers. */
void plan_candidate_set_numbers(plan_candidate *c, const plan *p); /* from a plan that was compiled for c */
status plan_evaluate(const plan_request *r, plan_candidate *out);
void plan_move(plan *to, plan *from);      /* plan.c; from is empty afterwards */
uint64_t plan_staged_bytes(const plan *p); /* plan.c; host bytes that copies for background checkpoints take */

/* Candidates of one search. */
typedef struct plan_search {
    const plan_request *r;
    plan_candidate *list;
    size_t n, capacity;
    size_t n_tried; /* including those that turned out to be impossible */
    plan_best best;
} plan_search;
void plan_search_append(plan_search *s, const plan_candidate *c);
/* Fills in the numbers of c, and keeps the compiled plan if it is the best so far. */
status plan_search_evaluate(plan_search *s, plan_candidate *c);
/* How a candidate gets its numbers: compiled as it would run; estimated where it treats all layers alike; or estimated
 * from some of the layers also where a few of them, counted in eighths, differ from the others. */
typedef enum plan_effort { PLAN_WHOLE, PLAN_QUICKLY, PLAN_IN_PARTS } plan_effort;
enum { PLAN_PARTS = 8 };
/* Is the model so deep that candidates in which some layers, counted in eighths (PLAN_PARTS), differ from the others are
 * estimated from models of fewer layers where its layers allow it, 8 and 16 if all are of one kind? */
bool plan_estimates_parts(const plan_request *r);
/* The same for several, side by side. */
status plan_search_evaluate_all(plan_search *s, plan_candidate *list, size_t n, plan_effort effort);
void plan_search_sort(plan_search *s); /* the best first */

/* ---- climb.c ------------------------------------------------------------------------------------------------------ */

/* Adds a candidate that is faster than the best, where a walk of small changes finds one; the list is sorted before and
 * after. */
status plan_climb(plan_search *s);

/* ---- refine.c ----------------------------------------------------------------------------------------------------- */

/* Adds variations of the best candidates; the list is sorted before and after. plain_fits: one with nothing moved does. */
status plan_refine(plan_search *s, bool plain_fits);

/* ---- mix.c: some layers as in one candidate, the others as in another -------------------------------------------- */

enum { PLAN_MIXES = 4 };
/* From evaluated candidates, the fastest first: at most PLAN_MIXES new ones, each with one rung in some layers and a lighter
 * one in the others, the fastest first. Returns how many. Their bytes and times are interpolated. */
size_t plan_mix_recompute(const plan_request *r, const plan_candidate *list, size_t n, plan_candidate best[PLAN_MIXES]);
/* The same with the states of some layers on the device, and those of the others on their offload target. */
size_t plan_keep_states(const plan_request *r, const plan_candidate *list, size_t n, plan_candidate best[PLAN_MIXES]);

/* The rung `again` in as many layers as little time allows (all of them: the rung itself), the others as in `kept`, which keeps
 * every activation; its numbers are interpolated. False: it saves too little for its time. */
bool plan_mix_cheap(const plan_request *r, const plan_candidate *kept, const plan_candidate *again, bool in_some_layers,
                    plan_candidate *out);

/* ---- tight.c: candidates with the least memory ------------------------------------------------------------------ */

/* Candidates that need less memory than those of strategy.c, with the precision, batch and ranks of `like`, in the order in
 * which they were tried; continues to count *n_tried. The caller frees. The last ones fit if any does. */
status plan_list_smaller(const plan_request *r, const plan_candidate *like, size_t *n_tried, plan_best *best,
                         plan_candidate **list, size_t *n);
/* Does a candidate of the search fit that computes every layer again and offloads most of what is open, compiled and as
 * the search evaluates it? If so, the search finds one that fits; if not, it still may. Few compiles. */
status plan_fits_when_moved(const plan_request *asked, bool *fits);

/* ---- fit.c -------------------------------------------------------------------------------------------------------- */

/* What differs between two requests, as settings: "precision=bf16_sr, train.micro_batch=4". out must be empty. */
void plan_list_changes(const plan_request *from, const plan_request *to, strbuf *out);

/* ---- fit_generation.c ------------------------------------------------------------------------------------------- */

/* The smallest change for a plan of generation that fits, in options of `ralo generate`; false: none does, and what needs
 * least is written, or nothing. */
bool plan_generation_change(const plan_request *r, strbuf *out);
