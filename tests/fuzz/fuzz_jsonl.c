/* fuzz_jsonl.c - a file of JSON Lines, or of one JSON list, as records and as rows to train on.
 *
 * Sections: the options as JSON ({"skip", "max_line", "prompt_column", "response_column", "all", "pack"; "kind": 1 or 2 with
 * "chosen_column", "rejected_column", "label_column", or 3: solutions}), then the file.
 * Of a file that is accepted: the promises of records.h hold for every record, each becomes tokens of the vocabulary, and
 * so do the rows of a data set made of it. A chat template that writes everything of a record writes as many end-of-turn
 * tokens as the record has turns: no content makes one. */
#include "data/data.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { ROW = 16, ROWS_MOST = 64, RECORDS_MOST = 256 };

typedef struct request {
    char *prompt, *response, *chosen, *rejected, *label; /* owned; NULL: none */
    data_options data;
} request;

static char *column(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? strdup(text) : NULL;
}

static void request_read(request *q, const span *section) {
    static const data_kind kinds[] = {DATA_TEXT, DATA_PAIRS, DATA_LABELLED, DATA_SOLUTIONS};
    json_t *o = json_loadb(section->text, section->length, 0, NULL);
    *q = (request){.prompt = column(o, "prompt_column"),
                   .response = column(o, "response_column"),
                   .chosen = column(o, "chosen_column"),
                   .rejected = column(o, "rejected_column"),
                   .label = column(o, "label_column")};
    q->data =
        (data_options){.kind = kinds[(uint64_t)json_integer_value(json_object_get(o, "kind")) % ARRAY_LENGTH(kinds)],
                       .tokenizer = "byte",
                       .seq_len = ROW,
                       .pack = json_is_true(json_object_get(o, "pack")),
                       .eval_fraction = json_is_true(json_object_get(o, "all")) ? 0 : 0.25,
                       .train_on = json_is_true(json_object_get(o, "all")) ? TRAIN_ON_ALL : TRAIN_ON_RESPONSE,
                       .chat = CHAT_NONE,
                       .n_threads = 1};
    q->data.records =
        (record_options){.prompt_column = q->prompt,
                         .response_column = q->response,
                         .chosen_column = q->chosen,
                         .rejected_column = q->rejected,
                         .label_column = q->label,
                         .format = FORMAT_JSONL,
                         .on_error = json_is_true(json_object_get(o, "skip")) ? RECORDS_SKIP : RECORDS_STOP,
                         .max_line = (uint64_t)json_integer_value(json_object_get(o, "max_line"))};
    json_decref(o);
}

enum { END_OF_TURN = 2 };
#define ADDED(id, text)                                                                                          \
    "{\"id\": " id ", \"content\": \"" text "\", \"special\": true, \"single_word\": false, \"lstrip\": false, " \
    "\"rstrip\": false, \"normalized\": false}"
static const char tokenizer_json[] = "{\"added_tokens\": [" ADDED("1", "<|im_start|>") ", " ADDED(
    "2", "<|im_end|>") "], "
                       "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0}, \"merges\": []}}";
static const char template[] = "{{ tools | tojson }}{{ x }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' "
                               "}}{{ m.content }}{{ m | tojson }}"
                               "{% for c in m.tool_calls or [] %}{{ c }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static void check_span(const span *s) { ASSERT(s->length == 0 || utf8_check(s->text, s->length).n_bad == 0); }

static void check_record(const data_record *r) {
    bool answered = r->kind != RECORD_MESSAGES;
    check_span(&r->text);
    check_span(&r->prompt);
    check_span(&r->response);
    if (r->kind == RECORD_TEXT) ASSERT(r->text.length > 0);
    if (r->kind == RECORD_PAIR) ASSERT(r->response.length > 0);
    ASSERT(r->n_context <= r->n_messages);
    for (size_t i = 0; i < r->n_messages; i++) {
        check_span(&r->messages[i].content);
        ASSERT(r->messages[i].role < TURN_COUNT);
        bool says =
            r->messages[i].role == TURN_ASSISTANT && (r->messages[i].content.length > 0 || r->messages[i].beyond);
        answered |= says && i >= r->n_context;
    }
    ASSERT(answered);
    ASSERT(json_array_size(r->turns) == r->n_messages);
    ASSERT(!r->tools || json_is_array(r->tools));
    ASSERT(!r->template_kwargs ||
           (json_is_object(r->template_kwargs) && !template_kwargs_reserved(r->template_kwargs)));
}

static void check_rendered(const tokenizer *t, const chat *c, const data_record *r) {
    chat_tokens out = {0};
    size_t n_ends = 0;
    status rc = chat_encode(c, r, TRAIN_ON_RESPONSE, &out);
    if (rc != OK) fuzz_refused(rc);
    for (size_t i = 0; i < out.n; i++) {
        ASSERT(out.ids[i] >= 0 && out.ids[i] < tokenizer_vocab(t) && out.trained[i] <= 1);
        n_ends += out.ids[i] == END_OF_TURN;
    }
    if (rc == OK && r->kind != RECORD_TEXT) ASSERT(n_ends == (r->kind == RECORD_PAIR ? 2 : r->n_messages));
    chat_tokens_free(&out);
}

static void check_tokens(const tokenizer *t, const chat *c, const data_record *r) {
    chat_tokens out = {0};
    status rc = chat_encode(c, r, TRAIN_ON_RESPONSE, &out);
    if (rc != OK) fuzz_refused(rc);
    for (size_t i = 0; i < out.n; i++)
        ASSERT(out.ids[i] >= 0 && out.ids[i] < tokenizer_vocab(t) && out.trained[i] <= 1);
    chat_tokens_free(&out);
}

static void check_records(const char *path, const record_options *o) {
    records *r;
    tokenizer *t, *own;
    chat *c, *rendered;
    uint64_t line = 0;
    status rc = records_open(&r, path, o);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    ASSERT(tokenizer_open(&t, "byte") == OK && chat_open(&c, t, "byte", &(chat_options){.format = CHAT_NONE}) == OK);
    fuzz_file(1, tokenizer_json, sizeof tokenizer_json - 1);
    fuzz_file(2, template, sizeof template - 1);
    const char *directory =
        fuzz_directory((const char *const[]){"records.jsonl", "tokenizer.json", "chat_template.jinja"}, 3);
    ASSERT(tokenizer_open(&own, directory) == OK);
    ASSERT(chat_open(&rendered, own, directory, &(chat_options){.format = CHAT_TEMPLATE}) == OK);
    ASSERT(records_count(r) > 0);
    ASSERT(o->on_error == RECORDS_SKIP || records_skipped(r) == 0);
    for (uint64_t i = 0; i < MIN(records_count(r), (uint64_t)RECORDS_MOST); i++) {
        data_record q;
        ASSERT(records_get(r, i, &q) == OK); /* it was parsed when the file was opened */
        ASSERT(q.line >= line); /* of a JSON list several may stand on one */
        line = q.line;
        check_record(&q);
        check_tokens(t, c, &q);
        check_rendered(own, rendered, &q);
    }
    records_close(r);
    chat_close(c);
    tokenizer_close(t);
    chat_close(rendered);
    tokenizer_close(own);
}

/* Every target of an example belongs to a segment of an example of the row, and parts are those of the kind. */
static void check_segments(const dataset *d, split which, const data_row *r) {
    int64_t n_slots = data_example_slots(ROW), n = 0;
    while (n < n_slots && r->examples[n] >= 0) n++;
    for (int64_t i = 0; i < n_slots; i++)
        ASSERT(i < n ? (uint64_t)r->examples[i] < dataset_n_examples(d, which) : r->examples[i] == -1);
    for (int k = 0; k < ROW; k++) {
        ASSERT((r->segments[k] >= 0) == (dataset_kind(d) != DATA_TEXT && r->targets[k] >= 0));
        if (r->segments[k] < 0) continue;
        ASSERT(r->segments[k] / PART_STRIDE < n);
        ASSERT(data_part_name(dataset_kind(d), (data_part)(r->segments[k] % PART_STRIDE)));
    }
}

static void check_rows(const data_options *o) {
    dataset *d;
    status rc = dataset_open(&d, o);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
        data_report report;
        dataset_report(d, which, &report);
        for (uint64_t i = 0; i < MIN(report.rows_per_epoch, (uint64_t)ROWS_MOST); i++) {
            int32_t tokens[ROW], targets[ROW], doc_start[ROW], segments[ROW], examples[ROW / PART_STRIDE];
            data_row row = {tokens, targets, doc_start, segments, examples, NULL};
            dataset_row_get(d, which, i, &row);
            check_segments(d, which, &row);
            for (int k = 0; k < ROW; k++) {
                ASSERT(tokens[k] >= 0 && tokens[k] < BYTE_VOCAB && targets[k] >= -1 && targets[k] < BYTE_VOCAB);
                ASSERT(doc_start[k] >= 0 && doc_start[k] <= k && doc_start[doc_start[k]] == doc_start[k]);
            }
        }
    }
    dataset_close(d);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span options = fuzz_section(&in), file = fuzz_rest(&in);
    request q;
    request_read(&q, &options);
    q.data.source = fuzz_file(0, file.text, file.length);
    if (q.data.kind == DATA_TEXT) check_records(q.data.source, &q.data.records);
    if (q.data.kind != DATA_TEXT || fuzz_sometimes(data, size, 4)) check_rows(&q.data);
    free(q.prompt);
    free(q.response);
    free(q.chosen);
    free(q.rejected);
    free(q.label);
}
