/* tail.c - see tail.h. The file is opened anew for every read: a run that replaces it is noticed, and no file of a finished run stays
 * open for days. */
#include "live/tail.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void tail_init(tail *t, const char *name, uint64_t from_end) { *t = (tail){.name = name, .from_end = from_end}; }

static void restart(tail *t, const struct stat *info) {
    t->device = (uint64_t)info->st_dev, t->inode = (uint64_t)info->st_ino;
    t->begun = true;
    t->n_mark = 0;
    t->offset = 0;
    t->skips = false;
    if (t->from_end && (uint64_t)info->st_size > t->from_end) {
        t->offset = (uint64_t)info->st_size - t->from_end;
        t->skips = true;
    }
}

static bool is_same(const tail *t, int fd, const struct stat *info) {
    char now[TAIL_MARK];
    if (!t->begun || t->device != (uint64_t)info->st_dev || t->inode != (uint64_t)info->st_ino) return false;
    if ((uint64_t)info->st_size < t->offset) return false;
    return pread(fd, now, t->n_mark, (off_t)(t->offset - t->n_mark)) == (ssize_t)t->n_mark &&
           memcmp(now, t->mark, t->n_mark) == 0;
}

static void advance(tail *t, const char *buffer, size_t n) {
    size_t fresh = MIN(n, sizeof t->mark), kept = MIN(t->n_mark, sizeof t->mark - fresh);
    memmove(t->mark, t->mark + t->n_mark - kept, kept);
    memcpy(t->mark + kept, buffer + n - fresh, fresh);
    t->n_mark = kept + fresh;
    t->offset += n;
}

/* Hands out the whole lines of the buffer; how many bytes they have, with what is passed over. */
static size_t hand_out(tail *t, char *buffer, size_t n, tail_line_fn line, void *context) {
    size_t done = 0;
    char *end;
    while ((end = memchr(buffer + done, '\n', n - done))) {
        size_t length = (size_t)(end - (buffer + done));
        *end = 0;
        if (!t->skips && length) line(context, buffer + done, length);
        *end = '\n';
        t->skips = false;
        done += length + 1;
    }
    if (t->skips || (done == 0 && n == TAIL_LINE_MOST)) { /* the rest of a line that is too long */
        t->skips = true;
        done = n;
    }
    return done;
}

bool tail_read(tail *t, int dir, char *buffer, tail_again_fn again, tail_line_fn line, void *context) {
    struct stat info;
    int fd = openat(dir, t->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    bool more = false;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) goto done;
    if (!is_same(t, fd, &info)) {
        bool had_some = t->begun;
        restart(t, &info);
        if (had_some) again(context);
    }
    t->size = (uint64_t)info.st_size;
    if (t->size == t->offset) goto done;
    ssize_t n = pread(fd, buffer, TAIL_LINE_MOST, (off_t)t->offset);
    if (n <= 0) goto done;
    size_t used = hand_out(t, buffer, (size_t)n, line, context);
    if (used) advance(t, buffer, used);
    more = used > 0 && t->offset < t->size;
done:
    close(fd);
    return more;
}
