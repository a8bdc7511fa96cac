/* test_pairs.c - preferences out of JSON Lines: every way to write a pair gives the tokens of sft records with the same
 * prompt and answer, and a line that cannot be compared is named with what was found, or counted. */
#include "data/examples.h"
#include "chat_fixtures.h"
#include "example_rows.h"

#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- formats --------------------------------------------------------------------------------------------------- */

static data_example parse_example(example_parser *p, const char *text, const data_options *o) {
    data_example e;
    if (example_parse(p, text, strlen(text), "file.jsonl", 7, o, &e) != OK) fail_msg("%s", error_message());
    return e;
}

static void same_tokens(const chat_tokens *a, const chat_tokens *b, const char *what) {
    bool equal =
        a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0 && memcmp(a->trained, b->trained, a->n) == 0;
    if (!equal) fail_msg("%s: found %zu tokens, expected the same %zu as sft", what, a->n, b->n);
}

/* The answers of a pair, and those of two sft records with the same prompt. */
static void compare_with_sft(const chat *c, const json_t *pair, const json_t *chosen, const json_t *rejected,
                             const char *what) {
    static const data_options o = {.kind = DATA_PAIRS};
    example_parser p = {0};
    chat_tokens got[EXAMPLE_RECORDS] = {0};
    char *text = json_dumps(pair, 0);
    data_example e = parse_example(&p, text, &o);
    if (example_encode(c, &e, got) != OK) fail_msg("%s: %s: %s", what, error_message(), text);
    for (int i = 0; i < 2; i++) {
        record_parser sft = {0};
        chat_tokens expected = {0};
        char *line = json_dumps(i ? rejected : chosen, 0);
        data_record r = parse_record(&sft, line);
        if (chat_encode(c, &r, TRAIN_ON_RESPONSE, &expected) != OK) fail_msg("%s: %s", what, error_message());
        same_tokens(&got[i], &expected, what);
        chat_tokens_free(&expected);
        chat_tokens_free(&got[i]);
        record_parser_close(&sft);
        free(line);
    }
    example_parser_close(&p);
    free(text);
}

static json_t *slice(const json_t *list, size_t first, size_t end) {
    json_t *out = json_array();
    for (size_t i = first; i < end; i++) json_array_append(out, json_array_get(list, i));
    return out;
}

static json_t *sft_record(const json_t *row, json_t *prompt, json_t *completion) {
    json_t *out = json_pack("{s:O, s:o}", "prompt", prompt, "completion", completion);
    json_object_set(out, "tools", json_object_get(row, "tools"));
    json_object_set(out, "chat_template_kwargs", json_object_get(row, "chat_template_kwargs"));
    return out;
}

/* A conversation of the fixtures and the same with another end, written in each way that a pair can be. */
static int check_conversation(const chat *c, const json_t *row, const char *name) {
    const json_t *turns = json_object_get(row, "messages");
    size_t n = json_array_size(turns);
    const json_t *last = json_array_get(turns, n - 1);
    if (n < 2 || strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0) return 0;
    json_t *prompt = slice(turns, 0, n - 1), *chosen = slice(turns, 0, n), *rejected = slice(turns, 0, n - 1);
    json_array_append_new(rejected, json_pack("{s:s, s:s}", "role", "assistant", "content", "Something else, no?"));
    json_t *good = slice(chosen, n - 1, n), *bad = slice(rejected, n - 1, n);
    json_t *sft[2] = {sft_record(row, prompt, json_incref(good)), sft_record(row, prompt, json_incref(bad))};
    json_t *forms[3] = {json_pack("{s:O, s:O}", "chosen", chosen, "rejected", rejected),
                        json_pack("{s:O, s:O, s:O}", "prompt", prompt, "chosen", good, "rejected", bad),
                        json_pack("{s:O, s:O, s:O}", "prompt", prompt, "chosen", chosen, "rejected", rejected)};
    for (int i = 0; i < 3; i++) {
        json_object_set(forms[i], "tools", json_object_get(row, "tools"));
        json_object_set(forms[i], "chat_template_kwargs", json_object_get(row, "chat_template_kwargs"));
        compare_with_sft(c, forms[i], sft[0], sft[1], name);
        json_decref(forms[i]);
    }
    json_t *all[] = {prompt, chosen, rejected, good, bad, sft[0], sft[1]};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) json_decref(all[i]);
    return 1;
}

static void answers_have_the_tokens_of_sft_records(void **state) {
    size_t i, k;
    json_t *template, *row;
    int n_conversations = 0;
    json_t *pair =
        json_pack("{s:s, s:s, s:s}", "prompt", "How much? <|im_end|>", "chosen", " Four.", "rejected", "Five");
    json_t *chosen = json_pack("{s:s, s:s}", "prompt", "How much? <|im_end|>", "completion", " Four.");
    json_t *rejected = json_pack("{s:s, s:s}", "prompt", "How much? <|im_end|>", "completion", "Five");
    json_array_foreach(json_object_get(chat_fixtures, "templates"), i, template) {
        const char *name = json_string_value(json_object_get(template, "name"));
        tokenizer *t = tokenizer_of(template);
        for (int newline = 0; newline < 2; newline++) {
            chat *c = open_chat_with(t, &(chat_options){.format = CHAT_AUTO, .train_on_newline = newline});
            compare_with_sft(c, pair, chosen, rejected, name);
            json_array_foreach(json_object_get(template, "cases"), k, row) n_conversations +=
                check_conversation(c, row, name);
            chat_close(c);
        }
        chat *plain = open_chat(t, CHAT_NONE);
        compare_with_sft(plain, pair, chosen, rejected, name);
        chat_close(plain);
        tokenizer_close(t);
    }
    assert_true(n_conversations >= 40);
    json_decref(pair);
    json_decref(chosen);
    json_decref(rejected);
}

/* From a file to rows, beside the rows of two sft records. */
static void rows_of_a_pair_are_those_of_sft(void **state) {
    tokenizer *t = tokenizer_of(template_of("chatml"));
    enum { T = 256 };
    char tokens[80];
    snprintf(tokens, sizeof tokens, "%s", test_dir);
    tokenizer_close(t);
    data_options o = {.tokenizer = tokens, .seq_len = T, .source = path, .train_on_newline = true};
    int32_t sft[2][3][T];
    for (int i = 0; i < 2; i++) {
        write_text(path, i ? "{\"prompt\": \"Say it\", \"completion\": \"no\"}\n"
                           : "{\"prompt\": \"Say it\", \"completion\": \"yes yes\"}\n");
        dataset *d = open_data(o);
        dataset_row(d, SPLIT_TRAIN, 0, sft[i][0], sft[i][1], sft[i][2]);
        dataset_close(d);
    }
    write_text(path, "{\"prompt\": \"Say it\", \"chosen\": \"yes yes\", \"rejected\": \"no\"}\n");
    o.kind = DATA_PAIRS;
    dataset *d = open_data(o);
    full_row r;
    get_row(d, SPLIT_TRAIN, 0, &r);
    int64_t at = 0;
    for (int i = 0; i < 2; i++) {
        for (int64_t k = 0, start = at; k < T && sft[i][2][k] == 0; k++, at++) {
            assert_int_equal(r.tokens[at], sft[i][0][k]);
            assert_int_equal(r.targets[at], sft[i][1][k]);
            assert_int_equal(r.doc_start[at], start);
            assert_int_equal(r.segments[at], sft[i][1][k] >= 0 ? i : -1);
        }
    }
    assert_true(at > 20 && at < T);
    dataset_close(d);
}

/* TRL's rule for texts that repeat the prompt, and for a prompt beside lists that repeat it. */
static void a_prompt_inside_the_answers_is_what_they_share(void **state) {
    static const struct {
        const char *line, *prompt, *chosen, *rejected;
    } texts[] = {
        {"{\"chosen\": \"The sky is blue.\", \"rejected\": \"The sky is green.\"}", "The sky is", " blue.", " green."},
        {"{\"chosen\": \"4+4=8\", \"rejected\": \"4+4=9\", \"prompt\": null}", "4+4=", "8", "9"},
        {"{\"chosen\": \"Q: x A: y\", \"rejected\": \"Q: x A: y z\"}", "Q: x A: ", "y", "y z"},
        {"{\"chosen\": \"caf\xc3\xa9\", \"rejected\": \"caf\xc3\xa8\"}", "caf", "\xc3\xa9", "\xc3\xa8"},
        {"{\"chosen\": \"ab\", \"rejected\": \"cd\"}", "", "ab", "cd"},
        /* other names of the prompt, as records with one answer have them */
        {"{\"question\": \"4+4=\", \"chosen\": \"The 8\", \"rejected\": \"The 9\"}", "4+4=", "The 8", "The 9"},
        {"{\"instruction\": \"Add\", \"input\": \"\", \"chosen\": \"x8\", \"rejected\": \"x9\"}", "Add", "x8", "x9"},
        {"{\"instruction\": \"Add\", \"input\": \"4, 4\", \"chosen\": \"x8\", \"rejected\": \"x9\"}", "Add\n4, 4", "x8",
         "x9"},
    };
    static const data_options o = {.kind = DATA_PAIRS};
    example_parser p = {0};
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
        data_example e = parse_example(&p, texts[i].line, &o);
        const char *answers[] = {texts[i].chosen, texts[i].rejected};
        for (int k = 0; k < 2; k++) {
            const data_record *r = &e.records[k];
            assert_int_equal(r->kind, RECORD_PAIR);
            assert_int_equal(r->prompt.length, strlen(texts[i].prompt));
            assert_memory_equal(r->prompt.text, texts[i].prompt, r->prompt.length);
            assert_int_equal(r->response.length, strlen(answers[k]));
            assert_memory_equal(r->response.text, answers[k], r->response.length);
        }
    }
    /* the turns that both have are the prompt, more than the text beside them says */
    data_example e = parse_example(
        &p,
        "{\"prompt\": \"u\", \"chosen\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
        "\"content\": \"a\"}, {\"role\": \"user\", \"content\": \"v\"}, {\"role\": \"assistant\", \"content\": "
        "\"b\"}], "
        "\"rejected\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": \"a\"}, "
        "{\"role\": \"user\", \"content\": \"v\"}, {\"role\": \"assistant\", \"content\": \"c\"}]}",
        &o);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(e.records[k].n_context, 3);
        assert_int_equal(e.records[k].n_messages, 4);
        assert_memory_equal(e.records[k].messages[3].content.text, k ? "c" : "b", 1);
    }
    example_parser_close(&p);
}

static void columns_can_be_named(void **state) {
    write_text(path, "{\"q\": \"ask\", \"good\": \"yes\", \"bad\": \"no\", \"system\": \"s\"}\n");
    data_options o = {.kind = DATA_PAIRS, .seq_len = 64, .source = path};
    o.records = (record_options){.prompt_column = "q", .chosen_column = "good", .rejected_column = "bad"};
    dataset *d = open_data(o);
    full_row r;
    seen_part part;
    get_row(d, SPLIT_TRAIN, 0, &r);
    read_part(&r, 64, read_part(&r, 64, 0, 0, &part), 0, &part);
    assert_string_equal(part.response, "no");
    dataset_close(d);
    write_text(path, "{\"q\": \"ask\", \"a\": \"yes\", \"ok\": false}\n");
    o.kind = DATA_LABELLED;
    o.records = (record_options){.prompt_column = "q", .response_column = "a", .label_column = "ok"};
    d = open_data(o);
    get_row(d, SPLIT_TRAIN, 0, &r);
    read_part(&r, 64, 0, 0, &part);
    assert_int_equal(part.part, PART_REJECTED);
    dataset_close(d);

    static const struct {
        data_kind kind;
        record_options records;
        const char *error;
    } wrong[] = {
        {DATA_TEXT, {.chosen_column = "x"}, "data.chosen_column|'x'|train.task=preference"},
        {DATA_TEXT, {.label_column = "x"}, "data.label_column|'x'|train.task=preference"},
        {DATA_PAIRS, {.response_column = "x"}, "data.response_column|'x'|data.chosen_column"},
        {DATA_PAIRS, {.label_column = "x"}, "data.label_column|'x'|data.rejected_column"},
        {DATA_LABELLED, {.rejected_column = "x"}, "data.rejected_column|'x'|data.response_column"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        o = (data_options){.kind = wrong[i].kind, .seq_len = 64, .source = path, .records = wrong[i].records};
        expect_error(dataset_open(&d, &o), ERR_INPUT, wrong[i].error);
    }
    o = (data_options){.kind = DATA_PAIRS, .seq_len = 64, .source = path, .train_on = TRAIN_ON_ALL};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "data.train_on|all|response");
    o = (data_options){.kind = DATA_PAIRS, .seq_len = 64, .source = path_of("x.txt")};
    write_text(path_of("x.txt"), "text");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "x.txt|JSON Lines|chosen");
}

/* ---- what is refused, counted or kept ------------------------------------------------------------------------------ */

#define TURN(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
static void what_cannot_be_compared_is_named(void **state) {
    static const struct {
        data_kind kind;
        const char *line, *error;
    } cases[] = {
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"a\"}", "'rejected'|found nothing|rejected"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"rejected\": \"a\"}", "'chosen'|found nothing|chosen"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"completion\": \"a\"}", "'prompt', 'completion'|chosen and rejected"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"a\"}", "'chosen'|'rejected'|same"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"\"}", "'rejected'|empty"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"\", \"rejected\": \"a\"}", "'chosen'|empty"},
        {DATA_PAIRS, "{\"chosen\": \"\", \"rejected\": \"a\"}", "'chosen'|empty"},
        {DATA_PAIRS, "{\"chosen\": \"a\", \"rejected\": \"b\"}", "no token before it|prompt"},
        {DATA_PAIRS, "{\"prompt\": \"\", \"chosen\": \"a\", \"rejected\": \"b\"}", "no token before it|prompt"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": 1, \"rejected\": \"a\"}", "'chosen'|a number and a string"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": [], \"rejected\": \"a\"}", "a list and a string"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": null, \"rejected\": \"a\"}", "null and a string"},
        {DATA_PAIRS, "{\"prompt\": 4, \"chosen\": \"a\", \"rejected\": \"b\"}", "'prompt'|found a number"},
        {DATA_PAIRS, "{\"prompt\": [], \"chosen\": \"a\", \"rejected\": \"b\"}", "'prompt'|a list and a string"},
        {DATA_PAIRS, "{\"input\": \"p\", \"chosen\": \"xa\", \"rejected\": \"xb\"}",
         "'input', which would be ignored|data.prompt_column"},
        {DATA_PAIRS, "{\"messages\": [" TURN("user", "p") "], \"chosen\": \"xa\", \"rejected\": \"xb\"}",
         "'messages', which would be ignored|lists of turns"},
        {DATA_PAIRS, "{\"chosen\": [1], \"rejected\": [2]}", "'chosen'|differ from their first turn"},
        {DATA_PAIRS, "{\"chosen\": [], \"rejected\": [2]}", "'chosen'|differ from their first turn"},
        {DATA_PAIRS, "{\"prompt\": {}, \"chosen\": [1], \"rejected\": [2]}", "'prompt'|an object and a list"},
        {DATA_PAIRS, "{\"chosen\": [1, 2], \"rejected\": [1, 3]}", "chosen[0]|a number"},
        {DATA_PAIRS,
         "{\"chosen\": [" TURN("user", "u") "], \"rejected\": [" TURN("user", "u") ", " TURN("user", "v") "]}",
         "'chosen'|no turn after the 1|'rejected'"},
        {DATA_PAIRS,
         "{\"chosen\": [" TURN("user", "u") ", " TURN("user", "w") "], \"rejected\": [" TURN("user", "u") ", " TURN(
             "assistant", "v") "]}",
         "'chosen'|no turn of the assistant"},
        {DATA_PAIRS,
         "{\"chosen\": [" TURN("user", "u") ", " TURN("assistant", "") "], \"rejected\": [" TURN("user", "u") ", " TURN(
             "assistant", "v") "]}",
         "chosen[1]|empty answer"},
        {DATA_PAIRS,
         "{\"prompt\": \"lost\", \"chosen\": [" TURN("user", "u") ", " TURN("assistant", "a") "], \"rejected\": [" TURN(
             "user", "u") ", " TURN("assistant", "v") "]}",
         "'prompt'|none of the first turns|del(.prompt)"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\", \"system\": \"s\"}",
         "'system'|ignored"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\", \"tools\": [{}]}",
         "'tools'|template"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\", \"tools\": 1}", "'tools'|a number"},
        {DATA_PAIRS, "[{\"prompt\": \"p\"}]", "'['"},
        {DATA_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"\xff\"}", "UTF-8"},
        {DATA_PAIRS, "\"text\"", "not JSON"},
        {DATA_LABELLED, "{\"prompt\": \"p\", \"completion\": \"a\"}", "'label'|found nothing|true"},
        {DATA_LABELLED, "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": 1}", "'label'|found a number|true"},
        {DATA_LABELLED, "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": \"true\"}", "'label'|found a string"},
        {DATA_LABELLED, "{\"prompt\": \"p\", \"label\": true}", "'completion'|found nothing"},
        {DATA_LABELLED, "{\"prompt\": \"p\", \"completion\": \"\", \"label\": true}", "'completion'|empty"},
        {DATA_LABELLED, "{\"completion\": \"a\", \"label\": true}", "'prompt'|found nothing"},
        {DATA_LABELLED, "{\"prompt\": \"\", \"completion\": \"a\", \"label\": true}", "no token before it"},
        {DATA_LABELLED, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}", "completion and label"},
    };
    static const char *const good[] = {[DATA_PAIRS] = "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}",
                                       [DATA_LABELLED] = "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}"};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        dataset *d;
        char text[1000], error[400];
        data_report report;
        data_options o = {.kind = cases[i].kind, .source = path, .seq_len = 64, .pack = true};
        snprintf(text, sizeof text, "%s\n%s\n%s\n", good[cases[i].kind], cases[i].line, good[cases[i].kind]);
        write_text(path, text);
        snprintf(error, sizeof error, "%s:2|%s", path, cases[i].error);
        if (dataset_open(&d, &o) == OK) fail_msg("accepted: %s", cases[i].line);
        expect_error(error_code(), ERR_INPUT, error);
        o.records.on_error = RECORDS_SKIP;
        log_set_level(LOG_ERROR);
        d = open_data(o);
        log_set_level(LOG_INFO);
        dataset_report(d, SPLIT_TRAIN, &report);
        assert_int_equal(report.n_skipped, 1);
        assert_int_equal(report.n_documents, 2);
        dataset_close(d);
    }
}

/* Two texts that are one to the model. */
static void answers_of_the_same_tokens_are_refused(void **state) {
    tokenizer *t = tokenizer_of(template_of("headers"));
    char tokens[80];
    dataset *d;
    snprintf(tokens, sizeof tokens, "%s", test_dir);
    tokenizer_close(t);
    write_text(path, "{\"prompt\": \"p\", \"chosen\": \"yes \", \"rejected\": \"yes\"}\n");
    data_options o = {.kind = DATA_PAIRS, .source = path, .tokenizer = tokens, .seq_len = 128};
    expect_error(dataset_open(&d, &o), ERR_INPUT, ":1|the same tokens");
}

/* ---- show -------------------------------------------------------------------------------------------------------- */

typedef struct visits {
    int n;
    char parts[200];
    uint64_t lines;
    size_t n_tokens;
} visits;

static status note(void *context, const tokenizer *t, const record_view *v) {
    visits *s = context;
    s->n++;
    s->lines = s->lines * 10 + v->line;
    s->n_tokens += v->tokens->n;
    strcat(s->parts, v->error ? "error" : v->part ? v->part : "-");
    strcat(s->parts, " ");
    return OK;
}

static void show_visits_every_answer(void **state) {
    write_text(path, "{\"prompt\": \"pp\", \"chosen\": \"a\", \"rejected\": \"bb\"}\n\n"
                     "{\"prompt\": \"pp\", \"chosen\": \"a\"}\n"
                     "{\"prompt\": \"pp\", \"chosen\": \"c\", \"rejected\": \"d\"}\n");
    data_options o = {.kind = DATA_PAIRS, .source = path};
    visits v = {0};
    expect_error(data_visit_records(&o, false, 10, note, &v), ERR_INPUT, ":3|'rejected'");
    assert_string_equal(v.parts, "chosen rejected ");
    v = (visits){0};
    assert_int_equal(data_visit_records(&o, false, 1, note, &v), OK);
    assert_string_equal(v.parts, "chosen rejected ");
    assert_int_equal(v.n_tokens, 4 + 5);
    o.records.on_error = RECORDS_SKIP;
    v = (visits){0};
    assert_int_equal(data_visit_records(&o, false, 10, note, &v), OK);
    assert_string_equal(v.parts, "chosen rejected error chosen rejected ");
    assert_int_equal(v.lines, 11344);
    v = (visits){0};
    assert_int_equal(data_visit_records(&o, true, 1, note, &v), OK);
    assert_string_equal(v.parts, "- "); /* the prompt once */
    assert_int_equal(v.n_tokens, 2);
    write_text(path, "{\"prompt\": \"pp\", \"completion\": \"a\", \"label\": false}\n"
                     "{\"prompt\": \"pp\", \"completion\": \"a\", \"label\": true}\n");
    o.kind = DATA_LABELLED;
    v = (visits){0};
    assert_int_equal(data_visit_records(&o, false, 10, note, &v), OK);
    assert_string_equal(v.parts, "undesirable desirable ");
}

static int open_all(void **state) {
    if (chat_fixtures_open(state) != 0) return -1;
    snprintf(path, sizeof path, "%s", path_of("pairs.jsonl"));
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_have_the_tokens_of_sft_records),
        cmocka_unit_test(rows_of_a_pair_are_those_of_sft),
        cmocka_unit_test(a_prompt_inside_the_answers_is_what_they_share),
        cmocka_unit_test(columns_can_be_named),
        cmocka_unit_test(what_cannot_be_compared_is_named),
        cmocka_unit_test(answers_of_the_same_tokens_are_refused),
        cmocka_unit_test(show_visits_every_answer),
    };
    return cmocka_run_group_tests(tests, open_all, chat_fixtures_close);
}
