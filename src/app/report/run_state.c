/* run_state.c - what became of a run: run.json, and whether the process that it names still lives.
 *
 * A run that is killed cannot say so. On the same host its process is looked for; a number that the system has given to another
 * process since is told by when that one began. Elsewhere the monitor's newest line is the sign of life. */
#include "report/parts.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { INFO_BYTES = 1 << 20, SILENT_SECONDS = 60, CLOCK_SLACK = 30 };

static const char *const names[] = {"running", "finished", "stopped", "failed", "died", "unfinished"};
const char *run_state_name(run_state s) { return names[s]; }

/* ---- is it alive ---------------------------------------------------------------------------------------------------- */

/* Unix seconds at which a process of this host began; NAN: it is gone, or the system does not say. is_dead: it has ended, and its
 * parent has not asked how, which in containers may never happen. */
static double process_start(long long pid, bool *is_dead) {
    *is_dead = false;
    char path[64], *text;
    size_t n;
    long long ticks = -1, boot = -1;
    snprintf(path, sizeof path, "/proc/%lld/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return NAN;
    text = mem_alloc(4096);
    n = fread(text, 1, 4095, f);
    fclose(f);
    text[n] = 0;
    const char *rest = strrchr(text, ')'); /* the name before it may hold anything */
    char state = 0;
    if (rest)
        sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld", &state,
               &ticks);
    *is_dead = state == 'Z' || state == 'X';
    free(text);
    f = fopen("/proc/stat", "re");
    char line[256];
    while (f && boot < 0 && fgets(line, sizeof line, f)) sscanf(line, "btime %lld", &boot);
    if (f) fclose(f);
    return ticks < 0 || boot < 0 ? NAN : (double)boot + (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static bool process_lives(long long pid, double started) {
    if (pid <= 0 || pid > INT32_MAX) return false;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return false;
    bool is_dead;
    double began = process_start(pid, &is_dead);
    return !is_dead && !(began > started + CLOCK_SLACK); /* one that began later is another process */
}

/* The newest time of the monitor, of all ranks; where it was not read, when its file was last written. */
static double last_sign(run *r) {
    double last = NAN;
    for (size_t i = 0; i < r->n_ranks; i++)
        if (isfinite(r->ranks[i].monitor.last_x)) last = fmax(last, r->ranks[i].monitor.last_x);
    struct stat info;
    if (isnan(last) && stat(run_file(r, "monitor/rank-00000.jsonl"), &info) == 0) last = (double)info.st_mtime;
    return last;
}

/* With its domain or without. */
static bool same_host(const char *a, const char *b) {
    size_t n = strcspn(a, "."), m = strcspn(b, ".");
    return n == m && n > 0 && strncmp(a, b, n) == 0;
}

bool run_is_alive(const char *host, long long pid, double started, double sign) {
    char here[256] = "";
    gethostname(here, sizeof here - 1);
    if (host && same_host(host, here) && pid != 0) return process_lives(pid, started);
    return !((double)time(NULL) - sign > SILENT_SECONDS);
}

static run_state running_or_died(run *r, const json_t *info) {
    double sign = last_sign(r);
    if (isnan(sign)) sign = r->changed;
    json_int_t pid = json_integer_value(json_object_get(info, "pid"));
    return run_is_alive(r->host, pid, r->started, sign) ? RUN_RUNNING : RUN_DIED;
}

/* ---- run.json ------------------------------------------------------------------------------------------------------- */

static const char *text_of(run *r, const json_t *info, const char *key) {
    const char *text = json_string_value(json_object_get(info, key));
    return text ? arena_format(&r->memory, "%.300s", text) : NULL;
}

static double number_of(const json_t *info, const char *key) {
    const json_t *v = json_object_get(info, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void take_info(run *r, const json_t *info) {
    r->task = text_of(r, info, "task");
    r->model = text_of(r, info, "model");
    r->data = text_of(r, info, "data");
    r->host = text_of(r, info, "host");
    r->error = text_of(r, info, "error");
    r->started = number_of(info, "started");
    r->ended = number_of(info, "ended");
    r->step = number_of(info, "step");
    r->steps = number_of(info, "steps");
    const json_t *cores = json_object_get(info, "cores");
    r->others = fmax(number_of(cores, "others"), number_of(cores, "stolen"));
    double world = number_of(info, "world");
    if (world >= 1 && world <= 1e6) r->world = (int)world;
    const char *state = json_string_value(json_object_get(info, "state"));
    r->state = RUN_UNFINISHED;
    for (int s = RUN_RUNNING; state && s <= RUN_FAILED; s++)
        if (strcmp(state, names[s]) == 0) r->state = (run_state)s;
    if (r->state == RUN_RUNNING) r->state = running_or_died(r, info);
}

/* What an old run, without run.json, says by its other files. */
static void fill_gaps(run *r) {
    const char *steps = run_setting_find(r, "train.steps"), *preset = run_setting_find(r, "model.preset");
    const char *path = run_setting_find(r, "model.path");
    if (!r->task) r->task = run_setting_find(r, "train.task");
    if (!r->data) r->data = run_setting_find(r, "data.source");
    if (!r->model) r->model = path && strcmp(path, "none") != 0 ? path : preset;
    if (isnan(r->steps) && steps) {
        char *end;
        double n = strtod(steps, &end);
        if (*steps && !*end) r->steps = n;
    }
    if (isfinite(r->metrics.last_x)) r->step = isnan(r->step) ? r->metrics.last_x : fmax(r->step, r->metrics.last_x);
}

void run_read_info(run *r) {
    static const char *const traces_of_life[] = {"metrics.jsonl", "run.json", "config.yaml", "."};
    struct stat st;
    for (size_t i = 0; i < ARRAY_LENGTH(traces_of_life) && isnan(r->changed); i++)
        if (stat(run_file(r, traces_of_life[i]), &st) == 0) r->changed = (double)st.st_mtime;
    json_t *info = run_read_object(r, "run.json", INFO_BYTES);
    if (info) take_info(r, info);
    fill_gaps(r);
    if (!info) r->state = r->steps > 0 && r->step >= r->steps ? RUN_FINISHED : RUN_UNFINISHED;
    json_decref(info);
}
