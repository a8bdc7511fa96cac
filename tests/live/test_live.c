/* test_live.c - the server of the live page over raw sockets: paths, headers, who is refused, hostile requests, many clients.
 *
 * RALO_LIVE_FUZZ_SECONDS: how long requests are fuzzed (2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "files.h"
#include "http.h"
#include "live/gate.h"
#include "live/live.h"
#include "live/pending.h"
#include "live/server.h"

#include <fcntl.h>
#include <jansson.h>
#include <time.h>

#define TOKEN "0123456789abcdef-._~"

static live *page;
static int port;
static char known[256]; /* the header line with the token, which every request of `get` carries; "": none */

static void start(const char *listen, const char *token) {
    assert_int_equal(live_open(&page, &(live_options){.run_dir = test_dir, .listen = listen, .token = token}), OK);
    const char *made = strstr(live_url(page), "/?token=");
    assert_non_null(made);
    snprintf(known, sizeof known, "Authorization: Bearer %s\r\n", made + strlen("/?token="));
    port = http_port(live_url(page));
}

static int setup(void **state) {
    if (test_dir_open(state) != 0) return -1;
    write_text(path_of("config.yaml"), "train: {steps: 3}\n");
    write_text(path_of("metrics.jsonl"), "{\"step\": 1, \"train/loss\": 3.5}\n{\"step\": 2, \"train/loss\": 3.25}\n");
    write_text(path_of("plan.json"),
               "{\"memory\": {\"device\": {\"planned\": 5}, \"by_role\": {\"params\": 2, \"work\": 3}}}\n");
    write_text(path_of("samples.jsonl"),
               "{\"step\": 2, \"prompt\": \"<script>\", \"completion\": \"</script>\", \"stop\": \"eos\"}\n");
    return 0;
}

static int teardown(void **state) {
    live_close(page);
    page = NULL;
    return test_dir_close(state);
}

#define SKIP_WITHOUT_LIBRARY()                  \
    if (server_check() != OK) {                 \
        print_message("%s\n", error_message()); \
        skip();                                 \
    }

/* GET path with further header lines. */
static char *get(const char *method, const char *path, const char *host, const char *lines) {
    strbuf request;
    strbuf_init(&request);
    strbuf_printf(&request, "%s %s HTTP/1.1\r\n", method, path);
    if (host) strbuf_printf(&request, "Host: %s\r\n", host);
    strbuf_printf(&request, "%s%sConnection: close\r\n\r\n", known, lines);
    char *answer = http_ask(port, request.text, request.length);
    strbuf_fini(&request);
    return answer;
}

static void expect(const char *method, const char *path, const char *host, const char *lines, int code) {
    char *answer = get(method, path, host, lines);
    if (http_status(answer) != code)
        fail_msg("%s %s, host %s, %s: expected %d, found: %.300s", method, path, host ? host : "none", lines, code,
                 answer);
    free(answer);
}

/* ---- what there is ------------------------------------------------------------------------------------------------ */

static void every_path_answers_with_strict_headers(void **state) {
    SKIP_WITHOUT_LIBRARY();
    static const char *const paths[] = {"/",         "/app.js",      "/charts.js",   "/style.css",
                                        "/icon.svg", "/api/run",     "/api/metrics", "/api/memory",
                                        "/api/plan", "/api/samples", "/nothing"};
    static const char *const headers[] = {
        "Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
        "X-Content-Type-Options: nosniff\r\n",
        "X-Frame-Options: DENY\r\n",
        "Referrer-Policy: no-referrer\r\n",
        "Cross-Origin-Resource-Policy: same-origin\r\n",
        "Cache-Control: no-store\r\n"};
    start(NULL, NULL);
    assert_true(str_starts_with(live_url(page), "http://127.0.0.1:"));
    for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
        char *answer = get("GET", paths[i], "127.0.0.1", ""), *head = get("HEAD", paths[i], "127.0.0.1", "");
        assert_int_equal(http_status(answer), i + 1 < ARRAY_LENGTH(paths) ? 200 : 404);
        assert_int_equal(http_status(head), http_status(answer));
        for (size_t h = 0; h < ARRAY_LENGTH(headers); h++)
            if (!strstr(answer, headers[h]) || !strstr(head, headers[h])) fail_msg("%s lacks %s", paths[i], headers[h]);
        assert_null(strstr(answer, "Access-Control-"));
        assert_null(strstr(answer, "Set-Cookie"));
        const char *body = strstr(head, "\r\n\r\n");
        assert_true(body && body[4] == 0);
        free(answer);
        free(head);
    }
}

static void numbers_are_those_of_the_files(void **state) {
    SKIP_WITHOUT_LIBRARY();
    start("0", NULL);
    static const struct {
        const char *path, *text;
    } cases[] = {
        {"/api/metrics", "\"train/loss\":{\"x\":[1,2],\"y\":[3.5,3.25]}"},
        {"/api/metrics?from=1", "\"train/loss\":{\"x\":[2],\"y\":[3.25]}"},
        {"/api/plan", "{\"memory\":{\"device\":{\"planned\":5},\"by_role\":{\"params\":2,\"work\":3}}}"},
        {"/api/samples", "<script>"},
        {"/api/run", "\"loss\":3.25"},
        {"/api/memory", "{\"step\":null"},
    };
    for (int tries = 0; tries < 50; tries++) { /* the files are read in the background */
        char *answer = get("GET", "/api/metrics", "localhost", "");
        bool there = strstr(answer, "train/loss") != NULL;
        free(answer);
        if (there) break;
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        char *answer = get("GET", cases[i].path, "localhost", "");
        const char *body = strstr(answer, "\r\n\r\n");
        if (!body || !strstr(body, cases[i].text)) fail_msg("%s: %s", cases[i].path, answer);
        json_t *root = json_loads(body + 4, 0, NULL);
        assert_non_null(root);
        json_decref(root);
        free(answer);
    }
    expect("GET", "/api/metrics?width=99999999999&from=0", "localhost", "", 200);
    expect("GET", "/api/metrics?width=-1", "localhost", "", 400);
    expect("GET", "/api/metrics?from=1e9", "localhost", "", 400);
    expect("GET", "/api/metrics?from=", "localhost", "", 400);
    expect("GET", "/events?from=x", "localhost", "", 400);
    expect("HEAD", "/events", "localhost", "", 200);
}

/* ---- who is refused ----------------------------------------------------------------------------------------------- */

static void no_path_reaches_a_file(void **state) {
    SKIP_WITHOUT_LIBRARY();
    start(NULL, NULL);
    static const char *const paths[] = {
        "/../config.yaml",
        "/config.yaml",
        "/./",
        "//",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/../config.yaml",
        "/api/run/",
        "/api",
        "/api/run%00",
        "/%00",
        "/metrics.jsonl",
        "/monitor/rank-00000.jsonl",
        "/..%2f..%2fetc%2fpasswd",
        "/app.js/../../etc/passwd",
        "/API/RUN",
        "/\\..\\",
        "/page.html",
        "http://127.0.0.1/",
        "*",
    };
    for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
        char *answer = get("GET", paths[i], "127.0.0.1", "");
        int code = http_status(answer);
        if (code != 404 && code != 400) fail_msg("%s: %.200s", paths[i], answer);
        assert_null(strstr(answer, "root:"));
        assert_null(strstr(answer, "train:"));
        free(answer);
    }
}

static void only_get_and_head(void **state) {
    SKIP_WITHOUT_LIBRARY();
    start(NULL, NULL);
    static const char *const methods[] = {"POST",  "PUT",     "DELETE", "PATCH", "OPTIONS",
                                          "TRACE", "CONNECT", "BREW",   "get"};
    for (size_t i = 0; i < ARRAY_LENGTH(methods); i++) {
        expect(methods[i], "/api/run", "127.0.0.1", "", 405);
        expect(methods[i], "/", "127.0.0.1", "Content-Length: 5\r\n", 405);
    }
    char *answer = get("POST", "/", "127.0.0.1", "");
    assert_non_null(strstr(answer, "Allow: GET, HEAD\r\n"));
    free(answer);
    expect("GET", "/", "127.0.0.1", "Content-Length: 0\r\n", 200);
    expect("GET", "/", "127.0.0.1", "Content-Length: 5\r\n", 413);
    expect("GET", "/", "127.0.0.1", "Transfer-Encoding: chunked\r\n", 413);
}

static void other_hosts_and_origins_are_refused(void **state) {
    SKIP_WITHOUT_LIBRARY();
    start(NULL, NULL);
    char own[64], origin[128], other[128];
    snprintf(own, sizeof own, "127.0.0.1:%d", port);
    snprintf(origin, sizeof origin, "Origin: http://%s\r\n", own);
    snprintf(other, sizeof other, "Origin: http://127.0.0.1:%d\r\n", port + 1);
    static const char *const good[] = {"127.0.0.1", "localhost", "LocalHost:1234", "[::1]", "[::1]:80", "127.3.4.5:99"};
    static const char *const bad[] = {"evil.example",
                                      "localhost.evil.example",
                                      "127.0.0.1.evil.example",
                                      "127.0.0.1:80@evil",
                                      "192.168.1.1",
                                      "0.0.0.0",
                                      "[::2]",
                                      "[::1",
                                      "::1",
                                      "127.0.0.1:x",
                                      "127.0.0.1:99999",
                                      "2130706433",
                                      "127.1",
                                      "localhost."};
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) expect("GET", "/api/run", good[i], "", 200);
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) expect("GET", "/api/run", bad[i], "", 403);
    expect("GET", "/api/run", "127.0.0.1", "Host: evil.example\r\n", 403);
    char *old = http_ask(port, "GET /api/run HTTP/1.0\r\n\r\n", 25);
    assert_int_equal(http_status(old), 403);
    free(old);
    expect("GET", "/api/run", own, origin, 200);
    expect("GET", "/api/run", own, other, 403);
    expect("GET", "/api/run", own, "Origin: http://evil.example\r\n", 403);
    expect("GET", "/api/run", own, "Origin: null\r\n", 403);
    expect("GET", "/events", own, "Sec-Fetch-Site: cross-site\r\n", 403);
    expect("GET", "/api/run", own, "Sec-Fetch-Site: same-site\r\n", 403);
    expect("GET", "/app.js", own, "Sec-Fetch-Site: cross-site\r\n", 403);
    expect("GET", "/api/run", own, "Sec-Fetch-Site: same-origin\r\n", 200);
    expect("GET", "/", own, "Sec-Fetch-Site: cross-site\r\n", 200); /* a link to it */
}

/* Also on loopback, which every user of a machine can reach. */
static void every_address_needs_the_token(void **state) {
    SKIP_WITHOUT_LIBRARY();
    char first[128] = "";
    for (int i = 0; i < 2; i++) {
        start(i ? "[::1]:0" : NULL, NULL);
        const char *own = strstr(live_url(page), "/?token=");
        assert_int_equal(strlen(own), strlen("/?token=") + 32);
        assert_string_not_equal(own, first);
        snprintf(first, sizeof first, "%s", own);
        if (i == 0) {
            expect("GET", "/api/run", "127.0.0.1", "", 200);
            known[0] = 0;
            expect("GET", "/api/run", "127.0.0.1", "", 401);
            expect("GET", "/", "localhost", "", 401);
            expect("GET", "/events", "localhost", "", 401);
            expect("GET", own, "localhost", "", 200);
        }
        live_close(page);
    }

    start("0.0.0.0:0", NULL);
    known[0] = 0;
    const char *made = strstr(live_url(page), "/?token=");
    assert_true(made && strlen(made) == strlen("/?token=") + 32);
    char path[128];
    expect("GET", "/api/run", "127.0.0.1", "", 401);
    expect("GET", "/", "127.0.0.1", "", 401);
    expect("GET", made, "127.0.0.1", "", 200);
    snprintf(path, sizeof path, "%.*s0", (int)strlen(made) - 1, made);
    bool same = strcmp(path, made) == 0;
    expect("GET", path, "127.0.0.1", "", same ? 200 : 401);
    expect("GET", made, "evil.example", "", 403);
    char machine[64] = "", named[128];
    gethostname(machine, sizeof machine - 1);
    machine[strcspn(machine, ".")] = 0;
    snprintf(named, sizeof named, "%s:80", machine);
    expect("GET", made, named, "", 200);
    snprintf(named, sizeof named, "%s.example.org", machine);
    expect("GET", made, named, "", 200);
    snprintf(named, sizeof named, "%sx", machine);
    expect("GET", made, named, "", 403);
    expect("GET", made, "10.1.2.3:80", "", 200); /* of another interface, or a tunnel */
    live_close(page);

    start("127.0.0.1:0", TOKEN); /* one of the user's own */
    known[0] = 0;
    static const char *const good[] = {"Authorization: Bearer " TOKEN "\r\n", "authorization: bearer " TOKEN "\r\n"};
    static const char *const bad[] = {"",
                                      "Authorization: Bearer " TOKEN "0\r\n",
                                      "Authorization: Bearer 0123456789abcdef-._\r\n",
                                      "Authorization: Basic " TOKEN "\r\n",
                                      "Authorization: Bearer\r\n",
                                      "Cookie: ralo_live=" TOKEN "\r\n"};
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) expect("GET", "/api/run", "localhost", good[i], 200);
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) expect("GET", "/api/run", "localhost", bad[i], 401);
    expect("GET", "/events", "localhost", "", 401);
    expect("GET", "/app.js", "localhost", "", 401);
    expect("GET", "/nothing", "localhost", "", 401);
    char cookie[256], expected[256];
    snprintf(cookie, sizeof cookie, "Cookie: a=b;  ralo_live_%d=" TOKEN " ; c=d\r\n", port);
    expect("GET", "/api/run", "localhost", cookie, 200);
    snprintf(expected, sizeof expected, "Set-Cookie: ralo_live_%d=" TOKEN "; HttpOnly; SameSite=Strict; Path=/\r\n",
             port);
    char *answer = get("GET", "/?token=" TOKEN, "localhost", "");
    assert_non_null(strstr(answer, expected));
    free(answer);
    live_close(page);
    page = NULL;
    expect_error(live_check(&(live_options){.token = "short"}), ERR_INPUT, "--live-token|found 5 characters");
    expect_error(live_check(&(live_options){.token = "spaces are no letters"}), ERR_INPUT,
                 "--live-token|letters, digits");
    assert_int_equal(setenv("RALO_LIVE_TOKEN", "bad", 1), 0);
    expect_error(live_check(&(live_options){0}), ERR_INPUT, "RALO_LIVE_TOKEN|found 3 characters");
    assert_int_equal(unsetenv("RALO_LIVE_TOKEN"), 0);
}

static void addresses(void **state) {
    gate_address a;
    static const char *const bad[] = {
        "",         ":",           "x",      "1.2.3.4", "1.2.3.4:",       "1.2.3.4:x", "1.2.3.4:65536",
        "1.2.3:80", ":80",         "::1:80", "[::1]",   "example.org:80", "[]:80",     "1.2.3.4:-1",
        "-1",       "[1.2.3.4:80", "80 "};
    static const struct {
        const char *text, *host;
        int port;
        bool is_loopback;
    } good[] = {{NULL, "127.0.0.1", 0, true},          {"8080", "127.0.0.1", 8080, true},
                {"127.0.0.1:1", "127.0.0.1", 1, true}, {"localhost:80", "127.0.0.1", 80, true},
                {"[::1]:80", "::1", 80, true},         {"0.0.0.0:0", "0.0.0.0", 0, false},
                {"[::]:65535", "::", 65535, false},    {"10.0.0.1:80", "10.0.0.1", 80, false}};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        expect_error(gate_parse_address(bad[i], &a), ERR_INPUT, "expected ADDR:PORT");
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
        assert_int_equal(gate_parse_address(good[i].text, &a), OK);
        assert_string_equal(a.host, good[i].host);
        assert_true(a.port == good[i].port && a.is_loopback == good[i].is_loopback);
    }
}

static void what_cannot_be_opened_is_refused(void **state) {
    SKIP_WITHOUT_LIBRARY();
    start(NULL, NULL);
    char used[32];
    live *second;
    snprintf(used, sizeof used, "%d", port);
    expect_error(live_open(&second, &(live_options){.run_dir = test_dir, .listen = used}), ERR_IO,
                 "in use|another port");
    expect_error(live_open(&second, &(live_options){.run_dir = "/does/not/exist"}), ERR_IO, "/does/not/exist");
    expect_error(live_open(&second, &(live_options){.run_dir = "/dev/null"}), ERR_IO,
                 "expected the directory of a run");
    expect_error(live_open(&second, &(live_options){.run_dir = test_dir, .listen = "8.8.8.8:80"}), ERR_IO, "8.8.8.8");
}

/* ---- hostile requests --------------------------------------------------------------------------------------------- */

static void oversized_and_malformed_requests(void **state) {
    SKIP_WITHOUT_LIBRARY();
    start(NULL, NULL);
    enum { LONG = 1 << 20 };
    char *junk = mem_alloc(LONG + 1);
    memset(junk, 'a', LONG);
    strbuf request;
    strbuf_init(&request);
    for (int kind = 0; kind < 4; kind++) {
        request.length = 0;
        if (kind == 0) strbuf_printf(&request, "GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", junk);
        if (kind == 1) strbuf_printf(&request, "GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", junk);
        if (kind == 2) strbuf_printf(&request, "%s\r\n\r\n", junk);
        if (kind == 3) {
            strbuf_add(&request, "GET / HTTP/1.1\r\nHost: localhost\r\n");
            for (int i = 0; i < 100000; i++) strbuf_add(&request, "a: b\r\n");
            strbuf_add(&request, "\r\n");
        }
        char *answer = http_ask(port, request.text, request.length);
        int code = http_status(answer);
        if (code != 0 && !(code >= 400 && code < 600)) fail_msg("kind %d: %.100s", kind, answer);
        free(answer);
        expect("GET", "/", "localhost", "", 200);
    }
    static const char *const malformed[] = {"\r\n\r\n",
                                            "GET\r\n\r\n",
                                            "GET /\r\n\r\n",
                                            "GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
                                            " / HTTP/1.1\r\n\r\n",
                                            "GET / HTTP/1.1\r\n: x\r\n\r\n",
                                            "GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
                                            "GET / HTTP/1.1\r\n\r\n",
                                            "GET / HTTP/1.1\nHost:\n\n",
                                            "\x16\x03\x01\x02",
                                            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                            "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"};
    for (size_t i = 0; i < ARRAY_LENGTH(malformed); i++) {
        char *answer = http_ask(port, malformed[i], strlen(malformed[i]));
        if (http_status(answer) == 200) fail_msg("%s: %.100s", malformed[i], answer);
        free(answer);
    }
    expect("GET", "/", "localhost", "", 200);
    strbuf_fini(&request);
    free(junk);
}

/* A request with parts changed, cut, repeated and joined. Whatever comes: the server answers the next good one. */
static void fuzzed_requests(void **state) {
    SKIP_WITHOUT_LIBRARY();
    static const char *const parts[] = {"GET ",
                                        "HEAD ",
                                        "POST ",
                                        "/",
                                        "/api/metrics?width=",
                                        "/api/run",
                                        "/events?from=",
                                        "/app.js",
                                        "?token=",
                                        "%2e%2e/",
                                        "\0",
                                        " HTTP/1.1\r\n",
                                        " HTTP/1.0\r\n",
                                        "Host: localhost\r\n",
                                        "Host: ",
                                        "127.0.0.1",
                                        "[::1]",
                                        "Origin: http://localhost\r\n",
                                        "Cookie: ralo_live_1=",
                                        "Content-Length: ",
                                        "Transfer-Encoding: chunked\r\n",
                                        "\r\n",
                                        "\r\n\r\n",
                                        "18446744073709551616",
                                        "-1",
                                        "Last-Event-ID: 5\r\n",
                                        "Sec-Fetch-Site: none\r\n",
                                        "Authorization: Bearer ",
                                        ";",
                                        ":",
                                        "\xff\xfe",
                                        "5\r\nhello\r\n0\r\n",
                                        "Connection: keep-alive\r\n",
                                        "Connection: close\r\n",
                                        "Expect: 100-continue\r\n",
                                        "Upgrade: websocket\r\n"};
    start(NULL, TOKEN);
    known[0] = 0;
    const char *text = getenv("RALO_LIVE_FUZZ_SECONDS"), *seed_text = getenv("RALO_LIVE_FUZZ_SEED");
    double end = clock_s() + (text ? atof(text) : 1.5);
    uint64_t key = rng_key(seed_text ? (uint64_t)atoll(seed_text) : 1, "live.fuzz"), at = 0, n_sent = 0, n_answered = 0;
    strbuf request;
    strbuf_init(&request);
    while (clock_s() < end) {
        request.length = 0;
        if (rng_below(key, at++, 2))
            strbuf_add(&request, "GET /api/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " TOKEN "\r\n");
        for (uint64_t n = rng_below(key, at++, 12); n > 0; n--) {
            const char *part = parts[rng_below(key, at++, ARRAY_LENGTH(parts))];
            strbuf_add_bytes(&request, part, MAX(strlen(part), (size_t)1));
        }
        if (rng_below(key, at++, 3)) strbuf_add(&request, "\r\n\r\n");
        strbuf_add(&request, "");
        for (uint64_t n = request.length ? rng_below(key, at++, 6) : 0; n > 0; n--) {
            size_t where = rng_below(key, at++, request.length);
            request.text[where] = (char)rng_u64(key, at++);
        }
        int fd = http_connect(port);
        assert_true(fd >= 0);
        http_send(fd, request.text, request.length);
        if (rng_below(key, at++, 4)) {
            strbuf answer;
            strbuf_init(&answer);
            shutdown(fd, SHUT_WR);
            http_read(fd, "\r\n", 10, &answer);
            n_answered += answer.length > 0;
            strbuf_fini(&answer);
        }
        close(fd);
        if (++n_sent % 100 == 0) expect("GET", "/api/run?token=" TOKEN, "localhost", "", 200);
    }
    expect("GET", "/api/run?token=" TOKEN, "localhost", "", 200);
    print_message("%llu requests, %llu answers\n", (unsigned long long)n_sent, (unsigned long long)n_answered);
    assert_true(n_answered > 0);
    strbuf_fini(&request);
}

/* ---- many clients ------------------------------------------------------------------------------------------------- */

static void append_step(int step) {
    char line[128];
    int fd = open(path_of("metrics.jsonl"), O_WRONLY | O_APPEND);
    int n = snprintf(line, sizeof line, "{\"step\": %d, \"train/loss\": %d.5}\n", step, step);
    assert_true(write(fd, line, (size_t)n) == n);
    close(fd);
}

/* 200 pages get each step, and the end; those that leave in the middle disturb nobody. */
static void two_hundred_pages_hear_every_step(void **state) {
    SKIP_WITHOUT_LIBRARY();
    enum { CLIENTS = 200, LEAVE = 50 };
    char request[512];
    int fds[CLIENTS];
    strbuf heard[CLIENTS];
    start(NULL, NULL);
    snprintf(request, sizeof request, "GET /events?from=1 HTTP/1.1\r\nHost: localhost\r\n%s\r\n", known);
    for (int i = 0; i < CLIENTS; i++) {
        strbuf_init(&heard[i]);
        fds[i] = http_connect(port);
        assert_true(fds[i] >= 0);
        http_send(fds[i], request, strlen(request));
    }
    for (int i = 0; i < CLIENTS; i++) {
        http_read(fds[i], "event: reload", 5000, &heard[i]);
        assert_non_null(strstr(heard[i].text, "text/event-stream"));
        assert_non_null(strstr(heard[i].text, "event: reload"));
    }
    for (int i = 0; i < LEAVE; i++) close(fds[i]);
    append_step(3);
    for (int i = LEAVE; i < CLIENTS; i++) {
        http_read(fds[i], "\"train/loss\":{\"x\":[3],\"y\":[3.5]}", 5000, &heard[i]);
        assert_non_null(strstr(heard[i].text, "\"train/loss\":{\"x\":[3],\"y\":[3.5]}"));
    }
    expect("GET", "/api/run", "localhost", "", 200);
    append_step(4);
    live_close(page); /* reads what came last, and says that this is the end */
    page = NULL;
    for (int i = LEAVE; i < CLIENTS; i++) {
        http_read(fds[i], NULL, 5000, &heard[i]);
        assert_non_null(strstr(heard[i].text, "\"x\":[4]"));
        assert_non_null(strstr(heard[i].text, "event: end"));
        close(fds[i]);
    }
    for (int i = 0; i < CLIENTS; i++) strbuf_fini(&heard[i]);
}

/* More pages than there is room for are told so. */
static void too_many_pages_are_refused(void **state) {
    SKIP_WITHOUT_LIBRARY();
    char request[512];
    int fds[STREAM_CLIENTS_MOST];
    start(NULL, NULL);
    snprintf(request, sizeof request, "GET /events HTTP/1.1\r\nHost: localhost\r\n%s\r\n", known);
    for (int i = 0; i < STREAM_CLIENTS_MOST; i++) {
        fds[i] = http_connect(port);
        http_send(fds[i], request, strlen(request));
    }
    for (int i = 0; i < STREAM_CLIENTS_MOST; i++) {
        strbuf out;
        strbuf_init(&out);
        http_read(fds[i], "retry", 5000, &out);
        assert_int_equal(http_status(out.text), 200);
        strbuf_fini(&out);
    }
    expect("GET", "/events", "localhost", "", 503);
    expect("GET", "/api/run", "localhost", "", 200);
    for (int i = 0; i < STREAM_CLIENTS_MOST; i++) close(fds[i]);
}

/* True: the other end has closed, or closes now. */
static bool is_ended(int fd, int ms) {
    char byte;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, ms) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

/* Connections that say nothing, half of a request, or something without the token, and those that stay after an answer.
 * Each kind is more than the server has connections for; whoever has the token is answered all the time, and a page
 * that listens stays. */
static void idle_connections_lock_nobody_out(void **state) {
    SKIP_WITHOUT_LIBRARY();
    enum { EACH = 400 };
    static const char *const kinds[] = {"", "GET / HTTP/1.1\r\nHost: local",
                                        "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n", NULL};
    static int fds[EACH];
    char listens[512], asks[512];
    start(NULL, NULL);
    snprintf(listens, sizeof listens, "GET /events HTTP/1.1\r\nHost: localhost\r\n%s\r\n", known);
    snprintf(asks, sizeof asks, "GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n%s\r\n", known);
    strbuf heard;
    strbuf_init(&heard);
    int listener = http_connect(port);
    http_send(listener, listens, strlen(listens));
    http_read(listener, "event: reload", 5000, &heard);
    for (size_t kind = 0; kind < ARRAY_LENGTH(kinds); kind++) {
        const char *text = kinds[kind] ? kinds[kind] : asks;
        for (int i = 0; i < EACH; i++) {
            fds[i] = http_connect(port);
            assert_true(fds[i] >= 0);
            http_send(fds[i], text, strlen(text));
            if (i % 100 == 99) expect("GET", "/api/run", "localhost", "", 200);
        }
        if (kind < 2) assert_true(is_ended(fds[0], 5000)); /* the oldest made room */
        for (int i = 0; i < EACH; i++) close(fds[i]);
    }
    append_step(3);
    http_read(listener, "\"x\":[3]", 5000, &heard);
    assert_non_null(strstr(heard.text, "\"x\":[3]"));
    close(listener);
    strbuf_fini(&heard);
}

static bool pair_is_open(int pair[2]) { return !is_ended(pair[1], 0); }

/* With a clock of the test: the age counts, whatever was sent; an address ends its own, and all together the busiest
 * one's. */
static void late_and_crowded_connections_are_ended(void **state) {
    enum { MOST = PENDING_MOST + PENDING_OF_ADDRESS + 1 };
    const uint64_t second = 1000000000;
    static int pairs[MOST][2];
    pending p;
    pending_init(&p);
    for (int i = 0; i < MOST; i++) assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]), 0);
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_in6 from6 = {.sin6_family = AF_INET6};
    for (int i = 0; i <= PENDING_OF_ADDRESS; i++) { /* one address: the first makes room for the last */
        from6.sin6_addr.s6_addr[15] = (uint8_t)i;   /* ... which is a whole network in IPv6 */
        pending_add(&p, pairs[i][0], (struct sockaddr *)&from6, i);
        assert_true(pair_is_open(pairs[i]));
    }
    assert_false(pair_is_open(pairs[0]));
    int at = PENDING_OF_ADDRESS + 1;
    for (uint32_t host = 2; p.n < PENDING_MOST; host++) { /* others, two connections each */
        from.sin_addr.s_addr = htonl(host / 2);
        pending_add(&p, pairs[at++][0], (struct sockaddr *)&from, second);
    }
    for (int i = 1; i < at; i++) assert_true(pair_is_open(pairs[i]));
    from.sin_addr.s_addr = htonl(1000);
    pending_add(&p, pairs[at][0], (struct sockaddr *)&from, 2 * second);
    assert_int_equal(p.n, PENDING_MOST);
    assert_false(pair_is_open(pairs[1])); /* the oldest of the address that has the most */
    for (int i = 2; i <= at; i++) assert_true(pair_is_open(pairs[i]));

    pending_remove(&p, pairs[2][0]); /* it has asked */
    pending_remove(&p, pairs[2][0]);
    pending_end_late(&p, PENDING_S * second);
    for (int i = 2; i <= at; i++) assert_true(pair_is_open(pairs[i]));
    pending_end_late(&p, PENDING_S * second + second / 2);
    assert_true(pair_is_open(pairs[2]) && pair_is_open(pairs[at]));
    for (int i = 3; i <= PENDING_OF_ADDRESS; i++) assert_false(pair_is_open(pairs[i]));
    assert_true(pair_is_open(pairs[PENDING_OF_ADDRESS + 1]));
    pending_end_late(&p, (PENDING_S + 2) * second + 1);
    assert_int_equal(p.n, 0);
    assert_false(pair_is_open(pairs[at]));
    assert_true(pair_is_open(pairs[2]));
    for (int i = 0; i < MOST; i++) close(pairs[i][0]), close(pairs[i][1]);
    pending_fini(&p);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_path_answers_with_strict_headers),
        TEST(numbers_are_those_of_the_files),
        TEST(no_path_reaches_a_file),
        TEST(only_get_and_head),
        TEST(other_hosts_and_origins_are_refused),
        TEST(every_address_needs_the_token),
        cmocka_unit_test(addresses),
        TEST(what_cannot_be_opened_is_refused),
        TEST(oversized_and_malformed_requests),
        TEST(fuzzed_requests),
        TEST(two_hundred_pages_hear_every_step),
        TEST(too_many_pages_are_refused),
        TEST(idle_connections_lock_nobody_out),
        cmocka_unit_test(late_and_crowded_connections_are_ended),
    };
    unsetenv("RALO_LIVE_TOKEN");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
