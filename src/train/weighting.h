#pragma once
/* weighting.h - private to train: how the losses of tokens are weighed. A weighting is one file, weighting_<name>.c, and one row of
 * weightings.def. Either the program makes the weights (shape asks for that), or `weigh` does, before a micro-batch. */
#include "train/train.h"

struct weighting {
    /* What the program must contain, before it is planned; refuses by key what cannot be. NULL: nothing. */
    status (*shape)(train_request *r);
    /* The weights of the T targets of a row of the data, by its number alone, so that ranks and resumed runs agree. Whichever head
     * predicts a token, its weight is the same. Allocates nothing. NULL: 1, or made by the program. */
    void (*weigh)(const train_request *r, uint64_t row, int64_t T, float *out);
};

#define WEIGHTING(id, name, help) extern const weighting weighting_##id;
#include "train/weightings.def"
#undef WEIGHTING

const char *weighting_name(weighting_kind k);

/* Weights of tokens, from a critic or random, stay between these. */
#define WEIGHT_LEAST 0.1f
#define WEIGHT_MOST 3.0f
