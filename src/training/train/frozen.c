/* frozen.c - a frozen model's numbers for the training rows of a run: a forward-only program, its rows, its file.
 *
 * Every rank runs the whole model on rows of its own, with parameters on the host where the device has no room for them, and the
 * first rank writes. Which rows: those that the run will train on, each once; in later epochs they are found by their place
 * (dataset_place). The program has the micro-batch, the precision and the chunks of logits of the run, so a number has the
 * bits that the same model inside the run's program would give. */
#include "train/frozen.h"
#include "train/row_task.h"

#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

static const struct {
    numbers_words words;
    const char *file, *what;
} outputs[] = {
    [FROZEN_LOSSES] = {{"rho1.reference", "losses of a reference", "row"}, "reference.losses", "losses"},
    [FROZEN_VALUES] = {{"verifiable.critic", "values of a critic", "row"}, "critic_values", "values"},
};

/* ---- which rows ------------------------------------------------------------------------------------------------ */

static uint64_t rows_of_run(const train_request *r, const plan *p) {
    const plan_request *q = &p->request;
    return (uint64_t)r->train.steps *
           (uint64_t)(q->choice.micro_batch * q->choice.accumulation * mesh_size(&q->mesh, AXIS_DATA));
}

/* The rows of a run, each place once. */
typedef struct row_walk {
    const dataset *data;
    uint64_t next, end;
    uint8_t *seen; /* a bit per place; NULL: the source is endless, no row comes again */
} row_walk;

static void walk_begin(row_walk *w, const dataset *d, uint64_t n_rows) {
    data_report report;
    uint64_t n_places = dataset_n_places(d, SPLIT_TRAIN);
    dataset_report(d, SPLIT_TRAIN, &report);
    *w = (row_walk){.data = d, .end = n_places ? MIN(n_rows, report.rows_per_epoch) : n_rows};
    if (n_places) w->seen = mem_alloc((size_t)(n_places / 8 + 1));
}

static void walk_end(row_walk *w) { free(w->seen); }

static bool walk_next(row_walk *w, uint64_t *row) {
    while (w->next < w->end) {
        *row = w->next++;
        if (!w->seen) return true;
        uint64_t place = dataset_place(w->data, SPLIT_TRAIN, *row);
        uint8_t bit = (uint8_t)(1u << place % 8);
        if (w->seen[place / 8] & bit) continue;
        w->seen[place / 8] |= bit;
        return true;
    }
    return false;
}

/* Entries of the file: every place of the data, or every row of a run over an endless source. */
static uint64_t entries_of(uint64_t n_places, uint64_t n_rows) { return n_places ? n_places : n_rows; }

uint64_t frozen_disk_bytes(const train_request *r, const plan *p) {
    if (!r->frozen.dir) return 0;
    uint64_t n_rows = rows_of_run(r, p), n = r->data_rows ? MIN(n_rows, r->data_rows) : n_rows;
    return numbers_file_bytes(entries_of(r->data_rows, n_rows), n * (uint64_t)p->request.seq_len);
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static const char *file_path(const train_request *r, arena *memory) {
    return arena_format(memory, "%s/%s", r->run_dir, outputs[r->frozen.output].file);
}

/* model 0: any. An endless source has other rows with another seed; a file has the same in another order. */
static status file_identity(const train_request *r, const plan *p, const dataset *d, uint64_t model,
                            numbers_identity *out) {
    arena memory;
    uint64_t n_places = dataset_n_places(d, SPLIT_TRAIN), n = entries_of(n_places, rows_of_run(r, p));
    if (n > INT32_MAX)
        return ERR(ERR_INPUT, "%s: found %llu rows, expected at most %d, of each of which a file would keep numbers",
                   r->frozen.key, (unsigned long long)n, INT32_MAX);
    arena_init(&memory);
    const char *text = arena_format(&memory, "%s; %s in %s, seed %llu", row_identity(&r->data, d, &memory),
                                    outputs[r->frozen.output].what, precision_name(p->request.choice.precision),
                                    (unsigned long long)(n_places ? 0 : r->train.seed));
    *out = (numbers_identity){.data = XXH3_64bits(text, strlen(text)), .model = model, .n_entries = {n, 0}};
    arena_fini(&memory);
    return OK;
}

status frozen_file_open(numbers_file **out, const train_request *r, const plan *p, const dataset *d) {
    arena memory;
    numbers_identity id;
    TRY(file_identity(r, p, d, 0, &id));
    arena_init(&memory);
    status rc = numbers_file_open(out, file_path(r, &memory), &outputs[r->frozen.output].words, &id);
    arena_fini(&memory);
    return rc;
}

status frozen_file_row(const numbers_file *f, const dataset *d, uint64_t row, const int32_t *targets, int32_t *marks,
                       int64_t T, float *numbers) {
    int32_t place = (int32_t)dataset_place(d, SPLIT_TRAIN, row);
    numbers_file_marks(targets, T, marks);
    return numbers_file_read(f, SPLIT_TRAIN, marks, &place, T, numbers);
}

/* ---- the model ------------------------------------------------------------------------------------------------- */

typedef struct frozen_run {
    const frozen_job *job;
    model_source source;
    plan plan;
    exec *e;
    int n_ranks, rank;
    int64_t batch, T;
    /* one batch; rows: of every rank */
    int32_t *tokens, *targets, *doc_start, *marks;
    float *numbers, *others;
    uint64_t *rows;
} frozen_run;

static uint64_t buffer_bytes(int64_t batch, int64_t T, int n_ranks) {
    return (uint64_t)(batch * T) * (3 * sizeof(int32_t) + 2 * sizeof(float)) + (uint64_t)T * sizeof(int32_t) +
           (uint64_t)(batch * n_ranks) * sizeof(uint64_t);
}

/* What of the training's memory strategy a forward pass has. */
static plan_request request_of(const train_request *r, const plan *p, const model_source *s) {
    const plan_request *q = &p->request;
    int n_ranks = r->comm ? comm_size(r->comm) : 1;
    plan_request out = {.source = net_source_of(&s->config),
                        .lora = s->lora,
                        .base = s->trained_over.format,
                        .seq_len = q->seq_len,
                        .choice = {.precision = q->choice.precision,
                                   .micro_batch = q->choice.micro_batch,
                                   .accumulation = 1,
                                   .prefetch = q->choice.prefetch,
                                   .offload = {.params = q->choice.offload.params}},
                        .open = {.params = q->open.params},
                        .with_eval = true,
                        .no_training = true,
                        .logits_chunk_bytes = q->logits_chunk_bytes,
                        .target = q->target,
                        .device_limit = q->device_limit,
                        .host_limit = q->host_limit,
                        .together_limit = q->together_limit,
                        .may_nvme = q->may_nvme,
                        .hardware = q->hardware};
    uint64_t n_entries = entries_of(r->data_rows, rows_of_run(r, p));
    out.host_bytes = q->host_bytes + buffer_bytes(q->choice.micro_batch, q->seq_len, n_ranks) +
                     n_entries * sizeof(uint64_t) + r->data_rows / 8 + 1;
    return out;
}

static status check_model(const train_request *r, const model_config *c) {
    bool values = r->frozen.output == FROZEN_VALUES;
    if (values != (c->value_head != VALUE_HEAD_NONE))
        return ERR(ERR_INPUT, "%s: %s is %s, expected %s", r->frozen.key, r->frozen.dir,
                   values ? "a model that predicts tokens" : "a critic",
                   values ? "a critic, the run directory of train.task=critic" : "a model that predicts tokens");
    if (c->vocab == model_of(&r->plan.source)->vocab) return OK;
    return ERR(ERR_INPUT,
               "%s: %s has a vocabulary of %lld, the model one of %lld; both must read the same tokens: give a model "
               "with the same tokenizer",
               r->frozen.key, r->frozen.dir, (long long)c->vocab, (long long)model_of(&r->plan.source)->vocab);
}

static status check_room(const train_request *r, const plan *p) {
    char a[32], b[32];
    if (plan_fits(p)) return OK;
    return ERR(ERR_FIT,
               "%s: a forward pass of %s needs %s on the device and %s on the host, more than there is; set "
               "memory.offload.params=host to keep its parameters on the host, or a smaller train.micro_batch",
               r->frozen.key, r->frozen.dir, str_format_bytes(a, p->planned[TIER_DEVICE]),
               str_format_bytes(b, p->planned[TIER_HOST]));
}

/* Source and plan; a caller closes both after an error too. */
static status plan_model(const train_request *r, const plan *of_run, model_source *s, plan *p) {
    *p = (plan){0};
    TRY(model_source_open(s, r->frozen.dir, NULL, r->data.tokenizer ? r->data.tokenizer : "byte"));
    TRY(check_model(r, &s->config));
    plan_request q = request_of(r, of_run, s);
    return plan_choose(p, &q);
}

static void close_model(model_source *s, plan *p) {
    plan_close(p);
    if (s->dir[0]) model_source_close(s);
}

status frozen_check(const train_request *r, const plan *of_run) {
    model_source s;
    plan p;
    if (!r->frozen.dir) return OK;
    status rc = plan_model(r, of_run, &s, &p);
    if (rc == OK) rc = check_room(r, &p);
    close_model(&s, &p);
    return rc;
}

status frozen_plan_bytes(const train_request *r, const plan *of_run, uint64_t planned[TIER_COUNT]) {
    model_source s;
    plan p;
    status rc = plan_model(r, of_run, &s, &p);
    for (tier t = 0; t < TIER_COUNT; t++) planned[t] = rc == OK ? p.planned[t] : 0;
    close_model(&s, &p);
    return rc;
}

/* ---- computing ------------------------------------------------------------------------------------------------- */

/* Of one batch of rows, in f->numbers, at the place of each target. */
static status compute_batch(frozen_run *f, const uint64_t *rows) {
    const net *m = &f->plan.net;
    size_t n_bytes = (size_t)(f->batch * f->T) * sizeof(int32_t);
    for (int64_t b = 0; b < f->batch; b++)
        dataset_row(f->job->data, SPLIT_TRAIN, rows[b], f->tokens + b * f->T, f->targets + b * f->T,
                    f->doc_start + b * f->T);
    exec_write(f->e, m->tokens, 0, f->tokens, n_bytes);
    exec_write(f->e, m->targets, 0, f->targets, n_bytes);
    exec_write(f->e, m->doc_start, 0, f->doc_start, n_bytes);
    TRY(exec_run(f->e, SECTION_EVAL));
    bool values = f->job->request->frozen.output == FROZEN_VALUES;
    exec_read(f->e, values ? m->eval_values : m->eval_losses, 0, f->numbers, n_bytes);
    TRY(exec_check(f->e));
    for (int64_t at = 0; at < f->batch * f->T && values; at += f->T) /* in place: each value moves one place forward */
        critic_target_values(f->T, f->targets + at, f->numbers + at, f->numbers + at);
    return OK;
}

static status write_batch(frozen_run *f, numbers_writer *w, const uint64_t *rows, const float *numbers) {
    for (int64_t b = 0; b < f->batch; b++) {
        int32_t place = (int32_t)dataset_place(f->job->data, SPLIT_TRAIN, rows[b]);
        dataset_row(f->job->data, SPLIT_TRAIN, rows[b], f->tokens, f->targets, f->doc_start);
        numbers_file_marks(f->targets, f->T, f->marks);
        TRY(numbers_file_add(w, SPLIT_TRAIN, f->marks, &place, f->T, numbers + b * f->T));
    }
    return OK;
}

/* The next rows of all ranks; those behind the last one repeat it. False: there are none. */
static bool take_rows(frozen_run *f, row_walk *walk) {
    int64_t n = f->batch * f->n_ranks;
    if (!walk_next(walk, &f->rows[0])) return false;
    for (int64_t i = 1; i < n; i++)
        if (!walk_next(walk, &f->rows[i])) f->rows[i] = f->rows[i - 1];
    return true;
}

static status compute_rows(frozen_run *f, numbers_writer *w, uint64_t n_rows) {
    const frozen_job *j = f->job;
    comm *ranks = j->request->comm;
    size_t n_bytes = (size_t)(f->batch * f->T) * sizeof *f->numbers;
    status rc = OK;
    row_walk walk;
    walk_begin(&walk, j->data, rows_of_run(j->request, j->plan));
    for (uint64_t done = 0; take_rows(f, &walk); done += (uint64_t)(f->batch * f->n_ranks)) {
        TRY_GOTO(rc, j->pause(j->context, outputs[j->request->frozen.output].file, (int64_t)done, (int64_t)n_rows),
                 done);
        TRY_GOTO(rc, compute_batch(f, f->rows + f->rank * f->batch), done);
        for (int i = 0; i < f->n_ranks; i++) {
            float *numbers = i == f->rank ? f->numbers : f->others;
            if (f->n_ranks > 1) TRY_GOTO(rc, comm_broadcast(ranks, numbers, n_bytes, i), done);
            if (w) TRY_GOTO(rc, write_batch(f, w, f->rows + i * f->batch, numbers), done);
        }
    }
done:
    walk_end(&walk);
    return rc;
}

/* Visits the rows of the run; with a writer to count their targets for it, else to compare with a file. */
static status visit_rows(frozen_run *f, numbers_writer *w, const numbers_file *found, uint64_t *n_rows,
                         bool *is_whole) {
    const frozen_job *j = f->job;
    uint64_t row, length;
    status rc = OK;
    row_walk walk;
    *n_rows = 0;
    walk_begin(&walk, j->data, rows_of_run(j->request, j->plan));
    while (rc == OK && walk_next(&walk, &row)) {
        int32_t place = (int32_t)dataset_place(j->data, SPLIT_TRAIN, row);
        dataset_row(j->data, SPLIT_TRAIN, row, f->tokens, f->targets, f->doc_start);
        numbers_file_marks(f->targets, f->T, f->marks);
        ++*n_rows;
        if (w) numbers_file_count(w, SPLIT_TRAIN, f->marks, &place, f->T);
        if (!found) continue;
        uint64_t n = 0;
        for (int64_t t = 0; t < f->T; t++) n += f->marks[t] >= 0;
        rc = numbers_file_length(found, SPLIT_TRAIN, (uint64_t)place, &length);
        *is_whole &= rc == OK && length == n;
    }
    walk_end(&walk);
    return rc;
}

/* writes: is this the rank that does? */
static status compute_file(frozen_run *f, const char *path, const numbers_identity *id, bool writes) {
    const train_request *r = f->job->request;
    status rc = OK;
    numbers_writer *w = NULL;
    double begin = clock_s();
    uint64_t n_bytes, n_rows;
    char size[32];
    if (writes) TRY(numbers_file_create(&w, path, &outputs[r->frozen.output].words, id->n_entries));
    TRY_GOTO(rc, visit_rows(f, w, NULL, &n_rows, NULL), done);
    if (writes) TRY_GOTO(rc, numbers_file_lay_out(w), done);
    TRY_GOTO(rc, compute_rows(f, w, n_rows), done);
    if (!writes) goto done;
    TRY_GOTO(rc, numbers_file_commit(w, id, &n_bytes), done);
    train_say(f->job->observer, "%s of %s for %llu rows computed in %.1f s, %s in %s", outputs[r->frozen.output].what,
              r->frozen.dir, (unsigned long long)n_rows, clock_s() - begin, str_format_bytes(size, n_bytes), path);
done:
    numbers_writer_close(w);
    return rc;
}

/* Does the run's directory have the file already, with all rows of this run? A longer run needs more of them. */
static bool find_file(frozen_run *f, const char *path, const numbers_identity *id) {
    numbers_file *found;
    uint64_t n_rows;
    bool is_whole = true;
    if (access(path, F_OK) != 0) return false;
    status rc = numbers_file_open(&found, path, &outputs[f->job->request->frozen.output].words, id);
    if (rc == OK) {
        rc = visit_rows(f, NULL, found, &n_rows, &is_whole);
        numbers_file_close(found);
    }
    if (rc != OK) {
        error_clear();
        train_say(f->job->observer,
                  "%s: found numbers that are damaged, or of other data or another model; computed again", path);
    }
    return rc == OK && is_whole;
}

static status open_model(frozen_run *f) {
    const train_request *r = f->job->request;
    char a[32], b[32], c[32];
    TRY(plan_model(r, f->job->plan, &f->source, &f->plan));
    TRY(check_room(r, &f->plan));
    train_say(f->job->observer,
              "%s %s: its forward pass takes %s on the device and %s on the host, and is closed before training takes "
              "%s on the device",
              r->frozen.key, r->frozen.dir, str_format_bytes(a, f->plan.planned[TIER_DEVICE]),
              str_format_bytes(b, f->plan.planned[TIER_HOST]), str_format_bytes(c, f->job->plan->planned[TIER_DEVICE]));
    exec_options o = {.backend = r->backend,
                      .n_threads = r->n_threads,
                      .bind = r->bind,
                      .gpu = r->gpu,
                      .nvme_path = r->nvme_path ? r->nvme_path : r->run_dir};
    TRY(exec_open(&f->e, &f->plan.program, &o));
    return model_source_load(&f->source, f->e, &f->plan);
}

static void make_buffers(frozen_run *f) {
    size_t n = (size_t)(f->batch * f->T);
    f->tokens = mem_alloc(n * sizeof *f->tokens);
    f->targets = mem_alloc(n * sizeof *f->targets);
    f->doc_start = mem_alloc(n * sizeof *f->doc_start);
    f->marks = mem_alloc((size_t)f->T * sizeof *f->marks);
    f->numbers = mem_alloc(n * sizeof *f->numbers);
    f->others = mem_alloc(n * sizeof *f->others);
    f->rows = mem_alloc((size_t)(f->batch * f->n_ranks) * sizeof *f->rows);
}

static status prepare(frozen_run *f, arena *memory) {
    const frozen_job *j = f->job;
    comm *ranks = j->request->comm;
    bool first = f->rank == 0, is_there = false;
    numbers_identity id;
    TRY(open_model(f));
    make_buffers(f);
    uint64_t model = params_frozen_hash(f->e, &f->plan);
    TRY(exec_check(f->e));
    TRY(file_identity(j->request, j->plan, j->data, model, &id));
    const char *path = file_path(j->request, memory);
    if (first) is_there = find_file(f, path, &id);
    if (ranks) TRY(comm_broadcast(ranks, &is_there, sizeof is_there, 0));
    if (!is_there) TRY(compute_file(f, path, &id, first));
    return ranks ? comm_barrier(ranks) : OK; /* then all may open it */
}

status frozen_prepare(const frozen_job *j) {
    const train_request *r = j->request;
    if (!r->frozen.dir) return OK;
    if (!r->run_dir)
        return ERR(
            ERR_INPUT,
            "%s: found a run without a run directory, expected run.dir, where the %s of %s are kept; set run.dir",
            r->frozen.key, outputs[r->frozen.output].what, r->frozen.dir);
    const plan_request *q = &j->plan->request;
    frozen_run f = {.job = j,
                    .n_ranks = r->comm ? comm_size(r->comm) : 1,
                    .rank = r->comm ? comm_rank(r->comm) : 0,
                    .batch = q->choice.micro_batch,
                    .T = q->seq_len};
    arena memory;
    arena_init(&memory);
    status rc = prepare(&f, &memory);
    exec_close(f.e);
    close_model(&f.source, &f.plan);
    free(f.tokens), free(f.targets), free(f.doc_start), free(f.marks);
    free(f.numbers), free(f.others), free(f.rows);
    arena_fini(&memory);
    return rc;
}
