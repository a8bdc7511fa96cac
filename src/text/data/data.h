#pragma once
/* data.h - text and problems in, packed micro-batches out, with an exact position to resume from.
 *
 * Promises
 *   - Row i of epoch e is a pure function of (source, options, seed): any number of readers, any resume, same rows.
 *   - A row never mixes documents: `doc_start` marks where each token's document starts and attention stops there. A record
 *     with a prompt stands in one row, and so do both answers of a preference.
 *   - Nothing is dropped silently: data_report counts documents, tokens, and what was cut, dropped or skipped.
 *   - A source that is too small, unreadable or not UTF-8 where that matters is an error, never an endless loop.
 *
 *     dataset *d;
 *     TRY(dataset_open(&d, &(data_options){.source = "builtin:arithmetic", .seq_len = 256, .difficulty = 2}));
 *     dataset_row(d, SPLIT_TRAIN, 0, tokens, targets, doc_start);
 *     dataset_close(d);
 */
#include "data/records.h"

/* What an example of a data set is. The task sets it; it is no setting.
 *   DATA_TEXT      texts, and records with one answer (records.h)
 *   DATA_PAIRS     {"prompt", "chosen", "rejected"}: two answers to one prompt
 *   DATA_LABELLED  {"prompt", "completion", "label"}: one answer, and whether it is a good one (KTO)
 *   DATA_PROMPTS   prompts alone, without rows: prompts.h reads them
 *   DATA_SOLUTIONS records with one answer and {"is_correct", "task_id", "difficulty" (may be absent)}: pairs are made of them,
 *                  a correct and a wrong solution of one problem each. Rows and segments are those of DATA_PAIRS.
 * Of records that say is_correct, DATA_TEXT has those where it is true: a model that imitates must not learn the others.
 * An example of pairs or labelled answers is several documents of one row, each with its own copy of the prompt:
 *   DATA_PAIRS     PART_CHOSEN, PART_REJECTED
 *   DATA_LABELLED  PART_CHOSEN where label is true, else PART_REJECTED; then PART_MISMATCHED: the same prompt with the
 *                  response of another example, from which KTO estimates the KL divergence. It is the next example of
 *                  the split (cyclic) that has another prompt; where that one does not fit, the one with the shortest
 *                  response.
 * Rows hold whole examples. One that is longer than a row is dropped and counted, never cut. */
typedef enum data_kind { DATA_TEXT, DATA_PAIRS, DATA_LABELLED, DATA_PROMPTS, DATA_SOLUTIONS } data_kind;
typedef enum data_part { PART_CHOSEN, PART_REJECTED, PART_MISMATCHED, PART_STRIDE = 4 } data_part;
/* "chosen", "rejected"; of labelled examples "desirable", "undesirable", "mismatched"; of solutions "correct", "wrong". */
const char *data_part_name(data_kind k, data_part p);

typedef enum data_train_on { TRAIN_ON_RESPONSE, TRAIN_ON_ALL } data_train_on;
typedef enum chat_format {
    CHAT_AUTO, /* the tokenizer's own template, else what its special tokens say, else none */
    CHAT_NONE, /* prompt, response, end of text */
    CHAT_CHATML,
    CHAT_LLAMA3,
    CHAT_LLAMA2,
    CHAT_TEMPLATE, /* the tokenizer's own, rendered */
    CHAT_COUNT
} chat_format;

enum { PAIRS_PER_PROBLEM = 4, SEQ_LEN_BUILTIN = 128 };
typedef enum token_type {
    TOKEN_TYPE_AUTO,
    TOKEN_TYPE_UINT16,
    TOKEN_TYPE_UINT32
} token_type; /* auto: by the vocabulary */
typedef struct data_options {
    data_kind kind;
    /* builtin:arithmetic | builtin:grammar | builtin:random | builtin:preferences (pairs or labelled, alone) |
     * builtin:solutions (text: the correct ones; pairs) | files, comma separated. "a.jsonl:0.7, b.txt:0.3" draws 7 of 10 rows from the first; without weights files count by their size. A
     * backslash takes the character after it as it is: a file called "x:1" is written "x\:1". */
    const char *source;
    const char *tokenizer; /* byte, or a tokenizer.json or its directory */
    int64_t seq_len;       /* 0: as the lengths of the records say (survey.c); built-in sources have SEQ_LEN_BUILTIN */
    int64_t row_most;      /* seq_len 0: tokens of a row at most, and of one of plain text; 0: as positions say */
    int64_t positions;     /* of the model: rows of at most so many where seq_len is 0, and in advice; 0: any number */
    int64_t completion;    /* DATA_PROMPTS, seq_len 0: tokens that a row holds beside a prompt */
    bool allow_cut;        /* whoever opens a run looks at it (data_survey_check); a data set opens either way */
    bool pack;             /* several documents per row; false: one document, or example, per row, padded */
    int64_t difficulty;    /* builtin:arithmetic, preferences, solutions: digits of the operands, 1..6 */
    int64_t pairs_per_problem; /* DATA_SOLUTIONS: at most; 0: PAIRS_PER_PROBLEM */
    int64_t max_pairs;         /* DATA_SOLUTIONS: of a file; 0: all */
    int64_t vocab;             /* builtin:random: tokens are below this; 0: bytes */
    double eval_fraction;      /* of a file's tail kept for evaluation */
    const char
        *eval_source; /* files without weights that are the eval split, and nothing is kept then; NULL or "": none */
    record_options records; /* with the format of the files */
    token_type token_type;  /* FORMAT_TOKENS without a header that says it */
    data_train_on train_on; /* records with a prompt: loss on the responses alone, or on every token */
    chat_format chat;
    const char
        *eos_token; /* the token that ends a document; NULL or "": the tokenizer's own; "none": nothing ends one */
    const char *chat_kwargs; /* see chat_options */
    bool is_survey; /* opened for the lengths of its records: whoever opens it for the run warns of its chat template */
    bool train_on_newline;
    const char *cache; /* where tokens are kept between runs: "auto", a directory; NULL or "": nowhere */
    bool
        share_prompts; /* preferences of files: a prompt stands in a row once where the second answer has the same one (data_row) */
    int n_threads; /* that tokenize; 0: one per core */
    uint64_t seed;
    int64_t longest_prompt; /* DATA_PROMPTS: tokens; a longer one is an error ...; seq_len 0: as long as they are */
    bool skip_long_prompts; /* ... or left out and counted */
} data_options;

typedef enum split { SPLIT_TRAIN, SPLIT_EVAL } split;

/* ---- tokenizer ----------------------------------------------------------------------------------------------- */

/* "byte": bytes 0..255, then the specials. Else a tokenizer.json of Hugging Face (byte-level or byte-fallback BPE), or a
 * directory that holds one: the ids are those of the `tokenizers` library. Bytes that are not UTF-8 are then replaced by
 * U+FFFD before they are encoded. A tokenizer is immutable: any number of threads may use one. */
enum { TOKEN_BOS = 256, TOKEN_EOS = 257, TOKEN_PAD = 258, BYTE_VOCAB = 260 }; /* rounded up to a multiple of 4 */
typedef struct tokenizer tokenizer;
status tokenizer_open(tokenizer **out, const char *name);
/* The text of the chat template that lies with it, not looked into; NULL: it has none. The caller frees. */
status tokenizer_chat_template(const char *name, char **out);
void tokenizer_close(tokenizer *t);
int64_t tokenizer_vocab(const tokenizer *t); /* one more than the largest id */
/* From tokenizer_config.json beside the file, else the first of a list of usual names; -1: there is none. */
int32_t tokenizer_eos(const tokenizer *t);
int32_t tokenizer_bos(const tokenizer *t);
/* Sets another end-of-text token: the text of a token, or "none"; NULL or "" changes nothing. Call it before any
 * other use. */
status tokenizer_set_eos(tokenizer *t, const char *text);
int32_t
tokenizer_text_bos(const tokenizer *t); /* what the file puts before every text, where that is BOS; -1: nothing */
bool tokenizer_is_byte(const tokenizer *t);
const tokenizer_file *tokenizer_read_from(const tokenizer *t);   /* NULL: bytes */
int32_t tokenizer_special(const tokenizer *t, const char *text); /* the id of a token by its text; -1: absent */

enum {
    ENCODE_ADD_SPECIALS = 1,     /* what the file says stands around a text; "byte": BOS before it */
    ENCODE_SPECIALS_AS_TEXT = 2, /* "<|im_end|>" in a text is ten characters, not a token */
};
/* Appends to tokens (grown with array_grow rules). The plain one adds nothing around the text and recognizes special
 * tokens in it. Any bytes can be encoded; only a tokenizer file can make it fail: an expression that needs too many
 * steps, normalizers that make a text grow beyond 64 bytes per byte of input, an unknown token that its vocabulary
 * lacks. Then nothing is appended. */
status tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, int32_t **tokens, size_t *n,
                        size_t *capacity);
status tokenizer_encode_with(const tokenizer *t, const char *text, size_t n_bytes, unsigned flags, int32_t **tokens,
                             size_t *n, size_t *capacity);

enum { DECODE_KEEP_SPECIALS = 1 }; /* special tokens as their text; else they are left out */
/* Appends. Ids without a token become U+FFFD, as do bytes that are not UTF-8 (but "byte" gives bytes back). Only a
 * tokenizer file can make it fail, as above. */
status tokenizer_decode(const tokenizer *t, const int32_t *tokens, size_t n, strbuf *out);
status tokenizer_decode_with(const tokenizer *t, const int32_t *tokens, size_t n, unsigned flags, strbuf *out);
/* Token by token: each push appends what no later token can change (never part of a character), the end appends the
 * rest. The result equals tokenizer_decode_with. After the end the stream may be used again. */
typedef struct decode_stream decode_stream;
decode_stream *tokenizer_decode_stream(const tokenizer *t, unsigned flags);
status decode_stream_push(decode_stream *s, int32_t id, strbuf *out);
status decode_stream_end(decode_stream *s, strbuf *out);
void decode_stream_close(decode_stream *s);

/* ---- conversations: how a record becomes tokens --------------------------------------------------------------- */

/* With CHAT_TEMPLATE a conversation becomes exactly what transformers' apply_chat_template gives, text and ids,
 * including thoughts, tool calls, tools and any role names. Control tokens come only from the template or the
 * format: "<|im_end|>" inside a prompt, a response or a message is text. (In a RECORD_TEXT it is the token: such
 * files are often written with a template already.) A document begins with BOS if the tokenizer's file puts one
 * before a text. A prompt is encoded as if it were alone, so that generation sees the same tokens as training. */
typedef struct chat chat;
typedef struct chat_tokens { /* zero it, use it again with n = 0, free it */
    int32_t *ids;
    unsigned char *trained; /* 1: the loss counts this token */
    size_t n, capacity, trained_capacity;
} chat_tokens;
typedef struct chat_options {
    chat_format format;
    const char *kwargs;    /* variables of the template as a JSON object; NULL or "": none */
    bool train_on_newline; /* what stands after the token that ends a response counts for the loss too: ChatML's "\n" */
} chat_options;
/* A template that cannot be rendered is an error here with CHAT_TEMPLATE, and of the first record that needs it with
 * CHAT_AUTO. */
status chat_open(chat **out, const tokenizer *t, const char *tokenizer_name, const chat_options *o);
void chat_close(chat *c);
chat_format chat_format_of(const chat *c); /* never CHAT_AUTO */
const char *chat_format_name(chat_format f);
int32_t chat_end_of_turn(const chat *c);        /* the token after a response; -1: none */
bool chat_lacks_end(const chat *c);             /* writes its template no special token after a response? */
bool chat_writes_date(const chat *c);           /* does its template read the clock (strftime_now)? */
void chat_describe(const chat *c, strbuf *out); /* everything that the tokens depend on beside tokenizer and record */
/* Appends a record as training sees it. A pair is a user's and an assistant's turn, or with CHAT_NONE prompt,
 * response and EOS. Trained on are the responses with the token that ends them: in conversations every turn of the
 * assistant after n_context, with thoughts and tool calls; if the template has {% generation %} blocks, those. With
 * TRAIN_ON_ALL every token is trained on, and so is plain text. A response that cannot be found in the template's
 * output is an error. */
status chat_encode(const chat *c, const data_record *r, data_train_on on, chat_tokens *out);
/* The prompt for generation: everything before the last response, with the assistant's header. */
status chat_encode_prompt(const chat *c, const data_record *r, chat_tokens *out);
void chat_tokens_free(chat_tokens *t);

/* A whole text file, unpacked where it is packed, without a byte order mark; the caller frees it. What is no text is refused, as for data. */
status data_read_text(const char *path, size_t max_bytes, char **out, size_t *n_bytes);

/* ---- data sets ----------------------------------------------------------------------------------------------- */

typedef struct dataset dataset;
typedef struct data_report {
    uint64_t n_documents, n_tokens; /* pairs, labelled: documents are examples; tokens count each copy of a prompt */
    uint64_t n_trained_tokens;      /* targets of one epoch */
    uint64_t n_cut_tokens;          /* text: of documents that continue in the next row */
    uint64_t n_cut_documents;       /* records longer than a row: their end was cut ... */
    uint64_t n_dropped_documents;   /* ... or the whole record, because no trained token fitted; examples: too long */
    uint64_t n_dropped_tokens;      /* that no row holds */
    uint64_t n_shared_tokens;       /* share_prompts: of prompts that rows hold once instead of twice */
    uint64_t n_undesirable;         /* DATA_LABELLED: examples with the label false, the dropped ones too */
    uint64_t n_incorrect;           /* DATA_TEXT: records left out because is_correct is false (both splits together) */
    uint64_t n_problems;        /* DATA_SOLUTIONS: of the files (both splits together), and those of them that ... */
    uint64_t n_unpaired;        /* ... have no pair, because no solution is correct, or none is wrong */
    uint64_t n_unused_pairs;    /* DATA_SOLUTIONS: left out by max_pairs (both splits together) */
    uint64_t n_skipped;         /* invalid lines, skipped with RECORDS_SKIP (both splits together) */
    uint64_t n_replaced;        /* pieces of text that were not UTF-8, with RECORDS_SKIP (both splits together) */
    uint64_t n_files, n_cached; /* cached: read back from the token cache */
    chat_format chat;           /* how turns are written; CHAT_AUTO: there are none */
    uint64_t rows_per_epoch;    /* 0: the source is endless; a weighted mixture: until each file was seen whole */
    double fill;                /* share of row positions that hold a token */
    double entropy_per_token;   /* nats, of the trained tokens, where it is known exactly (builtin:grammar); else NaN */
} data_report;
status dataset_open(dataset **out, const data_options *o);
/* How long the records of a data set are, of both splits together, and what a row does to them (survey.c). Of plain text
 * nothing is known: it continues in the next row and loses nothing. */
typedef struct data_survey {
    int64_t seq_len;
    bool is_chosen;                      /* seq_len was 0 in the options */
    const char *unit;                    /* "records", "pairs", "prompts" ... */
    uint64_t n;                          /* of them; 0: plain text */
    uint64_t n_trained;                  /* of the train split, without those that are dropped */
    uint64_t min, median, p95, p99, max; /* tokens */
    uint64_t n_cut, n_dropped;           /* longer than a row */
    int64_t seq_len_most, seq_len_all;   /* rows that would hold 99 % of them, and all */
    uint64_t rows_per_epoch;             /* of the train split, of DATA_PROMPTS prompts; 0: endless */
} data_survey;
void dataset_survey(const dataset *d, data_survey *out);
/* One line without its end: "records of 12 to 612 tokens, median 198 ...". Nothing of plain text. */
void data_survey_describe(const data_survey *s, strbuf *out);
int64_t data_text_row(const data_options *o); /* seq_len of plain text in files of any size */
/* The files of a source without reading them. */
typedef struct data_look {
    bool is_missing, is_stream; /* any of them; a stream can be read only once */
    uint64_t n_bytes;
} data_look;
data_look data_source_look(const data_options *o);
/* An error if more than one record in a hundred is longer than a row, with the setting that would keep it. */
status data_survey_check(const data_survey *s, const char *source, int64_t positions);
/* Heap memory held for tokens and tables: part of the plan. Tokens in the cache are mapped, not held: the system may
 * drop those pages at any time, so they are not counted. */
uint64_t dataset_host_bytes(const dataset *d);
/* The same before it is opened, from the sizes of the files: exact for bytes, an upper bound for other tokenizers. */
uint64_t dataset_host_bytes_at_most(const data_options *o);
void dataset_close(dataset *d);
const tokenizer *dataset_tokenizer(const dataset *d);
void dataset_report(const dataset *d, split s, data_report *out);
/* One file of several, with the share of rows drawn from it; false past the last. rows_per_epoch and fill are those of
 * the whole where files share rows (no weights). */
bool dataset_file_report(const dataset *d, split s, size_t file, const char **path, double *share, data_report *out);
/* How a model trained on it ends, for the files of an export: {"ids": [151645], "texts": ["<|im_end|>"]: the tokens
 * that end its answers and texts; "template", "format": the built-in chat format of its turns in the language of
 * templates, absent where it has none; "keeps_eos": the tokenizer's own template writes eos_token, which must stay what
 * it is; "bos": "<s>", absent where there is none; "template_is_unused": true where the tokenizer has a template and
 * data.chat=none wrote prompts and answers without it}. o: as for dataset_open. The caller releases it. */
status dataset_ending(const dataset *d, const data_options *o, json_t **out);
/* Different for data that gives different rows with the same options: it hashes the tokens. 0: built-in. */
uint64_t dataset_fingerprint(const dataset *d);
/* Row `index` of a split, counting on through shuffled epochs: seq_len tokens, targets (-1: not trained on), doc_start. */
void dataset_row(const dataset *d, split s, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc_start);

/* The same with what preferences need to know of it; for text those two are -1 everywhere.
 *   segments  which response a target belongs to: PART_STRIDE * (example of the row, from 0) + data_part; -1 where the
 *             target is -1. The targets of a segment are one response with its end token.
 *   examples  per example of the row, its number in the split, the same in every epoch and for every seed: what is kept
 *             by example (log-probabilities of a reference) is found by it; -1: the row has no more examples. */
typedef struct data_row {
    int32_t *tokens, *targets, *doc_start; /* (seq_len) */
    int32_t *segments;                     /* (seq_len), or NULL */
    int32_t *examples;                     /* (data_example_slots(seq_len)), or NULL */
    /* (seq_len), or NULL: as many tokens, those that the document before begins with, come before the first one of this document. */
    int32_t *shared;
} data_row;
void dataset_row_get(const dataset *d, split s, uint64_t index, const data_row *out);
/* The most examples that a row can hold: each has two documents of two tokens and more. So a row has at most seq_len
 * segments. */
static inline int64_t data_example_slots(int64_t seq_len) { return seq_len / PART_STRIDE; }
/* Numbers of `examples` are below this. Those that are too long for a row have a number too, and never appear. 0: text. */
uint64_t dataset_n_examples(const dataset *d, split s);
/* Which row of the split `index` is, the same in every epoch and for every seed: what is kept by row is found by it. Below
 * dataset_n_places; that is 0 for an endless source, in which a row is its index. */
uint64_t dataset_place(const dataset *d, split s, uint64_t index);
uint64_t dataset_n_places(const dataset *d, split s);
data_kind dataset_kind(const dataset *d);
bool dataset_shares_prompts(const dataset *d);

/* Visits the records of the files one after the other, as training writes them or as prompts. A record that cannot
 * be written is an error, or with RECORDS_SKIP is passed on with its error. */
typedef struct record_view {
    const char *path;
    uint64_t line;
    const char *part; /* of an example, which is visited part by part: "chosen"; NULL: a record with one answer */
    const chat_tokens *tokens;
    const char *error; /* NULL: none */
} record_view;
typedef status (*record_visit)(void *context, const tokenizer *t, const record_view *v);
status data_visit_records(const data_options *o, bool prompts, uint64_t most, record_visit visit, void *context);
bool data_source_has_problems(const char *source);
static inline bool data_has_eval_source(const data_options *o) { return o->eval_source && *o->eval_source; }
static inline double data_held_out(const data_options *o) { return data_has_eval_source(o) ? 0 : o->eval_fraction; }
/* Has it an eval split? Built-in sources always have. */
static inline bool data_evaluates(const data_options *o) {
    return str_starts_with(o->source, "builtin:") || data_has_eval_source(o) || o->eval_fraction > 0;
}
bool data_source_has_difficulty(
    const char *source); /* is it built in, and made of numbers with data.difficulty digits? */
bool data_source_has_records(const data_options *o);        /* is any of its files one of JSON Lines */
void data_list_missing(const data_options *o, strbuf *out); /* files of the source that are not there, by name */
/* Looks at the first records: prompts and responses with nothing between them, no space and no sign. */
bool data_pairs_are_glued(const data_options *o);
/* Checkable problems: prompt and answer of held-out problem `index`. False when the source has none. Training rows
 * never contain a held-out problem. */
bool dataset_problem(const dataset *d, uint64_t index, strbuf *prompt, strbuf *answer);
/* Some problems have several right answers, all with as many tokens: one that begins with these bytes. False: none does, or the
 * answer of dataset_problem is the only one. */
bool dataset_answer(const dataset *d, uint64_t index, const char *begun, size_t n_begun, strbuf *answer);

/* Where a solution of builtin:solutions first goes wrong: the place of the token in its document, which begins with the
 * problem; -1: it is correct. n: tokens of the document, or more. */
int64_t data_solution_wrong_at(const int32_t *tokens, int64_t n, int64_t difficulty);

/* ---- loader: fills micro-batches ahead of the step on its own thread ----------------------------------------- */

typedef struct batch {
    int32_t *tokens, *targets, *doc_start; /* (batch * seq_len) */
    int32_t *segments;                     /* (batch * seq_len); NULL for text */
    int32_t *shared;                       /* (batch * seq_len); NULL without share_prompts */
    int32_t *examples;                     /* (batch * data_example_slots(seq_len)); NULL for text */
    int64_t n_valid;                       /* targets that are not -1 */
    uint64_t first_row;
} batch;
typedef struct loader loader;
/* Part `part` of n_parts readers that take batches in turn: together they return what one reader would. */
status loader_open(loader **out, const dataset *d, split s, int64_t rows_per_batch, uint64_t first_row, int part,
                   int n_parts);
void loader_close(loader *l);
/* The next micro-batch, borrowed until the next call; allocates nothing. */
const batch *loader_next(loader *l);
uint64_t loader_host_bytes(int64_t rows_per_batch, int64_t seq_len); /* what its ring holds: part of the plan */
uint64_t loader_examples_host_bytes(int64_t rows_per_batch, int64_t seq_len); /* ... and more for pairs and labelled */
uint64_t loader_shared_host_bytes(int64_t rows_per_batch, int64_t seq_len);   /* ... and with share_prompts */
/* The row after the last batch that was returned, of all parts together: a checkpoint stores it. */
uint64_t loader_position(const loader *l);
