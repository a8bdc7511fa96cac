/* ranks_device.c - ranks whose devices work on their own: cli_device.sh runs it under mpirun on 2 and 4 of them.
 *
 * The device is queued_backend.c: kernels of the CPU behind queues. Ranks that share one send through host memory (copies to
 * and from it are queues of the device, messages a thread beside them); ranks with one each send from queue to queue. Both
 * ways, in every stage of ZeRO, parameters end with the bits of one rank that takes all micro-batches itself, and every
 * rank uses exactly the bytes that were planned for it, with messages as parts of recorded sections and without. With the argument
 * `stall` a recorded message of the devices never ends; with `die` rank 1 dies while all are in that message. */
#include "queued_backend.h"
#include "rank_runs.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 3, STALL_AT = 5, EXIT_STALLED = 3 };

static training training_of(const char *preset, precision q, int accumulation) {
    return (training){.preset = preset, .precision = q, .accumulation = accumulation, .steps = STEPS, .threads = 1};
}

/* overlap: of the update with the next forward; then messages are not recorded, so that both are tried. */
static void check_same(const char *preset, precision q, int zero, bool links, bool overlap, const char *const *extra,
                       const train_result *alone) {
    char name[160], setting[32];
    const char *more[SETTINGS_MOST];
    snprintf(setting, sizeof setting, "parallel.zero=%d", zero);
    settings_join(more, SETTINGS(setting, overlap ? "memory.overlap_update=true" : "memory.overlap_update=false"),
                  extra);
    snprintf(name, sizeof name, "%s %s zero %d%s%s %s", preset, precision_name(q), zero, links ? " links" : "",
             overlap ? " overlap" : "", extra ? extra[0] : "");
    training t = training_of(preset, q, 1);
    t.comm = ranks;
    t.backend = backend_queued();
    t.more = more;
    train_result r;
    backend_queued_ranks(ranks, links, !overlap, 0);
    must(training_run(&t, &r));
    if (r.param_hash != alone->param_hash)
        FAIL("%s: param_hash %016llx, alone %016llx", name, (unsigned long long)r.param_hash,
             (unsigned long long)alone->param_hash);
    check_as_planned(&r, name);
    if ((backend_queued_messages() > 0) != links) FAIL("%s: messages went the other way", name);
    if ((backend_queued_recorded_messages() > 0) != (links && !overlap))
        FAIL("%s: %llu messages were recorded", name, (unsigned long long)backend_queued_recorded_messages());
}

/* On top of a stage; the first is nothing. */
static const char *const *const extras[] = {
    NULL,
    SETTINGS("memory.offload.states=host", "memory.recompute=full"),
    SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host",
             "parallel.prefetch=2"),
};

static int check_precision(const char *preset, precision q) {
    train_result alone = {0};
    training t = training_of(preset, q, comm_size(ranks));
    int n = 0;
    run_alone(t, &alone);
    for (int way = 0; way < 4; way++)
        for (int zero = 0; zero <= 3; zero++, n++)
            check_same(preset, q, zero, way % 2, way / 2, extras[(size_t)(zero + way) % ARRAY_LENGTH(extras)], &alone);
    return n;
}

/* Tensor, sequence and pipeline ranks: the same program on the device as on the CPU, to the bit. */
static int check_axis(const char *setting) {
    training t = training_of("test-qwen3", PRECISION_FP32, 2);
    train_result on_cpu, r;
    comm_options o = {.timeout_s = 60};
    comm *world = ranks;
    config c;
    config_init(&c);
    must(config_set(&c, setting, "test"));
    memcpy(o.size, c.parallel.size, sizeof o.size);
    config_fini(&c);
    must(comm_open(&ranks, &o));
    t.comm = ranks;
    t.more = SETTINGS(setting);
    must(training_run(&t, &on_cpu));
    for (int links = 0; links < 2; links++) {
        t.backend = backend_queued();
        backend_queued_ranks(ranks, links, true, 0);
        must(training_run(&t, &r));
        if (r.param_hash != on_cpu.param_hash) FAIL("%s: %sother bits than the CPU's", setting, links ? "links: " : "");
    }
    comm_close(ranks);
    ranks = world;
    return 2;
}

/* As expected is EXIT_STALLED: after a failure MPI cannot be ended, and mpirun takes 0 for a crash. */
static int check_stall(bool die) {
    training t = training_of("test-gpt2", PRECISION_FP32, 1);
    train_result r;
    t.comm = ranks;
    t.backend = backend_queued();
    t.more = SETTINGS("parallel.zero=3");
    backend_queued_ranks(ranks, true, true, STALL_AT);
    if (die && comm_rank(ranks) == 1) alarm(1); /* which nobody catches */
    uint64_t start = clock_ns();
    status rc = training_run(&t, &r);
    double seconds = (double)(clock_ns() - start) * 1e-9;
    fprintf(stderr, "rank %d ends after %.0f s: %s\n", comm_rank(ranks), seconds, error_message());
    bool said = strstr(error_message(), die ? " died: " : "has waited 2 s (comm.timeout) in ") != NULL;
    comm_close(ranks);
    return rc != OK && said && seconds <= 10 ? EXIT_STALLED : 1;
}

int main(int argc, char **argv) {
    bool stall = argc > 1 && strcmp(argv[1], "stall") == 0, die = argc > 1 && strcmp(argv[1], "die") == 0;
    comm_options o = {.timeout_s = stall ? 2 : 60};
    mesh_start(&o);
    if (stall || die) return check_stall(die);
    int n = check_precision("test-gpt2", PRECISION_FP32) + check_precision("test-qwen3", PRECISION_BF16_SR);
    if (comm_size(ranks) < 4) n += check_precision("test-qwen3", PRECISION_BF16);
    char setting[64];
    for (axis a = AXIS_TENSOR; a < AXIS_COUNT && comm_size(ranks) == 2; a++) {
        snprintf(setting, sizeof setting, "parallel.%s=2", axis_name(a));
        n += check_axis(setting);
    }
    if (comm_rank(ranks) == 0) printf("%d cells on %d ranks\n", n, comm_size(ranks));
    mesh_end();
    return n_failed > 0;
}
