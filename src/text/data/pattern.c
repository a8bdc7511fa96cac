/* pattern.c - the regular expressions of tokenizer files, run by PCRE2.
 *
 * They are written for Oniguruma with Ruby's syntax. What the two engines understand alike is passed on, what they
 * understand differently is translated where that is exact (\w, scripts, {,n}, {n,m}+, \uHHHH, \v), and refused by name
 * where it is not (nested classes, \h, \b ...): a pattern that splits text at other places gives other ids without an
 * error.
 * Classes of characters are those of our own table, of the Unicode version of Oniguruma: see substitute.c.
 *
 * Patterns are as untrusted as the rest of a file: matching is bounded (match limit, stack, heap), and one that runs
 * into a bound is an error that names it, not a program that hangs. A bound for each match is not enough, for a text
 * has as many matches as it has letters: PCRE2 does not say how many steps a match took, so each is tried with few
 * steps first, and those that need more draw on what is allowed for the whole text. PCRE2 counts no step where it only
 * goes on along the text, so `(?=a*+b)a` would read a text of one letter to its end at every place. A match is
 * therefore looked for in a window first. An attempt that asks for what lies behind the window (a partial match) is
 * settled alone, in longer and longer windows, and each of them draws on the same allowance. */
#define _GNU_SOURCE 1 /* memmem */
#include "data/encode.h"

#include <stdlib.h>

#define PATTERN_MAX_BYTES 65536
#define PATTERN_MAX_DEPTH 64
#define MATCH_LIMIT 10000000u /* a tenth of a second; patterns in use need a few steps for each match */
static const uint32_t match_limits[] = {1000, 100000, MATCH_LIMIT}; /* tried one after the other */
#define STEPS_ALWAYS (2 * (uint64_t)MATCH_LIMIT)                    /* for a text, in matches above the first limit */
#define STEPS_PER_BYTE 2000u
#define STEPS_PER_BYTE_READ(expression_bytes) (4 + (expression_bytes) / 16) /* of a window behind the first */
/* Words are much shorter. A long expression may read its window many times at each place, so it gets a shorter one. */
#define WINDOW_MAX ((size_t)1024)
#define WINDOW_MIN ((size_t)64)
#define WINDOW_WORK ((size_t)1 << 18) /* bytes of the window times those of the expression */
#define HEAP_LIMIT_KIB (256u << 10)
#define STACK_MIN_BYTES (32u << 10)
#define STACK_MAX_BYTES (16u << 20) /* address space; touched only as far as it is needed */

/* ---- from Oniguruma's syntax to PCRE2's ---------------------------------------------------------------------- */

#define WORD                                                                                                        \
    "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{" \
    "1f189}"
#define WORD_ALONE WORD "\\xb2\\xb3\\xb9\\xbc-\\xbe" /* outside of classes a table of Latin-1 decides below 256 */

typedef struct translator {
    const pattern *p;
    const char *text;
    size_t length, at;
    strbuf out;
    size_t atom;                      /* where in `out` the last atom begins */
    size_t groups[PATTERN_MAX_DEPTH]; /* where open groups begin */
    int depth;
    bool sees_ends; /* it asks where the text or a line begins or ends */
} translator;

static status refuse(const translator *t, const char *what) {
    return ERR(ERR_INPUT, "%s: %s.pattern: found %s at byte %zu of the expression, which is not supported", t->p->file,
               t->p->where, what, t->at);
}

static char peek(const translator *t, size_t ahead) { return t->at + ahead < t->length ? t->text[t->at + ahead] : 0; }

static void copy(translator *t, size_t n) {
    n = MIN(n, t->length - t->at);
    strbuf_add_bytes(&t->out, t->text + t->at, n);
    t->at += n;
}

/* From 10.40 on PCRE2 reads a script's name as all that the script uses too, Oniguruma as its own characters. */
static bool is_script(const char *name, size_t length) {
    char text[64];
    int code;
    PCRE2_SIZE at;
    if (length <= 2 || length > 40) return false; /* a general category, or no name */
    int n = snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)length, name);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)text, (size_t)n, PCRE2_UTF, &code, &at, NULL);
    bool is_known = compiled != NULL;
    pcre2_code_free(compiled);
    return is_known;
}

/* The property under the translator, \p{name} or \p{^name}. */
static status translate_property(translator *t) {
    if (peek(t, 2) != '{') return refuse(t, "\\p without braces");
    const char *close = memchr(t->text + t->at, '}', t->length - t->at);
    if (!close) return refuse(t, "\\p{ without an end");
    copy(t, peek(t, 3) == '^' ? 4 : 3);
    size_t n = (size_t)(close - t->text) - t->at;
    if (is_script(t->text + t->at, n)) strbuf_add(&t->out, "sc:");
    copy(t, n + 1);
    return OK;
}

static bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* The escape under the translator, inside or outside a class. */
static status translate_escape(translator *t, bool in_class) {
    char c = peek(t, 1), named[] = "the escape \\?";
    named[sizeof named - 2] = c;
    bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == 0) return refuse(t, "a backslash with nothing after it");
    if (!is_letter || strchr("sSdDrntfae", c)) {
        copy(t, 1 + char_length(c));
    } else if (c == 'p' || c == 'P') {
        TRY(translate_property(t));
    } else if (c == 'w' || (c == 'W' && !in_class)) {
        strbuf_add(&t->out, in_class ? WORD : c == 'w' ? "[" WORD_ALONE "]" : "[^" WORD_ALONE "]");
        t->at += 2;
    } else if (c == 'v') {
        strbuf_add(&t->out, "\\x0b");
        t->at += 2;
    } else if (c == 'x' && peek(t, 2) == '{') {
        copy(t, 2);
    } else if (c == 'x' && peek(t, 2) >= '0' && peek(t, 2) <= '7' && is_hex(peek(t, 3))) {
        copy(t, 4);
    } else if (c == 'u' && is_hex(peek(t, 2)) && is_hex(peek(t, 3)) && is_hex(peek(t, 4)) && is_hex(peek(t, 5))) {
        strbuf_printf(&t->out, "\\x{%.4s}", t->text + t->at + 2);
        t->at += 6;
    } else if ((c == 'A' || c == 'z' || c == 'Z') && !in_class) {
        t->sees_ends = true;
        copy(t, 2);
    } else {
        return refuse(t, named);
    }
    return OK;
}

static status translate_class(translator *t) {
    copy(t, peek(t, 1) == '^' ? 2 : 1);
    for (bool first = true;; first = false) {
        if (t->at >= t->length) return refuse(t, "a character class without an end");
        char c = peek(t, 0);
        if (c == ']' && !first) break;
        if (c == '[') return refuse(t, "a character class inside another");
        if (c == '&' && peek(t, 1) == '&') return refuse(t, "an intersection of character classes");
        if (c == '\\') TRY(translate_escape(t, true));
        else copy(t, char_length(c));
    }
    copy(t, 1);
    return OK;
}

static status translate_group(translator *t) {
    if (t->depth == PATTERN_MAX_DEPTH) return refuse(t, "groups nested deeper than 64 levels");
    t->groups[t->depth++] = t->out.length;
    if (peek(t, 1) == '*') return refuse(t, "(*");
    if (peek(t, 1) != '?') {
        copy(t, 1);
        return OK;
    }
    char c = peek(t, 2);
    if (strchr(":=!>", c) && c) {
        copy(t, 3);
    } else if (c == '<' && (peek(t, 3) == '=' || peek(t, 3) == '!')) {
        copy(t, 4);
    } else if (c == 'i' && peek(t, 3) == ':') {
        copy(t, 4);
    } else if (c == 'i' && peek(t, 3) == ')' && t->at == 0) { /* further in, the two disagree on how far it reaches */
        copy(t, 3);
    } else if (c == '-' && peek(t, 3) == 'i' && peek(t, 4) == ':') {
        copy(t, 5);
    } else {
        return refuse(t, "a kind of group");
    }
    return OK;
}

/* {n}, {n,}, {,m}, {n,m}: the length of the interval under the translator; 0 when it is none, and a literal brace. */
static size_t interval_length(const translator *t, bool *is_open, bool *is_single) {
    size_t i = 1, digits = 0;
    *is_open = *is_single = false;
    while (peek(t, i) >= '0' && peek(t, i) <= '9') i++, digits++;
    *is_open = digits == 0;
    if (peek(t, i) == ',') {
        size_t more = 0;
        for (i++; peek(t, i) >= '0' && peek(t, i) <= '9'; i++) more++;
        if (digits == 0 && more == 0) return 0;
    } else {
        if (digits == 0) return 0;
        *is_single = true;
    }
    return peek(t, i) == '}' ? i + 1 : 0;
}

static status translate_interval(translator *t) {
    bool is_open, is_single;
    size_t n = interval_length(t, &is_open, &is_single);
    if (n == 0) { /* in both engines a brace of its own */
        t->atom = t->out.length;
        strbuf_add(&t->out, "\\{");
        t->at++;
        return OK;
    }
    if (is_open) {
        strbuf_add(&t->out, "{0");
        t->at++;
        copy(t, n - 1);
    } else {
        copy(t, n);
    }
    if (peek(t, 0) == '?' && is_single) return refuse(t, "{n}?");
    if (peek(t, 0) == '+') { /* in Ruby one or more of the interval, in PCRE2 a possessive one */
        size_t n_tail = t->out.length - t->atom;
        char *tail = mem_alloc(n_tail);
        memcpy(tail, t->out.text + t->atom, n_tail);
        t->out.length = t->atom;
        strbuf_add(&t->out, "(?:");
        strbuf_add_bytes(&t->out, tail, n_tail);
        strbuf_add(&t->out, ")+");
        free(tail);
        t->at++;
    }
    return OK;
}

static status translate(translator *t) {
    while (t->at < t->length) {
        char c = peek(t, 0);
        size_t before = t->out.length;
        switch (c) {
        case '\\': TRY(translate_escape(t, false)); break;
        case '[': TRY(translate_class(t)); break;
        case '(': TRY(translate_group(t)); continue; /* the atom is the whole group */
        case ')':
            if (t->depth > 0) before = t->groups[--t->depth];
            copy(t, 1);
            break;
        case '{': TRY(translate_interval(t)); continue;
        case '*':
        case '+':
        case '?': copy(t, 1); continue;
        case 0: return refuse(t, "a NUL character");
        case '^':
        case '$':
            t->sees_ends = true;
            copy(t, 1);
            break;
        default: copy(t, char_length(c));
        }
        t->atom = before;
    }
    return OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static status compile(pattern *p, const char *text, size_t length) {
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    ASSERT(context);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, PATTERN_MAX_DEPTH);
    /* Ruby's ^ and $ are those of lines. */
    p->code = pcre2_compile((PCRE2_SPTR)text, length,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE,
                            &code, &at, context);
    pcre2_compile_context_free(context);
    if (!p->code) {
        PCRE2_UCHAR why[256];
        pcre2_get_error_message(code, why, sizeof why);
        return ERR(ERR_INPUT, "%s: %s.pattern: %s, near byte %zu of '%.*s'", p->file, p->where, (const char *)why,
                   (size_t)at, (int)MIN(length, 400), text);
    }
    /* Where the library has no compiler for this machine the pattern is interpreted, with the same result. */
    p->has_jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    p->has_open_jit = p->has_jit && pcre2_jit_compile(p->code, PCRE2_JIT_PARTIAL_HARD) == 0;
    uint32_t n_back = 1, matches_empty = 1;
    pcre2_pattern_info(p->code, PCRE2_INFO_MAXLOOKBEHIND, &n_back);
    pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    p->restarts = !n_back && !matches_empty;
    p->steps_per_byte_read = STEPS_PER_BYTE_READ(length);
    p->window = MAX(WINDOW_MIN, MIN(WINDOW_MAX, WINDOW_WORK / MAX(length, (size_t)1)));
    return OK;
}

status pattern_open(pattern *p, const tokenizer_pattern *source, const char *file, const char *where) {
    *p = (pattern){.file = file, .where = where};
    if (!source->is_regex && source->text.length) {
        p->literal = source->text;
        p->restarts = true;
        return OK;
    }
    if (source->text.length > PATTERN_MAX_BYTES)
        return ERR(ERR_INPUT, "%s: %s.pattern: found an expression of %zu bytes, expected at most %d", file, where,
                   source->text.length, PATTERN_MAX_BYTES);
    translator t = {.p = p, .text = source->text.text, .length = source->text.length};
    strbuf_init(&t.out);
    strbuf_add_bytes(&t.out, "", 0);
    status rc = translate(&t);
    if (rc == OK) rc = compile(p, t.out.text, t.out.length);
    p->restarts &= !t.sees_ends;
    if (rc == OK) substitutes_open(&p->substitutes, t.out.text, t.out.length);
    strbuf_fini(&t.out);
    return rc;
}

void pattern_close(pattern *p) {
    pcre2_code_free(p->code);
    p->code = NULL;
    substitutes_close(&p->substitutes);
}

void matcher_open(matcher *m) {
    m->context = pcre2_match_context_create(NULL);
    m->data = pcre2_match_data_create(1, NULL);
    m->stack = pcre2_jit_stack_create(STACK_MIN_BYTES, STACK_MAX_BYTES, NULL); /* NULL where there is no JIT */
    ASSERT(m->context && m->data);
    matcher_begin(m);
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
}

void matcher_begin(matcher *m) { m->n_steps_left = STEPS_ALWAYS; }

void matcher_allow(matcher *m, size_t n_bytes) { m->n_steps_left += STEPS_PER_BYTE * (uint64_t)n_bytes; }

void matcher_close(matcher *m) {
    pcre2_jit_stack_free(m->stack);
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
}

/* ---- matching ------------------------------------------------------------------------------------------------ */

void pattern_begin(pattern_walk *w, const pattern *p, matcher *m, const char *text, size_t length) {
    *w = (pattern_walk){
        .p = p,
        .m = m,
        .text = text,
        .length = length,
    };
    if (p->code) w->copy = substitutes_copy(&p->substitutes, text, length);
}

void pattern_end(pattern_walk *w) { free(w->copy); }

static status match_failed(const pattern_walk *w, int code) {
    PCRE2_UCHAR why[256];
    pcre2_get_error_message(code, why, sizeof why);
    return ERR(ERR_INPUT,
               "%s: %s.pattern: matching stopped at byte %zu of a text of %zu: %s; the expression needs too many steps",
               w->p->file, w->p->where, w->from, w->length, (const char *)why);
}

/* Literals are short, mostly one character: memchr finds them. Long ones are left to the two-way search of memmem. */
static const char *find_literal(const span *literal, const char *text, const char *end) {
    size_t n = literal->length;
    if (n > 16) return memmem(text, (size_t)(end - text), literal->text, n);
    for (const char *at = text; (size_t)(end - at) >= n; at++) {
        at = memchr(at, (unsigned char)literal->text[0], (size_t)(end - at) - n + 1);
        if (!at) return NULL;
        if (memcmp(at, literal->text, n) == 0) return at;
    }
    return NULL;
}

/* Runs PCRE2 on the text up to `to`, with at most that many steps. `anchored`: only a match that begins at `from`. */
static int match_bounded(const pattern_walk *w, size_t from, size_t to, bool anchored, uint32_t n_steps) {
    const pattern *p = w->p;
    PCRE2_SPTR subject = (PCRE2_SPTR)(w->copy ? w->copy : w->text);
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    uint32_t partial = w->open || to < w->length ? PCRE2_PARTIAL_HARD : 0;
    pcre2_set_match_limit(w->m->context, n_steps);
    if (!anchored && (partial ? p->has_open_jit : p->has_jit))
        rc = pcre2_jit_match(p->code, subject, to, from, partial, w->m->data, w->m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter takes its memory from the heap */
        rc = pcre2_match(p->code, subject, to, from,
                         partial | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | (anchored ? PCRE2_ANCHORED : 0), w->m->data,
                         w->m->context);
    return rc;
}

static bool steps_take(matcher *m, uint64_t n) {
    if (m->n_steps_left < n) return false;
    m->n_steps_left -= n;
    return true;
}

static int match_within(const pattern_walk *w, size_t from, size_t to, bool anchored) {
    int rc = match_bounded(w, from, to, anchored, match_limits[0]);
    for (size_t i = 1; i < ARRAY_LENGTH(match_limits) && rc == PCRE2_ERROR_MATCHLIMIT; i++) {
        if (!steps_take(w->m, match_limits[i])) break;
        rc = match_bounded(w, from, to, anchored, match_limits[i]);
    }
    /* A match at the very end of the window did not see whether anything follows. */
    if (rc >= 0 && to < w->length && pcre2_get_ovector_pointer(w->m->data)[0] >= to) return PCRE2_ERROR_NOMATCH;
    return rc;
}

/* The end of a window of so many bytes, between two characters. */
static size_t window_end(const pattern_walk *w, size_t from, size_t n_bytes) {
    return w->length - from <= n_bytes ? w->length : char_before(w->text, from + n_bytes + 1);
}

/* The attempt at `from`, which asks for what lies behind its window. */
static int match_here(const pattern_walk *w, size_t from) {
    for (size_t n = 2 * w->p->window;; n *= 2) {
        size_t to = window_end(w, from, n);
        if (!steps_take(w->m, w->p->steps_per_byte_read * (to - from))) return PCRE2_ERROR_MATCHLIMIT;
        int rc = match_within(w, from, to, true);
        if (rc != PCRE2_ERROR_PARTIAL || to == w->length) return rc;
    }
}

/* What PCRE2 says of the whole text from w->from on. */
static int match_text(const pattern_walk *w) {
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(w->m->data);
    for (size_t from = w->from;;) {
        size_t to = window_end(w, from, w->p->window);
        int rc = match_within(w, from, to, false);
        if (to == w->length) return rc;
        if (rc == PCRE2_ERROR_NOMATCH) {
            from = to;
        } else if (rc == PCRE2_ERROR_PARTIAL) {
            from = places[0];
            rc = match_here(w, from);
            if (rc != PCRE2_ERROR_NOMATCH) return rc;
            from += char_length(w->text[from]);
        } else {
            return rc;
        }
    }
}

/* Where text that is not known may complete the literal: the longest end of the text that begins it. */
static size_t literal_undecided(const span *literal, const char *text, size_t from, size_t length) {
    size_t most = MIN(literal->length - 1, length - from);
    for (size_t n = most; n > 0; n--)
        if (memcmp(text + length - n, literal->text, n) == 0) return length - n;
    return length;
}

static status match_once(pattern_walk *w, size_t *start, size_t *end, bool *found) {
    const pattern *p = w->p;
    if (!p->code) {
        const char *at = find_literal(&p->literal, w->text + w->from, w->text + w->length);
        *found = at != NULL;
        if (at) *start = (size_t)(at - w->text), *end = *start + p->literal.length;
        else if (w->open) w->undecided = literal_undecided(&p->literal, w->text, w->from, w->length);
        return OK;
    }
    int rc = match_text(w);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(w->m->data);
    *found = rc >= 0;
    w->undecided = rc == PCRE2_ERROR_PARTIAL ? places[0] : w->length;
    if (rc == PCRE2_ERROR_NOMATCH || rc == PCRE2_ERROR_PARTIAL) return OK;
    if (rc < 0) return match_failed(w, rc);
    *start = places[0];
    *end = places[1];
    return OK;
}

/* As Oniguruma's find_iter: an empty match right after the last match does not count. */
status pattern_next(pattern_walk *w, size_t *start, size_t *end, bool *found) {
    for (;;) {
        *found = false;
        w->undecided = w->length;
        if (w->from > w->length) return OK;
        TRY(match_once(w, start, end, found));
        if (!*found) return OK;
        if (*start != *end || !w->has_last || w->last_end != *end) break;
        w->from += w->from < w->length ? char_length(w->text[w->from]) : 1;
    }
    w->from = w->last_end = *end;
    w->has_last = true;
    return OK;
}
