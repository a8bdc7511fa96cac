/* window.c - collectives of ranks on one node, which read each other's memory.
 *
 * A collective is two or three meetings. A rank writes down where its operand lies (the offer) and comes to the first; when
 * all have come, each reads what it needs from the others; nobody leaves, and changes what may still be read, before all
 * have come to the last. Reading in place costs one pass over the bytes; no copy of them is made anywhere.
 *
 * Waiting is sleeping on the counter of the rank that is late, so ranks that outnumber the cores do not take them from the
 * ranks they wait for. Where every rank has a core, a short spin comes first: a meeting is then under a microsecond. */
#include "comm/comm_state.h"

enum { SLEEP_MS = 20 };

static void spin_a_little(void) {
#if defined(__aarch64__)
    __asm__ volatile("yield");
#else
    __builtin_ia32_pause();
#endif
}

/* ---- meetings ------------------------------------------------------------------------------------------------------- */

/* Until *word has reached n, which the given rank will see to. */
static status wait_for(comm *c, const comm_wait *w, _Atomic uint32_t *word, _Atomic uint32_t *sleepers, uint32_t n,
                       int rank) {
    for (int i = 0; i < c->spins; i++) {
        if ((int32_t)(atomic_load_explicit(word, memory_order_acquire) - n) >= 0) return OK;
        spin_a_little();
    }
    status rc = OK;
    uint32_t seen;
    atomic_fetch_add(sleepers, 1); /* before looking again: whoever counts after that wakes us */
    while ((int32_t)((seen = atomic_load(word)) - n) < 0 && (rc = comm_wait_check(c, w, rank)) == OK)
        futex_wait_ms(word, seen, SLEEP_MS);
    atomic_fetch_sub(sleepers, 1);
    state_note_wait(c, WAITS_FOR_NOBODY);
    return rc;
}

static void count_up(_Atomic uint32_t *word, _Atomic uint32_t *sleepers) {
    atomic_fetch_add(word, 1);
    if (atomic_load(sleepers) > 0) futex_wake_all(word);
}

static int local_of(const comm *c, const collective *k, int index) {
    return c->local_of[comm_rank_at(c, k->axis, index)];
}

static status group_barrier(comm *c, const collective *k) {
    meeting *mine = &node_seat(c, c->node.index)->meetings[k->axis];
    uint32_t n = atomic_load_explicit(&mine->n_met, memory_order_relaxed) + 1;
    count_up(&mine->n_met, &mine->n_sleepers);
    for (int i = 0; i < k->n; i++) {
        meeting *m = &node_seat(c, local_of(c, k, i))->meetings[k->axis];
        if (i != k->index) TRY(wait_for(c, &k->wait, &m->n_met, &m->n_sleepers, n, comm_rank_at(c, k->axis, i)));
    }
    return OK;
}

/* Where the operands of the group lie, into c->parts; false when one of them is not shared. */
static bool find_parts(comm *c, const collective *k, int which) {
    bool shared = true;
    for (int i = 0; i < k->n; i++) {
        int local = local_of(c, k, i);
        c->parts[i] = node_peer_bytes(c, local, &node_seat(c, local)->meetings[k->axis].offers[which]);
        shared &= c->parts[i] != NULL;
    }
    return shared;
}

/* The first meeting: what every rank brings. A group whose ranks are in different collectives must not read a byte. */
static status group_barrier_with_offers(comm *c, const collective *k, bool *shared) {
    meeting *mine = &node_seat(c, c->node.index)->meetings[k->axis];
    node_offer(c, k->x, k->x_bytes, k->kind, &mine->offers[OFFER_X]);
    node_offer(c, k->y, k->y_bytes, k->kind, &mine->offers[OFFER_Y]);
    TRY(group_barrier(c, k));
    for (int i = 0; i < k->n; i++) {
        const offer *o = &node_seat(c, local_of(c, k, i))->meetings[k->axis].offers[OFFER_X];
        if (o->kind != (uint32_t)k->kind || o->n_bytes != k->x_bytes)
            return ERR(ERR_BUG, "%s: rank %d has %zu bytes, rank %d is in %s with %llu bytes", k->wait.what, c->rank,
                       k->x_bytes, comm_rank_at(c, k->axis, i),
                       o->kind < OP_COUNT ? op_name((op_kind)o->kind) : "no op", (unsigned long long)o->n_bytes);
    }
    *shared = find_parts(c, k, OFFER_Y);
    *shared &= find_parts(c, k, OFFER_X);
    return OK;
}

/* ---- collectives ------------------------------------------------------------------------------------------------------ */

static void all_gather(comm *c, const collective *k) {
    for (int i = 0; i < k->n; i++) { /* the next rank first: not all from the same one at once */
        int from = (k->index + i) % k->n;
        uint8_t *to = (uint8_t *)k->y + (size_t)from * k->x_bytes;
        if (to != c->parts[from]) memcpy(to, c->parts[from], k->x_bytes);
    }
}

static void reduce_scatter(comm *c, const collective *k) {
    for (int i = 0; i < k->n; i++) c->parts[i] = (const uint8_t *)c->parts[i] + (size_t)k->index * k->y_bytes;
    part_sum s = reduce_sum(c, k);
    part_sum_run(&s, 0, k->y_bytes / dtype_bytes(k->type));
}

/* Every rank sums its slice over all ranks, then takes the other slices from those who summed them. y may be x: slice i of
 * any rank is read by rank i alone until it is summed. */
static status all_reduce(comm *c, const collective *k) {
    size_t first, n, element = dtype_bytes(k->type);
    reduce_slice(k, k->index, &first, &n);
    for (int i = 0; i < k->n; i++) c->parts[i] = (const uint8_t *)c->parts[i] + first * element;
    part_sum s = {.parts = c->parts, .n_parts = k->n, .type = k->type, .out = k->y};
    part_sum_run(&s, first, n);
    TRY(group_barrier(c, k));
    find_parts(c, k, OFFER_Y);
    for (int i = 1; i < k->n; i++) {
        int from = (k->index + i) % k->n;
        reduce_slice(k, from, &first, &n);
        memcpy((uint8_t *)k->y + first * element, (const uint8_t *)c->parts[from] + first * element, n * element);
    }
    return OK;
}

static void all_to_all(comm *c, const collective *k) {
    size_t part = k->x_bytes / (size_t)k->n;
    for (int i = 0; i < k->n; i++) {
        int from = (k->index + i) % k->n;
        memcpy((uint8_t *)k->y + (size_t)from * part, (const uint8_t *)c->parts[from] + (size_t)k->index * part, part);
    }
}

static void shift(comm *c, const collective *k) { memcpy(k->y, c->parts[(k->index + k->n - 1) % k->n], k->y_bytes); }

/* ---- one to one --------------------------------------------------------------------------------------------------------- */

static status send(comm *c, const collective *k, bool *taken) {
    parcel *p = &node_seat(c, c->node.index)->parcel;
    node_offer(c, k->x, k->x_bytes, k->kind, &p->offer);
    atomic_store(&p->to, k->peer);
    p->tag = k->tag;
    *taken = p->offer.region != NO_REGION;
    uint32_t n = atomic_load_explicit(&p->n_posted, memory_order_relaxed) + 1;
    count_up(&p->n_posted, &p->n_sleepers);
    return wait_for(c, &k->wait, &p->n_taken, &p->n_sleepers, n, k->peer);
}

/* The parcel for this rank. The sender changes it only after it was received: a parcel read while n_taken did not
 * change is complete. */
static status find_parcel(comm *c, const collective *k, parcel *p) {
    for (;;) {
        uint32_t taken = atomic_load(&p->n_taken);
        TRY(wait_for(c, &k->wait, &p->n_posted, &p->n_sleepers, taken + 1, k->peer));
        bool ours = atomic_load(&p->to) == c->rank;
        if (atomic_load(&p->n_taken) != taken) continue;
        if (ours) return OK;
        TRY(wait_for(c, &k->wait, &p->n_taken, &p->n_sleepers, taken + 1, k->peer));
    }
}

static status receive(comm *c, const collective *k, bool *taken) {
    int local = c->local_of[k->peer];
    parcel *p = &node_seat(c, local)->parcel;
    TRY(find_parcel(c, k, p));
    if (p->tag != k->tag || p->offer.n_bytes != k->y_bytes)
        return ERR(ERR_BUG, "%s: rank %d waits for message %d of %zu bytes, rank %d sends %d of %llu", k->wait.what,
                   c->rank, k->tag, k->y_bytes, k->peer, p->tag, (unsigned long long)p->offer.n_bytes);
    const uint8_t *bytes = node_peer_bytes(c, local, &p->offer);
    if (bytes) memcpy(k->y, bytes, k->y_bytes);
    *taken = bytes != NULL;
    count_up(&p->n_taken, &p->n_sleepers);
    return OK;
}

status window_run(comm *c, const collective *k, bool *taken) {
    if (k->kind == OP_SEND) return send(c, k, taken);
    if (k->kind == OP_RECV) return receive(c, k, taken);
    TRY(group_barrier_with_offers(c, k, taken));
    if (*taken) switch (k->kind) {
        case OP_ALL_GATHER: all_gather(c, k); break;
        case OP_REDUCE_SCATTER: reduce_scatter(c, k); break;
        case OP_ALL_REDUCE: TRY(all_reduce(c, k)); break;
        case OP_SHIFT: shift(c, k); break;
        default: all_to_all(c, k); break;
        }
    return group_barrier(c, k);
}
