/* chart_bars.c - bars that stand beside each other in groups, or lie below each other in rows. */
#include "chart/chart_parts.h"

#include <math.h>

enum { ROW = 50, ROW_TEXT = 20, ROW_BAR = 18 };

static void add_group_data(strbuf *b, const chart_plot *p, const chart_panel *c, const chart_series *s, size_t group) {
    strbuf_add(b, " data-name=\"");
    svg_add_escaped(b, plot_series_name(p, s), CHART_TEXT_MOST);
    strbuf_add(b, "\" data-group=\"");
    svg_add_escaped(b, c->groups[group], CHART_TEXT_MOST);
    strbuf_add(b, "\" data-y=\"");
    svg_add_number(b, s->y[group]);
    strbuf_add(b, "\"");
}

static void add_bar(strbuf *b, const chart_plot *p, const chart_panel *c, const chart_series *s, size_t group, int x,
                    int width) {
    if (isnan(s->y[group])) return;
    int top = plot_height_of(p, s->y[group]), height = MAX(p->y + p->height - top, 1);
    bool hollow = s->hollow && s->hollow[group];
    strbuf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"%s%d\"%s", x,
                  p->y + p->height - height, width, height, hollow ? "l" : "f", s->color,
                  hollow ? " fill=\"none\" stroke-width=\"2\" stroke-dasharray=\"5 4\"" : "");
    add_group_data(b, p, c, s, group);
    strbuf_add(b, "/>\n");
    if (s->labels && s->labels[group]) plot_add_text(b, x + width / 2, top - 6, "middle", CHART_SOFT, s->labels[group]);
}

void plot_add_bars(strbuf *b, const chart_plot *p, const chart_panel *c) {
    size_t n_groups = c->n_series ? c->series[0].n : 0;
    plot_add_up(b, p);
    for (size_t g = 0; g < n_groups; g++) {
        int left = p->x + (int)(g * (size_t)p->width / n_groups), all = p->width / (int)n_groups;
        int room = all * 9 / 10, each = room / (int)c->n_series;
        plot_add_text(b, left + all / 2, p->y + p->height + 18, "middle", CHART_INK, c->groups[g]);
        for (size_t i = 0; i < c->n_series; i++)
            add_bar(b, p, c, &c->series[i], g, left + (all - room) / 2 + (int)i * each + each / 10, each * 8 / 10);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

int plot_rows_height(const chart_panel *c) { return (c->n_series ? (int)c->series[0].n : 0) * ROW + 6; }

static void add_row(strbuf *b, const chart_plot *p, const chart_panel *c, size_t g, int y) {
    double sum = 0;
    plot_add_text(b, p->x, y + ROW_TEXT - 6, "start", CHART_INK, c->groups[g]);
    if (c->group_labels && c->group_labels[g])
        plot_add_text(b, p->x + p->width, y + ROW_TEXT - 6, "end", CHART_INK, c->group_labels[g]);
    for (size_t i = 0; i < c->n_series; i++) {
        const chart_series *s = &c->series[i];
        if (!(s->y[g] >= 0)) continue;
        int begin = plot_across_of(p, sum), end = plot_across_of(p, sum += s->y[g]);
        bool hollow = s->hollow && s->hollow[g];
        strbuf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"%s%d\"%s", begin, y + ROW_TEXT,
                      end - begin, ROW_BAR, hollow ? "l" : "f", s->color,
                      hollow ? " fill=\"none\" stroke-width=\"2\" stroke-dasharray=\"5 4\"" : "");
        add_group_data(b, p, c, s, g);
        strbuf_add(b, "/>\n");
    }
}

void plot_add_rows(strbuf *b, chart_plot *p, const chart_panel *c) {
    size_t n_groups = c->n_series ? c->series[0].n : 0;
    chart_tick ticks[CHART_SCALE_TICKS];
    size_t n = scale_ticks(&p->across, ticks);
    for (size_t i = 0; i < n; i++) {
        int x = plot_across_of(p, ticks[i].at);
        plot_add_rule(b, x, p->y, x, p->y + p->height);
    }
    plot_add_across(b, p, c);
    for (size_t g = 0; g < n_groups; g++) add_row(b, p, c, g, p->y + (int)g * ROW);
    if (c->limit > 0) {
        int x = plot_across_of(p, c->limit);
        strbuf_printf(b, "<path class=\"limit\" d=\"M%d %dV%d\"/>\n", x, p->y, p->y + p->height);
    }
}
