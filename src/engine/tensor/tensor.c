/* tensor.c - the dtype table, shapes, and conversion between the three training formats.
 *
 * Every conversion exists as a scalar function (tensor.h, and those of fp16 and fp8 here) that defines the bits; the vector
 * loops below give exactly those bits, NaN payloads included, so a tensor may be converted in any pieces, by any
 * number of threads, on any machine. bf16 loops are plain C that the compiler vectorises, fp16 uses the conversion
 * instructions (always there on arm64, asked for at run time on x86-64).
 * Shapes that overflow and types without arithmetic are broken invariants here: formats check what files claim. */
#include "tensor/tensor.h"

#include <math.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

static const struct {
    const char *name, *file_name;
    size_t n_bytes;
    bool is_float;
} dtypes[DTYPE_COUNT] = {
#define X(e, name, bytes, st, fl) [DTYPE_##e] = {name, st, bytes, fl},
    DTYPE_TABLE(X)
#undef X
};

const char *dtype_name(dtype t) {
    ASSERT((unsigned)t < DTYPE_COUNT);
    return dtypes[t].name;
}

const char *dtype_file_name(dtype t) {
    ASSERT((unsigned)t < DTYPE_COUNT);
    return dtypes[t].file_name;
}

size_t dtype_bytes(dtype t) {
    ASSERT((unsigned)t < DTYPE_COUNT);
    return dtypes[t].n_bytes;
}

bool dtype_is_float(dtype t) {
    ASSERT((unsigned)t < DTYPE_COUNT);
    return dtypes[t].is_float;
}

bool dtype_from_file_name(const char *name, dtype *out) {
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (strcmp(dtypes[t].file_name, name) != 0) continue;
        *out = (dtype)t;
        return true;
    }
    return false;
}

/* ---- shapes -------------------------------------------------------------------------------------------------- */

int64_t shape_count(const shape *s) {
    ASSERT(s->rank >= 0 && s->rank <= SHAPE_MAX_RANK);
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) {
        ASSERT(s->dim[i] >= 0);
        ASSERT(!__builtin_mul_overflow(n, s->dim[i], &n));
    }
    return n;
}

int64_t shape_row_length(const shape *s) {
    ASSERT(s->rank > 0 && s->rank <= SHAPE_MAX_RANK && s->dim[s->rank - 1] > 0);
    return s->dim[s->rank - 1];
}

int64_t shape_row_count(const shape *s) { return shape_count(s) / shape_row_length(s); }

size_t shape_bytes(const shape *s, dtype t) {
    size_t n_bytes;
    ASSERT(!__builtin_mul_overflow((size_t)shape_count(s), dtype_bytes(t), &n_bytes));
    return n_bytes;
}

bool shape_equal(const shape *a, const shape *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

char *shape_format(char buf[64], const shape *s) {
    size_t at = 0;
    ASSERT(s->rank >= 0 && s->rank <= SHAPE_MAX_RANK);
    at += (size_t)snprintf(buf, 64, "(");
    for (int i = 0; i < s->rank && at < 64; i++)
        at += (size_t)snprintf(buf + at, 64 - at, "%s%lld", i ? ", " : "", (long long)s->dim[i]);
    if (at < 64) at += (size_t)snprintf(buf + at, 64 - at, ")");
    if (at >= 64) memcpy(buf + 60, "...", 4); /* four dims beyond 10^13: say that it was cut */
    return buf;
}

/* ---- conversion ---------------------------------------------------------------------------------------------- */

uint16_t f32_to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x1ffu)); /* quiet NaN, payload kept */
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);                         /* 65520 and up round to inf */
    if (mag < 0x38800000u) {                           /* below 2^-14 the result counts units of 2^-24 */
        if (mag <= 0x33000000u) return (uint16_t)sign; /* 2^-25 ties with zero, and zero is even */
        uint32_t shift = 126u - (mag >> 23), m = (mag & 0x7fffffu) | 0x800000u;
        uint32_t down = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
        return (uint16_t)(sign | (down + (rest > half || (rest == half && (down & 1)))));
    }
    mag += 0xfffu + ((mag >> 13) & 1); /* nearest even; a carry moves into the exponent as it should */
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

float e4m3_to_f32(uint8_t e) {
    uint32_t sign = (uint32_t)(e & 0x80u) << 24, mag = e & 0x7fu, u;
    float f;
    if (mag < 8) { /* zero and subnormals count units of 2^-9 */
        f = (float)mag * 0x1p-9f;
        memcpy(&u, &f, 4);
    } else if (mag == 0x7f) {
        u = 0x7fc00000u;
    } else {
        u = (mag << 20) + ((127u - 7u) << 23);
    }
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}

uint8_t f32_to_e4m3(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return 0x7fu;                    /* one NaN, as the conversion instructions have it */
    if (mag >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 and up */
    if (mag < 0x3c800000u) {                                /* below 2^-6 the result counts units of 2^-9 */
        float magnitude, units;
        memcpy(&magnitude, &mag, 4);
        units = magnitude + 0x1p14f; /* whose last bit is 2^-9: the sum is rounded as the result is to be */
        memcpy(&u, &units, 4);
        return (uint8_t)(sign | (u & 0xfu)); /* 8 is the smallest normal number */
    }
    mag += 0x7ffffu + ((mag >> 20) & 1); /* nearest even; a carry moves into the exponent as it should */
    return (uint8_t)(sign | ((mag - 0x3c000000u) >> 20));
}

float e5m2_to_f32(uint8_t e) { return f16_to_f32((uint16_t)(e << 8)); }

uint8_t f32_to_e5m2(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return 0x7fu;
    if (mag >= 0x47600000u) return (uint8_t)(sign | 0x7bu); /* 57344 and up */
    if (mag < 0x38800000u) {                                /* below 2^-14 the result counts units of 2^-16 */
        float magnitude, units;
        memcpy(&magnitude, &mag, 4);
        units = magnitude + 0x1p7f; /* whose last bit is 2^-16: the sum is rounded as the result is to be */
        memcpy(&u, &units, 4);
        return (uint8_t)(sign | (u & 0x7u)); /* 4 is the smallest normal number */
    }
    mag += 0xfffffu + ((mag >> 21) & 1); /* nearest even; a carry moves into the exponent as it should */
    return (uint8_t)(sign | ((mag - 0x38000000u) >> 21));
}

/* The bodies of the bf16 loops; always_inline so that each caller compiles them for its own instruction set. */
static inline __attribute__((always_inline)) void bf16_from_f32_body(uint16_t *restrict dst, const float *restrict src,
                                                                     size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u, rounded, quiet;
        memcpy(&u, src + i, 4);
        rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
        quiet = (u >> 16) | 0x40u;
        dst[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded); /* a select, so that it vectorises */
    }
}

static inline __attribute__((always_inline)) void f32_from_bf16_body(float *restrict dst, const uint16_t *restrict src,
                                                                     size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)src[i] << 16;
        memcpy(dst + i, &u, 4);
    }
}

static void bf16_from_f32(uint16_t *restrict dst, const float *restrict src, size_t n) {
    size_t i = 0;
#if defined(__aarch64__)
    for (; i + 8 <= n; i += 8) { /* half the instructions of what the compiler makes of the body: adds that narrow */
        float32x4_t a = vld1q_f32(src + i), b = vld1q_f32(src + i + 4);
        uint32x4_t ua = vreinterpretq_u32_f32(a), ub = vreinterpretq_u32_f32(b), bias = vdupq_n_u32(0x7fff);
        uint16x8_t high = vuzp2q_u16(vreinterpretq_u16_u32(ua), vreinterpretq_u16_u32(ub));
        uint16x8_t odd = vandq_u16(high, vdupq_n_u16(1));
        uint16x4_t low = vaddhn_u32(vaddw_u16(ua, vget_low_u16(odd)), bias);
        uint16x8_t rounded = vaddhn_high_u32(low, vaddw_high_u16(ub, odd), bias);
        uint16x8_t number = vuzp1q_u16(vreinterpretq_u16_u32(vceqq_f32(a, a)), vreinterpretq_u16_u32(vceqq_f32(b, b)));
        vst1q_u16(dst + i, vbslq_u16(number, rounded, vorrq_u16(high, vdupq_n_u16(0x40))));
    }
#endif
    bf16_from_f32_body(dst + i, src + i, n - i);
}

static void f32_from_bf16(float *restrict dst, const uint16_t *restrict src, size_t n) {
    f32_from_bf16_body(dst, src, n);
}

static void f16_from_f32(uint16_t *restrict dst, const float *restrict src, size_t n) {
    size_t i = 0;
#if defined(__aarch64__)
    for (; i + 8 <= n; i += 8) {
        float16x4_t low = vcvt_f16_f32(vld1q_f32(src + i));
        vst1q_u16(dst + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(src + i + 4))));
    }
#endif
    for (; i < n; i++) dst[i] = f32_to_f16(src[i]);
}

static void f32_from_f16(float *restrict dst, const uint16_t *restrict src, size_t n) {
    size_t i = 0;
#if defined(__aarch64__)
    for (; i + 8 <= n; i += 8) {
        float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(src + i));
        vst1q_f32(dst + i, vcvt_f32_f16(vget_low_f16(h)));
        vst1q_f32(dst + i + 4, vcvt_high_f32_f16(h));
    }
#endif
    for (; i < n; i++) dst[i] = f16_to_f32(src[i]);
}

typedef struct converters {
    void (*bf16_from_f32)(uint16_t *restrict dst, const float *restrict src, size_t n);
    void (*f32_from_bf16)(float *restrict dst, const uint16_t *restrict src, size_t n);
    void (*f16_from_f32)(uint16_t *restrict dst, const float *restrict src, size_t n);
    void (*f32_from_f16)(float *restrict dst, const uint16_t *restrict src, size_t n);
} converters;

static const converters portable = {bf16_from_f32, f32_from_bf16, f16_from_f32, f32_from_f16};

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,f16c")))

AVX2 static void bf16_from_f32_avx2(uint16_t *restrict dst, const float *restrict src, size_t n) {
    bf16_from_f32_body(dst, src, n);
}

AVX2 static void f32_from_bf16_avx2(float *restrict dst, const uint16_t *restrict src, size_t n) {
    f32_from_bf16_body(dst, src, n);
}

AVX2 static void f16_from_f32_avx2(uint16_t *restrict dst, const float *restrict src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(dst + i), h);
    }
    for (; i < n; i++) dst[i] = f32_to_f16(src[i]);
}

AVX2 static void f32_from_f16_avx2(float *restrict dst, const uint16_t *restrict src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    for (; i < n; i++) dst[i] = f16_to_f32(src[i]);
}

static const converters avx2 = {bf16_from_f32_avx2, f32_from_bf16_avx2, f16_from_f32_avx2, f32_from_f16_avx2};

#if defined(__clang__) /* older ones, as `make fuzz` may have, cannot ask for f16c; processors with AVX2 have it */
#define CPU_HAS_F16C true
#else
#define CPU_HAS_F16C __builtin_cpu_supports("f16c")
#endif

static const converters *converters_get(void) {
    return __builtin_cpu_supports("avx2") && CPU_HAS_F16C ? &avx2 : &portable;
}
#else
static const converters *converters_get(void) { return &portable; }
#endif

static bool is_training_type(dtype t) { return t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16; }

void tensor_convert(void *dst, dtype dst_type, const void *src, dtype src_type, size_t n) {
    ASSERT(is_training_type(dst_type) && is_training_type(src_type));
    if (n == 0) return;
    size_t dst_bytes = n * dtype_bytes(dst_type), src_bytes = n * dtype_bytes(src_type);
    if (dst_type == src_type) {
        memmove(dst, src, dst_bytes);
        return;
    }
    /* The elements have different sizes or are read ahead in vectors: in place would read what was just written. */
    uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;
    ASSERT(d + dst_bytes <= s || s + src_bytes <= d);

    const converters *c = converters_get();
    if (src_type == DTYPE_F32) {
        (dst_type == DTYPE_BF16 ? c->bf16_from_f32 : c->f16_from_f32)(dst, src, n);
    } else if (dst_type == DTYPE_F32) {
        (src_type == DTYPE_BF16 ? c->f32_from_bf16 : c->f32_from_f16)(dst, src, n);
    } else { /* between the halves: widening to fp32 is exact, so there is one rounding */
        float wide[1024];
        for (size_t i = 0, m; i < n; i += m) {
            m = MIN(n - i, ARRAY_LENGTH(wide));
            (src_type == DTYPE_BF16 ? c->f32_from_bf16 : c->f32_from_f16)(wide, (const uint16_t *)src + i, m);
            (dst_type == DTYPE_BF16 ? c->bf16_from_f32 : c->f16_from_f32)((uint16_t *)dst + i, wide, m);
        }
    }
}

float tensor_get_f32(const void *data, dtype t, size_t i) {
    switch (t) {
    case DTYPE_F32: return ((const float *)data)[i];
    case DTYPE_BF16: return bf16_to_f32(((const uint16_t *)data)[i]);
    case DTYPE_F16: return f16_to_f32(((const uint16_t *)data)[i]);
    case DTYPE_F64: return (float)((const double *)data)[i];
    case DTYPE_I32: return (float)((const int32_t *)data)[i];
    case DTYPE_I64: return (float)((const int64_t *)data)[i];
    case DTYPE_U8: return (float)((const uint8_t *)data)[i];
    case DTYPE_I8: return (float)((const int8_t *)data)[i];
    case DTYPE_F8E4M3: return e4m3_to_f32(((const uint8_t *)data)[i]);
    case DTYPE_F8E5M2:
    case DTYPE_BOOL:
    case DTYPE_COUNT: break;
    }
    ASSERT(!"this dtype has no arithmetic");
    return NAN;
}

/* An integer element takes only a value it can hold exactly: 3.5 as a token id is a bug of the caller. */
static int64_t exact_integer(float f, float low, float high) {
    ASSERT(f >= low && f <= high && f == rintf(f));
    return (int64_t)f;
}

void tensor_set_f32(void *data, dtype t, size_t i, float f) {
    switch (t) {
    case DTYPE_F32: ((float *)data)[i] = f; return;
    case DTYPE_BF16: ((uint16_t *)data)[i] = f32_to_bf16(f); return;
    case DTYPE_F16: ((uint16_t *)data)[i] = f32_to_f16(f); return;
    case DTYPE_F64: ((double *)data)[i] = (double)f; return;
    /* The greatest floats below 2^31 and 2^63. */
    case DTYPE_I32: ((int32_t *)data)[i] = (int32_t)exact_integer(f, -0x1p31f, 0x1.fffffep30f); return;
    case DTYPE_I64: ((int64_t *)data)[i] = exact_integer(f, -0x1p63f, 0x1.fffffep62f); return;
    case DTYPE_U8: ((uint8_t *)data)[i] = (uint8_t)exact_integer(f, 0, 255); return;
    case DTYPE_I8: ((int8_t *)data)[i] = (int8_t)exact_integer(f, -128, 127); return;
    case DTYPE_F8E4M3: ((uint8_t *)data)[i] = f32_to_e4m3(f); return;
    case DTYPE_F8E5M2:
    case DTYPE_BOOL:
    case DTYPE_COUNT: break;
    }
    ASSERT(!"this dtype has no arithmetic");
}
