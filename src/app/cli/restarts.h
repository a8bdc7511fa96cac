#pragma once
/* restarts.h - private to cli: run many ranks, and go on by itself after the death of one (--restarts, --min-ranks). */
#include "cli/cli.h"

status restarts_check(const command_line *l); /* are the flags possible here? */
/* --ranks: starts the ranks, with --restarts again after each death, and returns their status; they have printed the
 * cause. */
status restarts_run(const command_line *l);
