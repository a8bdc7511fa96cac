#pragma once
/* training.h - one whole training run in a few words: settings -> plan, verified after every pass -> data -> train_run.
 *
 *     train_result r;
 *     char *dir = training_dir();
 *     training t = {.preset = "test-llama", .precision = PRECISION_BF16, .steps = 5, .dir = dir};
 *     training_must(training_run(&t, &r));
 *     training_dir_remove(dir);
 *
 * The request is made from settings by the very function the command line uses, so what is planned for the host and for
 * checkpoints is what `ralo train` plans. Where memory.place names cuda the plan is one for a device beside the host's cores,
 * whatever plays that device. */
#include "cli/cli.h"

/* RALO_MATRIX=large (`make matrix`): every cell of a matrix; else a part that meets every choice. */
bool matrix_is_large(void);

typedef struct training {
    const char *preset, *source; /* NULL: test-llama, builtin:grammar */
    precision precision;
    int64_t seq_len, micro_batch, accumulation, steps; /* 0: 24, 2, 1, 4 */
    int threads;                                       /* 0: 2 */
    const char *const *more; /* more settings as --set takes them, NULL at the end; only these ask for evaluation */
    const char *dir;         /* run directory; NULL: nothing is saved */
    const char *resume;      /* NULL, "auto" or a checkpoint directory */
    const backend *backend;  /* NULL: cpu */
    const train_observer *observer;
    comm *comm;       /* NULL: one rank */
    const task *task; /* NULL: as train.task says */
} training;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* everything takes thirty times as long: long tests do less of the same */
#else
#define SANITIZED false
#endif
#define SETTINGS(...) ((const char *const[]){__VA_ARGS__, NULL})
/* One list of settings behind the other; either may be NULL. */
enum { SETTINGS_MOST = 24 };
void settings_join(const char *out[SETTINGS_MOST], const char *const *a, const char *const *b);

/* The losses of a run: keep_step_loss as on_step of its observer, with one of these as context. */
typedef struct step_losses {
    double of[32];
    int n;
} step_losses;
void keep_step_loss(void *context, const train_step_report *r);

extern const char *const training_presets[4]; /* one tiny model per family */

/* The request that these settings make; `c` keeps its strings and is closed with config_fini. */
status training_request(const training *t, config *c, train_request *out);
/* A request and its plan, for tests that look into programs. */
typedef struct compiled {
    config c;
    train_request r;
    plan p;
} compiled;
void compiled_request(compiled *k, const training *t); /* a test may change k->r.plan before ... */
void compiled_plan(compiled *k);                       /* ... its plan, verified once more at the end */
void compiled_open(compiled *k, const training *t);    /* both */
void compiled_close(compiled *k);
/* out->host_planned and out->memory.planned are the plan's. */
status training_run(const training *t, train_result *out);
/* Every tier used exactly the bytes that were planned for it, and no step allocated. */
const char *ledger_problem(const ledger *l);                       /* NULL: so it is; good until the next call */
void training_as_planned(const train_result *r, const char *name); /* fails the test where it is not so */

char *training_dir(void);            /* a fresh temporary directory */
void training_dir_remove(char *dir); /* with all that is in it; frees the name */
void training_must(status rc);       /* fails the test with the error's message */
