/* figures_time.c - the time of a step: device memory of all runs in it, and which streams are busy beside each other.
 *
 * With the traces of all runs memory is over milliseconds, else over the ops in their order. */
#include "report/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_COLUMNS = 300, BUSY_LEAST = 1 };

/* ---- memory over the time of a step --------------------------------------------------------------------------------------- */

typedef struct time_line {
    double *x, *y;
    size_t n;
} time_line;

/* Bytes at the op with this index: of the points that memory.json kept, the last one at or before it. */
static double bytes_at(const run_tier *t, double op) {
    size_t low = 0, high = t->n_points;
    while (low + 1 < high) {
        size_t middle = (low + high) / 2;
        if (t->index[middle] <= op) low = middle;
        else high = middle;
    }
    return t->total[low];
}

static bool has_times(const report *p, size_t i) {
    const run_tier *t = run_tier_find(&p->runs[i], "device");
    return t && t->index && p->traces[i].n_ops > 0;
}

static time_line line_of(report *p, size_t i, bool by_time) {
    const run_tier *t = run_tier_find(&p->runs[i], "device");
    const step_trace *trace = &p->traces[i];
    time_line l = {.n = by_time ? trace->n_ops : t->n_points};
    l.x = arena_array(&p->memory, double, l.n);
    l.y = arena_array(&p->memory, double, l.n);
    for (size_t k = 0; k < l.n; k++) {
        l.x[k] = by_time ? trace->op_begin[k] : 100.0 * (double)k / (double)t->n_points;
        l.y[k] = by_time ? bytes_at(t, trace->op[k]) : t->total[k];
    }
    return l;
}

/* The highest bytes of equal parts of the time, at the time where they are: a mean over these is one over time. */
static time_line on_grid(report *p, const time_line *l, double end) {
    time_line g = {.n = LINE_COLUMNS};
    g.x = arena_array(&p->memory, double, g.n);
    g.y = arena_array(&p->memory, double, g.n);
    size_t at = 0;
    for (size_t i = 0; i < g.n; i++) {
        double to = end * (double)(i + 1) / (double)g.n;
        g.x[i] = end * (double)i / (double)g.n;
        g.y[i] = l->y[at];
        for (; at + 1 < l->n && l->x[at + 1] < to; at++)
            if (l->y[at + 1] > g.y[i]) g.y[i] = l->y[at + 1], g.x[i] = l->x[at + 1];
    }
    return g;
}

/* The peak has its place and height in both. */
static status add_time_line(report *p, bool smooth, bool by_time) {
    chart_series series[CHART_COLORS];
    bool shown[CHART_COLORS] = {false};
    size_t n = 0, *keep = mem_alloc((2 * LINE_COLUMNS + 2) * sizeof *keep);
    for (size_t i = 0; i < p->n_runs; i++) {
        if (!run_tier_find(&p->runs[i], "device")) continue;
        time_line l = line_of(p, i, by_time);
        if (smooth) {
            l = on_grid(p, &l, by_time ? p->traces[i].length : 100);
            double *y = arena_array(&p->memory, double, l.n);
            series_smooth_keep_peak(l.y, l.n, l.n / 8, y);
            l.y = y;
        }
        size_t n_kept = series_thin(l.x, l.y, l.n, LINE_COLUMNS, keep);
        for (size_t k = 0; k < n_kept; k++) l.x[k] = l.x[keep[k]], l.y[k] = l.y[keep[k]];
        shown[i] = true;
        series[n++] = (chart_series){.color = (int)i, .name = p->labels[i], .x = l.x, .y = l.y, .n = n_kept};
    }
    free(keep);
    if (n == 0) return OK;
    chart_panel panel = {.title = "",
                         .series = series,
                         .n_series = n,
                         .kind = smooth ? CHART_LINES : CHART_STEPS,
                         .x_unit = by_time ? "ms" : "%",
                         .x_name =
                             by_time ? "one step of the trace, of median length" : "of the ops of one step, in order"};
    chart c = {.title = smooth ? "Device memory, smoothed, peaks kept" : "Device memory over one step, exact",
               .names = report_names(p, shown),
               .n_names = MIN(p->n_runs, (size_t)CHART_COLORS),
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    return report_add_chart(p, "step", smooth ? "time line smoothed" : "time line", &c);
}

status figures_time_line(report *p) {
    bool by_time = true;
    for (size_t i = 0; i < p->n_runs; i++) by_time &= !run_tier_find(&p->runs[i], "device") || has_times(p, i);
    TRY(add_time_line(p, false, by_time));
    return add_time_line(p, true, by_time);
}

/* ---- streams --------------------------------------------------------------------------------------------------------------- */

/* Only of streams that matter for the time. */
static void say_overlap(report *p, size_t i, const step_trace *t) {
    strbuf said;
    strbuf_init(&said);
    for (size_t k = 1; k < t->n_lanes; k++) {
        const stream_lane *lane = &t->lanes[k];
        double busy = 100 * lane->busy / t->length;
        if (busy < BUSY_LEAST) continue;
        strbuf_printf(&said, "%s%s is busy %.0f %% of the time, %.0f %% of that while %s runs", said.length ? "; " : "",
                      lane->name, busy, 100 * lane->covered / lane->busy, t->lanes[0].name);
    }
    if (said.length) report_say(p, "In a step of %s, %s.", p->labels[i], said.text);
    strbuf_fini(&said);
}

static status add_lanes(report *p, size_t i, const step_trace *t) {
    static const int colors[STREAMS_MOST] = {2, 5, 1, 7, 6, 3, 4, 9};
    chart_series series[STREAMS_MOST];
    for (size_t k = 0; k < t->n_lanes; k++) {
        const stream_lane *lane = &t->lanes[k];
        series[k] =
            (chart_series){.color = colors[k], .name = lane->name, .x = lane->begin, .y = lane->end, .n = lane->n};
    }
    chart_panel panel = {.title = "",
                         .series = series,
                         .n_series = t->n_lanes,
                         .kind = CHART_LANES,
                         .x_unit = "ms",
                         .x_end = t->length,
                         .x_name = "one step of the trace, of median length"};
    chart c = {.title = arena_format(&p->memory, "%s: what runs at the same time", p->labels[i]),
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    say_overlap(p, i, t);
    return report_add_chart(p, "overlap", arena_format(&p->memory, "overlap %s", p->labels[i]), &c);
}

status figures_overlap(report *p) {
    for (size_t i = 0; i < p->n_runs; i++)
        if (p->traces[i].n_lanes) TRY(add_lanes(p, i, &p->traces[i]));
    return OK;
}
