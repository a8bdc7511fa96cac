/* ranks_comm.c - collectives on as many ranks as mpirun starts; cli_ranks.sh runs it on 1, 2, 3, 4 and 8.
 *
 * Every operand is a known function of rank and element, so each rank computes what all of them must get. A check that fails
 * ends the process, and mpirun the others. With an argument it plays one of the failures that cli_ranks.sh watches. */
#include "comm/comm.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int world_rank = -1;

#define CHECK(cond, ...)                                                                    \
    do {                                                                                    \
        if (!(cond)) {                                                                      \
            fprintf(stderr, "%s:%d: rank %d: %s: ", __FILE__, __LINE__, world_rank, #cond); \
            fprintf(stderr, __VA_ARGS__);                                                   \
            fputc('\n', stderr);                                                            \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)
#define CHECK_OK(expr) CHECK((expr) == OK, "%s", error_message())

/* ---- a mesh and one op at a time -------------------------------------------------------------------------------------------- */

/* Where operands lie: in memory that the node shares, or in this process's own. */
typedef enum where { WHERE_SHARED, WHERE_OWN, WHERE_COUNT } where;
enum { ARENA_BYTES = 24 << 20, GUARD = 64 };

typedef struct ranks {
    comm *c;
    uint8_t *shared, *own; /* shared NULL: ranks exchange messages only */
    bool messages_only;
} ranks;

static void ranks_open(ranks *r, const int size[AXIS_COUNT], bool messages_only) {
    comm_options o = {.transport = TRANSPORT_AUTO, .timeout_s = 60, .messages_only = messages_only};
    for (axis a = 0; a < AXIS_COUNT; a++) o.size[a] = size[a];
    *r = (ranks){.own = mem_alloc(ARENA_BYTES), .messages_only = messages_only};
    CHECK_OK(comm_open(&r->c, &o));
    world_rank = comm_rank(r->c);
    CHECK(comm_shares_memory(r->c) == (!messages_only && comm_size(r->c) > 1), "which ranks share memory");
    void *memory = NULL;
    if (comm_shares_memory(r->c)) CHECK_OK(comm_memory_open(r->c, ARENA_BYTES, &memory));
    r->shared = memory;
}

static void ranks_close(ranks *r) {
    if (r->shared) comm_memory_close(r->c, r->shared, ARENA_BYTES);
    comm_close(r->c);
    free(r->own);
}

typedef struct call {
    program p;
    op *o;
    kernel_call k;
} call;

/* x and y have one place in every collective (acc of REDUCE_SCATTER too): that of ALL_GATHER. */
static void call_init(call *t, op_kind kind, axis a, int n, dtype type, int64_t n_x, int64_t n_y) {
    program_init(&t->p);
    value_id x = program_value(&t->p, "x", type, SHAPE(MAX(n_x, 1)), ROLE_GRAD, SECTION_MICRO);
    value_id y = program_value(&t->p, "y", type, SHAPE(MAX(n_y, 1)), ROLE_GRAD, SECTION_MICRO);
    t->o = program_emit(&t->p, kind, SECTION_MICRO);
    t->o->attr = (op_attr){.axis = a, .group_size = n};
    if (n_x) op_in(t->o, ALL_GATHER_X, x);
    if (n_y) op_out(t->o, ALL_GATHER_Y, y);
    t->k = (kernel_call){.program = &t->p, .op = t->o};
    size_t work = comm_work_bytes(&t->p, t->o);
    if (work) {
        value_id w = program_value(&t->p, "work", DTYPE_U8, SHAPE((int64_t)work), ROLE_WORK, SECTION_MICRO);
        t->o = &t->p.ops[0];
        t->o->work = w;
        t->k.work = mem_alloc(work);
    }
}

static void call_fini(call *t) {
    free(t->k.work);
    program_fini(&t->p);
}

/* Element i of what rank r brings; sums of such numbers round in every dtype. */
static float number(int r, size_t i, int salt) {
    rng_noise n = {.start = (uint32_t)(i * 2654435761u), .key = (uint32_t)(r + 64 * salt)};
    return (float)rng_noise_word(n, (uint32_t)i) * 0x3p-32f - 1.0f;
}

static void fill(void *x, dtype type, size_t n, int r, size_t first, int salt) {
    for (size_t i = 0; i < n; i++)
        if (type == DTYPE_F64) ((double *)x)[i] = (double)number(r, first + i, salt) / 3;
        else tensor_set_f32(x, type, i, number(r, first + i, salt));
}

/* The sum that every transport must give: group members in order, fp32 or fp64, rounded once. */
static void expect_sum(void *out, dtype type, size_t n, const comm *c, axis a, size_t first, int salt) {
    int members = comm_mesh(c)->size[a];
    uint8_t element[8];
    for (size_t i = 0; i < n; i++) {
        double d = 0;
        float f = 0;
        for (int m = 0; m < members; m++) {
            fill(element, type, 1, comm_rank_at(c, a, m), first + i, salt);
            if (type == DTYPE_F64) d = m ? d + *(double *)element : *(double *)element;
            else f = m ? f + tensor_get_f32(element, type, 0) : tensor_get_f32(element, type, 0);
        }
        if (type == DTYPE_F64) ((double *)out)[i] = d;
        else tensor_set_f32(out, type, i, f);
    }
}

/* ---- collectives --------------------------------------------------------------------------------------------------------------- */

typedef struct operands {
    uint8_t *x, *y;
    size_t y_bytes;
} operands;

static operands place(ranks *r, where w, size_t x_bytes, size_t y_bytes) {
    uint8_t *base = w == WHERE_SHARED && r->shared ? r->shared : r->own;
    operands o = {base, base + (x_bytes + 127) / 64 * 64, y_bytes};
    CHECK(x_bytes + y_bytes + 4 * GUARD < ARENA_BYTES, "the arena is too small for the test");
    memset(o.y, 0xa5, y_bytes + GUARD);
    return o;
}

static void check_guard(const operands *o, const char *what) {
    for (int i = 0; i < GUARD; i++) CHECK(o->y[o->y_bytes + (size_t)i] == 0xa5, "%s wrote behind its output", what);
}

static void run(ranks *r, call *t, const operands *o) {
    t->k.in[ALL_GATHER_X] = t->o->in[ALL_GATHER_X] ? o->x : NULL;
    t->k.out[ALL_GATHER_Y] = t->o->out[ALL_GATHER_Y] ? o->y : NULL;
    comm_traffic before = comm_traffic_so_far(r->c), after;
    CHECK_OK(comm_run(r->c, &t->k));
    after = comm_traffic_so_far(r->c);
    bool takes = t->o->attr.group_size > 1 && t->o->kind != OP_SEND;
    bool shared = r->shared && o->y >= r->shared && o->y < r->shared + ARENA_BYTES;
    bool few = shape_count(&t->p.values[1].shape) < t->o->attr.group_size; /* a slice of ALL_REDUCE may be empty */
    CHECK(few || (after.read > before.read) == (takes && shared), "read of the others' memory");
    CHECK(few || (after.received > before.received) == (takes && !shared), "messages");
}

static void check_bytes(const void *got, const void *expected, size_t n_bytes, const char *what, dtype type, size_t n) {
    CHECK(memcmp(got, expected, n_bytes) == 0, "%s of %zu %s", what, n, dtype_name(type));
}

static void check_all_gather(ranks *r, axis a, where w, dtype type, size_t n, bool in_place) {
    int members = comm_mesh(r->c)->size[a];
    size_t bytes = n * dtype_bytes(type);
    call t;
    call_init(&t, OP_ALL_GATHER, a, members, type, (int64_t)n, (int64_t)n * members);
    operands o = place(r, w, bytes, bytes * (size_t)members);
    if (in_place) o.x = o.y + (size_t)comm_mesh(r->c)->index[a] * bytes;
    uint8_t *expected = mem_alloc(bytes * (size_t)members);
    for (int m = 0; m < members; m++) fill(expected + (size_t)m * bytes, type, n, comm_rank_at(r->c, a, m), 0, 1);
    fill(o.x, type, n, world_rank, 0, 1);
    run(r, &t, &o);
    check_bytes(o.y, expected, bytes * (size_t)members, "ALL_GATHER", type, n);
    check_guard(&o, "ALL_GATHER");
    free(expected);
    call_fini(&t);
}

static void check_reduce_scatter(ranks *r, axis a, where w, dtype type, size_t n, bool in_place) {
    int members = comm_mesh(r->c)->size[a], index = comm_mesh(r->c)->index[a];
    size_t bytes = n * dtype_bytes(type);
    call t;
    call_init(&t, OP_REDUCE_SCATTER, a, members, type, (int64_t)n * members, (int64_t)n);
    operands o = place(r, w, bytes * (size_t)members, bytes);
    if (in_place) o.y = o.x + (size_t)index * bytes;
    uint8_t *expected = mem_alloc(bytes);
    fill(o.x, type, n * (size_t)members, world_rank, 0, 2);
    expect_sum(expected, type, n, r->c, a, n * (size_t)index, 2);
    run(r, &t, &o);
    check_bytes(o.y, expected, bytes, "REDUCE_SCATTER", type, n);
    if (!in_place) check_guard(&o, "REDUCE_SCATTER");
    free(expected);
    call_fini(&t);
}

static void check_all_reduce(ranks *r, axis a, where w, dtype type, size_t n, bool in_place) {
    size_t bytes = n * dtype_bytes(type);
    call t;
    call_init(&t, OP_ALL_REDUCE, a, comm_mesh(r->c)->size[a], type, (int64_t)n, (int64_t)n);
    operands o = place(r, w, bytes, bytes);
    if (in_place) o.x = o.y;
    uint8_t *expected = mem_alloc(bytes);
    fill(o.x, type, n, world_rank, 0, 3);
    expect_sum(expected, type, n, r->c, a, 0, 3);
    run(r, &t, &o);
    check_bytes(o.y, expected, bytes, "ALL_REDUCE", type, n);
    check_guard(&o, "ALL_REDUCE");
    free(expected);
    call_fini(&t);
}

static void check_all_to_all(ranks *r, axis a, where w, dtype type, size_t n) {
    int members = comm_mesh(r->c)->size[a], index = comm_mesh(r->c)->index[a];
    size_t bytes = n * dtype_bytes(type), all = bytes * (size_t)members;
    call t;
    call_init(&t, OP_ALL_TO_ALL, a, members, type, (int64_t)n * members, (int64_t)n * members);
    operands o = place(r, w, all, all);
    uint8_t *expected = mem_alloc(all);
    fill(o.x, type, n * (size_t)members, world_rank, 0, 4);
    for (int m = 0; m < members; m++)
        fill(expected + (size_t)m * bytes, type, n, comm_rank_at(r->c, a, m), n * (size_t)index, 4);
    run(r, &t, &o);
    check_bytes(o.y, expected, all, "ALL_TO_ALL", type, n);
    check_guard(&o, "ALL_TO_ALL");
    free(expected);
    call_fini(&t);
}

static void check_shift(ranks *r, axis a, where w, dtype type, size_t n) {
    int members = comm_mesh(r->c)->size[a], index = comm_mesh(r->c)->index[a];
    size_t bytes = n * dtype_bytes(type);
    call t;
    call_init(&t, OP_SHIFT, a, members, type, (int64_t)n, (int64_t)n);
    operands o = place(r, w, bytes, bytes);
    uint8_t *expected = mem_alloc(bytes);
    fill(o.x, type, n, world_rank, 0, 6);
    fill(expected, type, n, comm_rank_at(r->c, a, (index + members - 1) % members), 0, 6);
    run(r, &t, &o);
    check_bytes(o.y, expected, bytes, "SHIFT", type, n);
    check_guard(&o, "SHIFT");
    free(expected);
    call_fini(&t);
}

/* Even ranks send to the next and receive from the one before, odd ranks the other way round; then rank 0 sends to every
 * other in turn, with tags. */
static void check_send(ranks *r, axis a, where w, size_t n) {
    int members = comm_mesh(r->c)->size[a], index = comm_mesh(r->c)->index[a];
    size_t bytes = n * 4;
    if (members < 2) return;
    call s, t;
    call_init(&s, OP_SEND, a, members, DTYPE_F32, (int64_t)n, 0);
    call_init(&t, OP_RECV, a, members, DTYPE_F32, 0, (int64_t)n);
    operands o = place(r, w, bytes, bytes);
    float *expected = mem_alloc(bytes);
    int next = (index + 1) % members, before = (index + members - 1) % members;
    fill(o.x, DTYPE_F32, n, world_rank, 0, 5);
    s.o->attr.peer = next;
    t.o->attr.peer = before;
    if (index % 2 == 0)
        run(r, &s, &o); /* an odd ring has two even neighbours: the last sends after the first received */
    if (index % 2 == 0) run(r, &t, &o);
    if (index % 2 == 1) run(r, &t, &o);
    if (index % 2 == 1) run(r, &s, &o);
    fill(expected, DTYPE_F32, n, comm_rank_at(r->c, a, before), 0, 5);
    check_bytes(o.y, expected, bytes, "SEND and RECV", DTYPE_F32, n);
    for (int to = members - 1; to > 0; to--) {
        s.o->attr.peer = to;
        t.o->attr.peer = 0;
        s.o->attr.tag = t.o->attr.tag = 10 + to;
        if (index == 0) {
            fill(o.x, DTYPE_F32, n, to, 0, 6);
            run(r, &s, &o);
        } else if (index == to) {
            run(r, &t, &o);
            fill(expected, DTYPE_F32, n, to, 0, 6);
            check_bytes(o.y, expected, bytes, "SEND and RECV with tags", DTYPE_F32, n);
        }
    }
    check_guard(&o, "RECV");
    free(expected);
    call_fini(&s);
    call_fini(&t);
}

/* N ranks x M micro-batches end with the bits of one rank that accumulates N * M of them in order. */
static void check_accumulation(ranks *r, axis a, where w, dtype type, int64_t first_element, size_t n) {
    int members = comm_mesh(r->c)->size[a], index = comm_mesh(r->c)->index[a];
    size_t bytes = n * dtype_bytes(type);
    const backend *b = backend_cpu();
    backend_context *context;
    CHECK_OK(b->open(&context, &(backend_options){.n_threads = 1}));
    call t;
    call_init(&t, OP_REDUCE_SCATTER, a, members, type, (int64_t)n * members, (int64_t)n);
    t.o->attr.noise_key = 77;
    t.o->attr.first_element = first_element;
    program one;
    program_init(&one);
    value_id x = program_value(&one, "x", type, SHAPE((int64_t)n), ROLE_GRAD, SECTION_MICRO);
    value_id acc = program_value(&one, "acc", type, SHAPE((int64_t)n), ROLE_GRAD, SECTION_MICRO);
    op *accumulate = program_emit(&one, OP_ACCUMULATE, SECTION_MICRO);
    op_in(accumulate, ACCUMULATE_X, x);
    op_out(accumulate, ACCUMULATE_ACC, acc);
    accumulate->attr = t.o->attr;
    operands o = place(r, w, bytes * (size_t)members, bytes);
    uint8_t *part = mem_alloc(bytes), *expected = mem_alloc(bytes);
    step_scalars here = {.step = 5, .noise_lo = 3, .noise_hi = 9}, alone = here;
    for (int micro = 0; micro < 3; micro++) {
        here.micro = (uint32_t)micro;
        t.k.in[REDUCE_SCATTER_SCALARS] = &here;
        fill(o.x, type, n * (size_t)members, world_rank, 0, 7 + micro);
        run(r, &t, &o);
        for (int m = 0; m < members; m++) {
            alone.micro = (uint32_t)(micro * members + m);
            fill(part, type, n, comm_rank_at(r->c, a, m), n * (size_t)index, 7 + micro);
            kernel_call add = {.program = &one,
                               .op = accumulate,
                               .in = {[ACCUMULATE_X] = part, [ACCUMULATE_SCALARS] = &alone},
                               .out = {[ACCUMULATE_ACC] = expected}};
            b->kernels[OP_ACCUMULATE](context, &add);
        }
    }
    check_bytes(o.y, expected, bytes, "REDUCE_SCATTER over micro-batches", type, n);
    check_guard(&o, "REDUCE_SCATTER");
    free(part);
    free(expected);
    program_fini(&one);
    call_fini(&t);
    b->close(context);
}

static void check_collectives(ranks *r) {
    static const size_t counts[] = {1, 2, 5, 64, 1000, 70001};
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    for (axis a = 0; a < AXIS_COUNT; a++)
        for (where w = 0; w < WHERE_COUNT; w++) {
            for (size_t i = 0; i < ARRAY_LENGTH(counts); i++)
                for (size_t k = 0; k < ARRAY_LENGTH(types); k++) {
                    if (counts[i] > 1000 && (k > 1 || a > 1)) continue; /* enough bytes to be cut into chunks */
                    bool in_place = (i + k) % 2;
                    check_all_gather(r, a, w, types[k], counts[i], in_place);
                    check_reduce_scatter(r, a, w, types[k], counts[i], in_place);
                    check_all_reduce(r, a, w, types[k], counts[i], in_place);
                    check_all_to_all(r, a, w, types[k], counts[i]);
                    check_shift(r, a, w, types[k], counts[i]);
                }
            check_send(r, a, w, 1000);
            check_accumulation(r, a, w, DTYPE_F32, 0, 3000);
            check_accumulation(r, a, w, DTYPE_BF16, 0, 3000);
            check_accumulation(r, a, w, DTYPE_BF16, RNG_NOISE_BLOCK - 1024, 3000); /* across two blocks of noise */
        }
}

/* ---- set-up calls ------------------------------------------------------------------------------------------------------------------ */

static void check_setup(ranks *r) {
    int size = comm_size(r->c), all[64];
    char text[64];
    CHECK_OK(comm_all_gather_bytes(r->c, &world_rank, sizeof world_rank, all));
    for (int i = 0; i < size; i++) CHECK(all[i] == i, "rank %d at %d", all[i], i);
    for (int from = 0; from < size; from++) {
        snprintf(text, sizeof text, "%d", world_rank);
        CHECK_OK(comm_broadcast(r->c, text, sizeof text, from));
        CHECK(atoi(text) == from, "'%s' from %d", text, from);
    }
    bool any;
    CHECK_OK(comm_any(r->c, false, &any));
    CHECK(!any, "nobody said so");
    CHECK_OK(comm_any(r->c, world_rank == size - 1, &any));
    CHECK(any, "one said so");
    CHECK_OK(comm_agree(r->c, "settings", "a: 1\nb: 2\n"));
    if (size == 1) return;
    CHECK(comm_agree(r->c, "settings", world_rank == size - 1 ? "a: 1\n  b: 3\n" : "a: 1\n  b: 2\n") == ERR_INPUT,
          "agreed");
    snprintf(text, sizeof text, "rank %d ", size - 1);
    CHECK(strstr(error_message(), text) && strstr(error_message(), "'b: 3'") && strstr(error_message(), "'b: 2'") &&
              strstr(error_message(), "settings"),
          "%s", error_message());
    CHECK(comm_agree(r->c, "settings", world_rank == size - 1 ? "a: 1" : "a: 1\nb: 2\n") == ERR_INPUT, "agreed");
    CHECK(strstr(error_message(), "''") && strstr(error_message(), "'b: 2'"), "%s", error_message());
}

static void check_mesh(const ranks *r) {
    const mesh *m = comm_mesh(r->c);
    CHECK(mesh_rank(m) == world_rank && mesh_world(m) == comm_size(r->c), "place in the mesh");
    for (axis a = 0; a < AXIS_COUNT; a++)
        CHECK(comm_rank_at(r->c, a, m->index[a]) == world_rank, "own place on the %s axis", axis_name(a));
}

/* ---- failures: each ends a mesh, never the process ----------------------------------------------------------------------------------- */

static _Atomic int n_told;
static void on_failure(void *context, status code, const char *cause) { n_told++; }

/* Rank 1 waits for rank 0, that one for rank 2, and that one for rank 3, which is in no collective: all name rank 3. */
static void check_chain(comm *calm, bool messages) {
    static const axis waits_on[] = {AXIS_DATA, AXIS_TENSOR, AXIS_TENSOR};
    comm_options o = {.size = {[AXIS_TENSOR] = 2, [AXIS_DATA] = 2}, .timeout_s = 0.3, .messages_only = messages};
    ranks r = {.own = mem_alloc(ARENA_BYTES)};
    CHECK_OK(comm_open(&r.c, &o));
    CHECK_OK(comm_barrier(calm));
    comm_note_step(r.c, 7);
    if (world_rank == 3) {
        comm_note_op(r.c, &(op){.kind = OP_LINEAR, .layer = 4, .section = SECTION_MICRO});
        while (comm_check(r.c) == OK) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    } else {
        call t;
        call_init(&t, OP_ALL_GATHER, waits_on[world_rank], 2, DTYPE_F32, 10, 20);
        operands m = place(&r, WHERE_OWN, 40, 80);
        t.k.in[ALL_GATHER_X] = m.x;
        t.k.out[ALL_GATHER_Y] = m.y;
        CHECK(comm_run(r.c, &t.k) == ERR_RUN, "it came");
        call_fini(&t);
    }
    comm_check(r.c);
    CHECK(strncmp(error_message(), "rank 3 (pid ", 12) == 0 && strstr(error_message(), "computing linear of layer 4") &&
              strstr(error_message(), ", step 7") && strstr(error_message(), "keeps the others waiting"),
          "%s", error_message());
    comm_close(r.c);
    free(r.own);
}

static void check_failures(void) {
    static const int all_data[AXIS_COUNT] = {0};
    ranks r;
    int size = 0;
    char rank_text[32];
    call t;
    comm *calm; /* a mesh that nothing happens to: a rank past its barrier knows that all others have opened theirs */
    CHECK_OK(comm_open(&calm, &(comm_options){.timeout_s = 60}));
    /* a rank that fails while the others wait for it */
    for (int messages = 0; messages < 2; messages++) {
        comm_options o = {.timeout_s = 60, .messages_only = messages, .on_failure = on_failure};
        r = (ranks){.own = mem_alloc(ARENA_BYTES)};
        n_told = 0;
        CHECK_OK(comm_open(&r.c, &o));
        CHECK_OK(comm_barrier(calm));
        size = comm_size(r.c);
        comm_note_step(r.c, 41);
        snprintf(rank_text, sizeof rank_text, "rank %d (", size - 1);
        call_init(&t, OP_ALL_GATHER, AXIS_DATA, size, DTYPE_F32, 10, 10 * size);
        operands m = place(&r, WHERE_OWN, 40, 40 * (size_t)size);
        t.k.in[ALL_GATHER_X] = m.x;
        t.k.out[ALL_GATHER_Y] = m.y;
        if (world_rank == size - 1) {
            comm_fail(r.c, ERR_IO, "the disk is full");
        } else {
            double start = clock_s();
            status rc = comm_run(r.c, &t.k);
            CHECK(rc == ERR_IO && strstr(error_message(), "the disk is full") && strstr(error_message(), rank_text),
                  "%d: %s", rc, error_message());
            CHECK(strstr(error_message(), "step 41"), "%s", error_message());
            CHECK(clock_s() - start < 10, "%g s", clock_s() - start);
            CHECK(comm_barrier(r.c) == ERR_IO, "a mesh that failed goes on");
        }
        while (world_rank != size - 1 && n_told == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (messages) nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); /* time to be told once more, which must not be */
        call_fini(&t);
        comm_close(r.c);
        free(r.own);
        CHECK(n_told == (world_rank != size - 1), "told %d times", n_told);
    }
    /* a rank in another collective than the rest */
    ranks_open(&r, all_data, false);
    CHECK_OK(comm_barrier(calm));
    bool odd = world_rank == size - 1;
    call_init(&t, odd ? OP_ALL_REDUCE : OP_ALL_GATHER, AXIS_DATA, size, DTYPE_F32, 10, odd ? 10 : 10 * size);
    operands m = place(&r, WHERE_SHARED, 40, 40 * (size_t)size);
    t.k.in[ALL_GATHER_X] = m.x;
    t.k.out[ALL_GATHER_Y] = m.y;
    CHECK(comm_run(r.c, &t.k) == ERR_BUG && strstr(error_message(), "is in all_"), "%s", error_message());
    call_fini(&t);
    ranks_close(&r);
    /* a rank that does not come in time */
    comm_options o = {.timeout_s = 0.3};
    CHECK_OK(comm_open(&r.c, &o));
    CHECK_OK(comm_barrier(calm));
    if (world_rank == size - 1) {
        while (comm_check(r.c) == OK) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    } else {
        CHECK(comm_barrier(r.c) == ERR_RUN, "it came");
    }
    comm_check(r.c);
    CHECK(strstr(error_message(), rank_text) && strstr(error_message(), "comm.timeout"), "%s", error_message());
    comm_close(r.c);
    for (int messages = 0; messages < 2 && size == 4; messages++) check_chain(calm, messages);
    comm_close(calm);
}

static void check_refusals(void) {
    comm *c;
    comm_options o = {.size = {[AXIS_TENSOR] = 64}};
    CHECK(comm_open(&c, &o) == ERR_INPUT && strstr(error_message(), "tensor 64"), "%s", error_message());
}

/* ---- failures of the process, for cli_ranks.sh ------------------------------------------------------------------------------------------ */

static void say_failure(void *context, status code, const char *cause) {
    fprintf(stderr, "rank %d hears: %s\n", world_rank, cause);
}
static void leave(void *context) {
    fprintf(stderr, "rank %d is overdue\n", world_rank);
    _exit(1);
}

static void miss(void *context, int rank, const char *cause) {
    fprintf(stderr, "rank %d misses rank %d: %s\n", world_rank, rank, cause);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); /* mpirun ends the others with the first */
    _exit(1);
}

/* Steps of collectives for ever; one rank dies or stops in the third. Or a rank that stops when all is done, where MPI
 * ends. */
static int play(const char *how) {
    comm_options o = {.timeout_s = 2, .on_failure = say_failure, .on_overdue = leave, .on_missing = miss};
    ranks r = {.own = mem_alloc(ARENA_BYTES)};
    void *memory;
    CHECK_OK(comm_open(&r.c, &o));
    world_rank = comm_rank(r.c);
    CHECK_OK(comm_memory_open(r.c, ARENA_BYTES, &memory));
    r.shared = memory;
    int size = comm_size(r.c);
    bool it = world_rank == 1;
    if (strcmp(how, "end") == 0) {
        comm_memory_close(r.c, memory, ARENA_BYTES);
        comm_close(r.c);
        if (it) raise(SIGSTOP);
        return 0;
    }
    call t;
    call_init(&t, OP_ALL_REDUCE, AXIS_DATA, size, DTYPE_F32, 100, 100);
    operands m = place(&r, WHERE_SHARED, 400, 400);
    status rc = OK;
    for (int step = 1; rc == OK; step++) {
        comm_note_step(r.c, step);
        comm_note_op(r.c, &(op){.kind = OP_LINEAR, .layer = 4, .section = SECTION_MICRO});
        if (step == 3 && it && strcmp(how, "kill") == 0) raise(SIGKILL);
        if (step == 3 && it && strcmp(how, "stop") == 0) raise(SIGSTOP);
        if (step == 3 && it && strcmp(how, "crash") == 0) abort();
        if (step == 3 && !it && strcmp(how, "busy") == 0) pause(); /* these compute when the other dies */
        if (step == 3 && it && strcmp(how, "busy") == 0) raise(SIGKILL);
        t.k.in[ALL_GATHER_X] = m.x;
        t.k.out[ALL_GATHER_Y] = m.y;
        rc = comm_run(r.c, &t.k);
    }
    fprintf(stderr, "rank %d ends: %s\n", world_rank, error_message());
    comm_close(r.c);
    return 1;
}

int main(int argc, char **argv) {
    if (argc > 1) return play(argv[1]);
    ranks r;
    int size, rank;
    if (!comm_launched(&rank, &size)) rank = 0, size = 1;
    static const int meshes[][AXIS_COUNT] = {{0, 1, 1, 1}, {1, 0, 1, 1}, {0, 2, 1, 1}, {0, 1, 2, 2}, {2, 2, 2, 1}};
    for (size_t i = 0; i < ARRAY_LENGTH(meshes); i++) {
        int mesh_sizes[AXIS_COUNT], product = 1;
        memcpy(mesh_sizes, meshes[i], sizeof mesh_sizes);
        if (mesh_sizes[AXIS_TENSOR] == 0) mesh_sizes[AXIS_TENSOR] = size;
        for (axis a = 0; a < AXIS_COUNT; a++) product *= MAX(mesh_sizes[a], 1);
        if (size % product || (mesh_sizes[AXIS_DATA] && size != product)) continue;
        for (int messages_only = 0; messages_only < 2; messages_only++) {
            ranks_open(&r, mesh_sizes, messages_only);
            check_mesh(&r);
            check_setup(&r);
            check_collectives(&r);
            ranks_close(&r);
        }
    }
    check_refusals();
    if (size > 1) check_failures();
    ranks_open(&r, (int[AXIS_COUNT]){0}, false); /* after failures a new mesh works */
    check_setup(&r);
    ranks_close(&r);
    if (world_rank == 0) printf("%d ranks: all collectives\n", size);
    return 0;
}
