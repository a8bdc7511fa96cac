/* task_critic.c - learn to tell correct solutions from wrong ones: a value for every token.
 *
 * Rows are pairs of a correct and a wrong solution of one problem (data.h). The program computes the loss of whole solutions
 * (CRITIC) and leaves its sums; held-out pairs are judged on the host, by the same text (program/critic.h), from the values of
 * their tokens. The only state is the position in the data. */
#include "train/batch.h"
#include "train/task.h"

#include <math.h>
#include <stdlib.h>

_Static_assert((int)PART_CHOSEN == (int)PREFERENCE_CHOSEN && (int)PART_REJECTED == (int)PREFERENCE_REJECTED &&
                   (int)PART_STRIDE == (int)PREFERENCE_PARTS,
               "data and program number the parts of an example alike");

typedef struct critic_task {
    task_host host;
    loader *rows; /* NULL: not begun */
    /* one micro-batch, for evaluation and for the search for a fault */
    int32_t *tokens, *targets, *doc_start, *segments;
    float *values;
    critic_part *parts; /* of one row */
} critic_task;

enum { MEAN_POS, MEAN_NEG, MARGIN, ACCURACY, VAL_MEAN_POS, VAL_MEAN_NEG, VAL_MARGIN, VAL_ACCURACY, N_METRICS };
static const task_metric metrics[N_METRICS] = {
    [MEAN_POS] = {"value/mean_pos", NULL, "mean value of the tokens of correct solutions, mean over solutions"},
    [MEAN_NEG] = {"value/mean_neg", NULL, "the same of wrong solutions"},
    [MARGIN] = {"value/margin", "margin", "value/mean_pos less value/mean_neg"},
    [ACCURACY] = {"train/pairwise_accuracy", "accuracy",
                  "share of pairs whose correct solution has the larger mean value"},
    [VAL_MEAN_POS] = {"val/value/mean_pos", NULL, "as value/mean_pos, of held-out problems"},
    [VAL_MEAN_NEG] = {"val/value/mean_neg", NULL, "as value/mean_neg, of held-out problems"},
    [VAL_MARGIN] = {"val/value/margin", "margin", "as value/margin, of held-out problems"},
    [VAL_ACCURACY] = {"val/pairwise_accuracy", "accuracy", "as train/pairwise_accuracy, of held-out problems"},
};

static int64_t length_of(const critic_task *t) { return t->host.plan->request.seq_len; }
static int64_t rows_of(const critic_task *t) { return t->host.plan->request.choice.micro_batch; }

/* ---- before the plan ------------------------------------------------------------------------------------------- */

static uint64_t row_bytes(int64_t seq_len) {
    return (uint64_t)seq_len * (4 * sizeof(int32_t) + sizeof(float) + PREFERENCE_PARTS * sizeof(critic_part));
}

/* A head begins as nothing over weights that know much: it takes a larger rate. */
static double head_lr(const train_request *r) {
    enum { OVER_PRETRAINED = 10 };
    if (r->train.critic.head_lr > 0) return r->train.critic.head_lr;
    return r->pretrained ? OVER_PRETRAINED * r->train.lr : r->train.lr;
}

static status critic_shape(train_request *r) {
    plan_request *p = &r->plan;
    const critic_settings *s = &r->train.critic;
    p->critic = (critic_options){.kind = (critic_kind)(s->loss + 1),
                                 .gamma = (float)s->gamma,
                                 .lam = (float)s->lam,
                                 .smooth = s->error == CRITIC_ERROR_SMOOTH_L1};
    p->value_dropout = s->dropout;
    p->optimizer.head_lr_scale = r->train.lr > 0 ? (float)(head_lr(r) / r->train.lr) : 1;
    p->open.sequence = p->left_open.sequence =
        false; /* only where it is asked for: the plan weighs rows of tokens alone */
    r->data.kind = DATA_SOLUTIONS;
    r->data.positions = model_of(&p->source)->max_positions; /* what a refusal may advise */
    p->with_eval = r->train.eval_rows > 0;
    p->host_row_bytes =
        loader_host_bytes(1, p->seq_len) + loader_examples_host_bytes(1, p->seq_len) + row_bytes(p->seq_len);
    return OK;
}

/* ---- open, close ----------------------------------------------------------------------------------------------- */

static status critic_open(void **out, const task_host *h) {
    critic_task *t = mem_alloc(sizeof *t);
    *t = (critic_task){.host = *h};
    size_t n = (size_t)(rows_of(t) * length_of(t));
    int32_t **arrays[] = {&t->tokens, &t->targets, &t->doc_start, &t->segments};
    for (size_t i = 0; i < ARRAY_LENGTH(arrays); i++) *arrays[i] = mem_alloc(n * sizeof(int32_t));
    t->values = mem_alloc(n * sizeof *t->values);
    t->parts = mem_alloc((size_t)length_of(t) * PREFERENCE_PARTS * sizeof *t->parts);
    *out = t;
    return OK;
}

static void critic_close(void *self) {
    critic_task *t = self;
    loader_close(t->rows);
    void *const all[] = {t->tokens, t->targets, t->doc_start, t->segments, t->values, t->parts, t};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) free(all[i]);
}

static const char *critic_identity(void *self, arena *memory) {
    const critic_task *t = self;
    const data_options *d = &t->host.request->data;
    const critic_options *o = &t->host.plan->request.critic;
    const char *loss = o->kind == CRITIC_PAIRWISE ? "pairwise"
                                                  : arena_format(memory, "lambda %g, gamma %g, %s", (double)o->lam,
                                                                 (double)o->gamma, o->smooth ? "smooth-l1" : "mse");
    return arena_format(memory,
                        "critic by %s, dropout %g, lr of the head times %g; data %s as %s, rows of %lld, %s, %g for "
                        "evaluation, difficulty %lld, chat %s, tokens %016llx",
                        loss, t->host.plan->request.value_dropout,
                        (double)t->host.plan->request.optimizer.head_lr_scale, d->source,
                        d->tokenizer ? d->tokenizer : "byte", (long long)d->seq_len,
                        d->pack ? "packed" : "one pair each", d->eval_fraction, (long long)d->difficulty,
                        chat_format_name(d->chat), (unsigned long long)dataset_fingerprint(t->host.data));
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static status write_rows(critic_task *t, const micro_inputs *to, const batch *b) {
    TRY(batch_write(t->host.exec, t->host.plan, to,
                    &(batch_rows){b->tokens, b->targets, b->doc_start, .first_row = b->first_row}));
    batch_write_all(t->host.exec, t->host.plan, to->segments, b->segments);
    return OK;
}

/* Rows of a split from `first` on, in the buffers; those from `end` on are filled up with the last one. */
static batch read_rows(const critic_task *t, split s, uint64_t first, uint64_t end) {
    for (int64_t b = 0; b < rows_of(t); b++) {
        int64_t at = b * length_of(t);
        dataset_row_get(t->host.data, s, MIN(first + (uint64_t)b, end - 1),
                        &(data_row){.tokens = t->tokens + at,
                                    .targets = t->targets + at,
                                    .doc_start = t->doc_start + at,
                                    .segments = t->segments + at});
    }
    return (batch){.tokens = t->tokens,
                   .targets = t->targets,
                   .doc_start = t->doc_start,
                   .segments = t->segments,
                   .first_row = first};
}

static status critic_begin(void *self, uint64_t position) {
    critic_task *t = self;
    const mesh *m = &t->host.plan->request.mesh;
    return loader_open(&t->rows, t->host.data, SPLIT_TRAIN, rows_of(t), position, m->index[AXIS_DATA],
                       mesh_size(m, AXIS_DATA));
}

static status critic_next(void *self, const micro_inputs *to) {
    critic_task *t = self;
    return write_rows(t, to, loader_next(t->rows));
}

static status critic_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    critic_task *t = self;
    const mesh *m = &t->host.plan->request.mesh;
    uint64_t number = (uint64_t)(micro * mesh_size(m, AXIS_DATA) + m->index[AXIS_DATA]);
    uint64_t first = position + number * (uint64_t)rows_of(t);
    batch b = read_rows(t, SPLIT_TRAIN, first, first + (uint64_t)rows_of(t));
    return write_rows(t, to, &b);
}

static uint64_t critic_position(const void *self) { return loader_position(((const critic_task *)self)->rows); }

/* first: MEAN_POS or VAL_MEAN_POS. */
static void add_metrics(train_metrics *to, int first, const double *sums) {
    double pos = sums[SUM_VALUE_CORRECT] / sums[SUM_CORRECT], neg = sums[SUM_VALUE_WRONG] / sums[SUM_WRONG];
    train_metrics_add(to, &metrics[first + MEAN_POS], pos);
    train_metrics_add(to, &metrics[first + MEAN_NEG], neg);
    train_metrics_add(to, &metrics[first + MARGIN], pos - neg);
    train_metrics_add(to, &metrics[first + ACCURACY], sums[SUM_RANKED] / sums[SUM_PAIRS]);
}

static status critic_after(void *self, train_step_report *report) {
    const critic_task *t = self;
    double sums[CRITIC_SUM_COUNT];
    task_step_sums(&t->host, sums, CRITIC_SUM_COUNT);
    add_metrics(&report->metrics, MEAN_POS, sums);
    return exec_check(t->host.exec);
}

static uint64_t critic_host_bytes(const void *self) {
    const critic_task *t = self;
    return loader_host_bytes(rows_of(t), length_of(t)) + loader_examples_host_bytes(rows_of(t), length_of(t)) +
           (uint64_t)rows_of(t) * row_bytes(length_of(t));
}

/* ---- evaluation ------------------------------------------------------------------------------------------------ */

/* One batch of held-out rows; those from n_rows on are not counted. */
static status evaluate_batch(critic_task *t, int64_t first, int64_t n_rows, double *sums) {
    int64_t T = length_of(t), n = MIN(rows_of(t), n_rows - first);
    TRY(t->host.pause(t->host.pause_context, "row", first, n_rows));
    batch b = read_rows(t, SPLIT_EVAL, (uint64_t)first, (uint64_t)n_rows);
    TRY(write_rows(t, &t->host.plan->step.inputs[0], &b));
    TRY(exec_run(t->host.exec, SECTION_EVAL));
    TRY(exec_check(t->host.exec));
    batch_read(t->host.exec, t->host.plan, t->host.plan->net.eval_values, t->values);
    const preference_rows rows = {n, T, 1};
    for (int64_t r = 0; r < n; r++)
        critic_row(&t->host.plan->request.critic, t->parts, &rows, r, t->segments, t->values, 1, NULL, sums);
    return OK;
}

static status critic_evaluate(void *self, train_eval_report *out) {
    critic_task *t = self;
    double sums[CRITIC_SUM_COUNT] = {0};
    out->n_rows = task_eval_rows(&t->host);
    for (int64_t first = 0; first < out->n_rows; first += rows_of(t)) TRY(evaluate_batch(t, first, out->n_rows, sums));
    out->loss = sums[SUM_VALID] > 0 ? sums[SUM_LOSS] / sums[SUM_VALID] : NAN;
    out->exact_match = NAN;
    add_metrics(&out->metrics, VAL_MEAN_POS, sums);
    return OK;
}

const task task_CRITIC = {
    .name = task_name_CRITIC,
    .metrics = metrics,
    .n_metrics = N_METRICS,
    .shape = critic_shape,
    .open = critic_open,
    .close = critic_close,
    .identity = critic_identity,
    .begin = critic_begin,
    .step = {.next = critic_next, .again = critic_again, .position = critic_position},
    .after = critic_after,
    .evaluate = critic_evaluate,
    .host_bytes = critic_host_bytes,
};
