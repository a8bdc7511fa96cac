/* bench.c - the result of `ralo bench rloo` (rloo.json) on the page: peaks as bars, memory over the time of a step, exact and
 * smoothed. The file is someone's, so a cell that is not as expected is left out. */
#include "report/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MODES = 3, KS_MOST = 8, POINTS_MOST = 100000 };
static const char *const modes[MODES] = {"base", "cut", "ours"};
static const char *const mode_names[MODES] = {"base: all logits at once", "base, prompts cut", "ours, whole prompts"};

static double number(const json_t *cell, const char *key) {
    const json_t *v = json_object_get(cell, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int mode_of(const json_t *cell) {
    const char *mode = json_string_value(json_object_get(cell, "mode"));
    for (int m = 0; mode && m < MODES; m++)
        if (strcmp(mode, modes[m]) == 0) return m;
    return -1;
}

static const json_t *find_cell(const json_t *bench, int mode, double k) {
    const json_t *cells = json_object_get(bench, "cells"), *cell;
    size_t i;
    json_array_foreach(cells, i, cell) if (mode_of(cell) == mode && number(cell, "k") == k) return cell;
    return NULL;
}

/* Measured, or planned where it did not fit. */
static double cell_bytes(const json_t *cell) {
    double peak = number(cell, "peak");
    return isfinite(peak) ? peak : number(cell, "planned");
}

static size_t find_ks(const json_t *bench, double ks[KS_MOST]) {
    const json_t *cells = json_object_get(bench, "cells"), *cell;
    size_t i, n = 0, j;
    json_array_foreach(cells, i, cell) {
        double k = number(cell, "k");
        for (j = 0; j < n && ks[j] != k; j++) {}
        if (j == n && n < KS_MOST && isfinite(k)) ks[n++] = k;
    }
    return n;
}

static status add_peaks(report *p, const json_t *bench, const double *ks, size_t n_ks, size_t at) {
    chart_series series[MODES];
    const char **groups = arena_array(&p->memory, const char *, KS_MOST);
    for (size_t i = 0; i < n_ks; i++) groups[i] = arena_format(&p->memory, "k = %.0f", ks[i]);
    for (int m = 0; m < MODES; m++) {
        double *y = arena_array(&p->memory, double, KS_MOST);
        bool *hollow = arena_array(&p->memory, bool, KS_MOST);
        for (size_t i = 0; i < n_ks; i++) {
            const json_t *cell = find_cell(bench, m, ks[i]);
            y[i] = cell ? cell_bytes(cell) : NAN;
            hollow[i] = cell && json_is_false(json_object_get(cell, "fits"));
        }
        series[m] = (chart_series){.color = m, .name = modes[m], .y = y, .n = n_ks, .hollow = hollow};
    }
    chart_panel panel = {.title = "", .series = series, .n_series = MODES, .groups = groups};
    const char *note = "an outline is planned and does not fit the machine";
    chart c = {.title = "RLOO: peak memory by completions per prompt",
               .notes = &note,
               .n_notes = 1,
               .names = mode_names,
               .n_names = MODES,
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    return report_add_chart(p, "bench", arena_format(&p->memory, "rloo peak %zu", at), &c);
}

static bool read_line(report *p, const json_t *cell, double **x, double **y, size_t *n) {
    const json_t *line = json_object_get(cell, "timeline"), *seconds = json_object_get(line, "seconds");
    const json_t *bytes = json_object_get(line, "bytes");
    *n = json_array_size(seconds);
    if (*n == 0 || *n > POINTS_MOST || json_array_size(bytes) != *n) return false;
    *x = arena_array(&p->memory, double, *n);
    *y = arena_array(&p->memory, double, *n);
    for (size_t i = 0; i < *n; i++) {
        (*x)[i] = json_number_value(json_array_get(seconds, i));
        (*y)[i] = json_number_value(json_array_get(bytes, i));
        if (!((*x)[i] >= (i ? (*x)[i - 1] : 0)) || !((*y)[i] >= 0)) return false;
    }
    return true;
}

/* The line at equal distances in time, so that a moving mean is one over time; the peak is kept as a point of its own. */
static void smooth_line(report *p, double **x, double **y, size_t *n) {
    enum { GRID = 400 };
    double *gx = arena_array(&p->memory, double, GRID), *gy = arena_array(&p->memory, double, GRID);
    double *out = arena_array(&p->memory, double, GRID), end = (*x)[*n - 1];
    size_t at = 0;
    for (size_t i = 0; i < GRID; i++) {
        double to = end * (double)(i + 1) / GRID;
        gx[i] = end * (double)i / GRID;
        gy[i] = (*y)[at];
        for (; at + 1 < *n && (*x)[at + 1] < to; at++)
            if ((*y)[at + 1] > gy[i]) gy[i] = (*y)[at + 1], gx[i] = (*x)[at + 1];
    }
    series_smooth_keep_peak(gy, GRID, GRID / 10, out);
    *x = gx, *y = out, *n = GRID;
}

static status add_time(report *p, const json_t *bench, double k, bool smooth, size_t at) {
    chart_series series[MODES];
    const char **names = arena_array(&p->memory, const char *, MODES);
    size_t n_series = 0;
    for (int m = 0; m < MODES; m++) {
        double *x, *y;
        size_t n;
        if (!read_line(p, find_cell(bench, m, k), &x, &y, &n)) continue;
        if (smooth) smooth_line(p, &x, &y, &n);
        names[m] = mode_names[m];
        series[n_series++] = (chart_series){.color = m, .name = modes[m], .x = x, .y = y, .n = n};
    }
    if (n_series == 0) return OK;
    chart_panel panel = {
        .title = "", .series = series, .n_series = n_series, .kind = smooth ? CHART_LINES : CHART_STEPS, .x_unit = "s"};
    chart c = {.title =
                   arena_format(&p->memory, "RLOO, k = %.0f: memory over a step, %s", k, smooth ? "smoothed" : "exact"),
               .names = names,
               .n_names = MODES,
               .panels = &panel,
               .n_panels = 1,
               .width = FIGURE_WIDTH};
    return report_add_chart(p, "bench",
                            arena_format(&p->memory, "rloo %s k %.0f %zu", smooth ? "smoothed" : "time", k, at), &c);
}

status figures_bench(report *p) {
    for (size_t i = 0; i < p->n_benches; i++) {
        double ks[KS_MOST];
        size_t n = find_ks(p->benches[i], ks);
        TRY(add_peaks(p, p->benches[i], ks, n, i + 1));
        for (size_t k = 0; k < n; k++) {
            TRY(add_time(p, p->benches[i], ks[k], false, i + 1));
            TRY(add_time(p, p->benches[i], ks[k], true, i + 1));
        }
    }
    return OK;
}

/* The largest k at which both ran is what most people ask about. */
void bench_words(report *p) {
    for (size_t i = 0; i < p->n_benches; i++) {
        double ks[KS_MOST];
        size_t n = find_ks(p->benches[i], ks);
        for (size_t k = n; k-- > 0;) {
            const json_t *base = find_cell(p->benches[i], 0, ks[k]), *ours = find_cell(p->benches[i], 2, ks[k]);
            double x = cell_bytes(base), y = cell_bytes(ours);
            if (!base || !ours || !(x > 0) || !(y > 0)) continue;
            double slow = number(ours, "step_seconds") / number(base, "step_seconds");
            report_say(
                p,
                "RLOO with k = %.0f completions: ours peaks at %s, the usual implementation at %s%s: %.0f %% less%s.",
                ks[k], bytes_text(&p->memory, y), bytes_text(&p->memory, x),
                json_is_false(json_object_get(base, "fits")) ? ", which does not fit" : "", 100 * (1 - y / x),
                isfinite(slow) ? arena_format(&p->memory, "; its step takes %.2f times as long", slow) : "");
            break;
        }
    }
}

void bench_html(const report *p, strbuf *b) {
    static const char *const titles[] = {"way", "k", "planned", "measured", "fits", "step, s", "gradient norm"};
    for (size_t i = 0; i < p->n_benches; i++) {
        const json_t *cells = json_object_get(p->benches[i], "cells"), *cell, *line;
        const json_t *explanation = json_object_get(p->benches[i], "explanation");
        size_t k;
        strbuf_add(b, "<h3>");
        html_text(b, p->bench_paths[i]);
        strbuf_add(b, "</h3>\n");
        json_array_foreach(explanation, k, line) {
            strbuf_add(b, "<p>");
            html_text(b, json_string_value(line) ? json_string_value(line) : "");
            strbuf_add(b, "</p>\n");
        }
        html_table_begin(b, titles, ARRAY_LENGTH(titles));
        json_array_foreach(cells, k, cell) {
            int m = mode_of(cell);
            strbuf_add(b, "<tr>");
            html_cell(b, m < 0 ? "?" : mode_names[m], false);
            html_cell_number(b, number(cell, "k"));
            html_cell_bytes(b, number(cell, "planned"));
            html_cell_bytes(b, number(cell, "peak"));
            html_cell(b, json_is_false(json_object_get(cell, "fits")) ? "no" : "yes", false);
            html_cell_number(b, number(cell, "step_seconds"));
            html_cell_number(b, number(cell, "grad_norm"));
            strbuf_add(b, "</tr>\n");
        }
        strbuf_add(b, "</table></div>\n");
    }
}
