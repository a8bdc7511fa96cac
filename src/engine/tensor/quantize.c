/* quantize.c - weights to codes, and codes back to numbers (quantize.h has the formats).
 *
 * Rows come in order and leave as codes at once, so that loading a model needs no second copy of it: only nf4 keeps something
 * until the end, the scale of every block, because their mean is taken first. Here is the definition of every bit. The kernels of
 * DEQUANTIZE compute the same expressions, so a weight is the same number wherever it is dequantised.
 * Where bitsandbytes' backends differ from each other, this is chosen:
 *   - A block of zeros gets the code of 0, as on its CPU. On its GPU it gets code 0, which stands for -1 times a scale that
 *     double quantisation may have moved away from 0.
 *   - The reciprocal of a scale is taken of at least 1e-38, as on its CPU; the last, shorter block too is multiplied by it, as on
 *     its GPU.
 *   - The mean is a sum in double, rounded once: the last bit of a sum in fp32 depends on the machine.
 * Refuses: a number that is not finite, because every number of its block, row or tensor would be lost with it. */
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

static const char *const format_names[BASE_FORMAT_COUNT] = {
    [BASE_COMPUTE] = "bf16", [BASE_FP8] = "fp8", [BASE_INT8] = "int8", [BASE_NF4] = "nf4"};

const char *base_format_name(base_format f) {
    ASSERT((unsigned)f < BASE_FORMAT_COUNT);
    return format_names[f];
}

bool base_format_from_name(const char *name, base_format *out) {
    for (int f = 0; f < BASE_FORMAT_COUNT; f++) {
        if (strcmp(format_names[f], name) != 0) continue;
        *out = (base_format)f;
        return true;
    }
    return false;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* clang-format off */
const float NF4_VALUES[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
    -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

/* create_dynamic_map(signed=True) of bitsandbytes, whose last bits depend on how its torch computes linspace: this is the table
 * of tools/make_quantize_fixtures.py. 10^(i - 6) times the middles of 2^i equal parts of 0.1 .. 1 for i = 0 .. 6, with both
 * signs, and 0 and 1. */
const float DYNAMIC_VALUES[256] = {
    -0.99296874f, -0.9789063f, -0.96484375f, -0.9507812f, -0.93671876f, -0.92265624f, -0.9085938f, -0.89453125f,
    -0.8804687f, -0.86640626f, -0.85234374f, -0.8382813f, -0.82421875f, -0.8101562f, -0.79609376f, -0.78203124f,
    -0.7679688f, -0.75390625f, -0.7398437f, -0.72578126f, -0.7117188f, -0.6976563f, -0.68359375f, -0.6695312f,
    -0.65546876f, -0.6414063f, -0.6273438f, -0.61328125f, -0.5992187f, -0.58515626f, -0.5710938f, -0.5570313f,
    -0.54296875f, -0.5289062f, -0.5148437f, -0.50078124f, -0.4867187f, -0.47265625f, -0.45859373f, -0.44453126f,
    -0.43046874f, -0.41640624f, -0.40234375f, -0.38828123f, -0.37421876f, -0.36015624f, -0.34609374f, -0.33203125f,
    -0.31796873f, -0.30390626f, -0.28984374f, -0.27578127f, -0.26171875f, -0.24765624f, -0.23359375f, -0.21953125f,
    -0.20546874f, -0.19140625f, -0.17734376f, -0.16328125f, -0.14921875f, -0.13515624f, -0.12109375f, -0.107031256f,
    -0.09859375f, -0.09578126f, -0.092968754f, -0.09015625f, -0.08734375f, -0.08453125f, -0.08171876f, -0.07890625f,
    -0.07609375f, -0.07328125f, -0.070468746f, -0.067656256f, -0.06484375f, -0.06203125f, -0.059218753f, -0.05640625f,
    -0.05359375f, -0.05078125f, -0.04796875f, -0.04515625f, -0.042343747f, -0.03953125f, -0.036718752f, -0.03390625f,
    -0.03109375f, -0.028281251f, -0.02546875f, -0.02265625f, -0.019843752f, -0.01703125f, -0.01421875f, -0.01140625f,
    -0.00971875f, -0.009156249f, -0.00859375f, -0.00803125f, -0.00746875f, -0.00690625f, -0.00634375f, -0.00578125f,
    -0.0052187503f, -0.0046562497f, -0.00409375f, -0.0035312497f, -0.00296875f, -0.00240625f, -0.00184375f,
    -0.0012812499f, -0.0009437501f, -0.00083125f, -0.00071875006f, -0.0006062501f, -0.00049375003f, -0.00038125002f,
    -0.00026875004f, -0.00015625001f, -8.875e-05f, -6.625e-05f, -4.375e-05f, -2.1249998e-05f, -7.75e-06f,
    -3.2500002e-06f, -5.5000004e-07f, 0.0f, 5.5000004e-07f, 3.2500002e-06f, 7.75e-06f, 2.1249998e-05f, 4.375e-05f,
    6.625e-05f, 8.875e-05f, 0.00015625001f, 0.00026875004f, 0.00038125002f, 0.00049375003f, 0.0006062501f,
    0.00071875006f, 0.00083125f, 0.0009437501f, 0.0012812499f, 0.00184375f, 0.00240625f, 0.00296875f, 0.0035312497f,
    0.00409375f, 0.0046562497f, 0.0052187503f, 0.00578125f, 0.00634375f, 0.00690625f, 0.00746875f, 0.00803125f,
    0.00859375f, 0.009156249f, 0.00971875f, 0.01140625f, 0.01421875f, 0.01703125f, 0.019843752f, 0.02265625f,
    0.02546875f, 0.028281251f, 0.03109375f, 0.03390625f, 0.036718752f, 0.03953125f, 0.042343747f, 0.04515625f,
    0.04796875f, 0.05078125f, 0.05359375f, 0.05640625f, 0.059218753f, 0.06203125f, 0.06484375f, 0.067656256f,
    0.070468746f, 0.07328125f, 0.07609375f, 0.07890625f, 0.08171876f, 0.08453125f, 0.08734375f, 0.09015625f,
    0.092968754f, 0.09578126f, 0.09859375f, 0.107031256f, 0.12109375f, 0.13515624f, 0.14921875f, 0.16328125f,
    0.17734376f, 0.19140625f, 0.20546874f, 0.21953125f, 0.23359375f, 0.24765624f, 0.26171875f, 0.27578127f,
    0.28984374f, 0.30390626f, 0.31796873f, 0.33203125f, 0.34609374f, 0.36015624f, 0.37421876f, 0.38828123f,
    0.40234375f, 0.41640624f, 0.43046874f, 0.44453126f, 0.45859373f, 0.47265625f, 0.4867187f, 0.50078124f, 0.5148437f,
    0.5289062f, 0.54296875f, 0.5570313f, 0.5710938f, 0.58515626f, 0.5992187f, 0.61328125f, 0.6273438f, 0.6414063f,
    0.65546876f, 0.6695312f, 0.68359375f, 0.6976563f, 0.7117188f, 0.72578126f, 0.7398437f, 0.75390625f, 0.7679688f,
    0.78203124f, 0.79609376f, 0.8101562f, 0.82421875f, 0.8382813f, 0.85234374f, 0.86640626f, 0.8804687f, 0.89453125f,
    0.9085938f, 0.92265624f, 0.93671876f, 0.9507812f, 0.96484375f, 0.9789063f, 0.99296874f, 1.0f,
};
/* clang-format on */

/* The nearest of n ascending values, the lower of two equally near. */
static uint8_t nearest(const float *values, int n, float x) {
    int low = 0, high = n - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (x > (values[middle] + values[middle + 1]) / 2) low = middle + 1;
        else high = middle;
    }
    return (uint8_t)low;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static int64_t element_count(int64_t n_out, int64_t n_in) {
    shape s = SHAPE(n_out, n_in);
    return shape_count(&s);
}

base_sizes base_sizes_of(base_format f, int64_t n_out, int64_t n_in) {
    int64_t n = element_count(n_out, n_in), n_blocks = divide_up(n, NF4_BLOCK);
    switch (f) {
    case BASE_FP8: return (base_sizes){.codes = n, .scales = 1};
    case BASE_INT8: return (base_sizes){.codes = n, .scales = n_out};
    case BASE_NF4:
        return (base_sizes){.codes = divide_up(n, 2),
                            .scales = divide_up(n_blocks, NF4_SCALE_BLOCK),
                            .scale_codes = n_blocks,
                            .offsets = 1};
    case BASE_COMPUTE:
    case BASE_FORMAT_COUNT: break;
    }
    ASSERT(!"this format has no codes");
    return (base_sizes){0};
}

uint64_t base_bytes_of(base_format f, int64_t n_out, int64_t n_in) {
    base_sizes n = base_sizes_of(f, n_out, n_in);
    return (uint64_t)(n.codes + n.scale_codes) + (uint64_t)(n.scales + n.offsets) * sizeof(float);
}

dtype base_codes_type(base_format f) {
    ASSERT(f == BASE_FP8 || f == BASE_INT8 || f == BASE_NF4);
    return f == BASE_FP8 ? DTYPE_F8E4M3 : f == BASE_INT8 ? DTYPE_I8 : DTYPE_U8;
}

/* ---- largest magnitudes ------------------------------------------------------------------------------------------ */

/* As bits: of numbers without a sign the larger one has the larger bits, infinity and NaN above all. */
static uint32_t largest_bits(const float *x, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u &= 0x7fffffffu;
        most = MAX(most, u);
    }
    return most;
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float quantize_absmax(float so_far, const float *x, int64_t n) {
    float most = from_bits(largest_bits(x, n));
    if (isfinite(most)) return MAX(so_far, most);
    for (int64_t i = 0; i < n; i++) so_far = isfinite(x[i]) ? MAX(so_far, fabsf(x[i])) : so_far;
    return so_far;
}

/* Large enough that 448 over it is a number. */
static float scaled_by(float absmax) { return MAX(absmax, 0x1p-100f); }

/* ---- rows to codes ----------------------------------------------------------------------------------------------- */

void quantizer_init(quantizer *q, const quantizer_options *o) {
    ASSERT(o->format != BASE_COMPUTE && (unsigned)o->format < BASE_FORMAT_COUNT && o->n_out > 0 && o->n_in > 0);
    *q = (quantizer){.o = *o};
    if (o->format == BASE_NF4) {
        int64_t n_blocks = divide_up(element_count(o->n_out, o->n_in), NF4_BLOCK);
        q->absmax = mem_alloc((size_t)n_blocks * sizeof *q->absmax);
    } else if (o->format == BASE_FP8) {
        ASSERT(o->absmax >= 0 && isfinite(o->absmax));
        *o->to.scale = scaled_by(o->absmax) / E4M3_MOST;
    }
}

void quantizer_fini(quantizer *q) {
    free(q->absmax);
    *q = (quantizer){0};
}

static void int8_row(int8_t *codes, float *scale, const float *x, int64_t n) {
    const float magic =
        0x1.8p23f; /* whose last bit is 1: the sum is rounded to nearest even, in vectors on every machine */
    float a = scaled_by(from_bits(largest_bits(x, n))), factor = 127.0f / a;
    for (int64_t i = 0; i < n; i++) codes[i] = (int8_t)(int32_t)(x[i] * factor + magic - magic);
    *scale = a / 127.0f;
}

static void fp8_codes(uint8_t *codes, float absmax, const float *x, int64_t n) {
    float factor = E4M3_MOST / scaled_by(absmax);
    for (int64_t i = 0; i < n; i++) codes[i] = f32_to_e4m3(x[i] * factor);
}

/* One block of at most 64. The nearest value is found by counting the middles below: a loop without branches, four times as fast
 * as the search. */
static void nf4_block(quantizer *q, int64_t block, const float *x, int64_t n) {
    int32_t codes[NF4_BLOCK];
    float middles[15], a = from_bits(largest_bits(x, n)), inverse = 1.0f / MAX(a, 1e-38f);
    for (int k = 0; k < 15; k++) middles[k] = (NF4_VALUES[k] + NF4_VALUES[k + 1]) / 2;
    for (int64_t i = 0; i < n; i++) {
        float scaled = x[i] * inverse;
        codes[i] = 0;
        for (int k = 0; k < 15; k++) codes[i] += scaled > middles[k];
    }
    if (n % 2) codes[n] = nearest(NF4_VALUES, 16, 0); /* half a byte behind the last element */
    uint8_t *to = (uint8_t *)q->o.to.codes + block * (NF4_BLOCK / 2);
    for (int64_t i = 0; i < divide_up(n, 2); i++) to[i] = (uint8_t)(codes[2 * i] << 4 | codes[2 * i + 1]);
    q->absmax[block] = a;
}

/* n elements, some of which may complete a block that earlier rows began, and some begin one. */
static void nf4_elements(quantizer *q, const float *x, int64_t n) {
    for (int64_t at = q->n_done, end = at + n, m; at < end; at += m, x += m) {
        int64_t block = at / NF4_BLOCK, in_block = at % NF4_BLOCK;
        m = MIN(NF4_BLOCK - in_block, end - at);
        if (m == NF4_BLOCK) {
            nf4_block(q, block, x, m);
            continue;
        }
        memcpy(q->block + in_block, x, (size_t)m * sizeof *x);
        if (in_block + m == NF4_BLOCK) nf4_block(q, block, q->block, NF4_BLOCK);
    }
}

static status not_finite(const quantizer *q, const float *x, int64_t n) {
    int64_t i = 0;
    while (i < n - 1 && isfinite(x[i])) i++;
    int64_t at = q->n_done + i;
    return ERR(ERR_INPUT,
               "weight '%s' is %g at row %lld, column %lld: it cannot be stored as %s; check the model's file",
               q->o.name, (double)x[i], (long long)(at / q->o.n_in), (long long)(at % q->o.n_in),
               base_format_name(q->o.format));
}

status quantizer_add(quantizer *q, const float *rows, int64_t n_rows) {
    const quantizer_options *o = &q->o;
    int64_t n = n_rows * o->n_in, first_row = q->n_done / o->n_in;
    ASSERT(n_rows >= 0 && first_row + n_rows <= o->n_out);
    float most = from_bits(largest_bits(rows, n));
    if (!isfinite(most)) return not_finite(q, rows, n);
    if (o->format == BASE_FP8) {
        if (most > o->absmax)
            return ERR(ERR_BUG, "quantizer: '%s' has %g, beyond the largest magnitude %g that was given", o->name,
                       (double)most, (double)o->absmax);
        fp8_codes((uint8_t *)o->to.codes + q->n_done, o->absmax, rows, n);
    } else if (o->format == BASE_INT8) {
        for (int64_t r = 0; r < n_rows; r++)
            int8_row((int8_t *)o->to.codes + q->n_done + r * o->n_in, o->to.scale + first_row + r, rows + r * o->n_in,
                     o->n_in);
    } else {
        nf4_elements(q, rows, n);
    }
    q->n_done += n;
    return OK;
}

/* Blocks of nf4 never cross a multiple of 64 rows, so what these rows need is theirs alone; only the last of all may leave a block
 * that quantizer_finish completes. */
status quantizer_add_at(quantizer *q, int64_t first_row, const float *rows, int64_t n_rows) {
    quantizer part = {.o = q->o, .absmax = q->absmax, .n_done = first_row * q->o.n_in};
    bool last = first_row + n_rows == q->o.n_out;
    ASSERT(first_row % NF4_BLOCK == 0 && (last || n_rows % NF4_BLOCK == 0));
    TRY(quantizer_add(&part, rows, n_rows));
    if (last) memcpy(q->block, part.block, sizeof part.block);
    __atomic_fetch_add(&q->n_done, n_rows * q->o.n_in, __ATOMIC_RELAXED);
    return OK;
}

/* The scales of nf4, themselves in 8 bits. */
static void quantize_scales(const quantizer *q, int64_t n_blocks) {
    double sum = 0;
    for (int64_t b = 0; b < n_blocks; b++) sum += q->absmax[b];
    float offset = *q->o.to.offset = (float)(sum / (double)n_blocks);
    for (int64_t first = 0; first < n_blocks; first += NF4_SCALE_BLOCK) {
        int64_t end = MIN(first + NF4_SCALE_BLOCK, n_blocks);
        float most = 0;
        for (int64_t b = first; b < end; b++) most = MAX(most, fabsf(q->absmax[b] - offset));
        float inverse = 1.0f / MAX(most, 1e-38f);
        for (int64_t b = first; b < end; b++)
            q->o.to.scale_codes[b] = nearest(DYNAMIC_VALUES, 256, (q->absmax[b] - offset) * inverse);
        q->o.to.scale[first / NF4_SCALE_BLOCK] = most;
    }
}

status quantizer_finish(quantizer *q) {
    int64_t n = element_count(q->o.n_out, q->o.n_in);
    if (q->n_done != n)
        return ERR(ERR_BUG, "quantizer: '%s' got %lld of %lld rows", q->o.name, (long long)(q->n_done / q->o.n_in),
                   (long long)q->o.n_out);
    if (q->o.format != BASE_NF4) return OK;
    if (n % NF4_BLOCK) nf4_block(q, n / NF4_BLOCK, q->block, n % NF4_BLOCK);
    quantize_scales(q, divide_up(n, NF4_BLOCK));
    return OK;
}

/* ---- codes to numbers -------------------------------------------------------------------------------------------- */

void base_dequantize(base_format f, int64_t n_out, int64_t n_in, const base_codes *from, float *w, int64_t first,
                     int64_t n) {
    ASSERT(first >= 0 && n >= 0 && first + n <= element_count(n_out, n_in));
    const uint8_t *codes = from->codes;
    for (int64_t i = first; i < first + n; i++, w++) {
        if (f == BASE_FP8) {
            *w = e4m3_to_f32(codes[i]) * *from->scale;
        } else if (f == BASE_INT8) {
            *w = (float)((const int8_t *)from->codes)[i] * from->scale[i / n_in];
        } else {
            ASSERT(f == BASE_NF4);
            int64_t block = i / NF4_BLOCK;
            float scale =
                DYNAMIC_VALUES[from->scale_codes[block]] * from->scale[block / NF4_SCALE_BLOCK] + *from->offset;
            *w = NF4_VALUES[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * scale;
        }
    }
}
