/* config_check.c - what single ranges cannot check: settings that must agree, and settings that have no effect. */
#include "settings/config.h"
#include "settings/setting.h"

#include <math.h>

/* A value that equals the default is never warned about: saved and annotated configs contain every setting. */
static bool differs_from_default(const config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    config fresh;
    strbuf ours, theirs;
    config_init(&fresh);
    strbuf_init(&ours);
    strbuf_init(&theirs);
    setting_write(c, s, true, &ours);
    setting_write(&fresh, s, true, &theirs);
    bool differs = strcmp(ours.text, theirs.text) != 0;
    strbuf_fini(&ours);
    strbuf_fini(&theirs);
    config_fini(&fresh);
    return differs;
}

static void warn_if_given(const config *c, const char *key, bool has_effect, const char *why) {
    if (!has_effect && !c->warned_elsewhere && config_was_given(c, key) && differs_from_default(c, key))
        log_warn("%s has no effect: %s", key, why);
}
static void warn_of_given(const config *c, const char *const *keys, size_t n, bool has_effect, const char *why) {
    for (size_t i = 0; i < n; i++) warn_if_given(c, keys[i], has_effect, why);
}
#define WARN_IF_ANY_GIVEN(c, keys, ...) warn_of_given(c, keys, ARRAY_LENGTH(keys), __VA_ARGS__)

/* Can any tensor of the step live in one of these tiers? Settings left at auto may choose any. */
static bool may_offload(const config *c, tier from, tier to) {
    const int tiers[] = {(int)c->choice.offload.params, (int)c->choice.offload.grads, (int)c->choice.offload.states,
                         (int)c->choice.offload.activations, (int)c->choice.offload.reference};
    for (size_t i = 0; i < ARRAY_LENGTH(tiers); i++)
        if (tiers[i] < 0 ? c->memory.strategy == STRATEGY_AUTO : tiers[i] >= (int)from && tiers[i] <= (int)to)
            return true;
    return false;
}

/* A setting of some losses over preferences. */
static void warn_unless_loss(const config *c, const char *key, bool of_loss, const char *why) {
    bool preference = c->task == TASK_PREFERENCE;
    warn_if_given(c, key, preference && of_loss, preference ? why : "train.task is not preference");
}

static void warn_no_effect_preference(const config *c) {
    preference_kind loss = c->preference.loss + 1;
    warn_unless_loss(c, "preference.loss", true, "");
    warn_unless_loss(c, "preference.beta", loss != PREFERENCE_ORPO, "orpo has no beta; set preference.lambda");
    warn_unless_loss(c, "preference.label_smoothing", loss == PREFERENCE_DPO, "preference.loss is not dpo");
    warn_unless_loss(c, "preference.gamma", loss == PREFERENCE_SIMPO, "preference.loss is not simpo");
    warn_unless_loss(c, "preference.lambda", loss == PREFERENCE_ORPO, "preference.loss is not orpo");
    warn_unless_loss(c, "preference.desirable_weight", loss == PREFERENCE_KTO, "preference.loss is not kto");
    warn_unless_loss(c, "preference.undesirable_weight", loss == PREFERENCE_KTO, "preference.loss is not kto");
    warn_unless_loss(c, "preference.share_prompt", true, "");
    warn_unless_loss(c, "preference.reference", preference_compares(loss), "preference.loss needs no reference");
}

/* Settings of reinforcement learning in another task, and the reverse. */
static void warn_no_effect_policy(const config *c) {
    bool policy = c->task == TASK_RLOO;
    for (size_t i = 0; config_key(i); i++)
        if (str_starts_with(config_key(i), "rl.")) warn_if_given(c, config_key(i), policy, "train.task is not rloo");
    const char *why = "a step of train.task rloo has as many rows as its completions fill";
    warn_if_given(c, "train.batch", !policy, why);
    warn_if_given(c, "train.accumulation", !policy, why);
}

/* memory.place=auto: the plan divides layers between a GPU and the cores. */
static bool places_by_itself(const config *c) { return strcmp(c->memory.place, "auto") == 0; }

static void warn_no_effect_memory(const config *c) {
    warn_if_given(c, "memory.offload.keep_states", c->choice.offload.states != 0 || c->choice.keep_states == 0,
                  "memory.offload.states is none");
    warn_if_given(c, "memory.offload.keep_params", c->choice.offload.params != 0 || c->choice.keep_params == 0,
                  "memory.offload.params is none");
    warn_if_given(c, "memory.offload.keep_layers", c->choice.offload.activations != 0 || c->choice.keep_layers == 0,
                  "memory.offload.activations is none");
    warn_if_given(c, "memory.offload.keep_embed",
                  c->choice.offload.params != 0 || c->choice.offload.grads != 0 || c->choice.keep_embed == 0,
                  "memory.offload.params and memory.offload.grads are none");
    bool moves = may_offload(c, TIER_HOST, TIER_NVME) || *c->memory.place;
    warn_if_given(c, "memory.prefetch", moves, "nothing is offloaded");
    warn_if_given(c, "memory.bucket", moves, "nothing is offloaded");
    warn_if_given(c, "memory.nvme_path", may_offload(c, TIER_NVME, TIER_NVME), "nothing is offloaded to nvme");
}

static void warn_no_effect_reward(const config *c) {
    static const char *const keys[] = {"reward.list",    "reward.answer",  "reward.tolerance", "reward.pattern",
                                       "reward.length",  "reward.program", "reward.url",       "reward.workers",
                                       "reward.timeout", "reward.retries", "reward.on_error"};
    WARN_IF_ANY_GIVEN(c, keys, c->task == TASK_RLOO, "train.task is not rloo");
}

/* What a place for numbers asks for, where it was not chosen. */
static void warn_no_effect_track(const config *c) {
    const char *to = c->track.to;
    bool open = !*to || strcmp(to, "auto") == 0 || strcmp(to, "all") == 0;
    bool mlflow = open || strstr(to, "mlflow"), trackio = open || strstr(to, "trackio");
    warn_if_given(c, "track.mlflow", mlflow, "track.to does not name mlflow");
    warn_if_given(c, "track.experiment", mlflow, "track.to does not name mlflow");
    warn_if_given(c, "track.tensorboard", open || strstr(to, "tensorboard"), "track.to does not name tensorboard");
    warn_if_given(c, "track.trackio", trackio, "track.to does not name trackio");
    warn_if_given(c, "track.name", mlflow || trackio, "track.to names neither mlflow nor trackio");
}

static void warn_no_effect_schedule(const config *c) {
    bool fp16 = c->choice.precision == PRECISION_FP16, dynamic = fp16 && c->train.loss_scale == 0;
    static const char *const of_scale[] = {"train.fp16.initial_scale_power", "train.fp16.loss_scale_window",
                                           "train.fp16.hysteresis", "train.fp16.consecutive_hysteresis",
                                           "train.fp16.min_loss_scale"};
    warn_if_given(c, "train.fp16.loss_scale", fp16, "precision is not fp16");
    WARN_IF_ANY_GIVEN(c, of_scale, dynamic, "there is no dynamic loss scale");
    warn_if_given(c, "train.decay_share", c->train.schedule == SCHEDULE_WSD, "train.schedule is not wsd");
    warn_if_given(c, "train.nonfinite", !fp16, "precision fp16 always skips such steps");
    bool warms = c->train.warmup != 0 || c->train.warmup_ratio > 0 || c->train.style == STYLE_DEEPSPEED;
    warn_if_given(c, "train.warmup_kind", warms, "train.warmup is 0");
    warn_if_given(c, "train.warmup_min_lr", warms, "train.warmup is 0");
    warn_if_given(c, "train.schedule_steps", c->train.schedule != SCHEDULE_CONSTANT, "train.schedule is constant");
    warn_if_given(c, "train.min_lr_ratio", c->train.schedule != SCHEDULE_CONSTANT, "train.schedule is constant");
}

static void warn_no_effect_fp8(const config *c) {
    int p = (int)c->choice.precision; /* negative: auto, which is never fp8 */
    warn_if_given(c, "train.fp8.scales", p >= 0 && precision_fp8(c->choice.precision),
                  "precision is not fp8 or fp8_sr");
}

static void warn_no_effect_evaluation(const config *c) {
    bool has_problems = data_source_has_problems(c->data.source), keeps_back = data_evaluates(&c->data);
    bool asks = has_problems && c->task != TASK_PREFERENCE && c->task != TASK_RLOO && c->task != TASK_CRITIC;
    warn_if_given(c, "train.problems", asks || c->train.problems == 0,
                  has_problems ? "this train.task asks no problems" : "data.source has no problems");
    warn_if_given(c, "train.eval_rows", keeps_back || c->train.eval_rows == 0, "data.eval_fraction is 0");
    warn_if_given(c, "train.eval_every", (c->train.eval_rows > 0 && keeps_back) || (c->train.problems > 0 && asks),
                  "nothing is evaluated");
    static const char *const of_samples[] = {"train.samples", "train.sample_tokens", "train.sample_prompts"};
    WARN_IF_ANY_GIVEN(c, of_samples, c->train.sample_every > 0, "train.sample_every is none");
}

static void warn_no_effect_critic(const config *c) {
    bool critic = c->task == TASK_CRITIC;
    for (size_t i = 0; config_key(i); i++)
        if (str_starts_with(config_key(i), "critic."))
            warn_if_given(c, config_key(i), critic, "train.task is not critic");
    static const char *const of_lambda[] = {"critic.error", "critic.gamma", "critic.lam"};
    WARN_IF_ANY_GIVEN(c, of_lambda, !critic || c->train.critic.loss + 1 == CRITIC_LAMBDA, "critic.loss is not lambda");
    warn_if_given(c, "critic.dropout", !critic || c->train.critic.head + 1 == VALUE_HEAD_MLP, "critic.head is not mlp");
    static const char *const of_pairs[] = {"data.task_column", "data.difficulty_column", "data.pairs_per_problem",
                                           "data.max_pairs"};
    WARN_IF_ANY_GIVEN(c, of_pairs, critic, "train.task is not critic");
}

static void warn_no_effect_weighting(const config *c) {
    weighting_kind w = c->train.weighting;
    bool weighs = c->task == TASK_MTP || c->task == TASK_SFT;
    warn_if_given(c, "train.weighting", weighs || w == WEIGHTING_BASELINE, "train.task is neither mtp nor sft");
    static const char *const of_value[] = {"verifiable.critic", "verifiable.lambda", "verifiable.beta",
                                           "verifiable.terminal"};
    WARN_IF_ANY_GIVEN(c, of_value, w == WEIGHTING_VERIFIABLE || w == WEIGHTING_SHUFFLED,
                      "train.weighting is neither verifiable nor shuffled");
    static const char *const of_rho1[] = {"rho1.k_percent", "rho1.mode", "rho1.first_head_all", "rho1.reference",
                                          "rho1.reference_on"};
    WARN_IF_ANY_GIVEN(c, of_rho1, w == WEIGHTING_RHO1, "train.weighting is not rho1");
}

static void warn_no_effect_lora(const config *c) {
    bool lora = c->model.lora_rank > 0, adapted = lora || *c->model.adapter;
    static const char *const of_new[] = {"model.lora.alpha", "model.lora.targets", "model.lora.rslora"};
    static const char *const of_any[] = {"model.lora.dropout", "model.lora.init"};
    WARN_IF_ANY_GIVEN(c, of_new, lora, "model.lora.rank is none");
    WARN_IF_ANY_GIVEN(c, of_any, adapted, "model.lora.rank is none");
}

static void warn_no_effect_run(const config *c) {
    bool may_gpu = c->run.device != DEVICE_CPU;
    warn_if_given(c, "parallel.attention", c->parallel.size[AXIS_SEQUENCE] != 1, "parallel.sequence is 1");
    warn_if_given(c, "run.keep", c->run.save_last || c->train.save_every > 0 || c->train.saves_per_epoch > 0,
                  "no checkpoint is written");
    warn_if_given(c, "run.gguf", export_is_gguf_name(c->run.export_dir), "run.export does not end in .gguf");
    warn_if_given(c, "run.gpu", may_gpu, "run.device is cpu");
    if (places_by_itself(c)) warn_if_given(c, "memory.place", may_gpu, "run.device is cpu");
    warn_if_given(c, "run.tf32", may_gpu, "run.device is cpu");
}

static void warn_no_effect_data(const config *c) {
    bool builtin = str_starts_with(c->data.source, "builtin:");
    warn_if_given(c, "data.difficulty", data_source_has_difficulty(c->data.source),
                  "data.source is not builtin:arithmetic, builtin:preferences or builtin:solutions");
    static const char *const of_files[] = {"data.format",
                                           "data.prompt_column",
                                           "data.response_column",
                                           "data.chosen_column",
                                           "data.rejected_column",
                                           "data.label_column",
                                           "data.correct_column",
                                           "data.task_column",
                                           "data.difficulty_column",
                                           "data.train_on",
                                           "data.chat",
                                           "data.chat_kwargs",
                                           "data.train_on_newline",
                                           "data.eos_token",
                                           "data.on_error",
                                           "data.max_line",
                                           "data.token_type",
                                           "data.cache"};
    WARN_IF_ANY_GIVEN(c, of_files, !builtin, "a built-in data.source reads no files");
    static const char *const of_records[] = {"data.prompt_column", "data.response_column", "data.train_on",
                                             "data.chosen_column", "data.rejected_column", "data.label_column",
                                             "data.chat",          "data.chat_kwargs",     "data.train_on_newline",
                                             "data.max_line"};
    bool has_records = builtin || data_source_has_records(&c->data);
    WARN_IF_ANY_GIVEN(c, of_records, has_records, "data.source is text, without records");
    warn_if_given(c, "data.eval_fraction", !builtin, "a built-in data.source makes its own held-out rows");
    warn_if_given(c, "data.eval_fraction", builtin || !data_has_eval_source(&c->data), "data.eval_source is given");
}

static void config_warn_no_effect(const config *c) {
    warn_no_effect_schedule(c);
    warn_no_effect_evaluation(c);
    warn_no_effect_fp8(c);
    warn_no_effect_memory(c);
    warn_no_effect_preference(c);
    warn_no_effect_reward(c);
    warn_no_effect_track(c);
    warn_no_effect_policy(c);
    warn_no_effect_critic(c);
    warn_no_effect_weighting(c);
    warn_no_effect_lora(c);
    warn_no_effect_run(c);
    warn_no_effect_data(c);
}

void config_warn_no_reference(const config *c) {
    warn_if_given(c, "memory.offload.reference", false, "the run has no frozen copy of the model");
}

void config_warn_no_effect_on_cpu(const config *c) {
    if (c->run.device == DEVICE_CPU) return; /* said already */
    warn_if_given(c, "run.gpu", false, "no GPU was found, the run uses the CPU");
    if (places_by_itself(c)) warn_if_given(c, "memory.place", false, "no GPU was found, the run uses the CPU");
    warn_if_given(c, "run.tf32", false, "no GPU was found, the run uses the CPU");
}

data_kind config_data_kind(const config *c) {
    if (c->task == TASK_CRITIC) return DATA_SOLUTIONS;
    if (c->task != TASK_PREFERENCE) return DATA_TEXT;
    return c->preference.loss + 1 == PREFERENCE_KTO ? DATA_LABELLED : DATA_PAIRS;
}

const char *config_preset(const config *c) {
    if (*c->model.path) return NULL;
    return *c->model.preset ? c->model.preset : PRESET_USUAL;
}

/* A model directory defines its model completely: no other model setting may be given. */
static status check_model(const config *c) {
    if (*c->model.path == 0) {
        if (c->model.init == INIT_PRETRAINED)
            return ERR(ERR_INPUT,
                       "model.init is pretrained but model.path is not given: presets have no weights; set model.path");
        return OK;
    }
    if (*c->model.preset)
        return ERR(ERR_INPUT, "model.path (%s) and model.preset (%s) are both given; keep one of them", c->model.path,
                   c->model.preset);
    const struct {
        const char *key;
        bool given;
    } sizes[] = {{"layers", c->model.layers},     {"hidden", c->model.hidden},     {"heads", c->model.heads},
                 {"kv_heads", c->model.kv_heads}, {"head_dim", c->model.head_dim}, {"ffn", c->model.ffn},
                 {"vocab", c->model.vocab},       {"tied", c->model.tied >= 0}};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        if (sizes[i].given)
            return ERR(ERR_INPUT,
                       "model.%s is given beside model.path: the sizes of that model are in %s/config.json; leave "
                       "model.%s out",
                       sizes[i].key, c->model.path, sizes[i].key);
    return OK;
}

/* Each axis may be as long as the world; their product must fit an int. */
static status check_mesh(const config *c) {
    enum { RANKS_MOST = 65536 };
    const int *size = c->parallel.size;
    int64_t n = 1;
    for (axis a = 0; a < AXIS_COUNT && n <= RANKS_MOST; a++) n *= MAX(size[a], 1);
    if (n <= RANKS_MOST) return OK;
    return ERR(ERR_INPUT,
               "parallel.*: found data %d x tensor %d x pipeline %d x sequence %d, expected at most %d ranks in all; "
               "lower one of them",
               MAX(size[AXIS_DATA], 1), size[AXIS_TENSOR], size[AXIS_PIPELINE], MAX(size[AXIS_SEQUENCE], 1),
               RANKS_MOST);
}

/* The schedule of a run with this many steps. */
status config_check_schedule(const train_options *t) {
    int64_t end = t->schedule_steps ? t->schedule_steps : t->steps;
    const char *end_key = t->schedule_steps ? "train.schedule_steps" : "train.steps";
    if (t->warmup > 0 && t->warmup >= end && t->schedule != SCHEDULE_CONSTANT)
        return ERR(ERR_INPUT,
                   "train.warmup is %lld and %s is %lld: nothing would be left for the schedule; "
                   "lower train.warmup to less than %lld",
                   (long long)t->warmup, end_key, (long long)end, (long long)end);
    if (t->schedule == SCHEDULE_WSD && (double)t->warmup + t->decay_share * (double)end > (double)end)
        return ERR(ERR_INPUT, "train.warmup (%lld) and train.decay_share (%g of %lld steps) overlap; lower one of them",
                   (long long)t->warmup, t->decay_share, (long long)end);
    return OK;
}

const char *config_steps_key(const char *key) {
    return strcmp(key, "train.epochs") == 0            ? "train.steps"
           : strcmp(key, "train.evals_per_epoch") == 0 ? "train.eval_every"
                                                       : "train.save_every";
}

const char *config_epochs_key(const config *c, double *found) {
    const train_options *t = &c->train;
    *found = t->epochs > 0 ? t->epochs : t->evals_per_epoch ? (double)t->evals_per_epoch : (double)t->saves_per_epoch;
    if (t->epochs > 0) return "train.epochs";
    return t->evals_per_epoch ? "train.evals_per_epoch" : t->saves_per_epoch ? "train.saves_per_epoch" : NULL;
}

static status check_rhythm(const config *c, const char *key, int64_t times, int64_t every) {
    if (times == 0 || every == 0) return OK;
    const char *steps = config_steps_key(key);
    return ERR(
        ERR_INPUT,
        "%s (%lld, given by %s) and %s (%lld, given by %s) are both given; keep one of them, and leave the other "
        "out (none)",
        key, (long long)times, config_given_by(c, key), steps, (long long)every, config_given_by(c, steps));
}

/* Epochs are counted in steps when the data is known. */
static status check_epochs(const config *c) {
    const train_options *t = &c->train;
    TRY(check_rhythm(c, "train.evals_per_epoch", t->evals_per_epoch, t->eval_every));
    TRY(check_rhythm(c, "train.saves_per_epoch", t->saves_per_epoch, t->save_every));
    if (t->epochs > 0 && t->steps > 0)
        return ERR(
            ERR_INPUT,
            "train.epochs (%g, given by %s) and train.steps (%lld, given by %s) are both given; keep one of them, and "
            "leave the other out (train.steps=auto, train.epochs=none)",
            t->epochs, config_given_by(c, "train.epochs"), (long long)t->steps, config_given_by(c, "train.steps"));
    if (t->warmup_ratio > 0 && t->warmup >= 0)
        return ERR(ERR_INPUT, "train.warmup_ratio (%g) and train.warmup (%lld) are both given; keep one of them",
                   t->warmup_ratio, (long long)t->warmup);
    double found;
    const char *key = config_epochs_key(c, &found);
    bool is_endless = str_starts_with(c->data.source, "builtin:") && strcmp(c->data.source, "builtin:solutions") != 0;
    if (!key || !is_endless || c->task == TASK_RLOO) return OK;
    if (!config_was_given(c, "data.source"))
        return ERR(ERR_INPUT, "%s: found %g and no data; give --data FILE, or set %s to train on the endless %s", key,
                   found, config_steps_key(key), c->data.source);
    return ERR(ERR_INPUT, "%s: found %g with the endless %s, expected none; set %s", key, found, c->data.source,
               config_steps_key(key));
}

/* AdamW moves a weight by about the learning rate in a step, whatever the gradient: weights are around 0.02. The limits are ten times and
 * more what is usual, so a search over learning rates sees no warning. */
static void warn_high_lr(const config *c) {
    bool pretrained = *c->model.path && c->model.init != INIT_RANDOM, lora = c->model.lora_rank || *c->model.adapter;
    double lr = c->train.lr, limit = lora ? 0.05 : pretrained ? 2e-3 : 0.1;
    if (lr <= limit || c->warned_elsewhere) return;
    log_warn("train.lr is %g, far above what is usual (%s): the loss will most likely diverge; AdamW moves every "
             "weight by about "
             "that much in a step",
             lr,
             lora         ? "1e-4 to 1e-3 with adapters"
             : pretrained ? "1e-5 to 1e-4 for a pretrained model"
                          : "1e-4 to 1e-2 from random weights");
}

static status check_fp8(const config *c) {
    int p = (int)c->choice.precision; /* negative: auto */
    const char *asked = c->choice.fp8_logits ? "logits" : c->choice.fp8_attention ? "attention" : NULL;
    if (!asked || (p >= 0 && precision_fp8(c->choice.precision))) return OK;
    return ERR(ERR_INPUT, "train.fp8.%s is true and precision is %s; set precision to fp8 or fp8_sr", asked,
               p < 0 ? "auto" : precision_name(c->choice.precision));
}

status config_check(const config *c) {
    const train_options *t = &c->train;
    TRY(check_model(c));
    TRY(check_mesh(c));
    TRY(check_epochs(c));
    train_options usual =
        *t; /* the steps of epochs, and of a warmup that follows from them, are checked with the request */
    if (!t->steps) usual.steps = STEPS_USUAL;
    if (t->epochs == 0 && t->warmup_ratio == 0 && t->warmup >= 0) TRY(config_check_schedule(&usual));
    if (t->schedule == SCHEDULE_WSD && t->style == STYLE_DEEPSPEED)
        return ERR(ERR_INPUT,
                   "train.schedule is wsd and train.schedule_style is deepspeed, which has no such schedule; "
                   "use constant, linear or cosine");
    if (t->rl.clip_low >= t->rl.clip_high)
        return ERR(ERR_INPUT,
                   "rl.reward_clip: found [%g, %g], expected the smallest reward and then a larger one, such as "
                   "[-10, 10]",
                   t->rl.clip_low, t->rl.clip_high);
    if (t->warmup_min_lr > t->lr)
        return ERR(ERR_INPUT, "train.warmup_min_lr is %g, above train.lr (%g); lower it", t->warmup_min_lr, t->lr);
    if (c->choice.precision == PRECISION_FP16 && t->loss_scale == 0 &&
        t->min_loss_scale > ldexp(1, (int)t->initial_scale_power))
        return ERR(ERR_INPUT,
                   "train.fp16.min_loss_scale is %g, above the first scale of 2^%lld; lower it or raise "
                   "train.fp16.initial_scale_power",
                   t->min_loss_scale, (long long)t->initial_scale_power);
    TRY(check_fp8(c));
    if (*c->reward.url) TRY(reward_url_check(c->reward.url, "reward.url"));
    if (c->model.heads && c->model.kv_heads && c->model.heads % c->model.kv_heads != 0)
        return ERR(ERR_INPUT,
                   "model.kv_heads (%lld) does not divide model.heads (%lld): every key head serves the same "
                   "number of query heads",
                   (long long)c->model.kv_heads, (long long)c->model.heads);
    int64_t rows, tokens;
    if (__builtin_mul_overflow(t->micro_batch, c->data.seq_len, &rows) || rows > INT32_MAX ||
        __builtin_mul_overflow(rows, MAX(t->accumulation, (int64_t)1), &tokens))
        return ERR(ERR_INPUT,
                   "train.micro_batch (%lld) times data.seq_len (%lld) is more than the %d tokens of one "
                   "micro-batch; use train.accumulation instead",
                   (long long)t->micro_batch, (long long)c->data.seq_len, INT32_MAX);
    if (strcmp(c->run.resume, "auto") == 0 && *c->run.dir == 0)
        return ERR(ERR_INPUT, "run.resume is auto but run.dir is not given: a new directory has nothing to resume; "
                              "set run.dir");
    warn_high_lr(c);
    config_warn_no_effect(c);
    return OK;
}
