#pragma once
/* update.h - how ops over all parameters (sums, norm, AdamW) are cut into tasks.
 *
 * Into long ones, because the memory controller likes few long streams: 4 Ki elements reach three quarters of the bandwidth
 * that 64 Ki do. Into as many as fill every round of all threads: of 113 tasks on 16 threads the eighth round would have one.
 * And taken from as many places of the tensor as there are threads: side by side they would all be in the same few pages,
 * and where a host has memory of two kinds, in one of them, while the other has nothing to do. */
#include "backend/cpu/cpu.h"

enum { UPDATE_TASK_MOST = 1 << 16, UPDATE_TASK_LEAST = 1 << 13 };
_Static_assert(UPDATE_TASK_LEAST % NORM_BLOCK == 0, "a task begins with a block of the norm");
typedef struct update_cut {
    size_t n, task_length;
    int64_t n_tasks;
    int n_threads;
} update_cut;
typedef struct update_range {
    size_t begin, end;
} update_range;

static inline update_cut update_cut_for(size_t n, int n_threads) {
    int64_t rounds = MAX(divide_up((int64_t)n, (int64_t)n_threads * UPDATE_TASK_MOST), (int64_t)1);
    int64_t even = round_up(divide_up((int64_t)n, n_threads * rounds), NORM_BLOCK);
    int64_t length = MAX(even, (int64_t)UPDATE_TASK_LEAST);
    return (update_cut){
        .n = n, .task_length = (size_t)length, .n_tasks = divide_up((int64_t)n, length), .n_threads = n_threads};
}

static inline update_range update_task_range(const update_cut *u, int64_t task) {
    size_t begin = (size_t)task_spread(task, u->n_tasks, u->n_threads) * u->task_length;
    return (update_range){begin, MIN(begin + u->task_length, u->n)};
}
