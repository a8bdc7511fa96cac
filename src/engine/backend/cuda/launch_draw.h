#pragma once
/* launch_draw.h - the next token of rows of fp32 logits. */
#include "backend/cuda/draw_sizes.h"
#include "backend/cuda/launch.h"
#include "program/draw.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct draw_rows {
    const float *logits; /* n_rows rows of n_vocab behind each other */
    const double *draws; /* (n_rows, DRAW_COUNT) */
    double *drawn;       /* (n_rows, DRAWN_COUNT) */
    draw_part *parts;    /* draw_work_bytes */
    int64_t n_rows;
    int32_t n_vocab;
} draw_rows;
void launch_draw_tokens(cudaStream_t stream, const draw_rows *r);

#ifdef __cplusplus
}
#endif
