#pragma once
/* pending.h - private to live: connections that have not asked for anything that they may have: their request is not
 * whole, or was refused. They must not keep others out.
 *
 * - An address has at most PENDING_OF_ADDRESS of them, all together have PENDING_MOST. One more ends the oldest: of the
 * same address, else of the address that has the most. So a new connection is always taken, and its request, which
 * comes with it, is read.
 * - One that is PENDING_S seconds old is ended, whatever it sent meanwhile.
 *
 * A descriptor is in the list only while its connection is open: who closes it calls pending_remove first. Any thread
 * may call. */
#include "base/base.h"

#include <pthread.h>
#include <sys/socket.h>

enum { PENDING_MOST = 64, PENDING_OF_ADDRESS = 16, PENDING_S = 10 };

typedef struct pending_one {
    int fd;
    uint8_t address[8]; /* of IPv6 the network part: one machine may have all addresses of it */
    uint64_t since_ns;
} pending_one;
typedef struct pending {
    pthread_mutex_t lock;
    pending_one list[PENDING_MOST]; /* oldest first */
    size_t n;
} pending;

void pending_init(pending *p);
void pending_fini(pending *p);
void pending_add(pending *p, int fd, const struct sockaddr *from,
                 uint64_t now_ns);       /* one that is in the list keeps its age */
void pending_remove(pending *p, int fd); /* it has asked, or is closed; also where it is not in the list */
void pending_end_late(pending *p, uint64_t now_ns);
