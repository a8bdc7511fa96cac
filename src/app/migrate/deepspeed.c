/* deepspeed.c - DeepSpeed's JSON as settings of ralo.
 *
 * The table below names every key of DeepSpeed's configuration that we know; the translate functions after it handle
 * what several keys say together (batch sizes, precision, optimizer and scheduler, offload, recompute). The ZeRO stage
 * becomes parallel.zero, with its bucket sizes, prefetch and overlap; DeepSpeed's buckets count elements, ours bytes.
 * Unlike DeepSpeed, activation_checkpointing alone turns recompute on, an unknown key is an error, and a threshold
 * that defeats its ZeRO stage is refused, with the number. Refused: what would silently mean something else here
 * (other optimizers and schedulers, fp16 masters, L2 decay). */
#include "migrate/deepspeed.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#define RANKS "ralo has other settings for several ranks: parallel.*, comm.*"
#define LAYOUT "the plan gives every byte of the step an address"
#define REPORTS "the plan, the progress lines and metrics.jsonl report; see run.breakdown and --trace"
#define CHECKPOINTS "checkpoints are addressed by tensor name and need no options"

/* clang-format off */
static const foreign_row rows[] = {
    {"{train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps sequence_parallel_size}", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"managed_gradient_accumulation",  FOREIGN_IDLE, FT_BOOL, NULL, "accumulation is part of the compiled step"},
    {"gradient_clipping",              FOREIGN_SET, FT_REAL, "train.clip", NULL},
    {"steps_per_print",                FOREIGN_SET, FT_INT, "train.log_every", NULL},
    {"wall_clock_breakdown",           FOREIGN_SET, FT_BOOL, "run.breakdown", NULL},

    {"optimizer.type", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"optimizer.params.lr", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"optimizer.params.betas",         FOREIGN_SET, FT_PAIR, "train.betas", NULL},
    {"optimizer.params.eps",           FOREIGN_SET, FT_REAL, "train.eps", NULL},
    {"optimizer.params.weight_decay",  FOREIGN_SET, FT_REAL, "train.weight_decay", NULL},
    {"optimizer.params.{adam_w_mode bias_correction}", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {"optimizer.params.amsgrad",       FOREIGN_OFF, FT_BOOL, NULL, "ralo has AdamW without the maximum of AMSGrad"},
    {"optimizer.params.{torch_adam fused foreach}", FOREIGN_IDLE, FT_BOOL, NULL, "there is one AdamW kernel per device"},
    {"optimizer.legacy_fusion",        FOREIGN_IDLE, FT_BOOL, NULL, "there is one AdamW kernel per device"},
    {"scheduler.type", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"scheduler.params.{warmup_min_lr warmup_max_lr warmup_min_ratio cos_min_ratio}", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"scheduler.params.{warmup_num_steps total_num_steps}", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"scheduler.params.warmup_type", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"scheduler.params.last_batch_iteration", FOREIGN_IDLE, FT_INT, NULL, "a resumed run knows its own step"},

    {"fp16.enabled", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {"fp16.loss_scale",             FOREIGN_SET, FT_REAL, "train.fp16.loss_scale", NULL},
    {"fp16.initial_scale_power",    FOREIGN_SET, FT_INT, "train.fp16.initial_scale_power", NULL},
    {"fp16.loss_scale_window",      FOREIGN_SET, FT_INT, "train.fp16.loss_scale_window", NULL},
    {"fp16.hysteresis",             FOREIGN_SET, FT_INT, "train.fp16.hysteresis", NULL},
    {"fp16.consecutive_hysteresis", FOREIGN_SET, FT_BOOL, "train.fp16.consecutive_hysteresis", NULL},
    {"fp16.min_loss_scale",         FOREIGN_SET, FT_REAL, "train.fp16.min_loss_scale", NULL},
    {"fp16.auto_cast",              FOREIGN_IDLE, FT_BOOL, NULL, "inputs are token ids: there is nothing to cast"},
    {"fp16.fused_mode",             FOREIGN_IDLE, FT_BOOL, NULL, "there is one AdamW kernel per device"},
    {"fp16.fp16_master_weights_and_grads", FOREIGN_OFF, FT_BOOL, NULL,
     "fp16 masters lose small updates; to save memory use bf16.bf16_master_weights_and_grads, with stochastic rounding"},
    {"bf16.{enabled check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states}", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {"bf16.immediate_grad_update",         FOREIGN_IDLE, FT_BOOL, NULL, "gradients are accumulated when they are complete"},
    {"torch_autocast.enabled",             FOREIGN_OFF, FT_BOOL, NULL, "use bf16.enabled or fp16.enabled instead"},
    {"torch_autocast.{dtype lower_precision_safe_modules}", FOREIGN_IDLE, FT_ANY, NULL, "torch_autocast is off"},
    {"amp.enabled",                        FOREIGN_OFF, FT_BOOL, NULL, "use bf16.enabled or fp16.enabled instead"},
    {"amp.{opt_level loss_scale}",         FOREIGN_IDLE, FT_ANY, NULL, "amp is off"},
    {"data_types.grad_accum_dtype",        FOREIGN_IDLE, FT_TEXT, NULL, "precision decides: fp32 wherever there is a master copy"},
    {"data_types.{param_dtype buffer_dtype}", FOREIGN_IDLE, FT_TEXT, NULL, "precision decides"},

    {ZERO "{stage stage3_prefetch_bucket_size prefetch_bucket_size stage3_param_persistence_threshold param_persistence_threshold "
     "stage3_model_persistence_threshold model_persistence_threshold reduce_bucket_size allgather_bucket_size}", FOREIGN_OWN, FT_INT, NULL, NULL},
    {STATES "{device nvme_path}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {STATES "{buffer_count pipeline pipeline_read pipeline_write}", FOREIGN_IDLE, FT_ANY, NULL,
     "the plan sizes the buffers of copies in flight (memory.prefetch, memory.bucket)"},
    {STATES "pin_memory",                  FOREIGN_IDLE, FT_BOOL, NULL, "the backend decides how host memory is allocated"},
    {STATES "fast_init",                   FOREIGN_IDLE, FT_BOOL, NULL, "states start as zeros, written once"},
    {STATES "ratio", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {STATES "cpuadam_cores_perc",          FOREIGN_IDLE, FT_REAL, NULL, "run.threads sets the number of threads"},
    {STATES "super_offload",               FOREIGN_OFF, FT_BOOL, NULL, "ralo updates no parameter before its gradient is known to be finite"},
    {PARAMS "{device nvme_path}", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {PARAMS "buffer_size", FOREIGN_OWN, FT_INT, NULL, NULL},
    {PARAMS "{buffer_count max_in_cpu}",   FOREIGN_IDLE, FT_ANY, NULL,
     "the plan sizes the buffers of copies in flight (memory.prefetch, memory.bucket)"},
    {PARAMS "pin_memory",                  FOREIGN_IDLE, FT_BOOL, NULL, "the backend decides how host memory is allocated"},
    {ZERO "cpu_offload",                   FOREIGN_OFF, FT_BOOL, NULL, "say offload_optimizer: {\"device\": \"cpu\"} instead"},
    {ZERO "{cpu_offload_param cpu_offload_params}", FOREIGN_OFF, FT_BOOL, NULL, "use offload_param: {\"device\": \"cpu\"} instead"},
    {ZERO "cpu_offload_use_pin_memory",    FOREIGN_IDLE, FT_BOOL, NULL, "the backend decides how host memory is allocated"},
    /* DeepSpeed takes these by the names of its fields, too: without stage3_. */
    {ZERO "{stage3_max_live_parameters stage3_max_reuse_distance max_live_parameters max_reuse_distance sub_group_size}", FOREIGN_IDLE, FT_INT, NULL,
     "the plan keeps the current layer and those that memory.prefetch fetches ahead"},
    {ZERO "overlap_comm", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {ZERO "{zero_hpz_partition_size mics_shard_size "
     "stage3_module_granularity_threshold stage3_partition_stream_chunk_size}", FOREIGN_IDLE, FT_INT, NULL, RANKS},
    {ZERO "{reduce_scatter allgather_partitions use_multi_rank_bucket_allreduce round_robin_gradients "
     "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients mics_hierarchical_params_gather "
     "stage3_allgather_sequential stage3_use_all_reduce_for_fetch_params}", FOREIGN_IDLE, FT_BOOL, NULL, RANKS},
    {ZERO "zeropp_loco_param",             FOREIGN_WHOLE, FT_ANY, NULL, RANKS},
    {ZERO "{contiguous_gradients memory_efficient_linear}", FOREIGN_IDLE, FT_BOOL, NULL, LAYOUT},
    {ZERO "{stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save gather_16bit_weights_on_model_save}", FOREIGN_IDLE, FT_BOOL, NULL,
     "run.export and `ralo export` write whole weights from any run"},
    {ZERO "{load_from_fp32_weights elastic_checkpoint pipeline_loading_checkpoint}", FOREIGN_IDLE, FT_BOOL, NULL, CHECKPOINTS},
    {ZERO "{ignore_unused_parameters legacy_stage1 override_module_apply log_trace_cache_warnings enable_sanity_checks "
     "save_muon_momentum_buffer_in_memory}", FOREIGN_IDLE, FT_BOOL, NULL, "it concerns the internals of DeepSpeed"},
    {ZERO "leaf_module",                   FOREIGN_WHOLE, FT_ANY, NULL, "it concerns the internals of DeepSpeed"},
    {ZERO "zenflow",                       FOREIGN_WHOLE, FT_ANY, NULL, "every gradient is applied in the step it was made in"},

    {"activation_checkpointing.number_checkpoints", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"activation_checkpointing.cpu_checkpointing", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {"activation_checkpointing.partition_activations", FOREIGN_IDLE, FT_BOOL, NULL, RANKS},
    {"activation_checkpointing.contiguous_memory_optimization", FOREIGN_IDLE, FT_BOOL, NULL, LAYOUT},
    {"activation_checkpointing.synchronize_checkpoint_boundary", FOREIGN_IDLE, FT_BOOL, NULL, "the compiled step orders its streams"},
    {"activation_checkpointing.profile", FOREIGN_IDLE, FT_BOOL, NULL, REPORTS},

    {"aio.{block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds}", FOREIGN_IDLE, FT_ANY, NULL,
     "the nvme tier has its own queue; memory.bucket sets the transfer size"},

    {"{prescale_gradients disable_allgather use_data_before_expert_parallelism}", FOREIGN_IDLE, FT_BOOL, NULL, RANKS},
    {"{gradient_predivide_factor communication_data_type seq_parallel_comm_data_type gradient_allreduce_op}",
     FOREIGN_IDLE, FT_ANY, NULL, RANKS},
    {"tensor_parallel.autotp_size", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"tensor_parallel.{dtype tp_overlap_comm keep_module_on_host replace_with_kernel_inject preset_model use_default_specs}",
     FOREIGN_IDLE, FT_ANY, NULL, "layers are split by heads and columns"},
    {"tensor_parallel.{tp tensor_parallel partition_config injection_policy_tuple}", FOREIGN_WHOLE, FT_ANY, NULL,
     "layers are split by heads and columns"},
    {"sparse_gradients",      FOREIGN_OFF, FT_BOOL, NULL, "embedding gradients are dense here; leave it out"},
    {"sparse_attention",      FOREIGN_OFF, FT_ANY, NULL, "attention is exact here; leave it out"},
    {"{progressive_layer_drop curriculum_learning data_efficiency compression_training eigenvalue}", FOREIGN_OFF, FT_ANY, NULL,
     "it would change the training and is not supported; leave it out"},
    {"{zero_allow_untested_optimizer zero_force_ds_cpu_optimizer}", FOREIGN_IDLE, FT_BOOL, NULL, "AdamW runs where its states are"},
    {"{memory_breakdown dump_state}", FOREIGN_IDLE, FT_BOOL, NULL, "the plan shows memory; config.yaml of the run has every setting"},
    {"{flops_profiler comms_logger tensorboard wandb csv_monitor comet timers}", FOREIGN_WHOLE, FT_ANY, NULL, REPORTS},
    {"checkpoint",            FOREIGN_WHOLE, FT_ANY, NULL, CHECKPOINTS},
    {"pipeline",              FOREIGN_WHOLE, FT_ANY, NULL, "stages are parallel.pipeline here, their micro-batches train.accumulation"},
    {"{autotuning hybrid_engine compile}", FOREIGN_WHOLE, FT_ANY, NULL, "it concerns the internals of DeepSpeed"},
    {"elasticity", FOREIGN_WHOLE, FT_ANY, NULL, "train.batch is the same for any number of ranks, and a run resumes on another number of them"},
    {"{dataloader_drop_last graph_harvesting}", FOREIGN_IDLE, FT_BOOL, NULL, "rows are always packed and the step is always compiled"},
    {"vocabulary_size",       FOREIGN_IDLE, FT_INT, NULL, "the model defines it"},
};
/* clang-format on */

/* ---- precision --------------------------------------------------------------------------------------------------- */

static status enable(foreign_reader *r, const foreign_item *i, const char *precision) {
    if (i && (i->is_auto || item_is_true(i))) return foreign_offer_unless_auto(r, i, "precision", precision, NULL);
    foreign_report_no_effect(r, i, "off; precision sets the dtype of the computation");
    return OK;
}

static status translate_precision(foreign_reader *r) {
    const foreign_item *fp16 = foreign_find(r, "fp16.enabled"), *bf16 = foreign_find(r, "bf16.enabled"),
                       *masters = foreign_find(r, "bf16.bf16_master_weights_and_grads"),
                       *states = foreign_find(r, "bf16.bf16_optimizer_states"),
                       *overflow = foreign_find(r, "bf16.check_grad_overflow");
    if (item_is_true(fp16) && item_is_true(bf16))
        return ERR(ERR_INPUT, "%s: fp16.enabled and bf16.enabled (line %d) are both true; keep one of them",
                   foreign_where(r, fp16), bf16->line);
    if (item_is_true(states) && !item_is_true(masters))
        return ERR(ERR_INPUT, "%s: bf16.bf16_optimizer_states needs bf16.bf16_master_weights_and_grads: true",
                   foreign_where(r, states));
    bool small = item_is_true(bf16) && item_is_true(masters);
    TRY(enable(r, fp16, "fp16"));
    TRY(enable(r, bf16, small ? "bf16_sr" : "bf16"));
    if (masters && small)
        foreign_report_set(r, masters, "precision", "bf16 without a master copy, rounded stochastically");
    else if (masters) foreign_report_no_effect(r, masters, item_is_true(masters) ? "bf16 is not enabled" : "off");
    if (states && !small) foreign_report_no_effect(r, states, "bf16 masters are off");
    if (small)
        TRY(foreign_offer(r, states, "memory.states", item_is_true(states) ? "bf16" : "fp32",
                          states ? NULL : "only its master weights are in bf16"));
    if (item_is_true(overflow)) return foreign_offer(r, overflow, "train.nonfinite", "skip", NULL);
    foreign_report_no_effect(r, overflow, "gradients are always checked; train.nonfinite says what happens then");
    return OK;
}

/* ---- the batch triangle ------------------------------------------------------------------------------------------ */

/* The user set train.micro_batch to auto: the file gives the batch, the plan chooses the micro-batch. */
static status translate_open_batch(foreign_reader *r, const foreign_item *const items[3], int64_t train) {
    bool batch_given = false;
    for (int i = 0; i < 3; i++) {
        if (!items[i]) continue;
        if (train && !batch_given)
            TRY(deepspeed_offer_whole(r, items[i], "train.batch", train, "train.micro_batch is auto"));
        else
            foreign_report_set(r, items[i], i == 2 ? "train.accumulation" : "train.micro_batch",
                               "auto: the plan cuts the step");
        batch_given = true;
    }
    return OK;
}

/* A train_batch_size with one factor or none in the file. That factor is kept, else one that the settings give, else
 * a step is one micro-batch; the rest of the batch is the other factor. */
static status cut_batch(foreign_reader *r, const foreign_item *train_item, int64_t ranks, const char *of_ranks,
                        int64_t *micro, int64_t *steps) {
    const config *c = r->c;
    int64_t train = deepspeed_whole_or_zero(train_item), known = 1;
    const char *name = "train.accumulation";
    bool is_micro = false;
    if (*micro) known = *micro, name = "train_micro_batch_size_per_gpu", is_micro = true;
    else if (*steps) known = *steps, name = "gradient_accumulation_steps";
    else if (config_was_given(c, "train.micro_batch"))
        known = c->train.micro_batch, name = "train.micro_batch", is_micro = true;
    else if (c->train.accumulation) known = c->train.accumulation;
    int64_t unit = multiply_saturating(known, ranks), rest = train / unit;
    if (train % unit != 0)
        return ERR(
            ERR_INPUT,
            "%s: train_batch_size %lld is not a multiple of %s %lld (%lld x %lld x %s = %lld); change one of the two",
            foreign_where(r, train_item), (long long)train, name, (long long)known, (long long)known, (long long)rest,
            of_ranks, (long long)(rest * unit));
    *micro = is_micro ? known : rest;
    *steps = is_micro ? rest : known;
    return OK;
}

/* Tensor, sequence and pipeline ranks do not get rows of their own: they are known before the batch is divided. */
static status translate_ranks(foreign_reader *r) {
    static const struct {
        const char *key, *setting;
        int64_t off; /* what says that there are none */
    } sizes[] = {{"sequence_parallel_size", "parallel.sequence", 1},
                 {"tensor_parallel.autotp_size", "parallel.tensor", 0}};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        const foreign_item *item = foreign_find(r, sizes[i].key);
        int64_t n = deepspeed_whole_or_zero(item);
        if (!item) continue;
        if (!item->is_auto && (n < sizes[i].off || n > INT32_MAX))
            return foreign_expected(r, item, sizes[i].off ? "a whole number from 1" : "a whole number from 0");
        if (n == 0 && !item->is_auto) foreign_report_no_effect(r, item, "off");
        else TRY(foreign_offer_text(r, item, sizes[i].setting, NULL));
    }
    return OK;
}

/* train = micro x accumulation x data ranks. If the file leaves two of the three open, the rest of the configuration
 * decides. */
static status translate_batch(foreign_reader *r) {
    TRY(translate_ranks(r));
    const foreign_item *train_item = foreign_find(r, "train_batch_size"),
                       *micro_item = foreign_find(r, "train_micro_batch_size_per_gpu"),
                       *steps_item = foreign_find(r, "gradient_accumulation_steps");
    int64_t train = deepspeed_whole_or_zero(train_item), micro = deepspeed_whole_or_zero(micro_item),
            steps = deepspeed_whole_or_zero(steps_item);
    /* At least one, even if there are fewer ranks than share a row: a plan may be for more ranks. */
    int64_t ranks = MAX(foreign_row_ranks(r) / MAX(r->c->parallel.size[AXIS_SEQUENCE], 1), (int64_t)1);
    const char *of_ranks = foreign_format(r, "%lld rank%s", (long long)ranks, ranks == 1 ? "" : "s");
    const struct {
        const foreign_item *item;
        int64_t value;
    } all[] = {{train_item, train}, {micro_item, micro}, {steps_item, steps}};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) /* the upper end is for the settings to say */
        if (all[i].item && !all[i].item->is_auto && (all[i].value < 1 || all[i].value > INT32_MAX))
            return foreign_expected(r, all[i].item, "a whole number from 1");
    bool ours_micro = !micro && config_was_given(r->c, "train.micro_batch"),
         ours_steps = !steps && r->c->train.accumulation;
    int64_t product = multiply_saturating(multiply_saturating(micro, steps), ranks);
    if (train && micro && steps && product != train)
        return ERR(
            ERR_INPUT,
            "%s: train_batch_size is %lld, but train_micro_batch_size_per_gpu %lld x gradient_accumulation_steps "
            "%lld x %s = %lld; change one of the three",
            foreign_where(r, train_item), (long long)train, (long long)micro, (long long)steps, of_ranks,
            (long long)product);
    if (config_was_given(r->c, "train.micro_batch") && r->c->train.micro_batch < 0)
        return translate_open_batch(r, (const foreign_item *const[]){train_item, micro_item, steps_item},
                                    train ? train : product);
    if (train && !(micro && steps)) TRY(cut_batch(r, train_item, ranks, of_ranks, &micro, &steps));
    else if (micro && !steps) steps = ours_steps ? r->c->train.accumulation : 1;
    else if (steps && !micro) {
        if (!ours_micro && !micro_item && !train_item)
            return ERR(ERR_INPUT,
                       "%s: gradient_accumulation_steps alone does not say how large a batch is; add "
                       "train_micro_batch_size_per_gpu or train_batch_size, or set train.micro_batch",
                       foreign_where(r, steps_item));
        if (!ours_micro) { /* "auto": ralo's own number of rows, as often as the file says */
            foreign_report_set(r, micro_item ? micro_item : train_item, "train.micro_batch", "auto");
            return deepspeed_offer_whole(r, steps_item, "train.accumulation", steps, NULL);
        }
        micro = r->c->train.micro_batch;
    }
    if (!micro && !steps) { /* nothing stated: all that is there is "auto" */
        if (train_item) foreign_report_set(r, train_item, "train.micro_batch", "auto: times train.accumulation");
        if (micro_item) foreign_report_set(r, micro_item, "train.micro_batch", "auto");
        if (steps_item) foreign_report_set(r, steps_item, "train.accumulation", "auto");
        return OK;
    }
    const char *sum = foreign_format(r, "%lld = %lld x %lld x %s",
                                     (long long)multiply_saturating(multiply_saturating(micro, steps), ranks),
                                     (long long)micro, (long long)steps, of_ranks);
    TRY(deepspeed_offer_whole(r, micro_item ? micro_item : train_item, "train.micro_batch", micro, sum));
    TRY(deepspeed_offer_whole(r, steps_item ? steps_item : train_item, "train.accumulation", steps, sum));
    if (train_item && micro_item && steps_item) foreign_report_set(r, train_item, "train.accumulation", sum);
    return OK;
}

/* ---- optimizer and scheduler ------------------------------------------------------------------------------------- */

typedef enum scheduler_kind { SCHEDULER_NONE, SCHEDULER_WARMUP, SCHEDULER_DECAY, SCHEDULER_COSINE } scheduler_kind;

static status optimizer_check(foreign_reader *r) {
    const foreign_item *type = foreign_find(r, "optimizer.type"),
                       *mode = foreign_find(r, "optimizer.params.adam_w_mode"),
                       *decay = foreign_find(r, "optimizer.params.weight_decay"),
                       *correction = foreign_find(r, "optimizer.params.bias_correction");
    if (type && !type->is_auto && strcasecmp(type->text, "adamw") != 0 && strcasecmp(type->text, "adam") != 0)
        return ERR(ERR_INPUT, "%s: optimizer.type: found '%.100s', expected AdamW or Adam", foreign_where(r, type),
                   type->text);
    if (type) foreign_report_no_effect(r, type, "AdamW is what ralo has");
    if (mode && !mode->is_auto && !item_is_true(mode) && decay && !decay->is_auto && item_real(decay) > 0)
        return ERR(
            ERR_INPUT,
            "%s: optimizer.params.adam_w_mode: found false with weight_decay %s, which would be L2 regularisation; "
            "ralo's decay is decoupled: use true, or weight_decay 0",
            foreign_where(r, mode), decay->text);
    if (mode) foreign_report_no_effect(r, mode, "decay is decoupled");
    if (correction && !correction->is_auto && !item_is_true(correction))
        return ERR(ERR_INPUT, "%s: optimizer.params.bias_correction: found false, expected true: ralo always corrects",
                   foreign_where(r, correction));
    if (correction) foreign_report_no_effect(r, correction, "always on");
    return OK;
}

/* Defaults of DeepSpeed's Adam. */
static status optimizer_defaults(foreign_reader *r) {
    static const char *const defaults[][3] = {{"optimizer.params.betas", "train.betas", "[0.9, 0.999]"},
                                              {"optimizer.params.eps", "train.eps", "1e-8"},
                                              {"optimizer.params.weight_decay", "train.weight_decay", "0"}};
    if (!foreign_find(r, "optimizer.type")) return OK;
    for (size_t i = 0; i < ARRAY_LENGTH(defaults); i++)
        if (!foreign_find(r, defaults[i][0]))
            TRY(foreign_offer(r, NULL, defaults[i][1], defaults[i][2], "its Adam's default"));
    return OK;
}

static status scheduler_kind_of(foreign_reader *r, const foreign_item *type, scheduler_kind *out) {
    static const char *const names[] = {"", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
    *out = SCHEDULER_NONE;
    for (scheduler_kind k = SCHEDULER_WARMUP; k <= SCHEDULER_COSINE; k++)
        if (type && strcmp(type->text, names[k]) == 0) *out = k;
    if (type && !*out)
        return ERR(ERR_INPUT, "%s: scheduler.type: found '%.100s', expected WarmupLR, WarmupDecayLR or WarmupCosineLR",
                   foreign_where(r, type), type->text);
    return OK;
}

static status param_foreign_to(foreign_reader *r, const foreign_item *i, const foreign_item *type) {
    if (!i) return OK;
    if (i->is_auto || !type)
        foreign_report_no_effect(r, i, type ? "this scheduler does not have it" : "there is no scheduler.type");
    else return ERR(ERR_INPUT, "%s: %s: %s does not have it; remove it", foreign_where(r, i), i->key, type->text);
    return OK;
}

/* The learning rate after warmup: the scheduler's own, if it has one, replaces the optimizer's. */
static status translate_peak_lr(foreign_reader *r, scheduler_kind kind) {
    const foreign_item *lr = foreign_find(r, "optimizer.params.lr"),
                       *peak = foreign_find(r, "scheduler.params.warmup_max_lr");
    bool has_peak = kind == SCHEDULER_WARMUP || kind == SCHEDULER_DECAY;
    if (has_peak) TRY(foreign_offer_text(r, peak, "train.lr", NULL));
    if (kind == SCHEDULER_DECAY && !peak)
        TRY(foreign_offer(r, NULL, "train.lr", "0.001", "WarmupDecayLR's warmup_max_lr"));
    bool overridden = has_peak && (peak ? !peak->is_auto : kind == SCHEDULER_DECAY);
    if (lr && !lr->is_auto && overridden)
        foreign_report_no_effect(r, lr, "the scheduler's warmup_max_lr is the rate that counts");
    else if (lr) return foreign_offer_text(r, lr, "train.lr", NULL);
    else if (!overridden && foreign_find(r, "optimizer.type") && !(peak && peak->is_auto))
        return foreign_offer(r, NULL, "train.lr", "0.001", "its Adam's default");
    return OK;
}

static status translate_schedule_end(foreign_reader *r, const foreign_item *type, scheduler_kind kind) {
    const foreign_item *end = foreign_find(r, "scheduler.params.total_num_steps");
    if (kind != SCHEDULER_DECAY && kind != SCHEDULER_COSINE) return param_foreign_to(r, end, type);
    if (!end)
        return ERR(ERR_INPUT, "%s: scheduler.type: %s needs scheduler.params.total_num_steps, a number or \"auto\"",
                   foreign_where(r, type), type->text);
    if (end->is_auto || !config_was_given(r->c, "train.steps") || r->c->train.steps == item_whole(end))
        return foreign_offer_text(r, end, "train.steps", NULL);
    return foreign_offer(r, end, "train.schedule_steps", end->text, "train.steps is set elsewhere");
}

static status translate_min_lr(foreign_reader *r, const foreign_item *type, scheduler_kind kind) {
    const foreign_item *low = foreign_find(r, "scheduler.params.warmup_min_lr"),
                       *low_ratio = foreign_find(r, "scheduler.params.warmup_min_ratio"),
                       *end_ratio = foreign_find(r, "scheduler.params.cos_min_ratio");
    double peak = r->c->train.lr;
    if (kind == SCHEDULER_COSINE) {
        TRY(param_foreign_to(r, low, type));
        double lowest = low_ratio && !low_ratio->is_auto ? item_real(low_ratio) * peak : 0;
        if (low_ratio)
            TRY(foreign_offer_unless_auto(r, low_ratio, "train.warmup_min_lr", foreign_format(r, "%.17g", lowest),
                                          "times train.lr"));
        if (end_ratio) return foreign_offer_text(r, end_ratio, "train.min_lr_ratio", NULL);
        return foreign_offer(r, NULL, "train.min_lr_ratio", "0.0001", "WarmupCosineLR's cos_min_ratio");
    }
    TRY(param_foreign_to(r, low_ratio, type));
    TRY(param_foreign_to(r, end_ratio, type));
    if (!type) return param_foreign_to(r, low, type);
    TRY(foreign_offer_text(r, low, "train.warmup_min_lr", NULL));
    if (kind == SCHEDULER_DECAY)
        return foreign_offer(r, NULL, "train.min_lr_ratio",
                             foreign_format(r, "%.17g", fmin(1, r->c->train.warmup_min_lr / peak)),
                             "WarmupDecayLR falls to warmup_min_lr");
    return OK;
}

static status translate_scheduler(foreign_reader *r) {
    static const char *const schedules[] = {"", "constant", "linear", "cosine"};
    const foreign_item *type = foreign_find(r, "scheduler.type"),
                       *warmup = foreign_find(r, "scheduler.params.warmup_num_steps"),
                       *rise = foreign_find(r, "scheduler.params.warmup_type"),
                       *peak = foreign_find(r, "scheduler.params.warmup_max_lr");
    scheduler_kind kind;
    TRY(scheduler_kind_of(r, type, &kind));
    if (type) { /* transformers leaves the schedule to DeepSpeed where its file has one */
        foreign_take_over(r, "train.schedule");
        foreign_take_over(r, "train.min_lr_ratio");
    }
    TRY(translate_peak_lr(r, kind));
    if (kind == SCHEDULER_NONE || kind == SCHEDULER_COSINE) TRY(param_foreign_to(r, peak, type));
    TRY(translate_schedule_end(r, type, kind));
    TRY(translate_min_lr(r, type, kind));
    if (!type) {
        TRY(param_foreign_to(r, warmup, type));
        return param_foreign_to(r, rise, type);
    }
    TRY(foreign_offer(r, type, "train.schedule", schedules[kind], NULL));
    TRY(foreign_offer(r, NULL, "train.schedule_style", "deepspeed", "its scheduler moves after the optimizer"));
    TRY(foreign_offer_text(r, warmup, "train.warmup", "1000"));
    return foreign_offer_text(r, rise, "train.warmup_kind", "log");
}

static status translate(foreign_reader *r) {
    static const foreign_part parts[] = {translate_precision, translate_batch,    optimizer_check,
                                         translate_scheduler, optimizer_defaults, deepspeed_translate_memory};
    return foreign_translate_parts(r, parts, ARRAY_LENGTH(parts));
}

const foreign_dialect foreign_deepspeed = {.name = "DeepSpeed",
                                           .rows = rows,
                                           .n_rows = ARRAY_LENGTH(rows),
                                           .is_json = true,
                                           .has_auto = true,
                                           .translate = translate};
