/* figures_memory.c - where the bytes are: peaks of the runs, one step by role, the whole run. */
#include "report/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROLES_MOST = 16, LINE_COLUMNS = 300 };

/* From the bottom of a stack up. */
static const char *const stacked_roles[] = {"params", "grads", "states",      "inputs", "cache",
                                            "comm",   "work",  "activations", "gaps"};

/* ---- peaks of the runs --------------------------------------------------------------------------------------------------- */

/* Roles that any run has at its peak. */
static size_t roles_of_all(const report *p, const char *out[ROLES_MOST]) {
    size_t n = 0;
    for (size_t k = 0; k < ARRAY_LENGTH(stacked_roles); k++)
        for (size_t i = 0; i < p->n_runs; i++)
            if (run_role_bytes(&p->runs[i], stacked_roles[k]) > 0) {
                out[n++] = stacked_roles[k];
                break;
            }
    return n;
}

static const char *peak_label(report *p, const run *r, double peak) {
    double planned = run_planned_bytes(r, "device");
    bool measured = run_peak_is_measured(r);
    if (!isfinite(peak)) return "not known";
    return arena_format(&p->memory, "%s%s", bytes_text(&p->memory, peak),
                        !measured         ? " planned"
                        : planned == peak ? ", as planned"
                                          : "");
}

/* What a role has; what no role explains is the last series. */
static status add_peaks(report *p) {
    const char *roles[ROLES_MOST], **labels = arena_array(&p->memory, const char *, p->n_runs);
    const char **names = arena_array(&p->memory, const char *, CHART_COLORS_ALL);
    size_t n_roles = roles_of_all(p, roles), n_known = 0;
    chart_series series[ROLES_MOST + 1];
    double *rest = arena_array(&p->memory, double, p->n_runs);
    for (size_t i = 0; i < p->n_runs; i++) {
        rest[i] = run_peak_bytes(&p->runs[i]);
        labels[i] = peak_label(p, &p->runs[i], rest[i]);
        n_known += isfinite(rest[i]);
    }
    if (n_known == 0) return OK;
    for (size_t k = 0; k < n_roles; k++) {
        double *y = arena_array(&p->memory, double, p->n_runs);
        for (size_t i = 0; i < p->n_runs; i++) {
            y[i] = run_role_bytes(&p->runs[i], roles[k]);
            if (y[i] > rest[i]) y[i] = rest[i];
            if (y[i] >= 0) rest[i] -= y[i];
        }
        series[k] = (chart_series){.color = chart_role_color(roles[k]), .name = roles[k], .y = y, .n = p->n_runs};
        names[series[k].color] = roles[k];
    }
    bool any_rest = false;
    for (size_t i = 0; i < p->n_runs; i++) any_rest |= rest[i] > 0;
    series[n_roles] = (chart_series){.color = n_roles ? chart_role_color("gaps") : 7,
                                     .name = n_roles ? "gaps and others" : "device memory",
                                     .y = rest,
                                     .n = p->n_runs};
    if (any_rest && n_roles) names[chart_role_color("gaps")] = "gaps and others";
    chart_panel panel = {.title = "",
                         .series = series,
                         .n_series = n_roles + any_rest,
                         .groups = p->labels,
                         .rows = true,
                         .group_labels = labels};
    chart c = {.title = "Peak of device memory",
               .names = names,
               .n_names = n_roles ? CHART_COLORS_ALL : 0,
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    return report_add_chart(p, "summary", "peak", &c);
}

static status add_speed(report *p) {
    double *speed = arena_array(&p->memory, double, p->n_runs);
    const char **labels = arena_array(&p->memory, const char *, p->n_runs);
    size_t n_known = 0;
    char count[32];
    for (size_t i = 0; i < p->n_runs; i++) {
        speed[i] = run_tokens_per_second(&p->runs[i]);
        n_known += isfinite(speed[i]);
        labels[i] = isfinite(speed[i]) ? arena_string(&p->memory, str_format_count(count, speed[i])) : "not known";
    }
    if (n_known == 0 || p->n_runs < 2) return OK;
    chart_series s = {.color = 7, .name = "tokens per second", .y = speed, .n = p->n_runs};
    chart_panel panel = {.title = "",
                         .series = &s,
                         .n_series = 1,
                         .groups = p->labels,
                         .rows = true,
                         .group_labels = labels,
                         .numbers = true};
    chart c = {.title = "Tokens per second", .panels = &panel, .n_panels = 1, .width = FIGURE_WIDTH};
    return report_add_chart(p, "summary", "speed", &c);
}

/* ---- one step ------------------------------------------------------------------------------------------------------------ */

static status add_step(report *p, size_t i, const run_tier *t) {
    const run *r = &p->runs[i];
    size_t *keep = mem_alloc(THIN_COLUMNS * sizeof *keep),
           n = series_fullest(t->total, t->n_points, THIN_COLUMNS, keep);
    double *x = arena_array(&p->memory, double, n);
    const char **names = arena_array(&p->memory, const char *, CHART_COLORS_ALL);
    chart_series series[ROLES_MOST];
    size_t n_series = 0;
    for (size_t k = 0; k < n; k++) x[k] = (double)keep[k];
    for (size_t k = 0; k < r->n_roles; k++) {
        double *y = arena_array(&p->memory, double, n), most = 0;
        for (size_t j = 0; j < n; j++) y[j] = t->bytes[k][keep[j]], most = fmax(most, y[j]);
        if (most == 0) continue;
        series[n_series] =
            (chart_series){.color = chart_role_color(r->roles[k]), .name = r->roles[k], .x = x, .y = y, .n = n};
        names[series[n_series++].color] = r->roles[k];
    }
    free(keep);
    double peak = t->total[t->peak_at];
    chart_panel panel = {.title = "",
                         .series = series,
                         .n_series = n_series,
                         .kind = CHART_AREAS,
                         .x_end = (double)t->n_points,
                         .x_name = "ops of one step, in order",
                         .mark = {(double)t->peak_at, peak,
                                  arena_format(&p->memory, "%s at %s (%s)", bytes_text(&p->memory, peak),
                                               t->op[t->peak_at], t->section[t->peak_at])}};
    if (t->limit > 0 && t->limit <= 1.5 * peak)
        panel.limit = t->limit,
        panel.limit_name = arena_format(&p->memory, "limit %s", bytes_text(&p->memory, t->limit));
    chart c = {.title = arena_format(&p->memory, "%s: %s memory over one step", p->labels[i], t->name),
               .names = names,
               .n_names = CHART_COLORS_ALL,
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    return report_add_chart(p, "step", arena_format(&p->memory, "step %s %s", t->name, p->labels[i]), &c);
}

/* ---- the whole run ------------------------------------------------------------------------------------------------------- */

static status add_monitor(report *p, size_t i) {
    static const struct {
        const char *key, *name;
        int color;
    } rows[] = {{"rss_bytes", "process (RSS)", 7},
                {"device_bytes", "device, ralo's arena", 3},
                {"driver_bytes", "device, as the driver says", 0},
                {"host_bytes", "host, ralo's arena", 4}};
    const run *r = &p->runs[i];
    if (r->n_ranks == 0) return OK;
    const run_metrics *m = &r->ranks[0].monitor;
    chart_series series[ARRAY_LENGTH(rows)];
    const char **names = arena_array(&p->memory, const char *, CHART_COLORS_ALL);
    size_t n = 0, *keep = mem_alloc((2 * LINE_COLUMNS + 2) * sizeof *keep);
    double begin = INFINITY, end = -INFINITY;
    for (size_t k = 0; k < m->n_series; k++)
        if (m->series[k].n) begin = fmin(begin, m->series[k].x[0]), end = fmax(end, m->series[k].x[m->series[k].n - 1]);
    bool hours = end - begin > 7200;
    for (size_t k = 0; k < ARRAY_LENGTH(rows); k++) {
        const metric_series *s = run_metrics_find(m, rows[k].key);
        size_t n_kept = s ? series_thin(s->x, s->y, s->n, LINE_COLUMNS, keep) : 0;
        if (n_kept == 0) continue;
        double *x = arena_array(&p->memory, double, n_kept), *y = arena_array(&p->memory, double, n_kept);
        for (size_t j = 0; j < n_kept; j++) x[j] = (s->x[keep[j]] - begin) / (hours ? 3600 : 1), y[j] = s->y[keep[j]];
        names[rows[k].color] = rows[k].name;
        series[n++] = (chart_series){.color = rows[k].color, .name = rows[k].name, .x = x, .y = y, .n = n_kept};
    }
    free(keep);
    if (n == 0) return OK;
    chart_panel panel = {
        .title = "", .series = series, .n_series = n, .kind = CHART_LINES, .x_unit = hours ? "h" : "s"};
    chart c = {.title = arena_format(&p->memory,
                                     r->world > 1 ? "%s: memory over the run, rank %d" : "%s: memory over the run",
                                     p->labels[i], r->ranks[0].rank),
               .names = names,
               .n_names = CHART_COLORS_ALL,
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    return report_add_chart(p, "run", arena_format(&p->memory, "run %s", p->labels[i]), &c);
}

status figures_memory(report *p) {
    TRY(add_peaks(p));
    TRY(add_speed(p));
    for (size_t i = 0; i < p->n_runs; i++)
        for (size_t k = 0; k < p->runs[i].n_tiers; k++)
            if (p->runs[i].tiers[k].total[p->runs[i].tiers[k].peak_at] > 0) TRY(add_step(p, i, &p->runs[i].tiers[k]));
    for (size_t i = 0; i < p->n_runs; i++) TRY(add_monitor(p, i));
    return OK;
}
