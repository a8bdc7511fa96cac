/* worker.c - see worker.h. */
#define _GNU_SOURCE 1 /* pipe2, posix_spawn_file_actions_addclosefrom_np */
#include "reward/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { FD_LEAST = 10 }; /* above every number that the program's side gets */

/* $1 is the command. The reader of the life pipe holds none of the program's pipes, or their end would not be seen. */
static const char script[] = "(read gone; kill -KILL 0) <&3 >/dev/null 2>&1 & exec /bin/sh -c \"$1\" 3<&-";

static status move_up(int *fd) {
    int moved = fcntl(*fd, F_DUPFD_CLOEXEC, FD_LEAST);
    int why = errno;
    close(*fd);
    *fd = moved;
    return moved >= 0 ? OK : ERR(ERR_IO, "reward.program: a pipe to it could not be made: %s", strerror(why));
}

static void close_both(int ends[2]) {
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) close(ends[i]);
        ends[i] = -1;
    }
}

static status pipe_open(int ends[2]) {
    status rc = OK;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ends[0] = ends[1] = -1;
        return ERR(ERR_IO, "reward.program: a pipe to it could not be made: %s", strerror(errno));
    }
    TRY_GOTO(rc, move_up(&ends[0]), fail);
    TRY_GOTO(rc, move_up(&ends[1]), fail);
    return OK;
fail:
    close_both(ends);
    return rc;
}

status worker_life_open(int life[2]) { return pipe_open(life); }
void worker_life_close(int life[2]) { close_both(life); }

/* ---- start ------------------------------------------------------------------------------------------------------- */

/* A group of its own, so that the whole of it can be killed and Ctrl-C at a terminal does not reach it; no signal blocked or
 * ignored; no file of ours. */
static int spawn(pid_t *pid, const char *command, int in, int out, int life) {
    static const int usual[] = {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD, SIGUSR1, SIGUSR2, SIGALRM};
    char *const arguments[] = {(char *)"sh",          (char *)"-c",    (char *)script,
                               (char *)"ralo-reward", (char *)command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (size_t i = 0; i < ARRAY_LENGTH(usual); i++) sigaddset(&defaults, usual[i]);
    int rc = posix_spawn_file_actions_init(&files);
    if (rc) return rc;
    if ((rc = posix_spawnattr_init(&attributes))) {
        posix_spawn_file_actions_destroy(&files);
        return rc;
    }
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    rc = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&files, life, 3);
    if (!rc) rc = posix_spawn_file_actions_addclosefrom_np(&files, 4);
    if (!rc) rc = posix_spawn(pid, "/bin/sh", &files, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

status worker_start(worker *w, const char *command, int life) {
    int to[2] = {-1, -1}, back[2] = {-1, -1};
    status rc = OK;
    *w = (worker){.in = -1, .out = -1};
    TRY_GOTO(rc, pipe_open(to), fail);
    TRY_GOTO(rc, pipe_open(back), fail);
    if (fcntl(to[1], F_SETFL, O_NONBLOCK) != 0 || fcntl(back[0], F_SETFL, O_NONBLOCK) != 0)
        TRY_GOTO(rc, ERR(ERR_IO, "reward.program: a pipe to it could not be set up: %s", strerror(errno)), fail);
    int why = spawn(&w->pid, command, to[0], back[1], life);
    if (why) {
        w->pid = 0;
        TRY_GOTO(rc, ERR(ERR_IO, "reward.program: '%.200s' could not be started: %s", command, strerror(why)), fail);
    }
    close(to[0]);
    close(back[1]);
    w->in = to[1];
    w->out = back[0];
    return OK;
fail:
    close_both(to);
    close_both(back);
    return rc;
}

/* ---- end --------------------------------------------------------------------------------------------------------- */

static void sleep_ms(int64_t ms) { nanosleep(&(struct timespec){.tv_nsec = (long)(ms * 1000000)}, NULL); }

/* It stays a zombie until worker_stop, so that nobody else gets its number, which is the group's. */
bool worker_ended(worker *w, double seconds, char why[96]) {
    double until = clock_s() + seconds;
    for (;; sleep_ms(2)) {
        siginfo_t s = {0};
        if (waitid(P_PID, (id_t)w->pid, &s, WEXITED | WNOHANG | WNOWAIT) !=
            0) { /* the host waits for all children itself */
            if (errno == EINTR) continue;
            snprintf(why, 96, "ended");
            return true;
        }
        if (s.si_pid == w->pid && s.si_code == CLD_EXITED)
            snprintf(why, 96, "ended with status %d%s", s.si_status,
                     s.si_status == 127   ? " (command not found)"
                     : s.si_status == 126 ? " (cannot be executed)"
                                          : "");
        else if (s.si_pid == w->pid)
            snprintf(why, 96, "was killed by signal %d (%s)", s.si_status, strsignal(s.si_status));
        if (s.si_pid == w->pid) return true;
        if (clock_s() >= until) return false;
    }
}

/* Linux counts the bytes of a pipe at either end. */
bool worker_has_unread(const worker *w) {
    int n = 0;
    return w->in >= 0 && ioctl(w->in, FIONREAD, &n) == 0 && n > 0;
}

void worker_close_input(worker *w) {
    if (w->in >= 0) close(w->in);
    w->in = -1;
}

void worker_stop(worker *w) {
    worker_close_input(w);
    if (w->out >= 0) close(w->out);
    w->out = -1;
    if (w->pid <= 0) return;
    kill(-w->pid, SIGKILL);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR) {}
    w->pid = 0;
}
