/* evaluate.c - run the evaluation section on held-out rows and problems. */
#include "train/evaluate.h"
#include "train/batch.h"

#include <math.h>
#include <stdlib.h>

static int64_t batch_of(const evaluator *v) { return v->p->request.choice.micro_batch; }
static int64_t length_of(const evaluator *v) { return v->p->request.seq_len; }
static size_t n_tokens(const plan *p) { return (size_t)(p->request.choice.micro_batch * p->request.seq_len); }

uint64_t evaluator_row_bytes(const plan_request *r) { return 5 * (uint64_t)r->seq_len * sizeof(int32_t); }

void evaluator_init(evaluator *v, const task_host *h) {
    *v = (evaluator){.e = h->exec, .p = h->plan, .d = h->data, .pause = h->pause, .context = h->pause_context};
    size_t n = n_tokens(h->plan);
    v->tokens = mem_alloc(n * sizeof *v->tokens);
    v->targets = mem_alloc(n * sizeof *v->targets);
    v->doc_start = mem_alloc(n * sizeof *v->doc_start);
    v->argmax = mem_alloc(n * sizeof *v->argmax);
    v->losses = mem_alloc(n * sizeof *v->losses);
}

void evaluator_fini(evaluator *v) {
    free(v->tokens);
    free(v->targets);
    free(v->doc_start);
    free(v->argmax);
    free(v->losses);
}

static status run(evaluator *v, const char *what, int64_t done, int64_t n) {
    TRY(v->pause(v->context, what, done, n));
    TRY(batch_write(v->e, v->p, &v->p->step.inputs[0],
                    &(batch_rows){.tokens = v->tokens, .targets = v->targets, .doc_start = v->doc_start}));
    TRY(exec_run(v->e, SECTION_EVAL));
    batch_read(v->e, v->p, v->p->model.eval_losses, v->losses);
    batch_read(v->e, v->p, v->p->model.eval_argmax, v->argmax);
    return exec_check(v->e);
}

/* Every token is its own document and has no target: padding. */
static void clear_row(evaluator *v, int64_t row, int32_t eos) {
    for (int64_t t = 0; t < length_of(v); t++) {
        int64_t i = row * length_of(v) + t;
        v->tokens[i] = eos;
        v->targets[i] = -1;
        v->doc_start[i] = (int32_t)t;
    }
}

status evaluator_loss(evaluator *v, int64_t n_rows, double *loss) {
    double sum = 0, count = 0;
    int64_t T = length_of(v);
    data_report report;
    dataset_report(v->d, SPLIT_EVAL, &report);
    if (report.rows_per_epoch) n_rows = MIN(n_rows, (int64_t)report.rows_per_epoch);
    for (int64_t row = 0; row < n_rows;) {
        int64_t first = row;
        for (int64_t b = 0; b < batch_of(v); b++, row++) {
            if (row < n_rows)
                dataset_row(v->d, SPLIT_EVAL, (uint64_t)row, v->tokens + b * T, v->targets + b * T,
                            v->doc_start + b * T);
            else clear_row(v, b, MAX(tokenizer_eos(dataset_tokenizer(v->d)), 0)); /* any id: it is not used */
        }
        TRY(run(v, "row", first, n_rows));
        for (size_t i = 0; i < n_tokens(v->p); i++)
            if (v->targets[i] >= 0) sum += v->losses[i], count++;
    }
    *loss = count ? sum / count : NAN;
    return OK;
}

/* A problem as tokens: prompt, answer, end of text. */
typedef struct problem {
    strbuf prompt, answer;
    int32_t *tokens;
    size_t n_tokens, capacity, n_prompt;
} problem;

static void problem_drop(problem *q) {
    strbuf_fini(&q->prompt);
    strbuf_fini(&q->answer);
    free(q->tokens);
}

static bool problem_read(problem *q, const evaluator *v, uint64_t index) {
    const tokenizer *t = dataset_tokenizer(v->d);
    if (!dataset_problem(v->d, index, &q->prompt, &q->answer)) return false;
    if (tokenizer_encode(t, q->prompt.text, q->prompt.length, &q->tokens, &q->n_tokens, &q->capacity) != OK)
        return false;
    q->n_prompt = q->n_tokens;
    if (tokenizer_encode(t, q->answer.text, q->answer.length, &q->tokens, &q->n_tokens, &q->capacity) != OK)
        return false;
    q->tokens = array_grow(q->tokens, &q->capacity, q->n_tokens + 1, sizeof *q->tokens);
    q->tokens[q->n_tokens++] = tokenizer_eos(t);
    return true;
}

/* False: there are no more, and q is empty. */
static bool problem_get(problem *q, const evaluator *v, uint64_t index) {
    *q = (problem){0};
    strbuf_init(&q->prompt);
    strbuf_init(&q->answer);
    if (problem_read(q, v, index)) return true;
    problem_drop(q);
    return false;
}

/* Writes the problem as one document of a row, from position `at`; only the answer has targets. */
static void problem_pose(const problem *q, evaluator *v, int64_t row, int64_t at) {
    for (size_t k = 0; k < q->n_tokens; k++) {
        int64_t i = row * length_of(v) + at + (int64_t)k;
        v->tokens[i] = q->tokens[k];
        v->doc_start[i] = (int32_t)at;
        v->targets[i] = k + 1 >= q->n_prompt && k + 1 < q->n_tokens ? q->tokens[k + 1] : -1;
    }
}

/* Counts the documents of the batch with every trained position predicted correctly. */
static int64_t count_solved(const evaluator *v, int64_t row) {
    int64_t solved = 0, T = length_of(v);
    for (int64_t t = 0; t < T;) {
        int64_t start = t;
        bool any = false, right = true;
        for (; t < T && v->doc_start[row * T + t] == start; t++) {
            int64_t i = row * T + t;
            if (v->targets[i] < 0) continue;
            any = true;
            right &= v->targets[i] == v->argmax[i];
        }
        solved += any && right;
        if (t == start) t++;
    }
    return solved;
}

status evaluator_exact_match(evaluator *v, int64_t n, int64_t *n_done, double *share) {
    int64_t T = length_of(v), B = batch_of(v), solved = 0, next = 0;
    int32_t eos = tokenizer_eos(dataset_tokenizer(v->d));
    status rc = OK;
    problem q;
    *n_done = 0;
    bool more = n > 0 && problem_get(&q, v, 0);
    while (more) {
        int64_t packed = 0;
        for (int64_t b = 0; b < B; b++) {
            clear_row(v, b, eos);
            for (int64_t at = 0; more && at + (int64_t)q.n_tokens <= T;) {
                problem_pose(&q, v, b, at);
                at += (int64_t)q.n_tokens;
                packed++;
                problem_drop(&q);
                more = ++next < n && problem_get(&q, v, (uint64_t)next);
            }
        }
        if (packed == 0) break; /* a problem longer than a row is skipped */
        TRY_GOTO(rc, run(v, "problem", *n_done, n), done);
        for (int64_t b = 0; b < B; b++) solved += count_solved(v, b);
        *n_done += packed;
    }
    *share = *n_done ? (double)solved / (double)*n_done : NAN;
done:
    if (more) problem_drop(&q);
    return rc;
}

static status solve(evaluator *v, const problem *q, const train_observer *o, int64_t index, int64_t n) {
    const tokenizer *t = dataset_tokenizer(v->d);
    int64_t T = length_of(v), at = (int64_t)q->n_prompt;
    for (int64_t b = 0; b < batch_of(v); b++) clear_row(v, b, tokenizer_eos(t));
    for (int64_t i = 0; i < at; i++) v->tokens[i] = q->tokens[i], v->doc_start[i] = 0;
    for (; at < T && at < (int64_t)q->n_tokens + 4; at++) { /* stop after a few tokens more than needed */
        TRY(run(v, "example", index, n));
        int32_t token = v->argmax[at - 1];
        if (token == tokenizer_eos(t)) break;
        v->tokens[at] = token;
        v->doc_start[at] = 0;
    }
    strbuf got;
    strbuf_init(&got);
    strbuf_add(&got, "");
    if (o->on_example && tokenizer_decode(t, v->tokens + q->n_prompt, (size_t)at - q->n_prompt, &got) == OK)
        o->on_example(o->context, q->prompt.text, q->answer.text, got.text);
    strbuf_fini(&got);
    return OK;
}

status evaluator_examples(evaluator *v, int64_t n, const train_observer *o) {
    status rc = OK;
    problem q;
    for (int64_t k = 0; rc == OK && k < n && problem_get(&q, v, (uint64_t)k); k++) {
        bool fits = (int64_t)q.n_tokens <= length_of(v);
        if (fits) rc = solve(v, &q, o, k, n);
        problem_drop(&q);
        if (!fits) break;
    }
    return rc;
}
