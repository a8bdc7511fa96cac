#pragma once
/* solutions.h - private to data: solutions of problems, correct and wrong ones, and the pairs that are made of them.
 *
 * A problem is a task_id with a prompt: records of two problems are never compared, even where two files number their problems
 * alike. A pair is a correct and a wrong solution of one problem, and none is made twice: solutions that are equal count once.
 * A problem gives at most `pairs_per_problem`, first of solutions of about the same length, one of each length in turn, so that
 * length does not tell which one is correct, and each solution about as often. With `max_pairs` every difficulty and length
 * gives as many as any other, as far as it has them. All of it follows from the seed and the solutions alone. */
#include "data/store.h"

typedef struct solution_keys {
    bool is_correct;
    uint64_t task, difficulty; /* hashes; difficulty 0: the record has none */
} solution_keys;
/* The keys of a record beside its prompt and its solution. */
status solution_keys_read(const json_t *object, const record_options *o, const char *path, uint64_t line,
                          solution_keys *out);
/* Is this, of whatever shape, a record to imitate: does it not say that it is wrong? */
status solution_may_imitate(const json_t *object, const record_options *o, const char *path, uint64_t line, bool *out);

/* The solutions of a file, until all are known. */
typedef struct solution_set {
    token_store store; /* in memory */
    store_builder builder;
    struct solution *items; /* by document of the store */
    size_t capacity;
} solution_set;
status solution_set_open(solution_set *s, uint32_t width);
void solution_set_close(solution_set *s);
status solution_set_add(solution_set *s, const chat_tokens *t, const solution_keys *k, uint64_t line);
/* Makes the pairs and appends them to `out`, whose store gets the counts. No pair at all is an error. name: of the file. */
status solution_set_write(solution_set *s, const data_options *o, const char *name, store_builder *out);

/* ---- builtin_solutions.c ---- */
#define BUILTIN_SOLUTIONS "builtin:solutions"
/* The store of builtin:solutions: as if a file had been read. */
status builtin_solutions_make(const data_options *o, token_store *out);
uint64_t builtin_solutions_bytes(const data_options *o); /* of its rows, at most */
/* See dataset_problem and dataset_answer. */
bool builtin_solutions_problem(uint64_t index, int64_t difficulty, strbuf *prompt, strbuf *answer);
bool builtin_solutions_answer(uint64_t index, int64_t difficulty, const char *begun, size_t n_begun, strbuf *answer);
/* How many of its examples, of n_each documents, come before the first one of a held-out problem. */
uint64_t builtin_solutions_split(const token_store *s, uint64_t n_each, int64_t difficulty);
