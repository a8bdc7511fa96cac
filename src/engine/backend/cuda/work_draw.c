/* work_draw.c - scratch of DRAW_TOKENS: what every part of a row of logits found. */
#include "backend/cuda/draw_sizes.h"
#include "backend/cuda/work.h"

static size_t draw_bytes(const program *p, const op *o) {
    const shape *logits = &program_get(p, o->in[DRAW_TOKENS_LOGITS])->shape;
    return draw_work_bytes(logits->dim[0], logits->dim[1]);
}
const cuda_work cuda_work_DRAW_TOKENS = {draw_bytes, NO_PRODUCTS};
