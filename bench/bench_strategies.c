/* bench_strategies.c - what recompute and offload cost: processor seconds of a step, by strategy.
 *
 * One process, one trainer per strategy, and they take turns step by step, so that a machine that others use too slows all
 * of them alike. Counted is the processor time (user and system) of the whole process while a step runs: what others take is
 * not in it, and what streams do beside each other is in it twice. One compute thread. The first round warms up.
 *
 * The strategies must end with the same parameters, bit for bit; anything else is an error here.
 *
 *     bench_strategies [ROUNDS] [KEY=VALUE ...]      settings over those of the small GPT-2 that is measured */
#include "ralo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MAX_ROUNDS = 100, MAX_SETTINGS = 6 };

typedef struct strategy {
    const char *name;
    const char *settings[MAX_SETTINGS]; /* key, value, ... */
} strategy;

static const strategy STRATEGIES[] = {
    {"none", {"memory.recompute", "none"}},
    {"norms", {"memory.recompute", "norms"}},
    {"selective", {"memory.recompute", "selective"}},
    {"full", {"memory.recompute", "full"}},
    {"full; grads, states on host",
     {"memory.recompute", "full", "memory.offload.grads", "host", "memory.offload.states", "host"}},
};
enum { N = sizeof STRATEGIES / sizeof *STRATEGIES };

static const char *const BASE[] = {
    "model.preset",      "gpt2", "model.layers",    "6",      "model.hidden",    "384",  "model.heads",    "6",
    "model.kv_heads",    "6",    "model.ffn",       "1536",   "model.vocab",     "512",  "data.seq_len",   "256",
    "train.micro_batch", "4",    "train.steps",     "1000",   "train.eval_rows", "0",    "train.problems", "0",
    "run.threads",       "1",    "memory.strategy", "manual", "precision",       "fp32",
};

static void must(ralo_status rc) {
    if (rc == RALO_OK) return;
    fprintf(stderr, "error: %s\n", ralo_error_message());
    exit(1);
}

static ralo_trainer *open_trainer(const strategy *s, int argc, char **argv) {
    ralo_settings *settings;
    ralo_trainer *t;
    must(ralo_settings_new(&settings));
    for (size_t i = 0; i < sizeof BASE / sizeof *BASE; i += 2) must(ralo_settings_set(settings, BASE[i], BASE[i + 1]));
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) fprintf(stderr, "error: found '%s', expected KEY=VALUE\n", argv[i]), exit(2);
        *value = 0;
        must(ralo_settings_set(settings, argv[i], value + 1));
        *value = '=';
    }
    for (int i = 0; i < MAX_SETTINGS && s->settings[i]; i += 2)
        must(ralo_settings_set(settings, s->settings[i], s->settings[i + 1]));
    must(ralo_trainer_open(&t, settings));
    ralo_settings_free(settings);
    return t;
}

static double seconds(const struct timeval *t) { return (double)t->tv_sec + 1e-6 * (double)t->tv_usec; }
static double processor_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return seconds(&u.ru_utime) + seconds(&u.ru_stime);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 7;
    static double taken[N][MAX_ROUNDS], share[N][MAX_ROUNDS];
    ralo_trainer *trainers[N];
    uint64_t first_hash = 0;
    if (rounds < 1 || rounds > MAX_ROUNDS) return fprintf(stderr, "error: expected 1 to %d rounds\n", MAX_ROUNDS), 2;
    for (int i = 0; i < N; i++) trainers[i] = open_trainer(&STRATEGIES[i], argc, argv);
    for (int round = -1; round < rounds; round++)
        for (int i = 0; i < N; i++) {
            double start = processor_s();
            must(ralo_trainer_step(trainers[i], NULL));
            if (round >= 0) taken[i][round] = processor_s() - start;
        }
    for (int i = 0; i < N; i++)
        for (int r = 0; r < rounds; r++) share[i][r] = taken[i][r] / taken[0][r];
    printf("%-28s %10s %10s %12s %12s %9s\n", "strategy", "least s", "median s", "more, median", "activations",
           "device");
    for (int i = 0; i < N; i++) {
        uint64_t hash, activations, device;
        const ralo_plan *p = ralo_trainer_plan(trainers[i]);
        must(ralo_trainer_param_hash(trainers[i], &hash));
        must(ralo_plan_bytes(p, "device", "activations", &activations));
        must(ralo_plan_bytes(p, "device", NULL, &device));
        if (i == 0) first_hash = hash;
        if (hash != first_hash)
            return fprintf(stderr, "error: '%s' ends with other parameters\n", STRATEGIES[i].name), 1;
        qsort(taken[i], (size_t)rounds, sizeof taken[i][0], ascending);
        qsort(share[i], (size_t)rounds, sizeof share[i][0], ascending);
        printf("%-28s %10.3f %10.3f %10.1f %% %8.1f MiB %5.1f MiB\n", STRATEGIES[i].name, taken[i][0],
               taken[i][rounds / 2], 100 * (share[i][rounds / 2] - 1), (double)activations / (1 << 20),
               (double)device / (1 << 20));
    }
    for (int i = 0; i < N; i++) ralo_trainer_close(trainers[i]);
    return 0;
}
