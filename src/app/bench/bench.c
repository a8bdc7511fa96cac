/* bench.c - the list of experiments. */
#include "bench/rloo.h"

#include <signal.h>
#include <string.h>

static const bench benches[] = {
    {"rloo", "memory of RLOO for k completions of a long prompt: a common implementation, cut prompts, ralo",
     bench_rloo},
};

static volatile sig_atomic_t interrupt_requested;

void bench_interrupt(void) {
    interrupt_requested = 1;
    train_interrupt();
}

bool bench_is_interrupted(void) { return interrupt_requested; }

const bench *bench_at(size_t i) { return i < ARRAY_LENGTH(benches) ? &benches[i] : NULL; }

const bench *bench_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(benches); i++)
        if (strcmp(benches[i].name, name) == 0) return &benches[i];
    return NULL;
}
