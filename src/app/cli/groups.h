#pragma once
/* groups.h - private to cli: the prompts of `generate` by the adapter that answers them.
 *
 *     groups a;
 *     TRY(groups_make(&a, &q, l));          // one group, without a name, where no adapter has one
 *     TRY_GOTO(rc, groups_run(&a, g, l, &observer), done); // answers are told as they end
 *     answer *all = groups_answers(&a, &n); // in the order of the prompts; the caller frees
 *     groups_fini(&a); */
#include "cli/questions.h"

typedef struct group {
    const char *adapter; /* NULL: there is nothing to choose */
    questions q;         /* its items alone; what they point to is the list's that it was made from */
    asked asked;
    completion *completions;
    size_t n_completions, n_cut; /* n_cut: that --max-new or the context ended */
} group;
typedef struct ended_answer {
    size_t prompt;         /* counted from 0, without those that were left out */
    int64_t index, n_each; /* of so many of that prompt */
    const char *adapter;
    const completion *completion;
} ended_answer;
/* Of a single completion, if that is all there is, each piece of its text; of several each that has ended, in the order of the prompts, as
 * soon as all before it have. */
typedef struct groups_observer {
    void (*on_text)(const char *text, size_t n_bytes);
    void (*on_answer)(const ended_answer *a);
} groups_observer;
/* Answers that wait until it is their turn to be told. next: the first that is not told yet, behind n_left_out numbers without any. */
typedef struct answer_order {
    ended_answer *waiting; /* n_numbers * n_each; the completion is NULL until it has ended */
    bool *left_out;        /* of each number: its prompt could not be encoded */
    size_t n_numbers, n_each, next, n_left_out;
} answer_order;
typedef struct groups {
    group *items;
    size_t n;
    answer_order order;
    generation_report report; /* of all */
    uint64_t n_skipped;
    bool streams;     /* there was one completion, and the observer was told its pieces */
    chat_format chat; /* of the first group whose prompts are written as turns; CHAT_AUTO: none is */
} groups;
typedef struct answer {
    const question *question;
    prompt prompt;
    const completion *completions; /* sampling.n_completions of them */
    const char *adapter;
} answer;

/* The names and directories of --adapter, into l->generation. */
status adapters_from_flags(command_line *l);
status groups_make(groups *out, const questions *q, const command_line *l);
/* observer may be NULL. */
status groups_run(groups *a, generator *g, command_line *l, const groups_observer *observer);
answer *groups_answers(const groups *a, int64_t n_each, size_t *n);
void groups_fini(groups *a);
