/* run.c - a run directory: what lies in it, settings, monitor, samples.
 *
 * Every file is read by itself, and one that is missing or broken leaves the others alone. */
#include "report/parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TAIL_BYTES = 1 << 16,
    TEXT_BYTES = 1 << 18, /* of the end of samples.jsonl */
    TEXTS_MOST = 12,
    RANKS_MOST = 64,
    SETTINGS_MOST = 4096,
    NOTES_MOST = 32,
};

void run_note(run *r, const char *what) {
    const char *why = error_message();
    if (r->n_notes < NOTES_MOST) {
        r->notes = array_grow(r->notes, &r->notes_capacity, r->n_notes + 1, sizeof *r->notes);
        r->notes[r->n_notes++] = arena_format(&r->memory, "%s%s%s", what, *what && *why ? ": " : "", why);
    }
    error_clear();
}

const char *run_file(run *r, const char *name) { return arena_format(&r->memory, "%s/%s", r->path, name); }

bool run_has_file(run *r, const char *name) {
    struct stat info;
    if (lstat(run_file(r, name), &info) != 0) return false;
    if (S_ISREG(info.st_mode)) return true;
    error_clear();
    run_note(r, arena_format(&r->memory, "%s: found %s, expected a regular file", run_file(r, name),
                             S_ISDIR(info.st_mode)   ? "a directory"
                             : S_ISLNK(info.st_mode) ? "a link, which is not followed"
                                                     : "a device, a pipe or a socket"));
    return false;
}

json_t *run_read_object(run *r, const char *name, size_t max_bytes) {
    json_t *root = NULL;
    if (!run_has_file(r, name)) return NULL;
    if (json_read_file(run_file(r, name), max_bytes, &root) != OK) {
        run_note(r, "");
    } else if (!json_is_object(root)) {
        error_clear();
        run_note(r, arena_format(&r->memory, "%s: found a JSON array, expected an object", run_file(r, name)));
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* ---- settings --------------------------------------------------------------------------------------------------------- */

static void add_setting(run *r, size_t *capacity, const char *key, const char *value) {
    if (r->n_settings == SETTINGS_MOST) return;
    r->settings = array_grow(r->settings, capacity, r->n_settings + 1, sizeof *r->settings);
    r->settings[r->n_settings++] = (run_setting){key, value};
}

static void list_text(const yaml_node *node, strbuf *out) {
    if (node->kind == YAML_SCALAR) {
        strbuf_add(out, node->text);
        return;
    }
    strbuf_add(out, "[");
    for (const yaml_node *child = node->first_child; child; child = child->next) {
        if (child != node->first_child) strbuf_add(out, ", ");
        if (child->key) strbuf_printf(out, "%s: ", child->key);
        list_text(child, out);
    }
    strbuf_add(out, "]");
}

static void flatten(run *r, size_t *capacity, const yaml_node *node, const char *prefix) {
    for (const yaml_node *child = node->first_child; child; child = child->next) {
        const char *key = arena_format(&r->memory, "%s%s%s", prefix, *prefix ? "." : "", child->key ? child->key : "");
        if (child->kind == YAML_MAP) {
            flatten(r, capacity, child, key);
            continue;
        }
        strbuf text;
        strbuf_init(&text);
        list_text(child, &text);
        add_setting(r, capacity, key, arena_string(&r->memory, text.text ? text.text : ""));
        strbuf_fini(&text);
    }
}

void run_read_settings(run *r) {
    yaml_node *root;
    size_t capacity = 0;
    if (!run_has_file(r, "config.yaml")) return;
    if (yaml_read_file(run_file(r, "config.yaml"), &r->memory, &root) != OK) {
        run_note(r, "");
        return;
    }
    if (root->kind == YAML_MAP) {
        flatten(r, &capacity, root, "");
    } else {
        error_clear();
        run_note(r, arena_format(&r->memory, "%s: found no keys, expected settings", run_file(r, "config.yaml")));
    }
}

const char *run_setting_find(const run *r, const char *key) {
    for (size_t i = 0; i < r->n_settings; i++)
        if (strcmp(r->settings[i].key, key) == 0) return r->settings[i].value;
    return NULL;
}

const char *run_method(const run *r) {
    const char *loss = r->task && strcmp(r->task, "rloo") == 0 ? run_setting_find(r, "rl.loss") : NULL;
    return loss ? loss : r->task;
}

/* ---- monitor ---------------------------------------------------------------------------------------------------------- */

/* rank-00012.jsonl -> 12; -1: another name. */
static int rank_of_name(const char *name) {
    int n = 0, rank = 0;
    if (sscanf(name, "rank-%5d.jsonl%n", &rank, &n) != 1 || n == 0 || name[n] || rank < 0) return -1;
    return rank;
}

static int compare_ranks(const void *a, const void *b) {
    return ((const run_rank *)a)->rank - ((const run_rank *)b)->rank;
}

void run_read_monitor(run *r) {
    DIR *dir = opendir(run_file(r, "monitor"));
    size_t capacity = 0;
    for (struct dirent *e; dir && (e = readdir(dir)) && r->n_ranks < RANKS_MOST;) {
        int rank = rank_of_name(e->d_name);
        const char *name = arena_format(&r->memory, "monitor/%s", e->d_name);
        if (rank < 0 || !run_has_file(r, name)) continue;
        r->ranks = array_grow(r->ranks, &capacity, r->n_ranks + 1, sizeof *r->ranks);
        run_rank *k = &r->ranks[r->n_ranks++];
        k->rank = rank;
        run_metrics_init(&k->monitor, "time");
        if (run_metrics_follow(&k->monitor, run_file(r, name), 0) != OK) run_note(r, "");
    }
    if (dir) closedir(dir);
    if (r->n_ranks > 1) qsort(r->ranks, r->n_ranks, sizeof *r->ranks, compare_ranks);
}

/* ---- samples and completions ------------------------------------------------------------------------------------------ */

/* The last whole lines of a file, as objects; NULL where there is none. */
static json_t *last_lines(run *r, const char *name) {
    int fd;
    struct stat info;
    char *text;
    if (!run_has_file(r, name)) return NULL;
    if (file_open(run_file(r, name), &fd) != OK) {
        run_note(r, "");
        return NULL;
    }
    off_t begin = fstat(fd, &info) == 0 && info.st_size > TEXT_BYTES ? info.st_size - TEXT_BYTES : 0;
    text = mem_alloc(TEXT_BYTES + 1);
    ssize_t n = pread(fd, text, TEXT_BYTES, begin);
    close(fd);
    json_t *list = json_array();
    size_t end = n > 0 ? (size_t)n : 0;
    while (end > 0 && text[end - 1] != '\n') end--;
    while (end > 0 && json_array_size(list) < TEXTS_MOST) {
        size_t start = end - 1;
        while (start > 0 && text[start - 1] != '\n') start--;
        if (start == 0 && begin > 0) break; /* the rest of a line */
        json_t *line = json_loadb(text + start, end - start, 0, NULL);
        if (json_is_object(line)) json_array_insert_new(list, 0, line);
        else json_decref(line);
        end = start;
    }
    free(text);
    if (json_array_size(list) > 0) return list;
    json_decref(list);
    return NULL;
}

void run_read_texts(run *r) {
    r->samples = last_lines(r, "samples.jsonl");
    r->completions = last_lines(r, "completions.jsonl");
}

/* ---- the whole -------------------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path, arena *memory) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    const char *name = arena_format(memory, "%.*s", (int)(end - start), path + start);
    char real[4096];
    if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) return name;
    if (!realpath(path, real)) return name;
    const char *slash = strrchr(real, '/');
    return arena_string(memory, slash && slash[1] ? slash + 1 : real);
}

status run_open(run *r, const char *dir, run_parts parts) {
    struct stat info;
    *r = (run){.started = NAN, .ended = NAN, .step = NAN, .steps = NAN, .changed = NAN, .world = 1};
    arena_init(&r->memory);
    run_metrics_init(&r->metrics, "step");
    r->path = arena_string(&r->memory, dir);
    r->name = last_part(dir, &r->memory);
    if (stat(dir, &info) != 0) return ERR(ERR_IO, "%s: %s", dir, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return ERR(ERR_INPUT, "%s: found a file, expected the directory of a run", dir);
    if (access(dir, R_OK | X_OK) != 0) return ERR(ERR_IO, "%s: %s", dir, strerror(errno));
    if (parts & RUN_SETTINGS) run_read_settings(r);
    bool has_metrics = run_has_file(r, "metrics.jsonl") && (parts & (RUN_METRICS | RUN_TAIL));
    if (has_metrics &&
        run_metrics_follow(&r->metrics, run_file(r, "metrics.jsonl"), parts & RUN_TAIL ? TAIL_BYTES : 0) != OK)
        run_note(r, "");
    if (r->metrics.n_bad) {
        error_clear();
        run_note(r, arena_format(&r->memory, "metrics.jsonl: %llu of %llu lines are not readable and are left out",
                                 (unsigned long long)r->metrics.n_bad, (unsigned long long)r->metrics.n_lines));
    }
    if (parts & RUN_MONITOR) run_read_monitor(r);
    if (parts & RUN_MEMORY) run_read_memory(r);
    if (parts & RUN_TEXTS) run_read_texts(r);
    run_read_info(r);
    if (run_has_file(r, "trace.json")) r->trace = run_file(r, "trace.json");
    return OK;
}

void run_close(run *r) {
    run_metrics_fini(&r->metrics);
    for (size_t i = 0; i < r->n_ranks; i++) run_metrics_fini(&r->ranks[i].monitor);
    free(r->ranks);
    free(r->settings);
    free(r->notes);
    json_decref(r->plan);
    json_decref(r->samples);
    json_decref(r->completions);
    arena_fini(&r->memory);
    *r = (run){0};
}
