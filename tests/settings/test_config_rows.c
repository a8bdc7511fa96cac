/* test_config_rows.c - every row of config.def: its bounds, its help, and that it is written and read back to the same bits. */
#include "config_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

/* Every bound of every numeric row: the bound itself is taken when it is closed, one step outside is refused. */
static void check_range(const char *key, const char *type, const char *range) {
    bool whole = strcmp(type, "INT") == 0;
    if (!whole && strcmp(type, "REAL") != 0) return;
    char low[32], high[32], outside[2][64], assignment[160];
    assert_int_equal(sscanf(range + 1, "%31[^,], %31[^])]", low, high), 2);
    bool open[2] = {range[0] == '(', str_ends_with(range, ")")};
    if (whole) {
        snprintf(outside[0], sizeof outside[0], "%lld", strtoll(low, NULL, 10) - 1);
        snprintf(outside[1], sizeof outside[1], "%llu", strtoull(high, NULL, 10) + 1);
    } else {
        snprintf(outside[0], sizeof outside[0], "%.17g", nextafter(strtod(low, NULL), -INFINITY));
        snprintf(outside[1], sizeof outside[1], "%.17g", nextafter(strtod(high, NULL), INFINITY));
    }
    config c;
    config_init(&c);
    for (int end = 0; end < 2; end++) {
        const char *bound = end ? high : low;
        snprintf(assignment, sizeof assignment, "%s=%s", key, bound);
        if ((config_set(&c, assignment, "--set") == OK) != !open[end]) fail_msg("%s in %s", assignment, range);
        snprintf(assignment, sizeof assignment, "%s=%s", key, outside[end]);
        if (config_set(&c, assignment, "--set") == OK) fail_msg("%s outside %s", assignment, range);
        SAYS(key, range);
    }
    config_fini(&c);
}

static void test_every_bound_of_every_row(void **state) {
#define SETTING(key, effect, field, type, range, initial, word, aliases, help) check_range(key, #type, range);
#include "settings/config.def"
#undef SETTING
}

/* A value that is not the default, for every row by its type. */
static const char *another_value(const char *type, const char *range, const char *initial) {
    static char text[64];
    if (strcmp(type, "BOOL") == 0) return strcmp(initial, "true") == 0 ? "false" : "true";
    if (strcmp(type, "TEXT") == 0) return "another: one # \"here\"";
    if (strcmp(type, "PAIR") == 0) return "[0.1, 0.30000000000000004]";
    if (strcmp(type, "BYTES") == 0) return "123456789";
    if (strcmp(type, "FORM") == 0) return "{keep: [attn.y, mlp.up]}";
    if (strcmp(type, "CHOICE") == 0) {
        const char *last = strrchr(range, '|');
        return last ? last + 1 : range;
    }
    char low[32], high[32];
    assert_int_equal(sscanf(range + 1, "%31[^,], %31[^])]", low, high), 2);
    if (strcmp(type, "INT") == 0) snprintf(text, sizeof text, "%s", high);
    else snprintf(text, sizeof text, "%.17g", strtod(low, NULL) + (strtod(high, NULL) - strtod(low, NULL)) / 3);
    return text;
}

static void test_every_row_reads_back_and_is_reported(void **state) {
    config c;
    config_init(&c);
    assert_reads_back(&c);
    size_t row = 0;
    char assignment[256];
#define SETTING(key, effect, field, type, range, initial, word, aliases, help)                           \
    assert_string_equal(config_key(row++), key);                                                 \
    snprintf(assignment, sizeof assignment, "%s=%s", key, another_value(#type, range, initial)); \
    assert_int_equal(config_set(&c, assignment, "--set"), OK);                                   \
    assert_true(config_was_given(&c, key));                                                      \
    assert_reads_back(&c);
#include "settings/config.def"
#undef SETTING
    assert_int_equal(row, config_count());
    config_fini(&c);
}

static void test_awkward_text_reads_back(void **state) {
    static const char *const texts[] = {
        "plain",
        "a b",
        " lead",
        "trail ",
        "#comment",
        "a #b",
        "a: b",
        "a:",
        ":a",
        "- a",
        "-",
        "---",
        "...",
        ".",
        "~",
        "null",
        "Null",
        "true",
        "no",
        "1",
        "1e5",
        ".5",
        "0x10",
        "'",
        "''",
        "\"",
        "\\",
        "\\n",
        "a\nb",
        "\n",
        "\t",
        "a\r\nb",
        "\x01\x1f\x7f",
        "{a}",
        "[a]",
        "a, b",
        "*a",
        "&a",
        "!a",
        "|",
        ">",
        "%a",
        "@a",
        "`a`",
        "?",
        "? a",
        "none",
        "auto",
        "=",
        "\xc3\xa9t\xc3\xa9",
        "\xe2\x80\xa8",
        "\xe2\x80\xa9",
        "\xc2\x85",
        "\xc2\x80",
        "\xef\xbb\xbf",
        "\xef\xbf\xbe",
        "\xef\xbf\xbf",
        "\xf0\x9f\xa6\x8e",
        "\xf4\x8f\xbf\xbf",
        "C:\\dir\\file",
        "runs/{time}",
        "a\n\n b",
        "\n trailing\n",
    };
    config c;
    config_init(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
        char assignment[64];
        snprintf(assignment, sizeof assignment, "data.source=%s", texts[i]);
        assert_int_equal(config_set(&c, assignment, "--set"), OK);
        assert_string_equal(c.data.source, texts[i]);
        c.run.dir = c.run.resume = texts[i]; /* also the texts that --set takes for the word or null */
        assert_reads_back(&c);
    }
    config_fini(&c);
}

static void test_reals_read_back_to_the_bit(void **state) {
    static const double values[] = {0x1.fffffffffffffp-1, 0x1p-1074, 0x1.0000000000001p0, 0.1, 1.0 / 3, 1e-300, 5e-324};
    config c;
    config_init(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(values); i++) {
        c.train.lr = values[i];
        c.train.beta1 = MIN(values[i], 0x1.fffffffffffffp-1);
        c.train.beta2 = -0.0;
        assert_reads_back(&c);
    }
    for (uint64_t n = 4096; n < 1ull << 50; n = n * 3 + 1024) {
        c.memory.device = n;
        c.train.seed = c.data.seed = n * 2 + 1;
        assert_reads_back(&c);
    }
    config_fini(&c);
}

static void test_relations_between_settings(void **state) {
    static const struct {
        const char *set[4];
        const char *says;
    } wrong[] = {
        {{"train.steps=10", "train.warmup=10"}, "train.warmup"},
        {{"train.steps=10", "train.warmup=9", "train.schedule=wsd", "train.decay_share=0.5"}, "train.decay_share"},
        {{"precision=fp16", "train.fp16.initial_scale_power=1", "train.fp16.min_loss_scale=4"}, "min_loss_scale"},
        {{"model.heads=6", "model.kv_heads=4"}, "model.kv_heads"},
        {{"data.seq_len=1048576", "train.micro_batch=65536"}, "train.micro_batch"},
        {{"run.resume=auto"}, "run.dir"},
        {{"parallel.tensor=65536", "parallel.pipeline=2"}, "at most 65536 ranks"},
        {{"parallel.tensor=65536", "parallel.sequence=65536"}, "sequence 65536"},
        {{"parallel.data=65536", "parallel.tensor=65536", "parallel.pipeline=65536", "parallel.sequence=65536"},
         "data 65536 x tensor 65536 x pipeline 65536 x sequence 65536"}, /* 2 to the 64 */
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        config c;
        config_init(&c);
        for (size_t j = 0; j < 4 && wrong[i].set[j]; j++)
            assert_int_equal(config_set(&c, wrong[i].set[j], "--set"), OK);
        assert_int_equal(config_check(&c), ERR_INPUT);
        SAYS(wrong[i].says);
        config_fini(&c);
    }
    config c;
    config_init(&c);
    assert_int_equal(config_set(&c, "train.warmup=999", "--set"), OK);
    assert_int_equal(config_set(&c, "train.steps=1000", "--set"), OK);
    assert_int_equal(config_set(&c, "run.dir=x", "--set"), OK);
    assert_int_equal(config_set(&c, "run.resume=auto", "--set"), OK);
    assert_int_equal(config_set(&c, "parallel.tensor=256", "--set"), OK);
    assert_int_equal(config_set(&c, "parallel.sequence=256", "--set"), OK);
    assert_int_equal(config_check(&c), OK);
    config_fini(&c);
}

static void test_help_shows_every_row(void **state) {
    memstream printed;
    config_print_help(memstream_open(&printed), "");
    char *text = memstream_take(&printed);
#define SETTING(key, effect, field, type, range, initial, word, aliases, help) \
    assert_non_null(strstr(text, key));                                \
    assert_non_null(strstr(text, help));                               \
    assert_non_null(strstr(text, "default " initial));                 \
    if (range[0] == '[' || range[0] == '(') assert_non_null(strstr(text, range));
#include "settings/config.def"
#undef SETTING
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bound_of_every_row),   cmocka_unit_test(test_every_row_reads_back_and_is_reported),
        cmocka_unit_test(test_awkward_text_reads_back),    cmocka_unit_test(test_reals_read_back_to_the_bit),
        cmocka_unit_test(test_relations_between_settings), cmocka_unit_test(test_help_shows_every_row),
    };
    return cmocka_run_group_tests(tests, config_file_make, config_file_remove);
}
