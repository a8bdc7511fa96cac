/* fuzz_tokenizer_json.c - a tokenizer.json, and texts through it.
 *
 * Sections: the file, then the text to encode; the bytes of the text also serve as ids to decode.
 * Of a file that is accepted: every id of an encoding is below tokenizer_vocab, encoding twice gives the same ids (the
 * second time out of the cache of words), each push of a stream appends whole characters only, and a stream that was
 * used before gives what a fresh one gives. */
#include "data/data.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 1024, IDS_MOST = 512, OUTPUT_MOST = 1 << 16 };

typedef struct ids {
    int32_t *at;
    size_t n, capacity;
} ids;

static bool encode(const tokenizer *t, const span *text, unsigned flags, ids *out) {
    status rc = tokenizer_encode_with(t, text->text, text->length, flags, &out->at, &out->n, &out->capacity);
    if (rc == OK) return true;
    fuzz_refused(rc);
    ASSERT(out->n == 0);
    return false;
}

static bool decode(decode_stream *s, const ids *list, strbuf *out) {
    status rc = OK;
    size_t before = out->length;
    for (size_t i = 0; i < list->n && rc == OK && out->length - before < OUTPUT_MOST; i++) {
        size_t at = out->length;
        rc = decode_stream_push(s, list->at[i], out);
        ASSERT(utf8_check(out->text + at, out->length - at).n_bad == 0);
    }
    if (rc == OK) rc = decode_stream_end(s, out);
    if (rc != OK) fuzz_refused(rc);
    else ASSERT(utf8_check(out->text, out->length).n_bad == 0);
    return rc == OK;
}

static void check_decoding(const tokenizer *t, const ids *list, unsigned flags) {
    strbuf first, again;
    strbuf_init(&first);
    strbuf_init(&again);
    decode_stream *s = tokenizer_decode_stream(t, flags);
    if (decode(s, list, &first)) {
        ASSERT(decode(s, list, &again));
        ASSERT(first.length == again.length && memcmp(first.text, again.text, first.length) == 0);
        if (first.length < OUTPUT_MOST) { /* else it was cut */
            again.length = 0;
            ASSERT(tokenizer_decode_with(t, list->at, list->n, flags, &again) == OK);
            ASSERT(first.length == again.length && memcmp(first.text, again.text, first.length) == 0);
        }
    }
    decode_stream_close(s);
    strbuf_fini(&first);
    strbuf_fini(&again);
}

static void check_text(const tokenizer *t, const span *text, unsigned flags) {
    ids first = {0}, again = {0};
    if (encode(t, text, flags, &first)) {
        for (size_t i = 0; i < first.n; i++) ASSERT(first.at[i] >= 0 && first.at[i] < tokenizer_vocab(t));
        ASSERT(encode(t, text, flags, &again));
        ASSERT(first.n == again.n && (!first.n || memcmp(first.at, again.at, first.n * sizeof *first.at) == 0));
        first.n = MIN(first.n, (size_t)IDS_MOST);
        check_decoding(t, &first, 0);
    }
    free(first.at);
    free(again.at);
}

/* Ids that no encoder gave, some of them beyond the vocabulary. */
static void check_ids(const tokenizer *t, const span *bytes) {
    ids list = {0};
    for (size_t i = 0; i < MIN(bytes->length, (size_t)IDS_MOST); i++) {
        list.at = array_grow(list.at, &list.capacity, i + 1, sizeof *list.at);
        list.at[list.n++] = (int32_t)((unsigned char)bytes->text[i] % (tokenizer_vocab(t) + 2)) - 1;
    }
    if (list.n) check_decoding(t, &list, DECODE_KEEP_SPECIALS);
    free(list.at);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span file = fuzz_section(&in), text = fuzz_rest(&in);
    tokenizer *t;
    status rc = tokenizer_open(&t, fuzz_file(0, file.text, file.length));
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    text.length = MIN(text.length, (size_t)TEXT_MOST);
    ASSERT(tokenizer_eos(t) < tokenizer_vocab(t) && tokenizer_bos(t) < tokenizer_vocab(t));
    check_text(t, &text, 0);
    check_text(t, &text, ENCODE_ADD_SPECIALS | ENCODE_SPECIALS_AS_TEXT);
    check_ids(t, &text);
    tokenizer_close(t);
}
