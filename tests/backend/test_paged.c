/* test_paged.c - the ops of generation: keys and values in pages, attention through a page table, logits of picked rows,
 * and that a row never depends on its neighbours, in any op that generation runs.
 *
 * Bounds as in test_attention: outputs by ||out - ref|| / ||ref|| against a loop in double that starts from the same
 * rounded inputs; half a unit in the last place for 16 bits, 64 * 2^-24 for fp32 (scores up to about 16, whose errors the
 * exponential turns into relative ones). Products: k terms of size 1 in fp32, k * 2^-24 of the sum of their sizes. */
#include "backend/cpu/gemm.h"
#include "backend_choice.h"
#include "op_check.h"
#include <stdlib.h>

typedef struct dims {
    int H, G, D;
    int64_t page_size, pages_per_slot, slots;
    int64_t prompt; /* tokens of the longest run in a step */
} dims;

/* What the cases at hand have beside their shapes. */
static struct {
    int64_t window;
    double softcap;
} limits;
static int64_t first_seen(int64_t position) { return limits.window ? MAX(position + 1 - limits.window, 0) : 0; }

static double bound(dtype t) { return t == DTYPE_BF16 ? 0x1p-8 : t == DTYPE_F16 ? 0x1p-11 : 64 * 0x1p-24; }
static int64_t n_pages(const dims *d) { return d->slots * d->pages_per_slot + 3; } /* a few belong to nobody */
static int64_t cache_count(const dims *d) { return n_pages(d) * 2 * d->G * d->page_size * d->D; }
static shape cache_shape(const dims *d) { return SHAPE(n_pages(d), 2 * d->G, d->page_size, d->D); }

static op_attr attr_of(const dims *d, int64_t n) {
    return (op_attr){.batch = n,
                     .seq_len = 1,
                     .n_heads = d->H,
                     .n_kv_heads = d->G,
                     .head_dim = d->D,
                     .scale = (float)(1 / sqrt((double)d->D)),
                     .window = limits.window,
                     .softcap = (float)limits.softcap};
}

/* Pages in a random order. */
static int32_t *make_table(const dims *d, uint64_t seed) {
    int32_t *table = mem_alloc((size_t)(d->slots * d->pages_per_slot) * sizeof *table);
    for (int64_t i = 0; i < d->slots * d->pages_per_slot; i++)
        table[i] = (int32_t)rng_permute(rng_key(seed, "pages"), (uint64_t)i, (uint64_t)n_pages(d));
    return table;
}

static int64_t place(const dims *d, const int32_t *table, int64_t slot, int64_t position, int64_t head) {
    int64_t page = table[slot * d->pages_per_slot + position / d->page_size];
    return ((page * 2 * d->G + head) * d->page_size + position % d->page_size) * d->D;
}

/* Tokens of a step. */
typedef struct step {
    int64_t n;
    int32_t slots[200], doc_start[200];
} step;

static void add_token(step *s, int64_t slot, int64_t position) {
    s->slots[s->n] = (int32_t)slot;
    s->doc_start[s->n++] = (int32_t)-position;
}

/* Runs of a prompt longer than what a task takes, single tokens, tokens of no slot, and the same slot twice apart. */
static step mixed_step(const dims *d) {
    step s = {0};
    int64_t most = d->page_size * d->pages_per_slot;
    for (int64_t i = 0; i < MIN(d->prompt, most); i++) add_token(&s, 0, i);
    add_token(&s, -1, 0);
    add_token(&s, 1, most - 1);
    add_token(&s, 2, 0);
    add_token(&s, -1, 0);
    for (int64_t i = most / 2; i < MIN(most / 2 + 20, most); i++) add_token(&s, 3, i);
    add_token(&s, 1, most / 3);
    return s;
}

/* Keys and values of the positions that any token sees; NaN everywhere else: what is not seen must not leak. */
static double *make_cache(const dims *d, const int32_t *table, const step *s, uint64_t seed) {
    double *cache = mem_alloc((size_t)cache_count(d) * sizeof *cache);
    for (int64_t i = 0; i < cache_count(d); i++) cache[i] = NAN;
    for (int64_t t = 0; t < s->n; t++) {
        if (s->slots[t] < 0) continue;
        for (int64_t p = first_seen(-s->doc_start[t]); p <= -s->doc_start[t]; p++)
            for (int64_t head = 0; head < 2 * d->G; head++)
                for (int64_t c = 0; c < d->D; c++) {
                    uint64_t i = (uint64_t)(((s->slots[t] * 1000 + p) * 2 * d->G + head) * d->D + c);
                    cache[place(d, table, s->slots[t], p, head) + c] = 4 * rng_uniform(seed, i) - 2;
                }
    }
    return cache;
}

static void reference(const dims *d, const step *s, const int32_t *table, const double *qkv, const double *cache,
                      double scale, double *y) {
    int64_t Q = (int64_t)(d->H + 2 * d->G) * d->D;
    for (int64_t t = 0; t < s->n; t++)
        for (int h = 0; h < d->H; h++) {
            double *out = y + (t * d->H + h) * d->D, p[512], top = -INFINITY, sum = 0;
            const double *q = qkv + t * Q + h * d->D;
            int g = h / (d->H / d->G);
            memset(out, 0, (size_t)d->D * sizeof *out);
            if (s->slots[t] < 0) continue;
            for (int64_t j = first_seen(-s->doc_start[t]); j <= -s->doc_start[t]; j++) {
                const double *k = cache + place(d, table, s->slots[t], j, g);
                p[j] = 0;
                for (int c = 0; c < d->D; c++) p[j] += q[c] * k[c] * scale;
                if (limits.softcap) p[j] = limits.softcap * tanh(p[j] / limits.softcap);
                top = fmax(top, p[j]);
            }
            for (int64_t j = first_seen(-s->doc_start[t]); j <= -s->doc_start[t]; j++) sum += exp(p[j] - top);
            for (int64_t j = first_seen(-s->doc_start[t]); j <= -s->doc_start[t]; j++) {
                const double *v = cache + place(d, table, s->slots[t], j, d->G + g);
                for (int c = 0; c < d->D; c++) out[c] += exp(p[j] - top) / sum * v[c];
            }
        }
}

static op_case *attention_case(const dims *d, dtype t, const step *s, const int32_t *table, const double *qkv,
                               const double *cache) {
    op_attr a = attr_of(d, s->n);
    op_case *c = op_case_open(OP_ATTENTION_PAGED, &a);
    op_case_floats(c, ATTENTION_PAGED_QKV, t, SHAPE(s->n, (int64_t)(d->H + 2 * d->G) * d->D), qkv);
    op_case_floats(c, ATTENTION_PAGED_CACHE, t, cache_shape(d), cache);
    op_case_ints(c, ATTENTION_PAGED_SLOTS, SHAPE(s->n), s->slots);
    op_case_ints(c, ATTENTION_PAGED_TABLE, SHAPE(d->slots, d->pages_per_slot), table);
    op_case_ints(c, ATTENTION_PAGED_DOC_START, SHAPE(s->n), s->doc_start);
    op_case_output(c, ATTENTION_PAGED_Y, t, SHAPE(s->n, (int64_t)d->H * d->D));
    op_case_run(c, 2);
    return c;
}

static void check_attention(const dims *d, dtype t, uint64_t seed) {
    step s = mixed_step(d);
    int64_t Q = (int64_t)(d->H + 2 * d->G) * d->D, Y = (int64_t)d->H * d->D;
    int32_t *table = make_table(d, seed);
    double *cache = make_cache(d, table, &s, seed), *y = mem_alloc((size_t)(s.n * Y) * sizeof *y);
    double *qkv = mem_alloc((size_t)(s.n * Q) * sizeof *qkv);
    for (int64_t i = 0; i < s.n * Q; i++) qkv[i] = 4 * rng_uniform(seed + 1, (uint64_t)i) - 2;
    op_case *c = attention_case(d, t, &s, table, qkv, cache);
    reference(d, &s, table, op_case_input_values(c, ATTENTION_PAGED_QKV),
              op_case_input_values(c, ATTENTION_PAGED_CACHE), attr_of(d, s.n).scale, y);
    double error = op_case_error(c, ATTENTION_PAGED_Y, y, NULL);
    if (!(error <= bound(t)))
        fail_msg("%s H=%d G=%d D=%d page %d window %d: error %g over %g", dtype_name(t), d->H, d->G, d->D,
                 (int)d->page_size, (int)limits.window, error, bound(t));
    /* Alone, and in pages of another size: the same bits. */
    const double *all = op_case_values(c, ATTENTION_PAGED_Y);
    for (int64_t i = 0; i < s.n; i += 7) {
        dims e = *d;
        if (s.slots[i] < 0) continue;
        e.page_size = 7;
        e.pages_per_slot = (d->page_size * d->pages_per_slot + 6) / 7;
        step one = {0};
        add_token(&one, s.slots[i], -s.doc_start[i]);
        int32_t *other = make_table(&e, seed + 2);
        double *moved = make_cache(&e, other, &one, seed);
        op_case *alone = attention_case(&e, t, &one, other, qkv + i * Q, moved);
        assert_memory_equal(op_case_values(alone, ATTENTION_PAGED_Y), all + i * Y, (size_t)Y * sizeof *all);
        op_case_close(alone);
        free(other);
        free(moved);
    }
    op_case_close(c);
    free(table);
    free(cache);
    free(qkv);
    free(y);
}

static void paged_attention_equals_a_loop_and_never_sees_its_neighbours(void **state) {
    static const dims all[] = {{4, 2, 16, 32, 4, 4, 0},
                               {6, 2, 32, 5, 30, 4, 0},
                               {3, 3, 20, 1, 70, 4, 0},
                               {8, 1, 64, 32, 7, 4, 0},
                               {2, 2, 8, 16, 1, 4, 0},
                               {2, 1, 144, 33, 2, 4, 0},
                               /* positions and tokens beyond what one block of a device takes */
                               {6, 2, 64, 16, 30, 4, 150},
                               {2, 1, 128, 33, 15, 4, 0},
                               {4, 2, 20, 32, 16, 4, 150}};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        for (size_t t = 0; t < ARRAY_LENGTH(check_types); t++) check_attention(&all[i], check_types[t], 10 + i);
}

static void paged_attention_with_a_window_and_a_soft_cap_sees_no_more(void **state) {
    static const dims all[] = {
        {6, 2, 32, 5, 30, 4, 0}, {3, 3, 20, 1, 70, 4, 0}, {8, 1, 64, 32, 7, 4, 70}, {4, 2, 20, 32, 16, 4, 150}};
    static const int64_t windows[] = {1, 40, 64, 65, 500};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        for (size_t w = 0; w < ARRAY_LENGTH(windows); w++) {
            limits.window = windows[w], limits.softcap = w % 2 ? 3 : 0;
            check_attention(&all[i], check_types[(i + w) % ARRAY_LENGTH(check_types)], 30 + i);
        }
    limits.window = 0, limits.softcap = 0;
}

static void stored_tokens_lie_in_their_pages_and_nothing_else_changes(void **state) {
    static const dims all[] = {{4, 2, 16, 32, 4, 4, 0}, {3, 3, 20, 1, 70, 4, 0}, {6, 2, 8, 5, 30, 4, 0}};
    for (size_t n = 0; n < ARRAY_LENGTH(all); n++)
        for (size_t k = 0; k < ARRAY_LENGTH(check_types); k++) {
            const dims *d = &all[n];
            dtype t = check_types[k];
            step s = mixed_step(d);
            int64_t Q = (int64_t)(d->H + 2 * d->G) * d->D;
            op_attr a = attr_of(d, s.n);
            int32_t *table = make_table(d, 5);
            double *want = mem_alloc((size_t)cache_count(d) * sizeof *want);
            for (int64_t i = 0; i < cache_count(d); i++) want[i] = 0.25 * (double)(i % 64);
            op_case *c = op_case_open(OP_KV_STORE, &a);
            op_case_random(c, KV_STORE_QKV, t, SHAPE(s.n, Q), 1, 3);
            op_case_ints(c, KV_STORE_SLOTS, SHAPE(s.n), s.slots);
            op_case_ints(c, KV_STORE_TABLE, SHAPE(d->slots, d->pages_per_slot), table);
            op_case_ints(c, KV_STORE_DOC_START, SHAPE(s.n), s.doc_start);
            op_case_output_floats(c, KV_STORE_CACHE, t, cache_shape(d), want);
            op_case_run(c, 2);
            const double *qkv = op_case_input_values(c, KV_STORE_QKV);
            for (int64_t i = 0; i < s.n; i++)
                for (int64_t head = 0; head < 2 * d->G && s.slots[i] >= 0; head++)
                    memcpy(want + place(d, table, s.slots[i], -s.doc_start[i], head),
                           qkv + i * Q + (d->H + head) * d->D, (size_t)d->D * sizeof *want);
            assert_memory_equal(op_case_values(c, KV_STORE_CACHE), want, (size_t)cache_count(d) * sizeof *want);
            op_case_close(c);
            free(table);
            free(want);
        }
}

static void logits_of_picked_rows_equal_a_loop(void **state) {
    enum { N = 9, C = 70, V = 133, R = 6 };
    static const int32_t pick[R] = {8, 0, 3, 3, 7, 0};
    for (size_t k = 0; k < ARRAY_LENGTH(check_types); k++)
        for (int picked = 0; picked < 2; picked++) {
            int rows = picked ? R : N, used = picked ? 4 : N;
            double *want = mem_alloc((size_t)(rows * V) * sizeof *want);
            op_case *c = op_case_open(OP_UNEMBED_LOGITS, &(op_attr){0});
            op_case_random(c, UNEMBED_LOGITS_H, check_types[k], SHAPE(N, C), 1, 1);
            op_case_random(c, UNEMBED_LOGITS_W, check_types[k], SHAPE(V, C), 1, 2);
            if (picked) op_case_ints(c, UNEMBED_LOGITS_PICK, SHAPE(R), pick), op_case_rows(c, used);
            for (int i = used * V; i < rows * V; i++) want[i] = 7; /* rows that are not there stay as they are */
            op_case_output_floats(c, UNEMBED_LOGITS_LOGITS, DTYPE_F32, SHAPE(rows, V), want);
            op_case_run(c, 2);
            const double *h = op_case_input_values(c, UNEMBED_LOGITS_H), *w = op_case_input_values(c, UNEMBED_LOGITS_W);
            double largest = 0;
            for (int r = 0; r < used; r++)
                for (int v = 0; v < V; v++) {
                    double sum = 0, size = 0;
                    for (int i = 0; i < C; i++) {
                        double term = h[(picked ? pick[r] : r) * C + i] * w[v * C + i];
                        sum += term, size += fabs(term);
                    }
                    want[r * V + v] = sum;
                    largest = fmax(largest, size);
                }
            /* A device may compute the rows that nobody reads. */
            int compared = backend_under_test()->discrete ? used : rows;
            check_output(c, UNEMBED_LOGITS_LOGITS, DTYPE_F32, want, (size_t)(compared * V), C * U32 * largest,
                         "logits");
            op_case_close(c);
            free(want);
        }
}

static void the_top_of_a_row_is_its_first_largest_with_the_log_of_the_sum(void **state) {
    enum { R = 7, LONGEST = 151936 };
    static const int64_t widths[] = {1, 3, 133, 4097, LONGEST};
    static double x[R * LONGEST];
    for (size_t k = 0; k < ARRAY_LENGTH(widths); k++) {
        int64_t V = widths[k];
        for (int64_t i = 0; i < R * V; i++) x[i] = (double)(float)(8 * rng_uniform(3, (uint64_t)i) - 4);
        x[0] = 50, x[V - 1] = 50;    /* row 0: the first of two */
        x[V + V / 2] = -INFINITY;    /* row 1: one that weighs nothing */
        x[2 * V + V / 3] = NAN;      /* row 2 */
        x[3 * V + V - 1] = INFINITY; /* row 3 */
        for (int64_t v = 0; v < V; v++) x[4 * V + v] = -INFINITY;
        for (int64_t v = 0; v < V; v++) x[5 * V + v] = (double)-1e30f; /* row 5: all equal, and far away */
        static const double draws[R * DRAW_COUNT] = {0};
        op_case *c = op_case_open(OP_DRAW_TOKENS, &(op_attr){0});
        op_case_floats(c, DRAW_TOKENS_LOGITS, DTYPE_F32, SHAPE(R, V), x);
        op_case_floats(c, DRAW_TOKENS_DRAWS, DTYPE_F64, SHAPE(R, DRAW_COUNT), draws);
        op_case_output(c, DRAW_TOKENS_DRAWN, DTYPE_F64, SHAPE(R, DRAWN_COUNT));
        op_case_run(c, 2);
        const double *drawn = op_case_values(c, DRAW_TOKENS_DRAWN);
        for (int64_t r = 0; r < R; r++) {
            const double *row = x + r * V;
            int64_t best = 0;
            double sum = 0;
            for (int64_t v = 0; v < V; v++) best = row[v] > row[best] ? v : best;
            for (int64_t v = 0; v < V; v++) sum += exp(row[v] - row[best]);
            double want = row[best] + log(sum);
            const double *d = drawn + r * DRAWN_COUNT;
            if ((r >= 2 && r <= 4) || !isfinite(want)) {
                assert_false(isfinite(d[DRAWN_LOG_SUM]));
                continue;
            }
            assert_int_equal((int64_t)d[DRAWN_TOP], best);
            assert_true(d[DRAWN_TOP_LOGIT] == row[best]);
            assert_true(fabs(d[DRAWN_LOG_SUM] - want) <= 1e-5 + 1e-6 * fabs(want));
            assert_int_equal((int64_t)d[DRAWN_TOKEN], best); /* temperature 0 */
            assert_true(d[DRAWN_LOGIT] == row[best] && d[DRAWN_TEMPERED] == row[best] - d[DRAWN_LOG_SUM]);
        }
        op_case_close(c);
    }
}

/* The uniform number lies where it must between the sums of the probabilities before the token and with it. The slack is that of
 * fp32 sums over a part of the row. */
static void a_token_is_drawn_where_the_sum_of_the_probabilities_passes_the_uniform_number(void **state) {
    enum { R = 9, LONGEST = 151936 };
    static const int64_t widths[] = {1, 3, 133, 4096, 4097, LONGEST};
    static const double temperatures[] = {1, 0.7, 2, 0.05};
    static double x[R * LONGEST], p[LONGEST], draws[R * DRAW_COUNT];
    for (size_t k = 0; k < ARRAY_LENGTH(widths) * ARRAY_LENGTH(temperatures); k++) {
        int64_t V = widths[k / ARRAY_LENGTH(temperatures)];
        double t = temperatures[k % ARRAY_LENGTH(temperatures)];
        for (int64_t i = 0; i < R * V; i++) x[i] = (double)(float)(16 * rng_uniform(5, (uint64_t)i) - 8);
        for (int64_t v = 0; v < V - 1; v += 2) x[V + v] = -INFINITY; /* row 1: every other token is impossible */
        for (int64_t r = 0; r < R; r++) {
            draws[r * DRAW_COUNT + DRAW_UNIFORM] = r == 0   ? 0
                                                   : r == 2 ? 1 - 0x1p-53
                                                            : rng_uniform(7, (uint64_t)(k * R) + (uint64_t)r);
            draws[r * DRAW_COUNT + DRAW_TEMPERATURE] = t;
        }
        op_case *c = op_case_open(OP_DRAW_TOKENS, &(op_attr){0});
        op_case_floats(c, DRAW_TOKENS_LOGITS, DTYPE_F32, SHAPE(R, V), x);
        op_case_floats(c, DRAW_TOKENS_DRAWS, DTYPE_F64, SHAPE(R, DRAW_COUNT), draws);
        op_case_output(c, DRAW_TOKENS_DRAWN, DTYPE_F64, SHAPE(R, DRAWN_COUNT));
        op_case_run(c, 2);
        const double *drawn = op_case_values(c, DRAW_TOKENS_DRAWN);
        for (int64_t r = 0; r < R; r++) {
            const double *row = x + r * V, *d = drawn + r * DRAWN_COUNT, u = draws[r * DRAW_COUNT + DRAW_UNIFORM];
            double top = -INFINITY, total = 0, before = 0;
            for (int64_t v = 0; v < V; v++) top = fmax(top, row[v]);
            for (int64_t v = 0; v < V; v++) total += p[v] = exp((row[v] - top) / t);
            int64_t id = (int64_t)d[DRAWN_TOKEN];
            assert_true(id >= 0 && id < V);
            for (int64_t v = 0; v < id; v++) before += p[v];
            assert_true(p[id] > 0 && d[DRAWN_LOGIT] == row[id]);
            assert_true(before / total <= u + 1e-5 && (before + p[id]) / total >= u - 1e-5);
            assert_true(fabs(d[DRAWN_TEMPERED] - log(p[id] / total)) <= 2e-5 + 1e-6 * fabs(log(p[id] / total)));
        }
        op_case_close(c);
    }
}

/* ---- rows know nothing of each other ---------------------------------------------------------------------------- */

static void check_products(dtype t) {
    enum { MOST = 70 };
    static const struct { int64_t n, k; } shapes[] = {{100, 203}, {37, 1000}, {260, 64}, {5, 3}};
    for (int i = 0; gemm_kernel_list(i); i++) {
        if (!gemm_force_kernel(gemm_kernel_list(i))) continue;
        for (size_t q = 0; q < ARRAY_LENGTH(shapes); q++) {
            int64_t n = shapes[q].n, in = shapes[q].k;
            double *bits = NULL, *filled = mem_alloc((size_t)(MOST * n) * sizeof *filled);
            for (int32_t rows = MOST; rows > 0; rows = rows > 10 ? rows / 2 : rows - 1) {
                op_case *c = op_case_open(OP_LINEAR, &(op_attr){0});
                op_case_random(c, LINEAR_X, t, SHAPE(MOST, in), 1, 1);
                op_case_random(c, LINEAR_W, t, SHAPE(n, in), 1, 2);
                if (q % 2 == 0) op_case_random(c, LINEAR_B, t, SHAPE(n), 1, 3);
                op_case_output_floats(c, LINEAR_Y, t, SHAPE(MOST, n), filled);
                op_case_rows(c, rows);
                op_case_run(c, 2);
                const double *y = op_case_values(c, LINEAR_Y);
                if (!bits) {
                    bits = mem_alloc((size_t)(MOST * n) * sizeof *bits);
                    memcpy(bits, y, (size_t)(MOST * n) * sizeof *bits);
                }
                for (int64_t e = 0; e < (backend_under_test()->discrete ? rows : MOST) * n; e++) {
                    double want = e < rows * n ? bits[e] : 0;
                    if (memcmp(&y[e], &want, sizeof want) != 0)
                        fail_msg("%s %s (%d, %d): row %d of %d: %.9g, among %d rows %.9g", gemm_kernel_list(i),
                                 dtype_name(t), (int)n, (int)in, (int)(e / n), rows, y[e], MOST, want);
                }
                op_case_close(c);
            }
            free(bits);
            free(filled);
        }
        if (backend_under_test()->discrete) break; /* which has none of them */
    }
    assert_true(gemm_force_kernel(NULL));
}

static void a_product_of_fp32_has_the_same_bits_for_every_number_of_rows(void **state) { check_products(DTYPE_F32); }
static void a_product_of_bf16_has_the_same_bits_for_every_number_of_rows(void **state) { check_products(DTYPE_BF16); }
static void a_product_of_fp16_has_the_same_bits_for_every_number_of_rows(void **state) { check_products(DTYPE_F16); }

/* The other ops of a block: the first rows as without op.rows, the rest untouched. */
static void ops_compute_only_the_rows_that_are_there(void **state) {
    enum { N = 40, C = 48, F = 24, H = 2, G = 1, D = 12, P = 64, THERE = 3 };
    static const struct {
        op_kind kind;
        int64_t width[OP_MAX_OUT + 1]; /* of the outputs; 1: a statistic in fp32; 0: not asked for */
    } ops[] = {{OP_EMBED, {C}},
               {OP_RMSNORM, {C, 1}},
               {OP_LAYERNORM, {C, 1, 1}},
               {OP_ADD, {C}},
               {OP_ADD_RMSNORM, {C, C, 1}},
               {OP_ADD_LAYERNORM, {C, C, 1, 1}},
               {OP_QK_NORM, {C, H + G}},
               {OP_ROPE, {C}},
               {OP_QK_NORM_ROPE, {C, H + G}},
               {OP_SWIGLU, {F}},
               {OP_GELU, {C}}};
    int32_t tokens[N], doc_start[N];
    for (int i = 0; i < N; i++) tokens[i] = (i * 7) % P, doc_start[i] = -((i * 5) % P);
    for (size_t i = 0; i < ARRAY_LENGTH(ops); i++) {
        op_attr a = {.batch = N, .seq_len = 1, .n_heads = H, .n_kv_heads = G, .head_dim = D, .eps = 1e-5f};
        op_case *c[2];
        for (int limited = 0; limited < 2; limited++) {
            op_case *t = c[limited] = op_case_open(ops[i].kind, &a);
            for (int n = 0; n < op_input_count(ops[i].kind); n++) {
                const char *name = op_input_name(ops[i].kind, n);
                bool gain = strcmp(name, "gamma") == 0 || strcmp(name, "beta") == 0;
                if (strcmp(name, "tokens") == 0) op_case_ints(t, n, SHAPE(N), tokens);
                else if (strcmp(name, "doc_start") == 0) op_case_ints(t, n, SHAPE(N), doc_start);
                else if (name[0] == 'g' && strlen(name) == 2 && name[1] != 'u')
                    op_case_random(t, n, DTYPE_F32, SHAPE(D), 1, 3);
                else if (gain) op_case_random(t, n, DTYPE_F32, SHAPE(C), 1, 4);
                else if (strcmp(name, "table") == 0 || strcmp(name, "positions") == 0)
                    op_case_random(t, n, DTYPE_F32, SHAPE(P, ops[i].kind == OP_EMBED ? C : D), 1, 5);
                else op_case_random(t, n, DTYPE_F32, SHAPE(N, C), 1, 6 + (uint64_t)n);
            }
            double *filled = mem_alloc(N * C * sizeof *filled);
            for (int e = 0; e < N * C; e++) filled[e] = 9;
            for (int n = 0; n < op_output_count(ops[i].kind) && ops[i].width[n]; n++)
                op_case_output_floats(t, n, DTYPE_F32, ops[i].width[n] == 1 ? SHAPE(N) : SHAPE(N, ops[i].width[n]),
                                      filled);
            free(filled);
            if (limited) op_case_rows(t, THERE);
            op_case_run(t, 2);
        }
        for (int n = 0; n < op_output_count(ops[i].kind) && ops[i].width[n]; n++) {
            const double *all = op_case_values(c[0], n), *some = op_case_values(c[1], n);
            for (int64_t e = 0; e < N * ops[i].width[n]; e++)
                if (some[e] != (e < THERE * ops[i].width[n] ? all[e] : 9))
                    fail_msg("%s output %d element %d", op_name(ops[i].kind), n, (int)e);
        }
        op_case_close(c[0]);
        op_case_close(c[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paged_attention_equals_a_loop_and_never_sees_its_neighbours),
        cmocka_unit_test(paged_attention_with_a_window_and_a_soft_cap_sees_no_more),
        cmocka_unit_test(stored_tokens_lie_in_their_pages_and_nothing_else_changes),
        cmocka_unit_test(logits_of_picked_rows_equal_a_loop),
        cmocka_unit_test(the_top_of_a_row_is_its_first_largest_with_the_log_of_the_sum),
        cmocka_unit_test(a_token_is_drawn_where_the_sum_of_the_probabilities_passes_the_uniform_number),
        cmocka_unit_test(a_product_of_fp32_has_the_same_bits_for_every_number_of_rows),
        cmocka_unit_test(a_product_of_bf16_has_the_same_bits_for_every_number_of_rows),
        cmocka_unit_test(a_product_of_fp16_has_the_same_bits_for_every_number_of_rows),
        cmocka_unit_test(ops_compute_only_the_rows_that_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
