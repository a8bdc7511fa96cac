/* log.c - log lines for people, on stderr or to a callback.
 *
 * A line is formatted on the stack and written at once, so lines of several threads and ranks do not mix and logging
 * inside the step does not allocate. A message stays on one line: inner line breaks become spaces, and control
 * characters are escaped.
 * Machine-readable output is not made here; it goes to stdout and belongs to cli. */
#include "base/base.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static _Atomic int lowest_level = LOG_INFO;

static _Atomic(log_sink) taker;
static void *_Atomic taker_context;

void log_set_sink(log_sink sink, void *context) {
    atomic_store(&taker_context, context);
    atomic_store(&taker, sink);
}

void log_set_level(log_level level) { atomic_store_explicit(&lowest_level, (int)level, memory_order_relaxed); }

void log_write(log_level level, const char *fmt, ...) {
    static const char *const prefixes[] = {"debug: ", "", "warning: ", "error: "};
    if ((int)level < atomic_load_explicit(&lowest_level, memory_order_relaxed)) return;

    char text[4096], line[4096];
    size_t start = strlen(prefixes[level]), room = sizeof line - start - 1; /* one byte kept for the line break */
    memcpy(line, prefixes[level], start);
    va_list args;
    va_start(args, fmt);
    int wanted = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (wanted < 0) return;

    size_t n = MIN((size_t)wanted, sizeof text - 1), taken;
    while (n > 0 && text[n - 1] == '\n') n--;
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\n' || text[i] == '\r') text[i] = ' ';
    size_t length = start + text_escape(text, n, false, line + start, room - 1, &taken);
    if (taken < n || (size_t)wanted >= sizeof text) memcpy(line + length - 3, "...", 3); /* say that it was cut */

    int kept_errno = errno; /* callers log between a failed call and the use of errno */
    log_sink sink = atomic_load(&taker);
    if (sink) {
        line[length] = 0;
        sink(atomic_load(&taker_context), level, line + start);
        errno = kept_errno;
        return;
    }
    line[length++] = '\n';
    for (size_t done = 0; done < length;) {
        ssize_t n = write(STDERR_FILENO, line + done, length - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break; /* nowhere left to report it */
        done += (size_t)n;
    }
    errno = kept_errno;
}
