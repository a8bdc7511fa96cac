#pragma once
/* reader.h - private to data: a file from outside, read once from front to back, in lines or in blocks.
 *
 * Memory holds what was requested, not the file. The bytes of the file are hashed while reading, and reader_finish tells
 * whether the file is still the one that was opened: rows from half an old and half a new file must not be used.
 * A file of gzip or zstd is read as what is packed in it, whatever its name (unpack.h). */
#include "data/unpack.h"

/* What tells one state of a file from another without reading it. */
typedef struct file_stamp {
    uint64_t device, inode, n_bytes;
    int64_t mtime_ns, ctime_ns;
    bool is_regular; /* a pipe has neither a size nor a second reading */
} file_stamp;
status file_stamp_get(const char *path, file_stamp *out);
bool file_stamp_equal(const file_stamp *a, const file_stamp *b);

typedef struct hash128 {
    uint64_t low, high;
} hash128;
static inline bool hash128_equal(hash128 a, hash128 b) { return a.low == b.low && a.high == b.high; }

typedef struct reader {
    const char *path;
    int fd;
    file_stamp stamp; /* when it was opened */
    char *buffer;
    size_t begin, end, capacity; /* of what is buffered */
    uint64_t offset;             /* in the text, of buffer[begin] */
    uint64_t n_read;             /* bytes of the file so far */
    uint64_t n_lines;            /* handed out */
    bool at_end;                 /* the file has nothing after the buffer */
    struct XXH3_state_s *hash;   /* of the file */
    packing packed;
    unpacker unpack;
    char *raw; /* packed: what was read and not unpacked yet */
    span raw_left;
    bool raw_at_end;
} reader;
status reader_open(reader *r, const char *path);       /* a byte order mark at the beginning is skipped */
status reader_open_as_is(reader *r, const char *path); /* the bytes of the file, packed or not */
void reader_close(reader *r);
/* The whole file was read: is it still the file that was opened? Its hash covers every byte. */
status reader_finish(reader *r, hash128 *out);
/* What is packed in the file, counted by unpacking it; of other files their size. n_lines: the ends of lines in it; NULL: not asked. */
status reader_measure(const char *path, uint64_t *n_bytes, uint64_t *n_lines);
bool reader_is_packed(const char *path); /* false also where it cannot be read, or only once */

typedef struct line {
    span text;       /* without its end, "\n" or "\r\n"; lives until the next call */
    uint64_t number; /* from 1 */
    uint64_t offset, n_bytes;
    bool too_long; /* longer than max_line: text is empty, n_bytes is what it had */
    bool is_wrong; /* a row of a table that is none: text says why (lines.h) */
} line;
status reader_line(reader *r, uint64_t max_line, line *out, bool *found);

/* At least `wanted` bytes in the buffer, or all that is left; lives until the next call. */
status reader_peek(reader *r, size_t wanted, span *out);
void reader_consume(reader *r, size_t n_bytes);
