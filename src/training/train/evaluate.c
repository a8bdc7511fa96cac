/* evaluate.c - run the evaluation section on held-out rows and problems. */
#include "train/evaluate.h"
#include "train/batch.h"

#include <math.h>
#include <stdlib.h>

static int64_t batch_of(const evaluator *v) { return v->p->request.choice.micro_batch; }
static int64_t length_of(const evaluator *v) { return v->p->request.seq_len; }
static size_t n_tokens(const plan *p) { return (size_t)(p->request.choice.micro_batch * p->request.seq_len); }

uint64_t evaluator_row_bytes(const plan_request *r) { return 5 * (uint64_t)r->seq_len * sizeof(int32_t); }

static status run_section(evaluator *v) {
    TRY(batch_write(v->e, v->p, &v->p->step.inputs[0],
                    &(batch_rows){.tokens = v->tokens, .targets = v->targets, .doc_start = v->doc_start}));
    TRY(exec_run(v->e, SECTION_EVAL));
    batch_read(v->e, v->p, v->p->net.eval_losses, v->losses);
    batch_read(v->e, v->p, v->p->net.eval_argmax, v->argmax);
    return exec_check(v->e);
}

void evaluator_init(evaluator *v, const task_host *h) {
    *v = (evaluator){.forward = run_section,
                     .e = h->exec,
                     .p = h->plan,
                     .d = h->data,
                     .pause = h->pause,
                     .context = h->pause_context};
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
    return v->forward(v);
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
    uint64_t index;
    int64_t begin; /* where it stands in the batch; -1: it has been judged */
} problem;

static void problem_drop(problem *q) {
    strbuf_fini(&q->prompt);
    strbuf_fini(&q->answer);
    free(q->tokens);
}

static bool problem_encode_answer(problem *q, const tokenizer *t) {
    q->n_tokens = q->n_prompt;
    if (tokenizer_encode(t, q->answer.text, q->answer.length, &q->tokens, &q->n_tokens, &q->capacity) != OK)
        return false;
    q->tokens = array_grow(q->tokens, &q->capacity, q->n_tokens + 1, sizeof *q->tokens);
    q->tokens[q->n_tokens++] = tokenizer_eos(t);
    return true;
}

static bool problem_read(problem *q, const evaluator *v) {
    const tokenizer *t = dataset_tokenizer(v->d);
    if (!dataset_problem(v->d, q->index, &q->prompt, &q->answer)) return false;
    if (tokenizer_encode(t, q->prompt.text, q->prompt.length, &q->tokens, &q->n_tokens, &q->capacity) != OK)
        return false;
    q->n_prompt = q->n_tokens;
    return problem_encode_answer(q, t);
}

/* False: there are no more, and q is empty. */
static bool problem_get(problem *q, const evaluator *v, uint64_t index) {
    *q = (problem){.index = index};
    strbuf_init(&q->prompt);
    strbuf_init(&q->answer);
    if (problem_read(q, v)) return true;
    problem_drop(q);
    return false;
}

/* Writes the problem as one document of a row, from q->begin in the batch on; only the answer has targets. */
static void problem_pose(const problem *q, evaluator *v) {
    for (size_t k = 0; k < q->n_tokens; k++) {
        int64_t i = q->begin + (int64_t)k;
        v->tokens[i] = q->tokens[k];
        v->doc_start[i] = (int32_t)(q->begin % length_of(v));
        v->targets[i] = k + 1 >= q->n_prompt && k + 1 < q->n_tokens ? q->tokens[k + 1] : -1;
    }
}

/* Fills the batch with problems from `next` on; returns how many. */
static size_t pose_problems(evaluator *v, problem **room, size_t *capacity, int64_t next, int64_t n) {
    size_t count = 0;
    int64_t T = length_of(v), at = T, row = -1;
    for (int64_t b = 0; b < batch_of(v); b++) clear_row(v, b, tokenizer_eos(dataset_tokenizer(v->d)));
    for (; next < n; next++, count++) {
        problem q;
        if (!problem_get(&q, v, (uint64_t)next)) return count;
        if (at + (int64_t)q.n_tokens > T) at = 0, row++;
        if (row == batch_of(v) || (int64_t)q.n_tokens > T) { /* one that is longer than a row ends the evaluation */
            problem_drop(&q);
            return count;
        }
        q.begin = row * T + at;
        problem_pose(&q, v);
        at += (int64_t)q.n_tokens;
        *room = array_grow(*room, capacity, count + 1, sizeof **room);
        (*room)[count] = q;
    }
    return count;
}

/* Greedy decoding leaves the answer at token k. Poses another right answer, if one begins with what greedy decoding gives up to there. */
static bool pose_other_answer(problem *q, evaluator *v, size_t k) {
    const tokenizer *t = dataset_tokenizer(v->d);
    size_t n = q->n_tokens;
    strbuf begun;
    q->tokens[k] = v->argmax[q->begin + (int64_t)k - 1];
    if (q->tokens[k] == tokenizer_eos(t)) return false; /* all answers are as long as this one */
    strbuf_init(&begun);
    q->answer.length = 0;
    bool found = tokenizer_decode(t, q->tokens + q->n_prompt, k + 1 - q->n_prompt, &begun) == OK &&
                 dataset_answer(v->d, q->index, begun.text, begun.length, &q->answer) && problem_encode_answer(q, t);
    strbuf_fini(&begun);
    if (!found) return false;
    ASSERT(q->n_tokens == n);
    problem_pose(q, v);
    return true;
}

/* Judges a problem by the last run; true: it is to be run again, with another answer. */
static bool problem_judge(problem *q, evaluator *v, int64_t *n_solved) {
    size_t k = q->n_prompt;
    if (q->begin < 0) return false;
    while (k < q->n_tokens && v->argmax[q->begin + (int64_t)k - 1] == q->tokens[k]) k++;
    if (k < q->n_tokens && pose_other_answer(q, v, k)) return true;
    *n_solved += k == q->n_tokens;
    q->begin = -1;
    return false;
}

status evaluator_exact_match(evaluator *v, int64_t n, int64_t *n_done, double *share) {
    int64_t solved = 0;
    size_t capacity = 0, count;
    problem *posed = NULL;
    status rc = OK;
    *n_done = 0;
    while ((count = pose_problems(v, &posed, &capacity, *n_done, n)) > 0) {
        for (bool again = true; rc == OK && again;) {
            rc = run(v, "problem", *n_done, n);
            again = false;
            for (size_t i = 0; rc == OK && i < count; i++) again |= problem_judge(&posed[i], v, &solved);
        }
        for (size_t i = 0; i < count; i++) problem_drop(&posed[i]);
        if (rc != OK) break;
        *n_done += (int64_t)count;
    }
    *share = *n_done ? (double)solved / (double)*n_done : NAN;
    free(posed);
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
    if (o->on_example && tokenizer_decode(t, v->tokens + q->n_prompt, (size_t)at - q->n_prompt, &got) == OK) {
        strbuf other; /* another right answer is right */
        strbuf_init(&other);
        bool is_other = dataset_answer(v->d, q->index, got.text, got.length, &other);
        o->on_example(o->context, q->prompt.text, is_other ? other.text : q->answer.text, got.text);
        strbuf_fini(&other);
    }
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
