/* dequantize.c - DEQUANTIZE: the numbers that the codes of a frozen weight stand for.
 *
 * Every element is computed by the expressions of base_dequantize (tensor/quantize.h) and rounded once, so the bits depend
 * neither on the cut into tasks nor on the device. What limits it is memory, if codes are not looked up one by one:
 *   nf4    a block of 64 elements has 16 different numbers. They are computed and rounded once per block, and laid out as one
 *          table of 16 bytes for each byte of an element: one byte shuffle looks up that byte of 16 elements.
 *   fp8    a tensor has 256 different numbers, which each task computes once.
 *   int8   converted, multiplied and rounded in vectors. */
#include "backend/cpu/typed.h"

#include "backend/cpu/cpu.h"

enum { TASK_ELEMENTS = 1 << 15, RUN = 256 };
_Static_assert(TASK_ELEMENTS % NF4_BLOCK == 0, "tasks begin with whole blocks");

typedef struct dequantize_job {
    base_format format;
    base_codes from;
    void *w;
    dtype type;
    int64_t n, n_in;
} dequantize_job;

/* ---- nf4 --------------------------------------------------------------------------------------------------------- */

typedef uint8_t bytes16 __attribute__((vector_size(16)));

VEC_INLINE bytes16 bytes_load(const void *p) {
    bytes16 b;
    memcpy(&b, p, sizeof b);
    return b;
}

/* table[index[i]] for indices below 16. */
VEC_INLINE bytes16 look_up(bytes16 table, bytes16 index) {
#if defined(__aarch64__)
    return (bytes16)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#elif defined(__AVX2__)
    return (bytes16)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
#else
    bytes16 found;
    for (int i = 0; i < 16; i++) found[i] = table[index[i]];
    return found;
#endif
}

/* a0 b0 a1 b1 ... of the first halves, and of the second halves. */
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define ZIP2_LOW(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23)
#define ZIP2_HIGH(a, b) __builtin_shufflevector(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31)
/* Every second byte of a and b, one behind the other. */
#define UNZIP_EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define UNZIP_ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)

/* Byte k of each of the 16 numbers. */
enum { BYTES_MOST = 4 };
typedef struct nf4_table {
    bytes16 byte[BYTES_MOST];
} nf4_table;

VEC_INLINE nf4_table nf4_table_of(dtype t, float scale) {
    uint8_t numbers[16 * BYTES_MOST] __attribute__((aligned(64)));
    EACH_VEC(i, lanes, 16, { typed_store(numbers, t, i, lanes, typed_load(NF4_VALUES, DTYPE_F32, i, lanes) * scale); });
    bytes16 a = bytes_load(numbers), b = bytes_load(numbers + 16);
    if (t != DTYPE_F32) return (nf4_table){{UNZIP_EVEN(a, b), UNZIP_ODD(a, b)}};
    bytes16 c = bytes_load(numbers + 32), d = bytes_load(numbers + 48);
    bytes16 even_ab = UNZIP_EVEN(a, b), even_cd = UNZIP_EVEN(c, d), odd_ab = UNZIP_ODD(a, b), odd_cd = UNZIP_ODD(c, d);
    return (nf4_table){{UNZIP_EVEN(even_ab, even_cd), UNZIP_EVEN(odd_ab, odd_cd), UNZIP_ODD(even_ab, even_cd),
                        UNZIP_ODD(odd_ab, odd_cd)}};
}

/* 16 elements. */
VEC_INLINE void nf4_store(dtype t, uint8_t *w, const nf4_table *table, bytes16 codes) {
    bytes16 b0 = look_up(table->byte[0], codes), b1 = look_up(table->byte[1], codes);
    bytes16 low = ZIP_LOW(b0, b1), high = ZIP_HIGH(b0, b1);
    if (t != DTYPE_F32) {
        memcpy(w, &low, 16), memcpy(w + 16, &high, 16);
        return;
    }
    bytes16 b2 = look_up(table->byte[2], codes), b3 = look_up(table->byte[3], codes);
    bytes16 low23 = ZIP_LOW(b2, b3), high23 = ZIP_HIGH(b2, b3);
    bytes16 r[4] = {ZIP2_LOW(low, low23), ZIP2_HIGH(low, low23), ZIP2_LOW(high, high23), ZIP2_HIGH(high, high23)};
    memcpy(w, r, sizeof r);
}

/* A whole block. */
VEC_INLINE void nf4_block(dtype t, uint8_t *w, const uint8_t *codes, float scale) {
    nf4_table table = nf4_table_of(t, scale);
    size_t size = t == DTYPE_F32 ? 4 : 2;
    for (size_t i = 0; i < NF4_BLOCK / 2; i += 16) {
        bytes16 pairs = bytes_load(codes + i), first = pairs >> 4, second = pairs & 15;
        nf4_store(t, w + 2 * i * size, &table, ZIP_LOW(first, second));
        nf4_store(t, w + (2 * i + 16) * size, &table, ZIP_HIGH(first, second));
    }
}

VEC_INLINE void nf4_run(dtype t, const dequantize_job *j, int64_t first, int64_t end) {
    const uint8_t *codes = j->from.codes;
    size_t size = t == DTYPE_F32 ? 4 : 2;
    for (int64_t i = first; i < end; i += NF4_BLOCK) {
        int64_t block = i / NF4_BLOCK, n = MIN((int64_t)NF4_BLOCK, end - i);
        float scale =
            DYNAMIC_VALUES[j->from.scale_codes[block]] * j->from.scale[block / NF4_SCALE_BLOCK] + *j->from.offset;
        if (n == NF4_BLOCK) {
            nf4_block(t, (uint8_t *)j->w + (size_t)i * size, codes + i / 2, scale);
        } else { /* the last one: no byte behind the codes is read, and none behind w written */
            uint8_t part_codes[NF4_BLOCK / 2] = {0}, part[NF4_BLOCK * BYTES_MOST];
            memcpy(part_codes, codes + i / 2, (size_t)divide_up(n, 2));
            nf4_block(t, part, part_codes, scale);
            memcpy((uint8_t *)j->w + (size_t)i * size, part, (size_t)n * size);
        }
    }
}

/* ---- one byte per element ------------------------------------------------------------------------------------------ */

VEC_INLINE void fp8_run(dtype t, const dequantize_job *j, int64_t first, int64_t end) {
    const uint8_t *codes = j->from.codes;
    float scale = *j->from.scale, numbers[256];
    uint16_t halves[256];
    for (int e = 0; e < 256; e++) numbers[e] = e4m3_to_f32((uint8_t)e) * scale;
    if (t == DTYPE_F32) {
        for (int64_t i = first; i < end; i++) ((float *)j->w)[i] = numbers[codes[i]];
        return;
    }
    typed_round(t, halves, numbers, 256);
    for (int64_t i = first; i < end; i++) ((uint16_t *)j->w)[i] = halves[codes[i]];
}

VEC_INLINE void int8_run(dtype t, const dequantize_job *j, int64_t first, int64_t end) {
    const int8_t *codes = j->from.codes;
    float numbers[RUN];
    for (int64_t i = first, n; i < end; i += n) {
        int64_t row = i / j->n_in;
        n = MIN(MIN((int64_t)RUN, end - i), (row + 1) * j->n_in - i); /* of one row */
        float scale = j->from.scale[row];
        for (int64_t k = 0; k < n; k++) numbers[k] = (float)codes[i + k] * scale;
        typed_round(t, element_at(j->w, t, i), numbers, (size_t)n);
    }
}

static void dequantize_task(void *context, int64_t task, int thread) {
    const dequantize_job *j = context;
    int64_t first = task * TASK_ELEMENTS, end = MIN(first + TASK_ELEMENTS, j->n);
    switch (j->format) {
    case BASE_NF4: BY_TYPE(j->type, nf4_run, j, first, end); break;
    case BASE_FP8: BY_TYPE(j->type, fp8_run, j, first, end); break;
    case BASE_INT8: BY_TYPE(j->type, int8_run, j, first, end); break;
    case BASE_COMPUTE:
    case BASE_FORMAT_COUNT: ASSERT(!"a weight without codes");
    }
}

void cpu_kernel_DEQUANTIZE(backend_context *c, const kernel_call *k) { /* w = */
    const value *w = call_out(k, DEQUANTIZE_W);
    dequantize_job j = {.format = k->op->attr.base_format,
                        .from = {.codes = k->in[DEQUANTIZE_CODES],
                                 .scale_codes = k->in[DEQUANTIZE_SCALE_CODES],
                                 .scale = k->in[DEQUANTIZE_SCALE],
                                 .offset = k->in[DEQUANTIZE_OFFSET]},
                        .w = k->out[DEQUANTIZE_W],
                        .type = w->type,
                        .n = shape_count(&w->shape),
                        .n_in = w->shape.dim[1]};
    pool_run(c->threads, dequantize_task, &j, divide_up(j.n, TASK_ELEMENTS));
}
