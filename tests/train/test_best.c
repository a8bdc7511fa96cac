/* test_best.c - train.patience counts evaluations in a row without a better one. A run is driven by numbers alone: no
 * program, no files. */
#include "train/best.h"
#include "must.h"
#include "train/task.h"

#include <math.h>

typedef struct waiting {
    train_request request;
    train_observer observer;
    train_state state;
    best best;
    arena memory;
} waiting;

static void waiting_open(waiting *w, int64_t patience) {
    *w = (waiting){
        .request = {.train = {.patience = patience, .eval_rows = 1, .eval_every = 1}, .task = task_of(TASK_SFT)}};
    arena_init(&w->memory);
    must(best_open(&w->best, &w->request, &w->observer, &(checkpoint_options){0}, NULL, 0, &w->memory));
    must(best_begin(&w->best, &w->state));
}

/* After these evaluations: has the run given up? */
static bool gave_up_after(waiting *w, const double *losses, size_t n) {
    for (size_t i = 0; i < n; i++) {
        w->state.step++;
        must(best_offer(&w->best, NULL, &w->state, &(train_eval_report){.loss = losses[i]}));
    }
    return best_gave_up(&w->best, &w->state);
}

static void a_better_evaluation_begins_the_count_anew(void **state) {
    waiting w;
    waiting_open(&w, 2);
    assert_false(gave_up_after(&w, (const double[]){3, 5}, 2));
    assert_false(gave_up_after(&w, (const double[]){2, 6}, 2)); /* 2 is better: only 6 is counted */
    assert_true(gave_up_after(&w, (const double[]){2}, 1));     /* the same again is not better */
    arena_fini(&w.memory);
}

static void what_is_no_number_is_not_better(void **state) {
    waiting w;
    waiting_open(&w, 2);
    assert_false(gave_up_after(&w, (const double[]){NAN}, 1));
    assert_false(gave_up_after(&w, (const double[]){7}, 1)); /* the first number is better than none */
    assert_true(gave_up_after(&w, (const double[]){NAN, NAN}, 2));
    arena_fini(&w.memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_better_evaluation_begins_the_count_anew),
        cmocka_unit_test(what_is_no_number_is_not_better),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
