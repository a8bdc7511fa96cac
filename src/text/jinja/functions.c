/* functions.c - the functions that a template can call by name: one row each. */
#include "jinja/render.h"

#include <stdlib.h>
#include <string.h>

/* The sandbox of jinja2 draws the same line. */
enum { RANGE_MOST = 100000 };

static value do_range(render *r, const arguments *a) {
    int64_t bounds[3] = {0, 0, 1};
    if (a->n_named || a->n_positional < 1 || a->n_positional > 3) return fail(r, "range expects 1 to 3 arguments");
    for (size_t i = 0; i < a->n_positional; i++) {
        value v = a->positional[i];
        if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
        if (!value_is_int(v)) return fail(r, "'%s' object cannot be interpreted as an integer", value_type(v));
        bounds[i] = value_int(v);
    }
    if (a->n_positional == 1) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0) return fail(r, "range() arg 3 must not be zero");
    struct range *range = render_alloc(r, sizeof *range);
    *range = (struct range){.start = start, .stop = stop, .step = step};
    bool has_items = step > 0 ? stop > start : stop < start;
    uint64_t distance = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t stride = step > 0 ? (uint64_t)step : -(uint64_t)step;
    uint64_t n = has_items ? (distance - 1) / stride + 1 : 0;
    if (n > RANGE_MOST) return fail(r, "Range too big: more than %d numbers", RANGE_MOST);
    range->n = (int64_t)n;
    return (value){.kind = V_RANGE, .range = range};
}

/* A mapping or pairs, then named arguments. */
static dict *dict_of(render *r, const arguments *a) {
    dict *d = dict_new(r);
    walk w;
    value item;
    if (a->n_positional > 1) fail(r, "dict expected at most 1 argument, got %zu", a->n_positional);
    if (a->n_positional && a->positional[0].kind == V_DICT) {
        const dict *from = a->positional[0].d;
        for (size_t i = 0; i < from->n && steps_take(r, 1); i++)
            dict_set(r, d, from->entries[i].key, from->entries[i].value);
    } else if (a->n_positional && walk_begin(r, &w, a->positional[0])) {
        while (walk_next(r, &w, &item)) {
            list *pair = value_to_list(r, item);
            if (!failed(r) && pair->n != 2)
                fail(r, "dictionary update sequence element has length %zu; 2 is required", pair->n);
            if (!failed(r)) dict_set(r, d, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < a->n_named && !failed(r); i++) dict_set(r, d, string_literal(r, a->names[i]), a->named[i]);
    return d;
}

static value do_dict(render *r, const arguments *a) { return dict_value(dict_of(r, a)); }

static value do_namespace(render *r, const arguments *a) {
    dict *d = dict_of(r, a);
    for (size_t i = 0; i < d->n; i++)
        if (d->entries[i].key.kind == V_STRING && d->entries[i].key.s->length && d->entries[i].key.s->text[0] == '_')
            return fail(r, "a namespace cannot have the attribute '%s': names with an underscore first are refused",
                        string_quote(r, d->entries[i].key.s));
    return (value){.kind = V_NAMESPACE, .d = d};
}

static value do_raise(render *r, const value *args) {
    const string *s = value_text(r, args[0]);
    if (failed(r)) return NONE;
    r->raised = mem_alloc(s->length + 1);
    memcpy(r->raised, s->text, s->length);
    return fail(r, "%s", r->raised);
}

static value do_strftime(render *r, const value *args) {
    if (args[0].kind != V_STRING) return fail(r, "strftime_now: expected a format, found '%s'", value_type(args[0]));
    return time_format_now(r, args[0].s);
}

static value do_cycler(render *r, const arguments *a) {
    if (!a->n_positional) return fail(r, "cycler: at least one item has to be provided");
    struct cycler *c = render_alloc(r, sizeof *c);
    c->items = list_new(r, a->n_positional);
    for (size_t i = 0; i < a->n_positional; i++) list_add(r, c->items, a->positional[i]);
    return (value){.kind = V_CYCLER, .cycler = c};
}

static value do_joiner(render *r, const value *args) {
    struct cycler *c = render_alloc(r, sizeof *c);
    c->separator = args[0].kind == V_MISSING ? string_literal(r, ", ") : args[0];
    return (value){.kind = V_JOINER, .cycler = c};
}

/* clang-format off */
static const function functions[] = {
    {{"range", .is_variadic = true}, .call_variadic = do_range},
    {{"dict", .is_variadic = true}, .call_variadic = do_dict},
    {{"namespace", .is_variadic = true}, .call_variadic = do_namespace},
    {{"cycler", .is_variadic = true}, .call_variadic = do_cycler},
    {{"joiner", .parameters = {"sep"}}, .call = do_joiner},
    {{"raise_exception", 1, .parameters = {"message"}}, .call = do_raise},
    {{"strftime_now", 1, .parameters = {"format"}}, .call = do_strftime},
    {{.name = "lipsum"}, .refused = "a template renders the same every time"},
};
/* clang-format on */

const function *function_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(functions); i++)
        if (strcmp(functions[i].s.name, name) == 0) return &functions[i];
    return NULL;
}

value function_call(render *r, const function *f, const arguments *a) {
    value args[PARAMETERS_MOST];
    if (f->refused) return fail(r, "function '%s' is not supported (%s)", f->s.name, f->refused);
    if (f->call_variadic) return f->call_variadic(r, a);
    return arguments_bind(r, "function", &f->s, a, args) ? f->call(r, args) : NONE;
}
