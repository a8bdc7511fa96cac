/* accelerate.c - files of `accelerate config`: where a training script of others runs, in what precision, sharded how.
 *
 * Such a file says nothing of model and data: they come from --model, --data and --set. Its processes are ranks here,
 * which --ranks or mpirun starts. */
#include "migrate/trainer.h"

#include <string.h>

#define LAUNCHED "ranks are started here by --ranks N, mpirun or srun"

/* clang-format off */
static const foreign_row rows[] = {
    {"distributed_type",  FOREIGN_WORD, FT_TEXT, "parallel.zero", "NO=|MULTI_GPU=|MULTI_CPU=|FSDP=|DEEPSPEED="},
    {"mixed_precision",   FOREIGN_WORD, FT_TEXT, "precision", "no=fp32|false=fp32|bf16=bf16|fp16=fp16|fp8=fp8"},
    {"num_processes", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"use_cpu",           FOREIGN_WORD, FT_TEXT, "run.device", "true=cpu|false="},
    {"gradient_accumulation_steps", FOREIGN_SET, FT_INT, "train.accumulation", NULL},
    {"gradient_clipping", FOREIGN_SET, FT_REAL, "train.clip", NULL},
    {"{compute_environment debug downcast_bf16 machine_rank main_training_function num_machines rdzv_backend same_network tpu_env tpu_use_cluster "
     "tpu_use_sudo tpu_name tpu_zone commands command_file gpu_ids enable_cpu_affinity main_process_ip main_process_port mpirun_config fp8_config "
     "deepspeed_hostfile}", FOREIGN_IDLE, FT_ANY, NULL, LAUNCHED},
    {"{dynamo_config ipex_config megatron_lm_config}", FOREIGN_WHOLE, FT_ANY, NULL, ONE_STEP},
    {"fsdp_config.*",     FOREIGN_FSDP, FT_ANY, NULL, NULL},
    {"deepspeed_config.zero_stage", FOREIGN_SET, FT_INT, "parallel.zero", NULL},
    {"deepspeed_config.offload_optimizer_device", FOREIGN_WORD, FT_TEXT, "memory.offload.states", "none=none|cpu=host|nvme=nvme"},
    {"deepspeed_config.offload_param_device",     FOREIGN_WORD, FT_TEXT, "memory.offload.params", "none=none|cpu=host|nvme=nvme"},
    {"deepspeed_config.offload_optimizer_nvme_path", FOREIGN_SET, FT_TEXT, "memory.nvme_path", NULL},
    {"deepspeed_config.offload_param_nvme_path",  FOREIGN_SET, FT_TEXT, "memory.nvme_path", NULL},
    {"deepspeed_config.gradient_accumulation_steps", FOREIGN_SET, FT_ANY, "train.accumulation", NULL},
    {"deepspeed_config.gradient_clipping",        FOREIGN_SET, FT_ANY, "train.clip", NULL},
    {"deepspeed_config.deepspeed_config_file", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"deepspeed_config.{zero3_init_flag zero3_save_16bit_model deepspeed_multinode_launcher deepspeed_hostfile deepspeed_exclusion_filter "
     "deepspeed_inclusion_filter seq_parallel_communication_data_type deepspeed_moe_layer_cls_names}", FOREIGN_IDLE, FT_ANY, NULL, LAUNCHED},
    {"parallelism_config.parallelism_config_dp_replicate_size", FOREIGN_WORD, FT_TEXT, "parallel.zero", "1="},
    {"parallelism_config.{parallelism_config_dp_shard_size parallelism_config_cp_size parallelism_config_sp_size}", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"parallelism_config.parallelism_config_tp_size", FOREIGN_SET, FT_INT, "parallel.tensor", NULL},
    {"parallelism_config.{parallelism_config_sp_backend parallelism_config_sp_seq_length_is_variable parallelism_config_sp_seq_length "
     "parallelism_config_sp_attn_implementation parallelism_config_cp_comm_strategy}", FOREIGN_IDLE, FT_ANY, NULL, "parallel.attention says how"},
};
/* clang-format on */

#define SIZE "parallelism_config.parallelism_config_"

static bool is_more(const foreign_item *i) { return i && !i->is_auto && item_whole(i) > 1; }

static status translate(foreign_reader *r) {
    const foreign_item *processes = foreign_find(r, "num_processes"), *ring = foreign_find(r, SIZE "cp_size"),
                       *heads = foreign_find(r, SIZE "sp_size"), *shards = foreign_find(r, SIZE "dp_shard_size");
    if (processes)
        foreign_report_no_effect(
            r, processes,
            is_more(processes) ? foreign_format(r, "start them with --ranks %.20s", processes->text) : LAUNCHED);
    if (is_more(ring) && is_more(heads))
        foreign_refuse(r, ring, "rows are shared by one kind of sequence parallelism: keep cp_size or sp_size");
    else TRY(foreign_offer_text(r, ring, "parallel.sequence", NULL));
    if (is_more(ring)) TRY(foreign_offer(r, ring, "parallel.attention", "ring", NULL));
    if (heads && is_more(ring)) foreign_report_set(r, heads, "parallel.sequence", NULL);
    else TRY(foreign_offer_text(r, heads, "parallel.sequence", NULL));
    if (shards) foreign_report_no_effect(r, shards, "parallel.zero shards over all data ranks");
    return trainer_deepspeed(r, foreign_find(r, "deepspeed_config.deepspeed_config_file"));
}

const foreign_dialect foreign_accelerate = {.name = "accelerate",
                                            .rows = rows,
                                            .n_rows = ARRAY_LENGTH(rows),
                                            .signature = "compute_environment distributed_type",
                                            .has_auto = true,
                                            .translate = translate};
