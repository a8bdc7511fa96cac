#pragma once
/* launch_embed.h - launchers of embed.cu and scatter.cu. */
#include "backend/cuda/launch.h"
#include "backend/cuda/scatter_sort.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which ids of a vocabulary have a row in a table: n_ids of them, from first_id on. The others are other ranks'. */
typedef struct launch_ids {
    int64_t vocab, first_id, n_ids;
} launch_ids;

/* x (n, C) = table[tokens], 0 where the token has no row, (+ positions[row % seq_len - doc_start[row]] on rows first_token ..
 * first_token + n_tokens). */
typedef struct launch_embed_args {
    void *x;
    const void *table, *positions;            /* (n_ids or more, C), (n_positions, C) or NULL */
    const int32_t *tokens, *doc_start, *rows; /* doc_start NULL: every row of seq_len tokens is one document */
    int64_t n, C, n_positions, seq_len;
    launch_ids ids;
    int64_t first_token, n_tokens;
    float scale;             /* of the table's rows; 0: 1 */
    const float *code_scale; /* the table is int8, and every row has a scale; NULL: it has the type of x */
} launch_embed_args;
void launch_embed(cudaStream_t s, launch_type t, const launch_embed_args *a);

/* dtable (V, C) = or += the rows of dy (n, C), added in order to the row of their id: that of token ids[i], if it has one,
 * or (first_token + i) % seq_len - ids[i] where seq_len is given. work: scatter_work_bytes. */
typedef struct launch_scatter_args {
    void *dtable, *work;
    const void *dy;
    const int32_t *ids;
    int64_t n, V, C, seq_len, first_token;
    launch_ids held;              /* tokens that have a row */
    launch_type type, table_type; /* of dy; of dtable: fp32 or bf16 */
    bool add;
    float scale; /* of the sums; 0: 1 */
} launch_scatter_args;
void launch_scatter(cudaStream_t s, const launch_scatter_args *a);

#ifdef __cplusplus
}
#endif
