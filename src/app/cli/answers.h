#pragma once
/* answers.h - private to cli: is an answer right, and what is pass@k. */
#include "cli/cli.h"

/* expression NULL: the answer is the whole text. Else PCRE2, applied to the reference and to the completion: the
 * last match in the text counts, or its first group if it has one. Spaces around an answer are ignored. */
typedef struct answer_rule answer_rule;
status answer_rule_open(answer_rule **out, const char *expression);
/* Without an expression: what a text marks as its answer (reward.h), not the whole. */
void answer_rule_expect_marks(answer_rule *r);
void answer_rule_close(answer_rule *r);
/* False when the text holds no answer. The span points into text. */
bool answer_find(const answer_rule *r, const char *text, size_t n_bytes, span *out);
bool answer_equal(span a, span b);

/* pass@k, unbiased: the probability that k of n samples, c of which are right, contain a right one: 1 - C(n - c, k)
 * / C(n, k). */
double pass_at_k(int64_t n, int64_t c, int64_t k);
