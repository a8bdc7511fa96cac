/* foreign_rollout.c - the rows of foreign_rollout.inc that are read together.
 *
 * Batches of GRPO and RLOO count completions in TRL; here a rollout counts prompts (rl.prompts), with rl.k completions each. Whether a file is of GRPO
 * or of RLOO it does not say: keys that RLOO alone has decide. Rewards are Python functions there; they run as reward.program here. */
#include "settings/foreign_rollout.h"
#include "settings/form.h"

#include <string.h>

static const foreign_item *find(const foreign_reader *r, const rollout_keys *k, const char *name) {
    return foreign_find(r, foreign_format(r, "%s%s", k->prefix, name));
}

static int64_t whole_or(const foreign_item *i, int64_t otherwise) { return i ? item_whole(i) : otherwise; }

static bool is_rloo(const foreign_reader *r, const rollout_keys *k) {
    return trainer_has_any(r, k->prefix, "normalize_advantages reward_clip_range rloo_k kl_coef") &&
           !find(r, k, "loss_type");
}

/* generation_batch_size completions, or rows of a device x devices x steps_per_generation, in groups. */
static status translate_batch(foreign_reader *r, const rollout_keys *k, const foreign_item *group, int64_t in_group) {
    const foreign_item *all = find(r, k, "generation_batch_size"), *per = find(r, k, "steps_per_generation"),
                       *iterations = find(r, k, "num_iterations"), *said[] = {all, k->rows, per, k->accumulation};
    int64_t a = whole_or(k->accumulation, 1), s = whole_or(per, a), n = whole_or(k->rows, k->usual_rows), completions;
    bool is_right = in_group > 0 && a > 0 && s > 0 && n > 0 && whole_or(iterations, 1) > 0 &&
                    !__builtin_mul_overflow(n, s, &completions) &&
                    !__builtin_mul_overflow(completions, foreign_row_ranks(r), &completions);
    if (is_right && all) completions = item_whole(all);
    if (!is_right || completions < 1 || completions % in_group || s % a) {
        foreign_problem(
            r->f,
            "%s: completions of a rollout: found %lld rows x %lld steps x %lld ranks in groups of %lld, expected whole "
            "groups, and steps_per_generation a multiple of gradient_accumulation_steps",
            r->file->path, (long long)n, (long long)s, (long long)foreign_row_ranks(r), (long long)in_group);
        for (size_t i = 0; i < ARRAY_LENGTH(said); i++)
            if (said[i]) foreign_report_no_effect(r, said[i], "see above");
        if (group) foreign_report_no_effect(r, group, "see above");
        if (iterations) foreign_report_no_effect(r, iterations, "see above");
        return OK;
    }
    const char *note =
        foreign_format(r, "%lld completions, %lld of each prompt", (long long)completions, (long long)in_group);
    const char *prompts = foreign_format(r, "%lld", (long long)(completions / in_group));
    bool is_offered = false;
    for (size_t i = 0; i < ARRAY_LENGTH(said); i++) {
        if (!said[i]) continue;
        if (!is_offered) TRY(foreign_offer(r, said[i], "rl.prompts", prompts, note));
        else foreign_report_set(r, said[i], "rl.prompts", NULL);
        is_offered = true;
    }
    if (!is_offered) TRY(foreign_offer(r, NULL, "rl.prompts", prompts, note));
    int64_t updates;
    if (__builtin_mul_overflow(whole_or(iterations, 1), s / a, &updates)) updates = INT64_MAX;
    TRY(foreign_offer(r, iterations, "rl.updates", foreign_format(r, "%lld", (long long)updates), NULL));
    return foreign_offer(r, group, "rl.k", foreign_format(r, "%lld", (long long)in_group),
                         group ? NULL : "its default");
}

static status translate_rewards(foreign_reader *r, const rollout_keys *k) {
    const foreign_item *funcs = find(r, k, "reward_funcs"), *weights = find(r, k, "reward_weights");
    if (config_was_given(r->c, "reward.list")) {
        const char *who = foreign_format(r, "conflict: %s says so", config_given_by(r->c, "reward.list"));
        if (funcs) foreign_report_set(r, funcs, "reward.list", who);
        if (weights) foreign_report_set(r, weights, "reward.list", who);
        return OK;
    }
    const char *name = funcs ? trainer_list(r, funcs) : "";
    if (strcmp(name, "think_format_reward") == 0) {
        TRY(foreign_offer(r, funcs, "reward.list", "format", NULL));
        if (weights) foreign_report_no_effect(r, weights, "one reward alone");
        return foreign_offer(r, funcs, "reward.pattern", "<think>(?s:.*?)</think>(?s:.*)", NULL);
    }
    if (funcs)
        foreign_refuse(r, funcs,
                       "rewards in Python run as reward.list=program with reward.program; exact, numeric, regex, "
                       "format and length are "
                       "built in: give --set reward.list=...");
    if (weights && !funcs)
        foreign_refuse(r, weights, "weights stand beside the rewards: reward.list=numeric:1, format:0.2");
    else if (weights) foreign_report_no_effect(r, weights, "write them into reward.list: numeric:1, format:0.2");
    return OK;
}

static status translate_loss(foreign_reader *r, const rollout_keys *k) {
    const foreign_item *loss = find(r, k, "loss_type"), *level = find(r, k, "importance_sampling_level"),
                       *scale = find(r, k, "scale_rewards"), *beta = find(r, k, "beta");
    bool is_gspo = level && strcmp(level->text, "sequence") == 0, flag = true;
    const char *name = loss ? trainer_list(r, loss) : is_rloo(r, k) ? "rloo" : "dapo";
    if (loss && !trainer_word_in(name, "rloo grpo dr_grpo dapo"))
        foreign_refuse(r, loss, "ralo has grpo, dr_grpo, dapo and rloo");
    else
        TRY(foreign_offer(r, is_gspo ? level : loss, "rl.loss", is_gspo ? "gspo" : name,
                          loss || is_gspo ? NULL : "its default"));
    if (is_gspo && loss) foreign_report_set(r, loss, "rl.loss", NULL);
    if (level && !is_gspo) foreign_report_no_effect(r, level, "tokens, as here");
    bool is_off = scale && ((bool_read(scale->text, &flag) && !flag) || strcmp(scale->text, "none") == 0);
    if (is_off && strcmp(name, "dr_grpo") != 0)
        foreign_refuse(r, scale, "rewards stay undivided by their deviation with loss_type: dr_grpo only");
    else if (scale && strcmp(scale->text, "batch") == 0)
        foreign_refuse(
            r, scale,
            "rewards are divided by the deviation of their group; of the whole step with rl.loss=reinforce++");
    else if (scale) foreign_report_no_effect(r, scale, "as rl.loss does");
    return foreign_offer(r, beta, "rl.beta",
                         beta            ? beta->text
                         : is_rloo(r, k) ? "0.05"
                                         : "0",
                         beta ? NULL : "its default");
}

status rollout_translate(foreign_reader *r, const rollout_keys *k) {
    const foreign_item *group = find(r, k, "num_generations"), *other = find(r, k, "rloo_k"),
                       *longest = find(r, k, "max_completion_length");
    TRY(foreign_offer(r, NULL, "train.task", "rloo", "its keys are of rollouts"));
    if (group && other) foreign_refuse(r, other, "num_generations says it too; keep one");
    else if (other) group = other;
    TRY(translate_loss(r, k));
    TRY(translate_batch(r, k, group, whole_or(group, is_rloo(r, k) ? 2 : 8)));
    TRY(foreign_offer(r, longest, "rl.max_completion", longest ? longest->text : "512",
                      longest ? NULL : "its default"));
    return translate_rewards(r, k);
}
