/* filters.c - `x|filter`: the table of filters, and those of text and numbers. Those of sequences: filters_list.c. */
#include "jinja/filters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool argument_truth(value v) { return v.kind != V_MISSING && value_truth(v); }

int64_t argument_int(render *r, value v, int64_t missing, const char *what) {
    if (v.kind == V_MISSING) return missing;
    if (value_is_int(v)) return value_int(v);
    if (v.kind == V_UNDEFINED) undefined_fail(r, v);
    else fail(r, "%s: expected an integer, found '%s'", what, value_type(v));
    return 0;
}

static value text_value(const string *s) { return (value){.kind = V_STRING, .s = s}; }

/* ---- text ----------------------------------------------------------------------------------------------------------- */

static value do_trim(render *r, value v, const value *args) {
    const string *chars = NULL;
    if (args[0].kind == V_STRING) chars = args[0].s;
    else if (args[0].kind != V_MISSING && args[0].kind != V_NONE) return fail(r, "trim: expected a string");
    return text_strip(r, value_text(r, v), chars, true, true);
}
static value do_upper(render *r, value v, const value *args) { return text_case(r, value_text(r, v), CASE_UPPER); }
static value do_lower(render *r, value v, const value *args) { return text_case(r, value_text(r, v), CASE_LOWER); }
static value do_title(render *r, value v, const value *args) {
    return text_case(r, value_text(r, v), CASE_TITLE_FILTER);
}
static value do_capitalize(render *r, value v, const value *args) {
    return text_case(r, value_text(r, v), CASE_CAPITALIZE);
}
static value do_string(render *r, value v, const value *args) { return text_value(value_text(r, v)); }

static value do_replace(render *r, value v, const value *args) {
    bool all = args[2].kind == V_MISSING || args[2].kind == V_NONE;
    int64_t count = all ? -1 : argument_int(r, args[2], -1, "replace");
    return text_replace(r, value_text(r, v), value_text(r, args[0]), value_text(r, args[1]), count);
}

value markup_value(render *r, value text) {
    string *s = render_alloc(r, sizeof *s);
    *s = *text.s;
    s->is_markup = true;
    return text_value(s);
}
value markup_as(render *r, value from, value text) {
    bool keeps = from.kind == V_STRING && from.s->is_markup && text.kind == V_STRING && !text.s->is_markup;
    return keeps ? markup_value(r, text) : text;
}
static value do_safe(render *r, value v, const value *args) { return markup_value(r, text_value(value_text(r, v))); }
value value_escape_html(render *r, value v) {
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'>', "&gt;"}, {'<', "&lt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    const string *s = value_text(r, v);
    builder b;
    if (v.kind == V_STRING && s->is_markup) return v;
    builder_init(&b, r);
    size_t plain = 0;
    for (size_t i = 0; i < s->length && !failed(r); i++)
        for (size_t k = 0; k < ARRAY_LENGTH(entities); k++)
            if (s->text[i] == entities[k].c) {
                builder_add_part(&b, s, plain, i);
                builder_add(&b, entities[k].entity, strlen(entities[k].entity), string_mark(s, i));
                plain = i + 1;
            }
    builder_add_part(&b, s, plain, s->length);
    return markup_value(r, builder_take(&b));
}
static value do_escape(render *r, value v, const value *args) { return value_escape_html(r, v); }

static value do_indent(render *r, value v, const value *args) {
    builder b;
    const string *with = args[0].kind == V_STRING ? args[0].s : NULL;
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (v.kind != V_STRING) return fail(r, "indent: expected a string, found '%s'", value_type(v));
    if (!with) {
        builder_init(&b, r);
        builder_fill(&b, " ", 1, 0, argument_int(r, args[0], 4, "indent"));
        with = builder_take(&b).s;
    }
    bool first = argument_truth(args[1]), blank = argument_truth(args[2]);
    builder_init(&b, r); /* a line break at the end makes one more line */
    builder_add_string(&b, v.s);
    builder_add_text(&b, "\n");
    const list *lines = text_lines(r, builder_take(&b).s, false);
    builder_init(&b, r);
    if (first) builder_add_string(&b, with);
    for (size_t i = 0; i < lines->n && !failed(r); i++) {
        const string *line = lines->items[i].s;
        if (i) builder_add_text(&b, "\n");
        if (i && (line->length || blank)) builder_add_string(&b, with);
        builder_add_string(&b, line);
    }
    return builder_take(&b);
}

static value do_truncate(render *r, value v, const value *args) {
    int64_t length = argument_int(r, args[0], 255, "truncate");
    value end = args[2].kind == V_MISSING ? string_literal(r, "...") : args[2];
    int64_t leeway = args[3].kind == V_NONE ? 5 : argument_int(r, args[3], 5, "truncate");
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (v.kind != V_STRING || end.kind != V_STRING) return fail(r, "truncate: expected strings");
    int64_t n_end = (int64_t)text_length(end.s);
    if (length < n_end)
        return fail(r, "truncate: expected length >= %lld, got %lld", (long long)n_end, (long long)length);
    if (leeway < 0) return fail(r, "truncate: expected leeway >= 0");
    bytes_take(r, v.s->length);
    if ((int64_t)text_length(v.s) <= length || (int64_t)text_length(v.s) - length <= leeway) return v;
    size_t cut = text_offset(v.s, (size_t)(length - n_end));
    for (size_t i = cut; !argument_truth(args[1]) && i-- > 0;) /* back to the last space */
        if (v.s->text[i] == ' ') {
            cut = i;
            break;
        }
    builder b;
    builder_init(&b, r);
    builder_add_part(&b, v.s, 0, cut);
    builder_add_string(&b, end.s);
    return builder_take(&b);
}

static value do_center(render *r, value v, const value *args) {
    return text_pad(r, value_text(r, v), argument_int(r, args[0], 80, "center"), string_literal(r, " ").s, 0);
}

static value do_wordcount(render *r, value v, const value *args) {
    const string *s = value_text(r, v);
    int64_t n_words = 0;
    bool was_word = false;
    bytes_take(r, s->length);
    for (size_t i = 0, n; i < s->length; i += n) {
        int32_t c = char_at(s, i, &n);
        bool is_word = c == '_' || char_is_alpha(c) || char_is_numeral(c) || char_is_digit(c);
        n_words += is_word && !was_word;
        was_word = is_word;
    }
    return int_value(n_words);
}

static value do_format(render *r, value v, const arguments *a) {
    const string *format = value_text(r, v);
    if (v.kind == V_STRING && v.s->is_markup) return fail(r, "format of text that was marked safe is not supported");
    if (a->n_positional && a->n_named)
        return fail(r, "format: can't handle positional and keyword arguments at the same time");
    if (a->n_named) {
        dict *d = dict_new(r);
        for (size_t i = 0; i < a->n_named; i++) dict_set(r, d, string_literal(r, a->names[i]), a->named[i]);
        return format_percent(r, format, dict_value(d));
    }
    list *l = list_new(r, a->n_positional);
    for (size_t i = 0; i < a->n_positional; i++) list_add(r, l, a->positional[i]);
    return format_percent(r, format, tuple_value(l));
}

static value do_tojson(render *r, value v, const value *args) {
    return value_to_json(r, v, args[1], args[2], argument_truth(args[0]), argument_truth(args[3]));
}

/* ---- numbers -------------------------------------------------------------------------------------------------------- */

static value truncated(render *r, value v, value fallback) {
    if (v.kind != V_FLOAT) return fallback;
    if (isnan(v.f)) return fallback;
    if (!(fabs(v.f) < 0x1p63)) return fail(r, "int: a number beyond 64 bits");
    return int_value((int64_t)v.f);
}

static value do_int(render *r, value v, const value *args) {
    value fallback = args[0].kind == V_MISSING ? int_value(0) : args[0], out;
    int64_t base = argument_int(r, args[1], 10, "int");
    double f;
    if (v.kind == V_STRING) bytes_take(r, v.s->length);
    uint8_t marks = v.kind == V_STRING ? string_marks(v.s) : v.marks;
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (base != 0 && (base < 2 || base > 36)) return fallback;
    if (value_is_int(v)) out = int_value(value_int(v));
    else if (v.kind == V_FLOAT) {
        if (isinf(v.f)) return fail(r, "cannot convert float infinity to integer");
        out = truncated(r, v, fallback);
    } else if (v.kind != V_STRING) return fallback;
    else if (number_parse(v.s, (int)base, &out)) {
    } else if (float_parse(v.s, &f)) {
        if (!isfinite(f)) return fallback;
        out = truncated(r, float_value(f), fallback);
    } else return fallback;
    out.marks = marks;
    return out;
}

static value do_float(render *r, value v, const value *args) {
    double f;
    value out = args[0].kind == V_MISSING ? float_value(0) : args[0];
    if (v.kind == V_STRING) bytes_take(r, v.s->length);
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (value_is_number(v)) {
        out = float_value(value_number(v));
        out.marks = v.marks;
    } else if (v.kind == V_STRING && float_parse(v.s, &f)) {
        out = float_value(f);
        out.marks = string_marks(v.s);
    }
    return out;
}

static value do_abs(render *r, value v, const value *args) {
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (!value_is_number(v)) return fail(r, "bad operand type for abs(): '%s'", value_type(v));
    bool is_negative = v.kind == V_FLOAT ? signbit(v.f) : value_int(v) < 0;
    return sign_value(r, v, is_negative);
}

/* To a number of decimals, exactly as the digits say: the way of printf. */
static double round_to(double f, int64_t precision) {
    char text[512];
    if (!isfinite(f) || precision > 320) return f;
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        return strtod(text, NULL);
    }
    if (precision < -308) return copysign(0, f);
    double unit = pow(10, (double)-precision);
    return nearbyint(f / unit) * unit;
}

static value do_round(render *r, value v, const value *args) {
    int64_t precision = argument_int(r, args[0], 0, "round");
    value method = args[1].kind == V_MISSING ? string_literal(r, "common") : args[1];
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (failed(r) || !value_is_number(v)) return fail(r, "round: expected a number, found '%s'", value_type(v));
    if (method.kind != V_STRING) return fail(r, "round: method must be common, ceil or floor");
    value out;
    if (string_is(method.s, "common")) {
        if (v.kind == V_FLOAT) out = float_value(round_to(v.f, precision));
        else if (precision >= 0) out = int_value(value_int(v));
        else return fail(r, "round: rounding an integer to tens is not supported");
    } else if (string_is(method.s, "ceil") || string_is(method.s, "floor")) {
        double unit = pow(10, (double)precision), scaled = value_number(v) * unit;
        out = float_value((string_is(method.s, "ceil") ? ceil(scaled) : floor(scaled)) / unit);
    } else return fail(r, "round: method must be common, ceil or floor");
    out.marks = v.marks;
    return out;
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

#define NO(filter, why) \
    { .s = {.name = filter}, .refused = why }
/* clang-format off */
static const filter_row filters[] = {
    {{.name = "abs"}, .apply = do_abs},
    {{"attr", 1, .parameters = {"name"}}, .apply = do_attr},
    {{"batch", 1, .parameters = {"linecount", "fill_with"}}, .apply = do_batch},
    {{.name = "capitalize"}, .apply = do_capitalize, .keeps_markup = true},
    {{"center", .parameters = {"width"}}, .apply = do_center, .keeps_markup = true},
    {{.name = "count"}, .apply = do_length},
    {{"d", .parameters = {"default_value", "boolean"}}, .apply = do_default},
    {{"default", .parameters = {"default_value", "boolean"}}, .apply = do_default},
    {{"dictsort", .parameters = {"case_sensitive", "by", "reverse"}}, .apply = do_dictsort},
    {{.name = "e"}, .apply = do_escape},
    {{.name = "escape"}, .apply = do_escape},
    NO("filesizeformat", "no chat template needs it"),
    {{.name = "first"}, .apply = do_first},
    {{"float", .parameters = {"default"}}, .apply = do_float},
    NO("forceescape", "use escape"),
    {{"format", .is_variadic = true}, .apply_variadic = do_format},
    {{"groupby", 1, .parameters = {"attribute", "default", "case_sensitive"}}, .apply = do_groupby},
    {{"indent", .parameters = {"width", "first", "blank"}}, .apply = do_indent, .keeps_markup = true},
    {{"int", .parameters = {"default", "base"}}, .apply = do_int},
    {{.name = "items"}, .apply = do_items},
    {{"join", .parameters = {"d", "attribute"}}, .apply = do_join},
    {{.name = "last"}, .apply = do_last},
    {{.name = "length"}, .apply = do_length},
    {{.name = "list"}, .apply = do_list},
    {{.name = "lower"}, .apply = do_lower, .keeps_markup = true},
    {{"map", .is_variadic = true}, .apply_variadic = do_map},
    {{"max", .parameters = {"case_sensitive", "attribute"}}, .apply = do_max},
    {{"min", .parameters = {"case_sensitive", "attribute"}}, .apply = do_min},
    NO("pprint", "its layout is Python's own"),
    NO("random", "a template renders the same every time"),
    {{"reject", .is_variadic = true}, .apply_variadic = do_reject},
    {{"rejectattr", .is_variadic = true}, .apply_variadic = do_rejectattr},
    {{"replace", 2, .parameters = {"old", "new", "count"}}, .apply = do_replace},
    {{.name = "reverse"}, .apply = do_reverse, .keeps_markup = true},
    {{"round", .parameters = {"precision", "method"}}, .apply = do_round},
    {{.name = "safe"}, .apply = do_safe},
    {{"select", .is_variadic = true}, .apply_variadic = do_select},
    {{"selectattr", .is_variadic = true}, .apply_variadic = do_selectattr},
    {{"slice", 1, .parameters = {"slices", "fill_with"}}, .apply = do_slice},
    {{"sort", .parameters = {"reverse", "case_sensitive", "attribute"}}, .apply = do_sort},
    {{.name = "string"}, .apply = do_string},
    NO("striptags", "templates render no HTML"),
    {{"sum", .parameters = {"attribute", "start"}}, .apply = do_sum},
    {{.name = "title"}, .apply = do_title},
    {{"tojson", .parameters = {"ensure_ascii", "indent", "separators", "sort_keys"}}, .apply = do_tojson},
    {{"trim", .parameters = {"chars"}}, .apply = do_trim, .keeps_markup = true},
    {{"truncate", .parameters = {"length", "killwords", "end", "leeway"}}, .apply = do_truncate, .keeps_markup = true},
    {{"unique", .parameters = {"case_sensitive", "attribute"}}, .apply = do_unique},
    {{.name = "upper"}, .apply = do_upper, .keeps_markup = true},
    NO("urlencode", "templates render no URLs"),
    NO("urlize", "templates render no HTML"),
    {{.name = "wordcount"}, .apply = do_wordcount},
    NO("wordwrap", "its layout is Python's own"),
    NO("xmlattr", "templates render no XML"),
};
/* clang-format on */

const filter_row *filter_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(filters); i++)
        if (strcmp(filters[i].s.name, name) == 0) return &filters[i];
    return NULL;
}

value filter_call(render *r, const char *name, value v, const arguments *a) {
    value args[PARAMETERS_MOST];
    const filter_row *row = filter_find(name);
    if (!row) return fail(r, "there is no filter '%.100s'", name);
    if (row->refused) return fail(r, "filter '%s' is not supported (%s)", row->s.name, row->refused);
    if (row->apply_variadic) return row->apply_variadic(r, v, a);
    if (!arguments_bind(r, "filter", &row->s, a, args)) return NONE;
    value out = row->apply(r, v, args);
    return row->keeps_markup ? markup_as(r, v, out) : out;
}
