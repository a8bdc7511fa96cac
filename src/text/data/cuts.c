/* cuts.c - encode a text in parts: where one may end, and the proof.
 *
 * A place c of a text is a boundary when the ids of the text before c and those of the text after it, one after the
 * other, are the ids of the whole. It is proven while the part before c is encoded, not guessed from a neighbourhood:
 *
 * 1. The part begins at a boundary (the beginning of the text is one), so every stage walks over it as it walks over the
 *    whole text.
 * 2. What a stage decided cannot depend on text after the part. The part is `open` there, and each stage passes on only
 *    what no further text can change: PCRE2 matches with PCRE2_PARTIAL_HARD, which reports any attempt that had to look
 *    at the end; a literal or an added token that the end may have cut stops the walk; normal forms stop before the last
 *    ASCII character (with which marks may compose), Strip before spaces at the end, runs of characters at their last
 *    member. An open piece stands for any piece that begins so.
 * 3. A stage ends one of its pieces at c. Pieces are encoded apart from each other, so no later stage reaches over c.
 *    The last stage of all is BPE, which has places of its own where no merge reaches over: see cuts_at_metaspace.
 * 4. The stages before that one, up to the normalizers, have c inside of a piece, and are begun anew at c by the next
 *    part. That gives what they would have given when nothing that they do reaches over c:
 *      - expressions and literals: c is not inside of a match (of two attempts at one place both fail or both give
 *        the same match), they look at nothing before the place they are tried at (no lookbehind, no ^ $ \A \z), and
 *        they match no empty text, which counts or not by what matched before;
 *      - normal forms: an ASCII character stands at c, and such a one never changes with what is before it;
 *      - Strip: no space comes before c, so neither side of c is stripped because of the other;
 *      - added tokens: no match that was skipped reaches over c; those that ask for a word's end before them: no
 *        character of a word comes before c; spaces that a token may take are not passed on (2);
 *      - Lowercase, StripAccents, Digits, Punctuation, Whitespace see one character at a time.
 *    What a stage does once at the beginning of its piece (Prepend, a space before it, Strip on the left) it does not do
 *    again: the next part is told (`level`) which stages it continues.
 *
 * So a boundary is exact for every chain of stages, and a text where none can be proven is encoded as a whole.
 * Candidates are all characters of a zone; a stage that changes text maps them to the new one. */
#include "data/encode.h"

#include <stdlib.h>

void cut_search_begin(cut_search *s, text_part *part, const char *text, size_t length, size_t zone, size_t n_ids) {
    *s = (cut_search){.part = part, .n_ids_before = n_ids};
    size_t from = MAX(zone, 1), most = length >= from ? length - from + 1 : 0;
    s->list.base = text;
    s->list.cuts = mem_alloc(most * sizeof *s->list.cuts);
    s->places = mem_alloc(most * sizeof *s->places);
    s->is_dead = mem_alloc(most * sizeof *s->is_dead);
    for (size_t at = from; at <= length; at++) {
        if (at < length && ((unsigned char)text[at] & 0xc0) == 0x80) continue;
        s->places[s->list.n] = at;
        s->list.cuts[s->list.n] = (cut){at, s->list.n};
        s->list.n++;
    }
}

void cut_search_end(cut_search *s) {
    free(s->list.cuts);
    free(s->places);
    free(s->is_dead);
    *s = (cut_search){0};
}

/* The first cut at or after a place of the stage's text. */
static size_t first_cut(const cut_list *l, size_t at) {
    size_t low = 0, high = l->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (l->cuts[middle].at < at) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* A piece that ends where the piece of an earlier stage ends is noted by both, by the earlier one last: the continued
 * stages are then those before it. */
void cut_note(cut_search *s, const char *at, size_t level, size_t n_ids) {
    if (s->n_muted) return;
    size_t place = (size_t)(at - s->list.base);
    for (size_t i = first_cut(&s->list, place); i < s->list.n && s->list.cuts[i].at == place; i++) {
        size_t index = s->list.cuts[i].index;
        if (s->is_dead[index]) continue;
        text_boundary b = {true, s->places[index], n_ids - s->n_ids_before, level};
        if (b.place == s->part->wanted) s->part->at_wanted = b;
        if (b.place >= s->part->last.place) s->part->last = b;
    }
}

void cut_kill(cut_search *s, const char *from, const char *to) {
    const cut_list *l = &s->list;
    if (l->n == 0 || to <= l->base + l->cuts[0].at) return;
    size_t begin = (size_t)(from - l->base), end = (size_t)(to - l->base);
    for (size_t i = first_cut(l, begin + 1); i < l->n && l->cuts[i].at < end; i++) s->is_dead[l->cuts[i].index] = true;
}

void cut_kill_in_words(cut_search *s, const piece *p) {
    const cut_list *l = &s->list;
    if (l->n == 0) return;
    size_t begin = (size_t)(p->text - l->base);
    for (size_t i = first_cut(l, begin + 1); i < l->n && l->cuts[i].at <= begin + p->length; i++)
        if (char_is_word(char_decode(l->base + char_before(l->base, l->cuts[i].at))))
            s->is_dead[l->cuts[i].index] = true;
}

cut_list cut_list_of(const cut_search *s, const piece *p) {
    cut_list l = {0};
    if (s->list.n == 0 || p->text + p->length < s->list.base + s->list.cuts[0].at) return l;
    size_t begin = (size_t)(p->text - s->list.base);
    size_t from = first_cut(&s->list, begin), to = first_cut(&s->list, begin + p->length + 1);
    l.n = to - from;
    l.base = p->text;
    l.cuts = mem_alloc(l.n * sizeof *l.cuts);
    for (size_t i = 0; i < l.n; i++) l.cuts[i] = (cut){s->list.cuts[from + i].at - begin, s->list.cuts[from + i].index};
    return l;
}

void cut_list_free(cut_list *l) {
    free(l->cuts);
    *l = (cut_list){0};
}

void cut_map(cut_mapper *m, size_t from, size_t to, size_t new_from) {
    cut_list *l = m->list;
    while (m->at < l->n && l->cuts[m->at].at < from) m->at++;
    for (; m->at < l->n && l->cuts[m->at].at < to; m->at++)
        l->cuts[m->n_kept++] = (cut){l->cuts[m->at].at - from + new_from, l->cuts[m->at].index};
}
