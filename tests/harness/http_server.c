/* http_server.c - the server of http_server.h. */
#define _GNU_SOURCE 1 /* strcasestr, POLLRDHUP */
#include "http_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener, bell[2]; /* a byte in the bell ends the server */
static pthread_t thread;
static http_serve answer;
static char url[64];

const char *http_server_url(void) { return url; }
bool http_server_ending(void) { return poll(&(struct pollfd){.fd = bell[0], .events = POLLIN}, 1, 0) > 0; }

bool http_say(int fd, const char *status, const char *headers, const char *body) {
    strbuf out;
    strbuf_init(&out);
    strbuf_printf(&out, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n%s", status, headers, strlen(body), body);
    bool sent = send(fd, out.text, out.length, MSG_NOSIGNAL) == (ssize_t)out.length;
    strbuf_fini(&out);
    return sent;
}

bool http_break_off(int fd) {
    static const char begun[] = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{";
    send(fd, begun, sizeof begun - 1, MSG_NOSIGNAL);
    return false;
}

bool http_wait_for_hangup(int fd) {
    struct pollfd ready[] = {{.fd = fd, .events = POLLRDHUP}, {.fd = bell[0], .events = POLLIN}};
    poll(ready, 2, -1);
    return false;
}

static bool read_request(int fd, strbuf *in, size_t *body) {
    char buffer[65536];
    in->length = 0;
    for (size_t wanted = SIZE_MAX; in->length < wanted;) {
        struct pollfd ready[] = {
            {.fd = fd, .events = POLLIN}, {.fd = bell[0], .events = POLLIN}, {.fd = listener, .events = POLLIN}};
        if (poll(ready, 3, -1) < 0 || ready[1].revents) return false;
        if (!ready[0].revents && in->length == 0) return false; /* another connection: this idle one is closed for it */
        if (!ready[0].revents) continue;
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n <= 0) return false;
        strbuf_add_bytes(in, buffer, (size_t)n);
        const char *end = wanted == SIZE_MAX ? strstr(in->text, "\r\n\r\n") : NULL;
        if (!end) continue;
        const char *length = strcasestr(in->text, "content-length:");
        *body = (size_t)(end + 4 - in->text);
        wanted = *body + (length && length < end ? (size_t)atoll(length + 15) : 0);
    }
    return true;
}

static void *run_server(void *ignored) {
    strbuf in;
    size_t body;
    strbuf_init(&in);
    for (;;) {
        struct pollfd ready[] = {{.fd = listener, .events = POLLIN}, {.fd = bell[0], .events = POLLIN}};
        if (poll(ready, 2, -1) < 0 || ready[1].revents) break;
        int fd = accept(listener, NULL, NULL);
        while (fd >= 0 && read_request(fd, &in, &body) && answer(fd, &in, body)) {}
        if (fd >= 0) close(fd);
    }
    strbuf_fini(&in);
    return NULL;
}

int http_server_open(http_serve serve) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    answer = serve;
    setenv("no_proxy", "127.0.0.1", 1);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16) || pipe(bell))
        return -1;
    if (getsockname(listener, (struct sockaddr *)&at, &n)) return -1;
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    return pthread_create(&thread, NULL, run_server, NULL);
}

int http_server_close(void) {
    if (write(bell[1], "", 1) != 1) return -1;
    pthread_join(thread, NULL);
    close(listener);
    close(bell[0]);
    close(bell[1]);
    return 0;
}
