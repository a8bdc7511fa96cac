/* ranks.c - starting many ranks on this machine, being one of them, and ending together.
 *
 * --ranks N starts `mpirun -n N ralo train ...` with the same arguments and becomes its guardian: the exit code passes
 * through, and Ctrl-C asks the ranks for a clean stop instead of killing them. mpirun answers an interrupt by ending the
 * ranks within a second, which no checkpoint survives; but it hands SIGUSR1 on to all of them. So mpirun gets a process
 * group of its own, out of reach of the terminal, and SIGUSR1 from here; a second Ctrl-C ends it.
 *
 * A rank prints the cause of its end once: its own error, or what it hears of another's, perhaps on the thread that watches
 * the others while this one computes. */
#define _GNU_SOURCE
#include "cli/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- starting -------------------------------------------------------------------------------------------------------- */

bool ranks_wanted(const command_line *l) {
    int rank, size;
    return l->ranks > 1 && !comm_launched(&rank, &size);
}

static volatile sig_atomic_t mpirun_pid, n_interrupts;
/* Until it ends: mpirun hands nothing on before its ranks are there, and does not say so. */
static void ask_for_stop(int number) {
    (void)number;
    if (mpirun_pid > 0) kill((pid_t)mpirun_pid, SIGUSR1);
    alarm(1);
}
static void on_interrupt(int number) {
    if (n_interrupts++ == 0) ask_for_stop(number);
    else if (mpirun_pid > 0) kill((pid_t)mpirun_pid, SIGTERM);
}

void ranks_catch_stop(const struct sigaction *action) {
    struct sigaction before;
    sigaction(SIGINT, action, NULL);
    sigaction(SIGTERM, action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, action, NULL);
}

/* A core for every rank, or several, where there are enough; otherwise they share all of them, bound nowhere. */
static void add_binding(const char **argv, int *n, int ranks, char *map, size_t map_bytes) {
    sys_info machine;
    sys_info_get(&machine);
    if (ranks <= machine.n_cores) {
        snprintf(map, map_bytes, "slot:PE=%d", machine.n_cores / ranks);
        argv[(*n)++] = "--map-by";
        argv[(*n)++] = map;
        argv[(*n)++] = "--bind-to";
        argv[(*n)++] = "core";
    } else {
        argv[(*n)++] = "--oversubscribe";
        argv[(*n)++] = "--bind-to";
        argv[(*n)++] = "none";
    }
}

/* state: of mpirun. It, or a rank, may die of a request to stop that comes before it is ready for one. */
static status status_of_exit(int state) {
    if (WIFSIGNALED(state)) return WTERMSIG(state) == SIGUSR1 ? ERR_INTERRUPTED : ERR_RUN;
    switch (WEXITSTATUS(state)) {
    case 0: return OK;
    case 2: return ERR_INPUT;
    case 3: return ERR_FIT;
    case 130:
    case 128 + SIGUSR1: return ERR_INTERRUPTED;
    default: return ERR_RUN;
    }
}

_Noreturn static void become_mpirun(const char **argv, pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* who starts ranks does not leave them behind */
    if (getppid() != parent) _exit(1);
    execvp(argv[0], (char *const *)argv);
    fprintf(stderr, "error: --ranks starts ranks with mpirun: %s; install openmpi-bin\n", strerror(errno));
    _exit(2);
}

status ranks_launch(const command_line *l) {
    enum { OWN_ARGUMENTS = 24 };
    char program[4096], count[16], map[32];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return ERR(ERR_IO, "read /proc/self/exe: %s", strerror(errno));
    program[length] = 0;
    snprintf(count, sizeof count, "%d", l->ranks);
    const char **argv = mem_alloc((size_t)(OWN_ARGUMENTS + l->argc) * sizeof *argv);
    int n = 0;
    argv[n++] = "mpirun";
    argv[n++] = "--quiet";
    argv[n++] = "-n";
    argv[n++] = count;
    argv[n++] = "--stdin";
    argv[n++] = "none";
    if (geteuid() == 0) argv[n++] = "--allow-run-as-root";
    /* Ranks of a node read each other's memory through ralo; the kernel's way to do so is refused in many containers, and
     * MPI prints a warning for every rank. */
    argv[n++] = "--mca";
    argv[n++] = "btl_vader_single_copy_mechanism";
    argv[n++] = "none";
    add_binding(argv, &n, l->ranks, map, sizeof map);
    argv[n++] = program;
    ASSERT(n < OWN_ARGUMENTS);
    for (int i = 0; i < l->argc; i++) argv[n++] = l->argv[i];

    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, again = a;
    again.sa_handler = ask_for_stop;
    sigaction(SIGALRM, &again, NULL);
    ranks_catch_stop(&a);
    pid_t self = getpid(), child = fork();
    if (child == 0) become_mpirun(argv, self);
    free(argv);
    if (child < 0) return ERR(ERR_IO, "start mpirun: %s", strerror(errno));
    mpirun_pid = child;
    int state = 0;
    while (waitpid(child, &state, 0) < 0)
        if (errno != EINTR) return ERR(ERR_IO, "wait for mpirun: %s", strerror(errno));
    alarm(0);
    mpirun_pid = 0; /* its number may be another's now */
    error_clear();  /* the ranks have said why */
    return status_of_exit(state);
}

/* ---- being one -------------------------------------------------------------------------------------------------------- */

static int this_rank;
static atomic_flag told = ATOMIC_FLAG_INIT;

static void on_failure(void *context, const char *cause) {
    (void)context;
    if (!atomic_flag_test_and_set(&told)) fprintf(stderr, "error: rank %d ends: %s\n", this_rank, cause);
}

static void on_overdue(void *context) {
    (void)context;
    _exit(1); /* deep in a computation or a system call; all has been said */
}

static status open_mesh(comm **out, const command_line *l, const int sizes[AXIS_COUNT]) {
    const config *c = &l->config;
    int size = 1;
    if (comm_launched(&this_rank, &size) && l->ranks && l->ranks != size)
        return ERR(ERR_INPUT,
                   "--ranks: found %d, expected %d, which is how many the launcher has started; leave it out", l->ranks,
                   size);
    comm_options o = {.timeout_s = c->comm.timeout,
                      .messages_only = !c->comm.shared_memory,
                      .on_failure = on_failure,
                      .on_overdue = on_overdue};
    memcpy(o.size, sizes, sizeof o.size);
    return comm_open(out, &o);
}

status ranks_open(comm **out, const command_line *l) {
    status rc = open_mesh(out, l, l->config.parallel.size);
    if (rc == ERR_INPUT && this_rank > 0)
        error_clear(); /* a request that is wrong is wrong on all ranks: the first says it */
    return rc;
}

status ranks_use_mesh(comm **ranks, const command_line *l, const mesh *m) {
    if (memcmp(comm_mesh(*ranks)->size, m->size, sizeof m->size) == 0) return OK;
    comm_close(*ranks);
    *ranks = NULL;
    return open_mesh(ranks, l, m->size);
}

/* own: why this rank ends; first: why the run ends, which begins with the rank that it began with. */
static void say_end(const char *own, const char *first) {
    char me[32];
    snprintf(me, sizeof me, "rank %d (", this_rank);
    if (str_starts_with(first, me)) {
        if (!atomic_flag_test_and_set(&told)) fprintf(stderr, "error: %s\n", first);
        return;
    }
    /* Where all ranks run into the same wall, the first has said it for all. */
    bool heard = strcmp(own, first) == 0;
    if (heard || !str_ends_with(first, own)) on_failure(NULL, first);
}

status ranks_close(comm *ranks, status rc) {
    if (rc != OK && ranks && comm_size(ranks) > 1) {
        error_record own, first;
        error_take(&own);
        comm_fail(ranks, rc, own.message);
        rc = comm_check(ranks);
        error_take(&first);
        say_end(own.message, first.message);
    }
    comm_close(ranks);
    return rc;
}
