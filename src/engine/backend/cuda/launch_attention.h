#pragma once
/* launch_attention.h - launchers of attention: over whole rows (training) and through a page table (generation).
 *
 * Which kernel runs is a matter of dtype, head_dim and the GPU, never of contents or addresses:
 *   plain    any head_dim up to 256, fp32 arithmetic; everything that has no other
 *   mma      bf16 and fp16, head_dim 64, 80, 96 or 128: tensor cores through mma.sync, every GPU from 8.0 on
 *   wgmma    bf16 and fp16, head_dim 64, 96 or 128: tensor cores of compute capability 9.0, tiles fetched by the TMA unit
 *   wgmma8   the forward of bf16 where it is asked for (attr.fp8), likewise: q, k, v and probabilities rounded to e4m3
 * wgmma kernels know no soft cap: mma or plain ones serve that. None of them holds anything of size T x T, and each gives the same bits on every run. */
#include "backend/cuda/attention_sizes.h"
#include "backend/cuda/launch.h"
#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct launch_attention {
    launch_type type;
    int64_t B, T;
    int H, G, D;
    float scale;
    int window;                  /* keys that a query sees at most, itself the last; ATTENTION_NO_WINDOW */
    float softcap;               /* of scores; 0: none. Not in the wgmma kernels */
    const void *q, *kv;          /* rows of q, and of k|v */
    int64_t q_stride, kv_stride; /* elements from row to row */
    const int32_t *doc_start;    /* (B T) */
    void *y;                     /* (B T, H D): written forward, read backward */
    float *lse;                  /* (B, H, T): likewise */
    const void *dy;              /* (B T, H D) */
    void *dq, *dkv;              /* = (written in full), with the strides of q and kv */
    int n_multiprocessors; /* blocks of kernels that stay; changes no bit, unless there are fewer than the width of a key_schedule */
    float *delta; /* (B, H, T): scratch of the backward, the sum of dy * y over a head's columns */
    int32_t *
        turns; /* scratch of the backward by wgmma: for each tile of queries of a head how many tiles of keys have added to its dq; zeros, by delta */
    float *dq_sums; /* the same: tiles of ATTENTION_DQ_ROWS rows of a head, as the kernels hold them */
    int32_t *
        dkv_turns; /* the same where parts of a group's heads add up dk and dv: of each half of a tile of keys how many parts have added; NULL: none do */
    float *dkv_sums;
    /* One step of a ring: the keys are those of another rank, or of this one. T are the tokens of a rank. dq (B T, H D) and dkv
     * (B T, 2G D) are fp32 sums. */
    int n_ranks, rank, key_rank; /* n_ranks 0: no ring */
    /* both steps on one rank: doc_start (2 B T) has the first key of every query, then the ends; both grow with the query */
    bool spans;
    const float *before, *lse_before; /* y and lse of the keys before; NULL: these are the first */
    bool more;                        /* others follow: y is fp32 */
    bool adds;                        /* dq, dkv += ; else = */
} launch_attention;

/* What 8-bit kernels read in the place of q and kv, in scratch; attention8_scratch_of says where it lies. */
typedef struct launch_attention8 {
    int64_t n_blocks, padded;
    uint8_t *qk, *v;
    float *q_scales;
    attention8_scales *kv_scales;
} launch_attention8;

void launch_attention_plain(const launch_attention *a, cudaStream_t s);
void launch_attention_mma(const launch_attention *a, cudaStream_t s);
/* Rows as (columns, T, B) tensors, in boxes of ATTENTION_BOX_ROWS x ATTENTION_BOX_COLUMNS swizzled over 128 bytes. Without a ring q and
 * kv are the same rows, of q|k|v. */
typedef struct attention_maps {
    CUtensorMap q, kv, dy; /* dy: backward */
} attention_maps;
void launch_attention_wgmma(const launch_attention *a, const attention_maps *m, cudaStream_t s);

/* The same of e4m3 numbers, in two launches: qkv is rounded into scratch, and multiplied. head_dim as for wgmma, no ring. */
typedef struct attention8_maps {
    CUtensorMap qk, v;
} attention8_maps;
void launch_attention_round8(const launch_attention *a, const launch_attention8 *r, cudaStream_t s);
void launch_attention_wgmma8(const launch_attention *a, const launch_attention8 *r, const attention8_maps *m,
                             cudaStream_t s);

/* Backward is three launches in this order; each of the last two writes its own columns of dqkv. */
void launch_attention_delta(const launch_attention *a, cudaStream_t s);
void launch_attention_plain_backward(const launch_attention *a, cudaStream_t s);
void launch_attention_mma_backward(const launch_attention *a, cudaStream_t s);
void launch_attention_wgmma_backward(const launch_attention *a, const attention_maps *m, cudaStream_t s);

/* Of a ring: queries of one rank, keys of one rank; forward and backward. */
void launch_ring_plain(const launch_attention *a, cudaStream_t s);
void launch_ring_mma(const launch_attention *a, cudaStream_t s);
void launch_ring_plain_backward(const launch_attention *a, cudaStream_t s);
void launch_ring_mma_backward(const launch_attention *a, cudaStream_t s);
/* kv = columns k|v of qkv. qkv = q|kv, rounded. */
void launch_kv_part(const void *qkv, void *kv, int64_t n_rows, int64_t q_bytes, int64_t kv_bytes, cudaStream_t s);
void launch_qkv_join(launch_type type, const float *q, const float *kv, void *qkv, int64_t n_rows, int64_t q_columns,
                     int64_t kv_columns, cudaStream_t s);

typedef struct launch_paged {
    launch_type type;
    int64_t N, n_slots, n_pages, page_size, pages_per_slot;
    int H, G, D;
    float scale;
    int window; /* as in launch_attention */
    float softcap;
    const int32_t *rows;      /* how many of the N tokens are there; NULL: all */
    const void *qkv;          /* (N, (H + 2G) D) */
    void *cache;              /* (n_pages, 2 G, page_size, D) */
    const int32_t *slots;     /* (N) */
    const int32_t *table;     /* (n_slots, pages_per_slot) */
    const int32_t *doc_start; /* (N): minus the position */
    void *y;                  /* (N, H D) */
    float *partials;          /* paged_partial_count floats of scratch */
} launch_paged;

/* ROPE or QK_NORM_ROPE, KV_STORE and ATTENTION_PAGED of a step in one kernel, with the bits of theirs; what it does not take goes
 * to the three. paged.qkv is as the product left it, and stays so. */
typedef struct launch_paged_step {
    launch_paged paged;
    const float *turns; /* (n_positions, D): cosines, sines; NULL: nothing is rotated */
    int64_t n_positions;
    const void *gq, *gk; /* gains of the norm of heads; NULL: none */
    float eps, offset;   /* offset: added to every gain */
} launch_paged_step;
bool paged_step_takes(const launch_paged *a);
void launch_attention_step(const launch_paged_step *a, cudaStream_t s);

void launch_kv_store(const launch_paged *a, cudaStream_t s);
void launch_paged_plain(const launch_paged *a, cudaStream_t s);
void launch_paged_mma(const launch_paged *a, cudaStream_t s);

#ifdef __cplusplus
}
#endif
