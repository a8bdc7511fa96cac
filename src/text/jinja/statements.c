/* statements.c - what a template does: output, loops, conditions, assignments, macros and captured blocks. */
#include "jinja/render.h"

#include <string.h>

/* ---- macros --------------------------------------------------------------------------------------------------------- */

/* What a body renders, as a string; *flow: did a loop control leave it? */
static value capture(render *r, const node *n, flow *how) {
    builder b, *outer = r->out;
    builder_init(&b, r);
    r->out = &b;
    *how = execute(r, (const node *const *)n->items, n->n_items);
    r->out = outer;
    return builder_take(&b);
}

static value macro_value(render *r, const node *n) {
    struct macro *m = render_alloc(r, sizeof *m);
    *m = (struct macro){.definition = n, .frame = r->frame};
    for (frame *f = r->frame; f; f = f->parent) f->is_kept = true;
    return (value){.kind = V_MACRO, .macro = m};
}

static value not_provided(render *r, const char *name) {
    return undefined_hint(r, arena_format(&r->memory, "parameter '%s' was not provided", name));
}

/* The parameters and the special names, bound in the frame of the call. */
static void bind_parameters(render *r, const struct macro *m, const arguments *a) {
    const macro_signature *s = m->definition->macro;
    const char *name = m->definition->text ? m->definition->text : "caller";
    bool *used = render_alloc(r, a->n_named + 1), has_caller = false;
    value *given = render_alloc(r, (s->n + 1) * sizeof *given);
    for (size_t i = 0; i < s->n; i++) {
        given[i] = i < a->n_positional ? a->positional[i] : MISSING;
        has_caller |= strcmp(s->names[i], "caller") == 0;
        for (size_t k = 0; i >= a->n_positional && k < a->n_named; k++)
            if (!used[k] && strcmp(a->names[k], s->names[i]) == 0) {
                given[i] = a->named[k];
                used[k] = true;
            }
    }
    value caller = MISSING;
    dict *kwargs = dict_new(r);
    for (size_t k = 0; k < a->n_named; k++) {
        if (used[k]) continue;
        if (s->reads_caller && !has_caller && strcmp(a->names[k], "caller") == 0) caller = a->named[k];
        else if (s->reads_kwargs) dict_set(r, kwargs, string_literal(r, a->names[k]), a->named[k]);
        else fail(r, "macro '%.100s' takes no keyword argument '%.100s'", name, a->names[k]);
    }
    if (!s->reads_varargs && a->n_positional > s->n)
        fail(r, "macro '%.100s' takes not more than %zu argument(s)", name, s->n);
    if (s->reads_caller && !has_caller)
        bind_name(r, s->caller_id, caller.kind == V_MISSING ? undefined_hint(r, "No caller defined") : caller);
    if (s->reads_kwargs) bind_name(r, s->kwargs_id, dict_value(kwargs));
    if (s->reads_varargs) {
        list *rest = list_new(r, 0);
        for (size_t i = s->n; i < a->n_positional; i++) list_add(r, rest, a->positional[i]);
        bind_name(r, s->varargs_id, tuple_value(rest));
    }
    for (size_t i = 0; i < s->n && !failed(r); i++) {
        value v = given[i];
        if (v.kind == V_MISSING) v = s->defaults[i] ? evaluate(r, s->defaults[i]) : not_provided(r, s->names[i]);
        bind_name(r, s->ids[i], v);
    }
}

value call_macro(render *r, const struct macro *m, const arguments *a) {
    frame *outer = r->frame;
    int line = r->line;
    flow how;
    value v = NONE;
    if (r->n_calls >= JINJA_MAX_DEPTH) return fail(r, "macros call each other deeper than %d", JINJA_MAX_DEPTH);
    r->n_calls++;
    frame_push(r, m->frame);
    bind_parameters(r, m, a);
    if (!failed(r)) v = capture(r, m->definition, &how);
    r->frame = outer;
    r->n_calls--;
    if (!failed(r)) r->line = line;
    return v;
}

static void execute_call_block(render *r, const node *n) {
    value caller = macro_value(r, n);
    value v = evaluate_call_block(r, n->a, caller);
    if (!failed(r)) text_add(r->out, v);
}

/* The body is a function of its own, as in transformers: what it sets stays in it. */
static void execute_generation(render *r, const node *n) {
    frame *outer = r->frame;
    size_t begin = r->out->length;
    frame_push(r, outer);
    execute(r, (const node *const *)n->items, n->n_items);
    r->frame = outer;
    builder_mark(r->out, begin, MARK_GENERATED);
}

/* ---- loops ---------------------------------------------------------------------------------------------------------- */

/* The next item that the condition of the loop lets through. */
static bool source_next(render *r, struct source *s, value *out) {
    if (s->rest) {
        if (s->rest_next >= s->rest->n) return false;
        *out = s->rest->items[s->rest_next++];
        return true;
    }
    while (walk_next(r, &s->items, out)) {
        if (!s->test) return true;
        frame *outer = r->frame;
        frame_push(r, s->frame);
        assign(r, s->target, *out);
        bool is_taken = !failed(r) && value_truth(evaluate(r, s->test));
        r->frame = outer;
        if (failed(r)) return false;
        if (is_taken) return true;
    }
    return false;
}

static int64_t loop_length(render *r, struct loop *l) {
    if (l->length >= 0) return l->length;
    int64_t known = l->source.test ? -1 : value_length(r, l->source.items.of);
    if (known < 0) { /* a generator: read to its end */
        list *rest = list_new(r, 0);
        value v;
        while (source_next(r, &l->source, &v)) list_add(r, rest, v);
        l->source.rest = rest;
        l->source.rest_next = 0;
        known = (int64_t)rest->n + l->index0 + 1 + (l->after.kind != V_MISSING);
    }
    return l->length = known;
}

static bool loop_peek(render *r, struct loop *l) {
    if (l->after.kind == V_MISSING && !source_next(r, &l->source, &l->after)) l->after = MISSING;
    return l->after.kind != V_MISSING;
}

value loop_attribute(render *r, struct loop *l, const char *name, size_t n) {
    string s = {.text = name, .length = n};
    if (string_is(&s, "index")) return int_value(l->index0 + 1);
    if (string_is(&s, "index0")) return int_value(l->index0);
    if (string_is(&s, "first")) return bool_value(l->index0 == 0);
    if (string_is(&s, "last")) return bool_value(!loop_peek(r, l));
    if (string_is(&s, "length")) return int_value(loop_length(r, l));
    if (string_is(&s, "revindex")) return int_value(loop_length(r, l) - l->index0);
    if (string_is(&s, "revindex0")) return int_value(loop_length(r, l) - l->index0 - 1);
    if (string_is(&s, "depth")) return int_value(1);
    if (string_is(&s, "depth0")) return int_value(0);
    if (string_is(&s, "previtem")) return l->index0 ? l->before : undefined_hint(r, "there is no previous item");
    if (string_is(&s, "nextitem")) return loop_peek(r, l) ? l->after : undefined_hint(r, "there is no next item");
    return MISSING;
}

static bool loop_advance(render *r, struct loop *l) {
    value next = l->after;
    if (next.kind == V_MISSING && !source_next(r, &l->source, &next)) return false;
    l->after = MISSING;
    l->before = l->current;
    l->current = next;
    l->index0++;
    return !failed(r);
}

static flow execute_for(render *r, const node *n) {
    frame *outer = r->frame, *body = NULL;
    bool has_finished = false;
    flow how = FLOW_NEXT;
    struct loop *l = render_alloc(r, sizeof *l);
    *l = (struct loop){.index0 = -1, .length = -1};
    l->source.test = n->c;
    l->source.target = n->a;
    l->source.frame = outer;
    value items = evaluate(r, n->b);
    r->line = n->line;
    if (failed(r) || !walk_begin(r, &l->source.items, items)) return FLOW_NEXT;
    while (how != FLOW_BREAK && loop_advance(r, l)) {
        if (!body || body->is_kept) body = frame_push(r, outer); /* a macro may still look into the last one */
        body->n = 0;
        r->frame = body;
        bind_name(r, r->template->loop_name, (value){.kind = V_LOOP, .loop = l});
        assign(r, n->a, l->current);
        how = execute(r, (const node *const *)n->items, n->n_items);
        r->frame = outer;
        has_finished |= how == FLOW_NEXT;
    }
    /* As in jinja2: `else` also follows a loop of which no round came to its end. */
    if (has_finished || failed(r)) return FLOW_NEXT;
    frame_push(r, outer);
    how = execute(r, (const node *const *)n->else_items, n->n_else);
    r->frame = outer;
    return how;
}

/* ---- the other statements ------------------------------------------------------------------------------------------- */

static flow execute_if(render *r, const node *n) {
    for (; n; n = n->b) {
        bool holds = value_truth(evaluate(r, n->a));
        if (failed(r)) return FLOW_NEXT;
        if (holds) return execute(r, (const node *const *)n->items, n->n_items);
        if (!n->b) return execute(r, (const node *const *)n->else_items, n->n_else);
    }
    return FLOW_NEXT;
}

/* {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}: a frame, a string, then filters. */
static flow execute_captured(render *r, const node *n, value *out) {
    frame *outer = r->frame;
    flow how;
    value saved = r->captured;
    frame_push(r, outer);
    *out = capture(r, n, &how);
    if (n->b && how == FLOW_NEXT && !failed(r)) {
        r->captured = *out;
        *out = evaluate(r, n->b);
        r->captured = saved;
    }
    r->frame = outer;
    return how;
}

static flow execute_with(render *r, const node *n) {
    frame *outer = r->frame, *inner = frame_push(r, outer);
    for (size_t i = 0; i + 1 < n->n_else && !failed(r); i += 2) {
        r->frame = outer;
        value v = evaluate(r, n->else_items[i + 1]);
        r->frame = inner;
        if (!failed(r)) assign(r, n->else_items[i], v);
    }
    flow how = execute(r, (const node *const *)n->items, n->n_items);
    r->frame = outer;
    return how;
}

static void execute_output(render *r, const node *n) {
    if (n->a) {
        value v = evaluate(r, n->a);
        if (!failed(r)) text_add(r->out, v);
    }
    for (size_t i = 0; i < n->n_items && !failed(r); i++) { /* {% print a, b %} */
        value v = evaluate(r, n->items[i]);
        if (!failed(r)) text_add(r->out, v);
    }
}

static flow execute_node(render *r, const node *n) {
    value v;
    flow how;
    switch (n->kind) {
    case N_DATA: builder_add_string(r->out, &n->literal); break;
    case N_OUTPUT: execute_output(r, n); break;
    case N_FOR: return execute_for(r, n);
    case N_IF: return execute_if(r, n);
    case N_SET:
        v = evaluate(r, n->b);
        r->line = n->line;
        if (!failed(r)) assign(r, n->a, v);
        break;
    case N_SET_BLOCK:
        how = execute_captured(r, n, &v);
        if (how == FLOW_NEXT && !failed(r)) assign(r, n->a, v);
        return how;
    case N_FILTER_BLOCK:
        how = execute_captured(r, n, &v);
        if (how == FLOW_NEXT && !failed(r)) text_add(r->out, v);
        return how;
    case N_MACRO: bind_name(r, n->name, macro_value(r, n)); break;
    case N_CALL_BLOCK: execute_call_block(r, n); break;
    case N_GENERATION: execute_generation(r, n); break;
    case N_WITH: return execute_with(r, n);
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    default: fail(r, "this is not a statement");
    }
    return FLOW_NEXT;
}

flow execute(render *r, const node *const *body, size_t n) {
    flow how = FLOW_NEXT;
    if (++r->depth > RUN_DEPTH_MAX)
        fail(r, "executed too deep in itself: more than %d constructs in each other", RUN_DEPTH_MAX);
    for (size_t i = 0; i < n && how == FLOW_NEXT && !failed(r); i++) {
        r->line = body[i]->line;
        if (steps_take(r, 1)) how = execute_node(r, body[i]);
    }
    r->depth--;
    return how;
}
