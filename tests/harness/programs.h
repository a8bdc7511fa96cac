#pragma once
/* programs.h - what tests that look into programs share. */
#include "exec/exec.h"

/* The scratch of a target that varies from op to op, to make packing hard. */
size_t ragged_work(const program *p, const op *o, int n_threads);
/* All elements, whatever their type; the caller frees. */
float *value_read_f32(exec *e, const program *p, value_id v);
