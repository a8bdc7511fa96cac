/* test_live_files.c - what the live page knows of a run: curves that keep every extreme, files that grow, are cut or are hostile, the state
 * of a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "files.h"
#include "live/board.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static json_t *parse(strbuf *text) {
    json_t *root = json_loadb(text->text, text->length, JSON_REJECT_DUPLICATES, NULL);
    if (!root) fail_msg("no JSON: %.200s", text->text);
    strbuf_fini(text);
    return root;
}

/* ---- curves ------------------------------------------------------------------------------------------------------- */

static double noise(int64_t i) { return (double)((uint64_t)i * 2654435761u % 1000) / 1000; }

/* A million steps with a spike up and one down in every thousandth of them: each is found with its value and step. */
static void a_million_steps_keep_every_extreme(void **state) {
    enum { STEPS = 1000000, PART = STEPS / 100 };
    curve c;
    curve_init(&c, BOARD_CURVE_BUCKETS);
    for (int64_t i = 1; i <= STEPS; i++) {
        int64_t in = i % PART;
        double y = in == PART / 3 ? 50 + (double)(i / PART) : in == PART / 2 ? -50 - (double)(i / PART) : noise(i);
        curve_add(&c, (double)i, y);
    }
    assert_true(c.n <= BOARD_CURVE_BUCKETS && c.room <= 2 * BOARD_CURVE_BUCKETS);
    strbuf out;
    strbuf_init(&out);
    curve_write_json(&c, 400, -INFINITY, &out);
    json_t *root = parse(&out), *x = json_object_get(root, "x"), *y = json_object_get(root, "y");
    assert_true(json_array_size(x) == json_array_size(y) && json_array_size(x) <= 2 * 400 + 2);
    assert_true(json_number_value(json_array_get(x, 0)) == 1);
    assert_true(json_number_value(json_array_get(x, json_array_size(x) - 1)) == STEPS);
    int ups = 0, downs = 0;
    double before = 0;
    for (size_t i = 0; i < json_array_size(x); i++) {
        double at = json_number_value(json_array_get(x, i)), value = json_number_value(json_array_get(y, i));
        assert_true(at >= before);
        before = at;
        if (value >= 50) ups++, assert_true(value == 50 + floor(at / PART) && (int64_t)at % PART == PART / 3);
        if (value <= -50) downs++, assert_true(value == -50 - floor(at / PART) && (int64_t)at % PART == PART / 2);
    }
    assert_int_equal(ups, 100);
    assert_int_equal(downs, 100);
    json_decref(root);
    curve_fini(&c);
}

/* Few points are all there; `after` leaves out those that a page has. */
static void few_points_are_exact(void **state) {
    curve c;
    curve_init(&c, 64);
    for (int i = 1; i <= 50; i++) curve_add(&c, i, noise(i));
    for (int after = 0; after <= 50; after += 10) {
        strbuf out;
        strbuf_init(&out);
        curve_write_json(&c, 800, after, &out);
        json_t *root = parse(&out), *x = json_object_get(root, "x"), *y = json_object_get(root, "y");
        assert_int_equal(json_array_size(x), 50 - after);
        for (int i = after + 1; i <= 50; i++) {
            assert_true(json_number_value(json_array_get(x, (size_t)(i - after - 1))) == i);
            assert_true(fabs(json_number_value(json_array_get(y, (size_t)(i - after - 1))) - noise(i)) < 1e-8);
        }
        json_decref(root);
    }
    curve_fini(&c);
}

/* ---- files that grow ---------------------------------------------------------------------------------------------- */

typedef struct lines {
    char text[4096];
    int n_again;
} lines;

static void keep_line(void *context, const char *line, size_t n) {
    lines *l = context;
    assert_true(strlen(line) <= n);
    snprintf(l->text + strlen(l->text), sizeof l->text - strlen(l->text), "%.20s|", line);
}
static void keep_again(void *context) {
    lines *l = context;
    l->text[0] = 0;
    l->n_again++;
}

static void append_text(const char *path, const char *text) {
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_tail_reads_whole_lines_once(void **state) {
    char *buffer = mem_alloc(TAIL_LINE_MOST + 1);
    const char *path = path_of("t.jsonl");
    int dir = open(test_dir, O_RDONLY | O_DIRECTORY);
    lines l = {0};
    tail t;
    tail_init(&t, "t.jsonl", 0);
#define READ() \
    while (tail_read(&t, dir, buffer, keep_again, keep_line, &l)) {}
    READ(); /* not there yet */
    assert_string_equal(l.text, "");
    append_text(path, "one\ntw");
    READ();
    assert_string_equal(l.text, "one|");
    append_text(path, "o\n\nthree\n");
    READ();
    READ();
    assert_string_equal(l.text, "one|two|three|");
    /* Cut, and as long as before at once: a resumed run. */
    write_text(path, "one\nTWO\n\nthree\nfour\n");
    READ();
    assert_int_equal(l.n_again, 1);
    assert_string_equal(l.text, "one|TWO|three|four|");
    assert_int_equal(truncate(path, 4), 0);
    READ();
    assert_int_equal(l.n_again, 2);
    assert_string_equal(l.text, "one|");
    /* Another file of the same name. */
    write_text(path_of("new"), "one\nnext\n");
    assert_int_equal(rename(path_of("new"), path), 0);
    READ();
    assert_int_equal(l.n_again, 3);
    assert_string_equal(l.text, "one|next|");
    /* A link is not followed, a directory is no file; what was read stays. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    READ();
    assert_string_equal(l.text, "one|next|");
    assert_int_equal(unlink(path), 0);
    close(dir);
    free(buffer);
}

static void a_tail_passes_over_lines_that_are_too_long(void **state) {
    char *buffer = mem_alloc(TAIL_LINE_MOST + 1), *long_line = mem_alloc(3 * TAIL_LINE_MOST + 1);
    const char *path = path_of("long.jsonl");
    int dir = open(test_dir, O_RDONLY | O_DIRECTORY);
    memset(long_line, 'x', 3 * TAIL_LINE_MOST);
    write_text(path, "first\n");
    append_text(path, long_line);
    append_text(path, "\nlast\n");
    lines l = {0};
    tail t;
    tail_init(&t, "long.jsonl", 0);
    READ();
    assert_string_equal(l.text, "first|last|");
    /* Only the end of a long file, from a whole line on. */
    tail_init(&t, "long.jsonl", 8);
    l = (lines){0};
    READ();
    assert_string_equal(l.text, "last|");
    append_text(path, "more\n");
    READ();
    assert_string_equal(l.text, "last|more|");
    assert_int_equal(l.n_again, 0);
    close(dir);
    free(buffer);
    free(long_line);
}

/* ---- the board ---------------------------------------------------------------------------------------------------- */

static void no_wake(void *context, void *connection) { fail(); }

typedef void (*board_writer)(board *b, strbuf *out);
static void all_metrics(board *b, strbuf *out) { board_write_metrics(b, 800, -INFINITY, out); }
static void all_memory(board *b, strbuf *out) { board_write_memory(b, 600, out); }
static json_t *board_json(board *b, board_writer write) {
    strbuf out;
    strbuf_init(&out);
    write(b, &out);
    return parse(&out);
}

static void poll_all(board *b) {
    b->ranks_ns = 0;
    while (board_poll(b)) {}
}

static double last_y(board *b, const char *metric) {
    json_t *root = board_json(b, all_metrics),
           *y = json_object_get(json_object_get(json_object_get(root, "metrics"), metric), "y");
    double value = json_array_size(y) ? json_number_value(json_array_get(y, json_array_size(y) - 1)) : NAN;
    json_decref(root);
    return value;
}

static void metrics_follow_the_file(void **state) {
    board b;
    assert_int_equal(board_open(&b, test_dir, NULL, no_wake, NULL), OK);
    poll_all(&b);
    assert_true(isnan(last_y(&b, "train/loss")));
    const char *path = path_of("metrics.jsonl");
    write_text(path, "{\"step\": 1, \"train/loss\": 3.5, \"perf/step_ms\": 10}\n{\"step\": 2, \"train/loss\": 3.25}\n");
    uint64_t before = stream_last(&b.stream);
    poll_all(&b);
    assert_true(last_y(&b, "train/loss") == 3.25 && last_y(&b, "perf/step_ms") == 10);
    assert_true(stream_last(&b.stream) > before);
    /* Lines that are no metrics, values that are no numbers, steps that go back: left out. */
    append_text(path, "{\"step\": 3, \"train/loss\": null, \"train/skipped\": true, \"x\": "
                      "\"text\"}\n{broken\n[1]\n{\"step\": \"4\"}\n"
                      "{\"step\": 1, \"train/loss\": 9}\n{\"step\": 1e400}\n\xff\xfe\n");
    poll_all(&b);
    assert_true(last_y(&b, "train/loss") == 3.25 && last_y(&b, "train/skipped") == 1 && isnan(last_y(&b, "x")));
    assert_int_equal(b.step, 3);
    /* A resumed run repeats step 2. */
    write_text(path, "{\"step\": 1, \"train/loss\": 3.5}\n{\"step\": 2, \"train/loss\": 7}\n");
    poll_all(&b);
    assert_true(last_y(&b, "train/loss") == 7 && isnan(last_y(&b, "train/skipped")));
    board_close(&b);
    assert_int_equal(unlink(path), 0);
}

/* What a pipeline does: the next stage is another run; nothing of the first stays. */
static void another_run_is_followed(void **state) {
    board b;
    client *c;
    char out[512] = "", next[600];
    write_text(path_of("metrics.jsonl"), "{\"step\": 9, \"train/loss\": 3.5, \"old\": 1}\n");
    write_text(path_of("samples.jsonl"), "{\"step\": 1, \"prompt\": \"p\", \"completion\": \"c\"}\n");
    write_text(path_of("run.json"), "{\"state\": \"finished\", \"steps\": 9}");
    snprintf(next, sizeof next, "%s", path_of("next"));
    assert_int_equal(mkdir(next, 0777), 0);
    assert_int_equal(board_open(&b, test_dir, NULL, no_wake, NULL), OK);
    poll_all(&b);
    c = stream_join(&b.stream, "page", stream_last(&b.stream));
    assert_true(stream_take(&b.stream, c, out, sizeof out) > 0);
    assert_int_not_equal(board_follow(&b, path_of("nowhere"), NULL), OK);
    assert_true(last_y(&b, "train/loss") == 3.5);
    assert_int_equal(board_follow(&b, next, "rho1 policy"), OK);
    ssize_t n = stream_take(&b.stream, c, out, sizeof out - 1);
    out[MAX(n, 0)] = 0;
    assert_non_null(strstr(out, "event: reload"));
    write_text(path_of("next/metrics.jsonl"), "{\"step\": 1, \"train/loss\": 7}\n");
    poll_all(&b);
    json_t *run = board_json(&b, board_write_run), *samples = board_json(&b, board_write_samples);
    assert_string_equal(json_string_value(json_object_get(run, "name")), "rho1 policy");
    assert_int_equal(json_array_size(json_object_get(samples, "samples")), 0);
    assert_true(last_y(&b, "train/loss") == 7 && isnan(last_y(&b, "old")) && b.step == 1 && !b.run.root);
    json_decref(run), json_decref(samples);
    stream_leave(&b.stream, c);
    board_close(&b);
}

/* The directory is removed and made anew while the page is open: what is shown is the run that has its name now. */
static void a_directory_made_anew_is_followed(void **state) {
    board b;
    client *c;
    char out[512] = "", dir[600], moved[600];
    snprintf(dir, sizeof dir, "%s", path_of("again"));
    snprintf(moved, sizeof moved, "%s", path_of("before"));
    assert_int_equal(mkdir(dir, 0777), 0);
    write_text(path_of("again/metrics.jsonl"), "{\"step\": 9, \"train/loss\": 3.5, \"old\": 1}\n");
    assert_int_equal(board_open(&b, dir, "mine", no_wake, NULL), OK);
    poll_all(&b);
    c = stream_join(&b.stream, "page", stream_last(&b.stream));
    assert_true(stream_take(&b.stream, c, out, sizeof out) > 0);
    assert_int_equal(rename(dir, moved), 0);
    poll_all(&b); /* nothing has that name: the last numbers stay */
    assert_true(last_y(&b, "train/loss") == 3.5);
    assert_int_equal(mkdir(dir, 0777), 0);
    write_text(path_of("again/metrics.jsonl"), "{\"step\": 1, \"train/loss\": 7}\n");
    poll_all(&b);
    ssize_t n = stream_take(&b.stream, c, out, sizeof out - 1);
    out[MAX(n, 0)] = 0;
    assert_non_null(strstr(out, "event: reload"));
    assert_true(last_y(&b, "train/loss") == 7 && isnan(last_y(&b, "old")) && b.step == 1);
    assert_string_equal(b.name, "mine");
    stream_leave(&b.stream, c);
    board_close(&b);
}

/* A table has an end, whatever a file invents. */
static void tables_are_bounded(void **state) {
    board b;
    strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < 3 * BOARD_METRICS_MOST; i++)
        strbuf_printf(&text, "{\"step\": %d, \"m%d\": 1, \"%0200d\": 1}\n", i + 1, i, i);
    write_text(path_of("metrics.jsonl"), text.text);
    text.length = 0;
    for (int i = 0; i < 500; i++)
        strbuf_printf(&text, "{\"step\": %d, \"prompt\": \"%05000d\", \"completion\": \"c\"}\n", i, i);
    write_text(path_of("samples.jsonl"), text.text);
    assert_int_equal(mkdir(path_of("monitor"), 0777), 0);
    write_text(path_of("monitor/rank-00000.jsonl"),
               "{\"time\": 5, \"step\": 1, \"rss_bytes\": 1e300, \"device_bytes\": 7}\n");
    write_text(path_of("monitor/rank-x.jsonl"), "{\"time\": 6}\n");
    write_text(path_of("monitor/rank-00012.jsonl"), "{\"time\": 6, \"step\": -1}\n{\"time\": 1e300}\n{\"time\"");
    assert_int_equal(board_open(&b, test_dir, NULL, no_wake, NULL), OK);
    poll_all(&b);
    assert_int_equal(b.n_metrics, BOARD_METRICS_MOST);
    json_t *samples = board_json(&b, board_write_samples), *list = json_object_get(samples, "samples");
    assert_int_equal(json_array_size(list), BOARD_SAMPLES_MOST);
    assert_true(json_string_length(json_object_get(json_array_get(list, 0), "prompt")) <= BOARD_TEXT_MOST);
    assert_true(json_number_value(json_object_get(json_array_get(list, BOARD_SAMPLES_MOST - 1), "step")) == 499);
    json_decref(samples);
    json_t *memory = board_json(&b, all_memory), *ranks = json_object_get(json_object_get(memory, "monitor"), "ranks");
    assert_int_equal(json_array_size(ranks), 2);
    const json_t *first = json_array_get(ranks, 0), *second = json_array_get(ranks, 1);
    assert_true(json_number_value(json_object_get(first, "device_bytes")) == 7 && !json_object_get(first, "rss_bytes"));
    assert_true(json_number_value(json_object_get(second, "time")) == 6 &&
                json_integer_value(json_object_get(second, "rank")) == 12);
    json_decref(memory);
    board_close(&b);
    strbuf_fini(&text);
}

/* ---- the state of a run ------------------------------------------------------------------------------------------- */

static void expect_state(const char *run_json, const char *expected) {
    board b;
    write_text(path_of("run.json"), run_json);
    assert_int_equal(board_open(&b, test_dir, NULL, no_wake, NULL), OK);
    poll_all(&b);
    json_t *run = board_json(&b, board_write_run);
    assert_string_equal(json_string_value(json_object_get(run, "state")), expected);
    json_decref(run);
    board_close(&b);
}

static void a_run_whose_process_is_gone_has_died(void **state) {
    char host[200] = "", text[1024];
    gethostname(host, sizeof host - 1);
    pid_t gone = fork();
    if (gone == 0) _exit(0);
    assert_int_equal(waitpid(gone, NULL, 0), gone);
    const char *form = "{\"state\": \"%s\", \"host\": \"%s\", \"pid\": %d, \"started\": %lld}";
    long long now = (long long)time(NULL);
#define STATE(said, on, pid, started, expected) \
    snprintf(text, sizeof text, form, said, on, pid, started), expect_state(text, expected)
    STATE("running", host, getpid(), now, "running");
    STATE("running", host, gone, now, "died");
    STATE("running", host, getpid(), now - 100000, "died"); /* another process has its number now */
    STATE("finished", host, gone, now, "finished");
    STATE("stopped", host, gone, now, "stopped");
    STATE("failed", host, gone, now, "failed");
    STATE("dancing", host, gone, now, "unknown");
    /* On another host: the newest sign of life. */
    STATE("running", "elsewhere", gone, now, "running");
    STATE("running", "elsewhere", gone, now - 1000, "died");
    assert_int_equal(mkdir(path_of("monitor"), 0777), 0);
    snprintf(text, sizeof text, "{\"time\": %lld, \"step\": 5}\n", now - 5);
    write_text(path_of("monitor/rank-00001.jsonl"), text);
    STATE("running", "elsewhere", gone, now - 1000, "running");
    expect_state("[\"not an object\"]", "unknown");
    expect_state("{\"state\": ", "unknown");
}

static void progress_and_the_time_left(void **state) {
    char host[200] = "", text[1024];
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text,
             "{\"state\": \"running\", \"host\": \"%s\", \"pid\": %d, \"started\": %lld, \"steps\": 100, \"epochs\": "
             "2, \"step\": 0}",
             host, getpid(), (long long)time(NULL));
    write_text(path_of("run.json"), text);
    write_text(path_of("metrics.jsonl"),
               "{\"step\": 25, \"train/loss\": 1.5, \"perf/step_ms\": 2000, \"tokens\": 640}\n");
    board b;
    assert_int_equal(board_open(&b, test_dir, NULL, no_wake, NULL), OK);
    poll_all(&b);
    json_t *run = board_json(&b, board_write_run);
    assert_true(json_number_value(json_object_get(run, "step")) == 25 &&
                json_number_value(json_object_get(run, "loss")) == 1.5);
    assert_true(json_number_value(json_object_get(run, "epoch")) == 0.5 &&
                json_number_value(json_object_get(run, "eta_seconds")) == 150);
    assert_true(json_is_integer(json_object_get(run, "pid")) && json_is_integer(json_object_get(run, "step")));
    json_decref(run);
    /* Rank 0 knows the pace of the clock, with evaluations and saves: what the terminal shows. */
    assert_int_equal(mkdir(path_of("monitor"), 0777), 0);
    write_text(path_of("monitor/rank-00000.jsonl"),
               "{\"time\": 5, \"step\": 25, \"pace_ms\": 3000, \"gpu_busy_percent\": 97, \"gpu_watts\": null}\n");
    b.ranks_ns = 0;
    poll_all(&b);
    run = board_json(&b, board_write_run);
    assert_true(json_number_value(json_object_get(run, "eta_seconds")) == 225);
    json_decref(run);
    json_t *memory = board_json(&b, all_memory);
    const json_t *rank = json_array_get(json_object_get(json_object_get(memory, "monitor"), "ranks"), 0);
    assert_true(json_number_value(json_object_get(rank, "gpu_busy_percent")) == 97);
    assert_null(json_object_get(rank, "gpu_watts"));
    json_decref(memory);
    board_close(&b);
}

/* Of config.yaml a few settings, as they stand there; what is strange is left out. */
static void the_settings_that_matter(void **state) {
    board b;
    char text[2000];
    write_text(path_of("run.json"), "{\"state\": \"finished\"}");
    assert_int_equal(board_open(&b, test_dir, NULL, no_wake, NULL), OK);
    poll_all(&b);
    json_t *run = board_json(&b, board_write_run);
    assert_int_equal(json_object_size(json_object_get(run, "settings")), 0); /* no file */
    json_decref(run);
    memset(text, 'x', sizeof text);
    int n = snprintf(text, sizeof text,
                     "precision: bf16\ntrain: {lr: 0.0002, schedule: [a], warmup: auto, seed: {}}\nmodel: {lora: "
                     "{rank: 16}}\ndata: {source: ");
    text[n] = 'x', text[1900] = 0;
    strcat(text, "}\nsecret: key\n");
    write_text(path_of("config.yaml"), text);
    poll_all(&b);
    run = board_json(&b, board_write_run);
    const json_t *s = json_object_get(run, "settings");
    assert_int_equal(json_object_size(s), 5);
    assert_string_equal(json_string_value(json_object_get(s, "precision")), "bf16");
    assert_true(json_number_value(json_object_get(s, "train.lr")) == 0.0002);
    assert_string_equal(json_string_value(json_object_get(s, "train.warmup")), "auto");
    assert_int_equal(json_integer_value(json_object_get(s, "model.lora.rank")), 16);
    assert_true(json_string_length(json_object_get(s, "data.source")) == 300);
    json_decref(run);
    write_text(path_of("config.yaml"), "train: [");
    poll_all(&b);
    run = board_json(&b, board_write_run);
    assert_int_equal(json_object_size(json_object_get(run, "settings")), 5); /* what was known stays */
    json_decref(run);
    board_close(&b);
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static int n_woken;
static void count_wake(void *context, void *connection) { n_woken++; }

static void slow_clients_load_again(void **state) {
    stream s;
    char out[512];
    n_woken = 0;
    stream_init(&s, count_wake, NULL);
    uint64_t start = stream_last(&s);
    client *quick = stream_join(&s, "quick", start), *slow = stream_join(&s, "slow", start),
           *lost = stream_join(&s, "lost", 7);
    assert_true(stream_take(&s, quick, out, sizeof out) > 0);
    assert_int_equal(stream_take(&s, quick, out, sizeof out), 0);
    assert_true(stream_take(&s, slow, out, sizeof out) > 0);
    ssize_t n = stream_take(&s, lost, out, sizeof out - 1);
    out[n] = 0;
    assert_non_null(strstr(out, "event: reload"));
    for (int i = 0; i < STREAM_MESSAGES; i++) stream_put(&s, "run", "{\"i\":1}");
    assert_int_equal(n_woken, 1); /* the one that waited, once */
    /* In pieces, message by message. */
    size_t n_bytes = 0, n_messages = 0;
    while ((n = stream_take(&s, quick, out, 7)) > 0)
        for (ssize_t i = 0; i < n; i++) n_bytes++, n_messages += out[i] == '{';
    assert_int_equal(n_messages, STREAM_MESSAGES);
    assert_true(n == 0 && n_bytes == s.n_bytes);
    /* In the middle of a message that goes: closed. */
    assert_int_equal(stream_take(&s, slow, out, 3), 3);
    stream_put(&s, "run", "{}");
    assert_int_equal(stream_take(&s, slow, out, sizeof out), STREAM_END);
    /* Bytes are bounded as well as messages. */
    char *big = mem_alloc(STREAM_BYTES_MOST / 2 + 1);
    memset(big, ' ', STREAM_BYTES_MOST / 2);
    for (int i = 0; i < 5; i++) stream_put(&s, "run", big);
    assert_true(s.n_bytes <= STREAM_BYTES_MOST);
    free(big);
    stream_end(&s);
    assert_int_equal(stream_take(&s, slow, out, sizeof out), STREAM_END);
    stream_leave(&s, slow);
    stream_leave(&s, quick);
    stream_leave(&s, lost);
    assert_int_equal(s.n_clients, 0);
    client *many[STREAM_CLIENTS_MOST];
    for (int i = 0; i < STREAM_CLIENTS_MOST; i++) assert_non_null(many[i] = stream_join(&s, NULL, 0));
    assert_null(stream_join(&s, NULL, 0));
    for (int i = 0; i < STREAM_CLIENTS_MOST; i++) stream_leave(&s, many[i]);
    stream_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_steps_keep_every_extreme),
        cmocka_unit_test(few_points_are_exact),
        cmocka_unit_test_setup_teardown(a_tail_reads_whole_lines_once, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(a_tail_passes_over_lines_that_are_too_long, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(metrics_follow_the_file, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(another_run_is_followed, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(a_directory_made_anew_is_followed, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(tables_are_bounded, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(a_run_whose_process_is_gone_has_died, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(progress_and_the_time_left, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(the_settings_that_matter, test_dir_open, test_dir_close),
        cmocka_unit_test(slow_clients_load_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
