/* messages.c - collectives over the transport: between nodes, and where ranks do not share memory.
 *
 * Plain and in rank order: everybody exchanges with everybody, and sums are made by the receiver, so the bits are those of
 * shared memory. A sum takes its parts in chunks that fit the op's scratch; what is gathered goes straight to its place. */
#include "comm/comm_state.h"

static void add_message(comm *c, int *n, bool receive, int peer, int tag, const void *bytes, size_t n_bytes) {
    if (n_bytes > 0) c->messages[(*n)++] = (message){(void *)bytes, n_bytes, peer, tag, receive};
}

static status all_gather(comm *c, const collective *k) {
    int n = 0;
    uint8_t *own = (uint8_t *)k->y + (size_t)k->index * k->x_bytes;
    if (own != k->x) memcpy(own, k->x, k->x_bytes);
    for (int i = 0; i < k->n; i++) {
        if (i == k->index) continue;
        int peer = comm_rank_at(c, k->axis, i);
        add_message(c, &n, true, peer, k->axis, (uint8_t *)k->y + (size_t)i * k->x_bytes, k->x_bytes);
        add_message(c, &n, false, peer, k->axis, own, k->x_bytes);
    }
    return c->transport->exchange(c, &k->wait, c->messages, n);
}

static status all_to_all(comm *c, const collective *k) {
    int n = 0;
    size_t part = k->x_bytes / (size_t)k->n;
    const uint8_t *x = k->x;
    uint8_t *y = k->y;
    memcpy(y + (size_t)k->index * part, x + (size_t)k->index * part, part);
    for (int i = 0; i < k->n; i++) {
        if (i == k->index) continue;
        int peer = comm_rank_at(c, k->axis, i);
        add_message(c, &n, true, peer, k->axis, y + (size_t)i * part, part);
        add_message(c, &n, false, peer, k->axis, x + (size_t)i * part, part);
    }
    return c->transport->exchange(c, &k->wait, c->messages, n);
}

static status shift(comm *c, const collective *k) {
    int n = 0;
    add_message(c, &n, true, comm_rank_at(c, k->axis, (k->index + k->n - 1) % k->n), k->axis, k->y, k->y_bytes);
    add_message(c, &n, false, comm_rank_at(c, k->axis, (k->index + 1) % k->n), k->axis, k->x, k->x_bytes);
    return c->transport->exchange(c, &k->wait, c->messages, n);
}

/* The slice of x that each rank sums: a part of its own for REDUCE_SCATTER, of the whole for ALL_REDUCE. */
static void slice_of(const collective *k, int index, size_t *first, size_t *n) {
    if (k->kind == OP_ALL_REDUCE) {
        reduce_slice(k, index, first, n);
        return;
    }
    *n = k->y_bytes / dtype_bytes(k->type);
    *first = (size_t)index * *n;
}

/* s sums into out elements that begin with `begin`. Chunks are counted alike on every rank: slices differ by an element. */
static status sum_slices(comm *c, const collective *k, part_sum *s, size_t begin) {
    size_t element = dtype_bytes(k->type), most = 0, mine_first, mine_n;
    size_t chunk = k->work_bytes / (size_t)k->n / element;
    if (chunk == 0)
        return ERR(ERR_BUG, "%s: %zu bytes of scratch, expected room for an element of each of %d ranks", k->wait.what,
                   k->work_bytes, k->n);
    slice_of(k, k->index, &mine_first, &mine_n);
    for (int i = 0; i < k->n; i++) {
        size_t first, n;
        slice_of(k, i, &first, &n);
        most = MAX(most, n);
    }
    for (size_t at = 0; at < most; at += chunk) {
        int n_messages = 0;
        size_t mine = at < mine_n ? MIN(chunk, mine_n - at) : 0;
        for (int i = 0; i < k->n; i++) {
            size_t first, n;
            int peer = comm_rank_at(c, k->axis, i);
            slice_of(k, i, &first, &n);
            c->parts[i] = i == k->index ? (const uint8_t *)k->x + (mine_first + at) * element
                                        : (uint8_t *)k->work + (size_t)i * chunk * element;
            if (i == k->index) continue;
            add_message(c, &n_messages, true, peer, k->axis, c->parts[i], mine * element);
            size_t theirs = at < n ? MIN(chunk, n - at) : 0;
            add_message(c, &n_messages, false, peer, k->axis, (const uint8_t *)k->x + (first + at) * element,
                        theirs * element);
        }
        TRY(c->transport->exchange(c, &k->wait, c->messages, n_messages));
        if (mine > 0) part_sum_run(s, begin + at, mine);
    }
    return OK;
}

static status all_reduce(comm *c, const collective *k) {
    part_sum s = {.parts = c->parts, .n_parts = k->n, .type = k->type, .out = k->y};
    size_t first, n, element = dtype_bytes(k->type);
    int n_messages = 0;
    reduce_slice(k, k->index, &first, &n);
    TRY(sum_slices(c, k, &s, first));
    for (int i = 0; i < k->n; i++) {
        size_t their_first, their_n;
        if (i == k->index) continue;
        int peer = comm_rank_at(c, k->axis, i);
        reduce_slice(k, i, &their_first, &their_n);
        add_message(c, &n_messages, true, peer, k->axis, (uint8_t *)k->y + their_first * element, their_n * element);
        add_message(c, &n_messages, false, peer, k->axis, (uint8_t *)k->y + first * element, n * element);
    }
    return c->transport->exchange(c, &k->wait, c->messages, n_messages);
}

static status send_or_receive(comm *c, const collective *k) {
    int n = 0;
    bool receive = k->kind == OP_RECV;
    add_message(c, &n, receive, k->peer, AXIS_COUNT + k->tag, receive ? k->y : k->x, receive ? k->y_bytes : k->x_bytes);
    return c->transport->exchange(c, &k->wait, c->messages, n);
}

status messages_run(comm *c, const collective *k) {
    switch (k->kind) {
    case OP_ALL_GATHER: return all_gather(c, k);
    case OP_ALL_TO_ALL: return all_to_all(c, k);
    case OP_SHIFT: return shift(c, k);
    case OP_ALL_REDUCE: return all_reduce(c, k);
    case OP_REDUCE_SCATTER: {
        part_sum s = reduce_sum(c, k);
        return sum_slices(c, k, &s, 0);
    }
    default: return send_or_receive(c, k);
    }
}
