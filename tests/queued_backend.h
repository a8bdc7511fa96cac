#pragma once
/* queued_backend.h - the CPU's kernels behind queues, as a GPU has them: a kernel returns when it is queued, a queue holds
 * few entries and whoever puts one more waits, sections are recorded and started whole, counts come from the queues. */
#include "backend/backend.h"

const backend *backend_queued(void);
uint64_t backend_queued_recordings(void); /* sections recorded so far */
