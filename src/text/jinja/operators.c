/* operators.c - arithmetic, comparisons and slices with Python's rules. Integers have 64 bits here; what does not fit is an
 * error, not a wrong number. */
#include "jinja/render.h"

#include <math.h>
#include <string.h>

static const char *symbol(int op) {
    switch (op) {
    case T_ADD: return "+";
    case T_SUB: return "-";
    case T_MUL: return "*";
    case T_DIV: return "/";
    case T_FLOORDIV: return "//";
    case T_MOD: return "%";
    case T_POW: return "** or pow()";
    case T_GT: return ">";
    case T_GE: return ">=";
    case T_LT: return "<";
    default: return "<=";
    }
}

static value mismatch(render *r, int op, value a, value b) {
    if (op == T_ADD && a.kind == V_STRING)
        return fail(r, "can only concatenate str (not \"%s\") to str", value_type(b));
    if (op == T_ADD && a.kind == V_LIST)
        return fail(r, "can only concatenate list (not \"%s\") to list", value_type(b));
    return fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", symbol(op), value_type(a), value_type(b));
}

/* ---- numbers -------------------------------------------------------------------------------------------------------- */

static value marked(value v, uint8_t marks) {
    v.marks = marks;
    return v;
}

static bool int_power(int64_t base, int64_t exponent, int64_t *out) {
    *out = 1;
    while (exponent > 0) {
        if (exponent & 1 && __builtin_mul_overflow(*out, base, out)) return false;
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) return false;
    }
    return true;
}

static value int_operate(render *r, int op, int64_t a, int64_t b) {
    int64_t out = 0;
    bool fits = true;
    switch (op) {
    case T_ADD: fits = !__builtin_add_overflow(a, b, &out); break;
    case T_SUB: fits = !__builtin_sub_overflow(a, b, &out); break;
    case T_MUL: fits = !__builtin_mul_overflow(a, b, &out); break;
    case T_DIV:
        if (b == 0) return fail(r, "division by zero");
        return float_value((double)a / (double)b);
    case T_FLOORDIV:
    case T_MOD:
        if (b == 0) return fail(r, "integer division or modulo by zero");
        if (b == -1) {
            if (op == T_MOD) return int_value(0);
            fits = !__builtin_sub_overflow((int64_t)0, a, &out);
        } else {
            int64_t rest = a % b, whole = a / b;
            if (rest && (rest < 0) != (b < 0)) rest += b, whole--;
            out = op == T_MOD ? rest : whole;
        }
        break;
    default:
        if (b < 0 && a == 0) return fail(r, "0.0 cannot be raised to a negative power");
        if (b < 0) return float_value(pow((double)a, (double)b));
        if (a == 1 || a == 0 || a == -1) out = b == 0 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : a;
        else fits = int_power(a, b, &out);
    }
    return fits ? int_value(out) : fail(r, "the result of %.2s is beyond 64 bits", symbol(op));
}

static value float_operate(render *r, int op, double a, double b) {
    double out, rest;
    switch (op) {
    case T_ADD: return float_value(a + b);
    case T_SUB: return float_value(a - b);
    case T_MUL: return float_value(a * b);
    case T_DIV:
        if (b == 0) return fail(r, "float division by zero");
        return float_value(a / b);
    case T_FLOORDIV:
    case T_MOD:
        if (b == 0) return fail(r, "float floor division or modulo by zero");
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
        else if (rest == 0) rest = copysign(0, b);
        if (op == T_MOD) return float_value(rest);
        out = (a - rest) / b;
        return float_value(out == 0 ? copysign(0, a / b) : floor(out + 0.5));
    default:
        if (a == 0 && b < 0) return fail(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(b) && b != floor(b)) return fail(r, "a power that is a complex number is not supported");
        out = pow(a, b);
        if (isinf(out) && isfinite(a) && isfinite(b)) return fail(r, "the result of ** is too large");
        return float_value(out);
    }
}

value sign_value(render *r, value v, bool is_negative) {
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (!value_is_number(v))
        return fail(r, "bad operand type for unary %c: '%s'", is_negative ? '-' : '+', value_type(v));
    if (v.kind == V_FLOAT) return marked(float_value(is_negative ? -v.f : v.f), v.marks);
    if (is_negative && value_int(v) == INT64_MIN) return fail(r, "the result of - is beyond 64 bits");
    return marked(int_value(is_negative ? -value_int(v) : value_int(v)), v.marks);
}

/* ---- sequences ------------------------------------------------------------------------------------------------------ */

/* Text that was marked safe escapes what is added to it, and stays marked. */
static value concatenate_markup(render *r, value a, value b) {
    value left = value_escape_html(r, a), right = value_escape_html(r, b);
    builder out;
    builder_init(&out, r);
    builder_add_string(&out, left.s);
    builder_add_string(&out, right.s);
    return markup_value(r, builder_take(&out));
}

static value concatenate(render *r, value a, value b) {
    if (a.kind == V_STRING && (a.s->is_markup || b.s->is_markup)) return concatenate_markup(r, a, b);
    if (a.kind == V_STRING) {
        builder out;
        builder_init(&out, r);
        builder_add_string(&out, a.s);
        builder_add_string(&out, b.s);
        return builder_take(&out);
    }
    list *l = list_new(r, a.l->n + b.l->n);
    if (!steps_take(r, l->capacity)) return NONE;
    if (a.l->n) memcpy(l->items, a.l->items, a.l->n * sizeof *l->items);
    if (b.l->n) memcpy(l->items + a.l->n, b.l->items, b.l->n * sizeof *l->items);
    l->n = l->capacity;
    return (value){.kind = a.kind, .l = l};
}

static value repeat(render *r, value v, int64_t times) {
    if (v.kind == V_STRING && !v.s->mask) {
        builder out;
        builder_init(&out, r);
        builder_fill(&out, v.s->text, v.s->length, v.s->marks, times);
        return builder_take(&out);
    }
    if (v.kind == V_STRING) {
        builder out;
        builder_init(&out, r);
        for (int64_t i = 0; i < times && steps_take(r, 1); i++) builder_add_string(&out, v.s);
        return builder_take(&out);
    }
    list *l = list_new(r, 0);
    for (int64_t i = 0; i < times && v.l->n && !failed(r); i++)
        for (size_t k = 0; k < v.l->n && steps_take(r, 1); k++) list_add(r, l, v.l->items[k]);
    return (value){.kind = v.kind, .l = l};
}

static bool is_sequence(value v) { return v.kind == V_STRING || v.kind == V_LIST || v.kind == V_TUPLE; }

/* ---- all ------------------------------------------------------------------------------------------------------------ */

static bool is_nan(value v) { return v.kind == V_FLOAT && isnan(v.f); }

static bool compares(render *r, int op, value a, value b) {
    switch (op) {
    case T_EQ: return value_equal(r, a, b);
    case T_NE: return !value_equal(r, a, b);
    case T_IN: return value_contains(r, b, a);
    case T_NOT_IN: return !value_contains(r, b, a);
    default: break;
    }
    if (value_is_number(a) && value_is_number(b) && (is_nan(a) || is_nan(b))) return false;
    int order = value_compare(r, a, b, symbol(op));
    return op == T_GT ? order > 0 : op == T_GE ? order >= 0 : op == T_LT ? order < 0 : order <= 0;
}

value operate(render *r, int op, value a, value b) {
    if (op >= T_EQ && op <= T_LE) return bool_value(compares(r, op, a, b));
    if (op == T_IN || op == T_NOT_IN) return bool_value(compares(r, op, a, b));
    if (op == T_MOD && a.kind == V_STRING)
        return a.s->is_markup ? fail(r, "%% on text that was marked safe is not supported") : format_percent(r, a.s, b);
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED) return undefined_fail(r, a.kind == V_UNDEFINED ? a : b);
    if (value_is_number(a) && value_is_number(b)) {
        bool is_float = a.kind == V_FLOAT || b.kind == V_FLOAT;
        return marked(is_float ? float_operate(r, op, value_number(a), value_number(b))
                               : int_operate(r, op, value_int(a), value_int(b)),
                      a.marks | b.marks);
    }
    if (op == T_ADD && a.kind == b.kind && is_sequence(a)) return concatenate(r, a, b);
    if (op == T_MUL && is_sequence(a) && value_is_int(b)) return markup_as(r, a, repeat(r, a, value_int(b)));
    if (op == T_MUL && is_sequence(b) && value_is_int(a)) return markup_as(r, b, repeat(r, b, value_int(a)));
    return mismatch(r, op, a, b);
}

/* ---- slices --------------------------------------------------------------------------------------------------------- */

static bool slice_bound(render *r, value v, int64_t n, int64_t step, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (v.kind == V_NONE) return true;
    if (!value_is_int(v)) {
        fail(r, "slice indices must be integers or None, found '%s'", value_type(v));
        return false;
    }
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n, i = value_int(v);
    if (i < 0) i = i < -n ? low : i + n;
    *out = MAX(low, MIN(i, high));
    return true;
}

static value slice_string(render *r, const string *s, int64_t start, int64_t count, int64_t step) {
    if (step == 1) {
        size_t begin = text_offset(s, (size_t)start);
        string rest = {.text = s->text + begin, .length = s->length - begin};
        return string_slice(r, s, begin, begin + text_offset(&rest, (size_t)count));
    }
    builder b;
    builder_init(&b, r);
    size_t at = text_offset(s, (size_t)start), n;
    for (int64_t i = 0; i < count && steps_take(r, 1); i++) {
        char_at(s, at, &n);
        builder_add_part(&b, s, at, at + n);
        for (int64_t k = 0; k < step && at < s->length; k++) { /* to the next one, either way */
            char_at(s, at, &n);
            at += n;
        }
        for (int64_t k = 0; k > step && at > 0; k--) do
                at--;
            while (at > 0 && (s->text[at] & 0xc0) == 0x80);
    }
    return builder_take(&b);
}

value slice_value(render *r, value v, value start, value stop, value step) {
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    bool has_places = is_sequence(v) || v.kind == V_RANGE;
    if (!has_places) return fail(r, "'%s' object cannot be sliced", value_type(v));
    int64_t n = value_length(r, v), by = 1, from, to;
    if (step.kind != V_NONE) {
        if (!value_is_int(step)) return fail(r, "slice indices must be integers or None, found '%s'", value_type(step));
        by = value_int(step);
        if (by == 0) return fail(r, "slice step cannot be zero");
        by = MAX(by, -INT64_MAX);
    }
    if (!slice_bound(r, start, n, by, by < 0 ? n - 1 : 0, &from) || !slice_bound(r, stop, n, by, by < 0 ? -1 : n, &to))
        return NONE;
    int64_t distance = by > 0 ? to - from : from - to, stride = by > 0 ? by : -by;
    int64_t count = distance > 0 ? (distance - 1) / stride + 1 : 0;
    if (count == 0) from = 0;
    by = MAX(MIN(by, n), -n); /* a longer step is not needed for one item */
    if (v.kind == V_STRING) return markup_as(r, v, slice_string(r, v.s, from, count, by ? by : 1));
    if (v.kind == V_RANGE) {
        struct range *range = render_alloc(r, sizeof *range);
        int64_t first = v.range->start + from * v.range->step, stepped = v.range->step * (by ? by : 1);
        *range = (struct range){.start = first, .stop = first + count * stepped, .step = stepped, .n = count};
        return (value){.kind = V_RANGE, .range = range};
    }
    list *l = list_new(r, (size_t)count);
    for (int64_t i = 0; i < count && steps_take(r, 1); i++) list_add(r, l, v.l->items[from + i * by]);
    return (value){.kind = v.kind, .l = l};
}
