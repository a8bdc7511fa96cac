#pragma once
/* stream.h - private to live: server-sent events for many clients. Written once, copied to each; a client that is too slow or was away too
 * long is told to load the page's data again. The caller holds one lock around all of it.
 *
 *     stream_init(&s, wake, context);
 *     stream_put(&s, "run", json);
 *     client *c = stream_join(&s, connection, from);
 *     ssize_t n = stream_take(&s, c, buffer, room);       0: nothing yet, and `wake` will be called with its connection
 *     stream_leave(&s, c); */
#include "base/base.h"

enum { STREAM_MESSAGES = 128, STREAM_CLIENTS_MOST = 256, STREAM_END = -1 };
#define STREAM_BYTES_MOST ((size_t)4 << 20) /* of all messages together */

typedef struct stream_message {
    char *text;
    size_t n;
} stream_message;
typedef struct client {
    void *connection;
    uint64_t next; /* the message it gets next */
    size_t sent;   /* bytes of it, or of the greeting */
    bool greeted, waits, must_reload;
    struct client *after, **before;
} client;
typedef void (*stream_wake_fn)(void *context, void *connection);
typedef struct stream {
    stream_message messages[STREAM_MESSAGES]; /* message i is at i % STREAM_MESSAGES */
    uint64_t first, next;                     /* those that are here: first <= i < next */
    size_t n_bytes;
    client *clients;
    size_t n_clients;
    bool ended; /* after the last message clients are closed */
    stream_wake_fn wake;
    void *context;
} stream;

void stream_init(stream *s, stream_wake_fn wake, void *context);
void stream_fini(stream *s); /* no client is left */
/* data: one line of JSON. event NULL: a comment, by which dead connections are found. */
void stream_put(stream *s, const char *event, const char *data);
void stream_end(stream *s); /* clients get what is there, then STREAM_END */
/* from: the number of the last message that the client knows. NULL: there are too many clients. */
client *stream_join(stream *s, void *connection, uint64_t from);
void stream_leave(stream *s, client *c);
ssize_t stream_take(stream *s, client *c, char *out, size_t room);
/* The number of the last message: who loads all data now continues from it. */
static inline uint64_t stream_last(const stream *s) { return s->next - 1; }
