/* devices.c - which ranks share a device, how its memory is divided, and whether messages can go from device to device.
 *
 * Devices are identified by ids that are unique across machines, not by their numbers, because launchers show each
 * rank a different subset. */
#include "comm/comm_state.h"

#include <stdlib.h>

typedef uint8_t device_id[16];
typedef struct link_library {
    int32_t loads;
    char why[400]; /* it does not */
} link_library;

static status find_sharing(comm *c, const backend *b, int device) {
    device_info info;
    TRY(b->describe(device, &info));
    device_id mine, *all = mem_alloc((size_t)c->size * sizeof *all);
    memcpy(mine, info.id, sizeof mine);
    status rc = comm_all_gather_bytes(c, mine, sizeof mine, all);
    for (int r = 0; rc == OK && r < c->size; r++) {
        int first = 0; /* r itself at the latest */
        while (memcmp(all[first], all[r], sizeof all[r]) != 0) first++;
        c->device_of[r] = first;
    }
    free(all);
    return rc;
}

/* Can every rank load it? The same answer on all of them. */
static status find_library(comm *c, const backend *b) {
    link_library mine = {0}, *all;
    if (!b->links)
        return ERR(ERR_INPUT, "comm.transport: found nccl, expected mpi or auto: %s has no links between devices",
                   b->name);
    mine.loads = b->links->present() == OK;
    if (!mine.loads) snprintf(mine.why, sizeof mine.why, "%s", error_message());
    error_clear();
    all = mem_alloc((size_t)c->size * sizeof *all);
    status rc = comm_all_gather_bytes(c, &mine, sizeof mine, all);
    for (int r = 0; rc == OK && r < c->size; r++)
        if (!all[r].loads)
            rc = ERR(ERR_INPUT, "comm.transport: found nccl, but on rank %d (%s): %.399s", r, c->hosts[r], all[r].why);
    free(all);
    return rc;
}

static bool any_shares(const comm *c) {
    for (int r = 0; r < c->size; r++)
        if (c->device_of[r] != r) return true;
    return false;
}

static bool on_one_host(const comm *c) {
    for (int r = 0; r < c->size; r++)
        if (strcmp(c->hosts[r], c->hosts[0]) != 0) return false;
    return true;
}

static void share_devices(const comm *c, const backend *b) {
    char name[HOST_BYTES + 32];
    snprintf(name, sizeof name, "%s-rank-%d", c->hosts[c->rank], c->rank);
    b->links->share_devices(name, on_one_host(c));
}

status comm_find_devices(comm *c, const backend *b, int device, device_transport wanted, comm_devices *out) {
    *out = (comm_devices){0};
    TRY(find_sharing(c, b, device));
    out->n_sharing = comm_device_sharing(c);
    /* Links between ranks that share a device are slower than host memory: only where they are asked for. */
    bool share = any_shares(c);
    if (wanted == DEVICE_TRANSPORT_MPI || (share && wanted != DEVICE_TRANSPORT_NCCL)) return OK;
    status rc = find_library(c, b);
    out->links = rc == OK;
    if (rc == OK && share) share_devices(c, b);
    if (wanted == DEVICE_TRANSPORT_NCCL || comm_failed(c)) return rc;
    error_clear();
    return OK;
}

int comm_device_sharing(const comm *c) {
    int n = 0;
    for (int r = 0; r < c->size; r++) n += c->device_of[r] == c->device_of[c->rank];
    return n;
}

status comm_device_sum(comm *c, uint64_t *x) {
    uint64_t *all = mem_alloc((size_t)c->size * sizeof *all), sum = 0;
    status rc = comm_all_gather_bytes(c, x, sizeof *x, all);
    for (int r = 0; r < c->size; r++)
        if (c->device_of[r] == c->device_of[c->rank]) sum += all[r];
    if (rc == OK) *x = sum;
    free(all);
    return rc;
}

static status find_extreme(comm *c, uint64_t *x, bool most) {
    uint64_t *all = mem_alloc((size_t)c->size * sizeof *all);
    status rc = comm_all_gather_bytes(c, x, sizeof *x, all);
    for (int r = 0; rc == OK && r < c->size; r++) *x = most ? MAX(*x, all[r]) : MIN(*x, all[r]);
    free(all);
    return rc;
}

status comm_least(comm *c, uint64_t *x) { return find_extreme(c, x, false); }
status comm_most(comm *c, uint64_t *x) { return find_extreme(c, x, true); }
