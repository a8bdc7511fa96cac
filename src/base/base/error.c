/* error.c - one error per thread: what went wrong, and the places it passed on its way up.
 *
 * A thread maps its record with its first error and frees it when it ends. Thread-local storage holds only a pointer,
 * because a library that is loaded by dlopen may have little of it. Reporting needs no malloc, so it works where
 * allocation is not allowed, and no lock. The record stays readable until the next ERR on the thread.
 * Formatting goes through a second buffer because a message is often built from the previous one: ERR(code, "%s: %s",
 * path, error_message()).
 * Messages quote names and text from files, so control characters are escaped here, before any program shows them.
 * A trail that is too long keeps the place of the error and the outermost place, and loses the middle. */
#include "base/base.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Thread_local error_record *mine; /* NULL: this thread has had no error yet */
static pthread_key_t key_of_records;     /* exists only for its destructor, which runs when a thread ends */
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool key_is_made;

static void record_free(void *record) {
    mine = NULL;
    munmap(record, sizeof(error_record));
}

static void key_make(void) {
    if (pthread_key_create(&key_of_records, record_free) != 0) mem_refused(sizeof(error_record));
    key_is_made = true;
}

/* A thread that ends after the library was unloaded must not call into it. */
__attribute__((destructor)) static void key_drop(void) {
    if (key_is_made) pthread_key_delete(key_of_records);
}

/* To write to. Where the system has no page left, threads share one record: a mixed message is better than none. */
static error_record *record_to_write(void) {
    static error_record shared;
    if (mine) return mine;
    pthread_once(&key_once, key_make);
    void *pages = mmap(NULL, sizeof(error_record), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return mine = &shared;
    pthread_setspecific(key_of_records, pages);
    return mine = pages;
}

/* To read. */
static const error_record *record_to_read(void) {
    static const error_record none;
    return mine ? mine : &none;
}

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

static void trail_add(error_record *r, const char *file, int line, const char *func) {
    int slots = (int)ARRAY_LENGTH(r->trail);
    int at = r->n_trail < slots ? r->n_trail++ : slots - 1;
    snprintf(r->trail[at], sizeof r->trail[at], "%s:%d %s", path_in_project(file), line, func);
}

status error_set(status code, const char *file, int line, const char *func, const char *fmt, ...) {
    error_record *r = record_to_write();
    char message[sizeof r->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);

    r->code = code;
    r->n_trail = 0;
    size_t taken, n = text_escape(message, strlen(message), false, r->message, sizeof r->message - 1, &taken);
    r->message[n] = 0;
    trail_add(r, file, line, func);
    return code;
}

status error_trail(status code, const char *file, int line, const char *func) {
    error_record *r = record_to_write();
    if (r->code != code) { /* a function returned a code without ERR: say so instead of showing an old message */
        r->code = code;
        r->n_trail = 0;
        snprintf(r->message, sizeof r->message, "status %d was returned without a message", (int)code);
    }
    trail_add(r, file, line, func);
    return code;
}

const char *error_message(void) { return record_to_read()->message; }

status error_code(void) { return record_to_read()->code; }

int error_trail_length(void) { return record_to_read()->n_trail; }

const char *error_trail_at(int i) { return i >= 0 && i < record_to_read()->n_trail ? record_to_read()->trail[i] : ""; }

void error_clear(void) {
    if (!mine) return;
    mine->code = OK;
    mine->n_trail = 0;
    mine->message[0] = 0;
}

const char *error_label(status code) { return code == ERR_INTERRUPTED ? "stopped" : "error"; }

void error_print(FILE *out) {
    const error_record *r = record_to_read();
    if (r->code == OK) return;
    const char *setting = getenv("RALO_TRAIL");
    fprintf(out, "%s: %s\n", error_label(r->code), r->message);
    if (r->code != ERR_BUG && !(setting && strcmp(setting, "1") == 0)) return;
    for (int i = 0; i < r->n_trail; i++) fprintf(out, "    %s %s\n", i == 0 ? "at" : "from", r->trail[i]);
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
    *out = *record_to_read();
    error_clear();
}

status error_give(const error_record *r) {
    if (mine || r->code != OK) *record_to_write() = *r;
    return r->code;
}

_Noreturn void base_assert_failed(const char *what, const char *file, int line) {
    fprintf(stderr, "ralo: broken invariant: %s (%s:%d). This is a bug in ralo, not in your request.\n", what,
            path_in_project(file), line);
    abort();
}
