/* chart.c - bars and lines of bytes as one SVG file.
 *
 * Panels stand side by side and have their own scale. A line is a step function: memory holds until the next op changes it, and a
 * line drawn from point to point would show bytes that were never there. Colours come from classes of a style sheet inside the file,
 * which a viewer in dark mode reads differently. */
#include "format/format.h"

#include <math.h>
#include <string.h>

enum {
    WIDTH = 980,
    MARGIN = 24,
    AXIS = 72, /* left of a plot: its numbers */
    TITLE = 34,
    LINE = 18,
    PANEL_TITLE = 30,
    PLOT_HEIGHT = 240,
    BELOW = 34, /* names of groups, or numbers */
    GAP = 26,
    FINE = 10, /* units of a plot's inside per pixel */
    TEXT_MOST = 200,
    TICKS = 5,
};

/* Light and dark of each colour; neighbours differ in lightness too. */
static const char *const colors[CHART_COLORS][2] = {
    {"#b5374a", "#f0808f"}, {"#c98a1b", "#e6b84f"}, {"#2f64ad", "#7ab0f5"},
    {"#2a8f7f", "#52c7b4"}, {"#7452c4", "#b19af0"}, {"#5f6670", "#a4abb5"},
};

typedef struct plot {
    int x, y, width, height; /* inside, in pixels of the picture */
    double x_top, y_top;
} plot;

static void add_style(strbuf *b) {
    for (int dark = 0; dark < 2; dark++) {
        strbuf_printf(b, dark ? "@media (prefers-color-scheme: dark) {\n" : "<style>\n");
        strbuf_printf(b, ".page{fill:%s}.ink{fill:%s}.soft{fill:%s}.grid{stroke:%s}\n", dark ? "#15181c" : "#ffffff",
                      dark ? "#e6e8eb" : "#1f2328", dark ? "#a4abb5" : "#5f6670", dark ? "#333940" : "#dfe2e6");
        for (int i = 0; i < CHART_COLORS; i++)
            strbuf_printf(b, ".f%d{fill:%s}.l%d{stroke:%s}\n", i, colors[i][dark], i, colors[i][dark]);
    }
    strbuf_add(b, "}\n</style>\n");
}

static void add_text(strbuf *b, int x, int y, const char *anchor, const char *style, const char *text) {
    strbuf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\" %s>", x, y, anchor, style);
    svg_add_escaped(b, text, TEXT_MOST);
    strbuf_add(b, "</text>\n");
}

#define INK "class=\"ink\""
#define SOFT "class=\"soft\" font-size=\"12\""

static int at_height(const plot *p, double bytes) {
    return p->y + p->height - (int)lround(bytes / p->y_top * p->height);
}

/* ---- axes ------------------------------------------------------------------------------------------------------- */

static void add_rule(strbuf *b, int x, int y, int x_end, int y_end) {
    strbuf_printf(b, "<path class=\"grid\" d=\"M%d %dL%d %d\"/>\n", x, y, x_end, y_end);
}

static void add_y_axis(strbuf *b, const plot *p) {
    svg_axis a = svg_axis_make(p->y_top, TICKS, true);
    for (int i = 0; i < a.n_ticks; i++) {
        char label[48];
        int y = at_height(p, i * a.step * a.unit);
        add_rule(b, p->x, y, p->x + p->width, y);
        add_text(b, p->x - 8, y + 4, "end", SOFT, svg_axis_label(&a, i, label));
    }
}

static void add_x_axis(strbuf *b, const plot *p, const char *unit) {
    svg_axis a = svg_axis_make(p->x_top, TICKS, false);
    a.name = unit ? unit : "";
    for (int i = 0; i < a.n_ticks; i++) {
        char label[48];
        int x = p->x + (int)lround(i * a.step / p->x_top * p->width);
        add_rule(b, x, p->y + p->height, x, p->y + p->height + 4);
        add_text(b, x, p->y + p->height + 18, "middle", SOFT, svg_axis_label(&a, i, label));
    }
}

/* ---- bars ------------------------------------------------------------------------------------------------------- */

static void add_bar(strbuf *b, const plot *p, const chart_series *s, size_t group, int x, int width) {
    if (isnan(s->y[group])) return;
    int top = at_height(p, s->y[group]), height = MAX(p->y + p->height - top, 1);
    bool hollow = s->hollow && s->hollow[group];
    strbuf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"%s%d\"%s/>\n", x,
                  p->y + p->height - height, width, height, hollow ? "l" : "f", s->color,
                  hollow ? " fill=\"none\" stroke-width=\"2\" stroke-dasharray=\"5 4\"" : "");
    if (s->labels && s->labels[group]) add_text(b, x + width / 2, top - 6, "middle", SOFT, s->labels[group]);
}

static void add_bars(strbuf *b, const plot *p, const chart_panel *c) {
    size_t n_groups = c->n_series ? c->series[0].n : 0;
    for (size_t g = 0; g < n_groups; g++) {
        int left = p->x + (int)(g * (size_t)p->width / n_groups), all = p->width / (int)n_groups;
        int room = all * 9 / 10, each = room / (int)c->n_series;
        add_text(b, left + all / 2, p->y + p->height + 18, "middle", INK, c->groups[g]);
        for (size_t i = 0; i < c->n_series; i++)
            add_bar(b, p, &c->series[i], g, left + (all - room) / 2 + (int)i * each + each / 10, each * 8 / 10);
    }
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

static void add_line(strbuf *b, const plot *p, const chart_series *s) {
    int height = p->height * FINE, width = p->width * FINE, last_x = -1, last_y = -1;
    if (s->n == 0) return;
    strbuf_printf(b, "<path class=\"l%d\" fill=\"none\" stroke-width=\"%d\" d=\"", s->color, 2 * FINE);
    for (size_t i = 0; i < s->n; i++) {
        int x = (int)lround(s->x[i] / p->x_top * width), y = height - (int)lround(s->y[i] / p->y_top * height);
        if (i == 0) strbuf_printf(b, "M%d %d", x, y);
        else if (y != last_y) strbuf_printf(b, "H%dV%d", x, y);
        last_x = x, last_y = y;
    }
    strbuf_printf(b, "H%d\"/>\n", last_x);
}

/* Above the highest point of a line, the first of several. */
static void add_line_label(strbuf *b, const plot *p, const chart_series *s) {
    size_t highest = 0;
    if (!s->labels || !s->labels[0] || s->n == 0) return;
    for (size_t i = 1; i < s->n; i++)
        if (s->y[i] > s->y[highest]) highest = i;
    double end = highest + 1 < s->n ? s->x[highest + 1] : s->x[highest];
    int x = p->x + (int)lround((s->x[highest] + end) / 2 / p->x_top * p->width);
    add_text(b, x, at_height(p, s->y[highest]) - 6, "middle", SOFT, s->labels[0]);
}

static void add_lines(strbuf *b, const plot *p, const chart_panel *c) {
    add_x_axis(b, p, c->x_unit);
    strbuf_printf(
        b, "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">\n",
        p->x, p->y, p->width, p->height, p->width * FINE, p->height * FINE);
    for (size_t i = 0; i < c->n_series; i++) add_line(b, p, &c->series[i]);
    strbuf_add(b, "</svg>\n");
    for (size_t i = 0; i < c->n_series; i++) add_line_label(b, p, &c->series[i]);
}

/* ---- panels ----------------------------------------------------------------------------------------------------- */

static void find_tops(const chart_panel *c, plot *p) {
    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; k < c->series[i].n; k++) {
            const chart_series *s = &c->series[i];
            if (s->y[k] > p->y_top) p->y_top = s->y[k];
            if (s->x && s->x[k] > p->x_top) p->x_top = s->x[k];
        }
    p->y_top = p->y_top > 0 ? 1.12 * p->y_top : 1; /* room for the labels above bars */
    if (!(p->x_top > 0)) p->x_top = 1;
}

static void add_panel(strbuf *b, const chart_panel *c, int x, int y, int width) {
    plot p = {.x = x + AXIS, .y = y + PANEL_TITLE, .width = width - AXIS, .height = PLOT_HEIGHT};
    find_tops(c, &p);
    add_text(b, p.x, y + 16, "start", "class=\"ink\" font-weight=\"bold\"", c->title);
    add_y_axis(b, &p);
    if (c->groups) add_bars(b, &p, c);
    else add_lines(b, &p, c);
}

static void add_legend(strbuf *b, const chart *c, int y) {
    int x = MARGIN;
    for (size_t i = 0; i < c->n_names; i++) {
        enum { CHARACTER = 7 }; /* pixels, at most, of this size */
        if (!c->names[i]) continue;
        strbuf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" class=\"f%zu\"/>\n", x, y - 12, i);
        add_text(b, x + 20, y, "start", INK, c->names[i]);
        x += 20 + CHARACTER * (int)strlen(c->names[i]) + 28;
    }
}

void chart_draw(const chart *c, strbuf *b) {
    int notes = TITLE + (int)c->n_notes * LINE, legend = notes + LINE + 8, first = legend + 18;
    int columns = MAX(c->columns, 1), panel_height = PANEL_TITLE + PLOT_HEIGHT + BELOW + GAP;
    int n_rows = ((int)c->n_panels + columns - 1) / columns, height = first + n_rows * panel_height;
    int width = (WIDTH - 2 * MARGIN - (columns - 1) * GAP) / columns;
    ASSERT(c->n_names <= CHART_COLORS);
    strbuf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"13\">\n<title>",
                  WIDTH, height, WIDTH, height);
    svg_add_escaped(b, c->title, TEXT_MOST);
    strbuf_add(b, "</title>\n");
    add_style(b);
    strbuf_printf(b, "<rect width=\"%d\" height=\"%d\" class=\"page\"/>\n", WIDTH, height);
    add_text(b, MARGIN, TITLE, "start", "class=\"ink\" font-size=\"18\" font-weight=\"bold\"", c->title);
    for (size_t i = 0; i < c->n_notes; i++)
        add_text(b, MARGIN, TITLE + (int)(i + 1) * LINE, "start", SOFT, c->notes[i]);
    add_legend(b, c, legend);
    for (size_t i = 0; i < c->n_panels; i++)
        add_panel(b, &c->panels[i], MARGIN + ((int)i % columns) * (width + GAP),
                  first + ((int)i / columns) * panel_height, width);
    strbuf_add(b, "</svg>\n");
}
