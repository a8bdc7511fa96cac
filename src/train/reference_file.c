/* reference_file.c - the losses of a reference on disk: header, where each example begins, fp32 losses.
 *
 * Written to a temporary name, flushed and renamed, so it is whole or not there. Opening reads it once from end to end: sizes,
 * order of the index, finite numbers and a checksum, so a file that was cut, damaged or written by someone else is an error with
 * its name and not another loss. Steps then read the numbers of their examples where they are, from the page cache: the host
 * holds nothing of it.
 * Numbers have the byte order of the machine; another one reads another magic number. */
#include "train/reference_file.h"

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
    reference_identity id;
    uint64_t n_losses;
    uint64_t checksum[2]; /* of the header with zeros here, and all behind it */
} header;
_Static_assert(sizeof(header) == 64, "no padding");

/* The places of an example's losses: split s, example e at entry first_entry(s) + e. */
static uint64_t first_entry(const reference_identity *id, split s) { return s == SPLIT_TRAIN ? 0 : id->n_examples[0]; }
static uint64_t n_entries(const reference_identity *id) { return id->n_examples[0] + id->n_examples[1] + 1; }
static uint64_t index_at(uint64_t entry) { return sizeof(header) + entry * sizeof(uint64_t); }
static uint64_t losses_at(const reference_identity *id, uint64_t number) {
    return index_at(n_entries(id)) + number * sizeof(float);
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

struct reference_writer {
    strbuf path, temporary;
    int fd;
    reference_identity id;
    uint64_t *begins; /* n_entries; before the layout: sizes, one entry later */
};

status reference_file_create(reference_writer **out, const char *path, const uint64_t n_examples[2]) {
    reference_writer *w = mem_alloc(sizeof *w);
    *w = (reference_writer){.fd = -1, .id = {.n_examples = {n_examples[0], n_examples[1]}}};
    strbuf_init(&w->path);
    strbuf_init(&w->temporary);
    strbuf_add(&w->path, path);
    size_t n_bytes = (size_t)n_entries(&w->id) * sizeof *w->begins;
    w->begins = memset(mem_alloc(n_bytes), 0, n_bytes);
    status rc = temporary_make(path, false, &w->temporary, &w->fd);
    if (rc != OK) {
        reference_writer_close(w);
        return error_trail(rc, __FILE__, __LINE__, __func__);
    }
    *out = w;
    return OK;
}

void reference_writer_close(reference_writer *w) {
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

void reference_file_count(reference_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T) {
    for (int64_t t = next_example(segments, T, 0, -1); t < T;) {
        int32_t slot = segments[t] / PART_STRIDE;
        w->begins[first_entry(&w->id, s) + (uint64_t)examples[slot] + 1] = (uint64_t)count_slot(segments, T, t, slot);
        t = next_example(segments, T, t, slot);
    }
}

status reference_file_lay_out(reference_writer *w) {
    for (uint64_t i = 1; i < n_entries(&w->id); i++) w->begins[i] += w->begins[i - 1];
    return write_exactly(w->fd, w->temporary.text, index_at(0), w->begins,
                         (size_t)n_entries(&w->id) * sizeof *w->begins);
}

status reference_file_add(reference_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T,
                          const float *losses) {
    for (int64_t t = next_example(segments, T, 0, -1); t < T;) {
        int32_t slot = segments[t] / PART_STRIDE;
        uint64_t at = losses_at(&w->id, w->begins[first_entry(&w->id, s) + (uint64_t)examples[slot]]);
        float piece[ROW_PIECE];
        size_t n = 0;
        int64_t i = t;
        for (; i < T && (segments[i] < 0 || segments[i] / PART_STRIDE == slot); i++) {
            if (segments[i] < 0) continue;
            if (!isfinite(losses[i]))
                return ERR(ERR_RUN,
                           "preference.reference: the reference has the loss %g for a token of example %d of the %s "
                           "data, expected a finite number; check the model and the data",
                           (double)losses[i], examples[slot], s == SPLIT_TRAIN ? "training" : "held-out");
            piece[n++] = losses[i];
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

status reference_file_commit(reference_writer *w, const reference_identity *id, uint64_t *n_bytes) {
    const char *path = w->temporary.text;
    header h = {.magic = MAGIC, .id = *id, .n_losses = w->begins[n_entries(&w->id) - 1]};
    ASSERT(memcmp(id->n_examples, w->id.n_examples, sizeof id->n_examples) == 0);
    *n_bytes = losses_at(id, h.n_losses);
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

struct reference_file {
    strbuf path;
    int fd;
    header h;
};

static status damaged(const char *path, const char *why) {
    return ERR(ERR_INPUT, "%s: %s; it is not the file that this run wrote: start a new run in another run.dir", path,
               why);
}

static status check_header(const reference_file *f, uint64_t n_bytes, const reference_identity *id) {
    const header *h = &f->h;
    const char *path = f->path.text;
    if (h->magic != MAGIC) return damaged(path, "found no log-probabilities of a reference");
    if (h->id.data != id->data || memcmp(h->id.n_examples, id->n_examples, sizeof id->n_examples) != 0)
        return damaged(path, "found log-probabilities of other data than data.* and its files give now");
    if (id->model && h->id.model != id->model)
        return ERR(ERR_INPUT,
                   "%s: found log-probabilities of a reference whose parameters have the hash %016llx, expected "
                   "%016llx; start a new run in another run.dir",
                   path, (unsigned long long)h->id.model, (unsigned long long)id->model);
    /* n_examples are those of the data, so nothing overflows; n_losses is anyone's. */
    if (h->n_losses > n_bytes / sizeof(float) || n_bytes != losses_at(&h->id, h->n_losses))
        return damaged(path, "found a size that does not fit its header");
    return OK;
}

static status check_index(const reference_file *f) {
    uint64_t before = 0, piece[PIECE / sizeof(uint64_t)], n = n_entries(&f->h.id);
    for (uint64_t i = 0; i < n; i += ARRAY_LENGTH(piece)) {
        size_t m = (size_t)MIN(n - i, (uint64_t)ARRAY_LENGTH(piece));
        TRY(read_exactly(f->fd, f->path.text, index_at(i), piece, m * sizeof *piece));
        for (size_t k = 0; k < m; before = piece[k++])
            if (piece[k] < before || piece[k] > f->h.n_losses || (i + k == 0 && piece[k] != 0))
                return damaged(f->path.text, "found an index that is out of order");
    }
    return before == f->h.n_losses ? OK : damaged(f->path.text, "found an index that does not end with the file");
}

static status check_losses(const reference_file *f) {
    float piece[PIECE / sizeof(float)];
    for (uint64_t i = 0; i < f->h.n_losses; i += ARRAY_LENGTH(piece)) {
        size_t m = (size_t)MIN(f->h.n_losses - i, (uint64_t)ARRAY_LENGTH(piece));
        TRY(read_exactly(f->fd, f->path.text, losses_at(&f->h.id, i), piece, m * sizeof *piece));
        for (size_t k = 0; k < m; k++)
            if (!isfinite(piece[k])) return damaged(f->path.text, "found a log-probability that is not finite");
    }
    return OK;
}

static status open_checked(reference_file *f, const reference_identity *id) {
    uint64_t n_bytes, sum[2];
    const char *path = f->path.text;
    TRY(file_open_at(AT_FDCWD, path, path, &f->fd, &n_bytes));
    if (n_bytes < sizeof f->h) return damaged(path, "found fewer bytes than a header has");
    TRY(read_exactly(f->fd, path, 0, &f->h, sizeof f->h));
    TRY(check_header(f, n_bytes, id));
    TRY(check_index(f));
    TRY(check_losses(f));
    TRY(checksum_of(f->fd, path, f->h, n_bytes, sum));
    return memcmp(sum, f->h.checksum, sizeof sum) == 0 ? OK
                                                       : damaged(path, "found another checksum than its header has");
}

status reference_file_open(reference_file **out, const char *path, const reference_identity *id) {
    reference_file *f = mem_alloc(sizeof *f);
    *f = (reference_file){.fd = -1};
    strbuf_init(&f->path);
    strbuf_add(&f->path, path);
    *out = f;
    status rc = open_checked(f, id);
    if (rc == OK) return OK;
    reference_file_close(f);
    *out = NULL;
    return error_trail(rc, __FILE__, __LINE__, __func__);
}

uint64_t reference_file_model(const reference_file *f) { return f->h.id.model; }

void reference_file_close(reference_file *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    strbuf_fini(&f->path);
    free(f);
}

/* The numbers of one example, some at a time, to its tokens from t on. */
static status read_example(const reference_file *f, uint64_t at, const int32_t *segments, int64_t T, int64_t t,
                           int64_t n, float *losses) {
    float piece[ROW_PIECE];
    int32_t slot = segments[t] / PART_STRIDE;
    for (int64_t done = 0; done < n; t++) {
        ASSERT(t < T);
        if (segments[t] < 0 || segments[t] / PART_STRIDE != slot) continue;
        if (done % ROW_PIECE == 0)
            TRY(read_exactly(f->fd, f->path.text, at + (uint64_t)done * sizeof *piece, piece,
                             (size_t)MIN(n - done, (int64_t)ROW_PIECE) * sizeof *piece));
        losses[t] = piece[done++ % ROW_PIECE];
    }
    return OK;
}

status reference_file_read(const reference_file *f, split s, const int32_t *segments, const int32_t *examples,
                           int64_t T, float *losses) {
    for (int64_t t = 0; t < T; t++) losses[t] = 0;
    for (int64_t t = next_example(segments, T, 0, -1); t < T;) {
        int32_t slot = segments[t] / PART_STRIDE;
        int64_t n = count_slot(segments, T, t, slot);
        uint64_t places[2], entry = first_entry(&f->h.id, s) + (uint64_t)examples[slot];
        TRY(read_exactly(f->fd, f->path.text, index_at(entry), places, sizeof places));
        if (places[1] < places[0] || places[1] > f->h.n_losses || places[1] - places[0] != (uint64_t)n)
            return ERR(ERR_INPUT,
                       "%s: found %lld log-probabilities for example %d, expected %lld; the file or the data has "
                       "changed during the run",
                       f->path.text, (long long)(places[1] - places[0]), examples[slot], (long long)n);
        TRY(read_example(f, losses_at(&f->h.id, places[0]), segments, T, t, n, losses));
        t = next_example(segments, T, t, slot);
    }
    return OK;
}
