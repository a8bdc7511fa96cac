/* terminal.c - a metric as a plot of characters.
 *
 * A braille character has 2 x 4 dots, so a terminal of 80 columns shows 140 x 48 points. Where the terminal does not show UTF-8
 * each character is one point. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { AXIS = 11, LEAST_COLUMNS = 10 };

typedef struct canvas {
    int width, height; /* dots */
    unsigned char *dots;
} canvas;

void text_plot_range(text_plot *p, const metric_series *s) {
    for (size_t i = 0; i < s->n; i++) {
        if (!isfinite(s->y[i])) continue;
        bool first = p->x_high == p->x_low && p->y_high == p->y_low && p->x_high == 0 && p->y_high == 0;
        p->x_low = first ? s->x[i] : fmin(p->x_low, s->x[i]);
        p->x_high = first ? s->x[i] : fmax(p->x_high, s->x[i]);
        p->y_low = first ? s->y[i] : fmin(p->y_low, s->y[i]);
        p->y_high = first ? s->y[i] : fmax(p->y_high, s->y[i]);
    }
}

static int scaled(double v, double low, double high, int n) {
    double at = high > low ? (v - low) / (high - low) * (n - 1) : (n - 1) / 2.0;
    return (int)lround(fmin(fmax(at, 0), n - 1));
}

static void set(canvas *c, int x, int y) { c->dots[y * c->width + x] = 1; }

/* A line of dots without holes. */
static void connect(canvas *c, int x, int y, int x_end, int y_end) {
    int n = MAX(MAX(abs(x_end - x), abs(y_end - y)), 1);
    for (int i = 0; i <= n; i++)
        set(c, x + (int)lround((double)(x_end - x) * i / n), y + (int)lround((double)(y_end - y) * i / n));
}

static void draw_series(canvas *c, const text_plot *p, const metric_series *s) {
    size_t *keep = mem_alloc((2 * (size_t)c->width + 2) * sizeof *keep);
    size_t n = series_thin(s->x, s->y, s->n, (size_t)c->width, keep);
    int last_x = -1, last_y = -1;
    for (size_t i = 0; i < n; i++) {
        int x = scaled(s->x[keep[i]], p->x_low, p->x_high, c->width);
        int y = c->height - 1 - scaled(s->y[keep[i]], p->y_low, p->y_high, c->height);
        if (last_x < 0) set(c, x, y);
        else connect(c, last_x, last_y, x, y);
        last_x = x, last_y = y;
    }
    free(keep);
}

static void print_braille(const canvas *c, int column, int line, FILE *out) {
    static const int bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int code = 0x2800;
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 2; x++)
            if (c->dots[(line * 4 + y) * c->width + column * 2 + x]) code |= bits[y][x];
    fprintf(out, "%c%c%c", 0xe0 | code >> 12, 0x80 | (code >> 6 & 0x3f), 0x80 | (code & 0x3f));
}

void text_plot_draw(const text_plot *p, const char *title, const metric_series *s, FILE *out) {
    int columns = MAX(p->columns - AXIS, LEAST_COLUMNS), lines = MAX(p->lines, 2);
    canvas c = {.width = columns * (p->braille ? 2 : 1), .height = lines * (p->braille ? 4 : 1)};
    c.dots = mem_alloc((size_t)c.width * (size_t)c.height);
    draw_series(&c, p, s);
    fprintf(out, "%s\n", title);
    for (int line = 0; line < lines; line++) {
        char label[32] = "";
        if (line == 0) snprintf(label, sizeof label, "%.4g", p->y_high);
        if (line == lines - 1) snprintf(label, sizeof label, "%.4g", p->y_low);
        fprintf(out, "%*s %s", AXIS - 2, label, p->braille ? "\xe2\x94\x82" : "|");
        for (int column = 0; column < columns; column++)
            if (p->braille) print_braille(&c, column, line, out);
            else fputc(c.dots[line * c.width + column] ? '*' : ' ', out);
        fputc('\n', out);
    }
    char first[32], last[64];
    snprintf(first, sizeof first, "%.7g", p->x_low);
    snprintf(last, sizeof last, "step %.7g", p->x_high);
    fprintf(out, "%*s%s%*s\n", AXIS, "", first, MAX(columns - (int)strlen(first), 0), last);
    free(c.dots);
}

const metric_series *metric_by_word(const run_metrics *m, const char *word, str_nearest *nearest) {
    const metric_series *found = run_metrics_find(m, word);
    for (size_t i = 0; !found && i < m->n_series; i++) {
        const char *slash = strrchr(m->series[i].name, '/');
        if (slash && strcmp(slash + 1, word) == 0) found = &m->series[i];
    }
    for (size_t i = 0; !found && i < m->n_series; i++) {
        const char *slash = strrchr(m->series[i].name, '/');
        str_nearest_try(nearest, m->series[i].name);
        if (slash) str_nearest_try(nearest, slash + 1);
    }
    return found;
}
