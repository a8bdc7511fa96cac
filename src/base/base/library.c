/* library.c - shared libraries that are loaded when they are first needed: a run that does not need one does not pay for it. */
#include "base/base.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* A table may be the whole process's, and a thread that has loaded it calls its functions without a lock. So a second
 * thread finds them in their places and writes nothing. */
static void put_symbol(void *place, void *found) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (memcmp(place, &found, sizeof found) != 0) memcpy(place, &found, sizeof found);
    pthread_mutex_unlock(&lock);
}

/* It stays: libraries that it brings along have handlers for the end of the process. */
bool library_load(const char *file, const library_symbol *symbols, size_t n, char *why, size_t n_why) {
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, n_why, "%s cannot be loaded (%s)", file, dlerror());
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found) {
            snprintf(why, n_why, "%s is too old: it has no %s", file, symbols[i].name);
            return false;
        }
        put_symbol(symbols[i].place, found);
    }
    return true;
}
