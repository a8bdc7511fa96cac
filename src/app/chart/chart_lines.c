/* chart_lines.c - what a panel shows over an axis: steps, lines, stacked areas, lanes.
 *
 * Memory holds until the next op changes it, so it is drawn as steps: a line from point to point would show bytes that were never
 * there. The paths lie in an inner <svg> of whole numbers that the viewer stretches. */
#include "chart/chart_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANE = 26, LANE_BAR = 16 };

const char *plot_series_name(const chart_plot *p, const chart_series *s) {
    if (s->name) return s->name;
    const char *name = (size_t)s->color < p->chart->n_names ? p->chart->names[s->color] : NULL;
    return name ? name : "";
}

static void add_numbers(strbuf *b, const char *key, const double *list, size_t n) {
    strbuf_printf(b, " %s=\"", key);
    for (size_t i = 0; i < n; i++) {
        if (i) strbuf_add(b, " ");
        svg_add_number(b, list[i]);
    }
    strbuf_add(b, "\"");
}

void plot_add_data(strbuf *b, const chart_plot *p, const chart_series *s, const double *x, const double *y, size_t n) {
    strbuf_add(b, " data-name=\"");
    svg_add_escaped(b, plot_series_name(p, s), CHART_TEXT_MOST);
    strbuf_add(b, "\"");
    add_numbers(b, "data-x", x, n);
    add_numbers(b, "data-y", y, n);
}

static int fine_x(const chart_plot *p, double v) {
    return (int)lround(scale_part(&p->across, v) * p->width * CHART_FINE);
}
static int fine_y(const chart_plot *p, double v) {
    return (int)lround((1 - scale_part(&p->up, v)) * p->height * CHART_FINE);
}

/* The path of a step function; returns where it is at its end. */
static void add_steps(strbuf *b, const chart_plot *p, const double *x, const double *y, size_t n, double end) {
    int last_x = 0, last_y = -1;
    for (size_t i = 0; i < n; i++) {
        int px = fine_x(p, x[i]), py = fine_y(p, y[i]);
        if (i == 0) strbuf_printf(b, "M%d %d", px, py);
        else if (py != last_y) strbuf_printf(b, "H%dV%d", px, py);
        last_x = px, last_y = py;
    }
    strbuf_printf(b, "H%d", end > 0 ? fine_x(p, end) : last_x);
}

static void add_points(strbuf *b, const chart_plot *p, const double *x, const double *y, size_t n) {
    int last_x = -1, last_y = -1;
    char next = 'M';
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(y[i])) {
            next = 'M'; /* a hole */
            continue;
        }
        int px = fine_x(p, x[i]), py = fine_y(p, y[i]);
        if (px == last_x && py == last_y && next == 'L') continue;
        strbuf_printf(b, "%c%d %d", next, px, py);
        if (next == 'M' && n == 1) strbuf_add(b, "h1"); /* a point alone is seen by its round ends */
        next = 'L', last_x = px, last_y = py;
    }
}

static void add_line(strbuf *b, const chart_plot *p, const chart_panel *c, const chart_series *s) {
    if (s->n == 0) return;
    strbuf_printf(b, "<path class=\"l%d%s\" fill=\"none\" stroke-width=\"%d\"%s d=\"", s->color,
                  s->faint ? " faint" : "", (s->faint ? 1 : 2) * CHART_FINE,
                  s->dashed ? " stroke-dasharray=\"60 40\"" : "");
    if (c->kind == CHART_LINES) add_points(b, p, s->x, s->y, s->n);
    else add_steps(b, p, s->x, s->y, s->n, c->x_end);
    strbuf_add(b, "\"");
    plot_add_data(b, p, s, s->x, s->y, s->n);
    strbuf_add(b, "/>\n");
}

/* Each area reaches down to zero and is drawn over the one above it, so it costs one edge. */
static void add_areas(strbuf *b, const chart_plot *p, const chart_panel *c) {
    size_t n = c->n_series ? c->series[0].n : 0;
    double *sum = mem_alloc(MAX(n, (size_t)1) * sizeof *sum);
    for (size_t i = c->n_series; n > 0 && i-- > 0;) {
        const chart_series *s = &c->series[i];
        for (size_t k = 0; k < n; k++) {
            sum[k] = 0;
            for (size_t j = 0; j <= i; j++) sum[k] += c->series[j].y[k];
        }
        strbuf_printf(b, "<path class=\"f%d\" d=\"", s->color);
        add_steps(b, p, s->x, sum, n, c->x_end);
        strbuf_printf(b, "V%dH%dz\"", p->height * CHART_FINE, fine_x(p, s->x[0]));
        plot_add_data(b, p, s, s->x, s->y, n);
        strbuf_add(b, "/>\n");
    }
    free(sum);
}

/* Above the highest point of a line, the first of several. */
static void add_line_label(strbuf *b, const chart_plot *p, const chart_series *s) {
    size_t highest = 0;
    if (!s->labels || !s->labels[0] || s->n == 0) return;
    for (size_t i = 1; i < s->n; i++)
        if (s->y[i] > s->y[highest]) highest = i;
    double end = highest + 1 < s->n ? s->x[highest + 1] : s->x[highest];
    plot_add_text(b, plot_across_of(p, (s->x[highest] + end) / 2), plot_height_of(p, s->y[highest]) - 6, "middle",
                  CHART_SOFT, s->labels[0]);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------------- */

int plot_lanes_height(const chart_panel *c) { return (int)c->n_series * LANE + 4; }

static void add_lanes(strbuf *b, const chart_plot *p, const chart_panel *c) {
    for (size_t i = 0; i < c->n_series; i++) {
        const chart_series *s = &c->series[i];
        int y = p->y + (int)i * LANE + (LANE - LANE_BAR) / 2;
        plot_add_text(b, p->x - 8, y + 12, "end", CHART_SOFT, plot_series_name(p, s));
        plot_add_rule(b, p->x, y + LANE_BAR, p->x + p->width, y + LANE_BAR);
        strbuf_printf(b,
                      "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d 1\" "
                      "preserveAspectRatio=\"none\"><path class=\"f%d\" d=\"",
                      p->x, y, p->width, LANE_BAR, p->width * CHART_FINE, s->color);
        for (size_t k = 0; k < s->n; k++) {
            int begin = fine_x(p, s->x[k]), end = fine_x(p, s->y[k]);
            strbuf_printf(b, "M%d 0h%dv1h-%dz", begin, MAX(end - begin, 1), MAX(end - begin, 1));
        }
        strbuf_add(b, "\"");
        plot_add_data(b, p, s, s->x, s->y, s->n);
        strbuf_add(b, "/></svg>\n");
    }
}

/* ---- all kinds --------------------------------------------------------------------------------------------------------- */

static void add_limit(strbuf *b, const chart_plot *p, const chart_panel *c) {
    if (!(c->limit > 0)) return;
    int y = plot_height_of(p, c->limit);
    strbuf_printf(b, "<path class=\"limit\" d=\"M%d %dh%d\" data-y=\"", p->x, y, p->width);
    svg_add_number(b, c->limit);
    strbuf_add(b, "\"/>\n");
    if (c->limit_name) plot_add_text(b, p->x + p->width, y - 4, "end", CHART_SOFT, c->limit_name);
}

/* The text stands beside the mark where there is room for it, else above it. */
static void add_mark(strbuf *b, const chart_plot *p, const chart_mark *m) {
    enum { CHARACTER = 7 }; /* pixels, of this size */
    static const char bold[] = "class=\"ink\" font-size=\"12\" font-weight=\"bold\"";
    if (!m->label) return;
    int x = plot_across_of(p, m->x), y = plot_height_of(p, m->y), length = CHARACTER * (int)strlen(m->label);
    int left = p->x - 40, right = p->x + p->width;
    strbuf_printf(b, "<path class=\"ink mark\" d=\"M%d %dl-5 -9h10z\" data-x=\"", x, y - 1);
    svg_add_number(b, m->x);
    strbuf_add(b, "\" data-y=\"");
    svg_add_number(b, m->y);
    strbuf_add(b, "\"/>\n");
    if (x + 9 + length <= right) plot_add_text(b, x + 9, y - 3, "start", bold, m->label);
    else if (x - 9 - length >= left) plot_add_text(b, x - 9, y - 3, "end", bold, m->label);
    else plot_add_text(b, MAX(right - length / 2, left), y - 13, "middle", bold, m->label);
}

void plot_add_lines(strbuf *b, const chart_plot *p, const chart_panel *c) {
    plot_add_across(b, p, c);
    if (c->kind == CHART_LANES) {
        add_lanes(b, p, c);
        return;
    }
    plot_add_up(b, p);
    strbuf_printf(
        b, "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">\n",
        p->x, p->y, p->width, p->height, p->width * CHART_FINE, p->height * CHART_FINE);
    if (c->kind == CHART_AREAS) add_areas(b, p, c);
    for (int faint = 1; faint >= 0 && c->kind != CHART_AREAS; faint--)
        for (size_t i = 0; i < c->n_series; i++)
            if (c->series[i].faint == faint) add_line(b, p, c, &c->series[i]);
    strbuf_add(b, "</svg>\n");
    add_limit(b, p, c);
    for (size_t i = 0; i < c->n_series; i++) add_line_label(b, p, &c->series[i]);
    add_mark(b, p, &c->mark);
    /* Where a page reads which number lies below the pointer. */
    strbuf_printf(b, "<rect class=\"hit\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" data-low=\"", p->x, p->y,
                  p->width, p->height);
    svg_add_number(b, p->across.low);
    strbuf_add(b, "\" data-high=\"");
    svg_add_number(b, p->across.high);
    strbuf_printf(b, "\" data-kind=\"%s\" data-unit=\"%s\"/>\n", c->kind == CHART_LINES ? "lines" : "steps",
                  c->numbers ? "" : "bytes");
}
