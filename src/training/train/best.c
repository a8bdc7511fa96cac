/* best.c - which evaluation is best: its checkpoint is kept, and the run waits for a better one. See best.h. */
#include "train/best.h"
#include "train/task.h"

#include <math.h>
#include <string.h>

static const char val[] = "val/";

/* Short names of the usual ones; all others as in metrics.jsonl, with val/ or without. */
static const struct { const char *word, *metric; } words[] = {{"loss", "val/loss"}, {"reward", "val/reward"}};

static bool is_metric(const char *asked, const char *metric) {
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++)
        if (strcmp(asked, words[i].word) == 0) return strcmp(metric, words[i].metric) == 0;
    return strcmp(asked, metric) == 0 || (str_starts_with(metric, val) && strcmp(asked, metric + strlen(val)) == 0);
}

static const char *save_best_of(const train_request *r) { return r->train.save_best ? r->train.save_best : ""; }
static bool keeps(const train_request *r) { return *save_best_of(r); }
static bool waits(const train_request *r) { return r->train.patience > 0; }

/* The i-th number that an evaluation of this run reports, whatever its value is; NULL past the last. */
static const char *reported(const train_request *r, size_t i) {
    bool by_rows = !r->plan.policy.on && r->train.eval_rows > 0, asks = r->train.problems > 0;
    if (by_rows && i-- == 0) return "val/loss";
    if (asks && i-- == 0) return "val/exact_match";
    const task *t = r->task;
    for (size_t k = 0; task_metric_at(t, k); k++)
        if (str_starts_with(task_metric_at(t, k)->name, val) && i-- == 0) return task_metric_at(t, k)->name;
    return NULL;
}

/* Where none is named, what the task has first: its loss, or reward. */
static const char *metric_of(const train_request *r) {
    size_t i = 0;
    if (!*save_best_of(r)) return reported(r, 0);
    while (reported(r, i) && !is_metric(save_best_of(r), reported(r, i))) i++;
    return reported(r, i);
}

static double value_of(const train_eval_report *e, const char *metric) {
    if (strcmp(metric, "val/loss") == 0) return e->loss;
    if (strcmp(metric, "val/exact_match") == 0) return e->exact_match;
    for (int i = 0; i < e->metrics.n; i++)
        if (strcmp(e->metrics.list[i].row->name, metric) == 0) return e->metrics.list[i].value;
    return NAN;
}

/* Losses and what is made of them fall, everything else rises. */
static bool falls(const char *metric) { return strstr(metric, "loss") || strstr(metric, "perplexity"); }

status best_check(const train_request *r) {
    if (!keeps(r) && !waits(r)) return OK;
    const train_options *o = &r->train;
    const char *key = keeps(r) ? "train.save_best" : "train.patience";
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)o->patience);
    const char *found = keeps(r) ? o->save_best : number;
    if (!reported(r, 0) || (o->eval_rows == 0 && o->problems == 0))
        return ERR(ERR_INPUT, "%s: found %s in a run without evaluations, expected none; set train.eval_rows", key,
                   found);
    if (o->eval_every == 0)
        return ERR(ERR_INPUT,
                   "%s: found %s with train.eval_every none, expected evaluations on the way: the best of "
                   "one is the last; set train.eval_every or train.evals_per_epoch",
                   key, found);
    if (r->plan.policy.on && o->eval_every % o->rl.updates)
        return ERR(ERR_INPUT,
                   "train.eval_every: found %lld with %s, expected a multiple of rl.updates (%lld): there "
                   "are no checkpoints between two updates of a rollout",
                   (long long)o->eval_every, key, (long long)o->rl.updates);
    if (metric_of(r)) return OK;
    strbuf known;
    strbuf_init(&known);
    for (size_t i = 0; reported(r, i); i++) strbuf_printf(&known, "%s%s", i ? ", " : "", reported(r, i));
    status rc = ERR(ERR_INPUT, "train.save_best: found '%.60s', expected none or a number that evaluations report: %s",
                    o->save_best, known.text);
    strbuf_fini(&known);
    return rc;
}

status best_open(best *b, const train_request *r, const train_observer *observer, const checkpoint_options *o,
                 const checkpoint_tensor *tensors, size_t n, arena *memory) {
    *b = (best){.request = r, .observer = observer};
    if (keeps(r) || waits(r)) b->metric = metric_of(r);
    if (!keeps(r)) return OK;
    if (!o->run_dir)
        return ERR(ERR_INPUT, "train.save_best: found %s without run.dir, expected a directory for the checkpoint",
                   r->train.save_best);
    checkpoint_options own = *o;
    own.run_dir = b->dir = arena_format(memory, "%s/best", o->run_dir);
    own.keep = 1;
    own.only_one = true;
    own.locked = false;     /* a directory with a lock of its own */
    own.background = false; /* rare, and no second copy of the state is planned */
    return checkpointer_open(&b->checkpoints, &own, tensors, n);
}

void best_close(best *b) {
    if (b->checkpoints) checkpointer_close(b->checkpoints);
}

/* By another number, or in a run that did not wait so far, the count begins anew. */
static void begin_patience(const best *b, train_state *s) {
    checkpoint_patience *p = &s->patience;
    if (waits(b->request) && strcmp(p->metric, b->metric) == 0) return;
    *p = (checkpoint_patience){.value = NAN, .evaluated = s->step};
    if (waits(b->request)) snprintf(p->metric, sizeof p->metric, "%s", b->metric);
}

status best_begin(best *b, train_state *s) {
    comm *ranks = b->request->comm;
    s->best = (checkpoint_best){0};
    begin_patience(b, s);
    if (!b->checkpoints) return OK;
    if (!ranks || comm_rank(ranks) == 0) {
        char newest[4096];
        train_state found;
        TRY(checkpoint_find_newest(b->dir, newest, sizeof newest));
        if (newest[0]) {
            TRY(checkpoint_read_state(newest, &found));
            s->best = found.best;
        }
    }
    if (ranks) TRY(comm_broadcast(ranks, &s->best, sizeof s->best, 0));
    if (strcmp(s->best.metric, b->metric) != 0) s->best = (checkpoint_best){0}; /* it was best by another number */
    if (*s->best.metric)
        train_say(b->observer, "best so far: %s %.4g at step %lld, in %s", b->metric, s->best.value,
                  (long long)s->best.step, b->dir);
    return OK;
}

static bool is_better(const char *metric, double value, double than) {
    return falls(metric) ? value < than : value > than;
}

/* A number that is not finite is no improvement. */
static void wait_for_better(const best *b, train_state *s, double value) {
    checkpoint_patience *p = &s->patience;
    p->evaluated = s->step;
    bool better = isfinite(value) && (!isfinite(p->value) || is_better(b->metric, value, p->value));
    p->worse = better ? 0 : p->worse + 1;
    if (better) p->value = value, p->step = s->step;
}

bool best_gave_up(const best *b, const train_state *s) {
    return waits(b->request) && s->patience.worse >= b->request->train.patience;
}

status best_offer(best *b, exec *e, train_state *s, const train_eval_report *report) {
    comm *ranks = b->request->comm;
    if (!b->metric) return OK;
    double value = value_of(report, b->metric);
    if (ranks) TRY(comm_broadcast(ranks, &value, sizeof value, 0)); /* one decision for all */
    if (waits(b->request)) wait_for_better(b, s, value);
    bool first = !*s->best.metric, better = first || is_better(b->metric, value, s->best.value);
    if (!b->checkpoints || !isfinite(value) || !better) return OK;
    s->best = (checkpoint_best){.value = value, .step = s->step};
    snprintf(s->best.metric, sizeof s->best.metric, "%s", b->metric);
    if (b->observer->on_save) b->observer->on_save(b->observer->context);
    TRY(checkpointer_save(b->checkpoints, e, s));
    train_say(b->observer, "best so far: %s %.4g at step %lld, saved in %s", b->metric, value, (long long)s->step,
              b->dir);
    return OK;
}
