/* parse_expression.c - expressions, with the precedences of Jinja: if-else, or, and, not, comparisons, + -, ~, * / // %,
 * **, unary signs, then attributes, subscripts, calls, filters and tests.
 *
 * What repeats on one level (a + b + c, a or b or c) becomes one node with many operands, so that long sums are not deep.
 * Filters and tests are looked up here: an unknown one is an error when the template is opened. */
#include "jinja/parser.h"
#include "jinja/render.h"

#include <stdlib.h>
#include <string.h>

static status parse_unary(parser *p, bool with_filter, node **out);
static status parse_primary(parser *p, bool with_member, node **out);

/* ---- literals and names --------------------------------------------------------------------------------------------- */

static node *constant(parser *p, value v) {
    node *n = node_new(p, N_CONST);
    n->constant = v;
    return n;
}

static node *parse_strings(parser *p) {
    node *n = node_new(p, N_CONST);
    size_t length = 0;
    for (const token *t = p->at; t->kind == T_STRING; t++) length += t->length;
    char *text = arena_alloc(&p->t->memory, length + 1);
    length = 0;
    for (; at_kind(p, T_STRING); p->at++) {
        memcpy(text + length, p->at->text, p->at->length);
        length += p->at->length;
    }
    n->literal = (string){.text = text, .length = length};
    n->constant = (value){.kind = V_STRING, .s = &n->literal};
    n->text = text;
    n->length = length;
    return n;
}

/* caller, kwargs and varargs are given to a macro only where its body names them. */
static void note_special(parser *p, const char *name) {
    for (int i = 0; i < p->n_macros; i++) {
        macro_signature *m = p->macros[i];
        if (strcmp(name, "caller") == 0) m->reads_caller = true;
        if (strcmp(name, "kwargs") == 0) m->reads_kwargs = true;
        if (strcmp(name, "varargs") == 0) m->reads_varargs = true;
    }
}

static status parse_name(parser *p, bool with_member, node **out) {
    const token *t = p->at++;
    const char *s = t->text;
    if (strcmp(s, "true") == 0 || strcmp(s, "True") == 0) *out = constant(p, bool_value(true));
    else if (strcmp(s, "false") == 0 || strcmp(s, "False") == 0) *out = constant(p, bool_value(false));
    else if (strcmp(s, "none") == 0 || strcmp(s, "None") == 0) *out = constant(p, NONE);
    else if (with_member && at_kind(p, T_DOT)) {
        p->at++;
        node *n = *out = node_new(p, N_MEMBER);
        n->name = name_id(p, s, true);
        n->text = p->at->text;
        n->length = p->at->length;
        return expect(p, T_NAME, "a name");
    } else {
        node *n = *out = node_new(p, N_NAME);
        n->line = t->line;
        n->text = s;
        n->length = t->length;
        n->name = name_id(p, s, !p->is_target);
        note_special(p, s);
    }
    return OK;
}

static status parse_list(parser *p, node **out) {
    node_list items = {0};
    status rc = OK;
    node *n = *out = node_new(p, N_LIST), *item;
    p->at++;
    while (!at_kind(p, T_RBRACKET)) {
        if (items.n) TRY_GOTO(rc, expect(p, T_COMMA, "','"), end);
        if (at_kind(p, T_RBRACKET)) break;
        TRY_GOTO(rc, parse_value(p, true, &item), end);
        node_list_add(&items, item);
    }
    TRY_GOTO(rc, expect(p, T_RBRACKET, "']'"), end);
end:
    node_list_take(p, &items, &n->items, &n->n_items);
    return rc;
}

static status parse_dict(parser *p, node **out) {
    node_list items = {0};
    status rc = OK;
    node *n = *out = node_new(p, N_DICT), *item;
    p->at++;
    while (!at_kind(p, T_RBRACE)) {
        if (items.n) TRY_GOTO(rc, expect(p, T_COMMA, "','"), end);
        if (at_kind(p, T_RBRACE)) break;
        TRY_GOTO(rc, parse_value(p, true, &item), end);
        node_list_add(&items, item);
        TRY_GOTO(rc, expect(p, T_COLON, "':'"), end);
        TRY_GOTO(rc, parse_value(p, true, &item), end);
        node_list_add(&items, item);
    }
    TRY_GOTO(rc, expect(p, T_RBRACE, "'}'"), end);
end:
    node_list_take(p, &items, &n->items, &n->n_items);
    return rc;
}

static status parse_primary(parser *p, bool with_member, node **out) {
    char found[64];
    switch (p->at->kind) {
    case T_NAME: return parse_name(p, with_member, out);
    case T_STRING: *out = parse_strings(p); return OK;
    case T_INTEGER: *out = constant(p, int_value(p->at++->integer)); return OK;
    case T_FLOAT: *out = constant(p, float_value(p->at++->real)); return OK;
    case T_LPAREN:
        p->at++;
        TRY(parse_tuple(p, true, TUPLE_PLAIN, true, out));
        return expect(p, T_RPAREN, "')'");
    case T_LBRACKET: return parse_list(p, out);
    case T_LBRACE: return parse_dict(p, out);
    default: return PARSE_ERR(p, "unexpected %s", token_describe(p->at, found));
    }
}

/* ---- calls, attributes, subscripts ---------------------------------------------------------------------------------- */

typedef struct call_lists {
    node_list positional, named;
    const char **names;
    size_t names_capacity;
} call_lists;

static status parse_argument(parser *p, call_arguments *c, call_lists *l) {
    node *v;
    if (skip_kind(p, T_MUL)) {
        if (c->star || c->star_star) return PARSE_ERR(p, "*arguments stand twice, or behind **arguments");
        return parse_value(p, true, &c->star);
    }
    if (skip_kind(p, T_POW)) {
        if (c->star_star) return PARSE_ERR(p, "**arguments stand twice");
        return parse_value(p, true, &c->star_star);
    }
    if (at_kind(p, T_NAME) && p->at[1].kind == T_ASSIGN) {
        if (c->star_star) return PARSE_ERR(p, "a named argument behind **arguments");
        const char *name = p->at->text;
        for (size_t i = 0; i < l->named.n; i++)
            if (strcmp(l->names[i], name) == 0) return PARSE_ERR(p, "the argument '%s' is given twice", name);
        if (l->named.n == ARGUMENTS_MOST) return PARSE_ERR(p, "more than %d named arguments", ARGUMENTS_MOST);
        p->at += 2;
        TRY(parse_value(p, true, &v));
        l->names = array_grow(l->names, &l->names_capacity, l->named.n + 1, sizeof *l->names);
        l->names[l->named.n] = name;
        node_list_add(&l->named, v);
        return OK;
    }
    if (c->star || c->star_star || l->named.n) return PARSE_ERR(p, "an argument without a name behind named ones");
    TRY(parse_value(p, true, &v));
    node_list_add(&l->positional, v);
    return OK;
}

static status parse_call_arguments(parser *p, call_arguments **out) {
    call_lists l = {0};
    status rc = OK;
    bool is_first = true;
    call_arguments *c = *out = arena_new(&p->t->memory, call_arguments);
    TRY(expect(p, T_LPAREN, "'('"));
    while (!at_kind(p, T_RPAREN)) {
        if (!is_first) TRY_GOTO(rc, expect(p, T_COMMA, "','"), end);
        if (!is_first && at_kind(p, T_RPAREN)) break;
        is_first = false;
        TRY_GOTO(rc, parse_argument(p, c, &l), end);
    }
    TRY_GOTO(rc, expect(p, T_RPAREN, "')'"), end);
    if (l.named.n) c->names = arena_copy(&p->t->memory, l.names, l.named.n * sizeof *l.names);
end:
    free(l.names);
    node_list_take(p, &l.positional, &c->positional, &c->n_positional);
    node_list_take(p, &l.named, &c->named, &c->n_named);
    return rc;
}

/* [a], [a:b:c], [a, b] */
static status parse_subscribed(parser *p, node *of, node **out) {
    node *parts[3] = {0};
    int n_colons = 0;
    node *n = *out = node_new(p, N_ITEM);
    n->a = of;
    for (int i = 0;; i++) {
        if (!at_kind(p, T_COLON) && !at_kind(p, T_RBRACKET) && !at_kind(p, T_COMMA))
            TRY(parse_value(p, true, &parts[i]));
        if (i == 2 || !skip_kind(p, T_COLON)) break;
        n_colons++;
    }
    if (n_colons == 0 && !parts[0]) return PARSE_ERR(p, "a subscript without a value");
    if (n_colons == 0) {
        n->b = parts[0];
        return OK;
    }
    n->kind = N_SLICE;
    n->items = arena_copy(&p->t->memory, parts, sizeof parts);
    n->n_items = 3;
    return OK;
}

static status parse_subscript(parser *p, node *of, node **out) {
    int line = p->at->line;
    if (skip_kind(p, T_DOT)) {
        if (at_kind(p, T_NAME)) {
            node *n = *out = node_new(p, N_ATTRIBUTE);
            n->a = of;
            n->text = p->at->text;
            n->length = p->at++->length;
            n->line = line;
            return OK;
        }
        if (!at_kind(p, T_INTEGER)) return PARSE_ERR(p, "expected a name or a number behind '.'");
        node *n = *out = node_new(p, N_ITEM);
        n->a = of;
        n->b = constant(p, int_value(p->at++->integer));
        return OK;
    }
    p->at++;
    TRY(parse_subscribed(p, of, out));
    if ((*out)->kind == N_ITEM && at_kind(p, T_COMMA)) { /* a tuple as the key */
        node_list items = {0};
        status rc = OK;
        node *n = *out, *key = node_new(p, N_TUPLE), *item = n->b;
        node_list_add(&items, item);
        while (rc == OK && skip_kind(p, T_COMMA)) {
            rc = parse_value(p, true, &item);
            if (rc == OK) node_list_add(&items, item);
        }
        node_list_take(p, &items, &key->items, &key->n_items);
        n->b = key;
        TRY(rc);
    }
    return expect(p, T_RBRACKET, "']'");
}

static status parse_call(parser *p, node *of, node **out) {
    node *n = *out = node_new(p, N_CALL);
    n->a = of;
    return parse_call_arguments(p, &n->call);
}

static status parse_postfix(parser *p, node *n, node **out) {
    int depth = p->depth;
    while (at_kind(p, T_DOT) || at_kind(p, T_LBRACKET) || at_kind(p, T_LPAREN)) {
        TRY(enter(p)); /* a.b.c.d is evaluated from the inside */
        if (at_kind(p, T_LPAREN)) TRY(parse_call(p, n, &n));
        else TRY(parse_subscript(p, n, &n));
    }
    p->depth = depth;
    *out = n;
    return OK;
}

/* ---- filters and tests ---------------------------------------------------------------------------------------------- */

/* a.b.c as one name, for filters and tests of other systems. */
static status parse_dotted(parser *p, const char **out) {
    const token *t = p->at;
    TRY(expect(p, T_NAME, "a name"));
    *out = t->text;
    if (at_kind(p, T_DOT) && p->at[1].kind == T_NAME)
        return PARSE_ERR(p, "'%s.%s' is not a filter or test that is supported", t->text, p->at[1].text);
    return OK;
}

static status check_filter(parser *p, const char *name) {
    const filter_row *row = filter_find(name);
    if (row && row->refused) return PARSE_ERR(p, "filter '%s' is not supported (%s)", name, row->refused);
    if (!row && !p->is_soft) return PARSE_ERR(p, "there is no filter '%s'", name);
    return OK;
}

/* map("name") and select("name") name filters and tests as well. */
static status check_named(parser *p, const node *n) {
    bool maps = strcmp(n->text, "map") == 0;
    bool selects = strcmp(n->text, "select") == 0 || strcmp(n->text, "reject") == 0;
    bool by_attribute = strcmp(n->text, "selectattr") == 0 || strcmp(n->text, "rejectattr") == 0;
    size_t i = by_attribute ? 1 : 0;
    if (!n->call || !(maps || selects || by_attribute) || n->call->n_positional <= i) return OK;
    const node *name = n->call->positional[i];
    if (name->kind != N_CONST || name->constant.kind != V_STRING || p->is_soft) return OK;
    if (maps) return check_filter(p, name->text);
    if (!test_find(name->text)) return PARSE_ERR(p, "there is no test '%s'", name->text);
    return OK;
}

status parse_filters(parser *p, node *of, bool begins_with_name, node **out) {
    int depth = p->depth;
    *out = of;
    while (begins_with_name || skip_kind(p, T_PIPE)) {
        begins_with_name = false;
        TRY(enter(p));
        node *n = node_new(p, N_FILTER);
        TRY(parse_dotted(p, &n->text));
        TRY(check_filter(p, n->text));
        if (at_kind(p, T_LPAREN)) TRY(parse_call_arguments(p, &n->call));
        TRY(check_named(p, n));
        n->a = *out;
        *out = n;
    }
    p->depth = depth;
    return OK;
}

static bool begins_argument(const parser *p) {
    switch (p->at->kind) {
    case T_NAME: return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT:
    case T_LBRACKET:
    case T_LBRACE: return true;
    default: return false;
    }
}

static status parse_test(parser *p, node *of, node **out) {
    node *n = node_new(p, N_TEST);
    p->at++;
    bool is_negated = skip_name(p, "not");
    n->a = of;
    TRY(parse_dotted(p, &n->text));
    if (!test_find(n->text) && !p->is_soft) return PARSE_ERR(p, "there is no test '%s'", n->text);
    if (at_kind(p, T_LPAREN)) TRY(parse_call_arguments(p, &n->call));
    else if (begins_argument(p)) {
        if (at_name(p, "is")) return PARSE_ERR(p, "tests cannot be chained: a is b is c");
        node *argument;
        TRY(parse_primary(p, false, &argument));
        TRY(parse_postfix(p, argument, &argument));
        n->call = arena_new(&p->t->memory, call_arguments);
        n->call->positional = arena_copy(&p->t->memory, &argument, sizeof argument);
        n->call->n_positional = 1;
    }
    *out = n;
    if (is_negated) {
        *out = node_new(p, N_NOT);
        (*out)->a = n;
    }
    return OK;
}

static status parse_filters_and_tests(parser *p, node *n, node **out) {
    int depth = p->depth;
    for (;;) {
        TRY(enter(p));
        if (at_kind(p, T_PIPE)) TRY(parse_filters(p, n, false, &n));
        else if (at_name(p, "is")) TRY(parse_test(p, n, &n));
        else if (at_kind(p, T_LPAREN)) TRY(parse_call(p, n, &n));
        else break;
    }
    p->depth = depth;
    *out = n;
    return OK;
}

/* ---- operators ------------------------------------------------------------------------------------------------------ */

static status parse_unary(parser *p, bool with_filter, node **out) {
    node *n;
    TRY(enter(p));
    if (at_kind(p, T_SUB) || at_kind(p, T_ADD)) {
        n = node_new(p, at_kind(p, T_SUB) ? N_NEGATIVE : N_POSITIVE);
        p->at++;
        TRY(parse_unary(p, false, &n->a));
    } else TRY(parse_primary(p, false, &n));
    TRY(parse_postfix(p, n, &n));
    if (with_filter) TRY(parse_filters_and_tests(p, n, &n));
    p->depth--;
    *out = n;
    return OK;
}

/* One level of precedence: the next level, then any number of operators with it. */
typedef struct level {
    node_kind kind;
    status (*next)(parser *p, node **out);
    bool (*skip)(parser *p, uint8_t *op); /* steps over an operator of this level */
} level;

static status parse_level(parser *p, const level *l, node **out) {
    node_list items = {0};
    uint8_t *ops = NULL, op = 0;
    size_t capacity = 0;
    status rc = OK;
    node *item;
    TRY(l->next(p, &item));
    if (!l->skip(p, &op)) {
        *out = item;
        return OK;
    }
    node *n = *out = node_new(p, l->kind);
    node_list_add(&items, item);
    do {
        ops = array_grow(ops, &capacity, items.n, 1);
        ops[items.n - 1] = op;
        TRY_GOTO(rc, l->next(p, &item), end);
        node_list_add(&items, item);
    } while (l->skip(p, &op));
    n->ops = arena_copy(&p->t->memory, ops, items.n - 1);
end:
    free(ops);
    node_list_take(p, &items, &n->items, &n->n_items);
    return rc;
}

static bool skip_among(parser *p, uint8_t *op, token_kind first, token_kind last) {
    if (p->at->kind < first || p->at->kind > last) return false;
    *op = p->at++->kind;
    return true;
}
static bool skip_pow(parser *p, uint8_t *op) { return skip_among(p, op, T_POW, T_POW); }
static bool skip_product(parser *p, uint8_t *op) { return skip_among(p, op, T_DIV, T_MOD); }
static bool skip_tilde(parser *p, uint8_t *op) { return skip_among(p, op, T_TILDE, T_TILDE); }
static bool skip_sum(parser *p, uint8_t *op) { return skip_among(p, op, T_ADD, T_SUB); }
static bool skip_comparison(parser *p, uint8_t *op) {
    if (skip_among(p, op, T_EQ, T_LE)) return true;
    if (skip_name(p, "in")) {
        *op = T_IN;
        return true;
    }
    if (!at_name(p, "not") || p->at[1].kind != T_NAME || strcmp(p->at[1].text, "in") != 0) return false;
    p->at += 2;
    *op = T_NOT_IN;
    return true;
}
static bool skip_and(parser *p, uint8_t *op) { return skip_name(p, "and"); }
static bool skip_or(parser *p, uint8_t *op) { return skip_name(p, "or"); }

static status parse_signed(parser *p, node **out) { return parse_unary(p, true, out); }
static status parse_power(parser *p, node **out) {
    return parse_level(p, &(level){N_MATH, parse_signed, skip_pow}, out);
}
static status parse_product(parser *p, node **out) {
    return parse_level(p, &(level){N_MATH, parse_power, skip_product}, out);
}
static status parse_concat(parser *p, node **out) {
    return parse_level(p, &(level){N_CONCAT, parse_product, skip_tilde}, out);
}
static status parse_sum(parser *p, node **out) { return parse_level(p, &(level){N_MATH, parse_concat, skip_sum}, out); }
static status parse_comparison(parser *p, node **out) {
    return parse_level(p, &(level){N_COMPARE, parse_sum, skip_comparison}, out);
}
static status parse_not(parser *p, node **out) {
    if (!at_name(p, "not")) return parse_comparison(p, out);
    TRY(enter(p));
    node *n = *out = node_new(p, N_NOT);
    p->at++;
    TRY(parse_not(p, &n->a));
    p->depth--;
    return OK;
}
static status parse_and(parser *p, node **out) { return parse_level(p, &(level){N_AND, parse_not, skip_and}, out); }
static status parse_or(parser *p, node **out) { return parse_level(p, &(level){N_OR, parse_and, skip_or}, out); }

status parse_value(parser *p, bool with_condition, node **out) {
    int depth = p->depth;
    TRY(enter(p));
    TRY(parse_or(p, out));
    while (with_condition && skip_name(p, "if")) {
        bool was_soft = p->is_soft;
        TRY(enter(p));
        node *n = node_new(p, N_CONDITIONAL);
        n->a = *out;
        TRY(parse_or(p, &n->b));
        p->is_soft = true;
        if (skip_name(p, "else")) TRY(parse_value(p, true, &n->c));
        p->is_soft = was_soft;
        *out = n;
    }
    p->depth = depth;
    return OK;
}

/* ---- tuples and targets --------------------------------------------------------------------------------------------- */

static bool at_tuple_end(const parser *p, tuple_ends ends) {
    if (at_kind(p, T_VARIABLE_END) || at_kind(p, T_BLOCK_END) || at_kind(p, T_RPAREN)) return true;
    return (ends == TUPLE_BEFORE_IN && at_name(p, "in")) || (ends == TUPLE_BEFORE_RECURSIVE && at_name(p, "recursive"));
}

typedef status (*item_parser)(parser *p, bool flag, node **out);
static status parse_items(parser *p, item_parser parse_item, bool flag, tuple_ends ends, bool may_be_empty,
                          node **out) {
    node_list items = {0};
    status rc = OK;
    bool is_tuple = false;
    char found[64];
    node *item;
    for (;;) {
        if (items.n) TRY_GOTO(rc, expect(p, T_COMMA, "','"), end);
        if (at_tuple_end(p, ends)) break;
        TRY_GOTO(rc, parse_item(p, flag, &item), end);
        node_list_add(&items, item);
        if (!at_kind(p, T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && items.n) {
        *out = items.items[0];
        free(items.items);
        return OK;
    }
    if (!is_tuple && !may_be_empty)
        TRY_GOTO(rc, PARSE_ERR(p, "expected an expression, found %s", token_describe(p->at, found)), end);
    *out = node_new(p, N_TUPLE);
    node_list_take(p, &items, &(*out)->items, &(*out)->n_items);
    return OK;
end:
    free(items.items);
    return rc;
}

status parse_tuple(parser *p, bool with_condition, tuple_ends ends, bool in_parentheses, node **out) {
    return parse_items(p, parse_value, with_condition, ends, in_parentheses, out);
}

static status check_target(parser *p, node *n) {
    if (n->kind == N_TUPLE) {
        for (size_t i = 0; i < n->n_items; i++) TRY(check_target(p, n->items[i]));
        return OK;
    }
    if (n->kind == N_MEMBER) return OK;
    if (n->kind != N_NAME) return PARSE_ERR(p, "this cannot be assigned to: expected a name");
    if (p->loops && strcmp(n->text, "loop") == 0) return PARSE_ERR(p, "'loop' cannot be assigned to in a loop");
    return OK;
}

status parse_target(parser *p, bool before_in, bool with_member, node **out) {
    TRY(enter(p));
    p->is_target = true;
    TRY(parse_items(p, parse_primary, with_member, before_in ? TUPLE_BEFORE_IN : TUPLE_PLAIN, false, out));
    p->is_target = false;
    TRY(check_target(p, *out));
    p->depth--;
    return OK;
}
