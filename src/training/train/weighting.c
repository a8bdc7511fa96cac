/* weighting.c - weightings.def as a table; and the weighting that weighs nothing. */
#include "train/weighting.h"

const char train_weighting_names[] = ""
#define WEIGHTING(id, name, help) "|" name
#include "train/weightings.def"
#undef WEIGHTING
    ;
const char train_weighting_help[] = "train.task mtp and sft: how the losses of tokens are weighed"
#define WEIGHTING(id, name, help) "; " name ": " help
#include "train/weightings.def"
#undef WEIGHTING
    ;

const weighting weighting_BASELINE = {0};

const char *weighting_name(weighting_kind k) {
    static const char *const names[] = {
#define WEIGHTING(id, name, help) name,
#include "train/weightings.def"
#undef WEIGHTING
    };
    return names[k];
}

const weighting *weighting_of(weighting_kind k) {
    static const weighting *const rows[] = {
#define WEIGHTING(id, name, help) &weighting_##id,
#include "train/weightings.def"
#undef WEIGHTING
    };
    return k < WEIGHTING_COUNT ? rows[k] : NULL;
}
