/* error.c - one error per thread: what went wrong, and the places it passed on its way up.
 *
 * The record lives in thread-local storage, so reporting a failure never allocates and never needs a lock; it stays
 * readable until the next ERR on the same thread. Formatting goes through a second buffer because a message is often
 * built from the previous one: ERR(code, "%s: %s", path, error_message()).
 * A trail that outgrows its slots keeps where the error was made and the outermost place, and loses the middle. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local error_record current;

/* Build systems hand the compiler absolute or relative paths; the trail shows them from the project's root. */
static const char *path_in_project(const char *file) {
    static const char *const roots[] = {"/src/", "/tests/", "/bench/"};
    for (size_t i = 0; i < ARRAY_LENGTH(roots); i++) {
        const char *found = NULL;
        for (const char *p = strstr(file, roots[i]); p; p = strstr(p + 1, roots[i])) found = p + 1;
        if (found) return found;
    }
    return file;
}

static void trail_add(const char *file, int line, const char *func) {
    int slots = (int)ARRAY_LENGTH(current.trail);
    int at = current.n_trail < slots ? current.n_trail++ : slots - 1;
    snprintf(current.trail[at], sizeof current.trail[at], "%s:%d %s", path_in_project(file), line, func);
}

status error_set(status code, const char *file, int line, const char *func, const char *fmt, ...) {
    char message[sizeof current.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);

    current.code = code;
    current.n_trail = 0;
    memcpy(current.message, message, strlen(message) + 1);
    trail_add(file, line, func);
    return code;
}

status error_trail(status code, const char *file, int line, const char *func) {
    if (current.code != code) { /* somebody returned a code without ERR: say so instead of showing an old message */
        current.code = code;
        current.n_trail = 0;
        snprintf(current.message, sizeof current.message, "status %d was returned without a message", (int)code);
    }
    trail_add(file, line, func);
    return code;
}

const char *error_message(void) { return current.message; }

status error_code(void) { return current.code; }

int error_trail_length(void) { return current.n_trail; }

const char *error_trail_at(int i) { return i >= 0 && i < current.n_trail ? current.trail[i] : ""; }

void error_clear(void) {
    current.code = OK;
    current.n_trail = 0;
    current.message[0] = 0;
}

void error_print(FILE *out) {
    if (current.code == OK) return;
    const char *wish = getenv("RALO_TRAIL");
    fprintf(out, "error: %s\n", current.message);
    if (current.code != ERR_BUG && !(wish && strcmp(wish, "1") == 0)) return;
    for (int i = 0; i < current.n_trail; i++) fprintf(out, "    %s %s\n", i == 0 ? "at" : "from", current.trail[i]);
}

int error_exit_code(status code) {
    switch (code) {
    case OK: return 0;
    case ERR_INPUT:
    case ERR_IO: return 2;
    case ERR_FIT: return 3;
    case ERR_INTERRUPTED: return 130;
    case ERR_RUN:
    case ERR_BUG: break;
    }
    return 1;
}

void error_take(error_record *out) {
    *out = current;
    error_clear();
}

status error_give(const error_record *r) {
    current = *r;
    return r->code;
}

_Noreturn void base_assert_failed(const char *what, const char *file, int line) {
    fprintf(stderr, "ralo: broken invariant: %s (%s:%d). This is a bug in ralo, not in your request.\n", what,
            path_in_project(file), line);
    abort();
}
