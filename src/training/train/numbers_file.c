/* numbers_file.c - numbers of a frozen model on disk: header, where each entry begins, fp32 numbers.
 *
 * Written to a temporary name, flushed and renamed, so it is whole or not there. Opening reads it once from end to end: sizes,
 * order of the index, finite numbers and a checksum, so a file that was cut, damaged or written by someone else is an error with
 * its name and not another loss. Steps then read the numbers of their rows where they are, from the page cache: the host
 * holds nothing of it.
 * Numbers have the byte order of the machine; another one reads another magic number. */
#include "train/numbers_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC 0x31666572206f6c61ull /* "alo ref1" */
enum { PIECE = 4096, ROW_PIECE = 256 };

typedef struct header {
    uint64_t magic;
    numbers_identity id;
    uint64_t n_numbers;
    uint64_t checksum[2]; /* of the header with zeros here, and all behind it */
} header;
_Static_assert(sizeof(header) == 64, "no padding");

/* The places of an entry: split s, entry e of it at first_entry(s) + e. */
static uint64_t first_entry(const numbers_identity *id, split s) { return s == SPLIT_TRAIN ? 0 : id->n_entries[0]; }
static uint64_t entry_count(const numbers_identity *id) { return id->n_entries[0] + id->n_entries[1] + 1; }
static uint64_t index_at(uint64_t entry) { return sizeof(header) + entry * sizeof(uint64_t); }
static uint64_t numbers_at(const numbers_identity *id, uint64_t number) {
    return index_at(entry_count(id)) + number * sizeof(float);
}

uint64_t numbers_file_bytes(uint64_t n_entries, uint64_t n_numbers) {
    return index_at(n_entries + 1) + n_numbers * sizeof(float);
}

static status read_exactly(int fd, const char *path, uint64_t at, void *out, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return ERR(ERR_IO, "read %s at byte %llu: %s", path, (unsigned long long)(at + done),
                       got ? strerror(errno) : "the file ends there");
        done += (size_t)got;
    }
    return OK;
}

static status write_exactly(int fd, const char *path, uint64_t at, const void *from, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(fd, (const char *)from + done, n - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return ERR(ERR_IO, "write %s: %s", path, strerror(errno));
        done += (size_t)put;
    }
    return OK;
}

/* Walks the tokens of a row that belong to the example in `slot`; they stand together. */
static int64_t count_slot(const int32_t *segments, int64_t T, int64_t from, int32_t slot) {
    int64_t n = 0;
    for (int64_t t = from; t < T; t++) n += segments[t] >= 0 && segments[t] / PART_STRIDE == slot;
    return n;
}

/* The first trained token of the next example at or after t; T: there is none. */
static int64_t next_example(const int32_t *segments, int64_t T, int64_t t, int32_t after) {
    while (t < T && (segments[t] < 0 || segments[t] / PART_STRIDE == after)) t++;
    return t;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

struct numbers_writer {
    strbuf path, temporary;
    const numbers_words *words;
    int fd;
    numbers_identity id;
    uint64_t *begins; /* n_entries; before the layout: sizes, one entry later */
};

status numbers_file_create(numbers_writer **out, const char *path, const numbers_words *words,
                           const uint64_t n_entries[2]) {
    numbers_writer *w = mem_alloc(sizeof *w);
    *w = (numbers_writer){.fd = -1, .words = words, .id = {.n_entries = {n_entries[0], n_entries[1]}}};
    strbuf_init(&w->path);
    strbuf_init(&w->temporary);
    strbuf_add(&w->path, path);
    size_t n_bytes = (size_t)entry_count(&w->id) * sizeof *w->begins;
    w->begins = memset(mem_alloc(n_bytes), 0, n_bytes);
    status rc = temporary_make(path, false, &w->temporary, &w->fd);
    if (rc != OK) {
        numbers_writer_close(w);
        return error_trail(rc, __FILE__, __LINE__, __func__);
    }
    *out = w;
    return OK;
}

void numbers_writer_close(numbers_writer *w) {
    if (!w) return;
    if (w->fd >= 0) {
        unlink(w->temporary.text);
        close(w->fd);
    }
    strbuf_fini(&w->path);
    strbuf_fini(&w->temporary);
    free(w->begins);
    free(w);
}

void numbers_file_count(numbers_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T) {
    for (int64_t t = next_example(segments, T, 0, -1); t < T;) {
        int32_t slot = segments[t] / PART_STRIDE;
        w->begins[first_entry(&w->id, s) + (uint64_t)examples[slot] + 1] = (uint64_t)count_slot(segments, T, t, slot);
        t = next_example(segments, T, t, slot);
    }
}

status numbers_file_lay_out(numbers_writer *w) {
    for (uint64_t i = 1; i < entry_count(&w->id); i++) w->begins[i] += w->begins[i - 1];
    return write_exactly(w->fd, w->temporary.text, index_at(0), w->begins,
                         (size_t)entry_count(&w->id) * sizeof *w->begins);
}

status numbers_file_add(numbers_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T,
                        const float *numbers) {
    for (int64_t t = next_example(segments, T, 0, -1); t < T;) {
        int32_t slot = segments[t] / PART_STRIDE;
        uint64_t at = numbers_at(&w->id, w->begins[first_entry(&w->id, s) + (uint64_t)examples[slot]]);
        float piece[ROW_PIECE];
        size_t n = 0;
        int64_t i = t;
        for (; i < T && (segments[i] < 0 || segments[i] / PART_STRIDE == slot); i++) {
            if (segments[i] < 0) continue;
            if (!isfinite(numbers[i]))
                return ERR(ERR_RUN,
                           "%s: the model has the number %g for a token of %s %d of the %s data, expected a finite "
                           "one; check the model and the data",
                           w->words->key, (double)numbers[i], w->words->entry, examples[slot],
                           s == SPLIT_TRAIN ? "training" : "held-out");
            piece[n++] = numbers[i];
            if (n < ROW_PIECE) continue;
            TRY(write_exactly(w->fd, w->temporary.text, at, piece, n * sizeof *piece));
            at += n * sizeof *piece, n = 0;
        }
        TRY(write_exactly(w->fd, w->temporary.text, at, piece, n * sizeof *piece));
        t = next_example(segments, T, t, slot);
    }
    return OK;
}

static status checksum_of(int fd, const char *path, header h, uint64_t n_bytes, uint64_t out[2]) {
    unsigned char piece[PIECE];
    XXH3_state_t *state = XXH3_createState();
    status rc = OK;
    h.checksum[0] = h.checksum[1] = 0;
    ASSERT(state && XXH3_128bits_reset(state) == XXH_OK && XXH3_128bits_update(state, &h, sizeof h) == XXH_OK);
    for (uint64_t at = sizeof h; at < n_bytes && rc == OK; at += PIECE) {
        size_t n = (size_t)MIN(n_bytes - at, (uint64_t)PIECE);
        rc = read_exactly(fd, path, at, piece, n);
        if (rc == OK) ASSERT(XXH3_128bits_update(state, piece, n) == XXH_OK);
    }
    XXH128_hash_t sum = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    out[0] = sum.low64, out[1] = sum.high64;
    return rc;
}

status numbers_file_commit(numbers_writer *w, const numbers_identity *id, uint64_t *n_bytes) {
    const char *path = w->temporary.text;
    header h = {.magic = MAGIC, .id = *id, .n_numbers = w->begins[entry_count(&w->id) - 1]};
    ASSERT(memcmp(id->n_entries, w->id.n_entries, sizeof id->n_entries) == 0);
    *n_bytes = numbers_at(id, h.n_numbers);
    if (ftruncate(w->fd, (off_t)*n_bytes) != 0) return ERR(ERR_IO, "write %s: %s", path, strerror(errno));
    TRY(checksum_of(w->fd, path, h, *n_bytes, h.checksum));
    TRY(write_exactly(w->fd, path, 0, &h, sizeof h));
    if (fsync(w->fd) != 0) return ERR(ERR_IO, "write %s: %s", path, strerror(errno));
    if (rename(path, w->path.text) != 0) return ERR(ERR_IO, "rename %s to %s: %s", path, w->path.text, strerror(errno));
    close(w->fd);
    w->fd = -1;
    char *slash = strrchr(w->path.text, '/');
    if (slash) *slash = 0; /* the path was needed for the last time */
    return dir_sync(slash ? w->path.text : ".");
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

struct numbers_file {
    strbuf path;
    const numbers_words *words;
    int fd;
    header h;
};

static status damaged(const numbers_file *f, const char *why) {
    return ERR(ERR_INPUT,
               "%s: found %s, expected %s; it is not the file that this run wrote: start a new run in another run.dir",
               f->path.text, why, f->words->numbers);
}

static status check_header(const numbers_file *f, uint64_t n_bytes, const numbers_identity *id) {
    const header *h = &f->h;
    if (h->magic != MAGIC) return damaged(f, "no file of numbers");
    if (h->id.data != id->data || memcmp(h->id.n_entries, id->n_entries, sizeof id->n_entries) != 0)
        return damaged(f, "numbers of other data than data.* and its files give now");
    if (id->model && h->id.model != id->model)
        return ERR(ERR_INPUT,
                   "%s: found %s whose parameters have the hash %016llx, expected %016llx; start a new run in another "
                   "run.dir",
                   f->path.text, f->words->numbers, (unsigned long long)h->id.model, (unsigned long long)id->model);
    /* n_entries are those of the data, so nothing overflows; n_numbers is anyone's. */
    if (h->n_numbers > n_bytes / sizeof(float) || n_bytes != numbers_at(&h->id, h->n_numbers))
        return damaged(f, "a size that does not fit its header");
    return OK;
}

static status check_index(const numbers_file *f) {
    uint64_t before = 0, piece[PIECE / sizeof(uint64_t)], n = entry_count(&f->h.id);
    for (uint64_t i = 0; i < n; i += ARRAY_LENGTH(piece)) {
        size_t m = (size_t)MIN(n - i, (uint64_t)ARRAY_LENGTH(piece));
        TRY(read_exactly(f->fd, f->path.text, index_at(i), piece, m * sizeof *piece));
        for (size_t k = 0; k < m; before = piece[k++])
            if (piece[k] < before || piece[k] > f->h.n_numbers || (i + k == 0 && piece[k] != 0))
                return damaged(f, "an index that is out of order");
    }
    return before == f->h.n_numbers ? OK : damaged(f, "an index that does not end with the file");
}

static status check_numbers(const numbers_file *f) {
    float piece[PIECE / sizeof(float)];
    for (uint64_t i = 0; i < f->h.n_numbers; i += ARRAY_LENGTH(piece)) {
        size_t m = (size_t)MIN(f->h.n_numbers - i, (uint64_t)ARRAY_LENGTH(piece));
        TRY(read_exactly(f->fd, f->path.text, numbers_at(&f->h.id, i), piece, m * sizeof *piece));
        for (size_t k = 0; k < m; k++)
            if (!isfinite(piece[k])) return damaged(f, "a number that is not finite");
    }
    return OK;
}

static status open_checked(numbers_file *f, const numbers_identity *id) {
    uint64_t n_bytes, sum[2];
    const char *path = f->path.text;
    TRY(file_open_at(AT_FDCWD, path, path, &f->fd, &n_bytes));
    if (n_bytes < sizeof f->h) return damaged(f, "fewer bytes than a header has");
    TRY(read_exactly(f->fd, path, 0, &f->h, sizeof f->h));
    TRY(check_header(f, n_bytes, id));
    TRY(check_index(f));
    TRY(check_numbers(f));
    TRY(checksum_of(f->fd, path, f->h, n_bytes, sum));
    return memcmp(sum, f->h.checksum, sizeof sum) == 0 ? OK : damaged(f, "another checksum than its header has");
}

status numbers_file_open(numbers_file **out, const char *path, const numbers_words *words, const numbers_identity *id) {
    numbers_file *f = mem_alloc(sizeof *f);
    *f = (numbers_file){.fd = -1, .words = words};
    strbuf_init(&f->path);
    strbuf_add(&f->path, path);
    *out = f;
    status rc = open_checked(f, id);
    if (rc == OK) return OK;
    numbers_file_close(f);
    *out = NULL;
    return error_trail(rc, __FILE__, __LINE__, __func__);
}

uint64_t numbers_file_model(const numbers_file *f) { return f->h.id.model; }

status numbers_file_length(const numbers_file *f, split s, uint64_t entry, uint64_t *out) {
    uint64_t places[2];
    ASSERT(entry < f->h.id.n_entries[s]);
    TRY(read_exactly(f->fd, f->path.text, index_at(first_entry(&f->h.id, s) + entry), places, sizeof places));
    *out = places[1] - places[0];
    return OK;
}

void numbers_file_close(numbers_file *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    strbuf_fini(&f->path);
    free(f);
}

/* The numbers of one entry, some at a time, to its tokens from t on. */
static status read_entry(const numbers_file *f, uint64_t at, const int32_t *segments, int64_t T, int64_t t, int64_t n,
                         float *numbers) {
    float piece[ROW_PIECE];
    int32_t slot = segments[t] / PART_STRIDE;
    for (int64_t done = 0; done < n; t++) {
        ASSERT(t < T);
        if (segments[t] < 0 || segments[t] / PART_STRIDE != slot) continue;
        if (done % ROW_PIECE == 0)
            TRY(read_exactly(f->fd, f->path.text, at + (uint64_t)done * sizeof *piece, piece,
                             (size_t)MIN(n - done, (int64_t)ROW_PIECE) * sizeof *piece));
        numbers[t] = piece[done++ % ROW_PIECE];
    }
    return OK;
}

status numbers_file_read(const numbers_file *f, split s, const int32_t *segments, const int32_t *examples, int64_t T,
                         float *numbers) {
    for (int64_t t = 0; t < T; t++) numbers[t] = 0;
    for (int64_t t = next_example(segments, T, 0, -1); t < T;) {
        int32_t slot = segments[t] / PART_STRIDE;
        int64_t n = count_slot(segments, T, t, slot);
        uint64_t places[2], entry = first_entry(&f->h.id, s) + (uint64_t)examples[slot];
        TRY(read_exactly(f->fd, f->path.text, index_at(entry), places, sizeof places));
        if (places[1] < places[0] || places[1] > f->h.n_numbers || places[1] - places[0] != (uint64_t)n)
            return ERR(ERR_INPUT,
                       "%s: found %lld numbers for %s %d, expected %lld; the file or the data has changed during the "
                       "run",
                       f->path.text, (long long)(places[1] - places[0]), f->words->entry, examples[slot], (long long)n);
        TRY(read_entry(f, numbers_at(&f->h.id, places[0]), segments, T, t, n, numbers));
        t = next_example(segments, T, t, slot);
    }
    return OK;
}
