#pragma once
/* restarts.h - private to cli: go on by itself after the death of a rank (--restarts, --min-ranks). */
#include "cli/cli.h"

status restarts_check(const command_line *l); /* are the flags possible here? */
/* Starts the ranks, and again after each death, as ranks_launch otherwise does once. */
status restarts_run(const command_line *l);
