/* gemm.c - descriptors, choice and call of cuBLASLt products.
 *
 * cuBLASLt counts columns first, we count rows first: our C (m, n) is its D (n, m), its first operand is our B. So its
 * three shapes of a linear layer are y = x w^T: TN, dx = dy w: NN, dw = dy^T x: NT.
 *
 * The choice. cuBLASLt names its candidates, best guess first; they are timed on the op's own buffers, and the first of
 * them that is within NEARLY of the fastest is taken, so that noise does not choose between equals. One that cuts k must be
 * faster by SPLIT_GAIN. The choice goes to the cache, and there the first process to write decides for all.
 *
 * Where choices cannot be kept nothing is measured: two runs could measure differently and differ in bits, while the first
 * guess is the same in every run. So is the guess for a product that nobody prepared.
 *
 * Products of few rows, which reading the weights limits, go to few_rows.cu on GPUs that have its instructions.
 * Products that cuBLASLt refuses (16-bit rows of odd length, for one) go to gemm_plain.cu. With RALO_CUDA_PRODUCTS=cublaslt none go to
 * few_rows.cu or lora_product.cu; with RALO_CUDA_PRODUCTS=own none go to cuBLASLt, with RALO_CUDA_PRODUCTS=plain all go to gemm_plain.cu. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/attention_sizes.h"
#include "backend/cuda/gemm_cache.h"
#include "backend/cuda/work.h"
#include <ctype.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    CANDIDATES_MOST = 16,
    ROUNDS = 5,
    ALIGNMENT = 64,
    E4M3_CAPABILITY = 89,
    BLOCKS_CAPABILITY = 90,
    FEW_ROWS_CAPABILITY = 90,
    ATTENTION8_CAPABILITY = 90,
    COLD_ROWS = 512 /* of products that reading the weights limits, or nearly */
};
static const double NEARLY = 1.01, SPLIT_GAIN = 1.1, HOPELESS = 1.25, SAMPLE_US = 300, PLAIN_SILENT = 1e9;
static const double LONG_US = 20e3, ENOUGH_US = 500e3; /* of one run; of all runs for one product */

typedef struct gemm_plan {
    product q;
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    bool few_rows; /* few_rows.cu does it */
    bool plain;    /* cuBLASLt has no answer */
    bool alone;    /* ... none for gemm_launch_onto */
    struct gemm_plan *next;
} gemm_plan;

struct gemm_plans {
    gemm_plan *first;
    gemm_cache cache;
    cudaEvent_t start, stop;
    size_t l2_bytes;
    bool library;   /* cuBLASLt may be asked */
    bool own;       /* few_rows.cu and lora_product.cu may; where neither, gemm_plain.cu does all */
    bool measuring; /* inside gemm_prepare */
    status rc;      /* of the measurements in there */
};

typedef struct candidate {
    cublasLtMatmulAlgo_t algorithm;
    uint64_t name; /* a hash of what cuBLASLt documents of it; the same in every process */
    bool split;
    double us; /* best so far */
} candidate;

/* ---- cuBLASLt's words for our products ------------------------------------------------------------------------- */

static cudaDataType_t data_type(dtype t) {
    switch (t) {
    case DTYPE_BF16: return CUDA_R_16BF;
    case DTYPE_F16: return CUDA_R_16F;
    case DTYPE_F8E4M3: return CUDA_R_8F_E4M3;
    default: ASSERT(t == DTYPE_F32); return CUDA_R_32F;
    }
}

static bool uses_tf32(const backend_context *c, dtype t) { return c->tf32 && t == DTYPE_F32; }

/* Do operands start at a multiple of ALIGNMENT wherever the product stands? Otherwise the algorithm would have to follow the
 * address: cuBLASLt can be told of less, names algorithms for it, and refuses them at some of the addresses. */
static bool is_aligned(const product *q) {
    size_t a = (size_t)q->lda * dtype_bytes(q->type), b = (size_t)q->ldb * dtype_bytes(q->type);
    size_t c = (size_t)q->ldc * dtype_bytes(q->c_type);
    return !q->inside || (a % ALIGNMENT == 0 && b % ALIGNMENT == 0 && c % ALIGNMENT == 0);
}

static bool set_op(gemm_plan *p, cublasLtMatmulDescAttributes_t what, const void *value, size_t n_bytes) {
    return cublasLtMatmulDescSetAttribute(&p->op, what, value, n_bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool describe(const backend_context *c, gemm_plan *p) {
    const product *q = &p->q;
    cublasOperation_t first = q->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, second = q->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = q->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasComputeType_t compute = uses_tf32(c, q->type) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cudaDataType_t type = data_type(q->type);
    int8_t fast = q->short_sums;
    cublasLtMatmulMatrixScale_t rows = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                                square = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    return cublasLtMatmulDescInit(&p->op, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           set_op(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) &&
           set_op(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) &&
           set_op(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
           (!fast || set_op(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast)) &&
           (!q->blocks || (set_op(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, q->square ? &square : &rows, sizeof rows) &&
                           set_op(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &rows, sizeof rows))) &&
           cublasLtMatrixLayoutInit(&p->b, type, (uint64_t)(q->b_turned ? q->k : q->n),
                                    (uint64_t)(q->b_turned ? q->n : q->k), q->ldb) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutInit(&p->a, q->a_e5m2 ? CUDA_R_8F_E5M2 : type, (uint64_t)(q->a_turned ? q->m : q->k),
                                    (uint64_t)(q->a_turned ? q->k : q->m), q->lda) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutInit(&p->c, data_type(q->c_type), (uint64_t)q->n, (uint64_t)q->m, q->ldc) ==
               CUBLAS_STATUS_SUCCESS;
}

/* Where bias and scales lie, which a descriptor holds where it has them. */
static bool point(gemm_plan *p, const void *bias, const void *a_scale, const void *b_scale) {
    const product *q = &p->q;
    if (q->bias && !set_op(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias)) return false;
    return q->type != DTYPE_F8E4M3 ||
           (set_op(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b_scale, sizeof b_scale) && /* its first is our second */
            set_op(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a_scale, sizeof a_scale));
}

/* What a product is called in the cache. */
static void key_write(char key[GEMM_KEY_MOST + 1], const backend_context *c, const product *q) {
    int n = snprintf(key, GEMM_KEY_MOST + 1, "%c%c %lld x %lld x %lld ld %lld %lld %lld %s%s > %s%s%s%s%s%s%s",
                     q->b_turned ? 't' : 'n', q->a_turned ? 't' : 'n', (long long)q->m, (long long)q->n,
                     (long long)q->k, (long long)q->lda, (long long)q->ldb, (long long)q->ldc,
                     q->a_e5m2 ? "fp8_e5m2 " : "", uses_tf32(c, q->type) ? "tf32" : dtype_name(q->type),
                     dtype_name(q->c_type), q->bias ? " + bias" : "", q->accumulate ? " + c" : "",
                     q->add ? " + other" : "", q->short_sums ? " short" : "", q->inside ? " inside" : "",
                     q->square   ? " square blocks"
                     : q->blocks ? " blocks"
                                 : "");
    ASSERT(n > 0 && n <= GEMM_KEY_MOST);
}

/* ---- candidates --------------------------------------------------------------------------------------------------- */

static bool set_preference(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what, const void *value,
                           size_t n_bytes) {
    return cublasLtMatmulPreferenceSetAttribute(p, what, value, n_bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool prefer(cublasLtMatmulPreferenceOpaque_t *p, const product *q) {
    uint64_t work = product_work_bytes(q);
    uint32_t alignment = ALIGNMENT;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (product_may_split(q)) schemes |= CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return cublasLtMatmulPreferenceInit(p) == CUBLAS_STATUS_SUCCESS &&
           set_preference(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work) &&
           set_preference(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes) &&
           set_preference(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment) &&
           set_preference(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment) &&
           set_preference(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment) &&
           set_preference(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment);
}

static uint64_t config_get(const cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t what, size_t n_bytes) {
    uint64_t value = 0; /* little-endian: a shorter attribute fills the low bytes */
    size_t n;
    ASSERT(n_bytes <= sizeof value);
    if (cublasLtMatmulAlgoConfigGetAttribute(a, what, &value, n_bytes, &n) != CUBLAS_STATUS_SUCCESS) return 0;
    return value;
}

static candidate candidate_make(const cublasLtMatmulAlgo_t *a) {
    static const struct {
        cublasLtMatmulAlgoConfigAttributes_t what;
        size_t n_bytes;
    } attributes[] = {{CUBLASLT_ALGO_CONFIG_ID, 4},
                      {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                      {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                      {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                      {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                      {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                      {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                      {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                      {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
    candidate d = {.algorithm = *a, .name = 0xcbf29ce484222325u};
    for (size_t i = 0; i < ARRAY_LENGTH(attributes); i++) { /* FNV-1a, a value at a time */
        d.name ^= config_get(a, attributes[i].what, attributes[i].n_bytes);
        d.name *= 0x100000001b3u;
    }
    uint64_t n_parts = config_get(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4);
    d.split = n_parts > 1 || config_get(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4) != CUBLASLT_REDUCTION_SCHEME_NONE;
    return d;
}

/* cuBLASLt's candidates in its own order; what they do is checked again and not left to the preferences. */
static int candidates_find(const backend_context *c, gemm_plan *p, candidate out[CANDIDATES_MOST]) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES_MOST] = {0};
    cublasLtMatmulPreferenceOpaque_t preference;
    int n_found = 0, n = 0;
    /* An address that is aligned as far as is promised and no further: the answer must not depend on the real one. */
    const void *any = (const void *)(uintptr_t)ALIGNMENT;
    if (!is_aligned(&p->q) || !describe(c, p) || !prefer(&preference, &p->q)) return 0;
    if (!point(p, any, any, any)) return 0;
    if (cublasLtMatmulAlgoGetHeuristic(c->blas, &p->op, &p->b, &p->a, &p->c, &p->c, &preference, CANDIDATES_MOST, found,
                                       &n_found) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < n_found; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > product_work_bytes(&p->q)) continue;
        out[n] = candidate_make(&found[i].algo);
        if (!out[n].split || product_may_split(&p->q)) n++;
    }
    return n;
}

/* ---- running -------------------------------------------------------------------------------------------------------- */

static cublasStatus_t run_with(backend_context *c, gemm_plan *p, const gemm_call *g, const cublasLtMatmulAlgo_t *a) {
    const float alpha = g->alpha ? g->alpha : 1, beta = p->q.accumulate || p->q.add ? 1 : 0;
    if (!point(p, g->bias, g->a_scale, g->b_scale)) return CUBLAS_STATUS_INVALID_VALUE;
    return cublasLtMatmul(c->blas, &p->op, &alpha, g->b, &p->b, g->a, &p->a, &beta, g->c, &p->c, g->c, &p->c, a,
                          g->work, product_work_bytes(&p->q), c->stream);
}

static void run_plain(backend_context *c, const gemm_call *g) {
    const product *q = &g->q;
    plain_product plain = {.m = q->m,
                           .n = q->n,
                           .k = q->k,
                           .a = {g->a, q->lda, 1},
                           .b = {g->b, q->ldb, 1},
                           .c = g->c,
                           .ldc = q->ldc,
                           .bias = q->bias ? g->bias : NULL,
                           .add = q->accumulate || q->add ? g->c : NULL,
                           .ld_add = q->ldc,
                           .alpha = g->alpha ? g->alpha : 1,
                           .scales = {g->a_scale, g->b_scale},
                           .type = launch_type_of(q->type),
                           .a_e5m2 = q->a_e5m2,
                           .c_type = launch_type_of(q->c_type)};
    if (q->blocks) {
        plain.blocks[0] = fp8_blocks_of(q->m, q->k, false);
        plain.blocks[1] = fp8_blocks_of(q->n, q->k, q->square);
    }
    if (q->a_turned) plain.a.row = 1, plain.a.col = q->lda;
    if (q->b_turned) plain.b.row = 1, plain.b.col = q->ldb;
    launch_plain_product(c->stream, &plain);
}

bool gemm_has_own(const backend_context *c) { return c->gemms->own && c->capability == FEW_ROWS_CAPABILITY; }

bool gemm_is_few_rows(const backend_context *c, const product *q) {
    return gemm_has_own(c) && q->m <= FEW_ROWS_MOST && q->b_turned && !q->a_turned && !q->accumulate && !q->add &&
           (q->type == DTYPE_BF16 || q->type == DTYPE_F16) && (q->c_type == q->type || q->c_type == DTYPE_F32) &&
           q->k % 8 == 0 && q->lda == q->k && q->ldb == q->k;
}

few_rows_product gemm_few_rows(const gemm_call *g) {
    const product *q = &g->q;
    return (few_rows_product){.m = q->m,
                              .n = q->n,
                              .k = q->k,
                              .x = g->a,
                              .w = g->b,
                              .y = g->c,
                              .ldy = q->ldc,
                              .bias = q->bias ? g->bias : NULL,
                              .alpha = g->alpha ? g->alpha : 1,
                              .type = launch_type_of(q->type),
                              .y_type = launch_type_of(q->c_type)};
}

/* An algorithm that ran in gemm_prepare and is refused now wants more than ALIGNMENT; the product must still be done. */
static void plan_run(backend_context *c, gemm_plan *p, const gemm_call *g) {
    if (p->few_rows) {
        few_rows_product few = gemm_few_rows(g);
        launch_few_rows(c->stream, &few);
        return;
    }
    if (!p->plain) {
        cublasStatus_t rc = run_with(c, p, g, &p->algorithm);
        if (rc == CUBLAS_STATUS_SUCCESS) return;
        char key[GEMM_KEY_MOST + 1];
        key_write(key, c, &p->q);
        log_warn("cuBLASLt: product %s: %s; a plain kernel does it, slowly", key, cublasLtGetStatusString(rc));
    }
    run_plain(c, g);
}

/* ---- measuring ------------------------------------------------------------------------------------------------------ */

/* In a step the weights of a layer come from memory, since those of the other layers were read in between; in a row of samples they
 * would come from the L2 cache, and another algorithm would win. */
static bool is_cold(const backend_context *c, const product *q) {
    return q->m <= COLD_ROWS && c->n_block >= 2 * c->gemms->l2_bytes;
}

static status timer_start(backend_context *c) {
    cudaError_t rc = cudaEventRecord(c->gemms->start, c->stream);
    if (rc != cudaSuccess) return ERR(ERR_RUN, "timing a matrix product: %s", cudaGetErrorString(rc));
    return OK;
}

static status timer_stop(backend_context *c, int n_runs, double *us) {
    float ms = 0;
    cudaError_t rc = cudaEventRecord(c->gemms->stop, c->stream);
    if (rc == cudaSuccess) rc = cudaEventSynchronize(c->gemms->stop);
    if (rc == cudaSuccess) rc = cudaEventElapsedTime(&ms, c->gemms->start, c->gemms->stop);
    if (rc != cudaSuccess) return ERR(ERR_RUN, "timing a matrix product: %s", cudaGetErrorString(rc));
    *us = (double)ms * 1000 / n_runs;
    return OK;
}

/* One sample of a candidate; a candidate that cuBLASLt refuses when it comes to it is out of the race. */
static status sample(backend_context *c, gemm_plan *p, const gemm_call *g, candidate *d, int n_runs) {
    double us;
    if (is_cold(c, &p->q)) launch_read(c->stream, c->block, 2 * c->gemms->l2_bytes), n_runs = 1;
    TRY(timer_start(c));
    for (int i = 0; i < n_runs; i++)
        if (run_with(c, p, g, &d->algorithm) != CUBLAS_STATUS_SUCCESS) {
            d->us = -1;
            return OK;
        }
    TRY(timer_stop(c, n_runs, &us));
    d->us = d->us == 0 ? us : MIN(d->us, us);
    return OK;
}

static double best_us(const candidate *d, int n, bool split) {
    double best = 0;
    for (int i = 0; i < n; i++)
        if (d[i].us > 0 && d[i].split == split && (best == 0 || d[i].us < best)) best = d[i].us;
    return best;
}

/* The index of the candidate to take; -1 when none of them ran. */
static int candidates_judge(const candidate *d, int n) {
    double whole = best_us(d, n, false), split = best_us(d, n, true);
    bool take_split = split > 0 && (whole == 0 || split * SPLIT_GAIN < whole);
    double limit = (take_split ? split : whole) * NEARLY;
    for (int i = 0; i < n; i++)
        if (d[i].us > 0 && d[i].split == take_split && d[i].us <= limit) return i;
    return -1;
}

/* Rounds over all candidates rather than all samples of one after the other: clocks drift. A product of a million rows runs for
 * a second: of such ones the first candidates run twice, and that has to do. */
static status candidates_measure(backend_context *c, gemm_plan *p, const gemm_call *g, candidate *d, int n) {
    double spent = 0;
    for (int i = 0; i < n && spent < ENOUGH_US; i++) {
        TRY(sample(c, p, g, &d[i], 1)); /* the first run loads the kernel, which may take longer than the product */
        if (d[i].us >= LONG_US) TRY(sample(c, p, g, &d[i], 1));
        spent += fmax(0, d[i].us);
        if (d[i].us > 0 && d[i].us < LONG_US) d[i].us = 0;
    }
    for (int round = 0; round < ROUNDS && spent < ENOUGH_US; round++) {
        double whole = best_us(d, n, false), split = best_us(d, n, true);
        double best = whole > 0 && split > 0 ? MIN(whole, split) : whole + split;
        for (int i = 0; i < n; i++) {
            if (d[i].us < 0 || (best > 0 && d[i].us > best * HOPELESS)) continue;
            int n_runs = d[i].us > 0 ? (int)MAX(1, MIN(20, SAMPLE_US / d[i].us)) : 1;
            TRY(sample(c, p, g, &d[i], n_runs));
            spent += n_runs * fmax(0, d[i].us);
        }
    }
    return OK;
}

/* ---- kernels of ours or the library's --------------------------------------------------------------------------------- */

/* The best of some samples of each, in turns: clocks drift. */
static status ways_measure(backend_context *c, const kernel_call *k, const gemm_ways *w, double us[2]) {
    void (*const ways[])(backend_context *, const kernel_call *) = {w->library, w->own};
    for (int way = 0; way < 2; way++) ways[way](c, k); /* loads kernels, and measures the library's products */
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < 2; way++) {
            double now;
            int n_runs = round == 0 ? 1 : (int)MAX(1, MIN(20, SAMPLE_US / us[way]));
            TRY(timer_start(c));
            for (int i = 0; i < n_runs; i++) ways[way](c, k);
            TRY(timer_stop(c, n_runs, &now));
            us[way] = round == 0 ? now : MIN(us[way], now);
        }
    return OK;
}

enum { WAY_LIBRARY = 1, WAY_OWN = 2 }; /* in the cache; no answer is 0 */

static bool prefers_own(backend_context *c, const kernel_call *k, const product *q, const gemm_ways *w) {
    struct gemm_plans *all = c->gemms;
    char key[2 * GEMM_KEY_MOST];
    uint64_t known, kept;
    double us[2];
    if (!all->own || !all->library) return all->own;
    key_write(key, c, q);
    size_t n = strlen(key);
    snprintf(key + n, sizeof key - n, " + %s", w->what);
    ASSERT(strlen(key) <= GEMM_KEY_MOST);
    bool found = gemm_cache_find(&all->cache, key, &known);
    if (found && (known == WAY_LIBRARY || known == WAY_OWN)) return known == WAY_OWN;
    if (!all->measuring || !all->cache.writable) return true;
    status rc = ways_measure(c, k, w, us);
    if (rc != OK && all->rc == OK) all->rc = rc;
    if (rc != OK) return true;
    uint64_t faster = us[1] <= us[0] * NEARLY ? WAY_OWN : WAY_LIBRARY;
    log_debug("product %s: %.1f us by our kernel, %.1f us by cuBLASLt and the op behind it", key, us[1], us[0]);
    return gemm_cache_keep(&all->cache, key, faster, found ? &known : NULL, &kept) ? kept != WAY_LIBRARY : true;
}

void gemm_run_faster(backend_context *c, const kernel_call *k, const product *q, const gemm_ways *w, bool has_own) {
    (has_own && prefers_own(c, k, q, w) ? w->own : w->library)(c, k);
}

/* ---- plans ---------------------------------------------------------------------------------------------------------- */

static int candidate_named(const candidate *d, int n, uint64_t name) {
    for (int i = 0; i < n; i++)
        if (d[i].name == name) return i;
    return -1;
}

/* cuBLASLt names candidates that it then refuses to run. */
static bool runs(backend_context *c, gemm_plan *p, const gemm_call *g, const candidate *d) {
    return run_with(c, p, g, &d->algorithm) == CUBLAS_STATUS_SUCCESS;
}

/* Once for a process, which may open several contexts one after the other. */
static void measuring_say(const struct gemm_plans *all) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        log_info("measuring matrix products, once for each shape; kept in %s", all->cache.path);
}

/* The choice among n > 0 candidates: what the cache knows, what is measured now if it can be kept, the first guess that
 * runs; -1: none does. Outside gemm_prepare C must not be written for a trial. */
static status candidates_choose(backend_context *c, gemm_plan *p, const gemm_call *g, candidate *d, int n,
                                int *chosen) {
    struct gemm_plans *all = c->gemms;
    char key[GEMM_KEY_MOST + 1];
    uint64_t known, name;
    key_write(key, c, &p->q);
    bool found = gemm_cache_find(&all->cache, key, &known);
    *chosen = found ? candidate_named(d, n, known) : -1;
    if (*chosen >= 0 && (!all->measuring || runs(c, p, g, &d[*chosen]))) return OK;
    *chosen = 0;
    if (!all->measuring) return OK;
    while (*chosen < n && !runs(c, p, g, &d[*chosen])) ++*chosen;
    if (*chosen == n) *chosen = -1;
    if (*chosen < 0 || !all->cache.writable) return OK;
    measuring_say(all);
    TRY(candidates_measure(c, p, g, d, n));
    int best = candidates_judge(d, n);
    if (best < 0 || !gemm_cache_keep(&all->cache, key, d[best].name, found ? &known : NULL, &name)) return OK;
    best = candidate_named(d, n, name);
    if (best >= 0) *chosen = best;
    log_debug("product %s: %.1f us, candidate %d of %d%s", key, d[*chosen].us, *chosen + 1, n,
              d[*chosen].split ? ", k in parts" : "");
    return OK;
}

static gemm_plan *plan_find(const backend_context *c, const product *q) {
    gemm_plan *p = c->gemms->first;
    while (p && !product_equal(&p->q, q)) p = p->next;
    return p;
}

/* What the library does not take is said, unless it is small. */
static void plain_say(const backend_context *c, const product *q) {
    char key[GEMM_KEY_MOST + 1];
    if ((double)q->m * (double)q->n * (double)q->k < PLAIN_SILENT) return;
    key_write(key, c, q);
    log_warn(
        "cuBLASLt does not take the product %s; a plain kernel does it, slowly (sizes that are multiples of 32 help)",
        key);
}

static gemm_plan *plan_get(backend_context *c, const gemm_call *g) {
    gemm_plan *p = plan_find(c, &g->q);
    if (p) return p;
    candidate d[CANDIDATES_MOST];
    int chosen = 0;
    p = mem_alloc(sizeof *p);
    p->q = g->q;
    p->few_rows = gemm_is_few_rows(c, &g->q);
    int n = !c->gemms->library || p->few_rows ? 0 : candidates_find(c, p, d);
    if (n > 0) {
        status rc = candidates_choose(c, p, g, d, n, &chosen);
        if (c->gemms->rc == OK) c->gemms->rc = rc;
    }
    p->plain = n == 0 || chosen < 0;
    if (!p->plain) p->algorithm = d[chosen].algorithm;
    else if (c->gemms->library && !p->few_rows) plain_say(c, &p->q);
    p->next = c->gemms->first;
    c->gemms->first = p;
    return p;
}

void gemm_launch(backend_context *c, const gemm_call *g) { plan_run(c, plan_get(c, g), g); }

bool gemm_launch_onto(backend_context *c, const gemm_call *g, const float *one, const float *keep) {
    gemm_plan *p = plan_get(c, g);
    ASSERT(g->q.c_type == DTYPE_F32 && !g->q.accumulate && !g->q.add && !g->q.bias && !g->alpha);
    if (p->plain || p->few_rows || p->alone || !point(p, NULL, g->a_scale, g->b_scale)) return false;
    gemm_plan onto = *p;
    cublasLtPointerMode_t device = CUBLASLT_POINTER_MODE_DEVICE;
    p->alone = !set_op(&onto, CUBLASLT_MATMUL_DESC_POINTER_MODE, &device, sizeof device) ||
               cublasLtMatmul(c->blas, &onto.op, one, g->b, &onto.b, g->a, &onto.a, keep, g->c, &onto.c, g->c, &onto.c,
                              &p->algorithm, g->work, product_work_bytes(&p->q), c->stream) != CUBLAS_STATUS_SUCCESS;
    return !p->alone;
}

/* The outputs of this op are inputs of others. With results of trials in them those products draw less power than in a step, and run at
 * 780 TFLOP/s and more on an H200 that has 690 for ordinary numbers. */
static void refill(backend_context *c, const kernel_call *k) {
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (k->out[i] && (uintptr_t)k->out[i] % sizeof(uint32_t) == 0)
            launch_fill(c->stream, k->out[i], value_bytes(call_out(k, i)));
}

/* Attention in 8 bits was asked for by name: what has no kernel is an error. */
static status check_attention8(const backend_context *c, const op_attr *a) {
    bool compiled = false;
#ifdef HAVE_SM90A
    compiled = true;
#endif
    if (c->capability != ATTENTION8_CAPABILITY || !compiled)
        return ERR(ERR_INPUT,
                   "train.fp8.attention is true: found GPU %d with compute capability %d.%d%s, expected %d.%d, which "
                   "alone has kernels for it; set it to false",
                   c->device, c->capability / 10, c->capability % 10,
                   c->capability == ATTENTION8_CAPABILITY ? " and a build without its kernels (RALO_CUDA_ARCHS)" : "",
                   ATTENTION8_CAPABILITY / 10, ATTENTION8_CAPABILITY % 10);
    if (!attention_head_dim_wgmma(a->head_dim))
        return ERR(
            ERR_INPUT,
            "train.fp8.attention is true: found heads of %d dimensions, expected 64, 96 or 128 on a GPU; set it to "
            "false",
            a->head_dim);
    return OK;
}

status gemm_prepare(backend_context *c, const kernel_call *k) {
    struct gemm_plans *all = c->gemms;
    if ((k->op->kind == OP_LINEAR8 || k->op->kind == OP_UNEMBED8_LOSS_GRAD) && c->capability < E4M3_CAPABILITY)
        return ERR(ERR_INPUT,
                   "precision: fp8 needs a GPU of compute capability %d.%d or more, whose tensor cores multiply 8-bit "
                   "numbers; GPU %d has %d.%d: set precision to bf16",
                   E4M3_CAPABILITY / 10, E4M3_CAPABILITY % 10, c->device, c->capability / 10, c->capability % 10);
    if (k->op->kind == OP_LINEAR8 && linear8_product(k->program, k->op).blocks && c->capability != BLOCKS_CAPABILITY &&
        all->library)
        return ERR(
            ERR_INPUT,
            "train.fp8.scales is block, for which cuBLASLt has products on GPUs of compute capability %d.%d alone; GPU "
            "%d has %d.%d: set train.fp8.scales to power",
            BLOCKS_CAPABILITY / 10, BLOCKS_CAPABILITY % 10, c->device, c->capability / 10, c->capability % 10);
    if (k->op->kind == OP_ATTENTION && k->op->attr.fp8) TRY(check_attention8(c, &k->op->attr));
    all->measuring = true;
    all->rc = OK;
    if (cuda_has_products(k->op->kind)) {
        cuda_kernels[k->op->kind](c, k);
        if (all->cache.writable) refill(c, k);
    }
    all->measuring = false;
    TRY(all->rc);
    cudaError_t rc = cudaStreamSynchronize(c->stream);
    if (rc != cudaSuccess) return ERR(ERR_RUN, "%s on the GPU: %s", op_name(k->op->kind), cudaGetErrorString(rc));
    return OK;
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

/* gemm-nvidia-h200-132-130100.txt: what an answer holds for. */
static void cache_file_name(char *out, size_t n, const struct cudaDeviceProp *gpu) {
    int length = snprintf(out, n, "gemm-%.64s-%d-%zu.txt", gpu->name, gpu->multiProcessorCount, cublasLtGetVersion());
    ASSERT(length > 0 && (size_t)length < n);
    for (char *p = out; *p; p++) {
        *p = (char)tolower((unsigned char)*p);
        if (!isalnum((unsigned char)*p) && *p != '.') *p = '-';
    }
}

/* Whose kernels are to be looked at or doubted can be told apart by it: cuBLASLt's or ours. */
static status choice_read(struct gemm_plans *all) {
    const char *wish = getenv("RALO_CUDA_PRODUCTS");
    const bool plain = wish && strcmp(wish, "plain") == 0, own = wish && strcmp(wish, "own") == 0;
    const bool library = wish && strcmp(wish, "cublaslt") == 0;
    all->library = !plain && !own;
    all->own = !plain && !library;
    if (wish && !plain && !own && !library)
        return ERR(ERR_INPUT, "RALO_CUDA_PRODUCTS: found %s, expected cublaslt, own or plain", wish);
    if (!all->library) log_info("RALO_CUDA_PRODUCTS=%s: matrix products without cuBLASLt, slowly", wish);
    return OK;
}

status gemm_open(backend_context *c, const char *cache_directory) {
    status rc = OK;
    struct cudaDeviceProp gpu;
    char name[128];
    struct gemm_plans *all = c->gemms = mem_alloc(sizeof *all);
    TRY_GOTO(rc, choice_read(all), fail);
    cudaError_t error = cudaGetDeviceProperties(&gpu, c->device);
    if (error == cudaSuccess) error = cudaEventCreate(&all->start);
    if (error == cudaSuccess) error = cudaEventCreate(&all->stop);
    if (error != cudaSuccess) {
        rc = ERR(ERR_RUN, "GPU %d: %s", c->device, cudaGetErrorString(error));
        goto fail;
    }
    all->l2_bytes = (size_t)gpu.l2CacheSize;
    cache_file_name(name, sizeof name, &gpu);
    gemm_cache_open(&all->cache, cache_directory, name);
    return OK;
fail:
    gemm_close(c);
    return rc;
}

void gemm_close(backend_context *c) {
    struct gemm_plans *all = c->gemms;
    if (!all) return;
    for (gemm_plan *p = all->first, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    if (all->start) cudaEventDestroy(all->start);
    if (all->stop) cudaEventDestroy(all->stop);
    gemm_cache_close(&all->cache);
    free(all);
    c->gemms = NULL;
}
