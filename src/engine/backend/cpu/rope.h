#pragma once
/* rope.h - one turn of a pair of numbers, for every kernel that rotates heads: element i of a head with element i + D / 2. */
#include "backend/cpu/typed.h"

typedef struct vec_pair {
    vec low, high;
} vec_pair;

/* Elements i and half + i of a head, and so on for `lanes` of them. */
VEC_INLINE vec_pair pair_load(const void *head, dtype t, size_t half, size_t i, size_t lanes) {
    return (vec_pair){typed_load(head, t, i, lanes), typed_load(head, t, half + i, lanes)};
}
VEC_INLINE void pair_store(void *head, dtype t, size_t half, size_t i, size_t lanes, vec_pair x) {
    typed_store(head, t, i, lanes, x.low);
    typed_store(head, t, half + i, lanes, x.high);
}

/* turn is cosine and sine of one position, as ROPE_TABLE has them; sign -1 turns back. */
VEC_INLINE vec_pair pair_turn(vec_pair x, vec_pair turn, float sign) {
    vec sine = sign * turn.high;
    return (vec_pair){vec_fma(x.low, turn.low, -(x.high * sine)), vec_fma(x.high, turn.low, x.low * sine)};
}
