/* test_report.c - run directories as anyone may have left them: numbers by column, few points that keep the extremes, smooth lines
 * that keep the peak, what became of a run, settings that differ, the overlap in a trace. */
#include "files.h"
#include "must.h"
#include "report/build.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool same(double a, double b) { return (isnan(a) && isnan(b)) || a == b; }

static void append(const char *path, const char *text) {
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void make_dirs(const char *name) { must(dir_make(path_of(name))); }

/* ---- metrics ---------------------------------------------------------------------------------------------------------- */

/* Whatever way a number is written, its bits are those that jansson reads. */
static void numbers_are_those_of_jansson(void **state) {
    static const char *const texts[] = {"0",
                                        "-0",
                                        "1",
                                        "-17",
                                        "5.54433203",
                                        "2.55784296e+10",
                                        "1e22",
                                        "1e23",
                                        "123456789012345678",
                                        "9007199254740993",
                                        "0.1",
                                        "3e-7",
                                        "1.7976931348623157e308",
                                        "4.9e-324",
                                        "1E5",
                                        "-2.5E-3",
                                        "0.30000000000000004",
                                        "12345678901234567890.5",
                                        "1e-22",
                                        "1e-23",
                                        "6.02214076e23"};
    run_metrics m;
    const char *path = path_of("numbers.jsonl");
    write_text(path, "");
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
        char line[128];
        snprintf(line, sizeof line, "{\"step\": %zu, \"a\": %s}\n", i, texts[i]);
        append(path, line);
    }
    run_metrics_init(&m, "step");
    must(run_metrics_follow(&m, path, 0));
    assert_int_equal(m.n_bad, 0);
    const metric_series *a = run_metrics_find(&m, "a");
    assert_int_equal(a->n, ARRAY_LENGTH(texts));
    for (size_t i = 0; i < a->n; i++) {
        json_t *v = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        if (!same(a->y[i], json_number_value(v))) fail_msg("%s was read as %.17g", texts[i], a->y[i]);
        json_decref(v);
    }
    run_metrics_fini(&m);
}

static void lines_that_are_none_are_counted_and_left_out(void **state) {
    static const char *const bad[] = {"",
                                      "{",
                                      "[1]",
                                      "3",
                                      "{\"step\": \"1\", \"a\": 1}",
                                      "{\"a\": 1}",
                                      "{\"step\": 01, \"a\": 1}",
                                      "{\"step\": 4, \"a\": 1} x",
                                      "{\"step\": null}",
                                      "{\"step\": 4, \"a\": .5}",
                                      "{\"step\": 4, \"a\": 1,}",
                                      "{\"step\": 1e400}",
                                      "\xff\xfe",
                                      "{\"step\": 1}" /* back in time */};
    run_metrics m;
    const char *path = path_of("bad.jsonl");
    write_text(path, "{\"step\": 3, \"a\": 1}\n");
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) append(path, bad[i]), append(path, "\n");
    append(path, " { \"step\" : 4 , \"a\" : null , \"b\" : true, \"list\": [1, {\"x\": 2}], \"text\": \"y\", "
                 "\"tr\\u0061in\": 7}\r\n");
    append(path, "{\"step\": 5, \"a\": 2, \"a\": 3}\n{\"step\": 6, \"a\": 9"); /* the last is half a line */
    run_metrics_init(&m, "step");
    must(run_metrics_follow(&m, path, 0));
    assert_int_equal(m.n_bad, ARRAY_LENGTH(bad));
    assert_int_equal(m.n_lines, ARRAY_LENGTH(bad) + 3);
    const metric_series *a = run_metrics_find(&m, "a");
    assert_int_equal(a->n, 3);
    assert_true(isnan(a->y[1]) && a->x[1] == 4 && a->y[2] == 3);
    assert_true(run_metrics_find(&m, "b")->y[0] == 1 && run_metrics_find(&m, "train")->y[0] == 7);
    assert_null(run_metrics_find(&m, "list"));
    assert_null(run_metrics_find(&m, "step"));
    assert_true(series_last(a) == 3 && series_first(a) == 1 && series_most(a) == 3 && series_median(a) == 2);
    assert_true(series_at(a, 4) == 1 && isnan(series_at(a, 2)) && isnan(series_last(NULL)));
    run_metrics_fini(&m);
}

/* A file that grows gives each line once; one that was cut is read again. */
static void a_file_is_followed(void **state) {
    run_metrics m;
    const char *path = path_of("grows.jsonl");
    run_metrics_init(&m, "step");
    must(run_metrics_follow(&m, path, 0)); /* not there yet */
    write_text(path, "{\"step\": 1, \"a\": 10}\n{\"step\": 2, \"a\"");
    must(run_metrics_follow(&m, path, 0));
    assert_int_equal(run_metrics_find(&m, "a")->n, 1);
    append(path, ": 20}\n{\"step\": 3, \"b\": 30}\n");
    must(run_metrics_follow(&m, path, 0));
    must(run_metrics_follow(&m, path, 0));
    assert_int_equal(run_metrics_find(&m, "a")->n, 2);
    assert_int_equal(m.n_lines, 3);
    write_text(path, "{\"step\": 1, \"a\": 11}\n");
    must(run_metrics_follow(&m, path, 0));
    assert_true(run_metrics_find(&m, "a")->n == 1 && run_metrics_find(&m, "a")->y[0] == 11);
    write_text(path, "{\"step\": 1, \"a\": 12}\n{\"step\": 2, \"a\": 13}\n"); /* longer, but another beginning */
    must(run_metrics_follow(&m, path, 0));
    assert_true(run_metrics_find(&m, "a")->n == 2 && run_metrics_find(&m, "a")->y[0] == 12);
    run_metrics_fini(&m);
    run_metrics_init(&m, "step"); /* the end alone begins with a whole line */
    must(run_metrics_follow(&m, path, 30));
    assert_true(m.n_lines == 1 && m.n_bad == 0 && run_metrics_find(&m, "a")->y[0] == 13);
    run_metrics_fini(&m);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void the_median_is_that_of_a_sorted_list(void **state) {
    double y[50], sorted[50];
    for (uint64_t n = 1; n <= 50; n++)
        for (uint64_t seed = 0; seed < 40; seed++) {
            for (uint64_t i = 0; i < n; i++)
                y[i] = sorted[i] = (double)rng_below(seed, i, seed % 2 ? 5 : 1000); /* many equal ones */
            qsort(sorted, n, sizeof *sorted, compare_doubles);
            metric_series s = {.y = y, .n = n};
            assert_true(series_median(&s) == (sorted[(n - 1) / 2] + sorted[n / 2]) / 2);
        }
}

/* ---- thinning and smoothing --------------------------------------------------------------------------------------------- */

enum { N = 20000, COLUMNS = 100 };

static void fill(double *x, double *y, uint64_t seed) {
    for (size_t i = 0; i < N; i++) {
        x[i] = (i ? x[i - 1] : 5) + rng_uniform(seed, i) * (i % 100 == 0 ? 50 : 1); /* not evenly spaced */
        y[i] = sin((double)i / 900) + rng_uniform(seed + 1, i);
        if (rng_below(seed + 2, i, 40) == 0) y[i] = NAN;
    }
    y[0] = y[N - 1] = NAN;
}

static void thinning_keeps_the_extremes_of_every_column(void **state) {
    double *x = mem_alloc(N * sizeof *x), *y = mem_alloc(N * sizeof *y);
    size_t keep[2 * COLUMNS + 2];
    for (uint64_t seed = 0; seed < 20; seed++) {
        fill(x, y, seed);
        y[rng_below(seed, 7, N - 2) + 1] = 100; /* one step in twenty thousand */
        y[rng_below(seed, 8, N - 2) + 1] = -100;
        size_t n = series_thin(x, y, N, COLUMNS, keep), first = 1, last = N - 2;
        assert_true(n > COLUMNS && n <= ARRAY_LENGTH(keep));
        while (!isfinite(y[first])) first++;
        while (!isfinite(y[last])) last--;
        assert_int_equal(keep[0], first);
        assert_int_equal(keep[n - 1], last);
        double low[COLUMNS], high[COLUMNS], kept_low[COLUMNS], kept_high[COLUMNS], width = x[last] - x[first];
        for (int c = 0; c < COLUMNS; c++) low[c] = kept_low[c] = INFINITY, high[c] = kept_high[c] = -INFINITY;
        for (size_t i = first; i <= last; i++) {
            int c = MIN((int)((x[i] - x[first]) / width * COLUMNS), COLUMNS - 1);
            if (isfinite(y[i])) low[c] = fmin(low[c], y[i]), high[c] = fmax(high[c], y[i]);
        }
        for (size_t k = 0; k < n; k++) {
            int c = MIN((int)((x[keep[k]] - x[first]) / width * COLUMNS), COLUMNS - 1);
            assert_true(k == 0 || keep[k] > keep[k - 1]);
            assert_true(isfinite(y[keep[k]]));
            kept_low[c] = fmin(kept_low[c], y[keep[k]]), kept_high[c] = fmax(kept_high[c], y[keep[k]]);
        }
        for (int c = 0; c < COLUMNS; c++) assert_true(kept_low[c] == low[c] && kept_high[c] == high[c]);
    }
    double one[] = {3}, none[] = {NAN, NAN}, equal[] = {1, 1, 1};
    assert_int_equal(series_thin(one, one, 1, COLUMNS, keep), 1);
    assert_int_equal(series_thin(equal, none, 2, COLUMNS, keep), 0);
    assert_int_equal(series_thin(one, one, 0, COLUMNS, keep), 0);
    assert_int_equal(series_thin(equal, (double[]){1, 9, 2}, 3, COLUMNS, keep), 3); /* all at one x */
    for (size_t columns = 1; columns < 9; columns++) {
        double total[] = {1, 2, 9, 3, 3, 8, 0};
        size_t n = series_fullest(total, 7, columns, keep);
        assert_int_equal(n, MIN(columns, 7));
        bool peak = false;
        for (size_t k = 0; k < n; k++) peak |= keep[k] == 2;
        assert_true(peak);
    }
    free(x);
    free(y);
}

static void a_smooth_line_keeps_the_peak_where_it_is(void **state) {
    double *x = mem_alloc(N * sizeof *x), *y = mem_alloc(N * sizeof *y), *out = mem_alloc(N * sizeof *out);
    for (uint64_t seed = 0; seed < 5; seed++) {
        fill(x, y, seed);
        size_t peak = rng_below(seed, 9, N - 2) + 1;
        y[peak] = 7;
        series_smooth(y, N, 200, out);
        assert_true(out[peak] < 3); /* a plain mean loses it */
        series_smooth_keep_peak(y, N, 200, out);
        assert_true(out[peak] == 7);
        double way = 0, raw = 0;
        for (size_t i = 1; i < N; i++) {
            assert_true(isfinite(out[i]) == isfinite(y[i]) && !(out[i] > 7));
            if (isfinite(out[i]) && isfinite(out[i - 1]))
                way += fabs(out[i] - out[i - 1]), raw += fabs(y[i] - y[i - 1]);
        }
        assert_true(way < 0.05 * raw);
    }
    double flat[] = {4, 4, 4, 4}, smooth[4];
    series_smooth_keep_peak(flat, 4, 100, smooth);
    for (int i = 0; i < 4; i++) assert_true(smooth[i] == 4);
    free(x);
    free(y);
    free(out);
}

/* ---- what became of a run ------------------------------------------------------------------------------------------------ */

static run_state state_of(const char *host, long long pid, double started, double sign) {
    run r;
    char text[600];
    make_dirs("state/monitor");
    snprintf(text, sizeof text,
             "{\"version\": 1, \"task\": \"sft\", \"host\": \"%s\", \"pid\": %lld, \"world\": 2, \"started\": %.0f, "
             "\"ended\": null, "
             "\"state\": \"running\", \"error\": null, \"step\": 3, \"steps\": 9}",
             host, pid, started);
    write_text(path_of("state/run.json"), text);
    snprintf(text, sizeof text, "{\"time\": %.3f, \"step\": 3, \"rss_bytes\": 5, \"driver_bytes\": null}\n", sign);
    write_text(path_of("state/monitor/rank-00000.jsonl"), text);
    must(run_open(&r, path_of("state"), RUN_ALL));
    assert_true(r.step == 3 && r.steps == 9 && r.world == 2 && r.n_ranks == 1 && r.n_notes == 0);
    assert_string_equal(r.name, "state");
    run_state found = r.state;
    run_close(&r);
    return found;
}

static void a_run_whose_process_is_gone_has_died(void **state) {
    char here[256] = "";
    double now = (double)time(NULL);
    gethostname(here, sizeof here - 1);
    assert_int_equal(state_of(here, getpid(), now, now), RUN_RUNNING);
    assert_int_equal(state_of(here, 4194304 + 7, now, now), RUN_DIED);           /* above the largest pid of Linux */
    assert_int_equal(state_of(here, getpid(), now - 40 * 86400, now), RUN_DIED); /* the number is another process now */
    pid_t child = fork();
    if (child == 0) _exit(0);
    siginfo_t ended;
    assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT), 0); /* it stays as a zombie */
    assert_int_equal(state_of(here, child, now, now), RUN_DIED);
    waitpid(child, NULL, 0);
    char domain[300];
    snprintf(domain, sizeof domain, "%s.example.org", here);
    assert_int_equal(state_of(domain, 4194304 + 7, now, now), RUN_DIED);
    assert_int_equal(state_of("elsewhere", getpid(), now, now - 5), RUN_RUNNING);
    assert_int_equal(state_of("elsewhere", getpid(), now, now - 100), RUN_DIED);
}

static void an_old_run_says_by_its_files_how_far_it_came(void **state) {
    run r;
    make_dirs("old");
    write_text(path_of("old/config.yaml"), "train:\n  task: sft\n  steps: 2\ndata:\n  source: a.txt\nmodel:\n  preset: "
                                           "gpt2\n  path: none\nlist: [a, b]\n");
    write_text(path_of("old/metrics.jsonl"), "{\"step\": 1, \"train/loss\": 2, \"memory/device_bytes\": 100}\n");
    must(run_open(&r, path_of("old"), RUN_ALL));
    assert_int_equal(r.state, RUN_UNFINISHED);
    assert_string_equal(r.task, "sft");
    assert_string_equal(r.model, "gpt2");
    assert_string_equal(run_setting_find(&r, "list"), "[a, b]");
    assert_true(r.steps == 2 && r.step == 1 && run_peak_bytes(&r) == 100);
    run_close(&r);
    append(path_of("old/metrics.jsonl"), "{\"step\": 2, \"train/loss\": 1, \"memory/device_bytes\": 100}\n");
    must(run_open(&r, path_of("old"), RUN_TAIL | RUN_SETTINGS));
    assert_int_equal(r.state, RUN_FINISHED);
    run_close(&r);
    expect_error(run_open(&r, path_of("none"), RUN_ALL), ERR_IO, "none|No such file");
    run_close(&r);
    expect_error(run_open(&r, path_of("old/config.yaml"), RUN_ALL), ERR_INPUT, "expected the directory of a run");
    run_close(&r);
}

/* ---- memory.json ---------------------------------------------------------------------------------------------------------- */

#define POINTS(bytes) \
    "{\"op\": [\"a\", \"b\"], \"index\": [3, 7], \"section\": [\"micro\", \"update\"], \"bytes\": " bytes "}"
static void tiers_are_read_or_named(void **state) {
    run r;
    make_dirs("mem");
    write_text(path_of("mem/run.json"), "{\"state\": \"finished\"");
    write_text(path_of("mem/plan.json"), "[]");
    write_text(path_of("mem/config.yaml"), "a: [");
    write_text(path_of("mem/metrics.jsonl"), "x\n");
    write_text(
        path_of("mem/memory.json"),
        "{\"version\": 1, \"roles\": [\"params\", \"work\"], \"tiers\": ["
        "{\"tier\": \"device\", \"planned_peak\": 13, \"measured_peak\": 13, \"limit\": null, \"points\": " POINTS(
            "[[3, 4], [5, 9]]") ", \"peak\": {\"at\": 1, \"values\": [{\"name\": \"w\", \"role\": \"params\", "
                                "\"bytes\": 4}], \"others_bytes\": 9}},"
                                "{\"tier\": \"host\", \"points\": " POINTS(
                                    "[[3], [5, 9]]") "},"
                                                     "{\"tier\": \"nvme\", \"points\": " POINTS(
                                                         "[[3, -1], [5, 9]]") "},"
                                                                              "{\"tier\": \"x\", \"points\": " POINTS(
                                                                                  "[[1, 2]]") "}, 3]}");
    must(run_open(&r, path_of("mem"), RUN_ALL));
    assert_int_equal(r.n_tiers, 1);
    const run_tier *t = run_tier_find(&r, "device");
    assert_true(t->peak_at == 1 && t->total[0] == 8 && t->total[1] == 13 && t->index[1] == 7 && t->n_values == 1 &&
                t->others == 9);
    assert_true(run_role_bytes(&r, "work") == 9 && isnan(run_role_bytes(&r, "cache")) && run_peak_bytes(&r) == 13);
    assert_string_equal(t->section[1], "update");
    assert_null(r.plan);
    static const char *const named[] = {
        "config.yaml", "metrics.jsonl: 1 of 1", "tier 'host'", "tier 'nvme'", "tier 'x'", "run.json"};
    for (size_t k = 0; k < ARRAY_LENGTH(named); k++) {
        bool found = false;
        for (size_t i = 0; i < r.n_notes; i++) found |= strstr(r.notes[i], named[k]) != NULL;
        if (!found) fail_msg("no note about %s", named[k]);
    }
    run_close(&r);
}

/* What cannot be read is named, also where it is JSON of another kind or no file at all. */
static void files_of_another_kind_are_named(void **state) {
    static const char *const files[] = {"run.json", "memory.json", "plan.json", "config.yaml"};
    run r;
    char path[300];
    make_dirs("kind");
    write_text(path_of("kind/metrics.jsonl"), "{\"step\": 1, \"train/loss\": 2}\n");
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++) {
        snprintf(path, sizeof path, "%s/%s", path_of("kind"), files[i]);
        write_text(path, "[1]\n");
    }
    make_dirs("kind/samples.jsonl");
    must(run_open(&r, path_of("kind"), RUN_ALL));
    assert_int_equal(r.n_notes, 5);
    for (size_t i = 0; i < r.n_notes; i++) {
        assert_non_null(strstr(r.notes[i], "found "));
        assert_non_null(strstr(r.notes[i], ", expected "));
    }
    run_close(&r);
}

/* ---- several runs --------------------------------------------------------------------------------------------------------- */

static void directories_stand_for_their_runs(void **state) {
    static const char *const runs[] = {"all/b", "all/pipeline/one", "all/pipeline/two", "all/b/inner"};
    run_paths p;
    char path[300];
    for (size_t i = 0; i < ARRAY_LENGTH(runs); i++) {
        make_dirs(runs[i]);
        snprintf(path, sizeof path, "%s/metrics.jsonl", path_of(runs[i]));
        write_text(path, "");
    }
    make_dirs("all/bench");
    write_text(path_of("all/bench/rloo.json"), "{}");
    assert_int_equal(symlink("..", path_of("all/loop")), 0);
    run_paths_init(&p);
    must(run_paths_add(&p, path_of("all"), false));
    assert_int_equal(p.n_runs, 3); /* what lies inside of a run is its own */
    assert_int_equal(p.n_benches, 1);
    assert_true(str_ends_with(p.runs[0], "all/b") && str_ends_with(p.runs[2], "pipeline/two"));
    make_dirs("nothing");
    expect_error(run_paths_add(&p, path_of("nothing"), false), ERR_INPUT, "found no run|metrics.jsonl");
    expect_error(run_paths_add(&p, path_of("missing"), false), ERR_IO, "missing");
    must(run_paths_add(&p, path_of("missing"), true));
    run_paths_fini(&p);
}

static void only_settings_that_differ_do(void **state) {
    static const char *const texts[] = {"a: 1\nm:\n  x: full\n  y: 2\nrun:\n  dir: one\n",
                                        "a: 1\nm:\n  x: none\nrun:\n  dir: two\n", ""};
    run runs[3];
    setting_table t;
    for (size_t i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "set%zu", i);
        make_dirs(name);
        snprintf(name, sizeof name, "set%zu/config.yaml", i);
        write_text(path_of(name), texts[i]);
        snprintf(name, sizeof name, "set%zu", i);
        must(run_open(&runs[i], path_of(name), RUN_SETTINGS));
    }
    setting_table_init(&t, runs, 3);
    assert_int_equal(t.n_differ, 2); /* not where the run lies; and a run without settings says nothing */
    assert_int_equal(t.n_rows, 4);
    assert_true(t.n_same == 1 && t.rows[0].is_same && !t.rows[3].is_same);
    assert_true(!t.rows[0].differs && t.rows[1].differs && t.rows[2].differs);
    assert_string_equal(t.rows[1].key, "m.x");
    assert_true(strcmp(t.rows[1].values[1], "none") == 0 && !t.rows[2].values[1]);
    setting_table_fini(&t);
    for (size_t i = 0; i < 3; i++) run_close(&runs[i]);
}

/* ---- the terminal, a trace -------------------------------------------------------------------------------------------------- */

static void a_plot_shows_the_extremes(void **state) {
    double x[100], y[100];
    for (int i = 0; i < 100; i++) x[i] = i + 1, y[i] = 1;
    y[40] = 9, y[70] = NAN;
    metric_series s = {.name = "train/loss", .x = x, .y = y, .n = 100};
    run_metrics m = {.series = &s, .n_series = 1};
    str_nearest nearest = {.wanted = "los"};
    assert_ptr_equal(metric_by_word(&m, "loss", &nearest), &s);
    assert_null(metric_by_word(&m, "los", &nearest));
    assert_string_equal(nearest.name, "loss");
    for (int braille = 0; braille < 2; braille++) {
        text_plot p = {.columns = 61, .lines = 5, .braille = braille};
        memstream out;
        text_plot_range(&p, &s);
        assert_true(p.y_low == 1 && p.y_high == 9 && p.x_low == 1 && p.x_high == 100);
        text_plot_draw(&p, "title", &s, memstream_open(&out));
        char *text = memstream_take(&out), *top = strchr(text, '\n') + 1;
        assert_true(utf8_check(text, strlen(text)).n_bad == 0);
        assert_int_equal(strcspn(top, "9"), 8);
        if (!braille) assert_int_equal(strcspn(top, "*\n"), 11 + 20); /* step 41 of 100, of 50 characters */
        if (!braille) assert_int_equal(strlen(text), strspn(text, "\n |*.0123456789abcdefghijklmnopqrstuvwxyz"));
        free(text);
    }
}

#define EVENT(op, section, stream, begin, length)                                                       \
    "{\"name\":\"x\",\"cat\":\"" section "\",\"ph\":\"X\",\"pid\":0,\"tid\":" #stream ",\"ts\":" #begin \
    ",\"dur\":" #length ",\"args\":{\"op\":" #op "}},\n"
static void overlap_of_a_step_is_what_a_hand_finds(void **state) {
    step_trace t;
    write_text(path_of("trace.json"),
               "{\"traceEvents\":[\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{\"name\":"
               "\"compute\"}},\n"
               "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":2,\"args\":{\"name\":\"h2d\"}},\n" EVENT(
                   0, "start", 0, 0, 900000) EVENT(9, "update", 0, 1000000, 1000)
                   EVENT(1, "micro", 0, 1002000, 4000) "      " EVENT(2, "micro", 2, 1004000, 4000)
                       EVENT(3, "micro", 0, 1008000, 1000) EVENT(9, "update", 0, 1010000, 1000)
                           EVENT(9, "update", 0, 1500000, 1000)
                               EVENT(9, "update", 0, 1501000, 1000) "{\"name\":\"end\"}\n]}\n");
    must(step_trace_read(&t, path_of("trace.json")));
    assert_int_equal(t.n_lanes, 2);
    assert_true(fabs(t.length - 10) < 1e-9); /* steps of 10, 490 and 1 ms: the median */
    assert_string_equal(t.lanes[1].name, "h2d");
    assert_true(fabs(t.lanes[0].busy - 6) < 1e-9 && fabs(t.lanes[1].busy - 4) < 1e-9);
    assert_true(fabs(t.lanes[1].covered - 2) < 1e-9); /* 1004 to 1006 */
    assert_true(t.n_ops == 4 && t.op[1] == 2 && fabs(t.op_begin[1] - 3) < 1e-9);
    step_trace_fini(&t);
    write_text(path_of("empty.json"), "{\"traceEvents\":[\n]}\n");
    expect_error(step_trace_read(&t, path_of("empty.json")), ERR_INPUT, "empty.json|found no op");
    step_trace_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_jansson),
        cmocka_unit_test(lines_that_are_none_are_counted_and_left_out),
        cmocka_unit_test(a_file_is_followed),
        cmocka_unit_test(the_median_is_that_of_a_sorted_list),
        cmocka_unit_test(thinning_keeps_the_extremes_of_every_column),
        cmocka_unit_test(a_smooth_line_keeps_the_peak_where_it_is),
        cmocka_unit_test(a_run_whose_process_is_gone_has_died),
        cmocka_unit_test(an_old_run_says_by_its_files_how_far_it_came),
        cmocka_unit_test(tiers_are_read_or_named),
        cmocka_unit_test(files_of_another_kind_are_named),
        cmocka_unit_test(directories_stand_for_their_runs),
        cmocka_unit_test(only_settings_that_differ_do),
        cmocka_unit_test(a_plot_shows_the_extremes),
        cmocka_unit_test(overlap_of_a_step_is_what_a_hand_finds),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
