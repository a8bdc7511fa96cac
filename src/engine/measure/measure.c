/* measure.c - what this machine can do, measured with the same kernels that train.
 *
 * Everything is the best of many short tries: a shared machine is often slower than it is and never faster, and a try of
 * a few milliseconds has a chance to be left alone. The host's memory is the exception: a pass over it takes long
 * enough to meet whatever disturbs it, as an update does, so its rates are means. And a GPU that is kept busy is slower than at its best, because its
 * power is limited; what that leaves of its matrix units is measured too. The whole takes some fifteen seconds, of a GPU
 * forty. The half_* of small products are not averages: four products (one large, one thin in each direction) give four
 * equations for rate and the three lengths. */
#include "measure/probe.h"

#include <math.h>
#include <string.h>

#define USUAL_TRY_S 0.4
#define SETTLE_TRIES 3 /* try_s of constant work until the clock is what power leaves of it, and as long again */
#define DIGITS 4       /* digits of a number: more are noise */

/* Work that is large for one device is small for another. */
typedef struct work_sizes {
    int64_t peak_side;                      /* of a product that shows the peak, on four cores */
    int64_t side, thin;                     /* a description is solved for the rate of infinite ones */
    int64_t batch, heads, length, head_dim; /* of attention */
    int64_t rows, row;                      /* elements that stay in the caches of cores */
    int64_t stream;                         /* fp32 elements beyond the caches */
    double flops;                           /* of one look at the clock */
} work_sizes;

static const work_sizes *sizes_for(const backend *b) {
    static const work_sizes cores = {.peak_side = 768,
                                     .side = 1024,
                                     .thin = 128,
                                     .batch = 2,
                                     .heads = 8,
                                     .length = 512,
                                     .head_dim = 64,
                                     .rows = 512,
                                     .row = 512,
                                     .stream = 16 << 20,
                                     .flops = 1e8};
    static const work_sizes gpu = {.peak_side = 8192,
                                   .side = 8192,
                                   .thin = 512,
                                   .batch = 4,
                                   .heads = 16,
                                   .length = 4096,
                                   .head_dim = 128,
                                   .stream = 128 << 20,
                                   .flops = 4e12};
    return b->discrete ? &gpu : &cores;
}

/* ---- products, attention, elements ------------------------------------------------------------------------------- */

static status product_open(probe *r, const bench *m, dtype t, const int64_t s[3], int *times) {
    operand in[] = {{t, SHAPE(s[0], s[2])}, {t, SHAPE(s[1], s[2])}}, out[] = {{t, SHAPE(s[0], s[1])}};
    TRY(probe_open(r, m, OP_LINEAR, &(op_attr){0}, in, 2, out, 1));
    *times = (int)fmax(1, sizes_for(m->b)->flops /
                              op_flops(&r->p, r->call.op)); /* thin ones are over too soon for the clock */
    return OK;
}

/* The share of a large product's best rate that is left in a step, if power limits the device: three quarters of the
 * time products, the rest a pass over memory, first until the clock is stable. */
static status share_under_load(const bench *m, probe *product, int times, double best, double *share) {
    operand x = {DTYPE_F32, SHAPE(sizes_for(m->b)->stream)};
    probe pass;
    *share = 1;
    if (!m->b->discrete) return OK;
    TRY(probe_open(&pass, m, OP_ADD, &(op_attr){0}, (operand[]){x, x}, 2, (operand[]){x}, 1));
    int passes = (int)fmax(1, times * best / 3 / probe_try(&pass, 1));
    double settle = SETTLE_TRIES * m->try_s, elapsed = 0, sum = 0;
    int n = 0;
    for (double begin = clock_s(); elapsed < 2 * settle; elapsed = clock_s() - begin) {
        double seconds = probe_try(product, times);
        probe_try(&pass, passes);
        if (elapsed < settle) continue;
        sum += seconds;
        n++;
    }
    if (n > 0) *share = fmin(1, best / (sum / n));
    return probe_close(&pass);
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
    while (n > 0) {
        status tried = probe_close(&r[--n]);
        if (rc == OK) rc = tried;
    }
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
    if (probe_close(&r) != OK) h->matrix_fp8 = 0;
    error_clear();
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

/* More cores show their peak in a larger product: each is to have some milliseconds of it. */
static int64_t peak_side(const backend *b, const backend_context *c) {
    int64_t side = sizes_for(b)->peak_side;
    for (int64_t n = b->threads ? b->threads(c) : 1; n > 4; n /= 8) side *= 2;
    return side;
}

status measure_peak(const backend *b, const backend_options *o, dtype t, double most_s, double *flops_per_second) {
    backend_context *c;
    probe r;
    int times;
    TRY(b->open(&c, o));
    bench m = {.b = b, .c = c, .try_s = fmin(USUAL_TRY_S, most_s)};
    int64_t side = peak_side(b, c);
    status rc = product_open(&r, &m, t, (int64_t[]){side, side, side}, &times);
    if (rc == OK) {
        /* A device is limited by its power in a step; share_under_load takes seconds, too long for the start of a run. */
        double seconds = b->discrete ? probe_settled_seconds(&r, times) : probe_seconds(&r, times);
        *flops_per_second = op_flops(&r.p, r.call.op) / seconds;
        rc = probe_close(&r);
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
    operand qkv = {t, SHAPE(N, 3 * H * D)}, y = {t, SHAPE(N, H * D)}, doc_start = {DTYPE_I32, SHAPE(N)};
    operand lse = {DTYPE_F32, SHAPE(B, H, T)};
    probe r;
    TRY(probe_open(&r, m, OP_ATTENTION, &a, (operand[]){qkv, doc_start}, 2, (operand[]){y, lse}, 2));
    double flops = op_flops(&r.p, r.call.op), seconds = probe_seconds(&r, 1);
    TRY(probe_close(&r));
    TRY(probe_open(&r, m, OP_ATTENTION_BWD, &a, (operand[]){qkv, doc_start, y, lse, y}, 5, (operand[]){qkv}, 1));
    flops += op_flops(&r.p, r.call.op);
    seconds += probe_seconds(&r, 1);
    TRY(probe_close(&r));
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
    TRY(probe_close(&r));
    operand x = {t, SHAPE(N, C)}, gamma = {t, SHAPE(C)}, rstd = {DTYPE_F32, SHAPE(N)}, dgamma = {DTYPE_F32, SHAPE(C)};
    TRY(probe_open(&r, m, OP_RMSNORM_BWD, &(op_attr){.eps = 1e-6f}, (operand[]){x, gamma, rstd, x, x}, 5,
                   (operand[]){x, dgamma}, 2));
    flops += op_flops(&r.p, r.call.op);
    seconds += probe_seconds(&r, TIMES);
    TRY(probe_close(&r));
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
    return probe_close(&r);
}

static void no_task(void *context, int64_t task, int thread) {}

/* What an op costs beside its work: the call and, where kernels use the host's threads, waking them. */
static status measure_launch(const bench *m, hardware *h) {
    enum { TIMES = 1000 };
    operand x = {DTYPE_F32, SHAPE(16, 16)};
    probe r;
    TRY(probe_open(&r, m, OP_ADD, &(op_attr){0}, (operand[]){x, x}, 2, (operand[]){x}, 1));
    h->launch_s = probe_seconds(&r, TIMES);
    TRY(probe_close(&r));
    double wake = INFINITY;
    for (int i = 0; i < TIMES && h->unified; i++) {
        double begin = clock_s();
        m->b->parallel(m->c, no_task, NULL, 2 * m->b->threads(m->c));
        wake = fmin(wake, clock_s() - begin);
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
    TRY(probe_close(&r));
    TRY(probe_open(&r, m, OP_BIAS_GRAD, &(op_attr){0}, (operand[]){{DTYPE_BF16, SHAPE(FEW, 64)}}, 1,
                   (operand[]){{DTYPE_F32, SHAPE(64)}}, 1));
    seconds += probe_seconds(&r, TIMES);
    TRY(probe_close(&r));
    h->sum_s = fmax(seconds / 2 - h->launch_s, 0);
    return OK;
}

/* ---- the device's memory ----------------------------------------------------------------------------------------- */

static status measure_device_bandwidth(const bench *m, hardware *h) {
    operand x = {DTYPE_F32, SHAPE(sizes_for(m->b)->stream)};
    probe r;
    TRY(probe_open(&r, m, OP_ADD, &(op_attr){0}, (operand[]){x, x}, 2, (operand[]){x}, 1));
    h->device_bandwidth = op_bytes(&r.p, r.call.op) / probe_seconds(&r, 1);
    return probe_close(&r);
}

/* How fast noise is made, where memory does not hide it: there is no telling how much faster it would be. */
static status measure_noise(const bench *m, hardware *h) {
    enum { MANY = 8 << 20 };
    const double hidden = 1.25;
    operand x = {DTYPE_BF16, SHAPE(MANY)}, scalars = {DTYPE_U8, SHAPE(sizeof(step_scalars))};
    probe r;
    TRY(probe_open(&r, m, OP_ACCUMULATE, &(op_attr){0}, (operand[]){x, scalars}, 2, (operand[]){x}, 1));
    step_scalars s = {.step = 1, .micro = 1};
    m->b->write(m->c, r.call.in[ACCUMULATE_SCALARS], &s, sizeof s);
    double seconds = probe_seconds(&r, 4) - h->launch_s, memory = op_bytes(&r.p, r.call.op) / h->device_bandwidth;
    if (seconds > hidden * memory) h->noise_rate = MANY / seconds;
    return probe_close(&r);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void print_part(const measure_options *o, const char *part) {
    if (o->on_part) o->on_part(o->context, part);
}

/* What kernels of the device reach. */
static status measure_device(const bench *m, const measure_options *o, hardware *h) {
    double share[HARDWARE_DTYPES];
    print_part(o, "products");
    TRY(measure_launch(m, h));
    if (!h->unified) TRY(measure_sums(m, h));
    TRY(measure_products(m, h, share));
    print_part(o, "attention");
    TRY(measure_attention(m, h, share));
    print_part(o, "elements");
    for (dtype t = 0; t < HARDWARE_DTYPES; t++) TRY(measure_vector(m, t, &h->vector[t]));
    TRY(measure_device_bandwidth(m, h));
    if (!h->unified) TRY(measure_noise(m, h));
    return OK;
}

/* What its neighbours leave a host. */
static status measure_host_and_copies(const bench *m, const bench *host, const measure_options *o, hardware *h) {
    print_part(o, "copies");
    TRY(measure_copies(m, h));
    print_part(o, "host");
    TRY(measure_host(host, h));
    if (m->b->queues) TRY(measure_host_beside_copies(m, host, h));
    return OK;
}

/* Its name and memory. */
static status measure_identity(const bench *m, const bench *host, const measure_options *o, hardware *h) {
    sys_info machine;
    device_info info;
    sys_info_get(&machine);
    h->unified = m->b == host->b; /* its device is the host's memory and its kernels are the host's cores */
    h->overlap = !h->unified;
    h->devices_per_node = 1;
    h->device_bytes = h->host_bytes = machine.memory_total;
    hardware_machine_name(h->name, &machine, host->b->threads(host->c));
    if (!m->b->describe) return OK;
    TRY(m->b->describe(o->gpu.index, &info));
    h->device_bytes = info.memory;
    snprintf(h->name, sizeof h->name, "%s", info.name);
    return OK;
}

static status check_known(const hardware *known, const hardware *here) {
    if (here->unified)
        return ERR(ERR_INPUT, "--host-only: found %s, whose device is its host; measure without --host-only",
                   here->name);
    if (strcmp(known->name, here->name) != 0)
        return ERR(
            ERR_INPUT,
            "--host-only: found a description of %s, expected one of this machine, %s; measure without --host-only",
            known->name, here->name);
    return OK;
}

status measure_machine(const backend *b, const measure_options *o, hardware *out) {
    status rc;
    hardware h = {0};
    bench device = {.b = b, .try_s = o->try_s > 0 ? o->try_s : USUAL_TRY_S}, host = device;
    bool direct = false;
    if (!o->known) {
        print_part(o, "disk");
        TRY(measure_disk(o->disk_path, &h, &direct)); /* first: it is what may be refused */
    }
    backend_options threads = {.n_threads = o->n_threads, .bind = o->bind, .gpu = o->gpu};
    host.b = backend_cpu();
    TRY(host.b->open(&host.c, &threads));
    TRY_GOTO(rc, b->open(&device.c, &threads), done);
    device.host = host.b;
    device.host_context = host.c;
    TRY_GOTO(rc, measure_identity(&device, &host, o, &h), done);
    if (o->known) {
        TRY_GOTO(rc, check_known(o->known, &h), done);
        h = *o->known;
    } else {
        TRY_GOTO(rc, measure_device(&device, o, &h), done);
        snprintf(h.source, sizeof h.source, "measured by ralo devices --measure; disk of %.100s%s", o->disk_path,
                 direct ? "" : " through the page cache (O_DIRECT refused)");
    }
    TRY_GOTO(rc, measure_host_and_copies(&device, &host, o, &h), done);
    hardware_round(&h, DIGITS);
    h.copy_both = fmin(h.copy_both, h.copy_to_device + h.copy_to_host);
    *out = h;
done:
    if (device.c) b->close(device.c);
    host.b->close(host.c);
    return rc;
}
