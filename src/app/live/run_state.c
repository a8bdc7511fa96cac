/* run_state.c - run.json and what follows from it: is the run going on, how far is it, when will it end; and the
 * settings that matter.
 *
 * A run that says "running" and whose process is gone has died: on this host its process id tells, on another one the
 * newest sign of life of its ranks. */
#include "live/board.h"
#include "report/report.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORD_MOST = 300 };

void board_file_fini(board_file *f) {
    json_decref(f->root);
    free(f->text);
    f->root = NULL, f->text = NULL;
}

/* An object, or NULL. */
static json_t *read_object(const board_file *f, const char *text, size_t n) {
    if (!f->is_yaml) return json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    arena memory;
    yaml_node *root;
    arena_init(&memory);
    json_t *out = yaml_read_text(text, n, f->name, &memory, &root) == OK ? yaml_to_json(root) : NULL;
    arena_fini(&memory);
    return out;
}

void board_file_poll(board_file *f, int dir, bool *changed) {
    struct stat info;
    if (fstatat(dir, f->name, &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    int64_t changed_ns = info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    if ((uint64_t)info.st_ino == f->inode && changed_ns == f->changed_ns && (uint64_t)info.st_size == f->size) return;
    f->inode = (uint64_t)info.st_ino, f->changed_ns = changed_ns, f->size = (uint64_t)info.st_size;
    int fd;
    uint64_t n_bytes;
    char *text = NULL;
    size_t n = 0;
    if (file_open_at(dir, f->name, f->name, &fd, &n_bytes) != OK) return;
    status rc = file_read_fd(fd, f->name, BOARD_FILE_MOST, &text, &n);
    close(fd);
    json_t *root = rc == OK ? read_object(f, text, n) : NULL;
    free(text);
    error_clear();
    if (!json_is_object(root)) { /* half of a file that is not replaced as a whole: what was known before stays */
        json_decref(root);
        return;
    }
    board_file_fini(f);
    f->root = root;
    f->text = json_dumps(root, JSON_COMPACT);
    *changed = true;
}

/* ---- is it alive -------------------------------------------------------------------------------------------------- */

static bool is_alive(const board *b, const json_t *run) {
    double started = json_number_value(json_object_get(run, "started")), newest = started;
    for (size_t i = 0; i < b->n_ranks; i++) newest = MAX(newest, b->ranks[i].time);
    return run_is_alive(json_string_value(json_object_get(run, "host")),
                        json_integer_value(json_object_get(run, "pid")), started, newest);
}

static const char *state_of(const board *b, const json_t *run) {
    static const char *const known[] = {"running", "finished", "stopped", "failed"};
    const char *said = json_string_value(json_object_get(run, "state"));
    for (size_t i = 0; said && i < ARRAY_LENGTH(known); i++)
        if (strcmp(said, known[i]) == 0) return i == 0 && !is_alive(b, run) ? "died" : known[i];
    return "unknown";
}

/* ---- the object --------------------------------------------------------------------------------------------------- */

static void set_text(json_t *to, const json_t *run, const char *key, size_t most) {
    const json_t *text = json_object_get(run, key);
    if (json_is_string(text))
        json_object_set_new(to, key, json_text(json_string_value(text), MIN(json_string_length(text), most)));
}

static double number_of(const json_t *run, const char *key) {
    const json_t *n = json_object_get(run, key);
    return json_is_number(n) ? json_number_value(n) : NAN;
}

/* Counts are written as run.json has them, 6 and not 6.0: a program may read them into integers. */
static void set_number(json_t *to, const char *key, double x) {
    bool is_whole = fabs(x) < 0x1p53 && floor(x) == x;
    if (isfinite(x)) json_object_set_new(to, key, is_whole ? json_integer((json_int_t)x) : json_real(x));
}

/* The settings that people ask for first, as config.yaml has them: text, number or flag. */
static void set_settings(json_t *to, const json_t *config) {
    static const char *const keys[] = {
        "precision",          "train.lr",        "train.schedule",  "train.warmup",    "train.warmup_ratio",
        "train.weight_decay", "train.seed",      "train.batch",     "train.weighting", "data.source",
        "data.train_on",      "preference.loss", "preference.beta", "rl.loss",         "rl.group",
        "reward.list",        "model.base",      "model.adapter",   "model.lora.rank", "model.lora.alpha",
        "model.lora.targets"};
    json_t *settings = json_object();
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++) {
        const json_t *at = config;
        char key[64];
        for (const char *part = keys[i]; at && *part; part += part[0] == '.') {
            size_t n = strcspn(part, ".");
            snprintf(key, sizeof key, "%.*s", (int)n, part);
            at = json_object_get(at, key);
            part += n;
        }
        const char *text = json_string_value(at);
        if (text) json_object_set_new(settings, keys[i], json_text(text, MIN(strlen(text), (size_t)WORD_MOST)));
        else if (json_is_number(at) || json_is_boolean(at))
            json_object_set_new(settings, keys[i], json_copy((json_t *)at));
    }
    json_object_set_new(to, "settings", settings);
}

/* As the terminal computes it, from the clock of rank 0; of a run without monitor/, from the steps alone. */
static double pace_ms(const board *b) {
    bool has_first = b->n_ranks && b->ranks[0].rank == 0 && b->ranks[0].values[MONITOR_PACE] > 0;
    return has_first ? b->ranks[0].values[MONITOR_PACE] : b->step_ms;
}

static double newest_of(const board *b, const char *name) {
    for (size_t i = 0; i < b->n_metrics; i++)
        if (strcmp(b->metrics[i].name, name) == 0)
            return curve_last(&b->metrics[i].all) ? curve_last(&b->metrics[i].all)->y : NAN;
    return NAN;
}

json_t *run_state_make(const board *b) {
    static const char *const texts[] = {"ralo", "task", "model", "data", "host"};
    static const char *const numbers[] = {"pid", "world", "started", "ended", "steps", "epochs", "records"};
    const json_t *run = b->run.root;
    json_t *to = json_object();
    const char *state = state_of(b, run);
    json_object_set_new(to, "name", json_text(b->name, strlen(b->name)));
    json_object_set_new(to, "state", json_string(state));
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) set_text(to, run, texts[i], WORD_MOST);
    for (size_t i = 0; i < ARRAY_LENGTH(numbers); i++) set_number(to, numbers[i], number_of(run, numbers[i]));
    set_text(to, run, "error", BOARD_TEXT_MOST);
    double steps = number_of(run, "steps"), epochs = number_of(run, "epochs");
    double said = number_of(run, "step"), step = MAX((double)b->step, isfinite(said) ? said : 0);
    set_number(to, "step", step);
    set_number(to, "tokens", newest_of(b, "tokens"));
    set_number(to, "loss", newest_of(b, "train/loss"));
    set_number(to, "tokens_per_second", newest_of(b, "perf/tokens_per_sec"));
    set_number(to, "device_bytes", newest_of(b, "memory/device_bytes"));
    if (b->step_ms > 0) set_number(to, "step_ms", b->step_ms);
    if (steps > 0 && epochs > 0) set_number(to, "epoch", epochs * MIN(step / steps, 1.0));
    if (strcmp(state, "running") == 0 && steps >= step && pace_ms(b) > 0)
        set_number(to, "eta_seconds", (steps - step) * pace_ms(b) / 1000);
    set_settings(to, b->config.root);
    if (b->is_reading && b->metrics_tail.size)
        set_number(to, "reading", (double)b->metrics_tail.offset / (double)b->metrics_tail.size);
    return to;
}
