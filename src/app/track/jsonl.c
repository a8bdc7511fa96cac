/* jsonl.c - a file that grows line by line, in a directory that may come from anyone.
 *
 * Its lines begin with {"step": N. It stays readable after a crash, a full disk and a resume: lines are whole or removed, and a
 * step that is repeated replaces what it wrote before. */
#include "track/jsonl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void jsonl_init(jsonl *j, const char *name) {
    *j = (jsonl){.name = name, .fd = -1};
    strbuf_init(&j->lines);
}

void jsonl_close(jsonl *j) {
    if (j->fd >= 0) close(j->fd);
    strbuf_fini(&j->lines);
    free(j->path);
    j->fd = -1;
}

/* Incomplete lines of a failed write are removed again, so that the file stays readable. */
bool jsonl_flush(jsonl *j, char *warning, size_t size) {
    size_t done = 0;
    bool failed = false;
    while (j->fd >= 0 && done < j->lines.length) {
        ssize_t n = write(j->fd, j->lines.text + done, j->lines.length - done);
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        const char *why = n < 0 ? strerror(errno) : "nothing was written";
        while (done > 0 && j->lines.text[done - 1] != '\n') done--;
        int cut = ftruncate(j->fd, j->whole + (off_t)done);
        snprintf(warning, size, "warning: %s: %s; the rest of the %s is not written%s", j->path, why, j->name,
                 cut == 0 ? "" : ", and the last line may be incomplete");
        close(j->fd);
        j->fd = -1;
        failed = true;
    }
    j->whole += (off_t)done;
    j->lines.length = 0;
    return !failed;
}

/* An incomplete line of a killed run is removed before new ones are added. A link of that name is not followed: in a
 * run directory from elsewhere it could point to any file of the user. */
status jsonl_open(jsonl *j, const char *dir) {
    TRY(dir_make(dir));
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s.jsonl", dir, j->name);
    j->path = strbuf_take(&path);
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    if ((j->fd = open(j->path, flags, 0644)) < 0)
        return ERR(ERR_IO, "open %s: %s", j->path,
                   errno == ELOOP ? "it is a link, expected a file; remove the link" : strerror(errno));
    struct stat info;
    if (fstat(j->fd, &info) != 0) return ERR(ERR_IO, "stat %s: %s", j->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return ERR(ERR_INPUT, "%s is a pipe or a device, expected a file; remove it", j->path);
    off_t whole = info.st_size;
    char chunk[4096];
    while (whole > 0) {
        size_t want = (size_t)MIN(whole, (off_t)sizeof chunk);
        if (pread(j->fd, chunk, want, whole - (off_t)want) != (ssize_t)want)
            return ERR(ERR_IO, "read %s: %s", j->path, strerror(errno));
        size_t keep = want;
        while (keep > 0 && chunk[keep - 1] != '\n') keep--;
        whole -= (off_t)(want - keep);
        if (keep > 0) break;
    }
    if (whole < info.st_size && ftruncate(j->fd, whole) != 0)
        return ERR(ERR_IO, "remove the incomplete last line of %s: %s", j->path, strerror(errno));
    j->whole = whole;
    return OK;
}

/* If a resumed run repeats steps, because the earlier run was further than the checkpoint, their old lines are
 * removed, and so is the evaluation after the step that stays. A file that cannot be read or cut only grows. */
void jsonl_cut_from(jsonl *j, int64_t step, bool evaluation) {
    if (j->begun) return;
    j->begun = true;
    FILE *f = j->whole > 0 ? fopen(j->path, "re") : NULL;
    if (!f) return;
    char *line = NULL;
    size_t capacity = 0;
    off_t at = 0;
    ssize_t length;
    long long found = 0;
    while ((length = getline(&line, &capacity, f)) > 0) {
        int n = 0;
        bool ours = sscanf(line, "{\"step\": %lld%n", &found, &n) == 1;
        bool stays = evaluation && found == step && !str_starts_with(line + n, ", \"val/");
        if (ours && found >= step && !stays) {
            if (ftruncate(j->fd, at) == 0) j->whole = at;
            break;
        }
        at += length;
    }
    free(line);
    fclose(f);
}
