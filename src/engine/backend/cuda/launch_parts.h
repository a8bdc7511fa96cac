#pragma once
/* launch_parts.h - launchers of parts.cu: rows put in order for ALL_TO_ALL, by heads, by tokens, and back. */
#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x (n_rows, heads) in one piece, y the same bytes in n_parts parts one behind the other; inverse: y to x. */
typedef struct launch_parts {
    const void *in;
    void *out;
    bool inverse;
    int64_t n_rows, row_bytes; /* of x */
    int n_parts;
} launch_parts;

/* A row of x is n_heads and twice n_kv_heads heads of head_bytes; part i has the i-th heads of each of the three. */
void launch_head_parts(cudaStream_t s, const launch_parts *p, int n_heads, int n_kv_heads, int64_t head_bytes);
/* Rows of x are `batch` sequences of seq_len tokens; part i has those of rank i (sequence_token), sequence by sequence. */
void launch_token_parts(cudaStream_t s, const launch_parts *p, int64_t batch, int64_t seq_len);

#ifdef __cplusplus
}
#endif
