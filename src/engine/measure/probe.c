/* probe.c - one op with its operands, placed and filled, and how long it takes. */
#include "measure/probe.h"

#include <math.h>
#include <stdlib.h>

#define VALUE_ALIGNMENT 256

static size_t aligned(size_t n) { return align_up(n, VALUE_ALIGNMENT); }

/* Numbers of ordinary size: kernels may be faster on zeros and draw less power, slower on what is not finite. AdamW's are
 * positive, because squares are. */
static void fill(probe *r, const operand *o, uint8_t *at) {
    enum { BLOCK = 1 << 16 };
    float *noise = mem_alloc(BLOCK * sizeof *noise);
    /* What is no float stays zero: token 0, one document; and so do partial sums. */
    char *rounded = mem_alloc(BLOCK * sizeof(double));
    size_t n = (size_t)shape_count(&o->shape), width = dtype_bytes(o->type);
    rng_normal_fill(1, 0, noise, BLOCK, 0, 0.1f);
    if (r->call.op->kind == OP_ADAMW)
        for (size_t i = 0; i < BLOCK; i++) noise[i] = fabsf(noise[i]) + 1e-3f;
    for (size_t i = 0; i < BLOCK && dtype_is_float(o->type) && o->type != DTYPE_F64; i++)
        tensor_set_f32(rounded, o->type, i, noise[i]);
    for (size_t i = 0; i < n; i += BLOCK) r->b->write(r->c, at + i * width, rounded, MIN(n - i, BLOCK) * width);
    free(noise);
    free(rounded);
}

static void note(probe *r, status rc) {
    if (rc == OK || r->failed != OK) return;
    r->failed = rc;
    error_take(&r->failure);
}

status probe_close(probe *r) {
    r->b->memory_close(r->c, TIER_DEVICE, r->memory, r->n_bytes);
    program_fini(&r->p);
    return r->failed == OK ? OK : error_give(&r->failure);
}

status probe_open(probe *r, const bench *m, op_kind kind, const op_attr *attr, const operand *in, int n_in,
                  const operand *out, int n_out) {
    const backend *b = m->b;
    backend_context *c = m->c;
    *r = (probe){.b = b, .c = c, .try_s = m->try_s};
    program_init(&r->p);
    op *o = program_emit(&r->p, kind, SECTION_MICRO);
    o->attr = *attr;
    size_t at[OP_MAX_IN + OP_MAX_OUT] = {0};
    char name[32];
    for (int i = 0; i < n_in + n_out; i++) {
        const operand *x = i < n_in ? &in[i] : &out[i - n_in];
        if (x->shape.rank == 0) continue;
        snprintf(name, sizeof name, "operand.%d", i);
        value_id v = program_persistent(&r->p, name, x->type, x->shape, ROLE_INPUT);
        if (i < n_in) op_in(&r->p.ops[0], i, v);
        else op_out(&r->p.ops[0], i - n_in, v);
        at[i] = r->n_bytes;
        r->n_bytes += aligned(shape_bytes(&x->shape, x->type));
    }
    size_t work_at = r->n_bytes;
    r->n_bytes += b->work_bytes ? b->work_bytes(&r->p, &r->p.ops[0], b->threads ? b->threads(c) : 1) : 0;
    status rc = b->memory_open(c, TIER_DEVICE, r->n_bytes, &r->memory);
    if (rc != OK) {
        program_fini(&r->p);
        return rc;
    }
    uint8_t *base = r->memory;
    r->call = (kernel_call){.program = &r->p, .op = &r->p.ops[0], .work = base + work_at};
    for (int i = 0; i < n_in; i++)
        if (in[i].shape.rank > 0) fill(r, &in[i], r->call.in[i] = base + at[i]);
    for (int i = 0; i < n_out; i++)
        if (out[i].shape.rank > 0) fill(r, &out[i], r->call.out[i] = base + at[n_in + i]);
    rc = b->prepare ? b->prepare(c, &r->call) : OK;
    if (rc != OK) probe_close(r);
    return rc;
}

double probe_try(probe *r, int times) {
    kernel_fn kernel = r->b->kernels[r->call.op->kind];
    double begin = clock_s();
    for (int k = 0; k < times; k++) kernel(r->c, &r->call);
    note(r, r->b->synchronize(r->c));
    return (clock_s() - begin) / times;
}

void probe_seconds_each(probe *r, int n, const int *times, double *best) {
    double start = clock_s();
    for (int i = 0; i < n; i++) best[i] = INFINITY;
    for (int k = 0; k < LEAST_TRIES || clock_s() - start < n * r->try_s; k++)
        for (int i = 0; i < n; i++) best[i] = fmin(best[i], probe_try(&r[i], times[i]));
}

double probe_seconds(probe *r, int times) {
    double best;
    probe_seconds_each(r, 1, &times, &best);
    return best;
}

/* Of the tries from `settle_s` on, one at least before. */
static double mean_seconds(probe *r, int times, double settle_s) {
    int n = 0;
    double sum = 0, start = clock_s();
    do probe_try(r, times);
    while (clock_s() - start < settle_s);
    for (start = clock_s(); n < LEAST_TRIES || clock_s() - start < r->try_s - settle_s; n++) sum += probe_try(r, times);
    return sum / n;
}

double probe_mean_seconds(probe *r, int times) { return mean_seconds(r, times, 0); }
double probe_settled_seconds(probe *r, int times) { return mean_seconds(r, times, r->try_s / 2); }
