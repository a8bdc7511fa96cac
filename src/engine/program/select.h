#pragma once
/* select.h - which tokens of a micro-batch are trained on, by their losses: one text for host and device.
 *
 * Device code includes it too, which program.h is not for.
 *
 * Rho-1: e = loss - loss of a reference for the same token; trained are tokens with e >= the (1 - share) quantile of e over the
 * valid tokens, linearly interpolated between neighbours. Ties at the threshold are all selected. The two neighbours are found
 * exactly, by the bits of the numbers, so both devices select the same tokens.
 *
 * Sequence ranks gather the losses of all their tokens, and each finds the threshold of the whole micro-batch. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SELECT_MATH static inline __host__ __device__
#else
#include <math.h>
#define SELECT_MATH static inline
#endif

typedef enum selection_kind {
    SELECTION_NONE,
    SELECTION_SIGNED,    /* loss - reference */
    SELECTION_ABSOLUTE,  /* |loss - reference| */
    SELECTION_DIFFICULT, /* reference */
    SELECTION_KIND_COUNT
} selection_kind;
typedef struct selection_options {
    selection_kind kind;
    double share;        /* of the valid tokens that are selected, in (0, 1] */
    bool first_head_all; /* the first head trains on all of them */
} selection_options;

/* Sums of each loss, behind those of all losses. */
enum { SELECT_COUNT, SELECT_EXCESS, SELECT_THRESHOLD, SELECT_MICROS, SELECT_SUM_COUNT };

SELECT_MATH float select_excess(selection_kind k, float loss, float reference) {
    if (k == SELECTION_DIFFICULT) return reference;
    float e = loss - reference;
    return k == SELECTION_ABSOLUTE && e < 0 ? -e : e;
}

/* Keys have the order of the numbers. */
SELECT_MATH uint32_t select_key(float e) {
    uint32_t bits;
    memcpy(&bits, &e, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
SELECT_MATH float select_number(uint32_t key) {
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float e;
    memcpy(&e, &bits, sizeof e);
    return e;
}

/* The tokens of a micro-batch as sequence ranks have gathered them: those of one rank behind the other, of every row the two runs
 * that sequence_token of program.h gives it. */
typedef struct select_tokens {
    int64_t own;        /* tokens of a rank */
    int64_t seq_len;    /* ... of a row */
    int n_ranks, index; /* this rank's place among them */
} select_tokens;

SELECT_MATH int64_t select_first_own(const select_tokens *s) { return s->own * s->index; }

/* Where the token that stands `ahead` places behind token i in its row is. */
SELECT_MATH int64_t select_ahead(const select_tokens *s, int64_t i, int ahead) {
    if (s->n_ranks == 1 || ahead == 0) return i + ahead;
    int64_t run = s->seq_len / 2, rank = i / s->own, row = i % s->own / s->seq_len, at = i % s->seq_len;
    int64_t token = (at < run ? rank * run : (2 * s->n_ranks - 2 - rank) * run) + at + ahead, chunk = token / run;
    bool front = chunk < s->n_ranks;
    rank = front ? chunk : 2 * s->n_ranks - 1 - chunk;
    return rank * s->own + row * s->seq_len + (front ? 0 : run) + token % run;
}

/* The quantile of n numbers lies between those of rank *below and the next, *part of the way. A rank within 1e-9 of a whole one is
 * that one: 1 - 0.7 is no exact 0.3. */
SELECT_MATH void select_rank(double share, int64_t n, int64_t *below, double *part) {
    double at = (1 - share) * (double)(n - 1), whole = floor(at + 0.5);
    if (fabs(at - whole) < 1e-9 * (double)n) at = whole;
    if (at < 0) at = 0;
    *below = (int64_t)floor(at);
    *part = at - (double)*below;
}
SELECT_MATH double select_threshold(uint32_t below, uint32_t above, double part) {
    double a = select_number(below), b = select_number(above);
    return part > 0 ? a + (b - a) * part : a;
}
