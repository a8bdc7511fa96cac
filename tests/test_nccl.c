/* test_nccl.c - messages between GPUs, on one of them.
 *
 * With NCCL itself and one rank: every op goes through it and gives the bytes that comm gives for the same op in host
 * memory. With the argument `fake` NCCL is tests/plugins/fake_nccl.c (cli_gpu_links.sh builds it): this is rank 1 of 3,
 * sends go nowhere, and what comes from the others is what the test has laid ready. Then sums of several parts are held
 * against the host: in rank order, in several turns, bf16 accumulators rounded after every part. Without a GPU or without
 * the library: skipped. */
#include "comm/comm.h"
#include "must.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

enum { KEY = 77, FIRST_ELEMENT = 5 * NORM_BLOCK, MOST = 5 };

static const backend *gpu;
static backend_context *context;
static comm *alone;
static int n_ranks = 1, own_rank;

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

static void fill(void *bytes, dtype t, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        double x = (double)rng_below(seed, (uint64_t)i, 2000001) / 1e6 - 1;
        float f = (float)x;
        if (t == DTYPE_F64) ((double *)bytes)[i] = x;
        else tensor_convert((char *)bytes + (size_t)i * dtype_bytes(t), t, &f, DTYPE_F32, 1);
    }
}

static void *to_device(const void *host, size_t n_bytes) {
    void *at;
    must(gpu->memory_open(context, TIER_DEVICE, n_bytes, &at));
    gpu->write(context, at, host, n_bytes);
    return at;
}

static void from_device(void *host, void *at, size_t n_bytes) {
    gpu->read(context, host, at, n_bytes);
    gpu->memory_close(context, TIER_DEVICE, at, n_bytes);
}

/* ---- one op ------------------------------------------------------------------------------------------------------------ */

typedef struct message {
    program program;
    kernel_call call;
    dtype type;
    int64_t n_x, n_y;
    uint8_t *x, *y; /* host memory */
    step_scalars scalars;
    bool with_scalars;
} message;

/* x and y have one place in every collective (acc of REDUCE_SCATTER too): that of ALL_GATHER. */
static void message_open(message *m, op_kind kind, dtype t, int64_t n_x, int64_t n_y, int micro) {
    *m = (message){.type = t, .n_x = n_x, .n_y = n_y, .with_scalars = micro >= 0};
    m->scalars = (step_scalars){.micro = (uint32_t)MAX(micro, 0), .step = 3, .noise_lo = 9};
    program_init(&m->program);
    value_id x = kind == OP_RECV ? NO_VALUE : program_persistent(&m->program, "x", t, SHAPE(n_x), ROLE_GRAD);
    value_id y = kind == OP_SEND ? NO_VALUE : program_persistent(&m->program, "y", t, SHAPE(n_y), ROLE_GRAD);
    value_id scalars = program_persistent(&m->program, "scalars", DTYPE_U8, SHAPE(64), ROLE_INPUT);
    size_t work_bytes = (size_t)n_ranks * NORM_BLOCK * dtype_bytes(t); /* the least: a block per turn */
    value_id work = program_persistent(&m->program, "work", DTYPE_U8, SHAPE((int64_t)work_bytes), ROLE_COMM);
    op *o = program_emit(&m->program, kind, SECTION_MICRO);
    o->attr = (op_attr){
        .axis = AXIS_DATA, .group_size = n_ranks, .peer = own_rank, .noise_key = KEY, .first_element = FIRST_ELEMENT};
    o->in[ALL_GATHER_X] = x;
    if (m->with_scalars) o->in[REDUCE_SCATTER_SCALARS] = scalars;
    o->out[ALL_GATHER_Y] = y;
    o->work = work;
    m->x = mem_alloc((size_t)n_x * dtype_bytes(t));
    m->y = mem_alloc((size_t)n_y * dtype_bytes(t));
    fill(m->x, t, n_x, 1);
    fill(m->y, t, n_y, 2);
    m->call = (kernel_call){.program = &m->program, .op = o};
}

static void message_close(message *m) {
    program_fini(&m->program);
    free(m->x);
    free(m->y);
}

/* On the GPU, messages that begin together; results come back into y. */
static void run_on_gpu(message *ms, int n) {
    const kernel_call *calls[2];
    void *scalars[2];
    for (int i = 0; i < n; i++) {
        message *m = &ms[i];
        size_t element = dtype_bytes(m->type);
        m->call.in[ALL_GATHER_X] = to_device(m->x, (size_t)m->n_x * element);
        m->call.in[REDUCE_SCATTER_SCALARS] = scalars[i] = to_device(&m->scalars, sizeof m->scalars);
        if (!m->with_scalars) m->call.in[REDUCE_SCATTER_SCALARS] = NULL;
        m->call.out[ALL_GATHER_Y] = to_device(m->y, (size_t)m->n_y * element);
        must(gpu->memory_open(context, TIER_DEVICE, value_bytes(program_get(&m->program, m->call.op->work)),
                              &m->call.work));
        calls[i] = &m->call;
    }
    gpu->queues->select(context, STREAM_COMM);
    gpu->links->run(context, calls, n);
    must(gpu->synchronize(context));
    must(gpu->links->check(context));
    for (int i = 0; i < n; i++) {
        message *m = &ms[i];
        size_t element = dtype_bytes(m->type);
        from_device(m->x, m->call.in[ALL_GATHER_X], (size_t)m->n_x * element);
        from_device(m->y, m->call.out[ALL_GATHER_Y], (size_t)m->n_y * element);
        gpu->memory_close(context, TIER_DEVICE, scalars[i], sizeof m->scalars);
        gpu->memory_close(context, TIER_DEVICE, m->call.work, value_bytes(program_get(&m->program, m->call.op->work)));
    }
}

/* ---- one rank, NCCL itself ------------------------------------------------------------------------------------------------ */

static void check_alone(op_kind kind, dtype t, int64_t n, int micro) {
    message m;
    message_open(&m, kind, t, n, n, micro);
    size_t n_bytes = (size_t)n * dtype_bytes(t);
    uint8_t *want = mem_alloc(n_bytes);
    memcpy(want, m.y, n_bytes);
    kernel_call host = m.call;
    host.in[ALL_GATHER_X] = m.x;
    host.in[REDUCE_SCATTER_SCALARS] = m.with_scalars ? &m.scalars : NULL;
    host.out[ALL_GATHER_Y] = want;
    must(comm_run(alone, &host));
    run_on_gpu(&m, 1);
    if (memcmp(m.y, want, n_bytes) != 0) fail_msg("%s %s micro %d: other bytes", op_name(kind), dtype_name(t), micro);
    free(want);
    message_close(&m);
}

static void every_op_gives_the_bytes_of_the_host(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    static const int64_t lengths[] = {1, 77, 3 * NORM_BLOCK};
    for (size_t q = 0; q < ARRAY_LENGTH(types); q++)
        for (size_t i = 0; i < ARRAY_LENGTH(lengths); i++) {
            check_alone(OP_ALL_GATHER, types[q], lengths[i], -1);
            check_alone(OP_ALL_TO_ALL, types[q], lengths[i], -1);
            check_alone(OP_SHIFT, types[q], lengths[i], -1);
            check_alone(OP_ALL_REDUCE, types[q], lengths[i], -1);
            check_alone(OP_REDUCE_SCATTER, types[q], lengths[i], -1);
            check_alone(OP_REDUCE_SCATTER, types[q], lengths[i], 0);
            check_alone(OP_REDUCE_SCATTER, types[q], lengths[i], 2);
        }
}

/* A rank that sends to itself must receive in the same breath. */
static void a_send_is_received(void **state) {
    (void)state;
    enum { COUNT = 12345 };
    message ms[2];
    message_open(&ms[0], OP_SEND, DTYPE_F32, COUNT, 1, -1);
    message_open(&ms[1], OP_RECV, DTYPE_F32, 1, COUNT, -1);
    run_on_gpu(ms, 2);
    assert_memory_equal(ms[1].y, ms[0].x, COUNT * sizeof(float));
    message_close(&ms[0]);
    message_close(&ms[1]);
}

static void an_abort_ends_everything(void **state) {
    (void)state;
    message m;
    gpu->links->abort(context);
    message_open(&m, OP_ALL_GATHER, DTYPE_F32, 8, 8, -1);
    run_on_gpu(&m, 1); /* sends nothing, and does not fail */
    float before[8];
    fill(before, DTYPE_F32, 8, 2);
    assert_memory_equal(m.y, before, sizeof before);
    message_close(&m);
}

/* ---- rank 1 of 3, messages laid ready ------------------------------------------------------------------------------------- */

typedef void (*offer_fn)(int peer, const void *device_bytes);

static double get(const void *bytes, dtype t, int64_t i) {
    return t == DTYPE_F64 ? ((const double *)bytes)[i] : (double)tensor_get_f32(bytes, t, (size_t)i);
}

/* What ACCUMULATE of one rank makes of the parts, one micro-batch after the other. */
static void accumulate(void *acc, dtype t, int64_t n, uint8_t *const parts[], int micro) {
    backend_context *cpu;
    must(backend_cpu()->open(&cpu, &(backend_options){.n_threads = 1}));
    for (int p = 0; p < n_ranks; p++) {
        message m;
        message_open(&m, OP_REDUCE_SCATTER, t, n, n, micro * n_ranks + p);
        op o = *m.call.op;
        o.kind = OP_ACCUMULATE;
        kernel_call k = {.program = &m.program,
                         .op = &o,
                         .in = {[ACCUMULATE_X] = parts[p], [ACCUMULATE_SCALARS] = &m.scalars},
                         .out = {[ACCUMULATE_ACC] = acc}};
        backend_cpu()->kernels[OP_ACCUMULATE](cpu, &k);
        message_close(&m);
    }
    backend_cpu()->close(cpu);
}

static void sum(void *y, dtype t, int64_t n, uint8_t *const parts[], bool begun) {
    for (int64_t i = 0; i < n; i++) {
        float f = begun ? (float)get(y, t, i) : (float)get(parts[0], t, i);
        double d = begun ? get(y, t, i) : get(parts[0], t, i);
        for (int p = begun ? 0 : 1; p < n_ranks; p++) f += (float)get(parts[p], t, i), d += get(parts[p], t, i);
        if (t == DTYPE_F64) ((double *)y)[i] = d;
        else tensor_convert((char *)y + (size_t)i * dtype_bytes(t), t, &f, DTYPE_F32, 1);
    }
}

/* Of the others' parts the second half is what they send behind the sum: their slices of an ALL_REDUCE. */
static void check_sum(offer_fn offer, op_kind kind, dtype t, int64_t n, int micro) {
    message m;
    bool all = kind == OP_ALL_REDUCE;
    size_t n_bytes = (size_t)n * dtype_bytes(t), own = (size_t)own_rank * n_bytes;
    message_open(&m, kind, t, n * n_ranks, all ? n * n_ranks : n, micro);
    uint8_t *parts[MOST], *want = mem_alloc((size_t)m.n_y * dtype_bytes(t)), *mine = want + (all ? own : 0);
    void *offered[MOST];
    for (int p = 0; p < n_ranks; p++) {
        parts[p] = mem_alloc(2 * n_bytes);
        fill(parts[p], t, 2 * n, 10 + (uint64_t)p);
        offered[p] = to_device(parts[p], 2 * n_bytes);
        offer(p, offered[p]);
        if (all) memcpy(want + (size_t)p * n_bytes, parts[p] + n_bytes, n_bytes);
    }
    memcpy(parts[own_rank], m.x + own, n_bytes);
    memcpy(mine, m.y + (mine - want), n_bytes);
    if (t == DTYPE_BF16 && micro >= 0) accumulate(mine, t, n, parts, micro);
    else sum(mine, t, n, parts, micro > 0);
    run_on_gpu(&m, 1);
    if (memcmp(m.y, want, (size_t)m.n_y * dtype_bytes(t)) != 0)
        fail_msg("%s %s of %lld, micro %d: other bytes", op_name(kind), dtype_name(t), (long long)n, micro);
    for (int p = 0; p < n_ranks; p++) {
        gpu->memory_close(context, TIER_DEVICE, offered[p], 2 * n_bytes);
        free(parts[p]);
    }
    free(want);
    message_close(&m);
}

static void sums_are_made_in_rank_order(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    static const int64_t lengths[] = {1, 333, NORM_BLOCK, 3 * NORM_BLOCK, 4 * NORM_BLOCK + 7};
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    offer_fn offer = NULL;
    if (library) *(void **)&offer = dlsym(library, "fake_nccl_offer");
    if (!offer) fail_msg("the fake NCCL is not the one that was loaded");
    for (size_t q = 0; q < ARRAY_LENGTH(types); q++)
        for (size_t i = 0; i < ARRAY_LENGTH(lengths); i++)
            for (int micro = -1; micro <= 1; micro++) {
                check_sum(offer, OP_REDUCE_SCATTER, types[q], lengths[i], micro);
                if (micro < 0) check_sum(offer, OP_ALL_REDUCE, types[q], lengths[i], micro);
            }
}

/* ------------------------------------------------------------------------------------------------------------------------- */

static int say_skipped(void) {
    fprintf(stderr, "skipped: %s\n", error_message());
    return 77;
}

int main(int argc, char **argv) {
    const struct CMUnitTest itself[] = {cmocka_unit_test(every_op_gives_the_bytes_of_the_host),
                                        cmocka_unit_test(a_send_is_received),
                                        cmocka_unit_test(an_abort_ends_everything)};
    const struct CMUnitTest fake[] = {cmocka_unit_test(sums_are_made_in_rank_order)};
    bool is_fake = argc > 1 && strcmp(argv[1], "fake") == 0;
    uint8_t id[LINK_ID_BYTES];
    if (backend_choose(DEVICE_CUDA, 0, &gpu) != OK || gpu->links->present() != OK) return say_skipped();
    if (is_fake) n_ranks = 3, own_rank = 1;
    if (comm_open(&alone, &(comm_options){.transport = TRANSPORT_SELF}) != OK ||
        gpu->open(&context, &(backend_options){0}) != OK || gpu->links->make_id(id) != OK ||
        gpu->links->open(context, AXIS_DATA, id, n_ranks, own_rank) != OK) {
        error_print(stderr);
        return 1;
    }
    int failures = is_fake ? cmocka_run_group_tests(fake, NULL, NULL) : cmocka_run_group_tests(itself, NULL, NULL);
    gpu->close(context);
    comm_close(alone);
    return failures;
}
