/* transformers.c - the rows of transformers.inc that are read together, and the defaults of TrainingArguments.
 *
 * Defaults matter as much as keys: a schedule of transformers ends at 0 and has no warmup, its AdamW has a beta2 of
 * 0.999 and no weight decay, and nothing is held out of the data. A run that keeps ralo's defaults there would be
 * another run. */
#include "migrate/transformers.h"

#include <string.h>

static status translate_batch(foreign_reader *r, const transformers_defaults *d) {
    const foreign_item *rows = foreign_find(r, "per_device_train_batch_size"),
                       *accumulation = foreign_find(r, "gradient_accumulation_steps");
    if (d->counts_completions) return OK;
    TRY(foreign_offer_text(r, rows, "train.micro_batch", d->micro_batch));
    return foreign_offer_text(r, accumulation, "train.accumulation", NULL);
}

static status translate_schedule(foreign_reader *r) {
    const foreign_item *kind = foreign_find(r, "lr_scheduler_type"),
                       *lowest = foreign_find(r, "lr_scheduler_kwargs.min_lr");
    if (!kind) TRY(foreign_offer(r, NULL, "train.schedule", "linear", "its default"));
    if (lowest) {
        double ratio = item_real(lowest) / r->c->train.lr;
        TRY(foreign_offer(r, lowest, "train.min_lr_ratio", foreign_format(r, "%.17g", ratio), "of the learning rate"));
    } else if (!config_was_given(r->c, "train.min_lr_ratio")) {
        TRY(foreign_offer(r, NULL, "train.min_lr_ratio", "0", "its schedules end at 0"));
    }
    bool has_none = kind && strcmp(kind->text, "constant") == 0;
    return trainer_warmup(r, foreign_find(r, "warmup_steps"), foreign_find(r, "warmup_ratio"), has_none ? NULL : "0");
}

static status translate_best(foreign_reader *r) {
    const foreign_item *best = foreign_find(r, "load_best_model_at_end"),
                       *metric = foreign_find(r, "metric_for_best_model");
    const char *name = metric ? metric->text : "loss";
    if (str_starts_with(name, "eval_")) name += strlen("eval_");
    if (item_is_true(best)) {
        TRY(foreign_offer(r, best, "train.save_best", name, "its checkpoint stays in RUN/best"));
        if (metric) foreign_report_set(r, metric, "train.save_best", NULL);
        return OK;
    }
    foreign_report_no_effect(r, best, "off");
    foreign_report_no_effect(r, metric, "load_best_model_at_end is off");
    return OK;
}

static status translate_rhythm(foreign_reader *r) {
    const foreign_item *when = foreign_find_either(r, "eval_strategy", "evaluation_strategy");
    trainer_rhythm save = {foreign_find(r, "save_strategy"),
                           foreign_find(r, "save_steps"),
                           "train.save_every",
                           "train.saves_per_epoch",
                           "steps",
                           "500"};
    TRY(trainer_every(r, &(trainer_rhythm){when, foreign_find(r, "eval_steps"), "train.eval_every",
                                           "train.evals_per_epoch", "no", foreign_value(r, "train.log_every")}));
    if (save.strategy || save.steps) return trainer_every(r, &save);
    return foreign_offer(r, NULL, "train.save_every", "500", "its default");
}

static status translate_names(foreign_reader *r) {
    const foreign_item *train = foreign_find(r, "do_train");
    TRY(trainer_report_to(r, foreign_find(r, "report_to")));
    if (train && !item_is_true(train)) foreign_refuse(r, train, "`ralo train` trains; `ralo eval` evaluates");
    else foreign_report_no_effect(r, train, "`ralo train` trains");
    return OK;
}

status transformers_translate(foreign_reader *r, const transformers_defaults *d) {
    TRY(trainer_length(r, foreign_find(r, "num_train_epochs"), foreign_find(r, "max_steps"), "3"));
    TRY(translate_batch(r, d));
    if (!foreign_find(r, "learning_rate")) TRY(foreign_offer(r, NULL, "train.lr", d->lr, "its default"));
    TRY(translate_schedule(r));
    TRY(trainer_betas(r));
    if (!foreign_find(r, "weight_decay")) TRY(foreign_offer(r, NULL, "train.weight_decay", "0", "its default"));
    TRY(trainer_optimizer(r, foreign_find(r, "optim")));
    TRY(trainer_precision(r, foreign_find(r, "bf16"), foreign_find(r, "fp16"), d->precision));
    TRY(translate_rhythm(r));
    TRY(translate_best(r));
    TRY(translate_names(r));
    TRY(trainer_resume(r, foreign_find(r, "resume_from_checkpoint")));
    TRY(trainer_fsdp(r, foreign_find(r, "fsdp")));
    return trainer_deepspeed(r, foreign_find(r, "deepspeed"));
}
