/* store.c - tokens of one file, packed as they arrive.
 *
 * In memory the array grows as it is filled and is cut to its size at the end. With a cache slot only a block waits
 * here; the list of documents (16 bytes each) is kept until the end either way. */
#include "data/store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { WRITE_BYTES = 1 << 20, LARGE_BYTES = 64 << 20 };

uint32_t store_width(const tokenizer *t, bool is_text) {
    if (tokenizer_is_byte(t) && is_text) return 1;
    return tokenizer_vocab(t) <= 0x8000 ? 2 : 4;
}

void store_close(token_store *s) {
    if (s->map) {
        munmap(s->map, s->map_bytes);
    } else {
        free((void *)(uintptr_t)s->tokens);
        free((void *)(uintptr_t)s->documents);
    }
    *s = (token_store){0};
}

static status no_memory_error(uint64_t n_bytes) {
    char shown[32];
    return ERR(ERR_FIT, "data: no memory for %s of tokens; set data.cache to a directory to keep them on disk",
               str_format_bytes(shown, n_bytes));
}

/* How far a buffer of n_bytes may grow. Checked for large ones only: the system promises more memory than it has and
 * kills the process that uses it. A sixteenth of the free memory is left to others. */
static uint64_t growth_limit(uint64_t n_bytes, uint64_t wanted) {
    if (wanted < LARGE_BYTES) return wanted;
    sys_info machine;
    sys_info_get(&machine);
    return machine.memory_available ? n_bytes + machine.memory_available / 16 * 15 : wanted;
}

status store_builder_open(store_builder *b, token_store *s, uint32_t width, cache_slot *slot, uint64_t n_bytes_hint) {
    *b = (store_builder){.store = s, .slot = slot};
    *s = (token_store){.width = width};
    b->hash = XXH3_createState();
    ASSERT(b->hash && XXH3_128bits_reset(b->hash) == XXH_OK);
    b->capacity = slot ? WRITE_BYTES : (size_t)n_bytes_hint;
    if (b->capacity > growth_limit(0, b->capacity)) return no_memory_error(b->capacity);
    b->bytes = malloc(MAX(b->capacity, 1));
    if (!b->bytes) return no_memory_error(b->capacity);
    return OK;
}

void store_builder_close(store_builder *b) {
    free(b->bytes);
    free(b->documents);
    XXH3_freeState(b->hash);
    *b = (store_builder){0};
}

static status flush(store_builder *b) {
    if (!b->slot || b->n_bytes == 0) return OK;
    TRY(cache_write(b->slot, b->bytes, b->n_bytes));
    b->n_bytes = 0;
    return OK;
}

/* Room for n more bytes at the end of the buffer. */
static status reserve(store_builder *b, size_t n) {
    if (b->slot && b->n_bytes + n > b->capacity) TRY(flush(b));
    if (b->n_bytes + n <= b->capacity) return OK;
    size_t grown = MAX(b->capacity + b->capacity / 2, b->n_bytes + n);
    grown = (size_t)MIN((uint64_t)grown, growth_limit(b->n_bytes, grown));
    if (grown < b->n_bytes + n) return no_memory_error(b->n_bytes + n);
    unsigned char *more = realloc(b->bytes, grown);
    if (!more) return no_memory_error(grown);
    b->bytes = more;
    b->capacity = grown;
    return OK;
}

static void hash_last(store_builder *b, size_t n) {
    ASSERT(XXH3_128bits_update(b->hash, b->bytes + b->n_bytes - n, n) == XXH_OK);
}

status store_add_bytes(store_builder *b, const char *bytes, size_t n) {
    TRY(reserve(b, n));
    memcpy(b->bytes + b->n_bytes, bytes, n);
    b->n_bytes += n;
    b->store->n_tokens += n;
    b->n_trained += n;
    hash_last(b, n);
    return OK;
}

status store_add(store_builder *b, const int32_t *ids, const unsigned char *trained, size_t n) {
    uint32_t width = b->store->width;
    TRY(reserve(b, n * width));
    unsigned char *at = b->bytes + b->n_bytes;
    for (size_t i = 0; i < n; i++, at += width) {
        bool on = !trained || trained[i];
        b->n_trained += on;
        if (width == 2) memcpy(at, &(uint16_t){(uint16_t)((uint32_t)ids[i] | (on ? 0 : 0x8000u))}, 2);
        else memcpy(at, &(uint32_t){(uint32_t)ids[i] | (on ? 0 : 0x80000000u)}, 4);
    }
    b->n_bytes += n * width;
    b->store->n_tokens += n;
    hash_last(b, n * width);
    return OK;
}

void store_end_document(store_builder *b) {
    token_store *s = b->store;
    b->documents = array_grow(b->documents, &b->documents_capacity, s->n_documents + 1, sizeof *b->documents);
    b->documents[s->n_documents++] = (store_document){.end = s->n_tokens, .n_trained = b->n_trained};
    b->n_trained = 0;
}

void store_mark_undesirable(store_builder *b) { b->documents[b->store->n_documents - 1].is_undesirable = 1; }

status store_builder_finish(store_builder *b) {
    token_store *s = b->store;
    size_t n_documents_bytes = s->n_documents * sizeof *b->documents;
    ASSERT(XXH3_128bits_update(b->hash, b->documents, n_documents_bytes) == XXH_OK);
    XXH128_hash_t h = XXH3_128bits_digest(b->hash);
    s->hash = (hash128){h.low64, h.high64};
    if (b->slot) {
        static const unsigned char zeros[8];
        size_t padding = (8 - s->n_tokens * s->width % 8) % 8;
        TRY(flush(b));
        TRY(cache_write(b->slot, zeros, padding));
        TRY(cache_write(b->slot, b->documents, n_documents_bytes));
        return OK;
    }
    unsigned char *exact = realloc(b->bytes, MAX(b->n_bytes, 1));
    store_document *documents = realloc(b->documents, MAX(n_documents_bytes, 1));
    s->tokens = exact ? exact : b->bytes;
    s->documents = documents ? documents : b->documents;
    s->heap_bytes = b->n_bytes + (s->is_text ? 0 : n_documents_bytes);
    b->bytes = NULL;
    b->documents = NULL;
    return OK;
}
