/* rloo_charts.c - the result of `ralo bench rloo` as two pictures: peaks as bars, and memory over the time of a step.
 *
 * A case that does not fit is an outline as high as its plan. */
#include "bench/rloo.h"
#include "chart/chart.h"

#include <math.h>
#include <stdlib.h>

const char *const rloo_files[3] = {"rloo.json", "rloo-peak.svg", "rloo-time.svg"};

enum { TIME_KS = 3 }; /* panels with all ways */

typedef struct texts {
    char names[RLOO_MODE_COUNT][96], groups[RLOO_KS][32], panels[TIME_KS + 1][96], notes[3][320];
    char labels[RLOO_MODE_COUNT][RLOO_KS][64];
    const char *name[RLOO_MODE_COUNT], *group[RLOO_KS], *note[3], *label[RLOO_MODE_COUNT][RLOO_KS];
} texts;

static void write_texts(const rloo_result *r, texts *t) {
    const rloo_scale *s = r->scale;
    char a[32];
    snprintf(t->names[RLOO_BASE], sizeof t->names[0], "base: all logits at once");
    snprintf(t->names[RLOO_CUT], sizeof t->names[0], "base, prompts cut to %lld tokens", (long long)s->cut);
    snprintf(t->names[RLOO_OURS], sizeof t->names[0], "ours, whole prompts");
    for (rloo_mode m = 0; m < RLOO_MODE_COUNT; m++) t->name[m] = t->names[m];
    for (size_t i = 0; i < RLOO_KS; i++) {
        snprintf(t->groups[i], sizeof t->groups[i], "k = %lld", (long long)rloo_ks[i]);
        t->group[i] = t->groups[i];
        for (rloo_mode m = 0; m < RLOO_MODE_COUNT; m++) {
            const rloo_cell *x = rloo_find(r, m, rloo_ks[i]);
            t->label[m][i] = x ? t->labels[m][i] : NULL;
            if (x)
                snprintf(t->labels[m][i], sizeof t->labels[m][i], "%s%s", str_format_bytes(a, x->planned),
                         x->fits ? "" : ", does not fit");
        }
    }
    snprintf(t->notes[0], sizeof t->notes[0],
             "%s, vocabulary %lld, one prompt of %lld and k completions of %lld tokens, fp32", r->model.name,
             (long long)r->model.vocab, (long long)s->prompt, (long long)s->completion);
    snprintf(t->notes[1], sizeof t->notes[1], "one rollout and one update on %s", r->machine);
    for (size_t i = 0; i < 3; i++) t->note[i] = t->notes[i];
}

static status write_chart(const chart *c, const char *dir, const char *name) {
    char path[4200];
    strbuf picture;
    strbuf_init(&picture);
    chart_draw(c, &picture);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    status rc = file_write_whole(path, picture.text, picture.length);
    strbuf_fini(&picture);
    return rc;
}

static status write_peaks(const rloo_result *r, texts *t, const char *dir) {
    double y[RLOO_MODE_COUNT][RLOO_KS];
    bool hollow[RLOO_MODE_COUNT][RLOO_KS] = {0};
    chart_series series[RLOO_MODE_COUNT];
    for (rloo_mode m = 0; m < RLOO_MODE_COUNT; m++) {
        for (size_t i = 0; i < RLOO_KS; i++) {
            const rloo_cell *x = rloo_find(r, m, rloo_ks[i]);
            y[m][i] = !x ? NAN : x->fits ? (double)x->peak : (double)x->planned;
            hollow[m][i] = x && !x->fits;
        }
        series[m] =
            (chart_series){.color = (int)m, .y = y[m], .n = RLOO_KS, .labels = t->label[m], .hollow = hollow[m]};
    }
    chart_panel panel = {.title = "Peak of the device memory, measured",
                         .series = series,
                         .n_series = RLOO_MODE_COUNT,
                         .groups = t->group};
    snprintf(t->notes[2], sizeof t->notes[2],
             "measured is planned, to the byte; an outline is planned and does not fit this machine");
    chart c = {.title = "RLOO: peak memory by completions per prompt",
               .notes = t->note,
               .n_notes = 3,
               .names = t->name,
               .n_names = RLOO_MODE_COUNT,
               .panels = &panel,
               .n_panels = 1,
               .columns = 1};
    return write_chart(&c, dir, rloo_files[1]);
}

static void add_line(chart_series *list, size_t *n, const rloo_cell *x, int color, const char *const *label) {
    if (!x || !x->fits) return;
    list[(*n)++] =
        (chart_series){.color = color, .x = x->line.seconds, .y = x->line.bytes, .n = x->line.n, .labels = label};
}

/* A panel for each k, and one with the smallest and the largest of ours alone, which are too low to be seen beside base. */
static status write_time(const rloo_result *r, texts *t, const char *dir) {
    enum { LEAST = RLOO_MODE_COUNT }; /* colour of ours with the smallest k */
    chart_series series[TIME_KS + 1][RLOO_MODE_COUNT];
    chart_panel panels[TIME_KS + 1];
    size_t n;
    for (size_t i = 0; i < TIME_KS; i++) {
        const rloo_cell *base = rloo_find(r, RLOO_BASE, rloo_ks[i]);
        n = 0;
        for (rloo_mode m = 0; m < RLOO_MODE_COUNT; m++)
            add_line(series[i], &n, rloo_find(r, m, rloo_ks[i]), (int)m, &t->label[m][i]);
        snprintf(t->panels[i], sizeof t->panels[i], "k = %lld%s", (long long)rloo_ks[i],
                 base->fits ? "" : ": base does not fit");
        panels[i] = (chart_panel){.title = t->panels[i], .series = series[i], .n_series = n, .x_unit = "s"};
    }
    n = 0;
    add_line(series[TIME_KS], &n, rloo_find(r, RLOO_OURS, rloo_ks[RLOO_KS - 1]), RLOO_OURS,
             &t->label[RLOO_OURS][RLOO_KS - 1]);
    add_line(series[TIME_KS], &n, rloo_find(r, RLOO_OURS, rloo_ks[0]), LEAST, NULL);
    snprintf(t->panels[TIME_KS], sizeof t->panels[0], "ours alone: k = %lld and k = %lld", (long long)rloo_ks[0],
             (long long)rloo_ks[RLOO_KS - 1]);
    panels[TIME_KS] =
        (chart_panel){.title = t->panels[TIME_KS], .series = series[TIME_KS], .n_series = n, .x_unit = "s"};
    snprintf(t->notes[2], sizeof t->notes[2],
             "the rollout, then the reference and the policy before the update, then the update; no peak is smoothed");
    const char *names[RLOO_MODE_COUNT + 1] = {t->name[0], t->name[1], t->name[2], "ours, k = 2 (last panel)"};
    chart c = {.title = "RLOO: memory over the time of a step",
               .notes = t->note,
               .n_notes = 3,
               .names = names,
               .n_names = ARRAY_LENGTH(names),
               .panels = panels,
               .n_panels = TIME_KS + 1,
               .columns = 2};
    return write_chart(&c, dir, rloo_files[2]);
}

status rloo_write_charts(const rloo_result *r, const char *dir) {
    texts *t = mem_alloc(sizeof *t);
    write_texts(r, t);
    status rc = write_peaks(r, t, dir);
    if (rc == OK) rc = write_time(r, t, dir);
    free(t);
    return rc;
}
