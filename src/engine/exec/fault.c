/* fault.c - find where the first NaN or infinity came from.
 *
 * Called after a loss that is not finite, when speed no longer matters: the section runs again op by op and every float
 * output is scanned after its op. Values that this section does not write (parameters, inputs, states) are scanned
 * before the first op that reads them, so a broken parameter is named itself and not the op that read it. Scratch is
 * never scanned: it may hold anything.
 *
 * On many ranks it runs to its end, whatever was found: the others would wait for its messages.
 *
 * The section really runs again, so outputs that are updated in place (sums, accumulated gradients) count it twice:
 * the caller ends the run afterwards. */
#include "exec/exec_state.h"

#include <stdlib.h>

enum { SCAN_BYTES = 32 << 10, TASK_CHUNKS = 8 };

typedef struct scan {
    exec *e;
    value_id value;
    dtype type;
    size_t element_bytes;
    int64_t n_elements;
    _Atomic int64_t first; /* lowest element that is not finite; n_elements: none so far */
} scan;

/* Not finite means: all exponent bits set. */
static int64_t find_nonfinite(const void *data, dtype type, int64_t n) {
    switch (type) {
    case DTYPE_F32:
        for (int64_t i = 0; i < n; i++)
            if ((((const uint32_t *)data)[i] & 0x7f800000u) == 0x7f800000u) return i;
        break;
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++)
            if ((((const uint16_t *)data)[i] & 0x7f80u) == 0x7f80u) return i;
        break;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++)
            if ((((const uint16_t *)data)[i] & 0x7c00u) == 0x7c00u) return i;
        break;
    case DTYPE_F64:
        for (int64_t i = 0; i < n; i++)
            if ((((const uint64_t *)data)[i] & 0x7ff0000000000000u) == 0x7ff0000000000000u) return i;
        break;
    default: break; /* integers; a number of 8 bits has its NaN from the one it was made of */
    }
    return n;
}

static void scan_task(void *context, int64_t task, int thread) {
    scan *s = context;
    _Alignas(8) uint8_t chunk[SCAN_BYTES];
    int64_t per_chunk = (int64_t)(SCAN_BYTES / s->element_bytes), at = task * TASK_CHUNKS * per_chunk;
    int64_t end = MIN(at + TASK_CHUNKS * per_chunk, s->n_elements);
    for (; at < end && at < atomic_load_explicit(&s->first, memory_order_relaxed); at += per_chunk) {
        int64_t n = MIN(per_chunk, end - at);
        exec_read(s->e, s->value, (size_t)at * s->element_bytes, chunk, (size_t)n * s->element_bytes);
        int64_t found = find_nonfinite(chunk, s->type, n);
        if (found == n) continue;
        int64_t element = at + found, seen = atomic_load(&s->first);
        while (element < seen && !atomic_compare_exchange_weak(&s->first, &seen, element)) {}
        return;
    }
}

static bool scan_value(exec *e, value_id id, size_t op_index, exec_fault *out) {
    const value *v = program_get(e->program, id);
    if (!dtype_is_float(v->type)) return false;
    scan s = {.e = e, .value = id, .type = v->type, .element_bytes = dtype_bytes(v->type)};
    s.n_elements = shape_count(&v->shape);
    atomic_init(&s.first, s.n_elements);
    int64_t per_task = (int64_t)(SCAN_BYTES / s.element_bytes) * TASK_CHUNKS;
    exec_parallel(e, scan_task, &s, divide_up(s.n_elements, per_task));
    int64_t element = atomic_load(&s.first);
    if (element == s.n_elements) return false;

    union {
        uint16_t h;
        float f;
        double d;
    } bits;
    exec_read(e, id, (size_t)element * s.element_bytes, &bits, s.element_bytes);
    float number = v->type == DTYPE_F64    ? (float)bits.d
                   : v->type == DTYPE_BF16 ? bf16_to_f32(bits.h)
                   : v->type == DTYPE_F16  ? f16_to_f32(bits.h)
                                           : bits.f;
    *out = (exec_fault){
        .found = true, .op_index = op_index, .value = id, .element = element, .number = number, .seen_ns = clock_ns()};
    return true;
}

void exec_find_fault(exec *e, section s, exec_fault *out) {
    const program *p = e->program;
    bool *known = mem_alloc(p->n_values * sizeof *known); /* scanned, or written in this section */
    *out = (exec_fault){0};
    for (size_t i = e->first_op[s]; i < e->end_op[s] && (e->comm || !out->found); i++) {
        const op *o = &p->ops[i];
        bool look = !op_is_comm(o->kind); /* buckets have unwritten padding; the sending rank finds its own fault */
        for (int k = 0; k < op_input_count(o->kind) && look && !out->found; k++) {
            if (!o->in[k] || known[o->in[k]]) continue;
            known[o->in[k]] = true;
            scan_value(e, o->in[k], i, out);
        }
        exec_run_op(e, i);
        exec_note_failure(e, e->backend->synchronize(e->context));
        for (int k = 0; k < op_output_count(o->kind) && look && !out->found; k++) {
            if (!o->out[k]) continue;
            known[o->out[k]] = true;
            scan_value(e, o->out[k], i, out);
        }
    }
    free(known);
}
