/* mlflow_file.c - MLflow's file store: directories of small files, as its client wrote them until version 3.12.
 *
 *     ROOT/<experiment>/meta.yaml
 *     ROOT/<experiment>/<run>/meta.yaml, metrics/<key> ("time value step" lines), params/<key>, tags/<key>, artifacts/
 *
 * Written only where the URI begins with file:. MLflow 3.13 and later refuse to read it unless MLFLOW_ALLOW_FILE_STORE=true. */
#include "track/mlflow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct store {
    char *root; /* absolute */
    char experiment[65], run[65];
    char *name;
    int64_t start_ms;
    strbuf dir; /* of the run */
} store;

static void store_close(void *self) {
    store *s = self;
    strbuf_fini(&s->dir);
    free(s->root);
    free(s->name);
    free(s);
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* file:DIR, file:/DIR and file:///DIR. */
static status find_root(store *s, const char *uri) {
    const char *path = uri + strlen("file:");
    if (str_starts_with(path, "///")) path += 2;
    else if (str_starts_with(path, "//"))
        return ERR(ERR_INPUT, "track.mlflow: found file: with a host, expected file:DIR or file:///DIR");
    if (!*path) path = "mlruns";
    TRY(dir_make(path));
    char *real = realpath(path, NULL);
    if (!real) return ERR(ERR_IO, "open %s: %s", path, strerror(errno));
    s->root = real;
    return OK;
}

/* ---- meta.yaml ---------------------------------------------------------------------------------------------------------- */

/* The text of a key, in out; false: there is none. */
static bool meta_get(const char *path, const char *key, char *out, size_t n) {
    arena memory;
    yaml_node *root = NULL;
    bool found = false;
    arena_init(&memory);
    if (yaml_read_file(path, &memory, &root) != OK) error_clear();
    else if (root->kind == YAML_MAP)
        for (const yaml_node *e = root->first_child; e && !found; e = e->next)
            if (e->kind == YAML_SCALAR && strcmp(e->key, key) == 0) {
                snprintf(out, n, "%s", e->text);
                found = true;
            }
    arena_fini(&memory);
    return found;
}

static void add_line(strbuf *out, const char *key, const char *text) {
    strbuf_printf(out, "%s: ", key);
    yaml_write_quoted(text, out);
    strbuf_add(out, "\n");
}

static status write_in(const char *dir, const char *name, const char *text, size_t n_bytes) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s", dir, name);
    status rc = file_replace(path.text, text, n_bytes);
    strbuf_fini(&path);
    return rc;
}

/* status: as MLflow numbers them, 1 running, 3 finished, 4 failed, 5 killed. */
static status write_run(const store *s, int state, int64_t end_ms) {
    strbuf meta, artefacts;
    const char *user = getenv("USER");
    strbuf_init(&meta);
    strbuf_init(&artefacts);
    strbuf_printf(&artefacts, "file://%s/artifacts", s->dir.text);
    add_line(&meta, "artifact_uri", artefacts.text);
    if (end_ms) strbuf_printf(&meta, "end_time: %lld\n", (long long)end_ms);
    else strbuf_add(&meta, "end_time: null\n");
    strbuf_add(&meta, "entry_point_name: ''\n");
    add_line(&meta, "experiment_id", s->experiment);
    strbuf_add(&meta, "lifecycle_stage: active\n");
    add_line(&meta, "run_id", s->run);
    add_line(&meta, "run_name", s->name);
    add_line(&meta, "run_uuid", s->run);
    strbuf_printf(&meta,
                  "source_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: %lld\nstatus: %d\ntags: []\n",
                  (long long)s->start_ms, state);
    add_line(&meta, "user_id", user ? user : "");
    status rc = write_in(s->dir.text, "meta.yaml", meta.text, meta.length);
    strbuf_fini(&meta);
    strbuf_fini(&artefacts);
    return rc;
}

/* ---- files of a run ----------------------------------------------------------------------------------------------------------- */

/* A key may hold slashes, and must stay below its directory. The directories on its way are made. */
static status key_path(const store *s, const char *part, const char *key, strbuf *path) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. :/";
    if (!*key || key[strspn(key, allowed)] || *key == '/' || *key == '.' || strstr(key, "/.") ||
        str_ends_with(key, "/"))
        return ERR(ERR_INPUT, "found the key '%.60s', which cannot be a file of MLflow's", key);
    strbuf_printf(path, "%s/%s/%s", s->dir.text, part, key);
    char *slash = strrchr(path->text, '/');
    *slash = 0;
    status rc = dir_make(path->text);
    *slash = '/';
    return rc;
}

static status add_pairs(const store *s, const char *part, const json_t *pairs) {
    size_t i;
    json_t *pair;
    status rc = OK;
    json_array_foreach(pairs, i, pair) {
        const json_t *value = json_object_get(pair, "value");
        strbuf path;
        strbuf_init(&path);
        rc = key_path(s, part, json_string_value(json_object_get(pair, "key")), &path);
        if (rc == OK) rc = file_replace(path.text, json_string_value(value), json_string_length(value));
        strbuf_fini(&path);
        if (rc != OK) break;
    }
    return rc;
}

/* ---- the experiment and the run ------------------------------------------------------------------------------------------ */

static bool is_named(const store *s, const char *entry, const char *name) {
    char found[1024];
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s/meta.yaml", s->root, entry);
    bool is = meta_get(path.text, "name", found, sizeof found) && strcmp(found, name) == 0;
    strbuf_fini(&path);
    return is;
}

static status make_experiment(store *s, const char *name) {
    strbuf dir, meta, location;
    strbuf_init(&dir);
    strbuf_init(&meta);
    strbuf_init(&location);
    snprintf(s->experiment, sizeof s->experiment, "%llu",
             (unsigned long long)now_ms() * 1000000 + (uint64_t)getpid() % 1000000);
    strbuf_printf(&dir, "%s/%s", s->root, s->experiment);
    strbuf_printf(&location, "file://%s", dir.text);
    add_line(&meta, "artifact_location", location.text);
    strbuf_printf(&meta, "creation_time: %lld\n", (long long)now_ms());
    add_line(&meta, "experiment_id", s->experiment);
    strbuf_printf(&meta, "last_update_time: %lld\nlifecycle_stage: active\n", (long long)now_ms());
    add_line(&meta, "name", name);
    status rc = dir_make(dir.text);
    if (rc == OK) rc = write_in(dir.text, "meta.yaml", meta.text, meta.length);
    strbuf_fini(&dir);
    strbuf_fini(&meta);
    strbuf_fini(&location);
    return rc;
}

static status find_experiment(store *s, const char *name) {
    DIR *d = opendir(s->root);
    if (!d) return ERR(ERR_IO, "open %s: %s", s->root, strerror(errno));
    for (const struct dirent *e; !*s->experiment && (e = readdir(d));)
        if (e->d_name[strspn(e->d_name, "0123456789")] == 0 && strlen(e->d_name) < sizeof s->experiment &&
            is_named(s, e->d_name, name))
            snprintf(s->experiment, sizeof s->experiment, "%.64s", e->d_name);
    closedir(d);
    return *s->experiment ? OK : make_experiment(s, name);
}

static status make_parts(const store *s) {
    static const char *const parts[] = {"metrics", "params", "tags", "artifacts"};
    status rc = OK;
    for (size_t i = 0; i < ARRAY_LENGTH(parts) && rc == OK; i++) {
        strbuf dir;
        strbuf_init(&dir);
        strbuf_printf(&dir, "%s/%s", s->dir.text, parts[i]);
        rc = dir_make(dir.text);
        strbuf_fini(&dir);
    }
    return rc;
}

static status read_params(const store *s, json_t **known) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/params", s->dir.text);
    DIR *d = opendir(path.text);
    *known = json_object();
    for (const struct dirent *e; d && (e = readdir(d));) {
        char *text;
        size_t n;
        if (*e->d_name == '.') continue;
        path.length = 0;
        strbuf_printf(&path, "%s/params/%s", s->dir.text, e->d_name);
        if (file_read_all(path.text, 1 << 16, &text, &n) != OK) {
            error_clear();
            continue;
        }
        json_object_set_new(*known, e->d_name, json_text(text, n));
        free(text);
    }
    if (d) closedir(d);
    strbuf_fini(&path);
    return OK;
}

static status write_tags(const store *s) {
    json_t *tags = json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "key", "mlflow.runName", "value", s->name, "key",
                             "mlflow.source.name", "value", "ralo", "key", "mlflow.source.type", "value", "LOCAL");
    status rc = add_pairs(s, "tags", tags);
    json_decref(tags);
    return rc;
}

static status open_run(store *s, const sink_run *r, json_t *state, json_t **known) {
    const char *run = sink_state_id(state, "run_id");
    char start[32];
    TRY(find_root(s, r->settings->mlflow_uri));
    TRY(find_experiment(s, r->settings->mlflow_experiment));
    s->name = mem_string(r->settings->name);
    s->start_ms = now_ms();
    if (run) snprintf(s->run, sizeof s->run, "%s", run);
    else sink_id_make(s->run);
    strbuf_printf(&s->dir, "%s/%s/%s", s->root, s->experiment, s->run);
    strbuf meta;
    strbuf_init(&meta);
    strbuf_printf(&meta, "%s/meta.yaml", s->dir.text);
    if (run && meta_get(meta.text, "start_time", start, sizeof start)) s->start_ms = atoll(start);
    strbuf_fini(&meta);
    TRY(make_parts(s));
    TRY(write_run(s, 1, 0));
    if (!run) TRY(write_tags(s));
    TRY(read_params(s, known));
    json_object_set_new(state, "run_id", json_string(s->run));
    return OK;
}

static status store_open(void **self, const sink_run *r, json_t *state, json_t **known) {
    store *s = mem_alloc(sizeof *s);
    strbuf_init(&s->dir);
    status rc = open_run(s, r, state, known);
    if (rc == OK) *self = s;
    else store_close(s);
    return rc;
}

/* ---- what is kept ----------------------------------------------------------------------------------------------------------- */

/* The last line tells what the file has: a batch that comes twice is written once. */
static bool has_metric(int fd, json_int_t time, json_int_t step) {
    char tail[256];
    off_t size = lseek(fd, 0, SEEK_END), from = MAX(size - (off_t)sizeof tail + 1, (off_t)0);
    ssize_t n = pread(fd, tail, sizeof tail - 1, from);
    if (n <= 1) return false;
    tail[n] = 0;
    if (tail[n - 1] == '\n') tail[n - 1] = 0;
    const char *line = strrchr(tail, '\n');
    long long last_time = 0, last_step = 0;
    if (sscanf(line ? line + 1 : tail, "%lld %*s %lld", &last_time, &last_step) != 2) return false;
    return time < last_time || (time == last_time && step <= last_step);
}

static status add_metric(const store *s, const json_t *m) {
    json_int_t time = json_integer_value(json_object_get(m, "timestamp")),
               step = json_integer_value(json_object_get(m, "step"));
    double value = sink_number(json_object_get(m, "value"));
    char line[128];
    strbuf path;
    strbuf_init(&path);
    status rc = key_path(s, "metrics", json_string_value(json_object_get(m, "key")), &path);
    int fd = rc == OK ? open(path.text, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644) : -1;
    if (rc == OK && fd < 0) rc = ERR(ERR_IO, "open %s: %s", path.text, strerror(errno));
    if (rc == OK && !has_metric(fd, time, step)) {
        int n = snprintf(line, sizeof line, "%lld %.17g %lld\n", (long long)time, value, (long long)step);
        if (write(fd, line, (size_t)n) != n) rc = ERR(ERR_IO, "write %s: %s", path.text, strerror(errno));
    }
    if (fd >= 0) close(fd);
    strbuf_fini(&path);
    return rc;
}

static status store_log(void *self, json_t *metrics, json_t *params, json_t *tags) {
    size_t i;
    json_t *m;
    json_array_foreach(metrics, i, m) TRY(add_metric(self, m));
    TRY(add_pairs(self, "params", params));
    return add_pairs(self, "tags", tags);
}

static status store_artefact(void *self, const char *name, int fd, uint64_t n_bytes) {
    strbuf path;
    char chunk[65536];
    ssize_t n = 0;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/artifacts/%s", ((store *)self)->dir.text, name);
    int out = open(path.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    status rc = out < 0 ? ERR(ERR_IO, "open %s: %s", path.text, strerror(errno)) : OK;
    while (rc == OK && (n = read(fd, chunk, sizeof chunk)) > 0)
        if (write(out, chunk, (size_t)n) != n) rc = ERR(ERR_IO, "write %s: %s", path.text, strerror(errno));
    if (out >= 0) close(out);
    strbuf_fini(&path);
    return rc;
}

static status store_end(void *self, int64_t time_ms, sink_end how) {
    return write_run(self, how == SINK_FINISHED ? 3 : how == SINK_FAILED ? 4 : 5, time_ms);
}

const mlflow_store mlflow_file = {store_open,
                                  store_log,
                                  store_artefact,
                                  store_end,
                                  store_close,
                                  NULL,
                                  "MLflow 3.13 and later read a file store only with MLFLOW_ALLOW_FILE_STORE=true"};
