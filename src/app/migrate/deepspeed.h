#pragma once
/* deepspeed.h - private to deepspeed*.c: what the translation of DeepSpeed's JSON shares between its files. */
#include "migrate/dialect.h"

#define ZERO "zero_optimization."
#define STATES ZERO "offload_optimizer."
#define PARAMS ZERO "offload_param."

/* zero_optimization and activation_checkpointing: ZeRO stage, offload, buckets, recompute. */
status deepspeed_translate_memory(foreign_reader *r);

static inline int64_t deepspeed_whole_or_zero(const foreign_item *i) { return i && !i->is_auto ? item_whole(i) : 0; }

static inline status deepspeed_offer_whole(foreign_reader *r, const foreign_item *i, const char *setting, int64_t value,
                                           const char *note) {
    return foreign_offer(r, i, setting, foreign_format(r, "%lld", (long long)value), note);
}

static inline int64_t multiply_saturating(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
