/* llamafactory.c - YAML of LLaMA-Factory (llamafactory-cli train FILE): its own keys beside transformers'
 * TrainingArguments.
 *
 * Datasets are names in DIR/dataset_info.json, whose files are mostly JSON lists: that file is read to say which file
 * or name of the hub each is, and with which command it becomes JSON Lines. Templates are those of LLaMA-Factory; here
 * the tokenizer's own chat template is rendered, which is what they repeat, so the name has no effect, but for prompts
 * without any template. Refused: stages rm and ppo, finetuning_type freeze and oft, other optimizers and losses than
 * AdamW and those of ralo. */
#include "migrate/transformers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <strings.h>

#define INFO_MOST ((size_t)4 << 20)
#define OTHER_OPTIMIZER ONLY_ADAMW "; remove its keys"
#define BELONGS "it belongs to a method that ralo does not have"
#define INFERENCE "it is about inference; see `ralo generate --help`"

/* clang-format off */
static const foreign_row rows[] = {
#include "migrate/transformers.inc"
    {"{stage finetuning_type model_name_or_path dataset_dir template pref_loss}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"adapter_name_or_path", FOREIGN_SET, FT_TEXT, "model.adapter", NULL},
    {"{adapter_folder create_new_adapter export_dir export_size export_device export_legacy_format export_hub_model_id}", FOREIGN_IDLE, FT_ANY, NULL,
     "`ralo export` writes models and adapters"},
    {"{trust_remote_code hf_hub_token ms_hub_token om_hub_token model_revision cache_dir}", FOREIGN_IDLE, FT_ANY, NULL, NO_CODE},
    {"{use_fast_tokenizer low_cpu_mem_usage flash_attn use_unsloth use_unsloth_gc enable_liger_kernel use_reentrant_gc upcast_layernorm "
     "upcast_lmhead_output use_kv_cache use_v1_kernels print_param_status device_map compute_dtype block_diag_attn}", FOREIGN_IDLE, FT_ANY, NULL, ONE_STEP},
    {"{infer_backend infer_dtype offload_folder vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen "
     "sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend predict_with_generate do_sample num_beams "
     "length_penalty skip_special_tokens max_new_tokens eval_num_beams}", FOREIGN_IDLE, FT_ANY, NULL, INFERENCE},
    {"{resize_vocab shift_attn split_special_tokens train_from_scratch}", FOREIGN_OFF, FT_BOOL, NULL, "the model is trained as its files have it"},
    {"{add_tokens add_special_tokens new_special_tokens_config additional_target rope_scaling mixture_of_depths moe_aux_loss_coef}", FOREIGN_OFF, FT_ANY, NULL,
     "the model is trained as its files have it"},
    {"init_special_tokens",  FOREIGN_IDLE, FT_TEXT, NULL, "no tokens are added"},
    {"disable_gradient_checkpointing", FOREIGN_WORD, FT_TEXT, "memory.recompute", "true=none|false=full"},
    {"{pure_bf16 fp8 train_on_prompt packing neat_packing enable_thinking}", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {"{fp8_backend fp8_enable_fsdp_float8_all_gather}", FOREIGN_IDLE, FT_ANY, NULL, ONE_STEP},

    {"{quantization_bit lora_rank cutoff_len max_samples}", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"early_stopping_steps", FOREIGN_SET, FT_INT, "train.patience", NULL},
    {"quantization_method",  FOREIGN_WORD, FT_TEXT, "model.base", "bnb=|bitsandbytes="},
    {"quantization_type",    FOREIGN_WORD, FT_TEXT, "model.base", "nf4="},
    {"{double_quantization quantization_device_map}", FOREIGN_IDLE, FT_ANY, NULL, "nf4 takes 4.13 bits a weight, its scales included"},
    {"{lora_alpha lora_dropout val_size pref_beta}", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"{lora_target dataset eval_dataset}", FOREIGN_OWN, FT_ANY, NULL, NULL},
    {"use_rslora",           FOREIGN_SET, FT_BOOL, "model.lora.rslora", NULL},
    {"use_dora",             FOREIGN_OFF, FT_BOOL, NULL, "ralo has LoRA (also rank-stabilised and PiSSA), not DoRA"},
    {"pissa_init",           FOREIGN_WORD, FT_TEXT, "model.lora.init", "true=pissa|false=default"},
    {"pissa_iter",           FOREIGN_IDLE, FT_INT, NULL, "PiSSA here takes the singular values exactly"},
    {"pissa_convert",        FOREIGN_IDLE, FT_BOOL, NULL, "`ralo export` writes the adapter, with --merge the whole model"},
    {"loraplus_lr_ratio",    FOREIGN_OFF, FT_REAL, NULL, "both matrices of an adapter learn with train.lr"},
    {"loraplus_lr_embedding", FOREIGN_IDLE, FT_REAL, NULL, BELONGS},
    {"{freeze_trainable_layers freeze_trainable_modules freeze_extra_modules oft_rank oft_block_size oft_target module_dropout "
     "galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise apollo_target apollo_rank apollo_update_interval "
     "apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_layerwise apollo_scale_front badam_mode badam_start_block badam_switch_mode "
     "badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose asft_alpha eaft_alpha}", FOREIGN_IDLE, FT_ANY, NULL, BELONGS},
    {"{use_galore use_apollo use_badam use_adam_mini use_muon}", FOREIGN_OFF, FT_BOOL, NULL, OTHER_OPTIMIZER},
    {"{use_dft_loss use_asft_loss use_eaft_loss}", FOREIGN_OFF, FT_BOOL, NULL, "sft has the plain loss of each token; train.weighting weighs tokens"},
    {"use_llama_pro",        FOREIGN_OFF, FT_BOOL, NULL, "ralo adds no blocks to a model"},
    {"{use_mca use_megatron_bridge use_hyper_parallel use_kt}", FOREIGN_OFF, FT_BOOL, NULL, "ralo trains by itself: see parallel.* and memory.*"},
    {"{image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels video_fps video_maxlen "
     "use_audio_in_video audio_sampling_rate media_dir freeze_vision_tower freeze_multi_modal_projector}", FOREIGN_OFF, FT_ANY, NULL, NO_IMAGES},
    {"freeze_language_model", FOREIGN_OFF, FT_BOOL, NULL, NO_IMAGES},

    {"max_length",           FOREIGN_IDLE, FT_INT, NULL, INFERENCE},
    {"mask_history",         FOREIGN_OFF, FT_BOOL, NULL, "every turn of the assistant counts in the loss"},
    {"{streaming buffer_size overwrite_cache preprocessing_batch_size preprocessing_num_workers tokenized_path data_shared_file_system "
     "ignore_pad_token_for_loss eval_on_each_dataset disable_shuffling}", FOREIGN_IDLE, FT_ANY, NULL, LOADER},
    {"mix_strategy",         FOREIGN_WORD, FT_TEXT, "data.source", "concat="},
    {"interleave_probs",     FOREIGN_OFF, FT_ANY, NULL, "weights stand beside the files: data.source=\"a.jsonl:0.7, b.jsonl:0.3\""},
    {"{tool_format default_system preserve_thinking}", FOREIGN_OFF, FT_ANY, NULL, "put it into the records, or into the tokenizer's chat template"},

    {"pref_ftx",             FOREIGN_OFF, FT_REAL, NULL, "preferences have no term of the chosen answer's loss; ORPO has: pref_loss: orpo"},
    {"{pref_bco_weight ld_alpha}", FOREIGN_OFF, FT_REAL, NULL, "ralo has no such term in its loss"},
    {"dpo_label_smoothing",  FOREIGN_SET, FT_REAL, "preference.label_smoothing", NULL},
    {"kto_chosen_weight",    FOREIGN_SET, FT_REAL, "preference.desirable_weight", NULL},
    {"kto_rejected_weight",  FOREIGN_SET, FT_REAL, "preference.undesirable_weight", NULL},
    {"simpo_gamma",          FOREIGN_SET, FT_REAL, "preference.gamma", NULL},
    {"{ref_model ref_model_adapters}", FOREIGN_OFF, FT_TEXT, NULL, "the reference is the model as it begins (preference.reference)"},
    {"ref_model_quantization_bit", FOREIGN_IDLE, FT_INT, NULL, "the reference is the model as it begins"},
    {"{reward_model reward_model_adapters reward_model_quantization_bit reward_model_type ppo_buffer_size ppo_epochs ppo_score_norm ppo_target "
     "ppo_whiten_rewards}", FOREIGN_IDLE, FT_ANY, NULL, BELONGS},

    {"{plot_loss compute_accuracy include_effective_tokens_per_second use_swanlab swanlab_project swanlab_workspace swanlab_run_name swanlab_mode "
     "swanlab_api_key swanlab_logdir swanlab_lark_webhook_url swanlab_lark_secret enable_torch_profiler profiler_output_dir profiler_wait_steps "
     "profiler_warmup_steps profiler_active_steps profiler_repeat profiler_record_shapes profiler_profile_memory profiler_with_stack profile_modules}",
                             FOREIGN_IDLE, FT_ANY, NULL, NUMBERS},
    {"{ray_run_name ray_storage_path ray_num_workers placement_strategy master_addr master_port}", FOREIGN_IDLE, FT_ANY, NULL, RANKS_HERE},
    {"{ray_init_kwargs ray_storage_filesystem resources_per_worker}", FOREIGN_WHOLE, FT_ANY, NULL, RANKS_HERE},
    {"{temperature top_p top_k repetition_penalty}", FOREIGN_IDLE, FT_REAL, NULL, INFERENCE},
};
/* clang-format on */

/* ---- datasets by name ------------------------------------------------------------------------------------------- */

static json_t *info_read(const char *path) {
    char *text;
    size_t n_bytes;
    json_error_t error;
    if (file_read_all(path, INFO_MOST, &text, &n_bytes) != OK) {
        error_clear();
        return NULL;
    }
    json_t *root = json_loadb(text, n_bytes, 0, &error);
    free(text);
    return root;
}

static bool is_safe(const char *path) {
    return !path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-")];
}

/* What one name stands for: a file in dir to convert, a name of the hub, or nothing that is known here. */
static void source_find(foreign_reader *r, trainer_source *s, const json_t *info, const char *dir, const char *name) {
    const foreign_item *most = foreign_find(r, "max_samples");
    const char *head = most ? foreign_format(r, " | head -n %lld", (long long)MAX(item_whole(most), (int64_t)1)) : "";
    const json_t *entry = json_object_get(info, name);
    const char *hub = json_string_value(json_object_get(entry, "hf_hub_url")),
               *file = json_string_value(json_object_get(entry, "file_name"));
    s->name = name;
    if (hub && !file) {
        s->name = foreign_format(r, "%s", hub);
        return;
    }
    const char *path = foreign_format(r, "%s/%s", dir, file ? file : foreign_format(r, "%s.json", name));
    bool is_read = str_ends_with(path, ".jsonl") || str_ends_with(path, ".csv") || str_ends_with(path, ".tsv");
    is_read |= str_ends_with(path, ".json") && !most && access(path, R_OK) == 0; /* a list, as it is */
    if (is_read && is_safe(path)) s->name = path;
    else if (is_safe(path) && is_safe(name))
        s->convert = foreign_format(r, "jq -c '.[]' %s%s >%s.jsonl", path, head, name);
}

/* The datasets of a key, "a,b" or a list; how many. */
static size_t sources_find(foreign_reader *r, const foreign_item *names, const char *dir, trainer_source *out) {
    size_t n = 0;
    json_t *info = info_read(foreign_format(r, "%s/dataset_info.json", dir));
    for (const char *at = names ? trainer_list(r, names) : ""; *at && n < LIST_MOST;) {
        size_t length = strcspn(at, ",");
        out[n] = (trainer_source){.path = names};
        source_find(r, &out[n++], info, dir, foreign_format(r, "%.*s", (int)length, at));
        at += length + (at[length] == ',');
    }
    json_decref(info);
    if (names && n == 0) foreign_refuse(r, names, "expected names of datasets, separated by commas");
    return n;
}

static status translate_data(foreign_reader *r) {
    const foreign_item *names = foreign_find(r, "dataset"), *place = foreign_find(r, "dataset_dir"),
                       *held = foreign_find(r, "eval_dataset");
    trainer_source sources[LIST_MOST], evaluated[LIST_MOST];
    const char *dir = place ? place->text : "data";
    size_t n = sources_find(r, names, dir, sources), n_evaluated = sources_find(r, held, dir, evaluated);
    const foreign_item *most = foreign_find(r, "max_samples"), *stage = foreign_find(r, "stage");
    bool trains = names || stage ||
                  trainer_has_any(r, "",
                                  "do_train learning_rate per_device_train_batch_size num_train_epochs max_steps "
                                  "deepspeed output_dir cutoff_len");
    if (!trains && !config_was_given(r->c, "data.source"))
        foreign_problem(
            r->f,
            "%s: found no dataset and no stage: a file for inference or a merge, not for training; use ralo "
            "generate --model DIR --adapter ADAPTER --prompt TEXT, or ralo export DIR OUT --adapter ADAPTER "
            "--merge",
            r->file->path);
    foreign_report_no_effect(r, most,
                             "all records of a file are used; the command that makes the file takes the first of them");
    foreign_report_no_effect(r, place, "where dataset_info.json was looked for");
    TRY(trainer_data(r, sources, n));
    TRY(trainer_eval_data(r, evaluated, n_evaluated));
    return trainer_held_out(r, foreign_find(r, "val_size"), n_evaluated > 0);
}

/* ---- stages ----------------------------------------------------------------------------------------------------- */

static status translate_preference(foreign_reader *r, const foreign_item *stage) {
    const foreign_item *loss = foreign_find(r, "pref_loss"), *beta = foreign_find(r, "pref_beta");
    bool is_kto = strcmp(stage->text, "kto") == 0;
    const char *said = loss ? foreign_word(r, "sigmoid=dpo|ipo=ipo|orpo=orpo|simpo=simpo", loss->text, false) : NULL,
               *kind = said     ? said
                       : is_kto ? "kto"
                                : "dpo";
    bool is_known = !loss || said || is_kto;
    TRY(foreign_offer(r, stage, "train.task", "preference", NULL));
    if (!is_known) foreign_refuse(r, loss, "ralo has sigmoid (DPO), ipo, orpo and simpo");
    else TRY(foreign_offer(r, loss ? loss : stage, "preference.loss", kind, NULL));
    bool is_orpo = strcmp(kind, "orpo") == 0;
    if (strcmp(kind, "simpo") == 0 && !foreign_find(r, "simpo_gamma"))
        TRY(foreign_offer_text(r, NULL, "preference.gamma", "0.5"));
    return foreign_offer_text(r, beta, is_orpo ? "preference.lambda" : "preference.beta", "0.1");
}

static status translate_stage(foreign_reader *r) {
    const foreign_item *stage = foreign_find(r, "stage"), *packing = foreign_find(r, "packing"),
                       *neat = foreign_find(r, "neat_packing"), *all = foreign_find(r, "train_on_prompt");
    const char *word = stage ? stage->text : "sft";
    bool is_text = strcmp(word, "pt") == 0, is_preference = strcmp(word, "dpo") == 0 || strcmp(word, "kto") == 0;
    if (is_preference) TRY(translate_preference(r, stage));
    else if (is_text || strcmp(word, "sft") == 0) TRY(foreign_offer(r, stage, "train.task", "sft", NULL));
    else foreign_refuse(r, stage, "ralo has pt, sft, dpo and kto; rollouts with rewards are train.task rloo");
    if (!is_preference) trainer_report_keys(r, "", "pref_loss pref_beta", "stage is not dpo or kto");
    if (neat && !item_is_true(neat) && item_is_true(packing))
        foreign_refuse(r, neat, "packed documents never see each other here; say true, or remove it");
    else foreign_report_no_effect(r, neat, "packed documents never see each other");
    if (!is_preference) TRY(foreign_offer_text(r, packing, "data.pack", is_text ? "true" : "false"));
    else TRY(foreign_offer(r, packing, "data.pack", "false", "a batch counts examples, so a row holds one"));
    if (is_text) TRY(foreign_offer(r, all ? all : stage, "data.train_on", "all", NULL));
    else if (all) TRY(foreign_offer(r, all, "data.train_on", item_is_true(all) ? "all" : "response", NULL));
    return OK;
}

static status translate_kind(foreign_reader *r) {
    const foreign_item *kind = foreign_find(r, "finetuning_type"), *bits = foreign_find(r, "quantization_bit");
    bool is_lora = !kind || strcmp(kind->text, "lora") == 0;
    if (!is_lora && strcmp(kind->text, "full") != 0) foreign_refuse(r, kind, "ralo has full and lora");
    else if (kind && !is_lora) foreign_report_set(r, kind, "model.lora.rank", "all parameters are trained");
    trainer_adapter adapter = {.is_on = is_lora,
                               .why_off = "finetuning_type is not lora",
                               .rank = "lora_rank",
                               .alpha = "lora_alpha",
                               .dropout = "lora_dropout",
                               .targets = "lora_target",
                               .usual_rank = "8",
                               .usual_targets = "all-linear"};
    TRY(trainer_lora(r, &adapter));
    if (kind && is_lora) foreign_report_set(r, kind, "model.lora.rank", NULL);
    if (!bits) return OK;
    if (item_whole(bits) != 4 && item_whole(bits) != 8) foreign_refuse(r, bits, "ralo has 4 (nf4) and 8 (int8)");
    else if (!is_lora) foreign_refuse(r, bits, "weights of so few bits are frozen, so it needs finetuning_type: lora");
    else return foreign_offer(r, bits, "model.base", item_whole(bits) == 4 ? "nf4" : "int8", NULL);
    return OK;
}

static status translate_template(foreign_reader *r) {
    const foreign_item *name = foreign_find(r, "template"), *thinking = foreign_find(r, "enable_thinking");
    if (name && (strcmp(name->text, "default") == 0 || strcmp(name->text, "empty") == 0))
        foreign_refuse(
            r, name,
            "LLaMA-Factory's own format; remove it for the tokenizer's chat template, or give --set data.chat=none");
    else if (name && str_ends_with(name->text, "_nothink"))
        TRY(foreign_offer(r, name, "data.chat_kwargs", "{\"enable_thinking\": false}",
                          "of the tokenizer's chat template"));
    else if (name) foreign_report_set(r, name, "data.chat", "the tokenizer's chat template");
    if (thinking)
        return foreign_offer(r, thinking, "data.chat_kwargs",
                             item_is_true(thinking) ? "{\"enable_thinking\": true}" : "{\"enable_thinking\": false}",
                             NULL);
    return OK;
}

static status translate_precision(foreign_reader *r) {
    TRY(foreign_offer_switch(r, foreign_find(r, "fp8"), "precision", "fp8", NULL));
    return foreign_offer_switch(r, foreign_find(r, "pure_bf16"), "precision", "bf16_sr", ROUNDED);
}

static status translate(foreign_reader *r) {
    TRY(trainer_model(r, foreign_find(r, "model_name_or_path")));
    TRY(translate_data(r));
    TRY(translate_stage(r));
    TRY(translate_kind(r));
    TRY(translate_template(r));
    TRY(translate_precision(r));
    TRY(trainer_row_length(r, foreign_find(r, "cutoff_len"), "2048"));
    return transformers_translate(r, &(transformers_defaults){.lr = "5e-5", .precision = "fp32", .micro_batch = "8"});
}

const foreign_dialect foreign_llamafactory = {.name = "LLaMA-Factory",
                                              .rows = rows,
                                              .n_rows = ARRAY_LENGTH(rows),
                                              .signature = "finetuning_type cutoff_len template dataset_dir stage",
                                              .translate = translate};
