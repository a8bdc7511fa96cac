#pragma once
/* quantize.h - frozen weights in fewer bits: the formats, rows in, codes out, and the numbers that codes stand for.
 * Part of tensor/tensor.h, which other rooms include.
 *
 *     base_sizes n = base_sizes_of(BASE_NF4, n_out, n_in);
 *     base_codes to = {mem_alloc(n.codes), mem_alloc(n.scale_codes), mem_alloc(n.scales * 4), mem_alloc(n.offsets * 4)};
 *     quantizer q;
 *     quantizer_init(&q, &(quantizer_options){.name = "layers.0.mlp.up", .format = BASE_NF4, n_out, n_in, .to = to});
 *     while (...) TRY_GOTO(rc, quantizer_add(&q, rows, n_rows), end);    // all rows, in order, any number at a time
 *     rc = quantizer_finish(&q);
 * end:
 *     quantizer_fini(&q);
 *     base_dequantize(BASE_NF4, n_out, n_in, &to, w, 0, n_out * n_in);   // what DEQUANTIZE computes, as fp32
 *
 * The formats, for a weight w (out, in). Every number below is fp32 and every operation rounds once.
 *   int8   one scale per output row: with a = max(largest |w| of the row, 2^-100), code = w * (127 / a) to nearest even, scale =
 *          a / 127, w' = code * scale. |w' - w| <= 0.51 scale.
 *   fp8    e4m3, one scale per tensor, as QUANTIZE: code = w * (448 / a), scale = a / 448, w' = code * scale.
 *          |w' - w| <= max(|w| / 15.9, scale / 1000).
 *   nf4    as bitsandbytes: blocks of 64 elements in row order, across the ends of rows. With a = largest |w| of the block,
 *          code = the nearest of NF4_VALUES to w * (1 / a), the lower of two equally near; the first of two elements has the
 *          high half of a byte. Double quantisation: offset = mean of all a; blocks of 256 of the differences a - offset, scale =
 *          the largest |a - offset|, scale code = the nearest of DYNAMIC_VALUES to (a - offset) * (1 / scale), likewise.
 *          w' = NF4_VALUES[code] * (DYNAMIC_VALUES[scale code] * scale + offset). */
#include "base/base.h"

typedef enum base_format {
    BASE_COMPUTE, /* no codes: the weight in the dtype that the precision computes with */
    BASE_FP8,
    BASE_INT8,
    BASE_NF4,
    BASE_FORMAT_COUNT
} base_format;
const char *base_format_name(base_format f); /* the word of the setting model.base: "bf16", "fp8", "int8", "nf4" */
bool base_format_from_name(const char *name, base_format *out);

enum { NF4_BLOCK = 64, NF4_SCALE_BLOCK = 256 };         /* elements per scale, scales per fp32 scale of scales */
extern const float NF4_VALUES[16], DYNAMIC_VALUES[256]; /* ascending */

/* Elements of each operand of DEQUANTIZE for a weight (n_out, n_in); 0: it has none. Codes and scale codes have one byte each,
 * scales and offsets are fp32. Not for BASE_COMPUTE. */
typedef struct base_sizes {
    int64_t codes, scales, scale_codes, offsets;
} base_sizes;
base_sizes base_sizes_of(base_format f, int64_t n_out, int64_t n_in);
uint64_t base_bytes_of(base_format f, int64_t n_out, int64_t n_in); /* of all of them together */

typedef struct base_codes {
    void *codes;
    uint8_t *scale_codes;
    float *scale, *offset;
} base_codes;

/* The largest magnitude of n numbers and of `so_far`; what is not finite is passed over, quantizer_add refuses it. For fp8, whose
 * scale must be known before its first code. */
float quantize_absmax(float so_far, const float *x, int64_t n);

typedef struct quantizer_options {
    const char *name; /* of the weight, for errors; must live as long as the quantizer */
    base_format format;
    int64_t n_out, n_in;
    float absmax; /* fp8: the largest magnitude of the whole weight */
    base_codes to;
} quantizer_options;

typedef struct quantizer {
    quantizer_options o;
    int64_t n_done;         /* elements added so far */
    float block[NF4_BLOCK]; /* nf4: elements of a block that the next rows complete */
    float *absmax;          /* nf4: of every block, until their mean is known: a sixteenth of a byte per element */
} quantizer;

void quantizer_init(quantizer *q, const quantizer_options *o);
void quantizer_fini(quantizer *q);
/* The next rows (n_rows, n_in). ERR_INPUT names the weight and the place of a number that is not finite. */
status quantizer_add(quantizer *q, const float *rows, int64_t n_rows);
/* The same for rows that begin at first_row, a multiple of 64, and end at one or at the last: threads may add different ones at
 * once, each row is added once. */
status quantizer_add_at(quantizer *q, int64_t first_row, const float *rows, int64_t n_rows);
/* After the last row: ERR_BUG where rows are missing. */
status quantizer_finish(quantizer *q);

/* Elements first .. first + n of the weight in row order. */
void base_dequantize(base_format f, int64_t n_out, int64_t n_in, const base_codes *from, float *w, int64_t first,
                     int64_t n);
