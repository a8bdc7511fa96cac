#pragma once
/* kind.h - private to reward: one kind of reward as a small table, and the scores that it fills. */
#include "reward/reward.h"

/* The scores of one reward in one call. */
typedef struct scoring {
    const reward_item *items;
    size_t n;
    double *scores; /* of item i: scores[i * stride]; NAN before */
    size_t stride;
    reward_on_error on_error;
    const char *name; /* of the reward, for messages */
    reward_report *report;
} scoring;

typedef struct reward_kind {
    status (*open)(void **self, const reward_options *o);
    status (*score)(void *self, scoring *s);
    void (*close)(void *self);
} reward_kind;

#define REWARD(id, name, help) extern const reward_kind reward_kind_##id;
#include "reward/rewards.def"
#undef REWARD

static inline void scoring_put(scoring *s, size_t i, double score) { s->scores[i * s->stride] = score; }
/* Item i has no score, and this is why: counted and kept, or an error, as on_error has it. */
status scoring_fail(scoring *s, size_t i, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Something went wrong that belongs to no item of this call: kept for the report, or an error, as on_error has it. */
status scoring_note(scoring *s, const char *why);

/* The value in the column of the right answer: a string or a number; NULL: null, or something else, which is told. A record
 * without the column is an error. */
status scoring_answer(scoring *s, size_t i, const char *column, const json_t **out);

/* What programs and servers get: {"prompt", "completion", "n_tokens", "truncated", columns}; a column of one of these names is called
 * data_<name>. Bytes that are not UTF-8 become U+FFFD. */
json_t *item_json(const reward_item *item);
