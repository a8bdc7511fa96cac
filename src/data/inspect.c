/* inspect.c - the records of data files one by one, with the tokens that training would see: for `ralo show`. */
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

static status show_record(inspection *s, const data_record *r) {
    chat_tokens tokens = {0};
    record_view view = {.path = r->path, .line = r->line, .tokens = &tokens};
    status rc = s->prompts ? chat_encode_prompt(s->chat, r, &tokens) : chat_encode(s->chat, r, s->o->train_on, &tokens);
    char *error = NULL;
    if (rc == ERR_INPUT && s->o->records.on_error == RECORDS_SKIP) {
        view.error = error = mem_string(error_message());
        error_clear();
        rc = OK;
    }
    if (rc == OK) rc = s->visit(s->context, s->t, &view);
    free(error);
    chat_tokens_free(&tokens);
    return rc;
}

static status show_file(inspection *s, const char *path) {
    records *r;
    record_options options = s->o->records;
    status rc = OK;
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

status data_visit_records(const data_options *o, bool prompts, uint64_t most, record_visit visit, void *context) {
    status rc = OK;
    inspection s = {.o = o, .prompts = prompts, .n_left = most, .visit = visit, .context = context};
    file_entry *entries = NULL;
    size_t n = 0;
    if (!data_source_has_records(o))
        return ERR(ERR_INPUT,
                   "data.source: found '%.200s', expected files of JSON Lines: other sources have no records",
                   o->source);
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
