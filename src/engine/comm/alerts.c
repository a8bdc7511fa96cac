/* alerts.c - messages between nodes beside the collectives: the first cause of a failure, and the states of their
 * ranks.
 *
 * No single rank represents a node, because that rank may be the one that hangs. A cause goes to every rank of the
 * other nodes. States go ten times a second from any rank of a node (the page records when it was last done) to one
 * rank of every other node, a different one each time; the receiver writes them into its node's page. When a rank is
 * missing, all ranks of other nodes are asked, and each answers for its node. An alert that cannot be sent is dropped:
 * nothing waits for one.
 *
 * Received bytes are checked like those of a file: a wrong message must not corrupt memory. */
#include "comm/comm_state.h"

#include <stddef.h>

typedef enum alert_kind { ALERT_CAUSE, ALERT_ASK, ALERT_STATES } alert_kind;
typedef struct alert_head {
    uint32_t kind, generation, n, unused; /* n: states that follow */
} alert_head;
typedef struct alert_cause {
    alert_head head;
    int32_t code, origin;
    char text[CAUSE_BYTES];
} alert_cause;
enum { STATES_MOST = (ALERT_BYTES - sizeof(alert_head)) / sizeof(rank_state) };
typedef struct alert_states {
    alert_head head;
    rank_state states[STATES_MOST];
} alert_states;

/* At most a hundred alerts a second from a node, however many nodes there are. */
#define REPORT_LEAST_NS ((uint64_t)100000000)
#define REPORT_NS_PER_NODE ((uint64_t)10000000)
#define ASK_NS ((uint64_t)300000000)
enum { HEARD_MOST = 256 }; /* in one look */

static bool is_remote(const comm *c, int rank) { return c->node_of[rank] != c->node_of[c->rank]; }

/* The first rank of a node that gets here does what is due. */
static bool claim_if_due(_Atomic uint64_t *last_ns, uint64_t period_ns) {
    uint64_t now = clock_ns(), last = atomic_load(last_ns);
    return now - last >= period_ns && atomic_compare_exchange_strong(last_ns, &last, now);
}

void alerts_send_cause(comm *c, const cause *x) {
    if (!c->transport_state || !c->node_of || c->node.n == 0 || c->node.n == c->size) return;
    alert_cause a = {.head = {.kind = ALERT_CAUSE, .generation = c->generation}, .code = x->code};
    a.origin = x->rank == CAUSE_OF_LAUNCHER ? CAUSE_OF_OTHER_LAUNCHER : CAUSE_OF_OTHER_NODE;
    memcpy(a.text, x->text, CAUSE_BYTES);
    for (int r = 0; r < c->size; r++)
        if (is_remote(c, r)) c->transport->post(c, r, &a, sizeof a);
}

/* The states of this node to a rank of another, in as many alerts as they need. */
static void send_states(comm *c, int to) {
    alert_states a = {.head = {.kind = ALERT_STATES, .generation = c->generation}};
    for (int i = 0; i < c->node.n; i++) {
        rank_state *s = &a.states[a.head.n++];
        state_get(c, c->node.ranks[i], s);
        uint64_t now = clock_ns();
        s->seen_ns = now > s->seen_ns ? now - s->seen_ns : 0;
        if (a.head.n < STATES_MOST && i + 1 < c->node.n) continue;
        c->transport->post(c, to, &a, offsetof(alert_states, states) + a.head.n * sizeof *s);
        a.head.n = 0;
    }
}

void alerts_report(comm *c) {
    if (c->node.n == c->size) return;
    int n_nodes = 0;
    for (int r = 0; r < c->size; r++) n_nodes += c->node_of[r] == r;
    if (!claim_if_due(&c->node.page->report_ns, MAX(REPORT_LEAST_NS, REPORT_NS_PER_NODE * (uint64_t)n_nodes))) return;
    uint64_t turn = atomic_load(&c->node.page->report_ns) / REPORT_LEAST_NS;
    for (int first = 0; first < c->size; first++) {
        if (c->node_of[first] != first || !is_remote(c, first)) continue;
        int n = 0, to = first;
        for (int r = first; r < c->size; r++) n += c->node_of[r] == first;
        for (int r = first; r < c->size; r++)
            if (c->node_of[r] == first && c->local_of[r] == (int)(turn % (uint64_t)n)) to = r;
        send_states(c, to);
    }
}

void alerts_ask(comm *c) {
    if (c->node.n == c->size || !claim_if_due(&c->node.page->ask_ns, ASK_NS)) return;
    alert_head ask = {.kind = ALERT_ASK, .generation = c->generation};
    for (int r = 0; r < c->size; r++)
        if (is_remote(c, r)) c->transport->post(c, r, &ask, sizeof ask);
}

static void take_states(comm *c, const alert_states *a, size_t n_bytes) {
    uint64_t now = clock_ns();
    if (a->head.n > STATES_MOST || n_bytes < offsetof(alert_states, states) + a->head.n * sizeof *a->states) return;
    for (uint32_t i = 0; i < a->head.n; i++) {
        rank_state s = a->states[i];
        if (s.rank < 0 || s.rank >= c->size || !is_remote(c, s.rank)) continue;
        s.seen_ns = s.seen_ns < now ? now - s.seen_ns : 1;
        state_put(c, &s);
    }
}

void alerts_hear(comm *c) {
    _Alignas(8) uint8_t bytes[ALERT_BYTES];
    size_t n_bytes;
    int from;
    if (c->node.n == c->size) return;
    for (int i = 0; i < HEARD_MOST && c->transport->hear(c, bytes, &n_bytes, &from); i++) {
        alert_head head;
        if (n_bytes < sizeof head || from < 0 || from >= c->size || !is_remote(c, from)) continue;
        memcpy(&head, bytes, sizeof head);
        if (head.generation != c->generation) continue;
        atomic_store(&node_copy(c, from)->heard_ns, clock_ns());
        if (head.kind == ALERT_ASK) send_states(c, from);
        if (head.kind == ALERT_STATES) take_states(c, (const alert_states *)bytes, n_bytes);
        if (head.kind == ALERT_CAUSE && n_bytes == sizeof(alert_cause)) {
            alert_cause *x = (alert_cause *)bytes;
            x->text[CAUSE_BYTES - 1] = 0;
            int origin = x->origin == CAUSE_OF_OTHER_LAUNCHER ? CAUSE_OF_OTHER_LAUNCHER : CAUSE_OF_OTHER_NODE;
            comm_cause_set(c, origin, (status)x->code, x->text);
        }
    }
}
