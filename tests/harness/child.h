#pragma once
/* child.h - what must end the process is tried in a child. */
#include "base/base.h"

/* Runs fn in a child that is refused more memory than so many bytes beyond what it has: its exit code; -1: it was
 * killed. SKIPPED under AddressSanitizer, which has its own address space. */
enum { SKIPPED = -2 };
int with_little_memory(size_t n_bytes, int (*fn)(void));
bool aborts(void (*fn)(void)); /* runs fn in a child with a quiet stderr; true when it aborted */
