#pragma once
/* record_parts.h - private to data: what records and examples of preferences are read with (records.c). */
#include "data/records.h"

#define SKIP_HINT "; repair the line, or leave such records out (" RECORDS_SKIP_SETTING ")"

typedef struct place { /* for messages */
    const char *path;
    unsigned long long line;
} place;

const char *record_kind_of(const json_t *v); /* "a list" */
/* Gives the parser its next object, and owns it; NULL: none. */
void record_parser_begin(record_parser *p, json_t *root);
/* The object of a line into p->root. */
status record_load_line(record_parser *p, const char *text, size_t n_bytes, place at, bool *has_rounded_numbers);
/* Two texts, or two lists of turns that are one conversation. response: NULL where no column has it. */
status record_read_answer(record_parser *p, const char *prompt, const char *response, const record_options *o, place at,
                          data_record *out);
/* "instruction", with "input" below it where there is one, and the answer under `response`. */
status record_read_instruction(record_parser *p, const char *response, const record_options *o, place at,
                               data_record *out);
/* One list of turns, of which the first are the prompt. */
status record_read_split(record_parser *p, const char *key, size_t n_context, place at, data_record *out);
status record_read_beside(record_parser *p, place at, data_record *out); /* tools and variables of the template */
/* Errors (record_refuse.c); those that may find nothing to refuse are OK then. */
status record_refuse_beside(const json_t *root, const data_record *r, place at); /* keys that would be lost; or OK */
status record_unknown_shape(const json_t *root, place at, const char *expected);
status record_need_column(const json_t *object, const char *setting, const char *key, place at);
status record_refuse_preference(const json_t *root, place at); /* chosen and rejected, where one answer is expected */
status record_refuse_shape(const json_t *root, const record_options *o, place at);
status record_refuse_list(const char *text, size_t n_bytes, place at); /* a whole data set as one list */
status record_refuse_rest(const char *text, size_t n_bytes, place at); /* text after the object */
