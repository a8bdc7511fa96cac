#pragma once
/* seal.h - private to checkpoint: the format that the writer and the reader of a checkpoint directory share.
 *
 * Checksums are XXH3 with 128 bits, in hex. A sealed file is a JSON object whose last member is the checksum of all
 * the text before it, compared as bytes, so even a changed blank is found. */
#include "format/format.h"

#include <xxhash.h>

#define CHECKPOINT_FORMAT "ralo checkpoint"
enum {
    CHECKPOINT_VERSION = 1,
    CHECKPOINT_CHUNK = 1 << 20, /* read, hashed and written in one go, while it is in the cache */
    CHECKSUM_BYTES = 32,        /* without the 0 */
    SEALED_MAX_BYTES = 256 << 20,
};

void checksum_format(char out[CHECKSUM_BYTES + 1], XXH128_hash_t h);
void checksum_hex(char out[CHECKSUM_BYTES + 1], const void *data, size_t n_bytes);
status sealed_write(const char *path, const json_t *root); /* a new file, on disk when it returns */
status sealed_read(const char *path, json_t **out);        /* damage is refused; the caller takes the object */
