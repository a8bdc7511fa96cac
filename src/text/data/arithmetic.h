#pragma once
/* arithmetic.h - private to data: the problems of builtin:arithmetic (generate.c), for what else is made of them. */
#include "data/source.h"

enum { DIFFICULTY_MAX = 6 };
typedef struct problem {
    int32_t a, b;
    char op;
} problem;

typedef struct arithmetic {
    source base;
    int digits; /* of an operand; an answer has one more */
    int n_operators;
    int64_t operand_end;   /* 10^digits */
    int64_t document_size; /* tokens, with EOS */
    uint64_t key[2];       /* per split */
    uint64_t held_out_key; /* the same for every seed */
    problem *held_out;     /* the first ones in a scattered order: evaluation draws from these */
    size_t n_held_out;
} arithmetic;

uint64_t builtin_split_key(uint64_t seed, const char *what, split which);
/* Is the difficulty one that there is, and does a row hold n documents of it? */
status arithmetic_check(const data_options *o, int64_t n_documents);
void arithmetic_init(arithmetic *s, const source_kind *kind, const data_options *o);
void arithmetic_close(source *base); /* frees the source; the arithmetic is its first member */
/* A problem of a split; counts the draws it took. */
problem arithmetic_draw(const arithmetic *s, split which, uint64_t index, uint64_t *draw);
int64_t arithmetic_answer(problem q);
/* Writes "73+54=280" with this answer, right or wrong, and returns where it begins; it ends at `*end`. */
int arithmetic_text(const arithmetic *s, problem q, int64_t answer, char text[32], int *end);
/* The same as a document at a place of a row: document_size tokens, trained on the answer and its EOS. */
void arithmetic_put(const arithmetic *s, problem q, int64_t answer, int64_t at, const data_row *out);
/* Different problems of a split in a scattered order, the same for every seed: all of them, but at most `most`. The caller frees. */
size_t arithmetic_collect(const arithmetic *s, split which, size_t most, problem **out);
bool arithmetic_problem(const source *base, uint64_t index, strbuf *prompt, strbuf *answer);
