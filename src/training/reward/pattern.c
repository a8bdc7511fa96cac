/* pattern.c - rewards regex and format: does an expression match somewhere in a completion, or all of it?
 *
 * Syntax is PCRE2's, in UTF-8; "." is any character, line ends too. Bytes of a completion that are not UTF-8 match nothing. An
 * expression that tries too many ways on a completion (match and heap limits) is stopped, and that completion has no score. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "reward/kind.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MATCH_LIMIT 1000000u /* ten milliseconds */
#define HEAP_LIMIT_KIB (64u << 10)
#define PATTERN_MAX_BYTES 65536
static const char usual_format[] = "\\s*<think>.*?</think>\\s*<answer>.*?</answer>\\s*";

typedef struct matcher {
    pcre2_code *code;
    pcre2_match_context *limits;
    pcre2_match_data *data;
} matcher;

static void matcher_close(void *self) {
    matcher *m = self;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->limits);
    pcre2_code_free(m->code);
    free(m);
}

static status matcher_open(void **self, const char *pattern, uint32_t flags) {
    int code;
    PCRE2_SIZE at;
    if (strlen(pattern) > PATTERN_MAX_BYTES)
        return ERR(ERR_INPUT, "reward.pattern: found %zu bytes, expected at most %d", strlen(pattern),
                   PATTERN_MAX_BYTES);
    matcher *m = mem_alloc(sizeof *m);
    flags |= PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
    m->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, flags, &code, &at, NULL);
    if (!m->code) {
        PCRE2_UCHAR why[160] = "";
        pcre2_get_error_message(code, why, sizeof why);
        matcher_close(m);
        return ERR(ERR_INPUT, "reward.pattern: found '%.200s', which is no regular expression (PCRE2) at byte %zu: %s",
                   pattern, (size_t)at, (const char *)why);
    }
    m->limits = pcre2_match_context_create(NULL);
    m->data = pcre2_match_data_create(1, NULL);
    if (!m->limits || !m->data) mem_refused(0);
    pcre2_set_match_limit(m->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(m->limits, HEAP_LIMIT_KIB);
    *self = m;
    return OK;
}

static status regex_open(void **self, const reward_options *o) {
    if (!o->pattern || !*o->pattern)
        return ERR(ERR_INPUT, "reward.pattern: found nothing, expected the regular expression of reward regex");
    return matcher_open(self, o->pattern, 0);
}

static status format_open(void **self, const reward_options *o) {
    return matcher_open(self, o->pattern && *o->pattern ? o->pattern : usual_format,
                        PCRE2_ANCHORED | PCRE2_ENDANCHORED);
}

static status matcher_score(void *self, scoring *s) {
    matcher *m = self;
    for (size_t i = 0; i < s->n; i++) {
        span text = s->items[i].completion;
        int rc =
            pcre2_match(m->code, (PCRE2_SPTR)(text.length ? text.text : ""), text.length, 0, 0, m->data, m->limits);
        if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) {
            scoring_put(s, i, rc >= 0);
            continue;
        }
        PCRE2_UCHAR why[160] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        TRY(scoring_fail(s, i, "reward.pattern could not be matched with a completion of %zu bytes: %s", text.length,
                         (const char *)why));
    }
    return OK;
}

const reward_kind reward_kind_REGEX = {regex_open, matcher_score, matcher_close};
const reward_kind reward_kind_FORMAT = {format_open, matcher_score, matcher_close};
