/* ahead.c - counts of the targets of each head, and the scales that follow from them. */
#include "train/ahead.h"

void ahead_count(const int32_t *targets, const int32_t *doc_start, int64_t T, int n, uint64_t *counts) {
    for (int k = 1; k <= n; k++)
        for (int64_t t = 0; t < T; t++) counts[k - 1] += ahead_target(targets, doc_start, T, t, k) >= 0;
}

void ahead_scales(const uint64_t *counts, int n, float *scales) {
    int with_targets = 0;
    for (int k = 0; k < n; k++) with_targets += counts[k] > 0;
    for (int k = 0; k < n; k++)
        scales[k] = counts[k] ? (float)((double)counts[0] / ((double)with_targets * (double)counts[k])) : 0;
}
