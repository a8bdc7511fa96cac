/* numeric.c - the answer of a completion is the number of the record, up to a share of it. */
#include "reward/answer.h"
#include "reward/kind.h"

#include <math.h>
#include <stdlib.h>

typedef struct numeric {
    char *column;
    double tolerance;
} numeric;

static status numeric_open(void **self, const reward_options *o) {
    if (!o->answer || !*o->answer)
        return ERR(ERR_INPUT, "reward.answer: found nothing, expected the name of the column with the right answer");
    if (!(o->tolerance >= 0 && o->tolerance < 1))
        return ERR(ERR_INPUT, "reward.tolerance: found %g, expected 0 up to (not including) 1", o->tolerance);
    numeric *n = mem_alloc(sizeof *n);
    *n = (numeric){mem_string(o->answer), o->tolerance};
    *self = n;
    return OK;
}

static void numeric_close(void *self) {
    free(((numeric *)self)->column);
    free(self);
}

static bool number_of(const json_t *v, double *out) {
    *out = json_number_value(v);
    if (json_is_number(v)) return true;
    return answer_extract_number((span){json_string_value(v), json_string_length(v)}, out);
}

static status numeric_score(void *self, scoring *s) {
    const numeric *o = self;
    for (size_t i = 0; i < s->n; i++) {
        const json_t *right;
        double a, b;
        TRY(scoring_answer(s, i, o->column, &right));
        if (!right) continue;
        if (!number_of(right, &a)) {
            TRY(scoring_fail(s, i, "the column '%.50s' holds '%.60s', expected a number", o->column,
                             json_string_value(right)));
            continue;
        }
        bool found = answer_extract_number(s->items[i].completion, &b);
        scoring_put(s, i, found && fabs(a - b) <= o->tolerance * fabs(a));
    }
    return OK;
}

const reward_kind reward_kind_NUMERIC = {numeric_open, numeric_score, numeric_close};
