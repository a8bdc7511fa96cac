/* fuzz_pattern.c - a regular expression of a tokenizer file, translated from Oniguruma's syntax to PCRE2's, and texts through it;
 * and one of `ralo eval --answer-regex`.
 *
 * Sections: the expression, then the text.
 * Of one that is accepted: matches lie in the text, in order and at whole characters; an answer lies in the text. */
#include "cli/answers.h"
#include "data/encode.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 64 }; /* matching takes what it takes; the translation is ours */

static void check_matches(const pattern *p, const char *text, size_t length) {
    static matcher m;
    if (!m.context) matcher_open(&m);
    pattern_walk w;
    size_t last = 0;
    bool found = true;
    status rc = OK;
    matcher_begin(&m);
    matcher_allow(&m, length);
    pattern_begin(&w, p, &m, text, length);
    while (found && rc == OK) {
        size_t start = 0, end = 0;
        rc = pattern_next(&w, &start, &end, &found);
        if (rc != OK || !found) break;
        ASSERT(last <= start && start <= end && end <= length);
        ASSERT(utf8_check(text + start, end - start).n_bad == 0);
        last = end;
    }
    pattern_end(&w);
    if (rc != OK) fuzz_refused(rc);
}

static void check_answer(const char *expression, const char *text, size_t length) {
    answer_rule *r;
    span found;
    status rc = answer_rule_open(&r, expression);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    if (answer_find(r, text, length, &found) && found.length)
        ASSERT(found.text >= text && found.text + found.length <= text + length);
    answer_rule_close(r);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span expression = fuzz_section(&in), rest = fuzz_rest(&in);
    strbuf text;
    strbuf_init(&text);
    text_make_valid(rest.text, MIN(rest.length, (size_t)TEXT_MOST), &text);
    strbuf_add(&text, "");
    if (utf8_check(expression.text, expression.length).n_bad == 0) { /* as a tokenizer file's strings are */
        pattern p;
        status rc = pattern_open(&p, &(tokenizer_pattern){expression, true}, "fuzz", "pre_tokenizer");
        if (rc != OK) fuzz_refused(rc);
        else if (fuzz_sometimes(data, size, 8)) check_matches(&p, text.text, text.length);
        if (rc == OK) pattern_close(&p);
    }
    if (fuzz_sometimes(data, size, 32)) {
        char *zero = fuzz_text(&expression);
        check_answer(zero, text.text, text.length);
        free(zero);
    }
    strbuf_fini(&text);
}
