/* fuzz_alerts.c - alerts that ranks of other nodes send: states of their ranks, questions, the first cause.
 *
 * Lines of JSON, one alert each: [from, [32-bit words], "bytes behind them"]. The words begin with the head of an alert (kind,
 * generation, n, unused); a rank_state has 28 of them, or 12 and then the name of its tensor.
 * Whatever came: states of this node's own ranks stay as they are, answers go to other nodes and are no longer than an alert, every
 * rank can be described in the room that there is, and who is blamed is a rank. */
#include "comm/comm_state.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { N_RANKS = 5, N_LOCAL = 2, RANK = 1 };
static int node_of[N_RANKS] = {0, 0, 2, 2, 4}, local_of[N_RANKS] = {0, 1, 0, 1, 0}, local_ranks[N_LOCAL] = {0, 1};
static char hosts[N_RANKS][HOST_BYTES] = {"a", "a", "b", "b", "c"};

/* ---- a transport that brings what the input says -------------------------------------------------------------------- */

static span alerts; /* lines that are still to come */

static size_t alert_bytes(const json_t *alert, uint8_t *out) {
    const json_t *words = json_array_get(alert, 1), *behind = json_array_get(alert, 2), *word;
    size_t n = 0, i;
    json_array_foreach(words, i, word) {
        uint32_t bits = (uint32_t)(uint64_t)json_integer_value(word);
        if (n + sizeof bits > ALERT_BYTES) break;
        memcpy(out + n, &bits, sizeof bits);
        n += sizeof bits;
    }
    size_t n_behind = MIN(json_string_length(behind), ALERT_BYTES - n);
    if (n_behind) memcpy(out + n, json_string_value(behind), n_behind);
    return n + n_behind;
}

static bool hear(comm *c, void *bytes, size_t *n_bytes, int *from) {
    (void)c;
    while (alerts.length) {
        const char *end = memchr(alerts.text, '\n', alerts.length);
        size_t n = end ? (size_t)(end - alerts.text) : alerts.length, with_end = n + (end != NULL);
        json_t *alert = json_loadb(alerts.text, n, JSON_ALLOW_NUL, NULL);
        alerts = (span){alerts.text + with_end, alerts.length - with_end};
        bool is_one = json_is_array(alert);
        if (is_one) {
            *n_bytes = alert_bytes(alert, bytes);
            *from = (int)json_integer_value(json_array_get(alert, 0));
        }
        json_decref(alert);
        if (is_one) return true;
    }
    return false;
}

static void post(comm *c, int to, const void *bytes, size_t n_bytes) {
    uint8_t copy[ALERT_BYTES];
    ASSERT(to >= 0 && to < c->size && node_of[to] != node_of[RANK] && n_bytes <= ALERT_BYTES);
    memcpy(copy, bytes, n_bytes); /* a sanitizer looks at every byte */
}

static const comm_transport from_input = {.post = post, .hear = hear};

/* ---- the checks ------------------------------------------------------------------------------------------------------- */

static void check_texts(const comm *c) {
    for (int r = 0; r < N_RANKS; r++) {
        char text[512], chain[256];
        rank_state s;
        state_get(c, r, &s);
        ASSERT(s.rank == r && memchr(s.tensor, 0, sizeof s.tensor));
        ASSERT(memchr(comm_describe(c, r, text, sizeof text), 0, sizeof text) && strncmp(text, "rank ", 5) == 0);
        comm_describe(c, r, text, 24); /* too short for all of it */
        ASSERT(strlen(text) < 24);
        int late = blame_find(c, r, chain, sizeof chain);
        ASSERT(late >= -1 && late < N_RANKS && strlen(chain) < sizeof chain && *chain);
    }
}

static void check_cause(comm *c) {
    status rc = comm_check(c);
    if (rc == OK) return;
    ASSERT(rc > OK && rc <= ERR_BUG && error_code() == rc);
    ASSERT(comm_cause(c)->rank == CAUSE_OF_OTHER_NODE || comm_cause(c)->rank == CAUSE_OF_OTHER_LAUNCHER);
}

void fuzz_one(const uint8_t *data, size_t size) {
    size_t n_bytes = sizeof(node_page) + N_LOCAL * sizeof(seat) + N_RANKS * sizeof(state_copy);
    node_page *page = aligned_alloc(_Alignof(seat), (size_t)round_up((int64_t)n_bytes, _Alignof(seat)));
    ASSERT(page);
    memset(page, 0, n_bytes);
    comm c = {.transport = &from_input,
              .transport_state = page, /* it only has to be there */
              .rank = RANK,
              .size = N_RANKS,
              .node_of = node_of,
              .local_of = local_of,
              .hosts = hosts,
              .node = {.n = N_LOCAL, .index = RANK, .ranks = local_ranks, .page = page}};
    c.node.copies = (state_copy *)&page->seats[N_LOCAL];
    for (int i = 0; i < N_LOCAL; i++) page->seats[i].rank = i;
    seat before[N_LOCAL];
    memcpy(before, page->seats, sizeof before);
    alerts = (span){(const char *)data, size};
    while (alerts.length) alerts_hear(&c);
    ASSERT(memcmp(before, page->seats, sizeof before) == 0);
    static const state_copy nothing;
    for (int r = 0; r < N_LOCAL; r++) ASSERT(memcmp(node_copy(&c, r), &nothing, sizeof nothing) == 0);
    check_texts(&c);
    check_cause(&c);
    free(page);
}
