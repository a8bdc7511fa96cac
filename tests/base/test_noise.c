/* test_noise.c - the noise that rounds is good enough to round with.
 *
 * Rounding needs: halves of words that are uniform in all their bits, and no correlation that could add up - between
 * neighbours, between the two halves of a word, between steps, between blocks of a tensor, between tensors. Bounds are
 * five or six standard deviations of what true randomness gives; the noise is fixed, so nothing flickers. */
#include "base/base.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N = RNG_NOISE_BLOCK };

static double half_of(uint32_t word, int half) { return ((word >> (16 * half) & 0xffff) + 0.5) / 65536 - 0.5; }

/* Correlation of two series of n uniform numbers in [-1/2, 1/2): n^-1/2 is one standard deviation. */
static void expect_uncorrelated(double sum_of_products, double n, const char *what) {
    double sigmas = fabs(sum_of_products * 12 / n) * sqrt(n);
    if (!(sigmas < 5)) fail_msg("%s: %.1f standard deviations", what, sigmas);
}

static void test_every_bit_is_half_of_the_time_one(void **state) {
    for (uint64_t block = 0; block < 16; block++) {
        rng_noise n = rng_noise_block(7, 3, block);
        int ones[32] = {0};
        for (uint32_t i = 0; i < N; i++)
            for (int b = 0; b < 32; b++) ones[b] += rng_noise_word(n, i) >> b & 1;
        for (int b = 0; b < 32; b++)
            if (fabs(ones[b] - N / 2.0) > 6 * sqrt(N) / 2) fail_msg("block %d, bit %d: %d", (int)block, b, ones[b]);
    }
}

/* 256 cells of the upper byte of each half, over 16 blocks: chi-square with 255 degrees, six sigma. Rounding that adds
 * the noise rounds up exactly as often as the numbers are spread evenly. */
static void test_halves_are_uniform(void **state) {
    for (int half = 0; half < 2; half++)
        for (int low = 0; low < 2; low++) {
            int cells[256] = {0};
            for (uint64_t block = 0; block < 16; block++) {
                rng_noise n = rng_noise_block(11, 5, block);
                for (uint32_t i = 0; i < N; i++) cells[rng_noise_word(n, i) >> (16 * half + 8 * low) & 255]++;
            }
            double chi = 0, want = 16.0 * N / 256;
            for (int i = 0; i < 256; i++) chi += (cells[i] - want) * (cells[i] - want) / want;
            if (!(fabs(chi - 255) < 6 * sqrt(2 * 255))) fail_msg("half %d byte %d: chi-square %.1f", half, low, chi);
        }
}

static void test_neighbours_and_halves_are_uncorrelated(void **state) {
    static const uint32_t lags[] = {1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 4096, 32768};
    for (uint64_t block = 0; block < 8; block++) {
        rng_noise n = rng_noise_block(13, 9, block);
        double halves = 0;
        for (uint32_t i = 0; i < N; i++) {
            uint32_t w = rng_noise_word(n, i);
            halves += half_of(w, 0) * half_of(w, 1);
        }
        expect_uncorrelated(halves, N, "halves of one word");
        for (size_t l = 0; l < sizeof lags / sizeof *lags; l++)
            for (int half = 0; half < 2; half++) {
                double sum = 0;
                for (uint32_t i = 0; i + lags[l] < N; i++)
                    sum += half_of(rng_noise_word(n, i), half) * half_of(rng_noise_word(n, i + lags[l]), half);
                expect_uncorrelated(sum, N - lags[l], "neighbours");
            }
    }
}

/* The same element at consecutive steps, in consecutive blocks, in tensors with keys that differ in one bit: what an
 * element's rounding errors add up over. */
static void test_steps_blocks_and_keys_are_uncorrelated(void **state) {
    for (uint64_t k = 0; k < 32; k++) {
        rng_noise a = rng_noise_block(17, k, 0), b = rng_noise_block(17, k + 1, 0), c = rng_noise_block(17, k, 1),
                  d = rng_noise_block(17 ^ (uint64_t)1 << (2 * k), k, 0);
        double steps = 0, blocks = 0, keys = 0;
        for (uint32_t i = 0; i < N; i++) {
            double x = half_of(rng_noise_word(a, i), 0);
            steps += x * half_of(rng_noise_word(b, i), 0);
            blocks += x * half_of(rng_noise_word(c, i), 0);
            keys += x * half_of(rng_noise_word(d, i), 0);
        }
        expect_uncorrelated(steps, N, "steps");
        expect_uncorrelated(blocks, N, "blocks");
        expect_uncorrelated(keys, N, "keys");
    }
}

/* One element over 60,000 steps: mean, variance and the correlation with its previous step. */
static void test_one_element_over_many_steps(void **state) {
    enum { STEPS = 60000 };
    static const uint32_t elements[] = {0, 1, 255, 40000, N - 1};
    for (size_t e = 0; e < sizeof elements / sizeof *elements; e++) {
        double sum = 0, squares = 0, products = 0, last = 0;
        for (uint64_t step = 1; step <= STEPS; step++) {
            double x = half_of(rng_noise_word(rng_noise_block(23, step, 0), elements[e]), 1);
            sum += x, squares += x * x, products += x * last;
            last = x;
        }
        assert_true(fabs(sum) < 5 * sqrt(STEPS / 12.0));
        assert_true(fabs(squares - STEPS / 12.0) < 5 * sqrt(STEPS / 180.0)); /* variance of x^2 is 1/180 */
        expect_uncorrelated(products, STEPS, "one element, step by step");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bit_is_half_of_the_time_one),
        cmocka_unit_test(test_halves_are_uniform),
        cmocka_unit_test(test_neighbours_and_halves_are_uncorrelated),
        cmocka_unit_test(test_steps_blocks_and_keys_are_uncorrelated),
        cmocka_unit_test(test_one_element_over_many_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
