/* observer.c - what a run reports: messages, and numbers by name. */
#include "train/train.h"

#include <stdarg.h>
#include <stdio.h>

void train_say(const train_observer *o, const char *fmt, ...) {
    if (!o->on_message) return;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    o->on_message(o->context, text);
}

void train_metrics_add(train_metrics *m, const task_metric *row, double value) {
    ASSERT(m->n < METRICS_MOST);
    m->list[m->n].row = row;
    m->list[m->n++].value = value;
}

double train_epochs(const dataset *d, const plan *p, int64_t steps) {
    data_report r;
    dataset_report(d, SPLIT_TRAIN, &r);
    double rows = (double)plan_tokens_per_step(p) / (double)p->request.seq_len;
    return r.rows_per_epoch ? (double)steps * rows / (double)r.rows_per_epoch : 0;
}

const char *train_divergence_advice(const train_options *o, char *out, size_t n) {
    char clip[64];
    if (o->clip > 0) snprintf(clip, sizeof clip, "a smaller train.clip than %g", o->clip);
    else snprintf(clip, sizeof clip, "train.clip=1");
    snprintf(out, n, "try a lower train.lr than %g, a longer train.warmup than %lld steps, or %s", o->lr,
             (long long)o->warmup, clip);
    return out;
}
