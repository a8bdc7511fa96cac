/* disk.c - reads and writes of the nvme tier.
 *
 * A transfer is cut into pieces of a megabyte, a queue's length of them in progress at once: one large request leaves most
 * drives half idle. Short transfers continue where they stopped. Where the kernel or the container refuses io_uring the
 * same pieces go one by one through pread and pwrite; where the file system refuses O_DIRECT they go through the page
 * cache. Both are said once, in words, because both cost speed. */
#define _GNU_SOURCE
#include "exec/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

enum { PIECE_BYTES = 1 << 20, QUEUE = 16, BOUNCE_BYTES = 1 << 20 };
#define REGISTERED_BYTES (1ull << 30) /* the kernel takes no larger buffer */
enum { REGISTERED_MAX = 64 };

typedef struct piece {
    char *memory;
    uint64_t offset;
    size_t n_bytes;
} piece;

struct disk {
    int fd;
    uint64_t n_bytes;
    bool direct;
    char *dir;
    char method[96];
    char *bounce; /* for transfers that are not in sectors */
    pthread_mutex_t bounce_lock;
#ifdef HAVE_LIBURING
    bool has_ring;
    struct io_uring rings[DISK_LANES];
    char *registered; /* start of the registered memory; NULL: none */
    size_t registered_bytes;
    piece pieces[DISK_LANES][QUEUE];
    int refused[DISK_LANES]; /* why the kernel takes nothing from this queue any more; 0: it does */
#endif
};

/* ---- open ---------------------------------------------------------------------------------------------------- */

static status check_space(const char *dir, uint64_t needed) {
    dir_space s;
    if (!dir_space_get(dir, &s)) return ERR(ERR_INPUT, "memory.nvme_path %s: %s", dir, strerror(errno));
    char a[32], b[32];
    if (s.total > 0 && s.free < needed)
        return ERR(ERR_FIT, "memory.nvme_path %s has %s free, the plan needs %s there; choose another directory", dir,
                   str_format_bytes(a, s.free), str_format_bytes(b, needed));
    return OK;
}

static status take_space(const disk *d, uint64_t n_bytes) {
    if (fallocate(d->fd, 0, 0, (off_t)n_bytes) == 0) return OK;
    if (errno == EOPNOTSUPP && ftruncate(d->fd, (off_t)n_bytes) == 0) {
        log_warn("memory.nvme_path %s: its file system cannot reserve space; a full disk would stop the run", d->dir);
        return OK;
    }
    char size[32];
    bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    return ERR(full ? ERR_FIT : ERR_IO, "memory.nvme_path %s: cannot take %s: %s%s", d->dir,
               str_format_bytes(size, n_bytes), strerror(errno), full ? "; choose another directory" : "");
}

/* O_DIRECT may be accepted at open and refused at the first transfer. */
static bool direct_works(const disk *d) { return pread(d->fd, d->bounce, NVME_SECTOR, 0) == NVME_SECTOR; }

static int open_unnamed(const char *dir, int flags) {
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/ralo-nvme-%ld", dir, (long)getpid());
    fd = open(path.text, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
    int cause = errno;
    if (fd >= 0 || cause == EINVAL) unlink(path.text); /* Linux refuses O_DIRECT after it has made the file */
    strbuf_fini(&path);
    errno = cause;
    return fd;
}

static status open_file(disk *d, uint64_t n_bytes, bool *direct) {
    for (int attempt = 0; attempt < 2; attempt++) {
        *direct = attempt == 0;
        d->fd = open_unnamed(d->dir, *direct ? O_DIRECT : 0);
        if (d->fd < 0 && *direct && errno == EINVAL) continue;
        if (d->fd < 0) return ERR(ERR_IO, "memory.nvme_path %s: cannot make a file there: %s", d->dir, strerror(errno));
        TRY(take_space(d, n_bytes));
        if (!*direct || direct_works(d)) return OK;
        close(d->fd);
        d->fd = -1;
    }
    return ERR(ERR_IO, "memory.nvme_path %s: cannot make a file there: %s", d->dir, strerror(errno));
}

#ifdef HAVE_LIBURING
static void open_rings(disk *d, void *staging, size_t staging_bytes) {
    for (int i = 0; i < DISK_LANES; i++) {
        if (io_uring_queue_init(QUEUE, &d->rings[i], 0) == 0) continue;
        while (i-- > 0) io_uring_queue_exit(&d->rings[i]);
        return;
    }
    d->has_ring = true;
    struct iovec parts[REGISTERED_MAX];
    int n = 0;
    for (size_t at = 0; at < staging_bytes && n < REGISTERED_MAX; at += REGISTERED_BYTES)
        parts[n++] = (struct iovec){(char *)staging + at, MIN(staging_bytes - at, (size_t)REGISTERED_BYTES)};
    if (n == 0) return;
    for (int i = 0; i < DISK_LANES; i++)
        if (io_uring_register_buffers(&d->rings[i], parts, (unsigned)n) != 0) return; /* RLIMIT_MEMLOCK, most likely */
    d->registered = staging;
    d->registered_bytes = MIN(staging_bytes, (size_t)n * REGISTERED_BYTES);
}
#endif

static status open_bounce(disk *d) {
    void *memory;
    if (posix_memalign(&memory, NVME_SECTOR, BOUNCE_BYTES) != 0)
        return ERR(ERR_FIT, "memory.nvme_path %s: no memory for a buffer of %d bytes", d->dir, BOUNCE_BYTES);
    d->bounce = memory;
    return OK;
}

status disk_open(disk **out, const char *dir, uint64_t n_bytes, void *staging, size_t staging_bytes) {
    status rc = OK;
    disk *d = mem_alloc(sizeof *d);
    bool ring = false, registered = false;
    *out = NULL;
    d->fd = -1;
    d->dir = mem_string(dir);
    d->n_bytes = sectors_up(n_bytes);
    pthread_mutex_init(&d->bounce_lock, NULL);
    TRY_GOTO(rc, open_bounce(d), fail);
    TRY_GOTO(rc, check_space(dir, d->n_bytes), fail);
    TRY_GOTO(rc, open_file(d, d->n_bytes, &d->direct), fail);
#ifdef HAVE_LIBURING
    open_rings(d, staging, staging_bytes);
    ring = d->has_ring;
    registered = d->registered != NULL;
#endif
    snprintf(d->method, sizeof d->method, "%s, %s%s", ring ? "io_uring" : "pread and pwrite",
             d->direct ? "O_DIRECT" : "page cache (no O_DIRECT on this file system)",
             registered ? ", registered buffers" : "");
    *out = d;
    return OK;
fail:
    disk_close(d);
    return rc;
}

void disk_close(disk *d) {
    if (!d) return;
#ifdef HAVE_LIBURING
    for (int i = 0; i < DISK_LANES && d->has_ring; i++) io_uring_queue_exit(&d->rings[i]);
#endif
    if (d->fd >= 0) close(d->fd);
    pthread_mutex_destroy(&d->bounce_lock);
    free(d->bounce);
    free(d->dir);
    free(d);
}

const char *disk_method(const disk *d) { return d->method; }
bool disk_is_direct(const disk *d) { return d->direct; }

status disk_flush(disk *d) {
    if (fsync(d->fd) != 0) return ERR(ERR_IO, "memory.nvme_path %s: fsync: %s", d->dir, strerror(errno));
    posix_fadvise(d->fd, 0, 0, POSIX_FADV_DONTNEED); /* advice */
    return OK;
}

/* ---- transfer ------------------------------------------------------------------------------------------------- */

static status transfer_error(const disk *d, bool write, uint64_t offset, long result) {
    return ERR(ERR_IO, "memory.nvme_path %s: %s at byte %llu: %s", d->dir, write ? "write" : "read",
               (unsigned long long)offset, result == 0 ? "the file ends there" : strerror((int)-result));
}

static status transfer_plain(const disk *d, bool write, char *memory, uint64_t offset, size_t n_bytes) {
    while (n_bytes > 0) {
        size_t n = MIN(n_bytes, (size_t)PIECE_BYTES);
        ssize_t done = write ? pwrite(d->fd, memory, n, (off_t)offset) : pread(d->fd, memory, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return transfer_error(d, write, offset, done < 0 ? -errno : 0);
        memory += done, offset += (uint64_t)done, n_bytes -= (size_t)done;
    }
    return OK;
}

#ifdef HAVE_LIBURING
/* The registered part that holds all of these bytes; -1: none does. */
static int registered_index(const disk *d, const piece *p) {
    if (!d->registered || p->memory < d->registered || p->memory + p->n_bytes > d->registered + d->registered_bytes)
        return -1;
    size_t first = (size_t)(p->memory - d->registered) / REGISTERED_BYTES;
    size_t last = (size_t)(p->memory + p->n_bytes - 1 - d->registered) / REGISTERED_BYTES;
    return first == last ? (int)first : -1;
}

static void submit_piece(disk *d, disk_lane lane, bool write, int slot) {
    piece *p = &d->pieces[lane][slot];
    struct io_uring_sqe *e = io_uring_get_sqe(&d->rings[lane]);
    ASSERT(e); /* never more pieces in progress than the queue is long */
    int index = registered_index(d, p);
    unsigned n = (unsigned)p->n_bytes;
    if (index >= 0 && write) io_uring_prep_write_fixed(e, d->fd, p->memory, n, p->offset, index);
    else if (index >= 0) io_uring_prep_read_fixed(e, d->fd, p->memory, n, p->offset, index);
    else if (write) io_uring_prep_write(e, d->fd, p->memory, n, p->offset);
    else io_uring_prep_read(e, d->fd, p->memory, n, p->offset);
    io_uring_sqe_set_data64(e, (unsigned long long)slot);
}

/* A queue that the kernel refuses still holds the pieces that it did not take: whatever came after them would be counted
 * wrong, so nothing does. */
static status transfer_ring(disk *d, disk_lane lane, bool write, char *memory, uint64_t offset, size_t n_bytes) {
    struct io_uring *ring = &d->rings[lane];
    status rc = OK;
    if (d->refused[lane]) return transfer_error(d, write, offset, d->refused[lane]);
    int under_way = 0, free_slots[QUEUE], n_free = QUEUE;
    for (int i = 0; i < QUEUE; i++) free_slots[i] = i;
    while (under_way > 0 || (n_bytes > 0 && rc == OK)) {
        for (; n_bytes > 0 && rc == OK && n_free > 0; under_way++) {
            int slot = free_slots[--n_free];
            size_t n = MIN(n_bytes, (size_t)PIECE_BYTES);
            d->pieces[lane][slot] = (piece){memory, offset, n};
            submit_piece(d, lane, write, slot);
            memory += n, offset += n, n_bytes -= n;
        }
        int submitted = io_uring_submit_and_wait(ring, 1);
        if (submitted < 0 && submitted != -EINTR) {
            d->refused[lane] = submitted;
            return transfer_error(d, write, offset, submitted);
        }
        struct io_uring_cqe *c;
        while (io_uring_peek_cqe(ring, &c) == 0) { /* an error lets the others finish: they write into our memory */
            int slot = (int)io_uring_cqe_get_data64(c), result = c->res;
            piece *p = &d->pieces[lane][slot];
            io_uring_cqe_seen(ring, c);
            if (result <= 0 && result != -EINTR && result != -EAGAIN) {
                if (rc == OK) rc = transfer_error(d, write, p->offset, result);
            } else {
                size_t done = result > 0 ? (size_t)result : 0;
                *p = (piece){p->memory + done, p->offset + done, p->n_bytes - done};
                if (p->n_bytes > 0 && rc == OK) {
                    submit_piece(d, lane, write, slot);
                    continue;
                }
            }
            free_slots[n_free++] = slot;
            under_way--;
        }
    }
    return rc;
}
#endif

static status transfer(disk *d, disk_lane lane, bool write, char *memory, uint64_t offset, size_t n_bytes) {
    n_bytes = sectors_up(n_bytes);
    ASSERT(offset % NVME_SECTOR == 0 && (uintptr_t)memory % NVME_SECTOR == 0 && offset + n_bytes <= d->n_bytes);
#ifdef HAVE_LIBURING
    if (d->has_ring) return transfer_ring(d, lane, write, memory, offset, n_bytes);
#endif
    return transfer_plain(d, write, memory, offset, n_bytes);
}

status disk_read(disk *d, disk_lane lane, void *memory, uint64_t offset, size_t n_bytes) {
    return transfer(d, lane, false, memory, offset, n_bytes);
}

status disk_write(disk *d, disk_lane lane, const void *memory, uint64_t offset, size_t n_bytes) {
    return transfer(d, lane, true, (char *)memory, offset, n_bytes);
}

/* ---- any bytes ------------------------------------------------------------------------------------------------ */

/* Through the bounce buffer, sector by sector: a part of a sector is read, changed and written back. */
static status bytes_locked(disk *d, bool write, char *memory, uint64_t offset, size_t n_bytes) {
    while (n_bytes > 0) {
        uint64_t first = offset / NVME_SECTOR * NVME_SECTOR;
        size_t inside = (size_t)(offset - first), n = MIN(n_bytes, BOUNCE_BYTES - inside);
        size_t whole = sectors_up(inside + n);
        bool partial = inside != 0 || whole != inside + n;
        if (!write || partial) TRY(transfer_plain(d, false, d->bounce, first, whole));
        if (write) {
            memcpy(d->bounce + inside, memory, n);
            TRY(transfer_plain(d, true, d->bounce, first, whole));
        } else {
            memcpy(memory, d->bounce + inside, n);
        }
        memory += n, offset += n, n_bytes -= n;
    }
    return OK;
}

static status bytes(disk *d, bool write, char *memory, uint64_t offset, size_t n_bytes) {
    ASSERT(offset <= d->n_bytes && n_bytes <= d->n_bytes - offset);
    pthread_mutex_lock(&d->bounce_lock);
    status rc = bytes_locked(d, write, memory, offset, n_bytes);
    pthread_mutex_unlock(&d->bounce_lock);
    return rc;
}

status disk_read_bytes(disk *d, void *memory, uint64_t offset, size_t n_bytes) {
    return bytes(d, false, memory, offset, n_bytes);
}

status disk_write_bytes(disk *d, const void *memory, uint64_t offset, size_t n_bytes) {
    return bytes(d, true, (char *)memory, offset, n_bytes);
}
