#pragma once
/* sink.h - private to track: one place that a run's numbers go to beside its own files, as a row of sinks.def.
 *
 * All functions of a sink run on the sink's own thread, never in a step, and may be slow. They take records in order and may gather
 * them; `flush` returns when all of them are where they belong. After an error the sink is closed, opened again later and given the
 * same records once more, so that a record that arrives twice must not count twice.
 *   ERR_INPUT   it would fail again (a wrong token, a deleted run): the sink is given up, and its records stay on disk
 *   others      it may pass: tried again, each time after a longer pause */
#include "format/format.h"
#include "track/track.h"

#include <math.h>
#include <stdatomic.h>

typedef enum sink_end { SINK_FINISHED, SINK_FAILED, SINK_KILLED, SINK_END_COUNT } sink_end;

/* What was asked for, with what the environment adds. Texts are its own. */
typedef struct sink_settings {
    bool on[8]; /* by row of sinks.def */
    char *name; /* of the run */
    char *mlflow_uri, *mlflow_experiment;
    char *tensorboard_dir;
    char *trackio_project;
    double wait; /* seconds that the end of a run waits for all of it to be sent */
} sink_settings;

typedef struct sink_run {
    const char *run_dir;
    const sink_settings *settings;
    const _Atomic uint64_t *deadline_ns; /* of clock_ns; a request under way ends then */
} sink_run;
static inline bool sink_out_of_time(const sink_run *r) { return clock_ns() >= atomic_load(r->deadline_ns); }

typedef struct sink_kind {
    status (*open)(void **self, const sink_run *r);
    status (*params)(void *self, double time, const json_t *params); /* key: text; once for each start of the run */
    status (*metrics)(void *self, double time, int64_t step, const json_t *values); /* name: as sink_number reads it */
    status (*text)(void *self, double time, int64_t step, const char *name, const char *markdown);
    status (*artefact)(void *self, const char *name); /* a file of the run directory; NULL: files are not taken */
    status (*end)(void *self, double time, sink_end how);
    status (*flush)(void *self);
    void (*close)(void *self);
    void (*where)(const void *self, strbuf *out); /* one line for the user, once it is open */
} sink_kind;

typedef struct sink_row {
    const char *name;
    const sink_kind *kind;
} sink_row;
const sink_row *sink_row_at(size_t i); /* of sinks.def; NULL past the end */

/* ---- sink_settings.c --------------------------------------------------------------------------------------------- */

/* run_dir NULL: only checks. Refuses what is unknown or cannot work; says nothing of user names, passwords and tokens. */
status sink_settings_init(sink_settings *s, const track_sinks *asked, const char *run_dir);
void sink_settings_fini(sink_settings *s); /* also of zeros */
/* The URI without user name and password. */
void sink_uri_add(strbuf *out, const char *uri);
bool sink_has_login(void);          /* for MLflow, in the environment */
bool sink_is_mine(const char *uri); /* Does the environment name this MLflow server? Only that one gets the login. */

/* Can this program reach such a store? (mlflow_rest.c, or mlflow_absent.c where it is built without libcurl) */
status mlflow_check(const char *uri, const char *from);

/* ---- sink_state.c: RUN/track/<sink>.json, by which a resumed run goes on in the same place ------------------------- */

json_t *sink_state_read(const char *run_dir,
                        const char *sink); /* an object; empty where there is none that can be read */
status sink_state_write(const char *run_dir, const char *sink, const json_t *state);
/* A text of the state that is 1 to 64 letters, digits, - and _; NULL: there is none. */
const char *sink_state_id(const json_t *state, const char *key);
void sink_id_make(char out[33]); /* 32 random hexadecimal digits */

/* ---- sink_records.c: what is queued, as lines of JSON ------------------------------------------------------------- */

void sink_add_params(strbuf *out, double time, const json_t *params);
void sink_add_step(strbuf *out, double time, const train_step_report *s, uint64_t memory_used);
void sink_add_eval(strbuf *out, double time, const train_eval_report *e);
void sink_add_sample(strbuf *out, double time, const char *line); /* of samples.jsonl */
void sink_add_artefact(strbuf *out, double time, const char *name);
void sink_add_end(strbuf *out, double time, sink_end how);
/* Hands one line to an open sink. A line that is damaged is counted and left out. */
status sink_deliver(const sink_kind *kind, void *self, const char *line, size_t n_bytes, uint64_t *n_damaged);
/* Whole numbers, reals, and NaN, Infinity and -Infinity as texts. */
double sink_number(const json_t *value);
const char *sink_end_name(sink_end how); /* as MLflow says it */
