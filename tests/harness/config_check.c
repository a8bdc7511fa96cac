/* config_check.c - see config_check.h. */
#include "config_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

char config_path[] = "/tmp/ralo_config_XXXXXX";

int config_file_make(void **state) {
    int fd = mkstemp(config_path);
    if (fd < 0) return -1;
    return close(fd);
}

int config_file_remove(void **state) { return unlink(config_path); }

status read_text(config *c, const char *text) {
    FILE *f = fopen(config_path, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return config_read_file(c, config_path);
}

void assert_says(const char *const *parts) {
    for (; *parts; parts++)
        if (!strstr(error_message(), *parts)) fail_msg("'%s' is not in: %s", *parts, error_message());
}

void refused_in_file(const char *text, const char *const *parts) {
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c, text), ERR_INPUT);
    assert_says((const char *const[]){config_path, NULL});
    assert_says(parts);
    config_fini(&c);
}

void refused_set(const char *assignment) {
    config c;
    config_init(&c);
    if (config_set(&c, assignment, "--set") != ERR_INPUT) fail_msg("'%s' was taken", assignment);
    SAYS("--set");
    config_fini(&c);
}

static void field_equal(const char *key, const char *kind, const void *a, const void *b, size_t n_bytes, bool pair) {
    bool equal = kind[0] == 't' ? strcmp(*(const char *const *)a, *(const char *const *)b) == 0
                                : memcmp(a, b, n_bytes * (pair ? 2 : 1)) == 0;
    if (!equal) fail_msg("%s differs", key);
}

/* Every field of every row, to the bit. */
void assert_same(const config *a, const config *b) {
#define SETTING(key, effect, field, type, range, initial, word, aliases, help) \
    field_equal(key, _Generic(a->field, const char *: "text", default: "number"), &a->field, &b->field,              \
                sizeof a->field, strcmp(#type, "PAIR") == 0);
#include "settings/config.def"
#undef SETTING
    assert_int_equal(a->data.seed, b->data.seed);
}

void assert_reads_back(const config *c) {
    for (int annotated = 0; annotated < 2; annotated++) {
        config again;
        FILE *f = fopen(config_path, "wb");
        assert_non_null(f);
        config_write_yaml(c, f, annotated);
        assert_int_equal(fclose(f), 0);
        config_init(&again);
        if (config_read_file(&again, config_path) != OK) fail_msg("%s", error_message());
        assert_same(c, &again);
        for (size_t i = 0; i < config_count(); i++) assert_true(config_was_given(&again, config_key(i)));
        config_fini(&again);
    }
}
