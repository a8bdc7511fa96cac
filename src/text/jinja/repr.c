/* repr.c - values as Python prints them: str(), repr() and json.dumps().
 *
 * Floats get the fewest digits that read back as the same number. Strings inside of lists and dictionaries keep their
 * marks; brackets, quotes and escapes count as the template's. */
#include "jinja/render.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t float_repr(double f, char out[40]) {
    if (isnan(f)) return (size_t)snprintf(out, 40, "nan");
    if (isinf(f)) return (size_t)snprintf(out, 40, f < 0 ? "-inf" : "inf");
    char digits[40];
    int precision = 0;
    do snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (strtod(digits, NULL) != f && ++precision < 17);
    char *mark = strchr(digits, 'e');
    int exponent = atoi(mark + 1);
    if (exponent < -4 || exponent >= 16) { /* 1.5e-07; Python writes at least two digits of the exponent, as C does */
        *mark = 0;
        return (size_t)snprintf(out, 40, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
    }
    int decimals = MAX(precision - exponent, 1);
    return (size_t)snprintf(out, 40, "%.*f", decimals, f);
}

static void add_format(builder *b, uint8_t marks, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add_format(builder *b, uint8_t marks, const char *fmt, ...) {
    char text[64];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    builder_add(b, text, (size_t)n, marks);
}

static void add_escape(builder *b, uint8_t marks, char c) { builder_add(b, (char[]){'\\', c}, 2, marks); }

/* A string in quotes: single ones, unless it has those and no double ones. */
static void repr_string(builder *b, const string *s) {
    bool has_single = s->length && memchr(s->text, '\'', s->length);
    char quote = has_single && !memchr(s->text, '"', s->length) ? '"' : '\'';
    builder_add(b, &quote, 1, 0);
    size_t plain = 0;
    for (size_t i = 0, n; i < s->length && !failed(b->r); i += n) {
        int32_t c = char_at(s, i, &n);
        if (char_is_printable(c) && c != quote && c != '\\') continue;
        uint8_t marks = string_mark(s, i);
        builder_add_part(b, s, plain, i);
        plain = i + n;
        if (c == quote || c == '\\') add_escape(b, marks, (char)c);
        else if (c == '\n' || c == '\r' || c == '\t') add_escape(b, marks, c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else add_format(b, marks, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    }
    builder_add_part(b, s, plain, s->length);
    builder_add(b, &quote, 1, 0);
}

static void repr_items(builder *b, const list *l, const char *open, const char *close, int depth) {
    builder_add_text(b, open);
    for (size_t i = 0; i < l->n && !failed(b->r); i++) {
        if (i) builder_add_text(b, ", ");
        repr_add(b, l->items[i], depth + 1);
    }
    builder_add_text(b, close);
}

static void repr_dict(builder *b, const dict *d, int depth) {
    builder_add_text(b, "{");
    for (size_t i = 0; i < d->n && !failed(b->r); i++) {
        if (i) builder_add_text(b, ", ");
        repr_add(b, d->entries[i].key, depth + 1);
        builder_add_text(b, ": ");
        repr_add(b, d->entries[i].value, depth + 1);
    }
    builder_add_text(b, "}");
}

static void repr_range(builder *b, const struct range *range) {
    if (range->step == 1) add_format(b, 0, "range(%" PRId64 ", %" PRId64 ")", range->start, range->stop);
    else
        add_format(b, 0, "range(%" PRId64 ", %" PRId64 ", ", range->start, range->stop),
            add_format(b, 0, "%" PRId64 ")", range->step);
}

void repr_add(builder *b, value v, int depth) {
    char digits[40];
    if (depth > JINJA_MAX_DEPTH) {
        fail(b->r, "a value that is printed is nested deeper than %d", JINJA_MAX_DEPTH);
        return;
    }
    if (!steps_take(b->r, 1)) return;
    switch (v.kind) {
    case V_UNDEFINED: builder_add_text(b, "Undefined"); break;
    case V_NONE: builder_add(b, "None", 4, v.marks); break;
    case V_BOOL: builder_add(b, v.b ? "True" : "False", v.b ? 4 : 5, v.marks); break;
    case V_INT: add_format(b, v.marks, "%" PRId64, v.i); break;
    case V_FLOAT: builder_add(b, digits, float_repr(v.f, digits), v.marks); break;
    case V_STRING: repr_string(b, v.s); break;
    case V_LIST: repr_items(b, v.l, "[", "]", depth); break;
    case V_TUPLE: repr_items(b, v.l, "(", v.l->n == 1 ? ",)" : ")", depth); break;
    case V_DICT: repr_dict(b, v.d, depth); break;
    case V_VIEW:
        builder_add_text(b, v.l->view);
        repr_items(b, v.l, "([", "])", depth);
        break;
    case V_RANGE: repr_range(b, v.range); break;
    case V_NAMESPACE:
        builder_add_text(b, "<Namespace ");
        repr_dict(b, v.d, depth);
        builder_add_text(b, ">");
        break;
    case V_MACRO:
        builder_add_text(b, "<Macro ");
        if (v.macro->definition->text)
            repr_string(b, &(string){.text = v.macro->definition->text, .length = v.macro->definition->length});
        else builder_add_text(b, "anonymous");
        builder_add_text(b, ">");
        break;
    case V_LOOP:
        add_format(b, 0, "<LoopContext %" PRId64 "/", v.loop->index0 + 1);
        repr_add(b, loop_attribute(b->r, v.loop, "length", 6), depth + 1);
        builder_add_text(b, ">");
        break;
    default:
        fail(b->r, "printing a %s is not supported: it would show an address in memory",
             v.kind == V_ITERATOR ? v.it->name : value_type(v));
    }
}

void text_add(builder *b, value v) {
    if (v.kind == V_STRING) builder_add_string(b, v.s);
    else if (v.kind != V_UNDEFINED) repr_add(b, v, 0);
}

const string *value_text(render *r, value v) {
    builder b;
    if (v.kind == V_STRING) return v.s;
    builder_init(&b, r);
    text_add(&b, v);
    return builder_take(&b).s;
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------- */

typedef struct json_style {
    const string *indent;        /* of one level; NULL: all on one line */
    const string *comma, *colon; /* between items, behind keys */
    bool ensure_ascii, sort_keys;
} json_style;

static void json_string_add(builder *b, const string *s, bool ensure_ascii) {
    builder_add_text(b, "\"");
    size_t plain = 0;
    for (size_t i = 0, n; i < s->length && !failed(b->r); i += n) {
        static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
        int32_t c = char_at(s, i, &n);
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !ensure_ascii || c == 0x7f)) continue;
        uint8_t marks = string_mark(s, i);
        builder_add_part(b, s, plain, i);
        plain = i + n;
        const char *name = c < 0x80 ? memchr(named, c, sizeof named - 1) : NULL;
        if (name && (name - named) % 2) name = NULL; /* the letter of another one */
        if (name) add_escape(b, marks, name[1]);
        else if (c < 0x10000) add_format(b, marks, "\\u%04x", (unsigned)c);
        else
            add_format(b, marks, "\\u%04x\\u%04x", 0xd800 + (unsigned)((c - 0x10000) >> 10),
                       0xdc00 + (unsigned)((c - 0x10000) & 0x3ff));
    }
    builder_add_part(b, s, plain, s->length);
    builder_add_text(b, "\"");
}

static void json_float(builder *b, value v) {
    char digits[40];
    if (isfinite(v.f)) builder_add(b, digits, float_repr(v.f, digits), v.marks);
    else builder_add_text(b, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
}

static void json_line(builder *b, const json_style *style, int level) {
    if (!style->indent) return;
    builder_add_text(b, "\n");
    for (int i = 0; i < level; i++) builder_add_string(b, style->indent);
}

static void json_add(builder *b, value v, const json_style *style, int depth);

static void json_list(builder *b, const list *l, const json_style *style, int depth) {
    builder_add_text(b, "[");
    for (size_t i = 0; i < l->n && !failed(b->r); i++) {
        if (i) builder_add_string(b, style->comma);
        json_line(b, style, depth + 1);
        json_add(b, l->items[i], style, depth + 1);
    }
    if (l->n) json_line(b, style, depth);
    builder_add_text(b, "]");
}

/* Keys that are no strings become strings, as Python does. */
static void json_key(builder *b, value key, const json_style *style) {
    switch (key.kind) {
    case V_STRING: json_string_add(b, key.s, style->ensure_ascii); return;
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_FLOAT:
        builder_add_text(b, "\"");
        json_add(b, key, style, 0);
        builder_add_text(b, "\"");
        return;
    default: fail(b->r, "keys must be str, int, float, bool or None, not %s", value_type(key));
    }
}

static dict_entry *sorted_entries(render *r, const dict *d) {
    dict_entry *sorted = render_alloc(r, d->n * sizeof *sorted), *other = render_alloc(r, d->n * sizeof *sorted);
    if (d->n) memcpy(sorted, d->entries, d->n * sizeof *sorted);
    for (size_t width = 1; width < d->n && !failed(r); width *= 2) { /* merges pieces that are sorted */
        for (size_t begin = 0; begin < d->n; begin += 2 * width) {
            size_t middle = MIN(begin + width, d->n), end = MIN(begin + 2 * width, d->n), i = begin, j = middle;
            for (size_t k = begin; k < end; k++) {
                bool second = i >= middle || (j < end && value_compare(r, sorted[j].key, sorted[i].key, "<") < 0);
                other[k] = second ? sorted[j++] : sorted[i++];
            }
        }
        dict_entry *swap = sorted;
        sorted = other;
        other = swap;
    }
    return sorted;
}

static void json_dict(builder *b, const dict *d, const json_style *style, int depth) {
    const dict_entry *entries = style->sort_keys ? sorted_entries(b->r, d) : d->entries;
    builder_add_text(b, "{");
    for (size_t i = 0; i < d->n && !failed(b->r); i++) {
        if (i) builder_add_string(b, style->comma);
        json_line(b, style, depth + 1);
        json_key(b, entries[i].key, style);
        builder_add_string(b, style->colon);
        json_add(b, entries[i].value, style, depth + 1);
    }
    if (d->n) json_line(b, style, depth);
    builder_add_text(b, "}");
}

static void json_add(builder *b, value v, const json_style *style, int depth) {
    if (depth > JINJA_MAX_DEPTH) {
        fail(b->r, "tojson: the value is nested deeper than %d", JINJA_MAX_DEPTH);
        return;
    }
    if (!steps_take(b->r, 1)) return;
    switch (v.kind) {
    case V_NONE: builder_add(b, "null", 4, v.marks); break;
    case V_BOOL: builder_add(b, v.b ? "true" : "false", v.b ? 4 : 5, v.marks); break;
    case V_INT: add_format(b, v.marks, "%" PRId64, v.i); break;
    case V_FLOAT: json_float(b, v); break;
    case V_STRING: json_string_add(b, v.s, style->ensure_ascii); break;
    case V_LIST:
    case V_TUPLE: json_list(b, v.l, style, depth); break;
    case V_DICT: json_dict(b, v.d, style, depth); break;
    default: fail(b->r, "Object of type %s is not JSON serializable", value_type(v));
    }
}

value value_to_json(render *r, value v, value indent, value separators, bool ensure_ascii, bool sort_keys) {
    json_style style = {.ensure_ascii = ensure_ascii, .sort_keys = sort_keys};
    if (indent.kind == V_STRING) style.indent = indent.s;
    else if (value_is_int(indent)) {
        builder b;
        builder_init(&b, r);
        builder_fill(&b, " ", 1, 0, value_int(indent));
        style.indent = builder_take(&b).s;
    } else if (indent.kind != V_NONE && indent.kind != V_MISSING)
        return fail(r, "tojson: indent must be a number or a string");
    style.comma = string_literal(r, style.indent ? "," : ", ").s;
    style.colon = string_literal(r, ": ").s;
    if (separators.kind != V_NONE && separators.kind != V_MISSING) {
        list *l = separators.kind == V_LIST || separators.kind == V_TUPLE ? separators.l : NULL;
        if (!l || l->n != 2 || l->items[0].kind != V_STRING || l->items[1].kind != V_STRING)
            return fail(r, "tojson: separators must be two strings");
        style.comma = l->items[0].s;
        style.colon = l->items[1].s;
    }
    builder b;
    builder_init(&b, r);
    json_add(&b, v, &style, 0);
    return builder_take(&b);
}
