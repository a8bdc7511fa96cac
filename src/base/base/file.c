/* file.c - read and write whole files, make and remove directories, ask for free space.
 *
 * Files may come from anyone: only regular files are opened for reading, the caller limits the size of a read, and
 * removing a directory never follows a symbolic link, not even one that is swapped in meanwhile (every step is relative
 * to an open directory).
 * A write goes to a temporary name in the same directory, is flushed, and is renamed over the target: a reader sees the
 * old content or the new one, also after a crash. A failed write removes its temporary file.
 * Big files (weights, token shards) are not read here; their formats map or stream them. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- opening -------------------------------------------------------------------------------------------------- */

static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    if (S_ISLNK(mode)) return "a link";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

static status check_regular(const struct stat *st, const char *path) {
    if (S_ISREG(st->st_mode)) return OK;
    return ERR(ERR_INPUT, "%s is %s, expected a regular file", path, kind_of(st->st_mode));
}

/* A descriptor that this program inherited when it started. */
static bool is_own_descriptor(const char *path) {
    return strcmp(path, "/dev/stdin") == 0 || str_starts_with(path, "/dev/fd/");
}

/* The file is checked before it is opened, because opening a device can have effects, and again when it is open: the
 * name may stand for something else by then. O_NONBLOCK is for a pipe that appears in between. */
static status open_regular(int dir, const char *name, const char *shown, int flags, int *fd, struct stat *st) {
    status rc;
    if (fstatat(dir, name, st, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0) != 0)
        return ERR(ERR_IO, "open %s: %s", shown, strerror(errno));
    TRY(check_regular(st, shown));
    if ((*fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags)) < 0)
        return ERR(ERR_IO, "open %s: %s", shown, strerror(errno));
    if (fstat(*fd, st) != 0) rc = ERR(ERR_IO, "stat %s: %s", shown, strerror(errno));
    else rc = check_regular(st, shown);
    if (rc == OK && fcntl(*fd, F_SETFL, 0) != 0) rc = ERR(ERR_IO, "open %s: %s", shown, strerror(errno));
    if (rc == OK) return OK;
    close(*fd);
    *fd = -1;
    return rc;
}

status file_open(const char *path, int *fd) {
    struct stat st;
    *fd = -1;
    if (!is_own_descriptor(path)) return open_regular(AT_FDCWD, path, path, 0, fd, &st);
    if ((*fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) return ERR(ERR_IO, "open %s: %s", path, strerror(errno));
    if (fstat(*fd, &st) != 0 || !S_ISDIR(st.st_mode)) return OK;
    close(*fd);
    *fd = -1;
    return check_regular(&st, path);
}

status file_open_at(int dir, const char *name, const char *shown, int *fd, uint64_t *n_bytes) {
    struct stat st;
    *fd = -1;
    TRY(open_regular(dir, name, shown, O_NOFOLLOW, fd, &st));
    *n_bytes = (uint64_t)st.st_size;
    return OK;
}

/* ---- whole files ---------------------------------------------------------------------------------------------- */

static status read_to_end(int fd, const char *path, size_t size_hint, size_t max_bytes, char **out, size_t *n_bytes) {
    /* Files under /proc and pipes report size 0, and a file may grow while we read: trust only what arrives. */
    size_t capacity = MAX(MIN(size_hint, max_bytes), (size_t)4095) + 1, length = 0;
    char *text = malloc(capacity + 1);
    if (!text) return ERR(ERR_RUN, "read %s: no memory for %zu bytes", path, capacity);
    for (;;) {
        if (length == capacity) {
            size_t grown = capacity * 2;
            char *more = realloc(text, grown + 1);
            if (!more) {
                free(text);
                return ERR(ERR_RUN, "read %s: no memory for %zu bytes", path, grown);
            }
            text = more;
            capacity = grown;
        }
        ssize_t n = read(fd, text + length, capacity - length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            int why = errno;
            free(text);
            return ERR(ERR_IO, "read %s: %s", path, strerror(why));
        }
        if (n == 0) break;
        length += (size_t)n;
        if (length > max_bytes) {
            free(text);
            return ERR(ERR_INPUT, "%s is larger than the %zu bytes allowed for this kind of file", path, max_bytes);
        }
    }
    text[length] = 0;
    *out = text;
    *n_bytes = length;
    return OK;
}

status file_read_fd(int fd, const char *shown, size_t max_bytes, char **out, size_t *n_bytes) {
    struct stat st;
    if (fstat(fd, &st) != 0) return ERR(ERR_IO, "stat %s: %s", shown, strerror(errno));
    return read_to_end(fd, shown, S_ISREG(st.st_mode) ? (size_t)st.st_size : 0, max_bytes, out, n_bytes);
}

status file_read_all(const char *path, size_t max_bytes, char **out, size_t *n_bytes) {
    *out = NULL;
    *n_bytes = 0;
    int fd;
    struct stat st;
    status rc = OK;
    TRY(file_open(path, &fd));
    if (fstat(fd, &st) != 0) rc = ERR(ERR_IO, "stat %s: %s", path, strerror(errno));
    else if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > max_bytes)
        rc = ERR(ERR_INPUT, "%s has %lld bytes, at most %zu are allowed for this kind of file", path,
                 (long long)st.st_size, max_bytes);
    else
        TRY_GOTO(rc, read_to_end(fd, path, S_ISREG(st.st_mode) ? (size_t)st.st_size : 0, max_bytes, out, n_bytes),
                 done);
done:
    close(fd);
    return rc;
}

static status write_all(int fd, const char *path, const char *text, size_t n_bytes) {
    while (n_bytes > 0) {
        ssize_t n = write(fd, text, n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ERR(ERR_IO, "write %s: %s (%zu bytes were left)", path, strerror(errno), n_bytes);
        text += n;
        n_bytes -= (size_t)n;
    }
    return OK;
}

status dir_sync(const char *path) {
    status rc = OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ERR(ERR_IO, "open directory %s: %s", path, strerror(errno));
    if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: this file system keeps no directory to flush */
        rc = ERR(ERR_IO, "fsync directory %s: %s", path, strerror(errno));
    close(fd);
    return rc;
}

/* A rename is on disk only when its directory is. */
static status parent_sync(const char *path) {
    const char *slash = strrchr(path, '/');
    size_t length = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    strbuf dir;
    strbuf_init(&dir);
    strbuf_add_bytes(&dir, length ? path : ".", length ? length : 1);
    status rc = dir_sync(dir.text);
    strbuf_fini(&dir);
    return rc;
}

static status write_and_close(int fd, const char *path, const char *text, size_t n_bytes) {
    status rc = write_all(fd, path, text, n_bytes);
    if (rc == OK && fsync(fd) != 0) rc = ERR(ERR_IO, "fsync %s: %s", path, strerror(errno));
    if (close(fd) != 0 && rc == OK) /* network file systems report a full disk here */
        rc = ERR(ERR_IO, "close %s: %s", path, strerror(errno));
    return rc;
}

status file_write_new(const char *path, const char *text, size_t n_bytes) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return ERR(ERR_IO, "create %s: %s", path, strerror(errno));
    return write_and_close(fd, path, text, n_bytes);
}

/* A device or a pipe of that name (/dev/null, /dev/stdout) is written to: a file renamed over it would take it away
 * from every other program. */
static bool is_special(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

static status write_special(const char *path, const char *text, size_t n_bytes) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return ERR(ERR_IO, "open %s: %s", path, strerror(errno));
    status rc = write_all(fd, path, text, n_bytes);
    if (close(fd) != 0 && rc == OK) rc = ERR(ERR_IO, "close %s: %s", path, strerror(errno));
    return rc;
}

status file_write_whole(const char *path, const char *text, size_t n_bytes) {
    return is_special(path) ? write_special(path, text, n_bytes) : file_replace(path, text, n_bytes);
}

status file_replace(const char *path, const char *text, size_t n_bytes) {
    status rc;
    int fd;
    strbuf temporary;
    strbuf_init(&temporary);
    TRY_GOTO(rc, temporary_make(path, false, &temporary, &fd), done);
    /* A close that fails must be seen before the rename, and the lock must last beyond it. */
    int lock = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    rc = write_and_close(fd, path, text, n_bytes);
    if (rc == OK && rename(temporary.text, path) != 0)
        rc = ERR(ERR_IO, "rename %s to %s: %s", temporary.text, path, strerror(errno));
    if (rc == OK) rc = parent_sync(path);
    else unlink(temporary.text);
    if (lock >= 0) close(lock);
done:
    strbuf_fini(&temporary);
    return rc;
}

/* Fails only for lack of memory. The output is then incomplete, even if closing succeeds. */
FILE *memstream_open(memstream *m) {
    *m = (memstream){0};
    m->out = open_memstream(&m->text, &m->n_bytes);
    if (!m->out) mem_refused(BUFSIZ);
    return m->out;
}

char *memstream_take(memstream *m) {
    bool failed = ferror(m->out);
    if (fclose(m->out) != 0 || failed) mem_refused(m->n_bytes + BUFSIZ);
    return m->text;
}

status memstream_save(memstream *m, const char *path) {
    char *text = memstream_take(m);
    status rc = file_write_whole(path, text, m->n_bytes);
    free(text);
    return rc;
}

static status dir_make_one(const char *path) {
    struct stat st;
    if (mkdir(path, 0777) == 0) return OK;
    int why = errno;
    if (stat(path, &st) == 0) { /* EEXIST, but also EROFS or EACCES on a parent that is already there */
        if (S_ISDIR(st.st_mode)) return OK;
        return ERR(ERR_IO, "make directory %s: a file with that name is in the way", path);
    }
    return ERR(ERR_IO, "make directory %s: %s", path, strerror(why));
}

status dir_make(const char *path) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0) return ERR(ERR_INPUT, "make directory: the path is empty");
    if (n >= sizeof part) return ERR(ERR_INPUT, "make directory: a path of %zu characters is too long", n);
    memcpy(part, path, n + 1);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/' || p[-1] == '/') continue;
        *p = 0;
        TRY(dir_make_one(part));
        *p = '/';
    }
    TRY(dir_make_one(part));
    return OK;
}

/* Removes `name` inside the open directory `parent`; `shown` is the path the caller gave, for messages. */
static status remove_entry(int parent, const char *name, const char *shown) {
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return OK;
        return ERR(ERR_IO, "remove %s: stat %s: %s", shown, name, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode)) {
        if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return OK;
        return ERR(ERR_IO, "remove %s: unlink %s: %s", shown, name, strerror(errno));
    }
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return ERR(ERR_IO, "remove %s: open directory %s: %s", shown, name, strerror(errno));
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int why = errno;
        close(fd);
        return ERR(ERR_IO, "remove %s: read directory %s: %s", shown, name, strerror(why));
    }
    status rc = OK;
    int n_removed;
    do { /* removing may hide entries from a running readdir, so walk again until a walk finds nothing */
        n_removed = 0;
        rewinddir(dir);
        for (struct dirent *e; (e = readdir(dir));) {
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
            TRY_GOTO(rc, remove_entry(fd, e->d_name, shown), done);
            n_removed++;
        }
    } while (n_removed > 0);
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        rc = ERR(ERR_IO, "remove %s: remove directory %s: %s", shown, name, strerror(errno));
done:
    closedir(dir);
    return rc;
}

status dir_remove_all(const char *path) {
    char trimmed[PATH_MAX];
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/') n--; /* "link/" would name what the link points to */
    if (n >= sizeof trimmed) return ERR(ERR_INPUT, "remove: a path of %zu characters is too long", n);
    memcpy(trimmed, path, n);
    trimmed[n] = 0;
    const char *slash = strrchr(trimmed, '/'), *last = slash ? slash + 1 : trimmed;
    if (n == 0 || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return ERR(ERR_INPUT, "remove '%s': refused, the path must name a directory of its own", path);
    TRY(remove_entry(AT_FDCWD, trimmed, path));
    return OK;
}

/* ---- room ---------------------------------------------------------------------------------------------------- */

void dir_nearest(const char *path, strbuf *out) {
    strbuf_add(out, path);
    while (access(out->text, F_OK) != 0) {
        char *slash = strrchr(out->text, '/');
        out->length = slash ? (size_t)(slash - out->text) : 0;
        if (out->length == 0) {
            strbuf_add(out, slash ? "/" : ".");
            return;
        }
        *slash = 0;
    }
}

bool dir_space_get(const char *path, dir_space *out) {
    struct statvfs v;
    struct stat s;
    if (statvfs(path, &v) != 0 || stat(path, &s) != 0) return false;
    uint64_t reserve = v.f_bfree > v.f_bavail && geteuid() == 0 ? v.f_bfree - v.f_bavail : 0;
    *out = (dir_space){.total = (uint64_t)v.f_blocks * v.f_frsize,
                       .free = (uint64_t)v.f_bavail * v.f_frsize,
                       .reserve = reserve * v.f_frsize,
                       .file_system = s.st_dev};
    return true;
}

bool dir_holds(const char *dir, const char *name) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s", dir, name);
    bool found = access(path.text, F_OK) == 0;
    strbuf_fini(&path);
    return found;
}
