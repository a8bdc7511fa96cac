/* gemm.c - choose a kernel, cut C into tiles, pack, multiply, round once.
 *
 * Where OpenBLAS serves fp32 the call leaves for gemm_openblas.c at once. Otherwise the smaller of the two operands is
 * packed once, by all threads, into scratch that they share; then each task takes one tile of C and packs the strip of the
 * other operand that it needs, block by block of k, into scratch that stays in its core's cache. So with a vocabulary of
 * 150k the weight is never packed as a whole, and with ordinary layers nearly every element is packed once.
 *
 * The sums of a tile are kept in fp32 over the whole of k, then bias and C are added and the result is rounded once.
 * k is walked in blocks of a constant of the kernel, so an element of C has the same bits in any cut and for any
 * number of threads; cutting a GEMM along m or n (chunks of a vocabulary) changes no bit either.
 *
 * Scratch is bounded: at most SHARED_BYTES, plus 0.3 MiB per thread. Where even a few hundred rows of the smaller
 * operand do not fit (k above 8192), tasks pack both sides for themselves, in 0.9 MiB per thread. The size is the same for
 * every kernel of ours, so a plan made on one machine holds on another; OpenBLAS takes none of it.
 *
 * Subnormal numbers: BFMMLA, AVX512-BF16 and AMX read bf16 subnormals as zero and flush tiny sums; the fp32 kernels
 * do not. BFMMLA may round its sums to odd instead of to nearest. */
#include "backend/cpu/gemm_kernels.h"
#include <stdatomic.h>

#define SHARED_BYTES (8u << 20)
#define SHARED_ROWS_MIN 256 /* a shared block smaller than this costs more in passes than it saves in packing */
#define TILE_SHARED_MAX (4 * GEMM_UNIT)
#define TILE_OWN GEMM_UNIT
#define TASKS_PER_THREAD 4 /* keeps all threads busy to the end; more would only pack the own side more often */
#define TASKS_WANTED 32    /* ... of 16 threads or more */

/* ---- choice of the kernel --------------------------------------------------------------------------------------- */

static bool always(void) { return true; }
/* A name in the list without a kernel of ours. */
static const gemm_kernel gemm_openblas = {.name = "openblas", .supported = always, .types = GEMM_BIT(DTYPE_F32)};

/* Best first: a type is served by the first row that can read it and that this machine can run. Our fp32 kernels stand
 * before OpenBLAS where they are faster on the shapes of training (measured in bench/results) and behind it elsewhere. */
/* clang-format off */
static const gemm_kernel *const kernels[] = {
#if defined(__aarch64__)
    &gemm_bfmmla,
    &gemm_neon,
    &gemm_openblas,
#elif defined(__x86_64__)
    &gemm_amx,      &gemm_avx512bf16, &gemm_avx512,
    &gemm_openblas, &gemm_avx2,
#endif
    &gemm_portable,
};
/* clang-format on */

static _Atomic(const gemm_kernel *) forced;
static _Atomic(const gemm_kernel *) chosen[DTYPE_COUNT]; /* filled on first use; every thread would write the same */

static const gemm_kernel *kernel_for(dtype type) {
    const gemm_kernel *f = atomic_load_explicit(&forced, memory_order_acquire);
    if (f && (f->types & GEMM_BIT(type))) return f;
    const gemm_kernel *found = atomic_load_explicit(&chosen[type], memory_order_acquire);
    for (size_t i = 0; !found && i < ARRAY_LENGTH(kernels); i++)
        if ((kernels[i]->types & GEMM_BIT(type)) && kernels[i]->supported()) found = kernels[i];
    ASSERT(found); /* a dtype without arithmetic reached a GEMM */
    atomic_store_explicit(&chosen[type], found, memory_order_release);
    return found;
}

const gemm_kernel *gemm_kernel_by_row(dtype type) {
    const gemm_kernel *found = kernel_for(type);
    for (size_t i = 0; found == &gemm_openblas && i < ARRAY_LENGTH(kernels); i++)
        if (kernels[i] != &gemm_openblas && (kernels[i]->types & GEMM_BIT(type)) && kernels[i]->supported())
            found = kernels[i];
    return found;
}

const char *gemm_kernel_name(dtype type) { return kernel_for(type)->name; }

const char *gemm_kernel_list(int i) { return i >= 0 && i < (int)ARRAY_LENGTH(kernels) ? kernels[i]->name : NULL; }

bool gemm_force_kernel(const char *name) {
    const gemm_kernel *found = NULL;
    for (size_t i = 0; name && i < ARRAY_LENGTH(kernels); i++)
        if (strcmp(kernels[i]->name, name) == 0) found = kernels[i];
    if (name && !(found && found->supported())) return false;
    atomic_store_explicit(&forced, found, memory_order_release);
    return true;
}

/* ---- the cut: by shape and threads, without influence on the bits ------------------------------------------------ */

typedef struct cut {
    bool shared_is_a;    /* the smaller side is packed once for all tasks */
    bool shared_packed;  /* false: k is so long that tasks pack both sides block by block */
    int64_t shared, own; /* rows of A or columns of B */
    int64_t shared_bytes, own_bytes, local_bytes, tile_bytes, bias_bytes; /* of scratch; all but the first per thread */
    int64_t thread_bytes;
    int64_t tile_shared, tile_own;
} cut;

/* lanes: B is not packed, or by a copy, so A is what is packed once. */
static cut cut_make(int64_t m, int64_t n, int64_t k, bool lanes, int n_threads) {
    cut c = {.shared_is_a = lanes || m <= n};
    c.shared = c.shared_is_a ? m : n, c.own = c.shared_is_a ? n : m;
    int64_t row_bytes = round_up(k, GEMM_K_UNIT) * GEMM_ROW_BYTES;
    int64_t whole = round_up(c.shared, GEMM_UNIT) * row_bytes;
    c.shared_packed = whole <= SHARED_BYTES || SHARED_BYTES / row_bytes >= SHARED_ROWS_MIN;
    c.shared_bytes = c.shared_packed ? MIN(whole, (int64_t)SHARED_BYTES) : 0;
    c.tile_own = TILE_OWN;
    c.tile_shared = MIN(TILE_SHARED_MAX, round_up(c.shared, GEMM_UNIT));
    int64_t wanted = MIN(TASKS_PER_THREAD * n_threads, TASKS_WANTED);
    while (c.tile_shared > GEMM_UNIT && divide_up(c.shared, c.tile_shared) * divide_up(c.own, TILE_OWN) < wanted)
        c.tile_shared = round_up(c.tile_shared / 2, GEMM_UNIT);
    c.own_bytes = c.tile_own * GEMM_BLOCK_BYTES;
    c.local_bytes = c.shared_packed ? 0 : c.tile_shared * GEMM_BLOCK_BYTES;
    c.tile_bytes = c.tile_shared * c.tile_own * (int64_t)sizeof(float);
    c.bias_bytes = MAX(c.tile_shared, c.tile_own) * (int64_t)sizeof(float);
    c.thread_bytes = c.own_bytes + c.local_bytes + c.tile_bytes + c.bias_bytes;
    return c;
}

size_t gemm_cut_bytes(int64_t m, int64_t n, int64_t k, bool lanes, int n_threads) {
    cut c = cut_make(m, n, k, lanes, n_threads);
    return (size_t)(c.shared_bytes + c.thread_bytes * n_threads);
}

size_t gemm_work_bytes(int64_t m, int64_t n, int64_t k, dtype type, dtype c_type, int n_threads) {
    (void)c_type; /* the tile of sums is fp32 whatever C is */
    return kernel_for(type) == &gemm_openblas ? 0 : gemm_cut_bytes(m, n, k, false, n_threads);
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

typedef struct run {
    const gemm_call *g;
    const gemm_kernel *kernel;
    cut cut;
    uint8_t *shared_panels, *threads;
    int64_t first_row, n_rows, rows_padded; /* of the shared side, in this pass */
    int64_t n_tiles;                        /* of the shared side, in this pass */
    int64_t n_groups;                       /* of panels, for packing */
    gemm_lanes lanes;                       /* of B, if it is in the order of lanes */
    int64_t n_lanes;                        /* its columns that are, in whole panels */
    bool plain_sums;                        /* C is the sums themselves */
    bool lanes_direct;                      /* ... which the kernel multiplies as they are */
} run;

#define PANELS_PER_TASK 8

/* The shared side lies block of k by block of k, and the panels of a block follow each other: a kernel that reads
 * ahead of one panel reads the next. */
static uint8_t *shared_at(const run *r, int64_t row, int64_t k0, int64_t nk_padded) {
    return r->shared_panels + (k0 * r->rows_padded + row * nk_padded) * r->kernel->element_bytes;
}

/* Packs rows [row, row + n) x [k0, k0 + nk) of one operand. Where rows follow each other in memory, and not steps of k, a
 * line has several panels: so few steps of all panels at a time that it is still in L1 for the next one. */
#define STEPS_AT_A_TIME GEMM_K_UNIT
static void pack_rows(const run *r, bool is_a, uint8_t *out, int64_t row, int64_t n, int64_t k0, int64_t nk) {
    const gemm_kernel *kernel = r->kernel;
    const gemm_operand *o = is_a ? &r->g->a : &r->g->b;
    int64_t row_stride = is_a ? o->row_stride : o->col_stride, k_stride = is_a ? o->col_stride : o->row_stride;
    int64_t panel = is_a ? kernel->mr : kernel->nr, bytes = (int64_t)dtype_bytes(o->type);
    int64_t step_bytes = panel * kernel->element_bytes, padded = round_up(nk, kernel->kr);
    int64_t steps = row_stride == 1 ? STEPS_AT_A_TIME : nk;
    for (int64_t k = 0; k < nk; k += steps)
        for (int64_t i = 0; i < n; i += panel) {
            gemm_slice s = {(const uint8_t *)o->data + ((row + i) * row_stride + (k0 + k) * k_stride) * bytes,
                            o->type,
                            row_stride,
                            k_stride,
                            MIN(panel, n - i),
                            MIN(steps, nk - k)};
            (is_a ? kernel->pack_a : kernel->pack_b)(out + (i / panel * padded + k) * step_bytes, &s);
        }
}

static const uint8_t *lanes_at(const run *r, int64_t column, int64_t k0) {
    const gemm_operand *b = &r->g->b;
    int64_t in_panel = column % r->lanes.panel;
    return (const uint8_t *)b->data +
           ((column - in_panel) * r->g->k + k0 * r->lanes.panel + in_panel) * (int64_t)dtype_bytes(b->type);
}

/* The same of columns of B in the order of lanes: whole panels, each of which is one stream. */
static void pack_lanes(const run *r, uint8_t *out, int64_t column, int64_t n, int64_t k0, int64_t nk) {
    const gemm_kernel *kernel = r->kernel;
    for (int64_t i = 0; i < n; i += kernel->nr) {
        gemm_slice s = {lanes_at(r, column + i, k0), r->g->b.type, 1, r->lanes.panel, kernel->nr, nk};
        kernel->pack_b(out + i * nk * kernel->element_bytes, &s);
    }
}

static void pack_task(void *context, int64_t task, int thread) {
    const run *r = context;
    const gemm_kernel *kernel = r->kernel;
    int64_t rows = (r->cut.shared_is_a ? kernel->mr : kernel->nr) * PANELS_PER_TASK;
    int64_t k0 = task / r->n_groups * kernel->kc, nk = MIN(kernel->kc, r->g->k - k0), row = task % r->n_groups * rows;
    pack_rows(r, r->cut.shared_is_a, shared_at(r, row, k0, round_up(nk, kernel->kr)), r->first_row + row,
              MIN(rows, r->n_rows - row), k0, nk);
}

/* tile row += row i of what is added, n columns from col. */
static void row_add(const gemm_call *g, float *tile, int64_t i, int64_t col, int64_t n) {
    float some[GEMM_UNIT];
    for (int64_t at = 0; at < n; at += GEMM_UNIT) {
        int64_t count = MIN(n - at, (int64_t)GEMM_UNIT);
        tensor_convert(some, DTYPE_F32, element_at(g->add, g->c_type, i * g->ld_add + col + at), g->c_type,
                       (size_t)count);
        for (int64_t j = 0; j < count; j++) tile[at + j] += some[j];
    }
}

/* The finished sums of a tile leave for C: scaled, + bias, + C, one rounding. */
static void tile_write(const gemm_call *g, float *tile, int64_t ld, float *bias, int64_t row, int64_t m, int64_t col,
                       int64_t n) {
    if (g->bias) {
        const uint8_t *from = (const uint8_t *)g->bias + (size_t)col * dtype_bytes(g->bias_type);
        tensor_convert(bias, DTYPE_F32, from, g->bias_type, (size_t)n);
    }
    for (int64_t i = 0; i < m; i++, tile += ld) {
        int64_t at = (row + i) * g->ldc + col;
        if (g->scale)
            for (int64_t j = 0; j < n; j++) tile[j] *= *g->scale;
        if (g->bias && g->c_type == DTYPE_F32 && !g->add && !g->accumulate) { /* one pass */
            float *restrict c = (float *)g->c + at;
            for (int64_t j = 0; j < n; j++) c[j] = tile[j] + bias[j];
            continue;
        }
        if (g->bias)
            for (int64_t j = 0; j < n; j++) tile[j] += bias[j];
        if (g->add) row_add(g, tile, row + i, col, n);
        if (!g->accumulate) tensor_convert(element_at(g->c, g->c_type, at), g->c_type, tile, DTYPE_F32, (size_t)n);
        else {
            float *c = (float *)g->c + at;
            for (int64_t j = 0; j < n; j++) c[j] += tile[j];
        }
    }
}

/* One panel of A, of m rows, times one of B over the whole of k. */
static void panel_multiply(const run *r, int64_t row, int64_t m, const uint8_t *b, float *tile, int64_t ld) {
    const gemm_kernel *kernel = r->kernel;
    bool few = m <= kernel->few_rows * kernel->few_passes;
    for (int64_t k0 = 0; k0 < r->g->k; k0 += kernel->kc) {
        int64_t nk = MIN(kernel->kc, r->g->k - k0); /* of lanes: a multiple of kr */
        const uint8_t *a = shared_at(r, row, k0, nk), *b_at = b + k0 * kernel->nr * kernel->element_bytes;
        if (!few) kernel->multiply(nk, a, b_at, tile, ld, k0 == 0);
        for (int64_t i = 0; few && i < m; i += kernel->few_rows)
            kernel->multiply_few(nk, a + i * kernel->kr * kernel->element_bytes, b_at, tile + i * ld, ld, k0 == 0);
    }
}

static void tile_task(void *context, int64_t task, int thread) {
    const run *r = context;
    const gemm_call *g = r->g;
    const gemm_kernel *kernel = r->kernel;
    const cut *cut = &r->cut;
    uint8_t *own_panels = r->threads + cut->thread_bytes * thread, *local_panels = own_panels + cut->own_bytes;
    float *tile = (float *)(local_panels + cut->local_bytes), *bias = (float *)((uint8_t *)tile + cut->tile_bytes);

    int64_t in_pass = task % r->n_tiles * cut->tile_shared, own = task / r->n_tiles * cut->tile_own;
    int64_t n_shared = MIN(cut->tile_shared, r->n_rows - in_pass), n_own = MIN(cut->tile_own, cut->own - own);
    int64_t m = cut->shared_is_a ? n_shared : n_own, n = cut->shared_is_a ? n_own : n_shared;
    int64_t ld = cut->shared_is_a ? cut->tile_own : cut->tile_shared;
    int64_t mr = kernel->mr, nr = kernel->nr, in_lanes = MAX(MIN(n_own, r->n_lanes - own), (int64_t)0);

    int64_t shared = r->first_row + in_pass, row = cut->shared_is_a ? shared : own,
            col = cut->shared_is_a ? own : shared;
    /* Sums that leave as they are come to be where they belong, if these are whole panels. */
    bool in_place = r->plain_sums && m % mr == 0 && n % nr == 0;
    if (in_place) tile = (float *)g->c + row * g->ldc + col, ld = g->ldc;

    if (kernel->begin) kernel->begin();
    /* A panel of B in the order of lanes as a whole where one panel of A is all there is: a stream that does not jump. */
    bool few = r->lanes_direct && cut->shared_packed && m <= mr;
    for (int64_t j = 0; few && j < in_lanes; j += nr)
        panel_multiply(r, in_pass, m, lanes_at(r, own + j, 0), tile + j, ld);
    for (int64_t k0 = 0; k0 < g->k; k0 += kernel->kc) {
        int64_t nk = MIN(kernel->kc, g->k - k0), nk_padded = round_up(nk, kernel->kr);
        int64_t row_bytes = nk_padded * kernel->element_bytes;
        if (!r->lanes_direct) pack_lanes(r, own_panels, own, in_lanes, k0, nk);
        pack_rows(r, !cut->shared_is_a, own_panels + in_lanes * row_bytes, own + in_lanes, n_own - in_lanes, k0, nk);
        uint8_t *shared_panels = cut->shared_packed ? shared_at(r, in_pass, k0, nk_padded) : local_panels;
        if (!cut->shared_packed) pack_rows(r, cut->shared_is_a, local_panels, r->first_row + in_pass, n_shared, k0, nk);
        const uint8_t *a = cut->shared_is_a ? shared_panels : own_panels;
        const uint8_t *b = cut->shared_is_a ? own_panels : shared_panels;
        for (int64_t j = few ? in_lanes : 0; j < n; j += nr) { /* a panel of B stays in L1 while those of A pass by */
            const uint8_t *panel = r->lanes_direct && j < in_lanes ? lanes_at(r, own + j, k0) : b + j * row_bytes;
            for (int64_t i = 0; i < m; i += mr)
                kernel->multiply(nk_padded, a + i * row_bytes, panel, tile + i * ld + j, ld, k0 == 0);
        }
    }
    if (kernel->end) kernel->end();
    if (!in_place) tile_write(g, tile, ld, bias, row, m, col, n);
}

void gemm_run(backend_context *c, const gemm_call *g, void *work) {
    ASSERT(g->m > 0 && g->n > 0 && g->k > 0 && g->a.type == g->b.type);
    ASSERT(g->c_type == DTYPE_F32 || (g->c_type == g->a.type && !g->accumulate));
    ASSERT((g->a.row_stride == 1 || g->a.col_stride == 1) && (g->b.row_stride == 1 || g->b.col_stride == 1));
    const gemm_kernel *kernel = g->by_row ? gemm_kernel_by_row(g->a.type) : kernel_for(g->a.type);
    if (kernel == &gemm_openblas) {
        gemm_openblas_run(c, g);
        return;
    }
    run r = {.g = g, .kernel = kernel};
    r.plain_sums = g->c_type == DTYPE_F32 && !g->scale && !g->bias && !g->add && !g->accumulate;
    if (g->lanes) r.lanes = gemm_lanes_of(g->b.type, g->k);
    if (r.lanes.panel > 0) {
        ASSERT(g->by_row && g->b.row_stride == 1 && g->b.col_stride == g->k);
        r.n_lanes = g->n / r.lanes.panel * r.lanes.panel;
        r.lanes_direct = r.lanes.panel == kernel->nr;
    }
    r.cut = cut_make(g->m, g->n, g->k, r.lanes.panel > 0, c->n_threads);
    r.shared_panels = work;
    r.threads = r.shared_panels + r.cut.shared_bytes;
    int64_t panel = r.cut.shared_is_a ? kernel->mr : kernel->nr;
    int64_t rows_per_pass = r.cut.shared;
    if (r.cut.shared_packed) {
        int64_t fit = r.cut.shared_bytes / (round_up(g->k, kernel->kr) * kernel->element_bytes);
        if (fit < round_up(r.cut.shared, panel)) rows_per_pass = fit / r.cut.tile_shared * r.cut.tile_shared;
        if (rows_per_pass == 0) rows_per_pass = fit / GEMM_UNIT * GEMM_UNIT;
    }
    for (r.first_row = 0; r.first_row < r.cut.shared; r.first_row += rows_per_pass) {
        r.n_rows = MIN(rows_per_pass, r.cut.shared - r.first_row);
        r.rows_padded = round_up(r.n_rows, panel);
        r.n_tiles = divide_up(r.n_rows, r.cut.tile_shared);
        if (r.cut.shared_packed) {
            r.n_groups = divide_up(r.n_rows, panel * PANELS_PER_TASK);
            pool_run(c->threads, pack_task, &r, r.n_groups * divide_up(g->k, kernel->kc));
        }
        pool_run(c->threads, tile_task, &r, r.n_tiles * divide_up(r.cut.own, r.cut.tile_own));
    }
}
