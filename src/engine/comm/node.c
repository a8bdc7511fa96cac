/* node.c - ranks of one node: a page that all of them map, and memory that they read of each other.
 *
 * Shared memory is a memfd: it has no name that a killed run leaves behind, and /dev/shm, which containers keep small, does
 * not bound it. A peer opens it as /proc/PID/fd/N, which asks for the same user and the same process namespace.
 *
 * Who is alive: every rank holds a lock on its own byte of the page's file, on a file description of its own. The kernel
 * drops it when the process ends, however it ends, also while its parent has not yet waited for it.
 *
 * The page is written by processes that may be killed at any instruction: nothing here waits for a lock, and no field is
 * trusted to point anywhere before it was checked. */
#define _GNU_SOURCE
#include "comm/comm_state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not FUTEX_PRIVATE: the word is in memory of several processes. */
void futex_wake_all(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

void futex_wait_ms(_Atomic uint32_t *word, uint32_t seen, int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

/* ---- files of other ranks --------------------------------------------------------------------------------------- */

/* Where a rank's shared memory is to be found; n_bytes 0: it has none. */
typedef struct place {
    int32_t pid, fd;
    uint32_t slot; /* of its regions */
    uint64_t n_bytes;
} place;

static status open_peer(const place *p, int rank, int flags, int *out) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", p->pid, p->fd);
    if ((*out = open(path, flags | O_CLOEXEC)) < 0)
        return ERR(
            ERR_IO,
            "open the shared memory of rank %d, %s: %s. Ranks of one node must run as the same user and see each "
            "other's processes; with comm.shared_memory=false they exchange messages instead",
            rank, path, strerror(errno));
    return OK;
}

static status map_file(int fd, size_t n_bytes, int protection, int rank, void **out) {
    if ((*out = mmap(NULL, n_bytes, protection, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        *out = NULL;
        return ERR(ERR_IO, "map %zu bytes of shared memory of rank %d: %s", n_bytes, rank, strerror(errno));
    }
    return OK;
}

static status make_file(const char *name, size_t n_bytes, int *out) {
    *out = memfd_create(name, MFD_CLOEXEC);
    if (*out < 0 || ftruncate(*out, (off_t)n_bytes) != 0) {
        int why = errno;
        if (*out >= 0) close(*out);
        *out = -1;
        char size[32];
        return ERR(ERR_FIT, "shared memory of %s: %s", str_format_bytes(size, n_bytes), strerror(why));
    }
    return OK;
}

/* Every rank tells the world how it went before any of them continues: a rank that failed alone would leave the others
 * waiting in the next call. */
static status agree_on_success(comm *c, status mine) {
    error_record record;
    if (mine != OK) error_take(&record);
    uint8_t bad = mine != OK, *all = mem_alloc((size_t)c->size);
    status rc = c->transport->gather(c, &bad, 1, all);
    int first_bad = -1;
    for (int r = c->size - 1; r >= 0; r--)
        if (all[r]) first_bad = r;
    free(all);
    if (mine != OK) return error_give(&record);
    if (rc == OK && first_bad >= 0)
        return ERR(ERR_RUN, "rank %d (%s) could not join the others of its node", first_bad, c->hosts[first_bad]);
    return rc;
}

/* ---- the page ------------------------------------------------------------------------------------------------------ */

static status lock_own_byte(node *n) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = n->index, .l_len = 1};
    if (fcntl(n->page_fd, F_OFD_SETLK, &l) != 0)
        return ERR(ERR_IO, "lock this rank's byte of the node's page: %s", strerror(errno));
    return OK;
}

bool node_peer_is_dead(const comm *c, int local) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = local, .l_len = 1};
    return fcntl(c->node.page_fd, F_OFD_GETLK, &l) == 0 && l.l_type == F_UNLCK;
}

static status join_page(comm *c, const place *leader) {
    node *n = &c->node;
    if (leader->n_bytes != n->page_bytes)
        return ERR(ERR_RUN, "rank %d, the first of this node, did not share its memory with the others", n->ranks[0]);
    if (n->index > 0) TRY(open_peer(leader, n->ranks[0], O_RDWR, &n->page_fd));
    void *page;
    TRY(map_file(n->page_fd, n->page_bytes, PROT_READ | PROT_WRITE, n->ranks[0], &page));
    n->page = page;
    n->copies = (state_copy *)&n->page->seats[n->n];
    TRY(lock_own_byte(n));
    seat *s = &n->page->seats[n->index];
    atomic_store(&s->waits_for, WAITS_FOR_NOBODY);
    atomic_store(&s->seen_ns, clock_ns());
    s->rank = c->rank;
    s->pid = getpid();
    atomic_store(&s->state, SEAT_TAKEN);
    return OK;
}

status node_open(comm *c, const int *node_of) {
    node *n = &c->node;
    n->page_fd = -1;
    n->ranks = mem_alloc((size_t)c->size * sizeof *n->ranks);
    for (int r = 0; r < c->size; r++) {
        if (node_of[r] != node_of[c->rank]) continue;
        if (r == c->rank) n->index = n->n;
        n->ranks[n->n++] = r;
    }
    n->peers = mem_alloc((size_t)n->n * sizeof *n->peers);
    n->peer_bytes = mem_alloc((size_t)n->n * sizeof *n->peer_bytes);
    n->page_bytes = sizeof(node_page) + (size_t)n->n * sizeof(seat) + (size_t)c->size * sizeof(state_copy);

    status rc = n->index == 0 ? make_file("ralo.node", n->page_bytes, &n->page_fd) : OK;
    error_record record;
    if (rc != OK) error_take(&record);
    place mine = {getpid(), n->page_fd, 0, rc == OK && n->index == 0 ? n->page_bytes : 0};
    place *all = mem_alloc((size_t)c->size * sizeof *all);
    status gathered = c->transport->gather(c, &mine, sizeof mine, all);
    if (rc != OK) rc = error_give(&record);
    else if (gathered == OK) rc = join_page(c, &all[n->ranks[0]]);
    free(all);
    if (gathered != OK) return gathered;
    return agree_on_success(c, rc);
}

void node_close(comm *c) {
    node *n = &c->node;
    if (n->page) {
        atomic_store(&n->page->seats[n->index].state, SEAT_LEFT);
        munmap(n->page, n->page_bytes);
    }
    if (n->page_fd >= 0) close(n->page_fd);
    free(n->ranks);
    free(n->peers);
    free(n->peer_bytes);
    *n = (node){.page_fd = -1};
}

seat *node_seat(const comm *c, int local) { return &c->node.page->seats[local]; }

state_copy *node_copy(const comm *c, int rank) { return &c->node.copies[rank]; }

seat *node_seat_of(const comm *c, int rank) {
    return c->node.page && c->node_of[rank] == c->node_of[c->rank] ? node_seat(c, c->local_of[rank]) : NULL;
}

/* ---- memory the others read ------------------------------------------------------------------------------------------ */

/* The same answer on every rank, also on one that has its node to itself: what follows from it is collective. */
bool comm_shares_memory(const comm *c) {
    for (int r = 0; r < c->size; r++)
        if (c->node_of[r] != r) return !c->options.messages_only;
    return false;
}

static void forget_peers(node *n, uint32_t slot) {
    for (int i = 0; i < n->n; i++) {
        if (n->peers[i][slot] && i != n->index) munmap((void *)n->peers[i][slot], n->peer_bytes[i][slot]);
        n->peers[i][slot] = NULL;
        n->peer_bytes[i][slot] = 0;
    }
}

/* Ranks open their memory in the same order, so the slots agree. */
static status map_peers(comm *c, uint32_t slot, const place *all) {
    node *n = &c->node;
    for (int i = 0; i < n->n; i++) {
        const place *p = &all[n->ranks[i]];
        if (i == n->index || p->n_bytes == 0) continue;
        if (p->slot != slot)
            return ERR(ERR_BUG, "rank %d opens shared memory block %u, this rank block %u", n->ranks[i], p->slot, slot);
        int fd;
        void *memory;
        TRY(open_peer(p, n->ranks[i], O_RDONLY, &fd));
        status rc = map_file(fd, p->n_bytes, PROT_READ, n->ranks[i], &memory);
        close(fd);
        if (rc != OK) return rc;
        n->peers[i][slot] = memory;
        n->peer_bytes[i][slot] = p->n_bytes;
    }
    return OK;
}

/* Huge pages where the system gives them to shared memory (transparent_hugepage/shmem_enabled = advise); it is advice. */
static status open_own(region *g, size_t n_bytes, int rank) {
    void *memory;
    TRY(make_file("ralo.arena", n_bytes, &g->fd));
    status rc = map_file(g->fd, n_bytes, PROT_READ | PROT_WRITE, rank, &memory);
    if (rc != OK) {
        close(g->fd);
        g->fd = -1;
        return rc;
    }
    madvise(memory, n_bytes, MADV_HUGEPAGE);
    g->mine = memory;
    g->n_bytes = n_bytes;
    return OK;
}

static void region_close(node *n, uint32_t slot) {
    region *g = &n->regions[slot];
    forget_peers(n, slot);
    if (g->mine) munmap(g->mine, g->n_bytes);
    if (g->fd >= 0) close(g->fd);
    *g = (region){.fd = -1};
}

status comm_memory_open(comm *c, size_t n_bytes, void **out) {
    node *n = &c->node;
    uint32_t slot = 0;
    while (slot < MAX_REGIONS && n->regions[slot].taken) slot++;
    ASSERT(slot < MAX_REGIONS); /* an arena per tier, and few programs at once */
    *out = NULL;
    region *g = &n->regions[slot];
    *g = (region){.taken = true, .fd = -1};
    status rc = n_bytes > 0 ? open_own(g, n_bytes, c->rank) : OK;
    error_record record;
    if (rc != OK) error_take(&record);
    place mine = {getpid(), g->fd, slot, g->n_bytes}, *all = mem_alloc((size_t)c->size * sizeof *all);
    status gathered = c->transport->gather(c, &mine, sizeof mine, all);
    if (rc != OK) rc = error_give(&record);
    else if (gathered == OK) rc = map_peers(c, slot, all);
    free(all);
    rc = gathered == OK ? agree_on_success(c, rc) : gathered;
    if (rc != OK) {
        region_close(n, slot);
        return rc;
    }
    n->peers[n->index][slot] = g->mine;
    n->peer_bytes[n->index][slot] = g->n_bytes;
    *out = g->mine;
    return OK;
}

void comm_memory_close(comm *c, void *memory, size_t n_bytes) {
    for (uint32_t slot = 0; slot < MAX_REGIONS; slot++) {
        const region *g = &c->node.regions[slot];
        if (!g->taken || g->mine != memory || g->n_bytes != n_bytes) continue;
        region_close(&c->node, slot);
        return;
    }
    ASSERT(false); /* not opened here */
}

void node_offer(const comm *c, const void *bytes, size_t n_bytes, op_kind kind, offer *out) {
    *out = (offer){.kind = kind, .region = NO_REGION, .n_bytes = n_bytes};
    for (uint32_t slot = 0; slot < MAX_REGIONS; slot++) {
        const region *g = &c->node.regions[slot];
        uintptr_t at = (uintptr_t)bytes, begin = (uintptr_t)g->mine;
        if (!g->mine || at < begin || at - begin > g->n_bytes || n_bytes > g->n_bytes - (at - begin)) continue;
        out->region = slot;
        out->offset = at - begin;
        return;
    }
}

const uint8_t *node_peer_bytes(const comm *c, int local, const offer *o) {
    if (o->region >= MAX_REGIONS) return NULL;
    size_t limit = c->node.peer_bytes[local][o->region];
    if (o->offset > limit || o->n_bytes > limit - o->offset) return NULL;
    return c->node.peers[local][o->region] + o->offset;
}
