/* test_track.c - the step line and metrics.jsonl: what is written, where it fits, and that nothing stops a step. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* posix_openpt */
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "track/track.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

static char dir[] = "/tmp/ralo_track_XXXXXX", metrics_path[64];

static int make_dir(void **state) {
    snprintf(metrics_path, sizeof metrics_path, "%s/metrics.jsonl", mkdtemp(dir));
    return setenv("TERM", "xterm", 1);
}

static int clear_dir(void **state) { return unlink(metrics_path) == 0 || errno == ENOENT ? 0 : -1; }

static int remove_dir(void **state) { return rmdir(dir); }

static train_step_report report_at(int64_t step, int64_t steps) {
    return (train_step_report){.step = step,
                               .steps = steps,
                               .loss = 1.0 / (double)step,
                               .grad_norm = 0.5,
                               .lr = 1e-3,
                               .tokens_per_second = 12345,
                               .step_ms = 20,
                               .flops_per_second = 4.1e9,
                               .tokens = (uint64_t)step * 100};
}

static void send_steps(track *t, int64_t first, int64_t last, int64_t steps) {
    for (int64_t i = first; i <= last; i++) {
        train_step_report r = report_at(i, steps);
        track_step(t, &r, 3 << 20);
    }
}

/* Reads what the track wrote into a temporary file, NUL terminated. */
static char *text_of(FILE *f) {
    long n = lseek(fileno(f), 0, SEEK_END);
    assert_true(n >= 0);
    char *text = mem_alloc((size_t)n + 1);
    assert_int_equal(pread(fileno(f), text, (size_t)n, 0), n);
    return text;
}

static int count_of(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

/* ---- metrics.jsonl --------------------------------------------------------------------------------------------- */

static json_t *line_parse(char **text) {
    char *end = strchr(*text, '\n');
    if (!end) fail_msg("a line without an end: %s", *text);
    *end = 0;
    json_error_t error;
    json_t *object = json_loads(*text, JSON_REJECT_DUPLICATES, &error);
    if (!object) fail_msg("%s in: %s", error.text, *text);
    *text = end + 1;
    return object;
}

static double number_of(const json_t *object, const char *key) {
    const json_t *n = json_object_get(object, key);
    if (!json_is_number(n)) fail_msg("%s is not a number", key);
    return json_number_value(n);
}

/* A run that is killed after a checkpoint goes on behind it: no line of an earlier step may be missing then. */
static void test_sync_returns_with_all_lines_in_the_file(void **state) {
    track *t;
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), OK);
    for (int i = 0; i < 50; i++) {
        char *text;
        size_t n_bytes;
        send_steps(t, i * 10 + 1, i * 10 + 10, 500);
        track_sync(t);
        assert_int_equal(file_read_all(metrics_path, 1 << 20, &text, &n_bytes), OK);
        assert_int_equal(count_of(text, "\n"), i * 10 + 10);
        free(text);
    }
    track_sync(t); /* nothing is on its way */
    track_close(t);
}

static void test_metrics_hold_every_step_and_evaluation(void **state) {
    track *t;
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), OK);
    send_steps(t, 1, 3, 4);
    train_step_report last = report_at(4, 4);
    last.loss = NAN;
    last.grad_norm = INFINITY;
    last.loss_scale = 65536;
    last.skipped = true;
    track_step(t, &last, 77);
    track_message(t, "not a metric");
    track_eval(t, &(train_eval_report){.step = 4, .loss = 0.25, .n_rows = 64, .exact_match = 0.5, .n_problems = 200});
    track_eval(t, &(train_eval_report){.step = 4, .loss = 0.25, .n_rows = 64, .exact_match = NAN});
    track_eval(t, &(train_eval_report){.step = 4, .loss = NAN, .exact_match = 0.5, .n_problems = 200});
    track_close(t);

    char *text, *p;
    size_t n_bytes;
    assert_int_equal(file_read_all(metrics_path, 1 << 20, &text, &n_bytes), OK);
    p = text;
    for (int i = 1; i <= 4; i++) {
        json_t *o = line_parse(&p);
        assert_int_equal(json_integer_value(json_object_get(o, "step")), i);
        assert_int_equal(json_integer_value(json_object_get(o, "tokens")), i * 100);
        assert_true(number_of(o, "train/learning_rate") == 1e-3);
        assert_true(number_of(o, "perf/tokens_per_sec") == 12345 && number_of(o, "perf/step_ms") == 20);
        if (i < 4) {
            assert_true((float)number_of(o, "train/loss") == (float)(1.0 / i) &&
                        number_of(o, "train/grad_norm") == 0.5);
            assert_null(json_object_get(o, "train/skipped"));
            assert_null(json_object_get(o, "train/loss_scale"));
            assert_true(number_of(o, "memory/device_bytes") == 3 << 20);
        } else {
            assert_true(json_is_null(json_object_get(o, "train/loss")));
            assert_true(json_is_null(json_object_get(o, "train/grad_norm")));
            assert_true(json_is_true(json_object_get(o, "train/skipped")));
            assert_true(number_of(o, "train/loss_scale") == 65536);
        }
        json_decref(o);
    }
    json_t *o = line_parse(&p);
    assert_true(number_of(o, "val/loss") == 0.25 && number_of(o, "val/exact_match") == 0.5);
    assert_int_equal(json_integer_value(json_object_get(o, "step")), 4);
    json_decref(o);
    o = line_parse(&p);
    assert_true(number_of(o, "val/loss") == 0.25);
    assert_null(json_object_get(o, "val/exact_match"));
    json_decref(o);
    o = line_parse(&p); /* a loss that nobody asked for is not a loss of NaN */
    assert_true(number_of(o, "val/exact_match") == 0.5);
    assert_null(json_object_get(o, "val/loss"));
    json_decref(o);
    assert_int_equal(*p, 0);
    free(text);
}

/* Numbers of a task follow the fixed ones, in its order, each under its name; the terminal shows two that it named. */
static void test_the_numbers_of_a_task_reach_every_output(void **state) {
    static const task_metric rows[] = {{"logps/chosen", NULL, ""},
                                       {"rewards/accuracies", "acc", ""},
                                       {"rewards/margins", "margin", ""},
                                       {"rewards/chosen", "too many", ""}},
                             val = {"val/rewards/accuracies", "acc", ""};
    FILE *f = tmpfile();
    track *t;
    assert_non_null(f);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir, .out = f, .log_every = 1}), OK);
    for (int64_t i = 1; i <= 2; i++) {
        train_step_report r = report_at(i, 2);
        r.on_gpu = i == 2;
        train_metrics_add(&r.metrics, &rows[0], NAN);
        train_metrics_add(&r.metrics, &rows[1], 0.5 + (double)i / 8);
        train_metrics_add(&r.metrics, &rows[2], -12.25);
        train_metrics_add(&r.metrics, &rows[3], 1);
        track_step(t, &r, i == 2 ? 3u << 29 : 77);
    }
    train_eval_report e = {.step = 2, .loss = 0.25, .n_rows = 64, .exact_match = NAN};
    train_metrics_add(&e.metrics, &val, 0.875);
    track_eval(t, &e);
    track_close(t);
    char *text, *shown = text_of(f);
    size_t n_bytes;
    assert_int_equal(file_read_all(metrics_path, 1 << 20, &text, &n_bytes), OK);
    assert_non_null(strstr(text, "\"memory/device_bytes\": 77, \"logps/chosen\": null, \"rewards/accuracies\": 0.625, "
                                 "\"rewards/margins\": -12.25, \"rewards/chosen\": 1}\n{\"step\": 2, "));
    assert_non_null(
        strstr(text, "\"memory/device_bytes\": 1610612736, \"system/gpu_memory_allocated_gb\": 1.5, \"logps/chosen\""));
    assert_non_null(strstr(text, "\n{\"step\": 2, \"val/loss\": 0.25, \"val/rewards/accuracies\": 0.875}\n"));
    assert_non_null(strstr(shown, "step 2/2  loss 0.5000  acc 0.75  margin -12.25  grad"));
    assert_non_null(strstr(shown, "\neval at step 2  loss 0.2500  acc 0.875\n"));
    assert_null(strstr(shown, "too many"));
    free(text);
    free(shown);
    fclose(f);
}

static void write_metrics(const char *text) {
    FILE *f = fopen(metrics_path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* A killed run may leave half a line; a resumed one keeps the whole lines and cuts the rest. */
static void test_a_torn_last_line_is_cut(void **state) {
    char *long_line = mem_alloc(10000);
    memset(long_line, 'x', 9999);
    const char *const before[] = {"{\"step\": 1}\n{\"st", "{\"step\": 1}\n", "", "{\"st", long_line};
    const char *const kept[] = {"{\"step\": 1}\n", "{\"step\": 1}\n", "", "", ""};
    for (size_t i = 0; i < ARRAY_LENGTH(before); i++) {
        track *t;
        char *text;
        size_t n_bytes;
        write_metrics(before[i]);
        assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), OK);
        send_steps(t, 2, 2, 2);
        track_close(t);
        assert_int_equal(file_read_all(metrics_path, 1 << 20, &text, &n_bytes), OK);
        assert_memory_equal(text, kept[i], strlen(kept[i]));
        char *rest = text + strlen(kept[i]);
        json_decref(line_parse(&rest));
        assert_int_equal(*rest, 0);
        free(text);
    }
    free(long_line);
}

/* A killed run was further than its last checkpoint: what it told of steps that are made again is told again. */
static void test_steps_that_are_made_again_stand_there_once(void **state) {
    static const char kept[] = "{\"step\": 1, \"tokens\": 100}\n{\"step\": 1, \"val/loss\": 0.5}\nnot ours\n";
    static const char again[] =
        "{\"step\": 2, \"old\": 1}\n{\"step\": 2, \"val/loss\": 9}\n{\"step\": 11, \"old\": 1}\n";
    char before[256], *text;
    size_t n_bytes;
    track *t;
    snprintf(before, sizeof before, "%s%s", kept, again);
    write_metrics(before);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), OK);
    send_steps(t, 2, 3, 3);
    track_close(t);
    assert_int_equal(file_read_all(metrics_path, 1 << 20, &text, &n_bytes), OK);
    assert_memory_equal(text, kept, strlen(kept));
    char *rest = text + strlen(kept);
    for (int i = 2; i <= 3; i++) {
        json_t *o = line_parse(&rest);
        assert_int_equal(json_integer_value(json_object_get(o, "step")), i);
        assert_null(json_object_get(o, "old"));
        json_decref(o);
    }
    assert_int_equal(*rest, 0);
    free(text);
}

/* A run that had reached its end and is resumed evaluates once more and makes no step. */
static void test_an_evaluation_that_is_made_again_stands_there_once(void **state) {
    static const char kept[] =
        "{\"step\": 1, \"tokens\": 100}\n{\"step\": 1, \"val/loss\": 0.5}\n{\"step\": 2, \"tokens\": 200}\n";
    static const char *const again[] = {"", "{\"step\": 2, \"val/loss\": 9}\n",
                                        "{\"step\": 2, \"val/loss\": 9}\n{\"step\": 3, \"tokens\": 300}\n"};
    for (size_t i = 0; i < ARRAY_LENGTH(again); i++) {
        char before[256], *text;
        size_t n_bytes;
        track *t;
        snprintf(before, sizeof before, "%s%s", kept, again[i]);
        write_metrics(before);
        assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), OK);
        track_eval(t, &(train_eval_report){.step = 2, .loss = 0.25, .n_rows = 64, .exact_match = NAN});
        track_close(t);
        assert_int_equal(file_read_all(metrics_path, 1 << 20, &text, &n_bytes), OK);
        assert_memory_equal(text, kept, strlen(kept));
        assert_string_equal(text + strlen(kept), "{\"step\": 2, \"val/loss\": 0.25}\n");
        free(text);
    }
}

static void test_an_unusable_directory_is_refused_at_the_start(void **state) {
    track *t;
    assert_int_equal(track_open(&t, &(track_options){.run_dir = "/dev/null/run"}), ERR_IO);
    assert_non_null(strstr(error_message(), "/dev/null"));
    assert_int_equal(mkdir(metrics_path, 0700), 0);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), ERR_IO);
    assert_non_null(strstr(error_message(), metrics_path));
    assert_int_equal(rmdir(metrics_path), 0);
}

static void test_what_is_no_file_is_refused(void **state) {
    track *t;
    char target[80], *text;
    size_t n_bytes;
    snprintf(target, sizeof target, "%s/target", dir);
    assert_int_equal(file_replace(target, "mine", 4), OK);
    assert_int_equal(symlink(target, metrics_path), 0);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), ERR_IO);
    assert_non_null(strstr(error_message(), "is a link"));
    assert_int_equal(file_read_all(target, 100, &text, &n_bytes), OK);
    assert_string_equal(text, "mine");
    free(text);
    assert_int_equal(unlink(metrics_path), 0);
    assert_int_equal(mkfifo(metrics_path, 0600), 0);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir}), ERR_INPUT);
    assert_non_null(strstr(error_message(), "pipe"));
    assert_int_equal(unlink(target), 0);
}

/* The limit of a file's size stands for the end of a disk: metrics.jsonl has that size already, the other output does not. */
static void test_a_full_disk_is_said_once_and_the_run_goes_on(void **state) {
    enum { FULL = 1 << 20 };
    struct rlimit before;
    char *lines = mem_alloc(FULL);
    memset(lines, '\n', FULL);
    assert_int_equal(file_replace(metrics_path, lines, FULL), OK);
    free(lines);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){FULL, before.rlim_max}), 0);
    FILE *f = tmpfile();
    track *t;
    assert_non_null(f);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir, .out = f, .log_every = 1}), OK);
    for (int i = 1; i <= 20; i++) {
        send_steps(t, i, i, 20);
        usleep(1000); /* so that the writer fails on one of many batches, not on a single one */
    }
    track_close(t);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    char *text = text_of(f);
    assert_int_equal(count_of(text, strerror(EFBIG)), 1);
    assert_int_equal(count_of(text, metrics_path), 1);
    assert_int_equal(count_of(text, "step "), 20);
    free(text);
    fclose(f);
}

/* ---- not a terminal -------------------------------------------------------------------------------------------- */

static void test_plain_lines_first_every_and_last(void **state) {
    FILE *f = tmpfile();
    track *t;
    assert_non_null(f);
    track_options o = {.out = f, .log_every = 10, .peak_flops = 1e10, .memory_planned = 4 << 20};
    assert_int_equal(track_open(&t, &o), OK);
    send_steps(t, 3, 47, 47); /* resumed at 3 */
    track_message(t, "saved\n");
    track_eval(t, &(train_eval_report){.step = 47, .loss = 0.25, .n_rows = 64, .exact_match = 0.97, .n_problems = 200});
    track_close(t);
    char *text = text_of(f);
    const char *const steps[] = {"step 3/47 ",  "step 10/47 ", "step 20/47 ",
                                 "step 30/47 ", "step 40/47 ", "step 47/47 "};
    const char *at = text;
    for (size_t i = 0; i < ARRAY_LENGTH(steps); i++) {
        at = strstr(at, steps[i]);
        if (!at) fail_msg("no '%s' in its place in:\n%s", steps[i], text);
    }
    assert_int_equal(count_of(text, "/47 "), ARRAY_LENGTH(steps));
    assert_non_null(strstr(text, " 21 %  step 10/47  loss 0.1000  grad 0.5  lr 1.00e-03  12.3K tok/s  41 % of peak"
                                 "  mem 3.0 MiB of 4.0 MiB  ETA 0:0"));
    assert_non_null(strstr(text, "100 %  step 47/47"));
    assert_non_null(strstr(text, "\nsaved\n"));
    assert_non_null(strstr(text, "\neval at step 47  loss 0.2500  exact match 97.0 % of 200 problems\n"));
    assert_null(strpbrk(text, "\r\033"));
    free(text);
    fclose(f);
}

/* A machine that was busy when the peak was measured: a share above all of it is not shown. */
static void test_more_than_the_peak_is_left_out(void **state) {
    FILE *f = tmpfile();
    track *t;
    assert_non_null(f);
    assert_int_equal(track_open(&t, &(track_options){.out = f, .log_every = 1, .peak_flops = 1e9}), OK);
    send_steps(t, 1, 3, 3);
    track_close(t);
    char *text = text_of(f);
    assert_non_null(strstr(text, "step 3/3 "));
    assert_null(strstr(text, "of peak"));
    free(text);
    fclose(f);
}

static void test_the_time_left_counts_the_wall_clock(void **state) {
    FILE *f = tmpfile();
    track *t;
    assert_non_null(f);
    assert_int_equal(track_open(&t, &(track_options){.out = f, .log_every = 1}), OK);
    train_step_report r = report_at(1, 1000000);
    r.step_ms = 7.2; /* the first step has only its own time: 999,999 x 7.2 ms = 2 h */
    track_step(t, &r, 0);
    usleep(30000);
    r = report_at(2, 1000000);
    track_step(t, &r, 0); /* now at least 30 ms a step: at least 8:19:59 */
    track_close(t);
    char *text = text_of(f);
    assert_non_null(strstr(text, "ETA 2:00:00\n"));
    const char *second = strstr(strstr(text, "step 2/"), "ETA ");
    int hours;
    assert_non_null(second);
    if (!strstr(second, "d ")) { /* a slow machine may well have taken days' worth */
        assert_int_equal(sscanf(second, "ETA %d:", &hours), 1);
        assert_true(hours >= 8);
    }
    free(text);
    fclose(f);
}

static void test_the_time_taken_counts_the_first_step(void **state) {
    FILE *f = tmpfile();
    track *t;
    assert_non_null(f);
    assert_int_equal(track_open(&t, &(track_options){.out = f, .log_every = 1}), OK);
    train_step_report r = report_at(1, 1);
    r.step_ms = 65000; /* reported when it was over */
    track_step(t, &r, 0);
    track_close(t);
    char *text = text_of(f);
    assert_non_null(strstr(text, "in 1:05\n"));
    free(text);
    fclose(f);
}

/* ---- a terminal ------------------------------------------------------------------------------------------------ */

typedef struct terminal {
    int master;
    FILE *slave;
    pthread_t reader;
    strbuf seen;
} terminal;

static void *terminal_read(void *argument) {
    terminal *x = argument;
    char chunk[4096];
    ssize_t n; /* ends with EIO when the last writer has closed */
    while ((n = read(x->master, chunk, sizeof chunk)) > 0) strbuf_add_bytes(&x->seen, chunk, (size_t)n);
    return NULL;
}

static void terminal_open(terminal *x, int columns) {
    strbuf_init(&x->seen);
    x->master = posix_openpt(O_RDWR | O_NOCTTY);
    if (x->master < 0) { /* containers may come without pseudo-terminals */
        print_message("skipped: no pseudo-terminal here: %s\n", strerror(errno));
        skip();
    }
    assert_int_equal(grantpt(x->master), 0);
    assert_int_equal(unlockpt(x->master), 0);
    int fd = open(ptsname(x->master), O_RDWR | O_NOCTTY);
    assert_true(fd >= 0);
    struct termios raw;
    assert_int_equal(tcgetattr(fd, &raw), 0);
    cfmakeraw(&raw);
    assert_int_equal(tcsetattr(fd, TCSANOW, &raw), 0);
    assert_int_equal(ioctl(fd, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = (unsigned short)columns}), 0);
    assert_non_null(x->slave = fdopen(fd, "w"));
    assert_int_equal(pthread_create(&x->reader, NULL, terminal_read, x), 0);
}

static void terminal_close(terminal *x) {
    fclose(x->slave);
    pthread_join(x->reader, NULL);
    close(x->master);
}

static const track_options full_line = {.peak_flops = 1e10, .memory_planned = 4 << 20, .log_every = 10};

static void test_the_line_fits_every_width(void **state) {
    static const int widths[] = {0, 2, 10, 20, 40, 60, 80, 100, 132, 200};
    for (size_t i = 0; i < ARRAY_LENGTH(widths); i++) {
        terminal x;
        track *t;
        terminal_open(&x, widths[i]);
        track_options o = full_line;
        o.out = x.slave;
        assert_int_equal(track_open(&t, &o), OK);
        send_steps(t, 500, 500, 1000);
        track_close(t);
        terminal_close(&x);
        size_t width = widths[i] ? (size_t)widths[i] : 80;
        const char *line = strchr(x.seen.text, '\r'), *end = strstr(x.seen.text, "\033[K");
        assert_true(line && end && line < end);
        size_t length = (size_t)(end - line - 1);
        if (length >= width) fail_msg("%zu columns in a terminal of %zu", length, width);
        if (width >= 40) assert_non_null(strstr(line, " 50 %  step 500/1000  loss 0.0020"));
        if (width >= 60) assert_non_null(strstr(line, "[====="));
        if (width >= 80) assert_true(strstr(line, "ETA 0:10") && strstr(line, "12.3K tok/s"));
        if (width >= 132)
            assert_true(strstr(line, "41 % of peak") && strstr(line, "mem 3.0 MiB of 4.0 MiB") &&
                        strstr(line, "grad 0.5"));
        assert_true(str_ends_with(x.seen.text, "\n"));
        strbuf_fini(&x.seen);
    }
}

static void test_the_line_is_drawn_ten_times_a_second_at_most(void **state) {
    terminal x;
    track *t;
    terminal_open(&x, 100);
    track_options o = full_line;
    o.out = x.slave;
    double start = clock_s();
    assert_int_equal(track_open(&t, &o), OK);
    for (int64_t i = 1; i <= 300; i++) {
        send_steps(t, i, i, 300);
        usleep(1000);
    }
    track_close(t);
    double seconds = clock_s() - start;
    terminal_close(&x);
    int drawn = count_of(x.seen.text, "\r");
    assert_true(drawn >= 3 && drawn <= 3 + (int)(seconds * 10)); /* first and last besides */
    assert_non_null(strstr(x.seen.text, "step 1/300"));
    assert_true(strstr(x.seen.text, "step 300/300") > strrchr(x.seen.text, '\r')); /* the last is what stays */
    assert_int_equal(count_of(x.seen.text, "\n"), 1);
    strbuf_fini(&x.seen);
}

static void test_messages_stand_on_lines_of_their_own(void **state) {
    terminal x;
    track *t;
    terminal_open(&x, 100);
    track_options o = full_line;
    o.out = x.slave;
    assert_int_equal(track_open(&t, &o), OK);
    send_steps(t, 1, 1, 3);
    track_message(t, "checkpoint saved");
    track_eval(t, &(train_eval_report){.step = 1, .loss = 2, .n_rows = 64, .exact_match = NAN});
    track_close(t);
    terminal_close(&x);
    /* The bar is wiped, the message ends its line, the bar comes back below it. */
    const char *at = strstr(x.seen.text, "\r\033[Kcheckpoint saved\n\r[");
    assert_non_null(at);
    assert_non_null(strstr(at, "\r\033[Keval at step 1  loss 2.0000\n\r["));
    strbuf_fini(&x.seen);
}

/* ---- nothing stops a step -------------------------------------------------------------------------------------- */

static void *pipe_drain(void *argument) {
    char chunk[4096];
    while (read(*(int *)argument, chunk, sizeof chunk) > 0) {}
    return NULL;
}

/* Nobody reads the pipe: every call still returns at once and the file still gets every step. */
static void test_a_stopped_reader_stops_neither_steps_nor_metrics(void **state) {
    int ends[2];
    pthread_t reader;
    track *t;
    assert_int_equal(pipe(ends), 0);
    FILE *f = fdopen(ends[1], "w");
    assert_non_null(f);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir, .out = f, .log_every = 1}), OK);
    enum { N = 3000 }; /* x 100 bytes: several times what a pipe holds, and less than the ring */
    send_steps(t, 1, N, N);
    int lines = 0;
    for (int tries = 0; lines < N && tries < 1000; tries++) {
        char *text;
        size_t n_bytes;
        usleep(10000);
        assert_int_equal(file_read_all(metrics_path, 4 << 20, &text, &n_bytes), OK);
        lines = count_of(text, "\n");
        free(text);
    }
    assert_int_equal(lines, N); /* while the pipe is still full */
    assert_int_equal(poll(&(struct pollfd){ends[1], POLLOUT, 0}, 1, 0), 0);
    assert_int_equal(pthread_create(&reader, NULL, pipe_drain, &ends[0]), 0);
    track_close(t);
    fclose(f);
    pthread_join(reader, NULL);
    close(ends[0]);
}

static void test_more_than_the_ring_holds_is_counted_not_waited_for(void **state) {
    FILE *f = tmpfile();
    track *t;
    assert_non_null(f);
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir, .out = f, .log_every = 1000000}), OK);
    enum { N = 200000 };
    send_steps(t, 1, N, 1000000);
    track_close(t);
    char *text = text_of(f), *lines;
    size_t n_bytes;
    assert_int_equal(file_read_all(metrics_path, 256 << 20, &lines, &n_bytes), OK);
    const char *said = strstr(text, "warning: the output was too slow: ");
    unsigned long long n_left_out = 0;
    if (said) assert_int_equal(sscanf(said, "warning: the output was too slow: %llu", &n_left_out), 1);
    assert_int_equal((unsigned long long)count_of(lines, "\n") + n_left_out, N);
    free(text);
    free(lines);
    fclose(f);
}

static void test_a_closed_pipe_does_not_kill_the_run(void **state) {
    int ends[2];
    track *t;
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    FILE *f = fdopen(ends[1], "w");
    assert_non_null(f);
    struct sigaction action;
    assert_int_equal(sigaction(SIGPIPE, NULL, &action), 0);
    assert_ptr_equal(action.sa_handler, SIG_DFL); /* else this test would prove nothing */
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir, .out = f, .log_every = 1}), OK);
    send_steps(t, 1, 100, 100);
    track_close(t);
    char *text;
    size_t n_bytes;
    assert_int_equal(file_read_all(metrics_path, 1 << 20, &text, &n_bytes), OK);
    assert_int_equal(count_of(text, "\n"), 100);
    free(text);
    fclose(f);
}

/* ---- events.jsonl -------------------------------------------------------------------------------------------------- */

static void send_spikes(int64_t first, int64_t last, FILE *out) {
    track *t;
    assert_int_equal(track_open(&t, &(track_options){.run_dir = dir, .out = out, .log_every = 1000, .spikes = 4}), OK);
    for (int64_t i = first; i <= last; i++) {
        train_step_report r = report_at(i, last);
        r.loss = i % 100 == 0 ? (double)(i * i) : 2 + 0.01 * (double)(i % 7);
        track_step(t, &r, 0);
    }
    track_close(t);
}

static void test_spikes_are_shown_and_kept_each_step_once(void **state) {
    char path[64], *text, *at;
    size_t n_bytes;
    snprintf(path, sizeof path, "%s/events.jsonl", dir);
    FILE *f = tmpfile();
    send_spikes(1, 99, f);
    assert_int_equal(access(path, F_OK), -1); /* no event, no file */
    send_spikes(1, 320, f);
    text = text_of(f);
    assert_int_equal(count_of(text, "loss spike"), 3);
    free(text);
    send_spikes(250, 320, f); /* resumed at 250: what comes after is written again, by a watch that has seen less */
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n_bytes), OK);
    at = text;
    for (int64_t step = 100; step <= 300; step += 100) {
        json_t *event = line_parse(&at);
        assert_int_equal(json_integer_value(json_object_get(event, "step")), step);
        assert_string_equal(json_string_value(json_object_get(event, "event")), "spike");
        assert_true(json_real_value(json_object_get(event, "loss")) == (double)(step * step));
        json_decref(event);
    }
    assert_int_equal(*at, 0);
    free(text);
    fclose(f);
    assert_int_equal(unlink(path), 0);
}

static void test_silent_and_without_a_file(void **state) {
    track *t;
    assert_int_equal(track_open(&t, &(track_options){0}), OK);
    send_steps(t, 1, 10, 10);
    track_message(t, "unheard");
    track_close(t);
    track_close(NULL);
}

#define TRACK_TEST(f) cmocka_unit_test_teardown(f, clear_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        TRACK_TEST(test_sync_returns_with_all_lines_in_the_file),
        TRACK_TEST(test_metrics_hold_every_step_and_evaluation),
        TRACK_TEST(test_the_numbers_of_a_task_reach_every_output),
        TRACK_TEST(test_spikes_are_shown_and_kept_each_step_once),
        TRACK_TEST(test_a_torn_last_line_is_cut),
        TRACK_TEST(test_steps_that_are_made_again_stand_there_once),
        TRACK_TEST(test_an_evaluation_that_is_made_again_stands_there_once),
        TRACK_TEST(test_an_unusable_directory_is_refused_at_the_start),
        TRACK_TEST(test_what_is_no_file_is_refused),
        TRACK_TEST(test_a_full_disk_is_said_once_and_the_run_goes_on),
        TRACK_TEST(test_plain_lines_first_every_and_last),
        TRACK_TEST(test_more_than_the_peak_is_left_out),
        TRACK_TEST(test_the_time_left_counts_the_wall_clock),
        TRACK_TEST(test_the_time_taken_counts_the_first_step),
        TRACK_TEST(test_the_line_fits_every_width),
        TRACK_TEST(test_the_line_is_drawn_ten_times_a_second_at_most),
        TRACK_TEST(test_messages_stand_on_lines_of_their_own),
        TRACK_TEST(test_a_stopped_reader_stops_neither_steps_nor_metrics),
        TRACK_TEST(test_more_than_the_ring_holds_is_counted_not_waited_for),
        TRACK_TEST(test_a_closed_pipe_does_not_kill_the_run),
        TRACK_TEST(test_silent_and_without_a_file),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
