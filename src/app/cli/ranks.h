#pragma once
/* ranks.h - private to cli: start many ranks, be one of them, and end together. */
#include "cli/cli.h"

#include <signal.h>

/* Does this command line ask for ranks that have not been started yet? */
bool ranks_wanted(const command_line *l);
/* Starts n_ranks with mpirun, once, and waits for their end; they print the cause. timeout_s: for an mpirun that was
 * stopped before it has started them. arguments: of ralo, the command first. */
typedef struct ranks_end {
    status code;
    int signal;         /* that ended a rank, as far as mpirun tells; 0: none */
    pid_t launcher;     /* mpirun */
    bool launcher_died; /* it was killed, or was stopped and had to be */
    bool launcher_hung; /* it outlived its ranks, and nothing is known of their ends but what they noted */
    bool may_be_asked;  /* it has ended as after a signal, to which it reacts by sending SIGTERM to all ranks */
} ranks_end;
status ranks_start(int n_ranks, double timeout_s, int n_arguments, char *const *arguments, ranks_end *out);
int ranks_interrupts(
    void); /* how often Ctrl-C, SIGTERM or a closed terminal asked for a stop: the second time, at once */
/* Handles the signals that ask a run, or the process that started its ranks, to stop: Ctrl-C, SIGTERM, and a closed
 * terminal, unless nohup ignores that. is_rank: SIGTERM is its launcher's (ranks_catch_launcher). */
void ranks_catch_stop(const struct sigaction *action, bool is_rank);
/* Called once by the handler of each of those signals. False: it comes within a second after the first and has the same
 * cause, as `timeout` signals its child and then the child's whole group, and a terminal that closes sends SIGHUP by
 * the kernel and the shell. */
bool ranks_stop_is_new(void);
/* Called by the handler of a first signal: says on stderr that the run ends with the step under way. A step may take minutes. */
void ranks_announce_stop(void);
/* Handles what a launcher does to its ranks: SIGTERM when one of them has died, a closed stderr when it dies itself.
 * Call it first. */
void ranks_catch_launcher(void);
/* Directory of errors.txt, where a rank writes the cause of its end if its stderr may be lost. */
void ranks_use_dir(const char *run_dir);
/* Opens the mesh that this process is a rank of, from the settings; a mesh of one for a single process. */
status ranks_open(comm **out, const command_line *l);
/* If the chosen mesh differs, closes this one and opens that. *ranks is NULL after a failure. */
status ranks_use_mesh(comm **ranks, const command_line *l, const mesh *m);
/* Ends a run that returned rc: tells the other ranks, and prints once why this rank ends. */
status ranks_close(comm *ranks, status rc);
