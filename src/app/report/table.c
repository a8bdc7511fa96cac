/* table.c - runs as a table, as CSV, as JSON, and two of them side by side. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COLUMNS = 8, CELL = 300 };

/* ---- cells ------------------------------------------------------------------------------------------------------------ */

static void when_text(double seconds, char *out, size_t n) {
    time_t t = (time_t)seconds;
    struct tm parts;
    snprintf(out, n, "-");
    if (isfinite(seconds) && fabs(seconds) < 1e11 && localtime_r(&t, &parts))
        strftime(out, n, "%Y-%m-%d %H:%M", &parts);
}

static void number_text(double x, char *out, size_t n) {
    if (!isfinite(x)) snprintf(out, n, "-");
    else if (x == floor(x) && fabs(x) < 1e15) snprintf(out, n, "%.0f", x);
    else snprintf(out, n, "%.5g", x);
}

static double last_reward(const run *r) { return series_last(run_metrics_find(&r->metrics, "reward")); }
static double last_loss(const run *r) { return series_last(run_metrics_find(&r->metrics, "train/loss")); }

/* On one line: a name with a line break in it must not look like another run. */
static void plain_line(char *text) {
    for (; *text; text++)
        if (*text == '\n' || *text == '\t') *text = '?';
}

static void fill_row(const run *r, char cells[COLUMNS][CELL]) {
    char a[32], b[32];
    double speed = run_tokens_per_second(r), peak = run_peak_bytes(r);
    snprintf(cells[0], CELL, "%.*s", CELL - 1, r->path);
    plain_line(cells[0]);
    snprintf(cells[1], CELL, "%.40s", r->task ? run_method(r) : "-");
    plain_line(cells[1]);
    snprintf(cells[2], CELL, "%s", run_state_name(r->state));
    number_text(r->step, a, sizeof a);
    number_text(r->steps, b, sizeof b);
    snprintf(cells[3], CELL, "%s/%s", a, b);
    bool rewarded = isfinite(last_reward(r)); /* then the loss hovers around zero and tells nothing */
    number_text(rewarded ? last_reward(r) : last_loss(r), a, sizeof a);
    snprintf(cells[4], CELL, "%s %s", rewarded ? "reward" : "loss", a);
    snprintf(cells[5], CELL, "%s", isfinite(speed) ? str_format_count(a, speed) : "-");
    snprintf(cells[6], CELL, "%s", peak >= 0 && peak < 0x1p63 ? str_format_bytes(a, (uint64_t)peak) : "-");
    when_text(isfinite(r->started) ? r->started : r->changed, cells[7], CELL);
}

/* ---- a table of text -------------------------------------------------------------------------------------------------- */

static size_t characters(const char *text) {
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_row(const char *const *cells, const size_t *width, const bool *right, size_t n, FILE *out) {
    for (size_t k = 0; k < n; k++) {
        int fill = (int)(width[k] - MIN(characters(cells[k]), width[k]));
        bool last = k + 1 == n;
        if (right[k]) fprintf(out, "%*s%s%s", fill, "", cells[k], last ? "" : "  ");
        else fprintf(out, "%s%*s%s", cells[k], last ? 0 : fill, "", last ? "" : "  ");
    }
    fputc('\n', out);
}

static void print_note(const char *kind, const char *text, FILE *out) {
    char line[1000];
    snprintf(line, sizeof line, "%s", text);
    plain_line(line);
    fprintf(out, "    %s: %s\n", kind, line);
}

void runs_print_table(const run *runs, size_t n, FILE *out) {
    static const char *const titles[COLUMNS] = {"run",    "task",     "state",       "step",
                                                "result", "tokens/s", "peak memory", "when"};
    static const bool right[COLUMNS] = {[3] = true, true, true, true};
    char(*cells)[COLUMNS][CELL] = mem_alloc(MAX(n, (size_t)1) * sizeof *cells);
    size_t width[COLUMNS];
    const char *row[COLUMNS];
    for (size_t k = 0; k < COLUMNS; k++) width[k] = strlen(titles[k]);
    for (size_t i = 0; i < n; i++) {
        fill_row(&runs[i], cells[i]);
        for (size_t k = 0; k < COLUMNS; k++) width[k] = MAX(width[k], characters(cells[i][k]));
    }
    print_row(titles, width, right, COLUMNS, out);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < COLUMNS; k++) row[k] = cells[i][k];
        print_row(row, width, right, COLUMNS, out);
        if (runs[i].error) print_note("error", runs[i].error, out);
        for (size_t k = 0; k < runs[i].n_notes; k++) print_note("note", runs[i].notes[k], out);
    }
    free(cells);
}

/* ---- CSV and JSON ------------------------------------------------------------------------------------------------------ */

json_t *run_json(const run *r) {
    json_t *notes = json_array(), *j = json_object();
    const struct {
        const char *key, *text;
    } texts[] = {{"path", r->path},
                 {"name", r->name},
                 {"task", r->task},
                 {"model", r->model},
                 {"data", r->data},
                 {"host", r->host},
                 {"state", run_state_name(r->state)},
                 {"error", r->error}};
    const struct {
        const char *key;
        double number;
        bool whole;
    } numbers[] = {{"step", r->step, true},
                   {"steps", r->steps, true},
                   {"loss", last_loss(r), false},
                   {"reward", last_reward(r), false},
                   {"val_loss", series_last(run_metrics_find(&r->metrics, "val/loss")), false},
                   {"tokens_per_second", run_tokens_per_second(r), false},
                   {"step_ms", series_median(run_metrics_find(&r->metrics, "perf/step_ms")), false},
                   {"peak_bytes", run_peak_bytes(r), true},
                   {"planned_bytes", run_planned_bytes(r, "device"), true},
                   {"started", r->started, false},
                   {"ended", r->ended, false},
                   {"changed", r->changed, false}};
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++)
        json_object_set_new(j, texts[i].key,
                            texts[i].text ? json_text(texts[i].text, strlen(texts[i].text)) : json_null());
    for (size_t i = 0; i < ARRAY_LENGTH(numbers); i++) {
        double x = numbers[i].number;
        bool whole = numbers[i].whole && fabs(x) < 0x1p62;
        json_object_set_new(j, numbers[i].key,
                            whole              ? json_integer((json_int_t)x)
                            : numbers[i].whole ? json_null()
                                               : json_real_or_null(x));
    }
    json_object_set_new(j, "world", json_integer(r->world));
    for (size_t i = 0; i < r->n_notes; i++) json_array_append_new(notes, json_text(r->notes[i], strlen(r->notes[i])));
    json_object_set_new(j, "notes", notes);
    return j;
}

/* 15 digits: a time in seconds has ten before its point, and any number with that many reads back as it was. Text that
 * a spreadsheet would run as a formula gets a quotation mark before it, which makes it text there. */
static void csv_cell(const json_t *v, FILE *out) {
    const char *text = json_string_value(v);
    char *number =
        text || json_is_null(v) || json_is_array(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (number) fputs(number, out);
    bool is_formula = text && *text && strchr("=+-@\t\r", *text);
    if (text && (is_formula || strpbrk(text, ",\"\n\r"))) {
        fputs(is_formula ? "\"'" : "\"", out);
        for (; *text; text++) fprintf(out, *text == '"' ? "\"\"" : "%c", *text);
        fputc('"', out);
    } else if (text) {
        fputs(text, out);
    }
    free(number);
}

void runs_print_csv(const run *runs, size_t n, FILE *out) {
    for (size_t i = 0; i < n; i++) {
        json_t *j = run_json(&runs[i]), *v;
        const char *key;
        size_t k = 0;
        json_object_del(j, "notes");
        if (i == 0) {
            json_object_foreach(j, key, v) fprintf(out, "%s%s", k++ ? "," : "", key);
            fputc('\n', out);
        }
        k = 0;
        json_object_foreach(j, key, v) {
            if (k++) fputc(',', out);
            csv_cell(v, out);
        }
        fputc('\n', out);
        json_decref(j);
    }
}

/* ---- two runs ---------------------------------------------------------------------------------------------------------- */

/* The last step that both have. */
static double common_step(const run *a, const run *b) { return fmin(a->metrics.last_x, b->metrics.last_x); }

static void print_settings(const run *a, const run *b, FILE *out) {
    run pair[2] = {*a, *b}; /* borrowed */
    setting_table t;
    setting_table_init(&t, pair, 2);
    if (!a->n_settings || !b->n_settings)
        fprintf(out, "settings: %s has no config.yaml\n", a->n_settings ? b->path : a->path);
    else if (t.n_differ == 0) fprintf(out, "settings: all %zu are the same\n", t.n_same);
    else fprintf(out, "settings that differ (%zu of %zu)\n", t.n_differ, t.n_rows);
    for (size_t i = 0; i < t.n_rows; i++) {
        const setting_row *row = &t.rows[i];
        if (row->differs)
            fprintf(out, "  %-32s %16.60s  %16.60s\n", row->key, row->values[0] ? row->values[0] : "(not there)",
                    row->values[1] ? row->values[1] : "(not there)");
    }
    setting_table_fini(&t);
}

static void print_metric(const char *name, double x, double y, FILE *out) {
    char a[32], b[32], more[32] = "";
    number_text(x, a, sizeof a);
    number_text(y, b, sizeof b);
    if (x > 0 && y > 0 && x != y) snprintf(more, sizeof more, "%+.1f %%", 100 * (y / x - 1));
    fprintf(out, "  %-32s %16s  %16s  %10s\n", name, a, b, more);
}

void runs_print_compare(const run *a, const run *b, FILE *out) {
    fprintf(out, "A  %s\nB  %s\n\n", a->path, b->path);
    print_settings(a, b, out);
    double step = common_step(a, b);
    if (isfinite(step)) fprintf(out, "\nmetrics at step %.0f, the last that both have\n", step);
    fprintf(out, "  %-32s %16s  %16s  %10s\n", "", "A", "B", "B to A");
    for (size_t i = 0; i < a->metrics.n_series; i++) {
        const metric_series *s = &a->metrics.series[i], *other = run_metrics_find(&b->metrics, s->name);
        double x = series_at(s, step), y = series_at(other, step);
        if (isfinite(x) || isfinite(y)) print_metric(s->name, x, y, out);
    }
    for (size_t i = 0; i < b->metrics.n_series; i++)
        if (!run_metrics_find(&a->metrics, b->metrics.series[i].name))
            print_metric(b->metrics.series[i].name, NAN, series_at(&b->metrics.series[i], step), out);
    print_metric("tokens/s, median of the steps", run_tokens_per_second(a), run_tokens_per_second(b), out);
    print_metric("device memory, peak in bytes", run_peak_bytes(a), run_peak_bytes(b), out);
}

json_t *runs_compare_json(const run *a, const run *b) {
    run pair[2] = {*a, *b}; /* borrowed */
    json_t *settings = json_object(), *metrics = json_object();
    setting_table t;
    setting_table_init(&t, pair, 2);
    for (size_t i = 0; i < t.n_rows; i++) {
        if (!t.rows[i].differs) continue;
        json_t *values = json_array();
        for (int k = 0; k < 2; k++) {
            const char *v = t.rows[i].values[k];
            json_array_append_new(values, v ? json_text(v, strlen(v)) : json_null());
        }
        json_object_set_new(settings, t.rows[i].key, values);
    }
    setting_table_fini(&t);
    double step = common_step(a, b);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < pair[k].metrics.n_series; i++) {
            const char *name = pair[k].metrics.series[i].name;
            json_object_set_new(metrics, name,
                                json_pack("[o, o]",
                                          json_real_or_null(series_at(run_metrics_find(&a->metrics, name), step)),
                                          json_real_or_null(series_at(run_metrics_find(&b->metrics, name), step))));
        }
    return json_pack("{s:o, s:o, s:o, s:o}", "runs", json_pack("[o, o]", run_json(a), run_json(b)), "settings",
                     settings, "step", json_real_or_null(step), "metrics", metrics);
}
