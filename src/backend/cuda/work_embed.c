/* work_embed.c - scratch of the scatter into a table. */
#include "backend/cuda/work.h"

#include "backend/cuda/scatter_sort.h"

size_t cuda_embed_work_bytes(const program *p, const op *o) {
    return scatter_work_bytes(shape_count(&program_get(p, o->in[0])->shape));
}
