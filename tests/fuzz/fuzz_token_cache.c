/* fuzz_token_cache.c - a file of the token cache, as if another process had left it there.
 *
 * The input is JSON: {"width", "is_text", "has_prompts", "kind", "tokens": [id, ...], "documents": [[end, n_trained,
 * is_undesirable], ...]} makes the file with all its checksums right; "header_kind" puts another kind into it. "n_tokens" and "n_documents" put other counts into the header, "cut" takes bytes
 * off the end, "damage": [[place, byte], ...] changes bytes afterwards.
 * Of a file that is taken: tokens are of the vocabulary, documents ascend and cover them, and rows can be made of it.
 *
 * What cache.c writes is made here again; the first input is preceded by a comparison with a file that cache.c wrote itself. */
#include "data/cache_header.h"
#include "data/rows.h"
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { VOCAB = 300, EOS = 257, ROW = 16, ROWS_MOST = 64 };
static const hash128 key = {1, 2};
static const char source_text[] = "the text that was tokenized";

static hash128 hash_of(const void *bytes, size_t n) {
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    return (hash128){h.low64, h.high64};
}

/* ---- making the file ------------------------------------------------------------------------------------------- */

typedef struct content {
    uint32_t width;
    strbuf tokens, documents; /* as they lie in the file, without the padding between them */
    uint64_t n_tokens, n_documents;
    bool is_text, has_prompts;
    data_kind kind;
} content;

static void add_tokens(content *c, const json_t *list) {
    const json_t *v;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        int64_t id = json_integer_value(v);
        strbuf_add_bytes(&c->tokens, &id, c->width); /* its low bytes: little-endian, as every machine of ours */
        c->n_tokens++;
    }
}

static void add_documents(content *c, const json_t *list) {
    const json_t *v;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        store_document d = {.end = (uint64_t)json_integer_value(json_array_get(v, 0)),
                            .n_trained = (uint64_t)json_integer_value(json_array_get(v, 1)) & INT64_MAX,
                            .is_undesirable = json_integer_value(json_array_get(v, 2)) != 0};
        strbuf_add_bytes(&c->documents, &d, sizeof d);
        c->n_documents++;
    }
}

static void content_read(content *c, const json_t *root) {
    json_int_t width = json_integer_value(json_object_get(root, "width"));
    *c = (content){.width = width == 1 || width == 4 ? (uint32_t)width : 2,
                   .is_text = json_is_true(json_object_get(root, "is_text")),
                   .has_prompts = json_is_true(json_object_get(root, "has_prompts")),
                   .kind = (data_kind)((uint64_t)json_integer_value(json_object_get(root, "kind")) % 3)};
    strbuf_add_bytes(&c->tokens, "", 0);
    strbuf_add_bytes(&c->documents, "", 0);
    add_tokens(c, json_object_get(root, "tokens"));
    add_documents(c, json_object_get(root, "documents"));
}

static void content_fini(content *c) {
    strbuf_fini(&c->tokens);
    strbuf_fini(&c->documents);
}

static uint64_t count_or(const json_t *root, const char *name, uint64_t otherwise) {
    const json_t *v = json_object_get(root, name);
    return json_is_integer(v) ? (uint64_t)json_integer_value(v) : otherwise;
}

static void make_file(const content *c, const json_t *root, const file_stamp *stamp, int64_t built_ns, strbuf *out) {
    cache_header h = {.magic = "ralotok\n",
                      .version = CACHE_VERSION,
                      .byte_order = 0x01020304,
                      .width = (uint32_t)count_or(root, "header_width", c->width),
                      .is_text = c->is_text,
                      .has_prompts = c->has_prompts,
                      .kind = (uint32_t)count_or(root, "header_kind", c->kind),
                      .key = key,
                      .device = stamp->device,
                      .inode = stamp->inode,
                      .source_bytes = stamp->n_bytes,
                      .mtime_ns = stamp->mtime_ns,
                      .ctime_ns = stamp->ctime_ns,
                      .built_ns = built_ns,
                      .source_hash = hash_of(source_text, sizeof source_text - 1),
                      .n_tokens = count_or(root, "n_tokens", c->n_tokens),
                      .n_documents = count_or(root, "n_documents", c->n_documents)};
    strbuf payload;
    strbuf_init(&payload);
    strbuf_add_bytes(&payload, c->tokens.text, c->tokens.length);
    strbuf_add_bytes(&payload, c->documents.text, c->documents.length);
    h.payload_hash = hash_of(payload.text, payload.length);
    h.header_hash = XXH3_64bits(&h, offsetof(cache_header, header_hash));
    static const char zeros[8];
    strbuf_add_bytes(out, &h, sizeof h);
    strbuf_add_bytes(out, c->tokens.text, c->tokens.length);
    strbuf_add_bytes(out, zeros, (8 - c->tokens.length % 8) % 8);
    strbuf_add_bytes(out, c->documents.text, c->documents.length);
    strbuf_fini(&payload);
}

static void damage(const json_t *root, strbuf *file) {
    const json_t *v;
    size_t i;
    uint64_t cut = count_or(root, "cut", 0);
    file->length -= (size_t)MIN(cut, file->length);
    json_array_foreach(json_object_get(root, "damage"), i, v) {
        uint64_t place = (uint64_t)json_integer_value(json_array_get(v, 0));
        if (place < file->length) file->text[place] = (char)json_integer_value(json_array_get(v, 1));
    }
}

/* ---- the slot -------------------------------------------------------------------------------------------------- */

static void write_slot(const cache_slot *slot, const strbuf *file) {
    int fd = open(slot->path.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && write(fd, file->text, file->length) == (ssize_t)file->length);
    close(fd);
}

/* What cache.c writes is what make_file makes. */
static void compare_layouts(cache_slot *slot, const char *source, const file_stamp *stamp) {
    token_store s;
    store_builder b;
    content c;
    char *bytes;
    size_t n_bytes;
    strbuf file;
    json_t *root = json_pack("{s:i, s:b, s:[i, i, i], s:[[i, i]]}", "width", 2, "has_prompts", 1, "tokens", 7, 8, 257,
                             "documents", 3, 3);
    ASSERT(root && cache_begin(slot) == OK && store_builder_open(&b, &s, 2, slot, 0) == OK);
    s.has_prompts = true;
    ASSERT(store_add(&b, (const int32_t[]){7, 8, 257}, NULL, 3) == OK);
    store_end_document(&b);
    ASSERT(store_builder_finish(&b) == OK);
    ASSERT(cache_commit(slot, stamp, hash_of(source_text, sizeof source_text - 1), &s) == OK);
    store_builder_close(&b);
    store_close(&s);
    ASSERT(file_read_all(slot->path.text, 1 << 20, &bytes, &n_bytes) == OK);
    content_read(&c, root);
    strbuf_init(&file);
    make_file(&c, root, stamp, ((const cache_header *)bytes)->built_ns, &file);
    ASSERT(n_bytes == file.length && memcmp(bytes, file.text, n_bytes) == 0); /* follow cache.c here */
    strbuf_fini(&file);
    content_fini(&c);
    free(bytes);
    json_decref(root);
}

/* ---- what is taken --------------------------------------------------------------------------------------------- */

static void check_store(const token_store *s) {
    uint64_t at = 0;
    ASSERT(!s->is_text || (s->n_documents == 1 && !s->has_prompts));
    for (uint64_t i = 0; i < s->n_documents; i++) {
        uint64_t n_trained = 0;
        ASSERT(s->documents[i].end > at && s->documents[i].end <= s->n_tokens);
        for (; at < s->documents[i].end; at++) {
            ASSERT(store_token(s, at) >= 0 && store_token(s, at) < VOCAB);
            n_trained += store_trained(s, at);
        }
        ASSERT(s->documents[i].n_trained == n_trained);
        ASSERT(!s->documents[i].is_undesirable || s->kind == DATA_LABELLED);
    }
    ASSERT(at == s->n_tokens);
}

static void check_rows(const token_store *s, bool pack) {
    row_space r;
    data_report report = {0};
    row_space_init(&r, ROW, pack, EOS, 1);
    r.kind = s->kind;
    if (s->is_text)
        row_space_add(
            &r,
            (segment){.store = s, .report = &report, .n_documents = 1, .n_tokens = s->n_tokens + 1, .adds_eos = true});
    else
        row_space_add(&r,
                      (segment){.store = s, .report = &report, .n_documents = s->n_documents, .n_tokens = s->n_tokens});
    ASSERT(row_space_lay_out(&r) == OK);
    for (uint64_t i = 0; i < MIN(r.n_rows, (uint64_t)ROWS_MOST); i++) {
        int32_t tokens[ROW], targets[ROW], doc_start[ROW], segments[ROW], examples[ROW / PART_STRIDE];
        data_row row = {tokens, targets, doc_start, segments, examples, NULL};
        memset(segments, -1, sizeof segments);
        memset(examples, -1, sizeof examples);
        int64_t n = row_space_fill(&r, i, &row);
        ASSERT(n > 0 && n <= ROW);
        for (int64_t k = 0; k < n; k++) {
            ASSERT(tokens[k] >= 0 && tokens[k] < VOCAB && targets[k] >= -1 && targets[k] < VOCAB);
            ASSERT(doc_start[k] >= 0 && doc_start[k] <= k);
            ASSERT((segments[k] >= 0) == (r.kind != DATA_TEXT && targets[k] >= 0));
            if (segments[k] >= 0) ASSERT(examples[segments[k] / PART_STRIDE] >= 0);
        }
    }
    row_space_fini(&r);
}

void fuzz_one(const uint8_t *data, size_t size) {
    static bool compared;
    const char *source = fuzz_file(0, source_text, sizeof source_text - 1);
    cache_slot slot;
    file_stamp stamp;
    cache_slot_init(&slot, fuzz_directory(NULL, 0), key);
    ASSERT(file_stamp_get(source, &stamp) == OK);
    if (!compared) compare_layouts(&slot, source, &stamp);
    compared = true;

    json_t *root = json_loadb((const char *)data, size, 0, NULL);
    if (root) {
        content c;
        strbuf file;
        token_store store;
        bool found;
        content_read(&c, root);
        strbuf_init(&file);
        make_file(&c, root, &stamp, INT64_MAX / 2, &file);
        damage(root, &file);
        write_slot(&slot, &file);
        slot.kind = c.kind;
        bool strict = json_is_true(json_object_get(root, "strict"));
        ASSERT(cache_load(&slot, source, &stamp, VOCAB, strict, &store, &found) == OK);
        if (found) {
            check_store(&store);
            check_rows(&store, true);
            check_rows(&store, false);
            store_close(&store);
        }
        strbuf_fini(&file);
        content_fini(&c);
        json_decref(root);
    }
    cache_slot_fini(&slot);
}
