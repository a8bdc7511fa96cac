#pragma once
/* attention.h - private to the attention kernels: what one task is given, and the tables of functions per instruction
 * set.
 *
 * attention.c cuts the work and owns the scratch; attention_blocks.inc is the arithmetic, compiled once per instruction
 * set (attention_base.c, attention_avx2.c, attention_avx512.c); the widest set of this machine is taken at run time. */
#include "backend/cpu/cpu.h"

#define ATTENTION_BLOCK_K 64 /* keys per block; queries per block depend on the shape: attention_job.block_q */
#define ATTENTION_PAD 16     /* rows of scratch are padded to whole vectors of the widest set */

typedef struct attention_job {
    int64_t B, T;
    int H, G, D;
    int group; /* query heads per kv head, H / G */
    float scale;
    dtype type;
    const void *qkv;    /* (N, (H + 2G) D) */
    const int32_t *doc; /* (N) */
    void *y;            /* (N, H D): written forward, read backward */
    float *lse;         /* (B, H, T): likewise */
    const void *dy;     /* (N, H D) */
    void *dqkv;         /* (N, (H + 2G) D) */
    int64_t d_pad, t_pad;
    int block_q;
    int64_t n_q_blocks; /* of one sequence */
    int n_cuts;         /* backward: pieces of one (sequence, kv head), each with its own sums of dk and dv */
    char *scratch;      /* thread_bytes for every thread, then the dk and dv sums */
    size_t thread_bytes;
    float *sums;                 /* 2 x (t_pad, d_pad) for each thread when n_cuts is 1, else for each task */
    int64_t first_pair, n_pairs; /* backward: the (sequence, kv head) whose sums are held now */
} attention_job;

/* The first query block of a cut. Later queries see more keys, so equal work means cuts at the roots of the area. */
int64_t attention_cut_block(const attention_job *j, int cut);

typedef struct attention_functions {
    const char *name;
    void (*forward)(const attention_job *j, int64_t task, int thread);  /* task: (b, g, query block) */
    void (*backward)(const attention_job *j, int64_t task, int thread); /* task: (pair, cut) */
    void (*add_cuts)(const attention_job *j, int64_t task, int thread); /* task: (pair, key block); n_cuts > 1 */
} attention_functions;

extern const attention_functions attention_base;
#if defined(__x86_64__)
extern const attention_functions attention_avx2, attention_avx512;
#endif

/* For tests and benches: force a set by name (NULL = the widest). False when this machine cannot run it. */
bool attention_force_functions(const char *name);
/* For tests: hold at most so many bytes of sums where a smaller number is possible; 0: as usual. */
void attention_limit_sums(int64_t n_bytes);
const char *attention_functions_list(int i); /* every name compiled in; NULL at the end */
const char *attention_functions_name(void);  /* the one in use */
