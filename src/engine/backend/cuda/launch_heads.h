#pragma once
/* launch_heads.h - launchers of qk_norm_rope.cu: norm of q and k heads with the rotation behind it. */
#include "backend/cuda/launch_norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row i of the heads is turned by line i % seq_len - doc_start[i] of the table, backward turned back before anything else. */
typedef struct launch_turned_args {
    launch_heads_args heads; /* fewer than 2^32 rows; y may be qkv, backward dy */
    const float *table;      /* (n_positions, D): cosines, then sines */
    const int32_t *doc_start;
    int64_t n_positions;
    uint32_t seq_len;
} launch_turned_args;
void launch_qk_norm_rope(cudaStream_t s, launch_type t, const launch_turned_args *a);
void launch_qk_norm_rope_bwd(cudaStream_t s, launch_type t, const launch_turned_args *a);

#ifdef __cplusplus
}
#endif
