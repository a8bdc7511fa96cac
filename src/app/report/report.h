#pragma once
/* report.h - run directories: read, listed, compared, drawn as one HTML page.
 *
 * Promises
 *   - A run directory may come from anyone and may still grow. Any of its files may be missing; one that cannot be read is
 *     named in run.notes and the rest is used. A half line is never taken for a whole one. Nothing in the directory is changed.
 *   - The page needs no network: no font, no script, no picture from elsewhere. All text of a run is escaped.
 *   - Every number that is drawn also stands in the picture as text (data-x, data-y).
 *
 *     run r;
 *     TRY(run_open(&r, "runs/first", RUN_ALL));
 *     const metric_series *loss = run_metrics_find(&r.metrics, "train/loss");
 *     ... loss->x[i], loss->y[i] ...
 *     run_close(&r); */
#include "chart/chart.h"
#include "format/format.h"

/* ---- numbers over steps (metrics.c) --------------------------------------------------------------------------------- */

typedef struct metric_series {
    const char *name; /* "train/loss" */
    double *x, *y;    /* (n) x never falls; y is NAN where the file has null */
    size_t n, capacity;
    uint64_t last_line; /* that gave a value */
} metric_series;
/* A file of JSON Lines with numbers, such as metrics.jsonl, by column. `x_key` names the column that the others are over: "step". */
typedef struct run_metrics {
    const char *x_key;
    metric_series *series; /* in the order in which they appear */
    size_t n_series, capacity;
    uint64_t n_lines; /* whole lines */
    uint64_t n_bad;   /* of them left out: not an object with a number x_key that is at least the one before */
    double last_x;    /* -INFINITY: no line yet */
    uint64_t offset;  /* bytes read so far: whole lines */
    char tail[64];    /* the last bytes before offset: a file that changed there is read again */
    size_t n_tail;
    arena names;
} run_metrics;
void run_metrics_init(run_metrics *m, const char *x_key);
void run_metrics_fini(run_metrics *m);
/* Adds the lines that were written since the last call; a file that was cut is read again from its start. A missing file has
 * no lines. at_most: reads only about so many bytes from the end; 0: all. */
status run_metrics_follow(run_metrics *m, const char *path, uint64_t at_most);
const metric_series *run_metrics_find(const run_metrics *m, const char *name); /* NULL: no such column */
double series_last(const metric_series *s);         /* the last number that is finite; NAN: none, or s is NULL */
double series_first(const metric_series *s);        /* the first likewise */
double series_most(const metric_series *s);         /* the largest */
double series_median(const metric_series *s);       /* of the finite ones */
double series_at(const metric_series *s, double x); /* the last finite one at or before x */

/* ---- fewer points, smoother lines (thin.c, smooth.c) ------------------------------------------------------------------ */

/* The points to draw in a picture that is `columns` pixels wide: the first, the last, and the lowest and highest of every
 * column, so that no extreme is lost. Numbers that are not finite are left out. keep: at least 2 * columns + 2 entries; gets
 * indices, ascending. Returns how many. */
size_t series_thin(const double *x, const double *y, size_t n, size_t columns, size_t *keep);
/* For stacked areas: of each of `columns` equal parts of 0..n-1 the index with the largest total (the first of equals). */
size_t series_fullest(const double *total, size_t n, size_t columns, size_t *keep);
/* Mean over a window of about `width` points around each, twice (a triangle); as short as needed at the ends. Points that are
 * not finite stay so and count for nobody. */
void series_smooth(const double *y, size_t n, size_t width, double *out);
/* The same, but the highest point keeps its place and height, and no other is higher. */
void series_smooth_keep_peak(const double *y, size_t n, size_t width, double *out);

/* ---- a run (run.c, run_memory.c, run_text.c) ---------------------------------------------------------------------------- */

/* died: run.json says running, but its process is gone. unfinished: an old run without run.json, whose last step was not reached. */
typedef enum run_state { RUN_RUNNING, RUN_FINISHED, RUN_STOPPED, RUN_FAILED, RUN_DIED, RUN_UNFINISHED } run_state;
const char *run_state_name(run_state s);
/* Does the process of a run that says it is running still live? On this host its process is looked for, elsewhere its newest sign of life
 * is what counts. pid 0, host NULL: not known. started, sign: unix seconds; NAN: not known. */
bool run_is_alive(const char *host, long long pid, double started, double sign);

typedef struct run_setting {
    const char *key, *value;
} run_setting;
typedef struct run_peak_value { /* a value that is alive at the peak */
    const char *name, *role;
    double bytes;
} run_peak_value;
/* Memory of one tier over the ops of one step, from memory.json. */
typedef struct run_tier {
    const char *name;                /* "device" */
    double planned, measured, limit; /* bytes; NAN: not known */
    size_t n_points;
    const char **op, **section; /* (n_points) */
    double *index;              /* (n_points) of the op in the program, ascending; NULL: not known */
    double **bytes;             /* (n_roles)(n_points) */
    double *total;              /* (n_points) */
    size_t peak_at;
    run_peak_value *values; /* alive at the peak, largest first */
    size_t n_values;
    double others; /* bytes of those that are not listed */
} run_tier;
typedef struct run_rank {
    int rank;
    run_metrics monitor; /* over "time", unix seconds */
} run_rank;

typedef enum run_parts {
    RUN_SETTINGS = 1,
    RUN_METRICS = 2,
    RUN_TAIL = 4, /* instead of RUN_METRICS: the last lines alone */
    RUN_MEMORY = 8,
    RUN_MONITOR = 16,
    RUN_TEXTS = 32, /* samples and completions */
    RUN_ALL = RUN_SETTINGS | RUN_METRICS | RUN_MEMORY | RUN_MONITOR | RUN_TEXTS,
} run_parts;
typedef struct run {
    const char *path, *name; /* as given; the last part of it */
    run_state state;
    const char *error;                      /* why it failed; NULL */
    const char *task, *model, *data, *host; /* NULL: not known */
    double started, ended;                  /* unix seconds; NAN: not known */
    double changed;                         /* when metrics.jsonl, or what there is, was last written */
    double step, steps;                     /* NAN: not known */
    double others;                          /* share of the CPU time that others had while it ran; NAN: not known */
    int world;
    run_metrics metrics;
    run_setting *settings; /* in the order of config.yaml */
    size_t n_settings;
    const char **roles; /* of the tiers */
    size_t n_roles;
    run_tier *tiers;
    size_t n_tiers;
    json_t *plan;                  /* plan.json; NULL */
    json_t *samples, *completions; /* the last ones, arrays */
    run_rank *ranks;
    size_t n_ranks;
    const char *trace;  /* file of its trace; NULL: none */
    const char **notes; /* what could not be read, and why */
    size_t n_notes, notes_capacity;
    arena memory;
} run;
/* Fails only where the directory itself cannot be read. Call run_close also then. */
status run_open(run *r, const char *dir, run_parts parts);
void run_close(run *r);
const char *run_setting_find(const run *r, const char *key); /* NULL: not in config.yaml */
/* The method as its users name it: grpo, dapo ... (rl.loss) of a run of train.task rloo, else the task; NULL: not
 * known. */
const char *run_method(const run *r);
double run_peak_bytes(const run *r); /* of the device: measured, else planned; NAN: not known */
bool run_peak_is_measured(const run *r);
double run_planned_bytes(const run *r, const char *tier); /* NAN: not known */
double run_tokens_per_second(const run *r);               /* median of the steps that were read */
double run_role_bytes(const run *r, const char *role);    /* on the device at the peak; NAN: not known */
const run_tier *run_tier_find(const run *r, const char *name);

/* Directories that hold runs stand for all of them (find.c). */
typedef struct run_paths {
    const char **runs;    /* in the order of the directories' names */
    const char **benches; /* results of `ralo bench`: rloo.json */
    size_t n_runs, n_benches, runs_capacity, benches_capacity;
    arena memory;
} run_paths;
/* Does the directory have files as a run writes them? */
bool run_is_dir(const char *dir);
void run_paths_init(run_paths *p);
void run_paths_fini(run_paths *p);
/* Adds the run `path`, the runs below it, or the result of a bench. Finding none is an error, unless `none_is_fine`. */
status run_paths_add(run_paths *p, const char *path, bool none_is_fine);
void runs_sort_newest(run *runs, size_t n); /* by when they started, or were last written */

/* ---- settings that differ (differ.c) ------------------------------------------------------------------------------------ */

/* What a setting can change beside the numbers of the training: a column of settings/config.def. */
typedef enum setting_effect { EFFECT_NONE, EFFECT_SPEED, EFFECT_BOTH } setting_effect;
typedef struct setting_row {
    const char *key;
    setting_effect effect;
    const char **values;   /* (n runs) NULL: not in that run's config.yaml */
    bool differs, is_same; /* neither: it says where the runs are */
} setting_row;
typedef struct setting_table {
    setting_row *rows; /* in the order of the files */
    size_t n_rows, n_differ, n_same, capacity;
    arena memory;
} setting_table;
/* Where a run is, and what it is called, is no difference. */
void setting_table_init(setting_table *t, const run *runs, size_t n);
void setting_table_fini(setting_table *t);

/* ---- text for a terminal (table.c, terminal.c) ---------------------------------------------------------------------------- */

void runs_print_table(const run *runs, size_t n, FILE *out);
void runs_print_csv(const run *runs, size_t n, FILE *out);
json_t *run_json(const run *r);
void runs_print_compare(const run *a, const run *b, FILE *out);
json_t *runs_compare_json(const run *a, const run *b);
/* One plot, with axes. braille: 2 x 4 dots a character; else plain ASCII. */
typedef struct text_plot {
    int columns, lines; /* characters in all, and of the plot's height */
    bool braille;
    double x_low, x_high, y_low, y_high; /* the same for plots that are to be compared */
} text_plot;
void text_plot_range(text_plot *p, const metric_series *s); /* widens it to show these points; p begins with {0} */
void text_plot_draw(const text_plot *p, const char *title, const metric_series *s, FILE *out);
/* The metric that a word means: a name, or the part after its last slash. NULL: none; `nearest` says what was meant. */
const metric_series *metric_by_word(const run_metrics *m, const char *word, str_nearest *nearest);

/* ---- the page (report.c) ---------------------------------------------------------------------------------------------------- */

enum { REPORT_RUNS_MOST = CHART_COLORS }; /* more lines in one chart could not be told apart */
typedef struct report_options {
    const char *out;    /* HTML file */
    const char *charts; /* directory for each chart as SVG; NULL: none */
    const char *png;    /* directory for each chart as PNG; NULL: none */
    const char *trace;  /* of the one run; NULL: trace.json of each where there is one */
} report_options;
/* result: {"file", "charts", "words", "runs"}; the caller calls json_decref. */
status report_write(const run_paths *paths, const report_options *o, json_t **result);
