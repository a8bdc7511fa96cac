#pragma once
/* match.h - private to weights: which tensor of the files fills which part of which parameter.
 *
 * Every name, shape and dtype is checked before anything is loaded, and all problems are one error that names up to ten. */
#include "weights/load.h"

size_t match_part_count(const net *m); /* of all parameters, those of other pipeline stages too */

/* sources: a tensor for each part, in the order of parameters and parts; those of adapters stay NULL. Only tensors whose
 * name begins with `prefix` count. Tensors of other pipeline stages are checked too: files must hold the whole model, on
 * every rank. */
status match_weights(const net *m, const safetensors *files, size_t n_files, const char *prefix,
                     const safetensor **sources);
/* The same for the parameters of the frozen copy alone; sources of all others are NULL. */
status match_reference(const net *model, const safetensors *files, size_t n_files, const safetensor **sources);
/* The same for the adapters alone, in PEFT's file; all others stay NULL. Names may begin with "base_model.model." or not,
 * and may hold the adapter's own name (lora_A.default.weight). base: the model that the adapter says it belongs to, for
 * the message; NULL: it does not say. */
status match_adapter(const net *m, const safetensors *file, const char *base, const safetensor **sources);

/* load.c: fills the parameters (and their fp32 masters) whose sources are not NULL. hash: of those that are quantised; NULL: not
 * asked for. ERR_INPUT: a weight cannot be quantised. */
status weights_move(exec *e, const plan *p, const safetensor *const *sources, base_hash *hash);
