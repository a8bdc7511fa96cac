/* linear_int8_x86.c - dot products of bytes (AVX512-VNNI), and matrices of them for eight rows at a time (AMX).
 *
 * Both take q as two bytes and weights in one order: 16 rows side by side, four steps of k of each, which is a tile of B for AMX and a
 * vector with a lane per weight row for VNNI, so no sum is taken across lanes. VPDPBUSD wants one side unsigned: a weight w is read as
 * w + 128, and sums begin with -128 times the sum of q's bytes. They may wrap on the way; modulo 2^32 the end is right. */
#if defined(__x86_64__)
#include "backend/cpu/linear_int8.h"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")
#include "backend/cpu/amx.h"

enum {
    PANEL = 16,    /* weight rows side by side, and q bytes of a tile of A */
    GROUP = 4,     /* steps of k */
    VECTOR = 64,   /* bytes */
    ROWS = 8,      /* of x at once */
    TILE_ROWS = 8, /* ... of a tile of A, each by two bytes */
    TILE_K = 64,
    CHAINS = 2, /* of sums that do not wait for each other */
};
_Static_assert(VECTOR == PANEL * GROUP, "a vector of codes has a lane per weight row");

#define INLINE static inline __attribute__((always_inline))

static bool vnni_supported(void) { return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static bool amx_supported(void) { return vnni_supported() && amx_allowed(AMX_INT8); }

INLINE __m512i as_unsigned(__m512i codes) { return _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80)); }
INLINE __m512i four_steps(const char *q) {
    int32_t steps;
    memcpy(&steps, q, sizeof steps);
    return _mm512_set1_epi32(steps);
}
INLINE __m512i sums_begin(int32_t sum_of_q) { return _mm512_set1_epi32((int32_t)(-128u * (uint32_t)sum_of_q)); }

INLINE void put_sums(double *to, __m512i high, __m512i low) {
    const __m512d by = _mm512_set1_pd(INT8_HIGH);
    __m512d h0 = _mm512_cvtepi32_pd(_mm512_castsi512_si256(high)), l0 = _mm512_cvtepi32_pd(_mm512_castsi512_si256(low));
    __m512d h1 = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(high, 1)),
            l1 = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(low, 1));
    _mm512_storeu_pd(to, _mm512_fmadd_pd(h0, by, l0)); /* exact */
    _mm512_storeu_pd(to + 8, _mm512_fmadd_pd(h1, by, l1));
}

/* ---- VNNI ------------------------------------------------------------------------------------------------------------ */

INLINE void panel_rows(const int n_rows, const int8_job *j, const int8_t *w, int64_t row, int8_sums sums, int column) {
    const char *q = j->q + 2 * j->k_padded * row;
    const int chains = n_rows <= 2 ? CHAINS : 1;
    __m512i high[ROWS][CHAINS], low[ROWS][CHAINS];
    for (int r = 0; r < n_rows; r++) {
        high[r][0] = sums_begin(j->q_sums[2 * (row + r)]), low[r][0] = sums_begin(j->q_sums[2 * (row + r) + 1]);
        for (int c = 1; c < chains; c++) high[r][c] = low[r][c] = _mm512_setzero_si512();
    }
    int64_t k = 0;
    for (int n_chains = chains; n_chains > 0; n_chains--) /* whole turns, then the rest one by one */
        for (; k + n_chains * GROUP <= j->k; k += n_chains * GROUP)
            for (int c = 0; c < n_chains; c++) {
                __m512i codes = as_unsigned(_mm512_loadu_si512(w + (k + c * GROUP) * PANEL));
                for (int r = 0; r < n_rows; r++) {
                    const char *at = q + 2 * r * j->k_padded + k + c * GROUP;
                    high[r][c] = _mm512_dpbusd_epi32(high[r][c], codes, four_steps(at));
                    low[r][c] = _mm512_dpbusd_epi32(low[r][c], codes, four_steps(at + j->k_padded));
                }
            }
    for (int r = 0; r < n_rows; r++) {
        for (int c = 1; c < chains; c++) {
            high[r][0] = _mm512_add_epi32(high[r][0], high[r][c]);
            low[r][0] = _mm512_add_epi32(low[r][0], low[r][c]);
        }
        put_sums(&sums[r][column], high[r][0], low[r][0]);
    }
}

static void vnni_panel(const int8_job *j, const int8_t *w, int64_t row, int n_rows, int8_sums sums, int column) {
    _Static_assert(ROWS == 8, "written out below");
    switch (n_rows) {
    case 1: panel_rows(1, j, w, row, sums, column); break;
    case 2: panel_rows(2, j, w, row, sums, column); break;
    case 3: panel_rows(3, j, w, row, sums, column); break;
    case 4: panel_rows(4, j, w, row, sums, column); break;
    case 5: panel_rows(5, j, w, row, sums, column); break;
    case 6: panel_rows(6, j, w, row, sums, column); break;
    case 7: panel_rows(7, j, w, row, sums, column); break;
    default: panel_rows(8, j, w, row, sums, column); break;
    }
}

/* A weight row that lies as a row. */
static double row_sum(const int8_job *j, int64_t n, int64_t row) {
    const int8_t *w = j->codes + n * j->k;
    const char *q = j->q + 2 * j->k_padded * row;
    __m512i high = _mm512_setzero_si512(), low = high;
    for (int64_t k = 0; k < j->k; k += VECTOR) {
        __mmask64 inside = j->k - k >= VECTOR ? ~(__mmask64)0 : ((__mmask64)1 << (j->k - k)) - 1;
        __m512i codes = as_unsigned(_mm512_maskz_loadu_epi8(inside, w + k));
        high = _mm512_dpbusd_epi32(high, codes, _mm512_maskz_loadu_epi8(inside, q + k));
        low = _mm512_dpbusd_epi32(low, codes, _mm512_maskz_loadu_epi8(inside, q + j->k_padded + k));
    }
    int32_t h = (int32_t)((uint32_t)_mm512_reduce_add_epi32(high) - 128u * (uint32_t)j->q_sums[2 * row]);
    int32_t l = (int32_t)((uint32_t)_mm512_reduce_add_epi32(low) - 128u * (uint32_t)j->q_sums[2 * row + 1]);
    return (double)h * INT8_HIGH + l;
}

/* How many of these weight rows are in the order of lanes: whole panels. */
INLINE int count_in_lanes(const int8_job *j, int64_t first, int n_weights) {
    return (int)MAX(MIN((int64_t)n_weights, j->n_lanes - first), (int64_t)0);
}

INLINE void panels(const int8_job *j, int64_t first, int64_t row, int in_lanes, int n_rows, int8_sums sums) {
    for (int i = 0; i < in_lanes; i += PANEL) vnni_panel(j, j->codes + (first + i) * j->k, row, n_rows, sums, i);
}

INLINE void rest(const int8_job *j, int64_t first, int64_t row, int in_lanes, int n_weights, int n_rows,
                 int8_sums sums) {
    for (int i = in_lanes; i < n_weights; i++)
        for (int r = 0; r < n_rows; r++) sums[r][i] = row_sum(j, first + i, row + r);
}

static void vnni_tile(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows, int8_sums sums) {
    int in_lanes = count_in_lanes(j, first, n_weights);
    panels(j, first, row, in_lanes, n_rows, sums);
    rest(j, first, row, in_lanes, n_weights, n_rows, sums);
}

/* ---- AMX ------------------------------------------------------------------------------------------------------------- */

/* TILE_ROWS rows of x, or twice as many, times 16 weight rows, or twice as many: each row of x is two rows of A, its high bytes and its low
 * ones. */
INLINE void tile_products(const bool more_rows, const bool more_weights, const int8_job *j, const int8_t *w,
                          int64_t row, int8_sums sums, int column) {
    const char *q = j->q + 2 * j->k_padded * row, *q_more = q + 2 * j->k_padded * TILE_ROWS;
    const int8_t *w_more = w + PANEL * j->k;
    int32_t c[4][2 * TILE_ROWS][PANEL];
    _tile_zero(0);
    if (more_weights) _tile_zero(1);
    if (more_rows) _tile_zero(2);
    if (more_rows && more_weights) _tile_zero(3);
    for (int64_t k = 0; k < j->k; k += TILE_K) {
        _tile_loadd(4, q + k, j->k_padded);
        _tile_loadd(6, w + k * PANEL, VECTOR);
        _tile_dpbssd(0, 4, 6);
        if (more_weights) {
            _tile_loadd(7, w_more + k * PANEL, VECTOR);
            _tile_dpbssd(1, 4, 7);
        }
        if (more_rows) {
            _tile_loadd(5, q_more + k, j->k_padded);
            _tile_dpbssd(2, 5, 6);
            if (more_weights) _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, c[0], sizeof c[0][0]);
    if (more_weights) _tile_stored(1, c[1], sizeof c[0][0]);
    if (more_rows) _tile_stored(2, c[2], sizeof c[0][0]);
    if (more_rows && more_weights) _tile_stored(3, c[3], sizeof c[0][0]);
    __asm__ volatile("" ::: "memory"); /* the tile intrinsics of gcc do not say that they write memory */
    for (int t = 0; t < 4; t++) {
        if ((t / 2 && !more_rows) || (t % 2 && !more_weights)) continue;
        for (int r = 0; r < TILE_ROWS; r++)
            put_sums(&sums[t / 2 * TILE_ROWS + r][column + t % 2 * PANEL], _mm512_loadu_si512(c[t][2 * r]),
                     _mm512_loadu_si512(c[t][2 * r + 1]));
    }
}

static void amx_tile(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows, int8_sums sums) {
    int in_tiles = j->k % TILE_K == 0 ? n_rows / TILE_ROWS * TILE_ROWS : 0,
        in_lanes = count_in_lanes(j, first, n_weights);
    __asm__ volatile("" ::: "memory"); /* nor that they read it */
    for (int i = 0; in_tiles > 0 && i < in_lanes; i += 2 * PANEL) {
        const int8_t *w = j->codes + (first + i) * j->k;
        bool more_rows = in_tiles > TILE_ROWS, more_weights = i + PANEL < in_lanes;
        if (more_rows && more_weights) tile_products(true, true, j, w, row, sums, i);
        else if (more_rows) tile_products(true, false, j, w, row, sums, i);
        else if (more_weights) tile_products(false, true, j, w, row, sums, i);
        else tile_products(false, false, j, w, row, sums, i);
    }
    for (int r = in_tiles; r < n_rows; r += ROWS)
        panels(j, first, row + r, in_lanes, MIN((int)ROWS, n_rows - r), sums + r);
    rest(j, first, row, in_lanes, n_weights, n_rows, sums);
}

const int8_kernel int8_vnni = {
    .name = "vnni",
    .supported = vnni_supported,
    .split = true,
    .rows = ROWS,
    .weights = 2 * PANEL,
    .lanes = {.panel = PANEL, .group = GROUP},
    .lanes_k = GROUP,
    .tile = vnni_tile,
};
const int8_kernel int8_amx = {
    .name = "amx",
    .supported = amx_supported,
    .split = true,
    .rows = 2 * TILE_ROWS,
    .weights = 2 * PANEL,
    .lanes = {.panel = PANEL, .group = GROUP},
    .lanes_k = GROUP,
    .tile = amx_tile,
    .begin = amx_begin,
    .end = amx_end,
};
#else
typedef int linear_int8_x86_is_for_x86_64; /* ISO C wants a declaration in every file */
#endif
