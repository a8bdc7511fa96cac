/* pretokenize.c - cut text into words: patterns, digits, spaces, punctuation, and ByteLevel's detour through characters.
 *
 * Every pre-tokenizer finds stretches that match and stretches between them, and a behavior says which belong together
 * or go away; that is done here once, in one pass, for all kinds. Each finished piece goes straight on to the next
 * pre-tokenizer and, after the last one, to BPE.
 * ByteLevel as the last one (as nearly everywhere) does not write its characters out: BPE takes the bytes themselves. */
#include "data/encode.h"

/* ---- what becomes of matches --------------------------------------------------------------------------------- */

typedef struct splitter {
    const file_tokenizer *t;
    encoder *e;
    size_t next_stage;
    const piece *whole;
    id_list *out;
    delimiter_behavior behavior;
    bool invert;
    /* The piece that may still grow. */
    bool has_open, last_is_match;
    size_t from, to;
} splitter;

/* Of the pieces that this pre-tokenizer makes, for cuts. */
static size_t level_of(const splitter *s) { return 2 + s->next_stage / 2; }

static void ends_at(splitter *s, size_t to) { cut_reached(&s->e->cuts, s->whole->text + to, level_of(s), *s->out->n); }

static status emit(splitter *s, size_t from, size_t to) {
    if (from == to) return OK;
    piece p = piece_part(s->whole, from, to);
    TRY(pretokenize(s->t, s->e, s->next_stage, &p, s->out));
    ends_at(s, to);
    return OK;
}

/* The last piece of an open one: it may continue. */
static status emit_open(splitter *s, size_t from, size_t to) {
    if (from == to) return OK;
    piece p = piece_part(s->whole, from, to);
    p.open = true;
    return pretokenize(s->t, s->e, s->next_stage, &p, s->out);
}

static status close_open(splitter *s) {
    if (!s->has_open) return OK;
    s->has_open = false;
    return emit(s, s->from, s->to);
}

static status open_new(splitter *s, size_t from, size_t to) {
    TRY(close_open(s));
    s->has_open = true;
    s->from = from;
    s->to = to;
    return OK;
}

/* The next stretch, in order; together they cover the text. */
static status add_stretch(splitter *s, size_t from, size_t to, bool is_match) {
    is_match ^= s->invert;
    bool last = s->last_is_match;
    s->last_is_match = is_match;
    switch (s->behavior) {
    case DELIMITER_REMOVED:
        if (!is_match) return emit(s, from, to);
        ends_at(s, to);
        return OK;
    case DELIMITER_ISOLATED: return emit(s, from, to);
    case DELIMITER_CONTIGUOUS:
        if (!s->has_open || is_match != last) return open_new(s, from, to);
        s->to = to;
        return OK;
    case DELIMITER_MERGED_WITH_PREVIOUS:
        if (!s->has_open || !is_match || last) return open_new(s, from, to);
        s->to = to;
        return OK;
    case DELIMITER_MERGED_WITH_NEXT:
        if (is_match) return open_new(s, from, to);
        if (!s->has_open) return emit(s, from, to);
        s->to = to;
        return close_open(s);
    }
    return OK;
}

/* What stands after the last match: [from, to) is not matched, and of an open piece nothing after it is known. */
static status finish(splitter *s, size_t from, size_t to) {
    if (!s->whole->open) {
        if (from != to) TRY(add_stretch(s, from, to, false));
        return close_open(s);
    }
    bool joins = s->has_open && ((s->behavior == DELIMITER_MERGED_WITH_NEXT && !s->invert) ||
                                 (s->behavior == DELIMITER_CONTIGUOUS && s->last_is_match == s->invert) ||
                                 (s->behavior == DELIMITER_MERGED_WITH_PREVIOUS && s->invert && !s->last_is_match));
    if (s->behavior == DELIMITER_REMOVED && s->invert) return OK;
    if (s->has_open && (joins || from == to)) return emit_open(s, s->from, to);
    TRY(close_open(s));
    return emit_open(s, from, to);
}

/* ---- finding ------------------------------------------------------------------------------------------------- */

static status split_by_pattern(splitter *s, const pattern *p) {
    status rc;
    pattern_walk w;
    cut_search *cuts = &s->e->cuts;
    const char *text = s->whole->text;
    size_t start = 0, end = 0, from = 0;
    bool found = false;
    if (s->whole->open && !p->restarts) return OK; /* nothing in it can be proven */
    pattern_begin(&w, p, &s->e->matcher, text, s->whole->length);
    w.open = s->whole->open;
    cuts->n_muted += !p->restarts;
    for (;;) {
        TRY_GOTO(rc, pattern_next(&w, &start, &end, &found), done);
        if (!found) break;
        cut_kill(cuts, text + start, text + end);
        if (from != start) TRY_GOTO(rc, add_stretch(s, from, start, false), done);
        TRY_GOTO(rc, add_stretch(s, start, end, true), done);
        from = end;
    }
    rc = finish(s, from, w.undecided);
done:
    cuts->n_muted -= !p->restarts;
    pattern_end(&w);
    return rc;
}

/* Each character that is one of a class is a match of its own. */
static status split_by_class(splitter *s, bool (*is_match)(int32_t c)) {
    size_t from = 0;
    for (size_t i = 0, n; i < s->whole->length; i += n) {
        n = char_length(s->whole->text[i]);
        if (!is_match(char_decode(s->whole->text + i))) continue;
        if (from < i) TRY(add_stretch(s, from, i, false));
        TRY(add_stretch(s, i, i + n, true));
        from = i + n;
    }
    return finish(s, from, s->whole->length);
}

/* Runs of word characters and runs of what is neither word nor space; spaces go. */
static status split_words(splitter *s) {
    const piece *p = s->whole;
    for (size_t i = 0, from; i < p->length;) {
        int32_t c = char_decode(p->text + (from = i));
        bool is_word = char_is_word(c), is_space = char_is_space(c);
        do i += char_length(p->text[i]);
        while (i < p->length && (c = char_decode(p->text + i), is_word == char_is_word(c)) &&
               is_space == char_is_space(c));
        if (i == p->length && p->open) return is_space ? OK : emit_open(s, from, i);
        if (!is_space) TRY(emit(s, from, i));
        else ends_at(s, i);
    }
    return OK;
}

/* ---- pre-tokenizers that change text ------------------------------------------------------------------------- */

/* Runs a stage on a text of its own making, with the cuts of its piece in that text. */
static status with_text(splitter *s, const piece *changed, cut_list *cuts, const pattern *p) {
    cut_list outer = s->e->cuts.list;
    cuts->base = changed->text;
    s->e->cuts.list = *cuts;
    s->whole = changed;
    status rc = p               ? split_by_pattern(s, p)
                : changed->open ? emit_open(s, 0, changed->length)
                                : emit(s, 0, changed->length);
    s->e->cuts.list = outer;
    cut_list_free(cuts);
    return rc;
}

static bool is_continued(const splitter *s, const piece *p) { return level_of(s) - 1 < p->n_continued; }

static status byte_level(const pretokenizer *self, splitter *s) {
    const pattern *pattern = self->has_pattern ? &self->pattern : NULL;
    strbuf *out = &s->e->stage[s->next_stage / 2];
    const piece *p = s->whole;
    s->behavior = DELIMITER_ISOLATED;
    if (self->source->add_prefix_space && !is_continued(s, p) && p->text[0] != ' ') {
        cut_list cuts = cut_list_of(&s->e->cuts, p);
        cut_mapper m = {.list = &cuts};
        out->length = 0;
        strbuf_add(out, " ");
        strbuf_add_bytes(out, p->text, p->length);
        cut_map(&m, 0, p->length + 1, 1);
        piece prefixed = piece_with(p, out->text, out->length, p->n_start ? p->n_start + 1 : 0);
        return with_text(s, &prefixed, &cuts, pattern);
    }
    if (pattern) return split_by_pattern(s, pattern);
    return p->open ? emit_open(s, 0, p->length) : emit(s, 0, p->length);
}

static status metaspace(const pretokenizer *self, splitter *s) {
    const span *to = &self->source->replacement;
    strbuf *buffer = &s->e->stage[s->next_stage / 2];
    const piece *p = s->whole;
    size_t n_start = 0;
    bool begins = p->text[0] == ' ' || (p->length >= to->length && memcmp(p->text, to->text, to->length) == 0);
    metaspace_prepend when = is_continued(s, p) ? PREPEND_NEVER : self->source->prepend;
    cut_list cuts = cut_list_of(&s->e->cuts, p);
    cut_mapper m = {.list = &cuts};
    buffer->length = 0;
    if (!begins && (when == PREPEND_ALWAYS || (when == PREPEND_FIRST && p->at_start)))
        strbuf_add_bytes(buffer, to->text, to->length);
    for (size_t i = 0; i < p->length; i++) {
        cut_map(&m, i, i + 1, buffer->length);
        if (p->text[i] == ' ') strbuf_add_bytes(buffer, to->text, to->length);
        else strbuf_add_bytes(buffer, p->text + i, 1);
        if (i + 1 == p->n_start) n_start = buffer->length;
    }
    cut_map(&m, p->length, p->length + 1, buffer->length);
    piece changed = piece_with(p, buffer->text, buffer->length, n_start);
    s->behavior = DELIMITER_MERGED_WITH_NEXT;
    return with_text(s, &changed, &cuts, self->source->split ? &self->pattern : NULL);
}

/* ByteLevel in the middle of a chain: what follows sees its characters. `written` keeps them until then. */
static status write_bytes(const file_tokenizer *t, encoder *e, size_t stage, const piece *p, id_list *out) {
    strbuf written;
    size_t n_start = 0;
    if (2 * p->length > e->n_written_left) /* a byte becomes a character of one or two */
        return ERR(ERR_INPUT,
                   "%s: pre_tokenizer: ByteLevel after ByteLevel makes more than 64 bytes of each, expected less",
                   t->file.path);
    e->n_written_left -= 2 * p->length;
    cut_list outer = e->cuts.list, cuts = cut_list_of(&e->cuts, p);
    cut_mapper m = {.list = &cuts};
    strbuf_init(&written);
    for (size_t i = 0; i < p->length; i++) {
        char u[4];
        cut_map(&m, i, i + 1, written.length);
        strbuf_add_bytes(&written, u, char_encode(byte_chars[(unsigned char)p->text[i]], u));
        if (i + 1 == p->n_start) n_start = written.length;
    }
    cut_map(&m, p->length, p->length + 1, written.length);
    cuts.base = written.text;
    e->cuts.list = cuts;
    piece changed = piece_with(p, written.text, written.length, n_start);
    status rc = pretokenize(t, e, stage, &changed, out);
    e->cuts.list = outer;
    cut_list_free(&cuts);
    strbuf_fini(&written);
    return rc;
}

/* ---- the chain ----------------------------------------------------------------------------------------------- */

static status run_stage(const pretokenizer *self, splitter *s) {
    const tokenizer_pretokenizer *source = self->source;
    switch (source->kind) {
    case PRETOKENIZE_SPLIT:
        s->behavior = source->behavior;
        s->invert = source->invert;
        return split_by_pattern(s, &self->pattern);
    case PRETOKENIZE_BYTE_LEVEL: return byte_level(self, s);
    case PRETOKENIZE_DIGITS:
        s->behavior = source->individual_digits ? DELIMITER_ISOLATED : DELIMITER_CONTIGUOUS;
        return split_by_class(s, char_is_numeric);
    case PRETOKENIZE_METASPACE: return metaspace(self, s);
    case PRETOKENIZE_WHITESPACE: return split_words(s);
    case PRETOKENIZE_WHITESPACE_SPLIT: s->behavior = DELIMITER_REMOVED; return split_by_class(s, char_is_space);
    case PRETOKENIZE_PUNCTUATION: s->behavior = source->behavior; return split_by_class(s, char_is_punctuation);
    }
    return OK;
}

/* BPE of what the last stage made. Of an open piece the last word is not known to its end. */
static status encode_piece(const file_tokenizer *t, encoder *e, const piece *p, id_list *out) {
    if (!p->open && e->cuts.list.n == 0) return bpe_encode(&t->bpe, e->bpe, p->text, p->length, out);
    for (size_t from = 0, to; from < p->length; from = to) {
        to = t->bpe.cuts_at_metaspace ? bpe_word_end(p->text, from, p->length) : p->length;
        if (to == p->length && p->open) break;
        TRY(bpe_encode(&t->bpe, e->bpe, p->text + from, to - from, out));
        cut_reached(&e->cuts, p->text + to, 1 + t->file.n_pretokenizers, *out->n);
    }
    return OK;
}

/* A stage has two numbers: 2k runs pre-tokenizer k, 2k + 1 finishes what ByteLevel began. */
status pretokenize(const file_tokenizer *t, encoder *e, size_t stage, const piece *p, id_list *out) {
    size_t k = stage / 2, n = t->file.n_pretokenizers;
    if (stage % 2 && t->file.pretokenizers[k].kind == PRETOKENIZE_BYTE_LEVEL && k + 1 < n)
        return write_bytes(t, e, stage + 1, p, out);
    if (stage % 2) k++;
    /* ByteLevel as the last one mostly does nothing that BPE does not do: the way there is kept short. */
    const pretokenizer *last = k + 1 == n ? &t->pretokenizers[k] : NULL;
    bool is_idle =
        last && last->source->kind == PRETOKENIZE_BYTE_LEVEL && !last->has_pattern && !last->source->add_prefix_space;
    if (k == n || is_idle) return encode_piece(t, e, p, out);
    splitter s = {.t = t, .e = e, .next_stage = 2 * k + 1, .whole = p, .out = out};
    return run_stage(&t->pretokenizers[k], &s);
}
