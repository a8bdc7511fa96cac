/* command_pipeline.c - ralo pipeline: the stages of a CONFIG in order, each a run of its own.
 *
 * A stage is a process, `ralo train CONFIG --stage NAME --resume auto`, so nothing of one stays in memory for the next, and a stage
 * that was killed goes on from its last checkpoint when the same command is given again. What has finished is told by DIR/NAME.json,
 * written whole after the run and its export: it holds the settings, and a stage that finished with other settings is refused rather
 * than taken for this one. The live page is served from here and changes from stage to stage, so its address stays. */
#define _GNU_SOURCE 1
#include "cli/export_card.h"
#include "cli/output.h"
#include "cli/stage_table.h"
#include "live/live.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RESULT_MOST = 1 << 22, ARGUMENTS_FIXED = 16 };

typedef struct pipeline {
    const command_line *l;
    const char *name, *path; /* as it was asked for, and its file */
    stage_list stages;
    arena *memory;
    stage_column *columns;
    size_t *n_columns;
    json_t *list; /* of all stages, for --json */
    live **page;  /* NULL: not there yet */
} pipeline;

/* ---- which file -------------------------------------------------------------------------------------------------- */

/* A name is a file of configs/local, here or beside the directory that the program was built in. */
static status find_file(const char *name, arena *memory, const char **out) {
    char self[4096] = "";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[MAX(n, (ssize_t)0)] = 0;
    const char *places[] = {name, arena_format(memory, "configs/local/%s.yaml", name),
                            arena_format(memory, "%s/../configs/local/%s.yaml", dirname(self), name)};
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        *out = places[i];
        if (access(places[i], F_OK) == 0 && (i > 0 || strpbrk(name, "/."))) return OK;
    }
    return ERR(
        ERR_INPUT,
        "pipeline: '%.200s' is no file with stages, and there is no %s; expected baseline, rho1, verifiable or a "
        "CONFIG with stages",
        name, places[1]);
}

/* ---- a stage that has finished ------------------------------------------------------------------------------------ */

/* The settings of a stage as text, without what says where it is. */
static status settings_text(const pipeline *p, const char *stage, char **out, bool *adapters) {
    config c;
    foreign f;
    status rc;
    memstream printed;
    config_init(&c);
    foreign_init(&f);
    f.stage = stage, f.stages_dir = p->stages.dir;
    TRY_GOTO(rc, foreign_read_config(&f, &c, p->path), done);
    for (size_t i = 0; i < p->l->stage_sets.n; i++)
        TRY_GOTO(rc, config_set(&c, p->l->stage_sets.items[i], "--set"), done);
    TRY_GOTO(rc, foreign_apply(&f, &c), done);
    config_resolve(&c);
    TRY_GOTO(rc, config_check(&c), done);
    config_write_yaml(&c, memstream_open(&printed), false);
    *out = memstream_take(&printed);
    *adapters = c.model.lora_rank || *c.model.adapter;
done:
    foreign_fini(&f);
    config_fini(&c);
    return rc;
}

static const char *marker_path(const pipeline *p, const char *stage) {
    return arena_format(p->memory, "%s/%s.json", p->stages.dir, stage);
}

/* The first line of `now` that is not in `then`. */
static const char *first_change(const pipeline *p, const char *then, const char *now) {
    const char *begin = now;
    while (*now && *now == *then) now++, then++;
    const char *line = now;
    while (line > begin && line[-1] != '\n') line--;
    line += strspn(line, " ");
    return arena_format(p->memory, "%.*s", (int)MIN(strcspn(line, "\n"), (size_t)200), line);
}

static status read_marker(const pipeline *p, const char *stage, const char *settings, json_t **result) {
    const char *path = marker_path(p, stage);
    json_t *root;
    *result = NULL;
    if (access(path, F_OK) != 0) return OK;
    TRY(json_read_file(path, RESULT_MOST, &root));
    const char *then = json_string_value(json_object_get(root, "settings"));
    status rc = OK;
    if (!then || !json_is_object(json_object_get(root, "result")))
        rc =
            ERR(ERR_INPUT, "%s: found something else than what a stage leaves; remove it to run %s again", path, stage);
    else if (strcmp(then, settings) != 0)
        rc = ERR(ERR_INPUT,
                 "%s: stage %s has finished with other settings (now '%s'); give those again, another --dir, or remove "
                 "%s and %s to run it again",
                 path, stage, first_change(p, then, settings), path, stage_run_dir(&p->stages, stage, p->memory));
    else *result = json_incref(json_object_get(root, "result"));
    json_decref(root);
    return rc;
}

/* ---- running one -------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stage_pid, stopped;

/* The stage saves and stops; a second one ends it at once, as it does without a pipeline. */
static void pass_on(int number) {
    stopped = 1;
    if (stage_pid > 0) kill((pid_t)stage_pid, number);
}

static void catch_signals(void (*handler)(int)) {
    struct sigaction a = {.sa_handler = handler};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

_Noreturn static void become_train(const char **argv, int out, pid_t parent) {
    catch_signals(SIG_DFL);
    setpgid(0, 0);                    /* Ctrl-C reaches the pipeline alone, which passes it on once */
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a stage never outlives its pipeline: it saves and stops */
    if (getppid() != parent) _exit(1);
    dup2(out, STDOUT_FILENO);
    execv("/proc/self/exe", (char *const *)argv);
    fprintf(stderr, "error: pipeline: start of ralo train: %s\n", strerror(errno));
    _exit(1);
}

/* Ends with the words that the stage has printed already. */
static status status_of(int state, const char *stage) {
    int code = WIFEXITED(state) ? WEXITSTATUS(state) : 1;
    if (code == 0) return OK;
    if (code == 130) return ERR(ERR_INTERRUPTED, "stage %s was stopped; the same command continues from there", stage);
    return ERR(code == 2 ? ERR_INPUT : code == 3 ? ERR_FIT : ERR_RUN, "stage %s failed; see above", stage);
}

/* The last line of what the process prints, as JSON. */
static status read_result(int from, const char *stage, json_t **out) {
    strbuf text;
    char block[4096];
    strbuf_init(&text);
    for (ssize_t n; (n = read(from, block, sizeof block)) != 0;)
        if (n > 0 && text.length < RESULT_MOST) strbuf_add_bytes(&text, block, (size_t)n);
        else if (n < 0 && errno != EINTR) break;
    size_t end = text.length;
    while (end > 0 && text.text[end - 1] == '\n') end--;
    size_t start = end;
    while (start > 0 && text.text[start - 1] != '\n') start--;
    *out = json_loadb(text.text + start, end - start, 0, NULL);
    strbuf_fini(&text);
    if (json_is_object(*out)) return OK;
    json_decref(*out);
    *out = NULL;
    return ERR(ERR_RUN, "stage %s printed no result", stage);
}

static status run_stage(const pipeline *p, const char *stage, json_t **result) {
    const command_line *l = p->l;
    const char **argv = arena_array(p->memory, const char *, ARGUMENTS_FIXED + 2 * l->stage_sets.n);
    size_t n = 0;
    argv[n++] = "ralo", argv[n++] = "train", argv[n++] = p->path;
    argv[n++] = "--stage", argv[n++] = stage, argv[n++] = "--dir", argv[n++] = p->stages.dir;
    argv[n++] = "--resume", argv[n++] = "auto", argv[n++] = "--json";
    if (l->ranks) argv[n++] = "--ranks", argv[n++] = arena_format(p->memory, "%d", l->ranks);
    for (size_t i = 0; i < l->stage_sets.n; i++) argv[n++] = "--set", argv[n++] = l->stage_sets.items[i];
    int pipe_ends[2], state;
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) return ERR(ERR_IO, "pipeline: pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t self = getpid(), child = fork();
    if (child == 0) become_train(argv, pipe_ends[1], self);
    close(pipe_ends[1]);
    stage_pid = child;
    if (child < 0) {
        close(pipe_ends[0]);
        return ERR(ERR_RUN, "pipeline: fork: %s", strerror(errno));
    }
    status printed = read_result(pipe_ends[0], stage, result);
    close(pipe_ends[0]);
    while (waitpid(child, &state, 0) < 0 && errno == EINTR) {}
    stage_pid = 0;
    status rc = status_of(state, stage);
    return rc != OK ? rc : printed;
}

/* The whole model, with its adapters merged into it. One that is there is whole: export is done by renaming. */
static status export_stage(const pipeline *p, const char *stage, bool adapters) {
    export_report r;
    const char *dir = stage_model_dir(&p->stages, stage, p->memory);
    if (access(dir, F_OK) == 0) return OK;
    TRY(export_from_run(stage_run_dir(&p->stages, stage, p->memory),
                        &(export_options){.dir = dir, .type = DTYPE_COUNT, .merge = adapters}, &r));
    fprintf(stderr, "exported  %s\n", dir);
    return OK;
}

/* Only stages that run are shown. Their directory is made here: the page needs one to look at. */
static status show_stage(const pipeline *p, const char *stage, const char *run_dir) {
    const char *name = arena_format(p->memory, "%s %s", p->name, stage);
    if (!command_line_given(p->l, "live")) return OK;
    TRY(dir_make(run_dir));
    if (*p->page) return live_follow(*p->page, run_dir, name);
    TRY(live_open(
        p->page,
        &(live_options){.run_dir = run_dir, .name = name, .listen = p->l->live_listen, .token = p->l->live_token}));
    log_info("live page %s", live_url(*p->page));
    return OK;
}

static status do_stage(const pipeline *p, size_t i, const char *settings, bool adapters) {
    const char *stage = p->stages.names[i], *run_dir = stage_run_dir(&p->stages, stage, p->memory);
    json_t *result = NULL;
    if (stopped) return ERR(ERR_INTERRUPTED, "stopped before stage %s; the same command continues from there", stage);
    TRY(read_marker(p, stage, settings, &result));
    bool was_done = result != NULL;
    fprintf(stderr, "\nstage     %s %s%s: %s\n", p->name, stage, was_done ? ", finished before" : "", run_dir);
    if (!was_done) {
        status rc = show_stage(p, stage, run_dir);
        if (rc == OK) rc = run_stage(p, stage, &result);
        if (rc == OK && p->stages.exported[i]) rc = export_stage(p, stage, adapters);
        json_t *marker = json_pack("{s:s, s:O?}", "settings", settings, "result", result);
        if (rc == OK) rc = json_write_file(marker_path(p, stage), marker);
        json_decref(marker);
        if (rc != OK) {
            json_decref(result);
            return rc;
        }
    }
    stage_column *c = &p->columns[*p->n_columns];
    c->name = arena_format(p->memory, "%s %s", p->name, stage);
    status rc = stage_metrics_read(run_dir, &c->metrics);
    if (rc == OK) {
        ++*p->n_columns;
        json_array_append_new(p->list, json_pack("{s:s, s:s, s:o, s:b, s:O, s:O}", "pipeline", p->name, "stage", stage,
                                                 "run", json_name(run_dir), "finished_before", was_done, "metrics",
                                                 c->metrics, "param_hash", json_object_get(result, "param_hash")));
    }
    json_decref(result);
    return rc;
}

/* Settings of all stages are read before the first runs: an error in the last is told at once. They are read again when it is their
 * turn, because a model that an earlier stage has exported may bring its tokenizer. */
static status run_pipeline(pipeline *p) {
    status rc = OK;
    TRY(find_file(p->name, p->memory, &p->path));
    TRY(stages_read(&p->stages, p->path, p->l->stages_dir, p->memory));
    const char *base = arena_string(p->memory, p->name), *slash = strrchr(base, '/');
    base = slash ? slash + 1 : base;
    p->name = arena_format(p->memory, "%.*s", (int)strcspn(base, "."), base);
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < p->stages.n && rc == OK; i++) {
            char *settings;
            bool adapters;
            TRY(settings_text(p, p->stages.names[i], &settings, &adapters));
            if (pass) rc = do_stage(p, i, settings, adapters);
            free(settings);
        }
        TRY(rc);
        if (!pass) TRY(dir_make(p->stages.dir));
    }
    return OK;
}

status command_pipeline(command_line *l) {
    size_t n_columns = 0;
    live *page = NULL;
    status rc = OK;
    if (command_line_given(l, "live"))
        TRY(live_check(&(live_options){.listen = l->live_listen, .token = l->live_token}));
    else if (l->live_token) return ERR(ERR_INPUT, "pipeline: --live-token needs --live");
    if (l->stages_dir && l->paths.n > 1)
        return ERR(ERR_INPUT, "pipeline: --dir is for one pipeline, found several; set pipeline.dir in their files");
    json_t *list = json_array();
    stage_column *columns = mem_alloc(l->paths.n * STAGES_MOST * sizeof *columns);
    catch_signals(pass_on);
    for (size_t i = 0; i < l->paths.n && rc == OK; i++) {
        pipeline p = {.l = l,
                      .name = l->paths.items[i],
                      .memory = &l->memory,
                      .columns = columns,
                      .n_columns = &n_columns,
                      .list = list,
                      .page = &page};
        rc = run_pipeline(&p);
    }
    live_close(page);
    if (rc == OK) stage_table_print(columns, n_columns, report_stream(l->json));
    if (rc == OK && l->json) json_print(json_pack("{s:O}", "stages", list), "pipeline runs", 9);
    for (size_t i = 0; i < n_columns; i++) json_decref(columns[i].metrics);
    free(columns);
    json_decref(list);
    return rc;
}
