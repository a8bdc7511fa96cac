/* bench_comm.c - reduce-scatter and all-gather of this room against MPI's own, in one run on the same bytes.
 *
 * Started plainly it starts itself under mpirun with 2 and 4 ranks. Bytes per second are those of the long operand (x of a
 * reduce-scatter, y of an all-gather) on every rank. The best of several turns, in which ours and MPI's take turns. */
#include "comm/comm.h"

#include <stdlib.h>
#if __has_include(<mpi.h>)
#include <mpi.h>

enum { TURNS = 7 };

typedef struct racer {
    comm *c;
    program p;
    kernel_call gather, scatter;
    float *x, *y; /* x the long operand */
    int64_t part; /* elements */
    int repeats;  /* in one turn: ranks leave a barrier up to half a millisecond apart */
} racer;

static void must(status rc) {
    if (rc == OK) return;
    error_print(stderr);
    exit(error_exit_code(rc));
}

static kernel_call make_call(racer *r, op_kind kind, const char *in, int64_t n_in, void *x, const char *out,
                             int64_t n_out, void *y) {
    value_id a = program_value(&r->p, in, DTYPE_F32, SHAPE(n_in), ROLE_COMM, SECTION_MICRO);
    value_id b = program_value(&r->p, out, DTYPE_F32, SHAPE(n_out), ROLE_COMM, SECTION_MICRO);
    op *o = program_emit(&r->p, kind, SECTION_MICRO);
    o->attr = (op_attr){.axis = AXIS_DATA, .group_size = comm_size(r->c)};
    op_in(o, ALL_GATHER_X, a);
    op_out(o, ALL_GATHER_Y, b);
    kernel_call k = {.in = {[ALL_GATHER_X] = x}, .out = {[ALL_GATHER_Y] = y}};
    size_t work = comm_work_bytes(&r->p, o);
    if (work) {
        char name[32];
        snprintf(name, sizeof name, "work of %s", in);
        o->work = program_value(&r->p, name, DTYPE_U8, SHAPE((int64_t)work), ROLE_WORK, SECTION_MICRO);
        k.work = mem_alloc(work);
    }
    return k;
}

static void racer_open(racer *r, bool messages_only, size_t n_bytes) {
    void *memory;
    *r = (racer){0};
    must(comm_open(&r->c, &(comm_options){.messages_only = messages_only}));
    r->part = (int64_t)(n_bytes / sizeof(float)) / comm_size(r->c);
    r->repeats = (int)MAX(((size_t)16 << 20) / n_bytes, (size_t)1);
    int64_t all = r->part * comm_size(r->c);
    size_t bytes = (size_t)(all + r->part) * sizeof(float);
    if (messages_only) memory = mem_alloc(bytes);
    else must(comm_memory_open(r->c, bytes, &memory));
    r->x = memory;
    r->y = r->x + all;
    for (int64_t i = 0; i < all + r->part; i++) r->x[i] = (float)(i % 97);
    program_init(&r->p);
    r->scatter = make_call(r, OP_REDUCE_SCATTER, "x", all, r->x, "y", r->part, r->y);
    r->gather = make_call(r, OP_ALL_GATHER, "part", r->part, r->y, "whole", all, r->x);
    r->scatter.program = r->gather.program = &r->p;
    r->scatter.op = &r->p.ops[0];
    r->gather.op = &r->p.ops[1];
}

static double time_call(racer *r, const kernel_call *k) {
    must(comm_barrier(r->c));
    double start = clock_s();
    for (int i = 0; i < r->repeats; i++) must(comm_run(r->c, k));
    return (clock_s() - start) / r->repeats;
}

static double time_mpi(racer *r, bool scatter) {
    must(comm_barrier(r->c));
    double start = clock_s();
    for (int i = 0; i < r->repeats; i++)
        if (scatter) MPI_Reduce_scatter_block(r->x, r->y, (int)r->part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else MPI_Allgather(r->y, (int)r->part, MPI_FLOAT, r->x, (int)r->part, MPI_FLOAT, MPI_COMM_WORLD);
    return (clock_s() - start) / r->repeats;
}

/* The slowest rank counts. */
static double slowest(comm *c, double mine) {
    double all[64], most = 0;
    must(comm_all_gather_bytes(c, &mine, sizeof mine, all));
    for (int i = 0; i < comm_size(c); i++) most = MAX(most, all[i]);
    return most;
}

static void race(size_t n_bytes) {
    racer shared, messages;
    double best[2][3];
    racer_open(&shared, false, n_bytes);
    racer_open(&messages, true, n_bytes);
    for (int k = 0; k < 6; k++) best[k / 3][k % 3] = 1e9;
    for (int turn = 0; turn < TURNS; turn++)
        for (int scatter = 0; scatter < 2; scatter++) {
            const double s[3] = {time_call(&shared, scatter ? &shared.scatter : &shared.gather),
                                 time_call(&messages, scatter ? &messages.scatter : &messages.gather),
                                 time_mpi(&messages, scatter)};
            for (int i = 0; i < 3; i++) best[scatter][i] = MIN(best[scatter][i], slowest(shared.c, s[i]));
        }
    double bytes = (double)shared.part * comm_size(shared.c) * sizeof(float) * 1e-9;
    if (comm_rank(shared.c) == 0)
        for (int scatter = 1; scatter >= 0; scatter--)
            printf("%-15s %5zu KiB  %d ranks  shared memory %6.2f GB/s   messages %6.2f   MPI's own %6.2f\n",
                   scatter ? "reduce-scatter" : "all-gather", n_bytes >> 10, comm_size(shared.c),
                   bytes / best[scatter][0], bytes / best[scatter][1], bytes / best[scatter][2]);
    fflush(stdout);
    comm_memory_close(shared.c, shared.x, (size_t)(shared.part * (comm_size(shared.c) + 1)) * sizeof(float));
    free(messages.x);
    racer *both[] = {&shared, &messages};
    for (int i = 0; i < 2; i++) {
        free(both[i]->scatter.work);
        program_fini(&both[i]->p);
        comm_close(both[i]->c);
    }
}

int main(int argc, char **argv) {
    int rank, size;
    if (comm_launched(&rank, &size)) {
        for (size_t n_bytes = 64 << 10; n_bytes <= 64 << 20; n_bytes *= 32) race(n_bytes);
        return 0;
    }
    for (int n = 2; n <= 4; n *= 2) {
        char command[4096];
        snprintf(command, sizeof command,
                 "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                 "mpirun --quiet --oversubscribe --bind-to none -n %d %s",
                 n, argv[0]);
        if (system(command) != 0) return 1;
    }
    return 0;
}
#else
int main(void) {
    puts("comm: built without MPI");
    return 0;
}
#endif
