/* fuzz_run.c - a run directory as anyone may have left it: metrics.jsonl, run.json, config.yaml, memory.json, trace.json, a result of
 * ralo bench.
 *
 * Sections: these files, in this order. Of whatever is read: columns have as many x as y and x never falls; tiers have lists of one
 * length and their peak at the largest sum; reading the metrics in two pieces gives the same as at once; and the page is made. */
#include "fuzz/fuzz.h"
#include "report/report.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"metrics.jsonl", "run.json",   "config.yaml",
                                    "memory.json",   "trace.json", "rloo.json"};

static void check_metrics(const run_metrics *m) {
    for (size_t i = 0; i < m->n_series; i++) {
        const metric_series *s = &m->series[i];
        ASSERT(s->n > 0 && s->n <= m->n_lines);
        for (size_t k = 0; k < s->n; k++) ASSERT(isfinite(s->x[k]) && (k == 0 || s->x[k] >= s->x[k - 1]));
    }
    ASSERT(m->n_bad <= m->n_lines + 1);
}

static void check_pieces(span file, const char *path, const run_metrics *whole) {
    run_metrics m;
    run_metrics_init(&m, "step");
    for (int piece = 1; piece >= 0; piece--) {
        FILE *f = fopen(path, "w");
        size_t n = piece ? file.length / 2 : file.length;
        ASSERT(f && fwrite(file.text, 1, n, f) == n && fclose(f) == 0);
        ASSERT(run_metrics_follow(&m, path, 0) == OK);
    }
    ASSERT(m.n_series == whole->n_series && m.n_lines == whole->n_lines && m.offset == whole->offset);
    for (size_t i = 0; i < m.n_series; i++) ASSERT(m.series[i].n == whole->series[i].n);
    run_metrics_fini(&m);
}

static void check_run(const run *r) {
    for (size_t i = 0; i < r->n_tiers; i++) {
        const run_tier *t = &r->tiers[i];
        ASSERT(t->n_points > 0 && t->peak_at < t->n_points);
        for (size_t k = 0; k < t->n_points; k++) ASSERT(t->total[k] >= 0 && t->total[k] <= t->total[t->peak_at]);
    }
    for (size_t i = 0; i < r->n_settings; i++) ASSERT(r->settings[i].key && r->settings[i].value);
}

/* As a file of its own: a reader of run directories follows no link. */
static void put(const char *dir, const char *name, span bytes) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
    if (!bytes.length) return;
    FILE *f = fopen(path, "w");
    ASSERT(f && fwrite(bytes.text, 1, bytes.length, f) == bytes.length && fclose(f) == 0);
}

static void check_page(const char *dir, bool bench) {
    char path[4200];
    run_paths paths;
    json_t *result;
    run_paths_init(&paths);
    ASSERT(run_paths_add(&paths, dir, true) == OK);
    snprintf(path, sizeof path, "%s/rloo.json", dir);
    if (bench) ASSERT(run_paths_add(&paths, path, false) == OK);
    snprintf(path, sizeof path, "%s/page.html", dir);
    status rc = report_write(&paths, &(report_options){.out = path}, &result);
    if (rc != OK) fuzz_refused(rc);
    json_decref(result);
    run_paths_fini(&paths);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span files[ARRAY_LENGTH(names)];
    const char *dir = fuzz_directory(NULL, 0);
    char path[4200];
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        files[i] = i + 1 < ARRAY_LENGTH(names) ? fuzz_section(&in) : fuzz_rest(&in);
        put(dir, names[i], files[i]);
    }
    run r;
    ASSERT(run_open(&r, dir, RUN_ALL) == OK);
    check_metrics(&r.metrics);
    check_run(&r);
    snprintf(path, sizeof path, "%s/pieces.jsonl", dir);
    check_pieces(files[0], path, &r.metrics);
    run_close(&r);
    if (fuzz_sometimes(data, size, 32)) check_page(dir, files[5].length > 0);
}
