#pragma once
/* notes.h - private to cli: what ranks tell the process that started them (--ranks), in a temporary file. */
#include "base/base.h"
#include "comm/comm.h"

typedef struct run_notes {
    bool began; /* rank 0 has a plan and a run directory, and the next four are known */
    char dir[4096];
    int size[AXIS_COUNT];
    int64_t micro_batch, accumulation;
    int n_here,
        n_asked;   /* ranks that can receive SIGTERM, and those that have: mpirun sends it to all when it is to end */
    bool ended;    /* a rank has reported why the run ends, and the next three are known */
    bool lost;     /* a rank died or does not respond; false: a rank has reported an error */
    int lost_rank; /* -1: not known */
    int64_t step;  /* had begun; 0: none */
} run_notes;

/* ---- of the process that starts the ranks --------------------------------------------------------------------------- */

status notes_open(char *path, size_t n);           /* makes the file and names it in the environment */
status notes_clear(const char *path, int restart); /* before the ranks are started; restart: 0 the first time */
void notes_read(const char *path, run_notes *out); /* what was not noted stays as it is; ended is set anew */
void notes_close(const char *path);

/* ---- of a rank; nothing happens where nobody reads notes ------------------------------------------------------------ */

int notes_restart(void); /* how often the run has been restarted; -1: these ranks were not started by ralo --ranks */
void notes_add_beginning(const mesh *m, int64_t micro_batch, int64_t accumulation, const char *dir);
void notes_add_here(void);
void notes_add_asked(void); /* this rank has received SIGTERM; for its signal handler */
/* After the first cause is known: did a rank die, or not respond, and which (-1: not known), in which step (0: none)?
 * From any thread, once. Allocates nothing. */
void notes_add_end(bool lost, int rank, int64_t step);
