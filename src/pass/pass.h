#pragma once
/* pass.h - rewrites of the program. One technique, one pass, one file.
 *
 * Promises
 *   - A pass may move, repeat or split work; it never changes arithmetic. The exceptions: fuse and fp8, by precision alone,
 *     where there is no second program of that precision to be equal to; chunk, whose weight gradients are sums in another
 *     order.
 *   - After every pass the program verifies; pass_run checks that when asked (tests always ask).
 *   - Nothing is allocated on any device: after the layout pass every value has an address and every tier its exact size.
 *
 *     pass_context c = {.target = &t, .choice = choice, .n_micros = 4, ...};
 *     TRY(pass_run(&p, &c));        // every pass of the table that applies, in order
 *     p.arena_bytes[TIER_DEVICE];   // the peak, to the byte
 */
#include "model/model.h"
#include "pass/choice.h"

/* What a pass must know of the machine the program is for. A pure description: no device is touched. */
typedef struct target {
    const char *name;
    int n_threads;
    size_t alignment; /* of every value, a power of two */
    size_t (*work_bytes)(const program *p, const op *o, int n_threads);
    size_t (*host_work_bytes)(const program *p, const op *o,
                              int n_threads); /* of ops beside host memory; NULL: the same */
    int64_t logits_rows; /* whose logits are alive at once, where the user says nothing; 0: the plan's own number */
    size_t (*comm_bytes)(const program *p, const op *o); /* scratch of what runs between ranks; NULL: none */
    bool has_ring;                                       /* kernels for keys and values that go round, rank to rank */
    tier comm_at;  /* where messages find their bytes: TIER_HOST where a transport cannot reach the device's memory */
    int n_devices; /* that one process can drive; 0: as many as there are tiers for */
    bool discrete; /* the device is none of the host's cores: they work beside it */
} target;

typedef struct optimizer_options {
    float beta1, beta2, eps, weight_decay, clip;
    bool normalize_by_weights;
} optimizer_options;

/* Which device a part of the model runs on; devices are numbered from 0. */
enum { PLACE_LAYERS_MAX = 1024 };
typedef struct place_options {
    int n_devices;   /* 0 or 1: everything on the first */
    int embed, head; /* device of the embedding; of the last norm, the unembedding and the loss */
    uint8_t layers[PLACE_LAYERS_MAX];
} place_options;

/* A run of a parameter's elements. */
typedef struct param_share {
    int64_t first, n;
} param_share;

/* What a run of SECTION_MICRO is told of one micro-batch: those of the model, or as many. */
typedef struct micro_inputs {
    value_id tokens, targets, doc, doc_all, weights, scalars;
} micro_inputs;

typedef struct pass_context {
    const target *target;
    const model *model;
    step_choice choice;
    int64_t
        n_micros; /* micro-batches of a step that the program has: all, or of a pipeline that is not run a few of them */
    optimizer_options optimizer;
    place_options place;
    mesh mesh;
    bool verify; /* after every pass */
    /* written by the passes */
    value_id loss_sums, clip, norm_partials;
    value_id turn_scalars;  /* of SECTION_TURN's micro-batch, which has inputs[0] else; NO_VALUE: no such section */
    int64_t micros_per_run; /* 1, or all of a step: a pipeline runs them together */
    micro_inputs *inputs;   /* of each of them; in the program's memory */
    value_id *grads, *masters, *moments, *variances; /* per model parameter; in the program's memory */
    value_id *moment_scales, *variance_scales;       /* of 8-bit states; NO_VALUE elsewhere */
    /* On many ranks these hold a part of their parameter each, or are NO_VALUE where it is empty. */
    param_share *held;                      /* per parameter: what its own value holds here */
    param_share *updated;                   /* ... and its gradient and states: what this rank updates */
    int64_t *shard_offset, *shard_elements; /* ... its place in a bucket, and each rank's run of that; 0: not cut */
} pass_context;

status pass_autodiff(program *p, pass_context *c); /* backward of SECTION_MICRO, gradients finished into accumulators */
status pass_optimizer(program *p, pass_context *c); /* SECTION_UPDATE: norm, clip, AdamW */
status pass_fuse(program *p, pass_context *c);      /* add + norm, bias into linear, qk_norm + rope */
status pass_fp8(program *p, pass_context *c);       /* linears of the layers in 8 bits, weights once per step */
status pass_recompute(program *p, pass_context *c); /* what the policy drops is computed again before its backward */
status pass_chunk(program *p, pass_context *c);     /* wide values of an MLP for a few tokens at a time */
int64_t chunk_rows(int64_t asked);                  /* what pass_chunk takes for so many tokens */
enum { MLP_CHUNKS_MOST = 256 };                     /* of one MLP: each is a few ops of the program */
status pass_shard(program *p, pass_context *c);     /* ZeRO 0 to 3 over the data axis */
status pass_pipeline(program *p, pass_context *c);  /* all micro-batches of a stage, in the order of 1F1B */
status pass_place(program *p, pass_context *c);     /* chosen layers on chosen devices */
status pass_offload(program *p, pass_context *c);   /* homes on host or nvme; large updates sliced */
status pass_localize(program *p, pass_context *c);  /* copies, so that every op finds its operands where it runs */
status pass_workspace(program *p, pass_context *c); /* scratch of every op becomes a value of the plan */
status pass_schedule(program *p, pass_context *c);  /* streams; gradients consumed where they are made */
status pass_turn(program *p, pass_context *c);      /* an update and the next micro-batch as one section */
status pass_layout(program *p, pass_context *c);    /* an offset for every value, the peak of every tier */
status pass_waits(program *p, pass_context *c);     /* what each stream must wait for, from the bytes ops touch */

/* What rank `index` of the data axis updates of a parameter. */
param_share shard_share(const pass_context *c, size_t param, int index);
/* What of a parameter, and of all that belongs to it, this rank writes to a checkpoint: what it updates, and where every
 * rank updates everything, each parameter by one of them. */
param_share shard_saved(const pass_context *c, size_t param);

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
