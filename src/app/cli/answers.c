/* answers.c - find the answer in a text by a regular expression or its mark, and estimate pass@k.
 *
 * The expression is the user's and the text a model's, so matching has a step limit: a text that needs more has no
 * answer. */
#include "cli/answers.h"
#include "reward/reward.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MATCH_STEPS 10000000

struct answer_rule {
    pcre2_code *code; /* NULL: the whole text */
    pcre2_match_data *match;
    pcre2_match_context *limits;
    bool marked; /* code NULL: only what the text marks as its answer */
};

status answer_rule_open(answer_rule **out, const char *expression) {
    answer_rule *r = mem_alloc(sizeof *r);
    *out = NULL;
    if (expression) {
        int code;
        PCRE2_SIZE at;
        char why[256];
        r->code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_MULTILINE, &code, &at, NULL);
        if (!r->code) {
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            free(r);
            return ERR(ERR_INPUT, "--answer-regex '%s': %s at character %zu", expression, why, (size_t)at + 1);
        }
        r->match = pcre2_match_data_create_from_pattern(r->code, NULL);
        r->limits = pcre2_match_context_create(NULL);
        ASSERT(r->match && r->limits);
        pcre2_set_match_limit(r->limits, MATCH_STEPS);
    }
    *out = r;
    return OK;
}

void answer_rule_expect_marks(answer_rule *r) { r->marked = true; }

void answer_rule_close(answer_rule *r) {
    if (!r) return;
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->limits);
    pcre2_code_free(r->code);
    free(r);
}

static span trim(span s) {
    static const char spaces[] = " \t\r\n\f\v";
    while (s.length > 0 && memchr(spaces, s.text[0], sizeof spaces - 1)) s.text++, s.length--;
    while (s.length > 0 && memchr(spaces, s.text[s.length - 1], sizeof spaces - 1)) s.length--;
    return s;
}

bool answer_find(const answer_rule *r, const char *text, size_t n_bytes, span *out) {
    *out = trim((span){text, n_bytes});
    bool found = false;
    if (!r->code && r->marked) *out = answer_extract((span){text, n_bytes}, &found);
    if (!r->code) return found || !r->marked;
    for (size_t at = 0; at <= n_bytes;) {
        int n = pcre2_match(r->code, (PCRE2_SPTR)text, n_bytes, at, 0, r->match, r->limits);
        if (n < 0) break;
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(r->match);
        bool group = n > 1 && ends[2] != PCRE2_UNSET;
        size_t first = group ? ends[2] : ends[0], end = group ? ends[3] : ends[1];
        if (end >= first) *out = trim((span){text + first, end - first}); /* \K in a lookahead may swap them */
        found = true;
        at = ends[1] > at ? ends[1] : at + 1;
    }
    return found;
}

bool answer_equal(span a, span b) { return a.length == b.length && memcmp(a.text, b.text, a.length) == 0; }

double pass_at_k(int64_t n, int64_t c, int64_t k) {
    ASSERT(0 <= c && c <= n && 1 <= k && k <= n);
    if (n - c < k) return 1;
    double none = 1; /* no right one among k */
    for (int64_t i = n - c + 1; i <= n; i++) none *= 1 - (double)k / (double)i;
    return 1 - none;
}
