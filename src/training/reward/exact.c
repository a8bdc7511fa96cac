/* exact.c - the answer of a completion is that of the record, letter by letter. */
#include "reward/answer.h"
#include "reward/kind.h"

#include <stdlib.h>
#include <string.h>

static status exact_open(void **self, const reward_options *o) {
    if (!o->answer || !*o->answer)
        return ERR(ERR_INPUT, "reward.answer: found nothing, expected the name of the column with the right answer");
    *self = mem_string(o->answer);
    return OK;
}

/* A number is written as JSON has it. */
static span text_of(const json_t *v, char **own) {
    if (json_is_string(v)) return (span){json_string_value(v), json_string_length(v)};
    *own = json_dumps(v, JSON_ENCODE_ANY);
    if (!*own) mem_refused(0);
    return (span){*own, strlen(*own)};
}

static status exact_score(void *self, scoring *s) {
    for (size_t i = 0; i < s->n; i++) {
        const json_t *right;
        bool is_marked;
        char *own = NULL;
        TRY(scoring_answer(s, i, self, &right));
        if (!right) continue;
        span a = answer_extract(text_of(right, &own), &is_marked),
             b = answer_extract(s->items[i].completion, &is_marked);
        scoring_put(s, i, a.length == b.length && (a.length == 0 || memcmp(a.text, b.text, a.length) == 0));
        free(own);
    }
    return OK;
}

const reward_kind reward_kind_EXACT = {exact_open, exact_score, free};
