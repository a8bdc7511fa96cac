#pragma once
/* chart.h - bars, lines, areas and lanes, each chart one SVG picture; and what other pictures share with them (svg.c).
 *
 * Light or dark as the viewer is; nothing from elsewhere: no font, no script, no link. All text is escaped. Every
 * number that is drawn also stands in its element, as data-x and data-y, with the series in data-name.
 *
 *     chart_series s = {.color = 0, .y = bytes, .n = 3};
 *     chart_panel p = {.title = "peak", .series = &s, .n_series = 1, .groups = (const char *[]){"k = 2", "k = 4", "k = 8"}};
 *     chart c = {.title = "Memory", .names = (const char *[]){"ours"}, .n_names = 1, .panels = &p, .n_panels = 1, .columns = 1};
 *     chart_draw(&c, &svg); */
#include "base/base.h"

enum { CHART_COLORS = 12, CHART_ROLES = 9, CHART_COLORS_ALL = CHART_COLORS + CHART_ROLES };
/* Roles of memory have colours of their own, the same in every picture; a series that is no role has one of the first
 * CHART_COLORS. */
int chart_role_color(const char *role);        /* of params, grads, states ...; of what is none, that of gaps */
const char *chart_color(int color, bool dark); /* "#3b6fb6" */
/* How a panel without groups is drawn. */
typedef enum chart_kind {
    CHART_STEPS, /* y holds from its x to the next; both axes begin at 0 */
    CHART_LINES, /* from point to point; axes as the numbers need them */
    CHART_AREAS, /* as CHART_STEPS, each series on top of those before it */
    CHART_LANES, /* a lane per series: busy from x to y */
} chart_kind;
typedef struct chart_series {
    int color;           /* into chart.names: a thing has one colour in all panels */
    const char *name;    /* data-name; NULL: that of the colour */
    const double *x, *y; /* by kind; bars: x is NULL, y of each group, NAN: no bar */
    size_t n;
    const char *const
        *labels; /* bars: text above each, NULL where there is none; lines: one, above the highest point; or NULL */
    const bool *hollow; /* bars: drawn as an outline; or NULL */
    bool faint;         /* lines: thin and pale, behind the others: the raw numbers of a smoothed line */
    bool dashed;
} chart_series;
typedef struct chart_mark { /* a triangle above a point, with a text */
    double x, y;
    const char *label; /* NULL: no mark */
} chart_mark;
typedef struct chart_panel {
    const char *title; /* "": none, and no room for it */
    const chart_series *series;
    size_t n_series;
    const char *const *groups; /* bars: names of the groups; NULL: by kind */
    bool rows;                 /* bars lie one below the other, series end to end: for long names and narrow pages */
    const char *const *group_labels; /* rows: text behind each bar, NULL where there is none; or NULL */
    chart_kind kind;
    bool numbers;       /* y is a number, else bytes */
    bool log_y;         /* CHART_LINES with y above 0 */
    const char *x_unit; /* "s" */
    const char *x_name; /* below the axis; or NULL */
    bool x_whole;       /* x counts something: no ticks between whole numbers */
    double x_end;       /* where the last y ends; 0: at its own x */
    double limit;       /* a line across at this y; 0: none */
    const char *limit_name;
    chart_mark mark;
} chart_panel;
typedef struct chart {
    const char *title;
    const char *const *notes; /* lines of text below the title */
    size_t n_notes;
    const char *const *names; /* legend, by colour, at most CHART_COLORS_ALL; NULL: that colour is not used */
    size_t n_names;
    const chart_panel *panels;
    size_t n_panels;
    int columns;   /* panels side by side */
    int width;     /* pixels; 0: 980 */
    bool embedded; /* part of a page that has chart_style: without a background of its own */
} chart;
void chart_draw(const chart *c, strbuf *out);
void chart_style(strbuf *out); /* the style sheet of all charts, which every file of its own carries */

/* ---- SVG (svg.c): what pictures share --------------------------------------------------------------------------- */

/* At most `most` characters of untrusted text, escaped, without those that XML forbids. */
void svg_add_escaped(strbuf *b, const char *text, size_t most);
/* Ticks at steps of 1, 2 or 5 times a power of ten; of bytes in the largest unit below the top. */
typedef struct svg_axis {
    double unit, step; /* a tick stands at i * step * unit */
    const char *name;  /* of the unit; "" */
    int n_ticks;       /* with the one at 0 */
} svg_axis;
svg_axis svg_axis_make(double top, int most_ticks, bool of_bytes);
const char *svg_axis_label(const svg_axis *a, int tick, char out[48]);

/* A number as any program reads it back to the same bits: a point in every locale, no more digits than needed. */
void svg_add_number(strbuf *b, double x);
