#pragma once
/* queues.h - private to the CUDA backend: the program's streams as CUDA streams, its waits as events, its sections as
 * graphs. */
#include "backend/cuda/cuda.h"

status queues_open(backend_context *c);
void queues_close(backend_context *c);
status queues_check(backend_context *c);         /* waits for everything queued and says what went wrong */
void queues_forget_sections(backend_context *c); /* recorded ones; none of them may be started any more */
const backend_queues *queues_table(void);
