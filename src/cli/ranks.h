#pragma once
/* ranks.h - private to cli: starting many ranks, being one of them, and their one end. */
#include "cli/cli.h"

#include <signal.h>

/* Does this command line ask for ranks that nobody has started yet? */
bool ranks_wanted(const command_line *l);
/* Starts them with mpirun, waits, and returns how it went; they have said why. */
status ranks_launch(const command_line *l);
/* What asks a run to stop, or those who started its ranks: Ctrl-C, SIGTERM, and a terminal that closes, unless nohup has that
 * ignored. */
void ranks_catch_stop(const struct sigaction *action);
/* What a launcher does to its ranks: SIGTERM when one of them has died, a closed stderr when it dies itself. From the start on. */
void ranks_catch_launcher(void);
/* Where a rank writes the cause of its end when nobody reads its stderr any more. */
void ranks_use_dir(const char *run_dir);
/* The mesh that this process is a rank of, from the settings; a mesh of one where it is alone. */
status ranks_open(comm **out, const command_line *l);
/* Closes the mesh and opens the one that was chosen, where it is another. *ranks is NULL after a failure. */
status ranks_use_mesh(comm **ranks, const command_line *l, const mesh *m);
/* The end of a run that returned rc: the others are told, and this rank says once why it ends. */
status ranks_close(comm *ranks, status rc);
