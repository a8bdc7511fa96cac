/* axolotl.c - YAML of Axolotl (axolotl train FILE) as settings of ralo.
 *
 * Which records a dataset has its type says there; here they are known by their keys, so a type of Axolotl's own has no
 * effect, and a Python function is refused. The names of chat templates mean the template of the tokenizer, unless ralo
 * has the format itself. Kernels and plugins that only make a step faster have no effect: the step here is one compiled
 * program. Refused: methods that ralo does not have (reward models, quantization-aware training, ReLoRA, diffusion
 * ...), models of images and experts. */
#include "migrate/rollout.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define RECORDS "records are known by their keys; rename others while converting (data.*_column names some)"
#define NO_TOKENS \
    "the vocabulary is that of the model's files; add tokens to them, with rows of the embeddings, before training"
#define EXPERTS "mixture of experts is not supported yet"
#define OF_TURNS \
    "data.train_on says which tokens count: those of the assistant's turns, with the token that ends each, or all"
#define NO_PART "all of a file is read; write the part that is to be trained on into one of its own"
/* trl.beta is one of preferences too */
#define ROLLOUT_KEYS                                                                                          \
    "num_generations rloo_k max_completion_length generation_batch_size steps_per_generation num_iterations " \
    "importance_sampling_level scale_rewards reward_funcs reward_weights loss_type"
#define NO_METHOD "ralo does not have this method; remove it"

/* clang-format off */
/* What a list of datasets says of each, to train on or to test on. */
#define DATASET(list) \
    {list "{conversation field field_human field_model field_messages field_system field_instruction field_input field_output field_tools " \
     "field_thinking template_thinking_key message_field_role message_field_content input_format text_column}", FOREIGN_IDLE, FT_ANY, NULL, RECORDS}, \
    {list "{ds_type revision trust_remote_code preprocess_shards}", FOREIGN_IDLE, FT_ANY, NULL, "files are read as they lie here; their names say of which kind they are"}, \
    {list "chat_template", FOREIGN_IDLE, FT_ANY, NULL, "data.chat is the format of all files"}, \
    {list "{roles_to_train train_on_eos train_on_eot}", FOREIGN_IDLE, FT_ANY, NULL, OF_TURNS}, \
    {list "{shards shards_idx skip}", FOREIGN_OFF, FT_ANY, NULL, NO_PART}, \
    {list "drop_system_message", FOREIGN_IDLE, FT_ANY, NULL, "system messages of the records are trained with; leave them out while converting"}, \
    {list "{message_property_mappings roles}", FOREIGN_WHOLE, FT_ANY, NULL, RECORDS}
static const foreign_row rows[] = {
    {"{base_model tokenizer_config adapter optimizer bf16 fp16 gradient_checkpointing deepspeed resume_from_checkpoint "
     "eval_strategy evaluation_strategy save_strategy rl}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"mlflow_experiment_name", FOREIGN_SET, FT_TEXT, "track.experiment", NULL},
    {"mlflow_tracking_uri",   FOREIGN_SET, FT_TEXT, "track.mlflow", NULL},
    {"{base_model_config base_model_ignore_patterns cls_model_config revision_of_model model_type tokenizer_type tokenizer_use_fast tokenizer_legacy "
     "tokenizer_save_jinja_files tokenizer_use_mistral_common trust_remote_code is_llama_derived_model is_falcon_derived_model "
     "is_mistral_derived_model is_qwen_derived_model hf_use_auth_token low_cpu_mem_usage experimental_skip_move_to_device}", FOREIGN_IDLE, FT_ANY, NULL,
     "the model's own files say what it is"},
    {"{processor_type image_size image_resize_algorithm freeze_mm_modules}", FOREIGN_OFF, FT_ANY, NULL, NO_IMAGES},
    {"{model_config overrides_of_model_config overrides_of_model_kwargs model_kwargs}", FOREIGN_WHOLE, FT_ANY, NULL, "the model's own files say what it is"},
    {"reinit_weights",        FOREIGN_WORD, FT_TEXT, "model.init", "true=random|false="},
    {"{resize_token_embeddings_to_32x shrink_embeddings mean_resizing_embeddings}", FOREIGN_OFF, FT_BOOL, NULL, NO_TOKENS},
    {"{tokens added_tokens_overrides}", FOREIGN_OFF, FT_ANY, NULL, NO_TOKENS},
    {"{unfrozen_parameters lora_modules_to_save}", FOREIGN_OFF, FT_ANY, NULL, "ralo trains all parameters, or adapters of linear layers alone"},
    {"special_tokens.eos_token", FOREIGN_SET, FT_TEXT, "data.eos_token", NULL},
    {"special_tokens.{pad_token bos_token unk_token}", FOREIGN_IDLE, FT_ANY, NULL, "padding is masked, and the tokenizer's own files say the rest"},
    {"special_tokens.additional_special_tokens", FOREIGN_OFF, FT_ANY, NULL, NO_TOKENS},
    {"{model_quantization_config gptq use_onebitllms llama4_linearized_experts}", FOREIGN_OFF, FT_ANY, NULL, "ralo quantizes a plain model itself: load_in_4bit or load_in_8bit"},
    {"{model_quantization_config_kwargs bnb_config_kwargs}", FOREIGN_WHOLE, FT_ANY, NULL, "model.base says it; nf4 takes 4.13 bits a weight, its scales included"},
    {"{gptq_groupsize gptq_model_v1 gptq_disable_exllama quantize_moe_experts_dtype}", FOREIGN_IDLE, FT_ANY, NULL, "it belongs to GPTQ, which ralo does not read"},

    {"{load_in_8bit load_in_4bit lora_target_linear bfloat16 float16 fp8 use_tensorboard}", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {"lora_model_dir",        FOREIGN_SET, FT_TEXT, "model.adapter", NULL},
    {"{lora_r sequence_len micro_batch_size gradient_accumulation_steps batch_size max_steps dp_shard_size evals_per_epoch saves_per_epoch "
     "}", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"early_stopping_patience", FOREIGN_SET, FT_INT, "train.patience", NULL},
    {"{lora_alpha lora_dropout val_set_size num_epochs warmup_steps warmup_ratio adam_beta1 adam_beta2 eval_steps save_steps rl_beta}", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"{lora_target_modules sample_packing fsdp plugins}", FOREIGN_OWN, FT_ANY, NULL, NULL},
    {"peft_use_rslora",       FOREIGN_SET, FT_BOOL, "model.lora.rslora", NULL},
    {"peft_init_lora_weights", FOREIGN_WORD, FT_TEXT, "model.lora.init", "true=default|pissa=pissa"},
    {"{peft_use_dora lora_target_parameters peft_layers_to_transform peft_layer_replication lora_rank_pattern lora_alpha_pattern "
     "loraplus_lr_ratio peft_trainable_token_indices}", FOREIGN_OFF, FT_TREE, NULL, "ralo has LoRA (also rank-stabilised and PiSSA), with one rank for all layers"},
    {"peft",                  FOREIGN_OFF, FT_TREE, NULL, "ralo has no LoftQ; adapters begin as model.lora.init says"},
    {"{lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel}", FOREIGN_IDLE, FT_ANY, NULL, ONE_STEP},
    {"{lora_on_cpu merge_lora merge_method}", FOREIGN_IDLE, FT_ANY, NULL, "`ralo export RUN DIR --merge` merges adapters"},
    {"lora_fan_in_fan_out",   FOREIGN_IDLE, FT_ANY, NULL, "the layers of the model's own files say how weights lie"},
    {"peft_autocast_adapter_dtype", FOREIGN_IDLE, FT_ANY, NULL, "precision says in what adapters are kept"},
    {"qlora_sharded_model_loading", FOREIGN_IDLE, FT_ANY, NULL, "each rank reads its own share of the weights"},
    {"{loraplus_lr_embedding peft_ensure_weight_tying}", FOREIGN_IDLE, FT_ANY, NULL, "embeddings get no adapters"},
    {"{relora relora_prune_ratio relora_steps lisa_n_layers qat quantization reward_model process_reward_model use_eaft diffusion llmcompressor "
     "ebft use_pose kd_trainer neftune_noise_alpha noisy_embedding_alpha jagged_restart_steps}", FOREIGN_OFF, FT_TREE, NULL, NO_METHOD},
    {"{relora_cpu_offload relora_warmup_steps relora_anneal_steps lisa_step_interval lisa_layers_attribute eaft_alpha eaft_k num_labels "
     "center_rewards_coefficient jagged_restart_warmup_steps jagged_restart_anneal_steps pose_num_chunks}", FOREIGN_IDLE, FT_ANY, NULL,
     "it belongs to a method that ralo does not have"},
    {"{quantize_moe_experts use_scattermoe use_sonicmoe use_dsv4_kernels use_glm_dsa_kernels dsv4_fp4_grouped_mode}", FOREIGN_OFF, FT_ANY, NULL, EXPERTS},
    {"experts_implementation", FOREIGN_OFF, FT_TEXT, NULL, EXPERTS},
    {"expert_parallel_size",  FOREIGN_WORD, FT_TEXT, "parallel.tensor", "1="},

    {"datasets.{path name split}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"datasets.data_files", FOREIGN_OWN, FT_ANY, NULL, NULL},
    {"datasets.type", FOREIGN_OWN, FT_TREE, NULL, NULL},
    {"datasets.field_chosen", FOREIGN_SET, FT_TEXT, "data.chosen_column", NULL},
    {"datasets.field_rejected", FOREIGN_SET, FT_TEXT, "data.rejected_column", NULL},
    DATASET("datasets."),
    {"datasets.{chat_template_jinja input_transform message_field_training message_field_training_detail logprobs_field split_thinking max_completion_length "
     "step_separator train_on_last_step_only}", FOREIGN_OFF, FT_ANY, NULL, "do it while converting the records"},
    {"pretraining_dataset", FOREIGN_OWN, FT_TREE, NULL, NULL},
    {"test_datasets.{path name split}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"test_datasets.data_files", FOREIGN_OWN, FT_ANY, NULL, NULL},
    {"test_datasets.type", FOREIGN_OWN, FT_TREE, NULL, NULL},
    DATASET("test_datasets."),
    {"test_datasets.{field_chosen field_rejected}", FOREIGN_IDLE, FT_ANY, NULL, RECORDS},
    {"{shuffle_merged_datasets shuffle_before_merging_datasets dataset_prepared_path dataset_shard_num dataset_shard_idx skip_prepare_dataset "
     "num_dataset_shards_to_save dataset_processes dataset_num_proc dataset_keep_in_memory dataloader_pin_memory dataloader_num_workers dataloader_prefetch_factor "
     "dataloader_drop_last remove_unused_columns streaming streaming_multipack_buffer_size pretrain_multipack_attn "
     "pretrain_multipack_buffer_size pretraining_sample_concatenation}", FOREIGN_IDLE, FT_ANY, NULL, LOADER},
    {"{dataset_exact_deduplication curriculum_sampling min_sample_len}", FOREIGN_OFF, FT_ANY, NULL, "do it while converting the records"},
    {"push_dataset_to_hub",   FOREIGN_IDLE, FT_ANY, NULL, NO_HUB},
    {"accelerator_config",    FOREIGN_WHOLE, FT_ANY, NULL, RANKS_HERE},
    {"chat_template",         FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"{chat_template_jinja default_system_message}", FOREIGN_OFF, FT_TEXT, NULL, "put it into the tokenizer's chat template (chat_template.jinja of the model's directory)"},
    {"eot_tokens",            FOREIGN_IDLE, FT_ANY, NULL, "turns end as the chat template ends them"},
    {"train_on_inputs",       FOREIGN_WORD, FT_TEXT, "data.train_on", "true=all|false=response"},
    {"eval_sequence_len",     FOREIGN_IDLE, FT_ANY, NULL, "held-out rows are as long as the others: sequence_len says it"},
    {"excess_length_strategy", FOREIGN_IDLE, FT_ANY, NULL, "records longer than a row are refused, or with data.allow_cut=true cut at its end"},
    {"max_prompt_len",        FOREIGN_IDLE, FT_ANY, NULL, "a row holds a prompt and its answer; rl.skip_long leaves out prompts that are too long"},
    {"{eval_sample_packing sample_packing_group_size sample_packing_bin_size sample_packing_sequentially sample_packing_mp_start_method pad_to_sequence_len "
     "pad_to_multiple_of max_packed_sequence_len sample_packing_eff_est sample_packing_seq_len_multiplier total_num_tokens total_supervised_tokens "
     "multipack_real_batches batch_flattening group_by_length}", FOREIGN_IDLE, FT_ANY, NULL, "rows are filled with whole records (data.pack) and visited in random order"},

    {"{eval_table_size eval_max_new_tokens eval_causal_lm_metrics do_causal_lm_eval do_bench_eval bench_dataset}",
                              FOREIGN_IDLE, FT_ANY, NULL, "train.eval_rows and train.problems evaluate"},
    {"eval_batch_size",       FOREIGN_IDLE, FT_ANY, NULL, "held-out rows are evaluated in micro-batches like those of the training"},
    {"auto_find_batch_size",  FOREIGN_IDLE, FT_ANY, NULL, "train.micro_batch=auto takes the largest that fits"},
    {"learning_rate",         FOREIGN_SET, FT_REAL, "train.lr", NULL},
    {"{embedding_lr embedding_lr_scale lr_groups lr_quadratic_warmup lr_div_factor cosine_constant_lr_ratio}", FOREIGN_OFF, FT_ANY, NULL,
     "there is one learning rate: train.lr, train.schedule, train.warmup and train.min_lr_ratio"},
    {"lr_scheduler",          FOREIGN_WORD, FT_TEXT, "train.schedule",
     "cosine=cosine|linear=linear|constant=constant|constant_with_warmup=constant|cosine_with_min_lr=cosine|warmup_stable_decay=wsd"},
    {"lr_scheduler_kwargs.{min_lr_rate min_lr_ratio}", FOREIGN_SET, FT_REAL, "train.min_lr_ratio", NULL},
    {"cosine_min_lr_ratio",   FOREIGN_SET, FT_REAL, "train.min_lr_ratio", NULL},
    {"{optim_args optim_target_modules torchdistx_path adam_epsilon2 adam_beta3}", FOREIGN_OFF, FT_TREE, NULL, ONLY_ADAMW},
    {"weight_decay",          FOREIGN_SET, FT_REAL, "train.weight_decay", NULL},
    {"{adam_epsilon adam_eps}", FOREIGN_SET, FT_REAL, "train.eps", NULL},
    {"max_grad_norm",         FOREIGN_SET, FT_REAL, "train.clip", NULL},
    {"seed",                  FOREIGN_SET, FT_INT, "train.seed", NULL},
    {"{fp8_enable_fsdp_float8_all_gather torch_dtype float32 fp32_norms fp32_norm_classes embeddings_skip_upcast}", FOREIGN_IDLE, FT_ANY, NULL, "precision says it"},
    {"tf32",                  FOREIGN_WORD, FT_TEXT, "run.tf32", "true=true|false=false|auto="},

    {"gradient_checkpointing_kwargs", FOREIGN_WHOLE, FT_ANY, NULL, "it is about PyTorch's autograd"},
    {"activation_offloading", FOREIGN_WORD, FT_TEXT, "memory.offload.activations", "true=host|false=none|legacy=host|disk=nvme"},
    {"layer_offloading",      FOREIGN_WORD, FT_TEXT, "memory.offload.params", "true=host|false=none"},
    {"fsdp_config.*",         FOREIGN_FSDP, FT_ANY, NULL, NULL},
    {"{fsdp_version fsdp_final_state_dict_type deepcompile}", FOREIGN_IDLE, FT_ANY, NULL, "it is a matter of PyTorch"},
    {"dp_replicate_size",     FOREIGN_WORD, FT_TEXT, "parallel.zero", "1="},
    {"tensor_parallel_size",  FOREIGN_SET, FT_INT, "parallel.tensor", NULL},
    {"{context_parallel_size sequence_parallel_degree}", FOREIGN_SET, FT_INT, "parallel.sequence", NULL},
    {"{heads_k_stride ring_attn_func}", FOREIGN_IDLE, FT_ANY, NULL, "parallel.attention says how"},
    {"{device device_map world_size local_rank ddp ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters use_ray ray_run_name ray_num_workers}", FOREIGN_IDLE, FT_TREE, NULL, RANKS_HERE},
    {"{max_memory gpu_memory_limit}", FOREIGN_IDLE, FT_TREE, NULL, "memory.device (--device-memory) limits the device, memory.host the host"},
    {"resources_per_worker",  FOREIGN_WHOLE, FT_ANY, NULL, RANKS_HERE},

    {"{attn_implementation flash_attention flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum sdp_attention xformers_attention "
     "flex_attention eager_attention sage_attention s2_attention gemma4_hybrid_attn_impl fused_attn_kernel large_head_attention liger_rms_norm "
     "liger_glu_activation liger_layer_norm liger_rope liger_rms_norm_gated liger_fused_linear_cross_entropy liger_cross_entropy cut_cross_entropy "
     "chunked_cross_entropy chunked_cross_entropy_num_chunks use_kernels tiled_mlp tiled_mlp_num_shards torch_compile torch_compile_backend torch_compile_mode}", FOREIGN_IDLE, FT_ANY, NULL, ONE_STEP},
    {"{gc_steps torch_empty_cache_steps gc_collect_steps}", FOREIGN_IDLE, FT_ANY, NULL, "every byte of a step is planned; there is no cache to empty"},
    {"flex_attn_compile_kwargs", FOREIGN_WHOLE, FT_ANY, NULL, ONE_STEP},

    {"output_dir",            FOREIGN_SET, FT_TEXT, "run.dir", NULL},
    {"auto_resume_from_checkpoints", FOREIGN_WORD, FT_TEXT, "run.resume", "true=auto|false=none"},
    {"logging_steps",         FOREIGN_SET, FT_INT, "train.log_every", NULL},
    {"save_total_limit",      FOREIGN_SET, FT_INT, "run.keep", NULL},
    {"{save_only_model save_safetensors save_first_step}", FOREIGN_IDLE, FT_BOOL, NULL, "checkpoints are whole; `ralo export` writes the model alone, as safetensors"},
    {"load_best_model_at_end", FOREIGN_WORD, FT_TEXT, "train.save_best", "true=loss|false="},
    {"metric_for_best_model", FOREIGN_IDLE, FT_TEXT, NULL, "train.save_best names the metric"},
    {"greater_is_better",     FOREIGN_IDLE, FT_BOOL, NULL, "lower is better for losses and perplexities, higher for all others"},
    {"{loss_watchdog_threshold loss_watchdog_patience}", FOREIGN_IDLE, FT_REAL, NULL, "train.nonfinite ends a run whose loss is not finite"},
    {"{hub_model_id hub_strategy hub_revision}", FOREIGN_IDLE, FT_TEXT, NULL, NO_HUB},
    {"{use_wandb wandb_name wandb_run_id wandb_mode wandb_project wandb_entity wandb_watch wandb_log_model use_mlflow mlflow_run_name hf_mlflow_log_artifacts "
     "use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key comet_mode comet_online use_trackio trackio_project_name trackio_run_name "
     "trackio_space_id use_otel_metrics otel_metrics_host otel_metrics_port use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode "
     "swanlab_workspace swanlab_log_model swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer swanlab_lark_webhook_url "
     "swanlab_lark_secret include_tokens_per_second include_tkps project_name}", FOREIGN_IDLE, FT_ANY, NULL, NUMBERS},
    {"{profiler_steps profiler_steps_start}", FOREIGN_IDLE, FT_ANY, NULL, "run.breakdown and --trace show where time goes"},
    {"{gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens gradio_temperature}", FOREIGN_IDLE, FT_ANY, NULL,
     "`ralo chat RUN` talks to the model"},
    {"{debug strict is_preprocess}", FOREIGN_IDLE, FT_ANY, NULL, "it is about Axolotl's own program"},

    {"dpo_label_smoothing",   FOREIGN_SET, FT_REAL, "preference.label_smoothing", NULL},
    {"kto_desirable_weight",  FOREIGN_SET, FT_REAL, "preference.desirable_weight", NULL},
    {"kto_undesirable_weight", FOREIGN_SET, FT_REAL, "preference.undesirable_weight", NULL},
    {"orpo_alpha",            FOREIGN_SET, FT_REAL, "preference.lambda", NULL},
    {"simpo_gamma",           FOREIGN_SET, FT_REAL, "preference.gamma", NULL},
    {"cpo_alpha",             FOREIGN_OFF, FT_REAL, NULL, NO_CPO},
    {"{dpo_use_weighting dpo_loss_weights rpo_alpha}", FOREIGN_OFF, FT_ANY, NULL, "ralo has no such term in its loss"},
    {"dpo_loss_type",         FOREIGN_WORD, FT_TEXT, "preference.loss", "sigmoid=dpo|ipo=ipo"},
    {"precompute_ref_log_probs", FOREIGN_WORD, FT_TEXT, "preference.reference", "true=disk|false=auto"},
    {"{dpo_use_liger_kernel dpo_padding_free}", FOREIGN_IDLE, FT_BOOL, NULL, ONE_STEP},
    {"vllm",                  FOREIGN_WHOLE, FT_ANY, NULL, "ralo generates completions by itself"},
#define ROLLOUT "trl."
#include "migrate/rollout.inc"
    {"trl.{async_prefetch use_data_producer prefetch_depth vllm_sync_interval streaming_partial_batch streaming_min_groups vllm_lora_sync}", FOREIGN_IDLE, FT_ANY, NULL,
     "ralo makes each rollout before the updates that use it"},
    {"trl.use_liger_loss",    FOREIGN_IDLE, FT_BOOL, NULL, ONE_STEP},
    {"trl.reward_num_workers", FOREIGN_SET, FT_INT, "reward.workers", NULL},
    {"trl.{replay_buffer_size sync_ref_model}", FOREIGN_OFF, FT_ANY, NULL, NO_METHOD},
    {"trl.{replay_recompute_logps ref_model_mixup_alpha ref_model_sync_steps}", FOREIGN_IDLE, FT_ANY, NULL, "it belongs to a method that ralo does not have"},
    {"trl.{reroll_start_fraction reroll_max_groups skip_zero_advantage_batches}", FOREIGN_IDLE, FT_ANY, NULL,
     "rl.dynamic_sampling draws groups whose rewards are equal again"},
    {"trl.{vllm_guided_decoding_regex rollout_func}", FOREIGN_OFF, FT_TEXT, NULL, "completions are sampled freely, by ralo"},
};
/* clang-format on */

/* ---- data ------------------------------------------------------------------------------------------------------- */

/* A type of Axolotl's own is recognised by its first word; another one names a Python module. */
static void check_type(foreign_reader *r, const foreign_item *type) {
    static const char known[] =
        "alpaca alpaca_chat alpaca_w_system chat_template completion pretrain sharegpt chatml llama3 zephyr orpo "
        "input_output gpteacher "
        "oasst summarizetldr explainchoice context_qa ipo user_defined metharme creative_acr text";
    if (!type) return;
    if (!*type->text) {
        foreign_refuse(
            r, type,
            "own formats of prompts are made while converting; records here have prompt and completion, or messages");
        return;
    }
    const char *word = foreign_format(r, "%.*s", (int)strcspn(type->text, ".:("), type->text);
    if (trainer_word_in(word, known)) foreign_report_no_effect(r, type, RECORDS);
    else if (str_starts_with(word, "bradley_terry") || str_starts_with(word, "stepwise"))
        foreign_refuse(r, type, "ralo trains no reward models");
    else
        foreign_refuse(r, type,
                       "records are not made by Python here; make JSON Lines with prompt and completion, or messages");
}

/* The datasets of a list; how many. */
static size_t sources_find(foreign_reader *r, const char *list, trainer_source *sources) {
    size_t n = 0;
    for (int i = -1; i < LIST_MOST; i++) {
        sources[n] = trainer_source_find(r, list, i, "path name split data_files");
        check_type(r, trainer_dataset_of(r, list, i, "type"));
        foreign_report_no_effect(r, sources[n].config, "part of the dataset's name");
        foreign_report_no_effect(r, sources[n].split, "part of the dataset's name");
        foreign_report_no_effect(r, sources[n].files, "part of the dataset's name");
        n += sources[n].path != NULL;
    }
    return n;
}

static status translate_data(foreign_reader *r) {
    trainer_source sources[LIST_MOST + 3], tested[LIST_MOST + 2];
    const foreign_item *text = foreign_find(r, "pretraining_dataset");
    size_t n = sources_find(r, "datasets", sources), n_tested = sources_find(r, "test_datasets", tested);
    if (text && *text->text && strcmp(text->text, "[...]") != 0) sources[n++] = (trainer_source){.path = text};
    else if (text)
        foreign_refuse(
            r, text,
            "texts are read from files here: make a .txt or JSON Lines with a key `text`, and give --data FILE");
    TRY(trainer_data(r, sources, n));
    TRY(trainer_eval_data(r, tested, n_tested));
    return trainer_held_out(r, foreign_find(r, "val_set_size"), n_tested > 0);
}

static status translate_chat(foreign_reader *r) {
    const foreign_item *name = foreign_find(r, "chat_template"), *tokens = foreign_find(r, "tokenizer_config");
    struct stat st;
    if (name && strcmp(name->text, "jinja") == 0)
        foreign_refuse(r, name, "put the template into the model's directory as chat_template.jinja");
    else if (name && trainer_word_in(name->text, "chatml llama3"))
        TRY(foreign_offer(r, name, "data.chat", name->text, NULL));
    else if (name) foreign_report_set(r, name, "data.chat", "the tokenizer's chat template");
    if (tokens && stat(tokens->text, &st) == 0) return foreign_offer(r, tokens, "data.tokenizer", tokens->text, NULL);
    if (tokens) foreign_refuse(r, tokens, "download that tokenizer and give its directory as data.tokenizer");
    return OK;
}

/* ---- method ----------------------------------------------------------------------------------------------------- */

/* trl.beta comes before rl_beta there, whatever the method is. */
static status translate_preference(foreign_reader *r, const foreign_item *rl) {
    const foreign_item *first = foreign_find(r, "trl.beta"), *second = foreign_find(r, "rl_beta"),
                       *beta = first ? first : second, *gamma = foreign_find(r, "simpo_gamma");
    bool is_simpo = strcmp(rl->text, "simpo") == 0;
    TRY(foreign_offer(r, rl, "train.task", "preference", NULL));
    if (!foreign_find(r, "dpo_loss_type")) TRY(foreign_offer(r, rl, "preference.loss", rl->text, NULL));
    TRY(foreign_offer_text(r, beta, strcmp(rl->text, "orpo") ? "preference.beta" : "preference.lambda", NULL));
    if (first && second) foreign_report_no_effect(r, second, "trl.beta says it");
    if (!is_simpo) return OK;
    if (!foreign_find(r, "cpo_alpha")) foreign_refuse(r, rl, "TRL's default beside it is cpo_alpha: 1; " NO_CPO);
    if (!beta) TRY(foreign_offer_text(r, NULL, "preference.beta", "0.1"));
    return gamma ? OK : foreign_offer_text(r, NULL, "preference.gamma", "0.5");
}

static status translate_method(foreign_reader *r) {
    const foreign_item *rl = foreign_find(r, "rl"), *beta = foreign_find(r, "rl_beta");
    const char *word = rl ? rl->text : "";
    bool is_preference = trainer_word_in(word, "dpo ipo orpo simpo kto");
    bool is_rollout = trainer_word_in(word, "grpo gdpo"); /* gdpo too, so that all its reasons are said */
    if (!is_rollout) trainer_report_keys(r, "trl.", ROLLOUT_KEYS, "rl is not grpo");
    if (!is_rollout && !is_preference) trainer_report_keys(r, "trl.", "beta", "rl is not grpo");
    if (is_preference) return translate_preference(r, rl);
    if (rl && strcmp(word, "grpo") != 0) foreign_refuse(r, rl, "ralo has dpo, ipo, orpo, simpo, kto and grpo");
    foreign_report_no_effect(r, beta, "trl.beta is the one of grpo");
    if (!is_rollout) return OK;
    if (strcmp(word, "grpo") == 0) foreign_report_set(r, rl, "train.task", NULL);
    return rollout_translate(r, &(rollout_keys){.prefix = "trl.",
                                                .rows = foreign_find(r, "micro_batch_size"),
                                                .accumulation = foreign_find(r, "gradient_accumulation_steps"),
                                                .usual_rows = 1});
}

static status translate_adapter(foreign_reader *r) {
    const foreign_item *kind = foreign_find(r, "adapter"), *linear = foreign_find(r, "lora_target_linear");
    bool is_on = kind && trainer_word_in(kind->text, "lora qlora");
    if (kind && !is_on) foreign_refuse(r, kind, "ralo has lora and qlora");
    bool is_all = item_is_true(linear);
    trainer_adapter adapter = {.is_on = is_on,
                               .why_off = "adapter is not set",
                               .rank = "lora_r",
                               .alpha = "lora_alpha",
                               .dropout = "lora_dropout",
                               .targets = is_all ? NULL : "lora_target_modules",
                               .usual_rank = "8",
                               .usual_targets = is_all ? NULL : "all-linear"};
    if (linear && is_on && is_all) TRY(foreign_offer(r, linear, "model.lora.targets", "all-linear", NULL));
    else foreign_report_no_effect(r, linear, is_on ? "off" : adapter.why_off);
    if (is_all) trainer_report_keys(r, "", "lora_target_modules", "lora_target_linear names them all");
    TRY(trainer_lora(r, &adapter));
    if (is_on) foreign_report_set(r, kind, "model.lora.rank", NULL);
    return trainer_weights(r, foreign_find(r, "load_in_4bit"), foreign_find(r, "load_in_8bit"), is_on);
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

static status translate_batch(foreign_reader *r) {
    const foreign_item *rows_of = foreign_find(r, "micro_batch_size"),
                       *times = foreign_find(r, "gradient_accumulation_steps"), *all = foreign_find(r, "batch_size"),
                       *rl = foreign_find(r, "rl");
    bool counts_completions = rl && trainer_word_in(rl->text, "grpo gdpo");
    if (all && !times && !counts_completions) {
        int64_t n = item_whole(all), of = rows_of ? item_whole(rows_of) : 1;
        if (n < 1 || of < 1 || n % of) foreign_refuse(r, all, "it has to be a multiple of micro_batch_size");
        else
            TRY(foreign_offer(r, all, "train.accumulation", foreign_format(r, "%lld", (long long)(n / of)),
                              "of micro-batches"));
    } else {
        foreign_report_no_effect(r, all, "gradient_accumulation_steps says it");
    }
    if (counts_completions) return OK;
    TRY(foreign_offer_text(r, rows_of, "train.micro_batch", "1"));
    return foreign_offer_text(r, times, "train.accumulation", NULL);
}

static status translate_warmup(foreign_reader *r) {
    const foreign_item *kind = foreign_find(r, "lr_scheduler"), *steps = foreign_find(r, "warmup_steps"),
                       *ratio = foreign_find(r, "warmup_ratio");
    bool has_none = kind && strcmp(kind->text, "constant") == 0;
    if (steps || ratio || has_none) return trainer_warmup(r, steps, ratio, has_none ? NULL : "0");
    if (!config_was_given(r->c, "train.steps"))
        return foreign_offer(r, NULL, "train.warmup_ratio", "0.03", "its default");
    int64_t usual = MIN((int64_t)(0.03 * (double)r->c->train.steps), (int64_t)100);
    return foreign_offer(r, NULL, "train.warmup", foreign_format(r, "%lld", (long long)usual),
                         "its default: 0.03 of the steps, at most 100");
}

static status translate_numbers(foreign_reader *r) {
    TRY(foreign_offer_switch(r, foreign_find(r, "fp8"), "precision", "fp8", NULL));
    TRY(foreign_offer_switch(r, foreign_find(r, "bfloat16"), "precision", "bf16_sr", ROUNDED));
    TRY(foreign_offer_switch(r, foreign_find(r, "float16"), "precision", "fp16", "with an fp32 copy of the weights"));
    TRY(trainer_precision(r, foreign_find(r, "bf16"), foreign_find(r, "fp16"), "bf16"));
    TRY(trainer_betas(r));
    TRY(trainer_optimizer(r, foreign_find(r, "optimizer")));
    static const char *const implied[][3] = {{"train.weight_decay", "0", "its default"},
                                             {"train.schedule", "cosine", "its default"},
                                             {"train.min_lr_ratio", "0", "its schedules end at 0"}};
    TRY(trainer_implied(r, implied, ARRAY_LENGTH(implied)));
    return translate_warmup(r);
}

static status translate_memory(foreign_reader *r) {
    const foreign_item *again = foreign_find(r, "gradient_checkpointing"), *packing = foreign_find(r, "sample_packing"),
                       *shards = foreign_find(r, "dp_shard_size"), *plugins = foreign_find(r, "plugins");
    bool flag, moves = again && trainer_word_in(again->text, "offload offload_disk");
    if (moves)
        TRY(foreign_offer(r, again, "memory.offload.activations", strcmp(again->text, "offload") ? "nvme" : "host",
                          NULL));
    if (moves || (again && (strcmp(again->text, "unsloth") == 0 || bool_read(again->text, &flag))))
        TRY(foreign_offer(r, again, "memory.recompute", foreign_is_off(again) ? "none" : "full", NULL));
    else if (again) foreign_refuse(r, again, "expected true, false, offload or offload_disk");
    if (trainer_is_switch(r, packing, "auto"))
        TRY(foreign_offer(r, packing, "data.pack", packing && !foreign_is_off(packing) ? "true" : "false",
                          packing ? NULL : "its default"));
    TRY(trainer_row_length(r, foreign_find(r, "sequence_len"), "512"));
    if (shards && item_whole(shards) > 1) TRY(foreign_offer(r, shards, "parallel.zero", "3", "over all data ranks"));
    else foreign_report_no_effect(r, shards, "off");
    for (const char *at = plugins ? trainer_list(r, plugins) : ""; *at;) {
        const char *name = foreign_format(r, "%.*s", (int)strcspn(at, ","), at);
        if (!strstr(name, ".liger.") && !strstr(name, ".cut_cross_entropy.") && !strstr(name, ".kernels.") &&
            !strstr(name, ".swanlab."))
            foreign_refuse(r, plugins, "%.100s changes the training in a way that ralo does not have", name);
        at += strcspn(at, ",");
        at += *at == ',';
    }
    foreign_report_no_effect(r, plugins, ONE_STEP);
    TRY(trainer_fsdp(r, foreign_find(r, "fsdp")));
    return trainer_deepspeed(r, foreign_find(r, "deepspeed"));
}

/* ---- saving and reporting --------------------------------------------------------------------------------------- */

static status translate_times(foreign_reader *r, const foreign_item *times, const char *setting) {
    if (!foreign_is_off(times)) return foreign_offer_text(r, times, setting, NULL);
    foreign_report_no_effect(r, times, "off");
    return OK;
}

static status translate_run(foreign_reader *r) {
    const foreign_item *strategy = foreign_find(r, "eval_strategy"), *evals = foreign_find(r, "evals_per_epoch"),
                       *saves = foreign_find(r, "saves_per_epoch"), *board = foreign_find(r, "use_tensorboard");
    if (!strategy) strategy = foreign_find(r, "evaluation_strategy");
    else trainer_report_keys(r, "", "evaluation_strategy", "eval_strategy says it");
    TRY(trainer_every(r, &(trainer_rhythm){strategy, foreign_find(r, "eval_steps"), "train.eval_every",
                                           "train.evals_per_epoch", evals ? "no" : "steps", "100"}));
    TRY(trainer_every(r,
                      &(trainer_rhythm){foreign_find(r, "save_strategy"), foreign_find(r, "save_steps"),
                                        "train.save_every", "train.saves_per_epoch", saves ? "no" : "steps", "500"}));
    bool has_rhythm = evals || strategy || foreign_find(r, "eval_steps"),
         is_saved = saves || trainer_has_any(r, "", "save_strategy save_steps");
    if (!has_rhythm && r->c->data.eval_fraction > 0) TRY(foreign_offer_text(r, NULL, "train.evals_per_epoch", "1"));
    if (!is_saved) TRY(foreign_offer_text(r, NULL, "train.saves_per_epoch", "1"));
    TRY(translate_times(r, evals, "train.evals_per_epoch"));
    TRY(translate_times(r, saves, "train.saves_per_epoch"));
    if (board) TRY(foreign_offer(r, board, "track.to", item_is_true(board) ? "tensorboard" : "none", NULL));
    return trainer_resume(r, foreign_find(r, "resume_from_checkpoint"));
}

static status translate(foreign_reader *r) {
    TRY(trainer_model(r, foreign_find(r, "base_model")));
    TRY(translate_data(r));
    TRY(translate_chat(r));
    TRY(translate_method(r));
    TRY(translate_adapter(r));
    TRY(trainer_length(r, foreign_find(r, "num_epochs"), foreign_find(r, "max_steps"), "1"));
    TRY(translate_batch(r));
    TRY(translate_numbers(r));
    TRY(translate_memory(r));
    return translate_run(r);
}

const foreign_dialect foreign_axolotl = {
    .name = "Axolotl", .rows = rows, .n_rows = ARRAY_LENGTH(rows), .signature = "base_model", .translate = translate};
