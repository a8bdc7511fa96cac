/* measure.c - what this machine can do, measured with the same kernels that train.
 *
 * Everything is the best of many short tries: a shared machine is often slower than it is and never faster, and a try of
 * a few milliseconds has a chance to be left alone. But a GPU that is kept busy is slower than at its best, because its
 * power is limited; what that leaves of its matrix units is measured too. The whole takes some fifteen seconds, of a GPU
 * thirty. The half_* of small products are not averages: four products (one large, one thin in each direction) give four
 * equations for rate and the three lengths. */
#include "exec/exec_state.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define LEAST_TRIES 4
#define USUAL_TRY_S 0.4
#define SETTLE_TRIES 3 /* try_s of constant work until the clock is what power leaves of it, and as long again */
#define COPY_BYTES ((size_t)64 << 20)
#define STREAM_BYTES ((size_t)1 << 30) /* of each array: beyond the caches of a large host, some of which have 300 MB */
#define VALUE_ALIGNMENT 256
#define DIGITS 4 /* of a number: more are noise */

/* Work that is large for one device is nothing for another. */
typedef struct work_sizes {
    int64_t peak_side;                      /* of a product that shows the peak */
    int64_t side, thin;                     /* a description is solved for the rate of infinite ones */
    int64_t batch, heads, length, head_dim; /* of attention */
    int64_t rows, row;                      /* elements that stay in the caches of cores */
    int64_t stream;                         /* fp32 elements beyond the caches */
    double flops;                           /* of one look at the clock */
} work_sizes;

static const work_sizes *sizes_for(const backend *b) {
    static const work_sizes cores = {1536, 1024, 128, 2,        8,  512,
                                     64,   512,  512, 16 << 20, 1e8}; /* half a second on two cores */
    static const work_sizes gpu = {8192, 8192, 512, 4, 16, 4096, 128, 0, 0, 128 << 20, 4e12};
    return b->discrete ? &gpu : &cores;
}

/* ---- one op with its operands, placed and filled ----------------------------------------------------------------- */

typedef struct operand { /* of no dimension: the op does without */
    dtype type;
    shape shape;
} operand;

/* Where measuring happens, and what one number may take, all its tries together. */
typedef struct bench {
    const backend *b;
    backend_context *c;
    const backend *host; /* whose memory copies come from and go to */
    backend_context *host_context;
    double try_s;
} bench;

typedef struct probe {
    const backend *b;
    backend_context *c;
    double try_s;
    program p;
    kernel_call call;
    void *memory;
    size_t n_bytes;
} probe;

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

static void probe_close(probe *r) {
    r->b->memory_close(r->c, TIER_DEVICE, r->memory, r->n_bytes);
    program_fini(&r->p);
}

static status probe_open(probe *r, const bench *m, op_kind kind, const op_attr *attr, const operand *in, int n_in,
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

static double try_once(probe *r, int times) {
    kernel_fn kernel = r->b->kernels[r->call.op->kind];
    uint64_t begin = clock_ns();
    for (int k = 0; k < times; k++) kernel(r->c, &r->call);
    r->b->synchronize(r->c);
    return (double)(clock_ns() - begin) * 1e-9 / times;
}

/* Seconds of one run of each: the best of as many tries as fit into try_s apiece, each of `times` runs in a row. They
 * take turns, so that other work on the machine disturbs all alike. */
static void probe_seconds_each(probe *r, int n, const int *times, double *best) {
    uint64_t start = clock_ns();
    for (int i = 0; i < n; i++) best[i] = INFINITY;
    for (int k = 0; k < LEAST_TRIES || (double)(clock_ns() - start) * 1e-9 < n * r->try_s; k++)
        for (int i = 0; i < n; i++) best[i] = fmin(best[i], try_once(&r[i], times[i]));
}

static double probe_seconds(probe *r, int times) {
    double best;
    probe_seconds_each(r, 1, &times, &best);
    return best;
}

/* ---- products, attention, elements ------------------------------------------------------------------------------- */

static status product_open(probe *r, const bench *m, dtype t, const int64_t s[3], int *times) {
    operand in[] = {{t, SHAPE(s[0], s[2])}, {t, SHAPE(s[1], s[2])}}, out[] = {{t, SHAPE(s[0], s[1])}};
    TRY(probe_open(r, m, OP_LINEAR, &(op_attr){0}, in, 2, out, 1));
    *times = (int)fmax(1, sizes_for(m->b)->flops /
                              op_flops(&r->p, r->call.op)); /* thin ones are over too soon for the clock */
    return OK;
}

/* What is left of a large product's best rate in a step, where power limits the device: three quarters of the time products,
 * the rest a pass over memory, first until the clock has settled. */
static status share_under_load(const bench *m, probe *product, int times, double best, double *share) {
    operand x = {DTYPE_F32, SHAPE(sizes_for(m->b)->stream)};
    probe pass;
    *share = 1;
    if (!m->b->discrete) return OK;
    TRY(probe_open(&pass, m, OP_ADD, &(op_attr){0}, (operand[]){x, x}, 2, (operand[]){x}, 1));
    int passes = (int)fmax(1, times * best / 3 / try_once(&pass, 1));
    double settle = SETTLE_TRIES * m->try_s, elapsed = 0, sum = 0;
    int n = 0;
    for (uint64_t begin = clock_ns(); elapsed < 2 * settle; elapsed = (double)(clock_ns() - begin) * 1e-9) {
        double seconds = try_once(product, times);
        try_once(&pass, passes);
        if (elapsed < settle) continue;
        sum += seconds;
        n++;
    }
    if (n > 0) *share = fmin(1, best / (sum / n));
    probe_close(&pass);
    return OK;
}

/* rate = R m/(m+hm) n/(n+hn) k/(k+hk): the large product and the thin ones, solved by going round. */
static void solve_halves(const work_sizes *w, const double rate[4], double *full, double half[3]) {
    double side = (double)w->side, thin = (double)w->thin;
    double large[3] = {0, 0, 0};
    *full = rate[0];
    for (int round = 0; round < 50; round++) {
        double all = 1;
        for (int d = 0; d < 3; d++) all *= 1 + large[d] / side;
        *full = rate[0] * all;
        for (int d = 0; d < 3; d++) {
            double others = all / (1 + large[d] / side);
            large[d] = fmin(fmax(thin * (*full / others / rate[1 + d] - 1), 0), 16 * thin);
        }
    }
    memcpy(half, large, sizeof large);
}

enum { N_SHAPES = 4 };

static status measure_product_set(const bench *m, dtype t, double rate[N_SHAPES], double *share) {
    int64_t side = sizes_for(m->b)->side, thin = sizes_for(m->b)->thin;
    const int64_t shapes[N_SHAPES][3] = {
        {side, side, side}, {thin, side, side}, {side, thin, side}, {side, side, thin}};
    status rc = OK;
    probe r[N_SHAPES];
    int times[N_SHAPES], n = 0;
    double best[N_SHAPES];
    for (; n < N_SHAPES; n++) TRY_GOTO(rc, product_open(&r[n], m, t, shapes[n], &times[n]), done);
    probe_seconds_each(r, N_SHAPES, times, best);
    for (int i = 0; i < N_SHAPES; i++) rate[i] = op_flops(&r[i].p, r[i].call.op) / best[i];
    rc = share_under_load(m, &r[0], times[0], best[0], share);
done:
    while (n > 0) probe_close(&r[--n]);
    return rc;
}

/* Large ones; smaller ones lose as much as those of other types do. Where there are none the rate stays 0. */
static void measure_products_fp8(const bench *m, hardware *h) {
    double side = (double)sizes_for(m->b)->side, share;
    operand x = {DTYPE_F8E4M3, SHAPE((int64_t)side, (int64_t)side)}, y = {DTYPE_BF16, x.shape},
            scale = {DTYPE_F32, SHAPE(1)};
    probe r;
    if (probe_open(&r, m, OP_LINEAR8, &(op_attr){0}, (operand[]){x, scale, x, scale}, 4, &y, 1) != OK) {
        error_clear();
        return;
    }
    int times = (int)fmax(1, sizes_for(m->b)->flops / op_flops(&r.p, r.call.op));
    double seconds = probe_seconds(&r, times);
    if (share_under_load(m, &r, times, seconds, &share) == OK) {
        h->matrix_fp8 = op_flops(&r.p, r.call.op) / seconds * share;
        for (int d = 0; d < 3; d++) h->matrix_fp8 *= 1 + h->half[d] / side;
    }
    error_clear();
    probe_close(&r);
}

/* And the share of each type's rate that is left under load. */
static status measure_products(const bench *m, hardware *h, double share[HARDWARE_DTYPES]) {
    double half[3], rate[N_SHAPES];
    for (int d = 0; d < 3; d++) h->half[d] = 0;
    for (dtype t = 0; t < HARDWARE_DTYPES; t++) {
        TRY(measure_product_set(m, t, rate, &share[t]));
        solve_halves(sizes_for(m->b), rate, &h->matrix[t], half);
        h->matrix[t] *= share[t];
        for (int d = 0; d < 3; d++) h->half[d] += half[d] / HARDWARE_DTYPES;
    }
    if (m->b->discrete) measure_products_fp8(m, h);
    return OK;
}

status exec_measure_peak(const backend *b, const backend_options *o, dtype t, double *flops_per_second) {
    backend_context *c;
    probe r;
    int times;
    int64_t side = sizes_for(b)->peak_side;
    TRY(b->open(&c, o));
    bench m = {.b = b, .c = c, .try_s = USUAL_TRY_S};
    status rc = product_open(&r, &m, t, (int64_t[]){side, side, side}, &times);
    if (rc == OK) {
        *flops_per_second = op_flops(&r.p, r.call.op) / probe_seconds(&r, times);
        probe_close(&r);
    }
    b->close(c);
    return rc;
}

/* Forward and backward together, as a step runs them, of rows of T tokens. */
static status attention_rate(const bench *m, dtype t, int64_t T, double *flops_per_second) {
    const work_sizes *w = sizes_for(m->b);
    int64_t N = w->batch * w->length, B = N / T, H = w->heads, D = w->head_dim;
    op_attr a = {.batch = B,
                 .seq_len = T,
                 .n_heads = (int)H,
                 .n_kv_heads = (int)H,
                 .head_dim = (int)D,
                 .scale = 1 / sqrtf((float)D)};
    operand qkv = {t, SHAPE(N, 3 * H * D)}, y = {t, SHAPE(N, H * D)}, doc = {DTYPE_I32, SHAPE(N)};
    operand lse = {DTYPE_F32, SHAPE(B, H, T)};
    probe r;
    TRY(probe_open(&r, m, OP_ATTENTION, &a, (operand[]){qkv, doc}, 2, (operand[]){y, lse}, 2));
    double flops = op_flops(&r.p, r.call.op), seconds = probe_seconds(&r, 1);
    probe_close(&r);
    TRY(probe_open(&r, m, OP_ATTENTION_BWD, &a, (operand[]){qkv, doc, y, lse, y}, 5, (operand[]){qkv}, 1));
    flops += op_flops(&r.p, r.call.op);
    seconds += probe_seconds(&r, 1);
    probe_close(&r);
    *flops_per_second = flops / seconds;
    return OK;
}

/* A GPU needs long rows to be busy: what a FLOP takes is a + b / length. Cores do not. Under load the same units have the
 * same clock as for products. */
static status measure_attention(const bench *m, hardware *h, const double share[HARDWARE_DTYPES]) {
    int64_t T = sizes_for(m->b)->length, shorter = m->b->discrete ? T / 4 : T;
    double half = 0;
    for (dtype t = 0; t < HARDWARE_DTYPES; t++) {
        double at_short, at_long, slope = 0;
        TRY(attention_rate(m, t, shorter, &at_short));
        at_long = at_short;
        if (shorter < T) {
            TRY(attention_rate(m, t, T, &at_long));
            slope = (1 / at_short - 1 / at_long) / (1.0 / (double)shorter - 1.0 / (double)T);
        }
        slope = fmin(fmax(slope, 0), 0.5 * (double)T / at_long); /* noise, and rows that are too short to tell */
        h->attention[t] = 1 / (1 / at_long - slope / (double)T);
        half += slope * h->attention[t] / HARDWARE_DTYPES;
        h->attention[t] *= share[t];
    }
    h->attention_half = half;
    return OK;
}

/* On cores SWIGLU and the norm's backward, on tensors that stay in the caches: arithmetic, not memory. */
static status measure_vector_of_cores(const bench *m, dtype t, double *flops_per_second) {
    enum { TIMES = 4 };
    int64_t N = sizes_for(m->b)->rows, F = sizes_for(m->b)->row, C = F;
    probe r;
    TRY(probe_open(&r, m, OP_SWIGLU, &(op_attr){0}, (operand[]){{t, SHAPE(N, 2 * F)}}, 1, (operand[]){{t, SHAPE(N, F)}},
                   1));
    double flops = op_flops(&r.p, r.call.op), seconds = probe_seconds(&r, TIMES);
    probe_close(&r);
    operand x = {t, SHAPE(N, C)}, gamma = {t, SHAPE(C)}, rstd = {DTYPE_F32, SHAPE(N)}, dgamma = {DTYPE_F32, SHAPE(C)};
    TRY(probe_open(&r, m, OP_RMSNORM_BWD, &(op_attr){.eps = 1e-6f}, (operand[]){x, gamma, rstd, x, x}, 5,
                   (operand[]){x, dgamma}, 2));
    flops += op_flops(&r.p, r.call.op);
    seconds += probe_seconds(&r, TIMES);
    probe_close(&r);
    *flops_per_second = flops / seconds;
    return OK;
}

/* A GPU's memory hides its arithmetic, and what its caches hold is done before the next kernel has started. So its rate is
 * what the op shows that computes most per byte: it may well be more, but no other op asks for as much. */
static status measure_vector(const bench *m, dtype t, double *flops_per_second) {
    if (!m->b->discrete) return measure_vector_of_cores(m, t, flops_per_second);
    operand x = {t, SHAPE(sizes_for(m->b)->stream)};
    probe r;
    TRY(probe_open(&r, m, OP_GELU, &(op_attr){0}, &x, 1, &x, 1));
    *flops_per_second = op_flops(&r.p, r.call.op) / probe_seconds(&r, 1);
    probe_close(&r);
    return OK;
}

static void no_task(void *context, int64_t task, int thread) {}

/* What an op costs beside its work: the call and, where kernels use the host's threads, waking them. */
static status measure_launch(const bench *m, hardware *h) {
    enum { TIMES = 1000 };
    operand x = {DTYPE_F32, SHAPE(16, 16)};
    probe r;
    TRY(probe_open(&r, m, OP_ADD, &(op_attr){0}, (operand[]){x, x}, 2, (operand[]){x}, 1));
    h->launch_s = probe_seconds(&r, TIMES);
    probe_close(&r);
    double wake = INFINITY;
    for (int i = 0; i < TIMES && h->unified; i++) {
        uint64_t begin = clock_ns();
        m->b->parallel(m->c, no_task, NULL, 2 * m->b->threads(m->c));
        wake = fmin(wake, (double)(clock_ns() - begin) * 1e-9);
    }
    if (h->unified) h->launch_s += wake;
    return OK;
}

/* What ops that sum over everything cost beside their work. Where kernels are the host's cores launch says it all. */
static status measure_sums(const bench *m, hardware *h) {
    enum { TIMES = 200, FEW = 2 * NORM_BLOCK };
    probe r;
    TRY(probe_open(&r, m, OP_GRAD_SUMSQ, &(op_attr){0}, (operand[]){{DTYPE_F32, SHAPE(FEW)}}, 1,
                   (operand[]){{DTYPE_F64, SHAPE(FEW / NORM_BLOCK)}}, 1));
    double seconds = probe_seconds(&r, TIMES);
    probe_close(&r);
    TRY(probe_open(&r, m, OP_BIAS_GRAD, &(op_attr){0}, (operand[]){{DTYPE_BF16, SHAPE(FEW, 64)}}, 1,
                   (operand[]){{DTYPE_F32, SHAPE(64)}}, 1));
    seconds += probe_seconds(&r, TIMES);
    probe_close(&r);
    h->sum_s = fmax(seconds / 2 - h->launch_s, 0);
    return OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static status measure_device_bandwidth(const bench *m, hardware *h) {
    operand x = {DTYPE_F32, SHAPE(sizes_for(m->b)->stream)};
    probe r;
    TRY(probe_open(&r, m, OP_ADD, &(op_attr){0}, (operand[]){x, x}, 2, (operand[]){x}, 1));
    h->device_bandwidth = op_bytes(&r.p, r.call.op) / probe_seconds(&r, 1);
    probe_close(&r);
    return OK;
}

/* How fast noise is made, where memory does not hide it: there is no telling how much faster it would be. */
static status measure_noise(const bench *m, hardware *h) {
    enum { MANY = 8 << 20 };
    const double hidden = 1.25;
    operand x = {DTYPE_BF16, SHAPE(MANY)}, scalars = {DTYPE_U8, SHAPE(sizeof(step_scalars))};
    probe r;
    TRY(probe_open(&r, m, OP_ACCUMULATE, &(op_attr){0}, (operand[]){x, scalars}, 2, (operand[]){x}, 1));
    step_scalars s = {.step = 1, .micro = 1};
    m->b->write(m->c, r.call.in[1], &s, sizeof s);
    double seconds = probe_seconds(&r, 4) - h->launch_s, memory = op_bytes(&r.p, r.call.op) / h->device_bandwidth;
    if (seconds > hidden * memory) h->noise_rate = MANY / seconds;
    probe_close(&r);
    return OK;
}

/* Seconds of AdamW of n parameters, gradients and states of one type. */
static status measure_adamw(const bench *m, dtype t, int64_t n, double *seconds) {
    operand p = {t, SHAPE(n)}, no_master = {.shape = {0}}, clip = {DTYPE_F32, SHAPE(CLIP_COUNT)};
    operand scalars = {DTYPE_U8, SHAPE(sizeof(step_scalars))};
    op_attr a = {.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f};
    probe r;
    TRY(probe_open(&r, m, OP_ADAMW, &a, (operand[]){p, clip, scalars}, 3, (operand[]){p, no_master, p, p}, 4));
    float no_clip[CLIP_COUNT] = {[CLIP_NORM] = 1, [CLIP_FACTOR] = 1};
    step_scalars s = {.lr = 1e-6f, .bias1 = 0.1f, .bias2 = 0.05f, .step = 1};
    m->b->write(m->c, r.call.in[1], no_clip, sizeof no_clip);
    m->b->write(m->c, r.call.in[2], &s, sizeof s);
    *seconds = probe_seconds(&r, 8);
    probe_close(&r);
    return OK;
}

/* The host's memory by an op that writes what it has read: other stores may first fetch what they overwrite, which those of
 * an update never do. */
static status host_stream_open(probe *r, const bench *m) {
    sys_info machine;
    sys_info_get(&machine);
    size_t most = MIN(STREAM_BYTES, (size_t)machine.memory_total / 64); /* a small machine has small caches */
    operand x = {DTYPE_F32, SHAPE((int64_t)(most / sizeof(float)))}, scalars = {DTYPE_U8, SHAPE(sizeof(step_scalars))};
    step_scalars s = {.step = 1, .micro = 1};
    TRY(probe_open(r, m, OP_ACCUMULATE, &(op_attr){0}, (operand[]){x, scalars}, 2, (operand[]){x}, 1));
    m->b->write(m->c, r->call.in[1], &s, sizeof s);
    return OK;
}

/* The host's own cores, whatever the device is. AdamW on what the caches hold: how memory limits it is known then. */
static status measure_host(const bench *m, hardware *h) {
    enum { NUMBERS = 3 }; /* that AdamW of bf16 rounds: parameter, m and v */
    probe r;
    TRY(host_stream_open(&r, m));
    h->host_bandwidth = op_bytes(&r.p, r.call.op) / probe_seconds(&r, 1);
    probe_close(&r);

    int64_t n = (int64_t)RNG_NOISE_BLOCK * m->b->threads(m->c);
    double plain, noisy;
    TRY(measure_adamw(m, DTYPE_F32, n, &plain));
    TRY(measure_adamw(m, DTYPE_BF16, n, &noisy));
    h->host_adamw = (double)n / plain;
    h->host_noise = NUMBERS * (double)n / noisy;
    return OK;
}

/* ---- copies between the tiers ------------------------------------------------------------------------------------ */

typedef struct copier {
    const backend *b;
    backend_context *c;
    const bench *bench;
    uint8_t *device, *host; /* two blocks each: one for either direction */
    size_t n_bytes;         /* of a block */
} copier;

static status copier_open(copier *k, const bench *m, size_t n_bytes) {
    const backend *b = m->b;
    void *device = NULL, *host = NULL;
    *k = (copier){.b = b, .c = m->c, .bench = m, .n_bytes = n_bytes};
    TRY(b->memory_open(m->c, TIER_DEVICE, 2 * n_bytes, &device));
    k->device = device;
    TRY(m->host->memory_open(m->host_context, TIER_HOST, 2 * n_bytes, &host));
    k->host = host;
    if (b->pin) TRY(b->pin(m->c, host, 2 * n_bytes));
    return OK;
}

/* Also what was opened in part. */
static void copier_close(copier *k) {
    const bench *m = k->bench;
    if (k->host && k->b->unpin) k->b->unpin(k->c, k->host);
    if (k->host) m->host->memory_close(m->host_context, TIER_HOST, k->host, 2 * k->n_bytes);
    if (k->device) k->b->memory_close(k->c, TIER_DEVICE, k->device, 2 * k->n_bytes);
}

static void *copy_up(void *context) {
    const copier *k = context;
    k->b->write(k->c, k->device, k->host, k->n_bytes);
    return NULL;
}

static void *copy_down(void *context) {
    const copier *k = context;
    k->b->read(k->c, k->host + k->n_bytes, k->device + k->n_bytes, k->n_bytes);
    return NULL;
}

static status copy_on_threads(copier *k, bool up, bool down) {
    pthread_t other;
    if (up && down && pthread_create(&other, NULL, copy_down, k) != 0)
        return ERR(ERR_RUN, "cannot start a thread to measure copies both ways");
    if (up) copy_up(k);
    else copy_down(k);
    if (up && down) pthread_join(other, NULL);
    return OK;
}

static void copies_start(const copier *k, bool up, bool down) {
    const backend_queues *q = k->b->queues;
    q->select(k->c, STREAM_H2D);
    if (up) q->copy(k->c, k->device, k->host, k->n_bytes);
    q->select(k->c, STREAM_D2H);
    if (down) q->copy(k->c, k->host + k->n_bytes, k->device + k->n_bytes, k->n_bytes);
    q->select(k->c, STREAM_COMPUTE);
}

static status copy_on_queues(const copier *k, bool up, bool down) {
    copies_start(k, up, down);
    return k->b->synchronize(k->c);
}

static status copy_once(copier *k, bool up, bool down, double *best) {
    uint64_t begin = clock_ns();
    TRY(k->b->queues ? copy_on_queues(k, up, down) : copy_on_threads(k, up, down));
    *best = fmin(*best, (double)(clock_ns() - begin) * 1e-9);
    return OK;
}

static status measure_copies(const bench *m, hardware *h) {
    status rc;
    copier k;
    TRY_GOTO(rc, copier_open(&k, m, COPY_BYTES), done);
    double up = INFINITY, down = INFINITY, both = INFINITY;
    uint64_t start = clock_ns();
    for (int i = 0; i < LEAST_TRIES || (double)(clock_ns() - start) * 1e-9 < 2 * m->try_s; i++) {
        TRY_GOTO(rc, copy_once(&k, true, false, &up), done);
        TRY_GOTO(rc, copy_once(&k, false, true, &down), done);
        TRY_GOTO(rc, copy_once(&k, true, true, &both), done);
    }
    h->copy_to_device = COPY_BYTES / up;
    h->copy_to_host = COPY_BYTES / down;
    h->copy_both = fmin(2 * COPY_BYTES / both, h->copy_to_device + h->copy_to_host);
done:
    copier_close(&k);
    return rc;
}

/* What the host's memory does for its cores and for copies both ways at the same time: as many copies as last a little longer
 * than the cores' one pass, of blocks that no cache holds. */
static status measure_host_beside_copies(const bench *m, const bench *host, hardware *h) {
    status rc;
    copier k;
    probe r;
    TRY(host_stream_open(&r, host));
    double n_bytes = op_bytes(&r.p, r.call.op);
    int n = (int)ceil(1.5 * n_bytes / h->host_bandwidth * h->copy_both / (2.0 * STREAM_BYTES / 4));
    TRY_GOTO(rc, copier_open(&k, m, STREAM_BYTES / 4), done);
    uint64_t start = clock_ns();
    for (int i = 0; i < LEAST_TRIES || (double)(clock_ns() - start) * 1e-9 < m->try_s; i++) {
        uint64_t begin = clock_ns();
        for (int c = 0; c < n; c++) copies_start(&k, true, true);
        double cores = n_bytes / try_once(&r, 1);
        TRY_GOTO(rc, m->b->synchronize(m->c), done);
        double copies = n * 2.0 * (double)k.n_bytes / ((double)(clock_ns() - begin) * 1e-9);
        h->host_total = fmax(h->host_total, cores + copies);
    }
done:
    copier_close(&k);
    probe_close(&r);
    return rc;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void say_part(const measure_options *o, const char *part) {
    if (o->on_part) o->on_part(part);
}

status exec_measure(const backend *b, const measure_options *o, hardware *out) {
    status rc;
    sys_info machine;
    hardware h = {.devices_per_node = 1};
    double share[HARDWARE_DTYPES];
    bench device = {.b = b, .try_s = o->try_s > 0 ? o->try_s : USUAL_TRY_S}, host = device, *m = &device;
    bool direct = false;
    say_part(o, "disk");
    TRY(measure_disk(o->disk_path, &h, &direct)); /* first: it is what may be refused */
    sys_info_get(&machine);
    backend_options threads = {.n_threads = o->n_threads, .bind = o->bind, .gpu = o->gpu};
    host.b = backend_cpu();
    TRY(host.b->open(&host.c, &threads));
    TRY_GOTO(rc, b->open(&device.c, &threads), done);
    device.host = host.b;
    device.host_context = host.c;
    h.unified = b == host.b; /* its device is the host's memory and its kernels are the host's cores */
    h.overlap = !h.unified;
    h.device_bytes = h.host_bytes = machine.memory_total;
    hardware_machine_name(h.name, &machine, host.b->threads(host.c));
    if (b->describe) {
        device_info info;
        TRY_GOTO(rc, b->describe(o->gpu.index, &info), done);
        h.device_bytes = info.memory;
        snprintf(h.name, sizeof h.name, "%s", info.name);
    }
    say_part(o, "products");
    TRY_GOTO(rc, measure_launch(m, &h), done);
    if (!h.unified) TRY_GOTO(rc, measure_sums(m, &h), done);
    TRY_GOTO(rc, measure_products(m, &h, share), done);
    say_part(o, "attention");
    TRY_GOTO(rc, measure_attention(m, &h, share), done);
    say_part(o, "elements");
    for (dtype t = 0; t < HARDWARE_DTYPES; t++) TRY_GOTO(rc, measure_vector(m, t, &h.vector[t]), done);
    TRY_GOTO(rc, measure_device_bandwidth(m, &h), done);
    if (!h.unified) TRY_GOTO(rc, measure_noise(m, &h), done);
    say_part(o, "copies");
    TRY_GOTO(rc, measure_copies(m, &h), done);
    say_part(o, "host");
    TRY_GOTO(rc, measure_host(&host, &h), done);
    if (b->queues) TRY_GOTO(rc, measure_host_beside_copies(m, &host, &h), done);
    snprintf(h.source, sizeof h.source, "measured by ralo devices --measure; disk of %.100s%s", o->disk_path,
             direct ? "" : " through the page cache (O_DIRECT refused)");
    hardware_round(&h, DIGITS);
    h.copy_both = fmin(h.copy_both, h.copy_to_device + h.copy_to_host);
    *out = h;
done:
    if (device.c) b->close(device.c);
    host.b->close(host.c);
    return rc;
}
