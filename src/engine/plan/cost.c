/* cost.c - the time of a step, from shapes and the description of a machine.
 *
 * An op takes max(arithmetic / rate of its kind and dtype, bytes / bandwidth) + launch. There are three kinds of rate: matrix
 * products (slower for small ones), attention, and elementwise arithmetic. Sums over rows take an extra time, and so does the
 * noise of stochastic rounding where it was measured. On the host products have a rate of their own, and that of AdamW stands for
 * all other arithmetic. A copy between
 * tiers takes its bytes divided by the slowest bandwidth on its path. Copies in both directions slow each other down, and so
 * do reads and writes of a drive.
 *
 * Not modelled: caches (a small tensor may never reach memory), kernels and copies that compete for one memory, documents
 * inside rows (attention is counted as if each row were one), how well a kernel's tiles fit a shape. The simulation itself is
 * exact: order inside a stream, the program's own waits between streams, overlap. */
#include "plan/cost.h"

#include <math.h>
#include <stdlib.h>

/* ---- one op, by its class ---------------------------------------------------------------------------------------- */

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

static const shape *shape_of(const program *p, value_id v) { return &program_get(p, v)->shape; }

static double product_seconds(const hardware *h, dtype t, double m, double n, double k, double bytes) {
    return fmax(2 * m * n * k / hardware_product_rate(h, t, m, n, k), bytes / h->device_bandwidth);
}

/* Per logit and pass over it. The first pass takes maximum, exp and sum; the gradient pass takes exp again and a difference. */
#define SOFTMAX_FLOPS 12.0

/* Passes over the fp32 logits of a chunk: the first reads them; the gradient pass reads them and writes the gradient in the
 * dtype of the products. A GPU kernel that does both keeps the row and reads it once. */
static double softmax_seconds(const op *o, const hardware *h, double logits, size_t e) {
    double read = logits * sizeof(float), written = logits * (double)e, flops = SOFTMAX_FLOPS * logits;
    bool first = !op_logits_again(o), gradient = op_is_loss_gradient(o->kind);
    double passes = first && gradient && !h->overlap ? 2 : 1;
    return fmax((first + gradient) * flops / h->vector[DTYPE_F32],
                (passes * read + (gradient ? written : 0)) / h->device_bandwidth);
}

/* All chunks of tokens. Each reads w; with the gradient each adds to an fp32 dw, reading and writing all of it. A 16-bit dw
 * cannot hold sums, so a second loop over the vocabulary finishes it: logits again, dw once; a GPU that keeps the
 * gradient of all logits has one product for dh and one for dw. Where ranks share the
 * vocabulary, STATS makes the first pass over the logits and the gradient only the second. */
static double unembed_seconds(const program *p, const op *o, const hardware *h, dtype t) {
    const value *hidden = program_get(p, o->in[LOGITS_H]), *w = program_get(p, o->in[LOGITS_W]);
    double N = (double)hidden->shape.dim[0], C = (double)hidden->shape.dim[1], V = (double)w->shape.dim[0];
    int64_t at_once = op_logits_rows(p, o);
    bool stored = h->overlap && op_logits_stored(p, o, &at_once);
    double rows = (double)at_once, n_chunks = ceil(N / rows), e = (double)dtype_bytes(hidden->type);
    double w_bytes = V * C * e, h_bytes = rows * C * e, logits = rows * V * sizeof(float);
    double chunk = product_seconds(h, t, rows, V, C, w_bytes + h_bytes + logits) +
                   softmax_seconds(o, h, rows * V, dtype_bytes(hidden->type));
    if (!op_is_loss_gradient(o->kind)) return n_chunks * chunk;
    value_id to = op_logits_gradient(o);
    if (!to) return n_chunks * (chunk + product_seconds(h, t, rows, C, V, w_bytes + h_bytes + logits));
    dtype dw = program_get(p, to)->type;
    double dw_bytes = V * C * (double)dtype_bytes(dw);
    if (stored)
        return n_chunks * chunk + product_seconds(h, t, N, C, V, w_bytes + N * C * e + N * V * e) +
               product_seconds(h, t, V, C, N, dw_bytes + N * C * e + N * V * e);
    bool again = n_chunks > 1 && dw != DTYPE_F32;
    chunk += product_seconds(h, t, rows, C, V, w_bytes + h_bytes + logits);
    if (again)
        return n_chunks * chunk + product_seconds(h, t, N, V, C, w_bytes + N * C * e) +
               product_seconds(h, t, V, C, N, dw_bytes + N * C * e) + SOFTMAX_FLOPS * N * V / h->vector[DTYPE_F32];
    return n_chunks * (chunk + product_seconds(h, t, V, C, rows, h_bytes + logits + dw_bytes * (n_chunks > 1 ? 2 : 1)));
}

/* Logits of 8-bit numbers on a GPU: 2-byte logits of `rows` tokens at once, read twice, gradients and their transposes of a
 * group. */
static double unembed8_seconds(const program *p, const op *o, const hardware *h) {
    const dtype t = DTYPE_F8E4M3;
    const shape *hidden = shape_of(p, o->in[LOGITS_H]);
    double N = (double)hidden->dim[0], C = (double)hidden->dim[1], V = (double)shape_of(p, o->in[LOGITS_W])->dim[0];
    logits8_cut cut = op_logits8_cut(p, o);
    double rows = (double)cut.rows, group = (double)cut.group, logits = N * V, n_groups = ceil(N / group);
    double flops = 2 * SOFTMAX_FLOPS * logits / h->vector[DTYPE_F32];
    double s = ceil(N / rows) * product_seconds(h, t, rows, V, C, V * C + rows * (C + 2 * V)) +
               fmax(flops, (2 * 2 + 1 + 1) * logits / h->device_bandwidth) +
               n_groups * product_seconds(h, t, group, C, V, V * C + group * (2 * C + V));
    value_id to = op_logits_gradient(o);
    if (!to) return s;
    double dw_bytes = V * C * (double)dtype_bytes(program_get(p, to)->type);
    if (cut.v_block)
        s += product_seconds(h, t, N, V, C, V * C + N * (C + 2 * V)) +
             fmax(flops / 2, (2 + 1) * logits / h->device_bandwidth);
    if (cut.stored || cut.v_block) return s + product_seconds(h, t, V, C, N, dw_bytes + N * (C + V));
    return s + n_groups * product_seconds(h, t, V, C, group, dw_bytes * (n_groups > 1 ? 2 : 1) + group * (C + V));
}

static double logits_seconds(const program *p, const op *o, const hardware *h, dtype t) {
    bool in_8bits = program_get(p, o->in[LOGITS_H])->type == DTYPE_F8E4M3;
    if (in_8bits && h->overlap) return unembed8_seconds(p, o, h) + h->launch_s;
    return unembed_seconds(p, o, h, in_8bits ? DTYPE_F8E4M3 : t) + h->launch_s;
}

static double transfer_seconds(double bytes, double bandwidth, const char *key, const char **missing) {
    if (bandwidth > 0) return bytes / bandwidth;
    *missing = key;
    return INFINITY;
}

/* Between two devices: their own link where there is one, else through the host. */
static double device_link(const hardware *h) {
    return h->link_bandwidth > 0 ? h->link_bandwidth : fmin(h->copy_to_device, h->copy_to_host);
}

static double copy_seconds(const program *p, const op *o, const hardware *h, const char **missing) {
    tier from = program_tier(p, o->in[COPY_X]), to = program_tier(p, o->out[COPY_Y]);
    double n = (double)value_bytes(program_get(p, o->in[COPY_X]));
    if (from == to) return 2 * n / (from == TIER_HOST ? h->host_bandwidth : h->device_bandwidth);
    if (tier_is_device(from) && tier_is_device(to)) return n / device_link(h);
    double s = 0; /* pipelined: the slowest part counts */
    if (from == TIER_NVME) s = fmax(s, transfer_seconds(n, h->disk_read, "disk.read_gb_per_s", missing));
    if (to == TIER_NVME) s = fmax(s, transfer_seconds(n, h->disk_write, "disk.write_gb_per_s", missing));
    if (tier_is_device(to)) s = fmax(s, n / h->copy_to_device);
    if (tier_is_device(from)) s = fmax(s, n / h->copy_to_host);
    return s;
}

/* A group inside one node uses the links of the node. A ring over several nodes enters and leaves each node once, and uses
 * the network of all its ranks there, up to the bandwidth of the links inside. Pairwise messages use only the network of
 * their own rank. Each doubling of the group adds a latency. On a CPU without described links, ranks are processes that read
 * each other's memory. */
double cost_message_seconds(double n_bytes, int group_size, axis a, bool in_pairs, const hardware *h, const mesh *m,
                            const char **missing) {
    int64_t stride = m ? mesh_stride(m, a) : 1, here = MAX(h->devices_per_node / stride, (int64_t)1);
    bool near = group_size <= here;
    double bandwidth = near ? h->link_bandwidth : h->network_bandwidth;
    double latency = near ? h->link_latency : h->network_latency;
    if (!near && !in_pairs && here > 1 && h->link_bandwidth > 0)
        bandwidth = fmin(bandwidth * (double)here, h->link_bandwidth);
    if (bandwidth <= 0 && !h->overlap) bandwidth = h->host_bandwidth / 2; /* read here, written there */
    const char *key = near ? "link.device_gb_per_s" : "link.network_gb_per_s";
    return transfer_seconds(n_bytes, bandwidth, key, missing) + latency * ceil(log2(group_size));
}

/* Sums of partial results in a second kernel. On a GPU that kernel costs a fixed time even for few numbers; on the host its
 * threads must be woken for both. */
static double sum_seconds(const op *o, const hardware *h) {
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k] && op_output_is_sum(o->kind, k)) return h->sum_s;
    return 0;
}

static double element_seconds(const program *p, const op *o, const hardware *h, dtype t) {
    double s = fmax(op_flops(p, o) / h->vector[t], op_bytes(p, o) / h->device_bandwidth);
    if (h->noise_rate > 0) s = fmax(s, op_noise(p, o) / h->noise_rate);
    s = s + sum_seconds(o, h) + h->launch_s;
    return h->overlap ? s + op_bytes_twice(p, o) / h->device_bandwidth : s;
}

static bool has_8bit_states(const program *p, const op *o) {
    return o->kind == OP_ADAMW && program_get(p, o->out[ADAMW_M])->type == DTYPE_I8;
}

/* Widening and rounding 8-bit states takes longer than the step between: 2.4 times AdamW's time on a Xeon, 3.9 times on a Neoverse N1. */
#define ADAMW8_RATE (1.0 / 3)
static double adamw8_seconds(const program *p, const op *o, const hardware *h) {
    double rate = h->host_adamw8 > 0 ? h->host_adamw8 : ADAMW8_RATE * h->host_adamw;
    return rate > 0 ? (double)shape_count(shape_of(p, o->in[ADAMW_G])) / rate : 0;
}

/* On the host's cores: memory, arithmetic or noise, whichever takes longest. A rate that was not measured counts as no time. */
static double host_seconds(const program *p, const op *o, const hardware *h) {
    double noise = op_noise(p, o), s = op_bytes(p, o) / h->host_bandwidth;
    double rounding = h->host_noise > 0 ? noise / h->host_noise : 0;
    if (has_8bit_states(p, o)) s = fmax(s, adamw8_seconds(p, o, h) + rounding);
    else if (h->host_adamw > 0)
        s = fmax(s, (op_flops(p, o) - NOISE_FLOPS * noise) / (HARDWARE_ADAMW_FLOPS * h->host_adamw));
    return fmax(s, rounding) + sum_seconds(o, h) + h->launch_s;
}

/* Products and attention by the host's cores, for layers that are placed there. Attention reaches about half of the rate of
 * products on cores. */
#define HOST_ATTENTION 0.5
static double host_product_seconds(const program *p, const op *o, const hardware *h, dtype t, const char **missing) {
    static const char *const keys[HARDWARE_DTYPES] = {
        [DTYPE_F32] = "host.fp32.gflops", [DTYPE_BF16] = "host.bf16.gflops", [DTYPE_F16] = "host.fp16.gflops"};
    bool attends = op_class_of(o->kind) == OP_CLASS_ATTENTION;
    double rate = attends ? HOST_ATTENTION * h->host_matrix[t] : h->host_matrix[t];
    if (rate <= 0) {
        *missing = keys[t];
        return INFINITY;
    }
    return fmax(op_flops(p, o) / rate, op_bytes(p, o) / h->host_bandwidth) + h->launch_s;
}

static double message_seconds(const program *p, const op *o, const hardware *h, const mesh *m, const char **missing) {
    bool in_pairs = !op_goes_round(o->kind);
    return cost_message_seconds(op_sent(p, o), o->attr.group_size, o->attr.axis, in_pairs, h, m, missing) + h->launch_s;
}

/* Of an 8-bit product, what is left of its rate with scales of blocks: the layers of a 1.5B on an H200. */
static const double BLOCKS_RATE = 0.78;

static double product_op_seconds(const program *p, const op *o, const hardware *h, dtype t) {
    op_product x = op_product_of(p, o);
    if (program_get(p, o->in[op_rows_input(o->kind)])->type == DTYPE_F8E4M3) t = DTYPE_F8E4M3;
    double rate = hardware_product_rate(h, t, (double)x.m, (double)x.n, (double)x.k);
    double s = fmax(op_flops(p, o) / rate, op_bytes(p, o) / h->device_bandwidth) + h->launch_s;
    return x.blocks ? s / BLOCKS_RATE : s;
}

/* Of the forward of attention with products of 8-bit numbers over that in 16 bits, on a GPU, rounding included: measured on an H200 with rows
 * of 4,096 tokens and more. Exponentials, which heads have as many of however short they are, are the limit. */
static double attention8_rate(int head_dim) { return head_dim <= 64 ? 0.88 : 1.1; }

static double attention_seconds(const program *p, const op *o, const hardware *h, dtype t) {
    double rate = hardware_attention_rate(h, t, (double)o->attr.seq_len);
    if (o->kind == OP_ATTENTION && o->attr.fp8 && h->overlap) rate *= attention8_rate(o->attr.head_dim);
    return fmax(op_flops(p, o) / rate, op_bytes(p, o) / h->device_bandwidth) + h->launch_s;
}

double cost_op_seconds(const program *p, const op *o, const hardware *h, const mesh *m, const char **missing) {
    dtype t = compute_type(p, o);
    bool on_host = o->at == TIER_HOST;
    switch (op_class_of(o->kind)) { /* without a default: a class without a price does not compile */
    case OP_CLASS_MESSAGE: return message_seconds(p, o, h, m, missing);
    case OP_CLASS_COPYING: return copy_seconds(p, o, h, missing) + h->launch_s;
    case OP_CLASS_PRODUCT: return on_host ? host_product_seconds(p, o, h, t, missing) : product_op_seconds(p, o, h, t);
    case OP_CLASS_LOGITS: return on_host ? host_product_seconds(p, o, h, t, missing) : logits_seconds(p, o, h, t);
    case OP_CLASS_ATTENTION: return on_host ? host_product_seconds(p, o, h, t, missing) : attention_seconds(p, o, h, t);
    case OP_CLASS_UPDATE: /* without overlap the device's cores are the host's, and so are the rates measured there */
        return on_host || !h->overlap ? host_seconds(p, o, h) : element_seconds(p, o, h, t);
    case OP_CLASS_ACTIVATION:
    case OP_CLASS_NORM:
    case OP_CLASS_EMBEDDING:
    case OP_CLASS_ROUNDING:
    case OP_CLASS_ELEMENTWISE: return on_host ? host_seconds(p, o, h) : element_seconds(p, o, h, t);
    }
    ASSERT(!"a class outside of op_class");
    return INFINITY;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

#define LEAST_REST 0.2 /* share of the host memory bandwidth that its cores always get, however many bytes are copied */

typedef struct walker {
    const program *p;
    const hardware *h;
    size_t first, n; /* ops of the section */
    double *seconds; /* per op, alone */
} walker;

typedef struct lane {
    size_t next; /* op of this stream to start next; n: none left */
    uint32_t n_done;
    bool running;
    double remaining; /* seconds at full speed */
} lane;

static const op *op_at(const walker *w, size_t i) { return &w->p->ops[w->first + i]; }

static size_t next_of_stream(const walker *w, stream s, size_t from) {
    while (from < w->n && op_at(w, from)->stream != s) from++;
    return from;
}

static bool may_start(const op *o, const lane *lanes) {
    for (stream s = 0; s < STREAM_COUNT; s++)
        if (lanes[s].n_done < o->wait[s]) return false;
    return true;
}

static bool on_host_wire(const walker *w, const lane *l) {
    if (!l->running) return false;
    const op *o = op_at(w, l->next);
    return program_tier(w->p, o->in[COPY_X]) == TIER_HOST || program_tier(w->p, o->out[COPY_Y]) == TIER_HOST;
}

static bool is_disk(stream s) { return s == STREAM_READ || s == STREAM_WRITE; }

/* The speed of copies in both directions at once. */
static double wire_speed(const walker *w, const lane *lanes) {
    const hardware *h = w->h;
    bool meet = on_host_wire(w, &lanes[STREAM_H2D]) && on_host_wire(w, &lanes[STREAM_D2H]);
    return meet ? fmin(1, h->copy_both / (h->copy_to_device + h->copy_to_host)) : 1;
}

/* The speed of the host's cores beside copies. Copies come first; the cores get the rest of the memory bandwidth, of which a
 * few cores do not use all. An op that is bound by arithmetic has bandwidth to spare. */
static double host_speed(const walker *w, const lane *lanes) {
    const hardware *h = w->h;
    double copied = 0;
    if (on_host_wire(w, &lanes[STREAM_H2D])) copied += h->copy_to_device;
    if (on_host_wire(w, &lanes[STREAM_D2H])) copied += h->copy_to_host;
    if (copied == 0) return 1;
    size_t i = lanes[STREAM_HOST].next;
    double total = fmax(h->host_total, h->host_bandwidth);
    double rest = fmax(total - copied * wire_speed(w, lanes), LEAST_REST * total);
    double needed = op_bytes(w->p, op_at(w, i)) / w->seconds[i];
    return fmin(1, rest / needed);
}

/* The speed of the op that runs on a stream. A drive that reads and writes at once does half of each, and needs no cores.
 * Without overlap kernels and copies share the cores: running both takes as long as one after the other. With overlap, copies
 * in both directions slow each other down, and slow down the host. */
static double speed_of(const walker *w, const lane *lanes, stream s) {
    const hardware *h = w->h;
    if (is_disk(s)) return lanes[STREAM_READ].running && lanes[STREAM_WRITE].running ? 0.5 : 1;
    if (!h->overlap) {
        int n = 0;
        for (stream k = 0; k < STREAM_COUNT; k++) n += lanes[k].running && !is_disk(k);
        return 1.0 / n;
    }
    if (s == STREAM_HOST) return host_speed(w, lanes);
    return s == STREAM_H2D || s == STREAM_D2H ? wire_speed(w, lanes) : 1;
}

static double run(const walker *w, double *busy_s) {
    lane lanes[STREAM_COUNT];
    double now = 0, speed[STREAM_COUNT];
    for (stream s = 0; s < STREAM_COUNT; s++) lanes[s] = (lane){.next = next_of_stream(w, s, 0)};
    for (;;) {
        double soonest = INFINITY;
        bool any = false;
        for (stream s = 0; s < STREAM_COUNT; s++) {
            lane *l = &lanes[s];
            if (l->running || l->next == w->n || !may_start(op_at(w, l->next), lanes)) continue;
            l->running = true;
            l->remaining = w->seconds[l->next];
        }
        for (stream s = 0; s < STREAM_COUNT; s++) {
            if (!lanes[s].running) continue;
            any = true;
            speed[s] = speed_of(w, lanes, s);
            soonest = fmin(soonest, lanes[s].remaining / speed[s]);
        }
        if (!any) {
            for (stream s = 0; s < STREAM_COUNT; s++) ASSERT(lanes[s].next == w->n); /* waits only point back */
            return now;
        }
        if (!isfinite(soonest)) return INFINITY; /* a rate is missing */
        for (stream s = 0; s < STREAM_COUNT; s++) {
            lane *l = &lanes[s];
            if (!l->running) continue;
            busy_s[s] += w->h->overlap || is_disk(s) ? soonest : soonest * speed[s]; /* its share of the cores */
            if (l->remaining / speed[s] <= soonest) {
                l->running = false;
                l->n_done++;
                l->next = next_of_stream(w, s, l->next + 1);
            } else {
                l->remaining -= soonest * speed[s];
            }
        }
        now += soonest;
    }
}

double cost_section(const program *p, section s, const hardware *h, const mesh *m, double *busy_s,
                    const char **missing) {
    walker w = {.p = p, .h = h};
    size_t end;
    program_section(p, s, &w.first, &end);
    w.n = end - w.first;
    w.seconds = mem_alloc((w.n + 1) * sizeof *w.seconds);
    for (size_t i = 0; i < w.n; i++) w.seconds[i] = cost_op_seconds(p, op_at(&w, i), h, m, missing);
    double seconds = run(&w, busy_s);
    free(w.seconds);
    return seconds;
}

/* How often a section runs in a step. The last step, and those before a pause, run UPDATE and MICRO instead of TURN; they are
 * few. */
static double runs_in_step(section s, bool turns, double micro_runs) {
    if (s == SECTION_MICRO) return turns ? micro_runs - 1 : micro_runs;
    if (s == SECTION_TURN) return 1;
    return section_of_step(s) && !turns ? 1 : 0;
}

void cost_program(cost *out, const program *p, const hardware *h, const mesh *m, double micro_runs) {
    *out = (cost){0};
    size_t first, end;
    program_section(p, SECTION_TURN, &first, &end);
    bool turns = first < end;
    out->micro_s = cost_section(p, SECTION_MICRO, h, m, out->busy_s, &out->missing);
    for (stream s = 0; s < STREAM_COUNT; s++) out->busy_s[s] *= runs_in_step(SECTION_MICRO, turns, micro_runs);
    if (turns) out->update_s = cost_section(p, SECTION_TURN, h, m, out->busy_s, &out->missing) - out->micro_s;
    else
        out->update_s = cost_section(p, SECTION_PREPARE, h, m, out->busy_s, &out->missing) +
                        cost_section(p, SECTION_UPDATE, h, m, out->busy_s, &out->missing);
    out->step_s = out->missing ? INFINITY : micro_runs * out->micro_s + out->update_s;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        double n = runs_in_step(o->section, turns, micro_runs);
        if (n == 0) continue;
        out->kinds[o->kind].seconds += n * cost_op_seconds(p, o, h, m, &out->missing);
        out->kinds[o->kind].n += n;
    }
}
