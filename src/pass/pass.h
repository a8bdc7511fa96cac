#pragma once
/* pass.h - rewrites of the program. One technique, one pass, one file.
 *
 * Promises
 *   - A pass may move, repeat or split work; it never changes arithmetic.
 *   - After every pass the program verifies; pass_run checks that when asked (tests always ask).
 *   - Nothing is allocated on any device: after the layout pass every value has an address and every tier its exact size.
 *
 *     pass_context c = {.target = &t, .accumulation = 4, ...};
 *     TRY(pass_run(&p, &c));        // every pass of the table that applies, in order
 *     p.arena_bytes[TIER_DEVICE];   // the peak, to the byte
 */
#include "model/model.h"

typedef enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR, PRECISION_FP16, PRECISION_COUNT } precision;
const char *precision_name(precision p);
dtype precision_compute(precision p); /* params and activations */
dtype precision_grad(precision p);
bool precision_master(precision p); /* fp32 copy of the parameters beside them */

/* What m and v are kept in. auto: as the precision says; each of the others goes with every precision. */
typedef enum state_format { STATES_AUTO, STATES_FP32, STATES_BF16, STATES_INT8, STATES_COUNT } state_format;
const char *state_format_name(state_format f);
state_format state_format_of(precision p, state_format asked); /* never auto */

/* What a pass must know of the machine the program is for. A pure description: no device is touched. */
typedef struct target {
    const char *name;
    int n_threads;
    size_t alignment; /* of every value, a power of two */
    size_t (*work_bytes)(const program *p, const op *o, int n_threads);
} target;

typedef struct optimizer_options {
    float beta1, beta2, eps, weight_decay, clip;
    bool normalize_by_weights;
} optimizer_options;

typedef struct pass_context {
    const target *target;
    const model *model;
    precision precision;
    state_format states;
    int64_t accumulation;
    optimizer_options optimizer;
    bool verify; /* after every pass */
    /* written by the passes */
    value_id loss_sums, clip, norm_partials;
    value_id *grads, *masters, *moments, *variances; /* per model parameter; in the program's memory */
    value_id *moment_scales, *variance_scales;       /* of 8-bit states; NO_VALUE elsewhere */
} pass_context;

status pass_autodiff(program *p, pass_context *c); /* backward of SECTION_MICRO, gradients finished into accumulators */
status pass_optimizer(program *p, pass_context *c); /* SECTION_UPDATE: norm, clip, AdamW */
status pass_fuse(program *p, pass_context *c);      /* add + norm, bias into linear */
status pass_workspace(program *p, pass_context *c); /* scratch of every op becomes a value of the plan */
status pass_schedule(program *p, pass_context *c);  /* streams; gradients consumed where they are made */
status pass_layout(program *p, pass_context *c);    /* an offset for every value, the peak of every tier */

typedef struct pass_row {
    const char *name;
    status (*run)(program *p, pass_context *c);
    const char *what;
} pass_row;
status pass_run(program *p, pass_context *c);

/* ---- what layout found --------------------------------------------------------------------------------------- */

/* First and last op (inclusive, by index in the program) at which a value's bytes are in use; persistent values span
 * everything. Unused values give first > last. */
typedef struct lifetime {
    size_t first, last;
} lifetime;
void layout_lifetimes(const program *p, lifetime *out); /* n_values of them */
