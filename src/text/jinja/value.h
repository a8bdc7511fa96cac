#pragma once
/* value.h - the values of a template: what Python's objects are to Jinja.
 *
 * A value is two words and is copied. What it points to lives in the arena of one render and never changes, but for
 * namespaces, iterators and loops. Every byte of a string carries marks: did it come out of a variable, does it stand in a
 * {% generation %} block. Numbers carry the marks that their digits get when they are printed.
 *
 * Errors stick: the first one is kept in the render, everything later goes on with undefined values and the evaluator
 * stops at its next step. So these functions return values, and a caller only checks `failed` before long work. */
#include "jinja/jinja.h"

typedef struct render render;
typedef struct node node;

/* The bits from MARK_PARTS on tell the parts that a caller asks for (jinja_part): each has three of six bits. Where
 * bytes of two parts become one, more than three are set, and they count for neither. */
enum { MARK_VARIABLE = 1, MARK_GENERATED = 2, MARK_PARTS = 4 };

typedef enum value_kind {
    V_MISSING, /* an argument that was not given; never seen by a template */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW, /* dict.keys(), .values(), .items() */
    V_RANGE,
    V_ITERATOR, /* what map, select, reverse ... give: can be gone through once */
    V_NAMESPACE,
    V_MACRO,
    V_LOOP,
    V_FUNCTION, /* range, namespace ... */
    V_METHOD,   /* "text".strip, not yet called */
    V_CYCLER,
    V_JOINER,
} value_kind;

typedef struct string string;
typedef struct list list;
typedef struct dict dict;
typedef struct value {
    uint8_t kind;
    uint8_t marks; /* of numbers, booleans and none */
    union {
        bool b;
        int64_t i;
        double f;
        const string *s;
        list *l; /* lists, tuples, and the items of views */
        dict *d; /* dictionaries and namespaces */
        const struct undefined *u;
        const struct range *range;
        struct iterator *it;
        const struct macro *macro;
        struct loop *loop;
        const struct function *function;
        const struct method *method;
        struct cycler *cycler;
    };
} value;

struct string {
    const char *text; /* UTF-8, not NUL terminated */
    size_t length;
    const uint8_t *mask; /* marks per byte; NULL: `marks` for all */
    uint8_t marks;
    bool is_markup; /* went through `safe` or `escape`: Python would escape what is added to it */
};
struct list {
    value *items;
    size_t n, capacity;
    const char *view; /* of a view: "dict_keys" ... */
    bool is_group;    /* a tuple of groupby: .grouper and .list are its items */
};
typedef struct dict_entry {
    value key, value;
    uint64_t hash;
} dict_entry;
struct dict {
    dict_entry *entries; /* in the order of insertion */
    size_t n, capacity;
    uint32_t *index; /* open addressing, entry + 1; NULL for few */
    size_t n_slots;
};
typedef struct undefined {
    const char *hint; /* the whole message; else it is made of the others */
    value key;        /* the name that was looked up */
    uint8_t of;       /* the kind of what it was looked up in; V_MISSING: a variable */
    bool is_unsafe;   /* the sandbox keeps it */
} undefined;
struct range {
    int64_t start, stop, step, n;
};
struct iterator {
    list *items;
    size_t next;
    const char *name; /* Python's name of the type */
};
struct macro {
    const node *definition;
    struct frame *frame; /* where it was defined */
};
struct method {
    value self;
    const struct method_row *row;
};
struct cycler { /* cycler() and joiner() */
    list *items;
    size_t next;
    value separator;
};

/* ---- making them --------------------------------------------------------------------------------------------------- */

#define NONE ((value){.kind = V_NONE})
#define MISSING ((value){.kind = V_MISSING})
static inline value bool_value(bool b) { return (value){.kind = V_BOOL, .b = b}; }
static inline value int_value(int64_t i) { return (value){.kind = V_INT, .i = i}; }
static inline value float_value(double f) { return (value){.kind = V_FLOAT, .f = f}; }
static inline value list_value(list *l) { return (value){.kind = V_LIST, .l = l}; }
static inline value tuple_value(list *l) { return (value){.kind = V_TUPLE, .l = l}; }
static inline value dict_value(dict *d) { return (value){.kind = V_DICT, .d = d}; }

void *render_alloc(render *r, size_t n_bytes); /* zeroed; counted against the limit of the render */
/* Records an error at the line that is being evaluated, once; returns an undefined value. */
value fail(render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool failed(const render *r);
/* Counts work; false (and an error) when the render has done too much. */
bool steps_take(render *r, uint64_t n);
bool bytes_take(render *r, size_t n_bytes); /* the same for handling that many bytes */

value undefined_hint(render *r, const char *hint);
value undefined_name(render *r, const char *name);
value undefined_member(render *r, value of, value key);
value undefined_unsafe(render *r, value of, const char *attribute);
value undefined_fail(render *r, value undefined); /* the error that using it is */

value string_of(render *r, const char *text, size_t n_bytes, uint8_t marks); /* does not copy */
value string_literal(render *r, const char *text);                           /* likewise */
value string_slice(render *r, const string *s, size_t begin, size_t end);    /* bytes */
static inline uint8_t string_mark(const string *s, size_t i) { return s->mask ? s->mask[i] : s->marks; }
uint8_t string_marks(const string *s); /* of any of its bytes */
bool string_is(const string *s, const char *text);
bool string_equal(const string *a, const string *b);
int string_compare(const string *a, const string *b); /* by code point, as Python does */
const char *string_quote(render *r, const string *s); /* for messages: cut where it is long, NUL terminated */

list *list_new(render *r, size_t capacity);
void list_add(render *r, list *l, value v);
value iterator_value(render *r, list *items, const char *name);

dict *dict_new(render *r);
void dict_set(render *r, dict *d, value key, value v); /* an unhashable key is an error */
const value *dict_find(render *r, const dict *d, value key);
const value *dict_find_text(render *r, const dict *d, const char *key, size_t n);

value value_from_json(render *r, const json_t *j, uint8_t marks, int depth); /* strings are not copied */

/* ---- looking at them ----------------------------------------------------------------------------------------------- */

bool value_truth(value v);
const char *value_type(value v); /* Python's name: "str", "int" ... */
bool value_equal(render *r, value a, value b);
/* <0, 0, >0; an error where Python has no order. `op` is for the message. */
int value_compare(render *r, value a, value b, const char *op);
bool value_is_number(value v); /* bool, int, float */
double value_number(value v);
bool value_is_int(value v); /* int or bool */
int64_t value_int(value v); /* of those */
bool value_contains(render *r, value container, value item);
int64_t value_length(render *r, value v); /* -1: it has none */

/* Goes through what can be iterated over. A dictionary gives its keys, a string its characters. */
typedef struct walk {
    value of;
    size_t i;
} walk;
bool value_is_iterable(value v);
bool walk_begin(render *r, walk *w, value v); /* an error where it cannot be iterated over */
bool walk_next(render *r, walk *w, value *out);
list *value_to_list(render *r, value v); /* its items; an empty list with the error */

/* ---- building strings ---------------------------------------------------------------------------------------------- */

typedef struct builder {
    render *r;
    char *text;
    uint8_t *mask; /* NULL while all bytes have the same marks */
    size_t length, capacity;
    uint8_t marks;
} builder;
void builder_init(builder *b, render *r);
void builder_fini(builder *b);
void builder_add(builder *b, const char *text, size_t n, uint8_t marks);
void builder_add_text(builder *b, const char *text); /* of the template */
void builder_add_string(builder *b, const string *s);
void builder_add_part(builder *b, const string *s, size_t begin, size_t end);
void builder_fill(builder *b, const char *unit, size_t n_unit, uint8_t marks, int64_t times);
void builder_mark(builder *b, size_t begin, uint8_t marks); /* adds marks to the bytes from `begin` on */
value builder_take(builder *b);                             /* a string in the arena; ends the builder */

/* ---- text of values: repr.c ----------------------------------------------------------------------------------------- */

const string *value_text(render *r, value v); /* Python's str() */
void repr_add(builder *b, value v, int depth);
void text_add(builder *b, value v); /* str() */
size_t float_repr(double f, char out[40]);
value value_to_json(render *r, value v, value indent, value separators, bool ensure_ascii, bool sort_keys);
