/* pending.c - see pending.h. An ended connection is shut down, not closed: its owner sees that and closes it. */
#include "live/pending.h"

#include <netinet/in.h>
#include <string.h>

void pending_init(pending *p) {
    *p = (pending){0};
    pthread_mutex_init(&p->lock, NULL);
}
void pending_fini(pending *p) { pthread_mutex_destroy(&p->lock); }

static void take_out(pending *p, size_t at) {
    p->n--;
    memmove(&p->list[at], &p->list[at + 1], (p->n - at) * sizeof p->list[0]);
}

static void end_one(pending *p, size_t at) {
    shutdown(p->list[at].fd, SHUT_RDWR);
    take_out(p, at);
}

static size_t count_of(const pending *p, const uint8_t address[8]) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) n += memcmp(p->list[i].address, address, sizeof p->list[i].address) == 0;
    return n;
}

static void end_oldest_of(pending *p, const uint8_t address[8]) {
    for (size_t i = 0; i < p->n; i++) {
        if (memcmp(p->list[i].address, address, sizeof p->list[i].address) != 0) continue;
        end_one(p, i);
        return;
    }
}

static void make_room(pending *p, const uint8_t address[8]) {
    if (count_of(p, address) == PENDING_OF_ADDRESS) end_oldest_of(p, address);
    if (p->n < PENDING_MOST) return;
    uint8_t busiest[8];
    size_t most = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t n = count_of(p, p->list[i].address);
        if (n > most) most = n, memcpy(busiest, p->list[i].address, sizeof busiest);
    }
    end_oldest_of(p, busiest);
}

void pending_add(pending *p, int fd, const struct sockaddr *from, uint64_t now_ns) {
    pending_one one = {.fd = fd, .since_ns = now_ns};
    if (from->sa_family == AF_INET6)
        memcpy(one.address, &((const struct sockaddr_in6 *)from)->sin6_addr, sizeof one.address);
    else memcpy(one.address, &((const struct sockaddr_in *)from)->sin_addr, sizeof(struct in_addr));
    pthread_mutex_lock(&p->lock);
    make_room(p, one.address);
    p->list[p->n++] = one;
    pthread_mutex_unlock(&p->lock);
}

void pending_remove(pending *p, int fd) {
    pthread_mutex_lock(&p->lock);
    size_t at = 0;
    while (at < p->n && p->list[at].fd != fd) at++;
    if (at < p->n) take_out(p, at);
    pthread_mutex_unlock(&p->lock);
}

void pending_end_late(pending *p, uint64_t now_ns) {
    pthread_mutex_lock(&p->lock);
    while (p->n && now_ns - p->list[0].since_ns > PENDING_S * 1000000000ull) end_one(p, 0);
    pthread_mutex_unlock(&p->lock);
}
