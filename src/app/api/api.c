/* api.c - version, errors, log, and the frame around every call.
 *
 * The rooms below log to stderr and format numbers by the thread's locale, which is right for a program and wrong inside
 * somebody else's. Both are changed here, at the door, and not in every place that prints. */
#include "api/api.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)RALO_ERROR_RUN == ERR_RUN && (int)RALO_ERROR_INPUT == ERR_INPUT && (int)RALO_ERROR_IO == ERR_IO &&
                   (int)RALO_ERROR_FIT == ERR_FIT && (int)RALO_ERROR_INTERRUPTED == ERR_INTERRUPTED &&
                   (int)RALO_ERROR_BUG == ERR_BUG,
               "a status is handed out as it is");
_Static_assert((int)RALO_LOG_INFO == LOG_INFO && (int)RALO_LOG_WARNING == LOG_WARN && (int)RALO_LOG_ERROR == LOG_ERROR,
               "and so is a level");

const char *ralo_version(void) { return RALO_VERSION; }
const char *ralo_error_message(void) { return error_message(); }
void ralo_free(void *memory) { free(memory); }

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static ralo_log_function log_function;
static void *log_context;

static void forward(void *context, log_level level, const char *line) {
    (void)context;
    pthread_mutex_lock(&log_lock); /* one line at a time, and never after ralo_set_log took the function away */
    if (log_function) log_function(log_context, (ralo_log_level)level, line);
    pthread_mutex_unlock(&log_lock);
}

void ralo_set_log(ralo_log_function function, void *context) {
    pthread_mutex_lock(&log_lock);
    log_function = function;
    log_context = context;
    pthread_mutex_unlock(&log_lock);
}

static locale_t plain_locale;
static void prepare(void) {
    log_set_sink(forward, NULL);
    plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    ASSERT(plain_locale != (locale_t)0); /* built into libc */
}

api_call api_enter(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    api_call call = {.before = uselocale(plain_locale)};
    error_take(&call.last);
    return call;
}

ralo_status api_leave(api_call call, status rc) {
    uselocale(call.before);
    if (rc == OK) error_give(&call.last);
    return (ralo_status)rc;
}

status api_need(const char *function, const char *what, const void *pointer) {
    return pointer ? OK : ERR(ERR_INPUT, "%s: found NULL for '%s'", function, what);
}
