/* dequantize.c - the C side of dequantize.cu. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/dequantize.h"

_Static_assert((int)LAUNCH_NF4_BLOCK == (int)NF4_BLOCK && (int)LAUNCH_NF4_SCALE_BLOCK == (int)NF4_SCALE_BLOCK,
               "blocks as the quantiser has them");

launch_codes dequantize_codes(base_format f) {
    ASSERT(f == BASE_FP8 || f == BASE_INT8 || f == BASE_NF4);
    return f == BASE_FP8 ? LAUNCH_CODES_FP8 : f == BASE_INT8 ? LAUNCH_CODES_INT8 : LAUNCH_CODES_NF4;
}

launch_nf4_tables dequantize_tables(void) {
    launch_nf4_tables tables;
    memcpy(tables.nf4, NF4_VALUES, sizeof tables.nf4);
    memcpy(tables.dynamic, DYNAMIC_VALUES, sizeof tables.dynamic);
    return tables;
}

void cuda_kernel_DEQUANTIZE(backend_context *c, const kernel_call *k) { /* w = */
    const value *w = call_out(k, DEQUANTIZE_W);
    base_format f = k->op->attr.base_format;
    launch_dequantize_args a = {.w = k->out[DEQUANTIZE_W],
                                .codes = k->in[DEQUANTIZE_CODES],
                                .scale_codes = k->in[DEQUANTIZE_SCALE_CODES],
                                .scale = k->in[DEQUANTIZE_SCALE],
                                .offset = k->in[DEQUANTIZE_OFFSET],
                                .n_out = w->shape.dim[0],
                                .n_in = w->shape.dim[1]};
    ASSERT(f != BASE_NF4 || (a.scale_codes && a.offset));
    const launch_nf4_tables tables = dequantize_tables();
    launch_dequantize(c->stream, launch_type_of(w->type), dequantize_codes(f), &a, &tables);
}
