/* task_preference.c - learn from pairs of responses, or from single ones that are good or bad: dpo, ipo, orpo, simpo, kto.
 *
 * The program computes the loss of whole examples (PREFERENCE) and leaves its sums; this file hands it rows of whole examples,
 * and turns sums into the metrics that TRL has. Held-out examples are judged on the host, by the same formulas, from the losses
 * of their tokens. */
#include "train/batch.h"
#include "train/reference.h"
#include "train/numbers_file.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert((int)PART_CHOSEN == (int)PREFERENCE_CHOSEN && (int)PART_REJECTED == (int)PREFERENCE_REJECTED &&
                   (int)PART_MISMATCHED == (int)PREFERENCE_OTHER && (int)PART_STRIDE == (int)PREFERENCE_PARTS,
               "data and program number the parts of an example alike");

typedef struct preference {
    task_host host;
    loader *rows;            /* NULL: not begun */
    uint64_t reference_hash; /* of the frozen copy, or of the model that the file is of; 0: there is neither */
    numbers_file *file;      /* preference.reference disk; NULL before the run begins */
    /* one micro-batch, for evaluation and for the search for a fault */
    int32_t *tokens, *targets, *doc_start, *segments, *examples;
    int32_t *shared, *positions,
        *spans; /* prompts in a row once, else NULL: of the rows, and what the program reads of it */
    float *losses, *reference;
    preference_part *parts; /* of every row */
    int64_t *n_examples;    /* of every row */
    /* kto over several micro-batches or data ranks */
    int64_t micro;               /* the next one of the step */
    preference_gains *all_gains; /* of one micro-batch of every rank */
} preference;

enum {
    CHOSEN,
    REJECTED,
    MARGINS,
    ACCURACIES,
    LOGPS_CHOSEN,
    LOGPS_REJECTED,
    KL,
    VAL_ACCURACIES,
    VAL_MARGINS,
    N_METRICS
};
static const task_metric metrics[N_METRICS] = {
    [CHOSEN] = {"rewards/chosen", NULL, "mean reward of chosen (kto: desirable) responses"},
    [REJECTED] = {"rewards/rejected", NULL, "mean reward of rejected (kto: undesirable) responses"},
    [MARGINS] = {"rewards/margins", "margin", "rewards/chosen less rewards/rejected"},
    [ACCURACIES] = {"rewards/accuracies", "accuracy", "share of pairs whose chosen response has the larger reward"},
    [LOGPS_CHOSEN] = {"logps/chosen", NULL, "mean log-probability of chosen responses"},
    [LOGPS_REJECTED] = {"logps/rejected", NULL, "mean log-probability of rejected responses"},
    [KL] = {"kl", NULL,
            "kto: how far the model is from the reference, in nats, from responses to other prompts; never below 0"},
    [VAL_ACCURACIES] = {"val/rewards/accuracies", "accuracy", "as rewards/accuracies, of held-out pairs"},
    [VAL_MARGINS] = {"val/rewards/margins", "margin", "as rewards/margins, of held-out pairs"},
};

static const preference_options *options_of(const preference *t) { return &t->host.plan->request.preference; }
static bool is_single(const preference *t) { return options_of(t)->kind == PREFERENCE_KTO; }
static int64_t length_of(const preference *t) { return t->host.plan->request.seq_len; }
static preference_part *parts_of(const preference *t, int64_t row) {
    return t->parts + row * length_of(t) * PREFERENCE_PARTS;
}
static int64_t rows_of(const preference *t) { return t->host.plan->request.choice.micro_batch; }

/* ---- before the plan ------------------------------------------------------------------------------------------- */

/* Numbers of each token for prompts that stand in a row once: shared, positions, spans. */
enum { SHARED_ARRAYS = 4 };

static uint64_t row_bytes(int64_t seq_len, bool shares) {
    uint64_t n_arrays = 4 + (shares ? SHARED_ARRAYS : 0);
    return (uint64_t)seq_len *
               (n_arrays * sizeof(int32_t) + 2 * sizeof(float) + PREFERENCE_PARTS * sizeof(preference_part)) +
           (uint64_t)data_example_slots(seq_len) * sizeof(int32_t) + sizeof(int64_t);
}

static uint64_t loader_bytes(int64_t rows, int64_t seq_len, bool shares) {
    return loader_host_bytes(rows, seq_len) + loader_examples_host_bytes(rows, seq_len) +
           (shares ? loader_shared_host_bytes(rows, seq_len) : 0);
}

static status choose_sharing(const train_request *r, bool *out) {
    *out = share_prompt_possible(r->share_prompt, r->data.source, model_of(&r->plan.source));
    if (r->share_prompt != SHARE_PROMPT_ON || *out) return OK;
    return ERR(ERR_INPUT, "preference.share_prompt: found on with %s; set auto or off",
               model_of(&r->plan.source)->window
                   ? "a model whose layers attend to a window, which is counted in places of the row"
                   : "a built-in source, whose prompts are repeated: it is for files");
}

static status choose_reference(const train_request *r, reference_kind *out) {
    preference_kind k = r->preference.kind;
    *out = REFERENCE_NONE;
    if (!preference_compares(k)) return OK;
    *out = r->reference != REFERENCE_NONE          ? r->reference
           : lora_base_is_beginning(&r->plan.lora) ? REFERENCE_BASE
                                                   : REFERENCE_COPY;
    if (*out == REFERENCE_BASE && !r->plan.lora.rank)
        return ERR(ERR_INPUT,
                   "preference.reference: found base, which needs model.lora.rank: without adapters the model has no "
                   "frozen base; set copy or auto");
    if (*out == REFERENCE_BASE && r->plan.lora.pissa)
        return ERR(
            ERR_INPUT,
            "preference.reference: found base with model.lora.init pissa, whose base is not the model that the run "
            "begins with; set copy, disk or auto");
    return OK;
}

static status preference_shape(train_request *r) {
    plan_request *p = &r->plan;
    bool single = r->preference.kind == PREFERENCE_KTO;
    p->preference = r->preference;
    TRY(choose_reference(r, &p->reference));
    p->open.sequence = p->left_open.sequence =
        false; /* only where it is asked for: the plan weighs rows of tokens alone */
    r->data.kind = single ? DATA_LABELLED : DATA_PAIRS;
    r->data.positions = model_of(&p->source)->max_positions; /* what a refusal may advise */
    p->with_eval = r->train.eval_rows > 0;
    TRY(choose_sharing(r, &p->share_prompts));
    r->data.share_prompts = p->share_prompts;
    p->host_row_bytes = loader_bytes(1, p->seq_len, p->share_prompts) + row_bytes(p->seq_len, p->share_prompts);
    return OK;
}

/* ---- open, close ----------------------------------------------------------------------------------------------- */

static status preference_open(void **out, const task_host *h) {
    if (h->plan->request.reference == REFERENCE_INPUT && !h->request->run_dir)
        return ERR(ERR_INPUT, "preference.reference: found disk without a run directory, expected run.dir, where the "
                              "log-probabilities of the reference are kept; set run.dir, or copy or auto");
    preference *t = mem_alloc(sizeof *t);
    *t = (preference){.host = *h};
    size_t n = (size_t)(rows_of(t) * length_of(t));
    int32_t **arrays[] = {&t->tokens, &t->targets, &t->doc_start, &t->segments};
    for (size_t i = 0; i < ARRAY_LENGTH(arrays); i++) *arrays[i] = mem_alloc(n * sizeof(int32_t));
    if (h->plan->request.share_prompts) {
        t->shared = mem_alloc(n * sizeof *t->shared);
        t->positions = mem_alloc(n * sizeof *t->positions);
        t->spans = mem_alloc(2 * n * sizeof *t->spans);
    }
    t->examples = mem_alloc((size_t)(rows_of(t) * data_example_slots(length_of(t))) * sizeof *t->examples);
    t->losses = mem_alloc(n * sizeof *t->losses);
    t->reference = mem_alloc(n * sizeof *t->reference);
    t->parts = mem_alloc(n * PREFERENCE_PARTS * sizeof *t->parts);
    t->n_examples = mem_alloc((size_t)rows_of(t) * sizeof *t->n_examples);
    if (h->request->comm) t->all_gains = mem_alloc((size_t)comm_size(h->request->comm) * sizeof *t->all_gains);
    *out = t;
    return OK;
}

static void preference_close(void *self) {
    preference *t = self;
    loader_close(t->rows);
    free(t->tokens);
    free(t->targets);
    free(t->doc_start);
    free(t->segments);
    free(t->examples);
    free(t->shared);
    free(t->positions);
    free(t->spans);
    numbers_file_close(t->file);
    free(t->losses);
    free(t->reference);
    free(t->parts);
    free(t->n_examples);
    free(t->all_gains);
    free(t);
}

static const char *preference_identity(void *self, arena *memory) {
    const preference *t = self;
    const data_options *d = &t->host.request->data;
    const preference_options *o = options_of(t);
    return arena_format(
        memory,
        "%s with beta %g, smoothing %g, gamma %g, lambda %g, weights %g and %g; data %s as %s, rows of %lld, "
        "%s%s, %g for evaluation, chat %s, tokens %016llx",
        preference_name(o->kind), (double)o->beta, (double)o->smoothing, (double)o->gamma, (double)o->lambda,
        (double)o->lambda_good, (double)o->lambda_bad, d->source, d->tokenizer ? d->tokenizer : "byte",
        (long long)d->seq_len, d->pack ? "packed" : "one example each", d->share_prompts ? " with shared prompts" : "",
        d->eval_fraction, chat_format_name(d->chat), (unsigned long long)dataset_fingerprint(t->host.data));
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static int64_t slots_of(const preference *t) { return data_example_slots(length_of(t)); }

/* A document that shares the beginning of the one before it: its positions go on behind that, and its tokens see those keys in a second
 * step. Other tokens see none there, at a place that grows with the token, as the kernels need it. */
static void write_spans(preference *t, const micro_inputs *to, const batch *b) {
    int64_t T = length_of(t), n = rows_of(t) * T;
    for (int step = 0; step < 2; step++) {
        for (int64_t i = 0; i < n; i++) {
            int32_t own = b->doc_start[i], shared = b->shared[i], place = (int32_t)(i % T);
            int32_t from = shared ? b->doc_start[i - place + own - 1] : own;
            t->positions[i] = own - shared;
            t->spans[i] = step ? from : own;
            t->spans[n + i] = step ? from + shared : place + 1;
        }
        exec_write(t->host.exec, to->spans[step], 0, t->spans, (size_t)(2 * n) * sizeof *t->spans);
    }
}

/* A micro-batch of a split; with a reference on disk also what it says of it, through t->reference. */
static status write_rows(preference *t, split s, const micro_inputs *to, const batch *b) {
    int64_t T = length_of(t);
    if (t->spans) write_spans(t, to, b);
    TRY(batch_write(
        t->host.exec, t->host.plan, to,
        &(batch_rows){b->tokens, b->targets, t->spans ? t->positions : b->doc_start, .first_row = b->first_row}));
    batch_write_all(t->host.exec, t->host.plan, to->segments, b->segments);
    if (!t->file) return OK;
    for (int64_t r = 0; r < rows_of(t); r++)
        TRY(numbers_file_read(t->file, s, b->segments + r * T, b->examples + r * slots_of(t), T, t->reference + r * T));
    batch_write_all(t->host.exec, t->host.plan, to->reference, t->reference);
    return OK;
}

/* Rows of a split from `first` on, in the buffers; those from `end` on are filled up with the last one. */
static batch read_rows(const preference *t, split s, uint64_t first, uint64_t end) {
    for (int64_t b = 0; b < rows_of(t); b++) {
        int64_t at = b * length_of(t);
        dataset_row_get(t->host.data, s, MIN(first + (uint64_t)b, end - 1),
                        &(data_row){.tokens = t->tokens + at,
                                    .targets = t->targets + at,
                                    .doc_start = t->doc_start + at,
                                    .segments = t->segments + at,
                                    .shared = t->shared ? t->shared + at : NULL,
                                    .examples = t->examples + b * slots_of(t)});
    }
    return (batch){.tokens = t->tokens,
                   .targets = t->targets,
                   .doc_start = t->doc_start,
                   .segments = t->segments,
                   .shared = t->shared,
                   .examples = t->examples,
                   .first_row = first};
}

/* The loss of every token of these rows, in t->losses, and that of the reference in t->reference. */
static status evaluate_rows(preference *t, split s, uint64_t first, uint64_t end) {
    const net *m = &t->host.plan->net;
    batch b = read_rows(t, s, first, end);
    TRY(write_rows(t, s, &t->host.plan->step.inputs[0], &b));
    TRY(exec_run(t->host.exec, SECTION_EVAL));
    TRY(exec_check(t->host.exec));
    batch_read(t->host.exec, t->host.plan, m->eval_losses, t->losses);
    if (m->eval_reference) batch_read(t->host.exec, t->host.plan, m->eval_reference, t->reference);
    return OK;
}

/* The same, summed over the responses of the rows before `end`: into parts, n_examples, and to gains what z is made of. */
static status measure_rows(preference *t, split s, uint64_t first, uint64_t end, preference_gains *gains) {
    TRY(evaluate_rows(t, s, first, end));
    preference_rows rows = {rows_of(t), length_of(t), 1};
    int64_t n = (int64_t)MIN((uint64_t)rows_of(t), end - first);
    for (int64_t b = 0; b < n; b++) {
        t->n_examples[b] = preference_add_row(parts_of(t, b), &rows, b, t->segments, t->losses, t->reference);
        preference_add_gains(gains, parts_of(t, b), t->n_examples[b]);
    }
    return OK;
}

/* ---- a reference on disk --------------------------------------------------------------------------------------- */

static bool is_on_disk(const preference *t) { return t->host.plan->request.reference == REFERENCE_INPUT; }

static const numbers_words file_words = {"preference.reference", "log-probabilities of a reference", "example"};

static const char *file_path(const preference *t, arena *memory) {
    return arena_format(memory, "%s/reference.losses", t->host.request->run_dir);
}

static numbers_identity file_identity(const preference *t, arena *memory, uint64_t model) {
    const char *text = preference_identity((void *)t, memory);
    return (numbers_identity){
        .data = XXH3_64bits(text, strlen(text)),
        .model = model,
        .n_entries = {dataset_n_examples(t->host.data, SPLIT_TRAIN), dataset_n_examples(t->host.data, SPLIT_EVAL)}};
}

static uint64_t n_rows_of(const preference *t, split s) {
    data_report report;
    dataset_report(t->host.data, s, &report);
    return report.rows_per_epoch;
}

/* A batch for each data rank at a time; each learns from the others what their batches gave, and the first rank writes. */
static status compute_split(preference *t, numbers_writer *w, split s) {
    comm *ranks = t->host.request->comm;
    const mesh *m = &t->host.plan->request.mesh;
    int n_data = mesh_size(m, AXIS_DATA);
    int64_t T = length_of(t);
    uint64_t each = (uint64_t)rows_of(t), end = n_rows_of(t, s);
    for (uint64_t first = 0; first < end; first += each * (uint64_t)n_data) {
        uint64_t own = MIN(first + (uint64_t)m->index[AXIS_DATA] * each, end - 1);
        TRY(t->host.pause(t->host.pause_context, "row", (int64_t)first, (int64_t)end));
        TRY(evaluate_rows(t, s, own, end));
        for (int i = 0; i < n_data; i++) {
            uint64_t at = MIN(first + (uint64_t)i * each, end - 1);
            float *losses = i == m->index[AXIS_DATA] ? t->losses : t->reference; /* which is not in use yet */
            if (ranks && n_data > 1)
                TRY(comm_broadcast(ranks, losses, (size_t)(rows_of(t) * T) * sizeof *losses,
                                   comm_rank_at(ranks, AXIS_DATA, i)));
            read_rows(t, s, at, end);
            for (int64_t b = 0; w && b < rows_of(t); b++)
                TRY(numbers_file_add(w, s, t->segments + b * T, t->examples + b * slots_of(t), T, losses + b * T));
        }
    }
    return OK;
}

static void count_split(preference *t, numbers_writer *w, split s) {
    uint64_t end = n_rows_of(t, s);
    for (uint64_t first = 0; first < end; first += (uint64_t)rows_of(t)) {
        read_rows(t, s, first, end);
        for (int64_t b = 0; b < rows_of(t); b++)
            numbers_file_count(w, s, t->segments + b * length_of(t), t->examples + b * slots_of(t), length_of(t));
    }
}

/* writes: is this the rank that does? */
static status compute_file(preference *t, const char *path, const numbers_identity *id, bool writes) {
    status rc = OK;
    numbers_writer *w = NULL;
    double begin = clock_s();
    uint64_t n_bytes;
    char size[32];
    if (writes) {
        TRY(numbers_file_create(&w, path, &file_words, id->n_entries));
        for (split s = SPLIT_TRAIN; s <= SPLIT_EVAL; s++) count_split(t, w, s);
        TRY_GOTO(rc, numbers_file_lay_out(w), done);
    }
    for (split s = SPLIT_TRAIN; s <= SPLIT_EVAL; s++) TRY_GOTO(rc, compute_split(t, w, s), done);
    if (!writes) goto done;
    TRY_GOTO(rc, numbers_file_commit(w, id, &n_bytes), done);
    train_say(t->host.observer, "reference: log-probabilities of %llu examples computed in %.1f s, %s in %s",
              (unsigned long long)(id->n_entries[0] + id->n_entries[1]), clock_s() - begin,
              str_format_bytes(size, n_bytes), path);
done:
    numbers_writer_close(w);
    return rc;
}

/* The parameters are those that the run begins with. A file that an earlier start of the same run left serves again. */
static status begin_on_disk(preference *t) {
    status rc;
    arena memory;
    comm *ranks = t->host.request->comm;
    bool first = !ranks || comm_rank(ranks) == 0, is_there = false;
    arena_init(&memory);
    t->reference_hash = params_hash(t->host.exec, t->host.plan, ranks);
    const char *path = file_path(t, &memory);
    numbers_identity id = file_identity(t, &memory, t->reference_hash);
    if (first && access(path, F_OK) == 0) {
        numbers_file *found;
        is_there = numbers_file_open(&found, path, &file_words, &id) == OK;
        if (is_there) numbers_file_close(found);
        else error_clear(); /* of another run, or damaged: it is written again */
    }
    rc = ranks ? comm_broadcast(ranks, &is_there, sizeof is_there, 0) : OK;
    if (rc == OK && !is_there) rc = compute_file(t, path, &id, first);
    if (rc == OK && ranks) rc = comm_barrier(ranks);
    if (rc == OK) rc = numbers_file_open(&t->file, path, &file_words, &id);
    arena_fini(&memory);
    return rc;
}

/* Why there is no file: the run was made with another reference, as far as its checkpoint says. made_with: see reference_name. */
static status no_file(const char *path, const char *made_with, const char *where) {
    bool is_other = made_with && (strcmp(made_with, "base") == 0 || strcmp(made_with, "copy") == 0);
    if (is_other)
        return ERR(ERR_INPUT,
                   "%s: the run was made with preference.reference=%s, which keeps no log-probabilities; found "
                   "preference.reference=disk: set it to %s, or start a new run",
                   where, made_with, made_with);
    return ERR(
        ERR_INPUT,
        "%s: preference.reference=disk compares with log-probabilities that were kept in reference.losses of the "
        "run directory; found no %s: copy it there; if the run was made with another preference.reference, set "
        "that; or start a new run",
        where, path);
}

/* No parameters of the reference are left: a resumed run has the file, or nothing to compare with. */
static status resume_on_disk(preference *t, uint64_t model, const char *made_with, const char *where) {
    arena memory;
    arena_init(&memory);
    const char *path = file_path(t, &memory);
    numbers_identity id = file_identity(t, &memory, model);
    status rc = OK;
    if (access(path, F_OK) != 0) rc = no_file(path, made_with, where);
    if (rc == OK) rc = numbers_file_open(&t->file, path, &file_words, &id);
    t->reference_hash = model;
    arena_fini(&memory);
    return rc;
}

/* ---- the reference of a resumed run ---------------------------------------------------------------------------- */

/* As preference.reference has it; NULL: the loss has none. */
static const char *reference_name(reference_kind k) {
    return k == REFERENCE_BASE ? "base" : k == REFERENCE_COPY ? "copy" : k == REFERENCE_INPUT ? "disk" : NULL;
}

/* The kind is there to say what to set where a resumed run asks for another one; old checkpoints lack it. */
static json_t *preference_save(void *self) {
    const preference *t = self;
    json_t *state = reference_save(t->reference_hash);
    const char *name = reference_name(t->host.plan->request.reference);
    if (name) json_object_set_new(state, "kind", json_string(name));
    return state;
}

/* What is on disk was computed from a copy that is gone, and has its own check. */
static status preference_load(void *self, const json_t *state, const char *where) {
    preference *t = self;
    uint64_t then = 0;
    if (!is_on_disk(t)) return reference_check(&t->host, state, where, "model.path, its init or preference.reference");
    TRY(reference_read(state, where, &then));
    return resume_on_disk(t, then, json_string_value(json_object_get(state, "kind")), where);
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static status preference_begin(void *self, uint64_t position) {
    preference *t = self;
    const plan_request *q = &t->host.plan->request;
    if (is_on_disk(t) && !t->file) TRY(begin_on_disk(t));
    if (!is_on_disk(t)) t->reference_hash = reference_hash(&t->host);
    return loader_open(&t->rows, t->host.data, SPLIT_TRAIN, rows_of(t), position, q->mesh.index[AXIS_DATA],
                       mesh_size(&q->mesh, AXIS_DATA));
}

/* ---- z of kto over several micro-batches ----------------------------------------------------------------------- */

/* Where micro-batch `micro` of this rank begins, in a step that begins at `position`. */
static uint64_t first_row_of(const preference *t, uint64_t position, int64_t micro) {
    const mesh *m = &t->host.plan->request.mesh;
    uint64_t number = (uint64_t)(micro * mesh_size(m, AXIS_DATA) + m->index[AXIS_DATA]);
    return position + number * (uint64_t)rows_of(t);
}

/* Adds the gains of one micro-batch of every data rank in the order in which one rank would have them, so that z has the same bits
 * however a step is shared. */
static status add_gains_of_ranks(preference *t, const preference_gains *mine, preference_gains *sum) {
    comm *ranks = t->host.request->comm;
    if (!ranks) {
        sum->sum += mine->sum, sum->n += mine->n;
        return OK;
    }
    TRY(comm_all_gather_bytes(ranks, mine, sizeof *mine, t->all_gains));
    for (int i = 0; i < mesh_size(&t->host.plan->request.mesh, AXIS_DATA); i++) {
        const preference_gains *g = &t->all_gains[comm_rank_at(ranks, AXIS_DATA, i)];
        sum->sum += g->sum, sum->n += g->n;
    }
    return OK;
}

/* The examples of the step with the parameters as they are before it. Its dropout is off, as in every evaluation. */
static status find_z(preference *t) {
    preference_gains sum = {0, 0};
    uint64_t position = loader_position(t->rows);
    for (int64_t micro = 0; micro < t->host.plan->request.choice.accumulation; micro++) {
        preference_gains mine = {0, 0};
        uint64_t first = first_row_of(t, position, micro);
        TRY(measure_rows(t, SPLIT_TRAIN, first, first + (uint64_t)rows_of(t), &mine));
        TRY(add_gains_of_ranks(t, &mine, &sum));
    }
    double z = preference_z(options_of(t), sum);
    exec_write(t->host.exec, t->host.plan->net.z, 0, &z, sizeof z);
    return OK;
}

/* z is found here and not in step_source.before, which would keep every loss from overlapping its update. */
static status preference_next(void *self, const micro_inputs *to) {
    preference *t = self;
    if (t->micro == 0 && t->host.plan->net.z) TRY(find_z(t));
    t->micro = (t->micro + 1) % t->host.plan->request.choice.accumulation;
    return write_rows(t, SPLIT_TRAIN, to, loader_next(t->rows));
}

static status preference_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    preference *t = self;
    uint64_t first = first_row_of(t, position, micro);
    batch b = read_rows(t, SPLIT_TRAIN, first, first + (uint64_t)rows_of(t));
    return write_rows(t, SPLIT_TRAIN, to, &b);
}

static uint64_t preference_position(const void *self) { return loader_position(((const preference *)self)->rows); }

/* side: CHOSEN or REJECTED. NaN where there is none. */
static double mean_reward(const double *sums, int side) {
    return sums[SUM_REWARD_CHOSEN + side] / sums[SUM_CHOSEN + side];
}
static double accuracy(const preference *t, const double *sums) {
    return is_single(t) ? NAN : sums[SUM_ACCURATE] / sums[SUM_VALID];
}

static status preference_after(void *self, train_step_report *report) {
    const preference *t = self;
    double sums[PREFERENCE_SUM_COUNT];
    task_step_sums(&t->host, sums, PREFERENCE_SUM_COUNT);
    train_metrics *m = &report->metrics;
    double chosen = mean_reward(sums, CHOSEN), rejected = mean_reward(sums, REJECTED);
    train_metrics_add(m, &metrics[CHOSEN], chosen);
    train_metrics_add(m, &metrics[REJECTED], rejected);
    train_metrics_add(m, &metrics[MARGINS], chosen - rejected);
    train_metrics_add(m, &metrics[ACCURACIES], accuracy(t, sums));
    train_metrics_add(m, &metrics[LOGPS_CHOSEN], sums[SUM_LOGP_CHOSEN] / sums[SUM_CHOSEN]);
    train_metrics_add(m, &metrics[LOGPS_REJECTED], sums[SUM_LOGP_REJECTED] / sums[SUM_REJECTED]);
    train_metrics_add(m, &metrics[KL],
                      is_single(t) ? sums[SUM_KL] / sums[SUM_VALID] / (double)options_of(t)->beta : NAN);
    return exec_check(t->host.exec);
}

static uint64_t preference_host_bytes(const void *self) {
    const preference *t = self;
    bool shares = t->spans != NULL;
    return loader_bytes(rows_of(t), length_of(t), shares) + (uint64_t)rows_of(t) * row_bytes(length_of(t), shares);
}

/* ---- evaluation ------------------------------------------------------------------------------------------------ */

/* One batch of held-out rows; those from n_rows on are not counted. */
static status evaluate_batch(preference *t, int64_t first, int64_t n_rows, double *sums) {
    preference_gains gains = {0, 0};
    int64_t n = MIN(rows_of(t), n_rows - first);
    TRY(t->host.pause(t->host.pause_context, "row", first, n_rows));
    TRY(measure_rows(t, SPLIT_EVAL, (uint64_t)first, (uint64_t)n_rows, &gains));
    double z = preference_z(options_of(t), gains);
    for (int64_t b = 0; b < n; b++) preference_judge(options_of(t), parts_of(t, b), t->n_examples[b], z, sums);
    return OK;
}

static status preference_evaluate(void *self, train_eval_report *out) {
    preference *t = self;
    double sums[PREFERENCE_SUM_COUNT] = {0};
    out->n_rows = task_eval_rows(&t->host);
    for (int64_t first = 0; first < out->n_rows; first += rows_of(t)) TRY(evaluate_batch(t, first, out->n_rows, sums));
    out->loss = sums[SUM_VALID] > 0 ? sums[SUM_LOSS] / sums[SUM_VALID] : NAN;
    out->exact_match = NAN;
    train_metrics_add(&out->metrics, &metrics[VAL_ACCURACIES], accuracy(t, sums));
    train_metrics_add(&out->metrics, &metrics[VAL_MARGINS], mean_reward(sums, CHOSEN) - mean_reward(sums, REJECTED));
    return OK;
}

const task task_PREFERENCE = {
    .name = task_name_PREFERENCE,
    .metrics = metrics,
    .n_metrics = N_METRICS,
    .shape = preference_shape,
    .open = preference_open,
    .close = preference_close,
    .identity = preference_identity,
    .save = preference_save,
    .load = preference_load,
    .begin = preference_begin,
    .step = {.next = preference_next, .again = preference_again, .position = preference_position},
    .after = preference_after,
    .evaluate = preference_evaluate,
    .host_bytes = preference_host_bytes,
};
