#pragma once
/* sink_queue.h - private to track: RUN/track/<sink>.pending, records that a sink has not taken yet, one per line.
 *
 * One thread puts lines, another takes them; what is on disk is whole lines, also after a kill, and is sent by whoever opens the queue
 * next. When everything is taken the file is empty again.
 *
 *     TRY(sink_queue_open(&q, run_dir, "mlflow"));
 *     sink_queue_put(&q, lines, n);                         on one thread
 *     n = sink_queue_peek(&q, buffer, size, &too_long);     on another
 *     sink_queue_drop(&q, n); */
#include "base/base.h"

#include <pthread.h>
#include <sys/types.h>

typedef struct sink_queue {
    char *path;
    int fd;
    pthread_mutex_t lock; /* the rest; the owner of the queue may guard more with it */
    pthread_cond_t changed;
    off_t written, taken; /* bytes of whole lines; of these, done with */
} sink_queue;

/* Refuses a queue that another process has open. On an error nothing is left open. */
status sink_queue_open(sink_queue *q, const char *run_dir, const char *sink);
void sink_queue_close(sink_queue *q); /* removes the file where it is empty */
/* All of it or nothing is in the file afterwards. ERR_IO: nothing. */
status sink_queue_put(sink_queue *q, const char *lines, size_t n_bytes);
/* Copies whole lines from the front, as many as fit; 0: none is left. A line longer than the buffer is skipped and counted. */
status sink_queue_peek(sink_queue *q, char *out, size_t size, size_t *n_bytes, uint64_t *n_skipped);
void sink_queue_drop(sink_queue *q, size_t n_bytes); /* from the front */
bool sink_queue_is_empty(sink_queue *q);
uint64_t sink_queue_count(sink_queue *q); /* lines left; reads the file */
/* Is there something to send? Without opening it. */
bool sink_queue_has_lines(const char *run_dir, const char *sink);
