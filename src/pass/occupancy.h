#pragma once
/* occupancy.h - private to pass: which bytes of an arena are taken at which moments.
 *
 * A block takes a run of bytes for a run of moments. Each goes to the lowest place that is free at all of its moments, which
 * is the same place whether blocks are compared one by one or, as here, found in a tree over the moments: a place and what it
 * pushes aside cost O(log moments) lists of the few runs that taken bytes form. A pipeline has thousands of blocks alive
 * beside each other.
 *
 *     occupancy *o = occupancy_open(n_moments, 64);
 *     occupancy_expect(o, 3, 17);  // and so on for every block, so that nothing is kept that none of them asks for
 *     size_t at = occupancy_place(o, 3, 17, base, n_bytes, 256);
 *     occupancy_clear(o);          // nothing is taken, as after open
 *     occupancy_close(o);
 */
#include "base/base.h"

typedef struct occupancy occupancy;

/* grain: a power of two that every alignment is a multiple of. */
occupancy *occupancy_open(size_t n_moments, size_t grain);
void occupancy_close(occupancy *o);
void occupancy_clear(occupancy *o);
/* A block will live from moment `first` to moment `last`, both included. */
void occupancy_expect(occupancy *o, size_t first, size_t last);
/* The lowest multiple of alignment from base on where n_bytes are free from moment `first` to moment `last`, as some block
 * was expected to live; they are taken then. */
size_t occupancy_place(occupancy *o, size_t first, size_t last, size_t base, size_t n_bytes, size_t alignment);
