/* json_list.c - see json_list.h. A state machine over the reader's blocks, so an element may be longer than a block. */
#include "data/json_list.h"

#include <string.h>

enum { SPACES_MOST = 4096 }; /* before the list */

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

status json_list_begins(reader *in, bool *out) {
    span text = {0};
    *out = false;
    for (size_t n = 0; n < SPACES_MOST;
         n++) { /* no more is asked for than is looked at: what is wrong behind it is for whoever reads it */
        if (n >= text.length) TRY(reader_peek(in, n + 1, &text));
        if (n >= text.length) return OK;
        if (is_space(text.text[n])) continue;
        *out = text.text[n] == '[';
        return OK;
    }
    return OK;
}

void json_list_open(json_list *l, reader *in, uint64_t most) {
    *l = (json_list){.in = in, .most = most};
    strbuf_init(&l->element);
}

void json_list_close(json_list *l) {
    strbuf_fini(&l->element);
    *l = (json_list){0};
}

static void take(json_list *l, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) l->in->n_lines += text[i] == '\n';
    reader_consume(l->in, n);
}

/* The first byte that is no space, which stays; 0: the file has no more (a NUL is no JSON either). */
static status skip_spaces(json_list *l, char *out) {
    for (;;) {
        span text;
        size_t n = 0;
        TRY(reader_peek(l->in, 1, &text));
        while (n < text.length && is_space(text.text[n])) n++;
        *out = n < text.length ? text.text[n] : 0;
        bool is_done = n < text.length || text.length == 0;
        take(l, text.text, n);
        if (is_done) return OK;
    }
}

/* Up to the comma or bracket behind it, which stays. */
static status read_element(json_list *l, line *out) {
    int64_t depth = 0;
    bool in_string = false, is_escaped = false, has_ended = false;
    l->element.length = 0;
    while (!has_ended) {
        span text;
        size_t n = 0;
        TRY(reader_peek(l->in, 1, &text));
        if (text.length == 0) break;
        for (; n < text.length; n++) {
            char c = text.text[n];
            if (!in_string && depth <= 0 && (c == ',' || c == ']')) {
                has_ended = true;
                break;
            }
            if (in_string) {
                in_string = c != '"' || is_escaped;
                is_escaped = c == '\\' && !is_escaped;
            } else {
                in_string = c == '"';
                depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            }
            if (!in_string && is_space(c)) c = ' '; /* an element is one line */
            if (l->element.length < l->most) strbuf_add_bytes(&l->element, &c, 1);
            out->n_bytes++;
        }
        take(l, text.text, n);
    }
    while (l->element.length > 0 && l->element.text[l->element.length - 1] == ' ') l->element.length--;
    return OK;
}

/* Nothing is read behind what is wrong: where the next element would begin is anyone's guess. */
static status refuse(json_list *l, const char *why, const char **problem) {
    *problem = why;
    l->has_ended = true;
    span text;
    do {
        TRY(reader_peek(l->in, 1, &text));
        take(l, text.text, text.length);
    } while (text.length > 0);
    return OK;
}

status json_list_next(json_list *l, line *out, const char **problem, bool *found) {
    char c = 0;
    *problem = NULL;
    *found = true;
    for (;;) {
        TRY(skip_spaces(l, &c));
        *out = (line){.number = l->in->n_lines + 1, .offset = l->in->offset};
        if (l->has_ended && c == 0) {
            *found = false;
            return OK;
        }
        if (l->has_ended) return refuse(l, "found more behind the list, expected one list of records", problem);
        if (c == 0) return refuse(l, "found the end of the file, expected ']' behind the last record", problem);
        bool may_end = l->expected == LIST_RECORD_OR_END, is_record = may_end || l->expected == LIST_RECORD;
        if (is_record && (c == ',' || (c == ']' && !may_end)))
            return refuse(l, "found a comma without a record, expected one between two records", problem);
        if (is_record && c != ']') break;
        /* read_element stops at a comma or the end, so c is one of them here, or the '[' of json_list_begins. */
        take(l, &c, 1);
        if (c == ']') l->has_ended = true;
        l->expected = c == '[' ? LIST_RECORD_OR_END : LIST_RECORD;
    }
    TRY(read_element(l, out));
    l->expected = LIST_COMMA_OR_END;
    out->too_long = out->n_bytes > l->most;
    if (!out->too_long) out->text = (span){l->element.text, l->element.length};
    return OK;
}
