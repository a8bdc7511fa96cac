/* test_foreign_trainers.c - files of TRL, accelerate, Axolotl and LLaMA-Factory: translated with nothing lost, or refused with all reasons at once.
 *
 * Fixtures are the keys and values of example files (tests/fixtures/foreign/README.md). */
#include "foreign_files.h"
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

enum { PARTS_MOST = 32 };
typedef struct example {
    const char *name;
    int n_reasons;                 /* 0: it is translated */
    const char *parts[PARTS_MOST]; /* settings and values; or parts of the reasons */
} example;

/* Every key at the top of a file is in the report. */
static void assert_nothing_lost(const char *name, const char *report) {
    char path[512];
    arena memory;
    yaml_node *root;
    snprintf(path, sizeof path, "%s/foreign/%s", TEST_FIXTURES, name);
    arena_init(&memory);
    assert_int_equal(yaml_read_file(path, &memory, &root), OK);
    for (const yaml_node *n = root->first_child; n; n = n->next)
        if (!strstr(report, n->key)) fail_msg("%s: %s is not in the report:\n%s", name, n->key, report);
    arena_fini(&memory);
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

static void check_example(const example *e) {
    outcome o;
    request q = FIXTURE(e->name);
    translate(&o, &q);
    if (e->n_reasons == 0) {
        if (o.rc != OK) fail_msg("%s is refused: %s", e->name, error_message());
        for (const char *const *p = e->parts; *p; p += 2) assert_value(&o.c, p[0], p[1]);
        char *report = printed(&o);
        assert_nothing_lost(e->name, report);
        free(report);
    } else {
        if (o.rc != ERR_INPUT) fail_msg("%s is not refused", e->name);
        int lines = count(error_message(), "\n    ");
        if (MAX(lines, 1) != e->n_reasons)
            fail_msg("%s: %d reasons, expected %d: %s", e->name, lines, e->n_reasons, error_message());
        for (const char *const *p = e->parts; *p; p++) assert_in(error_message(), *p);
    }
    outcome_fini(&o);
}

static void check_examples(const example *examples, size_t n) {
    for (size_t i = 0; i < n; i++) check_example(&examples[i]);
}

/* clang-format off */
static void test_examples_of_axolotl(void **state) {
    static const example examples[] = {
        {"axolotl/llama3-lora-1b.yaml", 0, {"model.preset", "llama3.2-1b", "model.lora.rank", "16", "model.lora.alpha", "32", "model.lora.dropout", "0.05",
            "data.seq_len", "2048", "data.pack", "true", "data.eval_fraction", "0.1", "train.micro_batch", "2", "train.accumulation", "2", "train.lr", "0.0002",
            "memory.states", "int8", "precision", "bf16"}},
        {"axolotl/llama3-lora-1b-kernels.yaml", 0, {"model.lora.rank", "16", "memory.states", "int8", "train.schedule", "cosine"}},
        {"axolotl/llama3-qlora-1b.yaml", 0, {"model.base", "nf4", "model.lora.rank", "32", "model.lora.alpha", "16", "model.lora.targets", "gate_proj,down_proj,up_proj,q_proj,v_proj,k_proj,o_proj"}},
        {"axolotl/llama3-qlora.yaml", 0, {"model.base", "nf4", "model.lora.targets", "all-linear", "memory.states", "fp32", "train.save_every", "none"}},
        {"axolotl/llama3-fft-8b.yaml", 0, {"model.lora.rank", "none", "data.seq_len", "8192", "data.pack", "true", "train.lr", "2e-05", "train.weight_decay", "0"}},
        {"axolotl/llama3-fft-8b-liger-fsdp.yaml", 0, {"parallel.zero", "3", "memory.recompute", "full", "train.weight_decay", "0"}},
        {"axolotl/llama3-3b-fp8-fsdp2.yaml", 0, {"precision", "fp8", "parallel.zero", "3", "train.schedule", "cosine", "memory.offload.params", "none"}},
        {"axolotl/llama3-instruct-lora-8b.yaml", 0, {"model.base", "int8", "data.chat", "llama3", "model.lora.rank", "32"}},
        {"axolotl/llama3-instruct-dpo-lora-8b.yaml", 0, {"train.task", "preference", "preference.loss", "dpo", "data.chosen_column", "chosen", "data.rejected_column", "rejected"}},
        {"axolotl/llama3-qlora-1b-kto.yaml", 0, {"train.task", "preference", "preference.loss", "kto", "preference.beta", "0.5", "preference.desirable_weight", "0.2", "model.base", "nf4"}},
        {"axolotl/mistral-qlora-orpo.yaml", 0, {"train.task", "preference", "preference.loss", "orpo", "preference.lambda", "0.1", "data.chat", "chatml", "data.seq_len", "auto", "data.seq_len_max", "8192"}},
        {"axolotl/mistral-fft.yaml", 0, {"train.lr", "5e-06", "train.micro_batch", "2", "train.accumulation", "4", "model.lora.rank", "none", "data.eval_fraction", "0.05"}},
        {"axolotl/qwen2-dpo.yaml", 0, {"preference.loss", "dpo", "train.micro_batch", "2", "data.pack", "false"}},
        {"axolotl/qwen2-qlora-fsdp.yaml", 0, {"parallel.zero", "3", "model.base", "nf4", "memory.offload.params", "host"}},
        {"axolotl/llama3-qlora-fsdp-70b.yaml", 0, {"parallel.zero", "3", "memory.offload.states", "host", "model.base", "nf4", "model.lora.rank", "8"}},
        {"axolotl/qwen3-32b-qlora.yaml", 0, {"model.base", "nf4", "model.lora.alpha", "32"}},
        {"axolotl/qwen3-8b-fsdp-tp-cp.yaml", 0, {"parallel.tensor", "2", "parallel.sequence", "2", "parallel.zero", "3", "memory.recompute", "auto"}},
        {"axolotl/gemma2-qlora.yaml", 0, {"model.base", "nf4", "model.preset", "gemma-2-9b"}},
        {"axolotl/llama2-lora.yaml", 0, {"model.preset", "llama2-7b", "model.base", "int8", "model.lora.rank", "32"}},
        {"axolotl/llama3-lora-8b.yaml", 1, {"lora_modules_to_save: found [embed_tokens, lm_head]"}},
        {"axolotl/mistral-dpo-qlora.yaml", 1, {"lora_modules_to_save"}},
        {"axolotl/llama3-lora-1b-deduplicate-dpo.yaml", 1, {"dataset_exact_deduplication"}},
        {"axolotl/llama2-loftq.yaml", 1, {"LoftQ"}},
        {"axolotl/llama2-relora.yaml", 3, {"relora: found true", "relora_prune_ratio", "jagged_restart_steps: found 150"}},
        {"axolotl/phi3-ft.yaml", 1, {"resize_token_embeddings_to_32x"}},
        {"axolotl/tinyllama-pretrain.yaml", 1, {"pretraining_dataset", "--data FILE"}},
        {"axolotl/qwen2-reward-model.yaml", 2, {"reward_model: found true", "bradley_terry"}},
        {"axolotl/llama3-qlora-1b-gdpo.yaml", 4, {"rl: found gdpo", "normalize_then_sum", "rwd.gsm8k_transform", "trl.reward_funcs: found [rwd.format_reward, rwd.correctness_reward]", "reward.program"}},
        {"axolotl/sudoku-grpo.yaml", 10, {"nemo_gym_enabled", "nemo_gym_datasets", "NemoGymPlugin"}},
    };
    check_examples(examples, ARRAY_LENGTH(examples));
}

/* A reason that does not fit its key sends its reader astray; what would train on something else is refused. */
static void test_reasons_of_axolotl_fit_their_keys(void **state) {
    static const char text[] = "base_model: gpt2\n"
                               "datasets: [{path: a.jsonl, ds_type: json, chat_template: chatml, roles_to_train: [assistant], field: x}]\n"
                               "merge_lora: true\nexcess_length_strategy: drop\nauto_find_batch_size: true\n"
                               "gpu_memory_limit: 20GiB\ngradio_title: x\nprofiler_steps: 3\ngc_steps: 1\npush_dataset_to_hub: a/b\n"
                               "lora_fan_in_fan_out: true\neval_batch_size: 3\n";
    REPORTS(((request){.config_name = "t.yaml", .config_text = text}), "their names say of which kind they are",
            "data.chat is the format of all files", "data.train_on says which tokens count", "records are known by their keys",
            "`ralo export RUN DIR --merge` merges adapters", "data.allow_cut=true cut at its end",
            "train.micro_batch=auto takes the largest that fits", "memory.device (--device-memory) limits the device",
            "`ralo chat RUN` talks to the model", "run.breakdown and --trace", "every byte of a step is planned",
            "ralo uploads nothing", "how weights lie", "held-out rows are evaluated in micro-batches");
    REFUSED(((request){.config_name = "t.yaml",
                       .config_text = "base_model: gpt2\ndatasets: [{path: a.jsonl, shards: 4}]\ntokens: [x]\nrl: grpo\n"
                                      "trl: {sync_ref_model: true}\n"}),
            "datasets[0].shards", "write the part that is to be trained on", "tokens", "add tokens to them",
            "trl.sync_ref_model", "ralo does not have this method");
}

static void test_examples_of_llamafactory(void **state) {
    static const example examples[] = {
        {"llamafactory/qwen3-lora-sft.yaml", 0, {"train.task", "sft", "model.path", "Qwen/Qwen3-4B-Instruct-2507", "model.lora.rank", "8", "model.lora.targets", "all-linear",
            "data.seq_len", "auto", "data.seq_len_max", "2048", "run.dir", "saves/qwen3-4b/lora/sft", "train.save_every", "500", "train.micro_batch", "1", "train.accumulation", "8", "train.lr", "0.0001",
            "train.schedule", "cosine", "train.min_lr_ratio", "0"}},
        {"llamafactory/qwen3-lora-dpo.yaml", 0, {"train.task", "preference", "preference.loss", "dpo", "preference.beta", "0.1", "train.lr", "5e-06", "train.betas", "[0.9, 0.999]",
            "train.weight_decay", "0", "data.chat_kwargs", "{\"enable_thinking\": false}"}},
        {"llamafactory/qwen3-lora-kto.yaml", 0, {"train.task", "preference", "preference.loss", "kto", "preference.beta", "0.1"}},
        {"llamafactory/qwen3-lora-pretrain.yaml", 0, {"train.task", "sft", "data.train_on", "all", "data.pack", "true"}},
        {"llamafactory/qwen3-lora-sft-ray.yaml", 0, {"train.task", "sft", "model.lora.rank", "8"}},
        {"llamafactory/qwen3-qlora-sft.yaml", 0, {"model.base", "nf4", "model.lora.rank", "8", "precision", "bf16"}},
        {"llamafactory/qwen3-qlora-sft-npu.yaml", 0, {"model.base", "nf4"}},
        {"llamafactory/llama3-lora-sft-pissa.yaml", 0, {"model.lora.init", "pissa", "model.lora.rank", "8"}},
        {"llamafactory/llama3-fsdp-qlora.yaml", 0, {"model.base", "nf4", "precision", "bf16"}},
        {"llamafactory/llama3-fp8-fsdp.yaml", 0, {"precision", "fp8", "parallel.zero", "3", "model.lora.rank", "none"}},
        {"llamafactory/qwen3-full-sft.yaml", 1, {"deepspeed: found examples/deepspeed/ds_z3_config.json", "--deepspeed FILE"}},
        {"llamafactory/qwen3-lora-sft-ds3.yaml", 1, {"deepspeed: found examples/deepspeed/ds_z3_config.json"}},
        {"llamafactory/qwen3-lora-reward.yaml", 1, {"stage: found rm"}},
        {"llamafactory/llama3-lora-sft-loraplus.yaml", 1, {"loraplus_lr_ratio: found 16.0"}},
        {"llamafactory/llama3-full-sft-galore.yaml", 1, {"use_galore: found true", "AdamW"}},
        {"llamafactory/llama3-full-sft-apollo.yaml", 1, {"use_apollo: found true"}},
        {"llamafactory/llama3-freeze-sft.yaml", 2, {"finetuning_type: found freeze", "use_llama_pro"}},
        {"llamafactory/llama3-oft-sft.yaml", 1, {"finetuning_type: found oft"}},
        {"llamafactory/qwen3vl-lora-dpo.yaml", 2, {"image_max_pixels", "video_max_pixels"}},
    };
    check_examples(examples, ARRAY_LENGTH(examples));
}

static void test_examples_of_trl(void **state) {
    static const example examples[] = {
        {"trl/example.yaml", 0, {"model.preset", "qwen2.5-0.5b", "train.lr", "0.0001", "train.schedule", "cosine", "train.task", "sft", "data.seq_len", "auto", "data.seq_len_max", "1024", "train.micro_batch", "8"}},
        {"trl/sft.yaml", 0, {"data.pack", "true", "data.eos_token", "<|im_end|>", "train.eval_every", "100", "run.dir", "Qwen2-0.5B-SFT", "train.accumulation", "8", "train.warmup", "0",
            "train.schedule", "linear", "precision", "bf16"}},
        {"trl/sft-lora.yaml", 0, {"model.lora.rank", "32", "model.lora.alpha", "16", "model.lora.dropout", "0.05", "model.lora.targets", "q,v", "train.lr", "0.0002"}},
        {"trl/dpo.yaml", 0, {"train.steps", "1000", "train.eval_every", "50", "train.lr", "5e-07"}},
        {"trl/dpo-lora.yaml", 0, {"model.lora.rank", "32", "train.steps", "1000"}},
        {"trl/kto.yaml", 0, {"train.micro_batch", "16", "train.schedule", "cosine", "train.eval_every", "none"}},
        {"trl/kto-qlora.yaml", 0, {"model.base", "nf4", "model.lora.targets", "all-linear"}},
        {"trl/orpo.yaml", 0, {"train.warmup", "150", "train.steps", "1000"}},
        {"trl/orpo-lora.yaml", 1, {"optim: found rmsprop", "AdamW"}},
        {"trl/grpo.yaml", 1, {"8 rows x 1 steps x 1 ranks in groups of 32"}},
        {"trl/grpo-agent.yaml", 0, {"train.task", "rloo", "rl.loss", "dapo", "rl.k", "8", "rl.prompts", "1", "rl.max_completion", "1024", "train.steps", "400", "rl.beta", "0"}},
        {"trl/gkd.yaml", 1, {"teacher_model_name_or_path"}},
        {"accelerate/single-gpu.yaml", 0, {"precision", "bf16", "parallel.zero", "auto"}},
        {"accelerate/multi-gpu.yaml", 0, {"precision", "bf16"}},
        {"accelerate/fsdp1.yaml", 0, {"parallel.zero", "3", "memory.recompute", "none", "parallel.prefetch", "1"}},
        {"accelerate/fsdp2.yaml", 0, {"parallel.zero", "3", "memory.offload.params", "none"}},
        {"accelerate/deepspeed-zero1.yaml", 0, {"parallel.zero", "1", "train.accumulation", "1"}},
        {"accelerate/deepspeed-zero2.yaml", 0, {"parallel.zero", "2", "memory.offload.states", "none"}},
        {"accelerate/deepspeed-zero3.yaml", 0, {"parallel.zero", "3"}},
        {"accelerate/context-parallel-2gpu.yaml", 0, {"parallel.sequence", "2", "parallel.attention", "ring", "memory.recompute", "full"}},
        {"accelerate/alst-ulysses-4gpu.yaml", 0, {"parallel.sequence", "2", "parallel.zero", "3", "parallel.attention", "auto"}},
    };
    check_examples(examples, ARRAY_LENGTH(examples));
}
/* clang-format on */

#define YAML(text) ((request){.config_name = "t.yaml", .config_text = (text)})

static void test_methods_of_trl(void **state) {
    GIVES(YAML("model_name_or_path: gpt2\nbeta: 0.3\nloss_type: ipo\nlabel_smoothing: 0.1\nprecompute_ref_log_probs: "
               "true\n"),
          "train.task", "preference", "preference.loss", "ipo", "preference.beta", "0.3", "preference.label_smoothing",
          "0.1", "preference.reference", "disk", "train.lr", "1e-06");
    GIVES(YAML("per_device_train_batch_size: 4\ngradient_accumulation_steps: 6\nnum_generations: 8\nloss_type: "
               "dr_grpo\nscale_rewards: false\nbeta: 0.04\n"
               "epsilon_high: 0.28\nnum_iterations: 2\nmax_prompt_length: 500\nmax_completion_length: 200\nuse_vllm: "
               "true\ntop_k: 50\n"),
          "train.task", "rloo", "rl.loss", "dr_grpo", "rl.prompts", "3", "rl.k", "8", "rl.updates", "2", "rl.beta",
          "0.04", "rl.epsilon_high", "0.28", "data.seq_len", "700", "rl.max_completion", "200", "rl.top_k", "50");
    GIVES(YAML("rloo_k: 4\nper_device_train_batch_size: 4\nnormalize_advantages: true\nreward_clip_range: [-10, 10]\n"),
          "rl.loss", "rloo", "rl.k", "4", "rl.beta", "0.05", "rl.normalize_advantages", "true", "rl.reward_clip",
          "[-10, 10]");
    GIVES(YAML("num_generations: 8\nreward_funcs: [think_format_reward]\n"), "reward.list", "format");
    request q = YAML("num_generations: 8\nreward_funcs: mine.py\nreward_weights: [1.0]\n");
    q.set[0] = "reward.list=numeric";
    GIVES(q, "reward.list", "numeric");
    q = YAML(
        "learning_rate: 1e-6\nmax_length: 64\n"); /* its command would say the method; here the command line does */
    q.set[0] = "train.task=preference";
    GIVES(q, "train.task", "preference", "train.lr", "1e-06", "data.seq_len", "auto", "data.seq_len_max",
          "128"); /* a row holds both answers */
    GIVES(YAML("learning_rate: 1e-6\nmax_length: 64\npacking: true\n"), "data.seq_len", "64", "data.seq_len_max",
          "auto");
    REFUSED(YAML("num_generations: 8\nreward_funcs: [accuracy_reward]\nloss_type: bnpo\nscale_rewards: "
                 "batch\nsync_ref_model: true\n"),
            "4 things", "reward.program", "loss_type: found bnpo; ralo has grpo, dr_grpo, dapo and rloo",
            "scale_rewards: found batch", "sync_ref_model");
}

/* What a loss of ralo brings with it (dapo: a wider clip, masks, new draws; simpo: beta 2) must not enter a run whose own program has other defaults. */
static void test_defaults_of_trl_count(void **state) {
    GIVES(YAML("num_generations: 8\nper_device_train_batch_size: 8\n"), "rl.loss", "dapo", "rl.epsilon", "0.2",
          "rl.epsilon_high", "auto", "rl.mask_truncated", "false", "rl.dynamic_sampling", "0");
    GIVES(YAML("num_generations: 8\nloss_type: dapo\nepsilon_high: 0.28\nmask_truncated_completions: true\n"),
          "rl.epsilon", "0.2", "rl.epsilon_high", "0.28", "rl.mask_truncated", "true", "rl.dynamic_sampling", "0");
    GIVES(YAML("num_generations: 8\nloss_type: grpo\nimportance_sampling_level: sequence\n"), "rl.loss", "gspo",
          "rl.epsilon", "0.2");
    GIVES(YAML("kl_coef: 0.02\nper_device_train_batch_size: 4\nlearning_rate: 1e-6\n"), "rl.loss", "rloo", "rl.beta",
          "0.02", "rl.k", "2", "rl.prompts", "2");
    request rloo = YAML("max_completion_length: 64\nper_device_train_batch_size: 4\n"); /* `trl rloo` */
    rloo.set[0] = "rl.loss=rloo";
    GIVES(rloo, "rl.loss", "rloo", "rl.k", "2", "rl.beta", "0.05", "rl.dynamic_sampling", "auto");
    REFUSED(YAML("num_generations: 8\nimportance_sampling_level: sequence\n"), "loss_type: grpo", "default is dapo");
    REFUSED(YAML("num_generations: 8\nloss_type: grpo\nimportance_sampling_level: sequence_token\n"),
            "ralo has token, and sequence");
    REFUSED(YAML("num_generations: 8\nloss_type: dr_grpo\nscale_rewards: group\n"), "never divides rewards");
    REPORTS(YAML("num_generations: 8\nloss_type: dr_grpo\n"), "rewards stay undivided");
    GIVES(YAML("learning_rate: 1e-6\nloss_type: simpo\ncpo_alpha: 0\n"), "preference.loss", "simpo", "preference.beta",
          "0.1", "preference.gamma", "0.5");
    REFUSED(YAML("learning_rate: 1e-6\nloss_type: simpo\nsimpo_gamma: 0.3\n"), "cpo_alpha: 1", "set it to 0");
    GIVES(YAML("base_model: gpt2\nrl: simpo\ncpo_alpha: 0.0\n"), "preference.beta", "0.1", "preference.gamma", "0.5");
    REFUSED(YAML("base_model: gpt2\nrl: simpo\n"), "cpo_alpha: 1");
    GIVES(YAML("base_model: gpt2\nrl: dpo\nrl_beta: 0.3\ntrl: {beta: 0.2}\n"), "preference.beta", "0.2");
    GIVES(YAML("finetuning_type: full\nstage: dpo\npref_loss: simpo\n"), "preference.beta", "0.1", "preference.gamma",
          "0.5");
    REPORTS(YAML("learning_rate: 2e-5\nnum_train_epochs: 1\n"), "data.train_on = response", "TRL counts every token");
    REPORTS(YAML("learning_rate: 2e-5\nassistant_only_loss: false\n"), "data.train_on = response",
            "TRL counts every token");
    GIVES(YAML("learning_rate: 2e-5\ncompletion_only_loss: false\n"), "data.train_on", "all");
    REPORTS(YAML("learning_rate: 2e-5\nbeta: 0.1\n"), "data.chat = auto", "without the chat template");
    request q = YAML("learning_rate: 2e-5\nbeta: 0.1\n");
    q.set[0] = "data.chat=none";
    GIVES(q, "data.chat", "none");
}

/* TRL may generate for several optimizer steps at once; each trains on its own share of the completions, once for each of num_iterations. */
static void test_generation_batches_of_trl(void **state) {
    GIVES(YAML("per_device_train_batch_size: 8\nnum_generations: 8\ngeneration_batch_size: 64\n"), "rl.prompts", "1",
          "rl.updates", "1");
    GIVES(YAML("per_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nnum_generations: "
               "8\nsteps_per_generation: 8\nnum_iterations: 3\n"),
          "rl.prompts", "2", "rl.updates", "3");
    REPORTS(YAML("per_device_train_batch_size: 8\nnum_generations: 8\nsteps_per_generation: 4\n"),
            "8 completions a step, 8 of each prompt; each step has a rollout of its own");
    REFUSED(YAML("num_generations: 8\ngeneration_batch_size: 20\n"), "whole steps in a generation batch");
    REFUSED(YAML("num_generations: 8\ngeneration_batch_size: 64\nsteps_per_generation: 8\n"), "keep one");
}

/* A batch of preferences counts examples there. A row that held several would make fewer, larger steps of an epoch. */
static void test_batches_of_preferences_count_examples(void **state) {
    GIVES(YAML("learning_rate: 1e-6\nbeta: 0.1\nloss_type: sigmoid\nper_device_train_batch_size: 4\n"), "data.pack",
          "false", "train.micro_batch", "4");
    GIVES(YAML("learning_rate: 1e-6\ndesirable_weight: 1\n"), "data.pack", "false");
    GIVES(YAML("finetuning_type: full\nstage: dpo\npacking: true\n"), "data.pack", "false");
    GIVES(YAML("finetuning_type: full\nstage: kto\n"), "data.pack", "false");
    GIVES(YAML("base_model: gpt2\nrl: dpo\n"), "data.pack", "false");
    GIVES(YAML("num_generations: 8\nlearning_rate: 1e-6\n"), "data.pack",
          "true"); /* completions fill rows, however many there are in a step */
}

/* Older versions of DPO, KTO and ORPO have max_completion_length too. */
static void test_a_completion_length_alone_is_no_rollout(void **state) {
    GIVES(YAML("learning_rate: 1e-6\nbeta: 0.1\nloss_type: sigmoid\nmax_prompt_length: 512\nmax_completion_length: "
               "512\n"),
          "train.task", "preference", "preference.loss", "dpo");
    GIVES(YAML("learning_rate: 1e-6\ndesirable_weight: 1\nmax_completion_length: 512\n"), "preference.loss", "kto");
    GIVES(YAML("learning_rate: 1e-6\nbeta: 0\nmax_completion_length: 512\n"), "train.task", "rloo");
}

static void test_maps_and_names(void **state) {
    GIVES(YAML("num_generations: 8\nchat_template_kwargs: {enable_thinking: false, name: \"7\", depth: [1, x]}\n"),
          "data.chat_kwargs", "{\"depth\":[1,\"x\"],\"enable_thinking\":false,\"name\":\"7\"}");
    REFUSED(YAML("num_generations: 8\nchat_template_kwargs: 5\n"), "found '5', expected a map");
    GIVES(YAML("model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\n"), "model.preset", "qwen2.5-0.5b");
    GIVES(YAML("model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\n"), "model.preset", "llama3-8b");
    GIVES(YAML("model_name_or_path: meta-llama/Llama-2-7b-chat-hf\n"), "model.preset", "llama2-7b");
    GIVES(YAML("base_model: NousResearch/Llama-3.2-1B\n"), "model.preset", "llama3.2-1b");
    GIVES(YAML("model_name_or_path: google/gemma-2-2b-it\n"), "model.preset", "gemma-2-2b");
    GIVES(YAML("model_name_or_path: some/Llama-Guard\n"), "model.path", "some/Llama-Guard");
    GIVES(YAML("dataset_config: main\ndataset_train_split: train\nlearning_rate: 1\n"), "train.task", "sft");
    outcome o; /* the settings of a script, whose data is in Python: no reason to train on a built-in source */
    request q = YAML("model_name_or_path: .\nmax_steps: 2\n");
    translate(&o, &q);
    assert_int_equal(o.rc, OK);
    assert_int_equal(foreign_check_train(&o.f), ERR_INPUT);
    assert_in(error_message(), "t.yaml names no data; give --data FILE");
    outcome_fini(&o);
}

static void test_contradictions_are_refused_together(void **state) {
    REFUSED(YAML("model_name_or_path: gpt2\nbf16: true\nfp16: true\nload_in_4bit: true\nload_in_8bit: "
                 "true\nmax_length: 3\nmax_seq_length: 4\nneftune_noise_alpha: 5\n"
                 "optim: lion_32bit\nlr_scheduler_type: polynomial\nuse_dora: true\nnum_train_epoch: 3\n"),
            "8 things cannot be translated", "t.yaml:3: fp16: found true; bf16 in line 2 is on too",
            "load_in_8bit in line 5 is on too", "max_length in line 6 says it too", "neftune_noise_alpha",
            "optim: found lion_32bit", "lr_scheduler_type: found polynomial; ralo has linear, cosine, constant",
            "use_dora", "unknown TRL key 'num_train_epoch'; did you mean 'num_train_epochs'?");
    REFUSED(YAML("base_model: gpt2\nload_in_4bit: true\nbatch_size: 7\nmicro_batch_size: 2\nval_set_size: "
                 "100\ngradient_checkpointing: perhaps\n"),
            "4 things", "needs LoRA", "a multiple of micro_batch_size", "data.eval_fraction",
            "gradient_checkpointing: found perhaps");
    REFUSED(YAML("base_model: gpt2\nbf16: fasle\nfp16: 16\nsample_packing: -0.5\n"), "3 things",
            "bf16: found fasle; expected true or false", "fp16: found 16", "sample_packing: found -0.5");
    REFUSED(YAML("stage: ppo\nfinetuning_type: full\nquantization_bit: 3\nfreeze_vision_tower: true\n"), "3 things",
            "stage: found ppo", "ralo has 4 (nf4) and 8 (int8)", "freeze_vision_tower");
    REFUSED(YAML("base_model: 5\ndatasets: [a, b]\n"), "'datasets' is a group of keys: found a list");
    REFUSED(YAML("base_model: gpt2\ndatasets:\n- {path: a, type: {field_output: x}}\n- 5\n"), "2 things",
            "datasets[0].type", "datasets[1]: found a single value");
}

static void test_data_and_models_by_name(void **state) {
    outcome o;
    request q = YAML("model_name_or_path: Qwen/Qwen3-0.6B\ndatasets:\n- path: openai/gsm8k\n  name: main\n- path: "
                     "tatsu-lab/alpaca\n  split: train[:10]\n");
    translate(&o, &q);
    assert_int_equal(o.rc, OK);
    assert_int_equal(foreign_check_train(&o.f), ERR_INPUT);
    assert_in(error_message(), "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B\n");
    assert_in(error_message(), "python3 -c \"from datasets import load_dataset; load_dataset('openai/gsm8k', 'main', "
                               "split='train').to_json('gsm8k.jsonl')\"");
    assert_in(error_message(), "load_dataset('tatsu-lab/alpaca', split='train[:10]').to_json('alpaca.jsonl')");
    assert_in(error_message(), "then give --data \"gsm8k.jsonl, alpaca.jsonl\"");
    outcome_fini(&o);

    /* Nothing of a file reaches a command that one would copy into a shell. */
    q = YAML("model_name_or_path: \"a$(b)'; c\"\ndataset_name: \"x'); import os #\"\n");
    translate(&o, &q);
    assert_int_equal(o.rc, OK);
    assert_int_equal(foreign_check_train(&o.f), ERR_INPUT);
    assert_null(strstr(error_message(), "hf download"));
    assert_null(strstr(error_message(), "python3"));
    outcome_fini(&o);

    /* Files that are here are the source; what is said on the command line wins. */
    write_text("a.jsonl", "{}\n");
    write_text("b:c.jsonl", "{}\n");
    GIVES(YAML("base_model: .\ndatasets:\n- path: a.jsonl\n  type: alpaca\n- path: json\n  data_files: b:c.jsonl\n  "
               "type: chat_template\n"),
          "data.source", "a.jsonl, b\\:c.jsonl", "model.path", ".");
    write_text("thing.jsonl", "{}\n"); /* what the command made before */
    GIVES(YAML("dataset_name: some/thing\nlearning_rate: 1e-5\n"), "data.source", "thing.jsonl");
    assert_int_equal(remove("thing.jsonl"), 0);
    q = YAML("dataset_name: some/thing\nlearning_rate: 1e-5\n");
    q.set[0] = "data.source=a.jsonl";
    GIVES(q, "data.source", "a.jsonl");
    translate(&o, &q);
    assert_int_equal(foreign_check_train(&o.f), OK);
    outcome_fini(&o);
    write_text("dataset_info.json", "{\"one\": {\"file_name\": \"a.jsonl\"}, \"two\": {\"hf_hub_url\": \"org/two\"}}");
    GIVES(YAML("finetuning_type: full\ndataset_dir: .\ndataset: one\n"), "data.source", "./a.jsonl", "model.lora.rank",
          "none");
    q = YAML("finetuning_type: full\ndataset_dir: .\ndataset: one,two,three\nmax_samples: 50\n");
    translate(&o, &q);
    assert_int_equal(o.rc, OK);
    assert_int_equal(foreign_check_train(&o.f), ERR_INPUT);
    assert_in(error_message(), "load_dataset('org/two', split='train').to_json('two.jsonl')");
    assert_in(error_message(), "jq -c '.[]' ./three.json | head -n 50 >three.jsonl");
    assert_in(error_message(), "then give --data \"./a.jsonl, two.jsonl, three.jsonl\"");
    outcome_fini(&o);
    assert_int_equal(remove("a.jsonl") | remove("b:c.jsonl") | remove("dataset_info.json"), 0);
}

/* A file of a trainer may name a DeepSpeed file, which is translated too. */
static void test_a_deepspeed_file_that_is_named(void **state) {
    write_text("zero.json", "{\"zero_optimization\": {\"stage\": 2 /* ! */}, \"train_micro_batch_size_per_gpu\": "
                            "\"auto\", \"bf16\": {\"enabled\": \"auto\"},}");
    GIVES(YAML("finetuning_type: full\ndeepspeed: zero.json\nper_device_train_batch_size: 3\nbf16: true\n"),
          "parallel.zero", "2", "train.micro_batch", "3", "precision", "bf16");
    request q = YAML("finetuning_type: full\ndeepspeed: zero.json\n");
    q.deepspeed_text = "{\"zero_optimization\": {\"stage\": 1}}";
    GIVES(q, "parallel.zero", "1");
    assert_int_equal(remove("zero.json"), 0);
}

/* What transformers does by itself gives way to what the DeepSpeed file says, and the schedule is DeepSpeed's where its file has one. */
static void test_a_deepspeed_file_before_defaults(void **state) {
    write_text("zero.json",
               "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 3e-5, "
               "\"warmup_num_steps\": 7}}, \"gradient_clipping\": 0.7, \"optimizer\": {\"type\": \"AdamW\", "
               "\"params\": {\"lr\": 3e-5, \"betas\": [0.8, 0.99], \"weight_decay\": 0.3}}}");
    GIVES(YAML("finetuning_type: full\ndeepspeed: zero.json\n"), "train.schedule", "constant", "train.lr", "3e-05",
          "train.betas", "[0.8, 0.99]", "train.weight_decay", "0.3", "train.warmup", "7", "train.clip", "0.7");
    GIVES(YAML("learning_rate: 1e-4\nmax_grad_norm: 0.5\nlr_scheduler_type: cosine\ndeepspeed: zero.json\n"),
          "train.schedule", "constant", "train.lr", "0.0001", "train.clip", "0.5");
    REPORTS(YAML("learning_rate: 1e-4\nlr_scheduler_type: cosine\ndeepspeed: zero.json\n"),
            "lr_scheduler_type = cosine", "-> train.schedule = constant  (conflict: zero.json says so)");
    request q = YAML("learning_rate: 1e-4\ndeepspeed: zero.json\n");
    q.set[0] = "train.schedule=cosine";
    GIVES(q, "train.schedule", "cosine");
    assert_int_equal(remove("zero.json"), 0);
}

/* Recipes of the alignment handbook are TRL's arguments with a mixture of data sets and a template of their own. */
static void test_recipes_of_the_handbook(void **state) {
    request q =
        YAML("learning_rate: 5e-7\nbeta: 0.01\ndataset_mixture:\n  datasets:\n    - id: some/pairs\n      config: "
             "default\n      split: train_prefs\n      columns: [chosen, rejected]\n      weight: 1.0\n    - id: "
             "other/pairs2\n      weight: 0.5\n  test_split_size: 0.1\n  seed: 0\n");
    REFUSED(q, "t.yaml:11: dataset_mixture.datasets[1].weight: found 0.5; take that share");
    q.set[0] = "data.source=mine.jsonl";
    GIVES(q, "data.source", "mine.jsonl", "data.eval_fraction", "0.1", "train.task", "preference", "train.lr", "5e-07");
    q = YAML(
        "learning_rate: 5e-7\nbeta: 0.01\ndataset_mixture:\n  datasets:\n    - id: some/pairs\n      split: a\n    - "
        "id: some/pairs\n      split: b\n  test_split_size: 2000\n");
    REFUSED(q, "dataset_mixture.test_split_size: found 2000; give the share");
    q.set[0] = "data.eval_fraction=0.02"; /* two splits of one data set are two files */
    GIVES(q, "data.source", "pairs.jsonl, pairs-b.jsonl", "data.eval_fraction", "0.02");
    REFUSED(
        YAML("learning_rate: 1e-5\nchat_template: \"{% for m in messages %}\\n{{ m }}\\n{% endfor %}\"\n"),
        "chat_template: found {% for m in messages %}...; put it into the model's directory as chat_template.jinja");
}

/* Files that LLaMA-Factory chats or merges with. */
static void test_a_file_without_training(void **state) {
    REFUSED(YAML("model_name_or_path: gpt2\nadapter_name_or_path: saves/x\ntemplate: qwen3\n"),
            "t.yaml: found no dataset and no stage", "ralo generate --model DIR --adapter ADAPTER", "--merge");
}

static void test_settings_that_follow(void **state) {
    GIVES(YAML("learning_rate: 2e-4\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: "
               "2e-5}\nadam_beta2: 0.98\nmax_steps: 100\nwarmup_ratio: 0.03\n"
               "save_strategy: \"no\"\neval_strategy: steps\nlogging_steps: 7\nload_best_model_at_end: "
               "true\nmetric_for_best_model: eval_loss\nuse_cpu: true\n"),
          "train.min_lr_ratio", "0.1", "train.betas", "[0.9, 0.98]", "train.steps", "100", "train.eval_every", "7",
          "train.save_every", "none", "train.save_best", "loss", "run.device", "cpu");
    if (!config_knows("train.warmup_ratio"))
        GIVES(YAML("learning_rate: 2e-4\nmax_steps: 100\nwarmup_ratio: 0.03\n"), "train.warmup", "3");
    if (config_knows("train.epochs"))
        GIVES(YAML("learning_rate: 2e-4\nnum_train_epochs: 2.5\n"), "train.epochs", "2.5");
    GIVES(YAML("learning_rate: 2e-4\neval_strategy: epoch\nsave_strategy: epoch\n"), "train.evals_per_epoch", "1",
          "train.saves_per_epoch", "1", "train.eval_every", "none", "train.save_every", "none");
    GIVES(YAML("base_model: .\ndatasets:\n- path: a.jsonl\n  type: alpaca\nevals_per_epoch: 4\nsaves_per_epoch: 1\n"),
          "train.evals_per_epoch", "4", "train.saves_per_epoch", "1", "train.eval_every", "none");
    GIVES(YAML("base_model: .\nval_set_size: 0.1\n"), "train.evals_per_epoch", "1", "train.saves_per_epoch", "1");
    GIVES(YAML("base_model: .\nval_set_size: 0\nsave_steps: 50\n"), "train.evals_per_epoch", "none",
          "train.saves_per_epoch", "none", "train.save_every", "50");
    GIVES(YAML("learning_rate: 2e-4\nlr_scheduler_type: constant\nwarmup_steps: 9\n"), "train.schedule", "constant",
          "train.warmup", "0");
    GIVES(YAML("base_model: gpt2\nsequence_len: 500_000\nfloat16: true\nadapter:\nlora_r: 8\ngradient_checkpointing: "
               "offload\n"),
          "data.seq_len_max", "500000", "precision", "fp16", "model.lora.rank", "none", "memory.recompute", "full",
          "memory.offload.activations", "host");
    GIVES(YAML("base_model: gpt2\nmax_steps: 200\n"), "train.warmup", "6", "train.schedule", "cosine");
    REPORTS(YAML("learning_rate: 2e-4\ndataloader_num_workers: 4\ntorch_compile: true\nreport_to: wandb\n"),
            "dataloader_num_workers = 4", "no effect here: ralo reads and tokenizes", "torch_compile = true",
            "metrics.jsonl");
    GIVES(YAML("learning_rate: 2e-4\nreport_to: [wandb, tensorboard, trackio]\n"), "track.to", "tensorboard,trackio");
    REPORTS(YAML("learning_rate: 2e-4\nreport_to: [wandb, tensorboard]\n"), "track.to = tensorboard",
            "the others have no effect");
    request ours = {.config_name = "c.yaml", .config_text = "train: {lr: 0.5}\nlearning_rate: 3\n"};
    REFUSED(ours, "c.yaml:2", "unknown setting 'learning_rate'"); /* a file is ours or theirs */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_of_axolotl),
        cmocka_unit_test(test_reasons_of_axolotl_fit_their_keys),
        cmocka_unit_test(test_examples_of_llamafactory),
        cmocka_unit_test(test_examples_of_trl),
        cmocka_unit_test(test_methods_of_trl),
        cmocka_unit_test(test_defaults_of_trl_count),
        cmocka_unit_test(test_generation_batches_of_trl),
        cmocka_unit_test(test_batches_of_preferences_count_examples),
        cmocka_unit_test(test_a_completion_length_alone_is_no_rollout),
        cmocka_unit_test(test_maps_and_names),
        cmocka_unit_test(test_contradictions_are_refused_together),
        cmocka_unit_test(test_data_and_models_by_name),
        cmocka_unit_test(test_a_deepspeed_file_that_is_named),
        cmocka_unit_test(test_a_deepspeed_file_before_defaults),
        cmocka_unit_test(test_recipes_of_the_handbook),
        cmocka_unit_test(test_a_file_without_training),
        cmocka_unit_test(test_settings_that_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
