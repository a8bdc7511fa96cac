/* sink_queue.c - a queue of lines in a file.
 *
 * On disk from the start, not only when memory is full: the lines are written once per batch into the page cache, as metrics.jsonl is,
 * and a run that is killed loses none. The file is locked while it is open, so that `ralo track sync` does not send what a running
 * process sends too. A link of that name is not followed: a run directory may come from anyone. */
#include "track/sink_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char *path_make(const char *run_dir, const char *sink) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/track/%s.pending", run_dir, sink);
    return strbuf_take(&path);
}

/* The end of the last whole line: a killed writer may have left half of one. */
static status find_whole(int fd, const char *path, off_t size, off_t *whole) {
    char chunk[4096];
    for (*whole = size; *whole > 0;) {
        size_t want = (size_t)MIN(*whole, (off_t)sizeof chunk), keep = want;
        if (pread(fd, chunk, want, *whole - (off_t)want) != (ssize_t)want)
            return ERR(ERR_IO, "read %s: %s", path, strerror(errno));
        while (keep > 0 && chunk[keep - 1] != '\n') keep--;
        *whole -= (off_t)(want - keep);
        if (keep > 0) return OK;
    }
    return OK;
}

/* False: it was removed by its last owner between our open and our lock. */
static bool is_at_path(const sink_queue *q, const struct stat *open) {
    struct stat now;
    return lstat(q->path, &now) == 0 && now.st_dev == open->st_dev && now.st_ino == open->st_ino;
}

static status open_file(sink_queue *q) {
    struct stat info;
    q->fd = open(q->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (q->fd < 0)
        return ERR(ERR_IO, "open %s: %s", q->path,
                   errno == ELOOP ? "it is a link, expected a file; remove the link" : strerror(errno));
    if (fstat(q->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return ERR(ERR_INPUT, "%s is a pipe or a device, expected a file; remove it", q->path);
    if (flock(q->fd, LOCK_EX | LOCK_NB) != 0)
        return ERR(ERR_INPUT, "%s is being sent by another process; wait until it has ended", q->path);
    if (fstat(q->fd, &info) != 0 || !is_at_path(q, &info)) {
        close(q->fd);
        return open_file(q);
    }
    TRY(find_whole(q->fd, q->path, info.st_size, &q->written));
    if (q->written < info.st_size && ftruncate(q->fd, q->written) != 0)
        return ERR(ERR_IO, "remove the incomplete last line of %s: %s", q->path, strerror(errno));
    return OK;
}

status sink_queue_open(sink_queue *q, const char *run_dir, const char *sink) {
    *q = (sink_queue){.path = path_make(run_dir, sink), .fd = -1};
    strbuf dir;
    strbuf_init(&dir);
    strbuf_printf(&dir, "%s/track", run_dir);
    status rc = dir_make(dir.text);
    strbuf_fini(&dir);
    if (rc == OK) rc = open_file(q);
    if (rc != OK) {
        if (q->fd >= 0) close(q->fd);
        free(q->path);
        return rc;
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&q->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return OK;
}

void sink_queue_close(sink_queue *q) {
    if (q->written == 0) unlink(q->path); /* under its lock */
    close(q->fd);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q->path);
}

status sink_queue_put(sink_queue *q, const char *lines, size_t n_bytes) {
    status rc = OK;
    size_t done = 0;
    pthread_mutex_lock(&q->lock);
    while (done < n_bytes && rc == OK) {
        ssize_t n = write(q->fd, lines + done, n_bytes - done);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            rc = ERR(ERR_IO, "write %s: %s", q->path, n < 0 ? strerror(errno) : "nothing was written");
    }
    if (rc == OK) q->written += (off_t)n_bytes;
    else if (ftruncate(q->fd, q->written) != 0) rc = ERR(ERR_IO, "%s may hold an incomplete line", q->path);
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

/* Moves behind the next line break. */
static status skip_line(sink_queue *q, off_t from, off_t end, char *buffer, size_t size) {
    for (off_t at = from; at < end;) {
        ssize_t n = pread(q->fd, buffer, MIN(size, (size_t)(end - at)), at);
        if (n <= 0) return ERR(ERR_IO, "read %s: %s", q->path, n < 0 ? strerror(errno) : "it was cut");
        const char *stop = memchr(buffer, '\n', (size_t)n);
        at += stop ? stop - buffer + 1 : n;
        if (stop || at >= end) {
            sink_queue_drop(q, (size_t)(at - from));
            return OK;
        }
    }
    return OK;
}

status sink_queue_peek(sink_queue *q, char *out, size_t size, size_t *n_bytes, uint64_t *n_skipped) {
    *n_bytes = 0;
    for (;;) {
        pthread_mutex_lock(&q->lock);
        off_t from = q->taken, end = q->written;
        pthread_mutex_unlock(&q->lock);
        if (from == end) return OK;
        ssize_t n = pread(q->fd, out, MIN(size, (size_t)(end - from)), from);
        if (n <= 0) return ERR(ERR_IO, "read %s: %s", q->path, n < 0 ? strerror(errno) : "it was cut");
        while (n > 0 && out[n - 1] != '\n') n--;
        *n_bytes = (size_t)n;
        if (n > 0) return OK;
        ++*n_skipped;
        TRY(skip_line(q, from, end, out, size));
    }
}

void sink_queue_drop(sink_queue *q, size_t n_bytes) {
    pthread_mutex_lock(&q->lock);
    q->taken += (off_t)n_bytes;
    if (q->taken == q->written && ftruncate(q->fd, 0) == 0) q->taken = q->written = 0;
    pthread_mutex_unlock(&q->lock);
}

bool sink_queue_is_empty(sink_queue *q) {
    pthread_mutex_lock(&q->lock);
    bool empty = q->taken == q->written;
    pthread_mutex_unlock(&q->lock);
    return empty;
}

uint64_t sink_queue_count(sink_queue *q) {
    pthread_mutex_lock(&q->lock);
    off_t at = q->taken, end = q->written;
    pthread_mutex_unlock(&q->lock);
    char chunk[65536];
    uint64_t n_lines = 0;
    ssize_t n;
    for (; at < end && (n = pread(q->fd, chunk, MIN(sizeof chunk, (size_t)(end - at)), at)) > 0; at += n)
        for (ssize_t i = 0; i < n; i++) n_lines += chunk[i] == '\n';
    return n_lines;
}

bool sink_queue_has_lines(const char *run_dir, const char *sink) {
    struct stat info;
    char *path = path_make(run_dir, sink);
    bool has = lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
    free(path);
    return has;
}
