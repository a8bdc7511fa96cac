/* format.c - "%s" % x and "{}".format(x): the conversions that templates use; the others are refused by name. */
#include "jinja/render.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- % -------------------------------------------------------------------------------------------------------------- */

typedef struct conversion {
    bool left, plus, space, zero, alternate;
    int64_t width, precision; /* precision -1: none */
    char letter;
} conversion;

typedef struct percent {
    render *r;
    const string *format;
    size_t at;
    value args; /* a tuple, a dictionary, or one value */
    size_t next;
} percent;

static value next_argument(percent *p) {
    if (p->args.kind != V_TUPLE) {
        if (p->next++ == 0) return p->args;
    } else if (p->next < p->args.l->n) return p->args.l->items[p->next++];
    return fail(p->r, "not enough arguments for format string");
}

static char peek(const percent *p) { return p->at < p->format->length ? p->format->text[p->at] : 0; }

static value key_argument(percent *p) {
    size_t begin = ++p->at, depth = 1;
    for (; p->at < p->format->length; p->at++) {
        depth += peek(p) == '(';
        if (peek(p) == ')' && --depth == 0) break;
    }
    if (p->at >= p->format->length) return fail(p->r, "incomplete format key");
    value key = string_slice(p->r, p->format, begin, p->at++);
    if (p->args.kind != V_DICT) return fail(p->r, "format requires a mapping");
    const value *found = dict_find(p->r, p->args.d, key);
    return found ? *found : fail(p->r, "the key '%s' of a format is missing", string_quote(p->r, key.s));
}

static int64_t read_number(percent *p) {
    int64_t n = 0;
    if (peek(p) == '*') {
        value v = next_argument(p);
        p->at++;
        if (!value_is_int(v)) fail(p->r, "* wants int");
        return failed(p->r) ? 0 : value_int(v);
    }
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        if (n < 1000000000) n = n * 10 + (peek(p) - '0');
    return n;
}

static void read_conversion(percent *p, conversion *c) {
    *c = (conversion){.precision = -1};
    for (;; p->at++) {
        if (peek(p) == '-') c->left = true;
        else if (peek(p) == '+') c->plus = true;
        else if (peek(p) == ' ') c->space = true;
        else if (peek(p) == '0') c->zero = true;
        else if (peek(p) == '#') c->alternate = true;
        else break;
    }
    c->width = read_number(p);
    if (c->width < 0) {
        c->left = true;
        c->width = c->width < -1000000000 ? 1000000000 : -c->width;
    }
    if (peek(p) == '.') {
        p->at++;
        int64_t n = read_number(p);
        c->precision = MAX(n, 0);
    }
    while (peek(p) == 'l' || peek(p) == 'h' || peek(p) == 'L') p->at++;
    c->letter = peek(p);
    if (c->letter) p->at++;
}

/* A number's text with its sign first; zeros go between sign and digits. */
static void add_number(builder *b, const conversion *c, const char *digits, bool is_negative, uint8_t marks) {
    const char *sign = is_negative ? "-" : c->plus ? "+" : c->space ? " " : "";
    int64_t n = (int64_t)(strlen(sign) + strlen(digits));
    bool zeros = c->zero && !c->left;
    if (!c->left && !zeros) builder_fill(b, " ", 1, marks, c->width - n);
    builder_add(b, sign, strlen(sign), marks);
    if (zeros) builder_fill(b, "0", 1, marks, c->width - n);
    builder_add(b, digits, strlen(digits), marks);
    if (c->left) builder_fill(b, " ", 1, marks, c->width - n);
}

static void add_integer(builder *b, const conversion *c, value v) {
    char digits[400];
    if (v.kind == V_FLOAT && strchr("diu", c->letter) && fabs(v.f) < 0x1p63)
        v = (value){.kind = V_INT, .marks = v.marks, .i = (int64_t)v.f};
    if (!value_is_int(v)) {
        fail(b->r, "%%%c format: a number is required, not %s", c->letter, value_type(v));
        return;
    }
    int64_t i = value_int(v);
    uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
    const char *prefix = !c->alternate      ? ""
                         : c->letter == 'x' ? "0x"
                         : c->letter == 'X' ? "0X"
                         : c->letter == 'o' ? "0o"
                                            : "";
    int precision = (int)MIN(MAX(c->precision, 0), 300);
    if (c->precision > 300) fail(b->r, "a precision above 300 is not supported");
    const char *form = c->letter == 'x'   ? "%s%.*" PRIx64
                       : c->letter == 'X' ? "%s%.*" PRIX64
                       : c->letter == 'o' ? "%s%.*" PRIo64
                                          : "%s%.*" PRIu64;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(digits, sizeof digits, form, prefix, precision, magnitude);
#pragma GCC diagnostic pop
    if (magnitude == 0 && precision == 0) snprintf(digits, sizeof digits, "%s0", prefix);
    add_number(b, c, digits, i < 0, v.marks);
}

static void add_real(builder *b, const conversion *c, value v) {
    char digits[800];
    if (!value_is_number(v)) {
        fail(b->r, "must be real number, not %s", value_type(v));
        return;
    }
    double f = fabs(value_number(v));
    int precision = (int)MIN(c->precision < 0 ? 6 : c->precision, 400);
    if (c->precision > 400) fail(b->r, "a precision above 400 is not supported");
    switch (c->letter) {
    case 'e': snprintf(digits, sizeof digits, "%.*e", precision, f); break;
    case 'E': snprintf(digits, sizeof digits, "%.*E", precision, f); break;
    case 'g': snprintf(digits, sizeof digits, "%.*g", precision, f); break;
    case 'G': snprintf(digits, sizeof digits, "%.*G", precision, f); break;
    default: snprintf(digits, sizeof digits, "%.*f", precision, f);
    }
    add_number(b, c, digits, signbit(value_number(v)) && !isnan(value_number(v)), v.marks);
}

static void add_text(builder *b, const conversion *c, const string *s) {
    size_t end = c->precision < 0 ? s->length : text_offset(s, (size_t)c->precision);
    string cut = *s;
    cut.length = end;
    int64_t missing = c->width - (int64_t)text_length(&cut);
    if (!c->left) builder_fill(b, " ", 1, 0, missing);
    builder_add_part(b, s, 0, end);
    if (c->left) builder_fill(b, " ", 1, 0, missing);
}

static const string *repr_text(render *r, value v) {
    builder b;
    builder_init(&b, r);
    repr_add(&b, v, 0);
    return builder_take(&b).s;
}

static void add_conversion(percent *p, builder *b) {
    conversion c;
    bool has_key = peek(p) == '(';
    value v = has_key ? key_argument(p) : MISSING;
    if (failed(p->r)) return;
    read_conversion(p, &c);
    if (c.letter == '%') {
        builder_add_text(b, "%");
        return;
    }
    if (!c.letter || !strchr("sradiuxXoeEfFgG", c.letter)) {
        if (c.letter) fail(p->r, "the conversion %%%c is not supported", c.letter);
        else fail(p->r, "incomplete format");
        return;
    }
    if (!has_key) v = next_argument(p);
    if (failed(p->r)) return;
    if (c.letter == 's') add_text(b, &c, value_text(p->r, v));
    else if (c.letter == 'r' || c.letter == 'a') add_text(b, &c, repr_text(p->r, v));
    else if (v.kind == V_UNDEFINED) undefined_fail(p->r, v);
    else if (strchr("diuxXo", c.letter)) add_integer(b, &c, v);
    else add_real(b, &c, v);
}

value format_percent(render *r, const string *format, value args) {
    percent p = {.r = r, .format = format, .args = args};
    builder b;
    builder_init(&b, r);
    while (p.at < format->length && !failed(r)) {
        const char *next = memchr(format->text + p.at, '%', format->length - p.at);
        size_t end = next ? (size_t)(next - format->text) : format->length;
        builder_add_part(&b, format, p.at, end);
        p.at = end + 1;
        if (next) add_conversion(&p, &b);
    }
    if (args.kind == V_TUPLE ? p.next < args.l->n
                             : p.next == 0 && args.kind != V_DICT && args.kind != V_LIST && args.kind != V_UNDEFINED)
        fail(r, "not all arguments converted during string formatting");
    return builder_take(&b);
}

/* ---- {} ------------------------------------------------------------------------------------------------------------- */

typedef struct braces {
    render *r;
    const arguments *a;
    size_t next;
    bool is_counting, is_numbered; /* {} or {0}: not both */
} braces;

static value field_value(braces *f, const string *name) {
    value number;
    if (name->length == 0) {
        f->is_counting = true;
        number = int_value((int64_t)f->next++);
    } else if (number_parse(name, 10, &number)) f->is_numbered = true;
    else {
        for (size_t i = 0; i < name->length; i++)
            if (strchr(".[", name->text[i]))
                return fail(f->r, "format: '{%s}' is not supported, only names and numbers", string_quote(f->r, name));
        value *v = arguments_find(f->a, string_quote(f->r, name));
        return v ? *v : fail(f->r, "format: there is no argument '%s'", string_quote(f->r, name));
    }
    if (f->is_counting && f->is_numbered) return fail(f->r, "format: {} and {0} cannot be mixed");
    if (number.i < 0 || (size_t)number.i >= f->a->n_positional) return fail(f->r, "format: not enough arguments");
    return f->a->positional[number.i];
}

static void add_field(braces *f, builder *b, const string *field) {
    size_t end = field->length;
    bool as_repr = false;
    for (size_t i = 0; i < field->length; i++)
        if (field->text[i] == ':' || field->text[i] == '{') {
            if (i + 1 < field->length || field->text[i] == '{') {
                fail(f->r, "format: the specification in '{%s}' is not supported", string_quote(f->r, field));
                return;
            }
            end = i;
        }
    if (end >= 2 && field->text[end - 2] == '!') {
        as_repr = field->text[end - 1] == 'r';
        if (!as_repr && field->text[end - 1] != 's') fail(f->r, "format: '!%c' is not supported", field->text[end - 1]);
        end -= 2;
    }
    value v = field_value(f, string_slice(f->r, field, 0, end).s);
    if (failed(f->r)) return;
    if (as_repr) builder_add_string(b, repr_text(f->r, v));
    else text_add(b, v);
}

value format_braces(render *r, const string *s, const arguments *a) {
    braces f = {.r = r, .a = a};
    builder b;
    builder_init(&b, r);
    for (size_t i = 0; i < s->length && !failed(r); i++) {
        char c = s->text[i];
        if ((c == '{' || c == '}') && i + 1 < s->length && s->text[i + 1] == c) builder_add_part(&b, s, i, i + 1), i++;
        else if (c == '}') fail(r, "Single '}' encountered in format string");
        else if (c == '{') {
            const char *end = memchr(s->text + i, '}', s->length - i);
            if (!end) fail(r, "expected '}' before end of string");
            else {
                size_t at = (size_t)(end - s->text);
                add_field(&f, &b, string_slice(r, s, i + 1, at).s);
                i = at;
            }
        } else builder_add_part(&b, s, i, i + 1);
    }
    return builder_take(&b);
}
