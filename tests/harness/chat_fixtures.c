/* chat_fixtures.c - see chat_fixtures.h. */
#include "chat_fixtures.h"

#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

json_t *chat_fixtures;

tokenizer *open_tokenizer(const char *fixture, const json_t *config) {
    char path[512], *text;
    size_t n;
    tokenizer *t;
    snprintf(path, sizeof path, "%s/chat/%s", TEST_FIXTURES, fixture);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n), OK);
    assert_int_equal(dir_remove_all(test_dir), OK);
    assert_int_equal(dir_make(test_dir), OK);
    write_bytes(path_of("tokenizer.json"), text, n);
    free(text);
    if (config) {
        text = json_dumps(config, 0);
        write_bytes(path_of("tokenizer_config.json"), text, strlen(text));
        free(text);
    }
    if (tokenizer_open(&t, test_dir) != OK) fail_msg("%s", error_message());
    return t;
}

chat *open_chat_with(const tokenizer *t, const chat_options *o) {
    chat *c;
    if (chat_open(&c, t, test_dir, o) != OK) fail_msg("%s", error_message());
    return c;
}

chat *open_chat(const tokenizer *t, chat_format wanted) { return open_chat_with(t, &(chat_options){.format = wanted}); }

const json_t *template_of(const char *name) {
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(chat_fixtures, "templates"), i, v) {
        if (strcmp(json_string_value(json_object_get(v, "name")), name) == 0) return v;
    }
    fail_msg("no template %s", name);
    return NULL;
}

tokenizer *tokenizer_of(const json_t *template) {
    return open_tokenizer(json_string_value(json_object_get(template, "tokenizer")),
                          json_object_get(template, "config"));
}

data_record parse_record(record_parser *p, const char *text) {
    data_record r;
    if (record_parse(p, text, strlen(text), "file.jsonl", 7, &(record_options){0}, &r) != OK)
        fail_msg("%s", error_message());
    return r;
}

void compare_tokens(const chat_tokens *got, const json_t *ids, const json_t *trained, const char *what) {
    strbuf found;
    strbuf_init(&found);
    for (size_t i = 0; i < got->n; i++) strbuf_printf(&found, " %d%s", got->ids[i], got->trained[i] ? "*" : "");
    bool equal = got->n == json_array_size(ids);
    for (size_t i = 0; equal && i < got->n; i++)
        equal = got->ids[i] == json_integer_value(json_array_get(ids, i)) &&
                got->trained[i] == (trained ? json_integer_value(json_array_get(trained, i)) : 0);
    if (!equal) {
        char *want = json_dumps(ids, JSON_COMPACT), *mask = trained ? json_dumps(trained, JSON_COMPACT) : NULL;
        fail_msg("%s: found%s, expected %s trained %s", what, found.text, want, mask ? mask : "none");
    }
    strbuf_fini(&found);
}

size_t count_id(const chat_tokens *t, int32_t id) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) n += t->ids[i] == id;
    return n;
}

int chat_fixtures_open(void **state) {
    if (test_dir_open(state) != 0) return -1;
    return json_read_file(TEST_FIXTURES "/chat/cases.json", 1 << 24, &chat_fixtures) == OK ? 0 : -1;
}
int chat_fixtures_close(void **state) {
    json_decref(chat_fixtures);
    return test_dir_close(state);
}
