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

typedef struct plan_request {
    model_config model;
    int64_t micro_batch, accumulation, seq_len;
    precision precision;
    optimizer_options optimizer;
    offload_options offload;
    place_options place;
    bool with_eval, token_weights, verify;
    int64_t logits_chunk_bytes; /* most logits alive at once; 0 = chosen from the vocabulary */
    target target;
    uint64_t device_limit; /* bytes; 0 = no limit */
    uint64_t host_bytes;   /* held outside the device arena: loader rows, checkpoint staging */
    uint64_t state_copies; /* copies of params and states on the host (background checkpoints) */
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
    double flops_per_step, bytes_per_step; /* one optimizer step, all micro-batches */
} plan;

status plan_compile(plan *p, const plan_request *r); /* p holds nothing after a failure */
void plan_close(plan *p);
int64_t plan_tokens_per_step(const plan *p);
void plan_print(const plan *p, FILE *out);
json_t *plan_memory_json(const plan *p); /* "memory": planned per tier, by_role; the caller takes it */
json_t *plan_strategy_json(const plan *p);
/* ERR_FIT when the device limit is too small, naming the largest contributors and the smallest change that fits. */
status plan_check_fit(const plan *p);
