/* test_rng.c - random numbers are the published Philox, uniform or normal as named, and the same bits everywhere. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_philox_matches_the_published_vectors(void **state) {
    /* Random123's kat_vectors, "philox4x32 10". */
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(known); i++) {
        const uint32_t *c = known[i].counter, *k = known[i].key;
        uint32_t out[4];
        rng_philox((uint64_t)k[1] << 32 | k[0], (uint64_t)c[3] << 32 | c[2], (uint64_t)c[1] << 32 | c[0], out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static void test_keys_differ_by_seed_and_purpose(void **state) {
    static const char *const purposes[] = {"", "a", "b", "ab", "ba", "init.wte", "init.wpe", "data"};
    uint64_t keys[ARRAY_LENGTH(purposes) * 3];
    size_t n = 0;
    for (uint64_t seed = 0; seed < 3; seed++)
        for (size_t i = 0; i < ARRAY_LENGTH(purposes); i++) keys[n++] = rng_key(seed, purposes[i]);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) assert_true(keys[i] != keys[j]);
    assert_true(rng_key(1, "data") == rng_key(1, "data"));
}

static void test_uniform_and_below_are_uniform(void **state) {
    enum { N = 60000 };
    double sum = 0, lowest = 1, highest = 0;
    int seen[6] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(11, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        lowest = fmin(lowest, u);
        highest = fmax(highest, u);
        uint64_t die = rng_below(12, i, 6);
        assert_true(die < 6);
        seen[die]++;
    }
    /* Five standard deviations of the mean of N uniforms, and of a binomial count. The seed is fixed. */
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(lowest < 1e-3 && highest > 1 - 1e-3);
    for (int i = 0; i < 6; i++) assert_true(fabs(seen[i] - N / 6.0) < 5 * sqrt(N * (1.0 / 6) * (5.0 / 6)));
    assert_int_equal(rng_below(1, 2, 1), 0);
    /* n just above 2^63 rejects almost every second draw. */
    uint64_t n = ((uint64_t)1 << 63) + 1, above = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t x = rng_below(13, i, n);
        assert_true(x < n);
        above += x >= n / 2;
    }
    assert_true(above > 400 && above < 600);
}

static void test_normals_do_not_depend_on_the_split(void **state) {
    enum { N = 5000 };
    static float whole[N + 8], parts[N];
    rng_normal_fill(99, 0, whole, N + 8, 0.5f, 2.0f);
    for (uint64_t trial = 0; trial < 40; trial++) {
        uint64_t first = rng_below(1, trial, 9);
        memset(parts, 0, sizeof parts);
        for (size_t at = 0, m, k = 0; at < N; at += m, k++) {
            m = MIN((size_t)N - at, (size_t)rng_below(2 + trial, k, 700));
            rng_normal_fill(99, first + at, parts + at, m, 0.5f, 2.0f);
        }
        assert_memory_equal(parts, whole + first, sizeof parts);
    }
    /* Far along the counter, where 32 bits overflow. */
    uint64_t far = ((uint64_t)1 << 34) - 3;
    rng_normal_fill(99, far, parts, 11, 0.5f, 2.0f);
    for (uint64_t i = 0; i < 11; i++) {
        float one;
        rng_normal_fill(99, far + i, &one, 1, 0.5f, 2.0f);
        assert_memory_equal(&one, parts + i, sizeof one);
    }
}

static void test_normals_are_box_muller_of_the_philox_words(void **state) {
    static float out[4096];
    rng_normal_fill(5, 0, out, ARRAY_LENGTH(out), 0, 1);
    double worst = 0;
    for (uint64_t b = 0; b < ARRAY_LENGTH(out) / 4; b++) {
        uint32_t w[4];
        rng_philox(5, (uint64_t)4 << 32, b, w);
        for (int pair = 0; pair < 2; pair++) {
            double r = sqrt(-2 * log((w[2 * pair] + 0.5) * 0x1p-32)), turn = 2 * M_PI * (w[2 * pair + 1] * 0x1p-32);
            worst = fmax(worst, fabs(out[4 * b + 2 * (uint64_t)pair] - r * cos(turn)) / fmax(r, 1e-3));
            worst = fmax(worst, fabs(out[4 * b + 2 * (uint64_t)pair + 1] - r * sin(turn)) / fmax(r, 1e-3));
        }
    }
    assert_true(worst < 0x1p-24); /* half a unit of the fp32 result; the double part is far below */
}

static void test_normals_have_the_moments_of_a_normal(void **state) {
    enum { N = 400000 };
    float *x = mem_alloc(sizeof(float) * N);
    rng_normal_fill(rng_key(1, "moments"), 0, x, N, 0.0f, 1.0f);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbour = 0;
    int beyond3 = 0;
    for (int i = 0; i < N; i++) {
        double v = (double)x[i];
        m1 += v;
        m2 += v * v;
        m3 += v * v * v;
        m4 += v * v * v * v;
        if (i) neighbour += v * (double)x[i - 1];
        beyond3 += fabs(v) > 3;
    }
    /* Five standard deviations: the variance of v^k is 1, 2, 15, 96. */
    assert_true(fabs(m1 / N) < 5 * sqrt(1.0 / N));
    assert_true(fabs(m2 / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(m3 / N) < 5 * sqrt(15.0 / N));
    assert_true(fabs(m4 / N - 3) < 5 * sqrt(96.0 / N));
    assert_true(fabs(neighbour / N) < 5 * sqrt(1.0 / N));
    assert_true(fabs(beyond3 - N * 0.0026998) < 5 * sqrt(N * 0.0026998));
    free(x);
}

static void test_normals_have_the_same_bits_on_every_machine(void **state) {
    /* FNV-1a over the bits of the first million, recorded on arm64 with gcc 12 at -O3. */
    enum { N = 1 << 20 };
    float *x = mem_alloc(sizeof(float) * N);
    rng_normal_fill(rng_key(42, "init.wte"), 0, x, N, 0.0f, 0.02f);
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < N; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        hash = (hash ^ u) * 0x100000001b3u;
    }
    free(x);
    if (hash != 0x7e09f9721c811bbau) fail_msg("the bits changed: hash 0x%llx", (unsigned long long)hash);
}

static void test_permute_is_a_permutation(void **state) {
    static const uint64_t sizes[] = {1, 2, 3, 7, 63, 64, 65, 100, 1000, 4095, 4096, 4097, 50000};
    for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++) {
        uint64_t n = sizes[s], same = 0, rising = 0, last = 0;
        unsigned char *seen = mem_alloc(n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t to = rng_permute(1000 + s, i, n);
            assert_true(to < n);
            assert_int_equal(seen[to], 0);
            seen[to] = 1;
            same += to == i;
            rising += i > 0 && to == last + 1;
            last = to;
        }
        free(seen);
        if (n >= 1000) assert_true(same < 12 && rising < 12); /* both have mean 1 for a random order */
    }
    uint64_t huge = ((uint64_t)1 << 63) + 12345; /* 64-bit network: distinct results are all that can be checked */
    uint64_t got[200];
    for (uint64_t i = 0; i < ARRAY_LENGTH(got); i++) {
        got[i] = rng_permute(3, huge - 1 - i, huge);
        assert_true(got[i] < huge);
        for (uint64_t j = 0; j < i; j++) assert_true(got[i] != got[j]);
    }
}

static void test_permute_reaches_every_order_equally(void **state) {
    enum { KEYS = 12000 };
    int seen[24] = {0};
    for (uint64_t key = 0; key < KEYS; key++) {
        uint64_t p[4];
        for (uint64_t i = 0; i < 4; i++) p[i] = rng_permute(rng_key(key, "order"), i, 4);
        int rank = 0;
        for (int i = 0; i < 4; i++) {
            int smaller = 0;
            for (int j = i + 1; j < 4; j++) smaller += p[j] < p[i];
            rank = rank * (4 - i) + smaller;
        }
        seen[rank]++;
    }
    for (int i = 0; i < 24; i++) assert_true(fabs(seen[i] - KEYS / 24.0) < 5 * sqrt(KEYS / 24.0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_matches_the_published_vectors),
        cmocka_unit_test(test_keys_differ_by_seed_and_purpose),
        cmocka_unit_test(test_uniform_and_below_are_uniform),
        cmocka_unit_test(test_normals_do_not_depend_on_the_split),
        cmocka_unit_test(test_normals_are_box_muller_of_the_philox_words),
        cmocka_unit_test(test_normals_have_the_moments_of_a_normal),
        cmocka_unit_test(test_normals_have_the_same_bits_on_every_machine),
        cmocka_unit_test(test_permute_is_a_permutation),
        cmocka_unit_test(test_permute_reaches_every_order_equally),
    };
    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
