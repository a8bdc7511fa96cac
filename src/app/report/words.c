/* words.c - the first screen in sentences: which run used less memory, why, and what that cost.
 *
 * Of several runs the one with the lowest peak is compared with the one with the highest: that is the largest saving. The cause is
 * what differs between the two: their settings, and how the step is held (plan.json). Runs of several tasks, such as the stages of a
 * pipeline, are compared task by task: a critic that is smaller than a policy saves nothing. */
#include "report/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REASONS_MOST = 6, ROLES_SAID = 3 };
#define BUSY_LEAST 0.1 /* of the CPU time: others changed what was measured */

void report_say(report *p, const char *fmt, ...) {
    va_list args;
    char text[4096];
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_array_append_new(p->words, json_text(text, strlen(text)));
}

static const metric_series *metric(const run *r, const char *name) { return run_metrics_find(&r->metrics, name); }

/* ---- one run ------------------------------------------------------------------------------------------------------------- */

static void say_state(report *p, size_t i) {
    const run *r = &p->runs[i];
    if (r->state == RUN_FAILED)
        report_say(p, "%s failed at step %.0f: %s", p->labels[i], isfinite(r->step) ? r->step : 0,
                   r->error ? r->error : "it left no message.");
    if (r->state == RUN_DIED)
        report_say(p, "%s died after step %.0f: its process is gone and said nothing.", p->labels[i],
                   isfinite(r->step) ? r->step : 0);
    const metric_series *loss = metric(r, "train/loss");
    size_t n_bad = 0;
    double first = NAN;
    for (size_t k = 0; loss && k < loss->n; k++)
        if (!isfinite(loss->y[k]) && n_bad++ == 0) first = loss->x[k];
    if (n_bad)
        report_say(p, "The loss of %s is not finite in %zu steps, first in step %.0f.", p->labels[i], n_bad, first);
}

static void say_progress(report *p, const run *r) {
    const metric_series *loss = metric(r, "train/loss"), *reward = metric(r, "reward");
    const char *reached = isfinite(r->steps) ? arena_format(&p->memory, "%.0f of %.0f", r->step, r->steps)
                                             : arena_format(&p->memory, "%.0f", r->step);
    report_say(p, "%s trained %s on %s (%s) for %s steps: %s.", p->labels[0], r->model ? r->model : "a model",
               r->data ? r->data : "its data", r->task ? run_method(r) : "task not known",
               isfinite(r->step) ? reached : "no", run_state_name(r->state));
    /* The loss of a policy hovers around zero and tells nothing. */
    if (isfinite(series_last(reward)))
        report_say(p, "The reward went from %s to %s.", loss_text(&p->memory, series_first(reward)),
                   loss_text(&p->memory, series_last(reward)));
    else if (isfinite(series_last(loss)))
        report_say(p, "The loss went from %s to %s%s.", loss_text(&p->memory, series_first(loss)),
                   loss_text(&p->memory, series_last(loss)),
                   isfinite(series_last(metric(r, "val/loss")))
                       ? arena_format(&p->memory, "; on held-out data it is %s",
                                      loss_text(&p->memory, series_last(metric(r, "val/loss"))))
                       : "");
}

static const char *largest_role(report *p, const run *r, double *bytes) {
    const run_tier *t = run_tier_find(r, "device");
    const char *name = NULL;
    *bytes = 0;
    for (size_t k = 0; t && k < r->n_roles; k++)
        if (t->bytes[k][t->peak_at] > *bytes) *bytes = t->bytes[k][t->peak_at], name = r->roles[k];
    const char *key;
    json_t *v;
    const json_t *roles = json_object_get(json_object_get(r->plan, "memory"), "by_role");
    if (!t) json_object_foreach((json_t *)roles, key, v) {
            if (json_number_value(v) > *bytes) *bytes = json_number_value(v), name = arena_string(&p->memory, key);
        }
    return name;
}

static void say_one(report *p) {
    const run *r = &p->runs[0];
    double peak = run_peak_bytes(r), planned = run_planned_bytes(r, "device"), speed = run_tokens_per_second(r), most;
    char count[32], ms[32];
    say_progress(p, r);
    if (isfinite(peak)) {
        const char *role = largest_role(p, r, &most);
        report_say(p, "Device memory peaked at %s%s%s.", bytes_text(&p->memory, peak),
                   !isfinite(planned) ? ""
                   : planned == peak  ? ", exactly as planned"
                                      : arena_format(&p->memory, "; %s were planned", bytes_text(&p->memory, planned)),
                   role ? arena_format(&p->memory, "; at the peak %s take %.0f %% of it", role, 100 * most / peak)
                        : "");
    }
    if (isfinite(speed))
        report_say(p, "It made %s tokens per second; a step took %s (medians).", str_format_count(count, speed),
                   str_format_seconds(ms, 1e-3 * series_median(metric(r, "perf/step_ms"))));
}

/* ---- several: why ----------------------------------------------------------------------------------------------------- */

/* "memory.recompute is full instead of none" */
static void add_reason(strbuf *b, size_t *n, const char *key, const char *now, const char *before) {
    if (*n < REASONS_MOST)
        strbuf_printf(b, "%s%s is %s instead of %s", *n ? ", " : "", key, now ? now : "not set",
                      before ? before : "not set");
    ++*n;
}

static void end_reasons(report *p, const strbuf *b, size_t n, const char *what) {
    const char *more = n > REASONS_MOST ? arena_format(&p->memory, ", and %zu more", n - REASONS_MOST) : "";
    if (n) report_say(p, "%s: %s%s.", what, b->text, more);
}

static const char *plain_value(const json_t *v, arena *memory) {
    if (!v) return NULL;
    if (json_is_string(v)) return arena_format(memory, "%.100s", json_string_value(v));
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    const char *copy = arena_format(memory, "%.100s", text ? text : "?");
    free(text);
    return copy;
}

/* What the plan made of the setting "memory.offload.params": strategy.offload.params; NULL: the plan does not say. */
static const char *planned_value(const run *r, const char *key, arena *memory) {
    const json_t *at = json_object_get(r->plan, "strategy");
    char name[128];
    const char *rest = strchr(key, '.');
    while (rest && at) {
        size_t n = strcspn(++rest, ".");
        snprintf(name, sizeof name, "%.*s", (int)MIN(n, sizeof name - 1), rest);
        at = json_object_get(at, name);
        rest = rest[n] ? rest + n : NULL;
    }
    return json_is_object(at) ? NULL : plain_value(at, memory);
}

/* A setting says it already, by its own name. */
static bool is_said(const report *p, const char *name) {
    for (size_t i = 0; i < p->settings.n_rows; i++) {
        const char *dot = strchr(p->settings.rows[i].key, '.');
        if (p->settings.rows[i].differs && dot && strcmp(dot + 1, name) == 0) return true;
    }
    return false;
}

static void plan_reasons(const report *p, const json_t *now, const json_t *before, const char *prefix, strbuf *b,
                         size_t *n, arena *memory) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)now, key, v) {
        const json_t *other = json_object_get(before, key);
        const char *name = arena_format(memory, "%s%s", prefix, key);
        if (json_is_object(v)) plan_reasons(p, v, other, arena_format(memory, "%s.", name), b, n, memory);
        else if (!json_equal(v, (json_t *)other) && strcmp(key, "threads") != 0 && !is_said(p, name))
            add_reason(b, n, name, plain_value(v, memory), plain_value(other, memory));
    }
}

/* "auto" is what the plan made of it. */
static const char *meant(const run *r, const char *key, const char *value, arena *memory) {
    const char *planned = value && strcmp(value, "auto") == 0 ? planned_value(r, key, memory) : NULL;
    return planned ? planned : value;
}

/* Those settings that differ and have this effect; memory.* and parallel.* first. */
static void setting_reasons(report *p, size_t now, size_t before, setting_effect effect, strbuf *b, size_t *n) {
    for (int memory_first = 1; memory_first >= 0; memory_first--)
        for (size_t i = 0; i < p->settings.n_rows; i++) {
            const setting_row *row = &p->settings.rows[i];
            const char *x = row->values[now], *y = row->values[before];
            bool of_memory = str_starts_with(row->key, "memory.") || str_starts_with(row->key, "parallel.");
            if (row->effect != effect || of_memory != memory_first) continue;
            if (!row->differs || (x && y && strcmp(x, y) == 0) || (!x && !y)) continue;
            add_reason(b, n, row->key, meant(&p->runs[now], row->key, x, &p->memory),
                       meant(&p->runs[before], row->key, y, &p->memory));
        }
}

/* The settings that can change memory, then what the plan made of them. */
static void say_why(report *p, size_t now, size_t before) {
    const run *a = &p->runs[now], *b = &p->runs[before];
    bool asked = a->n_settings && b->n_settings;
    strbuf settings, plan;
    size_t n_settings = 0, n_plan = 0;
    strbuf_init(&settings);
    strbuf_init(&plan);
    if (asked) setting_reasons(p, now, before, EFFECT_BOTH, &settings, &n_settings);
    if (a->plan && b->plan)
        plan_reasons(p, json_object_get(a->plan, "strategy"), json_object_get(b->plan, "strategy"), "", &plan, &n_plan,
                     &p->memory);
    end_reasons(p, &settings, n_settings, "Why");
    end_reasons(p, &plan, n_plan, n_settings ? "In its plan" : "Why, by its plan");
    if (n_settings + n_plan == 0)
        report_say(p, !asked                 ? "Why is not known: config.yaml is missing."
                      : p->settings.n_differ ? "Why is not known: no setting that differs between them changes memory."
                                             : "Why: their settings do not differ.");
    strbuf_fini(&settings);
    strbuf_fini(&plan);
}

typedef struct role_change {
    const char *role;
    double now, before;
} role_change;

static int larger_change(const void *a, const void *b) {
    const role_change *x = a, *y = b;
    double u = fabs(x->now - x->before), v = fabs(y->now - y->before);
    return (u < v) - (u > v);
}

static void say_roles(report *p, const run *a, const run *b) {
    static const char *const roles[] = {"inputs", "params", "grads", "states", "activations",
                                        "work",   "comm",   "cache", "gaps"};
    role_change list[ARRAY_LENGTH(roles)];
    size_t n = 0;
    strbuf text;
    strbuf_init(&text);
    for (size_t i = 0; i < ARRAY_LENGTH(roles); i++) {
        role_change c = {roles[i], run_role_bytes(a, roles[i]), run_role_bytes(b, roles[i])};
        if (!isfinite(c.now) || !isfinite(c.before)) continue;
        if (strcmp(bytes_text(&p->memory, c.now), bytes_text(&p->memory, c.before)) != 0) list[n++] = c;
    }
    if (n) qsort(list, n, sizeof *list, larger_change);
    for (size_t i = 0; i < MIN(n, (size_t)ROLES_SAID); i++)
        strbuf_printf(&text, "%s%s %s instead of %s", i ? ", " : "", list[i].role, bytes_text(&p->memory, list[i].now),
                      bytes_text(&p->memory, list[i].before));
    if (n) report_say(p, "By role at the peak: %s.", text.text);
    strbuf_fini(&text);
}

/* ---- several: what it cost ---------------------------------------------------------------------------------------------- */

/* "; B has not finished: step 40 of 100" */
static const char *progress_note(report *p, size_t now, size_t before) {
    const char *note = "";
    for (int k = 0; k < 2; k++) {
        size_t i = k ? before : now;
        const run *r = &p->runs[i];
        if (r->state == RUN_FINISHED) continue;
        const char *of = isfinite(r->steps) ? arena_format(&p->memory, " of %.0f", r->steps) : "";
        note = arena_format(&p->memory, "%s; %s has not finished (%s, step %.0f%s)", note, p->labels[i],
                            run_state_name(r->state), isfinite(r->step) ? r->step : 0, of);
    }
    return note;
}

static void say_speed_reasons(report *p, size_t now, size_t before) {
    strbuf reasons;
    size_t n = 0;
    strbuf_init(&reasons);
    if (p->runs[now].n_settings && p->runs[before].n_settings)
        setting_reasons(p, now, before, EFFECT_SPEED, &reasons, &n);
    end_reasons(p, &reasons, n, "Settings that change speed alone differ too");
    strbuf_fini(&reasons);
}

static void say_speed(report *p, size_t now, size_t before) {
    double x = run_tokens_per_second(&p->runs[now]), y = run_tokens_per_second(&p->runs[before]);
    char a[32], b[32];
    if (!(x > 0) || !(y > 0)) return;
    double change = x / y - 1;
    size_t busier = p->runs[before].others > p->runs[now].others ? before : now;
    const char *note = progress_note(p, now, before);
    str_format_count(a, x);
    str_format_count(b, y);
    if (p->runs[busier].others >= BUSY_LEAST)
        report_say(p,
                   "The measured speeds, %s and %s tokens per second, say little: others used %.0f %% of the CPU time "
                   "while %s ran%s.",
                   a, b, 100 * fmin(p->runs[busier].others, 1), p->labels[busier], note);
    else if (fabs(change) < 0.01) report_say(p, "It cost no speed: %s and %s tokens per second%s.", a, b, note);
    else if (change < 0)
        report_say(p, "It cost speed: %s instead of %s tokens per second, %.0f %% less%s.", a, b, -100 * change, note);
    else report_say(p, "It was faster: %s instead of %s tokens per second, %.0f %% more%s.", a, b, 100 * change, note);
    if (fabs(change) >= 0.01) say_speed_reasons(p, now, before);
}

/* What the measured speed owes to other programs of the machine is not in this one. */
static void say_prediction(report *p, size_t now, size_t before) {
    double x = json_number_value(json_object_get(p->runs[now].plan, "step_ms"));
    double y = json_number_value(json_object_get(p->runs[before].plan, "step_ms"));
    char a[32], b[32];
    if (!(x > 0) || !(y > 0) || !isfinite(x) || !isfinite(y) || x == y) return;
    report_say(p, "The plans predicted %s instead of %s per step, %.1f %% %s.", str_format_seconds(a, 1e-3 * x),
               str_format_seconds(b, 1e-3 * y), 100 * fabs(x / y - 1), x > y ? "more" : "less");
}

static bool same_text(const char *a, const char *b) { return (!a && !b) || (a && b && strcmp(a, b) == 0); }

static void say_result(report *p, size_t now, size_t before) {
    const run *a = &p->runs[now], *b = &p->runs[before];
    bool rewarded = metric(a, "reward") && metric(b, "reward");
    const char *name = rewarded ? "reward" : "loss", *key = rewarded ? "reward" : "train/loss";
    if (!same_text(run_setting_find(a, "train.weighting"), run_setting_find(b, "train.weighting")))
        name = "held-out loss", key = "val/loss"; /* that of training counts other tokens in each */
    const metric_series *x = metric(a, key), *y = metric(b, key);
    if (!same_text(a->model, b->model) || !same_text(a->data, b->data) || !same_text(a->task, b->task)) {
        report_say(p, "Their losses and rewards do not compare: model, data or task differ.");
        return;
    }
    if (!x || !y || !x->n || !y->n) return;
    double step = fmin(x->x[x->n - 1], y->x[y->n - 1]);
    size_t same = 0, n = MIN(x->n, y->n);
    for (size_t i = 0; i < n; i++) same += x->x[i] == y->x[i] && x->y[i] == y->y[i];
    if (same == n) report_say(p, "The %s is the same in all %zu steps, to the last digit.", name, n);
    else
        report_say(p, "At step %.0f, the last that both have, the %s is %s instead of %s.", step, name,
                   loss_text(&p->memory, series_at(x, step)), loss_text(&p->memory, series_at(y, step)));
}

/* The method that all runs of a task share, else the task. */
static const char *group_name(const report *p, const char *task) {
    const char *name = NULL;
    for (size_t i = 0; i < p->n_runs; i++) {
        if (!same_text(p->runs[i].task, task)) continue;
        if (name && !same_text(name, run_method(&p->runs[i]))) return task;
        name = run_method(&p->runs[i]);
    }
    return name;
}

/* Those of the runs that are `of_task`; NULL: all. */
static void say_several(report *p, const char *of_task) {
    size_t least = p->n_runs, most = p->n_runs, n = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        double peak = run_peak_bytes(&p->runs[i]);
        if (of_task && !same_text(p->runs[i].task, of_task)) continue;
        n++;
        if (!isfinite(peak)) continue;
        if (least == p->n_runs || peak < run_peak_bytes(&p->runs[least])) least = i;
        if (most == p->n_runs || peak > run_peak_bytes(&p->runs[most])) most = i;
    }
    const char *all = of_task ? arena_format(&p->memory, "%zu runs of %s", n, group_name(p, of_task)) : "";
    if (!of_task) all = arena_format(&p->memory, "%zu runs", n);
    if (least == p->n_runs) {
        report_say(p, "%s; none of them says how much memory it used.", all);
        return;
    }
    double low = run_peak_bytes(&p->runs[least]), high = run_peak_bytes(&p->runs[most]);
    if (low == high) {
        report_say(p, "%s, all with the same peak of device memory: %s.", all, bytes_text(&p->memory, low));
        return;
    }
    bool measured = run_peak_is_measured(&p->runs[least]) && run_peak_is_measured(&p->runs[most]);
    report_say(p, "%s%s%s %s the least device memory: %s at its peak, %.0f %% less than %s (%s).", of_task ? "Of " : "",
               of_task ? arena_format(&p->memory, "%s, ", all) : "", p->labels[least],
               measured ? "used" : "is planned with", bytes_text(&p->memory, low), 100 * (1 - low / high),
               p->labels[most], bytes_text(&p->memory, high));
    say_why(p, least, most);
    say_roles(p, &p->runs[least], &p->runs[most]);
    say_speed(p, least, most);
    say_prediction(p, least, most);
    say_result(p, least, most);
}

static size_t count_task(const report *p, const char *task) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_runs; i++) n += same_text(p->runs[i].task, task);
    return n;
}

/* Task by task where one of them has several runs; else all together. */
static void say_groups(report *p) {
    bool any = false;
    for (size_t i = 0; i < p->n_runs; i++) {
        const char *task = p->runs[i].task;
        size_t n = count_task(p, task);
        bool first = true;
        for (size_t k = 0; k < i; k++) first &= !same_text(p->runs[k].task, task);
        if (!task || n < 2 || n == p->n_runs || !first) continue;
        say_several(p, task);
        any = true;
    }
    if (!any) say_several(p, NULL);
}

void words_write(report *p) {
    if (p->n_runs == 1) say_one(p);
    if (p->n_runs > 1) say_groups(p);
    for (size_t i = 0; i < p->n_runs; i++) say_state(p, i);
    bench_words(p);
}
