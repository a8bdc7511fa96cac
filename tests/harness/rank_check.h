#pragma once
/* rank_check.h - for programs that scripts run under mpirun: the mesh, what must not fail, and whether anything did. */
#include "comm/comm.h"

extern comm *ranks;
extern int n_failed; /* on this rank; after mesh_end on any */

void mesh_start(const comm_options *o); /* ends the program where it cannot */
void mesh_end(void);                    /* agrees on n_failed first */
void must(status rc);                   /* tells the other ranks, and ends the program */
