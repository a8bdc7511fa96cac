#pragma once
/* memory.h - host memory that the system refuses. Small objects cannot do without it: mem_refused (base.h) ends the
 * program. Work whose size comes from input asks first, and fails with an error. */
#include "base/base.h"

/* How a program ends when memory is refused: with this exit code and a message; without this call by abort(). A program
 * that uses the library decides for itself. */
void mem_exit_when_refused(int exit_code);
/* Would so much memory be given? False is an error of the input, before the small allocations of its work end the
 * program. */
bool mem_is_there(size_t n_bytes);
