/* work_embed.c - scratch of the scatter into a table. */
#include "backend/cuda/work.h"

#include "backend/cuda/scatter_sort.h"

SAME_PLACE(EMBED_BWD_TOKENS, EMBED_BWD_ADD_TOKENS, POSITION_BWD_DOC_START);

static size_t scatter_bytes(const program *p, const op *o) {
    return scatter_work_bytes(shape_count(&program_get(p, o->in[EMBED_BWD_TOKENS])->shape));
}

const cuda_work cuda_work_EMBED_BWD = {scatter_bytes, NO_PRODUCTS};
const cuda_work cuda_work_EMBED_BWD_ADD = {scatter_bytes, NO_PRODUCTS};
const cuda_work cuda_work_POSITION_BWD = {scatter_bytes, NO_PRODUCTS};
