/* tests.c - `x is test`: one row each. */
#include "jinja/render.h"

#include <string.h>

static bool modulo(render *r, value v, value by, int64_t wanted) {
    value rest = operate(r, T_MOD, v, by);
    return !failed(r) && value_equal(r, rest, int_value(wanted));
}
static bool is_odd(render *r, value v, const value *args) { return modulo(r, v, int_value(2), 1); }
static bool is_even(render *r, value v, const value *args) { return modulo(r, v, int_value(2), 0); }
static bool is_divisible(render *r, value v, const value *args) { return modulo(r, v, args[0], 0); }
static bool is_defined(render *r, value v, const value *args) { return v.kind != V_UNDEFINED; }
static bool is_undefined(render *r, value v, const value *args) { return v.kind == V_UNDEFINED; }
static bool is_none(render *r, value v, const value *args) { return v.kind == V_NONE; }
static bool is_boolean(render *r, value v, const value *args) { return v.kind == V_BOOL; }
static bool is_false(render *r, value v, const value *args) { return v.kind == V_BOOL && !v.b; }
static bool is_true(render *r, value v, const value *args) { return v.kind == V_BOOL && v.b; }
static bool is_integer(render *r, value v, const value *args) { return v.kind == V_INT; }
static bool is_float(render *r, value v, const value *args) { return v.kind == V_FLOAT; }
static bool is_lower(render *r, value v, const value *args) { return text_is_cased(r, value_text(r, v), false); }
static bool is_upper(render *r, value v, const value *args) { return text_is_cased(r, value_text(r, v), true); }
static bool is_string(render *r, value v, const value *args) { return v.kind == V_STRING; }
static bool is_mapping(render *r, value v, const value *args) { return v.kind == V_DICT; }
static bool is_number(render *r, value v, const value *args) { return value_is_number(v); }
static bool is_sequence(render *r, value v, const value *args) {
    return v.kind == V_STRING || v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_DICT || v.kind == V_RANGE ||
           v.kind == V_UNDEFINED;
}
static bool is_iterable(render *r, value v, const value *args) { return value_is_iterable(v) || v.kind == V_LOOP; }
static bool is_callable(render *r, value v, const value *args) {
    return v.kind == V_MACRO || v.kind == V_FUNCTION || v.kind == V_METHOD || v.kind == V_JOINER || v.kind == V_LOOP ||
           v.kind == V_UNDEFINED;
}
static bool is_escaped(render *r, value v, const value *args) { return v.kind == V_STRING && v.s->is_markup; }
static bool is_in(render *r, value v, const value *args) { return value_contains(r, args[0], v); }

/* The same object: small integers, short constants and singletons are; what else Python makes of it, no template needs. */
static bool is_same(render *r, value v, const value *args) {
    value other = args[0];
    if (v.kind != other.kind) return false;
    switch (v.kind) {
    case V_NONE: return true;
    case V_BOOL: return v.b == other.b;
    case V_INT: return v.i == other.i && v.i >= -5 && v.i <= 256;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_NAMESPACE:
    case V_MACRO:
    case V_LOOP: return v.l == other.l;
    default: fail(r, "test 'sameas' is not supported for '%s'", value_type(v)); return false;
    }
}

static bool is_filter(render *r, value v, const value *args) {
    return v.kind == V_STRING && filter_find(string_quote(r, v.s)) != NULL;
}
static bool is_test(render *r, value v, const value *args) {
    return v.kind == V_STRING && test_find(string_quote(r, v.s)) != NULL;
}

#define COMPARISON(name, op) \
    static bool name(render *r, value v, const value *args) { return value_truth(operate(r, op, v, args[0])); }
COMPARISON(is_equal, T_EQ)
COMPARISON(is_unequal, T_NE)
COMPARISON(is_greater, T_GT)
COMPARISON(is_at_least, T_GE)
COMPARISON(is_less, T_LT)
COMPARISON(is_at_most, T_LE)

#define ONE(name)                     \
    {                                 \
        name, 1, .parameters = { "" } \
    }
/* clang-format off */
static const test_row tests[] = {
    {{.name = "odd"}, .holds = is_odd}, {{.name = "even"}, .holds = is_even}, {{"divisibleby", 1, .parameters = {"num"}}, .holds = is_divisible},
    {{.name = "defined"}, .holds = is_defined}, {{.name = "undefined"}, .holds = is_undefined}, {{.name = "none"}, .holds = is_none}, {{.name = "boolean"}, .holds = is_boolean},
    {{.name = "false"}, .holds = is_false}, {{.name = "true"}, .holds = is_true}, {{.name = "integer"}, .holds = is_integer}, {{.name = "float"}, .holds = is_float}, {{.name = "lower"}, .holds = is_lower},
    {{.name = "upper"}, .holds = is_upper}, {{.name = "string"}, .holds = is_string}, {{.name = "mapping"}, .holds = is_mapping}, {{.name = "number"}, .holds = is_number},
    {{.name = "sequence"}, .holds = is_sequence}, {{.name = "iterable"}, .holds = is_iterable}, {{.name = "callable"}, .holds = is_callable},
    {{"sameas", 1, .parameters = {"other"}}, .holds = is_same}, {{.name = "escaped"}, .holds = is_escaped},
    {{"in", 1, .parameters = {"seq"}}, .holds = is_in}, {{.name = "filter"}, .holds = is_filter}, {{.name = "test"}, .holds = is_test},
    {ONE("=="), .holds = is_equal}, {ONE("eq"), .holds = is_equal}, {ONE("equalto"), .holds = is_equal}, {ONE("!="), .holds = is_unequal},
    {ONE("ne"), .holds = is_unequal}, {ONE(">"), .holds = is_greater}, {ONE("gt"), .holds = is_greater}, {ONE("greaterthan"), .holds = is_greater},
    {ONE(">="), .holds = is_at_least}, {ONE("ge"), .holds = is_at_least}, {ONE("<"), .holds = is_less}, {ONE("lt"), .holds = is_less},
    {ONE("lessthan"), .holds = is_less}, {ONE("<="), .holds = is_at_most}, {ONE("le"), .holds = is_at_most},
};
/* clang-format on */

const test_row *test_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(tests); i++)
        if (strcmp(tests[i].s.name, name) == 0) return &tests[i];
    return NULL;
}

bool test_call(render *r, const char *name, value v, const arguments *a) {
    value args[PARAMETERS_MOST];
    const test_row *row = test_find(name);
    if (!row) {
        fail(r, "there is no test '%.100s'", name);
        return false;
    }
    return arguments_bind(r, "test", &row->s, a, args) && row->holds(r, v, args);
}
