/* trace.c - one complete event per op, kept in memory while a section runs and written between sections.
 *
 * While ops run an event is three words in a buffer allocated at open; text is made only between sections, so tracing
 * costs three stores per op.
 *
 * The file is valid JSON at every moment, also when the run is killed: the closing brackets are at its end from the
 * start, with blanks before them, and events overwrite blanks. A kill can split a write only between two pages, so no
 * write crosses one. When the blanks are used up the file is replaced by a copy twice as long; closing copies it once
 * more without the blanks.
 *
 * A full disk ends the trace with a warning; what was traced so far stays readable and the run continues. */
#include "exec/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char header[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
/* The last element of the list has no comma after it: a fixed one stands there, events come before. */
static const char footer[] = "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"ralo\"}}\n]}\n";

enum {
    PAGE_BYTES = 4096,
    NAME_BYTES = 96,
    EVENT_BYTES = 512, /* the longest event is about 420 */
    COPY_BYTES = 64 << 10,
    FIRST_LIMIT = 256 << 10,
    MIN_CAPACITY = 16384,
    DUE_EVENTS = 8192,
};
#define DUE_NS 1000000000u

static bool write_at(int fd, const char *text, size_t n, uint64_t offset) {
    while (n > 0) {
        ssize_t written = pwrite(fd, text, n, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text += written, n -= (size_t)written, offset += (uint64_t)written;
    }
    return true;
}

/* Header, events so far, blanks up to `limit`, footer. */
static bool fill_copy(const trace *t, int fd, uint64_t limit) {
    char *chunk = mem_alloc(COPY_BYTES);
    bool good = true;
    for (uint64_t at = 0; at < limit && good;) {
        bool copy = t->fd >= 0 && at < t->tail;
        size_t n = (size_t)MIN((uint64_t)COPY_BYTES, (copy ? t->tail : limit) - at);
        if (copy) {
            ssize_t got = pread(t->fd, chunk, n, (off_t)at);
            good = got > 0;
            n = good ? (size_t)got : 0;
        } else {
            memset(chunk, ' ', n);
        }
        good = good && write_at(fd, chunk, n, at);
        at += n;
    }
    free(chunk);
    return good && write_at(fd, header, sizeof header - 1, 0) && write_at(fd, footer, sizeof footer - 1, limit);
}

/* Replaces the file by a copy that ends at `limit`. The old file stays as it is if that fails. */
static bool replace_file(trace *t, uint64_t limit) {
    unlink(t->partial_path); /* left by a process that was killed; a link there is not followed either */
    int fd = open(t->partial_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    if (!fill_copy(t, fd, limit) || rename(t->partial_path, t->path) != 0) {
        int why = errno;
        close(fd);
        unlink(t->partial_path);
        errno = why;
        return false;
    }
    if (t->fd >= 0) close(t->fd);
    t->fd = fd;
    t->limit = limit;
    return true;
}

static void give_up(trace *t) {
    log_warn("trace %s: %s; the trace ends here, the run goes on", t->path, strerror(errno));
    close(t->fd);
    t->fd = -1;
}

/* Writes text of at most a page so that no write crosses a page; the rest of a page that is too short stays blank. */
static void append(trace *t, const char *text, size_t n) {
    uint64_t at = t->tail;
    if (at % PAGE_BYTES + n > PAGE_BYTES) at += PAGE_BYTES - at % PAGE_BYTES;
    if (at + n > t->limit && !replace_file(t, t->limit * 2)) {
        give_up(t);
        return;
    }
    if (!write_at(t->fd, text, n, at)) {
        give_up(t);
        return;
    }
    t->tail = at + n;
}

/* Names come from builders and weight files; whatever JSON would want escaped becomes '_', and long ones are cut. */
static void plain_name(char out[NAME_BYTES], const char *name) {
    size_t n = 0;
    for (; name[n] && n < NAME_BYTES - 1; n++)
        out[n] = name[n] < ' ' || name[n] > '~' || name[n] == '"' || name[n] == '\\' ? '_' : name[n];
    out[n] = 0;
}

static size_t format_event(const trace *t, const trace_event *event, char *out) {
    const program *p = t->program;
    const op *o = &p->ops[event->op_index];
    value_id named = op_main_value(o);
    char layer[16] = "null", name[NAME_BYTES] = "";
    if (named) plain_name(name, program_get(p, named)->name);
    if (o->layer >= 0) snprintf(layer, sizeof layer, "%d", o->layer);
    unsigned long long start = event->start_ns - t->origin_ns, length = event->end_ns - event->start_ns;
    /* Times are microseconds in this format. Integers, because printing doubles would be most of the cost. */
    int n = snprintf(out, EVENT_BYTES,
                     "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%llu.%03llu,"
                     "\"dur\":%llu.%03llu,\"args\":{\"op\":%zu,\"section\":\"%s\",\"layer\":%s,\"value\":\"%s\","
                     "\"bytes\":%llu,\"flops\":%llu}},\n",
                     op_name(o->kind), section_name(o->section), (int)o->stream, start / 1000, start % 1000,
                     length / 1000, length % 1000, event->op_index, section_name(o->section), layer, name,
                     (unsigned long long)op_bytes(p, o), (unsigned long long)op_flops(p, o));
    ASSERT(n > 0 && n < EVENT_BYTES);
    return (size_t)n;
}

static void flush(trace *t) {
    char page[PAGE_BYTES], event[EVENT_BYTES];
    size_t n = 0;
    for (size_t i = 0; i < t->n_events && t->fd >= 0; i++) { /* as many events to a write as its page can take */
        size_t n_event = format_event(t, &t->events[i], event);
        if (n > 0 && t->tail % PAGE_BYTES + n + n_event > PAGE_BYTES) {
            append(t, page, n);
            n = 0;
        }
        memcpy(page + n, event, n_event);
        n += n_event;
    }
    if (n > 0 && t->fd >= 0) append(t, page, n);
    t->n_events = 0;
    t->flushed_ns = clock_ns();
}

void trace_reserve(trace *t, size_t n_events) {
    if (t->capacity - t->n_events < n_events) flush(t);
}

void trace_flush_if_due(trace *t) {
    if (t->n_events >= DUE_EVENTS || clock_ns() - t->flushed_ns >= DUE_NS) flush(t);
}

status trace_open(trace **out, const char *path, const program *p, size_t longest_section) {
    struct stat info;
    *out = NULL;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) /* otherwise the rename would replace it, even /dev/null */
        return ERR(ERR_INPUT, "trace: %s is a directory, a device or a pipe, expected a file or a new name", path);
    trace *t = mem_alloc(sizeof *t);
    strbuf partial;
    strbuf_init(&partial);
    strbuf_printf(&partial, "%s.partial", path);
    t->partial_path = strbuf_take(&partial);
    t->path = mem_string(path);
    t->program = p;
    t->fd = -1;
    t->tail = sizeof header - 1;
    t->capacity = MAX(longest_section, (size_t)MIN_CAPACITY);
    t->events = mem_alloc(t->capacity * sizeof *t->events);
    memset(t->events, 0xff, t->capacity * sizeof *t->events); /* touched now, not in the first step */
    t->origin_ns = t->flushed_ns = clock_ns();
    if (!replace_file(t, FIRST_LIMIT)) {
        status rc = ERR(ERR_IO, "trace: write %s: %s", path, strerror(errno));
        trace_close(t);
        return rc;
    }
    char text[EVENT_BYTES];
    for (int s = 0; s < STREAM_COUNT && t->fd >= 0; s++)
        append(t, text,
               (size_t)snprintf(text, sizeof text,
                                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,"
                                "\"args\":{\"name\":\"%s\"}},\n",
                                s, stream_name((stream)s)));
    *out = t;
    return OK;
}

void trace_close(trace *t) {
    if (!t) return;
    if (t->fd >= 0) flush(t);
    if (t->fd >= 0) {
        if (!replace_file(t, t->tail)) log_warn("trace %s: left with blanks at its end: %s", t->path, strerror(errno));
        close(t->fd);
    }
    free(t->path);
    free(t->partial_path);
    free(t->events);
    free(t);
}
