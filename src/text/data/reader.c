/* reader.c - read a file once, in order, and detect changes during reading.
 *
 * A buffer grows to the longest line or block that was requested and no further. A line over the limit is skipped
 * without being kept, so a file of one endless line costs time and no memory. Size, times and inode are compared
 * before and after, both of the open file and of its name: an editor that writes in place changes the first, one
 * that renames a new file over the name changes the second. Packed files are unpacked into the same buffer. */
#include "data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { READ_BYTES = 1 << 18 };

/* ---- stamps -------------------------------------------------------------------------------------------------- */

static file_stamp stamp_of(const struct stat *s) {
    return (file_stamp){.device = (uint64_t)s->st_dev,
                        .inode = (uint64_t)s->st_ino,
                        .n_bytes = (uint64_t)s->st_size,
                        .mtime_ns = (int64_t)s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec,
                        .ctime_ns = (int64_t)s->st_ctim.tv_sec * 1000000000 + s->st_ctim.tv_nsec,
                        .is_regular = S_ISREG(s->st_mode)};
}

status file_stamp_get(const char *path, file_stamp *out) {
    struct stat s;
    if (stat(path, &s) != 0) return ERR(ERR_IO, "stat %s: %s", path, strerror(errno));
    *out = stamp_of(&s);
    return OK;
}

bool file_stamp_equal(const file_stamp *a, const file_stamp *b) {
    return a->device == b->device && a->inode == b->inode && a->n_bytes == b->n_bytes && a->mtime_ns == b->mtime_ns &&
           a->ctime_ns == b->ctime_ns && a->is_regular == b->is_regular;
}

/* ---- the buffer ---------------------------------------------------------------------------------------------- */

/* Room for another READ_BYTES behind what is buffered. */
static status make_room(reader *r) {
    if (r->begin > 0) {
        memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    if (r->capacity - r->end >= READ_BYTES) return OK;
    size_t grown = MAX(r->capacity * 2, (size_t)2 * READ_BYTES);
    char *more = realloc(r->buffer, grown);
    if (!more) return ERR(ERR_RUN, "read %s: not enough memory for a line or block of %zu bytes", r->path, grown);
    r->buffer = more;
    r->capacity = grown;
    return OK;
}

/* One read of the file; 0 bytes: its end. */
static status read_raw(reader *r, char *out, size_t *n_bytes) {
    ssize_t n;
    do n = read(r->fd, out, READ_BYTES);
    while (n < 0 && errno == EINTR);
    if (n < 0) return ERR(ERR_IO, "read %s: %s", r->path, strerror(errno));
    ASSERT(XXH3_128bits_update(r->hash, out, (size_t)n) == XXH_OK);
    r->n_read += (uint64_t)n;
    *n_bytes = (size_t)n;
    return OK;
}

/* Unpacks until there is something, or nothing is left. */
static status fill_unpacked(reader *r) {
    for (size_t n = 0;;) {
        size_t before = r->raw_left.length;
        TRY(unpacker_run(&r->unpack, &r->raw_left, r->buffer + r->end, READ_BYTES, &n));
        r->end += n;
        if (n > 0) return OK;
        if (r->raw_left.length > 0 && r->raw_left.length < before) continue;
        if (r->raw_left.length > 0)
            return ERR(ERR_INPUT, "%s: found %s data that leads nowhere, expected a whole file; download it again",
                       r->path, packing_name(r->packed));
        if (r->raw_at_end) break;
        TRY(read_raw(r, r->raw, &n));
        r->raw_left = (span){r->raw, n};
        r->raw_at_end = n == 0;
    }
    r->at_end = true;
    return unpacker_end(&r->unpack);
}

/* One piece after what is buffered; at_end when there was nothing. */
static status fill(reader *r) {
    size_t n;
    TRY(make_room(r));
    if (r->packed != PACKING_NONE) return fill_unpacked(r);
    TRY(read_raw(r, r->buffer + r->end, &n));
    r->end += n;
    r->at_end = n == 0;
    return OK;
}

status reader_open_as_is(reader *r, const char *path) {
    struct stat s;
    *r = (reader){.path = path};
    TRY(file_open(path, &r->fd));
    r->hash = XXH3_createState();
    ASSERT(r->hash && XXH3_128bits_reset(r->hash) == XXH_OK);
    if (fstat(r->fd, &s) == 0) {
        r->stamp = stamp_of(&s);
        return OK;
    }
    status rc = ERR(ERR_IO, "stat %s: %s", path, strerror(errno));
    reader_close(r);
    return rc;
}

/* What was read so far is packed. */
static status begin_unpacking(reader *r, packing p) {
    TRY(unpacker_open(&r->unpack, p, r->path));
    r->packed = p;
    r->raw = r->buffer;
    r->raw_left = (span){r->buffer, r->end};
    r->raw_at_end = r->at_end;
    r->buffer = NULL;
    r->end = r->capacity = 0;
    r->at_end = false;
    return OK;
}

/* A download that failed is often a page of HTML under the name of the file. */
static status check_name(const reader *r, packing p) {
    packing named = packing_of_name(r->path);
    if (named == PACKING_NONE || p != PACKING_NONE) return OK;
    if (r->end == 0) return ERR(ERR_INPUT, "%s: found an empty file, expected %s data", r->path, packing_name(named));
    return ERR(ERR_INPUT, "%s: found no %s data, as its name says, expected it packed, or a name without that ending",
               r->path, packing_name(named));
}

status reader_open(reader *r, const char *path) {
    status rc = OK;
    TRY(reader_open_as_is(r, path));
    while (r->end < PACKING_MAGIC_BYTES && !r->at_end)
        TRY_GOTO(rc, fill(r), fail); /* a pipe may bring one byte at a time */
    packing p = packing_of(r->buffer, r->end);
    TRY_GOTO(rc, check_name(r, p), fail);
    if (p != PACKING_NONE) TRY_GOTO(rc, begin_unpacking(r, p), fail);
    while (r->end < 3 && !r->at_end) TRY_GOTO(rc, fill(r), fail);
    reader_consume(r, utf8_mark_bytes(r->buffer, r->end));
    return OK;
fail:
    reader_close(r);
    return rc;
}

void reader_close(reader *r) {
    if (r->fd >= 0) close(r->fd);
    XXH3_freeState(r->hash);
    unpacker_close(&r->unpack);
    free(r->raw);
    free(r->buffer);
    *r = (reader){.fd = -1};
}

status reader_finish(reader *r, hash128 *out) {
    struct stat s, named;
    while (!r->at_end) { /* what nobody asked for belongs to the hash too */
        r->begin = r->end;
        TRY(fill(r));
    }
    if (out) {
        XXH128_hash_t h = XXH3_128bits_digest(r->hash);
        *out = (hash128){h.low64, h.high64};
    }
    if (!r->stamp.is_regular) return OK;
    if (fstat(r->fd, &s) != 0) return ERR(ERR_IO, "stat %s: %s", r->path, strerror(errno));
    file_stamp now = stamp_of(&s), its_name = {0};
    if (stat(r->path, &named) == 0) its_name = stamp_of(&named);
    if (!file_stamp_equal(&now, &r->stamp) || !file_stamp_equal(&its_name, &r->stamp))
        return ERR(ERR_INPUT,
                   "%s changed while it was read: found %llu bytes (inode %llu) at the start and %llu (inode %llu) at "
                   "the end, expected a file that stays as it is; start again when nothing writes to it",
                   r->path, (unsigned long long)r->stamp.n_bytes, (unsigned long long)r->stamp.inode,
                   (unsigned long long)now.n_bytes, (unsigned long long)its_name.inode);
    return OK;
}

status reader_measure(const char *path, uint64_t *n_bytes, uint64_t *n_lines) {
    reader r;
    span text = {0};
    TRY(reader_open(&r, path));
    bool counts = n_lines || r.packed != PACKING_NONE;
    status rc = OK;
    *n_bytes = r.stamp.n_bytes;
    if (n_lines) *n_lines = 0;
    while (counts) {
        TRY_GOTO(rc, reader_peek(&r, 1, &text), done);
        if (text.length == 0) break;
        for (const char *p = text.text, *end = p + text.length; n_lines && (p = memchr(p, '\n', (size_t)(end - p)));
             p++)
            ++*n_lines;
        reader_consume(&r, text.length);
        *n_bytes = r.offset;
    }
done:
    reader_close(&r);
    return rc;
}

bool reader_is_packed(const char *path) {
    char head[PACKING_MAGIC_BYTES];
    struct stat s;
    int fd = -1;
    bool packed = false;
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode)) return false;
    if (file_open(path, &fd) != OK) {
        error_clear(); /* whoever reads it says so */
        return false;
    }
    ssize_t n = pread(fd, head, sizeof head, 0);
    if (n > 0) packed = packing_of(head, (size_t)n) != PACKING_NONE;
    close(fd);
    return packed;
}

void reader_consume(reader *r, size_t n_bytes) {
    ASSERT(n_bytes <= r->end - r->begin);
    r->begin += n_bytes;
    r->offset += n_bytes;
}

status reader_peek(reader *r, size_t wanted, span *out) {
    while (r->end - r->begin < wanted && !r->at_end) TRY(fill(r));
    *out = (span){r->buffer + r->begin, r->end - r->begin};
    return OK;
}

/* ---- lines --------------------------------------------------------------------------------------------------- */

/* Drops bytes up to the end of the line; their number is the line's length. */
static status skip_rest_of_line(reader *r, uint64_t *n_bytes) {
    for (;;) {
        const char *stop = memchr(r->buffer + r->begin, '\n', r->end - r->begin);
        size_t n = stop ? (size_t)(stop - (r->buffer + r->begin)) : r->end - r->begin;
        *n_bytes += n;
        reader_consume(r, n + (stop != NULL));
        if (stop || r->at_end) return OK;
        TRY(fill(r));
    }
}

status reader_line(reader *r, uint64_t max_line, line *out, bool *found) {
    size_t searched = 0;
    char *stop;
    *found = false;
    *out = (line){.offset = r->offset};
    while (!(stop = memchr(r->buffer + r->begin + searched, '\n', r->end - r->begin - searched))) {
        searched = r->end - r->begin;
        if (r->at_end || searched > max_line) break;
        TRY(fill(r));
    }
    size_t n = stop ? (size_t)(stop - (r->buffer + r->begin)) : searched;
    if (!stop && n == 0) return OK; /* the end */
    *found = true;
    out->number = ++r->n_lines;
    if (n > max_line) {
        out->too_long = true;
        return skip_rest_of_line(r, &out->n_bytes);
    }
    out->n_bytes = n;
    out->text = (span){r->buffer + r->begin, n};
    if (n > 0 && out->text.text[n - 1] == '\r') out->text.length--;
    reader_consume(r, n + (stop != NULL));
    return OK;
}
