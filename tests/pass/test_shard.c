/* test_shard.c - the program of each of n ranks, without running it: bytes by role against the formulas, messages against
 * 2P and 3P, parts that make up the whole, the same messages on every rank, and what each setting costs. */
#include "change_model.h"
#include "comm/comm.h"
#include "plan/plan.h"
#include "programs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

static const char *const presets[] = {"test-gpt2", "test-llama", "test-qwen3"};
static const int sizes[] = {2, 3, 4, 8};

static plan_request request(const char *preset, precision q, int n_ranks, int rank, int zero) {
    return (plan_request){.source = net_source_of(model_preset_find(preset)),
                          .choice.micro_batch = 2,
                          .choice.accumulation = 1,
                          .seq_len = 16,
                          .choice.precision = q,
                          .verify = true,
                          .with_eval = true,
                          .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                          .mesh = {.size[AXIS_DATA] = n_ranks, .index[AXIS_DATA] = rank},
                          .choice.shard = {.zero = zero, .overlap = true, .prefetch = 1},
                          .target = {.name = "test", .n_threads = 1, .alignment = 64, .comm_bytes = comm_work_bytes}};
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* A unit's elements, each parameter in whole blocks, and what one rank of n has of it: counted here once more. */
typedef struct counts {
    int64_t params, whole, part; /* elements: as they are, of all buckets filled up, of one rank's parts */
} counts;

static int unit_of(const net *m, const program *g, size_t i) {
    if (g->values[m->params[i].value].layer >= 0) return g->values[m->params[i].value].layer + 1;
    return strncmp(m->params[i].name, "embed", 5) == 0 || strncmp(m->params[i].name, "positions", 9) == 0
               ? 0
               : (int)m->source.n_layers + 1;
}

static counts count(const plan *p, int n_ranks) {
    counts c = {0};
    const net *m = &p->net;
    for (int unit = 0; unit <= m->source.n_layers + 1; unit++) {
        int64_t blocks = 0;
        for (size_t i = 0; i < m->n_params; i++) {
            if (unit_of(m, &p->program, i) != unit) continue;
            c.params += shape_count(&m->params[i].shape);
            blocks += (shape_count(&m->params[i].shape) + NORM_BLOCK - 1) / NORM_BLOCK;
        }
        int64_t part = (blocks + n_ranks - 1) / n_ranks * NORM_BLOCK;
        c.part += part;
        c.whole += part * n_ranks;
    }
    return c;
}

static uint64_t persistent(const plan *p, role r) {
    uint64_t n = 0;
    for (value_id v = 1; v < p->program.n_values; v++) {
        const value *a = &p->program.values[v];
        if (a->persistent && !a->view_of && a->role == r) n += value_bytes(a);
    }
    return n;
}

static void bytes_by_role_are_those_of_the_formulas(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LENGTH(presets); m++)
        for (size_t k = 0; k < ARRAY_LENGTH(sizes); k++)
            for (int zero = 0; zero <= 3; zero++) {
                int n = sizes[k];
                uint64_t states = 0;
                for (int rank = 0; rank < n; rank++) {
                    plan p;
                    plan_request r = request(presets[m], PRECISION_BF16, n, rank, zero);
                    plan_must(&p, &r);
                    counts c = count(&p, n);
                    const uint64_t params[] = {2 * (uint64_t)c.params, 2 * (uint64_t)c.whole, 2 * (uint64_t)c.whole,
                                               2 * (uint64_t)c.part};
                    uint64_t grads = 4 * (uint64_t)(zero >= 2 ? c.part : c.whole);
                    assert_int_equal(persistent(&p, ROLE_PARAM), params[zero]);
                    /* A part that is nothing but padding counts as communication. */
                    if (rank == 0) assert_int_equal(persistent(&p, ROLE_GRAD), grads);
                    else assert_true(persistent(&p, ROLE_GRAD) <= grads);
                    if (zero == 0) assert_int_equal(persistent(&p, ROLE_STATE), 12 * (uint64_t)c.params);
                    else assert_true(persistent(&p, ROLE_STATE) <= 12 * (uint64_t)c.part);
                    states += persistent(&p, ROLE_STATE);
                    if (zero >= 1 && rank == n - 1) assert_int_equal(states, 12 * (uint64_t)c.params);
                    plan_close(&p);
                }
            }
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Gradients and parameters in fp32, of buckets that are filled up: 2 and 3 times those, over n - 1 other ranks. ZeRO-3
 * gathers a layer for the forward and once more for the backward. Outside the layers it does so only where the embedding is
 * tied: then it is read at both ends, and between the last norm's forward and backward. */
static void what_is_sent_is_2p_2p_2p_3p(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LENGTH(presets); m++)
        for (size_t k = 0; k < ARRAY_LENGTH(sizes); k++)
            for (int zero = 0; zero <= 3; zero++) {
                int n = sizes[k];
                plan p;
                plan_request r = request(presets[m], PRECISION_FP32, n, 0, zero);
                plan_must(&p, &r);
                double sent = 0, small = 0, expected = 0;
                for (size_t i = 0; i < p.program.n_ops; i++) {
                    const op *o = &p.program.ops[i];
                    if (o->section == SECTION_EVAL || !op_is_comm(o->kind)) continue;
                    const value *x = &p.program.values[o->in[ALL_GATHER_X]]; /* as in every collective */
                    bool is_small = x->type == DTYPE_F64;                    /* the norm and the loss */
                    *(is_small ? &small : &sent) += op_sent(&p.program, o);
                }
                for (int unit = 0; unit <= model_of(&p.net.source)->n_layers + 1; unit++) {
                    int64_t blocks = 0;
                    for (size_t i = 0; i < p.net.n_params; i++)
                        if (unit_of(&p.net, &p.program, i) == unit)
                            blocks += (shape_count(&p.net.params[i].shape) + NORM_BLOCK - 1) / NORM_BLOCK;
                    bool layer = unit >= 1 && unit <= model_of(&p.net.source)->n_layers;
                    bool thrice = zero == 3 && (layer || model_of(&p.net.source)->tied);
                    int64_t whole = (blocks + n - 1) / n * n * NORM_BLOCK;
                    expected += (thrice ? 3.0 : 2.0) * 4 * (double)whole * (n - 1) / n;
                }
                assert_float_equal(sent, expected, 1e-6 * expected);
                assert_float_equal(p.sent_per_step, sent + small, 1e-6 * expected);
                assert_float_equal(plan_volume(&p) * (double)model_param_count(model_of(&r.source)), sent / 4,
                                   1e-6 * expected);
                assert_true(small < 0.02 * sent);
                plan_close(&p);
            }
}

static void every_rank_says_the_same(void **state) {
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        uint64_t first = 0, other = 0;
        for (int rank = 0; rank < 3; rank++) {
            plan p;
            plan_request r = request("test-qwen3", PRECISION_BF16, 3, rank, zero);
            plan_must(&p, &r);
            if (rank == 0) first = program_comm_hash(&p.program);
            assert_int_equal(program_comm_hash(&p.program), first);
            plan_close(&p);
        }
        plan p;
        plan_request r = request("test-qwen3", PRECISION_BF16, 3, 0, zero);
        r.choice.shard.reduce_bucket = 32 << 10;
        plan_must(&p, &r);
        other = program_comm_hash(&p.program);
        plan_close(&p);
        assert_true(other != first); /* other buckets, other messages */
    }
}

/* ---- parts -------------------------------------------------------------------------------------------------------- */

static void parts_of_all_ranks_make_up_each_parameter(void **state) {
    (void)state;
    for (size_t k = 0; k < ARRAY_LENGTH(sizes); k++)
        for (int zero = 0; zero <= 3; zero++) {
            int n = sizes[k];
            int64_t below = 0; /* as many elements as a norm has, which is not below it */
            plan plans[8] = {0};
            for (int rank = 0; rank < n; rank++) {
                plan_request r = request("test-gpt2", PRECISION_BF16, n, rank, zero);
                r.choice.shard.persist_below = below = r.source.hidden;
                plan_must(&plans[rank], &r);
            }
            for (size_t i = 0; i < plans[0].net.n_params; i++) {
                int64_t total = shape_count(&plans[0].net.params[i].shape), updated = 0, saved = 0;
                for (int rank = 0; rank < n; rank++) {
                    const step_interface *c = &plans[rank].step;
                    param_share share = c->updated[i], seen = shard_share(&plans[0].step, &plans[0].net, i, rank);
                    assert_int_equal(share.first % NORM_BLOCK, 0);
                    assert_int_equal(share.n, seen.n); /* as any other rank sees it */
                    if (zero == 0) assert_int_equal(share.n, total);
                    else if (share.n) assert_int_equal(share.first, updated);
                    if (zero == 3 && total >= below) assert_int_equal(c->held[i].n, share.n);
                    else assert_int_equal(c->held[i].n, total);
                    updated += share.n;
                    saved += shard_counted(c, &plans[rank].net, &plans[rank].request.mesh, i).n;
                }
                assert_int_equal(updated, zero == 0 ? n * total : total);
                assert_int_equal(saved, total);
            }
            for (int rank = 0; rank < n; rank++) plan_close(&plans[rank]);
        }
}

/* ---- settings ------------------------------------------------------------------------------------------------------- */

static uint64_t device_with(int zero, int64_t reduce, int64_t gather, bool overlap, int prefetch, int64_t persist,
                            recompute_kind again) {
    plan p;
    plan_request r = request("test-llama", PRECISION_FP32, 4, 0, zero);
    CHANGE_MODEL(r.source, c.n_layers = 8);
    CHANGE_MODEL(r.source, c.hidden = 256);
    CHANGE_MODEL(r.source, c.ffn = 1024);
    CHANGE_MODEL(r.source, c.head_dim = 64);
    r.seq_len = 4; /* so that parameters and not activations are what is large */
    r.choice.shard = (shard_options){zero, reduce, gather, overlap, prefetch, persist};
    r.choice.recompute.kind = again;
    plan_must(&p, &r);
    uint64_t planned = p.planned[TIER_DEVICE];
    plan_close(&p);
    return planned;
}

static void each_setting_has_its_memory(void **state) {
    (void)state;
    uint64_t plain = device_with(3, 0, 0, false, 0, 0, RECOMPUTE_NONE);
    uint64_t ahead = device_with(3, 0, 0, false, 1, 0, RECOMPUTE_NONE);
    uint64_t far = device_with(3, 0, 0, false, 3, 0, RECOMPUTE_NONE);
    assert_true(plain < ahead && ahead < far);
    assert_true(device_with(2, 0, 0, true, 0, 0, RECOMPUTE_NONE) > device_with(2, 0, 0, false, 0, 0, RECOMPUTE_NONE));
    assert_true(device_with(2, 256 << 10, 0, true, 0, 0, RECOMPUTE_NONE) <
                device_with(2, 0, 0, true, 0, 0, RECOMPUTE_NONE));
    assert_true(device_with(3, 0, 256 << 10, false, 1, 0, RECOMPUTE_NONE) < ahead);
    assert_true(device_with(3, 0, 0, false, 0, 1 << 20, RECOMPUTE_NONE) > plain); /* nearly all stay whole */
    uint64_t by_stage[4];
    for (int zero = 0; zero <= 3; zero++) by_stage[zero] = device_with(zero, 0, 0, true, 1, 0, RECOMPUTE_NONE);
    for (int zero = 1; zero <= 3; zero++) assert_true(by_stage[zero] < by_stage[zero - 1]);
}

static size_t gathers_of(recompute_kind again, int64_t every) {
    plan p;
    plan_request r = request("test-llama", PRECISION_FP32, 2, 0, 3);
    CHANGE_MODEL(r.source, c.n_layers = 4);
    r.with_eval = false;
    r.choice.recompute = (recompute_policy){.kind = again, .every = every};
    plan_must(&p, &r);
    size_t n = 0;
    for (size_t i = 0; i < p.program.n_ops; i++)
        n += p.program.ops[i].kind == OP_ALL_GATHER && p.program.ops[i].section == SECTION_MICRO;
    plan_close(&p);
    return n;
}

/* What is computed again finds the parameters that are gathered for the backward; only layers that are computed again in
 * groups need them once more. */
static void recompute_gathers_no_more_than_it_must(void **state) {
    (void)state;
    size_t plain = gathers_of(RECOMPUTE_NONE, 0);
    assert_int_equal(gathers_of(RECOMPUTE_FULL, 0), plain);
    assert_int_equal(gathers_of(RECOMPUTE_SELECTIVE, 0), plain);
    assert_int_equal(gathers_of(RECOMPUTE_EVERY, 2), plain + 2);
}

/* A transport that reaches host memory only: the same program with copies around its messages. */
static void messages_through_the_host_get_their_copies(void **state) {
    (void)state;
    for (int zero = 0; zero <= 3; zero++)
        for (int homes = 0; homes < 2; homes++) {
            plan p;
            plan_request r = request("test-gpt2", PRECISION_BF16, 2, 1, zero);
            r.target.comm_at = TIER_HOST;
            r.choice.accumulation = 2;
            r.choice.prefetch = 1;
            if (homes) r.choice.offload.grads = r.choice.offload.states = TIER_HOST;
            plan_must(&p, &r);
            for (size_t i = 0; i < p.program.n_ops; i++)
                if (op_is_comm(p.program.ops[i].kind)) assert_int_equal(p.program.ops[i].at, TIER_HOST);
            plan_close(&p);
        }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    plan p;
    plan_request r = request("test-gpt2", PRECISION_BF16, 2, 0, 4);
    assert_int_equal(plan_build(&p, &r), ERR_INPUT);
    assert_non_null(strstr(error_message(), "parallel.zero: found 4, expected 0 to 3"));
    r = request("test-gpt2", PRECISION_BF16, 2, 0, 1);
    r.place.layers[0] = PLACE_CPU + 1;
    assert_int_equal(plan_build(&p, &r), ERR_INPUT);
    assert_non_null(strstr(error_message(), "memory.place: found several devices in a run of 2 ranks"));
}

/* Of 4 ranks one has just mlp.up.w of a bucket: the same bytes under two names and two shapes travel to the host. */
static void a_part_that_is_one_parameter_travels(void **state) {
    (void)state;
    for (int rank = 0; rank < 4; rank++) {
        plan_request r = request("test-gpt2", PRECISION_FP32, 4, rank, 0);
        r.choice.offload = (offload_tiers)OFFLOAD(TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST);
        r.choice.prefetch = 1;
        r.choice.bucket_bytes = 256 << 10;
        plan p;
        plan_must(&p, &r);
        plan_close(&p);
    }
}

/* With overlap a gradient is reduced beside the kernels of the next layer: it waits for whatever wrote the gradient and for no kernel
 * behind that, as it would if its scratch lay on bytes that one of those still uses. */
static void a_reduction_waits_for_its_gradient_alone(void **state) {
    (void)state;
    for (int zero = 2; zero <= 3; zero++) {
        plan p;
        plan_request r = request("test-llama", PRECISION_BF16, 2, 0, zero);
        CHANGE_MODEL(r.source, c.n_layers = 6);
        plan_must(&p, &r);
        const program *g = &p.program;
        uint32_t *written = mem_alloc(g->n_values * sizeof *written),
                 n_kernels = 0; /* per value: which kernel was the last to */
        int n_beside = 0;
        for (size_t i = 0; i < g->n_ops; i++) {
            const op *o = &g->ops[i];
            if (o->section != SECTION_MICRO) continue;
            if (o->stream == STREAM_COMPUTE) {
                n_kernels++;
                for (int k = 0; k < op_output_count(o->kind); k++)
                    written[program_root(g, o->out[k], NULL)] = n_kernels;
            } else if (o->kind == OP_REDUCE_SCATTER) {
                uint32_t ready = written[program_root(g, o->in[REDUCE_SCATTER_X], NULL)];
                if (o->wait[STREAM_COMPUTE] > ready)
                    fail_msg("ZeRO %d, op %zu: waits for kernel %u, its gradient is there after %u", zero, i,
                             o->wait[STREAM_COMPUTE], ready);
                n_beside += ready < n_kernels;
            }
        }
        assert_true(n_beside >= 5);
        free(written);
        plan_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_by_role_are_those_of_the_formulas),
        cmocka_unit_test(what_is_sent_is_2p_2p_2p_3p),
        cmocka_unit_test(every_rank_says_the_same),
        cmocka_unit_test(parts_of_all_ranks_make_up_each_parameter),
        cmocka_unit_test(each_setting_has_its_memory),
        cmocka_unit_test(recompute_gathers_no_more_than_it_must),
        cmocka_unit_test(messages_through_the_host_get_their_copies),
        cmocka_unit_test(a_part_that_is_one_parameter_travels),
        cmocka_unit_test(a_reduction_waits_for_its_gradient_alone),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
