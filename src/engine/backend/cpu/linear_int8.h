#pragma once
/* linear_int8.h - private to LINEAR_INT8: rows of x as integers, what a kernel makes of them, and the list of kernels.
 *
 * An integer q of 16 bits is kept as it is or as two bytes, q = 256 high + low with low from -128 to 127. Sums of products of integers are
 * exact, so every kernel gives the same numbers, and a job may be cut in any way. */
#include "backend/cpu/gemm.h"

enum {
    INT8_HIGH = 256,
    INT8_MOST = 127 * INT8_HIGH, /* |q| */
    INT8_UNIT = 16,              /* rows of q are padded with zeros to a multiple of it */
    INT8_ROWS_MOST = 16,         /* of a tile of any kernel */
    INT8_WEIGHTS_MOST = 32,
};

typedef struct int8_kernel int8_kernel;

typedef struct int8_job {
    const kernel_call *call;
    const int8_kernel *kernel;
    const int8_t *codes;
    const float *scale;
    int64_t m, n, k, k_padded, weights_per_task;
    int64_t n_lanes; /* weight rows that are in the order of lanes */
    char *q; /* (m, 2 k_padded) bytes: the high bytes of a row, then the low ones; or 16-bit integers. 0 behind k */
    int64_t n_paired; /* rows of q in pairs: 8 bytes of one, 8 of the other; the high ones of both, then the low ones */
    float *q_scale;   /* (m); NaN: the row is not finite */
    int32_t *q_sums;  /* (m, 2), of the high and of the low bytes of a row that is not in pairs */
    dtype x_type, y_type;
} int8_job;

/* [row of x][weight row] */
typedef double int8_sums[INT8_ROWS_MOST][INT8_WEIGHTS_MOST];

struct int8_kernel {
    const char *name;
    bool (*supported)(void); /* on the machine that runs this */
    bool split;              /* q as bytes */
    int rows, weights;       /* of a tile, at most */
    int paired_rows; /* so many rows at once from the front, in pairs, where all weights are in the order of lanes; 0: none */
    gemm_lanes lanes; /* the order of lanes that it takes, in whole multiples of lanes_k; panel 0: none */
    int lanes_k;
    /* sums[r][i] = weight row `first` + i times row `row` + r of q. Of weight rows in the order of lanes whole panels. */
    void (*tile)(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows, int8_sums sums);
    void (*begin)(void), (*end)(void); /* per task, where a thread needs a state of its own; or NULL */
};

#if defined(__aarch64__)
extern const int8_kernel int8_smmla, int8_sdot;
#elif defined(__x86_64__)
extern const int8_kernel int8_amx, int8_vnni;
#endif

/* For tests: force a kernel by name (NULL = automatic). False when this machine cannot run it. */
bool int8_force_kernel(const char *name);
const char *int8_kernel_list(int i); /* every name compiled in; NULL at the end */
