#pragma once
/* records.h - files of JSON Lines and tables as records: a text, a prompt with its response, or a conversation.
 *
 * One JSON object per line, or one row of a table (CSV) whose first row names the keys: lines.h makes such an object of it.
 * Files may be packed with gzip or zstd. The shape of a record is told by its keys:
 *     {"text"}   {"prompt", "completion"}   {"question", "answer"}   {"instruction", "input" (may be absent), "output"}
 *     {"messages": [{"role", "content"}, ...]}   {"conversations": [{"from", "value"}, ...]}, which is ShareGPT's
 *     {"prompt": [{"role", "content"}, ...], "completion": [{"role", "content"}, ...]}, which is TRL's
 *     or the two columns that the options name, which hold two texts or two such lists.
 * Beside turns may stand `tools` (a list, or a string that holds one) and `chat_template_kwargs` (an object), as TRL has
 * them; a turn may have any role and hold tool calls, thoughts and other keys. A chat template gets all of it as it is;
 * the built-in formats write system, user and assistant with their text and refuse the rest (record_check_plain).
 * Other keys are skipped; empty lines too. Line ends may be "\n" or "\r\n", a byte order mark may stand first.
 *
 * Promises
 *   - A record that is handed out is whole: every string is UTF-8, no response is empty (see may_lack_response), a role
 *     is a plain word.
 *   - Every other line is an error that names file:line, what was found and what was expected (RECORDS_STOP), or is
 *     counted, and the first few are named in the log (RECORDS_SKIP). Nothing is guessed and nothing is skipped
 *     silently.
 *   - A file that changes after it was opened is an error.
 *
 *     records *r;
 *     TRY(records_open(&r, "test.jsonl", &(record_options){0}));
 *     for (uint64_t i = 0; i < records_count(r); i++) {
 *         data_record q;
 *         TRY(records_get(r, i, &q));
 *         if (q.kind == RECORD_PAIR) ask(q.prompt, q.response, q.line);
 *     }
 *     records_close(r);
 */
#include "tokenizer/tokenizer.h"

/* auto: by the end of the name: .jsonl, .json and .ndjson, .csv, .tsv, .bin and .npy (token ids), each also with .gz or
 * .zst behind it; all others are text. */
typedef enum data_format { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL, FORMAT_CSV, FORMAT_TSV, FORMAT_TOKENS } data_format;
data_format data_format_of(const char *path, data_format f); /* never FORMAT_AUTO */
bool data_is_records(const char *path);                      /* does auto take it for JSON Lines or a table? */

typedef enum record_policy { RECORDS_STOP, RECORDS_SKIP } record_policy;
#define RECORDS_SKIP_SETTING \
    "data.on_error=skip" /* as messages name it; commands with a flag for it name that instead */
typedef struct record_options {
    const char *prompt_column, *response_column; /* NULL or "": by the keys above; both or none */
    /* Preferences (example_parse): NULL or "": chosen, rejected, label. prompt_column may stand alone there. */
    const char *chosen_column, *rejected_column, *label_column;
    /* Solutions (solutions.h): NULL or "": is_correct, task_id, difficulty. */
    const char *correct_column, *task_column, *difficulty_column;
    data_format format;
    record_policy on_error;
    uint64_t max_line; /* bytes; 0: RECORD_MAX_LINE */
    /* Prompts for a model to answer: {"prompt"}, {"question"}, {"instruction"}, messages without the assistant's, and a
     * prompt column alone are records too. A response that is missing is empty, or no message. */
    bool may_lack_response;
    /* The response is not even looked at, so it may be a number: prompts.c hands it out as a column. With may_lack_response. */
    bool ignores_response;
} record_options;
#define RECORD_MAX_LINE ((uint64_t)64 << 20)

typedef enum turn_role { TURN_SYSTEM, TURN_USER, TURN_ASSISTANT, TURN_OTHER, TURN_COUNT } turn_role;
const char *turn_role_name(turn_role r); /* "system", "user", "assistant"; of others NULL */
typedef struct record_message {
    turn_role role;
    span content;       /* empty where it is no string */
    const char *beyond; /* the first key that says more than role and text: "tool_calls", "role"; NULL: none */
} record_message;

typedef enum data_record_kind { RECORD_TEXT, RECORD_PAIR, RECORD_MESSAGES } data_record_kind;
typedef struct data_record {
    data_record_kind kind;
    const char *path; /* of its file, and the line in it, from 1 */
    uint64_t line;
    span text;                      /* RECORD_TEXT */
    span prompt, response;          /* RECORD_PAIR */
    const record_message *messages; /* RECORD_MESSAGES: at least one of them, after n_context, is the assistant's */
    size_t n_messages;
    size_t n_context; /* that many come first and are the prompt: what the assistant says in them is no response */
    /* What a template gets: the turns as JSON objects with "role" and "content" (RECORD_MESSAGES), and what stands beside
     * them; NULL: nothing. Hold a reference to keep one beyond the next record. */
    json_t *turns, *tools, *template_kwargs;
    bool has_rounded_numbers;   /* an integer of the line is beyond 64 bits: all of them are reals */
    json_t *object;             /* the whole line */
    const char *prompt_keys[2]; /* keys of it that hold the prompt, or the text; NULL: no second one */
} data_record;
/* The error for the first thing in a record that only a template can write. */
status record_check_plain(const data_record *r);
const char *template_kwargs_reserved(const json_t *kwargs); /* a name that ralo sets itself; NULL: none */
json_t *record_turn(const char *role, span content);        /* {"role", "content"}; NULL: the content is not UTF-8 */

typedef struct records records;
/* Reads the whole file once, so that what is wrong in it is known before the first record is used. */
status records_open(records **out, const char *path, const record_options *o);
void records_close(records *r);
uint64_t records_count(const records *r);
uint64_t records_skipped(const records *r);
/* Record i, read from the file again; its views live until the next call. One caller at a time. */
status records_get(records *r, uint64_t i, data_record *out);

/* ---- one line at a time: what the above is made of ------------------------------------------------------------ */

/* Memory of one record at a time: zero it, use it for many lines, close it. */
typedef struct record_parser {
    json_t *root, *turns, *tools;
    strbuf joined;
    record_message *messages;
    size_t capacity;
} record_parser;
void record_parser_close(record_parser *p);
/* The views of `out` live until the parser is used again. */
status record_parse(record_parser *p, const char *text, size_t n_bytes, const char *path, uint64_t line,
                    const record_options *o, data_record *out);
status record_options_check(const record_options *o);
status record_too_long(const char *path, uint64_t line, uint64_t n_bytes, const record_options *o); /* the error */
bool record_line_is_empty(const char *text, size_t n_bytes); /* nothing but spaces: no record, no mistake */

/* Counts what was skipped, and reports the first few. */
typedef struct record_skips {
    uint64_t n;
} record_skips;
void record_skips_add(record_skips *s); /* takes this thread's error */
/* " (2 lines were skipped)"; "" if there are none */
const char *record_skips_text(uint64_t n, char out[static 48]);
