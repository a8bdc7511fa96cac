#pragma once
/* occupancy.h - private to pass: which bytes of an arena are taken at which moments.
 *
 * A block takes a range of bytes for a range of moments. Each gets the lowest address that is free at all of its moments. A
 * tree over the moments finds the same address as comparing all blocks, but searches only O(log moments) lists of the few
 * ranges that taken bytes form. A pipeline has thousands of blocks alive at once.
 *
 *     occupancy *o = occupancy_open(n_moments, 64);
 *     occupancy_expect(o, 3, 17);  // for every block first, so that only lists that are searched are kept
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
/* Takes n_bytes at the lowest free multiple of alignment from base on, from moment `first` to `last`; a block with these
 * moments was expected. */
size_t occupancy_place(occupancy *o, size_t first, size_t last, size_t base, size_t n_bytes, size_t alignment);
