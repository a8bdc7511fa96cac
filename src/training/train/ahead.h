#pragma once
/* ahead.h - private to train: what the heads of multi-token prediction predict, and how their losses are divided.
 *
 * Head k at position t predicts token t + k, inside the document of t and only where the data trains on that token: where
 * head 1 at t + k - 1 does. So the targets of every head follow from those of the data.
 *
 * L is the mean over heads of L_k, and L_k divides by the valid targets c_k of head k in the whole step. The gradients of heads
 * meet in the trunk, so each must be divided before that, when only the first micro-batch is known to the program. Hence the
 * task counts first (ahead_count), and head k weighs its tokens by c_1 / (H c_k) with H the heads that have any: the program
 * divides the sum of all by c_1 at the end, as it does with one loss. With one head that weight is 1. */
#include "train/train.h"

/* targets, doc_start: of one row of T tokens, as the data gives them; k from 1. -1: none. */
static inline int32_t ahead_target(const int32_t *targets, const int32_t *doc_start, int64_t T, int64_t t, int64_t k) {
    int64_t at = t + k - 1;
    return at < T && doc_start[at] == doc_start[t] ? targets[at] : -1;
}
/* Adds the valid targets of a row to those of each of n heads. */
void ahead_count(const int32_t *targets, const int32_t *doc_start, int64_t T, int n, uint64_t *counts);
/* What each of n heads multiplies its weights by; 0 of one without targets. */
void ahead_scales(const uint64_t *counts, int n, float *scales);
