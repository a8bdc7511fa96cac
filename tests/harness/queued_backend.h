#pragma once
/* queued_backend.h - the CPU's kernels behind queues, as a GPU has them: a kernel returns when it is queued, a queue holds
 * few entries and whoever puts one more waits, sections are recorded and started whole, counts come from the queues. */
#include "comm/comm.h"

const backend *backend_queued(void);
/* For ranks: with links each has a device of its own, whose queue of messages sends by comm's transport; without them all
 * share one device. recordable: sections may be recorded with their messages. stall_at > 0: on every rank the message of this
 * number, from 1, never ends by itself. */
void backend_queued_ranks(comm *c, bool links, bool recordable, uint64_t stall_at);
uint64_t backend_queued_messages(void);            /* that queues have sent so far, since the last one was recorded */
uint64_t backend_queued_recorded_messages(void);   /* that are part of recorded sections */
uint64_t backend_queued_copies_behind_embed(void); /* to the host, queued behind EMBED in sections that have it */
uint64_t backend_queued_joined(void);     /* ops that were queued together with one before or behind them so far */
uint64_t backend_queued_apart(void);      /* ops that were queued together with others of their kind, in any order */
uint64_t backend_queued_recordings(void); /* sections recorded so far */
void backend_queued_stall(void); /* the next attention ends only when a thread has asked whether the device failed */
uint64_t backend_queued_asked(void); /* how often that was asked so far */
