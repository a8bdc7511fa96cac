#pragma once
/* backend_choice.h - the backend that a test runs on: the CPU's, or with RALO_TEST_BACKEND=cuda the GPU's.
 *
 * The same tests prove both. Where the GPU is asked for and there is none, the test says so and ends with 77, which ctest
 * counts as skipped. */
#include "backend/backend.h"

const backend *backend_under_test(void);
backend_context *backend_under_test_context(int n_threads); /* the GPU's is opened once and stays; close with ... */
void backend_under_test_close(backend_context *c);
