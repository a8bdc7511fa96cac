/* length.c - long completions cost: nothing up to a length, 1 at twice that and beyond. */
#include "reward/kind.h"

#include <stdlib.h>

static status length_open(void **self, const reward_options *o) {
    if (o->length < 1)
        return ERR(
            ERR_INPUT,
            "reward.length: found %lld, expected the tokens that a completion may have without a penalty, 1 or more",
            (long long)o->length);
    *self = mem_alloc(sizeof(int64_t));
    *(int64_t *)*self = o->length;
    return OK;
}

static status length_score(void *self, scoring *s) {
    int64_t free_tokens = *(int64_t *)self;
    for (size_t i = 0; i < s->n; i++) {
        int64_t beyond = MIN(MAX(s->items[i].n_tokens - free_tokens, (int64_t)0), free_tokens);
        scoring_put(s, i, beyond == 0 ? 0 : -(double)beyond / (double)free_tokens);
    }
    return OK;
}

const reward_kind reward_kind_LENGTH = {length_open, length_score, free};
