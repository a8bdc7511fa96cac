#pragma once
/* adamw.h - AdamW has a variant for each kind of core, all with the same bits; the one of this machine is chosen at run time. */
#include "backend/cpu/cpu.h"

const char *adamw_variant_name(int i); /* of all variants; NULL past the last */
/* For tests and benches: force a variant by name (NULL: this machine's). False where there is none of that name. */
bool adamw_force_variant(const char *name);
