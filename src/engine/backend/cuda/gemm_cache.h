#pragma once
/* gemm_cache.h - which algorithm was measured fastest for a product, kept between runs; no CUDA in here.
 *
 * Promises
 *   - What is read is data, never trusted: an answer is a number that the caller must find among algorithms it knows.
 *   - The first process that keeps an answer wins, and every other takes that one: all have the same bits from then on.
 *   - Nothing here is an error. A cache that cannot be kept says so once and answers `false`.
 *
 *     gemm_cache_open(&s, directory, "gemm-nvidia-h200-132-130100.txt");
 *     if (!gemm_cache_find(&s, key, &algorithm) && s.writable)
 *         gemm_cache_keep(&s, key, measure(), NULL, &algorithm);
 *     gemm_cache_close(&s); */
#include "base/base.h"

enum { GEMM_KEY_MOST = 127 }; /* characters of a key: printable ASCII */

typedef struct gemm_cache_entry {
    char key[GEMM_KEY_MOST + 1];
    uint64_t algorithm;
} gemm_cache_entry;

typedef struct gemm_cache {
    char *path, *lock_path; /* NULL: keeps nothing */
    bool writable;
    gemm_cache_entry *entries;
    size_t n_entries, capacity;
} gemm_cache;

/* directory NULL: $XDG_CACHE_HOME/ralo or ~/.cache/ralo; "": nowhere. */
void gemm_cache_open(gemm_cache *s, const char *directory, const char *file_name);
void gemm_cache_close(gemm_cache *s);
bool gemm_cache_find(const gemm_cache *s, const char *key, uint64_t *algorithm);
/* Writes the file again with this answer; *kept is the one that stands there afterwards, this or that of another process.
 * instead_of: what gemm_cache_find said and was of no use, to be replaced; NULL: nothing. False: it could not be written. */
bool gemm_cache_keep(gemm_cache *s, const char *key, uint64_t algorithm, const uint64_t *instead_of, uint64_t *kept);
