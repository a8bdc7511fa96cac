/* examples.c - preferences: a line of JSON to the records of its answers, with an error for every invalid line.
 *
 * Each answer is read as an sft record is, by the same code, with a parser of its own over one JSON object. What is done
 * here is to find the prompt and to refuse what cannot be compared: an answer that is missing, or two that are equal. */
#include "data/examples.h"
#include "data/record_parts.h"

#include <string.h>

const char *data_part_name(data_kind k, data_part p) {
    static const char *const pairs[] = {"chosen", "rejected"};
    static const char *const labelled[] = {"desirable", "undesirable", "mismatched"};
    static const char *const solutions[] = {"correct", "wrong"};
    if (k == DATA_PAIRS && p <= PART_REJECTED) return pairs[p];
    if (k == DATA_SOLUTIONS && p <= PART_REJECTED) return solutions[p];
    return k == DATA_LABELLED && p <= PART_MISMATCHED ? labelled[p] : NULL;
}

/* ---- options --------------------------------------------------------------------------------------------------- */

static bool is_given(const char *column) { return column && *column; }
static const char *column_or(const char *column, const char *usual) { return is_given(column) ? column : usual; }

status example_columns_check(const data_options *o) {
    const record_options *r = &o->records;
    bool pairs = o->kind == DATA_PAIRS, labelled = o->kind == DATA_LABELLED, answers = !pairs && !labelled;
    const struct {
        const char *name, *column;
        bool fits;
        const char *expected;
    } columns[] = {
        {"response", r->response_column, !pairs, "data.chosen_column and data.rejected_column"},
        {"chosen", r->chosen_column, pairs, labelled ? "data.response_column and data.label_column" : NULL},
        {"rejected", r->rejected_column, pairs, labelled ? "data.response_column and data.label_column" : NULL},
        {"label", r->label_column, labelled, pairs ? "data.chosen_column and data.rejected_column" : NULL},
        {"correct", r->correct_column, answers, pairs ? "data.chosen_column" : "data.label_column"},
        {"task", r->task_column, answers, pairs ? "data.chosen_column" : "data.label_column"},
        {"difficulty", r->difficulty_column, answers, pairs ? "data.chosen_column" : "data.label_column"}};
    for (size_t i = 0; i < ARRAY_LENGTH(columns); i++) {
        if (!is_given(columns[i].column) || columns[i].fits) continue;
        if (!columns[i].expected)
            return ERR(ERR_INPUT,
                       "data.%s_column: found '%.100s', expected none: only preferences have such a column "
                       "(train.task=preference)",
                       columns[i].name, columns[i].column);
        return ERR(ERR_INPUT, "data.%s_column: found '%.100s', expected none: %s are named by %s", columns[i].name,
                   columns[i].column, pairs ? "pairs" : "labelled answers", columns[i].expected);
    }
    return OK;
}

status example_options_check(const data_options *o) {
    TRY(example_columns_check(o));
    if (o->kind == DATA_TEXT) return record_options_check(&o->records);
    if (o->train_on == TRAIN_ON_ALL)
        return ERR(ERR_INPUT,
                   "data.train_on: found all, expected response: %s compare answers, and the prompt is the "
                   "same in all of them",
                   o->kind == DATA_SOLUTIONS ? "critics" : "preferences");
    return o->kind == DATA_SOLUTIONS ? record_options_check(&o->records) : OK;
}

/* ---- pairs ----------------------------------------------------------------------------------------------------- */

typedef struct pair_keys {
    const char *prompt, *chosen, *rejected;
} pair_keys;

/* How a pair is divided into prompt and answers. */
typedef struct pair_shape {
    bool is_implicit;    /* the answers repeat the prompt */
    size_t n_common;     /* ... as so many turns, or bytes */
    bool is_instruction; /* the prompt is an instruction with its input */
} pair_shape;

static status check_answers(const json_t *root, const pair_keys *k, place at) {
    const json_t *chosen = json_object_get(root, k->chosen), *rejected = json_object_get(root, k->rejected);
    if (!chosen && !rejected)
        return record_unknown_shape(root, at,
                                    "prompt, chosen and rejected; data.prompt_column, data.chosen_column and "
                                    "data.rejected_column name others");
    if (!chosen || !rejected)
        return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found nothing, expected the answer that was %s" SKIP_HINT,
                   at.path, at.line, chosen ? k->rejected : k->chosen, chosen ? "rejected" : "chosen");
    bool texts = json_is_string(chosen) && json_is_string(rejected);
    if (!texts && !(json_is_array(chosen) && json_is_array(rejected)))
        return ERR(ERR_INPUT,
                   "%s:%llu: keys '%.100s' and '%.100s': found %s and %s, expected two texts or two lists of "
                   "{\"role\", \"content\"}" SKIP_HINT,
                   at.path, at.line, k->chosen, k->rejected, record_kind_of(chosen), record_kind_of(rejected));
    if (json_equal(chosen, rejected))
        return ERR(
            ERR_INPUT,
            "%s:%llu: keys '%.100s' and '%.100s': found twice the same answer, expected two that differ" SKIP_HINT,
            at.path, at.line, k->chosen, k->rejected);
    return OK;
}

static size_t common_turns(const json_t *a, const json_t *b) {
    size_t n = 0;
    while (n < json_array_size(a) && n < json_array_size(b) && json_equal(json_array_get(a, n), json_array_get(b, n)))
        n++;
    return n;
}

/* Whole characters that two different texts begin with. As TRL has it: a space at the end belongs to the answers, and
 * each answer keeps a character, so that one may be the other's beginning. */
static size_t common_bytes(const json_t *a, const json_t *b) {
    const char *x = json_string_value(a), *y = json_string_value(b);
    size_t n = 0, most = MIN(json_string_length(a), json_string_length(b));
    while (n < most && x[n] == y[n]) n++;
    bool is_beginning = n == most;
    if (is_beginning && n > 0) n--;
    while (n > 0 && ((unsigned char)x[n] & 0xc0) == 0x80) n--;
    if (!is_beginning && n > 0 && x[n - 1] == ' ') n--;
    return n;
}

/* The text beside lists must be said in them, or it would be lost. */
static bool says(const json_t *turns, size_t n, const json_t *text) {
    for (size_t i = 0; i < n; i++)
        if (json_equal(json_object_get(json_array_get(turns, i), "content"), text)) return true;
    return false;
}

static status split_turns(const json_t *root, const pair_keys *k, const json_t *prompt, place at, pair_shape *out) {
    const json_t *chosen = json_object_get(root, k->chosen), *rejected = json_object_get(root, k->rejected);
    size_t n = common_turns(chosen, rejected);
    *out = (pair_shape){.is_implicit = true, .n_common = n};
    if (n == 0)
        return ERR(ERR_INPUT,
                   "%s:%llu: keys '%.100s' and '%.100s': found two conversations that differ from their first turn on, "
                   "expected a prompt: first turns that are equal, or a list under '%.100s'" SKIP_HINT,
                   at.path, at.line, k->chosen, k->rejected, k->prompt);
    if (n == json_array_size(chosen) || n == json_array_size(rejected))
        return ERR(
            ERR_INPUT,
            "%s:%llu: key '%.100s': found no turn after the %zu that '%.100s' has too, expected an answer" SKIP_HINT,
            at.path, at.line, n == json_array_size(chosen) ? k->chosen : k->rejected, n,
            n == json_array_size(chosen) ? k->rejected : k->chosen);
    if (prompt && !says(chosen, n, prompt))
        return ERR(ERR_INPUT,
                   "%s:%llu: key '%.100s': found a text that is none of the first turns of '%.100s', expected it to be "
                   "one, or a list of turns (jq -c 'del(.%.100s)' removes the key)" SKIP_HINT,
                   at.path, at.line, k->prompt, k->chosen, k->prompt);
    return OK;
}

/* Two texts may repeat their prompt. A record that has it under a key of another program's has not meant that. */
static status split_texts(const json_t *root, const pair_keys *k, place at, pair_shape *out) {
    static const char *const others[] = {"input", "query", "context", "messages", "conversations"};
    for (size_t i = 0; i < ARRAY_LENGTH(others); i++) {
        const json_t *v = json_object_get(root, others[i]);
        if (json_string_length(v) || json_array_size(v))
            return ERR(ERR_INPUT,
                       "%s:%llu: found no key '%.100s', and '%s', which would be ignored, expected the prompt of both "
                       "answers; %s" SKIP_HINT,
                       at.path, at.line, k->prompt, others[i],
                       json_is_string(v) ? "data.prompt_column names its key"
                                         : "write the answers as lists of turns too");
    }
    *out = (pair_shape){.is_implicit = true,
                        .n_common = common_bytes(json_object_get(root, k->chosen), json_object_get(root, k->rejected))};
    return OK;
}

static status find_prompt(const json_t *root, pair_keys *k, bool is_named, place at, pair_shape *out) {
    const json_t *chosen = json_object_get(root, k->chosen), *prompt = json_object_get(root, k->prompt);
    *out = (pair_shape){0};
    if (json_is_null(prompt)) prompt = NULL;
    if (json_is_string(chosen)) {
        if (prompt) return OK;
        if (!is_named && json_is_string(json_object_get(root, "question"))) k->prompt = "question";
        else if (!is_named && json_is_string(json_object_get(root, "instruction"))) out->is_instruction = true;
        else return split_texts(root, k, at, out);
        return OK;
    }
    const json_t *rejected = json_object_get(root, k->rejected);
    if (!prompt || json_is_string(prompt)) return split_turns(root, k, prompt, at, out);
    size_t n = json_array_size(prompt);
    bool repeats = n > 0 && common_turns(prompt, chosen) == n && common_turns(prompt, rejected) == n;
    if (repeats) *out = (pair_shape){.is_implicit = true, .n_common = n};
    return OK;
}

static status read_part(record_parser *p, const pair_keys *k, const char *key, const pair_shape *shape,
                        const record_options *o, place at, data_record *out) {
    const json_t *answer = json_object_get(p->root, key);
    if (shape->is_instruction) return record_read_instruction(p, key, o, at, out);
    if (!shape->is_implicit) return record_read_answer(p, k->prompt, key, o, at, out);
    if (json_is_array(answer)) return record_read_split(p, key, shape->n_common, at, out);
    out->kind = RECORD_PAIR;
    out->prompt = (span){json_string_value(answer), shape->n_common};
    out->response = (span){out->prompt.text + shape->n_common, json_string_length(answer) - shape->n_common};
    if (out->response.length > 0) return OK;
    return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found an empty answer, expected text" SKIP_HINT, at.path, at.line,
               key);
}

static status parse_pair(example_parser *p, const record_options *o, place at, data_example *out) {
    pair_keys k = {column_or(o->prompt_column, "prompt"), column_or(o->chosen_column, "chosen"),
                   column_or(o->rejected_column, "rejected")};
    json_t *root = p->parsers[0].root;
    pair_shape shape;
    TRY(check_answers(root, &k, at));
    TRY(find_prompt(root, &k, is_given(o->prompt_column), at, &shape));
    record_parser_begin(&p->parsers[1], json_incref(root));
    out->n = 2;
    TRY(read_part(&p->parsers[0], &k, k.chosen, &shape, o, at, &out->records[0]));
    return read_part(&p->parsers[1], &k, k.rejected, &shape, o, at, &out->records[1]);
}

/* ---- labelled answers -------------------------------------------------------------------------------------------- */

static status parse_labelled(example_parser *p, const record_options *o, place at, data_example *out) {
    const char *prompt = column_or(o->prompt_column, "prompt"), *answer = column_or(o->response_column, "completion");
    const char *label = column_or(o->label_column, "label");
    const json_t *root = p->parsers[0].root, *v = json_object_get(root, label);
    if (!json_object_get(root, answer) && !v)
        return record_unknown_shape(root, at,
                                    "prompt, completion and label; data.prompt_column, data.response_column and "
                                    "data.label_column name others");
    TRY(record_read_answer(&p->parsers[0], prompt, answer, o, at, &out->records[0]));
    if (!json_is_boolean(v))
        return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found %s, expected true (a good answer) or false" SKIP_HINT,
                   at.path, at.line, label, record_kind_of(v));
    out->n = 1;
    out->is_undesirable = json_is_false(v);
    return OK;
}

/* ---- solutions --------------------------------------------------------------------------------------------------- */

/* A record as training by imitation reads it, and what it says of its solution. */
static status parse_solution(example_parser *p, const char *text, size_t n_bytes, const char *path, uint64_t line,
                             const record_options *o, data_example *out) {
    data_record *r = &out->records[0];
    TRY(record_parse(&p->parsers[0], text, n_bytes, path, line, o, r));
    if (r->kind == RECORD_TEXT)
        return ERR(ERR_INPUT,
                   "%s:%llu: key 'text': found a text without a prompt, expected a problem and its solution, as "
                   "instruction and output, or prompt and completion" SKIP_HINT,
                   path, (unsigned long long)line);
    out->n = 1;
    TRY(solution_keys_read(r->object, o, path, line, &out->keys));
    out->is_undesirable = !out->keys.is_correct;
    return OK;
}

/* ---- a line ------------------------------------------------------------------------------------------------------ */

void example_parser_close(example_parser *p) {
    for (size_t i = 0; i < EXAMPLE_RECORDS; i++) record_parser_close(&p->parsers[i]);
}

static bool names_columns(const record_options *o) {
    return is_given(o->prompt_column) || is_given(o->response_column) || is_given(o->chosen_column) ||
           is_given(o->rejected_column) || is_given(o->label_column);
}

status example_parse(example_parser *p, const char *text, size_t n_bytes, const char *path, uint64_t line,
                     const data_options *o, data_example *out) {
    place at = {path, (unsigned long long)line};
    record_options options = o->records;
    options.may_lack_response = false;
    *out = (data_example){0};
    if (o->kind == DATA_SOLUTIONS) return parse_solution(p, text, n_bytes, path, line, &options, out);
    data_record empty = {.path = path, .line = line};
    TRY(record_load_line(&p->parsers[0], text, n_bytes, at, &empty.has_rounded_numbers));
    for (size_t i = 0; i < EXAMPLE_RECORDS; i++) out->records[i] = empty;
    TRY(o->kind == DATA_PAIRS ? parse_pair(p, &options, at, out) : parse_labelled(p, &options, at, out));
    for (size_t i = 0; i < out->n; i++) {
        if (!names_columns(&options)) TRY(record_refuse_beside(p->parsers[i].root, &out->records[i], at));
        TRY(record_read_beside(&p->parsers[i], at, &out->records[i]));
    }
    return OK;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* The log-probability of an answer is that of all its tokens: each has one before it. */
static status check_answer_tokens(const chat_tokens *t, const data_record *r) {
    size_t first = 0;
    while (first < t->n && !t->trained[first]) first++;
    if (first > 0 && first < t->n) return OK;
    return ERR(ERR_INPUT, "%s:%llu: found %s, expected %s" SKIP_HINT, r->path, (unsigned long long)r->line,
               first == 0 ? "an answer with no token before it" : "an answer without tokens",
               first == 0 ? "a prompt: the first token of an answer needs something before it" : "text to learn from");
}

status example_encode(const chat *c, const data_example *e, chat_tokens out[EXAMPLE_RECORDS]) {
    const data_record *r = &e->records[0];
    for (size_t i = 0; i < e->n; i++) {
        TRY(chat_encode(c, &e->records[i], TRAIN_ON_RESPONSE, &out[i]));
        TRY(check_answer_tokens(&out[i], &e->records[i]));
    }
    if (e->n == 2 && out[0].n == out[1].n && memcmp(out[0].ids, out[1].ids, out[0].n * sizeof *out[0].ids) == 0)
        return ERR(ERR_INPUT,
                   "%s:%llu: found two answers that become the same tokens, expected two that differ" SKIP_HINT,
                   r->path, (unsigned long long)r->line);
    return OK;
}
