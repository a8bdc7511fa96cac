/* cost.c - the time of a step, from shapes and the description of a machine.
 *
 * An op takes max(arithmetic / rate of its kind and dtype, bytes / bandwidth) + launch. Rates are of three kinds: matrix
 * products (less for small ones), attention, and arithmetic on single elements. A copy between tiers takes its bytes over
 * the slowest thing on its way; while copies run both ways, both are slower.
 *
 * Not modelled: caches (a small tensor may never reach memory), kernels and copies that compete for one memory, documents
 * inside rows (attention is counted as if each row were one), how well a kernel's tiles fit a shape. The walk itself is
 * exact: order inside a stream, waits between streams, overlap. */
#include "plan/cost.h"

#include <math.h>
#include <stdlib.h>

const char *cost_lane_name(int lane) {
    static const char *const names[COST_LANES] = {
        [STREAM_COMPUTE] = "compute", [STREAM_H2D] = "h2d",   [STREAM_D2H] = "d2h",   [STREAM_READ] = "read",
        [STREAM_WRITE] = "write",     [STREAM_HOST] = "host", [STREAM_COMM] = "comm", [COST_LANE_HOST] = "host"};
    return names[lane];
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

#define SMALL_BYTES 4096 /* scalars and flags may lie anywhere: they do not decide where an op runs */

/* Is everything of size that the op touches outside the device? Then the host's cores do it. */
static bool is_host_work(const program *p, const op *o) {
    bool any = false;
    for (int i = 0; i < op_input_count(o->kind) + op_output_count(o->kind); i++) {
        int n_in = op_input_count(o->kind);
        value_id v = i < n_in ? o->in[i] : o->out[i - n_in];
        if (!v || value_bytes(program_get(p, v)) <= SMALL_BYTES) continue;
        if (program_get(p, v)->tier == TIER_DEVICE) return false;
        any = true;
    }
    return any;
}

int cost_op_lane(const program *p, const op *o, const hardware *h) {
    if (!h->overlap) return STREAM_COMPUTE;
    if (o->stream == STREAM_HOST) return COST_LANE_HOST;
    if (o->stream != STREAM_COMPUTE || o->kind == OP_COPY) return (int)o->stream;
    return is_host_work(p, o) ? COST_LANE_HOST : STREAM_COMPUTE;
}

static dtype compute_type(const program *p, const op *o) {
    for (int i = 0; i < op_input_count(o->kind) + op_output_count(o->kind); i++) {
        int n_in = op_input_count(o->kind);
        value_id v = i < n_in ? o->in[i] : o->out[i - n_in];
        if (!v) continue;
        dtype t = program_get(p, v)->type;
        if (t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16) return t;
    }
    return DTYPE_F32;
}

static double product_seconds(const hardware *h, dtype t, double m, double n, double k, double bytes) {
    return fmax(2 * m * n * k / hardware_product_rate(h, t, m, n, k), bytes / h->device_bandwidth);
}

/* Per logit: maximum, exp and sum forward; the same exp again and the difference for the gradient. */
#define SOFTMAX_FLOPS 12.0

/* All chunks of tokens. Each reads w; with the gradient each adds to an fp32 dw, reading and writing all of it. A 16-bit
 * dw that cannot hold sums is finished in a second walk over the vocabulary: logits again, dw once. */
static double unembed_seconds(const program *p, const op *o, const hardware *h, dtype t) {
    const value *hidden = program_get(p, o->in[0]), *w = program_get(p, o->in[1]);
    double N = (double)hidden->shape.dim[0], C = (double)hidden->shape.dim[1], V = (double)w->shape.dim[0];
    double rows = (double)op_logits_rows(p, o), n_chunks = ceil(N / rows), e = (double)dtype_bytes(hidden->type);
    double w_bytes = V * C * e, h_bytes = rows * C * e, logits = rows * V * sizeof(float);
    double chunk = product_seconds(h, t, rows, V, C, w_bytes + h_bytes + logits);
    double softmax = fmax(SOFTMAX_FLOPS * rows * V / h->vector[DTYPE_F32], 2 * logits / h->device_bandwidth);
    if (o->kind == OP_UNEMBED_LOSS) return n_chunks * (chunk + softmax);
    bool again = n_chunks > 1 && program_get(p, o->out[2])->type != DTYPE_F32;
    double dw_bytes = V * C * (double)dtype_bytes(program_get(p, o->out[2])->type);
    chunk += 2 * softmax + product_seconds(h, t, rows, C, V, w_bytes + h_bytes + logits);
    if (again)
        return n_chunks * chunk + product_seconds(h, t, N, V, C, w_bytes + N * C * e) +
               product_seconds(h, t, V, C, N, dw_bytes + N * C * e) + SOFTMAX_FLOPS * N * V / h->vector[DTYPE_F32];
    return n_chunks * (chunk + product_seconds(h, t, V, C, rows, h_bytes + logits + dw_bytes * (n_chunks > 1 ? 2 : 1)));
}

static double over(double bytes, double bandwidth, const char *key, const char **missing) {
    if (bandwidth > 0) return bytes / bandwidth;
    *missing = key;
    return INFINITY;
}

static double copy_seconds(const program *p, const op *o, const hardware *h, const char **missing) {
    const value *x = program_get(p, o->in[0]);
    tier from = x->tier, to = program_get(p, o->out[0])->tier;
    double n = (double)value_bytes(x);
    if (from == to && from != TIER_NVME) return 2 * n / (from == TIER_DEVICE ? h->device_bandwidth : h->host_bandwidth);
    double s = 0; /* pipelined: the slowest part counts */
    if (from == TIER_NVME) s = fmax(s, over(n, h->disk_read, "disk.read_gb_per_s", missing));
    if (to == TIER_NVME) s = fmax(s, over(n, h->disk_write, "disk.write_gb_per_s", missing));
    if (to == TIER_DEVICE) s = fmax(s, n / h->copy_to_device);
    if (from == TIER_DEVICE) s = fmax(s, n / h->copy_to_host);
    return s;
}

static double host_seconds(const program *p, const op *o, const hardware *h) {
    double bytes = op_bytes(p, o);
    if (o->kind != OP_ADAMW) return bytes / h->host_bandwidth;
    /* The rate is of the common case, bf16 with a master; other states move other bytes. */
    double usual = hardware_adamw_rate(h) * HARDWARE_ADAMW_BYTES;
    return bytes / usual;
}

double cost_op_seconds(const program *p, const op *o, const hardware *h, const char **missing) {
    dtype t = compute_type(p, o);
    double flops = op_flops(p, o), memory = op_bytes(p, o) / h->device_bandwidth;
    const value *a = o->in[0] ? program_get(p, o->in[0]) : NULL, *b = o->in[1] ? program_get(p, o->in[1]) : NULL;
    switch (o->kind) {
    case OP_COPY: return copy_seconds(p, o, h, missing) + h->launch_s;
    case OP_LINEAR: { /* x (N, in), w (out, in) */
        double rate =
            hardware_product_rate(h, t, (double)a->shape.dim[0], (double)b->shape.dim[0], (double)b->shape.dim[1]);
        return fmax(flops / rate, memory) + h->launch_s;
    }
    case OP_LINEAR_DX: { /* dy (N, out), w (out, in) */
        double rate =
            hardware_product_rate(h, t, (double)a->shape.dim[0], (double)b->shape.dim[1], (double)b->shape.dim[0]);
        return fmax(flops / rate, memory) + h->launch_s;
    }
    case OP_LINEAR_DW: { /* dy (N, out), x (N, in) */
        double rate =
            hardware_product_rate(h, t, (double)a->shape.dim[1], (double)b->shape.dim[1], (double)a->shape.dim[0]);
        return fmax(flops / rate, memory) + h->launch_s;
    }
    case OP_UNEMBED_LOSS:
    case OP_UNEMBED_LOSS_GRAD: return unembed_seconds(p, o, h, t) + h->launch_s;
    case OP_ATTENTION:
    case OP_ATTENTION_BWD: return fmax(flops / h->attention[t], memory) + h->launch_s;
    default:
        if (is_host_work(p, o)) return host_seconds(p, o, h) + h->launch_s;
        return fmax(flops / h->vector[t], memory) + h->launch_s;
    }
}

/* ---- who waits for whom ------------------------------------------------------------------------------------------ */

/* Ops are numbered from 1 inside a section; 0 is "none". Lanes run in order, so of each lane only the last op that
 * touched some bytes has to be waited for. */
typedef struct span {
    uint64_t begin, end;
    uint32_t writer;
    uint8_t writer_lane;
    uint32_t reader[COST_LANES];
} span;

/* What is known of one tier's bytes: spans sorted, without overlap; bytes in none were not touched yet. */
typedef struct byte_map {
    span *spans;
    size_t n, capacity;
} byte_map;

static size_t first_after(const byte_map *m, uint64_t at) { /* the first span that ends beyond `at` */
    size_t low = 0, high = m->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (m->spans[mid].end <= at) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* Replaces `n_old` spans at i by `n_new` uninitialised ones. */
static void splice(byte_map *m, size_t i, size_t n_old, size_t n_new) {
    m->spans = array_grow(m->spans, &m->capacity, m->n - n_old + n_new, sizeof *m->spans);
    memmove(m->spans + i + n_new, m->spans + i + n_old, (m->n - i - n_old) * sizeof *m->spans);
    m->n = m->n - n_old + n_new;
}

static void cut(byte_map *m, uint64_t at) {
    size_t i = first_after(m, at);
    if (i == m->n || m->spans[i].begin >= at) return;
    splice(m, i, 0, 1);
    m->spans[i] = m->spans[i + 1];
    m->spans[i].end = m->spans[i + 1].begin = at;
}

static void wait_for(uint32_t *waits, int lane, uint32_t op_number) { waits[lane] = MAX(waits[lane], op_number); }

static void touch(byte_map *m, uint64_t begin, uint64_t end, bool writes, uint32_t number, int lane, uint32_t *waits) {
    cut(m, begin);
    cut(m, end);
    size_t first = first_after(m, begin), i = first;
    uint64_t at = begin;
    for (; i < m->n && m->spans[i].begin < end; i++) {
        span *s = &m->spans[i];
        if (s->writer) wait_for(waits, s->writer_lane, s->writer);
        for (int l = 0; l < COST_LANES && writes; l++) wait_for(waits, l, s->reader[l]);
        if (!writes && s->begin > at) { /* bytes that only readers have touched so far */
            uint64_t gap_end = s->begin;
            splice(m, i, 0, 1);
            m->spans[i] = (span){.begin = at, .end = gap_end};
            s = &m->spans[i];
        }
        s->reader[lane] = number;
        at = s->end;
    }
    if (writes) {
        splice(m, first, i - first, 1);
        m->spans[first] = (span){.begin = begin, .end = end, .writer = number, .writer_lane = (uint8_t)lane};
    } else if (at < end) {
        splice(m, i, 0, 1);
        m->spans[i] = (span){.begin = at, .end = end};
        m->spans[i].reader[lane] = number;
    }
}

typedef struct walker {
    const program *p;
    const hardware *h;
    size_t first, n;               /* ops of the section */
    uint8_t *lane;                 /* per op */
    double *seconds;               /* per op, alone */
    uint32_t (*waits)[COST_LANES]; /* per op: number of the op of each lane that must be done */
    byte_map maps[TIER_COUNT];
    uint64_t *own; /* per value: an address beyond the arenas for values without a place */
} walker;

static void touch_value(walker *w, value_id v, bool writes, size_t i) {
    if (!v) return;
    size_t inside;
    value_id root = program_root(w->p, v, &inside);
    const value *r = program_get(w->p, root);
    uint64_t begin = (r->offset == VALUE_NOT_PLACED ? w->own[root] : r->offset) + inside;
    touch(&w->maps[r->tier], begin, begin + value_bytes(program_get(w->p, v)), writes, (uint32_t)i + 1, w->lane[i],
          w->waits[i]);
}

static void find_waits(walker *w) {
    uint64_t beyond = 0;
    for (tier t = 0; t < TIER_COUNT; t++) beyond = MAX(beyond, w->p->arena_bytes[t]);
    w->own = mem_alloc(w->p->n_values * sizeof *w->own);
    for (value_id v = 1; v < w->p->n_values; v++) {
        w->own[v] = beyond;
        if (w->p->values[v].offset == VALUE_NOT_PLACED) beyond += value_bytes(&w->p->values[v]);
    }
    for (size_t i = 0; i < w->n; i++) {
        const op *o = &w->p->ops[w->first + i];
        for (int k = 0; k < op_input_count(o->kind); k++) touch_value(w, o->in[k], false, i);
        for (int k = 0; k < op_output_count(o->kind); k++) touch_value(w, o->out[k], true, i);
        touch_value(w, o->work, true, i);
    }
    for (tier t = 0; t < TIER_COUNT; t++) free(w->maps[t].spans);
    free(w->own);
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

static bool crosses_to_device(const program *p, const op *o, bool to_device) {
    if (o->kind != OP_COPY) return false;
    tier from = program_get(p, o->in[0])->tier, to = program_get(p, o->out[0])->tier;
    return to_device ? from == TIER_HOST && to == TIER_DEVICE : from == TIER_DEVICE && to == TIER_HOST;
}

typedef struct lane_state {
    size_t next; /* op of this lane to start next; n: none left */
    bool running;
    double remaining; /* seconds at full speed */
} lane_state;

static size_t next_of_lane(const walker *w, int lane, size_t from) {
    while (from < w->n && w->lane[from] != lane) from++;
    return from;
}

static bool may_start(const walker *w, const lane_state *lanes, size_t i) {
    for (int l = 0; l < COST_LANES; l++)
        /* Everything before lanes[l].next on that lane is done; next itself is running or waiting. */
        if (w->waits[i][l] && l != w->lane[i] && lanes[l].next < w->waits[i][l]) return false;
    return true;
}

/* How fast the running op of each lane goes: 1, or less for copies that meet each other on the way. */
static void speeds(const walker *w, const lane_state *lanes, double *out) {
    const hardware *h = w->h;
    bool up = false, down = false;
    for (int l = 0; l < COST_LANES; l++) {
        if (!lanes[l].running) continue;
        const op *o = &w->p->ops[w->first + lanes[l].next];
        up |= crosses_to_device(w->p, o, true);
        down |= crosses_to_device(w->p, o, false);
    }
    double share = up && down ? fmin(1, h->copy_both / (h->copy_to_device + h->copy_to_host)) : 1;
    for (int l = 0; l < COST_LANES; l++) {
        const op *o = lanes[l].running ? &w->p->ops[w->first + lanes[l].next] : NULL;
        out[l] = o && (crosses_to_device(w->p, o, true) || crosses_to_device(w->p, o, false)) ? share : 1;
    }
}

static double run(const walker *w, double *busy_s) {
    lane_state lanes[COST_LANES];
    double now = 0, speed[COST_LANES];
    for (int l = 0; l < COST_LANES; l++) lanes[l] = (lane_state){.next = next_of_lane(w, l, 0)};
    for (;;) {
        double soonest = INFINITY;
        for (int l = 0; l < COST_LANES; l++) {
            lane_state *s = &lanes[l];
            if (s->running || s->next == w->n || !may_start(w, lanes, s->next)) continue;
            s->running = true;
            s->remaining = w->seconds[s->next];
        }
        speeds(w, lanes, speed);
        int n_running = 0;
        for (int l = 0; l < COST_LANES; l++) {
            if (!lanes[l].running) continue;
            n_running++;
            soonest = fmin(soonest, lanes[l].remaining / speed[l]);
        }
        if (n_running == 0) return now;
        if (!isfinite(soonest)) return INFINITY; /* a rate that is not there */
        for (int l = 0; l < COST_LANES; l++) {
            lane_state *s = &lanes[l];
            if (!s->running) continue;
            busy_s[l] += soonest;
            if (s->remaining / speed[l] <= soonest) {
                s->running = false;
                s->next = next_of_lane(w, l, s->next + 1);
            } else {
                s->remaining -= soonest * speed[l];
            }
        }
        now += soonest;
    }
}

double cost_section(const program *p, section s, const hardware *h, double *busy_s, const char **missing) {
    walker w = {.p = p, .h = h};
    size_t end;
    program_section(p, s, &w.first, &end);
    w.n = end - w.first;
    if (w.n == 0) return 0;
    w.lane = mem_alloc(w.n * sizeof *w.lane);
    w.seconds = mem_alloc(w.n * sizeof *w.seconds);
    w.waits = mem_alloc(w.n * sizeof *w.waits);
    bool many = false; /* lanes */
    for (size_t i = 0; i < w.n; i++) {
        w.lane[i] = (uint8_t)cost_op_lane(p, &p->ops[w.first + i], h);
        w.seconds[i] = cost_op_seconds(p, &p->ops[w.first + i], h, missing);
        many |= w.lane[i] != w.lane[0];
    }
    if (many) find_waits(&w); /* one lane waits for nobody but itself */
    double seconds = run(&w, busy_s);
    free(w.waits);
    free(w.seconds);
    free(w.lane);
    return seconds;
}

void cost_program(cost *out, const program *p, const hardware *h, int64_t accumulation) {
    *out = (cost){0};
    double times = (double)accumulation;
    out->micro_s = cost_section(p, SECTION_MICRO, h, out->busy_s, &out->missing);
    for (int l = 0; l < COST_LANES; l++) out->busy_s[l] *= times;
    out->update_s = cost_section(p, SECTION_UPDATE, h, out->busy_s, &out->missing);
    out->step_s = times * out->micro_s + out->update_s;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->section != SECTION_MICRO && o->section != SECTION_UPDATE) continue;
        uint64_t n = o->section == SECTION_MICRO ? (uint64_t)accumulation : 1;
        out->kinds[o->kind].seconds += (double)n * cost_op_seconds(p, o, h, &out->missing);
        out->kinds[o->kind].n += n;
    }
}
