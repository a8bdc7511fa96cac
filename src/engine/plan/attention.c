/* attention.c - attention of sequence-parallel ranks: an exchange of heads (all-to-all), or a ring of keys and values.
 *
 * Heads: all-to-all of q, k, v and y, forward and backward. Compute waits for each of them, and the number of ranks must
 * divide the heads. Ring: k and v go round once in forward and once in backward, with their gradient in fp32. Where messages
 * overlap with kernels, most of that time hides behind the attention to the keys that already arrived. It works with any
 * number of heads, and no rank holds the keys of a whole row.
 *
 * A ring sends less with few kv heads, an exchange with many ranks: its bytes do not grow with their number. The times here
 * count only what differs between the two, with the rates of the cost model. */
#include "plan/plan.h"

#include <math.h>

typedef struct sizes {
    double own;        /* tokens of a row on one rank */
    double N, q, kv;   /* tokens of a rank; elements per token of q, and of k and v together */
    double width;      /* bytes of an element */
    double step_flops; /* of the attention to one rank's keys, forward */
    int S;
    const mesh *mesh;
} sizes;

static sizes sizes_of(const plan_request *r) {
    int tensor = mesh_size(&r->mesh, AXIS_TENSOR);
    const net_source *c = &r->source;
    sizes z = {.S = mesh_size(&r->mesh, AXIS_SEQUENCE),
               .mesh = &r->mesh,
               .width = (double)dtype_bytes(precision_compute(r->choice.precision))};
    z.own = (double)r->seq_len / z.S;
    z.N = (double)r->choice.micro_batch * z.own;
    z.q = (double)(c->n_heads / tensor * c->head_dim);
    z.kv = (double)(2 * MAX(c->n_kv_heads / tensor, (int64_t)1) * c->head_dim);
    z.step_flops = 2 * z.N * z.own * z.q;
    return z;
}

static double message_seconds(const sizes *z, double n_bytes, const hardware *h, const char **missing) {
    return cost_message_seconds(n_bytes, z->S, AXIS_SEQUENCE, true, h, z->mesh, missing);
}

/* Four all-to-alls, two of q, k, v and two of y. Rows are reordered before and after each: one read and one write. */
static double heads_seconds(const sizes *z, double n_bytes, const hardware *h, const char **missing) {
    double rows = 2 * (2 * z->q + z->kv) * z->N * z->width;
    return 4 * message_seconds(z, n_bytes / 4, h, missing) + 4 * rows / h->device_bandwidth + 12 * h->launch_s;
}

/* With overlap a step of the ring costs only the part of its message that is longer than its attention. Partial results in
 * fp32 are read and written at every step: y in forward, dq and dkv in backward. */
static double ring_seconds(const sizes *z, const plan_request *r, const char **missing) {
    const hardware *h = r->hardware;
    dtype t = precision_compute(r->choice.precision);
    double there = message_seconds(z, z->kv * z->N * z->width, h, missing);
    double back = message_seconds(z, z->kv * z->N * sizeof(float), h, missing);
    double forward = z->step_flops / hardware_attention_rate(h, t, z->own), backward = 2.5 * forward, steps = z->S;
    double copies = steps * 2 * (2 * z->q + z->kv) * z->N * sizeof(float) / h->device_bandwidth;
    copies += 5 * steps * h->launch_s;
    copies += (fmax(r->target.ring_slowness, 1) - 1) * steps * (forward + backward);
    if (!h->overlap) return (steps - 1) * 2 * there + steps * back + copies;
    return (steps - 1) * (fmax(there - forward, 0) + fmax(there - backward, 0)) + steps * back + copies;
}

attention_choice plan_attention(const plan_request *r) {
    sizes z = sizes_of(r);
    double steps = z.S;
    attention_choice a = {.kind = r->attention, .why = "as set", .heads_s = NAN, .ring_s = NAN};
    a.heads_bytes = 2 * (2 * z.q + z.kv) * z.N * z.width * (steps - 1) / steps;
    a.ring_bytes = (2 * (steps - 1) * z.width + steps * sizeof(float)) * z.kv * z.N;
    const char *missing = NULL;
    if (r->hardware) {
        a.heads_s = heads_seconds(&z, a.heads_bytes, r->hardware, &missing);
        a.ring_s = ring_seconds(&z, r, &missing);
    }
    if (a.kind != ATTENTION_AUTO) return a;
    bool timed = r->hardware && !missing;
    if (!net_heads_divide(r->source.n_heads, r->source.n_kv_heads, &r->mesh))
        a.kind = ATTENTION_RING, a.why = "the ranks cannot share the heads";
    else if (timed) a.kind = a.ring_s < a.heads_s ? ATTENTION_RING : ATTENTION_HEADS, a.why = "the faster one";
    else a.kind = a.ring_bytes < a.heads_bytes ? ATTENTION_RING : ATTENTION_HEADS, a.why = "the one that sends less";
    return a;
}
