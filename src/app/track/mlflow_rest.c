/* mlflow_rest.c - MLflow's REST interface, version 2.0: experiments, runs, batches, and files through mlflow-artifacts.
 *
 * A run is made once: before it is asked for, an id of ours is kept on disk and goes with it as the tag ralo.id, by which it is found
 * again where the server's answer was lost. Nothing that the server says is used before it was checked. */
#ifdef HAVE_CURL
#include "track/mlflow.h"
#include "track/mlflow_http.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API "/api/2.0/mlflow/"

typedef struct rest {
    mlflow_http *http;
    char run_id[65], experiment_id[65]; /* the latter empty: not told */
    strbuf artefacts; /* path of the run's files behind the URI; empty: the server does not take them */
} rest;

static void rest_close(void *self) {
    rest *s = self;
    if (s->http) mlflow_http_close(s->http);
    strbuf_fini(&s->artefacts);
    free(s);
}

static void add_encoded(strbuf *out, const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        strbuf_printf(out,
                      (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                              strchr("-._~", *p)
                          ? "%c"
                          : "%%%02X",
                      *p);
}

/* Posts; takes the body. */
static status post(rest *s, const char *path, json_t *body, json_t **answer) {
    if (!body) mem_refused(0);
    status rc = mlflow_http_json(s->http, path, body, answer, NULL);
    json_decref(body);
    return rc;
}

/* ---- the experiment ---------------------------------------------------------------------------------------------------- */

static status find_experiment(rest *s, const char *name, char id[65]) {
    strbuf path;
    json_t *answer = NULL;
    bool missing = false;
    strbuf_init(&path);
    strbuf_add(&path, API "experiments/get-by-name?experiment_name=");
    add_encoded(&path, name);
    status rc = mlflow_http_json(s->http, path.text, NULL, &answer, &missing);
    strbuf_fini(&path);
    if (rc != OK) return rc;
    *id = 0;
    if (missing) return OK;
    const json_t *experiment = json_object_get(answer, "experiment");
    const char *found = sink_state_id(experiment, "experiment_id"),
               *stage = json_string_value(json_object_get(experiment, "lifecycle_stage"));
    if (!found) rc = ERR(ERR_IO, "the server describes the experiment without its id");
    else if (stage && strcmp(stage, "deleted") == 0)
        rc = ERR(ERR_INPUT,
                 "the experiment '%.100s' is deleted there; restore it (mlflow experiments restore), or set "
                 "track.experiment",
                 name);
    else snprintf(id, 65, "%s", found);
    json_decref(answer);
    return rc;
}

static status make_experiment(rest *s, const char *name, char id[65]) {
    json_t *answer = NULL;
    status rc = post(s, API "experiments/create", json_pack("{s:s}", "name", name), &answer);
    if (rc == ERR_INPUT) { /* another run may have made it at the same time */
        error_record why;
        error_take(&why);
        rc = find_experiment(s, name, id);
        return rc == OK && *id ? OK : rc == OK ? error_give(&why) : rc;
    }
    if (rc != OK) return rc;
    const char *found = sink_state_id(answer, "experiment_id");
    if (found) snprintf(id, 65, "%s", found);
    else rc = ERR(ERR_IO, "the server made an experiment without an id");
    json_decref(answer);
    return rc;
}

/* ---- the run ------------------------------------------------------------------------------------------------------------- */

/* mlflow-artifacts:/1/abc/artifacts, or with a host, is served below the same URI. Other stores only their own clients can write. */
static void use_artefacts(rest *s, const json_t *info) {
    const char *uri = json_string_value(json_object_get(info, "artifact_uri")), *scheme = "mlflow-artifacts:";
    s->artefacts.length = 0;
    if (!uri || !str_starts_with(uri, scheme)) return;
    uri += strlen(scheme);
    if (str_starts_with(uri, "//")) uri = strchr(uri + 2, '/');
    if (!uri || uri[strspn(uri, "/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")] ||
        strstr(uri, ".."))
        return;
    strbuf_printf(&s->artefacts, "/api/2.0/mlflow-artifacts/artifacts%s%s", *uri == '/' ? "" : "/", uri);
}

static status use_run(rest *s, const json_t *run, json_t **known) {
    const json_t *info = json_object_get(run, "info");
    const char *id = sink_state_id(info, "run_id"),
               *stage = json_string_value(json_object_get(info, "lifecycle_stage"));
    if (!id) return ERR(ERR_IO, "the server describes the run without its id");
    if (stage && strcmp(stage, "deleted") == 0)
        return ERR(ERR_INPUT, "the run %s is deleted there; restore it (mlflow runs restore), or begin a new run", id);
    const char *experiment = sink_state_id(info, "experiment_id");
    snprintf(s->run_id, sizeof s->run_id, "%s", id);
    snprintf(s->experiment_id, sizeof s->experiment_id, "%s", experiment ? experiment : "");
    use_artefacts(s, info);
    size_t i;
    json_t *param;
    *known = json_object();
    json_array_foreach(json_object_get(json_object_get(run, "data"), "params"), i, param) {
        const char *key = json_string_value(json_object_get(param, "key"));
        if (key) json_object_set(*known, key, json_object_get(param, "value"));
    }
    return OK;
}

/* Goes on with a run: it is RUNNING again. *answer: the run's description; NULL: the server has no such run. */
static status continue_run(rest *s, const char *id, json_t **answer) {
    strbuf path;
    bool missing = false;
    strbuf_init(&path);
    strbuf_printf(&path, API "runs/get?run_id=%s", id);
    status rc = mlflow_http_json(s->http, path.text, NULL, answer, &missing);
    strbuf_fini(&path);
    if (rc != OK || missing) return rc;
    return post(s, API "runs/update", json_pack("{s:s, s:s}", "run_id", id, "status", "RUNNING"), NULL);
}

/* A run of this tag, from a request whose answer was lost. */
static status search_run(rest *s, const char *experiment_id, const char *tag, json_t **run) {
    json_t *answer = NULL;
    char filter[128];
    snprintf(filter, sizeof filter, "tags.`ralo.id` = '%s'", tag);
    TRY(post(s, API "runs/search",
             json_pack("{s:[s], s:s, s:i}", "experiment_ids", experiment_id, "filter", filter, "max_results", 1),
             &answer));
    *run = json_incref(json_array_get(json_object_get(answer, "runs"), 0));
    json_decref(answer);
    return OK;
}

static json_t *tag_of(const char *key, const char *value) {
    return json_pack("{s:s, s:o}", "key", key, "value", json_text(value, strlen(value)));
}

static status make_run(rest *s, const sink_run *r, const char *experiment_id, const char *tag, json_t **run) {
    const char *user = getenv("USER");
    json_t *answer = NULL, *tags = json_array();
    json_array_append_new(tags, tag_of("mlflow.runName", r->settings->name));
    json_array_append_new(tags, tag_of("mlflow.source.name", "ralo"));
    json_array_append_new(tags, tag_of("mlflow.source.type", "LOCAL"));
    if (user && *user) json_array_append_new(tags, tag_of("mlflow.user", user));
    json_array_append_new(tags, tag_of("ralo.id", tag));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    TRY(post(s, API "runs/create",
             json_pack("{s:s, s:s, s:I, s:o}", "experiment_id", experiment_id, "run_name", r->settings->name,
                       "start_time", (json_int_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000), "tags", tags),
             &answer));
    *run = json_incref(json_object_get(answer, "run"));
    json_decref(answer);
    return OK;
}

static status begin_run(rest *s, const sink_run *r, json_t *state, json_t **run) {
    char experiment_id[65], tag[33];
    const char *before = sink_state_id(state, "id");
    TRY(find_experiment(s, r->settings->mlflow_experiment, experiment_id));
    if (!*experiment_id) TRY(make_experiment(s, r->settings->mlflow_experiment, experiment_id));
    json_object_set_new(state, "experiment_id", json_string(experiment_id));
    if (before) {
        TRY(search_run(s, experiment_id, before, run));
        if (*run) return OK;
        snprintf(tag, sizeof tag, "%.32s", before);
    } else {
        sink_id_make(tag);
        json_object_set_new(state, "id", json_string(tag));
        TRY(sink_state_write(r->run_dir, "mlflow", state));
    }
    return make_run(s, r, experiment_id, tag, run);
}

static status open_run(rest *s, const sink_run *r, json_t *state, json_t **known) {
    const char *id = sink_state_id(state, "run_id");
    json_t *answer = NULL, *run = NULL;
    status rc = id ? continue_run(s, id, &answer) : OK;
    if (rc != OK) {
        json_decref(answer);
        return rc;
    }
    if (answer) run = json_incref(json_object_get(answer, "run"));
    else rc = begin_run(s, r, state, &run);
    if (rc == OK) rc = use_run(s, run, known);
    if (rc == OK) json_object_set_new(state, "run_id", json_string(s->run_id));
    json_decref(run);
    json_decref(answer);
    return rc;
}

static status rest_open(void **self, const sink_run *r, json_t *state, json_t **known) {
    rest *s = mem_alloc(sizeof *s);
    strbuf_init(&s->artefacts);
    status rc = mlflow_http_open(&s->http, r);
    if (rc == OK) rc = open_run(s, r, state, known);
    if (rc == OK) {
        *self = s;
        return OK;
    }
    error_record why;
    error_take(&why);
    rest_close(s);
    return error_give(&why);
}

/* ---- what is sent ---------------------------------------------------------------------------------------------------------- */

static status rest_log(void *self, json_t *metrics, json_t *params, json_t *tags) {
    rest *s = self;
    json_t *body = json_pack("{s:s}", "run_id", s->run_id);
    if (metrics) json_object_set(body, "metrics", metrics);
    if (params) json_object_set(body, "params", params);
    if (tags) json_object_set(body, "tags", tags);
    return post(s, API "runs/log-batch", body, NULL);
}

static status rest_artefact(void *self, const char *name, int fd, uint64_t n_bytes) {
    rest *s = self;
    if (s->artefacts.length == 0) return OK;
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s", s->artefacts.text, name);
    status rc = mlflow_http_put(s->http, path.text, fd, n_bytes);
    strbuf_fini(&path);
    return rc;
}

static status rest_end(void *self, int64_t time_ms, sink_end how) {
    rest *s = self;
    return post(s, API "runs/update",
                json_pack("{s:s, s:s, s:I}", "run_id", s->run_id, "status", sink_end_name(how), "end_time",
                          (json_int_t)time_ms),
                NULL);
}

/* MLflow 3 files runs under evaluations of prompts, unless the address says what they are; older ones pass over it. */
static void rest_page(const void *self, strbuf *out) {
    const rest *s = self;
    if (*s->experiment_id)
        strbuf_printf(out, "/#/experiments/%s/runs/%s?workflowType=machine_learning", s->experiment_id, s->run_id);
}

const mlflow_store mlflow_rest = {rest_open, rest_log, rest_artefact, rest_end, rest_close, rest_page, NULL};
#endif
