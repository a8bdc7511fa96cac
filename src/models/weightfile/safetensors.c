/* safetensors.c - weights as a mapped file: a length, a JSON header, the bytes.
 *
 * Reading maps the file and copies nothing but names, so opening a model costs its header. Everything the header says
 * is checked once, here, against the size of the file; after safetensors_open every view lies inside the map. Files in
 * circulation do not align their data (the header of the published GPT-2 has an odd length), so a view's pointer has
 * no alignment either: readers copy, they do not cast.
 *
 * Writing reserves the whole file first, so a full disk is found before the work is done, and keeps the first eight
 * bytes (the length of the header) zero until every other byte is on disk: a file whose writer died is refused by
 * every reader. Tensors follow each other without holes, in the order of the entries, as other readers demand.
 * A file that is cut short by someone else while it is mapped ends the process with SIGBUS; no check prevents that. */
#include "weightfile/weightfile.h"
#include "weightfile/put.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX_BYTES 100000000u /* the limit of the reference implementation */
#define LENGTH_BYTES 8u
#define DATA_ALIGN 64u /* where our data begins; also the longest hole taken for padding, exclusive */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors holds little-endian numbers, and its views are used in place"
#endif

/* ---- reading ------------------------------------------------------------------------------------------------- */

static status map_file(safetensors *st) {
    struct stat info;
    status rc = OK;
    int fd;
    TRY(file_open(st->path, &fd));
    if (fstat(fd, &info) != 0) {
        rc = ERR(ERR_IO, "stat %s: %s", st->path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) { /* the caller's own pipe */
        rc = ERR(ERR_INPUT, "%s is not a regular file, a safetensors file was expected", st->path);
    } else if ((uint64_t)info.st_size < LENGTH_BYTES + 2) {
        rc = ERR(ERR_INPUT, "%s: found a file of %lld bytes, expected at least %u (a length and an empty header)",
                 st->path, (long long)info.st_size, LENGTH_BYTES + 2);
    } else {
        st->map_bytes = (size_t)info.st_size;
        st->map = mmap(NULL, st->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (st->map == MAP_FAILED) {
            st->map = NULL;
            rc = ERR(ERR_IO, "map %zu bytes of %s: %s", st->map_bytes, st->path, strerror(errno));
        }
    }
    close(fd); /* the map keeps the file */
    return rc;
}

static status check_dtype(const char *path, const char *name, const json_t *info, dtype *out) {
    const json_t *text = json_object_get(info, "dtype");
    const char *found = json_string_value(text); /* NULL when absent or not a string */
    if (found && dtype_from_file_name(found, out)) return OK;
    strbuf known;
    strbuf_init(&known);
    for (int t = 0; t < DTYPE_COUNT; t++) strbuf_printf(&known, "%s%s", t ? ", " : "", dtype_file_name((dtype)t));
    if (!found) found = text ? "(no string)" : "(nothing)";
    status rc = ERR(ERR_INPUT, "%s: tensor '%.200s': found the dtype '%.50s', expected one of %s", path, name, found,
                    known.text);
    strbuf_fini(&known);
    return rc;
}

/* The shape and the bytes it needs. */
static status check_shape(const char *path, const char *name, const json_t *info, dtype type, shape *out,
                          uint64_t *n_bytes) {
    const json_t *dims = json_object_get(info, "shape");
    if (!json_is_array(dims))
        return ERR(ERR_INPUT, "%s: tensor '%.200s': found %s as shape, expected an array of dimensions", path, name,
                   dims ? "no array" : "nothing");
    size_t rank = json_array_size(dims);
    if (rank > SHAPE_MAX_RANK)
        return ERR(ERR_INPUT, "%s: tensor '%.200s': found %zu dimensions, expected at most %d", path, name, rank,
                   SHAPE_MAX_RANK);
    *out = (shape){.rank = (int)rank};
    *n_bytes = dtype_bytes(type);
    int64_t count = 1; /* also as a signed number: that is how shapes are counted everywhere else */
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(dims, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return ERR(ERR_INPUT,
                       "%s: tensor '%.200s': shape: found an invalid dimension %zu, expected a whole number from 0",
                       path, name, i);
        out->dim[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(count, out->dim[i], &count) ||
            __builtin_mul_overflow(*n_bytes, (uint64_t)out->dim[i], n_bytes)) {
            out->rank = (int)i + 1;
            char shown[64];
            return ERR(ERR_INPUT,
                       "%s: tensor '%.200s': the shape %s... of %s counts more than 2^63 elements or 2^64 bytes, "
                       "expected less",
                       path, name, shape_format(shown, out), dtype_file_name(type));
        }
    }
    return OK;
}

static status check_tensor(safetensors *st, const char *name, const json_t *info, uint64_t data_start, safetensor *t) {
    const char *path = st->path;
    uint64_t data_bytes = st->map_bytes - data_start, needed = 0;
    if (!json_is_object(info))
        return ERR(ERR_INPUT, "%s: tensor '%.200s': found no object, expected {dtype, shape, data_offsets}", path,
                   name);
    t->name = arena_string(&st->memory, name);
    TRY(check_dtype(path, name, info, &t->type));
    TRY(check_shape(path, name, info, t->type, &t->shape, &needed));
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return ERR(ERR_INPUT, "%s: tensor '%.200s': found %s as data_offsets, expected an array of two integers", path,
                   name, offsets ? "something else" : "nothing");
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return ERR(
            ERR_INPUT,
            "%s: tensor '%.200s': found data_offsets %lld to %lld, expected a range inside the %llu bytes of data%s",
            path, name, (long long)begin, (long long)end, (unsigned long long)data_bytes,
            begin >= 0 && end >= begin ? "; the file seems to be cut short: fetch or copy it again" : "");
    if ((uint64_t)(end - begin) != needed) {
        char shown[64];
        return ERR(ERR_INPUT,
                   "%s: tensor '%.200s': data_offsets %lld to %lld hold %lld bytes, expected %llu for %s of %s", path,
                   name, (long long)begin, (long long)end, (long long)(end - begin), (unsigned long long)needed,
                   shape_format(shown, &t->shape), dtype_file_name(t->type));
    }
    t->n_bytes = (size_t)needed;
    t->file_offset = data_start + (uint64_t)begin;
    t->data = (const char *)st->map + t->file_offset;
    return OK;
}

static status check_metadata(safetensors *st, json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return ERR(ERR_INPUT, "%s: __metadata__ is not an object, expected one that maps strings to strings", st->path);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return ERR(ERR_INPUT, "%s: __metadata__: the value of '%.200s' is not a string, expected one", st->path,
                       key);
    }
    st->metadata = json_incref(metadata);
    return OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const safetensor *)a)->name, ((const safetensor *)b)->name);
}

static int by_offset(const void *a, const void *b) {
    const safetensor *x = *(const safetensor *const *)a, *y = *(const safetensor *const *)b;
    return (x->file_offset > y->file_offset) - (x->file_offset < y->file_offset);
}

/* No byte belongs to two tensors, and only padding belongs to none. A tensor of no bytes takes part in neither. */
static status check_coverage(const safetensors *st, uint64_t data_start) {
    status rc = OK;
    const safetensor **sorted = mem_alloc(st->n_tensors * sizeof *sorted);
    size_t n = 0;
    for (size_t i = 0; i < st->n_tensors; i++)
        if (st->tensors[i].n_bytes > 0) sorted[n++] = &st->tensors[i];
    qsort(sorted, n, sizeof *sorted, by_offset);
    uint64_t covered = data_start;
    for (size_t i = 0; i < n && rc == OK; i++) {
        const safetensor *t = sorted[i];
        unsigned long long begin = t->file_offset - data_start, end = begin + t->n_bytes, before = covered - data_start;
        if (t->file_offset < covered)
            rc = ERR(ERR_INPUT,
                     "%s: tensor '%.200s': found bytes %llu to %llu, which overlap tensor '%.200s' (it ends at %llu), "
                     "expected no overlap",
                     st->path, t->name, begin, end, sorted[i - 1]->name, before);
        else if (t->file_offset - covered >= DATA_ALIGN)
            rc = ERR(ERR_INPUT,
                     "%s: tensor '%.200s': found it at byte %llu, %llu bytes after the data before it, expected less "
                     "than %u of padding",
                     st->path, t->name, begin, begin - before, DATA_ALIGN);
        covered = t->file_offset + t->n_bytes;
    }
    if (rc == OK && st->map_bytes - covered >= DATA_ALIGN)
        rc = ERR(ERR_INPUT, "%s: found %llu bytes after the last tensor, expected less than %u of padding", st->path,
                 (unsigned long long)(st->map_bytes - covered), DATA_ALIGN);
    free(sorted);
    return rc;
}

static status read_tensors(safetensors *st, json_t *header, uint64_t data_start) {
    const char *name;
    json_t *info;
    st->tensors = arena_array(&st->memory, safetensor, json_object_size(header));
    json_object_foreach(header, name, info) {
        if (strcmp(name, "__metadata__") == 0) TRY(check_metadata(st, info));
        else TRY(check_tensor(st, name, info, data_start, &st->tensors[st->n_tensors++]));
    }
    qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
    TRY(check_coverage(st, data_start));
    return OK;
}

static status read_header(safetensors *st) {
    uint64_t header_bytes;
    json_error_t error;
    memcpy(&header_bytes, st->map, LENGTH_BYTES);
    if (format_is_lfs_pointer(st->map, st->map_bytes))
        return ERR(ERR_INPUT, "%s: found a Git LFS pointer, expected safetensors; fetch the file itself: git lfs pull",
                   st->path);
    if (header_bytes < 2 || header_bytes > HEADER_MAX_BYTES || header_bytes > st->map_bytes - LENGTH_BYTES)
        return ERR(ERR_INPUT,
                   "%s: found a header length of %llu bytes, expected 2 to %llu (the file has %zu bytes, a header at "
                   "most %u)%s",
                   st->path, (unsigned long long)header_bytes,
                   (unsigned long long)MIN((uint64_t)HEADER_MAX_BYTES, st->map_bytes - LENGTH_BYTES), st->map_bytes,
                   HEADER_MAX_BYTES, header_bytes == 0 ? "; a writer that did not finish leaves 0" : "");
    const char *text = (const char *)st->map + LENGTH_BYTES;
    if (text[0] != '{')
        return ERR(ERR_INPUT, "%s: the header begins with byte 0x%02x, expected '{'", st->path, (unsigned char)text[0]);
    json_t *header = json_loadb(text, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!header)
        return ERR(ERR_INPUT, "%s: header, line %d, column %d: %s (expected one JSON object without duplicate names)",
                   st->path, MAX(error.line, 1), MAX(error.column, 1), error.text);
    status rc = read_tensors(st, header, LENGTH_BYTES + header_bytes);
    if (rc != OK) error_trail(rc, __FILE__, __LINE__, __func__);
    json_decref(header);
    return rc;
}

status safetensors_open(safetensors *st, const char *path) {
    status rc = OK;
    *st = (safetensors){0};
    arena_init(&st->memory);
    st->path = arena_string(&st->memory, path);
    TRY_GOTO(rc, map_file(st), fail);
    TRY_GOTO(rc, read_header(st), fail);
    return OK;
fail:
    safetensors_close(st);
    return rc;
}

size_t safetensors_header_bytes(const safetensors *st) {
    uint64_t length;
    memcpy(&length, st->map, sizeof length);
    return sizeof length + (size_t)length;
}

void safetensors_close(safetensors *st) {
    if (st->map) munmap(st->map, st->map_bytes);
    json_decref(st->metadata);
    arena_fini(&st->memory);
    *st = (safetensors){0};
}

const safetensor *safetensors_find(const safetensors *st, const char *name) {
    if (st->n_tensors == 0) return NULL;
    return bsearch(&(safetensor){.name = name}, st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static status header_add_metadata(json_t *header, const char *path, const char *const *pairs) {
    json_t *object = json_object();
    for (; pairs[0]; pairs += 2) {
        ASSERT(pairs[1]);
        if (json_object_set_new(object, pairs[0], json_string(pairs[1])) != 0) {
            json_decref(object);
            return ERR(ERR_INPUT, "%s: metadata '%.200s': the key or the value is not valid UTF-8", path, pairs[0]);
        }
    }
    json_object_set_new(header, "__metadata__", object);
    return OK;
}

static status header_add_entry(json_t *header, const char *path, const safetensors_entry *e, uint64_t begin,
                               uint64_t end) {
    if (strcmp(e->name, "__metadata__") == 0 || json_object_get(header, e->name))
        return ERR(ERR_INPUT,
                   "%s: tensor '%.200s': found the name twice or a reserved one, expected one name per tensor", path,
                   e->name);
    json_t *dims = json_array();
    for (int i = 0; i < e->shape.rank; i++) json_array_append_new(dims, json_integer(e->shape.dim[i]));
    json_t *info = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_file_name(e->type), "shape", dims, "data_offsets",
                             (json_int_t)begin, (json_int_t)end);
    if (json_object_set_new(header, e->name, info) != 0)
        return ERR(ERR_INPUT, "%s: tensor '%.200s': the name is not valid UTF-8", path, e->name);
    return OK;
}

/* The header as text, padded with spaces so that the data begins aligned. The caller frees. */
static status header_text(safetensors_writer *w, const safetensors_entry *entries, const char *const *metadata,
                          char **out, size_t *n_bytes) {
    status rc = OK;
    json_t *header = json_object();
    uint64_t end = 0;
    if (metadata) TRY_GOTO(rc, header_add_metadata(header, w->path, metadata), done);
    for (size_t i = 0; i < w->n_entries; i++) {
        uint64_t begin = end;
        w->offsets[i] = begin;
        if (__builtin_add_overflow(begin, (uint64_t)shape_bytes(&entries[i].shape, entries[i].type), &end) ||
            end > INT64_MAX / 2) {
            rc = ERR(ERR_INPUT, "%s: tensor '%.200s': the file would grow past 2^62 bytes", w->path, entries[i].name);
            goto done;
        }
        TRY_GOTO(rc, header_add_entry(header, w->path, &entries[i], begin, end), done);
    }
    w->offsets[w->n_entries] = end;
    char *compact = json_dumps(header, JSON_COMPACT);
    ASSERT(compact); /* every part of it was checked above */
    size_t length = strlen(compact);
    w->data_start = align_up(LENGTH_BYTES + length, DATA_ALIGN);
    *n_bytes = (size_t)w->data_start - LENGTH_BYTES;
    if (*n_bytes > HEADER_MAX_BYTES) {
        rc = ERR(ERR_INPUT, "%s: the header of %zu tensors takes %zu bytes, expected at most %u; write several files",
                 w->path, w->n_entries, *n_bytes, HEADER_MAX_BYTES);
        free(compact);
        goto done;
    }
    *out = mem_alloc(*n_bytes);
    memset(*out, ' ', *n_bytes);
    memcpy(*out, compact, length);
    free(compact);
done:
    json_decref(header);
    return rc;
}

status safetensors_writer_open(safetensors_writer *w, const char *path, const safetensors_entry *entries, size_t n,
                               const char *const *metadata) {
    status rc = OK;
    char *header = NULL;
    size_t header_bytes = 0;
    *w = (safetensors_writer){.fd = -1, .n_entries = n};
    arena_init(&w->memory);
    w->path = arena_string(&w->memory, path);
    w->offsets = arena_array(&w->memory, uint64_t, n + 1);
    TRY_GOTO(rc, header_text(w, entries, metadata, &header, &header_bytes), fail);
    /* A new file, not the old one emptied: whoever has the old one mapped keeps it. */
    if (unlink(path) != 0 && errno != ENOENT) {
        rc = ERR(ERR_IO, "replace %s: %s", path, strerror(errno));
        goto fail;
    }
    if ((w->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0) {
        rc = ERR(ERR_IO, "create %s: %s", path, strerror(errno));
        goto fail;
    }
    TRY_GOTO(rc, put_reserve(w->fd, w->path, w->data_start + w->offsets[n]), fail);
    TRY_GOTO(rc, put_at(w->fd, w->path, header, header_bytes, LENGTH_BYTES), fail);
    free(header);
    return OK;
fail:
    free(header);
    safetensors_writer_abort(w);
    return rc;
}

status safetensors_writer_put(safetensors_writer *w, size_t entry, uint64_t byte_offset, const void *data,
                              size_t n_bytes) {
    ASSERT(w->fd >= 0 && entry < w->n_entries);
    uint64_t size = w->offsets[entry + 1] - w->offsets[entry];
    ASSERT(byte_offset <= size && n_bytes <= size - byte_offset);
    TRY(put_at(w->fd, w->path, data, n_bytes, w->data_start + w->offsets[entry] + byte_offset));
    return OK;
}

static status finish(const safetensors_writer *w) {
    uint64_t header_bytes = w->data_start - LENGTH_BYTES;
    if (fsync(w->fd) != 0) return ERR(ERR_IO, "fsync %s: %s", w->path, strerror(errno));
    /* Only now, with everything else on disk, does the file become readable. */
    TRY(put_at(w->fd, w->path, &header_bytes, LENGTH_BYTES, 0));
    if (fsync(w->fd) != 0) return ERR(ERR_IO, "fsync %s: %s", w->path, strerror(errno));
    return OK;
}

status safetensors_writer_close(safetensors_writer *w) {
    status rc = OK;
    ASSERT(w->fd >= 0);
    TRY_GOTO(rc, finish(w), fail);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0) {
        rc = ERR(ERR_IO, "close %s: %s", w->path, strerror(errno));
        unlink(w->path);
    }
    arena_fini(&w->memory);
    *w = (safetensors_writer){.fd = -1};
    return rc;
fail:
    safetensors_writer_abort(w);
    return rc;
}

void safetensors_writer_abort(safetensors_writer *w) {
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->path);
    }
    arena_fini(&w->memory);
    *w = (safetensors_writer){.fd = -1};
}
