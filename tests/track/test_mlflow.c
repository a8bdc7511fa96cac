/* test_mlflow.c - MLflow's REST interface against a server that is a thread of this test: it answers, refuses, fails, hangs, talks
 * nonsense and breaks off; nothing is lost, nothing counts twice, one run is made, and no login is shown or given to a stranger. */
#define _GNU_SOURCE 1 /* strcasestr */
#include "track/sink.h"
#include "track/track.h"
#include "files.h"
#include "http_server.h"
#include "must.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the server ----------------------------------------------------------------------------------------------------------- */

typedef enum mode { RIGHT, SILENT, FAILS, LOGIN, GARBAGE, BREAKS_OFF, LOSES_ANSWERS, DELETED, MOVED } mode;

static atomic_int server_mode, n_fail; /* so many requests are not RIGHT, then all are */

/* What it was told; the server's while a run is on its way, then the test's. */
static struct {
    json_t *metrics; /* "key step time": value */
    json_t *params, *tags, *files;
    int n_runs, n_batches, n_experiments;
    size_t n_params_most, n_metrics_most;
    char status[16], authorization[128];
    bool has_experiment, is_elsewhere; /* asked where a redirect leads */
} heard;

static bool say(int fd, const char *status, const char *body) {
    return http_say(fd, status, "Content-Type: application/json\r\n", body);
}

static bool say_json(int fd, json_t *o) {
    char *text = json_dumps(o, 0);
    bool sent = say(fd, "200 OK", text);
    free(text);
    json_decref(o);
    return sent;
}

static json_t *run_json(void) {
    json_t *params = json_array(), *value;
    const char *key;
    json_object_foreach(heard.params, key, value)
        json_array_append_new(params, json_pack("{s:s, s:O}", "key", key, "value", value));
    return json_pack("{s:{s:s, s:s, s:s, s:s}, s:{s:o}}", "info", "run_id", "abc123", "experiment_id", "1",
                     "artifact_uri", "mlflow-artifacts:/1/abc123/artifacts", "lifecycle_stage",
                     server_mode == DELETED ? "deleted" : "active", "data", "params", params);
}

static void keep_pairs(json_t *into, const json_t *pairs) {
    size_t i;
    json_t *pair;
    json_array_foreach(pairs, i, pair)
        json_object_set(into, json_string_value(json_object_get(pair, "key")), json_object_get(pair, "value"));
}

static void keep_batch(const json_t *body) {
    size_t i;
    json_t *m;
    const json_t *metrics = json_object_get(body, "metrics"), *params = json_object_get(body, "params");
    json_array_foreach(metrics, i, m) {
        char key[128];
        snprintf(key, sizeof key, "%s %lld %lld", json_string_value(json_object_get(m, "key")),
                 (long long)json_integer_value(json_object_get(m, "step")),
                 (long long)json_integer_value(json_object_get(m, "timestamp")));
        json_object_set(heard.metrics, key, json_object_get(m, "value"));
    }
    heard.n_metrics_most = MAX(heard.n_metrics_most, json_array_size(metrics));
    heard.n_params_most = MAX(heard.n_params_most, json_array_size(params));
    heard.n_batches++;
    keep_pairs(heard.params, params);
    keep_pairs(heard.tags, json_object_get(body, "tags"));
}

static bool is_to(const strbuf *in, const char *path) {
    const char *space = strchr(in->text, ' ');
    return str_starts_with(space + 1, "/api/2.0/mlflow") &&
           str_starts_with(space + 1 + strlen("/api/2.0/mlflow"), path);
}

static bool answer(int fd, const strbuf *in, size_t at) {
    json_t *body = json_loadb(in->text + at, in->length - at, 0, NULL);
    bool sent = false;
    if (is_to(in, "/experiments/get-by-name?experiment_name=ein%20Versuch%2F1 ")) {
        sent = heard.has_experiment
                   ? say(fd, "200 OK", "{\"experiment\": {\"experiment_id\": \"1\", \"lifecycle_stage\": \"active\"}}")
                   : say(fd, "404 Not Found", "{\"error_code\": \"RESOURCE_DOES_NOT_EXIST\"}");
    } else if (is_to(in, "/experiments/create") && heard.has_experiment) {
        sent = say(fd, "400 Bad Request", "{\"error_code\": \"RESOURCE_ALREADY_EXISTS\"}");
    } else if (is_to(in, "/experiments/create")) {
        heard.has_experiment = true;
        heard.n_experiments++;
        sent = say(fd, "200 OK", "{\"experiment_id\": \"1\"}");
    } else if (is_to(in, "/runs/create")) {
        heard.n_runs++;
        keep_pairs(heard.tags, json_object_get(body, "tags"));
        sent = say_json(fd, json_pack("{s:o}", "run", run_json()));
    } else if (is_to(in, "/runs/search")) {
        sent = say_json(fd, heard.n_runs ? json_pack("{s:[o]}", "runs", run_json()) : json_object());
    } else if (is_to(in, "/runs/get?run_id=abc123")) {
        sent = say_json(fd, json_pack("{s:o}", "run", run_json()));
    } else if (is_to(in, "/runs/update")) {
        snprintf(heard.status, sizeof heard.status, "%s", json_string_value(json_object_get(body, "status")));
        sent = say(fd, "200 OK", "{}");
    } else if (is_to(in, "/runs/log-batch")) {
        keep_batch(body);
        sent = say(fd, "200 OK", "{}");
    } else if (is_to(in, "-artifacts/artifacts/1/abc123/artifacts/") && str_starts_with(in->text, "PUT ")) {
        const char *name = strstr(in->text, "/artifacts/1/abc123/artifacts/") + 30;
        strbuf file;
        strbuf_init(&file);
        strbuf_add_bytes(&file, name, strcspn(name, " "));
        json_object_set_new(heard.files, file.text, json_stringn(in->text + at, in->length - at));
        strbuf_fini(&file);
        sent = say(fd, "200 OK", "{}");
    } else {
        sent = say(fd, "404 Not Found", "{\"error_code\": \"ENDPOINT_NOT_FOUND\", \"message\": \"\\u001b[31m\"}");
    }
    json_decref(body);
    return sent;
}

static bool serve(int fd, const strbuf *in, size_t at) {
    const char *login = strcasestr(in->text, "authorization: ");
    if (login)
        snprintf(heard.authorization, sizeof heard.authorization, "%.*s", (int)strcspn(login + 15, "\r"), login + 15);
    heard.is_elsewhere |= strstr(in->text, " /elsewhere") != NULL;
    mode m = (mode)atomic_load(&server_mode);
    if (m == LOSES_ANSWERS && !strstr(in->text, "/create ")) m = RIGHT;
    if (m != RIGHT && m != DELETED && atomic_fetch_sub(&n_fail, 1) <= 0) m = RIGHT;
    switch (m) {
    case RIGHT:
    case DELETED: return answer(fd, in, at);
    case SILENT: return http_wait_for_hangup(fd);
    case FAILS: return say(fd, "500 Broken", "<html>");
    case LOGIN: return say(fd, "401 Unauthorized", "{}");
    case GARBAGE: return say(fd, "200 OK", "<html>\033[31mno\377</html>");
    case BREAKS_OFF: return http_break_off(fd);
    case MOVED: return http_say(fd, "302 Found", "Location: /elsewhere\r\n", "");
    case LOSES_ANSWERS: {
        int nowhere[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, nowhere)) return false;
        answer(nowhere[0], in, at); /* done, and never heard of */
        close(nowhere[0]);
        close(nowhere[1]);
        return false;
    }
    }
    return false;
}

static void forget(mode m, int fails) {
    json_t **lists[] = {&heard.metrics, &heard.params, &heard.tags, &heard.files};
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++) json_decref(*lists[i]);
    memset(&heard, 0, sizeof heard);
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++) *lists[i] = json_object();
    atomic_store(&server_mode, m);
    atomic_store(&n_fail, fails);
}

static int server_open(void **state) {
    static const char *const names[] = {"MLFLOW_TRACKING_URI",      "MLFLOW_URI",
                                        "MLFLOW_EXPERIMENT_NAME",   "MLFLOW_TRACKING_TOKEN",
                                        "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) unsetenv(names[i]);
    if (track_sinks_check(&(track_sinks){.mlflow = "http://127.0.0.1:1"}) != OK) {
        print_message("%s\n", error_message());
        exit(77); /* skipped: no libcurl here */
    }
    forget(RIGHT, 0);
    return test_dir_open(state) || http_server_open(serve);
}

static int server_close(void **state) {
    if (http_server_close()) return -1;
    forget(RIGHT, 0);
    json_t *lists[] = {heard.metrics, heard.params, heard.tags, heard.files};
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++) json_decref(lists[i]);
    return test_dir_close(state);
}

/* ---- a run ------------------------------------------------------------------------------------------------------------------ */

static char run_dir[128];
static char output[1 << 16];

/* Steps first to last of a run, and what it said. */
static double play(const char *name, int first, int last, const char *lr, double wait, status rc) {
    track *t;
    FILE *out = tmpfile();
    track_sinks sinks = {.mlflow = http_server_url(), .experiment = "ein Versuch/1", .wait = wait};
    snprintf(run_dir, sizeof run_dir, "%s", path_of(name));
    must(dir_make(run_dir));
    write_text(path_of("config"), "x"); /* not in the run */
    strbuf config;
    strbuf_init(&config);
    strbuf_printf(&config, "%s/config.yaml", run_dir);
    write_text(config.text, "train:\n  lr: 1\n");
    strbuf_fini(&config);
    must(track_open(&t, &(track_options){.run_dir = run_dir, .out = out, .log_every = 1000000, .sinks = &sinks}));
    json_t *settings = json_pack("{s:s}", "train.lr", lr);
    for (int i = 0; i < 230; i++) {
        char key[32];
        snprintf(key, sizeof key, "a.setting_%d", i);
        json_object_set_new(settings, key, json_string("auto"));
    }
    track_start(t, settings);
    json_decref(settings);
    for (int i = first; i <= last; i++) {
        train_step_report r = {
            .step = i, .steps = last, .loss = i == 2 ? NAN : 1.0 / i, .lr = 1e-3, .tokens = (uint64_t)i};
        track_step(t, &r, 4096);
    }
    track_end(t, rc);
    double begin = clock_s();
    track_close(t);
    double seconds = clock_s() - begin;
    rewind(out);
    output[fread(output, 1, sizeof output - 1, out)] = 0;
    fclose(out);
    return seconds;
}

/* Each step's loss as metrics.jsonl has it, once; and all files and settings. */
static void expect_whole(int last, const char *status) {
    size_t n_losses = 0;
    const char *key;
    json_t *value;
    json_object_foreach(heard.metrics, key, value) {
        int step;
        if (sscanf(key, "train/loss %d ", &step) != 1) continue;
        n_losses++;
        if (step == 2) assert_string_equal(json_string_value(value), "NaN");
        else assert_true(fabs(json_number_value(value) * step - 1) < 1e-8);
    }
    assert_int_equal(n_losses, last);
    assert_int_equal(heard.n_runs, 1);
    assert_int_equal(json_object_size(heard.params), 231);
    assert_string_equal(heard.status, status);
    assert_string_equal(json_string_value(json_object_get(heard.files, "config.yaml")), "train:\n  lr: 1\n");
}

static void expect_said(const char *words, int times) {
    int n = 0;
    for (const char *p = output; (p = strstr(p, words)); p++) n++;
    if (n != times) fail_msg("'%s' is said %d times, expected %d, in:\n%s", words, n, times, output);
}

static bool is_pending(void) {
    char path[200];
    snprintf(path, sizeof path, "%s/track/mlflow.pending", run_dir);
    return access(path, F_OK) == 0;
}

static char sent_line[1024];
static void keep_line(const char *line) { snprintf(sent_line, sizeof sent_line, "%s", line); }

static void a_server_gets_all_of_it(void **state) {
    forget(RIGHT, 0);
    play("right", 1, 400, "0.1", 20, OK);
    expect_whole(400, "FINISHED");
    assert_int_equal(heard.n_experiments, 1);
    assert_true(heard.n_params_most <= 100 && heard.n_metrics_most <= 1000 && heard.n_metrics_most > 400);
    assert_true(heard.n_batches < 20); /* not one per step */
    assert_false(is_pending());
    expect_said("mlflow: run right of experiment ein Versuch/1", 1);
    expect_said("/#/experiments/1/runs/abc123?workflowType=machine_learning", 1);
    /* a resumed run is the same one; MLflow keeps parameters as they were */
    json_decref(heard.metrics);
    heard.metrics = json_object();
    play("right", 1, 5, "0.2", 20, ERR_INTERRUPTED);
    expect_whole(5, "KILLED");
    assert_string_equal(json_string_value(json_object_get(heard.params, "train.lr")), "0.1");
    assert_string_equal(json_string_value(json_object_get(heard.tags, "resumed/train.lr")), "0.2");
}

static void what_may_pass_is_tried_again(void **state) {
    static const mode modes[] = {FAILS, GARBAGE, BREAKS_OFF, LOSES_ANSWERS};
    for (size_t i = 0; i < ARRAY_LENGTH(modes); i++) {
        char name[8];
        snprintf(name, sizeof name, "try%zu", i);
        forget(modes[i], modes[i] == LOSES_ANSWERS ? 2 : 1);
        play(name, 1, 20, "0.1", 20, ERR_RUN);
        expect_whole(20, "FAILED");
        assert_false(is_pending());
        expect_said("trying again", 1);
        assert_int_equal(heard.n_experiments, 1);
    }
}

/* With the server away, a run goes on, ends when it should, and leaves whole lines; then they are sent. */
static void what_cannot_be_sent_is_kept_and_sent_later(void **state) {
    forget(SILENT, 1000);
    double seconds = play("kept", 1, 300, "0.1", 0.2, OK);
    assert_true(seconds < 5); /* it takes libcurl up to a second to look at the time */
    assert_int_equal(heard.n_runs, 0);
    expect_said("records were not sent and are kept in", 1);
    expect_said("ralo track sync", 1);
    setenv("MLFLOW_TRACKING_TOKEN", "very-secret", 1); /* not for a server that only the run directory names */
    forget(RIGHT, 0);
    expect_error(track_send(run_dir, keep_line), ERR_INPUT, "set MLFLOW_TRACKING_URI");
    assert_string_equal(heard.authorization, "");
    assert_int_equal(heard.n_batches, 0);
    setenv("MLFLOW_TRACKING_URI", http_server_url(), 1);
    must(track_send(run_dir, keep_line));
    assert_string_equal(heard.authorization, "Bearer very-secret");
    unsetenv("MLFLOW_TRACKING_TOKEN");
    unsetenv("MLFLOW_TRACKING_URI");
    expect_whole(300, "FINISHED");
    assert_non_null(strstr(sent_line, "mlflow: sent 303 records; run kept"));
    must(track_send(run_dir, keep_line));
    assert_string_equal(sent_line, "nothing is left to send");
}

static void a_login_is_never_shown(void **state) {
    setenv("MLFLOW_TRACKING_URI", http_server_url(), 1); /* only the server that it names gets the login */
    setenv("MLFLOW_TRACKING_USERNAME", "anna", 1);
    setenv("MLFLOW_TRACKING_PASSWORD", "very-secret", 1);
    forget(LOGIN, 1000);
    play("login", 1, 5, "0.1", 5, OK);
    expect_said("mlflow: the server refuses the login (status 401)", 1);
    expect_said("very-secret", 0);
    assert_string_equal(heard.authorization, "Basic YW5uYTp2ZXJ5LXNlY3JldA==");
    forget(MOVED, 1000);
    play("moved", 1, 5, "0.1", 5, OK);
    expect_said("gave status 302", 1);
    assert_string_equal(heard.authorization, "Basic YW5uYTp2ZXJ5LXNlY3JldA==");
    assert_false(heard.is_elsewhere);
    static const char *const files[] = {"log.txt", "mlflow.json", "mlflow.pending"};
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++) {
        char path[200], *text;
        size_t n;
        snprintf(path, sizeof path, "%s/track/%s", run_dir, files[i]);
        must(file_read_all(path, 1 << 20, &text, &n));
        assert_null(strstr(text, "very-secret"));
        free(text);
    }
    unsetenv("MLFLOW_TRACKING_URI");
    unsetenv("MLFLOW_TRACKING_USERNAME");
    unsetenv("MLFLOW_TRACKING_PASSWORD");
}

static void a_deleted_run_is_not_written_to(void **state) {
    forget(RIGHT, 0);
    play("deleted", 1, 5, "0.1", 5, OK);
    forget(DELETED, 0);
    play("deleted", 6, 9, "0.1", 5, OK);
    expect_said("the run abc123 is deleted there", 1);
    assert_int_equal(heard.n_batches, 0);
    assert_true(is_pending());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_gets_all_of_it),
        cmocka_unit_test(what_may_pass_is_tried_again),
        cmocka_unit_test(what_cannot_be_sent_is_kept_and_sent_later),
        cmocka_unit_test(a_login_is_never_shown),
        cmocka_unit_test(a_deleted_run_is_not_written_to),
    };
    return cmocka_run_group_tests(tests, server_open, server_close);
}
