#pragma once
/* checkpoint_params.h - private to train: the parameters of a checkpoint, read without the program that wrote it. */
#include "train/checkpoint_io.h"

/* The checkpoint that `from` names: itself, or the newest whole one of a run directory. `why` opens the messages,
 * `expected` ends those that nothing was found. */
status checkpoint_locate(const char *why, const char *from, const char *expected, char *out, size_t n);
/* What the checkpoint says about its model; an error when an older ralo wrote none. */
status checkpoint_description(const checkpoint_reader *r, const char *dir, const json_t **out);
/* A parameter: its fp32 master where there is one. Its shape, dtype and checksums are proved. */
status checkpoint_param_find(const checkpoint_reader *r, const char *name, const shape *want, checkpoint_found *out);
