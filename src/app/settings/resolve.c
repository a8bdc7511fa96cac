/* resolve.c - defaults that depend on other settings: the rate of a fine-tune, the micro-batch of rollouts, the
 * tokenizer of a model directory, and which of two settings counts where both say one thing.
 *
 * What follows from the model and the data is in fit_data.c. */
#include "settings/request.h"

#include <unistd.h>

/* The default learning rate of transformers. The default of the table is for small models from random values; it
 * would destroy pretrained weights in a few steps. */
#define PRETRAINED_LR 5e-5
/* Adapters begin as nothing and are small: they take, and need, a larger rate than the model itself. */
#define LORA_LR 2e-4

/* As TRL: a policy moves in small steps, with or without adapters. */
#define POLICY_LR 1e-6
/* As TRL: what is right already is only preferred a little more; the rates of other fine-tuning leave a model that
 * answers nothing. */
#define PREFERENCE_LR 1e-6
#define PREFERENCE_LORA_LR 1e-5
/* Tokens of a micro-batch of completions: rows are filled by their number, and what is left of a micro-batch is
 * computed for nothing. */
enum { POLICY_TOKENS = 1024, POLICY_ROWS = 16 };

/* Files have theirs since config_fit_data. */
int64_t config_seq_len(const config *c) { return c->data.seq_len ? c->data.seq_len : SEQ_LEN_BUILTIN; }

static void resolve_policy(config *c) {
    if (c->task != TASK_RLOO) return;
    if (!config_was_given(c, "train.lr")) c->train.lr = POLICY_LR;
    if (!config_was_given(c, "train.micro_batch"))
        c->train.micro_batch = c->train.rl.baseline
                                   ? c->train.rl.k
                                   : MIN(MAX(POLICY_TOKENS / config_seq_len(c), (int64_t)1), (int64_t)POLICY_ROWS);
}

/* A name of the hub that is no directory here: where its cache has it. */
static void resolve_hub(config *c) {
    strbuf found;
    if (!*c->model.path || access(c->model.path, F_OK) == 0) return;
    strbuf_init(&found);
    if (model_hub_find(c->model.path, &found)) c->model.path = arena_string(&c->memory_of_strings, found.text);
    strbuf_fini(&found);
}

static bool checkpoint_of(const char *run_dir, char *newest, size_t n) {
    newest[0] = 0;
    if (checkpoint_find_newest_quietly(run_dir, newest, n) != OK) error_clear();
    return newest[0] != 0;
}

bool config_goes_on(const config *c) {
    char newest[4096];
    return c->run.resume && strcmp(c->run.resume, "auto") == 0 && checkpoint_of(c->run.dir, newest, sizeof newest);
}

/* Frozen weights, and those that a run is compared with, are in no checkpoint. */
bool config_needs_same_weights(const config *c) {
    return c->model.lora_rank || *c->model.adapter || (c->task != TASK_SFT && c->task != TASK_MTP) ||
           c->train.weighting != WEIGHTING_BASELINE;
}

/* A run whose checkpoint has all that it trains goes on without the directory that it began from: RUN/model takes its
 * place, with sizes and tokenizer. Prediction heads begin from the layers of the base, so such a run needs a whole
 * directory. */
static void resolve_gone_base(config *c) {
    char newest[4096];
    if (!*c->model.path || access(c->model.path, F_OK) == 0 || !config_goes_on(c) || config_needs_same_weights(c))
        return;
    if (c->model.mtp_heads > 1 || c->task == TASK_MTP || !checkpoint_of(c->run.dir, newest, sizeof newest)) return;
    const char *own = arena_format(&c->memory_of_strings, "%s/model", c->run.dir);
    if (access(own, F_OK) != 0 && weights_write_own_dir(newest, own) != OK) {
        log_warn("%s", error_message()); /* and model.path is reported as missing */
        error_clear();
        return;
    }
    log_warn("model.path: found no directory %s, which the run %s began from; it goes on with what its checkpoint "
             "holds (%s)",
             c->model.path, c->run.dir, own);
    const char *tokenizer = arena_format(&c->memory_of_strings, "%s/tokenizer.json", own);
    bool is_gone = strcmp(c->data.tokenizer, "byte") != 0 && access(c->data.tokenizer, F_OK) != 0;
    if (is_gone && access(tokenizer, F_OK) == 0) c->data.tokenizer = own;
    c->model.path = own;
}

static void resolve_rhythm(const config *c, const char *key, int64_t *times, int64_t *every) {
    if (*times == 0 || *every == 0) return;
    if (config_overrules(c, config_steps_key(key), key)) *times = 0;
    else if (config_overrules(c, key, config_steps_key(key))) *every = 0;
}

/* Two names of one thing: what the command line says replaces what a file says of the other. Of one place both are
 * refused. */
static void resolve_lengths(config *c) {
    train_options *t = &c->train;
    if (t->steps > 0 && t->epochs > 0) {
        if (config_overrules(c, "train.steps", "train.epochs")) t->epochs = 0;
        else if (config_overrules(c, "train.epochs", "train.steps")) t->steps = 0;
    }
    if (t->warmup >= 0 && t->warmup_ratio > 0) {
        if (config_overrules(c, "train.warmup", "train.warmup_ratio")) t->warmup_ratio = 0;
        else if (config_overrules(c, "train.warmup_ratio", "train.warmup")) t->warmup = -1;
    }
    resolve_rhythm(c, "train.evals_per_epoch", &t->evals_per_epoch, &t->eval_every);
    resolve_rhythm(c, "train.saves_per_epoch", &t->saves_per_epoch, &t->save_every);
}

void config_resolve(config *c) {
    resolve_lengths(c);
    resolve_hub(c);
    resolve_gone_base(c);
    if (*c->model.path && c->model.init != INIT_RANDOM && !config_was_given(c, "train.lr")) {
        bool lora = c->model.lora_rank || *c->model.adapter;
        c->train.lr =
            c->task == TASK_PREFERENCE ? (lora ? PREFERENCE_LORA_LR : PREFERENCE_LR) : (lora ? LORA_LR : PRETRAINED_LR);
    }
    resolve_policy(c);
    const char *own = arena_format(&c->memory_of_strings, "%s/tokenizer.json", c->model.path);
    bool builtin = str_starts_with(c->data.source, "builtin:");
    if (*c->model.path && !builtin && !config_was_given(c, "data.tokenizer") && access(own, R_OK) == 0)
        c->data.tokenizer = c->model.path;
}
