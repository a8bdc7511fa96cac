/* test_solutions.c - pairs of correct and wrong solutions: of one problem each, each once, no more than asked, the same for a
 * seed; problems without a pair are counted; held-out problems are never trained on and have several right answers; what imitates gets
 * correct ones only. */
#include "example_rows.h"

#include <stdlib.h>

typedef struct seen_pair {
    char prompt[T_MOST], chosen[T_MOST], rejected[T_MOST];
} seen_pair;

/* All pairs of a split, in the order of their numbers. The caller frees. */
static seen_pair *read_pairs(const dataset *d, split s, int64_t T, uint64_t *n) {
    *n = dataset_n_examples(d, s);
    seen_pair *all = calloc(*n + 1, sizeof *all);
    for (uint64_t i = 0; i < rows_of(d, s); i++) {
        full_row r;
        get_row(d, s, i, &r);
        int64_t at = 0, slots = count_slots(&r, T);
        for (int64_t slot = 0; slot < slots; slot++) {
            seen_part parts[2];
            for (int k = 0; k < 2; k++) at = read_part(&r, T, at, slot, &parts[k]);
            assert_int_equal(parts[0].part, PART_CHOSEN);
            assert_int_equal(parts[1].part, PART_REJECTED);
            assert_string_equal(parts[0].prompt, parts[1].prompt);
            seen_pair *p = &all[r.examples[slot]];
            snprintf(p->prompt, T_MOST, "%s", parts[0].prompt);
            snprintf(p->chosen, T_MOST, "%s", parts[0].response);
            snprintf(p->rejected, T_MOST, "%s", parts[1].response);
        }
        check_padding(&r, T, at);
    }
    return all;
}

static int compare_pairs(const void *a, const void *b) { return memcmp(a, b, sizeof(seen_pair)); }

static int64_t wrong_at(const seen_pair *p, bool rejected, int64_t digits) {
    char text[2 * T_MOST];
    int32_t tokens[2 * T_MOST];
    int n = snprintf(text, sizeof text, "%s%s", p->prompt, rejected ? p->rejected : p->chosen);
    for (int i = 0; i < n; i++) tokens[i] = text[i];
    return data_solution_wrong_at(tokens, n, digits);
}

static bool in_operands(const char *a, const char *b, int64_t digits) { /* the same numbers, in any order */
    bool used[3] = {0};
    for (int i = 0; i < 3; i++) {
        int k = 0;
        while (k < 3 && (used[k] || memcmp(a + i * (digits + 1), b + k * (digits + 1), (size_t)digits) != 0)) k++;
        if (k == 3) return false;
        used[k] = true;
    }
    return true;
}

static void built_in_pairs_have_one_wrong_step(void **state) {
    for (int64_t digits = 1; digits <= 3; digits++) {
        data_options o = {.kind = DATA_SOLUTIONS,
                          .source = "builtin:solutions",
                          .seq_len = 256,
                          .difficulty = digits,
                          .pack = true,
                          .seed = 5};
        dataset *d = open_data(o);
        uint64_t n, n_eval;
        seen_pair *train = read_pairs(d, SPLIT_TRAIN, 256, &n), *eval = read_pairs(d, SPLIT_EVAL, 256, &n_eval);
        assert_true(n > 2000 && n_eval > 100);
        int64_t first_step = 0, n_prompt = 3 * (digits + 1);
        for (uint64_t i = 0; i < n + n_eval; i++) {
            const seen_pair *p = i < n ? &train[i] : &eval[i - n];
            int64_t at = wrong_at(p, true, digits);
            assert_int_equal(wrong_at(p, false, digits), -1);
            assert_true(at > n_prompt && at < n_prompt + (int64_t)strlen(p->rejected));
            first_step += at < n_prompt + 3 * digits + 5;
        }
        assert_true(first_step * 5 > 2 * (int64_t)(n + n_eval) &&
                    first_step * 5 < 3 * (int64_t)(n + n_eval)); /* half */
        for (uint64_t i = 0; i < n; i += 7)
            for (uint64_t k = 0; k < n_eval; k += 5) assert_false(in_operands(train[i].prompt, eval[k].prompt, digits));
        qsort(train, n, sizeof *train, compare_pairs);
        uint64_t same = 1, most = 1;
        for (uint64_t i = 1; i < n; i++) {
            assert_true(compare_pairs(&train[i - 1], &train[i]) != 0);
            same = strcmp(train[i - 1].prompt, train[i].prompt) == 0 ? same + 1 : 1;
            most = MAX(most, same);
        }
        assert_int_equal(most, PAIRS_PER_PROBLEM);
        free(train);
        free(eval);
        dataset_close(d);
    }
}

static uint64_t hash_rows(data_options o) {
    dataset *d = open_data(o);
    uint64_t hash = dataset_fingerprint(d);
    for (uint64_t i = 0; i < 20; i++) {
        full_row r;
        get_row(d, SPLIT_TRAIN, i, &r);
        for (int t = 0; t < o.seq_len; t++) hash = rng_u64(hash, (uint64_t)(r.tokens[t] * 7 + r.segments[t]));
    }
    dataset_close(d);
    return hash;
}

static void write_solutions(void) {
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < 40;
         i++) { /* 4 correct and 4 wrong of each, of 4 lengths; difficulty 1 has three of four problems */
        for (int k = 0; k < 8; k++)
            fprintf(f,
                    "{\"instruction\": \"p%d\", \"input\": \"\", \"output\": \"%.*s%d\", \"is_correct\": %s, "
                    "\"task_id\": %d, \"difficulty\": %d}\n",
                    i, 4 << k % 4, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", k, k < 4 ? "true" : "false", i,
                    i % 4 ? 1 : 2);
    }
    fclose(f);
}

static void the_seed_decides_the_pairs_and_threads_and_the_cache_do_not(void **state) {
    data_options o = {.kind = DATA_SOLUTIONS,
                      .source = path,
                      .seq_len = 96,
                      .pack = true,
                      .seed = 1,
                      .n_threads = 1,
                      .pairs_per_problem = 3,
                      .eval_fraction = 0.1};
    write_solutions();
    uint64_t first = hash_rows(o);
    assert_true(first == hash_rows(o));
    o.n_threads = 3;
    assert_true(first == hash_rows(o));
    o.cache = path_of("cache");
    assert_true(first == hash_rows(o));
    assert_true(first == hash_rows(o)); /* from the cache */
    data_report report;
    dataset *d = open_data(o);
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_cached, 1);
    assert_int_equal(report.n_problems, 40);
    dataset_close(d);
    o.seed = 2;
    assert_true(first != hash_rows(o));
}

/* Lengths of both solutions of a pair are alike where a problem has such; all problems of a difficulty count alike. */
static void pairs_are_balanced(void **state) {
    data_options o = {.kind = DATA_SOLUTIONS, .seq_len = 128, .pack = true, .pairs_per_problem = 4, .max_pairs = 64};
    write_solutions();
    dataset *d = open_data(o);
    data_report report;
    uint64_t n, counts[2][4] = {{0}};
    dataset_report(d, SPLIT_TRAIN, &report);
    seen_pair *all = read_pairs(d, SPLIT_TRAIN, 128, &n);
    assert_int_equal(n, 64);
    assert_int_equal(report.n_unused_pairs, 160 - 64);
    for (uint64_t i = 0; i < n; i++) {
        size_t length = strlen(all[i].chosen);
        int bin = length < 8 ? 0 : length < 16 ? 1 : length < 32 ? 2 : 3;
        assert_int_equal(length, strlen(all[i].rejected));
        counts[atoi(all[i].prompt + 1) % 4 ? 0 : 1][bin]++;
    }
    for (int k = 0; k < 2; k++)
        for (int bin = 0; bin < 4; bin++) assert_int_equal(counts[k][bin], 8);
    free(all);
    dataset_close(d);
    o.max_pairs = 0, o.pairs_per_problem = 16;
    d = open_data(o);
    assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 40 * 16); /* every correct one with every wrong one */
    all = read_pairs(d, SPLIT_TRAIN, 128, &n);
    qsort(all, n, sizeof *all, compare_pairs);
    for (uint64_t i = 1; i < n; i++) assert_true(compare_pairs(&all[i - 1], &all[i]) != 0);
    free(all);
    dataset_close(d);
    o.eval_fraction = 0.03; /* 19 pairs of 640: two whole problems are held out */
    d = open_data(o);
    assert_int_equal(dataset_n_examples(d, SPLIT_EVAL), 32);
    dataset_close(d);
}

#define LINE(prompt, output, correct, task)                                                                         \
    "{\"instruction\": \"" prompt "\", \"output\": \"" output "\", \"is_correct\": " correct ", \"task_id\": " task \
    "}\n"

static void problems_without_a_pair_are_counted(void **state) {
    data_options o = {.kind = DATA_SOLUTIONS, .seq_len = 64, .pack = true};
    write_text(path, LINE("a", "x", "true", "1") LINE("a", "y", "false", "\"1\"") /* 1 and "1" are one problem */
               LINE("a", "x", "true", "1")                                        /* a second time */
               LINE("b", "x", "true", "2") LINE("b", "y", "true", "2") LINE("c", "z", "false", "3")
                   LINE("d", "x", "true", "4") LINE("e", "y", "false", "4")); /* another prompt: another problem */
    dataset *d = open_data(o);
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 1);
    assert_int_equal(report.n_problems, 5);
    assert_int_equal(report.n_unpaired, 4);
    dataset_close(d);
    o.kind = DATA_TEXT;
    d = open_data(o);
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_documents, 5);
    assert_int_equal(report.n_incorrect, 3);
    dataset_close(d);
    o = (data_options){.source = "builtin:solutions", .seq_len = 64, .difficulty = 1, .pack = true};
    d = open_data(o);
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_documents, 3600 * 3);
    for (uint64_t i = 0; i < 50; i++) {
        full_row r;
        get_row(d, SPLIT_TRAIN, i, &r);
        assert_int_equal(data_solution_wrong_at(r.tokens, 64, 1), -1);
    }
    dataset_close(d);
}

/* Six orders of the numbers, fewer where numbers are equal, and nothing else. */
static void check_right_answers(const dataset *d, uint64_t index, const strbuf *prompt, const strbuf *answer,
                                int64_t digits) {
    seen_pair p = {0};
    strbuf found;
    strbuf_init(&found);
    snprintf(p.prompt, T_MOST, "%s", prompt->text);
    for (size_t n = 0; n <= answer->length; n++) { /* every beginning of a right answer is that of one */
        found.length = 0;
        assert_true(dataset_answer(d, index, answer->text, n, &found));
        assert_int_equal(found.length, answer->length);
        assert_memory_equal(found.text, answer->text, n);
        snprintf(p.chosen, T_MOST, "%s", found.text);
        assert_int_equal(wrong_at(&p, false, digits), -1);
    }
    for (int64_t first = 0; first < 3; first++) { /* begin with any of the numbers */
        found.length = 0;
        assert_true(dataset_answer(d, index, prompt->text + first * (digits + 1), (size_t)digits, &found));
    }
    char wrong[T_MOST];
    snprintf(wrong, sizeof wrong, "%s", answer->text);
    for (size_t i = 0; i < answer->length; i++) {
        wrong[i] = 'x';
        assert_false(dataset_answer(d, index, wrong, i + 1, &found));
        wrong[i] = answer->text[i];
    }
    assert_false(dataset_answer(d, index, "", T_MOST, &found)); /* longer than any */
    strbuf_fini(&found);
}

static void problems_are_held_out_and_have_several_right_answers(void **state) {
    for (int64_t digits = 1; digits <= 2; digits++) {
        dataset *d =
            open_data((data_options){.source = "builtin:solutions", .seq_len = 64, .difficulty = digits, .pack = true});
        strbuf prompt, answer;
        uint64_t n = 0;
        strbuf_init(&prompt);
        strbuf_init(&answer);
        for (; dataset_problem(d, n, &prompt, &answer); n++) {
            if (n < 20) check_right_answers(d, n, &prompt, &answer, digits);
            for (uint64_t i = 0; i < 20; i++) { /* in any order of its numbers */
                full_row r;
                char text[T_MOST] = {0};
                get_row(d, SPLIT_TRAIN, i, &r);
                for (int64_t k = 0; k < 3 * (digits + 1); k++) text[k] = (char)r.tokens[k];
                assert_false(in_operands(prompt.text, text, digits));
            }
            prompt.length = answer.length = 0;
        }
        assert_int_equal(n, 400);
        assert_false(dataset_answer(d, n, "", 0, &answer));
        strbuf_fini(&prompt);
        strbuf_fini(&answer);
        dataset_close(d);
    }
    assert_true(data_source_has_problems("builtin:solutions"));
    dataset *one = open_data((data_options){.source = "builtin:arithmetic", .seq_len = 64, .difficulty = 1});
    assert_false(dataset_answer(one, 0, "", 0, &(strbuf){0})); /* the one of dataset_problem */
    dataset_close(one);
}

static void what_is_no_solution_is_named(void **state) {
    static const struct {
        data_kind kind;
        const char *text, *error;
    } cases[] = {
        {DATA_SOLUTIONS, LINE("a", "x", "1", "1"), ":1:|'is_correct'|a number|true or false"},
        {DATA_SOLUTIONS, LINE("a", "x", "\"true\"", "1"), "'is_correct'|a string|true or false"},
        {DATA_SOLUTIONS, LINE("a", "x", "null", "1"), "'is_correct'|null|true or false"},
        {DATA_TEXT, LINE("a", "x", "1", "1"), "'is_correct'|a number|true or false"},
        {DATA_SOLUTIONS, "{\"prompt\": \"a\", \"completion\": \"b\", \"task_id\": 1}",
         "'is_correct'|nothing|data.correct_column"},
        {DATA_SOLUTIONS, "{\"prompt\": \"a\", \"completion\": \"b\", \"is_correct\": true}",
         "'task_id'|nothing|data.task_column"},
        {DATA_SOLUTIONS, LINE("a", "x", "true", "1.5"), "'task_id'|a number|name or the number"},
        {DATA_SOLUTIONS, LINE("a", "x", "true", "\"\""), "'task_id'|a string"},
        {DATA_SOLUTIONS,
         "{\"prompt\": \"a\", \"completion\": \"b\", \"task_id\": 1, \"is_correct\": true, \"difficulty\": []}",
         "'difficulty'|a list|a word or a number"},
        {DATA_SOLUTIONS, "{\"text\": \"a\", \"task_id\": 1, \"is_correct\": true}", "'text'|without a prompt"},
        {DATA_SOLUTIONS, LINE("", "x", "true", "1"), "no token before it"},
        {DATA_SOLUTIONS, LINE("a", "x", "true", "1") LINE("a", "y", "true", "1") LINE("b", "y", "false", "2"),
         "3 solutions (2 correct) of 2 problems|at least one pair|task_id"},
        {DATA_SOLUTIONS, LINE("a", "x", "true", "1") LINE("a", "x", "false", "1"), ":2:|wrong here|correct in line 1"},
        {DATA_TEXT, LINE("a", "x", "false", "1"), "1 records|not correct (is_correct)"},
    };
    dataset *d;
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        write_text(path, cases[i].text);
        expect_error(dataset_open(&d, &(data_options){.kind = cases[i].kind, .seq_len = 64, .source = path}), ERR_INPUT,
                     cases[i].error);
    }
    data_options o = {.kind = DATA_SOLUTIONS, .seq_len = 64, .source = "builtin:arithmetic", .difficulty = 2};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "data.source|builtin:solutions|is_correct");
    o.source = "builtin:solutions", o.seq_len = 60;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "60 tokens|at least 64");
    o = (data_options){.kind = DATA_PAIRS, .seq_len = 64, .source = path, .records = {.correct_column = "x"}};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "data.correct_column|'x'");
    write_text(path, "{\"q\": \"a\", \"s\": \"b\", \"good\": true, \"id\": 1}\n"
                     "{\"q\": \"a\", \"s\": \"c\", \"good\": false, \"id\": 1}\n");
    o = (data_options){.kind = DATA_SOLUTIONS,
                       .seq_len = 64,
                       .records = {.prompt_column = "q",
                                   .response_column = "s",
                                   .correct_column = "good",
                                   .task_column = "id",
                                   .difficulty_column = "none"}};
    d = open_data(o);
    assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 1);
    dataset_close(d);
}

static int open_all(void **state) {
    if (test_dir_open(state) != 0) return -1;
    snprintf(path, sizeof path, "%s", path_of("solutions.jsonl"));
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in_pairs_have_one_wrong_step),
        cmocka_unit_test(the_seed_decides_the_pairs_and_threads_and_the_cache_do_not),
        cmocka_unit_test(pairs_are_balanced),
        cmocka_unit_test(problems_without_a_pair_are_counted),
        cmocka_unit_test(problems_are_held_out_and_have_several_right_answers),
        cmocka_unit_test(what_is_no_solution_is_named),
    };
    return cmocka_run_group_tests(tests, open_all, test_dir_close);
}
