/* notes.c - a file in which ranks note how their run began and why it ended, for the process that started them.
 *
 * mpirun tells its parent one exit code. Whether a rank died or reported an error, which rank it was, and what the run directory is
 * called (its name may contain the time) only the ranks know. Lines of text, each written at once; the environment names the file. A
 * rank that is killed writes nothing: the others write for it, and where all were killed the exit code has to do. */
#define _GNU_SOURCE
#include "cli/notes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOTES_VARIABLE "RALO_RANKS_NOTES"

status notes_open(char *path, size_t n) {
    snprintf(path, n, "%s/ralo-ranks-XXXXXX", temporary_directory());
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) return ERR(ERR_IO, "--ranks: make a file in %s: %s", temporary_directory(), strerror(errno));
    close(fd);
    setenv(NOTES_VARIABLE, path, 1);
    return OK;
}

status notes_clear(const char *path, int restart) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return ERR(ERR_IO, "--ranks: open %s: %s", path, strerror(errno));
    bool written = dprintf(fd, "restart %d\n", restart) > 0;
    int why = errno;
    close(fd);
    return written ? OK : ERR(ERR_IO, "--ranks: write %s: %s", path, strerror(why));
}

void notes_close(const char *path) { unlink(path); }

static void read_beginning(const char *line, run_notes *out) {
    int size[AXIS_COUNT], length = 0;
    long long rows, micros;
    _Static_assert(AXIS_COUNT == 4, "one number for each axis");
    if (sscanf(line, "began %d %d %d %d %lld %lld %n", &size[0], &size[1], &size[2], &size[3], &rows, &micros,
               &length) < 6 ||
        length == 0)
        return;
    out->began = true;
    memcpy(out->size, size, sizeof size);
    out->micro_batch = rows;
    out->accumulation = micros;
    snprintf(out->dir, sizeof out->dir, "%s", line + length);
}

void notes_read(const char *path, run_notes *out) {
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0;
    out->ended = out->lost = false;
    out->lost_rank = -1;
    out->step = 0;
    out->n_here = out->n_asked = 0;
    for (ssize_t n; f && (n = getline(&line, &capacity, f)) > 0;) {
        int lost, rank;
        long long step;
        if (line[n - 1] != '\n') break; /* half a line */
        line[n - 1] = 0;
        read_beginning(line, out);
        out->n_here += strcmp(line, "here") == 0;
        out->n_asked += strcmp(line, "asked") == 0;
        if (sscanf(line, "ended %d %d %lld", &lost, &rank, &step) != 3) continue;
        if (!out->ended) out->lost = lost, out->lost_rank = rank;
        out->ended = true;
        out->step = MAX(out->step, (int64_t)step);
    }
    free(line);
    if (f) fclose(f);
}

static int open_named(int flags) {
    const char *path = getenv(NOTES_VARIABLE);
    return path && *path ? open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
}

int notes_restart(void) {
    int fd = open_named(O_RDONLY), restart = -1;
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!f) {
        if (fd >= 0) close(fd);
        return -1;
    }
    if (fscanf(f, "restart %d", &restart) != 1) restart = -1;
    fclose(f);
    return restart;
}

void notes_add_beginning(const mesh *m, int64_t micro_batch, int64_t accumulation, const char *dir) {
    int fd = open_named(O_WRONLY | O_APPEND);
    if (fd < 0) return;
    dprintf(fd, "began %d %d %d %d %lld %lld %s\n", m->size[0], m->size[1], m->size[2], m->size[3],
            (long long)micro_batch, (long long)accumulation, dir);
    close(fd);
}

static volatile sig_atomic_t asked_fd = -1; /* open before the signal comes */

void notes_add_here(void) {
    if (asked_fd >= 0 || (asked_fd = open_named(O_WRONLY | O_APPEND)) < 0) return;
    dprintf(asked_fd, "here\n");
}

void notes_add_asked(void) {
    static volatile sig_atomic_t added;
    if (asked_fd >= 0 && !added++ && write(asked_fd, "asked\n", 6) < 0) return; /* nobody reads it */
}

void notes_add_end(bool lost, int rank, int64_t step) {
    static atomic_flag added = ATOMIC_FLAG_INIT;
    int fd;
    if (atomic_flag_test_and_set(&added) || (fd = open_named(O_WRONLY | O_APPEND)) < 0) return;
    dprintf(fd, "ended %d %d %lld\n", lost, rank, (long long)step);
    close(fd);
}
