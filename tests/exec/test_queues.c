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

/* ---- layers of the device and of the host's cores in one model --------------------------------------------------------- */

/* Both have the CPU's kernels here, each its own memory, threads and pace. */
static void parts_on_the_cores_give_the_bits_of_one_device(void **state) {
    static const char *const ways[][6] = {
        {"memory.place=layers.1=cpu, head=cuda:0"},
        {"memory.place=embed=cuda, layers.0=cpu", "memory.overlap_update=false", "memory.prefetch=0"},
        {"memory.place=embed=cpu, head=cpu, layers.0=cuda", "memory.recompute=full"},
        {"memory.place=embed=cpu, layers.0-1=cpu, head=cpu, layers.2=cuda", "model.layers=3",
         "memory.recompute=every:2"},
        {"memory.place=layers.0=cpu, head=cuda", "memory.offload.params=host", "memory.offload.grads=host",
         "memory.offload.states=host", "memory.offload.activations=host"},
        {"memory.place=layers.1=cpu, head=cuda", "memory.offload.params=nvme", "memory.offload.grads=nvme",
         "memory.offload.states=nvme"},
    };
    static const char *const models[][6] = {
        {0},
        {"model.lora.rank=4", "model.base=nf4", "model.lora.dropout=0.1"},
        {"train.eval_rows=4", "train.sample_every=2", "train.sample_tokens=8"},
        {"model.preset=test-gpt2", "memory.states=int8", "memory.chunk_tokens=16"},
    };
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16_SR, PRECISION_FP8};
    char *dir = training_dir();
    for (size_t m = 0; m < ARRAY_LENGTH(models); m++)
        for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
            precision q = precisions[(i + m) % ARRAY_LENGTH(precisions)];
            if (m % 2 && q == PRECISION_FP8) q = PRECISION_BF16; /* nf4 and chunks are not for products of 8 bits */
            const char *plain_more[SETTINGS_MOST], *more[SETTINGS_MOST];
            settings_join(plain_more, models[m], i == 3 ? SETTINGS("model.layers=3") : NULL);
            settings_join(more, models[m], ways[i]);
            train_result plain = run(NULL, q, plain_more, dir), r = run(backend_queued(), q, more, dir);
            if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss)
                fail_msg("model %zu, %s in %s: other bits", m, ways[i][0], precision_name(q));
            assert_true(r.memory.peak[TIER_DEVICE] > 0 && r.memory.peak[TIER_HOST] > 0);
        }
    training_dir_remove(dir);
}

/* What a placed layer has is the host's: parameters, gradients, states, activations, scratch; only hidden states, their
 * gradients and what all parts read cross the bus. */
static void a_placed_layer_is_stored_and_computed_on_the_host(void **state) {
    compiled k, whole;
    compiled_open(&whole, &(training){.preset = "test-qwen3", .accumulation = 2});
    compiled_open(&k, &(training){.preset = "test-qwen3",
                                  .accumulation = 2,
                                  .more = SETTINGS("memory.place=layers.1=cpu, head=cuda", "memory.strategy=manual")});
    const program *p = &k.p.program;
    int64_t n_values = 0, n_ops = 0, n_copies = 0;
    const plan_request *r = &k.r.plan;
    size_t hidden = (size_t)(r->choice.micro_batch * r->seq_len * r->source.hidden) * sizeof(float);
    for (value_id v = 1; v < p->n_values; v++) {
        const value *a = program_get(p, v);
        if (a->view_of || !a->persistent || a->layer < 0) continue;
        if (a->role != ROLE_PARAM && a->role != ROLE_GRAD && a->role != ROLE_STATE) continue;
        assert_int_equal(a->tier, a->layer == 1 ? TIER_HOST : TIER_DEVICE);
        n_values += a->tier == TIER_HOST;
    }
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->section != SECTION_MICRO) continue;
        if (o->kind == OP_COPY) {
            assert_true(value_bytes(program_get(p, o->out[COPY_Y])) <= hidden);
            n_copies++;
            continue;
        }
        assert_int_equal(o->at, o->layer == 1 ? TIER_HOST : TIER_DEVICE);
        assert_int_equal(o->stream, o->layer == 1 ? STREAM_HOST : STREAM_COMPUTE);
        n_ops += o->at == TIER_HOST;
    }
    print_message("%lld values and %lld ops of the layer on the host, %lld copies in a micro-batch\n",
                  (long long)n_values, (long long)n_ops, (long long)n_copies);
    assert_true(n_values > 0 && n_ops > 20 && n_copies > 0 && n_copies < 12);
    assert_true(k.p.planned[TIER_DEVICE] < whole.p.planned[TIER_DEVICE]);
    compiled_close(&whole);
    compiled_close(&k);
}

/* A thread that waits long for the device asks whether it has failed. What the driver allocates then is not the step's. */
static void a_wait_for_a_slow_device_is_no_allocation(void **state) {
    char *dir = training_dir();
    const char *const *placed = SETTINGS("memory.place=layers.1=cpu, head=cuda");
    train_result plain = run(NULL, PRECISION_FP32, NULL, dir);
    uint64_t before = backend_queued_asked();
    backend_queued_stall();
    assert_int_equal(run(backend_queued(), PRECISION_FP32, placed, dir).param_hash, plain.param_hash);
    assert_true(backend_queued_asked() > before);
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

/* A breakdown asks for the time of every op: they are queued one by one, none joined to another, and nothing else changes. */
static void ops_of_a_breakdown_are_timed(void **state) {
    char *dir = training_dir();
    uint64_t before = backend_queued_joined();
    train_result plain = run(backend_queued(), PRECISION_FP32, NULL, dir);
    uint64_t joined = backend_queued_joined();
    assert_true(joined > before);
    before = backend_queued_recordings();
    train_result timed = run(backend_queued(), PRECISION_FP32, (const char *const[]){"run.breakdown=true", NULL}, dir);
    assert_int_equal(backend_queued_recordings(), before);
    assert_int_equal(backend_queued_joined(), joined);
    assert_int_equal(timed.param_hash, plain.param_hash);
    const op_kind some[] = {OP_LINEAR, OP_LINEAR_DW, OP_UNEMBED_LOSS_GRAD, OP_ADAMW};
    for (size_t i = 0; i < ARRAY_LENGTH(some); i++)
        assert_true(timed.step_seconds[some[i]] > 0 && plain.step_seconds[some[i]] == 0);
    training_dir_remove(dir);
}

/* Small tensors are normed and updated many at a time, in any order. A copy that waits for one of them ends the row, and so do 64. */
static void ops_of_small_tensors_are_queued_together(void **state) {
    static const char *const lora[] = {"model.lora.rank=4", "model.layers=12", NULL}, *const host[] = {
                                                                                          "model.lora.rank=4",
                                                                                          "model.layers=12",
                                                                                          "memory.offload.states=host",
                                                                                          NULL};
    char *dir = training_dir();
    train_result plain = run(NULL, PRECISION_BF16, lora, dir);
    uint64_t before = backend_queued_apart();
    train_result r = run(backend_queued(), PRECISION_BF16, lora, dir);
    uint64_t n = backend_queued_apart() - before; /* of the recordings: once for all steps */
    print_message("%llu ops were queued together\n", (unsigned long long)n);
    assert_int_equal(n, 2 * 2 * 4 * 12); /* norm and AdamW of A and B, for q|k|v, o, gate|up and down */
    assert_int_equal(r.param_hash, plain.param_hash);
    r = run(backend_queued(), PRECISION_BF16, host, dir);
    assert_int_equal(r.param_hash, plain.param_hash);
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
        cmocka_unit_test(parts_on_the_cores_give_the_bits_of_one_device),
        cmocka_unit_test(a_placed_layer_is_stored_and_computed_on_the_host),
        cmocka_unit_test(a_wait_for_a_slow_device_is_no_allocation),
        cmocka_unit_test(sections_that_meet_the_host_are_not_recorded),
        cmocka_unit_test(parameters_of_many_chunks_come_and_go_whole),
        cmocka_unit_test(the_forward_of_a_turn_is_queued_before_the_update_is_done),
        cmocka_unit_test(ops_of_a_breakdown_are_timed),
        cmocka_unit_test(ops_of_small_tensors_are_queued_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
