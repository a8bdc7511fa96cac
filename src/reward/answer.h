#pragma once
/* answer.h - private to reward: the answer inside a text that reasons.
 *
 * What marks an answer, the last one in the text counting:
 *     #### 42            the rest of the line (gsm8k)
 *     \boxed{42}         with the braces that belong together
 *     <answer>42</answer>
 *     the answer is 42   the rest of the sentence or line; also "Answer: 42"
 * Inside of it is searched again ("<answer>The answer is 42.</answer>"). Without a mark the whole text is the answer, and its number
 * is the last one in it; with a mark it is the first, behind the last "=". */
#include "format/format.h"

/* The marked part of the text without spaces, *, $, ` around it and without a full stop after it. */
span answer_extract(span text, bool *is_marked);
/* The number of an answer: 1,234  -5  $18.50  20% (20)  .5  3/4  \frac{3}{4}  1e-3. False: it has none that is finite. */
bool answer_extract_number(span text, double *out);
