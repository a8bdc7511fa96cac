/* test_queues.c - a device that works on its own: the same bits as the CPU at once, whatever moves between host, disk and
 * device meanwhile, with sections recorded where they may be, and no allocation while they run. */
#include "queued_backend.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

static train_result run(const backend *b, precision q, const char *const *more, const char *dir) {
    train_result r;
    char path[600];
    const char *settings[SETTINGS_MOST];
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    settings_join(settings, SETTINGS(path), more);
    training t = {
        .preset = "test-qwen3", .precision = q, .accumulation = 2, .steps = 3, .more = settings, .backend = b};
    training_must(training_run(&t, &r));
    training_as_planned(&r, more && *more ? *more : "plain");
    return r;
}

static void every_way_gives_the_bits_of_the_cpu(void **state) {
    static const char *const ways[][7] = {
        {0},
        {"memory.recompute=full"},
        {"memory.offload.states=host"},
        {"memory.offload.states=host", "memory.offload.grads=host"},
        {"memory.offload.params=host", "memory.prefetch=2"},
        {"memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host",
         "memory.offload.activations=host", "memory.recompute=full"},
        {"memory.offload.params=nvme", "memory.offload.states=nvme", "memory.offload.activations=host"},
        {"memory.offload.states=host", "memory.bucket=256K"},
        {"memory.overlap_update=true"},
        {"memory.offload.states=host", "memory.overlap_update=true", "memory.bucket=256K"},
        {"memory.offload.states=host", "memory.overlap_update=true", "memory.offload.keep_states=1"},
        {"memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=nvme",
         "memory.offload.activations=host", "memory.recompute=full", "memory.overlap_update=true"},
    };
    char *dir = training_dir();
    for (precision q = PRECISION_FP32; q <= PRECISION_BF16_SR; q++) {
        train_result plain = run(NULL, q, NULL, dir);
        for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
            train_result r = run(backend_queued(), q, ways[i], dir);
            if (r.param_hash != plain.param_hash) fail_msg("way %zu in %s: other bits", i, precision_name(q));
        }
    }
    training_dir_remove(dir);
}

/* Without anything on the host every section is started whole; with states there the update is fed op by op. */
static void sections_that_meet_the_host_are_not_recorded(void **state) {
    char *dir = training_dir();
    uint64_t before = backend_queued_recordings();
    run(backend_queued(), PRECISION_FP32, NULL, dir);
    uint64_t plain = backend_queued_recordings() - before;
    run(backend_queued(), PRECISION_FP32, (const char *const[]){"memory.offload.states=host", NULL}, dir);
    uint64_t offloaded = backend_queued_recordings() - before - plain;
    assert_true(plain >= 2 && offloaded == plain - 1);
    training_dir_remove(dir);
}

/* The next forward is queued while most gradients have yet to leave for the update: a queue that is full of their copies
 * does not hold it up. */
static void the_forward_of_a_turn_is_queued_before_the_update_is_done(void **state) {
    static const char *const apart[] = {"memory.offload.states=host", "memory.bucket=256K", NULL},
                             *const beside[] = {"memory.offload.states=host", "memory.bucket=256K",
                                                "memory.overlap_update=true", NULL};
    char *dir = training_dir();
    uint64_t before = backend_queued_copies_behind_embed();
    run(backend_queued(), PRECISION_BF16_SR, apart, dir);
    assert_int_equal(backend_queued_copies_behind_embed(),
                     before); /* sections of their own: no gradient leaves in one */
    run(backend_queued(), PRECISION_BF16_SR, beside, dir);
    uint64_t n = backend_queued_copies_behind_embed() - before;
    print_message("%llu copies of gradients and parameters queued behind EMBED\n", (unsigned long long)n);
    assert_true(n > 20);
    training_dir_remove(dir);
}

/* A breakdown asks for the time of every op: they are queued one by one, and nothing else changes. */
static void ops_of_a_breakdown_are_timed(void **state) {
    char *dir = training_dir();
    train_result plain = run(backend_queued(), PRECISION_FP32, NULL, dir);
    uint64_t before = backend_queued_recordings();
    train_result timed = run(backend_queued(), PRECISION_FP32, (const char *const[]){"run.breakdown=true", NULL}, dir);
    assert_int_equal(backend_queued_recordings(), before);
    assert_int_equal(timed.param_hash, plain.param_hash);
    const op_kind some[] = {OP_LINEAR, OP_LINEAR_DW, OP_UNEMBED_LOSS_GRAD, OP_ADAMW};
    for (size_t i = 0; i < ARRAY_LENGTH(some); i++)
        assert_true(timed.step_seconds[some[i]] > 0 && plain.step_seconds[some[i]] == 0);
    training_dir_remove(dir);
}

/* First values are carried to a device while the next are drawn, and come back for the hash while those before are hashed:
 * parameters of several chunks, with tails, and of less than one, in memory that the host reaches, does not, and mixed. */
static void parameters_of_many_chunks_come_and_go_whole(void **state) {
    static const char *const ways[][4] = {
        {"model.vocab=40001"},
        {"model.vocab=40001", "memory.offload.states=host"}, /* masters are near, parameters are not */
        {"model.vocab=40001", "memory.offload.params=nvme", "memory.offload.states=nvme"},
    };
    char *dir = training_dir();
    for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++) {
        train_result plain = run(NULL, q, ways[0], dir);
        for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
            train_result r = run(backend_queued(), q, ways[i], dir);
            if (r.param_hash != plain.param_hash) fail_msg("way %zu in %s: other bits", i, precision_name(q));
        }
    }
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_bits_of_the_cpu),
        cmocka_unit_test(sections_that_meet_the_host_are_not_recorded),
        cmocka_unit_test(parameters_of_many_chunks_come_and_go_whole),
        cmocka_unit_test(the_forward_of_a_turn_is_queued_before_the_update_is_done),
        cmocka_unit_test(ops_of_a_breakdown_are_timed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
