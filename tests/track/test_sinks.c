/* test_sinks.c - TensorBoard's bytes, trackio's lines, MLflow's files, the queue before them, and what is refused. */
#define _GNU_SOURCE 1
#include "track/event_file.h"
#include "track/mlflow.h"
#include "track/sink.h"
#include "track/sink_queue.h"
#include "files.h"
#include "must.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

extern const sink_kind sink_kind_TRACKIO, sink_kind_TENSORBOARD, sink_kind_MLFLOW;

static char *read_all(const char *path, size_t *n) {
    char *text;
    size_t length;
    must(file_read_all(path, 1 << 24, &text, &length));
    if (n) *n = length;
    return text;
}

/* ---- event files -------------------------------------------------------------------------------------------------------- */

static void checksums_are_castagnoli(void **state) {
    unsigned char zeros[32] = {0}, ones[32], up[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) up[i] = (unsigned char)i;
    assert_int_equal(crc32c("123456789", 9), 0xe3069283); /* these: RFC 3720, B.4 */
    assert_int_equal(crc32c(zeros, 32), 0x8a9136aa);
    assert_int_equal(crc32c(ones, 32), 0x62a8ab43);
    assert_int_equal(crc32c(up, 32), 0x46dd794e);
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c_masked("", 0), 0xa282ead8);
}

/* tools/make_sink_fixtures.py */
static void events_are_the_bytes_of_tensorboard(void **state) {
    strbuf ours;
    event_scalars e;
    size_t n;
    strbuf_init(&ours);
    event_add_version(&ours, 1700000000.25);
    event_add_start(&ours, 1700000000.25, 300);
    event_scalars_begin(&e);
    event_scalars_add(&e, "train/loss", 1.625f);
    event_scalars_add(&e, "tokens", 19200);
    event_scalars_add(&e, "train/grad_norm", NAN);
    event_scalars_end(&e, &ours, 1700000001.5, 300);
    event_add_text(&ours, 1700000002, 0, "samples", "**prompt**\n\n    1+1=\n");
    char *theirs = read_all(TEST_FIXTURES "/sinks/events.tfevents", &n);
    assert_int_equal(ours.length, n);
    assert_memory_equal(ours.text, theirs, n);
    strbuf_fini(&ours);
    free(theirs);
}

/* ---- a sink by hand ----------------------------------------------------------------------------------------------------- */

typedef struct bench {
    sink_settings settings;
    _Atomic uint64_t deadline_ns;
    sink_run run;
    char dir[128];
} bench;

static void bench_open(bench *b, const track_sinks *asked, const char *name) {
    snprintf(b->dir, sizeof b->dir, "%s", path_of(name));
    must(dir_make(b->dir));
    strbuf track;
    strbuf_init(&track);
    strbuf_printf(&track, "%s/track", b->dir);
    must(dir_make(track.text));
    strbuf_fini(&track);
    must(sink_settings_init(&b->settings, asked, b->dir));
    atomic_init(&b->deadline_ns, UINT64_MAX);
    b->run = (sink_run){b->dir, &b->settings, &b->deadline_ns};
}

static train_step_report step_at(int64_t step) {
    return (train_step_report){.step = step,
                               .steps = 10,
                               .loss = step == 2 ? NAN : 1.0 / (double)step,
                               .grad_norm = INFINITY,
                               .lr = 1e-3,
                               .tokens = (uint64_t)step * 64,
                               .step_ms = 2};
}

/* The records of steps first to last, as one queue would hold them. */
static void add_steps(strbuf *lines, int first, int last) {
    for (int i = first; i <= last; i++) {
        train_step_report r = step_at(i);
        sink_add_step(lines, 1700000000.25 + i, &r, 4096);
    }
}

static void deliver(const sink_kind *kind, void *self, const strbuf *lines) {
    uint64_t n_damaged = 0;
    for (const char *p = lines->text; *p;) {
        size_t n = strcspn(p, "\n");
        must(sink_deliver(kind, self, p, n, &n_damaged));
        p += n + 1;
    }
    assert_int_equal(n_damaged, 0);
}

static const json_t *one_text(const char *key, const char *value) {
    static json_t *o;
    json_decref(o);
    return o = json_pack("{s:s}", key, value);
}

/* ---- trackio ------------------------------------------------------------------------------------------------------------ */

/* The only file below dir whose name ends like this. */
static char *only_file(const char *dir, const char *ending) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    char *found = NULL;
    for (const struct dirent *e; (e = readdir(d));) {
        if (*e->d_name == '.') continue;
        if (found || !str_ends_with(e->d_name, ending)) fail_msg("%s holds %s", dir, e->d_name);
        strbuf path;
        strbuf_init(&path);
        strbuf_printf(&path, "%s/%s", dir, e->d_name);
        found = strbuf_take(&path);
    }
    closedir(d);
    assert_non_null(found);
    return found;
}

static json_t *trackio_lines(const strbuf *records, const char *run_name) {
    bench b;
    void *self;
    bench_open(&b, &(track_sinks){.to = "trackio", .trackio = "p", .name = "r"}, run_name);
    must(dir_remove_all(path_of("trackio")));
    setenv("TRACKIO_DIR", path_of("trackio"), 1);
    must(sink_kind_TRACKIO.open(&self, &b.run));
    deliver(&sink_kind_TRACKIO, self, records);
    must(sink_kind_TRACKIO.flush(self));
    sink_kind_TRACKIO.close(self);
    char *writer = only_file(path_of("trackio/inbox"), ""), *path = only_file(writer, ".jsonl"),
         *text = read_all(path, NULL);
    json_t *lines = json_array();
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(o);
        json_array_append_new(lines, o);
    }
    free(writer);
    free(path);
    free(text);
    sink_settings_fini(&b.settings);
    return lines;
}

/* The keys of a line are trackio's own, and so are the words for what is no number. */
static void trackio_reads_our_lines(void **state) {
    strbuf records;
    strbuf_init(&records);
    sink_add_params(&records, 1700000000.25, one_text("train.lr", "0.003"));
    add_steps(&records, 1, 3);
    json_t *lines = trackio_lines(&records, "one"), *again = trackio_lines(&records, "one");
    char *fixture = read_all(TEST_FIXTURES "/sinks/trackio.jsonl", NULL);
    json_t *theirs = json_loads(fixture, 0, NULL), *value;
    const char *key;
    assert_int_equal(json_array_size(lines), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *ours = json_array_get(lines, i);
        assert_int_equal(json_object_size(ours), json_object_size(theirs));
        json_object_foreach(theirs, key, value) assert_non_null(json_object_get(ours, key));
        assert_string_equal(json_string_value(json_object_get(ours, "kind")), "metric");
        for (size_t k = 0; k < i; k++)
            assert_false(
                json_equal(json_object_get(ours, "log_id"), json_object_get(json_array_get(lines, k), "log_id")));
        assert_true(json_equal(ours, json_array_get(again, i))); /* the same run, the same ids */
    }
    const json_t *second = json_array_get(lines, 2), *metrics = json_object_get(second, "metrics");
    assert_string_equal(json_string_value(json_object_get(metrics, "train/loss")), "NaN");
    assert_string_equal(json_string_value(json_object_get(metrics, "train/grad_norm")), "Infinity");
    assert_string_equal(json_string_value(json_object_get(second, "timestamp")), "2023-11-14T22:13:22.250000+00:00");
    assert_int_equal(json_integer_value(json_object_get(second, "step")), 2);
    assert_null(json_object_get(metrics, "step"));
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(json_array_get(lines, 0), "config"), "train.lr")), "0.003");
    json_decref(lines);
    json_decref(again);
    json_decref(theirs);
    free(fixture);
    strbuf_fini(&records);
}

/* ---- TensorBoard -------------------------------------------------------------------------------------------------------- */

static void a_resumed_run_begins_another_event_file(void **state) {
    for (int part = 0; part < 2; part++) {
        bench b;
        void *self;
        strbuf records;
        bench_open(&b, &(track_sinks){.to = "tensorboard"}, "board");
        strbuf_init(&records);
        add_steps(&records, 1 + 2 * part, 3 + 2 * part);
        must(sink_kind_TENSORBOARD.open(&self, &b.run));
        deliver(&sink_kind_TENSORBOARD, self, &records);
        must(sink_kind_TENSORBOARD.flush(self));
        sink_kind_TENSORBOARD.close(self);
        strbuf_fini(&records);
        sink_settings_fini(&b.settings);
        assert_int_equal(files_in(path_of("board/tensorboard")), part + 1);
    }
}

/* ---- the queue ---------------------------------------------------------------------------------------------------------- */

static void a_queue_keeps_whole_lines(void **state) {
    sink_queue q, other;
    char out[64];
    size_t n;
    uint64_t skipped = 0;
    char run[128], path[160];
    snprintf(run, sizeof run, "%s", path_of("queue"));
    snprintf(path, sizeof path, "%s/track/mlflow.pending", run);
    must(dir_make(path_of("queue/track")));
    assert_false(sink_queue_has_lines(run, "mlflow"));
    write_text(path, "{\"a\": 1}\n{\"b\"");
    must(sink_queue_open(&q, run, "mlflow"));
    expect_error(sink_queue_open(&other, run, "mlflow"), ERR_INPUT, "is being sent by another process");
    must(sink_queue_put(&q, "{\"c\": 2}\n", 9));
    assert_int_equal(sink_queue_count(&q), 2);
    must(sink_queue_peek(&q, out, 12, &n, &skipped));
    assert_int_equal(n, 9);
    assert_memory_equal(out, "{\"a\": 1}\n", 9);
    sink_queue_drop(&q, n);
    must(sink_queue_peek(&q, out, sizeof out, &n, &skipped));
    assert_memory_equal(out, "{\"c\": 2}\n", 9);
    sink_queue_drop(&q, n);
    assert_true(sink_queue_is_empty(&q));
    /* a line that no buffer holds is left out, and what follows it is not */
    char *long_line = mem_alloc(1001);
    memset(long_line, 'x', 999);
    long_line[999] = '\n';
    must(sink_queue_put(&q, long_line, 1000));
    must(sink_queue_put(&q, "{\"d\": 3}\n", 9));
    must(sink_queue_peek(&q, out, sizeof out, &n, &skipped));
    assert_memory_equal(out, "{\"d\": 3}\n", 9);
    assert_int_equal(skipped, 1);
    sink_queue_close(&q);
    assert_true(sink_queue_has_lines(run, "mlflow"));
    must(dir_remove_all(path_of("queue")));
    must(dir_make(path_of("queue/track")));
    assert_int_equal(symlink("/etc/passwd", path), 0);
    expect_error(sink_queue_open(&q, run, "mlflow"), ERR_IO, "it is a link");
    free(long_line);
}

static void damaged_lines_are_left_out(void **state) {
    static const char *const lines[] = {"",
                                        "{",
                                        "[]",
                                        "{\"time\": 1}",
                                        "{\"time\": 1, \"step\": -1, \"metrics\": {}}",
                                        "{\"time\": 1, \"step\": 1, \"metrics\": {\"a\": []}}",
                                        "{\"time\": 1, \"params\": {\"a\": 1}}",
                                        "{\"time\": 1, \"artefact\": \"../../etc/passwd\"}",
                                        "{\"time\": 1e300, \"params\": {}}",
                                        "{\"time\": 1, \"end\": \"RUNNING\"}"};
    bench b;
    void *self;
    uint64_t n_damaged = 0;
    bench_open(&b, &(track_sinks){.to = "tensorboard"}, "damaged");
    must(sink_kind_TENSORBOARD.open(&self, &b.run));
    for (size_t i = 0; i < ARRAY_LENGTH(lines); i++) {
        must(sink_deliver(&sink_kind_TENSORBOARD, self, lines[i], strlen(lines[i]), &n_damaged));
        assert_int_equal(n_damaged, i + 1);
    }
    sink_kind_TENSORBOARD.close(self);
    sink_settings_fini(&b.settings);
}

/* ---- MLflow's file store -------------------------------------------------------------------------------------------------- */

static void open_file_store(bench *b, void **self) {
    strbuf uri;
    strbuf_init(&uri);
    strbuf_printf(&uri, "file:%s", path_of("mlruns"));
    bench_open(b, &(track_sinks){.mlflow = uri.text, .experiment = "e", .name = "r"}, "files");
    strbuf_fini(&uri);
    must(sink_kind_MLFLOW.open(self, &b->run));
}

static void a_file_store_holds_each_value_once(void **state) {
    strbuf records, path;
    strbuf_init(&records);
    strbuf_init(&path);
    sink_add_params(&records, 1700000000, one_text("train.lr", "0.003"));
    add_steps(&records, 1, 3);
    sink_add_artefact(&records, 1700000004, "config.yaml");
    sink_add_end(&records, 1700000004, SINK_FINISHED);
    for (int i = 0; i < 2; i++) { /* the second: as if the first had not been heard of */
        bench b;
        void *self;
        open_file_store(&b, &self);
        write_text(path_of("files/config.yaml"), "a: 1\n");
        deliver(&sink_kind_MLFLOW, self, &records);
        must(sink_kind_MLFLOW.flush(self));
        sink_kind_MLFLOW.close(self);
        sink_settings_fini(&b.settings);
    }
    json_t *kept = sink_state_read(path_of("files"), "mlflow");
    char *experiment = only_file(path_of("mlruns"), "");
    strbuf_printf(&path, "%s/%s/metrics/train/loss", experiment, sink_state_id(kept, "run_id"));
    char *text = read_all(path.text, NULL);
    assert_string_equal(text, "1700000001250 1 1\n1700000002250 nan 2\n1700000003250 0.33333333300000001 3\n");
    free(text);
    path.length = 0;
    strbuf_printf(&path, "%s/%s/params/train.lr", experiment, sink_state_id(kept, "run_id"));
    text = read_all(path.text, NULL);
    assert_string_equal(text, "0.003");
    free(text);
    path.length = 0;
    strbuf_printf(&path, "%s/%s/meta.yaml", experiment, sink_state_id(kept, "run_id"));
    text = read_all(path.text, NULL);
    assert_non_null(strstr(text, "status: 3\n"));
    assert_non_null(strstr(text, "end_time: 1700000004000\n"));
    free(text);
    free(experiment);
    json_decref(kept);
    strbuf_fini(&path);
    strbuf_fini(&records);
}

static void a_key_stays_below_its_run(void **state) {
    static const char *const keys[] = {"../x", "/etc/x", "a/../../x", "a//../x", ".x", "a/", "a\\n"};
    bench b;
    void *self;
    open_file_store(&b, &self);
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++) {
        json_t *values = json_pack("{s:f}", keys[i], 1.0);
        must(sink_kind_MLFLOW.metrics(self, 1, 1, values));
        expect_error(sink_kind_MLFLOW.flush(self), ERR_INPUT, "which cannot be a file");
        json_decref(values);
    }
    sink_kind_MLFLOW.close(self);
    sink_settings_fini(&b.settings);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------------ */

static void wrong_requests_are_refused_without_secrets(void **state) {
    static const struct {
        track_sinks asked;
        const char *words;
    } cases[] = {
        {{.to = "wandb"}, "found wandb|trackio|tensorboard|mlflow"},
        {{.to = "tensorboard,wandb"}, "found wandb"},
        {{.to = "tensorbord"}, "track.to: found 'tensorbord'|a list of mlflow, tensorboard, trackio"},
        {{.to = "none,trackio"}, "track.to: found 'none'"},
        {{.to = ","}, "track.to: found ''"},
        {{.to = "mlflow"}, "but no server|MLFLOW_TRACKING_URI"},
        {{.mlflow = "sqlite:///secret.db"}, "found a database (sqlite)|mlflow server --backend-store-uri"},
        {{.mlflow = "postgresql://u:secret@h/d"}, "found a database (postgresql)"},
        {{.mlflow = "databricks://secret"}, "databricks"},
        {{.mlflow = "databricks"}, "databricks"},
        {{.mlflow = "./mlruns"}, "found no URI|file:DIR"},
        {{.mlflow = "s3://secret/x"}, "begins with 's3:'"},
        {{.mlflow = "http://u:secret@host:5000"}, "user name or password|MLFLOW_TRACKING_PASSWORD"},
        {{.mlflow = "http:///u:secret@host:5000"}, "user name or password|MLFLOW_TRACKING_PASSWORD"},
        {{.to = "none", .mlflow = "https://u:secret@host:5000"}, "user name or password|MLFLOW_TRACKING_PASSWORD"},
        {{.mlflow = "http://host/?token=secret"}, "a query"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        expect_error(track_sinks_check(&cases[i].asked), ERR_INPUT, cases[i].words);
        assert_null(strstr(error_message(), "secret"));
    }
    static const char *const logins[] = {"MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"};
    for (size_t i = 0; i < ARRAY_LENGTH(logins); i++) { /* whatever server a config names, it gets none of them */
        setenv(logins[i], "secret", 1);
        expect_error(track_sinks_check(&(track_sinks){.mlflow = "http://h"}), ERR_INPUT,
                     "track.mlflow: found http://h,|set MLFLOW_TRACKING_URI");
        setenv("MLFLOW_TRACKING_URI", "http://h:5000", 1);
        expect_error(track_sinks_check(&(track_sinks){.mlflow = "http://h"}), ERR_INPUT, "set MLFLOW_TRACKING_URI");
        assert_null(strstr(error_message(), "secret"));
        setenv("MLFLOW_TRACKING_URI", "http://h/", 1);
        track_sinks asked = {.mlflow = "http://h"};
        if (track_sinks_check(&asked) != OK) assert_non_null(strstr(error_message(), "libcurl"));
        must(track_sinks_check(&(track_sinks){.to = "none", .mlflow = "http://elsewhere"}));
        unsetenv(logins[i]);
        unsetenv("MLFLOW_TRACKING_URI");
    }
    must(track_sinks_check(&(track_sinks){.to = "none", .mlflow = "http://h", .tensorboard = "d"}));
    must(track_sinks_check(&(track_sinks){.to = "all"}));
    must(track_sinks_check(&(track_sinks){0}));
    strbuf shown;
    strbuf_init(&shown);
    sink_uri_add(&shown, "https://u:se@cret@host:5/x@y");
    assert_string_equal(shown.text, "https://host:5/x@y");
    strbuf_fini(&shown);
}

static void settings_and_environment_choose_the_sinks(void **state) {
    sink_settings s;
    must(sink_settings_init(&s, &(track_sinks){.tensorboard = "d"}, "runs/a/"));
    assert_true(!s.on[0] && s.on[1] && !s.on[2]);
    assert_string_equal(s.name, "a");
    sink_settings_fini(&s);
    setenv("MLFLOW_TRACKING_URI", "file:m", 1);
    must(sink_settings_init(&s, &(track_sinks){0}, "runs/\xff"));
    assert_true(s.on[0] && !s.on[1] && !s.on[2]);
    assert_string_equal(s.name, "\xef\xbf\xbd"); /* JSON is UTF-8 */
    sink_settings_fini(&s);
    must(sink_settings_init(&s, &(track_sinks){.to = "none"}, "r"));
    assert_true(!s.on[0] && !s.on[1] && !s.on[2]);
    sink_settings_fini(&s);
    unsetenv("MLFLOW_TRACKING_URI");
    must(sink_settings_init(&s, &(track_sinks){.to = "trackio, tensorboard"}, "r"));
    assert_true(!s.on[0] && s.on[1] && s.on[2]);
    assert_string_equal(s.tensorboard_dir, "r/tensorboard");
    sink_settings_fini(&s);
}

static int open_all(void **state) {
    static const char *const names[] = {"MLFLOW_TRACKING_URI", "MLFLOW_URI", "MLFLOW_EXPERIMENT_NAME",
                                        "TRACKIO_PROJECT"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) unsetenv(names[i]);
    return test_dir_open(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_castagnoli),
        cmocka_unit_test(events_are_the_bytes_of_tensorboard),
        cmocka_unit_test(trackio_reads_our_lines),
        cmocka_unit_test(a_resumed_run_begins_another_event_file),
        cmocka_unit_test(a_queue_keeps_whole_lines),
        cmocka_unit_test(damaged_lines_are_left_out),
        cmocka_unit_test(a_file_store_holds_each_value_once),
        cmocka_unit_test(a_key_stays_below_its_run),
        cmocka_unit_test(wrong_requests_are_refused_without_secrets),
        cmocka_unit_test(settings_and_environment_choose_the_sinks),
    };
    return cmocka_run_group_tests(tests, open_all, test_dir_close);
}
