#pragma once
/* planning.h - private to cli: a search on the terminal while it lasts, and how the ranks of a plan are started. */
#include "cli/cli.h"

void planning_show(void); /* called for every candidate; a line on a terminal once a search takes a while */
void planning_hide(void); /* removes it */
/* The commands that start the ranks of this plan: mpirun or --ranks, and srun. Nothing for one rank, or where it does not fit. */
void planning_print_launch(const command_line *l, const plan *p, FILE *out);
