#pragma once
/* draw_sizes.h - the scratch of DRAW_TOKENS: one draw_part per row and part of the vocabulary; read by the plan and by the kernels. */
#include <stddef.h>
#include <stdint.h>

enum { DRAW_THREADS = 256, DRAW_EACH = 16, DRAW_PART = DRAW_THREADS * DRAW_EACH }; /* logits of a part */

typedef struct draw_part {
    float max;
    int32_t argmax;
    float sum;      /* of exp(logit - max) */
    float tempered; /* of exp((logit - max) / temperature) */
} draw_part;

static inline int64_t draw_part_count(int64_t n_vocab) { return (n_vocab + DRAW_PART - 1) / DRAW_PART; }
static inline size_t draw_work_bytes(int64_t n_rows, int64_t n_vocab) {
    return (size_t)(n_rows * draw_part_count(n_vocab)) * sizeof(draw_part);
}
