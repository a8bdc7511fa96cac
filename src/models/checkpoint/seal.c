/* seal.c - checksums, and JSON under a checksum of its own text. */
#include "checkpoint/seal.h"

#include <inttypes.h>
#include <stdlib.h>

#define SEAL_BEFORE ",\n \"checksum\": \""
#define SEAL_AFTER "\"\n}\n"
enum {
    SEAL_BYTES = sizeof SEAL_BEFORE - 1 + CHECKSUM_BYTES + sizeof SEAL_AFTER - 1,
};

void checksum_format(char out[CHECKSUM_BYTES + 1], XXH128_hash_t h) {
    snprintf(out, CHECKSUM_BYTES + 1, "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64, (uint64_t)h.low64);
}

void checksum_hex(char out[CHECKSUM_BYTES + 1], const void *data, size_t n_bytes) {
    checksum_format(out, XXH3_128bits(data, n_bytes));
}

/* Puts the checksum of everything before it after the last member: "... ,\n "checksum": "..."\n}\n". */
status sealed_write(const char *path, const json_t *root) {
    char *text = json_dumps(root, JSON_INDENT(1)), hex[CHECKSUM_BYTES + 1];
    ASSERT(text); /* names and identity were checked to be UTF-8 */
    size_t length = strlen(text);
    ASSERT(length > 2 && strcmp(text + length - 2, "\n}") == 0);
    text[length - 2] = 0;
    checksum_hex(hex, text, length - 2);
    strbuf sealed;
    strbuf_init(&sealed);
    strbuf_add_bytes(&sealed, text, length - 2);
    strbuf_printf(&sealed, SEAL_BEFORE "%s" SEAL_AFTER, hex);
    status rc = file_write_new(path, sealed.text, sealed.length);
    strbuf_fini(&sealed);
    free(text);
    if (rc != OK) return error_trail(rc, __FILE__, __LINE__, __func__);
    return OK;
}

status sealed_read(const char *path, json_t **out) {
    status rc = OK;
    char *text, hex[CHECKSUM_BYTES + 1], seal[SEAL_BYTES + 1];
    size_t n_bytes;
    json_error_t where;
    *out = NULL;
    TRY(file_read_all(path, SEALED_MAX_BYTES, &text, &n_bytes));
    if (n_bytes <= SEAL_BYTES) {
        rc = ERR(ERR_INPUT, "%s: found %zu bytes, expected a sealed checkpoint.json; it is cut short", path, n_bytes);
        goto done;
    }
    size_t content = n_bytes - SEAL_BYTES;
    checksum_hex(hex, text, content);
    snprintf(seal, sizeof seal, SEAL_BEFORE "%s" SEAL_AFTER, hex);
    if (memcmp(text + content, seal, SEAL_BYTES) != 0) {
        char found[CHECKSUM_BYTES + 1];
        for (int i = 0; i < CHECKSUM_BYTES; i++) {
            char ch = text[content + sizeof SEAL_BEFORE - 1 + (size_t)i];
            found[i] = (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'f') ? ch : '?';
        }
        found[CHECKSUM_BYTES] = 0;
        rc = ERR(ERR_INPUT, "%s is damaged: its seal says checksum %s, its content has %s", path, found, hex);
        goto done;
    }
    if (!(*out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &where)))
        rc = ERR(ERR_INPUT, "%s:%d:%d: %s", path, where.line, where.column, where.text);
done:
    free(text);
    return rc;
}
