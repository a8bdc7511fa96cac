/* rng.c - random numbers as a pure function: Philox4x32-10 of (key, counter).
 *
 * There is no state, so a number can be had by any thread, in any order, after any resume. Every kind of draw has its
 * own upper counter word: drawing a uniform and a normal with one key and index uses different random words.
 * Normals use a logarithm, sine and cosine of our own, made of +, -, *, / and IEEE sqrt only: libm differs between
 * machines and versions, and a model must start from the same bits everywhere (given -ffp-contract=off, which the
 * build sets). They are also what lets the compiler vectorise the loop.
 * Not for secrets. */
#include "base/base.h"

#include <math.h>
#include <string.h>

/* Upper counter words. A draw that must try again counts up below bit 32. */
enum { STREAM_KEY = 1, STREAM_U64, STREAM_BELOW, STREAM_NORMAL, STREAM_PERMUTE };
#define STREAM(s) ((uint64_t)(s) << 32)

static inline void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t x0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, x2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = x0;
        c[1] = (uint32_t)b;
        c[2] = x2;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u; /* golden ratio and sqrt(3) - 1: the published Weyl constants */
        k1 += 0xBB67AE85u;
    }
}

void rng_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]) {
    uint32_t c[4] = {(uint32_t)counter_lo, (uint32_t)(counter_lo >> 32), (uint32_t)counter_hi,
                     (uint32_t)(counter_hi >> 32)};
    philox(c, (uint32_t)key, (uint32_t)(key >> 32));
    memcpy(out, c, sizeof c);
}

static uint64_t draw_u64(uint64_t key, uint64_t hi, uint64_t lo) {
    uint32_t w[4];
    rng_philox(key, hi, lo, w);
    return (uint64_t)w[1] << 32 | w[0];
}

uint64_t rng_key(uint64_t seed, const char *purpose) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a spreads the text, Philox mixes it with the seed */
    for (const unsigned char *p = (const unsigned char *)purpose; *p; p++) hash = (hash ^ *p) * 0x100000001b3u;
    return draw_u64(seed, STREAM(STREAM_KEY), hash);
}

rng_noise rng_noise_block(uint64_t key, uint64_t counter_hi, uint64_t block) {
    uint32_t w[4];
    rng_philox(key, counter_hi, block, w);
    return (rng_noise){.start = w[0], .key = w[1]};
}

uint64_t rng_u64(uint64_t key, uint64_t index) { return draw_u64(key, STREAM(STREAM_U64), index); }

double rng_uniform(uint64_t key, uint64_t index) { return (double)(rng_u64(key, index) >> 11) * 0x1p-53; }

uint64_t rng_below(uint64_t key, uint64_t index, uint64_t n) {
    __extension__ typedef unsigned __int128 wide;
    ASSERT(n > 0);
    uint64_t reject = (0 - n) % n; /* 2^64 mod n: products with a lower half below it would favour some values */
    for (uint64_t attempt = 0;; attempt++) {
        wide product = (wide)draw_u64(key, STREAM(STREAM_BELOW) + attempt, index) * n;
        if ((uint64_t)product >= reject) return (uint64_t)(product >> 64);
    }
}

/* ---- normals: block b of four elements comes from the four words of counter b -------------------------------- */

/* Natural logarithm of a normal double in (2^-64, 1), to about 1e-15 relative. */
static inline double log_unit(double u) {
    uint64_t bits, biased, m_bits, e_bits;
    double m, e;
    memcpy(&bits, &u, 8);
    /* u = m * 2^e with m in [sqrt(1/2), sqrt(2)), so that u close to 1 has e = 0 and nothing cancels. The exponent
     * becomes a double through its bits, because SSE2 and AVX2 cannot convert 64-bit integers. */
    biased = (bits - 0x3fe6a09e667f3bcdu + ((uint64_t)64 << 52)) >> 52;
    m_bits = bits - ((biased - 64) << 52);
    e_bits = biased | 0x4330000000000000u;
    memcpy(&m, &m_bits, 8);
    memcpy(&e, &e_bits, 8);
    e -= 0x1p52 + 64;
    /* log m = 2 atanh(s), |s| <= 0.172: nine terms. */
    double s = (m - 1) / (m + 1), z = s * s;
    double p = 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return e * 0.693147180559945309417 + 2 * (s + s * (z * p));
}

/* Box-Muller: two words become a radius and a turn. The turn is cut into quarters on the integer, which is exact. */
static inline void normal_pair(uint32_t w_radius, uint32_t w_turn, double *z0, double *z1) {
    double u = ((double)w_radius + 0.5) * 0x1p-32; /* never 0 and never 1 */
    double radius = sqrt(-2 * log_unit(u));
    uint32_t quarter = (w_turn + 0x20000000u) >> 30;
    double x = (double)(int32_t)(w_turn - (quarter << 30)) * (6.283185307179586476925 * 0x1p-32), y = x * x;
    /* Taylor on at most an eighth of a turn: sine to x^13, cosine to x^14, both right to 1e-14. */
    double sine = 1.0 / 6227020800, cosine = -1.0 / 87178291200;
    sine = sine * y - 1.0 / 39916800;
    sine = sine * y + 1.0 / 362880;
    sine = sine * y - 1.0 / 5040;
    sine = sine * y + 1.0 / 120;
    sine = sine * y - 1.0 / 6;
    sine = (sine * y + 1) * x;
    cosine = cosine * y + 1.0 / 479001600;
    cosine = cosine * y - 1.0 / 3628800;
    cosine = cosine * y + 1.0 / 40320;
    cosine = cosine * y - 1.0 / 720;
    cosine = cosine * y + 1.0 / 24;
    cosine = cosine * y - 1.0 / 2;
    cosine = cosine * y + 1;
    double c = quarter & 1 ? sine : cosine, s = quarter & 1 ? cosine : sine;
    c = (quarter + 1) & 2 ? -c : c; /* quarters 1 and 2 */
    s = quarter & 2 ? -s : s;       /* quarters 2 and 3 */
    *z0 = radius * c;
    *z1 = radius * s;
}

#define NORMAL_BLOCKS 64

/* x86-64: a copy for each width of vectors, the processor's taken when the program is loaded. Same bits: every operation rounds by
 * itself, and none is fused. Sanitizers are not yet there when that choice is made. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDEST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST_VECTORS
#endif

/* Blocks first .. first + NORMAL_BLOCKS - 1. One loop per stage, each simple enough to vectorise. */
WIDEST_VECTORS static void normal_blocks(uint64_t key, uint64_t first, float *out, double mean, double std) {
    uint32_t w[4][NORMAL_BLOCKS];
    for (uint64_t b = 0; b < NORMAL_BLOCKS; b++) {
        uint32_t c[4] = {(uint32_t)(first + b), (uint32_t)((first + b) >> 32), 0, STREAM_NORMAL};
        philox(c, (uint32_t)key, (uint32_t)(key >> 32));
        for (int i = 0; i < 4; i++) w[i][b] = c[i];
    }
    for (int pair = 0; pair < 2; pair++) {
        for (int b = 0; b < NORMAL_BLOCKS; b++) {
            double z0, z1;
            normal_pair(w[2 * pair][b], w[2 * pair + 1][b], &z0, &z1);
            out[4 * b + 2 * pair] = (float)(mean + std * z0);
            out[4 * b + 2 * pair + 1] = (float)(mean + std * z1);
        }
    }
}

void rng_normal_fill(uint64_t key, uint64_t first, float *out, size_t n, float mean, float std) {
    while (n > 0) {
        uint64_t block = first / 4, skip = first % 4;
        size_t taken = MIN(n, (size_t)(4 * NORMAL_BLOCKS - skip));
        if (taken == 4 * NORMAL_BLOCKS) {
            normal_blocks(key, block, out, (double)mean, (double)std);
        } else {
            float some[4 * NORMAL_BLOCKS];
            normal_blocks(key, block, some, (double)mean, (double)std);
            memcpy(out, some + skip, taken * sizeof *out);
        }
        first += taken;
        out += taken;
        n -= taken;
    }
}

void rng_uniform_fill(uint64_t key, uint64_t first, float *out, size_t n, float bound) {
    for (size_t i = 0; i < n; i++) out[i] = (float)((2 * rng_uniform(key, first + i) - 1) * (double)bound);
}

/* ---- permutation --------------------------------------------------------------------------------------------- */

/* A Feistel network permutes the 2^bits numbers around n; walking on until the result is below n permutes 0..n-1
 * (the walk follows a cycle, so it comes back inside, after fewer than two steps on average for n >= 64). The
 * network is never narrower than 6 bits: with fewer, ten rounds would not reach all orders of a small set. */
uint64_t rng_permute(uint64_t key, uint64_t i, uint64_t n) {
    ASSERT(i < n);
    int bits = n > 64 ? 64 - __builtin_clzll(n - 1) : 6;
    int left_bits = bits / 2, right_bits = bits - left_bits; /* at most 32 each */
    uint64_t left_mask = ((uint64_t)1 << left_bits) - 1, right_mask = ((uint64_t)1 << right_bits) - 1;
    uint32_t round_key[12];
    for (uint64_t k = 0; k < 3; k++) rng_philox(key, STREAM(STREAM_PERMUTE), k, round_key + 4 * k);

    uint64_t x = i;
    do {
        uint64_t left = x >> right_bits, right = x & right_mask;
        for (int round = 0; round < 10; round += 2) {
            for (int half = 0; half < 2; half++) {
                /* The finisher of SplitMix64: one multiply-shift chain mixes a half of 32 bits well enough. */
                uint64_t h = (half ? left : right) + ((uint64_t)round_key[round + half] << 32 | round_key[10 + half]);
                h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
                h = (h ^ h >> 27) * 0x94d049bb133111ebu;
                h ^= h >> 31;
                if (half) right ^= h & right_mask;
                else left ^= h & left_mask;
            }
        }
        x = left << right_bits | right;
    } while (x >= n);
    return x;
}
