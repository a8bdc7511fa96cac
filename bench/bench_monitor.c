/* bench_monitor.c - what watching costs a step: blocks of steps in turn with and without it, in one run.
 *
 *     build/bench/bench_monitor [SECONDS]     default 60
 *
 * Three kinds: a trainer alone; with metrics.jsonl (track.c); with that, the watch over losses, and monitor.c.
 * Counted is processor time of the whole process, the writer's thread included: what other programs take is not in it. Medians over
 * blocks of 20 steps are compared. The sampler adds a line per second in all kinds of blocks: what that takes is measured apart, while
 * nothing else runs. */
#include "settings/settings.h"
#include "track/track.h"

#include <stdlib.h>
#include <time.h>

enum { KIND_ALONE, KIND_METRICS, KIND_WATCHED, KINDS };
enum { BLOCK = 20, BLOCKS_MOST = 1 << 16, IDLE_S = 5 };

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct times {
    double *ms;
    size_t n;
} times;

static double quantile(times *t, double q) {
    qsort(t->ms, t->n, sizeof *t->ms, by_size);
    return t->ms[(size_t)(q * (double)(t->n - 1))];
}

static double used_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static status run_block(trainer *t, track *seen, monitor *m, times *out) {
    double begin = used_ms();
    for (int i = 0; i < BLOCK; i++) {
        train_step_report r;
        TRY(trainer_step(t, &r));
        if (seen) track_step(seen, &r, r.device_bytes);
        if (m) monitor_step(m, &r);
    }
    if (seen) track_sync(seen);
    out->ms[out->n++] = (used_ms() - begin) / BLOCK;
    return OK;
}

static status measure(job *j, double seconds, times kinds[KINDS]) {
    trainer *t = NULL;
    track *seen[KINDS] = {NULL};
    char dir[512];
    status rc = OK;
    double begin = clock_s();
    TRY(trainer_open(&t, &j->request, &j->plan, j->data, NULL));
    for (int k = KIND_METRICS; k < KINDS; k++) { /* each with a file of its own */
        snprintf(dir, sizeof dir, "%s/%d", j->request.run_dir, k);
        TRY_GOTO(rc,
                 track_open(&seen[k],
                            &(track_options){.run_dir = dir, .spikes = k == KIND_WATCHED ? 4 : 0, .log_every = 10}),
                 done);
    }
    monitor *m = monitor_open(&(monitor_options){
        .request = &j->request, .plan = &j->plan, .data = j->data, .version = "bench", .has_memory = true});
    monitor_start(m, 0);
    times warm = {mem_alloc(BLOCK * sizeof(double)), 0};
    rc = run_block(t, NULL, m, &warm);
    free(warm.ms);
    double before = used_ms();
    nanosleep(&(struct timespec){.tv_sec = IDLE_S}, NULL);
    printf("sampler: %.3f ms of processor time per second\n", (used_ms() - before) / IDLE_S);
    for (int turn = 0; rc == OK && clock_s() - begin < seconds && kinds[0].n + 1 < BLOCKS_MOST; turn++)
        for (int i = 0; i < KINDS && rc == OK; i++) { /* every kind comes first as often as the others */
            int k = (turn + i) % KINDS;
            rc = run_block(t, seen[k], k == KIND_WATCHED ? m : NULL, &kinds[k]);
        }
    monitor_close(m, rc);
done:
    for (int k = 0; k < KINDS; k++) track_close(seen[k]);
    trainer_close(t);
    return rc;
}

static status run(double seconds, const char *dir) {
    static const char *const settings[] = {"model.preset=test-llama", "data.source=builtin:grammar",
                                           "data.seq_len=64",         "train.micro_batch=4",
                                           "train.steps=100000000",   "run.threads=1",
                                           "run.bind=false",          "run.device=cpu",
                                           "train.eval_rows=0",       "train.problems=0"};
    config c;
    job j;
    times kinds[KINDS];
    for (int k = 0; k < KINDS; k++) kinds[k] = (times){mem_alloc(BLOCKS_MOST * sizeof(double)), 0};
    config_init(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++) TRY(config_set(&c, settings[i], "bench"));
    config_resolve(&c);
    TRY(job_init(&j, &c, NULL));
    TRY(job_open(&j));
    TRY(job_check(&j));
    TRY(job_use_dir(&j, dir));
    TRY(measure(&j, seconds, kinds));
    printf("%zu blocks of %d steps of each kind\n", kinds[0].n, (int)BLOCK);
    static const double at[] = {0.1, 0.25, 0.5, 0.75};
    for (size_t i = 0; i < ARRAY_LENGTH(at); i++) {
        double alone = quantile(&kinds[KIND_ALONE], at[i]), metrics = quantile(&kinds[KIND_METRICS], at[i]),
               all = quantile(&kinds[KIND_WATCHED], at[i]);
        printf(
            "step at quantile %.2f: %.4f ms alone, %.4f ms with metrics.jsonl, %.4f ms with all; all / metrics %.4f\n",
            at[i], alone, metrics, all, all / metrics);
    }
    for (int k = 0; k < KINDS; k++) free(kinds[k].ms);
    job_close(&j);
    config_fini(&c);
    return OK;
}

int main(int argc, char **argv) {
    char dir[] = "/tmp/ralo_bench_monitor_XXXXXX", command[64];
    if (!mkdtemp(dir)) return 1;
    status rc = run(argc > 1 ? atof(argv[1]) : 60, dir);
    if (rc != OK) error_print(stderr);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) fprintf(stderr, "%s is left\n", dir);
    return rc != OK;
}
