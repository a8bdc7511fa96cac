#pragma once
/* mlflow.h - private to track: where MLflow's runs are kept, a server (mlflow_rest.c) or a directory (mlflow_file.c).
 *
 * Both take what MLflow's own client would send; sink_mlflow.c gathers and cuts it. A batch that arrives twice counts once: its
 * metrics carry the time at which they were reported. */
#include "track/sink.h"

typedef struct mlflow_store {
    /* Goes on with the run that `state` names, or makes one and names it there. known: its parameters so far, an object. */
    status (*open)(void **self, const sink_run *r, json_t *state, json_t **known);
    /* Arrays of {key, value, timestamp, step} and of {key, value}; any may be NULL. */
    status (*log)(void *self, json_t *metrics, json_t *params, json_t *tags);
    status (*artefact)(void *self, const char *name, int fd, uint64_t n_bytes); /* from where the file stands */
    status (*end)(void *self, int64_t time_ms, sink_end how);
    void (*close)(void *self);
    void (*page)(const void *self,
                 strbuf *out); /* what a browser needs behind the URI to show the run; NULL: nothing */
    const char *note;          /* what the user should know; NULL: nothing */
} mlflow_store;
extern const mlflow_store mlflow_rest, mlflow_file;

static inline bool mlflow_is_file(const char *uri) { return str_starts_with(uri, "file:"); }
