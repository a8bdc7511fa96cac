/* jinja.c - open a template, render it, and say which bytes of the output came from where. */
#include "jinja/render.h"

#include <stdlib.h>
#include <string.h>

status jinja_open(jinja **out, const char *source, size_t n_bytes, const char *name) {
    *out = NULL;
    if (n_bytes > JINJA_MAX_SOURCE_BYTES)
        return ERR(ERR_INPUT, "%s: a template of %zu bytes, at most %zu are read", name, n_bytes,
                   JINJA_MAX_SOURCE_BYTES);
    utf8_scan scan = utf8_check(source, n_bytes);
    if (scan.n_bad) return ERR(ERR_INPUT, "%s: not UTF-8 at byte %zu", name, scan.n_valid);
    jinja *t = mem_alloc(sizeof *t);
    token_list tokens = {0};
    status rc;
    arena_init(&t->memory);
    t->name = arena_string(&t->memory, name);
    TRY_GOTO(rc, lex(source, n_bytes, t->name, &t->memory, &tokens), fail);
    TRY_GOTO(rc, parse(t, &tokens), fail);
    free(tokens.items);
    *out = t;
    return OK;
fail:
    free(tokens.items);
    jinja_close(t);
    return rc;
}

void jinja_close(jinja *t) {
    if (!t) return;
    free(t->names);
    free(t->is_read);
    arena_fini(&t->memory);
    free(t);
}

const char *jinja_name(const jinja *t) { return t->name; }
bool jinja_marks_generation(const jinja *t) { return t->marks_generation; }

bool jinja_reads(const jinja *t, const char *variable) {
    for (size_t i = 0; i < t->n_names; i++)
        if (t->is_read[i] && strcmp(t->names[i], variable) == 0) return true;
    return false;
}

/* ---- rendering ------------------------------------------------------------------------------------------------------ */

/* bos_token and its like are the model's own, not somebody's text. */
static bool is_token_name(const char *name) { return str_ends_with(name, "_token"); }

/* A role that is a plain word counts as the template's: Phi-3 writes '<|' + role + '|>'. */
static bool is_plain_word(const string *s) {
    for (size_t i = 0; i < s->length; i++) {
        char c = s->text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
            return false;
    }
    return true;
}

static void clear_role(render *r, value message) {
    const value *role = message.kind == V_DICT ? dict_find_text(r, message.d, "role", 4) : NULL;
    if (!role || role->kind != V_STRING || !is_plain_word(role->s)) return;
    dict_set(r, message.d, string_literal(r, "role"), string_of(r, role->s->text, role->s->length, 0));
}

/* The conversation: its roles are not marked, and where one message is asked for, only that one is. */
static value messages_from_json(render *r, const json_t *j, size_t only) {
    if (!json_is_array(j)) return value_from_json(r, j, only == ALL_VARIABLES ? MARK_VARIABLE : 0, 0);
    list *l = list_new(r, json_array_size(j));
    for (size_t i = 0; i < json_array_size(j) && !failed(r); i++) {
        uint8_t marks = only == ALL_VARIABLES || only == i ? MARK_VARIABLE : 0;
        value message = value_from_json(r, json_array_get(j, i), marks, 1);
        if (marks) clear_role(r, message);
        list_add(r, l, message);
    }
    return list_value(l);
}

/* Variables hide the functions of their name; what the template never names is not looked at. */
static void bind_globals(render *r, size_t only) {
    const jinja *t = r->template;
    r->globals = render_alloc(r, (t->n_names + 1) * sizeof *r->globals);
    for (size_t i = 0; i < t->n_names && !failed(r); i++) {
        const json_t *j = json_object_get(r->variables, t->names[i]);
        const function *f = j ? NULL : function_find(t->names[i]);
        bool is_marked = only == ALL_VARIABLES && !is_token_name(t->names[i]);
        if (j && strcmp(t->names[i], "messages") == 0) r->globals[i] = messages_from_json(r, j, only);
        else if (j) r->globals[i] = value_from_json(r, j, is_marked ? MARK_VARIABLE : 0, 0);
        else if (f) r->globals[i] = (value){.kind = V_FUNCTION, .function = f};
    }
}

/* ---- parts ---------------------------------------------------------------------------------------------------------- */

static const uint8_t part_codes[JINJA_MAX_PARTS] = {7,  11, 13, 14, 19, 21, 22, 25, 26, 28,
                                                    35, 37, 38, 41, 42, 44, 49, 50, 52, 56};

uint8_t part_marks(const render *r, const json_t *j) {
    for (size_t i = 0; i < r->n_parts; i++)
        if (r->parts[i].value == j) return (uint8_t)(part_codes[i] * MARK_PARTS);
    return 0;
}

static void find_parts(const builder *b, jinja_part *parts, size_t n) {
    bool is_there[64] = {false};
    for (size_t i = 0; b->mask && i < b->length; i++) is_there[b->mask[i] / MARK_PARTS] = true;
    if (!b->mask && b->length) is_there[b->marks / MARK_PARTS] = true;
    for (size_t i = 0; i < n; i++) parts[i].is_written = is_there[part_codes[i]];
}

/* ---- output --------------------------------------------------------------------------------------------------------- */

static void ranges_of(const builder *b, uint8_t mark, jinja_range **ranges, size_t *n, size_t *capacity) {
    *n = 0;
    for (size_t i = 0, begin; i < b->length;) {
        if (!((b->mask ? b->mask[i] : b->marks) & mark)) {
            if (!b->mask) break;
            i++;
            continue;
        }
        for (begin = i; b->mask && i < b->length && b->mask[i] & mark;) i++;
        if (!b->mask) i = b->length;
        *ranges = array_grow(*ranges, capacity, *n + 1, sizeof **ranges);
        (*ranges)[(*n)++] = (jinja_range){begin, i};
    }
}

static void output_write(const builder *b, jinja_output *out) {
    strbuf_add_bytes(&out->text, b->length ? b->text : "", b->length);
    ranges_of(b, MARK_VARIABLE, &out->from_variables, &out->n_from_variables, &out->from_variables_capacity);
    ranges_of(b, MARK_GENERATED, &out->generated, &out->n_generated, &out->generated_capacity);
}

static void output_clear(jinja_output *out) {
    out->text.length = 0;
    if (out->text.text) out->text.text[0] = 0;
    out->n_from_variables = out->n_generated = 0;
    free(out->raised);
    out->raised = NULL;
}

static status render_whole(const jinja *t, const json_t *variables, size_t only, const limits *most, jinja_part *parts,
                           size_t n_parts, jinja_output *out) {
    render r = {.most = *most, .template = t, .variables = variables, .parts = parts, .n_parts = n_parts};
    builder b;
    status rc = OK;
    output_clear(out);
    arena_init(&r.memory);
    builder_init(&b, &r);
    r.out = &b;
    bind_globals(&r, only);
    if (!failed(&r)) execute(&r, (const node *const *)t->body, t->n_body);
    if (failed(&r)) {
        rc = ERR(ERR_INPUT, "%s:%d: %s", t->name, r.failed_line, r.message);
        out->raised = r.raised;
    } else {
        output_write(&b, out);
        find_parts(&b, parts, n_parts);
    }
    builder_fini(&b);
    arena_fini(&r.memory);
    return rc;
}

status render_limited(const jinja *t, const json_t *variables, size_t only, const limits *most, jinja_output *out) {
    return render_whole(t, variables, only, most, NULL, 0, out);
}

status jinja_render(const jinja *t, const json_t *variables, jinja_output *out) {
    return render_limited(t, variables, ALL_VARIABLES, &LIMITS_DEFAULT, out);
}

status jinja_render_parts(const jinja *t, const json_t *variables, jinja_part *parts, size_t n, jinja_output *out) {
    ASSERT(n <= JINJA_MAX_PARTS);
    return render_whole(t, variables, ALL_VARIABLES, &LIMITS_DEFAULT, parts, n, out);
}

status jinja_render_message(const jinja *t, const json_t *variables, size_t i, jinja_output *out) {
    return render_limited(t, variables, i, &LIMITS_DEFAULT, out);
}

void jinja_output_free(jinja_output *out) {
    strbuf_fini(&out->text);
    free(out->from_variables);
    free(out->generated);
    free(out->raised);
    *out = (jinja_output){0};
}
