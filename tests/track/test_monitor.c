/* test_monitor.c - run.json, plan.json, memory.json and monitor/ of a run directory: what they hold in every state, that they follow a
 * run without its help, and that nothing which is wrong with them stops it. */
#include "track/track.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct fixture {
    compiled k;
    dataset *data;
    char *dir;
} fixture;

static void fixture_open(fixture *f) {
    compiled_open(&f->k, &(training){.steps = 9});
    training_must(dataset_open(&f->data, &f->k.r.data));
    f->dir = training_dir();
    f->k.r.run_dir = f->dir;
}

static void fixture_close(fixture *f) {
    dataset_close(f->data);
    compiled_close(&f->k);
    training_dir_remove(f->dir);
}

static monitor *opened(fixture *f, bool has_memory) {
    return monitor_open(&(monitor_options){
        .request = &f->k.r, .plan = &f->k.p, .data = f->data, .version = "1.2.3", .has_memory = has_memory});
}

static train_step_report report_at(const fixture *f, int64_t step) {
    train_step_report r = {.step = step, .steps = 9, .driver_bytes = 12345};
    for (tier t = 0; t < TIER_COUNT; t++) r.tier_bytes[t] = f->k.p.program.arena_bytes[t];
    return r;
}

static bool exists(const fixture *f, const char *name) {
    char path[512];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return stat(path, &info) == 0;
}

static json_t *read_json(const fixture *f, const char *name) {
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s: %s", path, error.text);
    return root;
}

/* The lines of a file of JSON Lines; the last is whole. */
static json_t *read_lines(const fixture *f, const char *name) {
    char path[512], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    training_must(file_read_all(path, 1 << 20, &text, &n));
    json_t *list = json_array();
    assert_true(n > 0 && text[n - 1] == '\n');
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *one = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(one);
        json_array_append_new(list, one);
    }
    free(text);
    return list;
}

/* The sampler's first line, which its thread writes when it gets a core. */
static void wait_for_sample(const fixture *f) {
    char path[512];
    struct stat info = {0};
    snprintf(path, sizeof path, "%s/monitor/rank-00000.jsonl", f->dir);
    while (stat(path, &info) != 0 || info.st_size == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int64_t whole(const json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static void check_run(const fixture *f, const char *state, int64_t step, bool ended, const char *error) {
    json_t *run = read_json(f, "run.json");
    assert_string_equal(json_string_value(json_object_get(run, "state")), state);
    assert_string_equal(json_string_value(json_object_get(run, "ralo")), "1.2.3");
    assert_string_equal(json_string_value(json_object_get(run, "task")), "sft");
    assert_int_equal(whole(run, "version"), 1);
    assert_int_equal(whole(run, "pid"), getpid());
    assert_int_equal(whole(run, "step"), step);
    assert_int_equal(whole(run, "steps"), 9);
    assert_int_equal(whole(run, "world"), 1);
    assert_int_equal(json_is_real(json_object_get(run, "ended")), ended);
    assert_true(json_is_real(json_object_get(run, "started")));
    const char *text = json_string_value(json_object_get(run, "error"));
    if (error) assert_non_null(text && strstr(text, error) ? text : NULL);
    else assert_null(text);
    json_decref(run);
}

static uint64_t measured_peak(const fixture *f) {
    json_t *memory = read_json(f, "memory.json");
    const json_t *device = json_array_get(json_object_get(memory, "tiers"), 0);
    assert_int_equal(whole(device, "planned_peak"), f->k.p.program.arena_bytes[TIER_DEVICE]);
    uint64_t peak = (uint64_t)json_integer_value(json_object_get(device, "measured_peak")); /* 0: null */
    json_decref(memory);
    return peak;
}

static void a_run_is_described_from_its_start_to_its_end(void **state) {
    fixture f;
    fixture_open(&f);
    monitor *m = opened(&f, true);
    check_run(&f, "running", 0, false, NULL);
    assert_int_equal(measured_peak(&f), 0);
    json_t *plan = read_json(&f, "plan.json");
    assert_int_equal(whole(json_object_get(json_object_get(plan, "memory"), "device"), "planned"),
                     f.k.p.planned[TIER_DEVICE]);
    json_decref(plan);
    monitor_start(m, 0);
    wait_for_sample(&f);
    for (int64_t step = 1; step <= 9; step++) {
        train_step_report r = report_at(&f, step);
        monitor_step(m, &r);
    }
    monitor_close(m, OK);
    check_run(&f, "finished", 9, true, NULL);
    assert_int_equal(measured_peak(&f), f.k.p.program.arena_bytes[TIER_DEVICE]);
    json_t *lines = read_lines(&f, "monitor/rank-00000.jsonl");
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);
    assert_true(json_array_size(lines) >= 2); /* at the start and at the end */
    assert_int_equal(whole(last, "step"), 9);
    assert_int_equal(whole(last, "driver_bytes"), 12345);
    assert_int_equal(whole(last, "device_bytes"), f.k.p.program.arena_bytes[TIER_DEVICE]);
    assert_true(whole(last, "rss_bytes") > 1 << 20);
    assert_true(json_is_null(json_object_get(json_array_get(lines, 0), "driver_bytes")));
    assert_true(json_is_null(json_object_get(json_array_get(lines, 0), "pace_ms")));
    assert_true(json_number_value(json_object_get(last, "pace_ms")) > 0);
    assert_null(json_object_get(last, "gpu_busy_percent")); /* it trains on a CPU */
    json_decref(lines);
    fixture_close(&f);
}

/* The time of the clock, with what lies between steps; of the first step its own. */
static void the_pace_counts_what_lies_between_steps(void **state) {
    train_step_report r = {.step = 4, .steps = 9, .step_ms = 250};
    assert_true(track_pace_ms(4, 7000000000, &r, 7000000000) == 250);
    r.step = 8;
    assert_true(track_pace_ms(4, 7000000000, &r, 9000000000) == 500);
}

static int gpu_number; /* in its identity */
static status describe_gpu(int device, device_info *out) {
    *out = (device_info){.name = "stand-in"};
    for (int i = 0; i < 16; i++) out->id[i] = (uint8_t)(i + gpu_number);
    return OK;
}

/* The last line of a run that says it trains on a GPU. */
static json_t *line_of_gpu_run(void) {
    static const backend gpu = {.name = "stand-in", .discrete = true, .describe = describe_gpu};
    fixture f;
    fixture_open(&f);
    const backend *own = f.k.r.backend;
    f.k.r.backend = &gpu;
    monitor *m = opened(&f, true);
    monitor_start(m, 0);
    wait_for_sample(&f);
    monitor_close(m, OK);
    f.k.r.backend = own;
    json_t *lines = read_lines(&f, "monitor/rank-00000.jsonl");
    json_t *last = json_incref(json_array_get(lines, json_array_size(lines) - 1));
    json_decref(lines);
    fixture_close(&f);
    return last;
}

static void meters_of_a_gpu_are_sampled_where_its_driver_has_them(void **state) {
    json_t *line = line_of_gpu_run(); /* no library, or a real one, which knows no such device */
    assert_null(json_object_get(line, "gpu_busy_percent"));
    json_decref(line);

    void *library = dlopen(NVML_STAND_IN, RTLD_NOW);
    assert_non_null(library);
    void *loaded = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (loaded != library) skip(); /* a real one was loaded before */
    line = line_of_gpu_run();
    assert_int_equal(whole(line, "step"), 0);
    assert_true(json_number_value(json_object_get(line, "gpu_busy_percent")) == 97);
    assert_true(json_number_value(json_object_get(line, "gpu_watts")) == 640.25);
    assert_true(json_number_value(json_object_get(line, "gpu_celsius")) == 61);
    json_decref(line);

    *(int *)dlsym(library, "nvml_stand_in_power") = 3; /* not supported */
    line = line_of_gpu_run();
    assert_true(json_is_null(json_object_get(line, "gpu_watts")));
    assert_true(json_number_value(json_object_get(line, "gpu_celsius")) == 61);
    json_decref(line);

    gpu_number = 1; /* a device that it does not know */
    line = line_of_gpu_run();
    assert_null(json_object_get(line, "gpu_busy_percent"));
    json_decref(line);
    assert_int_equal(*(int *)dlsym(library, "nvml_stand_in_open"), 0);
}

/* Steps store numbers as fast as they can while the sampler reads them: what a thread sanitizer looks at. */
static void the_sampler_follows_a_run_that_steps(void **state) {
    fixture f;
    fixture_open(&f);
    monitor *m = opened(&f, true);
    monitor_start(m, 0);
    wait_for_sample(&f);
    int64_t step = 0;
    while (measured_peak(&f) == 0) /* until the sampler has written it, a second from now */
        for (int i = 0; i < 1000; i++) {
            train_step_report r = report_at(&f, ++step);
            monitor_step(m, &r);
        }
    assert_int_equal(measured_peak(&f), f.k.p.program.arena_bytes[TIER_DEVICE]);
    monitor_close(m, OK);
    json_t *lines = read_lines(&f, "monitor/rank-00000.jsonl");
    assert_true(json_array_size(lines) >= 3);
    int64_t seen = whole(json_array_get(lines, 1), "step");
    assert_true(seen > 0 && seen <= step);
    json_decref(lines);
    fixture_close(&f);
}

static void stopped_failed_and_resumed_are_told_apart(void **state) {
    fixture f;
    fixture_open(&f);
    monitor *m = opened(&f, true);
    train_step_report r = report_at(&f, 4);
    monitor_step(m, &r);
    monitor_close(m, ERR(ERR_INTERRUPTED, "interrupted after step 4"));
    assert_string_equal(error_message(), "interrupted after step 4"); /* kept for whoever reports it */
    check_run(&f, "stopped", 4, true, NULL);

    f.k.r.resume = "auto"; /* refused: nothing changes */
    m = opened(&f, true);
    check_run(&f, "stopped", 4, true, NULL);
    monitor_close(m, ERR(ERR_INPUT, "another seed"));
    check_run(&f, "stopped", 4, true, NULL);

    m = opened(&f, true);
    monitor_start(m, 4);
    check_run(&f, "running", 4, false, NULL);
    r = report_at(&f, 5);
    monitor_step(m, &r);
    monitor_close(m, ERR(ERR_RUN, "a \"disk\"\n is gone \x1b[2J"));
    check_run(&f, "failed", 5, true, "a \"disk\"\n is gone");
    json_t *lines = read_lines(&f, "monitor/rank-00000.jsonl");
    assert_true(json_array_size(lines) >= 4); /* of both parts */

    f.k.r.resume = NULL; /* a new run begins the samples again */
    double last = json_number_value(json_object_get(json_array_get(lines, json_array_size(lines) - 1), "time"));
    json_decref(lines);
    monitor_close(opened(&f, true), OK);
    lines = read_lines(&f, "monitor/rank-00000.jsonl");
    assert_true(json_number_value(json_object_get(json_array_get(lines, 0), "time")) >= last);
    json_decref(lines);
    error_clear();
    fixture_close(&f);
}

static void without_the_monitor_there_is_state_alone(void **state) {
    fixture f;
    fixture_open(&f);
    monitor_close(opened(&f, false), OK);
    check_run(&f, "finished", 0, true, NULL);
    assert_true(exists(&f, "plan.json") && !exists(&f, "memory.json") && !exists(&f, "monitor"));
    const char *dir = f.k.r.run_dir;
    f.k.r.run_dir = NULL;
    monitor *m = opened(&f, true);
    assert_null(m);
    monitor_start(m, 0);
    monitor_step(m, NULL);
    monitor_close(m, OK);
    f.k.r.run_dir = dir;
    fixture_close(&f);
}

/* A directory that takes nothing, and one from elsewhere with a link in it. */
static void what_cannot_be_written_is_said_once_and_stops_nothing(void **state) {
    fixture f;
    char path[512], other[512], text[4096] = "";
    fixture_open(&f);
    snprintf(other, sizeof other, "%s/elsewhere", f.dir);
    snprintf(path, sizeof path, "%s/monitor", f.dir);
    assert_int_equal(mkdir(other, 0777), 0);
    assert_int_equal(symlink(other, path), 0);
    snprintf(path, sizeof path, "%s/run.json", f.dir);
    assert_int_equal(mkdir(path, 0777), 0); /* a directory where the file should be */
    FILE *out = tmpfile();
    track *t;
    training_must(track_open(&t, &(track_options){.out = out}));
    monitor *m = monitor_open(&(monitor_options){
        .request = &f.k.r, .plan = &f.k.p, .data = f.data, .version = "1", .track = t, .has_memory = true});
    assert_int_equal(error_code(), OK);
    monitor_start(m, 0);
    train_step_report r = report_at(&f, 1);
    monitor_step(m, &r);
    monitor_close(m, OK);
    track_close(t);
    assert_true(pread(fileno(out), text, sizeof text - 1, 0) > 0);
    const char *first = strstr(text, "will not see the state");
    assert_non_null(first);
    assert_null(strstr(first + 1, "will not see the state"));
    assert_non_null(strstr(text, "monitor is not a directory"));
    assert_false(exists(&f, "elsewhere/rank-00000.jsonl"));
    assert_int_equal(measured_peak(&f), f.k.p.program.arena_bytes[TIER_DEVICE]); /* the others go on */
    fclose(out);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_described_from_its_start_to_its_end),
        cmocka_unit_test(the_pace_counts_what_lies_between_steps),
        cmocka_unit_test(meters_of_a_gpu_are_sampled_where_its_driver_has_them),
        cmocka_unit_test(the_sampler_follows_a_run_that_steps),
        cmocka_unit_test(stopped_failed_and_resumed_are_told_apart),
        cmocka_unit_test(without_the_monitor_there_is_state_alone),
        cmocka_unit_test(what_cannot_be_written_is_said_once_and_stops_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
