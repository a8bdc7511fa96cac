/* clock.c - monotonic time. Never the time of day: that one jumps. */
#include "base/base.h"

#include <time.h>

uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double clock_s(void) { return (double)clock_ns() * 1e-9; }
