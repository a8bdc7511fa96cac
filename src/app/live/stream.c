/* stream.c - a ring of messages and a list of clients, each with its place in the ring. */
#include "live/stream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void stream_init(stream *s, stream_wake_fn wake, void *context) {
    *s = (stream){.wake = wake, .context = context};
    /* Numbers of an earlier server at the same address must not be taken for ours. Below 2^53, as JavaScript needs it. */
    s->first = s->next = (uint64_t)time(NULL) * 1024;
}

static void drop_first(stream *s) {
    stream_message *m = &s->messages[s->first++ % STREAM_MESSAGES];
    s->n_bytes -= m->n;
    free(m->text);
    *m = (stream_message){0};
}

void stream_fini(stream *s) {
    while (s->first < s->next) drop_first(s);
}

static void wake_all(stream *s) {
    for (client *c = s->clients; c; c = c->after)
        if (c->waits) {
            c->waits = false;
            s->wake(s->context, c->connection);
        }
}

void stream_put(stream *s, const char *event, const char *data) {
    strbuf text;
    strbuf_init(&text);
    if (event) strbuf_printf(&text, "event: %s\nid: %llu\ndata: %s\n\n", event, (unsigned long long)s->next, data);
    else strbuf_add(&text, ": still here\n\n");
    size_t n = text.length;
    if (s->next - s->first == STREAM_MESSAGES) drop_first(s);
    while (s->first < s->next && s->n_bytes + n > STREAM_BYTES_MOST) drop_first(s);
    s->messages[s->next++ % STREAM_MESSAGES] = (stream_message){strbuf_take(&text), n};
    s->n_bytes += n;
    wake_all(s);
}

void stream_end(stream *s) {
    s->ended = true;
    wake_all(s);
}

client *stream_join(stream *s, void *connection, uint64_t from) {
    if (s->n_clients >= STREAM_CLIENTS_MOST) return NULL;
    client *c = mem_alloc(sizeof *c);
    bool known = from + 1 >= s->first && from + 1 <= s->next;
    *c = (client){.connection = connection, .next = known ? from + 1 : s->next, .must_reload = !known};
    c->after = s->clients, c->before = &s->clients;
    if (c->after) c->after->before = &c->after;
    s->clients = c;
    s->n_clients++;
    return c;
}

void stream_leave(stream *s, client *c) {
    *c->before = c->after;
    if (c->after) c->after->before = c->before;
    s->n_clients--;
    free(c);
}

static size_t copy(client *c, const char *text, size_t n, char *out, size_t room) {
    size_t part = MIN(n - c->sent, room);
    memcpy(out, text + c->sent, part);
    c->sent += part;
    return part;
}

ssize_t stream_take(stream *s, client *c, char *out, size_t room) {
    if (!c->greeted) {
        char text[96];
        int n = snprintf(text, sizeof text, "retry: 2000\n\n");
        if (c->must_reload)
            n = snprintf(text, sizeof text, "retry: 2000\nevent: reload\nid: %llu\ndata: {}\n\n",
                         (unsigned long long)c->next - 1);
        size_t part = copy(c, text, (size_t)n, out, room);
        if (c->sent == (size_t)n) c->greeted = true, c->sent = 0;
        return (ssize_t)part;
    }
    /* Its message went while it was read: closed in the middle, it comes back and is told to load everything again. */
    if (c->next < s->first) return STREAM_END;
    if (c->next == s->next) {
        if (s->ended) return STREAM_END;
        c->waits = true;
        return 0;
    }
    const stream_message *m = &s->messages[c->next % STREAM_MESSAGES];
    size_t part = copy(c, m->text, m->n, out, room);
    if (c->sent == m->n) c->next++, c->sent = 0;
    return (ssize_t)part;
}
