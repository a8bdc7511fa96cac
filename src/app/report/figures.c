/* figures.c - a chart for every metric, all runs in it.
 *
 * Noisy metrics get a smoothed line, with the numbers themselves pale behind it. Metrics that never change are no chart: the page
 * lists them. */
#include "report/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SMOOTH_LEAST = 60, FEW_RUNS = 4 };

typedef struct drawn_series { /* what a chart_series points into */
    double *x, *y;
    size_t n;
} drawn_series;

const char **report_names(report *p, const bool *shown) {
    const char **names = arena_array(&p->memory, const char *, CHART_COLORS);
    for (size_t i = 0; i < p->n_runs && i < CHART_COLORS; i++) names[i] = !shown || shown[i] ? p->labels[i] : NULL;
    return names;
}

/* Those points of a series that a chart shows. */
static drawn_series thinned(report *p, const double *x, const double *y, size_t n) {
    size_t columns = p->n_runs > FEW_RUNS ? THIN_COLUMNS / 2 : THIN_COLUMNS;
    size_t *keep = mem_alloc((2 * columns + 2) * sizeof *keep);
    drawn_series d = {.n = series_thin(x, y, n, columns, keep)};
    d.x = arena_array(&p->memory, double, MAX(d.n, (size_t)1));
    d.y = arena_array(&p->memory, double, MAX(d.n, (size_t)1));
    for (size_t i = 0; i < d.n; i++) d.x[i] = x[keep[i]], d.y[i] = y[keep[i]];
    free(keep);
    return d;
}

/* It moves up and down many times as far as from its lowest to its highest point. */
static bool is_noisy(const metric_series *s) {
    double low = INFINITY, high = -INFINITY, way = 0, before = NAN;
    if (s->n < SMOOTH_LEAST) return false;
    for (size_t i = 0; i < s->n; i++) {
        if (!isfinite(s->y[i])) continue;
        low = fmin(low, s->y[i]);
        high = fmax(high, s->y[i]);
        if (isfinite(before)) way += fabs(s->y[i] - before);
        before = s->y[i];
    }
    return way > 3 * (high - low) && high > low;
}

static bool is_of_bytes(const char *name) { return str_ends_with(name, "bytes"); }

/* Numbers above 0 over two decades or more. A metric that never falls, such as tokens or the epoch, counts something,
 * and a logarithmic axis would bend its straight line. */
static bool wants_log(const report *p, const char *name) {
    double low = INFINITY, high = -INFINITY;
    bool falls = false;
    for (size_t i = 0; i < p->n_runs; i++) {
        const metric_series *s = run_metrics_find(&p->runs[i].metrics, name);
        double before = -INFINITY;
        for (size_t k = 0; s && k < s->n; k++) {
            if (!isfinite(s->y[k])) continue;
            low = fmin(low, s->y[k]), high = fmax(high, s->y[k]);
            falls |= s->y[k] < before;
            before = s->y[k];
        }
    }
    return falls && low > 0 && high / low >= 100 && !is_of_bytes(name);
}

static bool is_constant(const report *p, const char *name) {
    double value = NAN;
    for (size_t i = 0; i < p->n_runs; i++) {
        const metric_series *s = run_metrics_find(&p->runs[i].metrics, name);
        for (size_t k = 0; s && k < s->n; k++) {
            if (isfinite(value) && s->y[k] != value) return false;
            value = s->y[k];
        }
    }
    return true;
}

/* Steps between two points. */
static double spacing(const metric_series *s) { return s->n > 1 ? (s->x[s->n - 1] - s->x[0]) / (double)(s->n - 1) : 0; }

/* The window in steps over which all runs of a chart are smoothed, so that no curve looks calmer than another by the
 * way it is drawn; 0: none of them is noisy. */
static double smoothing_window(const report *p, const char *name) {
    double window = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        const metric_series *s = run_metrics_find(&p->runs[i].metrics, name);
        if (s && is_noisy(s)) window = fmax(window, fmax((double)s->n / 25, 5) * spacing(s));
    }
    return window;
}

static void add_run_series(report *p, size_t i, const metric_series *s, double window, chart_series *out, size_t *n) {
    drawn_series raw = thinned(p, s->x, s->y, s->n);
    bool smoothed = window > 0 && s->n > 1;
    out[(*n)++] =
        (chart_series){.color = (int)i, .name = p->labels[i], .x = raw.x, .y = raw.y, .n = raw.n, .faint = smoothed};
    if (!smoothed) return;
    double *smooth = mem_alloc(s->n * sizeof *smooth);
    series_smooth(s->y, s->n, (size_t)fmin(fmax(window / spacing(s), 1), (double)s->n), smooth);
    drawn_series line = thinned(p, s->x, smooth, s->n);
    out[(*n)++] = (chart_series){.color = (int)i,
                                 .name = arena_format(&p->memory, "%s (smoothed)", p->labels[i]),
                                 .x = line.x,
                                 .y = line.y,
                                 .n = line.n};
    free(smooth);
}

/* Reward and loss stand on the first screen; the loss of a policy hovers around zero and does not. */
static bool is_headline(const report *p, const char *name) {
    bool rewarded = false;
    for (size_t i = 0; i < p->n_runs; i++) rewarded |= run_metrics_find(&p->runs[i].metrics, "reward") != NULL;
    return strcmp(name, rewarded ? "reward" : "train/loss") == 0;
}

static status add_metric(report *p, const char *name) {
    chart_series series[2 * CHART_COLORS];
    bool shown[CHART_COLORS] = {false};
    size_t n = 0, slash = strcspn(name, "/");
    double window = smoothing_window(p, name);
    for (size_t i = 0; i < p->n_runs; i++) {
        const metric_series *s = run_metrics_find(&p->runs[i].metrics, name);
        if (!s || !s->n) continue;
        shown[i] = true;
        add_run_series(p, i, s, window, series, &n);
    }
    bool log_y = wants_log(p, name);
    chart_panel panel = {.title = "",
                         .series = series,
                         .n_series = n,
                         .kind = CHART_LINES,
                         .numbers = !is_of_bytes(name),
                         .log_y = log_y,
                         .x_whole = true,
                         .x_name = log_y ? "step; the axis at the left is logarithmic" : "step"};
    chart c = {.title = name,
               .names = report_names(p, shown),
               .n_names = p->n_runs > 1 ? MIN(p->n_runs, (size_t)CHART_COLORS) : 0,
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    const char *group = name[slash] ? arena_format(&p->memory, "%.*s", (int)slash, name) : "other";
    return report_add_chart(p, is_headline(p, name) ? "summary" : arena_format(&p->memory, "metrics %s", group), name,
                            &c);
}

/* The held-out loss stands in front of the others. */
status figures_metrics(report *p) {
    static const char *const first[] = {"reward", "train/loss", "val/loss"};
    json_t *done = json_object();
    status rc = OK;
    for (size_t k = 0; k < ARRAY_LENGTH(first); k++)
        for (size_t i = 0; i < p->n_runs && rc == OK; i++)
            if (run_metrics_find(&p->runs[i].metrics, first[k]) && !json_object_get(done, first[k])) {
                json_object_set_new(done, first[k], json_true());
                rc = add_metric(p, first[k]);
            }
    for (size_t i = 0; i < p->n_runs && rc == OK; i++)
        for (size_t k = 0; k < p->runs[i].metrics.n_series && rc == OK; k++) {
            const char *name = p->runs[i].metrics.series[k].name;
            if (json_object_get(done, name)) continue;
            json_object_set_new(done, name, json_true());
            if (!is_constant(p, name)) rc = add_metric(p, name);
        }
    json_decref(done);
    return rc;
}
