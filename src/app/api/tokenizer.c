/* tokenizer.c - ralo_tokenizer: text to token ids and back. */
#include "api/api.h"

#include <stdlib.h>

struct ralo_tokenizer {
    tokenizer *tokenizer;
};

ralo_status ralo_tokenizer_open(ralo_tokenizer **out, const char *name) {
    API_NEED(out);
    *out = NULL;
    API_NEED(name);
    api_call call = api_enter();
    tokenizer *t;
    status rc = tokenizer_open(&t, name);
    if (rc == OK) {
        *out = mem_alloc(sizeof **out);
        (*out)->tokenizer = t;
    }
    return api_leave(call, rc);
}

void ralo_tokenizer_close(ralo_tokenizer *t) {
    if (!t) return;
    tokenizer_close(t->tokenizer);
    free(t);
}

int64_t ralo_tokenizer_vocab(const ralo_tokenizer *t) { return t ? tokenizer_vocab(t->tokenizer) : 0; }
int32_t ralo_tokenizer_eos(const ralo_tokenizer *t) { return t ? tokenizer_eos(t->tokenizer) : -1; }

ralo_status ralo_tokenizer_encode(const ralo_tokenizer *t, const char *text, size_t n_bytes, int32_t **tokens,
                                  size_t *n_tokens) {
    API_NEED(tokens);
    API_NEED(n_tokens);
    *tokens = NULL;
    *n_tokens = 0;
    API_NEED(t);
    if (n_bytes == 0) return RALO_OK;
    API_NEED(text);
    api_call call = api_enter();
    size_t capacity = 0;
    status rc = tokenizer_encode(t->tokenizer, text, n_bytes, tokens, n_tokens, &capacity);
    if (rc != OK) {
        free(*tokens);
        *tokens = NULL;
        *n_tokens = 0;
    }
    return api_leave(call, rc);
}

ralo_status ralo_tokenizer_decode(const ralo_tokenizer *t, const int32_t *tokens, size_t n_tokens, char **text,
                                  size_t *n_bytes) {
    API_NEED(text);
    *text = NULL;
    if (n_bytes) *n_bytes = 0;
    API_NEED(t);
    if (n_tokens) API_NEED(tokens);
    api_call call = api_enter();
    strbuf b;
    strbuf_init(&b);
    strbuf_add(&b, ""); /* also no text ends in a NUL */
    status rc = tokenizer_decode(t->tokenizer, tokens, n_tokens, &b);
    if (rc == OK) {
        if (n_bytes) *n_bytes = b.length;
        *text = strbuf_take(&b);
    } else strbuf_fini(&b);
    return api_leave(call, rc);
}
