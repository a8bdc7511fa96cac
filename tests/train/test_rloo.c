/* test_rloo.c - runs of the task rloo: rewards rise, equal rewards change nothing, a stopped run ends with the bits of one that
 * never stopped, techniques of memory and the number of completions change neither bits nor peak, and what cannot be is refused
 * by name. */
#include "files.h"
#include "must.h"
#include "train/advantage.h"
#include "train/rollout.h"
#include "training.h"
#include "weightfile/weightfile.h"

#include <math.h>
#include <stdlib.h>

enum { SEQ_LEN = 32 };

/* Completions of at most 8 tokens; an "e" somewhere in it is rewarded: rare at first, and easy. */
static training rl_training(arena *memory, const char *loss, const char *const *more) {
    const char **all = arena_array(memory, const char *, SETTINGS_MOST);
    settings_join(all,
                  SETTINGS("train.task=rloo", arena_format(memory, "rl.loss=%s", loss), "data.difficulty=1",
                           "train.lr=0.003", "train.weight_decay=0", "rl.k=4", "rl.prompts=4", "rl.max_completion=8",
                           "reward.list=regex", "reward.pattern=[a-p]", "rl.log_prompts=4"),
                  more);
    return (training){.preset = "test-llama", .source = "builtin:arithmetic", .seq_len = SEQ_LEN, .more = all};
}

typedef struct watched {
    double rewards[128], norms[128], diff_max, ratio;
    int n;
    train_completion last;
} watched;

static double metric(const train_metrics *m, const char *name) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->list[i].row->name, name) == 0) return m->list[i].value;
    return NAN;
}

static void watch(void *context, const train_step_report *r) {
    watched *w = context;
    w->rewards[w->n] = metric(&r->metrics, "reward");
    w->norms[w->n++] = r->grad_norm;
    w->diff_max = fmax(w->diff_max, metric(&r->metrics, "rollout/logprob_diff_max"));
    w->ratio = metric(&r->metrics, "ratio");
}

/* ---- learning -------------------------------------------------------------------------------------------------- */

static double mean(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

static void rewards_rise(void **state) {
    for (size_t i = 0; rl_loss_at(i); i++) {
        arena memory;
        train_result r;
        watched w = {0};
        train_observer o = {.context = &w, .on_step = watch};
        arena_init(&memory);
        training t = rl_training(&memory, rl_loss_at(i)->name,
                                 SETTINGS("rl.beta=0", "rl.dynamic_sampling=0", "rl.mask_truncated=false",
                                          "reward.pattern=^[a-zA-Z0-9]", "rl.max_completion=2", "rl.prompts=8",
                                          "train.lr=0.01", "train.schedule=constant"));
        t.observer = &o, t.steps = 60;
        must(training_run(&t, &r));
        double before = mean(w.rewards, 10), after = mean(w.rewards + 50, 10);
        if (!(before < 0.45 && after > 0.85)) fail_msg("%s: rewards from %g to %g", rl_loss_at(i)->name, before, after);
        if (!(w.diff_max < 1e-5)) fail_msg("%s: log-probabilities differ by %g", rl_loss_at(i)->name, w.diff_max);
        training_as_planned(&r, rl_loss_at(i)->name);
        arena_fini(&memory);
    }
}

/* ---- nothing to learn ------------------------------------------------------------------------------------------ */

/* Without weight decay, which shrinks parameters by lr times itself whatever the rewards are. 0.1 is a reward whose sums round. */
static void equal_rewards_change_no_parameter(void **state) {
    static const char *const lists[] = {"regex", "regex:0.1"};
    static const double rewards[] = {1, 0.1};
    for (size_t i = 0; rl_loss_at(i); i++)
        for (size_t l = 0; l < ARRAY_LENGTH(lists); l++) {
            arena memory;
            train_result one, three;
            watched w = {0};
            train_observer o = {.context = &w, .on_step = watch};
            arena_init(&memory);
            training t = rl_training(&memory, rl_loss_at(i)->name,
                                     SETTINGS("rl.beta=0", "reward.pattern=|", "rl.dynamic_sampling=0",
                                              arena_format(&memory, "reward.list=%s", lists[l])));
            t.steps = 1;
            must(training_run(&t, &one));
            t.steps = 3, t.observer = &o;
            must(training_run(&t, &three));
            assert_true(one.param_hash == three.param_hash);
            for (int k = 0; k < 3; k++) assert_true(fabs(w.rewards[k] - rewards[l]) < 1e-15 && w.norms[k] == 0);
            arena_fini(&memory);
        }
}

/* No completion ends within its limit here, so all are masked: a step without a single token is a step. */
static void masked_completions_have_no_part(void **state) {
    static const char *const losses[] = {"rloo", "dapo"};
    for (size_t i = 0; i < ARRAY_LENGTH(losses); i++) {
        arena memory;
        train_result r;
        watched w = {0};
        train_observer o = {.context = &w, .on_step = watch};
        arena_init(&memory);
        training t = rl_training(&memory, losses[i],
                                 SETTINGS("rl.beta=0", "rl.mask_truncated=true", "rl.max_completion=1", "rl.prompts=2",
                                          "rl.k=2", "rl.dynamic_sampling=1", "reward.pattern=[a-z]"));
        t.observer = &o, t.steps = 3;
        must(training_run(&t, &r));
        for (int k = 0; k < 3; k++) assert_true(w.norms[k] == 0);
        arena_fini(&memory);
    }
}

typedef struct clipped {
    int n_clipped, n_masked;
} clipped;

/* A share of completions times as many as count is a whole number; times all of the rollout it seldom is. */
static void count_clipped(void *context, const train_step_report *r) {
    clipped *c = context;
    enum { COMPLETIONS = 64 };
    double n = COMPLETIONS * (1 - metric(&r->metrics, "completions/clipped_ratio"));
    if (n < 1) return;
    double low = n * metric(&r->metrics, "clip_ratio/low_mean"), high = n * metric(&r->metrics, "clip_ratio/high_mean");
    assert_true(fabs(low - round(low)) < 1e-6 && fabs(high - round(high)) < 1e-6);
    c->n_clipped += low + high > 0.5;
    c->n_masked += n < COMPLETIONS - 0.5;
}

static void shares_of_clipped_ratios_are_of_completions_that_count(void **state) {
    arena memory;
    train_result r;
    clipped c = {0};
    train_observer o = {.context = &c, .on_step = count_clipped};
    arena_init(&memory);
    training t = rl_training(&memory, "rloo",
                             SETTINGS("rl.beta=0", "rl.mask_truncated=true", "model.vocab=260", "rl.prompts=16",
                                      "rl.k=4", "rl.max_completion=16", "rl.updates=2", "rl.epsilon=0.000001"));
    t.observer = &o, t.steps = 12;
    must(training_run(&t, &r));
    assert_true(c.n_clipped > 0 && c.n_masked > 0);
    arena_fini(&memory);
}

/* Rewards of prompts, not of completions: nothing for those that compare the completions of a prompt, and something to learn for the one
 * that compares all of a step. */
static void count_flat_messages(void *context, const char *text) {
    *(int *)context += strstr(text, "teaches nothing") != NULL;
}

static void steps_that_teach_nothing_are_named(void **state) {
    static const char *const losses[] = {"rloo", "reinforce++_baseline", "reinforce++"};
    for (size_t i = 0; i < ARRAY_LENGTH(losses); i++) {
        arena memory;
        train_result r;
        int n_said = 0;
        train_observer o = {.context = &n_said, .on_message = count_flat_messages};
        arena_init(&memory);
        training t = rl_training(&memory, losses[i],
                                 SETTINGS("rl.beta=0", "rl.prompts=16", "reward.list=program",
                                          "reward.program=while read -r line; do case $line in '{\"prompt\":\"'[0-4]*) "
                                          "echo 1 ;; *) echo 0 ;; esac; done"));
        t.observer = &o, t.steps = 2;
        must(training_run(&t, &r));
        assert_int_equal(n_said, i < 2);
        arena_fini(&memory);
    }
}

static void keep_what_is_said(void *context, const char *text) {
    if (strstr(text, "teaches nothing")) snprintf(context, 512, "%s", text);
}

/* The reason, what a reference still does, and where to look. */
static void why_a_step_teaches_nothing_is_said(void **state) {
    static const struct {
        const char *settings[5], *words;
    } cases[] = {
        {{"rl.beta=0", "reward.pattern=|"}, "same reward|teaches nothing. The task|see completions.jsonl"},
        {{"rl.beta=0.1", "reward.pattern=|"}, "same reward|nothing but to stay near the reference (rl.beta)"},
        {{"rl.beta=0", "rl.max_completion=1", "rl.mask_truncated=true"}, "rl.mask_truncated|Raise rl.max_completion"},
        {{"rl.beta=0", "reward.pattern=|", "rl.log_prompts=0"}, "same reward|rl.log_prompts=1 would show some"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        arena memory;
        train_result r;
        char said[512] = "", words[256];
        train_observer o = {.context = said, .on_message = keep_what_is_said};
        arena_init(&memory);
        training t = rl_training(&memory, "rloo", cases[i].settings);
        t.observer = &o, t.steps = 2;
        must(training_run(&t, &r));
        snprintf(words, sizeof words, "%s", cases[i].words);
        for (char *save, *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save))
            if (!strstr(said, w)) fail_msg("'%s' is not in: %s", w, said);
        arena_fini(&memory);
    }
}

static void watch_kl(void *context, const train_step_report *r) {
    if (r->step == 1) *(double *)context = metric(&r->metrics, "kl");
}

/* The base of PiSSA is without what its adapters begin with, so it is not where the run began. */
static void the_reference_of_pissa_is_where_the_run_began(void **state) {
    static const char *const inits[] = {"default", "pissa"};
    for (size_t i = 0; i < ARRAY_LENGTH(inits); i++) {
        arena memory;
        train_result r;
        double kl = NAN;
        train_observer o = {.context = &kl, .on_step = watch_kl};
        arena_init(&memory);
        training t = rl_training(
            &memory, "rloo",
            SETTINGS("rl.beta=0.1", "model.lora.rank=4", arena_format(&memory, "model.lora.init=%s", inits[i])));
        t.observer = &o, t.steps = 1;
        must(training_run(&t, &r));
        if (!(fabs(kl) < 1e-5)) fail_msg("%s: the KL before the first update is %g", inits[i], kl);
        arena_fini(&memory);
    }
}

/* ---- the same bits --------------------------------------------------------------------------------------------- */

/* One way to learn, as settings. */
typedef struct way {
    const char *loss, *beta, *updates, *lora;
} way;
static const way ways[] = {{"rloo", "0", "1", "none"},          {"rloo", "0.1", "1", "none"},
                           {"rloo", "0.1", "2", "4"},           {"grpo", "0.1", "2", "none"},
                           {"grpo", "0.1", "1", "4"},           {"gspo", "0", "2", "none"},
                           {"reinforce++", "0.1", "1", "none"}, {"dapo", "0", "2", "none"}};

static training way_training(arena *memory, const way *w, const char *const *more) {
    const char **all = arena_array(memory, const char *, SETTINGS_MOST);
    settings_join(all,
                  SETTINGS(arena_format(memory, "rl.beta=%s", w->beta),
                           arena_format(memory, "rl.updates=%s", w->updates),
                           arena_format(memory, "model.lora.rank=%s", w->lora), "rl.temperature=0.8"),
                  more);
    return rl_training(memory, w->loss, all);
}

static const char *const *const techniques[] = {
    SETTINGS("memory.recompute=full"),
    SETTINGS("memory.recompute=selective", "memory.offload.activations=host"),
    SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host"),
    SETTINGS("rl.sequences=3"),
};

static void techniques_of_memory_keep_the_bits(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
        arena memory;
        train_result plain, r;
        arena_init(&memory);
        training t = way_training(&memory, &ways[i], NULL);
        must(training_run(&t, &plain));
        training_as_planned(&plain, ways[i].loss);
        for (size_t k = 0; k < ARRAY_LENGTH(techniques); k++) {
            t = way_training(&memory, &ways[i], techniques[k]);
            must(training_run(&t, &r));
            if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss)
                fail_msg("way %zu, technique %zu: param_hash %016llx, plain %016llx", i, k,
                         (unsigned long long)r.param_hash, (unsigned long long)plain.param_hash);
            training_as_planned(&r, ways[i].loss);
        }
        arena_fini(&memory);
    }
}

static void stop_after_one(void *context, const train_step_report *r) {
    if (r->step == 1) train_interrupt();
}

/* Stopped after the first step, or after the rollout that it belongs to; the reference is where the run began. */
static void resumed_runs_end_with_the_same_bits(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
        arena memory;
        train_result whole, parts;
        arena_init(&memory);
        training t = way_training(&memory, &ways[i], SETTINGS("train.eval_rows=4"));
        train_observer o = {.on_step = stop_after_one};
        must(training_run(&t, &whole));
        t.dir = arena_format(&memory, "%s/resumed-%zu", test_dir, i), t.resume = "auto", t.observer = &o;
        assert_int_equal(training_run(&t, &parts), ERR_INTERRUPTED);
        assert_int_equal(parts.steps, atoi(ways[i].updates));
        t.observer = NULL;
        must(training_run(&t, &parts));
        if (whole.param_hash != parts.param_hash || whole.last_loss != parts.last_loss)
            fail_msg("way %zu: a resumed run ends with loss %.9g, the whole one with %.9g", i, parts.last_loss,
                     whole.last_loss);
        assert_true(metric(&whole.eval.metrics, "val/reward") == metric(&parts.eval.metrics, "val/reward"));
        arena_fini(&memory);
    }
}

/* The frozen copy that the KL is measured to is no part of the model. */
static void a_run_with_a_reference_is_exported(void **state) {
    static const char *const betas[] = {"0", "0.1"};
    size_t n_bytes[2];
    for (size_t i = 0; i < ARRAY_LENGTH(betas); i++) {
        arena memory;
        train_result r;
        char *text;
        arena_init(&memory);
        const char *dir = arena_format(&memory, "%s/exported-%zu", test_dir, i);
        training t = rl_training(
            &memory, "rloo",
            SETTINGS(arena_format(&memory, "rl.beta=%s", betas[i]), arena_format(&memory, "run.export=%s", dir)));
        must(training_run(&t, &r));
        must(file_read_all(arena_format(&memory, "%s/model.safetensors", dir), 1 << 24, &text, &n_bytes[i]));
        free(text);
        arena_fini(&memory);
    }
    assert_int_equal(n_bytes[0], n_bytes[1]);
}

/* ---- the same update ------------------------------------------------------------------------------------------- */

/* task_rloo.c has these first. */
typedef struct rloo_opening {
    task_host host;
    rollout rollout;
} rloo_opening;

/* The completions of a rollout in the other order: groups and their members. */
static status before_reversed(void *self, int64_t step) {
    TRY(task_RLOO.step.before(self, step));
    rollout *r = &((rloo_opening *)self)->rollout;
    assert_true(r->host == self && r->n == 16);
    for (size_t i = 0, k = r->n - 1; i < k; i++, k--) {
        rollout_item item = r->items[i];
        rollout_numbers numbers = rollout_own(r)[i];
        r->items[i] = r->items[k], r->items[k] = item;
        rollout_own(r)[i] = rollout_own(r)[k], rollout_own(r)[k] = numbers;
    }
    TRY(rollout_pack(r));
    TRY(rollout_compare(r));
    return rollout_weigh(r);
}

/* The KL per token, of completions that ended. */
static double kl_expected;
static int n_cut;
static status before_counted(void *self, int64_t step) {
    TRY(task_RLOO.step.before(self, step));
    const rollout *r = &((rloo_opening *)self)->rollout;
    double kl = 0, tokens = 0;
    for (size_t i = 0; i < r->n; i++) {
        const rollout_item *x = &r->items[i];
        n_cut += x->c.stop == STOP_LENGTH;
        if (x->c.stop == STOP_LENGTH) continue;
        for (size_t k = 0; k < x->c.n_tokens; k++) kl += x->kl[k];
        tokens += (double)x->c.n_tokens;
    }
    kl_expected = kl / tokens;
    return OK;
}

static void check_kl(void *context, const train_step_report *r) {
    double kl = metric(&r->metrics, "kl");
    if (isnan(kl_expected)) return; /* all were cut */
    if (!(fabs(kl - kl_expected) <= 1e-12))
        fail_msg("step %lld: KL %g, expected %g", (long long)r->step, kl, kl_expected);
    *(int *)context += kl != 0;
}

/* Few tokens to choose from, so that some completions end and others are cut. */
static void the_kl_is_of_tokens_that_are_trained_on(void **state) {
    static const char *const losses[] = {"rloo", "reinforce++"};
    for (size_t i = 0; i < ARRAY_LENGTH(losses); i++) {
        arena memory;
        train_result r;
        task other = task_RLOO;
        int n_checked = 0;
        train_observer o = {.context = &n_checked, .on_step = check_kl};
        arena_init(&memory);
        training t = rl_training(&memory, losses[i],
                                 SETTINGS("rl.beta=0.1", "rl.mask_truncated=true", "model.vocab=258", "rl.prompts=16",
                                          "rl.k=16", "rl.max_completion=16", "rl.sequences=64"));
        other.step.before = before_counted;
        n_cut = 0;
        t.observer = &o, t.steps = 4, t.task = &other;
        must(training_run(&t, &r));
        assert_true(n_checked > 0 && n_cut > 0);
        arena_fini(&memory);
    }
}

typedef struct parameters {
    float *list;
    size_t n;
} parameters;

/* All parameters after one step. With train.eps 1 AdamW's first step is lr g / (|g| + 1): it moves a parameter as its gradient says, and
 * rounding of the gradient stays as small as it is. */
static parameters after_one_step(const char *loss, int64_t micro_batch, bool reversed, const char *lr) {
    static int n_runs;
    arena memory;
    train_result r;
    safetensors file;
    parameters out = {0};
    task other = task_RLOO;
    arena_init(&memory);
    const char *dir = arena_format(&memory, "%s/update-%d", test_dir, n_runs++);
    training t =
        rl_training(&memory, loss,
                    SETTINGS("rl.beta=0.1", "train.eps=1", "rl.dynamic_sampling=0", "rl.mask_truncated=false",
                             arena_format(&memory, "train.lr=%s", lr), arena_format(&memory, "run.export=%s", dir)));
    other.step.before = before_reversed;
    t.micro_batch = micro_batch, t.steps = 1, t.task = reversed ? &other : NULL;
    must(training_run(&t, &r));
    must(safetensors_open(&file, arena_format(&memory, "%s/model.safetensors", dir)));
    for (size_t i = 0; i < file.n_tensors; i++) out.n += file.tensors[i].n_bytes / sizeof(float);
    out.list = mem_alloc(out.n * sizeof(float));
    for (size_t i = 0, at = 0; i < file.n_tensors; at += file.tensors[i++].n_bytes / sizeof(float))
        memcpy(out.list + at, file.tensors[i].data, file.tensors[i].n_bytes);
    safetensors_close(&file);
    arena_fini(&memory);
    return out;
}

static float largest_change(const parameters *from, const parameters *to) {
    float largest = 0;
    for (size_t i = 0; i < from->n; i++) largest = fmaxf(largest, fabsf(to->list[i] - from->list[i]));
    return largest;
}

/* Sums over a step in another order: fp32 sums of a few hundred terms, 1e-5 of the largest change, and the rounding of the parameter. */
static void split_and_order_change_rounding_alone(void **state) {
    static const struct {
        int64_t micro_batch;
        bool reversed;
    } ways_to_split[] = {{2, false}, {5, false}, {16, false}, {1, true}, {16, true}};
    static const char *const losses[] = {"rloo", "grpo", "reinforce++", "dapo"};
    for (size_t l = 0; l < ARRAY_LENGTH(losses); l++) {
        parameters before = after_one_step(losses[l], 1, false, "1e-9"),
                   one = after_one_step(losses[l], 1, false, "0.1");
        float change = largest_change(&before, &one);
        if (!(change > 1e-5f)) fail_msg("%s: the update changes parameters by %g at most", losses[l], (double)change);
        for (size_t i = 0; i < ARRAY_LENGTH(ways_to_split); i++) {
            parameters x = after_one_step(losses[l], ways_to_split[i].micro_batch, ways_to_split[i].reversed, "0.1");
            assert_int_equal(x.n, one.n);
            for (size_t k = 0; k < x.n; k++)
                if (!(fabsf(x.list[k] - one.list[k]) <= 1e-5f * change + 2.4e-7f * fabsf(one.list[k])))
                    fail_msg("%s, way %zu: parameter %zu is %.9g, expected %.9g; the largest change is %g", losses[l],
                             i, k, (double)x.list[k], (double)one.list[k], (double)change);
            free(x.list);
        }
        free(before.list);
        free(one.list);
    }
}

/* rl.baseline_memory sums the same tokens in the order of its rows, and one chunk of logits instead of several: fp32 sums of a few
 * hundred terms. With every level of the ratio, a KL, masked completions, and groups redrawn; the rows of a group are its
 * completions. */
static void the_baseline_makes_the_same_update(void **state) {
    for (size_t i = 0; rl_loss_at(i); i++) {
        arena memory;
        train_result r[2];
        watched w[2] = {0};
        arena_init(&memory);
        for (int baseline = 0; baseline < 2; baseline++) {
            train_observer o = {.context = &w[baseline], .on_step = watch};
            training t = rl_training(&memory, rl_loss_at(i)->name,
                                     SETTINGS(baseline ? "rl.baseline_memory=true" : "rl.baseline_memory=false",
                                              baseline ? "memory.logits_chunk=auto" : "memory.logits_chunk=16K",
                                              "rl.beta=0.1", "rl.updates=2", "rl.prompts=3", "rl.temperature=0.8"));
            t.micro_batch = baseline ? 4 : 1, t.observer = &o;
            must(training_run(&t, &r[baseline]));
            training_as_planned(&r[baseline], rl_loss_at(i)->name);
        }
        for (int k = 0; k < w[0].n; k++)
            if (!(fabs(w[0].norms[k] - w[1].norms[k]) <= 1e-5 * w[0].norms[k]) || w[0].rewards[k] != w[1].rewards[k])
                fail_msg("%s, step %d: gradient norm %.9g, of the baseline %.9g", rl_loss_at(i)->name, k + 1,
                         w[0].norms[k], w[1].norms[k]);
        assert_true(fabs(r[0].last_loss - r[1].last_loss) <= 1e-5 * fmax(fabs(r[0].last_loss), 1));
        assert_true(r[1].memory.peak[TIER_DEVICE] > r[0].memory.peak[TIER_DEVICE]);
        arena_fini(&memory);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static const char *const ks[] = {"2", "4", "8", "16"};

/* Peaks of the device, and with what the host holds; used is planned (training_as_planned). */
static void peaks_of(const char *const *more, bool baseline, uint64_t device[4], uint64_t all[4]) {
    for (size_t i = 0; i < ARRAY_LENGTH(ks); i++) {
        arena memory;
        train_result r;
        arena_init(&memory);
        const char *settings[SETTINGS_MOST];
        settings_join(settings, SETTINGS(arena_format(&memory, "rl.k=%s", ks[i]), "rl.beta=0.05", "rl.prompts=2"),
                      more);
        training t = rl_training(&memory, "rloo", settings);
        t.micro_batch = baseline ? atoi(ks[i]) : 1, t.steps = 2;
        must(training_run(&t, &r));
        training_as_planned(&r, ks[i]);
        device[i] = r.memory.peak[TIER_DEVICE];
        all[i] = device[i] + r.host_peak;
        arena_fini(&memory);
    }
}

/* On the device to the byte. The host keeps the completions themselves: a few hundred bytes each, here of 8 tokens. */
static void the_peak_is_the_same_for_every_k(void **state) {
    uint64_t device[4], all[4];
    peaks_of(SETTINGS("rl.sequences=16"), false, device, all);
    for (size_t i = 1; i < ARRAY_LENGTH(ks); i++) {
        assert_int_equal(device[i], device[0]);
        if (!((double)all[i] < 1.01 * (double)all[0]))
            fail_msg("k = %s: %llu bytes, k = 2: %llu", ks[i], (unsigned long long)all[i], (unsigned long long)all[0]);
    }
}

/* Rows and their logits: each completion more costs the same, but for the scratch of a few products. */
static void the_peak_of_the_baseline_grows_with_k(void **state) {
    uint64_t device[4], all[4];
    peaks_of(SETTINGS("rl.baseline_memory=true"), true, device, all);
    double logits = (double)(SEQ_LEN * 260 * 4), each = (double)(device[1] - device[0]) / 2;
    assert_true(each > logits);
    for (size_t i = 2; i < ARRAY_LENGTH(ks); i++)
        assert_true(fabs((double)(device[i] - device[0]) / (atoi(ks[i]) - 2) - each) < 0.03 * each);
}

/* ---- what is reported ------------------------------------------------------------------------------------------ */

static int n_completions;
static void count_completion(void *context, const train_completion *c) {
    assert_true(c->prompt.length > 0 && c->n_rewards == 1 && strcmp(c->reward_names[0], "regex") == 0);
    assert_true(c->rewards[0] == c->reward && (c->reward == 0 || c->reward == 1));
    assert_true((c->advantage > 0) == (c->reward == 1 && c->advantage != 0));
    n_completions++;
}

/* Later updates of a rollout have ratios that are not 1, and the first has. */
static void completions_and_ratios_are_reported(void **state) {
    arena memory;
    train_result r;
    watched w = {0};
    train_observer o = {.context = &w, .on_step = watch, .on_completion = count_completion};
    arena_init(&memory);
    training t = rl_training(&memory, "grpo", SETTINGS("rl.updates=2", "rl.log_prompts=3", "rl.importance=2"));
    t.observer = &o, t.steps = 3;
    must_refuse(training_run(&t, &r), WORDS("train.steps", "multiple of rl.updates"));
    t.steps = 2, n_completions = 0;
    must(training_run(&t, &r));
    assert_int_equal(n_completions, 3 * 4);
    assert_true(w.ratio != 1 && w.ratio > 0.5 && w.ratio < 2);
    t.steps = 4;
    t.observer = &(train_observer){.context = &w, .on_step = watch};
    must(training_run(&t, &r));
    arena_fini(&memory);
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

static int n_samples;

/* Without a file, samples are completions of held-out prompts: here of one digit each. */
static void check_held_out(void *context, const train_sample *s) {
    assert_true(s->prompt.length == 4 && s->prompt.text[3] == '=');
    n_samples++;
}

static void what_cannot_be_is_refused_by_name(void **state) {
    arena memory;
    train_result r;
    arena_init(&memory);
    training t = rl_training(&memory, "rloo", SETTINGS("rl.max_completion=32"));
    must_refuse(training_run(&t, &r), WORDS("rl.max_completion", "32", "data.seq_len 32"));
    t = rl_training(&memory, "rloo", SETTINGS("rl.max_completion=30"));
    must_refuse(training_run(&t, &r), WORDS("tokens", "rl.max_completion", "data.seq_len", "rl.skip_long"));
    t = rl_training(&memory, "rloo", NULL);
    t.seq_len = 8192; /* of 4,096 positions */
    must_refuse(training_run(&t, &r), WORDS("seq_len 8192", "4096 positions"));
    t = rl_training(&memory, "rloo", SETTINGS("memory.overlap_update=true"));
    must_refuse(training_run(&t, &r), WORDS("memory.overlap_update", "rloo"));
    t = rl_training(&memory, "rloo", SETTINGS("train.sample_every=1"));
    train_observer watching = {.on_sample = check_held_out};
    t.observer = &watching, n_samples = 0;
    must(training_run(&t, &r));
    assert_true(n_samples > 0);
    write_text(path_of("prompts.txt"), "1+1=\n");
    t = rl_training(
        &memory, "rloo",
        SETTINGS("train.sample_every=1", arena_format(&memory, "train.sample_prompts=%s", path_of("prompts.txt"))));
    must(training_run(&t, &r));
    training_as_planned(&r, "samples beside a rollout");
    t = rl_training(&memory, "rloo", SETTINGS("rl.baseline_memory=true"));
    must_refuse(training_run(&t, &r), WORDS("train.micro_batch", "rl.baseline_memory", "4 of rl.k"));
    t = rl_training(&memory, "rloo", SETTINGS("rl.baseline_memory=true", "memory.logits_chunk=1M"));
    must_refuse(training_run(&t, &r), WORDS("memory.logits_chunk", "rl.baseline_memory"));
    t = rl_training(&memory, "rloo", SETTINGS("reward.list=guess"));
    must_refuse(training_run(&t, &r), WORDS("reward.list", "guess"));
    t = rl_training(&memory, "rloo", SETTINGS("reward.list=regex:1e300"));
    must_refuse(training_run(&t, &r), WORDS("1e+300", "rl.reward_clip"));
    t = rl_training(&memory, "grpo", SETTINGS("reward.list=regex:1e300"));
    must_refuse(training_run(&t, &r), WORDS("1e+300", "rl.reward_clip"));
    t = rl_training(&memory, "rloo", NULL);
    t.dir = arena_format(&memory, "%s/other", test_dir);
    must(training_run(&t, &r));
    t = rl_training(&memory, "grpo", NULL);
    t.dir = arena_format(&memory, "%s/other", test_dir), t.resume = "auto", t.steps = 6;
    must_refuse(training_run(&t, &r), WORDS("rloo with 4 prompts x 4", "grpo with 4 prompts x 4"));
    static const struct {
        const char *setting, *words;
    } changes[] = {{"rl.normalize_advantages=true", "'normalized advantages, rewards regex'"},
                   {"rl.reward_clip=[0, 1]", "'rewards clipped to 0 and 1, rewards regex'"},
                   {"rl.mask_truncated=true", "'truncated completions masked, rewards regex'"},
                   {"rl.importance=2", "'importance at most 2, rewards regex'"},
                   {"rl.dynamic_sampling=3", "'dynamic sampling of 3, rewards regex'"}};
    for (size_t i = 0; i < ARRAY_LENGTH(changes); i++) {
        t = rl_training(&memory, "rloo", SETTINGS(changes[i].setting));
        t.dir = arena_format(&memory, "%s/other", test_dir), t.resume = "auto", t.steps = 6;
        must_refuse(training_run(&t, &r),
                    WORDS("settings of its task: 'rewards regex', this run has", changes[i].words));
    }
    arena_fini(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewards_rise),
        cmocka_unit_test(equal_rewards_change_no_parameter),
        cmocka_unit_test(masked_completions_have_no_part),
        cmocka_unit_test(shares_of_clipped_ratios_are_of_completions_that_count),
        cmocka_unit_test(steps_that_teach_nothing_are_named),
        cmocka_unit_test(why_a_step_teaches_nothing_is_said),
        cmocka_unit_test(the_reference_of_pissa_is_where_the_run_began),
        cmocka_unit_test(the_kl_is_of_tokens_that_are_trained_on),
        cmocka_unit_test(techniques_of_memory_keep_the_bits),
        cmocka_unit_test(resumed_runs_end_with_the_same_bits),
        cmocka_unit_test(a_run_with_a_reference_is_exported),
        cmocka_unit_test(split_and_order_change_rounding_alone),
        cmocka_unit_test(the_baseline_makes_the_same_update),
        cmocka_unit_test(the_peak_is_the_same_for_every_k),
        cmocka_unit_test(the_peak_of_the_baseline_grows_with_k),
        cmocka_unit_test(completions_and_ratios_are_reported),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
