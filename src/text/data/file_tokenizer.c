/* file_tokenizer.c - the tokenizer of a tokenizer.json: its tables made ready, and the way of a text through them.
 *
 * Added tokens are cut out first: those that match the text as it is before it is normalized, the others after. What
 * lies between them goes through normalizers and pre-tokenizers to BPE.
 * Bytes that are not UTF-8 are replaced by U+FFFD before anything else, one for each ill-formed piece, as Python does
 * with errors="replace": the reference only takes text, so that is what it would be given. */
#include "data/encode.h"

#include <stdlib.h>

/* ---- opening ------------------------------------------------------------------------------------------------- */

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static status open_patterns(file_tokenizer *t) {
    const tokenizer_file *f = &t->file;
    t->normalizers = arena_array(&t->memory, normalizer, f->n_normalizers);
    t->pretokenizers = arena_array(&t->memory, pretokenizer, f->n_pretokenizers);
    t->decoders = arena_array(&t->memory, decoder, f->n_decoders);
    for (size_t i = 0; i < f->n_normalizers; i++) {
        const tokenizer_normalizer *s = t->normalizers[i].source = &f->normalizers[i];
        if (s->kind == NORMALIZE_REPLACE) TRY(pattern_open(&t->normalizers[i].pattern, &s->pattern, f->path, s->where));
    }
    for (size_t i = 0; i < f->n_pretokenizers; i++) {
        pretokenizer *p = &t->pretokenizers[i];
        const tokenizer_pretokenizer *s = p->source = &f->pretokenizers[i];
        tokenizer_pattern source = s->pattern;
        p->has_pattern = s->kind == PRETOKENIZE_SPLIT;
        if (s->kind == PRETOKENIZE_METASPACE) {
            source = (tokenizer_pattern){s->replacement, false};
            p->has_pattern = true;
        } else if (s->kind == PRETOKENIZE_BYTE_LEVEL && s->use_regex) {
            source = (tokenizer_pattern){{gpt2_pattern, sizeof gpt2_pattern - 1}, true};
            p->has_pattern = true;
        }
        if (p->has_pattern) TRY(pattern_open(&p->pattern, &source, f->path, s->where));
    }
    for (size_t i = 0; i < f->n_decoders; i++) {
        const tokenizer_decoder *s = t->decoders[i].source = &f->decoders[i];
        if (s->kind == DECODE_REPLACE) TRY(pattern_open(&t->decoders[i].pattern, &s->pattern, f->path, s->where));
    }
    return OK;
}

/* The form in which a token is looked for in normalized text, and the one that decoders see. */
static status normal_form_of(file_tokenizer *t, encoder *e, const span *content, span *out) {
    piece p = {.text = content->text, .length = content->length};
    TRY(normalize(t->normalizers, t->file.n_normalizers, &e->matcher, e->normal, &p, &(cut_list){0}));
    *out = (span){arena_copy(&t->memory, p.text, p.length), p.length};
    return OK;
}

static status open_added(file_tokenizer *t, encoder *e) {
    const tokenizer_file *f = &t->file;
    status rc = OK;
    size_t n_plain = 0, n_normalized = 0;
    added_text *plain = mem_alloc(f->n_added * sizeof *plain), *normalized = mem_alloc(f->n_added * sizeof *normalized);
    t->added_by_id = arena_array(&t->memory, const tokenizer_added *, MAX(f->n_ids, 1));
    t->is_special = arena_array(&t->memory, bool, MAX(f->n_ids, 1));
    t->shown = arena_copy(&t->memory, f->tokens, (size_t)f->n_ids * sizeof *t->shown);
    for (size_t i = 0; i < f->n_added; i++) {
        const tokenizer_added *a = &f->added[i];
        span form = a->content;
        if (a->normalized) TRY_GOTO(rc, normal_form_of(t, e, &a->content, &form), done);
        if (a->normalized) normalized[n_normalized++] = (added_text){form, (int32_t)i};
        else plain[n_plain++] = (added_text){form, (int32_t)i};
        t->added_by_id[a->id] = a;
        t->shown[a->id] = form;
    }
    /* Special is what is shown as the text of a special token: a token shown in another form is not. */
    for (size_t i = 0; i < f->n_added; i++) {
        const tokenizer_added *a = &f->added[i];
        const span *form = &t->shown[a->id];
        t->is_special[a->id] =
            a->special && form->length == a->content.length && memcmp(form->text, a->content.text, form->length) == 0;
    }
    TRY_GOTO(rc, added_set_open(&t->plain, plain, n_plain, f->path), done);
    TRY_GOTO(rc, added_set_open(&t->normalized, normalized, n_normalized, f->path), done);
    for (size_t i = 0; i < f->n_added; i++) {
        added_set *set = f->added[i].normalized ? &t->normalized : &t->plain;
        set->any_single_word |= f->added[i].single_word;
        set->any_lstrip |= f->added[i].lstrip;
    }
done:
    free(plain);
    free(normalized);
    return rc;
}

status file_tokenizer_open(file_tokenizer **out, const char *path) {
    status rc = OK;
    encoder *e = NULL;
    file_tokenizer *t = mem_alloc(sizeof *t);
    arena_init(&t->memory);
    TRY_GOTO(rc, tokenizer_file_open(&t->file, path), done);
    TRY_GOTO(rc, open_patterns(t), done);
    size_t n = t->file.n_pretokenizers;
    bpe_open(&t->bpe, &t->file, n > 0 && t->file.pretokenizers[n - 1].kind == PRETOKENIZE_BYTE_LEVEL);
    e = encoder_open(t);
    TRY_GOTO(rc, open_added(t, e), done);
done:
    if (e) encoder_close(t, e);
    if (rc == OK) *out = t;
    else file_tokenizer_close(t);
    return rc;
}

void file_tokenizer_close(file_tokenizer *t) {
    if (!t) return;
    for (size_t i = 0; t->normalizers && i < t->file.n_normalizers; i++) pattern_close(&t->normalizers[i].pattern);
    for (size_t i = 0; t->pretokenizers && i < t->file.n_pretokenizers; i++)
        pattern_close(&t->pretokenizers[i].pattern);
    for (size_t i = 0; t->decoders && i < t->file.n_decoders; i++) pattern_close(&t->decoders[i].pattern);
    added_set_close(&t->plain);
    added_set_close(&t->normalized);
    bpe_close(&t->bpe);
    tokenizer_file_close(&t->file);
    arena_fini(&t->memory);
    free(t);
}

encoder *encoder_open(const file_tokenizer *t) {
    encoder *e = mem_alloc(sizeof *e);
    matcher_open(&e->matcher);
    e->bpe = bpe_scratch_open();
    strbuf_init(&e->valid);
    for (int i = 0; i < 2; i++) strbuf_init(&e->normal[i]);
    e->stage = mem_alloc(t->file.n_pretokenizers * sizeof *e->stage);
    for (size_t i = 0; i < t->file.n_pretokenizers; i++) strbuf_init(&e->stage[i]);
    return e;
}

void encoder_close(const file_tokenizer *t, encoder *e) {
    matcher_close(&e->matcher);
    bpe_scratch_close(e->bpe);
    strbuf_fini(&e->valid);
    for (int i = 0; i < 2; i++) strbuf_fini(&e->normal[i]);
    for (size_t i = 0; i < t->file.n_pretokenizers; i++) strbuf_fini(&e->stage[i]);
    free(e->stage);
    free(e);
}

/* ---- added tokens in a text ---------------------------------------------------------------------------------- */

static bool stands_alone(const piece *p, size_t start, size_t end) {
    return !(start > 0 && char_is_word(char_decode(p->text + char_before(p->text, start)))) &&
           !(end < p->length && char_is_word(char_decode(p->text + end)));
}

/* Not back beyond `from`: many tokens in one run of spaces would each walk through all of it. */
static size_t spaces_before(const piece *p, size_t from, size_t start) {
    while (start > from) {
        size_t before = char_before(p->text, start);
        if (!char_is_space(char_decode(p->text + before))) break;
        start = before;
    }
    return start;
}

static size_t spaces_behind(const piece *p, size_t end) {
    while (end < p->length && char_is_space(char_decode(p->text + end))) end += char_length(p->text[end]);
    return end;
}

typedef struct passage {
    const file_tokenizer *t;
    encoder *e;
    bool specials_as_text;
    id_list *out;
    const char *base;        /* where the text begins, for: */
    const text_marks *marks; /* NULL: none. Then `next_cut` is the first whose place was not yet reached. */
    size_t next_cut;
    id_list *scratch;
} passage;

/* ---- marks ----------------------------------------------------------------------------------------------------- */

/* Does a part of the text hold content? Pieces that were normalized lie elsewhere: no mark counts for them. */
static bool touches_content(const passage *g, const char *text, size_t start, size_t end) {
    if (!g->marks) return false;
    const jinja_range *ranges = g->marks->content;
    size_t low = 0, high = g->marks->n_content, begin = (size_t)(text - g->base) + start;
    end += (size_t)(text - g->base);
    while (low < high) { /* the first range that ends after `begin` */
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].end <= begin) low = middle + 1;
        else high = middle;
    }
    return low < g->marks->n_content && ranges[low].begin < end;
}

/* All cuts before `at` (a byte of the text) get the number of ids that are out. */
static void number_cuts(passage *g, const char *at, size_t n_before) {
    while (g->marks && g->next_cut < g->marks->n_cuts && g->base + g->marks->cuts[g->next_cut].at <= at)
        g->marks->cuts[g->next_cut++].n_before = n_before;
}

/* ---- added tokens ---------------------------------------------------------------------------------------------- */

/* Can what follows an open piece change which text a match takes? */
static bool is_undecided(const piece *p, const tokenizer_added *a, size_t end) {
    return p->open && ((a->single_word && end == p->length) || (a->rstrip && spaces_behind(p, end) == p->length));
}

/* Cuts the added tokens of a set out of a piece; the rest goes to `rest`, part by part. A match that does not count (it
 * is part of a word, or specials are text) is skipped as a whole, as the reference does; one that is made of
 * content is skipped by its first character, because a token of the template may begin in it. */
static status cut_added(passage *g, const added_set *set, const piece *p, size_t level,
                        status (*rest)(passage *g, const piece *p)) {
    size_t from = 0, at = 0, start = 0, end = 0, stop = p->length;
    bool is_source = level == 0; /* the text itself, not a normal form of it */
    int32_t found;
    cut_search *cuts = &g->e->cuts;
    if (set->any_single_word) cut_kill_in_words(cuts, p);
    while (at < p->length &&
           (found = added_set_find(set, p->text, p->length, at, p->open, &start, &end)) != ADDED_NONE) {
        const tokenizer_added *a = found >= 0 ? &g->t->file.added[found] : NULL;
        if (!a || is_undecided(p, a, end)) {
            stop = MAX(start, from);
            break;
        }
        at = end;
        if ((g->specials_as_text && a->special) || (a->single_word && !stands_alone(p, start, end))) {
            cut_kill(cuts, p->text + start, p->text + end);
            continue;
        }
        if (is_source && a->special && touches_content(g, p->text, start, end)) {
            at = start + char_length(p->text[start]);
            continue;
        }
        if (a->lstrip) start = MAX(spaces_before(p, from, start), from);
        /* A match may lie in the spaces that the token before it took: those end at `from`. */
        if (a->rstrip) end = spaces_behind(p, MAX(end, from));
        if (from < start) {
            piece part = piece_part(p, from, start);
            TRY(rest(g, &part));
            cut_reached(cuts, p->text + start, level, *g->out->n);
        }
        if (is_source) number_cuts(g, p->text + start, *g->out->n);
        if (start != end) id_list_add(g->out, a->id); /* all of it was taken: the reference has no empty tokens */
        from = end;
        cut_reached(cuts, p->text + end, level, *g->out->n);
        if (is_source) number_cuts(g, p->text + end, *g->out->n);
    }
    if (p->open && set->any_lstrip) stop = spaces_before(p, from, stop); /* a token may follow and take them */
    if (from >= stop) return OK;
    piece part = piece_part(p, from, stop);
    part.open = p->open;
    return rest(g, &part);
}

static status encode_words(passage *g, const piece *p) { return pretokenize(g->t, g->e, 0, p, g->out); }

static status encode_plain(passage *g, const piece *p) {
    piece normal = *p;
    const file_tokenizer *t = g->t;
    cut_list outer = g->e->cuts.list, cuts = cut_list_of(&g->e->cuts, p);
    status rc = normalize(t->normalizers, t->file.n_normalizers, &g->e->matcher, g->e->normal, &normal, &cuts);
    g->e->cuts.list = cuts;
    if (rc == OK && normal.length > 0) rc = cut_added(g, &t->normalized, &normal, 1, encode_words);
    g->e->cuts.list = outer;
    cut_list_free(&cuts);
    return rc;
}

static void allow_work(encoder *e, size_t n_bytes) {
    e->n_written_left = growth_most(n_bytes);
    matcher_allow(&e->matcher, n_bytes);
}

status file_tokenizer_encode(const file_tokenizer *t, encoder *e, const char *text, size_t n_bytes,
                             bool specials_as_text, id_list *out) {
    if (n_bytes == 0) return OK;
    matcher_begin(&e->matcher);
    allow_work(e, n_bytes);
    if (utf8_check(text, n_bytes).n_bad) {
        e->valid.length = 0;
        text_make_valid(text, n_bytes, &e->valid);
        text = e->valid.text;
        n_bytes = e->valid.length;
    }
    passage g = {.t = t, .e = e, .specials_as_text = specials_as_text, .out = out, .base = text};
    piece whole = {text, n_bytes, char_length(text[0]), true, false, 0};
    return cut_added(&g, &t->plain, &whole, 0, encode_plain);
}

/* ---- a part of a text ---------------------------------------------------------------------------------------- */

/* Does stage number i (0: the normalizers, 1 + k: pre-tokenizer k) do something at the beginning of a piece only? */
static bool depends_on_piece_start(const file_tokenizer *t, size_t i) {
    const tokenizer_file *f = &t->file;
    if (i > 0) {
        const tokenizer_pretokenizer *s = &f->pretokenizers[i - 1];
        return (s->kind == PRETOKENIZE_BYTE_LEVEL && s->add_prefix_space) ||
               (s->kind == PRETOKENIZE_METASPACE && s->prepend != PREPEND_NEVER);
    }
    for (size_t k = 0; k < f->n_normalizers; k++) {
        const tokenizer_normalizer *s = &f->normalizers[k];
        if (s->kind == NORMALIZE_PREPEND || (s->kind == NORMALIZE_STRIP && s->left)) return true;
    }
    return false;
}

size_t file_tokenizer_level(const file_tokenizer *t, size_t level) {
    level = MIN(level, 1 + t->file.n_pretokenizers);
    while (level > 0 && !depends_on_piece_start(t, level - 1)) level--;
    return level;
}

/* How much of a text comes before a character that its end cuts. */
static size_t whole_chars(const char *text, size_t n_bytes) {
    for (size_t n = 1; n <= MIN(n_bytes, (size_t)3); n++) {
        if (((unsigned char)text[n_bytes - n] & 0xc0) != 0xc0) continue;
        utf8_scan s = utf8_check(text + n_bytes - n, n);
        return s.n_valid == 0 && s.is_cut ? n_bytes - n : n_bytes;
    }
    return n_bytes;
}

/* The place in the text that was made valid for one in the text as it was given, and back; 3 bytes are U+FFFD. */
static size_t to_valid(const char *text, size_t n_bytes, size_t place) {
    size_t valid = 0;
    for (;;) {
        utf8_scan s = utf8_check(text, n_bytes);
        if (place <= s.n_valid || s.n_bad == 0) return valid + place;
        valid += s.n_valid + 3;
        if (place <= s.n_valid + s.n_bad) return valid;
        text += s.n_valid + s.n_bad;
        n_bytes -= s.n_valid + s.n_bad;
        place -= s.n_valid + s.n_bad;
    }
}

static size_t from_valid(const char *text, size_t n_bytes, size_t valid) {
    size_t place = 0;
    for (;;) {
        utf8_scan s = utf8_check(text + place, n_bytes - place);
        if (valid <= s.n_valid || s.n_bad == 0) return place + valid;
        place += s.n_valid + s.n_bad;
        valid -= s.n_valid + 3;
    }
}

status file_tokenizer_encode_part(const file_tokenizer *t, encoder *e, text_part *part, id_list *out) {
    const char *text = part->text;
    size_t n = part->is_open ? whole_chars(text, part->n_bytes) : part->n_bytes, n_given = n, zone = part->zone;
    size_t wanted = part->wanted;
    part->at_wanted = part->last = (text_boundary){0};
    if (n == 0) return OK;
    matcher_begin(&e->matcher);
    allow_work(e, n);
    if (utf8_check(text, n).n_bad) {
        zone = to_valid(text, n, zone);
        part->wanted = to_valid(text, n, wanted);
        e->valid.length = 0;
        text_make_valid(text, n, &e->valid);
        text = e->valid.text;
        n = e->valid.length;
    }
    passage g = {.t = t, .e = e, .out = out, .base = text};
    piece whole = {text, n, part->is_first ? char_length(text[0]) : 0, part->is_first, part->is_open, part->level};
    cut_search_begin(&e->cuts, part, text, n, zone, *out->n);
    status rc = cut_added(&g, &t->plain, &whole, 0, encode_plain);
    cut_search_end(&e->cuts);
    part->wanted = wanted;
    for (int i = 0; i < 2; i++) {
        text_boundary *b = i ? &part->last : &part->at_wanted;
        if (text != part->text && b->found) b->place = from_valid(part->text, n_given, b->place);
        b->level = file_tokenizer_level(t, b->level);
    }
    return rc;
}

/* ---- text of which parts are content ----------------------------------------------------------------------------- */

/* Appends a piece to the scratch list, or as it would be alone. */
static status encode_apart(const passage *g, const piece *p, bool specials_as_text, id_list *out) {
    passage alone = {.t = g->t, .e = g->e, .specials_as_text = specials_as_text, .out = out, .base = p->text};
    allow_work(g->e, p->length);
    return encode_plain(&alone, p);
}

/* Special tokens among ids from `from` on: what the normal form of a piece held. */
static size_t count_specials(const passage *g, const id_list *ids, size_t from) {
    size_t n = 0;
    for (size_t i = from; i < *ids->n; i++) {
        const tokenizer_added *a = g->t->added_by_id[(*ids->ids)[i]];
        n += a && a->special;
    }
    return n;
}

/* The next stretch of a piece that is content, or is none. */
static piece next_stretch(const passage *g, const piece *p, size_t *at, bool *is_content) {
    const text_marks *m = g->marks;
    size_t offset = (size_t)(p->text - g->base), from = *at, end = p->length;
    *is_content = false;
    for (size_t i = 0; i < m->n_content; i++) {
        const jinja_range *r = &m->content[i];
        if (r->end <= offset + from) continue;
        *is_content = r->begin <= offset + from;
        end = MIN(end, (*is_content ? r->end : r->begin) - offset);
        break;
    }
    *at = end;
    return piece_part(p, from, end);
}

/* Special tokens that match normalized text are found after the marks. Where content may hold one (more are found than
 * the template wrote), template and content are encoded apart. */
static status encode_guarded(passage *g, const piece *p, id_list *out) {
    size_t from = *out->n, n_own = 0;
    bool is_content;
    TRY(encode_apart(g, p, false, out));
    size_t n_found = count_specials(g, out, from);
    if (n_found == 0 || !touches_content(g, p->text, 0, p->length)) return OK;
    for (size_t at = 0; at < p->length;) {
        piece part = next_stretch(g, p, &at, &is_content);
        *g->scratch->n = 0;
        if (!is_content) TRY(encode_apart(g, &part, false, g->scratch));
        n_own += count_specials(g, g->scratch, 0);
    }
    if (n_own == n_found) return OK;
    *out->n = from;
    for (size_t at = 0; at < p->length;) {
        piece part = next_stretch(g, p, &at, &is_content);
        TRY(encode_apart(g, &part, is_content, out));
    }
    return OK;
}

/* A piece without added tokens, with the cuts in it. */
static status encode_marked(passage *g, const piece *whole) {
    piece p = *whole;
    const char *end = p.text + p.length;
    size_t from = *g->out->n;
    number_cuts(g, p.text, from);
    TRY(encode_guarded(g, &p, g->out));
    while (g->next_cut < g->marks->n_cuts) {
        text_cut *cut = &g->marks->cuts[g->next_cut];
        const char *place = g->base + cut->at;
        if (place >= end) break;
        int32_t *ids = NULL;
        size_t n = 0, capacity = 0, same = 0;
        id_list head = {&ids, &n, &capacity};
        piece before = piece_part(&p, 0, (size_t)(place - p.text));
        status rc = encode_guarded(g, &before, &head);
        while (rc == OK && same < n && from + same < *g->out->n && ids[same] == (*g->out->ids)[from + same]) same++;
        if (rc == OK && same < n && cut->splits) {
            *g->out->n = from;
            for (size_t i = 0; i < n; i++) id_list_add(g->out, ids[i]);
            p = piece_part(&p, (size_t)(place - p.text), p.length);
            from = *g->out->n;
            cut->n_before = from;
            rc = encode_guarded(g, &p, g->out);
        } else {
            cut->n_before = from + same;
        }
        free(ids);
        TRY(rc);
        g->next_cut++;
    }
    return OK;
}

status file_tokenizer_encode_marked(const file_tokenizer *t, encoder *e, const char *text, size_t n_bytes,
                                    const text_marks *m, id_list *out) {
    int32_t *ids = NULL;
    size_t n = 0, capacity = 0;
    id_list scratch = {&ids, &n, &capacity};
    passage g = {.t = t, .e = e, .out = out, .base = text, .marks = m, .scratch = &scratch};
    ASSERT(utf8_check(text, n_bytes).n_bad == 0);
    matcher_begin(&e->matcher);
    allow_work(e, n_bytes);
    piece whole = {text, n_bytes, n_bytes ? char_length(text[0]) : 0, true, false, 0};
    status rc = n_bytes ? cut_added(&g, &t->plain, &whole, 0, encode_marked) : OK;
    number_cuts(&g, text + n_bytes, *out->n);
    free(ids);
    return rc;
}
