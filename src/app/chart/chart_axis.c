/* chart_axis.c - scales and their round numbers. */
#include "chart/chart_parts.h"

#include <math.h>
#include <string.h>

double scale_part(const chart_scale *s, double v) {
    double part = s->log ? (log10(fmax(v, s->low)) - log10(s->low)) / (log10(s->high) - log10(s->low))
                         : (v - s->low) / (s->high - s->low);
    return isfinite(part) ? fmin(fmax(part, 0), 1) : 0;
}

/* 12000 -> "12K", 0.0002 -> "2e-4": short enough for the room beside a plot. step: between ticks, for the digits. */
static void number_label(double v, double step, char *out, size_t n) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "K"}};
    if (v == 0) {
        snprintf(out, n, "0");
        return;
    }
    for (size_t i = 0; fabs(v) >= 10000 && i < ARRAY_LENGTH(units); i++)
        if (fabs(v) >= units[i].unit) {
            snprintf(out, n, "%.5g%s", v / units[i].unit, units[i].name);
            return;
        }
    if (fabs(v) >= 1e-3) {
        int digits = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
        snprintf(out, n, "%.*f", MIN(digits, 9), v);
        return;
    }
    int exponent = (int)floor(log10(fabs(v)) + 1e-9);
    snprintf(out, n, "%.3ge%d", v * pow(10, -exponent), exponent);
}

static void add_tick(chart_tick *list, size_t *n, double at, double step, const char *unit) {
    char number[32];
    if (*n == CHART_SCALE_TICKS) return;
    number_label(at, step, number, sizeof number);
    list[*n].at = at;
    snprintf(list[(*n)++].label, sizeof list->label, "%s%s%.12s", number, unit && *unit && at != 0 ? " " : "",
             unit && at != 0 ? unit : "");
}

static size_t byte_ticks(const chart_scale *s, chart_tick *out) {
    svg_axis a = svg_axis_make(s->high, CHART_TICKS, true);
    size_t n = 0;
    for (int i = 0; i < a.n_ticks && n < CHART_SCALE_TICKS; i++, n++) {
        out[n].at = i * a.step * a.unit;
        svg_axis_label(&a, i, out[n].label);
    }
    return n;
}

/* Powers of ten, and twice and five times them where there are few. */
static size_t log_ticks(const chart_scale *s, chart_tick *out) {
    int first = (int)floor(log10(s->low)), last = (int)ceil(log10(s->high)), stride = MAX((last - first + 4) / 5, 1);
    size_t n = 0;
    for (int e = first; e <= last; e += stride)
        for (int k = 0; k < (last - first <= 2 ? 3 : 1); k++) {
            double at = pow(10, e) * (double[]){1, 2, 5}[k];
            if (at >= s->low * (1 - 1e-9) && at <= s->high * (1 + 1e-9)) add_tick(out, &n, at, at, s->unit);
        }
    return n;
}

size_t scale_ticks(const chart_scale *s, chart_tick out[CHART_SCALE_TICKS]) {
    static const double factors[] = {1, 2, 5, 10};
    if (s->bytes) return byte_ticks(s, out);
    if (s->log) return log_ticks(s, out);
    double rough = (s->high - s->low) / CHART_TICKS, ten = pow(10, floor(log10(rough))), step = ten * 10;
    for (size_t i = ARRAY_LENGTH(factors); i-- > 0;)
        if (factors[i] * ten >= rough) step = factors[i] * ten;
    if (s->whole) step = fmax(step, 1);
    size_t n = 0;
    for (double i = ceil(s->low / step - 1e-9); i * step <= s->high + 1e-9 * step && n < CHART_SCALE_TICKS; i++)
        add_tick(out, &n, i * step, step, s->unit);
    return n;
}

/* ---- the range of a panel ---------------------------------------------------------------------------------------------- */

typedef struct range {
    double low, high;
} range;

static void widen(range *r, double v) {
    if (!isfinite(v)) return;
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

/* Of areas the sums count, and they stand on the ground. */
static range range_up(const chart_panel *c) {
    range r = {INFINITY, -INFINITY};
    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; k < c->series[i].n; k++) {
            double v = c->series[i].y[k];
            if (c->kind == CHART_AREAS || (c->groups && c->rows)) {
                v = 0;
                for (size_t j = 0; j <= i; j++)
                    if (k < c->series[j].n && isfinite(c->series[j].y[k])) v += c->series[j].y[k];
            }
            widen(&r, v);
        }
    return r;
}

static range range_across(const chart_panel *c) {
    range r = {INFINITY, -INFINITY};
    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; c->series[i].x && k < c->series[i].n; k++) {
            widen(&r, c->series[i].x[k]);
            if (c->kind == CHART_LANES) widen(&r, c->series[i].y[k]);
        }
    if (c->x_end > 0) widen(&r, c->x_end);
    return r;
}

static chart_scale lines_up(const chart_panel *c, range r) {
    if (!(r.low <= r.high)) return (chart_scale){.high = 1};
    if (c->log_y && r.low > 0) return (chart_scale){.low = r.low / 1.15, .high = r.high * 1.15, .log = true};
    if (r.low >= 0 && r.low < 0.45 * r.high) r.low = 0;
    double room = r.high > r.low ? (r.high - r.low) * 0.06 : fmax(fabs(r.high) * 0.1, 1e-9);
    return (chart_scale){.low = r.low == 0 ? 0 : r.low - room, .high = r.high + room};
}

void plot_scales(const chart_panel *c, chart_plot *p) {
    range up = range_up(c), across = range_across(c);
    bool from_zero = c->groups || c->kind != CHART_LINES || !c->numbers;
    double top = up.high > 0 ? 1.12 * up.high : 1; /* room for the labels above bars */
    if (c->limit > 0) top = fmax(top, 1.04 * c->limit);
    p->up = from_zero ? (chart_scale){.high = top} : lines_up(c, up);
    p->up.bytes = !c->numbers;
    p->across = (chart_scale){
        .low = c->kind == CHART_LINES ? across.low : 0, .high = across.high, .whole = c->x_whole, .unit = c->x_unit};
    if (!(across.low <= across.high)) p->across.low = 0, p->across.high = 1;
    if (!(p->across.low < p->across.high)) p->across.high = p->across.low + 1;
    if (c->groups && c->rows) {
        p->across = (chart_scale){.high = up.high > 0 ? up.high : 1, .bytes = !c->numbers};
        if (c->limit > 0) p->across.high = fmax(p->across.high, c->limit);
    }
}

/* ---- drawing them ------------------------------------------------------------------------------------------------------ */

int plot_height_of(const chart_plot *p, double v) {
    return p->y + p->height - (int)lround(scale_part(&p->up, v) * p->height);
}

int plot_across_of(const chart_plot *p, double v) { return p->x + (int)lround(scale_part(&p->across, v) * p->width); }

void plot_add_up(strbuf *b, const chart_plot *p) {
    chart_tick ticks[CHART_SCALE_TICKS];
    size_t n = scale_ticks(&p->up, ticks);
    for (size_t i = 0; i < n; i++) {
        int y = plot_height_of(p, ticks[i].at);
        plot_add_rule(b, p->x, y, p->x + p->width, y);
        plot_add_text(b, p->x - 8, y + 4, "end", CHART_SOFT, ticks[i].label);
    }
}

void plot_add_across(strbuf *b, const chart_plot *p, const chart_panel *c) {
    chart_tick ticks[CHART_SCALE_TICKS];
    size_t n = scale_ticks(&p->across, ticks);
    int floor = p->y + p->height, last_end = -1000;
    for (size_t i = 0; i < n; i++) {
        int x = plot_across_of(p, ticks[i].at), half = (int)strlen(ticks[i].label) * 4;
        plot_add_rule(b, x, floor, x, floor + 4);
        if (x - half < last_end) continue; /* they would overlap */
        int at = MIN(x, p->x + p->width + 20 - half);
        plot_add_text(b, at, floor + 18, "middle", CHART_SOFT, ticks[i].label);
        last_end = at + half;
    }
    if (c->x_name) plot_add_text(b, p->x + p->width, floor + 34, "end", CHART_SOFT, c->x_name);
}
