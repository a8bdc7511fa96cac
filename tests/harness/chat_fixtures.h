#pragma once
/* chat_fixtures.h - the tokenizers, templates and conversations of fixtures/chat (tools/make_chat_fixtures.py).
 *
 *     tokenizer *t = tokenizer_of(template_of("chatml"));
 *     chat *c = open_chat(t, CHAT_AUTO);
 *     ...
 *     return cmocka_run_group_tests(tests, chat_fixtures_open, chat_fixtures_close); */
#include "data/data.h"
#include "files.h"

extern json_t *chat_fixtures;
int chat_fixtures_open(void **state); /* test_dir too */
int chat_fixtures_close(void **state);

/* The directory of a tokenizer: a fixture, and a tokenizer_config.json or none. */
tokenizer *open_tokenizer(const char *fixture, const json_t *config);
const json_t *template_of(const char *name);
tokenizer *tokenizer_of(const json_t *template);
chat *open_chat_with(const tokenizer *t, const chat_options *o);
chat *open_chat(const tokenizer *t, chat_format wanted);

data_record parse_record(record_parser *p, const char *text); /* a record out of text, as it would stand in a file */
void compare_tokens(const chat_tokens *got, const json_t *ids, const json_t *trained, const char *what);
size_t count_id(const chat_tokens *t, int32_t id);
