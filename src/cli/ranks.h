#pragma once
/* ranks.h - private to cli: start many ranks, be one of them, and end together. */
#include "cli/cli.h"

#include <signal.h>

/* Does this command line ask for ranks that have not been started yet? */
bool ranks_wanted(const command_line *l);
/* Starts them with mpirun, waits, and returns their status; the ranks have printed the cause. */
status ranks_launch(const command_line *l);
/* Starts n_ranks with mpirun, once, and waits for their end. arguments: of ralo, the command first. */
typedef struct ranks_end {
    status code;
    int signal;         /* that ended a rank, as far as mpirun tells; 0: none */
    bool launcher_died; /* mpirun was killed */
    bool launcher_hung; /* it outlived its ranks, and nothing is known of their ends but what they noted */
} ranks_end;
status ranks_start(int n_ranks, int n_arguments, char *const *arguments, ranks_end *out);
bool ranks_were_interrupted(void); /* Ctrl-C, SIGTERM or a closed terminal asked for a stop */
/* Handles the signals that ask a run, or the process that started its ranks, to stop: Ctrl-C, SIGTERM, and a closed
 * terminal, unless nohup ignores that. */
void ranks_catch_stop(const struct sigaction *action);
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
