/* sort.c - radix sort of rows by a whole number, in linear time.
 *
 * From the lowest byte of the key to the highest, rows are distributed over 256 buckets and collected again. Each
 * pass keeps the order of the pass before, so the highest byte decides and lower bytes break ties. A byte that all
 * keys share is skipped: most keys here are sizes and positions, of which few bytes differ. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

enum { PILES = 256, PILE_BITS = 8 };

static unsigned bucket_of(const sort_row *r, int shift) { return (unsigned)(r->key >> shift) % PILES; }

/* By the byte of the key that begins at bit `shift`. */
static void distribute(const sort_row *from, sort_row *to, size_t n, int shift) {
    size_t place[PILES + 1] = {0};
    for (size_t i = 0; i < n; i++) place[bucket_of(&from[i], shift) + 1]++;
    for (int k = 0; k < PILES; k++) place[k + 1] += place[k];
    for (size_t i = 0; i < n; i++) to[place[bucket_of(&from[i], shift)]++] = from[i];
}

void sort_rows(sort_row *rows, size_t n) {
    uint64_t differing = 0; /* bits in which some key differs from the first */
    for (size_t i = 1; i < n; i++) differing |= rows[i].key ^ rows[0].key;
    if (differing == 0) return;
    sort_row *spare = mem_alloc(n * sizeof *spare), *from = rows, *to = spare;
    for (int shift = 0; shift < 64; shift += PILE_BITS) {
        if ((differing >> shift) % PILES == 0) continue;
        distribute(from, to, n, shift);
        sort_row *dealt = to;
        to = from;
        from = dealt;
    }
    if (from != rows) memcpy(rows, from, n * sizeof *rows);
    free(spare);
}
