#pragma once
/* worker.h - private to reward: one running copy of a reward program, with a pipe to it and one from it.
 *
 * It is the leader of a process group. A second small process in the group reads a pipe that this process never writes to; when this
 * process is gone, however it ended, that pipe ends and the whole group is killed. So nothing is left behind, not even by SIGKILL. It
 * is started with posix_spawn: a fork of a process of many gigabytes and threads is slow and not safe. */
#include "base/base.h"

#include <sys/types.h>

typedef struct worker {
    pid_t pid;   /* and its group; 0: it does not run */
    int in, out; /* our ends of its standard input and output; they never block; -1: closed */
} worker;

/* life: the end that its group reads, life[0] of worker_life_open. */
status worker_start(worker *w, const char *command, int life);
/* Does it end by itself within this many seconds? Then `why` says how ("ended with status 1"), and worker_stop is still needed. */
bool worker_ended(worker *w, double seconds, char why[96]);
/* Kills the whole group, waits for it and closes the pipes; fine if it does not run. */
void worker_stop(worker *w);
/* Has it not read everything yet that was written to it? One that reads ahead, or through another program, always has. */
bool worker_has_unread(const worker *w);
void worker_close_input(worker *w); /* a program that reads to the end of its input ends now */

status worker_life_open(int life[2]);
void worker_life_close(int life[2]);
