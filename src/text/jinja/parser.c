/* parser.c - statements: a template as a tree.
 *
 * Nesting is counted, so no source can exhaust the stack; what the interpreter does not do (inheritance, imports,
 * recursive loops) is refused here by name. */
#include "jinja/parser.h"

#include <stdlib.h>
#include <string.h>

/* ---- tokens --------------------------------------------------------------------------------------------------------- */

status parse_error(const parser *p, const char *file, int line, const char *func, const char *fmt, ...) {
    char message[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return error_set(ERR_INPUT, file, line, func, "%s:%d: %s", p->t->name, p->at->line, message);
}

bool at_kind(const parser *p, token_kind kind) { return p->at->kind == kind; }
bool at_name(const parser *p, const char *name) { return p->at->kind == T_NAME && strcmp(p->at->text, name) == 0; }
bool skip_kind(parser *p, token_kind kind) {
    if (p->at->kind != kind) return false;
    p->at++;
    return true;
}
bool skip_name(parser *p, const char *name) {
    if (!at_name(p, name)) return false;
    p->at++;
    return true;
}

const char *token_describe(const token *t, char out[64]) {
    static const char *const names[] = {
        [T_END] = "the end of the template",
        [T_DATA] = "text",
        [T_VARIABLE_BEGIN] = "'{{'",
        [T_VARIABLE_END] = "'}}'",
        [T_BLOCK_BEGIN] = "'{%'",
        [T_BLOCK_END] = "'%}'",
        [T_STRING] = "a string",
        [T_INTEGER] = "a number",
        [T_FLOAT] = "a number",
        [T_ADD] = "'+'",
        [T_SUB] = "'-'",
        [T_DIV] = "'/'",
        [T_FLOORDIV] = "'//'",
        [T_MUL] = "'*'",
        [T_MOD] = "'%'",
        [T_POW] = "'**'",
        [T_TILDE] = "'~'",
        [T_LBRACKET] = "'['",
        [T_RBRACKET] = "']'",
        [T_LPAREN] = "'('",
        [T_RPAREN] = "')'",
        [T_LBRACE] = "'{'",
        [T_RBRACE] = "'}'",
        [T_EQ] = "'=='",
        [T_NE] = "'!='",
        [T_GT] = "'>'",
        [T_GE] = "'>='",
        [T_LT] = "'<'",
        [T_LE] = "'<='",
        [T_ASSIGN] = "'='",
        [T_DOT] = "'.'",
        [T_COLON] = "':'",
        [T_PIPE] = "'|'",
        [T_COMMA] = "','",
        [T_SEMICOLON] = "';'",
    };
    if (t->kind == T_NAME) snprintf(out, 64, "'%.50s'", t->text);
    else snprintf(out, 64, "%s", names[t->kind]);
    return out;
}

status expect(parser *p, token_kind kind, const char *what) {
    char found[64];
    if (skip_kind(p, kind)) return OK;
    return PARSE_ERR(p, "expected %s, found %s", what, token_describe(p->at, found));
}

status enter(parser *p) {
    if (++p->depth > JINJA_MAX_DEPTH)
        return PARSE_ERR(p, "nested too deep: more than %d constructs in each other", JINJA_MAX_DEPTH);
    return OK;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------- */

node *node_new(parser *p, node_kind kind) {
    node *n = arena_new(&p->t->memory, node);
    n->kind = (uint8_t)kind;
    n->line = p->at->line;
    return n;
}

/* Where a name stands in the table of names, or would. */
static size_t name_slot(const parser *p, const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = name; *c; c++) h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    size_t slot = (h ^ h >> 32) & (p->n_slots - 1);
    while (p->slots[slot] && strcmp(p->t->names[p->slots[slot] - 1], name) != 0) slot = (slot + 1) & (p->n_slots - 1);
    return slot;
}

static void slots_grow(parser *p) {
    free(p->slots);
    p->n_slots = p->n_slots ? p->n_slots * 2 : 64;
    p->slots = mem_alloc(p->n_slots * sizeof *p->slots);
    for (size_t i = 0; i < p->t->n_names; i++) p->slots[name_slot(p, p->t->names[i])] = (uint32_t)i + 1;
}

int name_id(parser *p, const char *name, bool is_read) {
    jinja *t = p->t;
    size_t slot = name_slot(p, name), i = p->slots[slot] ? p->slots[slot] - 1 : t->n_names;
    if (i == t->n_names) {
        size_t capacity = t->names_capacity;
        t->names = array_grow(t->names, &capacity, i + 1, sizeof *t->names);
        t->is_read = array_grow(t->is_read, &t->names_capacity, i + 1, sizeof *t->is_read);
        t->names[t->n_names++] = name;
        p->slots[slot] = (uint32_t)t->n_names;
        if (t->n_names * 2 > p->n_slots) slots_grow(p);
    }
    t->is_read[i] |= is_read;
    return (int)i;
}

void node_list_add(node_list *l, node *n) {
    l->items = array_grow(l->items, &l->capacity, l->n + 1, sizeof *l->items);
    l->items[l->n++] = n;
}

void node_list_take(parser *p, node_list *l, node ***items, size_t *n) {
    if (l->n) *items = arena_copy(&p->t->memory, l->items, l->n * sizeof *l->items);
    *n = l->n;
    free(l->items);
    *l = (node_list){0};
}

/* ---- bodies --------------------------------------------------------------------------------------------------------- */

static status parse_statement(parser *p, node **out);

static bool at_any(const parser *p, const char *const *names) {
    for (; *names; names++)
        if (at_name(p, *names)) return true;
    return false;
}

static node *parse_data(parser *p) {
    node *n = node_new(p, N_DATA);
    n->literal = (string){.text = p->at->text, .length = p->at->length};
    p->at++;
    return n;
}

/* Statements up to one of these tags, which is the current token then; up to the end where `ends` is NULL. */
static status parse_body(parser *p, const char *const *ends, int begin, node ***items, size_t *n_items) {
    node_list body = {0};
    status rc = OK;
    node *n = NULL;
    TRY(enter(p));
    while (!at_kind(p, T_END)) {
        if (at_kind(p, T_DATA)) n = parse_data(p);
        else if (skip_kind(p, T_VARIABLE_BEGIN)) {
            n = node_new(p, N_OUTPUT);
            TRY_GOTO(rc, parse_tuple(p, true, TUPLE_PLAIN, false, &n->a), end);
            TRY_GOTO(rc, expect(p, T_VARIABLE_END, "'}}'"), end);
        } else {
            TRY_GOTO(rc, expect(p, T_BLOCK_BEGIN, "a tag"), end);
            if (ends && at_any(p, ends)) break;
            TRY_GOTO(rc, parse_statement(p, &n), end);
            TRY_GOTO(rc, expect(p, T_BLOCK_END, "'%}'"), end);
        }
        node_list_add(&body, n);
    }
    if (ends && at_kind(p, T_END))
        rc = PARSE_ERR(p, "unexpected end of the template: {%% %s %%} is missing for the block of line %d", ends[0],
                       begin);
    p->depth--;
end:
    node_list_take(p, &body, items, n_items);
    return rc;
}

/* A body behind the opening tag. */
static status parse_block(parser *p, const char *const *ends, node ***items, size_t *n_items) {
    int begin = p->at->line;
    skip_kind(p, T_COLON);
    TRY(expect(p, T_BLOCK_END, "'%}'"));
    return parse_body(p, ends, begin, items, n_items);
}

static status parse_block_to(parser *p, const char *end, node *n) {
    const char *const ends[] = {end, NULL};
    TRY(parse_block(p, ends, &n->items, &n->n_items));
    p->at++;
    return OK;
}

/* ---- statements ----------------------------------------------------------------------------------------------------- */

static status parse_for(parser *p, node *n) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    bool was_soft = p->is_soft;
    p->loops++;
    TRY(parse_target(p, true, false, &n->a));
    p->loops--;
    if (!skip_name(p, "in")) return PARSE_ERR(p, "expected 'in' of a for loop");
    TRY(parse_tuple(p, false, TUPLE_BEFORE_RECURSIVE, false, &n->b));
    if (skip_name(p, "if")) TRY(parse_value(p, true, &n->c));
    if (at_name(p, "recursive")) return PARSE_ERR(p, "recursive for loops are not supported");
    p->loops++;
    p->is_soft = false;
    TRY(parse_block(p, ends, &n->items, &n->n_items));
    p->loops--;
    if (skip_name(p, "else")) TRY(parse_block(p, last, &n->else_items, &n->n_else));
    p->is_soft = was_soft;
    p->at++;
    return OK;
}

static status parse_if(parser *p, node *n) {
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const last[] = {"endif", NULL};
    bool was_soft = p->is_soft;
    p->is_soft = true;
    for (;;) {
        TRY(parse_tuple(p, false, TUPLE_PLAIN, false, &n->a));
        TRY(parse_block(p, ends, &n->items, &n->n_items));
        if (!skip_name(p, "elif")) break;
        n = n->b = node_new(p, N_IF);
    }
    if (skip_name(p, "else")) TRY(parse_block(p, last, &n->else_items, &n->n_else));
    p->is_soft = was_soft;
    p->at++;
    return OK;
}

static status parse_set(parser *p, node *n) {
    TRY(parse_target(p, false, true, &n->a));
    if (skip_kind(p, T_ASSIGN)) return parse_tuple(p, true, TUPLE_PLAIN, false, &n->b);
    n->kind = N_SET_BLOCK;
    TRY(parse_filters(p, NULL, false, &n->b));
    return parse_block_to(p, "endset", n);
}

/* (a, b=1): the parameters of a macro or of what a call block gives to its caller. */
static status parse_parameters(parser *p, macro_signature *m) {
    bool has_default = false;
    size_t capacity = 0, id_capacity = 0;
    node_list defaults = {0};
    status rc = OK;
    int *ids = NULL;
    TRY(expect(p, T_LPAREN, "'('"));
    while (!at_kind(p, T_RPAREN)) {
        node *value = NULL;
        if (m->n) TRY_GOTO(rc, expect(p, T_COMMA, "','"), end);
        const char *name = p->at->text;
        if (m->n == ARGUMENTS_MOST) TRY_GOTO(rc, PARSE_ERR(p, "more than %d parameters", ARGUMENTS_MOST), end);
        TRY_GOTO(rc, expect(p, T_NAME, "the name of a parameter"), end);
        if (skip_kind(p, T_ASSIGN)) {
            TRY_GOTO(rc, parse_value(p, true, &value), end);
            has_default = true;
        } else if (has_default)
            TRY_GOTO(rc, PARSE_ERR(p, "parameter '%s' has no default, but one before it", name), end);
        m->names = array_grow(m->names, &capacity, m->n + 1, sizeof *m->names);
        ids = array_grow(ids, &id_capacity, m->n + 1, sizeof *ids);
        ids[m->n] = name_id(p, name, false);
        m->names[m->n++] = name;
        node_list_add(&defaults, value);
    }
    rc = expect(p, T_RPAREN, "')'");
end:;
    const char **names = m->names;
    if (m->n) m->names = arena_copy(&p->t->memory, names, m->n * sizeof *names);
    if (m->n) m->ids = arena_copy(&p->t->memory, ids, m->n * sizeof *ids);
    free(names);
    free(ids);
    size_t n_defaults;
    node_list_take(p, &defaults, &m->defaults, &n_defaults);
    return rc;
}

/* The body of a macro, of a call block or of a generation block: a function of its own. */
static status parse_macro_body(parser *p, const char *end, node *n) {
    int loops = p->loops;
    bool was_soft = p->is_soft;
    macro_signature *m = n->macro;
    m->caller_id = name_id(p, "caller", false);
    m->kwargs_id = name_id(p, "kwargs", false);
    m->varargs_id = name_id(p, "varargs", false);
    p->macros[p->n_macros++] = m;
    p->loops = 0;
    p->is_soft = false;
    TRY(parse_block_to(p, end, n));
    p->is_soft = was_soft;
    p->loops = loops;
    p->n_macros--;
    return OK;
}

static status parse_macro(parser *p, node *n) {
    n->text = p->at->text;
    n->length = p->at->length;
    TRY(expect(p, T_NAME, "the name of the macro"));
    n->name = name_id(p, n->text, false);
    n->macro = arena_new(&p->t->memory, macro_signature);
    TRY(parse_parameters(p, n->macro));
    return parse_macro_body(p, "endmacro", n);
}

static status parse_call_block(parser *p, node *n) {
    n->macro = arena_new(&p->t->memory, macro_signature);
    n->name = -1;
    if (at_kind(p, T_LPAREN)) TRY(parse_parameters(p, n->macro));
    TRY(parse_value(p, true, &n->a));
    if (n->a->kind != N_CALL) return PARSE_ERR(p, "expected a call in {%% call %%}");
    return parse_macro_body(p, "endcall", n);
}

static status parse_generation(parser *p, node *n) {
    n->macro = arena_new(&p->t->memory, macro_signature);
    n->name = -1;
    p->t->marks_generation = true;
    return parse_macro_body(p, "endgeneration", n);
}

static status parse_filter_block(parser *p, node *n) {
    TRY(parse_filters(p, NULL, true, &n->b));
    return parse_block_to(p, "endfilter", n);
}

static status parse_with(parser *p, node *n) {
    node_list pairs = {0};
    status rc = OK;
    node *part;
    while (!at_kind(p, T_BLOCK_END)) {
        if (pairs.n) TRY_GOTO(rc, expect(p, T_COMMA, "','"), end);
        TRY_GOTO(rc, parse_target(p, false, false, &part), end);
        node_list_add(&pairs, part);
        TRY_GOTO(rc, expect(p, T_ASSIGN, "'='"), end);
        TRY_GOTO(rc, parse_value(p, true, &part), end);
        node_list_add(&pairs, part);
    }
end:
    node_list_take(p, &pairs, &n->else_items, &n->n_else);
    TRY(rc);
    return parse_block_to(p, "endwith", n);
}

static status parse_print(parser *p, node *n) {
    node_list items = {0};
    status rc = OK;
    node *item;
    while (!at_kind(p, T_BLOCK_END)) {
        if (items.n) TRY_GOTO(rc, expect(p, T_COMMA, "','"), end);
        TRY_GOTO(rc, parse_value(p, true, &item), end);
        node_list_add(&items, item);
    }
end:
    node_list_take(p, &items, &n->items, &n->n_items);
    return rc;
}

static status parse_loop_control(parser *p, node *n) {
    if (!p->loops) return PARSE_ERR(p, "{%% %s %%} outside of a loop", n->kind == N_BREAK ? "break" : "continue");
    return OK;
}

static status parse_statement(parser *p, node **out) {
    static const struct {
        const char *tag;
        node_kind kind;
        status (*parse)(parser *p, node *n);
    } tags[] = {
        {"for", N_FOR, parse_for},
        {"if", N_IF, parse_if},
        {"set", N_SET, parse_set},
        {"macro", N_MACRO, parse_macro},
        {"call", N_CALL_BLOCK, parse_call_block},
        {"filter", N_FILTER_BLOCK, parse_filter_block},
        {"with", N_WITH, parse_with},
        {"print", N_OUTPUT, parse_print},
        {"generation", N_GENERATION, parse_generation},
        {"break", N_BREAK, parse_loop_control},
        {"continue", N_CONTINUE, parse_loop_control},
    };
    static const char *const refused[] = {"block", "extends", "include", "import", "from", "autoescape", "do", "trans"};
    if (!at_kind(p, T_NAME)) return PARSE_ERR(p, "expected the name of a statement behind '{%%'");
    for (size_t i = 0; i < ARRAY_LENGTH(tags); i++) {
        if (!at_name(p, tags[i].tag)) continue;
        *out = node_new(p, tags[i].kind);
        p->at++;
        TRY(enter(p));
        TRY(tags[i].parse(p, *out));
        p->depth--;
        return OK;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(refused); i++)
        if (at_name(p, refused[i])) return PARSE_ERR(p, "the statement '%s' is not supported", refused[i]);
    return PARSE_ERR(p, "there is no statement '%.60s', or it ends a block that is not open here", p->at->text);
}

status parse(jinja *t, const token_list *tokens) {
    parser p = {.t = t, .at = tokens->items};
    slots_grow(&p);
    t->loop_name = name_id(&p, "loop", false);
    status rc = parse_body(&p, NULL, 1, &t->body, &t->n_body);
    free(p.slots);
    return rc;
}
