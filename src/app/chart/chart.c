/* chart.c - the frame of a chart: title, notes, legend, panels side by side with a scale of their own each.
 *
 * Colours come from classes of a style sheet, which a viewer in dark mode reads differently. A file of its own carries that sheet;
 * a page that holds many charts has it once. */
#include "chart/chart_parts.h"

#include <math.h>
#include <string.h>

enum {
    WIDTH = 980,
    NARROW = 700, /* below it: smaller title, less room */
    MARGIN = 24,
    MARGIN_NARROW = 10,
    AXIS = 72, /* left of a plot: its numbers */
    AXIS_NARROW = 62,
    TITLE = 34,
    LINE = 18,
    PANEL_TITLE = 30,
    PLOT_HEIGHT = 240,
    PLOT_HEIGHT_NARROW = 200,
    BELOW = 34, /* names of groups, or numbers */
    BELOW_NARROW = 24,
    GAP = 26,
    CHARACTER = 7,        /* pixels of a character, at most, of the text's size */
    TITLE_CHARACTER = 12, /* of the title's */
    TITLE_CHARACTER_NARROW = 10,
    TITLE_LINES = 3,
    LEGEND_MOST = 44,
};

/* Light and dark of each colour; neighbours differ in lightness too. Behind CHART_COLORS stand the roles of memory. */
static const char *const colors[CHART_COLORS_ALL][2] = {
    {"#c2185b", "#ff7eb0"}, {"#006d77", "#4fc3cb"}, {"#8d5a2b", "#d3a57e"}, {"#1a237e", "#8c9eff"},
    {"#7cb342", "#aed581"}, {"#4a148c", "#ce93ff"}, {"#ff7043", "#ffab91"}, {"#37474f", "#b0bec5"},
    {"#00a5cf", "#6ff0ff"}, {"#9e9d24", "#dce775"}, {"#6d1b1b", "#ff8a80"}, {"#00963f", "#69f0ae"},
    {"#3b6fb6", "#7ab0f5"}, {"#f0a04b", "#f2b66f"}, {"#8fc38a", "#a5cf9f"}, {"#6b7280", "#9aa1ad"},
    {"#2a9d9d", "#52c7c4"}, {"#b79a2f", "#cbb35a"}, {"#b5374a", "#e0707f"}, {"#7a5cc0", "#b19af0"},
    {"#3c4250", "#c9ced8"},
};

int chart_role_color(const char *role) {
    static const char *const roles[CHART_ROLES] = {"params", "grads",       "states", "inputs", "cache",
                                                   "comm",   "activations", "work",   "gaps"};
    for (int i = 0; i < CHART_ROLES; i++)
        if (strcmp(roles[i], role) == 0) return CHART_COLORS + i;
    return CHART_COLORS_ALL - 1;
}

const char *chart_color(int color, bool dark) { return colors[color][dark]; }

void chart_style(strbuf *b) {
    for (int dark = 0; dark < 2; dark++) {
        if (dark) strbuf_add(b, "@media (prefers-color-scheme: dark) {\n");
        strbuf_printf(b, ".page{fill:%s}.ink{fill:%s}.soft{fill:%s}.grid{stroke:%s}.limit{stroke:%s}\n",
                      dark ? "#15181c" : "#ffffff", dark ? "#e6e8eb" : "#1f2328", dark ? "#a4abb5" : "#5f6670",
                      dark ? "#333940" : "#dfe2e6", dark ? "#ff6b6b" : "#d00000");
        for (int i = 0; i < CHART_COLORS_ALL; i++)
            strbuf_printf(b, ".f%d{fill:%s}.l%d{stroke:%s}\n", i, colors[i][dark], i, colors[i][dark]);
    }
    strbuf_add(b,
               "}\n.faint{opacity:.35}.hit{fill:transparent}.limit{stroke-width:2;stroke-dasharray:7 4;fill:none}\n");
}

void plot_add_text(strbuf *b, int x, int y, const char *anchor, const char *style, const char *text) {
    strbuf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\" %s>", x, y, anchor, style);
    svg_add_escaped(b, text, CHART_TEXT_MOST);
    strbuf_add(b, "</text>\n");
}

void plot_add_rule(strbuf *b, int x, int y, int x_end, int y_end) {
    strbuf_printf(b, "<path class=\"grid\" d=\"M%d %dL%d %d\"/>\n", x, y, x_end, y_end);
}

/* ---- where things stand -------------------------------------------------------------------------------------------------- */

typedef struct frame {
    int width, margin, axis, plot_height;
    bool narrow;
} frame;

static frame frame_of(const chart *c) {
    int width = c->width > 0 ? c->width : WIDTH;
    bool narrow = width < NARROW;
    return (frame){width, narrow ? MARGIN_NARROW : MARGIN, narrow ? AXIS_NARROW : AXIS,
                   narrow ? PLOT_HEIGHT_NARROW : PLOT_HEIGHT, narrow};
}

static int panel_plot_height(const frame *f, const chart_panel *p) {
    if (p->groups && p->rows) return plot_rows_height(p);
    if (!p->groups && p->kind == CHART_LANES) return plot_lanes_height(p);
    return f->plot_height;
}

static int panel_height(const frame *f, const chart_panel *p) {
    return (*p->title ? PANEL_TITLE : 14) + panel_plot_height(f, p) + (f->narrow ? BELOW_NARROW : BELOW + GAP) +
           (p->x_name ? 16 : 0);
}

static int row_height(const frame *f, const chart *c, size_t row, int columns) {
    int height = 0;
    for (size_t i = row * (size_t)columns; i < MIN(c->n_panels, (row + 1) * (size_t)columns); i++)
        height = MAX(height, panel_height(f, &c->panels[i]));
    return height;
}

/* ---- parts --------------------------------------------------------------------------------------------------------------- */

static void add_panel(strbuf *b, const chart *all, const frame *f, const chart_panel *c, int x, int y, int width) {
    int axis = c->groups && c->rows ? 2 : f->axis, title = *c->title ? PANEL_TITLE : 14;
    int end = f->narrow && !(c->groups && c->rows) ? 14 : 0; /* the last number of the axis reaches out */
    chart_plot p = {
        .x = x + axis, .y = y + title, .width = width - axis - end, .height = panel_plot_height(f, c), .chart = all};
    plot_scales(c, &p);
    if (*c->title) plot_add_text(b, p.x, y + 16, "start", "class=\"ink\" font-weight=\"bold\"", c->title);
    if (c->groups && c->rows) plot_add_rows(b, &p, c);
    else if (c->groups) plot_add_bars(b, &p, c);
    else plot_add_lines(b, &p, c);
}

static size_t characters(const char *text, size_t most) {
    size_t n = 0;
    for (; *text && n < most; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Breaks into lines where the width ends. b NULL: only counts. Returns the height below the first line. */
static int add_legend(strbuf *b, const chart *c, const frame *f, int y) {
    int x = f->margin, first = y;
    for (size_t i = 0; i < c->n_names; i++) {
        if (!c->names[i]) continue;
        size_t most = f->narrow ? (size_t)LEGEND_MOST : (size_t)CHART_TEXT_MOST;
        int needed = 20 + CHARACTER * (int)characters(c->names[i], most + 3);
        if (x > f->margin && x + needed > f->width - f->margin) x = f->margin, y += LINE + 2;
        if (b) {
            strbuf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" class=\"f%zu\"/>\n", x, y - 12, i);
            strbuf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"start\" " CHART_INK ">", x + 20, y);
            svg_add_escaped(b, c->names[i], most);
            strbuf_add(b, "</text>\n");
        }
        x += needed + (f->narrow ? 14 : 28);
    }
    return y - first;
}

/* A title that is longer than the chart is wide is broken between words. b NULL: only counts. Returns the height below the first line. */
static int add_title(strbuf *b, const chart *c, const frame *f, int y) {
    size_t most = (size_t)((f->width - 2 * f->margin) / (f->narrow ? TITLE_CHARACTER_NARROW : TITLE_CHARACTER));
    int first = y;
    char line[4 * CHART_TEXT_MOST + 1];
    int n_lines = 0;
    for (const char *from = c->title; from;) {
        size_t n = 0, end = 0, shown = 0; /* bytes so far; up to the last blank that fits; characters */
        for (; from[n] && shown <= most && n < sizeof line - 4; n++) {
            if (from[n] == ' ' && n > 0) end = n;
            shown += ((unsigned char)from[n] & 0xc0) != 0x80;
        }
        if ((!from[n] && shown <= most) || end == 0 || ++n_lines == TITLE_LINES) end = strlen(from);
        snprintf(line, sizeof line, "%.*s", (int)MIN(end, sizeof line - 1), from);
        if (b)
            plot_add_text(b, f->margin, y, "start",
                          f->narrow ? "class=\"ink\" font-size=\"15\" font-weight=\"bold\""
                                    : "class=\"ink\" font-size=\"18\" font-weight=\"bold\"",
                          line);
        from = from[end] ? from + end + 1 : NULL;
        if (from) y += f->narrow ? LINE + 1 : LINE + 6;
    }
    return y - first;
}

static bool has_legend(const chart *c) {
    for (size_t i = 0; i < c->n_names; i++)
        if (c->names[i]) return true;
    return false;
}

void chart_draw(const chart *c, strbuf *b) {
    frame f = frame_of(c);
    int top = f.narrow ? 22 : TITLE, title = top + add_title(NULL, c, &f, top), notes = title + (int)c->n_notes * LINE;
    int legend = notes + LINE + (f.narrow ? 4 : 8);
    int first = has_legend(c) || !f.narrow ? legend + add_legend(NULL, c, &f, legend) + (f.narrow ? 6 : 18) : notes + 2;
    int columns = MAX(c->columns, 1), width = (f.width - 2 * f.margin - (columns - 1) * GAP) / columns, height = first;
    size_t n_rows = (c->n_panels + (size_t)columns - 1) / (size_t)columns;
    for (size_t row = 0; row < n_rows; row++) height += row_height(&f, c, row, columns);
    ASSERT(c->n_names <= CHART_COLORS_ALL);
    strbuf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n<title>",
                  f.width, height, f.width, height);
    svg_add_escaped(b, c->title, CHART_TEXT_MOST);
    strbuf_add(b, "</title>\n");
    if (!c->embedded) {
        strbuf_add(b, "<style>\n");
        chart_style(b);
        strbuf_printf(b, "</style>\n<rect width=\"%d\" height=\"%d\" class=\"page\"/>\n", f.width, height);
    }
    add_title(b, c, &f, top);
    for (size_t i = 0; i < c->n_notes; i++)
        plot_add_text(b, f.margin, title + (int)(i + 1) * LINE, "start", CHART_SOFT, c->notes[i]);
    add_legend(b, c, &f, legend);
    int y = first;
    for (size_t i = 0; i < c->n_panels; i++) {
        size_t column = i % (size_t)columns;
        if (i > 0 && column == 0) y += row_height(&f, c, i / (size_t)columns - 1, columns);
        add_panel(b, c, &f, &c->panels[i], f.margin + (int)column * (width + GAP), y, width);
    }
    strbuf_add(b, "</svg>\n");
}
