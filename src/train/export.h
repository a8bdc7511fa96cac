#pragma once
/* export.h - private to train: what export needs to know of a run, and export of the running parameters. */
#include "train/tokenizer_files.h"

/* {"config": config.json, "generation": generation_config.json, "tokenizer": DIR or absent (where it came from, a note: nothing is copied from there), "chat": the format its turns were
 * trained in, absent where it saw none} as JSON text, to be kept in every checkpoint; the caller frees. Token ids are those
 * of the directory the model came from (then d may be NULL: no data), else the tokenizer's. */
status export_describe(const train_request *r, const dataset *d, char **out);
/* The parameters as they are now. tokenizer: files that go along; NULL: none. */
status export_running(exec *e, const plan *p, const char *description, const tokenizer_files *tokenizer,
                      const export_options *o, export_report *out);
