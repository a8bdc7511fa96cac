/* gguf.c - GGUF version 3, written: magic, metadata, a table of tensors, their data.
 *
 * The header is put together in memory, so that all offsets are known before the first byte of a tensor, and tensors are
 * written as they come. The largest part of it is a tokenizer: some megabytes.
 * Nothing is read here: ralo takes models as Hugging Face directories. */
#include "weightfile/weightfile.h"
#include "weightfile/put.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "GGUF"
enum { VERSION = 3, ALIGNMENT = 32, MAGIC_BYTES = 4, COUNTS_BYTES = 24 }; /* magic, version and both counts */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

gguf_layout gguf_layout_of(gguf_type t) {
    switch (t) {
    case GGUF_TYPE_F32: return (gguf_layout){1, 4, "f32"};
    case GGUF_TYPE_F16: return (gguf_layout){1, 2, "f16"};
    case GGUF_TYPE_BF16: return (gguf_layout){1, 2, "bf16"};
    case GGUF_TYPE_Q5_0: return (gguf_layout){32, 22, "q5_0"};
    case GGUF_TYPE_Q8_0: return (gguf_layout){32, 34, "q8_0"};
    case GGUF_TYPE_Q4_K: return (gguf_layout){256, 144, "q4_k"};
    case GGUF_TYPE_Q6_K: return (gguf_layout){256, 210, "q6_k"};
    }
    ASSERT(!"a type of gguf.h");
    return (gguf_layout){0};
}

/* ---- header ------------------------------------------------------------------------------------------------------ */

void gguf_header_init(gguf_header *h) {
    *h = (gguf_header){0};
    strbuf_init(&h->pairs);
    strbuf_init(&h->infos);
}

void gguf_header_fini(gguf_header *h) {
    strbuf_fini(&h->pairs);
    strbuf_fini(&h->infos);
    free(h->tensors);
    *h = (gguf_header){0};
}

static void add_u32(strbuf *b, uint32_t x) { strbuf_add_bytes(b, &x, sizeof x); }
static void add_u64(strbuf *b, uint64_t x) { strbuf_add_bytes(b, &x, sizeof x); }
static void add_string(strbuf *b, const char *text, size_t n_bytes) {
    add_u64(b, n_bytes);
    strbuf_add_bytes(b, text, n_bytes);
}

static void add_key(gguf_header *h, const char *key, gguf_kind kind) {
    add_string(&h->pairs, key, strlen(key));
    add_u32(&h->pairs, kind);
    h->n_pairs++;
}

void gguf_add_u32(gguf_header *h, const char *key, uint32_t x) {
    add_key(h, key, GGUF_U32);
    add_u32(&h->pairs, x);
}

void gguf_add_f32(gguf_header *h, const char *key, float x) {
    add_key(h, key, GGUF_F32);
    gguf_put_f32(h, x);
}

void gguf_add_bool(gguf_header *h, const char *key, bool x) {
    add_key(h, key, GGUF_BOOL);
    strbuf_add_bytes(&h->pairs, &(char){x}, 1);
}

void gguf_add_text(gguf_header *h, const char *key, const char *text) { gguf_add_bytes(h, key, text, strlen(text)); }

void gguf_add_bytes(gguf_header *h, const char *key, const char *text, size_t n_bytes) {
    add_key(h, key, GGUF_TEXT);
    gguf_put_text(h, text, n_bytes);
}

void gguf_add_array(gguf_header *h, const char *key, gguf_kind of, uint64_t n) {
    add_key(h, key, GGUF_ARRAY);
    add_u32(&h->pairs, of);
    add_u64(&h->pairs, n);
}

void gguf_put_i32(gguf_header *h, int32_t x) { strbuf_add_bytes(&h->pairs, &x, sizeof x); }
void gguf_put_f32(gguf_header *h, float x) { strbuf_add_bytes(&h->pairs, &x, sizeof x); }
void gguf_put_text(gguf_header *h, const char *text, size_t n_bytes) { add_string(&h->pairs, text, n_bytes); }

size_t gguf_add_tensor(gguf_header *h, const char *name, gguf_type t, int64_t rows, int64_t columns) {
    ASSERT(columns % gguf_layout_of(t).block == 0);
    h->tensors = array_grow(h->tensors, &h->capacity, h->n_tensors + 1, sizeof *h->tensors);
    gguf_tensor *added = &h->tensors[h->n_tensors];
    *added = (gguf_tensor){h->data_bytes, (uint64_t)MAX(rows, (int64_t)1) * gguf_row_bytes(t, columns)};
    add_string(&h->infos, name, strlen(name));
    add_u32(&h->infos, rows ? 2 : 1);
    add_u64(&h->infos, (uint64_t)columns); /* the dimension that varies fastest comes first */
    if (rows) add_u64(&h->infos, (uint64_t)rows);
    add_u32(&h->infos, t);
    add_u64(&h->infos, added->offset);
    h->data_bytes = align_up(added->offset + added->n_bytes, ALIGNMENT);
    return h->n_tensors++;
}

static uint64_t data_start(const gguf_header *h) {
    return align_up(COUNTS_BYTES + h->pairs.length + h->infos.length, ALIGNMENT);
}

uint64_t gguf_file_bytes(const gguf_header *h) { return data_start(h) + h->data_bytes; }

/* ---- file -------------------------------------------------------------------------------------------------------- */

status gguf_writer_open(gguf_writer *w, int fd, const char *path, const gguf_header *h) {
    *w = (gguf_writer){.fd = fd, .path = path, .h = h, .data_start = data_start(h)};
    uint64_t counts[] = {h->n_tensors, h->n_pairs};
    uint32_t version = VERSION;
    TRY(put_reserve(fd, path, gguf_file_bytes(h)));
    TRY(put_at(fd, path, &version, sizeof version, MAGIC_BYTES));
    TRY(put_at(fd, path, counts, sizeof counts, COUNTS_BYTES - sizeof counts));
    TRY(put_at(fd, path, h->pairs.text, h->pairs.length, COUNTS_BYTES));
    TRY(put_at(fd, path, h->infos.text, h->infos.length, COUNTS_BYTES + h->pairs.length));
    return OK;
}

status gguf_writer_put(gguf_writer *w, size_t tensor, uint64_t byte_offset, const void *data, size_t n_bytes) {
    ASSERT(tensor < w->h->n_tensors);
    const gguf_tensor *t = &w->h->tensors[tensor];
    ASSERT(byte_offset <= t->n_bytes && n_bytes <= t->n_bytes - byte_offset);
    return put_at(w->fd, w->path, data, n_bytes, w->data_start + t->offset + byte_offset);
}

status gguf_writer_finish(gguf_writer *w) {
    if (fsync(w->fd) != 0) return ERR(ERR_IO, "fsync %s: %s", w->path, strerror(errno));
    TRY(put_at(w->fd, w->path, MAGIC, MAGIC_BYTES, 0)); /* only now can it be read */
    if (fsync(w->fd) != 0) return ERR(ERR_IO, "fsync %s: %s", w->path, strerror(errno));
    return OK;
}
