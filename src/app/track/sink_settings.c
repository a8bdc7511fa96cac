/* sink_settings.c - which sinks a run has, from settings and the environment; what is unknown or cannot work is refused at once.
 *
 * User names, passwords and tokens come from the environment alone: settings are saved in config.yaml. So a URI of a setting that
 * holds one is refused, and no message repeats a URI with one. */
#define _GNU_SOURCE 1 /* memrchr */
#include "track/sink.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define NAMES "mlflow, tensorboard, trackio"

static bool is_given(const char *text) { return text && *text; }

static const char *from_environment(const char *name) {
    const char *value = getenv(name);
    return is_given(value) ? value : NULL;
}

/* ---- the list ------------------------------------------------------------------------------------------------------ */

static size_t row_of(const char *name, size_t length) {
    size_t i = 0;
    for (; sink_row_at(i); i++)
        if (strlen(sink_row_at(i)->name) == length && memcmp(sink_row_at(i)->name, name, length) == 0) break;
    return i;
}
#define ROW(name) row_of(name, sizeof name - 1)

static status refuse_name(const char *name, size_t length) {
    if (length == 5 && memcmp(name, "wandb", 5) == 0)
        return ERR(ERR_INPUT, "track.to (report_to): found wandb, which ralo does not send to; use trackio (a local "
                              "page, with an interface like "
                              "wandb's), tensorboard or mlflow, or none");
    return ERR(ERR_INPUT, "track.to: found '%.*s', expected auto, none, all, or a list of " NAMES,
               (int)MIN(length, 60u), name);
}

static status read_names(bool on[], const char *list) {
    size_t n_found = 0;
    for (const char *p = list; *p;) {
        p += strspn(p, ", ");
        size_t length = strcspn(p, ", ");
        if (length == 0) break;
        if (length == 4 && memcmp(p, "none", 4) == 0 && n_found == 0 && !*(p + 4 + strspn(p + 4, ", "))) return OK;
        size_t row = row_of(p, length);
        if (!sink_row_at(row)) return refuse_name(p, length);
        on[row] = true;
        n_found++;
        p += length;
    }
    return n_found ? OK : refuse_name("", 0);
}

/* ---- MLflow's URI --------------------------------------------------------------------------------------------------- */

static size_t scheme_length(const char *uri) {
    size_t n = 0;
    while (isalnum((unsigned char)uri[n]) || (uri[n] && strchr("+-.", uri[n]))) n++;
    return uri[n] == ':' ? n : 0;
}

/* Where the part between "//" and "@" begins, and its length with the "@"; 0: there is none. */
static size_t user_part(const char *uri, size_t *begin) {
    const char *slashes = strstr(uri, "//");
    if (!slashes) return 0;
    *begin = (size_t)(slashes + 2 - uri);
    size_t authority = strcspn(uri + *begin, "/?#");
    const char *at = memrchr(uri + *begin, '@', authority);
    return at ? (size_t)(at + 1 - (uri + *begin)) : 0;
}

void sink_uri_add(strbuf *out, const char *uri) {
    size_t begin = 0, n = user_part(uri, &begin);
    strbuf_add_bytes(out, uri, n ? begin : strlen(uri));
    if (n) strbuf_add(out, uri + begin + n);
}

bool sink_has_login(void) {
    static const char *const names[] = {"MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME",
                                        "MLFLOW_TRACKING_PASSWORD"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (from_environment(names[i])) return true;
    return false;
}

static const char *uri_of_environment(const char **name) {
    const char *uri = from_environment(*name = "MLFLOW_TRACKING_URI");
    return uri ? uri : from_environment(*name = "MLFLOW_URI");
}

static size_t length_without_slashes(const char *uri) {
    size_t n = strlen(uri);
    while (n > 0 && uri[n - 1] == '/') n--;
    return n;
}

bool sink_is_mine(const char *uri) {
    const char *name, *mine = uri_of_environment(&name);
    strbuf bare;
    if (!mine) return false;
    strbuf_init(&bare);
    sink_uri_add(&bare, mine);
    size_t n = length_without_slashes(bare.text);
    bool is = n == length_without_slashes(uri) && memcmp(bare.text, uri, n) == 0;
    strbuf_fini(&bare);
    return is;
}

static status check_uri(const char *uri, const char *from) {
    size_t n = scheme_length(uri);
    bool rest = str_starts_with(uri, "http://") || str_starts_with(uri, "https://");
    if (rest && uri[strcspn(uri, "?#\\ \t\r\n\"")])
        return ERR(ERR_INPUT, "%s: found a URI with a query, a fragment or blanks, expected http://HOST:PORT", from);
    if (rest || str_starts_with(uri, "file:")) return OK;
    if (strncmp(uri, "databricks", 10) == 0)
        return ERR(
            ERR_INPUT,
            "%s: found a databricks URI, whose login ralo does not have; use the http(s) address of an MLflow server, "
            "or track.to=none",
            from);
    for (size_t i = 0; i < 4; i++) {
        static const char *const databases[] = {"sqlite", "postgresql", "mysql", "mssql"};
        if (n && strncmp(uri, databases[i], strlen(databases[i])) == 0)
            return ERR(ERR_INPUT,
                       "%s: found a database (%.*s), expected a server. Start one: mlflow server --backend-store-uri "
                       "%.*s:... and set track.mlflow=http://127.0.0.1:5000; or track.to=none",
                       from, (int)n, uri, (int)n, uri);
    }
    if (n)
        return ERR(ERR_INPUT, "%s: found a URI that begins with '%.*s:', expected http://, https:// or file:", from,
                   (int)MIN(n, 40u), uri);
    return ERR(ERR_INPUT, "%s: found no URI, expected http://HOST:PORT, https://... or file:DIR", from);
}

/* ---- all ------------------------------------------------------------------------------------------------------------ */

static char *last_part(const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    strbuf out;
    strbuf_init(&out);
    strbuf_add_bytes(&out, path + begin, end - begin);
    return strbuf_take(&out);
}

/* Names go into JSON, which is UTF-8. */
static char *clean_name(const char *text) {
    json_t *clean = json_text(text, strlen(text));
    char *out = mem_string(json_string_value(clean));
    json_decref(clean);
    return out;
}

static char *first_given(const char *a, const char *b, const char *otherwise) {
    return clean_name(is_given(a) ? a : is_given(b) ? b : otherwise);
}

/* Of a setting, whether it is used or not: it is saved in config.yaml. */
static status check_login(const char *uri) {
    if (!(str_starts_with(uri, "http:") || str_starts_with(uri, "https:")) || !strchr(uri, '@')) return OK;
    return ERR(ERR_INPUT,
               "track.mlflow: found a URI with a user name or password, which would be saved in config.yaml; leave it "
               "out and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN");
}

static status choose(sink_settings *s, const track_sinks *asked, const char *uri) {
    const char *to = is_given(asked->to) ? asked->to : "auto";
    if (strcmp(to, "auto") == 0) {
        s->on[ROW("mlflow")] = uri != NULL;
        s->on[ROW("tensorboard")] = is_given(asked->tensorboard);
        s->on[ROW("trackio")] = is_given(asked->trackio);
    } else if (strcmp(to, "all") == 0) {
        for (size_t i = 0; sink_row_at(i); i++) s->on[i] = i != ROW("mlflow") || uri;
    } else {
        TRY(read_names(s->on, to));
    }
    if (s->on[ROW("mlflow")] && !uri)
        return ERR(ERR_INPUT,
                   "track.to: found mlflow, but no server; set track.mlflow=http://HOST:PORT or MLFLOW_TRACKING_URI");
    return OK;
}

status sink_settings_init(sink_settings *s, const track_sinks *asked, const char *run_dir) {
    *s = (sink_settings){.wait = asked->wait};
    const char *from = "track.mlflow", *uri = is_given(asked->mlflow) ? asked->mlflow : NULL;
    if (uri) TRY(check_login(uri));
    else uri = uri_of_environment(&from);
    TRY(choose(s, asked, uri));
    if (s->on[ROW("mlflow")]) {
        TRY(check_uri(uri, from));
        if (is_given(asked->mlflow) && str_starts_with(uri, "http") && sink_has_login() && !sink_is_mine(uri))
            return ERR(ERR_INPUT,
                       "track.mlflow: found %.200s, and a login (MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME, "
                       "MLFLOW_TRACKING_PASSWORD) that goes only to the server of MLFLOW_TRACKING_URI; set "
                       "MLFLOW_TRACKING_URI to %.200s if the login is for it, else unset the login",
                       uri, uri);
        TRY(mlflow_check(uri, from));
        s->mlflow_uri = mem_string(uri);
        while (str_ends_with(s->mlflow_uri, "/")) s->mlflow_uri[strlen(s->mlflow_uri) - 1] = 0;
    }
    if (!run_dir) return OK;
    char *last = last_part(run_dir);
    s->name = first_given(asked->name, NULL, last);
    free(last);
    s->mlflow_experiment = first_given(asked->experiment, getenv("MLFLOW_EXPERIMENT_NAME"), "ralo");
    s->trackio_project = first_given(asked->trackio, getenv("TRACKIO_PROJECT"), "ralo");
    strbuf dir;
    strbuf_init(&dir);
    strbuf_printf(&dir, "%s/tensorboard", run_dir);
    s->tensorboard_dir = is_given(asked->tensorboard) ? mem_string(asked->tensorboard) : strbuf_take(&dir);
    strbuf_fini(&dir);
    return OK;
}

void sink_settings_fini(sink_settings *s) {
    free(s->name);
    free(s->mlflow_uri);
    free(s->mlflow_experiment);
    free(s->tensorboard_dir);
    free(s->trackio_project);
    *s = (sink_settings){0};
}

status track_sinks_check(const track_sinks *asked) {
    sink_settings s;
    status rc = sink_settings_init(&s, asked, NULL);
    sink_settings_fini(&s);
    return rc;
}
