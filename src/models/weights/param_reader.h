#pragma once
/* param_reader.h - private to weights: the parameters of a model as fp32, a block of rows at a time, from wherever they
 * are: a running program, a checkpoint, files of Hugging Face, or a seed. Adapters may come from elsewhere than their base,
 * and may be merged into it on the way:
 *
 *     W + scale B A, summed in double and rounded once, so that no second copy of the model is ever held. */
#include "weightfile/weightfile.h"
#include "weights/base.h"

typedef struct param_place { /* one of these */
    exec *e;                 /* of plan p */
    const plan *p;
    const checkpoint_reader *r;
    const safetensor *const *files; /* a tensor per part of every parameter (match.h) */
    uint64_t seed;                  /* e, r and files are NULL: random values */
} param_place;

typedef struct param_reader {
    const net *m;
    const program *g;
    param_place base, adapters;
    bool merge;
    double scale;  /* merge */
    dtype hash_as; /* merge: the base is hashed as this while it is read; DTYPE_COUNT: not */
    uint64_t hash;
    bool hash_stored;    /* parameters of a checkpoint are hashed as they are stored, into ... */
    uint64_t stored;     /* ... this, as params_hash does */
    void *raw;           /* one block in the source's dtype; the caller's */
    int64_t block;       /* its elements: at least one row */
    struct pissa *pissa; /* adapters of m are those of an export of it (pissa.h); NULL: adapters are as they are */
    /* of the parameter in progress */
    float *whole; /* an adapter that is made, not read */
    checkpoint_found found;
    const net_param *param_a, *param_b; /* merge: its adapters; NULL: none */
    float *a, *b;
} param_reader;

/* Makes sure that all of parameter i can be read. */
status param_reader_begin(param_reader *s, size_t i);
/* Elements [first, first + n): whole rows, at most a block. */
status param_reader_read(param_reader *s, size_t i, int64_t first, int64_t n, float *out);
void param_reader_end(param_reader *s, size_t i); /* parameter i was read */
void param_reader_drop(param_reader *s);          /* after an error */
/* A whole adapter, as it is; the caller frees. s->raw and s->block are set. */
status param_reader_adapter(param_reader *s, size_t i, float **out);
/* "layers.0.mlp.down.w" and "layers.0.mlp.down.lora_a" are of one projection. */
bool param_is_adapter_of(const net_param *w, const net_param *q);
/* The part of B that belongs to a part of W. -1: that module has no adapter. */
int param_adapted_part(const net_param *b, const param_part *part);
