/* test_packing.c - layout and waits look things up in trees; here the same is found by looking at every pair. */
#include "model/model.h"
#include "pass/occupancy.h"
#include "plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

/* ---- places ----------------------------------------------------------------------------------------------------------- */

enum { BLOCKS = 300, GRAIN = 64 };

typedef struct placed {
    size_t first, last, n_bytes, alignment, offset;
} placed;

static bool is_free(const placed *list, size_t n, const placed *b, size_t at) {
    for (size_t i = 0; i < n; i++) {
        const placed *q = &list[i];
        bool together = q->first <= b->last && b->first <= q->last;
        if (together && q->offset < at + b->n_bytes && at < q->offset + q->n_bytes) return false;
    }
    return true;
}

static size_t lowest_place(const placed *list, size_t n, const placed *b, size_t base) {
    size_t at = (base + b->alignment - 1) / b->alignment * b->alignment;
    while (!is_free(list, n, b, at)) at += b->alignment;
    return at;
}

/* Short lives, long ones, single moments; sizes that fill grains and that do not; all in one arena, twice. */
static void fill_arena(size_t n_moments, uint64_t key) {
    placed list[BLOCKS];
    const size_t base = 3 * GRAIN;
    occupancy *o = occupancy_open(n_moments, GRAIN);
    for (size_t i = 0; i < BLOCKS; i++) {
        size_t first = rng_below(key, 4 * i, n_moments), length = rng_below(key, 4 * i + 1, n_moments - first);
        if (i % 4) length = MIN(length, (size_t)5);
        list[i] = (placed){.first = first,
                           .last = first + length,
                           .n_bytes = 1 + rng_below(key, 4 * i + 2, i % 3 ? 4 * GRAIN : 40 * GRAIN),
                           .alignment = GRAIN << rng_below(key, 4 * i + 3, 3)};
        occupancy_expect(o, list[i].first, list[i].last);
    }
    for (int round = 0; round < 2; round++) {
        occupancy_clear(o);
        for (size_t i = 0; i < BLOCKS; i++) {
            placed *b = &list[i];
            b->offset = occupancy_place(o, b->first, b->last, base, b->n_bytes, b->alignment);
            assert_int_equal(b->offset, lowest_place(list, i, b, base));
        }
    }
    occupancy_close(o);
}

static void every_block_goes_to_the_lowest_free_place(void **state) {
    (void)state;
    static const size_t moments[] = {1, 2, 3, 7, 8, 9, 64, 100, 1000};
    for (size_t i = 0; i < ARRAY_LENGTH(moments); i++)
        for (uint64_t seed = 0; seed < 4; seed++) fill_arena(moments[i], rng_key(seed, "packing"));
}

/* ---- waits ------------------------------------------------------------------------------------------------------------ */

typedef struct bytes {
    tier tier;
    size_t begin, end;
    bool written;
} bytes;

typedef struct footprint {
    int n;
    bytes list[OP_MAX_IN + OP_MAX_OUT + 1];
} footprint;

static void add_bytes(const program *p, const op *o, value_id v, bool written, footprint *out) {
    if (v == NO_VALUE) return;
    size_t inside, n_bytes = value_bytes(&p->values[v]);
    const value *root = &p->values[program_root(p, v, &inside)];
    if (o->stream == STREAM_READ || o->stream == STREAM_WRITE) n_bytes = sectors_up(n_bytes);
    out->list[out->n++] = (bytes){root->tier, root->offset + inside, root->offset + inside + n_bytes, written};
}

static footprint footprint_of(const program *p, const op *o) {
    footprint f = {0};
    for (int k = 0; k < op_input_count(o->kind); k++) add_bytes(p, o, o->in[k], false, &f);
    for (int k = 0; k < op_output_count(o->kind); k++) add_bytes(p, o, o->out[k], true, &f);
    add_bytes(p, o, o->work, true, &f);
    return f;
}

static bool must_wait(const footprint *later, const footprint *earlier) {
    for (int i = 0; i < later->n; i++)
        for (int k = 0; k < earlier->n; k++) {
            const bytes *a = &later->list[i], *b = &earlier->list[k];
            bool meet = a->tier == b->tier && a->begin < b->end && b->begin < a->end;
            if (meet && (a->written || b->written)) return true;
        }
    return false;
}

/* Returns how many waits there are. */
static size_t check_waits(const program *p) {
    size_t n_waits = 0;
    footprint *touched = calloc(p->n_ops, sizeof *touched);
    for (size_t i = 0; i < p->n_ops; i++) touched[i] = footprint_of(p, &p->ops[i]);
    for (size_t first = 0, end; first < p->n_ops; first = end) {
        uint32_t waited[STREAM_COUNT][STREAM_COUNT] = {{0}};
        for (end = first; end < p->n_ops && p->ops[end].section == p->ops[first].section; end++) {
            const op *o = &p->ops[end];
            uint32_t count[STREAM_COUNT] = {0}, last[STREAM_COUNT] = {0};
            for (size_t k = first; k < end; k++) {
                stream s = p->ops[k].stream;
                count[s]++;
                if (s != o->stream && must_wait(&touched[end], &touched[k])) last[s] = count[s];
            }
            for (stream s = 0; s < STREAM_COUNT; s++) {
                uint32_t expected = last[s] > waited[o->stream][s] ? last[s] : 0;
                if (o->wait[s] != expected)
                    fail_msg("op %zu waits for %u ops of %s, expected %u", end, o->wait[s], stream_name(s), expected);
                waited[o->stream][s] = MAX(waited[o->stream][s], last[s]);
                n_waits += expected > 0;
            }
        }
    }
    free(touched);
    return n_waits;
}

static void ops_wait_for_the_last_that_met_their_bytes(void **state) {
    (void)state;
    static const struct {
        offload_tiers offload;
        mesh mesh;
        shard_options shard;
        int64_t accumulation;
        bool waits;
    } cases[] = {
        {.accumulation = 1},
        {.offload = {.states = TIER_HOST}, .accumulation = 1, .waits = true},
        {.offload = OFFLOAD(TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST), .accumulation = 2, .waits = true},
        {.offload = OFFLOAD(TIER_NVME, TIER_NVME, TIER_NVME, TIER_NVME), .accumulation = 2, .waits = true},
        {.mesh = {.size[AXIS_DATA] = 4}, .shard = {.zero = 3, .prefetch = 1}, .accumulation = 1, .waits = true},
        {.mesh = {.size[AXIS_PIPELINE] = 2}, .accumulation = 4, .waits = true},
        {.offload = OFFLOAD(TIER_DEVICE, TIER_HOST, TIER_HOST, TIER_HOST),
         .mesh = {.size = {[AXIS_PIPELINE] = 2, [AXIS_DATA] = 2}, .index[AXIS_PIPELINE] = 1},
         .shard = {.zero = 2, .overlap = true},
         .accumulation = 4,
         .waits = true},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        plan_request r = {.source = net_source_of(model_preset_find("test-llama")),
                          .seq_len = 24,
                          .choice = {.precision = PRECISION_BF16,
                                     .micro_batch = 2,
                                     .accumulation = cases[i].accumulation,
                                     .shard = cases[i].shard,
                                     .offload = cases[i].offload,
                                     .prefetch = 1},
                          .with_eval = true,
                          .verify = true,
                          .logits_chunk_bytes = 1 << 16,
                          .mesh = cases[i].mesh,
                          .target = {.name = "plain", .n_threads = 1, .alignment = 64}};
        plan p;
        assert_int_equal(plan_build(&p, &r), OK);
        assert_int_equal(check_waits(&p.program) > 0, cases[i].waits);
        plan_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_goes_to_the_lowest_free_place),
        cmocka_unit_test(ops_wait_for_the_last_that_met_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
