#pragma once
/* programs.h - what tests that look into programs share. */
#include "exec/exec.h"
#include "plan/plan.h"

/* The scratch of a target that varies from op to op, to make packing hard. */
size_t ragged_work(const program *p, const op *o, int n_threads);
/* plan_build, which fails the test where it cannot. */
void plan_must(plan *p, const plan_request *r);
/* All elements, whatever their type; the caller frees. */
float *value_read_f32(exec *e, const program *p, value_id v);
