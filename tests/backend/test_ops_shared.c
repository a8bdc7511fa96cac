/* test_ops_shared.c - ops of ranks that share a vocabulary, tokens or gradients, with all of their ranks played here.
 *
 * What the ranks have together must be what one rank has alone: losses and gradients of UNEMBED_STATS, _JOIN and _GRAD
 * against UNEMBED_LOSS_GRAD, rows of EMBED and its backward against those of the whole table. Logits come from the same
 * products, so a loss differs by the order of a sum in double (a GPU adds in fp32, exponentials that are right to 2 + 1.2 |x|
 * units: for these logits 32 units of 1 cover both sides); dh is a sum of the ranks' parts, rounded as each of them
 * was: 64 * 2^-24 of its norm in fp32, one unit of the type for each part in 16 bits. */
#include "backend_choice.h"
#include "op_check.h"

#include <stdlib.h>

enum { N = 37, C = 20, V = 301 };

static const int32_t *make_targets(void) {
    static int32_t t[N];
    for (int i = 0; i < N; i++) t[i] = i % 5 == 4 ? -1 : i == 7 ? V : (int32_t)rng_below(5, (uint64_t)i, V);
    return t;
}

typedef struct share {
    int64_t first, n, rows; /* ids, how many, and rows of the table with the padding */
} share;

static share share_of(int rank, int n_ranks) {
    int64_t rows = (V + n_ranks - 1) / n_ranks;
    return (share){rank * rows, MIN(rows, V - rank * rows), rows};
}

/* Rows of a random table; padding is filled with what nobody may read. */
static void set_table(op_case *c, int input, dtype t, const share *s, const double *whole) {
    double *rows = mem_alloc((size_t)(s->rows * C) * sizeof *rows);
    for (int64_t i = 0; i < s->rows * C; i++) rows[i] = i < s->n * C ? whole[s->first * C + i] : 1e4;
    op_case_floats(c, input, t, SHAPE(s->rows, C), rows);
    free(rows);
}

static op_attr attr_of(const share *s, int64_t chunk_bytes) {
    return (op_attr){.vocab = V, .first_id = s->first, .n_ids = s->n, .chunk_bytes = chunk_bytes};
}

static op_case *open_alone(dtype t, dtype dw, int64_t chunk_bytes) {
    op_case *c = op_case_open(OP_UNEMBED_LOSS_GRAD, &(op_attr){.chunk_bytes = chunk_bytes});
    op_case_random(c, UNEMBED_LOSS_GRAD_H, t, SHAPE(N, C), 1.0, 21);
    op_case_random(c, UNEMBED_LOSS_GRAD_W, t, SHAPE(V, C), 0.5, 22);
    op_case_ints(c, UNEMBED_LOSS_GRAD_TARGETS, SHAPE(N), make_targets());
    op_case_random(c, UNEMBED_LOSS_GRAD_WEIGHTS, DTYPE_F32, SHAPE(N), 1.0, 23);
    op_case_bytes(c, UNEMBED_LOSS_GRAD_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.seed = 0.25f});
    op_case_output(c, UNEMBED_LOSS_GRAD_LOSSES, DTYPE_F32, SHAPE(N));
    op_case_output(c, UNEMBED_LOSS_GRAD_DH, t, SHAPE(N, C));
    op_case_output(c, UNEMBED_LOSS_GRAD_DW, dw, SHAPE(V, C));
    op_case_run(c, 2);
    return c;
}

/* stats of all ranks, (R, N, n_stats); the caller frees. */
static double *gather_stats(op_case *alone, dtype t, int n_ranks, int n_stats, int64_t chunk_bytes) {
    double *all = mem_alloc((size_t)(n_ranks * N * n_stats) * sizeof *all);
    for (int r = 0; r < n_ranks; r++) {
        share s = share_of(r, n_ranks);
        op_attr a = attr_of(&s, chunk_bytes);
        op_case *c = op_case_open(OP_UNEMBED_STATS, &a);
        op_case_floats(c, UNEMBED_STATS_H, t, SHAPE(N, C), op_case_input_values(alone, UNEMBED_LOSS_GRAD_H));
        set_table(c, UNEMBED_STATS_W, t, &s, op_case_input_values(alone, UNEMBED_LOSS_GRAD_W));
        op_case_ints(c, UNEMBED_STATS_TARGETS, SHAPE(N), make_targets());
        op_case_output(c, UNEMBED_STATS_STATS, DTYPE_F64, SHAPE(N, n_stats));
        op_case_run(c, 2);
        memcpy(all + r * N * n_stats, op_case_values(c, UNEMBED_STATS_STATS), (size_t)(N * n_stats) * sizeof *all);
        op_case_close(c);
    }
    return all;
}

static void check_losses(op_case *alone, const double *stats, int n_ranks, int n_stats) {
    op_case *c = op_case_open(OP_UNEMBED_JOIN, &(op_attr){.vocab = V});
    op_case_floats(c, UNEMBED_JOIN_STATS, DTYPE_F64, SHAPE(n_ranks, N, n_stats), stats);
    op_case_ints(c, UNEMBED_JOIN_TARGETS, SHAPE(N), make_targets());
    op_case_output(c, UNEMBED_JOIN_LOSSES, DTYPE_F32, SHAPE(N));
    if (n_stats == 4) op_case_output(c, UNEMBED_JOIN_ARGMAX, DTYPE_I32, SHAPE(N));
    op_case_run(c, 2);
    for (int i = 0; i < N; i++) {
        double want = op_case_values(alone, UNEMBED_LOSS_GRAD_LOSSES)[i];
        double arithmetic = U32 * fabs(want) + (backend_under_test()->discrete ? 32 * U32 : 0);
        check_element(op_case_values(c, UNEMBED_JOIN_LOSSES)[i], want, arithmetic, DTYPE_F32, "loss", (size_t)i);
    }
    if (n_stats == 4) { /* tokens that are not trained on as well */
        op_case *f = op_case_open(OP_UNEMBED_LOSS, &(op_attr){.chunk_bytes = 1 << 20});
        dtype t = DTYPE_F32;
        op_case_floats(f, UNEMBED_LOSS_H, t, SHAPE(N, C), op_case_input_values(alone, UNEMBED_LOSS_GRAD_H));
        op_case_floats(f, UNEMBED_LOSS_W, t, SHAPE(V, C), op_case_input_values(alone, UNEMBED_LOSS_GRAD_W));
        op_case_ints(f, UNEMBED_LOSS_TARGETS, SHAPE(N), make_targets());
        op_case_output(f, UNEMBED_LOSS_LOSSES, DTYPE_F32, SHAPE(N));
        op_case_output(f, UNEMBED_LOSS_ARGMAX, DTYPE_I32, SHAPE(N));
        op_case_run(f, 2);
        for (int i = 0; i < N; i++)
            assert_int_equal(op_case_ints_out(c, UNEMBED_JOIN_ARGMAX)[i], op_case_ints_out(f, UNEMBED_LOSS_ARGMAX)[i]);
        op_case_close(f);
    }
    op_case_close(c);
}

static double unit(dtype t) { return t == DTYPE_F32 ? 64 * U32 : 2 * check_roundoff(t); }

static void check_gradients(op_case *alone, const double *stats, dtype t, dtype dw_type, int n_ranks, int n_stats,
                            int64_t chunk_bytes) {
    double *dh = mem_alloc(N * C * sizeof *dh), norm = 0, error = 0;
    for (int r = 0; r < n_ranks; r++) {
        share s = share_of(r, n_ranks);
        op_attr a = attr_of(&s, chunk_bytes);
        op_case *c = op_case_open(OP_UNEMBED_GRAD, &a);
        op_case_floats(c, UNEMBED_GRAD_H, t, SHAPE(N, C), op_case_input_values(alone, UNEMBED_LOSS_GRAD_H));
        set_table(c, UNEMBED_GRAD_W, t, &s, op_case_input_values(alone, UNEMBED_LOSS_GRAD_W));
        op_case_ints(c, UNEMBED_GRAD_TARGETS, SHAPE(N), make_targets());
        op_case_floats(c, UNEMBED_GRAD_WEIGHTS, DTYPE_F32, SHAPE(N),
                       op_case_input_values(alone, UNEMBED_LOSS_GRAD_WEIGHTS));
        op_case_bytes(c, UNEMBED_GRAD_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.seed = 0.25f});
        op_case_floats(c, UNEMBED_GRAD_STATS, DTYPE_F64, SHAPE(n_ranks, N, n_stats), stats);
        op_case_output(c, UNEMBED_GRAD_DH, t, SHAPE(N, C));
        op_case_output(c, UNEMBED_GRAD_DW, dw_type, SHAPE(s.rows, C));
        op_case_run(c, 2);
        for (int i = 0; i < N * C; i++) dh[i] += op_case_values(c, UNEMBED_GRAD_DH)[i];
        const double *whole = op_case_values(alone, UNEMBED_LOSS_GRAD_DW) + s.first * C,
                     *dw = op_case_values(c, UNEMBED_GRAD_DW);
        double dw_norm = 0, dw_error = 0;
        for (int64_t i = 0; i < s.n * C; i++) dw_norm += whole[i] * whole[i], dw_error += pow(dw[i] - whole[i], 2);
        assert_true(sqrt(dw_error) <= unit(t) * sqrt(dw_norm));
        for (int64_t i = s.n * C; i < s.rows * C; i++) assert_true(dw[i] == 0); /* padding */
        op_case_close(c);
    }
    for (int i = 0; i < N * C; i++) {
        double want = op_case_values(alone, UNEMBED_LOSS_GRAD_DH)[i];
        norm += want * want, error += pow(dh[i] - want, 2);
    }
    if (!(sqrt(error) <= unit(t) * n_ranks * sqrt(norm)))
        fail_msg("%s on %d ranks: dh differs by %g of %g", dtype_name(t), n_ranks, sqrt(error), sqrt(norm));
    free(dh);
}

static void check_shared_loss(dtype t) {
    static const int64_t chunks[] = {1, 5 * 4 * V, 1 << 20}; /* a row, some rows, everything */
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (size_t k = 0; k < ARRAY_LENGTH(chunks); k++) {
            dtype dw = t == DTYPE_BF16 && k % 2 ? DTYPE_BF16 : DTYPE_F32;
            int n_stats = t == DTYPE_F32 && n_ranks % 2 ? 4 : 3;
            op_case *alone = open_alone(t, dw, chunks[k]);
            double *stats = gather_stats(alone, t, n_ranks, n_stats, chunks[k]);
            check_losses(alone, stats, n_ranks, n_stats);
            check_gradients(alone, stats, t, dw, n_ranks, n_stats, chunks[k]);
            op_case_close(alone);
            free(stats);
        }
}

static void shared_words_have_the_loss_of_one_rank_in_fp32(void **state) { check_shared_loss(DTYPE_F32); }
static void shared_words_have_the_loss_of_one_rank_in_bf16(void **state) { check_shared_loss(DTYPE_BF16); }
static void shared_words_have_the_loss_of_one_rank_in_fp16(void **state) { check_shared_loss(DTYPE_F16); }

static void chunks_change_no_bit(void **state) {
    (void)state;
    op_case *alone = open_alone(DTYPE_F32, DTYPE_F32, 1 << 20);
    double *whole = gather_stats(alone, DTYPE_F32, 3, 4, 1 << 20), *rows = gather_stats(alone, DTYPE_F32, 3, 4, 1);
    assert_memory_equal(whole, rows, 3 * N * 4 * sizeof *whole);
    free(whole);
    free(rows);
    op_case_close(alone);
}

/* ---- embedding ------------------------------------------------------------------------------------------------------- */

enum { T = 8, TOKENS = 16, P = 12 };

/* Rows of all ranks, summed, are the rows of one; each position is added by the rank that has the token. */
static void rows_of_a_shared_table_add_up(void **state) {
    (void)state;
    int32_t tokens[TOKENS], doc_start[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 97) % V, doc_start[i] = i % T < 3 ? 0 : 3;
    op_case *one = op_case_open(OP_EMBED, &(op_attr){.seq_len = T});
    op_case_ints(one, EMBED_TOKENS, SHAPE(TOKENS), tokens);
    op_case_random(one, EMBED_TABLE, DTYPE_F32, SHAPE(V, C), 1.0, 1);
    op_case_ints(one, EMBED_DOC_START, SHAPE(TOKENS), doc_start);
    op_case_random(one, EMBED_POSITIONS, DTYPE_F32, SHAPE(P, C), 1.0, 2);
    op_case_output(one, EMBED_X, DTYPE_F32, SHAPE(TOKENS, C));
    op_case_run(one, 2);
    for (int n_ranks = 2; n_ranks <= 4; n_ranks *= 2) {
        double sum[TOKENS * C] = {0};
        for (int r = 0; r < n_ranks; r++) {
            share s = share_of(r, n_ranks);
            op_attr a = attr_of(&s, 0);
            a.seq_len = T;
            a.n_tokens = TOKENS / n_ranks, a.first_token = r * a.n_tokens;
            op_case *c = op_case_open(OP_EMBED, &a);
            op_case_ints(c, EMBED_TOKENS, SHAPE(TOKENS), tokens);
            set_table(c, EMBED_TABLE, DTYPE_F32, &s, op_case_input_values(one, EMBED_TABLE));
            op_case_ints(c, EMBED_DOC_START, SHAPE(TOKENS), doc_start);
            op_case_floats(c, EMBED_POSITIONS, DTYPE_F32, SHAPE(P, C), op_case_input_values(one, EMBED_POSITIONS));
            op_case_output(c, EMBED_X, DTYPE_F32, SHAPE(TOKENS, C));
            op_case_run(c, 2);
            for (int i = 0; i < TOKENS * C; i++) sum[i] += op_case_values(c, EMBED_X)[i];
            op_case_close(c);
        }
        for (int i = 0; i < TOKENS * C; i++) assert_true((float)sum[i] == (float)op_case_values(one, EMBED_X)[i]);
    }
    op_case_close(one);
}

static void gradient_rows_go_to_the_rank_that_has_them(void **state) {
    (void)state;
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 97) % V;
    tokens[5] = tokens[2]; /* one that occurs twice */
    op_case *one = op_case_open(OP_EMBED_BWD, &(op_attr){0});
    op_case_ints(one, EMBED_BWD_TOKENS, SHAPE(TOKENS), tokens);
    op_case_random(one, EMBED_BWD_DY, DTYPE_F32, SHAPE(TOKENS, C), 1.0, 3);
    op_case_output(one, EMBED_BWD_DTABLE, DTYPE_F32, SHAPE(V, C));
    op_case_run(one, 2);
    for (int r = 0; r < 3; r++) {
        share s = share_of(r, 3);
        op_attr a = attr_of(&s, 0);
        op_case *c = op_case_open(OP_EMBED_BWD, &a);
        op_case_ints(c, EMBED_BWD_TOKENS, SHAPE(TOKENS), tokens);
        op_case_floats(c, EMBED_BWD_DY, DTYPE_F32, SHAPE(TOKENS, C), op_case_input_values(one, EMBED_BWD_DY));
        op_case_output(c, EMBED_BWD_DTABLE, DTYPE_F32, SHAPE(s.rows, C));
        op_case_run(c, 2);
        for (int64_t i = 0; i < s.rows * C; i++)
            assert_true(op_case_values(c, EMBED_BWD_DTABLE)[i] ==
                        (i < s.n * C ? op_case_values(one, EMBED_BWD_DTABLE)[s.first * C + i] : 0));
        op_case_close(c);
    }
    op_case_close(one);
}

/* Row 0 is token first_token: its position follows from that. */
static void positions_of_some_tokens(void **state) {
    (void)state;
    enum { FIRST = 6, COUNT = 5 };
    int32_t doc_start[TOKENS];
    for (int i = 0; i < TOKENS; i++) doc_start[i] = i % T < 3 ? 0 : 3;
    double want[P * C] = {0};
    op_case *c = op_case_open(OP_POSITION_BWD, &(op_attr){.seq_len = T, .first_token = FIRST, .n_tokens = COUNT});
    op_case_ints(c, POSITION_BWD_DOC_START, SHAPE(COUNT), doc_start + FIRST);
    op_case_random(c, POSITION_BWD_DY, DTYPE_F32, SHAPE(COUNT, C), 1.0, 4);
    op_case_output(c, POSITION_BWD_DTABLE, DTYPE_F32, SHAPE(P, C));
    op_case_run(c, 2);
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < C; k++)
            want[((FIRST + i) % T - doc_start[FIRST + i]) * C + k] +=
                op_case_input_values(c, POSITION_BWD_DY)[i * C + k];
    check_output(c, POSITION_BWD_DTABLE, DTYPE_F32, want, P * C, COUNT * 4 * U32, "dpositions");
    op_case_close(c);
}

/* ---- rows in order for ALL_TO_ALL --------------------------------------------------------------------------------------- */

/* Each rank's tokens once, one chunk from the front and one from the back. */
static void sequence_ranks_share_a_row_evenly(void **state) {
    (void)state;
    enum { ROW = 48 };
    for (int n = 1; n <= 4; n++) {
        int seen[ROW] = {0}, work[4] = {0};
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < ROW / n; i++) {
                int64_t t = sequence_token(i, r, n, ROW);
                assert_in_range(t, 0, ROW - 1);
                seen[t]++;
                work[r] += (int)t + 1; /* keys that it looks back at */
                if (i > 0) assert_true(t > sequence_token(i - 1, r, n, ROW));
            }
        for (int t = 0; t < ROW; t++) assert_int_equal(seen[t], 1);
        for (int r = 1; r < n; r++) assert_int_equal(work[r], work[0]);
    }
}

/* Runs the op and its inverse; returns what came out in between, owned by the case. */
static op_case *there_and_back(op_kind k, op_attr a, dtype t, shape x, shape y) {
    op_case *there = op_case_open(k, &a);
    op_case_random(there, HEAD_PARTS_X, t, x, 1.0, 3);
    op_case_output(there, HEAD_PARTS_Y, t, y);
    op_case_run(there, 2);
    a.inverse = true;
    op_case *back = op_case_open(k, &a);
    op_case_floats(back, HEAD_PARTS_X, t, y, op_case_values(there, HEAD_PARTS_Y));
    op_case_output(back, HEAD_PARTS_Y, t, x);
    op_case_run(back, 2);
    for (int64_t i = 0; i < shape_count(&x); i++)
        assert_true(op_case_values(back, HEAD_PARTS_Y)[i] == op_case_input_values(there, HEAD_PARTS_X)[i]);
    op_case_close(back);
    return there;
}

static void heads_go_to_their_rank(void **state) {
    (void)state;
    enum { ROWS = 5, H = 6, G = 2, D = 3, PARTS = 2, WIDTH = (H + 2 * G) * D };
    op_attr a = {.n_heads = H, .n_kv_heads = G, .head_dim = D, .n_parts = PARTS};
    op_case *c = there_and_back(OP_HEAD_PARTS, a, DTYPE_BF16, SHAPE(ROWS, WIDTH), SHAPE(PARTS * ROWS, WIDTH / PARTS));
    const double *x = op_case_input_values(c, HEAD_PARTS_X), *y = op_case_values(c, HEAD_PARTS_Y);
    for (int part = 0; part < PARTS; part++)
        for (int row = 0; row < ROWS; row++)
            for (int head = 0; head < (H + 2 * G) / PARTS; head++) { /* of the part: q, then k, then v */
                int q = H / PARTS, g = G / PARTS, from;
                if (head < q) from = part * q + head;
                else if (head < q + g) from = H + part * g + head - q;
                else from = H + G + part * g + head - q - g;
                for (int d = 0; d < D; d++)
                    assert_true(y[((part * ROWS + row) * (WIDTH / PARTS / D) + head) * D + d] ==
                                x[row * WIDTH + from * D + d]);
            }
    op_case_close(c);
}

static void tokens_go_to_their_rank(void **state) {
    (void)state;
    enum { BATCH = 2, LENGTH = 12, WIDTH = 7, PARTS = 3, OWN = LENGTH / PARTS };
    op_attr a = {.batch = BATCH, .seq_len = LENGTH, .n_parts = PARTS};
    shape s = SHAPE(BATCH * LENGTH, WIDTH);
    op_case *c = there_and_back(OP_TOKEN_PARTS, a, DTYPE_F32, s, s);
    for (int part = 0; part < PARTS; part++)
        for (int b = 0; b < BATCH; b++)
            for (int i = 0; i < OWN; i++)
                for (int k = 0; k < WIDTH; k++) {
                    int64_t from = b * LENGTH + sequence_token(i, part, PARTS, LENGTH);
                    assert_true(op_case_values(c, TOKEN_PARTS_Y)[((part * BATCH + b) * OWN + i) * WIDTH + k] ==
                                op_case_input_values(c, TOKEN_PARTS_X)[from * WIDTH + k]);
                }
    op_case_close(c);
}

/* ---- gradients -------------------------------------------------------------------------------------------------------- */

static void the_end_of_a_gradient_is_the_sum_of_its_holders(void **state) {
    (void)state;
    enum { ROWS = 70, WIDTH = 33, END = 40 * WIDTH, PARTS = 4 };
    for (int q = 0; q < 2; q++) {
        dtype t = q ? DTYPE_BF16 : DTYPE_F32;
        op_case *c = op_case_open(OP_SUM_PARTS, &(op_attr){.first_part = 1, .n_parts = 3});
        op_case_random(c, SUM_PARTS_X, t, SHAPE(ROWS, WIDTH), 1.0, 8);
        op_case_random(c, SUM_PARTS_PARTS, t, SHAPE(PARTS, END), 1.0, 9);
        op_case_output(c, SUM_PARTS_Y, t, SHAPE(ROWS, WIDTH));
        op_case_run(c, 2);
        const double *x = op_case_input_values(c, SUM_PARTS_X), *parts = op_case_input_values(c, SUM_PARTS_PARTS),
                     *y = op_case_values(c, SUM_PARTS_Y);
        for (int i = 0; i < ROWS * WIDTH - END; i++) assert_true(y[i] == x[i]);
        for (int i = 0; i < END; i++) {
            double want = parts[END + i] + parts[2 * END + i] + parts[3 * END + i];
            check_element(y[ROWS * WIDTH - END + i], want, 12 * U32, t, "sum", (size_t)i);
        }
        op_case_close(c);
    }
}

static double sum_of_squares(int64_t n, const op_attr *a) {
    double sum = 0;
    int64_t blocks = (n + NORM_BLOCK - 1) / NORM_BLOCK;
    op_case *c = op_case_open(OP_GRAD_SUMSQ, a);
    op_case_random(c, GRAD_SUMSQ_G, DTYPE_F32, SHAPE(n), 1.0, 6);
    op_case_output(c, GRAD_SUMSQ_PARTIALS, DTYPE_F64, SHAPE(blocks));
    op_case_run(c, 2);
    op_case *total = op_case_open(OP_NORM_SUM, &(op_attr){0});
    op_case_floats(total, NORM_SUM_PARTIALS, DTYPE_F64, SHAPE(blocks), op_case_values(c, GRAD_SUMSQ_PARTIALS));
    op_case_output(total, NORM_SUM_SUM, DTYPE_F64, SHAPE(1));
    op_case_run(total, 2);
    for (int64_t i = 0; i < blocks; i++) sum += op_case_values(c, GRAD_SUMSQ_PARTIALS)[i];
    assert_true(op_case_values(total, NORM_SUM_SUM)[0] == sum);
    int64_t counted = a->counts_part ? MAX(a->counted - a->first_element, 0) : n;
    double want = 0;
    for (int64_t i = 0; i < MIN(counted, n); i++) want += pow(op_case_input_values(c, GRAD_SUMSQ_G)[i], 2);
    assert_true(fabs(sum - want) <= 1e-12 * (1 + want));
    op_case_close(c);
    op_case_close(total);
    return sum;
}

static void what_another_rank_counts_is_left_out(void **state) {
    (void)state;
    enum { COUNT = 3 * NORM_BLOCK + 77 };
    assert_true(sum_of_squares(COUNT, &(op_attr){0}) > 0);
    assert_true(sum_of_squares(COUNT, &(op_attr){.counts_part = true}) == 0);
    sum_of_squares(COUNT, &(op_attr){.counts_part = true, .counted = NORM_BLOCK + 13});
    sum_of_squares(COUNT, &(op_attr){.counts_part = true, .counted = COUNT});
    /* a part that begins behind what is counted, and one that holds its end */
    assert_true(sum_of_squares(COUNT, &(op_attr){.first_element = 2 * NORM_BLOCK, .counts_part = true, .counted = 9}) ==
                0);
    sum_of_squares(COUNT,
                   &(op_attr){.first_element = 2 * NORM_BLOCK, .counts_part = true, .counted = 3 * NORM_BLOCK + 5});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_words_have_the_loss_of_one_rank_in_fp32),
                                       cmocka_unit_test(shared_words_have_the_loss_of_one_rank_in_bf16),
                                       cmocka_unit_test(shared_words_have_the_loss_of_one_rank_in_fp16),
                                       cmocka_unit_test(chunks_change_no_bit),
                                       cmocka_unit_test(rows_of_a_shared_table_add_up),
                                       cmocka_unit_test(gradient_rows_go_to_the_rank_that_has_them),
                                       cmocka_unit_test(positions_of_some_tokens),
                                       cmocka_unit_test(sequence_ranks_share_a_row_evenly),
                                       cmocka_unit_test(heads_go_to_their_rank),
                                       cmocka_unit_test(tokens_go_to_their_rank),
                                       cmocka_unit_test(the_end_of_a_gradient_is_the_sum_of_its_holders),
                                       cmocka_unit_test(what_another_rank_counts_is_left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
