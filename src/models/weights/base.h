#pragma once
/* base.h - private to weights, part of its face: the frozen base of a LoRA run, and the first parameters of any run.
 *
 * A checkpoint of a LoRA run holds the adapters and says where the base comes from: a Hugging Face directory, or random
 * values drawn with a seed. Its hash goes along, so that adapters are never used over a base that has changed since. */
#include "checkpoint/checkpoint.h"
#include "weights/quantized.h"

/* Where the first parameters of a run come from. */
typedef struct weights_origin {
    const char *model_dir; /* Hugging Face directory whose weights are loaded; NULL: random values */
    const char *adapter;   /* PEFT directory whose adapters are the first; NULL: new ones */
    uint64_t seed;
    comm *comm;            /* NULL: one rank */
    const char *reference; /* directory of the model to compare with; NULL: where the model begins */
} weights_origin;
typedef struct lora_base {
    const char *dir; /* Hugging Face directory; NULL: drawn with the seed */
    uint64_t seed;
    uint64_t hash;      /* of its parameters, as ... */
    dtype type;         /* ... this: the numbers of the files or the seed, whatever they are stored as ... */
    base_format format; /* ... in the program */
} lora_base;

/* What no checkpoint of this plan holds: the base under adapters; without adapters nothing. Collective: it is hashed. */
status weights_start_frozen(exec *e, const plan *p, const weights_origin *o, lora_base *out);
/* First values of what checkpoints hold, for a run that is not resumed; without adapters also of a frozen copy, which is where
 * the run began. */
status weights_start_trained(exec *e, const plan *p, const weights_origin *o);
/* What start would refuse, before there is a program. resumed: the checkpoint has the adapters. */
status weights_start_check(const plan *p, const weights_origin *o, bool resumed);

/* Adds "lora", as PEFT's adapter_config.json, and "base" to a description (export_describe); nothing without adapters. */
status lora_describe(const plan *p, const lora_base *b, char **description);
/* The options of a description; rank 0 where it is of a run without adapters. base.dir points into it. */
status lora_from_description(const json_t *description, const model_config *c, const char *path, lora_options *o,
                             lora_base *base);
/* Options in words, for the identity of a checkpoint: ", lora rank 8, alpha 16 on k_proj, q_proj over nf4"; "" without
 * adapters. */
const char *lora_identity(arena *memory, const model_config *c, const lora_options *o, base_format base);
/* Is the base that was loaded the one that the checkpoint's adapters were trained over? */
status lora_base_check(const char *checkpoint, const model_config *c, const lora_base *loaded);
/* The same for a program of any precision, where that can be told: `then` is what the checkpoint says. */
status lora_base_check_loaded(exec *e, const plan *p, const lora_base *then, const base_hash *loaded,
                              const char *checkpoint);
/* The error of both: the hash of the base is `now`. */
status lora_base_changed(const char *checkpoint, const lora_base *then, uint64_t now);
