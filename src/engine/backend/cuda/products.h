#pragma once
/* products.h - which matrix products an op consists of, and the scratch they take; no CUDA in here.
 *
 * Both halves of the plug-in read this: the plan asks for the bytes where there is no GPU, the kernels lay out their
 * scratch by the same numbers. Everything follows from shapes and attributes alone.
 *
 *     product q = linear_product(p, o);
 *     size_t n = product_work_bytes(&q);     // what gemm_launch wants as scratch for it */
#include "program/program.h"

/* C (m, n) = A (m, k) B (k, n), row-major, sums in fp32, each element of C rounded once. */
typedef struct product {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;   /* elements between two rows as they are stored */
    bool a_turned, b_turned; /* stored as (k, m), as (n, k) */
    dtype type, c_type;      /* of A and B, of C */
    bool a_e5m2;             /* e4m3: A alone is e5m2, a gradient */
    bool blocks;             /* e4m3: scales are those of blocks, of rows of A and of B as it is stored ... */
    bool square;             /* ... but for B's, which are square */
    bool bias;               /* (n) of c_type is added to every row before the rounding */
    bool accumulate;         /* C += */
    bool add;                /* C = A B + what C held, of c_type, before the rounding */
    bool short_sums; /* e4m3: the tensor cores may keep fewer bits of a sum than fp32 has, and are faster for it */
    bool inside;     /* A, B and C may start at any row of their values and not only where values start */
} product;

bool product_equal(const product *a, const product *b);
/* May k be cut into parts that are added in a second step? It fills a GPU that a product of few rows leaves idle. */
bool product_may_split(const product *q);
size_t product_work_bytes(const product *q);

/* LINEAR, LINEAR_DX, LINEAR_DW, LINEAR_DW_ADD */
product linear_product(const program *p, const op *o);
product linear8_product(const program *p, const op *o); /* LINEAR8: of x and w */

/* How UNEMBED_LOSS, UNEMBED_STATS and their gradients cut their work, and where in their scratch things lie. unembed.c
 * explains the walks. */
typedef struct unembed_plan {
    int64_t N, C, V;         /* V: rows of w that are ids */
    int64_t vocab, first_id; /* of all ranks that share it; the id of row 0 */
    dtype type;              /* of h, w and the gradient of the logits */
    dtype dh_type, dw_type;  /* of the results; only where gradient, has_dw */
    bool gradient;
    bool has_dw;            /* dw is asked for; the chunks, and so the bits of dh, are the same without */
    bool keeps_states;      /* a maximum and a factor for every token */
    int64_t rows, n_chunks; /* tokens whose fp32 logits are held at once */
    int64_t ld;             /* floats from one row of a chunk to the next */
    bool stored;            /* the gradients of all logits are kept in 16 bits, (N, ld) */
    int64_t v_block;        /* columns of the vocabulary per step of the second walk; 0: there is none */
    int64_t v_ld;           /* floats from one row of such a block to the next */
    size_t at_stored, at_states, at_products, n_bytes; /* chunk or block, then these */
} unembed_plan;

unembed_plan unembed_plan_make(const program *p, const op *o);
/* The three products, for a number of tokens and of columns of the vocabulary. ld is that of the logits or, in elements of
 * type, of their gradient. */
product chunk_logits_product(int64_t C, dtype type, int64_t n_rows, int64_t n_columns,
                             int64_t ld); /* fp32 logits of rows of C */
product unembed_logits_product(const unembed_plan *u, int64_t n_rows, int64_t n_columns, int64_t ld);
product unembed_dh_product(const unembed_plan *u, int64_t n_rows, int64_t ld);
product unembed_dw_product(const unembed_plan *u, int64_t n_rows, int64_t n_columns, int64_t ld);
/* Elements of type from one row of the gradient to the next where it lies over the logits it came from. */
int64_t unembed_gradient_ld(const unembed_plan *u, int64_t ld);

/* UNEMBED_LOGITS: picked rows are copied together first, picked_bytes of them. */
product logits_product(const program *p, const op *o);
size_t logits_picked_bytes(const program *p, const op *o);

/* LINEAR_CODES. Up to so many rows the codes are multiplied as they are; of more, the weight is made into numbers in scratch first; but for
 * logits, whose table would be the largest value of the program: those read the codes once for every so many rows. Scratch begins with the
 * numbers, or with the picked rows of x; what the product takes lies behind, CODES_WORK(k) bytes of few_codes.cu. */
enum { CODES_ROWS_MOST = 64, CODES_BOX = 128 };
#define CODES_WORK(k) \
    ((size_t)CODES_ROWS_MOST * (2 * (size_t)(k) + ((size_t)(k) + CODES_BOX - 1) / CODES_BOX * sizeof(float)))
bool codes_are_numbers(const program *p, const op *o);
product codes_numbers_product(const program *p, const op *o);
size_t codes_numbers_bytes(const product *q);
size_t codes_picked_bytes(const program *p, const op *o);
