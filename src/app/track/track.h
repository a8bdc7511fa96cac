#pragma once
/* track.h - the progress line on the terminal; metrics.jsonl, samples.jsonl, completions.jsonl and events.jsonl in the run directory.
 *
 * Tracking never blocks a step and never fails a run: a failed output is reported once and then given up.
 *
 *     track *t;
 *     TRY(track_open(&t, &(track_options){.run_dir = dir, .out = stderr}));
 *     track_step(t, &report);
 *     track_close(t); */
#include "track/watch.h"
#include "train/train.h"

#include <jansson.h>

/* Where numbers go beside the files of the run (sinks.def); settings track.*, with what the environment adds. "" and NULL: not given.
 * A sink never blocks or fails a step: what it has not taken waits in RUN/track, and is sent later or by track_send. */
typedef struct track_sinks {
    const char *to;          /* auto, none, all, or names separated by commas */
    const char *mlflow;      /* URI of the server; or file:DIR */
    const char *experiment;  /* of MLflow */
    const char *name;        /* of the run, in every sink */
    const char *tensorboard; /* directory of event files */
    const char *trackio;     /* project */
    double wait;             /* seconds that the end of a run waits for all of it to be sent */
} track_sinks;
status track_sinks_check(const track_sinks *s); /* what can be refused before anything is written */

typedef struct track_options {
    const char *run_dir;     /* metrics.jsonl grows there, each step once; NULL = no file */
    bool samples;            /* ... and samples.jsonl: samples will be reported */
    bool completions;        /* ... and completions.jsonl: so will completions that are trained on */
    FILE *out;               /* progress line, written past stdio to its descriptor; NULL = silent */
    bool warnings_only;      /* no progress line, and of messages only those that begin with "warning: " */
    double peak_flops;       /* of this machine, measured; 0 = do not print a share */
    uint64_t memory_planned; /* device bytes */
    int64_t log_every;
    double steps_per_epoch;    /* a line after each, where they are longer than log_every; 0: the data is endless */
    double spikes;             /* track.spikes: loss spikes and divergence are reported; 0: they are not */
    bool loss_is_no_objective; /* ... but only losses that are not finite: this task's do not fall as it learns */
    const char *advice;        /* ... with what to try against divergence; borrowed. NULL: nothing */
    const track_sinks *sinks;  /* NULL: none; they need a run_dir */
} track_options;
typedef struct track track;
status track_open(track **out, const track_options *o);
void track_close(track *t);
/* For sinks: the settings, "train.lr": "0.003", when config.yaml is written; and how the run ended, before track_close. */
void track_start(track *t, const json_t *settings);
void track_end(track *t, status rc);
/* Returns when metrics.jsonl contains everything reported before: a checkpoint must not be ahead of the file. */
void track_sync(track *t);
/* On a terminal: one line redrawn with a bar and the time left. Elsewhere: a plain line every log_every steps. */
void track_step(track *t, const train_step_report *r, uint64_t memory_used);
void track_eval(track *t, const train_eval_report *r);
void track_sample(track *t, const train_sample *s);         /* a line of samples.jsonl, and shown */
void track_completion(track *t, const train_completion *c); /* a line of completions.jsonl */
/* Milliseconds of the clock for a step, from the end of the first step that was seen to now, so that evaluations and
 * checkpoints on the way are counted in: what the time left is computed from, on the terminal and by whoever reads
 * monitor/. */
double track_pace_ms(int64_t first_step, uint64_t first_ns, const train_step_report *now, uint64_t now_ns);
void track_message(track *t, const char *text); /* a message that does not break the progress bar */

/* ---- the run directory's own files (monitor.c) --------------------------------------------------------------------------
 *
 * run.json (what the run is and its state), plan.json, memory.json (bytes over one step) and monitor/rank-NNNNN.jsonl (memory over the
 * run), as docs/design/files.md describes them. No call fails or waits for a disk in a step; what cannot be written is reported once
 * and given up. All calls take NULL, which is a run without a directory. */
typedef struct monitor monitor;
typedef struct monitor_options {
    const train_request *request; /* with its run_dir; borrowed, as are the others, until monitor_close */
    const plan *plan;
    const dataset *data;
    const char *version; /* of ralo */
    track *track;        /* shows warnings; NULL: they go to the log */
    int restarts;        /* of this run by itself, so far */
    bool has_memory;     /* memory.json and monitor/ too */
} monitor_options;
/* A run that begins writes its files now; one that is resumed when that was accepted, so that a refused one changes nothing. */
monitor *monitor_open(const monitor_options *o);
void monitor_start(monitor *m, int64_t step);              /* ready to train, after this step */
void monitor_step(monitor *m, const train_step_report *r); /* between steps: stores a few numbers */
void monitor_close(monitor *m, status rc);                 /* how the run ended; this thread's error says why */
/* A run goes on by itself after a death: a line of events.jsonl, by whoever starts it again while no rank runs. */
typedef struct track_restart {
    int64_t step;      /* it goes on from; 0: the beginning */
    int64_t lost;      /* finished steps that are repeated */
    int restart, most; /* the number of this one, of so many */
    int rank;          /* that died; -1: not known */
    int ranks;         /* that go on */
    const char *message;
} track_restart;
status track_add_restart(const char *run_dir, const track_restart *r);
/* Sends what an ended run left in RUN/track; `say` gets a line for each sink. An error: something is still left. */
status track_send(const char *run_dir, void (*say)(const char *line));

/* One key of metrics.jsonl, as metrics.def describes it. */
typedef enum metric_record { METRIC_OF_STEP, METRIC_OF_EVAL } metric_record;
typedef struct metric {
    metric_record record;           /* the kind of line it stands in */
    const char *name, *type, *help; /* type: whole, real or flag */
} metric;
const metric *metric_at(size_t i); /* NULL past the end */
/* The number that a line of metrics.jsonl would have under this key; false: it would have none. */
bool metric_of_step(const train_step_report *s, const char *name, double *out);
bool metric_of_eval(const train_eval_report *e, const char *name, double *out);
/* All numbers of such a line in its order; returns how many. Names are never freed. */
typedef struct metric_value {
    const char *name;
    double value;
} metric_value;
enum { METRIC_VALUES = 16 + METRICS_MOST };
size_t metrics_of_step(const train_step_report *s, metric_value out[METRIC_VALUES]);
size_t metrics_of_eval(const train_eval_report *e, metric_value out[METRIC_VALUES]);
