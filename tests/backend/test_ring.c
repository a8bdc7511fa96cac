/* test_ring.c - attention by a ring of keys and values: its ops with all ranks played here, what the program keeps of a ring,
 * and which way is chosen.
 *
 * Every rank goes through its steps, with keys and values of the others cut out of whole rows; together they must have what
 * ATTENTION and ATTENTION_BWD have of the whole rows. Scores are the same products; softmax sums and those of dk and dv have
 * another order: 64 * 2^-24 of the norm in fp32, one rounding of each side in 16 bits. */
#include "change_model.h"
#include "op_check.h"
#include "plan/plan.h"
#include "programs.h"

#include <stdlib.h>

enum { B = 2, H = 6, G = 2 };
/* A head that no special kernel knows, or one that a GPU has on tensor cores. */
static int D = 20;
#define Q ((H + 2 * G) * D)
#define HD (H * D)
#define GD (2 * G * D)

static int64_t window; /* of the cases at hand, and their soft cap */
static float softcap;

static op_attr whole_attr(int64_t T) {
    return (op_attr){.batch = B,
                     .seq_len = T,
                     .n_heads = H,
                     .n_kv_heads = G,
                     .head_dim = D,
                     .scale = 0.22f,
                     .window = window,
                     .softcap = softcap};
}

static op_attr step_attr(int64_t T, int n_ranks, int rank, int step) {
    op_attr a = whole_attr(T / n_ranks);
    a.group_size = n_ranks, a.index = rank, a.peer = (rank - step + n_ranks) % n_ranks;
    return a;
}

/* Several documents per row, one of them across the chunks of several ranks; those of the second row begin elsewhere. */
static int32_t *make_doc_start(int64_t T) {
    int32_t *doc_start = mem_alloc((size_t)(B * T) * sizeof *doc_start);
    for (int64_t i = 0; i < B * T; i++) {
        int64_t t = i % T, first = t < T / 5 ? 0 : t < T / 4 ? T / 5 : i < T ? T / 4 : T / 2 <= t ? T / 2 : T / 4;
        doc_start[i] = (int32_t)first;
    }
    return doc_start;
}

typedef struct rows {
    op_case *forward, *backward; /* of whole rows */
    int32_t *doc_start;
    int64_t T;
    dtype type;
} rows;

static void rows_open(rows *r, dtype t, int64_t T) {
    op_attr a = whole_attr(T);
    *r = (rows){.doc_start = make_doc_start(T), .T = T, .type = t};
    r->forward = op_case_open(OP_ATTENTION, &a);
    op_case_random(r->forward, ATTENTION_QKV, t, SHAPE(B * T, Q), 1.0, 3);
    op_case_ints(r->forward, ATTENTION_DOC_START, SHAPE(B * T), r->doc_start);
    op_case_output(r->forward, ATTENTION_Y, t, SHAPE(B * T, HD));
    op_case_output(r->forward, ATTENTION_LSE, DTYPE_F32, SHAPE(B, H, T));
    op_case_run(r->forward, 2);
    r->backward = op_case_open(OP_ATTENTION_BWD, &a);
    op_case_floats(r->backward, ATTENTION_BWD_QKV, t, SHAPE(B * T, Q), op_case_input_values(r->forward, ATTENTION_QKV));
    op_case_ints(r->backward, ATTENTION_BWD_DOC_START, SHAPE(B * T), r->doc_start);
    op_case_floats(r->backward, ATTENTION_BWD_Y, t, SHAPE(B * T, HD), op_case_values(r->forward, ATTENTION_Y));
    op_case_floats(r->backward, ATTENTION_BWD_LSE, DTYPE_F32, SHAPE(B, H, T),
                   op_case_values(r->forward, ATTENTION_LSE));
    op_case_random(r->backward, ATTENTION_BWD_DY, t, SHAPE(B * T, HD), 1.0, 4);
    op_case_output(r->backward, ATTENTION_BWD_DQKV, t, SHAPE(B * T, Q));
    op_case_run(r->backward, 2);
}

static void rows_close(rows *r) {
    op_case_close(r->forward);
    op_case_close(r->backward);
    free(r->doc_start);
}

/* Columns [column, column + n) of the rows that a rank has; the caller frees. */
static double *own_rows(const rows *r, const double *whole, int64_t width, int64_t column, int64_t n, int rank,
                        int n_ranks) {
    int64_t own = r->T / n_ranks;
    double *out = mem_alloc((size_t)(B * own * n) * sizeof *out);
    for (int64_t i = 0; i < B * own; i++) {
        int64_t from = i / own * r->T + sequence_token(i % own, rank, n_ranks, r->T);
        memcpy(out + i * n, whole + from * width + column, (size_t)n * sizeof *out);
    }
    return out;
}

static int32_t *own_doc_start(const rows *r, int rank, int n_ranks) {
    int64_t own = r->T / n_ranks;
    int32_t *out = mem_alloc((size_t)(B * own) * sizeof *out);
    for (int64_t i = 0; i < B * own; i++) {
        int64_t token = sequence_token(i % own, rank, n_ranks, r->T), row = i / own * r->T;
        out[i] = (int32_t)(i % own - (token - r->doc_start[row + token]));
    }
    return out;
}

static void set_inputs(op_case *c, const rows *r, int rank, int peer, int n_ranks) {
    int64_t N = B * r->T / n_ranks;
    const double *qkv = op_case_input_values(r->forward, ATTENTION_QKV);
    double *own = own_rows(r, qkv, Q, 0, Q, rank, n_ranks), *kv = own_rows(r, qkv, Q, HD, GD, peer, n_ranks);
    int32_t *doc_start = own_doc_start(r, rank, n_ranks);
    op_case_floats(c, ATTENTION_RING_QKV, r->type, SHAPE(N, Q), own);
    op_case_floats(c, ATTENTION_RING_KV, r->type, SHAPE(N, GD), kv);
    op_case_ints(c, ATTENTION_RING_DOC_START, SHAPE(N), doc_start);
    free(own);
    free(kv);
    free(doc_start);
}

/* The last step of a rank's ring. Every step goes on in the bytes of the one before. */
static op_case *run_ring(const rows *r, int rank, int n_ranks) {
    op_case *last = NULL;
    for (int step = 0; step < n_ranks; step++) {
        op_attr a = step_attr(r->T, n_ranks, rank, step);
        int64_t own = a.seq_len;
        dtype t = step == n_ranks - 1 ? r->type : DTYPE_F32;
        op_case *c = op_case_open(OP_ATTENTION_RING, &a);
        set_inputs(c, r, rank, a.peer, n_ranks);
        if (last) {
            op_case_floats(c, ATTENTION_RING_BEFORE, DTYPE_F32, SHAPE(B * own, HD),
                           op_case_values(last, ATTENTION_RING_Y));
            op_case_floats(c, ATTENTION_RING_LSE_BEFORE, DTYPE_F32, SHAPE(B, H, own),
                           op_case_values(last, ATTENTION_RING_LSE));
            op_case_close(last);
        }
        op_case_output(c, ATTENTION_RING_Y, t, SHAPE(B * own, HD));
        op_case_output(c, ATTENTION_RING_LSE, DTYPE_F32, SHAPE(B, H, own));
        if (step > 0) op_case_alias(c, ATTENTION_RING_LSE, ATTENTION_RING_LSE_BEFORE);
        if (step > 0 && t == DTYPE_F32) op_case_alias(c, ATTENTION_RING_Y, ATTENTION_RING_BEFORE);
        op_case_run(c, 2);
        last = c;
    }
    return last;
}

static void check_norm(const double *got, const double *want, int64_t n, double bound, const char *what, dtype t) {
    double norm = 0, error = 0;
    for (int64_t i = 0; i < n; i++) norm += want[i] * want[i], error += pow(got[i] - want[i], 2);
    if (!(sqrt(error) <= bound * sqrt(norm)))
        fail_msg("%s (%s): differs by %g of %g", what, dtype_name(t), sqrt(error), sqrt(norm));
}

static double unit(dtype t) { return t == DTYPE_F32 ? 64 * U32 : 2 * check_roundoff(t); }

/* One step of one rank's backward: dq of the rank and dkv of the keys it looks at, which has travelled with them. */
static void run_step_back(const rows *r, op_case *forward, int rank, int step, int n_ranks, double *dq, double **dkv) {
    op_attr a = step_attr(r->T, n_ranks, rank, step);
    int64_t N = B * a.seq_len;
    double *dy = own_rows(r, op_case_input_values(r->backward, ATTENTION_BWD_DY), HD, 0, HD, rank, n_ranks),
           *sums = dkv[a.peer];
    op_case *c = op_case_open(OP_ATTENTION_RING_BWD, &a);
    set_inputs(c, r, rank, a.peer, n_ranks);
    op_case_floats(c, ATTENTION_RING_BWD_Y, r->type, SHAPE(N, HD), op_case_values(forward, ATTENTION_RING_Y));
    op_case_floats(c, ATTENTION_RING_BWD_LSE, DTYPE_F32, SHAPE(B, H, a.seq_len),
                   op_case_values(forward, ATTENTION_RING_LSE));
    op_case_floats(c, ATTENTION_RING_BWD_DY, r->type, SHAPE(N, HD), dy);
    if (step > 0) {
        op_case_output_floats(c, ATTENTION_RING_BWD_DQ, DTYPE_F32, SHAPE(N, HD), dq);
        op_case_output_floats(c, ATTENTION_RING_BWD_DKV, DTYPE_F32, SHAPE(N, GD), sums);
    } else { /* poisoned: the first step does not read them */
        op_case_output(c, ATTENTION_RING_BWD_DQ, DTYPE_F32, SHAPE(N, HD));
        op_case_output(c, ATTENTION_RING_BWD_DKV, DTYPE_F32, SHAPE(N, GD));
    }
    op_case_run(c, 2);
    memcpy(dq, op_case_values(c, ATTENTION_RING_BWD_DQ), (size_t)(N * HD) * sizeof *dq);
    memcpy(sums, op_case_values(c, ATTENTION_RING_BWD_DKV), (size_t)(N * GD) * sizeof *sums);
    op_case_close(c);
    free(dy);
}

static void check_forward(const rows *r, op_case *c, int rank, int n_ranks) {
    int64_t own = r->T / n_ranks;
    double *y = own_rows(r, op_case_values(r->forward, ATTENTION_Y), HD, 0, HD, rank, n_ranks);
    check_norm(op_case_values(c, ATTENTION_RING_Y), y, B * own * HD, unit(r->type), "y", r->type);
    for (int64_t i = 0; i < B * H * own; i++) {
        int64_t token = sequence_token(i % own, rank, n_ranks, r->T);
        double want = op_case_values(r->forward, ATTENTION_LSE)[i / own * r->T + token];
        check_element(op_case_values(c, ATTENTION_RING_LSE)[i], want, 64 * U32 * (1 + fabs(want)), DTYPE_F32, "lse",
                      (size_t)i);
    }
    free(y);
}

static void check_ring(dtype t, int64_t T, int n_ranks) {
    enum { RANKS_MOST = 4 };
    rows r;
    rows_open(&r, t, T);
    int64_t N = B * T / n_ranks;
    op_case *forward[RANKS_MOST];
    double *dq[RANKS_MOST], *dkv[RANKS_MOST];
    for (int rank = 0; rank < n_ranks; rank++) {
        forward[rank] = run_ring(&r, rank, n_ranks);
        check_forward(&r, forward[rank], rank, n_ranks);
        dq[rank] = mem_alloc((size_t)(N * HD) * sizeof(double));
        dkv[rank] = mem_alloc((size_t)(N * GD) * sizeof(double));
    }
    for (int step = 0; step < n_ranks; step++)
        for (int rank = 0; rank < n_ranks; rank++) run_step_back(&r, forward[rank], rank, step, n_ranks, dq[rank], dkv);
    for (int rank = 0; rank < n_ranks; rank++) {
        const double *dqkv = op_case_values(r.backward, ATTENTION_BWD_DQKV);
        double *q = own_rows(&r, dqkv, Q, 0, HD, rank, n_ranks), *kv = own_rows(&r, dqkv, Q, HD, GD, rank, n_ranks);
        check_norm(dq[rank], q, N * HD, unit(t), "dq", t);
        check_norm(dkv[rank], kv, N * GD, unit(t), "dkv", t);
        free(q);
        free(kv);
        free(dq[rank]);
        free(dkv[rank]);
        op_case_close(forward[rank]);
    }
    rows_close(&r);
}

/* Rows of 24 tokens: a block has them all; of 360 and 1024: blocks of queries and keys begin inside chunks, and the backward
 * is cut into pieces. */
static void a_ring_has_what_whole_rows_have(void **state) {
    (void)state;
    for (size_t q = 0; q < ARRAY_LENGTH(check_types); q++)
        for (int n_ranks = 2; n_ranks <= 4; n_ranks++) check_ring(check_types[q], 24, n_ranks);
    check_ring(DTYPE_F32, 360, 3);
    check_ring(DTYPE_BF16, 1024, 2);
    D = 64;
    check_ring(DTYPE_BF16, 384, 3);
    check_ring(DTYPE_F16, 520, 2);
    D = 20;
}

/* A window is counted in places of the row: inside one rank's run, over the runs of several, and of some ranks no key. */
static void a_window_reaches_over_the_ranks_of_a_ring(void **state) {
    (void)state;
    static const int64_t windows[] = {1, 5, 17, 1000};
    for (size_t i = 0; i < ARRAY_LENGTH(windows); i++) {
        window = windows[i], softcap = i % 2 ? 1.5f : 0;
        for (int n_ranks = 2; n_ranks <= 4; n_ranks++) check_ring(i < 2 ? DTYPE_F32 : DTYPE_BF16, 24, n_ranks);
    }
    window = 100;
    check_ring(DTYPE_F32, 360, 3);
    window = 0, softcap = 0;
}

static void keys_and_values_leave_their_rows_and_come_back(void **state) {
    (void)state;
    enum { T = 7, N = B * T };
    op_attr a = whole_attr(T);
    for (size_t q = 0; q < ARRAY_LENGTH(check_types); q++) {
        dtype t = check_types[q];
        op_case *take = op_case_open(OP_KV_PART, &a), *join = op_case_open(OP_QKV_JOIN, &a);
        op_case_random(take, KV_PART_QKV, t, SHAPE(N, Q), 1.0, 9);
        op_case_output(take, KV_PART_KV, t, SHAPE(N, GD));
        op_case_run(take, 2);
        op_case_random(join, QKV_JOIN_Q, DTYPE_F32, SHAPE(N, HD), 1.0, 10);
        op_case_floats(join, QKV_JOIN_KV, DTYPE_F32, SHAPE(N, GD), op_case_values(take, KV_PART_KV));
        op_case_output(join, QKV_JOIN_QKV, t, SHAPE(N, Q));
        op_case_run(join, 2);
        for (int i = 0; i < N * Q; i++) {
            double got = op_case_values(join, QKV_JOIN_QKV)[i];
            if (i % Q >= HD) assert_true(got == op_case_input_values(take, KV_PART_QKV)[i]);
            else check_element(got, op_case_input_values(join, QKV_JOIN_Q)[i / Q * HD + i % Q], 0, t, "q", (size_t)i);
        }
        op_case_close(take);
        op_case_close(join);
    }
}

/* A document that cannot be begins at the nearest place that can: nothing is read outside, and a query sees itself. */
static void wrong_documents_stay_in_bounds(void **state) {
    (void)state;
    enum { OWN = 8, N = B * OWN };
    static const int32_t docs[] = {INT32_MIN, -1, OWN, INT32_MAX};
    for (size_t k = 0; k < ARRAY_LENGTH(docs); k++)
        for (int step = 0; step < 2; step++) {
            op_attr a = step_attr(2 * OWN, 2, 1, step);
            int32_t doc_start[N];
            for (int i = 0; i < N; i++) doc_start[i] = docs[k];
            op_case *c = op_case_open(OP_ATTENTION_RING, &a);
            op_case_random(c, ATTENTION_RING_QKV, DTYPE_F32, SHAPE(N, Q), 1.0, 5);
            op_case_random(c, ATTENTION_RING_KV, DTYPE_F32, SHAPE(N, GD), 1.0, 6);
            op_case_ints(c, ATTENTION_RING_DOC_START, SHAPE(N), doc_start);
            if (step > 0) op_case_random(c, ATTENTION_RING_BEFORE, DTYPE_F32, SHAPE(N, HD), 1.0, 7);
            if (step > 0) op_case_random(c, ATTENTION_RING_LSE_BEFORE, DTYPE_F32, SHAPE(B, H, OWN), 1.0, 8);
            op_case_output(c, ATTENTION_RING_Y, DTYPE_F32, SHAPE(N, HD));
            op_case_output(c, ATTENTION_RING_LSE, DTYPE_F32, SHAPE(B, H, OWN));
            op_case_run(c, 2);
            for (int i = 0; i < N * HD; i++) assert_true(isfinite(op_case_values(c, ATTENTION_RING_Y)[i]));
            op_case_close(c);
        }
}

/* ---- the program ------------------------------------------------------------------------------------------------------ */

static size_t no_scratch(const program *p, const op *o, int n_threads) {
    (void)p, (void)o, (void)n_threads;
    return 0;
}

static plan_request request_of(const char *preset, int n_ranks, attention_kind way) {
    plan_request r = {.source = net_source_of(model_preset_find(preset)),
                      .choice.micro_batch = 1,
                      .choice.accumulation = 1,
                      .seq_len = 240,
                      .verify = true,
                      .attention = way,
                      .mesh = {.size[AXIS_SEQUENCE] = n_ranks},
                      .target = {.name = "paper", .n_threads = 1, .alignment = 64, .work_bytes = no_scratch}};
    return r;
}

/* Keys and values of other ranks, alive at one time: two at most, those that are looked at and those that come. */
static void no_rank_has_the_keys_of_a_whole_row(void **state) {
    (void)state;
    static const recompute_kind kinds[] = {RECOMPUTE_NONE, RECOMPUTE_NORMS, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
        plan_request r = request_of("test-qwen3", 5, ATTENTION_RING);
        r.choice.recompute.kind = kinds[k];
        plan p;
        plan_must(&p, &r);
        lifetime *life = mem_alloc(p.program.n_values * sizeof *life);
        layout_lifetimes(&p.program, life);
        for (size_t i = 0; i < p.program.n_ops; i++) {
            int alive = 0;
            for (value_id v = 1; v < p.program.n_values; v++) {
                const value *a = &p.program.values[v];
                bool kv = strstr(a->name, ".kv") && a->role == ROLE_ACTIVATION && life[v].first <= life[v].last;
                alive += kv && life[v].first <= i && i <= life[v].last;
            }
            assert_true(alive <= 2);
        }
        assert_true(program_find(&p.program, "doc_start.all") == NO_VALUE);
        free(life);
        plan_close(&p);
    }
}

/* Forward S - 1 times k and v, backward as often again, and S times their gradient in fp32. */
static void a_ring_sends_what_the_choice_says(void **state) {
    (void)state;
    for (int n_ranks = 2; n_ranks <= 5; n_ranks++)
        for (attention_kind way = ATTENTION_HEADS; way <= ATTENTION_RING; way++) {
            if (way == ATTENTION_HEADS && 4 % n_ranks) continue;
            plan_request r = request_of("test-gpt2", n_ranks, way);
            r.choice.precision = PRECISION_BF16;
            plan p;
            plan_must(&p, &r);
            double sent = 0;
            for (size_t i = 0; i < p.program.n_ops; i++) {
                const op *o = &p.program.ops[i];
                if (o->section == SECTION_MICRO && (o->kind == OP_SHIFT || o->kind == OP_ALL_TO_ALL))
                    sent += op_sent(&p.program, o);
            }
            double said = way == ATTENTION_RING ? p.attention.ring_bytes : p.attention.heads_bytes;
            assert_true(fabs(sent / (double)r.source.n_layers - said) < 1e-6 * said);
            plan_close(&p);
        }
}

/* Few kv heads on few ranks: the ring sends less; many on many: the exchange. Slow links change nothing that they share. */
static void the_cheaper_way_is_taken(void **state) {
    (void)state;
    plan_request r = request_of("test-gpt2", 3, ATTENTION_AUTO);
    assert_int_equal(plan_attention(&r).kind, ATTENTION_RING); /* 4 heads on 3 ranks */
    r = request_of("test-gpt2", 4, ATTENTION_AUTO);
    assert_int_equal(plan_attention(&r).kind, ATTENTION_HEADS);
    r = request_of("test-gpt2", 2, ATTENTION_AUTO);
    CHANGE_MODEL(r.source, (c.n_heads = 32, c.n_kv_heads = 2));
    assert_int_equal(plan_attention(&r).kind, ATTENTION_RING);
    hardware h;
    assert_int_equal(hardware_load(&h, "h100"), OK);
    h.devices_per_node = 8;
    r.hardware = &h;
    r.choice.precision = PRECISION_BF16;
    r.choice.micro_batch = 1, r.seq_len = 1 << 17;
    CHANGE_MODEL(r.source, (c.head_dim = 128, c.max_positions = 1 << 17));
    attention_choice few = plan_attention(&r);
    assert_true(few.ring_s < few.heads_s && few.kind == ATTENTION_RING);
    r.mesh.size[AXIS_SEQUENCE] = 8, r.source.n_kv_heads = 32, r.seq_len = 1 << 13;
    attention_choice many = plan_attention(&r);
    assert_true(many.heads_s < many.ring_s && many.kind == ATTENTION_HEADS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_window_reaches_over_the_ranks_of_a_ring),
                                       cmocka_unit_test(a_ring_has_what_whole_rows_have),
                                       cmocka_unit_test(keys_and_values_leave_their_rows_and_come_back),
                                       cmocka_unit_test(wrong_documents_stay_in_bounds),
                                       cmocka_unit_test(no_rank_has_the_keys_of_a_whole_row),
                                       cmocka_unit_test(a_ring_sends_what_the_choice_says),
                                       cmocka_unit_test(the_cheaper_way_is_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
