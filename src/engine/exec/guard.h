#pragma once
/* guard.h - private to exec: counts calls of malloc, calloc, realloc, memalign on threads that are armed.
 *
 * The interposer (guard_malloc.c) is linked into the ralo program and the tests, not into the library: a library must not
 * replace its host's malloc. */
#include "base/base.h"

void guard_arm(void);
void guard_disarm(void);
/* Around what is not ours: a transport between ranks allocates as it likes. */
int guard_suspend(void);
void guard_resume(int was);
uint64_t guard_count(void);
bool guard_present(void); /* is an interposer linked in */

/* The interposer calls these. */
void guard_note(void);
void guard_set_present(void);
