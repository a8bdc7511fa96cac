/* ranks_zero.c - the same bits on any number of ranks: cli_zero.sh runs it under mpirun on 1, 2, 3, 4 and 8.
 *
 * The first rank trains alone, with as many micro-batches per step as all ranks take together; then all of them train, in
 * every stage of ZeRO, with techniques of memory on top. Parameters end with the same bits, and every rank uses exactly the
 * bytes that were planned for it. */
#include "rank_runs.h"
#include "train/task.h"

#include <stdlib.h>

enum { STEPS = 3 };

typedef struct cell {
    const char *preset;
    precision precision;
    int accumulation; /* micro-batches of each rank */
    int zero;
    const char *const *more;
    const char *const *model; /* settings that one rank has as well; NULL: none */
} cell;

static void describe(const cell *c, char *out, size_t n) {
    size_t at = (size_t)snprintf(out, n, "%s %s accumulation %d zero %d", c->preset, precision_name(c->precision),
                                 c->accumulation, c->zero);
    for (const char *const *s = c->model; s && *s && at < n; s++) at += (size_t)snprintf(out + at, n - at, " %s", *s);
    for (const char *const *s = c->more; s && *s && at < n; s++) at += (size_t)snprintf(out + at, n - at, " %s", *s);
}

static bool same_numbers(const char *const *more) {
    for (const char *const *s = more; s && *s; s++)
        if (strcmp(*s, "memory.states=int8") == 0) return false;
    return true;
}

/* What one rank gets that takes every micro-batch itself. */
static void cell_alone(const cell *c, train_result *out) {
    const char *more[SETTINGS_MOST];
    settings_join(more, c->model, same_numbers(c->more) ? NULL : SETTINGS("memory.states=int8"));
    training t = {.preset = c->preset,
                  .precision = c->precision,
                  .accumulation = c->accumulation * comm_size(ranks),
                  .steps = STEPS,
                  .threads = 1,
                  .more = more};
    run_alone(t, out);
}

static void check_cell(const cell *c, const train_result *alone) {
    char zero[32], name[512];
    const char *own[SETTINGS_MOST], *more[SETTINGS_MOST];
    snprintf(zero, sizeof zero, "parallel.zero=%d", c->zero);
    settings_join(own, SETTINGS(zero), c->model);
    settings_join(more, own, c->more);
    describe(c, name, sizeof name);
    training t = {.preset = c->preset,
                  .precision = c->precision,
                  .accumulation = c->accumulation,
                  .steps = STEPS,
                  .threads = 1,
                  .more = more,
                  .comm = ranks};
    train_result r;
    must(training_run(&t, &r));
    /* Where gradients are added up on each rank first, more than one micro-batch is another order of the same sum. */
    bool same_order = c->accumulation == 1 || c->zero >= 2;
    if (same_order && r.param_hash != alone->param_hash)
        FAIL("%s: param_hash %016llx, alone %016llx, loss %.9g, alone %.9g", name, (unsigned long long)r.param_hash,
             (unsigned long long)alone->param_hash, r.last_loss, alone->last_loss);
    check_as_planned(&r, name);
}

/* On top of each stage, one technique or several; the first is none. */
static const char *const *const extras[] = {
    NULL,
    SETTINGS("parallel.overlap=false", "parallel.prefetch=0"),
    SETTINGS("parallel.prefetch=3", "parallel.persist_below=200", "memory.recompute=full"),
    SETTINGS("parallel.reduce_bucket=64K", "memory.recompute=every:2"),
    SETTINGS("parallel.allgather_bucket=40K", "memory.offload.states=host"),
    SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host",
             "memory.offload.activations=host", "memory.bucket=256K"),
    SETTINGS("memory.offload.params=nvme", "memory.offload.grads=nvme", "memory.offload.states=nvme",
             "memory.recompute=selective", "memory.nvme_path=."),
    SETTINGS("memory.offload.activations=nvme", "memory.nvme_path=.", "memory.states=int8",
             "parallel.persist_below=5000"),
    SETTINGS("memory.offload.states=host", "memory.bucket=256K", "memory.overlap_update=true"),
    SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=nvme",
             "memory.nvme_path=.", "memory.recompute=full", "parallel.prefetch=2", "memory.overlap_update=true"),
    SETTINGS("memory.offload.states=host", "memory.offload.keep_states=1", "memory.overlap_update=true"),
    SETTINGS("memory.offload.params=host", "memory.offload.states=nvme", "memory.offload.keep_states=1",
             "memory.nvme_path=.", "parallel.reduce_bucket=64K"),
};

/* Every stage of one model, precision and accumulation, with each `stride`-th of the extras. */
static int check_group(cell c, size_t first, size_t stride) {
    int n = 0;
    train_result plain = {0}, other = {0};
    c.zero = 0;
    cell_alone(&c, &plain);
    for (size_t i = first % stride; i < ARRAY_LENGTH(extras); i += stride) {
        c.more = extras[i];
        if (!same_numbers(c.more)) cell_alone(&c, &other);
        for (c.zero = 0; c.zero <= 3; c.zero++, n++) check_cell(&c, same_numbers(c.more) ? &plain : &other);
    }
    return n;
}

/* Adapters over a frozen model: ranks share their gradients and states, and with ZeRO 3 the frozen parameters too. Dropout is
 * drawn by the micro-batch among all ranks. */
static int check_adapters(size_t stride) {
    static const struct {
        const char *preset, *targets;
        precision precision;
        int accumulation;
    } groups[] = {{"test-qwen3", "model.lora.targets=all-linear", PRECISION_FP32, 1},
                  {"test-gpt2", "model.lora.targets=c_attn,down", PRECISION_BF16, 2},
                  {"test-llama", "model.lora.targets=gate", PRECISION_BF16_SR, 1},
                  {"test-qwen2", "model.lora.targets=q,v", PRECISION_FP8, 2}};
    int n = 0;
    for (size_t i = 0; i < ARRAY_LENGTH(groups); i++) {
        if (stride > 1 && comm_size(ranks) > 3 && i % 2) continue; /* many ranks on few cores */
        const char *const model[] = {groups[i].targets, "model.lora.rank=4", "model.lora.dropout=0.2", "train.lr=0.01",
                                     NULL};
        n += check_group((cell){groups[i].preset, groups[i].precision, groups[i].accumulation, 0, NULL, model}, i,
                         stride);
    }
    return n;
}

/* ---- the state of a task ---------------------------------------------------------------------------------------- */

static int64_t remembered;
static json_t *number_save(void *self) { return json_pack("{s:I}", "number", (json_int_t)remembered); }
static status number_load(void *self, const json_t *state, const char *where) {
    return json_get_int(state, "number", 0, 1000, where, &remembered);
}

/* Supervised training under another name, which remembers a number: the first rank writes it, and every rank finds it. */
static void check_task_state(void) {
    task named = *task_of(TASK_SFT);
    char *dir = shared_dir();
    named.name = "named";
    named.save = number_save;
    named.load = number_load;
    training t = {.task = &named,
                  .steps = 2,
                  .threads = 1,
                  .dir = dir,
                  .resume = "auto",
                  .more = SETTINGS("train.save_every=1", "parallel.zero=2"),
                  .comm = ranks};
    train_result r;
    remembered = 17;
    must(training_run(&t, &r));
    remembered = 0;
    t.steps = 4;
    must(training_run(&t, &r));
    if (remembered != 17) FAIL("a task remembered 17 and found %lld", (long long)remembered);
    shared_dir_remove(dir);
}

int main(int argc, char **argv) {
    static const char *const models[] = {"test-gpt2", "test-qwen3"};
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR};
    size_t stride = argc > 1 && strcmp(argv[1], "large") == 0 ? 1 : ARRAY_LENGTH(extras) - 1, group = 0;
    comm_options o = {.timeout_s = 60};
    mesh_start(&o);
    if (argc > 1 && strcmp(argv[1], "probe") == 0) { /* is there an MPI at all? */
        comm_close(ranks);
        return 0;
    }
    int n = 0;
    for (size_t m = 0; m < ARRAY_LENGTH(models) && comm_size(ranks) > 1; m++)
        for (size_t q = 0; q < ARRAY_LENGTH(precisions); q++)
            for (int accumulation = 1; accumulation <= 2; accumulation++, group++) {
                if (stride > 1 && comm_size(ranks) > 3 && group % 2) continue; /* many ranks on few cores */
                n += check_group((cell){models[m], precisions[q], accumulation, 0, NULL, NULL}, group, stride);
            }
    if (comm_size(ranks) > 1) /* weights of 8 bits are whole everywhere, their parameters are not */
        n += check_group((cell){"test-qwen3", PRECISION_FP8, 1, 0, NULL, NULL}, group, stride);
    if (comm_size(ranks) > 1) n += check_adapters(stride);
    if (comm_size(ranks) > 1) check_task_state();
    if (comm_rank(ranks) == 0) printf("%d cells on %d ranks\n", n, comm_size(ranks));
    mesh_end();
    return n_failed > 0;
}
