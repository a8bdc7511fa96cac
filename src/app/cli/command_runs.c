/* command_runs.c - ralo runs: a list of runs, two of them compared, one metric plotted. */
#include "cli/output.h"
#include "report/report.h"

#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PLOTS_MOST = 4, PLOT_LINES = 12, WIDTH_DEFAULT = 80, WIDTH_MOST = 400, RUNS_MOST = 10000 };

typedef struct run_list {
    run *items;
    size_t n;
} run_list;

static void close_runs(run_list *list) {
    for (size_t i = 0; i < list->n; i++) run_close(&list->items[i]);
    free(list->items);
}

/* A run directory, or the name of one below runs/. */
static const char *run_path(command_line *l, const char *name) {
    const char *inside = arena_format(&l->memory, "runs/%s", name);
    return access(name, F_OK) != 0 && access(inside, F_OK) == 0 ? inside : name;
}

static status find_runs(command_line *l, run_paths *paths) {
    if (l->paths.n == 0) TRY(run_paths_add(paths, "runs", true));
    for (size_t i = 0; i < l->paths.n; i++) TRY(run_paths_add(paths, run_path(l, l->paths.items[i]), false));
    if (paths->n_runs > RUNS_MOST)
        return ERR(ERR_INPUT, "runs: found %zu runs, at most %d are listed; name a directory with fewer", paths->n_runs,
                   RUNS_MOST);
    return OK;
}

/* A directory that cannot be read is named, and the others are shown. */
static void open_runs(run_list *list, const run_paths *paths, run_parts parts) {
    list->items = mem_alloc(MAX(paths->n_runs, (size_t)1) * sizeof *list->items);
    for (size_t i = 0; i < paths->n_runs; i++) {
        if (run_open(&list->items[list->n], paths->runs[i], parts) == OK) {
            list->n++;
            continue;
        }
        log_warn("%s", error_message());
        error_clear();
        run_close(&list->items[list->n]);
    }
    runs_sort_newest(list->items, list->n);
}

/* ---- --plot ------------------------------------------------------------------------------------------------------------ */

static int terminal_width(void) {
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                : columns                                                       ? atoi(columns)
                                                                                : WIDTH_DEFAULT;
    return width < 20 ? WIDTH_DEFAULT : MIN(width, (int)WIDTH_MOST);
}

static bool shows_utf8(void) {
    locale_t user = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool utf8 = user && strcmp(nl_langinfo_l(CODESET, user), "UTF-8") == 0;
    if (user) freelocale(user);
    return utf8;
}

static status plot_runs(const run_list *list, const char *word) {
    text_plot p = {.columns = terminal_width() - 1, .lines = PLOT_LINES, .braille = shows_utf8()};
    const metric_series *found[PLOTS_MOST];
    const run *of[PLOTS_MOST];
    size_t n = 0, n_more = 0;
    str_nearest nearest = {.wanted = word};
    for (size_t i = 0; i < list->n; i++) {
        const metric_series *s = metric_by_word(&list->items[i].metrics, word, &nearest);
        if (!s) continue;
        if (n == PLOTS_MOST) {
            n_more++;
            continue;
        }
        text_plot_range(&p, s);
        of[n] = &list->items[i];
        found[n++] = s;
    }
    if (n == 0)
        return ERR(ERR_INPUT, "runs: no run has a metric '%.100s'%s%s%s; docs/reference/metrics.md lists them", word,
                   *nearest.name ? "; did you mean '" : "", nearest.name, *nearest.name ? "'?" : "");
    for (size_t i = 0; i < n; i++) {
        char title[512];
        snprintf(title, sizeof title, "%s%s of %.300s: %.5g at step %.0f", i ? "\n" : "", found[i]->name, of[i]->path,
                 series_last(found[i]), found[i]->x[found[i]->n - 1]);
        text_plot_draw(&p, title, found[i], stdout);
    }
    if (n_more) printf("\n%zu more runs have it; name the runs to draw\n", n_more);
    return OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------------- */

static status compare_runs(const command_line *l, const run_list *list, const char *first) {
    if (list->n != 2)
        return ERR(ERR_INPUT, "runs: found %zu runs, expected two to compare: ralo runs --compare A B", list->n);
    bool swap = strcmp(list->items[0].path, first) != 0; /* A is the one that was named first, not the newest */
    const run *a = &list->items[swap], *b = &list->items[!swap];
    if (l->json) json_print(runs_compare_json(a, b), "runs compare", ALL_DIGITS);
    else runs_print_compare(a, b, stdout);
    return OK;
}

static void list_runs(const command_line *l, const run_list *list) {
    if (l->json) {
        json_t *items = json_array();
        for (size_t i = 0; i < list->n; i++) json_array_append_new(items, run_json(&list->items[i]));
        json_print(json_pack("{s:o}", "runs", items), "runs", ALL_DIGITS);
    } else if (l->csv) {
        runs_print_csv(list->items, list->n, stdout);
    } else if (list->n) {
        runs_print_table(list->items, list->n, stdout);
    } else {
        printf("no runs; ralo train makes one in runs/, or name a directory: ralo runs DIR\n");
    }
}

status command_runs(command_line *l) {
    run_paths paths;
    run_list list = {0};
    bool whole = l->compare || l->plot;
    status rc;
    if (l->compare + l->csv + (l->plot != NULL) > 1 || (l->json && (l->csv || l->plot)))
        return ERR(ERR_INPUT, "runs: --compare, --plot, --csv and --json were given together; expected one of them "
                              "(--compare also with --json)");
    run_paths_init(&paths);
    TRY_GOTO(rc, find_runs(l, &paths), done);
    open_runs(&list, &paths,
              whole ? RUN_SETTINGS | RUN_METRICS | RUN_MEMORY | RUN_MONITOR
                    : RUN_SETTINGS | RUN_TAIL | RUN_MEMORY | RUN_MONITOR);
    if (l->plot) rc = plot_runs(&list, l->plot);
    else if (l->compare) rc = compare_runs(l, &list, paths.n_runs ? paths.runs[0] : "");
    else list_runs(l, &list);
done:
    close_runs(&list);
    run_paths_fini(&paths);
    return rc;
}
