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
    size_t (*host_work_bytes)(const program *p, const op *o, int n_threads); /* of ops beside host memory; NULL: the same */
} target;

typedef struct optimizer_options {
    float beta1, beta2, eps, weight_decay, clip;
    bool normalize_by_weights;
} optimizer_options;

/* What the forward leaves for the backward; the rest is computed a second time when the backward needs it. The values that
 * one layer hands to the next and all that lies outside the layers are kept, but for `every`.
 *   none       everything
 *   norms      all but what a few operations per element bring back from values that are there anyway: norms, rotations,
 *              activation functions
 *   selective  as norms, and the product before the activation function again: attention and residuals are kept
 *   full       only the input of each layer
 *   ratio r    full in the last int(r L) layers, none in the others
 *   every n    only the input of each n-th layer: n layers are computed again in one go, before the last one's backward
 *   keep names the input of each layer and the values of these names in every layer */
typedef enum recompute_kind {
    RECOMPUTE_NONE,
    RECOMPUTE_NORMS,
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_FULL,
    RECOMPUTE_RATIO,
    RECOMPUTE_EVERY,
    RECOMPUTE_KEEP,
    RECOMPUTE_AUTO, /* the planner's choice; no program can be made with it */
    RECOMPUTE_COUNT
} recompute_kind;
typedef struct recompute_policy {
    recompute_kind kind;
    double ratio;
    int64_t every;
    const char *keep; /* "attn.y,mlp.up": names without the layer, separated by commas; borrowed */
} recompute_policy;
const char *recompute_name(recompute_kind k);
/* "full", "ratio:0.5", "every:2", "keep:attn.y,mlp.up". keep points into text. */
status recompute_parse(recompute_policy *out, const char *text);
void recompute_write(const recompute_policy *r, strbuf *out); /* what recompute_parse reads */
/* Where each kind of value lives between its uses: TIER_DEVICE (it stays), TIER_HOST or TIER_NVME. */
typedef struct offload_options {
    tier params, grads, states, activations;
    int prefetch;         /* blocks ahead of its use that a value is fetched, and behind it that one leaves */
    int64_t bucket_bytes; /* a tensor on its way to the optimizer travels in slices of at most this */
} offload_options;
bool offload_any(const offload_options *o);
int64_t offload_bucket(uint64_t n_params); /* for a model of that size */

/* Which device a part of the model runs on; devices are numbered from 0. */
enum { PLACE_LAYERS_MAX = 1024 };
typedef struct place_options {
    int n_devices;   /* 0 or 1: everything on the first */
    int embed, head; /* device of the embedding; of the last norm, the unembedding and the loss */
    uint8_t layers[PLACE_LAYERS_MAX];
} place_options;

typedef struct pass_context {
    const target *target;
    const model *model;
    precision precision;
    state_format states;
    int64_t accumulation;
    optimizer_options optimizer;
    recompute_policy recompute;
    offload_options offload;
    place_options place;
    bool verify; /* after every pass */
    /* written by the passes */
    value_id loss_sums, clip, norm_partials;
    value_id *grads, *masters, *moments, *variances; /* per model parameter; in the program's memory */
    value_id *moment_scales, *variance_scales;       /* of 8-bit states; NO_VALUE elsewhere */
} pass_context;

status pass_autodiff(program *p, pass_context *c); /* backward of SECTION_MICRO, gradients finished into accumulators */
status pass_optimizer(program *p, pass_context *c); /* SECTION_UPDATE: norm, clip, AdamW */
status pass_fuse(program *p, pass_context *c);      /* add + norm, bias into linear */
status pass_recompute(program *p, pass_context *c); /* what the policy drops is computed again before its backward */
status pass_place(program *p, pass_context *c);     /* chosen layers on chosen devices */
status pass_offload(program *p, pass_context *c);   /* homes on host or nvme; large updates sliced */
status pass_localize(program *p, pass_context *c);  /* copies, so that every op finds its operands where it runs */
status pass_workspace(program *p, pass_context *c); /* scratch of every op becomes a value of the plan */
status pass_schedule(program *p, pass_context *c);  /* streams; gradients consumed where they are made */
status pass_layout(program *p, pass_context *c);    /* an offset for every value, the peak of every tier */
status pass_waits(program *p, pass_context *c);     /* what each stream must wait for, from the bytes ops touch */

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
