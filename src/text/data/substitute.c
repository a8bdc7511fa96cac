/* substitute.c - classes of characters that do not depend on the PCRE2 that is installed.
 *
 * PCRE2 knows the characters of its own Unicode version (14 in Debian 12): a heart that came with version 15 is no symbol
 * there, and text is split at other places than by the reference. Which characters it classes otherwise than
 * our table is found out once, by asking it. A text that holds one of them, which is rare, is matched as a copy with
 * another character in its place: of the same class in the table, of as many bytes, and on the same side of every
 * character that the expression names. Matching gives places alone, so nothing else changes, and other texts cost a
 * look at their characters beyond ASCII. (Writing the differences into the classes of the expression, up to some
 * hundred ranges, would be paid by every text.)
 * U+180E is one of them: for PCRE2 it is a space (\\s), by its category it is none. */
#define _GNU_SOURCE 1
#include "data/encode.h"
#include "data/unicode_table.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- what PCRE2 classes otherwise ---------------------------------------------------------------------------- */

typedef struct char_range {
    int32_t first, last;
} char_range;

enum {
    PAGE_BITS = 8,
    N_PAGES = 0x110000 >> PAGE_BITS,
    LAST_PLANE = 0x3ffff,
    PLANE_14 = 0xe0000,
    MONGOLIAN_SEPARATOR = 0x180e
};
static char_range *differing; /* in order */
static size_t n_differing, differing_capacity;
static bool page_differs[N_PAGES];
static pthread_once_t differing_once = PTHREAD_ONCE_INIT;

static int by_first(const void *a, const void *b) {
    const char_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static void add_differing(int32_t c) {
    char_range *last = n_differing ? &differing[n_differing - 1] : NULL;
    if (last && last->last + 1 == c) {
        last->last = c;
        return;
    }
    differing = array_grow(differing, &differing_capacity, n_differing + 1, sizeof *differing);
    differing[n_differing++] = (char_range){c, c};
}

/* No library assigns characters between planes 3 and 14, nor changes private use. */
static bool is_asked(size_t run) {
    int32_t first = unicode_run_first(run);
    unicode_category k = unicode_run_category(run);
    return k != CATEGORY_CS && k != CATEGORY_CO && (first <= LAST_PLANE || first >= PLANE_14);
}

/* All characters that the table has in a class, one after the other: what is not of PCRE2's class differs. */
static void compare_class(const char *class, bool (*has)(size_t run, size_t which), size_t which, strbuf *text) {
    char expression[64];
    int code;
    PCRE2_SIZE at;
    int n = snprintf(expression, sizeof expression, "\\P{%s}", class);
    text->length = 0;
    strbuf_add_bytes(text, "", 0);
    for (size_t run = 0; run < n_unicode_runs; run++) {
        if (!is_asked(run) || !has(run, which)) continue;
        int32_t end = unicode_run_end(run), first = unicode_run_first(run);
        if (first <= LAST_PLANE) end = MIN(end, LAST_PLANE + 1);
        for (int32_t c = first; c < end; c++) {
            char u[4];
            strbuf_add_bytes(text, u, char_encode(c, u));
        }
    }
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)expression, (size_t)n, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    ASSERT(match);
    if (compiled) pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    for (size_t from = 0; from < text->length;) {
        if (compiled) { /* else it does not know the class at all */
            if (pcre2_match(compiled, (PCRE2_SPTR)text->text, text->length, from, PCRE2_NO_UTF_CHECK, match, NULL) < 0)
                break;
            from = pcre2_get_ovector_pointer(match)[0];
        }
        add_differing(char_decode(text->text + from));
        from += char_length(text->text[from]);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(compiled);
}

static bool has_category(size_t run, size_t which) { return unicode_run_category(run) == which; }
static bool has_script(size_t run, size_t which) {
    return unicode_run_scripts[run] == which && unicode_run_category(run) != CATEGORY_CN;
}

static void find_differing(void) {
    char name[64];
    strbuf text;
    strbuf_init(&text);
    add_differing(MONGOLIAN_SEPARATOR);
    for (size_t k = 0; k < UNICODE_CATEGORIES; k++) compare_class(unicode_categories[k], has_category, k, &text);
    for (size_t k = 0; k < n_unicode_scripts; k++) {
        snprintf(name, sizeof name, "sc:%s", unicode_scripts[k]);
        compare_class(name, has_script, k, &text);
    }
    strbuf_fini(&text);
    qsort(differing, n_differing, sizeof *differing, by_first);
    size_t kept = 0;
    for (size_t i = 0; i < n_differing; i++) { /* a new character differs in category and script */
        if (kept && differing[i].first <= differing[kept - 1].last + 1)
            differing[kept - 1].last = MAX(differing[kept - 1].last, differing[i].last);
        else differing[kept++] = differing[i];
    }
    n_differing = kept;
    for (size_t i = 0; i < n_differing; i++)
        for (int32_t p = differing[i].first >> PAGE_BITS; p <= differing[i].last >> PAGE_BITS; p++)
            page_differs[p] = true;
}

static bool is_differing(int32_t c) {
    size_t low = 0, high = n_differing;
    if (!page_differs[c >> PAGE_BITS]) return false;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > differing[middle].last) low = middle + 1;
        else if (c < differing[middle].first) high = middle;
        else return true;
    }
    return false;
}

/* ---- what stands for them in the texts of an expression ------------------------------------------------------ */

/* The characters beyond ASCII that an expression names, as themselves or as \\x{...}. */
static size_t find_named(const char *text, size_t length, int32_t **out) {
    size_t n = 0, capacity = 0;
    *out = NULL;
    for (size_t i = 0; i < length;) {
        size_t step = char_length(text[i]);
        int32_t c = step > 1 ? char_decode(text + i) : 0;
        if (text[i] == '\\' && i + 1 < length) {
            step = 1 + char_length(text[i + 1]);
            if (text[i + 1] == 'x' && i + 3 < length)
                c = (int32_t)strtoul(text + i + (text[i + 2] == '{' ? 3 : 2), NULL, 16);
            else if (step > 2) c = char_decode(text + i + 1);
        }
        if (c >= 0x80 && c < 0x110000) {
            *out = array_grow(*out, &capacity, n + 1, sizeof **out);
            (*out)[n++] = c;
        }
        i += step;
    }
    return n;
}

/* Do the two stand alike to every range that can be made of the characters named? */
static bool same_side_of_all(int32_t a, int32_t b, const int32_t *named, size_t n_named) {
    int32_t low = MIN(a, b), high = MAX(a, b);
    for (size_t i = 0; i < n_named; i++)
        if (low <= named[i] && named[i] <= high) return false;
    return true;
}

static size_t utf8_length(int32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; }

/* Long s and the sign of kelvin are letters of ASCII where case does not count. */
static bool may_stand_in(int32_t c) { return c >= 0x80 && c != 0x17f && c != 0x212a && !is_differing(c); }

/* A character that may stand for c; itself where there is none. same_script: the expression asks for scripts. */
static int32_t find_substitute(int32_t c, bool same_script, const int32_t *named, size_t n_named) {
    size_t own = unicode_run_of(c), n_bytes = utf8_length(c);
    for (size_t i = 0; i < n_named; i++)
        if (named[i] == c) return c; /* what is named must be seen */
    int32_t second = c;              /* should every one of the class be on another side of a character named */
    for (size_t run = 0; run < n_unicode_runs; run++) {
        if (unicode_run_category(run) != unicode_run_category(own)) continue;
        if (same_script && unicode_run_scripts[run] != unicode_run_scripts[own]) continue;
        int32_t last = unicode_run_end(run) - 1, first = MAX(unicode_run_first(run), last - 0x100);
        if (utf8_length(first) != n_bytes || utf8_length(last) != n_bytes) continue;
        for (int32_t s = first; s <= last; s++) {
            if (!may_stand_in(s)) continue;
            if (same_side_of_all(c, s, named, n_named)) return s;
            if (second == c) second = s;
        }
    }
    return second;
}

void substitutes_open(substitutes *s, const char *expression, size_t length) {
    pthread_once(&differing_once, find_differing);
    int32_t *named;
    size_t n_named = find_named(expression, length, &named), capacity = 0;
    bool scripts = memmem(expression, length, "sc:", 3) != NULL;
    *s = (substitutes){0};
    for (size_t i = 0; i < n_differing; i++) {
        int32_t from = differing[i].first;
        while (from <= differing[i].last) { /* as far as one substitute serves */
            int32_t to = MIN(differing[i].last, unicode_run_end(unicode_run_of(from)) - 1);
            for (size_t k = 0; k < n_named; k++) {
                if (named[k] == from) to = from;
                else if (named[k] > from && named[k] <= to) to = named[k] - 1;
            }
            if (from < 0x800 && to >= 0x800) to = 0x7ff;
            if (from < 0x10000 && to >= 0x10000) to = 0xffff;
            s->ranges = array_grow(s->ranges, &capacity, s->n + 1, sizeof *s->ranges);
            s->ranges[s->n++] = (substitute_range){from, to, find_substitute(from, scripts, named, n_named)};
            from = to + 1;
        }
    }
    free(named);
}

void substitutes_close(substitutes *s) {
    free(s->ranges);
    *s = (substitutes){0};
}

static int32_t substitute_of(const substitutes *s, int32_t c) {
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > s->ranges[middle].last) low = middle + 1;
        else if (c < s->ranges[middle].first) high = middle;
        else return s->ranges[middle].substitute;
    }
    return c;
}

/* The next character at or after `at` that PCRE2 classes otherwise; length: none. */
static size_t next_differing(const char *text, size_t at, size_t length) {
    while (at < length) {
        uint64_t eight;
        if (length - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                at += sizeof eight;
                continue;
            }
        }
        if ((unsigned char)text[at] & 0x80) {
            int32_t c = char_decode(text + at);
            if (page_differs[c >> PAGE_BITS] && is_differing(c)) return at;
        }
        at += char_length(text[at]);
    }
    return length;
}

char *substitutes_copy(const substitutes *s, const char *text, size_t length) {
    size_t at = next_differing(text, 0, length);
    if (at == length) return NULL;
    char *copy = mem_alloc(length);
    memcpy(copy, text, length);
    for (; at < length; at = next_differing(text, at + char_length(text[at]), length))
        char_encode(substitute_of(s, char_decode(text + at)), copy + at);
    return copy;
}
