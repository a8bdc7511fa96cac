/* test_completions.c - completions.jsonl has every completion of a rollout, however many come at once. */
#include "files.h"
#include "must.h"
#include "track/track.h"

#include <stdlib.h>

/* More than the ring of track.c holds by far, and the step behind them, whether or not its writer keeps up. */
static void all_of_a_large_rollout_are_kept(void **state) {
    enum { N = 100000, STEPS = 2 };
    static const char *const names[] = {"exact"};
    track *t;
    size_t n_bytes, n_lines = 0;
    char *text, prompt[32];
    must(track_open(&t, &(track_options){.run_dir = test_dir, .completions = true}));
    for (int64_t step = 1; step <= STEPS; step++) {
        for (int i = 0; i < N; i++) {
            int n = snprintf(prompt, sizeof prompt, "%d+%lld=", i, (long long)step);
            double reward = i % 2;
            track_completion(t, &(train_completion){.step = step,
                                                    .prompt = {prompt, (size_t)n},
                                                    .completion = {"1", 1},
                                                    .n_rewards = 1,
                                                    .reward_names = names,
                                                    .rewards = &reward,
                                                    .reward = reward});
        }
        track_step(t, &(train_step_report){.step = step, .steps = STEPS}, 0);
    }
    track_close(t);
    must(file_read_all(path_of("completions.jsonl"), 1 << 30, &text, &n_bytes));
    for (const char *at = text; *at; at = strchr(at, '\n') + 1, n_lines++) {
        char expected[80];
        snprintf(expected, sizeof expected, "{\"step\": %zu, \"prompt\": \"%zu+%zu=\",", 1 + n_lines / N, n_lines % N,
                 1 + n_lines / N);
        if (strncmp(at, expected, strlen(expected)) != 0) fail_msg("line %zu is not '%s'", n_lines, expected);
    }
    assert_int_equal(n_lines, STEPS * N);
    free(text);
    must(file_read_all(path_of("metrics.jsonl"), 1 << 20, &text, &n_bytes));
    assert_non_null(strstr(text, "{\"step\": 2,"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_of_a_large_rollout_are_kept)};
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
