#pragma once
/* weighting.h - private to train: how the losses of tokens are weighed. A weighting is one file, weighting_<name>.c, and one row of
 * weightings.def. Either the program makes the weights (shape asks for that), or `weigh` does, before a micro-batch. */
#include "train/value_weights.h"

/* What the weights of a row follow from. */
typedef struct weighting_row {
    const train_request *request;
    uint64_t row; /* its number in the data */
    int64_t T;
    const int32_t *targets, *doc_start;
    const float *advantages; /* by_value: of every target */
    const value_ema *ema;    /* by_value: as it was before the step */
} weighting_row;

struct weighting {
    /* What the program must contain, before it is planned; refuses by key what cannot be. NULL: nothing. */
    status (*shape)(train_request *r);
    /* The weights of the T targets of a row, by what stands there alone, so that ranks and resumed runs agree. Whichever head
     * predicts a token, its weight is the same. Allocates nothing. NULL: 1, or made by the program. */
    void (*weigh)(const weighting_row *from, float *out);
    bool by_value; /* the values of a critic (request->frozen) are made into advantages first */
};

#define WEIGHTING(id, name, help) extern const weighting weighting_##id;
#include "train/weightings.def"
#undef WEIGHTING

const char *weighting_name(weighting_kind k);
