#pragma once
/* render.h - the state of one render, and what its parts offer each other. */
#include "jinja/ast.h"

typedef struct binding {
    int name;
    value v;
} binding;
typedef struct frame { /* the names set inside of a loop, a macro, a captured block */
    struct frame *parent;
    binding *bindings;
    size_t n, capacity;
    bool is_kept; /* a macro looks into it: it is not used again for the next iteration */
} frame;

struct loop {
    struct source {
        walk items;
        const node *test, *target; /* for ... if test */
        frame *frame;              /* in which the test is evaluated */
        list *rest;                /* what asking for the length has read ahead */
        size_t rest_next;
    } source;
    int64_t index0, length;                     /* length -1: not known yet */
    value before, current, after, last_changed; /* V_MISSING: none */
};

typedef struct limits { /* of one render */
    uint64_t steps;
    size_t value_bytes, output_bytes;
} limits;
#define LIMITS_DEFAULT ((limits){JINJA_MAX_STEPS, JINJA_MAX_VALUE_BYTES, JINJA_MAX_OUTPUT_BYTES})
#define ALL_VARIABLES SIZE_MAX
/* jinja_render and jinja_render_message (`only`: which one) with limits of the caller's: fuzzing wants small ones. */
status render_limited(const jinja *t, const json_t *variables, size_t only, const limits *most, jinja_output *out);

struct render {
    limits most;
    const jinja *template;
    const json_t *variables;
    const jinja_part *parts;
    size_t n_parts;
    arena memory;
    size_t builder_bytes; /* of strings that are being built */
    size_t n_bytes_there; /* of values and strings, for which there was memory when it was last asked */
    uint64_t n_steps;
    int depth, n_calls;
    bool has_failed;
    int line, failed_line;
    char message[1200];
    char *raised;
    value *globals; /* by name */
    frame *frame;
    builder *out;
    value captured; /* what a block rendered, for its filter */
};

uint8_t part_marks(const render *r, const json_t *j); /* 0: it is none of the parts */

/* How deep evaluating may go into itself: macros that call macros, expressions in expressions. */
enum { RUN_DEPTH_MAX = 1000 };

typedef struct arguments {
    value *positional;
    size_t n_positional;
    const char **names;
    value *named;
    size_t n_named;
} arguments;

/* One parameter list for filters, tests, methods and functions: names of parameters, "" for one that has only a place;
 * the first n_required must be given. A variadic one takes its arguments as they come. */
enum { PARAMETERS_MOST = 6 };
typedef struct signature {
    const char *name;
    int n_required;
    bool is_variadic;
    const char *parameters[PARAMETERS_MOST];
} signature;
/* Puts arguments in their places, V_MISSING where there is none. */
bool arguments_bind(render *r, const char *what, const signature *s, const arguments *a, value out[PARAMETERS_MOST]);
value *arguments_find(const arguments *a, const char *name);

value evaluate(render *r, const node *n);
void assign(render *r, const node *target, value v);
value lookup(render *r, int name);
void bind_name(render *r, int name, value v);
frame *frame_push(render *r, frame *parent);
value own_attribute(render *r, value of, const char *name, size_t n); /* of the type; V_MISSING */
value get_attribute(render *r, value of, const char *name, size_t n);
value get_item(render *r, value of, value key);
value call_value(render *r, value callee, const arguments *a);
value call_macro(render *r, const struct macro *m, const arguments *a);
value evaluate_call_block(render *r, const node *n, value caller);

typedef enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;
flow execute(render *r, const node *const *body, size_t n);
value loop_attribute(render *r, struct loop *l, const char *name, size_t n);

/* ---- operators.c ---------------------------------------------------------------------------------------------------- */

value operate(render *r, int op, value a, value b);     /* a token: T_ADD ... */
value sign_value(render *r, value v, bool is_negative); /* +v, -v */
value slice_value(render *r, value v, value start, value stop, value step);

/* ---- tables --------------------------------------------------------------------------------------------------------- */

typedef struct filter_row {
    signature s;
    value (*apply)(render *r, value v, const value *args);
    value (*apply_variadic)(render *r, value v, const arguments *a);
    const char *refused; /* known to jinja2, but not to us: why */
    bool keeps_markup;   /* of text that was marked safe, the result is too */
} filter_row;
value markup_value(render *r, value text);          /* marked safe */
value markup_as(render *r, value from, value text); /* marked as `from` is */
value value_escape_html(render *r, value v);        /* for HTML; marked safe */
const filter_row *filter_find(const char *name);
value filter_call(render *r, const char *name, value v, const arguments *a);

typedef struct test_row {
    signature s;
    bool (*holds)(render *r, value v, const value *args);
} test_row;
const test_row *test_find(const char *name);
bool test_call(render *r, const char *name, value v, const arguments *a);

typedef struct method_row {
    uint8_t of; /* a value_kind */
    signature s;
    value (*call)(render *r, value self, const value *args);
    value (*call_variadic)(render *r, value self, const arguments *a);
    const char *refused;
    bool keeps_markup;
} method_row;
value dict_items(render *r, value self, const value *args);
const method_row *method_find(value_kind of, const char *name, size_t n);
value method_call(render *r, const struct method *m, const arguments *a);

typedef struct function {
    signature s;
    value (*call)(render *r, const value *args);
    value (*call_variadic)(render *r, const arguments *a);
    const char *refused;
} function;
const function *function_find(const char *name);
value function_call(render *r, const function *f, const arguments *a);

/* ---- strings: text.c, case.c, format.c, time.c ------------------------------------------------------------------------ */

int32_t char_at(const string *s, size_t i, size_t *n_bytes); /* a bad byte is a character of its own */
size_t text_length(const string *s);                         /* characters */
size_t text_offset(const string *s, size_t n_chars);         /* of a character, or the end */
bool space_is(int32_t c);
value text_strip(render *r, const string *s, const string *chars, bool left, bool right);
value text_replace(render *r, const string *s, const string *old, const string *new, int64_t count);
size_t text_find(const string *s, const string *wanted, size_t from); /* SIZE_MAX: nowhere */
list *text_lines(render *r, const string *s, bool keep_ends);
value text_join(render *r, const string *separator, const list *items, bool any_kind);
typedef enum letter_case {
    CASE_UPPER,
    CASE_LOWER,
    CASE_TITLE,
    CASE_CAPITALIZE,
    CASE_SWAP,
    CASE_TITLE_FILTER
} letter_case;
value text_case(render *r, const string *s, letter_case to);
bool char_is_upper(int32_t c);
bool char_is_lower(int32_t c);
bool char_is_title(int32_t c);
bool char_is_alpha(int32_t c);
bool char_is_decimal(int32_t c);
bool char_is_digit(int32_t c);
bool char_is_numeral(int32_t c);
bool char_is_printable(int32_t c);
bool text_is_cased(render *r, const string *s, bool upper); /* isupper(), islower() */
value text_pad(render *r, const string *s, int64_t width, const string *fill,
               int align); /* -1 left, 0 center, 1 right */
value format_percent(render *r, const string *format, value args);
value format_braces(render *r, const string *format, const arguments *a);
bool number_parse(const string *s, int base, value *out); /* int(); false: not one */
bool float_parse(const string *s, double *out);
value time_format_now(render *r, const string *format);
