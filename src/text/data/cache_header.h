#pragma once
/* cache_header.h - private to data: how a file of the token cache begins. The payload follows. */
#include "data/reader.h"

/* The version also counts what is read of records and what tokenizers give: 2 has turns under prompt and completion,
 * and refuses tools; 3 refuses other keys that would be lost; 4 has \w, scripts and added spaces as the reference
 * has them; 5 finds the prompt of pairs under question and instruction. */
enum { CACHE_VERSION = 5, CACHE_HEADER_BYTES = 4096 };
typedef struct cache_header {
    char magic[8];
    uint32_t version, byte_order;
    uint32_t width, is_text, has_prompts, kind;
    hash128 key;
    uint64_t device, inode, source_bytes;
    int64_t mtime_ns, ctime_ns, built_ns;
    hash128 source_hash;
    uint64_t n_tokens, n_documents, n_skipped, n_replaced;
    hash128 payload_hash;
    uint64_t n_incorrect, n_problems, n_unpaired, n_unused_pairs;
    char unused[CACHE_HEADER_BYTES - 200];
    uint64_t header_hash; /* XXH3 of all before it */
} cache_header;
_Static_assert(sizeof(cache_header) == CACHE_HEADER_BYTES, "the header fills its block");
