/* command_train.c - ralo train: plan, show, run, report. */
#define _GNU_SOURCE 1 /* program_invocation_name */
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/notes.h"
#include "cli/ranks.h"
#include "cli/record_text.h"
#include "cli/restarts.h"
#include "cli/train_report.h"
#include "live/live.h"
#include "measure/measure.h"
#include "ralo.h"
#include "track/track.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void on_signal(int number) {
    bool by_launcher = number == SIGUSR1 || number == SIGUSR2; /* which has announced it */
    if (!by_launcher) ranks_announce_stop();
    train_interrupt();
}

/* What a second signal would lose, in two copies: a handler reads the one that is not being written. */
static char lost[2][512];
static volatile sig_atomic_t lost_at;

static void note_lost(int64_t step, int64_t steps, int64_t saved, const char *run_dir) {
    int next = !lost_at;
    char since[64] = "nothing was saved yet";
    if (saved > 0) snprintf(since, sizeof since, "the last checkpoint was begun after step %lld", (long long)saved);
    snprintf(lost[next], sizeof lost[next],
             "stopped at once after step %lld of %lld; %s: what came after it is lost; ralo train %s continues\n",
             (long long)step, (long long)steps, since, run_dir);
    lost_at = next;
}

/* The first signal asks for a clean stop, a second one ends the process at once. */
static void on_signal_twice(int number) {
    static volatile sig_atomic_t n;
    if (!ranks_stop_is_new()) return;
    if (n++ == 0) {
        on_signal(number);
        return;
    }
    ssize_t written = write(STDERR_FILENO, lost[lost_at], strlen(lost[lost_at]));
    (void)written;
    signal(number, SIG_DFL);
    raise(number); /* when this handler returns */
}

/* Of a rank the second signal is that of its launcher, which says why; SA_RESETHAND lets it end the process. SIGTERM to a rank is its
 * launcher's (ranks.c). */
static void catch_signals(bool is_rank) {
    struct sigaction a = {.sa_handler = is_rank ? on_signal : on_signal_twice,
                          .sa_flags = is_rank ? (int)SA_RESETHAND : 0};
    sigemptyset(&a.sa_mask);
    ranks_catch_stop(&a, is_rank);
}

/* SIGUSR1 and SIGUSR2, which mpirun forwards to its ranks, perhaps more than once (ranks.c), and job schedulers send.
 * Caught from the start: ranks reach their first step at different times, and a rank that ended while planning would
 * look like a crash. */
static void catch_signals_of_launchers(void) {
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGUSR2, &a, NULL);
}

typedef struct listener {
    track *t; /* NULL: not the first rank */
    monitor *monitor;
    const config *c;
    const char *run_dir;
    int n_examples;
    int64_t step, saved; /* the last, and the last whose checkpoint was begun */
    bool began;
    char advice[256]; /* on a loss that diverges */
} listener;

static void on_step(void *context, const train_step_report *r) {
    listener *l = context;
    l->step = r->step;
    if (l->t) {
        note_lost(r->step, r->steps, l->saved, l->run_dir);
        track_step(l->t, r, r->device_bytes);
    }
    monitor_step(l->monitor, r);
}
static void on_eval(void *context, const train_eval_report *r) { track_eval(((listener *)context)->t, r); }
static void on_sample(void *context, const train_sample *s) { track_sample(((listener *)context)->t, s); }
static void on_completion(void *context, const train_completion *c) { track_completion(((listener *)context)->t, c); }
static void on_message(void *context, const char *text) { track_message(((listener *)context)->t, text); }
static void on_save(void *context) {
    listener *l = context;
    l->saved = l->step;
    track_sync(l->t);
}
static void on_example(void *context, const char *prompt, const char *expected, const char *got) {
    listener *l = context;
    char line[512];
    if (l->n_examples++ == 0)
        track_message(
            l->t,
            strcmp(l->c->data.source, "builtin:arithmetic") == 0
                ? "held-out problems, solved token by token (numbers are written units first: 37+45=82 is 73+54=280):"
                : "held-out problems, solved token by token:");
    bool right = strcmp(expected, got) == 0;
    snprintf(line, sizeof line, "  %s%s   %s%s", prompt, got, right ? "right" : "wrong, expected ",
             right ? "" : expected);
    track_message(l->t, line);
}

static void report_settings(const listener *l) {
    json_t *settings = json_object();
    strbuf value;
    strbuf_init(&value);
    for (size_t i = 0; config_key(i); i++) {
        value.length = 0;
        if (config_get(l->c, config_key(i), &value, "train") == OK)
            json_object_set_new(settings, config_key(i), json_text(value.text, value.length));
    }
    track_start(l->t, settings);
    strbuf_fini(&value);
    json_decref(settings);
}

/* Not earlier: if resuming is refused, the settings saved in that run directory must stay as they are. */
static status on_start(void *context, int64_t step) {
    listener *l = context;
    l->began = true;
    if (l->t) {
        TRY(config_save(l->c, l->run_dir));
        report_settings(l);
    }
    monitor_start(l->monitor, step);
    return OK;
}

static live_options live_options_of(const command_line *l, const char *run_dir) {
    return (live_options){.run_dir = run_dir, .listen = l->live_listen, .token = l->live_token};
}

/* The page reads the files of the run directory in threads of its own; the run does not know of it. */
static status open_live(const command_line *l, const char *run_dir, live **out) {
    live_options o = live_options_of(l, run_dir);
    if (!command_line_given(l, "live")) return OK;
    TRY(live_open(out, &o));
    log_info("live page %s", live_url(*out));
    return OK;
}

static track_sinks sinks_of(const config *c) {
    return (track_sinks){c->track.to,          c->track.mlflow,  c->track.experiment, c->track.name,
                         c->track.tensorboard, c->track.trackio, c->track.wait};
}

status train_sinks_check(const config *c) {
    track_sinks sinks = sinks_of(c);
    return track_sinks_check(&sinks);
}

/* A run that did not begin leaves no directory behind, unless something of value is in it, such as numbers of a reference. */
static void remove_unused(const char *run_dir) {
    static const char *const names[] = {"metrics.jsonl", "samples.jsonl", "completions.jsonl", "checkpoints/.lock",
                                        "best/checkpoints/.lock"};
    /* Of a run that could begin but did not; settings are there only where one has begun. */
    static const char *const watched[] = {"run.json", "plan.json", "memory.json", "monitor", "track", "tensorboard"};
    char path[4200];
    struct stat s;
    error_record why; /* the run did not begin */
    error_take(&why);
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        snprintf(path, sizeof path, "%s/%s", run_dir, names[i]);
        if (stat(path, &s) == 0 && s.st_size == 0) unlink(path);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(watched) && !dir_holds(run_dir, "config.yaml"); i++) {
        snprintf(path, sizeof path, "%s/%s", run_dir, watched[i]);
        if (dir_remove_all(path) != OK) error_clear();
    }
    error_give(&why);
    snprintf(path, sizeof path, "%s/best/checkpoints", run_dir);
    rmdir(path); /* each only where it is empty */
    snprintf(path, sizeof path, "%s/best", run_dir);
    rmdir(path);
    snprintf(path, sizeof path, "%s/checkpoints", run_dir);
    rmdir(path);
    if (rmdir(run_dir) == 0 && str_starts_with(run_dir, "runs/")) rmdir("runs");
}

/* runs/<model>-20261115-014500, with -2 and so on appended if a run of the same second has that name. */
static status new_run_dir(const train_request *r, char *out, size_t n) {
    time_t now = time(NULL);
    struct tm tm;
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    const char *model = model_of(&r->plan.source)->name; /* of a path, its last part, perhaps with a slash after */
    int length = snprintf(out, n, "runs/%.*s-%s", (int)strcspn(model, "/"), model, stamp);
    TRY(dir_make("runs"));
    for (int i = 2; mkdir(out, 0777) != 0 && errno == EEXIST; i++) snprintf(out + length, n - (size_t)length, "-%d", i);
    return OK; /* where it could not be made for another reason, whoever uses it says so */
}

static status choose_run_dir(const config *c, const train_request *r, char *out, size_t n) {
    if (c->run.dir && c->run.dir[0]) {
        snprintf(out, n, "%s", c->run.dir);
        return OK;
    }
    if (r->resume && strcmp(r->resume, "auto") == 0)
        return ERR(ERR_INPUT, "--resume auto needs to know which run: set run.dir to its directory");
    return new_run_dir(r, out, n);
}

/* All ranks must have the same settings before the first message of a step. */
static status agree_on_settings(comm *ranks, const config *c) {
    memstream printed;
    config_write_yaml(c, memstream_open(&printed), false);
    char *text = memstream_take(&printed);
    status rc = comm_agree(ranks, "settings", text);
    free(text);
    return rc;
}

/* Pipeline stages have different programs: one line per stage, this rank's own and the others' from the first rank
 * of each. */
static status agree_on_program(comm *ranks, const plan *p) {
    const mesh *m = comm_mesh(ranks);
    int n_stages = mesh_size(m, AXIS_PIPELINE), own = m->index[AXIS_PIPELINE], per_stage = comm_size(ranks) / n_stages;
    uint64_t mine = program_comm_hash(&p->program), *all = mem_alloc((size_t)comm_size(ranks) * sizeof *all);
    strbuf text;
    strbuf_init(&text);
    status rc = comm_all_gather_bytes(ranks, &mine, sizeof mine, all);
    for (int i = 0; i < n_stages; i++)
        strbuf_printf(&text, "messages of a step at stage %d: %016llx\n", i,
                      (unsigned long long)(i == own ? mine : all[i * per_stage]));
    if (rc == OK) rc = comm_agree(ranks, "program", text.text);
    strbuf_fini(&text);
    free(all);
    return rc;
}

/* One name for all ranks: it may contain the time. */
static status agree_on_dir(comm *ranks, const config *c, const train_request *r, char *dir, size_t n) {
    if (!ranks || comm_rank(ranks) == 0) TRY(choose_run_dir(c, r, dir, n));
    return ranks ? comm_broadcast(ranks, dir, n, 0) : OK;
}

#define PEAK_SHARE 0.01 /* of the run is spent on the rate that its progress is measured by */

/* The metrics, the terminal and the trackers, on the rank that writes them. */
static status open_tracking(const command_line *l, const job *j, listener *to) {
    const config *c = &l->config;
    const train_request *r = &j->request;
    const plan *p = &j->plan;
    double peak = 0, epochs = train_epochs(j->data, p, r->train.steps);
    double run_s = p->cost.step_s > 0 ? p->cost.step_s * (double)r->train.steps : INFINITY; /* predicted, where it is */
    TRY(measure_peak(r->backend, &(backend_options){r->n_threads, r->bind, r->gpu},
                     precision_compute(p->request.choice.precision), PEAK_SHARE * run_s, &peak));
    track_sinks sinks = sinks_of(c);
    track_options o = {.run_dir = to->run_dir,
                       .samples = r->train.sample_every > 0,
                       .completions = p->request.policy.on && r->train.rl.log_prompts > 0,
                       .out = stderr,
                       .warnings_only = l->quiet,
                       .peak_flops = peak,
                       .memory_planned = p->planned[TIER_DEVICE],
                       .log_every = r->train.log_every,
                       .steps_per_epoch = epochs > 0 ? (double)r->train.steps / epochs : 0,
                       .spikes = c->track.spikes,
                       .loss_is_no_objective = p->request.policy.on,
                       .advice = train_divergence_advice(&r->train, to->advice, sizeof to->advice),
                       .sinks = &sinks};
    return track_open(&to->t, &o);
}

static void close_tracking(listener *l, status rc) {
    track_end(l->t, rc);
    track_close(l->t);
}

/* What all ranks measured, told by the first. Collective. */
static status report_result(const command_line *l, const job *j, const char *run_dir, train_result *result) {
    const train_request *r = &j->request;
    rank_memory *all = NULL;
    TRY(train_report_gather(r->comm, &j->plan, result, &all));
    if (!r->comm || comm_rank(r->comm) == 0) {
        if (!l->quiet) train_report_summary(&j->plan, j->data, result, run_dir);
        if (l->config.run.breakdown) train_report_breakdown(&j->plan, result);
        if (l->json) train_report_json(l, &j->plan, r, result, run_dir, all);
    }
    free(all);
    return OK;
}

static status run(command_line *l, job *j, const char *run_dir, bool *began) {
    const train_request *r = &j->request;
    bool is_first = !r->comm || comm_rank(r->comm) == 0;
    listener observed = {.c = &l->config, .run_dir = run_dir};
    train_observer observer = {.context = &observed, .on_step = on_step, .on_start = on_start};
    train_result result;
    live *page = NULL;
    if (is_first) {
        TRY(open_tracking(l, j, &observed));
        observer = (train_observer){&observed, on_step,  on_eval,   on_example,   on_message,
                                    on_save,   on_start, on_sample, on_completion};
        status opened = open_live(l, run_dir, &page);
        if (opened != OK) {
            track_close(observed.t);
            return opened;
        }
    }
    catch_signals(r->comm != NULL);
    observed.monitor = monitor_open(&(monitor_options){.request = r,
                                                       .plan = &j->plan,
                                                       .data = j->data,
                                                       .version = RALO_VERSION,
                                                       .track = observed.t,
                                                       .restarts = MAX(notes_restart(), 0),
                                                       .has_memory = l->config.track.monitor});
    status rc = train_run(r, &j->plan, j->data, &observer, &result);
    if (is_first) track_sync(observed.t); /* a run that has ended has all of its metrics */
    monitor_close(observed.monitor, rc);
    if (is_first) close_tracking(&observed, rc);
    if (rc == OK) rc = report_result(l, j, run_dir, &result);
    live_close(page);
    *began = observed.began || !is_first;
    return rc;
}

static void say_weights(const config *c, const train_request *r) {
    strbuf text;
    strbuf_init(&text);
    weights_describe(c, r, &text);
    if (text.length) fprintf(stderr, "%s\n", text.text);
    strbuf_fini(&text);
}

static status train(command_line *l, comm **mesh) {
    config *c = &l->config;
    comm *ranks = comm_size(*mesh) > 1 ? *mesh : NULL;
    status rc;
    job j;
    char run_dir[4096], trace[4096];
    int lock = -1;
    config_resolve_model(c, NULL, true);
    TRY(config_fit_data(c, false));
    if (ranks) TRY(agree_on_settings(ranks, c));
    TRY(job_init(&j, c, l->hardware));
    train_request *r = &j.request;
    r->program = program_invocation_name;
    r->version = RALO_VERSION;
    r->trace_path = l->trace;
    r->plan.names_no_model = foreign_was_read(&l->foreign) && !config_names_model(c);
    if (l->trace && ranks && comm_rank(ranks) > 0) { /* each rank its own file */
        snprintf(trace, sizeof trace, "%s.rank-%d", l->trace, comm_rank(ranks));
        r->trace_path = trace;
    }
    if (ranks) TRY_GOTO(rc, job_use_ranks(&j, c, l->hardware, ranks), done);
    TRY_GOTO(rc, job_open(&j), done);
    if (ranks) {
        TRY_GOTO(rc, ranks_use_mesh(mesh, l, &j.plan.request.mesh), done);
        ranks = *mesh;
        TRY_GOTO(rc, request_use_mesh(r, c, ranks), done);
    }
    job_keep_choice(&j, c);
    bool shows = !l->quiet && (!ranks || comm_rank(ranks) == 0);
    if (shows) {
        train_report_answer(&j);
        plan_print_brief(&j.plan, stderr);
        train_disk disk = train_disk_of(r, &j.plan);
        train_disk_print(&disk, stderr);
        fputs("plan      ralo plan with the same arguments shows all of it\n", stderr);
    }
    TRY_GOTO(rc, job_check(&j), done);
    if (ranks) TRY_GOTO(rc, agree_on_program(ranks, &j.plan), done);
    if (shows) {
        train_data_print(j.data, r, &j.plan, stderr);
        say_weights(c, r);
    }
    if (!ranks || comm_rank(ranks) == 0) train_data_warn(j.data, r, &j.plan);
    if (l->show_example && shows) TRY_GOTO(rc, record_text_print_first(j.data, r), done);
    TRY_GOTO(rc, agree_on_dir(ranks, c, r, run_dir, sizeof run_dir), done);
    bool is_new = !ranks && (!*c->run.dir || access(run_dir, F_OK) != 0),
         began = false; /* with ranks, others may write to it */
    rc = job_use_dir(&j, run_dir);
    /* Before the first file: a run that is going on there keeps its run.json, plan.json and samples of memory. */
    if (rc == OK && (!ranks || comm_rank(ranks) == 0)) {
        rc = run_lock_take(&lock, run_dir);
        r->run_dir_is_locked = rc == OK;
        if (rc == ERR_INPUT) is_new = false; /* made by the one that has it */
    }
    if (rc == OK && ranks) rc = comm_barrier(ranks); /* until the first one has it; where it is refused, none goes on */
    if (ranks) ranks_use_dir(run_dir);
    if (rc == OK && (!ranks || comm_rank(ranks) == 0))
        notes_add_beginning(&j.plan.request.mesh, j.plan.request.choice.micro_batch, j.plan.request.choice.accumulation,
                            run_dir);
    if (rc == OK) rc = run(l, &j, run_dir, &began);
    if (is_new && !began) remove_unused(run_dir);
    if (lock >= 0) close(lock);
done:
    job_close(&j);
    return rc;
}

/* With what follows from a model's directory and from data: a run from this file is the run of this line. */
static status show_config(command_line *l) {
    config_resolve_model(&l->config, l->hardware, true);
    config_write_yaml(&l->config, stdout, true);
    return OK;
}

/* Now, and not when the plan is shown and the run directory made. */
static status check_trace(command_line *l) {
    const char *slash = l->trace ? strrchr(l->trace, '/') : NULL;
    const char *dir =
        slash && slash > l->trace ? arena_format(&l->memory, "%.*s", (int)(slash - l->trace), l->trace) : ".";
    if (!l->trace || access(dir, W_OK) == 0) return OK;
    return ERR(ERR_INPUT, "--trace %s: found no directory %s to write into (%s), expected the name of a new file",
               l->trace, dir, strerror(errno));
}

status command_train(command_line *l) {
    const config *c = &l->config;
    if (l->show_config && l->json)
        return ERR(ERR_INPUT, "train: --show-config prints YAML and --json one JSON object of a run; leave one out");
    if (l->quiet && l->verbose)
        return ERR(ERR_INPUT, "train: --quiet and --verbose contradict each other; leave one out");
    if (l->show_config) return show_config(l);
    if (l->dry_run) {
        l->world = l->ranks > 1 ? l->ranks : 0;
        TRY(command_plan(l));
        return foreign_check_train(&l->foreign);
    }
    if (l->quiet) log_set_level(LOG_WARN);
    TRY(check_trace(l));
    TRY(foreign_check_train(&l->foreign));
    live_options live = live_options_of(l, NULL);
    if (command_line_given(l, "live")) TRY(live_check(&live));
    else if (l->live_token) return ERR(ERR_INPUT, "train: --live-token needs --live");
    TRY(train_sinks_check(c));
    TRY(restarts_check(l));
    if (ranks_wanted(l)) return restarts_run(l);
    catch_signals_of_launchers();
    ranks_catch_launcher();
    comm *ranks;
    status rc = ranks_open(&ranks, l);
    if (rc != OK) return rc;                           /* without a trail: another rank may have reported it */
    if (comm_rank(ranks) > 0) log_set_level(LOG_WARN); /* the first rank reports the progress of all */
    rc = train(l, &ranks);
    return ranks_close(ranks, rc);
}
