/* fuzz_checkpoint.c - a checkpoint directory: its checkpoint.json and two files of tensors.
 *
 * Sections: checkpoint.json without its seal, the header of a.safetensors, the header of b.safetensors, the data of both
 * (the first half belongs to a). Lengths, the seal, and the values that only a writer can know are put in here: a file's
 * "bytes", a "header_xxh3_128" and a piece's "xxh3_128" that say "?".
 * Of a checkpoint that is opened: every tensor is found, has the bytes of its shape, and can be read whole and in
 * pieces; its checksums can be asked for; every number of its state is in its range; its task has a name. */
#include "checkpoint/directory.h"
#include "checkpoint/seal.h"
#include "fuzz/fuzz.h"
#include "weightfile/weightfile.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { N_FILES = 2 };
static const char *const names[] = {"checkpoint.json", "a.safetensors", "b.safetensors"};

typedef struct part {
    strbuf bytes;
    size_t header_bytes;
} part;

static json_t *checksum(const void *data, size_t n_bytes) {
    char hex[33];
    XXH128_hash_t h = XXH3_128bits(data, n_bytes);
    snprintf(hex, sizeof hex, "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64, (uint64_t)h.low64);
    return json_string(hex);
}

static bool is_open(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, "?") == 0;
}

static void make_part(part *p, const span *header, const char *data, size_t n_bytes) {
    uint64_t length = header->length;
    strbuf_init(&p->bytes);
    strbuf_add_bytes(&p->bytes, &length, sizeof length);
    strbuf_add_bytes(&p->bytes, header->text, header->length);
    strbuf_add_bytes(&p->bytes, data, n_bytes);
    p->header_bytes = sizeof length + header->length;
}

static void fill_files(json_t *files, const part *parts) {
    json_t *file;
    size_t i;
    json_array_foreach(files, i, file) {
        const char *name = json_string_value(json_object_get(file, "name"));
        for (int k = 0; k < N_FILES; k++) {
            if (!name || strcmp(name, names[k + 1]) != 0) continue;
            if (is_open(file, "bytes"))
                json_object_set_new(file, "bytes", json_integer((json_int_t)parts[k].bytes.length));
            if (is_open(file, "header_xxh3_128"))
                json_object_set_new(file, "header_xxh3_128", checksum(parts[k].bytes.text, parts[k].header_bytes));
        }
    }
}

/* The bytes of a piece are those of its tensor in its file, where that file can be read at all. */
static void fill_pieces(json_t *tensors, const safetensors *files, const bool *is_read) {
    const char *name;
    json_t *tensor, *piece;
    size_t i;
    json_object_foreach(tensors, name, tensor) {
        json_array_foreach(json_object_get(tensor, "pieces"), i, piece) {
            json_int_t file = json_integer_value(json_object_get(piece, "file"));
            if (!is_open(piece, "xxh3_128") || file < 0 || file >= N_FILES || !is_read[file]) continue;
            const safetensor *t = safetensors_find(&files[file], name);
            if (t) json_object_set_new(piece, "xxh3_128", checksum(t->data, t->n_bytes));
        }
    }
}

/* checkpoint.json as a writer would end it. What is no JSON is sealed as it is: the seal comes first for a reader. */
static void write_sealed(const span *text, const part *parts) {
    safetensors files[N_FILES];
    bool is_read[N_FILES];
    json_t *root = json_loadb(text->text, text->length, JSON_REJECT_DUPLICATES, NULL);
    strbuf sealed;
    strbuf_init(&sealed);
    for (int k = 0; k < N_FILES; k++) {
        const char *path = fuzz_file(k + 1, parts[k].bytes.text, parts[k].bytes.length);
        is_read[k] = root && safetensors_open(&files[k], path) == OK;
    }
    if (root) {
        fill_files(json_object_get(root, "files"), parts);
        fill_pieces(json_object_get(root, "tensors"), files, is_read);
    }
    char *dumped = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    size_t length = dumped ? strlen(dumped) : 0;
    if (length > 2) strbuf_add_bytes(&sealed, dumped, length - 2);
    else strbuf_add_bytes(&sealed, text->text, text->length);
    json_t *hex = checksum(sealed.text, sealed.length);
    strbuf_printf(&sealed, ",\n \"checksum\": \"%s\"\n}\n", json_string_value(hex));
    fuzz_file(0, sealed.text, sealed.length);
    for (int k = 0; k < N_FILES; k++)
        if (is_read[k]) safetensors_close(&files[k]);
    json_decref(hex);
    json_decref(root);
    free(dumped);
    strbuf_fini(&sealed);
}

static void check_tensor(const checkpoint_reader *r, const char *name) {
    checkpoint_found t;
    ASSERT(checkpoint_reader_find(r, name, &t));
    size_t n_bytes = shape_bytes(&t.shape, t.type), few = 7 * dtype_bytes(t.type);
    unsigned char *whole = mem_alloc(n_bytes), *again = mem_alloc(n_bytes);
    checkpoint_reader_read(r, &t, 0, whole, n_bytes);
    for (size_t at = 0; at < n_bytes; at += few) checkpoint_reader_read(r, &t, at, again + at, MIN(few, n_bytes - at));
    ASSERT(memcmp(whole, again, n_bytes) == 0);
    status rc = checkpoint_reader_verify(r, &t);
    if (rc != OK) fuzz_refused(rc);
    checkpoint_reader_forget(r, &t);
    free(whole);
    free(again);
}

static void check_directory(const char *dir) {
    char index[4200];
    snprintf(index, sizeof index, "%s/%s", dir, names[0]);
    checkpoint_reader *r;
    status rc = checkpoint_check(dir);
    if (rc != OK) fuzz_refused(rc);
    status opened = checkpoint_reader_open(&r, dir);
    if (opened != OK) {
        fuzz_refused(opened);
        return;
    }
    ASSERT(rc == OK);
    ASSERT(checkpoint_reader_step(r) >= 0);
    const char *name;
    json_t *root, *tensor;
    train_state s;
    ASSERT(sealed_read(index, &root) == OK);
    ASSERT(state_from_json(root, dir, &s) == OK && s.step == checkpoint_reader_step(r));
    ASSERT(s.updates >= 0 && s.updates <= s.step && s.scaler.scale > 0 && isfinite(s.scaler.scale));
    ASSERT(s.scaler.clean_steps >= 0 && s.scaler.hysteresis_left >= 0);
    ASSERT(memchr(s.best.metric, 0, sizeof s.best.metric) && isfinite(s.best.value) && s.best.step >= 0);
    ASSERT(s.tokens <= UINT64_C(1) << 62 && s.data_row <= UINT64_C(1) << 62);
    const char *task;
    const json_t *remembered;
    ASSERT(task_from_json(root, dir, &task, &remembered) == OK);
    ASSERT(*task && strlen(task) <= CHECKPOINT_TASK_NAME && (!remembered || json_is_object(remembered)));
    json_object_foreach(json_object_get(root, "tensors"), name, tensor) check_tensor(r, name);
    json_decref(root);
    checkpoint_reader_close(r);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    part parts[N_FILES];
    span index = fuzz_section(&in), headers[N_FILES];
    for (int k = 0; k < N_FILES; k++) headers[k] = fuzz_section(&in);
    span rest = fuzz_rest(&in);
    size_t half = rest.length / N_FILES;
    make_part(&parts[0], &headers[0], rest.text, half);
    make_part(&parts[1], &headers[1], rest.text + half, rest.length - half);
    write_sealed(&index, parts);
    check_directory(fuzz_directory(names, N_FILES + 1));
    for (int k = 0; k < N_FILES; k++) strbuf_fini(&parts[k].bytes);
}
