/* job.c - from settings to a training job that is ready to run: request, data, plan, run directory.
 *
 * `ralo train` and the public API use the same functions. Nothing is written before job_use_dir, which comes last. */
#include "settings/settings.h"
#include "show/show.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

status job_init(job *j, const config *c, const char *hardware) {
    *j = (job){.asked_dir = c->run.dir ? c->run.dir : "", .names_data = config_was_given(c, "data.source")};
    TRY(request_from_config(c, &j->request));
    if (!j->request.backend) TRY(backend_choose(c->run.device, j->request.gpu.index, &j->request.backend));
    if (backend_kind(j->request.backend) == DEVICE_CPU) config_warn_no_effect_on_cpu(c);
    TRY(machine_describe(hardware, &j->request, NULL, &j->machine));
    j->request.plan.hardware = &j->machine;
    return OK;
}

status job_use_ranks(job *j, const config *c, const char *hardware, comm *ranks) {
    TRY(request_use_comm(&j->request, c, ranks));
    node_ranks here = {comm_node_size(ranks), comm_cores(ranks)};
    if (!j->request.backend->discrete) TRY(machine_describe(hardware, &j->request, &here, &j->machine));
    return comm_broadcast(ranks, &j->machine, sizeof j->machine, 0);
}

/* All ranks must choose the same plan, but each sees its own machine: the first chooses for all, with the largest
 * host memory that any of them needs beside the plan. (Limits are the smallest of all ranks since request_use_comm.)
 * Pipeline stages differ, and nothing that they must agree on is left open. */
static status plan_together(job *j, comm *ranks) {
    plan_request *r = &j->request.plan;
    if (!plan_is_open(r) || mesh_size(&r->mesh, AXIS_PIPELINE) > 1) return plan_choose(&j->plan, r);
    TRY(comm_most(ranks, &r->host_bytes));
    bool first = comm_rank(ranks) == 0;
    step_choice chosen = {0};
    if (first) {
        TRY(plan_choose(&j->plan, r));
        chosen = j->plan.request.choice;
    }
    TRY(comm_broadcast(ranks, &chosen, sizeof chosen, 0));
    if (first) return OK;
    if (r->choice.recompute.kind != RECOMPUTE_AUTO)
        chosen.recompute = r->choice.recompute; /* its names point into the first rank's memory */
    plan_request one = plan_request_of(r, &chosen);
    TRY(plan_build(&j->plan, &one));
    plan_remember(&j->plan, r); /* every rank reports a plan that does not fit in the same way */
    return OK;
}

static status make_plan(job *j) {
    if (j->request.comm) return plan_together(j, j->request.comm);
    return plan_choose(&j->plan, &j->request.plan);
}

/* ---- the split of a resumed run ------------------------------------------------------------------------------------ */

/* A step's rows as micro-batches: another split adds the same numbers in another order, and ends with other bits. */
typedef struct split_of_rows {
    int64_t micro_batch, accumulation; /* 0: not known */
    int64_t placed;                    /* 1 and the layers on the host's cores, which round otherwise; 0: not known */
} split_of_rows;

/* Of the checkpoint that will be resumed. What is wrong with one is reported when it is loaded. */
static split_of_rows read_saved_split(const job *j) {
    const char *resume = j->request.resume;
    char found[4096] = "";
    train_state s;
    if (!resume) return (split_of_rows){0};
    const char *from = strcmp(resume, "auto") == 0 ? j->asked_dir : resume;
    status rc = checkpoint_find_newest_quietly(from, found, sizeof found);
    if (rc == OK) rc = checkpoint_read_state(found[0] ? found : from, &s);
    if (rc == OK) return (split_of_rows){s.micro_batch, s.accumulation, s.placed};
    error_clear();
    return (split_of_rows){0};
}

/* The same on all ranks, of which perhaps only the first sees the directory. */
static status find_saved_split(const job *j, split_of_rows *out) {
    comm *ranks = j->request.comm;
    *out = (split_of_rows){0};
    if (!ranks || comm_rank(ranks) == 0) *out = read_saved_split(j);
    return ranks ? comm_broadcast(ranks, out, sizeof *out, 0) : OK;
}

static void warn_of_other_split(const job *j, const split_of_rows *saved, bool had_no_room) {
    const step_choice *now = &j->plan.request.choice;
    if (!saved->micro_batch || saved->micro_batch == now->micro_batch) return;
    if (j->request.comm && comm_rank(j->request.comm) > 0) return;
    char advice[128] = "";
    if (had_no_room) snprintf(advice, sizeof advice, "what it had does not fit here");
    else if (j->request.plan.step_rows)
        snprintf(advice, sizeof advice, "--set train.micro_batch=%lld keeps it", (long long)saved->micro_batch);
    else
        snprintf(advice, sizeof advice, "--set train.micro_batch=%lld --set train.accumulation=%lld keep it",
                 (long long)saved->micro_batch, (long long)saved->accumulation);
    log_warn(
        "the checkpoint was trained with micro-batch %lld, accumulation %lld, and continues with micro-batch %lld, "
        "accumulation %lld: sums are added in another order, and the result has other last bits; %s",
        (long long)saved->micro_batch, (long long)saved->accumulation, (long long)now->micro_batch,
        (long long)now->accumulation, advice);
}

static void warn_of_other_place(const job *j, const split_of_rows *saved) {
    int64_t now = 1 + j->plan.request.choice.cpu_layers;
    if (!j->request.plan.open.place || !saved->placed || saved->placed == now) return;
    log_warn("the checkpoint was trained with the last %lld layers on cpu, which does not fit here, and continues with "
             "%lld: cores "
             "and GPU add in another order, and the result has other last bits",
             (long long)saved->placed - 1, (long long)now - 1);
}

/* train.micro_batch and memory.place auto: a resumed run keeps the micro-batch and the layers on the host's cores that it began with,
 * whatever memory is free now. Only if no plan with them fits, they are chosen anew, with a warning. */
static status plan_resumed(job *j) {
    plan_request *r = &j->request.plan;
    const plan_request asked = *r;
    split_of_rows saved;
    TRY(find_saved_split(j, &saved));
    int64_t rows = asked.choice.micro_batch * asked.choice.accumulation;
    bool is_kept = asked.open.micro_batch && saved.micro_batch && rows % saved.micro_batch == 0, has_no_room = false;
    bool stays = asked.open.place && saved.placed && saved.placed - 1 <= asked.source.n_layers;
    if (is_kept) {
        r->open.micro_batch = r->left_open.micro_batch = false;
        r->choice.micro_batch = saved.micro_batch;
        r->choice.accumulation = rows / saved.micro_batch;
    }
    if (stays) {
        r->open.place = r->left_open.place = false;
        r->choice.cpu_layers = saved.placed - 1;
    }
    TRY(make_plan(j));
    if (is_kept || stays) {
        has_no_room = !plan_fits(&j->plan);
        if (j->request.comm) TRY(comm_any(j->request.comm, has_no_room, &has_no_room));
    }
    if (has_no_room) {
        plan_close(&j->plan);
        r->open = asked.open;
        r->left_open = asked.left_open;
        r->choice = asked.choice;
        TRY(make_plan(j));
    }
    warn_of_other_split(j, &saved, has_no_room);
    if (has_no_room) warn_of_other_place(j, &saved);
    return OK;
}

void job_keep_choice(const job *j, config *c) {
    const plan_request *p = &j->plan.request;
    if ((int)c->choice.precision < 0) c->choice.precision = p->choice.precision;
    if (c->train.micro_batch >= 0) return;
    c->train.micro_batch = p->choice.micro_batch;
    c->train.batch = p->choice.micro_batch * p->choice.accumulation * mesh_size(&p->mesh, AXIS_DATA);
    c->train.accumulation = 0; /* what the two leave on each rank, however many ranks go on */
}

void job_close(job *j) {
    if (j->data) dataset_close(j->data);
    plan_close(&j->plan);
    *j = (job){0};
}

/* What the tokenizer of the data and the vocabulary of the model have to do with each other. */
typedef struct vocabularies {
    long long tokens, rows;
    const char *name;
    bool are_bytes; /* of built-in data, for weights that know the tokens of a tokenizer */
} vocabularies;

static vocabularies vocabularies_of(const job *j) {
    const train_request *r = &j->request;
    vocabularies v = {.tokens = tokenizer_vocab(dataset_tokenizer(j->data)),
                      .rows = model_of(&r->plan.source)->vocab,
                      .name = r->data.tokenizer ? r->data.tokenizer : "byte"};
    v.are_bytes = r->pretrained && str_starts_with(r->data.source, "builtin:") && v.tokens < v.rows;
    /* It draws from the model's own vocabulary. */
    return strcmp(r->data.source, "builtin:random") == 0 ? (vocabularies){0} : v;
}

/* A tokenizer of another model gives ids without an embedding. */
static status check_vocabulary(const job *j) {
    const train_request *r = &j->request;
    vocabularies v = vocabularies_of(j);
    if (v.tokens > v.rows)
        return ERR(
            ERR_INPUT,
            "data.tokenizer %s has %lld tokens, model %s has a vocabulary of %lld, expected at least as many: is "
            "it the tokenizer of another model? Set data.tokenizer to the model's own, or model.vocab=%lld for a "
            "model that is not pretrained",
            v.name, v.tokens, model_of(&r->plan.source)->name, v.rows, v.tokens);
    if (v.are_bytes && !j->names_data && !r->resume)
        return ERR(
            ERR_INPUT,
            "data.source: found nothing to train the pretrained %s on; give --data FILE, or --set data.source=%s if "
            "it is the built-in problems that it should learn",
            model_of(&r->plan.source)->name, r->data.source);
    return OK;
}

/* ... or trains only a part of the embeddings. */
static void warn_of_vocabulary(const job *j) {
    const train_request *r = &j->request;
    vocabularies v = vocabularies_of(j);
    if (v.are_bytes)
        log_warn("data.source %s yields bytes, and the weights of %s need their own tokenizer; set data.source to text "
                 "or JSON Lines",
                 r->data.source, model_of(&r->plan.source)->name);
    else if (v.tokens < v.rows / 2)
        log_warn("data.tokenizer %s has %lld tokens, model %s has a vocabulary of %lld: the other entries are never "
                 "trained; "
                 "set data.tokenizer to the model's own, or model.vocab=%lld for a model that is not pretrained",
                 v.name, v.tokens, model_of(&r->plan.source)->name, v.rows, v.tokens);
}

void note_say(const plan *p) {
    strbuf note;
    strbuf_init(&note);
    plan_note(p, &note);
    if (note.length > 0) log_warn("%s", note.text);
    strbuf_fini(&note);
}

/* A preset has the name of a model and the sizes, and none of what that model has learned. */
void weights_describe(const config *c, const train_request *r, strbuf *out) {
    bool is_asked = config_was_given(c, "model.preset") || !str_starts_with(c->data.source, "builtin:");
    if (!is_asked || r->pretrained || r->resume || r->adapter) return;
    strbuf_printf(
        out,
        "weights   random: %s; set model.path to a Hugging Face directory, or a name of the hub, to begin from a "
        "pretrained model",
        *c->model.path ? "model.init=random" : "a preset has the sizes of a model and no weights");
}

/* Its size is part of the plan's host memory. */
static void warn_of_missing_data(const data_options *o) {
    strbuf missing;
    strbuf_init(&missing);
    data_list_missing(o, &missing);
    if (missing.length > 0) log_warn("data.source: found no file %s; planned without it", missing.text);
    strbuf_fini(&missing);
}

/* A new run does not mix with an earlier one. */
static status check_no_earlier_run(const job *j, const char *dir) {
    char newest[4096];
    struct stat st;
    bool there = stat(dir, &st) == 0;
    if (there && !S_ISDIR(st.st_mode))
        return ERR(
            ERR_INPUT,
            "run.dir: found the file %s, expected a directory, or a name that is not taken; choose another run.dir",
            dir);
    if (!there && errno != ENOENT)
        return ERR(
            ERR_INPUT,
            "run.dir: found '%.300s' (%s), expected a directory that is there or can be made; choose another run.dir",
            dir, strerror(errno));
    bool is_first = !j->request.comm || comm_rank(j->request.comm) == 0;
    if (!there && is_first && export_check_place("run.dir", dir) != OK) {
        error_record why;
        error_take(&why);
        return ERR(ERR_INPUT, "%s; choose another run.dir (--out DIR)", why.message);
    }
    TRY(checkpoint_find_newest_quietly(dir, newest, sizeof newest));
    if (!newest[0] || j->request.resume) return OK;
    if (j->is_plan) { /* the question may be about the next run of the same file */
        log_warn("run.dir %s already holds a checkpoint (%s); ralo train continues it with --resume auto, and needs "
                 "another run.dir for a new run",
                 dir, newest);
        return OK;
    }
    return ERR(ERR_INPUT,
               "run.dir %s already holds a checkpoint (%s); continue it with --resume auto or choose another run.dir",
               dir, newest);
}

/* Is there a checkpoint to go on from? The same on all ranks, of which perhaps only the first sees it. */
static status goes_on(const job *j, bool *out) {
    comm *ranks = j->request.comm;
    char found[4096] = "";
    *out = j->request.resume && strcmp(j->request.resume, "auto") != 0;
    if (!j->request.resume || *out) return OK;
    if (!ranks || comm_rank(ranks) == 0) TRY(checkpoint_find_newest_quietly(j->asked_dir, found, sizeof found));
    *out = found[0] != 0;
    return ranks ? comm_broadcast(ranks, out, sizeof *out, 0) : OK;
}

/* A run that began with rows too short for its records goes on: its position counts them. */
static status check_lengths(const job *j) {
    data_survey s;
    bool is_resumed;
    TRY(goes_on(j, &is_resumed));
    if (is_resumed || j->request.data.allow_cut) return OK;
    dataset_survey(j->data, &s);
    return data_survey_check(&s, j->request.data.source, model_of(&j->request.plan.source)->max_positions);
}

/* `ralo train RUN` of a run that is done finds the export that it made: nothing is trained, and nothing is exported again. */
static status forget_old_export(job *j) {
    train_request *r = &j->request;
    bool is_old = false;
    int64_t step;
    char found[4096] = "";
    if (!r->export_dir || !r->resume) return OK;
    const char *from = strcmp(r->resume, "auto") == 0 ? j->asked_dir : r->resume;
    if (!r->comm || comm_rank(r->comm) == 0) {
        TRY(checkpoint_find_newest_quietly(from, found, sizeof found));
        is_old =
            found[0] && checkpoint_step_of(found, &step) && step >= r->train.steps && access(r->export_dir, F_OK) == 0;
        if (is_old)
            log_warn("run.export: %s is there, and the run was done before; it is not exported again", r->export_dir);
    }
    if (r->comm) TRY(comm_broadcast(r->comm, &is_old, sizeof is_old, 0));
    if (is_old) r->export_dir = NULL;
    return OK;
}

/* Nothing of a long run is kept before its end, unless it is asked for: Ctrl-C saves, a crash does not. */
static void warn_if_unsaved(const job *j) {
    enum { LONG_S = 1800, EVERY_S = 600 };
    const train_options *t = &j->request.train;
    const cost *c = &j->plan.cost;
    char run[32];
    if (!j->plan.request.hardware || c->missing || t->save_every || j->request.no_last_checkpoint) return;
    double run_s = (double)t->steps * c->step_s;
    if (!(run_s > LONG_S)) return;
    int64_t every = MAX((int64_t)(EVERY_S / c->step_s), (int64_t)1), digit = 1;
    while (every >= 10 * digit) digit *= 10;
    log_warn("the run takes about %s and is saved at its end only: a crash would cost all of it; train.save_every=%lld "
             "saves about every ten minutes",
             str_format_duration(run, run_s), (long long)(every / digit * digit));
}

/* `ralo plan` does not ask: the drive may be another machine's. */
static status check_nvme(const job *j) {
    const char *dir = j->request.nvme_path;
    struct stat st;
    if (j->is_plan || !dir || !offload_on_nvme(&j->request.plan.choice.offload)) return OK;
    int why = stat(dir, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    return why ? ERR(ERR_INPUT, "memory.nvme_path %s: %s", dir, strerror(why)) : OK;
}

/* What needs no data and no plan, and takes no time. The run directory comes first: its other files follow from it. */
static status check_places(job *j) {
    TRY(forget_old_export(j));
    if (*j->asked_dir) TRY(check_no_earlier_run(j, j->asked_dir));
    TRY(check_nvme(j));
    return train_check_places(&j->request);
}

static status check_data(const job *j) {
    TRY(check_lengths(j));
    return check_vocabulary(j);
}

status job_open(job *j) {
    TRY(check_places(j));
    TRY(dataset_open(&j->data, &j->request.data));
    TRY(check_data(j)); /* before the plan: other rows are another one */
    j->request.plan.host_bytes += dataset_host_bytes(j->data);
    j->request.data_rows = dataset_n_places(j->data, SPLIT_TRAIN);
    TRY(j->request.resume ? plan_resumed(j) : make_plan(j));
    return train_check(&j->request, &j->plan);
}

status plan_check_input(const train_request *r, const config *c) {
    job j = {.request = *r,
             .asked_dir = c->run.dir ? c->run.dir : "",
             .names_data = config_was_given(c, "data.source"),
             .is_plan = true};
    warn_of_missing_data(&r->data);
    TRY(check_places(&j));
    if (!j.names_data || !config_reads_data(c, &r->data)) return OK;
    TRY(dataset_open(&j.data, &r->data));
    status rc = check_data(&j);
    dataset_close(j.data);
    return rc;
}

status plan_check_weights(const train_request *r, const plan *p) {
    return r->pretrained && weights_are_in(r->model_dir) ? train_check_weights(r, p) : OK;
}

status job_check(job *j) {
    TRY(plan_check_fit(&j->plan));
    warn_of_vocabulary(j);
    if (j->request.comm && comm_rank(j->request.comm) > 0) return OK;
    note_say(&j->plan);
    warn_if_unsaved(j);
    return OK;
}

status job_use_dir(job *j, const char *dir) {
    TRY(check_no_earlier_run(j, dir));
    TRY(train_check_disk(&j->request, &j->plan, dir));
    TRY(dir_make(dir));
    j->request.run_dir = dir;
    return OK;
}

status config_save(const config *c, const char *run_dir) {
    char path[4200];
    memstream text;
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    config_write_yaml(c, memstream_open(&text), false);
    char *yaml = memstream_take(&text);
    status rc = file_replace(path, yaml, text.n_bytes); /* a name that ralo made: if it exists, choose another */
    free(yaml);
    return rc;
}
