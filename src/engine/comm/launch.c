/* launch.c - what the launcher tells a process about its rank, and a watch over the calls of MPI that cannot be left.
 *
 * MPI starts, makes communicators and ends in calls that return when all ranks have made them. Until the mesh is open
 * no rank knows another one, and no thread of it looks for a rank that does not come: it was stopped, or hangs before
 * it joins. So a thread counts comm.timeout from the beginning and then says which rank is missing. It can only end the
 * process.
 *
 * Ranks of the same node are found without MPI: they are children of the launcher, and the environment that the
 * launcher gave them holds their number. Whether a rank waits in such a call shows in the name of its watching thread.
 * Ranks of other nodes are not seen from here; a message then says that the missing one is not among the ranks of this
 * node. */
#define _GNU_SOURCE
#include "comm/comm_state.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

/* ---- the launcher's environment ---------------------------------------------------------------------------------------- */

static const char *const rank_names[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                            {"PMI_RANK", "PMI_SIZE"},
                                            {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

static bool parse_count(const char *text, int *out) {
    char *end;
    if (!text || !*text) return false;
    long n = strtol(text, &end, 10);
    if (*end || n < 0 || n > 1 << 20) return false;
    *out = (int)n;
    return true;
}

static bool read_count(const char *name, int *out) { return parse_count(getenv(name), out); }

bool comm_launched(int *rank, int *size) {
    for (size_t i = 0; i < ARRAY_LENGTH(rank_names); i++)
        if (read_count(rank_names[i][0], rank) && read_count(rank_names[i][1], size) && *rank < *size) return true;
    return false;
}

int comm_launched_place(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    int place;
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (read_count(names[i], &place)) return place;
    return 0;
}

/* ---- other processes --------------------------------------------------------------------------------------------------- */

#define WAITING_NAME "ralo-joining" /* of the thread, at most 15 bytes */
enum { SCRIPTS_MOST = 4 };          /* between the launcher and a rank */

static FILE *open_proc(int pid, const char *file) {
    char path[320];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    return fopen(path, "re");
}

static bool is_stopped(int pid) {
    char state = 0;
    FILE *f = open_proc(pid, "stat");
    if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 0;
    if (f) fclose(f);
    return state == 'T' || state == 't';
}

/* Calls what with every child of a process. */
static void for_each_child(int pid, void (*what)(int child, void *context), void *context) {
    char file[32];
    int child;
    snprintf(file, sizeof file, "task/%d/children", pid);
    FILE *f = open_proc(pid, file);
    while (f && fscanf(f, "%d", &child) == 1) what(child, context);
    if (f) fclose(f);
}

/* The number that the launcher gave to a process; false: it is no rank, or may not be looked at. */
static bool rank_of_process(int pid, int *rank) {
    bool found = false;
    char *line = NULL;
    size_t capacity = 0;
    FILE *f = open_proc(pid, "environ");
    while (f && !found && getdelim(&line, &capacity, 0, f) > 0)
        for (size_t i = 0; i < ARRAY_LENGTH(rank_names) && !found; i++) {
            size_t n = strlen(rank_names[i][0]);
            found = strncmp(line, rank_names[i][0], n) == 0 && line[n] == '=' && parse_count(line + n + 1, rank);
        }
    free(line);
    if (f) fclose(f);
    return found;
}

static bool has_waiting_thread(int pid) {
    char path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        char file[280], name[32] = "";
        snprintf(file, sizeof file, "task/%s/comm", e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : open_proc(pid, file);
        if (f && fgets(name, sizeof name, f)) found = strcmp(name, WAITING_NAME "\n") == 0;
        if (f) fclose(f);
    }
    if (d) closedir(d);
    return found;
}

/* A rank of this node. */
typedef struct sibling {
    int pid; /* 0: there is no such process */
    int depth;
    bool stopped, waiting;
} sibling;

/* The process, and those below it where it is a script that runs the rank. */
static void look_at(int pid, void *context) {
    sibling *s = context;
    s->stopped |= is_stopped(pid);
    s->waiting |= has_waiting_thread(pid);
    if (s->waiting || s->depth == SCRIPTS_MOST) return;
    s->depth++;
    for_each_child(pid, look_at, s);
    s->depth--;
}

typedef struct siblings {
    int n;
    sibling *of; /* by world rank */
} siblings;

static void note_sibling(int pid, void *context) {
    siblings *all = context;
    int rank;
    if (!rank_of_process(pid, &rank) || rank >= all->n) return;
    all->of[rank].pid = pid;
    look_at(pid, &all->of[rank]);
}

/* ---- the watch ----------------------------------------------------------------------------------------------------------- */

enum { LOOK_MS = 50, LOOK_MOST_MS = 1000 }; /* a longer pause: this process itself was stopped */

typedef struct launch_watch {
    comm_options options;
    const char *what;
    int rank, size, launcher;
    char host[HOST_BYTES];
    _Atomic bool over;
    int wake_fd;
    pthread_t thread;
} launch_watch;
static launch_watch *watch; /* MPI is started by one thread */

static const char *describe_state(const sibling *s) {
    if (s->pid == 0) return "has ended, or was never started";
    return s->stopped ? "was stopped (kill -CONT continues it)" : "hangs or computes, and has not come to this point";
}

/* Names the ranks of this node that are missing; the first of them, or -1. */
static int describe_missing(const launch_watch *w, const siblings *all, strbuf *out) {
    int n_local = 0, first = -1, n = 0;
    bool only_node = read_count("OMPI_COMM_WORLD_LOCAL_SIZE", &n_local) && n_local == w->size;
    for (int r = 0; r < all->n; r++) {
        const sibling *s = &all->of[r];
        if (r == w->rank || (s->pid == 0 && !only_node) || (s->pid && s->waiting && !s->stopped)) continue;
        if (n++ == 0) first = r;
        strbuf_printf(out, "%srank %d (", n > 1 ? ", " : "", r);
        if (s->pid) strbuf_printf(out, "pid %d on ", s->pid);
        strbuf_printf(out, "%s) %s", w->host, describe_state(s));
    }
    if (n > 0) return first;
    int n_here = 0;
    for (int r = 0; r < all->n; r++) n_here += all->of[r].pid != 0;
    if (is_stopped(w->launcher))
        strbuf_printf(out, "the launcher (pid %d on %s) was stopped (kill -CONT continues it)", w->launcher, w->host);
    else if (n_here > 1 && n_here < w->size)
        strbuf_printf(out,
                      "the %d ranks of %s are there: one of another host is missing, see what the ranks there print",
                      n_here, w->host);
    else if (n_here == w->size)
        strbuf_add(out, "all ranks are there, but MPI does not connect them: check its network settings");
    else strbuf_add(out, "a rank is missing: it was stopped, hangs, or its host cannot be reached");
    return -1;
}

static void give_up(const launch_watch *w) {
    siblings all = {.n = w->size, .of = mem_alloc((size_t)w->size * sizeof *all.of)};
    strbuf text;
    for_each_child(w->launcher, note_sibling, &all);
    strbuf_init(&text);
    int missing = describe_missing(w, &all, &text);
    strbuf_printf(&text, "; the others have waited %.0f s (comm.timeout) for all ranks %s", w->options.timeout_s,
                  w->what);
    if (!atomic_load(&w->over)) w->options.on_missing(w->options.context, missing, text.text);
    strbuf_fini(&text);
    free(all.of);
}

static void *watch_main(void *argument) {
    launch_watch *w = argument;
    struct pollfd wake = {.fd = w->wake_fd, .events = POLLIN};
    uint64_t waited_ms = 0, looked_ns = clock_ns(), most_ms = (uint64_t)((w->options.timeout_s + VERIFY_S) * 1e3);
    prctl(PR_SET_NAME, WAITING_NAME);
    while (!atomic_load(&w->over)) {
        poll(&wake, 1, LOOK_MS);
        uint64_t now = clock_ns(), ms = (now - looked_ns) / 1000000;
        waited_ms += MIN(ms, (uint64_t)LOOK_MOST_MS);
        looked_ns += ms * 1000000;
        if (waited_ms < most_ms) continue;
        give_up(w);
        break;
    }
    return NULL;
}

status launch_watch_open(const comm_options *o, const char *what) {
    launch_watch *w = mem_alloc(sizeof *w);
    *w = (launch_watch){.options = *o, .what = what, .launcher = getppid()};
    if (!o->on_missing || !comm_launched(&w->rank, &w->size) || w->size < 2) {
        free(w);
        return OK;
    }
    if (gethostname(w->host, HOST_BYTES - 1) != 0) snprintf(w->host, HOST_BYTES, "unknown host");
    w->wake_fd = eventfd(0, EFD_CLOEXEC);
    int why = w->wake_fd < 0 ? errno : thread_start(&w->thread, watch_main, w);
    if (why == 0) {
        watch = w;
        return OK;
    }
    if (w->wake_fd >= 0) close(w->wake_fd);
    free(w);
    return ERR(ERR_IO, "start the thread that waits for the other ranks: %s", strerror(why));
}

void launch_watch_close(void) {
    if (!watch) return;
    atomic_store(&watch->over, true);
    eventfd_write(watch->wake_fd, 1);
    pthread_join(watch->thread, NULL);
    close(watch->wake_fd);
    free(watch);
    watch = NULL;
}
