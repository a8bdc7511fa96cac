/* foreign_ralo.c - RALO's YAML (model_path, trainer.params ...) as settings of ralo.
 *
 * RALO is an asynchronous trainer: samplers make rollouts, trainers upload gradients, an orchestrator holds AdamW. Keys
 * for the training step and its memory are translated with their old meaning; rollouts, queues and timeouts have no
 * counterpart here and are reported as such.
 * One optimizer step of RALO waits for update_steps uploads of accum_steps micro-batches each, so on one rank
 * accumulation is their product. grad_offload sends gradients to the host, where RALO's AdamW has its states.
 * gradient_checkpointing_ratio r recomputes the last int(r x layers) layers; selective_checkpointing keeps the
 * results of attention and recomputes the MLP, unless the ratio names fewer layers than all. */
#include "settings/foreign_dialect.h"

#include <ctype.h>
#include <string.h>
#include <sys/stat.h>

#define ROLLOUTS "it belongs to rollouts, which ralo does not make from this file"
#define SERVICE "it belongs to RALO's orchestrator; ranks here speak to each other"
#define PARAMS "trainer.params."

/* clang-format off */
static const foreign_row rows[] = {
    {"model_path",                          FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {"update_steps",                        FOREIGN_OWN, FT_INT, NULL, NULL},
    {"lr",                                  FOREIGN_OWN, FT_REAL, NULL, NULL},
    {"{epochs total_steps}",                FOREIGN_IDLE, FT_INT, NULL, "train.steps sets the length of a run"},
    {"orchestrator_port",                   FOREIGN_IDLE, FT_INT, NULL, SERVICE},
    {"trainer.algorithm",                   FOREIGN_OWN, FT_TEXT, NULL, NULL},
    {PARAMS "train_batch_size",             FOREIGN_SET, FT_INT, "train.micro_batch", NULL},
    {PARAMS "accum_steps",                  FOREIGN_OWN, FT_INT, NULL, NULL},
    {PARAMS "lr",                           FOREIGN_OWN, FT_REAL, NULL, NULL},
    {PARAMS "grad_offload",                 FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {PARAMS "gradient_checkpointing_ratio", FOREIGN_OWN, FT_REAL, NULL, NULL},
    {PARAMS "selective_checkpointing",      FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {PARAMS "auto_memory_strategy",         FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {PARAMS "zero2_gradient_sharding",      FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {PARAMS "sequence_parallelism",         FOREIGN_OWN, FT_BOOL, NULL, NULL},
    {PARAMS "epochs",                       FOREIGN_IDLE, FT_INT, NULL, "train.steps sets the length of a run"},
    {PARAMS "{rollout_num clip_param}",     FOREIGN_IDLE, FT_REAL, NULL, ROLLOUTS},
    {PARAMS "{treepo_kwargs dapo_kwargs}",  FOREIGN_WHOLE, FT_ANY, NULL, ROLLOUTS},
    {PARAMS "{max_batch_retry pending_retry_timeout max_get_batch_retries get_batch_retry_backoff_factor "
     "get_batch_retry_max_wait version_poll_interval compute_report_interval compute_report_token_threshold}",
                                            FOREIGN_IDLE, FT_REAL, NULL, SERVICE},
    {"sampler.algorithm",                   FOREIGN_IDLE, FT_TEXT, NULL, ROLLOUTS},
    {"sampler.params",                      FOREIGN_WHOLE, FT_ANY, NULL, ROLLOUTS},
    {"dataset",                             FOREIGN_WHOLE, FT_ANY, NULL, "data.source says what is trained on"},
    {"functions",                           FOREIGN_WHOLE, FT_ANY, NULL, ROLLOUTS},
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

/* A directory is a model. A name of the Hugging Face hub must be downloaded first. If it is a preset its shapes are
 * known, so `plan` works, but training from other weights would be a different run. */
static status translate_model(foreign_reader *r) {
    const foreign_item *path = foreign_find(r, "model_path");
    struct stat st;
    if (!path) return OK;
    if (config_was_given(r->c, "model.preset") || config_was_given(r->c, "model.path")) {
        bool preset = config_was_given(r->c, "model.preset");
        foreign_report_set(
            r, path, preset ? "model.preset" : "model.path",
            foreign_format(r, "conflict: %s says so", config_given_by(r->c, preset ? "model.preset" : "model.path")));
        return OK;
    }
    if (stat(path->text, &st) == 0) return foreign_offer(r, path, "model.path", path->text, NULL);
    char name[64];
    const char *slash = strrchr(path->text, '/');
    snprintf(name, sizeof name, "%.60s", slash ? slash + 1 : path->text);
    for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
    if (!model_preset_find(name))
        return ERR(
            ERR_INPUT,
            "%s: model_path: there is no directory '%.200s', and no preset '%s' either; download the model and set "
            "model.path, or choose a preset ('ralo help presets')",
            foreign_where(r, path), path->text, name);
    r->f->refusal =
        foreign_format(r,
                       "%s: model_path: there is no directory '%.200s'. Download it and set model.path to its "
                       "directory, or say --preset %s to train that shape from random weights",
                       foreign_where(r, path), path->text, name);
    return foreign_offer(r, path, "model.preset", name, "the shape only: there is no such directory");
}

static status translate_step(foreign_reader *r) {
    const foreign_item *accum = foreign_find(r, PARAMS "accum_steps"), *uploads = foreign_find(r, "update_steps"),
                       *lr = foreign_find(r, "lr"), *trainer_lr = foreign_find(r, PARAMS "lr");
    int64_t a = accum ? item_whole(accum) : 1, u = uploads ? item_whole(uploads) : 1, product;
    if (a < 1 || u < 1)
        return ERR(ERR_INPUT, "%s: %s: found %s, expected a whole number from 1",
                   foreign_where(r, a < 1 ? accum : uploads), a < 1 ? accum->key : uploads->key,
                   a < 1 ? accum->text : uploads->text);
    if (__builtin_mul_overflow(a, u, &product)) product = INT64_MAX;
    const char *note = foreign_format(r, "%lld micro-batches x %lld uploads", (long long)a, (long long)u);
    if (accum || uploads)
        TRY(foreign_offer(r, accum ? accum : uploads, "train.accumulation",
                          foreign_format(r, "%lld", (long long)product), note));
    if (accum && uploads) foreign_report_set(r, uploads, "train.accumulation", note);
    if (lr) TRY(foreign_offer(r, lr, "train.lr", lr->text, NULL));
    if (lr && trainer_lr) foreign_report_no_effect(r, trainer_lr, "lr at the top is the one of the optimizer");
    else if (trainer_lr) TRY(foreign_offer(r, trainer_lr, "train.lr", trainer_lr->text, NULL));
    return OK;
}

static status translate_memory(foreign_reader *r) {
    const foreign_item *ratio = foreign_find(r, PARAMS "gradient_checkpointing_ratio"),
                       *selective = foreign_find(r, PARAMS "selective_checkpointing"),
                       *offload = foreign_find(r, PARAMS "grad_offload"),
                       *strategy = foreign_find(r, PARAMS "auto_memory_strategy");
    bool manual = strategy && !item_is_true(strategy);
    if (strategy) TRY(foreign_offer(r, strategy, "memory.strategy", manual ? "manual" : "auto", NULL));
    if (offload) {
        const char *tier = item_is_true(offload) ? "host" : "none";
        TRY(foreign_offer(r, offload, "memory.offload.grads", tier, NULL));
        if (item_is_true(offload))
            TRY(foreign_offer(r, offload, "memory.offload.states", tier, "AdamW runs where the gradients go"));
    }
    if (ratio && (item_real(ratio) < 0 || item_real(ratio) > 1))
        return ERR(ERR_INPUT, "%s: %s: found %s, expected a number in [0, 1]", foreign_where(r, ratio), ratio->key,
                   ratio->text);
    double share = ratio ? item_real(ratio) : 1;
    bool keeps_attention = item_is_true(selective) && share == 1;
    const char *policy = keeps_attention ? "selective"
                         : share == 1    ? "full"
                         : share == 0    ? "none"
                                         : foreign_format(r, "ratio:%s", ratio->text);
    if (ratio)
        TRY(foreign_offer(r, ratio, "memory.recompute", policy, keeps_attention ? "selective_checkpointing" : NULL));
    else if (keeps_attention) TRY(foreign_offer(r, selective, "memory.recompute", policy, NULL));
    else if (manual) TRY(foreign_offer(r, NULL, "memory.recompute", policy, "its gradient_checkpointing_ratio is 1"));
    if (selective && keeps_attention && ratio) foreign_report_set(r, selective, "memory.recompute", NULL);
    else if (selective && !keeps_attention)
        foreign_report_no_effect(r, selective,
                                 item_is_true(selective) ? "gradient_checkpointing_ratio names the layers" : "off");
    return OK;
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

/* Sharded gradients are ZeRO stage 2. Sequences are split over all ranks, as RALO does; what its strategy chooses by
 * itself stays auto if the file does not set it. */
static status translate_ranks(foreign_reader *r) {
    const foreign_item *sharding = foreign_find(r, PARAMS "zero2_gradient_sharding"),
                       *sequence = foreign_find(r, PARAMS "sequence_parallelism");
    int64_t ranks = foreign_row_ranks(r);
    const char *alone = ranks > 1 ? NULL : "on one rank it is the same";
    if (sharding)
        TRY(foreign_offer(r, sharding, "parallel.zero", item_is_true(sharding) ? "2" : "0",
                          alone                    ? alone
                          : item_is_true(sharding) ? NULL
                                                   : "gradients are whole on every rank"));
    if (sequence)
        return foreign_offer(r, sequence, "parallel.sequence",
                             item_is_true(sequence) ? foreign_format(r, "%lld", (long long)ranks) : "1",
                             alone                    ? alone
                             : item_is_true(sequence) ? "all ranks share each row"
                                                      : NULL);
    return OK;
}

static status translate(foreign_reader *r) {
    const foreign_item *algorithm = foreign_find(r, "trainer.algorithm");
    TRY(translate_model(r));
    TRY(translate_step(r));
    TRY(translate_memory(r));
    TRY(translate_ranks(r));
    if (algorithm) {
        foreign_report_no_effect(r, algorithm, "train.task says what is trained");
        log_warn("%s: trainer.algorithm %.60s trains on rollouts; this run does %s on %s", foreign_where(r, algorithm),
                 algorithm->text, foreign_value(r, "train.task"), foreign_value(r, "data.source"));
    }
    return translate_implied(r);
}

const foreign_dialect foreign_ralo = {
    .name = "RALO", .rows = rows, .n_rows = ARRAY_LENGTH(rows), .has_auto = false, .translate = translate};
