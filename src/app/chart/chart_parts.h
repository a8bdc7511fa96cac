#pragma once
/* chart_parts.h - private to format: the pieces that a chart is drawn from. */
#include "chart/chart.h"

enum {
    CHART_FINE = 10, /* units of a plot's inside per pixel */
    CHART_TEXT_MOST = 200,
    CHART_TICKS = 5,
};
#define CHART_INK "class=\"ink\""
#define CHART_SOFT "class=\"soft\" font-size=\"12\""

typedef struct chart_scale {
    double low, high; /* low < high */
    bool log;
    bool bytes;
    bool whole;       /* ticks at whole numbers alone */
    const char *unit; /* behind each number */
} chart_scale;
double scale_part(const chart_scale *s, double v); /* 0 at low, 1 at high; not outside of that */
/* Ticks at round numbers; at most CHART_SCALE_TICKS. */
enum { CHART_SCALE_TICKS = 12 };
typedef struct chart_tick {
    double at;
    char label[48];
} chart_tick;
size_t scale_ticks(const chart_scale *s, chart_tick out[CHART_SCALE_TICKS]);

typedef struct chart_plot {
    int x, y, width, height; /* inside, in pixels of the picture */
    chart_scale across, up;
    const chart *chart;
} chart_plot;
void plot_scales(const chart_panel *c, chart_plot *p);
void plot_add_text(strbuf *b, int x, int y, const char *anchor, const char *style, const char *text);
void plot_add_rule(strbuf *b, int x, int y, int x_end, int y_end);
int plot_height_of(const chart_plot *p, double v); /* pixels of the picture */
int plot_across_of(const chart_plot *p, double v);
void plot_add_across(strbuf *b, const chart_plot *p, const chart_panel *c); /* the axis below */
void plot_add_up(strbuf *b, const chart_plot *p);                           /* the axis at the left */
/* data-name and the numbers as attributes, each with a blank before it. */
void plot_add_data(strbuf *b, const chart_plot *p, const chart_series *s, const double *x, const double *y, size_t n);
const char *plot_series_name(const chart_plot *p, const chart_series *s);

void plot_add_bars(strbuf *b, const chart_plot *p, const chart_panel *c); /* chart_bars.c */
void plot_add_rows(strbuf *b, chart_plot *p, const chart_panel *c);
int plot_rows_height(const chart_panel *c);
void plot_add_lines(strbuf *b, const chart_plot *p,
                    const chart_panel *c); /* chart_lines.c: every kind without groups */
int plot_lanes_height(const chart_panel *c);
