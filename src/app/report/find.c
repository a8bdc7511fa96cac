/* find.c - which directories are runs: those with the files that a run writes. Others are searched for runs, not too deep. */
#include "report/parts.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEEPEST = 3, ENTRIES_MOST = 20000 };

void run_paths_init(run_paths *p) {
    *p = (run_paths){0};
    arena_init(&p->memory);
}

void run_paths_fini(run_paths *p) {
    free(p->runs);
    free(p->benches);
    arena_fini(&p->memory);
    *p = (run_paths){0};
}

static bool holds(const char *dir, const char *name, mode_t kind) {
    char path[4200];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return lstat(path, &info) == 0 && (info.st_mode & S_IFMT) == kind;
}

bool run_is_dir(const char *dir) {
    return holds(dir, "metrics.jsonl", S_IFREG) || holds(dir, "run.json", S_IFREG) ||
           (holds(dir, "config.yaml", S_IFREG) && holds(dir, "checkpoints", S_IFDIR));
}

static void add_path(run_paths *p, const char *path, bool bench) {
    const char *copy = arena_string(&p->memory, path);
    if (bench) {
        p->benches = array_grow(p->benches, &p->benches_capacity, p->n_benches + 1, sizeof *p->benches);
        p->benches[p->n_benches++] = copy;
    } else {
        p->runs = array_grow(p->runs, &p->runs_capacity, p->n_runs + 1, sizeof *p->runs);
        p->runs[p->n_runs++] = copy;
    }
}

static int compare_texts(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static status add_below(run_paths *p, const char *dir, int depth, size_t *n_seen) {
    const char **names = NULL;
    size_t n = 0, capacity = 0;
    DIR *d = opendir(dir);
    status rc = OK;
    if (!d) return ERR(ERR_IO, "open %s: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) && ++*n_seen < ENTRIES_MOST;) {
        if (e->d_name[0] == '.' || !holds(dir, e->d_name, S_IFDIR)) continue;
        names = array_grow(names, &capacity, n + 1, sizeof *names);
        names[n++] = arena_format(&p->memory, "%s%s%s", dir, str_ends_with(dir, "/") ? "" : "/", e->d_name);
    }
    closedir(d);
    if (n) qsort(names, n, sizeof *names, compare_texts);
    if (holds(dir, "rloo.json", S_IFREG)) add_path(p, arena_format(&p->memory, "%s/rloo.json", dir), true);
    for (size_t i = 0; i < n; i++) {
        if (run_is_dir(names[i])) add_path(p, names[i], false);
        else if (depth < DEEPEST && add_below(p, names[i], depth + 1, n_seen) != OK)
            error_clear(); /* not ours to read */
    }
    free(names);
    return rc;
}

status run_paths_add(run_paths *p, const char *path, bool none_is_fine) {
    struct stat info;
    size_t before = p->n_runs + p->n_benches, n_seen = 0;
    if (stat(path, &info) != 0) {
        if (none_is_fine && errno == ENOENT) return OK;
        return ERR(ERR_IO, "%s: %s; expected the directory of a run, or one that holds runs", path, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        if (!str_ends_with(path, ".json"))
            return ERR(ERR_INPUT, "%s: found a file, expected the directory of a run, or rloo.json of ralo bench",
                       path);
        add_path(p, path, true);
        return OK;
    }
    if (run_is_dir(path)) add_path(p, path, false);
    else TRY(add_below(p, path, 1, &n_seen));
    if (p->n_runs + p->n_benches == before && !none_is_fine)
        return ERR(
            ERR_INPUT,
            "%s: found no run in it; a run is a directory with metrics.jsonl or run.json, as ralo train writes it",
            path);
    return OK;
}

static int newest_first(const void *a, const void *b) {
    const run *r = a, *s = b;
    double x = isfinite(r->started) ? r->started : r->changed, y = isfinite(s->started) ? s->started : s->changed;
    if (x != y) return x > y ? -1 : 1;
    return strcmp(r->name, s->name);
}

void runs_sort_newest(run *runs, size_t n) {
    if (n > 1) qsort(runs, n, sizeof *runs, newest_first);
}
