#pragma once
/* params.h - private to weights, part of its face: initial values of the parameters, their hash, and the list of
 * tensors in a checkpoint. */
#include "checkpoint/checkpoint.h"
#include "weights/quantized.h"

/* All parameters, those of the model, its adapters, the frozen copy that a preference compares with, or a critic's value head. To
 * draw, the copy and the head are a part of the base; hashes of the base leave out the copy, and a head that is trained beside it. PARAMS_FROZEN: of a program that does not train, all, hashed as if they
 * were such a copy. */
typedef enum param_group {
    PARAMS_ALL,
    PARAMS_BASE,
    PARAMS_ADAPTERS,
    PARAMS_REFERENCE,
    PARAMS_FROZEN,
    PARAMS_VALUE_HEAD
} param_group;

void params_initialize(exec *e, const plan *p, uint64_t seed); /* seeded initial values to params and masters */
/* The same, of one group. hash: of those that are quantised; NULL: not asked for. */
void params_draw(exec *e, const plan *p, uint64_t seed, param_group group, base_hash *hash);
/* Elements [first, first + n) of the model's tensor to parameter i or its master: what this rank has of them. */
void params_write_whole(exec *e, const plan *p, size_t i, bool master, int64_t first, int64_t n, const void *from);
/* Equal exactly when every bit of every parameter of the model is equal; of the fp32 masters where there are any. The same on any mesh.
 * Collective where there are ranks (c, else NULL); 0 after an error, which comm_check tells. */
uint64_t params_hash(exec *e, const plan *p, comm *c);
/* The same of all but adapters and a reference's copy, where fp32 parameters count as rounded to h->as: a base that was
 * trained on in bf16 has the same hash when it is generated with in fp32. Quantised ones count with the numbers that they were
 * made from, which h has. */
uint64_t params_base_hash(exec *e, const plan *p, comm *c, const base_hash *h);
/* Of the frozen copy alone: what a run was compared with. */
uint64_t params_reference_hash(exec *e, const plan *p, comm *c);
/* Of a program that does not train, on one rank: what params_reference_hash gives of a copy with these parameters. */
uint64_t params_frozen_hash(exec *e, const plan *p);
/* The same without a program: the sum over blocks of elements of a whole parameter, from fp32, then the hash of the sum of
 * all. */
uint64_t params_hash_elements(const char *name, int64_t first, const float *x, int64_t n, dtype as);
uint64_t params_hash_finish(uint64_t sum);
/* Everything that is a tensor and must survive: params, masters, m, v and their scales. The caller frees the array with free; names live
 * in memory. */
checkpoint_tensor *params_checkpoint_tensors(const plan *p, arena *memory, size_t *n);
