#pragma once
/* http.h - raw HTTP for tests of the live page: what a browser would never send can be sent. */
#include "base/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* "http://127.0.0.1:8080/..." -> 8080 */
static inline int http_port(const char *url) { return atoi(strrchr(url, ':') + 1); }

static inline int http_connect(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {10, 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

/* Errors of a server that has closed its end already are no matter. */
static inline void http_send(int fd, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t part = send(fd, (const char *)bytes + done, n - done, MSG_NOSIGNAL);
        if (part <= 0) return;
        done += (size_t)part;
    }
}

/* Reads until the server closes, `until` was seen or ms have passed without a byte. */
static inline void http_read(int fd, const char *until, int ms, strbuf *out) {
    char part[16384];
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (poll(&ready, 1, ms) > 0) {
        ssize_t n = recv(fd, part, sizeof part, 0);
        if (n <= 0) return;
        strbuf_add_bytes(out, part, (size_t)n);
        if (until && strstr(out->text, until)) return;
    }
}

/* One request on a connection of its own; the whole answer, which the caller frees. */
static inline char *http_ask(int port, const void *request, size_t n) {
    strbuf out;
    strbuf_init(&out);
    strbuf_add(&out, "");
    int fd = http_connect(port);
    if (fd >= 0) {
        http_send(fd, request, n);
        shutdown(fd, SHUT_WR);
        http_read(fd, NULL, 5000, &out);
        close(fd);
    }
    return strbuf_take(&out);
}

static inline int http_status(const char *answer) {
    int code = 0;
    return sscanf(answer, "HTTP/1.%*d %d", &code) == 1 ? code : 0;
}
