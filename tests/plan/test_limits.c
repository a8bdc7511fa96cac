/* test_limits.c - what a rank may plan with, for made-up machines: on one memory, device and host together never exceed it. */
#include "must.h"
#include "plan/plan.h"

#define G (1ull << 30)

static const struct {
    const char *what;
    plan_memory machine;
    uint64_t device, host; /* the settings; 0: auto */
    plan_limits expected;
} rows[] = {
    {"nothing set", {22 * G, 23 * G, 1, true, true}, 0, 0, {22 * G, 23 * G, 23 * G}},
    {"what the device leaves", {22 * G, 23 * G, 1, true, true}, 8 * G, 0, {8 * G, 15 * G, 23 * G}},
    {"all of it for the device", {22 * G, 23 * G, 1, true, true}, 23 * G, 0, {23 * G, 23 * G, 23 * G}},
    {"more than there is", {22 * G, 23 * G, 1, true, true}, 24 * G, 0, {23 * G, 23 * G, 23 * G}},
    {"... for a plan that is only shown", {22 * G, 23 * G, 1, true, false}, 24 * G, 0, {23 * G, 23 * G, 23 * G}},
    {"host set", {22 * G, 23 * G, 1, true, true}, 0, 4 * G, {22 * G, 4 * G, 23 * G}},
    {"host above the machine", {22 * G, 23 * G, 1, true, true}, 8 * G, 64 * G, {8 * G, 23 * G, 23 * G}},
    {"both set for a machine elsewhere", {22 * G, 23 * G, 1, true, false}, 80 * G, 256 * G, {80 * G, 256 * G, 0}},
    {"two ranks", {11 * G, 24 * G, 2, true, true}, 0, 0, {11 * G, 12 * G, 12 * G}},
    {"two ranks of 8G", {11 * G, 24 * G, 2, true, true}, 8 * G, 0, {8 * G, 4 * G, 12 * G}},
    {"two ranks of 13G", {11 * G, 24 * G, 2, true, true}, 13 * G, 0, {12 * G, 12 * G, 12 * G}},
    {"four ranks of 8G", {5 * G, 24 * G, 4, true, true}, 8 * G, 0, {6 * G, 6 * G, 6 * G}},
    {"a reserve above the machine", {1 * G, G / 2, 1, true, true}, 0, 0, {G / 2, G / 2, G / 2}},
    {"memory not known", {0, 0, 2, true, true}, 8 * G, 0, {8 * G, 0, 0}},
    {"a GPU", {79 * G, 512 * G, 1, false, true}, 0, 0, {79 * G, 512 * G, 0}},
    {"a GPU, limited", {79 * G, 512 * G, 1, false, true}, 24 * G, 0, {24 * G, 512 * G, 0}},
    {"eight GPUs of a node", {79 * G, 512 * G, 8, false, false}, 0, 0, {79 * G, 64 * G, 0}},
    {"a GPU, host set", {79 * G, 512 * G, 8, false, true}, 0, 16 * G, {79 * G, 16 * G, 0}},
};

static void limits_are_those_of_the_table(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        plan_limits found = plan_limits_find(&rows[i].machine, rows[i].device, rows[i].host);
        const plan_limits *e = &rows[i].expected;
        if (found.device != e->device || found.host != e->host || found.together != e->together)
            fail_msg("%s: found %.2f, %.2f, %.2f GiB", rows[i].what, (double)found.device / G, (double)found.host / G,
                     (double)found.together / G);
    }
}

/* Whatever is asked for: no plan that fits takes more of one memory than a rank's part of it. */
static void one_memory_is_one_budget(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, G - 1, G, 5 * G, 11 * G, 12 * G, 23 * G, 24 * G, 1000 * G};
    enum { N = ARRAY_LENGTH(sizes) };
    for (size_t i = 0; i < N * N * N * N * N; i++) {
        uint64_t memory = sizes[i % N], device = sizes[i / N % N], host = sizes[i / (N * N) % N];
        uint64_t planned[TIER_COUNT] = {
            [TIER_DEVICE] = sizes[i / (N * N * N) % N], [TIER_HOST] = sizes[i / (N * N * N * N)]};
        for (int n_ranks = 1; n_ranks <= 3 && memory > 2; n_ranks++) {
            plan_memory m = {.device_bytes = memory / (uint64_t)n_ranks,
                             .host_bytes = memory,
                             .n_ranks = n_ranks,
                             .unified = true,
                             .is_run_here = true};
            plan_limits limits = plan_limits_find(&m, device, host);
            assert_true(limits.device && limits.host && limits.together); /* 0 would be no limit */
            if (!plan_limits_hold(&limits, planned)) continue;
            assert_true((planned[TIER_DEVICE] + planned[TIER_HOST]) * (uint64_t)n_ranks <= memory);
            if (device) assert_true(planned[TIER_DEVICE] <= device);
            if (host) assert_true(planned[TIER_HOST] <= host);
        }
    }
}

static void devices_of_one_memory_add_up(void **state) {
    (void)state;
    plan_limits limits = {.device = 8 * G, .host = 8 * G, .together = 10 * G};
    uint64_t planned[TIER_COUNT] = {[TIER_DEVICE] = 4 * G, [TIER_DEVICE_1] = 4 * G, [TIER_HOST] = 2 * G};
    assert_true(plan_limits_hold(&limits, planned));
    planned[TIER_NVME] = 100 * G;
    assert_true(plan_limits_hold(&limits, planned));
    planned[TIER_DEVICE_2] = 1;
    assert_false(plan_limits_hold(&limits, planned));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_those_of_the_table),
        cmocka_unit_test(one_memory_is_one_budget),
        cmocka_unit_test(devices_of_one_memory_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
