/* ralo.c - RALO's YAML (model_path, trainer.params ...) as settings of ralo.
 *
 * RALO is an asynchronous trainer: samplers make rollouts, trainers upload gradients, an orchestrator holds AdamW. Keys
 * for the training step and its memory are translated with their old meaning; queues and timeouts have no counterpart
 * here and are reported as such. Rollouts have one (train.task=rloo), but RALO spreads them over samplers, algorithms
 * and functions of Python, so their keys are reported with the settings that stand for them, and not translated. A file
 * that asks for rollouts is refused until the command line says what to train: without it the run would be supervised.
 * One optimizer step of RALO waits for update_steps uploads of accum_steps micro-batches each, so on one rank
 * accumulation is their product. grad_offload sends gradients to the host, where RALO's AdamW has its states.
 * gradient_checkpointing_ratio r recomputes int(r x layers) layers; selective_checkpointing, on if the file does not
 * say otherwise, keeps the results of attention in those layers and recomputes norms and MLP. */
#include "migrate/trainer.h"

#include <string.h>

#define ROLLOUTS "RALO's rollouts are not translated: "
#define SAMPLING ROLLOUTS "set rl.loss, rl.k, rl.prompts, rl.max_completion and rl.temperature"
#define SERVICE "it belongs to RALO's orchestrator; ranks here speak to each other"
#define PARAMS "trainer.params."

/* clang-format off */
static const foreign_row rows[] = {
    {"model_path", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"update_steps", FOREIGN_OWN, FT_INT, NULL, NULL},
    {"lr", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"{epochs total_steps}",                FOREIGN_IDLE, FT_INT, NULL, "train.steps sets the length of a run"},
    {"orchestrator_port",                   FOREIGN_IDLE, FT_INT, NULL, SERVICE},
    {"trainer.algorithm", FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {PARAMS "train_batch_size",             FOREIGN_SET, FT_INT, "train.micro_batch", NULL},
    {PARAMS "accum_steps", FOREIGN_OWN, FT_INT, NULL, NULL},
    {PARAMS "{lr gradient_checkpointing_ratio}", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {PARAMS "{grad_offload selective_checkpointing auto_memory_strategy zero2_gradient_sharding sequence_parallelism}", FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {PARAMS "epochs",                       FOREIGN_IDLE, FT_INT, NULL, "train.steps sets the length of a run"},
    {PARAMS "rollout_num",                  FOREIGN_IDLE, FT_REAL, NULL, ROLLOUTS "set rl.k"},
    {PARAMS "clip_param",                   FOREIGN_IDLE, FT_REAL, NULL, ROLLOUTS "set rl.epsilon"},
    {PARAMS "{treepo_kwargs dapo_kwargs}",  FOREIGN_WHOLE, FT_ANY, NULL, ROLLOUTS "set rl.max_completion and rl.epsilon_high"},
    {PARAMS "{max_batch_retry pending_retry_timeout max_get_batch_retries get_batch_retry_backoff_factor "
     "get_batch_retry_max_wait version_poll_interval compute_report_interval compute_report_token_threshold}",
                                            FOREIGN_IDLE, FT_REAL, NULL, SERVICE},
    {"sampler.algorithm",                   FOREIGN_IDLE, FT_TEXT, NULL, SAMPLING},
    {"sampler.params",                      FOREIGN_WHOLE, FT_ANY, NULL, SAMPLING},
    {"dataset",                             FOREIGN_WHOLE, FT_ANY, NULL, "data.source says what is trained on"},
    {"functions",                           FOREIGN_WHOLE, FT_ANY, NULL, ROLLOUTS "set reward.list, with reward.program for Python"},
    {"evaluation",                          FOREIGN_WHOLE, FT_ANY, NULL, "train.eval_every, train.eval_rows and train.problems evaluate"},
    {"wandb.{enabled project run_name entity tags}", FOREIGN_IDLE, FT_ANY, NULL, "metrics.jsonl of the run has every number"},
    {"wandb.extras",                        FOREIGN_WHOLE, FT_ANY, NULL, "metrics.jsonl of the run has every number"},
    {"orchestrator.{batch_timeout queue_size timeout_check_interval keep_last_versions problem_timeout chunk_size_mb "
     "download_chunk_size_mb status_report_interval lock_ttl server_threads chunk_timeout max_concurrent_uploads "
     "chunk_cleanup_interval gradient_chunks_dir gradient_storage_dir max_gradient_disk_mb max_gradient_file_size_mb log_dir "
     "get_batch_timeout send_gradients_timeout download_weights_timeout upload_samples_timeout fetch_problem_timeout "
     "register_timeout stats_timeout heartbeat_timeout version_check_timeout next_step_timeout lock_timeout}",
                                            FOREIGN_IDLE, FT_ANY, NULL, SERVICE},
    {"orchestrator.log_control",            FOREIGN_WHOLE, FT_ANY, NULL, SERVICE},
};
/* clang-format on */

static status translate_step(foreign_reader *r) {
    const foreign_item *accum = foreign_find(r, PARAMS "accum_steps"), *uploads = foreign_find(r, "update_steps"),
                       *lr = foreign_find(r, "lr"), *trainer_lr = foreign_find(r, PARAMS "lr");
    int64_t a = accum ? item_whole(accum) : 1, u = uploads ? item_whole(uploads) : 1, product;
    if (a < 1 || u < 1) return foreign_expected(r, a < 1 ? accum : uploads, "a whole number from 1");
    if (__builtin_mul_overflow(a, u, &product)) product = INT64_MAX;
    const char *note = foreign_format(r, "%lld micro-batches x %lld uploads", (long long)a, (long long)u);
    if (accum || uploads)
        TRY(foreign_offer(r, accum ? accum : uploads, "train.accumulation",
                          foreign_format(r, "%lld", (long long)product), note));
    if (accum && uploads) foreign_report_set(r, uploads, "train.accumulation", note);
    if (!lr) return foreign_offer_text(r, trainer_lr, "train.lr", NULL);
    foreign_report_no_effect(r, trainer_lr, "lr at the top is the one of the optimizer");
    return foreign_offer_text(r, lr, "train.lr", NULL);
}

/* Both keys together. Selective recompute of some layers is a mix, whose first layers recompute and not the last: as
 * many layers, the same bits, and a lower peak. */
static status recompute_of(foreign_reader *r, double share, bool keeps_attention, const char **policy,
                           const char **note) {
    *note = NULL;
    if (share == 0 || share == 1) {
        *policy = share == 0 ? "none" : keeps_attention ? "selective" : "full";
        return OK;
    }
    if (!keeps_attention) {
        *policy = foreign_format(r, "ratio:%.17g", share);
        return OK;
    }
    model_config m;
    if (model_from_config(r->c, &m) !=
        OK) { /* not here yet: `train` says so, and how many layers it has is not known */
        error_clear();
        *policy = foreign_format(r, "ratio:%.17g", share);
        return OK;
    }
    int64_t n = (int64_t)(share * (double)m.n_layers);
    *policy = foreign_format(r, "mix:selective,%lld,none", (long long)n);
    *note = foreign_format(r, "selective_checkpointing in %lld of %lld layers", (long long)n, (long long)m.n_layers);
    return OK;
}

static status translate_recompute(foreign_reader *r, bool manual) {
    const foreign_item *ratio = foreign_find(r, PARAMS "gradient_checkpointing_ratio"),
                       *selective = foreign_find(r, PARAMS "selective_checkpointing");
    const char *policy = NULL, *note = NULL;
    if (ratio && (item_real(ratio) < 0 || item_real(ratio) > 1))
        return foreign_expected(r, ratio, "a number in [0, 1]");
    double share = ratio ? item_real(ratio) : 1;
    bool keeps_attention = !selective || item_is_true(selective);
    TRY(recompute_of(r, share, keeps_attention, &policy, &note));
    if (!note && !selective && share == 1) note = "its selective_checkpointing is true";
    if (ratio) TRY(foreign_offer(r, ratio, "memory.recompute", policy, note));
    else if (manual && !selective) TRY(foreign_offer(r, NULL, "memory.recompute", policy, note));
    else if (selective && (manual || keeps_attention))
        TRY(foreign_offer(r, selective, "memory.recompute", policy, "its gradient_checkpointing_ratio is 1"));
    if (selective && ratio && share > 0) foreign_report_set(r, selective, "memory.recompute", NULL);
    else if (selective && ratio) foreign_report_no_effect(r, selective, "gradient_checkpointing_ratio is 0");
    else if (selective && !manual && !keeps_attention)
        foreign_report_no_effect(r, selective, "off, and the strategy chooses (memory.recompute)");
    return OK;
}

static status translate_memory(foreign_reader *r) {
    const foreign_item *offload = foreign_find(r, PARAMS "grad_offload"),
                       *strategy = foreign_find(r, PARAMS "auto_memory_strategy");
    bool manual = strategy && !item_is_true(strategy);
    if (strategy) TRY(foreign_offer(r, strategy, "memory.strategy", manual ? "manual" : "auto", NULL));
    if (offload) {
        const char *tier = item_is_true(offload) ? "host" : "none";
        TRY(foreign_offer(r, offload, "memory.offload.grads", tier, NULL));
        if (item_is_true(offload))
            TRY(foreign_offer(r, offload, "memory.offload.states", tier, "AdamW runs where the gradients go"));
    }
    return translate_recompute(r, manual);
}

/* RALO's behaviour that has no key. */
static status translate_implied(foreign_reader *r) {
    static const char *const implied[][3] = {{"precision", "bf16", "it computes in bf16"},
                                             {"train.betas", "[0.9, 0.999]", "its AdamW"},
                                             {"train.weight_decay", "0", "its AdamW"},
                                             {"train.clip", "1", "its gradients are clipped at 1"},
                                             {"train.schedule", "constant", "its rate does not change"},
                                             {"train.warmup", "0", "its rate does not change"}};
    for (size_t i = 0; i < ARRAY_LENGTH(implied); i++)
        TRY(foreign_offer(r, NULL, implied[i][0], implied[i][1], implied[i][2]));
    return OK;
}

/* Sharded gradients are ZeRO stage 2, on if the file does not say otherwise. Sequences are split over all ranks, as
 * RALO does. A file with auto_memory_strategy: true and sequence_parallelism: false, as RALO writes it, leaves the
 * choice to the strategy. */
static status translate_ranks(foreign_reader *r) {
    const foreign_item *sharding = foreign_find(r, PARAMS "zero2_gradient_sharding"),
                       *sequence = foreign_find(r, PARAMS "sequence_parallelism"),
                       *strategy = foreign_find(r, PARAMS "auto_memory_strategy");
    int64_t ranks = foreign_row_ranks(r);
    const char *alone = ranks > 1 ? NULL : "on one rank it is the same";
    if (sharding)
        TRY(foreign_offer(r, sharding, "parallel.zero", item_is_true(sharding) ? "2" : "0",
                          alone                    ? alone
                          : item_is_true(sharding) ? NULL
                                                   : "gradients are whole on every rank"));
    else if (strategy && !item_is_true(strategy) && ranks > 1)
        TRY(foreign_offer(r, NULL, "parallel.zero", "2", "its zero2_gradient_sharding is true"));
    if (sequence && !item_is_true(sequence) && item_is_true(strategy)) {
        foreign_report_set(r, sequence, "parallel.sequence", "auto_memory_strategy chooses");
        return OK;
    }
    if (sequence)
        return foreign_offer(r, sequence, "parallel.sequence",
                             item_is_true(sequence) ? foreign_format(r, "%lld", (long long)ranks) : "1",
                             alone                    ? alone
                             : item_is_true(sequence) ? "all ranks share each row"
                                                      : NULL);
    return OK;
}

/* The first key that only a file with rollouts has; NULL: the file is about the step and its memory alone. */
static const foreign_item *find_rollouts(const foreign_reader *r) {
    static const char *const keys[] = {"trainer.algorithm",    "sampler.algorithm", "sampler.params",
                                       PARAMS "rollout_num",   PARAMS "clip_param", "functions",
                                       PARAMS "treepo_kwargs", PARAMS "dapo_kwargs"};
    const foreign_item *found = NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(keys) && !found; i++) found = foreign_find(r, keys[i]);
    return found;
}

/* RALO trains on rollouts, ralo on records unless train.task differs. Only the algorithm dapo exists in both. */
static status translate_task(foreign_reader *r) {
    const foreign_item *algorithm = foreign_find(r, "trainer.algorithm"), *rollouts = find_rollouts(r);
    bool has_task = config_was_given(r->c, "train.task"),
         has_rollouts = has_task && strcmp(foreign_value(r, "train.task"), "rloo") == 0;
    if (!rollouts) {
        if (!has_task)
            foreign_report_set(r, NULL, "train.task", "the file names no algorithm; rloo trains on rollouts");
        return OK;
    }
    if (!has_task)
        foreign_refuse(r, rollouts,
                       "RALO trains on rollouts, whose keys are not translated. --set train.task=rloo trains on "
                       "rollouts here, with rl.loss, rl.k, rl.max_completion, data.source and reward.list as settings; "
                       "--set train.task=sft trains on records with this file's memory keys");
    if (!algorithm || !has_task) return OK;
    if (has_rollouts && strcmp(algorithm->text, "dapo") == 0)
        return foreign_offer(r, algorithm, "rl.loss", "dapo", NULL);
    if (has_rollouts && !config_was_given(r->c, "rl.loss"))
        foreign_refuse(r, algorithm, "of RALO's algorithms ralo has dapo; give --set rl.loss=dapo, grpo or rloo");
    foreign_report_no_effect(r, algorithm, has_rollouts ? "rl.loss says it" : "train.task says what is trained");
    return OK;
}

static status translate(foreign_reader *r) {
    TRY(trainer_model(r, foreign_find(r, "model_path")));
    TRY(translate_step(r));
    TRY(translate_memory(r));
    TRY(translate_ranks(r));
    TRY(translate_task(r));
    return translate_implied(r);
}

const foreign_dialect foreign_ralo = {
    .name = "RALO", .rows = rows, .n_rows = ARRAY_LENGTH(rows), .has_auto = false, .translate = translate};
