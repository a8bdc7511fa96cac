/* test_export_align.c - the end token and the chat template that a run has trained come into the files of its
 * tokenizer, and nothing else of them changes. */
#include "files.h"
#include "must.h"
#include "weights/export_job.h"

#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static json_t *description_of(const char *eos, const char *more) {
    strbuf text;
    strbuf_init(&text);
    strbuf_printf(&text,
                  "{\"config\": {\"eos_token_id\": %s, \"x\": 1}, \"generation\": {\"eos_token_id\": %s}, "
                  "\"end\": {\"ids\": [7], \"texts\": [\"<\\\"7\\\">\"], \"bos\": \"<s>\"%s}}",
                  eos, eos, more);
    json_t *out = json_loads(text.text, 0, NULL);
    assert_non_null(out);
    strbuf_fini(&text);
    return out;
}

/* The file `name` of a directory that had `given`; NULL: it had none. The caller frees what it has now; NULL: none. */
static char *aligned(const json_t *description, const char *name, const char *given, const char *wanted) {
    tokenizer_copy copies[] = {{"tokenizer.json", "{}", 2},
                               {name, (char *)(uintptr_t)given, given ? strlen(given) : 0}};
    tokenizer_files files = {.items = copies, .n = given ? 2 : 1};
    char *text = NULL;
    size_t n;
    arena memory;
    arena_init(&memory);
    must(dir_make(path_of("out")));
    must(export_write_tokenizer(description, &files, path_of("out"), &memory));
    char path[200];
    snprintf(path, sizeof path, "%s/out/%s", test_dir, wanted);
    if (access(path, F_OK) == 0) must(file_read_all(path, 1 << 20, &text, &n));
    must(dir_remove_all(path_of("out")));
    arena_fini(&memory);
    return text;
}

static void a_config_changes_in_one_value(void **state) {
    static const char config[] = "tokenizer_config.json";
    static const struct {
        const char *eos, *more, *name, *given, *want;
    } cases[] = {
        {"2", "", config,
         "{\"a\": [1, {\"eos_token\": 2}], \"eos_token\": {\"content\": \"x\"}, \"n\": "
         "1000000000000000019884624838656}",
         "{\"a\": [1, {\"eos_token\": 2}], \"eos_token\": \"<\\\"7\\\">\", \"n\": 1000000000000000019884624838656}"},
        {"2", "", config, " { \"s\": \"}\\\"{\", \"eos_token\" : null , \"t\" : -1.5e3 } ",
         " { \"s\": \"}\\\"{\", \"eos_token\" : \"<\\\"7\\\">\" , \"t\" : -1.5e3 } "},
        {"[2, 3]", "", config, "{\"a\": 1}", "{\n  \"eos_token\": \"<\\\"7\\\">\",\"a\": 1}"},
        {"null", "", config, "{}", "{\n  \"eos_token\": \"<\\\"7\\\">\"}"},
        {"2", "", config, "{\"eos_token\": \"<\\\"7\\\">\"}", "{\"eos_token\": \"<\\\"7\\\">\"}"},
        {"[2, 7]", "", config, "{\"eos_token\": \"x\"}", "{\"eos_token\": \"x\"}"}, /* the model's files name it */
        {"7", ", \"is_given\": true", config, "{\"eos_token\": \"x\"}", "{\"eos_token\": \"<\\\"7\\\">\"}"},
        {"2", ", \"keeps_eos\": true", config, "{\"eos_token\": \"x\"}", "{\"eos_token\": \"x\"}"},
        {"7", ", \"template\": \"a\\n\"", config,
         "{\"chat_template\": [{\"name\": \"default\"}], \"eos_token\": \"x\"}",
         "{\"chat_template\": \"a\\n\", \"eos_token\": \"<\\\"7\\\">\"}"},
        {"2", "", "special_tokens_map.json", "{\"eos_token\": \"x\"}", "{\"eos_token\": \"<\\\"7\\\">\"}"},
        {"2", "", "special_tokens_map.json", "{\"pad_token\": \"x\"}", "{\"pad_token\": \"x\"}"},
        {"2", "", config, "[1]", "[1]"},
        {"2", "", config, "{\"eos_token\"", "{\"eos_token\""},
        {"7", ", \"template\": \"a\"", "additional_chat_templates/tool_use.jinja", "b", NULL},
        {"7", "", "additional_chat_templates/tool_use.jinja", "b", "b"},
        {"7", ", \"template\": \"a\"", "chat_template.jinja", "b", "a"},
        {"7", ", \"template\": \"a\"", "chat_template.jinja", NULL, "a"},
        {"7", "", "chat_template.jinja", NULL, NULL},
        {"2", "", config, NULL, "{\n  \"eos_token\": \"<\\\"7\\\">\",\n  \"bos_token\": \"<s>\"\n}"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        json_t *d = description_of(cases[i].eos, cases[i].more);
        char *got = aligned(d, cases[i].name, cases[i].given, cases[i].name);
        if (!cases[i].want) assert_null(got);
        else assert_string_equal(got, cases[i].want);
        free(got);
        json_decref(d);
    }
}

static void expect_ends(const json_t *description, const char *config, const char *generation) {
    const char *const parts[] = {"config", "generation"}, *const wanted[] = {config, generation};
    for (size_t i = 0; i < 2; i++) {
        json_t *part = export_aligned(description, parts[i]), *want = json_loads(wanted[i], JSON_DECODE_ANY, NULL);
        assert_true(json_equal(json_object_get(part, "eos_token_id"), want));
        assert_int_equal(json_integer_value(json_object_get(part, "x")), i == 0);
        json_decref(part);
        json_decref(want);
    }
}

static void a_list_without_the_trained_token_becomes_it(void **state) {
    static const struct {
        const char *eos, *config, *generation;
    } cases[] = {
        {"2", "7", "7"}, {"null", "7", "7"}, {"[2, 3]", "7", "7"}, {"7", "7", "7"}, {"[2, 7]", "[2, 7]", "[2, 7]"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        json_t *d = description_of(cases[i].eos, "");
        expect_ends(d, cases[i].config, cases[i].generation);
        json_decref(d);
    }
    json_t *d = description_of("[2, 7]", "");
    json_object_set_new(json_object_get(d, "config"), "eos_token_id", json_integer(2)); /* as Gemma 2's */
    expect_ends(d, "[2, 7]", "[2, 7]");
    json_object_del(d, "end"); /* of an older ralo */
    expect_ends(d, "2", "[2, 7]");
    json_decref(d);
    d = description_of("2", "");
    json_array_append_new(json_object_get(json_object_get(d, "end"), "ids"), json_integer(9)); /* answers and texts */
    expect_ends(d, "[7, 9]", "[7, 9]");
    json_decref(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_changes_in_one_value),
        cmocka_unit_test(a_list_without_the_trained_token_becomes_it),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
