/* record_file.c - the records of a file by number.
 *
 * records_open reads the file once and stores the position of each good record, sixteen bytes each; records_get
 * reads that line again. So record i of a file of any size can be read, and a bad line 12,345 is reported at the
 * start, not after an hour. What is packed, a row of a table or an element of a JSON list cannot be read again at a position: such records are
 * written as lines of JSON to a file without a name (in TMPDIR, or /tmp), which goes away with the process. */
#include "data/file_kind.h"
#include "data/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPOOL_BYTES = 1 << 20 };

typedef struct entry {
    uint64_t offset, number;
} entry;

struct records {
    char *path;
    record_options options;
    int fd; /* of the file, or of its records as JSON Lines ... */
    bool is_spooled;
    strbuf waiting;     /* ... with what is not written yet, */
    uint64_t n_spooled; /* and what is */
    file_stamp stamp;
    entry *entries;
    size_t n, capacity;
    record_skips skips;
    record_parser parser;
    char *line;
    size_t line_capacity;
};

/* ---- records that are kept beside the file ----------------------------------------------------------------------- */

static status spool_open(records *r) {
    strbuf name;
    strbuf_init(&name);
    strbuf_printf(&name, "%s/ralo-records-XXXXXX", temporary_directory());
    r->fd = mkstemp(name.text);
    status rc = r->fd < 0 ? ERR(ERR_IO, "%s: no file for its records in %s: %s; set TMPDIR to another directory",
                                r->path, temporary_directory(), strerror(errno))
                          : OK;
    if (rc == OK) {
        unlink(name.text);
        fcntl(r->fd, F_SETFD, FD_CLOEXEC);
    }
    strbuf_fini(&name);
    r->is_spooled = true;
    return rc;
}

static status spool_flush(records *r) {
    for (size_t at = 0; at < r->waiting.length;) {
        ssize_t n = write(r->fd, r->waiting.text + at, r->waiting.length - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return ERR(ERR_IO, "%s: write its records to %s: %s; set TMPDIR to a directory with more room", r->path,
                       temporary_directory(), strerror(errno));
        at += (size_t)n;
        r->n_spooled += (uint64_t)n;
    }
    r->waiting.length = 0;
    return OK;
}

static status spool_add(records *r, span text) {
    strbuf_add_bytes(&r->waiting, text.text, text.length);
    strbuf_add(&r->waiting, "\n");
    return r->waiting.length >= SPOOL_BYTES ? spool_flush(r) : OK;
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

/* *rc: an error that is not the line's. */
static status index_line(records *r, const line *l, status *rc) {
    data_record ignored;
    TRY(record_line_check(r->path, l, &r->options));
    TRY(record_parse(&r->parser, l->text.text, l->text.length, r->path, l->number, &r->options, &ignored));
    r->entries = array_grow(r->entries, &r->capacity, r->n + 1, sizeof *r->entries);
    r->entries[r->n++] = (entry){r->is_spooled ? r->n_spooled + r->waiting.length : l->offset, l->number};
    if (r->is_spooled) *rc = spool_add(r, l->text);
    return OK;
}

static status index_lines(records *r, record_lines *lines) {
    for (;;) {
        line l;
        bool found;
        status rc = OK;
        TRY(record_lines_next(lines, &l, &found));
        if (!found) return OK;
        if (!l.too_long && !l.is_wrong && record_line_is_empty(l.text.text, l.text.length)) continue;
        if (index_line(r, &l, &rc) == OK) {
            TRY(rc);
            continue;
        }
        if (r->options.on_error == RECORDS_STOP) return error_code();
        record_skips_add(&r->skips);
    }
}

static status index_file(records *r, reader *in) {
    record_lines lines;
    TRY(data_refuse_kind(in, &r->options));
    status rc = record_lines_open(&lines, in, &r->options);
    if (rc == OK && (record_lines_are_made(&lines) || in->packed != PACKING_NONE)) rc = spool_open(r);
    if (rc == OK) rc = index_lines(r, &lines);
    if (rc == OK && r->is_spooled) rc = spool_flush(r);
    record_lines_close(&lines);
    TRY(rc);
    TRY(reader_finish(in, NULL));
    if (r->n > 0) return OK;
    char skipped[48];
    return ERR(ERR_INPUT, "%s: found no record%s, expected %s", r->path, record_skips_text(r->skips.n, skipped),
               record_file_expected(r->path, &r->options));
}

status records_open(records **out, const char *path, const record_options *o) {
    status rc = OK;
    *out = NULL;
    TRY(record_options_check(o));
    reader in;
    TRY(reader_open(&in, path));
    records *r = mem_alloc(sizeof *r);
    r->path = mem_string(path);
    r->options = *o;
    r->fd = -1;
    strbuf_init(&r->waiting);
    if (!in.stamp.is_regular)
        TRY_GOTO(rc, ERR(ERR_INPUT, "%s: found a pipe or device, expected a file: records are read in any order", path),
                 fail);
    TRY_GOTO(rc, index_file(r, &in), fail);
    r->stamp = in.stamp;
    if (!r->is_spooled && (r->fd = dup(in.fd)) < 0)
        TRY_GOTO(rc, ERR(ERR_IO, "open %s: %s", path, strerror(errno)), fail);
    reader_close(&in);
    *out = r;
    return OK;
fail:
    reader_close(&in);
    records_close(r);
    return rc;
}

void records_close(records *r) {
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    record_parser_close(&r->parser);
    strbuf_fini(&r->waiting);
    free(r->entries);
    free(r->line);
    free(r->path);
    free(r);
}

uint64_t records_count(const records *r) { return r->n; }
uint64_t records_skipped(const records *r) { return r->skips.n; }

/* The bytes from `offset` to the end of the line. */
static status read_line_at(records *r, uint64_t offset, size_t *n) {
    for (*n = 0;;) {
        r->line = array_grow(r->line, &r->line_capacity, *n + 4096, 1);
        ssize_t got = pread(r->fd, r->line + *n, r->line_capacity - *n, (off_t)(offset + *n));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ERR(ERR_IO, "read %s: %s", r->path, strerror(errno));
        const char *stop = got ? memchr(r->line + *n, '\n', (size_t)got) : NULL;
        *n = stop ? (size_t)(stop - r->line) : *n + (size_t)got;
        if (stop || got == 0) return OK;
    }
}

status records_get(records *r, uint64_t i, data_record *out) {
    size_t n;
    file_stamp now;
    ASSERT(i < r->n);
    TRY(read_line_at(r, r->entries[i].offset, &n));
    TRY(file_stamp_get(r->path, &now));
    if (!file_stamp_equal(&now, &r->stamp))
        return ERR(ERR_INPUT, "%s changed after it was opened, expected a file that stays as it is; start again",
                   r->path);
    return record_parse(&r->parser, r->line, n, r->path, r->entries[i].number, &r->options, out);
}
