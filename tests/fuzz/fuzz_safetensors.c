/* fuzz_safetensors.c - a safetensors file.
 *
 * An input that begins with '{' is a header and, behind 0xff, the data: the length before the header is put in here.
 * Any other input is the file as it is.
 * Of a file that is accepted: every view lies inside the map and has the bytes of its shape, every byte can be read, no
 * byte belongs to two tensors, names ascend and are found, the metadata are strings. */
#include "fuzz/fuzz.h"
#include "weightfile/weightfile.h"

#include <stdlib.h>
#include <string.h>

static const char *make_file(const uint8_t *data, size_t size) {
    if (size == 0 || data[0] != '{') return fuzz_file(0, data, size);
    fuzz_input in = {data, size};
    span header = fuzz_section(&in), rest = fuzz_rest(&in);
    uint64_t length = header.length;
    strbuf file;
    strbuf_init(&file);
    strbuf_add_bytes(&file, &length, sizeof length);
    strbuf_add_bytes(&file, header.text, header.length);
    strbuf_add_bytes(&file, rest.text, rest.length);
    const char *path = fuzz_file(0, file.text, file.length);
    strbuf_fini(&file);
    return path;
}

static void check_file(const safetensors *st) {
    unsigned char *owner = mem_alloc(st->map_bytes); /* how often each byte belongs to a tensor */
    uint64_t sum = 0;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const safetensor *t = &st->tensors[i];
        ASSERT(t->n_bytes == shape_bytes(&t->shape, t->type));
        ASSERT(t->file_offset <= st->map_bytes && t->n_bytes <= st->map_bytes - t->file_offset);
        ASSERT(t->data == (const char *)st->map + t->file_offset);
        for (size_t k = 0; k < t->n_bytes; k++) {
            sum += ((const unsigned char *)t->data)[k];
            ASSERT(owner[t->file_offset + k]++ == 0);
        }
        ASSERT(i == 0 || strcmp(st->tensors[i - 1].name, t->name) < 0);
        ASSERT(safetensors_find(st, t->name) == t);
    }
    ASSERT(sum <= 255 * (uint64_t)st->map_bytes);
    const char *key;
    json_t *value;
    json_object_foreach(st->metadata, key, value) ASSERT(*json_string_value(value) || !json_string_length(value));
    free(owner);
}

void fuzz_one(const uint8_t *data, size_t size) {
    safetensors st;
    status rc = safetensors_open(&st, make_file(data, size));
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    check_file(&st);
    safetensors_close(&st);
}
