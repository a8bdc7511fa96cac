#pragma once
/* tensor.h - dtypes, shapes and views. A view is (pointer, dtype, shape) and is never freed.
 *
 *     shape s = SHAPE(2, 3);
 *     size_t n = shape_bytes(&s, DTYPE_BF16);   // 12
 *     float f = bf16_to_f32(f32_to_bf16(1.0f));
 */
#include "base/base.h"
#include "tensor/quantize.h"

/* One row per dtype: enum, name, bytes per element, safetensors name, floating point. fp8_e4m3 is what products of 8 bits
 * read; fp8_e5m2 is reserved: it has a size and a file name, no arithmetic. bool is for files only: masks that old models
 * carry along. */
#define DTYPE_TABLE(X)                     \
    X(F32, "fp32", 4, "F32", 1)            \
    X(BF16, "bf16", 2, "BF16", 1)          \
    X(F16, "fp16", 2, "F16", 1)            \
    X(F64, "fp64", 8, "F64", 1)            \
    X(I32, "int32", 4, "I32", 0)           \
    X(I64, "int64", 8, "I64", 0)           \
    X(U8, "uint8", 1, "U8", 0)             \
    X(I8, "int8", 1, "I8", 0)              \
    X(F8E4M3, "fp8_e4m3", 1, "F8_E4M3", 1) \
    X(F8E5M2, "fp8_e5m2", 1, "F8_E5M2", 1) \
    X(BOOL, "bool", 1, "BOOL", 0)

typedef enum dtype {
#define X(e, name, bytes, st, fl) DTYPE_##e,
    DTYPE_TABLE(X)
#undef X
        DTYPE_COUNT
} dtype;

const char *dtype_name(dtype t);
const char *dtype_file_name(dtype t); /* as safetensors writes it */
size_t dtype_bytes(dtype t);
bool dtype_is_float(dtype t);
bool dtype_from_file_name(const char *name, dtype *out);

#define SHAPE_MAX_RANK 4
typedef struct shape {
    int rank;
    int64_t dim[SHAPE_MAX_RANK];
} shape;
#define SHAPE(...) ((shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
int64_t shape_count(const shape *s);      /* elements; rank 0 is one element */
int64_t shape_row_length(const shape *s); /* the last dimension is the row, all others count rows */
int64_t shape_row_count(const shape *s);
size_t shape_bytes(const shape *s, dtype t);
bool shape_equal(const shape *a, const shape *b);
char *shape_format(char buf[64], const shape *s); /* "(2, 3)" */

typedef struct tensor {
    void *data;
    dtype type;
    shape shape;
} tensor;

/* ---- element conversion: round to nearest even, NaN stays NaN ------------------------------------------------ */

static inline float bf16_to_f32(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
/* Rounds up with probability proportional to the distance, from 16 random bits. Inf and NaN pass through. */
static inline uint16_t f32_to_bf16_stochastic(float f, uint16_t noise) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7f800000u) == 0x7f800000u) return f32_to_bf16(f);
    return (uint16_t)((u + noise) >> 16);
}
static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = (uint32_t)(h & 0x7fffu) << 13, u;
    float f;
    if ((h & 0x7c00u) == 0) { /* zero and subnormals: an exact product, so flush-to-zero modes cannot bite */
        f = (float)(h & 0x3ffu) * 0x1p-24f;
        memcpy(&u, &f, 4);
    } else if (mag >= 0x0f800000u) {
        u = mag + ((255u - 31u) << 23);        /* inf, NaN */
        if (mag > 0x0f800000u) u |= 0x400000u; /* quiet, as the hardware conversions do */
    } else {
        u = mag + ((127u - 15u) << 23);
    }
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}
uint16_t f32_to_f16(float f);
/* e4m3: 4 exponent bits of bias 7, 3 of fraction, no infinity; 0x7f and 0xff are NaN, and 0x7f is what is written. What is
 * larger than 448 becomes 448, infinity too: whoever scales numbers into the range sees it there first. */
#define E4M3_MOST 448.0f
float e4m3_to_f32(uint8_t e);
uint8_t f32_to_e4m3(float f);
/* e5m2: the first byte of fp16, for gradients, which need range more than digits. What is larger than 57344 becomes 57344,
 * infinity too; 0x7f is the NaN that is written. */
float e5m2_to_f32(uint8_t e);
uint8_t f32_to_e5m2(float f);

/* n elements between any two of fp32, bf16, fp16. */
void tensor_convert(void *dst, dtype dst_type, const void *src, dtype src_type, size_t n);
float tensor_get_f32(const void *data, dtype t, size_t i);
void tensor_set_f32(void *data, dtype t, size_t i, float f);

/* ---- frozen weights in fewer bits: quantize.h ---------------------------------------------------------------------- */

dtype base_codes_type(base_format f); /* of the codes: fp8_e4m3, int8, or uint8 for nf4 */
