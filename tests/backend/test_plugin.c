/* test_plugin.c - what crosses the border between the program and a plug-in, each with a copy of base of its own: errors, and log lines at
 * the level and to the place that the program has chosen. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/plugin.h"
#include <stdlib.h>
#include <string.h>

static char said[1024];
static void take_line(void *context, log_level level, const char *line) {
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%d %s\n", (int)level, line);
}

static const backend *stand_in(void) {
    const backend *b;
    setenv("RALO_CUDA_PLUGIN", STAND_IN, 1);
    assert_int_equal(backend_cuda(&b), OK);
    assert_string_equal(b->name, "stand-in");
    said[0] = 0;
    return b;
}

static void an_error_crosses_with_its_message(void **state) {
    device_info info;
    const backend *b = stand_in();
    assert_int_equal(b->describe(0, &info), OK);
    assert_int_equal(info.capability, 90);
    assert_int_equal(b->describe(3, &info), ERR_INPUT);
    assert_non_null(strstr(error_message(), "no GPU 3: found 1 of 100%"));
    error_clear();
}

static void log_lines_cross_at_the_level_of_the_program(void **state) {
    device_info info;
    const backend *b = stand_in();
    static const struct {
        log_level level;
        const char *lines;
    } cases[] = {{LOG_DEBUG, "0 asked for GPU 3\n1 looking for GPU 3\n2 GPU 3 is none\n"},
                 {LOG_INFO, "1 looking for GPU 3\n2 GPU 3 is none\n"},
                 {LOG_WARN, "2 GPU 3 is none\n"},
                 {LOG_ERROR, ""}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        said[0] = 0;
        log_set_level(cases[i].level);
        assert_int_equal(b->describe(3, &info), ERR_INPUT);
        error_clear();
        assert_string_equal(said, cases[i].lines);
    }
    log_set_level(LOG_INFO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_crosses_with_its_message),
        cmocka_unit_test(log_lines_cross_at_the_level_of_the_program),
    };
    log_set_sink(take_line, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
