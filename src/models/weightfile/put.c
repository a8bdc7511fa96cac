/* put.c - bytes at their places in a file whose size is known before. */
#define _GNU_SOURCE 1 /* fallocate */
#include "weightfile/put.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

status put_at(int fd, const char *path, const void *data, size_t n_bytes, uint64_t offset) {
    const char *p = data;
    while (n_bytes > 0) {
        ssize_t n = pwrite(fd, p, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return ERR(ERR_IO, "write %zu bytes at %llu of %s: %s", n_bytes, (unsigned long long)offset, path,
                       strerror(errno));
        p += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return OK;
}

status put_reserve(int fd, const char *path, uint64_t n_bytes) {
    int rc;
    do {
        rc = fallocate(fd, 0, 0, (off_t)n_bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) return OK;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return ERR(ERR_IO, "reserve %lld bytes for %s: %s", (long long)n_bytes, path, strerror(errno));
    /* This file system cannot reserve; a full disk is then found by a later write. */
    if (ftruncate(fd, (off_t)n_bytes) != 0)
        return ERR(ERR_IO, "extend %s to %lld bytes: %s", path, (long long)n_bytes, strerror(errno));
    return OK;
}
