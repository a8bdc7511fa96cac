/* console.c - the program's stdout and stderr, with control characters escaped.
 *
 * Names of files and tensors, settings and machine descriptions come from anyone, and many functions of several rooms
 * print them. So the streams escape, not the callers: stdout and stderr are replaced, once, by streams that pass
 * everything through text_escape. (The C library allows that: they are variables.) A character that is split over two
 * writes is held until it is complete.
 * Generated text may be anything: it is written unchanged if stdout is not a terminal. */
#define _GNU_SOURCE 1 /* fopencookie */
#include "cli/console.h"
#include "base/base.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef struct console {
    int fd;
    bool raw;     /* for a moment: bytes pass as they are */
    char held[4]; /* the beginning of a character */
    size_t n_held;
} console;

static console out = {.fd = STDOUT_FILENO}, err = {.fd = STDERR_FILENO};

static bool write_all(int fd, const char *text, size_t n_bytes) {
    while (n_bytes > 0) {
        ssize_t n = write(fd, text, n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

static bool write_escaped(console *c, const char *text, size_t n_bytes, bool more) {
    char shown[4096];
    size_t taken = 1;
    for (size_t at = 0; at < n_bytes && taken > 0; at += taken) {
        size_t n = text_escape(text + at, n_bytes - at, more, shown, sizeof shown, &taken);
        if (!write_all(c->fd, shown, n)) return false;
        if (taken > 0) continue;
        c->n_held = n_bytes - at; /* at most three bytes: no character is longer */
        memcpy(c->held, text + at, c->n_held);
    }
    return true;
}

/* Completes the held character with as many bytes as it needs; invalid bytes are escaped. */
static ssize_t write_stream(void *context, const char *text, size_t n_bytes) {
    console *c = context;
    if (c->raw) return write_all(c->fd, text, n_bytes) ? (ssize_t)n_bytes : 0;
    size_t at = 0;
    while (c->n_held > 0 && at < n_bytes) {
        char first[sizeof c->held];
        size_t n = c->n_held;
        memcpy(first, c->held, n);
        first[n++] = text[at++];
        c->n_held = 0;
        if (!write_escaped(c, first, n, true)) return 0;
    }
    return write_escaped(c, text + at, n_bytes - at, true) ? (ssize_t)n_bytes : 0;
}

static FILE *stream_open(console *c, int mode) {
    FILE *f = fopencookie(c, "w", (cookie_io_functions_t){.write = write_stream});
    if (!f) mem_refused(BUFSIZ);
    setvbuf(f, NULL, mode, 0);
    return f;
}

void console_open(void) {
    stdout = stream_open(&out, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    stderr = stream_open(&err, _IONBF);
}

static void drop_held(console *c) {
    size_t n = c->n_held;
    c->n_held = 0;
    write_escaped(c, c->held, n, false);
}

void console_finish(void) {
    drop_held(&out);
    drop_held(&err);
}

void console_write_text(const char *text, size_t n_bytes) {
    fflush(stdout);
    out.raw = !isatty(STDOUT_FILENO);
    fwrite(text, 1, n_bytes, stdout);
    fflush(stdout);
    out.raw = false;
}

void console_redraw(const char *line, bool last) {
    err.raw = true;
    fprintf(stderr, "\r%s%s", line, last ? "\n" : "");
    err.raw = false;
}
