#pragma once
/* reward.h - how good a completion is: built-in rules, a program, or an HTTP endpoint, added with weights.
 *
 * A reward of a completion is a number, or none: NAN, unscorable. Everything that comes from outside (a program, a server) is
 * hostile: it may crash, hang, answer late, answer garbage or NaN; each is counted and said, and is unscorable or an error that
 * ends the run, as reward_options.on_error has it. No process outlives rewards_close, nor its parent.
 *
 *     rewards *r;
 *     TRY(rewards_open(&r, &options));
 *     TRY(rewards_score(r, items, n, scores, &report));      scores[i * rewards_count(r) + f]
 *     rewards_close(r);
 *
 * One list of kinds: rewards.def. Scores depend on the items alone, never on the number of workers or the order in which they
 * answer. One call at a time. */
#include "base/base.h"
#include "format/format.h"

typedef struct rewards rewards;

typedef enum reward_on_error { REWARD_UNSCORABLE, REWARD_STOP } reward_on_error;

typedef struct reward_options {
    const char *list;    /* names with weights: "numeric", or "numeric:1, format:0.2, program:0.5" */
    const char *answer;  /* the column that holds the right answer */
    double tolerance;    /* numeric: relative, of the right answer */
    const char *pattern; /* regex, format: what a completion has to match; NULL or "": format has a usual one */
    int64_t length;      /* length: the tokens that a completion may have for nothing; 0: not given */
    const char *program; /* program: a command line for /bin/sh, kept running, one JSON line in, one out */
    const char *url;     /* http: where items are posted, in batches */
    int64_t workers;     /* program: how many of it */
    double timeout;      /* program, http: seconds for one answer */
    int64_t retries;     /* http; program: restarts in a row before the run ends */
    reward_on_error on_error;
} reward_options;

/* Borrowed for the call. Text need not be UTF-8 where the tokenizer's is bytes. */
typedef struct reward_item {
    span prompt, completion;
    int64_t n_tokens;      /* of the completion */
    bool truncated;        /* it reached its limit instead of ending */
    const json_t *columns; /* of the record that the prompt came from; an object, or NULL */
} reward_item;

/* What went wrong in one call, over all programs and servers. */
typedef struct reward_report {
    uint64_t n_unscorable; /* completions without a number from at least one reward */
    /* answers that were no number and not null: garbage, NaN, late, lost in a crash; and right answers of records that are none */
    uint64_t n_failed;
    uint64_t n_restarts;
    double seconds;
    char first_failure[256]; /* in words; empty: none */
    char first_restart[256]; /* why a program was started again, where it may have lost nothing */
} reward_report;

/* The address of a reward server, without a login: `from` (reward.url, which is saved in config.yaml) stands in
 * messages, and no message repeats what may be a secret. */
status reward_url_check(const char *url, const char *from);
status rewards_open(rewards **out, const reward_options *o); /* checks everything that can be checked before a run */
void rewards_close(rewards *r);                              /* NULL is fine; stops all programs and waits for them */
size_t rewards_count(const rewards *r);
const char *rewards_name(const rewards *r, size_t f); /* "numeric": in metrics rewards/<name>/mean */
double rewards_weight(const rewards *r, size_t f);
/* Scores of n items by every reward, NAN where there is none; report may be NULL. */
status rewards_score(rewards *r, const reward_item *items, size_t n, double *scores, reward_report *report);
/* Sum of weight times score; NAN if one of them is. */
double rewards_total(const rewards *r, const double *scores);
extern const char reward_list_help[]; /* of the setting reward.list: every kind of rewards.def with what it is */

/* The answer inside a text that reasons. What marks an answer, the last one in the text counting:
 *     #### 42            the rest of the line (gsm8k)
 *     \boxed{42}         with the braces that belong together
 *     <answer>42</answer>
 *     the answer is 42   the rest of the sentence or line; also "Answer: 42"
 * Inside of it is searched again ("<answer>The answer is 42.</answer>"). Without a mark the whole text is the answer.
 * Given without spaces, *, $, ` around it and without a full stop after it. */
span answer_extract(span text, bool *is_marked);
