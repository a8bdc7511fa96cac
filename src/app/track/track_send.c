/* track_send.c - what an ended run left in RUN/track, sent now: `ralo track sync`.
 *
 * The run directory may come from anyone. So a login (MLFLOW_TRACKING_TOKEN and the like) goes to a server, and numbers go to a
 * directory outside of the run, only where the user's own environment names it: the files of a run cannot have either. */
#include "track/sink.h"
#include "track/sink_queue.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH_BYTES ((size_t)1 << 18)

typedef struct sending {
    const char *run_dir;
    const sink_row *row;
    sink_settings settings;
    _Atomic uint64_t deadline_ns;
    sink_run run;
    sink_queue queue;
    void *self;
    uint64_t n_sent, n_damaged;
    bool ended; /* the last record says how the run ended */
} sending;

/* The server that the run was sent to: as the environment names it, with a login; else as the run does, without one. */
static status use_mlflow(const char *run_dir, const json_t *state, track_sinks *asked) {
    const char *of_run = json_string_value(json_object_get(state, "uri"));
    if (!of_run)
        return ERR(ERR_INPUT,
                   "%.300s/track/mlflow.json does not say which server the run was sent to; make it "
                   "{\"uri\": \"http://HOST:PORT\", \"experiment\": \"NAME\", \"name\": \"NAME\"}, "
                   "or remove mlflow.pending beside it",
                   run_dir);
    bool same = sink_is_mine(of_run);
    if (!same && (sink_has_login() || str_starts_with(of_run, "file:")))
        return ERR(ERR_INPUT, "the run was sent to %.200s; set MLFLOW_TRACKING_URI to it, if that is right", of_run);
    asked->mlflow = same ? NULL : of_run;
    asked->experiment = json_string_value(json_object_get(state, "experiment"));
    asked->name = json_string_value(json_object_get(state, "name"));
    return OK;
}

static status use_state(sending *s, const json_t *state) {
    track_sinks asked = {.to = s->row->name};
    if (strcmp(s->row->name, "mlflow") == 0) TRY(use_mlflow(s->run_dir, state, &asked));
    if (strcmp(s->row->name, "trackio") == 0) {
        asked.trackio = json_string_value(json_object_get(state, "project"));
        asked.name = json_string_value(json_object_get(state, "run"));
    }
    return sink_settings_init(&s->settings, &asked, s->run_dir);
}

static status send_lines(sending *s, char *batch) {
    for (;;) {
        size_t n_bytes;
        TRY(sink_queue_peek(&s->queue, batch, BATCH_BYTES, &n_bytes, &s->n_damaged));
        if (n_bytes == 0) return OK;
        uint64_t n_lines = 0;
        for (size_t at = 0; at < n_bytes; n_lines++) {
            char *line = batch + at, *end = memchr(line, '\n', n_bytes - at);
            *end = 0;
            s->ended = strstr(line, ", \"end\": \"") != NULL;
            TRY(sink_deliver(s->row->kind, s->self, line, (size_t)(end - line), &s->n_damaged));
            at += (size_t)(end - line) + 1;
        }
        TRY(s->row->kind->flush(s->self));
        sink_queue_drop(&s->queue, n_bytes);
        s->n_sent += n_lines;
    }
}

/* Of a run that was killed nobody has said that it ended; now its queue is ours, so it has. */
static status send_all(sending *s, char *batch) {
    TRY(s->row->kind->open(&s->self, &s->run));
    TRY(send_lines(s, batch));
    if (s->ended) return OK;
    TRY(s->row->kind->end(s->self, (double)time(NULL), SINK_KILLED));
    return s->row->kind->flush(s->self);
}

static status send_one(sending *s, const json_t *state, strbuf *line) {
    TRY(use_state(s, state));
    TRY(sink_queue_open(&s->queue, s->run_dir, s->row->name));
    char *batch = mem_alloc(BATCH_BYTES);
    status rc = send_all(s, batch);
    if (rc == OK && s->self) s->row->kind->where(s->self, line);
    if (s->self) s->row->kind->close(s->self);
    sink_queue_close(&s->queue);
    free(batch);
    return rc;
}

/* RUNNING in a sink although the run is over: its process was killed. */
static bool is_left_running(const json_t *state) {
    const char *now = json_string_value(json_object_get(state, "status"));
    return now && strcmp(now, "RUNNING") == 0;
}

status track_send(const char *run_dir, void (*say)(const char *line)) {
    status rc = OK;
    bool any = false;
    for (size_t i = 0; sink_row_at(i) && rc == OK; i++) {
        sending s = {.run_dir = run_dir, .row = sink_row_at(i)};
        atomic_init(&s.deadline_ns, UINT64_MAX);
        s.run = (sink_run){run_dir, &s.settings, &s.deadline_ns};
        json_t *state = sink_state_read(run_dir, s.row->name);
        strbuf where, line;
        strbuf_init(&where);
        strbuf_init(&line);
        if (sink_queue_has_lines(run_dir, s.row->name) || is_left_running(state)) {
            any = true;
            rc = send_one(&s, state, &where);
            strbuf_printf(&line, "%s: sent %llu records", s.row->name, (unsigned long long)s.n_sent);
            if (rc == OK) strbuf_printf(&line, "; %s", where.text);
            if (s.n_damaged)
                strbuf_printf(&line, "; %llu damaged lines were left out", (unsigned long long)s.n_damaged);
            if (rc == OK || s.n_sent) say(line.text);
        }
        sink_settings_fini(&s.settings);
        strbuf_fini(&where);
        strbuf_fini(&line);
        json_decref(state);
    }
    if (!any) say("nothing is left to send");
    return rc;
}
