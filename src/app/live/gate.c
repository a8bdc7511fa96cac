/* gate.c - see gate.h. */
#include "live/gate.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- the address -------------------------------------------------------------------------------------------------- */

static bool parse_port(const char *text, uint16_t *out) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    *out = (uint16_t)n;
    return errno == 0 && *end == 0 && n <= 65535;
}

static bool is_loopback(const struct sockaddr_storage *s) {
    if (s->ss_family == AF_INET) return ntohl(((const struct sockaddr_in *)s)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)s)->sin6_addr);
}

static status refuse_address(const char *text) {
    return ERR(
        ERR_INPUT,
        "live page: found the address '%.100s', expected ADDR:PORT with an address in numbers, such as 127.0.0.1:8080, "
        "[::1]:8080 or 0.0.0.0:8080, or a port alone",
        text);
}

status gate_parse_address(const char *text, gate_address *out) {
    *out = (gate_address){.host = "127.0.0.1"};
    const char *given = text ? text : "0", *colon = strrchr(given, ':');
    if (!parse_port(colon ? colon + 1 : given, &out->port)) return refuse_address(given);
    if (colon) {
        size_t length = (size_t)(colon - given);
        bool brackets = length >= 2 && given[0] == '[' && given[length - 1] == ']';
        if (brackets) given++, length -= 2;
        if (length == 0 || length >= sizeof out->host || (memchr(given, ':', length) && !brackets))
            return refuse_address(text);
        snprintf(out->host, sizeof out->host, "%.*s", (int)length, given);
        if (strcmp(out->host, "localhost") == 0) snprintf(out->host, sizeof out->host, "127.0.0.1");
    }
    struct sockaddr_in *v4 = (struct sockaddr_in *)&out->socket;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out->socket;
    if (inet_pton(AF_INET, out->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET, v4->sin_port = htons(out->port);
        out->n_bytes = sizeof *v4;
    } else if (inet_pton(AF_INET6, out->host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6, v6->sin6_port = htons(out->port);
        out->n_bytes = sizeof *v6;
    } else {
        return refuse_address(text);
    }
    out->is_loopback = is_loopback(&out->socket);
    return OK;
}

/* ---- the token ---------------------------------------------------------------------------------------------------- */

static status take_token(gate *g, const char *text, const char *from) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    size_t n = strlen(text);
    if (n < GATE_TOKEN_MIN || n > GATE_TOKEN_MOST || strspn(text, letters) != n)
        return ERR(ERR_INPUT, "%s: found %zu characters, expected %d to %d of letters, digits, '-', '.', '_' and '~'",
                   from, n, GATE_TOKEN_MIN, GATE_TOKEN_MOST);
    memcpy(g->token, text, n + 1);
    return OK;
}

static status make_token(gate *g) {
    uint8_t bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return ERR(ERR_IO, "random bytes for a token: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(g->token + 2 * i, 3, "%02x", bytes[i]);
    return OK;
}

status gate_init(gate *g, const gate_address *a, const char *given) {
    *g = (gate){.is_loopback = a->is_loopback};
    snprintf(g->cookie, sizeof g->cookie, "ralo_live_%u", a->port);
    gethostname(g->machine, sizeof g->machine - 1);
    const char *set = getenv("RALO_LIVE_TOKEN");
    if (given) return take_token(g, given, "--live-token");
    if (set && *set) return take_token(g, set, "RALO_LIVE_TOKEN");
    return make_token(g);
}

/* Looks at every byte of both, whatever they are: the time says nothing about where they differ. */
bool gate_token_matches(const gate *g, const char *text, size_t n) {
    char found[GATE_TOKEN_MOST + 1] = {0};
    volatile unsigned char different = n > GATE_TOKEN_MOST || g->token[0] == 0;
    memcpy(found, text, MIN(n, (size_t)GATE_TOKEN_MOST));
    for (size_t i = 0; i < sizeof found; i++) different |= (unsigned char)(found[i] ^ g->token[i]);
    return different == 0;
}

/* "a=1; ralo_live_8080=TOKEN; b=2" */
static bool cookie_matches(const gate *g, const char *cookies) {
    size_t n_name = strlen(g->cookie);
    for (const char *at = cookies; *at;) {
        at += strspn(at, " ;");
        size_t n = strcspn(at, ";");
        if (n > n_name && at[n_name] == '=' && memcmp(at, g->cookie, n_name) == 0) {
            size_t n_value = n - n_name - 1;
            while (n_value && at[n_name + n_value] == ' ') n_value--;
            if (gate_token_matches(g, at + n_name + 1, n_value)) return true;
        }
        at += n;
    }
    return false;
}

static bool is_known(const gate *g, const gate_request *r) {
    static const char bearer[] = "Bearer ";
    if (r->token && gate_token_matches(g, r->token, strlen(r->token))) return true;
    if (r->cookie && cookie_matches(g, r->cookie)) return true;
    const char *a = r->authorization;
    return a && strncasecmp(a, bearer, sizeof bearer - 1) == 0 &&
           gate_token_matches(g, a + sizeof bearer - 1, strlen(a + sizeof bearer - 1));
}

/* ---- the host and the origin -------------------------------------------------------------------------------------- */

/* The name of "name", "name:port", "[::1]" or "[::1]:port", without the port, which a tunnel may change. */
static bool host_name(const char *host, char *out, size_t room, bool *brackets) {
    *brackets = host[0] == '[';
    const char *start = host + *brackets;
    size_t n = strcspn(start, *brackets ? "]" : ":");
    const char *rest = start + n;
    uint16_t port;
    if (*brackets && *rest++ != ']') return false;
    if (*rest && (*rest != ':' || !parse_port(rest + 1, &port))) return false;
    if (n == 0 || n >= room) return false;
    memcpy(out, start, n);
    out[n] = 0;
    return true;
}

/* With its domain or without: "node7" and "node7.example.org". */
static bool is_machine(const gate *g, const char *name) {
    size_t n = strcspn(g->machine, ".");
    return n > 0 && strncasecmp(name, g->machine, n) == 0 && (name[n] == 0 || name[n] == '.');
}

static bool host_is_ours(const gate *g, const char *host) {
    char name[256];
    bool brackets;
    struct sockaddr_storage s = {0};
    if (!host_name(host, name, sizeof name, &brackets)) return false;
    s.ss_family = brackets ? AF_INET6 : AF_INET;
    void *to =
        brackets ? (void *)&((struct sockaddr_in6 *)&s)->sin6_addr : (void *)&((struct sockaddr_in *)&s)->sin_addr;
    /* An address in numbers cannot be made to point elsewhere, as a name can. */
    if (inet_pton(s.ss_family, name, to) == 1) return !g->is_loopback || is_loopback(&s);
    if (brackets) return false;
    return strcasecmp(name, "localhost") == 0 || (!g->is_loopback && is_machine(g, name));
}

static bool is_foreign(const gate_request *r) {
    const char *site = r->origin ? strstr(r->origin, "://") : NULL; /* http, or https before a proxy */
    if (r->origin && !(site && str_starts_with(r->origin, "http") && strcasecmp(site + 3, r->host) == 0)) return true;
    if (!r->fetch_site || strcmp(r->fetch_site, "same-origin") == 0 || strcmp(r->fetch_site, "none") == 0) return false;
    return strcmp(r->path, "/") != 0; /* a link to the page may be followed; nothing of it can be embedded */
}

unsigned gate_judge(const gate *g, const gate_request *r, const char **why) {
    if (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0) {
        *why = "only GET and HEAD: nothing can be changed here";
        return 405;
    }
    if (r->has_body) {
        *why = "a request has no body here";
        return 413;
    }
    if (!r->host || r->has_many_hosts || !host_is_ours(g, r->host)) {
        *why = "the Host header names another server; open the page by the address that ralo printed";
        return 403;
    }
    if (is_foreign(r)) {
        *why = "requests of other web pages are refused";
        return 403;
    }
    if (!is_known(g, r)) {
        *why = "a token is needed: open the page by the address that ralo printed, with ?token=";
        return 401;
    }
    return 200;
}
