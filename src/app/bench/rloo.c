/* rloo.c - plan every case and run those that fit: one rollout and one update each, with a trace.
 *
 * The experiment is that of a published comparison: one prompt of 3,012 tokens and completions of 100 by a tiny Qwen3 whose
 * vocabulary of 151,669 makes its logits large. Prompts are bytes, so a model without any training and without a tokenizer will do.
 * What the three ways have in common is written once, so that they differ in nothing else. */
#include "bench/rloo.h"
#include "data/prompts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const int64_t rloo_ks[RLOO_KS] = {2, 4, 8, 16};

/* seed: of the first two completions one has an ASCII byte among its tokens, which is rewarded. Without a difference in rewards the
 * gradient would be 0, and its norm no proof that all ways make the same update. */
static const rloo_scale scales[BENCH_SCALE_COUNT] = {
    [BENCH_FULL] = {"full", 3012, 1024, 100, 0, "64M", 1},
    [BENCH_SMALL] = {"small", 150, 51, 5, 8192, "2M", 9},
};

const char *rloo_mode_name(rloo_mode m) {
    static const char *const names[RLOO_MODE_COUNT] = {"base", "cut", "ours"};
    return names[m];
}

const rloo_cell *rloo_find(const rloo_result *r, rloo_mode mode, int64_t k) {
    for (size_t i = 0; i < r->n_cells; i++)
        if (r->cells[i].mode == mode && r->cells[i].k == k) return &r->cells[i];
    return NULL;
}

double rloo_saving(const rloo_cell *base, const rloo_cell *c) {
    return base && c ? 1 - (double)c->planned / (double)base->planned : NAN;
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static status set(config *c, const char *assignment) { return config_set(c, assignment, "bench"); }

static status set_all(config *c, const char *const *list) {
    for (; *list; list++) TRY(set(c, *list));
    return OK;
}

/* Of one way alone. */
static status set_mode(config *c, const rloo_scale *s, rloo_cell *x) {
    char chunk[64];
    snprintf(chunk, sizeof chunk, "memory.logits_chunk=%s", s->logits_chunk);
    const char *const base[] = {"rl.baseline_memory=true", NULL};
    const char *const ours[] = {"memory.strategy=manual", "train.micro_batch=1", chunk, "rl.sequences=8", NULL};
    const char *const *list = x->mode == RLOO_OURS ? ours : base;
    x->settings = json_array();
    for (const char *const *i = list; *i; i++) json_array_append_new(x->settings, json_string(*i));
    return set_all(c, list);
}

static status set_number(config *c, const char *key, int64_t value) {
    char text[96];
    snprintf(text, sizeof text, "%s=%lld", key, (long long)value);
    return set(c, text);
}

static status make_config(config *c, const bench_options *o, const rloo_scale *s, rloo_cell *x, const char *prompts) {
    static const char *const devices[] = {[DEVICE_CPU] = "run.device=cpu", [DEVICE_CUDA] = "run.device=cuda"};
    static const char *const common[] = {"model.preset=tiny-qwen3",
                                         "train.task=rloo",
                                         "train.steps=1",
                                         "train.eval_rows=0",
                                         "train.lr=1e-4",
                                         "train.warmup=0",
                                         "rl.loss=rloo",
                                         "rl.prompts=1",
                                         "data.tokenizer=byte",
                                         "data.chat=none",
                                         "data.eval_fraction=0",
                                         "reward.list=regex",
                                         "reward.pattern=[\\x00-\\x7f]",
                                         NULL};
    char source[160];
    snprintf(source, sizeof source, "data.source=%s", prompts);
    TRY(set_all(c, common));
    TRY(set(c, source));
    if (s->vocab) TRY(set_number(c, "model.vocab", s->vocab));
    TRY(set_number(c, "train.seed", (int64_t)s->seed));
    TRY(set_number(c, "rl.k", x->k));
    TRY(set_number(c, "rl.max_completion", s->completion));
    TRY(set_number(c, "data.seq_len", x->prompt + s->completion));
    if ((int)o->device >= 0) TRY(set(c, devices[o->device]));
    if (o->device_limit) TRY(set_number(c, "memory.device", (int64_t)o->device_limit));
    if (o->gpu) TRY(set_number(c, "run.gpu", o->gpu));
    if (o->n_threads) TRY(set_number(c, "run.threads", o->n_threads));
    TRY(set_mode(c, s, x));
    TRY(config_check(c));
    config_resolve(c);
    return OK;
}

/* Letters and spaces: as many bytes, and so tokens, as asked. */
static status write_prompt(const char *path, int64_t n) {
    strbuf text;
    strbuf_init(&text);
    strbuf_add(&text, "{\"prompt\": \"");
    uint64_t key = rng_key(0, "bench.rloo.prompt");
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = rng_u64(key, (uint64_t)i) % 32;
        strbuf_add_bytes(&text, &(char){x < 26 ? (char)('a' + x) : ' '}, 1);
    }
    strbuf_add(&text, "\"}\n");
    status rc = file_write_whole(path, text.text, text.length);
    strbuf_fini(&text);
    return rc;
}

/* ---- one case ---------------------------------------------------------------------------------------------------- */

static void watch(void *context, const train_step_report *r) {
    rloo_cell *x = context;
    const struct {
        const char *name;
        double *to;
    } wanted[] = {{"reward", &x->reward},
                  {"time/rollout", &x->rollout_s},
                  {"time/update", &x->update_s},
                  {"completions/mean_length", &x->length}};
    x->step_s = 1e-3 * r->step_ms;
    x->grad_norm = r->grad_norm;
    for (int i = 0; i < r->metrics.n; i++)
        for (size_t k = 0; k < ARRAY_LENGTH(wanted); k++)
            if (strcmp(r->metrics.list[i].row->name, wanted[k].name) == 0) *wanted[k].to = r->metrics.list[i].value;
}

static void note_plan(rloo_cell *x, const plan *p) {
    const plan_request *r = &p->request;
    x->fits = plan_fits(p);
    x->planned = p->planned[TIER_DEVICE];
    x->host_planned = p->planned[TIER_HOST];
    x->limit = r->device_limit && !(r->together_limit && r->together_limit < r->device_limit) ? r->device_limit
                                                                                              : r->together_limit;
    x->rollout_bytes = plan_rollout_bytes(p, true);
    x->update_bytes = plan_rollout_bytes(p, false);
    x->sequences = r->generation.slots;
    x->waves = divide_up(r->rollout, r->generation.slots);
    snprintf(x->peak_section, sizeof x->peak_section, "%s", section_name(p->program.ops[p->peak_op].section));
}

static status run_planned(rloo_cell *x, job *j, const char *trace) {
    train_result result;
    train_observer o = {.context = x, .on_step = watch};
    j->request.trace_path = trace;
    sys_rss_peak_reset();
    TRY(train_run(&j->request, &j->plan, j->data, &o, &result));
    x->peak = result.memory.peak[TIER_DEVICE];
    x->host_peak = result.host_peak + result.memory.peak[TIER_HOST];
    x->rss_peak = result.rss_peak;
    x->gpu_in_use = result.gpu_in_use;
    return memory_line_read(&x->line, &j->plan, trace);
}

/* The machine, in words, of the first case. */
static void note_machine(rloo_result *r, const job *j) {
    const train_request *q = &j->request;
    if (*r->machine) return;
    snprintf(r->machine, sizeof r->machine, "%s", j->machine.name);
    r->n_threads = q->n_threads;
    r->model = *model_of(&q->plan.source);
}

static status run_cell(rloo_result *r, rloo_cell *x, const bench_options *o, const char *dir) {
    status rc;
    config c;
    job j = {0};
    char prompts[96], trace[96];
    snprintf(prompts, sizeof prompts, "%s/prompt.jsonl", dir);
    snprintf(trace, sizeof trace, "%s/trace.json", dir);
    config_init(&c);
    x->step_s = x->rollout_s = x->update_s = x->grad_norm = x->reward = x->length = NAN;
    TRY_GOTO(rc, write_prompt(prompts, x->prompt), done);
    TRY_GOTO(rc, make_config(&c, o, r->scale, x, prompts), done);
    TRY_GOTO(rc, job_init(&j, &c, NULL), done);
    TRY_GOTO(rc, job_open(&j), done);
    note_machine(r, &j);
    note_plan(x, &j.plan);
    prompts_report found;
    prompts_report_get(dataset_prompts(j.data), &found);
    x->prompt = (int64_t)found.longest; /* as it was read, not as it was meant */
    if (x->fits) rc = run_planned(x, &j, trace);
done:
    job_close(&j);
    config_fini(&c);
    return rc;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

/* Ours first: a machine that stops at the large ones has shown the others. The cut prompts were published up to k = 8. */
static void list_cells(rloo_result *r) {
    static const rloo_mode order[] = {RLOO_OURS, RLOO_CUT, RLOO_BASE};
    for (size_t m = 0; m < ARRAY_LENGTH(order); m++)
        for (size_t i = 0; i < RLOO_KS; i++)
            if (order[m] != RLOO_CUT || rloo_ks[i] <= 8)
                r->cells[r->n_cells++] = (rloo_cell){.mode = order[m],
                                                     .k = rloo_ks[i],
                                                     .prompt = order[m] == RLOO_CUT ? r->scale->cut : r->scale->prompt};
}

static void say(const rloo_cell *x, size_t number, size_t n, FILE *out) {
    char a[32], b[32];
    if (!out) return;
    fprintf(out, "%2zu of %zu  %-4s  k = %-2lld  planned %s, ", number, n, rloo_mode_name(x->mode), (long long)x->k,
            str_format_bytes(a, x->planned));
    if (x->fits)
        fprintf(out, "measured %s, step %.1f s (rollout %.1f s, update %.1f s)\n", str_format_bytes(b, x->peak),
                x->step_s, x->rollout_s, x->update_s);
    else fprintf(out, "does not fit: there are %s\n", str_format_bytes(b, x->limit));
    fflush(out);
}

static status run_cells(rloo_result *r, const bench_options *o, const char *dir) {
    for (size_t i = 0; i < r->n_cells; i++) {
        status rc = run_cell(r, &r->cells[i], o, dir);
        if (rc == ERR_INTERRUPTED) error_clear();
        if (bench_is_interrupted() || rc == ERR_INTERRUPTED)
            return ERR(ERR_INTERRUPTED, "interrupted after %zu of %zu cases; nothing was written", i, r->n_cells);
        if (rc != OK) return rc;
        say(&r->cells[i], i + 1, r->n_cells, o->progress);
    }
    return OK;
}

static status write_result(const rloo_result *r, const json_t *result, const char *dir) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, rloo_files[0]);
    TRY(json_write_file(path, result));
    return rloo_write_charts(r, dir);
}

enum { FOLDER_BYTES = 1024 };

/* A folder for prompts and traces; both are gone at the end. In TMPDIR, unless its name holds what data.source reads as a list. */
static status make_folder(char path[FOLDER_BYTES]) {
    const char *parent = temporary_directory();
    bool usable = strlen(parent) < FOLDER_BYTES / 2 && !strpbrk(parent, ",:\\");
    snprintf(path, FOLDER_BYTES, "%s/ralo-bench-XXXXXX", usable ? parent : P_tmpdir);
    return mkdtemp(path) ? OK : ERR(ERR_IO, "make a directory like %s: %s", path, strerror(errno));
}

/* A folder that stays is no reason to lose a result, or the error before it. */
static status remove_folder(const char *path, status rc) {
    error_record why;
    if (rc != OK) error_take(&why);
    if (dir_remove_all(path) != OK) error_clear();
    return rc == OK ? OK : error_give(&why);
}

status bench_rloo(const bench_options *o, json_t **out) {
    status rc;
    char folder[FOLDER_BYTES];
    rloo_result *r = mem_alloc(sizeof *r);
    r->scale = &scales[o->scale];
    *out = NULL;
    list_cells(r);
    if (o->out) TRY_GOTO(rc, dir_make(o->out), done); /* before minutes of work */
    TRY_GOTO(rc, make_folder(folder), done);
    rc = run_cells(r, o, folder);
    if (rc == OK) *out = rloo_json(r, o);
    if (rc == OK && o->out) rc = write_result(r, *out, o->out);
    if (rc == OK && o->report) rloo_print(r, o->report);
    rc = remove_folder(folder, rc);
done:
    for (size_t i = 0; i < r->n_cells; i++) {
        memory_line_fini(&r->cells[i].line);
        json_decref(r->cells[i].settings);
    }
    free(r);
    return rc;
}
