/* temporary.c - files that are written beside PATH, as PATH.tmp.<pid>.<n>, and renamed to PATH when complete.
 *
 * The writer holds a lock (flock) on the file, which ends with the process however it dies. So the next writer of the
 * same PATH can tell files of a killed writer from files in use, also in another container, and removes them. On a file
 * system without locks nothing is removed.
 * A file is opened for reading and writing; a directory is made and opened. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define INFIX ".tmp."

/* Does an entry's name continue `base` as a temporary one would? */
static bool is_temporary(const char *name, const char *base) {
    if (!str_starts_with(name, base)) return false;
    const char *tail = name + strlen(base);
    if (!str_starts_with(tail, INFIX)) return false;
    tail += strlen(INFIX);
    size_t pid = strspn(tail, "0123456789");
    if (pid == 0 || tail[pid] != '.') return false;
    tail += pid + 1;
    size_t n = strspn(tail, "0123456789");
    return n > 0 && tail[n] == 0;
}

/* A writer may be between making and locking: temporary_make sees that its own is gone and makes another. */
static void remove_if_dead(const char *path, bool directory) {
    struct stat st;
    if (lstat(path, &st) != 0 || (directory ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        log_debug("removing %s, left by a writer that did not finish", path);
        if (!directory) unlink(path);
        else if (dir_remove_all(path) != OK) error_clear();
    }
    close(fd);
}

static void remove_dead(const char *path, bool directory) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    strbuf name;
    strbuf_init(&name);
    strbuf_add_bytes(&name, slash ? path : "./", slash ? (size_t)(base - path) : 2);
    size_t length = name.length;
    DIR *d = opendir(name.text);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!is_temporary(e->d_name, base)) continue;
        name.length = length;
        strbuf_add(&name, e->d_name);
        remove_if_dead(name.text, directory);
    }
    if (d) closedir(d);
    strbuf_fini(&name);
}

static int make_one(const char *name, bool directory) {
    if (!directory) return open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (mkdir(name, 0777) != 0) return -1;
    int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) errno = EEXIST; /* another took it for a dead writer's: the next name is tried */
    return fd;
}

/* The file is locked and still has its name. If another process holds the lock, it is about to be removed; on a file
 * system without locks nothing is removed. */
static bool is_ours(int fd, const char *name) {
    struct stat mine, there;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return fstat(fd, &mine) == 0 && lstat(name, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

status temporary_make(const char *path, bool directory, strbuf *name, int *fd) {
    static atomic_uint counter; /* threads of one process may write, and one with our number may have died here */
    remove_dead(path, directory);
    for (;;) {
        name->length = 0;
        strbuf_printf(name, "%s" INFIX "%ld.%u", path, (long)getpid(), atomic_fetch_add(&counter, 1));
        *fd = make_one(name->text, directory);
        if (*fd < 0 && errno != EEXIST) {
            int why = errno;
            ERR(ERR_IO, "create %s: %s", path, strerror(why)); /* the name that the user knows */
            errno = why;
            return ERR_IO;
        }
        if (*fd >= 0 && is_ours(*fd, name->text)) return OK;
        if (*fd >= 0) close(*fd);
    }
}

const char *temporary_directory(void) {
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}
