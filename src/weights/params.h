#pragma once
/* params.h - private to weights, part of its face: initial values of the parameters, their hash, and the list of
 * tensors in a checkpoint. */
#include "checkpoint/checkpoint.h"

void params_initialize(exec *e, const plan *p, uint64_t seed); /* seeded initial values to params and masters */
/* Elements [first, first + n) of the model's tensor to parameter i or its master: what this rank has of them. */
void params_write_whole(exec *e, const plan *p, size_t i, bool master, int64_t first, int64_t n, const void *from);
/* Equal exactly when every bit of every parameter is equal; of the fp32 masters where there are any. The same on any mesh.
 * Collective where there are ranks (c, else NULL); 0 after an error, which comm_check tells. */
uint64_t params_hash(exec *e, const plan *p, comm *c);
/* Everything that is a tensor and must survive: params, masters, m, v and their scales. The caller frees the array with free; names live
 * in memory. */
checkpoint_tensor *params_checkpoint_tensors(const plan *p, arena *memory, size_t *n);
