/* eval.c - expressions: names, attributes and subscripts, calls, and the operators' order of evaluation. */
#include "jinja/render.h"

#include <string.h>

/* ---- names ---------------------------------------------------------------------------------------------------------- */

/* Frames have few names; a template that sets thousands pays for looking through them. */
enum { NAMES_PER_STEP = 16 };

frame *frame_push(render *r, frame *parent) {
    frame *f = render_alloc(r, sizeof *f);
    f->parent = parent;
    r->frame = f;
    return f;
}

value lookup(render *r, int name) {
    for (const frame *f = r->frame; f; f = f->parent) {
        steps_take(r, f->n / NAMES_PER_STEP);
        for (size_t i = 0; i < f->n; i++)
            if (f->bindings[i].name == name) return f->bindings[i].v;
    }
    value v = r->globals[name];
    return v.kind == V_MISSING ? undefined_name(r, r->template->names[name]) : v;
}

void bind_name(render *r, int name, value v) {
    frame *f = r->frame;
    if (!f) {
        r->globals[name] = v;
        return;
    }
    steps_take(r, f->n / NAMES_PER_STEP);
    for (size_t i = 0; i < f->n; i++)
        if (f->bindings[i].name == name) {
            f->bindings[i].v = v;
            return;
        }
    if (f->n == f->capacity) {
        f->capacity = f->capacity ? f->capacity * 2 : 4;
        binding *grown = render_alloc(r, f->capacity * sizeof *grown);
        if (f->n) memcpy(grown, f->bindings, f->n * sizeof *grown);
        f->bindings = grown;
    }
    f->bindings[f->n++] = (binding){name, v};
}

static void unpack(render *r, const node *target, value v) {
    list *items = v.kind == V_LIST || v.kind == V_TUPLE ? v.l : value_to_list(r, v);
    if (failed(r)) return;
    if (items->n < target->n_items)
        fail(r, "not enough values to unpack (expected %zu, got %zu)", target->n_items, items->n);
    else if (items->n > target->n_items) fail(r, "too many values to unpack (expected %zu)", target->n_items);
    else
        for (size_t i = 0; i < items->n; i++) assign(r, target->items[i], items->items[i]);
}

void assign(render *r, const node *target, value v) {
    if (target->kind == N_NAME) bind_name(r, target->name, v);
    else if (target->kind == N_TUPLE) unpack(r, target, v);
    else {
        value space = lookup(r, target->name);
        if (space.kind != V_NAMESPACE) fail(r, "cannot assign attribute on non-namespace object");
        else if (target->text[0] == '_')
            fail(r, "a namespace cannot have the attribute '%s': names with an underscore first are refused",
                 target->text);
        else dict_set(r, space.d, string_of(r, target->text, target->length, 0), v);
    }
}

/* ---- attributes and subscripts --------------------------------------------------------------------------------------- */

static value macro_attribute(render *r, const node *m, const char *name, size_t n) {
    string s = {.text = name, .length = n};
    if (string_is(&s, "name")) return m->text ? string_of(r, m->text, m->length, 0) : NONE;
    if (string_is(&s, "catch_kwargs")) return bool_value(m->macro->reads_kwargs);
    if (string_is(&s, "catch_varargs")) return bool_value(m->macro->reads_varargs);
    if (string_is(&s, "caller")) return bool_value(m->macro->reads_caller);
    if (!string_is(&s, "arguments")) return MISSING;
    list *l = list_new(r, m->macro->n);
    for (size_t i = 0; i < m->macro->n; i++) list_add(r, l, string_literal(r, m->macro->names[i]));
    return tuple_value(l);
}

/* What Python's getattr finds: methods and the attributes of a few types; V_MISSING where there is none. */
value own_attribute(render *r, value of, const char *name, size_t n) {
    const method_row *row = method_find(of.kind, name, n);
    if (row) {
        if (row->refused && !row->call && strcmp(row->refused, "unsafe") == 0)
            return undefined_unsafe(r, of, row->s.name);
        struct method *m = render_alloc(r, sizeof *m);
        *m = (struct method){.self = of, .row = row};
        return (value){.kind = V_METHOD, .method = m};
    }
    if (of.kind == V_NAMESPACE) {
        const value *v = dict_find_text(r, of.d, name, n);
        if (v) return *v;
    }
    if (of.kind == V_LOOP) return loop_attribute(r, of.loop, name, n);
    if (of.kind == V_MACRO) return macro_attribute(r, of.macro->definition, name, n);
    if (of.kind == V_CYCLER && n == 7 && memcmp(name, "current", 7) == 0)
        return of.cycler->items->items[of.cycler->next];
    if (of.kind == V_TUPLE && of.l->is_group && n == 7 && memcmp(name, "grouper", 7) == 0) return of.l->items[0];
    if (of.kind == V_TUPLE && of.l->is_group && n == 4 && memcmp(name, "list", 4) == 0) return of.l->items[1];
    return MISSING;
}

static bool is_dunder(const char *name, size_t n) {
    return n > 4 && memcmp(name, "__", 2) == 0 && memcmp(name + n - 2, "__", 2) == 0;
}

/* The name as a string that lives as long as the render. */
static value name_value(render *r, const char *name, size_t n) { return string_of(r, name, n, 0); }

value get_attribute(render *r, value of, const char *name, size_t n) {
    if (of.kind == V_UNDEFINED) return undefined_fail(r, of);
    value v = own_attribute(r, of, name, n);
    if (v.kind != V_MISSING) return v;
    if (of.kind == V_DICT) {
        const value *item = dict_find_text(r, of.d, name, n);
        if (item) return *item;
    }
    if (is_dunder(name, n)) return undefined_unsafe(r, of, string_quote(r, name_value(r, name, n).s));
    return undefined_member(r, of, name_value(r, name, n));
}

static bool is_hashable(value v, int depth) {
    if (v.kind == V_LIST || v.kind == V_DICT || v.kind == V_VIEW || depth > JINJA_MAX_DEPTH) return false;
    for (size_t i = 0; v.kind == V_TUPLE && i < v.l->n; i++)
        if (!is_hashable(v.l->items[i], depth + 1)) return false;
    return true;
}

/* obj[i] for what has places; V_MISSING: no such. */
static value item_at(render *r, value of, int64_t i) {
    int64_t n = of.kind == V_VIEW ? -1 : value_length(r, of);
    if (n < 0) return MISSING;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return MISSING;
    switch (of.kind) {
    case V_LIST:
    case V_TUPLE: return of.l->items[i];
    case V_RANGE: return int_value(of.range->start + i * of.range->step);
    case V_STRING: {
        size_t begin = text_offset(of.s, (size_t)i), length;
        char_at(of.s, begin, &length);
        return markup_as(r, of, string_slice(r, of.s, begin, begin + length));
    }
    default: return MISSING;
    }
}

value get_item(render *r, value of, value key) {
    if (of.kind == V_UNDEFINED) return undefined_fail(r, of);
    if (of.kind == V_DICT && is_hashable(key, 0)) {
        const value *v = dict_find(r, of.d, key);
        if (v) return *v;
    } else if (value_is_int(key)) {
        value v = item_at(r, of, value_int(key));
        if (v.kind != V_MISSING) return v;
    }
    if (key.kind == V_STRING) {
        value v = own_attribute(r, of, key.s->text, key.s->length);
        if (v.kind != V_MISSING) return v;
        if (is_dunder(key.s->text, key.s->length)) return undefined_unsafe(r, of, string_quote(r, key.s));
    }
    return undefined_member(r, of, key);
}

static value evaluate_slice(render *r, const node *n) {
    value of = evaluate(r, n->a), parts[3] = {NONE, NONE, NONE};
    for (int i = 0; i < 3; i++)
        if (n->items[i]) parts[i] = evaluate(r, n->items[i]);
    if (failed(r)) return NONE;
    return slice_value(r, of, parts[0], parts[1], parts[2]);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

value *arguments_find(const arguments *a, const char *name) {
    for (size_t i = 0; i < a->n_named; i++)
        if (strcmp(a->names[i], name) == 0) return &a->named[i];
    return NULL;
}

static void spread_list(render *r, arguments *a, value v) {
    list *l = value_to_list(r, v);
    value *all = render_alloc(r, (a->n_positional + l->n) * sizeof *all);
    if (a->n_positional) memcpy(all, a->positional, a->n_positional * sizeof *all);
    if (l->n) memcpy(all + a->n_positional, l->items, l->n * sizeof *all);
    a->positional = all;
    a->n_positional += l->n;
}

static void spread_dict(render *r, arguments *a, value v, size_t first) {
    if (v.d->n > ARGUMENTS_MOST) {
        fail(r, "more than %d named arguments", ARGUMENTS_MOST);
        return;
    }
    for (size_t i = 0; i < v.d->n; i++) {
        value key = v.d->entries[i].key;
        if (key.kind != V_STRING) {
            fail(r, "keywords must be strings");
            return;
        }
        char *name = render_alloc(r, key.s->length + 1);
        memcpy(name, key.s->text, key.s->length);
        if (arguments_find(a, name)) fail(r, "the argument '%s' is given twice", string_quote(r, key.s));
        a->names[first + i] = name;
        a->named[first + i] = v.d->entries[i].value;
        a->n_named++;
    }
}

/* `caller`: of a call block, V_MISSING elsewhere. */
static arguments evaluate_arguments(render *r, const call_arguments *c, value caller) {
    arguments a = {0};
    if (!c && caller.kind == V_MISSING) return a;
    call_arguments none = {0};
    if (!c) c = &none;
    a.positional = render_alloc(r, c->n_positional * sizeof *a.positional);
    for (size_t i = 0; i < c->n_positional && !failed(r); i++)
        a.positional[a.n_positional++] = evaluate(r, c->positional[i]);
    value star = c->star ? evaluate(r, c->star) : MISSING;
    value more = c->star_star ? evaluate(r, c->star_star) : MISSING;
    if (more.kind != V_MISSING && more.kind != V_DICT)
        fail(r, "argument after ** must be a mapping, not %s", value_type(more));
    if (failed(r)) return (arguments){0};
    if (star.kind != V_MISSING) spread_list(r, &a, star);
    size_t n_named = c->n_named + 1 + (more.kind == V_DICT ? more.d->n : 0);
    a.names = render_alloc(r, n_named * sizeof *a.names);
    a.named = render_alloc(r, n_named * sizeof *a.named);
    for (size_t i = 0; i < c->n_named && !failed(r); i++) {
        a.names[i] = c->names[i];
        a.named[i] = evaluate(r, c->named[i]);
        a.n_named++;
    }
    if (caller.kind != V_MISSING) {
        a.names[a.n_named] = "caller";
        a.named[a.n_named++] = caller;
    }
    if (more.kind == V_DICT && !failed(r)) spread_dict(r, &a, more, a.n_named);
    return a;
}

bool arguments_bind(render *r, const char *what, const signature *s, const arguments *a, value out[PARAMETERS_MOST]) {
    size_t n = 0;
    while (n < PARAMETERS_MOST && s->parameters[n]) n++;
    for (size_t i = 0; i < PARAMETERS_MOST; i++) out[i] = MISSING;
    if (a->n_positional > n) {
        fail(r, "%s '%s' takes at most %zu argument(s), found %zu", what, s->name, n, a->n_positional);
        return false;
    }
    for (size_t i = 0; i < a->n_positional; i++) out[i] = a->positional[i];
    for (size_t k = 0; k < a->n_named; k++) {
        size_t i = 0;
        while (i < n && strcmp(s->parameters[i], a->names[k]) != 0) i++;
        if (i == n || !*a->names[k]) fail(r, "%s '%s' has no argument '%.100s'", what, s->name, a->names[k]);
        else if (out[i].kind != V_MISSING)
            fail(r, "%s '%s' got two values for argument '%s'", what, s->name, a->names[k]);
        else out[i] = a->named[k];
    }
    for (int i = 0; i < s->n_required; i++)
        if (out[i].kind == V_MISSING) fail(r, "%s '%s' is missing an argument", what, s->name);
    return !failed(r);
}

value call_value(render *r, value callee, const arguments *a) {
    if (!steps_take(r, 1)) return NONE;
    switch (callee.kind) {
    case V_UNDEFINED: return undefined_fail(r, callee);
    case V_MACRO: return call_macro(r, callee.macro, a);
    case V_FUNCTION: return function_call(r, callee.function, a);
    case V_METHOD: return method_call(r, callee.method, a);
    case V_JOINER: return callee.cycler->next++ ? callee.cycler->separator : string_literal(r, "");
    case V_LOOP: return fail(r, "calling 'loop' is not supported: it is for recursive loops");
    default: return fail(r, "'%s' object is not callable", value_type(callee));
    }
}

static value evaluate_call(render *r, const node *n, value caller) {
    value callee = evaluate(r, n->a);
    if (failed(r)) return NONE;
    arguments a = evaluate_arguments(r, n->call, caller);
    r->line = n->line;
    return failed(r) ? NONE : call_value(r, callee, &a);
}

value evaluate_call_block(render *r, const node *n, value caller) { return evaluate_call(r, n, caller); }

/* ---- operators ------------------------------------------------------------------------------------------------------ */

static value evaluate_items(render *r, const node *n) {
    list *l = list_new(r, n->n_items);
    for (size_t i = 0; i < n->n_items && !failed(r); i++) list_add(r, l, evaluate(r, n->items[i]));
    return n->kind == N_LIST ? list_value(l) : tuple_value(l);
}

static value evaluate_dict(render *r, const node *n) {
    dict *d = dict_new(r);
    for (size_t i = 0; i + 1 < n->n_items && !failed(r); i += 2) {
        value key = evaluate(r, n->items[i]), v = evaluate(r, n->items[i + 1]);
        if (!failed(r)) dict_set(r, d, key, v);
    }
    return dict_value(d);
}

static value evaluate_math(render *r, const node *n) {
    value v = evaluate(r, n->items[0]);
    for (size_t i = 1; i < n->n_items && !failed(r); i++) {
        value other = evaluate(r, n->items[i]);
        r->line = n->line;
        if (!failed(r)) v = operate(r, n->ops[i - 1], v, other);
    }
    return v;
}

static value evaluate_logic(render *r, const node *n) {
    value v = NONE;
    for (size_t i = 0; i < n->n_items && !failed(r); i++) {
        v = evaluate(r, n->items[i]);
        if (value_truth(v) == (n->kind == N_OR)) return v;
    }
    return v;
}

static value evaluate_concat(render *r, const node *n) {
    builder b;
    builder_init(&b, r);
    for (size_t i = 0; i < n->n_items && !failed(r); i++) text_add(&b, evaluate(r, n->items[i]));
    return builder_take(&b);
}

static value evaluate_comparison(render *r, const node *n) {
    value left = evaluate(r, n->items[0]);
    for (size_t i = 1; i < n->n_items && !failed(r); i++) {
        value right = evaluate(r, n->items[i]);
        r->line = n->line;
        if (failed(r)) break;
        if (!value_truth(operate(r, n->ops[i - 1], left, right))) return bool_value(false);
        left = right;
    }
    return bool_value(true);
}

static value evaluate_conditional(render *r, const node *n) {
    value condition = evaluate(r, n->b);
    if (failed(r)) return NONE;
    if (value_truth(condition)) return evaluate(r, n->a);
    if (n->c) return evaluate(r, n->c);
    return undefined_hint(r, "the inline if-expression evaluated to false and no else section was defined");
}

static value evaluate_filter(render *r, const node *n) {
    value v = n->a ? evaluate(r, n->a) : r->captured;
    if (failed(r)) return NONE;
    arguments a = evaluate_arguments(r, n->call, MISSING);
    r->line = n->line;
    return failed(r) ? NONE : filter_call(r, n->text, v, &a);
}

static value evaluate_test(render *r, const node *n) {
    value v = evaluate(r, n->a);
    if (failed(r)) return NONE;
    arguments a = evaluate_arguments(r, n->call, MISSING);
    r->line = n->line;
    return failed(r) ? NONE : bool_value(test_call(r, n->text, v, &a));
}

static value evaluate_node(render *r, const node *n) {
    switch (n->kind) {
    case N_CONST: return n->constant;
    case N_NAME: return lookup(r, n->name);
    case N_LIST:
    case N_TUPLE: return evaluate_items(r, n);
    case N_DICT: return evaluate_dict(r, n);
    case N_MATH: return evaluate_math(r, n);
    case N_AND:
    case N_OR: return evaluate_logic(r, n);
    case N_NOT: return bool_value(!value_truth(evaluate(r, n->a)));
    case N_NEGATIVE:
    case N_POSITIVE: {
        value v = evaluate(r, n->a);
        return failed(r) ? NONE : sign_value(r, v, n->kind == N_NEGATIVE);
    }
    case N_CONCAT: return evaluate_concat(r, n);
    case N_COMPARE: return evaluate_comparison(r, n);
    case N_CONDITIONAL: return evaluate_conditional(r, n);
    case N_ATTRIBUTE: {
        value of = evaluate(r, n->a);
        r->line = n->line;
        return failed(r) ? NONE : get_attribute(r, of, n->text, n->length);
    }
    case N_ITEM: {
        value of = evaluate(r, n->a), key = evaluate(r, n->b);
        r->line = n->line;
        return failed(r) ? NONE : get_item(r, of, key);
    }
    case N_SLICE: return evaluate_slice(r, n);
    case N_CALL: return evaluate_call(r, n, MISSING);
    case N_FILTER: return evaluate_filter(r, n);
    case N_TEST: return evaluate_test(r, n);
    default: return fail(r, "this is not an expression");
    }
}

value evaluate(render *r, const node *n) {
    r->line = n->line;
    if (!steps_take(r, 1)) return NONE;
    if (++r->depth > RUN_DEPTH_MAX) {
        r->depth--;
        return fail(r, "evaluated too deep in itself: more than %d constructs in each other", RUN_DEPTH_MAX);
    }
    value v = evaluate_node(r, n);
    r->depth--;
    return v;
}
