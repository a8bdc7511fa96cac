#pragma once
/* adamw.h - AdamW has a way for each kind of core; this machine's is chosen by itself. */
#include "backend/cpu/cpu.h"

const char *adamw_way_list(int i); /* all names, NULL at the end */
/* For tests and benches: force a way by name (NULL = this machine's). False when there is none of that name. */
bool adamw_force_way(const char *name);
