/* fit_data.c - settings that follow from model and data: the precision, the tokens of a row, the rows of an epoch, and
 * the defaults of a fine-tune.
 *
 * The data is read for this before there is a plan, through the token cache, so reading it again for training costs
 * little. What was chosen stands in the settings from then on, and so in the config.yaml of the run: a resumed run does
 * not choose again. A source that is not there (a plan made elsewhere) or cannot be read twice (a pipe) gets rows
 * of plain text; training refuses those that are too short for it. */
#include "settings/settings.h"

#include <string.h>

enum { SURVEYED_MOST = 64 << 20, COMPLETION_USUAL = 512 };

static bool is_builtin(const config *c) { return str_starts_with(c->data.source, "builtin:"); }

static data_options options_of(const config *c, const model_config *m) {
    data_options o = c->data;
    o.positions = m->max_positions;
    o.n_threads = c->run.threads;
    o.kind = c->task == TASK_RLOO ? DATA_PROMPTS : config_data_kind(c);
    o.share_prompts =
        c->task == TASK_PREFERENCE && share_prompt_possible((share_prompt)c->preference.share, o.source, m);
    o.completion = c->train.rl.max_completion ? c->train.rl.max_completion : COMPLETION_USUAL;
    o.skip_long_prompts = c->train.rl.skip_long;
    o.longest_prompt = INT32_MAX; /* what is too long is refused when the run is opened */
    return o;
}

/* An evaluation without a row, or a prompt that is too long, is refused by the run itself, in its own words. */
static status survey(config *c, const data_options *o) {
    dataset *d;
    data_options lengths = *o;
    lengths.is_survey = true;
    TRY(dataset_open(&d, &lengths));
    dataset_survey(d, &c->survey);
    dataset_close(d);
    /* Completions have at most half of a row, unless they are given: here all of the usual ones. */
    bool is_rl = c->task == TASK_RLOO && !c->train.rl.max_completion && c->survey.is_chosen;
    if (is_rl) c->survey.seq_len = MIN(MAX(c->survey.seq_len, (int64_t)2 * COMPLETION_USUAL), o->positions);
    return OK;
}

/* What auto meant stands in the settings of the run: a run that is resumed with more steps has the warmup that it began with. */
static void resolve_steps(config *c) {
    train_options *t = &c->train;
    if (!t->steps) t->steps = STEPS_USUAL;
    int64_t end = t->schedule_steps ? MIN(t->schedule_steps, t->steps) : t->steps;
    if (t->warmup < 0 && t->warmup_ratio == 0) t->warmup = MIN((int64_t)WARMUP_USUAL, end / 10);
}

static bool has_gpu(const config *c) {
    const backend *b = NULL;
    if (backend_choose(c->run.device, MAX(c->run.gpu, 0), &b) == OK) return backend_kind(b) != DEVICE_CPU;
    error_clear(); /* whoever runs it says so */
    return false;
}

/* A plan may be for a machine that is not here. What is wrong with its name is said where it is described. */
static bool is_for_gpu(const config *c, const char *asked) {
    hardware h;
    if (!asked || c->run.device != DEVICE_AUTO) return has_gpu(c);
    if (hardware_load(&h, asked) == OK) return !h.unified;
    error_clear();
    return false;
}

bool config_is_chosen_later(const config *c, const char *key) {
    static const char *const keys[] = {"precision", "train.micro_batch", "train.accumulation", "train.epochs"};
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
        if (strcmp(keys[i], key) == 0) return !config_was_given(c, key) && !is_builtin(c);
    return false;
}

/* The built-in default, which `make run` trains, states its values: its bits are the same on every machine. */
static bool is_usual_model(const config *c) {
    const char *preset = config_preset(c);
    return preset && strcmp(preset, PRESET_USUAL) == 0 && is_builtin(c);
}

/* Rows of a plan without data. A model over bytes is made for the built-in problems, which are short. */
static int64_t usual_row(const config *c, const model_config *m) {
    int64_t most = c->data.row_most ? MIN(c->data.row_most, m->max_positions) : m->max_positions;
    return m->vocab == BYTE_VOCAB ? 0 : MIN((int64_t)ROW_TOKENS_USUAL, most);
}

void config_resolve_model(config *c, const char *hardware, bool sizes) {
    model_config m = {.vocab = BYTE_VOCAB};
    if (model_from_config(c, &m) != OK) error_clear(); /* said where the request is made */
    bool on_files = !is_builtin(c), has_length = c->train.steps || c->train.epochs > 0;
    if (!config_was_given(c, "precision") && (m.is_16_bit || (on_files && (*c->model.path || is_for_gpu(c, hardware)))))
        c->choice.precision = PRECISION_BF16;
    if (!c->data.seq_len && !config_was_given(c, "data.source")) c->data.seq_len = usual_row(c, &m);
    bool is_divided = c->train.batch || c->train.accumulation || config_was_given(c, "train.micro_batch");
    if (is_usual_model(c) && !is_divided && c->task != TASK_RLOO) c->train.micro_batch = ROWS_USUAL;
    bool pretrained = *c->model.path && c->model.init != INIT_RANDOM;
    if (sizes && on_files && pretrained && !has_length && !config_was_given(c, "train.epochs") && c->task != TASK_RLOO)
        c->train.epochs = EPOCHS_USUAL;
    config_resolve(c); /* defaults that follow from the length of a row */
}

/* Where epochs cannot be counted, those that nobody asked for are left out. A plan whose data is not here leaves all of
 * them out, with a warning: the memory and the time of a step do not depend on them. */
static void forget_epochs(config *c, bool is_plan_without_data) {
    train_options *t = &c->train;
    if (is_plan_without_data) t->evals_per_epoch = t->saves_per_epoch = 0;
    if (t->epochs == 0 || (config_was_given(c, "train.epochs") && !is_plan_without_data)) return;
    double found = t->epochs;
    t->epochs = 0;
    resolve_steps(c);
    if (config_was_given(c, "train.epochs"))
        log_warn("train.epochs: found %g, which cannot be counted in steps, as data.source %s is not there; planned "
                 "%lld steps",
                 found, c->data.source, (long long)t->steps);
}

bool config_reads_data(const config *c, const data_options *o) {
    data_look look = data_source_look(o);
    if (look.is_stream || look.is_missing) return false;
    return c->survey.is_chosen || look.n_bytes <= SURVEYED_MOST;
}

status config_fit_data(config *c, bool is_plan) {
    model_config m;
    bool is_auto = c->data.seq_len == 0;
    double found;
    bool counts = config_epochs_key(c, &found) != NULL;
    if (c->train.epochs == 0) resolve_steps(c);
    if (!counts && (is_builtin(c) || (!is_plan && !is_auto))) return OK;
    TRY(model_from_config(c, &m));
    data_options o = options_of(c, &m);
    data_look look = data_source_look(&o);
    if (look.is_stream || (is_plan && look.is_missing)) {
        forget_epochs(c, is_plan && look.is_missing);
        const char *key = config_epochs_key(c, &found);
        if (key)
            return ERR(ERR_INPUT, "%s: found %g, and data.source %s can be read only once; set %s instead", key, found,
                       c->data.source, config_steps_key(key));
        if (is_auto) c->data.seq_len = data_text_row(&o);
        if (is_auto)
            log_warn("data.seq_len: found no lengths of records to choose it from, as data.source %s; took %lld",
                     look.is_missing ? "is not there" : "can be read only once", (long long)c->data.seq_len);
        return OK;
    }
    if (is_auto || counts) {
        TRY(survey(c, &o));
        c->data.seq_len = c->survey.seq_len;
    } else if (config_reads_data(c, &o)) {
        TRY(survey(c, &o));
    }
    config_resolve(c); /* defaults that follow from the length of a row */
    return OK;
}
