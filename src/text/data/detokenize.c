/* detokenize.c - ids back to text, as a chain of stages that hand on what is certain.
 *
 * The reference runs each decoder over the whole list of tokens. Here each is a stage that takes a stream of tokens
 * (text, then the end of the token) and passes on what no later token can change; so decoding a list and decoding a
 * stream are one code and give the same text, and a generated text appears as soon as it is known. What is held back:
 * the beginning of a character (ByteLevel), a run of byte tokens (ByteFallback: if one of them turns out wrong, all
 * become U+FFFD), the end of a token that Strip or Replace may still change.
 * Behind Fuse and ByteLevel everything is one token, which ends with the stream. */
#include "data/encode.h"

#include <stdlib.h>

typedef struct stage {
    const decoder *d;
    strbuf held;
    size_t n_tokens;  /* that ended */
    uint32_t n_start; /* Strip: how many were taken off at the beginning */
    uint32_t n_tail;  /* Strip: how many at the end wait to be taken off */
    bool is_inside;   /* Strip: past what may be taken off at the beginning */
} stage;

struct decode_chain {
    const file_tokenizer *t;
    matcher matcher;
    stage *stages;
    size_t n_stages, n_tokens;
    size_t n_passed, n_passed_most; /* bytes handed on in this stream, and how many may be */
    strbuf *out;
};

static status feed(decode_chain *c, size_t k, const char *text, size_t length);
static status end_token(decode_chain *c, size_t k);

static status feed_token(decode_chain *c, size_t k, const char *text, size_t length) {
    TRY(feed(c, k, text, length));
    return end_token(c, k);
}

/* ---- ByteLevel ----------------------------------------------------------------------------------------------- */

/* Appends the bytes that a token's characters stand for; the token as it is when one stands for none. */
static void add_token_bytes(const strbuf *token, size_t from, strbuf *out) {
    size_t before = out->length;
    for (size_t i = from; i < token->length; i += char_length(token->text[i])) {
        int byte = byte_of_char(char_decode(token->text + i));
        if (byte < 0) {
            out->length = before;
            strbuf_add_bytes(out, token->text + from, token->length - from);
            return;
        }
        strbuf_add_bytes(out, &(char){(char)byte}, 1);
    }
}

/* Passes on all of `held` that is decided; the beginning of a character only at the end. */
static status pass_valid(decode_chain *c, size_t k, strbuf *held, bool is_end) {
    size_t at = 0;
    while (at < held->length) {
        utf8_scan s = utf8_check(held->text + at, held->length - at);
        if (s.n_valid) TRY(feed(c, k + 1, held->text + at, s.n_valid));
        at += s.n_valid;
        if (s.n_bad == 0 || (s.is_cut && !is_end)) break;
        TRY(feed(c, k + 1, "\xef\xbf\xbd", 3));
        at += s.n_bad;
    }
    memmove(held->text, held->text + at, held->length - at);
    held->length -= at;
    return OK;
}

/* `held` is undecided bytes, n_start of them, and then the token that is coming in. */
static status byte_level_end_token(decode_chain *c, size_t k) {
    stage *s = &c->stages[k];
    strbuf bytes;
    strbuf_init(&bytes);
    strbuf_add_bytes(&bytes, s->held.text, s->n_start);
    add_token_bytes(&s->held, s->n_start, &bytes);
    status rc = pass_valid(c, k, &bytes, false);
    s->held.length = 0;
    strbuf_add_bytes(&s->held, bytes.text, bytes.length);
    s->n_start = (uint32_t)bytes.length;
    strbuf_fini(&bytes);
    return rc;
}

/* ---- ByteFallback -------------------------------------------------------------------------------------------- */

static int hex_value(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* <0xHH>; the reference's number parser also takes <0x+H>. */
static int fallback_byte(const char *text, size_t length) {
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = text[3] == '+' ? 0 : hex_value(text[3]), low = hex_value(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* `held` begins with the n_start bytes of the run. */
static status end_run(decode_chain *c, size_t k) {
    stage *s = &c->stages[k];
    size_t n = s->n_start;
    s->n_start = 0;
    if (n == 0) return OK;
    if (utf8_check(s->held.text, n).n_bad == 0) return feed_token(c, k + 1, s->held.text, n);
    for (size_t i = 0; i < n; i++) TRY(feed_token(c, k + 1, "\xef\xbf\xbd", 3));
    return OK;
}

static status fallback_end_token(decode_chain *c, size_t k) {
    stage *s = &c->stages[k];
    size_t run = s->n_start, length = s->held.length - run;
    int byte = fallback_byte(s->held.text + run, length);
    if (byte >= 0) {
        s->held.text[run] = (char)byte;
        s->held.length = ++s->n_start;
        return OK;
    }
    TRY(end_run(c, k));
    TRY(feed_token(c, k + 1, s->held.text + run, length));
    s->held.length = 0;
    return OK;
}

/* ---- Strip, Metaspace, Replace ------------------------------------------------------------------------------- */

static status strip_pass_tail(decode_chain *c, size_t k, uint32_t keep) {
    stage *s = &c->stages[k];
    const span *content = &s->d->source->content;
    for (; s->n_tail > keep; s->n_tail--) TRY(feed(c, k + 1, content->text, content->length));
    return OK;
}

static status strip_feed(decode_chain *c, size_t k, const char *text, size_t length) {
    stage *s = &c->stages[k];
    const tokenizer_decoder *d = s->d->source;
    size_t from = 0; /* what lies before i and is certain continues in one go */
    for (size_t i = 0, n; i < length; i += n) {
        n = char_length(text[i]);
        bool is_content = n == d->content.length && memcmp(text + i, d->content.text, n) == 0;
        if (is_content && !s->is_inside && s->n_start < d->start) {
            s->n_start++;
            from = i + n;
            continue;
        }
        s->is_inside = true;
        if (is_content && d->stop > 0) {
            if (i > from) TRY(feed(c, k + 1, text + from, i - from));
            from = i + n;
            s->n_tail++;
            TRY(strip_pass_tail(c, k, d->stop));
        } else if (s->n_tail) {
            TRY(strip_pass_tail(c, k, 0));
        }
    }
    return length > from ? feed(c, k + 1, text + from, length - from) : OK;
}

static status metaspace_feed(decode_chain *c, size_t k, const char *text, size_t length) {
    const stage *s = &c->stages[k];
    const tokenizer_decoder *d = s->d->source;
    bool drop = s->n_tokens == 0 && d->prepend != PREPEND_NEVER;
    for (size_t i = 0, n; i < length; i += n) {
        n = char_length(text[i]);
        bool is_content = n == d->content.length && memcmp(text + i, d->content.text, n) == 0;
        if (!is_content) TRY(feed(c, k + 1, text + i, n));
        else if (!drop) TRY(feed(c, k + 1, " ", 1));
    }
    return OK;
}

/* Passes on `held` with its matches replaced. Before the end of the token only for a literal, and only as far as no
 * match can begin that would reach beyond what is here. */
static status replace_pass(decode_chain *c, size_t k, bool is_end) {
    stage *s = &c->stages[k];
    const pattern *p = &s->d->pattern;
    const span *content = &s->d->source->content;
    status rc = OK;
    pattern_walk w;
    size_t from = 0, start = 0, end = 0;
    bool found = false;
    if (s->held.length == 0 || (!is_end && p->code)) return OK;
    pattern_begin(&w, p, &c->matcher, s->held.text, s->held.length);
    for (;;) {
        TRY_GOTO(rc, pattern_next(&w, &start, &end, &found), done);
        if (!found) break;
        if (start > from) TRY_GOTO(rc, feed(c, k + 1, s->held.text + from, start - from), done);
        TRY_GOTO(rc, feed(c, k + 1, content->text, content->length), done);
        from = end;
    }
    size_t keep = is_end ? 0 : MIN(p->literal.length - 1, s->held.length - from), to = s->held.length - keep;
    while (to > from && to < s->held.length && ((unsigned char)s->held.text[to] & 0xc0) == 0x80)
        to--; /* whole characters */
    if (to > from) TRY_GOTO(rc, feed(c, k + 1, s->held.text + from, to - from), done);
    memmove(s->held.text, s->held.text + to, s->held.length - to);
    s->held.length -= to;
done:
    pattern_end(&w);
    return rc;
}

/* ---- the chain ----------------------------------------------------------------------------------------------- */

static status feed(decode_chain *c, size_t k, const char *text, size_t length) {
    c->n_passed += length;
    if (c->n_passed > c->n_passed_most)
        return ERR(ERR_INPUT, "%s: decoder: a token grows too long in %zu decoders, expected at most 64 bytes in each",
                   c->t->file.path, c->n_stages);
    if (k == c->n_stages) {
        strbuf_add_bytes(c->out, text, length);
        return OK;
    }
    stage *s = &c->stages[k];
    switch (s->d->source->kind) {
    case DECODE_FUSE: return feed(c, k + 1, text, length);
    case DECODE_STRIP: return strip_feed(c, k, text, length);
    case DECODE_METASPACE: return metaspace_feed(c, k, text, length);
    case DECODE_BYTE_LEVEL:
    case DECODE_BYTE_FALLBACK: strbuf_add_bytes(&s->held, text, length); return OK;
    case DECODE_REPLACE: strbuf_add_bytes(&s->held, text, length); return replace_pass(c, k, false);
    }
    return OK;
}

static status end_token(decode_chain *c, size_t k) {
    if (k == c->n_stages) return OK;
    stage *s = &c->stages[k];
    s->n_tokens++;
    switch (s->d->source->kind) {
    case DECODE_FUSE: return OK;
    case DECODE_BYTE_LEVEL: return byte_level_end_token(c, k);
    case DECODE_BYTE_FALLBACK: return fallback_end_token(c, k);
    case DECODE_REPLACE: TRY(replace_pass(c, k, true)); break;
    case DECODE_STRIP:
        s->n_tail = s->n_start = 0;
        s->is_inside = false;
        break;
    case DECODE_METASPACE: break;
    }
    return end_token(c, k + 1);
}

/* No more tokens come: what a stage holds continues, and then the next stage hears the same. */
static status end_stream(decode_chain *c, size_t k) {
    if (k == c->n_stages) return OK;
    stage *s = &c->stages[k];
    switch (s->d->source->kind) {
    case DECODE_FUSE: TRY(end_token(c, k + 1)); break;
    case DECODE_BYTE_LEVEL:
        TRY(pass_valid(c, k, &s->held, true));
        TRY(end_token(c, k + 1));
        break;
    case DECODE_BYTE_FALLBACK: TRY(end_run(c, k)); break;
    case DECODE_REPLACE:
    case DECODE_STRIP:
    case DECODE_METASPACE: break;
    }
    s->held.length = s->n_tokens = s->n_start = 0;
    return end_stream(c, k + 1);
}

decode_chain *decode_chain_open(const file_tokenizer *t) {
    decode_chain *c = mem_alloc(sizeof *c);
    c->t = t;
    c->n_stages = t->file.n_decoders;
    c->stages = mem_alloc(c->n_stages * sizeof *c->stages);
    for (size_t k = 0; k < c->n_stages; k++) {
        c->stages[k].d = &t->decoders[k];
        strbuf_init(&c->stages[k].held);
        strbuf_add_bytes(&c->stages[k].held, "", 0);
    }
    matcher_open(&c->matcher);
    return c;
}

void decode_chain_close(decode_chain *c) {
    if (!c) return;
    for (size_t k = 0; k < c->n_stages; k++) strbuf_fini(&c->stages[k].held);
    matcher_close(&c->matcher);
    free(c->stages);
    free(c);
}

/* An id without a token is shown as U+FFFD: a model that produces one should be noticed. */
status decode_chain_push(decode_chain *c, int32_t id, bool keep_specials, strbuf *out) {
    const file_tokenizer *t = c->t;
    span token = {"\xef\xbf\xbd", 3};
    c->out = out;
    if (id >= 0 && id < t->file.n_ids && t->shown[id].text) {
        if (t->is_special[id] && !keep_specials) return OK;
        token = t->shown[id];
    }
    if (!t->file.has_decoder && c->n_tokens > 0) strbuf_add(out, " ");
    c->n_tokens++;
    matcher_allow(&c->matcher, token.length);
    c->n_passed_most += growth_most(token.length) * (c->n_stages + 1);
    return feed_token(c, 0, token.text, token.length);
}

status decode_chain_end(decode_chain *c, strbuf *out) {
    c->out = out;
    status rc = end_stream(c, 0);
    c->n_tokens = c->n_passed = c->n_passed_most = 0;
    matcher_begin(&c->matcher);
    return rc;
}
