#pragma once
/* param_fixtures.h - parameters and gradients of a safetensors fixture beside those of a plan: one tensor for each part of a
 * parameter, under its name in files, behind a prefix. Prediction heads are layers of their own there. */
#include "exec/exec.h"
#include "plan/plan.h"
#include "weightfile/weightfile.h"

const safetensor *fixture_tensor(const safetensors *f, const char *prefix,
                                 const char *name); /* fails where it is not */
/* Writes the parameters of the model, or those of its reference. */
void fixture_load(exec *e, const plan *p, const safetensors *f, const char *prefix, bool of_reference);
/* The largest distance of a trained parameter's gradient to that of the fixture times `scale`, as a share of the latter's
 * norm, which must not be 0. *n: tensors compared. */
double fixture_gradient_error(exec *e, const plan *p, const safetensors *f, const char *prefix, double scale,
                              size_t *n);
