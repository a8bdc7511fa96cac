/* board.c - read what is new in the files of the run, keep it in bounded memory, tell the clients.
 *
 * A long metrics.jsonl is read a megabyte at a time, with the lock free in between: pages that ask meanwhile are answered with what is
 * known so far, and load again at its end. */
#include "live/board.h"
#include "live/flat.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS_EVERY_MS = 1000,
    RANKS_EVERY_MS_MANY = 10000,
    RANKS_MANY = 64,
    BEAT_EVERY_MS = 10000,
    SAMPLES_TAIL = 1 << 18
};

static status open_dir(const char *run_dir, int *out) {
    if ((*out = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) return OK;
    return ERR(ERR_IO, "open %s: %s", run_dir,
               errno == ENOTDIR ? "it is a file, expected the directory of a run" : strerror(errno));
}

/* Nothing is known of the run yet. */
static void begin_run(board *b, const char *run_dir, const char *name) {
    char *whole = realpath(run_dir, NULL);
    const char *last = whole ? strrchr(whole, '/') : NULL;
    snprintf(b->name, sizeof b->name, "%s", name ? name : last && last[1] ? last + 1 : run_dir);
    free(whole);
    b->path = mem_string(run_dir);
    b->run = (board_file){.name = "run.json"};
    b->plan = (board_file){.name = "plan.json"};
    b->memory = (board_file){.name = "memory.json"};
    b->config = (board_file){.name = "config.yaml", .is_yaml = true};
    tail_init(&b->metrics_tail, "metrics.jsonl", 0);
    tail_init(&b->samples_tail, "samples.jsonl", SAMPLES_TAIL);
    tail_init(&b->completions_tail, "completions.jsonl", SAMPLES_TAIL);
    b->samples = json_array(), b->completions = json_array(), b->fresh_samples = json_array();
}

status board_open(board *b, const char *run_dir, const char *name, stream_wake_fn wake, void *context) {
    *b = (board){.dir = -1};
    TRY(open_dir(run_dir, &b->dir));
    pthread_mutex_init(&b->lock, NULL);
    stream_init(&b->stream, wake, context);
    b->buffer = mem_alloc(TAIL_LINE_MOST + 1);
    begin_run(b, run_dir, name);
    return OK;
}

static void forget_metrics(board *b) {
    for (size_t i = 0; i < b->n_metrics; i++) {
        free(b->metrics[i].name);
        curve_fini(&b->metrics[i].all);
        curve_fini(&b->metrics[i].fresh);
    }
    free(b->metrics);
    b->metrics = NULL;
    b->n_metrics = b->n_metrics_unseen = 0;
    b->step = 0, b->step_ms = 0;
}

static void forget_run(board *b) {
    close(b->dir);
    b->dir = -1;
    free(b->path);
    b->path = NULL;
    forget_metrics(b);
    ranks_fini(b);
    json_decref(b->samples);
    json_decref(b->completions);
    json_decref(b->fresh_samples);
    board_file_fini(&b->run);
    board_file_fini(&b->plan);
    board_file_fini(&b->memory);
    board_file_fini(&b->config);
    free(b->run_sent);
    b->run_sent = NULL;
    b->is_reading = b->ranks_changed = false;
    b->ranks_ns = 0;
}

static void change_run(board *b, int dir, const char *run_dir, const char *name) {
    forget_run(b);
    b->dir = dir;
    begin_run(b, run_dir, name);
    stream_put(&b->stream, "reload", "{}");
}

status board_follow(board *b, const char *run_dir, const char *name) {
    int dir;
    TRY(open_dir(run_dir, &dir));
    pthread_mutex_lock(&b->lock);
    change_run(b, dir, run_dir, name);
    pthread_mutex_unlock(&b->lock);
    return OK;
}

/* A run that is removed and started anew in a directory of the same name is another run. While nothing has the name, the last
 * numbers stay. */
static void follow_path(board *b) {
    struct stat now, mine;
    int dir;
    if (stat(b->path, &now) != 0 || fstat(b->dir, &mine) != 0) return;
    if (now.st_dev == mine.st_dev && now.st_ino == mine.st_ino) return;
    if (open_dir(b->path, &dir) != OK) {
        error_clear();
        return;
    }
    char *path = b->path, name[sizeof b->name];
    b->path = NULL; /* kept over forget_run */
    memcpy(name, b->name, sizeof name);
    change_run(b, dir, path, name);
    free(path);
}

void board_close(board *b) {
    if (b->dir < 0) return;
    forget_run(b);
    stream_fini(&b->stream);
    pthread_mutex_destroy(&b->lock);
    free(b->buffer);
}

/* ---- metrics.jsonl ------------------------------------------------------------------------------------------------ */

static bool has_name(const char *name, span n) { return strncmp(name, n.text, n.length) == 0 && name[n.length] == 0; }

/* Lines of one kind have their keys in one order, so the next key is mostly the next metric. */
static board_metric *metric_of(board *b, span name, size_t *hint) {
    for (size_t i = 0; i < b->n_metrics; i++) {
        size_t at = (*hint + i) % b->n_metrics;
        if (!has_name(b->metrics[at].name, name)) continue;
        *hint = at + 1;
        return &b->metrics[at];
    }
    if (name.length == 0 || name.length > BOARD_NAME_MOST) return NULL;
    if (b->n_metrics == BOARD_METRICS_MOST) {
        b->n_metrics_unseen++;
        return NULL;
    }
    if (!b->metrics) b->metrics = mem_alloc(BOARD_METRICS_MOST * sizeof *b->metrics);
    board_metric *m = &b->metrics[b->n_metrics++];
    m->name = mem_alloc(name.length + 1);
    memcpy(m->name, name.text, name.length);
    curve_init(&m->all, BOARD_CURVE_BUCKETS);
    curve_init(&m->fresh, BOARD_FRESH_BUCKETS);
    *hint = b->n_metrics;
    return m;
}

static void metrics_line(void *context, const char *line, size_t n_bytes) {
    board *b = context;
    flat_pair pairs[FLAT_MOST];
    json_t *root = NULL;
    size_t n = flat_read(line, n_bytes, pairs, &root), hint = 0;
    double step = NAN;
    for (size_t i = 0; i < n && isnan(step); i++)
        if (has_name("step", pairs[i].name)) step = pairs[i].value;
    if (step >= (double)b->step && step <= 1e15) {
        b->step = (int64_t)step;
        for (size_t i = 0; i < n; i++) {
            double y = pairs[i].value;
            if (isnan(y) || has_name("step", pairs[i].name)) continue;
            board_metric *m = metric_of(b, pairs[i].name, &hint);
            if (!m) continue;
            curve_add(&m->all, step, y);
            curve_add(&m->fresh, step, y);
            if (has_name("perf/step_ms", pairs[i].name)) b->step_ms = b->step_ms > 0 ? 0.9 * b->step_ms + 0.1 * y : y;
        }
    }
    json_decref(root);
}

static void metrics_again(void *context) {
    board *b = context;
    forget_metrics(b);
    stream_put(&b->stream, "reload", "{}");
}

static void write_name(const char *name, strbuf *out) {
    json_t *text = json_string(name);
    char *printed = json_dumps(text, JSON_ENCODE_ANY);
    strbuf_add(out, printed ? printed : "\"?\"");
    free(printed);
    json_decref(text);
}

void board_write_metrics(board *b, size_t width, double after, strbuf *out) {
    strbuf_printf(out, "{\"id\":%llu,\"step\":%lld,\"unseen\":%zu,\"metrics\":{",
                  (unsigned long long)stream_last(&b->stream), (long long)b->step, b->n_metrics_unseen);
    for (size_t i = 0; i < b->n_metrics; i++) {
        if (i) strbuf_add(out, ",");
        write_name(b->metrics[i].name, out);
        strbuf_add(out, ":");
        curve_write_json(&b->metrics[i].all, width, after, out);
    }
    strbuf_add(out, "}}");
}

static void forget_fresh(board *b) {
    for (size_t i = 0; i < b->n_metrics; i++) curve_clear(&b->metrics[i].fresh);
}

static void tell_metrics(board *b) {
    strbuf out;
    strbuf_init(&out);
    size_t n = 0;
    strbuf_printf(&out, "{\"step\":%lld,\"metrics\":{", (long long)b->step);
    for (size_t i = 0; i < b->n_metrics; i++) {
        if (b->metrics[i].fresh.n == 0) continue;
        if (n++) strbuf_add(&out, ",");
        write_name(b->metrics[i].name, &out);
        strbuf_add(&out, ":");
        curve_write_json(&b->metrics[i].fresh, BOARD_FRESH_BUCKETS, -INFINITY, &out);
    }
    strbuf_add(&out, "}}");
    if (n) stream_put(&b->stream, "metrics", out.text);
    strbuf_fini(&out);
    forget_fresh(b);
}

/* True: the file is long, and more of it is to be read. */
static bool poll_metrics(board *b) {
    bool was_reading = b->is_reading;
    b->is_reading = tail_read(&b->metrics_tail, b->dir, b->buffer, metrics_again, metrics_line, b);
    if (b->is_reading) {
        forget_fresh(b); /* too many to tell one by one: pages load all of it at the end */
    } else if (was_reading) {
        forget_fresh(b);
        stream_put(&b->stream, "reload", "{}");
    } else {
        tell_metrics(b);
    }
    return b->is_reading;
}

/* ---- samples.jsonl and completions.jsonl -------------------------------------------------------------------------- */

static json_t *cut_text(const json_t *from, const char *key) {
    const json_t *text = json_object_get(from, key);
    return json_text(json_is_string(text) ? json_string_value(text) : "",
                     MIN(json_string_length(text), (size_t)BOARD_TEXT_MOST));
}

static json_t *copy_number(const json_t *from, const char *key) {
    const json_t *n = json_object_get(from, key);
    return json_is_number(n) ? json_real_or_null(json_number_value(n)) : json_null();
}

static void add_sample(board *b, json_t *to, bool is_trained, const char *line, size_t n) {
    json_t *root = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (json_is_number(json_object_get(root, "step"))) {
        json_t *one = json_pack("{s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "trained", is_trained, "step",
                                copy_number(root, "step"), "prompt", cut_text(root, "prompt"), "completion",
                                cut_text(root, "completion"), "stop", cut_text(root, "stop"), "reward",
                                copy_number(root, "reward"), "advantage", copy_number(root, "advantage"));
        if (one) {
            json_array_append(to, one);
            json_array_append_new(b->fresh_samples, one);
        }
        if (json_array_size(to) > BOARD_SAMPLES_MOST) json_array_remove(to, 0);
        if (json_array_size(b->fresh_samples) > BOARD_SAMPLES_MOST) json_array_remove(b->fresh_samples, 0);
    }
    json_decref(root);
}

static void samples_line(void *context, const char *line, size_t n) {
    add_sample(context, ((board *)context)->samples, false, line, n);
}
static void samples_again(void *context) { json_array_clear(((board *)context)->samples); }
static void completions_line(void *context, const char *line, size_t n) {
    add_sample(context, ((board *)context)->completions, true, line, n);
}
static void completions_again(void *context) { json_array_clear(((board *)context)->completions); }

static void put_json(stream *s, const char *event, const json_t *data) {
    char *text = json_dumps(data, JSON_COMPACT);
    if (text) stream_put(s, event, text);
    free(text);
}

static void poll_samples(board *b) {
    while (tail_read(&b->samples_tail, b->dir, b->buffer, samples_again, samples_line, b)) {}
    while (tail_read(&b->completions_tail, b->dir, b->buffer, completions_again, completions_line, b)) {}
    if (json_array_size(b->fresh_samples)) put_json(&b->stream, "samples", b->fresh_samples);
    json_array_clear(b->fresh_samples);
}

void board_write_samples(board *b, strbuf *out) {
    char *samples = json_dumps(b->samples, JSON_COMPACT), *completions = json_dumps(b->completions, JSON_COMPACT);
    strbuf_printf(out, "{\"samples\":%s,\"completions\":%s}", samples ? samples : "[]",
                  completions ? completions : "[]");
    free(samples);
    free(completions);
}

/* ---- the rest ----------------------------------------------------------------------------------------------------- */

void board_write_plan(board *b, strbuf *out) { strbuf_add(out, b->plan.text ? b->plan.text : "null"); }

void board_write_memory(board *b, size_t width, strbuf *out) {
    strbuf_printf(out, "{\"step\":%s,\"monitor\":", b->memory.text ? b->memory.text : "null");
    ranks_write(b, out);
    strbuf_add(out, ",\"curves\":");
    ranks_write_curves(b, width, out);
    strbuf_add(out, "}");
}

void board_write_run(board *b, strbuf *out) {
    json_t *state = run_state_make(b);
    json_object_set_new(state, "now", json_integer((json_int_t)time(NULL)));
    char *text = json_dumps(state, JSON_COMPACT);
    strbuf_add(out, text ? text : "null");
    free(text);
    json_decref(state);
}

static void tell_run(board *b) {
    json_t *state = run_state_make(b);
    char *text = json_dumps(state, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(state);
    if (!text || (b->run_sent && strcmp(text, b->run_sent) == 0)) {
        free(text);
        return;
    }
    free(b->run_sent);
    b->run_sent = text;
    strbuf out;
    strbuf_init(&out);
    board_write_run(b, &out);
    stream_put(&b->stream, "run", out.text);
    strbuf_fini(&out);
}

static void poll_files(board *b) {
    bool run_changed = false, changed = false;
    board_file_poll(&b->run, b->dir, &run_changed);
    board_file_poll(&b->config, b->dir, &run_changed); /* both are told by tell_run, if it says anything new */
    board_file_poll(&b->plan, b->dir, &changed);
    board_file_poll(&b->memory, b->dir, &changed);
    if (changed) stream_put(&b->stream, "files", "{}");
}

static void tell_ranks(board *b, uint64_t now) {
    uint64_t every = b->n_ranks > RANKS_MANY ? RANKS_EVERY_MS_MANY : RANKS_EVERY_MS;
    if (b->ranks_ns && now - b->ranks_ns < every * 1000000) return;
    b->ranks_ns = now;
    ranks_poll(b);
    if (!b->ranks_changed) return;
    b->ranks_changed = false;
    strbuf out;
    strbuf_init(&out);
    ranks_write(b, &out);
    stream_put(&b->stream, "ranks", out.text);
    strbuf_fini(&out);
}

bool board_poll(board *b) {
    uint64_t now = clock_ns();
    pthread_mutex_lock(&b->lock);
    uint64_t before = b->stream.next;
    follow_path(b);
    poll_files(b);
    bool more = poll_metrics(b);
    poll_samples(b);
    tell_ranks(b, now);
    tell_run(b);
    if (b->stream.next != before) b->beat_ns = now;
    else if (now - b->beat_ns > (uint64_t)BEAT_EVERY_MS * 1000000) {
        stream_put(&b->stream, NULL, NULL);
        b->beat_ns = now;
    }
    pthread_mutex_unlock(&b->lock);
    return more;
}
