/* sum.c - parts of several ranks, added in rank order.
 *
 * A piece of the result stays in L1 while the parts pass by, so memory sees every part read once and the result written
 * once: that is what bounds the speed, and the compiler's own vectors are enough to reach it. The sum is made beside the
 * result and stored at the end, because the result may lie on one of the parts.
 *
 * A bf16 accumulator is rounded after every part, as ACCUMULATE rounds it after every micro-batch, part p of n in
 * micro-batch m with the noise of micro-batch m * n + p (backend/cpu/noise.h says which noise an element takes): so n ranks
 * end with the bits of one rank that had their micro-batches in order. Everything else is rounded once, to nearest. */
#include "comm/comm_state.h"

enum { PIECE = 2048 };

static const uint8_t *part_at(const part_sum *s, int p, size_t element) {
    return (const uint8_t *)s->parts[p] + element * dtype_bytes(s->type);
}

/* ---- fp32 and 16 bits ----------------------------------------------------------------------------------------------- */

static void add_f32(float *restrict sum, const float *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) sum[i] += x[i];
}

static void add_part(const part_sum *s, int p, size_t i, size_t n, float *sum) {
    float x[PIECE];
    if (s->type == DTYPE_F32) {
        add_f32(sum, (const float *)part_at(s, p, i), n);
        return;
    }
    tensor_convert(x, DTYPE_F32, part_at(s, p, i), s->type, n);
    add_f32(sum, x, n);
}

static void sum_piece(const part_sum *s, size_t first, size_t i, size_t n) {
    uint8_t *out = (uint8_t *)s->out + (first + i) * dtype_bytes(s->type);
    float sum[PIECE];
    if (s->from_out) tensor_convert(sum, DTYPE_F32, out, s->type, n);
    else tensor_convert(sum, DTYPE_F32, part_at(s, 0, i), s->type, n);
    for (int p = s->from_out ? 0 : 1; p < s->n_parts; p++) add_part(s, p, i, n, sum);
    tensor_convert(out, s->type, sum, DTYPE_F32, n);
}

/* ---- fp64 ------------------------------------------------------------------------------------------------------------ */

static void sum_piece_f64(const part_sum *s, size_t first, size_t i, size_t n) {
    double *out = (double *)s->out + first + i, sum[PIECE];
    memcpy(sum, s->from_out ? (const void *)out : part_at(s, 0, i), n * sizeof *sum);
    for (int p = s->from_out ? 0 : 1; p < s->n_parts; p++) {
        const double *x = (const double *)part_at(s, p, i);
        for (size_t k = 0; k < n; k++) sum[k] += x[k];
    }
    memcpy(out, sum, n * sizeof *sum);
}

/* ---- bf16 with noise --------------------------------------------------------------------------------------------------- */

/* The piece lies in one block of noise; element e of the parameter is its first. */
static void round_with_noise(uint16_t *out, float *sum, size_t n, rng_noise noise, uint64_t e) {
    for (size_t k = 0; k < n; k++) {
        uint32_t r = (uint32_t)((e + k) % RNG_NOISE_BLOCK), word = rng_noise_word(noise, r / 32 * 16 + r % 16);
        out[k] = f32_to_bf16_stochastic(sum[k], (uint16_t)(r % 32 < 16 ? word : word >> 16));
        sum[k] = bf16_to_f32(out[k]);
    }
}

static void sum_piece_noisy(const part_sum *s, size_t first, size_t i, size_t n) {
    const step_scalars *t = s->noise;
    uint16_t *out = (uint16_t *)s->out + first + i, rounded[PIECE];
    uint64_t e = (uint64_t)s->op->attr.first_element + first + i;
    uint64_t key = s->op->attr.noise_key ^ ((uint64_t)t->noise_hi << 32 | t->noise_lo);
    float sum[PIECE];
    if (s->from_out) tensor_convert(sum, DTYPE_F32, out, DTYPE_BF16, n);
    else memset(sum, 0, sizeof sum);
    for (int p = 0; p < s->n_parts; p++) {
        uint32_t micro = t->micro * (uint32_t)s->n_parts + (uint32_t)p;
        rng_noise noise = rng_noise_block(key, (uint64_t)(micro << 8) << 32 | t->step, e / RNG_NOISE_BLOCK);
        if (!s->from_out && p == 0) tensor_convert(sum, DTYPE_F32, part_at(s, p, i), s->type, n);
        else add_part(s, p, i, n, sum);
        round_with_noise(rounded, sum, n, noise, e);
    }
    memcpy(out, rounded, n * sizeof *out);
}

void part_sum_run(const part_sum *s, size_t first, size_t n) {
    uint64_t e = s->noise ? (uint64_t)s->op->attr.first_element + first : 0;
    for (size_t i = 0, length; i < n; i += length) {
        length = MIN((size_t)PIECE, n - i);
        if (s->noise) {
            length = MIN(length, (size_t)(RNG_NOISE_BLOCK - (e + i) % RNG_NOISE_BLOCK));
            sum_piece_noisy(s, first, i, length);
        } else if (s->type == DTYPE_F64) {
            sum_piece_f64(s, first, i, length);
        } else {
            sum_piece(s, first, i, length);
        }
    }
}
