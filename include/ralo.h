#pragma once
/* ralo.h - the public C API of ralo: plan a training step, run it, save it, generate from it.
 *
 *     ralo_settings *settings;
 *     ralo_trainer *trainer;
 *     ralo_step step;
 *     ralo_settings_new(&settings);
 *     ralo_settings_set(settings, "model.preset", "gpt2");
 *     ralo_settings_set(settings, "data.source", "text.txt");
 *     if (ralo_trainer_open(&trainer, settings) != RALO_OK) return fail(ralo_error_message());
 *     while (ralo_trainer_steps_left(trainer) > 0 && ralo_trainer_step(trainer, &step) == RALO_OK)
 *         printf("%lld %f\n", (long long)step.step, step.loss);
 *     ralo_trainer_export(trainer, "trained", NULL);
 *     ralo_trainer_close(trainer);
 *     ralo_settings_free(settings);
 *
 * Compile with `cc main.c $(pkg-config --cflags --libs ralo)`; with libralo.a add --static. See examples/.
 *
 * Rules that hold for every function
 *   - A function that can fail returns a ralo_status. RALO_OK is 0. After a failure ralo_error_message() says, for the
 *     calling thread, what was found, what was expected and what to do; output parameters that are handles or memory
 *     are then NULL.
 *   - Handles are opaque. What _open or _new makes, _close or _free ends; both take NULL. Where a comment does not say
 *     otherwise, text and arrays that are handed out belong to the handle and live as long as it does; text that is handed
 *     in is copied. NULL where something is needed is RALO_ERROR_INPUT, never a crash.
 *   - A handle is used by one thread at a time; different handles may be used by different threads at the same time. A
 *     tokenizer may be used by any number of threads.
 *   - The library prints nothing: its log goes to the function given to ralo_set_log, or nowhere. It leaves
 *     stdout, stderr, malloc, signal handlers, the process's locale and the current directory alone. Numbers have a point,
 *     whatever the locale: while a call runs, its thread (callbacks included) is in the C locale.
 *   - It never exits. Memory that is refused where the size of a text or file decides is RALO_ERROR_RUN. Two things end the process
 *     through abort(), with a line on stderr: a refused small allocation, and a broken invariant of ralo itself, a bug.
 *   - Threads of its own are started by _open and ended by _close; they block every signal.
 *   - Structs that the library fills or reads end in reserved bytes: later versions of libralo.so.0 may use them, and a
 *     program need not be compiled again. */
#include <stddef.h>
#include <stdint.h>

#define RALO_VERSION_MAJOR 0
#define RALO_VERSION_MINOR 1
#define RALO_VERSION_PATCH 0
#define RALO_VERSION "0.1.0"

#if defined(__GNUC__)
#define RALO_API __attribute__((visibility("default")))
#else
#define RALO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version and errors ---------------------------------------------------------------------------------------- */

/* The version of the library that runs, which may be newer than the RALO_VERSION a program was compiled with. */
RALO_API const char *ralo_version(void);

typedef enum ralo_status {
    RALO_OK = 0,
    RALO_ERROR_RUN = 1,         /* the run failed: a loss that is not finite ... */
    RALO_ERROR_INPUT = 2,       /* the request was wrong: settings, arguments, the contents of a file */
    RALO_ERROR_IO = 3,          /* the operating system refused a file or a thread */
    RALO_ERROR_FIT = 4,         /* it does not fit; the message names the smallest change that would */
    RALO_ERROR_INTERRUPTED = 5, /* the caller asked to stop */
    RALO_ERROR_BUG = 6          /* ralo contradicts itself */
} ralo_status;

/* Of the last call that failed on this thread; "" before the first. Valid until the next call that fails on it. */
RALO_API const char *ralo_error_message(void);

typedef enum ralo_log_level { RALO_LOG_INFO = 1, RALO_LOG_WARNING = 2, RALO_LOG_ERROR = 3 } ralo_log_level;
/* Gets one line without a line break; `line` is valid during the call. Called from any thread, for one line at a time; it may
 * not call the library. */
typedef void (*ralo_log_function)(void *context, ralo_log_level level, const char *line);
/* Sets the function that gets the log of the whole process: every warning of `ralo plan` and `ralo train` (settings without
 * effect, records that are longer than a row, a loss that diverges ...), and as information the lines about the data, the end of
 * an epoch and what was resumed. NULL, the default: the log is dropped. */
RALO_API void ralo_set_log(ralo_log_function function, void *context);

/* Frees memory that a comment below hands to the caller. */
RALO_API void ralo_free(void *memory);

/* ---- settings: what `ralo help settings` lists ------------------------------------------------------------------ */

typedef struct ralo_settings ralo_settings;

/* Every setting at its default. */
RALO_API ralo_status ralo_settings_new(ralo_settings **out);
RALO_API void ralo_settings_free(ralo_settings *s);
/* A YAML or JSON file, over what was set before. After an error some of its settings may have been taken. */
RALO_API ralo_status ralo_settings_load_file(ralo_settings *s, const char *path);
/* ralo_settings_set(s, "train.lr", "1e-3"), as --set train.lr=1e-3. Unknown keys and values out of range are refused, and
 * change nothing. What single values cannot tell (two that contradict each other) is found when a plan or a trainer is
 * opened. */
RALO_API ralo_status ralo_settings_set(ralo_settings *s, const char *key, const char *value);
/* The value as text that ralo_settings_set takes. *out is valid until the next _get on this handle, or its _free. */
RALO_API ralo_status ralo_settings_get(ralo_settings *s, const char *key, const char **out);
/* The keys in their order, 0, 1, ...; NULL past the end. They live forever. */
RALO_API const char *ralo_settings_key(size_t index);

/* ---- plan: where every byte of the step would live, without allocating it ---------------------------------------- */

typedef struct ralo_plan ralo_plan;

/* The settings are copied; with parallel.* it is the plan of the first rank. A plan that does not fit memory.device is opened
 * too: ralo_plan_check tells. */
RALO_API ralo_status ralo_plan_open(ralo_plan **out, const ralo_settings *s);
RALO_API void ralo_plan_close(ralo_plan *p);
/* RALO_ERROR_FIT when it does not fit, with the largest contributors and the smallest change that would. */
RALO_API ralo_status ralo_plan_check(const ralo_plan *p);
/* Bytes of a tier: "device", "host" or "nvme". role NULL: all of the tier, which is exactly what a run allocates.
 * "device" also has roles, as they stand at its peak: "inputs", "params", "grads", "states", "activations", "work",
 * "comm", "cache" (of generation), and "gaps" for what alignment and holes cost; together they are the tier. */
RALO_API ralo_status ralo_plan_bytes(const ralo_plan *p, const char *tier, const char *role, uint64_t *out);
/* As `ralo plan` prints it, and as `ralo plan --json` does. Both belong to the plan. */
RALO_API const char *ralo_plan_text(const ralo_plan *p);
RALO_API const char *ralo_plan_json(const ralo_plan *p);

/* ---- trainer ------------------------------------------------------------------------------------------------------ */

typedef struct ralo_trainer ralo_trainer;

/* Plans, allocates, opens the data, and loads or makes the first values of the parameters. The settings are copied.
 *
 * Where run.dir is given, it is made, gets config.yaml, and takes the checkpoints of ralo_trainer_save; run.resume goes on
 * from one. Where it is not (auto), nothing is written. The caller is the loop: train.steps is where the learning rate
 * schedule ends, ralo_trainer_due says when train.eval_every and its like ask for something, and train.log_every, which speaks about
 * the loop of `ralo train`, has no meaning here. run.export is checked as there, so that nobody learns after hours that it cannot be
 * written; ralo_trainer_export makes it. A trainer is one rank: parallel.* that asks for more is RALO_ERROR_INPUT.
 * With model.lora.rank (or model.adapter, which trains an adapter further) adapters are trained over a frozen model; train.task
 * takes every task.
 * RALO_ERROR_FIT when the plan does not fit memory.device. */
RALO_API ralo_status ralo_trainer_open(ralo_trainer **out, const ralo_settings *s);
/* Without saving. */
RALO_API void ralo_trainer_close(ralo_trainer *t);

/* The data of a run, with the lengths of its records before a row cuts them. */
typedef struct ralo_data {
    uint64_t n_records;                  /* of training and evaluation together; 0: plain text, or an endless source */
    uint64_t n_trained;                  /* those that are trained on */
    uint64_t min, median, p95, p99, max; /* tokens of a record */
    uint64_t n_cut, n_dropped;           /* records that lose their end in a row, or are left out */
    double covered;                      /* share of the records that a row holds whole; NaN without records */
    int64_t seq_len;                     /* tokens of a row */
    int64_t rows_per_epoch;              /* of train.task rloo prompts; 0: endless */
    double epochs;                       /* how often train.steps see the data; 0: endless */
    int32_t seq_len_auto;                /* 1: data.seq_len follows the data */
    int32_t reserved_int;
    uint64_t reserved[8];
} ralo_data;
RALO_API ralo_status ralo_trainer_data(const ralo_trainer *t, ralo_data *out);
/* The same as the lines that `ralo train` prints; belongs to the trainer. NULL when t is. */
RALO_API const char *ralo_trainer_data_text(const ralo_trainer *t);

/* A number by its key of metrics.jsonl; the name lives forever. */
typedef struct ralo_metric {
    const char *name;
    double value; /* NaN: not known in this step; of a flag 1 */
} ralo_metric;
/* Callbacks of a trainer run on the thread that called the trainer, before that call returns, and may not use the trainer.
 * Their arguments are valid during the call. */
typedef void (*ralo_metrics_function)(void *context, const ralo_metric *metrics, size_t n);
/* Sets the callback that gets, after every step and every evaluation, all numbers that its line of metrics.jsonl has; "step" is the
 * first. NULL, the default: none. */
RALO_API ralo_status ralo_trainer_on_metrics(ralo_trainer *t, ralo_metrics_function function, void *context);

typedef struct ralo_step {
    int64_t step;      /* that was made: 1 is the first */
    double loss;       /* mean over the step's valid tokens, before the update */
    double grad_norm;  /* before clipping */
    double lr;         /* of this step */
    uint64_t tokens;   /* seen so far, those before a resume included */
    double seconds;    /* that the step took */
    double loss_scale; /* fp16; else 0 */
    int32_t skipped;   /* 1: not finite, the parameters were left as they were (train.nonfinite=skip, fp16) */
    int32_t reserved_int;
    uint64_t reserved[8];
} ralo_step;
/* One optimizer step: train.accumulation micro-batches and one update. `out` may be NULL. RALO_ERROR_INPUT when
 * train.steps steps were made, which changes nothing; RALO_ERROR_RUN when a number is not finite, with tensor, layer and op of
 * the first. After any error but that RALO_ERROR_INPUT the trainer can only be closed; checkpoints saved before are complete. */
RALO_API ralo_status ralo_trainer_step(ralo_trainer *t, ralo_step *out);
/* Steps up to train.steps; 0 when all are made, or t is NULL. */
RALO_API int64_t ralo_trainer_steps_left(const ralo_trainer *t);

typedef enum ralo_due {
    RALO_DUE_EVALUATION = 1, /* ralo_trainer_evaluate: train.eval_every, evals_per_epoch; not after the last step */
    RALO_DUE_SAMPLES = 2,    /* ralo_trainer_sample: train.sample_every, and after the last step */
    RALO_DUE_SAVE = 4,       /* ralo_trainer_save: train.save_every, train.saves_per_epoch; never without a run.dir */
    RALO_DUE_END = 8         /* all steps are made, or train.patience is over */
} ralo_due;
/* What `ralo train` would do after the last step of this trainer: the sum of the ralo_due that apply. 0 before the first step, or t is
 * NULL. Ask for RALO_DUE_END after the evaluation, which may bring it. RALO_DUE_SAVE stays until a save; of train.task rloo it waits for
 * the last update of a rollout (rl.updates). */
RALO_API uint32_t ralo_trainer_due(const ralo_trainer *t);

typedef struct ralo_evaluation {
    double loss;        /* mean over held-out tokens; NaN without train.eval_rows */
    double exact_match; /* share of held-out problems solved; NaN where the data has none, or without train.problems */
    int64_t n_problems;
    uint64_t reserved[8];
} ralo_evaluation;
/* train.eval_rows held-out rows and train.problems held-out problems, on the parameters as they are. */
RALO_API ralo_status ralo_trainer_evaluate(ralo_trainer *t, ralo_evaluation *out);
/* A number of the last step, or of the last evaluation, by its key of metrics.jsonl: "perf/tokens_per_sec", "val/loss", and those
 * that only one train.task has. NaN where it is not known. RALO_ERROR_INPUT for a key that neither of them has, or before the first. */
RALO_API ralo_status ralo_trainer_metric(const ralo_trainer *t, const char *key, double *out);
/* Writes a checkpoint into run.dir; returns when it is complete on disk. Only the newest run.keep are kept. RALO_ERROR_INPUT without
 * a run.dir. */
RALO_API ralo_status ralo_trainer_save(ralo_trainer *t);
/* The parameters as they are, as a Hugging Face directory; with adapters these alone, as a directory of PEFT, which model.adapter and
 * ralo_generator_options.adapter take. dir must be new or empty, and appears whole or not at all. dtype: "fp32", "bf16", "fp16", or NULL
 * for the one that was trained. A name that ends in .gguf is one file for llama.cpp, of the whole model, in the numbers of run.gguf: it is made
 * from a checkpoint that is saved in run.dir, and dtype is NULL. */
RALO_API ralo_status ralo_trainer_export(ralo_trainer *t, const char *dir, const char *dtype);
/* Equal exactly when every bit of every parameter is (up to a chance of one in 2^64). */
RALO_API ralo_status ralo_trainer_param_hash(ralo_trainer *t, uint64_t *out);
/* The plan it runs; borrowed from the trainer: do not close it. NULL when t is. */
RALO_API const ralo_plan *ralo_trainer_plan(const ralo_trainer *t);

typedef struct ralo_export_options {
    const char *dtype; /* "fp32", "bf16", "fp16"; NULL: as it was trained, or merged as the base is */
    const char
        *adapter;  /* with merge: a PEFT directory or a run, over the model `from`; NULL: that of the run `from` */
    int32_t merge; /* 1: the whole model with its adapters merged into it, instead of the adapters */
    int32_t reserved_int;
    uint64_t reserved[8];
} ralo_export_options;
/* `ralo export`: a run directory (its newest checkpoint) or a checkpoint directory, with merge also a Hugging Face directory, as a
 * directory that transformers or PEFT loads; a name that ends in .gguf is one file for llama.cpp, in f16, with adapters merged. options
 * NULL: all zero. */
RALO_API ralo_status ralo_export(const char *from, const char *dir, const ralo_export_options *options);

/* ---- tokenizer ---------------------------------------------------------------------------------------------------- */

typedef struct ralo_tokenizer ralo_tokenizer;

/* "byte", a tokenizer.json of Hugging Face (byte-level or byte-fallback BPE), or a directory that holds one. */
RALO_API ralo_status ralo_tokenizer_open(ralo_tokenizer **out, const char *name);
RALO_API void ralo_tokenizer_close(ralo_tokenizer *t);
RALO_API int64_t ralo_tokenizer_vocab(const ralo_tokenizer *t); /* one more than the largest id; 0: t is NULL */
RALO_API int32_t ralo_tokenizer_eos(const ralo_tokenizer *t);   /* the token that ends a text; -1: there is none */
/* n_bytes of text, which need no NUL; special tokens in it are taken as such, nothing is added around it. *tokens belongs
 * to the caller, who gives it to ralo_free; it is NULL where there are none. */
RALO_API ralo_status ralo_tokenizer_encode(const ralo_tokenizer *t, const char *text, size_t n_bytes, int32_t **tokens,
                                           size_t *n_tokens);
/* Special tokens are left out. *text ends in a NUL that n_bytes does not count ("byte" can give others before it); it
 * belongs to the caller, who gives it to ralo_free. n_bytes may be NULL. */
RALO_API ralo_status ralo_tokenizer_decode(const ralo_tokenizer *t, const int32_t *tokens, size_t n_tokens, char **text,
                                           size_t *n_bytes);

/* ---- generation --------------------------------------------------------------------------------------------------- */

typedef struct ralo_generator ralo_generator;

typedef struct ralo_generator_options {
    const char *precision;  /* "fp32", "bf16" or "fp16": of weights, activations and cache */
    int64_t max_sequences;  /* computed at once; the others wait in line */
    int64_t context;        /* most tokens of prompt and completion; 0: the model's positions, at most 4096 */
    uint64_t cache_bytes;   /* most bytes for keys and values; 0: every sequence can fill its context */
    uint64_t device_memory; /* most bytes in all; 0: what this machine has */
    int32_t threads;        /* 0: one per core */
    int32_t reserved_int;
    const char *adapter; /* PEFT directory, or a run or checkpoint with adapters, over the model; NULL: none */
    const char *weights; /* linear layers stored as "int8", "fp8" or "nf4", the vocabulary's tables as int8; NULL: by precision */
    uint64_t reserved[6];
} ralo_generator_options;
/* fp32, 16 sequences, everything else chosen. Call it first, and set what should differ after it. */
RALO_API void ralo_generator_options_init(ralo_generator_options *o);

/* source: a Hugging Face directory, a run directory (its newest checkpoint) or a checkpoint directory. options NULL: those
 * of the init. RALO_ERROR_FIT when weights and cache do not fit, with the smallest change that would. */
RALO_API ralo_status ralo_generator_open(ralo_generator **out, const char *source,
                                         const ralo_generator_options *options);
RALO_API void ralo_generator_close(ralo_generator *g);
/* The plan it runs, as ralo_trainer_plan. */
RALO_API const ralo_plan *ralo_generator_plan(const ralo_generator *g);

typedef enum ralo_chat {
    RALO_CHAT_NONE = 0,  /* a prompt is a text that is continued as it is */
    RALO_CHAT_USER = 1,  /* a prompt is a turn of the user */
    RALO_CHAT_RECORD = 2 /* a prompt is a line of JSON Lines without its answer: {"messages": [...]} */
} ralo_chat;

typedef struct ralo_sampling {
    int64_t max_new;           /* most new tokens */
    double temperature;        /* 0: the most likely token, always */
    int64_t top_k;             /* 0: all */
    double top_p;              /* 1: all */
    double min_p;              /* 0: all */
    double repetition_penalty; /* 1: none */
    uint64_t seed;
    int64_t n_completions;    /* per prompt */
    const char *const *stops; /* n_stops texts that end a completion and are not part of it */
    size_t n_stops;
    int32_t ignore_eos; /* 1: go on after the end-of-text token */
    int32_t chat;       /* a ralo_chat: turns in the chat format of the training, else of the tokenizer */
    uint64_t reserved[8];
} ralo_sampling;
/* Greedy, 128 tokens, one completion, as `ralo generate` without flags. Call it first, and set what should differ. */
RALO_API void ralo_sampling_init(ralo_sampling *s);

typedef enum ralo_stop { RALO_STOP_EOS = 0, RALO_STOP_STRING = 1, RALO_STOP_LENGTH = 2 } ralo_stop;

typedef struct ralo_completion {
    char *text;      /* without special tokens, cut before a stop text; a NUL behind it */
    size_t n_bytes;  /* without that NUL; a byte tokenizer can give others */
    int32_t *tokens; /* without the prompt; with the end token where that ended it */
    size_t n_tokens;
    double log_probability; /* of the tokens, under the model itself: temperature 1, no filter, no penalty */
    ralo_stop stop;         /* what ended it */
    int32_t reserved_int;
    uint64_t reserved[8];
} ralo_completion;
/* Completes n_prompts texts, all together. *out holds n_prompts * n_completions completions, those of one prompt together,
 * in the order of the prompts; it belongs to the caller, who gives it to ralo_completions_free. sampling NULL: that of the
 * init. A text is encoded as the model's tokenizer.json says, special tokens around it included; with sampling->chat as a conversation, and
 * RALO_ERROR_INPUT where the model has no chat format. Greedy completions do not
 * depend on what else is asked for; sampled ones depend on the seed and their place in the list only. */
RALO_API ralo_status ralo_generator_generate(ralo_generator *g, const char *const *prompts, size_t n_prompts,
                                             const ralo_sampling *sampling, ralo_completion **out, size_t *n_out);
/* n: as many as ralo_generator_generate said. */
RALO_API void ralo_completions_free(ralo_completion *completions, size_t n);

/* ---- completions of a model while it is trained ------------------------------------------------------------------------ */

typedef struct ralo_sample {
    int64_t step;                    /* after which it was made, or in which it was trained on */
    size_t index;                    /* of the prompt of a sample, from 0 */
    const char *prompt, *completion; /* without a NUL; they may hold any byte */
    size_t prompt_bytes, completion_bytes;
    double reward, advantage; /* of a completion that train.task rloo trains on; else NaN */
    ralo_stop stop;           /* what ended it */
    int32_t trained; /* 1: a completion that the step trains on (those of rl.log_prompts prompts); 0: a sample */
    uint64_t reserved[8];
} ralo_sample;
typedef void (*ralo_sample_function)(void *context, const ralo_sample *sample);
/* Sets the callback that gets the completions of ralo_trainer_sample, and those that a step generates and trains on (train.task rloo).
 * NULL, the default: none. */
RALO_API ralo_status ralo_trainer_on_sample(ralo_trainer *t, ralo_sample_function function, void *context);
/* Completes train.samples prompts (train.sample_prompts, else beginnings of held-out rows) with the parameters as they are, in the
 * memory of the trainer. train.sample_every must be set, to any number: the loop is the caller's. */
RALO_API ralo_status ralo_trainer_sample(ralo_trainer *t);
/* ralo_generator_generate with the parameters as they are. train.sample_every must be set here too; the line "samples" of the plan says
 * how many tokens a prompt and its completion may have. */
RALO_API ralo_status ralo_trainer_generate(ralo_trainer *t, const char *const *prompts, size_t n_prompts,
                                           const ralo_sampling *sampling, ralo_completion **out, size_t *n_out);

#ifdef __cplusplus
}
#endif
