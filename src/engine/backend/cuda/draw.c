/* draw.c - DRAW_TOKENS. Rows that op.rows leaves out are drawn too, from whatever they hold. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_draw.h"

void cuda_kernel_DRAW_TOKENS(backend_context *c, const kernel_call *k) {
    const shape *s = &call_in(k, DRAW_TOKENS_LOGITS)->shape;
    draw_rows r = {.logits = k->in[DRAW_TOKENS_LOGITS],
                   .draws = k->in[DRAW_TOKENS_DRAWS],
                   .drawn = k->out[DRAW_TOKENS_DRAWN],
                   .parts = k->work,
                   .n_rows = s->dim[0],
                   .n_vocab = (int32_t)s->dim[1]};
    launch_draw_tokens(c->stream, &r);
}
