/* server.c - the fixed paths of the live page over libmicrohttpd, one thread for all connections.
 *
 * Paths are compared whole and as they came, without %-decoding, with the rows of a table: none reaches the file
 * system. Every answer carries headers by which a browser neither shows it inside another page nor lets one read it. A
 * connection that sends nothing, or takes nothing, for TIMEOUT_S seconds is closed; a request has at most
 * REQUEST_BYTES. Those that ask for nothing, or may not, make room for others (pending.h).
 *
 * The library is loaded when the first page is opened: it brings a dozen others, which no other run should pay for. */
#ifdef HAVE_MICROHTTPD
#include "live/server.h"
#include "live/page.h"
#include "live/pending.h"

#include <errno.h>
#include <math.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIBRARY "libmicrohttpd.so.12"
enum {
    CONNECTIONS_MOST = STREAM_CLIENTS_MOST + PENDING_MOST + 64, /* never reached: those that are ended go at once */
    REQUEST_BYTES = 16384,                                      /* head of a request, and of its answer */
    TIMEOUT_S = 15,
    BLOCK_BYTES = 8192, /* of a stream, at once */
    WIDTH_MIN = 16,
    WIDTH_MOST = BOARD_CURVE_BUCKETS,
    WIDTH_DEFAULT = 800,
};

/* ---- the library -------------------------------------------------------------------------------------------------- */

/* clang-format off */
#define FUNCTIONS(X)                                                                                    \
    X(MHD_start_daemon) X(MHD_stop_daemon) X(MHD_quiesce_daemon) X(MHD_create_response_from_buffer)      \
    X(MHD_create_response_from_callback) X(MHD_add_response_header) X(MHD_queue_response)               \
    X(MHD_destroy_response) X(MHD_lookup_connection_value) X(MHD_get_connection_values)                 \
    X(MHD_suspend_connection) X(MHD_resume_connection) X(MHD_get_connection_info)
/* clang-format on */

static struct {
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} lib;

status server_check(void) {
#define X(name) {#name, &lib.name},
    static const library_symbol symbols[] = {FUNCTIONS(X)};
#undef X
    char why[400];
    if (!library_load(LIBRARY, symbols, ARRAY_LENGTH(symbols), why, sizeof why))
        return ERR(ERR_INPUT, "live page: %s; run: apt-get install libmicrohttpd-dev", why);
    return OK;
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

struct server {
    struct MHD_Daemon *daemon;
    board *board;
    const gate *gate;
    pending pending;
};

typedef struct MHD_Connection connection;
typedef enum MHD_Result result;

static const char *const headers[][2] = {
    {"Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
};

/* The connection ends with its answer: one that waits for another request would take the place of others, and a page
 * makes a few requests alone. What may follow a refused request, its body among it, is not read. */
static result send_response(connection *c, unsigned status_code, struct MHD_Response *r, const char *type) {
    if (!r) return MHD_NO;
    lib.MHD_add_response_header(r, "Connection", "close");
    for (size_t i = 0; i < ARRAY_LENGTH(headers); i++) lib.MHD_add_response_header(r, headers[i][0], headers[i][1]);
    lib.MHD_add_response_header(r, "Content-Type", type);
    result rc = lib.MHD_queue_response(c, status_code, r);
    lib.MHD_destroy_response(r);
    return rc;
}

static result send_text(connection *c, unsigned status_code, const char *text) {
    char line[256];
    snprintf(line, sizeof line, "%s\n", text);
    struct MHD_Response *r = lib.MHD_create_response_from_buffer(strlen(line), line, MHD_RESPMEM_MUST_COPY);
    if (r && status_code == MHD_HTTP_METHOD_NOT_ALLOWED) lib.MHD_add_response_header(r, "Allow", "GET, HEAD");
    return send_response(c, status_code, r, "text/plain; charset=utf-8");
}

static result send_page(server *s, connection *c, const page_file *file, const char *token) {
    struct MHD_Response *r =
        lib.MHD_create_response_from_buffer(file->n_bytes, (void *)(uintptr_t)file->bytes, MHD_RESPMEM_PERSISTENT);
    /* The address with the token is opened once; from then on the browser has it, where scripts and other sites do not reach it. */
    if (r && token && gate_token_matches(s->gate, token, strlen(token))) {
        char cookie[256];
        snprintf(cookie, sizeof cookie, "%s=%s; HttpOnly; SameSite=Strict; Path=/", s->gate->cookie, s->gate->token);
        lib.MHD_add_response_header(r, "Set-Cookie", cookie);
    }
    return send_response(c, MHD_HTTP_OK, r, file->type);
}

/* ---- paths -------------------------------------------------------------------------------------------------------- */

static const char *argument(connection *c, const char *name) {
    return lib.MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, name);
}
static const char *header(connection *c, const char *name) {
    return lib.MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* False: there, and no number. */
static bool whole_number(const char *text, uint64_t *out) {
    if (!text) return true;
    size_t n = strlen(text);
    if (n == 0 || n > 18 || strspn(text, "0123456789") != n) return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

typedef struct query {
    uint64_t width;
    double after;
} query;
typedef void (*write_fn)(board *b, const query *q, strbuf *out);
static void write_run(board *b, const query *q, strbuf *out) { board_write_run(b, out); }
static void write_metrics(board *b, const query *q, strbuf *out) { board_write_metrics(b, q->width, q->after, out); }
static void write_memory(board *b, const query *q, strbuf *out) { board_write_memory(b, q->width, out); }
static void write_plan(board *b, const query *q, strbuf *out) { board_write_plan(b, out); }
static void write_samples(board *b, const query *q, strbuf *out) { board_write_samples(b, out); }

static const struct {
    const char *path;
    write_fn write;
} answers[] = {
    {"/api/run", write_run},   {"/api/metrics", write_metrics}, {"/api/memory", write_memory},
    {"/api/plan", write_plan}, {"/api/samples", write_samples},
};

static result send_json(server *s, connection *c, write_fn write) {
    uint64_t width = WIDTH_DEFAULT, from = 0;
    const char *from_text = argument(c, "from");
    if (!whole_number(argument(c, "width"), &width) || !whole_number(from_text, &from))
        return send_text(c, MHD_HTTP_BAD_REQUEST, "width and from are whole numbers");
    query q = {MIN(MAX(width, (uint64_t)WIDTH_MIN), (uint64_t)WIDTH_MOST), from_text ? (double)from : -INFINITY};
    strbuf out;
    strbuf_init(&out);
    pthread_mutex_lock(&s->board->lock);
    write(s->board, &q, &out);
    pthread_mutex_unlock(&s->board->lock);
    size_t n = out.length;
    struct MHD_Response *r = lib.MHD_create_response_from_buffer(n, strbuf_take(&out), MHD_RESPMEM_MUST_FREE);
    return send_response(c, MHD_HTTP_OK, r, "application/json; charset=utf-8");
}

/* ---- the stream --------------------------------------------------------------------------------------------------- */

typedef struct subscriber {
    server *server;
    client *client;
} subscriber;

static ssize_t subscriber_read(void *context, uint64_t position, char *out, size_t room) {
    subscriber *u = context;
    pthread_mutex_t *lock = &u->server->board->lock;
    pthread_mutex_lock(lock);
    ssize_t n = stream_take(&u->server->board->stream, u->client, out, room);
    if (n == 0)
        lib.MHD_suspend_connection(u->client->connection); /* under the lock: server_wake cannot come before it */
    pthread_mutex_unlock(lock);
    return n == STREAM_END ? MHD_CONTENT_READER_END_OF_STREAM : n;
}

static void subscriber_free(void *context) {
    subscriber *u = context;
    pthread_mutex_lock(&u->server->board->lock);
    stream_leave(&u->server->board->stream, u->client);
    pthread_mutex_unlock(&u->server->board->lock);
    free(u);
}

void server_wake(void *context, void *connection) { lib.MHD_resume_connection(connection); }

static result send_events(server *s, connection *c, const char *method) {
    uint64_t from = 0;
    const char *last = header(c, "Last-Event-ID"); /* of a browser that comes back */
    if (!whole_number(last ? last : argument(c, "from"), &from))
        return send_text(c, MHD_HTTP_BAD_REQUEST, "the number of an event is a whole number");
    if (strcmp(method, "HEAD") == 0) {
        struct MHD_Response *r = lib.MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
        return send_response(c, MHD_HTTP_OK, r, "text/event-stream");
    }
    pthread_mutex_lock(&s->board->lock);
    client *joined = s->board->stream.ended ? NULL : stream_join(&s->board->stream, c, from);
    pthread_mutex_unlock(&s->board->lock);
    if (!joined) return send_text(c, MHD_HTTP_SERVICE_UNAVAILABLE, "too many pages are open; try again later");
    subscriber *u = mem_alloc(sizeof *u);
    *u = (subscriber){s, joined};
    struct MHD_Response *r =
        lib.MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, subscriber_read, u, subscriber_free);
    if (!r) subscriber_free(u);
    else lib.MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* a proxy passes events on at once */
    return send_response(c, MHD_HTTP_OK, r, "text/event-stream");
}

/* ---- requests ----------------------------------------------------------------------------------------------------- */

static result count_hosts(void *context, enum MHD_ValueKind kind, const char *key, const char *value) {
    if (strcasecmp(key, "Host") == 0) ++*(int *)context;
    return MHD_YES;
}

static int descriptor(connection *c) {
    return lib.MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

/* A connection has come, or is about to be closed. */
static void notice_connection(void *context, connection *c, void **unused, enum MHD_ConnectionNotificationCode what) {
    server *s = context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        pending_add(&s->pending, descriptor(c),
                    lib.MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr, clock_ns());
    else pending_remove(&s->pending, descriptor(c));
}

static unsigned judge(server *s, connection *c, const char *path, const char *method, const char **why) {
    int n_hosts = 0;
    lib.MHD_get_connection_values(c, MHD_HEADER_KIND, count_hosts, &n_hosts);
    const char *length = header(c, "Content-Length");
    gate_request r = {.method = method,
                      .path = path,
                      .host = header(c, "Host"),
                      .origin = header(c, "Origin"),
                      .fetch_site = header(c, "Sec-Fetch-Site"),
                      .cookie = header(c, "Cookie"),
                      .authorization = header(c, "Authorization"),
                      .token = argument(c, "token"),
                      .has_body = (length && strcmp(length, "0") != 0) || header(c, "Transfer-Encoding"),
                      .has_many_hosts = n_hosts > 1};
    return gate_judge(s->gate, &r, why);
}

/* Called twice for a request, after its head and at its end. A refusal at the first call leaves the rest unread. */
static result answer(void *context, connection *c, const char *path, const char *method, const char *version,
                     const char *upload, size_t *n_upload, void **seen) {
    static char head_seen;
    server *s = context;
    const char *why = "";
    if (!*seen) {
        unsigned verdict = judge(s, c, path, method, &why);
        *seen = &head_seen;
        if (verdict != MHD_HTTP_OK) return send_text(c, verdict, why);
        pending_remove(&s->pending, descriptor(c));
        return MHD_YES;
    }
    if (*n_upload) return MHD_NO;
    page_file file;
    if (page_find(path, &file)) return send_page(s, c, &file, argument(c, "token"));
    for (size_t i = 0; i < ARRAY_LENGTH(answers); i++)
        if (strcmp(path, answers[i].path) == 0) return send_json(s, c, answers[i].write);
    if (strcmp(path, "/events") == 0) return send_events(s, c, method);
    return send_text(c, MHD_HTTP_NOT_FOUND, "there is nothing at this path");
}

static size_t leave_escaped(void *context, connection *c, char *text) { return strlen(text); }

status server_open(server **out, int socket, bool is_ipv6, board *b, const gate *g) {
    status rc;
    TRY_GOTO(rc, server_check(), fail);
    server *s = mem_alloc(sizeof *s);
    *s = (server){.board = b, .gate = g};
    pending_init(&s->pending);
    /* poll, not epoll: with the latter version 0.9.75 does not see the end of a connection that came together with its last bytes, and
     * keeps it until it times out. */
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (is_ipv6 ? MHD_USE_IPv6 : 0);
    s->daemon =
        lib.MHD_start_daemon(flags, 0, NULL, NULL, answer, s, MHD_OPTION_LISTEN_SOCKET, socket,
                             MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MOST, MHD_OPTION_CONNECTION_TIMEOUT,
                             (unsigned)TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
                             MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, leave_escaped, NULL,
                             MHD_OPTION_NOTIFY_CONNECTION, notice_connection, s, MHD_OPTION_END);
    if (!s->daemon) {
        pending_fini(&s->pending);
        free(s);
        rc = ERR(ERR_IO, "live page: libmicrohttpd could not start its server: %s", strerror(errno));
        goto fail;
    }
    *out = s;
    return OK;
fail:
    close(socket);
    return rc;
}

void server_tick(server *s) { pending_end_late(&s->pending, clock_ns()); }

static size_t clients_left(server *s) {
    pthread_mutex_lock(&s->board->lock);
    size_t n = s->board->stream.n_clients;
    pthread_mutex_unlock(&s->board->lock);
    return n;
}

void server_close(server *s) {
    int socket = lib.MHD_quiesce_daemon(s->daemon);
    if (socket >= 0) close(socket);
    for (int i = 0; i < 100 && clients_left(s); i++) nanosleep(&(struct timespec){0, 10000000}, NULL);
    lib.MHD_stop_daemon(s->daemon);
    pending_fini(&s->pending);
    free(s);
}
#endif
