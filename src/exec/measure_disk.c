/* measure_disk.c - how fast large blocks go to a directory's disk and come back.
 *
 * O_DIRECT, because a tier that is larger than memory cannot live in the page cache; where a file system refuses that
 * (tmpfs), through the cache, flushed and dropped as far as the system lets us, and the result says so. The file has no
 * name once it is open: nothing is left behind, however the program ends. */
#define _GNU_SOURCE /* O_DIRECT */
#include "exec/exec_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BLOCK ((size_t)4 << 20)
#define MOST_BLOCKS 64
#define LEAST_BLOCKS 4
#define MOST_SECONDS 2.0
#define PAGE 4096

/* A file of this process alone, without a name. */
static status open_nameless(const char *dir, int *fd, bool *direct) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/.ralo-measure-XXXXXX", dir);
    status rc = OK;
    int plain = mkstemp(path.text);
    if (plain < 0) {
        rc = ERR(ERR_IO, "cannot write in %s to measure its disk: %s; name another directory with --path", dir,
                 strerror(errno));
        goto done;
    }
    *fd = open(path.text, O_RDWR | O_DIRECT | O_CLOEXEC);
    *direct = *fd >= 0;
    if (*direct) close(plain);
    else *fd = plain;
    unlink(path.text);
done:
    strbuf_fini(&path);
    return rc;
}

static status move_blocks(int fd, const char *dir, bool writes, void *buffer, int n_blocks, int *n_done,
                          double *seconds) {
    uint64_t begin = clock_ns();
    int i = 0;
    for (; i < n_blocks && (double)(clock_ns() - begin) * 1e-9 < MOST_SECONDS; i++) {
        size_t at = 0;
        while (at < BLOCK) {
            off_t where = (off_t)((size_t)i * BLOCK + at);
            char *part = (char *)buffer + at;
            ssize_t n = writes ? pwrite(fd, part, BLOCK - at, where) : pread(fd, part, BLOCK - at, where);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0)
                return ERR(ERR_IO, "measuring the disk of %s: %s: %s", dir, writes ? "write" : "read",
                           n < 0 ? strerror(errno) : "the file is shorter than what was written");
            at += (size_t)n;
        }
    }
    if (writes && fsync(fd) != 0) return ERR(ERR_IO, "measuring the disk of %s: fsync: %s", dir, strerror(errno));
    *seconds = (double)(clock_ns() - begin) * 1e-9;
    *n_done = i;
    return OK;
}

status measure_disk(const char *dir, hardware *h, bool *direct) {
    struct statvfs space;
    status rc;
    int fd = -1, n_written, n_read;
    double seconds;
    if (statvfs(dir, &space) != 0)
        return ERR(ERR_IO, "cannot measure the disk of %s: %s; name another directory with --path", dir,
                   strerror(errno));
    double room = (double)space.f_bavail * (double)space.f_frsize / 4; /* leave most of what is free alone */
    int n_blocks = (int)MIN(room / (double)BLOCK, (double)MOST_BLOCKS);
    if (n_blocks < LEAST_BLOCKS)
        return ERR(ERR_IO, "%s has %.0f MiB free, measuring its disk needs %zu; name another directory with --path",
                   dir, room * 4 / (1 << 20), 4 * LEAST_BLOCKS * (BLOCK >> 20));
    void *buffer = NULL;
    if (posix_memalign(&buffer, PAGE, BLOCK) != 0) return ERR(ERR_FIT, "no memory for a block of %zu bytes", BLOCK);
    rng_normal_fill(1, 0, buffer, BLOCK / sizeof(float), 0, 1); /* zeros may be stored as nothing */
    TRY_GOTO(rc, open_nameless(dir, &fd, direct), done);
    TRY_GOTO(rc, move_blocks(fd, dir, true, buffer, n_blocks, &n_written, &seconds), done);
    h->disk_write = (double)n_written * (double)BLOCK / seconds;
    if (!*direct) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* advice: what stays cached makes reads look fast */
    TRY_GOTO(rc, move_blocks(fd, dir, false, buffer, n_written, &n_read, &seconds), done);
    h->disk_read = (double)n_read * (double)BLOCK / seconds;
done:
    if (fd >= 0) close(fd);
    free(buffer);
    return rc;
}
