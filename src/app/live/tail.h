#pragma once
/* tail.h - private to live: follow a file of JSON Lines that another process or thread writes.
 *
 * Whole lines only. A file that was cut, replaced or written anew (a resumed run removes the steps that it repeats) is read again
 * from its start, after `again` was called. Links are not followed, lines of more than TAIL_LINE_MOST bytes are passed over.
 *
 *     tail t;
 *     tail_init(&t, "metrics.jsonl", 0);
 *     while (tail_read(&t, dir_fd, buffer, again, line, context)) {}      true: there may be more to read */
#include "base/base.h"

enum { TAIL_LINE_MOST = 1 << 20, TAIL_MARK = 64 };
typedef struct tail {
    const char *name;  /* below the directory */
    uint64_t from_end; /* 0: the whole file; else only about the last so many bytes of it */
    uint64_t offset;   /* behind the last whole line that was read */
    uint64_t size;     /* of the file when it was last looked at */
    uint64_t device, inode;
    bool begun;    /* the file was there */
    bool skips;    /* offset is inside a line that is passed over */
    size_t n_mark; /* the bytes before offset: if they are others now, the file is another */
    char mark[TAIL_MARK];
} tail;

typedef void (*tail_line_fn)(void *context, const char *line, size_t n); /* without the line break; NUL terminated */
typedef void (*tail_again_fn)(void *context);
void tail_init(tail *t, const char *name, uint64_t from_end);
/* buffer: TAIL_LINE_MOST + 1 bytes that all tails may share; so many are read at most. A missing file is an empty one. */
bool tail_read(tail *t, int dir, char *buffer, tail_again_fn again, tail_line_fn line, void *context);
