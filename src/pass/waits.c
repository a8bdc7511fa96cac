/* waits.c - what every op must wait for on the other streams.
 *
 * Ops of one stream run in list order. Across streams an op waits for the last earlier op of each stream that writes
 * bytes it touches or touches bytes it writes. Bytes, not values: two values that never live at the same moment may share
 * them, and then the second must wait for the first. The list order satisfies every such pair, so no two streams can
 * wait for each other.
 *
 * op.wait counts ops of a stream within the section: 3 means its third op must be done. What an earlier op of the same
 * stream has waited for already is not waited for again. */
#include "pass/pass.h"

#include <stdlib.h>

enum { TOUCHED_MAX = OP_MAX_IN + OP_MAX_OUT + 1 };

typedef struct touched {
    tier tier;
    bool written;
    size_t begin, end;
} touched;

typedef struct footprint {
    int n;
    touched ranges[TOUCHED_MAX];
} footprint;

static void add_range(footprint *f, const program *p, const op *o, value_id v, bool written) {
    if (v == NO_VALUE) return;
    size_t inside, n_bytes = value_bytes(&p->values[v]);
    const value *root = &p->values[program_root(p, v, &inside)];
    if (o->stream == STREAM_READ || o->stream == STREAM_WRITE) n_bytes = sectors_up(n_bytes);
    f->ranges[f->n++] = (touched){root->tier, written, root->offset + inside, root->offset + inside + n_bytes};
}

static void find_footprint(footprint *f, const program *p, const op *o) {
    f->n = 0;
    for (int k = 0; k < op_input_count(o->kind); k++) add_range(f, p, o, o->in[k], false);
    for (int k = 0; k < op_output_count(o->kind); k++) add_range(f, p, o, o->out[k], true);
    add_range(f, p, o, o->work, true);
}

static bool conflict(const footprint *a, const footprint *b) {
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++) {
            const touched *x = &a->ranges[i], *y = &b->ranges[k];
            if ((x->written || y->written) && x->tier == y->tier && x->begin < y->end && y->begin < x->end) return true;
        }
    return false;
}

/* Ops of one stream in one section, in order. */
typedef struct lane {
    size_t *ops;
    size_t n;
    uint32_t waited[STREAM_COUNT]; /* what its ops so far have waited for */
} lane;

static void find_section_waits(program *p, size_t first, size_t end, footprint *prints, lane *lanes) {
    for (stream s = 0; s < STREAM_COUNT; s++) lanes[s] = (lane){.ops = lanes[s].ops};
    for (size_t i = first; i < end; i++) {
        op *o = &p->ops[i];
        lane *mine = &lanes[o->stream];
        find_footprint(&prints[i - first], p, o);
        for (stream s = 0; s < STREAM_COUNT; s++) {
            o->wait[s] = 0;
            if (s == o->stream) continue;
            for (size_t k = lanes[s].n; k > mine->waited[s]; k--) {
                if (!conflict(&prints[i - first], &prints[lanes[s].ops[k - 1] - first])) continue;
                o->wait[s] = mine->waited[s] = (uint32_t)k;
                break;
            }
        }
        mine->ops[mine->n++] = i;
    }
}

status pass_waits(program *p, pass_context *c) {
    (void)c;
    footprint *prints = mem_alloc((p->n_ops + 1) * sizeof *prints);
    lane lanes[STREAM_COUNT];
    for (stream s = 0; s < STREAM_COUNT; s++) lanes[s].ops = mem_alloc((p->n_ops + 1) * sizeof *lanes[s].ops);
    for (size_t first = 0, end; first < p->n_ops; first = end) {
        for (end = first; end < p->n_ops && p->ops[end].section == p->ops[first].section;) end++;
        find_section_waits(p, first, end, prints, lanes);
    }
    for (stream s = 0; s < STREAM_COUNT; s++) free(lanes[s].ops);
    free(prints);
    return OK;
}
