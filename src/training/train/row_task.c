/* row_task.c - rows of the data set in order; loss of held-out rows and exact match of held-out problems. */
#include "train/row_task.h"
#include "train/batch.h"

#include <stdlib.h>

#define EXAMPLES 4 /* shown at most */

status row_task_shape(train_request *r) {
    plan_request *p = &r->plan;
    p->with_eval = r->train.eval_rows > 0 || (r->train.problems > 0 && data_source_has_problems(r->data.source));
    p->host_row_bytes = loader_host_bytes(1, p->seq_len) + evaluator_row_bytes(p);
    return OK;
}

void row_task_init(row_task *t, const task_host *h) {
    *t = (row_task){.host = *h};
    evaluator_init(&t->eval, h);
}

void row_task_close(void *self) {
    row_task *t = self;
    loader_close(t->rows);
    evaluator_fini(&t->eval);
    free(t);
}

/* Other columns, formats and files give other tokens: the fingerprint covers them all, and edited files too. The
 * options before it tell the reader what differs. */
const char *row_identity(const data_options *d, const dataset *from, arena *memory) {
    return arena_format(
        memory,
        "data %s as %s, rows of %lld, %s, %g for evaluation, difficulty %lld, loss on %s, chat %s, tokens "
        "%016llx",
        d->source, d->tokenizer ? d->tokenizer : "byte", (long long)d->seq_len,
        d->pack ? "packed" : "one document each", d->eval_fraction, (long long)d->difficulty,
        d->train_on == TRAIN_ON_ALL ? "all" : "responses", chat_format_name(d->chat),
        (unsigned long long)dataset_fingerprint(from));
}

const char *row_task_identity(void *self, arena *memory) {
    const row_task *t = self;
    return row_identity(&t->host.request->data, t->host.data, memory);
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

status row_task_begin(void *self, uint64_t position) {
    row_task *t = self;
    const plan_request *q = &t->host.plan->request;
    return loader_open(&t->rows, t->host.data, SPLIT_TRAIN, q->choice.micro_batch, position, q->mesh.index[AXIS_DATA],
                       mesh_size(&q->mesh, AXIS_DATA));
}

static status write_rows(row_task *t, const micro_inputs *to, batch_rows rows) {
    if (t->fill) TRY(t->fill(t, rows.first_row, rows.targets, rows.doc_start));
    rows.weights = t->weights;
    TRY(batch_write(t->host.exec, t->host.plan, to, &rows));
    if (t->reference) batch_write_all(t->host.exec, t->host.plan, to->reference, t->reference);
    return OK;
}

status row_task_write(row_task *t, const micro_inputs *to, const float *scales) {
    const batch *b = loader_next(t->rows);
    return write_rows(t, to,
                      (batch_rows){b->tokens, b->targets, b->doc_start, .scales = scales, .first_row = b->first_row});
}

/* The buffers of the evaluator are free between evaluations. */
status row_task_write_again(row_task *t, uint64_t position, int64_t micro, const micro_inputs *to,
                            const float *scales) {
    const plan_request *q = &t->host.plan->request;
    evaluator *v = &t->eval;
    int64_t T = q->seq_len, B = q->choice.micro_batch;
    uint64_t number = (uint64_t)(micro * mesh_size(&q->mesh, AXIS_DATA) + q->mesh.index[AXIS_DATA]);
    uint64_t first = position + number * (uint64_t)B;
    for (int64_t b = 0; b < B; b++)
        dataset_row(t->host.data, SPLIT_TRAIN, first + (uint64_t)b, v->tokens + b * T, v->targets + b * T,
                    v->doc_start + b * T);
    return write_rows(t, to, (batch_rows){v->tokens, v->targets, v->doc_start, .scales = scales, .first_row = first});
}

uint64_t row_task_position(const void *self) { return loader_position(((const row_task *)self)->rows); }

uint64_t row_task_host_bytes(const void *self) {
    const plan_request *q = &((const row_task *)self)->host.plan->request;
    int64_t B = q->choice.micro_batch;
    return loader_host_bytes(B, q->seq_len) + (uint64_t)B * evaluator_row_bytes(q);
}

/* ---- evaluation ------------------------------------------------------------------------------------------------ */

status row_task_evaluate(void *self, train_eval_report *out) {
    row_task *t = self;
    const train_options *o = &t->host.request->train;
    out->n_rows = o->eval_rows;
    TRY(evaluator_loss(&t->eval, o->eval_rows, &out->loss));
    return evaluator_exact_match(&t->eval, o->problems, &out->n_problems, &out->exact_match);
}

status row_task_examples(void *self) {
    row_task *t = self;
    const train_request *r = t->host.request;
    /* Also on ranks that print nothing: evaluation may gather parameters, and that needs all ranks. */
    if ((!t->host.observer->on_example && !r->comm) || r->train.problems == 0) return OK;
    return evaluator_examples(&t->eval, MIN(r->train.problems, (int64_t)EXAMPLES), t->host.observer);
}
