#pragma once
/* questions.h - private to cli: prompts from the command line or a file, and their tokens.
 *
 * Records of JSON Lines are written as in training (data/records.h, chat_encode_prompt). Plain text is continued as
 * it is, unless --chat makes it a user's turn. */
#include "cli/cli.h"

typedef struct question {
    data_record record; /* a plain text is its prompt. All views lie in the list's memory, a NUL after each */
    bool is_plain;
    span answer;         /* the right answer; text NULL: there is none */
    span expected;       /* the part that is compared: the comparing code fills it in */
    const char *adapter; /* that the record names; NULL: it does not; "": by something else than a text */
    size_t number;       /* among all that were asked for */
} question;
typedef struct questions {
    question *items;
    size_t n, capacity;
    record_skips skips; /* lines that were left out, with --on-error skip */
    json_t *kept;       /* what the records hold as JSON */
    arena memory;
} questions;

void questions_init(questions *q);
void questions_fini(questions *q);
void questions_add(questions *q, const char *text, size_t n_bytes); /* a plain text */
/* Reads a file, its kind taken from its name: records, or one plain text per line; empty lines are skipped.
 * with_answers: only records, each with an answer; in messages it is the assistant's last turn, and the turns before
 * it are the prompt. limit: only so many, 0: all. */
status questions_read(questions *q, const char *path, const record_options *o, bool with_answers, size_t limit);
/* ", 2 lines skipped"; "" where there were none. */
const char *skipped_text(char out[48], uint64_t n);
/* The last error, with flags of the command line in place of the settings of a training run. */
status questions_name_flags(status rc);
span question_text(const question *q); /* of messages: what was said last */

/* The questions as tokens. fini also after an error. */
typedef struct asked {
    prompt *prompts;      /* as many as there are questions */
    chat_tokens *records; /* the same with their answers, as training writes them; NULL: they have none */
    size_t n;
    chat_format chat; /* of those that are written as turns; CHAT_AUTO: none is */
    int32_t end;      /* the token that ends an answer to them; -1: none */
} asked;
/* Encodes the questions as --chat and --system say, and makes l->sampling stop at the end of a turn. A record that
 * cannot be encoded (no template, too long for the context) is an error, or is removed with --on-error skip. */
status questions_encode(questions *q, const generator *g, command_line *l, asked *out);
void asked_fini(asked *a);
/* How many completions did not end by themselves; warns of those that the context stopped before --max-new did. */
size_t completions_cut(const generator *g, const completion *c, size_t n, int64_t max_new);
