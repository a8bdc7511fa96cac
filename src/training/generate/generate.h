#pragma once
/* generate.h - completions from a model: many prompts at once over a paged cache of keys and values.
 *
 * Prefill and decode are two sections of a program over the same weights (SECTION_PREFILL, SECTION_DECODE); the cache is
 * a value of the plan, cut into pages, so the memory of generation is as exact as that of training. A prompt's full pages
 * are shared by all its completions. Sequences come and go between two steps (continuous batching): a finished one gives
 * its pages and its slot to the next prompt in line.
 *
 * Promises
 *   - Greedy completions do not depend on what else is in the batch, on the number of slots or on the page size; sampled
 *     ones depend on (seed, prompt number, completion index, position) only. The CPU backend gives a token the same bits in
 *     one prefill, in chunks of it, and token by token through the cache; other backends within 1e-4 of the largest logit.
 *     On a GPU with weights in codes these are further apart: few rows are multiplied as LINEAR_CODES says, many (prefill, and more
 *     than 64 slots) with the codes' numbers in 16 bits.
 *   - Speculative decoding (generator_options.speculative) gives the tokens of plain greedy decoding: a token is one that the first
 *     head chose after the tokens before it. On the CPU all bits are the same; on other backends a pass over several tokens may
 *     round otherwise than one over a single token (the bound above), so two logits that are that close may change places.
 *   - Nothing is cut silently: a prompt that does not fit the context is an error, a completion that reaches it stops
 *     with STOP_LENGTH.
 *
 *     generator *g;
 *     TRY(generator_open(&g, &(generator_options){.source = "models/qwen", .max_sequences = 16}));
 *     completion *c;
 *     TRY(generator_run(g, prompts, n, &(sampling_options){.max_new = 64, ...}, NULL, &c, &report));
 *     completions_free(c, n);
 *     generator_close(g);
 *
 * generator_open has a program of its own; generator_attach generates inside a running training program, with the parameters
 * as they are at that moment: no copy, no reload. Everything else is the same code.
 */
#include "weights/weights.h"

typedef struct sampling_options {
    int64_t max_new;
    double temperature;        /* 0: greedy */
    int64_t top_k;             /* 0: all */
    double top_p;              /* 1: all */
    double min_p;              /* 0: all */
    double repetition_penalty; /* 1: none; as transformers: over prompt and completion */
    uint64_t seed;
    uint64_t first_prompt;    /* number of the first prompt, where these are a part of a longer list */
    const size_t *numbers;    /* of each prompt, where they are some of it; NULL: from first_prompt on */
    int64_t n_completions;    /* per prompt */
    const char *const *stops; /* strings that end a completion, left out of its text; they may begin inside a token */
    size_t n_stops;
    const int32_t *ends; /* tokens that end a completion beside the model's own end of text: the end of a turn */
    size_t n_ends;
    bool ignore_eos; /* continue after all of these */
} sampling_options;
/* Greedy, 128 tokens, one completion, nothing filtered. A struct of zeros is no request: top_p 0 would keep nothing. */
#define SAMPLING_DEFAULTS ((sampling_options){.max_new = 128, .top_p = 1, .repetition_penalty = 1, .n_completions = 1})

typedef enum stop_reason { STOP_EOS, STOP_STRING, STOP_LENGTH, STOP_COUNT } stop_reason;
const char *stop_reason_name(stop_reason r); /* "eos", "stop", "length" */

typedef struct completion {
    int32_t *tokens; /* without the prompt; with the end token where that ended it */
    size_t n_tokens;
    char *text;        /* decoded, specials left out, cut before a stop string; NUL after it */
    size_t text_bytes; /* a byte tokenizer's text may hold NUL and need not be UTF-8 */
    stop_reason stop;
    double log_probability; /* sum over its tokens, under the model itself: temperature 1, no filter, no penalty */
    float *
        log_probabilities; /* of each token, at the sampling temperature, no filter, no penalty; greedy: temperature 1 */
} completion;

typedef struct prompt {
    const int32_t *tokens;
    size_t n_tokens;
} prompt;

/* One of several adapters over the same base. */
typedef struct named_adapter {
    const char *name, *dir;
} named_adapter;
#define ADAPTER_BASE "base" /* the name of none of them */

typedef struct generator_options {
    const char *source;  /* Hugging Face directory, run directory, or checkpoint directory */
    const char *adapter; /* PEFT directory, or a run or checkpoint with adapters, over the model; NULL: none */
    const named_adapter *adapters; /* instead of it: several of the same rank, alpha and modules, for generator_use */
    size_t n_adapters;
    const char *tokenizer; /* NULL: the model's own */
    precision precision;   /* weights, activations and cache: fp32, bf16, fp16 */
    base_format weights; /* linear layers as codes (as model.base), the vocabulary's tables in int8; 0: by precision */
    int64_t max_sequences; /* slots of a decode step; 0: 16 */
    int64_t context;       /* most tokens of prompt and completion; 0: the model's positions, at most 4096 */
    int64_t page_size;     /* tokens per page; 0: 32 */
    int64_t prefill;       /* prompt tokens computed at once; 0: 256 */
    bool speculative;     /* the model's prediction heads draft tokens, which one pass verifies; greedy decoding only */
    int64_t draft_max;    /* ... at most so many; 0: all but one of the heads */
    uint64_t cache_bytes; /* most bytes for keys and values; 0: every slot can hold a full context */
    uint64_t device_limit; /* 0: what the machine has */
    int n_threads;
    bool bind;
    const char *trace_path;
    const backend *backend;
    gpu_options gpu;
} generator_options;

/* Receives what a completion's next tokens add to its text, in the order of the steps. Text is never taken back: a
 * part of a character, or a possible beginning of a stop string, is held. All pieces together are completion.text.
 * Either may be NULL. */
typedef struct generation_observer {
    void *context;
    void (*on_text)(void *context, size_t prompt, size_t index, const char *text, size_t n_bytes);
    void (*on_completion)(void *context, size_t prompt, size_t index, const completion *c); /* it has ended */
} generation_observer;

typedef struct generation_report {
    uint64_t prompt_tokens, new_tokens; /* over all completions: a prompt counts once for each */
    uint64_t shared_tokens;             /* prompt tokens that were not computed again because their pages were shared */
    uint64_t prefill_steps, decode_steps;
    uint64_t verified; /* speculative: sequences in all decode steps, each with a token of its own and drafts */
    uint64_t drafted, accepted; /* ... tokens that heads proposed there, and those that the first head chose too */
    double prefill_seconds, decode_seconds; /* with the sampling that follows */
    ledger memory;
} generation_report;

/* The plan alone: nothing is allocated and no weight is read. The model's name points into o->source. */
status generator_plan_compile(plan *out, const generator_options *o);

typedef struct generator generator;
/* ERR_FIT when parameters, cache and activations do not fit device_limit, with the smallest change that would. */
status generator_open(generator **out, const generator_options *o);
/* A program that also trains (generation_shape.beside_training), in which a generator is to run. All of it is borrowed until the
 * generator is closed. */
typedef struct generator_host {
    exec *exec;
    const plan *plan;
    const tokenizer *tokenizer;
    const char *tokenizer_name; /* for messages */
    const char *description;    /* of the model, as checkpoints have it: end of text, chat format */
} generator_host;
/* Allocates its host memory (generation_host_bytes); a run uses no other device memory than the plan's. Nothing of an earlier run
 * is needed, so sections of training may come between two runs, never inside one. Where parameters are gathered from
 * other ranks (ZeRO 3), all ranks must make the same runs: the same prompts and options. */
status generator_attach(generator **out, const generator_host *h);
/* Of a generator with several adapters: this one serves the runs that follow, with its tokenizer, chat format and ends of text.
 * ADAPTER_BASE: the model without any. The base stays where it is; the adapter is read again from its files. After an error
 * none is in use, and the next call may be for another one. ERR_INPUT for a name that there is not. */
status generator_use(generator *g, const char *name);
void generator_close(generator *g); /* of an attached one: what it was attached to stays */
uint64_t generation_host_bytes(const model_config *c, const generation_shape *g, int n_threads);
const plan *generator_plan(const generator *g);
int64_t generator_context(const generator *g);
/* What to do about a prompt that the context does not hold, for a message: more context only where the model has the
 * positions. */
#define CONTEXT_ADVICE 128
const char *generator_context_advice(const generator *g, char advice[CONTEXT_ADVICE]);
/* Encodes a text as in training: with what its tokenizer.json puts around one; the byte tokenizer adds nothing. Text
 * that is not UTF-8 is refused, except with the byte tokenizer. Appends as tokenizer_encode does. */
status generator_encode(const generator *g, const char *text, size_t n_bytes, int32_t **tokens, size_t *n,
                        size_t *capacity);
/* The model's chat format; CHAT_AUTO: as the run was trained if its checkpoint says, else as the tokenizer says; no
 * kwargs: those of the run. The caller closes it, before the generator. */
status generator_chat(const generator *g, const chat_options *wanted, chat **out);
status sampling_check(const sampling_options *s); /* ranges, named */
/* n_prompts * n_completions of them, those of one prompt together, in the order of the prompts. After an error there are
 * none. observer may be NULL. */
status generator_run(generator *g, const prompt *prompts, size_t n_prompts, const sampling_options *s,
                     const generation_observer *observer, completion **out, generation_report *report);
void completions_free(completion *list, size_t n);
/* Logits (fp32, vocabulary long) after each token of one sequence, computed in one prefill or token by token through the
 * cache: what the bound between the two is tested on. */
status generator_logits(generator *g, const int32_t *tokens, size_t n, bool token_by_token, float *out);
