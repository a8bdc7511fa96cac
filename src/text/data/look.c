/* look.c - a quick look at the files of a source, before or beside reading them. */
#include "data/data.h"
#include "data/lines.h"
#include "data/source.h"

#include <string.h>
#include <unistd.h>

enum { LOOKED_AT = 16 }; /* records: they are all written alike */

/* A pattern that matches nothing is data that is not here yet; any other list that cannot be read is wrong. */
static bool is_pattern(const char *source) { return strpbrk(source, "*?[") != NULL; }

static void list_missing(const char *source, strbuf *out) {
    file_entry *entries = NULL;
    size_t n = 0;
    if (file_list_parse(source, &entries, &n) != OK) {
        error_clear(); /* whoever opens it says so */
        if (is_pattern(source)) strbuf_printf(out, "%s%s", out->length ? ", " : "", source);
    }
    for (size_t i = 0; i < n; i++)
        if (entries[i].path && access(entries[i].path, F_OK) != 0)
            strbuf_printf(out, "%s%s", out->length ? ", " : "", entries[i].path);
    file_list_free(entries, n);
}

void data_list_missing(const data_options *o, strbuf *out) {
    if (str_starts_with(o->source, "builtin:")) return;
    list_missing(o->source, out);
    if (data_has_eval_source(o)) list_missing(o->eval_source, out);
}

static void look_at_list(const char *source, data_look *look) {
    file_entry *entries = NULL;
    size_t n = 0;
    bool is_list = file_list_parse(source, &entries, &n) == OK;
    if (!is_list) { /* whoever opens it says so */
        error_clear();
        look->is_missing |= is_pattern(source);
    }
    for (size_t i = 0; is_list && i < n; i++) {
        file_stamp stamp;
        if (!entries[i].path || file_stamp_get(entries[i].path, &stamp) != OK) {
            error_clear();
            look->is_missing = true;
            continue;
        }
        look->is_stream |= !stamp.is_regular;
        look->n_bytes += stamp.n_bytes;
    }
    file_list_free(entries, n);
}

data_look data_source_look(const data_options *o) {
    data_look look = {0};
    if (str_starts_with(o->source, "builtin:")) return look;
    look_at_list(o->source, &look);
    if (data_has_eval_source(o)) look_at_list(o->eval_source, &look);
    return look;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Does anything show where the prompt ends? "2+2=" and "Answer:" end with it, too. */
static bool is_glued(const data_record *r) {
    if (r->kind != RECORD_PAIR || r->prompt.length == 0 || r->response.length == 0) return false;
    char last = r->prompt.text[r->prompt.length - 1];
    return !is_space(last) && !is_space(r->response.text[0]) && !strchr(":=>]|", last);
}

static status count_glued(reader *in, const record_options *o, size_t *n_glued, size_t *n_seen) {
    record_parser parser = {0};
    record_lines lines;
    bool found = true;
    status rc = record_lines_open(&lines, in, o);
    while (rc == OK && found && *n_seen < LOOKED_AT) {
        line l;
        data_record r;
        rc = record_lines_next(&lines, &l, &found);
        if (rc != OK || !found || l.too_long || l.is_wrong || record_line_is_empty(l.text.text, l.text.length))
            continue;
        ++*n_seen;
        if (record_parse(&parser, l.text.text, l.text.length, in->path, l.number, o, &r) == OK)
            *n_glued += is_glued(&r);
        else error_clear(); /* skipped, or it was refused before */
    }
    record_parser_close(&parser);
    record_lines_close(&lines);
    return rc;
}

static bool file_is_glued(const char *path, const record_options *o) {
    reader in;
    file_stamp stamp;
    size_t n_glued = 0, n_seen = 0;
    status rc = file_stamp_get(path, &stamp);
    if (rc == OK && !stamp.is_regular) return false; /* a pipe cannot be read twice */
    if (rc == OK && (rc = reader_open(&in, path)) == OK) {
        rc = count_glued(&in, o, &n_glued, &n_seen);
        reader_close(&in);
    }
    if (rc != OK) error_clear(); /* whoever reads it all says so */
    return n_glued > 0 && 2 * n_glued >= n_seen;
}

bool data_pairs_are_glued(const data_options *o) {
    file_entry *entries = NULL;
    size_t n = 0;
    bool glued = false;
    if (!data_source_has_records(o)) return false;
    if (file_list_parse(o->source, &entries, &n) != OK) error_clear();
    for (size_t i = 0; i < n && !glued; i++)
        glued =
            entries[i].path && data_is_record_file(o, entries[i].path) && file_is_glued(entries[i].path, &o->records);
    file_list_free(entries, n);
    return glued;
}
