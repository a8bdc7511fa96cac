/* states.c - where every rank is: step, op, whom it waits for, and when its watcher last looked.
 *
 * A rank writes its own state into the node's page, a few relaxed stores per collective; the ranks of its node read it there,
 * also when it has been stopped or killed. States of other nodes come as alerts and lie in the same page, so that one rank
 * of a node that hears tells all of it. They are read while they are written: good for messages to people and for finding
 * a rank that stands still, nothing else. */
#include "comm/comm_state.h"

/* A watcher looks twenty times a second: one that has not for so long does not run. */
#define SILENT_NS ((uint64_t)1500 * 1000000)

static seat *own_seat(const comm *c) { return c->node.page ? node_seat(c, c->node.index) : NULL; }

/* ---- of this rank ------------------------------------------------------------------------------------------------------ */

void comm_note_step(comm *c, int64_t step) {
    seat *s = own_seat(c);
    if (s) atomic_store_explicit(&s->step, step, memory_order_relaxed);
}

void comm_note_op(comm *c, const op *o) {
    seat *s = own_seat(c);
    if (!s) return;
    atomic_store_explicit(&s->computing, (uint32_t)o->kind + 1, memory_order_relaxed);
    atomic_store_explicit(&s->layer, o->layer, memory_order_relaxed);
    atomic_store_explicit(&s->section, (int32_t)o->section, memory_order_relaxed);
}

void state_note_exchange(comm *c, uint32_t exchanging, const char *tensor) {
    seat *s = own_seat(c);
    uint64_t words[NAME_WORDS] = {0};
    if (!s) return;
    if (exchanging) {
        memcpy(words, tensor, strnlen(tensor, NAME_BYTES - 1));
        for (int i = 0; i < NAME_WORDS; i++) atomic_store_explicit(&s->tensor[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&s->exchanging, exchanging, memory_order_relaxed);
}

void state_note_wait(comm *c, int waits_for) {
    seat *s = own_seat(c);
    if (s) atomic_store_explicit(&s->waits_for, waits_for, memory_order_relaxed);
}

void state_note_life(comm *c) { atomic_store(&own_seat(c)->seen_ns, clock_ns()); }

/* ---- of any rank -------------------------------------------------------------------------------------------------------- */

static void seat_read(const seat *s, rank_state *out) {
    uint64_t words[NAME_WORDS];
    *out = (rank_state){.rank = s->rank,
                        .pid = s->pid,
                        .step = atomic_load_explicit(&s->step, memory_order_relaxed),
                        .computing = atomic_load_explicit(&s->computing, memory_order_relaxed),
                        .exchanging = atomic_load_explicit(&s->exchanging, memory_order_relaxed),
                        .layer = atomic_load_explicit(&s->layer, memory_order_relaxed),
                        .section = atomic_load_explicit(&s->section, memory_order_relaxed),
                        .n_setup = atomic_load_explicit(&s->n_setup, memory_order_relaxed),
                        .waits_for = atomic_load_explicit(&s->waits_for, memory_order_relaxed),
                        .seen_ns = atomic_load_explicit(&s->seen_ns, memory_order_relaxed)};
    for (int i = 0; i < NAME_WORDS; i++) words[i] = atomic_load_explicit(&s->tensor[i], memory_order_relaxed);
    memcpy(out->tensor, words, NAME_BYTES);
}

void state_get(const comm *c, int rank, rank_state *out) {
    uint64_t words[sizeof *out / 8];
    const seat *s = node_seat_of(c, rank);
    *out = (rank_state){.rank = rank, .waits_for = WAITS_FOR_UNKNOWN};
    if (s) {
        seat_read(s, out);
    } else if (c->node.page) {
        state_copy *from = node_copy(c, rank);
        for (size_t i = 0; i < ARRAY_LENGTH(words); i++)
            words[i] = atomic_load_explicit(&from->words[i], memory_order_relaxed);
        memcpy(out, words, sizeof *out);
        if (out->seen_ns == 0) out->waits_for = WAITS_FOR_UNKNOWN; /* nothing came yet */
    }
    out->rank = rank;
    out->tensor[NAME_BYTES - 1] = 0;
}

void state_put(comm *c, const rank_state *s) {
    uint64_t words[sizeof *s / 8];
    state_copy *to = node_copy(c, s->rank);
    memcpy(words, s, sizeof *s);
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++)
        atomic_store_explicit(&to->words[i], words[i], memory_order_relaxed);
}

bool state_is_silent(const rank_state *s) {
    uint64_t now = clock_ns();
    return now > s->seen_ns && now - s->seen_ns > SILENT_NS;
}

/* ---- in words ------------------------------------------------------------------------------------------------------------- */

static void add_text(char *out, size_t n, const char *fmt, ...) {
    size_t length = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + length, n - length, fmt, args);
    va_end(args);
}

static const char *kind_name(uint32_t noted) {
    return noted > 0 && noted <= OP_COUNT ? op_name((op_kind)(noted - 1)) : "an op";
}

static void add_name(const comm *c, const rank_state *s, char *out, size_t n) {
    snprintf(out, n, "rank %d (", s->rank);
    if (s->pid > 0) add_text(out, n, "pid %d on ", s->pid);
    add_text(out, n, "%s)", c->hosts[s->rank]);
    if (s->step > 0) add_text(out, n, ", step %lld", (long long)s->step);
}

char *state_name(const comm *c, int rank, char *out, size_t n) {
    rank_state s;
    state_get(c, rank, &s);
    add_name(c, &s, out, n);
    return out;
}

char *comm_describe(const comm *c, int rank, char *out, size_t n) {
    rank_state s;
    state_get(c, rank, &s);
    add_name(c, &s, out, n);
    if (s.exchanging) add_text(out, n, ", in %s of '%s'", kind_name(s.exchanging), s.tensor);
    if (s.computing) add_text(out, n, ", computing %s", kind_name(s.computing));
    if (s.computing && s.layer >= 0) add_text(out, n, " of layer %d", s.layer);
    if (s.computing && s.section >= 0 && s.section < SECTION_COUNT)
        add_text(out, n, " (%s)", section_name((enum section)s.section));
    return out;
}
