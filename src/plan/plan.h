#pragma once
/* plan.h - from a request to a compiled program and its memory, without touching a device.
 *
 * plan_compile is the one road from settings to a runnable program: `ralo plan` prints what it returns and `ralo train`
 * runs it, so what is printed is what runs.
 *
 *     plan p;
 *     TRY(plan_compile(&p, &request));
 *     plan_print(&p, stderr);
 *     TRY(plan_check_fit(&p));      // ERR_FIT with the largest contributors and the smallest change that fits
 *     plan_close(&p);
 */
#include "format/format.h"
#include "pass/pass.h"
#include "plan/cost.h"
#include "plan/hardware.h"

typedef struct plan_request {
    model_config model;
    int64_t micro_batch, accumulation, seq_len;
    precision precision;
    optimizer_options optimizer;
    recompute_policy recompute; /* auto: the cheapest rung that fits device_limit */
    offload_options offload;
    place_options place;
    bool with_eval, token_weights, verify;
    int64_t logits_chunk_bytes; /* most logits alive at once; 0 = chosen from the vocabulary */
    target target;
    uint64_t device_limit;    /* bytes; 0 = no limit */
    uint64_t host_bytes;      /* held outside the device arena: loader rows, checkpoint staging */
    uint64_t state_copies;    /* copies of params and states on the host (background checkpoints) */
    const hardware *hardware; /* the machine whose time is predicted, borrowed; NULL: no prediction */
} plan_request;

typedef struct plan {
    plan_request request;
    program program;
    model model;
    pass_context passes;
    uint64_t planned[TIER_COUNT];
    uint64_t by_role[ROLE_COUNT]; /* bytes of each role alive at the device peak */
    uint64_t gap_bytes;           /* planned minus the sum of by_role: alignment and holes */
    size_t peak_op;               /* where the most bytes are alive */
    value_id *at_peak;            /* what is alive there, largest first */
    size_t n_at_peak;
    double flops_per_step; /* what the model needs for one optimizer step, all micro-batches */
    double flops_again;    /* and what recompute adds to it */
    double bytes_per_step; /* of everything that runs */
    cost cost;                             /* predicted; all 0 without request.hardware */
} plan;

status plan_compile(plan *p, const plan_request *r); /* p holds nothing after a failure */
void plan_close(plan *p);
int64_t plan_tokens_per_step(const plan *p);
void plan_print(const plan *p, FILE *out);
json_t *plan_memory_json(const plan *p); /* "memory": planned per tier, by_role; the caller takes it */
json_t *plan_strategy_json(const plan *p);

/* ---- choose.c: how much of the forward is kept ----------------------------------------------------------------- */

/* plan_compile of a request whose recompute is auto. The plan's passes.recompute is what was taken: the cheapest rung that
 * fits; where none does, the one that needs the least, or `none` where params, gradients and states alone are too much. */
status plan_choose(plan *p, const plan_request *r);
/* The rungs from the cheapest in time to the smallest in memory, with this request otherwise as it is. */
enum { PLAN_RUNGS = 4 };
typedef struct plan_rung {
    recompute_kind kind;
    uint64_t activations; /* bytes at the device peak */
    uint64_t device;
    double more_flops; /* as a share of the step without recompute */
    bool fits;
} plan_rung;
status plan_rungs(const plan_request *r, plan_rung out[PLAN_RUNGS]);
void plan_print_rungs(const plan *p, const plan_rung rungs[PLAN_RUNGS], FILE *out);
json_t *plan_rungs_json(const plan *p, const plan_rung rungs[PLAN_RUNGS]); /* "recompute": [...] */

json_t *plan_prediction_json(const plan *p); /* machine, tokens/s, ms per stream and per kind of op; needs a hardware */
/* ERR_FIT when the device limit is too small, naming the largest contributors and the smallest change that fits. */
status plan_check_fit(const plan *p);
