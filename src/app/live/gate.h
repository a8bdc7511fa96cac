#pragma once
/* gate.h - private to live: who may read the page. Decides on the texts of a request alone, so that all of it is tested without a socket.
 *
 * What it keeps out
 *   - a web page of another site, in a browser on this machine: by Origin and Sec-Fetch-Site, by Host against DNS rebinding (a name that
 *     is made to point here is not a name of this server), and by headers of every answer (server.c)
 *   - anyone without the token, which is compared in constant time
 *   - whatever is not GET or HEAD, or has a body. */
#include "base/base.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { GATE_TOKEN_MIN = 16, GATE_TOKEN_MOST = 128 };

typedef struct gate_address {
    struct sockaddr_storage socket;
    socklen_t n_bytes;
    char host[64]; /* numeric, without brackets */
    uint16_t port; /* 0: any that is free */
    bool is_loopback;
} gate_address;
/* "127.0.0.1:8080", "[::1]:8080", "localhost:8080", "8080"; NULL: loopback and a free port. */
status gate_parse_address(const char *text, gate_address *out);

typedef struct gate {
    bool is_loopback;
    char machine[256]; /* name of this host */
    char token[GATE_TOKEN_MOST + 1];
    char cookie[32]; /* its name, with the port: cookies of a host are those of all its ports */
} gate;
/* The token is `given`, else that of the environment, else random. */
status gate_init(gate *g, const gate_address *a, const char *given);

typedef struct gate_request {
    const char *method, *path;
    const char *host, *origin, *fetch_site, *cookie, *authorization, *token; /* NULL: not there */
    bool has_body, has_many_hosts;
} gate_request;
/* 200, or the status to refuse it with and in *why a sentence. */
unsigned gate_judge(const gate *g, const gate_request *r, const char **why);
bool gate_token_matches(const gate *g, const char *text, size_t n);
