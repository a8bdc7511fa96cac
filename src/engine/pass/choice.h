#pragma once
/* choice.h - everything about a step that may be chosen, in one struct.
 *
 * A request has a step_choice, a candidate of the search is one with its numbers, and the passes read it. Its fields are the
 * rows of choice.def, from which the struct, the comparison, the text and the JSON below are made. It is copied by
 * assignment.
 *
 *     step_choice a = {.precision = PRECISION_BF16, .micro_batch = 4, .accumulation = 2}, b = a;
 *     b.recompute.kind = RECOMPUTE_FULL;
 *     step_choice_equal(&a, &b, CHOICE_RECOMPUTE);   // true: they differ in nothing else
 *     step_choice_print(&b, CHOICE_ALL, &text);      // "bf16, micro-batch 4 x 2, zero 0, recompute full, nothing offloaded"
 */
#include "format/format.h"
#include "program/program.h"

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

/* What a tensor's largest number becomes in 8 bits: 448, or at most that, where the scale is a power of two, of the tensor or of
 * each of its blocks. */
typedef enum fp8_scales { FP8_EXACT, FP8_POWER, FP8_BLOCKS } fp8_scales;

/* Dtype of m and v. auto: from the precision; each of the others works with every precision. */
typedef enum state_format { STATES_AUTO, STATES_FP32, STATES_BF16, STATES_INT8, STATES_COUNT } state_format;
const char *state_format_name(state_format f);
state_format state_format_of(precision p, state_format asked); /* never auto */

/* What the forward keeps for the backward; the rest is computed again when the backward needs it. The values that one layer
 * passes to the next and everything outside the layers are always kept, except with `every` and `nested`.
 *   none       everything
 *   norms      everything except norms, rotations and activation functions: a few operations per element restore them from
 *              values that are kept anyway
 *   selective  as norms, and the product before the activation function is computed again: attention and residuals are kept
 *   full       only the input of each layer
 *   ratio r    full in the last int(r L) layers, none in the others
 *   every n    only the input of each n-th layer: n layers are computed again together, before the backward of the last one
 *   nested n   as every n, and full inside the n layers: first only the input of each is computed again, then, before its
 *              backward, the layer. Two more forwards (one for every n-th layer), and never more than one layer's values
 *   keep names the input of each layer and the values of these names in every layer
 *   mix a,n,b  one rung (full, selective, norms) in the first n layers and a lighter one in the others. The first, because
 *              their backward comes last: when they compute again, the values that the others kept are already freed */
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
    RECOMPUTE_AUTO, /* the plan chooses; passes never see it */
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
void recompute_print(const recompute_policy *r, strbuf *out); /* in words */
/* Offload target of each kind of value: TIER_DEVICE (not offloaded), TIER_HOST or TIER_NVME. */
typedef struct offload_tiers {
    tier params, grads, states, activations;
    tier reference; /* of the parameters of a frozen reference; TIER_DEVICE: as the others */
} offload_tiers;
#define OFFLOAD(p, g, s, a) \
    { .params = (p), .grads = (g), .states = (s), .activations = (a) }
bool offload_any(const offload_tiers *o);
bool offload_on_nvme(const offload_tiers *o);
int64_t offload_bucket(uint64_t n_params); /* for a model of that size */

/* Data parallelism: every rank of the data axis has its own rows, and a share of what is sharded, in equal runs of blocks of
 * NORM_BLOCK elements (buckets.h).
 *   0  parameters, gradients and states whole on every rank; gradients are summed once per step
 *   1  states are sharded: each rank updates its share of the parameters and sends it to the others
 *   2  gradients too: those of each micro-batch are added to the owner's share as soon as a block's backward is done
 *   3  parameters too: a block's are gathered before it runs, forward and backward, and dropped after it
 * With one micro-batch per rank all four give the bits of one rank that runs the same micro-batches in sequence; 2 and 3 also
 * with more, because they add in that order. */
typedef struct shard_options {
    int zero;
    int64_t reduce_bucket;    /* largest bytes of gradients that one message reduces, and ... */
    int64_t allgather_bucket; /* ... of parameters that one message gathers; larger blocks are cut. 0: a whole block */
    bool overlap;             /* reduce gradients while the next bucket's backward runs, not before it */
    int prefetch;             /* 3: how many buckets before its use one is gathered */
    int64_t persist_below;    /* 3: parameters of fewer elements stay whole */
} shard_options;

/* Overlap of the update with the first micro-batch of the next step: never, always, or (auto) where the host updates for a
 * device. */
typedef enum overlap_wish { OVERLAP_AUTO = -1, OVERLAP_FALSE, OVERLAP_TRUE } overlap_wish;

/* ---- the choice -------------------------------------------------------------------------------------------------- */

typedef struct step_choice {
#define CHOICE(NAME, type, field, ...) type field;
#include "pass/choice.def"
#undef CHOICE
} step_choice;

/* Sets of fields: CHOICE_PRECISION | CHOICE_SHARD ... */
typedef enum choice_field {
#define CHOICE(NAME, ...) CHOICE_FIELD_##NAME,
#include "pass/choice.def"
#undef CHOICE
    CHOICE_FIELD_COUNT
} choice_field;
typedef enum choice_set {
    CHOICE_NONE = 0,
#define CHOICE(NAME, ...) CHOICE_##NAME = 1 << CHOICE_FIELD_##NAME,
#include "pass/choice.def"
#undef CHOICE
    CHOICE_ALL = (1 << CHOICE_FIELD_COUNT) - 1
} choice_set;

/* Equal in all fields except these? */
bool step_choice_equal(const step_choice *a, const step_choice *b, unsigned but);
/* Copies the fields of group MEMORY, and leaves those of group STEP. */
void step_choice_copy_memory(step_choice *to, const step_choice *from);
/* These fields as a line of text, in the order of the table. */
void step_choice_print(const step_choice *c, unsigned fields, strbuf *out);
/* ... and as members of a JSON object. */
void step_choice_json(const step_choice *c, unsigned fields, json_t *out);
