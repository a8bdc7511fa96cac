/* http.c - a reward from a server: items are posted in batches, scores come back in the same order.
 *
 * POST {"items": [{"prompt", "completion", ...}, ...]} is answered by {"scores": [...]}, a number, null or {"score": x}
 * for each item. What may pass (no connection, a time-out, 408, 429, 5xx) is tried again reward.retries times, each
 * time after a longer pause; other statuses and bodies are not. Redirects are not followed, and an answer has at most
 * ANSWER_MOST bytes. A login comes from the environment, which also names the server that gets it: a config of somebody
 * else cannot send it elsewhere. A server that gave no score at all SILENT_STEPS times in a row ends the run, whatever
 * reward.on_error says: it is not there, and nothing would be learnt.
 *
 * libcurl is loaded when the first such reward is opened: it brings two dozen libraries, which no other run should pay
 * for. */
#ifdef HAVE_CURL
#include "reward/kind.h"
#include "reward/reply.h"
#include "reward/sigpipe.h"

#define CURL_DISABLE_TYPECHECK 1 /* its macros call functions by name */
#include <curl/curl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libcurl.so.4"
#define ANSWER_MOST ((size_t)16 << 20)
#define BATCH_MOST ((size_t)64)
#define PAUSE_FIRST 0.1 /* seconds; then twice as long each time */
#define PAUSE_MOST 5.0
#define SILENT_STEPS 3

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* clang-format off */
#define FUNCTIONS(X)                                                                  \
    X(curl_global_init) X(curl_global_cleanup) X(curl_slist_append) X(curl_slist_free_all) \
    X(curl_easy_init) X(curl_easy_cleanup) X(curl_easy_setopt) X(curl_easy_perform)   \
    X(curl_easy_getinfo) X(curl_easy_strerror)
/* clang-format on */

static struct {
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} lib;

static status load(void) {
#define X(name) {#name, &lib.name},
    static const library_symbol symbols[] = {FUNCTIONS(X)};
#undef X
    char why[400];
    if (library_load(LIBRARY, symbols, ARRAY_LENGTH(symbols), why, sizeof why)) return OK;
    return ERR(ERR_INPUT, "reward.list: found http, but %s; install libcurl4", why);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

typedef struct http {
    CURL *curl;
    struct curl_slist *headers;
    int64_t retries;
    int n_silent; /* steps in a row in which no batch was answered */
    char *url;    /* for messages */
    strbuf answer;
    bool is_global;
    char error[CURL_ERROR_SIZE];
} http;

static void http_close(void *self) {
    http *h = self;
    lib.curl_slist_free_all(h->headers);
    lib.curl_easy_cleanup(h->curl);
    if (h->is_global) lib.curl_global_cleanup();
    strbuf_fini(&h->answer);
    free(h->url);
    free(h);
}

static size_t take(char *bytes, size_t size, size_t n, void *self) {
    http *h = self;
    if (h->answer.length + size * n > ANSWER_MOST) return 0; /* ends the transfer */
    strbuf_add_bytes(&h->answer, bytes, size * n);
    return size * n;
}

static status check(const reward_options *o) {
    TRY(reward_url_check(o->url ? o->url : "", "reward.url"));
    if (!(o->timeout > 0 && o->timeout <= 1e6))
        return ERR(ERR_INPUT, "reward.timeout: found %g, expected seconds above 0", o->timeout);
    if (o->retries < 0) return ERR(ERR_INPUT, "reward.retries: found %lld, expected 0 or more", (long long)o->retries);
    return OK;
}

/* ---- the login --------------------------------------------------------------------------------------------------- */

typedef struct login {
    const char *token, *user, *password; /* a token, or both others; NULL: none */
} login;

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Bytes of "https://HOST:PORT". */
static size_t server_length(const char *url) {
    const char *host = strstr(url, "//") + 2;
    return (size_t)(host - url) + strcspn(host, "/");
}

static status login_find(const char *url, login *out) {
    const char *mine = variable("RALO_REWARD_URL");
    *out = (login){variable("RALO_REWARD_TOKEN"), variable("RALO_REWARD_USERNAME"), variable("RALO_REWARD_PASSWORD")};
    if (!out->token && !(out->user && out->password)) return OK;
    if (mine) TRY(reward_url_check(mine, "RALO_REWARD_URL"));
    if (!mine || server_length(mine) != server_length(url) || strncmp(mine, url, server_length(url)) != 0)
        return ERR(ERR_INPUT,
                   "reward.url: found %.200s, and a login (RALO_REWARD_TOKEN, or RALO_REWARD_USERNAME and "
                   "RALO_REWARD_PASSWORD) that goes only to the server of RALO_REWARD_URL, which is %.200s; set "
                   "RALO_REWARD_URL to %.200s if the login is for it, else unset the login",
                   url, mine ? mine : "not set", url);
    if (out->token && strpbrk(out->token, "\r\n"))
        return ERR(ERR_INPUT, "RALO_REWARD_TOKEN: found a line break, expected one line");
    return OK;
}

static CURLcode login_set(http *h, const login *l) {
    CURLcode rc = CURLE_OK;
    if (l->token) {
        strbuf header;
        strbuf_init(&header);
        strbuf_printf(&header, "Authorization: Bearer %s", l->token);
        struct curl_slist *more = lib.curl_slist_append(h->headers, header.text);
        if (more) h->headers = more;
        else rc = CURLE_OUT_OF_MEMORY;
        strbuf_fini(&header);
    } else if (l->user && l->password) {
        rc = lib.curl_easy_setopt(h->curl, CURLOPT_USERNAME, l->user);
        if (rc == CURLE_OK) rc = lib.curl_easy_setopt(h->curl, CURLOPT_PASSWORD, l->password);
    }
    return rc;
}

/* No signals for time-outs: they would be the host's. */
static bool set_up(http *h, const reward_options *o, const login *l) {
    long ms = (long)ceil(o->timeout * 1e3);
    h->headers = lib.curl_slist_append(NULL, "Content-Type: application/json");
    struct curl_slist *last =
        h->headers ? lib.curl_slist_append(h->headers, "Expect:") : NULL; /* else a body waits for 100 Continue */
    CURLcode rc = last ? login_set(h, l) : CURLE_OUT_OF_MEMORY;
#define SET(option, value) \
    if (rc == CURLE_OK) rc = lib.curl_easy_setopt(h->curl, option, value)
    SET(CURLOPT_URL, o->url);
    SET(CURLOPT_HTTPHEADER, h->headers);
    SET(CURLOPT_USERAGENT, "ralo");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TIMEOUT_MS, ms);
    SET(CURLOPT_CONNECTTIMEOUT_MS, ms);
    SET(CURLOPT_WRITEFUNCTION, take);
    SET(CURLOPT_WRITEDATA, h);
    SET(CURLOPT_ERRORBUFFER, h->error);
#if LIBCURL_VERSION_NUM >= 0x075500
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
#undef SET
    return rc == CURLE_OK;
}

static status http_open(void **self, const reward_options *o) {
    login l;
    TRY(check(o));
    TRY(login_find(o->url, &l));
    TRY(load());
    http *h = mem_alloc(sizeof *h);
    h->retries = o->retries;
    h->url = mem_string(o->url);
    h->is_global = lib.curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    h->curl = h->is_global ? lib.curl_easy_init() : NULL;
    if (!h->curl || !set_up(h, o, &l)) {
        http_close(h);
        return ERR(ERR_INPUT, "reward.url: libcurl cannot be set up for it");
    }
    *self = h;
    return OK;
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

static char *body_of(const reward_item *items, size_t n) {
    json_t *root = json_object(), *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, item_json(&items[i]));
    json_object_set_new(root, "items", list);
    char *body = json_dumps(root, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(root);
    if (!body) mem_refused(0);
    return body;
}

static bool may_pass(CURLcode rc, long code) {
    if (rc == CURLE_WRITE_ERROR || rc == CURLE_URL_MALFORMAT || rc == CURLE_UNSUPPORTED_PROTOCOL) return false;
    return rc != CURLE_OK || code == 408 || code == 429 || code >= 500;
}

static void pause_before(int64_t attempt) {
    double s = MIN(PAUSE_FIRST * ldexp(1, (int)MIN(attempt - 1, (int64_t)10)), PAUSE_MOST);
    nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)((s - floor(s)) * 1e9)}, NULL);
}

/* False: `why` says what came instead of an answer with status 200. */
static bool post(http *h, const char *body, char why[160]) {
    long code = 0;
    for (int64_t attempt = 0;; attempt++) {
        if (attempt > 0) pause_before(attempt);
        h->answer.length = 0;
        *h->error = 0;
        code = 0;
        lib.curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
        lib.curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, body);
        CURLcode rc = lib.curl_easy_perform(h->curl);
        lib.curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &code);
        if (rc == CURLE_OK && code == 200) return true;
        if (rc == CURLE_WRITE_ERROR) snprintf(why, 160, "an answer of more than %zu MiB", ANSWER_MOST >> 20);
        else if (rc != CURLE_OK)
            snprintf(why, 160, "no answer: %.120s", *h->error ? h->error : lib.curl_easy_strerror(rc));
        else snprintf(why, 160, "status %ld, expected 200", code);
        if (!may_pass(rc, code) || attempt >= h->retries) return false;
    }
}

static status score_batch(http *h, scoring *s, size_t first, size_t n, bool *is_answered) {
    reply replies[BATCH_MOST];
    char why[160];
    char *body = body_of(s->items + first, n);
    bool came = post(h, body, why);
    free(body);
    if (came) came = replies_parse(h->answer.text ? h->answer.text : "", h->answer.length, n, replies, why);
    *is_answered |= came;
    for (size_t i = 0; i < n; i++) {
        if (!came) TRY(scoring_fail(s, first + i, "the server gave %s", why));
        else if (replies[i].kind == REPLY_NUMBER) scoring_put(s, first + i, replies[i].score);
        else if (replies[i].kind != REPLY_NULL)
            TRY(scoring_fail(s, first + i, "the server gave the score '%s', expected a finite number or null",
                             replies[i].found));
    }
    return OK;
}

static status http_score(void *self, scoring *s) {
    http *h = self;
    status rc = OK;
    bool is_answered = false;
    if (s->n == 0) return OK;
    sigpipe_hold hold = sigpipe_hold_begin();
    for (size_t i = 0; i < s->n && rc == OK; i += BATCH_MOST)
        rc = score_batch(h, s, i, MIN(BATCH_MOST, s->n - i), &is_answered);
    sigpipe_hold_end(&hold);
    TRY(rc);
    h->n_silent = is_answered ? 0 : h->n_silent + 1;
    if (h->n_silent < SILENT_STEPS) return OK;
    return ERR(ERR_RUN,
               "reward.url: %.200s gave no score %d times in a row: %s; see that the server runs and answers "
               "{\"scores\": [...]}, then continue the run",
               h->url, h->n_silent, s->report->first_failure);
}

const reward_kind reward_kind_HTTP = {http_open, http_score, http_close};
#endif
