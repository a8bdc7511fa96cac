#pragma once
/* jinja.h - render a model's chat template: the part of Jinja that templates on the Hugging Face Hub use.
 *
 * The result equals what transformers' apply_chat_template gives (an immutable sandboxed environment with trim_blocks and
 * lstrip_blocks, the loop controls `break` and `continue`, `raise_exception`, `strftime_now`, its own `tojson`).
 *
 * Promises
 *   - A template is hostile input. It cannot read a file, call a program or change what it was given; steps, nesting,
 *     values in memory and output are limited (JINJA_MAX_*), so every render ends.
 *   - What is not supported is an error that names the construct and its line, when the template is opened wherever that
 *     can be seen there. Nothing is skipped or rendered approximately.
 *   - Every byte of the output knows whether it comes from the template or from a variable, through joins, slices,
 *     filters and methods: a special token in a user's text can be told from the template's own.
 *     Some variables count as the template's own: strings whose name ends in `_token` (bos_token), and the `role` of an
 *     element of `messages` that is a plain word, since templates write '<|' + role + '|>'. The text of strftime_now too.
 *   - An open template is immutable: any number of threads may render it.
 *
 *     jinja *t;
 *     TRY(jinja_open(&t, source, n_bytes, "chat_template.jinja"));
 *     jinja_output out = {0};
 *     TRY(jinja_render(t, variables, &out));      variables: {"messages": [...], "add_generation_prompt": true, ...}
 *     ... out.text.text, out.text.length ...
 *     jinja_output_free(&out);
 *     jinja_close(t);
 */
#include "format/format.h"

#define JINJA_MAX_SOURCE_BYTES ((size_t)1 << 20)
#define JINJA_MAX_OUTPUT_BYTES ((size_t)256 << 20) /* a conversation may be as long as a line of records */
#define JINJA_MAX_STEPS ((uint64_t)50 << 20) /* expressions and statements evaluated, bytes handled by filters / 64 */
#define JINJA_MAX_DEPTH 128                  /* nesting in the source, calls of macros, nesting of values */
#define JINJA_MAX_VALUE_BYTES ((size_t)1 << 30) /* everything alive in one render */

typedef struct jinja jinja;
/* `name` stands in error messages: the file. The source must be UTF-8. */
status jinja_open(jinja **out, const char *source, size_t n_bytes, const char *name);
void jinja_close(jinja *t);
const char *jinja_name(const jinja *t);
bool jinja_marks_generation(const jinja *t);            /* has it {% generation %} blocks? */
bool jinja_reads(const jinja *t, const char *variable); /* does it name this variable (tools, enable_thinking)? */

typedef struct jinja_range {
    size_t begin, end; /* bytes of the output */
} jinja_range;
typedef struct jinja_output { /* zero it, use it for many renders, free it */
    strbuf text;
    jinja_range *from_variables; /* bytes that came out of variables: ascending, apart, never empty */
    size_t n_from_variables, from_variables_capacity;
    jinja_range *generated; /* the {% generation %} blocks, likewise */
    size_t n_generated, generated_capacity;
    char *raised; /* the message of raise_exception, where that ended the render (ERR_INPUT); else NULL */
} jinja_output;
/* `variables` is an object; its members are the template's globals, in the order of the file that they came from (`tojson`
 * and `items` keep it). Strings are UTF-8. strftime_now reads the clock in local time, as transformers does. */
status jinja_render(const jinja *t, const json_t *variables, jinja_output *out);
/* Parts of the variables whose way into the output is asked for. None lies inside of another, and none is a value that
 * jansson shares (null, true, false). */
enum { JINJA_MAX_PARTS = 20 };
typedef struct jinja_part {
    const json_t *value;
    bool is_written; /* a byte of the output came out of it. Else the output may still depend on it, by an {% if %} */
} jinja_part;
/* The same output. It costs nothing more: the bytes of each part have marks of their own. */
status jinja_render_parts(const jinja *t, const json_t *variables, jinja_part *parts, size_t n, jinja_output *out);
/* The same text, but from_variables holds only the bytes that came out of messages[i], at any depth. */
status jinja_render_message(const jinja *t, const json_t *variables, size_t i, jinja_output *out);
void jinja_output_free(jinja_output *out);
