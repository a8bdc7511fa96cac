#pragma once
/* answers.h - private to cli: is an answer right, and how often would k tries hold a right one. */
#include "cli/cli.h"

/* expression NULL: the answer is the whole text. Else PCRE2, applied to the reference and to the completion alike: the last
 * match in the text counts, its first group where it has one. Spaces around an answer never count. */
typedef struct answer_rule answer_rule;
status answer_rule_open(answer_rule **out, const char *expression);
void answer_rule_close(answer_rule *r);
/* False when the text holds no answer. The span points into text. */
bool answer_find(const answer_rule *r, const char *text, size_t n_bytes, span *out);
bool answer_equal(span a, span b);

/* The chance that k of n samples, c of which are right, hold a right one: 1 - C(n - c, k) / C(n, k), without bias. */
double pass_at_k(int64_t n, int64_t c, int64_t k);
