/* guard.c - counts allocations on threads that promised to make none.
 *
 * A flag per thread and one counter for all. The flag must be readable from inside malloc, also while a thread or a
 * library is just being set up: initial-exec storage is part of the thread's own block and never needs malloc itself,
 * which the general model for shared libraries does.
 *
 * Counts, and does not stop the program: the number ends in the ledger, and a test or the report calls it an error. */
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
