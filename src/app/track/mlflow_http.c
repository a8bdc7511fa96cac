/* mlflow_http.c - requests to one MLflow server, with libcurl, which is loaded when it is first needed.
 *
 * What may pass (no connection, a time-out, an answer that breaks off or is no JSON, 408, 429, 5xx) is ERR_IO; what the server refuses is
 * ERR_INPUT. A request under way ends when the run has waited long enough for it. */
#ifdef HAVE_CURL
#include "track/mlflow_http.h"

#define CURL_DISABLE_TYPECHECK 1 /* its macros call functions by name */
#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libcurl.so.4"
#define ANSWER_MOST ((size_t)16 << 20)
#define CONNECT_MS 10000L
#define REQUEST_MS 60000L

/* ---- the library ------------------------------------------------------------------------------------------------------ */

/* clang-format off */
#define FUNCTIONS(X)                                                             \
    X(curl_global_init) X(curl_slist_append) X(curl_slist_free_all)              \
    X(curl_easy_init) X(curl_easy_cleanup) X(curl_easy_setopt) X(curl_easy_perform) \
    X(curl_easy_getinfo) X(curl_easy_strerror)
/* clang-format on */

static struct {
    const char *problem; /* NULL: it is here */
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} lib;

/* Its global state is never ended: other threads and the reward http may use it. */
static void load(void) {
#define X(name) {#name, &lib.name},
    static const library_symbol symbols[] = {FUNCTIONS(X)};
#undef X
    static char why[400];
    if (!library_load(LIBRARY, symbols, ARRAY_LENGTH(symbols), why, sizeof why)) lib.problem = why;
    else if (lib.curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) lib.problem = LIBRARY " does not start";
}

status mlflow_check(const char *uri, const char *from) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (str_starts_with(uri, "file:")) return OK;
    pthread_once(&once, load);
    if (!lib.problem) return OK;
    return ERR(ERR_INPUT, "%s: found a server, but %s; install it: apt-get install libcurl4", from, lib.problem);
}

/* ---- a connection ------------------------------------------------------------------------------------------------------ */

struct mlflow_http {
    CURL *curl;
    struct curl_slist *headers;
    char *uri;
    const sink_run *run;
    strbuf answer;
    char error[CURL_ERROR_SIZE];
};

static size_t take(char *bytes, size_t size, size_t n, void *self) {
    mlflow_http *h = self;
    if (h->answer.length + size * n > ANSWER_MOST) return 0; /* ends the transfer */
    strbuf_add_bytes(&h->answer, bytes, size * n);
    return size * n;
}

static int on_progress(void *self, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    return sink_out_of_time(((mlflow_http *)self)->run); /* other than 0 ends the transfer */
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* As MLflow's own client reads them: a token, or a user name and a password. */
static CURLcode set_login(mlflow_http *h) {
    const char *token = variable("MLFLOW_TRACKING_TOKEN"), *user = variable("MLFLOW_TRACKING_USERNAME"),
               *password = variable("MLFLOW_TRACKING_PASSWORD");
    CURLcode rc = CURLE_OK;
    if (user && password) {
        rc = lib.curl_easy_setopt(h->curl, CURLOPT_USERNAME, user);
        if (rc == CURLE_OK) rc = lib.curl_easy_setopt(h->curl, CURLOPT_PASSWORD, password);
    } else if (token) {
        strbuf header;
        strbuf_init(&header);
        strbuf_printf(&header, "Authorization: Bearer %s", token);
        struct curl_slist *more = lib.curl_slist_append(h->headers, header.text);
        if (more) h->headers = more;
        else rc = CURLE_OUT_OF_MEMORY;
        strbuf_fini(&header);
    }
    return rc;
}

static CURLcode set_up(mlflow_http *h) {
    const char *insecure = variable("MLFLOW_TRACKING_INSECURE_TLS"), *ca = variable("MLFLOW_TRACKING_SERVER_CERT_PATH");
    h->headers = lib.curl_slist_append(NULL, "Content-Type: application/json");
    struct curl_slist *last = h->headers ? lib.curl_slist_append(h->headers, "Expect:") : NULL;
    CURLcode rc = last ? set_login(h) : CURLE_OUT_OF_MEMORY;
#define SET(option, value) \
    if (rc == CURLE_OK) rc = lib.curl_easy_setopt(h->curl, option, value)
    SET(CURLOPT_HTTPHEADER, h->headers);
    SET(CURLOPT_USERAGENT, "ralo");
    SET(CURLOPT_NOSIGNAL, 1L); /* signals of time-outs would be the host's */
    SET(CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    SET(CURLOPT_TIMEOUT_MS, REQUEST_MS);
    SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
    SET(CURLOPT_LOW_SPEED_TIME, REQUEST_MS / 1000);
    SET(CURLOPT_WRITEFUNCTION, take);
    SET(CURLOPT_WRITEDATA, h);
    SET(CURLOPT_NOPROGRESS, 0L);
    SET(CURLOPT_XFERINFOFUNCTION, on_progress);
    SET(CURLOPT_XFERINFODATA, h);
    SET(CURLOPT_ERRORBUFFER, h->error);
    if (insecure && (strcmp(insecure, "true") == 0 || strcmp(insecure, "1") == 0)) {
        SET(CURLOPT_SSL_VERIFYPEER, 0L);
        SET(CURLOPT_SSL_VERIFYHOST, 0L);
    }
    if (ca) SET(CURLOPT_CAINFO, ca);
#if LIBCURL_VERSION_NUM >= 0x075500
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
#undef SET
    return rc;
}

void mlflow_http_close(mlflow_http *h) {
    lib.curl_slist_free_all(h->headers);
    if (h->curl) lib.curl_easy_cleanup(h->curl);
    strbuf_fini(&h->answer);
    free(h->uri);
    free(h);
}

status mlflow_http_open(mlflow_http **out, const sink_run *r) {
    TRY(mlflow_check(r->settings->mlflow_uri, "track.mlflow"));
    mlflow_http *h = mem_alloc(sizeof *h);
    h->run = r;
    h->uri = mem_string(r->settings->mlflow_uri);
    strbuf_init(&h->answer);
    h->curl = lib.curl_easy_init();
    if (!h->curl || set_up(h) != CURLE_OK) {
        mlflow_http_close(h);
        return ERR(ERR_INPUT, "libcurl cannot be set up for this server");
    }
    *out = h;
    return OK;
}

/* ---- requests ------------------------------------------------------------------------------------------------------------ */

/* Without a query, which may hold what the user named. */
static int path_length(const char *path) { return (int)strcspn(path, "?"); }

static status refused(mlflow_http *h, const char *path, long code) {
    json_t *answer = h->answer.length ? json_loadb(h->answer.text, h->answer.length, 0, NULL) : NULL;
    const char *message = json_string_value(json_object_get(answer, "message"));
    status rc;
    if (code == 401 || code == 403)
        rc =
            ERR(ERR_INPUT,
                "the server refuses the login (status %ld); set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD",
                code);
    else if (code == 408 || code == 429 || code >= 500)
        rc = ERR(ERR_IO, "%.*s gave status %ld", path_length(path), path, code);
    else
        rc = ERR(ERR_INPUT, "%.*s gave status %ld%s%.300s", path_length(path), path, code, message ? ": " : "",
                 message ? message : "");
    json_decref(answer);
    return rc;
}

static status perform(mlflow_http *h, const char *path, long *code) {
    strbuf url;
    strbuf_init(&url);
    strbuf_printf(&url, "%s%s", h->uri, path);
    h->answer.length = 0;
    *h->error = 0;
    *code = 0;
    CURLcode rc = lib.curl_easy_setopt(h->curl, CURLOPT_URL, url.text);
    if (rc == CURLE_OK) rc = lib.curl_easy_perform(h->curl);
    lib.curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, code);
    strbuf_fini(&url);
    if (rc == CURLE_WRITE_ERROR) return ERR(ERR_IO, "an answer of more than %zu MiB", ANSWER_MOST >> 20);
    if (rc != CURLE_OK)
        return ERR(ERR_IO, "no answer from the server: %.200s", *h->error ? h->error : lib.curl_easy_strerror(rc));
    return OK;
}

static bool says_missing(const mlflow_http *h, long code) {
    json_t *answer = code == 404 && h->answer.length ? json_loadb(h->answer.text, h->answer.length, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(answer, "error_code"));
    bool is = why && strcmp(why, "RESOURCE_DOES_NOT_EXIST") == 0;
    json_decref(answer);
    return is;
}

status mlflow_http_json(mlflow_http *h, const char *path, const json_t *body, json_t **answer, bool *missing) {
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    if (body && !text) mem_refused(0);
    long code;
    /* On a connection that was used before, libcurl repeats a request without an answer by itself: not one that makes something. */
    lib.curl_easy_setopt(h->curl, CURLOPT_FRESH_CONNECT, body && str_ends_with(path, "/create") ? 1L : 0L);
    if (body) {
        lib.curl_easy_setopt(h->curl, CURLOPT_POST, 1L);
        lib.curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
        lib.curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, text);
    } else {
        lib.curl_easy_setopt(h->curl, CURLOPT_HTTPGET, 1L);
    }
    status rc = perform(h, path, &code);
    free(text);
    if (rc != OK) return rc;
    if (missing && (*missing = says_missing(h, code))) return OK;
    if (code != 200) return refused(h, path, code);
    if (!answer) return OK;
    *answer = h->answer.length ? json_loadb(h->answer.text, h->answer.length, 0, NULL) : NULL;
    if (json_is_object(*answer)) return OK;
    json_decref(*answer);
    *answer = NULL;
    return ERR(ERR_IO, "%.*s answered something that is not a JSON object; is this an MLflow server?",
               path_length(path), path);
}

/* Never more than was said: the file may grow meanwhile. */
static size_t give(char *out, size_t size, size_t n, void *fd) {
    ssize_t got = read(*(int *)fd, out, size * n);
    return got < 0 ? CURL_READFUNC_ABORT : (size_t)got;
}

static int go_back(void *fd, curl_off_t offset, int origin) {
    return lseek(*(int *)fd, (off_t)offset, origin) < 0 ? CURL_SEEKFUNC_FAIL : CURL_SEEKFUNC_OK;
}

status mlflow_http_put(mlflow_http *h, const char *path, int fd, uint64_t n_bytes) {
    long code;
    lib.curl_easy_setopt(h->curl, CURLOPT_UPLOAD, 1L);
    lib.curl_easy_setopt(h->curl, CURLOPT_READFUNCTION, give);
    lib.curl_easy_setopt(h->curl, CURLOPT_READDATA, &fd);
    lib.curl_easy_setopt(h->curl, CURLOPT_SEEKFUNCTION, go_back);
    lib.curl_easy_setopt(h->curl, CURLOPT_SEEKDATA, &fd);
    lib.curl_easy_setopt(h->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)n_bytes);
    lib.curl_easy_setopt(h->curl, CURLOPT_TIMEOUT_MS, 0L); /* a large file takes its time, as long as it moves */
    status rc = perform(h, path, &code);
    lib.curl_easy_setopt(h->curl, CURLOPT_TIMEOUT_MS, REQUEST_MS);
    if (rc != OK) return rc;
    return code == 200 ? OK : refused(h, path, code);
}
#endif
