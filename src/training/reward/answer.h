#pragma once
/* answer.h - private to reward: the number of the answer inside a text that reasons (reward.h, answer_extract).
 *
 * Without a mark it is the last number of the text; with a mark it is the first, behind the last "=". */
#include "reward/reward.h"

/* The number of an answer: 1,234  -5  $18.50  20% (20)  .5  3/4  \frac{3}{4}  1e-3. False: it has none that is finite. */
bool answer_extract_number(span text, double *out);
