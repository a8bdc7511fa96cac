/* metrics.c - metrics.def as a table, and a metric of a report by its name. */
#include "track/track.h"

const metric *metric_at(size_t i) {
    static const metric rows[] = {
#define METRIC_STEP(name, type, value, when, help) {METRIC_OF_STEP, name, #type, help},
#define METRIC_EVAL(name, type, value, when, help) {METRIC_OF_EVAL, name, #type, help},
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    };
    return i < ARRAY_LENGTH(rows) ? &rows[i] : NULL;
}

static bool find_of_task(const train_metrics *m, const char *name, double *out) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->list[i].row->name, name) == 0) {
            *out = m->list[i].value;
            return true;
        }
    return false;
}

bool metric_of_step(const train_step_report *s, const char *name, double *out) {
    uint64_t memory_used = s->device_bytes;
#define METRIC_STEP(key, type, value, when, help) \
    if ((when) && strcmp(key, name) == 0) return *out = (double)(value), true;
#define METRIC_EVAL(...)
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    return find_of_task(&s->metrics, name, out);
}

bool metric_of_eval(const train_eval_report *e, const char *name, double *out) {
#define METRIC_STEP(...)
#define METRIC_EVAL(key, type, value, when, help) \
    if ((when) && strcmp(key, name) == 0) return *out = (double)(value), true;
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    return find_of_task(&e->metrics, name, out);
}

static size_t add_of_task(const train_metrics *m, metric_value *out, size_t n) {
    for (int i = 0; i < m->n; i++) out[n++] = (metric_value){m->list[i].row->name, m->list[i].value};
    ASSERT(n <= METRIC_VALUES);
    return n;
}

size_t metrics_of_step(const train_step_report *s, metric_value out[METRIC_VALUES]) {
    uint64_t memory_used = s->device_bytes;
    size_t n = 0;
#define METRIC_STEP(key, type, value, when, help) \
    if (when) out[n++] = (metric_value){key, (double)(value)};
#define METRIC_EVAL(...)
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    return add_of_task(&s->metrics, out, n);
}

size_t metrics_of_eval(const train_eval_report *e, metric_value out[METRIC_VALUES]) {
    size_t n = 0;
#define METRIC_STEP(...)
#define METRIC_EVAL(key, type, value, when, help) \
    if (when) out[n++] = (metric_value){key, (double)(value)};
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    return add_of_task(&e->metrics, out, n);
}
