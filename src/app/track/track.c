/* track.c - the progress line and metrics.jsonl, written by a thread of their own.
 *
 * A step only copies its numbers into a ring buffer: a stopped terminal, a full pipe or a slow disk does not delay it.
 * One thread empties the ring, so messages and the progress line never mix. Its signals are blocked: handlers run on
 * the caller's threads, and a closed pipe is a failed write here instead of a killed run.
 * If the ring is full a record is dropped and counted; a failed output is reported once and then given up.
 * Only track_open returns errors: a directory in which metrics.jsonl cannot be made is a wrong request. */
#include "track/track.h"
#include "track/jsonl.h"
#include "track/watch.h"
#include "track/sink.h"
#include "track/sinks.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    RING_SIZE = 4096,      /* records */
    BATCH_BYTES = 1 << 16, /* gathered before a write */
    TEXT_MAX = 1 << 20,    /* kept for an output that blocks */
    CHUNK_BYTES = 4096,    /* a pipe that polls writable takes this much without blocking */
    DRAW_INTERVAL_NS = 100000000,
    BAR_MIN = 10, /* columns inside the brackets */
    BAR_MAX = 30,
};

typedef enum record_kind { RECORD_STEP, RECORD_EVAL, RECORD_SAMPLE, RECORD_MESSAGE } record_kind;
typedef struct sample_record {
    int64_t step;
    bool is_trained; /* of completions.jsonl, else of samples.jsonl */
    strbuf lines;    /* of the file, freed by the writer ... */
    char *shown;     /* ... as is what the terminal shows; NULL: nothing */
} sample_record;
typedef struct record {
    record_kind kind;
    uint64_t time_ns; /* when the step was reported, not when it is written */
    union {
        struct {
            train_step_report report;
            uint64_t memory_used;
        } step;
        train_eval_report eval;
        sample_record sample;
        char *message; /* freed by the writer */
    };
} record;

struct track {
    track_options options;
    pthread_t thread;

    pthread_mutex_t lock; /* guards the ring */
    pthread_cond_t changed;
    record *ring;
    size_t first, count;
    uint64_t n_left_out;
    bool closing;
    uint64_t n_put, n_written; /* records; the second: also through the file */
    pthread_cond_t written;

    /* The rest belongs to the writer. */
    int out_fd;                          /* -1: silent */
    jsonl metrics, samples, completions; /* closed: no such file, or given up */
    sinks *sinks;                        /* NULL: none */
    strbuf sink_lines;                   /* not yet put into their queues */
    bool started;                        /* track_start was called; the caller's */
    double clock_offset;                 /* seconds from clock_ns to the time of day */
    strbuf text;                         /* for out, not yet written */
    strbuf line;
    bool terminal, bar_shown, bar_stale;
    bool out_blocked; /* out took nothing the last time */
    bool out_failed;  /* out is gone for good */
    bool text_cut;    /* more than TEXT_MAX was pending and was dropped */
    bool finished;    /* closing, and the ring is empty */
    uint64_t drawn_ns;
    record first_step, last_step; /* since track_open; count_steps tells whether they hold anything */
    uint64_t count_steps;
    loss_watch watch;
    epoch_watch epochs;
    jsonl events; /* what the watch reports; made with the first of them */
    bool events_failed;
};

/* ---- the caller's side ----------------------------------------------------------------------------------------- */

static bool ring_put(track *t, const record *r) {
    pthread_mutex_lock(&t->lock);
    bool room = t->count < RING_SIZE;
    if (room) t->ring[(t->first + t->count++) % RING_SIZE] = *r, t->n_put++;
    else t->n_left_out++;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return room;
}

/* A rollout may have more completions than the ring has records: lines of a step that are still to be written are one. */
static bool ring_join(track *t, const sample_record *s) {
    pthread_mutex_lock(&t->lock);
    record *last = &t->ring[(t->first + t->count + RING_SIZE - 1) % RING_SIZE];
    bool joins = t->count > 0 && last->kind == RECORD_SAMPLE && last->sample.is_trained && last->sample.step == s->step;
    if (joins) strbuf_add_bytes(&last->sample.lines, s->lines.text, s->lines.length);
    pthread_mutex_unlock(&t->lock);
    return joins;
}

void track_step(track *t, const train_step_report *r, uint64_t memory_used) {
    ring_put(t, &(record){RECORD_STEP, clock_ns(), .step = {*r, memory_used}});
}

void track_eval(track *t, const train_eval_report *r) { ring_put(t, &(record){RECORD_EVAL, clock_ns(), .eval = *r}); }

void track_sample(track *t, const train_sample *s) {
    json_t *line = json_pack("{s:I, s:o, s:o, s:s}", "step", (json_int_t)s->step, "prompt",
                             json_text(s->prompt.text, s->prompt.length), "completion",
                             json_text(s->completion.text, s->completion.length), "stop", stop_reason_name(s->stop));
    char *text = json_dumps(line, JSON_PRESERVE_ORDER);
    strbuf out, shown;
    strbuf_init(&out);
    strbuf_init(&shown);
    strbuf_printf(&out, "%s\n", text);
    strbuf_printf(&shown, "sample at step %lld: ", (long long)s->step);
    strbuf_add_bytes(&shown, s->prompt.text, s->prompt.length);
    strbuf_add(&shown, " >>> ");
    strbuf_add_bytes(&shown, s->completion.text, s->completion.length);
    record r = {RECORD_SAMPLE, clock_ns(), .sample = {s->step, false, out, strbuf_take(&shown)}};
    if (!ring_put(t, &r)) {
        strbuf_fini(&r.sample.lines);
        free(r.sample.shown);
    }
    free(text);
    json_decref(line);
}

/* JSON has no NaN. */
static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

void track_completion(track *t, const train_completion *c) {
    json_t *rewards = json_object();
    for (size_t f = 0; f < c->n_rewards; f++)
        json_object_set_new(rewards, c->reward_names[f], number_or_null(c->rewards[f]));
    json_t *line =
        json_pack("{s:I, s:o, s:o, s:s, s:o, s:o, s:o}", "step", (json_int_t)c->step, "prompt",
                  json_text(c->prompt.text, c->prompt.length), "completion",
                  json_text(c->completion.text, c->completion.length), "stop", stop_reason_name(c->stop), "rewards",
                  rewards, "reward", number_or_null(c->reward), "advantage", number_or_null(c->advantage));
    char *text = json_dumps(line, JSON_PRESERVE_ORDER);
    strbuf out;
    strbuf_init(&out);
    strbuf_printf(&out, "%s\n", text);
    record r = {RECORD_SAMPLE, clock_ns(), .sample = {c->step, true, out, NULL}};
    if (ring_join(t, &r.sample) || !ring_put(t, &r)) strbuf_fini(&r.sample.lines);
    free(text);
    json_decref(line);
}

void track_message(track *t, const char *text) {
    size_t length = strlen(text);
    char *copy = mem_alloc(length + 1);
    memcpy(copy, text, length);
    if (!ring_put(t, &(record){RECORD_MESSAGE, clock_ns(), .message = copy})) free(copy);
}

void track_sync(track *t) {
    pthread_mutex_lock(&t->lock);
    uint64_t n = t->n_put;
    while (t->n_written < n) pthread_cond_wait(&t->written, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

/* ---- the step line --------------------------------------------------------------------------------------------- */

/* Parts of the line in the order they are shown; rank: if the line is too long, parts with the highest rank are
 * dropped first. */
typedef struct line_part {
    int rank;
    char text[64];
} line_part;

static void duration_format(char *out, size_t n, double seconds) {
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e9) {
        snprintf(out, n, "?");
        return;
    }
    long long s = llround(seconds), days = s / 86400, h = s / 3600 % 24, m = s / 60 % 60;
    if (days) snprintf(out, n, "%lldd %02lld:%02lld", days, h, m);
    else if (h) snprintf(out, n, "%lld:%02lld:%02lld", h, m, s % 60);
    else snprintf(out, n, "%lld:%02lld", m, s % 60);
}

double track_pace_ms(int64_t first_step, uint64_t first_ns, const train_step_report *now, uint64_t now_ns) {
    int64_t n_done = now->step - first_step;
    return n_done > 0 ? (double)(now_ns - first_ns) * 1e-6 / (double)n_done : now->step_ms;
}

static double seconds_left(const track *t, const record *r) {
    const train_step_report *s = &r->step.report;
    return track_pace_ms(t->first_step.step.report.step, t->first_step.time_ns, s, r->time_ns) * 1e-3 *
           (double)(s->steps - s->step);
}

__attribute__((format(printf, 4, 5))) static void part_add(line_part *parts, int *n, int rank, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    parts[*n].rank = rank;
    vsnprintf(parts[*n].text, sizeof parts[*n].text, fmt, args);
    va_end(args);
    (*n)++;
}

/* The numbers that the task wants to be seen, as "acc 0.97". A mean over nothing is NaN and is left out. */
static void metrics_shown(const train_metrics *m, char out[METRICS_SHOWN][64], int *n) {
    *n = 0;
    for (int i = 0; i < m->n && *n < METRICS_SHOWN; i++)
        if (m->list[i].row->label && !isnan(m->list[i].value))
            snprintf(out[(*n)++], sizeof out[0], "%s %.4g", m->list[i].row->label, m->list[i].value);
}

enum { MAX_PARTS = 13 };
static int line_parts(const track *t, const record *r, line_part parts[MAX_PARTS]) {
    const train_step_report *s = &r->step.report;
    char number[32], used[32];
    int n = 0;
    part_add(parts, &n, 0, "%3.0f %%", s->steps > 0 ? floor(100.0 * (double)s->step / (double)s->steps) : 0.0);
    part_add(parts, &n, 0, "step %lld/%lld", (long long)s->step, (long long)s->steps);
    if (s->epoch > 0) part_add(parts, &n, 3, "epoch %.2f", s->epoch);
    part_add(parts, &n, 0, fabs(s->loss) < 1e5 ? "loss %.4f" : "loss %.4g", s->loss);
    if (s->skipped) part_add(parts, &n, 1, "skipped");
    char shown[METRICS_SHOWN][64];
    int n_shown;
    metrics_shown(&s->metrics, shown, &n_shown);
    for (int i = 0; i < n_shown; i++) part_add(parts, &n, 2, "%s", shown[i]);
    part_add(parts, &n, 4, "grad %.3g", s->grad_norm);
    part_add(parts, &n, 7, "lr %.2e", s->lr);
    part_add(parts, &n, 3, "%s tok/s", str_format_count(number, s->tokens_per_second));
    /* More than the peak: other programs disturbed its measurement, and the number says nothing. */
    if (t->options.peak_flops > 0 && s->flops_per_second <= t->options.peak_flops)
        part_add(parts, &n, 5, "%.0f %% of peak", 100 * s->flops_per_second / t->options.peak_flops);
    if (t->options.memory_planned > 0)
        part_add(parts, &n, 6, "mem %s of %s", str_format_bytes(used, r->step.memory_used),
                 str_format_bytes(number, t->options.memory_planned));
    if (s->step < s->steps) {
        duration_format(number, sizeof number, seconds_left(t, r));
        part_add(parts, &n, 2, "ETA %s", number);
    } else {
        /* Steps are reported when they are done: add the first one's own time. */
        double seconds = (double)(r->time_ns - t->first_step.time_ns) * 1e-9 + t->first_step.step.report.step_ms * 1e-3;
        duration_format(number, sizeof number, seconds);
        part_add(parts, &n, 2, "in %s", number);
    }
    return n;
}

static size_t parts_width(const line_part *parts, int n, int max_rank) {
    size_t width = 0;
    for (int i = 0; i < n; i++)
        if (parts[i].rank <= max_rank) width += (width ? 2 : 0) + strlen(parts[i].text);
    return width;
}

/* The line for `width` columns; 0 = full length, without a bar. Parts are dropped by rank until the rest fits, and
 * the bar takes the columns that are left. */
static void line_format(track *t, const record *r, size_t width) {
    line_part parts[MAX_PARTS];
    int n = line_parts(t, r, parts), max_rank = 9;
    const train_step_report *s = &r->step.report;
    if (width > 0)
        while (max_rank > 0 && parts_width(parts, n, max_rank) + BAR_MIN + 4 > width) max_rank--;
    size_t used = parts_width(parts, n, max_rank);
    t->line.length = 0;
    if (width > used + BAR_MIN + 3) {
        int cells = (int)MIN(width - used - 4, (size_t)BAR_MAX);
        int filled = s->steps > 0 ? (int)((double)cells * (double)MIN(s->step, s->steps) / (double)s->steps) : 0;
        strbuf_add(&t->line, "[");
        for (int i = 0; i < cells; i++) strbuf_add(&t->line, i < filled ? "=" : i == filled ? ">" : " ");
        strbuf_add(&t->line, "]");
    }
    for (int i = 0; i < n; i++)
        if (parts[i].rank <= max_rank) strbuf_printf(&t->line, "%s%s", t->line.length ? "  " : "", parts[i].text);
    if (width > 0 && t->line.length > width) {
        t->line.length = width;
        t->line.text[width] = 0;
    }
}

/* Never waits for a slow reader unless told to: what it does not accept now is kept for later. */
static void text_flush(track *t, bool wait) {
    t->out_blocked = false;
    if (t->text.length == 0) return;
    size_t done = 0;
    while (done < t->text.length && !t->out_failed && !t->out_blocked) {
        struct pollfd ready = {t->out_fd, POLLOUT, 0};
        if (poll(&ready, 1, wait ? -1 : 0) == 0) {
            t->out_blocked = true;
            break;
        }
        ssize_t n = write(t->out_fd, t->text.text + done, MIN(t->text.length - done, (size_t)CHUNK_BYTES));
        if (n > 0) done += (size_t)n;
        else if (n < 0 && errno == EAGAIN) t->out_blocked = !wait;
        else if (n == 0 || errno != EINTR) t->out_failed = true; /* no output is left: the run continues in silence */
    }
    bool too_much = t->text.length - done > TEXT_MAX;
    t->text_cut |= too_much;
    if (t->out_failed || too_much) done = t->text.length;
    memmove(t->text.text, t->text.text + done, t->text.length - done);
    t->text.length -= done;
}

static void bar_clear(track *t) {
    if (t->bar_shown) strbuf_add(&t->text, "\r\033[K");
    t->bar_shown = false;
}

/* One column stays free: writing into the last one makes some terminals wrap. */
static void bar_draw(track *t) {
    struct winsize size;
    size_t width = ioctl(t->out_fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
    line_format(t, &t->last_step, width - 1);
    strbuf_printf(&t->text, "\r%s\033[K", t->line.text);
    t->bar_shown = true;
    t->bar_stale = false;
    t->drawn_ns = clock_ns();
}

static void text_add_step(track *t, const record *r) {
    const train_step_report *s = &r->step.report;
    bool first = t->count_steps == 1, last = s->step >= s->steps;
    if (t->terminal) {
        t->bar_stale = true;
        if (!t->out_blocked && (first || last || clock_ns() - t->drawn_ns >= DRAW_INTERVAL_NS)) bar_draw(t);
    } else if (first || last || s->skipped || (t->options.log_every > 0 && s->step % t->options.log_every == 0)) {
        line_format(t, r, 0);
        strbuf_printf(&t->text, "%s\n", t->line.text);
    }
}

/* A message above the progress line, which is redrawn below it. */
static void text_add_line(track *t, const char *text) {
    if (t->out_fd < 0 || (t->options.warnings_only && !str_starts_with(text, "warning: "))) return;
    size_t length = strlen(text);
    while (length > 0 && text[length - 1] == '\n') length--;
    bool shown = t->bar_shown;
    bar_clear(t);
    strbuf_add_escaped(&t->text, text, length);
    strbuf_add(&t->text, "\n");
    if (shown) bar_draw(t);
}

static void text_add_eval(track *t, const train_eval_report *e) {
    char text[320], loss[32] = "", exact[64] = "", shown[METRICS_SHOWN][64];
    if (e->n_rows > 0) snprintf(loss, sizeof loss, "  loss %.4f", e->loss);
    if (e->n_problems > 0)
        snprintf(exact, sizeof exact, "  exact match %.1f %% of %lld problems", 100 * e->exact_match,
                 (long long)e->n_problems);
    int length = snprintf(text, sizeof text, "eval at step %lld%s%s", (long long)e->step, loss, exact), n_shown;
    metrics_shown(&e->metrics, shown, &n_shown);
    for (int i = 0; i < n_shown; i++) length += snprintf(text + length, sizeof text - (size_t)length, "  %s", shown[i]);
    text_add_line(t, text);
}

/* ---- sinks ------------------------------------------------------------------------------------------------------ */

static double time_of_day(const track *t, uint64_t time_ns) { return t->clock_offset + (double)time_ns * 1e-9; }

static void say_of_sinks(void *t, const char *text) { track_message(t, text); }

void track_start(track *t, const json_t *settings) {
    if (!t->sinks) return;
    t->started = true;
    strbuf lines;
    strbuf_init(&lines);
    double now = time_of_day(t, clock_ns());
    sink_add_params(&lines, now, settings);
    sink_add_artefact(&lines, now, "config.yaml");
    sinks_put(t->sinks, lines.text, lines.length);
    strbuf_fini(&lines);
}

/* A resume that is refused says nothing about the run that it did not continue. */
void track_end(track *t, status rc) {
    if (!t->sinks || !t->started) return;
    static const char *const files[] = {"plan.json", "memory.json", "samples.jsonl", "completions.jsonl"};
    error_record why; /* of the run: nothing here may replace it */
    error_take(&why);
    track_sync(t);
    strbuf lines;
    strbuf_init(&lines);
    double now = time_of_day(t, clock_ns());
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
        if (dir_holds(t->options.run_dir, files[i])) sink_add_artefact(&lines, now, files[i]);
    sink_add_end(&lines, now, rc == OK ? SINK_FINISHED : rc == ERR_INTERRUPTED ? SINK_KILLED : SINK_FAILED);
    sinks_put(t->sinks, lines.text, lines.length);
    strbuf_fini(&lines);
    if (rc != OK) error_give(&why);
}

static void sinks_add(track *t, const record *r) {
    double time = time_of_day(t, r->time_ns);
    if (r->kind == RECORD_STEP) sink_add_step(&t->sink_lines, time, &r->step.report, r->step.memory_used);
    else if (r->kind == RECORD_EVAL) sink_add_eval(&t->sink_lines, time, &r->eval);
    else if (r->kind == RECORD_SAMPLE && !r->sample.is_trained)
        sink_add_sample(&t->sink_lines, time, r->sample.lines.text);
}

/* ---- metrics.jsonl --------------------------------------------------------------------------------------------- */

static void metric_key(strbuf *b, const char *name) {
    bool first = b->text[b->length - 1] == '{';
    strbuf_printf(b, "%s\"%s\": ", first ? "" : ", ", name);
}

static void metric_whole(strbuf *b, const char *name, uint64_t x) {
    metric_key(b, name);
    strbuf_printf(b, "%llu", (unsigned long long)x);
}

/* JSON has no NaN and no infinity: they become null. Nine digits give back any fp32 exactly. */
static void metric_real(strbuf *b, const char *name, double x) {
    metric_key(b, name);
    if (isfinite(x)) strbuf_printf(b, "%.9g", x);
    else strbuf_add(b, "null");
}

static void metric_flag(strbuf *b, const char *name, bool x) {
    metric_key(b, name);
    strbuf_add(b, x ? "true" : "false");
}

static void metrics_add_task(strbuf *b, const train_metrics *m) {
    for (int i = 0; i < m->n; i++) metric_real(b, m->list[i].row->name, m->list[i].value);
}

static void metrics_add_step(track *t, const record *r) {
    const train_step_report *s = &r->step.report;
    uint64_t memory_used = r->step.memory_used;
    strbuf *b = &t->metrics.lines;
    strbuf_add(b, "{");
#define METRIC_STEP(name, type, value, when, help) \
    if (when) metric_##type(b, name, value);
#define METRIC_EVAL(...)
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    metrics_add_task(b, &s->metrics);
    strbuf_add(b, "}\n");
}

static void metrics_add_eval(track *t, const train_eval_report *e) {
    strbuf *b = &t->metrics.lines;
    strbuf_add(b, "{");
#define METRIC_STEP(...)
#define METRIC_EVAL(name, type, value, when, help) \
    if (when) metric_##type(b, name, value);
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    metrics_add_task(b, &e->metrics);
    strbuf_add(b, "}\n");
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

/* A file that fails is given up, with one warning. */
static void files_flush(track *t) {
    jsonl *files[] = {&t->metrics, &t->samples, &t->completions, &t->events};
    char text[512];
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
        if (!jsonl_flush(files[i], text, sizeof text)) text_add_line(t, text);
    sinks_put(t->sinks, t->sink_lines.text, t->sink_lines.length);
    t->sink_lines.length = 0;
}

static void sample_write(track *t, sample_record *s) {
    jsonl *file = s->is_trained ? &t->completions : &t->samples;
    if (jsonl_is_open(file)) {
        jsonl_cut_from(file, s->step, false);
        strbuf_add_bytes(&file->lines, s->lines.text, s->lines.length);
    }
    if (s->shown) text_add_line(t, s->shown);
    strbuf_fini(&s->lines);
    free(s->shown);
}

/* ---- events.jsonl -------------------------------------------------------------------------------------------------- */

/* Only with the first event: most runs have none. */
static void events_open(track *t) {
    if (!t->options.run_dir || t->events_failed || jsonl_is_open(&t->events)) return;
    t->events_failed = jsonl_open(&t->events, t->options.run_dir) != OK;
    if (t->events_failed) {
        char text[1024];
        snprintf(text, sizeof text, "warning: %s", error_message());
        text_add_line(t, text);
    }
    error_clear();
}

static void event_add(track *t, const loss_event *e) {
    events_open(t);
    text_add_line(t, e->message);
    if (!jsonl_is_open(&t->events)) return;
    jsonl_cut_from(&t->events, e->step, false);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    json_t *line = json_pack("{s:I, s:s, s:f, s:o, s:o, s:s}", "step", (json_int_t)e->step, "event", e->name, "time",
                             (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, "loss", number_or_null(e->loss), "median",
                             number_or_null(e->median), "message", e->message);
    char *text = json_dumps(line, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    strbuf_printf(&t->events.lines, "%s\n", text);
    free(text);
    json_decref(line);
}

static void losses_watch(track *t, const train_step_report *r) {
    loss_event e;
    char text[160];
    if (epoch_watch_step(&t->epochs, r, text, sizeof text)) text_add_line(t, text);
    if (jsonl_is_open(&t->events)) jsonl_cut_from(&t->events, r->step, false);
    if (loss_watch_step(&t->watch, r, &e)) event_add(t, &e);
}

/* ---- the writer ------------------------------------------------------------------------------------------------ */

static void record_write(track *t, record *r) {
    bool file = jsonl_is_open(&t->metrics), out = t->out_fd >= 0 && !t->options.warnings_only;
    if (t->sinks) sinks_add(t, r);
    switch (r->kind) {
    case RECORD_STEP:
        if (t->count_steps++ == 0) t->first_step = *r;
        t->last_step = *r;
        if (file) jsonl_cut_from(&t->metrics, r->step.report.step, false);
        if (file) metrics_add_step(t, r);
        if (out) text_add_step(t, r);
        losses_watch(t, &r->step.report);
        break;
    case RECORD_EVAL:
        if (file) jsonl_cut_from(&t->metrics, r->eval.step, true);
        if (file) metrics_add_eval(t, &r->eval);
        if (out) text_add_eval(t, &r->eval);
        break;
    case RECORD_SAMPLE: sample_write(t, &r->sample); break;
    case RECORD_MESSAGE:
        text_add_line(t, r->message);
        free(r->message);
        break;
    }
}

/* Waits up to wait_ns for a record (UINT64_MAX: for ever); false when none came. */
static bool ring_take(track *t, record *out, uint64_t wait_ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (wait_ns != UINT64_MAX) {
        uint64_t ns = (uint64_t)until.tv_nsec + wait_ns;
        until.tv_sec += (time_t)(ns / 1000000000);
        until.tv_nsec = (long)(ns % 1000000000);
    }
    pthread_mutex_lock(&t->lock);
    int rc = 0;
    while (t->count == 0 && !t->closing && wait_ns > 0 && rc == 0)
        rc = wait_ns == UINT64_MAX ? pthread_cond_wait(&t->changed, &t->lock)
                                   : pthread_cond_timedwait(&t->changed, &t->lock, &until);
    bool found = t->count > 0;
    if (found) {
        *out = t->ring[t->first];
        t->count--;
        t->first =
            t->count ? (t->first + 1) % RING_SIZE : 0; /* from the start: a ring that is never full uses few pages */
    }
    t->finished = t->closing && t->count == 0;
    pthread_mutex_unlock(&t->lock);
    return found;
}

static void note_written(track *t, uint64_t n) {
    pthread_mutex_lock(&t->lock);
    t->n_written += n;
    pthread_cond_broadcast(&t->written);
    pthread_mutex_unlock(&t->lock);
}

/* Writes everything pending at once. The file comes first: it is the record, the terminal only shows it. */
static void *writer_main(void *argument) {
    track *t = argument;
    record r;
    while (!t->finished) {
        /* A line delayed by the draw interval or by a slow output is tried again after a while. */
        bool later = t->text.length > 0 || t->bar_stale;
        bool found = ring_take(t, &r, later ? DRAW_INTERVAL_NS : UINT64_MAX);
        if (!found && t->bar_stale && !t->out_blocked) bar_draw(t);
        uint64_t n = 0;
        for (; found; found = t->metrics.lines.length + t->text.length < BATCH_BYTES && ring_take(t, &r, 0), n++)
            record_write(t, &r);
        files_flush(t);
        note_written(t, n);
        text_flush(t, false);
    }
    if (t->n_left_out > 0 || t->text_cut) {
        char text[128];
        snprintf(text, sizeof text, "warning: the output was too slow: %llu metric lines or messages were dropped%s",
                 (unsigned long long)t->n_left_out, t->text_cut ? ", and some progress lines" : "");
        text_add_line(t, text);
    }
    if (t->bar_stale) bar_draw(t);
    if (t->bar_shown) strbuf_add(&t->text, "\n");
    text_flush(t, true);
    return NULL;
}

static void track_free(track *t) {
    jsonl_close(&t->metrics);
    jsonl_close(&t->samples);
    jsonl_close(&t->completions);
    jsonl_close(&t->events);
    strbuf_fini(&t->text);
    strbuf_fini(&t->line);
    strbuf_fini(&t->sink_lines);
    pthread_cond_destroy(&t->changed);
    pthread_cond_destroy(&t->written);
    pthread_mutex_destroy(&t->lock);
    free(t->ring);
    free(t);
}

/* Past stdio, so that a write can be tried without waiting; what the caller left in its buffer goes first. */
static void use_terminal(track *t, FILE *out) {
    const char *term = getenv("TERM");
    t->out_fd = -1;
    if (!out) return;
    fflush(out);
    t->out_fd = out == stderr ? STDERR_FILENO : fileno(out); /* cli's stderr is a filter before it */
    ASSERT(t->out_fd >= 0);
    t->terminal = isatty(t->out_fd) && !(term && strcmp(term, "dumb") == 0);
}

static status open_files(track *t, const track_options *o) {
    TRY(jsonl_open(&t->metrics, o->run_dir));
    if (o->samples) TRY(jsonl_open(&t->samples, o->run_dir));
    if (o->completions) TRY(jsonl_open(&t->completions, o->run_dir));
    /* An earlier run's: steps that are made again lose their events. */
    if (dir_holds(o->run_dir, "events.jsonl")) TRY(jsonl_open(&t->events, o->run_dir));
    return o->sinks ? sinks_open(&t->sinks, o->sinks, o->run_dir, say_of_sinks, t) : OK;
}

status track_open(track **out, const track_options *o) {
    track *t = mem_alloc(sizeof *t);
    status rc = OK;
    t->options = *o;
    jsonl_init(&t->metrics, "metrics");
    jsonl_init(&t->samples, "samples");
    jsonl_init(&t->completions, "completions");
    jsonl_init(&t->events, "events");
    t->watch = (loss_watch){.spikes = o->spikes, .is_no_objective = o->loss_is_no_objective, .advice = o->advice};
    if (o->steps_per_epoch >= (double)o->log_every) t->epochs.steps = o->steps_per_epoch;
    t->ring = mem_alloc(sizeof *t->ring * RING_SIZE);
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&t->written, NULL);
    strbuf_init(&t->text);
    strbuf_init(&t->line);
    strbuf_init(&t->sink_lines);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->clock_offset = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)clock_ns() * 1e-9;
    use_terminal(t, o->out);
    if (o->run_dir) TRY_GOTO(rc, open_files(t, o), fail);
    int error = thread_start(&t->thread, writer_main, t);
    if (error) {
        rc = ERR(ERR_RUN, "the thread that writes metrics did not start: %s", strerror(error));
        goto fail;
    }
    *out = t;
    return OK;
fail:
    sinks_close(t->sinks);
    track_free(t);
    return rc;
}

void track_close(track *t) {
    if (!t) return;
    track_sync(t);
    sinks_close(t->sinks); /* while the writer still shows what they say */
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    track_free(t);
}
