/* guard.c - counts allocations on threads that promised to make none.
 *
 * A flag per thread and one counter for all. malloc must be able to read the flag, even while a thread or a library is
 * being set up: initial-exec storage is part of the thread's own block and never needs malloc itself, unlike the
 * general TLS model for shared libraries.
 *
 * It counts and does not stop the program: the ledger reports the number, and a test or the report calls it an
 * error. */
#include "exec/guard.h"

#include <stdatomic.h>

static _Thread_local int armed __attribute__((tls_model("initial-exec"))); /* how many guard_arm are open */
static _Atomic uint64_t n_noted;
static _Atomic bool present;

void guard_arm(void) { armed++; }

void guard_disarm(void) {
    ASSERT(armed > 0);
    armed--;
}

int guard_suspend(void) {
    int was = armed;
    armed = 0;
    return was;
}

void guard_resume(int was) { armed = was; }

void guard_note(void) {
    if (armed) atomic_fetch_add_explicit(&n_noted, 1, memory_order_relaxed);
}

uint64_t guard_count(void) { return atomic_load_explicit(&n_noted, memory_order_relaxed); }
bool guard_present(void) { return atomic_load(&present); }
void guard_set_present(void) { atomic_store(&present, true); }
