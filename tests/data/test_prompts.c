/* test_prompts.c - prompts are what generation would see, with every other field of their records beside them; none is cut, lost or
 * repeated within an epoch. */
#include "data/prompts.h"
#include "chat_fixtures.h"
#include "must.h"

#include <stdlib.h>

static const char *file; /* of the test that runs */
static tokenizer *bytes;

static prompt_options options_of(data_options *d, const char *source) {
    if (!d->tokenizer) d->tokenizer = "byte";
    d->source = source;
    return (prompt_options){.data = d, .longest = 1000};
}

static prompt_set *open_set(const tokenizer *t, const prompt_options *o) {
    prompt_set *s;
    if (prompts_open(&s, t, o->data->tokenizer, o) != OK) fail_msg("%s", error_message());
    return s;
}

static prompt_set *open_text(const char *text, data_options d) {
    write_text(file, text);
    prompt_options o = options_of(&d, file);
    return open_set(bytes, &o);
}

static void refuse_with(const char *text, prompt_options o, const char *words) {
    prompt_set *s;
    if (text) write_text(file, text);
    status rc = prompts_open(&s, bytes, "byte", &o);
    assert_null(s);
    expect_error(rc, ERR_INPUT, words);
}

static void refuse(const char *text, data_options d, const char *words) {
    refuse_with(text, options_of(&d, file), words);
}

static void expect(const prompt_set *s, split which, uint64_t i, const char *text, const char *columns) {
    prompt_record r = prompts_get(s, which, i);
    char *found = json_dumps(r.columns, JSON_COMPACT | JSON_SORT_KEYS);
    if (r.text.length != strlen(text)) fail_msg("found %.*s, expected %s", (int)r.text.length, r.text.text, text);
    assert_memory_equal(r.text.text, text, r.text.length);
    assert_string_equal(found, columns);
    free(found);
}

static prompts_report report_of(const prompt_set *s) {
    prompts_report r;
    prompts_report_get(s, &r);
    return r;
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static void every_shape_of_record_is_a_prompt_and_its_columns(void **state) {
    static const struct {
        const char *line, *text, *columns;
    } cases[] = {{"{\"prompt\": \"2+2=\", \"answer\": 4}", "2+2=", "{\"answer\":4}"},
                 {"{\"question\": \"q\", \"answer\": \"so\\n#### 72\"}", "q", "{\"answer\":\"so\\n#### 72\"}"},
                 {"{\"question\": \"q\", \"answer\": -7.5, \"level\": [1, {\"a\": null}]}", "q",
                  "{\"answer\":-7.5,\"level\":[1,{\"a\":null}]}"},
                 {"{\"prompt\": \"p\", \"completion\": 3, \"chosen\": \"c\", \"rejected\": \"r\"}", "p",
                  "{\"chosen\":\"c\",\"completion\":3,\"rejected\":\"r\"}"},
                 {"{\"instruction\": \"i\", \"input\": \"x\", \"output\": \"o\"}", "i\nx", "{\"output\":\"o\"}"},
                 {"{\"instruction\": \"i\", \"output\": \"o\"}", "i", "{\"output\":\"o\"}"},
                 {"{\"text\": \"begin\", \"id\": 1}", "begin", "{\"id\":1}"},
                 {"{\"prompt\": \"\\u00e4\\u0000b\"}", "\xc3\xa4", NULL}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        prompt_set *s = open_text(cases[i].line, (data_options){0});
        if (cases[i].columns) expect(s, SPLIT_TRAIN, 0, cases[i].text, cases[i].columns);
        else assert_int_equal(prompts_get(s, SPLIT_TRAIN, 0).text.length, 4); /* a NUL is a character */
        prompt_record r = prompts_get(s, SPLIT_TRAIN, 0);
        assert_int_equal(r.n_tokens, r.text.length);
        for (size_t k = 0; k < r.n_tokens; k++) assert_int_equal(r.tokens[k], (unsigned char)r.text.text[k]);
        assert_int_equal(prompts_end(s), TOKEN_EOS);
        prompts_close(s);
    }
}

static void a_named_column_is_the_prompt_and_the_rest_stays(void **state) {
    prompt_set *s = open_text("{\"prompt\": \"no\", \"q\": \"yes\", \"a\": 1}",
                              (data_options){.records = {.prompt_column = "q", .response_column = "a"}});
    expect(s, SPLIT_TRAIN, 0, "yes", "{\"a\":1,\"prompt\":\"no\"}");
    prompts_close(s);
}

/* The prompt is that of `ralo generate`: without the last answer, with the header of the next. */
static void conversations_are_rendered_as_for_generation(void **state) {
    static const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"2+2?\"}, "
                               "{\"role\": \"assistant\", \"content\": \"four\"}], \"answer\": 4}\n";
    tokenizer *t = tokenizer_of(template_of("chatml"));
    chat *c = open_chat(t, CHAT_AUTO);
    record_parser p = {0};
    chat_tokens expected = {0};
    data_record r = parse_record(&p, line);
    must(chat_encode_prompt(c, &r, &expected));
    write_text(file, line);
    data_options d = {.tokenizer = test_dir};
    prompt_options o = options_of(&d, file);
    prompt_set *s = open_set(t, &o);
    prompt_record got = prompts_get(s, SPLIT_TRAIN, 0);
    assert_int_equal(got.n_tokens, expected.n);
    assert_memory_equal(got.tokens, expected.ids, expected.n * sizeof *expected.ids);
    assert_int_equal(prompts_end(s), chat_end_of_turn(c));
    expect(s, SPLIT_TRAIN, 0,
           "<|im_start|>system\nBe brief.\nPut the result into \\boxed{}, not into 'quotes'.<|im_end|>\n"
           "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n",
           "{\"answer\":4}");
    prompts_close(s);
    chat_tokens_free(&expected);
    record_parser_close(&p);
    chat_close(c);
    tokenizer_close(t);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

enum { MANY = 100 };

static void write_many(const char *path) {
    strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < MANY; i++) strbuf_printf(&text, "{\"prompt\": \"p%d\", \"i\": %d}\n", i, i);
    write_text(path, text.text);
    strbuf_fini(&text);
}

static int number_at(const prompt_set *s, split which, uint64_t position) {
    return (int)json_integer_value(json_object_get(prompts_get(s, which, position).columns, "i"));
}

static void every_epoch_is_a_permutation_of_its_own(void **state) {
    write_many(file);
    data_options d = {.eval_fraction = 0.1, .seed = 7}, e = {.eval_fraction = 0.1, .seed = 8};
    prompt_options o = options_of(&d, file), other = options_of(&e, file);
    prompt_set *s = open_set(bytes, &o), *again = open_set(bytes, &o), *seed = open_set(bytes, &other);
    int n = MANY * 9 / 10, differ_from_epoch = 0, differ_from_seed = 0;
    assert_int_equal(report_of(s).n[SPLIT_TRAIN], n);
    assert_int_equal(report_of(s).n[SPLIT_EVAL], MANY - n);
    for (int epoch = 0; epoch < 3; epoch++) {
        bool seen[MANY] = {0};
        for (int i = 0; i < n; i++) {
            uint64_t at = (uint64_t)(epoch * n + i);
            int k = number_at(s, SPLIT_TRAIN, at);
            assert_true(k >= 0 && k < n && !seen[k]);
            seen[k] = true;
            assert_int_equal(k, number_at(again, SPLIT_TRAIN, at));
            differ_from_epoch += k != number_at(s, SPLIT_TRAIN, at + (uint64_t)n);
            differ_from_seed += k != number_at(seed, SPLIT_TRAIN, at);
        }
    }
    assert_true(differ_from_epoch > n && differ_from_seed > n);
    for (int i = 0; i < 3 * (MANY - n); i++)
        assert_int_equal(number_at(s, SPLIT_EVAL, (uint64_t)i), n + i % (MANY - n));
    assert_int_equal(prompts_fingerprint(s), prompts_fingerprint(seed)); /* the order is not the data */
    prompts_close(s);
    prompts_close(again);
    prompts_close(seed);
}

static void the_fingerprint_is_of_tokens_and_columns(void **state) {
    static const char *const texts[] = {"{\"prompt\": \"a\", \"x\": 1}", "{\"prompt\": \"a\", \"x\": 2}",
                                        "{\"prompt\": \"b\", \"x\": 1}", "{\"prompt\": \"a\", \"y\": 1}",
                                        "{\"prompt\": \"a\", \"x\": 1}\n{\"prompt\": \"a\", \"x\": 1}"};
    uint64_t found[ARRAY_LENGTH(texts)];
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
        prompt_set *s = open_text(texts[i], (data_options){0});
        found[i] = prompts_fingerprint(s);
        prompts_close(s);
        for (size_t k = 0; k < i; k++) assert_true(found[i] != found[k]);
    }
    prompt_set *s =
        open_text("{\"x\": 1, \"prompt\": \"a\"}\n\n", (data_options){0}); /* the order of keys says nothing */
    assert_int_equal(prompts_fingerprint(s), found[0]);
    prompts_close(s);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

/* Every problem of the rows of task sft is among the prompts to train on, as the same tokens; the held-out ones are those that
 * evaluation asks, in its order. */
static void arithmetic_has_the_prompts_of_supervised_training(void **state) {
    enum { T = 64, ROWS = 200 };
    for (int64_t digits = 1; digits <= 2; digits++) {
        data_options d = {.tokenizer = "byte",
                          .source = "builtin:arithmetic",
                          .seq_len = T,
                          .difficulty = digits,
                          .pack = true,
                          .eval_fraction = 0.05,
                          .seed = 3};
        prompt_options o = {.data = &d, .longest = 2 * digits + 2};
        prompt_set *s = open_set(bytes, &o);
        json_t *known = json_object();
        for (uint64_t i = 0; i < report_of(s).n[SPLIT_TRAIN]; i++) {
            prompt_record r = prompts_get(s, SPLIT_TRAIN, i);
            assert_int_equal(r.n_tokens, 2 * digits + 2);
            json_t *answer = json_object_get(r.columns, "answer");
            assert_int_equal(json_string_length(answer), digits + 1);
            assert_int_equal(json_object_setn(known, r.text.text, r.text.length, answer), 0);
        }
        assert_int_equal(json_object_size(known), report_of(s).n[SPLIT_TRAIN]); /* each once */
        dataset *data;
        must(dataset_open(&data, &d));
        for (uint64_t row = 0; row < ROWS; row++) {
            int32_t tokens[T], targets[T], start[T];
            dataset_row(data, SPLIT_TRAIN, row, tokens, targets, start);
            int64_t size = 3 * digits + 4, n = 2 * digits + 2;
            for (int64_t at = 0; at + size <= T; at += size) {
                char text[T];
                for (int64_t k = 0; k < size; k++) text[k] = (char)tokens[at + k];
                const json_t *answer = json_object_getn(known, text, (size_t)n);
                assert_non_null(answer);
                assert_memory_equal(json_string_value(answer), text + n, (size_t)digits + 1);
            }
        }
        for (uint64_t i = 0; i < report_of(s).n[SPLIT_EVAL]; i++) {
            strbuf prompt = {0}, answer = {0};
            assert_true(dataset_problem(data, i, &prompt, &answer));
            char columns[64];
            snprintf(columns, sizeof columns, "{\"answer\":\"%s\"}", answer.text);
            expect(s, SPLIT_EVAL, i, prompt.text, columns);
            assert_null(json_object_get(known, prompt.text));
            strbuf_fini(&prompt);
            strbuf_fini(&answer);
        }
        dataset_close(data);
        json_decref(known);
        prompts_close(s);
    }
}

static void arithmetic_of_six_digits_is_bounded(void **state) {
    data_options d = {.tokenizer = "byte", .source = "builtin:arithmetic", .difficulty = 6};
    prompt_options o = {.data = &d, .longest = 100};
    prompt_set *s = open_set(bytes, &o);
    assert_int_equal(report_of(s).n[SPLIT_TRAIN], 20000);
    assert_true(report_of(s).bytes < (uint64_t)32 << 20);
    prompts_close(s);
}

/* ---- limits and errors ------------------------------------------------------------------------------------------- */

static void a_prompt_is_never_cut(void **state) {
    static const char text[] = "{\"prompt\": \"12345\"}\n\n{\"prompt\": \"123456\"}\n{\"prompt\": \"1\"}\n";
    data_options d = {.records = {.on_error = RECORDS_SKIP}}; /* too long is no invalid record */
    prompt_options o = options_of(&d, file);
    o.longest = 5;
    o.advice = "raise the_limit";
    refuse_with(text, o, "test.jsonl:3: the prompt has 6 tokens, expected at most 5; raise the_limit");
    o.skip_long = true;
    prompt_set *s = open_set(bytes, &o);
    assert_int_equal(report_of(s).n[SPLIT_TRAIN], 2);
    assert_int_equal(report_of(s).n_skipped, 1);
    assert_int_equal(report_of(s).n_invalid, 0);
    assert_int_equal(report_of(s).longest, 5);
    prompts_close(s);
    o.longest = 0;
    o.advice_all = "lower the_other";
    refuse_with(text, o,
                "found no prompt for training of at most 0 tokens|3 have more and are skipped|; lower the_other");
    o.data = &(data_options){.tokenizer = "byte", .source = "builtin:arithmetic", .difficulty = 2};
    o.longest = 5;
    refuse_with(NULL, o, "builtin:arithmetic: the prompts have 6 tokens, expected at most 5; raise the_limit");
}

static void bad_lines_are_named_or_counted(void **state) {
    static const struct {
        const char *line, *words;
    } cases[] = {{"{\"prompt\": 5}", "test.jsonl:2: key 'prompt': found a number, expected a string"},
                 {"{\"prompt\": \"\"}", "test.jsonl:2: found an empty prompt"},
                 {"{\"prompt\": []}", "test.jsonl:2: key 'prompt': found an empty list"},
                 {"{\"prompt\": [{\"role\": \"user\"}]}", "test.jsonl:2: prompt[0]"},
                 {"{\"answer\": 5}", "test.jsonl:2: found the keys 'answer'"},
                 {"{\"prompt\": \"p\", \"prompt\": \"q\"}", "test.jsonl:2: |duplicate"},
                 {"{\"prompt\": \"p\", \"answer\": 123456789012345678901234}", "test.jsonl:2: |more than 64 bits"},
                 {"{\"prompt\": \"long\", \"answer\": 123456789012345678901234}", "test.jsonl:2: |more than 64 bits"},
                 {"{\"prompt\": \"p\", \"system\": \"s\"}", "test.jsonl:2: key 'system'"},
                 {"{\"prompt\": \"p\"", "test.jsonl:2: found text that is not JSON"},
                 {"{\"prompt\": \"\xff\"}", "test.jsonl:2: found text that is not JSON in UTF-8"},
                 {"[{\"prompt\": \"p\"}]", "test.jsonl:2: found a line that begins with '['"},
                 {"17", "test.jsonl:2: "},
                 {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", "test.jsonl:2: |assistant"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"prompt\": \"good\"}\n%s\n", cases[i].line);
        data_options d = {0};
        prompt_options o = options_of(&d, file);
        o.longest = 4; /* the good prompt, and a bad one, are as long as a prompt may be */
        refuse_with(text, o, cases[i].words);
        d.records.on_error = RECORDS_SKIP;
        prompt_set *s = open_set(bytes, &o);
        assert_int_equal(report_of(s).n[SPLIT_TRAIN], 1);
        assert_int_equal(report_of(s).n_invalid, 1);
        prompts_close(s);
    }
}

static void wrong_requests_are_refused(void **state) {
    data_options d = {0};
    refuse("", d, "test.jsonl: found no record");
    refuse("{\"prompt\": \"p\"}", (data_options){.eval_fraction = 0.1}, "1 prompts for training and 0 for evaluation");
    /* A small share of few prompts is still one of them. */
    prompt_set *few = open_text("{\"prompt\": \"p\"}\n{\"prompt\": \"q\"}\n{\"prompt\": \"r\"}\n",
                                (data_options){.eval_fraction = 0.1});
    assert_true(report_of(few).n[SPLIT_TRAIN] == 2 && report_of(few).n[SPLIT_EVAL] == 1);
    prompts_close(few);
    refuse("{\"prompt\": \"p\"}", (data_options){.eval_fraction = 1}, "data.eval_fraction: found 1");
    refuse("{\"prompt\": \"p\"}", (data_options){.records = {.chosen_column = "c"}}, "data.chosen_column");
    refuse("{\"prompt\": \"p\"}", (data_options){.records.format = FORMAT_TEXT}, "data.source: found a text file");
    refuse("{\"prompt\": \"p\"}", (data_options){.records = {.prompt_column = "q"}}, "data.prompt_column|no key 'q'");
    char weighted[192];
    snprintf(weighted, sizeof weighted, "%s:0.5", file);
    refuse_with(NULL, options_of(&d, weighted), "data.source: found a weight for");
    refuse_with(NULL, options_of(&d, "builtin:grammar"), "data.source: found builtin:grammar");
    refuse_with(NULL, options_of(&d, ""), "data.source: found nothing");
    refuse_with(NULL, options_of(&d, "builtin:arithmetic"), "difficulty of 0 digits");
    prompt_set *s;
    prompt_options o = options_of(&d, path_of("absent.jsonl"));
    assert_int_not_equal(prompts_open(&s, bytes, "byte", &o), OK);
    tokenizer *t = tokenizer_of(template_of("chatml"));
    d = (data_options){.difficulty = 2, .tokenizer = "x"};
    o = options_of(&d, "builtin:arithmetic");
    expect_error(prompts_open(&s, t, "x", &o), ERR_INPUT, "expected 'byte'");
    tokenizer_close(t);
}

/* RALO_GSM8K: a directory with train.jsonl and test.jsonl. */
static void all_of_gsm8k(void **state) {
    const char *directory = getenv("RALO_GSM8K");
    if (!directory) skip();
    char source[1024];
    snprintf(source, sizeof source, "%s/train.jsonl, %s/test.jsonl", directory, directory);
    data_options d = {.eval_fraction = 0.05};
    prompt_options o = options_of(&d, source);
    o.longest = 4096;
    prompt_set *s = open_set(bytes, &o);
    prompts_report r = report_of(s);
    assert_int_equal(r.n[SPLIT_TRAIN] + r.n[SPLIT_EVAL], 7473 + 1319);
    assert_int_equal(r.n[SPLIT_EVAL], 373 + 65);
    for (int which = 0; which < 2; which++)
        for (uint64_t i = 0; i < r.n[which]; i++)
            assert_non_null(
                strstr(json_string_value(json_object_get(prompts_get(s, which, i).columns, "answer")), "#### "));
    print_message("longest prompt %zu bytes, %.1f MB held\n", r.longest, (double)r.bytes * 1e-6);
    prompts_close(s);
}

static int open_all(void **state) {
    static char path[128];
    if (chat_fixtures_open(state) != 0 || tokenizer_open(&bytes, "byte") != OK) return -1;
    snprintf(path, sizeof path, "%s/test.jsonl", test_dir);
    file = path;
    log_set_level(LOG_ERROR);
    return 0;
}

static int close_all(void **state) {
    tokenizer_close(bytes);
    return chat_fixtures_close(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_of_record_is_a_prompt_and_its_columns),
        cmocka_unit_test(a_named_column_is_the_prompt_and_the_rest_stays),
        cmocka_unit_test(conversations_are_rendered_as_for_generation),
        cmocka_unit_test(every_epoch_is_a_permutation_of_its_own),
        cmocka_unit_test(the_fingerprint_is_of_tokens_and_columns),
        cmocka_unit_test(arithmetic_has_the_prompts_of_supervised_training),
        cmocka_unit_test(arithmetic_of_six_digits_is_bounded),
        cmocka_unit_test(a_prompt_is_never_cut),
        cmocka_unit_test(bad_lines_are_named_or_counted),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(all_of_gsm8k),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
