#pragma once
/* rank_runs.h - the same work by one rank and by all that share it: gradients of a micro-batch, losses and norms of a run.
 *
 *     training t = {.preset = "test-gpt2", .threads = 1};
 *     curve alone;
 *     curve_alone(&t, &alone);
 *     curve_shared(&t, SETTINGS("parallel.tensor=2"), &alone, 1e-4);
 *
 * Sums over ranks are other orders of the same sums, so numbers agree to rounding. Every rank must use exactly the bytes that
 * were planned for it. What does not hold is printed and counted in n_failed. */
#include "rank_check.h"
#include "training.h"

#define FAIL(...)                                       \
    do {                                                \
        fprintf(stderr, "rank %d: ", comm_rank(ranks)); \
        fprintf(stderr, __VA_ARGS__);                   \
        fputc('\n', stderr);                            \
        n_failed++;                                     \
    } while (0)

enum { CURVE_STEPS = 20 };
typedef struct curve {
    double loss[CURVE_STEPS], norm[CURVE_STEPS], eval;
} curve;

/* By the first rank, told to the others. */
void curve_alone(const training *t, curve *out);
/* With these settings more. Losses within the bound; norms, as a share, within ten times it. */
void curve_shared(const training *t, const char *const *more, const curve *alone, double bound);
/* Of one micro-batch with documents, with these settings more on the mesh, without and with weights of tokens: each rank's part
 * of every gradient has a cosine over 0.99999 with the same elements of one rank's. */
void gradients_shared(const training *t, const char *const *more);

/* The same run by the first rank alone, whatever its comm says; told to the others. */
void run_alone(training t, train_result *out);
/* By all ranks, or by the first alone, once all have come here; the hash of its parameters. */
uint64_t run_in_turn(training t, bool alone);
/* Counts a failure where a rank did not use exactly the bytes that were planned for it, or a step allocated. */
void check_as_planned(const train_result *r, const char *name);

char *shared_dir(void);            /* a new one, the same on every rank */
void shared_dir_remove(char *dir); /* when all ranks are done with it; frees the name */
