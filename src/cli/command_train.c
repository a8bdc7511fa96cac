/* command_train.c - ralo train: plan, show, run, report. */
#include "cli/cli.h"
#include "cli/ranks.h"
#include "track/track.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void on_signal(int number) {
    (void)number;
    train_interrupt();
}

/* The first signal asks for a clean stop; SA_RESETHAND lets a second one end the process at once. */
static void catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL); /* what mpirun hands on to its ranks */
}

typedef struct listener {
    track *t;
    const config *c;
    const char *run_dir;
    int n_examples;
} listener;

/* What every rank planned and used, for the report of the first. */
typedef struct rank_memory {
    uint64_t planned[TIER_COUNT], peak[TIER_COUNT], by_role[ROLE_COUNT], n_allocations;
    uint64_t gpu_context, gpu_in_use; /* as train_result has them */
    double idle;
} rank_memory;

static void on_step(void *context, const train_step_report *r) {
    track_step(((listener *)context)->t, r, r->device_bytes);
}
static void on_eval(void *context, const train_eval_report *r) { track_eval(((listener *)context)->t, r); }
static void on_message(void *context, const char *text) { track_message(((listener *)context)->t, text); }
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

/* Not before: a refused resume must leave the settings of the run it was refused by alone. */
static status on_start(void *context) {
    const listener *l = context;
    return config_save(l->c, l->run_dir);
}

/* runs/<model>-20261115-014500 when the user named none. */
static status choose_run_dir(const config *c, const train_request *r, char *out, size_t n) {
    if (c->run.dir && c->run.dir[0]) {
        snprintf(out, n, "%s", c->run.dir);
    } else {
        if (r->resume && strcmp(r->resume, "auto") == 0)
            return ERR(ERR_INPUT, "--resume auto needs to know which run: set run.dir to its directory");
        time_t now = time(NULL);
        struct tm tm;
        char stamp[32];
        strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
        const char *model = r->plan.model.name; /* of a path, its last part, perhaps with a slash behind */
        snprintf(out, n, "runs/%.*s-%s", (int)strcspn(model, "/"), model, stamp);
    }
    return OK;
}

static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *breakdown_json(const train_result *t) {
    json_t *times = json_object();
    for (op_kind k = 0; k < OP_COUNT; k++)
        if (t->busy_seconds[k] > 0) json_object_set_new(times, op_name(k), json_real(t->busy_seconds[k]));
    return times;
}

/* Where the time went, longest first. */
static void print_breakdown(const train_result *t) {
    double sum = 0, longest;
    bool shown[OP_COUNT] = {0};
    for (op_kind k = 0; k < OP_COUNT; k++) sum += t->busy_seconds[k];
    fprintf(stderr, "time      %.3f s in kernels, evaluation included\n", sum);
    do {
        op_kind best = 0;
        longest = 0;
        for (op_kind k = 0; k < OP_COUNT; k++)
            if (!shown[k] && t->busy_seconds[k] > longest) longest = t->busy_seconds[best = k];
        shown[best] = true;
        if (longest > 0) fprintf(stderr, "    %-20s %10.3f s  %5.1f %%\n", op_name(best), longest, 100 * longest / sum);
    } while (longest > 0);
}

static json_t *ranks_json(const rank_memory *all, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *one = json_object(), *roles = json_object();
        for (tier t = 0; t < TIER_COUNT; t++)
            if (t <= TIER_NVME || all[i].planned[t])
                json_object_set_new(one, tier_name(t),
                                    json_pack("{s:I, s:I}", "planned", (json_int_t)all[i].planned[t], "peak",
                                              (json_int_t)all[i].peak[t]));
        for (role k = 0; k < ROLE_COUNT; k++)
            json_object_set_new(roles, role_name(k), json_integer((json_int_t)all[i].by_role[k]));
        json_object_set_new(one, "by_role", roles);
        json_object_set_new(one, "allocations_in_steps", json_integer((json_int_t)all[i].n_allocations));
        json_object_set_new(one, "idle", number_or_null(all[i].idle));
        if (all[i].gpu_in_use) {
            json_object_set_new(one, "gpu_context", json_integer((json_int_t)all[i].gpu_context));
            json_object_set_new(one, "gpu_in_use", json_integer((json_int_t)all[i].gpu_in_use));
        }
        json_array_append_new(list, one);
    }
    return list;
}

/* Arenas only: planned and used of every rank. The caller frees; one of them where this rank is alone. */
static status gather_memory(comm *ranks, const plan *p, const train_result *t, rank_memory **all) {
    rank_memory mine = {.n_allocations = t->memory.n_allocations,
                        .idle = t->idle,
                        .gpu_context = t->gpu_context,
                        .gpu_in_use = t->gpu_in_use};
    memcpy(mine.planned, t->memory.planned, sizeof mine.planned);
    memcpy(mine.peak, t->memory.peak, sizeof mine.peak);
    memcpy(mine.by_role, p->by_role, sizeof mine.by_role);
    *all = mem_alloc((size_t)(ranks ? comm_size(ranks) : 1) * sizeof **all);
    **all = mine;
    if (!ranks) return OK;
    status rc = comm_all_gather_bytes(ranks, &mine, sizeof mine, *all);
    if (rc != OK) free(*all), *all = NULL;
    return rc;
}

static void print_json(const command_line *o, const plan *p, const train_request *r, const train_result *t,
                       const char *run_dir, const rank_memory *all) {
    int n_ranks = mesh_world(&p->request.mesh);
    json_t *root = json_object(), *memory = plan_memory_json(p);
    json_object_set_new(root, "run", json_string(run_dir));
    if (r->export_dir) json_object_set_new(root, "export", json_string(r->export_dir));
    json_object_set_new(root, "steps", json_integer(t->steps));
    json_object_set_new(
        root, "loss",
        json_pack("{s:o, s:o}", "first", number_or_null(t->first_loss), "last", number_or_null(t->last_loss)));
    json_object_set_new(root, "tokens", json_integer((json_int_t)t->tokens));
    json_object_set_new(root, "tokens_per_second", number_or_null(t->tokens_per_second));
    json_object_set_new(root, "step_ms", number_or_null(t->step_ms));
    json_object_set_new(root, "predicted_step_ms", number_or_null(1e3 * p->cost.step_s));
    json_object_set_new(root, "eval",
                        json_pack("{s:o, s:o}", "loss", number_or_null(t->eval.loss), "exact_match",
                                  number_or_null(t->eval.exact_match)));
    json_object_set_new(root, "strategy", plan_strategy_json(p));
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)t->param_hash);
    json_object_set_new(root, "param_hash", json_string(hash));
    json_object_set_new(root, "world", json_integer(n_ranks));
    if (n_ranks > 1) {
        json_object_set_new(root, "ranks", ranks_json(all, n_ranks));
        json_object_set_new(root, "sent_per_step", json_integer((json_int_t)p->sent_per_step));
        json_object_set_new(root, "volume_params", json_real(plan_volume(p)));
    }
    uint64_t peaks[TIER_COUNT] = {t->memory.peak[TIER_DEVICE], t->memory.peak[TIER_HOST] + t->host_peak,
                                  t->memory.peak[TIER_NVME]};
    for (tier i = TIER_DEVICE_1; i < TIER_COUNT; i++) peaks[i] = t->memory.peak[i];
    for (tier i = 0; i < TIER_COUNT; i++)
        if (json_object_get(memory, tier_name(i)))
            json_object_set_new(json_object_get(memory, tier_name(i)), "peak", json_integer((json_int_t)peaks[i]));
    json_object_set_new(memory, "rss_peak", json_integer((json_int_t)t->rss_peak));
    if (t->gpu_in_use) {
        json_object_set_new(memory, "gpu_context", json_integer((json_int_t)t->gpu_context));
        json_object_set_new(memory, "gpu_in_use", json_integer((json_int_t)t->gpu_in_use));
    }
    json_object_set_new(memory, "allocations_in_steps", json_integer((json_int_t)t->memory.n_allocations));
    json_object_set_new(root, "memory", memory);
    if (o->config.run.breakdown) json_object_set_new(root, "breakdown", breakdown_json(t));
    if (foreign_was_read(&o->foreign)) json_object_set_new(root, "translated", foreign_json(&o->foreign, &o->config));
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
}

static void print_summary(const plan *p, const train_result *t, const char *run_dir) {
    char a[32], b[32], c[32];
    fprintf(stderr, "done      %lld steps, %s tokens, %s tokens/s, loss %.4f -> %.4f\n", (long long)t->steps,
            str_format_count(a, (double)t->tokens), str_format_count(b, t->tokens_per_second), t->first_loss,
            t->last_loss);
    if (isfinite(t->eval.loss)) fprintf(stderr, "held out  loss %.4f", t->eval.loss);
    if (isfinite(t->eval.exact_match))
        fprintf(stderr, ", exact match %.1f %% of %lld problems", 100 * t->eval.exact_match,
                (long long)t->eval.n_problems);
    if (isfinite(t->eval.loss)) fputc('\n', stderr);
    fprintf(stderr, "memory    device %s planned, %s used; process at most %s\n",
            str_format_bytes(a, p->planned[TIER_DEVICE]), str_format_bytes(b, t->memory.peak[TIER_DEVICE]),
            str_format_bytes(c, t->rss_peak));
    if (t->gpu_in_use) {
        uint64_t expected = p->planned[TIER_DEVICE] + t->gpu_context;
        fprintf(stderr, "driver    %s in use: %s planned and %s for context, libraries and graphs (%+.2f %%)\n",
                str_format_bytes(a, t->gpu_in_use), str_format_bytes(b, p->planned[TIER_DEVICE]),
                str_format_bytes(c, t->gpu_context), 100 * ((double)t->gpu_in_use / (double)expected - 1));
    }
    if (p->request.hardware && !p->cost.missing && t->step_ms > 0)
        fprintf(stderr, "time      %.4g ms per step measured, %.4g predicted (%+.0f %%) for %s\n", t->step_ms,
                1e3 * p->cost.step_s, 100 * (1e3 * p->cost.step_s / t->step_ms - 1), p->request.hardware->name);
    if (mesh_size(&p->request.mesh, AXIS_PIPELINE) > 1 && isfinite(t->idle))
        fprintf(stderr, "pipeline  this stage waited %.1f %% of forward and backward, %.1f planned\n", 100 * t->idle,
                100 * plan_bubble(&p->request));
    fprintf(stderr, "saved     %s  (param_hash %016llx)\n", run_dir, (unsigned long long)t->param_hash);
}

static void print_counts(const data_report *r) {
    char a[32], b[32];
    fprintf(stderr, ": %llu documents, %s tokens, %s of them trained on", (unsigned long long)r->n_documents,
            str_format_count(a, (double)r->n_tokens), str_format_count(b, (double)r->n_trained_tokens));
    if (r->chat != CHAT_AUTO) fprintf(stderr, ", chat %s", chat_format_name(r->chat));
}

/* What the rows do not show of the data: a zero here is a promise too. */
static void print_losses(const data_report *r) {
    fprintf(stderr, "; cut: %llu tokens go on in the next row, %llu records; dropped: %llu records, %llu tokens",
            (unsigned long long)r->n_cut_tokens, (unsigned long long)r->n_cut_documents,
            (unsigned long long)r->n_dropped_documents, (unsigned long long)r->n_dropped_tokens);
    fprintf(stderr, "; skipped: %llu lines", (unsigned long long)r->n_skipped);
    if (r->n_replaced) fprintf(stderr, "; not UTF-8, replaced: %llu places", (unsigned long long)r->n_replaced);
    if (r->n_cached == 0) fputs("; not from the cache", stderr);
    else if (r->n_cached == r->n_files) fputs("; from the cache", stderr);
    else
        fprintf(stderr, "; %llu of %llu files from the cache", (unsigned long long)r->n_cached,
                (unsigned long long)r->n_files);
}

static void print_data(const dataset *d, const config *c, double seconds) {
    data_report r;
    const char *path;
    double share;
    dataset_report(d, SPLIT_TRAIN, &r);
    fprintf(stderr, "data      %s, rows of %lld tokens", c->data.source, (long long)c->data.seq_len);
    if (r.rows_per_epoch) {
        print_counts(&r);
        fprintf(stderr, ", %llu rows per epoch, %.1f %% full", (unsigned long long)r.rows_per_epoch, 100 * r.fill);
        print_losses(&r);
        fprintf(stderr, ", read in %.1f s", seconds);
    } else {
        fputs(", endless", stderr);
    }
    if (isfinite(r.entropy_per_token)) fprintf(stderr, ", entropy %.4f nats per token", r.entropy_per_token);
    fputc('\n', stderr);
    if (r.n_files < 2) return;
    for (size_t i = 0; dataset_file_report(d, SPLIT_TRAIN, i, &path, &share, &r); i++) {
        fprintf(stderr, "          %4.1f %%  %s", 100 * share, path);
        print_counts(&r);
        print_losses(&r);
        fputc('\n', stderr);
    }
}

/* Every rank must mean the same run before the first message of a step. */
static status agree_on_settings(comm *ranks, const config *c) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) return ERR(ERR_RUN, "no memory for the settings");
    config_write_yaml(c, f, false);
    fclose(f);
    status rc = comm_agree(ranks, "settings", text);
    free(text);
    return rc;
}

/* Stages of a pipeline have programs of their own: a line for each, this rank's as it is here and the others' as the first rank
 * of theirs has it. */
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

/* One name for all: it may have the time in it. */
static status agree_on_dir(comm *ranks, const config *c, const train_request *r, char *dir, size_t n) {
    if (!ranks || comm_rank(ranks) == 0) TRY(choose_run_dir(c, r, dir, n));
    return ranks ? comm_broadcast(ranks, dir, n, 0) : OK;
}

static status run(command_line *o, job *j, const char *run_dir) {
    const config *c = &o->config;
    const train_request *r = &j->request;
    const plan *p = &j->plan;
    bool speaks = !r->comm || comm_rank(r->comm) == 0;
    status rc = OK;
    double peak = 0;
    listener l = {.c = c, .run_dir = run_dir};
    train_observer observer = {0};
    train_result result;
    rank_memory *all = NULL;
    if (speaks) {
        TRY(exec_measure_peak(r->backend, &(backend_options){r->n_threads, r->bind, r->gpu},
                              precision_compute(p->request.precision), &peak));
        track_options to = {.run_dir = run_dir,
                            .out = stderr,
                            .peak_flops = peak,
                            .memory_planned = p->planned[TIER_DEVICE],
                            .log_every = r->train.log_every};
        TRY(track_open(&l.t, &to));
        observer = (train_observer){&l, on_step, on_eval, on_example, on_message, on_start};
    }
    catch_signals();
    rc = train_run(r, p, j->data, &observer, &result);
    if (speaks) track_close(l.t);
    if (rc == OK) rc = gather_memory(r->comm, p, &result, &all);
    if (rc == OK && speaks) {
        print_summary(p, &result, run_dir);
        if (c->run.breakdown) print_breakdown(&result);
        if (o->json) print_json(o, p, r, &result, run_dir, all);
    }
    free(all);
    return rc;
}

static status train(command_line *o, comm **mesh) {
    const config *c = &o->config;
    comm *ranks = comm_size(*mesh) > 1 ? *mesh : NULL;
    status rc;
    job j;
    char run_dir[4096], trace[4096];
    if (ranks) TRY(agree_on_settings(ranks, c));
    TRY(job_init(&j, c, o->hardware));
    train_request *r = &j.request;
    r->trace_path = o->trace;
    if (o->trace && ranks && comm_rank(ranks) > 0) { /* each rank its own file */
        snprintf(trace, sizeof trace, "%s.rank-%d", o->trace, comm_rank(ranks));
        r->trace_path = trace;
    }
    TRY_GOTO(rc, request_use_comm(r, c, ranks), done);
    /* All choose by the same numbers. */
    if (ranks) TRY_GOTO(rc, comm_broadcast(ranks, &j.machine, sizeof j.machine, 0), done);
    TRY_GOTO(rc, job_open(&j), done);
    if (ranks) {
        TRY_GOTO(rc, ranks_use_mesh(mesh, o, &j.plan.request.mesh), done);
        r->comm = ranks = *mesh;
    }
    if (!ranks || comm_rank(ranks) == 0) plan_print(&j.plan, stderr);
    TRY_GOTO(rc, job_check(&j), done);
    if (ranks) TRY_GOTO(rc, agree_on_program(ranks, &j.plan), done);
    if (!ranks || comm_rank(ranks) == 0) print_data(j.data, c, j.read_seconds);
    TRY_GOTO(rc, agree_on_dir(ranks, c, r, run_dir, sizeof run_dir), done);
    TRY_GOTO(rc, job_use_dir(&j, run_dir), done);
    rc = run(o, &j, run_dir);
done:
    job_close(&j);
    return rc;
}

status command_train(command_line *o) {
    const config *c = &o->config;
    if (o->show_config) {
        config_write_yaml(c, stdout, true);
        return OK;
    }
    TRY(foreign_check_train(&o->foreign));
    if (ranks_wanted(o)) return ranks_launch(o);
    comm *ranks;
    status rc = ranks_open(&ranks, o);
    if (rc != OK) return rc; /* without a trail: it may have been said by another rank */
    rc = train(o, &ranks);
    return ranks_close(ranks, rc);
}
