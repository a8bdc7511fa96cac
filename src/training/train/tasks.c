/* tasks.c - tasks.def as a table: names for settings and messages, functions for the run; and what tasks read alike. */
#include "train/best.h"
#include "train/samples.h"
#include "train/task.h"

#include <string.h>

/* "|sft|...": the setting takes it from its second character. One text for each, because settings are a constant table. */
const char train_task_names[] = ""
#define TASK(id, name, help) "|" name
#include "train/tasks.def"
#undef TASK
    ;
const char train_task_help[] = "training task"
#define TASK(id, name, help) "; " name ": " help
#include "train/tasks.def"
#undef TASK
    ;

#define TASK(id, name, help) const char task_name_##id[] = name;
#include "train/tasks.def"
#undef TASK

const task *task_of(task_kind k) {
    static const task *const rows[] = {
#define TASK(id, name, help) &task_##id,
#include "train/tasks.def"
#undef TASK
    };
    return k < TASK_COUNT ? rows[k] : NULL;
}

const char *task_name(const task *t) { return t->name; }

status task_shape(const task *t, train_request *r) {
    r->task = t;
    if (model_of(&r->plan.source)->mtp_heads > 1 && strcmp(t->name, task_name_MTP) != 0)
        return ERR(ERR_INPUT, "train.task: found %s with model.mtp.heads %lld, expected mtp, which trains all heads",
                   t->name, (long long)model_of(&r->plan.source)->mtp_heads);
    TRY(samples_shape(r));
    TRY(t->shape(r));
    return best_check(r);
}

const task_metric *task_metric_at(const task *t, size_t i) { return i < t->n_metrics ? &t->metrics[i] : NULL; }

int64_t task_eval_rows(const task_host *h) {
    int64_t n = h->request->train.eval_rows;
    data_report report;
    dataset_report(h->data, SPLIT_EVAL, &report);
    return report.rows_per_epoch ? MIN(n, (int64_t)report.rows_per_epoch) : n;
}

void task_step_sums(const task_host *h, double *sums, int n) {
    enum { MOST = 32 };
    float read[MOST];
    ASSERT(n <= MOST);
    exec_read(h->exec, h->plan->step.clip, CLIP_COUNT * sizeof *read, read, (size_t)n * sizeof *read);
    for (int i = 0; i < n; i++) sums[i] = (double)read[i];
}
