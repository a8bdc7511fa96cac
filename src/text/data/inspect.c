/* inspect.c - the records of data files one by one, with the tokens that training would see: for `ralo show`. */
#include "data/examples.h"
#include "data/file_kind.h"
#include "data/lines.h"
#include "data/source.h"

#include <stdlib.h>

typedef struct inspection {
    const data_options *o;
    bool prompts;
    uint64_t n_left;
    tokenizer *t;
    chat *chat;
    record_visit visit;
    void *context;
} inspection;

/* rc: what came of encoding the record. */
static status visit_record(inspection *s, record_view view, status rc) {
    char *error = NULL;
    if (rc == ERR_INPUT && s->o->records.on_error == RECORDS_SKIP) {
        view.error = error = mem_string(error_message());
        error_clear();
        rc = OK;
    }
    if (rc == OK) rc = s->visit(s->context, s->t, &view);
    free(error);
    return rc;
}

static status show_record(inspection *s, const data_record *r) {
    chat_tokens tokens = {0};
    status rc = s->prompts ? chat_encode_prompt(s->chat, r, &tokens) : chat_encode(s->chat, r, s->o->train_on, &tokens);
    rc = visit_record(s, (record_view){.path = r->path, .line = r->line, .tokens = &tokens}, rc);
    chat_tokens_free(&tokens);
    return rc;
}

/* The answers of an example one after the other, or its prompt once. */
static status show_example(inspection *s, const char *path, const line *l, example_parser *p) {
    chat_tokens tokens[EXAMPLE_RECORDS] = {0};
    data_example e = {0};
    record_view view = {.path = path, .line = l->number, .tokens = &tokens[0]};
    status rc = record_line_check(path, l, &s->o->records);
    if (rc == OK) rc = example_parse(p, l->text.text, l->text.length, path, l->number, s->o, &e);
    if (rc == OK)
        rc = s->prompts ? chat_encode_prompt(s->chat, &e.records[0], &tokens[0]) : example_encode(s->chat, &e, tokens);
    if (rc != OK || s->prompts) {
        rc = visit_record(s, view, rc);
    } else {
        for (size_t i = 0; i < e.n && rc == OK; i++) {
            view.tokens = &tokens[i];
            view.part = data_part_name(s->o->kind, (data_part)(e.is_undesirable ? PART_REJECTED : i));
            rc = visit_record(s, view, OK);
        }
    }
    for (size_t i = 0; i < EXAMPLE_RECORDS; i++) chat_tokens_free(&tokens[i]);
    return rc;
}

static status show_examples(inspection *s, const char *path) {
    status rc = OK;
    reader in;
    example_parser p = {0};
    record_lines lines = {0};
    TRY(reader_open(&in, path));
    TRY_GOTO(rc, record_lines_open(&lines, &in, &s->o->records), done);
    while (s->n_left > 0) {
        line l;
        bool found;
        TRY_GOTO(rc, record_lines_next(&lines, &l, &found), done);
        if (!found) break;
        if (!l.too_long && record_line_is_empty(l.text.text, l.text.length)) continue;
        s->n_left--;
        TRY_GOTO(rc, show_example(s, path, &l, &p), done);
    }
done:
    example_parser_close(&p);
    record_lines_close(&lines);
    reader_close(&in);
    return rc;
}

static status show_file(inspection *s, const char *path) {
    records *r;
    record_options options = s->o->records;
    status rc = OK;
    if (s->o->kind != DATA_TEXT) return show_examples(s, path);
    options.may_lack_response = s->prompts;
    TRY(records_open(&r, path, &options));
    for (uint64_t i = 0; i < records_count(r) && s->n_left > 0 && rc == OK; i++, s->n_left--) {
        data_record record;
        TRY_GOTO(rc, records_get(r, i, &record), done);
        rc = show_record(s, &record);
    }
done:
    records_close(r);
    return rc;
}

/* Why a source has no records, as training would say it: nothing is there, or a file of another kind. */
static status refuse_source(const data_options *o) {
    file_entry *entries = NULL;
    size_t n = 0;
    status rc = str_starts_with(o->source, "builtin:") ? OK : file_list_parse(o->source, &entries, &n);
    for (size_t i = 0; i < n && rc == OK; i++) {
        reader in;
        if ((rc = data_check_file("data.source", entries[i].path)) != OK) break;
        if ((rc = reader_open(&in, entries[i].path)) != OK) break;
        rc = data_refuse_kind(&in, &o->records);
        reader_close(&in);
    }
    file_list_free(entries, n);
    if (rc != OK) return rc;
    return ERR(ERR_INPUT, "data.source: found '%.200s', expected files of JSON Lines: other sources have no records",
               o->source);
}

status data_visit_records(const data_options *o, bool prompts, uint64_t most, record_visit visit, void *context) {
    status rc = OK;
    inspection s = {.o = o, .prompts = prompts, .n_left = most, .visit = visit, .context = context};
    file_entry *entries = NULL;
    size_t n = 0;
    if (!data_source_has_records(o)) return refuse_source(o);
    TRY(o->kind == DATA_TEXT ? example_columns_check(o) : example_options_check(o));
    TRY(file_list_parse(o->source, &entries, &n));
    TRY_GOTO(rc, tokenizer_open(&s.t, o->tokenizer), done);
    TRY_GOTO(rc, tokenizer_set_eos(s.t, o->eos_token), done);
    TRY_GOTO(rc,
             chat_open(
                 &s.chat, s.t, o->tokenizer ? o->tokenizer : "byte",
                 &(chat_options){.format = o->chat, .kwargs = o->chat_kwargs, .train_on_newline = o->train_on_newline}),
             done);
    for (size_t i = 0; i < n && s.n_left > 0; i++)
        if (data_is_record_file(o, entries[i].path)) TRY_GOTO(rc, show_file(&s, entries[i].path), done);
done:
    chat_close(s.chat);
    tokenizer_close(s.t);
    file_list_free(entries, n);
    return rc;
}
