/* trl.c - YAML of TRL's commands (trl sft, dpo, kto, grpo, rloo ... --config FILE) and flat files of transformers'
 * TrainingArguments.
 *
 * The command says the method and the file does not, so the method is what the keys belong to: num_generations and
 * rewards to GRPO or RLOO, weights of labels to KTO, beta or a loss of preferences to DPO and its relatives, nothing of
 * that to SFT. --set train.task=... says otherwise. Batches of GRPO and RLOO count completions; here a rollout counts
 * prompts (rl.prompts) with rl.k completions each. Refused: losses, divergences and rewards that ralo does not have;
 * Python functions as rewards run as reward.program. */
#include "migrate/rollout.h"
#include "migrate/transformers.h"

#include <string.h>
#include <strings.h>

/* clang-format off */
static const foreign_row rows[] = {
#include "migrate/transformers.inc"
    {"{model_name_or_path dataset_name dataset_config dataset_train_split}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"{model_revision trust_remote_code}", FOREIGN_IDLE, FT_ANY, NULL, NO_CODE},
    {"{attn_implementation bnb_4bit_quant_storage use_bnb_nested_quant ddp}", FOREIGN_IDLE, FT_ANY, NULL, ONE_STEP},
    {"{dtype torch_dtype}",      FOREIGN_WORD, FT_TEXT, "model.init", "auto=|float32=|bfloat16=|float16=|fp32=|bf16=|fp16="},
    {"model_init_kwargs",        FOREIGN_WHOLE, FT_ANY, NULL, ONE_STEP},
    {"bnb_4bit_quant_type",      FOREIGN_WORD, FT_TEXT, "model.base", "nf4="},
    {"{load_in_8bit load_in_4bit use_peft completion_only_loss assistant_only_loss precompute_ref_log_probs}", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {"{lora_r max_length max_seq_length max_seq_len max_prompt_length}", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"{lora_alpha lora_dropout label_smoothing desirable_weight undesirable_weight simpo_gamma}", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"lora_target_modules", FOREIGN_OWN, FT_ANY, NULL, NULL},
    {"{lora_target_parameters lora_modules_to_save}", FOREIGN_OFF, FT_ANY, NULL, "LoRA trains adapters of linear layers and nothing else; remove it"},
    {"lora_task_type",           FOREIGN_WORD, FT_TEXT, "model.init", "CAUSAL_LM="},
    {"use_rslora",               FOREIGN_SET, FT_BOOL, "model.lora.rslora", NULL},
    {"use_dora",                 FOREIGN_OFF, FT_BOOL, NULL, "ralo has LoRA (also rank-stabilised and PiSSA), not DoRA"},
    {"dataset_test_split",       FOREIGN_IDLE, FT_TEXT, NULL, "data.eval_fraction of each file is held out"},
    {"datasets.{path name split}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"datasets.data_files", FOREIGN_OWN, FT_ANY, NULL, NULL},
    /* of the alignment handbook */
    {"dataset_mixture.datasets.{id config split}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"dataset_mixture.datasets.weight", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"dataset_mixture.datasets.columns", FOREIGN_IDLE, FT_ANY, NULL, "keys of a record that nothing reads do no harm"},
    {"dataset_mixture.test_split_size", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"dataset_mixture.seed",     FOREIGN_IDLE, FT_INT, NULL, "the last records of a file are held out"},
    {"datasets.{data_dir columns fraction}", FOREIGN_OFF, FT_ANY, NULL, "choose these while converting, or weigh files in data.source"},
    {"{dataset_streaming streaming dataset_num_proc shuffle_dataset}", FOREIGN_IDLE, FT_ANY, NULL, LOADER},
    {"test_split_size",          FOREIGN_SET, FT_REAL, "data.eval_fraction", NULL},
    {"dataset_kwargs",           FOREIGN_WHOLE, FT_ANY, NULL, LOADER},
    {"ignore_bias_buffers",      FOREIGN_IDLE, FT_BOOL, NULL, RANKS_HERE},
    {"dataset_text_field",       FOREIGN_WORD, FT_TEXT, "data.prompt_column", "text="},
    {"truncation_mode",          FOREIGN_WORD, FT_TEXT, "data.pack", "keep_start="},
    {"packing",                  FOREIGN_SET, FT_BOOL, "data.pack", NULL},
    {"{packing_strategy padding_free pad_to_multiple_of eval_packing pad_token disable_dropout cast_lm_head_to_fp32 "
     "ds3_gather_for_generation router_aux_loss_coef}", FOREIGN_IDLE, FT_ANY, NULL, ONE_STEP},
    {"eos_token",                FOREIGN_SET, FT_TEXT, "data.eos_token", NULL},
    {"{chat_template_path chat_template}", FOREIGN_OFF, FT_TEXT, NULL, "put it into the model's directory as chat_template.jinja"},
    {"activation_offloading",    FOREIGN_WORD, FT_TEXT, "memory.offload.activations", "true=host|false=none"},

    {"cpo_alpha",                FOREIGN_OFF, FT_REAL, NULL, NO_CPO},
    {"{precompute_ref_batch_size ref_model_mixup_alpha ref_model_sync_steps ref_model_init_kwargs}", FOREIGN_IDLE, FT_ANY, NULL,
     "preference.reference says how the reference is kept"},
    {"{sync_ref_model reference_free force_use_ref_model}", FOREIGN_OFF, FT_BOOL, NULL, "the reference is the model as it begins"},
    {"{rpo_alpha ld_alpha loss_weights use_weighting}", FOREIGN_OFF, FT_ANY, NULL, "ralo has no such term in its loss"},
    {"{f_alpha_divergence_coef discopop_tau sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg "
     "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target}", FOREIGN_IDLE, FT_REAL, NULL, "it belongs to a loss that is off"},
    {"f_divergence_type",        FOREIGN_WORD, FT_TEXT, "preference.loss", "reverse_kl="},
    {"{generate_during_eval padding_value label_pad_token_id}", FOREIGN_IDLE, FT_ANY, NULL, ONE_STEP},
    {"is_encoder_decoder",       FOREIGN_OFF, FT_BOOL, NULL, "ralo trains decoders"},
    {"alpha",                    FOREIGN_OFF, FT_REAL, NULL, "ralo has no AlphaPO; remove it"},

#define ROLLOUT ""
#include "migrate/rollout.inc"
};
/* clang-format on */

typedef enum method { SFT, PREFERENCE, KTO, RL } method;

static bool loss_is(const foreign_reader *r, const char *words) {
    const foreign_item *loss = foreign_find(r, "loss_type");
    return loss && trainer_word_in(trainer_list(r, loss), words);
}

/* max_completion_length is a key of GRPO and RLOO, and of older versions of DPO, KTO, ORPO and CPO. */
static bool is_of_rollouts(const foreign_reader *r) {
    return trainer_has_any(r, "",
                           "num_generations rloo_k reward_funcs reward_weights num_iterations epsilon epsilon_high "
                           "generation_batch_size steps_per_generation scale_rewards importance_sampling_level "
                           "normalize_advantages "
                           "reward_clip_range use_vllm vllm_mode kl_coef") ||
           loss_is(r, "grpo dr_grpo dapo bnpo");
}

static bool is_of_preferences(const foreign_reader *r) {
    return trainer_has_any(r, "",
                           "label_smoothing precompute_ref_log_probs simpo_gamma cpo_alpha sync_ref_model rpo_alpha") ||
           (foreign_find(r, "loss_type") && !loss_is(r, "nll dft chunked_nll"));
}

static method method_of(const foreign_reader *r) {
    if (config_was_given(r->c, "train.task")) {
        const char *task = foreign_value(r, "train.task");
        bool is_kto = strcmp(foreign_value(r, "preference.loss"), "kto") == 0;
        return strcmp(task, "rloo") == 0 ? RL : strcmp(task, "preference") != 0 ? SFT : is_kto ? KTO : PREFERENCE;
    }
    if (is_of_rollouts(r)) return RL;
    if (trainer_has_any(r, "", "desirable_weight undesirable_weight") || loss_is(r, "kto")) return KTO;
    if (is_of_preferences(r)) return PREFERENCE;
    if (foreign_find(r, "max_completion_length")) return RL;
    if (trainer_has_any(r, "", "beta max_prompt_length")) return PREFERENCE;
    return SFT;
}

/* ---- preferences ------------------------------------------------------------------------------------------------ */

static status translate_preference(foreign_reader *r, method m) {
    const foreign_item *loss = foreign_find(r, "loss_type"), *beta = foreign_find(r, "beta"),
                       *gamma = foreign_find(r, "simpo_gamma"), *disk = foreign_find(r, "precompute_ref_log_probs"),
                       *alpha = foreign_find(r, "cpo_alpha");
    const char *said = loss ? foreign_word(r, "sigmoid=dpo|dpo=dpo|ipo=ipo|simpo=simpo|orpo=orpo|kto=kto",
                                           trainer_list(r, loss), false)
                            : NULL,
               *kind = said             ? said
                       : m == KTO       ? "kto"
                       : gamma && !loss ? "simpo"
                                        : "dpo";
    TRY(foreign_offer(r, NULL, "train.task", "preference", "its keys are of preferences"));
    if (loss && !said) foreign_refuse(r, loss, "ralo has sigmoid (DPO), ipo, simpo, orpo and kto");
    else TRY(foreign_offer(r, loss, "preference.loss", kind, NULL));
    bool is_orpo = strcmp(kind, "orpo") == 0, is_simpo = strcmp(kind, "simpo") == 0;
    if (is_simpo && !alpha) foreign_refuse(r, loss ? loss : gamma, "TRL's default beside it is cpo_alpha: 1; " NO_CPO);
    TRY(foreign_offer_text(r, beta, is_orpo ? "preference.lambda" : "preference.beta", is_simpo ? "0.1" : NULL));
    TRY(foreign_offer_text(r, foreign_find(r, "label_smoothing"), "preference.label_smoothing", NULL));
    TRY(foreign_offer_text(r, foreign_find(r, "desirable_weight"), "preference.desirable_weight", NULL));
    TRY(foreign_offer_text(r, foreign_find(r, "undesirable_weight"), "preference.undesirable_weight", NULL));
    TRY(foreign_offer_text(r, gamma, "preference.gamma", is_simpo ? "0.5" : NULL));
    if (disk) TRY(foreign_offer(r, disk, "preference.reference", item_is_true(disk) ? "disk" : "auto", NULL));
    return OK;
}

/* ---- all of them ------------------------------------------------------------------------------------------------ */

static status translate_row_length(foreign_reader *r, method m) {
    static const char *const names[] = {"max_length", "max_seq_length", "max_seq_len"};
    const foreign_item *said = NULL, *prompt = foreign_find(r, "max_prompt_length"),
                       *completion = foreign_find(r, "max_completion_length");
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        const foreign_item *one = foreign_find(r, names[i]);
        if (one && said) foreign_refuse(r, one, "%s in line %d says it too; keep one", said->key, said->line);
        else if (one) said = one;
    }
    if (said || m != RL) TRY(trainer_row_length(r, said, "1024"));
    else if (prompt && item_whole(prompt) < INT32_MAX && (completion ? item_whole(completion) : 512) < INT32_MAX)
        return foreign_offer(
            r, prompt, "data.seq_len",
            foreign_format(r, "%lld", (long long)(item_whole(prompt) + (completion ? item_whole(completion) : 512))),
            "prompt and completion");
    if (prompt) foreign_report_no_effect(r, prompt, "prompt and answer share a row");
    return OK;
}

/* TRL counts the completions of records with a prompt, and every token of conversations. Which kind a file holds is not
 * known yet. */
static status translate_trained_tokens(foreign_reader *r, method m) {
    const foreign_item *completion = foreign_find(r, "completion_only_loss"),
                       *assistant = foreign_find(r, "assistant_only_loss");
    if (m != SFT) {
        foreign_report_no_effect(r, completion, "answers alone are trained on");
        foreign_report_no_effect(r, assistant, "answers alone are trained on");
        return OK;
    }
    bool is_all = completion && !item_is_true(completion) && !item_is_true(assistant);
    const char *value = is_all ? "all" : "response", *note = NULL;
    if (!is_all && !item_is_true(assistant))
        note = "of `messages` TRL counts every token unless assistant_only_loss is true: --set data.train_on=all";
    TRY(foreign_offer(r, completion ? completion : assistant, "data.train_on", value, note));
    if (completion && assistant) foreign_report_set(r, assistant, "data.train_on", NULL);
    return OK;
}

/* config, split and files of a data set: without its name (--data gives the file) they say nothing. */
static void report_parts(foreign_reader *r, const trainer_source *s) {
    const char *note = s->path ? "part of the dataset's name" : "no dataset is named beside it";
    foreign_report_no_effect(r, s->config, note);
    foreign_report_no_effect(r, s->split, note);
    foreign_report_no_effect(r, s->files, note);
}

/* dataset_mixture of the alignment handbook: a weight is the share of a data set that is used. */
static status mixture_sources(foreign_reader *r, trainer_source *sources, size_t *n) {
    static const char list[] = "dataset_mixture.datasets";
    const foreign_item *held = foreign_find(r, "dataset_mixture.test_split_size");
    bool is_given = config_was_given(r->c, "data.source"); /* then nothing is made of these names */
    size_t first = *n;
    for (int i = -1; i < LIST_MOST; i++) {
        const foreign_item *share = trainer_dataset_of(r, list, i, "weight");
        trainer_source s = trainer_source_find(r, list, i, "id config split");
        report_parts(r, &s);
        if (share && item_real(share) != 1 && !is_given)
            foreign_refuse(r, share, "take that share of the records while converting");
        else foreign_report_no_effect(r, share, "all records");
        if (!s.path) continue;
        for (size_t k = first; k < *n; k++) s.is_again |= strcmp(sources[k].path->text, s.path->text) == 0;
        sources[(*n)++] = s;
    }
    return held ? trainer_held_out(r, held, false) : OK;
}

static status translate_data(foreign_reader *r) {
    trainer_source sources[2 * LIST_MOST + 4];
    size_t n = 0;
    for (int i = -1; i < LIST_MOST; i++) {
        trainer_source s = trainer_source_find(r, "datasets", i, "path name split data_files");
        report_parts(r, &s);
        if (s.path) sources[n++] = s;
    }
    trainer_source named = {.path = foreign_find(r, "dataset_name"),
                            .config = foreign_find(r, "dataset_config"),
                            .split = foreign_find(r, "dataset_train_split")};
    report_parts(r, &named);
    if (named.path) sources[n++] = named;
    TRY(mixture_sources(r, sources, &n));
    return trainer_data(r, sources, n);
}

/* Keys of a method that this file does not use. */
static void report_others(foreign_reader *r, method m) {
    const char *note = foreign_format(r, "train.task is %s", foreign_value(r, "train.task"));
    if (m != RL)
        trainer_report_keys(r, "",
                            "num_generations rloo_k generation_batch_size steps_per_generation num_iterations "
                            "importance_sampling_level scale_rewards reward_funcs reward_weights max_completion_length",
                            note);
    if (m != PREFERENCE && m != KTO)
        trainer_report_keys(
            r, "", "label_smoothing desirable_weight undesirable_weight simpo_gamma precompute_ref_log_probs", note);
    if (m != SFT) return;
    trainer_report_keys(r, "", "beta", note);
    const foreign_item *loss = foreign_find(r, "loss_type");
    if (loss && !loss_is(r, "nll chunked_nll"))
        foreign_refuse(r, loss, "the loss of sft is nll; train.weighting weighs tokens");
    else foreign_report_no_effect(r, loss, "the loss of sft");
}

static status translate(foreign_reader *r) {
    method m = method_of(r);
    const foreign_item *peft = foreign_find(r, "use_peft"), *four = foreign_find(r, "load_in_4bit"),
                       *eight = foreign_find(r, "load_in_8bit");
    TRY(trainer_model(r, foreign_find(r, "model_name_or_path")));
    TRY(translate_data(r));
    if (m == RL)
        TRY(rollout_translate(r, &(rollout_keys){.prefix = "",
                                                 .rows = foreign_find(r, "per_device_train_batch_size"),
                                                 .accumulation = foreign_find(r, "gradient_accumulation_steps"),
                                                 .usual_rows = 8}));
    else if (m != SFT) TRY(translate_preference(r, m));
    else
        TRY(foreign_offer(
            r, NULL, "train.task", "sft",
            "no key of another method is there; TRL's command says it: --set train.task=preference or rloo"));
    TRY(translate_trained_tokens(r, m));
    TRY(foreign_offer(
        r, NULL, "data.chat", "auto",
        "TRL writes prompts that are texts, not messages, without the chat template: --set data.chat=none"));
    report_others(r, m);
    trainer_adapter adapter = {.is_on = item_is_true(peft),
                               .why_off = "use_peft is off",
                               .rank = "lora_r",
                               .alpha = "lora_alpha",
                               .dropout = "lora_dropout",
                               .targets = "lora_target_modules",
                               .usual_rank = "16",
                               .usual_alpha = "32",
                               .usual_dropout = "0.05",
                               .usual_targets = "q,v"};
    TRY(trainer_lora(r, &adapter));
    if (peft && adapter.is_on) foreign_report_set(r, peft, "model.lora.rank", NULL);
    else foreign_report_no_effect(r, peft, "off");
    TRY(trainer_weights(r, four, eight, adapter.is_on));
    if (!foreign_find(r, "packing") && m != RL)
        TRY(foreign_offer(r, NULL, "data.pack", "false",
                          m == SFT ? "its default" : "a batch counts examples, so a row holds one"));
    TRY(translate_row_length(r, m));
    const foreign_item *when = foreign_find(r, "eval_strategy"), *before = foreign_find(r, "evaluation_strategy");
    bool evaluates = (when && !foreign_is_off(when)) || (before && !foreign_is_off(before));
    if (!foreign_find(r, "test_split_size") &&
        !evaluates) /* else a share is held out, as there is no split of the hub */
        TRY(foreign_offer(r, NULL, "data.eval_fraction", "0", "it holds nothing out"));
    return transformers_translate(r, &(transformers_defaults){.lr = m == SFT ? "2e-5" : "1e-6",
                                                              .precision = "bf16",
                                                              .micro_batch = "8",
                                                              .counts_completions = m == RL});
}

const foreign_dialect foreign_trl = {.name = "TRL",
                                     .rows = rows,
                                     .n_rows = ARRAY_LENGTH(rows),
                                     .signature = "model_name_or_path",
                                     .translate = translate};
