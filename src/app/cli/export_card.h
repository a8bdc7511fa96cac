#pragma once
/* export_card.h - private to cli: export of a run, with what its directory says in the model card. */
#include "cli/cli.h"

/* As export_checkpoint; o->card is filled in. What the run directory does not have, or what cannot be read, is left out. */
status export_from_run(const char *from, export_options *o, export_report *out);
