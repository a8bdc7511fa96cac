#pragma once
/* parser.h - what the two halves of the parser share: statements (parser.c) and expressions (parse_expression.c). */
#include "jinja/ast.h"

typedef struct parser {
    jinja *t;
    const token *at;
    int depth;                                    /* of what is being parsed in what */
    int loops;                                    /* `break` may stand here: loops around it in the same body */
    macro_signature *macros[JINJA_MAX_DEPTH + 1]; /* the bodies around it */
    int n_macros;
    uint32_t *slots; /* names by their hash: id + 1 */
    size_t n_slots;
    bool is_target; /* names are assigned to, not read */
    bool is_soft;   /* inside of an `if`: an unknown filter is an error only where it is reached, as in jinja2 */
} parser;

#define PARSE_ERR(p, ...) parse_error((p), __FILE__, __LINE__, __func__, __VA_ARGS__)
status parse_error(const parser *p, const char *file, int line, const char *func, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
node *node_new(parser *p, node_kind kind);
int name_id(parser *p, const char *name, bool is_read);

bool at_kind(const parser *p, token_kind kind);
bool at_name(const parser *p, const char *name);
bool skip_kind(parser *p, token_kind kind);
bool skip_name(parser *p, const char *name);
status expect(parser *p, token_kind kind, const char *what);
status enter(parser *p); /* one deeper; the caller leaves with depth-- where it went well */
const char *token_describe(const token *t, char out[64]);

typedef struct node_list {
    node **items;
    size_t n, capacity;
} node_list;
void node_list_add(node_list *l, node *n);
void node_list_take(parser *p, node_list *l, node ***items, size_t *n); /* into the arena */

status parse_value(parser *p, bool with_condition, node **out);
typedef enum tuple_ends { TUPLE_PLAIN, TUPLE_BEFORE_IN, TUPLE_BEFORE_RECURSIVE } tuple_ends;
status parse_tuple(parser *p, bool with_condition, tuple_ends ends, bool in_parentheses, node **out);
status parse_target(parser *p, bool before_in, bool with_member, node **out);
status parse_filters(parser *p, node *of, bool begins_with_name, node **out); /* |name(...)|name(...) */
