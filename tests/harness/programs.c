/* programs.c - see programs.h. */
#include "programs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

size_t ragged_work(const program *p, const op *o, int n_threads) {
    return (size_t)n_threads * (64 + 37 * (size_t)o->kind) + (size_t)(op_flops(p, o) > 1e5 ? 5000 : 0);
}

void plan_must(plan *p, const plan_request *r) {
    if (plan_build(p, r) != OK) fail_msg("%s", error_message());
}

float *value_read_f32(exec *e, const program *p, value_id v) {
    const value *a = program_get(p, v);
    size_t n = (size_t)shape_count(&a->shape), width = dtype_bytes(a->type);
    void *raw = mem_alloc(n * width);
    float *out = mem_alloc(n * sizeof *out);
    exec_read(e, v, 0, raw, n * width);
    tensor_convert(out, DTYPE_F32, raw, a->type, n);
    free(raw);
    return out;
}
