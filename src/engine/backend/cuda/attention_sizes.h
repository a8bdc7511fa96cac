#pragma once
/* attention_sizes.h - limits of the attention kernels and the scratch of generation. No CUDA in here: a plan asks too. */
#include "backend/cuda/attention_schedule.h"
#include "program/fp8_scale.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ATTENTION_HEAD_DIM_MOST = 256,
    ATTENTION_NO_WINDOW = 1 << 30,
    ATTENTION_BOX_ROWS = 64, /* of a tile, as the TMA unit fetches it */
    ATTENTION_BOX_COLUMNS = 64,
    ATTENTION_DQ_ROWS = 64,     /* of a tile of queries whose dq is summed in memory */
    PAGED_SPLIT = 64,           /* positions that are summed before they join the rest: one tile of keys */
    PAGED_SPLIT_ROWS = 128,     /* up to so many tokens in a step the splits of one token run side by side, */
    PAGED_SPLITS_MOST = 1 << 13 /* and where every token has a slot of its own, up to so many splits */
};

static inline bool attention_head_dim_wgmma(int64_t head_dim) {
    return head_dim == 64 || head_dim == 96 || head_dim == 128;
}

/* Scratch of the backward: delta of every token and head; where tiles of keys add up dq (wgmma kernels), whose turn it is for each tile of queries, and
 * the sums; where parts of a group's heads add up dk and dv, the same for those. By shape alone: a plan does not know the GPU's capability. */
typedef struct attention_scratch {
    size_t turns, dkv_turns, dq_sums, dkv_sums, bytes; /* where they begin; behind delta */
    bool sums_dq, sums_dkv;
} attention_scratch;
static inline attention_scratch attention_scratch_of(int64_t batch, int64_t seq_len, int n_heads, int n_kv_heads,
                                                     int64_t head_dim, bool narrow, bool softcap, bool ring) {
    enum { ALIGNMENT = 256, TURNS_OF_TILE = 2 }; /* a turn for dk and dv of each half of a tile of keys */
    int64_t n_tiles = batch * n_heads * ((seq_len + ATTENTION_DQ_ROWS - 1) / ATTENTION_DQ_ROWS);
    attention_scratch s = {.turns = (size_t)(batch * seq_len * n_heads) * sizeof(float)};
    s.sums_dq = narrow && !softcap && attention_head_dim_wgmma(head_dim);
    s.bytes = s.turns;
    if (!s.sums_dq) return s;
    key_schedule order = attention_schedule_of(batch, seq_len, n_heads, n_kv_heads, ring);
    int64_t n_key_tiles = order.n_parts > 1 ? batch * n_kv_heads * order.n_tiles : 0;
    s.sums_dkv = n_key_tiles > 0;
    s.dkv_turns = s.turns + (size_t)n_tiles * sizeof(int32_t);
    s.dq_sums = s.dkv_turns + (size_t)(n_key_tiles * TURNS_OF_TILE) * sizeof(int32_t);
    s.dq_sums = (s.dq_sums + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    s.dkv_sums = s.dq_sums + (size_t)(n_tiles * ATTENTION_DQ_ROWS * head_dim) * sizeof(float);
    s.bytes = s.dkv_sums + (size_t)(2 * n_key_tiles * ATTENTION_KEY_ROWS * head_dim) * sizeof(float);
    return s;
}

/* Scratch of the forward with 8-bit products: q and k in e4m3 as they lie in q|k|v; v transposed, padded with zeros to whole blocks of
 * keys, which stand within every 16 in the order in which the kernel holds probabilities; a scale for every block of FP8_BLOCK tokens and head. */
typedef struct attention8_scales {
    float k, v;
} attention8_scales;
typedef struct attention8_scratch {
    int64_t n_blocks, padded;                 /* of a row */
    size_t qk, v, q_scales, kv_scales, bytes; /* (N, (H + G) D), (B, G D, padded), (B, H, n_blocks), (B, G, n_blocks) */
} attention8_scratch;
static inline attention8_scratch attention8_scratch_of(int64_t batch, int64_t seq_len, int n_heads, int n_kv_heads,
                                                       int64_t head_dim) {
    enum { ALIGNMENT = 256 };
    int64_t n_blocks = (seq_len + FP8_BLOCK - 1) / FP8_BLOCK, padded = n_blocks * FP8_BLOCK;
    attention8_scratch s = {.n_blocks = n_blocks, .padded = padded};
    s.v = (size_t)(batch * seq_len * (n_heads + n_kv_heads) * head_dim);
    s.v = (s.v + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    s.kv_scales = s.v + (size_t)(batch * n_kv_heads * head_dim * padded);
    s.q_scales = s.kv_scales + (size_t)(batch * n_kv_heads * n_blocks) * sizeof(attention8_scales);
    s.bytes = s.q_scales + (size_t)(batch * n_heads * n_blocks) * sizeof(float);
    return s;
}

/* Splits that run side by side and meet in scratch; 1: one block walks them all. By shape alone, and in the bits there is
 * no difference: splits are the same positions and join in the same order either way. */
static inline int64_t paged_split_count(int64_t n_tokens, int64_t n_slots, int64_t capacity) {
    int64_t n = (capacity + PAGED_SPLIT - 1) / PAGED_SPLIT;
    bool alone = n_tokens <= n_slots && n_tokens * n <= PAGED_SPLITS_MOST;
    return n_tokens <= PAGED_SPLIT_ROWS || alone ? n : 1;
}

/* Of every (token, head, split): the weighted sum of values, the maximum and the sum of weights. */
static inline int64_t paged_partial_count(int64_t n_tokens, int64_t n_slots, int64_t n_heads, int64_t head_dim,
                                          int64_t capacity) {
    int64_t n = paged_split_count(n_tokens, n_slots, capacity);
    return n == 1 ? 0 : n_tokens * n_heads * n * (head_dim + 2);
}
