#pragma once
/* launch_embed.h - launchers of embed.cu and scatter.cu. */
#include "backend/cuda/launch.h"
#include "backend/cuda/scatter_sort.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x (n, C) = table[tokens] (+ positions[row % seq_len - doc[row]]). */
typedef struct launch_embed_args {
    void *x;
    const void *table, *positions;     /* (V, C), (n_positions, C) or NULL */
    const int32_t *tokens, *doc, *rows; /* doc NULL: every row of seq_len tokens is one document */
    int64_t n, C, V, n_positions, seq_len;
} launch_embed_args;
void launch_embed(cudaStream_t s, launch_type t, const launch_embed_args *a);

/* dtable (V, C) = or += the rows of dy (n, C), added in order to the row of their id: ids[i], or i % seq_len - ids[i]
 * where seq_len is given. work: scatter_work_bytes. */
typedef struct launch_scatter_args {
    void *dtable, *work;
    const void *dy;
    const int32_t *ids;
    int64_t n, V, C, seq_len;
    launch_type type, table_type;
    bool add;
} launch_scatter_args;
void launch_scatter(cudaStream_t s, const launch_scatter_args *a);

#ifdef __cplusplus
}
#endif
