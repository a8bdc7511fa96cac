/* svg.c - what every SVG picture needs: text of anyone as XML, and the steps of an axis.
 *
 * Numbers in pictures are whole where a program reads them, because a decimal point depends on the caller's locale. */
#include "chart/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Control characters, U+FFFE and U+FFFF: XML has no way to write them. */
static bool is_forbidden(const char *c, size_t length) {
    if (length == 1) return (unsigned char)*c < ' ' || *c == 0x7f;
    return length == 3 && (memcmp(c, "\xef\xbf\xbe", 3) == 0 || memcmp(c, "\xef\xbf\xbf", 3) == 0);
}

void svg_add_escaped(strbuf *b, const char *text, size_t most) {
    size_t n = strlen(text), n_shown = 0;
    for (size_t at = 0; at < n;) {
        utf8_scan s = utf8_check(text + at, n - at);
        for (size_t end = at + s.n_valid; at < end;) {
            size_t length = 1;
            while (at + length < end && ((unsigned char)text[at + length] & 0xc0) == 0x80) length++;
            const char *c = text + at;
            if (n_shown++ == most) {
                strbuf_add(b, "...");
                return;
            }
            if (*c == '&') strbuf_add(b, "&amp;");
            else if (*c == '<') strbuf_add(b, "&lt;");
            else if (*c == '>') strbuf_add(b, "&gt;");
            else if (*c == '"') strbuf_add(b, "&quot;");
            else if (is_forbidden(c, length)) strbuf_add(b, "\xef\xbf\xbd");
            else if (length == 1) strbuf_add_bytes(b, c, length);
            else strbuf_add_escaped(b, c, length);
            at += length;
        }
        if (s.n_bad) strbuf_add(b, "\xef\xbf\xbd");
        at += s.n_bad;
    }
}

svg_axis svg_axis_make(double top, int most_ticks, bool of_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    static const double factors[] = {1, 2, 5};
    svg_axis a = {.unit = 1, .name = "", .step = 0.1};
    double ten = 0.1;
    for (size_t u = 0; of_bytes && u < ARRAY_LENGTH(units); u++) {
        a.name = units[u];
        if (u + 1 == ARRAY_LENGTH(units) || top < 1024 * a.unit) break;
        a.unit *= 1024;
    }
    for (size_t i = 1; top / a.unit / a.step > most_ticks; i++) {
        if (i % ARRAY_LENGTH(factors) == 0) ten *= 10;
        a.step = ten * factors[i % ARRAY_LENGTH(factors)];
    }
    a.n_ticks = (int)floor(top / a.unit / a.step) + 1;
    return a;
}

const char *svg_axis_label(const svg_axis *a, int tick, char out[48]) {
    snprintf(out, 48, tick ? "%g%s%s" : "0", tick * a->step, *a->name ? " " : "", a->name);
    return out;
}

void svg_add_number(strbuf *b, double x) {
    char text[40];
    if (x == floor(x) && fabs(x) < 0x1p53) {
        strbuf_printf(b, "%lld", (long long)x);
        return;
    }
    for (int digits = 9; digits <= 17; digits += digits == 9 ? 6 : 2) { /* 9: what metrics.jsonl has */
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    for (char *c = text; *c; c++)
        if (!strchr("0123456789+-einfa", *c)) *c = '.'; /* the decimal point of the locale, one byte or more */
    strbuf_add(b, text);
}
