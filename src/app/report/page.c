/* page.c - the sections of the page, in the order of what people ask: what came out, where the memory is, how it went, how it was
 * set up, what the model says. */
#include "report/build.h"

#include <math.h>
#include <string.h>

enum { TEXTS_SHOWN = 6 };

static size_t count_figures(const report *p, const char *section) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_figures; i++) n += strcmp(p->figures[i].section, section) == 0;
    return n;
}

static void add_figures(const report *p, const char *section, strbuf *b) {
    if (!count_figures(p, section)) return;
    strbuf_add(b, "<div class=\"figures\">\n");
    for (size_t i = 0; i < p->n_figures; i++) {
        if (strcmp(p->figures[i].section, section) != 0) continue;
        strbuf_printf(b, "<figure id=\"chart-%.*s\">", (int)strcspn(p->figures[i].file, "."), p->figures[i].file);
        strbuf_add(b, p->figures[i].svg);
        strbuf_add(b, strstr(p->figures[i].svg, "class=\"hit\"") ? "<output></output></figure>\n" : "</figure>\n");
    }
    strbuf_add(b, "</div>\n");
}

static void add_heading(strbuf *b, const char *id, const char *title) {
    strbuf_printf(b, "<h2 id=\"%s\">%s</h2>\n", id, title);
}

/* ---- the first screen ------------------------------------------------------------------------------------------------------ */

static void add_label(strbuf *b, const report *p, size_t i) {
    strbuf_add(b, "<td>");
    if (p->n_runs > 1)
        strbuf_printf(b,
                      "<svg class=\"dot\" viewBox=\"0 0 1 1\" aria-hidden=\"true\"><rect class=\"f%zu\" width=\"1\" "
                      "height=\"1\"/></svg>",
                      i % CHART_COLORS);
    strbuf_add(b, "<bdi>");
    html_text(b, p->labels[i]);
    strbuf_add(b, "</bdi></td>");
}

static double most_of_ranks(const run *r, const char *key) {
    double most = NAN;
    for (size_t i = 0; i < r->n_ranks; i++) most = fmax(most, series_most(run_metrics_find(&r->ranks[i].monitor, key)));
    return most;
}

static void add_run_table(const report *p, strbuf *b) {
    static const char *const titles[] = {"run",          "state",           "step",          "steps",
                                         "last loss",    "held-out loss",   "tokens/s",      "step, ms",
                                         "device, peak", "device, planned", "host, planned", "process, peak"};
    html_table_begin(b, titles, ARRAY_LENGTH(titles));
    for (size_t i = 0; i < p->n_runs; i++) {
        const run *r = &p->runs[i];
        strbuf_add(b, "<tr>");
        add_label(b, p, i);
        html_cell(b, run_state_name(r->state), false);
        html_cell_number(b, r->step);
        html_cell_number(b, r->steps);
        html_cell_number(b, series_last(run_metrics_find(&r->metrics, "train/loss")));
        html_cell_number(b, series_last(run_metrics_find(&r->metrics, "val/loss")));
        html_cell_number(b, round(run_tokens_per_second(r)));
        html_cell_number(b, series_median(run_metrics_find(&r->metrics, "perf/step_ms")));
        html_cell_bytes(b, run_peak_bytes(r));
        html_cell_bytes(b, run_planned_bytes(r, "device"));
        html_cell_bytes(b, run_planned_bytes(r, "host"));
        html_cell_bytes(b, most_of_ranks(r, "rss_bytes"));
        strbuf_add(b, "</tr>\n");
    }
    strbuf_add(b, "</table></div>\n");
}

/* A number and its % stay on one line. */
static void add_sentence(strbuf *b, const char *text) {
    strbuf joined;
    strbuf_init(&joined);
    for (const char *c = text; *c; c++)
        if (c[0] == ' ' && c[1] == '%') strbuf_add(&joined, "\xc2\xa0");
        else strbuf_add_bytes(&joined, c, 1);
    strbuf_add(b, "<p><bdi>");
    html_text(b, joined.length ? joined.text : "");
    strbuf_add(b, "</bdi></p>\n");
    strbuf_fini(&joined);
}

static void add_first_screen(const report *p, strbuf *b) {
    const json_t *line;
    size_t i;
    strbuf_add(b, "<h1><bdi>");
    for (i = 0; i < p->n_runs && i < 4; i++) {
        if (i) strbuf_add(b, ", ");
        html_text(b, p->labels[i]);
    }
    if (p->n_runs > 4) strbuf_printf(b, " and %zu more", p->n_runs - 4);
    if (p->n_runs == 0) strbuf_add(b, "ralo bench");
    strbuf_add(b, "</bdi></h1>\n<div class=\"words\">\n");
    json_array_foreach(p->words, i, line) add_sentence(b, json_string_value(line));
    strbuf_add(b, "</div>\n");
    if (p->n_runs) add_run_table(p, b);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

static void add_peak_values(const report *p, strbuf *b) {
    static const char *const titles[] = {"value", "role", "bytes"};
    for (size_t i = 0; i < p->n_runs; i++) {
        const run_tier *t = run_tier_find(&p->runs[i], "device");
        if (!t || !t->n_values) continue;
        strbuf_add(b, "<details><summary>Largest values of <bdi>");
        html_text(b, p->labels[i]);
        strbuf_add(b, "</bdi> at its peak</summary>\n");
        html_table_begin(b, titles, ARRAY_LENGTH(titles));
        for (size_t k = 0; k < t->n_values; k++) {
            strbuf_add(b, "<tr>");
            html_cell(b, t->values[k].name, false);
            html_cell(b, t->values[k].role, false);
            html_cell_bytes(b, t->values[k].bytes);
            strbuf_add(b, "</tr>\n");
        }
        if (t->others > 0) {
            strbuf_add(b, "<tr>");
            html_cell(b, "all others", false);
            html_cell(b, "", false);
            html_cell_bytes(b, t->others);
            strbuf_add(b, "</tr>\n");
        }
        strbuf_add(b, "</table></div></details>\n");
    }
}

static void add_rank_table(const report *p, strbuf *b) {
    static const char *const titles[] = {"run", "rank", "process, peak", "device, peak", "driver, peak"};
    bool any = false;
    for (size_t i = 0; i < p->n_runs; i++) any |= p->runs[i].n_ranks > 1;
    if (!any) return;
    strbuf_add(b, "<details><summary>Every rank</summary>\n");
    html_table_begin(b, titles, ARRAY_LENGTH(titles));
    for (size_t i = 0; i < p->n_runs; i++)
        for (size_t k = 0; k < p->runs[i].n_ranks; k++) {
            const run_metrics *m = &p->runs[i].ranks[k].monitor;
            strbuf_add(b, "<tr>");
            add_label(b, p, i);
            html_cell_number(b, p->runs[i].ranks[k].rank);
            html_cell_bytes(b, series_most(run_metrics_find(m, "rss_bytes")));
            html_cell_bytes(b, series_most(run_metrics_find(m, "device_bytes")));
            html_cell_bytes(b, series_most(run_metrics_find(m, "driver_bytes")));
            strbuf_add(b, "</tr>\n");
        }
    strbuf_add(b, "</table></div></details>\n");
}

/* ---- plan and settings ----------------------------------------------------------------------------------------------------- */

static void add_value(strbuf *b, const json_t *v, bool bytes) {
    if (!v || json_is_null(v)) html_cell(b, "-", true);
    else if (bytes) html_cell_bytes(b, json_number_value(v));
    else if (json_is_string(v)) html_cell(b, json_string_value(v), false);
    else if (json_is_boolean(v)) html_cell(b, json_is_true(v) ? "yes" : "no", false);
    else if (json_is_number(v)) html_cell_number(b, json_number_value(v));
    else html_cell(b, "...", false);
}

/* A row for every member of this object of any plan; objects inside are walked too. */
static void add_plan_rows(const report *p, strbuf *b, const json_t **objects, const char *prefix, bool bytes) {
    json_t *done = json_object();
    for (size_t i = 0; i < p->n_runs; i++) {
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)objects[i], key, v) {
            if (json_object_get(done, key) || json_is_array(v)) continue;
            json_object_set_new(done, key, json_true());
            char name[256];
            const json_t *inner[REPORT_RUNS_MOST];
            snprintf(name, sizeof name, "%.100s%.100s%s", prefix, strcmp(key, "by_role") == 0 ? "at the peak:" : key,
                     json_is_object(v) ? " " : "");
            for (size_t k = 0; k < p->n_runs; k++) inner[k] = json_object_get(objects[k], key);
            if (json_is_object(v)) {
                add_plan_rows(p, b, inner, name, bytes);
                continue;
            }
            strbuf_add(b, "<tr>");
            html_cell(b, name, false);
            for (size_t k = 0; k < p->n_runs; k++) add_value(b, inner[k], bytes);
            strbuf_add(b, "</tr>\n");
        }
    }
    json_decref(done);
}

static void add_plans(const report *p, strbuf *b) {
    static const char *const parts[] = {"strategy", "memory"};
    static const char *const numbers[] = {"parameters", "trained_parameters", "tokens_per_step", "flops_per_step",
                                          "step_ms"};
    const json_t *objects[REPORT_RUNS_MOST];
    const char *titles[REPORT_RUNS_MOST + 1] = {""};
    bool any = false;
    for (size_t i = 0; i < p->n_runs; i++) {
        any |= p->runs[i].plan != NULL;
        titles[i + 1] = p->labels[i];
    }
    if (!any) return;
    add_heading(b, "plan", "Plan");
    strbuf_add(b,
               "<p class=\"soft\">How the step is held, and the bytes that were planned for each tier and role.</p>\n");
    html_table_begin(b, titles, p->n_runs + 1);
    for (size_t k = 0; k < ARRAY_LENGTH(numbers); k++) {
        strbuf_add(b, "<tr>");
        html_cell(b, strcmp(numbers[k], "step_ms") == 0 ? "predicted step, ms" : numbers[k], false);
        for (size_t i = 0; i < p->n_runs; i++) add_value(b, json_object_get(p->runs[i].plan, numbers[k]), false);
        strbuf_add(b, "</tr>\n");
    }
    for (size_t k = 0; k < ARRAY_LENGTH(parts); k++) {
        for (size_t i = 0; i < p->n_runs; i++) objects[i] = json_object_get(p->runs[i].plan, parts[k]);
        add_plan_rows(p, b, objects, "", k == 1);
    }
    strbuf_add(b, "</table></div>\n");
}

static void add_setting_rows(const report *p, strbuf *b, bool differ) {
    const char *titles[REPORT_RUNS_MOST + 1] = {"setting"};
    size_t n = differ ? p->n_runs : 1;
    for (size_t i = 0; i < n; i++) titles[i + 1] = differ ? p->labels[i] : p->n_runs > 1 ? "all runs" : p->labels[0];
    html_table_begin(b, titles, n + 1);
    for (size_t i = 0; i < p->settings.n_rows; i++) {
        const setting_row *row = &p->settings.rows[i];
        if (differ ? !row->differs : !row->is_same) continue;
        strbuf_add(b, "<tr>");
        html_cell(b, row->key, false);
        for (size_t k = 0; k < n; k++) {
            const char *value = row->values[k];
            for (size_t j = 0; !differ && !value && j < p->n_runs; j++) value = row->values[j];
            html_cell(b, value ? value : "not set", false);
        }
        strbuf_add(b, "</tr>\n");
    }
    strbuf_add(b, "</table></div>\n");
}

static void add_settings(const report *p, strbuf *b) {
    if (p->settings.n_rows == 0) return;
    add_heading(b, "settings", p->n_runs > 1 ? "Settings that differ" : "Settings");
    if (p->settings.n_differ) add_setting_rows(p, b, true);
    else if (p->n_runs > 1) strbuf_add(b, "<p>None.</p>\n");
    strbuf_printf(b, "<details><summary>%zu %s</summary>\n", p->settings.n_same,
                  p->n_runs > 1 ? "that are the same" : "settings");
    add_setting_rows(p, b, false);
    strbuf_add(b, "</details>\n");
}

/* ---- samples --------------------------------------------------------------------------------------------------------------- */

static void add_text(strbuf *b, const json_t *item) {
    const char *prompt = json_string_value(json_object_get(item, "prompt"));
    const char *completion = json_string_value(json_object_get(item, "completion"));
    const json_t *reward = json_object_get(item, "reward");
    strbuf_printf(b, "<div class=\"text\"><b>step %lld%s", (long long)json_integer_value(json_object_get(item, "step")),
                  json_is_number(reward) ? ", reward " : "");
    if (json_is_number(reward)) svg_add_number(b, json_number_value(reward));
    strbuf_add(b, "</b>\n<bdi>");
    html_text(b, prompt ? prompt : "");
    strbuf_add(b, "</bdi><b> &gt;&gt;&gt; </b><bdi>");
    html_text(b, completion ? completion : "");
    strbuf_add(b, "</bdi></div>\n");
}

static void add_texts(const report *p, strbuf *b) {
    bool begun = false;
    for (size_t i = 0; i < p->n_runs; i++) {
        const json_t *lists[] = {p->runs[i].samples, p->runs[i].completions};
        static const char *const titles[] = {"samples", "completions that were trained on"};
        for (size_t k = 0; k < ARRAY_LENGTH(lists); k++) {
            size_t n = json_array_size(lists[k]);
            if (!n) continue;
            if (!begun) add_heading(b, "texts", "What the model writes");
            begun = true;
            strbuf_printf(b, "<details%s><summary><bdi>", i == 0 ? " open" : "");
            html_text(b, p->labels[i]);
            strbuf_printf(b, "</bdi>: the last %s</summary>\n<div class=\"texts\">\n", titles[k]);
            for (size_t j = n > TEXTS_SHOWN ? n - TEXTS_SHOWN : 0; j < n; j++) add_text(b, json_array_get(lists[k], j));
            strbuf_add(b, "</div></details>\n");
        }
    }
}

static void add_notes(const report *p, strbuf *b) {
    bool begun = false;
    for (size_t i = 0; i < p->n_runs; i++)
        for (size_t k = 0; k < p->runs[i].n_notes; k++) {
            if (!begun) add_heading(b, "notes", "What could not be read");
            begun = true;
            strbuf_add(b, "<p><bdi>");
            html_text(b, p->labels[i]);
            strbuf_add(b, ": ");
            html_text(b, p->runs[i].notes[k]);
            strbuf_add(b, "</bdi></p>\n");
        }
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------- */

static void add_metrics(const report *p, strbuf *b) {
    static const struct {
        const char *group, *title;
    } known[] = {{"train", "Training"},       {"val", "Held-out data"},       {"other", "Progress and task"},
                 {"rewards", "Rewards"},      {"completions", "Completions"}, {"perf", "Speed"},
                 {"memory", "Memory by step"}};
    char section[256];
    for (size_t k = 0; k < ARRAY_LENGTH(known); k++) {
        snprintf(section, sizeof section, "metrics %s", known[k].group);
        if (!count_figures(p, section)) continue;
        add_heading(b, known[k].group, known[k].title);
        add_figures(p, section, b);
    }
    for (size_t i = 0; i < p->n_figures; i++) {
        const char *s = p->figures[i].section;
        bool done = !str_starts_with(s, "metrics ");
        for (size_t k = 0; k < ARRAY_LENGTH(known); k++) done |= !done && strcmp(s + 8, known[k].group) == 0;
        for (size_t k = 0; k < i; k++) done |= strcmp(p->figures[k].section, s) == 0;
        if (done) continue;
        strbuf_add(b, "<h2>");
        html_text(b, s + 8);
        strbuf_add(b, "</h2>\n");
        add_figures(p, s, b);
    }
}

void page_write(const report *p, strbuf *b) {
    static const struct {
        const char *section, *id, *title, *words;
    } memory[] = {
        {"step", "step", "Memory over one step",
         "From the plan: the bytes alive at every op. What is planned is what runs."},
        {"run", "run", "Memory over the run", "Sampled beside the steps, once a second at first."},
        {"overlap", "overlap", "Copies, compute and communication",
         "A stream is busy where its lane is filled. What lies below a filled lane of compute costs no time."}};
    html_head(b, p->n_runs == 1 ? p->labels[0] : p->n_runs ? "ralo: runs compared" : "ralo bench");
    add_first_screen(p, b);
    add_figures(p, "summary", b);
    if (p->n_benches) {
        add_heading(b, "bench", "RLOO experiment");
        add_figures(p, "bench", b);
        bench_html(p, b);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(memory); i++) {
        if (!count_figures(p, memory[i].section)) continue;
        add_heading(b, memory[i].id, memory[i].title);
        strbuf_printf(b, "<p class=\"soft\">%s</p>\n", memory[i].words);
        add_figures(p, memory[i].section, b);
        if (i == 0) add_peak_values(p, b);
        if (i == 1) add_rank_table(p, b);
    }
    add_metrics(p, b);
    add_plans(p, b);
    add_settings(p, b);
    add_texts(p, b);
    add_notes(p, b);
    html_foot(b);
}
