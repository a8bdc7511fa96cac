#pragma once
/* groups.h - private to cli: the prompts of `generate` by the adapter that answers them.
 *
 *     groups a;
 *     TRY(groups_make(&a, &q, l));          // one group, without a name, where no adapter has one
 *     TRY_GOTO(rc, groups_run(&a, g, l, &observer), done);
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
typedef struct groups {
    group *items;
    size_t n;
    generation_report report; /* of all */
    uint64_t n_skipped;
    bool streams;     /* there was one completion, and the observer has shown it */
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
/* The observer sees a single completion, if that is all there is and no JSON is asked for. */
status groups_run(groups *a, generator *g, command_line *l, const generation_observer *observer);
answer *groups_answers(const groups *a, int64_t n_each, size_t *n);
void groups_fini(groups *a);
