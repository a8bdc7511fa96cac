/* gguf_blocks.c - rows of numbers to the quantised blocks of ggml.
 *
 * What the codes of each format stand for (d, m: fp16, one of a block):
 *   q8_0   32 of int8                      w' = d q
 *   q5_0   32 of 5 bits                    w' = d (q - 16)
 *   q4_k   256 of 4 bits, in 8 parts       w' = d s q - m n, with s and n of 6 bits for each part
 *   q6_k   256 of 6 bits, in 16 parts      w' = d s (q - 32), with s of int8 for each part
 *
 * q8_0 and q5_0 are made by the one formula that every writer uses, to the bit. For the others a writer may choose: here
 * the scale (and minimum) of a part is searched so that the sum of weight times squared error is least, over a few roundings
 * around that which just holds the largest number, each with the best scale for its codes (least squares). Codes are then made
 * anew from the scales as they are stored. Large numbers weigh more, because they matter more in a product. */
#include "weightfile/weightfile.h"

#include <math.h>
#include <string.h>

enum { SMALL = 32, LARGE = 256, PARTS_K = 8, PARTS_6 = 16, PART_6 = LARGE / PARTS_6, LANES = 4, TRIES = 21 };

#define LEAST 1e-30f        /* smaller numbers are 0: no scale of fp16 is as small */
#define NEAREST 12582912.0f /* 1.5 * 2^23: added and taken away, it leaves the nearest whole number */
#define MOST_6 31.0f        /* of 6 bits, less 32 */
#define MOST_4 15.0f        /* the largest code of 4 bits */

static float round_to_half(float x) { return f16_to_f32(f32_to_f16(x)); }
static void store_half(uint8_t *out, float x) {
    uint16_t bits = f32_to_f16(x);
    memcpy(out, &bits, sizeof bits);
}
/* 0 of what is too small to divide by: its codes do not matter, the scale rounds to 0. */
static float inverse_of(float x) { return isfinite(1 / x) ? 1 / x : 0; }
static int clamp(int x, int low, int high) { return MIN(MAX(x, low), high); }

/* ---- blocks of 32 ------------------------------------------------------------------------------------------------ */

static void block_q8_0(const float *x, uint8_t *out) {
    float most = 0;
    for (int i = 0; i < SMALL; i++) most = fmaxf(most, fabsf(x[i]));
    float d = most / 127, inverse = inverse_of(d);
    store_half(out, d);
    for (int i = 0; i < SMALL; i++) out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

/* Codes of 5 bits: the low four of i and i + 16 share a byte, the fifth ones are bits of a word. */
static void pack_5(const int codes[SMALL], uint8_t *high, uint8_t *low) {
    uint32_t fifth = 0;
    for (int i = 0; i < SMALL / 2; i++) low[i] = (uint8_t)((codes[i] & 15) | (codes[i + SMALL / 2] & 15) << 4);
    for (int i = 0; i < SMALL; i++) fifth |= (uint32_t)(codes[i] >> 4) << i;
    memcpy(high, &fifth, sizeof fifth);
}

static void block_q5_0(const float *x, uint8_t *out) {
    float largest = 0;
    int codes[SMALL];
    for (int i = 0; i < SMALL; i++)
        if (fabsf(x[i]) > fabsf(largest)) largest = x[i];
    float d = largest / -16, inverse = inverse_of(d);
    store_half(out, d);
    for (int i = 0; i < SMALL; i++) codes[i] = MIN((int)(x[i] * inverse + 16.5f), 31);
    pack_5(codes, out + 2, out + 6);
}

/* ---- q4_k ----------------------------------------------------------------------------------------------- */

typedef struct fit { /* of a part: x is about scale q - least */
    float scale, least;
    double error;
} fit;

/* Numbers side by side, in the vector registers that there are: a sum in order could not be vectorised. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t lanes_int __attribute__((vector_size(LANES * sizeof(int32_t))));
static lanes load(const float *x) {
    lanes v;
    memcpy(&v, x, sizeof v);
    return v;
}
static double sum(lanes v) {
    double s = 0;
    for (int k = 0; k < LANES; k++) s += (double)v[k];
    return s;
}

/* Sums over the part for one rounding. */
typedef struct fit_sums {
    double q, qq, xq;
} fit_sums;
static fit_sums sum_codes(const float *x, const float *weight, float inverse, float low) {
    lanes q = {0}, qq = {0}, xq = {0};
    for (int i = 0; i < SMALL; i += LANES) {
        lanes v = load(x + i);
        lanes_int c = __builtin_convertvector((v - low) * inverse + 0.5f, lanes_int), fits = c < (int)MOST_4;
        lanes code = __builtin_convertvector((c & fits) | ((int)MOST_4 & ~fits), lanes);
        lanes w = load(weight + i) * code;
        q += w;
        qq += w * code;
        xq += w * v;
    }
    return (fit_sums){sum(q), sum(qq), sum(xq)};
}

/* The best line through the codes. The format has no minimum above 0. */
static void try_codes(const fit_sums *s, double w, double x, double xx, fit *best) {
    double scale = 0, shift = 0, det = w * s->qq - s->q * s->q;
    if (s->qq <= 0) return;
    if (det > 0) {
        scale = (w * s->xq - x * s->q) / det;
        shift = (s->qq * x - s->q * s->xq) / det;
    }
    if (det <= 0 || shift > 0) {
        shift = 0;
        scale = s->xq / s->qq;
    }
    if (scale <= 0) return;
    double error =
        xx + scale * scale * s->qq + shift * shift * w + 2 * (scale * shift * s->q - scale * s->xq - shift * x);
    if (error < best->error) *best = (fit){(float)scale, (float)-shift, error};
}

static fit fit_part(const float *x) {
    float weight[SMALL], low = 0, high = 0;
    double squares = 0, sum_w = 0, sum_x = 0, sum_xx = 0;
    for (int i = 0; i < SMALL; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
        squares += (double)x[i] * (double)x[i];
    }
    if (high - low < LEAST) return (fit){0};
    float mean = (float)sqrt(squares / SMALL);
    for (int i = 0; i < SMALL; i++) {
        weight[i] = mean + fabsf(x[i]);
        sum_w += (double)weight[i];
        sum_x += (double)weight[i] * (double)x[i];
        sum_xx += (double)weight[i] * (double)x[i] * (double)x[i];
    }
    fit best = {.error = INFINITY};
    for (int k = 0; k < TRIES; k++) {
        float inverse = (MOST_4 - 1 + 0.1f * (float)k) / (high - low);
        fit_sums s = sum_codes(x, weight, inverse, low);
        try_codes(&s, sum_w, sum_x, sum_xx, &best);
    }
    return isfinite(best.error) ? best : (fit){(high - low) / MOST_4, -low, 0};
}

/* 6 bits of each of 8 scales and 8 minimums in 12 bytes: those of the first four parts in a byte each, whose upper two bits hold
 * the upper ones of the others. */
static void pack_scales(const int scale[PARTS_K], const int least[PARTS_K], uint8_t out[12]) {
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(scale[i] | scale[i + 4] >> 4 << 6);
        out[i + 4] = (uint8_t)(least[i] | least[i + 4] >> 4 << 6);
        out[i + 8] = (uint8_t)((scale[i + 4] & 15) | (least[i + 4] & 15) << 4);
    }
}

static void block_q4_k(const float *x, uint8_t *out) {
    fit fits[PARTS_K];
    float scale = 0, least = 0;
    int s[PARTS_K], n[PARTS_K];
    for (int i = 0; i < PARTS_K; i++) {
        fits[i] = fit_part(x + i * SMALL);
        scale = fmaxf(scale, fits[i].scale), least = fmaxf(least, fits[i].least);
    }
    store_half(out, scale / 63);
    store_half(out + 2, least / 63);
    float d = round_to_half(scale / 63), m = round_to_half(least / 63);
    for (int i = 0; i < PARTS_K; i++) {
        s[i] = d > 0 ? clamp((int)lrintf(fits[i].scale / d), 0, 63) : 0;
        n[i] = m > 0 ? clamp((int)lrintf(fits[i].least / m), 0, 63) : 0;
    }
    pack_scales(s, n, out + 4);
    for (int i = 0; i < PARTS_K; i++) {
        float step = d * (float)s[i], shift = m * (float)n[i], inverse = step > 0 ? 1 / step : 0;
        uint8_t *to = out + 16 + i / 2 * SMALL; /* two parts share 32 bytes */
        for (int k = 0; k < SMALL; k++) {
            float q = fminf(fmaxf((x[i * SMALL + k] + shift) * inverse, 0), MOST_4);
            to[k] |= (uint8_t)((int)lrintf(q) << (i % 2 ? 4 : 0));
        }
    }
}

/* ---- q6_k -------------------------------------------------------------------------------------------------------- */

/* The scale of 16 numbers, with the sign that gives the largest of them the code -32. */
static float fit_part_6(const float *x) {
    const lanes most_6 = {MOST_6, MOST_6, MOST_6, MOST_6};
    float largest = 0, best = 0;
    double most = 0;
    for (int i = 0; i < PART_6; i++)
        if (fabsf(x[i]) > fabsf(largest)) largest = x[i];
    for (int k = 0; k < TRIES && fabsf(largest) >= LEAST; k++) {
        float inverse = -(31 + 0.05f * (float)k) / largest; /* the largest: -31 to -32 */
        lanes xq = {0}, qq = {0};
        for (int i = 0; i < PART_6; i += LANES) {
            lanes v = load(x + i), q = (v * inverse + NEAREST) - NEAREST;
            lanes_int fits = q < MOST_6;
            q = (lanes)(((lanes_int)q & fits) | ((lanes_int)most_6 & ~fits));
            lanes w = v * v * q;
            xq += w * v;
            qq += w * q;
        }
        double sum_xq = sum(xq), sum_qq = sum(qq);
        if (sum_qq > 0 && sum_xq * sum_xq > most * sum_qq)
            most = sum_xq * sum_xq / sum_qq, best = (float)(sum_xq / sum_qq);
    }
    return best;
}

static void block_q6_k(const float *x, uint8_t *out) {
    uint8_t *low = out, *high = out + 128, *scales = out + 192;
    float fits[PARTS_6], largest = 0;
    int codes[LARGE];
    for (int i = 0; i < PARTS_6; i++) {
        fits[i] = fit_part_6(x + i * PART_6);
        if (fabsf(fits[i]) > fabsf(largest)) largest = fits[i];
    }
    float d = round_to_half(largest / -128);
    store_half(out + 208, d);
    for (int i = 0; i < PARTS_6; i++) {
        int s = d != 0 ? clamp((int)lrintf(fminf(fmaxf(fits[i] / d, -129), 129)), -128, 127) : 0;
        float step = d * (float)s, inverse = step != 0 ? 1 / step : 0;
        scales[i] = (uint8_t)(int8_t)s;
        for (int k = 0; k < PART_6; k++)
            codes[i * PART_6 + k] = (int)lrintf(fminf(fmaxf(x[i * PART_6 + k] * inverse, -32), 31)) + 32;
    }
    for (int half = 0; half < 2;
         half++) /* 128 numbers: four runs of 32, whose low bits lie in 64 bytes, high ones in 32 */
        for (int k = 0; k < SMALL; k++) {
            const int *q = codes + half * 128 + k;
            low[half * 64 + k] = (uint8_t)((q[0] & 15) | (q[64] & 15) << 4);
            low[half * 64 + 32 + k] = (uint8_t)((q[32] & 15) | (q[96] & 15) << 4);
            high[half * 32 + k] = (uint8_t)(q[0] >> 4 | q[32] >> 4 << 2 | q[64] >> 4 << 4 | q[96] >> 4 << 6);
        }
}

/* ------------------------------------------------------------------------------------------------------------------ */

void gguf_quantize(gguf_type t, const float *x, int64_t n, void *out) {
    void (*block)(const float *, uint8_t *) = t == GGUF_TYPE_Q8_0   ? block_q8_0
                                              : t == GGUF_TYPE_Q5_0 ? block_q5_0
                                              : t == GGUF_TYPE_Q4_K ? block_q4_k
                                              : t == GGUF_TYPE_Q6_K ? block_q6_k
                                                                    : NULL;
    gguf_layout l = gguf_layout_of(t);
    ASSERT(block && n % l.block == 0);
    uint8_t *to = out;
    memset(out, 0, (size_t)(n / l.block) * l.block_bytes);
    for (int64_t i = 0; i < n; i += l.block, to += l.block_bytes) block(x + i, to);
}
