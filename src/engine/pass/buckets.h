#pragma once
/* buckets.h - private to pass: parameters in flat buckets, so that one message carries many and every rank of a group owns
 * equally much.
 *
 * A unit is the embedding, a block of the model, or the head. Inside a unit the larger parameters come first, so that all
 * parameters below a size are at its end. That order is also the order of the global norm, on one rank as on many, and does
 * not depend on how units are cut. A bucket is a unit or a part of one. Each parameter in it begins at a multiple of
 * NORM_BLOCK elements, and padding at the end gives each rank the same number of whole blocks. */
#include "pass/pass.h"

typedef struct bucket {
    size_t first, n;    /* parameters, as places in the order */
    int unit;           /* 0: embedding, 1 + l: block l, then the head */
    int part;           /* of its unit */
    int64_t offset;     /* of its first parameter in the unit, in elements */
    int64_t norm_block; /* ... and in the order of the norm, in blocks */
    bool small;         /* ZeRO-3: of parameters that stay whole */
    bool frozen;        /* ZeRO-3: of parameters that have no gradient */
    int64_t n_blocks;   /* of NORM_BLOCK elements, before it is filled up */
    int64_t per_rank;   /* elements that each rank owns */
} bucket;

#define NO_BUCKET SIZE_MAX
typedef struct buckets {
    size_t *order;   /* parameters in buckets; those that this rank trains in the order of the norm */
    size_t n_params; /* of them */
    size_t *bucket;  /* of each parameter; NO_BUCKET: every rank has all of it and none sends it */
    int64_t *offset; /* of each parameter in its bucket, in elements */
    bucket *list;
    size_t n, n_trained;   /* those of trained parameters come first */
    int64_t n_norm_blocks; /* of the whole model */
} buckets;

int64_t norm_blocks(int64_t n_elements);
/* The place of each parameter, whatever the buckets and whatever this rank has of the model: in its unit, which keys the
 * rounding noise of gradients, so that a bucket is rounded like its parameters; and in the order of the norm. One for each of
 * n_all_params; the caller frees. */
typedef struct flat_place {
    int unit;
    int64_t offset; /* in the unit, elements */
    int64_t block;  /* in the norm, of n_blocks */
} flat_place;
flat_place *bucket_places(const net *m, int64_t *n_blocks);
uint64_t bucket_noise_key(int unit);
void buckets_init(buckets *b, const pass_options *options);
void buckets_fini(buckets *b);
/* "layers.3", "embed.1": into buf, which it returns. */
enum { BUCKET_NAME_BYTES = 48 };
const char *bucket_name(char buf[BUCKET_NAME_BYTES], const bucket *b, int64_t n_layers);
/* Counts a parameter that several tensor ranks hold once in the global norm. */
void optimizer_count_once(op *sumsq, const net_param *q, const mesh *m);
