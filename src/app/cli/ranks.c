/* ranks.c - start many ranks on this machine, be one of them, and end together.
 *
 * --ranks N starts `mpirun -n N ralo train ...` with the same arguments and supervises it (restarts.c says what follows
 * from its end): Ctrl-C asks the ranks for a clean stop instead of killing them. mpirun reacts to an interrupt by
 * killing the ranks within a second, too soon for a checkpoint; but it forwards SIGUSR1 to all of them. So mpirun gets
 * a process group of its own, which the terminal's Ctrl-C does not reach, and SIGUSR1 from here; a second Ctrl-C ends
 * it. SIGTERM and SIGHUP, to which it would react likewise, are blocked in it: this process sees them pending and asks
 * for the clean stop.
 *
 * If mpirun is killed, its ranks become children of the supervisor, which reports it and waits for them: the ranks see
 * it too, but their output went through mpirun. If mpirun outlives all its ranks, it is continued (it may be stopped)
 * and, ten seconds later, killed: Open MPI 4.1's waits for ever for a lock that it holds itself when a rank died while
 * it connected, and for a host that can no longer be reached. It may only wait for its reader, which takes no more
 * output.
 *
 * A rank prints the cause of its end once: its own error or another rank's, perhaps on the thread that watches the
 * others while this one computes. If stderr may be lost, the cause also goes to errors.txt of the run directory. */
#define _GNU_SOURCE
#include "cli/ranks.h"
#include "cli/notes.h"
#include "cli/restarts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- starting -------------------------------------------------------------------------------------------------------- */

bool ranks_wanted(const command_line *l) {
    int rank, size;
    return l->ranks > 1 && !comm_launched(&rank, &size);
}

static volatile sig_atomic_t mpirun_pid, n_interrupts, n_asked;
static char mpirun_children[64]; /* /proc/PID/task/PID/children of mpirun */

/* Not a fork of mpirun that has not become ralo yet, nor what mpirun reaches other hosts by. A rank that has ended has
 * no program. By the file's number: the file may have been replaced since. */
static bool is_rank(pid_t pid) {
    char path[32] = "/proc/", digits[16];
    struct stat own, other;
    size_t n = strlen(path), k = 0;
    for (; pid > 0; pid /= 10) digits[k++] = (char)('0' + pid % 10);
    while (k > 0) path[n++] = digits[--k];
    memcpy(path + n, "/exe", sizeof "/exe");
    return stat("/proc/self/exe", &own) == 0 && stat(path, &other) == 0 && own.st_ino == other.st_ino &&
           own.st_dev == other.st_dev;
}

/* Calls what with every rank of this node, which are mpirun's children. Runs in a signal handler: open, read, stat and
 * close only. */
static void for_each_rank(void (*what)(pid_t rank, void *context), void *context) {
    char text[4096];
    int fd = open(mpirun_children, O_RDONLY | O_CLOEXEC);
    pid_t pid = 0;
    if (fd < 0) return;
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++) { /* a space follows every number, the last one too */
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid > 1 && is_rank(pid)) what(pid, context);
            pid = 0;
        }
    close(fd);
}

static void ask_rank_to_stop(pid_t rank, void *context) {
    (void)context;
    kill(rank, SIGUSR1);
}

/* Repeated every second until mpirun ends: it forwards nothing before its ranks have started, and does not say so. Some
 * versions never forward the signal (Open MPI 4.1.6 of Ubuntu 24.04), nor does one that is stopped. So the third try
 * and later ones also go to the ranks directly. */
static void ask_for_stop(int number) {
    enum { PATIENCE = 2 };
    (void)number;
    if (mpirun_pid > 0) kill((pid_t)mpirun_pid, SIGUSR1);
    if (mpirun_pid > 0 && n_asked++ >= PATIENCE) for_each_rank(ask_rank_to_stop, NULL);
    alarm(1);
}
void ranks_announce_stop(void) {
    static const char line[] = "stopping after this step; press Ctrl-C again to stop at once, without saving\n";
    int before = errno;
    bool is_terminal = isatty(STDERR_FILENO); /* where the progress line has no end yet */
    ssize_t n = is_terminal ? write(STDERR_FILENO, "\n", 1) : 0;
    n += write(STDERR_FILENO, line, sizeof line - 1);
    (void)n;
    errno = before;
}

bool ranks_stop_is_new(void) {
    enum { SAME_CAUSE_S = 1 };
    static struct timespec first;
    static volatile sig_atomic_t n;
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (n == 0) first = now, n = 1;
    else if (now.tv_sec - first.tv_sec - (now.tv_nsec < first.tv_nsec) < SAME_CAUSE_S) return false;
    return true;
}

static void on_interrupt(int number) {
    if (!ranks_stop_is_new()) return;
    if (n_interrupts == 0) ranks_announce_stop();
    if (n_interrupts++ == 0) ask_for_stop(number);
    else if (mpirun_pid > 0) kill((pid_t)mpirun_pid, SIGINT);
}

void ranks_catch_stop(const struct sigaction *action, bool is_rank) {
    struct sigaction before;
    sigaction(SIGINT, action, NULL);
    if (!is_rank) sigaction(SIGTERM, action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, action, NULL);
}

/* Each rank gets one core or several if there are enough; otherwise all ranks share all cores, unbound. */
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

/* state: of mpirun. mpirun or a rank may die of a stop request that comes before its handler is installed. */
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

static sigset_t set_of_sigchld(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    return set;
}

_Noreturn static void become_mpirun(const char **argv, pid_t parent) {
    sigset_t ended = set_of_sigchld(), asked;
    sigprocmask(SIG_UNBLOCK, &ended, NULL);
    sigemptyset(&asked);
    sigaddset(&asked, SIGTERM);
    sigaddset(&asked, SIGHUP);
    sigprocmask(SIG_BLOCK, &asked, NULL); /* its ranks get a mask of their own */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGINT); /* ranks never outlive the process that started them */
    if (getppid() != parent) _exit(1);
    execvp(argv[0], (char *const *)argv);
    fprintf(stderr, "error: --ranks starts ranks with mpirun: %s; install openmpi-bin\n", strerror(errno));
    _exit(2);
}

/* Kills ranks that do not end by themselves, such as one that is suspended. */
static void kill_children(void) {
    char path[64];
    int pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    while (f && fscanf(f, "%d", &pid) == 1) kill(pid, SIGKILL);
    if (f) fclose(f);
}

/* Ranks that mpirun left behind are children of this process by now (PR_SET_CHILD_SUBREAPER): they notice that it is gone, and end. */
static void wait_for_orphaned_ranks(void) {
    enum { END_S = 10, LOOK_MS = 20 };
    for (int ms = 0; waitpid(-1, NULL, WNOHANG) >= 0; ms += LOOK_MS) { /* until there is no child */
        if (ms > END_S * 1000) kill_children();
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    }
}

static void say_launcher_died(pid_t pid, int number) {
    fprintf(stderr,
            "error: mpirun (pid %d) was killed by signal %d (%s), and its ranks end with it; continue from the newest "
            "checkpoint with --resume auto. The ranks' own messages are in errors.txt of run.dir\n",
            (int)pid, number, strsignal(number));
}

static void count_rank(pid_t rank, void *n) {
    (void)rank;
    ++*(int *)n;
}

static bool is_stopped(pid_t process) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *f = fopen(path, "r");
    bool found = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && state == 'T';
    if (f) fclose(f);
    return found;
}

/* SIGTERM or SIGHUP came to mpirun, in which they are blocked. */
static bool is_asked_to_end(pid_t process) {
    char path[64], line[256];
    unsigned long long pending = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)process);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "ShdPnd: %llx", &pending) != 1) continue;
    if (f) fclose(f);
    return (pending >> (SIGTERM - 1) & 1) || (pending >> (SIGHUP - 1) & 1);
}

/* Nobody reads what is printed, such as a terminal that was stopped with Ctrl-S: mpirun, which prints to the same, has
 * to wait. */
static bool output_is_held(void) {
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 0) == 0) return true;
    return false;
}

/* Waits for mpirun's end and returns its state. out: whether it had to be killed, which is told here. SIGCHLD is
 * blocked. */
static int wait_or_kill(pid_t child, double timeout_s, ranks_end *out) {
    enum { END_MS = 10000, LOOK_MS = 200 };
    bool started = false;
    double idle_ms = 0, stopped_ms = 0; /* for how long it has had nothing to wait for, and was stopped */
    int state = 0;
    sigset_t ended = set_of_sigchld();
    for (pid_t pid; (pid = waitpid(child, &state, WNOHANG)) == 0 || (pid < 0 && errno == EINTR);) {
        int n_ranks = 0;
        if (n_interrupts == 0 && is_asked_to_end(child)) on_interrupt(SIGTERM);
        for_each_rank(count_rank, &n_ranks);
        started |= n_ranks > 0;
        bool is_idle = started && n_ranks == 0 && !output_is_held(), stopped = is_stopped(child);
        idle_ms = is_idle ? idle_ms + LOOK_MS : 0;
        stopped_ms = stopped ? stopped_ms + LOOK_MS : 0;
        if (stopped && (is_idle || n_interrupts > 1)) kill(child, SIGCONT); /* it is to end */
        if (idle_ms > END_MS && !out->launcher_hung && kill(child, SIGKILL) == 0) {
            out->launcher_hung = true;
            fprintf(stderr,
                    "error: mpirun (pid %d) did not end after its ranks and was killed; see their messages above\n",
                    (int)child);
        } else if (stopped_ms > timeout_s * 1e3 && !out->launcher_died && kill(child, SIGKILL) == 0) {
            out->launcher_died = true;
            fprintf(stderr,
                    "error: mpirun (pid %d) was stopped for %.0f s (comm.timeout) and was killed, and its ranks "
                    "end with it\n",
                    (int)child, timeout_s);
        }
        sigtimedwait(&ended, NULL, &(struct timespec){.tv_nsec = LOOK_MS * 1000000L});
    }
    return state;
}

static void wait_for_mpirun(pid_t child, double timeout_s, ranks_end *out) {
    *out = (ranks_end){.launcher = child};
    int state = wait_or_kill(child, timeout_s, out);
    alarm(0);
    mpirun_pid = 0; /* the pid may be reused from here on */
    error_clear();  /* the ranks have reported the error */
    int by = WIFSIGNALED(state) ? WTERMSIG(state) : 0;
    bool asked = by == SIGTERM || by == SIGHUP || by == SIGINT, died = by && by != SIGUSR1 && !asked;
    out->may_be_asked = asked || (WIFEXITED(state) && WEXITSTATUS(state) == 1);
    if (died && !out->launcher_hung && !out->launcher_died) {
        out->launcher_died = true;
        say_launcher_died(child, by);
    }
    wait_for_orphaned_ranks();
    out->signal = WIFEXITED(state) && WEXITSTATUS(state) > 128 ? WEXITSTATUS(state) - 128 : 0;
    out->code = status_of_exit(state);
}

int ranks_interrupts(void) { return n_interrupts; }

status ranks_start(int n_ranks, double timeout_s, int n_arguments, char *const *arguments, ranks_end *out) {
    enum { OWN_ARGUMENTS = 24 };
    char program[4096], count[16], map[32];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return ERR(ERR_IO, "read /proc/self/exe: %s", strerror(errno));
    program[length] = 0;
    snprintf(count, sizeof count, "%d", n_ranks);
    const char **argv = mem_alloc((size_t)(OWN_ARGUMENTS + n_arguments) * sizeof *argv);
    int n = 0;
    argv[n++] = "mpirun";
    argv[n++] = "--quiet";
    argv[n++] = "-n";
    argv[n++] = count;
    argv[n++] = "--stdin";
    argv[n++] = "none";
    if (geteuid() == 0) argv[n++] = "--allow-run-as-root";
    /* Ranks of a node read each other's memory through ralo. MPI's own mechanism (CMA) is refused in many
     * containers, and MPI prints a warning for every rank. */
    argv[n++] = "--mca";
    argv[n++] = "btl_vader_single_copy_mechanism";
    argv[n++] = "none";
    add_binding(argv, &n, n_ranks, map, sizeof map);
    argv[n++] = program;
    ASSERT(n < OWN_ARGUMENTS);
    for (int i = 0; i < n_arguments; i++) argv[n++] = arguments[i];

    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, again = a;
    again.sa_handler = ask_for_stop;
    sigaction(SIGALRM, &again, NULL);
    signal(SIGCHLD, SIG_DFL); /* a parent may have ignored it for us, and then no exit code could be read */
    ranks_catch_stop(&a, false);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t ended = set_of_sigchld();
    sigprocmask(SIG_BLOCK, &ended, NULL); /* kept for the wait, however early mpirun ends */
    pid_t self = getpid(), child = fork();
    if (child == 0) become_mpirun(argv, self);
    free(argv);
    if (child < 0) return ERR(ERR_IO, "start mpirun: %s", strerror(errno));
    snprintf(mpirun_children, sizeof mpirun_children, "/proc/%d/task/%d/children", (int)child, (int)child);
    mpirun_pid = child;
    n_asked = 0;
    wait_for_mpirun(child, timeout_s, out);
    return OK;
}

/* ---- being one -------------------------------------------------------------------------------------------------------- */

static int this_rank;
static atomic_flag cause_printed = ATOMIC_FLAG_INIT;
static volatile sig_atomic_t joining; /* MPI starts, or the mesh opens: no thread watches the other ranks yet */
static volatile sig_atomic_t term_received, giving_up;
static int run_dir_fd = -1;     /* the run's directory, for errors.txt */
static comm *_Atomic mesh_open; /* while its watcher may call on_failure */

static void write_line(int fd, const char *before, const char *line) {
    if (fd < 0) return;
    dprintf(fd, "%s%s", before, line); /* if that fails there is nowhere left to report it */
    close(fd);
}

/* stderr goes through the launcher, which may have died, or no longer forwards output (Open MPI's mpirun after its
 * own SIGTERM). Then the line also goes to the terminal, if there is one, and to the run directory. */
static void print_line(const char *line) {
    comm *c = atomic_load(&mesh_open);
    bool written = fputs(line, stderr) >= 0 && fflush(stderr) == 0, gone = c && comm_launcher_is_gone(c);
    if (written && !gone && !term_received) return;
    time_t now = time(NULL);
    struct tm tm;
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S ", localtime_r(&now, &tm));
    if (!written || gone) write_line(open("/dev/tty", O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), "", line);
    if (run_dir_fd < 0) return;
    write_line(
        openat(run_dir_fd, "errors.txt", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666),
        stamp, line);
}

static void print_error(status code, const char *before, const char *text) {
    char line[4096];
    snprintf(line, sizeof line - 1, "%s: %s%s", error_label(code), before, text);
    strcat(line, "\n");
    print_line(line);
}

static void note_end(const comm *c) {
    int rank;
    int64_t step;
    bool lost = comm_lost_rank(c, &rank, &step);
    notes_add_end(lost, rank, step);
}

static void on_failure(void *context, status code, const char *cause) {
    (void)context;
    char before[48];
    snprintf(before, sizeof before, "rank %d ends: ", this_rank);
    if (atomic_load(&mesh_open)) note_end(atomic_load(&mesh_open));
    if (atomic_flag_test_and_set(&cause_printed)) return;
    if (code != ERR_INPUT)
        print_error(code, before, cause); /* what is refused is told once, by the rank that refuses it */
}

static void on_overdue(void *context) {
    (void)context;
    _exit(1); /* stuck in a computation or a system call; the cause has been printed */
}

/* The launcher ends the others as soon as this rank has ended: they get the time to say the same. */
static void on_missing(void *context, int rank, const char *cause) {
    enum { OTHERS_MS = 500 };
    giving_up = 1;
    notes_add_end(true, rank, 0);
    on_failure(context, ERR_RUN, cause);
    nanosleep(&(struct timespec){.tv_nsec = OTHERS_MS * 1000000L}, NULL);
    _exit(1);
}

static void on_asked_to_end(void *context) {
    (void)context;
    char line[160];
    snprintf(line, sizeof line, "rank %d: the run received SIGTERM: it saves after this step, if it has the time\n",
             this_rank);
    print_line(line);
}

/* While the ranks join, no thread could find out more. */
static void report_end_while_joining(void) {
    static const char text[] = "error: a rank received SIGTERM before all ranks had joined: another rank or the "
                               "launcher failed, see the messages above\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);
    _exit(1);
}

static void on_term(int number) {
    (void)number;
    notes_add_asked();
    if (giving_up) return;
    if (joining) report_end_while_joining();
    term_received = 1;
    train_interrupt();
    comm_check_alive();
}

void ranks_catch_launcher(void) {
    int rank, size;
    if (!comm_launched(&rank, &size) || size < 2) return;
    struct sigaction a = {.sa_handler = on_term, .sa_flags = SA_RESTART};
    sigset_t term;
    sigemptyset(&a.sa_mask);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL); /* who notes to be here notes the signal too */
    notes_add_here();
    sigaction(SIGTERM, &a, NULL);
    sigprocmask(SIG_UNBLOCK, &term, NULL);
    signal(SIGPIPE,
           SIG_IGN); /* a launcher that dies closes our stderr; what fails to be written must not end us silently */
}

void ranks_use_dir(const char *run_dir) {
    if (run_dir_fd < 0) run_dir_fd = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static status open_mesh(comm **out, const command_line *l, const int sizes[AXIS_COUNT]) {
    const config *c = &l->config;
    int size = 1;
    if (comm_launched(&this_rank, &size) && l->ranks && l->ranks != size)
        return ERR(ERR_INPUT,
                   "--ranks: found %d, expected %d, the number of ranks that the launcher started; leave it out",
                   l->ranks, size);
    comm_options o = {.timeout_s = c->comm.timeout,
                      .messages_only = !c->comm.shared_memory,
                      .on_failure = on_failure,
                      .on_overdue = on_overdue,
                      .on_missing = on_missing,
                      .on_asked_to_end = on_asked_to_end};
    memcpy(o.size, sizes, sizeof o.size);
    joining = size > 1;
    status rc = comm_open(out, &o);
    joining = 0;
    atomic_store(&mesh_open, rc == OK ? *out : NULL);
    return rc;
}

status ranks_open(comm **out, const command_line *l) {
    status rc = open_mesh(out, l, l->config.parallel.size);
    if (rc == ERR_INPUT && this_rank > 0)
        error_clear(); /* a wrong request is wrong on all ranks: the first one prints it */
    return rc;
}

status ranks_use_mesh(comm **ranks, const command_line *l, const mesh *m) {
    if (memcmp(comm_mesh(*ranks)->size, m->size, sizeof m->size) == 0) return OK;
    atomic_store(&mesh_open, NULL);
    comm_close(*ranks);
    *ranks = NULL;
    return open_mesh(ranks, l, m->size);
}

/* own: why this rank ends. first: why the run ends; its message begins with the rank that failed first. */
static void report_end(const error_record *own, const error_record *first) {
    char me[32];
    snprintf(me, sizeof me, "rank %d (", this_rank);
    if (str_starts_with(first->message, me)) {
        if (!atomic_flag_test_and_set(&cause_printed)) print_error(first->code, "", first->message);
        return;
    }
    /* Where all ranks fail with the same error, the first one prints it for all. */
    bool heard = strcmp(own->message, first->message) == 0;
    if (heard || !str_ends_with(first->message, own->message)) on_failure(NULL, first->code, first->message);
}

status ranks_close(comm *ranks, status rc) {
    if (rc != OK && ranks && comm_size(ranks) > 1) {
        error_record own, first;
        error_take(&own);
        comm_fail(ranks, rc, own.message);
        rc = comm_check(ranks);
        note_end(ranks);
        error_take(&first);
        report_end(&own, &first);
    }
    comm_close(ranks);
    atomic_store(&mesh_open, NULL);
    return rc;
}
