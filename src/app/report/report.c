/* report.c - reads the runs, draws their charts, writes the page. */
#include "report/build.h"
#include "report/png.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MOST = 80 };
#define BENCH_BYTES ((size_t)256 << 20)

/* ---- charts ---------------------------------------------------------------------------------------------------------------- */

/* Letters, digits, points and dashes of any name; a number where it is taken. */
static const char *file_name(report *p, const char *name) {
    char plain[NAME_MOST + 1];
    size_t n = 0;
    for (; name[n] && n < NAME_MOST; n++) plain[n] = isalnum((unsigned char)name[n]) || name[n] == '_' ? name[n] : '-';
    plain[n] = 0;
    for (int k = 1;; k++) {
        const char *file = arena_format(&p->memory, k > 1 ? "%s-%d.svg" : "%s.svg", plain, k);
        bool taken = false;
        for (size_t i = 0; i < p->n_figures; i++) taken |= strcmp(p->figures[i].file, file) == 0;
        if (!taken) return file;
    }
}

static status write_files(report *p, const char *file, const strbuf *svg) {
    if (p->charts_dir)
        TRY(file_write_whole(arena_format(&p->memory, "%s/%s", p->charts_dir, file), svg->text, svg->length));
    if (!p->png_dir) return OK;
    int n = (int)(strlen(file) - strlen(".svg"));
    return png_write(arena_format(&p->memory, "%s/%.*s.png", p->png_dir, n, file), svg->text, svg->length);
}

status report_add_chart(report *p, const char *section, const char *name, const chart *c) {
    chart embedded = *c;
    strbuf svg;
    const char *file = file_name(p, name);
    if (p->charts_dir || p->png_dir) {
        strbuf_init(&svg);
        chart_draw(c, &svg);
        status rc = write_files(p, file, &svg);
        strbuf_fini(&svg);
        TRY(rc);
    }
    embedded.embedded = true;
    strbuf_init(&svg);
    chart_draw(&embedded, &svg);
    p->figures = array_grow(p->figures, &p->figures_capacity, p->n_figures + 1, sizeof *p->figures);
    p->figures[p->n_figures++] = (figure){section, file, strbuf_take(&svg)};
    return OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------------------- */

/* The last `n` parts of a path, or all of it. */
static const char *last_parts(const char *path, size_t n) {
    const char *at = path + strlen(path);
    while (at > path && at[-1] == '/') at--;
    for (; at > path; at--)
        if (at[-1] == '/' && --n == 0) return at;
    return path;
}

/* As few parts of its path as tell it from all others: "policy", or "rho1/policy" beside "baseline/policy". */
static const char *short_label(const report *p, size_t i) {
    for (size_t n = 2;; n++) {
        const char *label = last_parts(p->runs[i].path, n);
        bool taken = false;
        for (size_t k = 0; k < p->n_runs; k++) taken |= k != i && strcmp(last_parts(p->runs[k].path, n), label) == 0;
        if (!taken || label == p->runs[i].path) return label;
    }
}

static void make_labels(report *p) {
    p->labels = arena_array(&p->memory, const char *, p->n_runs);
    for (size_t i = 0; i < p->n_runs; i++) {
        bool taken = false;
        for (size_t k = 0; k < p->n_runs; k++) taken |= k != i && strcmp(p->runs[k].name, p->runs[i].name) == 0;
        p->labels[i] = taken ? short_label(p, i) : p->runs[i].name;
    }
}

static status read_bench(report *p, const char *path) {
    TRY(json_read_file(path, BENCH_BYTES, &p->benches[p->n_benches]));
    json_t *root = p->benches[p->n_benches++];
    const char *bench = json_string_value(json_object_get(root, "bench"));
    if (!bench || strcmp(bench, "rloo") != 0 || !json_is_array(json_object_get(root, "cells")))
        return ERR(ERR_INPUT, "%s: found something else than the result of ralo bench rloo; expected its rloo.json",
                   path);
    return OK;
}

static status read_all(report *p, const run_paths *paths) {
    if (paths->n_runs > REPORT_RUNS_MOST)
        return ERR(ERR_INPUT, "report: found %zu runs, at most %d fit into one report; name those that you want",
                   paths->n_runs, REPORT_RUNS_MOST);
    p->runs = arena_array(&p->memory, run, MAX(paths->n_runs, (size_t)1));
    p->benches = arena_array(&p->memory, json_t *, MAX(paths->n_benches, (size_t)1));
    p->bench_paths = paths->benches;
    for (size_t i = 0; i < paths->n_runs; i++) {
        p->n_runs++;
        TRY(run_open(&p->runs[i], paths->runs[i], RUN_ALL));
    }
    for (size_t i = 0; i < paths->n_benches; i++) TRY(read_bench(p, paths->benches[i]));
    make_labels(p);
    setting_table_init(&p->settings, p->runs, p->n_runs);
    return OK;
}

/* A broken trace that lies in a run is named; one that was asked for is an error. */
static status read_traces(report *p, const char *asked) {
    p->traces = arena_array(&p->memory, step_trace, MAX(p->n_runs, (size_t)1));
    for (size_t i = 0; i < p->n_runs; i++) {
        const char *path = asked ? asked : p->runs[i].trace;
        if (!path || step_trace_read(&p->traces[i], path) == OK) continue;
        if (asked) return error_trail(error_code(), __FILE__, __LINE__, __func__);
        report_say(p, "The trace of %s could not be read: %s", p->labels[i], error_message());
        error_clear();
    }
    return OK;
}

static void report_fini(report *p) {
    for (size_t i = 0; p->traces && i < p->n_runs; i++) step_trace_fini(&p->traces[i]);
    for (size_t i = 0; i < p->n_runs; i++) run_close(&p->runs[i]);
    for (size_t i = 0; i < p->n_benches; i++) json_decref(p->benches[i]);
    for (size_t i = 0; i < p->n_figures; i++) free(p->figures[i].svg);
    free(p->figures);
    setting_table_fini(&p->settings);
    json_decref(p->words);
    arena_fini(&p->memory);
}

/* ---- writing --------------------------------------------------------------------------------------------------------------- */

static status write_page(const report *p, const char *path) {
    strbuf page;
    strbuf_init(&page);
    page_write(p, &page);
    status rc = file_write_whole(path, page.text, page.length);
    strbuf_fini(&page);
    return rc;
}

static json_t *result_json(const report *p, const char *file) {
    json_t *charts = json_array(), *runs = json_array();
    for (size_t i = 0; i < p->n_figures; i++) json_array_append_new(charts, json_string(p->figures[i].file));
    for (size_t i = 0; i < p->n_runs; i++) json_array_append_new(runs, run_json(&p->runs[i]));
    return json_pack("{s:o, s:o, s:O, s:o}", "file", json_text(file, strlen(file)), "charts", charts, "words", p->words,
                     "runs", runs);
}

status report_write(const run_paths *paths, const report_options *o, json_t **result) {
    report p = {.words = json_array(), .charts_dir = o->charts, .png_dir = o->png};
    status rc;
    *result = NULL;
    arena_init(&p.memory);
    if (o->png) TRY_GOTO(rc, png_open(), done);
    TRY_GOTO(rc, read_all(&p, paths), done);
    if (o->trace && p.n_runs != 1) {
        rc = ERR(ERR_INPUT,
                 "report: --trace is about one run, found %zu; lay each trace into its run directory as trace.json",
                 p.n_runs);
        goto done;
    }
    if (o->charts) TRY_GOTO(rc, dir_make(o->charts), done);
    if (o->png) TRY_GOTO(rc, dir_make(o->png), done);
    const char *slash = strrchr(o->out, '/');
    if (slash && slash > o->out)
        TRY_GOTO(rc, dir_make(arena_format(&p.memory, "%.*s", (int)(slash - o->out), o->out)), done);
    TRY_GOTO(rc, read_traces(&p, o->trace), done);
    words_write(&p);
    TRY_GOTO(rc, figures_time_line(&p), done);
    TRY_GOTO(rc, figures_memory(&p), done);
    TRY_GOTO(rc, figures_overlap(&p), done);
    TRY_GOTO(rc, figures_metrics(&p), done);
    TRY_GOTO(rc, figures_bench(&p), done);
    TRY_GOTO(rc, write_page(&p, o->out), done);
    *result = result_json(&p, o->out);
done:
    report_fini(&p);
    return rc;
}
