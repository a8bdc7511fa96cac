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
 *     pass_context c = {.target = &t, .accumulation = 4, ...};
 *     TRY(pass_run(&p, &c));        // every pass of the table that applies, in order
 *     p.arena_bytes[TIER_DEVICE];   // the peak, to the byte
 */
#include "machine/machine.h"
#include "model/model.h"

typedef enum precision {
    PRECISION_FP32,
    PRECISION_BF16,
    PRECISION_BF16_SR,
    PRECISION_FP16,
    PRECISION_FP8,    /* as bf16, with products of 8 bits inside the layers */
    PRECISION_FP8_SR, /* as bf16_sr, likewise */
    PRECISION_COUNT
} precision;
const char *precision_name(precision p);
dtype precision_compute(precision p); /* params and activations */
dtype precision_grad(precision p);
bool precision_master(precision p); /* fp32 copy of the parameters beside them */
bool precision_fp8(precision p);    /* linear layers multiply numbers of 8 bits */

/* What m and v are kept in. auto: as the precision says; each of the others goes with every precision. */
typedef enum state_format { STATES_AUTO, STATES_FP32, STATES_BF16, STATES_INT8, STATES_COUNT } state_format;
const char *state_format_name(state_format f);
state_format state_format_of(precision p, state_format asked); /* never auto */

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
 *   nested n   as every n, and inside the n layers as full: first only the input of each is computed again, then, before its
 *              backward, the layer. Two forwards more, but for every n-th layer, and never more than one layer's values
 *   keep names the input of each layer and the values of these names in every layer
 *   mix a,n,b  one rung (full, selective, norms) in the first n layers and a lighter one in the others. The first, because
 *              their backward comes last: what they compute again is alive when what the others kept has gone */
typedef enum recompute_kind {
    RECOMPUTE_NONE,
    RECOMPUTE_NORMS,
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_FULL,
    RECOMPUTE_RATIO,
    RECOMPUTE_EVERY,
    RECOMPUTE_NESTED,
    RECOMPUTE_KEEP,
    RECOMPUTE_MIX,
    RECOMPUTE_AUTO, /* the planner's choice; no program can be made with it */
    RECOMPUTE_COUNT
} recompute_kind;
typedef struct recompute_policy {
    recompute_kind kind;
    double ratio;
    int64_t every;               /* also of nested */
    const char *keep;            /* "attn.y,mlp.up": names without the layer, separated by commas; borrowed */
    recompute_kind heavy, light; /* of mix: in the first n_heavy layers, and in the others */
    int64_t n_heavy;
} recompute_policy;
const char *recompute_name(recompute_kind k);
/* "full", "ratio:0.5", "every:2", "nested:4", "keep:attn.y,mlp.up", "mix:full,12,selective". keep points into text. */
status recompute_parse(recompute_policy *out, const char *text);
void recompute_write(const recompute_policy *r, strbuf *out); /* what recompute_parse reads */
/* Where each kind of value lives between its uses: TIER_DEVICE (it stays), TIER_HOST or TIER_NVME. */
typedef struct offload_options {
    tier params, grads, states, activations;
    int64_t keep_layers;  /* the last so many layers keep their activations on the device, wherever others' go */
    int64_t keep_states;  /* the first so many layers keep their states there, and are updated there */
    int prefetch;         /* blocks ahead of its use that a value is fetched, and behind it that one leaves */
    int64_t bucket_bytes; /* a tensor on its way to the optimizer travels in slices of at most this */
} offload_options;
bool offload_any(const offload_options *o);
bool offload_on_nvme(const offload_options *o);
bool offload_same_homes(const offload_options *a, const offload_options *b);
int64_t offload_bucket(uint64_t n_params); /* for a model of that size */

/* Which device a part of the model runs on; devices are numbered from 0. */
enum { PLACE_LAYERS_MAX = 1024 };
typedef struct place_options {
    int n_devices;   /* 0 or 1: everything on the first */
    int embed, head; /* device of the embedding; of the last norm, the unembedding and the loss */
    uint8_t layers[PLACE_LAYERS_MAX];
} place_options;

/* Data parallelism: every rank of the data axis has rows of its own, and a share of everything else. What is cut, is cut
 * into equal runs of blocks of NORM_BLOCK elements (buckets.h).
 *   0  parameters, gradients and states whole on every rank; gradients are summed once per step
 *   1  states are cut: each rank updates its share of the parameters and hands it to the others
 *   2  gradients too: each micro-batch's are added to the owner's share as soon as a block's backward is done
 *   3  parameters too: a block's are gathered before it runs, forward and backward, and dropped behind it
 * With one micro-batch per rank all four give the bits of one rank that takes the same micro-batches in turn; 2 and 3 also
 * with more, because they add in that very order. */
typedef struct shard_options {
    int zero;
    int64_t reduce_bucket; /* bytes of gradients that one message reduces, and ... */
    int64_t
        allgather_bucket; /* ... of parameters that one gathers, at most; larger blocks are cut between parameters. 0: a
                                 block, whatever its size */
    bool overlap;         /* gradients are summed beside the next bucket's backward, not before it */
    int prefetch;         /* 3: buckets ahead of its use that one is gathered */
    int64_t persist_below; /* 3: parameters of fewer elements stay whole */
} shard_options;

/* The update beside the next step's first micro-batch: never, always, or where the host updates for a device. */
typedef enum overlap_wish { OVERLAP_AUTO = -1, OVERLAP_FALSE, OVERLAP_TRUE } overlap_wish;

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
    precision precision;
    state_format states;
    int64_t accumulation;
    optimizer_options optimizer;
    recompute_policy recompute;
    offload_options offload;
    int64_t chunk_tokens; /* rows that an MLP takes at a time, a multiple as chunk_rows gives it; 0: all */
    place_options place;
    mesh mesh;
    shard_options shard;
    overlap_wish overlap_update;
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
