/* fuzz_record.c - one line of a JSON Lines file.
 *
 * Sections: the line, then (may be absent) the prompt column and the response column. An odd number of bytes in the line: records
 * may lack a response, as `ralo generate` allows.
 * Of a line that is accepted: the promises of records.h. */
#include "data/records.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_span(const span *s) { ASSERT(s->length == 0 || utf8_check(s->text, s->length).n_bad == 0); }

static void check_record(const data_record *r, bool may_lack) {
    bool answered = r->kind != RECORD_MESSAGES;
    check_span(&r->text);
    check_span(&r->prompt);
    check_span(&r->response);
    ASSERT(r->line == 7);
    if (r->kind == RECORD_TEXT) ASSERT(r->text.length > 0);
    if (r->kind == RECORD_PAIR) ASSERT(may_lack || r->response.length > 0);
    ASSERT(r->n_context <= r->n_messages);
    for (size_t i = 0; i < r->n_messages; i++) {
        check_span(&r->messages[i].content);
        ASSERT(r->messages[i].role < TURN_COUNT);
        answered |= i >= r->n_context && r->messages[i].role == TURN_ASSISTANT;
    }
    ASSERT(answered || may_lack);
}

void fuzz_one(const uint8_t *data, size_t size) {
    static record_parser parser; /* one for many lines, as a file has */
    fuzz_input in = {data, size};
    span line = fuzz_section(&in), prompt = fuzz_section(&in), response = fuzz_section(&in);
    char *columns[] = {fuzz_text(&prompt), fuzz_text(&response)};
    record_options o = {
        .prompt_column = columns[0], .response_column = columns[1], .may_lack_response = line.length % 2 == 1};
    status rc = record_options_check(&o);
    data_record r;
    if (rc == OK && !record_line_is_empty(line.text, line.length)) {
        rc = record_parse(&parser, line.text, line.length, "fuzz.jsonl", 7, &o, &r);
        if (rc == OK) check_record(&r, o.may_lack_response);
    }
    if (rc != OK) fuzz_refused(rc);
    free(columns[0]);
    free(columns[1]);
}
