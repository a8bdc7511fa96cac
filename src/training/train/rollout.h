#pragma once
/* rollout.h - private to train: completions of prompts, their rewards and advantages, and their places in rows.
 *
 *     TRY(rollout_open(&r, host));
 *     TRY(rollout_attach(&r, description));
 *     TRY(rollout_draw(&r, position, step));       // prompts, completions, rewards
 *     TRY(rollout_pack(&r));                        // places in rows; micro-batches
 *     TRY(rollout_compare(&r));                     // KL to the reference, where rewards have it
 *     TRY(rollout_weigh(&r));                       // advantages, over all ranks
 *     TRY(rollout_write(&r, micro, true, to));      // inputs of a micro-batch
 *
 * Each data rank has prompts of its own; with ZeRO 3, where every run of a section gathers parameters, all ranks generate the
 * completions of all prompts, and each trains on its own. Everything that depends on other ranks is exchanged here. */
#include "data/prompts.h"
#include "train/advantage.h"
#include "train/task.h"

/* One completion. Numbers that other ranks need are in rollout_numbers. */
typedef struct rollout_item {
    uint64_t prompt; /* position in the walk over prompts */
    completion c;
    float *old;         /* minus log-probability by the first update, of each token; NAN before it */
    double *advantages; /* of each token */
    double *kl;         /* log-probability less that of the reference, of each token; where rewards have it */
    bool is_masked;     /* reached its limit, and is not trained on */
    int64_t row, at;    /* its place: row of this rank's step, first position; row -1: none */
    int32_t segment;    /* number in its row */
} rollout_item;

/* What all ranks learn of a completion. */
typedef struct rollout_numbers {
    double reward;     /* weighted sum, clipped; NAN: unscorable */
    double total;      /* ... less beta times the KL, where rewards have it */
    double kl, length; /* nats of the whole completion; tokens */
    double is_cut;     /* 1: it reached its limit */
    double scores[16]; /* of each reward */
} rollout_numbers;
enum { ROLLOUT_SCORES = ARRAY_LENGTH(((rollout_numbers *)0)->scores) };

typedef struct rollout_times {
    double rollout_s, reward_s;
} rollout_times;

/* What went wrong in the rewards of a rollout: on one rank, then on all. */
typedef struct rollout_failures {
    uint64_t n_failed, n_restarts;
    int rank;
    char first[sizeof((reward_report *)0)->first_failure];
} rollout_failures;

typedef struct rollout {
    const task_host *host;
    const rl_options *o;
    const rl_loss *loss;
    double beta;
    const prompt_set *prompts;
    generator *g;
    rewards *rewards;
    sampling_options sampling;
    int32_t end; /* token */
    int n_ranks, rank;
    bool all_generate;     /* ZeRO 3 */
    size_t per_rank, k, n; /* prompts and completions of this rank */
    rollout_item *items;   /* (n) */
    rollout_numbers *all;  /* (n_ranks * n): of all ranks, in their order */
    uint8_t *needed;       /* (n_ranks * per_rank): prompts that are to be drawn */
    uint64_t next_position;
    int64_t n_rows, n_micros; /* of this rank; of all, the most */
    bool is_empty;            /* no rank has a token to train on, and this one says so */
    reward_report report;     /* of the last scoring */
    rollout_failures failures;
    rollout_times times;
    uint64_t new_tokens; /* that this rank has generated */
    /* one micro-batch */
    int32_t *tokens, *targets, *doc_start, *segments;
    float *advantages, *old, *rollout, *losses, *reference;
    int64_t *filled;     /* tokens of each row, while they are packed ... */
    int32_t *n_segments; /* ... and completions */
} rollout;

/* Host memory of a rank: of all completions, and per row of a micro-batch. */
uint64_t rollout_host_bytes(const rl_options *o, int64_t seq_len, int n_ranks);
uint64_t rollout_row_bytes(int64_t seq_len);
int64_t rollout_max_completion(const rl_options *o, int64_t seq_len);
int64_t rollout_slots(const rl_options *o, bool discrete); /* sequences at once */
double rollout_beta(const rl_options *o);

/* Closed with rollout_close also after an error. h is borrowed until then. */
status rollout_open(rollout *r, const task_host *h);
status rollout_attach(rollout *r, const char *description); /* the generator, once parameters are there */
void rollout_close(rollout *r);
status rollout_draw(rollout *r, uint64_t position, int64_t step);
status rollout_pack(rollout *r);
bool rollout_masks_cut(const rollout *r);  /* completions that reached their limit are not trained on */
int64_t rollout_redraws(const rollout *r); /* of groups whose rewards are equal, at most */
status rollout_compare(rollout *r);
status rollout_weigh(rollout *r);
/* Micro-batch `micro` of this rank. is_first: of the updates of this rollout. */
status rollout_write(rollout *r, int64_t micro, bool is_first, const micro_inputs *to);
/* After SECTION_MICRO of a first update: its losses are what later updates compare with. */
void rollout_keep(rollout *r, int64_t micro);
static inline rollout_numbers *rollout_own(const rollout *r) { return r->all + (size_t)r->rank * r->n; } /* (n) */
/* Rewards of completions, scores (n, rewards_count); totals: weighted and clipped. */
typedef struct rollout_scored {
    const uint64_t *positions; /* of their prompts */
    split which;
    const completion *const *completions;
    size_t n;
} rollout_scored;
status rollout_score(rollout *r, const rollout_scored *s, double *scores, double *totals);
/* What went wrong in the last rollout_score, which was of an evaluation. */
void rollout_say_eval_failures(const rollout *r, int64_t step);
