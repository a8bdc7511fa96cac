#pragma once
/* token_ids.h - ids of a text and the text of ids, which must not fail. */
#include "data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

typedef struct ids {
    int32_t *id;
    size_t n, capacity;
} ids;

static inline void encode(const tokenizer *t, const char *text, size_t n, unsigned flags, ids *out) {
    out->n = 0;
    if (tokenizer_encode_with(t, text, n, flags, &out->id, &out->n, &out->capacity) != OK)
        fail_msg("%s", error_message());
}

/* As a list and as a stream; they must agree, and a stream never gives part of a character. */
static inline void decode(const tokenizer *t, const ids *in, unsigned flags, strbuf *out) {
    strbuf streamed;
    strbuf_init(&streamed);
    out->length = 0;
    assert_int_equal(tokenizer_decode_with(t, in->id, in->n, flags, out), OK);
    decode_stream *s = tokenizer_decode_stream(t, flags);
    for (size_t i = 0; i <= in->n; i++) {
        size_t before = streamed.length;
        assert_int_equal(i < in->n ? decode_stream_push(s, in->id[i], &streamed) : decode_stream_end(s, &streamed), OK);
        assert_int_equal(utf8_check(streamed.text + before, streamed.length - before).n_bad, 0);
    }
    assert_int_equal(streamed.length, out->length);
    assert_memory_equal(streamed.text, out->text, out->length);
    decode_stream_close(s);
    strbuf_fini(&streamed);
}
