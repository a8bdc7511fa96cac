/* test_json_list.c - a file that is one JSON list gives the records of the same objects as JSON Lines, wherever its line breaks are and however
 * long it is; what is wrong with the list is told with its line. */
#include "data/data.h"
#include "files.h"

#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

static records *open_list(const char *text, record_options o) {
    records *r;
    write_text(path_of("list.json"), text);
    if (records_open(&r, path_of("list.json"), &o) != OK) fail_msg("%s", error_message());
    return r;
}

static void expect_pair(records *r, uint64_t i, uint64_t line, const char *prompt, const char *response) {
    data_record q;
    if (records_get(r, i, &q) != OK) fail_msg("%s", error_message());
    assert_int_equal(q.line, line);
    assert_int_equal(q.prompt.length, strlen(prompt));
    assert_memory_equal(q.prompt.text, prompt, q.prompt.length);
    assert_int_equal(q.response.length, strlen(response));
    assert_memory_equal(q.response.text, response, q.response.length);
}

static void elements_are_records_wherever_the_line_breaks_are(void **state) {
    records *r =
        open_list("\n [\n  {\n    \"prompt\": \"a\",\r\n    \"completion\": \"b\"\n  } ,\n{\"prompt\": \"]},{[\", "
                  "\"completion\": \"\\\\\\\" \\n\", \"more\": [{\"x\": [1, 2]}]}, {\"prompt\": \"c\", "
                  "\"completion\": \"d\"}]\n",
                  (record_options){0});
    assert_int_equal(records_count(r), 3);
    expect_pair(r, 0, 3, "a", "b");
    expect_pair(r, 1, 7, "]},{[", "\\\" \n"); /* brackets, quotes and backslashes inside of strings are text */
    expect_pair(r, 2, 7, "c", "d");
    expect_pair(r, 0, 3, "a", "b"); /* in any order */
    records_close(r);
}

/* Longer than any block of the reader, with elements and strings across the blocks' ends. */
static void a_list_of_any_length_is_read(void **state) {
    enum { N = 3000 };
    strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < N; i++) {
        strbuf_printf(&text, "%s{\"prompt\": \"%d", i ? ",\n\n" : "[", i);
        for (int k = 0; k < i % 700; k++) strbuf_add(&text, "\\\"[{");
        strbuf_printf(&text, "\", \"completion\": \"%d\"}", i + 1);
    }
    strbuf_add(&text, "]");
    records *r = open_list(text.text, (record_options){0});
    assert_int_equal(records_count(r), N);
    for (int i = 0; i < N; i++) {
        data_record q;
        char number[16];
        assert_int_equal(records_get(r, (uint64_t)i, &q), OK);
        assert_int_equal(q.prompt.length, (size_t)snprintf(number, sizeof number, "%d", i) + 3 * (size_t)(i % 700));
        assert_int_equal(q.line, 2 * i + 1);
        snprintf(number, sizeof number, "%d", i + 1);
        assert_memory_equal(q.response.text, number, strlen(number));
    }
    records_close(r);
    strbuf_fini(&text);
}

static void what_is_wrong_with_a_list_is_told(void **state) {
#define GOOD "{\"prompt\": \"a\", \"completion\": \"b\"}"
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[" GOOD, "list.json:1: found the end of the file, expected ']'"},
        {"[\n" GOOD ",\n", "list.json:3: found the end of the file, expected ']'"},
        {"[" GOOD ",\n]", "list.json:2: found a comma without a record"},
        {"[" GOOD ",\n," GOOD "]", "list.json:2: found a comma without a record"},
        {"[," GOOD "]", "list.json:1: found a comma without a record"},
        {"[" GOOD "]\n\n[" GOOD "]", "list.json:3: found more behind the list"},
        {"[" GOOD "\n" GOOD "]", "list.json:1: found text after the object"},
        {"[" GOOD ",\n {\"prompt\": \"c\"", "list.json:2: "},
        {"[" GOOD ",\n 3]", "list.json:2: "},
        {"[" GOOD ",\n {\"prompt\": \"x\ny\", \"completion\": \"z\"}]", "list.json:2: found text that is not JSON"},
        {"[" GOOD ",\n }, " GOOD "]", "list.json:2: "},
        {"[]", "found no record"},
        {"[", "list.json:1: found the end of the file"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        records *r;
        write_text(path_of("list.json"), cases[i].text);
        expect_error(records_open(&r, path_of("list.json"), &(record_options){0}), ERR_INPUT, cases[i].words);
    }
    records *r =
        open_list("[" GOOD ",\n {\"prompt\": \"a\"},\n" GOOD ",\n]", (record_options){.on_error = RECORDS_SKIP});
    assert_int_equal(records_count(r), 2);
    assert_int_equal(records_skipped(r), 2); /* one without an answer, and the comma */
    records_close(r);
}

static void a_longer_element_than_the_limit_is_refused(void **state) {
    records *r;
    write_text(path_of("list.json"),
               "[" GOOD ",\n{\"prompt\": \"aaaaaaaaaaaaaaaaaaaaaaaaaa\", \"completion\": \"b\"}, " GOOD "]");
    expect_error(records_open(&r, path_of("list.json"), &(record_options){.max_line = 40}), ERR_INPUT,
                 "list.json:2:|data.max_line");
    r = open_list("[" GOOD ",\n{\"prompt\": \"aaaaaaaaaaaaaaaaaaaaaaaaaa\", \"completion\": \"b\"}, " GOOD "]",
                  (record_options){.max_line = 40, .on_error = RECORDS_SKIP});
    assert_int_equal(records_count(r), 2);
    records_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_records_wherever_the_line_breaks_are),
        cmocka_unit_test(a_list_of_any_length_is_read),
        cmocka_unit_test(what_is_wrong_with_a_list_is_told),
        cmocka_unit_test(a_longer_element_than_the_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
