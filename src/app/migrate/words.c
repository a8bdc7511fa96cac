/* words.c - what people type who know another program, and what to write here.
 *
 * The nearest word by letters is often the wrong one: load_in_4bit is near to nothing, save_best to save_last. Rows are
 * asked before letters are compared, for settings in files, --set and flags. A row counts only where its setting is
 * there, so that no message names one that is not. */
#include "migrate/dialect.h"

#include <ctype.h>
#include <string.h>

typedef struct word_row {
    const char *names;   /* separated by spaces, with _ for - */
    const char *setting; /* NULL: there is none, `how` says all */
    const char *value;   /* that it stands for; NULL: its own */
    const char *how;     /* more to say; NULL: nothing */
} word_row;

/* clang-format off */
static const word_row rows[] = {
    {"epochs num_epochs num_train_epochs max_epochs n_epochs", "train.epochs", NULL, "or train.steps"},
    {"steps max_steps num_steps total_steps max_iters iterations", "train.steps", NULL, NULL},
    {"warmup_ratio", "train.warmup_ratio", NULL, NULL},
    {"warmup_steps num_warmup_steps warmup_iters", "train.warmup", NULL, "in steps"},
    {"learning_rate", "train.lr", NULL, NULL},
    {"lr_scheduler lr_scheduler_type scheduler lr_schedule", "train.schedule", NULL, "cosine, linear, constant or wsd"},
    {"min_lr", "train.min_lr_ratio", NULL, "a share of train.lr"},
    {"batch_size train_batch_size global_batch_size", "train.batch", NULL, "rows of a step, or train.micro_batch, rows of one pass"},
    {"per_device_train_batch_size micro_batch_size per_gpu_batch_size", "train.micro_batch", NULL, NULL},
    {"gradient_accumulation_steps grad_accum accum_steps accumulate_grad_batches grad_accumulation_steps", "train.accumulation", NULL, NULL},
    {"max_grad_norm gradient_clipping grad_clip clip_grad_norm gradient_clip_val", "train.clip", NULL, NULL},
    {"weight_decay", "train.weight_decay", NULL, NULL},
    {"adam_beta1 adam_beta2 beta1 beta2", "train.betas", "[0.9, 0.999]", NULL},
    {"optim optimizer optimizer_type", "memory.states", NULL, "the format of AdamW's m and v; ralo has AdamW only"},
    {"adamw_8bit use_8bit_adam", "memory.states", "int8", NULL},
    {"bf16 bfloat16 use_bf16", "precision", "bf16", "or bf16_sr for no fp32 master copy"},
    {"fp16 float16 half", "precision", "fp16", NULL},
    {"fp8", "precision", "fp8", NULL},
    {"amp mixed_precision dtype torch_dtype param_dtype", "precision", NULL, "fp32, bf16, fp16 or fp8"},
    {"max_seq_length max_length seq_length sequence_len cutoff_len block_size context_length max_seq_len model_max_length seq_len", "data.seq_len", NULL, NULL},
    {"packing sample_packing pack", "data.pack", NULL, NULL},
    {"dataset datasets dataset_name train_file data_path train_data dataset_path train_dataset", "data.source", NULL, "files of JSON Lines or text"},
    {"eval_dataset validation_file eval_file val_data test_dataset", "data.eval_source", NULL, NULL},
    {"eval_dataset validation_file eval_file val_data test_dataset val_set_size val_size validation_split test_split_size", "data.eval_fraction", NULL, "a share of each file"},
    {"chat_template template prompt_template", "data.chat", NULL, "auto renders the template of the tokenizer"},
    {"train_on_inputs train_on_prompt completion_only_loss assistant_only_loss mask_prompt", "data.train_on", NULL, "response or all"},
    {"tokenizer_name tokenizer tokenizer_name_or_path", "data.tokenizer", NULL, NULL},
    {"model_name_or_path base_model pretrained_model model_id model_path checkpoint_path", "model.path", NULL, "a Hugging Face directory"},
    {"lora lora_r lora_rank use_lora use_peft peft adapter_rank r", "model.lora.rank", "16", NULL},
    {"lora_alpha", "model.lora.alpha", NULL, NULL},
    {"lora_dropout", "model.lora.dropout", NULL, NULL},
    {"lora_target lora_target_modules target_modules lora_target_linear lora_targets", "model.lora.targets", NULL, "all-linear, or names such as q_proj"},
    {"use_rslora rslora", "model.lora.rslora", NULL, NULL},
    {"adapter adapter_name_or_path lora_model_dir peft_model", "model.adapter", NULL, "a PEFT directory to train further"},
    {"load_in_4bit qlora quantize_4bit nf4 bnb_4bit", "model.base", "nf4", "with model.lora.rank"},
    {"load_in_8bit int8 quantize_8bit", "model.base", "int8", "with model.lora.rank"},
    {"quantization_bit quantization quantize", "model.base", NULL, "nf4, int8 or fp8, with model.lora.rank"},
    {"gradient_checkpointing activation_checkpointing use_gradient_checkpointing recompute checkpoint_activations", "memory.recompute", "full", "or auto, which chooses"},
    {"cpu_offload offload offload_optimizer zero_offload optimizer_offload", "memory.offload.states", "host", "also memory.offload.params, .grads and .activations"},
    {"offload_param offload_params param_offload", "memory.offload.params", "host", NULL},
    {"max_memory gpu_memory device_memory gpu_memory_limit", "memory.device", "24G", NULL},
    {"flash_attention flash_attn use_flash_attention use_flash_attn attn_implementation sdpa xformers", NULL, NULL,
     "attention here never holds the whole matrix, as FlashAttention; leave it out"},
    {"torch_compile compile use_liger_kernel liger enable_liger_kernel use_unsloth unsloth fused", NULL, NULL, "the step is one compiled program with its own kernels; leave it out"},
    {"dataloader_num_workers num_workers preprocessing_num_workers dataset_num_proc pin_memory dataloader_pin_memory", NULL, NULL,
     "data is read and tokenized without worker processes; leave it out"},
    {"trust_remote_code", NULL, NULL, "ralo runs no code of a model's directory; leave it out"},
    {"deepspeed deepspeed_config ds_config", NULL, NULL, "give the file as --deepspeed FILE"},
    {"fsdp zero zero_stage sharding_strategy", "parallel.zero", "3", "full sharding; of gradients and states, 2"},
    {"tensor_parallel tensor_parallel_size tp_size tp", "parallel.tensor", NULL, NULL},
    {"pipeline_parallel pipeline_parallel_size pp_size pp", "parallel.pipeline", NULL, NULL},
    {"sequence_parallel sequence_parallel_size context_parallel context_parallel_size cp_size sp_size", "parallel.sequence", NULL, NULL},
    {"nproc_per_node num_processes num_gpus n_gpus gpus world_size devices", NULL, NULL, "start N ranks with --ranks N, mpirun or srun"},
    {"report_to wandb wandb_project use_wandb logger tracker", "track.to", NULL, "mlflow, tensorboard, trackio, all or none"},
    {"tensorboard logging_dir tensorboard_dir", "track.tensorboard", NULL, "a directory"},
    {"mlflow mlflow_uri mlflow_tracking_uri", "track.mlflow", NULL, NULL},
    {"run_name wandb_name experiment_name", "track.name", NULL, NULL},
    {"report_to wandb wandb_project use_wandb logger tracker tensorboard logging_dir run_name wandb_name", NULL, NULL,
     "every number is in metrics.jsonl of the run directory; leave it out"},
    {"output_dir out_dir save_dir checkpoint_dir", "run.dir", NULL, "or --out DIR"},
    {"logging_steps log_interval log_steps", "train.log_every", NULL, NULL},
    {"eval_strategy evaluation_strategy eval_steps eval_interval do_eval", "train.eval_every", NULL, "in steps"},
    {"save_strategy save_steps save_interval checkpoint_every", "train.save_every", NULL, "in steps"},
    {"save_best load_best_model_at_end keep_best save_best_model", "train.save_best", "loss", "or reward, or any val/ metric"},
    {"early_stopping early_stopping_patience patience", "train.patience", NULL, NULL},
    {"early_stopping early_stopping_patience patience", "train.save_best", "loss", "which keeps the best checkpoint"},
    {"save_total_limit keep_checkpoints max_checkpoints", "run.keep", NULL, NULL},
    {"resume resume_from_checkpoint load_checkpoint", "run.resume", "auto", NULL},
    {"push_to_hub hub_model_id", NULL, NULL, "ralo uploads nothing; `hf upload` takes the directory that `ralo export` writes"},
    {"method trainer stage algorithm task_type training_type", "train.task", NULL, "sft, preference, rloo, mtp or critic"},
    {"dpo dpo_beta pref_beta rl_beta", "preference.beta", NULL, "with train.task=preference"},
    {"orpo simpo kto ipo pref_loss dpo_loss_type", "preference.loss", NULL, "with train.task=preference"},
    {"grpo rloo ppo num_generations rloo_k", "rl.k", NULL, "with train.task=rloo"},
    {"max_completion_length max_new_tokens response_length", "rl.max_completion", NULL, "with train.task=rloo"},
    {"loss_type", NULL, NULL, "here it is preference.loss with train.task=preference, rl.loss with train.task=rloo"},
    {"max_prompt_length max_prompt_len", "data.seq_len", NULL, "a row holds the prompt and its answer"},
    {"scale_rewards", "rl.loss", "dr_grpo", "which leaves rewards undivided by their deviation; grpo divides them"},
    {"reward_weights", "reward.list", "numeric:1,format:0.2", NULL},
    {"simpo_gamma", "preference.gamma", NULL, NULL},
    {"neftune_noise_alpha label_smoothing_factor", NULL, NULL, "ralo does not have this; leave it out"},
    {"reward_funcs reward_function reward_fn", "reward.list", NULL, "exact, numeric, regex, format, length, program or http"},
    {"seed random_seed", "train.seed", NULL, NULL},
    {"num_threads n_threads omp_num_threads", "run.threads", NULL, NULL},
    {"device use_cpu no_cuda", "run.device", NULL, "cpu or cuda"},
};
/* clang-format on */

/* The last part of a key, as the table spells it. */
static void word_of(const char *key, char out[64]) {
    snprintf(out, 64, "%.63s", str_after_last_dot(key));
    for (char *c = out; *c; c++) *c = *c == '-' ? '_' : (char)tolower((unsigned char)*c);
}

/* batchsize is batch_size. */
static bool is_same_word(const char *a, const char *b) {
    for (;; a++, b++) {
        a += strspn(a, "_");
        b += strspn(b, "_");
        if (*a != *b || !*a) return *a == *b;
    }
}

static bool is_named(const word_row *r, const char *word) {
    char name[64];
    for (const char *rest = r->names; (rest = part_next(rest, ' ', name, sizeof name));)
        if (is_same_word(name, word)) return true;
    return false;
}

/* Values of other programs, of settings with a list of words. */
static const struct {
    const char *setting, *words, *how;
} value_rows[] = {
    {"train.task", "dpo ipo orpo simpo kto", "train.task=preference with preference.loss=%s"},
    {"train.task", "grpo ppo rlhf reinforce",
     "train.task=rloo is reinforcement learning with rewards, `rl.loss` has its kinds"},
    {"train.task", "pretrain pretraining pt clm finetune lora",
     "train.task=sft; whole texts are trained on where the data is text"},
    {"preference.loss", "sigmoid", "preference.loss=dpo"},
    {"rl.loss", "bnpo", "rl.loss=dapo has the mean over all tokens of the step"},
    {"precision", "float32 32 32_true", "precision=fp32"},
    {"precision", "float16 half 16 16_mixed", "precision=fp16"},
    {"precision", "bf16_mixed", "precision=bf16"},
    {"run.device", "gpu nvidia", "run.device=cuda"},
    {"run.device", "mps rocm tpu xpu", "ralo has kernels for CPUs and NVIDIA GPUs"},
    {"data.chat", "mistral gemma phi3 qwen zephyr vicuna alpaca",
     "data.chat=auto renders the chat template of the model's own tokenizer"},
};

static bool explain_value(const char *key, const char *value, strbuf *out) {
    char word[64];
    if (strcmp(key, "data.chat") == 0 &&
        (str_ends_with(value, ".jinja") || strstr(value, "{%") || strchr(value, '/'))) {
        strbuf_add(
            out, "put a template into the tokenizer's directory as chat_template.jinja, which data.chat=auto renders");
        return true;
    }
    word_of(value, word);
    for (size_t i = 0; i < ARRAY_LENGTH(value_rows); i++) {
        if (strcmp(value_rows[i].setting, key) != 0 || !is_named(&(word_row){.names = value_rows[i].words}, word))
            continue;
        const char *how = value_rows[i].how, *place = strstr(how, "%s");
        strbuf_add_bytes(out, how, place ? (size_t)(place - how) : strlen(how));
        if (place) strbuf_printf(out, "%s%s", word, place + 2);
        return true;
    }
    return false;
}

/* "did you mean 'preference.beta' or 'rl.beta'?", where a name without its group is that of several. */
static bool explain_several(const char *key, strbuf *out) {
    size_t n = 0;
    for (size_t i = 0; setting_at(i) && !strchr(key, '.'); i++)
        if (strcmp(str_after_last_dot(setting_at(i)->key), key) == 0)
            strbuf_printf(out, "%s'%s'", n++ ? " or " : "did you mean ", setting_at(i)->key);
    if (n > 1) strbuf_add(out, "?");
    else out->length = 0; /* one alone the letters find too */
    return n > 1;
}

static bool explain_key(const char *key, bool is_flag, strbuf *out) {
    char word[64];
    word_of(key, word);
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const word_row *r = &rows[i];
        if (!is_named(r, word)) continue;
        if (r->setting && !r->value && !r->how && !is_flag) {
            strbuf_printf(out, "did you mean '%s'?", r->setting);
            return true;
        }
        if (r->setting) {
            const char *value = r->value ? r->value : is_flag ? "VALUE" : NULL;
            strbuf_printf(out, "%s%s%s%s", is_flag ? "give --set " : "here it is ", r->setting, value ? "=" : "",
                          value ? value : "");
        }
        if (r->how) strbuf_printf(out, "%s%s", r->setting ? ", " : "", r->how);
        return true;
    }
    return !is_flag && explain_several(key, out);
}

/* What settings asks, which comes before this room. */
const foreign_names config_foreign_names = {
    .explain_key = explain_key, .explain_value = explain_value, .translate_fsdp = fsdp_translate};
