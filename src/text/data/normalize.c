/* normalize.c - Unicode normal forms and the other steps that change text before it is split.
 *
 * Texts are mostly ASCII, which every normal form leaves alone; so the four forms touch only the stretches that are not,
 * each from the ASCII character before it (marks may belong to that) to the next one (which never composes with what
 * comes before it). utf8proc knows the decompositions and composes; the canonical order of marks is made here, because
 * its own exchange sort is quadratic: 100,000 marks in a row would take minutes.
 * Each step also follows how many leading bytes stem from the first character of the input; see `piece`. */
#include "data/encode.h"

#include <stdlib.h>
#include <utf8proc.h>

/* ---- normal forms -------------------------------------------------------------------------------------------- */

typedef struct code_points {
    int32_t *c;
    size_t n, capacity;
} code_points;

static unsigned class_of(int32_t c) { return c < 0x300 ? 0 : (unsigned)utf8proc_get_property(c)->combining_class; }

/* Sorts a run of marks by their class, marks of one class in the order they had: counted, not compared. */
static void sort_marks(int32_t *c, size_t n) {
    size_t starts[257] = {0};
    if (n < 2) return;
    int32_t *copy = mem_alloc(n * sizeof *copy);
    memcpy(copy, c, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) starts[class_of(copy[i]) + 1]++;
    for (int k = 1; k < 257; k++) starts[k] += starts[k - 1];
    for (size_t i = 0; i < n; i++) c[starts[class_of(copy[i])]++] = copy[i];
    free(copy);
}

static void sort_all_marks(code_points *p) {
    for (size_t i = 0; i < p->n;) {
        size_t from = i;
        bool sorted = true;
        unsigned before = 0;
        for (unsigned k; i < p->n && (k = class_of(p->c[i])) != 0; i++, before = k) sorted &= k >= before;
        if (!sorted) sort_marks(p->c + from, i - from);
        i += i == from;
    }
}

/* What was gathered goes out in its normal form. */
static void flush(code_points *p, bool compose, strbuf *out) {
    sort_all_marks(p);
    if (compose && p->n)
        p->n = (size_t)utf8proc_normalize_utf32(p->c, (utf8proc_ssize_t)p->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (size_t i = 0; i < p->n; i++) {
        char u[4];
        strbuf_add_bytes(out, u, char_encode(p->c[i], u));
    }
    p->n = 0;
}

/* One stretch into its normal form, appended. A character that the reference does not know stands for itself, and
 * marks do not move or compose across it. */
static void normal_form(const char *text, size_t length, bool compatible, bool compose, code_points *p, strbuf *out) {
    utf8proc_option_t options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    for (size_t i = 0, n; i < length; i += n) {
        int32_t c = char_decode(text + i);
        n = char_length(text[i]);
        if (char_is_younger(c)) {
            flush(p, compose, out);
            strbuf_add_bytes(out, text + i, n);
            continue;
        }
        p->c = array_grow(p->c, &p->capacity, p->n + 32, sizeof *p->c); /* the longest has 18 */
        utf8proc_ssize_t room = (utf8proc_ssize_t)(p->capacity - p->n);
        utf8proc_ssize_t used = utf8proc_decompose_char(c, p->c + p->n, room, options, NULL);
        ASSERT(used >= 0 && used <= room);
        p->n += (size_t)used;
    }
    flush(p, compose, out);
}

static size_t first_non_ascii(const char *text, size_t from, size_t length) {
    while (from < length && !((unsigned char)text[from] & 0x80)) from++;
    return from;
}

/* No character below U+0300 changes in NFC, nor with what follows it below U+0300. */
static bool is_nfc_already(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] >= 0xcc) return false;
    return true;
}

static size_t non_ascii_end(const char *text, size_t from, size_t length) {
    while (from < length && (unsigned char)text[from] & 0x80) from++;
    return from;
}

/* Only ASCII characters do not change with what comes before them. */
static void map_ascii(cut_list *cuts, const char *text, size_t length) {
    cut_mapper m = {.list = cuts};
    for (size_t i = 0; i < cuts->n; i++) {
        size_t at = cuts->cuts[i].at;
        if (at < length && !((unsigned char)text[at] & 0x80)) cut_map(&m, at, at + 1, at);
    }
    cut_map_end(&m);
}

/* Where the last ASCII character stands, which marks after the piece may change; 0: nowhere. */
static size_t last_ascii(const piece *p) {
    size_t at = p->length;
    while (at > 0 && (unsigned char)p->text[at - 1] & 0x80) at--;
    return at ? at - 1 : 0;
}

static void to_normal_form(piece *p, normalizer_kind kind, strbuf *out, cut_list *cuts) {
    bool compatible = kind == NORMALIZE_NFKC || kind == NORMALIZE_NFKD;
    bool compose = kind == NORMALIZE_NFC || kind == NORMALIZE_NFKC;
    map_ascii(cuts, p->text, p->length);
    if (p->open) p->length = last_ascii(p);
    if (p->length == 0) return;
    size_t at = first_non_ascii(p->text, 0, p->length), from = 0, first = char_length(p->text[0]);
    cut_mapper m = {.list = cuts};
    if (at == p->length || (kind == NORMALIZE_NFC && is_nfc_already(p->text + at, p->length - at))) return;
    code_points points = {0};
    out->length = 0;
    while (at < p->length) {
        size_t base = at > from ? at - 1 : at, end = non_ascii_end(p->text, at, p->length);
        cut_map(&m, from, at, out->length);
        strbuf_add_bytes(out, p->text + from, base - from);
        normal_form(p->text + base, end - base, compatible, compose, &points, out);
        from = end;
        at = first_non_ascii(p->text, from, p->length);
    }
    cut_map(&m, from, p->length + 1, out->length);
    cut_map_end(&m);
    strbuf_add_bytes(out, p->text + from, p->length - from);
    free(points.c);
    /* What the first character became: everything before the next character that begins anew. Composition takes marks
     * into the first character; decomposition makes more of it, which a step after it may compose again. */
    if (p->n_start) {
        size_t n = MIN(MAX(p->n_start, first), p->length);
        strbuf alone;
        strbuf_init(&alone);
        points = (code_points){0};
        normal_form(p->text, n, compatible, compose, &points, &alone);
        free(points.c);
        p->n_start = MIN(compose && n == first ? char_length(out->text[0]) : alone.length, out->length);
        strbuf_fini(&alone);
    }
    p->text = out->text;
    p->length = out->length;
}

/* ---- characters one by one ----------------------------------------------------------------------------------- */

static size_t lower_char(int32_t c, char out[8]) {
    if (c < 0x80) {
        out[0] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
        return 1;
    }
    if (c == 0x130) { /* the one character whose small form has two: i and a dot above */
        memcpy(out, "i\xcc\x87", 3);
        return 3;
    }
    return char_encode(utf8proc_tolower(c), out);
}

static void to_lower(piece *p, strbuf *out, cut_list *cuts) {
    size_t n_start = 0;
    cut_mapper m = {.list = cuts};
    out->length = 0;
    for (size_t i = 0; i < p->length; i += char_length(p->text[i])) {
        char lower[8];
        if (i == p->n_start) n_start = out->length;
        cut_map(&m, i, i + 1, out->length);
        strbuf_add_bytes(out, lower, lower_char(char_decode(p->text + i), lower));
    }
    cut_map(&m, p->length, p->length + 1, out->length);
    cut_map_end(&m);
    *p = piece_with(p, out->text, out->length, p->n_start >= p->length ? out->length : n_start);
}

static void strip_marks(piece *p, strbuf *out, cut_list *cuts) {
    size_t n_start = 0;
    cut_mapper m = {.list = cuts};
    out->length = 0;
    for (size_t i = 0, n; i < p->length; i += n) {
        n = char_length(p->text[i]);
        cut_map(&m, i, i + 1, out->length);
        if (char_is_mark(char_decode(p->text + i))) continue;
        strbuf_add_bytes(out, p->text + i, n);
        if (i < p->n_start) n_start = out->length;
    }
    strbuf_add_bytes(out, "", 0);
    cut_map(&m, p->length, p->length + 1, out->length);
    cut_map_end(&m);
    *p = piece_with(p, out->text, out->length, n_start);
}

/* Spaces at the end of an open piece are gone or not by what follows, so none are left. */
static void strip_space(piece *p, bool left, bool right, cut_list *cuts) {
    size_t from = 0, to = p->length;
    while (left && from < to && char_is_space(char_decode(p->text + from))) from += char_length(p->text[from]);
    while (right && to > from) {
        size_t before = char_before(p->text, to);
        if (!char_is_space(char_decode(p->text + before))) break;
        to = before;
    }
    size_t n_start = p->n_start > from ? MIN(p->n_start, to) - from : 0;
    cut_mapper m = {.list = cuts};
    for (size_t i = 0; i < cuts->n; i++) {
        size_t at = cuts->cuts[i].at;
        if (at <= from || at > to) continue;
        if (!right || !char_is_space(char_decode(p->text + char_before(p->text, at))))
            cut_map(&m, at, at + 1, at - from);
    }
    cut_map_end(&m);
    *p = piece_with(p, p->text + from, to - from, n_start);
}

/* ---- text put in --------------------------------------------------------------------------------------------- */

static void prepend(piece *p, const span *content, strbuf *out, cut_list *cuts) {
    for (size_t i = 0; i < cuts->n; i++) cuts->cuts[i].at += content->length;
    out->length = 0;
    strbuf_add_bytes(out, content->text, content->length);
    strbuf_add_bytes(out, p->text, p->length);
    *p = piece_with(p, out->text, out->length, p->n_start ? p->n_start + content->length : 0);
}

/* What is put in belongs to the last character that it replaces. n_most: how long the text may become. */
static status replace(piece *p, const normalizer *self, matcher *m, size_t n_most, strbuf *out, cut_list *cuts) {
    status rc;
    pattern_walk w;
    const pattern *pattern = &self->pattern;
    const span *content = &self->source->content;
    size_t start, end, from = 0, n_start = 0;
    bool found, first = p->n_start > 0; /* the leading bytes seen so far all stem from the first character */
    cut_mapper mapper = {.list = cuts};
    out->length = 0;
    pattern_begin(&w, pattern, m, p->text, p->length);
    w.open = p->open;
    for (;;) {
        rc = pattern_next(&w, &start, &end, &found);
        if (rc != OK || !found) break;
        cut_map(&mapper, from, start + 1, out->length);
        strbuf_add_bytes(out, p->text + from, start - from);
        if (first && start >= p->n_start && from < p->n_start) n_start = out->length - (start - p->n_start);
        if (first && start < p->n_start) n_start = out->length;
        first &= start < p->n_start && end <= p->n_start;
        strbuf_add_bytes(out, content->text, content->length);
        if (first) n_start = out->length;
        from = end;
        if (out->length > n_most) {
            rc = ERR(ERR_INPUT, "%s: %s: a text grows beyond %zu bytes, expected at most 64 for each byte of input",
                     pattern->file, pattern->where, n_most);
            break;
        }
    }
    pattern_end(&w);
    if (rc != OK) return rc;
    if (first && from < p->n_start) n_start = out->length + p->n_start - from;
    cut_map(&mapper, from, w.undecided + 1, out->length);
    cut_map_end(&mapper);
    strbuf_add_bytes(out, p->text + from, w.undecided - from);
    if (!pattern->restarts) { /* nothing can be proven */
        cuts->n = 0;
        if (p->open) out->length = 0;
    }
    *p = piece_with(p, out->text, out->length, MIN(n_start, out->length));
    return OK;
}

status normalize(const normalizer *steps, size_t n_steps, matcher *m, strbuf buffers[2], piece *p, cut_list *cuts) {
    bool begins = p->n_continued == 0;
    size_t n_most = growth_most(p->length);
    for (size_t i = 0; i < n_steps && p->length > 0; i++) {
        const tokenizer_normalizer *s = steps[i].source;
        const strbuf *b = &buffers[0]; /* where the piece lies must not be written to; Strip may leave it inside */
        bool in_first = b->text && p->text >= b->text && p->text < b->text + b->capacity;
        strbuf *out = &buffers[in_first];
        switch (s->kind) {
        case NORMALIZE_NFC:
        case NORMALIZE_NFD:
        case NORMALIZE_NFKC:
        case NORMALIZE_NFKD: to_normal_form(p, s->kind, out, cuts); break;
        case NORMALIZE_LOWERCASE: to_lower(p, out, cuts); break;
        case NORMALIZE_PREPEND:
            if (begins) prepend(p, &s->content, out, cuts);
            break;
        case NORMALIZE_REPLACE: TRY(replace(p, &steps[i], m, n_most, out, cuts)); break;
        case NORMALIZE_STRIP: strip_space(p, s->left && begins, s->right, cuts); break;
        case NORMALIZE_STRIP_ACCENTS: strip_marks(p, out, cuts); break;
        }
    }
    cuts->base = p->text;
    return OK;
}
