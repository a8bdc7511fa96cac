/* fuzz_numbers.c - the numbers of a frozen model on disk, as if another process had left the file in the run directory.
 *
 * The input is JSON: {"index": [place, ...], "losses": [number, ...]} makes a file for 3 training and 2 held-out examples, with
 * identity and checksum right; "n_losses" and "n_examples": [n, n] put other counts into the header, "cut" takes bytes off the end,
 * "damage": [[place, byte], ...] changes bytes afterwards.
 * Of a file that is taken: each example has the finite losses that its places say, and no more can be read for it. */
#include "fuzz/fuzz.h"
#include "train/numbers_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { HEADER = 64, TOKENS_MOST = 24 };
static const numbers_identity identity = {.data = 11, .model = 12, .n_entries = {3, 2}};

static const numbers_words words = {"rho1.reference", "losses of a reference", "row"};

static uint64_t integer_of(const json_t *v) { return (uint64_t)json_integer_value(v); }

static void add_u64(strbuf *s, uint64_t x) { strbuf_add_bytes(s, &x, sizeof x); }

static void make_file(const json_t *root, strbuf *s) {
    const json_t *v, *index = json_object_get(root, "index"), *losses = json_object_get(root, "losses");
    const json_t *counts = json_object_get(root, "n_examples"), *n = json_object_get(root, "n_losses");
    size_t i;
    add_u64(s, 0x31666572206f6c61ull);
    add_u64(s, identity.data), add_u64(s, identity.model);
    for (i = 0; i < 2; i++) add_u64(s, counts ? integer_of(json_array_get(counts, i)) : identity.n_entries[i]);
    add_u64(s, n ? integer_of(n) : json_array_size(losses));
    add_u64(s, 0), add_u64(s, 0);
    json_array_foreach((json_t *)(uintptr_t)index, i, v) add_u64(s, integer_of(v));
    json_array_foreach((json_t *)(uintptr_t)losses, i, v) {
        float x = (float)json_number_value(v);
        strbuf_add_bytes(s, &x, sizeof x);
    }
    XXH128_hash_t h = XXH3_128bits(s->text, s->length);
    memcpy(s->text + HEADER - 16, &h.low64, 8);
    memcpy(s->text + HEADER - 8, &h.high64, 8);
    json_array_foreach(json_object_get(root, "damage"), i, v) {
        uint64_t at = integer_of(json_array_get(v, 0));
        if (at < s->length) s->text[at] = (char)integer_of(json_array_get(v, 1));
    }
    s->length -= (size_t)MIN(integer_of(json_object_get(root, "cut")), (uint64_t)s->length);
}

/* Reads example e as a row that has n trained tokens of it; is that how many the file has? */
static bool reads(const numbers_file *f, split s, int32_t e, int64_t n) {
    int32_t segments[TOKENS_MOST + 1];
    float losses[TOKENS_MOST + 1];
    for (int64_t t = 0; t <= TOKENS_MOST; t++) segments[t] = t && t <= n ? PART_CHOSEN : -1;
    status rc = numbers_file_read(f, s, segments, &e, TOKENS_MOST + 1, losses);
    if (rc != OK) {
        fuzz_refused(rc);
        return false;
    }
    for (int64_t t = 0; t <= TOKENS_MOST; t++) ASSERT(isfinite(losses[t]) && (segments[t] >= 0 || losses[t] == 0));
    return true;
}

static void check(const numbers_file *f) {
    for (split s = SPLIT_TRAIN; s <= SPLIT_EVAL; s++)
        for (int32_t e = 0; e < (int32_t)identity.n_entries[s]; e++) {
            int found = 0;
            for (int64_t n = 1; n <= TOKENS_MOST; n++) found += reads(f, s, e, n);
            ASSERT(found <= 1); /* 0: it has none, or more than a row here */
        }
}

void fuzz_one(const uint8_t *data, size_t size) {
    json_t *root;
    numbers_file *f;
    status rc = json_read_file(fuzz_file(0, data, size), 1 << 20, &root);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    strbuf s;
    strbuf_init(&s);
    make_file(root, &s);
    json_decref(root);
    rc = numbers_file_open(&f, fuzz_file(1, s.text, s.length), &words, &identity);
    strbuf_fini(&s);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    ASSERT(numbers_file_model(f) == identity.model);
    check(f);
    numbers_file_close(f);
}
