/* tokenizer.c - text to token ids and back. Today: bytes.
 *
 * A byte is its own id, so any file can be trained on and every text survives the round trip; the vocabulary ends with
 * three specials and one unused id. Specials decode to nothing; an id that stands for nothing decodes to U+FFFD, so
 * that a model that produces one is seen to do so. */
#include "data/data.h"

#include <stdlib.h>

struct tokenizer {
    int64_t vocab;
    int32_t eos;
};

status tokenizer_open(tokenizer **out, const char *name) {
    *out = NULL;
    if (name && strcmp(name, "byte") != 0)
        return ERR(ERR_INPUT, "tokenizer: found '%.200s', expected 'byte' (the only one there is)", name);
    *out = mem_alloc(sizeof **out);
    **out = (tokenizer){.vocab = BYTE_VOCAB, .eos = TOKEN_EOS};
    return OK;
}

void tokenizer_close(tokenizer *t) { free(t); }

int64_t tokenizer_vocab(const tokenizer *t) { return t->vocab; }

int32_t tokenizer_eos(const tokenizer *t) { return t->eos; }

void tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, int32_t **tokens, size_t *n,
                      size_t *capacity) {
    *tokens = array_grow(*tokens, capacity, *n + n_bytes, sizeof **tokens);
    for (size_t i = 0; i < n_bytes; i++) (*tokens)[*n + i] = (unsigned char)text[i];
    *n += n_bytes;
}

void tokenizer_decode(const tokenizer *t, const int32_t *tokens, size_t n, strbuf *out) {
    for (size_t i = 0; i < n; i++) {
        int32_t id = tokens[i];
        if (id >= 0 && id < 256) strbuf_add_bytes(out, &(unsigned char){(unsigned char)id}, 1);
        else if (id != TOKEN_BOS && id != TOKEN_EOS && id != TOKEN_PAD) strbuf_add(out, "\xef\xbf\xbd");
    }
    strbuf_add_bytes(out, "", 0); /* out->text is a string also when nothing was decoded */
}
