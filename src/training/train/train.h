#pragma once
/* train.h - jobs: training from a plan and a data set, with evaluation, checkpoints and resume. What is trained for is a task.
 *
 * Promises
 *   - Loss and gradients of a step are divided once by the valid tokens of the whole step: accumulation 8 x 1 equals
 *     1 x 8.
 *   - Stop anywhere, resume anywhere: the parameters end with the same bits as the run that never stopped.
 *   - A checkpoint directory is either complete and checksummed, or is never used.
 *   - On many ranks every call of a trainer is collective and returns the same on all of them. Micro-batch j of rank r
 *     of n holds the rows that one rank would see in micro-batch j n + r. */
#include "generate/generate.h"
#include "reward/reward.h"
#include "train/perplexity.h" /* loss of a model on a text: part of this room's face */
#include "weights/weights.h"

typedef enum schedule_kind {
    SCHEDULE_COSINE,
    SCHEDULE_LINEAR,
    SCHEDULE_CONSTANT,
    SCHEDULE_WSD,
    SCHEDULE_COUNT
} schedule_kind;
typedef enum warmup_kind { WARMUP_LINEAR, WARMUP_LOG, WARMUP_KIND_COUNT } warmup_kind;
typedef enum schedule_style { STYLE_RALO, STYLE_DEEPSPEED, STYLE_COUNT } schedule_style;
typedef enum nonfinite_policy { NONFINITE_STOP, NONFINITE_SKIP, NONFINITE_COUNT } nonfinite_policy;

/* Reinforcement learning (train.task rloo): completions of prompts are drawn, rewarded and trained on. */
#define RL_CLIP_NONE 1e300
typedef struct rl_options {
    int loss;           /* row of the table in advantage.h */
    int64_t prompts, k; /* of a rollout, over all ranks; completions of each */
    int64_t updates;    /* optimizer steps of each rollout */
    double beta;        /* of the KL to the reference; 0: there is no reference; -1: as the loss has it */
    double low, high;   /* clipping; 0: as the loss has it, high then as low where that is given */
    double temperature, top_p, min_p;
    int64_t top_k;
    int64_t max_completion;     /* tokens; 0: 512, at most half of a row */
    int64_t sequences;          /* generated at once; 0: chosen by the device */
    bool normalize;             /* advantages over the whole rollout */
    double clip_low, clip_high; /* rewards are kept inside; -RL_CLIP_NONE and RL_CLIP_NONE: as they are */
    int mask_truncated;         /* completions that reached max_completion have no loss; -1: as the loss has it */
    double importance;          /* cap of truncated importance sampling; 0: none */
    int64_t redraws;            /* of groups whose rewards are equal; -1: as the loss has it */
    bool baseline;              /* memory of a common implementation: a group per micro-batch, all its logits at once */
    bool skip_long;             /* prompts without room for max_completion are left out; else an error */
    int64_t eval_k;             /* completions of each held-out prompt; 1: greedy */
    double pass;                /* reward from which a completion counts as solved */
    int64_t log_prompts;        /* prompts of every rollout whose completions are reported */
} rl_options;

/* How the losses of tokens are weighed (weightings.def, weighting.h). */
typedef enum weighting_kind {
#define WEIGHTING(id, name, help) WEIGHTING_##id,
#include "train/weightings.def"
#undef WEIGHTING
    WEIGHTING_COUNT
} weighting_kind;
/* Where the reference of rho1 is while the run trains. */
typedef enum reference_place { REFERENCE_IN_MEMORY, REFERENCE_ON_DISK } reference_place;
typedef struct weighting weighting;
const weighting *weighting_of(weighting_kind k); /* NULL: there is none */
/* The names, a | before each, and their help: for the setting train.weighting. */
extern const char train_weighting_names[], train_weighting_help[];

/* Weights from the values of a critic (value_weights.h). */
typedef struct value_options {
    double lambda, beta;
    bool terminal; /* the last delta is 1 - v_T: the solution is right, and the weights are told so */
} value_options;

/* train.task critic. */
typedef enum critic_error_kind { CRITIC_ERROR_MSE, CRITIC_ERROR_SMOOTH_L1 } critic_error_kind;
typedef struct critic_settings {
    int head; /* value_head less 1: none is no choice */
    int loss; /* critic_kind less 1 */
    critic_error_kind error;
    double head_lr; /* 0: auto */
    double dropout, gamma, lam;
} critic_settings;

typedef struct train_options {
    rl_options rl;
    critic_settings critic;
    int64_t steps, micro_batch;
    int64_t accumulation; /* in a request; 0: as many as batch takes */
    double epochs;        /* what steps are made of in a request; 0: not given */
    int64_t batch;        /* rows of a step: micro_batch * accumulation; 0: not given */
    double lr, min_lr_ratio;
    schedule_kind schedule;
    schedule_style style;
    int64_t schedule_steps; /* the schedule ends here; 0 = steps */
    int64_t warmup;         /* steps ... */
    double warmup_ratio;    /* ... or in settings a share of them; 0: not given */
    warmup_kind warmup_kind;
    double warmup_min_lr;
    double decay_share; /* wsd: share of the steps spent decaying at the end */
    double beta1, beta2, eps, weight_decay, clip;
    uint64_t seed;
    int64_t eval_every, eval_rows, save_every; /* steps; 0 = only at the end / never */
    int64_t evals_per_epoch,
        saves_per_epoch;            /* what eval_every and save_every are made of in a request; 0: not given */
    int64_t problems;               /* held-out problems for exact match, where the source has them */
    int64_t sample_every;           /* steps; 0: no completions are generated, the program has no such sections */
    int64_t samples, sample_tokens; /* prompts; most new tokens of each */
    const char *sample_prompts;     /* file of prompts; NULL or "": beginnings of held-out rows */
    nonfinite_policy nonfinite;
    int64_t patience;      /* evaluations without a better one before the run ends; 0: it does not */
    const char *save_best; /* number of evaluations by which a best checkpoint is kept; NULL or "": none */
    weighting_kind weighting;
    int rho1_mode;              /* selection_kind less 1: none is no choice */
    double rho1_share;          /* of the tokens that are selected */
    bool rho1_first_head;       /* the first head trains on all of them */
    const char *rho1_reference; /* base, copy, or a model directory; NULL or "": as adapters say */
    int rho1_reference_on;      /* reference_place */
    value_options value;        /* weightings by the values of ... */
    const char *critic_dir;     /* ... this run; NULL or "": none */
    int64_t log_every;
    /* fp16 */
    double loss_scale; /* > 0: static */
    int64_t initial_scale_power, loss_scale_window, hysteresis;
    bool consecutive_hysteresis; /* hysteresis is reset after every clean step, not only after a whole window of them */
    double min_loss_scale;
} train_options;

/* Learning rate of update 1..steps: a step that is skipped makes none. Warmup rises from warmup_min_lr by g = step /
 * warmup (linear) or ln(step + 1) / ln(warmup + 1) (log) of the way to lr, then comes the schedule; step schedule_steps
 * and all after it have lr * min_lr_ratio.
 *
 * STYLE_DEEPSPEED gives the rates of DeepSpeed's WarmupLR (constant), WarmupDecayLR (linear) and WarmupCosineLR
 * (cosine), whose scheduler is advanced after the optimizer: step s uses i = s - 2, and step 1 the rate from before the
 * first advance. With W = max(2, warmup) and T = schedule_steps: i < W rises by i / W or ln(i + 1) / ln(W); then linear
 * has (T - i) / max(1, T - W) left of the fall and cosine has fallen (i - W + 1) / max(1, T - W) of its half wave. */
double schedule_lr(const train_options *o, int64_t step);

/* ---- fp16 loss scale -------------------------------------------------------------------------------------------
 *
 * As DeepSpeed's dynamic loss scaler: an overflow halves the scale, but `hysteresis` - 1 of them are forgiven first;
 * loss_scale_window clean steps double it and forgive again. A loss_scale that is given stays as it is. */

void scaler_init(loss_scaler *s, const train_options *o);
/* Tells the scaler how a step went. ERR_RUN when it overflowed at the smallest scale. */
status scaler_update(loss_scaler *s, const train_options *o, bool overflow);

/* ---- tasks (tasks.def, task.h) --------------------------------------------------------------------------------- */

typedef enum task_kind {
#define TASK(id, name, help) TASK_##id,
#include "train/tasks.def"
#undef TASK
    TASK_COUNT
} task_kind;
typedef struct task task;
typedef struct train_request train_request;
const task *task_of(task_kind k); /* NULL: there is none */
const char *task_name(const task *t);
/* Makes a request one for this task: what the program must contain, and what the task will hold on the host. After everything
 * else in the request is known, and before it is planned. */
status task_shape(const task *t, train_request *r);
/* The names of all tasks, a | before each, and their help: for the setting train.task. */
extern const char train_task_names[], train_task_help[];

/* A number that a task reports by name, beside the fixed ones: a row of the task's own table. */
typedef struct task_metric {
    const char *name;  /* key of metrics.jsonl; those of evaluations begin with "val/", and only they */
    const char *label; /* in front of it on the terminal; NULL: not shown. The first METRICS_SHOWN of a line are */
    const char *help;
} task_metric;
const task_metric *task_metric_at(const task *t, size_t i); /* NULL past the end */
enum { METRICS_MOST = 40, METRICS_SHOWN = 2 };
typedef struct train_metrics {
    int n;
    struct {
        const task_metric *row; /* of the task's table, which is never freed */
        double value;           /* NaN: not known in this step */
    } list[METRICS_MOST];
} train_metrics;
void train_metrics_add(train_metrics *m, const task_metric *row, double value);

/* ---- training -------------------------------------------------------------------------------------------------- */

typedef struct train_step_report {
    int64_t step, steps;
    double epoch; /* of the data seen so far: 1.5 is one and a half; 0 of an endless source */
    double loss, grad_norm, lr, tokens_per_second, step_ms, loss_scale;
    double flops_per_second;
    uint64_t tokens;
    uint64_t device_bytes;           /* highest byte touched so far */
    bool on_gpu;                     /* ... of a GPU */
    uint64_t tier_bytes[TIER_COUNT]; /* the same of every tier */
    uint64_t driver_bytes; /* of the device in use, as its driver counts: at most a second old; 0: not known */
    bool skipped;
    train_metrics metrics; /* of the task */
} train_step_report;
typedef struct train_eval_report {
    int64_t step;
    double loss;        /* of n_rows held-out rows; NaN of none */
    double exact_match; /* of n_problems; NaN of none */
    int64_t n_rows, n_problems;
    train_metrics metrics; /* of the task, beside these */
} train_eval_report;

/* A completion of the model as it is after a step. */
typedef struct train_sample {
    int64_t step;
    size_t index; /* of the prompt, from 0 */
    span prompt, completion;
    stop_reason stop;
} train_sample;

/* A completion that was trained on, with what it was worth. */
typedef struct train_completion {
    int64_t step;
    span prompt, completion;
    stop_reason stop;
    size_t n_rewards;
    const char *const *reward_names;
    const double *rewards; /* NAN: unscorable */
    double reward;         /* their weighted sum, inside rl.reward_clip; NAN: unscorable */
    double advantage;      /* of its first token */
} train_completion;

/* What the caller wants to hear while training runs; any may be NULL. */
typedef struct train_observer {
    void *context;
    void (*on_step)(void *context, const train_step_report *r);
    void (*on_eval)(void *context, const train_eval_report *r);
    void (*on_example)(void *context, const char *prompt, const char *expected, const char *got);
    void (*on_message)(void *context, const char *text);
    void (*on_save)(void *context); /* before a checkpoint: reports so far should be on disk */
    /* Ready to train, resume accepted: after this step. An error ends the run. */
    status (*on_start)(void *context, int64_t step);
    void (*on_sample)(void *context, const train_sample *s);
    void (*on_completion)(void *context, const train_completion *c);
} train_observer;
/* How often a run of so many steps sees the data; 0: it is endless, or not known. */
double train_epochs(const dataset *d, const plan *p, int64_t steps);
/* The data in words, as lines that begin with "data"; and what is unusual about it, as warnings. */
void train_data_print(const dataset *d, const train_request *r, const plan *p, FILE *out);
void train_data_warn(const dataset *d, const train_request *r, const plan *p);
/* What to try when the loss diverges, with the settings of this run; returns out. */
const char *train_divergence_advice(const train_options *o, char *out, size_t n);
void train_say(const train_observer *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Another model whose numbers per token a run needs: they are computed before its memory is opened and kept in run_dir, by a
 * program of its own (frozen.h). */
typedef enum frozen_output { FROZEN_LOSSES, FROZEN_VALUES } frozen_output;
typedef struct frozen_model {
    const char *dir; /* a Hugging Face directory, a run or a checkpoint; NULL: the run needs none */
    const char *key; /* the setting that names it */
    frozen_output output;
} frozen_model;

/* Whether the prompt of a preference stands in a row once, where both answers have the same. */
typedef enum share_prompt { SHARE_PROMPT_OFF, SHARE_PROMPT_AUTO, SHARE_PROMPT_ON } share_prompt;
/* Windows of attention are counted in places of the row, which a shared prompt is further away from; built-in sources repeat theirs. */
static inline bool share_prompt_possible(share_prompt s, const char *source, const model_config *c) {
    return s != SHARE_PROMPT_OFF && !str_starts_with(source, "builtin:") && !c->window;
}

struct train_request {
    preference_options preference; /* of the task preference: as asked ... */
    reference_kind reference;      /* ... none: as the task chooses */
    share_prompt share_prompt;
    reward_options reward; /* of tasks that score completions */
    plan_request plan;
    data_options data;
    data_survey survey; /* of the data, where it was looked at before the request was made; n 0: not */
    train_options train;
    const task *task; /* as task_shape sets it; NULL: TASK_SFT */
    const char *run_dir;
    bool run_dir_is_locked; /* by the caller, who writes there too (run_lock_take) */
    const char *program;    /* as the user called it, for commands in messages; NULL: ralo */
    const char *resume;     /* NULL | "auto" | a run or a checkpoint directory */
    const char *model_dir;  /* Hugging Face directory the model was described by; NULL: a preset */
    bool pretrained;        /* its weights are the first values, unless a checkpoint is resumed */
    frozen_model frozen;    /* as the weighting sets it */
    uint64_t data_rows;     /* rows of the data, each counted once; 0: endless, or not known yet */
    const char
        *adapter; /* PEFT directory whose adapters are trained further; NULL: new ones, where there are adapters */
    const char *version;     /* of ralo, for the model card; NULL: not said */
    const char *export_dir;  /* where the trained model goes at the end, as export_options.dir; NULL: nowhere */
    gguf_format export_gguf; /* ... called *.gguf */
    const void *settings;    /* those of the run, for its model card ... */
    void (*write_settings)(const void *settings, strbuf *out); /* ... as lines; NULL: none */
    int64_t keep;
    bool no_last_checkpoint;
    int n_threads;
    bool bind;
    const char *trace_path;
    bool timed;            /* fill train_result.step_seconds on a device with queues too, which costs some percent */
    const char *nvme_path; /* directory of the nvme tier; NULL: run_dir */
    const backend *backend;
    gpu_options gpu;
    comm *comm; /* the other ranks, borrowed; plan.mesh is its mesh. NULL: there are none */
};

typedef struct train_result {
    int64_t steps;
    double first_loss, last_loss;
    uint64_t tokens;
    double tokens_per_second, step_ms;
    train_eval_report eval;
    uint64_t param_hash;
    checkpoint_best best; /* in RUN/best; metric "": there is none */
    bool saved;           /* there is a checkpoint of the last step */
    ledger memory;
    uint64_t host_planned, host_peak;
    uint64_t rss_peak;
    /* As exec_driver_memory gives them, of a shared GPU this rank's part; 0: the device is the host. */
    uint64_t gpu_context, gpu_in_use;
    double step_seconds[OP_COUNT]; /* of the mean step, in ops of each kind, as if nothing overlapped; see timed */
    double idle; /* share of forward and backward in which no kernel ran; NAN where that is not measured */
    sys_contention contention; /* while it trained; with ranks, which are programs too, only what was stolen */
} train_result;

/* Checks what can be refused before anything is planned: an export directory in use, a checkpoint to resume that is not
 * there. */
status train_check_places(const train_request *r);
/* Checks what can be refused before anything is written: weights that do not match the model, and the model that scores
 * records. */
status train_check_weights(const train_request *r, const plan *p);
status train_check(const train_request *r, const plan *p);
/* What a plan can tell of it, which needs no weights: does the directory that rho1.reference names describe a model that this run
 * can be compared with? */
status train_check_reference(const train_request *r);

/* Disk space of a run that begins in an empty directory. */
typedef struct train_disk {
    uint64_t checkpoint_bytes; /* of one, as plan_checkpoint_bytes */
    int64_t n_checkpoints;     /* at most at the same time (run.keep and one more; two in RUN/best); 0: none */
    uint64_t export_bytes;     /* 0: nothing is exported */
    uint64_t numbers_bytes;    /* of the numbers of a frozen model, at most; 0: none are kept */
} train_disk;
train_disk train_disk_of(const train_request *r, const plan *p);
void train_disk_print(const train_disk *d, FILE *out); /* a line; nothing where nothing is written */
json_t *train_disk_json(const train_disk *d);          /* "disk"; the caller takes it */
/* ERR_INPUT if not even one checkpoint, or the export, has room; a warning if not all checkpoints that will exist at
 * the same time have. Collective. */
status train_check_disk(const train_request *r, const plan *p, const char *run_dir);

/* A run that the caller drives step by step. Arguments are borrowed until it is closed; the plan is compiled from
 * request->plan already; the observer may be NULL. After an error a trainer can only be closed.
 *
 *     trainer *t;
 *     TRY(trainer_open(&t, &request, &plan, data, NULL));
 *     while (rc == OK && trainer_state(t)->step < request.train.steps) rc = trainer_step(t, &report);
 *     if (rc == OK) rc = trainer_save(t);
 *     if (rc == OK) rc = trainer_wait(t);
 *     trainer_close(t); */
typedef struct trainer trainer;
status trainer_open(trainer **out, const train_request *r, const plan *p, const dataset *d, const train_observer *o);
void trainer_close(trainer *t); /* a save in progress is finished */
const train_state *trainer_state(const trainer *t);
/* One optimizer step; ERR_INPUT when all are done. It ends with its update, since the caller may do anything before
 * the next; only train_run, which knows when nothing comes in between, uses SECTION_TURN. */
status trainer_step(trainer *t, train_step_report *report);
/* The plan was made with_eval. ERR_INTERRUPTED: train_interrupt asked for it; there is no report. */
status trainer_evaluate(trainer *t, train_eval_report *out);
/* What train_run does after the last step of this trainer, as flags: evaluations, samples and saves in this order, and the end, which an
 * evaluation may bring (train.patience). 0 before the first step. A save that falls between two updates of a rollout is due after the
 * last of them. */
enum { TRAIN_DUE_EVALUATION = 1, TRAIN_DUE_SAMPLES = 2, TRAIN_DUE_SAVE = 4, TRAIN_DUE_END = 8 };
unsigned trainer_due(const trainer *t);
/* Completions of the prompts with the parameters as they are, told to on_sample. train.sample_every is set, else there is nothing
 * to do. */
status trainer_sample(trainer *t);
/* The generator attached to this run's memory, for prompts of the caller between two steps; NULL without train.sample_every. */
generator *trainer_generator(trainer *t);
/* A checkpoint in run_dir, written in the background where plan.state_copies has room for it; nothing without a run_dir. */
status trainer_save(trainer *t);
status trainer_wait(trainer *t); /* until the last save is on disk */
/* On many ranks: of the last save. */
status trainer_export(trainer *t, const export_options *o, export_report *out);
status trainer_param_hash(trainer *t, uint64_t *out);

/* All of it: open, every step with evaluations and saves between them, the last save, evaluation, export, close. After the
 * first step ERR_IO is ERR_RUN. */
status train_run(const train_request *r, const plan *p, const dataset *d, const train_observer *o, train_result *out);
/* For a signal handler: the loop saves and returns ERR_INTERRUPTED after the current step or evaluation batch. */
void train_interrupt(void);
/* What the program of request->frozen takes, before that of the plan is opened; the run has one. */
status frozen_plan_bytes(const train_request *r, const plan *p, uint64_t planned[TIER_COUNT]);
