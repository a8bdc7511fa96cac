/* test_evaluate.c - exact match is what greedy decoding would give, also where a problem has several right answers: the share of problems that a
 * policy solves that is known beforehand, and the answers that are shown. */
#include "must.h"
#include "train/evaluate.h"

#include <stdlib.h>
#include <string.h>

enum { T = 80, ROWS = 3, PROMPT = 6, ANSWER = 16 }; /* of solutions with one digit */

static void put(char *at, int number) { at[0] = (char)('0' + number % 10), at[1] = (char)('0' + number / 10); }

/* The policy: adds the numbers in an order that the problem chooses; every third problem goes wrong at a token that it chooses. */
static bool solve(const int32_t *prompt, char out[ANSWER + 1]) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    int x[3], chosen = 0, sum;
    for (int i = 0; i < 3; i++) x[i] = prompt[2 * i] - '0', chosen = 7 * chosen + x[i];
    const int *order = orders[chosen % 6];
    sum = x[order[0]];
    for (int step = 0; step < 2; step++, out += ANSWER / 2) {
        put(out, sum);
        out[2] = '+', out[3] = (char)('0' + x[order[step + 1]]), out[4] = '=';
        put(out + 5, sum += x[order[step + 1]]);
        out[7] = ';', out[8] = 0;
    }
    if (chosen % 3) return true;
    out[chosen / 3 % ANSWER - ANSWER] = 'x';
    return false;
}

static int runs;

/* The most likely next token at every place of every problem, as the policy would give it behind these tokens. */
static status forward(evaluator *v) {
    runs++;
    int64_t length = v->p->request.seq_len;
    for (int64_t i = 0; i < ROWS * length; i++) {
        int64_t begin = i / length * length + v->doc_start[i],
                n = i + 1 - begin - PROMPT; /* tokens of the answer so far */
        char answer[ANSWER + 1];
        v->argmax[i] = '?', v->losses[i] = 0;
        if (n < 0 || n > ANSWER || v->tokens[begin] < '0' || v->tokens[begin] > '9') continue;
        solve(v->tokens + begin, answer);
        bool follows = true;
        for (int64_t k = 0; k < n; k++) follows &= v->tokens[begin + PROMPT + k] == answer[k];
        if (follows) v->argmax[i] = n == ANSWER ? TOKEN_EOS : answer[n];
    }
    return OK;
}

static status go_on(void *context, const char *what, int64_t done, int64_t n) { return OK; }

static void see(void *context, const char *prompt, const char *expected, const char *got) {
    int *counts = context;
    int32_t tokens[PROMPT];
    char answer[ANSWER + 1];
    for (int i = 0; i < PROMPT; i++) tokens[i] = prompt[i];
    bool right = solve(tokens, answer);
    assert_string_equal(got, answer);
    assert_true((strcmp(expected, got) == 0) == right);
    counts[right]++;
}

/* An evaluator of rows of so many tokens, without a program behind it. */
typedef struct fixture {
    plan p;
    int32_t tokens[ROWS * T], targets[ROWS * T], doc_start[ROWS * T], argmax[ROWS * T];
    float losses[ROWS * T];
    dataset *d;
    evaluator v;
} fixture;

static void fixture_open(fixture *f, int64_t seq_len) {
    f->p.request = (plan_request){.seq_len = seq_len, .choice = {.micro_batch = ROWS}};
    must(dataset_open(&f->d,
                      &(data_options){.source = "builtin:solutions", .seq_len = T, .difficulty = 1, .pack = true}));
    f->v =
        (evaluator){forward, NULL, &f->p, f->d, f->tokens, f->targets, f->doc_start, f->argmax, f->losses, go_on, NULL};
}

static void exact_match_counts_every_right_answer(void **state) {
    fixture f;
    fixture_open(&f, T);
    int64_t right = 0, n_problems = 0, n_done;
    strbuf prompt, answer;
    strbuf_init(&prompt);
    strbuf_init(&answer);
    for (; dataset_problem(f.d, (uint64_t)n_problems, &prompt, &answer); n_problems++) {
        int32_t ids[PROMPT];
        char given[ANSWER + 1];
        for (int i = 0; i < PROMPT; i++) ids[i] = prompt.text[i];
        right += solve(ids, given);
        prompt.length = answer.length = 0;
    }
    double share;
    must(evaluator_exact_match(&f.v, n_problems + 5, &n_done, &share)); /* no more than there are */
    assert_int_equal(n_done, n_problems);
    assert_true(right > n_problems / 2 && right < n_problems && share == (double)right / (double)n_problems);
    int64_t batches = divide_up(n_problems, ROWS * (T / (PROMPT + ANSWER + 1)));
    assert_true(runs > batches && runs <= 6 * batches); /* not one for each token */
    must(evaluator_exact_match(&f.v, 0, &n_done, &share));
    assert_true(n_done == 0 && share != share);
    int shown[2] = {0};
    must(evaluator_examples(&f.v, 30, &(train_observer){.context = shown, .on_example = see}));
    assert_int_equal(shown[0] + shown[1], 30);
    assert_true(shown[0] > 0 && shown[1] > 0);
    strbuf_fini(&prompt);
    strbuf_fini(&answer);
    dataset_close(f.d);
}

/* A row that is as long as a problem holds it; one token less, and none can be asked. */
static void a_problem_may_fill_its_row(void **state) {
    enum { PROBLEM = PROMPT + ANSWER + 1, N = 30 };
    for (int64_t length = PROBLEM; length >= PROBLEM - 1; length--) {
        fixture f;
        fixture_open(&f, length);
        int64_t n = length == PROBLEM ? N : 0, n_done;
        int shown[2] = {0};
        double share;
        must(evaluator_exact_match(&f.v, N, &n_done, &share));
        assert_int_equal(n_done, n);
        must(evaluator_examples(&f.v, N, &(train_observer){.context = shown, .on_example = see}));
        assert_int_equal(shown[0] + shown[1], n);
        if (n) assert_true(share == (double)shown[1] / N);
        dataset_close(f.d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_match_counts_every_right_answer),
                                       cmocka_unit_test(a_problem_may_fill_its_row)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
