#pragma once
/* attention.h - private to the attention kernels: what one task is given, and the tables of functions per instruction
 * set.
 *
 * attention.c cuts the work and owns the scratch; attention_blocks.inc is the arithmetic on vectors, compiled once per
 * instruction set (attention_base.c, attention_avx2.c, attention_avx512.c), attention_matrix.c that of bf16 by instructions that
 * multiply matrices; the best set of this machine for a type is taken at run time. */
#include "backend/cpu/cpu.h"

#define ATTENTION_BLOCK_K 64  /* keys per block on vectors */
#define ATTENTION_BLOCK_Q 192 /* queries per block, at most: attention_job.block_q depends on the shape */
#define ATTENTION_PAD 16      /* rows of scratch are padded to whole vectors of the widest set */

typedef struct attention_job {
    int64_t B, T;
    int H, G, D;
    int group; /* query heads per kv head, H / G */
    float scale;
    int64_t window; /* keys that a query sees at most, itself the last; 0: all of its document */
    float softcap;  /* of the scores; 0: none */
    dtype type;
    const void *q, *kv;          /* rows that begin with H heads of q; with G heads of k and G of v */
    int64_t q_stride, kv_stride; /* elements from row to row */
    const int32_t *doc_start;    /* (N) */
    /* A ring: T queries of this rank and T keys of another, or its own, of rows that n_ranks share. 1: a row is whole. */
    int n_ranks, rank, key_rank;
    const int32_t *
        spans; /* two steps on one rank: the first key that each query sees, behind all of them the ends; NULL: by doc_start */
    const float *before, *lse_before; /* forward: what other keys have given, y and lse of those; NULL: nothing yet */
    void *y;                          /* (N, H D): written forward, read backward */
    dtype y_type;
    float *lse;     /* (B, H, T): likewise */
    const void *dy; /* (N, H D) */
    void *dq, *dkv; /* as q and kv, with their strides */
    int64_t dq_stride, dkv_stride;
    dtype grad_type;
    bool adds; /* backward: to what dq and dkv hold, both fp32 */
    const struct attention_functions *functions;
    int64_t d_pad;
    int block_k, block_q; /* the latter at most ATTENTION_BLOCK_Q */
    int64_t n_q_blocks;   /* of one sequence */
    int n_cuts;           /* backward: pieces of one (sequence, kv head), each with its own sums of dk and dv */
    char *scratch;        /* thread_bytes for every thread, then the dk and dv sums */
    size_t thread_bytes;
    /* Backward: keys of one run through all tasks, a whole row or a segment of it. */
    int64_t first_key, end_key, segment;
    float *sums;    /* of dk and dv, 2 x (segment, d_pad), for each thread when n_cuts is 1, else for each task */
    float *dq_sums; /* (B, H, n_q_blocks, block_q, d_pad): what earlier segments have given; NULL: there is one */
} attention_job;

/* Keys [lo, hi) that a query of row b sees, none where lo is hi. hi rises with the query. */
void attention_seen(const attention_job *j, int64_t b, int64_t query, int64_t *lo, int64_t *hi);
/* Keys from here on are seen by no query of a cut. */
int64_t attention_cut_keys(const attention_job *j, int cut);
int64_t attention_segment_blocks(const attention_job *j); /* of keys, in the segment at hand */
/* The first query block of a cut. Later queries see more keys, so equal work means cuts at the roots of the area. */
int64_t attention_cut_block(const attention_job *j, int cut);

typedef struct attention_functions {
    const char *name;
    bool (*supported)(dtype type, int64_t head_dim); /* on the machine that runs this; bf16 by every set */
    void (*shape)(attention_job *j);                 /* d_pad, block_k, block_q */
    size_t (*thread_bytes)(const attention_job *j, bool backward);      /* of scratch */
    void (*forward)(const attention_job *j, int64_t task, int thread);  /* task: (b, g, query block) */
    void (*backward)(const attention_job *j, int64_t task, int thread); /* task: (b, g, cut) */
    void (*add_cuts)(const attention_job *j, int64_t task, int thread); /* task: (b, g, key block); n_cuts > 1 */
} attention_functions;

extern const attention_functions attention_base;
#if defined(__x86_64__)
extern const attention_functions attention_avx2, attention_avx512, attention_matrix;
#elif defined(__aarch64__)
extern const attention_functions attention_matrix;
#endif
/* For the sets on vectors. */
void attention_vector_shape(attention_job *j);
size_t attention_vector_bytes(const attention_job *j, bool backward);

/* For tests and benches: force a set by name, for the types it has (NULL = the best). False when this machine cannot run it. */
bool attention_force_functions(const char *name);
const char *attention_functions_list(int i);                        /* every name compiled in; NULL at the end */
const char *attention_functions_name(dtype type, int64_t head_dim); /* the one in use */
