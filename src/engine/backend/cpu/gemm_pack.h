#pragma once
/* gemm_pack.h - private to the GEMM: copy a slice of an operand into a panel, for every panel layout in use.
 *
 * Included by each kernel file after its target pragma, so that the same code is compiled for that instruction set;
 * the panel sizes are constants at every call and the loops unroll. Written with 128-bit generic vectors: packing
 * moves each element once per few hundred multiplications, and these compile to the same zips on ARM and x86.
 *
 * The slice is passed by value: gcc would read its fields again after every store through the panel.
 * A whole panel is copied in blocks with one fast loop per direction in which the source is contiguous; what is left
 * over (the last steps of k, a panel with missing rows) takes the scalar path at the end. */
#include "backend/cpu/gemm_kernels.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#define PACK_INLINE static inline __attribute__((always_inline))

typedef float pack_f32x4 __attribute__((vector_size(16)));
typedef uint32_t pack_u32x4 __attribute__((vector_size(16)));
typedef uint64_t pack_u64x2 __attribute__((vector_size(16)));
typedef uint16_t pack_u16x8 __attribute__((vector_size(16)));

PACK_INLINE pack_u32x4 pack_load(const void *p) {
    pack_u32x4 v;
    memcpy(&v, p, 16);
    return v;
}
PACK_INLINE pack_u32x4 pack_load_half(const void *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return (pack_u32x4)(pack_u64x2){v, 0};
}
PACK_INLINE void pack_store(void *p, pack_u32x4 v) { memcpy(p, &v, 16); }

/* Two rows interleaved by 16-bit element: (a0 b0 a1 b1 ...), low and high half. */
PACK_INLINE pack_u32x4 pack_zip_low(pack_u32x4 a, pack_u32x4 b) {
    return (pack_u32x4)__builtin_shufflevector((pack_u16x8)a, (pack_u16x8)b, 0, 8, 1, 9, 2, 10, 3, 11);
}
PACK_INLINE pack_u32x4 pack_zip_high(pack_u32x4 a, pack_u32x4 b) {
    return (pack_u32x4)__builtin_shufflevector((pack_u16x8)a, (pack_u16x8)b, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* Four neighbours of any float type, as the bits of fp32. */
PACK_INLINE pack_u32x4 pack_widen(const void *data, dtype type, int64_t i) {
    if (type == DTYPE_F32) return pack_load((const float *)data + i);
    const uint16_t *p = (const uint16_t *)data + i;
    if (type == DTYPE_BF16) return pack_zip_low((pack_u32x4){0}, pack_load_half(p)); /* the upper half of an fp32 */
#if defined(__aarch64__)
    return (pack_u32x4)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#elif defined(__F16C__)
    return (pack_u32x4)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p));
#else
    return (pack_u32x4)(pack_f32x4){f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3])};
#endif
}

PACK_INLINE void pack_transpose(pack_u32x4 v[4]) {
    pack_u32x4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 2, 6), b = __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7);
    pack_u32x4 c = __builtin_shufflevector(v[2], v[3], 0, 4, 2, 6), d = __builtin_shufflevector(v[2], v[3], 1, 5, 3, 7);
    v[0] = (pack_u32x4)__builtin_shufflevector((pack_u64x2)a, (pack_u64x2)c, 0, 2);
    v[1] = (pack_u32x4)__builtin_shufflevector((pack_u64x2)b, (pack_u64x2)d, 0, 2);
    v[2] = (pack_u32x4)__builtin_shufflevector((pack_u64x2)a, (pack_u64x2)c, 1, 3);
    v[3] = (pack_u32x4)__builtin_shufflevector((pack_u64x2)b, (pack_u64x2)d, 1, 3);
}

#if defined(__AVX512F__)
enum { PACK_WIDE = 16 }; /* elements of 32 bits */

PACK_INLINE void pack_transpose_wide(__m512i v[PACK_WIDE]) {
    __m512i t[PACK_WIDE], u[PACK_WIDE];
    for (int i = 0; i < PACK_WIDE; i += 2)
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    for (int i = 0; i < PACK_WIDE; i += 4) { /* columns c, 4 + c, 8 + c, 12 + c of four rows in u[i + c] */
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]), u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]), u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        __m512i even = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88), odd = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xdd);
        __m512i even2 = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
        __m512i odd2 = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xdd);
        v[c] = _mm512_shuffle_i32x4(even, even2, 0x88), v[8 + c] = _mm512_shuffle_i32x4(even, even2, 0xdd);
        v[4 + c] = _mm512_shuffle_i32x4(odd, odd2, 0x88), v[12 + c] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
    }
}

PACK_INLINE __m512i pack_widen_wide(const void *data, dtype type, int64_t i) {
    if (type == DTYPE_F32) return _mm512_loadu_si512((const float *)data + i);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)data + i));
    if (type == DTYPE_BF16) return _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
    return _mm512_castps_si512(_mm512_cvtph_ps(h));
}

/* Rows of 16 elements of 32 bits each turned: 16 lines of a panel of r rows, from row i of it on. */
PACK_INLINE void pack_put_turned(void *out, int r, int i, __m512i v[PACK_WIDE]) {
    const __mmask16 rows = (__mmask16)(r - i >= PACK_WIDE ? 0xffff : (1 << (r - i)) - 1);
    pack_transpose_wide(v);
    for (int c = 0; c < PACK_WIDE; c++) _mm512_mask_storeu_epi32((uint32_t *)out + c * r + i, rows, v[c]);
}

/* Two rows of k, of which these are 32 neighbours of 16 bits, interleaved: the first or the last 16 pairs. */
PACK_INLINE __m512i pack_zip_wide(const uint16_t *row, int64_t step, bool last) {
    const __m512i pairs = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    __m512i at = last ? _mm512_add_epi16(pairs, _mm512_set1_epi16(PACK_WIDE)) : pairs;
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(row), at, _mm512_loadu_si512(row + step));
}
#endif

/* ---- fp32 panels, [k][rows]: 16-bit sources are widened on the way --------------------------------------------- */

PACK_INLINE void pack_f32_typed(float *out, int r, gemm_slice s, dtype type) {
    int64_t k = 0;
    if (s.rows == r && s.k_stride == 1) {
#if defined(__AVX512F__)
        for (; k + PACK_WIDE <= s.k; k += PACK_WIDE)
            for (int i = 0; i < r; i += PACK_WIDE) {
                __m512i v[PACK_WIDE];
                for (int j = 0; j < PACK_WIDE; j++)
                    v[j] =
                        i + j < r ? pack_widen_wide(s.data, type, (i + j) * s.row_stride + k) : _mm512_setzero_si512();
                pack_put_turned(out + k * r, r, i, v);
            }
#endif
        for (; k + 4 <= s.k; k += 4)
            for (int i = 0; i < r; i += 4) {
                pack_u32x4 v[4];
                for (int j = 0; j < 4; j++) v[j] = pack_widen(s.data, type, (i + j) * s.row_stride + k);
                pack_transpose(v);
                for (int j = 0; j < 4; j++) pack_store(out + (k + j) * r + i, v[j]);
            }
    } else if (s.rows == r && s.row_stride == 1) {
        for (; k < s.k; k++)
            for (int i = 0; i < r; i += 4) pack_store(out + k * r + i, pack_widen(s.data, type, k * s.k_stride + i));
    }
    for (; k < s.k; k++)
        for (int i = 0; i < r; i++)
            out[k * r + i] = i < s.rows ? tensor_get_f32(s.data, type, (size_t)(i * s.row_stride + k * s.k_stride)) : 0;
}

PACK_INLINE void pack_f32(void *panel, int r, gemm_slice s) {
    switch (s.type) {
    case DTYPE_F32: pack_f32_typed(panel, r, s, DTYPE_F32); break;
    case DTYPE_BF16: pack_f32_typed(panel, r, s, DTYPE_BF16); break;
    default: pack_f32_typed(panel, r, s, DTYPE_F16); break;
    }
}

/* ---- bf16 panels, [k / kr][rows][kr], kr = 2, 4 or 32 ------------------------------------------------------------ */

/* Rows of k follow each other in the source: whole groups of kr are copied as they lie. */
PACK_INLINE int64_t pack_u16_along_k(uint16_t *out, int r, int kr, gemm_slice s) {
    const uint16_t *in = s.data;
    int64_t k = 0;
    if (kr == 2) {
#if defined(__AVX512F__)
        for (; k + 2 * PACK_WIDE <= s.k; k += 2 * PACK_WIDE)
            for (int i = 0; i < r; i += PACK_WIDE) {
                __m512i v[PACK_WIDE];
                for (int j = 0; j < PACK_WIDE; j++)
                    v[j] = i + j < r ? _mm512_loadu_si512(in + (i + j) * s.row_stride + k) : _mm512_setzero_si512();
                pack_put_turned(out + k * r, r, i, v);
            }
#endif
        for (; k + 8 <= s.k; k += 8)
            for (int i = 0; i < r; i += 4) {
                pack_u32x4 v[4];
                for (int j = 0; j < 4; j++) v[j] = pack_load(in + (i + j) * s.row_stride + k);
                pack_transpose(v);
                for (int j = 0; j < 4; j++) pack_store(out + (k + 2 * j) * r + 2 * i, v[j]);
            }
    } else if (kr == 4) {
        for (; k + 8 <= s.k; k += 8)
            for (int i = 0; i < r; i += 2) {
                pack_u64x2 a = (pack_u64x2)pack_load(in + i * s.row_stride + k);
                pack_u64x2 b = (pack_u64x2)pack_load(in + (i + 1) * s.row_stride + k);
                pack_store(out + k * r + 4 * i, (pack_u32x4)__builtin_shufflevector(a, b, 0, 2));
                pack_store(out + (k + 4) * r + 4 * i, (pack_u32x4)__builtin_shufflevector(a, b, 1, 3));
            }
    } else {
        for (; k + kr <= s.k; k += kr)
            for (int i = 0; i < r; i++)
                memcpy(out + k * r + (int64_t)i * kr, in + i * s.row_stride + k, (size_t)kr * 2);
    }
    return k;
}

/* Four rows of (k0 k1) pairs and of (k2 k3) pairs: the two pairs of each row side by side. */
PACK_INLINE void pack_pairs(uint16_t *to, pack_u32x4 first, pack_u32x4 second) {
    pack_store(to, __builtin_shufflevector(first, second, 0, 4, 1, 5));
    pack_store(to + 8, __builtin_shufflevector(first, second, 2, 6, 3, 7));
}

/* Rows of the panel follow each other in the source: kr steps of k are woven together. */
PACK_INLINE int64_t pack_u16_along_rows(uint16_t *out, int r, int kr, gemm_slice s) {
    const uint16_t *in = s.data;
    int64_t k = 0, step = s.k_stride;
#if defined(__AVX512F__)
    if (r % 32 == 0 && kr == 2) {
        for (; k + 2 <= s.k; k += 2)
            for (int i = 0; i < r; i += 32)
                for (int half = 0; half < 2; half++)
                    _mm512_storeu_si512(out + k * r + 2 * i + 32 * half, pack_zip_wide(in + k * step + i, step, half));
    } else if (r % 32 == 0 && kr == 32) {
        for (; k + kr <= s.k; k += kr)
            for (int i = 0; i < r; i += PACK_WIDE) {
                __m512i v[PACK_WIDE]; /* two steps of k of each of 16 rows */
                for (int j = 0; j < PACK_WIDE; j++)
                    v[j] = pack_zip_wide(in + (k + 2 * j) * step + i / 32 * 32, step, i % 32 != 0);
                pack_transpose_wide(v);
                for (int j = 0; j < PACK_WIDE; j++) _mm512_storeu_si512(out + k * r + (int64_t)(i + j) * kr, v[j]);
            }
    }
#endif
    if (kr == 2) {
        for (; k + 2 <= s.k; k += 2) {
            int i = 0;
            for (; i + 8 <= r; i += 8) {
                pack_u32x4 a = pack_load(in + k * step + i), b = pack_load(in + (k + 1) * step + i);
                pack_store(out + k * r + 2 * i, pack_zip_low(a, b));
                pack_store(out + k * r + 2 * i + 8, pack_zip_high(a, b));
            }
            if (i < r) /* panels are multiples of 4 */
                pack_store(out + k * r + 2 * i,
                           pack_zip_low(pack_load_half(in + k * step + i), pack_load_half(in + (k + 1) * step + i)));
        }
    } else if (kr == 4) {
        for (; k + 4 <= s.k; k += 4) {
            const uint16_t *from = in + k * step;
            uint16_t *to = out + k * r;
            int i = 0;
            for (; i + 8 <= r; i += 8, to += 32) {
                pack_u32x4 a = pack_load(from + i), b = pack_load(from + step + i);
                pack_u32x4 c = pack_load(from + 2 * step + i), d = pack_load(from + 3 * step + i);
                pack_pairs(to, pack_zip_low(a, b), pack_zip_low(c, d));
                pack_pairs(to + 16, pack_zip_high(a, b), pack_zip_high(c, d));
            }
            if (i < r) { /* panels are multiples of 4 */
                pack_u32x4 a = pack_load_half(from + i), b = pack_load_half(from + step + i);
                pack_u32x4 c = pack_load_half(from + 2 * step + i), d = pack_load_half(from + 3 * step + i);
                pack_pairs(to, pack_zip_low(a, b), pack_zip_low(c, d));
            }
        }
    } else {
        for (; k + kr <= s.k; k += kr)
            for (int i = 0; i < r; i += 8)
                for (int pair = 0; pair < kr; pair += 8) { /* 8 rows x 8 steps of k */
                    pack_u32x4 low[4], high[4];
                    for (int j = 0; j < 4; j++) {
                        const uint16_t *p = in + (k + pair + 2 * j) * step + i;
                        pack_u32x4 a = pack_load(p), b = pack_load(p + step);
                        low[j] = pack_zip_low(a, b), high[j] = pack_zip_high(a, b);
                    }
                    pack_transpose(low), pack_transpose(high);
                    uint16_t *to = out + k * r + (int64_t)i * kr + pair;
                    for (int j = 0; j < 4; j++) pack_store(to + j * kr, low[j]), pack_store(to + (j + 4) * kr, high[j]);
                }
    }
    return k;
}

PACK_INLINE void pack_u16(void *panel, int r, int kr, gemm_slice s) {
    const uint16_t *in = s.data;
    uint16_t *out = panel;
    int64_t k = 0;
    if (s.rows == r && s.k_stride == 1) k = pack_u16_along_k(out, r, kr, s);
    else if (s.rows == r && s.row_stride == 1) k = pack_u16_along_rows(out, r, kr, s);
    else if (kr == 4 && s.k_stride == 1) /* few rows, as decoding has them */
        for (; k + kr <= s.k; k += kr)
            for (int i = 0; i < r; i++) {
                uint64_t four = 0;
                if (i < s.rows) memcpy(&four, in + i * s.row_stride + k, sizeof four);
                memcpy(out + k * r + i * kr, &four, sizeof four);
            }
    else if (kr == 32 && s.k_stride == 1)
        for (; k + kr <= s.k; k += kr)
            for (int i = 0; i < r; i++) {
                if (i < s.rows) memcpy(out + k * r + i * kr, in + i * s.row_stride + k, (size_t)kr * 2);
                else memset(out + k * r + i * kr, 0, (size_t)kr * 2);
            }
    for (; k < s.k; k += kr) /* k is a multiple of kr here; the group after the end is filled with zeros */
        for (int i = 0; i < r; i++)
            for (int j = 0; j < kr; j++)
                out[k * r + i * kr + j] = i < s.rows && k + j < s.k ? in[i * s.row_stride + (k + j) * s.k_stride] : 0;
}
