/* rollout.c - the rows of rollout.inc that are read together.
 *
 * Batches of GRPO and RLOO count completions in TRL; here a rollout counts prompts (rl.prompts), with rl.k completions
 * each. Whether a file is of GRPO or of RLOO it does not say: keys that RLOO alone has decide. Rewards are Python
 * functions there; they run as reward.program here. */
#include "migrate/rollout.h"

#include <string.h>

static const foreign_item *find(const foreign_reader *r, const rollout_keys *k, const char *name) {
    return foreign_find(r, foreign_format(r, "%s%s", k->prefix, name));
}

static int64_t whole_or(const foreign_item *i, int64_t otherwise) { return i ? item_whole(i) : otherwise; }

/* Keys that RLOO alone has, or the command line, which says what `trl rloo` would. */
static bool is_rloo(const foreign_reader *r, const rollout_keys *k) {
    if (config_was_given(r->c, "rl.loss")) return strcmp(foreign_value(r, "rl.loss"), "rloo") == 0;
    return trainer_has_any(r, k->prefix, "normalize_advantages reward_clip_range rloo_k kl_coef") &&
           !find(r, k, "loss_type");
}

/* An optimizer step of TRL trains on rows of a device x devices x gradient_accumulation_steps completions. Where it
 * generates for several steps at once (generation_batch_size, steps_per_generation), each of them trains on its own
 * share, so here each has a rollout of its own; rl.updates would train on the same completions again, which is what
 * num_iterations is. */
static status translate_batch(foreign_reader *r, const rollout_keys *k, const foreign_item *group, int64_t in_group) {
    const foreign_item *all = find(r, k, "generation_batch_size"), *per = find(r, k, "steps_per_generation"),
                       *iterations = find(r, k, "num_iterations"), *said[] = {k->rows, k->accumulation, all, per};
    int64_t a = whole_or(k->accumulation, 1), n = whole_or(k->rows, k->usual_rows), ranks = foreign_row_ranks(r),
            times = whole_or(iterations, 1), at_once, completions;
    bool is_right = in_group > 0 && a > 0 && n > 0 && times > 0 && !__builtin_mul_overflow(n, ranks, &at_once) &&
                    !__builtin_mul_overflow(at_once, a, &completions) && completions % in_group == 0;
    if (all && per) foreign_refuse(r, per, "generation_batch_size in line %d says it too; keep one", all->line);
    int64_t steps = !is_right ? a : all ? item_whole(all) / at_once : whole_or(per, a);
    if (is_right && (steps < 1 || (all && item_whole(all) % at_once) || (times > 1 && steps % a))) is_right = false;
    if (!is_right) {
        foreign_problem(
            r->f,
            "%s: completions of a step: found %lld rows x %lld steps x %lld ranks in groups of %lld, expected "
            "whole groups, and whole steps in a generation batch; give other gradient_accumulation_steps, or "
            "more --ranks",
            r->file->path, (long long)n, (long long)a, (long long)ranks, (long long)in_group);
        for (size_t i = 0; i < ARRAY_LENGTH(said); i++) foreign_report_no_effect(r, said[i], "see above");
        foreign_report_no_effect(r, group, "see above");
        foreign_report_no_effect(r, iterations, "see above");
        return OK;
    }
    const char *note =
        foreign_format(r, "%lld completions a step, %lld of each prompt%s", (long long)completions, (long long)in_group,
                       steps > a ? "; each step has a rollout of its own here" : "");
    const char *prompts = foreign_format(r, "%lld", (long long)(completions / in_group));
    bool is_offered = false;
    for (size_t i = 0; i < ARRAY_LENGTH(said); i++) {
        if (!said[i]) continue;
        if (!is_offered) TRY(foreign_offer(r, said[i], "rl.prompts", prompts, note));
        else foreign_report_set(r, said[i], "rl.prompts", NULL);
        is_offered = true;
    }
    if (!is_offered) TRY(foreign_offer(r, NULL, "rl.prompts", prompts, note));
    TRY(foreign_offer(r, iterations, "rl.updates", foreign_format(r, "%lld", (long long)times), NULL));
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
        foreign_report_no_effect(r, weights, "one reward alone");
        return foreign_offer(r, funcs, "reward.pattern", "<think>(?s:.*?)</think>(?s:.*)", NULL);
    }
    if (funcs)
        foreign_refuse(r, funcs,
                       "rewards in Python run as reward.list=program with reward.program; exact, numeric, regex, "
                       "format and length are "
                       "built in: give --set reward.list=...");
    if (weights && !funcs)
        foreign_refuse(r, weights, "weights stand beside the rewards: reward.list=numeric:1, format:0.2");
    else foreign_report_no_effect(r, weights, "write them into reward.list: numeric:1, format:0.2");
    return OK;
}

/* Is the deviation of a group left out? */
static bool is_unscaled(const foreign_item *scale) {
    bool flag;
    return scale && ((bool_read(scale->text, &flag) && !flag) || strcmp(scale->text, "none") == 0);
}

static void check_scale(foreign_reader *r, const foreign_item *scale, bool is_dr_grpo) {
    if (!scale) return;
    if (is_unscaled(scale) != is_dr_grpo)
        foreign_refuse(r, scale,
                       is_dr_grpo
                           ? "loss_type: dr_grpo never divides rewards by their deviation; say none, or grpo does"
                           : "rewards stay undivided by their deviation with loss_type: dr_grpo only");
    else if (strcmp(scale->text, "batch") == 0)
        foreign_refuse(
            r, scale,
            "rewards are divided by the deviation of their group; of the whole step with rl.loss=reinforce++");
    else foreign_report_no_effect(r, scale, "as rl.loss does");
}

/* What rl.loss=dapo and gspo bring with them beside the formula, TRL asks for one by one. */
static status translate_defaults(foreign_reader *r, const rollout_keys *k, const char *loss) {
    bool is_dapo = strcmp(loss, "dapo") == 0;
    if ((is_dapo || strcmp(loss, "gspo") == 0) && !find(r, k, "epsilon"))
        TRY(foreign_offer(r, NULL, "rl.epsilon", "0.2", "its default, also above unless epsilon_high says otherwise"));
    if (!is_dapo) return OK;
    if (!find(r, k, "mask_truncated_completions")) TRY(foreign_offer_text(r, NULL, "rl.mask_truncated", "false"));
    return foreign_offer(r, NULL, "rl.dynamic_sampling", "0", "it draws no prompts again");
}

static status translate_loss(foreign_reader *r, const rollout_keys *k) {
    const foreign_item *loss = find(r, k, "loss_type"), *level = find(r, k, "importance_sampling_level"),
                       *scale = find(r, k, "scale_rewards"), *beta = find(r, k, "beta");
    bool is_gspo = level && strcmp(level->text, "sequence") == 0;
    const char *name = loss ? trainer_list(r, loss) : is_rloo(r, k) ? "rloo" : "dapo", *note = NULL;
    bool is_dr_grpo = strcmp(name, "dr_grpo") == 0;
    if (!loss && !is_gspo) note = "its default";
    else if (is_dr_grpo && !scale) note = "rewards stay undivided by their deviation, as with scale_rewards: none";
    if (loss && !trainer_word_in(name, "rloo grpo dr_grpo dapo"))
        foreign_refuse(r, loss, "ralo has grpo, dr_grpo, dapo and rloo");
    else if (is_gspo && strcmp(name, "grpo") != 0)
        foreign_refuse(r, level,
                       "whole completions are weighed by GSPO, whose mean is over completions: say loss_type: "
                       "grpo beside it (%s %s)",
                       loss ? "found" : "TRL's default is", name);
    else TRY(foreign_offer(r, is_gspo ? level : loss, "rl.loss", is_gspo ? "gspo" : name, note));
    if (is_gspo && loss) foreign_report_set(r, loss, "rl.loss", NULL);
    if (level && strcmp(level->text, "token") == 0) foreign_report_no_effect(r, level, "tokens, as here");
    else if (level && !is_gspo) foreign_refuse(r, level, "ralo has token, and sequence (GSPO)");
    check_scale(r, scale, is_dr_grpo);
    TRY(translate_defaults(r, k, is_gspo ? "gspo" : name));
    return foreign_offer_text(r, beta, "rl.beta", is_rloo(r, k) ? "0.05" : "0");
}

status rollout_translate(foreign_reader *r, const rollout_keys *k) {
    const foreign_item *group = find(r, k, "num_generations"), *other = find(r, k, "rloo_k"),
                       *longest = find(r, k, "max_completion_length");
    TRY(foreign_offer(r, NULL, "train.task", "rloo", "its keys are of rollouts"));
    if (group && other) foreign_refuse(r, other, "num_generations says it too; keep one");
    else if (other) group = other;
    TRY(translate_loss(r, k));
    TRY(translate_batch(r, k, group, whole_or(group, is_rloo(r, k) ? 2 : 8)));
    TRY(foreign_offer_text(r, longest, "rl.max_completion", "512"));
    return translate_rewards(r, k);
}
