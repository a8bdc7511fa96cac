/* host.c - how fast the host's cores update parameters, how fast copies go between the tiers, and both at once. */
#include "measure/probe.h"

#include <math.h>
#include <pthread.h>

#define COPY_BYTES ((size_t)64 << 20)
#define SHARE_STREAMED 16               /* of a host's memory, for each of two arrays */
#define MOST_STREAMED ((size_t)8 << 30) /* touching more would take long and tell nothing new */
#define COPIED_BESIDE ((size_t)256 << 20)

/* Seconds of AdamW of n parameters, gradients and states of one type, or with states of 8 bits. */
static status measure_adamw(const bench *m, dtype t, bool has_8bit_states, int64_t n, double *seconds) {
    operand p = {t, SHAPE(n)}, no_master = {.shape = {0}}, clip = {DTYPE_F32, SHAPE(CLIP_COUNT)};
    operand scale = {DTYPE_F32, SHAPE(divide_up(n, STATE_BLOCK))};
    operand m8 = {DTYPE_I8, SHAPE(n)}, v8 = {DTYPE_U8, SHAPE(n)};
    operand plain[] = {p, no_master, p, p}, small[] = {p, no_master, m8, v8, scale, scale};
    operand scalars = {DTYPE_U8, SHAPE(sizeof(step_scalars))};
    op_attr a = {.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f};
    probe r;
    TRY(probe_open(&r, m, OP_ADAMW, &a, (operand[]){p, clip, scalars}, 3, has_8bit_states ? small : plain,
                   (int)(has_8bit_states ? ARRAY_LENGTH(small) : ARRAY_LENGTH(plain))));
    float no_clip[CLIP_COUNT] = {[CLIP_NORM] = 1, [CLIP_FACTOR] = 1};
    step_scalars s = {.lr = 1e-6f, .bias1 = 0.1f, .bias2 = 0.05f, .step = 1};
    m->b->write(m->c, r.call.in[ADAMW_CLIP], no_clip, sizeof no_clip);
    m->b->write(m->c, r.call.in[ADAMW_SCALARS], &s, sizeof s);
    *seconds = probe_seconds(&r, 8);
    return probe_close(&r);
}

/* The host's memory by an op that writes what it has read: other stores may first fetch what they overwrite, which those of
 * an update never do. Much of it: some processors have caches of 300 MB, and some hosts memory of which a part is nearer
 * than the rest, which a virtual machine need not tell. */
static status host_stream_open(probe *r, const bench *m) {
    sys_info machine;
    sys_info_get(&machine);
    size_t n_bytes = MIN(MOST_STREAMED, (size_t)machine.memory_available / SHARE_STREAMED);
    operand x = {DTYPE_F32, SHAPE((int64_t)(n_bytes / sizeof(float)))},
            scalars = {DTYPE_U8, SHAPE(sizeof(step_scalars))};
    step_scalars s = {.step = 1, .micro = 1};
    TRY(probe_open(r, m, OP_ACCUMULATE, &(op_attr){0}, (operand[]){x, scalars}, 2, (operand[]){x}, 1));
    m->b->write(m->c, r->call.in[ACCUMULATE_SCALARS], &s, sizeof s);
    return OK;
}

/* Layers may be placed on the cores beside a device; of cores that are the device the same rates are its own. */
static status measure_host_products(const bench *m, hardware *h) {
    enum { SIDE = 1024 };
    for (dtype t = 0; t < HARDWARE_DTYPES; t++) {
        operand x = {t, SHAPE(SIDE, SIDE)};
        probe r;
        TRY(probe_open(&r, m, OP_LINEAR, &(op_attr){0}, (operand[]){x, x}, 2, &x, 1));
        h->host_matrix[t] = op_flops(&r.p, r.call.op) / probe_seconds(&r, 1);
        TRY(probe_close(&r));
    }
    return OK;
}

/* The host's own cores, whatever the device is. AdamW on what the caches hold: how memory limits it is known then. */
status measure_host(const bench *m, hardware *h) {
    enum { NUMBERS = 3 }; /* that AdamW of bf16 rounds: parameter, m and v */
    probe r;
    TRY(host_stream_open(&r, m));
    h->host_bandwidth = op_bytes(&r.p, r.call.op) / probe_mean_seconds(&r, 1);
    TRY(probe_close(&r));

    int64_t n = (int64_t)RNG_NOISE_BLOCK * m->b->threads(m->c);
    double plain, small, noisy;
    TRY(measure_adamw(m, DTYPE_F32, false, n, &plain));
    TRY(measure_adamw(m, DTYPE_F32, true, n, &small));
    TRY(measure_adamw(m, DTYPE_BF16, false, n, &noisy));
    h->host_adamw = (double)n / plain;
    h->host_adamw8 = (double)n / small;
    h->host_noise = NUMBERS * (double)n / noisy;
    return h->unified ? OK : measure_host_products(m, h);
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
    if (up && down && thread_start(&other, copy_down, k) != 0)
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
    double begin = clock_s();
    TRY(k->b->queues ? copy_on_queues(k, up, down) : copy_on_threads(k, up, down));
    *best = fmin(*best, clock_s() - begin);
    return OK;
}

status measure_copies(const bench *m, hardware *h) {
    status rc;
    copier k;
    TRY_GOTO(rc, copier_open(&k, m, COPY_BYTES), done);
    double up = INFINITY, down = INFINITY, both = INFINITY;
    double start = clock_s();
    for (int i = 0; i < LEAST_TRIES || clock_s() - start < 2 * m->try_s; i++) {
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

/* Host memory bandwidth for its cores and for copies in both directions at the same time: as many copies as last a
 * little longer than the cores' one pass, of blocks larger than any cache. */
status measure_host_beside_copies(const bench *m, const bench *host, hardware *h) {
    status rc;
    copier k;
    probe r;
    TRY(host_stream_open(&r, host));
    double n_bytes = op_bytes(&r.p, r.call.op);
    int n = (int)ceil(1.5 * n_bytes / h->host_bandwidth * h->copy_both / (2.0 * COPIED_BESIDE));
    TRY_GOTO(rc, copier_open(&k, m, COPIED_BESIDE), done);
    double start = clock_s(), sum = 0;
    int tries = 0;
    for (; tries < LEAST_TRIES || clock_s() - start < m->try_s; tries++) {
        double begin = clock_s();
        for (int c = 0; c < n; c++) copies_start(&k, true, true);
        double cores = n_bytes / probe_try(&r, 1);
        TRY_GOTO(rc, m->b->synchronize(m->c), done);
        double copies = n * 2.0 * (double)k.n_bytes / (clock_s() - begin);
        sum += cores + copies;
    }
    h->host_total = sum / tries;
done:
    copier_close(&k);
    status tried = probe_close(&r);
    return rc == OK ? tried : rc;
}
