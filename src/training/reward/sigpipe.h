#pragma once
/* sigpipe.h - private to reward: writing to what may be gone. Such a write raises SIGPIPE, whose handling is the host's: it is held
 * back on this thread meanwhile, and taken away again. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

typedef struct sigpipe_hold {
    sigset_t before;
    bool had_one; /* somebody else's, which stays */
} sigpipe_hold;

static inline sigpipe_hold sigpipe_hold_begin(void) {
    sigpipe_hold h;
    sigset_t pipes, pending;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    sigpending(&pending);
    h.had_one = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipes, &h.before);
    return h;
}

static inline void sigpipe_hold_end(const sigpipe_hold *h) {
    sigset_t pipes;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    while (!h->had_one && sigtimedwait(&pipes, NULL, &(struct timespec){0}) > 0) {}
    pthread_sigmask(SIG_SETMASK, &h->before, NULL);
}
