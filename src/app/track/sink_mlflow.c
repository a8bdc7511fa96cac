/* sink_mlflow.c - MLflow: an experiment, a run, its parameters, metrics with steps, tags and files.
 *
 * Batches are as large as the server takes them. The run's id is kept in RUN/track/mlflow.json: a resumed run goes on as the same one,
 * with the steps that it repeats said again, at another time. MLflow never changes a parameter: one that a resumed run has otherwise
 * becomes a tag, resumed/<key>. */
#include "track/mlflow.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METRICS_MOST ((size_t)1000) /* of a batch, as MLflow limits it */
#define PARAMS_MOST ((size_t)100)
#define VALUE_MOST ((size_t)6000) /* bytes of a parameter */
#define TAG_MOST ((size_t)5000)
#define SAMPLES_EVERY_NS 60000000000ull

typedef struct mlflow {
    const sink_run *run;
    const mlflow_store *kind;
    void *store;
    json_t *known;   /* parameters that MLflow has */
    json_t *metrics; /* not yet sent */
    bool samples;    /* samples.jsonl has grown since it was sent */
    uint64_t samples_ns;
} mlflow;

static void mlflow_close(void *self) {
    mlflow *m = self;
    if (m->store) m->kind->close(m->store);
    json_decref(m->known);
    json_decref(m->metrics);
    free(m);
}

/* The state names the server without a login, so that a run of one server is not looked for in another. */
static json_t *state_open(const sink_run *r) {
    strbuf uri;
    strbuf_init(&uri);
    sink_uri_add(&uri, r->settings->mlflow_uri);
    json_t *state = sink_state_read(r->run_dir, "mlflow");
    const char *before = json_string_value(json_object_get(state, "uri"));
    if (!before || strcmp(before, uri.text) != 0) {
        json_object_clear(state);
        json_object_set_new(state, "uri", json_text(uri.text, uri.length));
        json_object_set_new(state, "experiment",
                            json_text(r->settings->mlflow_experiment, strlen(r->settings->mlflow_experiment)));
        json_object_set_new(state, "name", json_text(r->settings->name, strlen(r->settings->name)));
    }
    strbuf_fini(&uri);
    return state;
}

static status mlflow_open(void **self, const sink_run *r) {
    mlflow *m = mem_alloc(sizeof *m);
    m->run = r;
    m->kind = mlflow_is_file(r->settings->mlflow_uri) ? &mlflow_file : &mlflow_rest;
    m->metrics = json_array();
    json_t *state = state_open(r);
    status rc =
        sink_state_write(r->run_dir, "mlflow", state); /* also for `ralo track sync`, if the server never answers */
    if (rc == OK) rc = m->kind->open(&m->store, r, state, &m->known);
    if (rc == OK) json_object_set_new(state, "status", json_string("RUNNING"));
    if (rc == OK) rc = sink_state_write(r->run_dir, "mlflow", state);
    json_decref(state);
    if (rc != OK) {
        error_record why;
        error_take(&why);
        mlflow_close(m);
        return error_give(&why);
    }
    *self = m;
    return OK;
}

/* ---- parameters ------------------------------------------------------------------------------------------------------ */

/* At most so many bytes, and no half character. */
static json_t *cut_text(const char *text, size_t most) {
    size_t n = strlen(text);
    if (n > most) {
        n = most;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    }
    return n ? json_stringn(text, n) : json_string("''");
}

static json_t *pair_of(const char *prefix, const char *key, json_t *value) {
    strbuf name;
    strbuf_init(&name);
    strbuf_printf(&name, "%s%s", prefix, key);
    json_t *pair = json_pack("{s:s, s:O}", "key", name.text, "value", value);
    strbuf_fini(&name);
    return pair;
}

static status send_pairs(mlflow *m, json_t *params, json_t *tags) {
    status rc = json_array_size(params) + json_array_size(tags) ? m->kind->log(m->store, NULL, params, tags) : OK;
    json_array_clear(params);
    json_array_clear(tags);
    return rc;
}

static status mlflow_params(void *self, double time, const json_t *params) {
    mlflow *m = self;
    const char *key;
    json_t *text, *fresh = json_array(), *changed = json_array();
    status rc = OK;
    json_object_foreach((json_t *)params, key, text) {
        json_t *value = cut_text(json_string_value(text), VALUE_MOST);
        const char *before = json_string_value(json_object_get(m->known, key));
        if (!before) json_array_append_new(fresh, pair_of("", key, value));
        else if (strcmp(before, json_string_value(value)) != 0) {
            json_t *tag = cut_text(json_string_value(text), TAG_MOST);
            json_array_append_new(changed, pair_of("resumed/", key, tag));
            json_decref(tag);
        }
        json_decref(value);
        if (rc == OK && (json_array_size(fresh) == PARAMS_MOST || json_array_size(changed) == PARAMS_MOST))
            rc = send_pairs(m, fresh, changed);
    }
    if (rc == OK) rc = send_pairs(m, fresh, changed);
    json_decref(fresh);
    json_decref(changed);
    return rc;
}

/* ---- metrics, texts, files -------------------------------------------------------------------------------------------- */

static status send_metrics(mlflow *m) {
    status rc = json_array_size(m->metrics) ? m->kind->log(m->store, m->metrics, NULL, NULL) : OK;
    json_array_clear(m->metrics);
    return rc;
}

static status mlflow_metrics(void *self, double time, int64_t step, const json_t *values) {
    mlflow *m = self;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)values, name, value) {
        if (json_array_size(m->metrics) == METRICS_MOST) TRY(send_metrics(m));
        json_array_append_new(m->metrics, json_pack("{s:s, s:O, s:I, s:I}", "key", name, "value", value, "timestamp",
                                                    (json_int_t)llround(time * 1e3), "step", (json_int_t)step));
    }
    return OK;
}

/* A file that is gone or not ours to read is no error: there would be nothing to send the next time either. */
static status send_file(mlflow *m, const char *name) {
    strbuf path;
    int fd = -1;
    uint64_t size;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s", m->run->run_dir, name);
    status rc = OK;
    if (file_open_at(AT_FDCWD, path.text, path.text, &fd, &size) != OK) error_clear();
    else rc = m->kind->artefact(m->store, name, fd, size);
    if (fd >= 0) close(fd);
    strbuf_fini(&path);
    return rc;
}

static status mlflow_artefact(void *self, const char *name) { return send_file(self, name); }

/* MLflow keeps texts as files: samples.jsonl as it is, now and then, and at the end. */
static status mlflow_text(void *self, double time, int64_t step, const char *name, const char *markdown) {
    ((mlflow *)self)->samples |= strcmp(name, "samples") == 0;
    return OK;
}

static status mlflow_end(void *self, double time, sink_end how) {
    mlflow *m = self;
    TRY(send_metrics(m));
    TRY(m->kind->end(m->store, llround(time * 1e3), how));
    json_t *state = sink_state_read(m->run->run_dir, "mlflow");
    json_object_set_new(state, "status", json_string(sink_end_name(how)));
    status rc = sink_state_write(m->run->run_dir, "mlflow", state);
    json_decref(state);
    return rc;
}

static status mlflow_flush(void *self) {
    mlflow *m = self;
    TRY(send_metrics(m));
    uint64_t now = clock_ns();
    if (m->samples && (m->samples_ns == 0 || now - m->samples_ns > SAMPLES_EVERY_NS)) {
        TRY(send_file(m, "samples.jsonl"));
        m->samples = false;
        m->samples_ns = now;
    }
    return OK;
}

static void mlflow_where(const void *self, strbuf *out) {
    const mlflow *m = self;
    strbuf_printf(out, "run %s of experiment %s at ", m->run->settings->name, m->run->settings->mlflow_experiment);
    sink_uri_add(out, m->run->settings->mlflow_uri);
    while (m->kind->page && out->length && out->text[out->length - 1] == '/') out->text[--out->length] = 0;
    if (m->kind->page) m->kind->page(m->store, out);
    if (m->kind->note) strbuf_printf(out, " (%s)", m->kind->note);
}

const sink_kind sink_kind_MLFLOW = {.open = mlflow_open,
                                    .params = mlflow_params,
                                    .metrics = mlflow_metrics,
                                    .text = mlflow_text,
                                    .artefact = mlflow_artefact,
                                    .end = mlflow_end,
                                    .flush = mlflow_flush,
                                    .close = mlflow_close,
                                    .where = mlflow_where};
