#pragma once
/* ast.h - a template as a tree, and the tokens it is parsed from. */
#include "jinja/value.h"

typedef enum token_kind {
    T_END, /* of the template */
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_DIV,
    T_FLOORDIV,
    T_MUL,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_IN, /* operators of comparisons that are words */
    T_NOT_IN,
} token_kind;
typedef struct token {
    uint8_t kind;
    int line;
    const char *text; /* names, data, strings without their escapes */
    size_t length;
    int64_t integer;
    double real;
} token;
typedef struct token_list {
    token *items;
    size_t n, capacity;
} token_list;
/* The tokens of a source, an end token last. Their text lives in `memory`. */
status lex(const char *source, size_t n_bytes, const char *name, arena *memory, token_list *out);

typedef enum node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT, /* items: key, value, key, value */
    N_MATH, /* items, ops between them; left to right */
    N_AND,
    N_OR,
    N_NOT,
    N_NEGATIVE,
    N_POSITIVE,
    N_CONCAT,
    N_COMPARE,     /* items, ops between them */
    N_CONDITIONAL, /* a if b else c; c may be NULL */
    N_ATTRIBUTE,   /* a.text */
    N_ITEM,        /* a[b] */
    N_SLICE,       /* a[items 0 : 1 : 2], each may be NULL */
    N_CALL,        /* a(call) */
    N_FILTER,      /* a|text(call); a NULL: what a block rendered */
    N_TEST,        /* a is text(call) */
    N_MEMBER,      /* a target: name.text */
    /* statements */
    N_DATA,
    N_OUTPUT,
    N_FOR,       /* a target, b sequence, c test; items body, else_items */
    N_IF,        /* a condition, items body, b the rest: an N_IF or N_SCOPE */
    N_SET,       /* a target, b value */
    N_SET_BLOCK, /* a target, b filter, items body */
    N_MACRO,
    N_CALL_BLOCK,   /* a call; a macro without a name */
    N_FILTER_BLOCK, /* b filter, items body */
    N_WITH,         /* targets and values in pairs in else_items, items body */
    N_GENERATION,
    N_BREAK,
    N_CONTINUE,
} node_kind;

/* Named arguments of a call and parameters of a macro: they are looked through one by one. */
enum { ARGUMENTS_MOST = 255 };

typedef struct call_arguments {
    node **positional;
    size_t n_positional;
    const char **names;
    node **named;
    size_t n_named;
    node *star, *star_star; /* *args, **kwargs */
} call_arguments;

typedef struct macro_signature {
    const char **names; /* parameters; ids in `ids` */
    int *ids;
    node **defaults; /* NULL: none */
    size_t n;
    bool reads_caller, reads_kwargs, reads_varargs; /* names that stand in its body */
    int caller_id, kwargs_id, varargs_id;
} macro_signature;

struct node {
    uint8_t kind;
    int line;
    int name; /* of names, macros */
    const char *text;
    size_t length;
    value constant;
    string literal; /* what a constant string points to */
    node *a, *b, *c;
    node **items, **else_items;
    size_t n_items, n_else;
    uint8_t *ops;
    call_arguments *call;
    macro_signature *macro;
};

struct jinja {
    arena memory;
    const char *name;
    node **body;
    size_t n_body;
    const char **names; /* every name that the template uses */
    bool *is_read;      /* as a variable, not only assigned to */
    size_t n_names, names_capacity;
    bool marks_generation;
    int loop_name;
};
status parse(jinja *t, const token_list *tokens);
